"""Embedding and positional encodings of tensors: the arrays' bits, gradients, and torch's ways of calling."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tegula as tg
from support import same_bits

torch = pytest.importorskip("torch")
import tegula.torch as tt  # noqa: E402

pytestmark = pytest.mark.isa_once

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]


@pytest.fixture(autouse=True)
def numbers():
    torch.manual_seed(0)


def array_of(x):
    """The tensor's memory as an array."""
    if x.dtype == torch.bfloat16:
        return x.detach().view(torch.uint16).numpy().view(pytest.importorskip("ml_dtypes").bfloat16)
    return x.detach().numpy()


def options_of(dtype=torch.float64, *, p=0.0):
    """ids, weight and the options of a call that uses everything."""
    ids = torch.tensor([[4, 0, 2, 6, 4], [1, 3, 3, 3, 2], [5, 2, 0, 1, 4]])
    weight = torch.randn(7, 20, dtype=dtype)
    options = {
        "padding_idx": 2, "pad_output": "zero", "ignore_id": 6, "scale": 1.5,
        "positions": torch.tensor([8, 1, 1, 0, 5]), "position_table": torch.randn(9, 20, dtype=dtype),
        "segments": torch.tensor([[0], [1], [0]]), "segment_table": torch.randn(2, 20, dtype=dtype),
        "dropout_p": p, "seed": 2**63 + 5,
    }  # fmt: skip
    return ids, weight, options


def arrays_of(options):
    return {name: array_of(x) if isinstance(x, torch.Tensor) else x for name, x in options.items()}


# ---- the same bits as arrays


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_the_bits_of_arrays(dtype, p):
    ids, weight, options = options_of(dtype, p=p)
    for function in (tg.embedding, tt.embedding):
        got = function(ids, weight, **options)
        assert got.dtype == dtype and not got.requires_grad
        assert same_bits(array_of(got), tg.embedding(array_of(ids), array_of(weight), **arrays_of(options)))
    sinusoidal = tg.embedding(ids, weight, position_table="sinusoidal", positions=ids / 3)
    assert same_bits(
        array_of(sinusoidal),
        tg.embedding(array_of(ids), array_of(weight), position_table="sinusoidal", positions=array_of(ids / 3)),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_the_gradient_s_bits_are_those_of_arrays(dtype, p):
    ids = torch.randint(0, 40, (6, 33))
    weight = torch.randn(40, 50, dtype=dtype, requires_grad=True)
    cotangent = torch.randn(6, 33, 50).to(dtype)
    options = {"padding_idx": -3, "scale": 0.7, "dropout_p": p, "seed": 11}
    tg.embedding(ids, weight, **options).backward(cotangent)
    expected = tg.embedding_backward(array_of(cotangent), array_of(ids), 40, **options)
    assert same_bits(array_of(weight.grad), expected)
    assert same_bits(array_of(tg.embedding_backward(cotangent, ids, 40, **options)), expected)
    found, rows = tg.embedding_backward(cotangent, ids, 40, sparse=True, **options)
    assert found.dtype == torch.int64 and torch.equal(weight.grad[found], rows)
    held = torch.ones_like(weight.detach())
    assert tg.embedding_backward(cotangent, ids, 40, out=held, **options) is held
    again = np.ones_like(expected)
    assert same_bits(
        array_of(held), tg.embedding_backward(array_of(cotangent), array_of(ids), 40, out=again, **options)
    )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_C14_every_integer_type(dtype):
    ids = np.array([[4, 0, 2], [1, 3, 3]]).astype(dtype)
    tensor, weight = torch.from_numpy(ids), torch.randn(5, 6, requires_grad=True)
    table = torch.randn(5, 6, requires_grad=True)
    options = {"padding_idx": 0, "pad_output": "zero", "positions": tensor, "position_table": table,
               "segments": tensor, "segment_table": table}  # fmt: skip
    wide = {**options, "positions": tensor.long(), "segments": tensor.long()}
    out, expected = tg.embedding(tensor, weight, **options), tg.embedding(tensor.long(), weight, **wide)
    assert torch.equal(out, expected)
    grads = torch.autograd.grad(out.sum(), (weight, table))
    assert all(map(torch.equal, grads, torch.autograd.grad(expected.sum(), (weight, table))))


def test_lists_and_ints_are_ids_too():
    weight = torch.randn(5, 6)
    assert torch.equal(tg.embedding([[4, 0], [1, 1]], weight), weight[torch.tensor([[4, 0], [1, 1]])])
    assert torch.equal(tg.embedding(3, weight), weight[3])
    assert tg.embedding([], weight).shape == (0, 6)
    got = tg.embedding([1, 2], weight, positions=[0.5, 7.0], position_table="sinusoidal")
    assert torch.equal(got, weight[1:3] + tg.positional_encoding(torch.tensor([0.5, 7.0]), 6))


def test_out():
    ids, weight, options = options_of(torch.float32, p=0.2)
    out = torch.full((3, 5, 40), torch.nan)[..., ::2]
    assert tg.embedding(ids, weight, out=out, **options) is out
    assert torch.equal(out, tg.embedding(ids, weight, **options))
    with pytest.raises(RuntimeError, match="out= has no gradient"):
        tg.embedding(ids, weight.requires_grad_(), out=out)
    with torch.no_grad():
        tg.embedding(ids, weight, out=out)
    with pytest.raises(RuntimeError, match="sparse=True has no gradient"):
        tg.embedding_backward(torch.ones(2, 3, requires_grad=True), [0, 1], 4, sparse=True)


# ---- gradients


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("positions", ["given", "counted"])
def test_gradcheck(p, positions):
    ids, weight, options = options_of(p=p)
    if positions == "counted":
        options["positions"] = None

    def function(weight, table, segment_table):
        return tt.embedding(ids, weight, **{**options, "position_table": table, "segment_table": segment_table})

    tables = [x.requires_grad_() for x in (weight, options["position_table"], options["segment_table"])]
    assert torch.autograd.gradcheck(function, tables, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, tables, check_batched_grad=True)


def test_gradcheck_of_the_gradient():
    ids = torch.randint(0, 5, (3, 4))
    grad = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)

    def function(grad):
        return tt.embedding_backward(grad, ids, 5, padding_idx=1, scale=2.0, dropout_p=0.3, seed=1)

    assert torch.autograd.gradcheck(function, grad, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, grad)


def test_only_what_is_needed_has_a_gradient():
    ids, weight, options = options_of(torch.float32)
    options["segment_table"].requires_grad_()
    tg.embedding(ids, weight, **options).sum().backward()
    assert options["segment_table"].grad.abs().sum() > 0 and weight.grad is None
    with torch.no_grad():
        assert not tg.embedding(ids, weight, **options).requires_grad


@pytest.mark.parametrize("table_dtype", DTYPES)
def test_a_table_of_another_type_has_a_gradient_of_its_own_type(table_dtype):
    ids, weight, options = options_of(torch.bfloat16)
    for name in ("position_table", "segment_table"):
        options[name] = options[name].to(table_dtype).requires_grad_()
    weight.requires_grad_()
    tg.embedding(ids, weight, **options).sum().backward()
    assert weight.grad.dtype == torch.bfloat16
    # positions 1, 1 of two rows see 2 + 3 ids that are neither the pad nor ignored
    assert options["position_table"].grad.dtype == table_dtype
    assert options["position_table"].grad[:, 0].tolist() == [2, 4, 0, 0, 0, 2, 0, 0, 3]
    assert options["segment_table"].grad[:, 0].tolist() == [7, 4]


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_against_torch_s_own(padding_idx):
    ids, reference = torch.randint(0, 9, (4, 7)), torch.randn(9, 12, dtype=torch.float64, requires_grad=True)
    weight = reference.detach().clone().requires_grad_()
    out = torch.nn.functional.embedding(ids, reference, padding_idx=padding_idx)
    got = tg.embedding(ids, weight, padding_idx=padding_idx)
    assert torch.equal(got, out)
    cotangent = torch.randn_like(out)
    for result in (got, out):
        result.backward(cotangent)
    torch.testing.assert_close(weight.grad, reference.grad)


def test_positions_that_require_grad_are_refused():
    positions = torch.rand(5, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"positions requires grad.*detach"):
        tg.embedding(
            torch.zeros(5, dtype=torch.int64), torch.ones(2, 4), positions=positions, position_table="sinusoidal"
        )
    with pytest.raises(RuntimeError, match=r"positions requires grad.*detach"):
        tg.positional_encoding(positions, 4)
    with pytest.raises(RuntimeError, match="positions requires grad"):
        torch.ops.tegula.positional_encoding(positions, 4, 10000.0, False, False, torch.float32)
    with pytest.raises(RuntimeError, match="positions requires grad"):
        torch.ops.tegula.embedding(
            torch.zeros(5, dtype=torch.int64), torch.ones(2, 4), positions=positions, sinusoidal=True
        )
    with pytest.raises(RuntimeError, match="positions requires grad"):
        torch.func.jvp(lambda x: tg.positional_encoding(x, 4), (positions.detach(),), (positions.detach(),))
    with torch.no_grad():
        assert tg.positional_encoding(positions, 4).shape == (5, 4)
    assert tg.positional_encoding(positions.detach(), 4).shape == (5, 4)


# ---- torch.func


def test_transforms():
    ids, weight, options = options_of()

    def plain(weight):
        return tt.embedding(ids, weight, **options)

    def composed(weight):  # the same of torch's own operations
        rows = weight[torch.where(ids == 6, 0, ids)] * 1.5 + options["position_table"][options["positions"]]
        rows = rows + options["segment_table"][options["segments"].expand(3, 5)]
        return rows.masked_fill(((ids == 2) | (ids == 6))[..., None], 0.0)

    tangent = torch.randn_like(weight)
    torch.testing.assert_close(
        torch.func.jvp(plain, (weight,), (tangent,)), torch.func.jvp(composed, (weight,), (tangent,))
    )
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(plain)(weight), transform(composed)(weight))
    squares = [lambda w, f=f: (f(w) ** 2).sum() for f in (plain, composed)]
    torch.testing.assert_close(*(torch.func.grad(f)(weight) for f in squares))
    torch.testing.assert_close(*(torch.func.hessian(f)(weight) for f in squares))


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize(
    "dims", [d for d in itertools.product([0, 1, None], repeat=3) if any(x is not None for x in d)]
)
def test_vmap(dims, p):
    """Over ids, positions and the table, each or not."""
    size, dim_ids, dim_positions, dim_weight = 4, *dims

    def mapped(x, dim):
        return x if dim is None else torch.stack([x.roll(i, 0) for i in range(size)], dim)

    ids, positions = mapped(torch.randint(0, 7, (3, 5)), dim_ids), mapped(torch.randint(0, 9, (3, 1)), dim_positions)
    weight, table = mapped(torch.randn(7, 6), dim_weight), torch.randn(9, 6)

    def function(ids, positions, weight):
        return tt.embedding(ids, weight, positions=positions, position_table=table, dropout_p=p, seed=3)

    def select(x, dim, i):
        return x if dim is None else x.select(dim, i)

    got = torch.vmap(function, in_dims=dims)(ids, positions, weight)
    expected = [
        function(select(ids, dim_ids, i), select(positions, dim_positions, i), select(weight, dim_weight, i))
        for i in range(size)
    ]
    assert torch.equal(got, torch.stack(expected))


def test_vmap_over_single_ids():
    """Each is a row of its own, at position 0."""
    ids, weight = torch.arange(5), torch.randn(5, 6)
    got = torch.vmap(lambda i: tt.embedding(i, weight, position_table="sinusoidal"))(ids)
    assert torch.equal(got, weight + tg.positional_encoding(torch.tensor([0]), 6))
    rows = torch.vmap(lambda x: tg.positional_encoding(x, 6), in_dims=1)(torch.rand(3, 4))
    assert rows.shape == (4, 3, 6)


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_vmap_of_the_gradient(p):
    ids, grad = torch.randint(0, 7, (4, 3, 5)), torch.randn(3, 4, 5, 6)
    for in_dims in ((1, 0), (1, None), (None, 0)):
        g, i = grad if in_dims[0] == 1 else grad[:, 0], ids if in_dims[1] == 0 else ids[0]
        got = torch.vmap(lambda g, i: tt.embedding_backward(g, i, 7, dropout_p=p, seed=2), in_dims=in_dims)(g, i)
        for n in range(4):
            single = g[:, n] if in_dims[0] == 1 else g, i[n] if in_dims[1] == 0 else i
            assert torch.equal(got[n], tt.embedding_backward(*single, 7, dropout_p=p, seed=2))


# ---- compile, export, autocast, opcheck


OPERATORS = ["embedding", "embedding_forward", "embedding_backward", "positional_encoding"]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_opcheck(name, dtype, p):
    ids, weight, o = options_of(dtype, p=p)
    seed = torch.tensor([5]) if p else None
    if name == "positional_encoding":
        samples = [(ids, 7, 10000.0, False, False, dtype), (ids / 3, 4, 100.0, True, True, torch.float32)]
    elif name == "embedding_backward":
        samples = [(torch.randn(3, 5, 20).to(dtype).requires_grad_(), ids, 7, 2, 6, 1.5, seed, p)]
    else:
        grads = name == "embedding"
        tables = [x.requires_grad_(grads) for x in (weight, o["position_table"], o["segment_table"])]
        samples = [
            (ids, tables[0], 2, True, 6, 1.5, o["positions"], tables[1], False, o["segments"], tables[2], seed, p),
            (ids.int(), tables[0], -1, False, None, 1.0, None, None, True, None, None, seed, p),
            (ids[0, 0], tables[0]),
        ]
    for sample in samples:
        torch.library.opcheck(getattr(torch.ops.tegula, name).default, sample)


def test_every_operator_is_checked():
    mine = [name for name in dir(torch.ops.tegula) if name.startswith(("embedding", "positional"))]
    assert set(mine) == set(OPERATORS)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sinusoidal", [False, True])
def test_compile(dynamic, sinusoidal):
    def function(ids, weight, table, seed):
        rows = tg.embedding(
            ids, weight, padding_idx=2, pad_output="zero", scale=2.0,
            position_table="sinusoidal" if sinusoidal else table, dropout_p=0.25, seed=seed,
        )  # fmt: skip
        return rows.sin() + tg.positional_encoding(torch.arange(ids.shape[1]), weight.shape[1])

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for batch, length, rows in ((2, 5, 7), (3, 9, 7), (4, 6, 11)):
        ids = torch.randint(0, rows, (batch, length))
        tensors = [torch.randn(n, 12, requires_grad=True) for n in (rows, 16)]
        wanted = tensors if not sinusoidal else tensors[:1]
        results = [f(ids, *tensors, torch.tensor([batch])) for f in (function, compiled)]
        assert torch.equal(*results)
        grads = [torch.autograd.grad(out.sum(), wanted) for out in results]
        assert all(map(torch.equal, *grads))


def test_export():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(9, 12))

        def forward(self, ids):
            return tg.embedding(ids, self.weight, scale=2.0, position_table="sinusoidal")

    layer, ids = Layer(), torch.randint(0, 9, (2, 5))
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    program = torch.export.export(layer, (ids,), dynamic_shapes={"ids": dims})
    for shape in ((2, 5), (4, 3)):
        ids = torch.randint(0, 9, shape)
        assert torch.equal(program.module()(ids), layer(ids))


def test_autocast_leaves_the_table_s_type():
    """As it does for torch's own: casting a table costs more than reading some rows."""
    ids, weight = torch.tensor([1, 0, 1]), torch.randn(3, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out, own = tg.embedding(ids, weight), torch.nn.functional.embedding(ids, weight)
    assert out.dtype == own.dtype == torch.float32 and torch.equal(out, own)
    out.sum().backward()
    assert weight.grad.dtype == torch.float32


def test_fake_and_meta_tensors():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        ids, weight = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(5, 4, requires_grad=True)
        out = tg.embedding(ids, weight, position_table="sinusoidal")
        assert out.shape == (2, 3, 4)
        (grad,) = torch.autograd.grad(out.sum(), weight)
        assert grad.shape == (5, 4)
        with pytest.raises(ValueError, match=r"position_table.*3 elements.*4"):
            tg.embedding(ids, weight, position_table=torch.zeros(9, 3))
    meta = tg.embedding(torch.zeros(2, 3, dtype=torch.int64, device="meta"), torch.zeros(5, 4, device="meta"))
    assert meta.shape == (2, 3, 4) and meta.device.type == "meta"


# ---- errors


def test_C10_C12_ids_outside_the_table():
    weight = torch.ones(5, 2, requires_grad=True)
    with pytest.raises(IndexError, match=r"id 7 at ids\[1, 0\] is outside \[0, 5\)"):
        tg.embedding(torch.tensor([[0, 1], [7, 2]]), weight)
    with pytest.raises(IndexError, match=r"position 4 at positions\[1\] is outside \[0, 4\)"):
        tg.embedding(torch.tensor([0, 1]), weight, positions=torch.tensor([0, 4]), position_table=torch.ones(4, 2))
    with pytest.raises(IndexError, match=rf"id {10**17} at ids\[0\] is outside \[0, 0\)"):
        tg.embedding_backward(torch.ones(1, 2), torch.tensor([10**17]), 0)
    with pytest.raises(IndexError, match=r"id -1 at ids\[0\]"):
        torch.ops.tegula.embedding_backward(torch.ones(1, 2), torch.tensor([-1]), 5)
    out = tg.embedding(torch.tensor([0]), weight)
    assert out.shape == (1, 2)


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (TypeError, "ids.*float32", {"ids": torch.zeros(3)}),
        (TypeError, "ids.*bool", {"ids": torch.zeros(3, dtype=torch.bool)}),
        (TypeError, "ids.*int64 array.*not both", {"ids": np.zeros(3, int)}),
        (TypeError, "weight.*int64", {"weight": torch.zeros(5, 4, dtype=torch.int64)}),
        (TypeError, "weight.*complex64", {"weight": torch.zeros(5, 4, dtype=torch.complex64)}),
        (ValueError, r"weight must have shape \(V, D\), got \(5,\)", {"weight": torch.zeros(5)}),
        (TypeError, "position_table.*float64 array", {"position_table": np.zeros((9, 4))}),
        (TypeError, "segment_table.*list", {"segments": [0, 1, 0], "segment_table": [[0.0]]}),
        (ValueError, "length 3 .*only 2 rows", {"position_table": torch.zeros(2, 4)}),
        (ValueError, "positions need a position_table", {"positions": torch.zeros(3, dtype=torch.int64)}),
        (TypeError, "positions.*float32", {"positions": torch.zeros(3), "position_table": torch.zeros(9, 4)}),
        (ValueError, r"segments.*\(2,\).*\(3,\)", {"segments": [0, 1], "segment_table": torch.zeros(2, 4)}),
        (ValueError, "segments must come with segment_table", {"segments": [0, 1, 0]}),
        (ValueError, r"padding_idx 5 is outside \[-5, 5\)", {"padding_idx": 5}),
        (ValueError, "dropout_p=0.1 needs a seed", {"dropout_p": 0.1}),
        (TypeError, "seed.*float32 tensor", {"dropout_p": 0.1, "seed": torch.tensor([1.0])}),
        (TypeError, "out.*float32 array", {"out": np.zeros((3, 4), np.float32)}),
        (ValueError, r"out must have shape \(3, 4\), got \(3, 5\)", {"out": torch.zeros(3, 5)}),
        (TypeError, "weight.*sparse", {"weight": torch.zeros(5, 4).to_sparse()}),
        (
            TypeError,
            "weight.*negated|weight.*resolve_neg",
            {"weight": torch._neg_view(torch.ones(5, 4)), "out": torch.zeros(3, 4)},
        ),
    ],
)
def test_bad_input(error, text, arguments):
    with pytest.raises(error, match=text):
        tt.embedding(**{"ids": torch.tensor([0, 1, 4]), "weight": torch.ones(5, 4), **arguments})


def test_a_negated_view_has_the_right_sign():
    weight = torch.randn(5, 4)
    assert torch.equal(tg.embedding([1, 2], torch._neg_view(weight)), -weight[1:3])


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (TypeError, "positions.*bool", {"positions": torch.zeros(3, dtype=torch.bool)}),
        (TypeError, "positions.*complex", {"positions": torch.zeros(3, dtype=torch.complex64)}),
        (TypeError, "positions.*float64 array", {"positions": np.zeros(3)}),
        (ValueError, "positions.*-1", {"positions": -1}),
        (TypeError, "dtype.*int64", {"dtype": torch.int64}),
        (TypeError, "dtype.*nothing", {"dtype": "nothing"}),
        (ValueError, "dim.*-1", {"dim": -1}),
        (ValueError, "base.*0", {"base": 0.0}),
        (ValueError, "layout.*'both'", {"layout": "both"}),
        (TypeError, "out.*float32.*float64", {"out": torch.zeros(3, 4, dtype=torch.float64)}),
    ],
)
def test_bad_positions(error, text, arguments):
    with pytest.raises(error, match=text):
        tt.positional_encoding(**{"positions": torch.arange(3), "dim": 4, **arguments})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["interleaved", "split"])
@pytest.mark.parametrize("spacing", ["paper", "inclusive"])
def test_positional_encoding_has_the_bits_of_arrays(dtype, layout, spacing):
    name = str(dtype).removeprefix("torch.")
    if dtype == torch.bfloat16:
        pytest.importorskip("ml_dtypes")
    options = {"base": 500.0, "layout": layout, "spacing": spacing}
    for positions in (torch.arange(9), torch.rand(2, 3) * 100, torch.tensor(3, dtype=torch.uint8)):
        expected = tg.positional_encoding(array_of(positions), 11, dtype=name, **options)
        assert same_bits(array_of(tg.positional_encoding(positions, 11, dtype=dtype, **options)), expected)
        out = torch.empty(*positions.shape, 11, dtype=dtype)
        assert tg.positional_encoding(positions, 11, dtype=name, out=out, **options) is out
        assert same_bits(array_of(out), expected)
    assert torch.equal(tt.positional_encoding(5, 6), tt.positional_encoding(torch.arange(5), 6))
