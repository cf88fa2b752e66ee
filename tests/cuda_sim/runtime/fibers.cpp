// Threads of a block as fibers: which of them runs next is drawn at random, so that code which
// leans on lock-step or on a missing barrier meets many orders.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>

#include "counters.h"
#include "device_memory.h"
#include "order.h"
#include "proxy.h"

namespace cusim {

Place* here = nullptr;
Geometry geometry;
Block block;
Counters counters;
char* stacks = nullptr;
uint32_t scheduling_seed = 1;

namespace {

constexpr uint32_t kMaxThreads = 1024;
constexpr uint64_t kMaxIdleTurns = 5'000'000;

void* scheduler_stack = nullptr;
uint64_t random_state = 1;
std::string deadlock();

}  // namespace

#if !defined(__x86_64__)
#error "write switch_stack for this architecture"
#endif
// Saves what a function must preserve on the stack that is left, and its pointer in *save.
extern "C" void cusim_switch_stack(void** save, void* load);
asm(R"(.text
.globl cusim_switch_stack
.hidden cusim_switch_stack
.type cusim_switch_stack,@function
cusim_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

uint32_t draw() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return uint32_t(random_state >> 11);
}

uint32_t warps_per_block() { return uint32_t(block.warps.size()); }
uint32_t dynamic_shared_bytes() { return block.dynamic_bytes; }
uint32_t total_shared_bytes() { return block.shared_bytes; }
uint64_t clock_cycles() {
  static uint64_t cycles = 0;
  return cycles += 1 + draw() % 100;
}

void wake(Fiber* fiber) {
  fiber->state = Fiber::kReady;
  block.ready.push_back(fiber);
}

static void switch_to_scheduler() {
  cusim_switch_stack(&current()->stack_pointer, scheduler_stack);
}

void suspend(const char* why, At at) {
  Fiber* fiber = current();
  if (fiber->state != Fiber::kReady) fiber->waits_for = why;
  fiber->at = at;
  switch_to_scheduler();
}

void give_way(At at) {
  if (++block.idle_turns > kMaxIdleTurns) fail(at, "threads wait for each other in loops");
  current()->at = at;
  wake(current());
  switch_to_scheduler();
}

// The first error ends the launch: the fiber that found it never runs again.
void fail(At at, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const Fiber* fiber = current();
  const Dim3 &b = geometry.index, &t = fiber->tid;
  const char* place = block.kernel->locations[at];
  snprintf(text + std::min<int>(length, 300), 212, "%s%s, block (%u,%u,%u) thread (%u,%u,%u)",
           *place ? " at " : "", place, b.x, b.y, b.z, t.x, t.y, t.z);
  block.error = text;
  switch_to_scheduler();
  abort();
}

void assert_failed(char* const* parameters, char*, At at) {
  fail(at, "assertion failed: %s (%s:%u)", load<const char*>(parameters[0]),
       load<const char*>(parameters[1]), load<uint32_t>(parameters[2]));
}
void print_nothing(char* const*, char* result, At) { store<int32_t>(result, 0); }

void exit_thread(At) {
  Fiber* fiber = current();
  if (!fiber->copies.empty()) {
    fail(fiber->copies[0].at, "thread exits with cp.async in flight: no wait_group");
  }
  if (!fiber->bulk_stores.empty()) {
    fail(fiber->bulk_stores[0].at, "thread exits with bulk stores not waited for");
  }
  fiber->state = Fiber::kDone;
  fiber->warp->live &= ~(1u << fiber->lane);
  --block.live;
  thread_exited();
  switch_to_scheduler();
  abort();
}

static void enter() {
  block.kernel->run(block.parameters);
  exit_thread(0);
}

static void prepare_fiber(Fiber& fiber, uint32_t linear) {
  fiber.state = Fiber::kReady;
  fiber.linear = linear;
  fiber.lane = linear % 32;
  fiber.warp_index = linear / 32;
  const Dim3& n = geometry.block;
  fiber.tid = {linear % n.x, linear / n.x % n.y, linear / n.x / n.y};
  fiber.warp = &block.warps[linear / 32];
  fiber.warp->lanes[fiber.lane] = &fiber;
  fiber.warp->live |= 1u << fiber.lane;
  fiber.at = 0;
  fiber.copies.clear();
  fiber.copy_group = 0;
  fiber.bulk_stores.clear();
  fiber.bulk_group = fiber.proxy_fences = 0;
  fiber.released.clear();
  fiber.observed.clear();
  // What switch_stack pops: six registers, the address that it returns to, and the stack as a
  // called function finds it, eight bytes past a multiple of sixteen.
  void** top = reinterpret_cast<void**>(stack_of(fiber) + kStackBytes - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&enter);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
}

static void run_block() {
  const uint32_t threads = uint32_t(block.fibers.size());
  ++block.number;
  ++counters.blocks;
  block.live = threads;
  block.ready.clear();
  block.idle_turns = 0;
  for (uint32_t i = 0; i < block.warps.size(); ++i) {
    Warp& warp = block.warps[i];
    warp.index = i;
    warp.live = warp.meeting = 0;
    for (Rendezvous& meeting : warp.meetings) meeting = Rendezvous{};
    warp.wgmma_reads.clear();
    warp.wgmma_group = 0;
  }
  begin_clocks();
  begin_barriers();
  begin_mbarriers();
  begin_shared_memory();
  for (uint32_t i = 0; i < threads; ++i) {
    prepare_fiber(block.fibers[i], i);
    block.ready.push_back(&block.fibers[i]);
  }
  while (block.live > 0 && block.error.empty()) {
    if (block.ready.empty()) {
      block.error = deadlock();
      return;
    }
    const size_t chosen = draw() % block.ready.size();
    Fiber* fiber = block.ready[chosen];
    block.ready[chosen] = block.ready.back();
    block.ready.pop_back();
    here = fiber;
    cusim_switch_stack(&scheduler_stack, fiber->stack_pointer);
    here = nullptr;
  }
  if (block.error.empty()) block.error = what_is_left_behind();
}

namespace {

std::string deadlock() {
  std::string text = "deadlock: threads wait at different places:";
  int named = 0;
  const char* last = nullptr;
  for (const Fiber& fiber : block.fibers) {
    if (fiber.state == Fiber::kDone) continue;
    const char* place = block.kernel->locations[fiber.at];
    if (place == last) continue;
    last = place;
    if (++named > 4) break;
    text +=
        " thread " + std::to_string(fiber.linear) + " in " + fiber.waits_for + " at " + place + ";";
  }
  text += mbarriers_waited_for();
  return text + " " + std::to_string(block.fibers.size() - block.live) + " threads have exited";
}

// Each with a page below it that ends the process, should a kernel need more.
void make_stacks() {
  stacks = static_cast<char*>(mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  for (uint32_t i = 0; i < kMaxThreads; ++i) mprotect(stacks + i * kStackBytes, 4096, PROT_NONE);
}

std::vector<uint32_t> shuffled(uint32_t count) {
  std::vector<uint32_t> order(count);
  for (uint32_t i = 0; i < count; ++i) order[i] = i;
  for (uint32_t i = count; i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
  return order;
}

}  // namespace

std::string launch(const Kernel& kernel, Dim3 grid, Dim3 threads, uint32_t dynamic_bytes,
                   char* parameters, uint32_t parameter_bytes, int device) {
  if (stacks == nullptr) make_stacks();
  const uint32_t count = threads.x * threads.y * threads.z;
  geometry = {grid, threads, {0, 0, 0}};
  block.kernel = &kernel;
  block.parameters = parameters;
  block.parameter_bytes = parameter_bytes;
  block.dynamic_bytes = dynamic_bytes;
  block.shared_bytes = kernel.static_shared_bytes + dynamic_bytes;
  block.first_number = block.number + 1;
  block.error.clear();
  block.fibers.resize(count);
  block.warps.resize((count + 31) / 32);
  random_state = scheduling_seed * 0x9E3779B97F4A7C15ull + 0x1234567;
  ++counters.launches;
  begin_launch_memory(device);
  for (uint32_t linear : shuffled(grid.x * grid.y * grid.z)) {
    geometry.index = {linear % grid.x, linear / grid.x % grid.y, linear / grid.x / grid.y};
    run_block();
    if (!block.error.empty()) break;
  }
  here = nullptr;
  return block.error;
}

}  // namespace cusim
