"""What tensors are refused, in the words that arrays are refused with; nothing is written before."""

import re

import numpy as np
import pytest
import tegula as tg
from support import run_python
from test_attention_bad_input import BAD, DV, LK, LQ, B, D, G, H
from torch_support import to_tensor

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.isa_once


def has_a_tensor(value):
    """Whether torch has arrays of this type."""
    return not isinstance(value, np.ndarray) or (value.dtype.kind in "biufc" and value.dtype.itemsize <= 8)


SAME = {
    name: case
    for name, case in BAD.items()
    if all(has_a_tensor(x) for x in case[0].values()) and name not in ("out-read-only", "out-broadcast")
}


@pytest.fixture
def good():
    rng = torch.Generator().manual_seed(0)
    shapes = {"q": (B, H, LQ, D), "k": (B, G, LK, D), "v": (B, G, LK, DV)}
    return {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("change", "error", "said"), SAME.values(), ids=SAME)
def test_bad_input_is_refused(good, change, error, said, grad):
    change = {name: to_tensor(value() if callable(value) else value) for name, value in change.items()}
    if grad:
        good = {name: x.requires_grad_() for name, x in good.items()}
        if "out" in change:
            pytest.skip("refused before")
    else:
        change.setdefault("out", torch.full((B, H, LQ, DV), 42.0))
    with pytest.raises(error) as caught:
        tg.attention(**(good | change))
    for either in said:
        words = "|".join(re.escape(word) for word in either.split("|"))
        assert re.search(rf"(?<!\w)({words})(?!\w)", str(caught.value)), f"{either!r} is not in {caught.value}"
    if not grad and isinstance(change["out"], torch.Tensor) and "out" not in str(caught.value):
        assert (change["out"] == 42).all()


MIXED = {
    "k": lambda x: {"k": x["k"].numpy()},
    "v": lambda x: {"v": x["v"].numpy()},
    "q": lambda x: {"q": x["q"].numpy()},
    "mask": lambda x: {"mask": np.ones((LQ, LK), bool)},
    "bias": lambda x: {"bias": np.zeros((LQ, LK), "f4")},
    "alibi": lambda x: {"alibi": np.zeros(H)},
    "sinks": lambda x: {"sinks": np.zeros(H)},
    "out": lambda x: {"out": np.zeros((B, H, LQ, DV), "f4")},
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("grad", [False, True])
def test_c80_arrays_and_tensors_do_not_mix(good, name, grad):
    if grad:
        good["v" if name != "v" else "k"].requires_grad_()
    given = good | MIXED[name]({n: x.detach() for n, x in good.items()})
    other = "k" if name == "q" else "q"
    with pytest.raises(TypeError, match=rf"(?s)(?=.*\b{name}\b)(?=.*\b{other}\b)"):
        tg.attention(**given)


@pytest.mark.parametrize("name", ["mask", "bias", "alibi", "sinks", "out"])
def test_c80_nor_tensors_among_arrays(good, name):
    given = MIXED[name](good)
    with pytest.raises(TypeError, match=name):
        tg.attention(*(x.numpy() for x in good.values()), **{n: torch.from_numpy(x) for n, x in given.items()})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ["q", "v"])
def test_tensors_that_no_kernel_reads(good, name, grad):
    x = good[name]
    kinds = {
        "sparse_coo": x.to_sparse(),
        "mkldnn": x.to_mkldnn(),
        "nested": torch.nested.nested_tensor(list(x)),
        "jagged": torch.nested.nested_tensor([y.transpose(0, 1) for y in x], layout=torch.jagged),
        "quantized": torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        "complex64": x.to(torch.complex64),
        "complex64 ": x.to(torch.complex64).conj(),
        "float8": x.to(torch.float8_e4m3fn),
    }
    if grad:
        good["k"].requires_grad_()
    for said, tensor in kinds.items():
        with pytest.raises((TypeError, ValueError), match=f"{name}.*{said.strip()}") as caught:
            tg.attention(**(good | {name: tensor}))
        assert not isinstance(caught.value, NotImplementedError)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("op", ["attention_forward", "attention", "attention_weights", "attention_backward"])
def test_operators_refuse_tensors_that_no_kernel_reads(op, grad):
    for said, x in {
        "nested": torch.nested.nested_tensor([torch.ones(3, 4, 4), torch.ones(3, 4, 4)]),
        "jagged": torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=torch.jagged),
        "sparse_csr": torch.ones(3, 4).to_sparse_csr(),
    }.items():
        x = x.detach().requires_grad_(grad)
        with pytest.raises(TypeError, match=f"is not a plain tensor.*{said}"):
            getattr(torch.ops.tegula, op)(*[x] * (6 if op == "attention_backward" else 3))


OPTIONS = {
    "mask": torch.ones(LQ, LK, dtype=torch.bool),
    "bias": torch.zeros(LK),
    "alibi": torch.zeros(H),
    "sinks": torch.zeros(H),
    "seed": torch.tensor([1]),
    "out": torch.empty(B, H, LQ, DV),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ["q", "k", "v", *OPTIONS])
def test_one_meta_tensor_is_refused(good, name, grad):
    """Its results would be memory that nobody wrote."""
    if grad and name != "out":
        good["v"].requires_grad_()
    given = good | {name: (good | OPTIONS)[name].to("meta")} | ({"dropout_p": 0.5} if name == "seed" else {})
    first = "k is on device 'cpu' but q is on device 'meta'" if name == "q" else f"{name} is on device 'meta'"
    with pytest.raises(TypeError, match=first):
        tg.attention(**given)


@pytest.mark.parametrize("place", range(7))
def test_one_meta_tensor_is_refused_backward(good, place):
    out, lse = tg.attention(**good, return_lse=True)
    given = {"grad_out": out, **good, "out": out, "lse": lse, "grad_lse": lse}
    name = list(given)[place]
    given[name] = given[name].to("meta")
    said = "k is on device 'cpu' but q" if name == "q" else f"^{name}"
    with pytest.raises(TypeError, match=f"{said} is on device 'meta'"):
        tg.attention_backward(**given)


def test_numbers_become_tensors_where_q_is(good):
    good = {name: x.to("meta") for name, x in good.items()}
    more = dict(mask=tg.masks.causal(offset=0), alibi=[0.5] * H, sinks=[0.0] * H, dropout_p=0.5, seed=2**64 - 1)
    out = tg.attention(**good, **more)
    assert out.device.type == "meta" and out.shape == (B, H, LQ, DV)


def test_cuda_tensors_are_refused_by_name_where_there_are_no_kernels(good):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        q = torch.empty(1, 2, 3, 4, device="cuda")
        for call in (tg.attention, lambda *x: tg.attention(*x, return_lse=True)):
            if tg.cuda.is_built():
                found = call(q, q, q)
                assert (found if isinstance(found, torch.Tensor) else found[0]).device == q.device
                continue
            with pytest.raises(TypeError, match="q is on device 'cuda:0', expected 'cpu': this is no CUDA build"):
                call(q, q, q)
        cpu = torch.empty(1, 2, 3, 4)
        with pytest.raises(TypeError, match="k is on device 'cuda:0'"):
            tg.attention(cpu, q, cpu)


def test_distributed_tensors_are_refused(tmp_path):
    run_python(
        f"""
        import pytest, torch, tegula, torch.distributed as dist
        from torch.distributed.tensor import distribute_tensor, init_device_mesh, Shard

        dist.init_process_group("gloo", init_method="file://{tmp_path}/group", rank=0, world_size=1)
        x = torch.ones(2, 3, 5, 8)
        spread = distribute_tensor(x, init_device_mesh("cpu", (1,)), [Shard(0)])
        for given in (spread, spread.detach().requires_grad_()):
            with pytest.raises(Exception) as caught:
                tegula.attention(given, given, given)
            assert "tegula" in str(caught.value) or "DTensor" in str(caught.value), caught.value
        assert torch.equal(tegula.attention(*[spread.to_local()] * 3), x)
        dist.destroy_process_group()
        """
    )


def test_gradients_are_the_same_in_every_process(tmp_path):
    """DistributedDataParallel over two gloo processes: the mean of what each would find alone."""
    run_python(
        f"""
        import torch, tegula, torch.distributed as dist, torch.multiprocessing as mp

        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.project = torch.nn.Linear(16, 48)
                self.sinks = torch.nn.Parameter(torch.zeros(2))

            def forward(self, x):
                q, k, v = self.project(x).unflatten(-1, (3, 2, 8)).unbind(-3)
                mask = tegula.masks.causal()
                return tegula.attention(q, k, v, mask=mask, sinks=self.sinks, layout="blhd").flatten(-2)

        def batch(rank):
            return torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(rank))

        def work(rank):
            dist.init_process_group("gloo", init_method="file://{tmp_path}/ddp", rank=rank, world_size=2)
            block = torch.nn.parallel.DistributedDataParallel(Block())
            block(batch(rank)).square().sum().backward()
            alone = Block()
            sum(alone(batch(other)).square().sum() / 2 for other in range(2)).backward()
            for p, r in zip(block.parameters(), alone.parameters()):
                assert torch.allclose(p.grad, r.grad, atol=1e-5), (p.grad, r.grad)
            dist.destroy_process_group()

        processes = [mp.get_context("fork").Process(target=work, args=(rank,)) for rank in range(2)]
        for p in processes:
            p.start()
        for p in processes:
            p.join(60)
        assert [p.exitcode for p in processes] == [0, 0]
        """,
        timeout=90,
    )


@pytest.mark.parametrize("mask", [tg.masks.causal, "causal", True, 5], ids=["function", "text", "bool", "int"])
def test_what_a_mask_may_be(mask):
    q = torch.ones(1, 1, 3, 4)
    with pytest.raises(
        TypeError, match="mask must be one of tegula.masks or a bool tensor, got (function|str|bool|int)"
    ):
        tg.attention(q, q, q, mask=mask)
