"""The embedding on a GPU gives the bits of the processor's."""

from __future__ import annotations

import numpy as np
import pytest
import tegula as tg
from simulated_gpu import from_gpu, on_gpu
from support import DTYPES, numpy_dtype, same_bits


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows(dtype):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((11, 24)).astype(numpy_dtype(dtype))
    ids = rng.integers(0, 11, (3, 5))
    options = {"scale": 3.0, "padding_idx": 2, "pad_output": "zero", "dropout_p": 0.3, "seed": 5}
    got = tg.embedding(on_gpu(ids), on_gpu(weight), **options)
    assert same_bits(from_gpu(got), tg.embedding(ids, weight, **options))
