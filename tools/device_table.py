"""Write the table of docs/gpu.md, which operation runs where, from the outcome of its probes.

    python tools/device_table.py

The processor's column is tests/test_device_table.py, that of the simulated GPU tests/cuda/cuda_table.py. A real GPU's
is what `bench/gpu_check.sh` left in docs/gpu_results.xml, if it has been run. When a probe fails, nothing is written.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[1]
HARDWARE = ROOT / "docs" / "gpu_results.xml"
MARKED = re.compile(r"(<!-- devices:.*?-->\n).*?(<!-- devices end -->)", re.DOTALL)


def passed(report: Path) -> set[str]:
    """The rows whose probes passed, of a report of pytest."""
    cases = ElementTree.parse(report).iter("testcase")
    named = {case.get("name", ""): not len(case) for case in cases}
    return {name[len("test_row[") : -1] for name, good in named.items() if good and name.startswith("test_row[")}


def run(*arguments: str) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = (sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments)
        if subprocess.run(command, cwd=ROOT).returncode:
            raise SystemExit("nothing was written: a probe failed")
        return passed(report)


def table(processor: set[str], simulated: set[str]) -> str:
    """The table in Markdown."""
    hardware = passed(HARDWARE) if HARDWARE.exists() else set()
    lines: list[tuple[str, ...]] = [("", "CPU", "CUDA (simulated)", "CUDA (hardware)"), ("---",) * 4]
    for row in rows():
        cells = ("yes" if row in where else "" for where in (processor, simulated))
        lines.append((row, *cells, "yes" if row in hardware else "not run yet"))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rows() -> list[str]:
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cuda")]
    from device_probes import PROBES  # type: ignore[import-not-found]

    return list(PROBES)


def main() -> None:
    processor = run("tests/test_device_table.py", "-k", "test_row")
    folder = "tests/cuda"
    simulated = run(
        "--rootdir", folder, "--confcutdir", folder, "-o", "python_files=cuda_*.py", f"{folder}/cuda_table.py"
    )
    path = ROOT / "docs" / "gpu.md"
    text, count = MARKED.subn(rf"\1{table(processor, simulated)}\2", path.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{path} must have the markers of the table once")
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
