// Finds the first record in data that may begin anywhere: inside a record, or after damage.
#pragma once

#include <vector>

#include "framing/frame.hpp"

namespace tfr {

// If `proven`, a record starts at `offset`. Otherwise no record starts before `offset`. If `size` is not 0, a frame of
// this size may start there, and more data is needed to decide.
struct Located {
  uint64_t offset;
  uint64_t size;
  bool proven;
};

// The CRCs of overlapping parts of the same data. The CRCs of the prefixes whose lengths are multiples of kStep are
// kept, and the CRC of a part follows from those of two prefixes. Each byte is read once, and a part costs at most two
// steps more. The time for a crafted file, in which each header encloses further headers with correct checksums, is
// therefore proportional to its size.
class PartCrcs {
 public:
  explicit PartCrcs(crc32c::Function crc) : crc_(crc) {}

  // No part may begin before the first part that this was called with.
  uint32_t of(Span part) {
    if (!base_) base_ = part.begin;
    // Combining is an exclusive or, so that the prefix can be removed as it would be added.
    return crc32c::combine(up_to(part.begin), up_to(part.end), part.size());
  }

 private:
  static constexpr size_t kStep = 8 << 10;

  // The CRC of [base_, p).
  uint32_t up_to(const uint8_t* p) {
    const auto n = static_cast<size_t>(p - base_);
    while (kept_.size() <= n / kStep) kept_.push_back(crc_(base_ + (kept_.size() - 1) * kStep, kStep, kept_.back()));
    return crc_(p - n % kStep, n % kStep, kept_[n / kStep]);
  }

  crc32c::Function crc_;
  const uint8_t* base_ = nullptr;
  std::vector<uint32_t> kept_{0};
};

// The data must outlive the locator.
class Locator {
 public:
  // After damage be lenient, because the record itself or the next one may be damaged too. See find().
  Locator(Span data, const FrameRules& rules, bool lenient)
      : data_(data), rules_(rules), lenient_(lenient), crcs_(crc32c::best()) {}

  // Finds the first proven record from p on. The checksum of its length holds, its payload is intact, and it is
  // followed by the header of a record or by the final end. If lenient, either an intact payload or what follows is
  // enough. Stops at a record that cannot be decided without more data.
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

  // Moves p to the next intact header with a valid length and returns true. If there is none, moves p to where the data
  // is too short for a header and returns false.
  bool seek_header(const uint8_t*& p) const {
    while (left(p) >= kHeaderBytes) {
      if (p[7]) {
        // A valid length has four bytes of zeros at its end. This byte would be one of them for p and the next three.
        p += 4;
      } else if (left(p) >= 16 && !(load<uint64_t>(p) | load<uint64_t>(p + 8))) {
        // Any length that begins in the next eight bytes is 0 and followed by a zero. The masked checksum of the
        // length 0 does not begin with a zero.
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
