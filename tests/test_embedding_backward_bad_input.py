"""Every error of embedding_backward names the argument and the value; afterwards nothing was written."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tegula as tg
from support import numpy_dtype, run_python, same_bits

GRAD = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
IDS = np.array([[0, 1, 2], [3, 4, 0]])

CASES = [
    (IndexError, r"id 5 at ids\[1, 0\] is outside \[0, 5\)", {"ids": [[0, 1, 2], [5, 1, -9]]}),
    (IndexError, r"id -2 at ids\[0, 1\]", {"ids": [[0, -2, 5], [0, 0, 0]]}),
    (IndexError, r"id 2 at ids\[0, 2\] is outside \[0, 2\)", {"num_rows": 2}),
    (IndexError, r"id 0 at ids\[0, 0\] is outside \[0, 0\)", {"num_rows": 0}),
    (TypeError, "ids.*bool", {"ids": IDS > 1}),
    (TypeError, "ids.*float64", {"ids": IDS * 1.0}),
    (TypeError, "ids.*str", {"ids": "abc"}),
    (TypeError, "ids.*NoneType", {"ids": None}),
    (ValueError, r"grad.*\(2, 3\), then D, got \(6, 4\)", {"grad": GRAD.reshape(6, 4)}),
    (ValueError, r"grad.*\(2, 3\), then D, got \(3, 2, 4\)", {"grad": GRAD.reshape(3, 2, 4)}),
    (ValueError, r"grad.*got \(\)", {"grad": np.array(1.0)}),
    (TypeError, "grad.*list", {"grad": [[1.0]]}),
    (TypeError, "grad.*int64", {"grad": GRAD.astype(np.int64)}),
    (TypeError, "grad.*bool", {"grad": GRAD > 3}),
    (TypeError, "grad.*uint16", {"grad": GRAD.astype(np.uint16)}),
    (TypeError, "grad.*object", {"grad": GRAD.astype(object)}),
    (TypeError, "grad.*complex", {"grad": GRAD.astype(complex)}),
    (TypeError, "num_rows.*float", {"num_rows": 5.0}),
    (TypeError, "num_rows.*bool", {"num_rows": True}),
    (TypeError, "num_rows.*NoneType", {"num_rows": None}),
    (ValueError, r"num_rows.*\[0, 2\*\*63\).*-1", {"num_rows": -1}),
    (ValueError, "num_rows.*9223372036854775808", {"num_rows": 2**63}),
    (ValueError, r"padding_idx 5 is outside \[-5, 5\)", {"padding_idx": 5}),
    (ValueError, r"padding_idx -6 is outside \[-5, 5\)", {"padding_idx": -6}),
    (TypeError, "padding_idx.*float", {"padding_idx": 0.0}),
    (ValueError, "pad_output.*'row' or 'zero'.*'mean'", {"pad_output": "mean"}),
    (TypeError, "ignore_id.*str", {"ignore_id": "-1"}),
    (ValueError, "ignore_id.*64 bits", {"ignore_id": 2**64}),
    (ValueError, "scale.*nan", {"scale": math.nan}),
    (TypeError, "scale.*str", {"scale": "2"}),
    (ValueError, r"dropout_p.*\[0, 1\].*1.5", {"dropout_p": 1.5, "seed": 0}),
    (ValueError, "dropout_p=0.1 needs a seed", {"dropout_p": 0.1}),
    (ValueError, r"seed.*\[0, 2\*\*64\).*-1", {"seed": -1}),
    (TypeError, "seed.*float", {"dropout_p": 0.1, "seed": 1.0}),
    (TypeError, "out.*list", {"out": [1.0]}),
]


@pytest.mark.isa_once
@pytest.mark.parametrize(("error", "text", "arguments"), CASES)
def test_bad_input(error, text, arguments):
    out = np.full((5, 4), 7, np.float32)
    for options in ({}, {"out": out}, {"sparse": True}):
        if options and arguments.keys() & {"out", "num_rows"}:
            continue
        with pytest.raises(error, match=text):
            tg.embedding_backward(**{"grad": GRAD, "ids": IDS, "num_rows": 5, **options, **arguments})
    assert (out == 7).all()


@pytest.mark.isa_once
@pytest.mark.parametrize(
    ("error", "text", "out"),
    [
        (TypeError, "out must have dtype float32, got float64", np.zeros((5, 4))),
        (ValueError, r"out must have shape \(5, 4\), got \(5, 5\)", np.zeros((5, 5), np.float32)),
        (ValueError, r"out must have shape \(5, 4\), got \(20,\)", np.zeros(20, np.float32)),
        (ValueError, "out.*byte order", np.zeros((5, 4), ">f4")),
        (ValueError, "out has stride 0", np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (5, 4), (0, 4))),
        (ValueError, "out is read-only", np.broadcast_to(np.float32(0), (5, 4))),
        (ValueError, "out shares memory with grad", GRAD.reshape(6, 4)[:5]),
    ],
)
def test_out_that_does_not_fit(error, text, out):
    before = GRAD.copy()
    with pytest.raises(error, match=text):
        tg.embedding_backward(GRAD, IDS, 5, out=out)
    assert same_bits(GRAD, before)


@pytest.mark.isa_once
def test_sparse_has_no_out():
    with pytest.raises(ValueError, match="out cannot be given with sparse=True"):
        tg.embedding_backward(GRAD, IDS, 5, out=np.zeros((5, 4), np.float32), sparse=True)
    with pytest.raises(TypeError, match="sparse must be a bool, got int"):
        tg.embedding_backward(GRAD, IDS, 5, sparse=1)


@pytest.mark.isa_once
def test_a_table_that_no_memory_holds():
    """The ids are looked at first; then NumPy says what is too large, before anything is computed."""
    with pytest.raises(IndexError, match="id -1"):
        tg.embedding_backward(GRAD, IDS - 1, 2**40)
    for rows in (2**44, 2**62):
        with pytest.raises((MemoryError, ValueError)):
            tg.embedding_backward(GRAD, IDS, rows)


@pytest.mark.isa_once
def test_torch_tensors_do_not_mix_with_arrays():
    torch = pytest.importorskip("torch")
    for arguments in (
        {"ids": torch.zeros(2, 3, dtype=torch.int64)},
        {"grad": torch.zeros(2, 3, 4)},
        {"out": torch.zeros(5, 4)},
    ):
        with pytest.raises(TypeError, match=r"torch\.Tensor|torch tensor, got a"):
            tg.embedding_backward(**{"grad": GRAD, "ids": IDS, "num_rows": 5, **arguments})


@pytest.mark.isa_once
def test_uint16_is_not_bfloat16():
    assert tg.embedding_backward(np.zeros((1, 3), numpy_dtype("bfloat16")), [0], 2).dtype == numpy_dtype("bfloat16")
    for dtype in (np.uint16, "V2"):
        with pytest.raises(TypeError, match="grad"):
            tg.embedding_backward(np.zeros((1, 3), dtype), [0], 2)


@pytest.mark.isa_once
def test_ids_that_change_during_the_call_are_never_written_outside():
    run_python(
        """
        import threading, numpy as np, tegula as tg
        grad, ids, stop = np.ones((64, 512, 8), np.float32), np.zeros((64, 512), np.int64), False
        def change():
            while not stop:
                ids[:] = 2**40
                ids[:] = 3
                ids[:] = 0
        thread = threading.Thread(target=change); thread.start()
        for _ in range(50):
            try:
                assert tg.embedding_backward(grad, ids, 5).sum() <= grad.size
                found, rows = tg.embedding_backward(grad, ids, 5, sparse=True)
                assert np.isin(found, (0, 3)).all()
            except IndexError:
                pass
        stop = True; thread.join()
        """
    )


@pytest.mark.isa_once
def test_a_call_inside_a_call_has_scratch_of_its_own():
    """NumPy may run any Python code while the result is made: here, a call of the same function."""
    run_python(
        """
        import numpy as np, tegula as tg
        from unittest import mock
        grad, ids = np.ones((900, 8), np.float32), np.arange(900) % 30
        expected, zeros = tg.embedding_backward(grad, ids, 30), np.zeros
        def busy(*arguments):
            with mock.patch.object(np, "zeros", zeros):
                tg.embedding_backward(grad[::-1] * 5, ids[::-1] * 3, 100)
            return zeros(*arguments)
        with mock.patch.object(np, "zeros", busy):
            assert (tg.embedding_backward(grad, ids, 30) == expected).all()
        """
    )
