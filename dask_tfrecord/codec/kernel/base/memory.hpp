// Memory for decoded columns: a pool of chunks, and arenas that allocate from chunks.
//
// The first access to fresh pages costs more than decoding into them. A chunk therefore returns to the pool for reuse,
// and a large chunk uses huge pages where the system has them. The pool holds what the threads of one process have in
// flight, and gives most of it back to the system when no batch was decoded for a while.
//
// Ownership: a batch and its exported Arrow arrays share one arena (SharedArena). The arena owns its chunks and returns
// them to the pool when the last of these owners is gone. Buffers of columns are pointers into the arena and own
// nothing.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "base/bytes.hpp"

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tfr {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPiece = size_t{128} << 10;     // malloc reuses smaller memory by itself
constexpr size_t kIdleBytes = size_t{64} << 20;  // what the pool keeps of an idle process
constexpr size_t kMostBytes = size_t{1} << 30;   // what it keeps by default on a machine with many cores
constexpr std::chrono::milliseconds kIdleTime{500};

struct Chunk {
  uint8_t* data;
  size_t size;
};

// The chunks that are free for reuse. Safe for use by several threads.
class Pool {
 public:
  // The pool is never destroyed, because Arrow arrays may outlive the static objects of the module.
  static Pool& instance() {
    static Pool* const pool = new Pool;
    return *pool;
  }

  // Returns a chunk of at least `size` bytes, which the caller must give back. Throws std::bad_alloc.
  Chunk take(size_t size) {
    if (size > SIZE_MAX - kHugePage) throw std::bad_alloc();
    if (size < kPiece) return {static_cast<uint8_t*>(::operator new(size)), size};
    const size_t unit = unit_of(size);
    size = (size + unit - 1) & ~(unit - 1);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++taken_;
      for (size_t i = free_.size(); i-- > 0;) {
        const Chunk chunk = free_[i];
        if (chunk.size < size || chunk.size > 2 * size) continue;
        free_[i] = free_.back();
        free_.pop_back();
        kept_ -= chunk.size;
        return chunk;
      }
    }
    auto* data = static_cast<uint8_t*>(::operator new(size, std::align_val_t{unit_of(size)}));
#if defined(__linux__)
    if (size >= kHugePage) madvise(data, size, MADV_HUGEPAGE);  // only a hint
#endif
    return {data, size};
  }

  void give_back(Chunk chunk) noexcept {
    if (chunk.size < kPiece) return ::operator delete(chunk.data);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (kept_ + chunk.size <= limit_ && free_.size() < free_.capacity()) {
        free_.push_back(chunk);
        kept_ += chunk.size;
        if (kept_ > kIdleBytes && !trimming_) start_trimming();
        return;
      }
    }
    release(chunk);
  }

  // The bytes that are free for reuse.
  size_t kept() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kept_;
  }

  // Keeps at most `bytes` from now on.
  void set_limit(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.reserve(bytes / kPiece);
    limit_ = bytes;
    is_fixed_ = true;
    shrink(bytes);
  }

  // Raises the limit to `bytes`, unless set_limit() was called.
  void raise_limit(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_fixed_ || bytes <= limit_) return;
    free_.reserve(bytes / kPiece);
    limit_ = bytes;
  }

 private:
  // Each thread reads one partition, and a partition of usual size fits into 64 MiB and what an idle process keeps.
  Pool() {
    raise_limit(std::min(kMostBytes, kIdleBytes * (1 + std::max(1U, std::thread::hardware_concurrency()))));
#if !defined(_WIN32)
    // Loaders fork their workers while other threads decode. The lock must be free in the forked process.
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] {
                     instance().trimming_ = false;  // the forked process has one thread
                     instance().mutex_.unlock();
                   });
#endif
  }

  static void release(Chunk chunk) noexcept {
#if defined(__linux__)
    madvise(chunk.data, chunk.size, MADV_DONTNEED);  // malloc may keep the addresses
#endif
    ::operator delete(chunk.data, std::align_val_t{unit_of(chunk.size)});
  }

  // The alignment of a chunk. The size of a chunk is a multiple of it.
  static size_t unit_of(size_t size) { return size < kHugePage ? kPiece : kHugePage; }

  // Call it with the lock held.
  void shrink(size_t bytes) noexcept {
    while (kept_ > bytes) {
      release(free_.back());
      kept_ -= free_.back().size;
      free_.pop_back();
    }
  }

  // Starts a thread that ends when the pool is small again. Call it with the lock held.
  void start_trimming() noexcept {
    try {
      std::thread(&Pool::trim_when_idle, this).detach();
      trimming_ = true;
    } catch (...) {  // no thread: the pool keeps its chunks until the next one is given back
    }
  }

  void trim_when_idle() noexcept {
    for (;;) {
      size_t before;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        before = taken_;
      }
      std::this_thread::sleep_for(kIdleTime);
      const std::lock_guard<std::mutex> lock(mutex_);
      if (taken_ == before) shrink(kIdleBytes);
      if (kept_ > kIdleBytes) continue;
      trimming_ = false;
      return;
    }
  }

  std::mutex mutex_;
  std::vector<Chunk> free_;
  size_t limit_ = 0;
  bool is_fixed_ = false;  // the limit was set, and is not raised
  size_t kept_ = 0;
  size_t taken_ = 0;  // chunks that were ever taken
  bool trimming_ = false;
};

// The memory of one decoded batch. An allocation is never freed by itself. One thread at a time may allocate.
class Arena {
 public:
  // `expected` is an estimate of all bytes that will be allocated.
  explicit Arena(size_t expected) : chunk_(expected < kHugePage ? expected : kHugePage) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    for (const Chunk& chunk : chunks_) Pool::instance().give_back(chunk);
  }

  // Returns uninitialised memory of at least `size` bytes. Throws std::bad_alloc.
  uint8_t* allocate(size_t size) {
    // Columns are filled at the same time. Starts at odd multiples of a cache line keep their ends out of the same
    // cache sets.
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

 private:
  std::vector<Chunk> chunks_;
  size_t chunk_;  // the smallest size of a chunk
  uint8_t* next_ = nullptr;
  size_t left_ = 0;
};

// The owner of an arena, and so of all memory of a batch. The batch and its Arrow arrays each hold one.
using SharedArena = std::shared_ptr<Arena>;

// A growing array in an arena, which must outlive it. When the array grows, its old memory stays in the arena.
template <class T>
struct Growing {
  T* data = nullptr;
  size_t size = 0;
  size_t capacity = 0;

  // Makes room for `more` elements. 64 bytes after the elements may be overwritten.
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
