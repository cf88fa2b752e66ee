"""Which class stands for an architecture, and how a tiny one is built from a seed."""

from __future__ import annotations

import copy
import importlib
import inspect
import math

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.models.auto import modeling_auto

from .shrink import tiny_config

# A class that generates is preferred: its base model is inside. Other types are represented by their base model.
TASKS = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT",
    "MODEL_FOR_MULTIMODAL_LM",
    "MODEL_FOR_CAUSAL_LM",
    "MODEL_FOR_TEXT_TO_WAVEFORM",
)
REST = sorted(
    name.removesuffix("_MAPPING_NAMES")
    for name in dir(modeling_auto)
    if name.startswith("MODEL_FOR_") and name.endswith("_MAPPING_NAMES")
)
# Encoders like BERT could generate, too, but are not meant to.
ENCODERS = set(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES) - set(
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
)


def model_types() -> list[str]:
    """Every model type that transformers knows."""
    return sorted(modeling_auto.CONFIG_MAPPING_NAMES)


def class_of(model_type: str) -> type[PreTrainedModel] | None:
    """The model class that stands for this type; None where no class takes its configuration."""
    tasks = ("MODEL", *TASKS, *REST) if model_type in ENCODERS else (*TASKS, "MODEL", *REST)
    for task in tasks:
        names = getattr(modeling_auto, f"{task}_MAPPING_NAMES").get(model_type)
        if names:
            name = names if isinstance(names, str) else names[0]
            if hasattr(transformers, name):
                return getattr(transformers, name)
    return part_of(CONFIG_MAPPING[model_type])


def part_of(config_class):
    """The model that takes a configuration which only parts of larger models have: a vision tower, say."""
    package, _, name = config_class.__module__.rpartition(".")
    modeling = importlib.import_module(f"{package}.{name.replace('configuration', 'modeling')}")
    found = [
        value
        for value in vars(modeling).values()
        if inspect.isclass(value)
        and issubclass(value, PreTrainedModel)
        and value.__module__ == modeling.__name__
        and value.config_class is config_class
        and not value.__name__.endswith("PreTrainedModel")
        and "forward" in vars(value)
    ]
    return found[0] if found else None


def build(model_type: str, implementation: str, seed: int = 0) -> PreTrainedModel:
    """A tiny model in evaluation mode, float32; the same weights for every attention implementation."""
    config = tiny_config(model_type)
    torch.manual_seed(seed)
    model = class_of(model_type)._from_config(config, attn_implementation=implementation, dtype=torch.float32)
    randomize(model, seed)
    return model.eval()


def randomize(model, seed):
    """Weights as large as those of a trained model, so that attention is far from uniform and every gate is open."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if parameter.ndim >= 2 and not constant(parameter):
                fan_in = parameter[0].numel()
                parameter.copy_(noise * (1.5 / math.sqrt(fan_in)))
            elif constant(parameter):
                parameter.add_(0.2 * noise)
            parameter.copy_(parameter.bfloat16())  # the same numbers in float32 and bfloat16


def constant(parameter):
    return parameter.numel() == 0 or bool((parameter == parameter.flatten()[0]).all())


def twin(model: PreTrainedModel, implementation: str, dtype=torch.float32) -> PreTrainedModel:
    """The same model with another attention implementation or precision."""
    config = copy.deepcopy(model.config)
    other = type(model)._from_config(config, attn_implementation=implementation, dtype=dtype)
    other.load_state_dict(model.state_dict())
    return other.eval()
