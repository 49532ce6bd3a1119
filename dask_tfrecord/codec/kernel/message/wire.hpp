// protobuf's wire format (https://protobuf.dev/programming-guides/encoding): varints, tags and skipped fields.
//
// Every read function takes a position `p` and the `end` of the message. It returns the position after what it read, or
// null if the bytes are malformed. It never reads at or beyond `end`, unless its comment says so. The limits are those
// of google.protobuf: a tag has at most 5 bytes, a length at most 5, a varint at most 10 (bits above the 64th are
// dropped), and groups nest at most 100 deep. A length is at most 2^31 - 1, because a record is not longer.
//
// Every write function takes the position to write at and returns the position after what it wrote. The caller provides
// the room.
#pragma once

#include "base/loops.hpp"

namespace tfr {

enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kLen = 2, kStartGroup = 3, kEndGroup = 4, kFixed32 = 5 };

constexpr int kMaxGroupDepth = 100;

TFR_INLINE constexpr uint32_t tag_of(uint32_t field, Wire wire) {
  return field << 3 | wire;
}

// ---- reading -------------------------------------------------------------------------------------

inline const uint8_t* read_varint(const uint8_t* p, const uint8_t* end, uint64_t& value) {
  uint64_t result = 0;
  for (unsigned shift = 0; shift < 70 && p < end; shift += 7) {
    const uint64_t byte = *p++;
    result |= (byte & 0x7F) << shift;
    if (byte < 0x80) {
      value = result;
      return p;
    }
  }
  return nullptr;
}

inline const uint8_t* read_short_varint(const uint8_t* p, const uint8_t* end, uint64_t& value) {
  return read_varint(p, end - p > 5 ? p + 5 : end, value);
}

inline const uint8_t* read_tag(const uint8_t* p, const uint8_t* end, uint32_t& tag) {
  if (TFR_LIKELY(p < end && *p < 0x80)) {
    tag = *p;
    return tag >> 3 ? p + 1 : nullptr;
  }
  uint64_t value = 0;
  const uint8_t* const next = read_short_varint(p, end, value);
  tag = static_cast<uint32_t>(value);
  return next && value <= UINT32_MAX && tag >> 3 ? next : nullptr;
}

// Reads a length and sets `span` to this many bytes after it, which must be inside the message.
TFR_INLINE const uint8_t* read_span(const uint8_t* p, const uint8_t* end, Span& span) {
  uint64_t n = 0;
  if (TFR_LIKELY(p < end && *p < 0x80)) {
    n = *p++;
  } else if (TFR_LIKELY(end - p >= 2 && p[1] < 0x80)) {
    n = (p[0] & 0x7Fu) | static_cast<uint64_t>(p[1]) << 7;
    p += 2;
  } else {
    p = read_short_varint(p, end, n);
    if (!p) return nullptr;
  }
  if (n > static_cast<size_t>(end - p)) return nullptr;
  span = {p, p + n};
  return span.end;
}

// Reads a field of wire type LEN that has this number, below 16. Returns null for any other field.
TFR_INLINE const uint8_t* read_field(const uint8_t* p, const uint8_t* end, uint32_t field, Span& content) {
  return p < end && *p == tag_of(field, kLen) ? read_span(p + 1, end, content) : nullptr;
}

// Returns true, and sets `content`, if the message is exactly one such field.
TFR_INLINE bool is_one_field(Span message, uint32_t field, Span& content) {
  const uint8_t* const end = read_field(message.begin, message.end, field, content);
  return end && end == message.end;
}

// Skips the value of a field with this tag. Nested groups are skipped in a loop, without recursion.
inline const uint8_t* skip_value(const uint8_t* p, const uint8_t* end, uint32_t tag) {
  uint32_t open[kMaxGroupDepth];
  int depth = 0;
  for (;;) {
    uint64_t value = 0;
    Span span;
    switch (tag & 7) {
      case kVarint:
        p = read_varint(p, end, value);
        break;
      case kFixed64:
        p = end - p >= 8 ? p + 8 : nullptr;
        break;
      case kLen:
        p = read_span(p, end, span);
        break;
      case kFixed32:
        p = end - p >= 4 ? p + 4 : nullptr;
        break;
      case kStartGroup:
        if (depth == kMaxGroupDepth) return nullptr;
        open[depth++] = tag >> 3;
        break;
      case kEndGroup:
        if (!depth || open[--depth] != tag >> 3) return nullptr;
        break;
      default:
        return nullptr;
    }
    if (!p || !depth) return p;
    p = read_tag(p, end, tag);
    if (!p) return nullptr;
  }
}

inline constexpr auto kAnyField = [](uint32_t, Span) { return true; };

// Calls on_len(tag, content) for each field of wire type LEN, and on_other(tag, value) for each other field.
// Both return false to stop. Returns false if it was stopped or the message is malformed.
template <class OnLen, class OnOther = decltype(kAnyField)&>
bool for_each_field(Span message, OnLen&& on_len, OnOther&& on_other = kAnyField) {
  const uint8_t* p = message.begin;
  while (p < message.end) {
    uint32_t tag = 0;
    p = read_tag(p, message.end, tag);
    if (!p) return false;
    if ((tag & 7) == kLen) {
      Span span;
      p = read_span(p, message.end, span);
      if (!p || !on_len(tag, span)) return false;
    } else {
      const uint8_t* const value = p;
      p = skip_value(p, message.end, tag);
      if (!p || !on_other(tag, Span{value, p})) return false;
    }
  }
  return true;
}

// The continuation bits in the first eight bytes of a varint, by the size of the varint.
inline constexpr uint64_t kContinues[11] = {
    0, 0, 0x80, 0x8080, 0x808080, 0x80808080, 0x8080808080, 0x808080808080, 0x80808080808080, kContinue, kContinue,
};

// Reads a varint that has exactly n bytes, 1 to 10. It reads 16 bytes from p. Returns false if the varint has another
// size.
template <class Loop>
TFR_INLINE bool read_exact_varint(const uint8_t* p, size_t n, uint64_t& value) {
  // Masks for the bytes of the varint among the first eight bytes.
  static constexpr uint64_t kOwn[9] = {
      0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF, 0xFFFFFFFFFF, 0xFFFFFFFFFFFF, 0xFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF,
  };
  const uint64_t x = load<uint64_t>(p);
  if (TFR_LIKELY(n <= 8)) {
    const uint64_t own = x & kOwn[n];
    value = Loop::join(own & ~kContinue);
    return (own & kContinue) == kContinues[n];
  }
  if ((x & kContinue) != kContinue) return false;
  value = Loop::join(x & ~kContinue) | static_cast<uint64_t>(p[8] & 0x7F) << 56;
  if (n == 9) return p[8] < 0x80;
  value |= static_cast<uint64_t>(p[9]) << 63;
  return p[8] >= 0x80 && p[9] < 0x80;
}

// ---- writing -------------------------------------------------------------------------------------

TFR_INLINE unsigned varint_size(uint64_t value) {
  return (highest_bit(value | 1) * 9 + 73) >> 6;
}

TFR_INLINE uint8_t* write_varint(uint8_t* p, uint64_t value) {
  while (value >= 0x80) {
    *p++ = static_cast<uint8_t>(value | 0x80);
    value >>= 7;
  }
  *p++ = static_cast<uint8_t>(value);
  return p;
}

// Writes the ninth and tenth byte of a varint that has more than eight bytes.
TFR_INLINE void write_varint_end(uint8_t* p, uint64_t value, unsigned size) {
  p[8] = static_cast<uint8_t>((value >> 56 & 0x7F) | (size == 10 ? 0x80 : 0));
  p[9] = static_cast<uint8_t>(value >> 63);
}

// Writes a varint whose size is varint_size(value). Overwrites up to 10 bytes from p.
TFR_INLINE void write_sized_varint(uint8_t* p, uint64_t value, unsigned size) {
  store<uint64_t>(p, Portable::spread(value) | kContinues[size]);
  if (size > 8) write_varint_end(p, value, size);
}

}  // namespace tfr
