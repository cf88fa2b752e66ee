"""Other libraries that do the same jobs, on the same arrays.

A peer is a class with a method per job it can do; each returns contenders, the one to compare with
first. A job that a peer has no method for is simply not compared. Add a class, and its name to
`KNOWN`, to bring in another library.
"""

from __future__ import annotations

import math
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
    causal: bool = False
    visible: np.ndarray | None = None  # bool, broadcastable to (B, H, Lq, Lk)


@dataclass(frozen=True)
class EmbeddingProblem:
    """weight[ids] * scale + table, into `out`; ids (B, L) int64, weight (V, D), table (L, D)."""

    ids: np.ndarray
    weight: np.ndarray
    table: np.ndarray
    scale: float
    out: np.ndarray
    work: float


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


class Peer:
    """A library that does none of the jobs; peers override what they can do."""

    name = ""
    version = ""

    def set_threads(self, threads: int) -> None:
        """Use this many threads from now on."""

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


class Torch(Peer):
    """PyTorch on the CPU."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self.torch: Any = torch
        self.version = str(torch.__version__)
        torch.set_grad_enabled(False)

    def set_threads(self, threads: int) -> None:
        self.torch.set_num_threads(threads)

    def tensor(self, array: np.ndarray) -> Any:
        """The same memory as a tensor."""
        if array.dtype.name == "bfloat16":  # torch does not know the NumPy extension type
            return self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(array)

    def read(self, tensor: Any) -> np.ndarray:
        if tensor.dtype == self.torch.bfloat16:
            tensor = tensor.float()
        array: np.ndarray = tensor.numpy()
        return array

    def contender(self, label: str, call: Callable[[], Any], work: float) -> Contender:
        return Contender(f"{self.name} {label}".strip(), self.name, call, self.read, work)

    def attention(self, problem: AttentionProblem) -> list[Contender]:
        sdpa = self.torch.nn.functional.scaled_dot_product_attention
        q, k, v = (self.tensor(a) for a in (problem.q, problem.k, problem.v))
        heads, groups = q.shape[1], k.shape[1]
        options: dict[str, Any] = {}
        if problem.causal:
            options["is_causal"] = True
        if problem.visible is not None:
            options["attn_mask"] = self.torch.from_numpy(problem.visible)
        if heads == groups:
            label = "bool mask" if problem.visible is not None else ""
            return [self.contender(label, lambda: sdpa(q, k, v, **options), problem.work)]

        def gqa() -> Any:
            return sdpa(q, k, v, enable_gqa=True, **options)

        ways = [self.contender("enable_gqa", gqa, problem.work)]
        if q.shape[2] == 1 and not options:
            # With one query a head, the heads of a group are just more query rows of one head.
            folded = q.reshape(q.shape[0], groups, heads // groups, q.shape[3])

            def one_head_a_group() -> Any:
                return sdpa(folded, k, v).reshape(*q.shape[:3], v.shape[3])

            ways.append(self.contender("folded by hand", one_head_a_group, problem.work))
        return ways

    def attention_backward(self, problem: AttentionProblem, grad_out: np.ndarray) -> list[Contender]:
        torch = self.torch
        gradient = self.tensor(grad_out)
        leaves = [self.tensor(a).requires_grad_() for a in (problem.q, problem.k, problem.v)]
        with torch.enable_grad():
            sdpa = torch.nn.functional.scaled_dot_product_attention
            out = sdpa(*leaves, is_causal=problem.causal)

        def backward() -> Any:
            return torch.autograd.grad(out, leaves, gradient, retain_graph=True)

        def read(grads: Any) -> np.ndarray:
            return np.stack([self.read(grad) for grad in grads])

        return [Contender(f"{self.name} autograd.grad", self.name, backward, read, problem.work)]

    def embedding(self, problem: EmbeddingProblem) -> list[Contender]:
        torch = self.torch
        ids, weight, table = (self.tensor(a) for a in (problem.ids, problem.weight, problem.table))
        scale, out = problem.scale, self.tensor(problem.out)
        flat_ids, flat_out = ids.reshape(-1), out.view(-1, out.shape[-1])

        def in_place() -> Any:
            torch.index_select(weight, 0, flat_ids, out=flat_out)
            return out.mul_(scale).add_(table)

        def in_place_fused() -> Any:
            torch.index_select(weight, 0, flat_ids, out=flat_out)
            return torch.add(table, out, alpha=scale, out=out)

        def eager() -> Any:
            return torch.nn.functional.embedding(ids, weight) * scale + table

        return [
            self.contender("in place", in_place, problem.work),
            self.contender("in place, scale and add in one", in_place_fused, problem.work),
            self.contender("eager", eager, problem.work),
        ]

    def embedding_backward(
        self, problem: EmbeddingGradientProblem, dense: Callable[[tuple[np.ndarray, np.ndarray]], np.ndarray]
    ) -> list[Contender]:
        aten = self.torch.ops.aten
        ids, grad, rows = self.tensor(problem.ids), self.tensor(problem.grad), problem.rows

        def sparse_rows() -> Any:
            return aten.embedding_sparse_backward(grad, ids, rows, -1, False).coalesce()

        def read(result: Any) -> np.ndarray:
            return dense((result.indices()[0].numpy(), self.read(result.values())))

        def dense_rows() -> Any:
            return aten.embedding_dense_backward(grad, ids, rows, -1, False)

        if problem.out is None:
            return [Contender(f"{self.name} sparse, coalesce", self.name, sparse_rows, read, problem.work)]
        out = self.tensor(problem.out)
        flat_ids, flat_grad = ids.reshape(-1), grad.reshape(-1, grad.shape[-1])

        def in_place() -> Any:
            return out.index_add_(0, flat_ids, flat_grad)

        return [
            self.contender("dense", dense_rows, problem.work),
            self.contender("index_add_ in place", in_place, problem.work),
        ]

    def causal_mask(self, length: int, window: int | None, work: float) -> list[Contender]:
        torch = self.torch

        def build() -> Any:
            mask = torch.ones(length, length, dtype=torch.bool).tril_()
            return mask if window is None else mask.triu_(1 - window)

        return [self.contender("ones, tril_, triu_", build, work)]

    def positions(self, length: int, dim: int, work: float) -> list[Contender]:
        torch = self.torch

        def build() -> Any:
            frequencies = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
            phase = torch.arange(length).unsqueeze(1) * frequencies
            table = torch.empty(length, dim)
            table[:, 0::2] = torch.sin(phase)
            table[:, 1::2] = torch.cos(phase)
            return table

        return [self.contender("float32 formula", build, work)]


KNOWN: dict[str, type[Peer]] = {"torch": Torch}


def installed(names: Sequence[str]) -> tuple[list[Peer], dict[str, str]]:
    """The peers that can be imported, and why others cannot."""
    peers, missing = [], {}
    for name in names:
        try:
            peers.append(KNOWN[name]())
        except ImportError as error:
            missing[name] = str(error)
    return peers, missing
