"""The same inputs give the same bits of every gradient, whatever is computed beside them, on any number of threads."""

import dataclasses

import numpy as np
import pytest
import tegula as tg
from cases import MASKS, AttentionCase, around
from support import DTYPES, all_same_bits, backward, draw, same_bits


def inputs(case):
    """grad_out, q, k and v by name."""
    return dict(zip(("grad_out", "q", "k", "v"), (case.grad_out(), *case.arrays()), strict=True))


def cut(arrays, **slices):
    """The arrays with some of them cut; `rows` is both q and grad_out, `keys` both k and v."""
    of = {"q": "rows", "grad_out": "rows", "k": "keys", "v": "keys"}
    return {name: x[slices.get(of[name], ...)] for name, x in arrays.items()}


def first(n):
    return np.s_[:, :, :n]


# ---------------------------------------------------------------------------------------------------
# Threads and repetition

# Enough work to be shared out: many heads, one head with many rows, one with many keys, and both.
SHARED = {
    "heads": AttentionCase(130, 200, 64, heads=8, kv_heads=2, mask="causal"),
    "one-head": AttentionCase(700, 700, 32, heads=1, leading=(1,), mask="causal"),
    "rows": AttentionCase(1500, 70, 32, heads=1, leading=(1,), mask="window"),
    "keys": AttentionCase(1, 9_000, 64, heads=2, leading=(1,)),
    "keys-masked": AttentionCase(3, 5_000, 64, heads=2, leading=(1,), mask="padding_lengths"),
    "group": AttentionCase(130, 600, 24, heads=6, kv_heads=1, leading=(1,), mask="sliding"),
    "dropout": AttentionCase(300, 600, 24, heads=1, leading=(1,), dropout_p=0.2),
    "bias": AttentionCase(300, 300, 16, heads=2, leading=(2,), bias="key", sinks=True),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shared", SHARED)
def test_the_number_of_threads_changes_no_bit(shared, dtype):
    case = dataclasses.replace(SHARED[shared], dtype=dtype)
    arrays, options = inputs(case), case.options(tg.masks)
    alone = backward(**arrays, **options, threads=1)
    for threads in (2, 3, 5):
        assert all_same_bits(alone, backward(**arrays, **options, threads=threads)), threads


@pytest.mark.parametrize("mask", MASKS)
def test_the_number_of_threads_changes_no_bit_under_any_mask(mask):
    case = AttentionCase(150, 150, 64, heads=4, mask=mask, bias="head_pair", sinks=True)
    arrays, options = inputs(case), case.options(tg.masks)
    alone = backward(**arrays, **options, threads=1)
    assert all_same_bits(alone, backward(**arrays, **options, threads=3))


@pytest.mark.parametrize("bias", ["scalar", "key", "query", "pair", "batch_key", "head"])
def test_the_number_of_threads_changes_no_bit_of_a_reduced_bias(bias):
    """Many entries, heads, rows and keys go into one number, in one order."""
    case = AttentionCase(300, 300, 16, heads=3, leading=(3,), bias=bias, mask="causal_and_padding")
    arrays, options = inputs(case), case.options(tg.masks)
    alone = backward(**arrays, **options, threads=1)
    for threads in (2, 3, 5):
        assert all_same_bits(alone, backward(**arrays, **options, threads=threads)), threads


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_second_call_gives_the_same(dtype):
    case = AttentionCase(67, 290, 33, mask="causal_and_padding", bias="pair", sinks=True, dtype=dtype)
    arrays, options = inputs(case), case.options(tg.masks)
    one = backward(**arrays, **options)
    for _ in range(3):
        assert all_same_bits(one, backward(**arrays, **options))


# ---------------------------------------------------------------------------------------------------
# What stands beside a row


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [24, 64])
def test_c76_dq_of_a_row_does_not_depend_on_the_number_of_queries(head_dim, dtype):
    case = AttentionCase(768, 300, head_dim, heads=1, leading=(2,), dtype=dtype)
    arrays = inputs(case)
    whole = backward(**arrays)[0]
    for q_len in (1, 8, 192, 767):
        for rows in (first(q_len), np.s_[:, :, 768 - q_len :]):
            assert same_bits(backward(**cut(arrays, rows=rows))[0], whole[rows].copy()), q_len


@pytest.mark.parametrize("dtype", DTYPES)
def test_c76_dq_of_a_row_does_not_depend_on_what_the_others_hold(dtype):
    case = AttentionCase(50, 130, 64, dtype=dtype)
    arrays = inputs(case)
    clean = backward(**arrays)[0]
    for name in ("q", "grad_out"):
        arrays[name][:, :, 0::3] = np.nan
        arrays[name][:, :, 1::3] *= np.asarray(50, arrays[name].dtype)
    assert same_bits(backward(**arrays)[0][:, :, 2::3].copy(), clean[:, :, 2::3].copy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["causal", "sliding"])
def test_c76_dq_of_a_decoded_row_is_that_of_the_whole(mask, dtype):
    case = AttentionCase(200, 200, 64, heads=1, leading=(1,), mask=mask, dtype=dtype)
    arrays, build = inputs(case), MASKS[mask].build
    whole = backward(**arrays, mask=build(tg.masks, case.dims))[0]
    for q_len in (1, 8, 49):
        rows = np.s_[:, :, 200 - q_len :]
        alone = backward(**cut(arrays, rows=rows), mask=build(tg.masks, case.dims._replace(q_len=q_len)))
        assert same_bits(alone[0], whole[rows].copy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_c76_masked_keys_behind_the_last_visible_one_change_no_bit(dtype):
    """Of dq, and of dk and dv of the keys before them; their own are 0."""
    arrays = inputs(AttentionCase(20, 1400, 64, heads=1, leading=(1,), dtype=dtype))
    for length in (1, *around((16, 64, 256)), 300):
        trimmed = backward(**cut(arrays, keys=first(length)))
        for behind in (1, 15, 64, 1000):
            padded = backward(**cut(arrays, keys=first(length + behind)), mask=tg.masks.padding([length]))
            assert same_bits(trimmed[0], padded[0]), (length, behind)
            for x, y in zip(trimmed[1:], padded[1:], strict=True):
                assert same_bits(x, y[first(length)].copy()), (length, behind)
                assert (y[:, :, length:] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_c76_masked_queries_behind_the_last_real_one_change_no_bit(dtype):
    """A row of padding adds nothing to dk and dv, not even a rounding."""
    arrays = inputs(AttentionCase(900, 70, 24, heads=1, leading=(1,), dtype=dtype))
    for length in (1, *around((16, 48, 256)), 300):
        trimmed = backward(**cut(arrays, rows=first(length)))
        for behind in (1, 15, 64, 500):
            mask = tg.masks.padding(keep=np.ones((1, 70), bool), queries=[length])
            padded = backward(**cut(arrays, rows=first(length + behind)), mask=mask)
            assert same_bits(trimmed[0], padded[0][first(length)].copy()), (length, behind)
            assert all_same_bits(trimmed[1:], padded[1:]), (length, behind)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["full", "causal", "causal_and_sinks", "dense"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_few_rows_have_the_bits_of_many(rows, mask, dtype):
    """Few rows are computed another way; with rows of padding behind them there are many."""
    many = 21
    for k_len, head_dim in ((1, 64), (3, 24), (18, 64), (97, 5), (300, 64), (700, 40)):
        case = AttentionCase(many, k_len, head_dim, heads=2, value_dim=head_dim + 1, dtype=dtype)
        arrays = inputs(case)
        dense = np.random.default_rng(k_len).random((many, k_len)) < 0.8
        sees = {
            "full": tg.masks.full(),
            "causal": tg.masks.causal(offset=k_len - 3),
            "causal_and_sinks": tg.masks.sliding(k_len // 3 + 1, sinks=1, align="top_left"),
            "dense": tg.masks.dense(dense),
        }[mask]
        few_sees = tg.masks.dense(dense[:rows]) if mask == "dense" else sees
        padding = tg.masks.padding(keep=np.ones((2, k_len), bool), queries=[rows, rows])
        few = backward(**cut(arrays, rows=first(rows)), mask=few_sees)
        whole = backward(**arrays, mask=sees & padding)
        assert same_bits(few[0], whole[0][first(rows)].copy()), k_len
        assert all_same_bits(few[1:], whole[1:]), k_len


@pytest.mark.parametrize("dtype", DTYPES)
def test_c76_a_batch_entry_does_not_depend_on_the_others(dtype):
    case = AttentionCase(67, 290, 64, leading=(4,), heads=2, dtype=dtype)
    arrays, lengths = inputs(case), np.array([66, 290, 0, 129])
    whole = backward(**arrays, mask=tg.masks.padding(lengths))
    for b in range(4):
        one = np.s_[b : b + 1]
        alone = backward(**cut(arrays, rows=one, keys=one), mask=tg.masks.padding(lengths[one]))
        assert all_same_bits(alone, [x[one].copy() for x in whole])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("q_len", [1, 67])
def test_c76_a_head_does_not_depend_on_the_others(q_len, dtype):
    """Heads that share keys and values make their gradients together; other groups have no part in it."""
    arrays = inputs(AttentionCase(q_len, 130, 64, heads=6, kv_heads=2, mask="causal", dtype=dtype))
    mask = tg.masks.causal(align="bottom_right")
    whole = backward(**arrays, mask=mask)
    for g in range(2):
        rows, keys = np.s_[:, 3 * g : 3 * g + 3], np.s_[:, g : g + 1]
        alone = backward(**cut(arrays, rows=rows, keys=keys), mask=mask)
        assert all_same_bits(alone, [whole[0][rows].copy(), whole[1][keys].copy(), whole[2][keys].copy()])
    # The query side does not see the group at all.
    for h in range(6):
        one, shared = np.s_[:, h : h + 1], np.s_[:, h // 3 : h // 3 + 1]
        assert same_bits(backward(**cut(arrays, rows=one, keys=shared), mask=mask)[0], whole[0][one].copy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_else_is_wanted_changes_no_bit(dtype):
    """Sinks of no weight add a gradient of their own, and nothing else."""
    case = AttentionCase(67, 290, 24, mask="sliding", dtype=dtype)
    arrays, options = inputs(case), case.options(tg.masks)
    with_sinks = backward(**arrays, **options, sinks=np.full(2, -np.inf))
    assert all_same_bits(backward(**arrays, **options), with_sinks[:3])
    assert (with_sinks[3] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_document_in_a_packed_batch_is_that_of_its_own_call(dtype):
    """Where it starts the batch, so that its tiles are cut alike."""
    rng = np.random.default_rng(0)
    arrays = dict(zip(("grad_out", "q", "k", "v"), (draw(rng, (1, 2, 512, 16), dtype) for _ in range(4)), strict=True))
    whole = backward(**arrays, mask=tg.masks.documents(cu_seqlens=[0, 200, 512]))
    alone = backward(**cut(arrays, rows=first(200), keys=first(200)))
    assert all_same_bits(alone, [x[first(200)].copy() for x in whole])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_far_rows_leave_their_neighbours_alone(dtype):
    """Scores of 1e5 in one document are handled apart; others in the same block keep their bits."""
    q, k, v, grad_out = np.random.default_rng(0).standard_normal((4, 2, 60, 8)).astype(dtype)
    mask = tg.masks.documents(np.repeat([0, 1, 2], 20))

    def gradients(q):
        out, lse = tg.attention(q, k, v, mask=mask, return_lse=True)
        return tg.attention_backward(grad_out, q, k, v, out, lse, mask=mask)

    far = q.copy()
    far[:, 20:40] *= 1e5
    for before, after in zip(gradients(q), gradients(far), strict=True):
        assert np.array_equal(before[:, :20], after[:, :20])
        assert np.array_equal(before[:, 40:], after[:, 40:])
