"""What does not fit is refused by name, with its value, before anything is written."""

import re

import numpy as np
import pytest
import tegula as tg
from cases import AttentionCase
from support import same_bits

pytestmark = pytest.mark.isa_once

# A good call; every bad one changes a single thing. The shapes of its q, k and pairs are named below.
B, H, G, LQ, LK, D, DV = 2, 4, 2, 5, 7, 8, 6


Q, K, PAIRS = "(2, 4, 5, 8)", "(2, 2, 7, 8)", "(2, 4, 5, 7)"


def bad(error, *said, **change):
    """The change, the error, and what the message has to say; "a|b" means either."""
    return change, error, said


def zeros(*shape, dtype="f4"):
    return np.zeros(shape, dtype)


def read_only(x):
    x.flags.writeable = False
    return x


def masks(build):
    """Masks are made when the test runs, not when it is collected."""
    return lambda: build(tg.masks)


BAD = {
    # shapes of q, k, v
    "q-vector": bad(ValueError, "q", "(8,)", q=zeros(D)),
    "q-scalar": bad(ValueError, "q", "()", q=zeros()),
    "k-rank": bad(ValueError, "k", "(2, 7, 8)", Q, k=zeros(G, LK, D)),
    "v-rank": bad(ValueError, "v", "(7, 6)", v=zeros(LK, DV)),
    "k-head-size": bad(ValueError, "k", "(2, 2, 7, 9)", Q, k=zeros(B, G, LK, 9)),
    "v-length": bad(ValueError, "v", "(2, 2, 8, 6)", K, v=zeros(B, G, 8, DV)),
    "v-heads": bad(ValueError, "v", "(2, 1, 7, 6)", K, v=zeros(B, 1, LK, DV)),
    "k-batch": bad(ValueError, "k", "(3, 2, 7, 8)", Q, k=zeros(3, G, LK, D)),
    "v-batch": bad(ValueError, "v", "(3, 2, 7, 6)", v=zeros(3, G, LK, DV)),
    "heads-not-a-multiple": bad(
        ValueError, "4", "3", "multiple|divide|divides", k=zeros(B, 3, LK, D), v=zeros(B, 3, LK, DV)
    ),
    "more-key-heads": bad(ValueError, "4", "8", "multiple|divide|divides", k=zeros(B, 8, LK, D), v=zeros(B, 8, LK, DV)),
    "no-key-heads": bad(ValueError, "4", "0", k=zeros(B, 0, LK, D), v=zeros(B, 0, LK, DV)),
    # kinds and dtypes of q, k, v
    "q-none": bad(TypeError, "q", "None|NoneType", q=None),
    "k-string": bad(TypeError, "k", "str", k="keys"),
    "q-object": bad(TypeError, "q", "object", q=zeros(B, H, LQ, D, dtype=object)),
    "v-object": bad(TypeError, "v", "object", v=zeros(B, G, LK, DV, dtype=object)),
    "q-int": bad(TypeError, "q", "int64", q=zeros(B, H, LQ, D, dtype="i8")),
    "k-bool": bad(TypeError, "k", "bool", k=zeros(B, G, LK, D, dtype=bool)),
    "q-uint16": bad(TypeError, "q", "uint16", q=zeros(B, H, LQ, D, dtype="u2")),
    "v-complex": bad(TypeError, "v", "complex64", v=zeros(B, G, LK, DV, dtype="c8")),
    "q-long-double": bad(TypeError, "q", "float128|longdouble", q=zeros(B, H, LQ, D, dtype=np.longdouble)),
    "q-text": bad(TypeError, "q", "<U1|str", q=zeros(B, H, LQ, D, dtype="U1")),
    "q-record": bad(TypeError, "q", q=zeros(B, H, LQ, D, dtype="f4,f4")),
    "k-other-float": bad(TypeError, "k", "float64", "float32", k=zeros(B, G, LK, D, dtype="f8")),
    "v-other-float": bad(TypeError, "v", "float16", "float32", v=zeros(B, G, LK, DV, dtype="f2")),
    # mask
    "mask-float": bad(TypeError, "mask", "float32", "bool", mask=zeros(LQ, LK)),
    "mask-int": bad(TypeError, "mask", "int64", "bool", mask=zeros(LQ, LK, dtype="i8")),
    "mask-uint8": bad(TypeError, "mask", "uint8", "bool", mask=zeros(LQ, LK, dtype="u1")),
    "mask-object": bad(TypeError, "mask", "object", mask=zeros(LQ, LK, dtype=object)),
    "mask-string": bad(TypeError, "mask", "str", mask="causal"),
    "mask-true": bad(TypeError, "mask", "bool", mask=True),
    "mask-batch-keys": bad(ValueError, "mask", "(2, 7)", "(5, 7)", mask=zeros(B, LK, dtype=bool)),
    "mask-vector": bad(ValueError, "mask", "(7,)", mask=zeros(LK, dtype=bool)),
    "mask-rank-3": bad(ValueError, "mask", "(2, 5, 7)", mask=zeros(B, LQ, LK, dtype=bool)),
    "mask-rank-3-one": bad(ValueError, "mask", "(1, 5, 7)", mask=zeros(1, LQ, LK, dtype=bool)),
    "mask-keys": bad(ValueError, "mask", "(5, 8)", "(5, 7)|7", mask=zeros(LQ, LK + 1, dtype=bool)),
    "mask-queries": bad(ValueError, "mask", "(6, 7)", mask=zeros(LQ + 1, LK, dtype=bool)),
    "mask-heads": bad(ValueError, "mask", "(2, 2, 5, 7)", mask=zeros(B, 2, LQ, LK, dtype=bool)),
    "mask-batch": bad(ValueError, "mask", "(3, 1, 5, 7)", mask=zeros(3, 1, LQ, LK, dtype=bool)),
    "mask-one-query": bad(ValueError, "mask", "(1, 7)", mask=zeros(1, LK, dtype=bool)),
    "mask-unaligned": bad(ValueError, "align", "5", "7", mask=masks(lambda m: m.causal())),
    "mask-window-unaligned": bad(ValueError, "align", "5", "7", mask=masks(lambda m: m.window(2, 0))),
    "mask-lengths": bad(ValueError, "3", "2", mask=masks(lambda m: m.padding([1, 2, 3]))),
    "mask-keep": bad(ValueError, "9", "7", mask=masks(lambda m: m.padding(keep=np.ones((B, 9), bool)))),
    "mask-documents": bad(ValueError, "9", "7", mask=masks(lambda m: m.documents(np.zeros(LQ, int), np.zeros(9, int)))),
    "mask-cu-seqlens-end": bad(
        ValueError, "4", "5", mask=masks(lambda m: m.documents(cu_seqlens=[0, 4], cu_seqlens_k=[0, 7]))
    ),
    "mask-cu-seqlens-k-end": bad(
        ValueError, "8", "7", mask=masks(lambda m: m.documents(cu_seqlens=[0, 5], cu_seqlens_k=[0, 8]))
    ),
    "mask-dense-size": bad(ValueError, "9", "7", mask=masks(lambda m: m.dense(np.ones((LQ, 9), bool)))),
    "mask-dense-inside": bad(
        ValueError, "9", "7", mask=masks(lambda m: m.dense(np.ones((LQ, 9), bool)) & m.causal(align="top_left"))
    ),
    "mask-offsets": bad(ValueError, "3", "2", mask=masks(lambda m: m.causal(offset=np.arange(3)))),
    # bias
    "bias-bool": bad(TypeError, "bias", "bool", bias=zeros(LQ, LK, dtype=bool)),
    "bias-int": bad(TypeError, "bias", "int32", bias=zeros(LQ, LK, dtype="i4")),
    "bias-object": bad(TypeError, "bias", "object", bias=zeros(LQ, LK, dtype=object)),
    "bias-complex": bad(TypeError, "bias", "complex64", bias=zeros(LQ, LK, dtype="c8")),
    "bias-string": bad(TypeError, "bias", "str", bias="none"),
    "bias-shape": bad(ValueError, "bias", "(5, 8)", PAIRS, bias=zeros(LQ, LK + 1)),
    "bias-heads": bad(ValueError, "bias", "(2, 5, 7)", PAIRS, bias=zeros(G, LQ, LK)),
    "bias-rank": bad(ValueError, "bias", "(1, 2, 4, 5, 7)", bias=zeros(1, B, H, LQ, LK)),
    # numbers
    "scale-nan": bad(ValueError, "scale", "nan", scale=float("nan")),
    "scale-inf": bad(ValueError, "scale", "inf", scale=float("inf")),
    "scale-string": bad(TypeError, "scale", "str", scale="1"),
    "scale-array": bad(TypeError, "scale", scale=zeros(2)),
    "scale-complex": bad(TypeError, "scale", "complex", scale=1j),
    "softcap-nan": bad(ValueError, "softcap", "nan", softcap=float("nan")),
    "softcap-inf": bad(ValueError, "softcap", "inf", softcap=float("inf")),
    "softcap-zero": bad(ValueError, "softcap", "0", softcap=0.0),
    "softcap-negative": bad(ValueError, "softcap", "-2", softcap=-2.0),
    "softcap-string": bad(TypeError, "softcap", "str", softcap="30"),
    "alibi-length": bad(ValueError, "alibi", "(3,)", "4", alibi=zeros(3)),
    "alibi-key-heads": bad(ValueError, "alibi", "(2,)", "4", alibi=zeros(G)),
    "alibi-rank": bad(ValueError, "alibi", "(1, 4)", alibi=zeros(1, H)),
    "alibi-true": bad(TypeError, "alibi", "bool", alibi=True),
    "alibi-bool": bad(TypeError, "alibi", "bool", alibi=zeros(H, dtype=bool)),
    "sinks-length": bad(ValueError, "sinks", "(5,)", "4", sinks=zeros(5)),
    "sinks-rank": bad(ValueError, "sinks", "(4, 1)", sinks=zeros(H, 1)),
    "sinks-object": bad(TypeError, "sinks", "object", sinks=zeros(H, dtype=object)),
    "sinks-bool": bad(TypeError, "sinks", "bool", sinks=zeros(H, dtype=bool)),
    # dropout
    "dropout-negative": bad(ValueError, "dropout_p", "-0.1", dropout_p=-0.1, seed=0),
    "dropout-above-one": bad(ValueError, "dropout_p", "1.5", dropout_p=1.5, seed=0),
    "dropout-nan": bad(ValueError, "dropout_p", "nan", dropout_p=float("nan"), seed=0),
    "dropout-string": bad(TypeError, "dropout_p", "str", dropout_p="0.1", seed=0),
    "dropout-without-seed": bad(ValueError, "seed", dropout_p=0.1),
    "dropout-one-without-seed": bad(ValueError, "seed", dropout_p=1.0),
    "seed-float": bad(TypeError, "seed", "float", dropout_p=0.1, seed=1.5),
    "seed-string": bad(TypeError, "seed", "str", dropout_p=0.1, seed="1"),
    "seed-negative": bad(ValueError, "seed", "-1", dropout_p=0.1, seed=-1),
    "seed-too-large": bad(ValueError, "seed", str(2**64), dropout_p=0.1, seed=2**64),
    # options
    "layout-unknown": bad(ValueError, "layout", "bshd", "bhld", "blhd", "lhd", layout="bshd"),
    "layout-none": bad((TypeError, ValueError), "layout", "None", layout=None),
    "layout-lhd-rank": bad(ValueError, "lhd", Q, layout="lhd"),
    "threads-zero": bad(ValueError, "threads", "0", threads=0),
    "threads-negative": bad(ValueError, "threads", "-1", threads=-1),
    "threads-float": bad(TypeError, "threads", "float", threads=1.5),
    "threads-string": bad(TypeError, "threads", "str", threads="2"),
    "threads-true": bad(TypeError, "threads", "bool", threads=True),
    "unknown-option": bad(TypeError, "is_causal", is_causal=True),
    # out
    "out-shape": bad(ValueError, "out", Q, "(2, 4, 5, 6)", out=zeros(B, H, LQ, D)),
    "out-dtype": bad(TypeError, "out", "float64", "float32", out=zeros(B, H, LQ, DV, dtype="f8")),
    "out-read-only": bad(ValueError, "out", "read-only|writable|writeable", out=lambda: read_only(zeros(B, H, LQ, DV))),
    "out-list": bad(TypeError, "out", "list", out=[]),
    "out-broadcast": bad(
        ValueError, "out", out=lambda: np.lib.stride_tricks.as_strided(zeros(DV), (B, H, LQ, DV), (0, 0, 0, 4))
    ),
}


@pytest.fixture
def good():
    q, k, v = AttentionCase(LQ, LK, D, DV, H, G, (B,)).arrays()
    return {"q": q, "k": k, "v": v}


@pytest.mark.parametrize(("change", "error", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_refused(good, change, error, said):
    expect = tg.attention(**good)
    change = {name: value() if callable(value) else value for name, value in change.items()}
    out = change.setdefault("out", np.full_like(expect, 42))
    before = np.array(out).tobytes()

    with pytest.raises(error) as caught:
        tg.attention(**(good | change))
    message = str(caught.value)
    for either in said:
        words = "|".join(re.escape(word) for word in either.split("|"))
        assert re.search(rf"(?<!\w)({words})(?!\w)", message), f"{either!r} is not in {message!r}"
    assert np.array(out).tobytes() == before

    out = np.full_like(expect, np.nan)
    tg.attention(**good, out=out)
    assert same_bits(out, expect)


@pytest.mark.parametrize("overlapped", ["q", "k", "v", "bias"])
def test_an_output_over_an_input_is_refused(overlapped):
    """Rows that are still to be read would be overwritten; the inputs stay as they are."""
    q, k, v = AttentionCase(6, 6, 8, leading=(2,)).arrays()
    inputs = {"q": q, "k": k, "v": v, "bias": np.zeros((2, 2, 6, 8), "f4")[..., :6]}
    memory = inputs[overlapped] if overlapped != "bias" else inputs["bias"].base
    before = memory.tobytes()
    with pytest.raises(ValueError, match=f"out.*{overlapped}"):
        tg.attention(**inputs, out=memory)
    assert memory.tobytes() == before


def test_the_native_call_checks_what_it_reads():
    """Python hands it lowered masks; still nothing that does not fit is read."""
    from tegula import _core

    q = np.ones((1, 2, 50, 8), np.float32)
    rows, pairs = np.zeros((1, 1, 2), np.int32), np.ones((1, 1, 3, 3), bool)
    options = {"alibi": None, "sinks": None, "scale": None, "softcap": 0.0, "dropout_p": 0.0, "seed": 0}
    options |= {"layout": "bhld", "lse": False, "weights": False, "threads": 1, "out": None}
    none = {"lo": None, "hi": None, "dense": None, "bias": None}
    for wrong in (
        {"lo": rows, "hi": rows},
        {"lo": rows[0], "hi": rows[0]},
        {"dense": pairs},
        {"dense": pairs[0, 0]},
        {"bias": np.zeros(2, np.float32)},
        {"bias": np.zeros((1, 1, 50, 50), np.float32)},
    ):
        with pytest.raises(ValueError, match="lo|dense|bias"):
            _core.attention(q, q, q, **options, **(none | wrong))
    with pytest.raises(TypeError, match="dense"):
        _core.attention(q, q, q, **options, **(none | {"dense": np.ones((1, 1, 50, 50), np.float32)}))
