"""The cases, and what each should reach: AVX-512 (bf16: with avx512_bf16), 2 threads.

A target is a share of the ceiling measured beside the case (`share`, percent), a ratio to the first
peer (`ratio`), or a time (`microseconds`). Cases without one are there for information.
"""

from __future__ import annotations

from collections.abc import Sequence

from attention_jobs import Attention, AttentionBackward, Decode, Padded
from job import Case, microseconds, ratio, share
from layer_jobs import DenseMask, Embedding, EmbeddingBackward, Positions

FP32, BF16 = "float32", "bfloat16"

FORWARD: list[Case] = [
    Attention((32, 12, 128, 64), FP32, target=share(68)),
    Attention((8, 12, 512, 64), FP32, target=share(82), fresh_output=True),
    Attention((1, 12, 2048, 64), FP32, target=share(86)),
    Attention((1, 8, 2048, 128), FP32, target=share(89)),
]

FORWARD_BF16: list[Case] = [
    Attention((32, 12, 128, 64), BF16, target=share(60)),
    Attention((8, 12, 512, 64), BF16, target=share(75), fresh_output=True),
    Attention((1, 12, 2048, 64), BF16, target=share(82)),
    Attention((1, 8, 2048, 128), BF16, target=share(85)),
]

BACKWARD: list[Case] = [
    AttentionBackward((32, 12, 128, 64), FP32, target=share(65)),
    AttentionBackward((8, 12, 512, 64), FP32, target=share(82)),
    AttentionBackward((1, 12, 2048, 64), FP32, target=share(88)),
    AttentionBackward((1, 8, 2048, 128), FP32, target=share(88)),
    AttentionBackward((32, 12, 128, 64), BF16, target=share(50)),
    AttentionBackward((8, 12, 512, 64), BF16, target=share(75)),
    AttentionBackward((1, 12, 2048, 64), BF16, target=share(85)),
    AttentionBackward((1, 8, 2048, 128), BF16, target=share(87)),
    AttentionBackward((8, 12, 512, 64), FP32, "causal", target=share(68)),
    AttentionBackward((8, 12, 512, 64), BF16, "causal", target=share(62)),
    AttentionBackward((1, 1, 8192, 64), FP32, target=ratio(1.7), threads=2, against_one_thread=True),
    EmbeddingBackward(32, 512, 30522, 768, dtype=FP32, target=ratio(6)),
    EmbeddingBackward(32, 512, 30522, 768, sparse=True, dtype=FP32, target=ratio(8)),
]

MASKS: list[Case] = [
    Attention((8, 12, 512, 64), FP32, "causal", target=share(72)),
    Attention((8, 12, 512, 64), BF16, "causal", target=share(66)),
    Padded((32, 12, 512, 64), 0.40, FP32, target=ratio(10)),
    Padded((32, 12, 512, 64), 0.40, BF16, target=ratio(18)),
    Attention((1, 8, 8192, 64), FP32, ("sliding", 256), target=ratio(60)),
    Attention((1, 8, 8192, 64), BF16, ("sliding", 256)),
    DenseMask(4096),
    DenseMask(4096, window=256),
]

LATENCY: list[Case] = [
    Attention((1, 12, 16, 64), FP32, target=microseconds(10), threads=1, short=True),
    Attention((1, 12, 16, 64), FP32, "causal", threads=1, short=True),
    Attention((1, 12, 16, 64), BF16, threads=1, short=True),
    Decode(32, 8, 128, 4096, FP32),
    Decode(32, 8, 128, 4096, BF16),
]

EMBEDDING: list[Case] = [
    Embedding(32, 512, 30522, 768, FP32, target=ratio(1.8)),
    Embedding(32, 512, 30522, 768, BF16),
    Positions(8192, 768),
]

SUITES: dict[str, Sequence[Case]] = {
    "forward": FORWARD,
    "bf16": FORWARD_BF16,
    "backward": BACKWARD,
    "masks": MASKS,
    "latency": LATENCY,
    "embedding": EMBEDDING,
}


def selected(suite: str, pattern: str = "") -> list[tuple[str, Case]]:
    """(suite, case) of one suite or of "all", whose name or dtype contains the pattern."""
    names = list(SUITES) if suite == "all" else [suite]
    pairs = [(name, case) for name in names for case in SUITES[name]]
    return [(name, case) for name, case in pairs if pattern in f"{case.name} {case.dtype}"]
