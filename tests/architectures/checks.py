"""What is compared: each check runs a model and returns tensors (or tokens) that every implementation must agree on."""

from __future__ import annotations

import torch

from .inputs import parameters_of
from .inputs_sizes import LENGTH
from .outputs import HUGE, tensors_of, valid_part

PADDING, NEW_TOKENS, CHUNK = 4, 5, 6


class NotApplicable(Exception):
    """Why a check makes no sense for an architecture."""


def forward(model, inputs):
    """No padding."""
    return run(model, inputs)


def right_padding(model, inputs):
    """The second row ends early; what is compared are real tokens."""
    return padded(model, inputs, "right")


def left_padding(model, inputs):
    """The second row starts late."""
    return padded(model, inputs, "left")


def gradients(model, inputs):
    """Gradients of a fixed linear function of all outputs to all parameters, with right padding where there is text."""
    try:
        inputs = pad(inputs, "right")
        keep = inputs["attention_mask"].bool()
    except NotApplicable:
        keep = None
    model.zero_grad()
    torch.manual_seed(0)
    with torch.enable_grad():
        results = tensors_of(model(**inputs))
        if keep is not None:
            results = valid_part(results, keep)
        loss = 0.0
        for index, value in enumerate(results.values()):
            if value.requires_grad and value.numel():
                weight = torch.randn(value.shape, generator=torch.Generator().manual_seed(index))
                shown = value.masked_fill(value.detach().abs() >= HUGE, 0.0)
                loss = loss + (shown * weight).sum() / value.numel() ** 0.5
        if not isinstance(loss, torch.Tensor):
            raise NotApplicable("no output has a gradient")
        loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def dynamic_generation(model, inputs):
    """Greedy tokens with left padding."""
    return generated(model, inputs)


def static_generation(model, inputs):
    """The same on a cache of fixed size."""
    return generated(model, inputs, cache_implementation="static")


def chunked_prefill(model, inputs):
    """A chunk of several tokens onto a cache that holds the tokens before them, with left padding."""
    inputs = text_only(model, pad(inputs, "left"))
    name = cache_name(model)
    keep = inputs["attention_mask"]
    split = LENGTH - CHUNK
    with torch.no_grad():
        first = {**inputs, "input_ids": inputs["input_ids"][:, :split], "attention_mask": keep[:, :split]}
        before = model(**first, use_cache=True)
        filled = before.get("cache") if "cache" in before else before.get("past_key_values")
        if filled is None:
            raise NotApplicable("no cache is returned")
        chunk = {**inputs, "input_ids": inputs["input_ids"][:, split:LENGTH], "attention_mask": keep[:, :LENGTH]}
        return tensors_of(model(**chunk, **{name: filled}, use_cache=True))


def packed(model, inputs):
    """Two documents in one row, told apart by positions that start again."""
    names = parameters_of(model)
    if "position_ids" not in names:
        raise NotApplicable("no position_ids")
    inputs = text_only(model, inputs)
    lengths = (LENGTH - 5, 5)
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    options = {"use_cache": False} if "use_cache" in names else {}
    with torch.no_grad():
        return tensors_of(model(input_ids=inputs["input_ids"][:1], position_ids=positions, **options))


# --- helpers ---------------------------------------------------------------------------------------------


def run(model, inputs):
    torch.manual_seed(0)
    with torch.no_grad():
        return tensors_of(model(**inputs))


def padded(model, inputs, side):
    inputs = pad(inputs, side)
    return valid_part(run(model, inputs), inputs["attention_mask"].bool())


def pad(inputs, side):
    """The second row padded by a few tokens."""
    keep = inputs.get("attention_mask")
    if keep is None:
        raise NotApplicable("no attention_mask")
    keep = keep.clone()
    amount = max(PADDING, keep.shape[1] // 4)
    changed = dict(inputs)
    if side == "right":
        keep[1, -amount:] = 0
    else:
        if "input_ids" not in inputs:
            raise NotApplicable("left padding is for text")
        keep[1, :amount] = 0
        for name, value in inputs.items():
            if name in ("input_ids", "bbox", "mm_token_type_ids", "token_type_ids"):
                value = value.clone()
                value[1] = torch.cat([torch.zeros_like(value[1, :amount]), value[1, :-amount]])
                changed[name] = value
    changed["attention_mask"] = keep
    return changed


def text_only(model, inputs):
    """Ids and their mask alone, without the places of pictures."""
    if "input_ids" not in inputs or "attention_mask" not in inputs:
        raise NotApplicable("no text input")
    if cache_name(model) is None or "decoder_input_ids" in inputs:
        raise NotApplicable("not a decoder with a cache")
    return {name: inputs[name][:, -LENGTH:] for name in ("input_ids", "attention_mask")}


def cache_name(model):
    return next((name for name in ("cache", "past_key_values") if name in parameters_of(model)), None)


def generated(model, inputs, **options):
    if not model.can_generate():
        raise NotApplicable("does not generate")
    inputs = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
    if "input_ids" in inputs and "attention_mask" in inputs:
        inputs = pad(inputs, "left")
    settings = model.generation_config
    settings.eos_token_id, settings.pad_token_id = None, 0
    if settings.decoder_start_token_id is None and settings.bos_token_id is None:
        settings.decoder_start_token_id = 3
    torch.manual_seed(0)
    with torch.no_grad():
        tokens = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False, disable_compile=True, **options)
    tokens = tokens if isinstance(tokens, torch.Tensor) else tokens["sequences"]
    return {"tokens": tokens.double()}
