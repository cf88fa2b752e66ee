// The operations of mask.h on a GPU, with the same arguments: data is the device's.
//
// fill   writes out once, in vectors where keys are neighbours; on any address
// scan   reads dense once, a row to each warp
// cells  reads dense once, eight cells to each warp
#pragma once

#include "../../cuda/place.h"
#include "../mask.h"

namespace tegula {

void mask_fill(const MaskFillArgs& args, const Place& place);
// The gap's views may be empty. runs_found: where the device is to write a MaskRuns; null: nowhere.
void mask_scan(const MaskScanArgs& args, int32_t* runs_found, const Place& place);
void mask_cells(const MaskCellsArgs& args, const Place& place);

}  // namespace tegula
