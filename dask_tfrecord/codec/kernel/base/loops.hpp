// The steps of the loops over records that have a faster version for some processors.
#pragma once

#include <vector>

#include "base/bytes.hpp"

namespace tfr {

// 32 bytes to compare.
struct alignas(32) Window {
  uint8_t bytes[32] = {};  // the expected bytes
  uint8_t masks[32] = {};  // 0xFF where a byte is compared
};

constexpr uint64_t kContinue = 0x8080808080808080;  // the continuation bits of the bytes of a varint

// The two structs have the same functions. A mask is 0xFF where a byte is compared.
//   same(bytes, masks, p)               true if the 32 bytes at p are those at `bytes`
//   same(bytes, masks, lengths, p, n)   the same after n was added where `lengths` is 0xFF; no sum is above 127
//   all_same(windows, at, p)            true if four records have the bytes of all windows, at the distances `at`
//   join(groups)                        one number from the 7-bit groups of up to eight bytes of a varint, without
//                                       their continuation bits
//   spread(value)                       the lowest 56 bits as eight groups of 7 bits
struct Portable {
  TFR_INLINE static bool same(const uint8_t* bytes, const uint8_t* masks, const uint8_t* p) {
    uint64_t differs = 0;
    for (int i = 0; i < 32; i += 8)
      differs |= (load<uint64_t>(p + i) ^ load<uint64_t>(bytes + i)) & load<uint64_t>(masks + i);
    return !differs;
  }
  TFR_INLINE static bool same(const uint8_t* bytes, const uint8_t* masks, const uint8_t* lengths, const uint8_t* p,
                              uint64_t n) {
    const uint64_t each = n * 0x0101010101010101;
    uint64_t differs = 0;
    for (int i = 0; i < 32; i += 8)
      differs |= (load<uint64_t>(p + i) ^ (load<uint64_t>(bytes + i) + (each & load<uint64_t>(lengths + i)))) &
                 load<uint64_t>(masks + i);
    return !differs;
  }
  static bool all_same(const std::vector<Window>& windows, const std::vector<uint32_t>& at,
                       const uint8_t* const (&p)[4]) {
    uint64_t differs = 0;
    for (size_t w = 0; w < windows.size(); ++w)
      for (int i = 0; i < 32; i += 8)
        for (const uint8_t* record : p)
          differs |= (load<uint64_t>(record + at[w] + i) ^ load<uint64_t>(windows[w].bytes + i)) &
                     load<uint64_t>(windows[w].masks + i);
    return !differs;
  }
  TFR_INLINE static uint64_t join(uint64_t x) {
    x = (x & 0x007F007F007F007F) | ((x & 0x7F007F007F007F00) >> 1);
    x = (x & 0x00003FFF00003FFF) | ((x & 0x3FFF00003FFF0000) >> 2);
    return (x & 0x000000000FFFFFFF) | ((x & 0x0FFFFFFF00000000) >> 4);
  }
  TFR_INLINE static uint64_t spread(uint64_t x) {
    x = (x & 0x000000000FFFFFFF) | ((x & 0x00FFFFFFF0000000) << 4);
    x = (x & 0x00003FFF00003FFF) | ((x & 0x0FFFC0000FFFC000) << 2);
    return (x & 0x007F007F007F007F) | ((x & 0x3F803F803F803F80) << 1);
  }
};

#if defined(TFR_X86)
#define TFR_AVX2_TARGET TFR_TARGET("avx2,bmi,bmi2,lzcnt")

struct Avx2 {
  TFR_AVX2_TARGET static inline bool same(const uint8_t* bytes, const uint8_t* masks, const uint8_t* p) {
    const __m256i same = _mm256_cmpeq_epi8(load32(p), load32(bytes));
    return !_mm256_movemask_epi8(_mm256_andnot_si256(same, load32(masks)));
  }
  TFR_AVX2_TARGET static inline bool same(const uint8_t* bytes, const uint8_t* masks, const uint8_t* lengths,
                                          const uint8_t* p, uint64_t n) {
    const __m256i added = _mm256_and_si256(_mm256_set1_epi8(static_cast<char>(n)), load32(lengths));
    const __m256i expected = _mm256_add_epi8(load32(bytes), added);
    return _mm256_testz_si256(_mm256_xor_si256(load32(p), expected), load32(masks));
  }
  TFR_AVX2_TARGET static inline bool all_same(const std::vector<Window>& windows, const std::vector<uint32_t>& at,
                                              const uint8_t* const (&p)[4]) {
    __m256i differs = _mm256_setzero_si256();
    for (size_t w = 0; w < windows.size(); ++w) {
      const __m256i bytes = load32(windows[w].bytes);
      const __m256i a = _mm256_xor_si256(load32(p[0] + at[w]), bytes);
      const __m256i b = _mm256_xor_si256(load32(p[1] + at[w]), bytes);
      const __m256i c = _mm256_xor_si256(load32(p[2] + at[w]), bytes);
      const __m256i d = _mm256_xor_si256(load32(p[3] + at[w]), bytes);
      const __m256i any = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
      differs = _mm256_or_si256(differs, _mm256_and_si256(any, load32(windows[w].masks)));
    }
    return _mm256_testz_si256(differs, differs);
  }
  TFR_AVX2_TARGET static inline uint64_t join(uint64_t groups) { return _pext_u64(groups, ~kContinue); }
  TFR_AVX2_TARGET static inline uint64_t spread(uint64_t value) { return _pdep_u64(value, ~kContinue); }

 private:
  TFR_AVX2_TARGET static inline __m256i load32(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
};

template <class Work, class... Args>
TFR_AVX2_TARGET auto run_with_avx2(Work work, Args... args) {
  return work(Avx2{}, args...);
}
#endif

// Calls work(loop, args...), where `loop` is the faster of the two structs that this processor can run. The function
// `work` must be a TFR_INLINE_LAMBDA, because only functions that are inlined here use the instructions.
template <class Work, class... Args>
TFR_INLINE auto run_fastest(Work work, Args... args) {
#if defined(TFR_X86)
  if (cpu().bmi2) return run_with_avx2(work, args...);
#endif
  return work(Portable{}, args...);
}

}  // namespace tfr
