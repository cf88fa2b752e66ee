// Which elements dropout keeps, as base/philox.h says.
#pragma once

#include "../../base/philox.h"
#include "../../base/view.h"
#include "../../cuda/place.h"

namespace tegula {

// out: bool (..., rows, columns), any strides; missing axes count as 1. True where an element is
// kept. Philox is the limit: a result for each four columns.
void dropout_mask(const Dropout& dropout, const View& out, const Place& place);

}  // namespace tegula
