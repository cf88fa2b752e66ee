// Which kernels of tensor cores a call needs.
#pragma once

#include "../attention.h"

namespace tegula {

// Whether a call needs the kernels that know all options; the others know a scale and intervals.
TEGULA_INLINE bool is_rich(const AttentionArgs& a) {
  return a.softcap > 0.0 || a.alibi != nullptr || a.bias || a.dense || a.dropout.active();
}

// Head sizes that kernels are compiled for: a smaller head has zeros behind it. A class more is a
// line here and one in each list of kernels, and a minute of every build.
TEGULA_INLINE constexpr int head_class(int64_t dim, bool rich) {
  if (dim <= 32 && !rich) return 32;
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

}  // namespace tegula
