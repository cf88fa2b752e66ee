// The row sums of embedding_backward.h, in lines of 64 bytes of the gradient. The sums of
// the row at work stay in the nearest cache; gradients pass by once.
#pragma once

#include "embedding_backward_plan.h"
#include "embedding_kernel.inl"

namespace tegula {
namespace {

// sums = before + gradient, or, for the last gradient of a row,
// out  = old + factor * (before + gradient).
// In is the gradient's type, or that of the sums where pieces are joined.
template <class In, class T>
struct RowAddition {
  using C = typename SumType<T>::Type;
  const In* gradient;
  const C* before;
  C* sums;
  const T* old;
  T* out;
  DropoutWords* dropout;
  uint32_t threshold;
  C factor;
};

// A line's columns from x on. `gradient`, `old` and `out` are those of column x.
template <class In, class T, bool kDropout, bool kLast>
TEGULA_INLINE void add_line(const RowAddition<In, T>& row, int64_t x, const In* gradient,
                            const T* old, T* out) {
  using C = typename RowAddition<In, T>::C;
  constexpr int kVectors = kLineBytes / static_cast<int>(sizeof(In)) / kLanes<C>;
  TEGULA_UNROLL(8)
  for (int i = 0; i < kVectors; ++i) {
    const int64_t column = i * kLanes<C>;
    Vec<C> value = load_as<C>(gradient + column);
    if constexpr (kDropout) {
      value = dropout_words<C>(row.dropout->words + x + column) >= row.threshold ? value : Vec<C>{};
    }
    const Vec<C> sum = load_unaligned(row.before + x + column) + value;
    if constexpr (kLast) {
      store_as<C>(out + column, sum * row.factor + load_as<C>(old + column));
    } else {
      store_unaligned(row.sums + x + column, sum);
    }
  }
}

// What is asked for while a row is added; null for nothing.
template <class In, class T>
struct NextRow {
  const In* gradient = nullptr;
  const T* old = nullptr;

  TEGULA_INLINE void prefetch(int64_t x) const {
    if (gradient != nullptr) ask_for(gradient + x);
    if (old != nullptr) ask_for(old + x);
  }
};

template <class In, class T, bool kDropout, bool kLast>
TEGULA_INLINE void add_row(const RowAddition<In, T>& row, int64_t dim, const NextRow<In, T>& next) {
  constexpr int64_t kLine = kLineBytes / sizeof(In);
  int64_t x = 0;
  for (; x + kLine <= dim; x += kLine) {
    next.prefetch(x);
    if constexpr (kDropout) row.dropout->reach(x + kLine);
    add_line<In, T, kDropout, kLast>(row, x, row.gradient + x, row.old + x, row.out + x);
  }
  next.prefetch(dim - 1);  // rows seldom begin where a line of memory does
  if (x < dim) {
    In gradient[kLine] = {};
    T old[kLine] = {}, out[kLine];
    if constexpr (kDropout) row.dropout->reach(dim);
    copy_elements(gradient, row.gradient + x, dim - x);
    if constexpr (kLast) copy_elements(old, row.old + x, dim - x);
    add_line<In, T, kDropout, kLast>(row, x, gradient, old, out);
    if constexpr (kLast) copy_elements(row.out + x, out, dim - x);
  }
}

// The arrays in which a row is put together.
template <class T>
struct RowScratch {
  using C = typename SumType<T>::Type;
  C* zeros;
  C* sums;
  T* old;  // of an output whose elements are not neighbours
  T* finished;
  char* gathered;
  uint32_t* words;

  TEGULA_INLINE RowScratch(void* memory, int64_t dim) {
    const auto array = [&](int i) {
      return static_cast<char*>(memory) + i * embedding_padded(dim) * 8;
    };
    zeros = reinterpret_cast<C*>(array(0));
    sums = reinterpret_cast<C*>(array(1));
    old = reinterpret_cast<T*>(array(2));
    finished = reinterpret_cast<T*>(array(3));
    gathered = array(4);
    words = reinterpret_cast<uint32_t*>(array(5));
    for (int64_t x = 0; x < embedding_padded(dim); ++x) zeros[x] = C{};
  }
};

// The last addition to a row: with what the output holds, into the output.
template <class In, class T, bool kDropout>
TEGULA_INLINE void finish_row(const EmbeddingBackwardPlan& plan, int64_t index,
                              RowAddition<In, T>& row, const RowScratch<T>& scratch,
                              const NextRow<In, T>& next) {
  T* target = static_cast<T*>(plan.out) + index * plan.out_stride;
  row.old = plan.zeros ? reinterpret_cast<const T*>(scratch.zeros) : target;
  row.out = target;
  if (plan.out_step != 1) {
    for (int64_t x = 0; x < plan.dim; ++x) scratch.old[x] = target[x * plan.out_step];
    row.old = scratch.old;
    row.out = scratch.finished;
  }
  add_row<In, T, kDropout, true>(row, plan.dim, next);
  if (plan.out_step != 1) {
    for (int64_t x = 0; x < plan.dim; ++x) target[x * plan.out_step] = scratch.finished[x];
  }
}

template <class T, bool kDropout>
TEGULA_NOINLINE void sum_pieces(const EmbeddingBackwardPlan& plan, int64_t first, int64_t last,
                                void* memory) {
  using C = typename SumType<T>::Type;
  const int64_t dim = plan.dim;
  const RowScratch<T> scratch(memory, dim);
  constexpr int64_t kMostAhead = 32;
  const int64_t ahead = rows_ahead(dim * static_cast<int64_t>(sizeof(T)), kMostAhead);
  DropoutWords dropout{plan.dropout.seed, 0, 0, dim, 0, scratch.words};
  const auto gradient_of = [&](int64_t i) {
    return plan.grad.at<const T>(plan.grad.lead_offset(plan.places[i].place, plan.grad.rank));
  };
  const auto next_row = [&](int64_t i) {
    NextRow<T, T> next;
    if (i >= plan.place_count) return next;
    if (plan.grad_step == 1) next.gradient = gradient_of(i);
    const bool enters = plan.places[i].id != plan.places[i - 1].id;
    if (enters && !plan.zeros && plan.out_step == 1) {
      next.old = static_cast<const T*>(plan.out) + plan.places[i].id * plan.out_stride;
    }
    return next;
  };
  RowAddition<T, T> row{};
  row.dropout = &dropout;
  row.threshold = plan.dropout.threshold;
  row.factor = static_cast<C>(plan.factor);
  for (int64_t p = first; p < last; ++p) {
    const EmbeddingPiece& piece = plan.pieces[p];
    const int64_t end = plan.pieces[p + 1].begin;
    row.before = scratch.zeros;
    row.sums = scratch.sums;
    if (piece.partial >= 0) {
      row.sums = static_cast<C*>(plan.partials) + piece.partial * embedding_padded(dim);
    }
    for (int64_t i = piece.begin; i < end; ++i) {
      const NextRow<T, T> next = next_row(i + ahead);
      row.gradient = gradient_of(i);
      if (plan.grad_step != 1) {
        T* gathered = reinterpret_cast<T*>(scratch.gathered);
        for (int64_t x = 0; x < dim; ++x) gathered[x] = row.gradient[x * plan.grad_step];
        row.gradient = gathered;
      }
      if constexpr (kDropout) {
        const int64_t place = plan.places[i].place;
        dropout.lead = static_cast<uint64_t>(place / plan.length);
        dropout.row = static_cast<uint32_t>(place % plan.length);
        dropout.made = 0;
      }
      if (piece.partial < 0 && i == end - 1) {
        const int64_t index = plan.by_id ? plan.places[i].id : piece.row;
        finish_row<T, T, kDropout>(plan, index, row, scratch, next);
      } else {
        add_row<T, T, kDropout, false>(row, dim, next);
        row.before = row.sums;
      }
    }
  }
}

template <class T>
TEGULA_NOINLINE void join_pieces(const EmbeddingBackwardPlan& plan, int64_t first, int64_t last,
                                 void* memory) {
  using C = typename SumType<T>::Type;
  const RowScratch<T> scratch(memory, plan.dim);
  RowAddition<C, T> row{};
  row.factor = static_cast<C>(plan.factor);
  row.before = scratch.zeros;
  row.sums = scratch.sums;
  for (int64_t p = first; p < last; ++p) {
    const EmbeddingPiece& piece = plan.pieces[p];
    row.gradient =
        static_cast<const C*>(plan.partials) + piece.partial * embedding_padded(plan.dim);
    if (p == last - 1) {
      const int64_t index = plan.by_id ? plan.places[piece.begin].id : piece.row;
      finish_row<C, T, false>(plan, index, row, scratch, {});
    } else {
      add_row<C, T, false, false>(row, plan.dim, {});
      row.before = row.sums;
    }
  }
}

template <class T>
constexpr EmbeddingBackwardKernels embedding_backward_kernels() {
  return {[](const EmbeddingBackwardPlan& plan, int64_t first, int64_t last, void* scratch) {
            const bool dropout = plan.dropout.active();
            (dropout ? sum_pieces<T, true> : sum_pieces<T, false>)(plan, first, last, scratch);
          },
          join_pieces<T>};
}

}  // namespace
}  // namespace tegula
