"""The twins themselves: against torch in float64, and by hand where torch has no such option."""

import math

import numpy as np
import pytest
import reference
from support import draw
from tolerances import assert_close, attention_twins

pytestmark = pytest.mark.isa_once


def arrays(batch=2, heads=3, kv_heads=3, q_len=5, k_len=7, head_dim=4, value_dim=6):
    rng = np.random.default_rng(0)
    shapes = (heads, q_len, head_dim), (kv_heads, k_len, head_dim), (kv_heads, k_len, value_dim)
    return [draw(rng, (batch, *shape), "float64") for shape in shapes]


def torch_attention(q, k, v, **options):
    torch = pytest.importorskip("torch")
    q, k, v = map(torch.from_numpy, (q, k, v))
    options = {n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options).numpy()


def test_attention_is_torchs_scaled_dot_product_attention():
    q, k, v = arrays()
    np.testing.assert_allclose(reference.attention(q, k, v).out, torch_attention(q, k, v))


def test_attention_under_a_mask_with_an_empty_row():
    q, k, v = arrays()
    visible = np.random.default_rng(1).random((2, 1, 5, 7)) < 0.5
    visible[:, :, 3] = False
    got = reference.attention(q, k, v, visible=visible, scale=0.3)
    np.testing.assert_allclose(got.out, torch_attention(q, k, v, attn_mask=visible, scale=0.3))
    assert (got.out[:, :, 3] == 0).all()
    assert np.isneginf(got.lse[:, :, 3]).all()


def test_attention_with_a_bias():
    q, k, v = arrays()
    bias = draw(np.random.default_rng(1), (1, 3, 5, 7), "float64")
    bias[..., 2] = -np.inf
    np.testing.assert_allclose(reference.attention(q, k, v, bias=bias).out, torch_attention(q, k, v, attn_mask=bias))


def test_attention_with_grouped_heads():
    q, k, v = arrays(heads=6, kv_heads=2)
    np.testing.assert_allclose(reference.attention(q, k, v).out, torch_attention(q, k, v, enable_gqa=True))


def test_attention_of_the_whole_formula_in_one_expression():
    q, k, v = arrays()
    slopes, sinks = np.array([0.5, 0.25, 0.125]), np.array([0.1, -1.0, 2.0])
    keep = np.random.default_rng(1).random((2, 3, 5, 7)) < 0.7
    got = reference.attention(q, k, v, softcap=1.5, alibi=slopes, sinks=sinks, keep=keep, dropout_p=0.3)
    distance = np.arange(7) - np.arange(5)[:, None] - 2
    scores = 1.5 * np.tanh(q @ k.swapaxes(-1, -2) / math.sqrt(4) / 1.5)
    exponentials = np.exp(scores + slopes[:, None, None] * distance)
    total = exponentials.sum(-1) + np.exp(sinks)[:, None]
    np.testing.assert_allclose(got.lse, np.log(total))
    np.testing.assert_allclose(got.weights, exponentials / total[..., None])
    np.testing.assert_allclose(got.out, (got.weights * keep / 0.7) @ v)


@pytest.mark.parametrize("layout", ["blhd", "lhd"])
def test_layouts_are_transposed_views_of_one_another(layout):
    q, k, v = arrays(batch=1 if layout == "lhd" else 2)
    expected = reference.attention(q, k, v)
    q, k, v = (x.swapaxes(-3, -2) for x in (q, k, v))
    if layout == "lhd":
        q, k, v = q[0], k[0], v[0]
    got = reference.attention(q, k, v, layout=layout)
    out = got.out.swapaxes(-3, -2)
    np.testing.assert_array_equal(out, expected.out.reshape(out.shape))
    np.testing.assert_array_equal(got.lse, expected.lse.reshape(got.lse.shape))


def test_a_matrix_is_one_head():
    q, k, v = arrays(batch=1, heads=1, kv_heads=1)
    whole, single = reference.attention(q, k, v), reference.attention(q[0, 0], k[0, 0], v[0, 0])
    for got, expected in zip(single, whole, strict=True):
        np.testing.assert_array_equal(got, expected[0, 0])


def test_a_masked_key_does_not_exist():
    q, k, v = arrays()
    visible = np.arange(7) < 5
    expected = reference.attention(q, k[:, :, :5], v[:, :, :5])
    k[:, :, 5:], v[:, :, 5:] = np.nan, np.inf
    np.testing.assert_array_equal(reference.attention(q, k, v, visible=visible).out, expected.out)


def test_merging_two_halves_gives_the_whole():
    q, k, v = arrays()
    whole = reference.attention(q, k, v)
    left = reference.attention(q, k[:, :, :3], v[:, :, :3])
    right = reference.attention(q, k[:, :, 3:], v[:, :, 3:])
    out, lse = reference.merge_attention(left.out, left.lse, right.out, right.lse)
    np.testing.assert_allclose(out, whole.out)
    np.testing.assert_allclose(lse, whole.lse)


def test_the_tolerance_knows_a_worse_exponential():
    """An exponential with a relative error of 2e-6, 16 float32 roundings, has to be caught."""
    q, k, v = (x.astype(np.float32) for x in arrays())
    twins = attention_twins(q, k, v)
    plain = [answer.out for answer in twins.plain]
    assert_close(plain[0], twins.exact.out, plain)
    worse = twins.exact.weights * (1 + 2e-6 * np.where(np.arange(7) % 2, 1, -1))
    out = (worse / worse.sum(-1, keepdims=True)) @ v.astype(np.float64)
    with pytest.raises(AssertionError, match="off by"):
        assert_close(out.astype(np.float32), twins.exact.out, plain)
    with pytest.raises(AssertionError, match="off by nan"):
        assert_close(np.full_like(plain[0], np.nan), twins.exact.out, plain)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(counter, key, words):
    counter, key = np.array(counter, np.uint64), np.array(key, np.uint64)
    assert " ".join(f"{word:08x}" for word in reference.philox(counter, key)) == words


def test_dropout_mask_by_hand():
    """Element (lead, row, column) is word column % 4 of counter (column // 4, row, lead)."""
    seed, p = 5 + (7 << 32), 0.25
    keep = reference.dropout_mask(seed, p, (2, 3, 4, 6))
    counter, key = np.array([1, 2, 5, 0], np.uint64), np.array([5, 7], np.uint64)
    words = reference.philox(counter, key)
    assert keep[1, 2, 2, 5] == (int(words[1]) >= p * 2**32)
    assert keep.shape == (2, 3, 4, 6)
    assert reference.dropout_mask(seed, 0.0, (9,)).all()
    assert not reference.dropout_mask(seed, 1.0, (9,)).any()


def test_positional_encoding_by_hand():
    table = reference.positional_encoding(4, 6)
    np.testing.assert_allclose(
        table,
        [
            [0, 1, 0, 1, 0, 1],
            [0.8415, 0.5403, 0.0464, 0.9989, 0.0022, 1],
            [0.9093, -0.4161, 0.0927, 0.9957, 0.0043, 1],
            [0.1411, -0.9900, 0.1388, 0.9903, 0.0065, 1],
        ],
        atol=5e-5,
    )
    split = reference.positional_encoding(4, 6, layout="split")
    np.testing.assert_array_equal(split[:, :3], table[:, 0::2])
    np.testing.assert_array_equal(split[:, 3:], table[:, 1::2])
    ends = reference.positional_encoding(np.array([1.0]), 4, layout="split", spacing="inclusive")
    np.testing.assert_allclose(ends, [[math.sin(1), math.sin(1e-4), math.cos(1), math.cos(1e-4)]])


def test_embedding_by_hand():
    weight = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    got = reference.embedding(
        [[2, 0, -100]], weight, padding_idx=0, pad_output="zero", ignore_id=-100, scale=2.0,
        position_table=np.array([[0.5, 0.25], [9, 9], [9, 9]]),
    )  # fmt: skip
    np.testing.assert_array_equal(got, [[[10.5, 12.25], [0, 0], [0, 0]]])


def test_embedding_backward_by_hand():
    grad = np.array([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 10.0]]])
    keep = np.array([[[True, False], [True, True], [True, True], [True, True], [True, True]]])
    options = {"padding_idx": -4, "ignore_id": -100, "scale": 3.0, "keep": keep, "dropout_p": 0.5}
    got = reference.embedding_backward(grad, [[2, 0, -100, 2, 3]], 4, **options)
    np.testing.assert_array_equal(got, [[0, 0], [0, 0], [6 * 8, 6 * 8], [54, 60]])
