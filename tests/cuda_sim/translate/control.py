"""Branches, calls and the ends of functions."""

from __future__ import annotations

from .parse import Instruction, Unsupported, elements
from .writer import Writer, identifier, writes

# Functions that the runtime has.
PROVIDED = {"vprintf": "print_nothing", "__assertfail": "assert_failed"}


def label(name: str) -> str:
    return "L_" + identifier(name.strip())


@writes("bra", "uni")
def write_branch(writer: Writer, op: Instruction) -> str:
    return f"goto {label(op.operands[0])};"


@writes("brx", "idx uni")
def write_indexed_branch(writer: Writer, op: Instruction) -> str:
    index, table = op.operands
    cases = " ".join(f"case {k}: goto {label(name)};" for k, name in enumerate(writer.targets[table]))
    return f'switch ({writer.operand(index)}) {{ {cases} default: fail({writer.at}, "branch beyond its table"); }}'


@writes("ret exit", "uni")
def write_return(writer: Writer, op: Instruction) -> str:
    if op.name == "exit":
        return f"exit_thread({writer.at});"
    return "return;"


@writes("trap brkpt")
def write_trap(writer: Writer, op: Instruction) -> str:
    return f'fail({writer.at}, "trap");' if op.name == "trap" else ";"


@writes("call", "uni")
def write_call(writer: Writer, op: Instruction) -> str:
    operands = list(op.operands)
    result = identifier(operands.pop(0)[1:-1].strip()) if operands[0].startswith("(") else "NULL"
    name = operands.pop(0)
    arguments = [identifier(x) for x in elements(operands[0])] if operands else []
    function = PROVIDED.get(name) or writer.functions.get(name)
    if function is None:
        raise Unsupported(f"call of {name}")
    array = f"char* const arguments[] = {{{', '.join([*arguments, 'NULL'])}}};"
    return f"{{ {array} {function}(arguments, {result}, {writer.at}); }}"


__all__ = ["PROVIDED", "Unsupported", "label"]
