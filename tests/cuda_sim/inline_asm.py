"""Finds inline asm in CUDA sources and what is wrong with it.

A compiler may move an asm statement that does not say what it touches, which no simulator sees: it runs what the
compiler made. So every statement is volatile, says "memory" where it touches memory or waits for others, and stands
in the headers that hold nothing else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ALLOWED = re.compile(r"^ptx(_\w+)?\.cuh$")
# Instructions that access memory, order accesses or wait. What wgmma.mma_async reads, the fence before it and the wait
# behind it keep in place.
TOUCHES_MEMORY = re.compile(
    r"\b(?:ld|st|atom|red|cp|ldmatrix|stmatrix|bar|barrier|fence|membar|mbarrier|prefetch|nanosleep|"
    r"wgmma\.(?:fence|commit_group|wait_group)|griddepcontrol|tcgen05|discard|applypriority|multimem|clusterlaunchcontrol)\b\.?"
)


class Statement(NamedTuple):
    file: str
    line: int
    text: str
    instructions: str  # its template
    is_volatile: bool
    clobbers: list[str]


def statements(file: str, text: str) -> list[Statement]:
    """The asm statements of a source; comments count as blanks."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.DOTALL)
    found = []
    for match in re.finditer(r"\b(?:asm|__asm__)\b\s*(volatile\b|__volatile__\b)?[^\n(]*\(", text):
        body = text[match.end() : closing(text, match.end())]
        template, *lists = split_colons(body)
        clobbers = re.findall(r'"([^"]*)"', lists[2]) if len(lists) > 2 else []
        instructions = re.sub(r"\\[nt]", " ", "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', template)))
        line = text.count("\n", 0, match.start()) + 1
        found.append(Statement(file, line, body.strip(), instructions, match[1] is not None, clobbers))
    return found


def closing(text: str, place: int) -> int:
    """The place of the parenthesis that closes the one before `place`; those in strings do not count."""
    depth, in_string = 1, False
    while depth:
        character = text[place]
        if character == '"' and text[place - 1] != "\\":
            in_string = not in_string
        elif not in_string:
            depth += (character == "(") - (character == ")")
        place += 1
    return place - 1


def split_colons(body: str) -> list[str]:
    """Template, outputs, inputs and clobbers."""
    parts, depth, in_string = [""], 0, False
    for place, character in enumerate(body):
        if character == '"' and body[place - 1] != "\\":
            in_string = not in_string
        elif not in_string:
            depth += (character in "([{") - (character in ")]}")
        if character == ":" and depth == 0 and not in_string:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def faults_of(statement: Statement) -> list[str]:
    place = f"{statement.file}:{statement.line}"
    faults = []
    if not ALLOWED.match(Path(statement.file).name):
        faults.append(f"{place}: inline asm belongs into csrc/cuda/ptx.cuh")
    if not statement.is_volatile:
        faults.append(f"{place}: asm that is not volatile")
    if TOUCHES_MEMORY.search(statement.instructions) and "memory" not in statement.clobbers:
        faults.append(f'{place}: asm touches memory or waits, but does not clobber "memory"')
    return faults


def faults_in(folder: Path) -> list[str]:
    found = []
    for path in sorted([*folder.rglob("*.cu"), *folder.rglob("*.cuh")]):
        for statement in statements(str(path.relative_to(folder)), path.read_text(encoding="utf-8")):
            found += faults_of(statement)
    return found
