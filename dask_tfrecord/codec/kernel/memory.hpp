// Memory for decoded columns: chunks that are recycled, and arenas that hand out pieces of them.
//
// Touching fresh pages costs more than decoding into them, so a chunk is large, asks for huge pages where
// the system has them, and goes back to a pool when the last Arrow array that points into it is released.
#pragma once

#include <atomic>
#include <mutex>
#include <new>
#include <vector>

#include "bytes.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tfr {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPoolBytes = size_t{64} << 20;  // kept for reuse; what is beyond goes back to the system

struct Chunk {
  uint8_t* data;
  size_t size;
};

class Pool {
 public:
  // Never destroyed: arrays may outlive every static object of the module.
  static Pool& instance() {
    static Pool* const pool = new Pool;
    return *pool;
  }

  // A chunk of at least `size` bytes; below a huge page of just as many. Throws std::bad_alloc.
  Chunk take(size_t size) {
    if (size > SIZE_MAX - kHugePage) throw std::bad_alloc();
    if (size < kHugePage) return {static_cast<uint8_t*>(::operator new(size)), size};
    size = (size + kHugePage - 1) & ~(kHugePage - 1);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (size_t i = free_.size(); i-- > 0;) {
        const Chunk chunk = free_[i];
        if (chunk.size < size || chunk.size > 2 * size) continue;
        free_[i] = free_.back();
        free_.pop_back();
        kept_ -= chunk.size;
        return chunk;
      }
    }
    auto* data = static_cast<uint8_t*>(::operator new(size, std::align_val_t{kHugePage}));
#if defined(__linux__)
    madvise(data, size, MADV_HUGEPAGE);  // only a hint
#endif
    return {data, size};
  }

  void give_back(Chunk chunk) noexcept {
    if (chunk.size < kHugePage) return ::operator delete(chunk.data);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (kept_ + chunk.size <= kPoolBytes && free_.size() < free_.capacity()) {
        free_.push_back(chunk);
        kept_ += chunk.size;
        return;
      }
    }
    ::operator delete(chunk.data, std::align_val_t{kHugePage});
  }

 private:
  Pool() { free_.reserve(kPoolBytes / kHugePage); }

  std::mutex mutex_;
  std::vector<Chunk> free_;
  size_t kept_ = 0;
};

// All memory of one decoded batch. Shared by its Arrow arrays: the last release gives the chunks back.
class Arena {
 public:
  // `expected` bytes in all are likely to be asked for.
  explicit Arena(size_t expected) : chunk_(expected < kHugePage ? expected : kHugePage) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    for (const Chunk& chunk : chunks_) Pool::instance().give_back(chunk);
  }

  uint8_t* allocate(size_t size) {
    // Columns are filled side by side: starts at odd multiples of a cache line keep them from falling
    // into the same cache sets.
    size = ((size + 63) & ~size_t{63}) + 192;
    if (size > left_) {
      chunks_.reserve(chunks_.size() + 1);
      const Chunk chunk = Pool::instance().take(size > chunk_ ? size : chunk_);
      chunks_.push_back(chunk);
      next_ = chunk.data;
      left_ = chunk.size;
    }
    uint8_t* const piece = next_;
    next_ += size;
    left_ -= size;
    return piece;
  }

  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  std::vector<Chunk> chunks_;
  size_t chunk_;  // the least size of a chunk
  uint8_t* next_ = nullptr;
  size_t left_ = 0;
  std::atomic<int64_t> references_{1};
};

// A growing array in an arena. Growing leaves the old piece behind until the whole batch is released.
template <class T>
struct Growing {
  T* data = nullptr;
  size_t size = 0;
  size_t capacity = 0;

  // Room for `more` elements and 64 bytes of over-stores past them.
  TFR_INLINE void reserve(Arena& arena, size_t more) {
    if (!TFR_LIKELY(more <= capacity - size)) grow(arena, more);
  }
  TFR_INLINE void push(Arena& arena, T value) {
    reserve(arena, 1);
    data[size++] = value;
  }

 private:
  TFR_NOINLINE void grow(Arena& arena, size_t more) {
    const size_t wanted = size + (more > size ? more : size) + 64;
    T* const grown = reinterpret_cast<T*>(arena.allocate(wanted * sizeof(T) + 64));
    if (size) std::memcpy(grown, data, size * sizeof(T));
    data = grown;
    capacity = wanted;
  }
};

}  // namespace tfr
