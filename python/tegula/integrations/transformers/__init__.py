"""tegula inside Hugging Face transformers: one line, and a model's attention runs on it.

>>> import tegula.integrations.transformers
>>> tegula.integrations.transformers.register()
>>> from transformers import AutoModel, BertConfig
>>> config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=99)
>>> model = AutoModel.from_config(config, attn_implementation="tegula")

Models keep their weights, caches and ``generate``. `register` comes first, and registers two functions: one
for attention, one for masks, without which transformers would pass no mask at all. `MaskTensor` is for those
who make masks themselves.
"""

from __future__ import annotations

import inspect

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if "q_offset" not in inspect.signature(sdpa_mask).parameters:
        raise ImportError("the mask functions of this version take other arguments")
except ImportError as error:
    raise type(error)(
        "tegula.integrations.transformers needs transformers 5: pip install 'transformers>=5'", name="transformers"
    ) from error

from .attention_function import tegula_attention
from .mask_function import tegula_mask
from .mask_tensor import MaskTensor

__all__ = ["MaskTensor", "register", "tegula_attention", "tegula_mask"]


def register(name: str = "tegula") -> None:
    """Make attention and masks known to transformers, for ``attn_implementation=name``.

    May be called any number of times, before or after models are made: a model takes the
    implementation when it is made, or by ``model.set_attn_implementation(name)``.

    Parameters
    ----------
    name : str
        What models are to call it.

    Raises
    ------
    TypeError, ValueError
        For a name that is no string, is one of transformers' own, or has a meaning of its own there:
        "flash" in it, "|" or "/".

    Examples
    --------
    >>> from tegula.integrations.transformers import register
    >>> register()
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {type(name).__name__}")
    registered = ALL_ATTENTION_FUNCTIONS.get(name)
    taken = name in ("eager", "sdpa") or registered not in (None, tegula_attention)
    if taken or not name or "flash" in name or "|" in name or "/" in name:
        raise ValueError(
            f"name must be a word of its own, for example 'tegula', got {name!r}: sdpa, eager, everything with flash, "
            "| or / has a meaning in transformers"
        )
    AttentionInterface.register(name, tegula_attention)
    AttentionMaskInterface.register(name, tegula_mask)
