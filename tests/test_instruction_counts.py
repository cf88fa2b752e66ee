"""No kernel needs more instructions than it did: callgrind counts them, so no neighbour disturbs the result."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.isa_once

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import instruction_counts  # noqa: E402

ADVICE = "if that is the price of something wanted, or no price at all: python bench/instruction_counts.py --update"


@pytest.fixture(scope="module")
def baseline():
    return json.loads(instruction_counts.BASELINE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def now(baseline):
    try:
        compiler, counts = instruction_counts.measured()
    except instruction_counts.Unavailable as reason:
        pytest.skip(str(reason))
    if compiler != baseline["compiler"]:
        pytest.skip(f"the counts are those of {baseline['compiler']}, this build's compiler is {compiler}")
    return counts


def test_every_case_is_counted(baseline, now):
    cases = {isa: set(counts) for isa, counts in now.items()}
    assert cases == {isa: set(counts) for isa, counts in baseline["counts"].items()}, ADVICE
    assert all(count > 1000 for counts in now.values() for count in counts.values())


def test_no_kernel_needs_more_instructions(baseline, now):
    grown = [
        f"{isa}, {case}: {100 * change:+.1f} %"
        for isa, case, change in instruction_counts.differences(baseline["counts"], now)
        if change > instruction_counts.TOLERANCE
    ]
    assert not grown, "; ".join([*grown, ADVICE])


def test_growth_is_seen():
    old = {"avx2": {"forward": 1000, "gone": 5}}
    new = {"avx2": {"forward": 1030, "fresh": 5}}
    found = {case: change for _, case, change in instruction_counts.differences(old, new)}
    assert found["forward"] == pytest.approx(0.03)
    assert found["gone"] == found["fresh"] == float("inf")
