"""Sinusoidal positions as modules. None of them stores a table: rows are computed when they are asked for."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ... import _heatmap, checks
from ...masks._torch import traced
from ...positions import checked_base
from ..attention_options import refuse_kind
from ..embedding_functional import positional_encoding
from .checkpoints import explain

# What checkpoints of other modules call their table, or the numbers it is made from.
_TABLES = frozenset(
    {"pe", "pos_enc", "pos_encoding", "position_encoding", "positional_encoding", "encoding"}
    | {"pos_table", "position_table", "table", "position_ids", "positions", "div_term", "inv_freq"}
)


class ForgetsTables(nn.Module):
    """A module that computes its positions, and reads checkpoints in which a table of them was stored."""

    def _table_rows(self, count: int) -> Tensor:
        """The first rows, (count, D) in float32, as a table in a checkpoint should have them."""
        raise NotImplementedError

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        reasons = {}
        tables = [key for key in state_dict if key.startswith(prefix) and key.rpartition(".")[2] in _TABLES]
        own = self.state_dict(prefix=prefix) if tables else {}  # of a class made from this one, or of its children
        for key in (key for key in tables if key not in own):
            problem = self._unlike(state_dict[key])
            if problem is None:
                del state_dict[key]
            else:
                reasons[key] = f"{problem}, but positions are sinusoidal here"
        before = len(unexpected_keys)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        explain(unexpected_keys, before, reasons)

    def _unlike(self, stored: Any) -> str | None:
        """Why a stored table cannot be left out, or None. Its first rows tell a learned one from ours."""
        if not isinstance(stored, Tensor):
            return f"is no tensor but {type(stored).__name__}"
        if not stored.is_floating_point() or stored.dim() < 2 or stored.device.type == "meta":
            return None  # position numbers, frequencies, or nothing that could be read
        ours = self._table_rows(8)
        if stored.shape[-1] != ours.shape[-1]:
            return f"has rows of {stored.shape[-1]} numbers where {ours.shape[-1]} are expected"
        rows = stored.detach().reshape(-1, ours.shape[-1])[:8].to("cpu", torch.float32)
        # Tables made in 16 bits are off by this much, others by a thousand times as much.
        return None if torch.allclose(rows, ours[: len(rows)], rtol=0, atol=0.03) else "holds another table"


class SinusoidalPositions(ForgetsTables):
    """Rows of the sinusoidal position table, computed for any length.

    Parameters
    ----------
    d_model : int
        D, the length of a row.
    max_len : int, optional
        Refuse positions from here on, as a stored table would. None is no limit.
    base, layout, spacing
        As in `tegula.positional_encoding`.

    Notes
    -----
    The module has no parameter and nothing in its `state_dict`. Checkpoints in which a sinusoidal
    table was stored (``pe`` and the like) load; a table that is not sinusoidal is an error. The rows
    are computed in float64 and rounded once to the type that the module was moved to
    (``.half()``, ``.to(torch.bfloat16)``), float32 at first.

    References
    ----------
    Vaswani et al., "Attention Is All You Need", 2017, section 3.5.

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import SinusoidalPositions
    >>> ids = torch.zeros(2, 10, dtype=torch.int64)
    >>> SinusoidalPositions(16)(ids).shape
    torch.Size([1, 10, 16])
    """

    _like: Tensor

    def __init__(
        self,
        d_model: int,
        max_len: int | None = None,
        *,
        base: float = 10000.0,
        layout: Literal["interleaved", "split"] = "interleaved",
        spacing: Literal["paper", "inclusive"] = "paper",
    ) -> None:
        super().__init__()
        self.d_model = checks.size(d_model, "d_model")
        self.max_len = None if max_len is None else checks.size(max_len, "max_len")
        self.base = checked_base(base)
        checks.choice(layout, "layout", ("interleaved", "split"))
        checks.choice(spacing, "spacing", ("paper", "inclusive"))
        self.layout, self.spacing = layout, spacing
        # Follows the module to a type and a device, and holds nothing. A model that was made on "meta" and
        # got its parameters from a checkpoint moves to any device: what holds nothing is not left there.
        self.register_buffer("_like", torch.empty(0, device="cpu"), persistent=False)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the rows of positions 0 .. L-1, or of those given.

        Parameters
        ----------
        x : Tensor
            Integers (..., L), ids; or floats (..., L, D). Only its length counts.
        positions : Tensor, optional
            Integers or floats of any shape, instead of 0 .. L-1.

        Returns
        -------
        Tensor, shape (1, L, D), or positions.shape + (D,)

        Raises
        ------
        ValueError
            For a length or position that `max_len` does not allow.
        """
        return self.rows(length_of(x), positions, self._like.dtype, x.device)

    def rows(self, length: int, positions: Tensor | None, dtype: torch.dtype, device: torch.device) -> Tensor:
        """(1, length, D), or positions.shape + (D,)."""
        self.check(length, positions)
        given = torch.arange(length, device=device)[None] if positions is None else positions
        return positional_encoding(
            given, self.d_model, base=self.base, layout=self.layout, spacing=self.spacing, dtype=dtype
        )

    def check(self, length: int, positions: Tensor | None) -> None:
        """ValueError for positions that do not lie in [0, max_len)."""
        if positions is not None and not isinstance(positions, Tensor):
            refuse_kind("positions", positions, None)
        if self.max_len is None:
            return
        if positions is None:
            if length > self.max_len:
                raise ValueError(
                    f"{length} positions are more than max_len={self.max_len}; no table is stored, so a larger "
                    "max_len costs nothing"
                )
            return
        if positions.device.type == "meta" or positions.numel() == 0:
            return
        inside = ((positions >= 0) & (positions < self.max_len)).all()
        if traced() or torch._C._are_functorch_transforms_active():
            torch._assert_async(inside, f"positions must lie in [0, max_len) = [0, {self.max_len})")
        elif not inside:
            low, high = positions.min().item(), positions.max().item()
            raise ValueError(f"positions must lie in [0, max_len) = [0, {self.max_len}), got {low} to {high}")

    def _table_rows(self, count: int) -> Tensor:
        return positional_encoding(
            torch.arange(count, device="cpu"), self.d_model, base=self.base, layout=self.layout, spacing=self.spacing
        )

    def _repr_svg_(self) -> str:
        rows = self._table_rows(128 if self.max_len is None else min(self.max_len, 512))
        return _heatmap.svg(rows.numpy(), repr(self), limit=1.0)

    _repr_html_ = _repr_svg_

    def extra_repr(self) -> str:
        options = [f"{self.d_model}", *(() if self.max_len is None else (f"max_len={self.max_len}",))]
        options += [f"base={self.base}"] * (self.base != 10000.0) + [f"layout={self.layout!r}"] * (
            self.layout != "interleaved"
        )
        return ", ".join(options + [f"spacing={self.spacing!r}"] * (self.spacing != "paper"))


class PositionEmbedding(SinusoidalPositions):
    """The tutorials' constant position table: forward gives its first L rows, shape (1, L, D).

    Parameters
    ----------
    d_model : int
        D, the length of a row.
    max_len : int
        Longer input is refused, as the table that is not stored would.

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import PositionEmbedding
    >>> PositionEmbedding(6, max_len=100)(torch.tensor([[6, 4, 1, 7]])).shape
    torch.Size([1, 4, 6])
    """

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__(d_model, checks.size(max_len, "max_len"))


class PositionalEncoding(SinusoidalPositions):
    """The tutorials' position layer: forward(x) = x + table[:, :L].

    Parameters
    ----------
    d_model : int
        D, the length of a row.
    max_len : int
        Longer input is refused, as the table that is not stored would.

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import PositionalEncoding
    >>> PositionalEncoding(4)(torch.zeros(1, 2, 4))[0, 0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """

    def __init__(self, d_model: int, max_len: int = 5000) -> None:
        super().__init__(d_model, checks.size(max_len, "max_len"))

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return x + the rows of positions 0 .. L-1, or of those given, in x's dtype.

        Parameters
        ----------
        x : Tensor of floats, shape (..., L, D)
        positions : Tensor, optional
            Integers or floats that broadcast to (..., L).

        Raises
        ------
        TypeError
            For ids: they have no embedding yet.
        ValueError
            For a length or position that `max_len` does not allow, and rows that are not D long.
        """
        if not isinstance(x, Tensor):
            refuse_kind("x", x, None)
        if not x.is_floating_point():
            raise TypeError(f"x must hold embeddings, floats of shape (..., L, {self.d_model}), got {x.dtype}")
        if x.dim() < 2 or x.shape[-1] != self.d_model:
            raise ValueError(f"x must have shape (..., L, d_model) = (..., L, {self.d_model}), got {tuple(x.shape)}")
        if isinstance(positions, Tensor):
            sizes = zip(reversed(positions.shape), reversed(x.shape[:-1]), strict=False)
            if positions.dim() >= x.dim() or any(n not in (1, m) for n, m in sizes):
                raise ValueError(
                    f"positions has shape {tuple(positions.shape)}, which does not broadcast to (..., L) = "
                    f"{tuple(x.shape[:-1])}"
                )
        rows = self.rows(length_of(x), positions, x.dtype, x.device)
        return x + (rows[0] if positions is None else rows)


def length_of(x: Tensor) -> int:
    """L of ids (..., L) or of floats (..., L, D)."""
    if not isinstance(x, Tensor):
        refuse_kind("x", x, None)
    axis, form = (-2, "(..., L, D)") if x.is_floating_point() else (-1, "(..., L)")
    if x.dim() < -axis:
        raise ValueError(f"x of dtype {x.dtype} must have shape {form}, got {tuple(x.shape)}")
    length: int = x.shape[axis]
    return length
