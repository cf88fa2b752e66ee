"""Every error of embedding names the argument and the value; afterwards nothing was written."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tegula as tg
from support import numpy_dtype, run_python, same_bits

WEIGHT = np.arange(20, dtype=np.float32).reshape(5, 4)
IDS = np.array([[0, 1, 2], [3, 4, 0]])

CASES = [
    (IndexError, r"id 5 at ids\[1, 0\] is outside \[0, 5\)", {"ids": [[0, 1, 2], [5, 1, -9]]}),
    (IndexError, r"id -2 at ids\[0, 1\]", {"ids": [[0, -2, 5], [0, 0, 0]]}),
    (IndexError, r"id 0 at ids\[0, 0\] is outside \[0, 0\)", {"weight": WEIGHT[:0]}),
    (TypeError, "ids.*bool", {"ids": np.zeros(3, bool)}),
    (TypeError, "ids.*bool", {"ids": [True, False]}),
    (TypeError, "ids.*float64", {"ids": [1.0]}),
    (TypeError, "ids.*object", {"ids": np.array([1, "x"], object)}),
    (TypeError, "ids.*str", {"ids": "abc"}),
    (TypeError, "ids.*NoneType", {"ids": None}),
    (ValueError, r"weight.*\(V, D\).*\(20,\)", {"weight": WEIGHT.ravel()}),
    (ValueError, r"weight.*\(V, D\).*\(1, 5, 4\)", {"weight": WEIGHT[None]}),
    (TypeError, "weight.*list", {"weight": [[1.0]]}),
    (TypeError, "weight.*int64", {"weight": WEIGHT.astype(np.int64)}),
    (TypeError, "weight.*bool", {"weight": WEIGHT > 3}),
    (TypeError, "weight.*uint16", {"weight": WEIGHT.astype(np.uint16)}),
    (TypeError, "weight.*object", {"weight": WEIGHT.astype(object)}),
    (TypeError, "weight.*complex", {"weight": WEIGHT.astype(complex)}),
    (ValueError, r"padding_idx 5 is outside \[-5, 5\)", {"padding_idx": 5}),
    (ValueError, r"padding_idx -6 is outside \[-5, 5\)", {"padding_idx": -6}),
    (TypeError, "padding_idx.*float", {"padding_idx": 0.0}),
    (TypeError, "padding_idx.*bool", {"padding_idx": False}),
    (ValueError, "pad_output.*'row' or 'zero'.*'mean'", {"pad_output": "mean"}),
    (TypeError, "ignore_id.*str", {"ignore_id": "-1"}),
    (ValueError, "ignore_id.*64 bits", {"ignore_id": 2**64}),
    (ValueError, "scale.*nan", {"scale": math.nan}),
    (ValueError, "scale.*inf", {"scale": math.inf}),
    (TypeError, "scale.*str", {"scale": "2"}),
    (TypeError, "scale.*bool", {"scale": True}),
    (ValueError, "position_table.*'sinusoidal'.*'learned'", {"position_table": "learned"}),
    (ValueError, "positions need a position_table", {"positions": [0, 1, 2]}),
    (TypeError, "position_table.*list", {"position_table": [[0.0] * 4] * 3}),
    (ValueError, r"position_table.*\(P, D\).*\(4,\)", {"position_table": WEIGHT[0]}),
    (ValueError, "position_table.*3 elements.*4", {"position_table": WEIGHT[:, :3]}),
    (TypeError, "position_table.*int64", {"position_table": WEIGHT.astype(int)}),
    (ValueError, "length 3 .*only 2 rows", {"position_table": WEIGHT[:2]}),
    (
        IndexError,
        r"position 5 at positions\[2\] is outside \[0, 5\)",
        {"position_table": WEIGHT, "positions": [0, 1, 5]},
    ),
    (ValueError, r"positions.*\(4,\).*\(2, 3\)", {"position_table": WEIGHT, "positions": [0, 1, 2, 3]}),
    (ValueError, r"positions.*\(1, 2, 3\).*\(2, 3\)", {"position_table": "sinusoidal", "positions": IDS[None]}),
    (TypeError, "positions.*float64", {"position_table": WEIGHT, "positions": np.zeros(3)}),
    (TypeError, "positions.*bool", {"position_table": "sinusoidal", "positions": np.zeros(3, bool)}),
    (ValueError, "segments must come with segment_table", {"segments": IDS}),
    (ValueError, "segment_table must come with segments", {"segment_table": WEIGHT}),
    (IndexError, r"segment 2 at segments\[0, 2\] is outside \[0, 2\)", {"segments": IDS, "segment_table": WEIGHT[:2]}),
    (ValueError, "segment_table.*2 elements.*4", {"segments": IDS, "segment_table": WEIGHT[:, :2]}),
    (ValueError, r"segments.*\(2,\).*\(2, 3\)", {"segments": [0, 1], "segment_table": WEIGHT}),
    (TypeError, "segments.*bool", {"segments": IDS > 1, "segment_table": WEIGHT}),
    (ValueError, r"dropout_p.*\[0, 1\].*1.5", {"dropout_p": 1.5, "seed": 0}),
    (ValueError, r"dropout_p.*\[0, 1\].*-0.1", {"dropout_p": -0.1, "seed": 0}),
    (ValueError, "dropout_p.*nan", {"dropout_p": math.nan, "seed": 0}),
    (TypeError, "dropout_p.*str", {"dropout_p": "0.1", "seed": 0}),
    (ValueError, "dropout_p=0.1 needs a seed", {"dropout_p": 0.1}),
    (ValueError, r"seed.*\[0, 2\*\*64\).*-1", {"seed": -1}),
    (ValueError, "seed.*18446744073709551616", {"dropout_p": 0.1, "seed": 2**64}),
    (TypeError, "seed.*float", {"dropout_p": 0.1, "seed": 1.0}),
    (TypeError, "seed.*bool", {"dropout_p": 0.1, "seed": True}),
    (TypeError, "out.*list", {"out": [1.0]}),
]


@pytest.mark.parametrize(("error", "text", "arguments"), CASES)
def test_bad_input(error, text, arguments):
    out = np.full((2, 3, 4), 7, np.float32)
    with pytest.raises(error, match=text):
        tg.embedding(**{"ids": IDS, "weight": WEIGHT, "out": out, **arguments})
    with pytest.raises(error, match=text):
        tg.embedding(**{"ids": IDS, "weight": WEIGHT, **arguments})
    assert (out == 7).all()
    assert same_bits(tg.embedding(IDS, WEIGHT), WEIGHT[IDS])


@pytest.mark.parametrize(
    ("error", "text", "out"),
    [
        (TypeError, "out must have dtype float32, got float64", np.empty((2, 3, 4))),
        (ValueError, r"out must have shape \(2, 3, 4\), got \(2, 3, 5\)", np.empty((2, 3, 5), np.float32)),
        (ValueError, r"out must have shape \(2, 3, 4\), got \(6, 4\)", np.empty((6, 4), np.float32)),
        (ValueError, "out.*byte order", np.empty((2, 3, 4), ">f4")),
        (
            ValueError,
            "out has stride 0",
            np.lib.stride_tricks.as_strided(np.empty(12, np.float32), (2, 3, 4), (0, 16, 4)),
        ),
        (ValueError, "out is read-only", np.broadcast_to(np.float32(0), (2, 3, 4))),
    ],
)
def test_out_that_does_not_fit(error, text, out):
    with pytest.raises(error, match=text):
        tg.embedding(IDS, WEIGHT, out=out)


@pytest.mark.isa_once
def test_torch_tensors_do_not_mix_with_arrays():
    torch = pytest.importorskip("torch")
    for arguments in (
        {"ids": torch.zeros(2, dtype=torch.int64), "weight": WEIGHT},
        {"ids": IDS, "weight": torch.zeros(5, 4)},
        {"ids": IDS, "weight": WEIGHT, "position_table": torch.zeros(5, 4)},
        {"ids": IDS, "weight": WEIGHT, "out": torch.zeros(2, 3, 4)},
    ):
        with pytest.raises(TypeError, match=r"torch\.Tensor|torch tensor, got a"):
            tg.embedding(**arguments)


@pytest.mark.isa_once
def test_uint16_is_not_bfloat16():
    assert tg.embedding([1], np.zeros((2, 3), numpy_dtype("bfloat16"))).dtype == numpy_dtype("bfloat16")
    for dtype in (np.uint16, "V2"):
        with pytest.raises(TypeError, match="weight"):
            tg.embedding([1], np.zeros((2, 3), dtype))


@pytest.mark.isa_once
def test_ids_that_change_during_the_call_are_never_read_outside():
    run_python(
        """
        import threading, numpy as np, tegula as tg
        weight, ids, stop = np.ones((5, 64), np.float32), np.zeros((64, 512), np.int64), False
        def change():
            while not stop:
                ids[:] = 2**40
                ids[:] = 0
        thread = threading.Thread(target=change); thread.start()
        for _ in range(50):
            try:
                assert np.isin(tg.embedding(ids, weight), (0, 1)).all()
            except IndexError:
                pass
        stop = True; thread.join()
        """
    )
