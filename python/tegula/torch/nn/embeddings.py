"""Embeddings as modules: torch's own on the native kernel, and the tutorials' in one fused pass."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ... import checks
from ..dropout import drawn_seed
from ..embedding_functional import embedding
from .dropout import Dropout
from .positions import ForgetsTables, PositionalEncoding, SinusoidalPositions


class Embedding(nn.Embedding):
    """`torch.nn.Embedding` on `tegula.embedding`: the same arguments, numbers, gradients and `state_dict`.

    Ids may be of any integer type, and one outside the table raises an IndexError that says which one
    and where. ``max_norm``, ``scale_grad_by_freq`` and ``sparse`` are torch's own business: with one
    of them, torch's function is called.

    Parameters
    ----------
    num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, device, dtype
        As in `torch.nn.Embedding`; so is ``Embedding.from_pretrained``.
    pad_output : {"row", "zero"}
        What stands at pads: the table's row, as in torch, or exact zeros whatever the table holds.

    Raises
    ------
    IndexError
        In the call, for an id outside [0, num_embeddings).
    TypeError
        In the call, for ids that are bool or float.
    ValueError
        For ``pad_output="zero"`` without `padding_idx`, or with an option that torch's function serves.

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import Embedding
    >>> words = Embedding(9, 6, padding_idx=0)
    >>> words(torch.tensor([[6, 4, 0, 0], [6, 4, 1, 7]])).shape
    torch.Size([2, 4, 6])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        pad_output: Literal["row", "zero"] = "row",
    ) -> None:
        rows = checks.size(num_embeddings, "num_embeddings")
        checks.size(embedding_dim, "embedding_dim")
        if padding_idx is not None and not -rows <= checks.integer(padding_idx, "padding_idx") < rows:
            raise ValueError(f"padding_idx must lie in [{-rows}, {rows}), got {padding_idx}")
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight,
            _freeze, device, dtype,
        )  # fmt: skip
        checks.choice(pad_output, "pad_output", ("row", "zero"))
        self.pad_output = pad_output
        if pad_output == "zero":
            if padding_idx is None:
                raise ValueError("pad_output='zero' needs a padding_idx")
            if self._served_by_torch():
                raise ValueError(
                    "pad_output='zero' does not go with max_norm, scale_grad_by_freq or sparse, "
                    "with which torch's own function is called"
                )

    def _served_by_torch(self) -> bool:
        return self.max_norm is not None or self.scale_grad_by_freq or self.sparse

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows of the ids, shape ids.shape + (embedding_dim,)."""
        if self._served_by_torch():
            wide = input.dtype in (torch.int64, torch.int32, torch.bool) or input.is_floating_point()
            found: Tensor = super().forward(input if wide else input.long())
            return found
        result: Tensor = embedding(input, self.weight, padding_idx=self.padding_idx, pad_output=self.pad_output)
        return result


class TokenEmbedding(Embedding):
    """The tutorials' token embedding: rows of a (V, D) table, the pad's zero and without gradient.

    Parameters
    ----------
    vocab_size : int
        V.
    d_model : int
        D.
    pad_idx : int or None
        The id of padding: its row starts as zeros and is not trained.
    device, dtype
        Of the table.

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import TokenEmbedding
    >>> tokens = TokenEmbedding(1000, 16)
    >>> tokens(torch.tensor([[1, 25, 102, 0]]))[0, 3].abs().max().item()
    0.0
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        pad_idx: int | None = 0,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        rows = checks.size(vocab_size, "vocab_size")
        super().__init__(rows, checks.size(d_model, "d_model"), pad_idx, device=device, dtype=dtype)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The tutorials' class holds an nn.Embedding.
        renamed(state_dict, prefix, "embedding.weight", "weight")
        super()._load_from_state_dict(state_dict, prefix, *args)


class TransformerEmbedding(ForgetsTables):
    """Tokens times sqrt(D), plus sinusoidal positions, then dropout: one pass over memory.

    Parameters
    ----------
    vocab_size : int
        V.
    d_model : int
        D.
    max_len : int or None
        Longer input is refused; None is no limit. No table is stored either way.
    dropout : float
        Probability in [0, 1] that an element is dropped while training, drawn from torch's generator.
    pad_idx : int or None
        The id of padding: a zero row that is not trained. Its position is added all the same.
    device, dtype
        Of the table.

    Raises
    ------
    IndexError
        In the call, for an id outside the table.
    ValueError
        In the call, for lengths and positions that `max_len` does not allow.

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import TransformerEmbedding
    >>> layer = TransformerEmbedding(1000, 64, max_len=512)
    >>> layer(torch.tensor([[1, 25, 102, 0]])).shape
    torch.Size([1, 4, 64])
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_len: int | None,
        dropout: float = 0.1,
        *,
        pad_idx: int | None = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.token_embedding = TokenEmbedding(vocab_size, d_model, pad_idx, device=device, dtype=dtype)
        self.position_embedding = SinusoidalPositions(d_model, max_len)
        self.dropout = Dropout(checks.dropout(dropout, 0, "dropout")[0])

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the embedded ids.

        Parameters
        ----------
        ids : Tensor of integers, shape (..., L)
        positions : Tensor, optional
            Of shape (..., L) or broadcasting to it, instead of 0 .. L-1: for packed documents and left
            padding, see `tegula.masks.positions`.

        Returns
        -------
        Tensor, shape (..., L, D)
        """
        dropout_p = self.dropout.p if self.training else 0.0
        return embedded(ids, self.token_embedding, self.position_embedding, positions, dropout_p)

    def _table_rows(self, count: int) -> Tensor:
        return self.position_embedding._table_rows(count)


class EmbeddingLayer(ForgetsTables):
    """The tutorials' embedding layer: embedding(x) * sqrt(D) plus sinusoidal positions, up to 5000.

    Parameters
    ----------
    vocab_size : int
        V. Every row is trained: there is no padding id.
    d_model : int
        D.
    device, dtype
        Of the table.

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import EmbeddingLayer
    >>> EmbeddingLayer(1000, 512)(torch.tensor([[1, 25, 102]])).shape
    torch.Size([1, 3, 512])
    """

    def __init__(self, vocab_size: int, d_model: int, *, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        rows, columns = checks.size(vocab_size, "vocab_size"), checks.size(d_model, "d_model")
        self.embedding = Embedding(rows, columns, device=device, dtype=dtype)
        self.positional_encoding = PositionalEncoding(columns)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the embedded ids (..., L), shape (..., L, D); `positions` as in `TransformerEmbedding`."""
        return embedded(x, self.embedding, self.positional_encoding, positions, 0.0)

    def _table_rows(self, count: int) -> Tensor:
        return self.positional_encoding._table_rows(count)


def embedded(
    ids: Tensor, table: Embedding, places: SinusoidalPositions, positions: Tensor | None, dropout_p: float
) -> Tensor:
    """dropout(table[ids] * sqrt(D) + sinusoidal positions), in one call."""
    if isinstance(ids, Tensor) and (ids.dim() or positions is not None):
        places.check(ids.shape[-1] if ids.dim() else 1, positions)
    result: Tensor = embedding(
        ids,
        table.weight,
        padding_idx=table.padding_idx,
        pad_output=table.pad_output,
        scale=math.sqrt(table.embedding_dim),
        positions=positions,
        position_table="sinusoidal",
        dropout_p=dropout_p,
        seed=drawn_seed(dropout_p, table.weight.device),
    )
    return result


def renamed(state_dict: dict[str, Any], prefix: str, old: str, new: str) -> None:
    """Move an entry of a checkpoint to another key."""
    if prefix + old in state_dict:
        state_dict.setdefault(prefix + new, state_dict.pop(prefix + old))
