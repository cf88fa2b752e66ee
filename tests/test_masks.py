"""Every mask against its definition, read pair by pair: whether query i may see key j."""

import numpy as np
import pytest
from tegula import masks

LENGTHS = sorted({0} | {n + step for n in (1, 7, 8, 16, 64) for step in (-1, 0, 1)})
# As many queries as keys, more, and fewer.
SIZES = [
    *zip(LENGTHS, LENGTHS, strict=False),
    *zip(LENGTHS, LENGTHS[3:], strict=False),
    *zip(LENGTHS[3:], LENGTHS, strict=False),
    (1, 65),
    (65, 1),
]


def pairs(q_len, k_len, may_see):
    """(q_len, k_len) from a rule on two numbers."""
    visible = [[bool(may_see(i, j)) for j in range(k_len)] for i in range(q_len)]
    return np.array(visible, bool).reshape(q_len, k_len)


def entries(count, q_len, k_len, may_see):
    """(count, 1, q_len, k_len) from a rule that also knows the batch entry."""
    each = [pairs(q_len, k_len, lambda i, j, b=b: may_see(b, i, j)) for b in range(count)]
    return np.array(each, bool).reshape(count, 1, q_len, k_len)


def same(array, expected):
    """Bool arrays of the same shape that say the same."""
    return array.dtype == np.bool_ and array.shape == expected.shape and bool((array == expected).all())


def from_intervals(mask, q_len, k_len):
    """What `intervals` says, as an array shaped as `mask.dense`."""
    lo, hi = (bound[..., None] for bound in mask.intervals(q_len, k_len))
    j = np.arange(k_len)
    return np.broadcast_to((lo <= j) & (j < hi), (*np.broadcast_shapes(lo.shape[:2], hi.shape[:2]), q_len, k_len))


def check(mask, q_len, k_len, expected, structured=True):
    """Every form in which a mask shows itself says what `expected` does."""
    assert same(mask.dense(q_len, k_len), expected)
    lo, hi = mask.intervals(q_len, k_len)
    for bound in (lo, hi):
        assert bound.dtype == np.int32 and bound.ndim == 3
        assert bound.size == 0 or (bound.min() >= 0 and bound.max() <= k_len)
    if structured:
        assert (from_intervals(mask, q_len, k_len) == expected).all()
    else:
        assert (from_intervals(mask, q_len, k_len) >= expected).all()
    assert mask.area(q_len, k_len) == expected.sum()
    additive = mask.additive(q_len, k_len)
    assert additive.dtype == np.float32 and additive.shape == expected.shape
    assert (additive[expected] == 0).all() and (additive[~expected] == -np.inf).all()


# ---------------------------------------------------------------------------------------------------
# Rules on numbers

SHIFTS = {
    "bottom_right": ({"align": "bottom_right"}, lambda q_len, k_len: k_len - q_len),
    "top_left": ({"align": "top_left"}, lambda q_len, k_len: 0),
    "offset_3": ({"offset": 3}, lambda q_len, k_len: 3),
    "offset_minus_2": ({"offset": np.int8(-2)}, lambda q_len, k_len: -2),
}

# What is made with an alignment, and when query i, standing at key p, sees key j.
ALIGNED = {
    "causal": (lambda **a: masks.causal(**a), lambda p, j: j <= p),
    "window_2_1": (lambda **a: masks.window(2, 1, **a), lambda p, j: p - 2 <= j <= p + 1),
    "window_self": (lambda **a: masks.window(0, 0, **a), lambda p, j: j == p),
    "window_left_only": (lambda **a: masks.window(3, None, **a), lambda p, j: j >= p - 3),
    "window_right_only": (lambda **a: masks.window(None, 9, **a), lambda p, j: j <= p + 9),
    "window_unlimited": (lambda **a: masks.window(None, None, **a), lambda p, j: True),
    "window_huge": (lambda **a: masks.window(10**30, 2**63, **a), lambda p, j: True),
    "sliding_1": (lambda **a: masks.sliding(1, **a), lambda p, j: j == p),
    "sliding_8": (lambda **a: masks.sliding(8, **a), lambda p, j: p - 8 < j <= p),
    "chunked_1": (lambda **a: masks.chunked(1, **a), lambda p, j: j == p),
    "chunked_6": (lambda **a: masks.chunked(6, **a), lambda p, j: j // 6 == p // 6),
    "chunked_huge": (lambda **a: masks.chunked(10**30, **a), lambda p, j: p >= 0),
    "prefix_0": (lambda **a: masks.prefix(0, **a), lambda p, j: j <= p),
}


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("kind", ALIGNED)
def test_aligned(kind, shift):
    build, rule = ALIGNED[kind]
    options, shift_of = SHIFTS[shift]
    mask = build(**options)
    for q_len, k_len in SIZES:
        moved = shift_of(q_len, k_len)
        check(mask, q_len, k_len, pairs(q_len, k_len, lambda i, j, moved=moved: rule(i + moved, j)))


@pytest.mark.parametrize("kind", ALIGNED)
def test_aligned_by_an_offset_per_batch_entry(kind):
    build, rule = ALIGNED[kind]
    offsets = [5, -3, 0, 70, -(2**40), 2**40]
    mask = build(offset=offsets)
    for q_len, k_len in SIZES[::3]:
        expected = entries(6, q_len, k_len, lambda b, i, j: rule(i + offsets[b], j))
        check(mask, q_len, k_len, expected)


@pytest.mark.parametrize("kind", ALIGNED)
def test_equal_lengths_need_no_alignment(kind):
    build, rule = ALIGNED[kind]
    for length in LENGTHS:
        check(build(), length, length, pairs(length, length, rule))


def test_full():
    for q_len, k_len in SIZES:
        check(masks.full(), q_len, k_len, np.ones((q_len, k_len), bool))


def test_prefix():
    for q_len, k_len in SIZES:
        lengths = np.array([0, k_len // 2, k_len])
        mask = masks.prefix(lengths, align="bottom_right")
        rule = lambda b, i, j, d=k_len - q_len, n=lengths: j < n[b] or j <= i + d
        check(mask, q_len, k_len, entries(3, q_len, k_len, rule))


# C39: two queries and five keys, five queries and two keys, under each alignment.
GOLDEN = {
    ("bottom_right", 2, 5): ["11110", "11111"],
    ("top_left", 2, 5): ["10000", "11000"],
    ("bottom_right", 5, 2): ["00", "00", "00", "10", "11"],
    ("top_left", 5, 2): ["10", "11", "11", "11", "11"],
    (1, 2, 5): ["11000", "11100"],
    (-1, 5, 2): ["00", "10", "11", "11", "11"],
}


@pytest.mark.parametrize(("align", "q_len", "k_len"), GOLDEN)
def test_c39_causal_alignment(align, q_len, k_len):
    option = {"align": align} if isinstance(align, str) else {"offset": align}
    expected = np.array([[c == "1" for c in row] for row in GOLDEN[align, q_len, k_len]])
    check(masks.causal(**option), q_len, k_len, expected)


def test_c40_more_queries_than_keys_leave_the_first_rows_empty():
    visible = masks.causal(align="bottom_right").dense(5, 2)
    assert visible.sum(axis=1).tolist() == [0, 0, 0, 1, 2]


@pytest.mark.parametrize("length", [1, 7, 8, 16, 65])
def test_c45_sliding_sees_size_keys(length):
    for size in range(1, length + 2):
        sums = masks.sliding(size).dense(length, length).sum(axis=1)
        assert sums.tolist() == [min(i + 1, size) for i in range(length)]
        both = masks.causal() & masks.window(size - 1, 0)
        assert same(both.dense(length, length), masks.sliding(size).dense(length, length))


@pytest.mark.parametrize("length", [1, 7, 8, 16, 65])
def test_c45_a_symmetric_window_sees_as_far_on_both_sides(length):
    for reach in range(length + 1):
        sums = masks.window(reach, reach).dense(length, length).sum(axis=1)
        expected = [min(i + reach, length - 1) - max(i - reach, 0) + 1 for i in range(length)]
        assert sums.tolist() == expected


def test_c34_true_means_may_attend():
    """The first query of a causal mask sees the first key only, in every form."""
    for mask in (masks.causal(), masks.dense(np.tri(4, dtype=bool))):
        assert mask.dense(4, 4)[0].tolist() == [True, False, False, False]
        assert mask.additive(4, 4)[0].tolist() == [0, -np.inf, -np.inf, -np.inf]
        lo, hi = mask.intervals(4, 4)
        assert (lo.flat[0], hi.flat[0]) == (0, 1)


# ---------------------------------------------------------------------------------------------------
# Padding


def test_padding_by_lengths():
    for q_len, k_len in SIZES:
        lengths = [0, k_len // 2, k_len, max(k_len - 1, 0)]
        check(masks.padding(lengths), q_len, k_len, entries(4, q_len, k_len, lambda b, i, j, n=lengths: j < n[b]))


def test_padding_of_queries_too():
    for q_len, k_len in SIZES:
        k, q = [k_len, k_len // 2, 0], [q_len // 2, q_len, q_len]
        rule = lambda b, i, j, q=q, k=k: i < q[b] and j < k[b]
        expected = entries(3, q_len, k_len, rule)
        check(masks.padding(k, queries=q), q_len, k_len, expected)
        keep_k, keep_q = (np.arange(n) < np.array(c)[:, None] for n, c in ((k_len, k), (q_len, q)))
        check(masks.padding(keep=keep_k, queries=keep_q), q_len, k_len, expected)
        check(masks.padding(queries=q), q_len, k_len, entries(3, q_len, k_len, lambda b, i, j, q=q: i < q[b]))


@pytest.mark.parametrize("length", [n for n in LENGTHS if n])
def test_padding_by_keep(length):
    j = np.arange(length)
    keep = np.stack([j >= length // 2, j < length // 3, (j > 0) & (j < length - 1), j < 0, j >= 0])
    expected = np.broadcast_to(keep[:, None, None], (5, 1, 3, length))
    check(masks.padding(keep=keep), 3, length, expected)
    scattered = np.array([j % 3 != 1, j >= 0, j < 0])
    expected = np.broadcast_to(scattered[:, None, None], (3, 1, 3, length))
    check(masks.padding(keep=scattered), 3, length, expected, structured=length < 3)


def test_padding_of_several_leading_axes_counts_them_in_c_order():
    lengths = np.arange(6).reshape(2, 3)
    expected = entries(6, 4, 5, lambda b, i, j: j < b)
    check(masks.padding(lengths), 4, 5, expected)
    check(masks.padding(keep=np.arange(5) < lengths[..., None]), 4, 5, expected)


# ---------------------------------------------------------------------------------------------------
# What the founding tutorials show


def test_t2_05_valid_positions():
    visible = masks.padding([2, 4]).dense(1, 4)
    assert visible[:, 0, 0].astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


def test_t2_06_pair_mask():
    visible = masks.padding([2, 4], queries=[2, 4]).dense(4, 4).astype(int)
    assert visible[0, 0].tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert visible[1, 0].tolist() == [[1, 1, 1, 1]] * 4


@pytest.mark.parametrize("length", [1, 4, 17, 64])
def test_t3_03_sequence_mask(length):
    expected = np.triu(np.full((length, length), -np.inf, np.float32), 1)
    assert (masks.causal().additive(length, length) == expected).all()


def test_t3_04_padding_mask():
    ids = np.array([[6, 4, 0, 0], [6, 4, 1, 7]])
    expected = np.broadcast_to((ids != 0)[:, None, None], (2, 1, 4, 4))
    check(masks.padding(keep=ids != 0), 4, 4, expected)


def test_t3_05_causal_and_padding():
    mask = masks.causal() & masks.padding([2, 4])
    first = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]
    assert mask.dense(4, 4)[0, 0].astype(int).tolist() == first
    assert mask.dense(4, 4)[1, 0].astype(int).tolist() == np.tri(4, dtype=int).tolist()
    assert (mask.additive(4, 4)[0, 0] == np.where(first, 0, -np.inf)).all()


def test_t3_06_local_window():
    half = 4 // 2
    assert masks.window(half, half - 1).dense(8, 8).sum(axis=1).tolist() == [2, 3, 4, 4, 4, 4, 4, 3]


def test_t3_07_zero_hides_after_a_comparison():
    numbers = np.tri(3, dtype=np.uint8)
    assert same(masks.dense(numbers != 0).dense(3, 3), np.tri(3, dtype=bool))
    with pytest.raises(TypeError, match=r"astype\(bool\)"):
        masks.dense(numbers)


# ---------------------------------------------------------------------------------------------------
# Positions


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u8"])
def test_positions_restart_in_every_document(dtype):
    positions = masks.positions(cu_seqlens=np.array([0, 3, 3, 5, 9], dtype))
    assert positions.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3] and positions.dtype == np.int64
    assert masks.positions(cu_seqlens=[0]).shape == (0,)


def test_c31_positions_skip_left_padding():
    keep = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 1, 0, 0]], bool)
    expected = [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [0, 0, 0, 0, 0], [0, 0, 1, 1, 1]]
    assert masks.positions(keep=keep).tolist() == expected
    assert masks.positions(keep=keep[0]).tolist() == expected[0]
    assert masks.positions(keep=np.stack([keep, keep])).tolist() == [expected, expected]
