"""Cases of the input layer: embedding in one pass and its gradient, positional encodings, dense masks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import oracle
from attention_jobs import identity, visible_keys
from job import OURS, Contender, Context, Job, Target, eps
from peers import EmbeddingGradientProblem, EmbeddingProblem


@dataclass(frozen=True)
class Embedding:
    """weight[ids] * sqrt(D) + sinusoidal positions, for batch x length uniform ids."""

    batch: int
    length: int
    rows: int
    d: int
    dtype: str = "float32"
    dropout_p: float = 0.0
    targets: tuple[Target, ...] = ()
    threads: int | None = None
    isa: str = ""

    @property
    def name(self) -> str:
        dropout = f", dropout {self.dropout_p:g}" if self.dropout_p else ""
        return f"embedding {self.batch} x {self.length} ids, V {self.rows}, D {self.d}{dropout}"

    def tiny(self) -> Embedding:
        return replace(self, batch=2, length=64, rows=500, targets=())

    def prepare(self, context: Context) -> Job:
        tg = context.tg
        ids = context.rng.integers(0, self.rows, (self.batch, self.length))
        weight = context.normal((self.rows, self.d), self.dtype)
        table = oracle.sinusoids(np.arange(self.length), self.d).astype(weight.dtype)
        shape = (self.batch, self.length, self.d)
        out, peer_out = (context.poisoned(shape, self.dtype) for _ in range(2))
        scale = math.sqrt(self.d)
        # What any implementation has to move: every table row that occurs, and the result.
        work = float((len(np.unique(ids)) + ids.size) * self.d * weight.itemsize)

        options: dict[str, Any] = dict(scale=scale, position_table="sinusoidal", out=out)

        def plain() -> Any:
            return tg.embedding(ids, weight, **options)

        def dropped() -> Any:
            return tg.embedding(ids, weight, dropout_p=self.dropout_p, seed=3, **options)

        def fresh() -> Any:
            return tg.embedding(ids, weight, scale=scale, position_table="sinusoidal")

        if self.dropout_p:
            kept = tg.dropout_mask(3, self.dropout_p, shape=shape)
            contenders = [Contender("out=", OURS, dropped, identity, work)]
            factor = kept / np.float32(1 - self.dropout_p)
            contenders.append(Contender("without dropout", "without dropout", plain, lambda a: a * factor, work))
            check = oracle.embedding_check(ids, weight, scale, kept, self.dropout_p)
        else:
            contenders = [Contender("out=", OURS, plain, identity, work)]
            contenders.append(Contender("new result", OURS, fresh, identity, work))
            check = oracle.embedding_check(ids, weight, scale)
        problem = EmbeddingProblem(ids, weight, table, scale, peer_out, work, self.dropout_p)
        for peer in context.peers:
            contenders += peer.embedding(problem)
        intensity = 2.0 * ids.size * self.d / work
        return Job(contenders, check, "byte", "copy", intensity, peers_draw=self.dropout_p > 0)


@dataclass(frozen=True)
class EmbeddingBackward:
    """Gradient of the table for batch x length uniform ids: dense (V, D), or the rows that occur."""

    batch: int
    length: int
    rows: int
    d: int
    sparse: bool = False
    dtype: str = "float32"
    targets: tuple[Target, ...] = ()
    threads: int | None = None
    isa: str = ""

    @property
    def name(self) -> str:
        form = "sparse" if self.sparse else "dense"
        return f"embedding backward {self.batch} x {self.length} ids, V {self.rows}, D {self.d}, {form}"

    def tiny(self) -> EmbeddingBackward:
        return replace(self, batch=2, length=64, rows=500, targets=())

    def prepare(self, context: Context) -> Job:
        tg = context.tg
        ids = context.rng.integers(0, self.rows, (self.batch, self.length))
        grad = context.normal((*ids.shape, self.d), self.dtype)
        # Each gradient is read, each row that occurs written; adding to it reads it, too.
        occurring = len(np.unique(ids)) * (1 if self.sparse else 2)
        work = float((ids.size + occurring) * self.d * grad.itemsize)
        check = oracle.embedding_gradient_check(ids, grad, self.rows)

        def dense(result: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
            found, rows = result
            table = np.zeros((self.rows, self.d), rows.dtype)
            table[found] = rows
            return table

        if self.sparse:
            contenders = [
                Contender("", OURS, lambda: tg.embedding_backward(grad, ids, self.rows, sparse=True), dense, work)
            ]
        else:
            # The check sees the first call, which adds to zeros.
            out, peer_out = (np.zeros((self.rows, self.d), grad.dtype) for _ in range(2))
            contenders = [
                Contender("out=", OURS, lambda: tg.embedding_backward(grad, ids, self.rows, out=out), identity, work),
                Contender("new result", OURS, lambda: tg.embedding_backward(grad, ids, self.rows), identity, work),
            ]
        problem = EmbeddingGradientProblem(ids, grad, self.rows, None if self.sparse else peer_out, work)
        for peer in context.peers:
            contenders += peer.embedding_backward(problem, dense)
        return Job(contenders, check, "byte", "copy", float(ids.size * self.d) / work)


@dataclass(frozen=True)
class Positions:
    """A table of sinusoids (length, D) in float32, computed from nothing."""

    length: int
    d: int
    dtype: str = "float32"
    targets: tuple[Target, ...] = ()
    threads: int | None = None
    isa: str = ""

    @property
    def name(self) -> str:
        return f"positional_encoding({self.length}, {self.d})"

    def tiny(self) -> Positions:
        return replace(self, length=100, targets=())

    def prepare(self, context: Context) -> Job:
        tg = context.tg
        out = context.poisoned((self.length, self.d), self.dtype)
        work = float(out.nbytes)

        def ours() -> Any:
            return tg.positional_encoding(self.length, self.d, out=out)

        contenders = [Contender("out=", OURS, ours, identity, work)]
        for peer in context.peers:
            contenders += peer.positions(self.length, self.d, work)
        exact = oracle.sinusoids(np.arange(self.length), self.d)
        # One unit in the last place of the largest value, 1. A peer that computes the phase in
        # float32 is off by that much per radian of it.
        check = oracle.closeness_check(exact, eps(out.dtype))
        return Job(contenders, check, "byte", None, peer_slack=float(max(self.length, 4)))


@dataclass(frozen=True)
class DenseMask:
    """A structured mask written out as a bool array (length, length)."""

    length: int
    window: int | None = None
    dtype: str = "bool"
    targets: tuple[Target, ...] = ()
    threads: int | None = None
    isa: str = ""

    @property
    def name(self) -> str:
        kind = "causal" if self.window is None else f"causal window {self.window}"
        return f"dense mask {self.length} x {self.length}, {kind}"

    def tiny(self) -> DenseMask:
        return replace(self, length=100, window=self.window and 16, targets=())

    def prepare(self, context: Context) -> Job:
        masks = context.tg.masks
        mask = masks.causal() if self.window is None else masks.sliding(self.window)
        work = float(self.length**2)

        def ours() -> Any:
            return mask.dense(self.length, self.length)

        def matrix(out: np.ndarray) -> np.ndarray:
            return out.reshape(out.shape[-2:])  # the axes of batch and heads are 1 here

        contenders = [Contender("new result", OURS, ours, matrix, work)]
        for peer in context.peers:
            contenders += peer.causal_mask(self.length, self.window, work)
        kind = "causal" if self.window is None else ("sliding", self.window)
        expected = visible_keys(kind, np.arange(self.length), self.length)
        # Two comparisons make an element of one byte.
        return Job(contenders, oracle.equality_check(expected), "byte", "write", 2.0)
