// The features of a record that are neither columns nor known to the caller.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "record.hpp"

namespace tfr {

class Strangers {
 public:
  // From now on all features are strangers, except for those that expect() names.
  void expect_none() { expects_all_ = false; }
  // A feature list (list) may be known while the context's feature of the same name is a stranger, and vice versa.
  void expect(const std::string& name, bool list) { names_[list].insert(name); }
  bool expects(const std::string& name, bool list) const { return expects_all_ || names(name, list); }
  // Whether expect() named it.
  bool names(const std::string& name, bool list) const { return names_[list].count(name); }

  bool any() const { return !met_.empty(); }
  void clear() {
    if (any()) met_.clear();
  }

  // Takes the value of a stranger, in place of the one the record gave it before; one without a kind counts as
  // absent. False when malformed.
  bool take(const std::string& name, bool list, Span body) {
    const std::string key = (list ? '1' : '0') + name;
    met_.erase(key);
    ColumnSpec spec{name, Kind::kBytes, list ? 2 : 0};
    Content content = Content::kUnset;
    if (!(list ? read_steps(body, spec, content) : read_feature(body, spec, content))) return false;
    if (content != Content::kUnset) met_.emplace(key, Met{spec, count_++});
    return true;
  }

  // The column that would read the stranger that was met first; there must be one.
  const ColumnSpec& first() const {
    const auto earlier = [](const auto& a, const auto& b) { return a.second.order < b.second.order; };
    return std::min_element(met_.begin(), met_.end(), earlier)->second.spec;
  }

 private:
  struct Met {
    ColumnSpec spec;
    uint64_t order;
  };

  // Notes the first kind that is set, and whether there are several values.
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
    return for_each_field(
        body, [&](uint32_t tag, Span step) { return tag != tag_of(1, kLen) || read_feature(step, spec, content); },
        [](uint32_t, Span) { return true; });
  }

  static bool are_text(const std::vector<Span>& values) {
    return std::all_of(values.begin(), values.end(), [](Span value) { return is_text(value.begin, value.size()); });
  }

  bool expects_all_ = true;
  std::unordered_set<std::string> names_[2];  // of features, of feature lists
  std::unordered_map<std::string, Met> met_;  // of one record
  uint64_t count_ = 0;
  Values values_;
};

}  // namespace tfr
