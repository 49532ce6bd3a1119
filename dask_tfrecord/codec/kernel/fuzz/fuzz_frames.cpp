// Reads the fuzzer's bytes as a file: scans the frames, decodes the messages and infers their features.
#include "columns/infer.hpp"
#include "framing/scan.hpp"
#include "fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!size) return 0;
  const uint8_t flags = *data;
  const tfr::fuzz::Exact file(std::string(data + 1, data + size));
  const tfr::FrameRules rules{(flags & 0x80) == 0, tfr::kMaxRecordBytes, true};
  tfr::Decoder decoder(tfr::fuzz::columns(flags), tfr::fuzz::record_type(flags), rules);
  const bool final = (flags & 0x40) == 0;
  const tfr::DecodedBatch batch = decoder.decode(file.span(), final);
  tfr::fuzz::require(batch.consumed <= size - 1, "no more is consumed than there is");
  tfr::fuzz::require(!final || batch.damage || batch.consumed == size - 1, "all bytes are used or damage is reported");
  const tfr::fuzz::Arrow arrow(batch);
  tfr::Inference inference(tfr::fuzz::record_type(flags), rules, -1);
  int64_t records = 0;
  tfr::Damage damage;
  inference.feed(file.span(), final, records, damage);
  tfr::fuzz::require(!final || damage || damage.offset == size - 1,
                     "all records are inferred from or damage is reported");
  const tfr::FrameRules frames{rules.verify_crc, rules.max_record_bytes, final};
  tfr::Arena arena(4096);
  const tfr::Scanned all = tfr::scan(file.span(), frames, {true, 0}, arena);
  const tfr::Span records_of_file{file.span().begin, file.span().begin + all.consumed};
  const uint32_t combined = tfr::crc_of_records(records_of_file, static_cast<uint64_t>(all.records), 0);
  tfr::fuzz::require(!rules.verify_crc || combined == tfr::crc32c::best()(records_of_file.begin, all.consumed, 0),
                     "the checksums of the records give the checksum of the file");
  const tfr::Scanned some = tfr::scan(file.span(), frames, {true, static_cast<uint64_t>(flags) + 1}, arena);
  tfr::fuzz::require(all.consumed == some.consumed && all.offsets.size == static_cast<size_t>(all.records),
                     "the offsets of all records are returned");
  for (size_t i = 0; i < some.offsets.size; ++i)
    tfr::fuzz::require(all.offsets.data[some.numbers.data[i]] == some.offsets.data[i],
                       "numbers are those of the places");
  return 0;
}
