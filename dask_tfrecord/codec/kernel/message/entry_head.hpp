// The head of a map entry: all bytes before its values. The decoders compare it, and the encoder writes it.
//
//   0A <entry> 0A <name length> <name> 12 <feature> <kind> <list> 0A <chunk>, followed by n bytes of values
#pragma once

#include <array>
#include <string>

#include "base/loops.hpp"
#include "message/feature.hpp"

namespace tfr {

// A map key and the tag of its value on the wire: 0A <name length> <name> 12.
inline std::string key_on_wire(const std::string& name) {
  uint8_t length[10];
  const uint8_t* const end = write_varint(length, name.size());
  std::string text = "\x0A";
  text.append(reinterpret_cast<const char*>(length), static_cast<size_t>(end - length));
  return text + name + "\x12";
}

constexpr size_t kHeadRoom = 64;  // more than the bytes of the longest head

// The bytes of a head, by position.
struct HeadMasks {
  uint8_t constant[kHeadRoom];  // 0xFF where a byte does not depend on n
  uint8_t lengths[kHeadRoom];   // 0xFF where n is added
  uint8_t all[kHeadRoom];       // 0xFF for all bytes of the head
};

// Which bytes of a head depend on n: all lengths but <name length>, or only <entry> and <feature>, after which the head
// ends, or none, because n is the same in all entries.
enum HeadForm : size_t { kWhole, kUpToFeature, kFixed };

// The masks of all heads, by form and size.
inline constexpr auto kHeadMasks = [] {
  std::array<std::array<HeadMasks, kHeadRoom>, 3> masks{};
  for (size_t size = 1; size < kHeadRoom; ++size)
    for (size_t i = 0; i < size; ++i) {
      const size_t left = size - i;
      const bool is_outer = i == 1 || left == 1;
      const bool is_length[] = {is_outer || left == 3 || left == 5, is_outer, false};
      for (const HeadForm form : {kWhole, kUpToFeature, kFixed})
        (is_length[form] ? masks[form][size].lengths : masks[form][size].constant)[i] = masks[form][size].all[i] = 0xFF;
    }
  return masks;
}();

// The head of the entries of one key, if each length has one byte. The last byte of the head is n, and each other
// length is a constant plus n.
struct EntryHead {
  static constexpr size_t kLongestText = 56;

  const HeadMasks* masks = &kHeadMasks[kFixed][1];
  int32_t most = -1;  // the greatest n for which the lengths have one byte
  uint32_t size = 1;
  alignas(16) uint8_t bytes[kHeadRoom] = {0xFF};  // for n = 0; the default is the head of no entry

  EntryHead() = default;
  // `text` is what key_on_wire returns. A key with a longer text than kLongestText has the default head. If the content
  // is not known, the head ends with <feature>.
  EntryHead(const std::string& text, Content content) {
    if (text.size() > kLongestText) return;
    const bool known = content != Content::kUnset;
    std::string head = {static_cast<char>(tag_of(1, kLen)), static_cast<char>(text.size() + (known ? 5 : 1))};
    head += text;
    if (known) head += {4, static_cast<char>(tag_of(static_cast<uint32_t>(content), kLen)), 2, tag_of(1, kLen)};
    size = static_cast<uint32_t>(head.size()) + 1;
    most = 0x7F - head[1];
    masks = &kHeadMasks[known ? kWhole : kUpToFeature][size];
    head.resize(kHeadRoom);
    std::memcpy(bytes, head.data(), kHeadRoom);
  }

  // Returns the head of entries with exactly n bytes of values, to which nothing can be added.
  EntryHead fixed(uint8_t n) const {
    EntryHead head = *this;
    if (!fits(n)) return head;
    for (size_t i = 0; i < size; ++i) head.bytes[i] = static_cast<uint8_t>(bytes[i] + (masks->lengths[i] & n));
    head.masks = &kHeadMasks[kFixed][size];
    head.most = 0;
    return head;
  }

  TFR_INLINE bool fits(uint64_t n) const { return static_cast<int64_t>(n) <= most; }

  // Returns true if an entry with this head starts at p, whatever its lengths are. Reads kHeadRoom bytes.
  template <class Loop>
  TFR_INLINE bool matches(const uint8_t* p) const {
    return Loop::same(bytes, masks->constant, p) &&
           (TFR_LIKELY(size <= 32) || Loop::same(bytes + 32, masks->constant + 32, p + 32));
  }
  // Return true if the entry at p, which has this head, has the <entry> and the other lengths of n bytes of values. The
  // content must be known for the other lengths.
  TFR_INLINE bool has_entry_length(const uint8_t* p, uint64_t n) const { return p[1] == bytes[1] + n && p[1] < 0x80; }
  TFR_INLINE bool has_other_lengths(const uint8_t* p, uint64_t n) const {
    return load<uint64_t>(p + size - 8) == tail(n);
  }
  // Returns true if an entry with this head and n bytes of values starts at p. Reads kHeadRoom bytes.
  template <class Loop>
  TFR_INLINE bool matches(const uint8_t* p, uint64_t n) const {
    return fits(n) && Loop::same(bytes, masks->all, masks->lengths, p, n) &&
           (TFR_LIKELY(size <= 32) || Loop::same(bytes + 32, masks->all + 32, masks->lengths + 32, p + 32, n));
  }

  // Writes the head for n = 0. Overwrites up to 15 bytes beyond the head.
  TFR_INLINE uint8_t* write(uint8_t* p) const {
    for (size_t at = 0; at < kHeadRoom && at < size; at += 16) store<Block16>(p + at, load<Block16>(bytes + at));
    return p + size;
  }
  // Writes the head for n bytes of values. The content is known.
  TFR_INLINE uint8_t* write(uint8_t* p, uint64_t n) const {
    write(p);
    p[1] = static_cast<uint8_t>(bytes[1] + n);
    store<uint64_t>(p + size - 8, tail(n));
    return p + size;
  }

 private:
  // The last eight bytes of the head, if the content is known.
  TFR_INLINE uint64_t tail(uint64_t n) const {
    constexpr uint64_t kPerByte = 0x0100010001000000;  // adds one to <feature>, <list> and <chunk>
    return load<uint64_t>(bytes + size - 8) + n * kPerByte;
  }
};

}  // namespace tfr
