"""`tegula.torch.varlen_attention` against a loop over the sequences, each written out in float64."""

import hypothesis
import pytest
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tegula.torch import varlen_attention  # noqa: E402

F64 = torch.float64

pytestmark = pytest.mark.isa_once  # the numbers are those of attention, which run once per instruction set


def numbers(*shape, dtype=F64, seed=0):
    generator = torch.Generator().manual_seed(seed + sum((i + 1) * n for i, n in enumerate(shape)))
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype)


def borders(counts, dtype=torch.int32):
    return torch.tensor([0, *counts]).cumsum(0).to(dtype)


def loop(q, k, v, q_counts, k_counts, *, causal=False, window_size=(-1, -1), softmax_scale=None, softcap=0.0,
         alibi_slopes=None):  # fmt: skip
    """Sequence by sequence: (Tq, H, Dv) and (H, Tq)."""
    outs, sums = [], []
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    group = q.shape[1] // k.shape[1]
    parts = zip(q.split(q_counts), k.split(k_counts), v.split(k_counts), strict=True)
    for number, (one_q, one_k, one_v) in enumerate(parts):
        one_k, one_v = (x.repeat_interleave(group, 1) for x in (one_k, one_v))
        scores = torch.einsum("ihd,jhd->hij", one_q, one_k) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        place = torch.arange(len(one_q))[:, None] + len(one_k) - len(one_q)
        key = torch.arange(len(one_k))[None]
        if alibi_slopes is not None:
            slopes = alibi_slopes if alibi_slopes.dim() == 1 else alibi_slopes[number]
            scores = scores - slopes[:, None, None] * (place - key).abs()
        left, right = window_size
        visible = torch.ones(len(one_q), len(one_k), dtype=torch.bool)
        if left >= 0:
            visible &= key >= place - left
        if causal or right >= 0:
            visible &= key <= place + (0 if causal else right)
        scores = scores.masked_fill(~visible, -torch.inf)
        peak = scores.detach().amax(-1, keepdim=True) if len(one_k) else torch.zeros(q.shape[1], len(one_q), 1)
        exps = (scores - peak.masked_fill(peak == -torch.inf, 0.0)).exp()
        total = exps.sum(-1, keepdim=True)
        outs.append(torch.einsum("hij,jhd->ihd", exps / total.masked_fill(total == 0, 1.0), one_v))
        sums.append(((total.log() + peak)[..., 0]).masked_fill(total[..., 0] == 0, -torch.inf))
    return torch.cat(outs), torch.cat(sums, -1)


@st.composite
def calls(draw):
    count = st.sampled_from([0, 0, 1, 2, 7, 20])
    shared = draw(st.booleans())
    q_counts = draw(st.lists(count, min_size=1, max_size=4))
    k_counts = q_counts if shared else [draw(count) for _ in q_counts]
    group, served = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3]))
    reach = st.sampled_from([-1, 0, 1, 5])
    options = {"causal": draw(st.booleans()), "window_size": (draw(reach), draw(reach))}
    if draw(st.booleans()):
        options["softmax_scale"] = 0.3
    if draw(st.booleans()):
        options["softcap"] = 2.0
    slopes = draw(st.sampled_from([None, "head", "sequence"]))
    if slopes is not None:
        shape = (group * served,) if slopes == "head" else (len(q_counts), group * served)
        options["alibi_slopes"] = numbers(*shape, dtype=torch.float32).abs().to(F64)
    return q_counts, k_counts, shared, group * served, served, options


@hypothesis.given(calls())
@hypothesis.settings(max_examples=200)
def test_results_and_gradients(call):
    q_counts, k_counts, shared, heads, served, options = call
    q = numbers(sum(q_counts), heads, 8).requires_grad_()
    k = numbers(sum(k_counts), served, 8, seed=1).requires_grad_()
    v = numbers(sum(k_counts), served, 5, seed=2).requires_grad_()
    cu_q = borders(q_counts)
    cu_k = cu_q if shared else borders(k_counts)
    got, lse = varlen_attention(q, k, v, cu_q, cu_k, max(q_counts), max(k_counts), return_lse=True, **options)
    want, sums = loop(q, k, v, q_counts, k_counts, **options)
    assert got.shape == want.shape and lse.shape == (heads, sum(q_counts))
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse.to(F64), sums, rtol=1e-6, atol=1e-6)
    for mine, other in zip(
        torch.autograd.grad(got.square().sum(), (q, k, v)),
        torch.autograd.grad(want.square().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_c51_empty_sequences_on_either_side():
    q_counts, k_counts = [0, 3, 0, 2], [2, 0, 2, 5]
    q, k, v = (numbers(n, 2, 8).requires_grad_() for n in (5, 9, 9))
    out, lse = varlen_attention(q, k, v, borders(q_counts), borders(k_counts), return_lse=True)
    assert (out[:3] == 0).all() and (lse[:, :3] == -torch.inf).all()
    torch.testing.assert_close(out, loop(q, k, v, q_counts, k_counts)[0])
    out.sum().backward()
    assert (q.grad[:3] == 0).all() and (k.grad[:4] == 0).all() and (v.grad[4:] != 0).all()
    nobody = varlen_attention(q[:0], k[:0], v[:0], borders([]), borders([]))
    assert nobody.shape == (0, 2, 8)


# C39, C40: the matrices that flash-attn's documentation shows.
@pytest.mark.parametrize(("q_len", "k_len", "seen"), [(2, 5, [4, 5]), (5, 2, [0, 0, 0, 1, 2])])
def test_c39_c40_causal_is_aligned_bottom_right(q_len, k_len, seen):
    q, k = torch.zeros(q_len, 1, 4), torch.zeros(k_len, 1, 4)
    v = torch.eye(k_len)[:, None]
    out = varlen_attention(q, k, v, borders([q_len]), borders([k_len]), causal=True)
    assert (out[:, 0] > 0).sum(-1).tolist() == seen


def test_c45_a_window_counts_without_itself_and_minus_1_is_unlimited():
    q = k = torch.zeros(6, 1, 4)
    v = torch.eye(6)[:, None]
    cu = borders([6])
    seen = lambda **options: (varlen_attention(q, k, v, cu, cu, **options)[:, 0] > 0).sum(-1).tolist()
    assert seen(window_size=(1, 0)) == [1, 2, 2, 2, 2, 2]
    assert seen(window_size=(0, 2)) == [3, 3, 3, 3, 2, 1]
    assert seen(window_size=(-1, 0)) == seen(causal=True) == [1, 2, 3, 4, 5, 6]
    assert seen(window_size=(1, 3), causal=True) == [1, 2, 2, 2, 2, 2]
    assert seen(window_size=(-1, -1)) == [6] * 6


@pytest.mark.parametrize(("other", "where"), [(1e3, (0, 1, 2)), (torch.nan, (2,))])
def test_c49_sequences_do_not_see_each_other(other, where):
    """Whatever numbers another sequence holds: the same bits, forward and backward."""
    cu = borders([4, 6, 3])
    weights = numbers(13, 2, 8, seed=5)
    weights[4:10] = 0
    results = []
    for changed in ((), where):
        leaves = [numbers(13, 2, 8, seed=i) for i in range(3)]
        for i in changed:
            leaves[i][4:10] = other
        leaves = [x.requires_grad_() for x in leaves]
        out = varlen_attention(*leaves, cu, cu, causal=True)
        results.append((out, *torch.autograd.grad(out, leaves, weights)))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a[:4], b[:4]) and torch.equal(a[10:], b[10:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_types(dtype):
    counts = [30, 0, 50, 1]
    q, k, v = (numbers(81, heads, 16, dtype=dtype) for heads in (4, 2, 2))
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    for options in ({}, {"causal": True}, {"alibi_slopes": slopes}, {"causal": True, "alibi_slopes": slopes}):
        cu = borders(counts)
        out, lse = varlen_attention(q, k, v, cu, cu, return_lse=True, **options)
        want, sums = loop(*(x.double() for x in (q, k, v)), counts, counts, **options)
        assert out.dtype == dtype and lse.dtype == torch.float32
        assert (out.double() - want).abs().max() <= 4 * torch.finfo(dtype).eps * want.abs().max()
        assert (lse.double() - sums).abs().max() <= 1e-2 if dtype == torch.bfloat16 else 1e-4


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint32])
def test_c14_borders_of_every_integer_type(dtype):
    q = k = v = numbers(9, 2, 8)
    cu = borders([4, 5], dtype)
    assert torch.equal(varlen_attention(q, k, v, cu, cu), varlen_attention(q, k, v, borders([4, 5]), borders([4, 5])))


def test_dropout_is_drawn_from_torch():
    q = k = v = numbers(20, 2, 8)
    cu = borders([12, 8])
    torch.manual_seed(1)
    first, second = (varlen_attention(q, k, v, cu, cu, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(varlen_attention(q, k, v, cu, cu, dropout_p=0.5), first) and not torch.equal(first, second)


def test_alibi_of_a_long_packed_row_takes_no_matrix():
    """65536 x 65536 numbers a head would be 16 GiB."""
    counts = [64] * 1024
    cu = borders(counts)
    q, k, v = (numbers(65536, 1, 4, dtype=torch.float32, seed=i) for i in range(3))
    slopes = torch.tensor([0.5])
    out = varlen_attention(q, k, v, cu, cu, causal=True, alibi_slopes=slopes)
    last = [x[-64:].double() for x in (q, k, v)]
    want = loop(*last, [64], [64], causal=True, alibi_slopes=slopes)[0]
    assert (out[-64:].double() - want).abs().max() < 1e-5


def bad(*changes, **options):
    """A call with some arguments replaced."""

    def call():
        q, k, v, cu = numbers(9, 2, 8), numbers(9, 2, 8), numbers(9, 2, 8), borders([4, 5])
        arguments = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu, "cu_seqlens_k": borders([4, 5])}
        return varlen_attention(**(arguments | dict(changes) | options))

    return call


BAD = {
    "array": (bad(q=numbers(9, 2, 8).numpy()), TypeError, "q must be a torch tensor"),
    "list": (bad(cu_seqlens_q=[0, 4, 9]), TypeError, "cu_seqlens_q must be a torch tensor, got.*list"),
    "float": (bad(cu_seqlens_k=torch.tensor([0.0, 9.0])), TypeError, "cu_seqlens_k must be integers"),
    "begin": (bad(cu_seqlens_q=torch.tensor([1, 4, 9])), ValueError, r"cu_seqlens_q\[0\] is 1"),
    "falls": (bad(cu_seqlens_k=torch.tensor([0, 10, 9])), ValueError, r"cu_seqlens_k\[1\] is 10"),
    "end": (bad(cu_seqlens_q=torch.tensor([0, 4, 8])), ValueError, "cu_seqlens_q ends at 8, but q_len is 9"),
    "end_k": (bad(cu_seqlens_k=torch.tensor([0, 4, 10])), ValueError, "cu_seqlens_k ends at 10, but k_len is 9"),
    "count": (bad(cu_seqlens_k=torch.tensor([0, 9])), ValueError, r"cu_seqlens_q has shape \(3,\)"),
    "rank": (bad(q=numbers(1, 9, 2, 8)), ValueError, "3 axes"),
    "heads": (bad(q=numbers(9, 3, 8)), ValueError, "heads"),
    "dtype": (bad(k=numbers(9, 2, 8).float()), TypeError, "float32"),
    "window": (bad(window_size=(-2, 0)), ValueError, r"window_size\[0\].*-2"),
    "window_none": (bad(window_size=None), TypeError, "window_size must be a pair"),
    "window_float": (bad(window_size=(1.0, 0)), TypeError, r"window_size\[0\]"),
    "max": (bad(max_seqlen_q=4.0), TypeError, "max_seqlen_q must be an integer"),
    "causal": (bad(causal=1), TypeError, "causal must be a bool"),
    "softcap": (bad(softcap=-1.0), ValueError, "softcap"),
    "scale": (bad(softmax_scale=torch.inf), ValueError, "scale"),
    "dropout": (bad(dropout_p=2.0), ValueError, "dropout_p"),
    "slopes": (bad(alibi_slopes=torch.ones(3)), ValueError, r"alibi_slopes.*\(2,\).*\(2, 2\).*got \(3,\)"),
    "slopes_integer": (bad(alibi_slopes=torch.ones(2).long()), TypeError, "alibi_slopes must be a float"),
    "slopes_grad": (bad(alibi_slopes=torch.ones(2, requires_grad=True)), RuntimeError, "detach"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    call, error, said = BAD[case]
    with pytest.raises(error, match=said):
        call()


@pytest.fixture(autouse=True)
def fresh_compiler():
    yield
    torch._dynamo.reset()


SLOPES = torch.tensor([0.5, 0.25])
TRACED = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (3, 1)},
    "alibi": {"causal": True, "alibi_slopes": SLOPES},
    "alibi_both_ways": {"alibi_slopes": SLOPES},
}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("case", TRACED)
def test_compiled_for_any_sequences(case, shared):
    def work(q, k, v, cu_q, cu_k):
        return varlen_attention(q, k, v, cu_q, cu_q if shared else cu_k, return_lse=True, **TRACED[case])

    compiled = torch.compile(work, fullgraph=True, dynamic=True, backend="aot_eager")
    for q_counts, k_counts in (([3, 4], [5, 2]), ([0, 6, 1, 3], [4, 0, 2, 2]), ([9, 1, 2], [1, 9, 5])):
        k_counts = q_counts if shared else k_counts
        q, k, v = (numbers(sum(n), 2, 8).requires_grad_() for n in (q_counts, k_counts, k_counts))
        got = compiled(q, k, v, borders(q_counts), borders(k_counts))
        want = work(q, k, v, borders(q_counts), borders(k_counts))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
        for a, b in zip(
            torch.autograd.grad(got[0].sum(), (q, k, v)), torch.autograd.grad(want[0].sum(), (q, k, v)), strict=True
        ):
            torch.testing.assert_close(a, b)


def test_exported():
    class Model(torch.nn.Module):
        def forward(self, q, cu):
            return varlen_attention(q, q, q, cu, cu, causal=True)

    length = torch.export.Dim.AUTO
    args = numbers(7, 2, 8), borders([3, 4])
    program = torch.export.export(Model(), args, dynamic_shapes=({0: length}, {0: length})).module()
    q, cu = numbers(12, 2, 8), borders([5, 0, 7])
    torch.testing.assert_close(program(q, cu), varlen_attention(q, q, q, cu, cu, causal=True))
