"""Modules under torch.compile (whole graphs, no break), torch.export and autocast."""

import pytest
import tegula as tg

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo.testing")
nn = tg.torch.nn
tnn = torch.nn

pytestmark = [pytest.mark.isa_once, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

D, H, L, B = 16, 2, 5, 2
IDS = torch.tensor([[1, 2, 3, 4, 0], [5, 6, 0, 0, 0]])
REAL = IDS != 0


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, **options):
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def model():
    layer = {"batch_first": True, "dropout": 0.0}
    return tnn.ModuleDict(
        {
            "words": nn.TransformerEmbedding(10, D, 100, dropout=0.0),
            "places": nn.PositionalEncoding(D),
            "encoder": nn.TransformerEncoderLayer(D, H, 32, **layer),
            "decoder": nn.TransformerDecoderLayer(D, H, 32, norm_first=True, activation="gelu", **layer),
            "attention": nn.MultiHeadAttention(D, H, num_kv_heads=1, window=3),
        }
    )


def forward(parts, ids, real):
    memory = parts["encoder"](parts["places"](parts["words"](ids)), src_key_padding_mask=~real, is_causal=True)
    x = parts["decoder"](parts["words"](ids), memory, attend=tg.masks.causal(), memory_attend=real[:, None])
    return parts["attention"](x, key_padding=real)


def gradients(parts, out):
    found = torch.autograd.grad(out.square().sum(), list(parts.parameters()))
    return dict(zip(dict(parts.named_parameters()), found, strict=True))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_training(backend):
    parts = model()
    function = torch.compile(forward, fullgraph=True, backend=backend)
    expected, got = forward(parts, IDS, REAL), function(parts, IDS, REAL)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    wanted = gradients(parts, expected)
    for name, found in gradients(parts, got).items():
        torch.testing.assert_close(found, wanted[name], rtol=1e-4, atol=1e-4, msg=name)


def test_lengths_may_change():
    parts = model().eval()

    def encode(ids, real):
        return parts["encoder"](parts["words"](ids), attend=real[:, None], is_causal=True)

    function = compiled(encode, dynamic=True)
    for length in (5, 3, 7):
        ids = torch.randint(1, 10, (B, length))
        torch.testing.assert_close(function(ids, ids != 0), encode(ids, ids != 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"mask": REAL[:, None, None]},
        {"mask": torch.ones(L, L, dtype=torch.int64).tril()},
        {"mask": torch.full((L, L), -torch.inf).triu(1)},
        {"mask": torch.rand(B, H, L, L) < 0.7, "key_padding": REAL},
        {"mask": tg.masks.sliding(2), "bias": torch.randn(H, L, L)},
        {"causal": True, "need_weights": True},
    ],
    ids=lambda options: "+".join(options),
)
def test_masks(options):
    layer = nn.MultiHeadAttention(D, H).eval()
    x = torch.randn(B, L, D)
    with torch.no_grad():
        torch.testing.assert_close(compiled(layer)(x, **options), layer(x, **options), rtol=1e-5, atol=1e-5)


def test_masks_of_torch():
    layer = nn.TransformerEncoderLayer(D, H, 32, batch_first=True).eval()
    x = torch.randn(B, L, D)
    future = torch.full((L, L), -torch.inf).triu(1)
    for options in (
        {"src_mask": future, "src_key_padding_mask": ~REAL},
        {"src_mask": future.isinf(), "src_key_padding_mask": torch.zeros(B, L).masked_fill(~REAL, -torch.inf)},
    ):
        torch.testing.assert_close(compiled(layer)(x, **options), layer(x, **options), rtol=1e-5, atol=1e-5)


def test_a_float_mask_with_ones_is_refused_when_it_runs():
    layer = nn.MultiHeadAttention(D, H).eval()
    function = compiled(layer)
    x = torch.randn(B, L, D)
    function(x, mask=torch.zeros(L, L))
    with pytest.raises(RuntimeError, match="positive numbers"):
        function(x, mask=torch.ones(L, L))


def test_positions_beyond_the_table_are_refused_when_it_runs():
    layer = nn.TransformerEmbedding(10, D, 8).eval()
    function = compiled(layer)
    places = torch.arange(L).expand(B, L)
    assert torch.equal(function(IDS, places), layer(IDS, places))
    with pytest.raises(RuntimeError, match="positions must lie in"):
        function(IDS, places + 4)


def test_dropout_repeats_with_the_seed():
    layer = nn.TransformerEncoderLayer(D, H, 32, dropout=0.5, batch_first=True)
    function, x = compiled(layer), torch.randn(B, L, D, requires_grad=True)
    torch.manual_seed(1)
    first, second = function(x), function(x)
    torch.manual_seed(1)
    assert torch.equal(function(x), first) and not torch.equal(first, second)
    first.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_decoding_step_is_compiled_once(backend):
    layer = nn.MultiHeadAttention(D, H, num_kv_heads=1).eval()
    x = torch.randn(B, 6, D)
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    function = torch.compile(lambda token, cache: layer(token, cache=cache), fullgraph=True, backend=counter)
    with torch.no_grad():
        cache = layer.new_cache(B, 6)
        steps = [function(x[:, i : i + 1], cache) for i in range(6)]
        torch.testing.assert_close(torch.cat(steps, 1), layer(x, causal=True), rtol=1e-5, atol=1e-5)
        assert counter.frame_count == 1
        with pytest.raises((RuntimeError, IndexError)):
            function(x[:, :1], cache)


def test_export():
    layer = nn.TransformerEncoderLayer(D, H, 32, batch_first=True).eval()
    x = torch.randn(B, L, D)
    program = torch.export.export(layer, (x,), {"src_key_padding_mask": ~REAL, "is_causal": True})
    expected = layer(x, src_key_padding_mask=~REAL, is_causal=True)
    got = program.module()(x, src_key_padding_mask=~REAL, is_causal=True)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_exported_for_any_batch_and_length():
    parts = model().eval()

    class Encoder(tnn.Module):
        def __init__(self):
            super().__init__()
            self.parts = parts

        def forward(self, ids):
            return self.parts["encoder"](self.parts["words"](ids), src_key_padding_mask=ids == 0, is_causal=True)

    axes = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("length", min=2, max=64)}
    program = torch.export.export(Encoder(), (IDS,), dynamic_shapes=({**axes},)).module()
    ids = torch.randint(0, 10, (3, 7))
    torch.testing.assert_close(program(ids), Encoder()(ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_trace_keeps_no_padding_of_its_example(grad):
    class Run(tnn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model()

        def forward(self, ids, real):
            return forward(self.parts, ids, real)

    run = Run()
    with torch.set_grad_enabled(grad):
        trace = torch.jit.trace(run, (IDS, REAL))
        ids = torch.randint(1, 10, (B, L))
        ids[0, 2:] = 0
        torch.testing.assert_close(trace(ids, ids != 0), run(ids, ids != 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    parts = model()
    exact = forward(parts, IDS, REAL)
    for function in (forward, compiled(forward)):
        with torch.autocast("cpu", dtype=dtype):
            out = function(parts, IDS, REAL)
        assert out.dtype == dtype
        torch.testing.assert_close(out.float(), exact, rtol=0, atol=20 * torch.finfo(dtype).eps)
        for name, gradient in gradients(parts, out.float()).items():
            assert gradient.dtype == torch.float32 and gradient.isfinite().all(), name


def test_gradients_of_many_samples_at_once():
    """torch.func: the gradient of each sentence by vmap is that of each alone."""
    layer = nn.TransformerEncoderLayer(D, H, 32, dropout=0.0, batch_first=True)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters, x):
        out = torch.func.functional_call(layer, parameters, (x[None],), {"is_causal": True})
        return out.square().sum()

    x = torch.randn(3, L, D)
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(3):
        alone = torch.func.grad(loss)(parameters, x[i])
        for name, value in alone.items():
            torch.testing.assert_close(each[name][i], value, rtol=1e-4, atol=1e-5, msg=name)
