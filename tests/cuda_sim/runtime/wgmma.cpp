// wgmma: each warp of a warpgroup multiplies its 16 rows. Products are computed at once, but count
// as reading shared memory until they were waited for.
#include <string.h>

#include "counters.h"
#include "matrix.h"
#include "proxy.h"
#include "warp.h"

namespace cusim {

namespace {

constexpr uint32_t kAllLanes = ~0u;
constexpr int kDepth = 16, kRows = 16, kMaxColumns = 256, kChunk = 8;  // elements in 16 bytes

// Where an operand lies in shared memory, by its matrix descriptor.
struct Operand {
  uint32_t start, leading, stride;  // bytes
  uint32_t row;                     // bytes of a row of the swizzle
  uint32_t mask;                    // of the address bits that it changes
  bool transposed;

  Operand(uint64_t descriptor, bool transposed, At at)
      : start(uint32_t(descriptor & 0x3FFF) << 4),
        leading(uint32_t(descriptor >> 16 & 0x3FFF) << 4),
        stride(uint32_t(descriptor >> 32 & 0x3FFF) << 4),
        transposed(transposed) {
    if (descriptor >> 49 & 7) fail(at, "wgmma: a descriptor with a base offset is not simulated");
    const uint32_t mode = uint32_t(descriptor >> 62);  // none, 128, 64, 32 bytes
    row = mode == 0 ? 16 : 256u >> mode;
    mask = row / 16 - 1;
  }

  // Of 16 bytes: elements k to k+7 of row r, or transposed, elements r to r+7 of column k.
  uint32_t chunk(int r, int k) const {
    const uint32_t per_row = row / 2, ur = uint32_t(r), uk = uint32_t(k);
    uint32_t offset = start;
    if (!transposed) {
      offset += ur % 8 * row + ur / 8 * stride + (mask ? uk * 2 : uk / 8 * leading);
    } else if (mask) {
      offset += ur % per_row * 2 + ur / per_row * leading + uk % 8 * row + uk / 8 * stride;
    } else {
      offset += ur / 8 * stride + uk % 8 * 16 + uk / 8 * leading;
    }
    return offset ^ (offset >> 7 & mask) << 4;
  }
};

using Rows = float[kMaxColumns][kDepth];

// Rows first to first + count of an operand as floats, every chunk checked and remembered.
void gather(Warp& warp, const Operand& operand, Element kind, int first, int count, Rows& out,
            At at) {
  for (int i = 0; i < count * kDepth / kChunk; ++i) {
    const int r = operand.transposed ? i % (count / kChunk) * kChunk : i / 2;
    const int k = operand.transposed ? i / (count / kChunk) : i % 2 * kChunk;
    const uint32_t offset = operand.chunk(first + r, k);
    const char* bytes = proxy_read(offset, at);
    warp.wgmma_reads.push_back({offset, warp.wgmma_group, hash_of(bytes, 16)});
    for (int e = 0; e < kChunk; ++e) {
      const float value = value_of(kind, load<uint16_t>(bytes + 2 * e));
      (operand.transposed ? out[r + e][k] : out[r][k + e]) = value;
    }
  }
}

struct Lane {
  const Wgmma* product;
  uint32_t* sums;
};

void gather_fragments(const Warp& warp, Element kind, Rows& out) {
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t* a = from_lane<Lane>(warp, lane).product->a;
    for (int i = 0; i < 4; ++i) {
      for (int half = 0; half < 2; ++half) {
        const uint32_t row = lane / 4 + 8 * uint32_t(i % 2);
        out[row][2 * (lane % 4) + uint32_t(half) + 8 * uint32_t(i / 2)] =
            value_of(kind, half_word(a[i], half));
      }
    }
  }
}

void multiply(Warp& warp, At at) {
  ++counters.wgmma;
  const Wgmma& p = *from_lane<Lane>(warp, 0).product;
  for (uint32_t lane = 1; lane < 32; ++lane) {
    const Wgmma& other = *from_lane<Lane>(warp, lane).product;
    if (other.descriptor_a != p.descriptor_a || other.descriptor_b != p.descriptor_b ||
        other.keep != p.keep) {
      fail(at, "wgmma: descriptors differ between lanes");
    }
  }
  static Rows a, b;
  if (p.a != nullptr) {
    gather_fragments(warp, p.kind, a);
  } else {
    const int first = int(warp.index % 4) * kRows;
    gather(warp, Operand(p.descriptor_a, p.transposed_a, at), p.kind, first, kRows, a, at);
  }
  gather(warp, Operand(p.descriptor_b, p.transposed_b, at), p.kind, 0, p.columns, b, at);
  const float sign = float(p.sign_a * p.sign_b);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    uint32_t* sums = from_lane<Lane>(warp, lane).sums;
    for (int i = 0; i < p.columns / 2; ++i) {
      const uint32_t row = lane / 4 + 8 * uint32_t(i / 2 % 2);
      const uint32_t column = 8 * uint32_t(i / 4) + 2 * (lane % 4) + uint32_t(i % 2);
      float sum = p.keep ? as_float(sums[i]) : 0.f;
      for (int k = 0; k < kDepth; ++k) sum += sign * a[row][k] * b[column][k];
      sums[i] = float_bits(sum);
    }
  }
}

}  // namespace

void wgmma_fence(At) {}

void multiply_matrices_async(const Wgmma* product, uint32_t* sums, At at) {
  const uint32_t last_warp = current()->warp_index / 4 * 4 + 3;
  if (last_warp * 32 + 31 >= block.fibers.size()) fail(at, "wgmma in a warpgroup of fewer warps");
  const Lane lane{product, sums};
  char nothing;
  collective("wgmma", kAllLanes, &lane, sizeof lane, &nothing, 0, at,
             [=](Warp& warp) { multiply(warp, at); });
}

void wgmma_commit(At at) {
  char nothing;
  collective("wgmma.commit_group", kAllLanes, &nothing, 0, &nothing, 0, at,
             [](Warp& warp) { ++warp.wgmma_group; });
}

void wgmma_wait(uint32_t pending, At at) {
  char nothing;
  collective("wgmma.wait_group", kAllLanes, &nothing, 0, &nothing, 0, at, [=](Warp& warp) {
    std::vector<PendingRead> kept;
    for (const PendingRead& read : warp.wgmma_reads) {
      if (read.group + pending >= warp.wgmma_group) {
        kept.push_back(read);
        continue;
      }
      if (hash_of(block.shared + read.offset, 16) != read.hash) {
        fail(at, "shared memory+%u changed under a wgmma that was not waited for", read.offset);
      }
      read_shared(read.offset, 16, kWeak, at);  // the read may have been as late as now
    }
    warp.wgmma_reads.swap(kept);
  });
}

}  // namespace cusim
