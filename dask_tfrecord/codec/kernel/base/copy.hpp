// Copies of long values.
#pragma once

#include "base/bytes.hpp"
#if defined(TFR_X86)
#include <emmintrin.h>
#endif

namespace tfr {

// Compilers replace a copy of up to 255 bytes by string instructions, which are slow on many processors.
TFR_NOINLINE inline void copy_short(void* to, const void* from, size_t n) {
  std::memcpy(to, from, n);
}

// A batch with values of this size is mostly larger than the cache.
constexpr size_t kLongBytes = size_t{16} << 10;

// Copies a value of at least kLongBytes to memory that is not read soon. The stores go past the cache, so that the
// processor does not load the memory first, and keeps the source of the next values. Neither range may overlap the
// other.
inline void copy_long(uint8_t* to, const uint8_t* from, size_t n) {
#if defined(TFR_X86)
  constexpr size_t kLine = 64;
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  n -= head;
  for (; n >= kLine; n -= kLine, to += kLine, from += kLine) {
    const auto* const in = reinterpret_cast<const __m128i*>(from);
    auto* const out = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();  // other threads see the value when they see the batch
#endif
  std::memcpy(to, from, n);
}

}  // namespace tfr
