#include "forward_cut.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "chunks.h"
#include "rich.h"

namespace tegula {

ForwardCut cut_forward(const AttentionArgs& a, const BlockRoom& room, AttentionForwardParams& p,
                       Workspace& workspace) {
  const int64_t units = a.batch * a.key_heads, unit_rows = a.heads / a.key_heads * a.q_len;
  p.a = a;
  p.q_chunks = in_chunks(a.q), p.k_chunks = in_chunks(a.k);
  p.v_chunks = in_chunks(a.v), p.out_chunks = in_chunks(a.out);
  p.width = static_cast<int>(parts_of(a.value_dim, 8) * 8);
  p.row_blocks = parts_of(unit_rows, room.rows);
  p.items = units * p.row_blocks;

  ForwardCut cut;
  const int64_t chunks = parts_of(a.k_len, kKeyChunk);
  // Where much of the device would have nothing to do, each chunk is an item.
  cut.split = chunks > 1 && 4 * p.items <= 3 * room.resident;
  if (cut.split) p.chunks = chunks, p.items *= chunks;
  cut.blocks = p.items;
  if (room.steady || (chunks > 1 && !cut.split)) cut.blocks = std::min(p.items, room.resident);
  if (chunks > 1) {
    const int64_t places = cut.split ? units * unit_rows * chunks : cut.blocks * room.rows;
    p.sums = workspace.take<float>(places * p.width);
    p.softmaxes = workspace.take<float>(places * 2);
  }
  // Under a mask, some items take longer than others.
  if (cut.blocks < p.items && a.lo) {
    if (chunks > 1) {
      p.taken = workspace.take<unsigned long long>(1);
    } else {
      while (std::gcd(cut.blocks, p.row_blocks) > 1) --cut.blocks;
    }
  }
  return cut;
}

void finish_forward(const AttentionForwardParams& p, const Place& place) {
  const int64_t rows = p.a.batch * p.a.heads * p.a.q_len;
  launch(place, std::string("attention_finish_") + name_of(p.a.q.dtype),
         {parts_of(rows, kFinishThreads / 32), kFinishThreads, 0}, p);
}

bool needs_rich(const AttentionArgs& a) {
  // -inf times the scale, in units of log 2, has to stay what it is.
  const bool usual =
      static_cast<float>(a.scale) > 0 && std::isfinite(static_cast<float>(2 * a.scale));
  return is_rich(a) || !usual;
}

}  // namespace tegula
