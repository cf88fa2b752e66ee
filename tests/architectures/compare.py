"""One architecture under eager attention, torch's own (sdpa) and tegula: how far apart they are, check by check."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from . import checks
from .inputs import settle
from .models import build, class_of, twin
from .outputs import difference, tensors_of
from .recording import Recorder

# Errors are relative to the largest entry of a tensor, or to 1 where that is smaller.
FORWARD, GRADIENT = 3e-5, 2e-4
# A bfloat16 result may be half as far again from the float32 one as eager's, by root mean square: both errors are noise.
BFLOAT16_FACTOR, BFLOAT16_FLOOR = 1.5, 1e-3

CHECKS = {
    "forward": (checks.forward, FORWARD),
    "right": (checks.right_padding, FORWARD),
    "left": (checks.left_padding, FORWARD),
    "gradients": (checks.gradients, GRADIENT),
    "bf16": (None, 0.0),
    "dynamic": (checks.dynamic_generation, 0.0),
    "static": (checks.static_generation, 0.0),
    "chunk": (checks.chunked_prefill, FORWARD),
    "packed": (checks.packed, FORWARD),
}


@dataclass
class Outcome:
    """One check: errors of `sdpa` and of `tegula` against eager, or what was raised; `reason` why it was not run."""

    reason: str = ""
    tolerance: float = 0.0
    sdpa: float | str = ""
    tegula: float | str = ""

    def equal(self, name):
        value = getattr(self, name)
        return isinstance(value, float) and value <= self.tolerance

    @property
    def right(self):
        """Whether tegula agrees with eager, or torch's own attention does not either."""
        return bool(self.reason) or self.equal("tegula") or not self.equal("sdpa")


@dataclass
class Architecture:
    """What is known about one model type."""

    model_type: str
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    calls: int = 0
    masks: int = 0
    matters: float = 0.0
    reason: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)


def told(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


class Comparison:
    """Builds an architecture once and compares its implementations."""

    def __init__(self, model_type, implementation="tegula"):
        self.implementation = implementation
        self.result = Architecture(model_type)
        self.eager = self.inputs = None
        self.models = {}
        try:
            kind = class_of(model_type)
            if kind is None:
                raise LookupError("no model class takes this configuration alone")
            self.result.name = kind.__name__
            self.eager = build(model_type, "eager")
        except Exception as error:  # noqa: BLE001
            self.result.reason = told(error)
            return
        self.inputs, errors = settle(self.eager)
        if self.inputs is None:
            self.result.reason = f"no inputs found: {' | '.join(errors[:1])[:200]}"
            return
        self.result.inputs = sorted(self.inputs)

    def model(self, implementation):
        if implementation not in self.models:
            self.models[implementation] = twin(self.eager, implementation)
        return self.models[implementation]

    def reach(self):
        """Count calls of a registered function, and see how much attention matters: with equal weights, results change."""
        if self.result.reason:
            return
        recorder = UNIFORM()
        try:
            changed = checks.forward(twin(self.eager, recorder.name), self.inputs)
        except Exception as error:  # noqa: BLE001
            self.result.reason = told(error)
            return
        self.result.calls, self.result.masks = len(recorder.calls), len(recorder.masks)
        recorder.clear()
        self.result.matters = difference(changed, checks.forward(self.eager, self.inputs))

    def check(self, name):
        """Run one check on all implementations."""
        if name == "bf16":
            outcome = self.bfloat16()
        else:
            function, tolerance = CHECKS[name]
            outcome = Outcome(tolerance=tolerance)
            try:
                reference = function(self.eager, self.inputs)
            except checks.NotApplicable as reason:
                outcome.reason = str(reason)
            except Exception as error:  # noqa: BLE001
                outcome.reason = f"eager: {told(error)}"
            else:
                measure = gradient_difference if name == "gradients" else difference
                for kind, implementation in (("sdpa", "sdpa"), ("tegula", self.implementation)):
                    try:
                        error = measure(function(self.model(implementation), self.inputs), reference)
                    except Exception as raised:  # noqa: BLE001
                        error = told(raised)
                    setattr(outcome, kind, error)
        self.result.outcomes[name] = outcome
        return outcome

    def bfloat16(self):
        outcome = Outcome()
        inputs = {
            name: value.bfloat16() if value.is_floating_point() else value for name, value in self.inputs.items()
        }
        reference = checks.forward(self.eager, self.inputs)

        def error(implementation):
            return rms(checks.forward(twin(self.eager, implementation, torch.bfloat16), inputs), reference)

        try:
            own = error("eager")
        except Exception as raised:  # noqa: BLE001
            outcome.reason = f"eager: {told(raised)}"
            return outcome
        outcome.tolerance = BFLOAT16_FACTOR * own + BFLOAT16_FLOOR
        for kind, implementation in (("sdpa", "sdpa"), ("tegula", self.implementation)):
            try:
                setattr(outcome, kind, error(implementation))
            except Exception as raised:  # noqa: BLE001
                setattr(outcome, kind, told(raised))
        return outcome


def rms(result, reference):
    """Root mean square of the error over that of the reference, the worst tensor's."""
    if result.keys() != reference.keys():
        return float("inf")
    worst = 0.0
    for name, expected in reference.items():
        expected, found = expected.double(), result[name].double()
        if expected.shape != found.shape:
            return float("inf")
        finite = expected.isfinite() & found.isfinite()
        if finite.any():
            error = (expected - found)[finite].square().mean().sqrt()
            worst = max(worst, float(error / expected[finite].square().mean().sqrt().clamp(min=1e-6)))
    return worst


def gradient_difference(result, reference):
    """The largest error over all parameters, relative to the parameter's largest gradient.

    Where that is below a thousandth of the largest of all, to this thousandth: such gradients are differences of large
    numbers, a bias of keys for example has none but rounding.
    """
    if result.keys() != reference.keys():
        return float("inf")
    largest = max((float(value.abs().max()) for value in reference.values() if value.numel()), default=0.0)
    worst = 0.0
    for name, expected in reference.items():
        if expected.numel():
            scale = max(float(expected.abs().max()), 1e-3 * largest, 1e-30)
            worst = max(worst, float((result[name] - expected).abs().max()) / scale)
    return worst


def UNIFORM():
    """An implementation with equal weights for all visible keys."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, **options):
        return sdpa_attention_forward(module, 0 * query, key, value, attention_mask, is_causal=is_causal)

    return Recorder("uniform", attention=attend)
