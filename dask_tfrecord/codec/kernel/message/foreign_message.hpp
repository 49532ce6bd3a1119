// Recognises records that are messages of another type than Example.
#pragma once

#include <algorithm>

#include "message/feature.hpp"

namespace tfr {

// A message of another type may parse as an Example, because its first field looks like the features and protobuf
// skips unknown fields. A feature with a kind proves that the record is an Example. Foreign parts are those that no
// writer of Examples makes: unknown fields, malformed features, and entries without a value whose names have control
// characters. Few writers of maps leave out a value, and a nested message of another type looks like such an entry. The
// answer depends on the bytes of the record only:
// not on the columns, and not on the records before.
class ForeignMessageCheck {
 public:
  explicit ForeignMessageCheck(bool sequence) : sequence_(sequence) {}

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
    Span name;
    bool has_value = false;
    const bool whole = each_message(entry, [&](uint32_t field, Span span) {
      if (field == 1) return name = span, true;
      if (field != 2) return note_foreign();
      has_value = true;
      return lists ? read_feature_list(span) : read_feature(span);
    });
    if (!has_value && has_control_characters(name)) note_foreign();
    return whole;
  }

  static bool has_control_characters(Span name) {
    return std::any_of(name.begin, name.end, [](uint8_t c) { return c < 0x20 || c == 0x7F; });
  }

  // These two return false to stop, if a feature proves that the record is an Example.
  bool read_feature_list(Span list) {
    const bool whole =
        each_message(list, [&](uint32_t field, Span step) { return field == 1 ? read_feature(step) : note_foreign(); });
    return whole || (!proven_ && note_foreign());
  }
  bool read_feature(Span feature) {
    bool unknown = false;
    const bool whole = for_each_field(
        feature, [&](uint32_t tag, Span) { return tag <= tag_of(3, kLen) || (unknown = true); },
        [&](uint32_t, Span) { return unknown = true; });
    if (!whole || !values_.read(feature)) return note_foreign();
    proven_ = values_.content != Content::kUnset;
    foreign_ |= unknown;
    return !proven_;
  }

  bool sequence_;
  bool foreign_ = false;
  bool proven_ = false;
  Values values_;
};

// Returns true if a record that is not empty is a message of another type. The answer is false for every record in
// which a feature has a kind, so that callers need not ask for those. `sequence`: the record should be a
// SequenceExample.
TFR_NOINLINE inline bool is_foreign_message(Span record, bool sequence) {
  return ForeignMessageCheck(sequence)(record);
}

}  // namespace tfr
