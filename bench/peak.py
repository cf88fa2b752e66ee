"""The ceilings that a result is held against, measured on this machine in the same run.

`peak.cpp` is compiled once with the system's C++ compiler and kept in the user's cache directory.
Without a compiler every ceiling is absent, and `Ceilings.reason` says why.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

SOURCE = Path(__file__).with_name("peak.cpp")

Kind = Literal["fma", "bf16dot", "read", "copy", "write"]
NUMBERS: dict[Kind, int] = {"fma": 0, "bf16dot": 1, "read": 2, "copy": 3, "write": 4}
TITLES: dict[Kind, str] = {
    "fma": "float32 multiply-add",
    "bf16dot": "bf16 dot instruction",
    "read": "memory read",
    "copy": "memory copy, read + written",
    "write": "memory write",
}

# The ceiling of an instruction set is that of its own instructions, not of the machine's best ones.
FLAGS = {
    "avx2": ["-march=x86-64-v3"],
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    "avx512bf16": ["-march=x86-64-v4", "-mavx512bf16", "-mprefer-vector-width=512"],
}
COMMON = ["-std=c++17", "-O3", "-ffp-contract=fast", "-Wno-psabi", "-fPIC", "-shared", "-pthread"]


class UnavailableError(Exception):
    """The ceilings cannot be measured here."""


class Ceilings:
    """Rates of this machine for one instruction set.

    Attributes
    ----------
    reason : str or None
        Why nothing can be measured; None when it can.
    """

    def __init__(self, isa: str) -> None:
        self.isa = isa
        self.reason: str | None = None
        self._rates = None
        self._others: dict[str, Ceilings] = {}
        try:
            library = ctypes.CDLL(str(compiled(isa)))
        except (UnavailableError, OSError) as error:
            self.reason = str(error)
            return
        self._rates = library.tegula_bench_rates
        self._rates.argtypes = [
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.POINTER(ctypes.c_double),
        ]
        self._rates.restype = ctypes.c_int

    def of(self, isa: str) -> Ceilings:
        """Those of another instruction set."""
        if isa in ("", self.isa):
            return self
        if isa not in self._others:
            self._others[isa] = Ceilings(isa)
        return self._others[isa]

    def sample(self, kind: Kind, threads: int, bursts: int = 4) -> list[float]:
        """Operations or bytes per second, one entry a burst; empty when this cannot be measured."""
        if self._rates is None:
            return []
        rates = (ctypes.c_double * bursts)()
        status = self._rates(NUMBERS[kind], threads, bursts, rates)
        return list(rates) if status == 0 else []

    def compute_kind(self, dtype: str) -> Kind:
        """The instruction that bounds attention in this dtype on this instruction set."""
        return "bf16dot" if dtype == "bfloat16" and self.isa == "avx512bf16" else "fma"


def compiled(isa: str) -> Path:
    """Path of the compiled library for an instruction set; builds it when it is not there yet."""
    compiler = find_compiler()
    flags = [*COMMON, *FLAGS.get(isa, [])]
    what = SOURCE.read_bytes() + "\0".join([compiler, *flags]).encode()
    folder = cache_folder()
    target = folder / f"peak-{isa}-{hashlib.sha256(what).hexdigest()[:16]}.so"
    if target.exists():
        return target
    # Built under another name and moved, so that a run beside this one never loads half a file.
    handle, scratch = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(handle)
    try:
        done = subprocess.run(
            [compiler, *flags, str(SOURCE), "-o", scratch],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise UnavailableError(f"{compiler} could not build {SOURCE.name}: {lines[0]}")
        os.replace(scratch, target)
    finally:
        Path(scratch).unlink(missing_ok=True)
    return target


def find_compiler() -> str:
    """$CXX, or the first usual name on the path."""
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found is not None:
            return found
    raise UnavailableError("no C++ compiler found")


def cache_folder() -> Path:
    """A folder of the user's own that lasts; else a private one for this run."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = (Path(base) if base else Path.home() / ".cache") / "tegula-bench"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="tegula-bench-"))
