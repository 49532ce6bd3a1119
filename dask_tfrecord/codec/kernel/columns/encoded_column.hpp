// A column while it is encoded: the sizes of its map entries, and their bytes.
//
// Writes may overwrite up to kOverStore bytes beyond the end of an entry.
#pragma once

#include <string>
#include <vector>

#include "base/utf8.hpp"
#include "columns/arrow.hpp"
#include "message/entry_head.hpp"
#include "message/varints.hpp"

namespace tfr {

// A value that has no encoding. The reason is static text, and null if there is no fault.
struct EncodeFault {
  int64_t row = -1;
  int column = -1;
  const char* reason = nullptr;
};

constexpr uint64_t kOverStore = 16;

// The view must not outlive the batch. The object keeps memory from one group of rows to the next.
class EncodedColumn {
 public:
  ColumnSpec spec;
  ColumnView view;

  explicit EncodedColumn(const ColumnSpec& column)
      : spec(column),
        key_(key_on_wire(column.name)),
        kind_tag_(static_cast<uint8_t>(tag_of(static_cast<uint32_t>(content_of(column.kind)), kLen))),
        head_(key_, content_of(column.kind)) {
    if (!spec.depth && spec.kind == Kind::kFloat) head_ = head_.fixed(4);
  }

  // Adds the sizes of the entries of the rows [begin, begin + count) to `sizes`. A list that contains a null is a
  // fault. In that case, and if more rows would need too much memory, `count` becomes the number of rows before.
  void measure(int64_t begin, int64_t& count, uint64_t* sizes, EncodeFault& fault) {
    if (spec.depth == 0) {
      measure_scalars(begin, count, sizes);
    } else {
      measure_lists(begin, count, sizes, fault);
    }
  }

  // Writes the entries of the rows that measure() measured last at their `ends`, and advances the ends.
  void write(int64_t begin, int64_t count, uint8_t** ends) const {
    if (spec.depth) return write_lists(begin, count, ends);
    switch (spec.kind) {
      case Kind::kInt64:
        return write_ints(begin, count, ends);
      case Kind::kFloat:
        return write_floats(begin, count, ends);
      default:
        return write_bytes(begin, count, ends);
    }
  }

  // Returns the first row of [begin, end) with a string that is not UTF-8, or end.
  int64_t first_not_utf8(int64_t begin, int64_t end) const {
    if (begin == end) return end;
    const auto is_valid = [this](int64_t first, int64_t last) {
      return is_utf8(view.data + view.bytes[first], static_cast<size_t>(view.bytes[last] - view.bytes[first]));
    };
    const auto [first, last] = values_of(begin, end);
    if (is_ascii(view.data + view.bytes[first], static_cast<size_t>(view.bytes[last] - view.bytes[first]))) return end;
    for (int64_t row = begin; row < end; ++row) {
      if (!view.valid[row]) continue;
      const auto [from, to] = values_of(row, row + 1);
      for (int64_t i = from; i < to; ++i)
        if (!is_valid(i, i + 1)) return row;
    }
    return end;
  }

 private:
  struct Lengths {
    uint64_t list;
    uint64_t feature;
    uint64_t entry;

    uint64_t whole_entry() const { return 1 + varint_size(entry) + entry; }
  };

  static constexpr uint64_t kEncodedBytes = 256 << 10;  // the limit for lists that are encoded in advance

  // The lengths for a list that is one chunk or one value of n bytes.
  Lengths lengths_of(uint64_t n) const { return lengths_of_list(1 + varint_size(n) + n); }
  Lengths lengths_of_list(uint64_t list) const {
    const uint64_t feature = 1 + varint_size(list) + list;
    return {list, feature, key_.size() + varint_size(feature) + feature};
  }

  TFR_INLINE uint64_t scalar_size(uint64_t n) const {
    return TFR_LIKELY(head_.fits(n)) ? head_.size + n : lengths_of(n).whole_entry();
  }

  // ---- heads: the part of an entry before its values ----

  uint8_t* write_entry_head(uint8_t* p, uint64_t entry) const {
    *p++ = tag_of(1, kLen);
    p = write_varint(p, entry);
    std::memcpy(p, key_.data(), key_.size());
    return p + key_.size();
  }
  uint8_t* write_list_head(uint8_t* p, const Lengths& lengths) const {
    p = write_varint(p, lengths.feature);
    *p++ = kind_tag_;
    return write_varint(p, lengths.list);
  }
  TFR_NOINLINE uint8_t* write_head(uint8_t* p, uint64_t n) const {
    const Lengths lengths = lengths_of(n);
    p = write_list_head(write_entry_head(p, lengths.entry), lengths);
    *p++ = tag_of(1, kLen);
    return write_varint(p, n);
  }

  // ---- scalars ----

  // The loops over rows use a copy of the validity, because the compiler must assume that the stores of a loop change
  // the members of the column.

  void measure_scalars(int64_t begin, int64_t count, uint64_t* sizes) const {
    const Validity valid = view.valid;
    switch (spec.kind) {
      case Kind::kInt64: {
        const int64_t* const values = view.ints + begin;
        for (int64_t r = 0; r < count; ++r) {
          if (!valid[begin + r]) continue;
          sizes[r] += scalar_size(varint_size(static_cast<uint64_t>(values[r])));
        }
        break;
      }
      case Kind::kFloat: {
        const uint64_t size = lengths_of(4).whole_entry();
        for (int64_t r = 0; r < count; ++r)
          if (valid[begin + r]) sizes[r] += size;
        break;
      }
      default: {
        const Bounds bytes = view.bytes;
        for (int64_t r = 0; r < count; ++r) {
          if (!valid[begin + r]) continue;
          sizes[r] += scalar_size(static_cast<uint64_t>(bytes[begin + r + 1] - bytes[begin + r]));
        }
      }
    }
  }

  void write_ints(int64_t begin, int64_t count, uint8_t** ends) const {
    const Validity valid = view.valid;
    const int64_t* const values = view.ints + begin;
    const EntryHead head = head_;
    for (int64_t r = 0; r < count; ++r) {
      if (!valid[begin + r]) continue;
      const auto value = static_cast<uint64_t>(values[r]);
      prefetch(values + r + count);
      const unsigned size = varint_size(value);
      uint8_t* const p = TFR_LIKELY(head.fits(size)) ? head.write(ends[r], size) : write_head(ends[r], size);
      write_sized_varint(p, value, size);
      ends[r] = p + size;
    }
  }

  void write_floats(int64_t begin, int64_t count, uint8_t** ends) const {
    const Validity valid = view.valid;
    const float* const values = view.floats + begin;
    const EntryHead head = head_;
    for (int64_t r = 0; r < count; ++r) {
      if (!valid[begin + r]) continue;
      const float value = values[r];
      prefetch(values + r + count);  // the start of the next group
      uint8_t* const p = TFR_LIKELY(head.fits(0)) ? head.write(ends[r]) : write_head(ends[r], 4);
      store<float>(p, value);
      ends[r] = p + 4;
    }
  }

  void write_bytes(int64_t begin, int64_t count, uint8_t** ends) const {
    const ColumnView column = view;
    const EntryHead head = head_;
    for (int64_t r = 0; r < count; ++r) {
      if (!column.valid[begin + r]) continue;
      const int64_t from = column.bytes[begin + r];
      const auto n = static_cast<uint64_t>(column.bytes[begin + r + 1] - from);
      uint8_t* const p = TFR_LIKELY(head.fits(n)) ? head.write(ends[r], n) : write_head(ends[r], n);
      ends[r] = column.copy_bytes(p, from, n);
    }
  }

  // ---- lists ----

  struct Range {
    int64_t first;
    int64_t last;
  };

  // Returns the range of the values of the rows [begin, end).
  Range values_of(int64_t begin, int64_t end) const {
    Range range{begin, end};
    for (int level = 0; level < spec.depth; ++level)
      range = {view.lists[level][range.first], view.lists[level][range.last]};
    return range;
  }

  void measure_lists(int64_t begin, int64_t& count, uint64_t* sizes, EncodeFault& fault) {
    const bool encode = spec.depth == 1 && spec.kind == Kind::kInt64;
    varint_ends_.resize(encode ? static_cast<size_t>(count) + 1 : 0);
    uint64_t encoded = 0;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = begin + r;
      if (encoded > kEncodedBytes) {
        count = r;
        break;
      }
      if (encode) varint_ends_[static_cast<size_t>(r)] = encoded;
      if (!view.valid[row]) continue;
      const Range list{view.lists[0][row], view.lists[0][row + 1]};
      if (holds_null(list)) {
        count = r;
        fault = {row, -1, "a list cannot hold a null: TFRecord has no encoding for it"};
      } else if (encode) {
        const uint64_t n = encode_varints(list, encoded);
        encoded += n;
        sizes[r] += (n ? lengths_of(n) : lengths_of_list(0)).whole_entry();
      } else if (spec.depth == 1) {
        sizes[r] += lengths_of_list(list_size(list)).whole_entry();
      } else {
        const uint64_t steps = feature_list_size(list);
        const uint64_t entry = key_.size() + varint_size(steps) + steps;
        sizes[r] += 1 + varint_size(entry) + entry;
      }
    }
    if (encode) varint_ends_[static_cast<size_t>(count)] = encoded;
  }

  bool holds_null(Range list) const {
    if (spec.depth == 1) return !view.value_valid.all(list.first, list.last);
    const Range values{view.lists[1][list.first], view.lists[1][list.last]};
    return !view.inner_valid.all(list.first, list.last) || !view.value_valid.all(values.first, values.last);
  }

  uint64_t encode_varints(Range list, uint64_t at) {
    const auto room = at + static_cast<uint64_t>(list.last - list.first) * 10 + kOverStore;
    if (varints_.size() < room) varints_.resize(room * 2);
    uint8_t* const start = varints_.data() + at;
    return static_cast<uint64_t>(write_varints(start, list) - start);
  }

  uint8_t* write_varints(uint8_t* p, Range list) const {
    return varints::write(p, view.ints + list.first, static_cast<size_t>(list.last - list.first));
  }

  uint64_t packed_size(Range list) const {
    uint64_t n = 0;
    for (int64_t i = list.first; i < list.last; ++i) n += varint_size(static_cast<uint64_t>(view.ints[i]));
    return n;
  }

  // The size of the *List message that holds the values.
  uint64_t list_size(Range list) const {
    if (list.first == list.last) return 0;
    if (spec.kind >= Kind::kBytes) {
      uint64_t total = 0;
      for (int64_t i = list.first; i < list.last; ++i) {
        const auto size = static_cast<uint64_t>(view.bytes[i + 1] - view.bytes[i]);
        total += 1 + varint_size(size) + size;
      }
      return total;
    }
    const uint64_t n =
        spec.kind == Kind::kInt64 ? packed_size(list) : static_cast<uint64_t>(list.last - list.first) * 4;
    return 1 + varint_size(n) + n;
  }

  Range step_values(int64_t step) const { return {view.lists[1][step], view.lists[1][step + 1]}; }

  // The size of FeatureList { repeated Feature feature = 1; } with one feature per inner list.
  uint64_t feature_list_size(Range steps) const {
    uint64_t total = 0;
    for (int64_t step = steps.first; step < steps.last; ++step) {
      const uint64_t feature = lengths_of_list(list_size(step_values(step))).feature;
      total += 1 + varint_size(feature) + feature;
    }
    return total;
  }

  void write_lists(int64_t begin, int64_t count, uint8_t** ends) const {
    const EntryHead head = head_;
    for (int64_t r = 0; r < count; ++r) {
      if (!view.valid[begin + r]) continue;
      const Range list{view.lists[0][begin + r], view.lists[0][begin + r + 1]};
      if (spec.depth == 2) {
        ends[r] = write_feature_list(ends[r], list);
      } else if (spec.kind == Kind::kInt64 && list.first != list.last) {
        const auto at = static_cast<size_t>(r);
        const uint64_t n = varint_ends_[at + 1] - varint_ends_[at];
        uint8_t* const p = head.fits(n) ? head.write(ends[r], n) : write_head(ends[r], n);
        std::memcpy(p, varints_.data() + varint_ends_[at], n);
        ends[r] = p + n;
      } else {
        const Lengths lengths = lengths_of_list(list_size(list));
        ends[r] = write_values(write_list_head(write_entry_head(ends[r], lengths.entry), lengths), list);
      }
    }
  }

  uint8_t* write_feature_list(uint8_t* p, Range steps) const {
    const uint64_t size = feature_list_size(steps);
    p = write_varint(write_entry_head(p, key_.size() + varint_size(size) + size), size);
    for (int64_t step = steps.first; step < steps.last; ++step) {
      *p++ = tag_of(1, kLen);
      p = write_list_head(p, lengths_of_list(list_size(step_values(step))));
      p = write_values(p, step_values(step));
    }
    return p;
  }

  // Writes the content of a *List message.
  uint8_t* write_values(uint8_t* p, Range list) const {
    if (list.first == list.last) return p;
    if (spec.kind >= Kind::kBytes) {
      for (int64_t i = list.first; i < list.last; ++i) {
        const auto n = static_cast<uint64_t>(view.bytes[i + 1] - view.bytes[i]);
        *p++ = tag_of(1, kLen);
        p = view.copy_bytes(write_varint(p, n), view.bytes[i], n);
      }
      return p;
    }
    *p++ = tag_of(1, kLen);
    if (spec.kind == Kind::kInt64) return write_varints(write_varint(p, packed_size(list)), list);
    const auto n = static_cast<size_t>(list.last - list.first) * 4;
    p = write_varint(p, n);
    std::memcpy(p, view.floats + list.first, n);
    return p + n;
  }

  std::string key_;  // 0A <name length> <name> 12
  uint8_t kind_tag_;
  EntryHead head_;                // of entries with short values
  std::vector<uint8_t> varints_;  // the encoded lists of int64 of the group
  std::vector<uint64_t> varint_ends_;
};

}  // namespace tfr
