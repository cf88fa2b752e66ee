#include "releases.h"

#include <algorithm>

namespace cusim {

namespace {

constexpr size_t kMaxObserved = 8;

struct Release {
  uint32_t block_number;
  std::vector<uint32_t> clocks;
};
struct WordReleases {
  uint64_t address;
  std::vector<Release> releases;
};
std::vector<WordReleases> released_words;  // of the launch; few
std::vector<Release> acquired_releases;    // of the running block

std::vector<uint32_t> clocks_now() {
  const Warp& warp = *current()->warp;
  std::vector<uint32_t> clocks(warp.seen, warp.seen + block.warps.size());
  clocks[warp.index] = clock_of(warp.stamp);
  return clocks;
}

WordReleases* releases_of(uint64_t address) {
  for (WordReleases& word : released_words) {
    if (word.address == address) return &word;
  }
  return nullptr;
}

void acquire_from(uint64_t address) {
  const WordReleases* word = releases_of(address);
  if (word == nullptr) return;
  for (const Release& release : word->releases) {
    if (release.block_number == block.number) {
      join(*current()->warp, release.clocks.data());
    } else {
      acquired_releases.push_back(release);
    }
  }
}

void release_to(uint64_t address, const std::vector<uint32_t>& clocks) {
  WordReleases* word = releases_of(address);
  if (word == nullptr) word = &released_words.emplace_back(WordReleases{address, {}});
  for (Release& release : word->releases) {
    if (release.block_number == block.number) {
      raise(release.clocks.data(), clocks.data());
      return;
    }
  }
  word->releases.push_back({block.number, clocks});
}

}  // namespace

bool acquired(Record other) {
  for (const Release& release : acquired_releases) {
    if (release.block_number == block_of(other) &&
        clock_of(other) <= release.clocks[warp_of(other)]) {
      return true;
    }
  }
  return false;
}

void synchronise(uint64_t address, uint32_t strength, bool reads, bool writes) {
  Fiber* fiber = current();
  if (reads) {
    if (strength & kAcquire) acquire_from(address);
    fiber->observed.push_back(address);
    if (fiber->observed.size() > kMaxObserved) fiber->observed.erase(fiber->observed.begin());
  }
  if (writes && (strength & kRelease)) {
    release_to(address, clocks_now());
    tick(*fiber->warp);
  } else if (writes && block.kernel->fences) {
    // What the thread's own fences released, and those that a barrier has told it of.
    std::vector<uint32_t> clocks = fiber->released;
    clocks.resize(block.warps.size());
    raise(clocks.data(), fiber->warp->fenced_by_all);
    if (*std::max_element(clocks.begin(), clocks.end()) > 0) release_to(address, clocks);
  }
}

void memory_fence() {
  Fiber* fiber = current();
  Warp& warp = *fiber->warp;
  fiber->released = clocks_now();
  raise(warp.fenced, fiber->released.data());
  tick(warp);
  for (uint64_t address : fiber->observed) acquire_from(address);
  fiber->observed.clear();
}

void begin_releases() { released_words.clear(); }
void forget_acquired() { acquired_releases.clear(); }

}  // namespace cusim
