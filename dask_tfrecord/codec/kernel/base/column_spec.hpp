// What a column is and what a record is.
#pragma once

#include <cstdint>
#include <string>

namespace tfr {

enum class RecordType : uint8_t { kExample, kSequenceExample, kBytes };

enum class Kind : uint8_t { kInt64, kFloat, kBytes, kString };  // kString: bytes that must be UTF-8

struct ColumnSpec {
  std::string name;  // of the column and of the feature
  Kind kind;
  int depth;                // 0: scalar, 1: list, 2: list of lists, which is a feature list of a SequenceExample
  bool takes_ints = false;  // a column of floats that reads integers as floats, if they are exact
};

}  // namespace tfr
