"""Shifts and bit fields, moves and selection, comparisons."""

from __future__ import annotations

from .arithmetic import FLOATS, HALVES, bits_of, signedness, unsigned
from .parse import SIZES, Instruction, Unsupported, elements
from .writer import VALUE_TYPES, Writer, writes


@writes("shl")
def write_shift_left(writer: Writer, op: Instruction) -> str:
    kind, width, count = unsigned(op.type), bits_of(op.type), f"(uint32_t)({writer.operand(op.operands[2])})"
    x = writer.value(op.operands[1], kind)
    return writer.assign(
        op.operands[0], kind, f"{count} < {width} ? ({VALUE_TYPES[kind]})({x} << ({count} & {width - 1})) : 0"
    )


@writes("shr")
def write_shift_right(writer: Writer, op: Instruction) -> str:
    width, count = bits_of(op.type), f"(uint32_t)({writer.operand(op.operands[2])})"
    x = writer.value(op.operands[1], op.type)
    if op.type[0] == "s":
        return writer.assign(op.operands[0], op.type, f"{x} >> ({count} < {width} ? {count} : {width - 1})")
    return writer.assign(op.operands[0], op.type, f"{count} < {width} ? {x} >> ({count} & {width - 1}) : 0")


@writes("shf", "l r wrap clamp")
def write_funnel_shift(writer: Writer, op: Instruction) -> str:
    low, high, count = (writer.operand(text) for text in op.operands[1:4])
    name = "funnel_left" if op.has("l") else "funnel_right"
    limit = f"({count}) & 31" if op.has("wrap") else f"at_most_32({count})"
    return writer.assign(op.operands[0], "u32", f"{name}({low}, {high}, {limit})")


@writes("bfi")
def write_bit_field_insert(writer: Writer, op: Instruction) -> str:
    x, y, position, count = (writer.operand(text) for text in op.operands[1:5])
    return writer.assign(op.operands[0], op.type, f"insert_bits({x}, {y}, {position}, {count}, {bits_of(op.type)})")


@writes("bfe")
def write_bit_field_extract(writer: Writer, op: Instruction) -> str:
    x, position, count = writer.value(op.operands[1], op.type), *(writer.operand(text) for text in op.operands[2:4])
    name = f"extract_{signedness(op.type)}"
    return writer.assign(op.operands[0], op.type, f"{name}({x}, {position}, {count}, {bits_of(op.type)})")


@writes("popc clz brev")
def write_bit_count(writer: Writer, op: Instruction) -> str:
    kind, width = unsigned(op.type), bits_of(op.type)
    x = writer.value(op.operands[1], kind)
    if op.name == "popc":
        return writer.assign(op.operands[0], "u32", f"__builtin_popcountll({x})")
    name = "leading_zeros" if op.name == "clz" else "reverse_bits"
    return writer.assign(op.operands[0], "u32" if op.name == "clz" else kind, f"{name}({x}, {width})")


@writes("bfind", "shiftamt")
def write_highest_bit(writer: Writer, op: Instruction) -> str:
    """The highest bit that is not the sign: its place, or how far it must be shifted to the top."""
    x = writer.value(op.operands[1], op.type)
    magnitude = f"magnitude_bits({x})" if op.type[0] == "s" else x
    shift = f"shift_to_top({magnitude}, {bits_of(op.type)})" if op.has("shiftamt") else f"highest_bit({magnitude})"
    return writer.assign(op.operands[0], "u32", shift)


@writes("prmt")
def write_permute(writer: Writer, op: Instruction) -> str:
    return writer.assign(
        op.operands[0], "u32", f"permute_bytes({', '.join(writer.operand(text) for text in op.operands[1:4])})"
    )


@writes("lop3")
def write_logic_of_three(writer: Writer, op: Instruction) -> str:
    x, y, z = (writer.operand(text) for text in op.operands[1:4])
    return writer.assign(op.operands[0], "u32", f"logic_of_three({int(op.operands[4], 0)}, {x}, {y}, {z})")


@writes("mov")
def write_move(writer: Writer, op: Instruction) -> str:
    target, source = op.operands
    if target.startswith("{"):
        parts = elements(target)
        width = bits_of(op.type) // len(parts)
        sets = " ".join(
            writer.put(part, f"whole >> {k * width}") for k, part in enumerate(parts) if part.strip() != "_"
        )
        return f"{{ uint64_t whole = {writer.operand(source)}; {sets} }}"
    if source.startswith("{"):
        parts = elements(source)
        width = bits_of(op.type) // len(parts)
        word = VALUE_TYPES[f"u{width}"]
        joined = " | ".join(
            f"(uint64_t)({word})({writer.operand(part)}) << {k * width}" for k, part in enumerate(parts)
        )
        return writer.put(target, joined)
    if op.type in FLOATS:
        return writer.assign(target, op.type, writer.value(source, op.type))
    return writer.put(target, writer.operand(source))


@writes("selp")
def write_selection(writer: Writer, op: Instruction) -> str:
    target, yes, no, condition = op.operands
    if op.type in FLOATS:
        return writer.assign(
            target, op.type, f"{writer.operand(condition)} ? {writer.value(yes, op.type)} : {writer.value(no, op.type)}"
        )
    return writer.put(target, f"{writer.operand(condition)} ? {writer.operand(yes)} : {writer.operand(no)}")


@writes("slct", "ftz")
def write_selection_by_sign(writer: Writer, op: Instruction) -> str:
    target, yes, no, condition = op.operands
    test = f"{writer.value(condition, op.types[1], op.has('ftz'))} >= 0"
    return writer.put(target, f"{test} ? {writer.operand(yes)} : {writer.operand(no)}")


ORDERS = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu")
COMBINE = {"and": "&&", "or": "||", "xor": "!="}


def comparison(writer: Writer, op: Instruction, kind: str) -> str:
    """The C condition of a comparison; a NaN fails it unless its name ends in u."""
    order = next(part for part in op.modifiers if part in (*ORDERS, *UNORDERED, "num", "nan"))
    if kind in HALVES:
        if SIZES[kind] != 2:
            raise Unsupported(op.text)
        value = "bfloat_value" if kind == "bf16" else "half_value"
        x, y = (f"{value}((uint16_t)({writer.operand(text)}))" for text in op.operands[1:3])
    else:
        if order in ("lo", "ls", "hi", "hs"):
            kind = unsigned(kind)
        x, y = (writer.value(text, kind, op.has("ftz")) for text in op.operands[1:3])
    if order == "nan":
        return f"is_unordered({x}, {y})"
    if order == "num":
        return f"!is_unordered({x}, {y})"
    if order in UNORDERED:
        return f"(is_unordered({x}, {y}) || {x} {ORDERS[order[:-1]]} {y})"
    if order == "ne" and kind in (*FLOATS, *HALVES):
        return f"({x} < {y} || {x} > {y})"
    return f"({x} {ORDERS[order]} {y})"


@writes("setp set", " ".join((*ORDERS, *UNORDERED, *COMBINE, "num", "nan", "ftz")))
def write_comparison(writer: Writer, op: Instruction) -> str:
    kind = op.types[-1]
    condition = comparison(writer, op, kind)
    opposite = f"!{condition}"
    combine = next((COMBINE[part] for part in op.modifiers if part in COMBINE), None)
    if combine:
        other = writer.operand(op.operands[3])
        condition, opposite = f"({condition} {combine} {other})", f"({opposite} {combine} {other})"
    if op.name == "set":
        yes = "0x3F800000u" if op.type == "f32" else "0xFFFFFFFFu"
        if op.type not in ("f32", "u32", "s32"):
            raise Unsupported(op.text)
        return writer.put(op.operands[0], f"{condition} ? {yes} : 0u")
    target, _, second = op.operands[0].partition("|")
    if not second:
        return writer.put(target, condition)
    sets = f"{writer.put(target, 'first')} {writer.put(second, 'second')}"
    return f"{{ bool first = {condition}, second = {opposite}; {sets} }}"


@writes("testp", "finite infinite number notanumber normal subnormal")
def write_class_test(writer: Writer, op: Instruction) -> str:
    tests = {"finite": "is_finite", "infinite": "is_infinite", "number": "!is_nan", "notanumber": "is_nan"}
    test = tests[next(part for part in op.modifiers if part in tests)]
    return writer.put(op.operands[0], f"{test}({writer.value(op.operands[1], op.type)})")
