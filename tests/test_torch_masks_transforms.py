"""Masks inside the transforms of `torch.func` and beneath dispatch modes, made of tensors from outside."""

from __future__ import annotations

import pytest
import tegula as tg
from tegula import masks

torch = pytest.importorskip("torch")

import tegula.torch as tt  # noqa: E402
from torch import func  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

pytestmark = pytest.mark.isa_once

F64 = torch.float64
LENGTHS, OFFSET, BORDERS = torch.tensor([3, 5]), torch.tensor([0, 1]), torch.tensor([0, 2, 5])
KEEP = torch.tensor([[True, False, True, True, True], [True, True, True, False, False]])
BOOLS = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 0, 1, 0]]).bool()

# Made in the function that is transformed, of tensors from outside.
MADE = {
    "bools": lambda: BOOLS,
    "dense": lambda: masks.dense(BOOLS),
    "lengths": lambda: masks.padding(LENGTHS),
    "keep": lambda: masks.padding(keep=KEEP),
    "ids": lambda: masks.documents(IDS),
    "borders": lambda: masks.documents(cu_seqlens=BORDERS),
    "offset": lambda: masks.causal(offset=OFFSET),
    "positions": lambda: masks.documents(masks.positions(keep=KEEP)),
    "written out": lambda: masks.dense(masks.padding(LENGTHS).dense(5, 5)),
}
IDS = torch.tensor([[0, 1, 0, 1, 2], [0, 0, 1, 1, 1]])


class Watching(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=F64)


def written_out(mask):
    """The mask as a bool tensor, and attention by torch's own operations."""
    visible = mask if isinstance(mask, torch.Tensor) else mask.dense(5, 5)

    def loss(q):
        scores = (q @ q.mT / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
        weights = torch.where(visible.any(-1, keepdim=True), scores, 0).softmax(-1) * visible
        return ((weights @ q) ** 2).sum()

    return loss


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@pytest.mark.parametrize("inside", [True, False])
def test_transforms(make, inside):
    q, along = numbers(2, 3, 5, 4), numbers(2, 3, 5, 4).flip(0)
    made = make()
    expected = written_out(made)

    def loss(q):
        return (tg.attention(q, q, q, mask=make() if inside else made) ** 2).sum()

    want = func.grad(expected)(q)
    assert torch.allclose(func.grad(loss)(q), want)
    value, pull = func.vjp(loss, q)
    assert torch.allclose(value, expected(q)) and torch.allclose(pull(torch.ones((), dtype=F64))[0], want)
    assert torch.allclose(func.jvp(loss, (q,), (along,))[1], (want * along).sum())
    many = torch.stack([q, along])
    got = func.vmap(func.grad(loss))(many)
    assert torch.allclose(got, torch.stack([want, func.grad(expected)(along)]))

    one = numbers(2, 1, 5, 2)
    assert torch.allclose(func.hessian(loss)(one), func.hessian(expected)(one))
    # Nothing of the transforms is left in the mask.
    out = tg.attention(q, q, q, mask=made, out=torch.empty_like(q))
    assert torch.allclose((out**2).sum(), expected(q))


def test_masks_say_the_same_inside():
    mask = masks.padding(LENGTHS) & masks.causal()
    want = mask.dense(5, 5), mask.additive(5, 5), mask.area(5, 5), *mask.intervals(5, 5), masks.positions(keep=KEEP)

    def said(x):
        mask = masks.padding(LENGTHS) & masks.causal()
        got = mask.dense(5, 5), mask.additive(5, 5), mask.area(5, 5), *mask.intervals(5, 5)
        return x, (*got, masks.positions(keep=KEEP))

    _, got = func.grad(said, has_aux=True)(torch.ones(()))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_varlen_inside_transforms():
    x = numbers(5, 2, 4)
    expected = written_out(masks.documents(cu_seqlens=BORDERS).dense(5, 5))
    want = func.grad(lambda x: expected(x.transpose(0, 1)))(x)

    def loss(x):
        return (tt.varlen_attention(x, x, x, BORDERS, BORDERS) ** 2).sum()

    assert torch.allclose(func.grad(loss)(x), want)
    assert torch.allclose(func.vmap(func.grad(loss))(x[None])[0], want)


def test_causal_drop_in_inside_transforms_twice():
    expected = written_out(torch.ones(5, 5).tril().bool())

    def loss(q):
        return (tt.scaled_dot_product_attention(q, q, q, is_causal=True) ** 2).sum()

    q = numbers(1, 1, 5, 4)
    want = func.grad(lambda q: func.grad(expected)(q).sin().sum())(q)
    for _ in range(2):
        assert torch.allclose(func.grad(lambda q: func.grad(loss)(q).sin().sum())(q), want)
    assert torch.allclose(loss(q), expected(q))


def test_arrays_take_no_mask_of_tensors():
    x = numbers(1, 1, 5, 2).numpy()
    for mask in (BOOLS, masks.padding(LENGTHS[:1])):
        with pytest.raises(TypeError, match="torch tensor"):
            tg.attention(x, x, x, mask=mask)
        with pytest.raises(TypeError, match="torch tensor"):
            tg.attention_backward(x, x, x, x, x, x[..., 0], mask=mask)


def test_modes_that_look_on_leave_the_checks():
    q = numbers(2, 3, 5, 4)
    mask = masks.causal()
    want = tg.attention(q, q, q, mask=BOOLS)
    with Watching():
        with pytest.raises(ValueError, match="outside"):
            tg.attention(q, q, q, mask=masks.padding(torch.tensor([3, 6])))
        with pytest.raises(ValueError, match="decreases"):
            masks.documents(cu_seqlens=torch.tensor([0, 3, 2]))
        assert torch.equal(tg.attention(q, q, q, mask=BOOLS), want)
        inside = tg.attention(q, q, q, mask=mask)
    assert torch.equal(tg.attention(q, q, q, mask=mask), inside)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t(BOOLS),
        lambda t: masks.dense(t(BOOLS)),
        lambda t: masks.padding(t(LENGTHS)),
        lambda t: masks.padding(keep=t(KEEP)),
        lambda t: masks.causal(offset=t(OFFSET)),
        lambda t: masks.documents(t(IDS)),
        lambda t: masks.documents(cu_seqlens=t(BORDERS)),
    ],
)
def test_tensors_without_numbers(make):
    q = numbers(2, 3, 5, 4)
    mask = make(lambda x: x.to("meta"))
    with pytest.raises(TypeError, match="mask is on device 'meta'"):
        tg.attention(q, q, q, mask=mask)
    shapes = q.to("meta")
    assert tg.attention(shapes, shapes, shapes, mask=mask).shape == q.shape
