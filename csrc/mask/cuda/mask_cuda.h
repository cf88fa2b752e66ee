// The operations of mask.h on a GPU, with the same arguments: data is the device's.
//
// fill   writes out once, in vectors where keys are neighbours; on any address
// scan   reads dense once, a row to each warp; writes lo and hi alone, since who calls it does not
//        wait to hear how many runs there are
#pragma once

#include "../../cuda/place.h"
#include "../mask.h"

namespace tegula {

void mask_fill(const MaskFillArgs& args, const Place& place);
void mask_scan(const MaskScanArgs& args, const Place& place);

}  // namespace tegula
