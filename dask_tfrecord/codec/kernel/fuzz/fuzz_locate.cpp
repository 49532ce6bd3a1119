// Finds records among other bytes, with all of the data and with a part of it, and compares with the definition.
#include "framing/locate.hpp"
#include "fuzz/fuzz.hpp"

namespace {

// The definition of a record that Locator finds.
bool is_record(tfr::Span data, size_t at, bool lenient, uint64_t max_record_bytes) {
  const size_t size = data.size();
  const auto header_at = [&](size_t from) {
    return from <= size && size - from >= tfr::kHeaderBytes && tfr::length_is_intact(data.begin + from);
  };
  const auto end_of = [&](size_t from) -> size_t {
    if (!header_at(from)) return 0;
    const auto n = tfr::load<uint64_t>(data.begin + from);
    return n > max_record_bytes || n + tfr::kFrameBytes > size - from ? 0 : from + n + tfr::kFrameBytes;
  };
  const auto is_intact = [&](size_t from) {
    const uint8_t* const payload = data.begin + from + tfr::kHeaderBytes;
    const size_t n = end_of(from) - from - tfr::kFrameBytes;
    return tfr::crc32c::masked(tfr::crc32c::by_table(payload, n, 0)) == tfr::load<uint32_t>(payload + n);
  };
  const size_t end = end_of(at);
  if (!end) return false;
  const bool followed = end == size || header_at(end);
  if (!lenient) return is_intact(at) && followed;
  if (is_intact(at) || !followed) return is_intact(at);
  for (size_t from = at + 1; from < end; ++from)
    if (end_of(from) > end - tfr::kFooterBytes && is_intact(from)) return false;
  return true;
}

}  // namespace

// The fuzzer's bytes are a file in which 0x52 stands for a header and a correct checksum of the bytes after it, which
// the fuzzer would not find by itself.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const bool lenient = data[0] & 1;
  const uint64_t max_record_bytes = data[0] & 2 ? data[1] : tfr::kMaxRecordBytes;
  std::string bytes;
  for (size_t i = 3; i < size; ++i) {
    if (data[i] != 0x52 || i + 1 >= size) {
      bytes.push_back(static_cast<char>(data[i]));
      continue;
    }
    ++i;
    const size_t n = std::min<size_t>(data[i], size - i - 1);
    std::string record = tfr::fuzz::frame(std::string(data + i + 1, data + i + 1 + n));
    if (data[0] & 4) bytes.append(record, 0, tfr::kHeaderBytes);  // only the header: the payload follows unchanged
    if (data[0] & 4) continue;
    bytes += record;
    i += n;
  }
  const tfr::fuzz::Exact file(bytes);
  size_t expected = 0;
  while (expected < bytes.size() && !is_record(file.span(), expected, lenient, max_record_bytes)) ++expected;
  tfr::Locator whole(file.span(), {true, max_record_bytes, true}, lenient);
  const tfr::Located found = whole.find(file.span().begin);
  tfr::fuzz::require(found.offset == expected, "the first record is found");
  tfr::fuzz::require(found.proven == (expected < bytes.size()), "what is found is proven");
  const size_t some = bytes.size() * data[2] / 255;
  const tfr::fuzz::Exact part(bytes.substr(0, some));
  const tfr::Located early =
      tfr::Locator(part.span(), {true, max_record_bytes, false}, lenient).find(part.span().begin);
  tfr::fuzz::require(early.offset <= expected, "no record is passed over for want of data");
  tfr::fuzz::require(!early.proven || early.offset == expected, "more data changes no proof");
  tfr::fuzz::require(early.proven || early.size || early.offset + tfr::kHeaderBytes > some,
                     "all available bytes were searched");
  return 0;
}
