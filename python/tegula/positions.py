"""Sinusoidal positional encoding."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from . import _core, checks


def positional_encoding(
    positions: Any,
    dim: int,
    *,
    base: float = 10000.0,
    layout: Literal["interleaved", "split"] = "interleaved",
    spacing: Literal["paper", "inclusive"] = "paper",
    dtype: Any = "float32",
    out: Any = None,
) -> Any:
    r"""Encode positions by sines and cosines of geometrically spaced frequencies.

    Pair ``i`` of the ``ceil(dim / 2)`` pairs holds :math:`\sin(p f_i)` and
    :math:`\cos(p f_i)`; an odd `dim` has one sine more than cosines.
    A tensor goes to `tegula.torch.positional_encoding`.

    Parameters
    ----------
    positions : int or array of integers or floats, any shape
        An int ``n`` stands for positions ``0 .. n - 1``. Negative and fractional
        positions are welcome; there is no largest one. NaN and infinite positions give
        rows of NaN.
    dim : int
        Length of a row, from 0 up.
    base : float, default 10000.0
        The longest wavelength is about ``2 pi base``.
    layout : {"interleaved", "split"}
        ``sin cos sin cos ...`` as in the paper, or all sines and then all cosines.
    spacing : {"paper", "inclusive"}
        ``f_i = base ** (-2 i / dim)`` [1]_, or ``base ** (-i / (half - 1))`` with
        ``half = ceil(dim / 2)`` (tensor2tensor, fairseq), whose last one is ``1 / base``.
    dtype : float dtype, default "float32"
        float64, float32, float16 or bfloat16 (from ``ml_dtypes``).
    out : ndarray, optional
        Where to write: of shape ``positions.shape + (dim,)`` and of `dtype`, any strides.

    Returns
    -------
    ndarray, ``positions.shape + (dim,)``
        Of `dtype`; `out` if it was given.

    Raises
    ------
    TypeError
        Positions that are bool or no numbers; a `dtype` that is no float; options of the
        wrong kind.
    ValueError
        A negative `dim` or count; a `base` that is not positive and finite; an unknown
        `layout` or `spacing`; an `out` that does not fit.

    Notes
    -----
    Frequency, phase, sine and cosine are float64, and the result is rounded once: float32
    is within 1 ulp, and float16 and bfloat16 within half an ulp, of the float64 value for
    ``|position| <= 2**24``. ``PE[p + k]`` is a rotation of ``PE[p]`` that depends on ``k``
    only.

    References
    ----------
    .. [1] Vaswani et al., "Attention Is All You Need", 2017, section 3.5.

    Examples
    --------
    >>> import tegula as tg
    >>> tg.positional_encoding(2, 6).round(4).tolist()[0]
    [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    >>> tg.positional_encoding([[-1.5], [998.39]], 512, dtype="float16").shape
    (2, 1, 512)
    """
    if checks.is_tensor(positions):
        return checks.tensor_functions().positional_encoding(
            positions, dim, base=base, layout=layout, spacing=spacing, dtype=dtype, out=out
        )
    options = (
        checked_dim(dim),
        checked_base(base),
        checks.choice(layout, "layout", ("interleaved", "split")) == "split",
        checks.choice(spacing, "spacing", ("paper", "inclusive")) == "inclusive",
        checks.float_dtype(dtype),
        out,
    )
    if checks.is_device_array(positions):
        return checks.array_functions().positional_encoding(positions, *options)
    return _core.positional_encoding(_positions(positions), *options)


def _positions(positions: Any) -> np.ndarray:
    if isinstance(positions, (int, np.integer)) and not isinstance(positions, (bool, np.bool_)):
        if positions < 0:
            raise ValueError(f"positions must be at least 0 as a count, got {positions}")
        return np.arange(positions)
    if not isinstance(positions, (np.ndarray, np.generic, list, tuple, float, bool)):
        kind = type(positions)
        raise TypeError(f"positions must be an int, an array or a list, got {kind.__module__}.{kind.__name__}")
    array = np.asarray(positions)
    if array.dtype.kind in "bOcSUMm":
        raise TypeError(f"positions must have an integer or float dtype, got {array.dtype}")
    return array


def checked_dim(dim: Any) -> int:
    """An int that is at least 0."""
    size = checks.integer(dim, "dim")
    if size < 0:
        raise ValueError(f"dim must be at least 0, got {size}")
    return size


def checked_base(base: Any) -> float:
    """A positive float."""
    number = checks.real(base, "base")
    if number <= 0:
        raise ValueError(f"base must be positive, got {number}")
    return number
