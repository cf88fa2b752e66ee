"""Attention as the classic tutorials build it by hand, part by part, with the values they show."""

import numpy as np
import pytest
import tegula as tg
from cases import AttentionCase
from support import DTYPES, run_python, same_bits
from tolerances import arithmetic_of, assert_attention_close, assert_close, attention_twins

m = tg.masks


def attention(*arrays, **options):
    return tg.attention(*arrays, **options, return_lse=True, return_weights=True)


@pytest.mark.isa_once
def test_t2_05_valid_positions():
    """Lengths 2 and 4 in a batch of 4: the keys a mask lets through are the positions that are real."""
    valid = m.padding([2, 4]).dense(4, 4)
    np.testing.assert_array_equal(
        np.broadcast_to(valid, (2, 1, 4, 4))[:, 0, 0].astype(int), [[1, 1, 0, 0], [1, 1, 1, 1]]
    )


def test_t2_06_pair_mask():
    """Both the query and the key must be real: a block of ones, and rows without any key."""
    mask = m.padding([2, 4], queries=[2, 4])
    pairs = np.broadcast_to(mask.dense(4, 4), (2, 1, 4, 4))[:, 0]
    np.testing.assert_array_equal(pairs[0].astype(int), [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    assert pairs[1].all()
    q, k, v = AttentionCase(q_len=4, k_len=4).arrays()
    got = attention(q, k, v, mask=mask)
    assert_attention_close(*got, attention_twins(q, k, v, visible=pairs[:, None]))
    assert (got[0][0, :, 2:] == 0).all() and np.isneginf(got[1][0, :, 2:]).all()


def test_t2_07_masked_scores():
    """-1e10 before the softmax is what a mask does, but for rows without keys: those give zero."""
    q, k, v = AttentionCase(q_len=4, k_len=4).arrays()
    pairs = np.broadcast_to(m.padding([2, 4], queries=[2, 4]).dense(4, 4), (2, 1, 4, 4))
    by_hand = tg.attention(q, k, v, bias=np.where(pairs, 0, -1e10).astype(np.float32))
    ours = tg.attention(q, k, v, mask=pairs)
    real = np.broadcast_to(pairs.any(-1), ours.shape[:-1])
    twins = attention_twins(q, k, v, visible=pairs)
    assert_close(by_hand[real], twins.exact.out[real], [x.out[real] for x in twins.plain])
    assert (ours[~real] == 0).all()
    assert (by_hand[~real] != 0).all()


@pytest.mark.isa_once
def test_t3_03_sequence_mask():
    """Additive: -inf strictly above the diagonal, 0 elsewhere."""
    additive = m.causal().additive(5, 5, np.float32)
    expect = np.where(np.triu(np.ones((5, 5), bool), 1), -np.inf, 0).astype(np.float32)
    np.testing.assert_array_equal(np.broadcast_to(additive, (1, 1, 5, 5))[0, 0], expect)


@pytest.mark.parametrize("length", [5, 70])
def test_t3_03_sequence_mask_as_a_bias(length):
    """The additive form given as a bias is the mask."""
    q, k, v = AttentionCase(q_len=length, k_len=length).arrays()
    twins = attention_twins(q, k, v, visible=np.tril(np.ones((length, length), bool)))
    additive = m.causal().additive(length, length, np.float32)
    assert_attention_close(*attention(q, k, v, bias=additive), twins)
    assert_attention_close(*attention(q, k, v, mask=m.causal()), twins)


def test_t3_04_padding_mask():
    """ids != pad, one bool for every key of a sentence."""
    ids = np.array([[6, 4, 0, 0, 0], [6, 4, 1, 7, 0]])
    q, k, v = AttentionCase(q_len=5, k_len=5).arrays()
    visible = (ids != 0)[:, None, None, :]
    got = attention(q, k, v, mask=m.padding(keep=ids != 0))
    assert_attention_close(*got, attention_twins(q, k, v, visible=visible))


def test_t3_05_causal_and_padding_combined():
    """float mask | bool mask is what the tutorial writes and means: not the future, and not the padding."""
    ids = np.array([[6, 4, 0, 0, 0], [6, 4, 1, 7, 0]])
    q, k, v = AttentionCase(q_len=5, k_len=5).arrays()
    visible = (ids != 0)[:, None, None, :] & np.tril(np.ones((5, 5), bool))
    twins = attention_twins(q, k, v, visible=visible)
    keep = m.padding(keep=ids != 0)
    assert_attention_close(*attention(q, k, v, mask=m.causal() & keep), twins)
    additive = m.causal().additive(5, 5, np.float32)
    assert_attention_close(*attention(q, k, v, mask=keep, bias=additive), twins)


def test_t3_06_local_window():
    """Query i sees keys i - w//2 .. i + w//2 - 1: for 8 keys and w 4, the counts 2 3 4 4 4 4 4 3."""
    mask = m.window(2, 1)
    visible = np.broadcast_to(mask.dense(8, 8), (1, 1, 8, 8))[0, 0]
    np.testing.assert_array_equal(visible.sum(-1), [2, 3, 4, 4, 4, 4, 4, 3])
    q, k, v = AttentionCase(q_len=8, k_len=8).arrays()
    got = attention(q, k, v, mask=mask)
    np.testing.assert_array_equal((got[2] > 0).sum(-1), np.broadcast_to(visible.sum(-1), (2, 2, 8)))
    assert_attention_close(*got, attention_twins(q, k, v, visible=visible))


def test_t3_07_zero_means_hide():
    """The tutorials fill `mask == 0` with -1e9; the mask is the comparison, whatever the type was."""
    numbers = np.array([[1, 0, 2], [1, 1, 0], [3, 1, 1]])
    q, k, v = AttentionCase(q_len=3, k_len=3).arrays()
    twins = attention_twins(q, k, v, visible=numbers != 0)
    assert_attention_close(*attention(q, k, v, mask=numbers != 0), twins)
    filled = np.where(numbers == 0, -1e9, 0).astype(np.float32)
    assert_attention_close(*attention(q, k, v, bias=filled)[:2], None, twins)
    with pytest.raises(TypeError, match="mask"):
        tg.attention(q, k, v, mask=numbers)


@pytest.mark.parametrize("dtype", DTYPES)
def test_t3_09_scaled_dot_product(dtype):
    """softmax(Q K^T / sqrt(d_k)) V, in one expression."""
    q, k, v = AttentionCase(dtype=dtype).arrays()
    wide = [x.astype(np.float64) for x in (q, k, v)]
    scores = np.exp(wide[0] @ wide[1].swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    weights = scores / scores.sum(-1, keepdims=True)
    twins = attention_twins(q, k, v)
    np.testing.assert_allclose(twins.exact.out.astype(float), weights @ wide[2], rtol=1e-12, atol=1e-12)
    assert_attention_close(*attention(q, k, v), twins)


@pytest.mark.parametrize("dtype", DTYPES)
def test_t3_10_cross_attention(dtype):
    """Queries of the decoder, keys and values of the encoder with the encoder's padding."""
    q, k, v = AttentionCase(q_len=11, k_len=70, leading=(3,), heads=4, dtype=dtype).arrays()
    lengths = [70, 33, 1]
    visible = (np.arange(70) < np.array(lengths)[:, None])[:, None, None]
    got = attention(q, k, v, mask=m.padding(lengths))
    assert_attention_close(*got, attention_twins(q, k, v, visible=visible))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [1, 16, 50])
def test_t3_11_chunked_attention(chunk, dtype):
    """Queries taken some at a time give the bits of the whole, also causally."""
    n = 131
    q, k, v = AttentionCase(q_len=n, k_len=n, head_dim=24, leading=(1,), dtype=dtype).arrays()
    whole, causal = tg.attention(q, k, v), tg.attention(q, k, v, mask=m.causal())
    starts = range(0, n, chunk)
    parts = [tg.attention(q[:, :, i : i + chunk], k, v) for i in starts]
    assert same_bits(np.concatenate(parts, axis=2), whole)
    parts = [tg.attention(q[:, :, i : i + chunk], k, v, mask=m.causal(offset=i)) for i in starts]
    assert same_bits(np.concatenate(parts, axis=2), causal)


def test_t3_12_local_attention_reads_its_window_only(isa):
    """Keys and values that no query sees lie on pages that cannot be read."""
    run_python(
        f"""
    import ctypes, mmap
    import numpy as np, tegula as tg
    tg.set_isa({isa!r})
    n, dim, readable = 4096, 32, 1024
    libc = ctypes.CDLL(None, use_errno=True)
    def half_hidden():
        block = mmap.mmap(-1, n * dim * 4)
        array = np.frombuffer(block, np.float32).reshape(1, 1, n, dim)
        array[:, :, :readable] = np.random.default_rng(0).standard_normal((readable, dim))
        at = ctypes.c_void_p(array[:, :, readable:].ctypes.data)
        assert libc.mprotect(at, ctypes.c_size_t((n - readable) * dim * 4), 0) == 0
        return array
    q, k, v = np.ones((1, 1, 900, dim), np.float32), half_hidden(), half_hidden()
    mask = tg.masks.window(32, 31, offset=0)
    out = tg.attention(q, k, v, mask=mask)
    few = tg.attention(q[:, :, :2], k, v, mask=mask)
    near = tg.attention(q, k[:, :, :readable], v[:, :, :readable], mask=mask)
    assert np.array_equal(out, near) and np.array_equal(few, near[:, :, :2])
    """
    )


@pytest.mark.isa_once
def test_t3_13_lengths_of_keys_and_values_agree():
    q, k, v = AttentionCase(q_len=4, k_len=6).arrays()
    with pytest.raises(ValueError, match=r"\(2, 2, 5, 16\).*\(2, 2, 6, 16\)|\(2, 2, 6, 16\).*\(2, 2, 5, 16\)"):
        tg.attention(q, k, v[:, :, :5])


def test_t3_13_a_missing_batch_axis_is_no_difference():
    q, k, v = AttentionCase(leading=(1,), heads=3).arrays()
    assert same_bits(tg.attention(q[0], k[0], v[0]), tg.attention(q, k, v)[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_t3_14_mixed_precision(dtype):
    """16-bit inputs, float32 scores and sums, one rounding at the end: as near as that allows."""
    case = AttentionCase(q_len=64, k_len=700, head_dim=64, leading=(1,), dtype=dtype)
    q, k, v = case.arrays()
    q = q * np.asarray(4, q.dtype)
    out, lse = tg.attention(q, k, v, return_lse=True)
    assert out.dtype == q.dtype and lse.dtype == arithmetic_of(q.dtype) == np.float32
    twins = attention_twins(q, k, v)
    assert_attention_close(out, lse, None, twins)
    # Scores and sums in 16 bits, as autocast-free half precision computes them, are far worse.
    scores = (q @ k.swapaxes(-1, -2)).astype(q.dtype) * np.asarray(1 / 8, q.dtype)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    narrow = (weights / weights.sum(-1, keepdims=True)) @ v
    error, careless = (np.abs(x.astype(float) - twins.exact.out).max() for x in (out, narrow))
    assert error < careless / 2
