"""Hugging Face models on tegula, what is particular: tiny random models against their own eager attention."""

from __future__ import annotations

import logging

import pytest
import tegula as tg

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tegula.integrations import transformers as integration  # noqa: E402
from tegula.integrations.transformers import MaskTensor, register, tegula_attention, warnings  # noqa: E402
from transformers import (  # noqa: E402
    AttentionInterface,
    AttentionMaskInterface,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    DynamicCache,
    StaticCache,
)

pytestmark = pytest.mark.isa_once

SIZES = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=99,
    max_position_embeddings=64, initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
B, L = 3, 12
REAL = {
    "none": torch.ones(B, L, dtype=torch.int64),
    "right": (torch.arange(L) < torch.tensor([[5], [9], [12]])).long(),
    "left": (torch.arange(L) >= torch.tensor([[5], [3], [0]])).long(),
}


@pytest.fixture(autouse=True)
def registered():
    register()


def make(auto, kind, attention="tegula", **options):
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**SIZES, **options})
    return auto.from_config(config, attn_implementation=attention).eval()


MODELS = {
    "llama": (AutoModelForCausalLM, "LlamaConfig", dict(num_key_value_heads=2)),
    "mistral": (AutoModelForCausalLM, "MistralConfig", dict(num_key_value_heads=2, sliding_window=5)),
    "gemma2": (
        AutoModelForCausalLM,
        "Gemma2Config",
        dict(num_key_value_heads=2, head_dim=8, sliding_window=5, attn_logit_softcapping=3.0, query_pre_attn_scalar=7),
    ),
    "gpt_oss": (
        AutoModelForCausalLM,
        "GptOssConfig",
        dict(num_key_value_heads=2, head_dim=8, sliding_window=5, num_local_experts=4, num_experts_per_tok=2),
    ),
    "bert": (AutoModel, "BertConfig", {}),
    "modernbert": (AutoModel, "ModernBertConfig", dict(local_attention=6, global_attn_every_n_layers=2)),
    "mpnet": (AutoModel, "MPNetConfig", {}),  # an attention of its own, whatever is registered
}
DECODERS = ["llama", "mistral", "gemma2", "gpt_oss"]


def ids(batch=B, length=L):
    return torch.randint(3, 99, (batch, length), generator=torch.Generator().manual_seed(1))


def result(model, **inputs):
    found = model(**inputs)
    return found.logits if "logits" in found else found.last_hidden_state


def on(model, attention, call):
    model.set_attn_implementation(attention)
    return call()


def compare(model, call, tolerance=3e-5):
    expected, found = (on(model, attention, call) for attention in ("eager", "tegula"))
    scale = max(1.0, expected.abs().max().item())
    assert (found - expected).abs().max().item() <= tolerance * scale


@pytest.mark.parametrize("side", REAL)
@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_are_those_of_eager(name, side):
    auto, kind, options = MODELS[name]
    model = make(auto, kind, **options)
    real = REAL[side]

    def run():
        model.zero_grad()
        out = result(model, input_ids=ids(), attention_mask=real)[real.bool()]
        out.square().mean().backward()
        return out.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    (expected, expected_grad), (found, grad) = on(model, "eager", run), on(model, "tegula", run)
    assert (found - expected).abs().max() <= 3e-5 * max(1, expected.abs().max())
    assert (grad - expected_grad).norm() <= 2e-4 * expected_grad.norm()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("name", DECODERS)
def test_generates_the_same_tokens(name, side, cache):
    auto, kind, options = MODELS[name]
    model = make(auto, kind, **options)
    call = dict(max_new_tokens=10, do_sample=False, cache_implementation=cache, eos_token_id=None, pad_token_id=0)
    expected, found = (
        on(model, attention, lambda: model.generate(ids(), attention_mask=REAL[side], **call))
        for attention in ("eager", "tegula")
    )
    assert torch.equal(expected, found)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_several_tokens_onto_a_filled_cache(name, kind):
    auto, config, options = MODELS[name]
    model = make(auto, config, **options)
    tokens = ids(2, 15)

    @torch.no_grad()
    def run():
        cache = DynamicCache(config=model.config) if kind == "dynamic" else StaticCache(model.config, max_cache_len=24)
        model(tokens[:, :8], cache=cache)
        return model(tokens[:, 8:], cache=cache).logits

    compare(model, run)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_positions_that_start_again_are_packed_documents(name):
    auto, kind, options = MODELS[name]
    model = make(auto, kind, **options)
    positions = torch.tensor([[*range(5), *range(3), *range(7)]])
    tokens = ids(1, 15)
    compare(model, lambda: model(tokens, position_ids=positions, use_cache=False).logits.detach())
    alone = model(tokens[:, 5:8], use_cache=False).logits
    packed = model(tokens, position_ids=positions, use_cache=False).logits[:, 5:8]
    assert (alone - packed).abs().max() < 3e-5


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "bert"])
def test_borders_of_packed_documents_are_heeded(name):
    """With a cache, which a call makes by default, transformers' masks know nothing of the documents."""
    auto, kind, options = MODELS[name]
    model = make(auto, kind, **options)
    tokens, borders = ids()[:1], torch.tensor([0, 4, L], dtype=torch.int32)
    positions = torch.cat([torch.arange(4), torch.arange(L - 4)])[None]
    call = dict(input_ids=tokens, position_ids=positions, cu_seq_lens_q=borders, cu_seq_lens_k=borders)
    packed = result(model, **call, max_length_q=L, max_length_k=L)
    alone = torch.cat([result(model, input_ids=part) for part in (tokens[:, :4], tokens[:, 4:])], 1)
    assert (packed - alone).abs().max() < 3e-5
    with pytest.raises(ValueError, match="cu_seqlens"):
        result(model, input_ids=tokens, cu_seq_lens_q=borders + 1)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_mask_object_may_be_given(name):
    auto, kind, options = MODELS[name]
    model = make(auto, kind, **options)
    inside = "bottom_right" if name == "llama" else None
    mask = MaskTensor(tg.masks.documents(cu_seqlens=[0, 5, 8, 15], causal=inside), 1, 15, 15)
    positions = torch.tensor([[*range(5), *range(3), *range(7)]])
    tokens = ids(1, 15)
    packed = result(model, input_ids=tokens, attention_mask=mask, position_ids=positions)
    for first, last in ((0, 5), (5, 8), (8, 15)):
        alone = result(model, input_ids=tokens[:, first:last])
        assert (alone - packed[:, first:last]).abs().max() < 3e-5


@pytest.mark.parametrize("side", ["none", "right"])
def test_encoder_and_decoder_with_cross_attention(side):
    sizes = dict(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, init_std=0.2, decoder_start_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip
    model = make(AutoModelForSeq2SeqLM, "BartConfig", **sizes)
    call = dict(input_ids=ids(), attention_mask=REAL[side])
    compare(model, lambda: model(**call, decoder_input_ids=ids(B, 7)).logits.detach())
    search = dict(max_new_tokens=6, eos_token_id=None, do_sample=False, num_beams=1)
    expected, found = (on(model, a, lambda: model.generate(**call, **search)) for a in ("eager", "tegula"))
    assert torch.equal(expected, found)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_bfloat16_is_no_less_accurate_than_eager(name):
    auto, kind, options = MODELS[name]
    model = make(auto, kind, **options)

    def run():
        return result(model, input_ids=ids()).detach().float()

    exact = on(model, "eager", run)
    model.bfloat16()
    errors = [(on(model, attention, run) - exact).square().mean().sqrt() for attention in ("eager", "tegula")]
    assert errors[1] <= 1.2 * errors[0]


def test_dropout_is_drawn_from_torchs_generator():
    model = make(*MODELS["llama"][:2], attention_dropout=0.5).train()
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        runs.append(model(ids(), use_cache=False).logits.detach())
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert (runs[0] - model.eval()(ids(), use_cache=False).logits).abs().max() > 1e-3


def test_weights_when_asked_for():
    model = make(AutoModel, "BertConfig")
    with torch.no_grad():
        expected, found = (
            on(model, a, lambda: model(ids(), attention_mask=REAL["right"], output_attentions=True).attentions)
            for a in ("eager", "tegula")
        )
    for a, b in zip(expected, found, strict=True):
        assert (a - b).abs().max() < 1e-5


def test_training_with_checkpoints():
    model = make(*MODELS["llama"][:2]).train()

    def grads():
        model.zero_grad()
        model(ids(), attention_mask=REAL["left"], use_cache=False).logits.square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = grads()
    model.gradient_checkpointing_enable()
    for a, b in zip(plain, grads(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["mistral", "bert", "mpnet"])
def test_compiles_in_one_graph(name):
    auto, kind, options = MODELS[name]
    model = make(auto, kind, **options)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for side in ("none", "left"):
            real = REAL[side]
            expected = result(model, input_ids=ids(), attention_mask=real)[real.bool()]
            found = result(compiled, input_ids=ids(), attention_mask=real)[real.bool()]
            assert (expected - found).abs().max() < 3e-5


def test_exports():
    model = make(*MODELS["llama"][:2])
    call = dict(attention_mask=REAL["left"], use_cache=False)
    program = torch.export.export(model, (ids(),), kwargs=call, strict=False)
    real = REAL["left"].bool()
    assert (program.module()(ids(), **call).logits - model(ids(), **call).logits)[real].abs().max() < 3e-5


# -- registering -------------------------------------------------------------------------------------


def test_registering_twice_and_under_another_name():
    register()
    register("tiles")
    try:
        assert AttentionInterface()["tiles"] is tegula_attention
        assert AttentionMaskInterface()["tiles"] is integration.tegula_mask
        model = make(AutoModel, "BertConfig", "tiles")
        compare(
            model, lambda: result(model, input_ids=ids(), attention_mask=REAL["right"])[REAL["right"].bool()].detach()
        )
    finally:
        AttentionInterface._global_mapping.pop("tiles")
        AttentionMaskInterface._global_mapping.pop("tiles")


@pytest.mark.parametrize("name", ["sdpa", "eager", "flash_attention_2", "my_flash", "a|b", "a/b", ""])
def test_refuses_names_with_a_meaning(name):
    with pytest.raises(ValueError, match="name must be a word of its own"):
        register(name)


def test_refuses_a_name_that_is_no_string():
    with pytest.raises(TypeError, match="name must be a string, got int"):
        register(3)


def test_attention_is_what_runs(monkeypatch):
    """The comparisons above would pass just as well if transformers used its own."""
    calls = []

    def counting(*args, **options):
        calls.append(args[4])
        return tegula_attention(*args, **options)

    monkeypatch.setitem(AttentionInterface._global_mapping, "tegula", counting)
    for name in ("llama", "mistral", "gemma2", "gpt_oss", "bert", "modernbert"):
        calls.clear()
        auto, kind, options = MODELS[name]
        result(make(auto, kind, **options), input_ids=ids(), attention_mask=REAL["right"])
        assert len(calls) == 2
        assert all(isinstance(mask, MaskTensor) for mask in calls)


# -- arguments of layers -----------------------------------------------------------------------------


class Layer(torch.nn.Module):
    is_causal = False


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


Q, K, V = draw(2, 4, 5, 8), draw(2, 2, 7, 8), draw(2, 2, 7, 6)


def expected(mask=None, bias=None, sink=None, scale=8**-0.5):
    scores = Q @ K.repeat_interleave(2, 1).mT * scale
    scores = scores if bias is None else scores + bias
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    if sink is not None:
        scores = torch.cat([scores, sink.expand(2, 4, 5, 1)], -1)
    weights = scores.softmax(-1)[..., :7]
    return (weights @ V.repeat_interleave(2, 1)).transpose(1, 2), weights


def check(expected, mask=None, **options):
    found, weights = tegula_attention(Layer(), Q, K, V, mask, output_attentions=True, **options)
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights, expected[1], atol=1e-5, rtol=1e-5)


SHOWN = torch.rand(2, 4, 5, 7, generator=torch.Generator().manual_seed(4)) > 0.3
SHOWN[..., 0] = True


@pytest.mark.parametrize(
    "mask",
    [SHOWN, SHOWN[:, :1], SHOWN[:1], SHOWN[:, :, :1], SHOWN[:1, :1, :1], SHOWN[0, 0]],
    ids=lambda x: str(x.shape),
)
def test_bool_masks_broadcast(mask):
    check(expected(mask=mask), mask)


def test_a_carried_mask_broadcasts_along_the_queries():
    mask = MaskTensor(tg.masks.padding([3, 6]), 2, 1, 7)
    check(expected(mask=torch.arange(7) < torch.tensor([3, 6])[:, None, None, None]), mask)


def test_a_mask_of_integers_is_refused():
    with pytest.raises(
        TypeError, match=r"attention_mask must be bool .True = may attend. or floats to add, got .*int64"
    ):
        check(None, SHOWN.long())


def test_floats_are_added():
    bias = draw(1, 4, 5, 7)
    check(expected(bias=bias), bias)
    check(expected(bias=bias), position_bias=bias)
    check(expected(bias=2 * bias), bias, position_bias=bias)
    check(expected(bias=bias, mask=SHOWN), SHOWN, position_bias=bias)
    low = torch.zeros(2, 1, 1, 7).masked_fill(torch.arange(7) > 4, torch.finfo(torch.float32).min)
    check(expected(mask=torch.arange(7) <= 4), low)


def test_sinks_of_heads_and_of_queries():
    heads, queries = draw(4), draw(2, 4, 5, 1)
    check(expected(sink=heads[:, None, None]), s_aux=heads)
    check(expected(sink=queries), sinks=queries)
    check(expected(sink=queries, mask=SHOWN), SHOWN, sinks=queries)
    assert torch.equal(
        tegula_attention(Layer(), Q, K, V, torch.zeros(5, 7, dtype=torch.bool), sinks=queries)[0],
        torch.zeros(2, 5, 4, 6),
    )


def test_causality_without_a_mask():
    top_left = torch.ones(5, 7, dtype=torch.bool).tril()
    check(expected(mask=top_left), is_causal=True)
    check(expected(), is_causal=False)
    layer = Layer()
    layer.is_causal = True
    found, _ = tegula_attention(layer, Q, K, V, None)
    torch.testing.assert_close(found, expected(mask=top_left)[0], atol=1e-5, rtol=1e-5)
    # One query is the last token.
    one, _ = tegula_attention(layer, Q[:, :, :1], K, V, None)
    torch.testing.assert_close(one, expected()[0][:, :1], atol=1e-5, rtol=1e-5)
    # A layer that says nothing is causal, but in transformers itself, where every causal mask is given.
    found, _ = tegula_attention(torch.nn.Identity(), Q, K, V, None)
    torch.testing.assert_close(found, expected(mask=top_left)[0], atol=1e-5, rtol=1e-5)
    theirs = make(AutoModel, "BertConfig").encoder.layer[0].attention.self
    theirs.is_causal = True
    found, _ = tegula_attention(theirs, Q, K, V, None)
    torch.testing.assert_close(found, expected()[0], atol=1e-5, rtol=1e-5)


def test_scaling_may_be_a_tensor_and_batches_may_broadcast():
    check(expected(scale=0.3), scaling=torch.tensor(0.3))
    check(expected(scale=1.0), scaling=1)
    found, _ = tegula_attention(Layer(), Q[:1], K, V, None)
    torch.testing.assert_close(found[0], expected()[0][0], atol=1e-5, rtol=1e-5)
    assert found.shape == (2, 5, 4, 6)


@pytest.mark.parametrize("name", ["indices", "block_indices"])
def test_sparse_attention_by_indices_raises(name):
    with pytest.raises(NotImplementedError, match=f"chooses keys by {name}="):
        tegula_attention(Layer(), Q, K, V, None, **{name: torch.zeros(2, 5, 3, dtype=torch.int32)})
    check(expected(), **{name: None})


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, twist=None, **kwargs):
    """What a model's file would hold for the layers above: an argument that only this model has."""
    scores = query @ key.repeat_interleave(2, 1).mT * scaling + (0 if attention_mask is None else attention_mask)
    return twist * (scores.softmax(-1) @ value.repeat_interleave(2, 1)).transpose(1, 2), None


def test_an_argument_of_the_models_own_attention_is_not_ignored(caplog):
    transformers.utils.logging.enable_propagation()
    warnings.logger.warning_once.cache_clear()
    call = dict(scaling=8**-0.5, twist=2.0, use_cache=True, position_ids=torch.arange(5))
    with caplog.at_level(logging.WARNING):
        for mask, shown in (
            (None, None),
            (SHOWN, SHOWN),
            (MaskTensor(tg.masks.causal("bottom_right"), 2, 5, 7), torch.ones(5, 7, dtype=torch.bool).tril(2)),
        ):
            found, _ = tegula_attention(Layer(), Q, K, V, mask, **call)
            torch.testing.assert_close(found, 2 * expected(mask=shown)[0], atol=1e-5, rtol=1e-5)
    transformers.utils.logging.disable_propagation()
    assert [r.getMessage() for r in caplog.records if "twist" in r.getMessage()] == [
        "attn_implementation='tegula' does not know twist of Layer; its eager attention is used instead."
    ]
