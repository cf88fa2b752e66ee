"""What the attention layers of transformers call."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ...masks import Mask, documents
from ...masks._rows import Intervals
from ...masks._torch import as_mask, traced
from ...torch.drop_in import TOP_LEFT, broadcast, per_batch
from ...torch.dropout import drawn_seed
from ...torch.functional import attention
from .mask_tensor import MaskTensor
from .warnings import warn_once

# Names of a choice of keys that models make for kernels of their own, instead of a mask.
SPARSE = ("indices", "block_indices")


def tegula_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    output_attentions: bool | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention of a layer of transformers.

    Parameters
    ----------
    module : nn.Module
        The layer; its `is_causal` counts where there is no mask.
    query : Tensor, shape (B, H, Lq, D)
        Queries.
    key, value : Tensor, shape (B, G, Lk, D) and (B, G, Lk, Dv)
        Heads that serve several query heads are not repeated.
    attention_mask : Tensor, optional
        A `MaskTensor`; or bool, True = may attend; or floats, which are added to the scores.
    dropout, scaling, is_causal, position_bias, softcap
        As models of transformers pass them.
    s_aux : Tensor, shape (H,), optional
        Sinks: logits that join the denominator of every query.
    sinks : Tensor, shape (B, H, Lq, 1), optional
        Sinks of each query.
    output_attentions : bool, optional
        Also return the weights, without gradient.
    sliding_window : int, optional
        Nothing is done with it: the mask knows it.
    **options
        Whatever else a model passes. ``cu_seq_lens_q`` and ``cu_seq_lens_k`` are the borders of documents
        packed in one row, which see nothing of each other. What the model's own eager attention has a
        name for changes the result: then that is called, and a warning says so once.

    Returns
    -------
    out : Tensor, shape (B, Lq, H, Dv)
        Contiguous.
    weights : Tensor, shape (B, H, Lq, Lk), or None

    Raises
    ------
    NotImplementedError
        For layers that choose their keys by indices: without them the result would be another one.
    """
    refuse_sparse(module, options)
    other = other_function(module, query, options)
    if other is not None:
        if isinstance(attention_mask, MaskTensor):
            attention_mask = attention_mask.bools()
        given = {
            "is_causal": is_causal, "position_bias": position_bias, "softcap": softcap, "s_aux": s_aux, "sinks": sinks,
            "output_attentions": output_attentions, "sliding_window": sliding_window,
        }  # fmt: skip
        options |= {name: value for name, value in given.items() if value is not None}
        found: tuple[Tensor, Tensor | None] = other(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return found

    shape = key.shape
    if query.shape[0] != shape[0] or (shape != value.shape and shape[:3] != value.shape[:3]):
        query, key, value, _ = broadcast(query, key, value, grouped=True)
    if isinstance(scaling, Tensor):  # learned, or made from the input
        query, scaling = query * scaling, 1.0
    mask, bias = mask_and_bias(module, query, key, attention_mask, is_causal, position_bias)
    mask = inside_documents(mask, options)
    call: dict[str, Any] = {"mask": mask, "bias": bias, "scale": scaling, "softcap": softcap, "sinks": s_aux}
    draw: dict[str, Any] = {"dropout_p": dropout, "seed": drawn_seed(dropout, query.device)} if dropout else {}
    if sinks is None:
        out = attention(query, key, value, **call, **draw)
    else:
        # One more logit per query, with value 0, takes the share exp(sink) / (exp(sink) + exp(lse)).
        out, lse = attention(query, key, value, **call, **draw, return_lse=True)
        out = out * torch.sigmoid(lse[..., None] - sinks).to(out.dtype)
    weights = weights_of(query, key, value, call, sinks) if output_attentions else None
    return out.transpose(1, 2).contiguous(), weights


def refuse_sparse(module: nn.Module, options: dict[str, Any]) -> None:
    for name in SPARSE:
        if options.get(name) is not None:
            raise NotImplementedError(
                f"{type(module).__name__} chooses keys by {name}=, which attn_implementation='tegula' does not know; "
                "use attn_implementation='eager' or 'sdpa' for this model"
            )


def mask_and_bias(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool | None,
    position_bias: Tensor | None,
) -> tuple[Mask | Tensor | None, Tensor | None]:
    """What is hidden, and what is added to the scores."""
    q_len, k_len = query.shape[2], key.shape[2]
    if attention_mask is None:
        if is_causal is None:
            is_causal = none_is_causal(module)
        # One query is the last token of a text. More keys than queries are those of an empty cache:
        # there the first query stands at the first key.
        return TOP_LEFT if is_causal and q_len > 1 else None, position_bias
    if isinstance(attention_mask, MaskTensor):
        if attention_mask.dim() == 4 and attention_mask.shape[2] == q_len:
            mask = attention_mask.mask_object()
            return None if isinstance(mask, Intervals) and mask.hides_nothing() else mask, position_bias
        attention_mask = attention_mask.bools()
    shown = attention_mask[(None,) * (4 - attention_mask.dim())].expand(-1, -1, q_len, k_len)
    if not (shown.dtype == torch.bool or shown.is_floating_point()):
        raise TypeError(
            f"attention_mask must be bool (True = may attend) or floats to add, got {shown.dtype}; .bool() makes one"
        )
    if shown.dtype == torch.bool:
        return per_batch(shown, query.shape[:-3]), position_bias
    return None, shown if position_bias is None else position_bias + shown


def none_is_causal(module: nn.Module) -> bool:
    """Whether a layer that is given no mask is causal.

    The interface says so by an attribute. Layers of transformers itself have it wrong here and there, and
    need it only while compiling: otherwise `tegula_mask` gives every causal mask.
    """
    if type(module).__module__.startswith("transformers.models.") and not traced():
        return False
    return bool(getattr(module, "is_causal", True))


def inside_documents(mask: Mask | Tensor | None, options: dict[str, Any]) -> Mask | Tensor | None:
    """The mask, and the borders of documents packed in one row, as data collators pass them on."""
    borders = options.get("cu_seq_lens_q")
    if borders is None:
        return mask
    given = mask, borders, options.get("cu_seq_lens_k")
    known = _packed.find(given)
    if known is not None:
        return known
    packed: Mask = documents(cu_seqlens=given[1], cu_seqlens_k=given[2])
    if mask is not None:
        packed = as_mask(mask) & packed
    _packed.keep(given, packed)
    return packed


class LastPacked:
    """The mask of the last packed row: all layers of a model are given the same objects."""

    def __init__(self) -> None:
        self.last: tuple[tuple[Any, ...], list[int | None], Mask] | None = None

    def find(self, given: tuple[Any, ...]) -> Mask | None:
        last = None if traced() else self.last
        if last is None or any(x is not y for x, y in zip(given, last[0], strict=True)):
            return None
        return last[2] if versions(given) == last[1] else None

    def keep(self, given: tuple[Any, ...], packed: Mask) -> None:
        mask, *borders = given
        # What cannot tell that it was written to is not kept, and neither is a matrix.
        if traced() or isinstance(mask, Tensor) or not all(map(tells_versions, borders)):
            return
        self.last = given, versions(given), packed


def tells_versions(x: Any) -> bool:
    return x is None or (isinstance(x, Tensor) and not x.is_inference())


def versions(given: tuple[Any, ...]) -> list[int | None]:
    """How often each tensor was written to."""
    return [x._version if isinstance(x, Tensor) else None for x in given]


_packed = LastPacked()


def weights_of(query: Tensor, key: Tensor, value: Tensor, call: dict[str, Any], sinks: Tensor | None) -> Tensor:
    """The softmax weights, before dropout."""
    if query.requires_grad and torch.is_grad_enabled():
        warn_once(
            "attn_implementation='tegula' returns attention weights without gradient; "
            "if the loss depends on them, use attn_implementation='eager'."
        )
    with torch.no_grad():
        _, lse, weights = attention(query, key, value, **call, return_lse=True, return_weights=True)
        if sinks is not None:
            weights = weights * torch.sigmoid(lse[..., None] - sinks).to(weights.dtype)
    result: Tensor = weights
    return result


def other_function(module: nn.Module, query: Tensor, options: dict[str, Any]) -> Callable[..., Any] | None:
    """The function that computes what is not computed here, None for everything else."""
    if not query.is_cpu and query.device.type != "meta":
        warn_once(f"attn_implementation='tegula' runs on the CPU; on {query.device.type}, sdpa is used instead.")
        sdpa: Callable[..., Any] = sdpa_attention_forward
        return sdpa
    names = names_of_eager(type(module).__module__)
    named = names and [name for name, value in options.items() if value is not None and name in names]
    if not named:
        return None
    warn_once(
        f"attn_implementation='tegula' does not know {', '.join(named)} of {type(module).__name__}; "
        "its eager attention is used instead."
    )
    return functools.partial(with_additive_mask, eager_function(type(module).__module__))


def eager_function(file: str) -> Any:
    """The eager attention that layers in a module of Python fall back to."""
    return getattr(sys.modules.get(file), "eager_attention_forward", None)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def names_of_eager(file: str) -> tuple[str, ...]:
    """The arguments that such an eager attention knows, and `tegula_attention` does not."""
    if file not in _NAMES:
        eager = eager_function(file)
        theirs = () if eager is None else inspect.signature(eager).parameters.values()
        ours = inspect.signature(tegula_attention).parameters
        _NAMES[file] = tuple(p.name for p in theirs if p.kind is not p.VAR_KEYWORD and p.name not in ours)
    return _NAMES[file]


_NAMES: dict[str, tuple[str, ...]] = {}


def with_additive_mask(
    eager: Callable[..., Any],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> Any:
    """Call an eager attention, which adds its mask, and is not causal by itself."""
    q_len, k_len = query.shape[2], key.shape[2]
    mask, bias = mask_and_bias(module, query, key, attention_mask, options.get("is_causal"), None)
    mask = inside_documents(mask, options)
    if isinstance(mask, Mask):
        mask = torch.as_tensor(mask.dense(q_len, k_len))
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min)
    return eager(module, query, key, value, bias, **options)
