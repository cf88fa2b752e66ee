"""PyTorch on the CPU, eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import sdpa
from job import Contender
from peers import AttentionProblem, EmbeddingGradientProblem, EmbeddingProblem, Peer


class TorchTensors(Peer):
    """What every peer made of torch shares: the way from arrays to tensors and back."""

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


class Torch(TorchTensors):
    """Torch without its compiler."""

    name = "torch"

    def attention(self, problem: AttentionProblem) -> list[Contender]:
        q, k, v = (self.tensor(a) for a in (problem.q, problem.k, problem.v))
        calls = sdpa.ways(self.torch, (q, k, v), problem, self.tensor)
        return [self.contender(label, call, problem.work) for label, call in calls.items()]

    def attention_backward(self, problem: AttentionProblem, grad_out: np.ndarray) -> list[Contender]:
        torch = self.torch
        gradient = self.tensor(grad_out)
        leaves = [self.tensor(a).requires_grad_() for a in (problem.q, problem.k, problem.v)]

        def backward_of(out: Any) -> Callable[[], Any]:
            return lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)

        def read(grads: Any) -> np.ndarray:
            return np.stack([self.read(grad) for grad in grads])

        with torch.enable_grad():
            outs = {label: call() for label, call in sdpa.ways(torch, leaves, problem, self.tensor).items()}
        return [
            Contender(f"{self.name} autograd.grad, {label}", self.name, backward_of(out), read, problem.work)
            for label, out in outs.items()
        ]

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
            rows = torch.nn.functional.embedding(ids, weight) * scale + table
            return torch.nn.functional.dropout(rows, problem.dropout_p) if problem.dropout_p else rows

        if problem.dropout_p:
            return [self.contender("eager", eager, problem.work)]
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
