"""The layouts of fragments and of tiles in shared memory are those of NVIDIA's CuTe."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from . import fragments
from .build import CACHE, MissingTool, cuda_include, digest, gxx, nvcc, run
from .matrices import descriptor, product_of_tiles

pytestmark = pytest.mark.isa_once

SOURCE = Path(__file__).parent / "kernels" / "cute_layouts.cpp"


def cute_headers() -> Path:
    found = importlib.util.find_spec("cutlass_library")
    if found is None or not found.submodule_search_locations:
        pytest.skip("CuTe (nvidia-cutlass) is not installed")
    return Path(found.submodule_search_locations[0]) / "source" / "include"


@pytest.fixture(scope="module")
def layouts() -> dict[str, np.ndarray]:
    """What CuTe says, by the name of the layout."""
    try:
        compiler, cuda = gxx(), cuda_include(nvcc())
    except MissingTool as missing:
        pytest.skip(str(missing))
    headers = cute_headers()
    program = CACHE.parent / "own" / f"cute_layouts_{digest(SOURCE, str(headers))}"
    if not program.is_file():
        program.parent.mkdir(parents=True, exist_ok=True)
        includes = [f"-I{path}" for path in (headers, cuda, cuda / "cccl")]
        run(compiler, "-std=c++20", "-w", *includes, SOURCE, "-o", program)
    printed = run(program)
    # It also prints that it has no shared memory on the host, which it need not have.
    lines = [line.split() for line in printed.splitlines() if line and not line.startswith("ERROR")]
    return {name: np.array(numbers, int) for name, *numbers in lines}


def places(numbers: np.ndarray, lanes: int, rows: int) -> np.ndarray:
    """CuTe counts down columns: (row, column) of each lane's values."""
    numbers = numbers.reshape(lanes, -1)
    return np.stack([numbers % rows, numbers // rows], -1)


@pytest.mark.parametrize(
    ("name", "depth", "per_word"),
    [("m16n8k16.bf16", 16, 2), ("m16n8k16.f16", 16, 2), ("m16n8k8.bf16", 8, 2), ("m16n8k8.tf32", 8, 1)],
)
def test_mma(layouts, name, depth, per_word):
    np.testing.assert_array_equal(places(layouts[f"{name}.a"], 32, 16), fragments.mma_a(depth, per_word))
    np.testing.assert_array_equal(places(layouts[f"{name}.b"], 32, 8), fragments.mma_b(depth, per_word))
    np.testing.assert_array_equal(places(layouts[f"{name}.c"], 32, 16), fragments.mma_c())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_ldmatrix(layouts, matrices, transposed):
    numbers = layouts[f"ldmatrix.x{matrices}{'.trans' * transposed}"].reshape(32, -1)
    expected = np.stack([numbers // 8, numbers % 8], -1)
    np.testing.assert_array_equal(expected, fragments.ldmatrix(matrices, transposed))


def test_sums_of_wgmma(layouts):
    np.testing.assert_array_equal(places(layouts["m64n64.c"], 128, 64), fragments.wgmma_c(64))


@pytest.fixture
def sm90(simulate):
    simulator = simulate("matrices_sm90", ["matrices_sm90.cu"], ["90a"])
    simulator.set(capability=90)
    yield simulator
    simulator.reset()


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("major", ["k", "mn"])
def test_tiles_of_wgmma(layouts, sm90, major, swizzle):
    """A product of tiles that lie where CuTe puts them, by the descriptors that it makes."""
    numbers = layouts[f"wgmma.{major}.{swizzle}"]
    descriptors = [descriptor(*map(int, fields)) for fields in numbers[:16].reshape(4, 4)]
    offsets = numbers[16:] // 2
    rng = np.random.default_rng(swizzle)
    a, b = (rng.integers(-8, 9, (64, 64)).astype(ml_dtypes.bfloat16) for _ in range(2))
    images = []
    for matrix in (a, b):
        image = np.empty(64 * 64, ml_dtypes.bfloat16)
        image[offsets] = matrix.ravel()
        images.append(image)
    d = product_of_tiles(sm90, *images, descriptors, transposed=major == "mn")
    np.testing.assert_array_equal(d, a.astype(np.float32) @ b.astype(np.float32).T)
