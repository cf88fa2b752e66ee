"""Results as a table for people and as JSON for compare.py."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from job import DTYPE_SHORT, OURS
from peak import Kind

FORMAT = 1  # of the JSON file


@dataclass
class Timing:
    """One contender of a case: seconds per operation, one a round."""

    name: str
    side: str
    seconds: list[float]
    work: float
    error: float
    tolerance: float

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Result:
    """One case. Without timings, `note` says why."""

    suite: str
    case: str
    dtype: str
    threads: int
    unit: str = "flop"
    timings: list[Timing] = field(default_factory=list)
    ceiling: Kind | None = None
    ceiling_rates: list[float] = field(default_factory=list)  # best burst of each round
    rounds: int = 0
    idle_rounds: int = 0
    target: str | None = None
    met: bool | None = None
    failed: bool = False
    note: str = ""

    @property
    def key(self) -> str:
        return f"{self.suite} / {self.case} / {self.dtype} / {self.threads} threads"

    @property
    def title(self) -> str:
        return f"{self.case} {DTYPE_SHORT.get(self.dtype, self.dtype)}"

    @property
    def ours(self) -> Timing | None:
        return next((t for t in self.timings if t.side == OURS), None)

    @property
    def peer(self) -> Timing | None:
        return next((t for t in self.timings if t.side != OURS), None)

    def share(self, timing: Timing) -> tuple[float, float] | None:
        """Share of the ceiling: best against best, and median against median."""
        if not self.ceiling_rates:
            return None
        return (
            timing.work / timing.best / max(self.ceiling_rates),
            timing.work / timing.median / statistics.median(self.ceiling_rates),
        )


def ratio(slow: Timing, fast: Timing) -> tuple[float, float]:
    """How many times as long the first takes: best against best, and median against median."""
    return slow.best / fast.best, slow.median / fast.median


# ------------------------------------------------------------------------------------------------
# Text

UNITS = {"flop": "GF/s", "byte": "GB/s"}
HEADER = ["case", "best", "median", "rate", "of peak (median)", "ratio (median)"]
HEADER += ["target", "met", "idle"]


def duration(seconds: float) -> str:
    """Three digits in us, ms or s."""
    for unit, scale in (("us", 1e6), ("ms", 1e3), ("s", 1.0)):
        value = seconds * scale
        if value < 999.5 or unit == "s":
            return f"{value:.{max(0, 2 - digits(value))}f} {unit}"
    raise AssertionError("unreachable")


def digits(value: float) -> int:
    """Digits before the point, less one; 0 for anything below 10."""
    return max(0, math.floor(math.log10(value))) if value > 0 else 0


def rows(results: Sequence[Result]) -> list[list[str]]:
    """The table's cells: a line per case, then one for each other contender."""
    lines = []
    for result in results:
        title = result.title
        if result.threads != 2:
            title += f", {result.threads} thread" + ("s" if result.threads > 1 else "")
        target = [result.target or "", verdict(result)]
        if not result.timings:
            lines.append([title, "-", "-", "", "", "", *target, ""])
            continue
        idle = f"{result.idle_rounds}/{result.rounds}"
        ours, peer = result.ours, result.peer
        for timing in result.timings:
            first = timing is ours
            compared = ""
            if timing.side == OURS and peer is not None:
                best, median = ratio(peer, timing)
                compared = f"{best:.2f}x ({median:.2f})"
            elif timing.side != OURS and ours is not None:
                best, median = ratio(timing, ours)
                compared = "" if timing is peer else f"ours {best:.2f}x ({median:.2f})"
            lines.append(
                [
                    title if first else f"  . {timing.name}",
                    duration(timing.best),
                    duration(timing.median),
                    f"{timing.work / timing.best / 1e9:.1f} {UNITS[result.unit]}",
                    share_cell(result, timing),
                    compared,
                    *(target if first else ["", ""]),
                    idle if first else "",
                ]
            )
    return lines


def share_cell(result: Result, timing: Timing) -> str:
    if result.ceiling is None:
        return ""
    shares = result.share(timing)
    if shares is None:
        return "not measured"
    return f"{100 * shares[0]:.1f} % ({100 * shares[1]:.1f})"


def verdict(result: Result) -> str:
    if result.failed:
        return "FAILED"
    if result.target is None:
        return ""
    return {True: "yes", False: "NO", None: "-"}[result.met]


def print_table(header: list[str], lines: list[list[str]], title: str = "") -> None:
    """With rich on a terminal; otherwise Markdown, which also pastes well."""
    if title:
        print(f"\n{title}")
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            pass
        else:
            table = Table()
            for number, name in enumerate(header):
                table.add_column(name, justify="right" if number else "left")
            for line in lines:
                style = {"NO": "red", "FAILED": "bold red", "yes": "green"}
                mark = next((style[cell] for cell in line if cell in style), None)
                table.add_row(*line, style=mark)
            Console().print(table)
            return
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    ruler = [":" + "-" * (widths[0] - 1), *("-" * (w - 1) + ":" for w in widths[1:])]
    for line in [header, ruler, *lines]:
        first, *others = (cell.ljust(w) for cell, w in zip(line, widths, strict=True))
        others = [cell.strip().rjust(len(cell)) for cell in others]
        print("| " + " | ".join([first, *others]) + " |")


# ------------------------------------------------------------------------------------------------
# Progress


class Progress:
    """A bar on stderr, tqdm's where it is installed; in a log, a line per case."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.text = total, 0, ""
        self.bar: Any = None
        self.terminal = sys.stderr.isatty()
        try:
            from tqdm import tqdm
        except ImportError:
            return
        if not self.terminal:
            return
        self.bar = tqdm(total=total, unit="round", leave=False, dynamic_ncols=True)

    def title(self, text: str) -> None:
        self.text = text
        if self.bar is not None:
            self.bar.set_description(text)
        elif not self.terminal:
            print(f"{100 * self.done // self.total:3d} %  {text}", file=sys.stderr, flush=True)

    def step(self, rounds: int = 1) -> None:
        self.done += rounds
        if self.bar is not None:
            self.bar.update(rounds)
        elif self.terminal:
            line = f"\r{self.done}/{self.total} {self.text:60.60s}"
            print(line, end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.terminal:
            print("\r" + " " * 75 + "\r", end="", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------
# JSON


def save(path: Path, machine: dict[str, Any], settings: dict[str, Any], results: Sequence[Result]) -> None:
    """Write a file that `load` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "format": FORMAT,
        "machine": machine,
        "settings": settings,
        "results": [asdict(result) for result in results],
    }
    path.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def load(path: Path) -> tuple[dict[str, Any], dict[str, Result]]:
    """The machine, and the results by key."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if data.get("format") != FORMAT:
        raise ValueError(f"{path}: format {data.get('format')!r}, expected {FORMAT}")
    results = []
    for entry in data["results"]:
        timings = [Timing(**timing) for timing in entry.pop("timings")]
        results.append(Result(timings=timings, **entry))
    return data["machine"], {result.key: result for result in results}
