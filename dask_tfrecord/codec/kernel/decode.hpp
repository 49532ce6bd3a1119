// Framed records -> Arrow columns.
//
// Records are taken in blocks that stay in the cache: first their frames are checked, then each record is
// walked once and its values are appended to the columns they belong to. The shape that writers give a
// feature (one kind, one packed chunk) is recognised by one comparison; all else is read field by field.
#pragma once

#include <algorithm>
#include <memory>

#include "arrow.hpp"
#include "frame.hpp"
#include "record.hpp"
#include "varints.hpp"

namespace tfr {

struct DecodedBatch {
  ExportNode root;
  Arena* arena;
  uint64_t consumed;
  Damage damage;
};

// Appends the varints of a packed chunk, or returns false when the last one is cut off.
TFR_INLINE bool append_packed_ints(Span packed, const uint8_t* limit, Growing<int64_t>& out, Arena& arena) {
  out.reserve(arena, packed.size());
  const int64_t* const end = varints::read(packed.begin, packed.end, limit, out.data + out.size);
  if (end) out.size = static_cast<size_t>(end - out.data);
  return end != nullptr;
}

// Arrow's offsets: where each item begins, and after them where the last one ends.
struct Offsets : Growing<int32_t> {
  size_t count() const { return size - 1; }
  size_t operator[](size_t i) const { return static_cast<size_t>(data[i]); }
  void truncate(size_t items) { size = std::min(size, items + 1); }
};

// One column being filled. What is used of it depends on kind and depth; see build().
struct Column {
  ColumnSpec spec;
  Content content;

  Growing<int64_t> ints;
  Growing<float> floats;
  Growing<uint8_t> data;  // of all bytes values
  Offsets values_at;      // of bytes values, in data
  Offsets steps_at;       // depth 2: of the inner lists, in values
  Offsets rows_at;        // depth 1: of the rows, in values; depth 2: in inner lists
  std::vector<int64_t> nulls;   // rows
  std::vector<int64_t> step_nulls;

  explicit Column(const ColumnSpec& column) : spec(column), content(content_of(column.kind)) {}

  void start(Arena& arena) {
    *this = Column(spec);
    if (spec.depth) rows_at.push(arena, 0);
    if (spec.depth == 2) steps_at.push(arena, 0);
    if (spec.kind >= Kind::kBytes) {
      values_at.push(arena, 0);
      data.reserve(arena, 1);
    }
  }

  size_t values() const {
    return spec.kind == Kind::kInt64 ? ints.size : spec.kind == Kind::kFloat ? floats.size : values_at.count();
  }

  // Room for as many contents again as there are, times `times`.
  void reserve_contents(Arena& arena, double times) {
    const auto more = [times](size_t size) { return static_cast<size_t>(static_cast<double>(size) * times); };
    data.reserve(arena, more(data.size));
    if (!spec.depth) return;
    ints.reserve(arena, more(ints.size));
    floats.reserve(arena, more(floats.size));
    values_at.reserve(arena, more(values_at.size));
    steps_at.reserve(arena, more(steps_at.size));
  }

  // Room for `more` rows after the first `rows`. Numbers of a scalar column are set by row.
  void reserve_rows(Arena& arena, size_t rows, size_t more) {
    if (spec.depth) {
      rows_at.reserve(arena, more);
    } else if (spec.kind == Kind::kInt64) {
      ints.size = rows;
      ints.reserve(arena, more);
    } else if (spec.kind == Kind::kFloat) {
      floats.size = rows;
      floats.reserve(arena, more);
    } else {
      values_at.reserve(arena, more);
    }
  }

  TFR_INLINE void push_bytes(Arena& arena, Span value, const uint8_t* limit) {
    const size_t n = value.size();
    data.reserve(arena, n);
    if (TFR_LIKELY(n <= 16 && limit - value.begin >= 16)) {
      copy16(data.data + data.size, value.begin);
    } else if (n) {
      std::memcpy(data.data + data.size, value.begin, n);
    }
    data.size += n;
    values_at.push(arena, static_cast<int32_t>(data.size));
  }

  void push_null(Arena& arena, int64_t row) {
    nulls.push_back(row);
    if (spec.depth) {
      push_row_end(arena);
    } else if (spec.kind == Kind::kInt64) {
      ints.data[row] = 0;
    } else if (spec.kind == Kind::kFloat) {
      floats.data[row] = 0;
    } else {
      values_at.push(arena, static_cast<int32_t>(data.size));
    }
  }

  TFR_INLINE void push_row_end(Arena& arena) {
    rows_at.push(arena, static_cast<int32_t>(spec.depth == 2 ? steps_at.count() : values()));
  }

  // Forgets all rows from `rows` on: the last value of a repeated key counts, a damaged record does not.
  void truncate(size_t rows) {
    const auto drop = [](std::vector<int64_t>& list, size_t count) {
      while (!list.empty() && list.back() >= static_cast<int64_t>(count)) list.pop_back();
    };
    size_t steps = 0;
    size_t count = rows;
    if (spec.depth) {
      rows_at.truncate(rows);
      count = rows_at[rows_at.count()];
    }
    if (spec.depth == 2) {
      steps = count;
      steps_at.truncate(steps);
      count = steps_at[steps];
    }
    ints.size = std::min(ints.size, count);
    floats.size = std::min(floats.size, count);
    if (spec.kind >= Kind::kBytes) {
      values_at.truncate(count);
      data.size = values_at[values_at.count()];
    }
    drop(nulls, rows);
    drop(step_nulls, steps);
  }

  // Where the values of a row begin.
  size_t values_before(size_t row) const {
    return spec.depth == 2 ? steps_at[rows_at[row]] : spec.depth == 1 ? rows_at[row] : row;
  }

  Span bytes_between(size_t first, size_t last) const {
    return {data.data + values_at[first], data.data + values_at[last]};
  }

  // The first row of [begin, end) that holds a value that is not UTF-8, or end.
  size_t first_not_utf8(size_t begin, size_t end) const {
    const Span all = bytes_between(values_before(begin), values_before(end));
    if (is_ascii(all.begin, all.size())) return end;
    for (size_t row = begin; row < end; ++row) {
      for (size_t i = values_before(row); i < values_before(row + 1); ++i) {
        const Span value = bytes_between(i, i + 1);
        if (!is_utf8(value.begin, value.size())) return row;
      }
    }
    return end;
  }
};

class Decoder {
 public:
  Decoder(const std::vector<ColumnSpec>& columns, RecordType type, const FrameRules& rules)
      : type_(type), rules_(rules), features_{*this, false}, lists_{*this, true}, feature_map_(features_), list_map_(lists_) {
    for (const ColumnSpec& column : columns) {
      columns_.emplace_back(column);
      const Shape shape = column.depth                  ? Shape::kList
                          : column.kind == Kind::kInt64 ? Shape::kScalarInt
                          : column.kind == Kind::kFloat ? Shape::kScalarFloat
                                                        : Shape::kScalarBytes;
      targets_.push_back({nullptr, -1, shape});
    }
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Decodes the whole records at the start of data. Throws std::bad_alloc.
  DecodedBatch decode(Span data, bool final) {
    FrameRules rules = rules_;
    rules.final = final;
    // Offsets in a batch have 32 bits: what is beyond waits for the next call.
    if (data.size() > kMaxRecordBytes + kFrameBytes) {
      data.end = data.begin + kMaxRecordBytes + kFrameBytes;
      rules.final = false;
    }
    std::unique_ptr<Arena, void (*)(Arena*)> arena(new Arena, [](Arena* a) { a->release(); });
    arena_ = arena.get();
    rows_ = 0;
    first_block_ = false;
    for (Column& column : columns_) column.start(*arena);
    for (Target& target : targets_) target.last_row = -1;
    Damage damage;
    const uint8_t* p = data.begin;
    bool more = true;
    while (more && !damage) {
      records_.clear();
      const uint8_t* const block_end = data.end - p > kBlockBytes ? p + kBlockBytes : data.end;
      while (p < block_end && records_.size() < kBlockRecords) {
        const Span payload = next_frame(p, data.end, rules, crc32c::best(), damage);
        if (!payload.begin) {
          more = false;
          break;
        }
        records_.push_back(payload);
        p = payload.end + kFooterBytes;
      }
      more = more && p < data.end;
      damage.record = rows_ + static_cast<int64_t>(records_.size());
      damage.offset = static_cast<uint64_t>(p - data.begin);
      reserve_rows(data, p);
      p = decode_block(p, data, damage);
    }
    ExportNode root = build();
    return {std::move(root), arena.release(), static_cast<uint64_t>(p - data.begin), damage};
  }

 private:
  static constexpr ptrdiff_t kBlockBytes = 64 << 10;
  static constexpr size_t kBlockRecords = 512;

  enum class Shape : uint8_t { kScalarInt, kScalarFloat, kScalarBytes, kList };

  // What the loop over records needs of most columns.
  struct Target {
    void* numbers;     // the values of a scalar column of numbers
    int32_t last_row;  // that was set
    Shape shape;
  };

  // The sinks of the two maps: Features (of an Example or a context) and FeatureLists.
  struct Sink {
    Decoder& decoder;
    bool lists;

    int slot_of(const std::string& name) const {
      for (size_t i = 0; i < decoder.columns_.size(); ++i) {
        const ColumnSpec& spec = decoder.columns_[i].spec;
        if ((spec.depth == 2) == lists && spec.name == name) return static_cast<int>(i);
      }
      return -1;
    }
    Content content_of(int slot) const { return decoder.columns_[static_cast<size_t>(slot)].content; }

    // The row, and how many columns it has set.
    struct Cursor {
      int64_t row;
      Target* targets;
      size_t seen;
    };
    TFR_INLINE Cursor cursor() const { return {decoder.rows_, decoder.targets_.data(), 0}; }
    TFR_INLINE void done(const Cursor& cursor) const { decoder.seen_ += cursor.seen; }

    bool one_float(int slot) const { return decoder.targets_[static_cast<size_t>(slot)].shape == Shape::kScalarFloat; }

    // What most features of most files are. The numbers of scalars touch nothing of the column but its values.
    TFR_INLINE bool usual_float(Cursor& cursor, int slot, const uint8_t* value) const {
      Target& target = cursor.targets[slot];
      if (target.last_row == static_cast<int32_t>(cursor.row)) return false;  // the key again: the last one counts
      target.last_row = static_cast<int32_t>(cursor.row);
      ++cursor.seen;
      static_cast<uint32_t*>(target.numbers)[cursor.row] = load<uint32_t>(value);
      return true;
    }
    TFR_INLINE bool usual(Cursor& cursor, int slot, Span chunk) const {
      Target& target = cursor.targets[slot];
      const size_t n = chunk.size();
      if (lists || target.last_row == static_cast<int32_t>(cursor.row)) return false;
      if (target.shape == Shape::kScalarInt) {
        uint64_t value = 0;
        if (n - 1 >= 10 || !read_exact_varint(chunk.begin, n, value)) return false;
        static_cast<uint64_t*>(target.numbers)[cursor.row] = value;
      } else if (target.shape == Shape::kScalarFloat) {
        if (n != 4) return false;
        static_cast<uint32_t*>(target.numbers)[cursor.row] = load<uint32_t>(chunk.begin);
      } else if (target.shape == Shape::kScalarBytes) {
        decoder.columns_[static_cast<size_t>(slot)].push_bytes(*decoder.arena_, chunk, chunk.begin + 16);
      } else if (!decoder.append_chunk(decoder.columns_[static_cast<size_t>(slot)], chunk, chunk.begin + (n < 16 ? 16 : n))) {
        return false;
      }
      target.last_row = static_cast<int32_t>(cursor.row);
      ++cursor.seen;
      return true;
    }

    TFR_INLINE bool value(int slot, Span body, const uint8_t* limit, Fault& fault) const {
      Column& column = decoder.columns_[static_cast<size_t>(slot)];
      int32_t& last_row = decoder.targets_[static_cast<size_t>(slot)].last_row;
      if (last_row == decoder.rows_) {
        decoder.forget(slot);
      } else {
        ++decoder.seen_;
      }
      last_row = static_cast<int32_t>(decoder.rows_);
      if (lists ? decoder.feature_list(column, body, fault) : decoder.any_feature(column, body, limit, fault)) return true;
      fault.column = slot;
      return fault.reason == kMalformed ? false : decoder.postpone(slot, fault);
    }
  };

  // The last value of a repeated key counts, so one that does not fit its column is a fault only if it is
  // still there at the end of the record.
  bool postpone(int slot, Fault& fault) {
    Column& column = columns_[static_cast<size_t>(slot)];
    column.truncate(static_cast<size_t>(rows_));
    column.push_null(*arena_, rows_);
    misfits_.push_back(fault);
    fault = {};
    return true;
  }
  TFR_NOINLINE void forget(int slot) {
    columns_[static_cast<size_t>(slot)].truncate(static_cast<size_t>(rows_));
    misfits_.erase(std::remove_if(misfits_.begin(), misfits_.end(), [slot](const Fault& f) { return f.column == slot; }),
                   misfits_.end());
  }

  // Room for the block's rows; after the first two blocks also for what is likely to follow.
  void reserve_rows(Span data, const uint8_t* p) {
    const double followed_by = static_cast<double>(data.end - p) / static_cast<double>(p - data.begin + 1) * 1.05;
    const auto known = static_cast<double>(static_cast<size_t>(rows_) + records_.size());
    const size_t likely = rows_ ? 0 : static_cast<size_t>(known * followed_by);
    for (size_t i = 0; i < columns_.size(); ++i) {
      Column& column = columns_[i];
      column.reserve_rows(*arena_, static_cast<size_t>(rows_), records_.size() + likely);
      if (first_block_) column.reserve_contents(*arena_, followed_by);
      targets_[i].numbers = column.spec.kind == Kind::kInt64 ? static_cast<void*>(column.ints.data) : column.floats.data;
    }
    first_block_ = rows_ == 0;
  }

  // Decodes records_; returns where the next block starts, which is before a damaged record.
  const uint8_t* decode_block(const uint8_t* next, Span data, Damage& damage) {
    const int64_t first = rows_;
    Fault fault;
    for (const Span& record : records_) {
      if (!decode_record(record, data.end, fault)) {
        for (Column& column : columns_) column.truncate(static_cast<size_t>(rows_));
        break;
      }
      ++rows_;
    }
    int64_t good = rows_;
    for (size_t i = 0; i < columns_.size(); ++i) {
      Column& column = columns_[i];
      if (column.spec.kind != Kind::kString) continue;
      const auto row = static_cast<int64_t>(column.first_not_utf8(static_cast<size_t>(first), static_cast<size_t>(good)));
      if (row == good) continue;
      good = row;
      fault = {"invalid UTF-8 value", static_cast<int>(i), ""};
    }
    if (!fault.reason) return next;
    if (good < rows_)
      for (Column& column : columns_) column.truncate(static_cast<size_t>(good));
    rows_ = good;
    const Span& bad = records_[static_cast<size_t>(good - first)];
    damage.record = good;
    damage.offset = static_cast<uint64_t>(bad.begin - kHeaderBytes - data.begin);
    damage.size = bad.size() + kFrameBytes;
    damage.reason = fault.reason;
    damage.column = fault.column;
    damage.found = fault.found;
    return bad.begin - kHeaderBytes;
  }

  bool decode_record(Span record, const uint8_t* limit, Fault& fault) {
    if (type_ == RecordType::kBytes) {
      if (!columns_.empty()) columns_[0].push_bytes(*arena_, record, limit);
      return true;
    }
    seen_ = 0;
    const bool good = walk_record(
        record, type_ == RecordType::kSequenceExample, fault,
        [&](Span part) { return feature_map_.walk(part, limit, fault); },
        [&](Span part) { return list_map_.walk(part, limit, fault); });
    if (!misfits_.empty()) {
      if (good) fault = misfits_.front();
      misfits_.clear();
      return false;
    }
    if (!good) return false;
    if (seen_ != columns_.size())
      for (size_t i = 0; i < columns_.size(); ++i)
        if (targets_[i].last_row != rows_) columns_[i].push_null(*arena_, rows_);
    return true;
  }

  // A list in one chunk, or one bytes value. False: nothing was appended.
  TFR_INLINE bool append_chunk(Column& column, Span chunk, const uint8_t* limit) {
    const size_t n = chunk.size();
    Arena& arena = *arena_;
    if (column.spec.kind == Kind::kInt64) {
      if (!column.spec.depth || !append_packed_ints(chunk, limit, column.ints, arena)) return false;
      column.rows_at.push(arena, static_cast<int32_t>(column.ints.size));
    } else if (column.spec.kind == Kind::kFloat) {
      if (!column.spec.depth || n % 4) return false;
      column.floats.reserve(arena, n / 4);
      std::memcpy(column.floats.data + column.floats.size, chunk.begin, n);
      column.floats.size += n / 4;
      column.rows_at.push(arena, static_cast<int32_t>(column.floats.size));
    } else {
      column.push_bytes(arena, chunk, limit);
      if (column.spec.depth) column.push_row_end(arena);
    }
    return true;
  }

  TFR_NOINLINE bool any_feature(Column& column, Span body, const uint8_t* limit, Fault& fault) {
    Span list;
    if (is_one_list(body, column.content, list)) {
      if (column.spec.depth && !list.size()) return column.push_row_end(*arena_), true;
      Span chunk;
      if (is_one_chunk(list, chunk) && append_chunk(column, chunk, limit)) return true;
      if (column.spec.depth == 1 && column.content == Content::kBytesList && append_bytes_list(column, list, limit)) return true;
    }
    if (!values_.read(body)) return fault(kMalformed);
    if (!fits(column, fault)) return false;
    if (values_.content == Content::kUnset || (!column.spec.depth && !values_.size())) {
      column.push_null(*arena_, rows_);
      return true;
    }
    append_values(column);
    if (column.spec.depth) column.push_row_end(*arena_);
    return true;
  }

  // A list of nothing but `0A <length> <bytes>`. False: nothing was appended.
  bool append_bytes_list(Column& column, Span list, const uint8_t* limit) {
    const size_t before = column.values_at.count();
    for (const uint8_t* p = list.begin; p < list.end;) {
      Span value;
      if (*p != tag_of(1, kLen) || !(p = read_span(p + 1, list.end, value))) {
        column.values_at.truncate(before);
        column.data.size = column.values_at[before];
        return false;
      }
      column.push_bytes(*arena_, value, limit);
    }
    column.push_row_end(*arena_);
    return true;
  }

  bool fits(const Column& column, Fault& fault) const {
    static constexpr const char* kNames[] = {"", "bytes", "float", "int64"};
    if (values_.content != Content::kUnset && values_.content != column.content) {
      fault.found = kNames[static_cast<int>(values_.content)];
      return fault("wrong kind");
    }
    if (!column.spec.depth && values_.size() > 1) {
      fault.found = std::to_string(values_.size());
      return fault("not a scalar");
    }
    return true;
  }

  void append_values(Column& column) {
    Arena& arena = *arena_;
    if (!column.spec.depth && column.spec.kind == Kind::kInt64) {
      column.ints.data[rows_] = values_.ints[0];
      return;
    }
    if (!column.spec.depth && column.spec.kind == Kind::kFloat) {
      column.floats.data[rows_] = values_.floats[0];
      return;
    }
    for (const int64_t value : values_.ints) column.ints.push(arena, value);
    for (const float value : values_.floats) column.floats.push(arena, value);
    for (const Span& value : values_.bytes) column.push_bytes(arena, value, value.end);
  }

  // FeatureList { repeated Feature feature = 1; }: a list of lists; a Feature without kind is a null list.
  TFR_NOINLINE bool feature_list(Column& column, Span body, Fault& fault) {
    const bool whole = for_each_field(
        body,
        [&](uint32_t tag, Span span) {
          if (tag != tag_of(1, kLen)) return true;
          if (!values_.read(span)) return false;
          if (!fits(column, fault)) return false;
          append_values(column);
          if (values_.content == Content::kUnset) column.step_nulls.push_back(static_cast<int64_t>(column.steps_at.count()));
          column.steps_at.push(*arena_, static_cast<int32_t>(column.values()));
          return true;
        },
        [](uint32_t, Span) { return true; });
    if (!whole) return fault.reason ? false : fault(kMalformed);
    column.push_row_end(*arena_);
    return true;
  }

  // ---- the finished columns as Arrow arrays ----

  ExportNode build() {
    ExportNode root;
    root.format = "+s";
    root.length = rows_;
    root.buffers = {nullptr};
    for (Column& column : columns_) {
      ExportNode node = build_values(column, column.spec.depth ? column.values() : static_cast<size_t>(rows_));
      if (column.spec.depth == 2) {
        node = build_list(std::move(node), column.steps_at);
        set_nulls(node, column.step_nulls);
      }
      if (column.spec.depth) node = build_list(std::move(node), column.rows_at);
      set_nulls(node, column.nulls);
      node.name = column.spec.name;
      root.children.push_back(std::move(node));
    }
    return root;
  }

  static ExportNode build_values(const Column& column, size_t count) {
    ExportNode node;
    node.name = "item";
    node.length = static_cast<int64_t>(count);
    switch (column.spec.kind) {
      case Kind::kInt64:
        node.format = "l";
        node.buffers = {nullptr, column.ints.data};
        break;
      case Kind::kFloat:
        node.format = "f";
        node.buffers = {nullptr, column.floats.data};
        break;
      default:
        node.format = column.spec.kind == Kind::kString ? "u" : "z";
        node.buffers = {nullptr, column.values_at.data, column.data.data};
    }
    return node;
  }

  static ExportNode build_list(ExportNode child, const Offsets& offsets) {
    ExportNode node;
    node.format = "+l";
    node.name = "item";
    node.length = static_cast<int64_t>(offsets.count());
    node.buffers = {nullptr, offsets.data};
    node.children.push_back(std::move(child));
    return node;
  }

  void set_nulls(ExportNode& node, const std::vector<int64_t>& nulls) {
    if (nulls.empty()) return;
    const size_t bytes = static_cast<size_t>(node.length + 7) / 8;
    uint8_t* const bits = arena_->allocate(bytes);
    std::memset(bits, 0xFF, bytes);
    for (const int64_t row : nulls) bits[row >> 3] &= static_cast<uint8_t>(~(1u << (row & 7)));
    node.null_count = static_cast<int64_t>(nulls.size());
    node.buffers[0] = bits;
  }

  RecordType type_;
  FrameRules rules_;
  std::vector<Column> columns_;
  std::vector<Target> targets_;  // by column
  Sink features_;
  Sink lists_;
  MapWalker<Sink> feature_map_;
  MapWalker<Sink> list_map_;
  Values values_;
  std::vector<Fault> misfits_;  // of the current record
  std::vector<Span> records_;
  Arena* arena_ = nullptr;
  int64_t rows_ = 0;
  size_t seen_ = 0;
  bool first_block_ = false;  // the block before this one was the first
};

}  // namespace tfr
