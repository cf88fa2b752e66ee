"""An own pool of threads: as many as asked for, fork-safe, asleep when idle, and without the GIL."""

import os
import threading

import numpy as np
import pytest
import tegula as tg
from cases import AttentionCase
from support import run_python, same_bits

# Enough work for every thread that is asked for.
BIG = AttentionCase(400, 400, 64, heads=8, leading=(2,), mask="causal")

SETUP = """
    import os, signal, sys, threading, time
    import numpy as np
    import tegula as tg

    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 8, 400, 64), dtype=np.float32)

    def call(threads=None):
        return tg.attention(q, k, v, mask=tg.masks.causal(), threads=threads)

    def tasks():
        return len(os.listdir("/proc/self/task"))
"""

once = pytest.mark.isa_once


# ---------------------------------------------------------------------------------------------------
# How many


@once
@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_can_be_set_and_asked_for():
    for n in (3, 1, np.int64(2)):
        tg.set_num_threads(n)
        assert tg.get_num_threads() == n == tg.config()["threads"]


@once
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("n", "error"), [(0, ValueError), (-2, ValueError), (1.5, TypeError), ("2", TypeError), (True, TypeError)]
)
def test_a_bad_number_of_threads_is_refused(n, error):
    tg.set_num_threads(2)
    with pytest.raises(error, match="threads"):
        tg.set_num_threads(n)
    assert tg.get_num_threads() == 2


COUNT = "import tegula as tg; print(tg.get_num_threads())"
UNSET = {"TEGULA_NUM_THREADS": None, "OMP_NUM_THREADS": None}


@once
@pytest.mark.parametrize(
    ("environment", "expect"),
    [
        ({"TEGULA_NUM_THREADS": 3}, 3),
        ({"OMP_NUM_THREADS": 5}, 5),
        ({"TEGULA_NUM_THREADS": 3, "OMP_NUM_THREADS": 5}, 3),
    ],
)
def test_the_environment_sets_the_number_of_threads(environment, expect):
    assert int(run_python(COUNT, **UNSET | environment)) == expect
    script = "import tegula as tg; tg.set_num_threads(7); print(tg.get_num_threads())"
    assert int(run_python(script, **UNSET | environment)) == 7


@once
@pytest.mark.parametrize("text", ["0", "-1", "abc", "4x", "2,2"])
def test_wrong_numbers_of_the_environment(text):
    script = f"""
    import pytest, tegula as tg
    with pytest.raises(ValueError, match="TEGULA_NUM_THREADS must be a number of threads, got '{text}'"):
        tg.get_num_threads()
    tg.set_num_threads(2)
    """
    run_python(script, TEGULA_NUM_THREADS=text)


@once
def test_without_a_setting_the_affinity_counts():
    one_core = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n" + COUNT
    assert int(run_python(one_core, **UNSET)) == 1
    assert int(run_python(COUNT, **UNSET)) <= len(os.sched_getaffinity(0))


@once
def test_c72_calls_start_no_more_threads_than_asked_for():
    """From one Python thread, and from eight at once: the pool is shared."""
    run_python(
        SETUP
        + """
    small = tg.attention(q[:1, :1, :16], k[:1, :1, :16], v[:1, :1, :16])
    base = tasks()
    tg.attention(q[:1, :1, :16], k[:1, :1, :16], v[:1, :1, :16], threads=4)
    assert tasks() == base, "a tiny call started threads"
    call(threads=1)
    assert tasks() == base, "one thread is the caller's own"
    call(threads=3)
    assert tasks() <= base + 2
    tg.set_num_threads(3)

    running, most = True, 0
    def repeat():
        for _ in range(5):
            call()
    callers = [threading.Thread(target=repeat) for _ in range(8)]
    for caller in callers:
        caller.start()
    while any(caller.is_alive() for caller in callers):
        most = max(most, tasks())
        time.sleep(0.002)
    for caller in callers:
        caller.join()
    assert most <= base + 8 + 2, (base, most)
    assert tasks() <= base + 2, (base, tasks())
    """
    )


@once
def test_an_idle_pool_sleeps():
    """After a call every worker comes to rest in the kernel (state S), instead of spinning."""
    run_python(
        SETUP
        + """
    def states():
        me = str(threading.get_native_id())
        stats = [open(f"/proc/self/task/{t}/stat").read() for t in os.listdir("/proc/self/task") if t != me]
        return {stat.rpartition(")")[2].split()[0] for stat in stats}

    call(threads=3)
    deadline = time.monotonic() + 20
    while states() - {"S"} and time.monotonic() < deadline:
        time.sleep(0.05)
    assert states() == {"S"}, states()
    """
    )


# ---------------------------------------------------------------------------------------------------
# Several at once


@pytest.mark.parametrize("threads", [1, 2])
def test_python_threads_at_once_get_their_own_results(threads):
    cases = [AttentionCase(200, 100 + i, 64, heads=4, mask="causal") for i in range(4)]
    work = [(case.arrays(), case.options(tg.masks)) for case in cases]
    alone = [tg.attention(*arrays, **options) for arrays, options in work]
    wrong = []

    def repeat(i):
        arrays, options = work[i]
        for _ in range(5):
            if not same_bits(tg.attention(*arrays, **options, threads=threads), alone[i]):
                wrong.append(i)

    callers = [threading.Thread(target=repeat, args=(i,)) for i in range(len(work))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
        assert not caller.is_alive()
    assert not wrong


@once
def test_the_gil_is_released():
    """Another Python thread keeps running while a call works."""
    run_python(
        SETUP
        + """
    q, k, v = rng.standard_normal((3, 1, 4, 4096, 64), dtype=np.float32)
    ticks, started, done = 0, threading.Event(), threading.Event()
    def work():
        started.set()
        tg.attention(q, k, v, threads=1)
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


@once
def test_errors_in_one_thread_leave_the_others_alone():
    arrays, options = BIG.arrays(), BIG.options(tg.masks)
    expect = tg.attention(*arrays, **options)
    stop = threading.Event()

    def fail():
        while not stop.is_set():
            with pytest.raises(ValueError):
                tg.attention(arrays[0], arrays[1][:, :, 1:], arrays[2])

    failing = threading.Thread(target=fail)
    failing.start()
    try:
        for _ in range(5):
            assert same_bits(tg.attention(*arrays, **options, threads=2), expect)
    finally:
        stop.set()
        failing.join()


# ---------------------------------------------------------------------------------------------------
# Fork

FORK = """
    def child_gives(expect, seconds=15):
        '''Fork, call in the child, and wait for it; a child that hangs is killed.'''
        pid = os.fork()
        if pid == 0:
            same = call(threads=2).tobytes() == expect.tobytes()
            started = tasks() <= 2
            os._exit(0 if same and started else 1)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "hangs"
"""


@once
def test_c73_fork_after_a_parallel_call():
    """The child has no threads of its parent, and starts its own."""
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
def test_c73_fork_while_another_thread_is_in_a_call():
    run_python(
        SETUP
        + FORK
        + """
    expect, stop = call(threads=2), threading.Event()
    def repeat():
        while not stop.is_set():
            call(threads=2)
    busy = threading.Thread(target=repeat)
    busy.start()
    answers = [child_gives(expect) for _ in range(10)]
    stop.set()
    busy.join()
    assert answers == [0] * 10, answers
    """,
        timeout=200,
    )


@once
def test_c73_a_pool_of_processes():
    run_python(
        SETUP
        + """
    import multiprocessing
    expect = call(threads=2).tobytes()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        answers = [pool.apply_async(call, (2,)) for _ in range(4)]
        assert all(answer.get(timeout=30).tobytes() == expect for answer in answers)
    """
    )


# ---------------------------------------------------------------------------------------------------
# Beside other libraries


@once
@pytest.mark.parametrize("first", ["numpy", "torch", "tegula"])
def test_c74_any_order_of_imports(first):
    pytest.importorskip("torch")
    run_python(
        f"import {first}"
        """
import numpy as np, tegula as tg, torch
from tolerances import assert_close, attention_twins
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 4, 300, 64), dtype=np.float32)
plain = [answer.out for answer in attention_twins(q, k, v, orders=2).plain]
for _ in range(3):
    ours = tg.attention(q, k, v, threads=2)
    doubles = (torch.from_numpy(x).double() for x in (q, k, v))
    theirs = torch.nn.functional.scaled_dot_product_attention(*doubles)
    assert_close(ours, theirs.numpy(), plain)
"""
    )
