"""What a model returned, as a flat dictionary of tensors, and how two of them are compared."""

from __future__ import annotations

import torch

# Caches are compared by what is generated with them, losses are sums of what is compared anyway, and weights of
# attention are what eager alone returns.
LEFT_OUT = ("cache", "past_key_values", "loss", "encoder_cache", "attentions", "cross_attentions")


# Logits that a model excludes are -inf or the lowest number there is.
HUGE = 1e30


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
    """The largest error over all tensors, each relative to its largest entry or 1; infinite where one is missing."""
    if result.keys() != reference.keys():
        return float("inf")
    worst = 0.0
    for name, expected in reference.items():
        if result[name].shape != expected.shape:
            return float("inf")
        if expected.numel() == 0:
            continue
        expected, found = expected.double(), result[name].double()
        finite = expected.abs() < HUGE
        if not torch.equal(finite, found.abs() < HUGE):
            return float("inf")
        if finite.any():
            scale = max(1.0, float(expected[finite].abs().max()))
            worst = max(worst, float((expected - found)[finite].abs().max()) / scale)
    return worst


def root_mean_square(result, reference):
    """The root mean square of the error over that of the reference, the worst tensor's."""
    if result.keys() != reference.keys():
        return float("inf")
    worst = 0.0
    for name, expected in reference.items():
        expected, found = expected.double(), result[name].double()
        if expected.shape != found.shape:
            return float("inf")
        finite = (expected.abs() < HUGE) & (found.abs() < HUGE)
        if finite.any():
            error = (expected - found)[finite].square().mean().sqrt()
            worst = max(worst, float(error / expected[finite].square().mean().sqrt().clamp(min=1e-6)))
    return worst


def gradient_difference(result, reference):
    """The largest error over all parameters, relative to the parameter's largest gradient.

    Where that is below a hundredth of the largest of all, to this hundredth. Where a softmax is saturated, the gradient
    of its scores is a difference of equal numbers, and keeps the rounding error of numbers that are much larger.
    """
    if result.keys() != reference.keys():
        return float("inf")
    largest = max((float(value.abs().max()) for value in reference.values() if value.numel()), default=0.0)
    worst = 0.0
    for name, expected in reference.items():
        if expected.numel():
            scale = max(float(expected.abs().max()), 1e-2 * largest, 1e-30)
            error = float((result[name] - expected).abs().max()) / scale
            worst = error if error != error else max(worst, error)
    return worst
