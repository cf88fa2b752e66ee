"""How calls run: threads, instruction sets, and what this build is."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import _core
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
        "cuda": {"built": False, "visible": False},
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "torch": None if torch is None else torch.__version__,
    }


def show_config() -> None:
    """Print `config()`, one line a fact."""
    for key, value in config().items():
        if isinstance(value, dict):
            for name, entry in value.items():
                text = ", ".join(entry) if isinstance(entry, list) else entry
                print(f"{key + ' ' + name:16s}{text}")
        else:
            print(f"{key:16s}{value if value is not None else 'not loaded'}")
