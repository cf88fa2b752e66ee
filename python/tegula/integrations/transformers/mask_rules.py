"""Turning the mask functions of transformers into intervals, without a matrix.

transformers says a mask as a function of four indices (batch entry, head, query, key), and evaluates
it with tensors that broadcast to (B, 1, Lq, Lk). Here the same function gets the same tensors, dressed
so that everything of the queries alone or of the keys alone is computed as usual, in O(L), and where
the two meet, in a comparison, only the comparison is written down. What can be written down so is

    table of keys  <=, ==, ...  table of queries         (causal, windows, chunks, documents)
    bools of keys, bools of queries                       (padding)

combined with & and |. `keys_seen` then finds each query's runs of keys [lo, hi). Whatever does not fit raises
`Unstructured`, and the caller evaluates the function as transformers does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function

from .conditions import AllOf, AnyOf, Compare, Condition, Keys, Queries, Unstructured

_aten = torch.ops.aten

QUERY, KEY = 2, 3  # axes

COMPARISONS = {"le": "<=", "lt": "<", "ge": ">=", "gt": ">", "eq": "==", "ne": "!="}
MIRRORED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "==": "==", "!=": "!="}
# Computed entry by entry, so that the value at a place is that of the function at its indices.
ELEMENTWISE = {
    "add", "sub", "rsub", "mul", "div", "floor_divide", "remainder", "abs", "neg", "minimum", "maximum", "clamp",
    "le", "lt", "ge", "gt", "eq", "ne", "bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor", "logical_and",
    "logical_or", "logical_not", "where", "index", "_to_copy", "clone", "alias", "detach", "expand", "sign",
    "zeros_like", "ones_like", "full_like", "lift_fresh",
}  # fmt: skip
PAIRWISE_AND, PAIRWISE_OR = {"bitwise_and", "logical_and", "mul"}, {"bitwise_or", "logical_or"}
UNCHANGED = {"_to_copy", "clone", "alias", "detach", "expand"}


class Symbol(Tensor):
    """A tensor of the computation of a mask.

    Either `values`, a plain tensor that changes along the axes `axes` only (never along both QUERY
    and KEY), or a `difference` of one of keys and one of queries, or a `condition` on both.
    """

    values: Tensor | None
    axes: frozenset[int]
    difference: tuple[Tensor, Tensor] | None
    absolute: bool
    condition: Condition | None

    @classmethod
    def of(
        cls,
        shape: Any,
        dtype: torch.dtype,
        values: Tensor | None = None,
        axes: frozenset[int] = frozenset(),
        difference: tuple[Tensor, Tensor] | None = None,
        absolute: bool = False,
        condition: Condition | None = None,
    ) -> Symbol:
        made: Symbol = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        made.values, made.axes, made.difference = values, axes, difference
        made.absolute, made.condition = absolute, condition
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if name in ("new_ones", "new_zeros"):  # of a size that has nothing to do with the symbol's
            return torch.full(args[1], name == "new_ones", dtype=(kwargs or {}).get("dtype", args[0].dtype))
        if name not in ELEMENTWISE:
            raise Unstructured(name)
        symbols = [x for x in flat(args) if isinstance(x, Symbol)]
        met = [x for x in symbols if x.values is None]
        axes = frozenset().union(*(x.axes for x in symbols))
        if not met and not {QUERY, KEY} <= axes:
            plain = func(*opened(args), **(kwargs or {}))
            if plain.dim() > 4:
                raise Unstructured(name)
            return cls.of(plain.shape, plain.dtype, plain, axes)
        if name in UNCHANGED and len(met) == 1:
            return args[0]
        return pairwise(name, *args)


def flat(values: Any) -> list[Any]:
    """The arguments of an operator, those inside lists included."""
    return [y for x in values for y in (flat(x) if isinstance(x, (list, tuple)) else [x])]


def opened(values: Any) -> Any:
    """The arguments with plain tensors in the place of symbols."""
    return type(values)(
        opened(x) if isinstance(x, (list, tuple)) else x.values if isinstance(x, Symbol) else x for x in values
    )


def pairwise(name: str, first: Any, second: Any = None, **options: Any) -> Symbol:
    """An operation on tensors of keys and of queries, or on what was written down of such."""
    if options:
        raise Unstructured(name)
    if name == "abs" and isinstance(first, Symbol) and first.difference is not None:
        return Symbol.of(first.shape, first.dtype, difference=first.difference, absolute=True)
    shape = np.broadcast_shapes(*(x.shape for x in (first, second) if isinstance(x, Tensor)))
    if name == "sub":
        sides = side(first), side(second)
        if {axis for axis, _ in sides} == {QUERY, KEY}:
            # Always key - query, with the sign of the comparison's other side turned where needed.
            keys, queries = (x for _, x in sorted(sides, key=lambda s: -s[0]))
            if sides[0][0] == QUERY:
                keys, queries = -keys, -queries
            return Symbol.of(shape, torch.int64, difference=(keys, queries))
    if name in COMPARISONS:
        sign = COMPARISONS[name]
        if isinstance(first, Symbol) and first.difference is not None:
            return Symbol.of(shape, torch.bool, condition=bounded(first, sign, second))
        if isinstance(second, Symbol) and second.difference is not None:
            return Symbol.of(shape, torch.bool, condition=bounded(second, MIRRORED[sign], first))
        (axis, left), (other, right) = side(first), side(second)
        if {axis, other} == {QUERY, KEY}:
            found = compare(left, sign, right) if axis == KEY else compare(right, MIRRORED[sign], left)
            return Symbol.of(shape, torch.bool, condition=found)
    if name in PAIRWISE_AND and first.dtype == second.dtype == torch.bool:
        return Symbol.of(shape, torch.bool, condition=AllOf([condition(first), condition(second)]))
    if name in PAIRWISE_OR and first.dtype == second.dtype == torch.bool:
        return Symbol.of(shape, torch.bool, condition=AnyOf([condition(first), condition(second)]))
    raise Unstructured(name)


def side(value: Any) -> tuple[int, Tensor]:
    """What a tensor changes along, QUERY or KEY, and its numbers."""
    if not isinstance(value, Symbol) or value.values is None or not value.axes:
        raise Unstructured("numbers that change neither along the queries nor along the keys")
    (axis,) = value.axes & {QUERY, KEY}
    return axis, value.values


def bounded(difference: Symbol, sign: str, bound: Any) -> Condition:
    """key - query (or its absolute value) compared with a number."""
    assert difference.difference is not None
    keys, queries = difference.difference
    if isinstance(bound, Symbol):
        raise Unstructured("a difference compared with a tensor")
    if not difference.absolute:
        return compare(keys, sign, queries + bound)
    if sign in ("==", "!="):
        raise Unstructured("a distance equal to a number")
    together = AllOf if sign in ("<=", "<") else AnyOf
    return together([compare(keys, sign, queries + bound), compare(keys, MIRRORED[sign], queries - bound)])


def compare(keys: Tensor, sign: str, queries: Tensor) -> Condition:
    k, q = integers(keys, KEY), integers(queries, QUERY)
    if sign == "==":
        return AllOf([Compare(k, "<=", q), Compare(k, ">=", q)])
    if sign == "!=":
        return AnyOf([Compare(k, "<=", q - 1), Compare(k, ">=", q + 1)])
    if sign == "<":
        return Compare(k, "<=", q - 1)
    if sign == ">":
        return Compare(k, ">=", q + 1)
    return Compare(k, sign, q)


def condition(value: Any) -> Condition:
    """A bool tensor as a condition."""
    if isinstance(value, Symbol):
        if value.condition is not None:
            return value.condition
        if value.values is not None:
            axis = KEY if KEY in value.axes else QUERY
            return (Keys if axis == KEY else Queries)(integers(value.values, axis) != 0)
    if isinstance(value, Tensor):
        return Queries(integers(value, QUERY) != 0)
    raise Unstructured("a condition that is no tensor")


def integers(value: Tensor, axis: int) -> npt.NDArray[np.int64]:
    """(B or 1, L or 1): the numbers of a tensor that broadcasts to (B, 1, Lq, Lk) and changes along `axis`."""
    if value.is_floating_point() or value.is_complex():
        raise Unstructured("floats")
    value = value[(None,) * (4 - value.dim())]
    rows: Tensor = value.select(1, 0).select(QUERY + KEY - axis - 1, 0)
    if rows.numel() * value.shape[1] != value.numel() or value.shape[1] != 1:
        raise Unstructured(f"a tensor of shape {tuple(value.shape)}")
    numbers: npt.NDArray[np.int64] = rows.to(torch.int64).numpy()
    return numbers


def keys_seen(
    mask_function: Callable[..., Any],
    padding: Tensor | None,
    batch: int,
    q_len: int,
    k_len: int,
    q_offset: int,
    kv_offset: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The keys [lo, hi) that each query sees: int32 arrays (B or 1, 1, Lq), or (2, B or 1, 1, Lq) for two runs.

    `mask_function` as transformers writes them; the first query stands at q_offset, the first key at
    kv_offset. `padding`: bool (B, kv_offset + Lk or more), True where a token is real. Raises
    Unstructured, or whatever a function raises that asks for more than indices.
    """
    parts: list[Condition] = []
    if padding is not None:
        parts.append(Keys(padding[:, kv_offset : kv_offset + k_len].numpy()))
    if mask_function is causal_mask_function:  # what nearly every step of a generation asks for
        parts.append(Compare(np.arange(k_len)[None], "<=", np.arange(q_len)[None] + (q_offset - kv_offset)))
    else:
        parts.append(traced_condition(mask_function, batch, q_len, k_len, q_offset, kv_offset))
    return AllOf(parts).solve(q_len, k_len)


def traced_condition(
    mask_function: Callable[..., Any], batch: int, q_len: int, k_len: int, q_offset: int, kv_offset: int
) -> Condition:
    """What a mask function computes of the indices."""
    rows = torch.arange(batch)[:, None, None, None]
    head = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    queries = torch.arange(q_offset, q_offset + q_len)[:, None]
    keys = torch.arange(kv_offset, kv_offset + k_len)
    found = mask_function(
        rows,
        head,
        Symbol.of((1, 1, q_len, 1), torch.int64, queries[None, None], frozenset({QUERY})),
        Symbol.of((1, 1, 1, k_len), torch.int64, keys[None, None, None], frozenset({KEY})),
    )
    if found.dtype != torch.bool:
        raise Unstructured(f"a mask of {found.dtype}")
    return condition(found)
