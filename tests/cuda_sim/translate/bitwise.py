"""Shifts and bit fields, moves and selection, comparisons."""

from __future__ import annotations

from .arithmetic import FLOATS, HALVES, bits_of, signedness, unsigned
from .parse import SIZES, Instruction, Unsupported, elements
from .writer import VALUE_TYPES, Writer, writes


@writes("shl")
def write_shift_left(w: Writer, i: Instruction) -> str:
    kind, width, count = unsigned(i.type), bits_of(i.type), f"(uint32_t)({w.operand(i.operands[2])})"
    x = w.value(i.operands[1], kind)
    return w.assign(
        i.operands[0], kind, f"{count} < {width} ? ({VALUE_TYPES[kind]})({x} << ({count} & {width - 1})) : 0"
    )


@writes("shr")
def write_shift_right(w: Writer, i: Instruction) -> str:
    width, count = bits_of(i.type), f"(uint32_t)({w.operand(i.operands[2])})"
    x = w.value(i.operands[1], i.type)
    if i.type[0] == "s":
        return w.assign(i.operands[0], i.type, f"{x} >> ({count} < {width} ? {count} : {width - 1})")
    return w.assign(i.operands[0], i.type, f"{count} < {width} ? {x} >> ({count} & {width - 1}) : 0")


@writes("shf", "l r wrap clamp")
def write_funnel_shift(w: Writer, i: Instruction) -> str:
    low, high, count = (w.operand(text) for text in i.operands[1:4])
    name = "funnel_left" if i.has("l") else "funnel_right"
    limit = f"({count}) & 31" if i.has("wrap") else f"at_most_32({count})"
    return w.assign(i.operands[0], "u32", f"{name}({low}, {high}, {limit})")


@writes("bfi")
def write_bit_field_insert(w: Writer, i: Instruction) -> str:
    x, y, position, count = (w.operand(text) for text in i.operands[1:5])
    return w.assign(i.operands[0], i.type, f"insert_bits({x}, {y}, {position}, {count}, {bits_of(i.type)})")


@writes("bfe")
def write_bit_field_extract(w: Writer, i: Instruction) -> str:
    x, position, count = w.value(i.operands[1], i.type), *(w.operand(text) for text in i.operands[2:4])
    name = f"extract_{signedness(i.type)}"
    return w.assign(i.operands[0], i.type, f"{name}({x}, {position}, {count}, {bits_of(i.type)})")


@writes("popc clz brev")
def write_bit_count(w: Writer, i: Instruction) -> str:
    kind, width = unsigned(i.type), bits_of(i.type)
    x = w.value(i.operands[1], kind)
    if i.name == "popc":
        return w.assign(i.operands[0], "u32", f"__builtin_popcountll({x})")
    name = "leading_zeros" if i.name == "clz" else "reverse_bits"
    return w.assign(i.operands[0], "u32" if i.name == "clz" else kind, f"{name}({x}, {width})")


@writes("bfind", "shiftamt")
def write_highest_bit(w: Writer, i: Instruction) -> str:
    """The highest bit that is not the sign: its place, or how far it must be shifted to the top."""
    x = w.value(i.operands[1], i.type)
    magnitude = f"magnitude_bits({x})" if i.type[0] == "s" else x
    shift = f"shift_to_top({magnitude}, {bits_of(i.type)})" if i.has("shiftamt") else f"highest_bit({magnitude})"
    return w.assign(i.operands[0], "u32", shift)


@writes("prmt")
def write_permute(w: Writer, i: Instruction) -> str:
    return w.assign(i.operands[0], "u32", f"permute_bytes({', '.join(w.operand(text) for text in i.operands[1:4])})")


@writes("lop3")
def write_logic_of_three(w: Writer, i: Instruction) -> str:
    x, y, z = (w.operand(text) for text in i.operands[1:4])
    return w.assign(i.operands[0], "u32", f"logic_of_three({int(i.operands[4], 0)}, {x}, {y}, {z})")


@writes("mov")
def write_move(w: Writer, i: Instruction) -> str:
    target, source = i.operands
    if target.startswith("{"):
        parts = elements(target)
        width = bits_of(i.type) // len(parts)
        sets = " ".join(w.put(part, f"whole >> {k * width}") for k, part in enumerate(parts) if part.strip() != "_")
        return f"{{ uint64_t whole = {w.operand(source)}; {sets} }}"
    if source.startswith("{"):
        parts = elements(source)
        width = bits_of(i.type) // len(parts)
        word = VALUE_TYPES[f"u{width}"]
        joined = " | ".join(f"(uint64_t)({word})({w.operand(part)}) << {k * width}" for k, part in enumerate(parts))
        return w.put(target, joined)
    if i.type in FLOATS:
        return w.assign(target, i.type, w.value(source, i.type))
    return w.put(target, w.operand(source))


@writes("selp")
def write_selection(w: Writer, i: Instruction) -> str:
    target, yes, no, condition = i.operands
    if i.type in FLOATS:
        return w.assign(target, i.type, f"{w.operand(condition)} ? {w.value(yes, i.type)} : {w.value(no, i.type)}")
    return w.put(target, f"{w.operand(condition)} ? {w.operand(yes)} : {w.operand(no)}")


@writes("slct", "ftz")
def write_selection_by_sign(w: Writer, i: Instruction) -> str:
    target, yes, no, condition = i.operands
    test = f"{w.value(condition, i.types[1], i.has('ftz'))} >= 0"
    return w.put(target, f"{test} ? {w.operand(yes)} : {w.operand(no)}")


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


def comparison(w: Writer, i: Instruction, kind: str) -> str:
    """The C condition of a comparison; a NaN fails it unless its name ends in u."""
    order = next(part for part in i.modifiers if part in (*ORDERS, *UNORDERED, "num", "nan"))
    if kind in HALVES:
        if SIZES[kind] != 2:
            raise Unsupported(i.text)
        value = "bfloat_value" if kind == "bf16" else "half_value"
        x, y = (f"{value}((uint16_t)({w.operand(text)}))" for text in i.operands[1:3])
    else:
        if order in ("lo", "ls", "hi", "hs"):
            kind = unsigned(kind)
        x, y = (w.value(text, kind, i.has("ftz")) for text in i.operands[1:3])
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
def write_comparison(w: Writer, i: Instruction) -> str:
    kind = i.types[-1]
    condition = comparison(w, i, kind)
    opposite = f"!{condition}"
    combine = next((COMBINE[part] for part in i.modifiers if part in COMBINE), None)
    if combine:
        other = w.operand(i.operands[3])
        condition, opposite = f"({condition} {combine} {other})", f"({opposite} {combine} {other})"
    if i.name == "set":
        yes = "0x3F800000u" if i.type == "f32" else "0xFFFFFFFFu"
        if i.type not in ("f32", "u32", "s32"):
            raise Unsupported(i.text)
        return w.put(i.operands[0], f"{condition} ? {yes} : 0u")
    target, _, second = i.operands[0].partition("|")
    if not second:
        return w.put(target, condition)
    return f"{{ bool first = {condition}, second = {opposite}; {w.put(target, 'first')} {w.put(second, 'second')} }}"


@writes("testp", "finite infinite number notanumber normal subnormal")
def write_class_test(w: Writer, i: Instruction) -> str:
    tests = {"finite": "is_finite", "infinite": "is_infinite", "number": "!is_nan", "notanumber": "is_nan"}
    test = tests[next(part for part in i.modifiers if part in tests)]
    return w.put(i.operands[0], f"{test}({w.value(i.operands[1], i.type)})")
