// Walks frames without decoding the payloads.
#pragma once

#include "base/memory.hpp"
#include "framing/frame.hpp"

namespace tfr {

// Which records a scan returns the offsets of.
struct OffsetRequest {
  bool wanted = false;
  uint64_t every = 0;  // the least distance of two offsets in bytes; 0: the offsets of all records, without numbers
};

// The whole records at the start of the data, and the damage that stopped the scan, if any. The arrays lie in the arena
// that scan() was given.
struct Scanned {
  int64_t records = 0;
  uint64_t consumed = 0;
  Damage damage;
  Growing<int64_t> offsets;
  Growing<int64_t> numbers;
};

// Prefetches as many bytes as the frame has, one page ahead. A processor does not predict a walk that reads only
// headers, so that for small records such a walk would be slower than one that reads the payloads too.
TFR_INLINE void fetch_ahead(Span frame) {
  constexpr size_t kPage = 4096;
  constexpr size_t kLine = 64;
  if (frame.size() > kPage) return;
  for (size_t at = 0; at < frame.size(); at += kLine) prefetch(frame.begin + kPage + at);
}

inline Scanned scan(Span data, const FrameRules& rules, OffsetRequest request, Arena& arena) {
  Scanned scanned;
  const uint8_t* p = data.begin;
  uint64_t next = 0;  // the least offset that may be returned next
  for (;; ++scanned.records) {
    const Span payload = next_frame(p, data.end, rules, crc32c::best(), scanned.damage);
    scanned.consumed = static_cast<uint64_t>(p - data.begin);
    if (!payload.begin) break;
    if (request.wanted && scanned.consumed >= next) {
      scanned.offsets.push(arena, static_cast<int64_t>(scanned.consumed));
      if (request.every) scanned.numbers.push(arena, scanned.records);
      next = request.every < UINT64_MAX - scanned.consumed ? scanned.consumed + request.every : UINT64_MAX;
    }
    if (!rules.verify_crc) fetch_ahead({p, payload.end + kFooterBytes});
    p = payload.end + kFooterBytes;
  }
  scanned.damage.record = scanned.records;
  scanned.damage.offset = scanned.consumed;
  return scanned;
}

// Returns the CRC of `data`, which begins with `records` records whose payloads match the checksums after them. `crc`
// is the CRC of the bytes before. The payloads of large records are not read: their checksums are combined with the
// CRC. For small records, walking and combining take longer than reading.
inline uint32_t crc_of_records(Span data, uint64_t records, uint32_t crc) {
  constexpr uint64_t kLarge = 2048;
  const crc32c::Implementation& best = crc32c::implementations()[0];
  const uint8_t* unread = data.begin;
  const uint8_t* p = data.begin;
  if (data.size() / kLarge < records) records = 0;
  for (; records && static_cast<size_t>(data.end - p) >= kFrameBytes; --records) {
    const uint64_t n = load<uint64_t>(p);
    if (n > static_cast<size_t>(data.end - p) - kFrameBytes) break;
    p += kHeaderBytes + n;
    if (n >= kLarge) {
      crc = best.function(unread, static_cast<size_t>(p - n - unread), crc);
      crc = best.combine(crc, crc32c::unmasked(load<uint32_t>(p)), n);
      unread = p;
    }
    p += kFooterBytes;
  }
  return best.function(unread, static_cast<size_t>(data.end - unread), crc);
}

}  // namespace tfr
