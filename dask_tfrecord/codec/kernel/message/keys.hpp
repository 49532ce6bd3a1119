// The map keys that the records have had so far, and the heads that their entries usually have.
//
// Writers repeat the same keys in the same order and shape. The walker therefore compares the start of an entry with
// the head of the key that came next in the last record.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "message/entry_head.hpp"

namespace tfr {

// Slots that are not columns.
constexpr int kUnwanted = -1;  // the value of this key is skipped
constexpr int kUnknown = -2;   // this key should not be there; the walker asks for its slot again each time

// A map key and the head that its entry is expected to have. The default matches no entry.
struct alignas(64) Key {
  uint32_t next = 0;         // the key that followed when this key was last read field by field
  int32_t slot = kUnwanted;  // the sink's number for the key
  bool one_float = false;    // the entry is expected to have one float
  bool in_order = false;     // `next` is the index of this key + 1
  EntryHead head;
};

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

  // Sets what the entry of a key is expected to hold. `one_float`: a FloatList of one value.
  void expect(uint32_t index, Content content, bool one_float = false) {
    Key& key = keys_[index];
    const bool wanted = key.slot >= 0;
    if (wanted && content == Content::kUnset) return;
    key.head = EntryHead(texts_[index], wanted ? content : Content::kUnset);
    if (one_float) key.head = key.head.fixed(sizeof(float));
    key.one_float = one_float;
  }

  // True if no more unwanted keys should be added. Records with ever new names would fill the memory.
  bool full() const { return keys_.size() > kMaxUnwanted; }

 private:
  static constexpr size_t kMaxUnwanted = 4096;

  std::vector<Key> keys_;
  std::vector<std::string> texts_;  // 0A <name length> <name> 12
  std::unordered_map<std::string, uint32_t> by_name_;
};

}  // namespace tfr
