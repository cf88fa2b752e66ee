"""Dropout is a function of the seed and of where a pair stands: of nothing else."""

import numpy as np
import pytest
import reference
import tegula as tg
from cases import AttentionCase
from support import DTYPES, draw, same_bits
from tolerances import assert_attention_close, attention_twins


def kept_by_attention(shape, p, seed, **options):
    """(B, H, Lq, Lk) bool: the pairs that attention lets through, seen in values that name their key."""
    batch, heads, q_len, k_len = shape
    q, k = np.zeros((batch, heads, q_len, 1), "f4"), np.zeros((batch, heads, k_len, 1), "f4")
    v = np.broadcast_to(np.eye(k_len, dtype="f4"), (batch, heads, k_len, k_len))
    if options.get("layout") == "blhd":
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    out = tg.attention(q, k, v, dropout_p=p, seed=seed, **options)
    return (out.swapaxes(1, 2) if options.get("layout") == "blhd" else out) > 0


# ---------------------------------------------------------------------------------------------------
# The decisions


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 1, 1, 1), (3, 17, 64), (33,), (0, 4, 2, 2), (2, 2, 3, 0)])
def test_the_mask_is_the_twins(shape, p):
    for seed in (0, 1, 2**32, 2**64 - 1):
        keep = tg.dropout_mask(seed, p, shape)
        assert keep.dtype == bool
        assert same_bits(keep, reference.dropout_mask(seed, p, shape))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_rate_is_p(p):
    """Within five standard deviations, for single pairs and for neighbours along every axis."""

    def near(kept, rate):
        return abs(kept.mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / kept.size)

    keep = tg.dropout_mask(11, p, (2, 4, 128, 128))
    assert near(keep, 1 - p)
    for axis in range(4):
        pairs = np.moveaxis(keep, axis, 0)
        assert near(pairs[0::2] & pairs[1::2], (1 - p) ** 2)


def test_every_bit_of_the_seed_counts():
    seeds = [0, *(1 << bit for bit in range(64))]
    masks = {tg.dropout_mask(seed, 0.5, (4, 64)).tobytes() for seed in seeds}
    assert len(masks) == len(seeds)


def test_a_smaller_array_has_the_same_decisions():
    """A decision does not depend on how many queries, keys or batch entries there are."""
    whole = tg.dropout_mask(3, 0.4, (3, 2, 40, 70))
    assert same_bits(tg.dropout_mask(3, 0.4, (2, 2, 13, 9)), whole[:2, :, :13, :9].copy())
    assert same_bits(tg.dropout_mask(3, 0.4, (1, 1, 1, 1)), whole[:1, :1, :1, :1].copy())


@pytest.mark.isa_once
def test_every_instruction_set_decides_alike():
    masks = set()
    for name in tg.config()["isa"]["available"]:
        tg.set_isa(name)
        masks.add(tg.dropout_mask(5, 0.3, (2, 2, 33, 65)).tobytes())
    assert len(masks) == 1


# ---------------------------------------------------------------------------------------------------
# In attention


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 2, 1, 300), (1, 1, 67, 290), (2, 2, 130, 17)])
@pytest.mark.parametrize("options", [{}, {"layout": "blhd"}, {"threads": 1}, {"threads": 3}])
def test_c64_attention_drops_the_pairs_that_the_mask_names(options, shape):
    kept = kept_by_attention(shape, 0.3, 77, **options)
    np.testing.assert_array_equal(kept, tg.dropout_mask(77, 0.3, shape))


def test_c64_masks_do_not_move_the_decisions():
    """Hidden pairs draw their numbers too, whether their tile is computed or skipped."""
    keep = tg.dropout_mask(1, 0.4, (1, 2, 300, 300))
    for mask in (tg.masks.causal(), tg.masks.sliding(20), tg.masks.window(3, None)):
        kept = kept_by_attention((1, 2, 300, 300), 0.4, 1, mask=mask)
        np.testing.assert_array_equal(kept, keep & mask.dense(300, 300))


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_and_lse_are_those_before_dropout(dtype):
    q, k, v = AttentionCase(dtype=dtype).arrays()
    _, lse, weights = tg.attention(q, k, v, return_lse=True, return_weights=True)
    dropped = tg.attention(q, k, v, dropout_p=0.5, seed=1, return_lse=True, return_weights=True)
    assert same_bits(dropped[1], lse)
    assert same_bits(dropped[2], weights)


@pytest.mark.parametrize("dtype", DTYPES)
def test_c64_the_ends_of_p(dtype):
    q, k, v = AttentionCase(dtype=dtype).arrays()
    assert same_bits(tg.attention(q, k, v, dropout_p=0.0), tg.attention(q, k, v))
    assert same_bits(tg.attention(q, k, v, dropout_p=0.0, seed=4), tg.attention(q, k, v))
    assert (tg.attention(q, k, v, dropout_p=1.0, seed=4) == 0).all()


def test_same_seed_same_result_other_seed_other_result():
    q, k, v = AttentionCase().arrays()
    one, again, other = (tg.attention(q, k, v, dropout_p=0.2, seed=s) for s in (8, 8, 9))
    assert same_bits(one, again)
    assert not same_bits(one, other)
    assert same_bits(one, tg.attention(q, k, v, dropout_p=0.2, seed=np.int64(8)))


def test_grouped_heads_draw_for_each_query_head():
    case = AttentionCase(heads=4, kv_heads=1)
    q, k, v = case.arrays()
    keep = tg.dropout_mask(2, 0.5, (2, 4, 35, 70))
    out = tg.attention(q, k, v, dropout_p=0.5, seed=2)
    assert_attention_close(out, None, None, attention_twins(q, k, v, keep=keep, dropout_p=0.5))


def test_several_leading_axes_count_as_their_product():
    q, k, v = AttentionCase(leading=(2, 3)).arrays()
    flat = tg.attention(*(x.reshape(6, *x.shape[2:]) for x in (q, k, v)), dropout_p=0.5, seed=2)
    assert same_bits(tg.attention(q, k, v, dropout_p=0.5, seed=2), flat.reshape(q.shape))


def test_dropout_keeps_the_mean():
    """The average over many seeds is the result without dropout, within five standard errors."""
    rng = np.random.default_rng(0)
    q, k, v = (draw(rng, (1, 1, n, 4)) for n in (3, 12, 12))
    runs = np.stack([tg.attention(q, k, v, dropout_p=0.3, seed=s) for s in range(400)])
    away = runs.mean(0) - tg.attention(q, k, v)
    assert (np.abs(away) < 5 * runs.std(0) / np.sqrt(len(runs))).all()
