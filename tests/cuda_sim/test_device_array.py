"""Arrays in simulated memory: views, contents, DLPack."""

from __future__ import annotations

import ctypes
import gc

import ml_dtypes
import numpy as np
import pytest

from . import dlpack
from .device_array import DeviceArray, namespace

pytestmark = pytest.mark.isa_once


@pytest.fixture(scope="module")
def simulator(simulate):
    return simulate("driver", ["driver.cu"], ["80", "90a"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8, bool])
def test_round_trip(simulator, dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    there = DeviceArray.from_numpy(simulator, array, device=1)
    assert (there.shape, there.strides, there.dtype, there.device.id) == (array.shape, array.strides, array.dtype, 1)
    assert (there.ndim, there.size, there.nbytes, len(there)) == (3, 24, array.nbytes, 2)
    np.testing.assert_array_equal(there.numpy(), array)


def test_views_share_memory(simulator):
    array = np.arange(24).reshape(4, 6)
    there = DeviceArray.from_numpy(simulator, array)
    for view, expected in (
        (there[1], array[1]),
        (there[:, 1::2], array[:, 1::2]),
        (there.T, array.T),
        (there.reshape(2, 12), array.reshape(2, 12)),
        (there[2:, :3].swapaxes(0, 1), array[2:, :3].T),
    ):
        assert (view.shape, view.strides) == (expected.shape, expected.strides)
        np.testing.assert_array_equal(view.numpy(), expected)
    assert there[1].pointer == there.pointer + 48
    with pytest.raises(ValueError, match="not copied"):
        there.T.reshape(24)


def test_every_byte_must_be_written(simulator):
    there = DeviceArray.empty(simulator, (4, 4), np.uint8)
    with pytest.raises(ValueError, match="16 of 16 bytes"):
        there.numpy()
    for place in (0, 1, 4, 5):
        simulator.mark_written(there.pointer + place, 1)
    assert there[:2, :2].unwritten_bytes() == 0
    with pytest.raises(ValueError, match="2 of 4 bytes"):
        there[:2, 1:3].numpy()
    assert (there.memory_view == 0xFF).all()


def test_memory_lives_as_long_as_its_views(simulator):
    there = DeviceArray.from_numpy(simulator, np.arange(8))
    view, place = there[4:], there.pointer
    del there
    gc.collect()
    assert view.numpy().tolist() == [4, 5, 6, 7]
    del view
    gc.collect()
    assert simulator.unwritten(place, 8) == -1


def capsule_function(name, result):
    return ctypes.PYFUNCTYPE(result, ctypes.py_object, ctypes.c_char_p)((name, ctypes.pythonapi))


def tensor_of(capsule, versioned):
    """The structure that a capsule holds."""
    name = b"dltensor_versioned" if versioned else b"dltensor"
    kind = dlpack.DLManagedTensorVersioned if versioned else dlpack.DLManagedTensor
    return kind.from_address(capsule_function("PyCapsule_GetPointer", ctypes.c_void_p)(capsule, name))


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize(
    ("dtype", "code", "bits"),
    [(np.float32, 2, 32), (ml_dtypes.bfloat16, 4, 16), (bool, 6, 8), (np.int64, 0, 64), (np.uint8, 1, 8)],
)
def test_dlpack(simulator, versioned, dtype, code, bits):
    there = DeviceArray.from_numpy(simulator, np.zeros((3, 4), dtype), device=1)[1:, ::2]
    assert there.__dlpack_device__() == (2, 1)
    capsule = there.__dlpack__(stream=7, max_version=(1, 0) if versioned else None)
    managed = tensor_of(capsule, versioned)
    tensor = managed.dl_tensor
    assert (tensor.data, tensor.byte_offset) == (there.pointer, 0)
    assert (tensor.device.device_type, tensor.device.device_id) == (2, 1)
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (code, bits, 1)
    assert (tensor.shape[:2], tensor.strides[:2]) == ([2, 2], [4, 2])
    if versioned:
        assert (managed.major, managed.flags) == (1, 0)
    assert there.dlpack_streams == [7]


def test_consumed_capsule_keeps_the_memory(simulator):
    """Until the consumer calls its deleter."""
    there = DeviceArray.from_numpy(simulator, np.arange(4))
    place, before = there.pointer, len(dlpack._alive)
    capsule = there.__dlpack__(max_version=(1, 1))
    managed = tensor_of(capsule, True)
    used = b"used_dltensor_versioned"
    capsule_function("PyCapsule_SetName", ctypes.c_int)(capsule, used)
    del there, capsule
    gc.collect()
    assert simulator.unwritten(place, 32) == 0
    managed.deleter(ctypes.addressof(managed))
    gc.collect()
    assert simulator.unwritten(place, 32) == -1
    assert len(dlpack._alive) == before


def test_forgotten_capsule_frees_the_memory(simulator):
    before = len(dlpack._alive)
    DeviceArray.from_numpy(simulator, np.arange(4)).__dlpack__()
    gc.collect()
    assert len(dlpack._alive) == before


def test_dlpack_refuses(simulator):
    there = DeviceArray.from_numpy(simulator, np.arange(4))
    with pytest.raises(ValueError, match="ambiguous"):
        there.__dlpack__(stream=0)
    with pytest.raises(BufferError):
        there.__dlpack__(dl_device=(1, 0))


def test_namespace(simulator):
    xp = DeviceArray.from_numpy(simulator, np.zeros(1), device=1).__array_namespace__()
    assert xp.empty((2, 3), dtype=np.float16).device.id == 1
    made = xp.zeros(4, dtype=np.int32, device=0)
    assert (made.device.id, made.numpy().tolist()) == (0, [0, 0, 0, 0])
    assert xp.asarray(np.arange(3), device=xp.empty(1).device).device.id == 1
    assert xp.asarray(made) is made
    assert namespace(simulator).empty(1).device.id == 0
    assert xp.empty((0, 3)).numpy().shape == (0, 3)
