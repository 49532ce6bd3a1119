// Copies records that lie anywhere in memory to a block, in a given order.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/bytes.hpp"
#include "base/memory.hpp"

namespace tfr {

// A block holds records up to `most_bytes`, at least 32 KiB and the same in all calls, and `most_records`. A larger
// record is used where it lies, and is a block of its own.
class CopiedRecords {
 public:
  // Returns a block of the records from `next` on, and moves `next` to the first record after the block. There must be
  // a record. The block is valid until the next call.
  Span block(const std::vector<Span>& records, size_t& next, size_t most_bytes, size_t most_records) {
    constexpr size_t kAhead = 12;                // records to prefetch
    constexpr size_t kCopiedBytes = 32u << 10u;  // a copy of a larger record costs more than a block of its own
    if (records[next].size() >= kCopiedBytes) return records[next++];
    if (!bytes_) bytes_ = arena_.allocate(most_bytes);
    uint8_t* to = bytes_;
    const uint8_t* const end = to + most_bytes;
    const size_t stop = std::min(records.size(), next + most_records);
    for (; next < stop && records[next].size() <= static_cast<size_t>(end - to); ++next) {
      if (next + kAhead < stop) {
        const Span ahead = records[next + kAhead];
        for (const uint8_t* p = ahead.begin; p < ahead.end && p < ahead.begin + 256; p += 64) prefetch(p);
      }
      const Span record = records[next];
      if (record.size()) std::memcpy(to, record.begin, record.size());
      to += record.size();
    }
    return {bytes_, to};
  }

 private:
  Arena arena_{0};
  uint8_t* bytes_ = nullptr;  // of the arena
};

}  // namespace tfr
