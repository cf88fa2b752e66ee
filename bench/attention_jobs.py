"""Attention cases: full and masked, forward and backward, padded batches, decoding against a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import oracle
from job import OURS, Contender, Context, Job, Target
from peers import AttentionProblem

Shape = tuple[int, int, int, int]  # batch, heads, length, head size
Mask = str | tuple[str, int]  # "full", "causal", or ("sliding", size)


def flops(pairs: float, d: int, dv: int) -> float:
    """Two products with `pairs` visible (query, key) pairs: scores over d, outputs over dv."""
    return 2.0 * pairs * (d + dv)


def gradient_flops(pairs: float, d: int, dv: int) -> float:
    """Five products: scores and weights' gradients again, then dq, dk and dv."""
    return 2.0 * pairs * (3 * d + 2 * dv)


def visible_keys(mask: Mask, q: np.ndarray, k_len: int) -> np.ndarray:
    """(R,) query numbers -> (R, k_len) bool."""
    i, j = q[:, None], np.arange(k_len)
    if mask == "full":
        return np.ones((len(q), k_len), bool)
    if mask == "causal":
        return np.asarray(j <= i)
    return np.asarray((j <= i) & (j > i - int(mask[1])))


def visible_pairs(mask: Mask, length: int) -> int:
    """How many (query, key) pairs of a square remain."""
    if mask == "full":
        return length * length
    window = length if mask == "causal" else int(mask[1])
    return int(np.minimum(np.arange(length) + 1, window).sum())


def mask_object(tg: Any, mask: Mask) -> Any:
    """The mask as a caller of the package writes it."""
    if mask == "full":
        return None
    return tg.masks.causal() if mask == "causal" else tg.masks.sliding(int(mask[1]))


def mask_name(mask: Mask) -> str:
    """What stands behind the sizes in the name of a case."""
    if isinstance(mask, tuple):
        return f" causal window {mask[1]}"
    return "" if mask == "full" else f" {mask}"


def smaller(shape: Shape) -> Shape:
    batch, heads, length, d = shape
    return min(batch, 2), min(heads, 2), min(length, 96), d


def sizes(shape: Shape) -> str:
    return "(" + ",".join(map(str, shape)) + ")"


def identity(out: np.ndarray) -> np.ndarray:
    return out


@dataclass(frozen=True)
class Attention:
    """Self-attention (B, H, L, D) under one mask for all rows."""

    shape: Shape
    dtype: str = "float32"
    mask: Mask = "full"
    target: Target | None = None
    threads: int | None = None
    short: bool = False
    fresh_output: bool = False  # also time the call that allocates its result

    @property
    def name(self) -> str:
        return sizes(self.shape) + mask_name(self.mask)

    def tiny(self) -> Attention:
        return replace(self, shape=smaller(self.shape), target=None)

    def prepare(self, context: Context) -> Job:
        tg, threads = context.tg, self.threads or context.threads
        batch, heads, length, d = self.shape
        q, k, v = (context.normal(self.shape, self.dtype) for _ in range(3))
        out = context.poisoned(self.shape, self.dtype)
        mask = mask_object(tg, self.mask)
        work = flops(batch * heads * visible_pairs(self.mask, length), d, d)

        def ours() -> Any:
            return tg.attention(q, k, v, mask=mask, threads=threads, out=out)

        def ours_fresh() -> Any:
            return tg.attention(q, k, v, mask=mask, threads=threads)

        contenders = [Contender("out=", OURS, ours, identity, work)]
        if self.fresh_output:
            contenders.append(Contender("new result", OURS, ours_fresh, identity, work))
        # torch knows causal by name; any other mask it takes as an array only.
        dense = None
        if isinstance(self.mask, tuple):
            dense = visible_keys(self.mask, np.arange(length), length)
        problem = AttentionProblem(q, k, v, work, causal=self.mask == "causal", visible=dense)
        for peer in context.peers:
            contenders += peer.attention(problem)
        check = oracle.attention_check(q, k, v, lambda b, h, rows: visible_keys(self.mask, rows, length))
        return Job(contenders, check, "flop", context.ceilings.compute_kind(self.dtype), self.short)


@dataclass(frozen=True)
class AttentionBackward:
    """Gradients of self-attention (B, H, L, D), from the result and log-sum-exp of a forward pass."""

    shape: Shape
    dtype: str = "float32"
    mask: Mask = "full"
    target: Target | None = None
    threads: int | None = None
    against_one_thread: bool = False  # ratios refer to the same call on one thread

    @property
    def name(self) -> str:
        return "backward " + sizes(self.shape) + mask_name(self.mask)

    def tiny(self) -> AttentionBackward:
        return replace(self, shape=smaller(self.shape), target=None)

    def prepare(self, context: Context) -> Job:
        tg, threads = context.tg, self.threads or context.threads
        batch, heads, length, d = self.shape
        q, k, v, grad_out = (context.normal(self.shape, self.dtype) for _ in range(4))
        grads = tuple(context.poisoned(self.shape, self.dtype) for _ in range(3))
        mask = mask_object(tg, self.mask)
        out, lse = tg.attention(q, k, v, mask=mask, threads=threads, return_lse=True)
        work = gradient_flops(batch * heads * visible_pairs(self.mask, length), d, d)

        def ours() -> Any:
            return tg.attention_backward(grad_out, q, k, v, out, lse, mask=mask, threads=threads, grads=grads)

        def one_thread() -> Any:
            return tg.attention_backward(grad_out, q, k, v, out, lse, mask=mask, threads=1, grads=grads)

        contenders = [Contender("grads=", OURS, ours, np.stack, work)]
        if self.against_one_thread:
            contenders.append(Contender("one thread", "one thread", one_thread, np.stack, work))
        problem = AttentionProblem(q, k, v, work, causal=self.mask == "causal")
        for peer in context.peers:
            contenders += peer.attention_backward(problem, grad_out)
        check = oracle.gradient_check(grad_out, q, k, v, lambda rows: visible_keys(self.mask, rows, length))
        return Job(contenders, check, "flop", context.ceilings.compute_kind(self.dtype))


def random_lengths(batch: int, length: int, fill: float, rng: np.random.Generator) -> np.ndarray:
    """(B,) lengths of which the first is the longest possible and the mean is fill * length."""
    lengths = rng.integers(16, 401, batch).astype(np.float64)
    rest = (fill * length * batch - length) / max(lengths[1:].sum(), 1)
    lengths[1:] = np.clip(np.round(lengths[1:] * rest), min(8, length), length)
    lengths[0] = length
    return lengths.astype(np.int64)


@dataclass(frozen=True)
class Padded:
    """A batch of different lengths: ours packed back to back, peers padded and with a mask."""

    shape: Shape
    fill: float
    dtype: str = "float32"
    target: Target | None = None
    threads: int | None = None

    @property
    def name(self) -> str:
        return sizes(self.shape) + f" key padding {round(100 * self.fill)} %, packed"

    def tiny(self) -> Padded:
        return replace(self, shape=smaller(self.shape), fill=0.75, target=None)

    def prepare(self, context: Context) -> Job:
        tg, threads = context.tg, self.threads or context.threads
        batch, heads, length, d = self.shape
        lengths = random_lengths(batch, length, self.fill, np.random.default_rng(3))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        q, k, v = (context.normal(self.shape, self.dtype) for _ in range(3))
        rows = (int(offsets[-1]), heads, d)
        packed = [context.poisoned(rows, self.dtype) for _ in range(4)]
        for padded, flat in zip((q, k, v), packed, strict=False):
            for b, n in enumerate(lengths):
                flat[offsets[b] : offsets[b + 1]] = padded[b, :, :n].swapaxes(0, 1)
        packed_q, packed_k, packed_v, packed_out = packed
        out = context.poisoned(self.shape, self.dtype)
        documents = tg.masks.documents(cu_seqlens=offsets)
        padding = tg.masks.padding(lengths=lengths)

        def ours() -> Any:
            return tg.attention(
                packed_q,
                packed_k,
                packed_v,
                mask=documents,
                layout="lhd",
                threads=threads,
                out=packed_out,
            )

        def ours_padded() -> Any:
            return tg.attention(q, k, v, mask=padding, threads=threads, out=out)

        def unpack(flat: np.ndarray) -> np.ndarray:
            result = np.zeros(self.shape, flat.dtype)
            for b, n in enumerate(lengths):
                result[b, :, :n] = flat[offsets[b] : offsets[b + 1]].swapaxes(0, 1)
            return result

        own = float((lengths.astype(np.float64) ** 2).sum())
        work = flops(heads * own, d, d)
        # Queries of the padding are computed here, and see the real keys.
        padded_work = flops(heads * length * float(lengths.sum()), d, d)
        contenders = [
            Contender("packed", OURS, ours, unpack, work),
            Contender("not packed, padding(lengths)", OURS, ours_padded, identity, padded_work),
        ]
        keep = np.arange(length) < lengths[:, None]
        problem = AttentionProblem(q, k, v, work, visible=keep[:, None, None, :])
        for peer in context.peers:
            contenders += peer.attention(problem)
        check = oracle.attention_check(
            q, k, v, lambda b, h, rows: np.broadcast_to(keep[b], (len(rows), length)), lengths
        )
        return Job(contenders, check, "flop", context.ceilings.compute_kind(self.dtype))


@dataclass(frozen=True)
class Decode:
    """One query against a long cache with grouped heads, bound by reading the cache.

    A model reads another cache in every layer, so several of them take turns, more than the
    processor's own caches hold; the time is that of one.
    """

    heads: int
    groups: int
    d: int
    k_len: int
    dtype: str = "float32"
    caches: int = 6
    target: Target | None = None
    threads: int | None = None

    @property
    def name(self) -> str:
        return f"decode Hq {self.heads} Hkv {self.groups} D {self.d} Lk {self.k_len}"

    def tiny(self) -> Decode:
        return replace(self, heads=4, groups=2, k_len=192, caches=2, target=None)

    def prepare(self, context: Context) -> Job:
        tg, threads = context.tg, self.threads or context.threads
        q_shape, k_shape = (1, self.heads, 1, self.d), (1, self.groups, self.k_len, self.d)
        q = context.normal(q_shape, self.dtype)
        caches = [
            (context.normal(k_shape, self.dtype), context.normal(k_shape, self.dtype)) for _ in range(self.caches)
        ]
        out = context.poisoned(q_shape, self.dtype)
        work = float(sum(a.nbytes for a in caches[0]))

        def ours() -> Any:
            for k, v in caches:
                tg.attention(q, k, v, threads=threads, out=out)
            return out

        contenders = [Contender("out=", OURS, ours, identity, work, self.caches)]
        for peer in context.peers:
            per_cache = [peer.attention(AttentionProblem(q, k, v, work)) for k, v in caches]
            for ways in zip(*per_cache, strict=True):
                calls = [way.call for way in ways]
                contenders.append(replace(ways[0], call=in_turn(calls), operations=self.caches))
        last_k, last_v = caches[-1]
        check = oracle.attention_check(q, last_k, last_v, lambda b, h, rows: np.ones((len(rows), self.k_len), bool))
        return Job(contenders, check, "byte", "read")


def in_turn(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """One call that makes all of them and returns the last result."""

    def run() -> Any:
        result = None
        for call in calls:
            result = call()
        return result

    return run
