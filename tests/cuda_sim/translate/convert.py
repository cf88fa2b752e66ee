"""Conversions between types and between address spaces."""

from __future__ import annotations

from .arithmetic import FLOATS, ROUNDING, bits_of, directed, signedness
from .parse import SIZES, Instruction, Unsupported
from .writer import VALUE_TYPES, Writer, writes

TO_INTEGRAL = {"rni": "round_even", "rzi": "truncate_float", "rmi": "round_down", "rpi": "round_up"}


@writes("cvt", "rn rz rm rp rna rni rzi rmi rpi ftz sat")
def write_conversion(w: Writer, i: Instruction) -> str:
    target, source = i.types
    if i.has("rna") != (target == "tf32"):
        raise Unsupported(i.text)
    if target == "tf32":
        return w.put(i.operands[0], f"round_to_tf32({w.operand(i.operands[1])})")
    if target in ("f16x2", "bf16x2") and source == "f32":
        return write_pair(w, i, target)
    value = source_value(w, i, source)
    if target in ("f16", "bf16"):
        return write_to_half(w, i, target, source, value)
    source_is_float = source in (*FLOATS, "f16", "bf16")
    integral = next((TO_INTEGRAL[part] for part in i.modifiers if part in TO_INTEGRAL), None)
    if source_is_float and integral:
        value = f"{integral}({value})"
    if target in FLOATS:
        return write_to_float(w, i, target, source, value)
    if source_is_float:
        if integral is None:
            raise Unsupported(i.text)
        return w.assign(i.operands[0], target, f"float_to_{signedness(target)}({value}, {bits_of(target)})")
    if i.has("sat"):
        return w.assign(i.operands[0], target, f"clamp_{signedness(target)}({value}, {bits_of(target)})")
    return w.assign(i.operands[0], target, f"({VALUE_TYPES[target]})({value})")


def source_value(w: Writer, i: Instruction, kind: str) -> str:
    text = i.operands[1]
    if kind in ("f16", "bf16"):
        return f"{'half' if kind == 'f16' else 'bfloat'}_value((uint16_t)({w.operand(text)}))"
    return w.value(text, kind, i.has("ftz"), narrow=True)


def write_pair(w: Writer, i: Instruction, target: str) -> str:
    """Two floats in one word, the first operand in its upper half."""
    if directed(i):
        raise Unsupported(i.text)
    narrow = "bfloat_of" if target == "bf16x2" else "half_of"
    high, low = (w.value(text, "f32") for text in i.operands[1:3])
    return w.put(i.operands[0], f"(uint32_t){narrow}({high}) << 16 | {narrow}({low})")


def write_to_half(w: Writer, i: Instruction, target: str, source: str, value: str) -> str:
    """Rounded once: from f32, or by way of double from all that a double holds."""
    if directed(i) or i.has("sat") or (source not in FLOATS and SIZES[source] > 4):
        raise Unsupported(i.text)
    narrow = "bfloat_of" if target == "bf16" else "half_of"
    return w.put(i.operands[0], f"{narrow}{'' if source == 'f32' else '_double'}({value})")


def write_to_float(w: Writer, i: Instruction, target: str, source: str, value: str) -> str:
    mode = directed(i)
    exact = (target == "f64" and SIZES[source] < 8) or source in ("f16", "bf16", target)
    if mode and not exact:
        names = {"f64": "double", "u64": "unsigned"}
        value = f"{target}_of_{names.get(source, 'signed')}_rounded({ROUNDING[mode]}, {value})"
    expression = f"({VALUE_TYPES[target]})({value})"
    if i.has("sat"):
        expression = f"saturate({expression})"
    return w.assign(i.operands[0], target, expression, i.has("ftz"))


@writes("cvta", "to shared shared::cta global local const param")
def write_address_conversion(w: Writer, i: Instruction) -> str:
    """Generic addresses are those of the host; shared ones are offsets."""
    value = f"(uint64_t)({w.operand(i.operands[1])})"
    if i.has("shared", "shared::cta"):
        value = f"{'generic_to_shared' if i.has('to') else 'shared_to_generic'}({value})"
    return w.put(i.operands[0], value)


@writes("isspacep", "shared shared::cta global local const")
def write_space_test(w: Writer, i: Instruction) -> str:
    if not i.has("shared", "shared::cta", "global"):
        raise Unsupported(i.text)
    test = "is_global" if i.has("global") else "is_shared"
    return w.put(i.operands[0], f"{test}({w.operand(i.operands[1])})")
