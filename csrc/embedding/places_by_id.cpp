#include "places_by_id.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "../base/parallel.h"

namespace tegula {
namespace {

constexpr int64_t kPiece = 1024;        // ids read at a time
constexpr double kWorkPerEntry = 40.0;  // in the scalar operations of threads_for
constexpr int kWidest = 11;             // bits of a digit: its counts stay in the nearest cache

// What one thread sorts: the entries [begin, end).
struct Slice {
  int64_t begin = 0, end = 0;
};

std::vector<Slice> slices_of(int64_t count, int slices) {
  std::vector<Slice> result(static_cast<size_t>(slices));
  for (int i = 0; i < slices; ++i) {
    result[static_cast<size_t>(i)] = {count * i / slices, count * (i + 1) / slices};
  }
  return result;
}

template <class Body>
void for_each(std::vector<Slice>& slices, Body&& body) {
  const int count = static_cast<int>(slices.size());
  parallel_for(count, count, [&](int64_t i) { body(i, slices[static_cast<size_t>(i)]); });
}

// One stable pass: entries move from `from` to `to`, where those with a smaller digit come
// first and those of an earlier slice before those of a later one.
void sort_by_digit(const IdPlace* from, IdPlace* to, std::vector<Slice>& slices, int64_t low,
                   int shift, int bits) {
  const size_t buckets = size_t{1} << bits;
  const auto digit = [=](const IdPlace& entry) {
    return static_cast<size_t>(static_cast<uint64_t>(entry.id - low) >> shift) & (buckets - 1);
  };
  std::vector<int64_t> next(slices.size() * buckets);  // by slice and digit
  for_each(slices, [&](int64_t slice, Slice s) {
    int64_t* counts = next.data() + static_cast<size_t>(slice) * buckets;
    for (int64_t i = s.begin; i < s.end; ++i) ++counts[digit(from[i])];
  });
  int64_t sum = 0;
  for (size_t bucket = 0; bucket < buckets; ++bucket) {
    for (size_t slice = 0; slice < slices.size(); ++slice) {
      sum += std::exchange(next[slice * buckets + bucket], sum);
    }
  }
  for_each(slices, [&](int64_t slice, Slice s) {
    int64_t* targets = next.data() + static_cast<size_t>(slice) * buckets;
    for (int64_t i = s.begin; i < s.end; ++i) to[targets[digit(from[i])]++] = from[i];
  });
}

}  // namespace

SortedPlaces places_by_id(const View& ids, Range range, const int64_t (&silent)[2], IdPlace* from,
                          IdPlace* to, int threads) {
  const int64_t count = ids.count();
  if (count == 0 || range.low > range.high) return {};

  // Each slice keeps what counts at its own beginning. Ids are read once: an array that
  // somebody else changes meanwhile does no harm.
  const View flat = collapsed(ids);
  const int workers = threads_for(kWorkPerEntry * static_cast<double>(count), threads);
  std::vector<Slice> slices = slices_of(count, workers);
  for_each(slices, [&](int64_t, Slice& slice) {
    int64_t values[kPiece];
    int64_t kept = slice.begin;
    for (int64_t first = slice.begin; first < slice.end; first += kPiece) {
      const int64_t n = std::min(kPiece, slice.end - first);
      read_integers(flat, first, n, values);
      for (int64_t i = 0; i < n; ++i) {
        from[kept] = {values[i], first + i};
        kept += values[i] >= range.low && values[i] <= range.high && values[i] != silent[0] &&
                values[i] != silent[1];
      }
    }
    slice.end = kept;
  });
  SortedPlaces result;
  for (const Slice& slice : slices) result.count += slice.end - slice.begin;

  const uint64_t largest = static_cast<uint64_t>(range.high - range.low);
  const int bits = std::max(1, static_cast<int>(std::bit_width(largest)));
  const int passes = (bits + kWidest - 1) / kWidest, width = (bits + passes - 1) / passes;
  for (int pass = 0; pass < passes; ++pass) {
    sort_by_digit(from, to, slices, range.low, pass * width, width);
    std::swap(from, to);
    slices = slices_of(result.count, workers);
  }
  result.sorted = from;
  return result;
}

}  // namespace tegula
