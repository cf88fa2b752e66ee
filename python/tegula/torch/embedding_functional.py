"""`tegula.embedding`, its gradient and `tegula.positional_encoding` for tensors."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .. import _core, checks
from ..embedding import checked_ignore_id, checked_padding_idx, is_sinusoidal, refuse_extra_arguments
from ..positions import checked_base, checked_dim
from . import embedding_kernels as kernels
from . import embedding_ops as ops
from .attention_autograd import derivative_is_wanted
from .attention_checks import FLOATS
from .attention_options import refuse_kind
from .dropout import lower_dropout, seed_number
from .embedding_autograd import backward_call, embedding_call, record_embedding
from .embedding_checks import check_gradient, check_positions
from .embedding_ops import refuse_derivative
from .embedding_vmap import DEFAULTS
from .library import direct, native, wrote_into
from .results import empty


def embedding(
    ids: Any,
    weight: Tensor,
    *,
    padding_idx: int | None = None,
    pad_output: Literal["row", "zero"] = "row",
    ignore_id: int | None = None,
    scale: float | None = None,
    positions: Any = None,
    position_table: Tensor | Literal["sinusoidal"] | None = None,
    segments: Any = None,
    segment_table: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    out: Tensor | None = None,
) -> Any:
    """Look up ids in a table, scale, add positions and segments, and drop out.

    `tegula.embedding` for tensors, with gradients for `weight`, `position_table` and
    `segment_table`. It works under ``torch.compile``, ``torch.export`` and the transforms of
    ``torch.func``, and has derivatives of every order. Under autocast it keeps the weight's
    type, as torch's own embedding does.

    Parameters
    ----------
    ids : integers, (..., L)
        Of any integer type, as a tensor, a list or an int.
    weight : Tensor, (V, D)
        float64, float32, float16 or bfloat16, any strides.
    padding_idx : int, optional
        The id of padding, in [-V, V); it gets no gradient.
    pad_output : {"row", "zero"}
        What stands at pads: the table's row, or exact zeros.
    ignore_id : int, optional
        An id that yields zeros and gets no gradient.
    scale : float, optional
        Factor for the table's rows.
    positions : integers that broadcast to ids, optional
        ``0 .. L - 1`` when not given; may be floats when the position table is "sinusoidal".
        They have no gradient.
    position_table : Tensor (P, D) or "sinusoidal", optional
        Rows of any float type, or those of `positional_encoding`.
    segments : integers that broadcast to ids, optional
        Row numbers of `segment_table`.
    segment_table : Tensor, (S, D), optional
        Rows of any float type.
    dropout_p : float, default 0.0
        Probability in [0, 1] that an element becomes 0.
    seed : int in [0, 2**64), or Tensor of one int64, optional
        Required when ``dropout_p > 0``. A tensor holds the two's complement of such an int.
    out : Tensor, optional
        Where to write: of shape ``ids.shape + (D,)``. Without gradient.

    Returns
    -------
    Tensor, (..., L, D)
        Of the weight's dtype; `out` if it was given.

    Raises
    ------
    IndexError
        An id, position or segment outside its table.
    TypeError
        Arguments of another kind, dtype or device; arrays and tensors do not mix.
    ValueError
        Shapes that do not fit, and options outside their range.
    RuntimeError
        When `positions` requires grad, or any tensor does together with `out`.

    Notes
    -----
    The bits are those of `tegula.embedding`, which says more. Each table's gradient is
    accumulated in float32 (float64 for float64).

    Examples
    --------
    >>> import torch, tegula as tg
    >>> weight = torch.ones(6, 2, requires_grad=True)
    >>> out = tg.embedding(torch.tensor([[5, 1, 5, 0]]), weight, padding_idx=0)
    >>> out.sum().backward()
    >>> weight.grad[:, 0].tolist()
    [0.0, 1.0, 0.0, 0.0, 0.0, 2.0]
    """
    if not isinstance(weight, Tensor):
        refuse_kind("weight", weight, None)
    if not isinstance(ids, Tensor):
        ids = _integers(ids, "ids", weight)
    options: tuple[Any, ...] = ()
    if (
        padding_idx is not None or pad_output != "row" or ignore_id is not None or scale is not None
        or positions is not None or position_table is not None or segments is not None or segment_table is not None
        or seed is not None or dropout_p != 0.0
    ):  # fmt: skip
        options = _lower(
            weight, padding_idx, pad_output, ignore_id, scale, positions, position_table, segments, segment_table,
            dropout_p, seed,
        )  # fmt: skip
        position_table, segment_table = options[5], options[8]

    if out is not None:
        _tensor(out, "out")
        _without_gradient("out=", weight, position_table, segment_table, out)
        kernels.embedding(out, ids, weight, *options)
        wrote_into(out)
        return out
    tables = (weight, options[5], options[8]) if options else (weight,)
    if direct(ids, *tables, *options[4:9:3], *options[9:10]):  # positions, segments, seed
        try:
            if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tables):
                return record_embedding(ids, weight, *options, *DEFAULTS[len(options) :])
            return kernels.embedding(None, ids, weight, *options)
        except _core.NotPlainError:
            pass
    if torch.compiler.is_compiling():
        return ops.embedding(ids, weight, *options)
    if torch._C._are_functorch_transforms_active():
        return embedding_call(ids, weight, *options, *DEFAULTS[len(options) :])
    if derivative_is_wanted(*tables):
        return ops.embedding(ids, weight, *options)
    return ops.embedding_forward(ids, weight, *options)


def _lower(
    weight: Tensor,
    padding_idx: Any,
    pad_output: Any,
    ignore_id: Any,
    scale: Any,
    positions: Any,
    position_table: Any,
    segments: Any,
    segment_table: Any,
    dropout_p: Any,
    seed: Any,
) -> tuple[Any, ...]:
    """The options as the operators take them, behind ids and weight."""
    if weight.dim() != 2:
        raise ValueError(f"weight must have shape (V, D), got {tuple(weight.shape)}")
    sinusoidal = is_sinusoidal(position_table)
    table = None if sinusoidal else position_table
    refuse_extra_arguments(positions, position_table, segments, segment_table)
    if positions is not None:
        if not isinstance(positions, Tensor) and sinusoidal and isinstance(positions, (float, list, tuple)):
            positions = torch.tensor(positions, device=weight.device)
        elif not isinstance(positions, Tensor) or not sinusoidal:
            positions = _integers(positions, "positions", weight)
        refuse_derivative("embedding", positions)
    if segments is not None:
        segments = _integers(segments, "segments", weight)
    for name, rows in (("position_table", table), ("segment_table", segment_table)):
        if rows is not None:
            _tensor(rows, name)
    probability, number = lower_dropout(dropout_p, seed, weight.device)
    return (
        checked_padding_idx(padding_idx, weight.shape[0]),
        checks.choice(pad_output, "pad_output", ("row", "zero")) == "zero",
        checked_ignore_id(ignore_id),
        1.0 if scale is None else checks.real(scale, "scale"),
        positions,
        table,
        sinusoidal,
        segments,
        segment_table,
        number,
        probability,
    )


def embedding_backward(
    grad: Tensor,
    ids: Any,
    num_rows: int,
    *,
    padding_idx: int | None = None,
    pad_output: Literal["row", "zero"] = "row",
    ignore_id: int | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    out: Tensor | None = None,
    sparse: bool = False,
) -> Any:
    """Return the gradient of `embedding` with respect to `weight`.

    `tegula.embedding_backward` for tensors. The dense form has derivatives of its own.

    Parameters
    ----------
    grad : Tensor, (..., L, D)
        Gradient of the embedding's result, any strides.
    ids : integers, (..., L)
        Those of the forward call.
    num_rows : int
        V, the number of rows of the table.
    padding_idx, pad_output, ignore_id, scale, dropout_p, seed : optional
        Those of the forward call.
    out : Tensor, (V, D), optional
        The gradient is added to it, in place and without a derivative.
    sparse : bool, default False
        Return only the rows that occur in `ids`, without a derivative.

    Returns
    -------
    Tensor, (V, D)
        Of grad's dtype; `out` if it was given. Or, with ``sparse=True``, a pair:
    found : Tensor of int64, (N,)
        The ids that occur, ascending, without the pad and the ignored id. With ``dropout_p=1``
        none does.
    rows : Tensor, (N, D)
        Their rows of the gradient.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `tegula.embedding_backward`.
    RuntimeError
        When a tensor requires grad together with `out` or ``sparse=True``.

    Examples
    --------
    >>> import torch, tegula as tg
    >>> tg.embedding_backward(torch.ones(3, 2), [2, 0, 2], 4)[:, 0].tolist()
    [1.0, 0.0, 2.0, 0.0]
    """
    _tensor(grad, "grad")
    ids = _integers(ids, "ids", grad)
    probability, number = lower_dropout(dropout_p, seed, grad.device)
    checks.choice(pad_output, "pad_output", ("row", "zero"))
    rows = checks.size(num_rows, "num_rows")
    options = (
        checked_padding_idx(padding_idx, rows),
        checked_ignore_id(ignore_id),
        1.0 if scale is None else checks.real(scale, "scale"),
    )
    if not checks.flag(sparse, "sparse") and out is None:
        return backward_call(grad, ids, rows, *options, number, probability)
    threads = -torch.get_num_threads()
    arguments = grad, ids, rows, *options, probability, seed_number(number, grad)
    if out is None:
        _without_gradient("sparse=True", grad)
        if grad.is_cuda:
            return native(grad).embedding_backward_sparse(*arguments, threads)
        found, values = _core.embedding_backward_sparse(*arguments, lambda n, d: empty(grad, (n, d)), threads)
        return torch.from_numpy(found), values
    if sparse:
        raise ValueError("out cannot be given with sparse=True, whose number of rows depends on the ids")
    _tensor(out, "out")
    _without_gradient("out=", grad, out)
    check_gradient(grad, ids, rows, number)
    native(grad).embedding_backward(*arguments, out, threads)
    wrote_into(out)
    return out


def positional_encoding(
    positions: Any,
    dim: int,
    *,
    base: float = 10000.0,
    layout: Literal["interleaved", "split"] = "interleaved",
    spacing: Literal["paper", "inclusive"] = "paper",
    dtype: torch.dtype | str = torch.float32,
    out: Tensor | None = None,
) -> Tensor:
    """Return sinusoidal rows for positions.

    `tegula.positional_encoding` for tensors. It works under ``torch.compile``, ``torch.export``
    and ``torch.func.vmap``; positions have no gradient.

    Parameters
    ----------
    positions : int or Tensor
        An int n stands for positions 0..n-1; or integers or floats of any shape.
    dim : int
        Length of a row.
    base : float, default 10000.0
        The longest wavelength is about ``2 pi base``.
    layout : {"interleaved", "split"}
        sin, cos, sin, cos ..., or all sines, then all cosines.
    spacing : {"paper", "inclusive"}
        Frequencies ``base**(-2i/dim)``, or ``base**(-i/(half-1))`` (tensor2tensor, fairseq).
    dtype : torch.dtype or str, default torch.float32
        float64, float32, float16 or bfloat16.
    out : Tensor, optional
        Where to write: of shape ``positions.shape + (dim,)`` and of `dtype`.

    Returns
    -------
    Tensor, positions.shape + (dim,)

    Raises
    ------
    TypeError, ValueError
        As `tegula.positional_encoding`.
    RuntimeError
        When `positions` requires grad.

    Examples
    --------
    >>> import torch, tegula as tg
    >>> tg.positional_encoding(torch.tensor([0, 7]), 4)[0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    if isinstance(positions, (bool, int)):
        count = checks.integer(positions, "positions")
        if count < 0:
            raise ValueError(f"positions must be at least 0 as a count, got {count}")
        positions = torch.arange(count)
    _tensor(positions, "positions")
    check_positions(positions)
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if found not in FLOATS:
        raise TypeError(f"dtype must be float64, float32, float16 or bfloat16, got {dtype}")
    size, number = checked_dim(dim), checked_base(base)
    split = checks.choice(layout, "layout", ("interleaved", "split")) == "split"
    inclusive = checks.choice(spacing, "spacing", ("paper", "inclusive")) == "inclusive"
    refuse_derivative("positional_encoding", positions)
    if out is None:
        result: Tensor = ops.positional_encoding(positions, size, number, split, inclusive, found)
        return result
    _tensor(out, "out")
    if out.dtype != found:
        raise TypeError(f"out must have dtype {str(found).removeprefix('torch.')}, got {out.dtype}")
    _without_gradient("out=", out)
    native(positions).positional_encoding(
        positions, size, number, split, inclusive, None, out, -torch.get_num_threads()
    )
    wrote_into(out)
    return out


def _tensor(value: Any, name: str) -> None:
    """TypeError unless `value` is a tensor."""
    if not isinstance(value, Tensor):
        refuse_kind(name, value, None)


def _integers(value: Any, name: str, like: Tensor) -> Tensor:
    """`value` as a tensor, beside `like`; lists and ints are taken, too."""
    if not isinstance(value, Tensor):
        if isinstance(value, np.ndarray):
            _tensor(value, name)
        array = checks.integers(value, name)
        value = torch.from_numpy(array).to(like.device)
    result: Tensor = value
    if result.is_floating_point() or result.is_complex() or result.dtype == torch.bool:
        raise TypeError(f"{name} must have an integer dtype, got {str(result.dtype).removeprefix('torch.')}")
    return result


def _without_gradient(option: str, *tensors: Tensor | None) -> None:
    if derivative_is_wanted(*tensors):
        raise RuntimeError(f"{option} has no gradient, but a tensor requires grad; detach it, or use torch.no_grad()")
