// The running launch: its threads, warps and blocks.
#pragma once

#include <stdint.h>

#include <string>
#include <vector>

#include "device_code.h"
#include "shadow.h"

namespace cusim {

constexpr uint32_t kMaxSharedBytes = 232448;  // of sm_90, the largest that is simulated
constexpr uint32_t kMaxWarps = 32;
constexpr uint64_t kStackBytes = 512 << 10;

struct CopyInFlight {  // cp.async
  uint32_t target, bytes, group;
  At at;
  char data[16];
};
struct BulkStore {  // smem -> global, not yet known to have been read
  uint32_t offset, bytes, group;
  At at;
  uint64_t hash;
};

// Values in memory.
template <class T>
T load(const char* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void store(char* to, T value) {
  __builtin_memcpy(to, &value, sizeof value);
}

struct Warp;
struct Fiber : Place {
  enum State { kReady, kWaiting, kDone };
  void* stack_pointer = nullptr;
  Warp* warp = nullptr;
  State state = kReady;
  At at = 0;
  const char* waits_for = "";
  BlockVotes votes{};  // of the barrier that the thread waited at last

  std::vector<CopyInFlight> copies;
  uint32_t copy_group = 0;
  std::vector<BulkStore> bulk_stores;
  uint32_t bulk_group = 0;
  uint32_t proxy_fences = 0;

  // Synchronisation between blocks: the clocks that the last fence released, and the addresses
  // read since, whose releases the next fence acquires.
  std::vector<uint32_t> released;
  std::vector<uint64_t> observed;
};

struct PendingRead {  // of a wgmma that has not been waited for
  uint32_t offset, group;
  uint64_t hash;
};

struct Rendezvous {
  uint32_t arrived = 0, mask = 0;
  const char* operation = nullptr;
  At at = 0;
};

struct Warp {
  Fiber* lanes[32] = {};
  uint32_t index = 0;
  uint32_t live = 0;  // lanes that have not exited
  Record stamp = 0;   // a record of this warp, now, without its lane
  uint32_t seen[kMaxWarps] = {};

  // Clocks that fences of the block have released, as far as a barrier has told this warp.
  uint32_t fenced[kMaxWarps] = {}, fenced_by_all[kMaxWarps] = {};

  // Lanes that wait for each other, by the first lane of their mask.
  Rendezvous meetings[32];
  uint32_t meeting = 0;  // a bit for each that is going on
  alignas(16) char in[32][64];
  alignas(16) char out[32][64];

  std::vector<PendingRead> wgmma_reads;
  uint32_t wgmma_group = 0;
};

struct Block {
  const Kernel* kernel = nullptr;
  char* parameters = nullptr;
  uint32_t parameter_bytes = 0;
  uint32_t shared_bytes = 0, dynamic_bytes = 0;
  uint32_t number = 0;        // counts blocks over all launches, from 1
  uint32_t first_number = 1;  // of the launch
  uint32_t live = 0;          // threads
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<Fiber*> ready;
  std::string error;
  char* shared = nullptr;
  uint64_t idle_turns = 0;  // since something else than waiting happened
};
extern Block block;
extern char* stacks;
extern uint32_t scheduling_seed;

inline Fiber* current() { return static_cast<Fiber*>(here); }
inline char* stack_of(const Fiber& fiber) { return stacks + fiber.linear * kStackBytes; }

uint32_t draw();                       // a number of the launch's random sequence
void wake(Fiber* fiber);               // it may run again
void suspend(const char* why, At at);  // until somebody wakes the current fiber

// The result of a launch: empty, or what went wrong and where.
std::string launch(const Kernel& kernel, Dim3 grid, Dim3 threads, uint32_t dynamic_bytes,
                   char* parameters, uint32_t parameter_bytes, int device);

}  // namespace cusim
