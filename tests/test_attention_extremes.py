"""Numbers at the ends of their ranges: large scores, biases beyond float32, negative zeros, NaN beside sinks."""

import numpy as np
import pytest
import tegula as tg
from support import DTYPES, numpy_dtype, run_python, same_bits


@pytest.mark.parametrize("size", [1e3, 9e4, 1e6, 1e9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_of_large_scores_takes_all(dtype, size):
    if dtype == "float16" and size > 6e4:
        size = 6e4
    q = np.full((1, 3, 4), size, numpy_dtype(dtype))
    k = np.concatenate([q[:, :1] * q.dtype.type(0.5), q[:, :2]], axis=1).astype(q.dtype)
    v = np.array([[[1.0], [2.0], [4.0]]], q.dtype)
    out, lse = tg.attention(q, k, v, return_lse=True)
    np.testing.assert_array_equal(out.astype(np.float64), np.full((1, 3, 1), 3.0))
    exact = (q.astype(np.float64)[:, 0] ** 2).sum() / 2 + np.log(2)
    np.testing.assert_allclose(lse, np.full((1, 3), exact), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_c43_a_finite_bias_beyond_float32_stays_arithmetic(dtype):
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 5, 8)).astype(numpy_dtype(dtype))
    lowest = np.full((5, 5), np.finfo(np.float64).min)
    expected = np.broadcast_to(v.astype(np.float64).mean(axis=1, keepdims=True), v.shape)
    np.testing.assert_allclose(tg.attention(q, k, v, bias=lowest).astype(np.float64), expected, atol=0.01)
    highest = np.zeros((5, 5))
    highest[:, 2] = 1e39
    out = tg.attention(q, k, v, bias=highest)
    np.testing.assert_array_equal(out, np.broadcast_to(v[:, 2:3], v.shape))


def test_c60_a_nan_row_says_so_in_its_log_sum_exp_whatever_the_sinks():
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 5, 8), np.float32)
    q[0, 3] = np.nan
    for sinks in (None, [-np.inf], [0.0], [np.inf]):
        out, lse = tg.attention(q, k, v, sinks=sinks, return_lse=True)
        assert np.isnan(lse[0, 3])
        assert np.isnan(out[0, 3]).all()


def test_c76_masked_keys_behind_do_not_turn_a_zero():
    tiny = np.full((1, 1, 3, 1), -1e-45, np.float32)
    q, k = np.ones((2, 1, 1, 3, 1), np.float32)
    longer = [np.concatenate([x, np.ones((1, 1, 2000, 1), np.float32)], axis=2) for x in (k, tiny)]
    short = tg.attention(q, k, tiny)
    assert same_bits(short, tg.attention(q, *longer, mask=tg.masks.padding(lengths=[3])))


def test_dropping_everything_gives_zeros_also_of_infinities():
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 5, 8), np.float32)
    v[0, 2] = np.inf
    np.testing.assert_array_equal(tg.attention(q, k, v, dropout_p=1.0, seed=3), np.zeros_like(q))


@pytest.mark.isa_once
def test_more_rows_than_can_be_counted_are_refused():
    many = np.lib.stride_tricks.as_strided(np.ones(1, np.float16), (1, 2**31, 1), (0, 0, 0))
    one = np.ones((1, 1, 1), np.float16)
    with pytest.raises(ValueError, match="q has 2147483648 rows"):
        tg.attention(many, one, one)
    with pytest.raises(ValueError, match="k has 2147483648 rows"):
        tg.attention(one, many, many)


@pytest.mark.isa_once
@pytest.mark.parametrize(
    "call",
    [
        "tg.attention(q, q, q, threads=4)",
        "tg.embedding(np.arange(30000) % 100, q[0, 0, :100], position_table='sinusoidal')",
        "tg.positional_encoding(20000, 128)",
    ],
)
def test_a_daemon_thread_at_work_does_not_stop_the_program_from_ending(call):
    run_python(
        f"""
    import sys, threading, time
    import numpy as np, tegula as tg
    q = np.ones((1, 4, 1024, 64), np.float32)
    def work():
        while True:
            {call}
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.3)
    sys.exit(0)
    """
    )
