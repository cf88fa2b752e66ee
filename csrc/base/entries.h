// Entries of a strided array, by their number in C order and whatever their type:
// how ids, positions and segments reach an operation.
#pragma once

#include "axes.h"

namespace tegula {

// Entries [first, first + count). Integer types; uint64 beyond int64 becomes its maximum.
void read_integers(const View& view, int64_t first, int64_t count, int64_t* out);
// Integer and float types.
void read_doubles(const View& view, int64_t first, int64_t count, double* out);

struct Range {
  int64_t low = INT64_MAX;
  int64_t high = INT64_MIN;
};

// Smallest and largest entry; entries equal to `*ignored` do not count. threads: as num_threads.
Range range_of(const View& view, const int64_t* ignored = nullptr, int threads = 0);

// As range_of, and IndexError unless every entry that counts lies in [0, limit):
// "id 99999 at ids[2, 7] is outside [0, 30522)" for noun "id" and name "ids".
Range checked_range(const View& view, int64_t limit, const int64_t* ignored, const char* noun,
                    const char* name, int threads = 0);

}  // namespace tegula
