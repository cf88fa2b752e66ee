"""Single instructions with what NumPy says they compute: for one thread, of registers only.

``operands`` and ``result`` are constraints of inline asm: r and l are 32 and 64 bits, h 16 bits, f and d floats.
A model takes arrays of the registers' values and gives values or bits of the result.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from .device_array import DeviceArray
from .driver import Driver

TYPES = {"r": np.uint32, "l": np.uint64, "h": np.uint16, "f": np.float32, "d": np.float64}
CTYPES = {"r": "uint32_t", "l": "uint64_t", "h": "uint16_t", "f": "float", "d": "double"}

i32, u32, i64, u64 = np.int32, np.uint32, np.int64, np.uint64
f32, f64, f16, bf16 = np.float32, np.float64, np.float16, ml_dtypes.bfloat16


class Op(NamedTuple):
    """One instruction; `ulps` is how far the result may be from the model's."""

    text: str
    operands: str
    result: str
    model: Callable[..., Any]
    ulps: int = 0


def s(x: np.ndarray) -> np.ndarray:
    """The same bits, signed."""
    return x.view({4: i32, 8: i64}[x.itemsize])


def wide(x: np.ndarray) -> np.ndarray:
    """Integers of any size."""
    return x.astype(object)


def low(x: Any, kind: type) -> np.ndarray:
    """Integers of any size, cut to a type."""
    mask = (1 << 8 * np.dtype(kind).itemsize) - 1
    return np.array([int(value) & mask for value in x], kind)


def each(function: Callable[..., int], kind: type = u32) -> Callable[..., np.ndarray]:
    """A model from a function of Python's integers."""

    def model(*arrays: np.ndarray) -> np.ndarray:
        return low([function(*map(int, values)) for values in zip(*arrays, strict=True)], kind)

    return model


def prmt(a: int, b: int, selectors: int) -> int:
    data = (b << 32 | a).to_bytes(8, "little")
    out = 0
    for i in range(4):
        selector = selectors >> 4 * i & 15
        byte = data[selector & 7]
        out |= (byte if selector < 8 else 255 * (byte >> 7)) << 8 * i
    return out


def lop3(table: int) -> Callable[[int, int, int], int]:
    return lambda a, b, c: sum(
        (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32)
    )


def bfi(x: int, into: int, position: int, count: int) -> int:
    position, count = position & 255, count & 255
    mask = ((1 << count) - 1) << position & 0xFFFFFFFF
    return into & ~mask | x << position & mask


def bfe_s(x: int, position: int, count: int) -> int:
    position, count = position & 255, count & 255
    if count == 0:
        return 0
    sign = x - (1 << 32) if x >> 31 else x
    field = sign >> min(position, 31) & (1 << count) - 1
    return field - (1 << count) if field >> count - 1 else field


def bfind_s(x: int) -> int:
    magnitude = ~x & 0xFFFFFFFF if x >> 31 else x
    return magnitude.bit_length() - 1


def quotient(x: int, y: int) -> int:
    """Toward zero, as C divides."""
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def clamp(x: Any, kind: type) -> np.ndarray:
    info = np.iinfo(kind)
    return np.array([min(max(int(value), info.min), info.max) for value in np.ravel(x)], kind)


def float_to(kind: type, rounding: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """A conversion to integers; NaN becomes 0, the rest is clamped."""

    def model(x: np.ndarray) -> np.ndarray:
        info = np.iinfo(kind)
        rounded = [0 if np.isnan(v) else np.clip(rounding(v), info.min, info.max) for v in x.astype(f64)]
        return clamp(rounded, kind)

    return model


def directed(operation: Callable[..., Any], mode: str) -> Callable[..., np.ndarray]:
    """Rounds the exact value of float32 operands, which double holds for add and mul of near numbers."""

    def model(*arrays: np.ndarray) -> np.ndarray:
        exact = operation(*(x.astype(np.longdouble) for x in arrays))
        near = exact.astype(f32)
        too_low, too_high = near < exact, near > exact
        up = too_low & ((mode == "rp") | ((mode == "rz") & (exact < 0)))
        down = too_high & ((mode == "rm") | ((mode == "rz") & (exact > 0)))
        return np.where(up, np.nextafter(near, f32(np.inf)), np.where(down, np.nextafter(near, f32(-np.inf)), near))

    return model


def halves(word: np.ndarray, kind: type) -> np.ndarray:
    return word.view(np.uint16).reshape(-1, 2).view(kind).astype(f64)


def pairs(operation: Callable[..., Any], kind: type) -> Callable[..., np.ndarray]:
    """An operation on two 16-bit floats in a word."""

    def model(*words: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return operation(*(halves(word, kind) for word in words)).astype(kind).view(np.uint16).reshape(-1).view(u32)

    return model


def pack(kind: type) -> Callable[..., np.ndarray]:
    def model(high: np.ndarray, low_: np.ndarray) -> np.ndarray:
        return np.stack([low_, high], -1).astype(kind).view(np.uint16).reshape(-1).view(u32)

    return model


def tf32(x: np.ndarray) -> np.ndarray:
    word = x.view(u32)
    return np.where((word & 0x7F800000) == 0x7F800000, word, (word + u32(0x1000)) & u32(0xFFFFE000))


def shift(x: np.ndarray, n: np.ndarray, left: bool) -> np.ndarray:
    """Counts of the width and more shift everything out, or leave the sign."""
    values, width = wide(x), 8 * x.itemsize
    kind = {4: u32, 8: u64}[x.itemsize]
    counts = [min(int(c), 2 * width) for c in n]
    return low([int(v) << c if left else int(v) >> c for v, c in zip(values, counts, strict=True)], kind)


INTEGER = [
    Op("prmt.b32 %0, %1, %2, %3;", "rrr", "r", each(prmt)),
    Op("lop3.b32 %0, %1, %2, %3, 0xE8;", "rrr", "r", each(lop3(0xE8))),
    Op("lop3.b32 %0, %1, %2, %3, 0x96;", "rrr", "r", each(lop3(0x96))),
    Op("shf.l.wrap.b32 %0, %1, %2, %3;", "rrr", "r", each(lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32)),
    Op("shf.r.wrap.b32 %0, %1, %2, %3;", "rrr", "r", each(lambda a, b, c: (b << 32 | a) >> (c & 31))),
    Op("shf.l.clamp.b32 %0, %1, %2, %3;", "rrr", "r", each(lambda a, b, c: ((b << 32 | a) << min(c, 32)) >> 32)),
    Op("shf.r.clamp.b32 %0, %1, %2, %3;", "rrr", "r", each(lambda a, b, c: (b << 32 | a) >> min(c, 32))),
    Op("add.s32 %0, %1, %2;", "rr", "r", lambda a, b: a + b),
    Op("add.sat.s32 %0, %1, %2;", "rr", "r", lambda a, b: clamp(wide(s(a)) + wide(s(b)), i32)),
    Op("sub.sat.s32 %0, %1, %2;", "rr", "r", lambda a, b: clamp(wide(s(a)) - wide(s(b)), i32)),
    Op("mul.lo.s32 %0, %1, %2;", "rr", "r", lambda a, b: a * b),
    Op("mul.hi.u32 %0, %1, %2;", "rr", "r", lambda a, b: low(wide(a) * wide(b) >> 32, u32)),
    Op("mul.hi.s32 %0, %1, %2;", "rr", "r", lambda a, b: low(wide(s(a)) * wide(s(b)) >> 32, u32)),
    Op("mul.wide.u32 %0, %1, %2;", "rr", "l", lambda a, b: low(wide(a) * wide(b), u64)),
    Op("mul.wide.s32 %0, %1, %2;", "rr", "l", lambda a, b: low(wide(s(a)) * wide(s(b)), u64)),
    Op("mul.wide.s16 %0, %1, %2;", "hh", "r", lambda a, b: a.view(np.int16).astype(i32) * b.view(np.int16)),
    Op("mad.lo.s32 %0, %1, %2, %3;", "rrr", "r", lambda a, b, c: a * b + c),
    Op("mad.hi.u32 %0, %1, %2, %3;", "rrr", "r", lambda a, b, c: low((wide(a) * wide(b) >> 32) + wide(c), u32)),
    Op("mad.wide.u32 %0, %1, %2, %3;", "rrl", "l", lambda a, b, c: low(wide(a) * wide(b) + wide(c), u64)),
    Op("mul24.lo.u32 %0, %1, %2;", "rr", "r", lambda a, b: low(wide(a & u32(0xFFFFFF)) * wide(b & u32(0xFFFFFF)), u32)),
    Op("shl.b32 %0, %1, %2;", "rr", "r", lambda a, n: shift(a, n, True)),
    Op("shr.u32 %0, %1, %2;", "rr", "r", lambda a, n: shift(a, n, False)),
    Op("shr.s32 %0, %1, %2;", "rr", "r", lambda a, n: shift(s(a), n, False)),
    Op("min.s32 %0, %1, %2;", "rr", "r", lambda a, b: np.minimum(s(a), s(b))),
    Op("max.s32 %0, %1, %2;", "rr", "r", lambda a, b: np.maximum(s(a), s(b))),
    Op("min.u32 %0, %1, %2;", "rr", "r", np.minimum),
    Op("max.u32 %0, %1, %2;", "rr", "r", np.maximum),
    Op("abs.s32 %0, %1;", "r", "r", lambda a: np.abs(s(a))),
    Op("neg.s32 %0, %1;", "r", "r", lambda a: u32(0) - a),
    Op("div.u32 %0, %1, %2;", "rr", "r", lambda a, b: a // np.maximum(b, 1)),
    Op("rem.u32 %0, %1, %2;", "rr", "r", lambda a, b: a % np.maximum(b, 1)),
    Op("div.s32 %0, %1, %2;", "rr", "r", each(lambda a, b: quotient(signed(a), signed(b)))),
    Op("rem.s32 %0, %1, %2;", "rr", "r", each(lambda a, b: signed(a) - quotient(signed(a), signed(b)) * signed(b))),
    Op("bfi.b32 %0, %1, %2, %3, %4;", "rrrr", "r", each(bfi)),
    Op("bfe.u32 %0, %1, %2, %3;", "rrr", "r", each(lambda x, p, n: x >> (p & 255) & (1 << (n & 255)) - 1)),
    Op("bfe.s32 %0, %1, %2, %3;", "rrr", "r", each(bfe_s)),
    Op("popc.b32 %0, %1;", "r", "r", each(int.bit_count)),
    Op("clz.b32 %0, %1;", "r", "r", each(lambda x: 32 - x.bit_length())),
    Op("brev.b32 %0, %1;", "r", "r", each(lambda x: int(f"{x:032b}"[::-1], 2))),
    Op("bfind.u32 %0, %1;", "r", "r", each(lambda x: x.bit_length() - 1)),
    Op("bfind.s32 %0, %1;", "r", "r", each(bfind_s)),
    Op("bfind.shiftamt.u32 %0, %1;", "r", "r", each(lambda x: 32 - x.bit_length() if x else -1)),
    Op("cvt.u32.u16 %0, %1;", "h", "r", lambda h: h.astype(u32)),
    Op("cvt.s32.s16 %0, %1;", "h", "r", lambda h: h.view(np.int16).astype(i32)),
    Op("cvt.s32.s8 %0, %1;", "r", "r", lambda a: a.astype(np.uint8).view(np.int8).astype(i32)),
    Op("cvt.u16.u32 %0, %1;", "r", "h", lambda a: a.astype(np.uint16)),
    Op("cvt.sat.s16.s32 %0, %1;", "r", "h", lambda a: clamp(s(a), np.int16)),
    Op("cvt.s64.s32 %0, %1;", "r", "l", lambda a: s(a).astype(i64)),
    Op("add.s64 %0, %1, %2;", "ll", "l", lambda a, b: a + b),
    Op("mul.lo.s64 %0, %1, %2;", "ll", "l", lambda a, b: a * b),
    Op("mul.hi.u64 %0, %1, %2;", "ll", "l", lambda a, b: low(wide(a) * wide(b) >> 64, u64)),
    Op("mul.hi.s64 %0, %1, %2;", "ll", "l", lambda a, b: low(wide(s(a)) * wide(s(b)) >> 64, u64)),
    Op("div.s64 %0, %1, %2;", "ll", "l", each(lambda a, b: quotient(signed(a, 64), signed(b, 64)), u64)),
    Op("rem.u64 %0, %1, %2;", "ll", "l", lambda a, b: a % np.maximum(b, 1)),
    Op("shl.b64 %0, %1, %2;", "lr", "l", lambda a, n: shift(a, n, True)),
    Op("shr.s64 %0, %1, %2;", "lr", "l", lambda a, n: shift(s(a), n, False)),
    Op("popc.b64 %0, %1;", "l", "r", each(int.bit_count)),
    Op("clz.b64 %0, %1;", "l", "r", each(lambda x: 64 - x.bit_length())),
    Op(
        "{.reg .u32 a, b, c, d; mov.b64 {a, b}, %1; mov.b64 {c, d}, %2;"
        " add.cc.u32 a, a, c; addc.u32 b, b, d; mov.b64 %0, {a, b};}",
        "ll",
        "l",
        lambda a, b: a + b,
    ),
    Op(
        "{.reg .u32 a, b, c, d; mov.b64 {a, b}, %1; mov.b64 {c, d}, %2;"
        " sub.cc.u32 a, a, c; subc.u32 b, b, d; mov.b64 %0, {a, b};}",
        "ll",
        "l",
        lambda a, b: a - b,
    ),
    Op("{.reg .pred p; setp.lt.s32 p, %1, %2; selp.u32 %0, 1, 0, p;}", "rr", "r", lambda a, b: s(a) < s(b)),
    Op("{.reg .pred p; setp.lo.u32 p, %1, %2; selp.u32 %0, 1, 0, p;}", "rr", "r", lambda a, b: a < b),
    Op(
        "{.reg .pred p, q; setp.ge.s32 p|q, %1, %2; selp.u32 %0, 1, 0, p; @q add.u32 %0, %0, 2;}",
        "rr",
        "r",
        lambda a, b: np.where(s(a) >= s(b), 1, 2),
    ),
    Op("set.ge.u32.u32 %0, %1, %2;", "rr", "r", lambda a, b: np.where(a >= b, 0xFFFFFFFF, 0)),
    Op("slct.b32.s32 %0, %1, %2, %3;", "rrr", "r", lambda a, b, c: np.where(s(c) >= 0, a, b)),
]


def signed(x: int, width: int = 32) -> int:
    return x - (1 << width) if x >> width - 1 else x


def fma32(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return (x.astype(np.longdouble) * y + z).astype(f32)


def is_nan(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.isnan(x) | np.isnan(y)


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < f32(2.0**-126), np.copysign(f32(0), x), x)


def compare(condition: str) -> str:
    return f"{{.reg .pred p; setp.{condition}.f32 p, %1, %2; selp.u32 %0, 1, 0, p;}}"


FLOAT = [
    Op("add.rn.f32 %0, %1, %2;", "ff", "f", np.add),
    Op("sub.rn.f32 %0, %1, %2;", "ff", "f", np.subtract),
    Op("mul.rn.f32 %0, %1, %2;", "ff", "f", np.multiply),
    Op("mul.rn.ftz.f32 %0, %1, %2;", "ff", "f", lambda x, y: flushed(flushed(x) * flushed(y))),
    Op("div.rn.f32 %0, %1, %2;", "ff", "f", np.divide),
    Op("div.full.f32 %0, %1, %2;", "ff", "f", np.divide, 2),
    Op("fma.rn.f32 %0, %1, %2, %3;", "fff", "f", fma32, 1),
    Op("sqrt.rn.f32 %0, %1;", "f", "f", np.sqrt),
    Op("rcp.rn.f32 %0, %1;", "f", "f", lambda x: f32(1) / x),
    Op("rcp.approx.ftz.f32 %0, %1;", "f", "f", lambda x: flushed(f32(1) / flushed(x)), 1),
    Op("rsqrt.approx.f32 %0, %1;", "f", "f", lambda x: (1 / np.sqrt(x.astype(f64))).astype(f32), 2),
    Op("ex2.approx.ftz.f32 %0, %1;", "f", "f", lambda x: flushed(np.exp2(flushed(x).astype(f64)).astype(f32)), 1),
    Op("lg2.approx.f32 %0, %1;", "f", "f", lambda x: np.log2(x.astype(f64)).astype(f32), 1),
    Op("sin.approx.f32 %0, %1;", "f", "f", lambda x: np.sin(x.astype(f64)).astype(f32), 1),
    Op("cos.approx.f32 %0, %1;", "f", "f", lambda x: np.cos(x.astype(f64)).astype(f32), 1),
    Op("tanh.approx.f32 %0, %1;", "f", "f", lambda x: np.tanh(x.astype(f64)).astype(f32), 2),
    Op("add.sat.f32 %0, %1, %2;", "ff", "f", lambda x, y: np.nan_to_num(np.clip(x + y, 0, 1))),
    Op("min.f32 %0, %1, %2;", "ff", "f", np.fmin),
    Op("max.f32 %0, %1, %2;", "ff", "f", np.fmax),
    Op("max.NaN.f32 %0, %1, %2;", "ff", "f", np.maximum),
    Op("neg.f32 %0, %1;", "f", "f", np.negative),
    Op("abs.f32 %0, %1;", "f", "f", np.abs),
    Op("copysign.f32 %0, %1, %2;", "ff", "f", lambda sign, x: np.copysign(x, sign)),
    *(Op(f"add.{mode}.f32 %0, %1, %2;", "ff", "f", directed(np.add, mode)) for mode in ("rz", "rm", "rp")),
    *(Op(f"mul.{mode}.f32 %0, %1, %2;", "ff", "f", directed(np.multiply, mode)) for mode in ("rz", "rm", "rp")),
    Op("cvt.rni.f32.f32 %0, %1;", "f", "f", np.rint),
    Op("cvt.rmi.f32.f32 %0, %1;", "f", "f", np.floor),
    Op("cvt.rzi.s32.f32 %0, %1;", "f", "r", float_to(i32, np.trunc)),
    Op("cvt.rni.u32.f32 %0, %1;", "f", "r", float_to(u32, np.rint)),
    Op("cvt.rpi.s64.f32 %0, %1;", "f", "l", float_to(i64, np.ceil)),
    Op("cvt.rn.f32.s32 %0, %1;", "r", "f", lambda a: s(a).astype(f32)),
    Op("cvt.rn.f32.u32 %0, %1;", "r", "f", lambda a: a.astype(f32)),
    Op("cvt.rn.f32.u64 %0, %1;", "l", "f", lambda a: a.astype(f32)),
    Op("cvt.sat.f32.f32 %0, %1;", "f", "f", lambda x: np.nan_to_num(np.clip(x, 0, 1))),
    Op("cvt.rn.f16.f32 %0, %1;", "f", "h", lambda x: x.astype(f16).view(np.uint16)),
    Op("cvt.rn.bf16.f32 %0, %1;", "f", "h", lambda x: x.astype(bf16).view(np.uint16)),
    Op("cvt.f32.f16 %0, %1;", "h", "f", lambda h: h.view(f16).astype(f32)),
    Op("cvt.rn.f16x2.f32 %0, %1, %2;", "ff", "r", pack(f16)),
    Op("cvt.rn.bf16x2.f32 %0, %1, %2;", "ff", "r", pack(bf16)),
    Op("cvt.rna.tf32.f32 %0, %1;", "f", "r", tf32),
    Op("cvt.f64.f32 %0, %1;", "f", "d", lambda x: x.astype(f64)),
    Op("cvt.rn.f32.f64 %0, %1;", "d", "f", lambda x: x.astype(f32)),
    Op("cvt.rn.f16.f64 %0, %1;", "d", "h", lambda x: x.astype(f16).view(np.uint16)),
    Op("cvt.rzi.s32.f64 %0, %1;", "d", "r", float_to(i32, np.trunc)),
    Op("cvt.rn.f64.s64 %0, %1;", "l", "d", lambda a: s(a).astype(f64)),
    Op("add.rn.f64 %0, %1, %2;", "dd", "d", np.add),
    Op("mul.rn.f64 %0, %1, %2;", "dd", "d", np.multiply),
    Op("div.rn.f64 %0, %1, %2;", "dd", "d", np.divide),
    Op("sqrt.rn.f64 %0, %1;", "d", "d", np.sqrt),
    Op("max.f64 %0, %1, %2;", "dd", "d", np.fmax),
    Op(compare("lt"), "ff", "r", np.less),
    Op(compare("ltu"), "ff", "r", lambda x, y: (x < y) | is_nan(x, y)),
    Op(compare("ne"), "ff", "r", lambda x, y: (x != y) & ~is_nan(x, y)),
    Op(compare("neu"), "ff", "r", np.not_equal),
    Op(compare("num"), "ff", "r", lambda x, y: ~is_nan(x, y)),
    Op(compare("nan"), "ff", "r", is_nan),
    Op("add.f16x2 %0, %1, %2;", "rr", "r", pairs(np.add, f16)),
    Op("mul.f16x2 %0, %1, %2;", "rr", "r", pairs(np.multiply, f16)),
    Op("fma.rn.f16x2 %0, %1, %2, %3;", "rrr", "r", pairs(lambda x, y, z: x * y + z, f16)),
    Op("min.f16x2 %0, %1, %2;", "rr", "r", pairs(np.fmin, f16)),
    Op("fma.rn.bf16x2 %0, %1, %2, %3;", "rrr", "r", pairs(lambda x, y, z: x * y + z, bf16)),
    Op("max.bf16x2 %0, %1, %2;", "rr", "r", pairs(np.fmax, bf16)),
    Op("neg.f16x2 %0, %1;", "r", "r", lambda a: a ^ u32(0x80008000)),
]


OPS = [*INTEGER, *FLOAT]
COUNT = 256  # results of each


def source() -> str:
    """A kernel that runs each instruction on its operands and stores the results' bits."""
    bits = {"f": "__float_as_uint(result)", "d": "static_cast<uint64_t>(__double_as_longlong(result))"}
    lines = [
        "#include <cstdint>",
        'extern "C" __global__ void instructions(const uint32_t* r, const uint64_t* l, const uint16_t* h,',
        "                                        const float* f, const double* d, uint64_t* out, int n) {",
        "  const int i = blockIdx.x * blockDim.x + threadIdx.x;",
        "  if (i >= n) return;",
    ]
    for number, op in enumerate(OPS):
        counts = dict.fromkeys(op.operands, 0)
        inputs = []
        for kind in op.operands:
            inputs.append(f'"{kind}"({kind}[{counts[kind]} * n + i])')
            counts[kind] += 1
        lines += [
            "  {",
            f"    {CTYPES[op.result]} result;",
            f'    asm volatile("{op.text}" : "={op.result}"(result) : {", ".join(inputs)});',
            f"    out[{number} * n + i] = {bits.get(op.result, 'result')};",
            "  }",
        ]
    return "\n".join([*lines, "}"]) + "\n"


def inputs() -> dict[str, np.ndarray]:
    """Four arrays of each type, with what is special at their starts; no divisor is 0."""
    rng = np.random.default_rng(3)
    made = {kind: rng.integers(0, 2**32, (4, COUNT), np.uint64).astype(TYPES[kind]) for kind in "rh"}
    made["l"] = rng.integers(1, 2**64 - 1, (4, COUNT), np.uint64)
    made["r"][:, :6] = [0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1]
    made["r"][1, 0] = 3
    made["r"][2:, ::2] %= 40  # shifts, places and lengths of fields
    made["l"][:, :4] = [1, 2**63 - 1, 2**63, 2**64 - 1]
    floats = rng.standard_normal((4, COUNT)) * 10.0 ** rng.integers(-6, 7, (4, COUNT))
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 65504.0, 1e-40, -1e-40, 0.5, 2.5, 2.0**31, -(2.0**31)]
    floats[0, : len(special)] = special
    floats[1, : len(special)] = special[::-1]
    made["d"] = floats
    made["f"] = floats.astype(np.float32)
    with np.errstate(over="ignore"):
        made["h"][:, ::2] = floats[:, ::2].astype(np.float16).view(np.uint16)
    return made


def run(driver: Driver, given: dict[str, np.ndarray]) -> np.ndarray:
    """The bits of all results, one row an instruction."""
    arrays = [DeviceArray.from_numpy(driver, given[kind]) for kind in "rlhfd"]
    out = DeviceArray.empty(driver, (len(OPS), COUNT), np.uint64)
    driver.launch("instructions", COUNT // 64, 64, *arrays, out, ctypes.c_int(COUNT))
    return out.numpy()


def as_result(op: Op, row: np.ndarray) -> np.ndarray:
    """A row of 64-bit words as results of an instruction; 16 bits remain integers."""
    kind = np.dtype(TYPES[op.result])
    return row.astype({2: np.uint16, 4: np.uint32, 8: np.uint64}[kind.itemsize]).view(kind)


def distance(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """How many floats lie between; NaNs are equal, and different from all else."""
    integer = {4: np.int32, 8: np.int64}[found.itemsize]

    def order(x: np.ndarray) -> np.ndarray:
        bits = x.view(integer).astype(object)
        return np.where(bits >= 0, bits, np.iinfo(integer).min - bits)

    nan = np.isnan(found) & np.isnan(expected)
    either = np.isnan(found) ^ np.isnan(expected)
    return np.where(nan, 0, np.where(either, 10**9, np.abs(order(found) - order(expected)))).astype(float)


def disagreements(op: Op, found: np.ndarray, expected: np.ndarray, ulps: int) -> list[int]:
    """Where results differ by more than they may."""
    if op.result in "fd":
        return np.flatnonzero(distance(found, expected.astype(found.dtype)) > ulps).tolist()
    mask = (1 << 8 * found.itemsize) - 1
    both = [(int(x), int(y) & mask) for x, y in zip(found, expected, strict=True)]
    return [i for i, (x, y) in enumerate(both) if x != y and not ("16" in op.text and is_half_nan(x, y, op.text))]


def is_half_nan(found: int, expected: int, text: str) -> bool:
    """Whether two words differ in NaNs only: which NaN results, is not said."""
    largest = 0x7F80 if "bf16" in text else 0x7C00
    for shift in (0, 16):
        x, y = found >> shift & 0xFFFF, expected >> shift & 0xFFFF
        if x != y and not (x & 0x7FFF > largest and y & 0x7FFF > largest):
            return False
    return True
