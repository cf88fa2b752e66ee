#include "device_memory.h"

#include <string.h>
#include <sys/mman.h>

#include <deque>
#include <map>

#include "memory.h"

namespace cusim {

namespace {

Arena arenas[kMaxDevices + 1];
std::map<char*, Allocation> allocations;
uint32_t allocation_count = 0;

std::deque<SplitCells> global_splits;
std::vector<uint32_t> free_splits;

constexpr uint64_t kPage = 4096;

void* reserve(uint64_t bytes) {
  void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? nullptr : found;
}

Cell& cell_of(const Allocation& allocation, const char* place) {
  Arena& home = arena(allocation.device);
  return home.cells[(place - home.base) / 4];
}

// The records of `bytes` bytes from `start`, one call for each cell and each byte of a split one.
template <class Visit>
void for_each_record(const Allocation& allocation, const char* start, size_t bytes, Visit visit) {
  for (const char *place = start, *end = start + bytes; place < end;) {
    Cell& cell = cell_of(allocation, place);
    const size_t within = uintptr_t(place) % 4;
    const size_t covered = std::min<size_t>(4 - within, size_t(end - place));
    if (covered == 4 && !is_split(cell, false)) {
      visit(cell, 4);
    } else {
      SplitCells& cells = split_cells(cell, false);
      for (size_t i = 0; i < covered; ++i) visit(cells.byte[within + i], 1);
    }
    place += covered;
  }
}

}  // namespace

Arena& arena(int device) {
  Arena& found = arenas[device];
  if (found.base == nullptr) {
    found.base = static_cast<char*>(reserve(kArenaBytes));
    found.cells = static_cast<Cell*>(reserve(kArenaBytes / 4 * sizeof(Cell)));
  }
  return found;
}

char* allocate(size_t bytes, int device) {
  Arena& home = arena(device);
  const uint64_t room = (bytes + 256 + kRedZone + kPage - 1) / kPage * kPage;
  if (home.base == nullptr || home.cells == nullptr || home.used + room + kRedZone > kArenaBytes) {
    return nullptr;
  }
  if (home.used == 0) home.used = kRedZone;
  // Aligned to 256 bytes as the driver's memory is, and to no more.
  char* start = home.base + home.used + 256;
  home.used += room;
  memset(start, 0xFF, bytes);  // NaN in every float format
  const Allocation made{start, bytes, device, ++allocation_count};
  allocations[start] = made;
  const Record first = device == kHostArena ? kHostWrite : kUnwritten;
  for_each_record(made, start, bytes, [=](Cell& cell, size_t) { cell = Cell{first}; });
  return start;
}

bool release(char* start) {
  const auto found = allocations.find(start);
  if (found == allocations.end()) return false;
  const Allocation allocation = found->second;
  allocations.erase(found);
  Arena& home = arena(allocation.device);
  const size_t words = (allocation.bytes + 3) / 4;
  Cell* cells = &home.cells[(start - home.base) / 4];
  for (size_t i = 0; i < words; ++i) {
    if (is_split(cells[i], false)) free_splits.push_back(index_of(cells[i].write));
    cells[i] = Cell{kUnallocated};
  }
  // Addresses are not given out again, so that a use after this is always found.
  char* first = home.base + (start - home.base) / kPage * kPage;
  const uint64_t span = (allocation.bytes + 256 + kPage - 1) / kPage * kPage;
  madvise(first, span, MADV_DONTNEED);
  return true;
}

const Allocation* nearest(const void* place) {
  char* address = static_cast<char*>(const_cast<void*>(place));
  const auto next = allocations.upper_bound(address);
  const Allocation* found = nullptr;
  uint64_t distance = kRedZone;
  const auto consider = [&](const Allocation& a) {
    const uint64_t gap = address < a.start             ? uint64_t(a.start - address)
                         : address < a.start + a.bytes ? 0
                                                       : uint64_t(address - a.start - a.bytes);
    if (gap <= distance) {
      found = &a;
      distance = gap;
    }
  };
  if (next != allocations.end()) consider(next->second);
  if (next != allocations.begin()) consider(std::prev(next)->second);
  return found;
}

const Allocation* find(const void* place) {
  char* address = static_cast<char*>(const_cast<void*>(place));
  auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return nullptr;
  const Allocation& allocation = std::prev(next)->second;
  const size_t offset = size_t(address - allocation.start);
  return offset < allocation.bytes || (offset == 0 && allocation.bytes == 0) ? &allocation
                                                                             : nullptr;
}

void mark_written(const Allocation& allocation, const char* start, size_t bytes) {
  for_each_record(allocation, start, bytes, [](Cell& cell, size_t) { cell = Cell{kHostWrite}; });
}

size_t count_unwritten(const Allocation& allocation, const char* start, size_t bytes) {
  size_t count = 0;
  for_each_record(allocation, start, bytes, [&](const Cell& cell, size_t size) {
    if (cell.write == kUnwritten) count += size;
  });
  return count;
}

void protect(const Allocation& allocation, bool read_only) {
  const Record state = read_only ? kReadOnly : kHostWrite;
  for_each_record(allocation, allocation.start, allocation.bytes, [=](Cell& cell, size_t) {
    if (cell.write != kUnwritten) cell = Cell{state};
  });
}

// --- words of which single bytes were accessed -------------------------------------------------
static std::deque<SplitCells> shared_splits;
static size_t shared_splits_used = 0;

bool is_split(const Cell& cell, bool shared) {
  return state_of(cell.write) == kSplitWord &&
         (shared ? block_of(cell.write) == block.number : block_of(cell.write) == 0);
}

SplitCells& split_cells(Cell& cell, bool shared) {
  if (is_split(cell, shared)) {
    return shared ? shared_splits[index_of(cell.write)] : global_splits[index_of(cell.write)];
  }
  uint32_t index;
  if (shared) {
    index = uint32_t(shared_splits_used++);
    if (index == shared_splits.size()) shared_splits.emplace_back();
  } else if (free_splits.empty()) {
    index = uint32_t(global_splits.size());
    global_splits.emplace_back();
  } else {
    index = free_splits.back();
    free_splits.pop_back();
  }
  SplitCells& cells = shared ? shared_splits[index] : global_splits[index];
  for (Cell& byte : cells.byte) {
    byte = cell;
    byte.read = copy_readers(cell.read);
  }
  cell = Cell{indexed(shared ? block.number : 0, index, kSplitWord)};
  return cells;
}

void forget_shared_splits() { shared_splits_used = 0; }

}  // namespace cusim
