"""Attention as a citizen of torch: opcheck, compile, export, transforms of torch.func, autocast."""

import importlib
import itertools
import shutil

import pytest
import tegula as tg
from cases import AttentionCase
from tegula.torch import attention_ops as ops
from torch_support import leaf

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.isa_once, pytest.mark.filterwarnings("ignore")]


def drawn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


B, H, G, LQ, LK, D, DV = 2, 4, 2, 5, 7, 8, 6
PLAIN = {"q": drawn(B, H, LQ, D), "k": drawn(B, G, LK, D, seed=1), "v": drawn(B, G, LK, DV, seed=2)}
OPTIONS = {
    "lo": torch.zeros(1, 1, LQ, dtype=torch.int32),
    "hi": torch.tensor([4, 7], dtype=torch.int32)[:, None, None],
    "dense": drawn(1, H, LQ, LK, seed=3) < 1.0,
    "bias": drawn(H, 1, LK, seed=4),
    "alibi": drawn(H, seed=5),
    "sinks": drawn(H, seed=6),
    "seed": torch.tensor([-5]),
    "scale": 0.3,
    "softcap": 2.0,
    "dropout_p": 0.25,
    "threads": 1,
}
FUSED = drawn(B, LQ, 3 * H * D)
QKV = {
    "plain": PLAIN,
    "one head": {n: x[0, 0] for n, x in PLAIN.items()},
    "no batch": {n: x[0] for n, x in PLAIN.items()},
    "leading axes": {n: x.expand(3, *x.shape) for n, x in PLAIN.items()},
    "heads inside": {n: x.transpose(1, 2).contiguous().transpose(1, 2) for n, x in PLAIN.items()},
    "fused": {n: x.unflatten(-1, (H, D)).transpose(1, 2) for n, x in zip("qkv", FUSED.chunk(3, -1), strict=True)},
    "expanded": {n: x[:1].expand(x.shape) for n, x in PLAIN.items()},
    "float64": {n: x.double() for n, x in PLAIN.items()},
    "bfloat16": {n: x.bfloat16() for n, x in PLAIN.items()},
    "empty": {n: x[:, :, :0] for n, x in PLAIN.items()},
}
CALLS = {name: (qkv, {}) for name, qkv in QKV.items()}
CALLS |= {f"{name} with options": (QKV[name], OPTIONS) for name in ("plain", "heads inside", "float64", "bfloat16")}
FORWARD = [ops.attention_forward, ops.attention, ops.attention_weights]


def check(op, *args, **options):
    assert set(torch.library.opcheck(op, args, options).values()) == {"SUCCESS"}


@pytest.mark.parametrize(("qkv", "options"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("op", FORWARD, ids=lambda op: op._schema.name)
def test_opcheck_forward(op, qkv, options):
    check(op, *qkv.values(), **options)


@pytest.mark.parametrize(
    "name", ["plain", "one head", "fused", "expanded", "plain with options", "bfloat16 with options"]
)
def test_opcheck_gradients(name):
    """attention with what requires grad, and attention_backward without and with."""
    qkv, options = CALLS[name]
    learned = {n: leaf(x) for n, x in qkv.items()}
    options = options | {n: leaf(options[n]) for n in ("bias", "sinks") if n in options}
    check(ops.attention, *learned.values(), **options)
    with torch.no_grad():
        out, lse = ops.attention(*qkv.values(), **options)
    plain = {n: x.detach() if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    wanted = dict.fromkeys(("bias_grad", "sinks_grad"), bool(options))
    grad = torch.ones_like(out)
    check(ops.attention_backward, grad, *qkv.values(), out, lse, **plain)
    check(ops.attention_backward, grad, *qkv.values(), out, lse, **plain, **wanted)
    check(ops.attention_backward, grad, *learned.values(), leaf(out), leaf(lse), **options, **wanted)


def test_opcheck_the_other_operators():
    check(ops.dropout_mask, torch.tensor([3]), 0.5, 2, 3, 4, 5)


# ---------------------------------------------------------------------------------------------------
# torch.compile and torch.export

ARGUMENTS = {
    "plain": lambda q: {},
    "causal": lambda q: {"mask": tg.masks.causal(align="bottom_right")},
    "combined": lambda q: {"mask": tg.masks.sliding(5, align="bottom_right") & tg.masks.padding([9, 3])},
    "bool": lambda q: {"mask": torch.ones(q.shape[-2], q.shape[-2] + 2, dtype=torch.bool).tril()},
    "numbers": lambda q: {"scale": 0.5, "softcap": 3.0, "alibi": [0.5, 0.25], "sinks": [0.0, 1.0]},
    "bias": lambda q: {"bias": drawn(q.shape[-2], 1)},
    "dropout": lambda q: {"dropout_p": 0.5, "seed": torch.tensor([7])},
    "dropout by number": lambda q: {"dropout_p": 0.5, "seed": 7},
}


def inputs(length, dtype=torch.float32):
    q, k, v = (drawn(2, 2, n, 8, dtype=dtype, seed=n) for n in (length, length + 2, length + 2))
    return [x.requires_grad_() for x in (q, k, v)]


# Each compilation takes seconds: every option with one backend, the other backends with one option.
COMPILED = [*itertools.product(["aot_eager"], ARGUMENTS, ["bhld"])]
COMPILED += [("aot_eager", "plain", "blhd"), ("eager", "combined", "blhd")]
COMPILED += [("inductor", "combined", "bhld"), ("inductor", "plain", "blhd")]


@pytest.mark.parametrize(("backend", "name", "layout"), COMPILED)
def test_compiled_with_gradients_and_dynamic_shapes(backend, name, layout):
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    torch._dynamo.reset()

    def function(q, k, v):
        if layout == "blhd":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return tg.attention(q * 2.0, k, v, layout=layout, **options, return_lse=True)

    counter = importlib.import_module("torch._dynamo.testing").CompileCounterWithBackend(backend)
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for length in (7, 12):
        given = inputs(length)
        options = ARGUMENTS[name](given[0])
        found, expect = compiled(*given), function(*given)
        assert all(torch.equal(x, y) and x.stride() == y.stride() for x, y in zip(found, expect, strict=True))
        grads = [torch.autograd.grad(x[0].square().sum() + x[1].sum(), given) for x in (found, expect)]
        assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(*grads, strict=True))
        with torch.no_grad():
            assert torch.equal(compiled(*given)[0], expect[0])
    assert counter.frame_count <= 4  # one with gradients, one without, and one more of each for constants


@pytest.mark.parametrize("name", ["plain", "causal", "bias"])
def test_compiled_autograd(name):
    """A backward pass that Dynamo traces, of a forward pass that nobody did."""
    torch._dynamo.reset()
    enabled = importlib.import_module("torch._dynamo.compiled_autograd")._enable
    given = inputs(7)
    options = ARGUMENTS[name](given[0])
    expect = torch.autograd.grad(tg.attention(*given, **options).square().sum(), given)
    with enabled(torch.compile(backend="eager", fullgraph=True)):
        tg.attention(*given, **options).square().sum().backward()
    assert all(torch.equal(x.grad, y) for x, y in zip(given, expect, strict=True))


def test_compiled_into_an_output():
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(q, out):
        tg.attention(q, q, q, out=out)
        return out * 2

    q = drawn(1, 2, 5, 8)
    out = torch.empty_like(q)
    expect = tg.attention(q, q, q)
    assert torch.equal(function(q, out), expect * 2) and torch.equal(out, expect)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 2, 8)).unbind(-3)
        return tg.attention(q, k, v, mask=tg.masks.causal(), layout="blhd").flatten(-2)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_exported(tmp_path, strict, grad):
    """With a length that stays open, saved and loaded; exported without gradients it still trains."""
    torch.manual_seed(0)
    block, x = Block(), drawn(2, 9, 16)
    shapes = {"x": {1: torch.export.Dim("length", min=2, max=100)}}
    with torch.set_grad_enabled(grad):
        program = torch.export.export(block, (x,), dynamic_shapes=shapes, strict=strict)
    torch.export.save(program, tmp_path / "block.pt2")
    module = torch.export.load(tmp_path / "block.pt2").module()
    for length in (9, 20):
        x = drawn(2, length, 16)
        assert torch.equal(module(x), block(x))
        module.zero_grad()
        module(x).sum().backward()
        block.zero_grad()
        block(x).sum().backward()
        for p, r in zip(module.parameters(), block.parameters(), strict=True):
            assert torch.equal(p.grad, r.grad)


# ---------------------------------------------------------------------------------------------------
# Fake and meta tensors


def test_meta_tensors_have_shapes_and_strides():
    for qkv in QKV.values():
        meta = [x.to("meta") for x in qkv.values()]
        for x, y in zip(ops.attention(*meta), ops.attention(*qkv.values()), strict=True):
            assert x.device.type == "meta" and (x.shape, x.dtype) == (y.shape, y.dtype)
        got = tg.attention(*meta, mask=tg.masks.causal(align="top_left"), return_weights=True)
        assert got[1].shape == (*qkv["q"].shape[:-1], qkv["k"].shape[-2])


BAD = {
    "rank of k": {"k": drawn(G, LK, D)},
    "head size": {"k": drawn(B, G, LK, D + 1)},
    "leading axes": {"k": drawn(B + 1, G, LK, D)},
    "keys of v": {"v": drawn(B, G, LK + 1, DV)},
    "heads of v": {"v": drawn(B, 1, LK, DV)},
    "heads": {"k": drawn(B, 3, LK, D), "v": drawn(B, 3, LK, DV)},
    "vector": {"q": drawn(D), "k": drawn(D), "v": drawn(D)},
    "integers": {"q": torch.ones(B, H, LQ, D, dtype=torch.int64)},
    "complex": {"q": drawn(B, H, LQ, D).to(torch.complex64)},
    "another float": {"v": drawn(B, G, LK, DV).double()},
    "lo": {"lo": torch.zeros(1, 1, LQ + 1, dtype=torch.int32), "hi": OPTIONS["hi"]},
    "lo of rank 2": {"lo": torch.zeros(1, LQ, dtype=torch.int32), "hi": OPTIONS["hi"]},
    "hi of int64": {"lo": OPTIONS["lo"], "hi": OPTIONS["hi"].long()},
    "dense": {"dense": torch.ones(1, 3, LQ, LK, dtype=torch.bool)},
    "dense of floats": {"dense": drawn(1, 1, LQ, LK)},
    "bias": {"bias": drawn(LK + 1)},
    "bias of bools": {"bias": torch.ones(LK, dtype=torch.bool)},
    "alibi": {"alibi": drawn(H + 1)},
    "sinks": {"sinks": drawn(H, 1)},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
@pytest.mark.parametrize("op", FORWARD, ids=lambda op: op._schema.name)
def test_fake_kernels_refuse_in_the_words_of_the_native_ones(op, change):
    given = PLAIN | change
    with pytest.raises((TypeError, ValueError)) as native:
        op(**given)
    with pytest.raises(native.type) as fake:
        op(**{n: x.to("meta") for n, x in given.items()})
    assert str(fake.value) == str(native.value)


@pytest.mark.parametrize(
    "change",
    [
        {"grad_out": drawn(B, H, LQ, D)},
        {"out": drawn(B, H, LQ, DV).double()},
        {"lse": drawn(B, H, LQ, 1)},
        {"grad_lse": drawn(B, H, LQ, DV)},
        {"grad_lse ": drawn(B, H, LQ).bfloat16()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_backward_refuses_before_it_writes(change):
    out, lse = ops.attention(**PLAIN)
    change = {name.strip(): x for name, x in change.items()}
    given = {"grad_out": out, **PLAIN, "out": out, "lse": lse} | change
    for kind in (lambda x: x, lambda x: x.to("meta")):
        with pytest.raises((TypeError, ValueError), match=next(iter(change))):
            ops.attention_backward(**{n: kind(x) for n, x in given.items()})
    grads = tuple(torch.full_like(PLAIN[n], 42) for n in "qkv")
    with pytest.raises((TypeError, ValueError), match=next(iter(change))):
        tg.attention_backward(**given, grads=grads)
    assert all((x == 42).all() for x in grads)


# ---------------------------------------------------------------------------------------------------
# torch.func


def small(*, seed=0):
    return [drawn(2, 2, 4, 3, dtype=torch.float64, seed=seed + i) for i in range(3)]


FUNCTIONS = {
    "plain": lambda q, k, v: tg.attention(q, k, v),
    "options": lambda q, k, v: tg.attention(
        q, k, v, mask=tg.masks.causal() & tg.masks.padding([2, 4]), softcap=2.0, alibi=[0.1, 0.2], sinks=[0.0, 1.0]
    ),
    "dropout": lambda q, k, v: tg.attention(q, k, v, dropout_p=0.5, seed=3),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_func_grad_vjp_and_jvp(function):
    given = small()
    tangents = small(seed=9)
    leaves = [leaf(x) for x in given]
    expect = torch.autograd.grad(function(*leaves).square().sum(), leaves)
    found = torch.func.grad(lambda *x: function(*x).square().sum(), argnums=(0, 1, 2))(*given)
    assert all(torch.allclose(x, y) for x, y in zip(found, expect, strict=True))
    out, pull = torch.func.vjp(function, *given)
    assert all(torch.allclose(x, y) for x, y in zip(pull(2 * out), expect, strict=True))
    _, along = torch.func.jvp(function, tuple(given), tuple(tangents))
    other = sum((x * t).sum() for x, t in zip(expect, tangents, strict=True))
    assert torch.allclose((2 * out * along).sum(), other)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_func_jacobians_and_hessians(function):
    q, k, v = small()
    of_q = lambda q: function(q, k, v)
    expect = torch.autograd.functional.jacobian(of_q, q)
    assert torch.allclose(torch.func.jacrev(of_q)(q), expect)
    assert torch.allclose(torch.func.jacfwd(of_q)(q), expect)
    loss = lambda q: of_q(q).square().sum()
    expect = torch.autograd.functional.hessian(loss, q)
    assert torch.allclose(torch.func.jacrev(torch.func.grad(loss))(q), expect)
    assert torch.allclose(torch.func.jacfwd(torch.func.grad(loss))(q), expect)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("dims", [(0, 0, 0), (1, None, None), (None, 0, 0), (-1, 0, None)])
def test_func_vmap_is_a_loop(function, dims):
    given = [
        x if d is None else x.repeat(5, 1, 1, 1, 1).cumsum(0).movedim(0, d) for x, d in zip(small(), dims, strict=True)
    ]
    one = lambda i: [x if d is None else x.select(d, i) for x, d in zip(given, dims, strict=True)]
    found = torch.func.vmap(function, dims)(*given)
    expect = torch.stack([function(*one(i)) for i in range(5)])
    assert torch.equal(found, expect)
    loss = lambda *x: function(*x).square().sum()
    found = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), dims)(*given)
    expect = [
        torch.stack(x) for x in zip(*(torch.func.grad(loss, argnums=(0, 1, 2))(*one(i)) for i in range(5)), strict=True)
    ]
    assert all(torch.allclose(x, y) for x, y in zip(found, expect, strict=True))


def test_func_vmap_over_everything_else():
    """bias, sinks, slopes, one head only; per-sample gradients of what all samples share."""
    q, k, v = small()
    bias, numbers = drawn(5, 4, 4, dtype=torch.float64), drawn(5, 2, dtype=torch.float64)
    for name, values in (("bias", bias), ("sinks", numbers), ("alibi", numbers)):
        call = lambda x, name=name: tg.attention(q, k, v, **{name: x})
        assert torch.equal(torch.func.vmap(call)(values), torch.stack([call(x) for x in values]))
    heads = drawn(5, 4, 3, dtype=torch.float64)
    call = lambda x: tg.attention(x, x, x, return_lse=True)
    found, expect = torch.func.vmap(call)(heads), [torch.stack(x) for x in zip(*map(call, heads), strict=True)]
    assert all(torch.equal(x, y) for x, y in zip(found, expect, strict=True))
    many = drawn(5, 2, 2, 4, 3, dtype=torch.float64)
    for options in ({"bias": bias[0]}, {"sinks": numbers[0]}, {"bias": bias[0], "sinks": numbers[0]}):
        loss = lambda options, q: tg.attention(q, k, v, **options).square().sum()
        found = torch.func.vmap(torch.func.grad(loss), (None, 0))(options, many)
        for name in options:
            expect = torch.stack([torch.func.grad(loss)(options, x)[name] for x in many])
            assert torch.allclose(found[name], expect)


def test_compiled_vmap():
    torch._dynamo.reset()
    q, k, v = small()
    many = torch.stack([q, 2 * q, 3 * q])
    function = torch.func.vmap(FUNCTIONS["options"], (0, None, None))
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(many, k, v), function(many, k, v))


def test_forward_mode_without_torch_func():
    q, k, v = small()
    tangent = torch.ones_like(q)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, tangent)
        along = torch.autograd.forward_ad.unpack_dual(tg.attention(dual, k, v)).tangent
    _, expect = torch.func.jvp(lambda q: tg.attention(q, k, v), (q,), (tangent,))
    assert torch.equal(along, expect) and (along != 0).any()


# ---------------------------------------------------------------------------------------------------
# Autocast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_q_k_and_v(dtype):
    q, k, v = (leaf(x) for x in PLAIN.values())
    bias = leaf(drawn(H, 1, LK))
    with torch.autocast("cpu", dtype):
        out = tg.attention(q, k.to(dtype), v, bias=bias)
        mixed = tg.attention(q.detach(), k.to(dtype).detach(), v.detach(), bias=bias.detach(), return_weights=True)
    expect = tg.attention(q.to(dtype), k.to(dtype), v.to(dtype), bias=bias)
    assert out.dtype == mixed[1].dtype == dtype
    assert torch.equal(out, expect) and torch.equal(mixed[0], expect)
    found = torch.autograd.grad(out.sum(), (q, k, v, bias))
    for x, y in zip(found, torch.autograd.grad(expect.sum(), (q, k, v, bias)), strict=True):
        assert x.dtype == torch.float32 and torch.equal(x, y)
    with torch.autocast("cpu", dtype):
        wide = tg.attention(*(x.double() for x in (q, k, v)))
        with torch.autocast("cpu", enabled=False):
            assert tg.attention(q, k, v).dtype == torch.float32
    assert wide.dtype == torch.float64


def test_autocast_under_compile():
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: tg.attention(*x), backend="aot_eager", fullgraph=True)
    given = AttentionCase(heads=2)
    q, k, v = map(torch.tensor, given.arrays())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(q, k, v), tg.attention(q, k, v))


def test_the_cuda_key_of_autocast_is_registered():
    for name in ("attention", "attention_forward", "attention_weights"):
        for key in ("AutocastCPU", "AutocastCUDA"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"tegula::{name}", key)
