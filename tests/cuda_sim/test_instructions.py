"""Each instruction computes what NumPy computes, bit by bit or to the last places that its name allows."""

from __future__ import annotations

import numpy as np
import pytest

from .instructions import OPS, as_result, disagreements, inputs, run, source

pytestmark = pytest.mark.isa_once


@pytest.fixture(scope="module")
def results(simulate, tmp_path_factory):
    """Operands and the bits of all results, one row an instruction."""
    path = tmp_path_factory.mktemp("instructions") / "instructions.cu"
    path.write_text(source(), encoding="utf-8")
    given = inputs()
    return given, run(simulate("instructions", [path]), given)


@pytest.mark.parametrize("number", range(len(OPS)), ids=[f"{op.text.split()[0]}-{i}" for i, op in enumerate(OPS)])
def test_instruction(results, number):
    given, rows = results
    op = OPS[number]
    operands, used = [], dict.fromkeys(op.operands, 0)
    for letter in op.operands:
        operands.append(given[letter][used[letter]])
        used[letter] += 1
    with np.errstate(all="ignore"):
        expected = np.asarray(op.model(*operands))
    assert not disagreements(op, as_result(op, rows[number]), expected, op.ulps)
