// The operations of embedding.h and embedding_backward.h on a GPU: the same numbers, in the same
// order of operations.
//
// Arguments as there; data is the device's, and ids are looked at while the kernels run. So an id,
// position or segment outside its table is no error of the call: the first one found is written to
// place.fault, nothing is read for it, and its row of the output is NaN (its gradient is left out).
// For an error in time, run the check, wait for the stream and look.
//
// But for one function nothing waits for the device, and nothing is allocated; `place.workspace`
// holds what
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
void check_embedding_backward_ids(const EmbeddingBackwardArgs& args, const Place& place);

// out: (V, D), of the gradient's dtype, to whose rows the sums are added; zeros at first where the
// result is fresh. ValueError or TypeError before anything is launched.
void embedding_backward(const EmbeddingBackwardArgs& args, const View& out, const Place& place);
// The sparse form in two steps, on the same workspace. The first one finds how many rows there
// are, and waits for the device to say so. ids: (N,) int64, rows: (N, D).
int64_t embedding_backward_sparse_rows(const EmbeddingBackwardArgs& args, const Place& place);
void embedding_backward_sparse(const EmbeddingBackwardArgs& args, const View& ids, const View& rows,
                               const Place& place);
size_t embedding_backward_workspace(const EmbeddingBackwardArgs& args);

}  // namespace tegula
