// Sinusoidal positional encoding (Vaswani et al., "Attention Is All You Need", 2017):
//
//   half = ceil(dim / 2) frequencies f_i, floor(dim / 2) of which have a cosine
//   out[..., 2i] = sin(p f_i), out[..., 2i + 1] = cos(p f_i)        interleaved
//   out[..., i]  = sin(p f_i), out[..., half + i] = cos(p f_i)      split
//   f_i = base^(-2i / dim)          paper
//   f_i = base^(-i / (half - 1))    inclusive (tensor2tensor); 1 when half is 1
//
//   positions (...)        any integer or float type
//   out       (..., dim)   float64, float32, float16, bfloat16, any strides
//
// The phase p f_i and its sine are float64; the result is rounded once. Positions are
// exact in float64 up to 2^53. NaN and infinite positions give NaN.
//
// Reads 8 bytes and writes dim elements a position; about 25 vector instructions for
// every kLanes<double> pairs, so float64 arithmetic is the limit, not memory.
#pragma once

#include "../base/view.h"

namespace tegula {

enum class PositionLayout { kInterleaved, kSplit };
enum class PositionSpacing { kPaper, kInclusive };

// One table's frequencies, ready for the kernels.
struct Sinusoid {
  const double* frequencies = nullptr;  // half of them, then zeros up to a full vector
  double largest = 0.0;                 // of the frequencies
  int64_t dim = 0;
  PositionLayout layout = PositionLayout::kInterleaved;

  TEGULA_INLINE int64_t half() const { return (dim + 1) / 2; }
};

struct PositionalEncodingArgs {
  View positions;
  View out;
  double base = 10000.0;
  PositionLayout layout = PositionLayout::kInterleaved;
  PositionSpacing spacing = PositionSpacing::kPaper;
};

struct PositionalEncodingKernels {
  // out: one row of dim elements with unit stride.
  void (*row)(const Sinusoid& sinusoid, double position, void* out);
};

// On up to `threads` threads (0: the setting).
void positional_encoding(const PositionalEncodingArgs& args, int threads);

// Computed once and remembered by the calling thread until it asks for others.
Sinusoid make_sinusoid(int64_t dim, double base, PositionLayout layout, PositionSpacing spacing);

}  // namespace tegula
