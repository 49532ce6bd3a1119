// Walks frames without looking into them.
#pragma once

#include "frame.hpp"
#include "memory.hpp"

namespace tfr {

// Which records a scan gives the places of.
struct Places {
  bool wanted = false;
  uint64_t every = 0;  // bytes from one to the next at least; 0: all records, and their numbers are not told
};

struct Scanned {
  int64_t records = 0;
  uint64_t consumed = 0;
  Damage damage;
  Growing<int64_t> offsets;
  Growing<int64_t> numbers;
};

// Headers alone are no stream of reads that a processor foresees: of small records a walk that skips the payloads
// would be slower than one that reads them. So as many bytes as the frame has are brought near, a page further on.
TFR_INLINE void fetch_ahead(Span frame) {
  constexpr size_t kPage = 4096;
  constexpr size_t kLine = 64;
  if (frame.size() > kPage) return;
  for (size_t at = 0; at < frame.size(); at += kLine) prefetch(frame.begin + kPage + at);
}

// Walks the whole records at the start of data; what grows lies in the arena.
inline Scanned scan(Span data, const FrameRules& rules, Places places, Arena& arena) {
  Scanned scanned;
  const uint8_t* p = data.begin;
  uint64_t next = 0;  // where the next place may be
  for (;; ++scanned.records) {
    const Span payload = next_frame(p, data.end, rules, crc32c::best(), scanned.damage);
    scanned.consumed = static_cast<uint64_t>(p - data.begin);
    if (!payload.begin) break;
    if (places.wanted && scanned.consumed >= next) {
      scanned.offsets.push(arena, static_cast<int64_t>(scanned.consumed));
      if (places.every) scanned.numbers.push(arena, scanned.records);
      next = places.every < UINT64_MAX - scanned.consumed ? scanned.consumed + places.every : UINT64_MAX;
    }
    if (!rules.verify_crc) fetch_ahead({p, payload.end + kFooterBytes});
    p = payload.end + kFooterBytes;
  }
  scanned.damage.record = scanned.records;
  scanned.damage.offset = scanned.consumed;
  return scanned;
}

}  // namespace tfr
