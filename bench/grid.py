"""The grid: shapes on which torch might be faster.

Every case of grid_cases.py is one call of ours against the best call of torch's attention that gives
the same result. On one thread the processor time of the calling thread counts, so that neighbours on the
machine disturb little; on several it is the clock on the wall. Both sides allocate their results.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import sdpa
from grid_cases import GridCase
from grid_masks import SEED, is_causal, mask_of, visible_of
from job import DTYPE_SHORT, Context, SkipCase, eps
from peer_torch import Torch
from peers import AttentionProblem
from timing import GAP, duration

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 0.8  # for the rounds of one case
ROUNDS = (3, 100)  # fewest and most
SHORTEST = 0.0005  # a sample of shorter calls is a loop
HOPELESS = 1.5  # a way of torch this much slower than its best is not timed again
CLOSE = 1.1  # a smaller ratio is measured for longer
LONGER = 5  # times


@dataclass
class GridResult:
    """One case: seconds of ours and of torch's best way, one entry a round."""

    case: str
    dtype: str
    threads: int
    way: str = ""  # torch's best
    ours: list[float] = field(default_factory=list)
    torch: list[float] = field(default_factory=list)
    ways: dict[str, float] = field(default_factory=dict)  # best time of each
    error: float | None = None  # relative difference to torch's closest result
    failed: bool = False
    note: str = ""

    @property
    def ratio(self) -> float:
        """Best against best."""
        return min(self.torch) / min(self.ours)

    @property
    def title(self) -> str:
        return f"{self.case} {DTYPE_SHORT.get(self.dtype, self.dtype)}"


@dataclass
class GridCalls:
    """The calls of a case. `read` turns a result into float64 arrays."""

    ours: Callable[[], Any]
    torch: dict[str, Callable[[], Any]]
    read: Callable[[Any], list[np.ndarray]]


def run(cases: Sequence[GridCase], context: Context, peer: Torch, seconds: float = SECONDS) -> Iterator[GridResult]:
    """The results in the order of the cases."""
    for case in cases:
        result = GridResult(case.name, case.dtype, case.threads)
        try:
            context.tg.set_num_threads(case.threads)
            peer.set_threads(case.threads)
            context.rng = np.random.default_rng(SEED)
            calls = prepare(case, context, peer)
            compare(case, context, calls, result)
            if not result.failed:
                measure(calls, result, seconds)
                if result.ratio < CLOSE:
                    measure(calls, result, LONGER * seconds)
        except SkipCase as reason:
            result.note = f"skipped: {reason}"
        except Exception as error:
            result.failed, result.note = True, f"{type(error).__name__}: {error}"
        yield result


def prepare(case: GridCase, context: Context, peer: Torch) -> GridCalls:
    """Arrays, masks and calls of both sides."""
    q_len, k_len = case.lengths
    groups, value_dim = case.groups or case.heads, case.value_dim or case.dim

    def array(heads: int, length: int, dim: int) -> np.ndarray:
        """(B, heads, length, dim), in the memory order of the layout."""
        if case.layout == "bhld":
            return context.normal((case.batch, heads, length, dim), case.dtype)
        swapped: np.ndarray = context.normal((case.batch, length, heads, dim), case.dtype).swapaxes(1, 2)
        return swapped

    q, k, v = (
        array(case.heads, q_len, case.dim),
        array(groups, k_len, case.dim),
        array(groups, k_len, value_dim),
    )
    grad_out = array(case.heads, q_len, value_dim) if case.backward else None
    mask = mask_of(context.tg, case)
    bias = None
    if case.bias:
        axes = {"b": case.batch, "h": case.heads, "q": q_len, "k": k_len}
        bias = context.normal(tuple(n if axis in case.bias else 1 for axis, n in axes.items()), case.dtype)
    problem = AttentionProblem(
        q, k, v, 0.0, is_causal(case), visible_of(mask, case), bias=bias, dropout_p=case.dropout_p
    )
    if case.backward:
        assert grad_out is not None
        return backward_calls(case, context.tg, peer, problem, mask, grad_out)
    return forward_calls(case, context.tg, peer, problem, mask)


def options_of(case: GridCase, mask: Any, bias: Any) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if mask is not None:
        options["mask"] = mask
    if bias is not None:
        options["bias"] = bias
    if case.dropout_p:
        options.update(dropout_p=case.dropout_p, seed=SEED)
    return options


def forward_calls(case: GridCase, tg: Any, peer: Torch, problem: AttentionProblem, mask: Any) -> GridCalls:
    arrays = [problem.q, problem.k, problem.v]
    tensors = [peer.tensor(a) for a in arrays]
    bias = problem.bias
    if case.tensors:
        arrays, bias = tensors, bias if bias is None else peer.tensor(bias)
    options = options_of(case, mask, bias)
    if case.layout == "blhd" and not case.tensors:  # as the caller holds them; tensors are views
        arrays, options["layout"] = [a.swapaxes(1, 2) for a in arrays], "blhd"

    def ours() -> Any:
        return tg.attention(*arrays, **options)

    def read(result: Any) -> list[np.ndarray]:
        if isinstance(result, np.ndarray):
            found = result.astype(np.float64)
            return [found.swapaxes(1, 2) if case.layout == "blhd" else found]
        return [result.double().numpy()]

    return GridCalls(ours, sdpa.ways(peer.torch, tensors, problem, peer.tensor), read)


def backward_calls(
    case: GridCase, tg: Any, peer: Torch, problem: AttentionProblem, mask: Any, grad_out: np.ndarray
) -> GridCalls:
    """Gradients of q, k, v and of the bias, from a forward pass that is done."""
    torch, bias = peer.torch, problem.bias
    leaves = [peer.tensor(a).requires_grad_() for a in (problem.q, problem.k, problem.v)]
    if bias is not None:
        leaves.append(peer.tensor(bias).requires_grad_())
    gradient = peer.tensor(grad_out)

    def gradients(out: Any) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)

    with torch.enable_grad():
        if leaves[3:]:
            problem = replace(problem, bias=leaves[3])
        calls = {label: gradients(call()) for label, call in sdpa.ways(torch, leaves[:3], problem, peer.tensor).items()}
        if case.tensors:
            options = options_of(case, mask, leaves[3] if leaves[3:] else None)
            ours = gradients(tg.attention(*leaves[:3], **options))
    if not case.tensors:
        arrays = [problem.q, problem.k, problem.v]
        options = options_of(case, mask, bias)
        if case.layout == "blhd":
            arrays, options["layout"] = [a.swapaxes(1, 2) for a in arrays], "blhd"
            grad_out = grad_out.swapaxes(1, 2)
        out, lse = tg.attention(*arrays, **options, return_lse=True)

        def ours() -> Any:
            return tg.attention_backward(grad_out, *arrays, out, lse, **options)

    def read(results: Any) -> list[np.ndarray]:
        if not isinstance(results[0], np.ndarray):
            return [result.double().numpy() for result in results]
        swapped = case.layout == "blhd"
        return [r.astype(np.float64).swapaxes(1, 2) if swapped else r.astype(np.float64) for r in results]

    return GridCalls(ours, calls, read)


def compare(case: GridCase, context: Context, calls: GridCalls, result: GridResult) -> None:
    """Leave out what torch cannot do; fail where the results differ by more than their type explains.

    Dropout draws other numbers in each library, so there only the shapes are compared.
    """
    found = calls.read(calls.ours())
    k_len = case.lengths[1]
    allowed = 4 * eps(context.dtype(case.dtype))
    allowed += 16 * eps(np.dtype(np.float32)) * math.sqrt(k_len)
    for label in list(calls.torch):
        try:
            theirs = calls.read(calls.torch[label]())
        except (RuntimeError, ValueError, NotImplementedError) as error:
            del calls.torch[label]
            result.note = f"torch, {label}: {str(error).splitlines()[0][:80]}"
            continue
        if [a.shape for a in found] != [b.shape for b in theirs]:
            result.failed, result.note = True, f"torch, {label}: another shape"
            continue
        if case.dropout_p:
            continue
        away = difference(found, theirs)
        result.error = away if result.error is None else min(result.error, away)
        if not away <= allowed:
            del calls.torch[label]
            result.note = f"torch, {label}: differs by {away:.2g}"
    if not calls.torch:
        result.failed = True


def difference(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    """Relative, in the Euclidean norm over all arrays: with one key, dq and dk vanish."""
    away = math.hypot(*(float(np.linalg.norm(x - y)) for x, y in zip(a, b, strict=True)))
    return away / max(math.hypot(*(float(np.linalg.norm(y)) for y in b)), 1e-30)


def measure(calls: GridCalls, result: GridResult, seconds: float) -> None:
    """Time both sides in turns, for about this long."""
    clock = time.thread_time if result.threads == 1 else time.perf_counter
    contenders = {"": calls.ours, **{f"torch {label}": call for label, call in calls.torch.items()}}
    loops = {label: loops_of(call, clock) for label, call in contenders.items()}
    samples: dict[str, list[float]] = {label: [] for label in contenders}
    end = time.monotonic() + seconds
    for number in range(ROUNDS[1]):
        if number >= ROUNDS[0] and time.monotonic() > end:
            break
        for label in list(contenders):
            call, turns = contenders[label], range(loops[label])
            if result.threads > 1:
                time.sleep(GAP)
            start = clock()
            for _ in turns:
                call()
            samples[label].append((clock() - start) / len(turns))
        best = min(min(kept) for label, kept in samples.items() if label)
        for label in [label for label in contenders if label and min(samples[label]) > HOPELESS * best]:
            del contenders[label]
    result.ours += samples.pop("")
    for label, kept in samples.items():
        label = label.removeprefix("torch ")
        result.ways[label] = min(min(kept), result.ways.get(label, math.inf))
    result.way = min(result.ways, key=result.ways.__getitem__)
    result.torch += samples.get(f"torch {result.way}", [])


def loops_of(call: Callable[[], Any], clock: Callable[[], float]) -> int:
    """Calls that make one sample."""
    call()
    shortest = math.inf
    for _ in range(3):
        start = clock()
        call()
        shortest = min(shortest, clock() - start)
    return max(1, min(1000, round(SHORTEST / max(shortest, 1e-8))))


SHOWN = 40  # lines of the table; the JSON file has all

HEADER = ["case", "tegula", "torch", "ratio (median)", "torch's best call"]


def table(results: Sequence[GridResult]) -> tuple[list[str], list[list[str]]]:
    """Header and lines: every shape on which torch is faster, and the closest of the others."""
    measured = sorted((r for r in results if r.ours), key=lambda r: r.ratio)
    shown = max(SHOWN, sum(r.ratio < 1 for r in measured))
    lines = [
        [
            r.title,
            duration(min(r.ours)),
            duration(min(r.torch)),
            f"{r.ratio:.2f}x ({statistics.median(r.torch) / statistics.median(r.ours):.2f})",
            r.way,
        ]
        for r in measured[:shown]
    ]
    return HEADER, lines


def notes(results: Sequence[GridResult]) -> list[str]:
    """What went wrong, and the grid in one line."""
    words = [f"{r.title}: {'FAILED: ' * r.failed}{r.note}" for r in results if r.note]
    ratios = sorted(r.ratio for r in results if r.ours)
    if ratios:
        slower = sum(ratio < 1 for ratio in ratios)
        words.append(
            f"grid: {len(ratios)} shapes, smallest ratio {ratios[0]:.2f}x, median {statistics.median(ratios):.2f}x; "
            f"torch is faster on {slower}"
        )
    return words
