// Where each id stands: the places of an array of ids, in the order of the ids.
#pragma once

#include <cstdint>
#include <memory>

#include "../base/entries.h"

namespace tegula {

struct Place {
  int64_t id;
  int64_t place;  // number of the entry in C order
};

struct Places {
  std::unique_ptr<Place[]> entries;
  int64_t count = 0;
};

// Entries of `ids` that lie in `range` and equal neither of the two `silent` ids, sorted by
// id; equal ids stay in the order of their places.
//
// A counting sort, one pass for each digit of id - range.low. Digits are about as wide as
// the number of entries, so a table of that size takes one pass, and a table of any size
// takes memory for the entries alone: two arrays of Place.
Places places_by_id(const View& ids, Range range, const int64_t (&silent)[2], int threads);

}  // namespace tegula
