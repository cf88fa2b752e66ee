"""DLPack capsules of simulated arrays, by ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

KINDS = {"i": 0, "u": 1, "f": 2, "V": 4, "c": 5, "b": 6}  # DLDataTypeCode by NumPy's kind; V is bfloat16
READ_ONLY = 1
VERSION = (1, 1)


class DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class DLManagedTensor(ctypes.Structure):
    pass


class DLManagedTensorVersioned(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DLManagedTensor._fields_ = (("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", DELETER))
DLManagedTensorVersioned._fields_ = (
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("manager_ctx", ctypes.c_void_p),
    ("deleter", DELETER),
    ("flags", ctypes.c_uint64),
    ("dl_tensor", DLTensor),
)

# What a consumer holds: the managed tensor's address -> all that must live as long.
_alive: dict[int, tuple[Any, ...]] = {}


@DELETER
def _delete(address: int) -> None:
    _alive.pop(address, None)


_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_api.PyCapsule_IsValid.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_api.PyCapsule_GetPointer.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)(
    ("PyCapsule_New", _api)
)


@_DESTRUCTOR
def _destroy(capsule: int) -> None:
    """Nobody consumed the capsule: a consumer would have renamed it."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if _api.PyCapsule_IsValid(capsule, name):
            _alive.pop(_api.PyCapsule_GetPointer(capsule, name), None)


def data_type(dtype: np.dtype) -> DLDataType:
    if dtype.kind == "V" and dtype.name != "bfloat16":
        raise BufferError(f"DLPack has no type for {dtype}")
    return DLDataType(KINDS[dtype.kind], 8 * dtype.itemsize, 1)


def make_capsule(array: Any, device: tuple[int, int], max_version: tuple[int, int] | None) -> Any:
    """Capsule of an array; a versioned one for consumers that know version 1."""
    ndim = array.ndim
    shape = (ctypes.c_int64 * max(ndim, 1))(*array.shape)
    strides = (ctypes.c_int64 * max(ndim, 1))(*(stride // array.itemsize for stride in array.strides))
    pointer = ctypes.POINTER(ctypes.c_int64)
    tensor = DLTensor(
        array.pointer if array.size else None,
        DLDevice(*device),
        ndim,
        data_type(array.dtype),
        ctypes.cast(shape, pointer),
        ctypes.cast(strides, pointer),
        0,
    )
    managed: DLManagedTensor | DLManagedTensorVersioned
    if max_version is not None and max_version[0] >= 1:
        name, managed = b"dltensor_versioned", DLManagedTensorVersioned(*VERSION, None, _delete, 0, tensor)
    else:
        name, managed = b"dltensor", DLManagedTensor(tensor, None, _delete)
    address = ctypes.addressof(managed)
    _alive[address] = (managed, shape, strides, array)
    return _new_capsule(address, name, _destroy)
