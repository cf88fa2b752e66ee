"""What transformers calls to make a model's attention mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    padding_mask_function,
    prepare_padding_mask,
    sdpa_mask,
)

from ...masks import dense
from ...masks._rows import Intervals
from ...masks._torch import traced
from .mask_rules import keys_seen
from .mask_tensor import MaskTensor


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
    allow_is_causal_skip, allow_is_bidirectional_skip : bool
        Whether None may stand for the plain causal mask, and for that which hides nothing.
    use_vmap : bool
        Whether `mask_function` wants single indices.
    device : torch.device
        Where the mask is wanted.
    **options
        What `sdpa_mask` takes more.

    Returns
    -------
    MaskTensor, Tensor or None
        bool, (batch_size, 1, q_length, kv_length). A plain tensor while a model is being compiled or
        exported, and on other devices than the CPU: there no numbers are read.
    """

    def as_sdpa(skip: bool) -> Any:
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=skip and allow_is_causal_skip,
            allow_is_bidirectional_skip=skip and allow_is_bidirectional_skip,
            use_vmap=use_vmap,
            device=device,
            **options,
        )

    if torch.device(device).type != "cpu" or traced():
        return as_sdpa(skip=True)
    function = mask_function
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        function = and_masks(function, padding_mask_function(padding))
    try:
        lo, hi = keys_seen(function, batch_size, q_length, kv_length, int(q_offset), kv_offset)
    except Exception:
        # Not a mask of one run of keys per query; or a function that is wrong, and says so once more here.
        shown = as_sdpa(skip=False)
        return MaskTensor(dense(shown), batch_size, q_length, kv_length)
    from_start = not lo.any()
    may_be_full = allow_is_bidirectional_skip or (allow_is_causal_skip and q_length == 1)
    if may_be_full and from_start and (hi == kv_length).all():
        return None
    may_be_causal = allow_is_causal_skip and q_length == kv_length
    if may_be_causal and from_start and (hi == np.arange(1, q_length + 1)).all():
        return None
    return MaskTensor(Intervals(lo, hi, kv_length), batch_size, q_length, kv_length)
