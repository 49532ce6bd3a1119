// Arrow columns -> framed records, one group of rows at a time, column by column.
//
// A group stays in the cache and takes three passes. (1) Each column adds the size of its entry to the size of each
// row. Lists of int64 are encoded in this pass, because their size is unknown before. (2) Each row gets its position,
// and each column writes its entries after those of the column before. (3) Lengths and checksums are written. A write
// may overwrite up to 16 bytes beyond the end of an entry. These bytes belong to the next column's entry or to the next
// record's header, which are written later.
#pragma once

#include <algorithm>
#include <vector>

#include "columns/encoded_column.hpp"
#include "columns/statistics.hpp"
#include "framing/frame.hpp"

namespace tfr {

// The result of one call.
struct EncodedRows {
  int64_t next_row = 0;  // the first row that was not written
  uint64_t bytes = 0;    // the number of bytes that were written
  uint64_t need = 0;     // if not 0, nothing was written because the next row needs a buffer of this size
  EncodeFault fault;     // the value that stopped the encoding, if any
};

// One thread at a time may use an encoder.
class Encoder {
 public:
  Encoder(const std::vector<ColumnSpec>& columns, RecordType type) : type_(type) {
    for (const ColumnSpec& spec : columns) columns_.emplace_back(spec);
  }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // Takes views of a batch, which must stay alive until the next bind(). Returns null, or a static text that says what
  // is wrong with the column of index `column`.
  const char* bind(const ArrowSchema& schema, const ArrowArray& array, int& column) {
    rows_ = 0;  // if a column is refused, there is nothing to encode
    if (schema.n_children != static_cast<int64_t>(columns_.size())) return "the batch has another number of columns";
    for (column = 0; column < schema.n_children; ++column) {
      EncodedColumn& target = columns_[static_cast<size_t>(column)];
      target.view = ColumnView{};
      const char* wrong = import_column(target.spec, schema.children[column], array.children[column], target.view);
      if (wrong) return wrong;
      target.view.shift(target.spec.depth, array.offset);
    }
    rows_ = array.length;
    return nullptr;
  }

  int64_t rows() const { return rows_; }
  size_t columns() const { return columns_.size(); }
  Kind kind(size_t column) const { return columns_[column].spec.kind; }

  // Returns the statistics of a column for each range of rows from one bound to the next.
  std::vector<ColumnStatistics> statistics(size_t column, const std::vector<int64_t>& bounds) const {
    std::vector<ColumnStatistics> ranges;
    for (size_t i = 1; i < bounds.size(); ++i)
      ranges.push_back(ColumnStatistics::of(columns_[column].spec, columns_[column].view, bounds[i - 1], bounds[i]));
    return ranges;
  }

  // Writes whole records of the rows [row, end) to `out`, as many as fit in `room` bytes. The last kOverStore bytes of
  // the room stay free. Never writes beyond the room. Unless `starts` is null, starts[i] becomes the position in `out`
  // of the frame of row `row` + i.
  EncodedRows encode(int64_t row, int64_t end, uint8_t* out, uint64_t room, int64_t* starts = nullptr) {
    EncodedRows result;
    result.next_row = row;
    while (result.next_row < end && !result.fault.reason) {
      const int64_t begin = result.next_row;
      int64_t count = std::min(end - begin, group_rows_);
      measure(begin, count, result.fault);
      const int64_t fitting = lay_out(count, out + result.bytes, room - result.bytes);
      if (fitting < count) result.fault = {};
      write(begin, fitting);
      if (starts)
        for (int64_t r = 0; r < fitting; ++r) starts[begin - row + r] = frames_[r].begin - out;
      if (fitting) {
        const Frame& last = frames_[static_cast<size_t>(fitting) - 1];
        const auto bytes = static_cast<uint64_t>(last.begin + last.size + kFrameBytes - out);
        group_rows_ = rows_of_a_group((bytes - result.bytes) / static_cast<uint64_t>(fitting));
        result.bytes = bytes;
        result.next_row += fitting;
      }
      if (fitting < count) {
        if (!result.bytes) result.need = frames_[0].size + kFrameBytes + kOverStore;
        break;
      }
    }
    return result;
  }

 private:
  struct Frame {
    uint8_t* begin;
    uint64_t size;  // of the payload
  };

  bool listed(const EncodedColumn& column) const { return column.spec.depth == 2; }

  // Computes the sizes of the two maps of each row. A fault ends the group before its row.
  void measure(int64_t begin, int64_t& count, EncodeFault& fault) {
    std::fill_n(features_size_, count, 0);
    std::fill_n(lists_size_, count, 0);
    for (size_t i = 0; i < columns_.size(); ++i) {
      EncodedColumn& column = columns_[i];
      const int64_t before = count;
      if (column.spec.kind == Kind::kString) {
        const int64_t bad = column.first_not_utf8(begin, begin + count);
        if (bad < begin + count) fault = {bad, -1, "the string is not valid UTF-8"};
        count = bad - begin;
      }
      if (type_ == RecordType::kBytes) {
        measure_payloads(begin, count, fault);
      } else {
        column.measure(begin, count, listed(column) ? lists_size_ : features_size_, fault);
      }
      if (count < before) fault.column = static_cast<int>(i);
    }
    for (int64_t r = 0; r < count; ++r) {
      frames_[r].size = payload_size(r);
      if (frames_[r].size <= kMaxRecordBytes) continue;
      fault = {begin + r, -1, "the record is longer than 2 GiB - 1, protobuf's limit for a message"};
      count = r;
    }
  }

  void measure_payloads(int64_t begin, int64_t& count, EncodeFault& fault) {
    const ColumnView& view = columns_[0].view;
    for (int64_t r = 0; r < count; ++r) {
      features_size_[r] = static_cast<uint64_t>(view.bytes[begin + r + 1] - view.bytes[begin + r]);
      if (view.valid[begin + r]) continue;
      fault = {begin + r, 0, "a record cannot be missing; drop the row or fill it with b\"\""};
      count = r;
    }
  }

  uint64_t payload_size(int64_t r) const {
    if (type_ == RecordType::kBytes) return features_size_[r];
    const uint64_t features = 1 + varint_size(features_size_[r]) + features_size_[r];
    if (type_ == RecordType::kExample) return features;
    return features + 1 + varint_size(lists_size_[r]) + lists_size_[r];
  }

  // Sets the position of each row, and returns the number of rows that fit.
  int64_t lay_out(int64_t count, uint8_t* out, uint64_t room) {
    for (int64_t r = 0; r < count; ++r) {
      const uint64_t size = frames_[r].size + kFrameBytes;
      if (size + kOverStore > room) return r;  // the footer is inside the overwritten bytes
      frames_[r].begin = out;
      out += size;
      room -= size;
    }
    return count;
  }

  void write(int64_t begin, int64_t count) {
    if (type_ == RecordType::kBytes) {
      const ColumnView& view = columns_[0].view;
      for (int64_t r = 0; r < count; ++r)
        view.copy_bytes(frames_[r].begin + kHeaderBytes, view.bytes[begin + r], features_size_[r]);
    } else {
      write_map(begin, count, false);
      if (type_ == RecordType::kSequenceExample) write_map(begin, count, true);
    }
    // Headers and checksums have a loop each, because a checksum would wait for the stores just before it.
    for (int64_t r = 0; r < count; ++r) {
      uint8_t* p = write_frame_header(frames_[r].begin, frames_[r].size);
      if (type_ == RecordType::kBytes) continue;
      p = write_map_head(p, 1, features_size_[r]);
      if (type_ == RecordType::kSequenceExample) write_map_head(p + features_size_[r], 2, lists_size_[r]);
    }
    const crc32c::Function crc = crc32c::best();
    for (int64_t r = 0; r < count; ++r) crcs_[r] = crc(frames_[r].begin + kHeaderBytes, frames_[r].size, 0);
    for (int64_t r = 0; r < count; ++r)
      store<uint32_t>(frames_[r].begin + kHeaderBytes + frames_[r].size, crc32c::masked(crcs_[r]));
  }

  static uint8_t* write_map_head(uint8_t* p, uint32_t field, uint64_t size) {
    *p++ = static_cast<uint8_t>(tag_of(field, kLen));
    return write_varint(p, size);
  }

  // Writes the entries of one map of each row. The tag and the length of the map are written later.
  void write_map(int64_t begin, int64_t count, bool lists) {
    for (int64_t r = 0; r < count; ++r) {
      ends_[r] = frames_[r].begin + kHeaderBytes + 1 + varint_size(features_size_[r]);
      if (lists) ends_[r] += features_size_[r] + 1 + varint_size(lists_size_[r]);
    }
    for (const EncodedColumn& column : columns_)
      if (listed(column) == lists) column.write(begin, count, ends_);
  }

  // The number of rows that fit the first-level cache. For long rows the number is higher, because each group has a
  // cost per column.
  static int64_t rows_of_a_group(uint64_t row_bytes) {
    const uint64_t some = std::min<uint64_t>(kSomeRows, (128 << 10) / row_bytes);
    return static_cast<int64_t>(std::clamp<uint64_t>((64 << 10) / row_bytes, std::max<uint64_t>(some, 1), kGroupRows));
  }

  static constexpr uint64_t kSomeRows = 24;
  static constexpr int64_t kGroupRows = 512;

  RecordType type_;
  std::vector<EncodedColumn> columns_;
  int64_t rows_ = 0;
  int64_t group_rows_ = 16;
  Frame frames_[kGroupRows];
  uint64_t features_size_[kGroupRows];  // the size of the features of an Example or of the context
  uint64_t lists_size_[kGroupRows];
  uint8_t* ends_[kGroupRows];
  uint32_t crcs_[kGroupRows];
};

}  // namespace tfr
