"""A mask object in the clothes of a tensor, for models that hand masks around as tensors.

Models pass an attention mask from layer to layer, and some slice, concatenate or combine it on the
way. So what they are handed is a tensor: bool, (B, 1, Lq, Lk), True = may attend. Attention takes the
mask object out of it. Any operation of torch sees what the mask shows, computed when it is first
needed; only where it is added to floats, it counts as a mask that is meant to be added.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...masks import Mask, dense
from ...masks._rows import Intervals
from .warnings import warn_once

_aten = torch.ops.aten
ADDITIONS = (_aten.add.Tensor, _aten.add_.Tensor)
# What only moves bools: its result is a mask as well, which a layer may add to its scores.
MOVES = frozenset(
    {
        "slice", "select", "view", "_unsafe_view", "_reshape_alias", "expand", "unsqueeze", "squeeze", "permute",
        "transpose", "t", "index", "index_select", "cat", "stack", "repeat", "clone", "_to_copy", "split",
        "split_with_sizes", "unbind",
    }
)  # fmt: skip


class Cut(NamedTuple):
    """A slice of step 1 along one axis."""

    axis: int
    first: int
    last: int


class Source:
    """What a mask tensor and its slices have in common.

    `written` says that an operation may have changed the bools, or holds a view through which it can:
    from then on they are the mask.
    """

    def __init__(self, mask: Mask | None, device: torch.device, sizes: tuple[int, int, int] = (0, 0, 0)) -> None:
        self.mask = mask
        self.sizes = sizes  # batch, q_len, k_len
        self.device = device
        self.bools: Tensor | None = None
        self.written = False
        self.parts: dict[tuple[Cut, ...], Mask] = {}  # every layer cuts the same part out

    def dense(self) -> Tensor:
        if self.bools is None:
            assert self.mask is not None
            batch, q_len, k_len = self.sizes
            with torch.inference_mode(False):
                shown = self.mask.dense(q_len, k_len)
                bools = torch.as_tensor(shown, device=self.device).expand(batch, 1, q_len, k_len)
                # Memory of its own: every entry may be written to.
                self.bools = bools.clone(memory_format=torch.contiguous_format)
        return self.bools


class MaskTensor(Tensor):
    """A bool tensor (B, 1, Lq, Lk) that carries a mask object.

    Parameters
    ----------
    mask : Mask
        One of `tegula.masks`, the same for all heads.
    batch, q_len, k_len : int
        The sizes B, Lq and Lk.
    device : torch.device or str
        Where the tensor seems to lie, and its bools do once they are needed.

    Notes
    -----
    Hugging Face models pass a mask with four axes on as it is: one of these may be given as
    ``attention_mask``, for example for documents packed in one row.

    Examples
    --------
    >>> import tegula as tg
    >>> from tegula.integrations.transformers import MaskTensor
    >>> mask = MaskTensor(tg.masks.documents(cu_seqlens=[0, 2, 3]), batch=1, q_len=3, k_len=3)
    >>> mask.shape, mask.dtype
    (torch.Size([1, 1, 3, 3]), torch.bool)
    >>> mask[0, 0].int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """

    _source: Source
    _cuts: tuple[Cut, ...]

    @staticmethod
    def __new__(cls, mask: Mask, batch: int, q_len: int, k_len: int, device: torch.device | str = "cpu") -> MaskTensor:
        if not isinstance(mask, Mask):
            raise TypeError(f"mask must be one of tegula.masks, got {type(mask).__name__}")
        # The lengths and the batch must fit, now and not in the middle of a model.
        lo, hi, pairs = mask._lower(batch, 1, q_len, k_len)
        if pairs is None and not isinstance(mask, Intervals):
            shape = (*lo.shape[:-3], max(lo.shape[-3], hi.shape[-3]), 1, q_len)
            mask = Intervals(np.broadcast_to(lo, shape).copy(), np.broadcast_to(hi, shape).copy(), k_len)
        return cls._of(Source(mask, torch.device(device), (batch, q_len, k_len)), (), (batch, 1, q_len, k_len))

    @classmethod
    def _of(cls, source: Source, cuts: tuple[Cut, ...], shape: Any, strides: Any = None) -> MaskTensor:
        """A tensor that looks like its bools: also with their strides, by which `reshape` decides."""
        made: MaskTensor = Tensor._make_wrapper_subclass(
            cls, shape, strides=strides, dtype=torch.bool, device=source.device
        )
        made._source, made._cuts = source, cuts
        return made

    @classmethod
    def _moved(cls, bools: Tensor) -> Tensor:
        """A mask of any shape that is what its bools say."""
        if bools.dtype != torch.bool:
            return bools
        source = Source(None, bools.device)
        source.bools, source.written = bools, True
        return cls._of(source, (), bools.shape, bools.stride())

    def mask_object(self) -> Mask:
        """The mask: the object itself, or what became of its bools."""
        source = self._source
        if not source.written:
            mask = source.mask
            assert mask is not None
            if not self._cuts:
                return mask
            if self._cuts in source.parts:
                return source.parts[self._cuts]
            if isinstance(mask, Intervals):
                for axis, first, last in self._cuts:
                    spans = [slice(first, last) if axis == n else slice(None) for n in (0, 2, 3)]
                    mask = mask.part(*spans)
                source.parts[self._cuts] = mask
                return mask
        return dense(self.bools())

    def bools(self) -> Tensor:
        """The mask as a plain tensor."""
        found = self._source.dense()
        for axis, first, last in self._cuts:
            found = found.narrow(axis, first, last - first)
        return found

    def additive(self, scores: Any) -> Tensor:
        """The mask as what a layer means that adds it to its scores: 0 = may attend, else the least float."""
        if not (isinstance(scores, Tensor) and scores.is_floating_point()):
            return self.bools()
        warn_once(
            "A layer adds its attention mask to its scores instead of calling the registered attention: "
            "there it runs as with attn_implementation='eager'."
        )
        hidden = ~self.bools()
        return torch.zeros(self.shape, dtype=scores.dtype).masked_fill_(hidden, torch.finfo(scores.dtype).min)

    # What torch does without an operation, in memory that this tensor does not have.

    def numpy(self, *, force: bool = False) -> Any:
        self._source.written = True  # or soon may be
        return self.bools().numpy(force=force)

    def tolist(self) -> Any:
        return self.bools().tolist()

    def share_memory_(self) -> MaskTensor:
        return self  # other processes get the mask object

    def __deepcopy__(self, memo: Any) -> MaskTensor:
        make, arguments = self.__reduce_ex__(None)
        copied: MaskTensor = make(*arguments)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._source.written:
            return MaskTensor._moved, (self.bools().clone(),)
        batch, _, q_len, k_len = self.shape
        return MaskTensor, (self.mask_object(), batch, q_len, k_len, self.device)

    def __repr__(self, **_: Any) -> str:
        shown = self.bools() if self._source.written else self._source.mask
        return f"MaskTensor({shown!r}, shape={tuple(self.shape)})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten.alias.default or func is _aten.detach.default:
            return cls._of(args[0]._source, args[0]._cuts, args[0].shape, args[0].stride())
        if func is _aten.slice.Tensor:
            part = sliced(*args, **kwargs)
            if part is not None:
                return part

        if func in ADDITIONS and len(args) == 2 and not kwargs:
            first, second = (x.additive(y) if isinstance(x, MaskTensor) else x for x, y in (args, args[::-1]))
            return func(first, second)

        shares = any(argument.alias_info is not None for argument in func._schema.arguments)

        def opened(value: Any) -> Any:
            if isinstance(value, MaskTensor):
                if shares:
                    value._source.written = True
                return value.bools()
            if isinstance(value, (list, tuple)):
                return type(value)(map(opened, value))
            return value

        found = func(*map(opened, args), **{name: opened(value) for name, value in kwargs.items()})
        moved = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
        if func.__name__.split(".")[0] not in MOVES or not isinstance(moved, MaskTensor):
            return found
        return [cls._moved(x) for x in found] if isinstance(found, (list, tuple)) else cls._moved(found)


def sliced(mask: MaskTensor, axis: int = 0, first: Any = None, last: Any = None, step: int = 1) -> MaskTensor | None:
    """The slice of a mask tensor as another one, where it can be; its bools are a view of the first one's."""
    axis %= mask.dim()
    size = mask.shape[axis]
    first, last, _ = slice(first, last).indices(size)
    if step != 1:
        return None
    last = max(first, last)
    whole = (first, last) == (0, size)
    if not whole and (axis == 1 or not isinstance(mask._source.mask, Intervals)):
        return None
    cuts = mask._cuts if whole else (*mask._cuts, Cut(axis, first, last))
    shape = (*mask.shape[:axis], last - first, *mask.shape[axis + 1 :])
    return MaskTensor._of(mask._source, cuts, shape, mask.stride())
