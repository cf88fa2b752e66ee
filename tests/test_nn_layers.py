"""The Transformer layers against torch's: first values, results, gradients, masks, containers."""

import warnings

import pytest
import tegula as tg

torch = pytest.importorskip("torch")
nn = tg.torch.nn
tnn = torch.nn

pytestmark = [pytest.mark.isa_once, pytest.mark.filterwarnings("ignore:Support for mismatched")]

D, H, L, S, B = 32, 4, 7, 9, 3
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.06}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def layers(kind, **options):
    """torch's layer and ours, built after the same seed."""
    name = f"Transformer{kind}Layer"
    options = {"dim_feedforward": 48, "dropout": 0.0} | options
    torch.manual_seed(1)
    theirs = getattr(tnn, name)(D, H, **options)
    torch.manual_seed(1)
    return theirs, getattr(nn, name)(D, H, **options)


def rows(length, batch_first=True, dtype=torch.float32):
    shape = (B, length, D) if batch_first else (length, B, D)
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def hidden_padding(length=L):
    """True = hidden, as torch's layers read it."""
    return torch.arange(length) >= torch.tensor([[length], [3], [5]])


def hidden_future(length=L):
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def compare(theirs, ours, inputs, *, expected_options=None, tolerance=2e-5, **options):
    """Results and every gradient are those of torch's layer."""
    expected = theirs(*inputs, **(options if expected_options is None else expected_options))
    got = ours(*inputs, **options)
    assert got.shape == expected.shape and got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    grad = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, [*inputs, *theirs.parameters()], grad)
    found = torch.autograd.grad(got, [*inputs, *ours.parameters()], grad)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
@pytest.mark.parametrize("bias", [True, False])
def test_first_values_are_those_of_torch(kind, bias):
    theirs, ours = layers(kind, bias=bias)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("activation", ["relu", "gelu", torch.tanh])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_encoder_layer(batch_first, norm_first, activation, dtype):
    theirs, ours = layers("Encoder", activation=activation, norm_first=norm_first, batch_first=batch_first, dtype=dtype)
    compare(theirs, ours, [rows(L, batch_first, dtype)], tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_decoder_layer(batch_first, norm_first):
    theirs, ours = layers("Decoder", norm_first=norm_first, batch_first=batch_first, activation="gelu")
    masks = {
        "tgt_mask": hidden_future(),
        "tgt_is_causal": True,
        "tgt_key_padding_mask": hidden_padding(),
        "memory_key_padding_mask": hidden_padding(S),
    }
    for options in ({}, masks):
        compare(theirs, ours, [rows(L, batch_first), rows(S, batch_first)], **options)


def additive(hidden):
    return torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"src_mask": hidden_future()},
        {"src_mask": additive(hidden_future())},
        {"src_mask": additive(hidden_future()), "is_causal": True},
        {"src_mask": torch.randn(L, L)},
        {"src_mask": torch.randn(B * H, L, L)},
        {"src_mask": (torch.rand(B * H, L, L) < 0.4) & ~torch.eye(L, dtype=torch.bool)},
        {"src_key_padding_mask": hidden_padding()},
        {"src_key_padding_mask": additive(hidden_padding())},
        {"src_key_padding_mask": torch.randn(B, L)},
        {"src_mask": hidden_future(), "src_key_padding_mask": hidden_padding(), "is_causal": True},
        {"src_mask": torch.randn(L, L), "src_key_padding_mask": hidden_padding()},
        {"src_mask": hidden_future(), "src_key_padding_mask": additive(hidden_padding())},
    ],
    ids=lambda options: "+".join(f"{k}:{getattr(v, 'dtype', v)}:{getattr(v, 'ndim', '')}" for k, v in options.items()),
)
def test_masks_of_torch(options, batch_first):
    """True = hidden, floats are added; together they all hold."""
    theirs, ours = layers("Encoder", batch_first=batch_first)
    compare(theirs, ours, [rows(L, batch_first)], **options)


@pytest.mark.parametrize(
    ("attend", "hidden"),
    [
        (tg.masks.causal(), {"src_mask": hidden_future()}),
        (~hidden_future(), {"src_mask": hidden_future()}),
        ((~hidden_future()).int(), {"src_mask": hidden_future()}),
        (additive(hidden_future()), {"src_mask": hidden_future()}),
        (tg.masks.padding([7, 3, 5]), {"src_key_padding_mask": hidden_padding()}),
        ((~hidden_padding())[:, None], {"src_key_padding_mask": hidden_padding()}),
        (tg.masks.window(2, 0), {"src_mask": ~torch.tensor(tg.masks.window(2, 0).dense(L, L))}),
    ],
)
def test_attend_is_ours(attend, hidden):
    """The keyword of our own: True = may attend."""
    theirs, ours = layers("Encoder", batch_first=True)
    compare(theirs, ours, [rows(L)], expected_options=hidden, attend=attend)


def test_attend_and_masks_of_torch_all_hold():
    theirs, ours = layers("Encoder", batch_first=True)
    both = {"src_mask": hidden_future(), "src_key_padding_mask": hidden_padding()}
    for options in (
        {"attend": tg.masks.padding([7, 3, 5]), "is_causal": True},
        {"attend": tg.masks.padding([7, 3, 5]), "src_mask": hidden_future()},
        {"attend": ~hidden_future(), "src_key_padding_mask": hidden_padding()},
    ):
        compare(theirs, ours, [rows(L)], expected_options=both, **options)


def test_is_causal_needs_no_mask():
    theirs, ours = layers("Decoder", batch_first=True)
    expected = {"tgt_mask": hidden_future(), "memory_mask": torch.ones(L, S, dtype=torch.bool).triu(1)}
    options = {"tgt_is_causal": True, "memory_is_causal": True}
    compare(theirs, ours, [rows(L), rows(S)], expected_options=expected, **options)
    compare(
        theirs, ours, [rows(L), rows(S)], expected_options=expected,
        attend=tg.masks.causal(), memory_attend=tg.masks.causal("top_left"),
    )  # fmt: skip


def test_one_sentence_without_a_batch_axis():
    theirs, ours = layers("Encoder", batch_first=False)
    x = torch.randn(L, D, requires_grad=True)
    compare(theirs, ours, [x], src_mask=hidden_future())
    compare(theirs, ours, [x], src_key_padding_mask=hidden_padding()[1])


def test_gradient_of_a_float_mask():
    theirs, ours = layers("Encoder", batch_first=True)
    x, bias = rows(L), torch.zeros(L, L, requires_grad=True)
    (wanted,) = torch.autograd.grad(theirs(x, src_mask=bias).square().sum(), [bias])
    (found,) = torch.autograd.grad(ours(x, src_mask=bias).square().sum(), [bias])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_row_without_keys_is_no_nan():
    """Where torch gives NaN, attention gives 0: what remains is the bias of out_proj."""
    _, ours = layers("Encoder", batch_first=True)
    hidden = torch.zeros(L, L, dtype=torch.bool)
    hidden[2] = True
    x = rows(L)
    out = ours(x, src_mask=hidden)
    lone = ours.norm1(x + ours.self_attn.out_proj.bias)
    torch.testing.assert_close(out[:, 2], ours.norm2(lone + ours._feed_forward(lone))[:, 2])
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in ours.parameters()) and x.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
def test_dropout_is_for_training_and_repeats(kind):
    _, ours = layers(kind, dropout=0.5, batch_first=True)
    inputs = [rows(L)] if kind == "Encoder" else [rows(L), rows(S)]
    still = ours.eval()(*inputs)
    assert torch.equal(ours(*inputs), still)
    ours.train()
    torch.manual_seed(4)
    first, second = ours(*inputs), ours(*inputs)
    torch.manual_seed(4)
    assert torch.equal(ours(*inputs), first)
    assert not torch.equal(first, second) and not torch.equal(first, still)


def test_c55_eval_is_training_without_dropout():
    _, ours = layers("Encoder", batch_first=True)
    x = rows(L)
    options = {"src_key_padding_mask": hidden_padding()}
    with torch.no_grad():
        assert torch.equal(ours.eval()(x, **options), ours.train()(x, **options))


# -- torch's containers -----------------------------------------------------------------------------


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_inside_torchs_encoder(training, batch_first):
    theirs, ours = layers("Encoder", batch_first=batch_first)
    stacks = [tnn.TransformerEncoder(x, 3, tnn.LayerNorm(D), enable_nested_tensor=False) for x in (theirs, ours)]
    stacks[1].load_state_dict(stacks[0].state_dict())
    for stack in stacks:
        stack.train(training)
    x = rows(L, batch_first)
    real = ~hidden_padding() if batch_first else ~hidden_padding().T
    for options in (
        {},
        {"mask": hidden_future()},
        {"mask": hidden_future(), "is_causal": True},
        {"src_key_padding_mask": hidden_padding()},
        {"mask": hidden_future(), "src_key_padding_mask": hidden_padding()},
    ):
        with torch.set_grad_enabled(training):
            expected, got = (stack(x, **options) for stack in stacks)
        torch.testing.assert_close(got[real], expected[real], rtol=2e-5, atol=2e-5)


def test_inside_torchs_encoder_with_its_defaults():
    """It says that it makes no nested tensors, and works."""
    theirs, ours = layers("Encoder", batch_first=True)
    with pytest.warns(UserWarning, match="enable_nested_tensor"):
        stack = tnn.TransformerEncoder(ours, 2).eval()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        x, real = rows(L), ~hidden_padding()
        expected = tnn.TransformerEncoder(theirs, 2).eval()(x, src_key_padding_mask=~real)
        got = stack(x, src_key_padding_mask=~real)
    torch.testing.assert_close(got[real], expected[real], rtol=2e-5, atol=2e-5)


def test_inside_torchs_decoder_and_transformer():
    theirs, ours = layers("Decoder", batch_first=True)
    stacks = [tnn.TransformerDecoder(x, 2) for x in (theirs, ours)]
    x, memory = rows(L), rows(S)
    options = {"tgt_mask": hidden_future(), "memory_key_padding_mask": hidden_padding(S)}
    expected, got = (stack(x, memory, **options) for stack in stacks)
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)

    encoder = tnn.TransformerEncoder(layers("Encoder", batch_first=True)[1], 2, enable_nested_tensor=False)
    whole = tnn.Transformer(D, H, custom_encoder=encoder, custom_decoder=stacks[1], batch_first=True)
    assert whole(memory, x, tgt_mask=hidden_future()).shape == x.shape


# -- decoding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_first", [False, True])
def test_encoder_layer_decodes_with_a_cache(batch_first):
    _, ours = layers("Encoder", batch_first=batch_first)
    ours.eval()
    axis = 1 if batch_first else 0
    with torch.no_grad():
        x = rows(L, batch_first)
        cache = ours.self_attn.new_cache(B, 16)
        steps = [ours(part, cache=cache) for part in x.split([3, 1, 1, 2], axis)]
        torch.testing.assert_close(torch.cat(steps, axis), ours(x, is_causal=True), rtol=1e-6, atol=1e-6)


def test_decoder_layer_decodes_with_a_cache():
    _, ours = layers("Decoder", batch_first=True)
    ours.eval()
    with torch.no_grad():
        x, memory = rows(L), rows(S)
        cache = ours.self_attn.new_cache(B, L)
        seen = {"memory_attend": tg.masks.padding([9, 3, 5])}
        steps = [ours(part, memory, cache=cache, **seen) for part in x.split(1, 1)]
        expected = ours(x, memory, tgt_is_causal=True, **seen)
        torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=1e-6, atol=1e-6)


# -- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"src_mask": torch.ones(L, L, dtype=torch.int64)}, TypeError, r"src_mask must be bool \(True = HIDDEN"),
        ({"src_mask": tg.masks.causal()}, TypeError, r"src_mask is torch's.*masks.causal\(\); .*attend="),
        ({"src_mask": torch.ones(L, S, dtype=torch.bool)}, ValueError, r"src_mask has shape \(7, 9\)"),
        ({"src_mask": torch.ones(B, L, L, dtype=torch.bool)}, ValueError, r"\(B \* H, L, S\) is \(12, 7, 7\)"),
        ({"src_mask": torch.ones(B, H, L, L, dtype=torch.bool)}, ValueError, r"\(L, S\) or \(B \* H, L, S\)"),
        ({"src_key_padding_mask": torch.ones(L, B, dtype=torch.bool)}, ValueError, r"\(B, Lk\) = \(3, 7\)"),
        ({"src_key_padding_mask": torch.ones(B, L).int()}, TypeError, "src_key_padding_mask must be bool"),
        ({"attend": torch.ones(L, L)}, ValueError, r"attend is a float tensor.*attend.bool\(\)"),
        ({"attend": [[True]]}, TypeError, "attend must be a mask of tegula.masks or a tensor"),
        ({"is_causal": 1}, TypeError, "is_causal must be a bool"),
    ],
)
def test_bad_masks(options, error, words):
    _, ours = layers("Encoder", batch_first=True)
    with pytest.raises(error, match=words):
        ours(rows(L), **options)


def test_bad_constructors_and_inputs():
    with pytest.raises(ValueError, match="d_model=32 is not divisible by num_heads=5"):
        nn.TransformerEncoderLayer(32, 5)
    with pytest.raises(ValueError, match="activation must be 'relu', 'gelu'"):
        nn.TransformerEncoderLayer(32, 4, activation="swish")
    with pytest.raises(TypeError, match="activation must be"):
        nn.TransformerDecoderLayer(32, 4, activation=3)
    with pytest.raises(ValueError, match=r"dropout must lie in \[0, 1\]"):
        nn.TransformerEncoderLayer(32, 4, dropout=1.5)
    _, ours = layers("Encoder", batch_first=True)
    with pytest.raises(TypeError, match="src must be a torch tensor"):
        ours([1.0])
    with pytest.raises(ValueError, match="do not go with a cache"):
        ours(rows(L), src_mask=hidden_future(), cache=ours.self_attn.new_cache(B, L))
    _, decoder = layers("Decoder", batch_first=True)
    with pytest.raises(TypeError, match="memory must be a torch tensor"):
        decoder(rows(L), None)
    with pytest.raises(ValueError, match="do not go with a cache"):
        decoder(rows(L), rows(S), hidden_future(), cache=decoder.self_attn.new_cache(B, L))
