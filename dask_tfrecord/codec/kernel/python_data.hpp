// Bytes and Arrow data of Python objects, and Python objects of Arrow data.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "base/bytes.hpp"
#include "base/memory.hpp"
#include "columns/arrow.hpp"

namespace nb = nanobind;

// Holds the buffer of a Python object.
class Bytes {
 public:
  explicit Bytes(nb::handle object, int flags = PyBUF_SIMPLE) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, flags)) throw nb::python_error();
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { PyBuffer_Release(&buffer_); }

  uint8_t* data() const { return static_cast<uint8_t*>(buffer_.buf); }
  size_t size() const { return static_cast<size_t>(buffer_.len); }
  tfr::Span span() const { return {data(), data() + size()}; }

 private:
  Py_buffer buffer_;
};

inline nb::object capsule(void* pointer, const char* name, void (*destroy)(PyObject*)) {
  PyObject* const object = PyCapsule_New(pointer, name, destroy);
  if (!object) throw nb::python_error();
  return nb::steal(object);
}

template <class Struct>
void destroy_capsule(PyObject* object, const char* name) {
  auto* pointer = static_cast<Struct*>(PyCapsule_GetPointer(object, name));
  if (pointer->release) pointer->release(pointer);
  delete pointer;
}

// A decoded batch. Any Arrow library can import it through __arrow_c_array__.
class Batch {
 public:
  Batch(tfr::ExportNode root, tfr::SharedArena arena) : root_(std::move(root)), arena_(std::move(arena)) {}
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() {
    if (array_.release) array_.release(&array_);
  }

  // Returns the address of an ArrowArray without its schema. The importer moves the array out of this batch.
  uintptr_t array_address() {
    if (!array_.release) tfr::export_array(root_, arena_, &array_);
    return reinterpret_cast<uintptr_t>(&array_);
  }

  nb::tuple export_capsules() const {
    auto schema = std::make_unique<ArrowSchema>();
    tfr::export_schema(root_, schema.get());
    nb::object schema_capsule =
        capsule(schema.release(), "arrow_schema", [](PyObject* o) { destroy_capsule<ArrowSchema>(o, "arrow_schema"); });
    auto array = std::make_unique<ArrowArray>();
    tfr::export_array(root_, arena_, array.get());
    nb::object array_capsule =
        capsule(array.release(), "arrow_array", [](PyObject* o) { destroy_capsule<ArrowArray>(o, "arrow_array"); });
    return nb::make_tuple(std::move(schema_capsule), std::move(array_capsule));
  }

 private:
  tfr::ExportNode root_;
  tfr::SharedArena arena_;
  ArrowArray array_{};
};

inline nb::object python_batch(tfr::ExportNode root, tfr::SharedArena arena) {
  return nb::cast(new Batch(std::move(root), std::move(arena)), nb::rv_policy::take_ownership);
}

inline nb::object int64_array(const tfr::Growing<int64_t>& values, const tfr::SharedArena& arena) {
  tfr::ExportNode node;
  node.format = "l";
  node.length = static_cast<int64_t>(values.size);
  node.buffers = {nullptr, values.data};
  return python_batch(std::move(node), arena);
}

// Holds the Arrow data of a Python object.
class ImportedArray {
 public:
  ImportedArray() = default;
  explicit ImportedArray(nb::handle object) : capsules_(nb::cast<nb::tuple>(object.attr("__arrow_c_array__")())) {
    schema_ = static_cast<ArrowSchema*>(PyCapsule_GetPointer(nb::object(capsules_[0]).ptr(), "arrow_schema"));
    if (!schema_) throw nb::python_error();
    array_ = static_cast<ArrowArray*>(PyCapsule_GetPointer(nb::object(capsules_[1]).ptr(), "arrow_array"));
    if (!array_) throw nb::python_error();
  }

  const ArrowSchema& schema() const { return *schema_; }
  const ArrowArray& array() const { return *array_; }

 private:
  nb::tuple capsules_;
  const ArrowSchema* schema_ = nullptr;
  const ArrowArray* array_ = nullptr;
};
