// Adler-32, the checksum at the end of zlib streams.
#pragma once

#include <cstdint>

namespace tfr {

// The Adler-32 of a first part with the checksum adler1, followed by a second part of n2 bytes with the checksum
// adler2. The low half of a checksum is 1 plus the sum of the bytes. The high half is the sum of all values of the low
// half.
inline uint32_t combine_adler32(uint32_t adler1, uint32_t adler2, uint64_t n2) {
  constexpr uint64_t kBase = 65521;
  const uint64_t count = n2 % kBase;
  const uint64_t low1 = adler1 & 0xFFFF;
  const uint64_t low = (low1 + (adler2 & 0xFFFF) + kBase - 1) % kBase;
  const uint64_t high = (count * low1 + (adler1 >> 16) + (adler2 >> 16) + kBase - count) % kBase;
  return static_cast<uint32_t>(high << 16 | low);
}

}  // namespace tfr
