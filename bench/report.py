"""Results as tables for people, and the progress of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from job import OURS
from peers import KNOWN
from result import Result, Timing, ratio
from timing import duration

# ------------------------------------------------------------------------------------------------
# Text

UNITS = {"flop": "GF/s", "byte": "GB/s"}
HEADER = ["case", "best", "median", "rate", "of peak (median)", "ratio (median)"]
HEADER += ["target", "met", "idle"]


def named(result: Result) -> str:
    """The case, with the number of threads where it is not the usual one."""
    if result.threads == 2:
        return result.title
    return f"{result.title}, {result.threads} thread" + ("s" if result.threads > 1 else "")


def rows(results: Sequence[Result]) -> list[list[str]]:
    """The table's cells: a line per case, then one for each other contender."""
    lines = []
    for result in results:
        target = [", ".join(judged.text for judged in result.targets), verdict(result)]
        if not result.timings:
            lines.append([named(result), "-", "-", "", "", "", *target, ""])
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
                    named(result) if first else f"  . {timing.name}",
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


def summary(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the short table: a line per case, a column per peer, targets beside the numbers."""
    sides = [peer for peer in KNOWN if any(r.fastest(peer) or wanted(r, peer) for r in results)]
    lines = []
    for result in results:
        ours = result.ours
        shares = None if ours is None else result.share(ours)
        cells = [named(result), "-" if ours is None else duration(ours.best)]
        cells.append(judged_cell(result, "" if shares is None else f"{100 * shares[0]:.1f} %", "%"))
        for side in sides:
            other = result.fastest(side)
            cells.append(
                judged_cell(result, "" if other is None or ours is None else f"{other.best / ours.best:.2f}x", side)
            )
        other_targets = [judged for judged in result.targets if not judged.text.endswith(("%", *sides))]
        cells.append(", ".join(f"{judged.text} {MARKS[judged.met]}" for judged in other_targets))
        lines.append(cells)
    return ["case", "best", "of peak", *sides, "other targets"], lines


def wanted(result: Result, side: str) -> bool:
    return any(judged.text.endswith(f"x {side}") for judged in result.targets)


def judged_cell(result: Result, measured: str, what: str) -> str:
    """A number with its target; "-" where it was not measured."""
    target = next((judged for judged in result.targets if judged.text.endswith(what)), None)
    if target is None:
        return measured or "-"
    bound = target.text.removesuffix(what).rstrip()
    return f"{measured or '-'} ({bound} {MARKS[target.met]})"


MARKS = {True: "yes", False: "NO", None: "-"}


def share_cell(result: Result, timing: Timing) -> str:
    if result.ceiling is None:
        return ""
    shares = result.share(timing)
    if shares is None:
        return "not measured"
    return f"{100 * shares[0]:.1f} % ({100 * shares[1]:.1f})"


def verdict(result: Result) -> str:
    """One mark for each target."""
    return "FAILED" if result.failed else ", ".join(MARKS[judged.met] for judged in result.targets)


def markdown(header: list[str], lines: list[list[str]], title: str = "") -> str:
    """A Markdown table whose columns also line up as plain text."""
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    ruler = [":" + "-" * (widths[0] - 1), *("-" * (w - 1) + ":" for w in widths[1:])]
    text = [f"\n{title}\n"] if title else []
    for line in [header, ruler, *lines]:
        first, *others = (cell.ljust(w) for cell, w in zip(line, widths, strict=True))
        others = [cell.strip().rjust(len(cell)) for cell in others]
        text.append("| " + " | ".join([first, *others]) + " |")
    return "\n".join(text)


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
                text = " ".join(line)
                style = "red" if "NO" in text or "FAILED" in text else "green" if "yes" in text else None
                table.add_row(*line, style=style)
            Console().print(table)
            return
    print(markdown(header, lines))


# ------------------------------------------------------------------------------------------------
# Progress


class Progress:
    """A bar on stderr, tqdm's where it is installed; in a log, a line per case and percent."""

    def __init__(self, total: int, unit: str) -> None:
        self.total, self.done, self.text = total, 0, ""
        self.logged = -1
        self.bar: Any = None
        self.terminal = sys.stderr.isatty()
        try:
            from tqdm import tqdm
        except ImportError:
            return
        if not self.terminal:
            return
        self.bar = tqdm(total=total, unit=unit, leave=False, dynamic_ncols=True)

    def title(self, text: str) -> None:
        self.text = text
        if self.bar is not None:
            self.bar.set_description(text)
        elif not self.terminal and self.percent() > self.logged:
            self.logged = self.percent()
            print(f"{self.logged:3d} %  {text}", file=sys.stderr, flush=True)

    def percent(self) -> int:
        return 100 * self.done // max(self.total, 1)

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
