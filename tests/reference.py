"""Slow, readable twins of the operations, in float64: they are the specification the kernels are held to.

Nothing here is tiled, fused or clever. Attention walks over one query row at a time and looks only at
the keys that row may see, so "a masked key does not exist" holds by construction. Shapes are those of
the public functions: B batch, H query heads, G key/value heads, Lq and Lk lengths, D head size of q
and k, Dv head size of v.

Each twin can also run in the precision of its inputs (`arithmetic`, `storage`); the error it then makes
against its float64 self is what `tolerances.py` measures the kernels by.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

# ---------------------------------------------------------------------------------------------------
# Masks: which key j a query i may see, as bool arrays. True means "may attend".


def grid(q_len, k_len):
    """Query numbers as a column and key numbers as a row; predicates on them broadcast to (Lq, Lk)."""
    return np.arange(q_len)[:, None], np.arange(k_len)[None, :]


def shift(align, q_len, k_len):
    """How far the diagonal is moved right: "bottom_right" lets the last query see the last key."""
    return {"bottom_right": k_len - q_len, "top_left": 0}[align]


def causal(q_len, k_len, *, shift=0):
    i, j = grid(q_len, k_len)
    return j <= i + shift


def window(q_len, k_len, left, right, *, shift=0):
    """`left` and `right` count keys beside the query's own; None is unlimited."""
    i, j = grid(q_len, k_len)
    own = i + shift
    visible = np.ones((q_len, k_len), bool)
    if left is not None:
        visible &= j >= own - left
    if right is not None:
        visible &= j <= own + right
    return visible


def sliding(q_len, k_len, size, *, shift=0):
    """The `size` newest keys, the query's own included."""
    return window(q_len, k_len, size - 1, 0, shift=shift)


def padding(lengths, length):
    """(B,) lengths -> (B, length): the positions that hold something."""
    return np.arange(length) < np.asarray(lengths)[..., None]


def chunked(q_len, k_len, size, *, shift=0):
    """(Lq, Lk): query i, standing at i + shift, sees the keys of its own chunk of `size` positions."""
    query, key = np.arange(q_len)[:, None] + shift, np.arange(k_len)
    return query // size == key // size


def block_sparse(q_len, k_len, blocks, q_block, k_block):
    """(Lq, Lk): query i sees the keys of the blocks that are listed for its own."""
    query, key = np.arange(q_len) // q_block, np.arange(k_len) // k_block
    return np.array([np.isin(key, blocks[n]) for n in query], bool).reshape(q_len, k_len)


def prefix(q_len, k_len, lengths, *, shift=0):
    """(B,) lengths -> (B, 1, Lq, Lk): everything sees the prefix, the rest is causal."""
    in_prefix = padding(lengths, k_len)[..., None, None, :]
    return in_prefix | causal(q_len, k_len, shift=shift)


def documents(q_ids, k_ids):
    """(..., Lq) and (..., Lk) document ids -> (..., Lq, Lk): same document."""
    return np.asarray(q_ids)[..., :, None] == np.asarray(k_ids)[..., None, :]


def packed_documents(cu_seqlens_q, cu_seqlens_k, *, align=None, left=None, right=None):
    """Documents back to back in one row; causal and window are aligned inside each document."""
    visible = np.zeros((cu_seqlens_q[-1], cu_seqlens_k[-1]), bool)
    borders_q, borders_k = itertools.pairwise(cu_seqlens_q), itertools.pairwise(cu_seqlens_k)
    for (q0, q1), (k0, k1) in zip(borders_q, borders_k, strict=True):
        moved = 0 if align is None else shift(align, q1 - q0, k1 - k0)
        inside = window(q1 - q0, k1 - k0, left, right, shift=moved)
        if align is not None:
            inside &= causal(q1 - q0, k1 - k0, shift=moved)
        visible[q0:q1, k0:k1] = inside
    return visible


# ---------------------------------------------------------------------------------------------------
# Attention


class Attention(NamedTuple):
    out: np.ndarray  # as q, with Dv in the place of D
    lse: np.ndarray  # (..., H, Lq)
    weights: np.ndarray  # (..., H, Lq, Lk), before dropout


def attention(
    q,
    k,
    v,
    *,
    visible=None,
    bias=None,
    scale=None,
    softcap=None,
    alibi=None,
    sinks=None,
    keep=None,
    dropout_p=0.0,
    layout="bhld",
    arithmetic=np.float64,
    storage=np.float64,
):
    """softmax(softcap(scale * q k^T) + alibi + bias, over visible keys and the sink) v, row by row.

    q (..., H, Lq, D), k (..., G, Lk, D), v (..., G, Lk, Dv) or the axes that `layout` names.
    `visible` and `keep` are bool, `bias` is float, each broadcastable to (B, H, Lq, Lk) where B is the
    product of the leading axes; `alibi` and `sinks` are (H,). Numbers are computed in `arithmetic`;
    weights (before they meet v) and results are stored in `storage`, the log-sum-exp in `arithmetic`.
    """
    shape_of_q = np.shape(q)
    rows = Rows(q, k, v, visible, bias, scale, softcap, alibi, keep, dropout_p, layout, arithmetic)
    out = np.zeros((*rows.pairs[:3], rows.v.shape[-1]), arithmetic)
    lse = np.full(rows.pairs[:3], -np.inf, arithmetic)
    weights = np.zeros(rows.pairs, arithmetic)
    for row in np.ndindex(rows.pairs[:3]):
        keys, scores, _ = rows.scores(row)
        logits = scores if sinks is None else np.append(scores, arithmetic(sinks[row[1]]))
        if logits.size == 0:
            continue  # a row without any key: output 0, log-sum-exp -inf
        top = logits.max()
        exponentials = np.exp(logits - top)
        total = summed(exponentials)
        lse[row] = top + np.log(total)
        weights[row][keys] = (exponentials[: keys.size] / total).astype(storage)
        out[row] = summed((rows.factor(row, keys) * weights[row][keys])[:, None] * rows.v[rows.kv_head(row)][keys])

    leading = shape_of_q[:-3]
    if len(shape_of_q) == 2:  # a matrix is one head without a head axis
        out, lse, weights = out[0, 0], lse[0, 0], weights[0, 0]
    else:
        out = out if layout == "bhld" else out.swapaxes(-3, -2)
        out, lse, weights = (x.reshape(leading + x.shape[1:]) for x in (out, lse, weights))
    return Attention(out.astype(storage), lse, weights.astype(storage))


class Rows:
    """The arguments of one call with every axis in its place, and what one query row (b, h, i) makes of them."""

    def __init__(self, q, k, v, visible, bias, scale, softcap, alibi, keep, dropout_p, layout, arithmetic):
        self.q, self.k, self.v = (heads_first(x, layout).astype(arithmetic) for x in (q, k, v))
        (batch, heads, q_len, head_dim), (_, kv_heads, k_len, _) = self.q.shape, self.v.shape
        self.queries_per_key_head = heads // max(kv_heads, 1)
        self.pairs = (batch, heads, q_len, k_len)
        self.visible = np.broadcast_to(True if visible is None else visible, self.pairs)
        self.bias = np.broadcast_to(np.asarray(0.0 if bias is None else bias, arithmetic), self.pairs)
        self.keep = np.broadcast_to(True if keep is None else keep, self.pairs)
        if scale is None:
            scale = 1 / math.sqrt(head_dim) if head_dim else 1.0
        self.scale, self.softcap, self.alibi, self.arithmetic = scale, softcap, alibi, arithmetic
        self.survivor = 1 / (1 - dropout_p) if dropout_p < 1 else 0.0

    def kv_head(self, row):
        """(b, g): where the row finds its keys and values."""
        b, h, _ = row
        return b, h // self.queries_per_key_head

    def scores(self, row):
        """The keys that the row sees, their scores, and how fast each score moves with its product q k."""
        real, (_, h, i), (_, _, q_len, k_len) = self.arithmetic, row, self.pairs
        keys = np.flatnonzero(self.visible[row] & (self.bias[row] != -np.inf))
        scores = summed(self.k[self.kv_head(row)][keys].T * self.q[row][:, None]) * real(self.scale)
        slope = np.full(keys.size, self.scale, real)
        if self.softcap is not None:
            bent = np.tanh(scores / real(self.softcap))
            scores, slope = real(self.softcap) * bent, slope * (1 - bent * bent)
        if self.alibi is not None:
            distance = keys - i - shift("bottom_right", q_len, k_len)
            scores = scores + real(self.alibi[h]) * distance.astype(real)
        return keys, scores + self.bias[row][keys], slope

    def factor(self, row, keys):
        """What dropout multiplies the weights by: 0, or what makes up for the dropped ones."""
        return np.where(self.keep[row][keys], self.arithmetic(self.survivor), self.arithmetic(0))


def summed(terms):
    """Sum along the first axis, term after term as in a plain loop; NumPy's own sums round less."""
    return np.add.accumulate(terms)[-1] if len(terms) else np.zeros(terms.shape[1:], terms.dtype)


def heads_first(x, layout):
    """Any accepted shape -> (B, H, L, D)."""
    x = np.asarray(x)
    if x.ndim == 2:
        return x[None, None]
    if layout in ("blhd", "lhd"):
        x = x.swapaxes(-3, -2)
    return x.reshape((math.prod(x.shape[:-3]),) + x.shape[-3:])


def merge_attention(out1, lse1, out2, lse2, *, arithmetic=np.float64, storage=np.float64):
    """Two results over disjoint keys -> the result over their union: weights exp(lse) of each part."""
    out1, lse1, out2, lse2 = (np.asarray(x, arithmetic) for x in (out1, lse1, out2, lse2))
    top = np.maximum(lse1, lse2)
    finite_top = np.where(np.isneginf(top), arithmetic(0), top)  # neither part saw a key
    part1, part2 = np.exp(lse1 - finite_top), np.exp(lse2 - finite_top)
    total = part1 + part2
    with np.errstate(divide="ignore"):
        lse = finite_top + np.log(total)
    nonzero = np.where(total == 0, arithmetic(1), total)
    out = (part1 / nonzero)[..., None] * out1 + (part2 / nonzero)[..., None] * out2
    return out.astype(storage), lse


# ---------------------------------------------------------------------------------------------------
# Dropout


def philox(counter, key):
    """Philox 4x32-10 (Salmon et al., SC 2011): four counter words and two key words -> four words.

    The words are uint64 arrays that hold 32 bits each, of shapes that broadcast.
    """
    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = p1 >> np.uint64(32) ^ c1 ^ k0, p1 & low, p0 >> np.uint64(32) ^ c3 ^ k1, p0 & low
        k0, k1 = k0 + np.uint64(0x9E3779B9) & low, k1 + np.uint64(0xBB67AE85) & low
    return c0, c1, c2, c3


def dropout_mask(seed, p, shape):
    """Which elements of an array (..., rows, columns) are kept: a function of seed and place alone.

    Four neighbours along the columns share one call of Philox; element c of them is kept when word c
    is not below p, counted in 2^-32 and rounded down.
    """
    *leading, rows, columns = (1, 1, *shape)
    lead = np.arange(math.prod(leading), dtype=np.uint64)[:, None, None]
    row = np.arange(rows, dtype=np.uint64)[:, None]
    quad = np.arange(-(-columns // 4), dtype=np.uint64)
    low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    words = philox((quad, row, lead & low, lead >> high), (np.uint64(seed) & low, np.uint64(seed) >> high))
    numbers = np.stack(np.broadcast_arrays(*words), axis=-1).reshape(len(lead), rows, 4 * len(quad))
    return (numbers[..., :columns] >= np.uint64(p * 2**32)).reshape(shape)


# ---------------------------------------------------------------------------------------------------
# Positions and embedding


def positional_encoding(positions, dim, *, base=10000.0, layout="interleaved", spacing="paper"):
    """PE[p, 2i] = sin(p f_i), PE[p, 2i+1] = cos(p f_i), f_i = base^(-2i/dim) ("Attention Is All You Need").

    An int n stands for positions 0..n-1; the result is positions.shape + (dim,). "inclusive" spacing
    lets the frequencies end exactly at 1/base: f_i = base^(-i/(half-1)). Odd `dim` has one sine more.
    """
    if isinstance(positions, int):
        positions = np.arange(positions)
    half = (dim + 1) // 2
    i = np.arange(half, dtype=np.float64)
    if spacing == "paper":
        frequencies = base ** (-2 * i / dim)
    elif spacing == "inclusive":
        frequencies = base ** (-i / (half - 1)) if half > 1 else np.ones(half)
    else:
        raise ValueError(spacing)
    phase = np.asarray(positions, np.float64)[..., None] * frequencies
    table = np.empty(np.shape(positions) + (dim,))
    sines, cosines = np.sin(phase), np.cos(phase[..., : dim // 2])
    if layout == "interleaved":
        table[..., 0::2], table[..., 1::2] = sines, cosines
    elif layout == "split":
        table[..., :half], table[..., half:] = sines, cosines
    else:
        raise ValueError(layout)
    return table


def embedding(
    ids,
    weight,
    *,
    padding_idx=None,
    pad_output="row",
    ignore_id=None,
    scale=None,
    positions=None,
    position_table=None,
    segments=None,
    segment_table=None,
    keep=None,
    dropout_p=0.0,
):
    """dropout(weight[ids] * scale + position_table[positions] + segment_table[segments]), id by id.

    ids (..., L), weight (V, D), position_table (P, D) or "sinusoidal", segment_table (S, D), keep
    (..., L, D) bool -> (..., L, D). An ignored id, and a pad when `pad_output` is "zero", yields zeros.
    """
    ids = np.asarray(ids)
    rows, dim = np.shape(weight)
    if positions is None:
        positions = np.arange(ids.shape[-1]) if ids.ndim else np.zeros((), int)
    positions = np.broadcast_to(positions, ids.shape)
    silent = {ignore_id} if ignore_id is not None else set()
    if padding_idx is not None and pad_output == "zero":
        silent.add(padding_idx % rows)

    out = np.zeros(ids.shape + (dim,))
    for at in np.ndindex(ids.shape):
        if int(ids[at]) in silent:
            continue
        row = np.asarray(weight[ids[at]], np.float64)
        if scale is not None:
            row = row * scale
        if isinstance(position_table, str):
            row = row + positional_encoding(positions[at], dim)
        elif position_table is not None:
            row = row + np.asarray(position_table[positions[at]], np.float64)
        if segment_table is not None:
            row = row + np.asarray(segment_table[np.broadcast_to(segments, ids.shape)[at]], np.float64)
        out[at] = row
    if keep is not None:
        out = np.where(keep, out / (1 - dropout_p) if dropout_p < 1 else 0.0, 0.0)
    return out


def embedding_backward(
    grad,
    ids,
    num_rows,
    *,
    padding_idx=None,
    ignore_id=None,
    scale=None,
    keep=None,
    dropout_p=0.0,
    arithmetic=np.float64,
    storage=np.float64,
):
    """Row v of the result is scale * the sum of dropout(grad) over the places where ids is v, place after place.

    grad (..., L, D), ids (..., L), keep (..., L, D) bool -> (num_rows, D). The pad and the ignored id get nothing.
    """
    ids, grad = np.asarray(ids), np.asarray(grad)
    silent = {ignore_id} if ignore_id is not None else set()
    if padding_idx is not None:
        silent.add(padding_idx % num_rows)
    factor = (1.0 if scale is None else scale) * (1 / (1 - dropout_p) if dropout_p < 1 else 0.0)
    result = np.zeros((num_rows, grad.shape[-1]), arithmetic)
    for at in np.ndindex(ids.shape):
        if int(ids[at]) in silent:
            continue
        row = grad[at].astype(arithmetic)
        result[ids[at]] += row if keep is None else np.where(keep[at], row, arithmetic(0))
    return (result * arithmetic(factor)).astype(storage)
