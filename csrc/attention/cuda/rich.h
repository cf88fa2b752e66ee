#pragma once

#include "../attention.h"

namespace tegula {

// Whether a call needs the kernels that know all options; the others know a scale and intervals.
TEGULA_INLINE bool is_rich(const AttentionArgs& a) {
  return a.softcap > 0.0 || a.alibi != nullptr || a.bias || a.dense || a.dropout.active();
}

}  // namespace tegula
