"""Every kernel needs as many instructions as it did: callgrind counts them, so no neighbour disturbs the result."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.isa_once

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import instruction_counts  # noqa: E402

ADVICE = "if that comes with something wanted: python bench/instruction_counts.py --update"


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


def test_every_kernel_needs_as_many_instructions(baseline, now):
    """Fewer are suspicious, too: a compiler drops calls that only send for memory unless it is told not to."""
    changed = [
        f"{isa}, {case}: {100 * change:+.1f} %"
        for isa, case, change in instruction_counts.differences(baseline["counts"], now)
        if abs(change) > instruction_counts.TOLERANCE
    ]
    assert not changed, "; ".join([*changed, ADVICE])


def test_changes_are_seen():
    old = {"avx2": {"forward": 1000, "decode": 1000, "gone": 5}}
    new = {"avx2": {"forward": 1030, "decode": 900, "fresh": 5}}
    found = {case: change for _, case, change in instruction_counts.differences(old, new)}
    assert found["forward"] == pytest.approx(0.03) and found["decode"] == pytest.approx(-0.1)
    assert list(found)[-2:] == ["decode", "forward"]
    assert found["gone"] == found["fresh"] == float("inf")
