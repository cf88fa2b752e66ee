#include "positional_encoding.h"

#include <algorithm>
#include <cstring>

#include "../base/arena.h"
#include "../base/entries.h"
#include "../base/parallel.h"
#include "../isa/select.h"

namespace tegula {
namespace {

constexpr int64_t kChunkElements = 32768;  // of the output, to one task
constexpr double kWorkPerElement = 48.0;
constexpr int64_t kPiece = 256;  // positions converted at a time

// A row with unit stride into one with any stride.
void scatter(const char* from, char* to, int64_t step, int64_t n, int64_t item) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * step * item, from + i * item, item);
}

}  // namespace

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
