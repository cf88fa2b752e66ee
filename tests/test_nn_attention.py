"""Multi-head attention as a module: against torch's, masks of every form, grouped heads, windows."""

import pytest
import tegula as tg

torch = pytest.importorskip("torch")
nn = tg.torch.nn
tnn = torch.nn
F = torch.nn.functional

pytestmark = pytest.mark.isa_once

D, H, L, S, B = 32, 4, 6, 9, 2
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.05}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def close(found, wanted, tolerance=2e-5):
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def test_no_keys_at_all():
    layer = nn.MultiHeadAttention(D, H)
    none = torch.zeros(B, 0, D)
    real = torch.ones(B, 0, dtype=torch.bool)
    close(layer(draw(B, L, D), none, key_padding=real), layer.out_proj.bias.expand(B, L, D))
    assert layer(none, key_padding=real).shape == (B, 0, D)
    encoder = nn.TransformerEncoderLayer(D, H, batch_first=True)
    assert encoder(none, src_key_padding_mask=~real).shape == (B, 0, D)


# -- against torch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 20, "vdim": 12}, {"vdim": 12}])
def test_values_gradients_and_state_dict_of_torch(sizes, bias, batch_first, dtype):
    options = {"bias": bias, "batch_first": batch_first, "dtype": dtype, **sizes}
    theirs = tnn.MultiheadAttention(D, H, **options)
    ours = nn.MultiHeadAttention(D, H, **options)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    shape = lambda n: (B, n) if batch_first else (n, B)
    q = draw(*shape(L), D, dtype=dtype)
    k = draw(*shape(S), sizes.get("kdim", D), dtype=dtype)
    v = draw(*shape(S), sizes.get("vdim", D), dtype=dtype)
    expected, weights = theirs(q, k, v, average_attn_weights=False)
    got, shares = ours(q, k, v, need_weights=True)
    close(got, expected, TOLERANCE[dtype])
    close(shares, weights.detach(), TOLERANCE[dtype])
    assert not shares.requires_grad
    grad = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, [q, k, v, *theirs.parameters()], grad)
    found = torch.autograd.grad(got, [q, k, v, *ours.parameters()], grad)
    for x, y in zip(found, wanted, strict=True):
        close(x, y, 10 * TOLERANCE[dtype])


def test_first_values_of_torch():
    torch.manual_seed(2)
    theirs = tnn.MultiheadAttention(D, H, kdim=20, vdim=12)
    torch.manual_seed(2)
    ours = nn.MultiHeadAttention(D, H, kdim=20, vdim=12, init="xavier")
    assert all(torch.equal(x, ours.state_dict()[name]) for name, x in theirs.state_dict().items())


@pytest.mark.parametrize("init", ["linear", "xavier"])
def test_reset_parameters_draws_the_first_values_again(init):
    torch.manual_seed(2)
    layer = nn.MultiHeadAttention(D, H, init=init)
    first = {name: value.clone() for name, value in layer.state_dict().items()}
    layer.reset_parameters()
    assert not torch.equal(layer.in_proj_weight, first["in_proj_weight"])
    torch.manual_seed(2)
    layer.reset_parameters()
    assert all(torch.equal(value, first[name]) for name, value in layer.state_dict().items())


def test_same_tensor_is_one_product_and_others_give_the_same():
    layer, x = nn.MultiHeadAttention(D, H), draw(B, L, D)
    whole = layer(x)
    for k, v in ((x, x), (x.clone(), None), (x.clone(), x.clone())):
        close(layer(x, k, v), whole, 1e-6)
    apart = nn.MultiHeadAttention(D, H, fused=False)
    apart.load_state_dict(layer.state_dict())
    assert apart.in_proj_weight is None and apart.q_proj_weight.shape == (D, D)
    close(apart(x), whole, 1e-6)
    layer.load_state_dict(apart.state_dict())
    close(layer(x), whole, 1e-6)


# -- masks ------------------------------------------------------------------------------------------


def forms(visible):
    """A mask (B, H, L, S) in every form that says the same: bool, integers, floats to add."""
    yield visible
    yield visible.to(torch.uint8)
    yield visible.long() * 7
    yield torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
    yield torch.zeros(visible.shape).masked_fill(~visible, -torch.inf).bfloat16()


@pytest.mark.parametrize(
    "shape",
    [(L, S), (1, S), (B, L, S), (1, L, S), (B, 1, S), (B, H, L, S), (B, 1, L, S), (1, H, L, S), (B, 1, 1, S)]
    + [(B, H, 1, S), (1, 1, L, S)],
)
def test_every_form_of_a_mask(shape):
    layer = nn.MultiHeadAttention(D, H)
    q, k = draw(B, L, D), draw(B, S, D)
    visible = torch.rand(shape) < 0.6
    visible[..., 0] = True
    full = visible[:, None] if len(shape) == 3 else visible
    q_, k_, v_ = layer.project(q, k, k)
    split = lambda x: x.unflatten(-1, (H, D // H)).transpose(1, 2)
    by_hand = F.scaled_dot_product_attention(split(q_), split(k_), split(v_), full.expand(B, H, L, S))
    expected = layer.W_o(by_hand.transpose(1, 2).flatten(-2))
    for mask in forms(visible):
        close(layer(q, k, mask=mask), expected)
        close(layer(q, k, mask=mask, key_padding=torch.ones(B, S, dtype=torch.int64)), expected)
    finite = torch.zeros(visible.shape).masked_fill(~visible, -1e9)
    close(layer(q, k, mask=finite), expected)


def test_everything_that_is_given_holds():
    layer, x = nn.MultiHeadAttention(D, H), draw(B, L, D)
    real = torch.arange(L) < torch.tensor([[L], [4]])
    some = torch.rand(B, H, L, L) < 0.7
    bias = torch.randn(H, L, L)
    tril = torch.ones(L, L, dtype=torch.bool).tril()
    visible = tril & real[:, None, None] & some
    expected = layer(x, mask=visible, bias=bias)
    close(layer(x, mask=some, key_padding=real, causal=True, bias=bias), expected)
    close(layer(x, mask=tg.masks.causal() & some, key_padding=real.int(), bias=bias), expected)
    lowered = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
    close(layer(x, mask=lowered, bias=bias), expected)
    close(layer(x, mask=lowered + torch.where(visible, -1.0, 0.0), bias=bias), expected)  # a bias of its own
    causal = nn.MultiHeadAttention(D, H, causal=True)
    causal.load_state_dict(layer.state_dict())
    close(causal(x, mask=some, key_padding=real, bias=bias), expected)


def test_bias_gets_its_gradient():
    layer, x = nn.MultiHeadAttention(D, H), draw(B, L, D)
    bias = draw(1, H, L, L)
    layer(x, bias=bias).square().sum().backward()
    assert bias.grad.shape == bias.shape and (bias.grad != 0).any()
    lowered = torch.zeros(L, L, requires_grad=True)
    layer(x, mask=lowered).square().sum().backward()
    assert (lowered.grad != 0).any()


def test_c61_padding_may_hold_nan():
    layer, x = nn.MultiHeadAttention(D, H), draw(B, L, D).detach()
    real = torch.arange(L) < torch.tensor([[L], [4]])
    clean = layer(x, key_padding=real)
    x[1, 4:] = torch.nan
    poisoned = layer(x, key_padding=real)
    assert torch.equal(poisoned[real], clean[real])


def test_c49_packed_documents():
    layer, x = nn.MultiHeadAttention(D, H), draw(1, 10, D)
    borders = torch.tensor([0, 3, 10])
    packed = layer(x, mask=tg.masks.documents(cu_seqlens=borders, causal="top_left"))
    alone = [layer(part, causal=True) for part in x.split([3, 7], 1)]
    close(packed, torch.cat(alone, 1), 1e-6)


# -- heads and windows ------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("cross", [False, True])
def test_grouped_heads_are_repeated_heads(groups, cross):
    layer = nn.MultiHeadAttention(D, H, num_kv_heads=groups)
    whole = nn.MultiHeadAttention(D, H)
    d = D // H
    assert layer.in_proj_weight.shape == (D + 2 * groups * d, D)
    repeat = lambda x: x.unflatten(0, (groups, d)).repeat_interleave(H // groups, 0).flatten(0, 1)
    with torch.no_grad():
        for name in ("W_q", "W_k", "W_v", "W_o"):
            for kind in ("weight", "bias"):
                value = getattr(getattr(layer, name), kind)
                getattr(getattr(whole, name), kind).copy_(repeat(value) if name in ("W_k", "W_v") else value)
    x = draw(B, L, D)
    memory = draw(B, S, D) if cross else x
    close(layer(x, memory), whole(x, memory), 1e-5)


def test_windows():
    layer, x = nn.MultiHeadAttention(D, H), draw(B, L, D)
    for window, mask in (
        (3, tg.masks.sliding(3)),
        ((2, 1), tg.masks.window(2, 1)),
        ((None, 0), tg.masks.causal()),
    ):
        local = nn.MultiHeadAttention(D, H, window=window)
        local.load_state_dict(layer.state_dict())
        assert torch.equal(local(x), layer(x, mask=mask))
        assert torch.equal(local(x, causal=True), layer(x, mask=mask & tg.masks.causal()))


def test_more_leading_axes():
    layer, x = nn.MultiHeadAttention(D, H), draw(2, 3, L, D)
    keep = torch.rand(2, 3, L) < 0.7
    keep[..., 0] = True
    flat = layer(x.flatten(0, 1), key_padding=keep.flatten(0, 1))
    close(layer(x, key_padding=keep), flat.unflatten(0, (2, 3)), 1e-6)


def test_dropout_in_the_kernel():
    layer, x = nn.MultiHeadAttention(D, H, dropout=0.5), draw(B, L, D)
    torch.manual_seed(1)
    first, second = layer(x), layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first) and not torch.equal(first, second)
    exact = nn.MultiHeadAttention(D, H)
    exact.load_state_dict(layer.state_dict())
    assert torch.equal(layer.eval()(x), exact(x))
    layer.train()
    mean = torch.stack([layer(x) for _ in range(400)]).mean(0)
    assert (mean - exact(x)).abs().max() < 0.2
    all_dropped = nn.MultiHeadAttention(D, H, dropout=1.0)
    assert torch.equal(all_dropped(x), all_dropped.W_o.bias.expand(B, L, D))


def test_empty_sizes():
    layer = nn.MultiHeadAttention(D, H)
    assert layer(torch.randn(0, L, D)).shape == (0, L, D)
    assert layer(torch.randn(B, 0, D)).shape == (B, 0, D)
    no_keys = layer(torch.randn(B, L, D), torch.randn(B, 0, D))
    assert torch.equal(no_keys, layer.W_o.bias.expand(B, L, D))


# -- the tutorials' names ---------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [True, False])
def test_tutorial_names_are_views(fused):
    layer, x = nn.MultiHeadAttention(D, H, fused=fused), draw(B, L, D)
    linears = {name: tnn.Linear(D, D) for name in ("W_q", "W_k", "W_v", "W_o")}
    with torch.no_grad():
        for name, linear in linears.items():
            getattr(layer, name).weight.copy_(linear.weight)
            getattr(layer, name).bias.copy_(linear.bias)
    for name, linear in linears.items():
        assert torch.equal(getattr(layer, name).weight, linear.weight)
        close(getattr(layer, name)(x), linear(x), 1e-6)
    other = nn.MultiHeadAttention(D, H)
    other.load_state_dict(
        {f"{name}.{key}": value for name, linear in linears.items() for key, value in linear.state_dict().items()}
    )
    close(layer(x), other(x), 1e-6)
    with pytest.raises(AttributeError, match=r"copy into W_q.weight"):
        layer.W_q = tnn.Linear(D, D)
    with pytest.raises(AttributeError):
        layer.W_q.weight = torch.zeros(D, D)
    assert nn.MultiHeadAttention(D, H, bias=False).W_q.bias is None


# -- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"d_model": 30}, ValueError, "d_model=30 is not divisible by num_heads=4; numbers of heads that fit: .*5"),
        ({"d_model": 0}, ValueError, "d_model must be at least 1"),
        ({"num_heads": 4.0}, TypeError, "num_heads must be an integer"),
        ({"num_kv_heads": 3}, ValueError, "num_kv_heads=3 must divide num_heads=4"),
        ({"dropout": 1.1}, ValueError, "dropout must lie in"),
        ({"fused": True, "kdim": 8}, ValueError, "fused=True needs kdim and vdim to be d_model=32"),
        ({"init": "zeros"}, ValueError, "init must be 'linear' or 'xavier'"),
        ({"window": 0}, ValueError, "window must be at least 1"),
        ({"window": (1, 2, 3)}, ValueError, "window must be an int or a pair"),
        ({"window": (-1, 0)}, ValueError, "left must be at least 0"),
        ({"causal": "yes"}, TypeError, "causal must be a bool"),
    ],
)
def test_bad_constructor(arguments, error, words):
    with pytest.raises(error, match=words):
        nn.MultiHeadAttention(**{"d_model": D, "num_heads": H, **arguments})


X = torch.zeros(B, L, D)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"mask": torch.ones(L, L)}, ValueError, r"mask is a float tensor.*positive numbers.*mask.bool\(\).*bias="),
        ({"mask": torch.full((L, L), torch.nan)}, ValueError, "positive numbers or NaN"),
        ({"mask": torch.ones(B, L + 1, dtype=torch.bool)}, ValueError, r"mask has shape \(2, 7\), expected \(Lq, Lk\)"),
        ({"mask": torch.ones(B, L, dtype=torch.bool)}, ValueError, "goes to key_padding="),
        ({"mask": torch.ones(L, dtype=torch.bool)}, ValueError, r"mask has shape \(6,\)"),
        ({"mask": torch.ones(H, L, L, dtype=torch.bool)}, ValueError, r"mask has shape \(4, 6, 6\)"),
        ({"mask": [[1]]}, TypeError, "mask must be a mask of tegula.masks or a tensor"),
        ({"mask": torch.ones(L, L, dtype=torch.complex64)}, TypeError, "mask must be bool, integers or floats"),
        ({"key_padding": torch.ones(B, L)}, TypeError, "key_padding must be bool or integers"),
        ({"key_padding": torch.ones(L, dtype=torch.bool)}, ValueError, r"key_padding has shape \(6,\), expected \(B"),
        ({"bias": torch.ones(L, L, dtype=torch.bool)}, TypeError, "bias must be a float tensor"),
        ({"bias": torch.ones(5, L, L)}, ValueError, "bias has shape"),
        ({"need_weights": None}, TypeError, "need_weights must be a bool"),
        ({"k": torch.zeros(B, L, D + 1)}, ValueError, r"k must have shape \(..., L, 32\), got \(2, 6, 33\)"),
        ({"k": torch.zeros(3, L, D)}, ValueError, r"k has batch axes \(3,\), but q has \(2,\)"),
        ({"v": torch.zeros(B, L + 1, D)}, ValueError, "k and v must have as many rows, got 6 and 7"),
        ({"q": torch.zeros(D)}, ValueError, "q must have shape"),
        ({"q": torch.zeros(B, L, D, dtype=torch.int64)}, TypeError, "q must be a float tensor"),
        ({"q": X.numpy()}, TypeError, "q must be a torch tensor"),
        ({"k": torch.zeros(B, L + 1, D), "causal": True}, ValueError, "the lengths differ, so name the alignment"),
        ({"mask": tg.masks.padding([3, 9])}, ValueError, r"lengths\[1\] is 9"),
    ],
)
def test_bad_calls(arguments, error, words):
    layer = nn.MultiHeadAttention(D, H)
    with pytest.raises(error, match=words):
        layer(**{"q": X, **arguments})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("key_padding_mask", "key_padding= is its opposite"),
        ("attn_mask", "True = may attend"),
        ("x", "no argument 'x'$"),
    ],
)
def test_arguments_of_torchs_module_are_explained(name, hint):
    x = torch.ones(2, 3, 8)
    with pytest.raises(TypeError, match=hint):
        nn.MultiHeadAttention(8, 2)(x, x, x, **{name: torch.zeros(2, 3, dtype=torch.bool)})
