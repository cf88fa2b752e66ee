"""The roofline plot: how much of what the machine allows every case reaches.

A case that does I operations per byte can run no faster than the smaller of the compute peak and I times
the memory's rate. x is I, y the share of the compute peak; the roofs are what this run measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from job import DTYPE_SHORT
from peak import Ceilings, Kind
from result import Result

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")  # told apart by everyone
MARKERS = {"float32": "o", "bfloat16": "s", "bool": "^"}


def best_rate(results: Sequence[Result], kind: Kind, ceilings: Ceilings, threads: int) -> float | None:
    """The highest rate of the run; measured now where no case needed it."""
    rates = [
        rate
        for result in results
        if (result.ceiling, result.threads, result.isa) == (kind, threads, ceilings.isa)
        for rate in result.ceiling_rates
    ]
    return max(rates or ceilings.sample(kind, threads), default=None)


def save(path: Path, results: Sequence[Result], ceilings: Ceilings, threads: int) -> str | None:
    """Write the plot as PNG. Returns why there is none."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        return "matplotlib is not installed"
    memory = best_rate(results, "read", ceilings, threads)
    peaks = {dtype: best_rate(results, ceilings.compute_kind(dtype), ceilings, threads) for dtype in MARKERS}
    if memory is None or peaks["float32"] is None:
        return ceilings.reason or "the ceilings could not be measured"
    points = [(r, *point) for r in results if (point := placed(r, results, ceilings, threads))]
    if not points:
        return "no case has a place in it"

    figure, axes = plt.subplots(figsize=(10, 6.2), layout="constrained")
    low = min(x for _, x, _ in points) / 2
    high = max(x for _, x, _ in points) * 2
    bottom = min(y for _, _, y in points) / 2
    for dtype, style in (("float32", "-"), ("bfloat16", "--")):
        peak = peaks[dtype]
        if peak is None:
            continue
        knee = peak / memory
        label = f"{DTYPE_SHORT[dtype]}: {peak / 1e9:.0f} GF/s, {memory / 1e9:.0f} GB/s read"
        xs = sorted({low, min(max(knee, low), high), high})
        axes.plot(xs, [100 * min(1.0, x / knee) for x in xs], style, color="#444444", linewidth=1.2, label=label)
    suites = list(dict.fromkeys(result.suite for result in results))
    for suite, colour in zip(suites, COLOURS, strict=False):
        for dtype, marker in MARKERS.items():
            mine = [(x, 100 * y) for r, x, y in points if (r.suite, r.dtype) == (suite, dtype)]
            if mine:
                axes.scatter(
                    [x for x, _ in mine],
                    [y for _, y in mine],
                    s=46,
                    marker=marker,
                    color=colour,
                    edgecolors="white",
                    linewidths=0.6,
                    zorder=3,
                    label=f"{suite}, {DTYPE_SHORT.get(dtype, dtype)}",
                )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(100 * bottom, 140),
        xlabel="arithmetic intensity: operations per byte that has to move",
        ylabel="share of the compute peak of the type, percent",
        title=f"{ceilings.isa}, {threads} thread{'s' * (threads > 1)}",
    )
    axes.set_xticks(*ticks(low, high))
    axes.set_yticks(*ticks(100 * bottom, 100))
    axes.minorticks_off()
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, loc="lower right", framealpha=0.95)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return None


def ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """The numbers 1, 2 and 5 times powers of ten in a range, of a wide one only the powers, and their labels."""
    digits = (1, 2, 5) if high / low < 1000 else (1,)
    numbers = [digit * 10.0**power for power in range(-4, 7) for digit in digits]
    inside = [number for number in numbers if low <= number <= high]
    return inside, [f"{number:g}" for number in inside]


def placed(result: Result, results: Sequence[Result], ceilings: Ceilings, threads: int) -> tuple[float, float] | None:
    """Intensity and share of the compute peak of the case's own instruction set; None without a place."""
    ours = result.ours
    if ours is None or not result.intensity or result.threads != threads:
        return None
    own = ceilings.of(result.isa)
    peak = best_rate(results, own.compute_kind(result.dtype), own, threads)
    if not peak:
        return None
    rate = ours.work / ours.best
    operations = rate if result.unit == "flop" else rate * result.intensity
    return result.intensity, operations / peak
