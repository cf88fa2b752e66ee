"""The table of docs/gpu.md: its column of the processor is tests here, that of the simulated GPU in tests/cuda."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "cuda"), str(ROOT / "tools")]

from device_probes import PROBES  # noqa: E402
from device_table import table  # noqa: E402

pytestmark = pytest.mark.isa_once


@pytest.mark.parametrize("row", PROBES)
def test_row(row):
    PROBES[row](lambda x: x, lambda x: x)


def test_the_committed_table_has_these_rows():
    """`python tools/device_table.py` writes it anew."""
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert table(set(PROBES), set(PROBES)) in text
