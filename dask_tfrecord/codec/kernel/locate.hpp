// Finds records in bytes that may begin anywhere: inside a record, or behind damage.
#pragma once

#include <vector>

#include "frame.hpp"

namespace tfr {

// Where a record begins, or up to where none does.
struct Located {
  uint64_t offset;
  uint64_t size;  // of the whole frame that may begin there; 0 if there is none
  bool proven;
};

// CRCs of parts of the same bytes that may overlap. The CRCs up to every so many bytes are kept, and a part's is
// the difference of two: each byte counts once and a part costs at most two steps more, so that a crafted file of
// headers within headers, each with the right checksum, takes no longer than its size says.
class PartCrcs {
 public:
  explicit PartCrcs(crc32c::Function crc) : crc_(crc) {}

  // No part may begin before the first that was asked for.
  uint32_t of(Span part) {
    if (!base_) base_ = part.begin;
    return crc32c::followed_by(up_to(part.begin), part.size()) ^ up_to(part.end);
  }

 private:
  static constexpr size_t kStep = 8 << 10;

  uint32_t up_to(const uint8_t* p) {
    const auto n = static_cast<size_t>(p - base_);
    while (kept_.size() <= n / kStep) kept_.push_back(crc_(base_ + (kept_.size() - 1) * kStep, kStep, kept_.back()));
    return crc_(p - n % kStep, n % kStep, kept_[n / kStep]);
  }

  crc32c::Function crc_;
  const uint8_t* base_ = nullptr;
  std::vector<uint32_t> kept_{0};
};

class Locator {
 public:
  // Lenient: behind damage one proof has to be enough, for the record itself or the next may be damaged too.
  Locator(Span data, const FrameRules& rules, bool lenient)
      : data_(data), rules_(rules), lenient_(lenient), crcs_(crc32c::best()) {}

  // The first record from p on of which is proven, beyond its length's checksum, that its payload is intact and
  // (lenient: or) that a header or the final end follows it. Where more data must decide, it stops.
  Located find(const uint8_t* p) {
    while (seek_header(p)) {
      const uint64_t size = load<uint64_t>(p) + kFrameBytes;
      const Answer answer = is_record(p, size);
      if (answer != Answer::kNo) return {offset_of(p), size, answer == Answer::kYes};
      ++p;
    }
    return {rules_.final ? data_.size() : offset_of(p), 0, false};
  }

 private:
  enum class Answer { kNo, kYes, kMoreData };

  // Moves p to where a length that is allowed and its checksum lie, or else to where the data is too short for them.
  bool seek_header(const uint8_t*& p) const {
    while (left(p) >= kHeaderBytes) {
      if (p[7]) {
        // No length takes more than four bytes, and this one is of the upper four of this place and the next three.
        p += 4;
      } else if (left(p) >= 16 && !(load<uint64_t>(p) | load<uint64_t>(p + 8))) {
        // Any length that begins in the next eight bytes is 0, and the first byte of its checksum is 0. The masked
        // checksum of the length 0 begins with another byte.
        p += 8;
      } else if (load<uint64_t>(p) <= rules_.max_record_bytes && length_is_intact(p)) {
        return true;
      } else {
        ++p;
      }
    }
    return false;
  }

  Answer is_record(const uint8_t* p, uint64_t size) {
    if (size > left(p)) return rules_.final ? Answer::kNo : Answer::kMoreData;
    const Answer followed = is_followed(p + size);
    if (followed == (lenient_ ? Answer::kYes : Answer::kNo)) return followed;
    const Span payload{p + kHeaderBytes, p + size - kFooterBytes};
    const bool intact = crc32c::masked(crcs_.of(payload)) == load<uint32_t>(payload.end);
    if (lenient_) return intact ? Answer::kYes : followed;
    return intact ? followed : Answer::kNo;
  }

  Answer is_followed(const uint8_t* p) const {
    if (p == data_.end && rules_.final) return Answer::kYes;
    if (left(p) < kHeaderBytes) return rules_.final ? Answer::kNo : Answer::kMoreData;
    return length_is_intact(p) ? Answer::kYes : Answer::kNo;
  }

  size_t left(const uint8_t* p) const { return static_cast<size_t>(data_.end - p); }
  uint64_t offset_of(const uint8_t* p) const { return static_cast<uint64_t>(p - data_.begin); }

  Span data_;
  FrameRules rules_;
  bool lenient_;
  PartCrcs crcs_;
};

}  // namespace tfr
