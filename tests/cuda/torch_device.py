"""Gives this process's torch a CUDA device whose streams and events do nothing, for autograd (`device.cpp`).

torch asks once, when it is imported, so that this has to come before.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import simulated_gpu

assert "torch" not in sys.modules, "torch has been imported before its device was there"
SOURCE = Path(__file__).resolve().parent / "device.cpp"
HOME = Path(importlib.util.find_spec("torch").origin).parent


def library() -> Path:
    """Built where torch or the source has changed since."""
    target = simulated_gpu.BUILD / "libdevice.so"
    newest = max(SOURCE.stat().st_mtime, (HOME / "version.py").stat().st_mtime)
    if not target.exists() or target.stat().st_mtime < newest:
        flags = ("-std=c++20", "-O0", "-w", "-shared", "-fPIC", f"-I{HOME / 'include'}", f"-L{HOME / 'lib'}")
        made = target.with_name(f".{target.name}.{os.getpid()}")
        libraries = ("-lc10", "-ltorch_cpu", f"-Wl,-rpath,{HOME / 'lib'}")
        subprocess.run(["g++", *flags, str(SOURCE), *libraries, "-o", str(made)], check=True)
        made.replace(target)
    return target


ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)
