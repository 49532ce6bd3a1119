// Framed records -> Arrow columns.
//
// Records are decoded in blocks that fit the cache. First the frames of a block are checked. Records of the same layout
// are then decoded many at a time, see decode_by_layout.hpp. Each other record is walked once, and its values are
// appended to their columns. The usual shape of a feature (one kind, one packed chunk) is recognised by one comparison.
// Any other shape is read field by field.
#pragma once

#include <algorithm>
#include <string>
#include <tuple>
#include <unordered_map>

#include "columns/append.hpp"
#include "columns/copied_records.hpp"
#include "columns/decode_by_layout.hpp"
#include "framing/frame.hpp"
#include "message/foreign_message.hpp"
#include "message/map_walker.hpp"
#include "message/unknown_features.hpp"

namespace tfr {

// What one call has decoded: the records, the number of bytes that were used, and the damage that ended the call, if
// any. The damage is counted from the start of the call's data.
struct Fed {
  int64_t records = 0;
  uint64_t consumed = 0;
  Damage damage;
};

// The records of one or more calls. `consumed` and `damage` are set by decode().
struct DecodedBatch {
  ExportNode root;
  SharedArena arena;  // of the buffers in `root`
  uint64_t consumed = 0;
  Damage damage;
};

// One thread at a time may use a decoder. Its memory for keys and offsets stays for the next call.
class Decoder {
 public:
  Decoder(const std::vector<ColumnSpec>& columns, RecordType type, const FrameRules& rules)
      : type_(type),
        rules_(rules),
        alike_(columns_, append_, columns),
        features_{*this, false},
        lists_{*this, true},
        feature_map_(features_),
        list_map_(lists_) {
    for (const ColumnSpec& column : columns) {
      slots_[column.depth == 2].emplace(column.name, static_cast<int>(columns_.size()));
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

  // After this call, a record is damaged if it holds a feature that is neither a column nor known. A known feature is
  // its name, and true if it is a feature list.
  void expect_only(const std::vector<std::tuple<std::string, bool>>& known) {
    unknown_.allow_none();
    for (const auto& [name, list] : known) unknown_.allow(name, list);
    for (const DecodedColumn& column : columns_) unknown_.allow(column.spec.name, column.spec.depth == 2);
  }

  // After this call, a record is damaged if a feature with the name of a column is in the map that the column does not
  // read. All other features are allowed.
  void expect_one_map() {
    for (const DecodedColumn& column : columns_) {
      const bool list = column.spec.depth != 2;
      if (!slots_[list].count(column.spec.name)) unknown_.refuse(column.spec.name, list);
    }
  }

  // After this call, the columns of floats with these names read integers as floats.
  void take_integers(const std::vector<std::string>& names) {
    for (DecodedColumn& column : columns_)
      column.spec.takes_ints =
          column.spec.kind == Kind::kFloat && std::find(names.begin(), names.end(), column.spec.name) != names.end();
  }

  // Decodes the whole records at the start of `data`, and appends them to the batch that take() returns. Unless
  // `final`, an incomplete last record is left to the next call, which must get it from its start. Damage ends the call
  // before the damaged record. The next call may go on after it with the same batch. About `more` bytes of records are
  // expected in later calls for the same batch, so that memory for them is reserved at once. The batch keeps no
  // pointers into `data`. Throws std::bad_alloc, and drops the batch then.
  Fed feed(Span data, bool final, uint64_t more) {
    FrameRules rules = rules_;
    rules.final = final;
    // Offsets in a batch have 32 bits. Data beyond that is left to the next call.
    if (data.size() > kBatchBytes - fed_) {
      data.end = data.begin + (kBatchBytes - fed_);
      rules.final = false;
    }
    try {
      if (!arena_) start_batch(data.size() + std::min(more, kBatchBytes));
      return append(data, rules, std::min(more, kBatchBytes));
    } catch (...) {
      drop_batch();
      throw;
    }
  }

  // Decodes records that lie anywhere in memory, each with its frame, in the given order, as feed() does. Stops before
  // a record for which the batch has no room. The damage is counted as if the records lay one after the other.
  Fed feed_records(const std::vector<Span>& records) {
    Fed fed;
    uint64_t left = 0;
    for (const Span& record : records) left += record.size();
    for (size_t next = 0; next < records.size() && !fed.damage;) {
      const Span block = copied_.block(records, next, kBlockBytes, kBlockRecords);
      if (!has_room(block.size())) break;
      left -= block.size();
      Fed one = feed(block, true, left);
      one.damage.record += fed.records;
      one.damage.offset += fed.consumed;
      fed = {fed.records + one.records, fed.consumed + one.consumed, std::move(one.damage)};
    }
    return fed;
  }

  // True if feed() uses so much data as far as it has whole records. An empty batch has room for any data.
  bool has_room(size_t size) const { return !fed_ || size <= kBatchBytes - fed_; }

  // Returns the records of all calls of feed() since the last call of take(). Throws std::bad_alloc, and drops the
  // batch then.
  DecodedBatch take() {
    try {
      if (!arena_) start_batch(0);
      DecodedBatch batch{build(), arena_, 0, {}};
      drop_batch();
      return batch;
    } catch (...) {
      drop_batch();
      throw;
    }
  }

  // Decodes the whole records at the start of `data` to a batch of their own.
  DecodedBatch decode(Span data, bool final) {
    drop_batch();
    Fed fed = feed(data, final, 0);
    DecodedBatch batch = take();
    batch.consumed = fed.consumed;
    batch.damage = std::move(fed.damage);
    return batch;
  }

 private:
  // Small enough for the second-level cache. Each block costs a little for each column, so that smaller blocks would be
  // slower for hundreds of columns.
  static constexpr ptrdiff_t kBlockBytes = 256 << 10;
  static constexpr size_t kBlockRecords = 512;
  static constexpr uint64_t kBatchBytes = kMaxRecordBytes + kFrameBytes;
  static constexpr const char* kUnknownFeature = "unknown feature";

  enum class Shape : uint8_t { kScalarInt, kScalarFloat, kScalarBytes, kList };

  // The part of a column that the loop over records uses.
  struct Target {
    uint8_t* numbers;  // the buffer of a scalar column of numbers
    int32_t last_row;  // the last row that has a value
    Shape shape;
  };

  // The sink for one of the two maps: Features (of an Example or a context), or FeatureLists if `lists`.
  struct Sink {
    Decoder& decoder;
    bool lists;

    int slot_of(const std::string& name) const {
      const auto found = decoder.slots_[lists].find(name);
      if (found != decoder.slots_[lists].end()) return found->second;
      return decoder.unknown_.allows(name, lists) ? kUnwanted : kUnknown;
    }
    Content content_of(int slot) const { return decoder.columns_[static_cast<size_t>(slot)].content; }

    // The row, and the number of columns that it has set.
    struct Cursor {
      int64_t row;
      Target* targets;
      size_t seen;
    };
    TFR_INLINE Cursor cursor() const { return {decoder.rows_, decoder.targets_.data(), 0}; }
    TFR_INLINE void done(const Cursor& cursor) const {
      decoder.seen_ += cursor.seen;
      decoder.is_example_ |= cursor.seen != 0;
    }

    bool one_float(int slot) const { return decoder.targets_[static_cast<size_t>(slot)].shape == Shape::kScalarFloat; }

    // These two take most features of most files. For a scalar number they change only the values of the column.
    TFR_INLINE bool take_float(Cursor& cursor, int slot, const uint8_t* value) const {
      Target& target = cursor.targets[slot];
      if (target.last_row == static_cast<int32_t>(cursor.row))
        return false;  // the slow path replaces the value of a repeated key
      target.last_row = static_cast<int32_t>(cursor.row);
      ++cursor.seen;
      set_float(target, cursor.row, value);
      return true;
    }
    template <class Loop>
    TFR_INLINE bool take_chunk(Cursor& cursor, int slot, Span chunk) const {
      Target& target = cursor.targets[slot];
      const size_t n = chunk.size();
      if (lists || target.last_row == static_cast<int32_t>(cursor.row)) return false;
      if (target.shape == Shape::kScalarInt) {
        uint64_t value = 0;
        if (n - 1 >= 10 || !read_exact_varint<Loop>(chunk.begin, n, value)) return false;
        store<uint64_t>(target.numbers + 8 * cursor.row, value);
      } else if (target.shape == Shape::kScalarFloat) {
        if (n != 4) return false;
        set_float(target, cursor.row, chunk.begin);
      } else if (target.shape == Shape::kScalarBytes) {
        decoder.columns_[static_cast<size_t>(slot)].push_bytes(*decoder.arena_, chunk, chunk.begin + 16);
      } else if (!decoder.append_.append_chunk(decoder.columns_[static_cast<size_t>(slot)], chunk,
                                               chunk.begin + (n < 16 ? 16 : n))) {
        return false;
      }
      target.last_row = static_cast<int32_t>(cursor.row);
      ++cursor.seen;
      return true;
    }

    // Copies the bits, so that a signalling NaN stays one.
    TFR_INLINE static void set_float(const Target& target, int64_t row, const uint8_t* value) {
      store<uint32_t>(target.numbers + 4 * row, load<uint32_t>(value));
    }

    bool take_unknown(const std::string& name, Span body, Fault& fault) const {
      return decoder.unknown_.take(name, lists, body) || fault(kMalformed);
    }
    TFR_INLINE bool take_value(int slot, Span body, const uint8_t* limit, Fault& fault) const {
      DecodedColumn& column = decoder.columns_[static_cast<size_t>(slot)];
      int32_t& last_row = decoder.targets_[static_cast<size_t>(slot)].last_row;
      if (last_row == decoder.rows_) {
        decoder.forget(slot);
      } else {
        ++decoder.seen_;
      }
      last_row = static_cast<int32_t>(decoder.rows_);
      if (lists ? decoder.append_.append_feature_list(column, decoder.rows_, body, fault)
                : decoder.append_.append_feature(column, decoder.rows_, body, limit, fault)) {
        decoder.is_example_ |= column.has_value(decoder.rows_);
        return true;
      }
      fault.column = slot;
      return fault.reason == kMalformed ? false : decoder.postpone(slot, fault);
    }
  };

  // Replaces a value that does not fit its column by a null. The value is a fault only if it is still there at the end
  // of the record, because the last value of a repeated key counts.
  bool postpone(int slot, Fault& fault) {
    DecodedColumn& column = columns_[static_cast<size_t>(slot)];
    column.truncate(static_cast<size_t>(rows_));
    column.push_null(*arena_, rows_);
    misfits_.push_back(fault);
    fault = {};
    return true;
  }
  // Removes the value that the row has for this column.
  TFR_NOINLINE void forget(int slot) {
    columns_[static_cast<size_t>(slot)].truncate(static_cast<size_t>(rows_));
    misfits_.erase(
        std::remove_if(misfits_.begin(), misfits_.end(), [slot](const Fault& f) { return f.column == slot; }),
        misfits_.end());
  }

  void start_batch(uint64_t expected) {
    arena_ = std::make_shared<Arena>(expected);
    append_.start(*arena_);
    for (DecodedColumn& column : columns_) column.start(*arena_);
    forget_rows();
    misfits_.clear();
  }
  // Forgets which columns the last rows have set, because the next record becomes one of these rows.
  void forget_rows() {
    for (Target& target : targets_) target.last_row = -1;
  }
  void drop_batch() {
    arena_ = nullptr;
    rows_ = 0;
    fed_ = 0;
    blocks_ = 0;
  }

  Fed append(Span data, const FrameRules& rules, uint64_t more) {
    Fed fed;
    Damage& damage = fed.damage;
    first_row_ = rows_;
    const uint8_t* p = data.begin;
    bool goes_on = true;
    while (goes_on && !damage) {
      records_.clear();
      const uint8_t* const block = p;
      const uint8_t* const block_end = data.end - p > kBlockBytes ? p + kBlockBytes : data.end;
      while (p < block_end && records_.size() < kBlockRecords) {
        const Span payload = next_frame(p, data.end, rules, crc32c::best(), damage);
        if (!payload.begin) {
          goes_on = false;
          break;
        }
        records_.push_back(payload);
        p = payload.end + kFooterBytes;
      }
      goes_on = goes_on && p < data.end;
      damage.record = rows_ - first_row_ + static_cast<int64_t>(records_.size());
      damage.offset = static_cast<uint64_t>(p - data.begin);
      const auto before = fed_ + static_cast<uint64_t>(block - data.begin);
      const auto size = static_cast<uint64_t>(p - block);
      reserve(before, size, static_cast<uint64_t>(data.end - p) + more);
      p = decode_block(p, data, damage);
    }
    fed.records = rows_ - first_row_;
    fed.consumed = static_cast<uint64_t>(p - data.begin);
    fed_ += fed.consumed;
    return fed;
  }

  // Makes room for the rows of the block. The first block of a batch shows how many rows follow, and the second block
  // how much content: `before`, `size` and `after` are the numbers of bytes before the block, in it, and after it.
  void reserve(uint64_t before, uint64_t size, uint64_t after) {
    if (records_.empty()) return;
    constexpr double kSlack = 1.05;
    size_t likely = 0;
    if (!blocks_ && !columns_.empty()) {
      const double rows =
          static_cast<double>(records_.size()) * static_cast<double>(after) / static_cast<double>(size) * kSlack;
      // If the first records are much smaller than the others, most of this memory would not be used.
      likely = std::min(static_cast<size_t>(rows), static_cast<size_t>(after / columns_.size()));
    }
    for (size_t i = 0; i < columns_.size(); ++i) {
      DecodedColumn& column = columns_[i];
      column.reserve_rows(*arena_, static_cast<size_t>(rows_), records_.size() + likely);
      if (blocks_ == 1 && before)
        column.reserve_contents(*arena_, static_cast<double>(size + after) / static_cast<double>(before) * kSlack);
      targets_[i].numbers = column.spec.kind == Kind::kInt64 ? reinterpret_cast<uint8_t*>(column.ints.data)
                                                             : reinterpret_cast<uint8_t*>(column.floats.data);
    }
    ++blocks_;
  }

  // Decodes records_. Returns the start of the next block, which is the start of the damaged record if there is one.
  const uint8_t* decode_block(const uint8_t* next, Span data, Damage& damage) {
    const int64_t first = rows_;
    Fault fault;
    const auto slot_of = [this](const std::string& name) { return features_.slot_of(name); };
    for (size_t i = 0; i < records_.size(); ++i) {
      // A SequenceExample of this layout has no feature lists.
      if (type_ != RecordType::kBytes) {
        const size_t alike = alike_.decode(records_.data() + i, records_.size() - i, data.end, rows_);
        rows_ += static_cast<int64_t>(alike);
        i += alike;
        if (i == records_.size()) break;
      }
      if (!decode_record(records_[i], data.end, fault)) {
        for (DecodedColumn& column : columns_) column.truncate(static_cast<size_t>(rows_));
        break;
      }
      ++rows_;
      if (type_ != RecordType::kBytes) alike_.learn(records_[i], slot_of);
    }
    int64_t good = rows_;
    for (size_t i = 0; i < columns_.size(); ++i) {
      DecodedColumn& column = columns_[i];
      if (column.spec.kind != Kind::kString) continue;
      const auto row =
          static_cast<int64_t>(column.first_not_utf8(static_cast<size_t>(first), static_cast<size_t>(good)));
      if (row == good) continue;
      good = row;
      fault = {"invalid UTF-8 value", static_cast<int>(i), ""};
    }
    if (!fault.reason) return next;
    if (good < rows_)
      for (DecodedColumn& column : columns_) column.truncate(static_cast<size_t>(good));
    rows_ = good;
    forget_rows();
    const Span& bad = records_[static_cast<size_t>(good - first)];
    damage.record = good - first_row_;
    damage.offset = static_cast<uint64_t>(bad.begin - kHeaderBytes - data.begin);
    damage.size = bad.size() + kFrameBytes;
    damage.reason = fault.reason;
    damage.column = fault.column;
    damage.found = fault.found;
    if (fault.reason == kUnknownFeature) damage.unknown = unknown_.first();
    return bad.begin - kHeaderBytes;
  }

  bool decode_record(Span record, const uint8_t* limit, Fault& fault) {
    if (type_ == RecordType::kBytes) {
      if (!columns_.empty()) columns_[0].push_bytes(*arena_, record, limit);
      return true;
    }
    seen_ = 0;
    is_example_ = false;
    unknown_.clear();
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
    if (unknown_.any()) return fault(kUnknownFeature);
    if (!is_example_ && is_foreign_message(record, type_ == RecordType::kSequenceExample)) return fault(kNotAnExample);
    if (seen_ != columns_.size())
      for (size_t i = 0; i < columns_.size(); ++i)
        if (targets_[i].last_row != rows_) columns_[i].push_null(*arena_, rows_);
    return true;
  }

  ExportNode build() {
    ExportNode root;
    root.format = "+s";
    root.length = rows_;
    root.buffers = {nullptr};
    for (DecodedColumn& column : columns_) root.children.push_back(column.build(*arena_, static_cast<size_t>(rows_)));
    return root;
  }

  RecordType type_;
  FrameRules rules_;
  std::vector<DecodedColumn> columns_;
  std::vector<Target> targets_;                    // by column
  std::unordered_map<std::string, int> slots_[2];  // the indexes of columns of features and of feature lists, by name
  Appender append_;
  AlikeDecoder alike_;
  Sink features_;
  Sink lists_;
  MapWalker<Sink> feature_map_;
  MapWalker<Sink> list_map_;
  UnknownFeatures unknown_;     // of the current record
  std::vector<Fault> misfits_;  // the values of the current record that do not fit their columns
  std::vector<Span> records_;
  CopiedRecords copied_;
  size_t seen_ = 0;          // the columns that the current record has set
  bool is_example_ = false;  // the current record has a feature with a kind

  // The batch.
  SharedArena arena_;      // null if no batch was started
  int64_t rows_ = 0;       // the rows so far
  int64_t first_row_ = 0;  // the rows before this call of feed()
  uint64_t fed_ = 0;       // the bytes that earlier calls of feed() used
  size_t blocks_ = 0;      // the blocks with records so far
};

}  // namespace tfr
