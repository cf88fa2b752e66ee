"""Decoding: one query a sequence against a long cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import oracle
from attention_jobs import identity
from job import OURS, Contender, Context, Job, Target
from peers import AttentionProblem

BEYOND_CACHES = 200 << 20  # bytes that no processor's own caches hold


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
    batch: int = 1
    targets: tuple[Target, ...] = ()
    threads: int | None = None
    isa: str = ""

    @property
    def name(self) -> str:
        return f"decode B {self.batch} Hq {self.heads} Hkv {self.groups} D {self.d} Lk {self.k_len}"

    def tiny(self) -> Decode:
        return replace(self, batch=2, heads=4, groups=2, k_len=192, targets=())

    def prepare(self, context: Context) -> Job:
        tg, threads = context.tg, self.threads or context.threads
        q_shape, k_shape = (self.batch, self.heads, 1, self.d), (self.batch, self.groups, self.k_len, self.d)
        q = context.normal(q_shape, self.dtype)
        caches = [tuple(context.normal(k_shape, self.dtype) for _ in range(2))]
        count = min(6, max(1, BEYOND_CACHES // sum(a.nbytes for a in caches[0])))
        while len(caches) < count:
            caches.append(tuple(context.normal(k_shape, self.dtype) for _ in range(2)))
        out = context.poisoned(q_shape, self.dtype)
        work = float(sum(a.nbytes for a in caches[0]))

        def ours() -> Any:
            for k, v in caches:
                tg.attention(q, k, v, threads=threads, out=out)
            return out

        contenders = [Contender("out=", OURS, ours, identity, work, count)]
        for peer in context.peers:
            per_cache = [peer.attention(AttentionProblem(q, k, v, work)) for k, v in caches]
            for ways in zip(*per_cache, strict=True):
                calls = [way.call for way in ways]
                contenders.append(replace(ways[0], call=in_turn(calls), operations=count))
        last_k, last_v = caches[-1]
        check = oracle.attention_check(q, last_k, last_v, lambda b, h, rows: np.ones((len(rows), self.k_len), bool))
        flops = 4.0 * self.batch * self.heads * self.k_len * self.d
        return Job(contenders, check, "byte", "read", flops / work)


def in_turn(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """One call that makes all of them and returns the last result."""

    def run() -> Any:
        result = None
        for call in calls:
            result = call()
        return result

    return run
