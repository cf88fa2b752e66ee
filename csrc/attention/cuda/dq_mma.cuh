// dq on tensor cores: a block has some rows of a unit and goes through the keys that they see,
// kStep at a time. With S = scores and G = grad_out, for dS of 16 bits, and sums in float32:
//
//   S  <- q k^T       P  <- 2^(S - shift)
//   dP <- G v^T       dS <- P (dP - delta)
//   dq <- dq + dS k
//
// Each warp has rows of its own, from the products to the sums. A block adds in the order of keys.
//
// Cost per visible pair: 2 D + Dv multiply-adds. Every block reads k and v as far as its rows see.
#pragma once

#include "backward_params.h"
#include "gradient_tiles.cuh"
#include "gradient_weights.cuh"

namespace tegula {

template <class T, int kDim, bool kRich>
class RowBlock {
  static constexpr int kM = row_tiles(kDim);
  static constexpr int kN = kStep / 8;
  static constexpr int kRows = kRowWarps * kM * 16;
  static constexpr uint32_t kStepTile = tile_bytes(kStep, kDim);
  static constexpr int kNone = -1;  // no key

 public:
  TEGULA_DEVICE RowBlock(const AttentionBackwardParams& params, char* memory)
      : p_(params),
        blocks_(parts_of(params.a.heads / params.a.key_heads * params.a.q_len, kRows)),
        unit_index_(blockIdx.x / blocks_),
        unit_(unit_of(params.a, unit_index_)),
        scores_(params.a, unit_),
        // The last rows first: under a causal mask they have most to do.
        first_row_((blocks_ - 1 - blockIdx.x % blocks_) * kRows),
        lane_(threadIdx.x % 32),
        own_(static_cast<int>(threadIdx.x) / 32 * kM * 16),
        query_tile_(shared_address(memory)),
        grad_tile_(query_tile_ + tile_bytes(kRows, kDim)),
        steps_(grad_tile_ + tile_bytes(kRows, kDim) + number_bytes(kRows)),
        numbers_(*reinterpret_cast<RowNumbers<kRows>*>(memory + 2 * tile_bytes(kRows, kDim))) {}

  TEGULA_DEVICE void run() {
    set_zero(sums_);
    const SeenByAll all = sight_of_all();
    const int64_t own_row = first_row_ + own_;
    const SeenByAll own = own_row < p_.rows.unit_rows ? sights()[own_row / kSightRows] : nothing();

    int next = all.lo < all.hi ? next_key(all, all.lo / kStep * kStep) : kNone, key = kNone;
    if (next != kNone) load_rows();
    // With two stages, the keys of the next step are on their way during a step.
    const bool two = p_.stages == 2;
    int stage = 0;  // of the next step
    while (next != kNone || key != kNone) {
      if (two) wait_for_copies<0>();
      __syncthreads();  // the step's keys are there, and nobody is at the one before any more
      if (next != kNone) load_keys(next, stage);
      commit_copies();
      if (!two) {
        wait_for_copies<0>();
        __syncthreads();
        key = next;
      }
      if (two) stage = 1 - stage;
      if (key != kNone) add(key, stage, all.shows_all(key, key + kStep), own);
      key = two ? next : kNone;
      if (next != kNone) next = next_key(all, next + kStep);
    }
    write();
  }

 private:
  TEGULA_DEVICE uint32_t key_tile(int stage) const { return steps_ + stage * 2 * kStepTile; }
  TEGULA_DEVICE uint32_t value_tile(int stage) const { return key_tile(stage) + kStepTile; }
  TEGULA_DEVICE const SeenByAll* sights() const {
    return p_.rows.sights + unit_index_ * p_.rows.blocks();
  }
  TEGULA_DEVICE static SeenByAll nothing() {
    constexpr int kMost = 0x7FFFFFFF;
    return {kMost, 0, 0, kMost, 0, kMost};
  }
  TEGULA_DEVICE SeenByAll sight_of_all() const {
    SeenByAll all = nothing();
    for (int i = 0; i < kRows && first_row_ + i < p_.rows.unit_rows; i += kSightRows) {
      all = together(all, sights()[(first_row_ + i) / kSightRows]);
    }
    return all;
  }
  // The first step from `key` on that is not hidden from all rows, or kNone.
  TEGULA_DEVICE static int next_key(const SeenByAll& all, int key) {
    const bool in_gap = key >= all.gap_lo && key + kStep <= all.gap_hi;
    if (in_gap) key = all.gap_hi / kStep * kStep;
    return key < all.hi ? key : kNone;
  }

  // Row 16 m + g + 8 h of the warp's fragments.
  TEGULA_DEVICE int64_t row_of(int m, int h) const { return first_row_ + place_of(m, h); }
  TEGULA_DEVICE SeenKeys seen_by(int m, int h) const {
    return p_.rows.seen[unit_index_ * p_.rows.unit_rows + row_of(m, h)];
  }
  // The same, counted from the block's first.
  TEGULA_DEVICE int place_of(int m, int h) const { return own_ + m * 16 + h * 8 + lane_ / 4; }

  TEGULA_DEVICE void load_rows() const {
    const auto q = slab_of<const uint16_t>(p_.a.q, unit_.batch);
    const auto grad = slab_of<const uint16_t>(p_.a.grad_out, unit_.batch);
    const RowPlaces places(unit_, first_row_);
    load_tile<kDim, kRows, 0>(
        query_tile_, [&](int i) { return places.row_of(q, i); }, static_cast<int>(p_.a.dim), q.step,
        p_.q_chunks);
    load_tile<kDim, kRows, 0>(
        grad_tile_, [&](int i) { return places.row_of(grad, i); }, static_cast<int>(p_.a.value_dim),
        grad.step, p_.grad_chunks);
    const int64_t left = p_.rows.unit_rows - first_row_;
    load_numbers<kRich, kRows>(shared_address(&numbers_), p_.rows,
                               unit_index_ * p_.rows.unit_rows + first_row_,
                               static_cast<int>(left < kRows ? left : kRows));
  }

  TEGULA_DEVICE void load_keys(int first, int stage) const {
    const auto k = slab_of<const uint16_t>(p_.a.k, unit_.batch);
    const auto v = slab_of<const uint16_t>(p_.a.v, unit_.batch);
    const auto row_at = [&](const Slab<const uint16_t>& slab, int i) -> const uint16_t* {
      return first + i < p_.a.k_len ? slab.row(unit_.key_head, first + i) : nullptr;
    };
    load_tile<kDim, kStep, 0>(
        key_tile(stage), [&](int i) { return row_at(k, i); }, static_cast<int>(p_.a.dim), k.step,
        p_.k_chunks);
    load_tile<kDim, kStep, 0>(
        value_tile(stage), [&](int i) { return row_at(v, i); }, static_cast<int>(p_.a.value_dim),
        v.step, p_.v_chunks);
  }

  // Whether pairs may be hidden that the intervals show.
  TEGULA_DEVICE bool hides_more() const { return kRich && (p_.a.dense || p_.a.bias); }

  TEGULA_DEVICE void add(int first_key, int stage, bool all_full, const SeenByAll& own) {
    const bool some_here = !own.hides(first_key, first_key + kStep);
    uint32_t weights[kM][kN][2];
    if (some_here) {
      float products[kM][kN][4], slopes[kM][kN][4];
      set_zero(products);
      multiply_tiles<T, kDim>(products, query_tile_, own_, key_tile(stage));
      set_zero(slopes);
      multiply_tiles<T, kDim>(slopes, grad_tile_, own_, value_tile(stage));
      if (own.shows_all(first_key, first_key + kStep)) {
        make_slopes<false>(products, slopes, first_key, weights);
      } else {
        make_slopes<true>(products, slopes, first_key, weights);
      }
    }
    if (!all_full || hides_more()) {
      if (__syncthreads_or(finds_unclean<T, kDim>(key_tile(stage), kStep))) {
        if (some_here) {
          add_unclean<T, kDim>(sums_, weights, key_tile(stage), [&](int m, int h, int key) {
            return seen_by(m, h).sees(first_key + key) &&
                   scores_.shows(row_of(m, h), first_key + key);
          });
        }
        __syncthreads();
        clear_unclean<T, kDim>(key_tile(stage), kStep);
        __syncthreads();
      }
    }
    if (some_here) multiply_weights<T, kDim>(sums_, weights, key_tile(stage));
  }

  // dS from q k^T and grad_out v^T.
  template <bool kMasked>
  TEGULA_DEVICE void make_slopes(const float (&products)[kM][kN][4],
                                 const float (&of_weights)[kM][kN][4], int first_key,
                                 uint32_t (&weights)[kM][kN][2]) const {
    const auto make = [&](int m, int n, const float (&product)[4], const float (&of_weight)[4],
                          uint32_t (&weight)[2]) {
      const int key = first_key + n * 8 + lane_ % 4 * 2;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int place = place_of(m, h);
        const SeenKeys seen = kMasked ? seen_by(m, h) : SeenKeys{};
        float kept[2], slopes[2];
        scores_.kept_pair(row_of(m, h), key, kept);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 2 * h + e;
          slopes[e] = slope_of<true>(scores_, numbers_, product[i], of_weight[i], kept[e],
                                     row_of(m, h), place, key + e, !kMasked || seen.sees(key + e));
        }
        weight[h] = pack(slopes[0], slopes[1], T{});
      }
    };
    make_fragments<kRich>(weights, make, products, of_weights);
  }

  // The block's rows take the place of what was read of them; those without keys get zeros.
  TEGULA_DEVICE void write() const {
    wait_for_copies<0>();
    __syncthreads();
    round_to_tile<T, kDim>(sums_, static_cast<float>(p_.a.scale), query_tile_, own_);
    __syncthreads();
    const auto dq = slab_of<uint16_t>(p_.a.dq, unit_.batch);
    const RowPlaces places(unit_, first_row_);
    store_tile<kDim>(
        query_tile_, places.rows(kRows), [&](int i) { return places.row_of(dq, i); },
        static_cast<int>(p_.a.dim), dq.step, p_.dq_chunks);
  }

  const AttentionBackwardParams& p_;
  const int64_t blocks_, unit_index_;
  const Unit unit_;
  const Scores<float, kRich> scores_;
  const int64_t first_row_;
  const int lane_;
  const int own_;  // the warp's first row, counted from first_row_
  const uint32_t query_tile_, grad_tile_, steps_;
  RowNumbers<kRows>& numbers_;
  float sums_[kM][kDim / 8][4];
};

template <class T, int kDim, bool kRich>
TEGULA_DEVICE void attention_dq(const AttentionBackwardParams& params) {
  extern __shared__ __align__(128) uint4 memory[];
  RowBlock<T, kDim, kRich> block(params, reinterpret_cast<char*>(memory));
  block.run();
}

}  // namespace tegula

// The kernels of an element type, for every head size that there are kernels for.
#define TEGULA_DQ_KERNEL(T, name, dim, rich, options)                       \
  extern "C" __global__ void __launch_bounds__(tegula::kRowWarps * 32)      \
      attention_dq_mma_##name##_d##dim##_##options(                         \
          const __grid_constant__ tegula::AttentionBackwardParams params) { \
    tegula::attention_dq<T, dim, rich>(params);                             \
  }
// One for each head_class.
#define TEGULA_DQ_KERNELS(T, name)             \
  TEGULA_DQ_KERNEL(T, name, 32, false, plain)  \
  TEGULA_DQ_KERNEL(T, name, 64, false, plain)  \
  TEGULA_DQ_KERNEL(T, name, 128, false, plain) \
  TEGULA_DQ_KERNEL(T, name, 256, false, plain) \
  TEGULA_DQ_KERNEL(T, name, 64, true, rich)    \
  TEGULA_DQ_KERNEL(T, name, 128, true, rich)   \
  TEGULA_DQ_KERNEL(T, name, 256, true, rich)
