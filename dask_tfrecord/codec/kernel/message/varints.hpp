// Runs of varints, which are the content of a packed list of int64.
//
// The write loop uses the processor's bit deposit instruction if it is fast.
#pragma once

#include <algorithm>

#include "message/wire.hpp"

namespace tfr::varints {

constexpr size_t kAhead = 128;  // values to prefetch, because the other columns are written before the next ones

// Writes n values at p and returns their end. Overwrites up to 10 bytes beyond the end.
inline uint8_t* write(uint8_t* p, const int64_t* values, size_t n) {
  const auto work = [](auto loop, uint8_t* to, const int64_t* from, size_t count) TFR_INLINE_LAMBDA {
    for (size_t i = 0; i < count; ++i) {
      const auto value = static_cast<uint64_t>(from[i]);
      prefetch(from + i + kAhead);
      const unsigned size = varint_size(value);
      store<uint64_t>(to, loop.spread(value) | kContinues[size]);
      if (!TFR_LIKELY(size <= 8)) write_varint_end(to, value, size);
      to += size;
    }
    return to;
  };
  return run_fastest(work, p, values, n);
}

// Reads the values in [p, end) into `to`, which must have room for end - p values, and may read up to `limit`.
// Returns the end of the values in `to`, or null if the last varint is cut off. Real lists have runs of values of equal
// size. A branch for each size is therefore mostly predicted, and faster than a computation of the size.
inline int64_t* read(const uint8_t* p, const uint8_t* end, const uint8_t* limit, int64_t* to) {
  // Eight bytes can be read from any position before `safe`.
  const uint8_t* const safe = std::min(end, limit - std::min<ptrdiff_t>(limit - p, 7));
  while (p < safe) {
    const uint64_t word = load<uint64_t>(p);
    if (!(word & 0x80)) {
      *to++ = static_cast<int64_t>(word & 0x7F);
      p += 1;
    } else if (!(word & 0x8000)) {
      *to++ = static_cast<int64_t>((word & 0x7F) | (word >> 1 & 0x3F80));
      p += 2;
    } else if (!(word & 0x800000)) {
      *to++ = static_cast<int64_t>((word & 0x7F) | (word >> 1 & 0x3F80) | (word >> 2 & 0x1FC000));
      p += 3;
    } else if (const uint64_t stops = ~word & kContinue) {
      *to++ = static_cast<int64_t>(Portable::join(word & (stops ^ (stops - 1)) & ~kContinue));
      p += (lowest_bit(stops) >> 3) + 1;
    } else {
      uint64_t value = 0;
      p = read_varint(p, end, value);
      if (!p) return nullptr;
      *to++ = static_cast<int64_t>(value);
    }
  }
  while (p < end) {
    uint64_t value = 0;
    p = read_varint(p, end, value);
    if (!p) return nullptr;
    *to++ = static_cast<int64_t>(value);
  }
  return p == end ? to : nullptr;
}

}  // namespace tfr::varints
