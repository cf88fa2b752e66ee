"""Attention of tensors gives the bits of attention of arrays, over the whole list of cases."""

import copy

import numpy as np
import pytest
import tegula as tg
from cases import ATTENTION_CASES, AttentionCase
from support import DTYPES, run_python, same_bits
from torch_support import leaf, tensors, to_array, to_tensor

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.isa_once

EVERYTHING = AttentionCase(
    q_len=35, k_len=35, heads=4, kv_heads=2, value_dim=24, mask="sliding", bias="head_pair", scale=0.7,
    softcap=4.0, alibi=True, sinks=True, dropout_p=0.1,
)  # fmt: skip


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=str)
def test_case(case):
    arrays, options = case.arrays(), case.options(tg.masks)
    expect = tg.attention(*arrays, **options, return_lse=True, return_weights=True)
    given, options = [to_tensor(x) for x in arrays], tensors(options)
    got = tg.attention(*given, **options, return_lse=True, return_weights=True)
    assert all(same_bits(to_array(x), y) for x, y in zip(got, expect, strict=True))
    # Each way to the kernel: without and with the log-sum-exp, into `out`, and recording gradients.
    assert same_bits(to_array(tg.attention(*given, **options)), expect[0])
    with_lse = tg.attention(*given, **options, return_lse=True)
    assert all(same_bits(to_array(x), y) for x, y in zip(with_lse, expect, strict=False))
    out = torch.full_like(got[0], torch.nan)
    assert tg.attention(*given, **options, out=out) is out
    assert same_bits(to_array(out), expect[0])
    recorded = tg.attention(*map(leaf, given), **options)
    assert recorded.requires_grad and same_bits(to_array(recorded), expect[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_have_the_bits_of_attention_backward(dtype):
    for changes in ({}, {"bias": "key"}, {"bias": "whole", "mask": "padding_lengths"}):
        case = AttentionCase(**({"heads": 4, "kv_heads": 2, "dtype": dtype, "sinks": True} | changes))
        arrays, options = case.arrays(), case.options(tg.masks)
        out, lse = tg.attention(*arrays, **options, return_lse=True)
        grad = np.random.default_rng(0).standard_normal(out.shape).astype(out.dtype)
        expect = tg.attention_backward(grad, *arrays, out, lse, **options)
        given = [leaf(to_tensor(x)) for x in arrays]
        options = tensors(options)
        learned = [options[name] for name in ("bias", "sinks") if name in options]
        for x in learned:
            x.requires_grad_()
        tg.attention(*given, **options).backward(to_tensor(grad))
        for x, y in zip([*given, *learned], expect, strict=True):
            assert same_bits(to_array(x.grad), y)
        back = tg.attention_backward(
            to_tensor(grad), *(x.detach() for x in given), to_tensor(out), to_tensor(lse),
            **{name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in options.items()},
        )  # fmt: skip
        assert all(same_bits(to_array(x), y) for x, y in zip(back, expect, strict=True))


@pytest.mark.parametrize("layout", ["blhd", "lhd"])
def test_layouts(layout):
    case = AttentionCase(layout=layout, leading=() if layout == "lhd" else (2,), heads=4, kv_heads=2, value_dim=3)
    q, k, v = map(to_tensor, case.arrays())
    out, lse = tg.attention(q, k, v, layout=layout, return_lse=True)
    assert out.is_contiguous()
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
    found = tg.attention_backward(grad, q, k, v, out, lse, layout=layout)
    turned = [x.transpose(-3, -2) for x in (grad, q, k, v, out)]
    expect = tg.attention_backward(*turned, lse)
    assert all(torch.equal(x, y.transpose(-3, -2)) for x, y in zip(found, expect, strict=True))
    into = tuple(torch.full_like(x, torch.nan) for x in (q, k, v))
    returned = tg.attention_backward(grad, q, k, v, out, lse, layout=layout, grads=into)
    assert all(x is y for x, y in zip(returned, into, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(into, found, strict=True))


def test_the_result_lies_in_memory_as_q_does():
    """Heads inside of rows on the way in, so that putting heads together again costs nothing."""
    x = torch.randn(2, 9, 4, 8).transpose(1, 2)
    assert tg.attention(x, x, x).stride() == x.stride()
    wide = torch.randn(2, 9, 4, 5).transpose(1, 2)
    assert tg.attention(x, x, wide).transpose(1, 2).is_contiguous()
    fused = torch.randn(2, 9, 96)[..., :32].view(2, 9, 4, 8).transpose(1, 2)
    assert tg.attention(fused, fused, fused).transpose(1, 2).is_contiguous()


VIEWS = {
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "inner": lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
    "every other": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "narrowed": lambda x: torch.nn.functional.pad(x, (3, 1, 2, 2))[:, :, 2:-2, 3:-1],
    "negated": lambda x: torch._neg_view(-x),
    "imaginary": lambda x: torch.complex(x, -x).conj().imag,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("grad", [False, True])
def test_c57_views_of_every_kind(view, grad):
    """Lazily negated ones too: a wrong sign would go unnoticed."""
    packed = [to_tensor(x) for x in AttentionCase(heads=2, value_dim=8).arrays()]
    expect = tg.attention(*packed)
    for chosen in ((0,), (1,), (2,), (0, 1, 2)):
        mixed = [view(x) if i in chosen else x for i, x in enumerate(packed)]
        assert torch.equal(tg.attention(*(leaf(x) if grad else x for x in mixed)), expect)
        if grad:
            mixed = [x.requires_grad_() for x in packed]
            mixed = [view(x) if i in chosen else x for i, x in enumerate(mixed)]
            assert torch.equal(tg.attention(*mixed), expect)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (3,), (0, 1, 2, 3)])
def test_c57_expanded_tensors_and_their_gradients(axes):
    rng = torch.Generator().manual_seed(0)
    shape = (2, 3, 20, 8)
    single = [torch.randn([1 if a in axes else n for a, n in enumerate(shape)], generator=rng) for _ in range(3)]
    grad = torch.randn(shape, generator=rng)
    roots = [leaf(x) for x in single]
    tg.attention(*(x.expand(shape) for x in roots)).backward(grad)
    whole = [leaf(x.expand(shape)) for x in single]
    tg.attention(*whole).backward(grad)
    for root, x in zip(roots, whole, strict=True):
        assert torch.equal(root.grad, x.grad.sum_to_size(root.shape))


def test_gradients_of_any_strides():
    q, k, v = [leaf(to_tensor(x)) for x in AttentionCase().arrays()]
    out = tg.attention(q, k, v)
    for grad in (
        torch.ones(()).expand(out.shape),
        torch.randn(2, 35, 2, 16).transpose(1, 2),
        torch._neg_view(out.detach()),
    ):
        found = torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
        expect = torch.autograd.grad(out, (q, k, v), grad.resolve_neg().contiguous(), retain_graph=True)
        assert all(torch.equal(x, y) for x, y in zip(found, expect, strict=True))


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_attend(lengths):
    q_len, _ = lengths
    q, k = (torch.randn(2, 3, n, 8, requires_grad=True) for n in lengths)
    out, lse = tg.attention(q, k, k, return_lse=True)
    assert out.shape == (2, 3, q_len, 8) and (out == 0).all() and (lse == -torch.inf).all()
    out.sum().backward()
    assert (q.grad == 0).all() and (k.grad == 0).all()


def test_parameters_copies_and_modes():
    p = torch.nn.Parameter(torch.randn(1, 2, 5, 8))
    expect = tg.attention(*[to_array(p)] * 3)
    assert same_bits(to_array(tg.attention(p, p, p)), expect)
    assert tg.attention(p, p, p).requires_grad
    with torch.no_grad():
        out = tg.attention(p, p, p)
    assert not out.requires_grad and same_bits(to_array(out), expect)
    with torch.inference_mode():
        out = tg.attention(p, p, p)
        assert out.is_inference() and same_bits(to_array(out), expect)
    twin = copy.deepcopy(p)
    tg.attention(twin, twin, twin).sum().backward()
    assert p.grad is None and twin.grad is not None
    with pytest.raises(RuntimeError, match="[Ii]nference"):
        tg.attention(p, p, out).sum().backward()  # nothing made in inference mode can be saved


def test_a_seed_may_be_a_tensor():
    """So that it can be drawn from torch's generator without leaving a compiled graph."""
    q = torch.randn(2, 2, 20, 8)
    for seed in (0, 7, 2**63 - 1, 2**63, 2**64 - 1):
        expect = tg.attention(q, q, q, dropout_p=0.5, seed=seed)
        drawn = torch.tensor([seed - 2**64 if seed >= 2**63 else seed])
        assert torch.equal(tg.attention(q, q, q, dropout_p=0.5, seed=drawn), expect)
    assert torch.equal(tg.attention(q, q, q, seed=drawn), tg.attention(q, q, q))
    with pytest.raises(TypeError, match="seed.*float32"):
        tg.attention(q, q, q, dropout_p=0.5, seed=torch.ones(1))
    with pytest.raises(TypeError, match=r"seed.*\(2,\)"):
        tg.attention(q, q, q, dropout_p=0.5, seed=torch.ones(2, dtype=torch.int64))


def test_merged_results_and_their_gradients():
    q, k, v = (torch.randn(2, 3, 8, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))

    def merged(q, k, v, cut=5):
        first = tg.attention(q, k[..., :cut, :], v[..., :cut, :], return_lse=True)
        second = tg.attention(q, k[..., cut:, :], v[..., cut:, :], return_lse=True)
        return tg.merge_attention(*first, *second)

    for cut in (0, 5, 8):
        found, expect = merged(q, k, v, cut), tg.attention(q, k, v, return_lse=True)
        assert all(torch.allclose(x, y) for x, y in zip(found, expect, strict=True))
        found, expect = (torch.autograd.grad(x[0].sum() + x[1].sum(), (q, k, v)) for x in (found, expect))
        assert all(torch.allclose(x, y) for x, y in zip(found, expect, strict=True))
    arrays = [to_array(x) for x in tg.attention(q, k, v, return_lse=True)]
    with pytest.raises(TypeError, match="lse1 must be a torch tensor as out1 is"):
        tg.merge_attention(to_tensor(arrays[0]), arrays[1], *map(to_tensor, arrays))


def test_threads_come_from_torch_and_change_no_bit(threads):
    """The argument first, then the package's setting, then torch's."""
    from tegula import _core

    tensors_ = [leaf(to_tensor(x)) for x in AttentionCase(q_len=300, k_len=300, heads=4).arrays()]
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            assert _core.num_threads(-torch.get_num_threads()) == count
            out = tg.attention(*tensors_, mask=tg.masks.causal())
            results.append((out, *torch.autograd.grad(out.sum(), tensors_)))
        out = tg.attention(*tensors_, mask=tg.masks.causal(), threads=3)
        results.append((out, *torch.autograd.grad(out.sum(), tensors_)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for found in results for x, y in zip(found, results[0], strict=True))


@pytest.mark.parametrize("first", ["torch", "tegula"])
def test_c74_either_may_be_imported_first(first):
    run_python(
        f"""
        import {first}
        import torch, tegula
        x = torch.randn(2, 4, 300, 64)
        torch.mm(torch.randn(500, 500), torch.randn(500, 500))
        expect = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        assert torch.allclose(tegula.attention(x, x, x), expect, atol=1e-5)
        """
    )


def test_numpy_alone_does_not_import_torch():
    run_python(
        """
        import sys, numpy, tegula
        x = numpy.ones((1, 2, 3, 4), "f4")
        out, lse = tegula.attention(x, x, x, return_lse=True)
        tegula.attention_backward(out, x, x, x, out, lse)
        tegula.merge_attention(out, lse, out, lse)
        assert "torch" not in sys.modules
        """
    )


def test_c73_fork_after_use():
    """Forward and backward on several threads, then again in a forked child."""
    run_python(
        """
        import os, torch, tegula
        x = torch.randn(2, 8, 300, 64, requires_grad=True)
        def run():
            out = tegula.attention(x, x, x, threads=2)
            return out, *torch.autograd.grad(out.sum(), x)
        torch.set_num_threads(1)
        expect = run()
        pid = os.fork()
        if pid == 0:
            same = all(torch.equal(a, b) for a, b in zip(run(), expect))
            os._exit(0 if same else 1)
        assert os.waitpid(pid, 0)[1] == 0
        """,
        timeout=30,
    )
