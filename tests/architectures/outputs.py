"""What a model returned, as a flat dictionary of tensors, and how two of them are compared."""

from __future__ import annotations

import torch

# Caches are compared by what is generated with them, losses are sums of what is compared anyway.
LEFT_OUT = ("cache", "past_key_values", "loss", "encoder_cache")


def tensors_of(value, name=""):
    """Every float tensor in what a model returned, {path: tensor}."""
    if isinstance(value, torch.Tensor):
        return {name: value} if value.is_floating_point() else {}
    if hasattr(value, "items"):
        pairs = value.items()
    elif isinstance(value, list | tuple):
        pairs = enumerate(value)
    else:
        return {}
    found = {}
    for key, entry in pairs:
        if key not in LEFT_OUT and entry is not None:
            found.update(tensors_of(entry, f"{name}.{key}" if name else str(key)))
    return found


def valid_part(tensors, keep):
    """Only the rows of tokens that are real. `keep` (B, L) bool; tensors without these two axes stay whole."""
    return {name: value[keep] if value.shape[:2] == keep.shape else value for name, value in tensors.items()}


def difference(result, reference):
    """The largest error over all tensors, each relative to its largest entry or 1, in float64; infinite where one is missing."""
    if result.keys() != reference.keys():
        return float("inf")
    worst = 0.0
    for name, expected in reference.items():
        if result[name].shape != expected.shape:
            return float("inf")
        if expected.numel() == 0:
            continue
        expected, found = expected.double(), result[name].double()
        finite = expected.isfinite()
        if not torch.equal(finite, found.isfinite()) or not torch.equal(expected[~finite], found[~finite]):
            return float("nan") if expected.isnan().any() else float("inf")
        if finite.any():
            scale = max(1.0, float(expected[finite].abs().max()))
            worst = max(worst, float((expected - found)[finite].abs().max()) / scale)
    return worst
