"""Conversions between types and between address spaces."""

from __future__ import annotations

from .arithmetic import FLOATS, ROUNDING, bits_of, directed, signedness
from .parse import SIZES, Instruction, Unsupported
from .writer import VALUE_TYPES, Writer, writes

TO_INTEGRAL = {"rni": "round_even", "rzi": "truncate_float", "rmi": "round_down", "rpi": "round_up"}


@writes("cvt", "rn rz rm rp rna rni rzi rmi rpi ftz sat")
def write_conversion(writer: Writer, op: Instruction) -> str:
    target, source = op.types
    if op.has("rna") != (target == "tf32"):
        raise Unsupported(op.text)
    if target == "tf32":
        return writer.put(op.operands[0], f"round_to_tf32({writer.operand(op.operands[1])})")
    if target in ("f16x2", "bf16x2") and source == "f32":
        return write_pair(writer, op, target)
    value = source_value(writer, op, source)
    if target in ("f16", "bf16"):
        return write_to_half(writer, op, target, source, value)
    source_is_float = source in (*FLOATS, "f16", "bf16")
    integral = next((TO_INTEGRAL[part] for part in op.modifiers if part in TO_INTEGRAL), None)
    if source_is_float and integral:
        value = f"{integral}({value})"
    if target in FLOATS:
        return write_to_float(writer, op, target, source, value)
    if source_is_float:
        if integral is None:
            raise Unsupported(op.text)
        return writer.assign(op.operands[0], target, f"float_to_{signedness(target)}({value}, {bits_of(target)})")
    if op.has("sat"):
        return writer.assign(op.operands[0], target, f"clamp_{signedness(target)}({value}, {bits_of(target)})")
    return writer.assign(op.operands[0], target, f"({VALUE_TYPES[target]})({value})")


def source_value(writer: Writer, op: Instruction, kind: str) -> str:
    text = op.operands[1]
    if kind in ("f16", "bf16"):
        return f"{'half' if kind == 'f16' else 'bfloat'}_value((uint16_t)({writer.operand(text)}))"
    return writer.value(text, kind, op.has("ftz"), narrow=True)


def write_pair(writer: Writer, op: Instruction, target: str) -> str:
    """Two floats in one word, the first operand in its upper half."""
    if directed(op):
        raise Unsupported(op.text)
    narrow = "bfloat_of" if target == "bf16x2" else "half_of"
    high, low = (writer.value(text, "f32") for text in op.operands[1:3])
    return writer.put(op.operands[0], f"(uint32_t){narrow}({high}) << 16 | {narrow}({low})")


def write_to_half(writer: Writer, op: Instruction, target: str, source: str, value: str) -> str:
    """Rounded once: from f32, or by way of double from all that a double holds."""
    if directed(op) or op.has("sat") or (source not in FLOATS and SIZES[source] > 4):
        raise Unsupported(op.text)
    narrow = "bfloat_of" if target == "bf16" else "half_of"
    return writer.put(op.operands[0], f"{narrow}{'' if source == 'f32' else '_double'}({value})")


def write_to_float(writer: Writer, op: Instruction, target: str, source: str, value: str) -> str:
    mode = directed(op)
    exact = (target == "f64" and SIZES[source] < 8) or source in ("f16", "bf16", target)
    if mode and not exact:
        names = {"f64": "double", "u64": "unsigned"}
        value = f"{target}_of_{names.get(source, 'signed')}_rounded({ROUNDING[mode]}, {value})"
    expression = f"({VALUE_TYPES[target]})({value})"
    if op.has("sat"):
        expression = f"saturate({expression})"
    return writer.assign(op.operands[0], target, expression, op.has("ftz"))


@writes("cvta", "to shared shared::cta global local const param")
def write_address_conversion(writer: Writer, op: Instruction) -> str:
    """Generic addresses are those of the host; shared ones are offsets."""
    value = f"(uint64_t)({writer.operand(op.operands[1])})"
    if op.has("shared", "shared::cta"):
        value = f"{'generic_to_shared' if op.has('to') else 'shared_to_generic'}({value})"
    return writer.put(op.operands[0], value)


@writes("isspacep", "shared shared::cta global local const")
def write_space_test(writer: Writer, op: Instruction) -> str:
    if not op.has("shared", "shared::cta", "global"):
        raise Unsupported(op.text)
    test = "is_global" if op.has("global") else "is_shared"
    return writer.put(op.operands[0], f"{test}({writer.operand(op.operands[1])})")
