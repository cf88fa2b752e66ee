// Matrix instructions of one warp, with the layouts of fragments that the PTX ISA gives.
#include "matrix.h"

#include <string.h>

#include "counters.h"
#include "memory.h"
#include "warp.h"

namespace cusim {

namespace {

constexpr uint32_t kAllLanes = ~0u;

// In a fragment of 8 x 8 halves, lane l holds row l/4, columns 2(l%4) and the next.
struct Row {
  uint32_t offset, data[4];
};

int row_of(uint32_t lane, int half, bool transposed) {
  return transposed ? int(2 * (lane % 4)) + half : int(lane / 4);
}
int column_of(uint32_t lane, int half, bool transposed) {
  return transposed ? int(lane / 4) : int(2 * (lane % 4)) + half;
}

// The shared memory that the lane's row lies in; lanes beyond those that give rows have none.
bool gives_row(int count) { return current()->lane < 8u * uint32_t(count); }

// Eight rows of 16 bytes are read at once if they lie in different banks.
void count_conflicts(const Warp& warp, int count) {
  for (int m = 0; m < count; ++m) {
    uint32_t banks = 0;
    for (uint32_t row = 0; row < 8; ++row) {
      banks |= 1u << (from_lane<uint32_t>(warp, 8 * uint32_t(m) + row) / 16 % 8);
    }
    ++counters.ldmatrix;
    counters.ldmatrix_conflicts += banks != 0xFF;
  }
}

void check_row(uint64_t row, const char* operation, At at) {
  if (row & 15) fail(at, "%s: the address of a row is not a multiple of 16", operation);
}

}  // namespace

void load_matrices(uint32_t* out, int count, bool transposed, uint64_t row, At at) {
  const char* operation = transposed ? "ldmatrix.trans" : "ldmatrix";
  if (gives_row(count)) {
    check_row(row, operation, at);
    read_shared(row, 16, kWeak, at);
  }
  const uint32_t offset = uint32_t(row);
  collective(operation, kAllLanes, &offset, sizeof offset, out, 4 * uint32_t(count), at,
             [=](Warp& warp) {
               count_conflicts(warp, count);
               for (uint32_t lane = 0; lane < 32; ++lane) {
                 uint32_t words[4] = {};
                 for (int m = 0; m < count; ++m) {
                   for (int half = 0; half < 2; ++half) {
                     const uint32_t giver = uint32_t(8 * m + row_of(lane, half, transposed));
                     const char* from = block.shared + from_lane<uint32_t>(warp, giver) +
                                        2 * column_of(lane, half, transposed);
                     words[m] |= uint32_t(load<uint16_t>(from)) << (16 * half);
                   }
                 }
                 to_lane(warp, lane, words);
               }
             });
}

void store_matrices(const uint32_t* in, int count, bool transposed, uint64_t row, At at) {
  const char* operation = transposed ? "stmatrix.trans" : "stmatrix";
  if (gives_row(count)) {
    check_row(row, operation, at);
    write_shared(row, 16, kWeak, at);
  }
  Row given{uint32_t(row), {}};
  memcpy(given.data, in, 4 * size_t(count));
  char nothing;
  collective(operation, kAllLanes, &given, sizeof given, &nothing, 0, at, [=](Warp& warp) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
      const Row own = from_lane<Row>(warp, lane);
      for (int m = 0; m < count; ++m) {
        for (int half = 0; half < 2; ++half) {
          const uint32_t giver = uint32_t(8 * m + row_of(lane, half, transposed));
          char* to = block.shared + from_lane<Row>(warp, giver).offset +
                     2 * column_of(lane, half, transposed);
          store<uint16_t>(to, half_word(own.data[m], half));
        }
      }
    }
  });
}

uint32_t transpose_matrix(uint32_t value, At at) {
  uint32_t out;
  collective("movmatrix", kAllLanes, &value, sizeof value, &out, sizeof out, at, [](Warp& warp) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
      uint32_t word = 0;
      for (int half = 0; half < 2; ++half) {
        const uint32_t row = 2 * (lane % 4) + uint32_t(half), column = lane / 4;
        const uint32_t from = from_lane<uint32_t>(warp, 4 * row + column / 2);
        word |= uint32_t(half_word(from, column % 2)) << (16 * half);
      }
      to_lane(warp, lane, word);
    }
  });
  return out;
}

namespace {

struct Fragments {
  uint32_t a[4], b[2], sums[4];
};
struct Matrices {
  float a[16][16], b[8][16], sums[16][8];
};

void gather(const Warp& warp, Element kind, int depth, Matrices& m) {
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const Fragments own = from_lane<Fragments>(warp, lane);
    const int group = lane / 4, place = lane % 4;
    for (int i = 0; i < (kind == kTFloat32 ? depth / 2 : depth / 4); ++i) {
      const int row = group + 8 * (i % 2);
      if (kind == kTFloat32) {
        m.a[row][place + 4 * (i / 2)] = tf32_value(own.a[i]);
      } else {
        for (int half = 0; half < 2; ++half) {
          m.a[row][2 * place + half + 8 * (i / 2)] = value_of(kind, half_word(own.a[i], half));
        }
      }
    }
    for (int i = 0; i < (kind == kTFloat32 ? depth / 4 : depth / 8); ++i) {
      if (kind == kTFloat32) {
        m.b[group][place + 4 * i] = tf32_value(own.b[i]);
      } else {
        for (int half = 0; half < 2; ++half) {
          m.b[group][2 * place + half + 8 * i] = value_of(kind, half_word(own.b[i], half));
        }
      }
    }
    for (int i = 0; i < 4; ++i) {
      m.sums[group + 8 * (i / 2)][2 * place + i % 2] = as_float(own.sums[i]);
    }
  }
}

}  // namespace

void multiply_matrices(Element kind, int depth, uint32_t* sums, const uint32_t* a,
                       const uint32_t* b, At at) {
  static const char* const kNames[] = {"mma.bf16", "mma.f16", "mma.tf32"};
  const int per_word = kind == kTFloat32 ? 1 : 2;
  Fragments own{};
  memcpy(own.a, a, size_t(depth / 2 / per_word) * 4);
  memcpy(own.b, b, size_t(depth / 4 / per_word) * 4);
  memcpy(own.sums, sums, sizeof own.sums);
  collective(kNames[kind], kAllLanes, &own, sizeof own, sums, 16, at, [=](Warp& warp) {
    ++counters.mma;
    Matrices m;
    gather(warp, kind, depth, m);
    float by_depth[16][8];  // b the other way round, so that eight columns are summed side by side
    for (int k = 0; k < depth; ++k) {
      for (int n = 0; n < 8; ++n) by_depth[k][n] = m.b[n][k];
    }
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < depth; ++k) {
        const float x = m.a[row][k];
        for (int n = 0; n < 8; ++n) m.sums[row][n] += x * by_depth[k][n];
      }
    }
    for (uint32_t lane = 0; lane < 32; ++lane) {
      float out[4];
      for (int i = 0; i < 4; ++i) {
        out[i] = m.sums[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
      }
      to_lane(warp, lane, out);
    }
  });
}

}  // namespace cusim
