// Decodes one payload once and three times in a row. The result must not depend on the records before, from which the
// decoder has learned the keys. Encoding the decoded values and decoding them again must give the same bytes.
#include "columns/infer.hpp"
#include "fuzz/fuzz.hpp"

namespace {

std::string reason_of(const tfr::DecodedBatch& batch) {
  return batch.damage ? batch.damage.reason : "";
}

// An unknown feature is reported for the first record as for the third, and only if the record has one.
void check_unknown_features(tfr::Span once, tfr::Span thrice, tfr::RecordType type) {
  tfr::Decoder decoder({}, type, {});
  const std::string before = reason_of(decoder.decode(once, true));
  decoder.expect_only({{"a", false}, {"g", true}});
  const std::string reason = reason_of(decoder.decode(once, true));
  tfr::fuzz::require(reason_of(decoder.decode(thrice, true)) == reason,
                     "unknown features do not depend on the records before");
  tfr::fuzz::require(before.empty() || !reason.empty(), "damage stays damage");
  tfr::Inference inference(type, {}, -1);
  int64_t records = 0;
  tfr::Damage damage;
  inference.feed(once, true, records, damage);
  // Only the inference parses all features, and so finds more damage.
  tfr::fuzz::require(before.empty() || damage, "the inference finds the damage");
  if (reason != "unknown feature" || damage) return;  // damaged records add no features
  bool is_there = false;
  for (const tfr::FeatureFacts& facts : inference.facts())
    is_there |= facts.name != (facts.feature_list ? "g" : "a") && facts.last != tfr::Content::kUnset;
  tfr::fuzz::require(is_there, "the record has an unknown feature");
}

// An inference sees in the third of equal records what it sees in the first.
void check_inference(tfr::Span once, tfr::Span thrice, tfr::RecordType type) {
  tfr::Inference first(type, {}, -1);
  tfr::Inference again(type, {}, -1);
  int64_t records = 0;
  tfr::Damage damage;
  first.feed(once, true, records, damage);
  again.feed(thrice, true, records, damage);
  tfr::fuzz::require(first.facts().size() == again.facts().size(), "equal records have the same features");
  for (size_t i = 0; i < first.facts().size(); ++i) {
    const tfr::FeatureFacts& one = first.facts()[i];
    const tfr::FeatureFacts& other = again.facts()[i];
    tfr::fuzz::require(one.name == other.name && one.max_values == other.max_values && one.utf8 == other.utf8 &&
                           one.text == other.text &&
                           std::equal(one.first_record, one.first_record + 4, other.first_record),
                       "equal records have the same values");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!size) return 0;
  const uint8_t flags = *data;
  const auto columns = tfr::fuzz::columns(flags);
  const auto type = tfr::fuzz::record_type(flags);
  const std::string record = tfr::fuzz::frame(std::string(data + 1, data + size));
  const tfr::fuzz::Exact once(record);
  const tfr::fuzz::Exact thrice(record + record + record);
  check_unknown_features(once.span(), thrice.span(), type);
  check_inference(once.span(), thrice.span(), type);
  tfr::Decoder decoder(columns, type, {});
  const tfr::DecodedBatch first = decoder.decode(once.span(), true);
  const tfr::DecodedBatch again = decoder.decode(thrice.span(), true);
  tfr::fuzz::require(static_cast<bool>(first.damage) == static_cast<bool>(again.damage),
                     "damage does not depend on the records before");
  if (first.damage) {
    tfr::fuzz::require(std::string(first.damage.reason) == again.damage.reason && !again.damage.offset,
                       "the first record is the damaged one");
    return 0;
  }
  const tfr::fuzz::Arrow one(first);
  const tfr::fuzz::Arrow three(again);
  tfr::fuzz::require(one.array.length == 1 && three.array.length == 3, "every record is a row");
  const std::string bytes = tfr::fuzz::encode(columns, type, one);
  tfr::fuzz::require(tfr::fuzz::encode(columns, type, three) == bytes + bytes + bytes,
                     "values do not depend on the records before");
  if (bytes.empty()) return 0;
  const tfr::fuzz::Exact encoded(bytes);
  const tfr::DecodedBatch back = decoder.decode(encoded.span(), true);
  tfr::fuzz::require(!back.damage, "what is encoded decodes");
  tfr::fuzz::require(tfr::fuzz::encode(columns, type, tfr::fuzz::Arrow(back)) == bytes, "and to the same values");
  return 0;
}
