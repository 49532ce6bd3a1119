// Decodes the bytes of a file that SparseReader returns, and compares with all bytes of the file.
#include <sys/mman.h>

#include "fuzz/fuzz.hpp"
#include "message/sparse_reader.hpp"

namespace {

// A length-delimited field of a message.
std::string field(uint8_t number, const std::string& content) {
  std::string bytes(1, static_cast<char>(number << 3 | 2));
  for (size_t left = content.size();; left >>= 7) {
    bytes.push_back(static_cast<char>((left & 0x7f) | (left > 0x7f ? 0x80 : 0)));
    if (left <= 0x7f) return bytes + content;
  }
}

// A payload with a feature for every three bytes: its name, its kind, and its size in units of 512 bytes, so that the
// fuzzer finds large values. The byte after the features is written over another byte of the payload.
std::string payload(const uint8_t*& p, const uint8_t* end) {
  std::string features;
  for (uint8_t count = *p++ % 4; count && end - p >= 3; --count, p += 3) {
    const std::string list = field(1, std::string(size_t{p[2] & 0x7fU} * 512, static_cast<char>(p[1] >> 2)));
    const std::string name(1, static_cast<char>('a' + p[0] % 10));
    features += field(1, field(1, name) + field(2, field(static_cast<uint8_t>(1 + p[1] % 3), list)));
  }
  std::string bytes = field(1, features);
  if (end - p < 3) return bytes;
  const size_t at = p[0] & 1 ? p[1] : size_t{p[1]} * bytes.size() / 256;
  if (at < bytes.size() && p[0] & 2) bytes[at] = static_cast<char>(p[2]);
  p += 3;
  return bytes;
}

// A file in memory, which is written anew for each input.
int file_of(const std::string& bytes) {
  static const int file = memfd_create("fuzz_sparse", 0);
  const bool done = file >= 0 && !ftruncate(file, 0) &&
                    pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
  tfr::fuzz::require(done, "the file can be written");
  return file;
}

std::string values(const tfr::DecodedBatch& batch, const std::vector<tfr::ColumnSpec>& columns) {
  return tfr::fuzz::encode(columns, tfr::RecordType::kExample, tfr::fuzz::Arrow(batch));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const auto columns = tfr::fuzz::columns(data[0] & 0xfe);
  const size_t room = 200 + size_t{data[1]} * 400;  // of each read
  std::string bytes;
  for (const uint8_t *p = data + 2, *end = data + size; p < end && bytes.size() < (1U << 17U);)
    bytes += tfr::fuzz::frame(payload(p, end));
  if (data[0] & 1) bytes.resize(bytes.size() - bytes.size() * data[1] / 512);

  std::vector<std::string> names;
  for (const tfr::ColumnSpec& column : columns) names.push_back(column.name);
  tfr::SparseReader reader(file_of(bytes), 0, bytes.size(), names);
  std::string some(bytes.size() + room, '\x5a');  // where nothing is read, these bytes stay
  size_t done = 0;
  for (ptrdiff_t got = 1; got > 0 && done < bytes.size(); done += static_cast<size_t>(got))
    got = reader.read(reinterpret_cast<uint8_t*>(&some[done]), room);
  tfr::fuzz::require(done == bytes.size(), "the reader returns as many bytes as the file has");
  some.resize(done);

  const tfr::fuzz::Exact whole(bytes);
  const tfr::fuzz::Exact sparse(some);
  const tfr::FrameRules rules{false, tfr::kMaxRecordBytes, true};
  const tfr::DecodedBatch expected = tfr::Decoder(columns, tfr::RecordType::kExample, rules).decode(whole.span(), true);
  const tfr::DecodedBatch found = tfr::Decoder(columns, tfr::RecordType::kExample, rules).decode(sparse.span(), true);
  tfr::fuzz::require(found.consumed == expected.consumed, "as many bytes are decoded");
  tfr::fuzz::require(!found.damage == !expected.damage, "the same records are damaged");
  if (expected.damage)
    tfr::fuzz::require(
        std::string(found.damage.reason) == expected.damage.reason && found.damage.offset == expected.damage.offset,
        "the damage is the same");
  tfr::fuzz::require(values(found, columns) == values(expected, columns), "the values are the same");
  return 0;
}
