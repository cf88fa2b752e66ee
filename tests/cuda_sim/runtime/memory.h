// Accesses that the runtime makes for a thread: copies and matrix instructions.
#pragma once

#include "state.h"

namespace cusim {

Cell& shared_cell(uint32_t offset);

// Bytes of a copy that nobody may touch until it was waited for; whole words.
void set_pending(uint32_t offset, uint32_t bytes, bool pending);

// The same readers in a list of their own.
Record copy_readers(Record read);
void forget_shared_splits();

// Whether an access of this block comes before all that the running thread does from now on.
bool ordered_before_now(Record earlier);

// Constants and tables of the library that holds the kernels.
bool within_image(const char* place, uint32_t bytes);

// Remembers which stores the asynchronous proxy (bulk copies, wgmma) may see.
void note_proxy(uint64_t offset, uint32_t bytes);

}  // namespace cusim
