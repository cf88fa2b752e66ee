"""The stand-in library from Python: its settings, what it logged, and launches for its own tests."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

DEFAULTS = {"devices": 2, "capability": 80, "driver_version": 13000, "processors": 4, "seed": 1, "capturing": 0}
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
FATBIN = (0xBA55ED50).to_bytes(4, "little") + bytes(60)


class SimulatorError(RuntimeError):
    """An error of the driver, with the simulator's text."""


class Launch(NamedTuple):
    """One launch of a kernel as the driver saw it."""

    kernel: str
    arch: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    device: int
    stream: int


class _Launch(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("arch", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("stream", ctypes.c_uint64),
    )


class Counters(ctypes.Structure):
    """What launches did since the library was loaded: instructions of warps, matrices, bank conflicts."""

    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("launches", "blocks", "mma", "wgmma", "ldmatrix", "ldmatrix_conflicts")
    )


class Simulator:
    """A stand-in library. Who opens the same file by its path, shares its state."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.library = ctypes.CDLL(str(path))
        self.library.cuda_sim_allocate.restype = ctypes.c_void_p
        self.library.cuda_sim_allocate.argtypes = (ctypes.c_size_t, ctypes.c_int)
        self.library.cuda_sim_release.argtypes = (ctypes.c_void_p,)
        self.library.cuda_sim_mark_written.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self.library.cuda_sim_protect.argtypes = (ctypes.c_void_p, ctypes.c_bool)
        self.library.cuda_sim_unwritten.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self.library.cuda_sim_unwritten.restype = ctypes.c_int64
        self.library.cuda_sim_set.restype = ctypes.c_bool

    # --- settings -------------------------------------------------------------------------------------

    def set(self, **settings: int) -> None:
        """Pretend: devices, capability (80, 90), driver_version, processors, seed, capturing."""
        for name, value in settings.items():
            if not self.library.cuda_sim_set(name.encode(), int(value)):
                raise ValueError(f"the simulator cannot set {name}={value}")

    def reset(self) -> None:
        """The defaults, and an empty log."""
        self.set(**DEFAULTS)
        self.forget()

    @contextmanager
    def pretending(self, **settings: int) -> Iterator[None]:
        """Settings for a while; afterwards the defaults again."""
        self.set(**settings)
        try:
            yield
        finally:
            self.set(**{name: DEFAULTS[name] for name in settings})

    def replay(self) -> None:
        """Run what the last capture kept."""
        self.check(self.library.cuda_sim_replay())

    # --- what happened --------------------------------------------------------------------------------

    @property
    def launches(self) -> list[Launch]:
        """Every launch since the log was emptied, captured ones included."""
        found = []
        for index in range(self.library.cuda_sim_launch_count()):
            entry = _Launch()
            self.library.cuda_sim_launch(index, ctypes.byref(entry))
            grid, block = tuple(entry.grid), tuple(entry.block)
            names = entry.kernel.decode(), entry.arch.decode()
            found.append(Launch(*names, grid, block, entry.shared_bytes, entry.device, entry.stream))
        return found

    def calls(self, name: str) -> int:
        """How often a function of the driver, such as ``cuStreamSynchronize``, was called."""
        return self.library.cuda_sim_call_count(name.encode())

    def counters(self) -> Counters:
        found = Counters()
        self.library.cuda_sim_counters(ctypes.byref(found))
        return found

    def forget(self) -> None:
        """Empty the log of launches and calls."""
        self.library.cuda_sim_forget_launches()
        self.library.cuda_sim_forget_calls()

    # --- tensor maps ----------------------------------------------------------------------------------

    def tensor_map(self, array: Any, box: Sequence[int], swizzle: int = 3) -> bytes:
        """The 128 bytes that describe a device array to TMA; sizes in NumPy's order, the last runs fastest."""
        kinds = {"uint8": 0, "uint16": 1, "float16": 6, "float32": 7, "bfloat16": 9}
        rank, space = array.ndim, (ctypes.c_ubyte * 192)()
        place = -(-ctypes.addressof(space) // 64) * 64
        sizes = (ctypes.c_uint64 * rank)(*reversed(array.shape))
        strides = (ctypes.c_uint64 * max(rank - 1, 1))(*array.strides[-2::-1])
        boxes, steps = (ctypes.c_uint32 * rank)(*reversed(box)), (ctypes.c_uint32 * rank)(*[1] * rank)
        pointer, where = ctypes.c_void_p(array.pointer), ctypes.c_void_p(place)
        kind = kinds[array.dtype.name]
        self.call("cuTensorMapEncodeTiled", where, kind, rank, pointer, sizes, strides, boxes, steps, 0, swizzle, 0, 0)
        return ctypes.string_at(place, 128)

    # --- launches for tests of kernels ----------------------------------------------------------------

    def check(self, code: int) -> None:
        if code:
            name, text = ctypes.c_char_p(), ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(name))
            self.library.cuGetErrorString(code, ctypes.byref(text))
            raise SimulatorError(f"{(name.value or b'?').decode()}: {(text.value or b'').decode()}")

    def call(self, name: str, *arguments: object) -> None:
        self.check(getattr(self.library, name)(*arguments))

    @functools.cache  # noqa: B019  (as long-lived as the library)
    def module(self, device: int, capability: int) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), FATBIN)
        return module

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
        """Start a kernel with ctypes values, ctypes structures or arrays as its parameters."""
        values: list[Any] = [ctypes.c_void_p(p.pointer) if hasattr(p, "pointer") else p for p in parameters]
        addresses = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        shape = (*three(grid), *three(block))
        capability = ctypes.c_int()
        with self.context(device):
            self.call("cuDeviceGetAttribute", ctypes.byref(capability), 75, device)
            function = ctypes.c_void_p()
            module = self.module(device, capability.value)
            self.call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
            if shared_bytes:
                self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared_bytes)
            self.call("cuLaunchKernel", function, *shape, shared_bytes, ctypes.c_void_p(stream), addresses, None)


def three(shape: int | Sequence[int]) -> tuple[int, ...]:
    given = (shape,) if isinstance(shape, int) else tuple(shape)
    return (*given, *(1,) * (3 - len(given)))
