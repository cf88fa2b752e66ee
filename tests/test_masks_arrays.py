"""Masks from bool arrays and back: any strides, intervals where the rows are, every float type."""

import numpy as np
import pytest
import tegula as tg
from support import DTYPES, numpy_dtype
from tegula import _core, masks
from test_masks import LENGTHS, check, same

RNG = np.random.default_rng(5)


def irregular(*shape):
    return RNG.random(shape) < 0.6


def runs(*shape):
    """Bool array whose rows are one run each; some are empty, some whole."""
    lo, hi = np.sort(RNG.integers(0, shape[-1] + 1, (2, *shape[:-1], 1)), axis=0)
    j = np.arange(shape[-1])
    return (lo <= j) & (j < hi)


def layouts(array):
    """The same four-axis array with other strides."""
    yield "contiguous", array
    yield "fortran", np.asfortranarray(array)
    for axis in range(array.ndim):
        yield f"reversed_{axis}", np.flip(np.flip(array, axis).copy(), axis)
        wide = np.zeros([2 * n if a == axis else n for a, n in enumerate(array.shape)], bool)
        every_other = wide[tuple(slice(None, None, 2) if a == axis else slice(None) for a in range(array.ndim))]
        every_other[...] = array
        yield f"every_other_{axis}", every_other
    for axes in ((0, 2, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0)):
        yield f"permuted_{axes}", np.ascontiguousarray(array.transpose(axes)).transpose(np.argsort(axes))
    read_only = array.copy()
    read_only.flags.writeable = False
    yield "read_only", read_only
    off_by_one = np.zeros(array.size + 1, bool)[1:].reshape(array.shape)
    off_by_one[...] = array
    yield "off_by_one", off_by_one


@pytest.mark.parametrize("length", [n for n in LENGTHS if n] + [129, 255, 256, 257, 1023, 1025, 2100])
def test_rows_that_are_runs_become_intervals(length):
    array = runs(2, 3, 5, length)
    mask = masks.dense(array)
    check(mask, 5, length, array)
    assert mask._lower(2, 3, 5, length)[2] is None


@pytest.mark.parametrize("length", [n for n in LENGTHS if n > 2] + [129, 255, 256, 257, 1023, 1025, 2100])
def test_one_gap_anywhere_is_found(length):
    """A hidden key between two visible ones, at every place in turn."""
    for gap in sorted({1, 2, length // 2, length - 2} & set(range(1, length - 1))):
        array = np.zeros((4, length), bool)
        array[2] = True
        array[2, gap] = False
        mask = masks.dense(array)
        check(mask, 4, length, array, structured=False)
        assert mask._lower(1, 1, 4, length)[2] is None
        lo, hi = mask.intervals(4, length)
        assert (lo[0, 0, 2], hi[0, 0, 2]) == (0, length)
        assert (lo[0, 0, 0], hi[0, 0, 0]) == (length, 0)  # an empty row widens no tile
        lo, hi = mask.runs(4, length)
        assert lo[:, 0, 0, 2].tolist() == [0, gap + 1] and hi[:, 0, 0, 2].tolist() == [gap, length]


@pytest.mark.parametrize("length", [5, 16, 17, 129, 256, 1025, 2100])
def test_two_gaps_anywhere_are_found(length):
    """Two hidden keys, at every pair of a few places: next to each other they are one gap."""
    places = sorted({1, 2, length // 2, length - 3, length - 2} & set(range(1, length - 1)))
    for first in places:
        for second in places:
            array = np.zeros((4, length), bool)
            array[1:3] = True
            array[2, [first, second]] = False
            check(masks.dense(array), 4, length, array, structured=False)
            one_gap = abs(first - second) <= 1
            assert (masks.dense(array)._lower(1, 1, 4, length)[2] is None) == one_gap
            apart = np.repeat(array, 2, axis=1)[:, ::2]  # with a stride
            assert same(masks.dense(apart).dense(4, length), array)


@pytest.mark.parametrize("shape", [(5, 70), (3, 1, 5, 70), (1, 4, 5, 70), (3, 4, 5, 70), (1, 1, 5, 70)])
def test_c37_the_four_shapes(shape):
    array = irregular(*shape)
    expected = array if shape[:2] != (1, 1) else array[0, 0]
    check(masks.dense(array), 5, 70, expected, structured=False)
    view = np.broadcast_to(array, (3, 4, 5, 70))
    lo, hi, dense = masks.as_mask(array)._lower(3, 4, 5, 70)
    for part in (lo, hi):
        assert np.broadcast_to(part, (3, 4, 5)).shape == (3, 4, 5)
    assert (np.broadcast_to(dense, view.shape) == view).all()


def test_c37_a_padding_array_has_its_own_argument():
    """(B, Lk) is refused wherever its shape tells it from (Lq, Lk); where B is Lq, only the caller can."""
    keep = np.array([[True, True, False], [True, False, False]])
    with pytest.raises(ValueError, match=r"padding\(keep="):
        masks.dense(keep).dense(3, 3)
    with pytest.raises(ValueError, match=r"\(2, 3, 3\)"):
        masks.dense(np.ones((2, 3, 3), bool))
    visible = masks.padding(keep=keep).dense(3, 3)
    assert same(visible, np.broadcast_to(keep[:, None, None], (2, 1, 3, 3)))


@pytest.mark.parametrize("make", [runs, irregular])
def test_any_strides(make):
    array = make(2, 3, 5, 70)
    for name, view in layouts(array):
        assert same(masks.dense(view).dense(5, 70), array), name
        # The array itself, not a copy, is what attention gets.
        assert same((masks.as_mask(view) & masks.full()).dense(5, 70), array), name


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 1, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("make", [runs, irregular])
def test_axes_of_stride_zero(make, axes):
    small = make(*(1 if axis in axes else n for axis, n in enumerate((2, 3, 5, 70))))
    view = np.broadcast_to(small, (2, 3, 5, 70))
    mask = masks.dense(view)
    assert same(mask.dense(5, 70), view)
    for bound in mask.intervals(5, 70):
        assert all(bound.shape[axis] == 1 for axis in axes if axis < 3)


def test_a_broadcast_array_is_scanned_once():
    """Ten thousand million million pairs, of which one row exists."""
    view = np.broadcast_to(np.arange(100) < 30, (2**20, 2**10, 2**20, 100))
    mask = masks.dense(view)
    assert mask.area(2**20, 100) == 2**50 * 30


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", LENGTHS)
def test_additive_in_every_type(length, dtype):
    dtype = numpy_dtype(dtype)
    array = irregular(3, 2, 5, length)
    for mask in (masks.causal(align="bottom_right"), masks.dense(array), masks.padding([length] * 3) & array):
        visible = mask.dense(5, length)
        additive = mask.additive(5, length, dtype)
        assert additive.dtype == dtype and additive.shape == visible.shape
        assert same(additive == 0, visible) and same(additive == -np.inf, ~visible)
        assert not np.signbit(additive[visible].astype(np.float32)).any()


def test_other_types_are_refused():
    for dtype in ("int32", "bool", "complex64", "longdouble", object):
        with pytest.raises(TypeError, match="float64, float32, float16 or bfloat16"):
            masks.full().additive(2, 2, dtype)


def test_results_are_in_native_byte_order():
    assert masks.full().additive(2, 2, ">f4").dtype == np.dtype(np.float32)


@pytest.mark.parametrize("make", [runs, irregular])
@pytest.mark.parametrize("dtype", ["bool", *DTYPES])
def test_what_lies_around_a_strided_output_is_left_alone(dtype, make):
    """The kernel behind `dense` and `additive`, on a slice of memory that holds something else."""
    dtype = np.dtype(bool) if dtype == "bool" else numpy_dtype(dtype)
    array = make(2, 3, 5, 70)
    lo, hi, dense = masks.dense(array)._lower(2, 3, 5, 70)
    hidden, visible = (False, True) if dtype.kind == "b" else (-np.inf, 0)
    for steps in [(1, 1, 1, 1), (1, 1, 1, 3), (2, 1, 3, 1), (1, 2, 1, -2), (-1, 1, -1, 1)]:
        place = tuple(
            slice(1, 1 + n * step, step) if step > 0 else slice(n * -step, 0, step)
            for n, step in zip(array.shape, steps, strict=True)
        )
        memory = np.ones([n * abs(step) + 2 for n, step in zip(array.shape, steps, strict=True)], dtype)
        expected = memory.copy()
        expected[place] = np.where(array, visible, hidden)
        _core.mask_fill(memory[place], lo, hi, dense)
        assert memory.tobytes() == expected.tobytes()


@pytest.mark.parametrize("length", [100, 1024, 1000, 20001])
@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_results_larger_than_the_caches(length, dtype, threads):
    """Large enough for streaming stores; with one thread and with three."""
    rows = (17 << 20) // length // np.dtype(dtype).itemsize
    mask = masks.causal(align="top_left") & masks.window(60, None, align="top_left")
    lo, hi = mask.intervals(rows, length)
    j = np.arange(length)
    for count in (1, 3):
        tg.set_num_threads(count)
        got = mask.dense(rows, length) if dtype == "bool" else mask.additive(rows, length) == 0
        assert same(got, (lo[0, 0, :, None] <= j) & (j < hi[0, 0, :, None]))
        again = masks.dense(got)
        assert again._lower(1, 1, rows, length)[2] is None and same(again.dense(rows, length), got)


def test_bytes_other_than_one_are_true():
    array = (np.arange(70) % 5 != 2).astype(np.uint8) * np.array([1, 2, 127, 128, 255] * 14, np.uint8)
    odd = np.broadcast_to(array, (3, 70)).copy().view(bool)
    assert same(masks.dense(odd).dense(3, 70), array.astype(bool)[None].repeat(3, 0))
