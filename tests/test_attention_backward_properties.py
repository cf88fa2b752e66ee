"""Gradients on shapes, masks and types that nobody thought of: each one on every instruction set."""

import numpy as np
import pytest
import tegula as tg
from hypothesis import assume, given
from hypothesis import strategies as st
from support import all_same_bits, backward, draw, every_isa, same_bits
from test_attention_properties import dense, problems, seeds
from tolerances import assert_gradients_close, gradient_twins

pytestmark = pytest.mark.isa_once

bias_axes = st.sampled_from([(), (3,), (2,), (2, 3), (1, 3), (0, 3), (0, 2), (1,), (0, 1, 2, 3)])


def gradient_for(q, v, seed=0):
    return draw(np.random.default_rng(seed), (*q.shape[:-1], v.shape[-1]), q.dtype.name)


@given(
    problems(), st.none() | bias_axes, st.none() | st.floats(0.5, 20), st.none() | st.floats(-2, 2),
    st.booleans(), st.booleans(), st.sampled_from([0.0, 0.2, 0.7]), seeds,
)  # fmt: skip
def test_any_problem_with_any_options_is_the_twin(problem, axes, softcap, scale, alibi, sinks, p, seed):
    q, k, v, mask = problem
    pairs = (*q.shape[:3], k.shape[2])
    rng, shared = np.random.default_rng(seed), {"softcap": softcap, "scale": scale}
    if axes is not None:
        shape = [n if axis in axes else 1 for axis, n in enumerate(pairs)]
        shared["bias"] = draw(rng, shape, q.dtype.name)
    if alibi:
        shared["alibi"] = draw(rng, pairs[1:2]) / 8
    if sinks:
        shared["sinks"] = draw(rng, pairs[1:2])
    grad_out, keep = gradient_for(q, v), tg.dropout_mask(seed, p, pairs)
    twins = gradient_twins(grad_out, q, k, v, visible=dense(mask, q, k), keep=keep, dropout_p=p, **shared)
    for _ in every_isa():
        got = backward(grad_out, q, k, v, mask=mask, dropout_p=p, seed=seed, **shared)
        assert_gradients_close(got, twins, shared)


@given(problems(), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_what_a_mask_hides_changes_no_bit(problem, value):
    q, k, v, mask = problem
    visible = dense(mask, q, k)
    batch, heads, q_len, k_len = visible.shape
    hidden = ~visible.reshape(batch, k.shape[1], heads // k.shape[1] * q_len, k_len).any(2)
    empty = ~visible.any(-1)
    assume(hidden.any() or empty.any())
    clean = {"grad_out": gradient_for(q, v), "q": q, "k": k, "v": v}
    dirty = {name: x.copy() for name, x in clean.items()}
    for name, x in dirty.items():
        x[empty if name in ("grad_out", "q") else hidden] = value
    for _ in every_isa():
        assert all_same_bits(backward(**clean, mask=mask), backward(**dirty, mask=mask))


@given(problems(), st.integers(2, 5))
def test_threads_change_no_bit(problem, threads):
    q, k, v, mask = problem
    arrays = gradient_for(q, v), q, k, v
    for _ in every_isa():
        assert all_same_bits(backward(*arrays, mask=mask, threads=1), backward(*arrays, mask=mask, threads=threads))


@given(problems(), st.data())
def test_dq_of_a_row_alone_has_the_bits_it_has_among_others(problem, data):
    q, k, v, mask = problem
    assume(q.shape[2] > 0)
    row = data.draw(st.integers(0, q.shape[2] - 1))
    grad_out, visible, at = gradient_for(q, v), dense(mask, q, k), np.s_[:, :, row : row + 1]
    for _ in every_isa():
        whole = backward(grad_out, q, k, v, mask=visible)[0]
        alone = backward(grad_out[at], q[at], k, v, mask=visible[at].copy())[0]
        assert same_bits(whole[at].copy(), alone)


@given(problems(), st.data())
def test_rows_cut_anywhere_add_up(problem, data):
    """dk and dv are sums over rows: those of two halves add up to those of the whole."""
    q, k, v, mask = problem
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    cut = data.draw(st.integers(0, q.shape[2]))
    grad_out, visible = gradient_for(q, v), dense(mask, q, k)
    for _ in every_isa():
        whole = backward(grad_out, q, k, v, mask=visible)
        parts = []
        for rows in (np.s_[:, :, :cut], np.s_[:, :, cut:]):
            parts.append(backward(grad_out[rows], q[rows], k, v, mask=visible[rows].copy()))
        for i in (1, 2):
            np.testing.assert_allclose(parts[0][i] + parts[1][i], whole[i], rtol=1e-9, atol=1e-10)
        assert same_bits(np.concatenate([parts[0][0], parts[1][0]], axis=2), whole[0])
