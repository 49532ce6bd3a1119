// Reads a file of records without the large values that the decoder would skip.
//
// The bytes that are left out are always the content of one bytes value, or of one packed list of floats, of a feature
// that is no column. No path of the decoder reads these bytes if checksums are not verified. A column therefore gets
// the same values whatever the bytes are. Records and entries of any other form are read as a whole.
//
// A disk needs longer to seek than to read 100 KB more. A value of less than 512 KiB is therefore left out only if the
// bytes after it are in memory, so that a read of a file that is not in memory reads from one end to the other.
#pragma once

#include <sys/uio.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/vfs.h>
#endif

#include <algorithm>
#include <cerrno>
#include <string>
#include <unordered_set>
#include <vector>

#include "framing/frame.hpp"
#include "message/wire.hpp"

namespace tfr {

// One thread at a time may use a reader. The descriptor must stay open.
class SparseReader {
 public:
  // A record begins at byte `start` of the file. No record ends after byte `stop`.
  SparseReader(int file, uint64_t start, uint64_t stop, std::vector<std::string> columns)
      : file_(file), stop_(stop), columns_(columns.begin(), columns.end()), at_(start), next_(start) {
#if defined(__linux__)
    constexpr auto kTmpfs = 0x01021994;
    struct statfs status;
    is_in_memory_ = !fstatfs(file, &status) && status.f_type == kTmpfs;
#endif
  }

  // Fills `out` with the next bytes of the file, and leaves the bytes of `out` unchanged where a value is left out.
  // Returns the number of bytes, which is 0 at the end of the file. Returns -1 and sets errno on failure.
  ptrdiff_t read(uint8_t* out, size_t room) {
    size_t done = 0;
    while (done < room) {
      if (at_ == next_) walk();
      if (at_ == hole_ && at_ < next_ && !leaves_out()) hole_ = next_;
      const bool left_out = at_ >= hole_;
      const uint64_t end = left_out ? next_ : hole_;
      auto n = static_cast<size_t>(std::min<uint64_t>(end - at_, room - done));
      if (const Span known = buffered(); !left_out && known.size()) {
        n = std::min(n, known.size());
        std::memcpy(out + done, known.begin, n);
      } else if (!left_out) {
        const ptrdiff_t got = read_at(out + done, n, at_);
        if (got <= 0) return done ? static_cast<ptrdiff_t>(done) : got;
        n = static_cast<size_t>(got);
      }
      at_ += n;
      done += n;
    }
    return static_cast<ptrdiff_t>(done);
  }

 private:
  static constexpr uint64_t kLarge = 32 << 10;  // the least size of a value that is left out
  static constexpr size_t kEntryHead = 256;     // the bytes in which an entry must have all its tags and lengths
  // After a value that was left out, few bytes are needed: the end of its record, and the start of the next record.
  static constexpr size_t kFewBytes = 1 << 10;
  static constexpr size_t kManyBytes = 64 << 10;
  static constexpr size_t kPatience = 64;  // records without a large value, after which the rest is read as a whole

  // Returns true if the value from at_ to next_ need not be read.
  bool leaves_out() {
    constexpr uint64_t kSeek = 512 << 10;
    if (is_in_memory_ || next_ - at_ >= kSeek || (next_ >= base_ && next_ - base_ < have_)) return true;
#if defined(RWF_NOWAIT)
    buffer_.resize(kFewBytes);
    const iovec room{buffer_.data(), buffer_.size()};
    const ptrdiff_t got = preadv2(file_, &room, 1, static_cast<off_t>(next_), RWF_NOWAIT);
    base_ = next_;
    have_ = got > 0 ? static_cast<size_t>(got) : 0;
    return got > 0;
#else
    return false;
#endif
  }

  // Finds the next position at which a frame or an entry begins, and the value before it that is left out.
  void walk() {
    hole_ = 0;
    if (map_end_) {
      walk_entry();
    } else {
      walk_frame();
    }
    if (!hole_) hole_ = next_;
  }

  void walk_frame() {
    next_ = UINT64_MAX;  // the decoder finds what is wrong with the frame
    const Span head = look();
    if (++misses_ > kPatience || head.size() < kHeaderBytes || !length_is_intact(head.begin)) return;
    const uint64_t n = load<uint64_t>(head.begin);
    if (stop_ - at_ < kFrameBytes || n > stop_ - at_ - kFrameBytes) return;
    frame_end_ = next_ = at_ + n + kFrameBytes;
    const uint8_t* const payload = head.begin + kHeaderBytes;
    uint64_t size = 0;
    if (n < kLarge || payload == head.end || *payload != tag_of(1, kLen)) return;
    const uint8_t* const map = read_short_varint(payload + 1, head.end, size);
    if (!map || static_cast<uint64_t>(map - payload) + size != n) return;
    map_end_ = frame_end_ - kFooterBytes;
    next_ = offset_of(map);
  }

  void walk_entry() {
    const uint64_t map_end = map_end_;
    map_end_ = 0;  // unless the entry has the usual form, the rest of the record is read as a whole
    next_ = frame_end_;
    if (at_ == map_end) return;
    const Span head = look();
    const uint8_t* p = head.begin;
    uint64_t entry_end = 0;
    uint64_t value_end = 0;
    Span name;
    if (!read_head(p, head.end, tag_of(1, kLen), entry_end) || entry_end > map_end) return;
    if (!(p = read_field(p, head.end, 1, name))) return;
    if (!read_head(p, head.end, tag_of(2, kLen), value_end) || value_end != entry_end) return;
    map_end_ = map_end;
    next_ = entry_end;
    if (columns_.count({name.begin, name.end})) return;
    if (p == head.end || (*p != tag_of(1, kLen) && *p != tag_of(2, kLen))) return;
    if (!read_head(p, head.end, *p, value_end) || value_end != entry_end) return;
    if (!read_head(p, head.end, tag_of(1, kLen), value_end) || value_end != entry_end) return;
    if (entry_end - offset_of(p) < kLarge) return;
    hole_ = offset_of(p);
    misses_ = 0;
  }

  // Reads a tag and a length, and sets `value_end` to the offset in the file at which the value ends.
  bool read_head(const uint8_t*& p, const uint8_t* end, uint32_t tag, uint64_t& value_end) const {
    uint64_t size = 0;
    if (p == end || *p != tag || !(p = read_short_varint(p + 1, end, size))) return false;
    value_end = offset_of(p) + size;
    return true;
  }

  // Returns the bytes from at_ on, enough for the head of an entry unless the file ends.
  Span look() {
    if (buffered().size() < kEntryHead) {
      buffer_.resize(misses_ > 1 ? kManyBytes : kFewBytes);
      const ptrdiff_t got = read_at(buffer_.data(), buffer_.size(), at_);
      base_ = at_;
      have_ = got > 0 ? static_cast<size_t>(got) : 0;  // a failure occurs again when the bytes are needed
    }
    return buffered();
  }
  // The bytes of the buffer from at_ on.
  Span buffered() const {
    const uint8_t* const end = buffer_.data() + have_;
    return {at_ >= base_ && at_ - base_ < have_ ? buffer_.data() + (at_ - base_) : end, end};
  }
  uint64_t offset_of(const uint8_t* p) const { return base_ + static_cast<uint64_t>(p - buffer_.data()); }

  ptrdiff_t read_at(uint8_t* out, size_t n, uint64_t offset) const {
    ptrdiff_t got;
    do {
      got = pread(file_, out, n, static_cast<off_t>(offset));
    } while (got < 0 && errno == EINTR);
    return got;
  }

  int file_;
  bool is_in_memory_ = false;  // as a whole, always
  uint64_t stop_;
  std::unordered_set<std::string> columns_;
  // Offsets in the file.
  uint64_t at_;             // of the next byte to return
  uint64_t next_;           // of the next frame or entry to look at
  uint64_t hole_ = 0;       // of the value that is left out and ends at next_; next_ if there is none
  uint64_t map_end_ = 0;    // the end of the map whose entries are looked at, or 0
  uint64_t frame_end_ = 0;  // the end of the record of this map
  size_t misses_ = 0;       // the records since a value was left out
  std::vector<uint8_t> buffer_;
  uint64_t base_ = 0;  // where the buffer begins in the file
  size_t have_ = 0;    // the bytes in the buffer
};

}  // namespace tfr
