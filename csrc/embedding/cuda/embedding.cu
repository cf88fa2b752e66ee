// The fused rows of embedding.h. A thread makes the same columns of kEmbeddingRows rows: it asks
// for all their ids, then for all their elements of the table, so that memory has work; and a
// position's row is made once for rows that share it, which those of a batch mostly do.
#include "../../cuda/entries.cuh"
#include "../../positional_encoding/cuda/sinusoid.cuh"
#include "elements.cuh"
#include "id_fault.cuh"

namespace tegula {
namespace {

// A row of the output.
struct OutputRow {
  int64_t lead, row;  // sequence, and place in it

  TEGULA_DEVICE int64_t index(const EmbeddingParams& p) const { return lead * p.length + row; }
  TEGULA_DEVICE bool exists(const EmbeddingParams& p) const { return lead < p.batch; }
  // The next one of the same thread.
  TEGULA_DEVICE void advance(const EmbeddingParams& p) {
    if (p.across || ++row == p.length) {
      ++lead;
      row = p.across ? row : 0;
    }
  }
};

TEGULA_DEVICE OutputRow first_row(const EmbeddingParams& p, int64_t group) {
  if (p.across) return {group / p.length * kEmbeddingRows, group % p.length};
  return {group * kEmbeddingRows / p.length, group * kEmbeddingRows % p.length};
}

TEGULA_DEVICE bool is_ignored(const EmbeddingParams& p, int64_t id) {
  return p.has_ignored && id == p.ignored;
}

// What becomes of a row.
enum class Fate : uint32_t { kLookedUp, kZeros, kOutside };

TEGULA_DEVICE Fate fate_of(const EmbeddingParams& p, int64_t id) {
  if (is_ignored(p, id)) return Fate::kZeros;
  if (!is_inside(id, p.weight.rows)) return Fate::kOutside;
  return id == p.silent_pad || p.dropout.p >= 1.0 ? Fate::kZeros : Fate::kLookedUp;
}

TEGULA_DEVICE void report_position(const EmbeddingParams& p, int64_t row, int64_t index) {
  const View& places = p.position_places;
  report(p.fault, kPositions, row, entry_offset(places, index), p.position_table.rows);
}
TEGULA_DEVICE void report_segment(const EmbeddingParams& p, int64_t row, int64_t index) {
  const View& places = p.segment_places;
  report(p.fault, kSegments, row, entry_offset(places, index), p.segment_table.rows);
}

template <class C, int kN>
TEGULA_DEVICE void make_sinusoid(const EmbeddingParams& p, double position, int64_t column,
                                 C (&to)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; i += 2) {
    double sine, cosine;
    sinusoid_pair(p.frequencies[(column + i) / 2], position, sine, cosine);
    if constexpr (kN == 1) {
      narrow(column % 2 == 0 ? sine : cosine, to[0]);
    } else {
      narrow(sine, to[i]);
      narrow(cosine, to[i + 1]);
    }
  }
}

// The number in `numbers` for an output row, or its place in the sequence where there are none.
TEGULA_DEVICE int64_t number_of(const View& numbers, const EmbeddingParams& p, OutputRow at) {
  return numbers ? integer_entry(numbers, at.index(p)) : at.row;
}

// The position's row, made unless it is the one that `to` holds, which `made` says.
template <class C, int kN>
TEGULA_DEVICE bool reach_position(const EmbeddingParams& p, OutputRow at, int64_t column,
                                  int64_t& made, C (&to)[kN]) {
  if (p.frequencies != nullptr) {
    const View& positions = p.positions;
    const double position =
        positions ? double_entry(positions, at.index(p)) : static_cast<double>(at.row);
    const int64_t bits = __double_as_longlong(position);
    if (bits != made || isnan(position)) make_sinusoid(p, position, column, to);
    made = bits;
    return true;
  }
  const int64_t row = number_of(p.positions, p, at);
  if (!is_inside(row, p.position_table.rows)) {
    if (column == 0) report_position(p, row, at.index(p));
    return false;
  }
  if (row != made) load_row(p.position_table, row, column, to);
  made = row;
  return true;
}

template <class T, int kN>
TEGULA_DEVICE void make_rows(const EmbeddingParams& p, OutputRow first, int64_t column) {
  using C = Sum<T>;
  int64_t ids[kEmbeddingRows];
  Elements<T, kN> tokens[kEmbeddingRows];
  OutputRow at = first;
#pragma unroll
  for (int k = 0; k < kEmbeddingRows; ++k, at.advance(p)) {
    ids[k] = at.exists(p) ? integer_entry(p.ids, at.index(p)) : -1;
  }
  uint32_t fates = 0;  // a byte each
#pragma unroll
  for (int k = 0; k < kEmbeddingRows; ++k) {
    const Fate fate = fate_of(p, ids[k]);
    fates |= static_cast<uint32_t>(fate) << (8 * k);
    if (fate != Fate::kLookedUp) continue;
    const T* weight = static_cast<const T*>(p.weight.data) + ids[k] * p.weight.stride;
    tokens[k] = load_elements<T, kN>(weight + column * p.weight.step);
  }

  const bool has_position = p.frequencies != nullptr || p.position_table.data != nullptr;
  const bool has_segment = p.segment_table.data != nullptr;
  const C scale = static_cast<C>(p.scale), survivor = static_cast<C>(p.dropout.scale);
  C position[kN];
  int64_t made = -1;  // no row has this number, and as a float64 it is NaN
  at = first;
#pragma unroll 1  // the code of one row: what the others need moves up
  for (int k = 0; k < kEmbeddingRows && at.exists(p); ++k, at.advance(p)) {
    Fate fate = static_cast<Fate>(fates & 0xFF);
    if (fate == Fate::kOutside && column == 0) {
      report(p.fault, kIds, integer_entry(p.ids, at.index(p)), at.index(p), p.weight.rows);
    }
    if (has_position && !reach_position(p, at, column, made, position)) fate = Fate::kOutside;
    C segment[kN];
    if (has_segment) {
      const int64_t row = integer_entry(p.segments, at.index(p));
      if (is_inside(row, p.segment_table.rows)) {
        load_row(p.segment_table, row, column, segment);
      } else {
        fate = Fate::kOutside;
        if (column == 0) report_segment(p, row, at.index(p));
      }
    }

    // weight's row -> * scale -> + position -> + segment -> dropout, rounded as on the CPU
    Elements<T, kN> result;
    const bool drops = p.dropout.active() && fate == Fate::kLookedUp;
    const uint32_t kept = drops ? kept_columns<kN>(p.dropout, at.lead, at.row, column) : 0;
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const C token = widen(tokens[0].value[i]);
      C sum = has_position  ? fused(token, scale, position[i])
              : has_segment ? fused(token, scale, segment[i])
                            : token * scale;
      if (has_position && has_segment) sum = sum + segment[i];
      if (drops) sum = kept >> i & 1 ? sum * survivor : C{};
      if (fate != Fate::kLookedUp) sum = fate == Fate::kZeros ? C{} : static_cast<C>(NAN);
      narrow(sum, result.value[i]);
    }
    T* out = p.out.at<T>(entry_offset(p.out, at.index(p)) + column * p.out_step);
    store_elements(out, result);

    fates >>= 8;
#pragma unroll
    for (int next = 1; next < kEmbeddingRows; ++next) tokens[next - 1] = tokens[next];
  }
}

template <class T, int kN>
TEGULA_DEVICE void embedding_rows(const EmbeddingParams& p) {
  const int64_t chunks = p.dim / kN;  // of a row
  const int64_t groups = p.across ? (p.batch + kEmbeddingRows - 1) / kEmbeddingRows * p.length
                                  : (p.batch * p.length + kEmbeddingRows - 1) / kEmbeddingRows;
  const int64_t item = global_thread(), group = item / chunks;
  if (group < groups) make_rows<T, kN>(p, first_row(p, group), (item - group * chunks) * kN);
}

// Looks at every number, writes nothing but the fault.
TEGULA_DEVICE void check_row(const EmbeddingParams& p, int64_t index) {
  const int64_t id = integer_entry(p.ids, index);
  if (!is_inside(id, p.weight.rows) && !is_ignored(p, id)) {
    report(p.fault, kIds, id, index, p.weight.rows);
  }
  if (p.positions && p.position_table.data != nullptr) {
    const int64_t row = integer_entry(p.positions, index);
    if (!is_inside(row, p.position_table.rows)) report_position(p, row, index);
  }
  if (p.segment_table.data != nullptr) {
    const int64_t row = integer_entry(p.segments, index);
    if (!is_inside(row, p.segment_table.rows)) report_segment(p, row, index);
  }
}

}  // namespace

#define TEGULA_EMBEDDING_KERNEL(name, T, kN)                                        \
  extern "C" __global__ void __launch_bounds__(kEmbeddingThreads, kEmbeddingBlocks) \
      embedding_##name(const __grid_constant__ EmbeddingParams params) {            \
    embedding_rows<T, kN>(params);                                                  \
  }

TEGULA_EMBEDDING_KERNEL(float64_vectors, double, 2)
TEGULA_EMBEDDING_KERNEL(float32_vectors, float, 4)
TEGULA_EMBEDDING_KERNEL(float16_vectors, Half, 8)
TEGULA_EMBEDDING_KERNEL(bfloat16_vectors, BFloat16, 8)
TEGULA_EMBEDDING_KERNEL(float64_elements, double, 1)
TEGULA_EMBEDDING_KERNEL(float32_elements, float, 1)
TEGULA_EMBEDDING_KERNEL(float16_elements, Half, 1)
TEGULA_EMBEDDING_KERNEL(bfloat16_elements, BFloat16, 1)

extern "C" __global__ void __launch_bounds__(kEmbeddingThreads, kEmbeddingBlocks)
    embedding_check(const __grid_constant__ EmbeddingParams params) {
  const int64_t index = global_thread();
  if (index < params.batch * params.length) check_row(params, index);
}

}  // namespace tegula
