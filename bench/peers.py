"""Other libraries that do the same jobs, on the same arrays.

A peer is a class with a method per job it can do. Each returns contenders that give the same result, of
which the fastest is the one to compare with. A job that a peer has no method for is simply not compared.
Add a module with a class, and its name to `KNOWN`, to bring in another library.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from job import Contender


@dataclass(frozen=True)
class AttentionProblem:
    """q (B, H, Lq, D), k (B, G, Lk, D), v (B, G, Lk, Dv), and what a query may see."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    work: float
    causal: bool = False  # query i sees the keys up to i
    visible: np.ndarray | None = None  # bool, broadcastable to (B, H, Lq, Lk)
    window: int | None = None  # causal, this many keys at most; `visible` says the same
    lengths: np.ndarray | None = None  # (B,) real keys; `visible` says the same
    bias: Any = None  # (B, H, Lq, Lk) or axes of 1, of q's type; a tensor where a gradient is wanted
    dropout_p: float = 0.0


@dataclass(frozen=True)
class EmbeddingProblem:
    """weight[ids] * scale + table, into `out`; ids (B, L) int64, weight (V, D), table (L, D)."""

    ids: np.ndarray
    weight: np.ndarray
    table: np.ndarray
    scale: float
    out: np.ndarray
    work: float
    dropout_p: float = 0.0


@dataclass(frozen=True)
class EmbeddingGradientProblem:
    """Gradient of a table (rows, D) for ids (B, L) int64 and grad (B, L, D).

    Added to `out` (rows, D) where there is one; without it, only the rows that occur are wanted.
    """

    ids: np.ndarray
    grad: np.ndarray
    rows: int
    out: np.ndarray | None
    work: float


class SkipPeer(Exception):
    """A peer cannot do a case; the message says why."""


class Peer:
    """A library that does none of the jobs; peers override what they can do."""

    name = ""
    version = ""

    def set_threads(self, threads: int) -> None:
        """Use this many threads from now on; SkipPeer where that cannot be."""

    def attention(self, problem: AttentionProblem) -> list[Contender]:
        return []

    def attention_backward(self, problem: AttentionProblem, grad_out: np.ndarray) -> list[Contender]:
        return []

    def embedding(self, problem: EmbeddingProblem) -> list[Contender]:
        return []

    def embedding_backward(
        self, problem: EmbeddingGradientProblem, dense: Callable[[tuple[np.ndarray, np.ndarray]], np.ndarray]
    ) -> list[Contender]:
        """`dense` turns (ids, rows) into a table."""
        return []

    def causal_mask(self, length: int, window: int | None, work: float) -> list[Contender]:
        return []

    def positions(self, length: int, dim: int, work: float) -> list[Contender]:
        return []


# Name -> (module of this folder, class).
KNOWN: dict[str, tuple[str, str]] = {
    "torch": ("peer_torch", "Torch"),
    "torch.compile": ("peer_torch_compile", "Compiled"),
    "flex_attention": ("peer_torch_compile", "Flex"),
    "onnxruntime": ("peer_onnxruntime", "OnnxRuntime"),
    "jax": ("peer_jax", "Jax"),
}


def installed(names: Sequence[str]) -> tuple[list[Peer], dict[str, str]]:
    """The peers that can be imported, and why others cannot."""
    peers, missing = [], {}
    for name in names:
        module, cls = KNOWN[name]
        try:
            peers.append(getattr(importlib.import_module(module), cls)())
        except (ImportError, SkipPeer) as error:
            missing[name] = str(error)
    return peers, missing
