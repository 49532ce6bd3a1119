// Runs of varints, which are the content of a packed list of int64.
//
// The write loop uses the processor's bit deposit instruction if it is fast. The choice is made once, at run time.
#pragma once

#include <algorithm>

#include "base/cpu.hpp"
#include "message/wire.hpp"

namespace tfr::varints {

struct Portable {
  TFR_INLINE static uint64_t spread(uint64_t value) { return spread_groups(value); }
};

constexpr size_t kAhead = 128;  // values to prefetch, because the other columns are written before the next ones

// Writes n values at p and returns their end. Overwrites up to 10 bytes beyond the end.
template <class Bits>
TFR_INLINE uint8_t* write_with(uint8_t* p, const int64_t* values, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const auto value = static_cast<uint64_t>(values[i]);
    prefetch(values + i + kAhead);
    const unsigned size = varint_size(value);
    store<uint64_t>(p, Bits::spread(value) | kContinues[size]);
    if (!TFR_LIKELY(size <= 8)) write_varint_end(p, value, size);
    p += size;
  }
  return p;
}

using Write = uint8_t* (*)(uint8_t* p, const int64_t* values, size_t n);

inline uint8_t* write_portable(uint8_t* p, const int64_t* values, size_t n) {
  return write_with<Portable>(p, values, n);
}

#if defined(TFR_X86)
#define TFR_BMI2_TARGET TFR_TARGET("bmi,bmi2,lzcnt")

struct Bmi2 {
  TFR_BMI2_TARGET static inline uint64_t spread(uint64_t value) { return _pdep_u64(value, ~kContinue); }
};

TFR_BMI2_TARGET inline uint8_t* write_bmi2(uint8_t* p, const int64_t* values, size_t n) {
  return write_with<Bmi2>(p, values, n);
}
#endif

// The fastest implementation that this processor has.
inline Write best_write() {
#if defined(TFR_X86)
  static const Write write = cpu().bmi2 ? write_bmi2 : write_portable;
  return write;
#else
  return write_portable;
#endif
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
      *to++ = static_cast<int64_t>(join_groups(word & (stops ^ (stops - 1)) & ~kContinue));
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
