// Features -> the ends of columns, one feature at a time.
#pragma once

#include <string>

#include "columns/decoded_column.hpp"

namespace tfr {

// Appends the values of features to columns. The columns must have been started in the arena that start() was given.
// In all functions, bytes up to `limit` may be read although they are not part of the value. After a function has
// returned false, the column may hold a part of the value, unless the comment of the function says otherwise; truncate
// the column then.
class Appender {
 public:
  void start(Arena& arena) { arena_ = &arena; }
  Arena& arena() const { return *arena_; }

  // Appends a list that is one chunk, or one bytes value. If it returns false, it has appended nothing. The column is
  // not a scalar of numbers.
  TFR_INLINE bool append_chunk(DecodedColumn& column, Span chunk, const uint8_t* limit) {
    const size_t n = chunk.size();
    Arena& arena = *arena_;
    if (column.spec.kind == Kind::kInt64) {
      if (!column.spec.depth || !append_packed_ints(chunk, limit, column.ints, arena)) return false;
      column.rows_at.push(arena, static_cast<int32_t>(column.ints.size));
    } else if (column.spec.kind == Kind::kFloat) {
      if (!column.spec.depth || n % 4) return false;
      if (n) {  // the column may have no memory yet
        column.floats.reserve(arena, n / 4);
        copy_short(column.floats.data + column.floats.size, chunk.begin, n);
        column.floats.size += n / 4;
      }
      column.rows_at.push(arena, static_cast<int32_t>(column.floats.size));
    } else {
      column.push_bytes(arena, chunk, limit);
      if (column.spec.depth) column.push_row_end(arena);
    }
    return true;
  }

  // Sets a row to a feature of any shape. The row is the next one of the column, which is not a list of lists.
  TFR_NOINLINE bool append_feature(DecodedColumn& column, int64_t row, Span body, const uint8_t* limit, Fault& fault) {
    Span list;
    if (is_one_list(body, column.content, list)) {
      if (column.spec.depth && !list.size()) return column.push_row_end(*arena_), true;
      Span chunk;
      if (is_one_chunk(list, chunk) && append_chunk(column, chunk, limit)) return true;
      if (column.spec.depth == 1 && column.content == Content::kBytesList && append_bytes_list(column, list, limit))
        return true;
    }
    if (!values_.read(body)) return fault(kMalformed);
    if (!fits(column, fault)) return false;
    if (values_.content == Content::kUnset || (!column.spec.depth && !values_.size())) {
      column.push_null(*arena_, row);
      return true;
    }
    append_values(column, row);
    if (column.spec.depth) column.push_row_end(*arena_);
    return true;
  }

  // Appends a FeatureList as a list of lists. A Feature without a kind is a null list.
  TFR_NOINLINE bool append_feature_list(DecodedColumn& column, int64_t row, Span body, Fault& fault) {
    const bool whole = for_each_step(body, [&](Span step) {
      if (!values_.read(step) || !fits(column, fault)) return false;
      append_values(column, row);
      if (values_.content == Content::kUnset)
        column.step_nulls.push_back(static_cast<int64_t>(column.steps_at.count()));
      column.steps_at.push(*arena_, static_cast<int32_t>(column.values()));
      return true;
    });
    if (!whole) return fault.unread();
    column.push_row_end(*arena_);
    return true;
  }

 private:
  // Appends a list that consists of `0A <length> <bytes>` only. If it returns false, it has appended nothing.
  bool append_bytes_list(DecodedColumn& column, Span list, const uint8_t* limit) {
    const size_t before = column.values_at.count();
    for (const uint8_t* p = list.begin; p < list.end;) {
      Span value;
      if (!(p = read_field(p, list.end, 1, value))) {
        column.values_at.truncate(before);
        column.data.size = column.values_at[before];
        return false;
      }
      column.push_bytes(*arena_, value, limit);
    }
    column.push_row_end(*arena_);
    return true;
  }

  bool fits(const DecodedColumn& column, Fault& fault) {
    if (column.spec.takes_ints && values_.content == Content::kInt64List) {
      if (const int64_t* const inexact = values_.ints_to_floats()) {
        fault.found = std::to_string(*inexact);
        return fault("inexact integer");
      }
    }
    if (values_.content != Content::kUnset && values_.content != column.content) {
      fault.found = kContentNames[static_cast<int>(values_.content)];
      return fault("wrong kind");
    }
    if (!column.spec.depth && values_.size() > 1) {
      fault.found = std::to_string(values_.size());
      return fault("not a scalar");
    }
    return true;
  }

  void append_values(DecodedColumn& column, int64_t row) {
    Arena& arena = *arena_;
    if (!column.spec.depth && column.spec.kind == Kind::kInt64) {
      column.set_int(row, values_.ints[0]);
      return;
    }
    if (!column.spec.depth && column.spec.kind == Kind::kFloat) {
      column.set_float_bits(row, load<uint32_t>(values_.floats.data()));
      return;
    }
    for (const int64_t value : values_.ints) column.ints.push(arena, value);
    for (const float value : values_.floats) column.floats.push(arena, value);
    for (const Span& value : values_.bytes) column.push_bytes(arena, value, value.end);
  }

  Arena* arena_ = nullptr;
  Values values_;
};

}  // namespace tfr
