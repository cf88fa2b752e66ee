"""The one list of attention cases: for tests and benchmarks alike.

Sizes are generated around what the kernels are built of: vector lanes (4, 8, 16) and tiles (16, 48, 64,
128, 256, 1024), each with its neighbours. One axis varies at a time; the property tests mix them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import reference
from support import DTYPES, draw
from tolerances import GradientTwins, Twins, attention_twins, gradient_twins

LANES = (4, 8, 16)
TILES = (16, 48, 64, 128, 256, 1024)


def around(sizes):
    """Every size with the one below and the one above."""
    return sorted({n + step for n in sizes for step in (-1, 0, 1)})


# ---------------------------------------------------------------------------------------------------
# Mask kinds


class Dims(NamedTuple):
    batch: int
    heads: int
    q_len: int
    k_len: int


@dataclasses.dataclass(frozen=True)
class MaskKind:
    """A mask as a caller writes it, and what it means: bool, broadcastable to (B, H, Lq, Lk)."""

    build: Callable[[Any, Dims], Any]  # (tegula.masks, dims) -> mask object or bool array
    visible: Callable[[Dims], Any]
    self_attention: bool = False  # only for Lq == Lk


def lengths(batch, length):
    """(B,) lengths between 0 and `length`: the first is partial, one is whole, one is 0."""
    return np.array([(length // 2 + 1, length, 0, max(length - 1, 0))[b % 4] for b in range(batch)])


def keep_left(d):
    """(B, Lk): padding stands before the keys."""
    return np.arange(d.k_len) >= d.k_len - lengths(d.batch, d.k_len)[:, None]


def keep_scattered(d):
    """(B, Lk): the real keys are not consecutive."""
    return (np.arange(d.k_len) + np.arange(d.batch)[:, None]) % 3 != 0


def offsets(d):
    """(B,) one cache length per batch entry."""
    return np.arange(d.batch) * 3 - 1


def document_ids(length):
    """(L,) consecutive runs of unequal length."""
    return np.sort(np.arange(length) * 7 % 5 // 2)


def batch_document_ids(batch, length):
    """(B, L): the borders differ from batch entry to batch entry."""
    return np.sort((np.arange(length) * 7 + np.arange(batch)[:, None]) % 5 // 2, axis=-1)


def shuffled_ids(length):
    """(L,): ids in no order."""
    return np.arange(length) * 5 % 3


def cu_seqlens(length, shares=(3, 0, 5, 1)):
    """Borders of len(shares) documents that fill `length`; a share of 0 is an empty document."""
    return np.cumsum((0, *shares)) * length // sum(shares)


def irregular(*shape):
    """A bool array without structure, the same on every call; some rows are empty."""
    numbers = np.random.default_rng(math.prod(shape)).random(shape)
    return (numbers < 0.6) & (np.arange(shape[-2])[:, None] % 7 != 3)


def two_runs(*shape):
    """A bool array whose rows have up to two runs of True, the same on every call; some rows are empty."""
    rng = np.random.default_rng(math.prod(shape))
    begin, gap, after, end = np.sort(rng.integers(0, shape[-1] + 1, (4, *shape[:-1], 1)), axis=0)
    key = np.arange(shape[-1])
    first, second = (begin <= key) & (key < gap), (after <= key) & (key < end)
    return (first | second) & (np.arange(shape[-2])[:, None] % 7 != 3)


def key_blocks(d, size=16):
    """bool, in blocks: some blocks of keys for each block of queries; none for the third."""
    shape = -(-d.q_len // size), -(-d.k_len // size)
    return (np.random.default_rng(5).random(shape) < 0.4) & (np.arange(shape[0])[:, None] != 2)


def bottom_right(d):
    return d.k_len - d.q_len


def per_batch(array):
    """(B, ...) -> (B, 1, ...): one for all heads."""
    return np.asarray(array)[:, None]


MASKS: dict[str, MaskKind] = {
    "full": MaskKind(lambda m, d: m.full(), lambda d: True),
    "causal": MaskKind(
        lambda m, d: m.causal(align="bottom_right"),
        lambda d: reference.causal(d.q_len, d.k_len, shift=bottom_right(d)),
    ),
    "causal_top_left": MaskKind(lambda m, d: m.causal(align="top_left"), lambda d: reference.causal(d.q_len, d.k_len)),
    "causal_offset": MaskKind(lambda m, d: m.causal(offset=5), lambda d: reference.causal(d.q_len, d.k_len, shift=5)),
    "causal_offsets": MaskKind(
        lambda m, d: m.causal(offset=offsets(d)),
        lambda d: reference.causal(d.q_len, d.k_len, shift=offsets(d)[:, None, None, None]),
    ),
    "window": MaskKind(
        lambda m, d: m.window(5, 2, align="bottom_right"),
        lambda d: reference.window(d.q_len, d.k_len, 5, 2, shift=bottom_right(d)),
    ),
    "window_left_unlimited": MaskKind(
        lambda m, d: m.window(None, 3, align="top_left"),
        lambda d: reference.window(d.q_len, d.k_len, None, 3),
    ),
    "window_right_unlimited": MaskKind(
        lambda m, d: m.window(0, None, align="top_left"),
        lambda d: reference.window(d.q_len, d.k_len, 0, None),
    ),
    "sliding": MaskKind(
        lambda m, d: m.sliding(17, align="bottom_right"),
        lambda d: reference.sliding(d.q_len, d.k_len, 17, shift=bottom_right(d)),
    ),
    "padding_lengths": MaskKind(
        lambda m, d: m.padding(lengths(d.batch, d.k_len)),
        lambda d: per_batch(reference.padding(lengths(d.batch, d.k_len), d.k_len))[..., None, :],
    ),
    "padding_left": MaskKind(
        lambda m, d: m.padding(keep=keep_left(d)), lambda d: per_batch(keep_left(d))[..., None, :]
    ),
    "padding_scattered": MaskKind(
        lambda m, d: m.padding(keep=keep_scattered(d)),
        lambda d: per_batch(keep_scattered(d))[..., None, :],
    ),
    "padding_both": MaskKind(
        lambda m, d: m.padding(lengths(d.batch, d.k_len), queries=lengths(d.batch, d.q_len)),
        lambda d: (
            per_batch(reference.padding(lengths(d.batch, d.k_len), d.k_len))[..., None, :]
            & per_batch(reference.padding(lengths(d.batch, d.q_len), d.q_len))[..., :, None]
        ),
    ),
    "documents": MaskKind(
        lambda m, d: m.documents(batch_document_ids(d.batch, d.q_len), batch_document_ids(d.batch, d.k_len)),
        lambda d: per_batch(
            reference.documents(batch_document_ids(d.batch, d.q_len), batch_document_ids(d.batch, d.k_len))
        ),
    ),
    "documents_unsorted": MaskKind(
        lambda m, d: m.documents(shuffled_ids(d.q_len), shuffled_ids(d.k_len)),
        lambda d: reference.documents(shuffled_ids(d.q_len), shuffled_ids(d.k_len)),
    ),
    "documents_packed": MaskKind(
        lambda m, d: m.documents(cu_seqlens=cu_seqlens(d.q_len)),
        lambda d: reference.packed_documents(cu_seqlens(d.q_len), cu_seqlens(d.q_len)),
        self_attention=True,
    ),
    "documents_causal": MaskKind(
        lambda m, d: m.documents(
            cu_seqlens=cu_seqlens(d.q_len),
            cu_seqlens_k=cu_seqlens(d.k_len, (0, 2, 3, 3)),
            causal="bottom_right",
        ),
        lambda d: reference.packed_documents(
            cu_seqlens(d.q_len), cu_seqlens(d.k_len, (0, 2, 3, 3)), align="bottom_right"
        ),
    ),
    "documents_window": MaskKind(
        lambda m, d: m.documents(cu_seqlens=cu_seqlens(d.q_len), window=(4, 1)),
        lambda d: reference.packed_documents(cu_seqlens(d.q_len), cu_seqlens(d.q_len), left=4, right=1),
        self_attention=True,
    ),
    "prefix": MaskKind(
        lambda m, d: m.prefix(lengths(d.batch, d.k_len) // 2, align="bottom_right"),
        lambda d: reference.prefix(d.q_len, d.k_len, lengths(d.batch, d.k_len) // 2, shift=bottom_right(d)),
    ),
    "chunked": MaskKind(
        lambda m, d: m.chunked(20, align="bottom_right"),
        lambda d: reference.chunked(d.q_len, d.k_len, 20, shift=bottom_right(d)),
    ),
    "sliding_sinks": MaskKind(
        lambda m, d: m.sliding(17, align="bottom_right", sinks=4),
        lambda d: (
            reference.sliding(d.q_len, d.k_len, 17, shift=bottom_right(d))
            | (reference.causal(d.q_len, d.k_len, shift=bottom_right(d)) & (np.arange(d.k_len) < 4))
        ),
    ),
    "window_and_global": MaskKind(
        lambda m, d: m.window(5, 2, align="top_left") | m.global_tokens(3, align="top_left"),
        lambda d: (
            reference.window(d.q_len, d.k_len, 5, 2) | (np.arange(d.k_len) < 3) | (np.arange(d.q_len) < 3)[:, None]
        ),
    ),
    "two_runs": MaskKind(lambda m, d: m.dense(two_runs(*d)), lambda d: two_runs(*d)),
    "block_sparse": MaskKind(
        lambda m, d: m.block_sparse(key_blocks(d), 16),
        lambda d: reference.block_sparse(d.q_len, d.k_len, list(map(np.flatnonzero, key_blocks(d))), 16, 16),
    ),
    "dense": MaskKind(lambda m, d: m.dense(irregular(d.q_len, d.k_len)), lambda d: irregular(d.q_len, d.k_len)),
    "dense_per_batch": MaskKind(
        lambda m, d: m.dense(irregular(d.batch, 1, d.q_len, d.k_len)),
        lambda d: irregular(d.batch, 1, d.q_len, d.k_len),
    ),
    "dense_per_head": MaskKind(
        lambda m, d: m.dense(irregular(1, d.heads, d.q_len, d.k_len)),
        lambda d: irregular(1, d.heads, d.q_len, d.k_len),
    ),
    "dense_whole": MaskKind(lambda m, d: m.dense(irregular(*d)), lambda d: irregular(*d)),
    "bool_array": MaskKind(
        lambda m, d: irregular(d.batch, 1, d.q_len, d.k_len),
        lambda d: irregular(d.batch, 1, d.q_len, d.k_len),
    ),
    "causal_and_padding": MaskKind(
        lambda m, d: m.causal(align="bottom_right") & m.padding(lengths(d.batch, d.k_len)),
        lambda d: MASKS["causal"].visible(d) & MASKS["padding_lengths"].visible(d),
    ),
    "sliding_and_documents": MaskKind(
        lambda m, d: m.sliding(9, align="top_left") & m.documents(document_ids(d.q_len), document_ids(d.k_len)),
        lambda d: (
            reference.sliding(d.q_len, d.k_len, 9) & reference.documents(document_ids(d.q_len), document_ids(d.k_len))
        ),
    ),
    "window_and_dense": MaskKind(
        lambda m, d: m.window(40, 40, align="top_left") & m.dense(irregular(d.q_len, d.k_len)),
        lambda d: reference.window(d.q_len, d.k_len, 40, 40) & irregular(d.q_len, d.k_len),
    ),
    "nothing": MaskKind(lambda m, d: m.padding(np.zeros(d.batch, int)), lambda d: np.zeros((1, 1, 1, 1), bool)),
}

# Which axes a bias spans; the others are broadcast.
BIAS_AXES: dict[str, Callable[[Dims], tuple[int, ...]]] = {
    "scalar": lambda d: (),
    "key": lambda d: (d.k_len,),
    "query": lambda d: (d.q_len, 1),
    "pair": lambda d: (d.q_len, d.k_len),
    "batch_key": lambda d: (d.batch, 1, 1, d.k_len),
    "batch_pair": lambda d: (d.batch, 1, d.q_len, d.k_len),
    "head_pair": lambda d: (1, d.heads, d.q_len, d.k_len),
    "head": lambda d: (d.heads, 1, 1),
    "whole": lambda d: tuple(d),
}


# ---------------------------------------------------------------------------------------------------
# Cases


@dataclasses.dataclass(frozen=True)
class AttentionCase:
    """One call. The defaults are the plainest one; a case is named by what it changes."""

    q_len: int = 35
    k_len: int = 70
    head_dim: int = 16
    value_dim: int | None = None
    heads: int = 2
    kv_heads: int | None = None
    leading: tuple[int, ...] = (2,)
    layout: str = "bhld"
    mask: str = "full"
    bias: str | None = None
    scale: float | None = None
    softcap: float | None = None
    alibi: bool = False
    sinks: bool = False
    dropout_p: float = 0.0
    dtype: str = "float32"

    def __str__(self):
        changed = (
            f"{field.name}={getattr(self, field.name)}".replace(" ", "")
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )
        return "-".join(changed) or "plain"

    @property
    def dims(self):
        return Dims(math.prod(self.leading), self.heads, self.q_len, self.k_len)

    @property
    def seed(self):
        """The numbers of a case depend on its name alone."""
        return zlib.crc32(str(self).encode())

    def arrays(self):
        """q, k, v in the case's layout and dtype."""
        rng = np.random.default_rng(self.seed)
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        value_dim = self.head_dim if self.value_dim is None else self.value_dim
        shapes = (
            (self.heads, self.q_len, self.head_dim),
            (kv_heads, self.k_len, self.head_dim),
            (kv_heads, self.k_len, value_dim),
        )
        arrays = [draw(rng, self.leading + shape, self.dtype) for shape in shapes]
        if self.layout != "bhld":
            arrays = [np.ascontiguousarray(x.swapaxes(-3, -2)) for x in arrays]
        return arrays

    def grad_out(self):
        """A gradient for the result."""
        q, _, v = self.arrays()
        return draw(np.random.default_rng(self.seed + 2), (*q.shape[:-1], v.shape[-1]), self.dtype)

    def _arrays_of_options(self):
        rng, options = np.random.default_rng(self.seed + 1), {}
        if self.bias is not None:
            options["bias"] = draw(rng, BIAS_AXES[self.bias](self.dims), self.dtype)
        if self.alibi:
            options["alibi"] = 2.0 ** -(1 + np.arange(self.heads, dtype=np.float32))
        if self.sinks:
            options["sinks"] = rng.standard_normal(self.heads, dtype=np.float32)
        return options

    def options(self, masks):
        """Keyword arguments of tegula.attention; `masks` is tegula.masks."""
        options: dict[str, Any] = self._arrays_of_options()
        options |= {"layout": self.layout, "scale": self.scale, "softcap": self.softcap}
        if self.mask != "full":
            options["mask"] = MASKS[self.mask].build(masks, self.dims)
        if self.dropout_p:
            options |= {"dropout_p": self.dropout_p, "seed": self.seed}
        return options

    def _options_of_twins(self):
        options: dict[str, Any] = self._arrays_of_options()
        options |= {"layout": self.layout, "scale": self.scale, "softcap": self.softcap}
        options["visible"] = MASKS[self.mask].visible(self.dims)
        if self.dropout_p:
            keep = reference.dropout_mask(self.seed, self.dropout_p, self.dims)
            options |= {"keep": keep, "dropout_p": self.dropout_p}
        return options

    def twins(self) -> Twins:
        """What the case has to give."""
        return attention_twins(*self.arrays(), **self._options_of_twins())

    def gradient_twins(self) -> GradientTwins:
        """What its gradients have to be."""
        return gradient_twins(self.grad_out(), *self.arrays(), **self._options_of_twins())


@functools.cache
def expected(case):
    """The twins are slow, and the same for every instruction set."""
    return case.twins()


@functools.cache
def expected_gradients(case):
    return case.gradient_twins()


def _cases():
    case = AttentionCase
    boundaries = around(LANES + TILES)

    # Lengths. Long ones meet few of the other kind, so that the twin stays quick.
    for n in boundaries:
        few = 3 if n > 300 else 21
        yield case(q_len=few, k_len=n, head_dim=8, leading=(1,))
        yield case(q_len=n, k_len=few, head_dim=8, leading=(1,))
        if n < 100:
            yield case(q_len=n, k_len=few, head_dim=3, leading=(3,), dtype="float64")
    for n in (1, 2, *around((16, 48, 64, 256))):
        yield case(q_len=n, k_len=n, mask="causal", leading=(1,))

    # Head sizes, alone and against another one for the values.
    for d in (1, 3, 7, 8, 12, 16, 33, 64, 100, 128):
        for dtype in DTYPES:
            yield case(head_dim=d, dtype=dtype)
        yield case(head_dim=d, value_dim=17)
        yield case(head_dim=5, value_dim=d)
    for d in around((16, 64, 256)):
        yield case(q_len=5, k_len=19, head_dim=d, value_dim=d)

    # Every mask in every type; then on sizes that cross the tiles.
    for name, kind in MASKS.items():
        size = {"q_len": 35, "k_len": 35} if kind.self_attention else {}
        tiles = {"q_len": 67, "k_len": 67 if kind.self_attention else 290, "heads": 1, "leading": (4,)}
        for dtype in DTYPES:
            yield case(mask=name, dtype=dtype, **size)
        yield case(mask=name, **tiles)
    yield case(q_len=70, k_len=35, mask="causal")
    yield case(q_len=70, k_len=35, mask="sliding")

    # Grouped heads, layouts, leading axes.
    for kv_heads in (1, 2, 3, 6):
        yield case(heads=6, kv_heads=kv_heads, mask="causal_and_padding")
        yield case(heads=6, kv_heads=kv_heads, q_len=1, mask="padding_lengths")
    for layout, leading in (("blhd", (2,)), ("blhd", ()), ("blhd", (2, 3)), ("lhd", ())):
        for dtype in DTYPES:
            yield case(layout=layout, leading=leading, heads=4, kv_heads=2, dtype=dtype)
    yield case(layout="lhd", leading=(), q_len=40, k_len=40, heads=2, mask="documents_packed")
    yield case(layout="lhd", leading=(), heads=2, mask="documents_causal")
    for leading in ((), (3,), (2, 3), (2, 1, 2)):
        yield case(leading=leading, mask="padding_lengths")
        yield case(leading=leading, mask="dense_per_batch", bias="whole")

    # Everything that changes the scores.
    for bias in BIAS_AXES:
        yield case(bias=bias)
        yield case(bias=bias, mask="causal_and_padding", dtype="bfloat16")
    for dtype in DTYPES:
        yield case(scale=0.5, dtype=dtype)
        yield case(scale=-1.5, dtype=dtype)
        yield case(scale=0.0, dtype=dtype)
        yield case(softcap=1.5, dtype=dtype)
        yield case(alibi=True, mask="causal", dtype=dtype)
        yield case(sinks=True, mask="padding_lengths", dtype=dtype)
        yield case(dropout_p=0.3, dtype=dtype)
        yield case(
            q_len=67, k_len=67, heads=4, kv_heads=2, value_dim=24, mask="sliding", bias="head_pair",
            scale=0.7, softcap=4.0, alibi=True, sinks=True, dropout_p=0.1, dtype=dtype,
        )  # fmt: skip
    yield case(alibi=True)
    yield case(q_len=70, k_len=35, alibi=True, sinks=True, mask="causal")
    yield case(sinks=True, mask="nothing")
    yield case(dropout_p=0.9, mask="causal")
    yield case(q_len=1, k_len=1025, heads=4, kv_heads=1, leading=(1,), sinks=True, dropout_p=0.5)


ATTENTION_CASES = tuple(dict.fromkeys(_cases()))
