// Spans of bytes, unaligned little-endian loads and stores, and the portability macros of all headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/cpu.hpp"

#if defined(_MSC_VER)
#include <intrin.h>
#define TFR_INLINE __forceinline
#define TFR_INLINE_LAMBDA
#define TFR_NOINLINE __declspec(noinline)
#define TFR_LIKELY(x) (x)
#else
#define TFR_INLINE inline __attribute__((always_inline))
#define TFR_INLINE_LAMBDA __attribute__((always_inline))
#define TFR_NOINLINE __attribute__((noinline))
#define TFR_LIKELY(x) __builtin_expect(!!(x), 1)
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernel writes TFRecord's little-endian fields in the machine's own order"
#endif

namespace tfr {

// Bytes that somebody else owns.
struct Span {
  const uint8_t* begin = nullptr;
  const uint8_t* end = nullptr;

  size_t size() const { return static_cast<size_t>(end - begin); }
};

// All access to memory as another type goes through these two, because a cast of the pointer would break C++'s aliasing
// rules. Compilers make one instruction of each.
template <class T>
TFR_INLINE T load(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <class T>
TFR_INLINE void store(void* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

// 16 bytes that fit one register.
#if defined(TFR_X86)
using Block16 = __m128i;
#elif defined(TFR_ARM64)
using Block16 = uint8x16_t;
#else
struct Block16 {
  uint64_t halves[2];
};
#endif

// Copies 16 bytes. Short values are copied with this, so that the copy does not depend on their length.
TFR_INLINE void copy16(void* to, const void* from) {
  std::memcpy(to, from, 16);
}

// Loads a cache line that will be read soon. Any address is allowed.
TFR_INLINE void prefetch(const void* p) {
#if defined(_MSC_VER)
#if defined(_M_X64)
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
#endif
#else
  __builtin_prefetch(p);
#endif
}

// Index of the highest set bit. The value must not be 0.
TFR_INLINE unsigned highest_bit(uint64_t value) {
#if defined(_MSC_VER)
  unsigned long index;
#if defined(_M_X64) || defined(_M_ARM64)
  _BitScanReverse64(&index, value);
#else
  if (_BitScanReverse(&index, static_cast<uint32_t>(value >> 32))) return index + 32;
  _BitScanReverse(&index, static_cast<uint32_t>(value));
#endif
  return index;
#else
  return 63 ^ static_cast<unsigned>(__builtin_clzll(value));
#endif
}

// Index of the lowest set bit. The value must not be 0.
TFR_INLINE unsigned lowest_bit(uint64_t value) {
#if defined(_MSC_VER)
  return highest_bit(value & (0 - value));
#else
  return static_cast<unsigned>(__builtin_ctzll(value));
#endif
}

}  // namespace tfr
