// What every backward kernel asks of a row of queries, computed once before all of them.
#pragma once

#include "../../cuda/launch.h"
#include "../backward.h"
#include "seen_keys.h"

namespace tegula {

// Rows whose sights are summed up together.
inline constexpr int kSightRows = 32;

// Of every unit's rows (rows.cuh), `unit_rows` a unit: their number rounded up to whole blocks of
// kSightRows. Numbers are float (double for float64).
struct GradientRows {
  void* shifts = nullptr;       // log-sum-exp in units of log 2; +inf: of no keys, or no such row
  void* rests = nullptr;        // what shifts leave of it, see far_rows.cuh; null: nothing
  void* deltas = nullptr;       // rowsum(grad_out out) - grad_lse; 0 where the shift is +inf
  SeenKeys* seen = nullptr;     // by intervals; nothing where the shift is +inf
  SeenByAll* sights = nullptr;  // of kSightRows rows; `full` counts rows that do not exist as well
  int64_t unit_rows = 0;

  TEGULA_INLINE int64_t blocks() const { return unit_rows / kSightRows; }
};

struct GradientRowsParams {
  AttentionGradArgs a;
  GradientRows rows;
  bool chunks;  // out and grad_out can be read 16 bytes at a time
};

// With `rests`, log-sum-exps far from 0 come in two parts.
GradientRows take_gradient_rows(const AttentionGradArgs& args, Workspace& workspace,
                                bool rests = false);

// Fills them, and then dsinks where it is wanted.
void compute_gradient_rows(const AttentionGradArgs& args, const GradientRows& rows,
                           const Place& place);

}  // namespace tegula
