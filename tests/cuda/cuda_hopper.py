"""Attention on a GPU of compute capability 9.0, which has kernels of its own for plain calls."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import tegula as tg
from cases import AttentionCase
from gpu_arrays import REAL, from_gpu, on_gpu
from support import numpy_dtype, same_bits
from tolerances import assert_attention_close

DTYPES = ("float16", "bfloat16")
MASKS = ("full", "causal", "window", "padding_lengths", "documents_packed", "two_runs", "nothing")

if REAL and tg.cuda.devices()[0]["capability"] != (9, 0):
    pytest.skip("the machine's GPU is another one", allow_module_level=True)


@pytest.fixture(autouse=True)
def hopper(gpu):
    """The GPU pretends from its first use on."""
    if gpu is not None:
        gpu.set(capability=90)
    return gpu


def kernels(gpu):
    return " ".join(launch.kernel for launch in gpu.launches)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask, dim, dtype, gpu):
    lengths = (150, 150) if cases.MASKS[mask].self_attention else (150, 270)
    case = AttentionCase(*lengths, dim, mask=mask, dtype=dtype, heads=2, kv_heads=1, leading=(2,))
    arrays = [on_gpu(x) for x in case.arrays()]
    if gpu is not None:
        gpu.forget()
    got = tg.attention(*arrays, **case.options(tg.masks), return_lse=True)
    assert gpu is None or "wgmma" in kernels(gpu)
    assert_attention_close(*from_gpu(got), None, cases.expected(case))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (1, 130), (129, 1), (128, 128), (65, 127)])
def test_sizes(q_len, k_len, dim, dtype):
    case = AttentionCase(q_len, k_len, dim, dtype=dtype, heads=4, kv_heads=2, leading=(1,))
    got = tg.attention(*(on_gpu(x) for x in case.arrays()), return_lse=True)
    assert_attention_close(*from_gpu(got), None, cases.expected(case))


def random_arrays(dtype, q_len, k_len, dim=64):
    rng = np.random.default_rng(q_len + k_len)
    shapes = (2, q_len, dim), (1, k_len, dim), (1, k_len, dim)
    return [rng.standard_normal((1, *shape)).astype(numpy_dtype(dtype)) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_depend_on_how_many_there_are(dtype):
    q, k, v = random_arrays(dtype, 70, 2200)
    many = from_gpu(tg.attention(*map(on_gpu, (q, k, v)), return_lse=True))
    for rows in (1, 20):
        few = from_gpu(tg.attention(*map(on_gpu, (q[:, :, -rows:], k, v)), return_lse=True))
        assert same_bits(few[0], np.ascontiguousarray(many[0][:, :, -rows:]))
        assert same_bits(few[1], np.ascontiguousarray(many[1][:, :, -rows:]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [np.nan, np.inf])
def test_a_value_reaches_who_sees_it(dtype, kind):
    q, k, v = random_arrays(dtype, 80, 80)
    clean = from_gpu(tg.attention(*map(on_gpu, (q, k, v)), mask=tg.masks.causal()))
    v[0, 0, 40, 3] = kind
    got = from_gpu(tg.attention(*map(on_gpu, (q, k, v)), mask=tg.masks.causal()))
    assert same_bits(got[:, :, :40], clean[:, :, :40])
    reached = ~np.isfinite(got[:, :, 40:].astype(np.float64))
    assert reached[..., 3].all()
    assert reached.sum() == 2 * 40


def test_other_calls_have_the_other_kernels(gpu):
    if gpu is None:
        pytest.skip("nobody counts launches there")
    q, k, v = (on_gpu(x) for x in random_arrays("bfloat16", 30, 40))
    for options in ({"softcap": 3.0}, {"dropout_p": 0.1, "seed": 1}):
        gpu.forget()
        tg.attention(q, k, v, **options)
        assert "wgmma" not in kernels(gpu)
