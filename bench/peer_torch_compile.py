"""What torch's compiler makes of the same jobs. Each shape is compiled anew, which takes many seconds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from job import Contender
from peer_torch import TorchTensors
from peers import AttentionProblem, EmbeddingProblem, SkipPeer


class Compiler(TorchTensors):
    """Needs a compiler of its own."""

    def __init__(self) -> None:
        super().__init__()
        if not any(map(shutil.which, ("c++", "g++", "clang++"))):
            raise SkipPeer("no C++ compiler found")


class Compiled(Compiler):
    """torch.compile of what one writes for the embedding; its result is new in every call.

    Attention is one operator, of which the compiler changes nothing.
    """

    name = "torch.compile"

    def embedding(self, problem: EmbeddingProblem) -> list[Contender]:
        functional = self.torch.nn.functional
        ids, weight, table = (self.tensor(a) for a in (problem.ids, problem.weight, problem.table))
        scale, dropout_p = problem.scale, problem.dropout_p

        def embed(ids: Any, weight: Any, table: Any) -> Any:
            rows = functional.embedding(ids, weight) * scale + table
            return functional.dropout(rows, dropout_p) if dropout_p else rows

        compiled = self.torch.compile(embed, dynamic=False)
        return [self.contender("", lambda: compiled(ids, weight, table), problem.work)]


class Flex(Compiler):
    """Compiled flex_attention with a block mask, where there is a mask. It has no backward on the CPU."""

    name = "flex_attention"

    def attention(self, problem: AttentionProblem) -> list[Contender]:
        from torch.nn.attention import flex_attention as flex

        rule = self.rule(problem)
        if rule is None:
            return []
        q, k, v = (self.tensor(a) for a in (problem.q, problem.k, problem.v))
        batch = q.shape[0] if problem.lengths is not None else None
        blocks = flex.create_block_mask(rule, batch, None, q.shape[2], k.shape[2], device="cpu")
        compiled = self.torch.compile(flex.flex_attention, dynamic=False)
        gqa = q.shape[1] != k.shape[1]
        return [self.contender("", lambda: compiled(q, k, v, block_mask=blocks, enable_gqa=gqa), problem.work)]

    def rule(self, problem: AttentionProblem) -> Callable[..., Any] | None:
        """The mask as flex_attention takes it: a function of batch, head, query and key."""
        if problem.lengths is not None:
            lengths = self.torch.from_numpy(problem.lengths)
            return lambda b, h, i, j: j < lengths[b]
        if problem.window is not None:
            window = problem.window
            return lambda b, h, i, j: (j <= i) & (j > i - window)
        return (lambda b, h, i, j: j <= i) if problem.causal else None
