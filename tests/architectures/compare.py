"""One architecture under eager attention, torch's own (sdpa) and tegula: how far apart they are, check by check."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from . import checks
from .excluded import NOT_COMPARABLE
from .inputs import settle
from .models import build, class_of, randomize, twin
from .outputs import difference, gradient_difference, root_mean_square
from .recording import Recorder

# Forward errors are relative to the largest entry of a tensor, or to 1 where that is smaller.
FORWARD, GRADIENT = 3e-5, 2e-4
# A bfloat16 result may be half as far again from the float32 one as eager's, by root mean square: both are noise.
BFLOAT16_FACTOR, BFLOAT16_FLOOR = 1.5, 1e-3
SEEDS = range(5)
# What a model says that does not declare to work with torch's own attention.
REFUSAL = "does not support an attention implementation through torch.nn.functional.scaled_dot_product_attention"
# With equal weights for all keys, results must change by more than a hundred times what is tolerated.
MATTERS = 100 * FORWARD

# What each check is called in tables, how it is measured, and what is tolerated; bf16's depends on eager's own error.
CHECKS = {
    "forward": (checks.forward, difference, FORWARD),
    "right": (checks.right_padding, difference, FORWARD),
    "left": (checks.left_padding, difference, FORWARD),
    "gradients": (checks.gradients, gradient_difference, GRADIENT),
    "bf16": (checks.forward, root_mean_square, None),
    "dynamic": (checks.dynamic_generation, difference, 0.0),
    "static": (checks.static_generation, difference, 0.0),
    "chunk": (checks.chunked_prefill, difference, FORWARD),
    "packed": (checks.packed, difference, FORWARD),
}


@dataclass
class Outcome:
    """One check: errors of sdpa and of tegula against eager, or what they raised; `reason` says why it was not run."""

    reason: str = ""
    tolerance: float = 0.0
    sdpa: float | str | None = None
    tegula: float | str | None = None

    def equal(self, name: str) -> bool:
        value = getattr(self, name)
        return isinstance(value, float) and value <= self.tolerance

    @property
    def refused(self) -> bool:
        """tegula said what it cannot do, instead of a wrong result."""
        return isinstance(self.tegula, str) and self.tegula.startswith("NotImplementedError: ")

    @property
    def right(self) -> bool:
        """Whether tegula agrees with eager, unless torch's own attention runs and does not either."""
        sdpa_differs = isinstance(self.sdpa, float) and not self.equal("sdpa")
        return bool(self.reason) or self.equal("tegula") or self.refused or sdpa_differs


@dataclass
class Architecture:
    """What was found about one model type. `reason` says why it could not be compared."""

    model_type: str
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    calls: int = 0
    masks: int = 0
    matters: float = 0.0
    reason: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def raised_or(function):
    """What a function returns, or a line about what it raised."""
    try:
        return function()
    except Exception as error:
        return told(error)


def sdpa_by_another_name():
    """Torch's own attention for models that refuse it under its name, but take any other."""
    return Recorder("renamed").name


def uniform_attention():
    """An implementation that counts its calls and gives all visible keys equal weights."""

    def attend(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, **_):
        return sdpa_attention_forward(module, 0 * query, key, value, attention_mask, is_causal=is_causal)

    return Recorder("uniform", attention=attend)


class Comparison:
    """Builds a tiny model of one type; its other implementations are made when a check asks for them."""

    def __init__(self, model_type: str, implementation: str = "tegula") -> None:
        self.implementation = implementation
        self.result = Architecture(model_type)
        self.models = {}
        try:
            kind = class_of(model_type)
            if kind is None:
                raise LookupError("no model class takes this configuration alone")
            self.result.name = kind.__name__
            self.eager = build(model_type, "eager")
            self.inputs, errors = settle(self.eager)
        except Exception as error:
            self.result.reason = told(error)
            return
        if self.inputs is None:
            self.result.reason = f"no inputs found; {errors[0]}"[:200]
            return
        self.result.inputs = sorted(self.inputs)
        self.reach()

    def reach(self) -> None:
        """Count the calls of a registered function, and see how much attention matters."""
        recorder = uniform_attention()
        try:
            reference = checks.forward(self.eager, self.inputs)
            if any(value.isnan().all() for value in reference.values() if value.numel()):
                raise ValueError("eager attention gives NaN")
            self.result.matters = difference(checks.forward(twin(self.eager, recorder.name), self.inputs), reference)
        except Exception as error:
            self.result.reason = told(error)
        self.result.calls, self.result.masks = recorder.calls, recorder.masks

    def model(self, implementation: str):
        if implementation not in self.models:
            self.models[implementation] = twin(self.eager, implementation)
        return self.models[implementation]

    def check(self, name: str, always_sdpa: bool = False) -> Outcome:
        """Run one check; torch's own attention only where tegula disagrees with eager, or on request."""
        unfit = NOT_COMPARABLE.get((self.result.model_type, name))
        if unfit:
            outcome, error = Outcome(reason=unfit), None
        elif name == "bf16":
            # One measure is noise: where it is too much, the mean over several weights decides.
            outcome, error = self.bfloat16(SEEDS[:1])
            if error is not None and not outcome.equal("tegula"):
                outcome, error = self.bfloat16(SEEDS)
        else:
            outcome, error = self.float32(name)
        if error is not None and (always_sdpa or not outcome.equal("tegula")):
            outcome.sdpa = raised_or(lambda: error("sdpa"))
            if isinstance(outcome.sdpa, str) and REFUSAL in outcome.sdpa:
                outcome.sdpa = raised_or(lambda: error(sdpa_by_another_name()))
        self.result.outcomes[name] = outcome
        return outcome

    def float32(self, name: str):
        """An outcome, and a function that gives an implementation's error, or None where eager does not run."""
        function, measure, tolerance = CHECKS[name]
        try:
            reference = function(self.eager, self.inputs)
        except checks.NotApplicable as reason:
            return Outcome(reason=str(reason)), None
        except Exception as error:
            return Outcome(reason=f"eager: {told(error)}"), None

        def error(implementation):
            return measure(function(self.model(implementation), self.inputs), reference)

        return Outcome(tolerance=tolerance, tegula=raised_or(lambda: error(self.implementation))), error

    def bfloat16(self, seeds):
        """The same for a forward pass in bfloat16, against eager's float32 result on the same weights."""
        function, measure, _ = CHECKS["bf16"]
        inputs = {
            name: value.bfloat16() if torch.is_floating_point(value) else value for name, value in self.inputs.items()
        }

        def error(implementation):
            weights = copy.deepcopy(self.eager.state_dict())
            total = 0.0
            for seed in seeds:
                if seed:
                    randomize(self.eager, seed)
                reference = function(self.eager, self.inputs)
                total += measure(function(twin(self.eager, implementation, torch.bfloat16), inputs), reference)
            self.eager.load_state_dict(weights)
            return total / len(seeds)

        own = raised_or(lambda: error("eager"))
        if isinstance(own, str):
            return Outcome(reason=f"eager: {own}"), None
        tolerance = BFLOAT16_FACTOR * own + BFLOAT16_FLOOR
        return Outcome(tolerance=tolerance, tegula=raised_or(lambda: error(self.implementation))), error
