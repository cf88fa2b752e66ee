"""Masks as objects: never changed, cheap to keep, copied, pickled, printed and drawn."""

import copy
import pickle
import threading
import tracemalloc
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from tegula import masks
from test_masks import same

pytestmark = pytest.mark.isa_once

KEEP = np.array([[False, True, True, True], [True, True, False, True]])
ARRAY = np.random.default_rng(1).random((2, 3, 4, 4)) < 0.6

# One of each kind, for four queries and four keys, and how it prints.
KINDS = {
    "full": (lambda: masks.full(), "masks.full()"),
    "causal": (lambda: masks.causal(), "masks.causal()"),
    "causal_aligned": (lambda: masks.causal("top_left"), "masks.causal(align='top_left')"),
    "causal_offset": (lambda: masks.causal(offset=[0, 2]), "masks.causal(offset=[0, 2])"),
    "causal_far": (lambda: masks.causal(offset=2), "masks.causal(offset=2)"),
    "window": (lambda: masks.window(None, 1), "masks.window(None, 1)"),
    "sliding": (lambda: masks.sliding(2), "masks.sliding(2)"),
    "padding": (lambda: masks.padding([2, 4]), "masks.padding([2, 4])"),
    "padding_keep": (
        lambda: masks.padding(keep=KEEP, queries=[3, 4]),
        "masks.padding(keep=[[False, True, True, True], [True, True, False, True]], queries=[3, 4])",
    ),
    "documents": (lambda: masks.documents([0, 0, 1, 1]), "masks.documents([0, 0, 1, 1])"),
    "documents_mixed": (
        lambda: masks.documents([0, 1, 0, 1], causal="top_left"),
        "masks.documents([0, 1, 0, 1], causal='top_left')",
    ),
    "documents_packed": (
        lambda: masks.documents(cu_seqlens=[0, 1, 4], window=(1, None)),
        "masks.documents(cu_seqlens=[0, 1, 4], window=(1, None))",
    ),
    "prefix": (lambda: masks.prefix([2, 0]), "masks.prefix([2, 0])"),
    "chunked": (lambda: masks.chunked(4, "top_left"), "masks.chunked(4, align='top_left')"),
    "dense_runs": (lambda: masks.dense(np.tri(4, dtype=bool)), "masks.dense(<bool array of shape (4, 4)>)"),
    "dense": (lambda: masks.dense(ARRAY), "masks.dense(<bool array of shape (2, 3, 4, 4)>)"),
    "sliding_sinks": (lambda: masks.sliding(2, sinks=1), "masks.sliding(2, sinks=1)"),
    "global_tokens": (lambda: masks.global_tokens([1, 0]), "masks.global_tokens([1, 0])"),
    "global_keys": (lambda: masks.global_tokens(2, queries=False), "masks.global_tokens(2, queries=False)"),
    "block_sparse": (
        lambda: masks.block_sparse([[0], [1, 0]], 2),
        "masks.block_sparse(<bool array of shape (2, 2)>, 2)",
    ),
    "or": (
        lambda: masks.sliding(2) | masks.global_tokens([1, 0]) & masks.causal() | masks.padding([1, 2]),
        "masks.sliding(2) | (masks.global_tokens([1, 0]) & masks.causal()) | masks.padding([1, 2])",
    ),
    "or_irregular": (
        lambda: masks.dense(ARRAY) | masks.sliding(1),
        "masks.dense(<bool array of shape (2, 3, 4, 4)>) | masks.sliding(1)",
    ),
    "and": (
        lambda: masks.causal() & masks.padding([2, 4]) & masks.sliding(3),
        "masks.causal() & masks.padding([2, 4]) & masks.sliding(3)",
    ),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def test_printed(kind):
    make, text = kind
    assert repr(make()) == text


def test_long_arrays_print_as_their_shape():
    assert repr(masks.padding(np.arange(9))) == "masks.padding(<int64 array of shape (9,)>)"
    assert repr(masks.documents(np.zeros((2, 9), "u1"))) == "masks.documents(<uint8 array of shape (2, 9)>)"


def test_pickled_copied_and_deep_copied(kind):
    mask = kind[0]()
    before = mask.dense(4, 4)
    for other in (
        *(pickle.loads(pickle.dumps(mask, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
        copy.copy(mask),
        copy.deepcopy(mask),
        copy.deepcopy([mask, mask])[1],
    ):
        assert type(other) is type(mask) and repr(other) == repr(mask)
        assert same(other.dense(4, 4), before)
        assert not any(bound.flags.writeable for bound in other.intervals(4, 4))


def test_a_pickle_does_not_carry_the_last_result():
    mask = masks.causal("top_left")
    small = len(pickle.dumps(mask))
    mask.intervals(100_000, 100_000)
    assert len(pickle.dumps(mask)) == small


def test_never_changed(kind):
    mask = kind[0]()
    for name in ("offset", "_batch", "_last", "_lo", "anything"):
        with pytest.raises(AttributeError, match=name):
            setattr(mask, name, 1)
        with pytest.raises(AttributeError, match=name):
            delattr(mask, name)
    for bound in mask.intervals(4, 4):
        with pytest.raises(ValueError, match="read-only"):
            bound[...] = 0


def test_arrays_of_the_caller_are_copied_and_left_writable():
    lengths, offsets, borders = np.array([2, 4]), np.array([0, 1]), np.array([0, 1, 4])
    ids, keep, array = np.array([0, 0, 1, 1]), KEEP.copy(), ARRAY.copy()
    made = {
        "lengths": (masks.padding(lengths, queries=lengths), lengths),
        "prefix": (masks.prefix(lengths), lengths),
        "offsets": (masks.causal(offset=offsets), offsets),
        "borders": (masks.documents(cu_seqlens=borders), borders),
        "ids": (masks.documents(ids), ids),
        "keep": (masks.padding(keep=keep, queries=keep), keep),
        "array": (masks.dense(array), array),
    }
    before = {name: mask.dense(4, 4) for name, (mask, _) in made.items()}
    printed = {name: repr(mask) for name, (mask, _) in made.items()}
    for _, given in made.values():
        given[...] = 0
    for name, (mask, _) in made.items():
        fresh = pickle.loads(pickle.dumps(mask))  # without the last result
        assert same(fresh.dense(4, 4), before[name]) and repr(mask) == printed[name]


def test_results_belong_to_the_caller():
    mask = masks.causal()
    mask.dense(4, 4)[...] = True
    mask.additive(4, 4)[...] = 7
    assert same(mask.dense(4, 4), np.tri(4, dtype=bool))


def test_the_last_result_is_kept(kind):
    mask = kind[0]()
    first = mask._lower(2, 3, 4, 4)
    assert mask._lower(2, 3, 4, 4) is first


def test_other_lengths_make_another_result():
    mask = masks.causal("bottom_right")
    for q_len, k_len in [(3, 5), (5, 3), (3, 5), (1, 1)]:
        assert mask._lower(1, 1, q_len, k_len)[1].ravel().tolist() == [
            min(max(i + 1 + k_len - q_len, 0), k_len) for i in range(q_len)
        ]


def test_two_threads_may_use_one_mask():
    mask = masks.causal("bottom_right") & masks.padding([3, 5])
    expected = {n: mask.dense(n, n) for n in (5, 8, 9)}
    wrong = []

    def work(n):
        for _ in range(300):
            if not same(mask.dense(n, n), expected[n]):
                wrong.append(n)

    workers = [threading.Thread(target=work, args=(n,)) for n in expected]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_an_intersection_is_flat_and_shares_its_parts():
    a, b, c = masks.causal(), masks.padding([2]), masks.sliding(3)
    assert repr((a & b) & c) == repr(a & (b & c)) == " & ".join(map(repr, (a, b, c)))


def test_an_array_on_the_left_is_a_mask_too():
    array = np.arange(16).reshape(4, 4) % 3 > 0
    for mask in (array & masks.causal(), masks.causal() & array):
        assert isinstance(mask, masks.Mask)
        assert same(mask.dense(4, 4), array & np.tri(4, dtype=bool))


@pytest.mark.parametrize("length", [131072])
def test_c48_memory_by_the_length(length):
    """131072 x 131072 pairs would be 16 GiB; each mask is built, brought to intervals and measured."""
    ids = np.arange(length) // 1000
    tracemalloc.start()
    try:
        for make in (
            lambda: masks.sliding(128),
            lambda: masks.window(127, 0, "bottom_right"),
            lambda: masks.causal() & masks.window(127, None),
            lambda: masks.documents(ids, causal="top_left"),
            lambda: masks.documents(cu_seqlens=np.arange(0, length + 1, 1024), causal="bottom_right"),
            lambda: masks.prefix(1000),
            lambda: masks.padding(length - 1, queries=length - 1) & masks.sliding(128),
            lambda: masks.padding(keep=np.arange(length) >= 5),
        ):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            mask = make()
            mask.intervals(length, length)
            area = mask.area(length, length)
            assert 0 < area <= length**2
            assert tracemalloc.get_traced_memory()[1] - before < 32 << 20
    finally:
        tracemalloc.stop()
    assert masks.sliding(128).area(length, length) == 128 * length - 127 * 128 // 2


def test_axes_as_long_as_intervals_reach():
    """One query against 2**31 - 1 keys, at its end and before its beginning."""
    longest = 2**31 - 1
    lo, hi = masks.sliding(5, "bottom_right").intervals(1, longest)
    assert (lo.item(), hi.item()) == (longest - 5, longest)
    lo, hi = masks.causal(offset=[-(2**40), 2**40]).intervals(1, longest)
    assert hi.ravel().tolist() == [0, longest]
    assert masks.causal("bottom_right").area(3, longest) == 3 * longest - 3


# ---------------------------------------------------------------------------------------------------
# Pictures


def rectangles(mask):
    """The filled stretches of a picture, as SVG elements; the panels' grounds left out."""
    root = ElementTree.fromstring(mask._repr_svg_())
    return [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("fill") is None]


def test_a_picture_is_svg_that_says_what_the_mask_is(kind):
    mask = kind[0]()
    root = ElementTree.fromstring(mask._repr_svg_())
    assert root.tag.endswith("svg")
    assert repr(mask) in "".join(root.itertext())


def test_a_picture_fills_what_may_be_seen():
    filled = rectangles(masks.dense(np.tri(5, dtype=bool)))
    assert len(filled) == 5
    assert [round(5 * float(r.get("width")) / 180) for r in filled] == [1, 2, 3, 4, 5]
    holes = rectangles(masks.dense(np.array([[1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0]], bool)))
    assert [round(6 * float(r.get("x")) / 180) for r in holes] == [0, 2, 5]
    assert [round(6 * float(r.get("width")) / 180) for r in holes] == [1, 2, 1]


def test_a_picture_stays_small():
    for mask in (
        masks.documents(cu_seqlens=[0, 50_000, 100_000], causal="top_left"),
        masks.padding(np.full(100, 100_000)),
        masks.padding([30]) & masks.causal() & masks.prefix(40),
    ):
        assert len(mask._repr_svg_()) < 50_000


@pytest.mark.parametrize("make", [
    lambda: masks.padding([0]),
    lambda: masks.padding(np.zeros(0, int)),
    lambda: masks.padding(keep=np.zeros((2, 0), bool)),
    lambda: masks.documents(cu_seqlens=[0]),
    lambda: masks.dense(np.zeros((0, 3), bool)),
])  # fmt: skip
def test_pictures_of_nothing(make):
    assert rectangles(make()) == []
