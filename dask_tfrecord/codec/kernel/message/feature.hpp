// One Feature, read field by field, in any form that protobuf allows.
//
//   Feature { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
//   *List   { repeated value = 1; }
//
// This is the slow path, which is right for every message. The fast path is in map_walker.hpp.
#pragma once

#include <string>
#include <vector>

#include "base/column_spec.hpp"
#include "message/wire.hpp"

namespace tfr {

inline constexpr const char* kMalformed = "malformed protobuf message";
inline constexpr const char* kNotAnExample = "the record is a protobuf message, but not an Example";

// Why a record cannot be decoded. The reason is null if there is no fault.
struct Fault {
  const char* reason = nullptr;  // static text
  int column = -1;               // index of the column that the fault is about, or -1
  std::string found;             // what the record holds instead of the column's kind, or ""

  // Sets the reason and returns false, for `return fault(kMalformed);`.
  bool operator()(const char* why) {
    reason = why;
    return false;
  }
  // Returns false for a message that could not be read. It is malformed unless there is another reason.
  bool unread() { return !reason && (*this)(kMalformed); }
};

// Calls each(feature) for each of FeatureList { repeated Feature feature = 1; } until it returns false. Returns false
// if it was stopped or the list is malformed.
template <class Each>
bool for_each_step(Span list, Each&& each) {
  return for_each_field(list, [&](uint32_t tag, Span feature) { return tag != tag_of(1, kLen) || each(feature); });
}

// The kind of a Feature. The values are the field numbers of its oneof.
enum class Content : uint8_t { kUnset = 0, kBytesList = 1, kFloatList = 2, kInt64List = 3 };
inline constexpr const char* kContentNames[] = {"", "bytes", "float", "int64"};

inline Content content_of(Kind kind) {
  return kind == Kind::kInt64 ? Content::kInt64List : kind == Kind::kFloat ? Content::kFloatList : Content::kBytesList;
}

// Returns true, and sets `list`, if the Feature is exactly one list of this kind.
inline bool is_one_list(Span feature, Content content, Span& list) {
  return is_one_field(feature, static_cast<uint32_t>(content), list);
}
// Returns true, and sets `chunk`, if the list is exactly one packed chunk or one bytes value.
inline bool is_one_chunk(Span list, Span& chunk) {
  return is_one_field(list, 1, chunk);
}

// The values of one Feature. The spans in `bytes` point into the message that was read. Reuse the object for many
// features, because it keeps its memory.
struct Values {
  Content content = Content::kUnset;
  std::vector<int64_t> ints;
  std::vector<float> floats;
  std::vector<Span> bytes;

  size_t size() const { return ints.size() + floats.size() + bytes.size(); }

  // Makes the integers of an int64_list the floats of a float_list. Returns the first that is no 32-bit float, or null.
  const int64_t* ints_to_floats() {
    for (const int64_t& value : ints) {
      const auto number = static_cast<float>(value);
      if (number >= 0x1p63F || static_cast<int64_t>(number) != value) return &value;
      floats.push_back(number);
    }
    ints.clear();
    content = Content::kFloatList;
    return nullptr;
  }

  // Reads a Feature. As in protobuf, a list of the same kind continues the list before it, and a list of another kind
  // replaces it. Returns false if the message is malformed.
  bool read(Span feature) {
    reset(Content::kUnset);
    return for_each_field(feature, [&](uint32_t tag, Span span) {
      if (tag < tag_of(1, kLen) || tag > tag_of(3, kLen)) return true;
      const auto kind = static_cast<Content>(tag >> 3);
      if (kind != content) reset(kind);
      return read_list(span);
    });
  }

 private:
  void reset(Content kind) {
    content = kind;
    ints.clear();
    floats.clear();
    bytes.clear();
  }

  bool read_list(Span list) {
    return for_each_field(
        list,
        [&](uint32_t tag, Span span) {
          if (tag != tag_of(1, kLen)) return true;
          if (content == Content::kBytesList) {
            bytes.push_back(span);
            return true;
          }
          return content == Content::kInt64List ? read_packed_ints(span) : read_packed_floats(span);
        },
        [&](uint32_t tag, Span value) {
          uint64_t number = 0;
          if (tag == tag_of(1, kVarint) && content == Content::kInt64List) {
            read_varint(value.begin, value.end, number);
            ints.push_back(static_cast<int64_t>(number));
          } else if (tag == tag_of(1, kFixed32) && content == Content::kFloatList) {
            floats.push_back(load<float>(value.begin));
          }
          return true;
        });
  }

  bool read_packed_ints(Span packed) {
    const uint8_t* p = packed.begin;
    while (p < packed.end) {
      uint64_t number = 0;
      p = read_varint(p, packed.end, number);
      if (!p) return false;
      ints.push_back(static_cast<int64_t>(number));
    }
    return true;
  }

  bool read_packed_floats(Span packed) {
    if (packed.size() % 4) return false;
    for (const uint8_t* p = packed.begin; p < packed.end; p += 4) floats.push_back(load<float>(p));
    return true;
  }
};

}  // namespace tfr
