#include "proxy.h"

#include <string.h>

#include "device_memory.h"
#include "tensor_map.h"

namespace cusim {

namespace {

// How many proxy fences the writer of a word had made; or it was the asynchronous proxy itself.
constexpr uint32_t kByProxy = ~0u;
uint32_t fences_before_write[(kMaxSharedBytes + 3) / 4];

void need_fence(Record write, uint32_t fences, uint32_t offset, At at) {
  if (fences == kByProxy || block_of(write) != block.number) return;
  const Fiber& writer = block.fibers[thread_of(write)];
  if (writer.proxy_fences > fences) return;
  fail(at,
       "missing fence.proxy.async: shared memory+%u was stored by thread %u and goes to the "
       "asynchronous proxy",
       offset, writer.linear);
}

void need_fences(uint32_t offset, At at) {
  for (uint32_t word = offset; word < offset + 16; word += 4) {
    const Cell& cell = shared_cell(word);
    const uint32_t fences = fences_before_write[word / 4];
    if (!is_split(cell, true)) {
      need_fence(cell.write, fences, word, at);
      continue;
    }
    for (const Cell& byte : split_cells(shared_cell(word), true).byte) {
      need_fence(byte.write, fences, word, at);
    }
  }
}

uint32_t step_of(uint64_t address, uint32_t left) {
  uint32_t step = 16;
  while (step > left || address % step) step /= 2;
  return step;
}

}  // namespace

void proxy_fence() { ++current()->proxy_fences; }

void note_proxy(uint64_t offset, uint32_t bytes) {
  for (uint64_t word = offset / 4; word * 4 < offset + bytes; ++word) {
    fences_before_write[word] = current()->proxy_fences;
  }
}

uint64_t hash_of(const char* bytes, size_t count) {
  uint64_t hash = 1469598103934665603ull;
  for (size_t i = 0; i < count; ++i) hash = (hash ^ uint8_t(bytes[i])) * 1099511628211ull;
  return hash;
}

const char* proxy_read(uint32_t offset, At at) {
  const char* place = read_shared(offset, 16, kWeak, at);
  need_fences(offset, at);
  return place;
}

void proxy_write(uint32_t offset, At at) {
  if (uint64_t(offset) + 16 <= block.shared_bytes) need_fences(offset, at);
  write_shared(offset, 16, kWeak, at);
  for (uint32_t word = offset; word < offset + 16; word += 4)
    fences_before_write[word / 4] = kByProxy;
}

void read_bytes(char* to, uint64_t from, uint32_t bytes, At at) {
  while (bytes > 0) {
    const uint32_t step = step_of(from, bytes);
    memcpy(to, read_generic(from, step, kWeak, at), step);
    to += step;
    from += step;
    bytes -= step;
  }
}

void write_bytes(uint64_t to, const char* from, uint32_t bytes, At at) {
  while (bytes > 0) {
    const uint32_t step = step_of(to, bytes);
    memcpy(write_generic(to, step, kWeak, at), from, step);
    to += step;
    from += step;
    bytes -= step;
  }
}

std::string what_is_left_behind() { return copies_left_behind(); }

}  // namespace cusim
