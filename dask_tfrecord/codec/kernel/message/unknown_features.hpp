// Finds the features of a record that are neither columns nor known to the caller.
#pragma once

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/utf8.hpp"
#include "message/feature.hpp"

namespace tfr {

// In all functions, `list` is true for a feature list of a SequenceExample. A feature of the context and a feature list
// of the same name are two features. The object copies all names and keeps no pointers into a record.
class UnknownFeatures {
 public:
  // Makes all features unknown except those that allow() names. Until this call, every feature is allowed.
  void allow_none() { allows_all_ = false; }
  void allow(const std::string& name, bool list) { allowed_[list].insert(name); }
  // Makes one feature unknown, although every other feature is allowed.
  void refuse(const std::string& name, bool list) { refused_[list].insert(name); }

  // Returns true if the feature is not unknown.
  bool allows(const std::string& name, bool list) const {
    return allows_all_ ? !refused_[list].count(name) : allowed_[list].count(name) != 0;
  }

  // Forgets the unknown features of the last record.
  void clear() {
    if (any()) found_.clear();
  }
  // Returns true if the record has an unknown feature with a kind. A feature without a kind counts as absent.
  bool any() const { return !found_.empty(); }

  // Takes the value of an unknown feature, in place of its earlier value in the same record. Returns false if the value
  // is malformed.
  bool take(const std::string& name, bool list, Span body) {
    const std::string key = (list ? '1' : '0') + name;
    found_.erase(key);
    ColumnSpec spec{name, Kind::kBytes, list ? 2 : 0};
    Content content = Content::kUnset;
    if (!(list ? read_steps(body, spec, content) : read_feature(body, spec, content))) return false;
    if (content != Content::kUnset) found_.emplace(key, Found{spec, count_++});
    return true;
  }

  // Returns the column that would read the first unknown feature of the record. Requires any().
  const ColumnSpec& first() const {
    const auto earlier = [](const auto& a, const auto& b) { return a.second.order < b.second.order; };
    return std::min_element(found_.begin(), found_.end(), earlier)->second.spec;
  }

 private:
  struct Found {
    ColumnSpec spec;
    uint64_t order;
  };

  // Sets the column's kind to the first kind, and its depth to 1 if there are several values.
  bool read_feature(Span body, ColumnSpec& spec, Content& content) {
    if (!values_.read(body)) return false;
    if (values_.content == Content::kUnset) return true;
    if (values_.size() > 1 && !spec.depth) spec.depth = 1;
    if (content == Content::kUnset) {
      content = values_.content;
      spec.kind = content == Content::kInt64List   ? Kind::kInt64
                  : content == Content::kFloatList ? Kind::kFloat
                                                   : Kind::kString;
    }
    if (content == Content::kBytesList && !are_text(values_.bytes)) spec.kind = Kind::kBytes;
    return true;
  }

  bool read_steps(Span body, ColumnSpec& spec, Content& content) {
    return for_each_step(body, [&](Span step) { return read_feature(step, spec, content); });
  }

  static bool are_text(const std::vector<Span>& values) {
    return std::all_of(values.begin(), values.end(), [](Span value) { return is_text(value.begin, value.size()); });
  }

  bool allows_all_ = true;
  std::unordered_set<std::string> allowed_[2];  // features, feature lists
  std::unordered_set<std::string> refused_[2];
  std::unordered_map<std::string, Found> found_;
  uint64_t count_ = 0;
  Values values_;
};

}  // namespace tfr
