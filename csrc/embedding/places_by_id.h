// Where each id stands: the places of an array of ids, in the order of the ids.
#pragma once

#include <cstdint>

#include "../base/entries.h"
#include "embedding_backward_plan.h"

namespace tegula {

// Entries of `ids` that lie in `range` and equal neither of the two `silent` ids, sorted by
// id; equal ids stay in the order of their places. They are written to one of the two
// arrays, which hold ids.count() each; `sorted` says which, and how many there are.
//
// A counting sort, one pass for each digit of id - range.low: time and memory follow the
// number of entries, not the size of the table.
struct SortedPlaces {
  const IdPlace* sorted = nullptr;
  int64_t count = 0;
};
SortedPlaces places_by_id(const View& ids, Range range, const int64_t (&silent)[2], IdPlace* from,
                          IdPlace* to, int threads);

}  // namespace tegula
