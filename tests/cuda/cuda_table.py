"""The rows of the table in docs/gpu.md, on the GPU under test."""

from __future__ import annotations

import pytest
from device_probes import PROBES
from gpu_arrays import from_gpu, on_gpu


@pytest.mark.parametrize("row", PROBES)
def test_row(row):
    PROBES[row](on_gpu, from_gpu)
