"""Turns operands into C expressions and hands each instruction to the function that writes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .parse import SIZES, Instruction, Unsupported, elements

VALUE_TYPES = {
    **{f"{kind}{bits}": f"uint{bits}_t" for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    "f32": "float",
    "f64": "double",
    "pred": "bool",
}
FLOAT_NAMES = {"f32": "float", "f64": "double"}
REGISTER_TYPES = {1: "uint16_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}

SPECIAL = {
    "%laneid": "here->lane",
    "%warpid": "here->warp_index",
    "%nwarpid": "warps_per_block()",
    "%smid": "0u",
    "%nsmid": "1u",
    "%gridid": "1u",
    "WARP_SZ": "32u",
    "%lanemask_eq": "(1u << here->lane)",
    "%lanemask_lt": "((1u << here->lane) - 1)",
    "%lanemask_le": "((2u << here->lane) - 1)",
    "%lanemask_gt": "~((2u << here->lane) - 1)",
    "%lanemask_ge": "~((1u << here->lane) - 1)",
    "%dynamic_smem_size": "dynamic_shared_bytes()",
    "%total_smem_size": "total_shared_bytes()",
    "%clock": "(uint32_t)clock_cycles()",
    "%clock64": "clock_cycles()",
    "%globaltimer": "clock_cycles()",
    "%globaltimer_lo": "(uint32_t)clock_cycles()",
}
for axis in "xyz":
    SPECIAL[f"%tid.{axis}"] = f"here->tid.{axis}"
    SPECIAL[f"%ntid.{axis}"] = f"geometry.block.{axis}"
    SPECIAL[f"%ctaid.{axis}"] = f"geometry.index.{axis}"
    SPECIAL[f"%nctaid.{axis}"] = f"geometry.grid.{axis}"


@dataclass
class Writer:
    """What the names in a function stand for, and where in the source it stands."""

    parameters: dict[str, str]  # C expression of the parameter's address
    result: str | None
    shared: dict[str, int]  # offset of each shared variable
    constants: set[str]
    functions: dict[str, str]  # names in C of the functions that may be called
    locations: list[str]
    at: int = 0
    buffers: set[str] = field(default_factory=set)  # .local variables and arguments of calls
    targets: dict[str, list[str]] = field(default_factory=dict)  # labels of indexed branches
    uses: set[str] = field(default_factory=set)
    scopes: list[dict[str, str]] = field(default_factory=lambda: [{}])  # registers that hold floats, by block

    def operand(self, text: str) -> str:
        """The C expression of a register, a number or an address, as bits."""
        text = text.strip()
        if text in SPECIAL:
            return SPECIAL[text]
        if text.startswith("!"):
            return f"!{self.operand(text[1:])}"
        if text.startswith("%"):
            return self.register_bits(text)
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
            return f"0x{text[2:]}u"
        if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
            return f"0x{text[2:]}ull"
        if re.fullmatch(r"-?(?:\d+|0[xX][0-9a-fA-F]+)U?", text):
            return integer(text.rstrip("U"))
        return self.name(text)

    def name(self, text: str) -> str:
        if text in self.parameters:
            return f"(uint64_t)({self.parameters[text]})"
        if text in self.shared:
            return f"{self.shared[text]}u"
        if text in self.buffers:
            return f"(uint64_t)({identifier(text)})"
        if text in self.constants:
            return f"(uint64_t)(constant_{identifier(text)})"
        if re.fullmatch(r"[A-Za-z_$][\w$]*", text):  # a register that inline asm declares
            return self.register_bits(text)
        raise Unsupported(f"operand {text}")

    def float_kind(self, text: str) -> str | None:
        """f32 or f64 where the operand is a register of that type."""
        name = register(text.strip())
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def register_bits(self, text: str) -> str:
        kind = self.float_kind(text)
        return f"{FLOAT_NAMES[kind]}_bits({register(text)})" if kind else register(text)

    def value(self, text: str, kind: str, flush: bool = False, narrow: bool = False) -> str:
        """The operand as a C value of a PTX type; `narrow` where its register may be wider than that."""
        text = text.strip()
        if kind in ("f32", "f64") and re.fullmatch(r"-?\d+\.\d*(?:[eE][-+]?\d+)?", text):
            return f"({VALUE_TYPES[kind]})({text})"
        if kind in ("f32", "f64") and self.float_kind(text) == kind:
            return f"flush({register(text)})" if flush else register(text)
        bits = self.operand(text)
        if kind == "f32":
            return f"flush(as_float({bits}))" if flush else f"as_float({bits})"
        if kind == "f64":
            return f"as_double({bits})"
        if kind == "pred":
            return bits
        if kind not in VALUE_TYPES:
            raise Unsupported(f"operand of type {kind}")
        if kind[0] in "ub" and SIZES[kind] > 1 and text.startswith("%") and text not in SPECIAL and not narrow:
            return bits  # the register's own type
        return f"({VALUE_TYPES[kind]})({bits})"

    def assign(self, target: str, kind: str, expression: str, flush: bool = False) -> str:
        """Sets a register to a value of a PTX type; `_` drops it."""
        if target.strip() == "_":
            return f"(void)({expression});"
        if kind == "f32" and flush:
            expression = f"flush({expression})"
        if kind in ("f32", "f64"):
            if self.float_kind(target) == kind:
                return f"{register(target)} = {expression};"
            expression = f"{FLOAT_NAMES[kind]}_bits({expression})"
        elif kind[0] == "s" and SIZES[kind] < 4:
            expression = f"({VALUE_TYPES[kind]})({expression})"  # narrow integers extend their sign
        return self.put(target, expression)

    def put(self, target: str, bits: str) -> str:
        """Sets a register to bits."""
        kind = self.float_kind(target)
        return f"{register(target.strip())} = {f'as_{FLOAT_NAMES[kind]}({bits})' if kind else bits};"

    def address(self, text: str) -> tuple[str, int]:
        """`[%rd1+16]` as a name and an offset."""
        match = re.fullmatch(r"\[\s*([%\w$.]+)\s*(?:([+-])\s*(-?(?:0x)?[0-9a-fA-F]+))?\s*\]", text.strip())
        if match is None:
            raise Unsupported(f"address {text}")
        offset = int(match[3], 0) if match[3] else 0
        return match[1], -offset if match[2] == "-" else offset

    def address_value(self, text: str) -> str:
        base, offset = self.address(text)
        value = self.operand(base)
        return f"{value} + {offset}" if offset > 0 else f"{value} - {-offset}" if offset else value


def register(name: str) -> str:
    return re.sub(r"\W", "_", name.lstrip("%")) + "_"


def identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def integer(text: str) -> str:
    value = int(text, 0)
    if not -(2**63) <= value < 2**64:
        raise Unsupported(f"number {text}")
    if value == -(2**63):
        return "INT64_MIN"
    return f"({value})" if abs(value) < 2**31 else f"({value}ll)" if value < 2**63 else f"({value}ull)"


Handler = Callable[[Writer, Instruction], str]
HANDLERS: dict[str, tuple[Handler, frozenset[str]]] = {}


def writes(names: str, modifiers: str = "") -> Callable[[Handler], Handler]:
    """Registers the function that writes some instructions, with every modifier that it heeds.

    An instruction with any other modifier is refused: none is skipped in silence.
    """

    def add(handler: Handler) -> Handler:
        for name in names.split():
            HANDLERS[name] = handler, frozenset(modifiers.split())
        return handler

    return add


def write_instruction(writer: Writer, instruction: Instruction) -> str:
    if instruction.name not in HANDLERS:
        raise Unsupported(instruction.text)
    handler, known = HANDLERS[instruction.name]
    unknown = [part for part in instruction.modifiers if part not in known and part not in SIZES]
    if unknown:
        raise Unsupported(f"{instruction.text}  (.{unknown[0]})")
    try:
        code = handler(writer, instruction)
    except (KeyError, IndexError, StopIteration, ValueError) as error:
        raise Unsupported(f"{instruction.text}  ({type(error).__name__}: {error})") from error
    if instruction.guard:
        return f"if ({writer.operand(instruction.guard)}) {{ {code} }}"
    return code


def vector(writer: Writer, text: str) -> list[str]:
    return [writer.operand(element) for element in elements(text)]
