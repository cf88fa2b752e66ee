"""Registers, stack and static shared memory of every kernel for every target, as a table to commit.

    python tests/cuda_sim/ptxas_table.py [--write] [MODULE.so]

Without a module, the kernels are compiled here, which takes minutes the first time. A kernel that suddenly takes
more registers or a stack is slower on a GPU that no test has: a changed table shows it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cuda_sim.cubins import TARGETS, Resources, compile_fatbins, module_fatbins, resources_of

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("ptxas_table.txt")
TOOLKIT = "13.0"
NOTE = f"registers of a thread + bytes of stack / bytes of static shared memory, by nvcc {TOOLKIT}"
COLUMN = 15


def sources() -> list[Path]:
    return sorted((ROOT / "csrc").rglob("*.cu"))


def measure(fatbins: Iterable[Path]) -> dict[tuple[str, str], Resources]:
    found = {}
    for fatbin in fatbins:
        found.update(resources_of(fatbin))
    return {key: value for key, value in found.items() if key[1] in TARGETS}


def cell(resources: Resources | None) -> str:
    if resources is None:
        return "-"
    stack = f"+{resources.stack}" if resources.stack else ""
    shared = f"/{resources.shared}" if resources.shared else ""
    return f"{resources.registers}{stack}{shared}"


def render(found: dict[tuple[str, str], Resources]) -> str:
    kernels = sorted({kernel for kernel, _ in found})
    width = max(map(len, kernels), default=0)
    lines = [f"# {NOTE}", "# " + "kernel".ljust(width) + "".join(f"sm_{target}".rjust(COLUMN) for target in TARGETS)]
    for kernel in kernels:
        cells = (cell(found.get((kernel, target))) for target in TARGETS)
        lines.append("  " + kernel.ljust(width) + "".join(text.rjust(COLUMN) for text in cells))
    return "\n".join(lines) + "\n"


def cells_of(table: str, targets: Collection[str]) -> dict[tuple[str, str], str]:
    """The cells of a table, for some targets, that are not empty."""
    found = {}
    for line in table.splitlines():
        if line.startswith("#"):
            continue
        kernel, *cells = line.split()
        pairs = zip(TARGETS, cells, strict=True)
        found.update({(kernel, target): text for target, text in pairs if target in targets and text != "-"})
    return found


def changes(committed: str, measured: str, targets: Collection[str] = TARGETS) -> list[str]:
    """What two tables say differently of some targets, with - and +."""
    before, after = cells_of(committed, targets), cells_of(measured, targets)
    removed = [f"- {kernel} sm_{target} {text}" for (kernel, target), text in before.items()]
    added = [f"+ {kernel} sm_{target} {text}" for (kernel, target), text in after.items()]
    return sorted({*removed, *added} - {f"- {line[2:]}" for line in added} - {f"+ {line[2:]}" for line in removed})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", nargs="?", type=Path, help="a built tegula._cuda")
    parser.add_argument("--write", action="store_true", help="replace the committed table")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.module:
            fatbins = module_fatbins(options.module, Path(folder))
        else:
            fatbins = compile_fatbins(sources(), jobs=options.jobs)
        table = render(measure(fatbins))
    print(table, end="")
    if options.write:
        TABLE.write_text(table, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
