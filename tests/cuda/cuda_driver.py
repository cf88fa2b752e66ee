"""The driver: missing, too old, without a device, after a fork, while a graph is captured."""

from __future__ import annotations

import os
import textwrap

import pytest
from gpu_arrays import REAL
from support import run_python

if REAL:
    pytest.skip("these tests pretend what a real GPU cannot", allow_module_level=True)

CALL = """
import sys
sys.path[:0] = {path!r}
import numpy as np
import tegula as tg
from gpu_arrays import on_gpu

def call(device=0):
    x = on_gpu(np.ones((1, 2, 4, 8), np.float32), device)
    return tg.attention(x, x, x)
"""
PATH = [os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))]


def in_a_new_process(script, **environment):
    return run_python(CALL.format(path=PATH) + textwrap.dedent(script), timeout=300, **environment)


def test_without_a_driver():
    in_a_new_process(
        """
        assert tg.cuda.is_built() and not tg.cuda.is_available()
        assert "no CUDA driver" in tg.cuda.unavailable_reason(), tg.cuda.unavailable_reason()
        assert tg.cuda.devices() == []
        assert tg.config()["cuda"]["visible"] is False
        try:
            tg.cuda.warm_up()
        except RuntimeError as error:
            assert "no CUDA driver: libcuda-of-nobody.so" in str(error), error
        else:
            raise AssertionError
        x = np.ones((2, 3), np.float32)  # the processor's calls know nothing of it
        assert tg.attention(x, x, x).shape == (2, 3)
        """,
        TEGULA_LIBCUDA="libcuda-of-nobody.so",
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("driver_version=12040", "too old: it supports CUDA 12.4; this build of tegula needs CUDA 13"),
        ("devices=0", "no device"),
        ("capability=75", "compute capability 7.5; tegula's kernels need 8.0 or later"),
    ],
)
def test_what_is_missing_is_said(settings, words):
    in_a_new_process(
        f"""
        import simulated_gpu
        simulated_gpu.simulator().set({settings})
        try:
            tg.cuda.warm_up()
        except (RuntimeError, ValueError) as error:
            assert {words!r} in str(error), error
        else:
            raise AssertionError("nothing was raised")
        """
    )


def test_a_device_that_does_not_exist():
    in_a_new_process(
        """
        for device in (2, -1):
            try:
                tg.cuda.warm_up(device)
            except ValueError as error:
                assert f"device must lie in [0, 2), got {device}" in str(error), error
            else:
                raise AssertionError
        """
    )


def test_the_first_use_cannot_be_captured():
    in_a_new_process(
        """
        import simulated_gpu
        gpu = simulated_gpu.simulator()
        gpu.set(capturing=1)
        try:
            call()
        except RuntimeError as error:
            assert "call tegula.cuda.warm_up() before" in str(error), error
        else:
            raise AssertionError
        gpu.set(capturing=0)
        tg.cuda.warm_up()
        gpu.set(capturing=1)
        call()
        gpu.set(capturing=0)
        """
    )


def test_kernels_are_loaded_once_a_device():
    in_a_new_process(
        """
        import simulated_gpu
        gpu = simulated_gpu.simulator()
        call()
        loaded = gpu.calls("cuModuleLoadData")
        assert loaded > 0
        call(), tg.cuda.warm_up(0)
        assert gpu.calls("cuModuleLoadData") == loaded
        call(1)
        assert gpu.calls("cuModuleLoadData") == 2 * loaded
        """
    )


def test_after_a_fork():
    in_a_new_process(
        """
        import os
        call()
        child = os.fork()
        if child == 0:
            try:
                call()
            except RuntimeError as error:
                os._exit(0 if "before this process was forked" in str(error) else 2)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """
    )


def test_errors_of_kernels_are_errors_of_calls():
    """The simulator's text arrives, and the next call works."""
    in_a_new_process(
        """
        import simulated_gpu
        from cuda_sim.device_array import DeviceArray
        x = DeviceArray.empty(simulated_gpu.simulator(), (1, 2, 4, 8), np.float32)  # nobody has written it
        try:
            tg.attention(x, x, x)
        except RuntimeError as error:
            assert "uninitialised" in str(error), error
        else:
            raise AssertionError
        call()
        """
    )


def test_threads():
    in_a_new_process(
        """
        import threading
        from gpu_arrays import from_gpu
        expected, found = from_gpu(call()), []
        threads = [threading.Thread(target=lambda: found.append(from_gpu(call()))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        assert all(np.array_equal(x, expected) for x in found)
        """
    )
