"""The stand-in for the driver: what it allows, what it refuses, what it logs."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys

import numpy as np
import pytest

from .device_array import DeviceArray
from .driver import DriverError

pytestmark = pytest.mark.isa_once

BYTES = 256


@pytest.fixture(scope="module")
def driver(simulate):
    return simulate("driver", ["driver.cu"], ["80", "90a"])


@pytest.fixture
def simulator(driver):
    driver.reset()
    yield driver
    driver.reset()


@pytest.fixture
def context(simulator):
    with simulator.context(0):
        yield simulator


def zeros(simulator, size=64, device=0):
    return DeviceArray.from_numpy(simulator, np.zeros(size, np.float32), device)


def fill(simulator, out, value=1.0, **shape):
    simulator.launch("fill", 1, 64, out, ctypes.c_float(value), ctypes.c_int(out.size), **shape)


def number(simulator, name, *arguments, kind=ctypes.c_int):
    """What a function writes to its first argument."""
    found = kind()
    simulator.call(name, ctypes.byref(found), *arguments)
    return found.value


# --- devices and contexts ----------------------------------------------------------------------------


def test_devices(simulator):
    assert number(simulator, "cuDeviceGetCount") == 2
    assert number(simulator, "cuDriverGetVersion") == 13000
    assert [number(simulator, "cuDeviceGetAttribute", attribute, 1) for attribute in (75, 76)] == [8, 0]
    name = ctypes.create_string_buffer(64)
    simulator.call("cuDeviceGetName", name, 64, 1)
    assert b"sm_80" in name.value
    with pytest.raises(DriverError, match="INVALID_DEVICE"):
        number(simulator, "cuDeviceGet", 2)
    with pytest.raises(DriverError, match="knows no device attribute"):
        number(simulator, "cuDeviceGetAttribute", 9999, 0)


def test_pretending(simulator):
    with simulator.pretending(devices=0):
        with pytest.raises(DriverError, match="NO_DEVICE"):
            simulator.call("cuInit", 0)
        assert number(simulator, "cuDeviceGetCount") == 0
    with simulator.pretending(driver_version=12040, capability=90):
        assert number(simulator, "cuDriverGetVersion") == 12040
        assert number(simulator, "cuDeviceGetAttribute", 75, 0) == 9
    simulator.call("cuInit", 0)
    with pytest.raises(ValueError, match="cannot set"):
        simulator.set(devices=100)


def test_pretending_by_environment(driver):
    code = (
        "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); n = ctypes.c_int();"
        "print(library.cuInit(0)); library.cuDriverGetVersion(ctypes.byref(n)); print(n.value)"
    )
    environment = {"CUDA_SIM_DEVICES": "0", "CUDA_SIM_DRIVER_VERSION": "12000"}
    command = [sys.executable, "-c", code, str(driver.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["100", "12000"]


def test_contexts_are_a_stack(simulator):
    get = lambda: number(simulator, "cuCtxGetCurrent", kind=ctypes.c_void_p)
    assert get() is None
    with simulator.context(0):
        first = get()
        with simulator.context(1):
            assert get() not in (None, first)
        assert get() == first
    assert get() is None
    with pytest.raises(DriverError, match="INVALID_CONTEXT"):
        simulator.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    with pytest.raises(DriverError, match="INVALID_CONTEXT"):
        number(simulator, "cuMemAlloc_v2", ctypes.c_size_t(BYTES), kind=ctypes.c_uint64)


def test_best_translation_runs(simulator):
    """90a code on 9.0 only; 8.0 code on everything later."""
    out = DeviceArray.empty(simulator, 1, np.int32)
    for capability, expected in ((80, 800), (89, 800), (90, 900), (100, 800)):
        with simulator.pretending(capability=capability):
            simulator.launch("architecture", 1, 1, out)
            assert out.numpy()[0] == expected
    with simulator.pretending(capability=75), pytest.raises(DriverError, match="NO_BINARY_FOR_GPU"):
        simulator.launch("architecture", 1, 1, out)


# --- modules and functions ---------------------------------------------------------------------------


def test_module(context):
    module = context.module(0, 80)
    count = number(context, "cuModuleGetFunctionCount", module, kind=ctypes.c_uint)
    functions = (ctypes.c_void_p * count)()
    context.call("cuModuleEnumerateFunctions", functions, count, module)
    names = [number(context, "cuFuncGetName", ctypes.c_void_p(f), kind=ctypes.c_char_p) for f in functions]
    assert names == [b"add", b"architecture", b"bounded", b"by_value", b"fill", b"report"]
    with pytest.raises(DriverError, match="INVALID_IMAGE"):
        context.call("cuModuleLoadData", ctypes.byref(ctypes.c_void_p()), b"\x7fELF" + bytes(60))


def function(simulator, name):
    module = simulator.module(0, 80)
    return ctypes.c_void_p(number(simulator, "cuModuleGetFunction", module, name.encode(), kind=ctypes.c_void_p))


def test_parameters(context):
    """Offsets and sizes as the compiler laid them out."""
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    fill_, found = function(context, "fill"), []
    for index in range(3):
        where = ctypes.byref(offset), ctypes.byref(size)
        context.call("cuFuncGetParamInfo", fill_, ctypes.c_size_t(index), *where)
        found.append((offset.value, size.value))
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        context.call("cuFuncGetParamInfo", fill_, ctypes.c_size_t(3), *where)
    assert found == [(0, 8), (8, 4), (12, 4)]


def test_parameters_by_value(simulator):
    """Thousands of bytes, one of them read at an offset that is computed."""
    out = DeviceArray.empty(simulator, 4, np.float32)
    packed = struct.pack("500qPi", *range(1000, 1500), out.pointer, 123)
    params = (ctypes.c_ubyte * 4016)(*packed)
    simulator.launch("by_value", 1, 4, params)
    assert out.numpy().tolist() == [1123, 1124, 1125, 1126]


def test_shape_of_a_launch(simulator):
    out = DeviceArray.empty(simulator, 64, np.float32)
    simulator.launch("bounded", 1, 64, out, shared_bytes=256)
    assert (out.numpy() == 2).all()
    for grid, block, error in ((0, 64, "grid is empty"), (1, 65, "__launch_bounds__"), (1, 0, "no or too many")):
        with pytest.raises(DriverError, match=error):
            simulator.launch("bounded", grid, block, out, shared_bytes=256)
    with pytest.raises(DriverError, match="grid is empty or too large"):
        simulator.launch("bounded", (1, 65536, 1), 64, out)


def test_shared_memory_needs_permission(context):
    """Above 48 KB the kernel's attribute must be raised, and no further than the device allows."""
    out, bounded = DeviceArray.empty(context, 64, np.float32), function(context, "bounded")
    pointer = ctypes.c_void_p(out.pointer)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
    context.call("cuFuncSetAttribute", bounded, 8, 0)
    with pytest.raises(DriverError, match="cuFuncSetAttribute"):
        context.call("cuLaunchKernel", bounded, 1, 1, 1, 64, 1, 1, 60000, None, arguments, None)
    context.call("cuFuncSetAttribute", bounded, 8, 60000)
    assert number(context, "cuFuncGetAttribute", 8, bounded) == 60000
    with pytest.raises(DriverError, match="of 165888"):
        context.call("cuFuncSetAttribute", bounded, 8, 166000)


# --- memory ------------------------------------------------------------------------------------------


def test_copies(context):
    pointer = number(context, "cuMemAlloc_v2", ctypes.c_size_t(BYTES), kind=ctypes.c_uint64)
    device = ctypes.c_uint64(pointer)
    assert pointer % 256 == 0 and pointer % 512 != 0  # no more aligned than the driver promises
    back = ctypes.create_string_buffer(BYTES)
    with pytest.raises(DriverError, match="256 of 256 bytes of buffer \\d+ were never written"):
        context.call("cuMemcpyDtoH_v2", back, device, ctypes.c_size_t(BYTES))
    context.call("cuMemcpyHtoD_v2", device, bytes(range(100)), ctypes.c_size_t(100))
    context.call("cuMemsetD8Async", ctypes.c_uint64(pointer + 100), 9, ctypes.c_size_t(156), None)
    context.call("cuMemcpyDtoH_v2", back, device, ctypes.c_size_t(BYTES))
    assert back.raw == bytes([*range(100), *[9] * 156])
    with pytest.raises(DriverError, match="2 bytes at byte 255 of buffer"):
        context.call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer + 255), b"xx", ctypes.c_size_t(2))
    context.call("cuMemFree_v2", device)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        context.call("cuMemFree_v2", device)


def test_memory_that_was_freed(simulator):
    out = zeros(simulator)
    kept = ctypes.c_void_p(out.pointer)
    del out
    with pytest.raises(DriverError, match="out of bounds"):
        simulator.launch("fill", 1, 64, kept, ctypes.c_float(1), ctypes.c_int(64))


def test_read_only_memory(simulator):
    out = DeviceArray.from_numpy(simulator, np.zeros(64, np.float32), read_only=True)
    with pytest.raises(DriverError, match="write to a read-only buffer"):
        fill(simulator, out)
    simulator.launch("add", 1, 64, out, zeros(simulator), ctypes.c_int(64))


def test_memory_of_another_device(simulator):
    here, there = zeros(simulator), zeros(simulator, device=1)
    with pytest.raises(DriverError, match="memory of device 1 by a kernel on device 0"):
        simulator.launch("add", 1, 64, there, here, ctypes.c_int(64))
    simulator.launch("add", 1, 64, there, there, ctypes.c_int(64), device=1)
    assert number(simulator, "cuPointerGetAttribute", 9, ctypes.c_uint64(there.pointer)) == 1


def test_function_of_another_device(context):
    out = zeros(context)
    values = [ctypes.c_void_p(out.pointer), ctypes.c_float(1), ctypes.c_int(64)]
    arguments = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
    of_first = function(context, "fill")
    with context.context(1), pytest.raises(DriverError, match="loaded on device 0"):
        context.call("cuLaunchKernel", of_first, 1, 1, 1, 64, 1, 1, 0, None, arguments, None)


def test_memory_of_the_host(context):
    host = number(context, "cuMemHostAlloc", ctypes.c_size_t(16), 0, kind=ctypes.c_void_p)
    ctypes.memset(host, 0, 16)
    there = number(context, "cuMemHostGetDevicePointer_v2", ctypes.c_void_p(host), 0, kind=ctypes.c_uint64)
    context.launch("report", 4, 32, ctypes.c_uint64(there), ctypes.c_uint64(there + 8))
    assert ctypes.string_at(host, 8) == struct.pack("II", 1, 7)
    context.call("cuMemFreeHost", ctypes.c_void_p(host))


# --- streams, captures and the log -------------------------------------------------------------------


def test_log(simulator):
    out = zeros(simulator)
    fill(simulator, out, stream=5)
    (launch,) = simulator.launches
    assert launch == ("fill", "80", (1, 1, 1), (64, 1, 1), 0, 0, 5)
    assert simulator.calls("cuLaunchKernel") == 1
    assert simulator.calls("cuStreamSynchronize") == 0
    simulator.forget()
    assert simulator.launches == []
    assert simulator.calls("cuLaunchKernel") == 0


def capture_status(simulator):
    status = ctypes.c_int()
    simulator.call("cuStreamIsCapturing", None, ctypes.byref(status))
    return status.value


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cuMemAlloc_v2", (ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(8))),
        ("cuModuleLoadData", (ctypes.byref(ctypes.c_void_p()), bytes(64))),
        ("cuMemcpyDtoH_v2", (None, ctypes.c_uint64(0), ctypes.c_size_t(0))),
        ("cuStreamSynchronize", (None,)),
    ],
)
def test_forbidden_in_a_capture(context, name, arguments):
    with context.pretending(capturing=1):
        assert capture_status(context) == 1
        with pytest.raises(DriverError, match=r"CAPTURE_UNSUPPORTED: cu\w+ during a capture"):
            context.call(name, *arguments)
    assert capture_status(context) == 0


def test_captured_work_runs_at_replay(simulator):
    """With the parameters of the capture, on the memory as it is then."""
    one, out = zeros(simulator), zeros(simulator)
    n = ctypes.c_int(64)
    with simulator.pretending(capturing=1):
        fill(simulator, one, 3.0)
        simulator.launch("add", 1, 64, one, out, n)
        n.value = 0
    assert (out.numpy() == 0).all()
    for times in (1, 2):
        simulator.replay()
        assert (out.numpy() == 3 * times).all()


def test_error_text_is_the_checkers(context):
    """Through cuGetErrorString, as the package asks for it."""
    out = zeros(context)
    with pytest.raises(DriverError) as caught:
        context.launch("fill", 2, 64, out, ctypes.c_float(1), ctypes.c_int(65))
    assert "CUDA_ERROR_LAUNCH_FAILED: fill: write out of bounds: buffer" in str(caught.value)
    assert "at driver.cu:" in str(caught.value)
    text = ctypes.c_char_p()
    context.call("cuGetErrorString", 2, ctypes.byref(text))
    assert text.value == b"out of memory"
