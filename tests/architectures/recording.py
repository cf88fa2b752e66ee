"""Attention implementations that count their calls, to see what really reaches a registered function."""

from __future__ import annotations

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask


class Recorder:
    """Registers `name` as an implementation that hands everything to another one and notes each call."""

    def __init__(self, name="recording", attention=sdpa_attention_forward, mask=sdpa_mask):
        self.name = name
        self.calls = []
        self.masks = []

        def attend(module, query, key, value, attention_mask, *arguments, **options):
            self.calls.append((module, query, key, value, attention_mask, arguments, options))
            return attention(module, query, key, value, attention_mask, *arguments, **options)

        def make_mask(*arguments, **options):
            made = mask(*arguments, **options)
            self.masks.append((arguments, options, made))
            return made

        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, make_mask)

    def clear(self):
        self.calls.clear()
        self.masks.clear()
