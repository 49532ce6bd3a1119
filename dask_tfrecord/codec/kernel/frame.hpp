// TFRecord's framing: length (8 bytes), its masked CRC (4), the payload, the payload's masked CRC (4).
// Source of the format: tensorflow/core/lib/io/record_writer.h; all numbers are little-endian.
#pragma once

#include <optional>
#include <string>

#include "crc32c.hpp"
#include "spec.hpp"
#include "wire.hpp"

namespace tfr {

constexpr size_t kHeaderBytes = 12;
constexpr size_t kFooterBytes = 4;
constexpr size_t kFrameBytes = kHeaderBytes + kFooterBytes;
constexpr uint64_t kMaxRecordBytes = INT32_MAX;  // protobuf's limit for a message

// What is wrong with a record, and where. Damage is a value: the caller decides what becomes of it.
struct Damage {
  int64_t record = -1;
  uint64_t offset = 0;
  uint64_t size = 0;  // of the whole frame; 0 when the length itself cannot be trusted
  const char* reason = nullptr;
  int column = -1;
  std::string found;
  std::optional<ColumnSpec> unknown;  // the column that would read a feature nobody expected

  explicit operator bool() const { return reason != nullptr; }
};

struct FrameRules {
  bool verify_crc = true;
  uint64_t max_record_bytes = kMaxRecordBytes;
  bool final = true;  // the data ends where the file ends
};

TFR_INLINE bool length_is_intact(const uint8_t* frame) {
  return crc32c::masked(crc32c::of_length(load<uint64_t>(frame))) == load<uint32_t>(frame + 8);
}

// Returns where the payload of n bytes begins.
TFR_INLINE uint8_t* write_frame_header(uint8_t* frame, uint64_t n) {
  store<uint64_t>(frame, n);
  store<uint32_t>(frame + 8, crc32c::masked(crc32c::of_length(n)));
  return frame + kHeaderBytes;
}

// The payload of the frame at p, or null: then `reason` says what is wrong, or is null too when the
// frame goes on past the data's end (and the end is not final) or nothing is left.
inline Span next_frame(const uint8_t* p, const uint8_t* end, const FrameRules& rules, crc32c::Function crc,
                       Damage& damage) {
  const size_t left = static_cast<size_t>(end - p);
  if (left < kHeaderBytes) {
    if (left && rules.final) damage.reason = "truncated record header";
    return {};
  }
  if (!length_is_intact(p)) {
    damage.reason = "checksum of the record length does not match";
    return {};
  }
  const uint64_t n = load<uint64_t>(p);
  if (n > rules.max_record_bytes) {
    damage.reason = "record is longer than max_record_bytes";
    return {};
  }
  if (left - kHeaderBytes < kFooterBytes || n > left - kFrameBytes) {
    if (rules.final) damage.reason = "truncated record";
    return {};
  }
  const Span payload{p + kHeaderBytes, p + kHeaderBytes + n};
  if (rules.verify_crc && crc32c::masked(crc(payload.begin, n, 0)) != load<uint32_t>(payload.end)) {
    damage.reason = "checksum of the record data does not match";
    damage.size = n + kFrameBytes;
    return {};
  }
  return payload;
}

}  // namespace tfr
