"""What does not fit is refused by name, with its value and with what was expected."""

import re

import numpy as np
import pytest
from tegula import masks

pytestmark = pytest.mark.isa_once

BOOLS = np.ones((2, 7), bool)
NOT_INTEGERS = {
    "bool": [True, False],
    "float": [1.0, 2.0],
    "object": np.array([1, None], object),
    "text": "12",
    "none_inside": [None, 1],
    "huge": [10**30],
}


def bad(error, make, *said):
    """A mask that cannot be made, the error, and what the message has to say."""
    return make, error, said


# Refused when the mask is made.
BAD = {
    "align-unknown": bad(ValueError, lambda: masks.causal("center"), "align", "center", "bottom_right", "top_left"),
    "align-true": bad(ValueError, lambda: masks.causal(True), "align", "True"),
    "align-and-offset": bad(ValueError, lambda: masks.causal("top_left", 3), "align", "offset", "3"),
    "offset-far": bad(ValueError, lambda: masks.causal(offset=[0, 2**41]), "offset[1]", str(2**41)),
    "offset-far-down": bad(ValueError, lambda: masks.window(1, 0, offset=-(2**41)), "offset", str(-(2**41))),
    "window-left": bad(ValueError, lambda: masks.window(-1, 0), "left", "-1", "None"),
    "window-right": bad(ValueError, lambda: masks.window(0, np.int64(-3)), "right", "-3", "None"),
    "window-float": bad(TypeError, lambda: masks.window(1.0, 0), "left", "float"),
    "window-bool": bad(TypeError, lambda: masks.window(0, True), "right", "bool"),
    "window-array": bad(TypeError, lambda: masks.window(np.array([1, 2]), 0), "left", "ndarray"),
    "sliding-0": bad(ValueError, lambda: masks.sliding(0), "size", "at least 1", "got 0"),
    "sliding-negative": bad(ValueError, lambda: masks.sliding(-4), "size", "-4"),
    "sliding-none": bad(TypeError, lambda: masks.sliding(None), "size", "None", "causal()"),
    "sliding-float": bad(TypeError, lambda: masks.sliding(2.5), "size", "float"),
    "padding-negative": bad(ValueError, lambda: masks.padding([3, -3]), "lengths[1] is -3", "outside [0"),
    "padding-negative-place": bad(ValueError, lambda: masks.padding([[3, 1], [0, -2]]), "lengths[1, 1] is -2"),
    "padding-beyond-int64": bad(ValueError, lambda: masks.padding(np.array([2**64 - 1], "u8")), str(2**64 - 1)),
    "padding-queries-negative": bad(ValueError, lambda: masks.padding([3], queries=[-1]), "queries[0] is -1"),
    "padding-both": bad(ValueError, lambda: masks.padding([3], keep=BOOLS), "lengths", "keep"),
    "padding-bools": bad(TypeError, lambda: masks.padding(BOOLS), "lengths", "keep="),
    "not": bad(TypeError, lambda: ~masks.causal(), "~", "masks.dense(~array)"),
    "padding-nothing": bad(ValueError, lambda: masks.padding(), "lengths", "keep", "queries"),
    "padding-batch": bad(
        ValueError, lambda: masks.padding([1, 2, 3], queries=[1, 2]), "lengths has 3", "queries has 2"
    ),
    "keep-int": bad(TypeError, lambda: masks.padding(keep=[[0, 1]]), "keep", "int64", "astype(bool)"),
    "keep-float": bad(TypeError, lambda: masks.padding(keep=[[0.0, 1.0]]), "keep", "float64", "bool"),
    "keep-scalar": bad(ValueError, lambda: masks.padding(keep=True), "keep", "(B, L)"),
    "chunked-0": bad(ValueError, lambda: masks.chunked(0), "size must be", "0"),
    "chunked-None": bad(TypeError, lambda: masks.chunked(None), "size must be an integer, got None"),
    "chunked-align": bad(ValueError, lambda: masks.chunked(3, "left"), "align must be", "left"),
    "prefix-negative": bad(ValueError, lambda: masks.prefix([1, -1]), "lengths[1] is -1"),
    "prefix-batch": bad(ValueError, lambda: masks.prefix([1, 2], offset=[1, 2, 3]), "lengths has 2", "offset has 3"),
    "documents-nothing": bad(ValueError, lambda: masks.documents(), "ids", "cu_seqlens"),
    "documents-both": bad(ValueError, lambda: masks.documents([0], cu_seqlens=[0, 1]), "ids", "cu_seqlens"),
    "documents-k-and-borders": bad(ValueError, lambda: masks.documents(k=[0], cu_seqlens=[0, 1]), "k", "cu_seqlens"),
    "documents-ids-and-k-borders": bad(
        ValueError, lambda: masks.documents([0], cu_seqlens_k=[0, 1]), "q", "cu_seqlens_k"
    ),
    "documents-scalar": bad(ValueError, lambda: masks.documents(3), "q", "(..., L)"),
    "documents-batch": bad(
        ValueError, lambda: masks.documents(np.zeros((2, 4), int), np.zeros((3, 4), int)), "q has 2", "k has 3"
    ),
    "documents-causal-true": bad(
        ValueError, lambda: masks.documents([0], causal=True), "causal", "bottom_right", "top_left", "True"
    ),
    "documents-window-int": bad(TypeError, lambda: masks.documents([0], window=3), "window", "(left, right)", "3"),
    "documents-window-minus-1": bad(
        ValueError, lambda: masks.documents([0], window=(-1, 0)), "window[0]", "-1", "None"
    ),
    "documents-window-float": bad(TypeError, lambda: masks.documents([0], window=(1, 0.5)), "window[1]", "float"),
    "cu-start": bad(ValueError, lambda: masks.documents(cu_seqlens=[1, 4]), "cu_seqlens[0] is 1"),
    "cu-falls": bad(
        ValueError, lambda: masks.documents(cu_seqlens=[0, 4, 3, 9]), "cu_seqlens[1] is 4", "cu_seqlens[2] is 3"
    ),
    "cu-falls-unsigned": bad(
        ValueError, lambda: masks.documents(cu_seqlens=np.array([0, 4, 3], "u8")), "cu_seqlens[2] is 3"
    ),
    "cu-empty": bad(ValueError, lambda: masks.documents(cu_seqlens=[]), "cu_seqlens", "(0,)"),
    "cu-rank": bad(ValueError, lambda: masks.documents(cu_seqlens=[[0, 4]]), "cu_seqlens", "(1, 2)"),
    "cu-huge": bad(ValueError, lambda: masks.documents(cu_seqlens=[0, 2**31]), "cu_seqlens[-1]", str(2**31)),
    "cu-k-falls": bad(
        ValueError, lambda: masks.documents(cu_seqlens=[0, 4], cu_seqlens_k=[0, -1]), "cu_seqlens_k[1] is -1"
    ),
    "cu-k-count": bad(
        ValueError, lambda: masks.documents(cu_seqlens=[0, 4], cu_seqlens_k=[0, 1, 4]), "(2,)", "(3,)", "cu_seqlens_k"
    ),
    "positions-nothing": bad(ValueError, lambda: masks.positions(), "cu_seqlens", "keep"),
    "positions-both": bad(ValueError, lambda: masks.positions(cu_seqlens=[0], keep=BOOLS), "cu_seqlens", "keep"),
    "positions-start": bad(ValueError, lambda: masks.positions(cu_seqlens=[2, 3]), "cu_seqlens[0] is 2"),
    "positions-keep-int": bad(TypeError, lambda: masks.positions(keep=[1, 0]), "keep", "astype(bool)"),
    "positions-keep-scalar": bad(ValueError, lambda: masks.positions(keep=np.True_), "keep"),
    "dense-vector": bad(ValueError, lambda: masks.dense(BOOLS[0]), "(7,)", "(Lq, Lk)", "keep"),
    "dense-rank-3": bad(ValueError, lambda: masks.dense(BOOLS[None]), "(1, 2, 7)", "array[:, None]", "(B, 1, Lq, Lk)"),
    "dense-rank-5": bad(ValueError, lambda: masks.dense(BOOLS[None, None, None]), "(1, 1, 1, 2, 7)"),
    "dense-scalar": bad(ValueError, lambda: masks.dense(np.array(True)), "()"),
    "dense-list": bad(TypeError, lambda: masks.dense([[1, 0]]), "int64", "astype(bool)"),
    "and-number": bad(TypeError, lambda: masks.causal() & 3, "mask", "int"),
    "and-none": bad(TypeError, lambda: None & masks.causal(), "mask", "NoneType"),
    "and-float": bad(TypeError, lambda: masks.causal() & np.zeros((2, 2)), "float64", "bias="),
    "and-batch": bad(
        ValueError, lambda: masks.padding([1, 2]) & masks.padding([1, 2, 3]), "padding([1, 2]) has 2", "has 3"
    ),
    "and-heads": bad(
        ValueError,
        lambda: masks.dense(np.ones((1, 2, 3, 4), bool)) & np.ones((1, 5, 3, 4), bool),
        "2 heads",
        "has 5",
    ),
    "and-word": bad(TypeError, lambda: masks.causal() and masks.padding([2]), "&"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    make, error, said = BAD[case]
    with pytest.raises(error) as caught:
        make()
    for words in said:
        assert words in str(caught.value), str(caught.value)


# Refused when the lengths are known: mask, (batch, heads, q_len, k_len), what is said.
UNFIT = {
    "causal-unaligned": (
        lambda: masks.causal(),
        (1, 1, 5, 7),
        "q_len 5",
        "k_len 7",
        "bottom_right",
        "top_left",
        "offset",
    ),
    "window-unaligned": (lambda: masks.window(1, 1), (1, 1, 5, 7), "window(1, 1)", "5", "7", "bottom_right", "offset"),
    "sliding-unaligned": (lambda: masks.sliding(3), (1, 1, 7, 5), "sliding(3)", "7", "5", "top_left"),
    "chunked-unaligned": (lambda: masks.chunked(3), (1, 1, 5, 7), "chunked", "5", "7", "top_left"),
    "prefix-unaligned": (lambda: masks.prefix(3), (1, 1, 5, 7), "prefix", "5", "7", "top_left"),
    "offset-batch": (lambda: masks.causal(offset=[0, 1, 2]), (2, 1, 5, 7), "offset", "(3,)", "2 batch"),
    "lengths-batch": (lambda: masks.padding([1, 2, 3]), (2, 1, 5, 7), "lengths", "(3,)", "2 batch"),
    "lengths-long": (lambda: masks.padding([1, 8]), (2, 1, 5, 7), "lengths[1] is 8", "[0, 7]", "k_len"),
    "lengths-huge": (lambda: masks.padding([2**40]), (1, 1, 5, 7), f"lengths[0] is {2**40}", "[0, 7]"),
    "queries-long": (lambda: masks.padding(queries=[1, 6]), (2, 1, 5, 7), "queries[1] is 6", "[0, 5]", "q_len"),
    "queries-batch": (lambda: masks.padding(2, queries=[1, 1]), (3, 1, 5, 7), "queries", "(2,)", "3 batch"),
    "keep-length": (lambda: masks.padding(keep=BOOLS), (2, 1, 5, 9), "keep", "(2, 7)", "k_len = 9"),
    "keep-batch": (lambda: masks.padding(keep=BOOLS), (3, 1, 5, 7), "keep", "(2, 7)", "3 batch"),
    "keep-queries": (lambda: masks.padding(queries=BOOLS), (2, 1, 5, 9), "queries", "(2, 7)", "q_len = 5"),
    "prefix-long": (lambda: masks.prefix([8]), (1, 1, 7, 7), "lengths[0] is 8", "[0, 7]"),
    "prefix-batch": (lambda: masks.prefix([1, 2]), (3, 1, 7, 7), "lengths", "(2,)", "3 batch"),
    "prefix-offset-batch": (lambda: masks.prefix(1, offset=[1, 2]), (3, 1, 7, 7), "offset", "(2,)", "3 batch"),
    "ids-q": (lambda: masks.documents([0, 1], [0, 1, 1]), (1, 1, 5, 3), "q", "(2,)", "q_len = 5"),
    "ids-k": (lambda: masks.documents([0, 1], [0, 1, 1]), (1, 1, 2, 7), "k", "(3,)", "k_len = 7"),
    "ids-batch": (lambda: masks.documents(np.zeros((2, 5), int)), (3, 1, 5, 5), "q", "(2, 5)", "3 batch"),
    "ids-k-batch": (lambda: masks.documents([0], np.zeros((2, 5), int)), (3, 1, 1, 5), "k", "(2, 5)", "3 batch"),
    "cu-end": (lambda: masks.documents(cu_seqlens=[0, 4]), (1, 1, 5, 5), "cu_seqlens ends at 4", "q_len is 5"),
    "cu-end-k": (lambda: masks.documents(cu_seqlens=[0, 4]), (1, 1, 4, 5), "cu_seqlens ends at 4", "k_len is 5"),
    "cu-k-end": (
        lambda: masks.documents(cu_seqlens=[0, 4], cu_seqlens_k=[0, 6]),
        (1, 1, 4, 5),
        "cu_seqlens_k ends at 6",
        "5",
    ),
    "dense-size": (lambda: masks.dense(BOOLS), (1, 1, 7, 7), "(2, 7)", "(7, 7)", "padding(keep="),
    "dense-one-query": (
        lambda: masks.dense(np.ones((2, 1, 1, 7), bool)),
        (2, 1, 5, 7),
        "(2, 1, 1, 7)",
        "(5, 7)",
        "keep",
    ),
    "dense-batch": (
        lambda: masks.dense(np.ones((2, 1, 5, 7), bool)),
        (3, 4, 5, 7),
        "(2, 1, 5, 7)",
        "axis 0",
        "3 batch",
    ),
    "dense-heads": (
        lambda: masks.dense(np.ones((1, 2, 5, 7), bool)),
        (3, 4, 5, 7),
        "(1, 2, 5, 7)",
        "axis 1",
        "4 query",
    ),
    "and-first": (lambda: masks.padding([9, 9]) & masks.causal(), (2, 1, 7, 7), "lengths[0] is 9"),
    "and-second": (lambda: masks.causal() & masks.padding([9, 9]), (2, 1, 7, 7), "lengths[0] is 9"),
    "and-batch": (lambda: masks.causal() & masks.padding([1, 2]), (3, 1, 7, 7), "lengths", "(2,)", "3 batch"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_lengths_that_do_not_fit(case):
    make, call, *said = UNFIT[case]
    mask = make()
    for _ in range(2):  # a failure is not remembered as a result
        with pytest.raises(ValueError, match=re.escape(said[0])) as caught:
            mask._lower(*call)
        for words in said:
            assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize("kind", NOT_INTEGERS)
def test_what_is_not_an_integer(kind):
    value = NOT_INTEGERS[kind]
    for name, make in {
        "lengths": masks.padding,
        "offset": lambda value: masks.causal(offset=value),
        "q": masks.documents,
        "k": lambda value: masks.documents([1, 2], value),
        "cu_seqlens": lambda value: masks.documents(cu_seqlens=value),
        "cu_seqlens_k": lambda value: masks.documents(cu_seqlens=[0, 1], cu_seqlens_k=value),
    }.items():
        with pytest.raises(TypeError, match=rf"{name} must be integers"):
            make(value)
    with pytest.raises(TypeError, match="lengths must be integers"):
        masks.prefix(value)


def test_c36_a_mask_is_bool_and_a_bias_is_not():
    for dtype in ("f2", "f4", "f8"):
        with pytest.raises(TypeError, match=rf"{np.dtype(dtype)}.*bias="):
            masks.as_mask(np.tri(4, dtype=dtype))
    for dtype in ("u1", "i4", "i8"):
        with pytest.raises(TypeError, match=rf"{np.dtype(dtype)}.*astype\(bool\)"):
            masks.as_mask(np.tri(4, dtype=dtype))
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    with pytest.raises(TypeError, match=r"bfloat16.*bias="):
        masks.as_mask(np.zeros((2, 2), bfloat16))


@pytest.mark.parametrize(
    "value", [None, True, "causal", [[True]], 3, np.True_, {}, masks.causal, np.zeros((2, 2), object)]
)
def test_as_mask_takes_masks_and_bool_arrays_only(value):
    with pytest.raises(TypeError, match="mask must be"):
        masks.as_mask(value)


def test_a_mask_that_was_not_called():
    with pytest.raises(TypeError, match="got function causal, which has to be called"):
        masks.as_mask(masks.causal)
    with pytest.raises(TypeError, match="got str 'causal'"):
        masks.as_mask("causal")


@pytest.mark.parametrize("method", ["dense", "intervals", "area", "additive"])
@pytest.mark.parametrize(
    ("lengths", "error", "said"),
    [
        ((-1, 3), ValueError, "q_len"),
        ((3, -1), ValueError, "k_len"),
        ((2**31, 3), ValueError, "q_len"),
        ((3.0, 3), TypeError, "q_len"),
        ((3, True), TypeError, "k_len"),
        ((3, None), TypeError, "k_len"),
    ],
)
def test_lengths_are_integers_from_zero_up(method, lengths, error, said):
    with pytest.raises(error, match=said):
        getattr(masks.full(), method)(*lengths)
