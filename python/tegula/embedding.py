"""Token, position and segment embedding in one pass."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from . import _core, checks


def embedding(
    ids: Any,
    weight: Any,
    *,
    padding_idx: int | None = None,
    pad_output: Literal["row", "zero"] = "row",
    ignore_id: int | None = None,
    scale: float | None = None,
    positions: Any = None,
    position_table: Any = None,
    segments: Any = None,
    segment_table: Any = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    out: Any = None,
) -> Any:
    """Look up ids in a table, scale, add positions and segments, and drop out.

    ``out = dropout(weight[ids] * scale + position_table[positions] +
    segment_table[segments])``, in one pass over memory. Tensors go to `tegula.torch.embedding`.

    Parameters
    ----------
    ids : integers, (..., L)
        Of any integer type, as an array, a list or an int.
    weight : ndarray, (V, D)
        float64, float32, float16 or bfloat16 (``ml_dtypes``); any strides.
    padding_idx : int, optional
        The id of padding, in [-V, V); a negative one counts from the end.
    pad_output : {"row", "zero"}
        What stands at pads: the table's row like any other, or exact zeros without
        position or segment.
    ignore_id : int, optional
        An id, usually one outside the table such as -100, that yields zeros.
    scale : float, optional
        Factor for the table's rows, often ``sqrt(D)`` [1]_.
    positions : integers that broadcast to ids, optional
        ``0 .. L - 1`` when not given. `masks.positions` makes those of packed or
        left-padded rows. May be floats when the position table is "sinusoidal".
    position_table : ndarray (P, D) or "sinusoidal", optional
        Rows of any float type (learned or made beforehand), or the rows of
        `positional_encoding` with its default options, which know no largest position.
    segments : integers that broadcast to ids, optional
        Row numbers of `segment_table` (BERT's token types [2]_).
    segment_table : ndarray, (S, D), optional
        Rows of any float type.
    dropout_p : float, default 0.0
        Probability in [0, 1] that an element becomes 0; the others are divided by
        ``1 - dropout_p``.
    seed : int, optional
        In [0, 2**64); required when ``dropout_p > 0``. Which elements stay is what
        ``dropout_mask(seed, dropout_p, ids.shape + (D,))`` says.
    out : ndarray, optional
        Where to write: of shape ``ids.shape + (D,)``, of the weight's dtype, any strides.

    Returns
    -------
    ndarray, (..., L, D)
        Of the weight's dtype; `out` if it was given.

    Raises
    ------
    IndexError
        An id, position or segment outside its table; ids never wrap. The message gives
        the value, its place and the table's range.
    TypeError
        ids, positions or segments that are no integers; arrays that are not NumPy's;
        options of the wrong kind.
    ValueError
        Shapes that do not fit; more positions than `position_table` has rows;
        `padding_idx` outside [-V, V); an option outside its range; dropout without a
        seed; an `out` that does not fit or shares memory with an input.

    Notes
    -----
    Sums are float32 (float64 for float64) and rounded once. Nothing is written before
    every id has been checked. The same inputs give the same bits, whatever the number of
    threads and whatever the other rows are.

    References
    ----------
    .. [1] Vaswani et al., "Attention Is All You Need", 2017, section 3.4.
    .. [2] Devlin et al., "BERT", 2018.

    Examples
    --------
    >>> import numpy as np
    >>> import tegula as tg
    >>> weight = np.arange(12, dtype=np.float32).reshape(6, 2)
    >>> tg.embedding([[5, 1, 0]], weight, padding_idx=0, pad_output="zero").tolist()
    [[[10.0, 11.0], [2.0, 3.0], [0.0, 0.0]]]
    >>> tg.embedding([5, 1], weight, scale=2.0, position_table="sinusoidal")[0].tolist()
    [20.0, 23.0]
    """
    if checks.is_tensor(weight) or checks.is_tensor(ids):
        return checks.tensor_functions().embedding(
            ids, weight, padding_idx=padding_idx, pad_output=pad_output, ignore_id=ignore_id, scale=scale,
            positions=positions, position_table=position_table, segments=segments, segment_table=segment_table,
            dropout_p=dropout_p, seed=seed, out=out,
        )  # fmt: skip
    if checks.is_device_array(weight) or checks.is_device_array(ids):
        return checks.array_functions().embedding(
            ids, weight, padding_idx=padding_idx, pad_output=pad_output, ignore_id=ignore_id, scale=scale,
            positions=positions, position_table=position_table, segments=segments, segment_table=segment_table,
            dropout_p=dropout_p, seed=seed, out=out,
        )  # fmt: skip
    ids = checks.integers(ids, "ids")
    if not isinstance(weight, np.ndarray):
        raise TypeError(f"weight must be a NumPy array, got {checks.kind(weight)}")
    if weight.ndim != 2:
        raise ValueError(f"weight must have shape (V, D), got {weight.shape}")

    sinusoidal = is_sinusoidal(position_table)
    refuse_extra_arguments(positions, position_table, segments, segment_table)
    if positions is not None:
        array = np.asarray(positions)
        floats = sinusoidal and _is_float(array)
        positions = array if floats else checks.integers(positions, "positions")
    if segments is not None:
        segments = checks.integers(segments, "segments")
    for name, table in (("position_table", position_table), ("segment_table", segment_table)):
        if table is not None and not isinstance(table, (np.ndarray, str)):
            raise TypeError(f"{name} must be a NumPy array, got {checks.kind(table)}")

    table = None if sinusoidal else position_table
    probability, number = checks.dropout(dropout_p, seed)
    return _core.embedding(
        ids,
        weight,
        checked_padding_idx(padding_idx, weight.shape[0]),
        checks.choice(pad_output, "pad_output", ("row", "zero")) == "zero",
        checked_ignore_id(ignore_id),
        1.0 if scale is None else checks.real(scale, "scale"),
        positions,
        table,
        sinusoidal,
        segments,
        segment_table,
        probability,
        number,
        out,
        0,
    )


def is_sinusoidal(position_table: Any) -> bool:
    """Whether the positions have no table of their own; ValueError for another word."""
    if not isinstance(position_table, str):
        return False
    checks.choice(position_table, "position_table", ("sinusoidal",))
    return True


def refuse_extra_arguments(positions: Any, position_table: Any, segments: Any, segment_table: Any) -> None:
    """ValueError when numbers come without their table, or segments' table without numbers."""
    if positions is not None and position_table is None:
        raise ValueError("positions need a position_table: an array or 'sinusoidal'")
    if (segments is None) != (segment_table is None):
        given, missing = "segments", "segment_table"
        if segments is None:
            given, missing = missing, given
        raise ValueError(f"{given} must come with {missing}")


def checked_padding_idx(padding_idx: Any, rows: int) -> int:
    """Counted from the start; -1 when there is none."""
    if padding_idx is None:
        return -1
    index = checks.integer(padding_idx, "padding_idx")
    if not -rows <= index < rows:
        raise ValueError(f"padding_idx {index} is outside [{-rows}, {rows})")
    return index % rows


def checked_ignore_id(ignore_id: Any) -> int | None:
    """As an int that fits in 64 bits."""
    if ignore_id is None:
        return None
    number = checks.integer(ignore_id, "ignore_id")
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"ignore_id must fit in 64 bits, got {number}")
    return number


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"
