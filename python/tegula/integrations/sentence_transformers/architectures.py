"""How the models of each architecture run on a packed row."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...masks import documents
from ...torch.dropout import drawn_seed
from ...torch.functional import attention
from ..transformers import MaskTensor


class Row(NamedTuple):
    """The texts of a batch one behind the other, T tokens, the shortest text first."""

    ids: Tensor  # (1, T)
    positions: Tensor  # (1, T)
    segments: Tensor | None  # (1, T)
    cu_seqlens: npt.NDArray[np.int64]  # (texts + 1,)


class Architecture(NamedTuple):
    """What sets the models of an architecture apart.

    positions: the position ids that a model gives to a padded batch of ids, (B, L) to (B, L).
    run: the hidden states of a row, (1, T, D).
    by_name: whether the model calls the attention of a given name.
    """

    positions: Callable[[Any, Tensor], Tensor]
    run: Callable[[Any, Row], Tensor]
    by_name: bool = True


def from_zero(model: Any, ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)


def after_padding_index(model: Any, ids: Tensor) -> Tensor:
    """Real tokens are numbered from padding_idx + 1 on, and padding has padding_idx."""
    padding_idx: int = model.embeddings.padding_idx
    real = ids != padding_idx
    return real.cumsum(1) * real + padding_idx


def run_with_mask(model: Any, row: Row) -> Tensor:
    """A mask with four axes goes through to attention as it is."""
    mask = mask_tensor(row)
    hidden: Tensor = model(**inputs(model, row), attention_mask=mask).last_hidden_state
    return hidden


def run_with_masks(model: Any, row: Row) -> Tensor:
    """A mask for each kind of layer; the window counts tokens on each side."""
    window = model.config.sliding_window
    masks = {"full_attention": mask_tensor(row), "sliding_attention": mask_tensor(row, window=(window, window))}
    hidden: Tensor = model(**inputs(model, row), attention_mask=masks).last_hidden_state
    return hidden


def inputs(model: Any, row: Row) -> dict[str, Tensor]:
    found = {"input_ids": row.ids, "position_ids": row.positions}
    if row.segments is not None and hasattr(model.embeddings, "token_type_embeddings"):
        found["token_type_ids"] = row.segments
    return found


def mask_tensor(row: Row, window: tuple[int, int] | None = None) -> MaskTensor:
    size = row.ids.shape[1]
    return MaskTensor(documents(cu_seqlens=row.cu_seqlens, window=window), 1, size, size)


def run_mpnet(model: Any, row: Row) -> Tensor:
    """MPNet computes attention itself, with a bias by distance inside the text.

    A bias for the whole row would have T x T numbers a head. Texts of one length share a bias, so they
    go through attention together, as a batch; everything else sees the row.
    """
    x: Tensor = model.embeddings(input_ids=row.ids, position_ids=row.positions)
    lengths = np.diff(row.cu_seqlens)
    bias = model.encoder.compute_position_bias(x[:, : int(lengths[-1])])  # (1, H, longest, longest)
    groups = [(length, len(list(texts))) for length, texts in groupby(lengths.tolist()) if length]
    for layer in model.encoder.layer:
        outer, inner = layer.attention, layer.attention.attn
        qkv = [project(x[0]).unflatten(-1, (inner.num_attention_heads, -1)) for project in (inner.q, inner.k, inner.v)]
        dropout_p = inner.dropout.p if inner.training else 0.0
        attended, begin = [], 0
        for length, count in groups:
            end = begin + count * length
            # (T, H, D/H) -> (count, H, length, D/H), a view
            q, k, v = (part[begin:end].unflatten(0, (count, length)).transpose(1, 2) for part in qkv)
            near = bias[:, :, :length, :length]
            out = attention(q, k, v, bias=near, dropout_p=dropout_p, seed=drawn_seed(dropout_p, q.device))
            attended.append(out.transpose(1, 2).flatten(2).flatten(0, 1))
            begin = end
        middle = outer.LayerNorm(outer.dropout(inner.o(torch.cat(attended)[None])) + x)
        x = layer.output(layer.intermediate(middle), middle)
    return x


ARCHITECTURES = {
    "BertModel": Architecture(from_zero, run_with_mask),
    "DistilBertModel": Architecture(from_zero, run_with_mask),
    "RobertaModel": Architecture(after_padding_index, run_with_mask),
    "XLMRobertaModel": Architecture(after_padding_index, run_with_mask),
    "CamembertModel": Architecture(after_padding_index, run_with_mask),
    "MPNetModel": Architecture(after_padding_index, run_mpnet, by_name=False),
    "ModernBertModel": Architecture(from_zero, run_with_masks),
}


def architecture_of(model: Any) -> Architecture:
    """Look up the architecture of a model of transformers, as it comes from there."""
    name = type(model).__name__
    ours = name in ARCHITECTURES and type(model).__module__.startswith("transformers.models.")
    if not ours or getattr(model.config, "is_decoder", False):
        raise ValueError(
            f"the model is a {name}{' that decodes' * ours}; pack knows {', '.join(sorted(ARCHITECTURES))}. "
            "Use the model without pack; attn_implementation='tegula' may still serve it "
            "(tegula.integrations.transformers)."
        )
    return ARCHITECTURES[name]
