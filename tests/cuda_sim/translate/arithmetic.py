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


def directed(i: Instruction) -> str | None:
    """The rounding that is not to nearest, or none."""
    return next((part for part in i.modifiers if part in ROUNDING), None)


def rounded(w: Writer, i: Instruction, function: str, inputs: list[str], plain: str) -> str:
    """Sets the result of a float operation, in the rounding that it asks for."""
    mode, flush = directed(i), i.has("ftz")
    expression = plain if mode is None else f"{function}_{i.type}_rounded({ROUNDING[mode]}, {', '.join(inputs)})"
    if i.has("sat"):
        expression = f"saturate({expression})"
    return w.assign(i.operands[0], i.type, expression, flush)


@writes("add sub", "rn rz rm rp ftz sat cc")
def write_sum(w: Writer, i: Instruction) -> str:
    if i.has("cc"):
        return write_carry(w, i)
    if i.type in HALVES:
        return write_half(w, i)
    if i.type in FLOATS:
        x, y = (w.value(text, i.type, i.has("ftz")) for text in i.operands[1:3])
        return rounded(w, i, i.name, [x, y], f"{x} {INFIX[i.name]} {y}")
    if i.has("sat"):
        x, y = (f"(int64_t)({w.value(text, i.type)})" for text in i.operands[1:3])
        return w.assign(i.operands[0], i.type, f"clamp_signed({x} {INFIX[i.name]} {y}, 32)")
    kind = unsigned(i.type)
    x, y = (w.value(text, kind) for text in i.operands[1:3])
    return w.assign(i.operands[0], i.type, f"{x} {INFIX[i.name]} {y}")


@writes("and or xor")
def write_logic(w: Writer, i: Instruction) -> str:
    x, y = (w.value(text, i.type) for text in i.operands[1:3])
    return w.assign(i.operands[0], i.type, f"{x} {INFIX[i.name]} {y}")


@writes("not cnot")
def write_not(w: Writer, i: Instruction) -> str:
    sign = "!" if i.type == "pred" or i.name == "cnot" else "~"
    return w.assign(i.operands[0], i.type, f"{sign}{w.value(i.operands[1], i.type)}")


@writes("addc subc madc", "cc lo hi")
def write_carry(w: Writer, i: Instruction) -> str:
    """Sums of more than one word: `carry` holds what goes on to the next."""
    width = bits_of(i.type)
    word = f"uint{width}_t"
    wide = "uint64_t" if width == 32 else "unsigned __int128"
    inputs = [f"({wide})({word})({w.operand(text)})" for text in i.operands[1:]]
    carry = "carry" if i.name.endswith("c") else "0"
    if i.name.startswith("mad"):
        product = f"({wide})({word})(({inputs[0]} * {inputs[1]}) >> {width if i.has('hi') else 0})"
        expression = f"{product} + {inputs[2]} + {carry}"
    else:
        sign = INFIX[i.name[:3]]
        expression = f"{inputs[0]} {sign} {inputs[1]} {sign} {carry}"
    keep = f"carry = (uint32_t)(sum >> {width}) & 1; " if i.has("cc") else ""
    return f"{{ {wide} sum = {expression}; {w.put(i.operands[0], f'({word})sum')} {keep}}}"


@writes("mul mad", "rn rz rm rp ftz sat lo hi wide cc")
def write_product(w: Writer, i: Instruction) -> str:
    if i.has("cc"):
        return write_carry(w, i)
    if i.type in HALVES:
        return write_half(w, i)
    if i.type in FLOATS:
        values = [w.value(text, i.type, i.has("ftz")) for text in i.operands[1:]]
        if i.name == "mad":
            return rounded(w, i, "fma", values, f"fused_{i.type}({', '.join(values)})")
        return rounded(w, i, "mul", values, f"{values[0]} * {values[1]}")
    if i.has("sat"):
        raise Unsupported(i.text)
    kind = i.type
    if i.has("wide"):
        kind = kind[0] + str(2 * bits_of(kind))
        x, y = (f"({VALUE_TYPES[kind]})({w.value(text, i.type)})" for text in i.operands[1:3])
        product = f"{x} * {y}"
    elif i.has("hi"):
        sign, width = kind[0] == "s", 2 * bits_of(kind)
        wide = ("" if sign else "unsigned ") + "__int128" if width == 128 else f"{'' if sign else 'u'}int{width}_t"
        x, y = (f"({wide})({w.value(text, kind)})" for text in i.operands[1:3])
        product = f"({VALUE_TYPES[kind]})(({x} * {y}) >> {bits_of(kind)})"
    else:
        x, y = (w.value(text, unsigned(kind)) for text in i.operands[1:3])
        product = f"({VALUE_TYPES[unsigned(kind)]})(1u * {x} * {y})"
    if i.name == "mad":
        product = f"({VALUE_TYPES[unsigned(kind)]})({product}) + {w.value(i.operands[3], unsigned(kind))}"
    return w.assign(i.operands[0], kind, product)


@writes("mul24 mad24", "lo")
def write_product_of_24_bits(w: Writer, i: Instruction) -> str:
    low = "sign_extend_24" if i.type[0] == "s" else "low_24"
    product = f"{low}({w.operand(i.operands[1])}) * {low}({w.operand(i.operands[2])})"
    more = f" + {w.operand(i.operands[3])}" if i.name == "mad24" else ""
    return w.assign(i.operands[0], "u32", f"(uint32_t)({product}){more}")


@writes("fma", "rn rz rm rp ftz sat")
def write_fma(w: Writer, i: Instruction) -> str:
    if i.type in HALVES:
        return write_half(w, i)
    values = [w.value(text, i.type, i.has("ftz")) for text in i.operands[1:]]
    return rounded(w, i, "fma", values, f"fused_{i.type}({', '.join(values)})")


@writes("div", "rn rz rm rp ftz approx full")
def write_quotient(w: Writer, i: Instruction) -> str:
    if i.type in FLOATS:
        x, y = (w.value(text, i.type, i.has("ftz")) for text in i.operands[1:3])
        return rounded(w, i, "div", [x, y], f"{x} / {y}")
    x, y = (w.value(text, i.type) for text in i.operands[1:3])
    return w.assign(i.operands[0], i.type, f"quotient_{signedness(i.type)}({x}, {y})")


@writes("rem")
def write_remainder(w: Writer, i: Instruction) -> str:
    x, y = (w.value(text, i.type) for text in i.operands[1:3])
    return w.assign(i.operands[0], i.type, f"remainder_{signedness(i.type)}({x}, {y})")


@writes("min max", "ftz NaN")
def write_extremum(w: Writer, i: Instruction) -> str:
    if len(i.operands) != 3:
        raise Unsupported(i.text)
    if i.type in HALVES:
        return write_half(w, i)
    x, y = (w.value(text, i.type, i.has("ftz")) for text in i.operands[1:3])
    if i.type in FLOATS:
        nan = "_or_nan" if i.has("NaN") else ""
        return w.assign(i.operands[0], i.type, f"float_{i.name}{nan}({x}, {y})", i.has("ftz"))
    order = "<" if i.name == "min" else ">"
    return w.assign(i.operands[0], i.type, f"{x} {order} {y} ? {x} : {y}")


@writes("neg abs", "ftz")
def write_sign(w: Writer, i: Instruction) -> str:
    if i.type in HALVES:
        mask = 0x8000 if SIZES[i.type] == 2 else 0x80008000
        sign = f"^ {mask}u" if i.name == "neg" else f"& ~{mask}u"
        return w.put(i.operands[0], f"{w.operand(i.operands[1])} {sign}")
    x = w.value(i.operands[1], i.type, i.has("ftz"))
    if i.name == "neg":
        zero = "0 - " if i.type not in FLOATS else "-"
        kind = unsigned(i.type)
        return w.assign(i.operands[0], i.type, f"{zero}{w.value(i.operands[1], kind, i.has('ftz'))}")
    if i.type in FLOATS:
        return w.assign(i.operands[0], i.type, f"float_abs({x})")
    kind = unsigned(i.type)
    return w.assign(
        i.operands[0], i.type, f"{x} < 0 ? 0 - {w.value(i.operands[1], kind)} : {w.value(i.operands[1], kind)}"
    )


@writes("copysign")
def write_copysign(w: Writer, i: Instruction) -> str:
    sign, x = (w.value(text, i.type) for text in i.operands[1:3])
    return w.assign(i.operands[0], i.type, f"copy_sign({x}, {sign})")


UNARY = {
    **{name: name + "_{kind}({x})" for name in ("ex2", "lg2", "sin", "cos", "tanh", "sqrt")},
    "rcp": "1 / {x}",
    "rsqrt": "1 / sqrt_{kind}({x})",
}


@writes(" ".join(UNARY), "approx ftz rn rz rm rp")
def write_function(w: Writer, i: Instruction) -> str:
    if i.type not in FLOATS:
        return write_half(w, i)
    x = w.value(i.operands[1], i.type, i.has("ftz"))
    if i.name == "rcp":
        return rounded(w, i, "div", ["1", x], f"1 / {x}")
    return rounded(w, i, i.name, [x], UNARY[i.name].format(kind=i.type, x=x))


HALF_FORMULAS = {
    "fma": "fused_f64(x, y, z)",
    "add": "x + y",
    "sub": "x - y",
    "mul": "x * y",
    "max": "float_max(x, y)",
    "min": "float_min(x, y)",
    **{name: formula.format(kind="f64", x="x") for name, formula in UNARY.items()},
}


def write_half(w: Writer, i: Instruction) -> str:
    """One or two 16-bit floats, computed in double and rounded once."""
    if directed(i) or i.has("sat", "ftz"):
        raise Unsupported(i.text)
    kind = "bfloat" if i.type.startswith("bf16") else "half"
    formula = HALF_FORMULAS[i.name]
    if i.has("NaN"):
        formula = formula.replace("(", "_or_nan(", 1)
    inputs = [w.operand(text) for text in i.operands[1:]]
    parts = []
    for shift in (0, 16) if i.type.endswith("x2") else (0,):
        values = "".join(
            f"double {name} = {kind}_value((uint16_t)((uint32_t)({text}) >> {shift})); "
            for name, text in zip("xyz", inputs, strict=False)
        )
        parts.append(f"{{ {values}out |= (uint32_t){kind}_of_double({formula}) << {shift}; }}")
    return f"{{ uint32_t out = 0; {' '.join(parts)} {w.put(i.operands[0], 'out')} }}"
