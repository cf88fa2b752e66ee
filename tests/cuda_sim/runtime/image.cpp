// Where this library lies in memory: constants of kernels are part of it.
#include <link.h>

#include "memory.h"

namespace cusim {

namespace {

struct Range {
  const char *start = nullptr, *end = nullptr;
};

int look(dl_phdr_info* info, size_t, void* found) {
  Range range;
  const char* base = reinterpret_cast<const char*>(info->dlpi_addr);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    const char* start = base + header.p_vaddr;
    if (range.start == nullptr || start < range.start) range.start = start;
    if (start + header.p_memsz > range.end) range.end = start + header.p_memsz;
  }
  const char* here = reinterpret_cast<const char*>(&look);
  if (here < range.start || here >= range.end) return 0;
  *static_cast<Range*>(found) = range;
  return 1;
}

}  // namespace

bool within_image(const char* place, uint32_t bytes) {
  static const Range range = [] {
    Range found;
    dl_iterate_phdr(look, &found);
    return found;
  }();
  return place >= range.start && place + bytes <= range.end;
}

}  // namespace cusim
