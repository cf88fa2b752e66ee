"""Tiny Hugging Face models of random weights, on tegula's attention and on their own ("eager")."""

from __future__ import annotations

import pytest
from torch_support import torch

SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=97)
GROUPED = dict(SIZES, num_key_value_heads=2)

# The name of a configuration, and its arguments.
BERT = ("BertConfig", SIZES)
LLAMA = ("LlamaConfig", GROUPED)
MISTRAL = ("MistralConfig", dict(GROUPED, sliding_window=4))
GEMMA2 = ("Gemma2Config", dict(GROUPED, head_dim=8, attn_logit_softcapping=0.5, sliding_window=4))
GPT_OSS = (
    "GptOssConfig",
    dict(GROUPED, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=4),
)
T5 = ("T5Config", dict(d_model=32, d_kv=8, num_layers=2, num_heads=4, d_ff=64, vocab_size=97))

IDS = torch.randint(3, 97, (2, 9), generator=torch.Generator().manual_seed(1))
EVERY = torch.ones_like(IDS).bool()


def build(kind, implementation="tegula", auto="AutoModel", **options):
    """A model in evaluation mode; the same weights on every call."""
    transformers = pytest.importorskip("transformers")
    from tegula.integrations.transformers import register

    register()
    name, sizes = kind
    config = getattr(transformers, name)(**sizes, **options)
    torch.manual_seed(0)
    model = getattr(transformers, auto).from_config(config, attn_implementation=implementation)
    # Some numbers start as constants, sinks as zeros: that would hide what they do.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model.eval()


def run(model, keep=EVERY, **inputs):
    """The rows of real tokens, and the gradient of the word table."""
    inputs.setdefault("input_ids", IDS)
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = IDS
    rows = model(**inputs)[0][keep]
    (grad,) = torch.autograd.grad(rows.double().square().mean(), model.get_input_embeddings().weight)
    return rows.detach(), grad


def assert_same(got, expected, unit=1e-5):
    """Rows and gradients are equal, in units of the largest number of each."""
    for one, other in zip(got, expected, strict=True):
        scale = other.abs().max().item()
        assert scale > 0
        torch.testing.assert_close(one, other, rtol=0, atol=unit * scale)


def same(kind):
    """The same results as on the model's own attention."""
    assert_same(run(build(kind)), run(build(kind, "eager")))


def padded():
    """Padding before or behind the tokens."""
    for kind in (BERT, LLAMA):
        for keep in (EVERY.clone(), EVERY.clone()):
            keep[1, :3] = False
            keep = keep if kind is LLAMA else keep.flip(1)
            ours, eager = (run(build(kind, name), keep, attention_mask=keep.long()) for name in ("tegula", "eager"))
            assert_same(ours, eager)


def packed():
    """Two documents in one row, told apart by their positions, give what each gives alone."""
    model = build(LLAMA)
    positions = torch.tensor([[*range(4), *range(5)]])
    with torch.no_grad():
        row = model(input_ids=IDS[:1], position_ids=positions, use_cache=False)[0]
        alone = [model(input_ids=part)[0] for part in IDS[:1].split((4, 5), 1)]
    assert_same([row], [torch.cat(alone, 1)])


def given(mask):
    """A mask of `tegula.masks` in the place of the model's own."""
    from tegula.integrations.transformers import MaskTensor

    visible = torch.tensor(mask.dense(9, 9)).expand(2, 1, 9, 9)
    added = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    ours = run(build(LLAMA), attention_mask=MaskTensor(mask, 2, 9, 9))
    assert_same(ours, run(build(LLAMA, "eager"), attention_mask=added))


def dropout():
    """Dropped while training, as torch's generator says."""
    model = build(BERT, attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0)
    plain = run(model)
    model.train()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(run(model))
    assert_same(drawn[0], drawn[1], unit=0)
    for other in (plain, drawn[2]):
        assert not torch.equal(drawn[0][0], other[0]) and not torch.equal(drawn[0][1], other[1])


def in_type(name):
    """Weights and numbers of another type: at most twice as far from float64 as eager is."""
    dtype = getattr(torch, name)
    # Eager takes its softmax in float32 whatever the type, so that sdpa says what is exact.
    exact, eager, ours = (
        run(build(LLAMA, implementation).to(to))
        for implementation, to in (("sdpa", torch.float64), ("eager", dtype), ("tegula", dtype))
    )
    for truth, own, got in zip(exact, eager, ours, strict=True):
        assert got.dtype == dtype
        error = (own.double() - truth).abs().max().item()
        assert (got.double() - truth).abs().max().item() <= 2 * error + 1e-13 * truth.abs().max().item()


def weights():
    """The weights of each layer."""
    found = []
    for implementation in ("tegula", "eager"):
        with torch.no_grad():
            found.append(build(BERT, implementation)(input_ids=IDS, output_attentions=True).attentions)
    assert_same(*found)


def generation():
    """Greedy decoding with a left-padded batch, on a dynamic and a static cache."""
    keep = EVERY.long().clone()
    keep[1, :4] = 0
    for cache in ("dynamic", "static"):
        options = dict(max_new_tokens=6, do_sample=False, cache_implementation=cache, pad_token_id=0)
        ours, eager = (
            build(LLAMA, name, "AutoModelForCausalLM").generate(IDS, attention_mask=keep, **options)
            for name in ("tegula", "eager")
        )
        assert ours.shape == (2, 15)
        assert torch.equal(ours, eager)
