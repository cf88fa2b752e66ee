// The axes of a strided array: the same entries, seen with fewer axes or in a larger shape.
#pragma once

#include <string>

#include "view.h"

namespace tegula {

// The same entries in the same order with as few axes as possible.
View collapsed(const View& view);

// `view` seen in a larger shape (NumPy's rule); ValueError naming `name` otherwise.
View broadcast_to(const View& view, int rank, const int64_t* shape, const char* name);

// "[2, 7]" for entry `index` in C order; "" for an array without axes.
std::string place_text(const View& view, int64_t index);

}  // namespace tegula
