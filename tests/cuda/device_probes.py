"""What each operation has to give on every kind of device: one probe for each row of the table in docs/gpu.md.

A probe takes two functions: `to`, which brings a NumPy array to the device, and `back`, which returns NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cases
import numpy as np
import reference
import tegula as tg
from cases import AttentionCase
from tolerances import assert_attention_close, assert_gradients_close

DTYPES = ("float32", "bfloat16", "float16", "float64")
Probe = Callable[[Any, Any], None]


def attention(case: AttentionCase, to: Any, back: Any, gradients: bool = True) -> None:
    """Forward with log-sum-exp and weights, and backward, against the float64 twins."""
    given = case.options(tg.masks)
    options = {name: to(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    arrays = [to(x) for x in case.arrays()]
    out, lse, weights = tg.attention(*arrays, **options, return_lse=True, return_weights=True)
    assert_attention_close(*back((out, lse, weights)), cases.expected(case))
    if gradients:
        found = tg.attention_backward(to(case.grad_out()), *arrays, out, lse, **options)
        assert_gradients_close(back(found), cases.expected_gradients(case), given)


def attention_of(gradients: bool = True, **changes: Any) -> Probe:
    """Two types: tensor cores serve one of them."""

    def probe(to: Any, back: Any) -> None:
        for dtype in ("float32", "bfloat16"):
            attention(AttentionCase(20, 70, 16, **{"heads": 2, **changes}, dtype=dtype), to, back, gradients)

    return probe


def all_types(to: Any, back: Any) -> None:
    for dtype in DTYPES:
        attention(AttentionCase(20, 70, 16, mask="causal", dtype=dtype), to, back)


def head_sizes(to: Any, back: Any) -> None:
    for dims in ((1, 1), (33, 20), (64, 64), (80, 128)):
        attention(AttentionCase(18, 40, *dims, dtype="bfloat16", leading=(1,)), to, back)


def decoding(to: Any, back: Any) -> None:
    case = AttentionCase(1, 2100, 32, heads=4, kv_heads=1, leading=(1,), dtype="bfloat16")
    attention(case, to, back, gradients=False)


def packed(to: Any, back: Any) -> None:
    attention(AttentionCase(40, 40, 16, layout="lhd", leading=(), mask="documents_packed"), to, back)


def dropout(to: Any, back: Any) -> None:
    attention_of(dropout_p=0.3)(to, back)


def positions(to: Any, back: Any) -> None:
    where = np.array([[0, 3, -7], [130, 5000, 2**24]])
    for options in ({}, {"layout": "split"}, {"spacing": "inclusive"}):
        found = back(tg.positional_encoding(to(where), 17, **options))
        assert np.abs(found - reference.positional_encoding(where, 17, **options)).max() < 6.1e-8


def embedding(to: Any, back: Any, **options: Any) -> None:
    rng = np.random.default_rng(0)
    ids, weight = rng.integers(0, 11, (3, 7)), rng.standard_normal((11, 24)).astype(np.float32)
    found = back(
        tg.embedding(to(ids), to(weight), **{k: to(x) if isinstance(x, np.ndarray) else x for k, x in options.items()})
    )
    kept = {"seed": None, "dropout_p": 0.0} | options
    given = {k: x for k, x in options.items() if k != "seed"}
    if kept["dropout_p"]:
        given["keep"] = reference.dropout_mask(kept["seed"], kept["dropout_p"], (*ids.shape, 24))
    assert np.abs(found - reference.embedding(ids, weight, **given)).max() < 2e-6


def fused_embedding(to: Any, back: Any) -> None:
    table = np.random.default_rng(1).standard_normal((9, 24)).astype(np.float32)
    embedding(to, back, scale=3.0, padding_idx=2, pad_output="zero", position_table=table, dropout_p=0.2, seed=5)
    embedding(to, back, position_table="sinusoidal", ignore_id=3)


def embedding_gradient(to: Any, back: Any) -> None:
    rng = np.random.default_rng(0)
    grad, ids = rng.standard_normal((3, 40, 24)).astype(np.float32), rng.integers(0, 11, (3, 40))
    exact = reference.embedding_backward(grad, ids, 11, padding_idx=4, scale=2.0)
    found = back(tg.embedding_backward(to(grad), to(ids), 11, padding_idx=4, scale=2.0))
    assert np.abs(found - exact).max() < 1e-5
    rows, sums = back(tuple(tg.embedding_backward(to(grad), to(ids), 11, padding_idx=4, scale=2.0, sparse=True)))
    assert np.array_equal(rows, np.delete(np.arange(11), 4))
    assert np.abs(sums - exact[rows]).max() < 1e-5


PROBES: dict[str, Probe] = {
    "positional_encoding": positions,
    "embedding": embedding,
    "embedding with scale, positions, dropout": fused_embedding,
    "embedding_backward, dense and sparse": embedding_gradient,
    "attention and its gradients, four float types": all_types,
    "head sizes, D != Dv": head_sizes,
    "grouped heads": attention_of(heads=4, kv_heads=2),
    "causal": attention_of(mask="causal"),
    "window": attention_of(mask="window"),
    "padding": attention_of(mask="padding_lengths"),
    "packed documents": packed,
    "prefix": attention_of(mask="prefix"),
    "two runs a row": attention_of(mask="two_runs"),
    "any bool mask": attention_of(mask="dense_whole"),
    "bias and its gradient": attention_of(bias="head_pair"),
    "softcap": attention_of(softcap=1.5),
    "ALiBi": attention_of(alibi=True),
    "sinks and their gradient": attention_of(sinks=True),
    "dropout": dropout,
    "decoding, keys split over blocks": decoding,
}
