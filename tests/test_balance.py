"""How the tasks of a call divide among many workers, and that cutting them changes no bit."""

import heapq
import itertools

import numpy as np
import pytest
import tegula as tg
from tegula import masks

pytestmark = pytest.mark.isa_once

WORKERS = (8, 64, 192)
rng = np.random.default_rng(7)
RAGGED = np.cumsum([0, *rng.integers(1, 1024, 64)])
HUGE = np.cumsum([0, *[3] * 2000, 4096, *[3] * 2000])
LENGTHS = rng.integers(1, 513, 32)


def case(mask, q_len, k_len=None, batch=1, heads=12, **options):
    return {"mask": mask, "q_len": q_len, "k_len": k_len, "batch": batch, "heads": heads, **options}


CASES = {
    "full": case(None, 2048),
    "causal": case(masks.causal(), 2048),
    "causal batch": case(masks.causal(), 512, batch=8),
    "ragged": case(masks.documents(cu_seqlens=RAGGED), int(RAGGED[-1])),
    "ragged causal": case(masks.documents(cu_seqlens=RAGGED, causal="bottom_right"), int(RAGGED[-1])),
    "huge": case(masks.documents(cu_seqlens=HUGE), int(HUGE[-1])),
    "tiny": case(masks.documents(cu_seqlens=np.arange(0, 30001, 3)), 30000),
    "padding": case(masks.padding(LENGTHS, queries=LENGTHS), 512, batch=32),
    "window": case(masks.sliding(256), 8192, heads=8),
    "one head": case(None, 8192, heads=1),
    "one causal head": case(masks.causal(), 8192, heads=1),
    "grouped": case(masks.causal(), 2048, heads=32, key_heads=8, dim=128),
}
DECODE = case(None, 1, 32768, batch=8, heads=32, key_heads=8, dim=128)

# Where the cells of the backward pass, which keep the bits, are too large for so many workers, or
# wait for one another to be added up in order.
COARSE = {
    ("causal", 192, True): 1.4,
    ("causal batch", 192, True): 1.25,
    ("grouped", 192, True): 1.3,
    ("window", 64, True): 1.75,
    ("window", 192, True): 2.2,
}


def imbalance(costs, workers):
    """The time of the last worker over the mean, when each takes the next task as soon as it is free."""
    free = [0.0] * workers
    for cost in costs:
        heapq.heapreplace(free, free[0] + cost)
    return max(free) * workers / costs.sum()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", CASES)
def test_balance(name, workers, backward):
    found = tg.explain(**CASES[name], backward=backward, threads=workers)
    assert found.threads == workers
    assert 1 / found.balance <= COARSE.get((name, workers, backward), 1.15)


@pytest.mark.parametrize("workers", WORKERS)
def test_balance_of_decoding(workers):
    found = tg.explain(**DECODE, threads=workers)
    assert 1 / found.balance <= 1.15


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", CASES)
def test_balance_is_that_of_the_tasks(name, workers):
    found = tg.explain(**CASES[name], threads=workers)
    assert 1 / found.balance == pytest.approx(imbalance(found.tasks, workers))


@pytest.mark.parametrize("name", CASES)
def test_tasks_are_not_too_fine(name):
    found = tg.explain(**CASES[name], threads=8)
    assert len(found.tasks) <= max(8 * 100, found.blocks / 4)


PIECES = {
    "tiny and huge": np.cumsum([0, *[3] * 130, 700, *[1] * 200, 0, 0, 5, 400, 400]),
    "long": np.cumsum([0, 500, 1, 450, 2, 390]),
}


@pytest.mark.parametrize("key_heads", [1, 2])
@pytest.mark.parametrize("name", PIECES)
def test_same_bits_for_any_number_of_threads(name, key_heads):
    borders = PIECES[name]
    length = int(borders[-1])
    q, grad = rng.standard_normal((2, 2, length, 16), np.float32)
    k, v = rng.standard_normal((2, key_heads, length, 16), np.float32)
    mask = masks.documents(cu_seqlens=borders)

    def results(threads):
        out, lse = tg.attention(q, k, v, mask=mask, return_lse=True, threads=threads)
        return out, lse, *tg.attention_backward(grad, q, k, v, out, lse, mask=mask, threads=threads)

    expected = results(1)
    for threads in (2, 5, 16):
        for one, many in zip(expected, results(threads), strict=True):
            np.testing.assert_array_equal(one, many)


def test_segments_with_gaps_in_keys_and_queries():
    """Rows that see nothing, keys that nobody sees, and documents without one or the other."""
    q_borders = np.cumsum([0, 500, 0, 7, 600, 450])
    k_borders = np.cumsum([0, 300, 40, 0, 1100, 500])
    mask = masks.documents(cu_seqlens=q_borders, cu_seqlens_k=k_borders)
    q_len, k_len = int(q_borders[-1]), int(k_borders[-1])
    q, grad = rng.standard_normal((2, 1, q_len, 8))
    k, v = rng.standard_normal((2, 1, k_len, 8))
    out, lse = tg.attention(q, k, v, mask=mask, return_lse=True)
    for threads in (1, 6):
        dq, dk, dv = tg.attention_backward(grad, q, k, v, out, lse, mask=mask, threads=threads)
        assert not dk[:, 300:340].any() and not dv[:, 300:340].any()
        assert not dq[:, 500:507].any()
        for (a, b), (c, d) in zip(itertools.pairwise(q_borders), itertools.pairwise(k_borders), strict=True):
            if a == b or c == d:
                continue
            part = slice(a, b), slice(c, d)
            one = tg.attention_backward(
                *(x[:, part[0]] for x in (grad, q)), *(x[:, part[1]] for x in (k, v)), out[:, part[0]], lse[:, part[0]]
            )
            for whole, alone, rows in zip((dq, dk, dv), one, (part[0], part[1], part[1]), strict=True):
                np.testing.assert_allclose(whole[:, rows], alone, rtol=1e-12, atol=1e-12)
