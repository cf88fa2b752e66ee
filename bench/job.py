"""What a case is made of: a job with its contenders, and the target it is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    from peak import Ceilings, Kind
    from peers import Peer

OURS = "tegula"
DRAWN = 20_000_003  # a prime: no two heads are the same


class SkipCase(Exception):
    """A case cannot run here; the message says what is missing."""


@dataclass(frozen=True)
class Check:
    """The largest absolute error against the float64 reference, and the largest that is right."""

    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance  # False for NaN


@dataclass(frozen=True)
class Contender:
    """One way to do the job.

    `call` does it `operations` times and returns its result; `read` turns that into the array that
    the job's check expects. `work` counts what one operation has to do, in the job's unit.
    """

    name: str
    side: str  # OURS, or the peer's name
    call: Callable[[], Any]
    read: Callable[[Any], np.ndarray]
    work: float
    operations: int = 1


@dataclass(frozen=True)
class Job:
    """A case with its arrays.

    The first contender is the one that the targets are about, others of ours are there for information.
    Ratios refer to the fastest contender of the other side.
    """

    contenders: list[Contender]
    check: Callable[[np.ndarray], Check]
    unit: Literal["flop", "byte"]
    ceiling: Kind | None
    intensity: float = 0.0  # operations per byte that has to move; 0: not in the plot
    short: bool = False  # so short that a sample is a loop of calls
    peers_draw: bool = False  # random numbers of their own: their results cannot be checked
    peer_slack: float = 4.0  # peers may round more often; what matters is that they do the same job


@dataclass(frozen=True)
class Target:
    """What a case should reach: `kind` says of what, `side` against whom."""

    kind: Literal["share", "ratio", "times", "microseconds"]
    value: float
    side: str = ""

    def __str__(self) -> str:
        if self.kind == "share":
            return f">= {self.value:g} %"
        if self.kind == "microseconds":
            return f"<= {self.value:g} us"
        sign = ">=" if self.kind == "ratio" else "<="
        return f"{sign} {self.value:g}x {self.side}"

    def met(self, *, seconds: float, share: float | None, other: float | None) -> bool | None:
        """`other`: seconds of the fastest way of `side`. None when what it takes was not measured."""
        if self.kind == "share":
            return None if share is None else 100 * share >= self.value
        if self.kind == "microseconds":
            return 1e6 * seconds <= self.value
        if other is None:
            return None
        return other / seconds >= self.value if self.kind == "ratio" else seconds / other <= self.value


def share(percent: float) -> Target:
    """At least this share of the ceiling, in percent."""
    return Target("share", percent)


def ratio(times: float, side: str = "torch") -> Target:
    """At least this many times as fast as the other side."""
    return Target("ratio", times, side)


def at_most(times: float, side: str) -> Target:
    """At most this many times as long as the other side."""
    return Target("times", times, side)


def microseconds(most: float) -> Target:
    """At most this long."""
    return Target("microseconds", most)


@dataclass
class Context:
    """What a case needs to build its job."""

    tg: Any
    ceilings: Ceilings
    peers: Sequence[Peer]
    threads: int
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(2017))

    def torch(self) -> Any:
        """The peer that has tensors."""
        for peer in self.peers:
            if peer.name == "torch":
                return peer
        raise SkipCase("torch is not installed")

    def dtype(self, name: str) -> np.dtype[Any]:
        if name != "bfloat16":
            return np.dtype(name)
        try:
            import ml_dtypes
        except ImportError:
            raise SkipCase("ml_dtypes is not installed") from None
        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found

    def normal(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Normal numbers in memory that starts at a cache line."""
        array = aligned(shape, self.dtype(dtype))
        flat = array.reshape(-1)
        # Large arrays repeat themselves: drawing numbers would take longer than the benchmark.
        block = self.rng.standard_normal(min(flat.size, DRAWN), dtype=np.float32).astype(array.dtype)
        for start in range(0, flat.size, DRAWN):
            part = flat[start : start + DRAWN]
            part[...] = block[: part.size]
        return array

    def poisoned(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """An output in which what nobody writes stays NaN; its pages exist already."""
        array = aligned(shape, self.dtype(dtype))
        array[...] = np.nan
        return array


class Case(Protocol):
    """A line of the table in suites.py."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def targets(self) -> tuple[Target, ...]: ...
    @property
    def isa(self) -> str:
        """Pinned for this case; empty: the one in use."""

    @property
    def threads(self) -> int | None:
        """None: as many as the run asks for."""

    def tiny(self) -> Case:
        """The same case at a size that only shows that it works."""

    def prepare(self, context: Context) -> Job: ...


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An empty array that starts at a cache line: all contenders share it, and some care."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def eps(dtype: np.dtype[Any]) -> float:
    """Spacing of the numbers of a float type at 1."""
    if dtype.name == "bfloat16":  # NumPy's finfo does not know it
        return 2.0**-7
    return float(np.finfo(dtype).eps)


DTYPE_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}
