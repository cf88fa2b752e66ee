"""Second derivatives and forward mode where the dense compositions could go wrong."""

import pytest
import tegula as tg
from torch_support import leaf

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.isa_once


def drawn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


# ---------------------------------------------------------------------------------------------------
# The gradient of the log-sum-exp


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}])
def test_the_gradient_of_the_log_sum_exp_is_not_rounded(dtype, options):
    """1e6 is no float16; and 1 + 2^-9 is no bfloat16."""
    q, k, v = (drawn(1, 2, 6, 8, dtype=dtype, seed=i) for i in range(3))
    grad = torch.full((1, 2, 6), 1e6 if dtype == torch.float16 else 1 + 2**-9)
    keys = k if dtype == torch.bfloat16 else leaf(k * 1e-3)
    _, lse = tg.attention(q, keys, v, return_lse=True, **options)
    (found,) = torch.autograd.grad(lse, q, grad)
    wide = [leaf(x.double()) for x in (q, keys, v)]
    (expect,) = torch.autograd.grad(tg.attention(*wide, return_lse=True, **options)[1], wide[0], grad.double())
    # One rounding of the result, and what float32 leaves.
    bound = torch.finfo(dtype).eps / 2 * expect.abs() + 1e-5 * expect.abs().max()
    assert ((found.double() - expect).abs() <= bound).all()


@pytest.mark.parametrize("shape", [(2, 2, 3, 2), (3, 2)])
def test_both_results_at_once_are_the_sum_of_each(shape):
    sinks = drawn(2 if len(shape) > 2 else 1, seed=4)
    x = [drawn(*shape, seed=i) for i in range(3)]
    grad_out, grad_lse = drawn(*shape, seed=5).detach(), drawn(*shape[:-1], seed=6).detach()
    out, lse = tg.attention(*x, sinks=sinks, return_lse=True)
    both = torch.autograd.grad((out, lse), (*x, sinks), (grad_out, grad_lse), retain_graph=True)
    first = torch.autograd.grad(out, (*x, sinks), grad_out, retain_graph=True)
    second = torch.autograd.grad(lse, (*x, sinks), grad_lse, allow_unused=True)
    for whole, a, b in zip(both, first, second, strict=True):
        assert torch.allclose(whole, a if b is None else a + b, rtol=1e-12, atol=1e-14)
    direct = tg.attention_backward(grad_out, *x, out, lse, sinks=sinks, grad_lse=grad_lse)
    for whole, found in zip(both, direct, strict=True):
        assert torch.equal(whole, found)


def test_backward_has_derivatives_for_everything_it_takes():
    q, k, v, grad_out = (drawn(2, 2, 3, 2, seed=i) for i in range(4))
    bias, sinks, grad_lse = drawn(2, 3, 3, seed=4), drawn(2, seed=5), drawn(2, 2, 3, seed=6)
    out, lse = (x.detach() for x in tg.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True))

    def function(grad_out, q, k, v, out, lse, bias, sinks, grad_lse):
        return tg.attention_backward(grad_out, q, k, v, out, lse, bias=bias, sinks=sinks, grad_lse=grad_lse)

    inputs = (grad_out, q, k, v, leaf(out), leaf(lse), bias, sinks, grad_lse)
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)


def test_vmap_of_backward_maps_the_gradient_of_the_log_sum_exp():
    for shape in ((2, 3, 4), (3, 4)):
        q, k, v, grad_out = (drawn(*shape, seed=i).detach() for i in range(4))
        out, lse = tg.attention(q, k, v, return_lse=True)
        several = drawn(5, *lse.shape, seed=7).detach()

        def one(grad_lse, grad_out=grad_out, q=q, k=k, v=v, out=out, lse=lse):
            return tg.attention_backward(grad_out, q, k, v, out, lse, grad_lse=grad_lse)

        found = torch.func.vmap(one)(several)
        for i in range(5):
            for x, y in zip(found, one(several[i]), strict=True):
                assert torch.allclose(x[i], y, rtol=1e-12, atol=1e-14)


@pytest.mark.filterwarnings("ignore")
def test_opcheck_and_compile_with_the_gradient_of_the_log_sum_exp():
    q, k, v = (drawn(2, 2, 5, 4, dtype=torch.float32, seed=i) for i in range(3))
    out, lse = (x.detach() for x in tg.attention(q, k, v, return_lse=True))
    more = {"sinks": torch.zeros(2), "sinks_grad": True, "grad_lse": leaf(lse)}
    op = torch.ops.tegula.attention_backward.default
    assert set(torch.library.opcheck(op, (out, q, k, v, out, lse), more).values()) == {"SUCCESS"}

    def loss(q, k, v):
        out, lse = tg.attention(q, k, v, return_lse=True)
        return out.square().sum() + lse.sin().sum()

    expect = torch.autograd.grad(loss(q, k, v), (q, k, v))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
    for x, y in zip(torch.autograd.grad(compiled(q, k, v), (q, k, v)), expect, strict=True):
        assert torch.allclose(x, y, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------------
# Shapes


@pytest.mark.parametrize("options", ["none", "alibi", "bias", "sinks", "all"])
def test_one_head_has_second_derivatives(options):
    q, k, v = drawn(3, 2), drawn(4, 2, seed=1), drawn(4, 3, seed=2)
    more = {"alibi": [0.3]} if options in ("alibi", "all") else {}
    learned = {"bias": drawn(1, 3, 4, seed=3)} if options in ("bias", "all") else {}
    learned |= {"sinks": drawn(1, seed=4)} if options in ("sinks", "all") else {}

    def function(q, k, v, *values):
        return tg.attention(q, k, v, **more, **dict(zip(learned, values, strict=True)), return_lse=True)

    inputs = (q, k, v, *learned.values())
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("key_heads", [0, 2])
def test_no_heads_have_derivatives(key_heads):
    q, k = drawn(2, 0, 3, 4), drawn(2, key_heads, 5, 4)
    grads = torch.autograd.grad(tg.attention(q, k, k).sum(), (q, k), create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in grads), (q, k))
    for x in (*grads, *second):
        assert (x == 0).all()
    assert second[0].shape == q.shape and second[1].shape == k.shape


# ---------------------------------------------------------------------------------------------------
# What is hidden from some rows only


def spoilt(place, value):
    """q, k, v of which one row holds `value`, and the same with numbers instead."""
    plain = [drawn(1, 2, 6, 4, seed=i).detach() for i in range(3)]
    given = [x.clone() for x in plain]
    for i in (place,) if isinstance(place, int) else place:
        given[i][:, :, 3] = value
    return given, plain


PLACES = {"q": 0, "k": 1, "v": 2, "k and v": (1, 2)}
HIDDEN = {
    "blocks": {"mask": tg.masks.dense(torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)).bool())},
    "interval": {"mask": tg.masks.causal()},
    "dense": {"mask": tg.masks.dense(torch.ones(6, 6, dtype=torch.bool).tril())},
    "bias": {"bias": torch.zeros(6, 6, dtype=torch.float64).masked_fill(~torch.ones(6, 6).tril().bool(), -torch.inf)},
    "causal softcap": {"mask": tg.masks.causal(), "softcap": 2.0, "sinks": [0.1, 0.2]},
}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("options", HIDDEN.values(), ids=HIDDEN)
def test_rows_that_do_not_see_a_key_have_its_tangents_without_it(options, place, value):
    given, plain = spoilt(place, value)
    along = [drawn(1, 2, 6, 4, seed=5 + i).detach() for i in range(3)]

    def tangents(x):
        return torch.func.jvp(lambda *x: tg.attention(*x, **options, return_lse=True), tuple(x), tuple(along))[1]

    for found, expect in zip(tangents(given), tangents(plain), strict=True):
        assert torch.allclose(found[:, :, :3], expect[:, :, :3], rtol=1e-12, atol=1e-12)
        if place == 0:
            assert torch.allclose(found[:, :, 4:], expect[:, :, 4:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("options", HIDDEN.values(), ids=HIDDEN)
def test_rows_that_do_not_see_a_key_have_second_derivatives_without_it(options, place, value):
    given, plain = spoilt(place, value)

    def second(x):
        q, k, v = map(leaf, x)
        out = tg.attention(q, k, v, **options)
        (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        return torch.autograd.grad(dq[:, :, :3].square().sum(), (q, k, v))

    # The rows that see it spoil what they have in common with others: keys, unless those are their own.
    for i, (found, expect) in enumerate(zip(second(given), second(plain), strict=True)):
        if i == 0 or options is HIDDEN["blocks"]:
            assert torch.allclose(found[:, :, :3], expect[:, :, :3], rtol=1e-12, atol=1e-12)


def test_a_key_that_is_seen_spoils_its_rows():
    """What is wrong stays visible."""
    given, _ = spoilt(2, torch.nan)
    along = [torch.ones_like(x) for x in given]
    _, tangent = torch.func.jvp(lambda *x: tg.attention(*x, mask=tg.masks.causal()), tuple(given), tuple(along))
    assert tangent[:, :, 3:].isnan().all() and tangent[:, :, :3].isfinite().all()


# ---------------------------------------------------------------------------------------------------
# Contexts


def test_second_derivatives_inside_autocast_are_not_rounded_to_16_bits():
    q, k, v = (drawn(1, 2, 6, 8, dtype=torch.float32, seed=i) for i in range(3))
    out, lse = (x.detach() for x in tg.attention(q, k, v, return_lse=True))

    def second():
        grads = torch.ops.tegula.attention_backward(torch.ones_like(out), q, k, v, out, lse)[:3]
        return torch.autograd.grad(sum(x.square().sum() for x in grads), (q, k, v))

    expect = second()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = second()
    for x, y in zip(found, expect, strict=True):
        assert torch.allclose(x, y, rtol=1e-4, atol=1e-4 * y.abs().max())


def test_without_tangents_a_dual_level_changes_nothing():
    q = drawn(1, 2, 6, 4).detach()
    plain = tg.attention(q, q, q, return_weights=True)
    with torch.autograd.forward_ad.dual_level():
        out = torch.empty_like(q)
        found = tg.attention(q, q, q, return_weights=True, out=out)
        assert torch.equal(found[0], plain[0]) and torch.equal(found[1], plain[1])
        assert torch.equal(tg.attention(q, q, q, return_weights=True)[1], plain[1])
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        for option in ({"return_weights": True}, {"out": out}):
            with pytest.raises(RuntimeError, match="has no gradient"):
                tg.attention(dual, q, q, **option)


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_hessians_of_both_packages(strategy):
    q, k, v = (drawn(1, 3, 2, seed=i).detach() for i in range(3))

    def loss(q):
        out, lse = tg.attention(q, k, v, return_lse=True)
        return out.square().sum() + lse.sum()

    expect = torch.func.jacrev(torch.func.jacrev(loss))(q)
    assert torch.allclose(torch.func.hessian(loss)(q), expect, rtol=1e-10, atol=1e-12)
    vectorized = strategy == "forward-mode"
    found = torch.autograd.functional.hessian(loss, q, vectorize=vectorized, outer_jacobian_strategy=strategy)
    assert torch.allclose(found, expect, rtol=1e-10, atol=1e-12)


def test_the_gradient_of_integer_sinks_is_not_truncated():
    q = drawn(1, 2, 6, 4).detach()
    out, lse = tg.attention(q, q, q, sinks=[1, 2], return_lse=True)
    grad = drawn(1, 2, 6, 4, seed=1).detach()
    *_, expect = tg.attention_backward(grad, q, q, q, out, lse, sinks=[1.0, 2.0])
    *_, found = tg.attention_backward(grad, q, q, q, out, lse, sinks=torch.tensor([1, 2]))
    assert found.dtype == torch.float64 and torch.equal(found, expect) and (found != 0).all()


# ---------------------------------------------------------------------------------------------------
# Operators that are called directly

WRONG = {
    "dropout_p above 1": (dict(dropout_p=1.5, seed=torch.tensor([1])), ValueError, "dropout_p.*1.5"),
    "dropout_p below 0": (dict(dropout_p=-0.5, seed=torch.tensor([1])), ValueError, "dropout_p.*-0.5"),
    "no seed": (dict(dropout_p=0.5), ValueError, "needs a seed"),
    "seed of int32": (dict(dropout_p=0.5, seed=torch.tensor([1], dtype=torch.int32)), TypeError, "seed.*int32"),
    "two seeds": (dict(dropout_p=0.5, seed=torch.tensor([1, 2])), TypeError, r"seed.*\(2,\)"),
    "softcap": (dict(softcap=-1.0), ValueError, "softcap.*-1.0"),
}


@pytest.mark.parametrize(("options", "error", "said"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("op", ["attention_forward", "attention", "attention_weights", "attention_backward"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_operators_check_their_options(op, device, options, error, said):
    q = drawn(1, 2, 6, 4).detach()
    args = (q, q, q) if op != "attention_backward" else (q, q, q, q, q, q[..., 0])
    args = [x.to(device) for x in args]
    options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    with pytest.raises(error, match=said):
        getattr(torch.ops.tegula, op)(*args, **options)


def test_backward_refuses_slopes_that_require_grad():
    q = drawn(1, 2, 6, 4).detach()
    slopes = drawn(2)
    out, lse = tg.attention(q, q, q, alibi=slopes.detach(), return_lse=True)
    with pytest.raises(RuntimeError, match="alibi requires grad"):
        torch.ops.tegula.attention_backward(out, q, q, q, out, lse, alibi=slopes)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(slopes.detach(), torch.ones(2, dtype=torch.float64))
        with pytest.raises(RuntimeError, match="alibi has a tangent"):
            torch.ops.tegula.attention_backward(out, q, q, q, out, lse, alibi=dual)
