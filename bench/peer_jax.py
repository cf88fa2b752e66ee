"""JAX's dot_product_attention, compiled, in the layout it wants: (B, L, H, D)."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from job import Contender
from peers import AttentionProblem, Peer, SkipPeer
from timing import usable_cores

MOST_SCORES = 4 << 30  # bytes


class Jax(Peer):
    """Its pool has a thread for every core, and no call changes that."""

    name = "jax"

    def __init__(self) -> None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax

        self.jax: Any = jax
        self.version = str(jax.__version__)

    def set_threads(self, threads: int) -> None:
        if threads != usable_cores():
            raise SkipPeer(f"uses all {usable_cores()} cores")

    def attention(self, problem: AttentionProblem) -> list[Contender]:
        jax = self.jax
        if problem.visible is not None and problem.window is None and problem.lengths is None:
            return []
        # It holds all scores at once.
        if 4 * math.prod(problem.q.shape[:3]) * problem.k.shape[2] > MOST_SCORES:
            return []
        q, k, v = (jax.numpy.asarray(np.ascontiguousarray(a.swapaxes(1, 2))) for a in (problem.q, problem.k, problem.v))
        options: dict[str, Any] = {"is_causal": problem.causal or problem.window is not None}
        if problem.window is not None:
            options["local_window_size"] = (problem.window - 1, 0)
        if problem.lengths is not None:
            options["key_value_seq_lengths"] = jax.numpy.asarray(problem.lengths, np.int32)
        compiled = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options))

        def call() -> Any:
            return compiled(q, k, v).block_until_ready()

        def read(result: Any) -> np.ndarray:
            heads_first: np.ndarray = np.asarray(result).swapaxes(1, 2)
            return heads_first

        return [Contender(self.name, self.name, call, read, problem.work)]
