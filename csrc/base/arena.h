// Scratch memory that a thread keeps between calls.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

namespace tegula {

// A page-aligned block that only grows; trim() gives it back to the system when it is
// larger than what it may keep.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { std::free(block_); }

  char* reserve(size_t bytes) {
    if (bytes > size_) {
      std::free(block_);
      size_ = 0;
      bytes = (bytes + kAlign - 1) / kAlign * kAlign;
      block_ = static_cast<char*>(std::aligned_alloc(kAlign, bytes));
      if (block_ == nullptr) throw std::bad_alloc();
      size_ = bytes;
    }
    return block_;
  }

  void trim(size_t keep = kKeep) {
    if (size_ <= keep) return;
    std::free(block_);
    block_ = nullptr;
    size_ = 0;
  }

 private:
  static constexpr size_t kAlign = 4096;
  static constexpr size_t kKeep = size_t{8} << 20;
  char* block_ = nullptr;
  size_t size_ = 0;
};

// The calling thread's scratch.
inline Arena& thread_arena() {
  thread_local Arena arena;
  return arena;
}

// A scratch of the calling thread that belongs to one call while this lives: it may be kept
// across Python code, in which the thread may make another call.
class TakenArena {
 public:
  TakenArena() : arena_(std::move(spare())) {
    if (arena_ == nullptr) arena_ = std::make_unique<Arena>();
  }
  TakenArena(TakenArena&&) = default;
  ~TakenArena() {
    if (arena_ == nullptr) return;  // moved from
    arena_->trim(kKeep);
    spare() = std::move(arena_);
  }

  char* reserve(size_t bytes) { return arena_->reserve(bytes); }

 private:
  static constexpr size_t kKeep = size_t{32} << 20;

  static std::unique_ptr<Arena>& spare() {
    thread_local std::unique_ptr<Arena> arena;
    return arena;
  }
  std::unique_ptr<Arena> arena_;
};

}  // namespace tegula
