"""Reads the text of a PTX module: its variables, its functions and the statements of a body."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# Bytes of a value of each type.
SIZES = {
    **dict.fromkeys(("b8", "u8", "s8", "pred"), 1),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 2),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2", "tf32"), 4),
    **dict.fromkeys(("b64", "u64", "s64", "f64"), 8),
    "b128": 16,
}


class Unsupported(Exception):
    """PTX that the simulator has no model of."""


@dataclass
class Variable:
    """A variable of the module or of a function; `count` is None where its size is not known."""

    name: str
    space: str
    align: int
    type: str
    count: int | None
    values: str | None = None

    @property
    def size(self) -> int:
        return SIZES[self.type] * (self.count or 0)


@dataclass
class Parameter:
    name: str
    align: int
    size: int
    offset: int = 0


@dataclass
class Function:
    name: str
    is_kernel: bool
    parameters: list[Parameter]
    result: str | None
    directives: str
    body: str


@dataclass
class Module:
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


@dataclass
class Statement:
    """One step of a body. `kind` is label, open, close, instruction or one of KINDS."""

    kind: str
    text: str


@dataclass
class Instruction:
    """`@%p1 ld.global.v2.u32 {%r1, %r2}, [%rd1];` in its parts."""

    text: str
    guard: str | None
    name: str
    modifiers: list[str]
    operands: list[str]

    @property
    def types(self) -> list[str]:
        return [part for part in self.modifiers if part in SIZES]

    @property
    def type(self) -> str:
        if not self.types:
            raise Unsupported(self.text)
        return self.types[0]

    def has(self, *names: str) -> bool:
        return any(name in self.modifiers for name in names)


DECLARATION = re.compile(
    r"(?:\.(?:extern|visible|weak|common)\s+)*\.(?P<space>shared|global|const|local)\s+"
    r"(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+"
    r"(?P<name>[\w$]+)(?P<array>\[(?P<count>\d*)\])?(?:\s*=\s*(?P<values>[^;]*))?;"
)
FUNCTION = re.compile(
    r"\.(?P<kind>entry|func)\b\s*(?P<attributes>(?:\.attribute\([^)]*\)\s*)*)(?:\((?P<result>[^)]*)\)\s*)?"
    r"(?P<name>[\w$]+)\s*(?:\((?P<parameters>[^)]*)\))?(?P<directives>[^{;]*)(?P<stop>[{;])"
)
STATEMENT = re.compile(r"\s*(?:(?P<label>[\w$]+):(?!:)|(?P<brace>[{}])|(?P<text>[^;{}]*(?:\{[^{}]*\}[^;{}]*)*);)")
KINDS = {
    ".loc ": "location",
    ".reg ": "registers",
    ".param ": "variable",
    ".local ": "variable",
    ".shared ": "shared",
    ".branchtargets ": "targets",
}
INSTRUCTION = re.compile(r"(?:@(?P<guard>!?[%\w$]+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>.*)$")


def parse_module(text: str) -> Module:
    module = Module()
    for number, path in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', text):
        module.files[number] = path.rsplit("/", 1)[-1]
    outside, position = "", 0
    text = without_remarks(text)
    while match := FUNCTION.search(text, position):
        outside += text[position : match.start()]
        position = match.end()
        if match["stop"] == "{":
            position = end_of_block(text, match.end())
            function = parse_function(match, text[match.end() : position - 1])
            module.functions[function.name] = function
    for match in DECLARATION.finditer(outside + text[position:]):
        variable = parse_variable(match[0])
        module.variables[variable.name] = variable
    return module


def without_remarks(text: str) -> str:
    """The text without comments and debug sections; `.loc` becomes a statement like any other."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^\s*\.section\s+[^{]*\{[^}]*\}", "", text, flags=re.MULTILINE)
    inlined = r"[^\n]*inlined_at\s+(\d+)\s+(\d+)"
    text = re.sub(rf"^\s*\.loc\s+(\d+)\s+(\d+)(?:{inlined})?[^\n]*$", r".loc \1 \2 \3 \4;", text, flags=re.MULTILINE)
    return re.sub(r"^\s*\.(?:file|pragma|version|target|address_size)[^\n]*$", "", text, flags=re.MULTILINE)


def end_of_block(text: str, position: int) -> int:
    """The position after the brace that closes the block which `position` is in."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, position):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    raise Unsupported("a block that does not end")


def parse_variable(text: str) -> Variable:
    match = DECLARATION.fullmatch(text.strip())
    if match is None:
        raise Unsupported(text)
    count = 1 if match["array"] is None else int(match["count"]) if match["count"] else None
    align = int(match["align"] or SIZES[match["type"]])
    return Variable(match["name"], match["space"], align, match["type"], count, match["values"])


def parse_function(match: re.Match[str], body: str) -> Function:
    parameters, offset = [], 0
    for text in filter(str.strip, (match["parameters"] or "").split(",")):
        parameter = parse_parameter(text)
        offset = -(-offset // parameter.align) * parameter.align
        parameter.offset = offset
        offset += parameter.size
        parameters.append(parameter)
    result = parse_parameter(match["result"]).name if (match["result"] or "").strip() else None
    return Function(match["name"], match["kind"] == "entry", parameters, result, match["directives"], body)


def parse_parameter(text: str) -> Parameter:
    """`.param .align 8 .b8 name[5000]` or `.param .u64 .ptr .align 1 name`."""
    match = re.search(r"\.(\w+)\s+(?:\.ptr\b.*\s)?([\w$]+)(?:\[(\d+)\])?\s*$", text.strip())
    if match is None or match[1] not in SIZES:
        raise Unsupported(text)
    size = SIZES[match[1]] * int(match[3] or 1)
    aligned = re.search(r"\.param\s+\.align\s+(\d+)", text)
    return Parameter(match[2], int(aligned[1]) if aligned else SIZES[match[1]], size)


def statements(body: str) -> Iterator[Statement]:
    position = 0
    while match := STATEMENT.match(body, position):
        position = match.end()
        if match["label"]:
            yield Statement("label", match["label"])
        elif match["brace"]:
            yield Statement("open" if match["brace"] == "{" else "close", "")
        elif text := " ".join(match["text"].split()):
            yield Statement(next((k for start, k in KINDS.items() if text.startswith(start)), "instruction"), text)
    if body[position:].strip():
        raise Unsupported(body[position:].strip()[:80])


def parse_instruction(text: str) -> Instruction:
    match = INSTRUCTION.match(text)
    if match is None:
        raise Unsupported(text)
    name, *modifiers = match["opcode"].split(".")
    return Instruction(text, match["guard"], name, modifiers, split(match["operands"]))


def split(text: str) -> list[str]:
    """Operands at commas, but not those within brackets."""
    found, depth, word = [], 0, ""
    for character in text:
        depth += (character in "{[(") - (character in ")]}")
        if character == "," and depth == 0:
            found.append(word.strip())
            word = ""
        else:
            word += character
    return [*found, word.strip()] if word.strip() else found


def elements(text: str) -> list[str]:
    """The operands of a vector in braces, or the one operand that it is."""
    text = text.strip()
    return split(text[1:-1]) if text[:1] in "{(" and text else [text]
