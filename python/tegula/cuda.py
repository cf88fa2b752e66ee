"""Tensors and arrays on NVIDIA GPUs: what a process may want to know and to say about them.

The package's functions take tensors of torch, and arrays of any library that speaks DLPack, on a
device as anywhere else. Kernels lie in a module of their own, which is imported, and a driver, which is
looked for, when the first such array comes.

Calls wait for nothing: they go to the stream that torch (or CuPy) works on, and may be captured in a
CUDA graph once their device is warm (see `warm_up`). So ids outside their table are found by kernels:
their rows are NaN, and `check`, or the next call on the device, raises. `set_id_checks` makes each call
find out first.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal

from . import _core, checks

__all__ = ["check", "devices", "is_available", "is_built", "set_id_checks", "unavailable_reason", "warm_up"]


def native() -> Any:
    """The native module, or None where the package was built without it."""
    global _module
    if _module is False:
        try:
            _module = importlib.import_module("._cuda", __package__)
        except ModuleNotFoundError:
            _module = None
    return _module


_module: Any = False  # not looked for yet


def is_built() -> bool:
    """Return whether this build has kernels for GPUs.

    Examples
    --------
    >>> import tegula as tg
    >>> tg.cuda.is_built() in (True, False)
    True
    """
    return native() is not None


def unavailable_reason() -> str | None:
    """Return why no GPU can be used here; None where one can.

    Examples
    --------
    >>> import tegula as tg
    >>> reason = tg.cuda.unavailable_reason()
    >>> tg.cuda.is_available() == (reason is None)
    True
    """
    module = native()
    if module is None:
        return "this build of tegula has no CUDA kernels"
    try:
        return None if module.devices() else "the CUDA driver shows no device"
    except RuntimeError as error:
        return str(error)


def is_available() -> bool:
    """Return whether there is a GPU that kernels of this build can run on.

    Examples
    --------
    >>> import tegula as tg
    >>> tg.cuda.is_available() in (True, False)
    True
    """
    return unavailable_reason() is None


def devices() -> list[dict[str, Any]]:
    """Return what the devices are: ``name``, ``capability`` and ``multiprocessors`` of each.

    Examples
    --------
    >>> import tegula as tg
    >>> isinstance(tg.cuda.devices(), list)
    True
    """
    if unavailable_reason() is not None:
        return []
    names = ("name", "capability", "multiprocessors")
    return [dict(zip(names, device, strict=True)) for device in native().devices()]


def warm_up(device: int = 0) -> None:
    """Load the kernels on a device now, instead of at its first use.

    While a CUDA graph is being captured nothing can be loaded: call this, or run the model once, before.

    Parameters
    ----------
    device : int
        Its number, as torch counts.

    Raises
    ------
    RuntimeError
        Without a driver or device that kernels of this build can run on; the message says why.
    ValueError
        When there is no such device.
    """
    _needed().warm_up(checks.integer(device, "device"))


def check(device: int = 0) -> None:
    """Raise IndexError if a kernel that has run on the device met an id outside its table.

    Kernels that are still under way are not waited for: call ``torch.cuda.synchronize()`` before, to be
    sure of them.

    Parameters
    ----------
    device : int
        Its number, as torch counts.
    """
    _needed().raise_id_fault(checks.integer(device, "device"))


def set_id_checks(mode: Literal["flag", "raise"]) -> None:
    """Say when ids outside their table are found.

    Parameters
    ----------
    mode : {"flag", "raise"}
        "flag", which is the default: the call runs without waiting, rows of such ids are NaN, and the
        first one is reported by `check` or the next call on the device. "raise": each call of
        `tegula.embedding` looks at its ids first, waits for that, and raises IndexError before anything
        is written. It cannot be captured in a graph.

    Raises
    ------
    ValueError
        For another mode.
    """
    _needed().set_id_checks(checks.choice(mode, "mode", ("flag", "raise")) == "raise")


def _needed() -> Any:
    module = native()
    if module is None:
        raise RuntimeError("this build of tegula has no CUDA kernels: install it where nvcc is, or with TEGULA_CUDA=ON")
    return module


def native_for(device_type: str) -> Any:
    """The native module for arrays of a kind of device. Without one for them the processor's refuses them."""
    return (native() if device_type == "cuda" else None) or _core
