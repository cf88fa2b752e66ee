"""How calls run: threads, instruction sets, and what this build is."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import _core, cuda
from ._version import __version__


def set_num_threads(threads: int | None) -> None:
    """Set the number of threads that calls use from now on.

    Parameters
    ----------
    threads : int or None
        At least 1. None forgets the setting, so that ``TEGULA_NUM_THREADS``,
        ``OMP_NUM_THREADS`` or what the process may use counts again.

    Raises
    ------
    TypeError, ValueError
        When `threads` is not an integer, or less than 1.

    Notes
    -----
    Results never depend on it: the same inputs give the same bits.

    Examples
    --------
    >>> import tegula as tg
    >>> tg.set_num_threads(2)
    >>> tg.get_num_threads()
    2
    >>> tg.set_num_threads(None)
    """
    _core.set_num_threads(0 if threads is None else checked_threads(threads))


def checked_threads(threads: Any) -> int:
    """`threads` as an int, or TypeError / ValueError."""
    if type(threads) is int and 0 < threads < 2**31:  # the usual case costs nothing
        return threads
    if isinstance(threads, (bool, np.bool_)) or not isinstance(threads, (int, np.integer)):
        raise TypeError(f"threads must be an integer, got {type(threads).__name__}")
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    return min(int(threads), 2**31 - 1)


def get_num_threads() -> int:
    """Return the number of threads that a call without ``threads=`` uses."""
    return _core.num_threads()


def set_isa(name: str) -> None:
    """Pin the instruction set.

    Parameters
    ----------
    name : str
        One of ``tegula.config()["isa"]["available"]``: "scalar", "avx2", "avx512",
        "avx512bf16" or "neon". The environment variable ``TEGULA_ISA`` does the same.

    Raises
    ------
    ValueError
        When the name is unknown, or this processor does not have it.

    Examples
    --------
    >>> import tegula as tg
    >>> best = tg.config()["isa"]["active"]
    >>> tg.set_isa("scalar")
    >>> tg.config()["isa"]["active"]
    'scalar'
    >>> tg.set_isa(best)
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {type(name).__name__}")
    _core.set_isa(name)


def set_cache_limit(bytes: int | None) -> None:
    """Set how much memory of dead results is kept for those that follow.

    Results of 1 MiB and more lie in memory that is not returned to the system when they die, because
    to find, clear and map fresh pages takes as long as computing them, or longer.

    Parameters
    ----------
    bytes : int or None
        The limit; what is kept beyond it is returned now. 0 keeps nothing. None is the limit of the
        environment variable ``TEGULA_CACHE_BYTES``, or else 1 GiB, or an eighth of the memory if that
        is less.

    Raises
    ------
    TypeError, ValueError
        When `bytes` is not an integer, or negative.

    Examples
    --------
    >>> import tegula as tg
    >>> tg.set_cache_limit(2**28)
    >>> tg.config()["cache"]["limit"] == 2**28
    True
    >>> tg.set_cache_limit(None)
    """
    if bytes is not None:
        if isinstance(bytes, (bool, np.bool_)) or not isinstance(bytes, (int, np.integer)):
            raise TypeError(f"bytes must be an integer, got {type(bytes).__name__}")
        if bytes < 0:
            raise ValueError(f"bytes must be at least 0, got {bytes}")
    _core.set_cache_limit(-1 if bytes is None else min(int(bytes), 2**62))


def empty_cache() -> None:
    """Return the memory that is kept for later results to the system.

    Results that are alive are not touched.

    Examples
    --------
    >>> import tegula as tg
    >>> tg.empty_cache()
    >>> tg.config()["cache"]["kept"]
    0
    """
    _core.empty_cache()


def config() -> dict[str, Any]:
    """Return what this build is and how it runs, as a dict.

    Examples
    --------
    >>> import tegula as tg
    >>> "scalar" in tg.config()["isa"]["available"]
    True
    """
    torch = sys.modules.get("torch")
    return {
        "version": __version__,
        "compiler": _core.compiler,
        "isa": {
            "compiled": _core.compiled_isas(),
            "available": _core.available_isas(),
            "active": _core.isa_name(),
        },
        "threads": get_num_threads(),
        "cache": dict(zip(("limit", "kept", "in_use"), _core.cache_state(), strict=True)),
        "cuda": _cuda_config(),
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "torch": None if torch is None else torch.__version__,
    }


def _cuda_config() -> dict[str, Any]:
    found: dict[str, Any] = {"built": cuda.is_built(), "visible": cuda.is_available()}
    if found["visible"]:
        found["devices"] = [device["name"] for device in cuda.devices()]
    elif found["built"]:
        found["reason"] = cuda.unavailable_reason()
    return found


def show_config() -> None:
    """Print `config()`, one line a fact."""
    for key, value in config().items():
        if isinstance(value, dict):
            for name, entry in value.items():
                text = ", ".join(entry) if isinstance(entry, list) else entry
                print(f"{key + ' ' + name:16s}{text}")
        else:
            print(f"{key:16s}{value if value is not None else 'not loaded'}")
