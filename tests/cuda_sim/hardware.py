"""The machine's GPU behind the same interface as the simulator, so that one suite of instructions runs on both.

Kernels are compiled for the card by nvcc; arrays lie in managed memory, which the host uses between launches.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from pathlib import Path
from typing import Any

from .build import nvcc, run
from .driver import Driver

ATTACH_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL


class Hardware(Driver):
    """Device 0 of the machine's driver, with the kernels that were loaded."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ.get("TEGULA_LIBCUDA", "libcuda.so.1"))
        self.call("cuInit", 0)
        self.modules: list[ctypes.c_void_p] = []

    def load(self, *sources: Path) -> None:
        """Compile files of kernels for this card."""
        target = {90: "90a"}.get(self.capability(), str(self.capability()))
        for source in sources:
            with tempfile.TemporaryDirectory() as folder:
                cubin = Path(folder) / "kernels.cubin"
                run(nvcc(), "-cubin", f"-arch=sm_{target}", "-std=c++20", source, "-o", cubin)
                module = ctypes.c_void_p()
                with self.context(0):
                    self.call("cuModuleLoadData", ctypes.byref(module), cubin.read_bytes())
            self.modules.append(module)

    def module(self, device: int, capability: int, kernel: str) -> ctypes.c_void_p:
        """The one that has the kernel."""
        function = ctypes.c_void_p()
        for module in self.modules:
            if not self.library.cuModuleGetFunction(ctypes.byref(function), module, kernel.encode()):
                return module
        raise LookupError(f"no source has the kernel {kernel}")

    def allocate(self, size: int, device: int) -> int | None:
        pointer = ctypes.c_uint64()
        with self.context(device):
            self.call("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(size), ATTACH_GLOBAL)
        return pointer.value

    def release(self, pointer: int) -> None:
        with self.context(0):
            self.call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def launch(self, kernel: str, grid: Any, block: Any, *parameters: object, **options: Any) -> None:
        """The results are there when it returns."""
        super().launch(kernel, grid, block, *parameters, **options)
        with self.context(0):
            self.call("cuCtxSynchronize")

    # --- what only the simulator has --------------------------------------------------------------------

    def set(self, **settings: int) -> None:
        """The card is what it is."""

    def reset(self) -> None:
        """Nothing is kept from one test to the next."""

    def pretending(self, **settings: int) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()
