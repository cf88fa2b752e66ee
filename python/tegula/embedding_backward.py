"""The gradient of an embedding's table, dense or as the rows that occur."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from . import _core, checks
from .embedding import checked_ignore_id, checked_padding_idx


def embedding_backward(
    grad: Any,
    ids: Any,
    num_rows: int,
    *,
    padding_idx: int | None = None,
    pad_output: Literal["row", "zero"] = "row",
    ignore_id: int | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    out: Any = None,
    sparse: bool = False,
) -> Any:
    """Return the gradient of `embedding` with respect to `weight`.

    Row ``v`` is ``scale * sum(dropout(grad[place]))`` over the places where ``ids`` is ``v``.
    Tensors go to `tegula.torch.embedding_backward`.

    Parameters
    ----------
    grad : ndarray, (..., L, D)
        Gradient of the embedding's result: float64, float32, float16 or bfloat16
        (``ml_dtypes``); any strides, 0 included.
    ids : integers, (..., L)
        Those of the forward call, of any integer type.
    num_rows : int
        V, the number of rows of the table.
    padding_idx : int, optional
        The id of padding, in [-V, V). Its row gets no gradient.
    pad_output : {"row", "zero"}
        As in the forward call; the gradient is the same.
    ignore_id : int, optional
        An id that gets no gradient and may lie outside the table.
    scale : float, optional
        That of the forward call.
    dropout_p, seed : optional
        Those of the forward call: the elements that it dropped get no gradient, the others are
        divided by ``1 - dropout_p``.
    out : ndarray, (V, D), optional
        Of grad's dtype and any strides. The gradient is added to it; rows that no id
        names are left alone.
    sparse : bool, default False
        Return only the rows that occur in `ids`.

    Returns
    -------
    ndarray, (V, D)
        Of grad's dtype; `out` if it was given. Or, with ``sparse=True``, a pair:
    found : ndarray of int64, (N,)
        The ids that occur, each once, ascending, without the pad and the ignored id. With
        ``dropout_p=1`` none does.
    rows : ndarray, (N, D)
        Their rows of the gradient, of grad's dtype.

    Raises
    ------
    IndexError
        An id outside [0, V). The message gives the value, its place and the range.
    TypeError
        ids that are no integers; arrays that are not NumPy's; options of the wrong kind.
    ValueError
        Shapes that do not fit; `padding_idx` outside [-V, V); an option outside its range;
        dropout without a seed; an `out` that does not fit, shares memory with an input, or
        comes with ``sparse=True``.

    Notes
    -----
    Sums are float32 (float64 for float64) and each row is rounded once. Places are sorted by
    id, and each row is summed in their order: the same inputs give the same bits, whatever
    the number of threads. Nothing is written before every id has been checked. The sparse
    form needs memory for the rows that occur, however large V is.

    The gradient of a position or segment table is this function's, too: give it the
    positions or segments, broadcast to the shape of ids and with `ignore_id` where the
    forward pass gave zeros, no `scale`, and the same dropout.

    Examples
    --------
    >>> import numpy as np
    >>> import tegula as tg
    >>> grad = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    >>> tg.embedding_backward(grad, [2, 0, 2], 4).tolist()
    [[3.0, 4.0], [0.0, 0.0], [6.0, 8.0], [0.0, 0.0]]
    >>> found, rows = tg.embedding_backward(grad, [2, 0, 2], 4, padding_idx=0, sparse=True)
    >>> found.tolist(), rows.tolist()
    ([2], [[6.0, 8.0]])
    """
    if checks.is_tensor(grad):
        return checks.tensor_functions().embedding_backward(
            grad, ids, num_rows, padding_idx=padding_idx, pad_output=pad_output, ignore_id=ignore_id, scale=scale,
            dropout_p=dropout_p, seed=seed, out=out, sparse=sparse,
        )  # fmt: skip
    if checks.is_device_array(grad):
        return checks.array_functions().embedding_backward(
            grad, ids, num_rows, padding_idx=padding_idx, pad_output=pad_output, ignore_id=ignore_id, scale=scale,
            dropout_p=dropout_p, seed=seed, out=out, sparse=sparse,
        )  # fmt: skip
    if not isinstance(grad, np.ndarray):
        raise TypeError(f"grad must be a NumPy array, got {checks.kind(grad)}")
    ids = checks.integers(ids, "ids")
    rows = checks.size(num_rows, "num_rows")
    checks.choice(pad_output, "pad_output", ("row", "zero"))
    probability, number = checks.dropout(dropout_p, seed)
    arguments = (
        grad,
        ids,
        rows,
        checked_padding_idx(padding_idx, rows),
        checked_ignore_id(ignore_id),
        1.0 if scale is None else checks.real(scale, "scale"),
        probability,
        number,
    )
    if not checks.flag(sparse, "sparse"):
        return _core.embedding_backward(*arguments, out, 0)
    if out is not None:
        raise ValueError("out cannot be given with sparse=True, whose number of rows depends on the ids")
    return _core.embedding_backward_sparse(*arguments, None, 0)
