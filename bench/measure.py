"""From a case to a result: build the arrays, check every contender, time them in turns."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from job import OURS, Case, Check, Contender, Context, Job, SkipCase
from peak import Kind
from peers import Peer, SkipPeer
from result import Judged, Result, Timing
from timing import Timed, interleave, loops_for

STATED_THREADS = 2  # the machine that the targets in suites.py are stated for
STATED_ISAS = {"bfloat16": ("avx512bf16",)}
STATED_ISAS_OTHERS = ("avx512", "avx512bf16")

ABOVE = 1.1  # a share beyond this: the machine was busy while its ceiling was measured
STEADY = 0.93  # ceilings of one run on a quiet machine lie closer together than this
COMPUTE = ("fma", "bf16dot")  # memory is shared with neighbours: its rate is never steady
PATIENCE = 5.0  # seconds for all samples of a contender that is not ours


@dataclass(frozen=True)
class Discipline:
    """How many rounds, and how long one may wait for an idle machine."""

    rounds: int
    idle_bound: float


def measure(suite: str, case: Case, context: Context, discipline: Discipline, progress: Callable[[], None]) -> Result:
    """Run one case; what goes wrong with it becomes its note, so that the others still run."""
    threads = case.threads or context.threads
    active = context.ceilings.isa
    result = Result(suite, case.name, case.dtype, threads, case.isa or active)
    result.targets = [Judged(str(target)) for target in case.targets]
    try:
        if case.isa:
            context.tg.set_isa(case.isa)
            context = replace(context, ceilings=context.ceilings.of(case.isa))
        context.tg.set_num_threads(threads)
        context = replace(context, peers=[peer for peer in context.peers if willing(peer, threads, result)])
        job = case.prepare(context)
        contenders = checked(job, result, {peer.name for peer in context.peers})
        if not result.failed:
            timed(job, contenders, result, context, discipline, progress)
            if result.idle_rounds == 0:
                result.note = "busy machine: no round found it idle"
            elif stated(case, context):
                judge(case, result)
    except SkipCase as reason:
        result.note = f"skipped: {reason}"
    except Exception as error:
        # A benchmark of twenty cases should not lose nineteen of them.
        traceback.print_exc()
        result.failed, result.note = True, f"{type(error).__name__}: {error}"
    finally:
        if case.isa:
            context.tg.set_isa(active)
    return result


def willing(peer: Peer, threads: int, result: Result) -> bool:
    try:
        peer.set_threads(threads)
    except SkipPeer as reason:
        result.note = f"{peer.name} left out: {reason}"
        return False
    return True


def checked(job: Job, result: Result, peers: set[str]) -> list[tuple[Contender, Check]]:
    """The contenders whose result is right.

    A wrong one of ours fails the case; a wrong peer is left out.
    """
    right = []
    for contender in job.contenders:
        ours = contender.side not in peers
        try:
            found = contender.read(contender.call())
            drawn = job.peers_draw and contender.side in peers
            check = Check(0.0, 0.0) if drawn else job.check(found)
        except Exception as error:
            if ours:
                raise
            result.note = f"{label(contender)} left out: {type(error).__name__}: {error}"
            continue
        if not ours:
            check = replace(check, tolerance=check.tolerance * job.peer_slack)
        if check.passed:
            right.append((contender, check))
            continue
        result.failed = result.failed or ours
        result.note = f"{label(contender)} is wrong: error {check.error:.3g}, at most {check.tolerance:.3g} is right"
        if ours:
            break
    return right


def label(contender: Contender) -> str:
    return f"{OURS} {contender.name}".strip() if contender.side == OURS else contender.name


def timed(
    job: Job,
    contenders: list[tuple[Contender, Check]],
    result: Result,
    context: Context,
    discipline: Discipline,
    progress: Callable[[], None],
) -> None:
    """Fill the timings, and the ceiling measured beside them."""

    def ceiling() -> None:
        assert job.ceiling is not None
        rates = context.ceilings.sample(job.ceiling, result.threads)
        if rates:
            result.ceiling_rates.append(max(rates))

    entries = []
    for contender, _ in contenders:
        loops = loops_for(contender.call) if job.short else 1
        entries.append(Timed(contender.call, contender.operations, loops))
    if job.ceiling is not None:
        context.ceilings.sample(job.ceiling, result.threads, bursts=1)  # takes the page faults
    samples, result.idle_rounds = interleave(
        entries,
        discipline.rounds,
        idle_bound=discipline.idle_bound,
        patience=PATIENCE,
        beside=None if job.ceiling is None else ceiling,
        progress=progress,
    )
    result.rounds = discipline.rounds
    result.unit, result.ceiling, result.intensity = job.unit, job.ceiling, job.intensity
    result.timings = [
        Timing(
            name=contender.name,
            side=contender.side,
            seconds=kept.seconds,
            work=contender.work,
            error=check.error,
            tolerance=check.tolerance,
        )
        for (contender, check), kept in zip(contenders, samples, strict=True)
    ]


def distrust(results: Sequence[Result]) -> None:
    """Withdraw verdicts on shares where the ceiling itself was far below what this run saw elsewhere.

    A busy machine lowers the ceiling more than the result, and so makes shares look better.
    """
    best: dict[tuple[Kind | None, int, str], float] = {}
    for result in results:
        key = result.ceiling, result.threads, result.isa
        best[key] = max([best.get(key, 0.0), *result.ceiling_rates])
    for result in results:
        if result.ceiling not in COMPUTE or not result.ceiling_rates:
            continue
        part = max(result.ceiling_rates) / best[result.ceiling, result.threads, result.isa]
        if part < STEADY:
            for judged in result.targets:
                if judged.text.endswith("%"):
                    judged.met = None
            result.note = f"busy machine: the ceiling here was {100 * part:.0f} % of the run's best"


def stated(case: Case, context: Context) -> bool:
    """Whether the case's targets speak of this instruction set and number of threads."""
    threads_fit = case.threads is not None or context.threads == STATED_THREADS
    isa_fits = case.isa or context.ceilings.isa in STATED_ISAS.get(case.dtype, STATED_ISAS_OTHERS)
    return threads_fit and bool(isa_fits)


def judge(case: Case, result: Result) -> None:
    """Best against best: what is left when the neighbours of this machine are quiet."""
    ours = result.ours
    assert ours is not None
    shares = result.share(ours)
    share = None if shares is None else shares[0]
    if share is not None and share > ABOVE:
        share, result.note = None, f"no verdict: {100 * share:.0f} % of the ceiling measured beside it"
    for target, judged in zip(case.targets, result.targets, strict=True):
        other = result.fastest(target.side) if target.side else None
        judged.met = target.met(
            seconds=ours.best,
            share=share,
            other=None if other is None else other.best,
        )
