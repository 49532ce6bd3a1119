// Finds the first record in data that may begin anywhere: inside a record, or after damage.
#pragma once

#include <algorithm>
#include <vector>

#include "framing/frame.hpp"

namespace tfr {

// If `proven`, a record of this size starts at `offset`. Otherwise no record starts before `offset`. If `size` is not
// 0, a record may start there, and as many bytes and a header more are needed to decide.
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
    if (part.size() <= kStep) return crc_(part.begin, part.size(), 0);
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

// The data must outlive the locator. Searches must go forward: none may start before the one before it did.
class Locator {
 public:
  // After damage be lenient, because the record itself or the next one may be damaged too. See find(). No record ends
  // after byte `limit` of the data: the file, or what is read of it, ends there.
  Locator(Span data, const FrameRules& rules, bool lenient, uint64_t limit = UINT64_MAX)
      : data_(data),
        rules_(rules),
        lenient_(lenient),
        limit_(rules.final ? std::min<uint64_t>(limit, data.size()) : limit),
        crcs_(crc32c::best()) {}

  // Finds the first proven record from p on. The checksum of its length holds, its payload is intact, and it is
  // followed by the header of a record or by the end. If lenient, an intact payload is enough. A record with a damaged
  // payload is also enough if it is followed, and no intact record begins inside it and ends after its payload. Such a
  // record shows that bytes are missing, and that the length is that of the bytes that were there. Stops at a record
  // that cannot be decided without more data.
  Located find(const uint8_t* p) {
    while (seek_header(p)) {
      need_ = load<uint64_t>(p) + kFrameBytes;
      const uint64_t size = need_;
      const Answer answer = is_record(p, size);
      if (answer != Answer::kNo) return {offset_of(p), need_, answer == Answer::kYes};
      ++p;
    }
    return {rules_.final ? data_.size() : offset_of(p), 0, false};
  }

 private:
  enum class Answer { kNo, kYes, kMoreData };

  struct Intact {
    Span span;
    size_t longer;  // the last record before this one that ends after it: its index + 1, or 0
  };

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
    if (!fits(p, size)) return Answer::kNo;
    const Answer intact = is_intact(p, size);
    if (intact == Answer::kMoreData || intact == (lenient_ ? Answer::kYes : Answer::kNo)) return intact;
    const Answer followed = is_followed(p + size);
    return lenient_ && followed == Answer::kYes ? is_not_crossed(p, p + size) : followed;
  }

  bool fits(const uint8_t* p, uint64_t size) const { return size <= limit_ && offset_of(p) <= limit_ - size; }

  Answer is_intact(const uint8_t* p, uint64_t size) {
    if (!fits(p, size)) return Answer::kNo;
    if (size > left(p)) return Answer::kMoreData;
    const Span payload{p + kHeaderBytes, p + size - kFooterBytes};
    return answer(crc32c::masked(crcs_.of(payload)) == load<uint32_t>(payload.end));
  }

  Answer is_followed(const uint8_t* p) const {
    const uint64_t rest = limit_ - offset_of(p);
    if (rest < kHeaderBytes) return answer(!rest);
    if (left(p) < kHeaderBytes) return Answer::kMoreData;
    return answer(length_is_intact(p));
  }

  // Returns kNo if an intact record begins inside the frame [frame, end) and ends after its payload. Each byte is
  // searched once, whatever the number of frames that enclose it.
  Answer is_not_crossed(const uint8_t* frame, const uint8_t* end) {
    searched_ = std::max(searched_, frame + 1);
    while (searched_ < end && seek_header(searched_) && searched_ < end) {
      const uint64_t size = load<uint64_t>(searched_) + kFrameBytes;
      const Answer intact = is_intact(searched_, size);
      if (intact == Answer::kMoreData) {
        need_ = static_cast<uint64_t>(searched_ - frame) + size;
        return intact;
      }
      if (intact == Answer::kYes) note_intact({searched_, searched_ + size});
      ++searched_;
    }
    const auto after =
        std::partition_point(intact_.begin(), intact_.end(), [&](const Intact& one) { return one.span.begin < end; });
    for (auto n = static_cast<size_t>(after - intact_.begin()); n && intact_[n - 1].span.begin > frame;
         n = intact_[n - 1].longer)
      if (intact_[n - 1].span.end > end - kFooterBytes) return Answer::kNo;
    return Answer::kYes;
  }

  void note_intact(Span span) {
    size_t longer = intact_.size();
    while (longer && intact_[longer - 1].span.end <= span.end) longer = intact_[longer - 1].longer;
    intact_.push_back({span, longer});
  }

  static Answer answer(bool holds) { return holds ? Answer::kYes : Answer::kNo; }
  size_t left(const uint8_t* p) const { return static_cast<size_t>(data_.end - p); }
  uint64_t offset_of(const uint8_t* p) const { return static_cast<uint64_t>(p - data_.begin); }

  Span data_;
  FrameRules rules_;
  bool lenient_;
  uint64_t limit_;
  PartCrcs crcs_;
  uint64_t need_ = 0;                  // see Located::size
  std::vector<Intact> intact_;         // the records that is_not_crossed() found, in the order of their starts
  const uint8_t* searched_ = nullptr;  // where is_not_crossed() goes on
};

}  // namespace tfr
