// A column while records are decoded into it: growing buffers in Arrow's layout, and their export as an array.
//
// The buffers lie in the arena that start() is given. All functions that need memory take this arena again. Bytes up to
// `limit` may be read although they are not part of the value.
#pragma once

#include <algorithm>

#include "base/copy.hpp"
#include "base/utf8.hpp"
#include "columns/arrow.hpp"
#include "message/feature.hpp"
#include "message/varints.hpp"

namespace tfr {

// Appends the varints of a packed chunk. Returns false, and appends nothing, if the last one is cut off.
TFR_INLINE bool append_packed_ints(Span packed, const uint8_t* limit, Growing<int64_t>& out, Arena& arena) {
  out.reserve(arena, packed.size());
  const int64_t* const end = varints::read(packed.begin, packed.end, limit, out.data + out.size);
  if (end) out.size = static_cast<size_t>(end - out.data);
  return end != nullptr;
}

// Arrow's offsets: the start of each item, and the end of the last item.
struct Offsets : Growing<int32_t> {
  size_t count() const { return size - 1; }
  size_t operator[](size_t i) const { return static_cast<size_t>(data[i]); }
  void truncate(size_t items) { size = std::min(size, items + 1); }
};

// The buffers that are used depend on kind and depth; see build().
struct DecodedColumn {
  ColumnSpec spec;
  Content content;

  Growing<int64_t> ints;
  Growing<float> floats;
  Growing<uint8_t> data;            // the bytes of all values
  Offsets values_at;                // the offsets of bytes values in `data`
  Offsets steps_at;                 // depth 2: the offsets of inner lists in the values
  Offsets rows_at;                  // depth 1: the offsets of rows in the values; depth 2: in the inner lists
  std::vector<int64_t> nulls;       // the null rows
  std::vector<int64_t> step_nulls;  // depth 2: the null inner lists

  explicit DecodedColumn(const ColumnSpec& column) : spec(column), content(content_of(column.kind)) {}

  // Starts a new batch, whose memory is in this arena.
  void start(Arena& arena) {
    *this = DecodedColumn(spec);
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

  // Makes room for `times` times as much content as there is.
  void reserve_contents(Arena& arena, double times) {
    const auto more = [times](size_t size) { return static_cast<size_t>(static_cast<double>(size) * times); };
    data.reserve(arena, more(data.size));
    if (!spec.depth) return;
    ints.reserve(arena, more(ints.size));
    floats.reserve(arena, more(floats.size));
    values_at.reserve(arena, more(values_at.size));
    steps_at.reserve(arena, more(steps_at.size));
  }

  // Makes room for `more` rows after the first `rows`. The numbers of a scalar column are then set by row.
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

  // Sets a number of a scalar column. A float is set by its bits, so that a signalling NaN stays one.
  TFR_INLINE void set_int(int64_t row, int64_t value) { store<int64_t>(ints.data + row, value); }
  TFR_INLINE void set_float_bits(int64_t row, uint32_t bits) { store<uint32_t>(floats.data + row, bits); }

  TFR_INLINE void push_bytes(Arena& arena, Span value, const uint8_t* limit) {
    const size_t n = value.size();
    data.reserve(arena, n);
    if (TFR_LIKELY(n <= 16 && limit - value.begin >= 16)) {
      copy16(data.data + data.size, value.begin);
    } else if (n >= kLongBytes) {
      copy_long(data.data + data.size, value.begin, n);
    } else if (n) {
      copy_short(data.data + data.size, value.begin, n);
    }
    data.size += n;
    values_at.push(arena, static_cast<int32_t>(data.size));
  }

  void push_null(Arena& arena, int64_t row) {
    nulls.push_back(row);
    if (spec.depth) {
      push_row_end(arena);
    } else if (spec.kind == Kind::kInt64) {
      set_int(row, 0);
    } else if (spec.kind == Kind::kFloat) {
      set_float_bits(row, 0);
    } else {
      values_at.push(arena, static_cast<int32_t>(data.size));
    }
  }

  TFR_INLINE void push_row_end(Arena& arena) {
    rows_at.push(arena, static_cast<int32_t>(spec.depth == 2 ? steps_at.count() : values()));
  }

  // Returns true if the last row, which is `row`, has a value of the column's kind, and not only the key of one.
  bool has_value(int64_t row) const {
    if (spec.depth == 2) return values() > values_before(static_cast<size_t>(row));
    return nulls.empty() || nulls.back() != row;
  }

  // Removes all rows from `rows` on.
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

  // The index of the first value of a row.
  size_t values_before(size_t row) const {
    return spec.depth == 2 ? steps_at[rows_at[row]] : spec.depth == 1 ? rows_at[row] : row;
  }

  Span bytes_between(size_t first, size_t last) const {
    return {data.data + values_at[first], data.data + values_at[last]};
  }

  // Returns the first row of [begin, end) with a value that is not UTF-8, or end.
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

  // Returns the first `rows` rows as an Arrow array.
  ExportNode build(Arena& arena, size_t rows) const {
    ExportNode node = build_values(spec.depth ? values() : rows);
    if (spec.depth == 2) {
      node = build_list(std::move(node), steps_at);
      set_nulls(arena, node, step_nulls);
    }
    if (spec.depth) node = build_list(std::move(node), rows_at);
    set_nulls(arena, node, nulls);
    node.name = spec.name;
    return node;
  }

 private:
  ExportNode build_values(size_t count) const {
    ExportNode node;
    node.name = "item";
    node.length = static_cast<int64_t>(count);
    switch (spec.kind) {
      case Kind::kInt64:
        node.format = "l";
        node.buffers = {nullptr, ints.data};
        break;
      case Kind::kFloat:
        node.format = "f";
        node.buffers = {nullptr, floats.data};
        break;
      default:
        node.format = spec.kind == Kind::kString ? "u" : "z";
        node.buffers = {nullptr, values_at.data, data.data};
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

  static void set_nulls(Arena& arena, ExportNode& node, const std::vector<int64_t>& nulls) {
    if (nulls.empty()) return;
    const size_t bytes = static_cast<size_t>(node.length + 7) / 8;
    uint8_t* const bits = arena.allocate(bytes);
    std::memset(bits, 0xFF, bytes);
    for (const int64_t row : nulls) bits[row >> 3] &= static_cast<uint8_t>(~(1u << (row & 7)));
    node.null_count = static_cast<int64_t>(nulls.size());
    node.buffers[0] = bits;
  }
};

}  // namespace tfr
