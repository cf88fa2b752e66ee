"""Branches, calls and the ends of functions."""

from __future__ import annotations

from .parse import Instruction, Unsupported, elements
from .writer import Writer, identifier, writes

# Functions that the runtime has.
PROVIDED = {"vprintf": "print_nothing", "__assertfail": "assert_failed"}


def label(name: str) -> str:
    return "L_" + identifier(name.strip())


@writes("bra", "uni")
def write_branch(w: Writer, i: Instruction) -> str:
    return f"goto {label(i.operands[0])};"


@writes("brx", "idx uni")
def write_indexed_branch(w: Writer, i: Instruction) -> str:
    index, table = i.operands
    cases = " ".join(f"case {k}: goto {label(name)};" for k, name in enumerate(w.targets[table]))
    return f'switch ({w.operand(index)}) {{ {cases} default: fail({w.at}, "branch beyond its table"); }}'


@writes("ret exit", "uni")
def write_return(w: Writer, i: Instruction) -> str:
    if i.name == "exit":
        return f"exit_thread({w.at});"
    return "return;"


@writes("trap brkpt")
def write_trap(w: Writer, i: Instruction) -> str:
    return f'fail({w.at}, "trap");' if i.name == "trap" else ";"


@writes("call", "uni")
def write_call(w: Writer, i: Instruction) -> str:
    operands = list(i.operands)
    result = identifier(operands.pop(0)[1:-1].strip()) if operands[0].startswith("(") else "NULL"
    name = operands.pop(0)
    arguments = [identifier(x) for x in elements(operands[0])] if operands else []
    function = PROVIDED.get(name) or w.functions.get(name)
    if function is None:
        raise Unsupported(f"call of {name}")
    array = f"char* const arguments[] = {{{', '.join([*arguments, 'NULL'])}}};"
    return f"{{ {array} {function}(arguments, {result}, {w.at}); }}"


__all__ = ["PROVIDED", "Unsupported", "label"]
