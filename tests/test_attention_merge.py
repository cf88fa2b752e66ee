"""Two partial results over disjoint keys join to the result over all of them."""

import numpy as np
import pytest
import reference
import tegula as tg
from cases import AttentionCase
from support import DTYPES, draw, same_bits
from tolerances import arithmetic_of, assert_close, attention_twins, epsilon


def part(out, lse, dtype="float32"):
    return np.asarray(out, dtype), np.asarray(lse, np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 17, 33), (5, 8), (2, 2, 3, 16, 64)])
def test_merge_is_the_twin(shape, dtype):
    rng = np.random.default_rng(0)
    outs = [draw(rng, shape, dtype) for _ in range(2)]
    lses = [3 * draw(rng, shape[:-1], arithmetic_of(outs[0].dtype)) for _ in range(2)]
    arguments = outs[0], lses[0], outs[1], lses[1]
    out, lse = tg.merge_attention(*arguments)
    exact = reference.merge_attention(*arguments, arithmetic=np.longdouble, storage=np.longdouble)
    plain = reference.merge_attention(*arguments, arithmetic=arithmetic_of(out.dtype), storage=outs[0].dtype.type)
    assert_close(out, exact[0], plain[0], "out")
    assert_close(lse, exact[1], plain[1], "lse", unit=1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cut", [1, 16, 69])
def test_attention_over_two_halves_of_the_keys(cut, dtype):
    q, k, v = AttentionCase(dtype=dtype).arrays()
    parts, plain_parts = [], []
    for keys in (np.s_[:, :, :cut], np.s_[:, :, cut:]):
        parts += tg.attention(q, k[keys], v[keys], return_lse=True)
        plain_parts.append(attention_twins(q, k[keys], v[keys]).plain)
    out, lse = tg.merge_attention(*parts)
    exact = attention_twins(q, k, v).exact
    plain = [
        reference.merge_attention(*left[:2], *right[:2], arithmetic=arithmetic_of(q.dtype), storage=q.dtype.type)
        for left, right in zip(*plain_parts, strict=True)
    ]
    # The halves are rounded at their own size: that of single values.
    assert_close(out, exact.out, [x[0] for x in plain], "out", unit=np.abs(v.astype(float)).max())
    assert_close(lse, exact.lse, [x[1] for x in plain], "lse", unit=1.0)


def test_a_part_without_keys_changes_nothing():
    rng = np.random.default_rng(0)
    out, lse = part(draw(rng, (2, 3, 5, 4)), draw(rng, (2, 3, 5)))
    nothing = part(np.zeros((2, 3, 5, 4)), np.full((2, 3, 5), -np.inf))
    for merged in (tg.merge_attention(out, lse, *nothing), tg.merge_attention(*nothing, out, lse)):
        np.testing.assert_array_equal(merged[0], out)
        np.testing.assert_array_equal(merged[1], lse)


def test_two_parts_without_keys_stay_without():
    nothing = part(np.zeros((2, 3, 5, 4)), np.full((2, 3, 5), -np.inf))
    out, lse = tg.merge_attention(*nothing, *nothing)
    assert (out == 0).all()
    assert np.isneginf(lse).all()


def test_merging_does_not_overflow():
    """exp(lse) of either part is out of range; only their difference counts."""
    one, two = part([[1.0, 2.0]], [800.0]), part([[3.0, 6.0]], [800.0])
    out, lse = tg.merge_attention(*one, *two)
    np.testing.assert_array_equal(out, [[2.0, 4.0]])
    np.testing.assert_allclose(lse, [800 + np.log(2)], rtol=epsilon(lse.dtype))
    out, lse = tg.merge_attention(*one, *part([[5.0, 5.0]], [-800.0]))
    np.testing.assert_array_equal(out, one[0])
    np.testing.assert_array_equal(lse, one[1])


def test_merging_is_symmetric_and_takes_any_strides():
    rng = np.random.default_rng(0)
    out1, out2 = (draw(rng, (7, 6, 5, 4)).T for _ in range(2))
    lse1, lse2 = draw(rng, (6, 5, 4)).T[:, ::-1], np.broadcast_to(draw(rng, (6,)), (4, 5, 6))
    forth = tg.merge_attention(out1, lse1, out2, lse2)
    back = tg.merge_attention(out2, lse2, out1, lse1)
    packed = tg.merge_attention(*(x.copy() for x in (out1, lse1, out2, lse2)))
    for a, b, c in zip(forth, back, packed, strict=True):
        assert same_bits(a, b) and same_bits(a, c)


@pytest.mark.isa_once
@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        ({"out2": np.zeros((2, 3, 5), "f4")}, ValueError, ["out2", r"\(2, 3, 5\)", r"\(2, 3, 4\)"]),
        ({"lse1": np.zeros((2, 4), "f4")}, ValueError, ["lse1", r"\(2, 4\)", r"\(2, 3\)"]),
        ({"lse2": np.zeros((2, 3, 1), "f4")}, ValueError, ["lse2", r"\(2, 3, 1\)"]),
        ({"out2": np.zeros((2, 3, 4), "f8")}, TypeError, ["out2", "float64"]),
        ({"out1": np.zeros((2, 3, 4), "i4")}, TypeError, ["out1", "int32"]),
        ({"lse1": np.zeros((2, 3), "f2")}, TypeError, ["lse1", "float16"]),
        ({"lse2": None}, TypeError, ["lse2"]),
        ({"out1": np.zeros((2, 3, 4), object)}, TypeError, ["out1", "object"]),
    ],
)
def test_bad_parts_are_named(change, error, names):
    good = {
        "out1": np.ones((2, 3, 4), "f4"), "lse1": np.zeros((2, 3), "f4"),
        "out2": np.ones((2, 3, 4), "f4"), "lse2": np.zeros((2, 3), "f4"),
    }  # fmt: skip
    with pytest.raises(error) as caught:
        tg.merge_attention(**(good | change))
    for name in names:
        caught.match(name)
    out, lse = tg.merge_attention(**good)
    assert (out == 1).all()
    np.testing.assert_allclose(lse, np.log(2), rtol=epsilon(lse.dtype))


@pytest.mark.parametrize("dtype", ["int32", "complex64", object])
def test_only_floats_are_merged(dtype):
    out, lse = np.ones((1, 2, 3), dtype), np.zeros((1, 2), np.float32)
    with pytest.raises(TypeError, match="float64, float32, float16 or bfloat16"):
        tg.merge_attention(out, lse, out, lse)
