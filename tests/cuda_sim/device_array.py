"""Arrays in the memory of a device, simulated or managed, with as much of an array library as tests need.

They behave like CuPy's: tegula meets them through DLPack and ``__array_namespace__``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from .dlpack import make_capsule
from .driver import Driver

CUDA = 2  # kDLCUDA
DTYPES = ("bool", "uint8", "int32", "int64", "float16", "float32", "float64")


class Device(NamedTuple):
    """A device by its number, as ``cupy.cuda.Device``."""

    id: int


class Memory:
    """An allocation; freed with the last array that uses it."""

    def __init__(self, driver: Driver, size: int, device: int):
        self.driver, self.size, self.device = driver, size, device
        pointer = driver.allocate(size, device)
        if pointer is None:
            raise MemoryError(f"device {device} has no {size} bytes")
        self.pointer: int = pointer
        # NumPy takes the bytes where they lie.
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3}

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self.driver.release(self.pointer)


class DeviceArray:
    """An n-dimensional array on a simulated device; indexing gives views.

    ``memory_view`` is the same array for NumPy, past all checks.
    """

    def __init__(self, memory: Memory, view: np.ndarray):
        self.memory, self.memory_view = memory, view
        self.dlpack_streams: list[int | None] = []  # that consumers named

    # --- made from -----------------------------------------------------------------------------------

    @classmethod
    def empty(cls, driver: Driver, shape: Any, dtype: Any, device: int = 0) -> DeviceArray:
        """Nobody has written it: reading it is an error."""
        dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory = Memory(driver, max(size, 1), device)
        return cls(memory, np.asarray(memory)[:size].view(dtype).reshape(shape))

    @classmethod
    def from_numpy(cls, driver: Driver, array: Any, device: int = 0, *, read_only: bool = False) -> DeviceArray:
        """A copy in C order; a kernel that writes to a read-only one fails."""
        array = np.asarray(array)
        made = cls.empty(driver, array.shape, array.dtype, device)
        made.memory_view[...] = array
        driver.mark_written(made.memory.pointer, array.nbytes)
        if read_only:
            driver.protect(made.memory.pointer)
        return made

    # --- what it is ----------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self.memory_view.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""
        return self.memory_view.strides

    @property
    def dtype(self) -> np.dtype:
        return self.memory_view.dtype

    @property
    def ndim(self) -> int:
        return self.memory_view.ndim

    @property
    def size(self) -> int:
        return self.memory_view.size

    @property
    def nbytes(self) -> int:
        return self.memory_view.nbytes

    @property
    def itemsize(self) -> int:
        return self.memory_view.itemsize

    @property
    def device(self) -> Device:
        return Device(self.memory.device)

    @property
    def pointer(self) -> int:
        return self.memory_view.__array_interface__["data"][0]

    def __len__(self) -> int:
        return len(self.memory_view)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device.id})"

    # --- views ---------------------------------------------------------------------------------------

    def view_of(self, view: np.ndarray) -> DeviceArray:
        if view.size and not np.shares_memory(view, self.memory_view):
            raise ValueError("a simulated array can be viewed, but not copied")
        return DeviceArray(self.memory, view)

    def __getitem__(self, index: Any) -> DeviceArray:
        index = index if isinstance(index, tuple) else (index,)
        return self.view_of(self.memory_view[(*index, ...) if Ellipsis not in index else index])

    def reshape(self, *shape: Any) -> DeviceArray:
        return self.view_of(self.memory_view.reshape(*shape))

    def transpose(self, *axes: Any) -> DeviceArray:
        return self.view_of(self.memory_view.transpose(*axes))

    def swapaxes(self, first: int, second: int) -> DeviceArray:
        return self.view_of(self.memory_view.swapaxes(first, second))

    @property
    def T(self) -> DeviceArray:
        return self.transpose()

    def astype(self, dtype: Any) -> DeviceArray:
        """A copy of another type."""
        return DeviceArray.from_numpy(self.memory.driver, self.numpy().astype(dtype), self.memory.device)

    # --- contents ------------------------------------------------------------------------------------

    def unwritten_bytes(self) -> int:
        """How many bytes of its elements nobody has written."""
        count, unwritten = 0, self.memory.driver.unwritten
        view = self.memory_view
        run = view if view.flags.c_contiguous else None
        for row in [run] if run is not None else map(np.atleast_1d, iter_elements(view)):
            if row.size:
                count += unwritten(row.__array_interface__["data"][0], row.nbytes)
        return count

    def numpy(self) -> np.ndarray:
        """A copy for the host, of which every byte must have been written."""
        if missing := self.unwritten_bytes():
            raise ValueError(f"{missing} of {self.nbytes} bytes of {self!r} were never written")
        return self.memory_view.copy()

    # --- protocols -----------------------------------------------------------------------------------

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.memory.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if stream == 0:
            raise ValueError("stream 0 is ambiguous: 1 is the legacy default stream, 2 the per-thread one")
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"an array of {self.__dlpack_device__()} for {dl_device}")
        self.dlpack_streams.append(stream)
        exported = self
        if copy:
            exported = DeviceArray.from_numpy(self.memory.driver, self.numpy(), self.memory.device)
        return make_capsule(exported, self.__dlpack_device__(), max_version)

    def __array_namespace__(self, *, api_version: str | None = None) -> SimpleNamespace:
        return namespace(self.memory.driver, self.memory.device)


def iter_elements(view: np.ndarray) -> Any:
    """The elements of an array as arrays of no dimension that share its memory."""
    return (view[index] for index in ((*i, ...) for i in np.ndindex(view.shape)))


def namespace(driver: Driver, default_device: int = 0) -> SimpleNamespace:
    """An array library: a few functions, and the names of dtypes."""

    def number(device: Any) -> int:
        return default_device if device is None else int(getattr(device, "id", device))

    def empty(shape: Any, dtype: Any = np.float32, device: Any = None) -> DeviceArray:
        return DeviceArray.empty(driver, shape, dtype, number(device))

    def zeros(shape: Any, dtype: Any = np.float32, device: Any = None) -> DeviceArray:
        return DeviceArray.from_numpy(driver, np.zeros(shape, dtype), number(device))

    def asarray(array: Any, dtype: Any = None, device: Any = None) -> DeviceArray:
        if isinstance(array, DeviceArray):
            return array
        return DeviceArray.from_numpy(driver, np.asarray(array, dtype), number(device))

    def broadcast_to(array: DeviceArray, shape: Any) -> DeviceArray:
        return array.view_of(np.broadcast_to(array.memory_view, shape))

    functions = {"empty": empty, "zeros": zeros, "asarray": asarray, "broadcast_to": broadcast_to}
    return SimpleNamespace(**functions, **{name: np.dtype(name) for name in DTYPES}, __name__="simulated")
