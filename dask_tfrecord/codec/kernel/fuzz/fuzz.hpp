// Helpers of the fuzz targets: records made from the fuzzer's bytes, and access to decoded batches.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "columns/decode.hpp"
#include "columns/encode.hpp"

namespace tfr::fuzz {

// A copy whose memory ends where the bytes end, so that the sanitizer detects every read beyond them.
class Exact {
 public:
  explicit Exact(const std::string& bytes) : data_(new uint8_t[bytes.size()]), size_(bytes.size()) {
    if (size_) std::memcpy(data_.get(), bytes.data(), size_);
  }
  Span span() const { return {data_.get(), data_.get() + size_}; }

 private:
  std::unique_ptr<uint8_t[]> data_;
  size_t size_;
};

// Frames a payload with correct checksums, which a fuzzer would not find by itself.
inline std::string frame(const std::string& payload) {
  std::string bytes(kFrameBytes + payload.size(), '\0');
  auto* p = reinterpret_cast<uint8_t*>(bytes.data());
  if (!payload.empty()) std::memcpy(p + kHeaderBytes, payload.data(), payload.size());
  write_frame_header(p, payload.size());
  store<uint32_t>(p + kHeaderBytes + payload.size(),
                  crc32c::masked(crc32c::by_table(p + kHeaderBytes, payload.size(), 0)));
  return bytes;
}

inline RecordType record_type(uint8_t flags) {
  return flags & 1 ? RecordType::kSequenceExample : RecordType::kExample;
}

// Columns that the flags select. Their names are short, so that the fuzzer finds them by chance.
inline std::vector<ColumnSpec> columns(uint8_t flags) {
  std::vector<ColumnSpec> all = {
      {"a", Kind::kInt64, 0}, {"b", Kind::kFloat, 0}, {"c", Kind::kBytes, 0},  {"s", Kind::kString, 0},
      {"d", Kind::kInt64, 1}, {"e", Kind::kFloat, 1}, {"f", Kind::kString, 1},
  };
  if (flags & 1) {
    all.push_back({"g", Kind::kInt64, 2});
    all.push_back({"h", Kind::kBytes, 2});
  }
  std::vector<ColumnSpec> some;
  for (size_t i = 0; i < all.size(); ++i)
    if (!(flags & 2) || (flags >> 2 >> (i % 6) & 1)) some.push_back(all[i]);
  return some;
}

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// A decoded batch as Arrow structs, released at the end.
class Arrow {
 public:
  explicit Arrow(const DecodedBatch& batch) {
    export_schema(batch.root, &schema);
    export_array(batch.root, batch.arena, &array);
  }
  Arrow(const Arrow&) = delete;
  Arrow& operator=(const Arrow&) = delete;
  ~Arrow() {
    schema.release(&schema);
    array.release(&array);
  }

  ArrowSchema schema;
  ArrowArray array;
};

// Encodes the rows of a decoded batch. Returns nothing if they hold a null in a list of lists, which can be read but
// not written.
inline std::string encode(const std::vector<ColumnSpec>& columns, RecordType type, const Arrow& arrow) {
  Encoder encoder(columns, type);
  int column = 0;
  require(!encoder.bind(arrow.schema, arrow.array, column), "what was decoded can be bound");
  const int64_t rows = arrow.array.length;
  for (size_t i = 0; i < columns.size(); ++i)
    require(encoder.statistics(i, {0, rows}).size() == 1, "each column has statistics");
  std::string out(64, '\0');
  std::string bytes;
  for (int64_t row = 0; row < rows;) {
    const EncodedRows done = encoder.encode(row, rows, reinterpret_cast<uint8_t*>(out.data()), out.size());
    if (done.fault.reason) return {};
    if (done.need) {
      require(done.need > out.size(), "a need is more than there was");
      out.resize(done.need);
    }
    bytes.append(out, 0, done.bytes);
    row = done.next_row;
  }
  return bytes;
}

}  // namespace tfr::fuzz
