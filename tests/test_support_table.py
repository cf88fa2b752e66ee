"""Every cell of the table "what works where" is a test, and the committed table says what the tests are."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support_probes import FEATURES, WAYS

pytestmark = pytest.mark.isa_once

ROOT = Path(__file__).parents[1]
PROBES = {f"{name}, {way}": probe for name, probes in FEATURES.items() for way, probe in probes.items()}


@pytest.mark.parametrize("cell", PROBES)
def test_probe(cell):
    PROBES[cell]()


@pytest.mark.parametrize("file", ["README.md", "docs/support.md"])
def test_the_table_is_that_of_the_probes(file):
    """`python tools/support_table.py` writes it anew."""
    text = (ROOT / file).read_text(encoding="utf-8")
    table = re.findall(r"<!-- support:.*?-->\n(.*?)<!-- support end -->", text, re.DOTALL)
    assert len(table) == 1
    head, rule, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].strip().splitlines()]
    assert head == ["", *WAYS]
    assert set(rule) == {"---"}
    written = {name: cells for names, *cells in rows for name in names.split(", ")}
    assert written == {name: ["yes" if way in probes else "" for way in WAYS] for name, probes in FEATURES.items()}
