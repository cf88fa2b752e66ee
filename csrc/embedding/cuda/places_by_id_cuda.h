// Where each id stands: the places of an array of ids, sorted by id, on a GPU.
//
// A stable radix sort, 8 bits a pass, as many passes as the number of rows has digits. Entries are
// cut into slices, one block each:
//
//   sort_histogram  counts a slice's digits
//   sort_scan       turns a digit's counts into where each slice's entries go
//   sort_scatter    moves a slice's entries, in order
//
// Ids that have no row - the pad, the ignored one, those outside the table - get the id `num_rows`
// and come last. Cost: 32 bytes a place for each pass, in arrays of 16 bytes a place.
#pragma once

#include "../../cuda/launch.h"
#include "../embedding_backward.h"

namespace tegula {

inline constexpr int kDigits = 256;
inline constexpr int kSortThreads = 256;  // of a block, and entries it moves at a time
inline constexpr int kMostSlices = 1024;

struct SortParams {
  View ids;                       // read by the first pass
  const IdPlace* from = nullptr;  // by the others
  IdPlace* to = nullptr;
  int64_t count = 0;
  int64_t slice = 0;  // entries of a slice, a multiple of kSortThreads
  int64_t slices = 0;
  int32_t shift = 0;          // of the digit
  int64_t rows = kDigits;     // of counts
  int64_t* counts = nullptr;  // (rows, slices)
  int64_t* totals = nullptr;  // (rows,)
  int64_t num_rows = 0;
  int64_t padding_idx = -1;
  bool has_ignored = false;
  int64_t ignored = 0;
  IdFault* fault = nullptr;
};

// Parts of the workspace.
struct SortMemory {
  IdPlace* entries[2];
  int64_t* counts;
  int64_t* totals;
};
SortMemory sort_memory(int64_t count, Workspace& memory);

// How entries are cut into slices.
SortParams sort_slices(int64_t count);

// Reports ids outside the table. Returns what sorted_places says.
const IdPlace* sort_places(const EmbeddingBackwardArgs& args, const SortMemory& memory,
                           const Place& place);

// Which of the two arrays holds the entries once they are sorted.
const IdPlace* sorted_places(const EmbeddingBackwardArgs& args, const SortMemory& memory);

}  // namespace tegula
