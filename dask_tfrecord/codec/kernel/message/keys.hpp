// The map keys that the records have had so far, and the bytes that their entries usually start with.
//
// Writers repeat the same keys in the same order and shape. The walker therefore compares the start of an entry with
// the expected bytes of the key that came next in the last record.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "base/cpu.hpp"
#include "message/feature.hpp"

namespace tfr {

// A map key and the tag of its value on the wire: 0A <length> <name> 12.
inline std::string key_on_wire(const std::string& name) {
  uint8_t length[10];
  const uint8_t* const end = write_varint(length, name.size());
  std::string text = "\x0A";
  text.append(reinterpret_cast<const char*>(length), static_cast<size_t>(end - length));
  return text + name + "\x12";
}

// The bytes of an entry before the n bytes of its values, for n = 0, if each of the lengths is one byte:
//   0A <entry> 0A <name length> <name> 12 <feature> <kind> <list> 0A <chunk>
// If the content is not known, the bytes end with <feature>. `lengths` is 0xFF where n is added to the byte.
struct EntryHead {
  std::string bytes;
  std::string lengths;

  // `text` is what key_on_wire returns.
  EntryHead(const std::string& text, Content content) {
    const bool known = content != Content::kUnset;
    bytes = {static_cast<char>(tag_of(1, kLen)), static_cast<char>(text.size() + (known ? 5 : 1))};
    bytes += text;
    lengths.resize(bytes.size());
    lengths[1] = '\xFF';
    if (known) {
      bytes += {4, static_cast<char>(tag_of(static_cast<uint32_t>(content), kLen)), 2, tag_of(1, kLen)};
      lengths += {'\xFF', 0, '\xFF', 0};
    }
    bytes += '\0';
    lengths += '\xFF';
  }
};

// Slots that are not columns.
constexpr int kUnwanted = -1;  // the value of this key is skipped
constexpr int kUnknown = -2;   // this key should not be there; the walker asks for its slot again each time

// How much of an entry is known from its key.
enum class EntryShape : uint8_t {
  kUnknown,   // nothing
  kUnwanted,  // the second byte is the entry's size
  kFloat,     // a FloatList of one value: all bytes except the last four
  kChunk,     // all bytes except five lengths, each of which depends on the number n of bytes in the chunk
};

// A map key and the bytes that its entry is expected to start with:
//   0A <entry> 0A <name length> <name> 12 <feature> <kind> <list> 0A <chunk>, followed by n bytes of values.
// Each of the five lengths is one byte. For an unwanted key only the bytes up to 12 are compared.
// The loop over records uses only the first cache line of a key.
struct alignas(64) Key {
  uint64_t words[4] = {~uint64_t{0}, 0, 0, 0};  // the first bytes; the default matches no entry
  uint64_t tail = 0;                            // <feature> <kind> <list> 0A <chunk> for n = 0
  uint32_t compared = 1;                        // a bit for each of the first bytes: set if the byte is compared
  uint32_t next = 0;                            // the key that followed when this key was last read field by field
  int32_t slot = kUnwanted;                     // the sink's number for the key
  EntryShape shape = EntryShape::kUnknown;
  uint8_t head = 0;                             // the number of bytes before the values
  uint8_t entry = 0;                            // the length <entry> for n = 0
  bool longer = false;                          // the head is longer than `words`: compare the key's text too
  bool in_order = false;                        // `next` is the index of this key + 1
  uint64_t masks[4] = {~uint64_t{0}, 0, 0, 0};  // `compared` with a byte instead of a bit
};

// The two steps of the hot loop that have a faster version for some processors. `matches` reads 32 bytes from p.
struct PortableLoop {
  TFR_INLINE static bool matches(const Key& key, const uint8_t* p) {
    uint64_t differs = 0;
    for (int i = 0; i < 4; ++i) differs |= (load<uint64_t>(p + 8 * i) ^ key.words[i]) & key.masks[i];
    return !differs;
  }
  TFR_INLINE static uint64_t join(uint64_t groups) { return join_groups(groups); }
};

#if defined(TFR_X86)
#define TFR_AVX2_TARGET TFR_TARGET("avx2,bmi,bmi2,lzcnt")

struct Avx2Loop {
  TFR_AVX2_TARGET static inline bool matches(const Key& key, const uint8_t* p) {
    const __m256i same = _mm256_cmpeq_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                                           _mm256_load_si256(reinterpret_cast<const __m256i*>(key.words)));
    return !(~static_cast<uint32_t>(_mm256_movemask_epi8(same)) & key.compared);
  }
  TFR_AVX2_TARGET static inline uint64_t join(uint64_t groups) { return _pext_u64(groups, ~kContinue); }
};
#endif

// The keys of one map, by index. Pointers to keys are valid until the next add().
class KeyTable {
 public:
  KeyTable() : keys_(1), texts_(1) {}  // key 0 stands for the start of a record

  const Key* keys() const { return keys_.data(); }
  const Key& operator[](uint32_t index) const { return keys_[index]; }
  const std::string& text(uint32_t index) const { return texts_[index]; }
  // Notes that key `next` followed key `index`.
  void follow(uint32_t index, uint32_t next) {
    keys_[index].next = next;
    keys_[index].in_order = next == index + 1;
  }

  // Returns the index of a name, or 0 if the table does not have it.
  uint32_t find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? 0 : found->second;
  }

  // Adds a name that the table does not have, and returns its index.
  uint32_t add(const std::string& name, int slot) {
    const auto index = static_cast<uint32_t>(keys_.size());
    keys_.emplace_back();
    keys_[index].slot = slot;
    texts_.push_back(key_on_wire(name));
    by_name_.emplace(name, index);
    return index;
  }

  // Sets the expected shape of the key's entry. `one_float`: a FloatList of one value.
  void expect(uint32_t index, Content content, bool one_float = false) {
    Key& key = keys_[index];
    const std::string& text = texts_[index];
    const bool wanted = key.slot >= 0;
    if (text.size() > kLongest || (wanted && content == Content::kUnset)) return;
    auto [head, lengths] = EntryHead(text, wanted ? content : Content::kUnset);
    if (!wanted) head.pop_back();
    key.head = static_cast<uint8_t>(head.size());
    key.longer = head.size() > sizeof key.words;
    one_float &= !key.longer;
    key.shape = !wanted ? EntryShape::kUnwanted : one_float ? EntryShape::kFloat : EntryShape::kChunk;
    key.entry = static_cast<uint8_t>(head[1]);
    if (wanted) key.tail = load<uint64_t>((head.substr(head.size() - 5) + std::string(3, '\0')).data());
    std::string mask(head.size(), '\xFF');
    for (size_t i = 0; i < head.size(); ++i) {
      if (!lengths[i]) continue;
      if (one_float) head[i] = static_cast<char>(head[i] + 4);
      if (!one_float) mask[i] = 0;
    }
    head.resize(sizeof key.words);
    mask.resize(sizeof key.masks);
    std::memcpy(key.words, head.data(), sizeof key.words);
    std::memcpy(key.masks, mask.data(), sizeof key.masks);
    key.compared = 0;
    for (size_t i = 0; i < mask.size(); ++i) key.compared |= mask[i] ? 1u << i : 0;
  }

  // True if no more unwanted keys should be added. Records with ever new names would fill the memory.
  bool full() const { return keys_.size() > kMaxUnwanted; }

  // Only keys whose text is at most this long have an expected shape. Any limit is correct for which the entry's
  // length fits one byte. The limit determines how far before the end of the memory the fast path stops (kReach).
  static constexpr size_t kLongest = 56;
  static constexpr size_t kHead = 2 + kLongest + 5;  // the number of bytes before the values in the longest entry

 private:
  static constexpr size_t kMaxUnwanted = 4096;

  std::vector<Key> keys_;
  std::vector<std::string> texts_;  // 0A <name length> <name> 12
  std::unordered_map<std::string, uint32_t> by_name_;
};

}  // namespace tfr
