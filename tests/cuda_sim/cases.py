"""Kernels with planted faults: what their sources say about them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

KERNELS = Path(__file__).parent / "kernels"
USUAL_LAUNCH = (1, 64, 64)  # blocks, threads, floats


class Case(NamedTuple):
    """A kernel, its launch, and the errors that it must cause, by line; none where it must run."""

    file: str
    kernel: str
    blocks: int
    threads: int
    floats: int
    errors: dict[int, str]

    def allows(self, message: str) -> bool:
        """Whether it is one of the errors, at the line of that error."""
        return any(re.search(text, message) and f"{self.file}:{line}" in message for line, text in self.errors.items())

    def names(self, message: str) -> bool:
        """Whether it is one of the errors, at any line."""
        return any(re.search(text, message) for text in self.errors.values())


def cases_of(file: str) -> list[Case]:
    found: list[Case] = []
    launch, errors = USUAL_LAUNCH, dict[int, str]()
    for number, line in enumerate((KERNELS / file).read_text(encoding="utf-8").splitlines(), 1):
        if match := re.match(r"// launch: (\d+) (\d+) (\d+)", line):
            launch = int(match[1]), int(match[2]), int(match[3])
        elif match := re.match(r"KERNEL (\w+)\(", line):
            errors = {}
            found.append(Case(file, match[1], *launch, errors))
            launch = USUAL_LAUNCH
        if match := re.search(r"// expect: (.+)", line):
            errors[number] = match[1]
    return found
