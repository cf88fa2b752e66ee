// The asynchronous proxy: bulk copies and wgmma see what threads stored to shared memory only after
// the storing thread's fence.proxy.async.
#pragma once

#include "memory.h"

namespace cusim {

uint64_t hash_of(const char* bytes, size_t count);

// 16 bytes that the asynchronous proxy reads or writes for the running thread.
const char* proxy_read(uint32_t offset, At at);
void proxy_write(uint32_t offset, At at);

// Any number of bytes, in the largest steps that their alignment allows.
void read_bytes(char* to, uint64_t from, uint32_t bytes, At at);
void write_bytes(uint64_t to, const char* from, uint32_t bytes, At at);

// The barrier's phase is not over before these bytes have landed: as late as its waiters allow.
void land_later(uint64_t barrier, uint32_t target, std::vector<char> data, int swizzle, At at);

void begin_mbarriers();
std::string mbarriers_waited_for();  // for messages; empty where nobody waits
std::string copies_left_behind();

}  // namespace cusim
