// Memory for large results, kept when they die for those that follow.
//
// A page that the system hands out fresh has to be found, cleared and mapped at first touch. For a
// result of some megabytes that takes as long as computing it, or longer. So results of
// kPooledBytes and more come from here: blocks of whole huge pages, which wait, up to a limit, for
// the next result of about their size.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tegula {

inline constexpr size_t kPooledBytes = size_t{1} << 20;

// A block in use. Whoever has it gives it back once; from any thread.
struct ResultBlock {
  void* data;
  size_t capacity;
  bool zeros;  // nobody has written to it yet
};

struct ResultPoolState {
  size_t limit;  // most bytes that may be kept
  size_t kept;   // bytes that wait
  size_t in_use;
};

// std::bad_alloc when the system has no memory.
ResultBlock take_result_block(size_t bytes);
void give_result_block(const ResultBlock& block);

// Returns what waits to the system until at most `bytes` are kept, now and from now on; -1 is the
// limit that holds when nobody sets one.
void set_result_pool_limit(int64_t bytes);
// Returns everything that waits to the system.
void empty_result_pool();
ResultPoolState result_pool_state();

}  // namespace tegula
