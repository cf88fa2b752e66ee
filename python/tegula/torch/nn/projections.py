"""The weights of multi-head attention: stored under torch's names, known under the tutorials' too."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import checks
from .checkpoints import explain

_LETTERS = ("q", "k", "v")
_KEYS = (
    "the keys are in_proj_weight (or q_proj_weight, k_proj_weight, v_proj_weight), in_proj_bias, out_proj.weight and "
    "out_proj.bias, or W_q, W_k, W_v and W_o, each .weight and .bias; bias=False makes a module without biases"
)
_TUTORIAL = ("W_q", "W_k", "W_v", "W_o")


class Projection(NamedTuple):
    """One of W_q, W_k and W_v: views of the parameters, to read, and to copy into under `torch.no_grad`."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = F.linear(x, self.weight, self.bias)
        return result


class Projections(nn.Module):
    """The four linear maps of attention.

    ``in_proj_weight`` (D + 2 G d, D) holds q's rows, then k's and v's (G key/value heads of size d).
    Where `fused` is off it is None, and ``q_proj_weight``, ``k_proj_weight`` and ``v_proj_weight``
    hold them. ``in_proj_bias`` is one in both cases; ``out_proj`` is a Linear(D, D).
    """

    in_proj_weight: Tensor | None
    in_proj_bias: Tensor | None

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None,
        kdim: int | None,
        vdim: int | None,
        bias: bool,
        fused: bool | None,
        init: str,
        device: Any,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.embed_dim = positive(d_model, "d_model")
        self.num_heads = positive(num_heads, "num_heads")
        if d_model % num_heads:
            fitting = [n for n in range(1, d_model + 1) if d_model % n == 0]
            raise ValueError(
                f"d_model={d_model} is not divisible by num_heads={num_heads}; numbers of heads that fit: {fitting}"
            )
        self.head_dim = self.embed_dim // self.num_heads
        self.num_kv_heads = self.num_heads if num_kv_heads is None else positive(num_kv_heads, "num_kv_heads")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads={num_kv_heads} must divide num_heads={num_heads}")
        self.kdim = self.embed_dim if kdim is None else positive(kdim, "kdim")
        self.vdim = self.embed_dim if vdim is None else positive(vdim, "vdim")
        self.init = checks.choice(init, "init", ("linear", "xavier"))

        same = self.kdim == self.vdim == self.embed_dim
        self._qkv_same_embed_dim = same if fused is None else checks.flag(fused, "fused")  # torch's name for it
        if self._qkv_same_embed_dim and not same:
            raise ValueError(f"fused=True needs kdim and vdim to be d_model={d_model}, got {self.kdim} and {self.vdim}")

        made: dict[str, Any] = {"device": device, "dtype": dtype}
        kv_dim = self.num_kv_heads * self.head_dim
        self._sizes = (self.embed_dim, kv_dim, kv_dim)
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"):
            self.register_parameter(name, None)
        if self._qkv_same_embed_dim:
            self.in_proj_weight = nn.Parameter(torch.empty((sum(self._sizes), self.embed_dim), **made))
        else:
            columns = (self.embed_dim, self.kdim, self.vdim)
            for letter, size, width in zip(_LETTERS, self._sizes, columns, strict=True):
                setattr(self, f"{letter}_proj_weight", nn.Parameter(torch.empty((size, width), **made)))
        if checks.flag(bias, "bias"):
            self.in_proj_bias = nn.Parameter(torch.empty(sum(self._sizes), **made))

        # Random numbers are drawn in the order of four Linear, or of torch.nn.MultiheadAttention.
        if self.init == "linear":
            self._reset_inputs()
        self.out_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=bias, **made)
        if self.init == "xavier":
            self._reset_inputs()

    def reset_parameters(self) -> None:
        """Draw all parameters again, as in the constructor."""
        if self.init == "linear":
            self._reset_inputs()
        self.out_proj.reset_parameters()
        if self.init == "xavier":
            self._reset_inputs()

    def _reset_inputs(self) -> None:
        if self.init == "linear":
            for weight, bias in zip(self._weights(), self._biases(), strict=True):
                with torch.no_grad():
                    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
                    if bias is not None:
                        nn.init.uniform_(bias, -(bound := 1 / math.sqrt(weight.shape[1])), bound)
            return
        for weight in self._weights() if self.in_proj_weight is None else (self.in_proj_weight,):
            nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    # -- the three inputs -----------------------------------------------------------------------

    def _weights(self) -> tuple[Tensor, ...]:
        if self.in_proj_weight is not None:
            return tuple(self.in_proj_weight.split(self._sizes))
        return tuple(getattr(self, f"{letter}_proj_weight") for letter in _LETTERS)

    def _biases(self) -> tuple[Tensor | None, ...]:
        return (None,) * 3 if self.in_proj_bias is None else tuple(self.in_proj_bias.split(self._sizes))

    def project(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """q W_q (..., D), k W_k and v W_v (..., G d): one product for as many of them as are the same tensor."""
        if self.in_proj_weight is not None and k is v:
            if q is k:
                return tuple(F.linear(q, self.in_proj_weight, self.in_proj_bias).split(self._sizes, -1))
            sizes = (self._sizes[0], 2 * self._sizes[1])
            weights = self.in_proj_weight.split(sizes)
            biases = (None, None) if self.in_proj_bias is None else self.in_proj_bias.split(sizes)
            return (F.linear(q, weights[0], biases[0]), *F.linear(k, weights[1], biases[1]).chunk(2, -1))
        return tuple(F.linear(x, w, b) for x, w, b in zip((q, k, v), self._weights(), self._biases(), strict=True))

    # -- the tutorials' names -------------------------------------------------------------------

    @property
    def W_q(self) -> Projection:
        """The projection of the queries, weight (D, D)."""
        return Projection(self._weights()[0], self._biases()[0])

    @property
    def W_k(self) -> Projection:
        """The projection of the keys, weight (G d, kdim)."""
        return Projection(self._weights()[1], self._biases()[1])

    @property
    def W_v(self) -> Projection:
        """The projection of the values, weight (G d, vdim)."""
        return Projection(self._weights()[2], self._biases()[2])

    @property
    def W_o(self) -> nn.Linear:
        """The projection of the result: `out_proj`."""
        return self.out_proj

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _TUTORIAL:
            _refuse_setting(name)
        super().__setattr__(name, value)

    # -- checkpoints ----------------------------------------------------------------------------

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        self._rename(state_dict, prefix)
        found = ((missing_keys, len(missing_keys)), (unexpected_keys, len(unexpected_keys)))
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        for keys, before in found:
            explain(keys, before, _KEYS)

    def _rename(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Bring the keys of a checkpoint to those of this module."""

        def moved(old: str, new: str) -> None:
            if prefix + old in state_dict and prefix + new not in state_dict:
                state_dict[prefix + new] = state_dict.pop(prefix + old)

        for kind in ("weight", "bias"):
            moved(f"W_o.{kind}", f"out_proj.{kind}")
            moved(f"qkv.{kind}", f"in_proj_{kind}")
        for letter in _LETTERS:
            moved(f"W_{letter}.weight", f"{letter}_proj_weight")

        def joined(parts: list[str], whole: str) -> None:
            if prefix + whole not in state_dict and all(prefix + part in state_dict for part in parts):
                state_dict[prefix + whole] = torch.cat([state_dict.pop(prefix + part) for part in parts])

        joined([f"W_{letter}.bias" for letter in _LETTERS], "in_proj_bias")
        weights = [f"{letter}_proj_weight" for letter in _LETTERS]
        if self.in_proj_weight is not None:
            joined(weights, "in_proj_weight")
        elif prefix + "in_proj_weight" in state_dict:
            whole = state_dict[prefix + "in_proj_weight"]
            if whole.shape[0] == sum(self._sizes):
                del state_dict[prefix + "in_proj_weight"]
                parts = whole.split(self._sizes)
                state_dict.update({prefix + name: part for name, part in zip(weights, parts, strict=True)})


def positive(value: Any, name: str) -> int:
    number = checks.integer(value, name)
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number


def _refuse_setting(name: str) -> NoReturn:
    raise AttributeError(
        f"{name} cannot be replaced: with torch.no_grad(), copy into {name}.weight and {name}.bias, "
        "or load a state_dict with these keys"
    )
