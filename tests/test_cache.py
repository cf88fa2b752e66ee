"""Memory of large results is kept for those that follow: within the limit, in threads, across fork."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import numpy as np
import pytest
import tegula as tg
from support import run_python

pytestmark = pytest.mark.isa_once

MIB = 1 << 20


@pytest.fixture(autouse=True)
def clean():
    gc.collect()
    tg.empty_cache()
    yield
    tg.set_cache_limit(None)
    tg.empty_cache()


def cache():
    return tg.config()["cache"]


def table(mib, value=0):
    """A result of so many MiB; positions of one dimension: sin(value)."""
    return tg.positional_encoding(np.full(mib * MIB // 4, value), 1)


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again():
    first = table(4, 1)
    where = address(first)
    assert cache()["in_use"] >= 4 * MIB
    del first
    assert cache()["in_use"] == 0
    assert cache()["kept"] >= 4 * MIB
    second = table(4, 2)
    assert address(second) == where
    assert cache()["kept"] == 0
    assert (second == np.float32(np.sin(2))).all()


def test_living_results_share_nothing():
    alive = [table(2, value) for value in range(5)]
    view = alive[0][10:20]
    del alive[0]  # the view keeps it
    alive.append(table(2, 9))
    assert (view == 0).all()
    for array, value in zip(alive, [1, 2, 3, 4, 9], strict=True):
        assert (array == np.float32(np.sin(value))).all()
    assert len({address(x) for x in [view, *alive]}) == 6


def test_the_limit_holds():
    tg.set_cache_limit(8 * MIB)
    alive = [table(4) for _ in range(5)]
    del alive
    assert 0 < cache()["kept"] <= 8 * MIB
    large = table(16)
    del large
    assert cache()["kept"] <= 8 * MIB
    tg.set_cache_limit(0)
    assert cache()["kept"] == 0
    small = table(2)
    del small
    assert cache() == {"limit": 0, "kept": 0, "in_use": 0}
    tg.set_cache_limit(None)
    assert cache()["limit"] > 0


def test_a_much_larger_block_is_not_used_for_a_small_result():
    large = table(64)
    del large
    small = table(2)
    assert cache()["kept"] >= 64 * MIB
    assert small.nbytes == 2 * MIB
    tg.empty_cache()
    assert cache()["kept"] == 0
    assert (small == 0).all()


@pytest.mark.parametrize(("limit", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError), ("1", TypeError)])
def test_wrong_limits(limit, error):
    with pytest.raises(error, match="bytes must be"):
        tg.set_cache_limit(limit)


def test_limit_of_the_environment():
    script = "import tegula as tg; print(tg.config()['cache']['limit'])"
    assert run_python(script, TEGULA_CACHE_BYTES=123456) == "123456\n"
    usual = run_python(script, TEGULA_CACHE_BYTES=None)
    assert int(usual) > 0
    assert run_python(script, TEGULA_CACHE_BYTES="") == usual


@pytest.mark.parametrize("limit", ["many", "1GB", "1e8", "-5"])
def test_wrong_limits_of_the_environment(limit):
    script = """
    import numpy as np, pytest, tegula as tg
    large = np.zeros((1, 4, 1024, 64), np.float32)
    for call in (tg.config, lambda: tg.attention(large, large, large)):
        with pytest.raises(ValueError, match=f"TEGULA_CACHE_BYTES must be a number of bytes, got 'LIMIT'"):
            call()
    """
    run_python(script.replace("LIMIT", limit), TEGULA_CACHE_BYTES=limit)


def test_threads_and_results_that_die_elsewhere():
    def work(number):
        for step in range(20):
            value = number * 20 + step
            made = table(2, value)
            kept.append(made)
            assert (made == np.float32(np.sin(value))).all()
            if len(kept) > 6:
                kept.pop(0)

    kept = []
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept.clear()
    assert cache()["in_use"] == 0


def test_fork():
    before = table(2, 3)
    dead = table(4, 1)
    del dead
    child = os.fork()
    if child == 0:
        fine = (before == np.float32(np.sin(3))).all() and (table(4, 5) == np.float32(np.sin(5))).all()
        os._exit(0 if fine else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    again = table(4, 6)
    assert (again == np.float32(np.sin(6))).all() and (before == np.float32(np.sin(3))).all()


def test_fork_while_another_thread_takes_memory():
    script = """
    import os, threading
    import numpy as np
    import tegula as tg

    stop = False

    def busy():
        while not stop:
            tg.positional_encoding(2**18, 1)

    thread = threading.Thread(target=busy)
    thread.start()
    for _ in range(30):
        child = os.fork()
        if child == 0:
            tg.positional_encoding(2**18, 1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    stop = True
    thread.join()
    print("fine")
    """
    assert run_python(script, PYTHONWARNINGS="ignore") == "fine\n"


def test_dead_memory_does_not_show_in_gradients():
    """A dense gradient is zeros but for the rows that occur, whatever its memory held."""
    dead = tg.positional_encoding(np.full(1000, 1), 1024)
    del dead
    assert cache()["kept"] > 0
    for ids in (np.arange(0, 1000, 2), np.array([7])):  # many rows, few rows
        grad = np.ones((ids.size, 1024), np.float32)
        dtable = tg.embedding_backward(grad, ids, num_rows=1000)
        expected = np.zeros((1000, 1024), np.float32)
        expected[ids] = 1
        assert np.array_equal(dtable, expected)
        del dtable


def test_results_of_every_function():
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, 8, 1024, 64), dtype=np.float32)
    weight = rng.standard_normal((100, 512), dtype=np.float32)
    ids = rng.integers(0, 100, (2, 512))
    mask = tg.masks.dense(rng.random((1100, 1000)) > 0.5)

    def results():
        out, lse = tg.attention(q, q, q, return_lse=True)
        yield from (out, *tg.attention_backward(out, q, q, q, out, lse))
        yield tg.embedding(ids, weight, scale=2.0)
        yield mask.dense(1100, 1000)

    first = [x.copy() for x in results()]
    gc.collect()
    assert cache()["in_use"] == 0
    before = cache()["kept"]
    for expected, found in zip(first, results(), strict=True):
        assert np.array_equal(expected, found)
    assert before >= max(x.nbytes for x in first)


def test_tensors():
    torch = pytest.importorskip("torch")
    q = torch.randn(1, 1024, 8, 64).transpose(1, 2)
    reference = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    for _ in range(2):
        out = tg.attention(q, q, q)
        assert cache()["in_use"] >= out.nbytes
        assert out.stride() == q.stride()
        torch.testing.assert_close(out, reference, atol=1e-5, rtol=1e-5)
        view = out[:, 1]
        del out
        assert cache()["in_use"] > 0
        del view
        assert cache()["in_use"] == 0
    leaf = q.detach().bfloat16().requires_grad_()
    tg.attention(leaf, leaf, leaf).sum().backward()
    assert leaf.grad.dtype == torch.bfloat16
    weight = torch.randn(1000, 1024, requires_grad=True)
    for _ in range(2):
        weight.grad = None
        tg.embedding(torch.arange(0, 1000, 2), weight).sum().backward()
        assert torch.equal(weight.grad[:, 0], (torch.arange(1000) % 2 == 0).float())
    gone = weakref.ref(weight.grad)
    weight.grad = None
    del leaf
    gc.collect()
    assert gone() is None
    assert cache()["in_use"] == 0
