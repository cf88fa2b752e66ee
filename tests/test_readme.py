"""The Python code in README.md runs as it stands, block after block."""

import re
from pathlib import Path

import numpy as np
import pytest
import tegula as tg

pytestmark = pytest.mark.isa_once

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_python_blocks_run():
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert blocks
    namespace = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert namespace["out"].shape == namespace["q"].shape
    assert np.isfinite(namespace["out"]).all()


def test_masks_table_is_complete():
    """Every constructor stands in the table with arguments that it takes."""
    rows = re.findall(r"^\| `masks\.(\w+)\(", README, re.MULTILINE)
    constructors = {
        "full",
        "causal",
        "chunked",
        "window",
        "sliding",
        "padding",
        "documents",
        "prefix",
        "global_tokens",
        "block_sparse",
        "dense",
    }
    assert set(rows) == constructors
    assert constructors <= set(tg.masks.__all__)
