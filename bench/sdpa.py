"""Every call of torch's attention that gives the wanted result: the best of them is the peer.

torch takes a mask by name (is_causal), as bools or as floats, and heads that share a key/value head by a
flag, folded into the query rows, or copied. Which of these is fastest depends on shape, type and version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from peers import AttentionProblem

Call = Callable[[], Any]

MOST_COPIED = 1 << 28  # bytes; copies of a long cache are never the best way


def ways(
    torch: Any, tensors: Sequence[Any], problem: AttentionProblem, tensor: Callable[[np.ndarray], Any]
) -> dict[str, Call]:
    """Label -> call.

    Parameters
    ----------
    torch : module
    tensors : sequence of Tensor
        q, k, v: (B, H, Lq, D), (B, G, Lk, D), (B, G, Lk, Dv): those of the problem, perhaps with gradients.
    problem : AttentionProblem
    tensor : callable
        Turns an array into a tensor.
    """
    q, k, v = tensors
    found: dict[str, Call] = {}
    for mask, options in masks(torch, q, problem, tensor).items():
        for heads, call in head_ways(torch, q, k, v, options).items():
            found[", ".join(filter(None, (mask, heads))) or "sdpa"] = call
    return found


def masks(torch: Any, q: Any, problem: AttentionProblem, tensor: Callable[[np.ndarray], Any]) -> dict[str, Any]:
    """Label -> keyword arguments of scaled_dot_product_attention. Masks are made here, before any clock."""
    common = {"dropout_p": problem.dropout_p} if problem.dropout_p else {}
    visible = problem.visible
    if problem.bias is not None:
        added = problem.bias if isinstance(problem.bias, torch.Tensor) else tensor(problem.bias)
        if problem.causal:
            visible = np.tri(q.shape[2], problem.k.shape[2], dtype=bool)
        if visible is not None:
            added = added.masked_fill(~torch.from_numpy(visible), -torch.inf)
        return {"float mask": {"attn_mask": added, **common}}
    if problem.causal:
        return {"is_causal": {"is_causal": True, **common}}
    if visible is None or visible.all():
        return {"": common}
    seen = torch.from_numpy(visible)
    added = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, -torch.inf)
    return {"bool mask": {"attn_mask": seen, **common}, "float mask": {"attn_mask": added, **common}}


def head_ways(torch: Any, q: Any, k: Any, v: Any, options: dict[str, Any]) -> dict[str, Call]:
    """Label -> call, for the ways to share key/value heads."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    heads, groups = q.shape[1], k.shape[1]
    if heads == groups:
        return {"": lambda: sdpa(q, k, v, **options)}
    times = heads // groups

    def copied() -> Any:
        return sdpa(q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1), **options)

    found: dict[str, Call] = {"enable_gqa": lambda: sdpa(q, k, v, enable_gqa=True, **options)}
    if times * (k.nbytes + v.nbytes) <= MOST_COPIED:
        found["K/V copied"] = copied
    mask = options.get("attn_mask")
    if not options.get("is_causal") and (mask is None or mask.shape[1] == 1):
        rows = q.shape[2]
        if mask is not None and mask.shape[2] > 1:  # row r is query r % Lq
            options = {**options, "attn_mask": mask.repeat(1, 1, times, 1)}

        def folded() -> Any:
            flat = q.reshape(q.shape[0], groups, times * rows, q.shape[3])
            return sdpa(flat, k, v, **options).reshape(q.shape[0], heads, rows, v.shape[3])

        found["folded"] = folded
    return found
