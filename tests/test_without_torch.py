"""The package without torch: everything for NumPy works, and who asks for torch is told what to do."""

import pytest
from support import run_python

pytestmark = pytest.mark.isa_once

WITHOUT_TORCH = """
import sys

sys.modules["torch"] = None  # an import of it fails
import numpy as np
import tegula as tg
"""


def test_training_from_numpy():
    run_python(
        WITHOUT_TORCH
        + """
table = np.random.default_rng(0).standard_normal((30, 16), np.float32)
ids = np.arange(12).reshape(2, 6)
x = tg.embedding(ids, table, position_table="sinusoidal")
q = x.reshape(2, 6, 4, 4)
mask = tg.masks.causal() & tg.masks.padding([4, 6])
out, lse = tg.attention(q, q, q, mask=mask, layout="blhd", dropout_p=0.2, seed=1, return_lse=True)
options = {"mask": mask, "layout": "blhd", "dropout_p": 0.2, "seed": 1}
gradients = tg.attention_backward(np.ones_like(out), q, q, q, out, lse, **options)
dtable = tg.embedding_backward(sum(gradients).reshape(x.shape), ids, 30)
assert np.isfinite(dtable).all() and dtable.any()
tg.show_config()
"""
    )


def test_the_error_says_what_is_missing():
    run_python(
        WITHOUT_TORCH
        + """
for ask in (lambda: __import__("tegula.torch"), lambda: tg.torch):
    try:
        ask()
    except ImportError as error:
        assert "pip install" in str(error), error
    else:
        raise AssertionError("imported")
"""
    )
