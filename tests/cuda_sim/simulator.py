"""The stand-in library from Python: its settings, and what it logged."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .driver import Driver

DEFAULTS = {"devices": 2, "capability": 80, "driver_version": 13000, "processors": 4, "seed": 1, "capturing": 0}
FATBIN = (0xBA55ED50).to_bytes(4, "little") + bytes(60)


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


class Simulator(Driver):
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

    # --- memory and modules ---------------------------------------------------------------------------

    @functools.cache  # noqa: B019  (as long-lived as the library)
    def loaded(self, device: int, capability: int) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), FATBIN)
        return module

    def module(self, device: int, capability: int, kernel: str = "") -> ctypes.c_void_p:
        """All kernels are in one."""
        return self.loaded(device, capability)

    def allocate(self, size: int, device: int) -> int | None:
        return self.library.cuda_sim_allocate(size, device)

    def release(self, pointer: int) -> None:
        self.library.cuda_sim_release(pointer)

    def mark_written(self, pointer: int, size: int) -> None:
        self.library.cuda_sim_mark_written(pointer, size)

    def protect(self, pointer: int) -> None:
        self.library.cuda_sim_protect(pointer, True)

    def unwritten(self, pointer: int, size: int) -> int:
        return self.library.cuda_sim_unwritten(pointer, size)

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
