// Rows of a column of bytes, in any order, as a new column.
#pragma once

#include <limits>

#include "arrow.hpp"

namespace tfr {

// Fills `node` with the values of `count` rows of a column that has `length`, or returns what is wrong.
template <class Offset>
const char* gather_bytes(const ColumnView& column, int64_t length, const int64_t* rows, int64_t count, Arena& arena,
                         ExportNode& node) {
  constexpr int64_t kAhead = 12;  // rows whose bytes are on their way to the cache
  Growing<Offset> ends;
  Growing<uint8_t> bits;
  Growing<uint8_t> data;
  ends.reserve(arena, static_cast<size_t>(count) + 1);
  bits.reserve(arena, static_cast<size_t>(count) / 8 + 1);
  std::memset(bits.data, 0, static_cast<size_t>(count) / 8 + 1);
  int64_t total = 0;
  ends.data[0] = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows[i];
    if (row < 0 || row >= length) return "a row is outside the column";
    if (column.valid[row]) {
      bits.data[i >> 3] = static_cast<uint8_t>(bits.data[i >> 3] | 1 << (i & 7));
      const int64_t size = column.bytes[row + 1] - column.bytes[row];
      if (size > std::numeric_limits<Offset>::max() - total) return "the values are too long for the column's type";
      total += size;
    } else {
      ++node.null_count;
    }
    ends.data[i + 1] = static_cast<Offset>(total);
  }
  data.reserve(arena, static_cast<size_t>(total));
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetch(column.data + column.bytes[rows[i + kAhead]]);
    const auto size = static_cast<size_t>(ends.data[i + 1] - ends.data[i]);
    const int64_t from = column.bytes[rows[i]];
    uint8_t* const to = data.data + ends.data[i];
    if (TFR_LIKELY(size <= 16 && column.data_end - from >= 16)) {
      copy16(to, column.data + from);
    } else if (size) {
      std::memcpy(to, column.data + from, size);
    }
  }
  node.length = count;
  node.buffers = {node.null_count ? bits.data : nullptr, ends.data, data.data};
  return nullptr;
}

}  // namespace tfr
