// The fused rows of embedding.h, in lines of 64 bytes of the output: the unit in which
// memory is asked for, and in which it is written past the caches.
#pragma once

#include "../positional_encoding/positional_encoding_kernel.inl"
#include "embedding.h"

namespace tegula {
namespace {

inline constexpr int64_t kLineBytes = 64;

template <class T>
struct SumType {
  using Type = float;
};
template <>
struct SumType<double> {
  using Type = double;
};

// A line of T as vectors of bytes.
struct Line {
  Vec<uint8_t> part[kLineBytes / kVectorBytes];
};

// Asks memory for the line at p, to be read soon. It comes into the second cache: the few
// requests that the first one can have pending are left to the row at work.
TEGULA_INLINE void ask_for(const void* p) {
  constexpr int kSecondCache = 2;
  __builtin_prefetch(p, 0, kSecondCache);
}

template <size_t... kLane>
TEGULA_INLINE Vec<uint16_t> join(Bits16 low, Bits16 high, Indices<kLane...>) {
  return __builtin_shufflevector(low, high, kLane...);
}

// Dropout's words of one row, made a stretch at a time when somebody asks, so that the
// arithmetic is spread between the reads and writes of the row.
struct DropoutWords {
  uint64_t seed, lead;
  uint32_t row;
  int64_t dim;
  int64_t made;     // columns
  uint32_t* words;  // one a column

  TEGULA_INLINE void reach(int64_t column) {
    if (made < column) make_more();
  }

  // At least the next 256 columns, or all. Philox runs on 64-bit lanes, one quad of
  // columns each; quads are dealt to the lanes so that transposing 4 x 4 blocks brings
  // the words into the order of their columns.
  TEGULA_NOINLINE void make_more() {
    constexpr int kN = kLanes<uint32_t>, kBlocks = kN / 4;
    constexpr int64_t kStretch = 256;
    using Lanes = typename MakeIndices<kN>::Type;
    Vec<uint64_t> quads[2];
    for (int i = 0; i < kN; ++i) {
      // 32-bit lane i holds quad kBlocks * (i % 4) + i / 4 of its group; the even lanes
      // travel in quads[0], the odd ones in quads[1].
      quads[i % 2][i / 2] = static_cast<uint64_t>(kBlocks * (i % 4) + i / 4);
    }
    // Copies, because the words might be any of the members for all the compiler knows.
    const DropoutWords self = *this;
    const int64_t end = made + kStretch < dim ? made + kStretch : dim;
    int64_t column = made;
    for (; column < end; column += 4 * kN) {
      Vec<uint64_t> c[2][4];
      TEGULA_UNROLL(2)
      for (int half = 0; half < 2; ++half) {
        c[half][0] = quads[half] + static_cast<uint64_t>(column / 4);
        c[half][1] = Vec<uint64_t>{} + static_cast<uint64_t>(self.row);
        c[half][2] = Vec<uint64_t>{} + static_cast<uint64_t>(static_cast<uint32_t>(self.lead));
        c[half][3] = Vec<uint64_t>{} + (self.lead >> 32);
        philox_lanes<uint64_t>(self.seed, c[half]);
      }
      Vec<uint32_t> w[4];
      for (int i = 0; i < 4; ++i) w[i] = bits_as<uint32_t>(c[0][i] | (c[1][i] << 32));
      exchange_halves<uint32_t, 1>(w[0], w[1], Lanes{});
      exchange_halves<uint32_t, 1>(w[2], w[3], Lanes{});
      exchange_halves<uint32_t, 2>(w[0], w[2], Lanes{});
      exchange_halves<uint32_t, 2>(w[1], w[3], Lanes{});
      for (int i = 0; i < 4; ++i) store_unaligned(self.words + column + i * kN, w[i]);
    }
    made = column;
  }
};

// A vector's worth of words, one a lane of C.
template <class C>
TEGULA_INLINE Vec<UInt<C>> dropout_words(const uint32_t* words) {
  if constexpr (sizeof(C) == 4) {
    return load_unaligned(words);
  } else {
    typedef uint32_t HalfWords __attribute__((vector_size(kVectorBytes / 2)));
    HalfWords narrow_words;
    __builtin_memcpy(&narrow_words, words, sizeof narrow_words);
    return __builtin_convertvector(narrow_words, Vec<uint64_t>);
  }
}

// What one row of the output is made of.
template <class T>
struct RowInputs {
  using C = typename SumType<T>::Type;
  const T* token;
  const C* addend[2];
  DropoutWords* dropout;
  C scale;
  C survivor;  // 1 / (1 - p)
  uint32_t threshold;
};

// kAddends: -1 for a plain copy of the table's row, else how many rows are added.
template <class T, int kAddends, bool kDropout>
TEGULA_INLINE Line make_line(const RowInputs<T>& row, int64_t x) {
  using C = typename RowInputs<T>::C;
  constexpr int kParts = kLineBytes / kVectorBytes;
  Line line;
  if constexpr (kAddends < 0) {
    TEGULA_UNROLL(4)
    for (int i = 0; i < kParts; ++i) {
      line.part[i] =
          load_unaligned(reinterpret_cast<const uint8_t*>(row.token + x) + i * kVectorBytes);
    }
  } else {
    constexpr int kSums = kLineBytes / static_cast<int>(sizeof(T)) / kLanes<C>;
    Vec<C> sums[kSums];
    if constexpr (kDropout) row.dropout->reach(x + kLineBytes / static_cast<int64_t>(sizeof(T)));
    TEGULA_UNROLL(8)
    for (int i = 0; i < kSums; ++i) {
      const int64_t column = x + i * kLanes<C>;
      // weight's row -> * scale -> + position -> + segment -> dropout
      Vec<C> sum = load_as<C>(row.token + column) * row.scale;
      if constexpr (kAddends > 0) sum += load_unaligned(row.addend[0] + column);
      if constexpr (kAddends > 1) sum += load_unaligned(row.addend[1] + column);
      if constexpr (kDropout) {
        const Vec<UInt<C>> words = dropout_words<C>(row.dropout->words + column);
        sum = words >= row.threshold ? sum * row.survivor : Vec<C>{};
      }
      sums[i] = sum;
    }
    TEGULA_UNROLL(4)
    for (int i = 0; i < kParts; ++i) {
      if constexpr (sizeof(T) == 2) {
        const T* kind = nullptr;
        using Lanes = typename MakeIndices<kLanes<uint16_t>>::Type;
        line.part[i] = bits_as<uint8_t>(
            join(narrow(kind, sums[2 * i]), narrow(kind, sums[2 * i + 1]), Lanes{}));
      } else {
        line.part[i] = bits_as<uint8_t>(sums[i]);
      }
    }
  }
  return line;
}

template <bool kStream>
TEGULA_INLINE void store_line(void* to, const Line& line) {
  TEGULA_UNROLL(4)
  for (int i = 0; i < kLineBytes / kVectorBytes; ++i) {
    uint8_t* p = static_cast<uint8_t*>(to) + i * kVectorBytes;
    if constexpr (kStream) {
      store_streaming(p, line.part[i]);
    } else {
      store_unaligned(p, line.part[i]);
    }
  }
}

// n elements of `line` from element `from` on.
template <class T>
TEGULA_INLINE void store_some(T* to, const Line& line, int64_t from, int64_t n) {
  T elements[kLineBytes / sizeof(T)];
  store_line<false>(elements, line);
  copy_elements(to, elements + from, n);
}

// One row of at least a line. Lines that cross the row's ends are made from inside the
// row, and only their missing elements are stored.
template <class T, int kAddends, bool kDropout, bool kStream>
TEGULA_INLINE void store_row(const RowInputs<T>& row, int64_t dim, T* out, const T* next) {
  constexpr int64_t kLine = kLineBytes / sizeof(T);
  int64_t x = 0;
  if constexpr (kStream) {
    const int64_t skew = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % kLineBytes);
    if (skew != 0) {
      x = (kLineBytes - skew) / static_cast<int64_t>(sizeof(T));
      store_some(out, make_line<T, kAddends, kDropout>(row, 0), 0, x);
      if (next != nullptr) ask_for(next);
    }
  }
  if (next != nullptr) {
    for (; x + kLine <= dim; x += kLine) {
      ask_for(next + x);
      store_line<kStream>(out + x, make_line<T, kAddends, kDropout>(row, x));
    }
    ask_for(next + dim - 1);  // rows seldom begin where a line of memory does
  } else {
    for (; x + kLine <= dim; x += kLine) {
      store_line<kStream>(out + x, make_line<T, kAddends, kDropout>(row, x));
    }
  }
  if (x < dim) {
    const Line last = make_line<T, kAddends, kDropout>(row, dim - kLine);
    store_some(out + x, last, kLine - (dim - x), dim - x);
  }
}

// Rows shorter than a line: copied to where a whole line may be read.
template <class T, int kAddends, bool kDropout>
TEGULA_INLINE void store_short_row(RowInputs<T> row, int64_t dim, T* out) {
  using C = typename RowInputs<T>::C;
  constexpr int64_t kLine = kLineBytes / sizeof(T);
  T token[kLine] = {};
  C addend[2][kLine] = {};
  copy_elements(token, row.token, dim);
  row.token = token;
  for (int i = 0; i < kAddends; ++i) {
    copy_elements(addend[i], row.addend[i], dim);
    row.addend[i] = addend[i];
  }
  store_some(out, make_line<T, kAddends, kDropout>(row, 0), 0, dim);
}

// ---- rows of an addend ----

template <class C, class From>
TEGULA_INLINE void convert_row(const View& source, int64_t index, int64_t dim, C* out) {
  const From* from = source.at<const From>(index * source.stride[0]);
  const int64_t step = source.stride[1];
  int64_t x = 0;
  if constexpr (sizeof(From) == 2) {
    if (step == 1) {
      for (; x + kLanes<float> <= dim; x += kLanes<float>) {
        const Vec<float> wide = load_as<float>(from + x);
        if constexpr (sizeof(C) == 4) {
          store_unaligned(out + x, wide);
        } else {
          for (int i = 0; i < kLanes<float>; ++i) out[x + i] = static_cast<C>(wide[i]);
        }
      }
    }
    for (; x < dim; ++x) out[x] = static_cast<C>(load_one<float>(from + x * step));
  } else if (step == 1) {
    for (; x < dim; ++x) out[x] = static_cast<C>(from[x]);
  } else {
    for (; x < dim; ++x) out[x] = static_cast<C>(from[x * step]);
  }
}

template <class C>
TEGULA_NOINLINE void make_addend(const AddendRows& addend, int64_t index, double phase, int64_t dim,
                                 C* out) {
  if (addend.kind == AddendRows::kSinusoid) return sinusoid_row(addend.sinusoid, phase, out);
  switch (addend.source.dtype) {
    case DType::kFloat64: return convert_row<C, double>(addend.source, index, dim, out);
    case DType::kFloat32: return convert_row<C, float>(addend.source, index, dim, out);
    case DType::kFloat16: return convert_row<C, Half>(addend.source, index, dim, out);
    default: return convert_row<C, BFloat16>(addend.source, index, dim, out);
  }
}

// The addend's row for rows.positions[i] (or phases, or segments): in its table, or made
// in `scratch`, where it stays for the next row that asks for the same.
template <class C>
struct AddendReader {
  const AddendRows& addend;
  const int64_t* indices;
  const double* phases;
  C* scratch;
  int64_t dim;
  int64_t made = -1;  // the row number for which scratch was made

  TEGULA_INLINE const C* at(int64_t i) {
    if (addend.kind == AddendRows::kTable) {
      return static_cast<const C*>(addend.table) +
             (indices[i] - addend.first) * addend.table_stride;
    }
    const bool sinusoid = addend.kind == AddendRows::kSinusoid;
    const bool same =
        made >= 0 && (sinusoid ? phases[i] == phases[made] : indices[i] == indices[made]);
    if (!same) {
      make_addend(addend, sinusoid ? 0 : indices[i], sinusoid ? phases[i] : 0.0, dim, scratch);
      made = i;
    }
    return scratch;
  }
};

// ---- a run of rows ----

// Far enough for memory to answer.
TEGULA_INLINE int64_t rows_ahead(int64_t row_bytes, int64_t most) {
  constexpr int64_t kBytesAhead = 6144;
  const int64_t rows = kBytesAhead / row_bytes;
  return rows < 1 ? 1 : rows > most ? most : rows;
}

template <class T, int kAddends, bool kDropout>
TEGULA_NOINLINE void run_rows(const EmbeddingPlan& plan, const EmbeddingRows& rows, T* out,
                              char* scratch) {
  using C = typename RowInputs<T>::C;
  constexpr int64_t kLine = kLineBytes / sizeof(T);
  const int64_t dim = plan.dim;
  const int64_t ahead = rows_ahead(dim * static_cast<int64_t>(sizeof(T)), kEmbeddingAhead);
  const auto scratch_array = [&](int i) { return scratch + i * embedding_padded(dim) * 8; };
  T* gathered = reinterpret_cast<T*>(scratch_array(0));
  T* finished = reinterpret_cast<T*>(scratch_array(1));
  DropoutWords dropout{
      plan.dropout.seed, 0, 0, dim, 0, reinterpret_cast<uint32_t*>(scratch_array(2))};
  AddendReader<C> position{plan.position, rows.positions, rows.phases,
                           reinterpret_cast<C*>(scratch_array(3)), dim};
  AddendReader<C> segment{plan.segment, rows.segments, nullptr,
                          reinterpret_cast<C*>(scratch_array(4)), dim};
  const bool has_position = plan.position.kind != AddendRows::kNone;

  RowInputs<T> row{};
  row.dropout = &dropout;
  row.scale = static_cast<C>(plan.scale);
  row.survivor = static_cast<C>(plan.dropout.scale);
  row.threshold = plan.dropout.threshold;
  for (int64_t i = 0; i < rows.count; ++i) {
    T* to = out + rows.out[i];
    T* target = plan.out_step == 1 ? to : finished;
    if (rows.ids[i] < 0) {
      for (int64_t x = 0; x < dim; ++x) target[x] = T{};
    } else {
      const T* token = static_cast<const T*>(plan.weight) + rows.ids[i] * plan.weight_stride;
      const int64_t later = rows.ids[i + ahead];
      const T* next = later < 0 || plan.weight_step != 1
                          ? nullptr
                          : static_cast<const T*>(plan.weight) + later * plan.weight_stride;
      if (plan.weight_step != 1) {
        for (int64_t x = 0; x < dim; ++x) gathered[x] = token[x * plan.weight_step];
        token = gathered;
      }
      row.token = token;
      if constexpr (kAddends > 0) row.addend[0] = has_position ? position.at(i) : segment.at(i);
      if constexpr (kAddends > 1) row.addend[1] = segment.at(i);
      if constexpr (kDropout) {
        dropout.lead = static_cast<uint64_t>(rows.lead[i]);
        dropout.row = static_cast<uint32_t>(rows.row[i]);
        dropout.made = 0;
      }
      if (dim < kLine) {
        store_short_row<T, kAddends, kDropout>(row, dim, target);
      } else if (plan.stream) {
        store_row<T, kAddends, kDropout, true>(row, dim, target, next);
      } else {
        store_row<T, kAddends, kDropout, false>(row, dim, target, next);
      }
    }
    if (target != to) {
      for (int64_t x = 0; x < dim; ++x) to[x * plan.out_step] = finished[x];
    }
  }
  stream_fence();
}

template <class T>
void embedding_rows(const EmbeddingPlan& plan, const EmbeddingRows& rows, void* out,
                    void* scratch) {
  const int addends =
      (plan.position.kind != AddendRows::kNone) + (plan.segment.kind != AddendRows::kNone);
  const bool dropout = plan.dropout.active();
  const auto run = addends == 2        ? (dropout ? run_rows<T, 2, true> : run_rows<T, 2, false>)
                   : addends == 1      ? (dropout ? run_rows<T, 1, true> : run_rows<T, 1, false>)
                   : dropout           ? run_rows<T, 0, true>
                   : plan.scale != 1.0 ? run_rows<T, 0, false>
                                       : run_rows<T, -1, false>;
  run(plan, rows, static_cast<T*>(out), static_cast<char*>(scratch));
}

template <class T>
constexpr EmbeddingKernels embedding_kernels() {
  using C = typename SumType<T>::Type;
  return {embedding_rows<T>,
          [](const AddendRows& addend, int64_t index, double phase, int64_t dim, void* out) {
            make_addend(addend, index, phase, dim, static_cast<C*>(out));
          }};
}

}  // namespace
}  // namespace tegula
