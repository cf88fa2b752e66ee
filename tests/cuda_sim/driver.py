"""The driver's calls that tests of kernels need, whoever answers them: the simulator or a GPU's own driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
CAPABILITY = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


class DriverError(RuntimeError):
    """An error of the driver, with its text."""


class Driver:
    """Launches kernels of a library that has the functions of libcuda.

    Those who derive from it say where kernels come from (``module``), and where arrays lie (``allocate``,
    ``release``): at addresses that the host can use as well.
    """

    library: ctypes.CDLL

    def module(self, device: int, capability: int, kernel: str) -> ctypes.c_void_p:
        raise NotImplementedError

    def allocate(self, size: int, device: int) -> int | None:
        raise NotImplementedError

    def release(self, pointer: int) -> None:
        raise NotImplementedError

    def mark_written(self, pointer: int, size: int) -> None:
        """The host has written there."""

    def protect(self, pointer: int) -> None:
        """No kernel may write to an allocation."""

    def unwritten(self, pointer: int, size: int) -> int:
        """How many bytes nobody has written, as far as is known; -1 where memory is nobody's."""
        return 0

    def check(self, code: int) -> None:
        if code:
            name, text = ctypes.c_char_p(), ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(name))
            self.library.cuGetErrorString(code, ctypes.byref(text))
            raise DriverError(f"{(name.value or b'?').decode()}: {(text.value or b'').decode()}")

    def call(self, name: str, *arguments: object) -> None:
        self.check(getattr(self.library, name)(*arguments))

    def capability(self, device: int = 0) -> int:
        """Such as 80 or 90."""
        parts = [ctypes.c_int() for _ in CAPABILITY]
        for part, attribute in zip(parts, CAPABILITY, strict=True):
            self.call("cuDeviceGetAttribute", ctypes.byref(part), attribute, device)
        return 10 * parts[0].value + parts[1].value

    @contextmanager
    def context(self, device: int) -> Iterator[None]:
        """The device's primary context is current."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(context))

    def launch(
        self,
        kernel: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *parameters: object,
        shared_bytes: int = 0,
        device: int = 0,
        stream: int = 0,
    ) -> None:
        """Run a kernel with ctypes values, ctypes structures or arrays as its parameters."""
        values: list[Any] = [ctypes.c_void_p(p.pointer) if hasattr(p, "pointer") else p for p in parameters]
        addresses = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        shape = (*three(grid), *three(block))
        with self.context(device):
            function = ctypes.c_void_p()
            module = self.module(device, self.capability(device), kernel)
            self.call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
            if shared_bytes:
                self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared_bytes)
            self.call("cuLaunchKernel", function, *shape, shared_bytes, ctypes.c_void_p(stream), addresses, None)


def three(shape: int | Sequence[int]) -> tuple[int, ...]:
    given = (shape,) if isinstance(shape, int) else tuple(shape)
    return (*given, *(1,) * (3 - len(given)))
