// The layout of records: the entries of their map, in order, with the bytes that do not change.
//
// Most writers give all records of a file the same keys in the same order, and many values have the same size in every
// record. A layout learns this from accepted records. It then consists of a few steps, each of which compares the start
// of an entry, or of several entries of constant size, with the bytes that are expected there.
//
// What a match proves. A step that matches has compared every byte of its entries except values, and except the content
// of features that are no columns, which no path of the decoder reads. A record whose steps match, one directly after
// the other, from its first byte to its last byte, therefore holds exactly these keys, each once.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "message/keys.hpp"

namespace tfr {

// The value of a column inside a run of entries.
struct Field {
  uint32_t at;    // the distance from the start of the run
  uint32_t size;  // in bytes
  int32_t slot;
};

enum class StepKind : uint8_t {
  kRun,    // one or more entries of constant size
  kSkip,   // one entry without a column
  kInt,    // one entry with a scalar int64
  kFloat,  // one entry with a scalar float
  kBytes,  // one entry with a scalar of bytes
  kOther,  // one entry of any shape: its fields are read one by one
};

// The next entries of a record.
struct alignas(32) Step {
  StepKind kind;
  bool optional = false;            // the entry may be absent
  int32_t slot = kUnwanted;         // all kinds but kRun
  EntryHead head;                   // kSkip to kBytes
  std::string text;                 // all kinds but kRun: 0A <name length> <name> 12
  uint32_t size = 0;                // kRun: the number of bytes of all entries
  std::vector<Window> windows;      // kRun
  std::vector<uint32_t> window_at;  // kRun: the distance of each window from the start of the step
  std::vector<Field> fields;        // kRun
};

// The object copies what it learns and keeps no pointers into records.
class Layout {
 public:
  // The columns by slot.
  explicit Layout(std::vector<ColumnSpec> columns) : columns_(std::move(columns)) {}

  // The steps, and the slots of the columns that no step sets. Call compile() after learn().
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<int32_t>& absent() const { return absent_; }
  // The number of columns that the steps set.
  size_t wanted() const { return columns_.size() - absent_.size(); }
  // The number of records that were learned.
  size_t records() const { return records_; }

  void forget() { *this = Layout(std::move(columns_)); }

  // Adapts the layout, so that it has this record, too. The record was accepted field by field. slot_of(name) returns
  // the slot of a name, kUnwanted or kUnknown. Returns false, and changes nothing, if the record has another order of
  // keys, a repeated key, too many new keys, or an entry of an unusual form. Sets `changed` if the steps change.
  template <class SlotOf>
  bool learn(Span record, const SlotOf& slot_of, bool& changed) {
    std::vector<Entry> found;
    if (!parse(record, slot_of, found)) return false;
    if (!records_) {
      first_size_ = found.size();
      entries_ = std::move(found);
      changed = true;
    } else if (!merge(found, changed)) {
      return false;
    }
    ++records_;
    return true;
  }

  // Makes the steps.
  void compile() {
    steps_.clear();
    std::vector<bool> has(columns_.size());
    for (size_t i = 0; i < entries_.size();) {
      size_t end = i;
      while (end < entries_.size() && entries_[end].is_constant()) ++end;
      const bool is_run = end - i > 1 || (end - i == 1 && kind_of(entries_[i]) == StepKind::kOther);
      if (!is_run) end = i + 1;
      steps_.push_back(is_run ? run_of(i, end) : single(entries_[i]));
      for (; i < end; ++i)
        if (entries_[i].slot >= 0) has[static_cast<size_t>(entries_[i].slot)] = true;
    }
    absent_.clear();
    for (size_t slot = 0; slot < has.size(); ++slot)
      if (!has[slot]) absent_.push_back(static_cast<int32_t>(slot));
  }

 private:
  static constexpr size_t kMaxNew = 64;  // keys that the first record did not have

  struct Entry {
    std::string text;  // 0A <name length> <name> 12
    std::string head;  // all bytes before the values, or before the content of a feature that is no column
    size_t size = 0;   // of the values
    int32_t slot = kUnwanted;
    bool usual = true;      // one list of one chunk, or no column; the same for all records with the same head
    bool fixed = true;      // all records have this head
    bool optional = false;  // some records do not have the entry

    bool is_constant() const { return usual && fixed && !optional; }
  };

  // Splits a record into its entries. Returns false if it has a repeated or unknown key or an entry that is not one key
  // followed by one value.
  template <class SlotOf>
  bool parse(Span record, const SlotOf& slot_of, std::vector<Entry>& found) const {
    Span map;
    if (!is_one_field(record, 1, map)) return false;
    std::unordered_set<std::string> seen;
    for (const uint8_t* p = map.begin; p < map.end;) {
      Span whole;
      Span name;
      Span body;
      const uint8_t* const start = p;
      if (!(p = read_field(p, map.end, 1, whole))) return false;
      const uint8_t* const q = read_field(whole.begin, whole.end, 1, name);
      if (!q || !is_one_field({q, whole.end}, 2, body)) return false;
      Entry entry;
      entry.text.assign(whole.begin, q + 1);
      const std::string key(name.begin, name.end);
      const size_t index = found.size();
      if (index < entries_.size() && entries_[index].text == entry.text) {
        entry.slot = entries_[index].slot;
      } else {
        entry.slot = slot_of(key);
        // Another spelling of the name's length would make two entries of one name.
        if (entry.slot == kUnknown || entry.text != key_on_wire(key)) return false;
      }
      if (!seen.insert(key).second) return false;
      Span values = body;
      if (entry.slot >= 0) {
        Span list;
        const ColumnSpec& column = column_of(entry);
        // An accepted scalar is one number or none. A chunk without a number is no value.
        entry.usual = is_one_list(body, content_of(column.kind), list) && is_one_chunk(list, values) &&
                      (column.depth || column.kind >= Kind::kBytes || values.size());
        if (!entry.usual) values = body;
      }
      entry.head.assign(start, values.begin);
      entry.size = values.size();
      found.push_back(std::move(entry));
    }
    return true;
  }

  // Merges the entries of one more record with the entries so far.
  bool merge(std::vector<Entry>& found, bool& changed) {
    std::unordered_map<std::string, size_t> index;
    for (size_t i = 0; i < entries_.size(); ++i) index.emplace(entries_[i].text, i);
    std::vector<Entry> merged;
    bool differs = false;
    size_t next = 0;  // the next entry of the layout
    const auto leave_out = [&](size_t end) {
      for (; next < end; ++next) {
        merged.push_back(entries_[next]);
        differs |= !merged.back().optional;
        merged.back().optional = true;
      }
    };
    for (Entry& entry : found) {
      const auto known = index.find(entry.text);
      if (known == index.end()) {
        entry.optional = differs = true;
      } else {
        if (known->second < next) return false;
        leave_out(known->second);
        const Entry& before = entries_[next++];
        entry.optional = before.optional;
        entry.fixed = before.fixed && before.head == entry.head;
        differs |= entry.fixed != before.fixed;
      }
      merged.push_back(std::move(entry));
    }
    leave_out(entries_.size());
    if (merged.size() > first_size_ + kMaxNew) return false;
    changed |= differs;
    if (differs) entries_ = std::move(merged);
    return true;
  }

  const ColumnSpec& column_of(const Entry& entry) const { return columns_[static_cast<size_t>(entry.slot)]; }

  // The kind of a step of one entry, if the entry is not constant or it is alone.
  StepKind kind_of(const Entry& entry) const {
    if (entry.text.size() > EntryHead::kLongestText) return StepKind::kOther;
    if (entry.slot < 0) return StepKind::kSkip;
    const ColumnSpec& column = column_of(entry);
    if (column.depth) return StepKind::kOther;
    return column.kind == Kind::kInt64   ? StepKind::kInt
           : column.kind == Kind::kFloat ? StepKind::kFloat
                                         : StepKind::kBytes;
  }

  Step single(const Entry& entry) const {
    Step step;
    step.kind = kind_of(entry);
    step.optional = entry.optional;
    step.slot = entry.slot;
    step.text = entry.text;
    if (step.kind == StepKind::kOther) return step;
    step.head = EntryHead(entry.text, entry.slot < 0 ? Content::kUnset : content_of(column_of(entry).kind));
    return step;
  }

  // The step for the entries from `first` to before `end`, which are constant.
  Step run_of(size_t first, size_t end) const {
    Step step;
    step.kind = StepKind::kRun;
    std::string bytes;
    std::string mask;
    for (size_t i = first; i < end; ++i) {
      const Entry& entry = entries_[i];
      bytes += entry.head;
      mask.append(entry.head.size(), '\xFF');
      if (entry.slot >= 0)
        step.fields.push_back({static_cast<uint32_t>(bytes.size()), static_cast<uint32_t>(entry.size), entry.slot});
      bytes.append(entry.size, '\0');
      mask.append(entry.size, '\0');
    }
    step.size = static_cast<uint32_t>(bytes.size());
    set_windows(step, bytes, mask);
    return step;
  }

  // Covers the bytes that have a mask with windows.
  static void set_windows(Step& step, const std::string& bytes, const std::string& mask) {
    for (size_t at = mask.find('\xFF'); at != std::string::npos; at = mask.find('\xFF', at + 32)) {
      Window window;
      copy_part(window.bytes, bytes, at);
      copy_part(window.masks, mask, at);
      step.windows.push_back(window);
      step.window_at.push_back(static_cast<uint32_t>(at));
    }
  }
  // Copies up to 32 bytes.
  static void copy_part(uint8_t (&to)[32], const std::string& from, size_t at) {
    std::memcpy(to, from.data() + at, std::min<size_t>(32, from.size() - at));
  }

  std::vector<ColumnSpec> columns_;
  std::vector<Entry> entries_;
  std::vector<Step> steps_;
  std::vector<int32_t> absent_;
  size_t records_ = 0;
  size_t first_size_ = 0;  // the number of entries of the first record
};

}  // namespace tfr
