"""Measure tegula against the machine's own limits and against other libraries.

    python bench/run.py                          every case, 2 threads
    python bench/run.py --suite forward --quick  one suite, few rounds
    python bench/run.py --tiny                   does the benchmark itself work? tiny shapes

Every case is checked against a float64 reference before it is timed. bench/README.md explains the
numbers.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grid
import grid_cases
import numpy as np
import peers as known_peers
import report
import roofline
from job import Case, Context
from measure import Discipline, distrust, measure
from peak import TITLES, Ceilings, Kind
from report import Progress
from result import Result, save
from suites import SUITES, matches, selected
from timing import usable_cores


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    try:
        import tegula as tg
    except ImportError as error:
        print(f"tegula cannot be imported ({error}); run `pip install .` first", file=sys.stderr)
        return 2
    if options.isa:
        try:
            tg.set_isa(options.isa)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
    cases = selected(options.suite, options.only)
    shapes = grid_shapes(options)
    if not cases and not shapes:
        print(f"no case in suite {options.suite!r} contains {options.only!r}", file=sys.stderr)
        return 2
    peers, missing = known_peers.installed([name for name in options.peers.split(",") if name])
    context = Context(tg, Ceilings(tg.config()["isa"]["active"]), peers, options.threads)
    gc.freeze()  # what the libraries made lives on; looking through it before every case takes long
    machine = describe(context, missing)
    for key, value in machine.items():
        print(f"{key:14s} {value}")
    sys.stdout.flush()

    results: list[Result] = []
    compared: list[grid.GridResult] = []
    interrupted = False
    try:
        run_cases(cases, context, options, results)
        run_grid(shapes, context, options, compared)
    except KeyboardInterrupt:
        print("\ninterrupted; this is what was measured", file=sys.stderr)
        interrupted = True

    distrust(results)
    text = show(results, compared)
    if options.json is not None:
        settings = {"threads": options.threads, "repeat": options.repeat, "tiny": options.tiny}
        save(options.json, machine, settings, results, compared)
        facts = [f"- {key}: {value}" for key, value in machine.items()]
        options.json.with_suffix(".md").write_text("\n".join([*facts, *text]) + "\n", encoding="utf-8")
        picture = options.json.with_suffix(".png")
        missing_plot = roofline.save(picture, results, context.ceilings, options.threads)
        print(f"written to {options.json} and .md" + (f"; no plot: {missing_plot}" if missing_plot else " and .png"))
    failed = any(r.failed for r in results) or any(r.failed for r in compared)
    return 130 if interrupted else int(failed)


def run_cases(
    cases: Sequence[tuple[str, Case]], context: Context, options: argparse.Namespace, results: list[Result]
) -> None:
    """Fill `results`, so that what was measured before an interruption is there."""
    bound = 0.0 if options.tiny else 0.3 if options.quick else 3.0
    discipline = Discipline(options.repeat, idle_bound=bound)
    progress = Progress(len(cases) * options.repeat, "round")
    try:
        for number, (suite, case) in enumerate(cases, start=1):
            progress.title(f"{case.name} {case.dtype}")
            sized = case.tiny() if options.tiny else case
            result = measure(suite, sized, context, discipline, progress.step)
            if options.tiny:
                result.case = f"{case.name}, tiny"  # cases of one tiny size stay apart
            results.append(result)
            progress.step(number * options.repeat - progress.done)  # of a case that was not timed
    finally:
        progress.close()


def grid_shapes(options: argparse.Namespace) -> list[grid_cases.GridCase]:
    """The grid's cases of this run; tiny: every fortieth."""
    if options.suite not in ("grid", "all"):
        return []
    found = [case for case in grid_cases.cases() if matches(options.only, case)]
    return found[::40] if options.tiny else found


def run_grid(
    shapes: Sequence[grid_cases.GridCase],
    context: Context,
    options: argparse.Namespace,
    compared: list[grid.GridResult],
) -> None:
    if not any(peer.name == "torch" for peer in context.peers):
        return
    seconds = 0.02 if options.tiny else 0.2 if options.quick else grid.SECONDS
    progress = Progress(len(shapes), "shape")
    try:
        for result in grid.run(shapes, context, context.torch(), seconds):
            compared.append(result)
            progress.title(result.title)
            progress.step()
    finally:
        progress.close()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    def count(text: str) -> int:
        if int(text) < 1:
            raise argparse.ArgumentTypeError("must be at least 1")
        return int(text)

    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--suite", choices=[*SUITES, "grid", "all"], default="all")
    p.add_argument("--only", default="", metavar="TEXT", help="cases whose name or dtype has this")
    p.add_argument("--threads", type=count, default=2)
    p.add_argument("--repeat", type=count, metavar="N", help="rounds (11; quick and tiny: 3)")
    p.add_argument("--quick", action="store_true", help="few rounds, little waiting")
    p.add_argument("--tiny", action="store_true", help="tiny shapes: does it all work?")
    p.add_argument("--isa", default="", metavar="NAME", help="pin the instruction set")
    known = ",".join(known_peers.KNOWN)
    p.add_argument("--peers", default=known, help="comma-separated, '' for none (%(default)s)")
    p.add_argument(
        "--json",
        type=Path,
        metavar="PATH",
        help="where the samples go (bench/results/<date and time>.json; tiny: nowhere)",
    )
    p.add_argument("--no-json", action="store_true", help="write no file")
    options = p.parse_args(argv)
    unknown = set(filter(None, options.peers.split(","))) - set(known_peers.KNOWN)
    if unknown:
        p.error(f"unknown peers {sorted(unknown)}; known: {sorted(known_peers.KNOWN)}")
    if options.no_json:
        options.json = None
    elif options.json is None and not options.tiny:
        now = datetime.datetime.now().strftime("%Y-%m-%dT%H%M%S")
        options.json = Path(__file__).resolve().parent / "results" / f"{now}.json"
    options.repeat = options.repeat or (3 if options.quick or options.tiny else 11)
    return options


def describe(context: Context, missing: dict[str, str]) -> dict[str, Any]:
    """What someone needs to know to read the numbers, or to compare them with others."""
    config = context.tg.config()
    facts = {
        "processor": processor(),
        "cores": usable_cores(),
        "system": platform.platform(),
        "tegula": f"{config['version']}, {config['isa']['active']}, {config['compiler']}",
        "python": f"{platform.python_version()}, NumPy {np.__version__}",
        "threads": context.threads,
        "ceilings": context.ceilings.reason or "measured beside every case",
    }
    for peer in context.peers:
        facts[peer.name] = peer.version
    for name in missing:
        facts[name] = "not installed: nothing to compare with"
    return facts


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def show(results: Sequence[Result], compared: Sequence[grid.GridResult]) -> list[str]:
    """Print everything; returns it as Markdown, the short table first."""
    text = []

    def table(header: list[str], lines: list[list[str]], title: str) -> None:
        report.print_table(header, lines, title)
        text.append(report.markdown(header, lines, title))

    def line(words: str) -> None:
        print(words)
        text.append(words)

    for suite in SUITES:
        mine = [result for result in results if result.suite == suite]
        if mine:
            table(report.HEADER, report.rows(mine), suite)
        for result in mine:
            if result.note:
                line(f"\n  {result.title}: {result.note}")
    if results:
        table(*report.summary(results), "summary")
    if compared:
        table(*grid.table(compared), "grid, the smallest ratios first")
        for words in grid.notes(compared):
            line(f"\n{words}")
    line("")
    rates: dict[tuple[Kind, int, str], list[float]] = {}
    for result in results:
        if result.ceiling is not None and result.ceiling_rates:
            rates.setdefault((result.ceiling, result.threads, result.isa), []).extend(result.ceiling_rates)
    for (kind, threads, isa), values in rates.items():
        unit = report.UNITS["byte" if kind in ("read", "copy", "write") else "flop"]
        line(
            f"ceiling, {TITLES[kind]}, {isa}, {threads} thread{'s' * (threads > 1)}: "
            f"best {max(values) / 1e9:.1f}, median {statistics.median(values) / 1e9:.1f} {unit}"
        )
    verdicts = [judged.met for result in results for judged in result.targets]
    judged_ones = [met for met in verdicts if met is not None]
    if judged_ones:
        line(f"targets met: {sum(judged_ones)} of {len(judged_ones)}")
    if len(judged_ones) < len(verdicts):
        line(f"targets without a verdict: {len(verdicts) - len(judged_ones)}")
    return text


if __name__ == "__main__":
    sys.exit(main())
