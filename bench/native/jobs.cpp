#include "jobs.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <utility>

#include "../../csrc/attention/attention.h"
#include "../../csrc/attention/backward.h"
#include "../../csrc/embedding/embedding.h"
#include "../../csrc/embedding/embedding_backward.h"
#include "../../csrc/mask/mask.h"
#include "../../csrc/positional_encoding/positional_encoding.h"
#include "arrays.h"

namespace tegula::bench {
namespace {

int64_t first_key(const AttentionShape& s, int64_t row) {
  return s.mask == Mask::kWindow ? std::max<int64_t>(0, row + 1 - s.window) : 0;
}

int64_t last_key(const AttentionShape& s, int64_t row) {
  return s.mask == Mask::kFull ? s.k_len : std::min(row + 1, s.k_len);
}

// (query, key) pairs of all heads that are visible.
double pairs(const AttentionShape& s) {
  double sum = 0;
  for (int64_t row = 0; row < s.q_len; ++row) {
    sum += static_cast<double>(last_key(s, row) - first_key(s, row));
  }
  return sum * static_cast<double>(s.batch * s.heads);
}

// One interval a row, the same for every head: strides of 0.
std::pair<View, View> intervals(Owned& owned, const AttentionShape& s) {
  const auto repeated = [&](auto of_row) {
    View view = owned.add(DType::kInt32, {1, 1, s.q_len}).view;
    for (int64_t row = 0; row < s.q_len; ++row) {
      *view.at<int32_t>(row) = static_cast<int32_t>(of_row(s, row));
    }
    view.shape[0] = s.batch, view.shape[1] = s.heads;
    view.stride[0] = view.stride[1] = 0;
    return view;
  };
  return {repeated(first_key), repeated(last_key)};
}

template <class Args>
void set_inputs(Args& a, Owned& owned, Numbers& numbers, const AttentionShape& s, DType dtype) {
  a.q = owned.add(dtype, {s.batch, s.heads, s.q_len, s.dim}).fill(numbers).view;
  a.k = owned.add(dtype, {s.batch, s.key_heads, s.k_len, s.dim}).fill(numbers).view;
  a.v = owned.add(dtype, {s.batch, s.key_heads, s.k_len, s.dim}).fill(numbers).view;
  a.out = owned.add(dtype, {s.batch, s.heads, s.q_len, s.dim}).view;
  a.batch = s.batch, a.heads = s.heads, a.key_heads = s.key_heads;
  a.q_len = s.q_len, a.k_len = s.k_len, a.dim = a.value_dim = s.dim;
  a.scale = 1.0 / std::sqrt(static_cast<double>(s.dim));
  if (s.mask != Mask::kFull) std::tie(a.lo, a.hi) = intervals(owned, s);
}

double bytes_of(const View& view) {
  return static_cast<double>(view.count() * item_size(view.dtype));
}

AttentionShape square(int64_t length, int64_t window) {
  AttentionShape s;
  s.q_len = s.k_len = length;
  s.mask = window > 0 ? Mask::kWindow : Mask::kCausal, s.window = window;
  return s;
}

MaskFillArgs fill_args(Owned& owned, int64_t length, int64_t window, DType dtype) {
  MaskFillArgs a;
  a.out = owned.add(dtype, {1, 1, length, length}).view;
  std::tie(a.lo, a.hi) = intervals(owned, square(length, window));
  return a;
}

// (count / length, length) ids in [0, rows), in no order.
View ids_of(Owned& owned, Numbers& numbers, int64_t count, int64_t length, int64_t rows) {
  const View ids = owned.add(DType::kInt64, {count / length, length}).view;
  for (int64_t i = 0; i < count; ++i) {
    *ids.at<int64_t>(i) = static_cast<int64_t>(numbers.bits() % static_cast<uint64_t>(rows));
  }
  return ids;
}

}  // namespace

Job attention_forward_job(const AttentionShape& shape, DType dtype, int threads) {
  const auto owned = std::make_shared<Owned>();
  Numbers numbers;
  AttentionArgs a;
  set_inputs(a, *owned, numbers, shape, dtype);
  Job job;
  job.run = [owned, a, threads] { attention_forward(a, threads); };
  job.operations = 4 * pairs(shape) * static_cast<double>(shape.dim);
  job.bytes = static_cast<double>(attention_bytes(a));
  return job;
}

Job attention_backward_job(const AttentionShape& shape, DType dtype, int threads) {
  const auto owned = std::make_shared<Owned>();
  Numbers numbers;
  AttentionGradArgs a;
  set_inputs(a, *owned, numbers, shape, dtype);
  a.lse = owned->add(DType::kFloat32, {shape.batch, shape.heads, shape.q_len, 1}).view;
  attention_forward(a, threads);
  a.grad_out =
      owned->add(dtype, {shape.batch, shape.heads, shape.q_len, shape.dim}).fill(numbers).view;
  a.dq = owned->add(dtype, {shape.batch, shape.heads, shape.q_len, shape.dim}).view;
  a.dk = owned->add(dtype, {shape.batch, shape.key_heads, shape.k_len, shape.dim}).view;
  a.dv = owned->add(dtype, {shape.batch, shape.key_heads, shape.k_len, shape.dim}).view;
  Job job;
  job.run = [owned, a, threads] { attention_backward(a, threads); };
  job.operations = 10 * pairs(shape) * static_cast<double>(shape.dim);
  job.bytes = 2 * static_cast<double>(attention_bytes(a));
  return job;
}

Job mask_fill_job(int64_t length, int64_t window, DType dtype, int threads) {
  const auto owned = std::make_shared<Owned>();
  const MaskFillArgs a = fill_args(*owned, length, window, dtype);
  Job job;
  job.run = [owned, a, threads] { mask_fill(a, threads); };
  job.bytes = bytes_of(a.out);
  return job;
}

Job mask_scan_job(int64_t length, int64_t window, int threads) {
  const auto owned = std::make_shared<Owned>();
  const MaskFillArgs filled = fill_args(*owned, length, window, DType::kBool);
  mask_fill(filled, threads);
  MaskScanArgs a;
  a.dense = filled.out;
  for (View* view : {&a.lo, &a.hi, &a.gap_lo, &a.gap_hi}) {
    *view = owned->add(DType::kInt32, {1, 1, length}).view;
  }
  Job job;
  job.run = [owned, a, threads] { mask_scan(a, threads); };
  job.bytes = bytes_of(a.dense);
  return job;
}

Job embedding_job(int64_t count, int64_t length, int64_t rows, int64_t dim, DType dtype,
                  double dropout_p, int threads) {
  const auto owned = std::make_shared<Owned>();
  Numbers numbers;
  EmbeddingArgs a;
  a.ids = ids_of(*owned, numbers, count, length, rows);
  a.weight = owned->add(dtype, {rows, dim}).fill(numbers).view;
  a.out = owned->add(dtype, {count / length, length, dim}).view;
  a.sinusoidal = true;
  a.scale = std::sqrt(static_cast<double>(dim));
  a.dropout = make_dropout(dropout_p, 3);
  a.threads = threads;
  Job job;
  job.run = [owned, a] { embedding(a); };
  job.bytes = 2 * bytes_of(a.out);
  return job;
}

Job embedding_backward_job(int64_t count, int64_t rows, int64_t dim, DType dtype, int threads) {
  const auto owned = std::make_shared<Owned>();
  Numbers numbers;
  EmbeddingBackwardArgs a;
  a.ids = ids_of(*owned, numbers, count, count, rows);
  a.grad = owned->add(dtype, {1, count, dim}).fill(numbers).view;
  a.num_rows = rows;
  a.threads = threads;
  const View table = owned->add(dtype, {rows, dim}).view;
  Job job;
  job.run = [owned, a, table] { embedding_backward(a, group_places(a), table, false); };
  job.bytes = 3 * bytes_of(a.grad);
  return job;
}

Job positions_job(int64_t length, int64_t dim, DType dtype, int threads) {
  const auto owned = std::make_shared<Owned>();
  PositionalEncodingArgs a;
  a.positions = owned->add(DType::kInt64, {length}).view;
  for (int64_t i = 0; i < length; ++i) *a.positions.at<int64_t>(i) = i;
  a.out = owned->add(dtype, {length, dim}).view;
  Job job;
  job.run = [owned, a, threads] { positional_encoding(a, threads); };
  job.bytes = bytes_of(a.out);
  return job;
}

}  // namespace tegula::bench
