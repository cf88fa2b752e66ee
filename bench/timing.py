"""How calls are timed, so that two implementations can be compared on a machine with neighbours.

Three habits, each against one thing that spoils such comparisons:

* contenders take turns (A B A B ...), so that a slow minute of the machine hits all of them;
* a round starts when the machine is idle, or after a bounded wait;
* a short gap stands before every call, because thread pools spin for a while after their work,
  and a spinning pool takes the cores of the next contender.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

GAP = 0.004  # longer than libgomp and most other pools spin
IDLE_WINDOW = 0.04  # four ticks of the usual 100 Hz clock of /proc/stat
SAMPLE = 0.005  # how long one sample of a looped call should last


@dataclass(frozen=True)
class Timed:
    """Something to time: a call does `operations` operations, and a sample makes `loops` calls."""

    call: Callable[[], Any]
    operations: int = 1
    loops: int = 1


@dataclass
class Samples:
    """Seconds per operation, one entry a round."""

    seconds: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def busy_ticks() -> tuple[int, int] | None:
    """(busy, total) clock ticks of all cores since boot; None where there is no /proc/stat."""
    try:
        with open("/proc/stat", encoding="ascii") as stat:
            # user nice system idle iowait irq softirq steal
            ticks = [int(word) for word in stat.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    if len(ticks) < 5:
        return None
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def wait_until_idle(bound: float) -> bool:
    """Wait until the whole machine did next to nothing for a moment; False after `bound` seconds.

    Where idleness cannot be seen this waits one window and says True.
    """
    deadline = time.monotonic() + bound
    while True:
        before = busy_ticks()
        time.sleep(IDLE_WINDOW)
        after = busy_ticks()
        if before is None or after is None:
            return True
        busy, total = after[0] - before[0], after[1] - before[1]
        # One tick is the resolution; many cores always have a little to do.
        if busy <= max(1, total // 50):
            return True
        if time.monotonic() >= deadline:
            return False


def loops_for(call: Callable[[], Any], seconds: float = SAMPLE) -> int:
    """How many calls fill one sample, for calls too short for the clock."""
    call()
    shortest = min(_seconds(Timed(call)) for _ in range(5))
    return max(1, min(100_000, round(seconds / max(shortest, 1e-8))))


def interleave(
    contenders: Sequence[Timed],
    rounds: int,
    *,
    idle_bound: float = 3.0,
    gap: float = GAP,
    patience: float = math.inf,
    beside: Callable[[], None] | None = None,
    progress: Callable[[], None] | None = None,
) -> tuple[list[Samples], int]:
    """Time the contenders in turns.

    Parameters
    ----------
    contenders : sequence of Timed
        In the order of their turns. Each runs once before anything counts.
    rounds : int
        Samples per contender.
    idle_bound : float
        How many seconds a round may wait for an idle machine.
    gap : float
        Seconds of sleep before each sample.
    patience : float
        A contender other than the first, once it has two samples and took this many seconds, has no
        further turns.
    beside : callable, optional
        Called once a round after the contenders: measures the machine under the same conditions.
    progress : callable, optional
        Called after each round.

    Returns
    -------
    (list of Samples, int)
        In the order given, and the number of rounds that found the machine idle.
    """
    samples = [Samples() for _ in contenders]
    for timed in contenders:
        timed.call()
    idle_rounds = 0
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            idle_rounds += wait_until_idle(idle_bound)
            for timed, kept in zip(contenders, samples, strict=True):
                spent = sum(kept.seconds) * timed.operations * timed.loops
                if kept is not samples[0] and len(kept.seconds) >= 2 and spent > patience:
                    continue
                time.sleep(gap)
                kept.seconds.append(_seconds(timed))
            if beside is not None:
                time.sleep(gap)
                beside()
            if progress is not None:
                progress()
    finally:
        if collecting:
            gc.enable()
    return samples, idle_rounds


def _seconds(timed: Timed) -> float:
    call = timed.call
    turns = range(timed.loops)
    start = time.perf_counter()
    for _ in turns:
        call()
    return (time.perf_counter() - start) / (timed.loops * timed.operations)


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
