// Records of the same layout -> columns, many records at a time.
//
// The walk over one record waits at each entry for the length of the entry before. Here, one step of the layout is
// therefore taken for all records of a batch before the next step. The records do not depend on each other, the
// expected bytes and the column stay in registers, and a column is written from one end to the other.
//
// This is only a faster way to the same result. It takes a record if all steps match, see message/layout.hpp, and
// reports no damage: a record that differs in any way, and the records after it, are left as if they had not been
// tried. The caller decodes the first of them field by field, which finds what is wrong, and goes on here.
#pragma once

#include <algorithm>

#include "columns/append.hpp"
#include "message/foreign_message.hpp"
#include "message/layout.hpp"

namespace tfr {

// One thread at a time may use the object. The columns and the appender must outlive it.
class AlikeDecoder {
 public:
  AlikeDecoder(std::vector<DecodedColumn>& columns, Appender& append, std::vector<ColumnSpec> specs)
      : columns_(columns), append_(append), layout_(std::move(specs)) {}

  // Decodes records from the first on, up to the first that differs from the layout, to the rows from `row` on. Returns
  // their number. The columns have room for the rows of all `count` records, and hold none beyond the rows before.
  size_t decode(const Span* records, size_t count, const uint8_t* limit, int64_t row) {
    size_t done = 0;
    if (pause_) return 0;
    if (changed_) layout_.compile(), changed_ = false;
    if (layout_.records() < kLearned || !layout_.wanted()) return 0;
    while (done < count) {
      size_t tried = 0;
      while (tried < batch_ && done + tried < count && limit - records[done + tried].end >= kReach) ++tried;
      if (!tried) break;
      const size_t taken = decode_batch(records + done, tried, limit, row + static_cast<int64_t>(done));
      done += taken;
      if (taken < tried) {
        differs_ = true;
        // Few records in a row: the batches cost more than they save.
        since_ += taken;
        backoff_ = since_ < kFew ? std::min(2 * backoff_ + 1, kLongestPause) : 0;
        since_ = 0;
        pause_ = backoff_;
        batch_ = kSmallBatch;
        break;
      }
      since_ += taken;
      batch_ = std::min(2 * batch_, kBatch);
    }
    return done;
  }

  // Learns from a record that decode() left, and that was accepted field by field.
  template <class SlotOf>
  void learn(Span record, const SlotOf& slot_of) {
    if (!differs_) {
      if (pause_) --pause_;
      if (pause_ || layout_.records() >= kLearned) return;
    }
    differs_ = false;
    bool changed = false;
    if (layout_.learn(record, slot_of, changed)) {
      misses_ = 0;
      if (changed) pause_ = 0;
      changed_ |= changed;
    } else {
      pause_ = backoff_ = std::min(2 * backoff_ + 1, kLongestPause);
      if (++misses_ < kForgotten) return;
      layout_.forget();
      misses_ = 0;
    }
  }

 private:
  static constexpr size_t kLearned = 8;          // records before the first batch
  static constexpr size_t kBatch = 128;          // records of a batch
  static constexpr size_t kSmallBatch = 8;       // records of a batch after a record that differs
  static constexpr size_t kFew = 16;             // records between two that differ, below which batches do not pay
  static constexpr size_t kLongestPause = 1023;  // records without batches
  static constexpr int kForgotten = 4;           // records of another layout in a row, before the layout is replaced
  static constexpr size_t kShort = 32;           // bytes that are copied without regard to the size of the value
  // A step reads this many bytes from its start: a head of two windows, and 32 bytes of values.
  static constexpr ptrdiff_t kReach = 96;

  // Decodes up to kBatch records. Each has kReach readable bytes after its end.
  size_t decode_batch(const Span* records, size_t count, const uint8_t* limit, int64_t row) {
    records_ = records;
    count_ = 0;
    row_ = row;
    limit_ = limit;
    for (; count_ < count; ++count_) {
      const Span record = records[count_];
      Span map;
      if (!is_one_field(record, 1, map)) break;
      at_[count_] = map.begin;
      ends_[count_] = map.end;
      absent_[count_] = 0;
    }
    take_steps();
    for (size_t i = 0; i < count_; ++i)
      if (at_[i] != ends_[i]) count_ = i;
    for (const int32_t slot : layout_.absent())
      for (size_t i = 0; i < count_; ++i) column(slot).push_null(append_.arena(), row_ + static_cast<int64_t>(i));
    if (count_ < count)
      for (DecodedColumn& each : columns_) each.truncate(static_cast<size_t>(row_) + count_);
    return count_;
  }

  // Takes all steps for the records of the batch. A record that differs ends the batch: it lowers count_.
  void take_steps() {
    run_fastest([this](auto loop) TFR_INLINE_LAMBDA {
      using Loop = decltype(loop);
      for (const Step& step : layout_.steps()) {
        switch (step.kind) {
          case StepKind::kRun:
            take_run<Loop>(step);
            break;
          case StepKind::kSkip:
            take_each<Loop>(step, [](size_t, const uint8_t*, size_t) TFR_INLINE_LAMBDA { return true; });
            break;
          case StepKind::kInt:
            take_ints<Loop>(step);
            break;
          case StepKind::kFloat:
            take_floats<Loop>(step);
            break;
          case StepKind::kBytes:
            take_bytes<Loop>(step);
            break;
          case StepKind::kOther:
            for (size_t i = 0; i < count_ && take_other(step, i);) ++i;
        }
      }
    });
  }

  // Returns true if the entry at p has the step's head, with n bytes after it, before `end`.
  template <class Loop>
  TFR_INLINE static bool matches(const Step& step, const uint8_t* p, const uint8_t* end, size_t n) {
    return static_cast<ptrdiff_t>(step.head.size + n) <= end - p && step.head.matches<Loop>(p, n);
  }

  // Calls take(i, p, n) for the n bytes of values at p of each record that has the step's head. If it returns false,
  // the entry has another form.
  template <class Loop, class Take>
  TFR_INLINE void take_each(const Step& step, Take take) {
    const size_t head = step.head.size;
    for (size_t i = 0; i < count_; ++i) {
      const uint8_t* const p = at_[i];
      const size_t n = p[head - 1];
      if (TFR_LIKELY(matches<Loop>(step, p, ends_[i], n) && take(i, p + head, n))) {
        at_[i] = p + head + n;
      } else if (!take_other(step, i)) {
        return;
      }
    }
  }

  template <class Loop>
  TFR_INLINE void take_ints(const Step& step) {
    int64_t* const out = column(step.slot).ints.data + row_;
    take_each<Loop>(step, [out](size_t i, const uint8_t* p, size_t n) TFR_INLINE_LAMBDA {
      uint64_t value = 0;
      if (n - 1 >= 10 || !read_exact_varint<Loop>(p, n, value)) return false;
      store<uint64_t>(out + i, value);
      return true;
    });
  }

  template <class Loop>
  TFR_INLINE void take_floats(const Step& step) {
    float* const out = column(step.slot).floats.data + row_;
    take_each<Loop>(step, [out](size_t i, const uint8_t* p, size_t n) TFR_INLINE_LAMBDA {
      if (n == sizeof(float)) store<uint32_t>(out + i, load<uint32_t>(p));
      return n == sizeof(float);
    });
  }

  template <class Loop>
  TFR_INLINE void take_bytes(const Step& step) {
    const size_t head = step.head.size;
    DecodedColumn& to = column(step.slot);
    for (size_t i = 0; i < count_;) {
      // Room for all values of the batch, so that the inner loop need not look for it. There is room for their offsets.
      to.data.reserve(append_.arena(), (count_ - i) * static_cast<size_t>(step.head.most));
      uint8_t* const data = to.data.data;
      int32_t* const values_at = to.values_at.data + to.values_at.size;
      size_t size = to.data.size;
      const size_t first = i;
      for (; i < count_; ++i) {
        const uint8_t* const p = at_[i];
        const size_t n = p[head - 1];
        if (!TFR_LIKELY(matches<Loop>(step, p, ends_[i], n))) break;
        if (TFR_LIKELY(n <= kShort)) {
          std::memcpy(data + size, p + head, kShort);
        } else {
          copy_short(data + size, p + head, n);
        }
        size += n;
        values_at[i - first] = static_cast<int32_t>(size);
        at_[i] = p + head + n;
      }
      to.data.size = size;
      to.values_at.size += i - first;
      if (i < count_ && !take_other(step, i++)) return;
    }
  }

  template <class Loop>
  TFR_INLINE void take_run(const Step& step) {
    const auto size = static_cast<ptrdiff_t>(step.size);
    for (size_t i = 0; i < count_; i += 4) {
      // A group at the end has its last record more than once.
      const uint8_t* group[4];
      bool fits = true;
      for (size_t k = 0; k < 4; ++k) {
        const size_t record = std::min(i + k, count_ - 1);
        group[k] = at_[record];
        fits &= ends_[record] - at_[record] >= size;
      }
      if (TFR_LIKELY(fits && Loop::all_same(step.windows, step.window_at, group))) continue;
      count_ = first_different(step, i);
    }
    for (const Field& field : step.fields) take_field<Loop>(field);
    for (size_t i = 0; i < count_; ++i) at_[i] += size;
  }

  // Returns the first record from i on that differs from the run.
  TFR_NOINLINE size_t first_different(const Step& step, size_t i) const {
    for (; i < count_ && ends_[i] - at_[i] >= static_cast<ptrdiff_t>(step.size); ++i)
      if (!Portable::all_same(step.windows, step.window_at, {at_[i], at_[i], at_[i], at_[i]})) break;
    return i;
  }

  // Takes the values of one column in a run.
  template <class Loop>
  TFR_INLINE void take_field(const Field& field) {
    DecodedColumn& to = column(field.slot);
    const size_t at = field.at;
    const size_t n = field.size;
    const size_t count = count_;
    if (!to.spec.depth && to.spec.kind == Kind::kFloat) {
      float* const out = to.floats.data + row_;
      for (size_t i = 0; i < count; ++i) store<uint32_t>(out + i, load<uint32_t>(at_[i] + at));
    } else if (!to.spec.depth && to.spec.kind == Kind::kInt64) {
      int64_t* const out = to.ints.data + row_;
      for (size_t i = 0; i < count; ++i) {
        uint64_t value = 0;
        if (!read_exact_varint<Loop>(at_[i] + at, n, value)) return end_batch(i);
        store<uint64_t>(out + i, value);
      }
    } else {
      for (size_t i = 0; i < count; ++i)
        if (!append_.append_chunk(to, {at_[i] + at, at_[i] + at + n}, limit_)) return end_batch(i);
    }
  }

  void end_batch(size_t count) { count_ = count; }

  // Takes an entry of any shape with the step's key, or notes that the entry is absent. Otherwise ends the batch before
  // the record and returns false.
  TFR_NOINLINE bool take_other(const Step& step, size_t i) {
    Span entry;
    Span body;
    const uint8_t* const p = at_[i];
    const size_t size = step.text.size();
    if (read_field(p, ends_[i], 1, entry) && entry.size() > size && !std::memcmp(entry.begin, step.text.data(), size) &&
        read_span(entry.begin + size, entry.end, body) == entry.end) {
      Fault fault;
      if (step.slot >= 0 &&
          !append_.append_feature(column(step.slot), row_ + static_cast<int64_t>(i), body, limit_, fault))
        return end_batch(i), false;
      at_[i] = entry.end;
      return step.slot < 0 || column(step.slot).has_value(row_ + static_cast<int64_t>(i)) || note_absent(i);
    }
    if (!step.optional) return end_batch(i), false;
    if (step.slot < 0) return true;
    column(step.slot).push_null(append_.arena(), row_ + static_cast<int64_t>(i));
    return note_absent(i);
  }

  // Notes that a record has no value of a column. If it has no value of any column, and is a message of another type,
  // it ends the batch, and the function returns false.
  bool note_absent(size_t i) {
    if (++absent_[i] < layout_.wanted() || !is_foreign_message(records_[i], false)) return true;
    return end_batch(i), false;
  }

  DecodedColumn& column(int32_t slot) const { return columns_[static_cast<size_t>(slot)]; }

  std::vector<DecodedColumn>& columns_;
  Appender& append_;
  Layout layout_;
  bool differs_ = false;        // the record that decode() left differs from the layout
  bool changed_ = false;        // the steps must be made again
  size_t batch_ = kSmallBatch;  // the greatest number of records of the next batch
  size_t since_ = 0;            // the records taken since one differed
  size_t backoff_ = 0;          // the length of the last pause
  size_t pause_ = 0;            // the records that are still left to the caller without an attempt
  int misses_ = 0;              // the records in a row that the layout could not learn

  // The current batch.
  const Span* records_ = nullptr;
  size_t count_ = 0;  // the records that have matched so far
  int64_t row_ = 0;   // of the first record
  const uint8_t* limit_ = nullptr;
  const uint8_t* at_[kBatch];    // the start of the next entry, by record
  const uint8_t* ends_[kBatch];  // by record
  size_t absent_[kBatch];        // the number of columns without a value, by record
};

}  // namespace tfr
