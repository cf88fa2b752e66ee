"""Integer, floating-point and logical instructions."""

from __future__ import annotations

from .parse import SIZES, Instruction, Unsupported
from .writer import VALUE_TYPES, Writer, writes

FLOATS = ("f32", "f64")
HALVES = ("f16", "bf16", "f16x2", "bf16x2")
ROUNDING = {"rz": "kToZero", "rm": "kDown", "rp": "kUp"}
INFIX = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^"}


def unsigned(kind: str) -> str:
    """The type in which an addition of integers may wrap."""
    return "u" + kind[1:] if kind[0] in "sb" else kind


def signedness(kind: str) -> str:
    return "signed" if kind[0] == "s" else "unsigned"


def bits_of(kind: str) -> int:
    return SIZES[kind] * 8


def directed(op: Instruction) -> str | None:
    """The rounding that is not to nearest, or none."""
    return next((part for part in op.modifiers if part in ROUNDING), None)


def rounded(writer: Writer, op: Instruction, function: str, inputs: list[str], plain: str) -> str:
    """Sets the result of a float operation, in the rounding that it asks for."""
    mode, flush = directed(op), op.has("ftz")
    expression = plain if mode is None else f"{function}_{op.type}_rounded({ROUNDING[mode]}, {', '.join(inputs)})"
    if op.has("sat"):
        expression = f"saturate({expression})"
    return writer.assign(op.operands[0], op.type, expression, flush)


@writes("add sub", "rn rz rm rp ftz sat cc")
def write_sum(writer: Writer, op: Instruction) -> str:
    if op.has("cc"):
        return write_carry(writer, op)
    if op.type in HALVES:
        return write_half(writer, op)
    if op.type in FLOATS:
        x, y = (writer.value(text, op.type, op.has("ftz")) for text in op.operands[1:3])
        return rounded(writer, op, op.name, [x, y], f"{x} {INFIX[op.name]} {y}")
    if op.has("sat"):
        x, y = (f"(int64_t)({writer.value(text, op.type)})" for text in op.operands[1:3])
        return writer.assign(op.operands[0], op.type, f"clamp_signed({x} {INFIX[op.name]} {y}, 32)")
    kind = unsigned(op.type)
    x, y = (writer.value(text, kind) for text in op.operands[1:3])
    return writer.assign(op.operands[0], op.type, f"{x} {INFIX[op.name]} {y}")


@writes("and or xor")
def write_logic(writer: Writer, op: Instruction) -> str:
    x, y = (writer.value(text, op.type) for text in op.operands[1:3])
    return writer.assign(op.operands[0], op.type, f"{x} {INFIX[op.name]} {y}")


@writes("not cnot")
def write_not(writer: Writer, op: Instruction) -> str:
    sign = "!" if op.type == "pred" or op.name == "cnot" else "~"
    return writer.assign(op.operands[0], op.type, f"{sign}{writer.value(op.operands[1], op.type)}")


@writes("addc subc madc", "cc lo hi")
def write_carry(writer: Writer, op: Instruction) -> str:
    """Sums of more than one word: `carry` holds what goes on to the next."""
    width = bits_of(op.type)
    word = f"uint{width}_t"
    wide = "uint64_t" if width == 32 else "unsigned __int128"
    inputs = [f"({wide})({word})({writer.operand(text)})" for text in op.operands[1:]]
    carry = "carry" if op.name.endswith("c") else "0"
    if op.name.startswith("mad"):
        product = f"({wide})({word})(({inputs[0]} * {inputs[1]}) >> {width if op.has('hi') else 0})"
        expression = f"{product} + {inputs[2]} + {carry}"
    else:
        sign = INFIX[op.name[:3]]
        expression = f"{inputs[0]} {sign} {inputs[1]} {sign} {carry}"
    keep = f"carry = (uint32_t)(sum >> {width}) & 1; " if op.has("cc") else ""
    return f"{{ {wide} sum = {expression}; {writer.put(op.operands[0], f'({word})sum')} {keep}}}"


@writes("mul mad", "rn rz rm rp ftz sat lo hi wide cc")
def write_product(writer: Writer, op: Instruction) -> str:
    if op.has("cc"):
        return write_carry(writer, op)
    if op.type in HALVES:
        return write_half(writer, op)
    if op.type in FLOATS:
        values = [writer.value(text, op.type, op.has("ftz")) for text in op.operands[1:]]
        if op.name == "mad":
            return rounded(writer, op, "fma", values, f"fused_{op.type}({', '.join(values)})")
        return rounded(writer, op, "mul", values, f"{values[0]} * {values[1]}")
    if op.has("sat"):
        raise Unsupported(op.text)
    kind = op.type
    if op.has("wide"):
        kind = kind[0] + str(2 * bits_of(kind))
        x, y = (f"({VALUE_TYPES[kind]})({writer.value(text, op.type)})" for text in op.operands[1:3])
        product = f"{x} * {y}"
    elif op.has("hi"):
        sign, width = kind[0] == "s", 2 * bits_of(kind)
        wide = ("" if sign else "unsigned ") + "__int128" if width == 128 else f"{'' if sign else 'u'}int{width}_t"
        x, y = (f"({wide})({writer.value(text, kind)})" for text in op.operands[1:3])
        product = f"({VALUE_TYPES[kind]})(({x} * {y}) >> {bits_of(kind)})"
    else:
        x, y = (writer.value(text, unsigned(kind)) for text in op.operands[1:3])
        product = f"({VALUE_TYPES[unsigned(kind)]})(1u * {x} * {y})"
    if op.name == "mad":
        product = f"({VALUE_TYPES[unsigned(kind)]})({product}) + {writer.value(op.operands[3], unsigned(kind))}"
    return writer.assign(op.operands[0], kind, product)


@writes("mul24 mad24", "lo")
def write_product_of_24_bits(writer: Writer, op: Instruction) -> str:
    low = "sign_extend_24" if op.type[0] == "s" else "low_24"
    product = f"{low}({writer.operand(op.operands[1])}) * {low}({writer.operand(op.operands[2])})"
    more = f" + {writer.operand(op.operands[3])}" if op.name == "mad24" else ""
    return writer.assign(op.operands[0], "u32", f"(uint32_t)({product}){more}")


@writes("fma", "rn rz rm rp ftz sat")
def write_fma(writer: Writer, op: Instruction) -> str:
    if op.type in HALVES:
        return write_half(writer, op)
    values = [writer.value(text, op.type, op.has("ftz")) for text in op.operands[1:]]
    return rounded(writer, op, "fma", values, f"fused_{op.type}({', '.join(values)})")


@writes("div", "rn rz rm rp ftz approx full")
def write_quotient(writer: Writer, op: Instruction) -> str:
    if op.type in FLOATS:
        x, y = (writer.value(text, op.type, op.has("ftz")) for text in op.operands[1:3])
        return rounded(writer, op, "div", [x, y], f"{x} / {y}")
    x, y = (writer.value(text, op.type) for text in op.operands[1:3])
    return writer.assign(op.operands[0], op.type, f"quotient_{signedness(op.type)}({x}, {y})")


@writes("rem")
def write_remainder(writer: Writer, op: Instruction) -> str:
    x, y = (writer.value(text, op.type) for text in op.operands[1:3])
    return writer.assign(op.operands[0], op.type, f"remainder_{signedness(op.type)}({x}, {y})")


@writes("min max", "ftz NaN")
def write_extremum(writer: Writer, op: Instruction) -> str:
    if len(op.operands) != 3:
        raise Unsupported(op.text)
    if op.type in HALVES:
        return write_half(writer, op)
    x, y = (writer.value(text, op.type, op.has("ftz")) for text in op.operands[1:3])
    if op.type in FLOATS:
        nan = "_or_nan" if op.has("NaN") else ""
        return writer.assign(op.operands[0], op.type, f"float_{op.name}{nan}({x}, {y})", op.has("ftz"))
    order = "<" if op.name == "min" else ">"
    return writer.assign(op.operands[0], op.type, f"{x} {order} {y} ? {x} : {y}")


@writes("neg abs", "ftz")
def write_sign(writer: Writer, op: Instruction) -> str:
    if op.type in HALVES:
        mask = 0x8000 if SIZES[op.type] == 2 else 0x80008000
        sign = f"^ {mask}u" if op.name == "neg" else f"& ~{mask}u"
        return writer.put(op.operands[0], f"{writer.operand(op.operands[1])} {sign}")
    x = writer.value(op.operands[1], op.type, op.has("ftz"))
    if op.name == "neg":
        zero = "0 - " if op.type not in FLOATS else "-"
        kind = unsigned(op.type)
        return writer.assign(op.operands[0], op.type, f"{zero}{writer.value(op.operands[1], kind, op.has('ftz'))}")
    if op.type in FLOATS:
        return writer.assign(op.operands[0], op.type, f"float_abs({x})")
    kind = unsigned(op.type)
    return writer.assign(
        op.operands[0],
        op.type,
        f"{x} < 0 ? 0 - {writer.value(op.operands[1], kind)} : {writer.value(op.operands[1], kind)}",
    )


@writes("copysign")
def write_copysign(writer: Writer, op: Instruction) -> str:
    sign, x = (writer.value(text, op.type) for text in op.operands[1:3])
    return writer.assign(op.operands[0], op.type, f"copy_sign({x}, {sign})")


UNARY = {
    **{name: name + "_{kind}({x})" for name in ("ex2", "lg2", "sin", "cos", "tanh", "sqrt")},
    "rcp": "1 / {x}",
    "rsqrt": "1 / sqrt_{kind}({x})",
}


@writes(" ".join(UNARY), "approx ftz rn rz rm rp")
def write_function(writer: Writer, op: Instruction) -> str:
    if op.type not in FLOATS:
        return write_half(writer, op)
    x = writer.value(op.operands[1], op.type, op.has("ftz"))
    if op.name == "rcp":
        return rounded(writer, op, "div", ["1", x], f"1 / {x}")
    return rounded(writer, op, op.name, [x], UNARY[op.name].format(kind=op.type, x=x))


HALF_FORMULAS = {
    "fma": "fused_f64(x, y, z)",
    "add": "x + y",
    "sub": "x - y",
    "mul": "x * y",
    "max": "float_max(x, y)",
    "min": "float_min(x, y)",
    **{name: formula.format(kind="f64", x="x") for name, formula in UNARY.items()},
}


def write_half(writer: Writer, op: Instruction) -> str:
    """One or two 16-bit floats, computed in double and rounded once."""
    if directed(op) or op.has("sat", "ftz"):
        raise Unsupported(op.text)
    kind = "bfloat" if op.type.startswith("bf16") else "half"
    formula = HALF_FORMULAS[op.name]
    if op.has("NaN"):
        formula = formula.replace("(", "_or_nan(", 1)
    inputs = [writer.operand(text) for text in op.operands[1:]]
    parts = []
    for shift in (0, 16) if op.type.endswith("x2") else (0,):
        values = "".join(
            f"double {name} = {kind}_value((uint16_t)((uint32_t)({text}) >> {shift})); "
            for name, text in zip("xyz", inputs, strict=False)
        )
        parts.append(f"{{ {values}out |= (uint32_t){kind}_of_double({formula}) << {shift}; }}")
    return f"{{ uint32_t out = 0; {' '.join(parts)} {writer.put(op.operands[0], 'out')} }}"
