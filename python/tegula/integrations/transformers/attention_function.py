"""What the attention modules of transformers call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from ...masks import Mask, causal
from ...torch.drop_in import broadcast, drawn_seed, per_batch
from ...torch.functional import attention
from .mask_tensor import MaskTensor

logger = logging.get_logger(__name__)

TOP_LEFT = causal("top_left")  # one object, which keeps its last result
# What models pass along that does not change attention itself: the mask, q and k have taken it in.
NO_INFLUENCE = frozenset(
    {
        "position_ids", "use_cache", "sliding_window", "cache_position", "encoder_hidden_states",
        "output_hidden_states", "return_dict", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
        "past_key_values", "output_router_logits", "num_items_in_batch", "input_ids", "inputs_embeds",
    }
)  # fmt: skip


def tegula_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    output_attentions: bool | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention of a transformers model.

    Parameters
    ----------
    module : nn.Module
        The model's attention layer; its `is_causal` counts where there is no mask.
    query : Tensor, shape (B, H, Lq, D)
        Queries.
    key, value : Tensor, shape (B, G, Lk, D) and (B, G, Lk, Dv)
        Heads that serve several query heads are not repeated.
    attention_mask : Tensor, optional
        A `MaskTensor`; or bool, True = may attend; or floats, which are added to the scores.
    dropout, scaling, is_causal, position_bias, softcap
        As models of transformers pass them.
    s_aux : Tensor, shape (H,), optional
        Sinks: logits that join the denominator.
    output_attentions : bool, optional
        Also return the weights, (B, H, Lq, Lk).
    **options
        Further arguments that models pass. Those that would change the result and are not known here
        raise, or are warned of once.

    Returns
    -------
    out : Tensor, shape (B, Lq, H, Dv)
        Contiguous.
    weights : Tensor or None

    Raises
    ------
    NotImplementedError
        For sparse attention by `indices`.
    """
    check_options(module, options)

    if query.shape[0] != key.shape[0] or key.shape[:3] != value.shape[:3]:
        query, key, value, _ = broadcast(query, key, value, grouped=True)
    if isinstance(scaling, Tensor):  # learned, or computed from the input
        query, scaling = query * scaling, 1.0
    q_len, k_len = query.shape[2], key.shape[2]
    mask: Mask | Tensor | None = None
    bias = position_bias
    if isinstance(attention_mask, MaskTensor):
        mask = attention_mask.mask_object()
    elif attention_mask is not None:
        shown = attention_mask[(None,) * (4 - attention_mask.dim())].expand(-1, -1, q_len, k_len)
        if shown.dtype == torch.bool:
            mask = per_batch(shown, query.shape[:-3])
        else:
            bias = shown if bias is None else bias + shown
    elif q_len > 1 and (is_causal if is_causal is not None else getattr(module, "is_causal", True)):
        # More keys than queries are those of an empty cache: the first query stands at the first key.
        mask = TOP_LEFT
    call = {"mask": mask, "bias": bias, "scale": scaling, "softcap": softcap, "sinks": s_aux}
    out = attention(query, key, value, **call, dropout_p=dropout, seed=drawn_seed(dropout))
    weights = None
    if output_attentions:
        if query.requires_grad and torch.is_grad_enabled():
            logger.warning_once("tegula returns attention weights without gradient; use attn_implementation='eager'.")
        with torch.no_grad():
            _, weights = attention(query, key, value, **call, return_weights=True)
    return out.transpose(1, 2).contiguous(), weights


def check_options(module: nn.Module, options: dict[str, Any]) -> None:
    """Arguments of a model that attention here does not know: those that matter raise, others are named once."""
    if options.get("indices") is not None:
        raise NotImplementedError(
            f"{type(module).__name__} selects keys by indices=, which attn_implementation='tegula' does not do; "
            "use attn_implementation='eager'"
        )
    unknown = [name for name, value in options.items() if value is not None and name not in NO_INFLUENCE]
    if unknown:
        logger.warning_once(
            f"attn_implementation='tegula' does not know {', '.join(sorted(unknown))} of {type(module).__name__}, "
            "and computes attention without; if a result should depend on it, use attn_implementation='eager'."
        )
