"""The grid: shapes beside the usual ones, on which nothing may be slower than torch.

A plain list, the same in every run. Each group turns one knob (length, head size, mask, type, layout,
threads, direction) and keeps the others where people keep them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

Mask = tuple[str, float]  # a kind that grid.py builds, and its number

FULL: Mask = ("full", 0)
CAUSAL: Mask = ("causal", 0)


@dataclass(frozen=True)
class GridCase:
    """One attention call: q (B, H, Lq, D), k (B, G, Lk, D), v (B, G, Lk, Dv)."""

    batch: int
    heads: int
    q_len: int
    dim: int
    dtype: str = "float32"
    mask: Mask = FULL
    groups: int | None = None  # G; None: H
    k_len: int | None = None  # Lk; None: Lq
    value_dim: int | None = None  # Dv; None: D
    backward: bool = False
    threads: int = 1
    tensors: bool = False  # called with torch tensors
    layout: Literal["bhld", "blhd"] = "bhld"
    dropout_p: float = 0.0
    bias: str = ""  # axes it has: "hqk", "qk", "bhqk"

    @property
    def lengths(self) -> tuple[int, int]:
        return self.q_len, self.q_len if self.k_len is None else self.k_len

    @property
    def name(self) -> str:
        """Everything that differs from a plain square call from NumPy."""
        groups = "" if self.groups is None else f"/{self.groups}"
        keys = "" if self.k_len is None else f"x{self.k_len}"
        values = "" if self.value_dim is None else f"/{self.value_dim}"
        words = [f"({self.batch},{self.heads}{groups},{self.q_len}{keys},{self.dim}{values})"]
        if self.backward:
            words.insert(0, "backward")
        if self.mask != FULL:
            kind, number = self.mask
            words.append(kind + (f" {number:g}" if number else ""))
        if self.bias:
            words.append(f"bias {self.bias}")
        if self.dropout_p:
            words.append(f"dropout {self.dropout_p:g}")
        if self.layout != "bhld":
            words.append(self.layout)
        if self.tensors:
            words.append("torch")
        if self.threads > 1:
            words.append(f"{self.threads} threads")
        return " ".join(words)


def cases() -> list[GridCase]:
    """Every case once."""
    found = dict.fromkeys(case for group in GROUPS for case in group())
    return list(found)


def sized(length: int) -> tuple[int, int]:
    """(batch, heads) that keep a call of this length short."""
    if length <= 64:
        return 8, 12
    if length <= 256:
        return 2, 12
    if length <= 1024:
        return 1, 8
    return 1, 2 if length <= 4096 else 1


LENGTHS: tuple[int, ...] = (
    1,
    2,
    3,
    4,
    5,
    8,
    12,
    16,
    17,
    24,
    31,
    32,
    33,
    48,
    63,
    64,
    65,
    77,
    96,
    100,
    127,
    128,
    129,
    160,
    197,
)
LENGTHS += (200, 255, 256, 257, 300, 384, 500, 512, 577, 768, 1000, 1024, 1500, 2048, 4096, 8192, 16384)
FEW_LENGTHS = (1, 7, 16, 32, 64, 100, 128, 200, 256, 512, 1000, 2048)
HEAD_SIZES = (16, 17, 24, 32, 33, 40, 48, 50, 65, 72, 80, 96, 100, 112, 128, 144, 160, 192, 256)


def length_cases() -> Iterator[GridCase]:
    for length in LENGTHS:
        batch, heads = sized(length)
        if length <= 8192:
            yield GridCase(batch, heads, length, 64)
        if length > 1:
            yield GridCase(batch, heads, length, 64, mask=CAUSAL)
    for length in FEW_LENGTHS:
        batch, heads = sized(length)
        for dtype in ("bfloat16", "float16"):
            yield GridCase(batch, heads, length, 64, dtype)
            if length > 1:
                yield GridCase(batch, heads, length, 64, dtype, CAUSAL)


def batch_cases() -> Iterator[GridCase]:
    for batch, heads, length, dim in (
        (1, 1, 1, 16),
        (1, 1, 16, 64),
        (1, 12, 1, 64),
        (1, 12, 16, 64),
        (1, 12, 77, 64),
        (512, 8, 8, 64),
        (128, 12, 32, 64),
        (1, 64, 128, 128),
        (3, 5, 111, 64),
        (1, 25, 300, 64),
        (64, 1, 256, 64),
    ):
        yield GridCase(batch, heads, length, dim)
        yield GridCase(batch, heads, length, dim, "bfloat16", tensors=True)


def head_size_cases() -> Iterator[GridCase]:
    for dim in HEAD_SIZES:
        yield GridCase(1, 8, 256, dim)
        yield GridCase(1, 8, 256, dim, "bfloat16", CAUSAL)
    for dim, value_dim in ((64, 32), (64, 128), (192, 128), (33, 65), (128, 16)):
        yield GridCase(1, 8, 256, dim, value_dim=value_dim)
        yield GridCase(1, 4, 300, dim, "bfloat16", value_dim=value_dim, tensors=True)


def cross_cases() -> Iterator[GridCase]:
    for q_len, k_len in ((1, 16), (1, 128), (1, 1024), (1, 16384), (2, 512), (3, 2048), (5, 777), (8, 4096)):
        yield GridCase(1, 8, q_len, 64, k_len=k_len)
        yield GridCase(2, 8, q_len, 128, "bfloat16", k_len=k_len, tensors=True)
    for q_len, k_len in ((16, 1024), (64, 1500), (100, 50), (300, 1), (512, 77), (1000, 300), (128, 2048), (2048, 16)):
        yield GridCase(1, 8, q_len, 64, k_len=k_len)
        yield GridCase(1, 8, q_len, 64, "bfloat16", k_len=k_len)
    for q_len, k_len in ((1, 512), (4, 512), (64, 576), (256, 1024), (300, 1000)):
        yield GridCase(1, 8, q_len, 64, mask=("causal bottom right", 0), k_len=k_len)
        yield GridCase(1, 8, q_len, 64, "bfloat16", ("causal bottom right", 0), k_len=k_len, tensors=True)


def grouped_cases() -> Iterator[GridCase]:
    for heads, groups, q_len, k_len, dim in (
        (32, 8, 1, 1024, 128),
        (32, 8, 1, 4096, 128),
        (32, 1, 1, 2048, 64),
        (14, 2, 1, 300, 64),
        (32, 8, 4, 1024, 128),
        (32, 4, 16, 512, 64),
        (8, 2, 256, 256, 64),
        (16, 2, 128, 512, 128),
        (12, 1, 200, 200, 64),
    ):
        for dtype in ("float32", "bfloat16"):
            yield GridCase(1, heads, q_len, dim, dtype, groups=groups, k_len=k_len)
    for dtype in ("float32", "float16", "bfloat16"):
        yield GridCase(8, 32, 1, 128, dtype, groups=8, k_len=512, tensors=True)
        yield GridCase(1, 16, 256, 64, dtype, CAUSAL, groups=4)


MASKS: tuple[Mask, ...] = (
    ("sliding", 16),
    ("sliding", 128),
    ("window", 32),
    ("chunked", 64),
    ("padding", 0.3),
    ("padding", 0.9),
    ("left padding", 0.5),
    ("prefix", 50),
    ("documents", 5),
    ("dense", 0.5),
    ("dense per head", 0.9),
)


def mask_cases() -> Iterator[GridCase]:
    for mask in MASKS:
        yield GridCase(4, 8, 64, 64, mask=mask)
        yield GridCase(2, 8, 300, 64, mask=mask)
        yield GridCase(2, 4, 512, 128, "bfloat16", mask)
        yield GridCase(2, 8, 200, 64, mask=mask, backward=True)
        yield GridCase(1, 4, 512, 64, "bfloat16", mask, backward=True, tensors=True)
    for mask in (("sliding", 256), ("documents", 20), ("padding", 0.6)):
        yield GridCase(1, 2, 4096, 64, mask=mask)
        yield GridCase(1, 2, 4096, 64, "bfloat16", mask)
    yield GridCase(2, 8, 128, 64, "float16", ("padding", 0.5))


def option_cases() -> Iterator[GridCase]:
    for length in (16, 128, 300):
        for dtype in ("float32", "bfloat16"):
            yield GridCase(2, 8, length, 64, dtype, bias="hqk")
            yield GridCase(2, 8, length, 64, dtype, CAUSAL, bias="bhqk")
            yield GridCase(2, 8, length, 64, dtype, dropout_p=0.1)
            yield GridCase(2, 8, length, 64, dtype, dropout_p=0.1, backward=True)
        yield GridCase(2, 8, length, 64, bias="qk", backward=True)
        yield GridCase(2, 8, length, 64, bias="hqk", backward=True, tensors=True)
    yield GridCase(1, 8, 512, 64, mask=CAUSAL, dropout_p=0.2, tensors=True)


def layout_cases() -> Iterator[GridCase]:
    for length in (1, 16, 64, 200, 512):
        for dtype in ("float32", "bfloat16"):
            yield GridCase(2, 8, length, 64, dtype, layout="blhd")
            yield GridCase(2, 8, length, 64, dtype, CAUSAL, tensors=True)
            yield GridCase(2, 8, length, 64, dtype, layout="blhd", tensors=True)
    yield GridCase(2, 8, 200, 64, layout="blhd", backward=True)
    yield GridCase(2, 8, 200, 64, "bfloat16", layout="blhd", backward=True, tensors=True)


def backward_cases() -> Iterator[GridCase]:
    for length in (1, 4, 16, 33, 64, 100, 128, 197, 256, 384, 512, 1000, 2048):
        batch, heads = sized(length)
        yield GridCase(batch, heads, length, 64, backward=True)
        yield GridCase(batch, heads, length, 64, "bfloat16", backward=True)
        if length > 1:
            yield GridCase(batch, heads, length, 64, mask=CAUSAL, backward=True, tensors=True)
            yield GridCase(batch, heads, length, 64, "bfloat16", CAUSAL, backward=True, tensors=True)
    for dim in (16, 33, 40, 80, 96, 100, 128, 192, 256):
        yield GridCase(1, 8, 200, dim, backward=True)
        yield GridCase(1, 8, 200, dim, "bfloat16", backward=True)
    for dim, value_dim in ((64, 32), (192, 128), (33, 65)):
        yield GridCase(1, 8, 200, dim, value_dim=value_dim, backward=True)
    for q_len, k_len in ((1, 512), (16, 300), (77, 512), (512, 77), (300, 1)):
        yield GridCase(1, 8, q_len, 64, k_len=k_len, backward=True)
        yield GridCase(1, 8, q_len, 64, "bfloat16", k_len=k_len, backward=True, tensors=True)
    for heads, groups, length in ((8, 2, 256), (32, 8, 64), (12, 1, 128)):
        yield GridCase(1, heads, length, 64, groups=groups, backward=True)
        yield GridCase(1, heads, length, 64, "bfloat16", groups=groups, backward=True, tensors=True)
    for length in (32, 256):
        yield GridCase(1, 8, length, 64, "float16", backward=True)


def two_thread_cases() -> Iterator[GridCase]:
    some = [
        GridCase(1, 12, 16, 64),
        GridCase(1, 12, 64, 64, tensors=True),
        GridCase(8, 12, 128, 64),
        GridCase(1, 8, 512, 64, mask=CAUSAL),
        GridCase(1, 1, 1000, 64),
        GridCase(1, 3, 300, 100),
        GridCase(1, 1, 4096, 64, mask=CAUSAL),
        GridCase(1, 32, 1, 128, groups=8, k_len=4096),
        GridCase(1, 1, 1, 64, k_len=16384),
        GridCase(2, 8, 512, 64, mask=("padding", 0.5)),
        GridCase(1, 8, 1024, 64, mask=("sliding", 128)),
        GridCase(4, 8, 128, 64, backward=True),
        GridCase(1, 8, 512, 64, mask=CAUSAL, backward=True, tensors=True),
        GridCase(1, 1, 1000, 64, backward=True),
    ]
    for case in some:
        for dtype in ("float32", "bfloat16"):
            yield replace(case, dtype=dtype, threads=2)


GROUPS = (
    length_cases,
    batch_cases,
    head_size_cases,
    cross_cases,
    grouped_cases,
    mask_cases,
    option_cases,
    layout_cases,
    backward_cases,
    two_thread_cases,
)
