// dk and dv on tensor cores: a block has some keys of one key/value head, and goes through the rows
// of all query heads that share it, kStep at a time. With S = scores and G = grad_out, for 16-bit
// P and dS, and sums in float32:
//
//   S^T  <- k q^T           P^T  <- 2^(S^T - shift)
//   dP^T <- v G^T           dS^T <- P^T (dP^T - delta)
//   dv   <- dv + P^T G      dk   <- dk + dS^T q
//
// Two warps share the keys of a pair, and each has one line of products: one multiplies k by q,
// makes P and adds to dv; the other multiplies v by G, takes P from the first, makes dS and adds to
// dk. So each holds the sums of one gradient alone, which leaves registers for twice the keys, and
// what is read of q and G serves all of them. P goes through shared memory in float32, each thread
// reading what the thread with the same lane has written.
//
// A block owns its keys and adds in the order of rows: the same bits in every run. dq, whose sums
// run over keys, is a kernel of its own, which makes S and dP again: 7 products where 5 would do,
// the price of results that depend on no order, without memory for the sums of every block.
//
// Cost per visible pair: 2 D + 2 Dv multiply-adds. Every block reads q and grad_out of the rows
// that see its keys.
#pragma once

#include "backward_params.h"
#include "gradient_tiles.cuh"
#include "gradient_weights.cuh"

namespace tegula {

// A block of rows and what is known of it.
struct RowStep {
  int index = -1;                             // -1: there are no more
  bool all_full = false;                      // every pair of row and key of the block is visible
  bool some_here = false, full_here = false;  // some pair of the warp's own keys is, every one is
};

// Goes through the blocks of rows that see some of a block's keys, looking at 32 of them at a time.
// Called by whole warps.
class RowSteps {
 public:
  TEGULA_DEVICE RowSteps(const SeenByAll* sights, int count, int begin, int end, int own_begin,
                         int own_end)
      : sights_(sights),
        count_(count),
        begin_(begin),
        end_(end),
        own_begin_(own_begin),
        own_end_(own_end) {}

  TEGULA_DEVICE RowStep next() {
    constexpr unsigned kAll = 0xFFFFFFFFu;
    while (some_ == 0) {
      first_ = next_;
      if (first_ >= count_) return {};
      next_ += 32;
      const int index = first_ + static_cast<int>(threadIdx.x % 32);
      bool some = false, full = false, some_here = false, full_here = false;
      if (index < count_) {
        const SeenByAll sight = sights_[index];
        some = !sight.hides(begin_, end_), full = sight.shows_all(begin_, end_);
        some_here = !sight.hides(own_begin_, own_end_);
        full_here = sight.shows_all(own_begin_, own_end_);
      }
      some_ = __ballot_sync(kAll, some), full_ = __ballot_sync(kAll, full);
      some_here_ = __ballot_sync(kAll, some_here), full_here_ = __ballot_sync(kAll, full_here);
    }
    const int bit = __clz(__brev(some_));
    some_ &= some_ - 1;
    const auto is_set = [bit](uint32_t bits) { return (bits >> bit & 1) != 0; };
    return {first_ + bit, is_set(full_), is_set(some_here_), is_set(full_here_)};
  }

 private:
  const SeenByAll* sights_;
  int count_;
  int begin_, end_, own_begin_, own_end_;
  int first_ = 0, next_ = 0;
  uint32_t some_ = 0, full_ = 0, some_here_ = 0, full_here_ = 0;
};

template <class T, int kDim, bool kRich>
class KeyBlock {
  static constexpr int kM = pair_tiles(kDim);
  static constexpr int kN = kStep / 8;
  static constexpr int kPairKeys = 16 * kM;
  static constexpr uint32_t kStepTile = tile_bytes(kStep, kDim);
  static constexpr uint32_t kStageBytes = 2 * kStepTile + number_bytes(kStep) + seen_bytes(kStep);

 public:
  TEGULA_DEVICE KeyBlock(const AttentionBackwardParams& params, char* memory)
      : p_(params),
        keys_(static_cast<int>(blockDim.x) / kPairThreads * kPairKeys),
        blocks_(parts_of(params.a.k_len, keys_)),
        unit_index_(blockIdx.x / blocks_),
        unit_(unit_of(params.a, unit_index_)),
        scores_(params.a, unit_),
        first_key_(static_cast<int>(blockIdx.x % blocks_) * keys_),
        lane_(threadIdx.x % 32),
        own_(static_cast<int>(threadIdx.x) / kPairThreads * kPairKeys),
        for_keys_(threadIdx.x / 32 % 2 != 0),
        stages_(memory + 4 * keys_ * kDim) {
    key_tile_ = shared_address(memory);
    value_tile_ = key_tile_ + keys_ * kDim * 2;
    passed_ = value_tile_ + keys_ * kDim * 2 + p_.stages * kStageBytes + own_ * kStep * 4;
  }

  TEGULA_DEVICE void run() {
    set_zero(sums_);
    const int own_key = first_key_ + own_;
    RowSteps steps(p_.rows.sights + unit_index_ * p_.rows.blocks(),
                   static_cast<int>(p_.rows.blocks()), first_key_, first_key_ + keys_, own_key,
                   own_key + kPairKeys);
    RowStep next = steps.next(), step;
    if (next.index >= 0) load_keys();
    // With two stages, the rows of the next step are on their way during a step.
    const bool two = p_.stages == 2;
    int stage = 0;  // of the next step
    while (next.index >= 0 || step.index >= 0) {
      if (two) wait_for_copies<0>();
      __syncthreads();  // the step's rows are there, and nobody is at the one before any more
      if (next.index >= 0) load_rows(next.index, stage);
      commit_copies();
      if (!two) {
        wait_for_copies<0>();
        __syncthreads();
        step = next;
      }
      if (two) stage = 1 - stage;
      if (step.index >= 0) add(step, stage);
      step = two ? next : RowStep{};
      next = steps.next();
    }
    write();
  }

 private:
  TEGULA_DEVICE uint32_t query_tile(int stage) const {
    return value_tile_ + keys_ * kDim * 2 + stage * kStageBytes;
  }
  TEGULA_DEVICE uint32_t grad_tile(int stage) const { return query_tile(stage) + kStepTile; }
  TEGULA_DEVICE const RowNumbers<kStep>& numbers(int stage) const {
    return *reinterpret_cast<const RowNumbers<kStep>*>(stages_ + stage * kStageBytes +
                                                       2 * kStepTile);
  }
  TEGULA_DEVICE const SeenKeys* seen(int stage) const {
    return reinterpret_cast<const SeenKeys*>(&numbers(stage) + 1);
  }

  TEGULA_DEVICE void load_keys() const {
    const auto k = slab_of<const uint16_t>(p_.a.k, unit_.batch);
    const auto v = slab_of<const uint16_t>(p_.a.v, unit_.batch);
    for (int begin = 0; begin < keys_; begin += kPairKeys) {
      const auto row_of = [&](const Slab<const uint16_t>& slab, int i) -> const uint16_t* {
        const int64_t key = first_key_ + begin + i;
        return key < p_.a.k_len ? slab.row(unit_.key_head, key) : nullptr;
      };
      const uint32_t at = begin * kDim * 2;
      load_tile<kDim, kPairKeys, 0>(
          key_tile_ + at, [&](int i) { return row_of(k, i); }, static_cast<int>(p_.a.dim), k.step,
          p_.k_chunks);
      load_tile<kDim, kPairKeys, 0>(
          value_tile_ + at, [&](int i) { return row_of(v, i); }, static_cast<int>(p_.a.value_dim),
          v.step, p_.v_chunks);
    }
  }

  TEGULA_DEVICE void load_rows(int step, int stage) const {
    const auto q = slab_of<const uint16_t>(p_.a.q, unit_.batch);
    const auto grad = slab_of<const uint16_t>(p_.a.grad_out, unit_.batch);
    const RowPlaces places(unit_, int64_t{step} * kStep);
    load_tile<kDim, kStep, 0>(
        query_tile(stage), [&](int i) { return places.row_of(q, i); }, static_cast<int>(p_.a.dim),
        q.step, p_.q_chunks);
    load_tile<kDim, kStep, 0>(
        grad_tile(stage), [&](int i) { return places.row_of(grad, i); },
        static_cast<int>(p_.a.value_dim), grad.step, p_.grad_chunks);
    const int64_t first = unit_index_ * p_.rows.unit_rows + int64_t{step} * kStep;
    const uint32_t to = grad_tile(stage) + kStepTile;
    load_numbers<kRich, kStep>(to, p_.rows, first, kStep);
    if (threadIdx.x < kStep) {
      copy_async_16(to + number_bytes(kStep) + threadIdx.x * 16, p_.rows.seen + first + threadIdx.x,
                    true);
    }
  }

  // The key of row 16 m + g + 8 h of the warp's fragments.
  TEGULA_DEVICE int key_of(int m, int h) const {
    return first_key_ + own_ + m * 16 + h * 8 + lane_ / 4;
  }

  TEGULA_DEVICE void add(const RowStep& step, int stage) {
    const bool whole = step.all_full && !hides_more();
    uint32_t weights[kM][kN][2];
    const uint32_t rows = for_keys_ ? query_tile(stage) : grad_tile(stage);
    if (step.some_here) {
      float products[kM][kN][4];
      set_zero(products);
      multiply_tiles<T, kDim>(products, for_keys_ ? value_tile_ : key_tile_, own_,
                              for_keys_ ? grad_tile(stage) : query_tile(stage));
      const int barrier = 1 + own_ / kPairKeys;
      if (for_keys_) {
        barrier_wait(barrier, kPairThreads);
        make_slopes(products, stage, step.full_here && !hides_more(), weights);
      } else {
        if (step.full_here) {
          make_weights<false>(products, step.index, stage, weights);
        } else {
          make_weights<true>(products, step.index, stage, weights);
        }
        barrier_arrive(barrier, kPairThreads);
      }
    }
    if (!whole) {
      const bool found = finds_unclean<T, kDim>(query_tile(stage), kStep) |
                         finds_unclean<T, kDim>(grad_tile(stage), kStep);
      if (__syncthreads_or(found)) {
        if (step.some_here) {
          const SeenKeys* sights = seen(stage);
          add_unclean<T, kDim>(sums_, weights, rows, [&](int m, int h, int row) {
            return sights[row].sees(key_of(m, h)) &&
                   scores_.shows(int64_t{step.index} * kStep + row, key_of(m, h));
          });
        }
        __syncthreads();
        clear_unclean<T, kDim>(query_tile(stage), kStep);
        clear_unclean<T, kDim>(grad_tile(stage), kStep);
        __syncthreads();
      }
    }
    if (step.some_here) multiply_weights<T, kDim>(sums_, weights, rows);
  }

  // Whether pairs may be hidden that the intervals show.
  TEGULA_DEVICE bool hides_more() const { return kRich && (p_.a.dense || p_.a.bias); }

  // P from scores. What the other warp gets is P times the slope of softcap; its sign, which P does
  // not need, says that dropout drops the pair, and kHidden that it does not exist.
  template <bool kMasked>
  TEGULA_DEVICE void make_weights(const float (&products)[kM][kN][4], int step, int stage,
                                  uint32_t (&weights)[kM][kN][2]) const {
    const RowNumbers<kStep>& rows = numbers(stage);
    const SeenKeys* sights = seen(stage);
    const auto make = [&](int m, int n, const float (&product)[4], uint32_t (&weight)[2]) {
      float kept[4], passed[4];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = n * 8 + lane_ % 4 * 2 + e;
        const SeenKeys sight = kMasked ? sights[row] : SeenKeys{};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int key = key_of(m, h), i = 2 * h + e;
          weigh_pair(rows, product[i], step, row, key, !kMasked || sight.sees(key), kept[i],
                     passed[i]);
        }
      }
      store_shared_128(passed_at(m, n), as_words(passed));
      weight[0] = pack(kept[0], kept[1], T{}), weight[1] = pack(kept[2], kept[3], T{});
    };
    make_fragments<kRich>(weights, make, products);
  }

  TEGULA_DEVICE void weigh_pair(const RowNumbers<kStep>& rows, float product, int step, int place,
                                int key, bool visible, float& kept, float& passed) const {
    const int64_t row = int64_t{step} * kStep + place;
    if (!weigh(scores_, rows, product, row, place, key, visible, kept)) {
      passed = __uint_as_float(kHidden);
      return;
    }
    passed = kept;
    if constexpr (kRich) {
      passed *= scores_.slope(product);
      if (scores_.kept(row, key) == 0) {
        kept = 0;
        passed = __uint_as_float(__float_as_uint(passed) | kDropped);
      }
    }
  }

  // dS from grad_out v^T and what the other warp has passed.
  TEGULA_DEVICE void make_slopes(const float (&products)[kM][kN][4], int stage, bool whole,
                                 uint32_t (&weights)[kM][kN][2]) const {
    const float* deltas = numbers(stage).deltas;
    const float factor = kRich ? static_cast<float>(p_.a.dropout.scale) : 1.0f;
    const auto make = [&](int m, int n, const float (&product)[4], uint32_t (&weight)[2]) {
      const float2 delta = *reinterpret_cast<const float2*>(deltas + n * 8 + lane_ % 4 * 2);
      const uint4 words = load_shared_128(passed_at(m, n));
      const uint32_t passed[4] = {words.x, words.y, words.z, words.w};
      float slopes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float slope = product[i];
        if constexpr (kRich) slope = (passed[i] & kDropped) != 0 ? 0 : slope * factor;
        const float share = __uint_as_float(kRich ? passed[i] & ~kDropped : passed[i]);
        slope = share * (slope - (i % 2 == 0 ? delta.x : delta.y));
        slopes[i] = !whole && passed[i] == kHidden ? 0 : slope;
      }
      weight[0] = pack(slopes[0], slopes[1], T{}), weight[1] = pack(slopes[2], slopes[3], T{});
    };
    make_fragments<false>(weights, make, products);
  }

  static constexpr uint32_t kDropped = 0x80000000u;
  static constexpr uint32_t kHidden = 0x7FC00001u;  // a NaN that no operation makes

  // Where the pair's warps pass four numbers.
  TEGULA_DEVICE uint32_t passed_at(int m, int n) const {
    return passed_ + ((m * kN + n) * 32 + lane_) * 16;
  }
  TEGULA_DEVICE static uint4 as_words(const float (&x)[4]) {
    return {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
            __float_as_uint(x[3])};
  }

  // The block's keys take the place of what was read of them. Keys that nobody sees get zeros.
  TEGULA_DEVICE void write() const {
    wait_for_copies<0>();
    __syncthreads();
    const float drop_scale = kRich ? static_cast<float>(p_.a.dropout.scale) : 1.0f;
    const float factor = for_keys_ ? static_cast<float>(p_.a.scale) : drop_scale;
    round_to_tile<T, kDim>(sums_, factor, for_keys_ ? key_tile_ : value_tile_, own_);
    __syncthreads();
    const int64_t left = p_.a.k_len - first_key_;
    const int rows = static_cast<int>(left < keys_ ? left : keys_);
    const auto dk = slab_of<uint16_t>(p_.a.dk, unit_.batch);
    const auto dv = slab_of<uint16_t>(p_.a.dv, unit_.batch);
    store_tile<kDim>(
        key_tile_, rows, [&](int i) { return dk.row(unit_.key_head, first_key_ + i); },
        static_cast<int>(p_.a.dim), dk.step, p_.dk_chunks);
    store_tile<kDim>(
        value_tile_, rows, [&](int i) { return dv.row(unit_.key_head, first_key_ + i); },
        static_cast<int>(p_.a.value_dim), dv.step, p_.dv_chunks);
  }

  const AttentionBackwardParams& p_;
  const int keys_;  // of the block
  const int64_t blocks_, unit_index_;
  const Unit unit_;
  const Scores<float, kRich> scores_;
  const int first_key_, lane_;
  const int own_;        // the pair's first key, counted from first_key_
  const bool for_keys_;  // the warp's sums are dk, or else dv
  char* const stages_;
  uint32_t key_tile_, value_tile_, passed_;
  float sums_[kM][kDim / 8][4];
};

template <class T, int kDim, bool kRich>
TEGULA_DEVICE void attention_dkdv(const AttentionBackwardParams& params) {
  extern __shared__ __align__(128) uint4 memory[];
  KeyBlock<T, kDim, kRich> block(params, reinterpret_cast<char*>(memory));
  block.run();
}

}  // namespace tegula

// The kernels of an element type, for every head size that there are kernels for.
#define TEGULA_DKDV_KERNEL(T, name, dim, rich, options)                                        \
  extern "C" __global__ void __launch_bounds__(tegula::most_pairs(dim) * tegula::kPairThreads) \
      attention_dkdv_mma_##name##_d##dim##_##options(                                          \
          const __grid_constant__ tegula::AttentionBackwardParams params) {                    \
    tegula::attention_dkdv<T, dim, rich>(params);                                              \
  }
// One for each head_class.
#define TEGULA_DKDV_KERNELS(T, name)             \
  TEGULA_DKDV_KERNEL(T, name, 32, false, plain)  \
  TEGULA_DKDV_KERNEL(T, name, 64, false, plain)  \
  TEGULA_DKDV_KERNEL(T, name, 128, false, plain) \
  TEGULA_DKDV_KERNEL(T, name, 256, false, plain) \
  TEGULA_DKDV_KERNEL(T, name, 64, true, rich)    \
  TEGULA_DKDV_KERNEL(T, name, 128, true, rich)   \
  TEGULA_DKDV_KERNEL(T, name, 256, true, rich)
