"""Attention cases: full and masked, forward and backward, and padded batches."""

from __future__ import annotations

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


def on(isa: str) -> str:
    """What stands behind the name of a case that pins its instruction set."""
    return f" on {isa}" if isa else ""


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
    targets: tuple[Target, ...] = ()
    threads: int | None = None
    isa: str = ""
    short: bool = False
    fresh_output: bool = False  # also time the call that allocates its result
    tensors: bool = False  # called with torch tensors
    beside_float32: bool = False  # also time the same in float32

    @property
    def name(self) -> str:
        return sizes(self.shape) + mask_name(self.mask) + (" from torch" if self.tensors else "") + on(self.isa)

    def tiny(self) -> Attention:
        return replace(self, shape=smaller(self.shape), targets=())

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
        if self.tensors:
            contenders = [from_torch(context, (q, k, v), mask, work)]
        if self.fresh_output:
            contenders.append(Contender("new result", OURS, ours_fresh, identity, work))
        if self.beside_float32:
            wide = tuple(np.asarray(a, np.float32) for a in (q, k, v))
            wide_out = context.poisoned(self.shape, "float32")

            def ours_wide() -> Any:
                return tg.attention(*wide, mask=mask, threads=threads, out=wide_out)

            contenders.append(Contender("float32", "float32", ours_wide, identity, work))
        problem = problem_of(self.mask, q, k, v, work)
        for peer in context.peers:
            contenders += peer.attention(problem)
        check = oracle.attention_check(q, k, v, lambda b, h, rows: visible_keys(self.mask, rows, length))
        intensity = work / (4 * out.nbytes)
        return Job(contenders, check, "flop", context.ceilings.compute_kind(self.dtype), intensity, self.short)


def problem_of(mask: Mask, q: np.ndarray, k: np.ndarray, v: np.ndarray, work: float) -> AttentionProblem:
    """torch knows causal by name; any other mask it takes as an array only."""
    if not isinstance(mask, tuple):
        return AttentionProblem(q, k, v, work, causal=mask == "causal")
    dense = visible_keys(mask, np.arange(q.shape[2]), k.shape[2])[None, None]
    return AttentionProblem(q, k, v, work, visible=dense, window=int(mask[1]))


def from_torch(context: Context, arrays: tuple[np.ndarray, ...], mask: Any, work: float) -> Contender:
    """The call as a user of torch writes it: tensors in, a new tensor out."""
    peer = context.torch()
    tensors = [peer.tensor(a) for a in arrays]
    return Contender("from torch", OURS, lambda: context.tg.attention(*tensors, mask=mask), peer.read, work)


@dataclass(frozen=True)
class AttentionBackward:
    """Gradients of self-attention (B, H, L, D), from the result and log-sum-exp of a forward pass."""

    shape: Shape
    dtype: str = "float32"
    mask: Mask = "full"
    targets: tuple[Target, ...] = ()
    threads: int | None = None
    isa: str = ""
    against_one_thread: bool = False  # also time the same call on one thread
    beside_float32: bool = False  # also time the same in float32

    @property
    def name(self) -> str:
        return "backward " + sizes(self.shape) + mask_name(self.mask) + on(self.isa)

    def tiny(self) -> AttentionBackward:
        return replace(self, shape=smaller(self.shape), targets=())

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
        problem = problem_of(self.mask, q, k, v, work)
        for peer in context.peers:
            contenders += peer.attention_backward(problem, grad_out)
        if self.beside_float32:
            contenders.append(self.in_float32(tg, (grad_out, q, k, v), mask, threads, work))
        check = oracle.gradient_check(grad_out, q, k, v, lambda rows: visible_keys(self.mask, rows, length))
        intensity = work / (8 * q.nbytes)
        return Job(contenders, check, "flop", context.ceilings.compute_kind(self.dtype), intensity)

    def in_float32(self, tg: Any, arrays: tuple[np.ndarray, ...], mask: Any, threads: int, work: float) -> Contender:
        grad_out, q, k, v = (np.asarray(a, np.float32) for a in arrays)
        grads = tuple(np.empty_like(a) for a in (q, k, v))
        out, lse = tg.attention(q, k, v, mask=mask, threads=threads, return_lse=True)

        def call() -> Any:
            return tg.attention_backward(grad_out, q, k, v, out, lse, mask=mask, threads=threads, grads=grads)

        return Contender("float32", "float32", call, np.stack, work)


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
    targets: tuple[Target, ...] = ()
    threads: int | None = None
    isa: str = ""

    @property
    def name(self) -> str:
        return sizes(self.shape) + f" key padding {round(100 * self.fill)} %, packed"

    def tiny(self) -> Padded:
        return replace(self, shape=smaller(self.shape), fill=0.75, targets=())

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
        problem = AttentionProblem(q, k, v, work, visible=keep[:, None, None, :], lengths=lengths)
        for peer in context.peers:
            contenders += peer.attention(problem)
        check = oracle.attention_check(
            q, k, v, lambda b, h, rows: np.broadcast_to(keep[b], (len(rows), length)), lengths
        )
        intensity = work / sum(a.nbytes for a in packed)
        return Job(contenders, check, "flop", context.ceilings.compute_kind(self.dtype), intensity)
