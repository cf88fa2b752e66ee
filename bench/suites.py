"""The cases, and what each should reach: AVX-512 (bf16: with avx512_bf16), 2 threads.

A target is a share of the ceiling measured beside the case (`share`, percent), a ratio to a peer timed in
the same rounds (`ratio`), at most a multiple of another line (`at_most`), or a time (`microseconds`). Cases
without one are there for information.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attention_jobs import Attention, AttentionBackward, Padded
from decode_jobs import Decode
from job import DTYPE_SHORT, Case, at_most, microseconds, ratio, share
from layer_jobs import DenseMask, Embedding, EmbeddingBackward, Positions

FP32, BF16 = "float32", "bfloat16"
ORT, FLEX, COMPILED = "onnxruntime", "flex_attention", "torch.compile"
WINDOW = ("sliding", 256)
AVX2 = "avx2"

FORWARD: list[Case] = [
    Attention((32, 12, 128, 64), FP32, targets=(share(76), ratio(3.2), ratio(1.4, ORT))),
    Attention((32, 12, 128, 64), BF16, targets=(share(70), ratio(5.5))),
    Attention((8, 12, 512, 64), FP32, targets=(share(86), ratio(2.6), ratio(1.4, ORT)), fresh_output=True),
    Attention((8, 12, 512, 64), BF16, targets=(share(82), ratio(5)), fresh_output=True),
    Attention((1, 12, 2048, 64), FP32, targets=(share(88), ratio(1.15, ORT))),
    Attention((1, 12, 2048, 64), BF16, targets=(share(86),)),
    Attention((1, 8, 8192, 64), FP32, targets=(share(90), ratio(1.15, ORT))),
    Attention((1, 8, 8192, 64), BF16, targets=(share(87),)),
    Attention((1, 8, 2048, 128), FP32, targets=(share(91), ratio(1.15, ORT))),
    Attention((1, 8, 2048, 128), BF16, targets=(share(90),)),
    Attention((8, 12, 512, 64), FP32, targets=(share(88),), isa=AVX2),
    Attention((8, 12, 512, 64), BF16, targets=(at_most(1.11, "float32"),), isa=AVX2, beside_float32=True),
    Attention((1, 12, 2048, 64), FP32, targets=(share(88),), isa=AVX2),
    Attention((1, 12, 2048, 64), BF16, targets=(at_most(1.11, "float32"),), isa=AVX2, beside_float32=True),
]

BACKWARD: list[Case] = [
    AttentionBackward((32, 12, 128, 64), FP32, targets=(share(74),)),
    AttentionBackward((32, 12, 128, 64), BF16, targets=(share(64),)),
    AttentionBackward((8, 12, 512, 64), FP32, targets=(share(86),)),
    AttentionBackward((8, 12, 512, 64), BF16, targets=(share(80),)),
    AttentionBackward((1, 12, 2048, 64), FP32, targets=(share(90),)),
    AttentionBackward((1, 12, 2048, 64), BF16, targets=(share(88),)),
    AttentionBackward((1, 8, 2048, 128), FP32),
    AttentionBackward((1, 8, 2048, 128), BF16),
    AttentionBackward((8, 12, 512, 64), FP32, "causal", targets=(share(78),)),
    AttentionBackward((8, 12, 512, 64), BF16, "causal", targets=(share(72),)),
    AttentionBackward((1, 8, 8192, 64), FP32, WINDOW),
    AttentionBackward((1, 1, 8192, 64), FP32, targets=(ratio(1.7, "one thread"),), threads=2, against_one_thread=True),
    AttentionBackward((8, 12, 512, 64), FP32, targets=(share(88),), isa=AVX2),
    AttentionBackward((8, 12, 512, 64), BF16, targets=(at_most(1.11, "float32"),), isa=AVX2, beside_float32=True),
    AttentionBackward((1, 12, 2048, 64), FP32, targets=(share(88),), isa=AVX2),
    AttentionBackward((1, 12, 2048, 64), BF16, targets=(at_most(1.11, "float32"),), isa=AVX2, beside_float32=True),
]

MASKS: list[Case] = [
    Attention((8, 12, 512, 64), FP32, "causal", targets=(share(80),)),
    Attention((8, 12, 512, 64), BF16, "causal", targets=(share(75),)),
    Attention((1, 12, 2048, 64), FP32, "causal", targets=(share(87),)),
    Attention((1, 12, 2048, 64), BF16, "causal", targets=(share(82),)),
    Attention((1, 8, 8192, 64), FP32, WINDOW, targets=(share(75), ratio(3, FLEX))),
    Attention((1, 8, 8192, 64), BF16, WINDOW, targets=(share(68), ratio(3, FLEX))),
    Padded((32, 12, 512, 64), 0.40, FP32, targets=(ratio(12),)),
    Padded((32, 12, 512, 64), 0.40, BF16, targets=(ratio(20),)),
    DenseMask(1024),
    DenseMask(8192, targets=(share(80),)),
    DenseMask(8192, window=256, targets=(share(80),)),
]

DECODE: list[Case] = [
    Decode(32, 8, 128, k_len, dtype, batch, targets=(share(88),))
    for batch in (1, 8)
    for k_len in (4096, 32768)
    for dtype in (FP32, BF16)
]

LATENCY: list[Case] = [
    Attention((1, 12, 16, 64), FP32, targets=(microseconds(7),), short=True),
    Attention((1, 12, 16, 64), FP32, targets=(microseconds(9),), short=True, tensors=True),
    Attention((1, 12, 16, 64), BF16, targets=(microseconds(7),), short=True),
    Attention((1, 12, 16, 64), BF16, targets=(microseconds(9),), short=True, tensors=True),
    Attention((1, 12, 16, 64), FP32, "causal", short=True),
]

# 83 % of the copying rate is 1.2 times as long as a copy of the same bytes.
EMBEDDING: list[Case] = [
    Embedding(32, 512, 30522, 768, FP32, targets=(share(83), ratio(5, COMPILED))),
    Embedding(32, 512, 30522, 768, BF16, targets=(share(83), ratio(2, COMPILED))),
    Embedding(32, 512, 30522, 768, FP32, 0.1, targets=(at_most(1.5, "without dropout"),)),
    Embedding(32, 512, 30522, 768, BF16, 0.1, targets=(at_most(1.5, "without dropout"),)),
    EmbeddingBackward(32, 512, 30522, 768, dtype=FP32, targets=(ratio(6),)),
    EmbeddingBackward(32, 512, 30522, 768, sparse=True, dtype=FP32, targets=(ratio(8),)),
    Positions(8192, 768),
]

SUITES: dict[str, Sequence[Case]] = {
    "forward": FORWARD,
    "backward": BACKWARD,
    "masks": MASKS,
    "decode": DECODE,
    "embedding": EMBEDDING,
    "latency": LATENCY,
}


def matches(pattern: str, case: Any) -> bool:
    """Whether a case's name or dtype contains the pattern; the dtype as it is, or as tables show it."""
    return pattern in f"{case.name} {case.dtype}" or pattern in f"{case.name} {DTYPE_SHORT.get(case.dtype, case.dtype)}"


def selected(suite: str, pattern: str = "") -> list[tuple[str, Case]]:
    """(suite, case) of one suite or of "all", whose name or dtype contains the pattern."""
    names = [name for name in SUITES if suite in (name, "all")]
    pairs = [(name, case) for name in names for case in SUITES[name]]
    return [(name, case) for name, case in pairs if matches(pattern, case)]
