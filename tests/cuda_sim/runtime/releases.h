// Order between blocks, and between threads that no barrier orders.
//
// Blocks run one after the other, so that the only order between them is the one a kernel makes: a
// fence and then a strong write to a word (release), a strong read of the word and then a fence in
// another thread (acquire).
#pragma once

#include "order.h"

namespace cusim {

// Whether an access of another block comes before all that the running block does from now on.
bool acquired(Record other);

// A strong access to global memory, which may release or acquire.
void synchronise(uint64_t address, uint32_t strength, bool reads, bool writes);

void begin_releases();   // of a launch
void forget_acquired();  // at the start of a block

}  // namespace cusim
