"""torch tensors on a GPU: operators, gradients, masks, dropout, streams."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gpu_arrays import REAL

if REAL:
    pytest.skip("these tests are about tensors of a simulated GPU", allow_module_level=True)

import simulated_torch
import tegula as tg
import torch
from simulated_torch import STREAM, Factories, GpuTensor, cpu, current_stream, gpu
from tegula import masks

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
UNIT = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def device():
    """torch's questions about the device are answered, and what is made on "cuda" lies there."""
    with current_stream(), Factories():
        yield


def arrays(dtype, q_len=35, k_len=70, heads=4, kv_heads=2, dim=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (2, heads, q_len, dim), (2, kv_heads, k_len, dim), (2, kv_heads, k_len, dim)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def close(found, expected, dtype):
    """Within a few roundings, of numbers of size 1."""
    a, b = cpu(found).double(), expected.detach().double()
    assert found.dtype == dtype
    assert a.shape == b.shape
    assert float((a - b).abs().max()) <= UNIT[dtype] * max(1.0, float(b.abs().max()))


OPTIONS = {
    "plain": lambda d: {},
    "causal": lambda d: {"mask": masks.causal(align="bottom_right")},
    "window": lambda d: {"mask": masks.window(9, 3, align="top_left")},
    "padding, lengths": lambda d: {"mask": masks.padding([70, 33])},
    "padding, lengths of the device": lambda d: {"mask": masks.padding(d(torch.tensor([70, 33])))},
    "bools": lambda d: {"mask": d(torch.rand(35, 70, generator=torch.Generator().manual_seed(1)) < 0.7)},
    "bias": lambda d: {"bias": d(torch.linspace(-1, 1, 35 * 70).reshape(35, 70))},
    "alibi": lambda d: {"alibi": [0.1, 0.2, 0.3, 0.4]},
    "sinks and softcap": lambda d: {"sinks": d(torch.tensor([0.1, 0.2, 0.3, 0.4])), "softcap": 3.0},
    "dropout": lambda d: {"dropout_p": 0.3, "seed": 2**63 + 5},
    "blhd": lambda d: {},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIONS)
def test_attention_and_its_gradients(name, dtype):
    given = arrays(dtype)
    grad = torch.randn(2, 4, 35, 32, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(dtype)
    results = []
    for on, kind in ((gpu, dtype), (lambda x: x, torch.float64)):
        options = {k: x.to(kind) if k == "bias" else x for k, x in OPTIONS[name](lambda x: x).items()}
        options |= {k: on(x) for k, x in options.items() if isinstance(x, torch.Tensor)}
        if "of the device" in name:
            options = OPTIONS[name](on)
        leaves = [on(x.to(kind)).requires_grad_() for x in given]
        inputs = leaves
        if name == "blhd":
            options, inputs = {"layout": "blhd"}, [x.transpose(1, 2) for x in leaves]
        out = tg.attention(*inputs, **options)
        if name == "blhd":
            out = out.transpose(1, 2)
        out.backward(on(grad.to(kind)))
        results.append([out, *(x.grad for x in leaves)])
    for found, expected in zip(*results, strict=True):
        assert isinstance(found, GpuTensor)
        close(found, expected, dtype)


def test_gradients_of_bias_and_sinks():
    given = arrays(torch.float32)
    results = []
    for on in (gpu, lambda x: x):
        q, k, v = map(on, given)
        bias = on(torch.linspace(-1, 1, 4 * 70).reshape(4, 1, 70)).requires_grad_()
        sinks = on(torch.tensor([0.1, 0.2, 0.3, 0.4])).requires_grad_()
        tg.attention(q, k, v, bias=bias, sinks=sinks).square().sum().backward()
        results.append((bias.grad, sinks.grad))
    for found, expected in zip(*results, strict=True):
        close(found, expected, torch.float32)


def test_the_drop_in():
    q, k, v = arrays(torch.bfloat16, kv_heads=4)
    for options in ({"is_causal": True}, {"scale": 0.2}):
        found = tg.torch.scaled_dot_product_attention(*map(gpu, (q, k, v)), **options)
        expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), **options)
        close(found, expected, torch.bfloat16)


def test_packed_rows():
    q, k, v = (torch.randn(60, 2, 32, generator=torch.Generator().manual_seed(i)) for i in range(3))
    borders = torch.tensor([0, 20, 20, 60], dtype=torch.int32)
    found = tg.torch.varlen_attention(*map(gpu, (q, k, v)), gpu(borders), gpu(borders), causal=True)
    close(found, tg.torch.varlen_attention(q, k, v, borders, borders, causal=True), torch.float32)


def test_embedding_and_its_gradients():
    weight, table = torch.randn(11, 24), torch.randn(9, 24)
    ids = torch.randint(0, 11, (3, 7))
    results = []
    for on in (gpu, lambda x: x):
        rows, places = on(weight).requires_grad_(), on(table).requires_grad_()
        options = {"scale": 2.0, "padding_idx": 0, "dropout_p": 0.2, "seed": 4, "position_table": places}
        out = tg.embedding(on(ids), rows, **options)
        out.square().sum().backward()
        results.append((out, rows.grad, places.grad))
    for found, expected in zip(*results, strict=True):
        close(found, expected, torch.float32)


def test_embedding_backward_forms():
    grad, ids = torch.randn(3, 7, 24), torch.randint(0, 50, (3, 7))
    dense = tg.embedding_backward(gpu(grad), gpu(ids), 50)
    assert torch.equal(cpu(dense), tg.embedding_backward(grad, ids, 50))
    found, rows = tg.embedding_backward(gpu(grad), gpu(ids), 50, sparse=True)
    expected = tg.embedding_backward(grad, ids, 50, sparse=True)
    assert torch.equal(cpu(found), expected[0])
    assert torch.equal(cpu(rows), expected[1])
    out = gpu(torch.ones(50, 24))
    assert tg.embedding_backward(gpu(grad), gpu(ids), 50, out=out) is out
    assert torch.allclose(cpu(out), tg.embedding_backward(grad, ids, 50) + 1)


def test_positions():
    where = torch.tensor([[0, 5, -3], [100, 7, 9]])
    found = tg.positional_encoding(gpu(where), 33, dtype=torch.float32)
    close(found, tg.positional_encoding(where, 33), torch.float32)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16])
def test_masks_are_written_out_where_their_tensors_are(dtype):
    lengths = torch.tensor([3, 9])
    for make in (lambda n: masks.padding(n), lambda n: masks.padding(n) & masks.causal(align="top_left")):
        found, expected = make(gpu(lengths)), make(lengths)
        if dtype == torch.bool:
            assert torch.equal(cpu(found.dense(7, 9)), expected.dense(7, 9))
        else:
            name = str(dtype).removeprefix("torch.")
            assert torch.equal(cpu(found.additive(7, 9, name)), expected.additive(7, 9, name))


def test_modules():
    torch.manual_seed(0)
    layer = tg.torch.nn.MultiHeadAttention(32, 4)
    x = torch.randn(2, 9, 32)
    expected = layer(x, x, x, mask=masks.causal())
    for name, parameter in list(layer.named_parameters()):
        owner = layer.get_submodule(name.rpartition(".")[0])
        owner.register_parameter(name.rpartition(".")[2], torch.nn.Parameter(gpu(parameter.detach())))
    there = gpu(x)
    close(layer(there, there, there, mask=masks.causal()), expected, torch.float32)


def test_dropout_repeats_after_a_seed_and_differs_without():
    x = gpu(torch.ones(64, 64))
    drop = tg.torch.nn.Dropout(0.5)
    torch.manual_seed(3)
    first, second = cpu(drop(x)), cpu(drop(x))
    torch.manual_seed(3)
    assert torch.equal(cpu(drop(x)), first)
    assert not torch.equal(first, second)
    assert 0.4 < (first == 0).double().mean() < 0.6


def test_autocast():
    q, k, v = arrays(torch.float32)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = tg.attention(*map(gpu, (q, k, v)))
    assert out.dtype == torch.bfloat16


def test_second_derivatives():
    q, k, v = (gpu(x).requires_grad_() for x in arrays(torch.float64, 5, 6, heads=2, kv_heads=2, dim=4))
    out = tg.attention(q, k, v)
    (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    dq.square().sum().backward()
    given = [x.requires_grad_() for x in arrays(torch.float64, 5, 6, heads=2, kv_heads=2, dim=4)]
    (expected,) = torch.autograd.grad(tg.attention(*given).square().sum(), given[0], create_graph=True)
    expected.square().sum().backward()
    for x, y in zip((q, k, v), given, strict=True):
        close(x.grad, y.grad, torch.float64)


# ---------------------------------------------------------------------------------------------------
# How calls run


def test_work_goes_to_the_current_stream_and_waits_for_nothing(gpu):
    q, k, v = map(simulated_torch.gpu, arrays(torch.bfloat16))
    tg.attention(q, k, v)
    gpu.forget()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = tg.attention(*leaves, mask=masks.causal(align="bottom_right"), dropout_p=0.1, seed=3)
    out.backward(torch.ones_like(out))
    tg.embedding(simulated_torch.gpu(torch.tensor([1, 2])), simulated_torch.gpu(torch.randn(5, 8)))
    assert {launch.stream for launch in gpu.launches} == {STREAM}
    for waiting in (
        "cuStreamSynchronize",
        "cuMemcpyDtoH_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemAlloc_v2",
        "cuModuleLoadData",
    ):
        assert gpu.calls(waiting) == 0, waiting


def test_tensor_cores_are_used_where_they_can_be(gpu):
    for dtype, kind in ((torch.bfloat16, "mma_bfloat16"), (torch.float16, "mma_float16"), (torch.float32, "simt")):
        gpu.forget()
        tg.attention(*map(simulated_torch.gpu, arrays(dtype)))
        assert all(kind in launch.kernel for launch in gpu.launches)
        assert gpu.launches


def test_the_second_device():
    given = [simulated_torch.gpu(x, 1) for x in arrays(torch.bfloat16)]
    out = tg.attention(*given)
    assert out.device == torch.device("cuda:1")
    close(out, tg.attention(*(x.double() for x in arrays(torch.bfloat16))), torch.bfloat16)


@pytest.mark.parametrize("other", ["cpu", "cuda:1"])
def test_devices_do_not_mix(other):
    q, k, v = arrays(torch.float32)
    k = k if other == "cpu" else simulated_torch.gpu(k, 1)
    with pytest.raises(TypeError, match=rf"k is on device '{other}'"):
        tg.attention(simulated_torch.gpu(q), k, simulated_torch.gpu(v))


def test_graphs_draw_anew_at_each_replay(gpu):
    """A captured call reads its seed, and its ids, when it is replayed."""
    q, k, v = map(simulated_torch.gpu, arrays(torch.bfloat16))
    seed = simulated_torch.gpu(torch.tensor([5]))
    tg.attention(q, k, v, dropout_p=0.5, seed=seed)
    with gpu.pretending(capturing=1):
        out = tg.attention(q, k, v, mask=masks.causal(align="bottom_right"), dropout_p=0.5, seed=seed)
    results = []
    for number in (5, 6):
        seed.held.fill_(number)
        gpu.replay()
        results.append(cpu(out))
    options = {"mask": masks.causal(align="bottom_right"), "dropout_p": 0.5}
    for number, found in zip((5, 6), results, strict=True):
        assert torch.equal(cpu(tg.attention(q, k, v, seed=number, **options)), found)
    assert not torch.equal(*results)


def test_config_tells_of_the_gpu():
    found = tg.config()["cuda"]
    assert found["built"]
    assert found["visible"]
    assert len(found["devices"]) == 2
    assert tg.cuda.is_available()
    assert tg.cuda.devices()[0]["capability"] == (8, 0)


def test_scale_of_a_head_of_no_size():
    q, k, v = (simulated_torch.gpu(torch.ones(1, 1, n, d)) for n, d in ((2, 0), (4, 0), (4, 3)))
    assert torch.equal(cpu(tg.attention(q, k, v)), torch.ones(1, 1, 2, 3))
    assert math.isclose(np.log(4), float(cpu(tg.attention(q, k, v, return_lse=True)[1])[0, 0, 0]), rel_tol=1e-6)
