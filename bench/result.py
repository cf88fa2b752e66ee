"""What a run leaves behind: samples, what they are held against, and the JSON file that holds both."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grid import GridResult
from job import DTYPE_SHORT, OURS
from peak import Kind
from timing import Samples

FORMAT = 2  # of the JSON file


@dataclass(kw_only=True)
class Timing(Samples):
    """One contender of a case."""

    name: str
    side: str
    work: float
    error: float
    tolerance: float


@dataclass
class Judged:
    """A target and whether it was met; None: no verdict."""

    text: str
    met: bool | None = None


@dataclass
class Result:
    """One case. Without timings, `note` says why."""

    suite: str
    case: str
    dtype: str
    threads: int
    isa: str
    unit: str = "flop"
    timings: list[Timing] = field(default_factory=list)
    ceiling: Kind | None = None
    ceiling_rates: list[float] = field(default_factory=list)  # best burst of each round
    intensity: float = 0.0  # operations a byte; 0: not in the plot
    rounds: int = 0
    idle_rounds: int = 0
    targets: list[Judged] = field(default_factory=list)
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

    def fastest(self, side: str) -> Timing | None:
        """The best of one side's ways."""
        return min((t for t in self.timings if t.side == side), key=lambda t: t.best, default=None)

    @property
    def peer(self) -> Timing | None:
        """The fastest way of the first side that is not ours."""
        first = next((t for t in self.timings if t.side != OURS), None)
        return None if first is None else self.fastest(first.side)

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


def save(
    path: Path,
    machine: dict[str, Any],
    settings: dict[str, Any],
    results: Sequence[Result],
    grid: Sequence[GridResult] = (),
) -> None:
    """Write a file that `load` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "format": FORMAT,
        "machine": machine,
        "settings": settings,
        "results": [asdict(result) for result in results],
        "grid": [asdict(result) for result in grid],
    }
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> tuple[dict[str, Any], dict[str, Result]]:
    """The machine, and the results by key; the grid is left out."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if data.get("format") != FORMAT:
        raise ValueError(f"{path}: format {data.get('format')!r}, expected {FORMAT}")
    results = []
    for entry in data["results"]:
        timings = [Timing(**timing) for timing in entry.pop("timings")]
        targets = [Judged(**judged) for judged in entry.pop("targets")]
        results.append(Result(timings=timings, targets=targets, **entry))
    return data["machine"], {result.key: result for result in results}
