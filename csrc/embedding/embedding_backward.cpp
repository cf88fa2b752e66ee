#include "embedding_backward.h"

#include <algorithm>

#include "../base/arena.h"
#include "../base/entries.h"
#include "../base/parallel.h"
#include "../isa/select.h"

namespace tegula {
namespace {

constexpr int64_t kTaskElements = 49152;  // of the gradient
// One element's cost in the scalar operations of threads_for.
constexpr double kWorkPerElement = 24.0;
constexpr double kWorkPerDraw = 24.0;

void cut_into_pieces(EmbeddingGroups& groups) {
  const IdPlace* places = groups.places.sorted;
  const int64_t count = groups.places.count;
  for (int64_t begin = 0; begin < count;) {
    int64_t end = begin + 1;
    while (end < count && places[end].id == places[begin].id) ++end;
    const bool single = end - begin <= kEmbeddingPiece;
    for (; begin < end; begin += kEmbeddingPiece) {
      groups.pieces[groups.piece_count++] = {begin, groups.rows, single ? -1 : groups.partials++};
    }
    begin = end;
    ++groups.rows;
  }
  groups.pieces[groups.piece_count] = {count, groups.rows, -1};
}

// Rows of sums of the pieces that are joined.
Arena& partial_arena() {
  thread_local Arena arena;
  return arena;
}

void sum_rows(const EmbeddingBackwardArgs& args, const EmbeddingGroups& groups, const View& out,
              bool by_id, bool zeros) {
  const int64_t dim = args.grad.size(0), count = groups.places.count;
  if (count == 0 || dim == 0) return;
  EmbeddingBackwardPlan plan;
  plan.grad = args.grad;
  --plan.grad.rank;
  plan.grad = collapsed(plan.grad);
  plan.grad_step = dim == 1 ? 1 : args.grad.step(0);
  plan.dim = dim;
  plan.length = args.ids.rank > 0 ? args.ids.size(0) : 1;
  plan.factor = args.scale * args.dropout.scale;
  plan.dropout = args.dropout;
  plan.places = groups.places.sorted;
  plan.place_count = count;
  plan.pieces = groups.pieces;
  plan.out = out.data;
  plan.out_stride = out.stride[0];
  plan.out_step = dim == 1 ? 1 : out.stride[1];
  plan.by_id = by_id;
  plan.zeros = zeros;

  plan.partials = partial_arena().reserve(
      static_cast<size_t>(groups.partials * embedding_padded(dim) * item_size(DType::kFloat64)));

  const EmbeddingBackwardKernels& kernel =
      kernels().embedding_backward[static_cast<int>(args.grad.dtype)];
  const double work = (kWorkPerElement + (args.dropout.active() ? kWorkPerDraw : 0.0)) *
                      static_cast<double>(count) * static_cast<double>(dim);
  const int threads = threads_for(work, args.threads);
  const size_t scratch_bytes =
      static_cast<size_t>(kEmbeddingBackwardScratch * embedding_padded(dim) * 8);
  // A task is the pieces that begin in a run of places. Tasks that are claimed one after the
  // other lie far apart: fresh pages of the output are then made by the threads side by side.
  const int64_t task_places = std::max<int64_t>(1, kTaskElements / dim);
  const int64_t tasks = (count + task_places - 1) / task_places;
  const int64_t stride = (tasks + threads - 1) / threads;
  const auto first_from = [&](int64_t place) {
    const EmbeddingPiece *begin = groups.pieces, *end = begin + groups.piece_count;
    const auto before = [](const EmbeddingPiece& piece, int64_t at) { return piece.begin < at; };
    return std::lower_bound(begin, end, place, before) - begin;
  };
  parallel_for(stride * threads, threads, [&](int64_t turn) {
    const int64_t task = turn % threads * stride + turn / threads;
    const int64_t first = first_from(task * task_places);
    const int64_t last = first_from((task + 1) * task_places);
    if (first == last) return;
    kernel.sum_pieces(plan, first, last, thread_arena().reserve(scratch_bytes));
    thread_arena().trim();
  });
  if (groups.partials > 0) {
    constexpr int64_t kRun = 256;  // pieces looked at by one task
    parallel_for((groups.piece_count + kRun - 1) / kRun, threads, [&](int64_t run) {
      const EmbeddingPiece* pieces = groups.pieces;
      const int64_t end = std::min(groups.piece_count, (run + 1) * kRun);
      for (int64_t first = run * kRun; first < end; ++first) {
        const bool begins = first == 0 || pieces[first].row != pieces[first - 1].row;
        if (pieces[first].partial < 0 || !begins) continue;
        int64_t last = first + 1;
        while (pieces[last].row == pieces[first].row) ++last;
        kernel.join_pieces(plan, first, last, thread_arena().reserve(scratch_bytes));
      }
      thread_arena().trim();
    });
  }
  partial_arena().trim();
}

}  // namespace

EmbeddingGroups group_places(const EmbeddingBackwardArgs& args) {
  EmbeddingGroups groups;
  const Range range =
      checked_range(args.ids, args.num_rows, args.has_ignored ? &args.ignored : nullptr, "id",
                    "ids", args.threads);
  if (args.dropout.p < 1.0) {  // otherwise nothing is left of any place
    const size_t count = static_cast<size_t>(args.ids.count());
    char* memory = groups.memory.reserve(count * (2 * sizeof(IdPlace) + sizeof(EmbeddingPiece)) +
                                         sizeof(EmbeddingPiece));
    IdPlace* places = reinterpret_cast<IdPlace*>(memory);
    groups.pieces = reinterpret_cast<EmbeddingPiece*>(places + 2 * count);
    // Ids are never negative once checked, so -1 is nobody.
    const int64_t ignored = args.has_ignored ? args.ignored : -1;
    groups.places = places_by_id(args.ids, range, {args.padding_idx, ignored}, places,
                                 places + count, args.threads);
    cut_into_pieces(groups);
  }
  return groups;
}

void embedding_backward(const EmbeddingBackwardArgs& args, const EmbeddingGroups& groups,
                        const View& out, bool zeros) {
  sum_rows(args, groups, out, true, zeros);
}

void embedding_backward_sparse(const EmbeddingBackwardArgs& args, const EmbeddingGroups& groups,
                               const View& ids, const View& rows) {
  for (int64_t i = 0; i < groups.piece_count; ++i) {
    const EmbeddingPiece& piece = groups.pieces[i];
    *ids.at<int64_t>(piece.row * ids.stride[0]) = groups.places.sorted[piece.begin].id;
  }
  sum_rows(args, groups, rows, false, true);
}

}  // namespace tegula
