// Copies rows of a column of bytes, in any order, to a new column.
#pragma once

#include "columns/arrow.hpp"

namespace tfr {

// Fills `node` with the values of `count` rows of a column with `length` rows. Its buffers lie in the arena. Returns
// null, or a static text that says what is wrong. Rows may be left out. They may not be repeated so often that the
// result has more bytes than the column.
template <class Offset>
const char* gather_bytes(const ColumnView& column, int64_t length, const int64_t* rows, int64_t count, Arena& arena,
                         ExportNode& node) {
  constexpr int64_t kAhead = 12;  // rows to prefetch
  for (int64_t i = 0; i < count; ++i)
    if (rows[i] < 0 || rows[i] >= length) return "a row is outside the column";
  Growing<Offset> ends;
  Growing<uint8_t> bits;
  Growing<uint8_t> data;
  ends.reserve(arena, static_cast<size_t>(count) + 1);
  bits.reserve(arena, static_cast<size_t>(count) / 8 + 1);
  std::memset(bits.data, 0, static_cast<size_t>(count) / 8 + 1);
  const auto most = static_cast<size_t>(column.bytes[length] - column.bytes[0]);
  data.reserve(arena, most);
  ends.data[0] = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetch(column.data + column.bytes[rows[i + kAhead]]);
    const int64_t row = rows[i];
    if (column.valid[row]) {
      bits.data[i >> 3] = static_cast<uint8_t>(bits.data[i >> 3] | 1 << (i & 7));
      const int64_t from = column.bytes[row];
      const auto size = static_cast<size_t>(column.bytes[row + 1] - from);
      if (size > most - data.size) return "rows are repeated too often";
      column.copy_bytes(data.data + data.size, from, size);
      data.size += size;
    } else {
      ++node.null_count;
    }
    ends.data[i + 1] = static_cast<Offset>(data.size);
  }
  node.length = count;
  node.buffers = {node.null_count ? bits.data : nullptr, ends.data, data.data};
  return nullptr;
}

}  // namespace tfr
