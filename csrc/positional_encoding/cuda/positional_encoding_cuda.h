// The operation of positional_encoding.h on a GPU. Phase and sine are float64 and the phase has the
// CPU's bits; the sine may differ from the CPU's in the last one.
//
// Cost: writes the output, and about 30 float64 operations for each pair of elements, which are the
// limit. A thread reads a frequency once for kEncodingRows positions.
#pragma once

#include "../../cuda/place.h"
#include "../positional_encoding.h"

namespace tegula {

void positional_encoding(const PositionalEncodingArgs& args, const Place& place);

// Bytes of place.workspace.
size_t positional_encoding_workspace(const PositionalEncodingArgs& args);

}  // namespace tegula
