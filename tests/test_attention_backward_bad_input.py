"""What does not fit is refused by name, with its value, before any gradient is written."""

import re

import numpy as np
import pytest
import tegula as tg
from cases import AttentionCase
from support import all_same_bits
from test_attention_bad_input import BAD as BAD_FORWARD
from test_attention_bad_input import DV, LK, LQ, B, D, G, H, bad, read_only, zeros

pytestmark = pytest.mark.isa_once

Q, K, V, OUT = "(2, 4, 5, 8)", "(2, 2, 7, 8)", "(2, 2, 7, 6)", "(2, 4, 5, 6)"


def grads(dq=None, dk=None, dv=None):
    """Buffers for dq, dk, dv, made when the test runs; those given are wrong in some way."""

    def make():
        right = (zeros(B, H, LQ, D), zeros(B, G, LK, D), zeros(B, G, LK, DV))
        given = (x() if callable(x) else x for x in (dq, dk, dv))
        return tuple(one if x is None else x for x, one in zip(given, right, strict=True))

    return make


def overlapping():
    """dk over dq: what is written to one would be lost in the other."""
    room = zeros(B, H, LQ, D)
    return room, room.reshape(-1)[: B * G * LK * D].reshape(B, G, LK, D), zeros(B, G, LK, DV)


# What forward refuses, backward refuses with the same words; beside it, its own arguments.
SHARED = {name: wrong for name, wrong in BAD_FORWARD.items() if not name.startswith("out-")}
BAD = {
    # grad_out
    "grad-out-shape": bad(ValueError, "grad_out", Q, OUT, grad_out=zeros(B, H, LQ, D)),
    "grad-out-batch": bad(ValueError, "grad_out", "(1, 4, 5, 6)", OUT, grad_out=zeros(1, H, LQ, DV)),
    "grad-out-heads": bad(ValueError, "grad_out", "(2, 2, 5, 6)", OUT, grad_out=zeros(B, G, LQ, DV)),
    "grad-out-rank": bad(ValueError, "grad_out", "(5, 6)", OUT, grad_out=zeros(LQ, DV)),
    "grad-out-scalar": bad(ValueError, "grad_out", "()", grad_out=zeros()),
    "grad-out-dtype": bad(TypeError, "grad_out", "float64", "float32", grad_out=zeros(B, H, LQ, DV, dtype="f8")),
    "grad-out-half": bad(TypeError, "grad_out", "float16", "float32", grad_out=zeros(B, H, LQ, DV, dtype="f2")),
    "grad-out-int": bad(TypeError, "grad_out", "int64", grad_out=zeros(B, H, LQ, DV, dtype="i8")),
    "grad-out-object": bad(TypeError, "grad_out", "object", grad_out=zeros(B, H, LQ, DV, dtype=object)),
    "grad-out-complex": bad(TypeError, "grad_out", "complex64", grad_out=zeros(B, H, LQ, DV, dtype="c8")),
    "grad-out-none": bad(TypeError, "grad_out", "None|NoneType", grad_out=None),
    "grad-out-number": bad(TypeError, "grad_out", "float", grad_out=1.0),
    "grad-out-list": bad(TypeError, "grad_out", "list", grad_out=[1.0]),
    # out
    "out-shape": bad(ValueError, "out", Q, OUT, out=zeros(B, H, LQ, D)),
    "out-rank": bad(ValueError, "out", "(4, 5, 6)", out=zeros(H, LQ, DV)),
    "out-length": bad(ValueError, "out", "(2, 4, 6, 6)", OUT, out=zeros(B, H, LQ + 1, DV)),
    "out-dtype": bad(TypeError, "out", "float64", "float32", out=zeros(B, H, LQ, DV, dtype="f8")),
    "out-bool": bad(TypeError, "out", "bool", out=zeros(B, H, LQ, DV, dtype=bool)),
    "out-none": bad(TypeError, "out", "None|NoneType", out=None),
    "out-string": bad(TypeError, "out", "str", out="result"),
    # lse
    "lse-shape": bad(ValueError, "lse", "(2, 4, 7)", "(2, 4, 5)", lse=zeros(B, H, LK)),
    "lse-transposed": bad(ValueError, "lse", "(2, 5, 4)", "(2, 4, 5)", lse=zeros(B, LQ, H)),
    "lse-rank": bad(ValueError, "lse", "(2, 4, 5, 1)", "(2, 4, 5)", lse=zeros(B, H, LQ, 1)),
    "lse-heads": bad(ValueError, "lse", "(2, 2, 5)", "(2, 4, 5)", lse=zeros(B, G, LQ)),
    "lse-double": bad(TypeError, "lse", "float64", "float32", lse=zeros(B, H, LQ, dtype="f8")),
    "lse-half": bad(TypeError, "lse", "float16", "float32", lse=zeros(B, H, LQ, dtype="f2")),
    "lse-int": bad(TypeError, "lse", "int32", lse=zeros(B, H, LQ, dtype="i4")),
    "lse-none": bad(TypeError, "lse", "None|NoneType", lse=None),
    "lse-true": bad(TypeError, "lse", "bool", lse=True),
    # grads
    "grads-dq-shape": bad(ValueError, "dq", "(2, 4, 5, 6)", Q, grads=grads(dq=zeros(B, H, LQ, DV))),
    "grads-dk-shape": bad(ValueError, "dk", "(2, 4, 7, 8)", K, grads=grads(dk=zeros(B, H, LK, D))),
    "grads-dv-shape": bad(ValueError, "dv", "(2, 2, 7, 8)", V, grads=grads(dv=zeros(B, G, LK, D))),
    "grads-dq-dtype": bad(TypeError, "dq", "float64", "float32", grads=grads(dq=zeros(B, H, LQ, D, dtype="f8"))),
    "grads-dk-dtype": bad(TypeError, "dk", "float16", "float32", grads=grads(dk=zeros(B, G, LK, D, dtype="f2"))),
    "grads-dv-dtype": bad(TypeError, "dv", "int64", "float32", grads=grads(dv=zeros(B, G, LK, DV, dtype="i8"))),
    "grads-dq-read-only": bad(
        ValueError, "dq", "read-only|writable|writeable", grads=grads(dq=lambda: read_only(zeros(B, H, LQ, D)))
    ),
    "grads-dv-broadcast": bad(
        ValueError,
        "dv",
        grads=grads(dv=lambda: np.lib.stride_tricks.as_strided(zeros(DV), (B, G, LK, DV), (0, 0, 0, 4))),
    ),
    "grads-dk-list": bad(TypeError, "dk", "list", grads=grads(dk=list)),
    "grads-overlap": bad(ValueError, "dq|dk", grads=overlapping),
    "grads-two": bad((TypeError, ValueError), "grads", grads=lambda: grads()()[:2]),
    "grads-array": bad((TypeError, ValueError), "grads|dq|dk|dv", grads=zeros(B, H, LQ, D)),
    "grads-string": bad((TypeError, ValueError), "grads", grads="dq"),
    "grads-true": bad((TypeError, ValueError), "grads", grads=True),
}


@pytest.fixture
def good():
    case = AttentionCase(LQ, LK, D, DV, H, G, (B,))
    q, k, v = case.arrays()
    out, lse = tg.attention(q, k, v, return_lse=True)
    return {"grad_out": case.grad_out(), "q": q, "k": k, "v": v, "out": out, "lse": lse}


@pytest.mark.parametrize(("change", "error", "said"), [*SHARED.values(), *BAD.values()], ids=[*SHARED, *BAD])
def test_bad_input_is_refused(good, change, error, said):
    expect = tg.attention_backward(**good)
    change = {name: value() if callable(value) else value for name, value in change.items()}
    buffers = change.setdefault("grads", tuple(np.full_like(good[name], 42) for name in "qkv"))
    before = [np.array(x).tobytes() for x in buffers] if isinstance(buffers, tuple) else None

    with pytest.raises(error) as caught:
        tg.attention_backward(**(good | change))
    message = str(caught.value)
    for either in said:
        words = "|".join(re.escape(word) for word in either.split("|"))
        assert re.search(rf"(?<!\w)({words})(?!\w)", message), f"{either!r} is not in {message!r}"
    if before is not None:
        assert [np.array(x).tobytes() for x in buffers] == before

    assert all_same_bits(tg.attention_backward(**good), expect)


@pytest.mark.parametrize("argument", ["grad_out", "q", "k", "v", "out", "lse", "bias", "mask"])
def test_c80_numpy_and_torch_do_not_mix(good, argument):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(x) for name, x in good.items()}
    tensors |= {"bias": torch.zeros(LQ, LK), "mask": torch.ones(LQ, LK, dtype=torch.bool)}
    with pytest.raises(TypeError, match="torch|Tensor"):
        tg.attention_backward(**good | {argument: tensors[argument]})


def test_the_log_sum_exp_has_the_precision_of_the_sums(good):
    """float32 for 16-bit arrays, float64 for float64."""
    for dtype, right, wrong in (("f8", "float64", "f4"), ("f2", "float32", "f2")):
        arrays = {name: x.astype(dtype) for name, x in good.items() if name != "lse"}
        with pytest.raises(TypeError, match=f"lse.*{np.dtype(wrong)}.*{right}|lse.*{right}.*{np.dtype(wrong)}"):
            tg.attention_backward(**arrays, lse=good["lse"].astype(wrong))
        tg.attention_backward(**arrays, lse=good["lse"].astype(right))


@pytest.mark.parametrize("written", ["dq", "dk", "dv"])
@pytest.mark.parametrize("overlapped", ["grad_out", "q", "k", "v", "out", "lse", "bias"])
def test_a_gradient_over_an_input_is_refused(overlapped, written):
    """Rows that are still to be read would be overwritten; the inputs stay as they are."""
    case = AttentionCase(6, 6, 6, leading=(2,))
    q, k, v = case.arrays()
    bias = np.zeros((2, 2, 6, 6), "f4")
    out, lse = tg.attention(q, k, v, bias=bias, return_lse=True)
    inputs = {"grad_out": case.grad_out(), "q": q, "k": k, "v": v, "out": out, "bias": bias}
    # The log-sum-exp is smaller than a gradient: it lies inside of one.
    room = np.zeros_like(q)
    inputs["lse"] = room.reshape(-1)[: lse.size].reshape(lse.shape)
    inputs["lse"][...] = lse
    buffers = {"dq": np.zeros_like(q), "dk": np.zeros_like(k), "dv": np.zeros_like(v)}
    buffers[written] = room if overlapped == "lse" else inputs[overlapped]
    before = {name: x.tobytes() for name, x in inputs.items()}
    with pytest.raises(ValueError, match=f"{written}.*{overlapped}|{overlapped}.*{written}"):
        tg.attention_backward(**inputs, grads=tuple(buffers.values()))
    assert {name: x.tobytes() for name, x in inputs.items()} == before


def test_options_have_to_be_those_of_the_forward_pass_where_that_shows(good):
    """A seed is needed to replay dropout; a layout has to fit the shapes of all arrays."""
    with pytest.raises(ValueError, match="seed"):
        tg.attention_backward(**good, dropout_p=0.5)
    with pytest.raises(ValueError):
        tg.attention_backward(**good, layout="blhd")


def test_more_rows_than_can_be_counted_are_refused():
    many = np.lib.stride_tricks.as_strided(np.ones(1, np.float16), (1, 2**31, 1), (0, 0, 0))
    many_lse = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (1, 2**31), (0, 0))
    one, one_lse = np.ones((1, 1, 1), np.float16), np.ones((1, 1), np.float32)
    with pytest.raises(ValueError, match="q has 2147483648 rows"):
        tg.attention_backward(many, many, one, one, many, many_lse)
    with pytest.raises(ValueError, match="k has 2147483648 rows"):
        tg.attention_backward(one, one, many, many, one, one_lse)
