"""Masks for torch: the words of `_arrays` on tensors, and masks made of tensors.

Imported only where a tensor or a device is seen. A call that is being traced (torch.compile, export,
fake tensors) must not read numbers, and numbers on another device are not waited for: there bounds
are clamped instead of checked, and bools that may be runs of keys or not are kept as bools.
Everywhere else masks are lowered by NumPy, with its checks, and the result is handed over.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _core, cuda
from . import _native
from ._combined import Combined
from ._dense import Dense, check_is_bool
from ._documents import Inside, Places
from ._inputs import borders_of, length_of, no_mask
from ._kinds import Aligned, Full
from ._mask import Mask
from ._padding import positions as positions_of_arrays
from ._runs import hull, visible

NAMES = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
INTEGERS = {getattr(torch, name) for name in NAMES if hasattr(torch, name)}
FLOATS = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}
# The dispatch modes under which tensors are fake or operations are recorded.
_KEYS = torch._C._TorchDispatchModeKey
NOTHING = contextlib.nullcontext()
_in_transform = torch._C._are_functorch_transforms_active
_jit_state = torch._C._get_tracing_state
_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_compiling = torch.compiler.is_compiling
TRACING = (_KEYS.FAKE, _KEYS.PROXY, _KEYS.FUNCTIONAL)


# -- what callers hand over -------------------------------------------------------------------------


def traced() -> bool:
    """Whether operations are recorded, or run on tensors without numbers. Modes that only look on do not count.

    What `torch.jit.trace` records has numbers, but those that are read would be constants of the trace.
    """
    if _is_compiling() or _jit_state() is not None:
        return True
    return _dispatch_modes() > 0 and any(torch._C._get_dispatch_mode(key) for key in TRACING)


def strict_export() -> bool:
    exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # since torch 2.7
    return bool(exporting() and torch.compiler.is_dynamo_compiling())


def opened(value: Any) -> Any:
    """See `_inputs.opened`."""
    if traced():
        return torch.as_tensor(value) if isinstance(value, (int, list, tuple, np.ndarray)) else value
    readable = (
        type(value) in (Tensor, torch.nn.Parameter)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.is_nested
        and (value.dtype in INTEGERS or value.dtype is torch.bool)
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )
    if not readable:
        return value
    with outside():
        return value.numpy()


def outside() -> Any:
    """A context beneath the transforms of `torch.func`: there plain tensors are read and made as everywhere.

    Inside, each tensor that is made belongs to a level, and must not be kept when the level ends.
    """
    return torch._C._DisableFuncTorch() if _in_transform() else NOTHING


def described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"


def integers(value: Any, name: str) -> Tensor:
    """A tensor of integers as int64, a copy, or TypeError."""
    tensor = plain(value, name)
    if tensor.dtype not in INTEGERS:
        raise TypeError(f"{name} must be integers, got {described(value)}")
    return tensor.detach().to(torch.int64, copy=True)


def bools(value: Any, name: str) -> Tensor:
    """A tensor of bools, not copied, or TypeError."""
    tensor = plain(value, name)
    if tensor.dtype is not torch.bool:
        hint = "; .bool() makes it one" if tensor.dtype in INTEGERS else ""
        raise TypeError(f"{name} must be a bool tensor, True = real, got {described(value)}{hint}")
    return tensor


def mask_bools(value: Any) -> Tensor:
    """A bool tensor given as mask, or TypeError."""
    tensor = plain(value, "mask")
    if tensor.dtype is torch.bool:
        return tensor
    hint = "; if 1 means may attend, .bool() makes it one" if tensor.dtype in INTEGERS else ""
    if tensor.dtype.is_floating_point:
        hint = "; numbers to add to the scores go to bias="
    raise TypeError(f"mask must be bool, True = may attend, got {described(value)}{hint}")


def plain(value: Any, name: str) -> Tensor:
    """A tensor with a number at each place, or TypeError."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.layout is not torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else value.layout
        raise TypeError(f"{name} must be a dense, strided tensor, got layout {layout}")
    return value


def as_mask(value: Any) -> Mask:
    """A mask object as it is, a bool tensor as `masks.dense` of it, for use in one call with tensors."""
    if isinstance(value, Mask):
        return value
    if not isinstance(value, Tensor):
        raise TypeError(f"mask must be a mask of tegula.masks or a bool tensor, got {no_mask(value)}")
    return Dense(check_is_bool(value), copy=False)


# -- the normal form --------------------------------------------------------------------------------


class Torch:
    """The words of `_arrays.NumPy`, without reading a number."""

    where = staticmethod(torch.where)
    maximum = staticmethod(torch.maximum)
    minimum = staticmethod(torch.minimum)

    @staticmethod
    def take(array: Tensor, places: Tensor, axis: int) -> Tensor:
        return array.index_select(axis, places)

    @staticmethod
    def stack(bounds: list[Tensor]) -> Tensor:
        return torch.stack(torch.broadcast_tensors(*bounds))

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def lowered(self, mask: Mask, batch: int, heads: int, q_len: int, k_len: int) -> Any:
        return mask._fitted(self, batch, heads, q_len, k_len)

    def constant(self, value: int) -> Tensor:
        return torch.full((1, 1, 1), value, dtype=torch.int32, device=self.device)

    def arange(self, length: int) -> Tensor:
        return torch.arange(length, device=self.device)

    def array(self, held: Any) -> Tensor:
        if isinstance(held, np.ndarray) and strict_export():
            raise NotImplementedError(
                "torch.export with strict=True loses the numbers that a mask from outside holds: make the mask of "
                "inputs or buffers in the exported function, or export with strict=False"
            )
        if isinstance(held, Tensor) and held.device.type == "meta" != self.device.type:
            raise TypeError(f"mask is on device 'meta', without numbers, but the call is on '{self.device}'")
        return torch.as_tensor(held, device=self.device)

    def ramp(self, first: Any, q_len: int, k_len: int) -> Tensor:
        if isinstance(first, (Tensor, np.ndarray)):
            first = self.array(first).reshape(-1, 1, 1)
        rows: Tensor = self.arange(q_len).reshape(1, 1, -1) + first
        return rows.clamp(0, k_len).to(torch.int32)

    def lengths(self, held: Any, name: str, longest: int, axis: str) -> Tensor:
        return self.array(held).reshape(-1, 1, 1).clamp(0, longest).to(torch.int32)

    def borders(self, held: Any, name: str, length: int, axis: str) -> Tensor:
        borders = self.array(held)
        # An empty document at the end takes what lies behind the last border.
        return torch.cat([borders, borders[-1:]])

    def documents_at(self, borders: Tensor, length: int) -> Tensor:
        found = torch.searchsorted(borders[1:], self.arange(length), right=True)
        return found.clamp(max=borders.shape[0] - 2)

    def bounds(self, values: Tensor, k_len: int) -> Tensor:
        return values.clamp(0, k_len).to(torch.int32)[:, None]


def lower(mask: Mask, batch: int, heads: int, q_len: int, k_len: int, device: torch.device) -> Any:
    """See `Mask._lower_torch`. What can be read is lowered by NumPy, and its last result kept."""
    if not mask._readable or traced():
        return mask._fitted(Torch(device), batch, heads, q_len, k_len)
    key = (batch, heads, q_len, k_len, device)
    last = mask._last_torch
    if last is not None and last[0] == key:
        return last[1]
    # Not as tensors of inference mode: autograd may have to save them later.
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else NOTHING, outside():
        if device.type == "cuda" and _of_numbers(mask):  # made there: nothing is copied, nor waited for
            lowered = mask._fitted(Torch(device), batch, heads, q_len, k_len)
        else:
            lowered = tuple(None if x is None else handed(x, device) for x in mask._lower(batch, heads, q_len, k_len))
    if not torch._C._len_torch_dispatch_stack():  # a mode may put its own tensors in place of these
        object.__setattr__(mask, "_last_torch", (key, lowered))
    return lowered


def _of_numbers(mask: Mask) -> bool:
    """Whether a mask holds no arrays."""
    if isinstance(mask, Combined):
        return all(map(_of_numbers, mask._parts))
    if not isinstance(mask, (Aligned, Full)):
        return False
    names = (name for kind in type(mask).__mro__ for name in getattr(kind, "__slots__", ()) if name[:5] != "_last")
    return not any(isinstance(getattr(mask, name), np.ndarray) for name in names)


def lower_bools(bools: Tensor, batch: int, heads: int, q_len: int, k_len: int) -> Any:
    """`lower` of `masks.dense(bools)`, a plain tensor of the CPU: as few steps as a small call can bear.

    dense is the tensor itself. None where something is wrong, for others to say what.
    """
    shape = tuple(bools.shape) if bools.ndim == 4 else (1, 1, *bools.shape)
    fits = shape[0] in (1, batch) and shape[1] in (1, heads) and shape[2:] == (q_len, k_len)
    if not fits or bools.dtype is not torch.bool or not bools.is_cpu or bools.layout is not torch.strided:
        return None
    lo, hi, runs = _core.mask_scan(bools)
    return lo, hi, (bools if bools.ndim == 4 else bools[None, None]) if runs > 2 else None


def handed(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """A tensor on the array's memory, or a copy on another device."""
    found = torch.from_numpy(array)
    return found if device.type == "cpu" else found.to(device)


def scan(array: Tensor) -> tuple[Tensor, Tensor, bool]:
    """See `_native.scan`. How many runs the rows have cannot be told."""
    k_len = array.shape[-1]
    if array.is_cuda and cuda.is_built() and not traced():
        lo, hi = (torch.empty(array.shape[:-1], dtype=torch.int32, device=array.device) for _ in range(2))
        cuda.native().mask_scan(array, lo, hi)
        return lo, hi, True
    if k_len == 0:
        none = torch.zeros(array.shape[:-1], dtype=torch.int32, device=array.device)
        return none, none, True
    key = torch.arange(k_len, dtype=torch.int32, device=array.device)
    lo = torch.where(array, key, k_len).amin(-1)
    hi = torch.where(array, key + 1, 0).amax(-1)
    return lo.to(torch.int32), hi.to(torch.int32), True


def places_of(q: Any, k: Any, inside: Inside) -> tuple[Tensor, Tensor, Places]:
    """See `_documents.places_of`. Whether documents are runs of keys cannot be told."""
    device = q.device if isinstance(q, Tensor) else k.device
    on = Torch(device)
    q, k = on.array(q), on.array(k)
    batch = k.shape[0] if q.shape[0] == 1 else q.shape[0]
    q, k = (ids.expand(batch, -1).contiguous() for ids in (q, k))
    q_sorted = q.sort(dim=-1).values
    k_sorted, k_order = k.sort(dim=-1, stable=True)

    begin, end = (torch.searchsorted(k_sorted, q, right=right) for right in (False, True))
    q_count = torch.searchsorted(q_sorted, q, right=True) - torch.searchsorted(q_sorted, q)
    first, last = inside.keys(on, ranks(q), q_count, end - begin)
    # The first and the last of the keys seen; one place more, for queries that see none.
    order, k_len = F.pad(k_order, (0, 1)), k.shape[1]
    lo = order.gather(1, (begin + first).clamp(0, k_len))
    hi = order.gather(1, (begin + last - 1).clamp(0, k_len)) + 1
    seen = first < last
    return torch.where(seen, lo, k_len), torch.where(seen, hi, 0), Places(q, first, last, k, ranks(k))


def ranks(ids: Tensor) -> Tensor:
    """See `_documents.ranks`."""
    ordered, order = ids.sort(dim=-1, stable=True)
    return order.argsort(dim=-1) - torch.searchsorted(ordered, ids)


# -- for everybody, of masks made of tensors --------------------------------------------------------


def lengths(q_len: Any, k_len: Any) -> Any:
    named = (("q_len", q_len), ("k_len", k_len))
    return [n if isinstance(n, torch.SymInt) else length_of(n, name) for name, n in named]


def intervals(mask: Mask, q_len: int, k_len: int) -> tuple[Tensor, Tensor]:
    q_len, k_len = lengths(q_len, k_len)
    lo, hi, _ = lower(mask, mask._batch, mask._heads, q_len, k_len, mask._device)
    lo, hi = hull(Torch, lo, hi)
    return lo.clone(), hi.clone()


def runs(mask: Mask, q_len: int, k_len: int) -> tuple[Tensor, Tensor]:
    q_len, k_len = lengths(q_len, k_len)
    lo, hi, _ = lower(mask, mask._batch, mask._heads, q_len, k_len, mask._device)
    return (lo[None], hi[None]) if lo.ndim == 3 else (lo, hi)


def _fillable(mask: Mask) -> bool:
    """Whether kernels may write the mask out now, where its tensors are."""
    if traced():
        return False
    # Tensors that stay where they are may belong to a transform.
    return bool(mask._readable or (mask._device.type == "cuda" and cuda.is_built() and not _in_transform()))


def dense(mask: Mask, q_len: int, k_len: int) -> Tensor:
    q_len, k_len = lengths(q_len, k_len)
    lo, hi, pairs = lower(mask, mask._batch, mask._heads, q_len, k_len, mask._device)
    if _fillable(mask):
        with outside():
            out = torch.empty(mask._shape(q_len, k_len), dtype=torch.bool, device=mask._device)
            _native.fill(out, lo, hi, pairs)
        return out
    shown = visible(Torch(mask._device), lo, hi, k_len)
    if pairs is not None:
        shown = shown & pairs
    each: Tensor = shown.expand(mask._batch, mask._heads, q_len, k_len).contiguous()
    return each[0, 0] if mask._batch == 1 and mask._heads == 1 else each


def additive(mask: Mask, q_len: int, k_len: int, dtype: Any) -> Tensor:
    found = FLOATS.get(dtype, dtype)
    if found not in FLOATS.values():
        raise TypeError(f"dtype must be float64, float32, float16 or bfloat16, got {dtype}")
    if _fillable(mask):
        q_len, k_len = lengths(q_len, k_len)
        with outside():
            out = torch.empty(mask._shape(q_len, k_len), dtype=found, device=mask._device)
            _native.fill(out, *lower(mask, mask._batch, mask._heads, q_len, k_len, mask._device))
        return out
    shown = dense(mask, q_len, k_len)
    return torch.zeros(shown.shape, dtype=found, device=shown.device).masked_fill(~shown, -torch.inf)


def area(mask: Mask, q_len: int, k_len: int) -> Tensor:
    q_len, k_len = lengths(q_len, k_len)
    lo, hi, pairs = lower(mask, mask._batch, mask._heads, q_len, k_len, mask._device)
    if pairs is not None:
        return dense(mask, q_len, k_len).sum()
    counts = (hi.to(torch.int64) - lo).clamp(min=0)
    total: Tensor = counts.expand(*counts.shape[:-3], mask._batch, mask._heads, q_len).sum()
    return total


def positions(cu_seqlens: Any, keep: Any) -> Tensor:
    """See `_padding.positions`."""
    given = keep if cu_seqlens is None else cu_seqlens
    array = opened(given)
    if not isinstance(array, Tensor):
        found = positions_of_arrays(
            cu_seqlens=None if cu_seqlens is None else array, keep=None if keep is None else array
        )
        return torch.from_numpy(found)
    if keep is not None:
        real = bools(keep, "keep")
        if real.ndim == 0:
            raise ValueError("keep must have at least one axis, got a single bool")
        return (real.cumsum(-1) - 1).clamp(min=0)
    borders = borders_of(cu_seqlens, "cu_seqlens")
    on = Torch(borders.device)
    borders = on.borders(borders, "cu_seqlens", 0, "T")
    length = int(borders[-1].item())
    return on.arange(length) - borders[on.documents_at(borders, length)]
