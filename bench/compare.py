"""Compare two files of bench/run.py.

    python bench/compare.py before.json after.json

The columns with an x are times of the second run over those of the first: above 1 is slower. A
change is marked when best and median both moved the same way by more than the noise of the two
runs; "machine" means that the ceiling (or, without one, the peer) moved along.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from pathlib import Path

import report
from job import OURS
from result import Result, Timing, load
from timing import duration

FLOOR = 0.03  # two quiet runs of the same code differ by this much

HEADER = ["case", "a best", "b best", "time", "time, median", "noise", "of peak a", "of peak b"]
HEADER += ["ceiling", "peer", "change"]


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("a", type=Path, help="the run to compare with")
    p.add_argument("b", type=Path, help="the newer run")
    options = p.parse_args()
    try:
        (machine_a, a), (machine_b, b) = load(options.a), load(options.b)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return 2
    for key in machine_a.keys() | machine_b.keys():
        if machine_a.get(key) != machine_b.get(key):
            print(f"{key}: {machine_a.get(key)} -> {machine_b.get(key)}")
    shared = [key for key in a if key in b]
    lines = [line for key in shared for line in compare(a[key], b[key])]
    if lines:
        report.print_table(HEADER, lines)
    for name, only in (("first", a.keys() - b.keys()), ("second", b.keys() - a.keys())):
        for key in sorted(only):
            print(f"only in the {name}: {key}")
    return 0


def compare(a: Result, b: Result) -> list[list[str]]:
    """A line for each of our contenders that both runs have."""
    lines = []
    for old in a.timings:
        new = next((t for t in b.timings if (t.side, t.name) == (old.side, old.name)), None)
        if new is None or old.side != OURS:
            continue
        best, median = new.best / old.best, new.median / old.median
        ceiling, peer = ceiling_change(a, b), peer_change(a, b)
        noise = max(FLOOR, spread(old) + spread(new))
        lines.append(
            [
                a.title if old is a.ours else f"  . {old.name}",
                duration(old.best),
                duration(new.best),
                f"{best:.3f}x",
                f"{median:.3f}x",
                f"{100 * noise:.0f} %",
                peak_share(a, old),
                peak_share(b, new),
                "" if ceiling is None else f"{ceiling:.3f}x",
                "" if peer is None else f"{peer:.3f}x",
                mark(best, median, noise, ceiling if ceiling is not None else peer),
            ]
        )
    return lines


def spread(timing: Timing) -> float:
    """How far the faster half of the samples lies from the best one, as a share of it."""
    ordered = sorted(timing.seconds)
    quick = ordered[: (len(ordered) + 1) // 2]
    return statistics.median(quick) / ordered[0] - 1


def ceiling_change(a: Result, b: Result) -> float | None:
    """Time that the same work at the ceiling takes, b over a."""
    if not a.ceiling_rates or not b.ceiling_rates:
        return None
    return max(a.ceiling_rates) / max(b.ceiling_rates)


def peer_change(a: Result, b: Result) -> float | None:
    if a.peer is None or b.peer is None or a.peer.name != b.peer.name:
        return None
    return b.peer.best / a.peer.best


def peak_share(result: Result, timing: Timing) -> str:
    shares = result.share(timing)
    return "" if shares is None else f"{100 * shares[0]:.1f} %"


def mark(best: float, median: float, noise: float, control: float | None) -> str:
    """One word for the change: faster, slower, machine when the control explains it, or none."""
    moved = [math.log(best), math.log(median)]
    threshold = math.log1p(noise)
    if not (min(moved) > threshold or max(moved) < -threshold):
        return ""
    if control is not None and abs(moved[0] - math.log(control)) <= threshold:
        return "machine"
    return "slower" if moved[0] > 0 else "faster"


if __name__ == "__main__":
    sys.exit(main())
