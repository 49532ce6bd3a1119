// Walks the maps of an Example or SequenceExample and says which feature lies where.
//
// The maps are (tensorflow/core/example/{example,feature}.proto):
//   Example         { Features features = 1; }
//   SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
//   Features        { map<string, Feature> feature = 1; }
//   FeatureLists    { map<string, FeatureList> feature_list = 1; }
// Writers repeat the same keys in the same order and shape, so the walker compares an entry's first bytes
// with those of the key that came next in the last record; only when that fails it reads field by field.
#pragma once

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "cpu.hpp"
#include "spec.hpp"
#include "utf8.hpp"
#include "wire.hpp"

namespace tfr {

inline constexpr const char* kMalformed = "malformed protobuf message";
inline constexpr const char* kNotAnExample = "the record is a protobuf message, but not an Example";

// Why a message cannot be read. The reason is null while all is well.
struct Fault {
  const char* reason = nullptr;
  int column = -1;
  std::string found;

  bool operator()(const char* why) {
    reason = why;
    return false;
  }
};

enum class Content : uint8_t { kUnset = 0, kBytesList = 1, kFloatList = 2, kInt64List = 3 };

inline Content content_of(Kind kind) {
  return kind == Kind::kInt64 ? Content::kInt64List : kind == Kind::kFloat ? Content::kFloatList : Content::kBytesList;
}

// A map key and the tag of its value as they look on the wire: 0A <length> <name> 12.
inline std::string key_on_wire(const std::string& name) {
  uint8_t length[10];
  const uint8_t* const end = write_varint(length, name.size());
  std::string text = "\x0A";
  text.append(reinterpret_cast<const char*>(length), static_cast<size_t>(end - length));
  return text + name + "\x12";
}

inline bool has_control_characters(const std::string& name) {
  return std::any_of(name.begin(), name.end(), [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7F; });
}

constexpr int kUnwanted = -1;  // a map key whose value is skipped
constexpr int kStranger = -2;  // one that should not be there; asked for anew each time

// How much of an entry follows from its key.
enum class Entry : uint8_t {
  kUnknown,   // nothing yet
  kUnwanted,  // its size is in its second byte
  kFloat,     // a FloatList of one value: every byte but the last four
  kChunk,     // all but the number n of bytes in the chunk, which five lengths tell
};

// A map key that has been met, and the bytes that its entry usually begins with:
//   0A <entry> 0A <name length> <name> 12 <feature> <kind> <list> 0A <chunk> then n bytes of values
// where each of the five lengths is one byte. Of a key that nobody wants only the bytes up to 12 count.
// Its first cache line is all that the loop over records needs of it.
struct alignas(64) Key {
  uint64_t words[4] = {~uint64_t{0}, 0, 0, 0};  // the first bytes; matches nothing until something is expected
  uint64_t tail = 0;                            // <feature> <kind> <list> 0A <chunk> for n = 0
  uint32_t compared = 1;                        // which of the first bytes are compared, a bit for each
  uint32_t next = 0;                            // the key that followed it when it was last read field by field
  int32_t slot = kUnwanted;                     // what the sink calls it
  Entry kind = Entry::kUnknown;
  uint8_t head = 0;                             // how many bytes come before the values
  uint8_t entry = 0;                            // the length <entry> for n = 0
  bool longer = false;                          // than the words: the rest is compared with the key's text
  bool in_order = false;                        // the next key is the one with the next index
  uint64_t masks[4] = {~uint64_t{0}, 0, 0, 0};  // what `compared` says, a byte for each
};

// How the hot loop is done with the baseline's instructions, and how with AVX2 and BMI2.
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

class KeyTable {
 public:
  KeyTable() : keys_(1), texts_(1) {}  // key 0 stands for the start of a record

  const Key* keys() const { return keys_.data(); }
  const Key& operator[](uint32_t index) const { return keys_[index]; }
  const std::string& text(uint32_t index) const { return texts_[index]; }
  void follow(uint32_t index, uint32_t next) {
    keys_[index].next = next;
    keys_[index].in_order = next == index + 1;
  }

  // The index of a name, or 0.
  uint32_t find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? 0 : found->second;
  }

  // The index of a new name.
  uint32_t add(const std::string& name, int slot) {
    const auto index = static_cast<uint32_t>(keys_.size());
    keys_.emplace_back();
    keys_[index].slot = slot;
    texts_.push_back(key_on_wire(name));
    by_name_.emplace(name, index);
    return index;
  }

  // Sets what the key's entry is expected to be.
  void expect(uint32_t index, Content content, bool one_float = false) {
    Key& key = keys_[index];
    const std::string& text = texts_[index];
    if (text.size() > kLongest) return;
    const bool wanted = key.slot >= 0;
    const char n = one_float ? 4 : 0;
    key.entry = static_cast<uint8_t>(text.size() + 5);
    std::string head{static_cast<char>(tag_of(1, kLen)), static_cast<char>(key.entry + n)};
    head += text;
    std::string mask(head.size(), '\xFF');
    if (!one_float) mask[1] = 0;
    if (wanted) {
      const std::string tail{static_cast<char>(4 + n), static_cast<char>(tag_of(static_cast<uint32_t>(content), kLen)),
                             static_cast<char>(2 + n), static_cast<char>(tag_of(1, kLen)), n};
      key.tail = load<uint64_t>((tail + std::string(3, '\0')).data());
      head += tail;
      mask += one_float ? std::string(5, '\xFF') : std::string{0, '\xFF', 0, '\xFF', 0};
    }
    key.kind = !wanted                                        ? Entry::kUnwanted
               : one_float && head.size() <= sizeof key.words ? Entry::kFloat
                                                              : Entry::kChunk;
    key.head = static_cast<uint8_t>(head.size());
    key.longer = head.size() > sizeof key.words;
    if (key.longer && one_float) return expect(index, content);
    head.resize(sizeof key.words);
    mask.resize(sizeof key.masks);
    std::memcpy(key.words, head.data(), sizeof key.words);
    std::memcpy(key.masks, mask.data(), sizeof key.masks);
    key.compared = 0;
    for (size_t i = 0; i < mask.size(); ++i) key.compared |= mask[i] ? 1u << i : 0;
  }

  bool full() const { return keys_.size() > kMaxUnwanted; }

  // The longest text of a key that is expected. Any limit is right that leaves the entry's length one byte: it only
  // sets how far before the end of the memory the fast path stops (kReach).
  static constexpr size_t kLongest = 56;
  static constexpr size_t kHead = 2 + kLongest + 5;  // what comes before the values in the longest entry

 private:
  static constexpr size_t kMaxUnwanted = 4096;  // names nobody wants are remembered up to here

  std::vector<Key> keys_;
  std::vector<std::string> texts_;  // 0A <name length> <name> 12
  std::unordered_map<std::string, uint32_t> by_name_;
};

// A sink has
//   int slot_of(const std::string& name)     a number for the name, or kUnwanted, or kStranger
//   Content content_of(int slot)             the kind its next feature is expected to have
//   bool one_float(int slot)                 whether that feature is expected to be one float
//   bool usual<Loop>(Cursor&, int slot, Span chunk)    the chunk of a feature that is one list of the expected kind
//       in one chunk; at least 16 bytes after the chunk's begin may be read. False: nothing was done
//   bool usual_float(Cursor&, int slot, const uint8_t*)    the same for one float
//   Cursor cursor(), void done(const Cursor&)    what usual() changes, in one place so that it stays in registers
//   bool value(int slot, Span body, const uint8_t* limit, Fault&)    any body of a map value; bytes up to
//       limit may be read though they are not the body's
//   bool stranger(const std::string& name, Span body, Fault&)    the same for a stranger's
template <class Sink>
class MapWalker {
 public:
  explicit MapWalker(Sink& sink) : sink_(sink) {}

  // All entries of one Features or FeatureLists message.
  bool walk(Span message, const uint8_t* limit, Fault& fault) {
    const uint8_t* p = message.begin;
    uint32_t previous = 0;
    while (p < message.end) {
      p = walk_usual(p, message.end, limit, previous);
      if (p == message.end) break;
      uint32_t tag = 0;
      Span entry;
      p = read_tag(p, message.end, tag);
      if (!p) return fault(kMalformed);
      p = tag == tag_of(1, kLen) ? read_span(p, message.end, entry) : skip_value(p, message.end, tag);
      if (!p) return fault(kMalformed);
      if (tag == tag_of(1, kLen) && !read_long(entry, limit, previous, fault) &&
          (fault.reason || !read_entry(entry, previous, fault)))
        return false;
    }
    return true;
  }

 private:
  // Bytes that may be read from an entry's begin on: the longest head, and 16 bytes of values.
  static constexpr ptrdiff_t kReach = KeyTable::kHead + 16;
  static constexpr int kTries = 4;  // so many absent features are stepped over

  // Entries that begin as one of the keys that may come next, up to the first that does not. Returns the end of the
  // last one, which is beyond `end` if that entry goes on there: then read_tag finds nothing, and refuses it.
  template <class Loop>
  TFR_INLINE const uint8_t* walk_usual_by(const uint8_t* p, const uint8_t* end, const uint8_t* limit,
                                          uint32_t& previous) {
    const Key* const keys = table_.keys();
    // Before it there are kReach bytes.
    const uint8_t* const stop = std::min(end, limit - std::min(limit - p, kReach - 1));
    auto cursor = sink_.cursor();
    uint32_t last = previous;
    while (p < stop) {
      // A branch, and not what `next` says anyhow: then nothing waits for that to be loaded.
      uint32_t index = TFR_LIKELY(keys[last].in_order) ? last + 1 : keys[last].next;
      if (!TFR_LIKELY(Loop::matches(keys[index], p)) && !(index = find_next(index, p))) break;
      const Key& key = keys[index];
      if (key.longer && !matches_text(index, p)) break;
      const uint8_t* const values = p + key.head;
      const uint8_t* next;
      if (key.kind == Entry::kFloat) {
        next = values + 4;
        if (!sink_.usual_float(cursor, key.slot, values)) break;
      } else if (key.kind == Entry::kChunk) {
        // The other four lengths follow from the first.
        constexpr uint64_t kTail = 0xFFFFFFFFFF;
        constexpr uint64_t kPerByte = 0x0100010001;
        const size_t n = values[-1];
        next = values + n;
        if ((load<uint64_t>(values - 5) ^ (key.tail + n * kPerByte)) & kTail) break;
        // Up to `end`, and so inside the memory: the sink reads the whole chunk.
        if (p[1] != key.entry + n || p[1] >= 0x80 || next > end ||
            !sink_.template usual<Loop>(cursor, key.slot, {values, next}))
          break;
      } else {
        // <feature> comes next, and with it the entry must end.
        next = p + 2 + p[1];
        if (p[1] >= 0x80 || next != values + 1 + *values) break;
      }
      last = index;
      p = next;
    }
    sink_.done(cursor);
    previous = last;
    return p;
  }

#if defined(TFR_X86)
  TFR_AVX2_TARGET TFR_NOINLINE const uint8_t* walk_usual_avx2(const uint8_t* p, const uint8_t* end,
                                                              const uint8_t* limit, uint32_t& previous) {
    return walk_usual_by<Avx2Loop>(p, end, limit, previous);
  }
#endif
  TFR_NOINLINE const uint8_t* walk_usual(const uint8_t* p, const uint8_t* end, const uint8_t* limit,
                                         uint32_t& previous) {
#if defined(TFR_X86)
    if (cpu().bmi2) return walk_usual_avx2(p, end, limit, previous);
#endif
    return walk_usual_by<PortableLoop>(p, end, limit, previous);
  }

  bool matches_text(uint32_t index, const uint8_t* p) const {
    return !std::memcmp(p + 2, table_.text(index).data(), table_.text(index).size());
  }
  // The key of the entry at p among those that came after key `index`, or 0.
  TFR_NOINLINE uint32_t find_next(uint32_t index, const uint8_t* p) const {
    for (int tries = 1; tries < kTries; ++tries) {
      index = table_[index].next;
      if (PortableLoop::matches(table_[index], p)) return index;
    }
    return 0;
  }

  // An entry `0A <name length> <name> 12 <value>`, the value anything. False without a fault: it is none.
  TFR_INLINE bool read_long(Span entry, const uint8_t* limit, uint32_t& previous, Fault& fault) {
    uint32_t index = table_[previous].next;
    for (int tries = 0; tries < kTries; ++tries) {
      const std::string& text = table_.text(index);
      if (index && entry.size() > text.size() && !std::memcmp(entry.begin, text.data(), text.size())) {
        Span body;
        if (read_span(entry.begin + text.size(), entry.end, body) != entry.end) return false;
        previous = index;
        return pass_on(index, body, limit, fault);
      }
      index = table_[index].next;
    }
    return false;
  }

  bool pass_on(uint32_t index, Span body, const uint8_t* limit, Fault& fault) {
    const int slot = table_[index].slot;
    if (slot < 0) return true;
    const Content before = sink_.content_of(slot);
    if (!sink_.value(slot, body, limit, fault)) return false;
    if (sink_.content_of(slot) != before) table_.expect(index, sink_.content_of(slot), sink_.one_float(slot));
    return true;
  }

  // One map entry, its fields in any order and number.
  TFR_NOINLINE bool read_entry(Span entry, uint32_t& previous, Fault& fault) {
    std::string name;
    Span body;
    bool merged = false;
    bool foreign = false;
    const bool whole = for_each_field(
        entry,
        [&](uint32_t tag, Span span) {
          if (tag == tag_of(1, kLen)) {
            if (!is_utf8(span.begin, span.size())) return fault("feature name is not valid UTF-8");
            name.assign(span.begin, span.end);
          } else if (tag == tag_of(2, kLen)) {
            // A message given in pieces is the message of the concatenated bytes.
            if (body.begin && !merged) merged_.assign(body.begin, body.end);
            merged |= body.begin != nullptr;
            if (merged) merged_.insert(merged_.end(), span.begin, span.end);
            body = span;
          } else {
            foreign = true;
          }
          return true;
        },
        [&](uint32_t, Span) { return foreign = true; });
    if (!whole) return fault.reason ? false : fault(kMalformed);
    // protobuf for Python drops such an entry, the one for C++ keeps it, TensorFlow refuses the record.
    if (foreign) return fault("map entry holds a field other than key and value");
    if (merged) body = {merged_.data(), merged_.data() + merged_.size()};
    uint32_t key = table_.find(name);
    if (!key) {
      // Writers of maps always write the value. Nested messages of another type look like an entry that has none.
      if (!body.begin && has_control_characters(name)) return fault(kNotAnExample);
      const int slot = sink_.slot_of(name);
      if (slot == kStranger) return sink_.stranger(name, body, fault);
      if (slot < 0 && table_.full()) return true;
      key = table_.add(name, slot);
      table_.expect(key, slot < 0 ? Content::kUnset : sink_.content_of(slot), slot >= 0 && sink_.one_float(slot));
    }
    table_.follow(previous, key);
    previous = key;
    return pass_on(key, body, body.end, fault);
  }

  Sink& sink_;
  KeyTable table_;
  std::vector<uint8_t> merged_;
};

// Calls features(span) and feature_lists(span) for the parts of one record; both may be called repeatedly,
// because a message given in pieces is merged. A message of another type may parse, for unknown fields are
// skipped: a record that is not empty must have a field that is known.
template <class OnFeatures, class OnLists>
TFR_INLINE bool walk_record(Span record, bool sequence, Fault& fault, OnFeatures&& features, OnLists&& feature_lists) {
  Span part;
  if (!sequence && record.begin < record.end && *record.begin == tag_of(1, kLen) &&
      read_span(record.begin + 1, record.end, part) == record.end)
    return features(part);
  bool is_known = !record.size();
  const bool whole = for_each_field(
      record,
      [&](uint32_t tag, Span span) {
        const bool is_features = tag == tag_of(1, kLen);
        if (!is_features && !(sequence && tag == tag_of(2, kLen))) return true;
        is_known = true;
        return is_features ? features(span) : feature_lists(span);
      },
      [](uint32_t, Span) { return true; });
  if (!whole) return fault.reason ? false : fault(kMalformed);
  return is_known || fault(kNotAnExample);
}

// ---- the values of one Feature, read field by field -----------------------------------------------
//   Feature { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
//   *List   { repeated value = 1; }

// Whether a Feature is one list of this kind and nothing else, and a list one chunk (or one bytes value).
inline bool is_one_list(Span feature, Content content, Span& list) {
  return feature.size() && *feature.begin == tag_of(static_cast<uint32_t>(content), kLen) &&
         read_span(feature.begin + 1, feature.end, list) == feature.end;
}
inline bool is_one_chunk(Span list, Span& chunk) {
  return list.size() && *list.begin == tag_of(1, kLen) && read_span(list.begin + 1, list.end, chunk) == list.end;
}

struct Values {
  Content content = Content::kUnset;
  std::vector<int64_t> ints;
  std::vector<float> floats;
  std::vector<Span> bytes;

  size_t size() const { return ints.size() + floats.size() + bytes.size(); }

  // Reads a whole Feature: a kind given again is continued, another kind replaces it.
  bool read(Span feature) {
    reset(Content::kUnset);
    return for_each_field(
        feature,
        [&](uint32_t tag, Span span) {
          if (tag < tag_of(1, kLen) || tag > tag_of(3, kLen)) return true;
          const auto kind = static_cast<Content>(tag >> 3);
          if (kind != content) reset(kind);
          return read_list(span);
        },
        [](uint32_t, Span) { return true; });
  }

 private:
  void reset(Content kind) {
    content = kind;
    ints.clear();
    floats.clear();
    bytes.clear();
  }

  bool read_list(Span list) {
    return for_each_field(
        list,
        [&](uint32_t tag, Span span) {
          if (tag != tag_of(1, kLen)) return true;
          if (content == Content::kBytesList) {
            bytes.push_back(span);
            return true;
          }
          return content == Content::kInt64List ? read_packed_ints(span) : read_packed_floats(span);
        },
        [&](uint32_t tag, Span value) {
          uint64_t number = 0;
          if (tag == tag_of(1, kVarint) && content == Content::kInt64List) {
            read_varint(value.begin, value.end, number);
            ints.push_back(static_cast<int64_t>(number));
          } else if (tag == tag_of(1, kFixed32) && content == Content::kFloatList) {
            floats.push_back(load<float>(value.begin));
          }
          return true;
        });
  }

  bool read_packed_ints(Span packed) {
    const uint8_t* p = packed.begin;
    while (p < packed.end) {
      uint64_t number = 0;
      p = read_varint(p, packed.end, number);
      if (!p) return false;
      ints.push_back(static_cast<int64_t>(number));
    }
    return true;
  }

  bool read_packed_floats(Span packed) {
    if (packed.size() % 4) return false;
    for (const uint8_t* p = packed.begin; p < packed.end; p += 4) floats.push_back(load<float>(p));
    return true;
  }
};

}  // namespace tfr
