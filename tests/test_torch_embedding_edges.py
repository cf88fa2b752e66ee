"""The embedding's operators on tensors of several devices, mapped over odd axes, and called directly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tegula as tg

torch = pytest.importorskip("torch")
import tegula.torch  # noqa: E402

pytestmark = pytest.mark.isa_once

F64 = torch.float64
IDS = torch.tensor([[1, 0, 3], [2, 2, 1]])


def rows(n, dim=5):
    return torch.arange(n * dim, dtype=F64).reshape(n, dim).cos()


def full_options(meta=()):
    """A call that uses every tensor, those named in `meta` without numbers."""
    given = {
        "ids": IDS, "weight": rows(4), "positions": torch.tensor([2, 0, 1]), "position_table": rows(3),
        "segments": torch.tensor([[1], [0]]), "segment_table": rows(2),
    }  # fmt: skip
    return {name: x.to("meta") if name in meta else x for name, x in given.items()}


@pytest.mark.parametrize("name", ["ids", "positions", "position_table", "segments", "segment_table"])
def test_devices_of_the_embedding(name):
    with pytest.raises(TypeError, match=f"{name} is on device 'meta', but weight is on device 'cpu'"):
        tg.embedding(**full_options([name]))
    others = [other for other in full_options() if other != name]
    with pytest.raises(TypeError, match=f"{name} is on device 'cpu', but weight is on device 'meta'"):
        tg.embedding(**full_options(others))


def test_devices_of_weight_and_seed():
    with pytest.raises(TypeError, match="ids is on device 'cpu', but weight is on device 'meta'"):
        tg.embedding(IDS, rows(4).to("meta"))
    seed = torch.tensor([3])
    with pytest.raises(TypeError, match="seed is on device 'meta', but weight"):
        tg.embedding(IDS, rows(4), dropout_p=0.5, seed=seed.to("meta"))
    with pytest.raises(TypeError, match="seed is on device 'meta', but grad"):
        tg.embedding_backward(rows(3)[None], IDS[:1], 4, dropout_p=0.5, seed=seed.to("meta"))
    given = full_options(full_options())
    for number in (7, seed, seed.to("meta")):
        assert tg.embedding(**given, dropout_p=0.5, seed=number).shape == (2, 3, 5)


@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"out": rows(4)}])
def test_devices_of_the_gradient(options):
    for grad, ids in ((rows(3)[None], IDS[:1].to("meta")), (rows(3)[None].to("meta"), IDS[:1])):
        with pytest.raises(TypeError, match="meta"):
            tg.embedding_backward(grad, ids, 4, **options)


@pytest.mark.parametrize("ids_mapped", [True, False])
def test_vmap_over_segments_of_single_ids(ids_mapped):
    ids, segments = torch.tensor([2, 0, 3]), torch.tensor([1, 1, 0])
    weight, table = rows(4), rows(2).sin()
    ids = ids if ids_mapped else ids[0]

    def call(i, s):
        return tg.embedding(i, weight, scale=2.0, position_table=rows(3), segments=s, segment_table=table)

    got = torch.vmap(call, (0 if ids_mapped else None, 0))(ids, segments)
    assert torch.allclose(got, 2 * weight[ids] + rows(3)[0] + table[segments])


def test_vmap_over_no_entries():
    ids, table = torch.empty(0, 2, 3, dtype=torch.int32), rows(4).requires_grad_()
    tables, grads = torch.empty(0, 4, 5, dtype=F64, requires_grad=True), torch.empty(0, 2, 3, 5, dtype=F64)
    dropout = {"dropout_p": 0.5, "seed": 3}
    for options, (i, w) in itertools.product(({}, dropout), ((ids, table), (ids, tables), (IDS, tables))):
        dims = (0 if i is ids else None, 0 if w is tables else None)
        got = torch.vmap(lambda i, w, o=options: tg.embedding(i, w, **o), dims)(i, w)
        assert got.shape == (0, 2, 3, 5) and got.dtype == F64
        (grad,) = torch.autograd.grad(got.sum(), w)
        assert torch.equal(grad, torch.zeros_like(w))
    for options, i in itertools.product(({}, dropout), (ids, IDS)):
        dims = (0, 0 if i is ids else None)
        got = torch.vmap(lambda g, i, o=options: tg.embedding_backward(g, i, 4, **o), dims)(grads, i)
        assert got.shape == (0, 4, 5) and got.dtype == F64


@pytest.mark.parametrize("name", ["weight", "position_table", "segment_table"])
def test_operator_without_gradients_says_so(name):
    given = full_options()
    given[name].requires_grad_()
    arguments = (
        given["ids"], given["weight"], -1, False, None, 1.0, given["positions"], given["position_table"], False,
        given["segments"], given["segment_table"],
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="embedding_forward computes no gradients"):
        torch.ops.tegula.embedding_forward(*arguments)
    with torch.no_grad():
        assert torch.equal(torch.ops.tegula.embedding_forward(*arguments), tg.embedding(**given))


def test_all_dropped_leaves_no_rows():
    found, values = tg.embedding_backward(rows(3)[None], IDS[:1], 4, sparse=True, dropout_p=1.0, seed=0)
    assert found.tolist() == [] and values.shape == (0, 5)
    assert torch.equal(
        tg.embedding_backward(rows(3)[None], IDS[:1], 4, dropout_p=1.0, seed=0), torch.zeros_like(rows(4))
    )


def test_the_argument_that_is_no_tensor_is_named():
    ids = torch.tensor([1, 2])
    with pytest.raises(TypeError, match="weight must be a torch tensor, got a float32 array.*not both"):
        tg.embedding(ids, np.ones((4, 3), np.float32))
    with pytest.raises(TypeError, match="weight must be a torch tensor, got torch.nn.*: pass the module's weight"):
        tg.embedding(ids, torch.nn.Embedding(4, 3))
