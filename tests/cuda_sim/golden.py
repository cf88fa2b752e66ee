"""Golden bits: what a GPU computes for the suite of instructions, kept to hold the simulator to it.

    python -m cuda_sim.golden [FOLDER]      (in tests/, on a machine with a GPU; writes FOLDER/golden_smXX.npz)

``test_golden.py`` compares the simulator with every such file in this folder.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

from . import instructions
from .driver import Driver
from .hardware import Hardware
from .instructions import OPS, as_result, disagreements
from .matrices import MMA, mma, wgmma_of_swizzled_rows

HERE = Path(__file__).parent
KERNELS = HERE / "kernels"
Vectors = dict[str, np.ndarray]

# Tensor cores align the products of a sum to the largest and cut: below it by at most so much.
SUM_ERROR = 2.0**-21


def operands(name: str) -> tuple[np.ndarray, ...]:
    """Random A, B and C, whose sums are not exact."""
    rng = np.random.default_rng(len(name))
    if name == "wgmma":
        return tuple(rng.standard_normal((64, 64)).astype(ml_dtypes.bfloat16) for _ in range(2))
    depth, kind, _ = MMA[name]
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, depth), (8, depth), (16, 8)))
    return a.astype(kind), b.astype(kind), c


def vectors(driver: Driver, given: Vectors | None = None) -> Vectors:
    """The operands of single instructions, and the bits of all results."""
    given = instructions.inputs() if given is None else given
    found = {f"given_{kind}": values for kind, values in given.items()}
    found["texts"] = np.array([op.text for op in OPS])
    found["results"] = instructions.run(driver, given)
    for name in MMA:
        found[name] = mma(driver, name, *operands(name))
    if driver.capability() == 90:
        found["wgmma"] = wgmma_of_swizzled_rows(driver, *operands("wgmma"))
    return found


def largest_error(name: str) -> np.ndarray:
    """How far sums of products may lie apart."""
    a, b, *c = (np.abs(x.astype(np.float64)) for x in operands(name))
    return SUM_ERROR * (a @ b.T + sum(c))


def differences(found: Vectors, golden: Vectors) -> list[str]:
    """Where results differ from the golden ones by more than the instructions' names allow."""
    reports = []
    numbers = {text: number for number, text in enumerate(golden["texts"].tolist())}
    for op, row in zip(OPS, found["results"], strict=True):
        if op.text in numbers:
            expected = as_result(op, golden["results"][numbers[op.text]])
            # Either may be off by as much.
            wrong = disagreements(op, as_result(op, row), expected, 2 * op.ulps)
            if wrong:
                reports.append(f"{op.text}: {len(wrong)} of {instructions.COUNT}, first for operands {wrong[0]}")
    for name in {*MMA, "wgmma"} & found.keys() & golden.keys():
        far = np.abs(found[name].astype(np.float64) - golden[name]) > largest_error(name)
        if far.any():
            reports.append(f"{name}: {far.sum()} of {far.size} sums")
    return reports


def given_of(golden: Vectors) -> Vectors:
    """The operands that a file was made with."""
    return {name.removeprefix("given_"): values for name, values in golden.items() if name.startswith("given_")}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    gpu = Hardware()
    gpu.load(KERNELS / "matrices.cu")
    if gpu.capability() == 90:
        gpu.load(KERNELS / "matrices_sm90.cu")
    with tempfile.TemporaryDirectory() as made:
        source = Path(made) / "instructions.cu"
        source.write_text(instructions.source(), encoding="utf-8")
        gpu.load(source)
    found = vectors(gpu)
    path = folder / f"golden_sm{gpu.capability()}.npz"
    np.savez_compressed(path, **found)
    print(f"{path}: {len(OPS)} instructions, and {len(found.keys() & {*MMA, 'wgmma'})} of matrices")


if __name__ == "__main__":
    main()
