// Statistics of a column's rows: the number of nulls, and the least and greatest value, or length of a list.
//
// NaN does not count. Bytes compare as unsigned numbers, and a prefix is less than what it is a prefix of.
#pragma once

#include <algorithm>
#include <limits>

#include "columns/arrow.hpp"

namespace tfr {

// The least and the greatest of some numbers.
template <class T>
struct Extent {
  using Limits = std::numeric_limits<T>;
  T low = Limits::has_infinity ? Limits::infinity() : Limits::max();
  T high = Limits::has_infinity ? -Limits::infinity() : Limits::min();

  bool empty() const { return !(low <= high); }
  TFR_INLINE void add(T value) {
    low = value < low ? value : low;
    high = high < value ? value : high;
  }
  // Adds several numbers with independent extents, so that one does not wait for another.
  void add(const T* values, int64_t count) {
    constexpr int kLanes = 8;
    Extent lanes[kLanes];
    for (; count >= kLanes; count -= kLanes, values += kLanes)
      for (int i = 0; i < kLanes; ++i) lanes[i].add(values[i]);
    for (int64_t i = 0; i < count; ++i) add(values[i]);
    for (const Extent& lane : lanes) {
      low = std::min(low, lane.low);
      high = std::max(high, lane.high);
    }
  }
};

// The least and the greatest of some byte strings, which must outlive the object.
class BytesExtent {
 public:
  Span low{nullptr, nullptr};
  Span high{nullptr, nullptr};

  bool empty() const { return empty_; }
  // Most values differ from both bounds in their first eight bytes. Bytes up to `limit` may be read.
  TFR_INLINE void add(Span value, const uint8_t* limit) {
    const uint64_t start = first_bytes(value, limit);
    if (TFR_LIKELY(start > low_start_ && start < high_start_)) return;
    if (empty_ || (start <= low_start_ && is_less(value, low))) {
      low = value;
      low_start_ = start;
    }
    if (empty_ || (start >= high_start_ && is_less(high, value))) {
      high = value;
      high_start_ = start;
    }
    empty_ = false;
  }

 private:
  // Returns the first eight bytes as a number with the same order. Zeros replace missing bytes.
  TFR_INLINE static uint64_t first_bytes(Span value, const uint8_t* limit) {
    const size_t n = value.size();
    if (TFR_LIKELY(n && limit - value.begin >= 8)) {
      const uint64_t start = big_endian(value.begin);
      return n >= 8 ? start : start & ~(UINT64_MAX >> (8 * n));
    }
    uint64_t start = 0;
    for (size_t i = 0; i < std::min<size_t>(n, 8); ++i) start |= uint64_t{value.begin[i]} << (56 - 8 * i);
    return start;
  }
  TFR_INLINE static uint64_t big_endian(const uint8_t* p) {
    uint64_t number = 0;  // compilers turn this loop into a load and a byte swap
    for (int i = 0; i < 8; ++i) number = number << 8 | p[i];
    return number;
  }
  static bool is_less(Span one, Span other) {
    const size_t n = std::min(one.size(), other.size());
    const int order = n ? std::memcmp(one.begin, other.begin, n) : 0;
    return order ? order < 0 : one.size() < other.size();
  }

  bool empty_ = true;
  uint64_t low_start_ = 0;
  uint64_t high_start_ = 0;
};

// One of the extents is used: that of bytes, of floats, or of integers, which are values or lengths of lists. The
// bounds of bytes point into the batch.
struct ColumnStatistics {
  int64_t nulls = 0;
  Extent<int64_t> ints;
  Extent<float> floats;
  BytesExtent bytes;

  // Returns the statistics of the rows [begin, end) of a column.
  static ColumnStatistics of(const ColumnSpec& spec, const ColumnView& view, int64_t begin, int64_t end) {
    ColumnStatistics found;
    if (spec.depth) {
      found.each(view, begin, end, [&](int64_t row) { found.ints.add(view.lists[0][row + 1] - view.lists[0][row]); });
    } else if (spec.kind == Kind::kInt64) {
      found.numbers(view, view.ints, found.ints, begin, end);
    } else if (spec.kind == Kind::kFloat) {
      found.numbers(view, view.floats, found.floats, begin, end);
    } else {
      const uint8_t* const limit = view.data + view.data_end;
      found.each(view, begin, end, [&](int64_t row) {
        found.bytes.add({view.data + view.bytes[row], view.data + view.bytes[row + 1]}, limit);
      });
    }
    return found;
  }

 private:
  template <class Add>
  TFR_INLINE void each(const ColumnView& view, int64_t begin, int64_t end, Add add) {
    const Validity valid = view.valid;
    for (int64_t row = begin; row < end; ++row) {
      if (valid[row]) {
        add(row);
      } else {
        ++nulls;
      }
    }
  }

  template <class T>
  void numbers(const ColumnView& view, const T* values, Extent<T>& extent, int64_t begin, int64_t end) {
    if (!view.valid.bits) return extent.add(values + begin, end - begin);
    each(view, begin, end, [&](int64_t row) { extent.add(values[row]); });
  }
};

}  // namespace tfr
