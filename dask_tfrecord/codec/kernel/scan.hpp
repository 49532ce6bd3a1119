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
    p = payload.end + kFooterBytes;
  }
  scanned.damage.record = scanned.records;
  scanned.damage.offset = scanned.consumed;
  return scanned;
}

}  // namespace tfr
