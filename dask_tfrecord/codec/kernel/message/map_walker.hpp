// Walks the maps of an Example or SequenceExample and passes each feature to a sink.
//
// The maps are (tensorflow/core/example/{example,feature}.proto):
//   Example         { Features features = 1; }
//   SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
//   Features        { map<string, Feature> feature = 1; }
//   FeatureLists    { map<string, FeatureList> feature_list = 1; }
//
// The fast path compares the first bytes of an entry with the head that is expected next, see keys.hpp. An entry that
// differs is read field by field.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/utf8.hpp"
#include "message/keys.hpp"

namespace tfr {

// A sink has these members:
//   int slot_of(const std::string& name)     a number for the name, or kUnwanted, or kUnknown
//   Content content_of(int slot)             the kind that the next feature of the slot is expected to have
//   bool one_float(int slot)                 true if that feature is expected to be one float
//   bool take_chunk<Loop>(Cursor&, int slot, Span chunk)    takes the chunk of a feature that is one list of the
//       expected kind in one chunk. At least 16 bytes from the start of the chunk may be read. If it returns false,
//       it has changed nothing
//   bool take_float(Cursor&, int slot, const uint8_t*)      the same for one float
//   Cursor cursor(), void done(const Cursor&)    the state that the two functions above change. It is apart from the
//       sink so that it stays in registers
//   bool take_value(int slot, Span body, const uint8_t* limit, Fault&)    takes any map value. Bytes up to limit may
//       be read although they are not part of the body
//   bool take_unknown(const std::string& name, Span body, Fault&)    takes the value of a key whose slot is kUnknown
// The walker keeps a reference to its sink, which must outlive it. It keeps no pointers into a record.
template <class Sink>
class MapWalker {
 public:
  explicit MapWalker(Sink& sink) : sink_(sink) {}

  // Passes all entries of one Features or FeatureLists message to the sink. Bytes up to limit may be read although
  // they are not part of the message. Returns false with a fault.
  bool walk(Span message, const uint8_t* limit, Fault& fault) {
    const auto work = [this](auto loop, Span map, const uint8_t* readable, Fault* found)
                          TFR_INLINE_LAMBDA { return this->template walk_by<decltype(loop)>(map, readable, *found); };
    return run_fastest(work, message, limit, &fault);
  }

  // Forgets all keys, so that the sink is asked for their slots again.
  void forget() { table_ = KeyTable(); }

 private:
  // The fast path reads this many bytes from the start of an entry: the longest head and 16 bytes of values.
  static constexpr ptrdiff_t kReach = kHeadRoom + 16;
  static constexpr int kTries = 4;  // up to 3 absent features are skipped on the way to the next key

  template <class Loop>
  TFR_INLINE bool walk_by(Span message, const uint8_t* limit, Fault& fault) {
    const uint8_t* p = message.begin;
    uint32_t previous = 0;
    while (p < message.end) {
      p = walk_expected<Loop>(p, message.end, limit, previous);
      if (p == message.end) break;
      uint32_t tag = 0;
      Span entry;
      p = read_tag(p, message.end, tag);
      if (!p) return fault(kMalformed);
      p = tag == tag_of(1, kLen) ? read_span(p, message.end, entry) : skip_value(p, message.end, tag);
      if (!p) return fault(kMalformed);
      if (tag == tag_of(1, kLen) && !read_expected_key(entry, limit, previous, fault) &&
          (fault.reason || !read_entry(entry, previous, fault)))
        return false;
    }
    return true;
  }

  // The fast path. It takes entries as long as each starts with the expected bytes of one of the next keys. Returns
  // the end of the last entry. That is beyond `end` if the entry does not end inside the message; then read_tag
  // finds no bytes and the message is malformed.
  template <class Loop>
  TFR_INLINE const uint8_t* walk_expected(const uint8_t* p, const uint8_t* end, const uint8_t* limit,
                                          uint32_t& previous) {
    const Key* const keys = table_.keys();
    // An entry that starts before `stop` has kReach readable bytes.
    const uint8_t* const stop = std::min(end, limit - std::min(limit - p, kReach - 1));
    auto cursor = sink_.cursor();
    const Key* last = keys + previous;
    while (p < stop) {
      // A branch rather than a load of `next`, so that the comparison does not wait for the load.
      const Key* key = TFR_LIKELY(last->in_order) ? last + 1 : keys + last->next;
      if (!TFR_LIKELY(key->head.matches<Loop>(p)) && !(key = find_next<Loop>(key, p))) break;
      const uint8_t* const values = p + key->head.size;
      const uint8_t* next;
      if (key->one_float) {
        next = values + sizeof(float);
        if (!sink_.take_float(cursor, key->slot, values)) break;
      } else if (key->slot >= 0) {
        const size_t n = values[-1];
        next = values + n;
        // `next` must not be beyond `end`, because the sink reads the whole chunk.
        if (!key->head.has_entry_length(p, n) || !key->head.has_other_lengths(p, n) || next > end ||
            !sink_.template take_chunk<Loop>(cursor, key->slot, {values, next}))
          break;
      } else {
        next = p + 2 + p[1];
        if (!TFR_LIKELY(key->head.has_entry_length(p, values[-1]))) break;
      }
      last = key;
      p = next;
    }
    sink_.done(cursor);
    previous = static_cast<uint32_t>(last - keys);
    return p;
  }

  // Returns the key of the entry at p if it is one of the keys that followed `key`, else null.
  template <class Loop>
  TFR_INLINE const Key* find_next(const Key* key, const uint8_t* p) const {
    for (int tries = 1; tries < kTries; ++tries) {
      key = table_.keys() + key->next;
      if (key->head.matches<Loop>(p)) return key;
    }
    return nullptr;
  }

  // Takes an entry that is `0A <name length> <name> 12 <value>` with one of the next keys and any value. Returns
  // false without a fault if the entry is anything else.
  TFR_INLINE bool read_expected_key(Span entry, const uint8_t* limit, uint32_t& previous, Fault& fault) {
    uint32_t index = table_[previous].next;
    for (int tries = 0; tries < kTries; ++tries) {
      const std::string& text = table_.text(index);
      if (index && entry.size() > text.size() && !std::memcmp(entry.begin, text.data(), text.size())) {
        Span body;
        if (read_span(entry.begin + text.size(), entry.end, body) != entry.end) return false;
        previous = index;
        return take(index, body, limit, fault);
      }
      index = table_[index].next;
    }
    return false;
  }

  // Passes a value to the sink, and expects the shape that the sink now expects.
  bool take(uint32_t index, Span body, const uint8_t* limit, Fault& fault) {
    const int slot = table_[index].slot;
    if (slot < 0) return true;
    const Content before = sink_.content_of(slot);
    if (!sink_.take_value(slot, body, limit, fault)) return false;
    if (sink_.content_of(slot) != before) table_.expect(index, sink_.content_of(slot), sink_.one_float(slot));
    return true;
  }

  // The slow path. Takes any map entry, whose fields may have any order and number.
  TFR_NOINLINE bool read_entry(Span entry, uint32_t& previous, Fault& fault) {
    std::string name;
    Span body;
    bool has_value = false;
    bool merged = false;
    bool foreign = false;
    const bool whole = for_each_field(
        entry,
        [&](uint32_t tag, Span span) {
          if (tag == tag_of(1, kLen)) {
            if (!is_utf8(span.begin, span.size())) return fault("feature name is not valid UTF-8");
            name.assign(span.begin, span.end);
          } else if (tag == tag_of(2, kLen)) {
            // protobuf merges a message that is given in pieces. If each piece is a whole message, the result is the
            // message of the concatenated bytes.
            if (has_value && !merged) merged_.assign(body.begin, body.end);
            merged = has_value;
            if (merged) merged_.insert(merged_.end(), span.begin, span.end);
            if (merged && !(is_whole(body) && is_whole(span))) return false;
            body = span;
            has_value = true;
          } else {
            foreign = true;
          }
          return true;
        },
        [&](uint32_t, Span) { return foreign = true; });
    if (!whole) return fault.unread();
    // protobuf for Python drops such an entry, protobuf for C++ keeps it, and TensorFlow rejects the record.
    if (foreign) return fault("map entry holds a field other than key and value");
    if (merged) body = {merged_.data(), merged_.data() + merged_.size()};
    uint32_t key = table_.find(name);
    if (!key) {
      const int slot = sink_.slot_of(name);
      if (slot == kUnknown) return sink_.take_unknown(name, body, fault);
      if (slot < 0 && table_.full()) return true;
      key = table_.add(name, slot);
      table_.expect(key, slot < 0 ? Content::kUnset : sink_.content_of(slot), slot >= 0 && sink_.one_float(slot));
    }
    table_.follow(previous, key);
    previous = key;
    return take(key, body, body.end, fault);
  }

  // Returns true if the message consists of whole fields.
  static bool is_whole(Span message) { return for_each_field(message, kAnyField); }

  Sink& sink_;
  KeyTable table_;
  std::vector<uint8_t> merged_;
};

// Calls features(span) and feature_lists(span) for the parts of one record. Each may be called repeatedly, because
// protobuf merges a message that is given in pieces. Both return false to stop. Returns false with a fault. protobuf
// skips unknown fields, so a message of another type may parse as an Example, see foreign_message.hpp.
template <class OnFeatures, class OnLists>
TFR_INLINE bool walk_record(Span record, bool sequence, Fault& fault, OnFeatures&& features, OnLists&& feature_lists) {
  Span part;
  if (is_one_field(record, 1, part)) return features(part);
  const bool whole = for_each_field(record, [&](uint32_t tag, Span span) {
    if (tag == tag_of(1, kLen)) return features(span);
    return !(sequence && tag == tag_of(2, kLen)) || feature_lists(span);
  });
  return whole || fault.unread();
}

}  // namespace tfr
