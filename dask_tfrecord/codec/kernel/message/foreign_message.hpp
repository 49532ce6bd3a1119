// Recognises records that are messages of another type than Example.
#pragma once

#include <string>

#include "message/feature.hpp"

namespace tfr {

// A message of another type may parse as an Example, because its first field looks like the features and protobuf
// skips unknown fields. A feature with a kind proves that the record is an Example. Foreign parts are those that no
// writer of Examples makes: unknown fields, and a feature with a name but no value. A feature without a value is not
// foreign if is_known(name, list) returns true.
template <class IsKnown>
class ForeignMessageCheck {
 public:
  ForeignMessageCheck(bool sequence, const IsKnown& is_known) : sequence_(sequence), is_known_(is_known) {}

  // Returns true if the record has a foreign part and no feature with a kind.
  bool operator()(Span record) {
    const bool whole = each_message(record, [&](uint32_t field, Span part) {
      if (field == 1) return read_map(part, false);
      return field == 2 && sequence_ ? read_map(part, true) : note_foreign();
    });
    return !proven_ && (foreign_ || !whole);
  }

 private:
  // Calls each(field, span) for the fields of wire type LEN until it returns false. Fields of other types are foreign.
  template <class Each>
  bool each_message(Span message, Each&& each) {
    return for_each_field(
        message, [&](uint32_t tag, Span span) { return each(tag >> 3, span); },
        [&](uint32_t, Span) { return note_foreign(); });
  }

  bool note_foreign() { return foreign_ = true; }

  bool read_map(Span map, bool lists) {
    return each_message(
        map, [&](uint32_t field, Span entry) { return field == 1 ? read_entry(entry, lists) : note_foreign(); });
  }

  bool read_entry(Span entry, bool lists) {
    std::string name;
    Span value;
    const bool whole = each_message(entry, [&](uint32_t field, Span span) {
      if (field == 1) return name.assign(span.begin, span.end), true;
      return field == 2 ? (value = span, true) : note_foreign();
    });
    if (!whole) return false;
    if (!value.begin) return name.empty() || is_known_(name, lists) || note_foreign();
    if (!lists) return read_feature(value);
    return each_message(value,
                        [&](uint32_t field, Span step) { return field == 1 ? read_feature(step) : note_foreign(); });
  }

  // Returns false to stop: the feature is malformed, or it proves that the record is an Example.
  bool read_feature(Span feature) {
    bool unknown = false;
    const bool whole = for_each_field(
        feature, [&](uint32_t tag, Span) { return tag <= tag_of(3, kLen) || (unknown = true); },
        [&](uint32_t, Span) { return unknown = true; });
    if (!whole || !values_.read(feature)) return false;
    proven_ = values_.content != Content::kUnset;
    foreign_ |= unknown;
    return !proven_;
  }

  bool sequence_;
  const IsKnown& is_known_;
  bool foreign_ = false;
  bool proven_ = false;
  Values values_;
};

// Returns true if a record that is not empty is a message of another type. Callers need this only for records from
// which no column took a value. `sequence`: the record should be a SequenceExample.
template <class IsKnown>
TFR_NOINLINE bool is_foreign_message(Span record, bool sequence, const IsKnown& is_known) {
  return ForeignMessageCheck<IsKnown>(sequence, is_known)(record);
}

}  // namespace tfr
