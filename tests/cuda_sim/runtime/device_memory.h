// Memory of the simulated devices and what is known about each of its words.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string>

#include "shadow.h"

namespace cusim {

constexpr int kMaxDevices = 8;
constexpr int kHostArena = kMaxDevices;  // pinned host memory, which every device may reach
constexpr uint64_t kArenaBytes = 1ull << 36;
constexpr uint64_t kRedZone = 64 << 10;

// Addresses [base, base + kArenaBytes) belong to one device; cells[i] is of the i-th four bytes.
struct Arena {
  char* base = nullptr;
  Cell* cells = nullptr;
  uint64_t used = 0;
};

struct Allocation {
  char* start = nullptr;
  size_t bytes = 0;
  int device = 0;
  uint32_t number = 0;  // counts allocations, for messages
};

Arena& arena(int device);
char* allocate(size_t bytes, int device);   // null where there is no room
bool release(char* start);                  // false where nothing starts there
const Allocation* find(const void* place);  // that holds the byte
const Allocation* nearest(const void* place);

// Copies of the host: bounds were checked by the caller.
void mark_written(const Allocation& allocation, const char* start, size_t bytes);
size_t count_unwritten(const Allocation& allocation, const char* start, size_t bytes);
void protect(const Allocation& allocation, bool read_only);

// The word's byte cells, made on first use.
SplitCells& split_cells(Cell& cell, bool shared);
bool is_split(const Cell& cell, bool shared);

void begin_launch_memory(int device);
void begin_shared_memory();
std::string what_is_left_behind();  // by a block that is done: copies that nobody waited for

}  // namespace cusim
