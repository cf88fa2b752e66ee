#include "positional_encoding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../base/arena.h"
#include "../base/check.h"
#include "../base/entries.h"
#include "../base/parallel.h"
#include "../isa/select.h"

namespace tegula {
namespace {

constexpr int64_t kPadding = 8;            // at least the lanes of the widest vector
constexpr int64_t kChunkElements = 32768;  // of the output, to one task
constexpr double kWorkPerElement = 48.0;
constexpr int64_t kPiece = 256;  // positions converted at a time

// A row with unit stride into one with any stride.
void scatter(const char* from, char* to, int64_t step, int64_t n, int64_t item) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * step * item, from + i * item, item);
}

}  // namespace

Sinusoid make_sinusoid(int64_t dim, double base, PositionLayout layout, PositionSpacing spacing) {
  struct Remembered {
    std::vector<double> frequencies;
    int64_t dim = -1;
    double base = 0.0, largest = 0.0;
    PositionSpacing spacing = PositionSpacing::kPaper;
  };
  thread_local Remembered last;
  if (last.dim != dim || last.base != base || last.spacing != spacing) {
    const int64_t half = (dim + 1) / 2;
    last.dim = -1;
    last.largest = 0.0;
    last.frequencies.assign(static_cast<size_t>((half + kPadding - 1) / kPadding * kPadding), 0.0);
    for (int64_t i = 0; i < half; ++i) {
      double exponent = 0.0;
      if (spacing == PositionSpacing::kPaper) {
        exponent = -2.0 * static_cast<double>(i) / static_cast<double>(dim);
      } else if (half > 1) {
        exponent = -static_cast<double>(i) / static_cast<double>(half - 1);
      }
      const double frequency = std::pow(base, exponent);
      last.frequencies[static_cast<size_t>(i)] = frequency;
      last.largest = std::max(last.largest, frequency);
    }
    last.dim = dim, last.base = base, last.spacing = spacing;
  }
  return {last.frequencies.data(), last.largest, dim, layout};
}

void positional_encoding(const PositionalEncodingArgs& args, int threads) {
  const View positions = collapsed(args.positions);
  const int64_t rows = args.positions.count();
  const int64_t dim = args.out.size(0);
  if (rows == 0 || dim == 0) return;
  const auto& kernel = kernels().positional_encoding[static_cast<int>(args.out.dtype)];
  const Sinusoid sinusoid = make_sinusoid(dim, args.base, args.layout, args.spacing);

  View lead = args.out;  // the output's rows
  --lead.rank;
  lead = collapsed(lead);
  const int64_t step = args.out.step(0), item = item_size(args.out.dtype);
  const bool direct = step == 1 || dim == 1;
  const int64_t chunk_rows = std::max<int64_t>(1, kChunkElements / dim);
  const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
  const double work = kWorkPerElement * static_cast<double>(rows) * static_cast<double>(dim);
  parallel_for(chunks, threads_for(work, threads), [&](int64_t chunk) {
    double values[kPiece];
    char* row = direct ? nullptr : thread_arena().reserve(static_cast<size_t>(dim * item));
    const int64_t end = std::min(rows, (chunk + 1) * chunk_rows);
    for (int64_t first = chunk * chunk_rows; first < end; first += kPiece) {
      const int64_t n = std::min(kPiece, end - first);
      read_doubles(positions, first, n, values);
      for (int64_t i = 0; i < n; ++i) {
        char* out = args.out.at<char>(0) + lead.lead_offset(first + i, lead.rank) * item;
        kernel.row(sinusoid, values[i], direct ? out : row);
        if (!direct) scatter(row, out, step, dim, item);
      }
    }
  });
}

}  // namespace tegula
