#include <algorithm>
#include <bit>

#include "../../base/axes.h"
#include "places_by_id_cuda.h"

namespace tegula {
namespace {

// Ids lie in [0, num_rows], the last one for those without a row.
int passes_for(int64_t num_rows) {
  const int bits = std::bit_width(static_cast<uint64_t>(num_rows));
  return std::max(1, (bits + 7) / 8);
}

}  // namespace

SortParams sort_slices(int64_t count) {
  SortParams params;
  params.count = count;
  const int64_t entries = (count + kMostSlices - 1) / kMostSlices;
  params.slice = std::max<int64_t>(1, (entries + kSortThreads - 1) / kSortThreads) * kSortThreads;
  params.slices = (count + params.slice - 1) / params.slice;
  return params;
}

SortMemory sort_memory(int64_t count, Workspace& memory) {
  SortMemory parts;
  for (IdPlace*& entries : parts.entries) entries = memory.take<IdPlace>(count);
  parts.counts = memory.take<int64_t>(kDigits * sort_slices(count).slices);
  parts.totals = memory.take<int64_t>(kDigits);
  return parts;
}

const IdPlace* sort_places(const EmbeddingBackwardArgs& args, const SortMemory& memory,
                           const Place& place) {
  SortParams params = sort_slices(args.ids.count());
  params.ids = collapsed(args.ids);
  params.counts = memory.counts, params.totals = memory.totals;
  params.num_rows = args.num_rows;
  params.padding_idx = args.padding_idx;
  params.has_ignored = args.has_ignored, params.ignored = args.ignored;
  params.fault = place.fault;
  for (int pass = 0; pass < passes_for(args.num_rows); ++pass) {
    params.to = memory.entries[pass % 2];
    params.shift = 8 * pass;
    launch(place, "sort_histogram", {params.slices, kSortThreads, 0}, params);
    launch(place, "sort_scan", {kDigits / (kSortThreads / 32), kSortThreads, 0}, params);
    launch(place, "sort_scatter", {params.slices, kSortThreads, 0}, params);
    params.from = params.to;
  }
  return params.from;
}

const IdPlace* sorted_places(const EmbeddingBackwardArgs& args, const SortMemory& memory) {
  return memory.entries[(passes_for(args.num_rows) - 1) % 2];
}

}  // namespace tegula
