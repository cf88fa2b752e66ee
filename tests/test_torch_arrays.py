"""Tensors reach the native module as arrays do: read where they lie, checked, never mixed with arrays."""

import re
import subprocess
import warnings

import numpy as np
import pytest
import tegula as tg
from support import run_python, same_bits
from tegula import _core

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.isa_once

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
NOTHING = dict.fromkeys(("lo", "hi", "dense", "bias", "alibi", "sinks", "scale"))
PLAIN = NOTHING | {"softcap": 0.0, "dropout_p": 0.0, "seed": 0, "layout": "bhld", "threads": 1}


def native(q, k=None, v=None, *, out, lse=False, **options):
    """The native function itself, below every check that Python makes."""
    k, v = q if k is None else k, q if v is None else v
    return _core.attention(q, k, v, out, **(PLAIN | options), lse=lse, weights=False)


def numbers(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


class ByAttributes(torch.Tensor):
    """A tensor that hides its C functions, as every tensor of an older torch does."""

    __dlpack_c_exchange_api__ = None


@pytest.fixture
def q():
    return numbers(2, 3, 5, 8)


@pytest.fixture
def expect(q):
    return torch.from_numpy(tg.attention(q.numpy(), q.numpy(), q.numpy()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter, ByAttributes])
def test_tensors_of_every_float_type_give_the_bits_of_arrays(dtype, kind):
    q, k, v = (numbers(2, 3, n, 8, dtype=dtype) for n in (5, 7, 7))
    out = torch.full_like(q, torch.nan)
    lse = torch.full((2, 3, 5), torch.nan, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    tensors = [x.as_subclass(kind) if kind is ByAttributes else kind(x) for x in (q, k, v)]
    assert native(*tensors, out=out, lse=lse)[0] is out
    if dtype == torch.bfloat16:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        arrays = [x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) for x in (q, k, v, out)]
    else:
        arrays = [x.numpy() for x in (q, k, v, out)]
    out_array, lse_array = tg.attention(*arrays[:3], return_lse=True)
    assert same_bits(arrays[3], out_array) and same_bits(lse.numpy(), lse_array)


INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("kind", [torch.Tensor, ByAttributes])
def test_integers_of_every_type(dtype, kind):
    positions = np.arange(7).astype(dtype)
    out = torch.empty(7, 4)
    tensor = torch.from_numpy(positions).as_subclass(kind)
    _core.positional_encoding(tensor, 4, 10000.0, False, False, None, out, -1)
    assert same_bits(out.numpy(), tg.positional_encoding(positions, 4))


@pytest.mark.parametrize("kind", [torch.Tensor, ByAttributes])
def test_bools(kind):
    visible = torch.from_numpy(np.random.default_rng(0).random((1, 1, 5, 7)) < 0.5)
    lo, hi, runs = _core.mask_scan(visible.as_subclass(kind))
    assert runs == 2 and lo.shape == hi.shape == (2, 1, 1, 5)  # runs of keys in a row, at most
    out = torch.empty(1, 1, 5, 7, dtype=torch.bool)
    _core.mask_fill(out, lo[0], hi[1], visible.as_subclass(kind))
    assert torch.equal(out, visible)


VIEWS = {
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "inner": lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
    "every other": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "narrowed": lambda x: torch.nn.functional.pad(x, (3, 1, 2, 2))[:, :, 2:-2, 3:-1],
    "misaligned": lambda x: torch.frombuffer(
        bytearray(b"." + x.numpy().tobytes()), dtype=x.dtype, offset=1, count=x.numel()
    ).view_as(x),
    "requires grad": lambda x: x.clone().requires_grad_(),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("kind", [torch.Tensor, ByAttributes])
def test_c57_any_strides(q, expect, view, kind):
    strided = view(q).as_subclass(kind)
    assert torch.equal(native(strided, out=torch.empty_like(q)), expect)


def test_c57_expanded(q):
    single = q[:1, :1].expand(2, 3, 5, 8)
    assert torch.equal(native(single, out=torch.empty_like(q)), native(single.contiguous(), out=torch.empty_like(q)))


def test_out_of_any_strides(q, expect):
    for view in ("transposed", "inner", "every other", "narrowed"):
        out = VIEWS[view](torch.full_like(q, torch.nan))
        assert native(q, out=out) is out
        assert torch.equal(out, expect)


@pytest.mark.parametrize("axis", range(4))
def test_empty_tensors(axis):
    shape = [2, 3, 5, 8]
    shape[axis] = 0
    q = torch.empty(shape)
    out, lse = native(q, out=torch.empty_like(q), lse=torch.empty(shape[:3]))
    assert out.shape == q.shape and lse.shape == q.shape[:3]


# ---------------------------------------------------------------------------------------------------
# What cannot be read


def fake(device="cpu"):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(2, 3, 5, 8, device=device)


def functional():
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    with FunctionalTensorMode():
        return FunctionalTensor.to_functional(numbers(2, 3, 5, 8))


def without_storage():
    x = numbers(2, 3, 5, 8)
    x.untyped_storage().resize_(0)
    return x


def quantized():
    return torch.quantize_per_tensor(numbers(2, 3, 5, 8), 0.1, 0, torch.qint8)


def nested(layout):
    return torch.nested.nested_tensor([numbers(3, 5, 8), numbers(3, 4, 8)], layout=layout)


UNREADABLE = {
    "fake": (fake, "not a plain tensor|FakeTensor"),
    "functional": (functional, "not a plain tensor|FunctionalTensor"),
    "without storage": (without_storage, "not a plain tensor"),
    "meta": (lambda: numbers(2, 3, 5, 8).to("meta"), "device 'meta'|'cpu'"),
    "cuda": (lambda: fake("cuda"), "device 'cuda:0'|'cpu'"),
    "sparse": (lambda: numbers(2, 3, 5, 8).to_sparse(), "not a plain tensor|sparse_coo"),
    "csr": (lambda: numbers(5, 8).to_sparse_csr(), "not a plain tensor|sparse_csr"),
    "mkldnn": (lambda: numbers(2, 3, 5, 8).to_mkldnn(), "not a plain tensor|mkldnn"),
    "nested": (lambda: nested(torch.strided), "not a plain tensor|nested"),
    "jagged": (lambda: nested(torch.jagged), "not a plain tensor|jagged"),
    "quantized": (quantized, "not a plain tensor|quantized"),
    "complex": (lambda: numbers(2, 3, 5, 8).to(torch.complex64), "dtype|torch.complex64"),
    "conjugate": (lambda: numbers(2, 3, 5, 8).to(torch.complex64).conj(), "dtype|torch.complex64"),
    "float8": (lambda: numbers(2, 3, 5, 8).to(torch.float8_e4m3fn), "dtype|torch.float8_e4m3fn"),
    "negated": (lambda: torch._neg_view(numbers(2, 3, 5, 8)), "negated|resolve_neg"),
    "imaginary": (lambda: torch.view_as_complex(numbers(2, 3, 5, 8, 2)).conj().imag, "negated|resolve_neg"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("place", ["k", "out"])
@pytest.mark.parametrize(("make", "said"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_plain_memory_is_refused(q, make, said, place, hides, monkeypatch):
    """A wrong sign, a crash or a wrong number would be worse."""
    tensor = make()
    if hides:  # the way of an older torch
        if type(tensor) is torch.Tensor:
            with warnings.catch_warnings():
                try:
                    tensor = tensor.as_subclass(ByAttributes)
                except RuntimeError:
                    pytest.skip("no subclass of such a tensor")
        else:
            monkeypatch.setattr(type(tensor), "__dlpack_c_exchange_api__", None, raising=False)
    out = torch.full_like(q, 42)
    with pytest.raises(TypeError) as caught:
        native(**({"q": q, "k": q, "out": out} | {place: tensor}))
    for words in said.split("|"):
        assert re.search(rf"{place}.*{words}", str(caught.value)), caught.value
    assert (out == 42).all()


def test_distributed_tensors_are_refused(tmp_path):
    run_python(
        f"""
        import torch, torch.distributed as dist
        from torch.distributed.tensor import distribute_tensor, init_device_mesh, Shard
        from test_torch_arrays import native

        dist.init_process_group("gloo", init_method="file://{tmp_path}/group", rank=0, world_size=1)
        x = torch.ones(2, 3, 5, 8)
        spread = distribute_tensor(x, init_device_mesh("cpu", (1,)), [Shard(0)])
        try:
            native(spread, out=torch.empty_like(x))
        except TypeError as error:
            assert "q is not a plain tensor" in str(error) and "DTensor" in str(error), error
        else:
            raise AssertionError("no error")
        dist.destroy_process_group()
        """
    )


@pytest.mark.parametrize("hides", [False, True])
def test_tensors_inside_a_transform_are_refused(q, hides):
    def inside(x):
        return native(x.as_subclass(ByAttributes) if hides else x, out=torch.empty(5, 8))

    with pytest.raises(TypeError, match="q is not a plain tensor"):
        torch.func.vmap(inside)(q[:, 0])


@pytest.mark.parametrize("name", ["q", "k", "v", "out", "lse", "bias", "dense"])
def test_c80_arrays_and_tensors_do_not_mix(q, name):
    pairs = (2, 3, 5, 5)
    tensors = {"q": q, "k": q, "v": q, "out": torch.empty_like(q), "lse": torch.empty(2, 3, 5)}
    tensors |= {"bias": torch.zeros(pairs), "dense": torch.ones(pairs, dtype=torch.bool)}
    native(**tensors)
    other = "k" if name == "q" else "q"
    with pytest.raises(TypeError, match=f"(?s)(?=.*{name}).*{other}.*not both"):
        native(**(tensors | {name: tensors[name].numpy()}))


def test_an_output_over_an_input_is_refused(q):
    with pytest.raises(ValueError, match="out shares memory with q"):
        native(q, out=q)
    rows = numbers(10, 8)
    even, odd = rows[::2], rows[1::2]
    expect = native(even.clone(), out=torch.empty_like(even))
    assert torch.equal(native(even, out=odd), expect)  # interleaved, no element in common
    with pytest.raises(ValueError, match="out shares memory with q"):
        native(even, out=rows[2:7])


def test_other_outputs_that_do_not_fit(q):
    with pytest.raises(ValueError, match="out.*stride 0"):
        native(q, out=torch.empty(8).expand(2, 3, 5, 8))
    with pytest.raises(ValueError, match=r"out.*\(2, 3, 5, 8\).*\(2, 3, 5, 7\)"):
        native(q, out=torch.empty(2, 3, 5, 7))
    with pytest.raises(TypeError, match="out.*float32.*float64"):
        native(q, out=torch.empty(2, 3, 5, 8, dtype=torch.float64))
    with pytest.raises(ValueError, match="out must be aligned"):
        native(q, out=VIEWS["misaligned"](q))
    with pytest.raises(TypeError, match="q must be.*list"):
        native([1.0], out=q)


def test_c81_the_module_neither_imports_torch_nor_needs_its_symbols():
    run_python(
        """
        import sys, numpy, tegula
        tegula.attention(*numpy.ones((3, 1, 2, 4), "f4"))
        assert "torch" not in sys.modules
        """
    )
    symbols = subprocess.run(["nm", "-D", _core.__file__], capture_output=True, text=True, check=True).stdout
    assert not re.search("c10|torch|_ZN2at", symbols)


def test_threads_torch_s_setting_comes_after_the_package_s_own(threads):
    assert _core.num_threads(3) == 3
    assert _core.num_threads(-3) == 3
    tg.set_num_threads(2)
    assert _core.num_threads(-3) == 2
    assert _core.num_threads(3) == 3
