"""What several test files need: arrays, comparison of bits, and Python in a process of its own."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tegula as tg

DTYPES = ("float64", "float32", "float16", "bfloat16")
HAS_BFLOAT16 = importlib.util.find_spec("ml_dtypes") is not None


def numpy_dtype(name):
    """A dtype by name; bfloat16 comes from ml_dtypes, which a user need not have."""
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(name)


def draw(rng, shape, dtype="float32"):
    """Normal numbers."""
    return np.asarray(rng.standard_normal(shape)).astype(numpy_dtype(dtype))


def same_bits(a, b):
    """Equal in shape, type and every bit; NaN equals itself and 0.0 is not -0.0."""
    return (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())


def all_same_bits(a, b):
    """As many results, each with the same bits."""
    return all(same_bits(x, y) for x, y in zip(a, b, strict=True))


def poisoned(shape, dtype):
    """An array in which every element that nobody wrote is NaN."""
    return np.full(shape, np.nan, dtype)


def backward(grad_out, q, k, v, **options):
    """The gradients of one call, by way of the result that they start from."""
    out, lse = tg.attention(q, k, v, **options, return_lse=True)
    return tg.attention_backward(grad_out, q, k, v, out, lse, **options)


def every_isa():
    """Pins each instruction set in turn, for a test that draws or computes much before it calls."""
    for name in tg.config()["isa"]["available"]:
        tg.set_isa(name)
        assert tg.config()["isa"]["active"] == name
        yield name


def run_python(script, *, timeout=60, **environment):
    """Run a script in a fresh process and return what it printed; a hang or a non-zero exit fails.

    It finds the same modules as this process, the tests' own among them. An environment variable
    given as None is removed.
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
    env = {name: str(value) for name, value in env.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


# ---------------------------------------------------------------------------------------------------
# Memory


def between_guards(x, at_the_end):
    """A copy that touches a page nobody may read: behind its last byte, or before its first."""
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    page = mmap.PAGESIZE
    pages = -(-x.nbytes // page)
    region = mmap.mmap(-1, (pages + 2) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    start = page + (pages * page - x.nbytes if at_the_end else 0)
    view = np.frombuffer(region, np.uint8, x.nbytes, start).view(x.dtype).reshape(x.shape)
    view[...] = x
    for guard in (address, address + (pages + 1) * page):
        assert mprotect(guard, page, 0) == 0
    return view


def far_apart(x, axis):
    """A copy whose elements along `axis` stand 2**30 elements apart, in memory nobody else touches."""
    step = 2**30 * x.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    room = np.frombuffer(mmap.mmap(-1, step * x.shape[axis] + x.nbytes, flags), np.uint8)
    strides = list(x.strides)
    strides[axis] = step
    view = np.lib.stride_tricks.as_strided(room[: x.itemsize].view(x.dtype), x.shape, strides)
    view[...] = x
    return view
