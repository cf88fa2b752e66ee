"""Writes one C file for each group of kernels of a PTX module."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

# Importing a module of instructions registers them.
from . import arithmetic, bitwise, control, convert, hopper, memory, warp
from .parse import (
    DECLARATION,
    SIZES,
    Function,
    Module,
    Statement,
    Unsupported,
    Variable,
    parse_instruction,
    parse_module,
    parse_variable,
    split,
    statements,
)
from .writer import FLOAT_NAMES, REGISTER_TYPES, VALUE_TYPES, Writer, identifier, register, write_instruction

INSTRUCTIONS = (arithmetic, bitwise, control, convert, hopper, memory, warp)

# More statements than this are compiled in a file of their own, so that files compile side by side.
STATEMENTS_PER_FILE = 4000
DYNAMIC_ALIGNMENT = 1024
LARGEST_TABLE = 1 << 20


@dataclass
class Kernel:
    """A kernel with what it needs of its module."""

    function: Function
    called: list[Function]
    shared: dict[str, int]
    static_bytes: int
    locations: list[str] = field(default_factory=lambda: [""])
    uses: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        return sum(function.body.count(";") for function in (self.function, *self.called))


def translate(text: str, arch: str) -> list[str]:
    """C files that hold the kernels of a module."""
    module = parse_module(text)
    kernels = [prepare(module, function) for function in module.functions.values() if function.is_kernel]
    groups: list[list[Kernel]] = []
    for kernel in kernels:
        if not groups or sum(k.size for k in groups[-1]) + kernel.size > STATEMENTS_PER_FILE:
            groups.append([])
        groups[-1].append(kernel)
    return [write_file(module, group, arch) for group in groups]


def prepare(module: Module, function: Function) -> Kernel:
    if re.search(r"cluster", function.directives):
        raise Unsupported(f"{function.name}: clusters of blocks")
    called = callees(module, function)
    shared, size = place_shared(module, [function, *called])
    return Kernel(function, called, shared, size)


def callees(module: Module, function: Function) -> list[Function]:
    """Every function that a kernel reaches, callers after those that they call where there is no cycle."""
    found: dict[str, Function] = {}

    def visit(caller: Function) -> None:
        for name in re.findall(r"[\w$]+", caller.body):
            callee = module.functions.get(name)
            if callee is not None and not callee.is_kernel and name not in found:
                found[name] = callee
                visit(callee)

    visit(function)
    return list(found.values())


def place_shared(module: Module, functions: list[Function]) -> tuple[dict[str, int], int]:
    """Offsets of the shared variables in use and the bytes of those whose size is known."""
    words = {word for function in functions for word in re.findall(r"[\w$]+", function.body)}
    variables = [v for v in module.variables.values() if v.space == "shared" and v.name in words]
    for function in functions:
        variables += [v for v in local_variables(function) if v.space == "shared"]
    offsets, size = {}, 0
    for variable in variables:
        if variable.count is not None:
            size = -(-size // variable.align) * variable.align
            offsets[variable.name] = size
            size += variable.size
    dynamic = [v for v in variables if v.count is None]
    if dynamic and size:
        size = -(-size // DYNAMIC_ALIGNMENT) * DYNAMIC_ALIGNMENT
    offsets.update({v.name: size for v in dynamic})
    return offsets, size


def local_variables(function: Function) -> list[Variable]:
    return [parse_variable(match[0]) for match in DECLARATION.finditer(function.body)]


def write_file(module: Module, kernels: list[Kernel], arch: str) -> str:
    words = {w for k in kernels for f in (k.function, *k.called) for w in re.findall(r"[\w$]+", f.body)}
    constants = [v for v in module.variables.values() if v.space != "shared" and v.name in words]
    parts = ['#include "device_code.h"', "", *map(write_constant, constants)]
    for kernel in kernels:
        parts += write_kernel(module, kernel, {v.name for v in constants}, arch)
    return "\n".join(filter(None, parts)) + "\n"


def write_constant(variable: Variable) -> str:
    """A table in constant or global memory; kernels may only read it."""
    if variable.values is None or variable.count is None:
        raise Unsupported(f"the variable {variable.name}, which has no values")
    values = variable.values.strip()
    values = values if values.startswith("{") else f"{{{values}}}"
    values = re.sub(r"\b0[fd]([0-9a-fA-F]+)", r"0x\1", values)
    if re.search(r"\b[A-Za-z_$]", values) or variable.size > LARGEST_TABLE:
        raise Unsupported(f"the values of {variable.name}")
    word = VALUE_TYPES[unsigned_bits(variable.type)]
    name = f"constant_{identifier(variable.name)}"
    return f"_Alignas({variable.align}) static const {word} {name}[{variable.count}] = {values};"


def unsigned_bits(kind: str) -> str:
    return f"u{8 * SIZES[kind]}" if kind[0] in "fb" else kind


def write_kernel(module: Module, kernel: Kernel, constants: set[str], arch: str) -> list[str]:
    name = identifier(kernel.function.name)
    names = {f.name: f"{name}__{identifier(f.name)}" for f in kernel.called}
    signature = "(char* const* parameters, char* result, At from)"
    parts = [f"static void {c_name}{signature};" for c_name in names.values()]
    for function in kernel.called:
        parts += [f"static void {names[function.name]}{signature} {{"]
        parts += [*write_body(module, kernel, function, constants, names), "}"]
    parts.append(f"static void run_{name}(char* parameters) {{")
    parts += [*write_body(module, kernel, kernel.function, constants, names), "}"]
    return parts + write_registration(kernel, name, arch)


def write_registration(kernel: Kernel, name: str, arch: str) -> list[str]:
    """The kernel's description, which the runtime is given when the library is loaded."""
    function = kernel.function
    locations = ", ".join(f'"{text}"' for text in kernel.locations)
    sizes = ", ".join(f"{{{p.offset}, {p.size}}}" for p in function.parameters)
    flags = [str(use in kernel.uses).lower() for use in ("async_proxy", "fences")]
    facts = [f'"{function.name}", "{arch}", run_{name}, locations_{name}, parameters_{name}']
    facts += [str(len(function.parameters)), str(kernel.static_bytes), str(thread_limit(function)), *flags]
    return [
        f"static const char* const locations_{name}[] = {{{locations}}};",
        f"static const Parameter parameters_{name}[] = {{{sizes or '{0, 0}'}}};",
        f"static const Kernel kernel_{name} = {{{', '.join(facts)}}};",
        f"__attribute__((constructor)) static void register_{name}(void) {{ register_kernel(&kernel_{name}); }}",
    ]


def thread_limit(function: Function) -> int:
    """Most threads of a block, by the kernel's launch bounds."""
    bounds = re.search(r"\.(?:maxntid|reqntid)\s+([\d,\s]+)", function.directives)
    return math.prod(map(int, bounds[1].split(","))) if bounds else 1024


def write_body(
    module: Module, kernel: Kernel, function: Function, constants: set[str], names: dict[str, str]
) -> list[str]:
    writer = Writer(
        parameters={
            p.name: f"(parameters + {p.offset})" if function.is_kernel else f"parameters[{k}]"
            for k, p in enumerate(function.parameters)
        },
        result=function.result,
        shared=kernel.shared,
        constants=constants,
        functions=names,
        locations=kernel.locations,
        uses=kernel.uses,
    )
    body = list(rename_scoped_labels(list(statements(function.body))))
    for statement in body:
        if statement.kind == "targets":
            name, _, labels = statement.text.partition(" .branchtargets ")
            writer.targets[name] = split(labels)
    known = {text: k for k, text in enumerate(kernel.locations)}
    carries = re.search(r"\.cc\.|\b(?:addc|subc|madc)\.", function.body)
    lines = ["uint32_t carry = 0;"] if carries else []
    return lines + [write_statement(module, writer, statement, known) for statement in body]


def write_statement(module: Module, writer: Writer, statement: Statement, known: dict[str, int]) -> str:
    kind, text = statement.kind, statement.text
    if kind == "label":
        return f"{control.label(text)}: ;"
    if kind == "open":
        writer.scopes.append({})
        return "{"
    if kind == "close":
        writer.scopes.pop()
        return "}"
    if kind == "location":
        numbers = text.split()[1:]
        places = [f"{module.files.get(f, f)}:{line}" for f, line in zip(numbers[::2], numbers[1::2], strict=True)]
        place = " from ".join(places)
        if place not in known:
            known[place] = len(writer.locations)
            writer.locations.append(place)
        writer.at = known[place]
        return ""
    if kind == "registers":
        return write_registers(writer, text)
    if kind == "variable":
        return write_local(writer, text)
    if kind in ("shared", "targets"):
        return ""
    instruction = parse_instruction(text)
    try:
        return write_instruction(writer, instruction)
    except Unsupported as error:
        raise Unsupported(f"{error}  [{writer.locations[writer.at]}]") from None


def write_registers(writer: Writer, text: str) -> str:
    """`.reg .b32 %r<3>` declares %r0, %r1, %r2."""
    _, kind, names = text.split(maxsplit=2)
    kind = kind[1:]
    found = []
    for name in split(names):
        prefix, _, count = name.rstrip(">").partition("<")
        found += [register(f"{prefix}{k}") for k in range(int(count))] if count else [register(prefix)]
    if kind in FLOAT_NAMES:
        writer.scopes[-1].update(dict.fromkeys(found, kind))
    word = FLOAT_NAMES.get(kind) or ("bool" if kind == "pred" else REGISTER_TYPES[SIZES[kind]])
    return f"{word} {', '.join(found)};"


def write_local(writer: Writer, text: str) -> str:
    """Local memory and arguments of calls lie on the stack of the simulated thread."""
    match = re.match(r"\.(param|local)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?$", text)
    if match is None:
        raise Unsupported(text)
    space, align, kind, name, count = match.groups()
    size = SIZES[kind] * int(count or 1)
    writer.buffers.add(name)
    declaration = f"_Alignas({max(int(align or 1), 16)}) char {identifier(name)}[{size}];"
    # Local memory starts as NaNs, which show up where it is read before it is written.
    return f"{declaration} __builtin_memset({identifier(name)}, 0xFF, {size});" if space == "local" else declaration


def rename_scoped_labels(body: list[Statement]) -> list[Statement]:
    """Labels of inner blocks get a name of their own, since those of C belong to the function."""
    scopes, scope_of, counter, found = [0], [], 0, {}
    for statement in body:
        if statement.kind == "open":
            counter += 1
            scopes.append(counter)
        scope_of.append(tuple(scopes))
        if statement.kind == "close":
            scopes.pop()
        if statement.kind in ("label",):
            found[scopes[-1], statement.text] = f"{statement.text}_in_{scopes[-1]}" if scopes[-1] else statement.text
    renamed = []
    for statement, inside in zip(body, scope_of, strict=True):
        text = statement.text
        if statement.kind == "label":
            text = found[inside[-1], text]
        elif statement.kind == "instruction" and re.search(r"\bbra\b", text):
            head, _, name = text.rpartition(" ")
            scope = next((s for s in reversed(inside) if (s, name) in found), None)
            text = f"{head} {found[scope, name]}" if scope is not None else text
        renamed.append(Statement(statement.kind, text))
    return renamed
