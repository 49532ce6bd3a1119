// Whether a record that no column took a value from may be an Example at all.
#pragma once

#include <string>

#include "record.hpp"

namespace tfr {

// A message of another type may parse as an Example: its first field looks like the features, and unknown fields are
// skipped. This looks for a feature with a kind, which proves an Example, and for what no writer of Examples makes:
// unknown fields, and a feature that has a name but no value. Names that the caller expects are no reason to doubt.
template <class Expects>
class Doubt {
 public:
  Doubt(bool sequence, const Expects& expects) : sequence_(sequence), expects_(expects) {}

  // Whether a record is a message of another type: it holds something foreign, and no feature with a kind.
  bool operator()(Span record) {
    const bool whole = each_message(record, [&](uint32_t field, Span part) {
      if (field == 1) return read_map(part, false);
      return field == 2 && sequence_ ? read_map(part, true) : note_foreign();
    });
    return !proven_ && (foreign_ || !whole);
  }

 private:
  // Calls each(field, span) for the fields of wire type LEN, until one returns false.
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
    if (!value.begin) return name.empty() || expects_(name, lists) || note_foreign();
    if (!lists) return read_feature(value);
    return each_message(value,
                        [&](uint32_t field, Span step) { return field == 1 ? read_feature(step) : note_foreign(); });
  }

  // False when malformed, and when the record is proven to be an Example.
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
  const Expects& expects_;
  bool foreign_ = false;
  bool proven_ = false;
  Values values_;
};

// Whether a record that is not empty is a message of another type. Asked where no column took a value from it.
template <class Expects>
TFR_NOINLINE bool is_another_message(Span record, bool sequence, const Expects& expects) {
  return Doubt<Expects>(sequence, expects)(record);
}

}  // namespace tfr
