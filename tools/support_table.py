"""Write the table "what works where" into README.md and docs/support.md, from the outcome of its tests.

    python tools/support_table.py

Each cell is a test of `tests/test_support_table.py`: yes where it passed, empty where there is none. When a test fails
or is skipped, nothing is written.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"(<!-- support:.*?-->\n).*?(<!-- support end -->)", re.DOTALL)


def outcomes() -> list[tuple[str, str]]:
    """Run the probes, compiled as users compile, and return the (feature, way) pairs in order."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "tests/test_support_table.py",
            "-k",
            "test_probe",
            f"--junitxml={report}",
        ]
        environment = {**os.environ, "TEGULA_TEST_BACKEND": "inductor"}
        subprocess.run(command, cwd=ROOT, env=environment)
        cases = list(ElementTree.parse(report).iter("testcase"))
    names = [re.fullmatch(r"test_probe\[(.*), (.*?)\]", case.get("name", "")) for case in cases]
    not_passed = [case.get("name") for case in cases if len(case)]
    if not_passed or not cases or None in names:
        raise SystemExit(
            f"nothing was written; these did not pass: {', '.join(map(str, not_passed)) or 'no tests ran'}"
        )
    return [(name[1], name[2]) for name in names if name is not None]


def table(passed: list[tuple[str, str]], grouped: bool) -> str:
    """Return the table in Markdown: a column for each way, a row for each feature or for all that work alike."""
    ways = list(dict.fromkeys(way for _, way in passed))
    features = list(dict.fromkeys(feature for feature, _ in passed))
    cells = {feature: tuple("yes" if (feature, way) in passed else "" for way in ways) for feature in features}
    rows = list(cells.items())
    if grouped:
        alike = sorted(dict.fromkeys(cells.values()), key=lambda row: -row.count("yes"))
        rows = [(", ".join(feature for feature in features if cells[feature] == row), row) for row in alike]
    lines = [("", *ways), ("---",) * (len(ways) + 1), *((name, *row) for name, row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    passed = outcomes()
    for name, grouped in (("README.md", True), ("docs/support.md", False)):
        path = ROOT / name
        text = rf"\1{table(passed, grouped)}\2"
        written, count = MARKED.subn(text, path.read_text(encoding="utf-8"))
        if count != 1:
            raise SystemExit(f"{name} must have the markers of the table once, found {count} times")
        path.write_text(written, encoding="utf-8")
        print(f"wrote the table into {name}")


if __name__ == "__main__":
    main()
