"""torch tensors on a simulated GPU, for a torch that was built without CUDA.

`GpuTensor` says that it lies on ``cuda:N`` and has its numbers in the simulator's memory. torch's own operations
run on the CPU beneath it; the package's operators, which a dispatcher with CUDA calls with the tensors as they
are, get them as they are.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import simulated_gpu
import torch
from cuda_sim.device_array import DeviceArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
# A torch without CUDA would have nothing to start.
torch.cuda._lazy_init = lambda: None
torch.cuda.is_available = torch.cuda.is_bf16_supported = lambda *_: True
torch.cuda.amp.common.amp_definitely_not_available = lambda: False
STREAM = 0x5EED  # what the package has to launch on
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class _Memory:
    """The simulator's memory behind tensors, found again by its address."""

    def __init__(self) -> None:
        self.alive: dict[int, DeviceArray] = {}

    def tensor(self, size: int, device: int) -> torch.Tensor:
        """Bytes that nobody has written, as a tensor of the CPU."""
        array = DeviceArray.empty(simulated_gpu.simulator(), size, np.uint8, device)
        self.alive[array.pointer] = array
        return torch.from_numpy(array.memory_view)

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.alive


MEMORY = _Memory()


def place(tensor: torch.Tensor, device: int, written: bool = True) -> torch.Tensor:
    """A tensor with the strides of `tensor` in the simulator's memory, a copy unless it lies there already."""
    if MEMORY.holds(tensor):
        return tensor
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    size = reach * tensor.element_size()
    there = MEMORY.tensor(max(size, 1), device)[:size].view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    if written and tensor.numel():
        there.copy_(tensor)
        simulated_gpu.simulator().mark_written(there.data_ptr(), size)
    return there


class GpuTensor(torch.Tensor):
    """A tensor on a simulated GPU. `held`: the same on the CPU, in the simulator's memory."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor, device: int = 0) -> GpuTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=0, dtype=held.dtype, device=f"cuda:{device}"
        )
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"GpuTensor({self.held!r}, device={self.device})"

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(function, args, kwargs or {})


GpuTensor.__dlpack_c_exchange_api__ = None  # so that tensors are read by their attributes


def run(function: Any, args: Any, kwargs: Any) -> Any:
    """An operation on tensors of the simulated GPU."""
    if function.namespace == "tegula":
        return function.redispatch(CUDA, *args, **kwargs)
    devices = [x.device.index for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, GpuTensor)]
    wanted = kwargs.get("device")
    to_cpu = wanted is not None and torch.device(wanted).type == "cpu"
    if wanted is not None and not to_cpu:
        devices = [torch.device(wanted).index or 0]
    device = devices[0] if devices else 0

    def opened(x: Any) -> Any:
        if isinstance(x, GpuTensor):
            return x.held
        return torch.device("cpu") if isinstance(x, torch.device) and x.type == "cuda" else x

    found = function(*tree_map(opened, args), **tree_map(opened, kwargs))
    if to_cpu:
        return tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) and MEMORY.holds(x) else x, found)
    written = function.overloadpacket.__name__ not in EMPTY
    for x in torch.utils._pytree.tree_leaves((args, kwargs)):  # written in place, as far as anybody can tell
        if isinstance(x, GpuTensor) and function._schema.is_mutable and x.held.numel():
            reach = 1 + sum((n - 1) * s for n, s in zip(x.held.shape, x.held.stride(), strict=True))
            simulated_gpu.simulator().mark_written(x.held.data_ptr(), reach * x.held.element_size())

    def wrapped(x: Any) -> Any:
        return GpuTensor(place(x, device, written), device) if isinstance(x, torch.Tensor) else x

    inputs = {id(x.held): x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, GpuTensor)}
    return (
        tree_map(lambda x: inputs.get(id(x)) or wrapped(x), found)
        if isinstance(found, (tuple, list))
        else (inputs.get(id(found)) if id(found) in inputs else wrapped(found))
    )


class Factories(TorchDispatchMode):
    """Operations that make tensors on "cuda" without having one."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda" and function.namespace != "tegula":
            return run(function, args, kwargs)
        return function(*args, **kwargs)


def gpu(tensor: Any, device: int = 0) -> GpuTensor:
    """A copy of a tensor or an array on the simulated GPU."""
    tensor = torch.as_tensor(tensor)
    made = GpuTensor(place(tensor.detach(), device), device)
    return made.requires_grad_(tensor.requires_grad)


def cpu(tensor: GpuTensor | None) -> torch.Tensor | None:
    """A copy on the CPU; every byte must have been written."""
    if tensor is None:
        return None
    held = tensor.detach().held
    array = MEMORY.alive[held.untyped_storage().data_ptr()]
    missing = simulated_gpu.simulator().unwritten(array.pointer, array.nbytes)
    assert missing == 0 or not held.is_contiguous(), f"{missing} bytes were never written"
    return held.clone()


@contextlib.contextmanager
def current_stream():
    """torch's question for the stream, which a torch without CUDA cannot answer."""
    known = torch.cuda.current_stream
    torch.cuda.current_stream = lambda device=None: type("Stream", (), {"cuda_stream": STREAM})()
    try:
        yield
    finally:
        torch.cuda.current_stream = known
