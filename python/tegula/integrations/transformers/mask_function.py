"""What transformers calls to make a model's attention mask."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import (
    causal_mask_function,
    eager_mask,
    prepare_padding_mask,
    sdpa_mask,
)

from ...masks import dense
from ...masks._rows import Intervals
from ...masks._torch import traced
from .mask_rules import keys_seen
from .mask_tensor import MaskTensor
from .warnings import warn_once


def tegula_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Tensor | None:
    """Return the mask of a model's attention: what transformers' `sdpa_mask` shows, in memory O(L).

    Parameters
    ----------
    batch_size, q_length, kv_length : int
        Sizes of the mask.
    q_offset, kv_offset : int
        Where the first query and the first key stand.
    mask_function : callable
        (batch entry, head, query, key) -> bool, True = may attend.
    attention_mask : bool Tensor (batch_size, length), optional
        True where a token is real.
    allow_is_bidirectional_skip : bool
        Whether None may stand for a mask that hides nothing.
    allow_is_causal_skip : bool
        Whether `sdpa_mask` may return None for the causal mask, where it is called instead.
    use_vmap : bool
        Whether `mask_function` wants single indices.
    device : torch.device
        Where the mask is wanted.
    **options
        What `sdpa_mask` takes more.

    Returns
    -------
    MaskTensor, Tensor or None
        bool, (batch_size, 1, q_length, kv_length); or None. What `sdpa_mask` returns while a model is being compiled
        or exported, and on other devices than the CPU: there no numbers are read. Floats to add, for
        models that do not call a registered attention.
    """
    sizes = {
        "batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset,
        "kv_offset": kv_offset, "mask_function": mask_function, "attention_mask": attention_mask,
        "use_vmap": use_vmap, "device": device,
    }  # fmt: skip
    skips = {
        "allow_is_causal_skip": allow_is_causal_skip,
        "allow_is_bidirectional_skip": allow_is_bidirectional_skip,
    }
    config = options.get("config")
    if config is not None and adds_masks(type(config).__module__.rpartition(".")[0], type(config).__name__):
        return eager_mask(**sizes, **skips, **options)
    if torch.device(device).type != "cpu" or traced():
        return sdpa_mask(**sizes, **skips, **options)

    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    try:
        lo, hi = keys_seen(mask_function, padding, batch_size, q_length, kv_length, int(q_offset), kv_offset)
    except Exception:
        # Not a mask of one or two runs of keys per query; or a function that is wrong, and says so once more here.
        shown: Any = sdpa_mask(**sizes, allow_is_causal_skip=False, **options)
        return MaskTensor(dense(shown), batch_size, q_length, kv_length)
    # None never stands for the causal mask: whether a layer takes it for that depends on an attribute that
    # not every layer has right.
    if allow_is_bidirectional_skip and lo.ndim == 3 and not lo.any() and (hi == kv_length).all():
        return None
    return MaskTensor(Intervals(lo, hi, kv_length), batch_size, q_length, kv_length)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def adds_masks(package: str, config: str) -> bool:
    """Whether models in a package of Python need a mask to add to scores."""
    if package.rpartition(".")[2] in ADDED_AND_PASSED_ON:
        return True
    if package not in _OWN:
        files = [module for name, module in sys.modules.items() if name.startswith(f"{package}.modeling_")]
        _OWN[package] = bool(files) and not any(map(calls_registered_attention, files))
    if _OWN[package]:
        warn_once(
            f"{config}: this model computes attention itself, whatever attn_implementation says; "
            "it runs as with attn_implementation='eager'."
        )
    return _OWN[package]


def calls_registered_attention(file: Any) -> bool:
    """Whether layers in a module of Python do, or those of another model of transformers that it uses."""
    made_of = {kind.__module__ for kind in vars(file).values() if isinstance(kind, type)}
    others = [sys.modules.get(name) for name in made_of if ".models." in name]
    return any(hasattr(module, "ALL_ATTENTION_FUNCTIONS") for module in (file, *others))


# Packages of models that make masks but call no registered attention.
_OWN: dict[str, bool] = {}
# Where one mask reaches the registered attention and also an addition (BigBird's own blocks, a text
# encoder, Informer's chosen queries), or is joined with floats (the compressed keys of DeepSeek V4).
ADDED_AND_PASSED_ON = frozenset({"bigbird_pegasus", "sam3_lite_text", "informer", "deepseek_v4"})
