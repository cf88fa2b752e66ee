"""Positional encoding against its formula in float64: values, precision, layouts, arrays, bad input."""

from __future__ import annotations

import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import reference
import tegula as tg
from support import DTYPES, numpy_dtype, poisoned, same_bits

DIMS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 512)
HALF_ULP = {"float64": 2.0**-53, "float32": 2.0**-25, "float16": 2.0**-12, "bfloat16": 2.0**-9}


def exact(positions, dim, *, base=10000.0, layout="interleaved", spacing="paper"):
    """The formula, entry by entry, with the C library's pow."""
    half = (dim + 1) // 2
    exponents = [-2 * i / dim if spacing == "paper" else -i / max(half - 1, 1) for i in range(half)]
    phase = np.asarray(positions, np.float64)[..., None] * np.array([math.pow(base, e) for e in exponents])
    parts = np.sin(phase), np.cos(phase[..., : dim // 2])
    if layout == "split":
        return np.concatenate(parts, axis=-1)
    table = np.empty(phase.shape[:-1] + (dim,))
    table[..., 0::2], table[..., 1::2] = parts
    return table


def assert_rounded_once(got, wide, slack=0.0):
    """`got` is `wide` rounded to its type; `slack` counts float64 ulps at 1 for sine and cosine themselves."""
    name = got.dtype.name
    allowed = HALF_ULP[name] + (slack + 1) * 2.0**-52
    assert np.max(np.abs(got.astype(np.float64) - wide), initial=0.0) <= allowed


# ---- values


@pytest.mark.parametrize("dtype", DTYPES)
def test_T2_3_power_form(dtype):
    table = tg.positional_encoding(4, 6, dtype=dtype).astype(np.float64)
    golden = [
        [0, 1, 0, 1, 0, 1],
        [0.8415, 0.5403, 0.0464, 0.9989, 0.0022, 1],
        [0.9093, -0.4161, 0.0927, 0.9957, 0.0043, 1],
        [0.1411, -0.9900, 0.1388, 0.9903, 0.0065, 1],
    ]
    np.testing.assert_allclose(table, golden, rtol=0, atol=5.1e-5 + HALF_ULP[dtype])


def test_T1_2_exponential_form():
    # exp(-ln(10000) 2i / D): another way to the same numbers, up to the rounding of its phase
    frequencies = np.exp(-math.log(10000.0) * np.arange(0, 512, 2) / 512)
    phase = np.arange(5000)[:, None] * frequencies
    table = tg.positional_encoding(5000, 512, dtype="float64")
    np.testing.assert_allclose(table[:, 0::2], np.sin(phase), rtol=0, atol=5e-12)
    np.testing.assert_allclose(table[:, 1::2], np.cos(phase), rtol=0, atol=5e-12)


def test_T1_3_a_slice_is_the_shorter_table():
    assert same_bits(tg.positional_encoding(5000, 512)[:128], tg.positional_encoding(128, 512))


def test_T1_5_low_dimensions_change_fast():
    change = np.abs(np.diff(tg.positional_encoding(100, 128), axis=0)).mean(axis=0)
    assert change[0] > 5 * change[32] > 25 * change[96]


def test_T1_6_a_shift_is_a_rotation():
    table = tg.positional_encoding(200, 64, dtype="float64").reshape(200, 32, 2)
    shift = 17
    sine, cosine = table[shift, :, 0], table[shift, :, 1]
    s, c = table[:-shift, :, 0], table[:-shift, :, 1]
    np.testing.assert_allclose(table[shift:, :, 0], s * cosine + c * sine, atol=1e-13)
    np.testing.assert_allclose(table[shift:, :, 1], c * cosine - s * sine, atol=1e-13)


def test_T3_2_numpy_table():
    got = tg.positional_encoding(512, 768, dtype="float64")
    np.testing.assert_allclose(got, reference.positional_encoding(512, 768), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["interleaved", "split"])
@pytest.mark.parametrize("spacing", ["paper", "inclusive"])
def test_C19_every_width(dtype, layout, spacing):
    positions = np.array([0, 1, 2, 77, 4096, -3])
    for dim in DIMS:
        got = tg.positional_encoding(positions, dim, layout=layout, spacing=spacing, dtype=dtype)
        assert got.shape == (6, dim) and got.dtype == numpy_dtype(dtype)
        assert_rounded_once(got, exact(positions, dim, layout=layout, spacing=spacing))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_C20_sixteen_bits_are_rounded_once(dtype):
    wide = exact(np.arange(5000), 512)
    got = tg.positional_encoding(5000, 512, dtype=dtype)
    assert np.abs(got.astype(np.float64) - wide).max() <= HALF_ULP[dtype]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_not_done_twice(dtype):
    # float64 -> float32 -> 16 bits would differ where float32 lands on a tie
    wide = tg.positional_encoding(200_000, 8, dtype="float64")
    if dtype == "float16":  # NumPy rounds float64 to float16 once
        expected = wide.astype(np.float16)
    else:
        bits = wide.astype(np.float32).view(np.uint32)
        moved = wide.astype(np.float32).astype(np.float64) != wide
        away = np.abs(wide.astype(np.float32).astype(np.float64)) > np.abs(wide)
        odd = np.where(moved, (bits - away.astype(np.uint32)) | 1, bits).astype(np.uint32)
        expected = odd.view(np.float32).astype(numpy_dtype(dtype))
    got = tg.positional_encoding(200_000, 8, dtype=dtype)
    np.testing.assert_array_equal(got.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_C21_positions_beyond_the_result_type(dtype):
    table = tg.positional_encoding(np.arange(65535, 65546), 64, dtype=dtype).astype(np.float64)
    assert np.isfinite(table).all()
    assert len(np.unique(table, axis=0)) == 11
    far = tg.positional_encoding(np.array([2**31 - 1, 2**31, 2**40 + 1, 2**62]), 64, dtype=dtype)
    assert_rounded_once(far, exact([2**31 - 1, 2**31, 2**40 + 1, 2**62], 64))


@pytest.mark.parametrize("start", [10**6, 2**24 - 3000])
@pytest.mark.parametrize("dim", [1, 2, 7, 512])
def test_C23_float32_at_long_positions(start, dim):
    positions = np.arange(start, start + 3000)
    wide = exact(positions, dim)
    got = tg.positional_encoding(positions, dim)
    assert np.abs(got - wide).max() <= 6e-8
    assert np.max(np.abs(got - wide) / np.spacing(np.abs(wide.astype(np.float32)))) <= 1


def test_float64_near_multiples_of_half_pi():
    # frequency 1; the nearest float64 to n pi/2 leaves a remainder that only an exact reduction sees
    n = np.random.default_rng(0).integers(1, 2**31, 4000)
    positions = n * (np.pi / 2)
    got = tg.positional_encoding(positions, 2, dtype="float64")
    np.testing.assert_allclose(got[:, 0], np.sin(positions), rtol=4e-16)
    np.testing.assert_allclose(got[:, 1], np.cos(positions), rtol=4e-16)


@pytest.mark.parametrize(
    ("layout", "spacing", "third"),
    [
        ("interleaved", "paper", [math.sin(2), math.cos(2), math.sin(2 / 10000 ** (1 / 3))]),
        ("split", "paper", [math.sin(2), math.sin(2 / 10000 ** (1 / 3)), math.sin(2 / 10000 ** (2 / 3))]),
        ("interleaved", "inclusive", [math.sin(2), math.cos(2), math.sin(2 / 100)]),
        ("split", "inclusive", [math.sin(2), math.sin(2 / 100), math.sin(2 / 10000)]),
    ],
)
def test_C27_layouts_and_spacings(layout, spacing, third):
    table = tg.positional_encoding(3, 6, layout=layout, spacing=spacing, dtype="float64")
    np.testing.assert_allclose(table[2, :3], third, rtol=1e-14)
    np.testing.assert_array_equal(table[0], [0, 1] * 3 if layout == "interleaved" else [0] * 3 + [1] * 3)


def test_C27_base():
    np.testing.assert_allclose(
        tg.positional_encoding(9, 8, base=500.0, dtype="float64"), exact(np.arange(9), 8, base=500.0), atol=1e-14
    )


def test_C27_one_inclusive_frequency_is_1():
    for dim in (1, 2):
        got = tg.positional_encoding(5, dim, spacing="inclusive", dtype="float64")
        np.testing.assert_allclose(got[:, 0], np.sin(np.arange(5)), atol=1e-15)


@pytest.mark.parametrize("layout", ["interleaved", "split"])
def test_C29_a_pair_shares_its_frequency(layout):
    table = tg.positional_encoding(5000, 64, layout=layout, dtype="float64")
    sines, cosines = (table[:, 0::2], table[:, 1::2]) if layout == "interleaved" else (table[:, :32], table[:, 32:])
    np.testing.assert_allclose(sines**2 + cosines**2, 1, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_C30_negative_and_fractional_positions(dtype):
    positions = np.array([[-3.0, 998.3897], [0.25, -1e5]])
    assert_rounded_once(tg.positional_encoding(positions, 65, dtype=dtype), exact(positions, 65))
    assert same_bits(
        tg.positional_encoding(np.array([-3]), 16, dtype=dtype),
        tg.positional_encoding(positions[:1, :1], 16, dtype=dtype)[0],
    )


def test_positions_without_a_phase_give_nan():
    table = tg.positional_encoding(np.array([1.0, np.nan, np.inf, -np.inf, 2.0]), 20)
    assert np.isnan(table[1:4]).all()
    assert same_bits(table[[0, 4]], tg.positional_encoding(np.array([1, 2]), 20))


def test_phases_beyond_the_vector_reduction():
    positions = np.array([1.0, 1e15, 1e100, -1e300, 2.0, 3.0])
    np.testing.assert_allclose(
        tg.positional_encoding(positions, 6, dtype="float64"), exact(positions, 6), rtol=0, atol=3e-16
    )


# ---- arrays


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_every_integer_type(dtype):
    positions = np.array([[0, 5, 100], [127, 1, 2]])
    assert same_bits(tg.positional_encoding(positions.astype(dtype), 12), tg.positional_encoding(positions, 12))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_float_type(dtype):
    positions = np.array([0.5, -2.0, 96.0, 0.0, 2.0**-14 * 1.25]).astype(numpy_dtype(dtype))
    assert same_bits(tg.positional_encoding(positions, 12), tg.positional_encoding(positions.astype(np.float64), 12))


def test_shapes_and_kinds_of_positions():
    assert tg.positional_encoding(0, 8).shape == (0, 8)
    assert tg.positional_encoding(np.int32(3), 8).shape == (3, 8)
    assert tg.positional_encoding(np.array(3), 8).shape == (8,)
    assert tg.positional_encoding([], 8).shape == (0, 8)
    assert tg.positional_encoding(np.zeros((2, 0, 3), int), 8).shape == (2, 0, 3, 8)
    assert tg.positional_encoding([[1, 2], [3, 4]], 0).shape == (2, 2, 0)
    assert same_bits(tg.positional_encoding(range(3).stop, 8), tg.positional_encoding([0, 1, 2], 8))


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[::-1],
        lambda a: a[:, ::-2],
        lambda a: np.broadcast_to(a[:1], (5, a.shape[1])),
        lambda a: a.astype(">i4"),
        lambda a: a.astype(">f8"),
        lambda a: a[None, :, None],
        lambda a: np.frombuffer(b"x" + a.tobytes(), np.int8)[1:].view(a.dtype).reshape(a.shape),
    ],
)
def test_any_strides(view):
    positions = view(np.arange(35).reshape(5, 7) * 3)
    positions.flags.writeable = False
    expected = tg.positional_encoding(np.array(positions.tolist()), 10)
    assert same_bits(tg.positional_encoding(positions, 10), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["interleaved", "split"])
def test_out_of_any_strides(dtype, layout):
    expected = tg.positional_encoding(np.arange(15).reshape(3, 5), 13, layout=layout, dtype=dtype)
    for make in (
        lambda a: a[:3, :5, :13],
        lambda a: a[2::-1, 4::-1, 12::-1],
        lambda a: a[:3, :5, 1::2][..., :13],
        lambda a: a.transpose(1, 0, 2)[:3, :5, :13],
    ):
        base = poisoned((8, 8, 28), numpy_dtype(dtype))
        out = make(base)
        assert tg.positional_encoding(np.arange(15).reshape(3, 5), 13, layout=layout, dtype=dtype, out=out) is out
        assert same_bits(np.ascontiguousarray(out), expected)
        assert np.isnan(base.astype(np.float32)).sum() == base.size - out.size  # nothing beside it


def test_same_bits_for_any_number_of_threads(threads):
    results = []
    for n in (1, 2, 3, 7):
        tg.set_num_threads(n)
        results.append(tg.positional_encoding(5000, 512))
    assert all(same_bits(r, results[0]) for r in results)


def test_a_row_does_not_depend_on_the_others():
    table = tg.positional_encoding(np.array([5.5, 1e50, np.nan, 7.0]), 33)
    assert same_bits(table[3], tg.positional_encoding(np.array(7.0), 33))
    assert same_bits(table[0], tg.positional_encoding(np.array([5.5]), 33)[0])


@hypothesis.given(
    positions=st.lists(st.integers(-(2**24), 2**24), max_size=9),
    dim=st.integers(0, 70),
    base=st.floats(1.5, 1e6),
    layout=st.sampled_from(["interleaved", "split"]),
    spacing=st.sampled_from(["paper", "inclusive"]),
    dtype=st.sampled_from(DTYPES),
)
def test_properties(positions, dim, base, layout, spacing, dtype):
    options = {"base": base, "layout": layout, "spacing": spacing}
    got = tg.positional_encoding(positions, dim, dtype=dtype, **options)
    assert_rounded_once(got, exact(np.array(positions, np.int64), dim, **options))


# ---- bad input


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (TypeError, "positions.*bool", {"positions": True}),
        (TypeError, "positions.*bool", {"positions": np.array([True])}),
        (TypeError, "positions.*complex", {"positions": np.array([1j])}),
        (TypeError, "positions.*object", {"positions": np.array([1, None])}),
        (TypeError, "positions.*str", {"positions": "abc"}),
        (ValueError, "positions.*-1", {"positions": -1}),
        (TypeError, "dim.*float", {"dim": 4.0}),
        (TypeError, "dim.*bool", {"dim": True}),
        (ValueError, "dim.*-2", {"dim": -2}),
        (ValueError, "base.*0", {"base": 0.0}),
        (ValueError, "base.*-3", {"base": -3.0}),
        (ValueError, "base.*nan", {"base": math.nan}),
        (ValueError, "base.*inf", {"base": math.inf}),
        (TypeError, "base.*str", {"base": "10000"}),
        (ValueError, "layout.*'interleaved' or 'split'.*'concat'", {"layout": "concat"}),
        (ValueError, "spacing.*'paper' or 'inclusive'.*'half'", {"spacing": "half"}),
        (TypeError, "dtype.*int32", {"dtype": "int32"}),
        (TypeError, "dtype.*uint16", {"dtype": np.uint16}),
        (TypeError, "out.*float32.*float64", {"out": np.empty((3, 8))}),
        (ValueError, r"out.*\(3, 8\).*\(3, 7\)", {"out": np.empty((3, 7), np.float32)}),
        (
            ValueError,
            "out.*stride 0",
            {"out": np.lib.stride_tricks.as_strided(np.empty(8, np.float32), (3, 8), (0, 4))},
        ),
        (TypeError, "out.*list", {"out": [1.0]}),
    ],
)
def test_bad_input(error, text, arguments):
    good = {"positions": 3, "dim": 8}
    with pytest.raises(error, match=f"(?s){text}"):
        tg.positional_encoding(**{**good, **arguments})
    assert same_bits(tg.positional_encoding(3, 8), tg.positional_encoding([0, 1, 2], 8))


def test_read_only_and_shared_out():
    out = poisoned((3, 8), np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        tg.positional_encoding(3, 8, out=out)
    assert np.isnan(out).all()
    memory = np.zeros((3, 8))
    with pytest.raises(ValueError, match="out shares memory with positions"):
        tg.positional_encoding(memory[:, 0], 8, dtype="float64", out=memory)
