// What features a run of records holds: the facts a schema is made of.
#pragma once

#include <algorithm>
#include <deque>

#include "doubt.hpp"
#include "frame.hpp"
#include "record.hpp"

namespace tfr {

struct FeatureFacts {
  std::string name;
  bool feature_list = false;
  int64_t records = 0;                         // that hold it with a kind
  int64_t first_record[4] = {-1, -1, -1, -1};  // by Content
  int64_t min_values = INT64_MAX;
  int64_t max_values = 0;
  int64_t min_steps = INT64_MAX;  // of a FeatureList
  int64_t max_steps = 0;
  bool utf8 = true;
  bool text = true;                // is_text() of all values
  Content last = Content::kUnset;  // the kind it had last
};

class Inference {
 public:
  Inference(RecordType type, const FrameRules& rules, int64_t max_records)
      : sequence_(type == RecordType::kSequenceExample),
        rules_(rules),
        max_records_(max_records),
        features_{*this, false},
        lists_{*this, true},
        feature_map_(features_),
        list_map_(lists_) {}
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  // Looks at the whole records at the start of data, as long as max_records are not reached; returns the
  // bytes used.
  uint64_t feed(Span data, bool final, int64_t& records, Damage& damage) {
    FrameRules rules = rules_;
    rules.final = final;
    const uint8_t* p = data.begin;
    const int64_t first = record_;
    const auto is_known = [&](const std::string& name, bool list) {
      return std::any_of(facts_.begin(), facts_.end(), [&](const FeatureFacts& facts) {
        return facts.records && facts.feature_list == list && facts.name == name;
      });
    };
    while (max_records_ < 0 || record_ < max_records_) {
      const Span payload = next_frame(p, data.end, rules, crc32c::best(), damage);
      if (!payload.begin) break;
      Fault fault;
      bool good = walk_record(
          payload, sequence_, fault, [&](Span part) { return feature_map_.walk(part, data.end, fault); },
          [&](Span part) { return list_map_.walk(part, data.end, fault); });
      if (good && noted_ != record_ && payload.size() && is_another_message(payload, sequence_, is_known))
        good = fault(kNotAnExample);
      if (!good) {
        damage.reason = fault.reason;
        damage.size = payload.size() + kFrameBytes;
        break;
      }
      ++record_;
      p = payload.end + kFooterBytes;
    }
    records = record_ - first;
    damage.record = records;
    damage.offset = static_cast<uint64_t>(p - data.begin);
    return damage.offset;
  }

  const std::deque<FeatureFacts>& facts() const { return facts_; }

 private:
  struct Sink {
    Inference& inference;
    bool lists;

    int slot_of(const std::string& name) const {
      FeatureFacts facts;
      facts.name = name;
      facts.feature_list = lists;
      inference.facts_.push_back(facts);
      return static_cast<int>(inference.facts_.size()) - 1;
    }
    Content content_of(int slot) const { return inference.facts_[static_cast<size_t>(slot)].last; }
    struct Cursor {};
    Cursor cursor() const { return {}; }
    void done(const Cursor&) const {}
    bool one_float(int slot) const {
      const FeatureFacts& facts = inference.facts_[static_cast<size_t>(slot)];
      return facts.last == Content::kFloatList && facts.max_values == 1;
    }
    TFR_INLINE bool usual_float(Cursor&, int slot, const uint8_t*) const {
      inference.note(inference.facts_[static_cast<size_t>(slot)], 1);
      return true;
    }
    template <class Loop>
    TFR_INLINE bool usual(Cursor&, int slot, Span chunk) const {
      return !lists && inference.usual(inference.facts_[static_cast<size_t>(slot)], chunk);
    }
    bool stranger(const std::string&, Span, Fault&) const { return true; }  // all are welcome
    bool value(int slot, Span body, const uint8_t*, Fault& fault) const {
      FeatureFacts& facts = inference.facts_[static_cast<size_t>(slot)];
      return lists ? inference.feature_list(facts, body, fault) : inference.any_feature(facts, body, fault);
    }
  };

  // One chunk of the kind facts.last. False: nothing was noted.
  TFR_INLINE bool usual(FeatureFacts& facts, Span chunk) {
    const size_t n = chunk.size();
    int64_t count = 1;
    if (facts.last == Content::kInt64List) {
      if (!n || chunk.end[-1] >= 0x80) return false;
      count = count_varints(chunk);
      if (!count) return false;
    } else if (facts.last == Content::kFloatList) {
      if (!n || n % 4) return false;
      count = static_cast<int64_t>(n / 4);
    } else if (facts.last == Content::kUnset) {
      return false;  // what follows the key of a feature without kind is no list
    } else {
      look_at_bytes(facts, chunk);
    }
    note(facts, count);
    return true;
  }

  TFR_INLINE static void look_at_bytes(FeatureFacts& facts, Span value) {
    const size_t n = value.size();
    if (facts.utf8) facts.utf8 = is_ascii(value.begin, n) || is_utf8(value.begin, n);
    if (facts.text) facts.text = facts.utf8 && !has_control(value.begin, n);
  }

  // How many varints there are; 0 if one might be longer than 10 bytes. Then four bytes in place all continue.
  static int64_t count_varints(Span chunk) {
    int64_t count = 0;
    const uint8_t* p = chunk.begin;
    if (chunk.size() == 9 && (load<uint64_t>(p) & kContinue) == kContinue) return 1;  // times in nanoseconds
    for (; chunk.end - p >= 8; p += 8) {
      const uint64_t stops = ~load<uint64_t>(p) & kContinue;
      if (!(stops & 0xFFFFFFFF) || !(stops >> 32)) return count_long_varints(chunk);
      count += static_cast<int64_t>(((stops >> 7) * 0x0101010101010101u) >> 56);
    }
    for (; p < chunk.end; ++p) count += *p < 0x80;
    return count;
  }

  TFR_NOINLINE static int64_t count_long_varints(Span chunk) {
    int64_t count = 0;
    int run = 0;
    for (const uint8_t* p = chunk.begin; p < chunk.end; ++p) {
      run = *p < 0x80 ? 0 : run + 1;
      if (run >= 10) return 0;
      count += *p < 0x80;
    }
    return count;
  }

  // A feature of the kind facts.last that holds so many values.
  TFR_INLINE void note(FeatureFacts& facts, int64_t count) {
    int64_t& first = facts.first_record[static_cast<int>(facts.last)];
    if (first < 0) first = record_;
    noted_ = record_;
    ++facts.records;
    facts.min_values = std::min(facts.min_values, count);
    facts.max_values = std::max(facts.max_values, count);
  }

  TFR_NOINLINE bool any_feature(FeatureFacts& facts, Span body, Fault& fault) {
    Span list;
    Span chunk;
    if (is_one_list(body, facts.last, list) && is_one_chunk(list, chunk) && usual(facts, chunk)) return true;
    if (!values_.read(body)) return fault(kMalformed);
    if (values_.content == Content::kUnset) return true;
    for (const Span& value : values_.bytes) look_at_bytes(facts, value);
    facts.last = values_.content;
    note(facts, static_cast<int64_t>(values_.size()));
    return true;
  }

  TFR_NOINLINE bool feature_list(FeatureFacts& facts, Span body, Fault& fault) {
    int64_t steps = 0;
    const int64_t records = facts.records;
    const bool whole = for_each_field(
        body,
        [&](uint32_t tag, Span span) {
          if (tag != tag_of(1, kLen)) return true;
          ++steps;
          return any_feature(facts, span, fault);
        },
        [](uint32_t, Span) { return true; });
    if (!whole) return fault.reason ? false : fault(kMalformed);
    facts.records = records + 1;
    facts.min_steps = std::min(facts.min_steps, steps);
    facts.max_steps = std::max(facts.max_steps, steps);
    return true;
  }

  bool sequence_;
  FrameRules rules_;
  int64_t max_records_;
  Sink features_;
  Sink lists_;
  MapWalker<Sink> feature_map_;
  MapWalker<Sink> list_map_;
  Values values_;
  std::deque<FeatureFacts> facts_;
  int64_t record_ = 0;
  int64_t noted_ = -1;  // the last record that holds a feature with a kind
};

}  // namespace tfr
