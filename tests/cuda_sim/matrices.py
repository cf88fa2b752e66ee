"""Products of small matrices by single instructions, on fragments as the PTX ISA lays them out."""

from __future__ import annotations

import ctypes
import struct

import ml_dtypes
import numpy as np

from . import fragments
from .device_array import DeviceArray
from .driver import Driver

# Kernels of kernels/matrices.cu: depth, type of A and B, elements in a register.
MMA = {
    "mma_m16n8k16_bf16": (16, ml_dtypes.bfloat16, 2),
    "mma_m16n8k16_f16": (16, np.float16, 2),
    "mma_m16n8k8_bf16": (8, ml_dtypes.bfloat16, 2),
    "mma_m16n8k8_tf32": (8, np.float32, 1),
}


def run(driver: Driver, kernel: str, *arrays: np.ndarray) -> np.ndarray:
    """A kernel of one warp; its last parameter is an output of four floats a lane."""
    given = [DeviceArray.from_numpy(driver, np.ascontiguousarray(array)) for array in arrays]
    out = DeviceArray.empty(driver, (32, 4), np.float32)
    driver.launch(kernel, 1, 32, *given, out)
    return out.numpy()


def mma(driver: Driver, kernel: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """A B^T + C by one instruction: A (16, depth), B (8, depth), C (16, 8)."""
    depth, _, packed = MMA[kernel]
    layouts = (a, fragments.mma_a(depth, packed)), (b, fragments.mma_b(depth, packed))
    words = [np.ascontiguousarray(fragments.gather(matrix, places)).view(np.uint32) for matrix, places in layouts]
    places = fragments.mma_c()
    return fragments.scatter(run(driver, kernel, *words, fragments.gather(c, places)), places, (16, 8))


def product_of_tiles(
    driver: Driver, image_a: np.ndarray, image_b: np.ndarray, descriptors: list[int], transposed: bool
) -> np.ndarray:
    """D of 64 x 64 from two tiles as they lie in shared memory."""
    a, b = (DeviceArray.from_numpy(driver, image) for image in (image_a, image_b))
    d = DeviceArray.empty(driver, (128, 32), np.float32)
    params = struct.pack("3P8Q", a.pointer, b.pointer, d.pointer, *descriptors, *descriptors)
    kernel = "wgmma_mn_major" if transposed else "wgmma_k_major"
    driver.launch(kernel, 1, 128, (ctypes.c_ubyte * len(params))(*params))
    return fragments.scatter(d.numpy(), fragments.wgmma_c(64), (64, 64))


def descriptor(start: int, leading: int, stride: int, mode: int) -> int:
    """A matrix descriptor; bytes, and 1, 2, 3 for a swizzle of 128, 64, 32 bytes."""
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62


def wgmma_of_swizzled_rows(driver: Driver, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A B^T of two (64, 64) in the layout that TMA leaves: rows of 128 bytes, of which 16-byte pieces are exchanged."""
    pieces = np.arange(8)[None] ^ np.arange(64)[:, None] % 8
    images = [x.reshape(64, 8, 8)[np.arange(64)[:, None], pieces] for x in (a, b)]
    descriptors = [descriptor(32 * step, 16, 1024, 1) for step in range(4)]
    return product_of_tiles(driver, *images, descriptors, transposed=False)
