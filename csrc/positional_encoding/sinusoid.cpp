#include <algorithm>
#include <cmath>
#include <vector>

#include "positional_encoding.h"

namespace tegula {
namespace {

constexpr int64_t kPadding = 8;  // at least the lanes of the widest vector

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

}  // namespace tegula
