"""What `tegula.torch`'s drop-in functions refuse, before anything is read or drawn, and how precise a bias is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tegula.torch import scaled_dot_product_attention, varlen_attention  # noqa: E402

pytestmark = pytest.mark.isa_once

F64 = torch.float64


def numbers(*shape, dtype=F64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=F64).to(dtype)


STRANGE = {
    "nested": lambda x: torch.nested.nested_tensor([*x]),
    "jagged": lambda x: torch.nested.nested_tensor([*x], layout=torch.jagged),
    "csr": lambda x: x.flatten(0, -2).to_sparse_csr(),
    "coo": lambda x: x.to_sparse(),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse")
@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("name", ["query", "key", "value", "attn_mask"])
def test_layouts_of_sdpa(name, make):
    given = {"query": numbers(2, 3, 5, 4), "key": numbers(2, 3, 5, 4), "value": numbers(2, 3, 5, 4)}
    given[name] = make(numbers(2, 3, 5, 4 if name != "attn_mask" else 5))
    with pytest.raises(TypeError, match=f"{name} is not a plain tensor"):
        scaled_dot_product_attention(**given)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse")
@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("name", ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "alibi_slopes"])
def test_layouts_of_varlen(name, make):
    given = {"q": numbers(9, 2, 8), "k": numbers(9, 2, 8), "v": numbers(9, 2, 8)}
    given |= {"cu_seqlens_q": torch.tensor([0, 4, 9]), "cu_seqlens_k": torch.tensor([0, 4, 9])}
    given[name] = make(numbers(2, 2))
    with pytest.raises(TypeError, match=f"{name} is not a plain tensor"):
        varlen_attention(**given)


@pytest.mark.parametrize(("p", "error"), [(1.5, ValueError), (-0.1, ValueError), ("0.1", TypeError)])
def test_a_refused_probability_draws_nothing(p, error):
    q = numbers(1, 2, 9, 8)
    before = torch.get_rng_state()
    with pytest.raises(error, match="dropout_p"):
        scaled_dot_product_attention(q, q, q, dropout_p=p)
    rows, cu = q[0].transpose(0, 1), torch.tensor([0, 4, 9])
    with pytest.raises(error, match="dropout_p"):
        varlen_attention(rows, rows, rows, cu, cu, dropout_p=p)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("per_sequence", [False, True])
def test_slopes_in_float32_cost_float64_nothing(per_sequence):
    q, k, v = numbers(9, 2, 8), numbers(9, 2, 8) * 2, numbers(9, 2, 8) * 3
    slopes = torch.tensor([[0.1, 0.7], [1 / 3, 0.9]])
    slopes = slopes if per_sequence else slopes[0]
    cu = torch.tensor([0, 4, 9])
    got = varlen_attention(q, k, v, cu, cu, alibi_slopes=slopes)
    for number, (begin, end) in enumerate(((0, 4), (4, 9))):
        one_q, one_k, one_v = (x[begin:end] for x in (q, k, v))
        place = torch.arange(end - begin)
        slope = (slopes[number] if per_sequence else slopes).double()
        scores = torch.einsum("ihd,jhd->hij", one_q, one_k) / 8**0.5
        scores = scores - slope[:, None, None] * (place[:, None] - place).abs()
        want = torch.einsum("hij,jhd->ihd", scores.softmax(-1), one_v)
        assert (got[begin:end] - want).abs().max() < 1e-13
