// The binding of the checksums.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "base/adler32.hpp"
#include "base/crc32c.hpp"
#include "framing/scan.hpp"
#include "python_data.hpp"
#include "without_gil.hpp"

inline uint32_t crc32c_of(nb::handle data, uint32_t value, const std::string& implementation) {
  const Bytes bytes(data);
  for (const tfr::crc32c::Implementation& candidate : tfr::crc32c::implementations()) {
    if (!candidate.name || (implementation != "best" && implementation != candidate.name)) continue;
    const WithoutGil no_gil;
    return candidate.function(bytes.data(), bytes.size(), value);
  }
  throw nb::value_error(("not available here: " + implementation).c_str());
}

inline uint32_t crc32c_combine(uint32_t crc1, uint32_t crc2, uint64_t size2) {
  return tfr::crc32c::implementations()[0].combine(crc1, crc2, size2);
}

inline uint32_t crc32_combine(uint32_t crc1, uint32_t crc2, uint64_t size2) {
  return tfr::crc32c::combine<tfr::crc32c::kGzipPolynomial>(crc1, crc2, size2);
}

inline uint32_t crc32c_of_records(nb::handle data, uint64_t records, uint32_t value) {
  const Bytes bytes(data);
  const WithoutGil no_gil;
  return tfr::crc_of_records(bytes.span(), records, value);
}

inline std::vector<std::string> crc32c_implementations() {
  std::vector<std::string> names;
  for (const tfr::crc32c::Implementation& candidate : tfr::crc32c::implementations())
    if (candidate.name) names.emplace_back(candidate.name);
  return names;
}

inline void bind_checksums(nb::module_& m) {
  using namespace nb::literals;
  m.def("crc32c", &crc32c_of, "data"_a, "value"_a = 0, "implementation"_a = "best");
  m.def("crc32c_combine", &crc32c_combine, "crc1"_a, "crc2"_a, "size2"_a);
  m.def("crc32_combine", &crc32_combine, "crc1"_a, "crc2"_a, "size2"_a);
  m.def("adler32_combine", &tfr::combine_adler32, "adler1"_a, "adler2"_a, "size2"_a);
  m.def("crc32c_of_records", &crc32c_of_records, "data"_a, "records"_a, "value"_a = 0);
  m.def("crc32c_implementations", &crc32c_implementations);
}
