#include "result_pool.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include "check.h"

namespace tegula {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kUsualMost = size_t{1} << 30;

size_t rounded(size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// TEGULA_CACHE_BYTES, or else a gibibyte, and never more than an eighth of the memory.
size_t usual_limit() {
  if (const char* text = std::getenv("TEGULA_CACHE_BYTES"); text != nullptr && *text != '\0') {
    char* end = nullptr;
    const unsigned long long bytes = std::strtoull(text, &end, 10);
    if (*end == '\0' && *text != '-') return bytes;
    throw ValueError(message("TEGULA_CACHE_BYTES must be a number of bytes, got '", text, "'"));
  }
  const auto pages = static_cast<size_t>(sysconf(_SC_PHYS_PAGES));
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return std::min(kUsualMost, pages / 8 * page);
}

// Address space that begins at a huge page, so that it can consist of such.
void* map(size_t capacity) {
  const size_t reach = capacity + kHugePage;
  void* found = mmap(nullptr, reach, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) throw std::bad_alloc();
  char* const begin = static_cast<char*>(found);
  char* const data = reinterpret_cast<char*>(rounded(reinterpret_cast<size_t>(begin)));
  if (data > begin) munmap(begin, static_cast<size_t>(data - begin));
  munmap(data + capacity, static_cast<size_t>(begin + reach - (data + capacity)));
  madvise(data, capacity, MADV_HUGEPAGE);  // a wish: systems without huge pages refuse
  return data;
}

struct Pool {
  std::mutex mutex;
  std::vector<ResultBlock> kept;  // the last one given back at the end
  size_t limit = usual_limit();
  size_t kept_bytes = 0;
  size_t used_bytes = 0;

  // With the lock held. Blocks that wait longest go first.
  void shrink(size_t bytes) {
    size_t gone = 0;
    while (kept_bytes > bytes) {
      const ResultBlock& block = kept[gone++];
      kept_bytes -= block.capacity;
      munmap(block.data, block.capacity);
    }
    kept.erase(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(gone));
  }
};

// Never destroyed: results may outlive everything else. A child process gets the parent's blocks,
// as copies, and the lock in the state in which nobody holds it.
Pool& pool() {
  static Pool* const the_pool = [] {
    auto* fresh = new Pool;
    pthread_atfork([] { pool().mutex.lock(); }, [] { pool().mutex.unlock(); },
                   [] { pool().mutex.unlock(); });
    return fresh;
  }();
  return *the_pool;
}

}  // namespace

ResultBlock take_result_block(size_t bytes) {
  const size_t capacity = rounded(bytes);
  Pool& p = pool();
  {
    const std::lock_guard lock(p.mutex);
    p.used_bytes += capacity;
    // The block that was given back last, among those of nearly this size: it may still be cached.
    const auto fits = [&](const ResultBlock& b) {
      return b.capacity >= capacity && b.capacity - capacity <= capacity / 4;
    };
    const auto found = std::find_if(p.kept.rbegin(), p.kept.rend(), fits);
    if (found != p.kept.rend()) {
      const ResultBlock block = *found;
      p.kept.erase(std::next(found).base());
      p.kept_bytes -= block.capacity;
      p.used_bytes += block.capacity - capacity;
      return block;
    }
  }
  try {
    return {map(capacity), capacity, true};
  } catch (...) {
    const std::lock_guard lock(p.mutex);
    p.used_bytes -= capacity;
    p.shrink(0);  // the next attempt may find room
    throw;
  }
}

void give_result_block(const ResultBlock& block) {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  p.used_bytes -= block.capacity;
  if (block.capacity > p.limit) {
    munmap(block.data, block.capacity);
    return;
  }
  p.shrink(p.limit - block.capacity);
  p.kept.push_back({block.data, block.capacity, false});
  p.kept_bytes += block.capacity;
}

void set_result_pool_limit(int64_t bytes) {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  p.limit = bytes < 0 ? usual_limit() : static_cast<size_t>(bytes);
  p.shrink(p.limit);
}

void empty_result_pool() {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  p.shrink(0);
}

ResultPoolState result_pool_state() {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  return {p.limit, p.kept_bytes, p.used_bytes};
}

}  // namespace tegula
