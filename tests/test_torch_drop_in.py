"""`tegula.torch.scaled_dot_product_attention` against torch's own, and against the rules where torch breaks them."""

import contextlib

import hypothesis
import pytest
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tegula.torch import scaled_dot_product_attention as ours  # noqa: E402

theirs = torch.nn.functional.scaled_dot_product_attention
F64 = torch.float64

pytestmark = pytest.mark.isa_once  # the numbers are those of attention, which run once per instruction set


def numbers(*shape, dtype=F64, seed=0):
    generator = torch.Generator().manual_seed(seed + sum((i + 1) * n for i, n in enumerate(shape)))
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype)


def irregular(*shape):
    """Bools without structure; a row of them is empty."""
    found = numbers(*shape) < 0.3
    if found.ndim > 1 and found.shape[-2] > 2:
        found[..., 1, :] = False
    return found


def expected(q, k, v, attn_mask=None, is_causal=False, **options):
    """Torch's result in float64, with the causal mask written out: its paths differ in what they allow."""
    q, k, v = (x.double() for x in (q, k, v))
    if is_causal:
        visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        if attn_mask is None:
            attn_mask = visible
        elif attn_mask.dtype is torch.bool:
            attn_mask = attn_mask & visible
        else:
            attn_mask = attn_mask.double().masked_fill(~visible, -torch.inf)
    if attn_mask is not None and attn_mask.dtype is not torch.bool:
        attn_mask = attn_mask.double()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return theirs(q, k, v, attn_mask, 0.0, **options)


def close(got, q, k, v, attn_mask=None, is_causal=False, **options):
    """At most twice as far from float64 as torch is in the same dtype, and one rounding."""
    want = expected(q, k, v, attn_mask, is_causal, **options)
    assert got.shape == want.shape and got.dtype == q.dtype
    if got.numel() == 0:
        return True
    combined = attn_mask
    if is_causal:
        visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        if attn_mask is None or attn_mask.dtype is torch.bool:
            combined = visible if attn_mask is None else attn_mask & visible
        else:
            combined = attn_mask.masked_fill(~visible, -torch.inf)
    lost = (theirs(q, k, v, combined, **options).double() - want).abs().max()
    allowed = 2 * lost + torch.finfo(q.dtype).eps * want.abs().max() + 1e-30
    return bool(((got.double() - want).abs() <= allowed).all())


# ---------------------------------------------------------------------------------------------------
# A wide grid


@st.composite
def calls(draw):
    """q, k, v and options: any axes that broadcast, any mask."""
    size = st.sampled_from([0, 1, 2, 3, 5, 17, 40])
    q_len, k_len, dim = draw(size), draw(size), draw(st.sampled_from([1, 3, 8, 16]))
    value_dim = draw(st.sampled_from([dim, 1, 5]))
    grouped = draw(st.booleans())
    lead = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2))

    def part(axes):
        """The same axes, some of size 1, some left out at the front."""
        axes = [n if draw(st.booleans()) else 1 for n in axes]
        return axes[draw(st.integers(0, len(axes))) :] if draw(st.booleans()) else axes

    if grouped:
        heads = draw(st.sampled_from([2, 4, 6]))
        served = draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
        shapes = [[*part(lead), heads], [*part(lead), served], [*part(lead), served]]
    else:
        heads = draw(st.sampled_from([1, 2, 3]))
        shapes = [part([*lead, heads]) for _ in range(3)]
    q, k, v = (
        numbers(*shape, *sizes, seed=seed)
        for seed, (shape, sizes) in enumerate(
            zip(shapes, ((q_len, dim), (k_len, dim), (k_len, value_dim)), strict=True)
        )
    )
    seen = torch.broadcast_shapes(*(x.shape[:-2] for x in ((q, k) if not grouped else (q, k[..., :1, :, :]))))
    kind = draw(st.sampled_from([None, "bool", "float"]))
    mask = None
    if kind is not None:
        shape = [n if draw(st.booleans()) else 1 for n in (*seen, q_len, k_len)]
        shape = shape[draw(st.integers(0, len(shape) - 2)) :]
        mask = irregular(*shape)
        if kind == "float":
            mask = numbers(*shape, seed=9).masked_fill(~mask, -torch.inf if draw(st.booleans()) else 0.5)
    options = {"is_causal": draw(st.booleans()), "enable_gqa": grouped}
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.0, 0.3, -1.0, 2]))
    return q, k, v, mask, options


@hypothesis.given(calls())
@hypothesis.settings(max_examples=200)
def test_results_and_gradients(call):
    q, k, v, mask, options = call
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    if mask is not None and mask.dtype is F64:
        mask = mask.clone().requires_grad_()
        leaves.append(mask)
    got, want = ours(*leaves[:3], mask, **options), expected(*leaves[:3], mask, **options)
    # Without any number torch gives query's leading axes; here they broadcast all the same.
    if min(x.numel() for x in (q, k, v)) == 0:
        want = want.expand(got.shape)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    weights = numbers(*got.shape, seed=3)
    found = torch.autograd.grad(got, leaves, weights)
    wanted = torch.autograd.grad(want, leaves, weights, allow_unused=True, materialize_grads=True)
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_types(dtype):
    q, k, v = (numbers(2, 4, n, 16, dtype=dtype) for n in (50, 70, 70))
    for mask in (None, irregular(50, 70), irregular(2, 1, 1, 70), numbers(50, 70, dtype=dtype)):
        for causal in (False, True):
            assert close(ours(q, k, v, mask, is_causal=causal), q, k, v, mask, causal)
    mask = numbers(4, 50, 70, dtype=torch.float32)  # float32 goes with every type
    assert close(ours(q, k, v, mask), q, k, v, mask)
    shared = k[:, :2], v[:, :2]
    assert close(ours(q, *shared, enable_gqa=True), q, *shared, enable_gqa=True)


def test_gradients_of_a_float_mask_in_every_shape():
    q, k, v = numbers(2, 3, 9, 4), numbers(2, 3, 11, 4), numbers(2, 3, 11, 5)
    for shape in ((9, 11), (1, 11), (9, 1), (1, 1), (3, 1, 11), (2, 1, 1, 11), (1, 3, 9, 11), (2, 3, 9, 11)):
        masks = [numbers(*shape).requires_grad_() for _ in range(2)]
        for function, mask in zip((ours, expected), masks, strict=True):
            function(q, k, v, mask, is_causal=True).square().sum().backward()
        torch.testing.assert_close(masks[0].grad, masks[1].grad, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------------------------------------
# Torch's conventions, case by case


def test_c34_true_means_may_attend():
    q = k = v = numbers(1, 1, 4, 8)
    visible = torch.ones(4, 4, dtype=torch.bool).tril()
    assert torch.allclose(ours(q, k, v, visible)[0, 0, 0], v[0, 0, 0])


def test_c36_a_float_mask_of_0_and_1_is_added():
    """As torch does; an integer mask raises in both."""
    q = k = v = numbers(1, 2, 4, 8)
    mask = torch.ones(4, 4, dtype=F64).tril()
    assert torch.allclose(ours(q, k, v, mask), theirs(q, k, v, mask))
    with pytest.raises(TypeError, match="attn_mask must be bool.*int64"):
        ours(q, k, v, mask.long())


def test_c37_a_mask_broadcasts_as_torch_says():
    """(L, S) where B == L, and one of three axes is applied per head."""
    q = k = v = numbers(3, 3, 3, 8)
    for shape in ((3, 3), (3, 3, 3)):
        mask = irregular(*shape)
        assert torch.allclose(ours(q, k, v, mask), theirs(q, k, v, mask))


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("shape", [(2, 2, 6, 8), (2, 6, 8), (6, 8)])
def test_c38_causal_together_with_a_mask(shape, kind):
    """Both hold, on every path: torch's flash path does that, its other path raises."""
    q = k = v = numbers(*shape)
    mask = irregular(6, 6) if kind == "bool" else numbers(6, 6)
    got = ours(q, k, v, mask, is_causal=True)
    torch.testing.assert_close(got, expected(q, k, v, mask, True))
    if len(shape) == 4:
        torch.testing.assert_close(got, theirs(q, k, v, mask, is_causal=True))


@pytest.mark.parametrize(("q_len", "k_len"), [(2, 5), (5, 2), (1, 5)])
def test_c39_causal_is_aligned_top_left(q_len, k_len):
    q, k, v = numbers(1, 1, q_len, 8), numbers(1, 1, k_len, 8), numbers(1, 1, k_len, 4)
    got = ours(q, k, v, is_causal=True)
    assert torch.allclose(got, theirs(q, k, v, is_causal=True))
    assert torch.allclose(got[0, 0, 0], v[0, 0, 0])


def test_c40_c41_a_query_without_keys_gives_0_and_gradients_0():
    q, k, v = (numbers(1, 2, 5, 8).requires_grad_() for _ in range(3))
    for mask in (torch.zeros(5, 5, dtype=torch.bool), torch.full((5, 5), -torch.inf, dtype=F64)):
        out = ours(q, k, v, mask)
        assert (out == 0).all() and torch.equal(out, theirs(q, k, v, mask))
        assert all((g == 0).all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def test_c43_finfo_min_is_arithmetic():
    q, k, v = numbers(1, 1, 3, 8), numbers(1, 1, 4, 8), numbers(1, 1, 4, 8)
    mask = torch.full((3, 4), torch.finfo(F64).min, dtype=F64)
    torch.testing.assert_close(ours(q, k, v, mask), theirs(q, k, v, mask))


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_infinity_and_nan_in_a_float_mask(value):
    q, k, v = numbers(1, 1, 3, 8), numbers(1, 1, 4, 8), numbers(1, 1, 4, 8)
    mask = torch.zeros(3, 4, dtype=F64)
    mask[1, 2] = value
    torch.testing.assert_close(ours(q, k, v, mask), theirs(q, k, v, mask), equal_nan=True)


def test_c61_c62_a_hidden_nan_has_no_influence():
    """Where torch lets it through."""
    q, k, v = (numbers(1, 2, 5, 8) for _ in range(3))
    clean = ours(q, k, v, is_causal=True)
    k[:, :, -1] = v[:, :, -1] = torch.nan
    got = ours(q, k, v, is_causal=True)
    assert torch.equal(got[:, :, :-1], clean[:, :, :-1]) and got[:, :, -1].isnan().all()


def test_c65_a_mask_that_requires_grad_and_c64_dropout_need_no_matrix():
    """One column of gradients for a mask that broadcasts along the queries."""
    q, k, v = (numbers(1, 2, 300, 8, dtype=torch.float32) for _ in range(3))
    mask = numbers(1, 1, 1, 300, dtype=torch.float32).requires_grad_()
    ours(q, k, v, mask, dropout_p=0.2).sum().backward()
    assert mask.grad.shape == mask.shape and mask.grad.isfinite().all()


def test_sizes_of_0():
    for q, k, v in (
        (numbers(0, 2, 4, 8), numbers(0, 2, 5, 8), numbers(0, 2, 5, 8)),
        (numbers(2, 0, 4, 8), numbers(2, 0, 5, 8), numbers(2, 0, 5, 8)),
        (numbers(2, 2, 0, 8), numbers(2, 2, 5, 8), numbers(2, 2, 5, 8)),
        (numbers(2, 2, 4, 8), numbers(2, 2, 0, 8), numbers(2, 2, 0, 7)),
        (numbers(2, 2, 4, 0), numbers(2, 2, 5, 0), numbers(2, 2, 5, 7)),
        (numbers(2, 2, 4, 8), numbers(2, 2, 5, 8), numbers(2, 2, 5, 0)),
    ):
        for options in ({}, {"is_causal": True}):
            torch.testing.assert_close(ours(q, k, v, **options), theirs(q, k, v, **options))


@pytest.mark.parametrize("causal", [False, True])
def test_a_mask_changed_before_the_backward_pass(causal):
    """Noticed, or without influence: never a wrong gradient."""
    q, mask = numbers(1, 2, 6, 8).requires_grad_(), irregular(6, 6)
    want = torch.autograd.grad(ours(q, q, q, mask, is_causal=causal).square().sum(), q)[0]
    out = ours(q, q, q, mask, is_causal=causal)
    mask.zero_()
    with contextlib.suppress(RuntimeError):  # "modified by an inplace operation"
        assert torch.equal(torch.autograd.grad(out.square().sum(), q)[0], want)


def test_grouped_heads_are_not_repeated():
    q, k, v = numbers(2, 6, 4, 8), numbers(2, 3, 5, 8), numbers(2, 2, 5, 8)
    assert torch.allclose(ours(q, k, k, enable_gqa=True), theirs(q, k, k, enable_gqa=True))
    assert torch.allclose(ours(q, k, v, enable_gqa=True), theirs(q, k, v, enable_gqa=True))  # torch takes this too
    with pytest.raises(ValueError, match="broadcast"):
        ours(q, k, k)


def test_dropout_is_drawn_from_torch():
    q, k, v = (numbers(2, 3, 40, 8) for _ in range(3))
    torch.manual_seed(5)
    first, second = ours(q, k, v, dropout_p=0.5), ours(q, k, v, dropout_p=0.5)
    torch.manual_seed(5)
    assert torch.equal(ours(q, k, v, dropout_p=0.5), first)
    assert not torch.equal(first, second)
    state = torch.get_rng_state()
    assert torch.equal(ours(q, k, v), ours(q, k, v, dropout_p=0))
    assert torch.equal(torch.get_rng_state(), state)
    assert (ours(q, k, v, dropout_p=1.0) == 0).all()
    mean = torch.stack([ours(q, k, v, dropout_p=0.5) for _ in range(400)]).mean(0)
    assert (mean - ours(q, k, v)).abs().max() < 0.4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    q, k, v = (numbers(2, 3, 9, 8, dtype=torch.float32) for _ in range(3))
    with torch.autocast("cpu", dtype):
        for mask in (None, irregular(9, 9), numbers(9, 9, dtype=torch.float32), numbers(9, 9, dtype=dtype)):
            got, want = ours(q, k, v, mask), theirs(q, k, v, mask)
            assert got.dtype == want.dtype == dtype
            assert torch.allclose(got.float(), want.float(), atol=2e-2)


BAD = {
    "array": (lambda q, m: ours(q.numpy(), q, q), TypeError, "query must be a torch tensor.*ndarray"),
    "mask_array": (lambda q, m: ours(q, q, q, m.numpy()), TypeError, "attn_mask must be a torch tensor"),
    "one_axis": (lambda q, m: ours(q[0, 0, 0], q, q), ValueError, r"query has shape \(8,\)"),
    "dim": (lambda q, m: ours(q, q[..., :5], q), ValueError, "last axis"),
    "rows": (lambda q, m: ours(q, q, q[..., :3, :]), ValueError, "as many rows"),
    "heads": (lambda q, m: ours(numbers(2, 6, 4, 8), q, q), ValueError, "broadcast"),
    "batch": (lambda q, m: ours(numbers(3, 3, 4, 8), q, q), ValueError, "broadcast"),
    "group": (lambda q, m: ours(numbers(2, 5, 4, 8), q, q, enable_gqa=True), ValueError, "divide"),
    "group_2d": (lambda q, m: ours(q[0, 0], q[0, 0], q[0, 0], enable_gqa=True), ValueError, "enable_gqa"),
    "dtype": (lambda q, m: ours(q, q.float(), q), TypeError, "float32.*float64"),
    "integers": (lambda q, m: ours(q.long(), q.long(), q.long()), TypeError, "int64"),
    "mask_dtype": (lambda q, m: ours(q.float(), q.float(), q.float(), m.double()), TypeError, "attn_mask.*float64"),
    "mask_uint8": (lambda q, m: ours(q, q, q, m.byte()), TypeError, "attn_mask.*uint8"),
    "mask_shape": (lambda q, m: ours(q, q, q, m[:3]), ValueError, r"attn_mask has shape \(3, 4\)"),
    "mask_rank": (lambda q, m: ours(q[0], q[0], q[0], m[None, None]), ValueError, r"\(1, 1, 4, 4\)"),
    "mask_batch": (lambda q, m: ours(q, q, q, m.expand(3, 1, 4, 4)), ValueError, r"\(3, 1, 4, 4\)"),
    "dropout": (lambda q, m: ours(q, q, q, None, 1.5), ValueError, "dropout_p"),
    "dropout_negative": (lambda q, m: ours(q, q, q, None, -0.1), ValueError, "dropout_p"),
    "dropout_none": (lambda q, m: ours(q, q, q, None, None), TypeError, "dropout_p"),
    "causal": (lambda q, m: ours(q, q, q, is_causal=1), TypeError, "is_causal"),
    "gqa": (lambda q, m: ours(q, q, q, enable_gqa=None), TypeError, "enable_gqa"),
    "scale": (lambda q, m: ours(q, q, q, scale="a"), TypeError, "scale"),
    "positional": (lambda q, m: ours(q, q, q, None, 0.0, False, 0.5), TypeError, "positional"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_torch_refuses_is_refused_by_name(case):
    call, error, said = BAD[case]
    with pytest.raises(error, match=said):
        call(numbers(2, 3, 4, 8), torch.ones(4, 4, dtype=torch.bool))


# ---------------------------------------------------------------------------------------------------
# Traced


@pytest.fixture(autouse=True)
def fresh_compiler():
    yield
    torch._dynamo.reset()


def test_compiled_with_any_sizes():
    def work(q, k, v, mask):
        return ours(q, k, v, mask, is_causal=True) + ours(q, k, v) + ours(q[0], k[0], v[0], enable_gqa=True)

    compiled = torch.compile(work, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, q_len, k_len in ((2, 5, 7), (3, 6, 4), (4, 9, 9)):
        q, k, v = (numbers(batch, 2, n, 8).requires_grad_() for n in (q_len, k_len, k_len))
        for mask in (irregular(batch, 1, q_len, k_len), irregular(q_len, k_len), numbers(1, 2, q_len, k_len)):
            got, want = compiled(q, k, v, mask), work(q, k, v, mask)
            torch.testing.assert_close(got, want)
            for mine, other in zip(
                torch.autograd.grad(got.sum(), (q, k, v)), torch.autograd.grad(want.sum(), (q, k, v)), strict=True
            ):
                torch.testing.assert_close(mine, other)


def test_compiled_dropout_repeats_after_a_seed():
    compiled = torch.compile(lambda q: ours(q, q, q, dropout_p=0.5), fullgraph=True, backend="aot_eager")
    q = numbers(1, 2, 30, 8)
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append((compiled(q), compiled(q)))
    assert torch.equal(results[0][0], results[1][0]) and not torch.equal(*results[0])


def test_exported():
    class Model(torch.nn.Module):
        def forward(self, q, mask):
            return ours(q, q, q, mask, is_causal=True)

    length = torch.export.Dim.AUTO
    args = numbers(2, 2, 6, 8), irregular(6, 6)
    program = torch.export.export(Model(), args, dynamic_shapes=({2: length}, {0: length, 1: length})).module()
    q, mask = numbers(2, 2, 11, 8), irregular(11, 11)
    torch.testing.assert_close(program(q, mask), ours(q, q, q, mask, is_causal=True))


def test_meta_tensors():
    q = numbers(2, 3, 4, 8).to("meta")
    out = ours(q, q, q, torch.ones(4, 4, dtype=torch.bool, device="meta"), is_causal=True)
    assert out.device.type == "meta" and out.shape == (2, 3, 4, 8)
