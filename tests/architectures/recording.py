"""An attention implementation that counts its calls, to see what really reaches a registered function."""

from __future__ import annotations

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask


class Recorder:
    """Registers `name` as an implementation that hands everything to another one and counts."""

    def __init__(self, name="recording", attention=sdpa_attention_forward, mask=sdpa_mask):
        self.name = name
        self.calls = self.masks = 0

        def attend(*arguments, **options):
            self.calls += 1
            return attention(*arguments, **options)

        def make_mask(*arguments, **options):
            self.masks += 1
            return mask(*arguments, **options)

        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, make_mask)
