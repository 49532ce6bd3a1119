// The frame of a record in a TFRecord file: the payload's length (8 bytes), the masked CRC of the length (4), the
// payload, and the masked CRC of the payload (4). All numbers are little-endian. The format is defined in
// tensorflow/core/lib/io/record_writer.h.
#pragma once

#include <optional>
#include <string>

#include "base/column_spec.hpp"
#include "base/crc32c.hpp"

namespace tfr {

constexpr size_t kHeaderBytes = 12;
constexpr size_t kFooterBytes = 4;
constexpr size_t kFrameBytes = kHeaderBytes + kFooterBytes;
constexpr const char* kTruncated = "truncated record";
constexpr uint64_t kMaxRecordBytes = INT32_MAX;  // protobuf's limit for a message

// What is wrong with a record, and where. Damage is a value and not an exception, because the caller may skip it.
struct Damage {
  int64_t record = -1;                // number of the record in the data of this call
  uint64_t offset = 0;                // of the record's frame in the data of this call
  uint64_t size = 0;                  // of the whole frame; 0 if the length is not reliable
  const char* reason = nullptr;       // static text; null if there is no damage
  int column = -1;                    // index of the column that the damage is about, or -1
  std::string found;                  // what the record holds instead of the column's kind, or ""
  std::optional<ColumnSpec> unknown;  // the column that would read an unknown feature

  explicit operator bool() const { return reason != nullptr; }
};

// Which frames are accepted.
struct FrameRules {
  bool verify_crc = true;
  uint64_t max_record_bytes = kMaxRecordBytes;
  bool final = true;  // the data ends where the file ends
};

// Returns true if the CRC of the length holds. Reads kHeaderBytes.
TFR_INLINE bool length_is_intact(const uint8_t* frame) {
  return crc32c::masked(crc32c::of_length(load<uint64_t>(frame))) == load<uint32_t>(frame + 8);
}

// Writes the header of a payload of n bytes, and returns the position of the payload.
TFR_INLINE uint8_t* write_frame_header(uint8_t* frame, uint64_t n) {
  store<uint64_t>(frame, n);
  store<uint32_t>(frame + 8, crc32c::masked(crc32c::of_length(n)));
  return frame + kHeaderBytes;
}

// Returns the payload of the frame at p, which lies in [p, end). Otherwise returns a null span. Then either
// damage.reason is set, or it stays null, because no bytes are left or because the frame ends beyond `end` and the end
// is not final.
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
    if (rules.final) damage.reason = kTruncated;
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
