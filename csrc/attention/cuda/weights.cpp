#include "weights.h"

#include <string>

#include "../../cuda/launch.h"
#include "weights_params.h"

namespace tegula {

void attention_weights(const AttentionArgs& a, const Place& place) {
  if (a.key_heads == 0) return;
  const bool is_double = a.q.dtype == DType::kFloat64;
  const int rows = kSimtSide * (is_double ? kManyRows<double> : kManyRows<float>);
  WeightsParams params;
  ForwardSimtParams& p = params.forward;
  p.a = a;
  p.row_blocks = parts_of(a.heads / a.key_heads * a.q_len, rows);
  p.column_slabs = 1;
  p.chunks = 1;
  p.split = false;
  p.partials = nullptr;
  p.q = row_steps(a.q), p.k = row_steps(a.k), p.v = row_steps(a.v), p.out = row_steps(a.out);
  params.weights = row_steps(a.weights);
  launch(place, std::string("attention_weights_") + name_of(a.q.dtype),
         {a.batch * a.key_heads * p.row_blocks, kSimtThreads, 0}, params);
}

}  // namespace tegula
