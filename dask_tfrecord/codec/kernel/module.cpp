// The binding of the kernel. Only this file, python_*.hpp and without_gil.hpp use Python. The contract of each call is
// in ../_kernel.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>

#include "base/turns.hpp"
#include "columns/check.hpp"
#include "columns/decode.hpp"
#include "columns/encode.hpp"
#include "columns/gather.hpp"
#include "framing/locate.hpp"
#include "framing/scan.hpp"
#include "python_checksums.hpp"
#include "python_data.hpp"
#include "without_gil.hpp"

namespace {

using ColumnTuple = std::tuple<std::string, std::string, int>;
using KnownFeatures = std::vector<std::tuple<std::string, bool>>;

// Refuses a second call at the same time, because the kernel's objects keep scratch memory between calls.
class OneCall {
 public:
  explicit OneCall(std::mutex& mutex) : lock_(mutex, std::try_to_lock) {
    if (!lock_) throw std::runtime_error("this object is in use by another thread; give each thread its own");
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

// The names of tfr::Kind and tfr::RecordType, in the order of their values.
constexpr const char* kKinds[] = {"int64", "float", "bytes", "string"};
constexpr const char* kRecordTypes[] = {"example", "sequence_example", "bytes"};

template <class Enum, size_t count>
Enum parse(const char* const (&names)[count], const std::string& name, const char* what) {
  const auto* const found = std::find(names, names + count, name);
  if (found == names + count) throw nb::value_error((std::string("unknown ") + what + ": " + name).c_str());
  return static_cast<Enum>(found - names);
}

tfr::RecordType parse_record_type(const std::string& name) {
  return parse<tfr::RecordType>(kRecordTypes, name, "record type");
}

// The kernel refuses longer records in any case.
tfr::FrameRules frame_rules(bool verify_crc, uint64_t max_record_bytes, bool final = true) {
  return {verify_crc, std::min(max_record_bytes, tfr::kMaxRecordBytes), final};
}

std::vector<tfr::ColumnSpec> parse_columns(const std::vector<ColumnTuple>& columns, tfr::RecordType type) {
  std::vector<tfr::ColumnSpec> specs;
  for (const auto& [name, kind, depth] : columns)
    specs.push_back({name, parse<tfr::Kind>(kKinds, kind, "kind"), depth});
  const int deepest = type == tfr::RecordType::kBytes ? 0 : type == tfr::RecordType::kExample ? 1 : 2;
  for (const tfr::ColumnSpec& spec : specs) {
    if (spec.depth < 0 || spec.depth > deepest)
      throw nb::value_error(("too deep for this record type: " + spec.name).c_str());
    if (type == tfr::RecordType::kBytes && (spec.kind < tfr::Kind::kBytes || specs.size() > 1))
      throw nb::value_error("records of type bytes are one column of bytes");
  }
  return specs;
}

nb::object damage_tuple(const tfr::Damage& damage) {
  if (!damage) return nb::none();
  nb::object unknown = nb::none();
  if (damage.unknown)
    unknown =
        nb::make_tuple(damage.unknown->name, kKinds[static_cast<size_t>(damage.unknown->kind)], damage.unknown->depth);
  return nb::make_tuple(damage.record, damage.offset, damage.size, damage.reason, damage.column, damage.found, unknown);
}

class PyDecoder {
 public:
  PyDecoder(const std::vector<ColumnTuple>& columns, const std::string& record_type, bool verify_crc,
            uint64_t max_record_bytes, const std::optional<KnownFeatures>& known, bool one_map,
            const std::vector<std::string>& integers)
      : type_(parse_record_type(record_type)),
        decoder_(parse_columns(columns, type_), type_, frame_rules(verify_crc, max_record_bytes)) {
    if (known) decoder_.expect_only(*known);
    if (!known && one_map) decoder_.expect_one_map();
    decoder_.take_integers(integers);
  }

  nb::tuple feed(nb::handle data, bool final, uint64_t more) {
    const OneCall call(mutex_);
    const Bytes bytes(data);
    if (!decoder_.has_room(bytes.size())) throw nb::value_error("the batch is full: take it first");
    const tfr::Fed fed = without_gil([&] { return decoder_.feed(bytes.span(), final, more); });
    return nb::make_tuple(fed.records, fed.consumed, damage_tuple(fed.damage));
  }

  nb::tuple feed_records(const nb::sequence& data, nb::handle places, nb::handle rows) {
    const OneCall call(mutex_);
    std::vector<std::unique_ptr<Bytes>> held;
    std::vector<tfr::Span> buffers;
    for (const nb::handle one : data) {
      held.push_back(std::make_unique<Bytes>(one));
      buffers.push_back(held.back()->span());
    }
    const Bytes all(places);
    const Bytes numbers(rows);
    const auto* place = reinterpret_cast<const int64_t*>(all.data());
    const auto* row = reinterpret_cast<const int64_t*>(numbers.data());
    const size_t count = all.size() / (3 * sizeof(int64_t));
    constexpr size_t kAhead = 32;  // places to prefetch
    records_.resize(numbers.size() / sizeof(int64_t));
    for (size_t i = 0; i < records_.size(); ++i) {
      const auto ahead = static_cast<uint64_t>(row[std::min(i + kAhead, records_.size() - 1)]);
      if (ahead < count) tfr::prefetch(place + 3 * ahead);
      const auto number = static_cast<uint64_t>(row[i]);
      if (number >= count) throw nb::index_error("a row is outside the places");
      const auto buffer = static_cast<uint64_t>(place[3 * number]);
      const auto start = static_cast<uint64_t>(place[3 * number + 1]);
      const auto stop = static_cast<uint64_t>(place[3 * number + 2]);
      if (buffer >= buffers.size() || start > stop || stop > buffers[buffer].size())
        throw nb::index_error("a record is outside the data");
      records_[i] = {buffers[buffer].begin + start, buffers[buffer].begin + stop};
    }
    const tfr::Fed fed = without_gil([&] { return decoder_.feed_records(records_); });
    return nb::make_tuple(fed.records, fed.consumed, damage_tuple(fed.damage));
  }

  nb::object take() {
    const OneCall call(mutex_);
    tfr::DecodedBatch batch = without_gil([&] { return decoder_.take(); });
    return python_batch(std::move(batch.root), std::move(batch.arena));
  }

 private:
  std::mutex mutex_;
  tfr::RecordType type_;
  tfr::Decoder decoder_;
  std::vector<tfr::Span> records_;  // of feed_records(): fresh pages for each call would take longer than the search
};

PyObject* encode_error = nullptr;

class PyEncoder {
 public:
  PyEncoder(const std::vector<ColumnTuple>& columns, const std::string& record_type)
      : type_(parse_record_type(record_type)), encoder_(parse_columns(columns, type_), type_) {
    if (type_ == tfr::RecordType::kBytes && columns.size() != 1)
      throw nb::value_error("records of type bytes are one column of bytes");
  }

  void bind(nb::handle batch) {
    const OneCall call(mutex_);
    batch_ = ImportedArray(batch);
    int column = -1;
    if (const char* wrong = encoder_.bind(batch_.schema(), batch_.array(), column)) fail(-1, column, wrong);
  }

  nb::tuple encode_into(int64_t row, nb::handle out, std::optional<int64_t> end, std::optional<nb::handle> starts) {
    const OneCall call(mutex_);
    const Bytes room(out, PyBUF_WRITABLE);
    const int64_t last = end.value_or(encoder_.rows());
    check_rows(row, last);
    std::optional<Bytes> found;
    if (starts) {
      found.emplace(*starts, PyBUF_WRITABLE);
      if (found->size() / sizeof(int64_t) < static_cast<uint64_t>(last - row))
        throw nb::value_error("there is no room for the starts of all rows");
    }
    const tfr::EncodedRows done = without_gil([&] {
      auto* positions = found ? reinterpret_cast<int64_t*>(found->data()) : nullptr;
      return encoder_.encode(row, last, room.data(), room.size(), positions);
    });
    if (done.fault.reason) fail(done.fault.row, done.fault.column, done.fault.reason);
    return nb::make_tuple(done.next_row, done.bytes, done.need);
  }

  nb::list statistics(const std::vector<int64_t>& bounds) {
    const OneCall call(mutex_);
    for (size_t i = 1; i < bounds.size(); ++i) check_rows(bounds[i - 1], bounds[i]);
    nb::list all;
    for (size_t column = 0; column < encoder_.columns(); ++column) {
      const std::vector<tfr::ColumnStatistics> ranges =
          without_gil([&] { return encoder_.statistics(column, bounds); });
      nb::list nulls, least, greatest;
      for (const tfr::ColumnStatistics& found : ranges)
        add_statistics(encoder_.kind(column), found, nulls, least, greatest);
      all.append(nb::make_tuple(nulls, least, greatest));
    }
    return all;
  }

 private:
  void check_rows(int64_t row, int64_t end) const {
    if (row < 0 || row > end || end > encoder_.rows()) throw nb::index_error("row is outside the batch");
  }

  // Adds one element to each list. At most one of the extents is not empty.
  static void add_statistics(tfr::Kind kind, const tfr::ColumnStatistics& found, nb::list& nulls, nb::list& least,
                             nb::list& greatest) {
    nulls.append(found.nulls);
    if (!found.ints.empty()) {
      least.append(found.ints.low);
      greatest.append(found.ints.high);
    } else if (!found.floats.empty()) {  // adding 0.0 removes the sign of a zero, which would depend on the order
      least.append(found.floats.low + 0.0);
      greatest.append(found.floats.high + 0.0);
    } else if (!found.bytes.empty()) {
      least.append(python_bytes(kind, found.bytes.low));
      greatest.append(python_bytes(kind, found.bytes.high));
    } else {
      least.append(nb::none());
      greatest.append(nb::none());
    }
  }

  static nb::object python_bytes(tfr::Kind kind, tfr::Span value) {
    const auto* text = reinterpret_cast<const char*>(value.begin);
    if (kind == tfr::Kind::kString) return nb::str(text, value.size());
    return nb::bytes(text, value.size());
  }

  [[noreturn]] static void fail(int64_t row, int column, const char* reason) {
    PyErr_SetObject(encode_error, nb::make_tuple(row, column, reason).ptr());
    throw nb::python_error();
  }

  std::mutex mutex_;
  tfr::RecordType type_;
  tfr::Encoder encoder_;
  ImportedArray batch_;  // the encoder has views of it
};

class PyInference {
 public:
  PyInference(const std::string& record_type, bool verify_crc, uint64_t max_record_bytes, int64_t max_records,
              std::optional<uint64_t> max_features)
      : inference_(parse_record_type(record_type), frame_rules(verify_crc, max_record_bytes), max_records,
                   max_features.value_or(SIZE_MAX)),
        search_(inference_, frame_rules(verify_crc, max_record_bytes).max_record_bytes) {}

  nb::tuple feed(nb::handle data, bool final) {
    const OneCall call(mutex_);
    const Bytes bytes(data);
    int64_t records = 0;
    tfr::Damage damage;
    const uint64_t consumed = without_gil([&] { return inference_.feed(bytes.span(), final, records, damage); });
    return nb::make_tuple(records, consumed, damage_tuple(damage));
  }

  nb::tuple check(nb::handle data, bool final, std::optional<uint64_t> limit) {
    const OneCall call(mutex_);
    const Bytes bytes(data);
    const tfr::SharedArena arena = std::make_shared<tfr::Arena>(4096);
    const tfr::Checked checked =
        without_gil([&] { return search_.check(bytes.span(), final, limit.value_or(UINT64_MAX), *arena); });
    const auto column = [&](const tfr::Growing<int64_t>& values) { return int64_array(values, arena); };
    return nb::make_tuple(checked.records, checked.consumed, checked.continues, checked.is_open, column(checked.starts),
                          column(checked.ends), column(checked.records_before), column(checked.reasons), checked.texts);
  }

  nb::list features() {
    const OneCall call(mutex_);
    nb::list all;
    for (const tfr::FeatureFacts& facts : inference_.facts()) {
      nb::dict kinds;
      for (int content = 1; content <= 3; ++content)
        if (facts.first_record[content] >= 0) kinds[tfr::kContentNames[content]] = facts.first_record[content];
      nb::dict feature;
      feature["name"] = facts.name;
      feature["feature_list"] = facts.feature_list;
      feature["kinds"] = kinds;
      feature["max_values"] = facts.max_values;
      feature["utf8"] = facts.utf8;
      feature["text"] = facts.text;
      all.append(feature);
    }
    return all;
  }

 private:
  std::mutex mutex_;
  tfr::Inference inference_;
  tfr::DamageSearch search_;
};

nb::tuple scan(nb::handle data, bool final, bool verify_crc, uint64_t max_record_bytes, bool offsets, uint64_t every) {
  const Bytes bytes(data);
  const tfr::SharedArena arena = std::make_shared<tfr::Arena>(4096);
  const tfr::FrameRules rules = frame_rules(verify_crc, max_record_bytes, final);
  const tfr::Scanned scanned =
      without_gil([&] { return tfr::scan(bytes.span(), rules, {offsets || every, every}, *arena); });
  const auto array = [&](bool wanted, const tfr::Growing<int64_t>& values) {
    return wanted ? int64_array(values, arena) : nb::none();
  };
  return nb::make_tuple(scanned.records, scanned.consumed, damage_tuple(scanned.damage),
                        array(offsets || every, scanned.offsets), array(every, scanned.numbers));
}

nb::tuple find_record(nb::handle data, uint64_t start, bool final, uint64_t max_record_bytes, bool lenient,
                      std::optional<uint64_t> limit) {
  const Bytes bytes(data);
  if (start > bytes.size()) throw nb::index_error("start is outside the data");
  const tfr::FrameRules rules = frame_rules(true, max_record_bytes, final);
  const tfr::Located found = without_gil([&] {
    return tfr::Locator(bytes.span(), rules, lenient, limit.value_or(UINT64_MAX)).find(bytes.data() + start);
  });
  return nb::make_tuple(found.offset, found.size, found.proven);
}

nb::object take_bytes(nb::handle column, nb::handle rows) {
  const ImportedArray imported(column);
  const Bytes numbers(rows);
  const std::string format = imported.schema().format;
  const tfr::ColumnSpec spec{"", tfr::Kind::kBytes, 0};
  tfr::ColumnView view;
  if (const char* wrong = tfr::import_column(spec, &imported.schema(), &imported.array(), view))
    throw nb::type_error(wrong);
  const auto* first = reinterpret_cast<const int64_t*>(numbers.data());
  const auto count = static_cast<int64_t>(numbers.size() / sizeof(int64_t));
  const tfr::SharedArena arena = std::make_shared<tfr::Arena>(4096);
  tfr::ExportNode node;
  node.format = format;
  const char* wrong = without_gil([&] {
    const auto gather = format == "z" || format == "u" ? tfr::gather_bytes<int32_t> : tfr::gather_bytes<int64_t>;
    return gather(view, imported.array().length, first, count, *arena, node);
  });
  if (wrong) throw nb::index_error(wrong);
  return python_batch(std::move(node), arena);
}

void choose_turns(nb::handle weights, nb::handle deficits, nb::handle chosen) {
  const Bytes given(weights);
  const Bytes changed(deficits, PyBUF_WRITABLE);
  const Bytes turns(chosen, PyBUF_WRITABLE);
  if (given.size() != changed.size()) throw nb::value_error("each source needs a weight and a deficit");
  const char* wrong = without_gil([&] {
    return tfr::choose_turns(reinterpret_cast<const int64_t*>(given.data()), reinterpret_cast<int64_t*>(changed.data()),
                             given.size() / sizeof(int64_t), reinterpret_cast<int16_t*>(turns.data()),
                             turns.size() / sizeof(int16_t));
  });
  if (wrong) throw nb::value_error(wrong);
}

// Memory of the pool as an array, which gives the memory back when it is dropped.
nb::ndarray<nb::numpy, uint8_t> pool_array(size_t size) {
  tfr::Pool& pool = tfr::Pool::instance();
  auto chunk = std::make_unique<tfr::Chunk>(pool.take(size));
  uint8_t* const data = chunk->data;
  nb::capsule owner(chunk.release(), [](void* pointer) noexcept {
    const std::unique_ptr<tfr::Chunk> owned(static_cast<tfr::Chunk*>(pointer));
    tfr::Pool::instance().give_back(*owned);
  });
  return {data, {size}, owner};
}

}  // namespace

NB_MODULE(_kernel, m) {
  using namespace nb::literals;
  // At the exit of Python, the frames of daemon threads still own objects of the kernel.
  nb::set_leak_warnings(false);
  encode_error = PyErr_NewException("dask_tfrecord.codec._kernel.EncodeError", PyExc_ValueError, nullptr);
  m.attr("EncodeError") = nb::handle(encode_error);
  nb::class_<Batch>(m, "Batch")
      .def("array_address", &Batch::array_address)
      .def(
          "__arrow_c_array__", [](const Batch& batch, nb::handle) { return batch.export_capsules(); },
          "requested_schema"_a = nb::none());
  nb::class_<PyEncoder>(m, "Encoder")
      .def(nb::init<const std::vector<ColumnTuple>&, const std::string&>(), "columns"_a, "record_type"_a)
      .def("bind", &PyEncoder::bind, "batch"_a)
      .def("encode_into", &PyEncoder::encode_into, "row"_a, "out"_a, "end"_a = nb::none(), "starts"_a = nb::none())
      .def("statistics", &PyEncoder::statistics, "bounds"_a);
  nb::class_<PyDecoder>(m, "Decoder")
      .def(nb::init<const std::vector<ColumnTuple>&, const std::string&, bool, uint64_t,
                    const std::optional<KnownFeatures>&, bool, const std::vector<std::string>&>(),
           "columns"_a, "record_type"_a, nb::kw_only(), "verify_crc"_a = true,
           "max_record_bytes"_a = tfr::kMaxRecordBytes, "known"_a = nb::none(), "one_map"_a = false,
           "integers"_a = std::vector<std::string>())
      .def("feed", &PyDecoder::feed, "data"_a, nb::kw_only(), "final"_a, "more"_a = 0)
      .def("feed_records", &PyDecoder::feed_records, "data"_a, "places"_a, "rows"_a)
      .def("take", &PyDecoder::take);
  nb::class_<PyInference>(m, "Inference")
      .def(nb::init<const std::string&, bool, uint64_t, int64_t, std::optional<uint64_t>>(), "record_type"_a,
           nb::kw_only(), "verify_crc"_a = true, "max_record_bytes"_a = tfr::kMaxRecordBytes, "max_records"_a = -1,
           "max_features"_a = nb::none())
      .def("feed", &PyInference::feed, "data"_a, nb::kw_only(), "final"_a)
      .def("check", &PyInference::check, "data"_a, nb::kw_only(), "final"_a, "limit"_a = nb::none())
      .def("features", &PyInference::features);
  m.def("scan", &scan, "data"_a, nb::kw_only(), "final"_a, "verify_crc"_a = true,
        "max_record_bytes"_a = tfr::kMaxRecordBytes, "offsets"_a = false, "every"_a = 0);
  m.def("find_record", &find_record, "data"_a, "start"_a, nb::kw_only(), "final"_a,
        "max_record_bytes"_a = tfr::kMaxRecordBytes, "lenient"_a = false, "limit"_a = nb::none());
  m.def("take_bytes", &take_bytes, "column"_a, "rows"_a);
  m.def("choose_turns", &choose_turns, "weights"_a, "deficits"_a, "chosen"_a);
  m.def("limit_pool", [](size_t bytes) { tfr::Pool::instance().set_limit(bytes); }, "bytes"_a);
  m.def("raise_pool_limit", [](size_t bytes) { tfr::Pool::instance().raise_limit(bytes); }, "bytes"_a);
  m.def("pool_bytes", [] { return tfr::Pool::instance().kept(); });
  m.def("pool_array", &pool_array, "size"_a);
  bind_checksums(m);
}
