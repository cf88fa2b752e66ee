"""The gradients of attention are those of the float64 twin, over the whole list of cases."""

import numpy as np
import pytest
import tegula as tg
from cases import ATTENTION_CASES, MASKS, AttentionCase, expected_gradients
from support import DTYPES, all_same_bits, backward, draw, numpy_dtype, poisoned, same_bits
from tolerances import assert_gradients_close, epsilon, gradient_twins


def drawn(shapes, dtype="float32"):
    """q, k, v and a gradient for the result."""
    rng = np.random.default_rng(0)
    q, k, v = (draw(rng, shape, dtype) for shape in shapes)
    return q, k, v, draw(rng, (*q.shape[:-1], v.shape[-1]), dtype)


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=str)
def test_case(case):
    q, k, v = case.arrays()
    options = case.options(tg.masks)
    out, lse = tg.attention(q, k, v, **options, return_lse=True)
    grads = tuple(poisoned(x.shape, x.dtype) for x in (q, k, v))
    got = tg.attention_backward(case.grad_out(), q, k, v, out, lse, **options, grads=grads)
    assert all(x is y for x, y in zip(got, grads, strict=False))
    assert_gradients_close(got, expected_gradients(case), options)


# ---------------------------------------------------------------------------------------------------
# What is returned


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_have_the_shape_and_type_of_what_they_belong_to(dtype):
    case = AttentionCase(heads=4, kv_heads=2, value_dim=5, bias="head_pair", sinks=True, dtype=dtype)
    q, k, v = case.arrays()
    options = case.options(tg.masks)
    dq, dk, dv, dbias, dsinks = backward(case.grad_out(), q, k, v, **options)
    for grad, x in ((dq, q), (dk, k), (dv, v), (dbias, options["bias"])):
        assert type(grad) is np.ndarray
        assert (grad.shape, grad.dtype) == (x.shape, x.dtype)
        assert grad.flags.c_contiguous and grad.flags.writeable
    assert dsinks.shape == (4,) and dsinks.dtype.kind == "f"


def test_what_was_not_given_has_no_gradient():
    case = AttentionCase(bias="pair", sinks=True)
    arrays, options = case.arrays(), case.options(tg.masks)
    for given in ((), ("bias",), ("sinks",), ("bias", "sinks")):
        got = backward(case.grad_out(), *arrays, **{name: options[name] for name in given})
        assert [x.shape for x in got[3:]] == [options[name].shape for name in given]


@pytest.mark.parametrize("layout", ["blhd", "lhd"])
def test_layouts_are_transposed_views_of_one_another(layout):
    case = AttentionCase(35, 35, 24, 17, heads=4, kv_heads=2, leading=(1,), sinks=True)
    q, k, v = case.arrays()
    options = {"mask": tg.masks.documents(cu_seqlens=[0, 20, 35]), "sinks": case.options(tg.masks)["sinks"]}
    expect = backward(case.grad_out(), q, k, v, **options)
    moved = [x.swapaxes(1, 2) if layout == "blhd" else x[0].swapaxes(0, 1) for x in (case.grad_out(), q, k, v)]
    got = backward(*moved, layout=layout, **options)
    for x, y in zip(got[:3], expect[:3], strict=True):
        assert x.flags.c_contiguous
        assert same_bits(x.swapaxes(-3, -2).reshape(y.shape), y)
    assert same_bits(got[3], expect[3])


def test_a_matrix_is_one_head():
    case = AttentionCase(heads=1, leading=(1,), value_dim=5)
    arrays = [case.grad_out(), *case.arrays()]
    for one, four in zip(backward(*(x[0, 0] for x in arrays)), backward(*arrays), strict=True):
        assert same_bits(one, four[0, 0])


def test_several_leading_axes_count_as_their_product():
    case = AttentionCase(leading=(2, 3), heads=2, dropout_p=0.3)
    arrays, options = [case.grad_out(), *case.arrays()], {"dropout_p": 0.3, "seed": 5}
    flat = backward(*(x.reshape(6, *x.shape[2:]) for x in arrays), **options)
    got = backward(*arrays, **options)
    assert all_same_bits(got, [x.reshape(y.shape) for x, y in zip(flat, arrays[1:], strict=True)])


# ---------------------------------------------------------------------------------------------------
# Sizes

SIZES = {"B": 2, "H": 4, "G": 2, "Lq": 3, "Lk": 5, "D": 6, "Dv": 7}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zero", [("B",), ("H",), ("H", "G"), ("Lq",), ("Lk",), ("D",), ("Dv",), tuple(SIZES)])
def test_any_axis_may_be_empty(zero, dtype):
    n = {**SIZES, **dict.fromkeys(zero, 0)}
    shapes = [(n["B"], n["H"], n["Lq"], n["D"]), (n["B"], n["G"], n["Lk"], n["D"]), (n["B"], n["G"], n["Lk"], n["Dv"])]
    q, k, v, grad_out = drawn(shapes, dtype)
    options = {
        "bias": draw(np.random.default_rng(1), (n["H"], 1, n["Lk"]), dtype),
        "sinks": np.linspace(-1, 1, n["H"]),
    }
    for given in ({}, options):
        twins = gradient_twins(grad_out, q, k, v, **given)
        assert_gradients_close(backward(grad_out, q, k, v, **given), twins, given)


def small_integers(*shape):
    """Values that every type holds exactly and whose columns and rows all differ."""
    count = np.arange(np.prod(shape)) * 7 + np.arange(np.prod(shape)) // 11
    return (count % 11 - 5).reshape(shape).astype(float)


def gradients_of_even_weights(grad_out, k, v):
    """dq, dk, dv in float64 where q is 0, so that every key weighs the same; all heads share one k and v."""
    weight, scale = 1 / k.shape[-2], k.shape[-1] ** -0.5
    of_weights = grad_out @ v.swapaxes(-1, -2)
    dscores = weight * (of_weights - of_weights.mean(-1, keepdims=True))
    dv = np.broadcast_to(weight * grad_out.sum((1, 2))[:, None, None], v.shape)
    return scale * dscores @ k, np.zeros_like(k), dv


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", ["Lq", "Lk", "Dv", "D"])
@pytest.mark.parametrize("heads", [1, 6])
def test_every_size_up_to_200(heads, axis, dtype):
    """Nothing is left out or written twice, wherever the tiles end."""
    for n in range(1, 200):
        size = {"Lq": 3, "Lk": 5, "D": 2, "Dv": 3, axis: n}
        shapes = (heads, size["Lq"], size["D"]), (1, size["Lk"], size["D"]), (1, size["Lk"], size["Dv"])
        q, k, v = (np.zeros((1, *shapes[0])), *(small_integers(1, *shape) for shape in shapes[1:]))
        grad_out = small_integers(1, heads, size["Lq"], size["Dv"])
        expect = gradients_of_even_weights(grad_out, k, v)
        got = backward(*(x.astype(numpy_dtype(dtype)) for x in (grad_out, q, k, v)))
        # Roundings are those of the terms of a sum; `out`, of the type of the arrays, is among them.
        of_weights = np.abs(grad_out) @ np.abs(v.swapaxes(-1, -2))
        terms = (
            of_weights.mean(-1).max() * np.abs(k).max() * size["D"] ** -0.5,
            0.0,
            np.abs(grad_out).sum() / size["Lk"],
        )
        for x, y, largest in zip(got, expect, terms, strict=True):
            error = np.abs(x.astype(float) - y).max()
            assert error <= 2 * epsilon(x.dtype) * (np.abs(y).max() + largest), n


def test_no_head_size_means_even_weights_and_empty_gradients():
    q, k, v = np.empty((1, 1, 4, 0), "f4"), np.empty((1, 1, 6, 0), "f4"), np.eye(6, dtype="f4")[None, None]
    grad_out = np.ones((1, 1, 4, 6), "f4")
    dq, dk, dv = backward(grad_out, q, k, v, mask=tg.masks.causal(align="top_left"))
    assert dq.shape == q.shape and dk.shape == k.shape
    weights = np.tril(np.ones((4, 6))) / np.arange(1, 5)[:, None]
    expect = np.broadcast_to(weights.sum(0)[:, None], (6, 6))
    np.testing.assert_allclose(dv[0, 0], expect, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [1, 3, 7, 12, 100])
def test_c53_nothing_has_to_be_aligned(head_dim, dtype):
    """43 keys, an odd head size, and a bias whose rows all lie on one another."""
    case = AttentionCase(29, 43, head_dim, heads=3, leading=(1,), bias="key", dtype=dtype)
    options = case.options(tg.masks)
    options["bias"] = np.broadcast_to(options["bias"], tuple(case.dims))
    *got, dbias = backward(case.grad_out(), *case.arrays(), **options)
    twins = expected_gradients(case)
    assert_gradients_close((*got, dbias.astype(np.float64).sum((0, 1, 2)).astype(dbias.dtype)), twins, options)


# ---------------------------------------------------------------------------------------------------
# Against torch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["full", "causal_top_left", "dense_whole"])
def test_torch_in_float64_is_as_good_a_twin(mask, dtype):
    torch = pytest.importorskip("torch")
    case = AttentionCase(q_len=50, k_len=130, head_dim=32, heads=4, leading=(1,), mask=mask, dtype=dtype)
    arrays = [*case.arrays(), case.grad_out()]
    visible = np.broadcast_to(MASKS[mask].visible(case.dims), tuple(case.dims)).copy()
    q, k, v, grad_out = (torch.from_numpy(x.astype(np.float64)) for x in arrays)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=torch.from_numpy(visible))
        theirs = torch.autograd.grad(out, leaves, grad_out)
    twins = expected_gradients(case)
    for name, x in zip(("dq", "dk", "dv"), theirs, strict=True):
        np.testing.assert_allclose(x.numpy(), getattr(twins.exact, name).astype(float), rtol=1e-9, atol=1e-12)
    options = case.options(tg.masks)
    assert_gradients_close(backward(arrays[3], *arrays[:3], **options), twins, options)


# ---------------------------------------------------------------------------------------------------
# What the gradients are made of


@pytest.mark.parametrize("name", list(MASKS))
def test_a_mask_is_its_own_dense_form(name):
    """The structured form and the array it stands for have the same gradients."""
    n = 35 if MASKS[name].self_attention else 50
    case = AttentionCase(q_len=35, k_len=n, mask=name, heads=2)
    arrays = [case.grad_out(), *case.arrays()]
    visible = np.broadcast_to(MASKS[name].visible(case.dims), tuple(case.dims)).copy()
    for mask in (MASKS[name].build(tg.masks, case.dims), visible):
        assert_gradients_close(backward(*arrays, mask=mask), expected_gradients(case), {})


def test_a_mask_per_batch_entry_carries_one_axis_or_all_the_leading_ones():
    case = AttentionCase(leading=(2, 3))
    arrays, numbers = [case.grad_out(), *case.arrays()], np.array([70, 0, 3, 64, 65, 1])
    one, all_axes = (tg.masks.padding(x) for x in (numbers, numbers.reshape(2, 3)))
    assert all_same_bits(backward(*arrays, mask=one), backward(*arrays, mask=all_axes))


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_cut_anywhere_add_up_to_the_whole(dtype):
    """Each part of the keys, given `out` and `lse` of all of them, yields its share of the gradients."""
    case = AttentionCase(q_len=67, k_len=130, dtype=dtype)
    q, k, v = case.arrays()
    out, lse = tg.attention(q, k, v, return_lse=True)
    parts = [
        tg.attention_backward(case.grad_out(), q, k[:, :, s], v[:, :, s], out, lse) for s in (np.s_[:50], np.s_[50:])
    ]
    dq = (parts[0][0].astype(np.float64) + parts[1][0].astype(np.float64)).astype(q.dtype)
    dk, dv = (np.concatenate([part[i] for part in parts], axis=2) for i in (1, 2))
    twins = expected_gradients(case)
    assert_gradients_close((twins.plain[0].dq, dk, dv), twins, {})
    # Both parts and their sum are rounded.
    error = np.abs(dq.astype(float) - twins.exact.dq.astype(float)).max()
    plain = max(np.abs(x.dq.astype(float) - twins.exact.dq.astype(float)).max() for x in twins.plain)
    largest = max(np.abs(part[0].astype(float)).max() for part in parts)
    assert error <= 2 * plain + 2 * epsilon(q.dtype) * largest


def test_scale_zero_leaves_the_values_alone():
    case = AttentionCase(scale=0.0)
    dq, dk, dv = backward(case.grad_out(), *case.arrays(), scale=0.0)
    assert (dq == 0).all() and (dk == 0).all() and (dv != 0).all()


def test_scale_defaults_to_one_over_the_root_of_the_head_size():
    case = AttentionCase(head_dim=16)
    arrays = [case.grad_out(), *case.arrays()]
    assert all_same_bits(backward(*arrays), backward(*arrays, scale=0.25))


def test_softcap_bends_the_gradient_of_a_score():
    """One query, two keys with scores 0 and 10; the cap 2 leaves 1 - tanh(5)^2 of the second one's gradient."""
    q, k, v = np.array([[1.0]], "f4"), np.array([[0.5], [10.0]], "f4"), np.array([[1.0], [3.0]], "f4")
    grad_out = np.array([[1.0]], "f4")
    dq, dk, _ = backward(grad_out, q, k, v, softcap=2.0)
    bent = np.tanh(k[:, 0].astype(float) / 2)
    weights = np.exp(2 * bent) / np.exp(2 * bent).sum()
    dscores = weights * (v[:, 0] - weights @ v[:, 0]) * (1 - bent**2)
    np.testing.assert_allclose(dk[:, 0], dscores, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(dq[0, 0], dscores @ k[:, 0], rtol=1e-4)


def test_gradients_are_linear_in_grad_out():
    """Twice the gradient of the result is twice every gradient, to the bit."""
    case = AttentionCase(mask="causal", bias="pair", sinks=True)
    arrays, options = case.arrays(), case.options(tg.masks)
    one, two = (backward(case.grad_out() * factor, *arrays, **options) for factor in (np.float32(1), np.float32(2)))
    assert all_same_bits([2 * x for x in one], two)


def test_zero_grad_out_gives_zeros():
    case = AttentionCase(mask="causal", bias="pair", sinks=True, dropout_p=0.2)
    for x in backward(np.zeros_like(case.grad_out()), *case.arrays(), **case.options(tg.masks)):
        assert (x == 0).all()


def test_a_step_downhill():
    """A small step against the gradients lowers the loss by what they promise."""
    case = AttentionCase(mask="sliding", bias="head_pair", sinks=True, softcap=3.0, dtype="float64")
    q, k, v = case.arrays()
    options, grad_out, step = case.options(tg.masks), case.grad_out(), 1e-6
    sinks = options["sinks"] = options["sinks"].astype(np.float64)
    grads = backward(grad_out, q, k, v, **options)
    before = (grad_out * tg.attention(q, k, v, **options)).sum()
    moved = [x - step * g for x, g in zip((q, k, v, options["bias"], sinks), grads, strict=True)]
    after = (grad_out * tg.attention(*moved[:3], **options | {"bias": moved[3], "sinks": moved[4]})).sum()
    promised = sum((g.astype(np.float64) ** 2).sum() for g in grads)
    np.testing.assert_allclose((before - after) / step, promised, rtol=1e-3)
