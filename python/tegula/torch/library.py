"""The operators' library: `torch.ops.tegula.*`, and what all operators are registered with.

Operators are plain `torch.library.Library` registrations: a schema, a kernel for the processor and GPUs, a fake
kernel that gives shapes, dtypes and strides, and kernels for the keys of autograd and autocast. They
take tensors and numbers only. Masks, layouts and polite checks stay in front of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch

from .. import _core, cuda

LIBRARY = torch.library.Library("tegula", "DEF")

# Results have the order of q's axes in memory: a compiler may not choose it.
_TAGS = (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),
)

# Tensors that no kernel reads.
_REFUSED = ("SparseCPU", "SparseCsrCPU", "MkldnnCPU", "QuantizedCPU", "NestedTensorCPU", "NestedTensorCUDA")


def define(
    name: str,
    schema: str,
    *,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    autograd: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | None = None,
    low_precision: tuple[int, ...] = (),
) -> Any:
    """Define and register an operator, or the overload "name.overload", and return it.

    torch leaves out trailing arguments that equal their defaults; `fake` and `autograd` get them all.
    `vmap` gets the operator before what `torch.library.register_vmap` says. `low_precision` are the
    places of the arguments that autocast casts.
    """
    LIBRARY.define(name + schema, tags=_TAGS)
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, kernel, device)
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.tegula, packet), overload or "default")
    names = [argument.name for argument in op._schema.arguments]
    defaults = tuple(argument.default_value for argument in op._schema.arguments)
    torch.library.register_fake(f"tegula::{name}", completed(fake, defaults), lib=LIBRARY)
    for key in _REFUSED:
        LIBRARY.impl(name, lambda *args, **kwargs: refuse(names, args, kwargs), key)
    if autograd is not None:
        LIBRARY.impl(name, completed(autograd, defaults), "Autograd")
    # For nested tensors there is no way past this key.
    LIBRARY.impl(name, lambda *args, **kwargs: refuse(names, args, kwargs), "AutogradNestedTensor")
    if vmap is not None and hasattr(torch.library, "register_vmap"):  # torch 2.5
        torch.library.register_vmap(f"tegula::{name}", partial(vmap, op), lib=LIBRARY)
    if low_precision:
        for device in ("cpu", "cuda"):
            LIBRARY.impl(name, autocast(op, device, low_precision), f"Autocast{device.upper()}")
    return op


def completed(function: Callable[..., Any], defaults: tuple[Any, ...]) -> Callable[..., Any]:
    """`function` with the defaults of the arguments that a call leaves out."""

    @wraps(function)
    def call(*args: Any) -> Any:
        return function(*args, *defaults[len(args) :])

    return call


def autocast(op: Any, device: str, places: tuple[int, ...]) -> Callable[..., Any]:
    """A kernel that casts the arguments at `places` to the type of autocast."""
    key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device.upper()}"))

    def cast(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        changed = list(args)
        for place in places:
            x = changed[place]
            if x.is_floating_point() and x.dtype != torch.float64:
                changed[place] = x.to(dtype)
        with torch._C._ExcludeDispatchKeyGuard(key):
            return op(*changed, **kwargs)

    return cast


PLAIN = (torch.Tensor, torch.nn.Parameter)  # not those that stand for other tensors, or watch what is done with them

# Bound once: these are asked on every call.
_KINDS = frozenset((*PLAIN, type(None)))
_is_compiling = torch.compiler.is_dynamo_compiling
_in_transform = torch._C._are_functorch_transforms_active
_in_function_mode = torch._C._is_torch_function_mode_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_jit_state = torch._C._get_tracing_state
_profiled = torch._C._autograd._profiler_enabled
_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_AUTOCAST, _AUTOCAST_CUDA = torch._C.DispatchKey.AutocastCPU, torch._C.DispatchKey.AutocastCUDA
_forward_ad = torch.autograd.forward_ad


def direct(*tensors: torch.Tensor | None) -> bool:
    """Whether torch's dispatcher would do nothing with these tensors but autograd, and call the kernel.

    Its way costs more than a small kernel takes. Without it, tensors that are not plain memory reach the
    native module, whose NotPlainError says that they have to go its way all the same.
    """
    return not (
        _is_compiling()  # first: what follows cannot be compiled
        or not _KINDS.issuperset(map(type, tensors))
        or _in_transform()
        or _in_function_mode()
        or _dispatch_modes()
        or _profiled()
        or not _excluded(_AUTOCAST_CUDA if tensors and getattr(tensors[0], "is_cuda", False) else _AUTOCAST)
        or _jit_state() is not None
        or _forward_ad._current_level >= 0
    )


def native(x: torch.Tensor) -> Any:
    """The native module that computes with `x`: that of the processor, or of GPUs."""
    return cuda.native() or _core if x.is_cuda else _core


def wrote_into(*tensors: torch.Tensor) -> None:
    """Lets autograd know that tensors have other numbers now: one that saved them must not use these."""
    if not torch.compiler.is_compiling():
        for x in tensors:
            if not x.is_inference():
                torch.autograd.graph.increment_version(x)


def refuse(names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """TypeError that names the first tensor that no kernel reads."""
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        if isinstance(value, torch.Tensor):
            check_plain(value, name)


def check_plain(x: torch.Tensor, name: str) -> None:
    """TypeError unless `x` is strided, where there are kernels, and neither nested nor quantized."""
    here = x.is_cpu or (x.is_cuda and cuda.is_built())
    if here and x.layout is torch.strided and not x.is_nested and not x.is_quantized:
        return
    if not here and x.device.type != "meta":
        reason = ": this is no CUDA build of tegula" if x.device.type == "cuda" else ""
        raise TypeError(f"{name} is on device '{x.device}', expected 'cpu'{reason}")
    kind = type(x).__name__
    if x.layout != torch.strided:
        raise TypeError(f"{name} is not a plain tensor that can be read here: {kind} of layout {x.layout}")
    if x.is_nested or x.is_quantized:
        what = "nested" if x.is_nested else "quantized"
        raise TypeError(f"{name} is not a plain tensor that can be read here: {kind} is {what}")


def check_same_device(first_name: str, first: torch.Tensor, **others: torch.Tensor | None) -> None:
    """TypeError that names the first of `others` that is on another device than `first`.

    One tensor on "meta" is enough for the fake kernel to be chosen, and its results hold no numbers.
    """
    for name, x in others.items():
        if x is not None and x.device != first.device:
            raise TypeError(f"{name} is on device '{x.device}' but {first_name} is on device '{first.device}'")
