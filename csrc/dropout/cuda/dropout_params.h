// What the kernel of dropout_cuda.h is given.
#pragma once

#include "../../base/philox.h"
#include "../../base/view.h"

namespace tegula {

struct DropoutMaskParams {
  View lines;  // of the output: all its axes but the last
  int64_t count = 1, rows = 1, columns = 0, step = 1;
  Dropout dropout;
};

inline constexpr int kDropoutThreads = 256;

}  // namespace tegula
