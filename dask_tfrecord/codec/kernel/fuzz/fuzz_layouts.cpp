// Decodes many records of one layout, with some that differ. The result, and the damage, must be those of a decoder
// that gets each record in a call of its own. Such a call decodes field by field, because nothing follows the record.
// The same must come from a decoder that is fed windows, which end anywhere.
#include <random>

#include "fuzz/fuzz.hpp"

namespace {

using tfr::fuzz::require;

// The fuzzer's bytes, followed by zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : p_(data), end_(data + size) {}
  uint8_t take() { return p_ < end_ ? *p_++ : 0; }

 private:
  const uint8_t* p_;
  const uint8_t* end_;
};

// One feature of the layout.
struct Part {
  std::string name;
  tfr::Content content;
  bool scalar;
  uint8_t size;   // the greatest size of the value
  bool constant;  // all values have this size
};

std::string length(size_t n) {
  uint8_t bytes[10];
  return {bytes, tfr::write_varint(bytes, n)};
}

std::string block(uint32_t field, const std::string& content) {
  return static_cast<char>(tfr::tag_of(field, tfr::kLen)) + length(content.size()) + content;
}

std::vector<Part> layout_of(Input& input, const std::vector<tfr::ColumnSpec>& columns) {
  std::vector<Part> parts;
  for (const tfr::ColumnSpec& column : columns) {
    const uint8_t flags = input.take();
    if (flags & 1) continue;
    const uint8_t size = column.depth || column.kind >= tfr::Kind::kBytes ? input.take() : 9;
    parts.push_back({column.name, tfr::content_of(column.kind), !column.depth, size, (flags & 2) != 0});
    if (flags & 4) parts.push_back({"u" + column.name, tfr::Content::kBytesList, true, flags, (flags & 8) != 0});
  }
  return parts;
}

std::string value_of(const Part& part, std::minstd_rand& random) {
  size_t size = part.constant ? part.size : random() % (part.size + 1u);
  if (part.content == tfr::Content::kFloatList) size = part.scalar ? 4 : size / 4 * 4;
  if (part.content == tfr::Content::kInt64List && part.scalar) size = size ? size : 1;
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(random() & 0x7F);
  if (part.content == tfr::Content::kInt64List && part.scalar)
    for (size_t i = 0; i + 1 < size; ++i) bytes[i] = static_cast<char>(bytes[i] | 0x80);
  return bytes;
}

std::string record_of(const std::vector<Part>& parts, std::minstd_rand& random) {
  std::string map;
  for (const Part& part : parts) {
    const std::string feature = block(static_cast<uint32_t>(part.content), block(1, value_of(part, random)));
    map += block(1, block(1, part.name) + block(2, feature));
  }
  return block(1, map);
}

// Changes, inserts or removes a few bytes.
void spoil(std::string& record, Input& input) {
  for (int edits = input.take() % 4; edits-- > 0;) {
    const uint8_t how = input.take();
    const size_t at = (input.take() | static_cast<size_t>(input.take()) << 8) % (record.size() + 1);
    if (how % 4 == 0) {
      record.insert(at, 1, static_cast<char>(input.take()));
    } else if (how % 4 == 1) {
      record.erase(at, 1 + how / 4);
    } else if (at < record.size()) {
      record[at] = static_cast<char>(record[at] ^ (how % 4 == 2 ? 1 << how / 4 % 8 : input.take()));
    }
  }
}

// What the decoder gets from windows of a file of records. A window begins where the last one left off.
tfr::DecodedBatch fed(tfr::Decoder& decoder, const std::string& file, Input& input) {
  tfr::Damage damage;
  int64_t rows = 0;
  size_t at = 0;
  size_t end = 0;
  while (end < file.size() && !damage) {
    end = std::min(file.size(), end + 1 + (input.take() | static_cast<size_t>(input.take() % 16) << 8));
    const tfr::fuzz::Exact window(file.substr(at, end - at));
    tfr::Fed fed = decoder.feed(window.span(), end == file.size(), static_cast<uint64_t>(input.take()) << 10);
    damage = fed.damage;
    damage.record += rows;
    damage.offset += at;
    rows += fed.records;
    at += fed.consumed;
  }
  tfr::DecodedBatch batch = decoder.take();
  require(batch.root.length == rows, "each record that was fed is a row");
  batch.consumed = at;
  batch.damage = damage;
  return batch;
}

void require_same(const tfr::DecodedBatch& batch, const tfr::DecodedBatch& other) {
  const tfr::Damage& one = batch.damage;
  const tfr::Damage& two = other.damage;
  require(static_cast<bool>(one) == static_cast<bool>(two), "the same record is damaged");
  require(batch.consumed == other.consumed, "damage is found where it is");
  if (!one) return;
  require(one.record == two.record && one.offset == two.offset, "damage is found in the same record");
  require(std::string(one.reason) == two.reason && one.column == two.column && one.found == two.found &&
              one.size == two.size,
          "the damage is the same");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const uint8_t flags = input.take() & 0xFE;  // records of type Example
  const auto columns = tfr::fuzz::columns(flags);
  std::vector<Part> parts = layout_of(input, tfr::fuzz::columns(flags & 1));
  std::minstd_rand random(input.take());
  std::vector<std::string> records;
  for (int group = 0; group < 2; ++group) {
    for (int i = 0; i < 12; ++i) records.push_back(record_of(parts, random));
    records.push_back(record_of(parts, random));
    spoil(records.back(), input);
    if (input.take() % 8 == 0 && !parts.empty()) std::swap(parts[0], parts[input.take() % parts.size()]);
    if (input.take() % 8 == 0 && !parts.empty()) parts.erase(parts.begin() + input.take() % parts.size());
  }
  const bool strict = flags & 0x80;
  std::string all;
  for (const std::string& record : records) all += tfr::fuzz::frame(record);
  const tfr::fuzz::Exact together(all);
  tfr::Decoder decoder(columns, tfr::RecordType::kExample, {});
  if (strict) decoder.expect_only({{"ua", false}, {"ud", false}});
  const tfr::DecodedBatch batch = decoder.decode(together.span(), true);

  tfr::Decoder alone(columns, tfr::RecordType::kExample, {});
  if (strict) alone.expect_only({{"ua", false}, {"ud", false}});
  std::string expected;
  tfr::DecodedBatch last;  // with the damage of a record, as if the decoder had got all records
  for (const std::string& payload : records) {
    const tfr::fuzz::Exact record(tfr::fuzz::frame(payload));
    const tfr::DecodedBatch one = alone.decode(record.span(), true);
    if (one.damage) {
      last.damage = one.damage;
      last.damage.record = last.root.length;
      last.damage.offset = last.consumed;
      break;
    }
    expected += tfr::fuzz::encode(columns, tfr::RecordType::kExample, tfr::fuzz::Arrow(one));
    last.consumed += record.span().size();
    ++last.root.length;
  }
  require_same(batch, last);
  require(tfr::fuzz::encode(columns, tfr::RecordType::kExample, tfr::fuzz::Arrow(batch)) == expected,
          "the values are the same");

  const tfr::DecodedBatch windows = fed(decoder, all, input);
  require_same(windows, last);
  require(tfr::fuzz::encode(columns, tfr::RecordType::kExample, tfr::fuzz::Arrow(windows)) == expected,
          "the values are the same in windows");
  return 0;
}
