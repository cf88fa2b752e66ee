// What translated kernels include: the runtime's calls and the description of a kernel.
//
// `At` numbers a line of the source in the kernel's table of locations. Addresses of global, local
// and parameter memory are those of the host; addresses in shared memory are offsets.
#pragma once

#include <stdint.h>
#include <string.h>

#include "arithmetic.h"

namespace cusim {

using At = uint32_t;

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

struct Parameter {
  uint32_t offset, size;
};

struct Kernel {
  const char* name;
  const char* arch;  // "80", "90a"
  void (*run)(char* parameters);
  const char* const* locations;
  const Parameter* parameters;
  uint32_t parameter_count;
  uint32_t static_shared_bytes;
  uint32_t max_threads;
  bool async_proxy;  // bulk copies, wgmma: stores to shared memory need fences
  bool fences;       // orders memory between blocks
};

struct Registration {
  explicit Registration(const Kernel* kernel);
};

// Where the running thread stands.
struct Place {
  Dim3 tid{0, 0, 0};
  uint32_t linear = 0, lane = 0, warp_index = 0;
};
struct Geometry {
  Dim3 grid, block, index;
};
extern Place* here;
extern Geometry geometry;

uint32_t warps_per_block();
uint32_t dynamic_shared_bytes();
uint32_t total_shared_bytes();
uint64_t clock_cycles();

[[noreturn]] void fail(At at, const char* format, ...) __attribute__((format(printf, 2, 3)));
[[noreturn]] void exit_thread(At at);

// --- memory
// ---------------------------------------------------------------------------------------
enum Strength : uint32_t {
  kWeak = 0,
  kStrong = 1,       // volatile, relaxed or stronger: no data race with others of its kind
  kAcquire = 2,      // orders what follows, between blocks
  kRelease = 4,      // orders what came before, between blocks
  kNonCoherent = 8,  // may not see what this launch wrote
};
const char* read_generic(uint64_t address, uint32_t bytes, uint32_t strength, At at);
char* write_generic(uint64_t address, uint32_t bytes, uint32_t strength, At at);
char* update_generic(uint64_t address, uint32_t bytes, uint32_t strength, At at);
const char* read_shared(uint64_t offset, uint32_t bytes, uint32_t strength, At at);
char* write_shared(uint64_t offset, uint32_t bytes, uint32_t strength, At at);
char* update_shared(uint64_t offset, uint32_t bytes, uint32_t strength, At at);
const char* read_param(uint64_t address, uint32_t bytes, At at);
uint64_t shared_to_generic(uint64_t offset);
uint64_t generic_to_shared(uint64_t address);
bool is_shared(uint64_t address);
bool is_global(uint64_t address);
void memory_fence();
void proxy_fence();

void copy_async(uint64_t target, uint64_t source, uint32_t bytes, uint32_t filled, At at);
void commit_copies();
void wait_for_copies(uint32_t pending, At at);

// --- threads together
// -----------------------------------------------------------------------------
struct BlockVotes {
  uint32_t yes, all;
};
void sync_threads(uint32_t barrier, uint32_t count, bool aligned, At at);
void arrive_at_barrier(uint32_t barrier, uint32_t count, bool aligned, At at);
BlockVotes vote_of_block(uint32_t barrier, uint32_t count, bool predicate, bool aligned, At at);
void sync_warp(uint32_t mask, At at);
void give_way();

enum Shuffle { kShuffleUp, kShuffleDown, kShuffleBfly, kShuffleIdx };
enum Reduce { kReduceAdd, kReduceMin, kReduceMax, kReduceAnd, kReduceOr, kReduceXor };
uint32_t shuffle(Shuffle mode, uint32_t value, uint32_t lane, uint32_t bounds, uint32_t mask,
                 bool& inside, At at);
uint32_t ballot(bool predicate, uint32_t mask, At at);
uint32_t match_any(uint64_t value, uint32_t mask, At at);
uint32_t match_all(uint64_t value, uint32_t mask, At at);
uint32_t reduce_lanes(Reduce kind, bool is_signed, uint32_t value, uint32_t mask, At at);
uint32_t elect(uint32_t mask, At at);

enum Element { kBFloat16, kFloat16, kTFloat32 };
void load_matrices(uint32_t* out, int count, bool transposed, uint64_t row, At at);
void store_matrices(const uint32_t* in, int count, bool transposed, uint64_t row, At at);
uint32_t transpose_matrix(uint32_t value, At at);
void multiply_matrices(Element kind, int depth, uint32_t* sums, const uint32_t* a,
                       const uint32_t* b, At at);

// --- sm_90a
// ---------------------------------------------------------------------------------------
void init_mbarrier(uint64_t barrier, uint32_t count, At at);
void invalidate_mbarrier(uint64_t barrier, At at);
uint64_t arrive_at_mbarrier(uint64_t barrier, uint32_t count, uint32_t bytes, At at);
void expect_bytes(uint64_t barrier, uint32_t bytes, At at);
bool wait_for_mbarrier(uint64_t barrier, uint32_t parity, bool blocks, At at);
void copies_arrive(uint64_t barrier, bool counted, At at);

enum StoreKind { kReplace, kAddFloat32, kAddBFloat16, kAddFloat16, kAddUint32, kAddTensor };
void bulk_load(uint64_t target, uint64_t source, uint32_t bytes, uint64_t barrier, At at);
void bulk_store(uint64_t target, uint64_t source, uint32_t bytes, StoreKind kind, At at);
void tensor_load(uint64_t target, uint64_t map, const int32_t* place, int rank, uint64_t barrier,
                 At at);
void tensor_store(uint64_t map, const int32_t* place, int rank, uint64_t source, StoreKind kind,
                  At at);
void commit_bulk_stores();
void wait_for_bulk_stores(uint32_t pending, At at);

// D (+)= A B of a warpgroup, 64 rows, 16 deep; A in registers unless `a` is null.
struct Wgmma {
  Element kind;
  int columns;
  const uint32_t* a;
  uint64_t descriptor_a, descriptor_b;
  bool keep;  // add to D
  int sign_a, sign_b;
  bool transposed_a, transposed_b;  // M or N runs fastest in memory
};
void wgmma_fence(At at);
void multiply_matrices_async(const Wgmma& product, uint32_t* sums, At at);
void wgmma_commit(At at);
void wgmma_wait(uint32_t pending, At at);

// Device functions that CUDA's headers declare.
void assert_failed(const char* message, const char* file, uint32_t line, At at);

}  // namespace cusim

template <class T>
inline T load(const char* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
inline void store(char* to, T value) {
  __builtin_memcpy(to, &value, sizeof value);
}

static inline void cusim_vprintf(char* const*, char* result, cusim::At) {
  store<int32_t>(result, 0);
}
static inline void cusim_assertfail(char* const* parameters, char*, cusim::At at) {
  cusim::assert_failed(load<const char*>(parameters[0]), load<const char*>(parameters[1]),
                       load<uint32_t>(parameters[2]), at);
}
