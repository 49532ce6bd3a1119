// Finds which features records hold, from which a schema can be inferred.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "framing/frame.hpp"
#include "message/foreign_message.hpp"
#include "message/map_walker.hpp"

namespace tfr {

// What the values of one feature have shown.
struct FeatureValues {
  int64_t first_record[4] = {-1, -1, -1, -1};  // the first record with each Content
  int64_t max_values = 0;                      // in one Feature
  bool utf8 = true;                            // all bytes values are valid UTF-8
  bool text = true;                            // all bytes values are text, see is_text()
  Content last = Content::kUnset;              // the kind of the last value
};

struct FeatureFacts : FeatureValues {
  std::string name;
  bool feature_list = false;
  int64_t record = -1;  // the last record that has the feature
  size_t change = 0;    // where the changes of the current record may have the values before it
};

// One thread at a time may use an inference. It keeps no pointers into the data.
class Inference {
 public:
  // A record is damaged if more than `max_features` features would be known with it.
  Inference(RecordType type, const FrameRules& rules, int64_t max_records, size_t max_features = SIZE_MAX)
      : parses_(type != RecordType::kBytes),
        sequence_(type == RecordType::kSequenceExample),
        rules_(rules),
        max_records_(max_records),
        max_features_(max_features),
        features_{*this, false},
        lists_{*this, true},
        feature_map_(features_),
        list_map_(lists_) {}
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  // Adds the whole records at the start of `data`, until max_records is reached. Sets the number of records that were
  // added, and the damage that stopped it, if any. A damaged record changes nothing. Returns the number of bytes that
  // were used.
  uint64_t feed(Span data, bool final, int64_t& records, Damage& damage) {
    FrameRules rules = rules_;
    rules.final = final;
    const uint8_t* p = data.begin;
    const int64_t first = record_;
    while (max_records_ < 0 || record_ < max_records_) {
      const Span payload = next_frame(p, data.end, rules, crc32c::best(), damage);
      if (!payload.begin) break;
      Fault fault;
      is_example_ = false;
      bool good = !parses_ ||
                  walk_record(
                      payload, sequence_, fault, [&](Span part) { return feature_map_.walk(part, data.end, fault); },
                      [&](Span part) { return list_map_.walk(part, data.end, fault); });
      if (good && parses_ && !is_example_ && is_foreign_message(payload, sequence_)) good = fault(kNotAnExample);
      if (!good) {
        damage.reason = fault.reason;
        damage.size = payload.size() + kFrameBytes;
        undo();
        if (fault.reason == kTooManyFeatures) damage.found = std::to_string(known_ + count_entries(payload));
        break;
      }
      ++record_;
      known_ = facts_.size();
      changes_.clear();
      p = payload.end + kFooterBytes;
    }
    records = record_ - first;
    damage.record = records;
    damage.offset = static_cast<uint64_t>(p - data.begin);
    return damage.offset;
  }

  const std::deque<FeatureFacts>& facts() const { return facts_; }

 private:
  // The sink for one of the two maps: Features, or FeatureLists if `lists`.
  struct Sink {
    Inference& inference;
    bool lists;

    int slot_of(const std::string& name) const {
      auto& slots = inference.slots_[lists];
      const auto found = slots.find(name);
      if (found != slots.end()) return found->second;
      if (inference.facts_.size() == inference.max_features_) return kUnknown;
      const int slot = static_cast<int>(inference.facts_.size());
      slots.emplace(name, slot);
      inference.facts_.emplace_back();
      inference.facts_.back().name = name;
      inference.facts_.back().feature_list = lists;
      return slot;
    }
    Content content_of(int slot) const { return inference.facts_[static_cast<size_t>(slot)].last; }
    struct Cursor {};
    Cursor cursor() const { return {}; }
    void done(const Cursor&) const {}
    bool one_float(int slot) const {
      const FeatureFacts& facts = inference.facts_[static_cast<size_t>(slot)];
      return facts.last == Content::kFloatList && facts.max_values == 1;
    }
    // These two leave a repeated key to take_value.
    TFR_INLINE bool take_float(Cursor&, int slot, const uint8_t*) const {
      FeatureFacts& facts = inference.facts_[static_cast<size_t>(slot)];
      if (facts.record == inference.record_) return false;
      facts.record = inference.record_;
      inference.count(facts, 1);
      return true;
    }
    template <class Loop>
    TFR_INLINE bool take_chunk(Cursor&, int slot, Span chunk) const {
      FeatureFacts& facts = inference.facts_[static_cast<size_t>(slot)];
      if (lists || facts.record == inference.record_ || !inference.add_chunk(facts, chunk)) return false;
      facts.record = inference.record_;
      return true;
    }
    bool take_unknown(const std::string&, Span, Fault& fault) const { return fault(kTooManyFeatures); }
    bool take_value(int slot, Span body, const uint8_t*, Fault& fault) const {
      FeatureFacts& facts = inference.facts_[static_cast<size_t>(slot)];
      if (facts.record == inference.record_) inference.forget_value(facts);
      facts.record = inference.record_;
      return lists ? inference.add_feature_list(facts, body, fault) : inference.add_feature(facts, body, fault);
    }
  };

  static constexpr const char* kTooManyFeatures = "more features than max_features";

  // Returns the number of entries in the maps of a record, as far as it is well-formed.
  size_t count_entries(Span record) const {
    size_t count = 0;
    const auto entry = [&](uint32_t tag, Span) { return count += tag == tag_of(1, kLen), true; };
    const auto map = [&](uint32_t tag, Span span) {
      return (tag != tag_of(1, kLen) && !(sequence_ && tag == tag_of(2, kLen))) || for_each_field(span, entry);
    };
    for_each_field(record, map);
    return count;
  }

  // Adds a list of the kind facts.last that is one chunk. If it returns false, it has changed nothing.
  TFR_INLINE bool add_chunk(FeatureFacts& facts, Span chunk) {
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
      return false;  // a feature without a kind has no list
    } else {
      check_text(facts, chunk);
    }
    this->count(facts, count);
    return true;
  }

  TFR_INLINE void check_text(FeatureFacts& facts, Span value) {
    const size_t n = value.size();
    const bool utf8 = facts.utf8 && (is_ascii(value.begin, n) || is_utf8(value.begin, n));
    const bool text = facts.text && utf8 && !has_control(value.begin, n);
    if (utf8 == facts.utf8 && text == facts.text) return;
    remember(facts);
    facts.utf8 = utf8;
    facts.text = text;
  }

  // Returns the number of varints, or 0 if one may be longer than 10 bytes. In that case four aligned bytes all have a
  // continuation bit.
  static int64_t count_varints(Span chunk) {
    int64_t count = 0;
    const uint8_t* p = chunk.begin;
    if (chunk.size() == 9 && (load<uint64_t>(p) & kContinue) == kContinue) return 1;  // timestamps in nanoseconds
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

  // Counts a feature of the kind facts.last with this number of values.
  TFR_INLINE void count(FeatureFacts& facts, int64_t values) {
    is_example_ = true;
    int64_t& first = facts.first_record[static_cast<int>(facts.last)];
    if (TFR_LIKELY(first >= 0 && values <= facts.max_values)) return;
    remember(facts);
    if (first < 0) first = record_;
    facts.max_values = std::max(facts.max_values, values);
  }

  // Call this before the facts change. New values are rare, so a record seldom changes anything.
  TFR_NOINLINE void remember(FeatureFacts& facts) {
    if (is_remembered(facts)) return;
    facts.change = changes_.size();
    changes_.push_back({&facts, facts});
  }
  bool is_remembered(const FeatureFacts& facts) const {
    return facts.change < changes_.size() && changes_[facts.change].facts == &facts;
  }

  // Removes what the current record has added to a feature, because the last value of a repeated key counts.
  TFR_NOINLINE void forget_value(FeatureFacts& facts) {
    if (is_remembered(facts)) static_cast<FeatureValues&>(facts) = changes_[facts.change].before;
  }

  // Removes what the current record has added.
  TFR_NOINLINE void undo() {
    if (changes_.empty() && facts_.size() == known_) return;
    for (; !changes_.empty(); changes_.pop_back()) {
      FeatureValues& values = *changes_.back().facts;
      values = changes_.back().before;
    }
    for (; facts_.size() > known_; facts_.pop_back()) slots_[facts_.back().feature_list].erase(facts_.back().name);
    feature_map_.forget();
    list_map_.forget();
  }

  // Adds a Feature of any shape.
  TFR_NOINLINE bool add_feature(FeatureFacts& facts, Span body, Fault& fault) {
    Span list;
    Span chunk;
    if (is_one_list(body, facts.last, list) && is_one_chunk(list, chunk) && add_chunk(facts, chunk)) return true;
    if (!values_.read(body)) return fault(kMalformed);
    if (values_.content == Content::kUnset) return true;
    for (const Span& value : values_.bytes) check_text(facts, value);
    if (facts.last != values_.content) remember(facts);
    facts.last = values_.content;
    count(facts, static_cast<int64_t>(values_.size()));
    return true;
  }

  TFR_NOINLINE bool add_feature_list(FeatureFacts& facts, Span body, Fault& fault) {
    return for_each_step(body, [&](Span step) { return add_feature(facts, step, fault); }) || fault.unread();
  }

  // The values of a feature before the current record changed them.
  struct Change {
    FeatureFacts* facts;
    FeatureValues before;
  };

  bool parses_;
  bool sequence_;
  FrameRules rules_;
  int64_t max_records_;
  size_t max_features_;
  Sink features_;
  Sink lists_;
  MapWalker<Sink> feature_map_;
  MapWalker<Sink> list_map_;
  Values values_;
  std::deque<FeatureFacts> facts_;
  std::unordered_map<std::string, int> slots_[2];  // the numbers of features and of feature lists, by their names
  size_t known_ = 0;                               // the number of features before the current record
  std::vector<Change> changes_;                    // of the current record
  int64_t record_ = 0;
  bool is_example_ = false;  // the current record has a feature with a kind
};

}  // namespace tfr
