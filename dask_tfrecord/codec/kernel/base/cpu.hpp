// The instructions of this processor beyond the baseline that the module is built for, detected at run time.
#pragma once

#if defined(TFR_PORTABLE)
// Use the code for other processors, so that it can be tested on these.
#elif defined(__x86_64__) || defined(_M_X64)
#define TFR_X86 1
#include <immintrin.h>
#elif defined(__aarch64__) || defined(_M_ARM64)
#define TFR_ARM64 1
#if defined(_MSC_VER)
#include <arm64_neon.h>
#else
#include <arm_acle.h>
#include <arm_neon.h>
#endif
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#endif

// Allows one function to use more instructions than the rest of the module. MSVC always allows them.
#if defined(_MSC_VER) && !defined(__clang__)
#define TFR_TARGET(features)
#else
#define TFR_TARGET(features) __attribute__((target(features)))
#endif

namespace tfr {

struct Cpu {
  bool crc = false;     // CRC-32C and carry-less multiplication
  bool avx512 = false;  // with 512-bit carry-less multiplication
  bool bmi2 = false;    // with a fast bit deposit and extract
};

#if defined(TFR_X86) && defined(_MSC_VER) && !defined(__clang__)
inline Cpu find_cpu() {
  Cpu found;
  int r[4];
  __cpuid(r, 1);
  found.crc = (r[2] >> 20 & 1) && (r[2] >> 1 & 1);
  const bool osxsave = r[2] >> 27 & 1;
  __cpuidex(r, 7, 0);
  // The bits of XCR0 show whether the operating system saves the wide registers.
  const bool wide = (r[1] >> 16 & 1) && (r[1] >> 17 & 1) && (r[1] >> 30 & 1) && (r[1] >> 31 & 1);
  found.avx512 = osxsave && (_xgetbv(0) & 0xE6) == 0xE6 && wide && (r[2] >> 10 & 1);
  return found;  // bmi2 stays off, because no flag distinguishes the slow processors
}
#elif defined(TFR_X86)
inline Cpu find_cpu() {
  Cpu found;
  __builtin_cpu_init();
  found.crc = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  found.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("vpclmulqdq");
  // The first two generations of Zen implement bit deposit in slow microcode.
  found.bmi2 = __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx2") && !__builtin_cpu_is("znver1") &&
               !__builtin_cpu_is("znver2");
  return found;
}
#elif defined(TFR_ARM64) && defined(__linux__)
inline Cpu find_cpu() {
  Cpu found;
  const unsigned long has = getauxval(AT_HWCAP);
  found.crc = (has & HWCAP_CRC32) && (has & HWCAP_PMULL);
  return found;
}
#elif defined(TFR_ARM64)
inline Cpu find_cpu() {
  Cpu found;
  found.crc = true;  // every 64-bit ARM that runs macOS or Windows has it
  return found;
}
#else
inline Cpu find_cpu() {
  return {};
}
#endif

inline const Cpu& cpu() {
  static const Cpu found = find_cpu();
  return found;
}

}  // namespace tfr
