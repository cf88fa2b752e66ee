"""What a call of attention would do, for those who wonder why it takes its time."""

from __future__ import annotations

import dataclasses
import html
from typing import Any, NamedTuple

import numpy as np

from . import _core, checks
from ._types import Array
from .masks import Mask, as_mask
from .runtime import checked_threads


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What `explain` found; prints as a table.

    Attributes
    ----------
    tiles_full, tiles_mixed, tiles_skipped : int
        Tiles of the forward pass (`block_rows` queries by `tile_keys` keys) in which every query sees
        every key, some do, none does. Full tiles pay nothing for the mask, skipped ones are not computed.
    block_rows, tile_keys : int
        The largest tile. A block is shorter at the end of a head, and where a long document ends.
    blocks, blocks_of_few_rows : int
        Blocks of queries, and those of so few (decoding) that reading the keys takes the time.
    pairs : int
        Visible (query, key), over batch entries and heads.
    share : float
        `pairs` of all there are.
    flops : float
        Floating-point operations for the visible pairs: two a multiply-add.
    bytes_read, bytes_written : int
        What has to move at least once: inputs with the mask's arrays, and results.
    tasks : ndarray of float
        The costs of the pieces that threads take one after the other, in this order, as shares of all.
    threads : int
        How many of them would run; 1 where the work is too small for more.
    balance : float
        How busy these are until the last one is done, at most 1, when each pair takes the same time.
    isa, format : str
        The instruction set, and what its products multiply.
    notes : tuple of str
        What makes this call slower than another that gives the same.
    """

    tiles_full: int
    tiles_mixed: int
    tiles_skipped: int
    block_rows: int
    tile_keys: int
    blocks: int
    blocks_of_few_rows: int
    pairs: int
    share: float
    flops: float
    bytes_read: int
    bytes_written: int
    tasks: np.ndarray = dataclasses.field(repr=False, compare=False)
    threads: int
    balance: float
    isa: str
    format: str
    notes: tuple[str, ...]

    @property
    def intensity(self) -> float:
        """Operations for each byte that has to move."""
        moved = self.bytes_read + self.bytes_written
        return self.flops / moved if moved else 0.0

    def rows(self) -> list[tuple[str, str]]:
        """The table: what, and how much."""
        tiles = max(self.tiles_full + self.tiles_mixed + self.tiles_skipped, 1)
        skipped = f"{self.tiles_skipped:,} skipped ({self.tiles_skipped / tiles:.0%})"
        largest = float(self.tasks.max(initial=0.0))
        found = [
            ("pairs", f"{self.pairs:,} visible, {self.share:.1%} of all"),
            ("tiles", f"{self.tiles_full:,} full, {self.tiles_mixed:,} mixed, {skipped}"),
            ("of up to", f"{self.block_rows} queries x {self.tile_keys} keys"),
            ("blocks", f"{self.blocks:,} of queries, {self.blocks_of_few_rows:,} of them of few"),
            ("work", f"{self.flops / 1e9:.3g} GFLOP"),
            ("memory", f"{self.bytes_read / 1e6:.3g} MB read, {self.bytes_written / 1e6:.3g} MB written"),
            ("intensity", f"{self.intensity:.3g} FLOP a byte"),
            ("kernel", f"{self.isa}, {self.format}"),
            ("tasks", f"{len(self.tasks):,}, the largest {largest:.1%} of the work"),
            ("threads", f"{self.threads}, busy {self.balance:.0%} of the time"),
        ]
        return found + [("note", note) for note in self.notes]

    def __str__(self) -> str:
        return "\n".join(f"{name:10s} {text}" for name, text in self.rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = (f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in self.rows())
        return f"<table>{''.join(lines)}</table>"


def explain(
    mask: Mask | Array | None = None,
    q_len: int | None = None,
    k_len: int | None = None,
    *,
    batch: int = 1,
    heads: int = 1,
    key_heads: int | None = None,
    dim: int = 64,
    value_dim: int | None = None,
    dtype: Any = "float32",
    bias: Any = None,
    softcap: bool = False,
    alibi: bool = False,
    dropout: bool = False,
    backward: bool = False,
    threads: int | None = None,
) -> Explanation:
    """Return what a call of `attention` with such arguments would do, without doing it.

    It is counted by the code that plans and cuts the call.

    Parameters
    ----------
    mask : Mask or bool array, optional
        As in `attention`.
    q_len, k_len : int
        Lq and Lk. Left out, `k_len` is `q_len`, and `q_len` is what the mask's arrays say.
    batch, heads : int
        B and H. A mask that has several batch entries or heads says them itself.
    key_heads : int, optional
        G; `heads` by default.
    dim, value_dim : int
        D and Dv; left out, Dv is D.
    dtype : dtype of NumPy or torch, or its name
        Of q, k, v and the result.
    bias : dtype or array, optional
        Of the bias, if there is one.
    softcap, alibi, dropout : bool
        Whether the call has them.
    backward : bool
        Explain `attention_backward` instead. Tiles stay those of the forward pass.
    threads : int, optional
        How many to plan for; the setting by default.

    Returns
    -------
    Explanation
        Numbers, and notes in plain words.

    Raises
    ------
    TypeError, ValueError
        For arguments of another kind, and sizes that do not fit together or the mask.

    Examples
    --------
    >>> import tegula as tg
    >>> found = tg.explain(tg.masks.causal(), 4096, heads=8, threads=1)
    >>> found.pairs == 8 * tg.masks.causal().area(4096, 4096)
    True
    >>> found.tiles_full > found.tiles_mixed
    True
    >>> tg.explain(None, 100, dim=100, threads=1).notes
    ('head size 100 is not a multiple of 16: the rest of a vector is computed for nothing',)
    """
    array = None if isinstance(mask, Mask) else mask
    mask = None if mask is None else as_mask(mask)
    if q_len is None and mask is not None:
        q_len = mask._sizes()[0]
        k_len = mask._sizes()[1] if k_len is None else k_len
    if q_len is None:
        raise ValueError("q_len is missing, and the mask does not say it")
    if mask is not None:
        batch, heads = max(batch, mask._batch), max(heads, mask._heads)
    sizes = {
        "batch": batch,
        "heads": heads,
        "key_heads": heads if key_heads is None else key_heads,
        "q_len": q_len,
        "k_len": q_len if k_len is None else k_len,
        "dim": dim,
        "value_dim": dim if value_dim is None else value_dim,
    }
    sizes = {name: checks.size(value, name) for name, value in sizes.items()}
    for name, value in sizes.items():
        if value >= 2**31 - 1024:
            raise ValueError(f"{name} must be below 2**31 - 1024, got {value}")
    batch, heads, key_heads, q_len, k_len, dim, value_dim = sizes.values()
    if heads and (not key_heads or heads % key_heads):
        raise ValueError(f"heads must be a multiple of key_heads, got {heads} and {key_heads}")
    options = {"softcap": softcap, "alibi": alibi, "dropout": dropout}
    on = [name for name, value in options.items() if checks.flag(value, name)]
    number = number_of(dtype)
    bias = None if bias is None else number_of(getattr(bias, "dtype", bias), "bias")
    lo = hi = dense = None
    if mask is not None:
        lo, hi, dense = mask._lower(batch, heads, q_len, k_len)
    plan = _core.attention_plan(
        lo,
        hi,
        dense,
        tuple(sizes.values()),
        number.name,
        checks.flag(backward, "backward"),
        0 if threads is None else checked_threads(threads),
    )
    rows, keys = batch * heads * q_len, batch * key_heads * k_len
    queries, values = rows * dim * number.itemsize, rows * value_dim * number.itemsize
    key_bytes = keys * (dim + value_dim) * number.itemsize
    read = queries + key_bytes + sum(a.nbytes for a in (lo, hi, dense) if a is not None)
    written = values
    if bias is not None:
        read += batch * heads * q_len * k_len * bias.itemsize
    if array is not None and dense is None:
        read += array.nbytes
    if backward:
        read += 2 * values + rows * max(number.itemsize, 4)  # out, its gradient, the log-sum-exp
        written = queries + key_bytes
    costs = np.asarray(plan["costs"])
    total = float(costs.sum())
    return Explanation(
        tiles_full=plan["full"],
        tiles_mixed=plan["mixed"],
        tiles_skipped=plan["skipped"],
        block_rows=plan["block_rows"],
        tile_keys=plan["key_tile"],
        blocks=plan["blocks"],
        blocks_of_few_rows=plan["few"],
        pairs=plan["pairs"],
        share=plan["pairs"] / (rows * k_len) if rows * k_len else 0.0,
        flops=2.0 * plan["pairs"] * (3 * dim + 2 * value_dim if backward else dim + value_dim),
        bytes_read=read,
        bytes_written=written,
        tasks=costs / total if total else costs,
        threads=plan["threads"],
        balance=1 / plan["imbalance"],
        isa=_core.isa_name(),
        format=format_of(number, plan["dot"], backward),
        notes=(
            *notes_of_mask(array is not None, lo, hi, rows),
            *notes_of(plan, sizes, number, bias, on, dense is not None, backward),
        ),
    )


class Number(NamedTuple):
    """A type of numbers; bfloat16 has none in NumPy itself."""

    name: str
    itemsize: int


def number_of(dtype: Any, argument: str = "dtype") -> Number:
    """`dtype`, which may be one of torch's."""
    name = str(dtype).removeprefix("torch.")
    if name == "bfloat16":
        return Number(name, 2)
    try:
        found = checks.float_dtype(name if str(dtype).startswith("torch.") else dtype)
    except TypeError:
        text = dtype if isinstance(dtype, str) else name
        raise TypeError(f"{argument} must be float64, float32, float16 or bfloat16, got {text}") from None
    return Number(found.name, found.itemsize)


def format_of(number: Number, dot: bool, backward: bool) -> str:
    """What the products multiply, in words."""
    if number.itemsize == 8:
        return "float64"
    if dot:
        return "bfloat16 pairs into float32" + (", sums for gradients in float32" if backward else "")
    return "float32" if number.itemsize == 4 else f"{number.name} widened to float32"


def notes_of_mask(array: bool, lo: Array | None, hi: Array | None, rows: int) -> list[str]:
    """What is slow or odd about the mask itself."""
    notes = []
    if array:
        notes.append("a bool array is searched for runs in every call; masks.dense(array), made once, only once")
    if lo is not None and hi is not None and lo.size and rows:
        empty: Array = np.asarray(hi <= lo)
        if empty.ndim == 4:
            empty = empty.all(axis=0)
        blind = np.count_nonzero(empty) * (rows // empty.size)
        if blind:
            notes.append(f"{blind} of {rows} queries see no key: their results are zeros. True means may attend")
    return notes


def notes_of(
    plan: dict[str, Any],
    sizes: dict[str, int],
    number: Number,
    bias: Number | None,
    options: list[str],
    dense: bool,
    backward: bool,
) -> list[str]:
    """What makes the call slow, in plain words."""
    notes = []
    lanes = 8 if number.itemsize == 8 else 16
    for name, words in (("dim", "head size"), ("value_dim", "head size of the values")):
        if sizes[name] % lanes and (name == "dim" or sizes["value_dim"] != sizes["dim"]):
            notes.append(
                f"{words} {sizes[name]} is not a multiple of {lanes}: the rest of a vector is computed for nothing"
            )
    if dense:
        notes.append(
            "the mask is dense, for some row sees more than two runs of keys: each call reads it to find what it "
            "hides, and again in mixed tiles"
        )
        if not plan["skipped"]:
            notes.append("every tile has a visible pair, so none is skipped: no less is computed than without a mask")
    if bias is not None:
        notes.append("a bias is read for every visible tile, and no tile is full")
        if bias.itemsize == 8 and number.itemsize < 8:
            notes.append("the bias is float64 and is converted number by number")
    if options:
        notes.append(f"{' and '.join(options)}: computed for every visible pair")
    if number.itemsize == 2 and not plan["dot"]:
        notes.append(f"{number.name} is widened: this instruction set does not multiply it")
    visible = plan["full"] + plan["mixed"]
    tile = min(plan["block_rows"], sizes["q_len"]) * min(plan["key_tile"], sizes["k_len"])
    if plan["mixed"] and plan["pairs"] < 0.25 * visible * tile and plan["blocks"] != plan["few"]:
        notes.append(
            "few pairs of the tiles that are computed are visible: "
            + ("scattered pairs, or tokens not sorted by document" if dense else "short documents, or a narrow window")
        )
    if plan["few"] and 2 * plan["few"] > plan["blocks"]:
        notes.append("few queries meet each key: the time is that of reading keys and values")
    if plan["key_chunk_tasks"]:
        notes.append("rows are few for so many threads: keys are split into chunks, and partial results joined")
    if plan["shared_units"]:
        notes.append("heads are few for so many threads: threads share them, and add up in a fixed order")
    if plan["threads"] > 1 and plan["imbalance"] > 1.25:
        notes.append("the work does not divide evenly among so many threads")
    return notes
