// Finds the damage in the records of a file, and goes on behind it.
#pragma once

#include <algorithm>

#include "base/memory.hpp"
#include "columns/infer.hpp"
#include "framing/locate.hpp"

namespace tfr {

// The intact records and the damaged ranges in the first `consumed` bytes of the data of one call. A damaged range is
// one record whose length is believed, or goes up to the next record. The arrays have a row for each range and lie in
// the arena that check() was given.
struct Checked {
  int64_t records = 0;
  uint64_t consumed = 0;
  bool continues = false;  // the first range continues the last range of the call before
  bool is_open = false;    // the last range may continue in the next call
  Growing<int64_t> starts;
  Growing<int64_t> ends;
  Growing<int64_t> records_before;  // the number of intact records before each range
  Growing<int64_t> reasons;         // indexes into texts
  std::vector<const char*> texts;
};

// The data of each call begins where the call before stopped.
class DamageSearch {
 public:
  DamageSearch(Inference& inference, uint64_t max_record_bytes)
      : inference_(inference), max_record_bytes_(max_record_bytes) {}

  // No record ends after byte `limit` of the data: the file, or what is read of it, ends there.
  Checked check(Span data, bool final, uint64_t limit, Arena& arena) {
    Checked checked;
    Locator locator(data, {true, max_record_bytes_, final}, true, limit);
    const uint8_t* p = data.begin;
    for (;;) {
      if (!reason_) {
        Damage damage;
        int64_t records = 0;
        p += inference_.feed({p, data.end}, final, records, damage);
        checked.records += records;
        reason_ = damage.reason;
        if (!reason_ && is_cut(p, data, limit)) reason_ = kTruncated;
        if (!reason_) break;
      }
      const Located found = locator.find(p);
      const uint8_t* next = data.begin + found.offset;
      if (next == p && !is_open_) {  // the damaged record itself
        if (!found.proven) break;
        next += found.size;
      }
      if (next > p) add(checked, p - data.begin, next - data.begin, arena);
      p = next;
      is_open_ = !found.proven;
      if (is_open_) break;
      reason_ = nullptr;
    }
    checked.consumed = static_cast<uint64_t>(p - data.begin);
    checked.is_open = is_open_;
    return checked;
  }

 private:
  // Returns true if the rest of the data is the start of a record that ends after the limit.
  static bool is_cut(const uint8_t* p, Span data, uint64_t limit) {
    const auto left = static_cast<uint64_t>(data.end - p);
    return left >= kHeaderBytes && load<uint64_t>(p) + kFrameBytes > limit - (data.size() - left);
  }

  void add(Checked& checked, int64_t start, int64_t end, Arena& arena) const {
    if (!checked.starts.size) checked.continues = is_open_;
    auto& texts = checked.texts;
    const auto text = std::find(texts.begin(), texts.end(), reason_);
    checked.reasons.push(arena, text - texts.begin());
    if (text == texts.end()) texts.push_back(reason_);
    checked.starts.push(arena, start);
    checked.ends.push(arena, end);
    checked.records_before.push(arena, checked.records);
  }

  Inference& inference_;
  uint64_t max_record_bytes_;
  const char* reason_ = nullptr;  // of the damage whose end is being searched for; null if there is none
  bool is_open_ = false;          // a part of this damage was returned
};

}  // namespace tfr
