// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) with the fastest instructions of the processor.
//
// All implementations return the same value for the same bytes, and read no other bytes. The fastest is chosen once, at
// run time. `crc` is the CRC of the bytes before, 0 if there are none. TFRecord stores masked CRCs, as LevelDB's log
// does, because CRCs of data that contains CRCs are weak.
#pragma once

#include <array>

#include "base/bytes.hpp"
#include "base/cpu.hpp"

namespace tfr::crc32c {

constexpr uint32_t kPolynomial = 0x82F63B78;

// The mask of TFRecord's footer: tensorflow/core/lib/hash/crc32c.h.
TFR_INLINE uint32_t masked(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}
TFR_INLINE uint32_t unmasked(uint32_t masked_crc) {
  const uint32_t turned = masked_crc - 0xA282EAD8u;
  return (turned >> 17) | (turned << 15);
}

// ---- constants, all computed from the polynomial -------------------------------------------------

template <uint32_t polynomial = kPolynomial>
constexpr uint32_t times_x(uint32_t value) {
  return (value >> 1) ^ ((value & 1) ? polynomial : 0);
}

constexpr uint32_t over_x(uint32_t value) {
  return (value & 0x80000000) ? ((value ^ kPolynomial) << 1) | 1 : value << 1;
}

// x^n mod P, reflected (x^0 is the highest bit).
constexpr uint32_t x_to_the(unsigned n) {
  uint32_t value = 0x80000000;
  for (unsigned i = 0; i < n; ++i) value = times_x(value);
  return value;
}

struct Tables {
  uint32_t byte[8][256];
};

constexpr Tables make_tables() {
  Tables t{};
  for (unsigned i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = times_x(value);
    t.byte[0][i] = value;
  }
  for (unsigned i = 0; i < 256; ++i)
    for (unsigned k = 1; k < 8; ++k) t.byte[k][i] = (t.byte[k - 1][i] >> 8) ^ t.byte[0][t.byte[k - 1][i] & 0xFF];
  return t;
}

inline constexpr Tables kTables = make_tables();

// ---- portable ------------------------------------------------------------------------------------

inline uint32_t by_table(const uint8_t* p, size_t n, uint32_t crc) {
  const auto& t = kTables.byte;
  uint64_t c = ~crc;
  for (; n >= 8; n -= 8, p += 8) {
    c ^= load<uint64_t>(p);
    c = t[7][c & 0xFF] ^ t[6][(c >> 8) & 0xFF] ^ t[5][(c >> 16) & 0xFF] ^ t[4][(c >> 24) & 0xFF] ^
        t[3][(c >> 32) & 0xFF] ^ t[2][(c >> 40) & 0xFF] ^ t[1][(c >> 48) & 0xFF] ^ t[0][c >> 56];
  }
  for (; n; --n) c = (c >> 8) ^ t[0][(c ^ *p++) & 0xFF];
  return ~static_cast<uint32_t>(c);
}

// The CRC of the 8 bytes of a record's length. A length is nearly always below 2^24, so that five bytes are 0.
inline constexpr uint32_t kFiveZeros = [] {
  // The state after eight zero bytes: the part of the CRC that does not depend on the value.
  uint32_t c = 0xFFFFFFFF;
  for (int i = 0; i < 8; ++i) c = (c >> 8) ^ kTables.byte[0][c & 0xFF];
  return c;
}();

TFR_INLINE uint32_t of_length(uint64_t length) {
  if (!TFR_LIKELY(length < (1u << 24))) return by_table(reinterpret_cast<const uint8_t*>(&length), 8, 0);
  const auto& t = kTables.byte;
  return ~(kFiveZeros ^ t[7][length & 0xFF] ^ t[6][(length >> 8) & 0xFF] ^ t[5][length >> 16]);
}

// ---- the CRC of two byte strings together, also for the other reflected polynomials of degree 32 -------------------

// The polynomial of the CRC-32 in gzip files.
constexpr uint32_t kGzipPolynomial = 0xEDB88320;

// a * b mod P.
template <uint32_t polynomial = kPolynomial>
constexpr uint32_t product(uint32_t a, uint32_t b) {
  uint32_t sum = 0;
  for (; a; a <<= 1, b = times_x<polynomial>(b)) sum ^= a & 0x80000000 ? b : 0;
  return sum;
}

// x^(8 * 2^i) for i = 0, 1, ...
template <uint32_t polynomial = kPolynomial>
inline constexpr std::array<uint32_t, 64> kSquares = [] {
  std::array<uint32_t, 64> squares{};
  uint32_t value = 0x80000000 >> 8;
  for (uint32_t& square : squares) {
    square = value;
    value = product<polynomial>(value, value);
  }
  return squares;
}();

// The CRC of a first part with the CRC crc1, followed by a second part of n2 bytes with the CRC crc2. It is
// crc1 * x^(8 * n2) mod P, exclusive or crc2.
template <uint32_t polynomial = kPolynomial>
inline uint32_t combine(uint32_t crc1, uint32_t crc2, uint64_t n2) {
  for (unsigned bit = 0; n2; ++bit, n2 >>= 1)
    if (n2 & 1) crc1 = product<polynomial>(crc1, kSquares<polynomial>[bit]);
  return crc1 ^ crc2;
}

// ---- three interleaved streams of the processor's CRC instruction --------------------------------
//
// A CRC instruction processes 8 bytes per cycle, but its result is available after three cycles. Three independent
// streams therefore run at the same time. Their values are joined by a multiplication with a power of x:
// step(0, clmul(c, x^(8 L - 33))) is the value of a stream with value c followed by L zero bytes.

constexpr unsigned kMaxWords = 128;  // words of one stream between two joins

struct JoinTable {
  uint32_t by_one[kMaxWords + 1];  // x^(64 k - 33): moves a value past one stream of k words
  uint32_t by_two[kMaxWords + 1];
};

constexpr JoinTable make_join_table() {
  JoinTable t{};
  uint32_t one = x_to_the(64 - 33);
  uint32_t two = x_to_the(128 - 33);
  for (unsigned k = 1; k <= kMaxWords; ++k) {
    t.by_one[k] = one;
    t.by_two[k] = two;
    for (int i = 0; i < 64; ++i) one = times_x(one);
    for (int i = 0; i < 128; ++i) two = times_x(two);
  }
  return t;
}

inline constexpr JoinTable kJoin = make_join_table();

#if defined(TFR_X86)
#define TFR_CRC_TARGET TFR_TARGET("sse4.2,pclmul")

TFR_CRC_TARGET inline uint32_t step64(uint32_t c, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(c, word));
}
TFR_CRC_TARGET inline uint32_t step8(uint32_t c, uint8_t byte) {
  return _mm_crc32_u8(c, byte);
}
TFR_CRC_TARGET inline uint64_t times(uint32_t c, uint32_t power) {
  return static_cast<uint64_t>(_mm_cvtsi128_si64(
      _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(c)), _mm_cvtsi32_si128(static_cast<int>(power)), 0)));
}
#elif defined(TFR_ARM64)
#if defined(__clang__) || defined(_MSC_VER)
#define TFR_CRC_TARGET TFR_TARGET("crc,aes")
#else
#define TFR_CRC_TARGET TFR_TARGET("+crc+crypto")
#endif

TFR_CRC_TARGET inline uint32_t step64(uint32_t c, uint64_t word) {
  return __crc32cd(c, word);
}
TFR_CRC_TARGET inline uint32_t step8(uint32_t c, uint8_t byte) {
  return __crc32cb(c, byte);
}
TFR_CRC_TARGET inline uint64_t times(uint32_t c, uint32_t power) {
  return static_cast<uint64_t>(vgetq_lane_u64(vreinterpretq_u64_p128(vmull_p64(c, power)), 0));
}
#endif

#if defined(TFR_CRC_TARGET)
// x^(8 * 2^i - 33) for i = 0, 1, ...
inline constexpr std::array<uint32_t, 64> kShifts = [] {
  std::array<uint32_t, 64> shifts = kSquares<>;
  for (uint32_t& shift : shifts)
    for (int i = 0; i < 33; ++i) shift = over_x(shift);
  return shifts;
}();

TFR_CRC_TARGET inline uint32_t combine_by_instruction(uint32_t crc1, uint32_t crc2, uint64_t n2) {
  for (; n2; n2 &= n2 - 1) crc1 = step64(0, times(crc1, kShifts[lowest_bit(n2)]));
  return crc1 ^ crc2;
}

// Continues the value `a` with three streams of `each` words at p.
TFR_CRC_TARGET TFR_INLINE uint32_t by_three(const uint8_t* p, size_t each, uint32_t a) {
  uint32_t b = 0;
  uint32_t c = 0;
  for (size_t i = 0; i < each; ++i, p += 8) {
    a = step64(a, load<uint64_t>(p));
    b = step64(b, load<uint64_t>(p + 8 * each));
    c = step64(c, load<uint64_t>(p + 16 * each));
  }
  return step64(0, times(a, kJoin.by_two[each]) ^ times(b, kJoin.by_one[each])) ^ c;
}

TFR_CRC_TARGET inline uint32_t by_instruction(const uint8_t* p, size_t n, uint32_t crc) {
  uint32_t a = ~crc;
  if (n < 8) {
    for (; n; --n) a = step8(a, *p++);
    return ~a;
  }
  // The first n % 8 bytes are processed as the end of a word of zeros, because branches on n % 8 would be mispredicted
  // for records of varying length. The start value is combined with the first four bytes by exclusive or.
  const unsigned odd = n % 8;
  const uint64_t start = a;
  const unsigned shift = 8 * (8 - odd);  // 64 when there are none
  const uint64_t first = odd ? (load<uint64_t>(p) ^ start) << (shift & 63) : 0;
  a = step64(0, first) ^ static_cast<uint32_t>(start >> (8 * odd));
  p += odd;
  size_t words = n / 8;
  for (; words > 3 * kMaxWords; words -= 3 * kMaxWords, p += 24 * kMaxWords) a = by_three(p, kMaxWords, a);
  const size_t each = words / 3;
  if (each) {
    // One or two words may not divide by three. Both are always processed, and used only if they are there.
    const size_t rest = words % 3;
    const uint32_t one = step64(a, load<uint64_t>(p));
    a = rest > 0 ? one : a;
    const uint32_t two = step64(a, load<uint64_t>(p + 8));
    a = rest > 1 ? two : a;
    return ~by_three(p + 8 * rest, each, a);
  }
  for (; words; --words, p += 8) a = step64(a, load<uint64_t>(p));
  return ~a;
}
#endif

// ---- 512-bit carry-less multiplication, for long inputs ------------------------------------------
#if defined(TFR_X86)
#define TFR_CRC_AVX512 1
#define TFR_AVX512_TARGET TFR_TARGET("avx512f,avx512bw,avx512vl,avx512dq,vpclmulqdq,pclmul,sse4.2")

// Multiplies each 128-bit lane by x^bits. Its two halves are multiplied by x^(bits + 31) and x^(bits - 33), because the
// product of two reflected operands is too large by x^33.
constexpr uint32_t kFold[5][2] = {
    {x_to_the(128 + 31), x_to_the(128 - 33)},   {x_to_the(256 + 31), x_to_the(256 - 33)},
    {x_to_the(384 + 31), x_to_the(384 - 33)},   {x_to_the(512 + 31), x_to_the(512 - 33)},
    {x_to_the(2048 + 31), x_to_the(2048 - 33)},
};

TFR_AVX512_TARGET inline __m512i fold(__m512i value, __m512i by, __m512i next) {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, by, 0x00), _mm512_clmulepi64_epi128(value, by, 0x11),
                                   next, 0x96);
}

TFR_AVX512_TARGET inline __m512i fold_by(unsigned which) {
  return _mm512_broadcast_i64x2(_mm_set_epi64x(kFold[which][1], kFold[which][0]));
}

TFR_AVX512_TARGET inline uint32_t by_avx512(const uint8_t* p, size_t n, uint32_t crc) {
  if (n < 64) return by_instruction(p, n, crc);
  uint32_t start = ~crc;
  if ((n - 1) % 64 < 3) {  // the first vector must have at least four bytes for the start value
    start = ~by_instruction(p, 3, crc);
    p += 3;
    n -= 3;
  }
  // The first bytes are processed as the end of a vector of zeros. A masked load reads only the unmasked bytes.
  const auto odd = static_cast<unsigned>((n - 1) % 64 + 1);
  const unsigned zeros = 64 - odd;
  const __mmask64 present = ~uint64_t{0} << zeros;
  const __mmask64 first4 = uint64_t{0xF} << zeros;
  const unsigned turn = 8 * (zeros % 4);
  const uint32_t turned = turn ? start << turn | start >> (32 - turn) : start;
  __m512i a = _mm512_xor_si512(_mm512_maskz_loadu_epi8(present, p - zeros),
                               _mm512_maskz_mov_epi8(first4, _mm512_set1_epi32(static_cast<int>(turned))));
  p += odd;
  n -= odd;
  const __m512i by512 = fold_by(3);
  if (n >= 512) {  // four chains at once
    __m512i b = _mm512_loadu_si512(p);
    __m512i c = _mm512_loadu_si512(p + 64);
    __m512i d = _mm512_loadu_si512(p + 128);
    const __m512i by2048 = fold_by(4);
    for (p += 192, n -= 192; n >= 256; p += 256, n -= 256) {
      a = fold(a, by2048, _mm512_loadu_si512(p));
      b = fold(b, by2048, _mm512_loadu_si512(p + 64));
      c = fold(c, by2048, _mm512_loadu_si512(p + 128));
      d = fold(d, by2048, _mm512_loadu_si512(p + 192));
    }
    a = fold(fold(fold(a, by512, b), by512, c), by512, d);
  }
  for (; n; p += 64, n -= 64) a = fold(a, by512, _mm512_loadu_si512(p));
  // Joins the four lanes: each is moved past the lanes after it.
  const __m512i by_lane =
      _mm512_set_epi64(0, 0, kFold[0][1], kFold[0][0], kFold[1][1], kFold[1][0], kFold[2][1], kFold[2][0]);
  const __m512i moved =
      _mm512_xor_si512(_mm512_clmulepi64_epi128(a, by_lane, 0x00), _mm512_clmulepi64_epi128(a, by_lane, 0x11));
  const __m128i lane =
      _mm_xor_si128(_mm_xor_si128(_mm512_castsi512_si128(moved), _mm512_extracti64x2_epi64(moved, 1)),
                    _mm_xor_si128(_mm512_extracti64x2_epi64(moved, 2), _mm512_extracti64x2_epi64(a, 3)));
  const uint32_t half = step64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(lane)));
  return ~step64(half, static_cast<uint64_t>(_mm_extract_epi64(lane, 1)));
}
#endif

// ---- the choice of an implementation -------------------------------------------------------------

using Function = uint32_t (*)(const uint8_t* p, size_t n, uint32_t crc);

struct Implementation {
  const char* name;
  Function function;
  uint32_t (*combine)(uint32_t crc1, uint32_t crc2, uint64_t n2);
};

// The implementations that this processor can run, the fastest first. Unused entries at the end have no name.
inline const std::array<Implementation, 3>& implementations() {
  static const std::array<Implementation, 3> found = [] {
    std::array<Implementation, 3> list{};
    size_t count = 0;
#if defined(TFR_CRC_AVX512)
    if (cpu().crc && cpu().avx512) list[count++] = {"avx512", by_avx512, combine_by_instruction};
#endif
#if defined(TFR_X86)
    if (cpu().crc) list[count++] = {"sse4.2", by_instruction, combine_by_instruction};
#elif defined(TFR_ARM64)
    if (cpu().crc) list[count++] = {"armv8", by_instruction, combine_by_instruction};
#endif
    list[count] = {"table", by_table, combine<>};
    return list;
  }();
  return found;
}

inline Function best() {
  static const Function function = implementations()[0].function;
  return function;
}

}  // namespace tfr::crc32c
