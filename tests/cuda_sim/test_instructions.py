"""Each instruction computes what NumPy computes, bit by bit or to the last places that its name allows."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from .device_array import DeviceArray
from .instructions import FLOAT, INTEGER, TYPES, source

pytestmark = pytest.mark.isa_once

COUNT = 256
OPS = [*INTEGER, *FLOAT]


def inputs() -> dict[str, np.ndarray]:
    """Four arrays of each type, with what is special at their starts; no divisor is 0."""
    rng = np.random.default_rng(3)
    made = {kind: rng.integers(0, 2**32, (4, COUNT), np.uint64).astype(TYPES[kind]) for kind in "rh"}
    made["l"] = rng.integers(1, 2**64 - 1, (4, COUNT), np.uint64)
    made["r"][:, :6] = [0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1]
    made["r"][1, 0] = 3
    made["r"][2:, ::2] %= 40  # shifts, places and lengths of fields
    made["l"][:, :4] = [1, 2**63 - 1, 2**63, 2**64 - 1]
    floats = rng.standard_normal((4, COUNT)) * 10.0 ** rng.integers(-6, 7, (4, COUNT))
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 65504.0, 1e-40, -1e-40, 0.5, 2.5, 2.0**31, -(2.0**31)]
    floats[0, : len(special)] = special
    floats[1, : len(special)] = special[::-1]
    made["d"] = floats
    made["f"] = floats.astype(np.float32)
    with np.errstate(over="ignore"):
        made["h"][:, ::2] = floats[:, ::2].astype(np.float16).view(np.uint16)
    return made


@pytest.fixture(scope="module")
def results(simulate, tmp_path_factory):
    """Operands and the bits of all results, one row an instruction."""
    path = tmp_path_factory.mktemp("instructions") / "instructions.cu"
    path.write_text(source(), encoding="utf-8")
    simulator = simulate("instructions", [path])
    given = inputs()
    arrays = {kind: DeviceArray.from_numpy(simulator, given[kind]) for kind in "rlhfd"}
    out = DeviceArray.empty(simulator, (len(OPS), COUNT), np.uint64)
    simulator.launch("instructions", COUNT // 64, 64, *arrays.values(), out, ctypes.c_int(COUNT))
    return given, out.numpy()


def distance(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """How many floats lie between; NaNs are equal, and different from all else."""
    integer = {4: np.int32, 8: np.int64}[found.itemsize]

    def order(x: np.ndarray) -> np.ndarray:
        bits = x.view(integer).astype(object)
        return np.where(bits >= 0, bits, np.iinfo(integer).min - bits)

    nan = np.isnan(found) & np.isnan(expected)
    either = np.isnan(found) ^ np.isnan(expected)
    return np.where(nan, 0, np.where(either, 10**9, np.abs(order(found) - order(expected)))).astype(float)


@pytest.mark.parametrize("number", range(len(OPS)), ids=[f"{op.text.split()[0]}-{i}" for i, op in enumerate(OPS)])
def test_instruction(results, number):
    given, rows = results
    op = OPS[number]
    kind = TYPES[op.result]
    bits = rows[number].astype({2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(kind).itemsize])
    operands, used = [], dict.fromkeys(op.operands, 0)
    for letter in op.operands:
        operands.append(given[letter][used[letter]])
        used[letter] += 1
    with np.errstate(all="ignore"):
        expected = np.asarray(op.model(*operands))
    if op.result in "fd":
        assert distance(bits.view(kind), expected.astype(kind)).max() <= op.ulps
    else:
        width = 8 * bits.itemsize
        exact = [int(value) & (1 << width) - 1 for value in expected]
        wrong = [i for i, value in enumerate(exact) if int(bits[i]) != value]
        half_nan = [i for i in wrong if "16" in op.text and is_half_nan(int(bits[i]), exact[i], op.text)]
        assert wrong == half_nan


def is_half_nan(found: int, expected: int, text: str) -> bool:
    """Whether two words differ in NaNs only: which NaN results, is not said."""
    largest = 0x7F80 if "bf16" in text else 0x7C00
    for shift in (0, 16):
        x, y = found >> shift & 0xFFFF, expected >> shift & 0xFFFF
        if x != y and not (x & 0x7FFF > largest and y & 0x7FFF > largest):
            return False
    return True
