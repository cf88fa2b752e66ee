// Checks every access of a kernel: bounds, alignment, initialisation, races.
//
// Two accesses to a byte race unless one is ordered before the other by barriers, both only read,
// or both are atomic. Which accesses came before is kept in a cell for each word (shadow.h): the
// last write, and the reads since; a write must be ordered after all of them, and then stands for
// them all.
#include "memory.h"

#include <string.h>

#include <algorithm>

#include "device_memory.h"
#include "releases.h"

namespace cusim {

namespace {

alignas(4096) char shared_memory[kMaxSharedBytes];
Cell shared_cells[(kMaxSharedBytes + 3) / 4];

Arena* device_arena = nullptr;
Arena* host_arena = nullptr;
int device_number = 0;

// Readers of words that several warps have read since the last write: for each warp the clock and
// lane of its last read, in the form of the lower half of a record.
std::vector<uint32_t> readers;

enum Kind { kRead, kWrite, kUpdate };

struct Access {
  Kind kind;
  bool shared;
  uint32_t strength;
  uint64_t address;  // of the whole access, for messages
  uint32_t bytes;
  At at;
  Warp* warp;
  Record self;
};

bool ordered(const Access& access, Record earlier) {
  return clock_of(earlier) <= access.warp->seen[warp_of(earlier)] ||
         same_thread(earlier, access.self);
}

// --- messages ----------------------------------------------------------------------------------
std::string place_of(const Access& access) {
  if (access.shared) return "shared memory+" + std::to_string(access.address);
  const char* place = reinterpret_cast<const char*>(access.address);
  const Allocation* found = nearest(place);
  if (found == nullptr) return "an address that no buffer is near";
  const int64_t offset = place - found->start;
  return "buffer " + std::to_string(found->number) + " of " + std::to_string(found->bytes) +
         " bytes at byte " + std::to_string(offset);
}

[[noreturn]] void refuse(const Access& access, const char* what) {
  fail(access.at, "%s: %s (%u bytes)", what, place_of(access).c_str(), access.bytes);
}

[[noreturn]] void race(const Access& access, const char* what, Record other, At other_at) {
  const bool between_blocks = block_of(other) != block.number;
  if (between_blocks) {
    fail(access.at, "race between blocks: %s: %s (%u bytes), the other at %s", what,
         place_of(access).c_str(), access.bytes, block.kernel->locations[other_at]);
  }
  fail(access.at, "race: %s: %s (%u bytes), the other by thread %u at %s", what,
       place_of(access).c_str(), access.bytes, thread_of(other), block.kernel->locations[other_at]);
}

// --- one cell ----------------------------------------------------------------------------------
// The last write must be ordered before this access.
void check_last_write(const Access& access, const Cell& cell) {
  const Record last = cell.write;
  if (block_of(last) == block.number) {
    if (state_of(last) == kPendingWrite) {
      refuse(access, "access to bytes of an asynchronous copy that was not waited for");
    }
    if (state_of(last) == kAtomicWrite && (access.strength & kStrong)) return;
    if (!ordered(access, last)) {
      race(access, access.kind == kRead ? "read after write" : "write after write", last,
           cell.write_at);
    }
    return;
  }
  if (access.shared) {
    if (access.kind != kWrite) refuse(access, "read of uninitialised memory");
    return;
  }
  if (block_of(last) >= block.first_number) {
    if (state_of(last) == kAtomicWrite && (access.strength & kStrong)) return;
    if (!acquired(last)) {
      race(access, access.kind == kRead ? "read after write" : "write after write", last,
           cell.write_at);
    }
    return;
  }
  if (last == kUnallocated)
    refuse(access, access.kind == kRead ? "read out of bounds" : "write out of bounds");
  if (access.kind != kWrite && last == kUnwritten) refuse(access, "read of uninitialised memory");
  if (access.kind != kRead && last == kReadOnly) refuse(access, "write to a read-only buffer");
}

uint32_t lower_half(Record record) { return uint32_t(record); }
Record upper_half(uint32_t index) {  // of a reader of this block
  return uint64_t(block.number) << kBlockShift | index;
}

void note_read(const Access& access, Cell& cell) {
  cell.read_at = access.at;
  const Record last = cell.read, self = access.self;
  if (block_of(last) != block.number) {
    const bool this_launch = !access.shared && block_of(last) >= block.first_number;
    cell.read = this_launch ? self | kSeveralBlocks : self;
    return;
  }
  switch (state_of(last)) {
    case kSeveralBlocks: return;
    case kSeveralWarps: {
      uint32_t& mine = readers[index_of(last) + access.warp->index];
      const bool other_lane = mine != 0 && clock_of(mine) == clock_of(lower_half(self)) &&
                              (state_of(mine) == kLanesOfWarp || lane_of(mine) != lane_of(self));
      mine = lower_half(self) | (other_lane ? kLanesOfWarp : kOneLane);
      return;
    }
    default: break;
  }
  if (warp_of(last) == warp_of(self)) {
    const bool other_lane = clock_of(last) == clock_of(self) &&
                            (state_of(last) == kLanesOfWarp || lane_of(last) != lane_of(self));
    cell.read = self | (other_lane ? kLanesOfWarp : kOneLane);
  } else if (ordered(access, last)) {
    cell.read = self;
  } else {
    const uint32_t index = uint32_t(readers.size());
    readers.resize(index + block.warps.size());
    readers[index + warp_of(last)] = lower_half(last);
    readers[index + warp_of(self)] = lower_half(self);
    cell.read = indexed(block.number, index, kSeveralWarps);
  }
}

void check_reader(const Access& access, Record reader, At at) {
  const bool lanes = state_of(reader) == kLanesOfWarp;
  if (lanes ? clock_of(reader) > access.warp->seen[warp_of(reader)] : !ordered(access, reader)) {
    race(access, "write after read", reader, at);
  }
}

// The reads since the last write must be ordered before this write.
void check_readers(const Access& access, const Cell& cell) {
  const Record last = cell.read;
  if (last == 0) return;
  if (block_of(last) != block.number) {
    if (access.shared || block_of(last) < block.first_number || acquired(last)) return;
    race(access, "write after read", last, cell.read_at);
  }
  switch (state_of(last)) {
    case kSeveralBlocks:
      fail(access.at, "race between blocks: write after read: %s (%u bytes)",
           place_of(access).c_str(), access.bytes);
    case kSeveralWarps:
      for (uint32_t w = 0; w < block.warps.size(); ++w) {
        const uint32_t reader = readers[index_of(last) + w];
        if (reader != 0) check_reader(access, upper_half(reader), cell.read_at);
      }
      return;
    default: check_reader(access, last, cell.read_at);
  }
}

template <Kind kKind>
inline void check_cell(const Access& access, Cell& cell) {
  const Record last = cell.write;
  if constexpr (kKind == kRead) {
    // The two usual cases: memory that the host wrote, and what an ordered write of this block
    // left.
    const bool quiet =
        last == kHostWrite || last == kReadOnly ||
        (block_of(last) == block.number && state_of(last) == kPlainWrite && ordered(access, last));
    if (!quiet) check_last_write(access, cell);
    if (!(access.strength & kStrong)) note_read(access, cell);
    if ((access.strength & kNonCoherent) && block_of(last) >= block.first_number) {
      refuse(access, "ld.global.nc of bytes that this launch wrote");
    }
  } else {
    check_last_write(access, cell);
    check_readers(access, cell);
    cell.write = access.self | (access.strength & kStrong ? kAtomicWrite : kPlainWrite);
    cell.read = 0;
    cell.write_at = access.at;
  }
}

template <Kind kKind>
void check_bytes_of(const Access& access, Cell& cell, uint32_t first, uint32_t count) {
  SplitCells& cells = split_cells(cell, access.shared);
  for (uint32_t i = first; i < first + count; ++i) check_cell<kKind>(access, cells.byte[i]);
  if (kKind != kRead && count == 4) cell = cells.byte[0];  // one word again
}

template <Kind kKind>
inline void check_words(const Access& access, Cell* cell, uint64_t address) {
  if (access.bytes < 4) {
    check_bytes_of<kKind>(access, *cell, address & 3, access.bytes);
    return;
  }
  for (uint32_t i = 0; i < access.bytes / 4; ++i) {
    if (state_of(cell[i].write) == kSplitWord && is_split(cell[i], access.shared)) {
      check_bytes_of<kKind>(access, cell[i], 0, 4);
    } else {
      check_cell<kKind>(access, cell[i]);
    }
  }
}

inline Access describe(Kind kind, bool shared, uint64_t address, uint32_t bytes, uint32_t strength,
                       At at) {
  Fiber* fiber = current();
  return {kind,  shared, strength,    address,
          bytes, at,     fiber->warp, fiber->warp->stamp | uint64_t(fiber->lane) << kLaneShift};
}

template <Kind kKind>
inline char* access_shared(uint64_t offset, uint32_t bytes, uint32_t strength, At at) {
  const Access access = describe(kKind, true, offset, bytes, strength, at);
  if (offset + bytes > block.shared_bytes) {
    fail(at, "%s out of bounds of shared memory: byte %lld of %u",
         kKind == kRead ? "read" : "write", static_cast<long long>(int64_t(offset)),
         block.shared_bytes);
  }
  if (offset & (bytes - 1)) refuse(access, "misaligned access");
  check_words<kKind>(access, &shared_cells[offset / 4], offset);
  return shared_memory + offset;
}

// --- memory that is not the device's own -------------------------------------------------------
template <Kind kKind>
char* access_elsewhere(uint64_t address, uint32_t bytes, uint32_t strength, At at) {
  const auto within = [&](const void* start, uint64_t size) {
    const uint64_t offset = address - reinterpret_cast<uint64_t>(start);
    return offset < size && offset + bytes <= size;
  };
  char* place = reinterpret_cast<char*>(address);
  const Access access = describe(kKind, false, address, bytes, strength, at);
  if (is_shared(address)) {
    return access_shared<kKind>(generic_to_shared(address), bytes, strength, at);
  }
  if (address & (bytes - 1)) refuse(access, "misaligned access");
  if (within(stack_of(*current()), kStackBytes)) return place;
  if (within(block.parameters, block.parameter_bytes)) {
    if (kKind == kRead) return place;
    fail(at, "write to the kernel's parameters");
  }
  if (within(host_arena->base, kArenaBytes)) {
    check_words<kKind>(access, &host_arena->cells[(place - host_arena->base) / 4], address);
    return place;
  }
  if (within_image(place, bytes)) {
    if (kKind == kRead) return place;
    fail(at, "write to a constant");
  }
  if (within(stacks, 1024 * kStackBytes)) fail(at, "access to another thread's local memory");
  for (int device = 0; device < kMaxDevices; ++device) {
    if (within(arena(device).base, kArenaBytes)) {
      fail(at, "access to memory of device %d by a kernel on device %d: %s", device, device_number,
           place_of(access).c_str());
    }
  }
  fail(at, "%s of address 0x%llx, which is no memory of the device",
       kKind == kRead ? "read" : "write", static_cast<unsigned long long>(address));
}

template <Kind kKind>
inline char* access_generic(uint64_t address, uint32_t bytes, uint32_t strength, At at) {
  const uint64_t offset = address - reinterpret_cast<uint64_t>(device_arena->base);
  if (offset >= kArenaBytes) return access_elsewhere<kKind>(address, bytes, strength, at);
  const Access access = describe(kKind, false, address, bytes, strength, at);
  if (address & (bytes - 1)) refuse(access, "misaligned access");
  check_words<kKind>(access, &device_arena->cells[offset / 4], address);
  return reinterpret_cast<char*>(address);
}

// Loops that wait for a word to change must let others run.
inline void let_others_run(uint32_t strength, At at) {
  if ((strength & kStrong) && draw() % 4 == 0) give_way(at);
}

}  // namespace

// --- what translated kernels call --------------------------------------------------------------
const char* read_generic(uint64_t address, uint32_t bytes, uint32_t strength, At at) {
  let_others_run(strength, at);
  const char* place = access_generic<kRead>(address, bytes, strength, at);
  if (strength & kStrong) synchronise(address, strength, true, false);
  return place;
}

char* write_generic(uint64_t address, uint32_t bytes, uint32_t strength, At at) {
  char* place = access_generic<kWrite>(address, bytes, strength, at);
  if (strength & kStrong) synchronise(address, strength, false, true);
  return place;
}

char* update_generic(uint64_t address, uint32_t bytes, uint32_t strength, At at) {
  let_others_run(kStrong, at);
  char* place = access_generic<kUpdate>(address, bytes, strength | kStrong, at);
  synchronise(address, strength, true, true);
  return place;
}

const char* read_shared(uint64_t offset, uint32_t bytes, uint32_t strength, At at) {
  let_others_run(strength, at);
  return access_shared<kRead>(offset, bytes, strength, at);
}

char* write_shared(uint64_t offset, uint32_t bytes, uint32_t strength, At at) {
  char* place = access_shared<kWrite>(offset, bytes, strength, at);
  if (block.kernel->async_proxy) note_proxy(offset, bytes);
  return place;
}

char* update_shared(uint64_t offset, uint32_t bytes, uint32_t strength, At at) {
  let_others_run(kStrong, at);
  return access_shared<kUpdate>(offset, bytes, strength | kStrong, at);
}

const char* read_param(uint64_t address, uint32_t bytes, At at) {
  const uint64_t offset = address - reinterpret_cast<uint64_t>(block.parameters);
  if (offset < block.parameter_bytes && offset + bytes <= block.parameter_bytes) {
    if (address & (bytes - 1)) fail(at, "misaligned access to the kernel's parameters");
    return reinterpret_cast<const char*>(address);
  }
  if (address - reinterpret_cast<uint64_t>(stack_of(*current())) < kStackBytes) {
    return reinterpret_cast<const char*>(address);  // an argument of a device function
  }
  fail(at, "read out of bounds of the kernel's parameters: byte %lld of %u",
       static_cast<long long>(int64_t(offset)), block.parameter_bytes);
}

uint64_t shared_to_generic(uint64_t offset) {
  return reinterpret_cast<uint64_t>(shared_memory) + uint32_t(offset);
}
uint64_t generic_to_shared(uint64_t address) {
  return uint32_t(address - reinterpret_cast<uint64_t>(shared_memory));
}
bool is_shared(uint64_t address) {
  return address - reinterpret_cast<uint64_t>(shared_memory) < kMaxSharedBytes;
}
bool is_global(uint64_t address) {
  return address - reinterpret_cast<uint64_t>(device_arena->base) < kArenaBytes ||
         address - reinterpret_cast<uint64_t>(host_arena->base) < kArenaBytes;
}

// --- what the rest of the runtime calls --------------------------------------------------------
Cell& shared_cell(uint32_t offset) { return shared_cells[offset / 4]; }

void set_pending(uint32_t offset, uint32_t bytes, bool pending) {
  for (uint32_t i = 0; i < bytes; i += 4) {
    Record& write = shared_cells[(offset + i) / 4].write;
    write = (write & ~Record(3)) | (pending ? kPendingWrite : kPlainWrite);
  }
}

bool ordered_before_now(Record earlier) {
  return ordered(describe(kRead, true, 0, 0, kWeak, 0), earlier);
}

Record copy_readers(Record read) {
  if (state_of(read) != kSeveralWarps || block_of(read) != block.number) return read;
  const uint32_t from = index_of(read), to = uint32_t(readers.size());
  const uint32_t warps = uint32_t(block.warps.size());
  readers.resize(to + warps);
  std::copy_n(readers.begin() + from, warps, readers.begin() + to);
  return indexed(block.number, to, kSeveralWarps);
}

void begin_launch_memory(int device) {
  device_number = device;
  device_arena = &arena(device);
  host_arena = &arena(kHostArena);
  begin_releases();
}

void begin_shared_memory() {
  memset(shared_memory, 0xFF, block.shared_bytes);
  block.shared = shared_memory;
  readers.clear();
  forget_acquired();
  forget_shared_splits();
}

}  // namespace cusim
