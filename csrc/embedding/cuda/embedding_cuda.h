// The operations of embedding.h and embedding_backward.h on a GPU: the same numbers, in the same
// order of operations.
//
// Arguments as there; data is the device's, and ids are looked at while the kernels run. So an id,
// position or segment outside its table is no error of the call: the first one found is written to
// place.fault, nothing is read for it, and its row of the output is NaN (its gradient is left out).
// For an error in time, run the check, wait for the stream and look.
//
// Nothing waits for the device and nothing is allocated; `place.workspace` holds what
// ..._workspace says, in bytes.
#pragma once

#include "../../cuda/place.h"
#include "../embedding.h"
#include "../embedding_backward.h"

namespace tegula {

// ValueError or TypeError before anything is launched.
void embedding(const EmbeddingArgs& args, const Place& place);
size_t embedding_workspace(const EmbeddingArgs& args);

// Only looks for numbers outside their tables.
void check_embedding_ids(const EmbeddingArgs& args, const Place& place);

}  // namespace tegula
