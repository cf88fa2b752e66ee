"""Instructions of small fixed cases, counted by callgrind: a check of speed that does not flicker.

    python bench/instruction_counts.py            compare with the committed counts
    python bench/instruction_counts.py --update   write them anew

The counts are those of bench/native/count.cpp, linked with the objects of the newest build (with none, they
are built in build/native). They belong to a compiler: another one's are not compared. valgrind knows no
AVX-512, so the sets are those up to AVX2; the algorithm above the instructions is the same on all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "bench" / "native"
BASELINE = NATIVE / "instruction_counts.json"
ISAS = ("scalar", "avx2")

# The same objects give the same counts but for a few instructions of the C library. What is left for changes
# that are not about speed is less than any lost vectorisation, lost tail or second pass costs.
TOLERANCE = 0.02


class Unavailable(Exception):
    """The counts cannot be made here; the message says what is missing."""


def require() -> None:
    """Raise Unavailable unless everything that counting takes is here."""
    for tool in ("valgrind", "c++", "readelf"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not installed")
    preprocessed = subprocess.run(
        ["c++", "-E", "-x", "c++", "-"],
        input="#include <valgrind/callgrind.h>",
        text=True,
        capture_output=True,
        check=False,
    )
    if preprocessed.returncode != 0:
        raise Unavailable("valgrind/callgrind.h is not installed")
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    if not {"avx2", "fma", "f16c"} <= set(flags.split()):
        raise Unavailable("this processor has no AVX2")


def output_of(*command: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def objects_in(folder: Path) -> list[Path]:
    """The kernels and what calls them, without the bindings."""
    names = ("isa_*.dir", "tegula_native.dir")
    return sorted(path for name in names for path in folder.glob(f"CMakeFiles/{name}/**/*.o"))


def objects() -> list[Path]:
    """Those of a build that knows the newest source; else of build/native, brought up to date."""
    sources = [path for path in (ROOT / "csrc").rglob("*") if path.is_file() and path.parent.name != "bind"]
    newest = max(path.stat().st_mtime for path in [*sources, ROOT / "CMakeLists.txt"])
    for folder in (ROOT / "build").glob("*"):
        found = objects_in(folder)
        whole = any("tegula_native.dir" in str(path) for path in found)
        if whole and max(path.stat().st_mtime for path in found) > newest:
            return found
    if shutil.which("cmake") is None:
        raise Unavailable("cmake is not installed, and no build knows the newest source")
    folder = ROOT / "build" / "native"
    output_of("cmake", f"-S{ROOT}", f"-B{folder}", "-DTEGULA_PYTHON=OFF")
    output_of("cmake", "--build", folder, "--parallel", "2")
    return objects_in(folder)


def compiler_of(paths: list[Path]) -> str:
    """What made the kernels, for example "GCC 12.2.0"."""
    kernels = next(path for path in paths if "isa_avx2.dir" in str(path))
    comment = output_of("readelf", "-p", ".comment", kernels)
    found = re.search(r"(GCC|clang)[^\n]*?(\d+\.\d+\.\d+)", comment)
    if found is None:
        raise Unavailable(f"unknown compiler: {comment.strip()}")
    return f"{found[1]} {found[2]}"


def counts(paths: list[Path], folder: Path) -> dict[str, dict[str, int]]:
    """Instruction set -> case -> instructions, of one run with one thread."""
    driver = folder / "count"
    sources = [NATIVE / "count.cpp", NATIVE / "jobs.cpp"]
    output_of("c++", "-std=gnu++20", "-O1", *sources, *paths, "-pthread", "-o", driver)
    return {isa: counted(driver, isa, folder) for isa in ISAS}


def counted(driver: Path, isa: str, folder: Path) -> dict[str, int]:
    dumps = folder / isa
    dumps.mkdir()
    printed = output_of(
        "valgrind",
        "--tool=callgrind",
        "--instr-atstart=no",
        f"--callgrind-out-file={dumps / 'out'}",
        driver,
        env={"TEGULA_ISA": isa},
    )
    if printed.strip() != isa:
        raise RuntimeError(f"asked for {isa}, but {printed.strip()} ran")
    found = {}
    for dump in dumps.iterdir():
        text = dump.read_text(encoding="utf-8")
        name = re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.MULTILINE)
        total = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
        if name and total:
            found[name[1]] = int(total[1])
    return dict(sorted(found.items()))


def measured() -> tuple[str, dict[str, dict[str, int]]]:
    """The compiler, and the counts of this tree."""
    require()
    paths = objects()
    with tempfile.TemporaryDirectory() as folder:
        return compiler_of(paths), counts(paths, Path(folder))


def differences(old: dict[str, dict[str, int]], new: dict[str, dict[str, int]]) -> list[tuple[str, str, float]]:
    """(set, case, new / old - 1), the largest change first; a case that only one side has counts as infinite."""
    found = []
    for isa in {**old, **new}:
        before, after = old.get(isa, {}), new.get(isa, {})
        for case in {**before, **after}:
            both = case in before and case in after
            found.append((isa, case, after[case] / before[case] - 1 if both else float("inf")))
    return sorted(found, key=lambda entry: -abs(entry[2]))


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--update", action="store_true", help=f"write {BASELINE.relative_to(ROOT)}")
    options = p.parse_args()
    try:
        compiler, now = measured()
    except Unavailable as reason:
        print(f"cannot count: {reason}", file=sys.stderr)
        return 2
    baseline: dict[str, Any] = {"compiler": compiler}
    if BASELINE.exists():
        baseline = json.loads(BASELINE.read_text(encoding="utf-8"))
    changed = 0
    for isa, case, change in differences(baseline.get("counts", {}), now):
        changed += abs(change) > TOLERANCE
        print(f"{isa:7s} {case:26s} {now[isa].get(case, 0):12,d}  {100 * change:+7.2f} %")
    if options.update:
        text = json.dumps({"compiler": compiler, "counts": now}, indent=1)
        BASELINE.write_text(text + "\n", encoding="utf-8")
        print(f"written to {BASELINE.relative_to(ROOT)}, for {compiler}")
        return 0
    if baseline["compiler"] != compiler:
        print(f"counted with {compiler}, compared with {baseline['compiler']}: no verdict", file=sys.stderr)
        return 2
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
