"""Backward needs memory by the length, never by its square, and lives with threads and forks as forward does."""

import threading

import pytest
import tegula as tg
from cases import AttentionCase
from support import all_same_bits, backward, run_python
from test_attention_memory import MEASURE, MEGABYTE, extra_memory
from test_threads import FORK

once = pytest.mark.isa_once

# One training step: result, log-sum-exp and gradients, all of them new arrays.
STEP = """
    def step(q, k, v, **options):
        out, lse = tg.attention(q, k, v, **options, return_lse=True)
        return tg.attention_backward(out, q, k, v, out, lse, **options)
"""


@once
@pytest.mark.parametrize(
    "options",
    [
        "{'dropout_p': 0.1, 'seed': 1}",
        "{'mask': tg.masks.causal(), 'dropout_p': 0.1, 'seed': 1}",
        "{'bias': np.zeros((1, 8192), np.float32), 'sinks': np.zeros(1, np.float32)}",
        "{'bias': np.zeros((8192, 1), np.float32), 'mask': tg.masks.causal()}",
        "{'mask': np.broadcast_to(np.ones((1, 8192), bool), (8192, 8192))}",
    ],
    ids=["dropout", "causal-dropout", "bias", "bias-causal", "mask-broadcast"],
)
def test_c64_forward_and_backward_over_8192_keys_stay_small(options):
    """The scores alone would be 256 MB; a row of 8 float32 numbers for each of 8192 positions is 256 kB."""
    used = extra_memory(
        STEP
        + f"""
    q, k, v = (np.ones((1, 1, 8192, 8), np.float32) for _ in range(3))
    extra_memory(lambda: step(q, k, v, **{options}))
    """
    )
    assert used < 16 * MEGABYTE


@once
@pytest.mark.parametrize("mask", ["m.sliding(128)", "m.documents(cu_seqlens=np.arange(0, n + 1, 128))"])
def test_c48_a_structured_mask_over_131072_keys(mask):
    """2^34 pairs, of which one in a thousand is computed. An array of L x D is 8 MB, result and gradients four."""
    used = extra_memory(
        STEP
        + f"""
    n, m = 131072, tg.masks
    q, k, v = (np.ones((1, 1, n, 16), np.float32) for _ in range(3))
    mask = {mask}
    extra_memory(lambda: step(q, k, v, mask=mask))
    """
    )
    assert used < 128 * MEGABYTE


@once
def test_grouped_heads_are_not_repeated_in_memory():
    """64 query heads share one key/value head of 8 MB; its gradient is not made once for each of them."""
    used = extra_memory(
        STEP
        + """
    q = np.ones((1, 64, 1, 64), np.float32)
    k, v = (np.ones((1, 1, 16384, 64), np.float32) for _ in range(2))
    extra_memory(lambda: step(q, k, v))
    """
    )
    assert used < 64 * MEGABYTE  # dk and dv are 8 MB; for every head they would be 512 MB


@once
def test_calls_do_not_leak():
    """A thousand calls, good and bad, leave memory where it was."""
    grown = run_python(
        MEASURE
        + """
    q, k, v = (np.ones((2, 2, 64, 16), np.float32) for _ in range(3))
    mask, bias = tg.masks.causal() & tg.masks.padding([64, 3]), np.zeros((64, 64), np.float32)
    out, lse = tg.attention(q, k, v, mask=mask, bias=bias, return_lse=True)
    def calls(n):
        for _ in range(n):
            tg.attention_backward(out, q, k, v, out, lse, mask=mask, bias=bias, sinks=np.zeros(2))
            try:
                tg.attention_backward(out, q, k[:, :, 1:], v, out, lse)
            except ValueError:
                pass
        return status("VmRSS")
    print(-calls(300) + calls(1000))
    """
    )
    assert int(grown) < 4 * MEGABYTE


@once
def test_c54_a_million_rows_under_a_window():
    """2^40 pairs, more than 32 bits can count and far more than can be walked over: only 9 a row are seen.

    The last rows have the gradients that they have alone.
    """
    run_python(
        """
    import numpy as np
    import tegula as tg
    from support import backward
    n, rng, mask = 2**20, np.random.default_rng(0), tg.masks.sliding(9)
    arrays = [rng.standard_normal((1, 1, n, 4), dtype=np.float32) for _ in range(4)]
    whole = backward(*arrays, mask=mask)
    alone = backward(*(x[:, :, n - 64 :] for x in arrays), mask=mask)
    inner = np.s_[:, :, -48:]  # the rows before see keys that are cut off
    for x, y in zip(whole, alone):
        np.testing.assert_allclose(x[inner], y[inner], rtol=1e-4, atol=1e-5)
    """,
        timeout=120,
    )


# ---------------------------------------------------------------------------------------------------
# Threads

SETUP = """
    import os, signal, sys, threading, time
    import numpy as np
    import tegula as tg

    rng = np.random.default_rng(0)
    q, k, v, grad_out = rng.standard_normal((4, 2, 4, 300, 64), dtype=np.float32)
    out, lse = tg.attention(q, k, v, return_lse=True, threads=1)

    def call(threads=None):
        return np.stack(tg.attention_backward(grad_out, q, k, v, out, lse, threads=threads))

    def tasks():
        return len(os.listdir("/proc/self/task"))
"""


@once
def test_c73_fork_after_a_parallel_call():
    run_python(
        SETUP
        + FORK
        + """
    expect = call(threads=2)
    for _ in range(3):
        assert child_gives(expect) == 0
        assert call(threads=2).tobytes() == expect.tobytes()
    """
    )


@once
def test_c72_calls_start_no_more_threads_than_asked_for():
    run_python(
        SETUP
        + """
    base = tasks()
    call(threads=1)
    assert tasks() == base, "one thread is the caller's own"
    call(threads=3)
    assert tasks() <= base + 2
    """
    )


@once
def test_the_gil_is_released():
    """Another Python thread keeps running while a call works."""
    run_python(
        SETUP
        + """
    q, k, v = rng.standard_normal((3, 1, 2, 3000, 64), dtype=np.float32)
    out, lse = tg.attention(q, k, v, return_lse=True)
    ticks, started, done = 0, threading.Event(), threading.Event()
    def work():
        started.set()
        tg.attention_backward(out, q, k, v, out, lse, threads=1)
        done.set()
    sys.setswitchinterval(10)  # a thread that holds the GIL is not made to drop it
    worker = threading.Thread(target=work)
    worker.start()
    started.wait()
    while not done.is_set():
        time.sleep(0.001)
        ticks += 1
    worker.join()
    assert ticks > 10, ticks
    """
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_python_threads_at_once_get_their_own_results(threads):
    cases = [AttentionCase(200, 100 + i, 64, heads=4, mask="causal", bias="key") for i in range(4)]
    work = [((case.grad_out(), *case.arrays()), case.options(tg.masks)) for case in cases]
    alone = [backward(*arrays, **options) for arrays, options in work]
    wrong = []

    def repeat(i):
        arrays, options = work[i]
        for _ in range(5):
            if not all_same_bits(backward(*arrays, **options, threads=threads), alone[i]):
                wrong.append(i)

    callers = [threading.Thread(target=repeat, args=(i,)) for i in range(len(work))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
        assert not caller.is_alive()
    assert not wrong
