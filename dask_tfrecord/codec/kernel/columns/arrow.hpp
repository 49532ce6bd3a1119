// Arrow's C Data Interface (https://arrow.apache.org/docs/format/CDataInterface.html): its two structs, views of
// imported columns, and the export of decoded columns.
//
// Import: a view points into the batch's buffers, owns nothing, and must not outlive the batch.
// Export: an exported array owns a share of the arena that its buffers lie in. Its consumer releases it as Arrow says.
#pragma once

#include <string>
#include <vector>

#include "base/column_spec.hpp"
#include "base/memory.hpp"

extern "C" {
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};
}

namespace tfr {

// ---- import --------------------------------------------------------------------------------------

// The offsets of values or lists: 32-bit or 64-bit numbers, or multiples of a fixed size.
struct Bounds {
  const int32_t* narrow = nullptr;
  const int64_t* wide = nullptr;
  int64_t fixed = 0;
  int64_t first = 0;  // the array's offset

  TFR_INLINE int64_t operator[](int64_t i) const {
    if (narrow) return narrow[first + i];
    if (wide) return wide[first + i];
    return (first + i) * fixed;
  }
};

struct Validity {
  const uint8_t* bits = nullptr;  // null if everything is valid
  int64_t first = 0;

  TFR_INLINE bool operator[](int64_t i) const { return !bits || (bits[(first + i) >> 3] >> ((first + i) & 7) & 1); }
  bool all(int64_t begin, int64_t end) const {
    for (int64_t i = begin; bits && i < end; ++i)
      if (!(*this)[i]) return false;
    return true;
  }
};

// One imported column. Pointers that the column's kind and depth do not need are null.
struct ColumnView {
  Validity valid;        // of the rows
  Bounds lists[2];       // depth 1 uses the first, depth 2 both
  Validity inner_valid;  // of the inner lists (depth 2)
  Validity value_valid;  // of the values (depth >= 1)
  const int64_t* ints = nullptr;
  const float* floats = nullptr;
  Bounds bytes;
  const uint8_t* data = nullptr;
  int64_t data_end = 0;

  // Copies n bytes of values from `from` on, and returns their end. Overwrites 16 bytes at p.
  TFR_INLINE uint8_t* copy_bytes(uint8_t* p, int64_t from, uint64_t n) const {
    if (n <= 16 && data_end - from >= 16) {
      copy16(p, data + from);
    } else if (n) {
      std::memcpy(p, data + from, n);
    }
    return p + n;
  }

  // Makes the row at `offset` row 0. The offset is that of the enclosing struct array.
  void shift(int depth, int64_t offset) {
    valid.first += offset;
    if (depth) {
      lists[0].first += offset;
      return;
    }
    bytes.first += offset;
    if (ints) ints += offset;
    if (floats) floats += offset;
  }
};

inline Validity validity_of(const ArrowArray& array) {
  const auto* bits = array.n_buffers > 0 ? static_cast<const uint8_t*>(array.buffers[0]) : nullptr;
  return {array.null_count == 0 ? nullptr : bits, array.offset};
}

// An empty array may have no buffer of offsets, or an empty one.
inline Bounds import_offsets(const ArrowArray& array, bool wide) {
  static const int32_t kNone[1] = {0};
  Bounds bounds;
  if (!array.length) {
    bounds.narrow = kNone;
    return bounds;
  }
  bounds.first = array.offset;
  if (wide) {
    bounds.wide = static_cast<const int64_t*>(array.buffers[1]);
  } else {
    bounds.narrow = static_cast<const int32_t*>(array.buffers[1]);
  }
  return bounds;
}

// Sets `view` and returns null, or returns a static text that says what is wrong with the column's type.
inline const char* import_column(const ColumnSpec& spec, const ArrowSchema* schema, const ArrowArray* array,
                                 ColumnView& view) {
  view.valid = validity_of(*array);
  for (int level = 0; level < spec.depth; ++level) {
    const std::string format = schema->format;
    if (format == "+l" || format == "+L") {
      view.lists[level] = import_offsets(*array, format == "+L");
    } else if (format.rfind("+w:", 0) == 0) {
      view.lists[level].fixed = std::stoll(format.substr(3));
      view.lists[level].first = array->offset;
    } else {
      return "the column's Arrow type is not a list";
    }
    schema = schema->children[0];
    array = array->children[0];
    (level + 1 < spec.depth ? view.inner_valid : view.value_valid) = validity_of(*array);
  }
  const std::string format = schema->format;
  if (spec.kind == Kind::kInt64 && format == "l") {
    view.ints = static_cast<const int64_t*>(array->buffers[1]) + array->offset;
  } else if (spec.kind == Kind::kFloat && format == "f") {
    view.floats = static_cast<const float*>(array->buffers[1]) + array->offset;
  } else if (spec.kind >= Kind::kBytes && (format == "z" || format == "u" || format == "Z" || format == "U")) {
    view.bytes = import_offsets(*array, format == "Z" || format == "U");
    view.data = static_cast<const uint8_t*>(array->buffers[2]);
    view.data_end = view.bytes[array->length];
  } else {
    return "the column's Arrow storage is not that of its kind";
  }
  return nullptr;
}

// ---- export --------------------------------------------------------------------------------------

// An array and its type, before their export. The buffers point into an arena.
struct ExportNode {
  std::string format;
  std::string name;
  int64_t length = 0;
  int64_t null_count = 0;
  std::vector<const void*> buffers;
  std::vector<ExportNode> children;
};

// The private data of an exported schema: the texts and schemas that the struct points to.
struct SchemaHolder {
  std::string format;
  std::string name;
  std::vector<ArrowSchema> children;
  std::vector<ArrowSchema*> pointers;
};

// The private data of an exported array: its share of the arena, and the arrays that the struct points to.
struct ArrayHolder {
  SharedArena arena;
  std::vector<const void*> buffers;
  std::vector<ArrowArray> children;
  std::vector<ArrowArray*> pointers;
};

// A consumer may move children out before it releases the parent. Such children have no release function.
template <class Struct, class Holder>
void release_tree(Struct* node) {
  auto* holder = static_cast<Holder*>(node->private_data);
  for (Struct& child : holder->children)
    if (child.release) child.release(&child);
  delete holder;
  node->release = nullptr;
}

// Fills `out`, which the caller must release.
inline void export_schema(const ExportNode& node, ArrowSchema* out) {
  constexpr int64_t kNullable = 2;
  auto* holder = new SchemaHolder{node.format, node.name, {}, {}};
  holder->children.resize(node.children.size());
  for (size_t i = 0; i < node.children.size(); ++i) {
    export_schema(node.children[i], &holder->children[i]);
    holder->pointers.push_back(&holder->children[i]);
  }
  *out = ArrowSchema{holder->format.c_str(),
                     holder->name.c_str(),
                     nullptr,
                     kNullable,
                     static_cast<int64_t>(node.children.size()),
                     holder->pointers.data(),
                     nullptr,
                     release_tree<ArrowSchema, SchemaHolder>,
                     holder};
}

// Fills `out`, which the caller must release.
inline void export_array(const ExportNode& node, const SharedArena& arena, ArrowArray* out) {
  auto* holder = new ArrayHolder{arena, node.buffers, {}, {}};
  holder->children.resize(node.children.size());
  for (size_t i = 0; i < node.children.size(); ++i) {
    export_array(node.children[i], arena, &holder->children[i]);
    holder->pointers.push_back(&holder->children[i]);
  }
  *out = ArrowArray{node.length,
                    node.null_count,
                    0,
                    static_cast<int64_t>(node.buffers.size()),
                    static_cast<int64_t>(node.children.size()),
                    holder->buffers.data(),
                    holder->pointers.data(),
                    nullptr,
                    release_tree<ArrowArray, ArrayHolder>,
                    holder};
}

}  // namespace tfr
