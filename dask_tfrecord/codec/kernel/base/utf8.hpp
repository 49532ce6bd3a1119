// Checks of text: ASCII, valid UTF-8, and control characters. All functions read exactly the n bytes at p.
#pragma once

#include "base/bytes.hpp"

namespace tfr {

inline bool is_ascii(const uint8_t* p, size_t n) {
  constexpr uint64_t kHigh = 0x8080808080808080;
  if (n >= 8 && n <= 16) return !((load<uint64_t>(p) | load<uint64_t>(p + n - 8)) & kHigh);
  if (n >= 4 && n < 8) return !((load<uint32_t>(p) | load<uint32_t>(p + n - 4)) & static_cast<uint32_t>(kHigh));
  uint64_t any = 0;
  size_t i = 0;
  for (; i + 32 <= n; i += 32)
    any |= load<uint64_t>(p + i) | load<uint64_t>(p + i + 8) | load<uint64_t>(p + i + 16) | load<uint64_t>(p + i + 24);
  for (; i + 8 <= n; i += 8) any |= load<uint64_t>(p + i);
  uint8_t rest = 0;
  for (; i < n; ++i) rest |= p[i];
  return !(any & kHigh) && rest < 0x80;
}

// Valid UTF-8 (Unicode 15, table 3-7) has no overlong forms, no surrogates and nothing above U+10FFFF.
inline bool is_utf8(const uint8_t* p, size_t n) {
  const uint8_t* const end = p + n;
  const auto continues = [](uint8_t byte) { return (byte & 0xC0) == 0x80; };
  while (p < end) {
    if (end - p >= 8 && !(load<uint64_t>(p) & 0x8080808080808080u)) {
      p += 8;
      continue;
    }
    const uint8_t lead = *p;
    if (lead < 0x80) {
      ++p;
    } else if (lead < 0xE0) {
      if (lead < 0xC2 || end - p < 2 || !continues(p[1])) return false;
      p += 2;
    } else if (lead < 0xF0) {
      if (end - p < 3 || !continues(p[1]) || !continues(p[2])) return false;
      if ((lead == 0xE0 && p[1] < 0xA0) || (lead == 0xED && p[1] > 0x9F)) return false;
      p += 3;
    } else {
      if (lead > 0xF4 || end - p < 4 || !continues(p[1]) || !continues(p[2]) || !continues(p[3])) return false;
      if ((lead == 0xF0 && p[1] < 0x90) || (lead == 0xF4 && p[1] > 0x8F)) return false;
      p += 4;
    }
  }
  return true;
}

// Returns true if any byte is a control character other than tab, newline and carriage return.
inline bool has_control(const uint8_t* p, size_t n) {
  constexpr uint64_t kEach = 0x0101010101010101;
  constexpr uint64_t kHigh = 0x80 * kEach;
  const auto is_control = [](uint8_t byte) {
    return (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7F;
  };
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint64_t word = load<uint64_t>(p + i);
    const uint64_t deleted = word ^ 0x7F * kEach;
    // Finds bytes below 0x20 and bytes that are 0x7F. Words that have such bytes are checked byte by byte.
    const uint64_t low = (word - 0x20 * kEach) & ~word & kHigh;
    if (!(low | ((deleted - kEach) & ~deleted & kHigh))) continue;
    for (size_t k = 0; k < 8; ++k)
      if (is_control(p[i + k])) return true;
  }
  for (; i < n; ++i)
    if (is_control(p[i])) return true;
  return false;
}

// Returns true if bytes of unknown kind are probably text. Packed numbers are often valid UTF-8, but usually contain
// control characters.
inline bool is_text(const uint8_t* p, size_t n) {
  return !has_control(p, n) && (is_ascii(p, n) || is_utf8(p, n));
}

}  // namespace tfr
