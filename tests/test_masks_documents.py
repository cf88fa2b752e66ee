"""Packed documents: a query sees its own document, whatever the order, and aligned inside it."""

import numpy as np
import pytest
from tegula import masks
from test_masks import check, entries, pairs

INSIDE = {
    "whole": {},
    "bottom_right": {"causal": "bottom_right"},
    "top_left": {"causal": "top_left"},
    "window": {"window": (2, 1)},
    "window_left": {"window": (1, None)},
    "window_self": {"window": (0, 0)},
    "sliding": {"causal": "top_left", "window": (1, 0)},
    "causal_window_left": {"causal": "bottom_right", "window": (2, None)},
}


def rule(q_ids, k_ids, causal=None, window=None):
    """When query i sees key j, by counting the places of their document up to each."""
    q_ids, k_ids = list(q_ids), list(k_ids)

    def may_see(i, j):
        if q_ids[i] != k_ids[j]:
            return False
        doc = q_ids[i]
        place, key = q_ids[:i].count(doc), k_ids[:j].count(doc)
        if causal != "top_left":
            place += k_ids.count(doc) - q_ids.count(doc)
        left, right = window or (None, None)
        if causal is not None:
            right = 0
        return (left is None or key >= place - left) and (right is None or key <= place + right)

    return may_see


def ids_of(cu_seqlens):
    return np.repeat(np.arange(len(cu_seqlens) - 1), np.diff(cu_seqlens))


BORDERS = {
    "one": ([0, 9], [0, 9]),
    "many": ([0, 3, 4, 9, 17], [0, 3, 4, 9, 17]),
    "cross": ([0, 1, 4, 9], [0, 5, 6, 8]),
    "c51_empty_documents": ([0, 0, 3, 3, 5], [0, 2, 2, 4, 9]),
    "all_empty": ([0, 0, 0], [0, 0, 0]),
    "no_keys": ([0, 2, 5], [0, 0, 0]),
    "no_queries": ([0, 0, 0], [0, 4, 5]),
    "no_documents": ([0], [0]),
    "long": ([0, 63, 64, 65, 130], [0, 64, 64, 129, 131]),
}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("borders", BORDERS)
def test_borders(borders, inside):
    q, k = BORDERS[borders]
    mask = masks.documents(cu_seqlens=q, cu_seqlens_k=k, **INSIDE[inside])
    expected = pairs(q[-1], k[-1], rule(ids_of(q), ids_of(k), **INSIDE[inside]))
    check(mask, q[-1], k[-1], expected)
    if q == k:
        check(masks.documents(cu_seqlens=q, **INSIDE[inside]), q[-1], q[-1], expected)


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("borders", BORDERS)
def test_ids_say_the_same_as_borders(borders, inside):
    q, k = BORDERS[borders]
    mask = masks.documents(ids_of(q), ids_of(k), **INSIDE[inside])
    check(mask, q[-1], k[-1], pairs(q[-1], k[-1], rule(ids_of(q), ids_of(k), **INSIDE[inside])))


IDS = {
    "falling": ([9, 9, 4, 4, 4, -1], [9, 4, 4, -1, -1]),
    "queries_in_any_order": ([1, 2, 1, 3, 1, 2], [3, 3, 1, 1, 1, 2]),
    "keys_of_other_documents": ([5, 6], [1, 2, 2, 1]),
    "interleaved": ([0, 1, 0, 1, 2, 0], [0, 1, 0, 1, 2, 0, 0]),
    "one_stranger": ([7] * 8, [7, 7, 7, 3, 7, 7]),
}
SCATTERED = {"interleaved", "one_stranger"}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("ids", IDS)
def test_ids_in_any_order(ids, inside):
    q, k = IDS[ids]
    expected = pairs(len(q), len(k), rule(q, k, **INSIDE[inside]))
    structured = ids not in SCATTERED or inside == "window_self"
    check(masks.documents(q, k, **INSIDE[inside]), len(q), len(k), expected, structured)


@pytest.mark.parametrize("inside", INSIDE)
def test_ids_per_batch_entry(inside):
    q = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2], [1, 0, 1, 0, 0]])
    k = np.array([[1, 1, 0, 0], [0, 0, 1, 2], [0, 1, 0, 0]])
    for rows in ([0], [0, 1], [0, 1, 2]):
        rules = [rule(q[b], k[b], **INSIDE[inside]) for b in rows]
        expected = entries(len(rows), 5, 4, lambda b, i, j, rules=rules: rules[b](i, j))
        if len(rows) == 1:
            expected = expected[0, 0]
        structured = 2 not in rows or inside == "window_self"
        check(masks.documents(q[rows], k[rows], **INSIDE[inside]), 5, 4, expected, structured)


def test_ids_of_queries_shared_by_the_batch():
    q, k = np.array([0, 0, 1]), np.array([[0, 1, 1, 1], [0, 0, 0, 1]])
    expected = entries(2, 3, 4, lambda b, i, j: q[i] == k[b, j])
    check(masks.documents(q, k), 3, 4, expected)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_c14_every_integer_type(dtype):
    ids = np.array([3, 3, 1, 1, 1], dtype)
    check(masks.documents(ids), 5, 5, pairs(5, 5, lambda i, j: ids[i] == ids[j]))
    borders = np.array([0, 2, 5], dtype)
    check(masks.documents(cu_seqlens=borders), 5, 5, pairs(5, 5, lambda i, j: (i < 2) == (j < 2)))
    lengths = np.array([1, 3], dtype)
    check(masks.padding(lengths), 2, 3, entries(2, 2, 3, lambda b, i, j: j < lengths[b]))
    check(masks.causal(offset=lengths), 2, 5, entries(2, 2, 5, lambda b, i, j: j <= i + int(lengths[b])))


def test_ids_that_no_common_type_holds():
    """As floats 2**63 and 2**63 + 1 would be the same number; and no unsigned id equals -1."""
    q = np.array([2**63, 2**63 + 1, 2**64 - 1, 7], np.uint64)
    check(masks.documents(q), 4, 4, np.eye(4, dtype=bool))
    check(masks.documents(q, np.array([7, -1])), 4, 2, pairs(4, 2, lambda i, j: (i, j) == (3, 0)))


def test_c49_documents_stay_apart_whatever_comes_with_them():
    documents = masks.documents(cu_seqlens=[0, 4, 9])
    apart = pairs(9, 9, lambda i, j: (i < 4) == (j < 4))
    everything = np.ones((9, 9), bool)
    for other in (masks.full(), masks.causal(), masks.prefix(9), masks.dense(everything), everything):
        for mask in (documents & other, other & documents):
            assert (mask.dense(9, 9) <= apart).all()


def test_c51_zero_length_documents():
    """The packed batch of the report: queries 0, 0, 3, 0, 2 long, keys 0, 2, 0, 2, 5."""
    mask = masks.documents(cu_seqlens=[0, 0, 3, 3, 5], cu_seqlens_k=[0, 2, 2, 4, 9])
    visible = mask.dense(5, 9).astype(int).tolist()
    assert visible == [[0] * 9] * 3 + [[0, 0, 0, 0, 1, 1, 1, 1, 1]] * 2
