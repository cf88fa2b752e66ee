// cp.async lands as late as the program allows: at the wait that covers it. Until then its bytes
// are poison that nobody may touch.
#include <string.h>

#include "memory.h"

namespace cusim {

void copy_async(uint64_t target, uint64_t source, uint32_t bytes, uint32_t filled, At at) {
  if (filled > bytes) fail(at, "cp.async: the source has more bytes than the target");
  if (target & (bytes - 1)) fail(at, "cp.async: misaligned target");
  if (source & (bytes - 1) && filled) fail(at, "cp.async: misaligned source");
  CopyInFlight copy{uint32_t(target), bytes, current()->copy_group, at, {}};
  // The source may end anywhere: it is checked in the largest steps that its length allows.
  for (uint32_t done = 0; done < filled;) {
    const uint32_t left = filled - done;
    const uint32_t step = left >= 16 ? 16 : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    memcpy(copy.data + done, read_generic(source + done, step, kWeak, at), step);
    done += step;
  }
  char* place = write_shared(target, bytes, kWeak, at);
  memset(place, 0xFF, bytes);
  set_pending(copy.target, bytes, true);
  current()->copies.push_back(copy);
}

void commit_copies() { ++current()->copy_group; }

static void land(const CopyInFlight& copy, At at) {
  set_pending(copy.target, copy.bytes, false);
  memcpy(write_shared(copy.target, copy.bytes, kWeak, at), copy.data, copy.bytes);
}

// All but the newest `pending` groups are done.
void wait_for_copies(uint32_t pending, At at) {
  Fiber* fiber = current();
  std::vector<CopyInFlight> kept;
  for (const CopyInFlight& copy : fiber->copies) {
    if (copy.group + pending < fiber->copy_group) {
      land(copy, at);
    } else {
      kept.push_back(copy);
    }
  }
  fiber->copies.swap(kept);
}

}  // namespace cusim
