"""The forward pass of a Transformer module on a packed row: padded batch in, padded batch out.

    input_ids, attention_mask   (B, L)     as the tokenizer pads them
    row                         (1, T)     the T tokens that are real
    token_embeddings            (B, L, D)  zeros where there is padding

What is padded is only what comes before the model and after it, which costs next to nothing, so all
that reads the library's features goes on as it did.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.utils import logging

from ..transformers import register
from .architectures import Architecture, Row

logger = logging.get_logger(__name__)

ATTENTION = "tegula"
Features = dict[str, Any]


class PackedForward:
    """Takes the place of a Transformer module's `forward`."""

    def __init__(self, transformer: Any, architecture: Architecture) -> None:
        self.transformer = transformer
        self.architecture = architecture
        model = transformer.auto_model
        if model.device.type != "cpu":
            raise ValueError(f"the model is on {model.device}, but pack is for the CPU: model.to('cpu')")
        self.attention_before = model.config._attn_implementation
        if architecture.by_name:
            register(ATTENTION)
            model.set_attn_implementation(ATTENTION)

    def __setstate__(self, state: dict[str, Any]) -> None:
        register(ATTENTION)  # another process may have made this
        vars(self).update(state)

    def undo(self) -> None:
        model = self.transformer.auto_model
        if self.architecture.by_name and model.config._attn_implementation == ATTENTION:
            model.set_attn_implementation(self.attention_before)
        del self.transformer.forward

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, features: Features, **options: Any) -> Features:
        obstacle = self.obstacle(features, options)
        if obstacle:
            logger.warning_once(f"A batch is computed with its padding, because {obstacle}.")
            found: Features = type(self.transformer).forward(self.transformer, features, **options)
            return found
        model = self.transformer.auto_model
        ids: Tensor = features["input_ids"]
        keep = features["attention_mask"].bool()
        lengths = keep.sum(1)
        order = lengths.argsort(stable=True)
        places = torch.arange(ids.numel()).view(ids.shape)[order][keep[order]]  # (T,)

        def packed(tensor: Tensor) -> Tensor:
            return tensor.flatten()[places][None]

        segments = features.get("token_type_ids")
        row = Row(
            ids=packed(ids),
            positions=packed(self.architecture.positions(model, ids)),
            segments=None if segments is None else packed(segments),
            cu_seqlens=np.append(0, lengths[order].cumsum(0).numpy()),
        )
        hidden = self.architecture.run(model, row)[0]
        padded = hidden.new_zeros(ids.numel(), hidden.shape[1]).index_copy(0, places, hidden)
        features["token_embeddings"] = padded.view(*ids.shape, -1)
        return features

    def obstacle(self, features: Features, options: dict[str, Any]) -> str:
        """Why a batch cannot be packed, or nothing."""
        config = self.transformer.auto_model.config
        if self.architecture.by_name and config._attn_implementation != ATTENTION:
            return f"the model's attention was set to {config._attn_implementation!r} after pack"
        if config.output_hidden_states or config.output_attentions:
            return "the model's configuration asks for hidden states or attention weights"
        if options:
            return f"its forward pass is given {', '.join(options)}"
        foreign = {"position_ids", "inputs_embeds", "cu_seq_lens_q"} & features.keys()
        if foreign:
            return f"it holds {', '.join(sorted(foreign))}"
        ids, keep = features.get("input_ids"), features.get("attention_mask")
        if not isinstance(ids, Tensor) or not isinstance(keep, Tensor) or ids.dim() != 2 or keep.shape != ids.shape:
            return "it holds no input_ids with an attention_mask of their shape"
        if ids.device.type != "cpu":
            raise ValueError(f"the model was moved to {ids.device}, but is packed for the CPU: unpack(model) first")
        keep = keep.bool()
        if not keep.any():
            return "it holds no tokens"
        runs = keep[:, 0] + (keep[:, 1:] & ~keep[:, :-1]).sum(1)
        if (runs > 1).any():
            return "its attention mask has gaps"
        return ""
