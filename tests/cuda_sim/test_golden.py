"""The simulator computes what GPUs computed, as far as their results are kept here."""

from __future__ import annotations

import numpy as np
import pytest

from . import instructions
from .golden import HERE, differences, given_of, vectors

pytestmark = pytest.mark.isa_once


@pytest.fixture(scope="module")
def simulator(simulate, tmp_path_factory):
    path = tmp_path_factory.mktemp("golden") / "instructions.cu"
    path.write_text(instructions.source(), encoding="utf-8")
    return simulate("golden", [path, "matrices.cu"])


@pytest.mark.parametrize("path", sorted(HERE.glob("golden_*.npz")), ids=lambda path: path.stem)
def test_golden_bits(simulator, path):
    with np.load(path) as golden:
        golden = dict(golden)
    assert not differences(vectors(simulator, given_of(golden)), golden)


def test_differences_are_found(simulator, tmp_path):
    """A last bit of an exact instruction, three of an approximation, and a sum that is off."""
    found = vectors(simulator)
    np.savez_compressed(tmp_path / "golden.npz", **found)
    with np.load(tmp_path / "golden.npz") as file:
        golden = dict(file)
    assert differences(found, golden) == []
    texts = golden["texts"].tolist()
    approximate = next(n for n, text in enumerate(texts) if text.startswith("ex2.approx"))
    exact = next(n for n, text in enumerate(texts) if text.startswith("fma.rn.bf16x2"))
    row = golden["results"][approximate]
    place = np.flatnonzero((row > 0x3F000000) & (row < 0x40000000))[0]
    row[place] ^= 1
    assert differences(found, golden) == []
    row[place] += 8
    golden["results"][exact, 7] ^= np.uint64(1)
    golden["mma_m16n8k16_f16"][3, 2] += 1e-4
    assert [report.split(":")[0].split(" ")[0] for report in differences(found, golden)] == [
        "ex2.approx.ftz.f32", "fma.rn.bf16x2", "mma_m16n8k16_f16",
    ]  # fmt: skip
