"""Several masks as one: what all of them show, and what any of them shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from . import _native
from ._arrays import NUMPY
from ._dense import Dense, check_is_bool
from ._mask import Mask, common
from ._runs import joined, listed, merged, visible


class Combined(Mask):
    """Masks that belong together, in order."""

    __slots__ = ("_parts",)

    name: ClassVar[str]
    sign: ClassVar[str]
    _parts: tuple[Mask, ...]

    def __init__(self, masks: Iterable[Any]) -> None:
        found = [m if isinstance(m, Mask) else Dense(check_is_bool(m)) for m in masks]
        parts = tuple(p for m in found for p in (m._parts if isinstance(m, type(self)) else (m,)))
        self._begin(
            self.name,
            batch=common([(p, p._batch) for p in parts], "batch entries"),
            heads=common([(p, p._heads) for p in parts], "heads"),
        )
        self._set(
            _parts=parts,
            _device=next((p._device for p in parts if p._device is not None), None),
            _readable=all(p._readable for p in parts),
        )

    def __repr__(self) -> str:
        return f" {self.sign} ".join(f"({p!r})" if isinstance(p, Combined) else repr(p) for p in self._parts)

    def _sizes(self) -> tuple[int | None, int | None]:
        sizes = [p._sizes() for p in self._parts]
        return (
            next((q for q, _ in sizes if q is not None), None),
            next((k for _, k in sizes if k is not None), None),
        )

    def _reach(self) -> int:
        return max(p._reach() for p in self._parts)


class And(Combined):
    """What every one of several masks shows."""

    __slots__ = ()

    name, sign = "and", "&"

    def _fitted(self, on: Any, batch: int, heads: int, q_len: int, k_len: int) -> Any:
        lo, hi, dense = on.lowered(self._parts[0], batch, heads, q_len, k_len)
        for part in self._parts[1:]:
            part_lo, part_hi, pairs = on.lowered(part, batch, heads, q_len, k_len)
            if lo.ndim == part_lo.ndim == 4:
                (lo, hi), more = overlaps(on, (lo, hi), (part_lo, part_hi), k_len)
                dense = more if dense is None else dense if more is None else dense & more
            else:
                lo, hi = on.maximum(lo, part_lo), on.minimum(hi, part_hi)
            dense = pairs if dense is None else dense if pairs is None else dense & pairs
        return lo, hi, dense


def overlaps(on: Any, first: Any, second: Any, k_len: int) -> tuple[Any, Any]:
    """What two masks of two runs show both: runs, and the pairs where these would be more than two."""
    crossed = [
        (on.maximum(lo, other_lo), on.minimum(hi, other_hi))
        for lo, hi in listed(*first)
        for other_lo, other_hi in listed(*second)
    ]
    found = merged(crossed, k_len) if on is NUMPY else None
    if found is not None:
        return found, None
    lo, hi = second
    return first, visible(on, lo, hi, k_len)


class Or(Combined):
    """What one of several masks shows, or more of them."""

    __slots__ = ()

    name, sign = "or", "|"

    def _fitted(self, on: Any, batch: int, heads: int, q_len: int, k_len: int) -> Any:
        parts = [on.lowered(part, batch, heads, q_len, k_len) for part in self._parts]
        runs = [run for lo, hi, _ in parts for run in listed(lo, hi)]
        if all(dense is None for _, _, dense in parts):
            if len(runs) == 2:
                lo, hi = joined(on, runs[0], runs[1], k_len)
                return lo, hi, None
            found = merged(runs, k_len) if on is NUMPY else None
            if found is not None:
                return *found, None
        pairs: Any = None
        for lo, hi, dense in parts:
            shown = visible(on, lo, hi, k_len)
            shown = shown if dense is None else shown & dense
            pairs = shown if pairs is None else pairs | shown
        lo, hi, irregular = _native.scan(pairs)
        return lo, hi, pairs if irregular else None
