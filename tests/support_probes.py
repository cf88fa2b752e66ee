"""What works where: one probe for each feature and each way to use it, for the table in README.md.

A probe is a function that computes something small and compares it: NumPy with the float64 twin, torch and
torch.compile with NumPy (values, and gradients where there are any), a Hugging Face model with itself on its
"eager" attention. `test_support_table.py` runs them, `tools/support_table.py` writes the table.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import gradients
import numpy as np
import reference
import support_models as models
import tegula as tg
from cases import MASKS, Dims, irregular
from support import draw
from torch_support import tensors, to_array, to_tensor, torch

WAYS = ("NumPy", "torch", "torch.compile", "Hugging Face")

# The test suite compiles without code generation; the table is written with the default.
BACKEND = os.environ.get("TEGULA_TEST_BACKEND", "aot_eager")

FEATURES: dict[str, dict[str, Callable[[], None]]] = {}


def feature(name, **ways):
    """Add a row: a function for each way that there is."""
    named = {"numpy": "NumPy", "torch": "torch", "compiled": "torch.compile", "models": "Hugging Face"}
    FEATURES[name] = {named[way]: probe for way, probe in ways.items() if probe is not None}


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=BACKEND)


def as_it_is(function):
    return function


def close(got, expected, unit=2e-5):
    """Equal up to rounding, in units of the largest number."""
    got, expected = (np.asarray(x, np.float64) for x in (got, expected))
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=unit * max(1.0, np.abs(expected).max(initial=0)))


# ---------------------------------------------------------------------------------------------------
# Attention: values and gradients of one call, by each way

SIZES = Dims(batch=2, heads=4, q_len=9, k_len=9)
UNITS = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


class Call:
    """The arguments of one call of attention, and what the float64 twin makes of them."""

    def __init__(self, mask="full", dtype="float32", kv_heads=4, packed=False, k_len=9, **options):
        rng = np.random.default_rng(0)
        dims = SIZES._replace(k_len=k_len, batch=1 if packed else SIZES.batch)

        def inputs(heads, length):
            return draw(rng, (length, heads, 8) if packed else (dims.batch, heads, length, 8), dtype)

        self.mask, visible = MASKS[mask].build(tg.masks, dims), MASKS[mask].visible(dims)
        self.layout, self.options, self.unit = "lhd" if packed else "bhld", options, UNITS[dtype]
        self.arrays = inputs(dims.heads, dims.q_len), inputs(kv_heads, k_len), inputs(kv_heads, k_len)
        self.grad_out = draw(rng, self.arrays[0].shape, dtype)

        twin = {name: value for name, value in options.items() if name != "seed"}
        if "seed" in options:
            twin["keep"] = reference.dropout_mask(options["seed"], options["dropout_p"], dims)
        twin.update(visible=visible, layout=self.layout)
        self.out, self.lse, self.weights = reference.attention(*self.arrays, **twin)
        found = gradients.attention_backward(self.grad_out, *self.arrays, self.out, self.lse, **twin)
        # dq, dk, dv, and those of bias and sinks where they were given.
        self.gradients = [x for x in found[:5] if x is not None]

    def numpy(self):
        options = {**self.options, "mask": self.mask, "layout": self.layout}
        out, lse = tg.attention(*self.arrays, **options, return_lse=True)
        close(out, self.out, self.unit)
        close(np.exp(lse), np.exp(self.lse), self.unit)
        got = tg.attention_backward(self.grad_out, *self.arrays, out, lse, **options)
        for one, other in zip(got, self.gradients, strict=True):
            close(one, other, self.unit)

    def torch(self, way=as_it_is):
        learned = {name: to_tensor(self.options[name]) for name in ("bias", "sinks") if name in self.options}
        inputs = [*map(to_tensor, self.arrays), *learned.values()]
        options = {**tensors(self.options), "mask": self.mask, "layout": self.layout}

        def call(q, k, v, *numbers):
            return tg.attention(q, k, v, **{**options, **dict(zip(learned, numbers, strict=True))})

        for x in inputs:
            x.requires_grad_()
        out = way(call)(*inputs)
        out.backward(to_tensor(self.grad_out))
        close(to_array(out.double()), self.out, self.unit)
        for one, other in zip(inputs, self.gradients, strict=True):
            close(to_array(one.grad.double()), other, self.unit)


def attention_feature(name, models=None, **call):
    feature(
        name,
        numpy=lambda: Call(**call).numpy(),
        torch=lambda: Call(**call).torch(),
        compiled=lambda: Call(**call).torch(compiled),
        models=models,
    )


HEADS = np.arange(4, dtype=np.float32)
# Each query sees itself: where it sees nothing, eager attention takes the mean of all values.
IRREGULAR = tg.masks.dense(irregular(9, 9) | np.eye(9, dtype=bool))
BIAS = np.random.default_rng(1).standard_normal((1, 4, 9, 9)).astype(np.float32)

attention_feature("self-attention", models=partial(models.same, models.BERT))
attention_feature("cross-attention", k_len=14, models=partial(models.same, models.T5))
attention_feature("causal", mask="causal", models=partial(models.same, models.LLAMA))
attention_feature("sliding window", mask="sliding", models=partial(models.same, models.MISTRAL))
attention_feature("left and right padding", mask="padding_left", models=models.padded)
attention_feature("packed documents", mask="documents_causal", packed=True, models=models.packed)
attention_feature("prefix", mask="prefix", models=partial(models.given, tg.masks.prefix([4, 6])))
attention_feature("any bool mask", mask="dense", models=partial(models.given, IRREGULAR))
attention_feature("grouped heads", mask="causal", kv_heads=2, models=partial(models.same, models.LLAMA))
attention_feature("bias", bias=BIAS, models=partial(models.same, models.T5))
attention_feature("softcap", mask="causal", softcap=1.5, models=partial(models.same, models.GEMMA2))
attention_feature("ALiBi", mask="causal", alibi=0.5**HEADS)
attention_feature("sinks", mask="causal", sinks=HEADS - 1, models=partial(models.same, models.GPT_OSS))
attention_feature("dropout", mask="causal", dropout_p=0.4, seed=7, models=models.dropout)
for dtype in ("float64", "float16", "bfloat16"):
    attention_feature(dtype, mask="causal", dtype=dtype, models=partial(models.in_type, dtype))


# ---------------------------------------------------------------------------------------------------
# Attention: more than one call, or more than one result


def weights_of_arrays():
    call = Call(mask="causal")
    _, lse, weights = tg.attention(*call.arrays, mask=call.mask, return_lse=True, return_weights=True)
    close(weights, call.weights)
    close(lse, call.lse)


def weights_of_tensors(way=as_it_is):
    call = Call(mask="causal")
    function = way(lambda *x: tg.attention(*x, mask=call.mask, return_lse=True, return_weights=True))
    _, lse, weights = function(*map(to_tensor, call.arrays))
    close(to_array(weights), call.weights)
    close(to_array(lse), call.lse)


feature(
    "weights and log-sum-exp",
    numpy=weights_of_arrays,
    torch=weights_of_tensors,
    compiled=partial(weights_of_tensors, compiled),
    models=models.weights,
)


def decoding_of_arrays():
    """One query after another against the keys so far."""
    call = Call(mask="causal")
    q, k, v = call.arrays
    step = tg.masks.causal("bottom_right")
    for n in range(SIZES.q_len):
        keys = slice(0, n + 1)
        close(tg.attention(q[:, :, n : n + 1], k[:, :, keys], v[:, :, keys], mask=step), call.out[:, :, n : n + 1])


def decoding_of_tensors(way=as_it_is):
    from tegula.torch.nn import MultiHeadAttention

    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 4, num_kv_heads=2)
    x = torch.randn(2, 9, 32)
    cache = layer.new_cache(batch_size=2, max_len=9)
    step = way(lambda part: layer(part, cache=cache))
    with torch.no_grad():
        close(torch.cat([step(x[:, n : n + 1]) for n in range(9)], 1), layer(x, causal=True))


feature(
    "decoding with a KV cache",
    numpy=decoding_of_arrays,
    torch=decoding_of_tensors,
    compiled=partial(decoding_of_tensors, compiled),
    models=models.generation,
)


def merged(make, way=as_it_is):
    call = Call()
    q, k, v = map(make, call.arrays)

    def of_halves(q, k, v):
        halves = (tg.attention(q, k[:, :, part], v[:, :, part], return_lse=True) for part in (slice(4), slice(4, 9)))
        return tg.merge_attention(*next(halves), *next(halves))

    close(way(of_halves)(q, k, v)[0], call.out)


feature(
    "merging parts",
    numpy=partial(merged, np.asarray),
    torch=partial(merged, to_tensor),
    compiled=partial(merged, to_tensor, compiled),
)


def second_derivatives():
    call = Call(mask="causal", dtype="float64")
    inputs = [to_tensor(x[:1, :2, :4]).requires_grad_() for x in call.arrays]
    assert torch.autograd.gradgradcheck(lambda *x: tg.attention(*x, mask=tg.masks.causal()), inputs)


feature("second derivatives", torch=second_derivatives)


# ---------------------------------------------------------------------------------------------------
# Positions and embedding


def positions_of_arrays():
    places = np.array([[-3, 0, 7], [100, 5000, 1]])
    close(tg.positional_encoding(places, 10), reference.positional_encoding(places, 10), 1e-6)


def positions_of_tensors(way=as_it_is):
    places = torch.tensor([[-3, 0, 7], [100, 5000, 1]])
    got = way(lambda p: tg.positional_encoding(p, 10))(places)
    close(got, reference.positional_encoding(places.numpy(), 10), 1e-6)


feature(
    "sinusoidal positions",
    numpy=positions_of_arrays,
    torch=positions_of_tensors,
    compiled=partial(positions_of_tensors, compiled),
)

IDS = np.array([[3, 1, 4, 1], [5, 9, 0, 0]])
EMBEDDING = dict(scale=4.0, position_table="sinusoidal", padding_idx=0, dropout_p=0.3, seed=11)


def embedding_twin():
    """The table, the gradient of the result, and what both should give."""
    rng = np.random.default_rng(0)
    weight, grad = draw(rng, (10, 16)), draw(rng, (*IDS.shape, 16))
    keep = reference.dropout_mask(11, 0.3, grad.shape)
    options = {name: value for name, value in EMBEDDING.items() if name != "seed"}
    out = reference.embedding(IDS, weight, keep=keep, **options)
    del options["position_table"]
    return weight, grad, out, reference.embedding_backward(grad, IDS, 10, keep=keep, **options)


def embedding_of_arrays():
    weight, grad, out, expected = embedding_twin()
    close(tg.embedding(IDS, weight, **EMBEDDING), out)
    options = {name: value for name, value in EMBEDDING.items() if name != "position_table"}
    close(tg.embedding_backward(grad, IDS, 10, **options), expected)


def embedding_of_tensors(way=as_it_is):
    weight, grad, out, expected = embedding_twin()
    table = to_tensor(weight).requires_grad_()
    got = way(lambda ids, table: tg.embedding(ids, table, **EMBEDDING))(to_tensor(IDS), table)
    got.backward(to_tensor(grad))
    close(to_array(got), out)
    close(to_array(table.grad), expected)


feature(
    "embedding with positions and dropout",
    numpy=embedding_of_arrays,
    torch=embedding_of_tensors,
    compiled=partial(embedding_of_tensors, compiled),
)


# ---------------------------------------------------------------------------------------------------
# Drop-ins: torch's own functions and layers


def drop_in(way=as_it_is):
    from tegula.torch import scaled_dot_product_attention as ours

    torchs = torch.nn.functional.scaled_dot_product_attention
    inputs = [to_tensor(x).requires_grad_() for x in Call().arrays]
    both = [f(*inputs, is_causal=True) for f in (way(lambda *x, **options: ours(*x, **options)), torchs)]
    close(*(x.detach() for x in both))
    for one, other in zip(*(torch.autograd.grad(x.sum(), inputs) for x in both), strict=True):
        close(one, other)


feature("scaled_dot_product_attention", torch=drop_in, compiled=partial(drop_in, compiled))


def layers(way=as_it_is):
    """An encoder and a decoder layer with the weights of torch's."""
    from tegula.torch import nn as ours

    sources, targets = torch.randn(2, 7, 32), torch.randn(2, 5, 32)
    results = []
    for space in (ours, torch.nn):
        torch.manual_seed(0)
        options = dict(dim_feedforward=64, dropout=0.0, batch_first=True, norm_first=True)
        encoder, decoder = (
            getattr(space, f"Transformer{kind}Layer")(32, 4, **options) for kind in ("Encoder", "Decoder")
        )
        hidden = torch.nn.Transformer.generate_square_subsequent_mask(5)

        def run(x, y, encoder=encoder, decoder=decoder, hidden=hidden):
            return decoder(y, encoder(x), tgt_mask=hidden, tgt_is_causal=True)

        out = (way(run) if space is ours else run)(sources, targets)
        out.square().sum().backward()
        results.append((out.detach(), encoder.linear1.weight.grad, decoder.multihead_attn.out_proj.weight.grad))
    for one, other in zip(*results, strict=True):
        close(one, other, 1e-4)


feature("Transformer layers", torch=layers, compiled=partial(layers, compiled))
