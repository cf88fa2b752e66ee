"""Modules through their lives: state dicts, types, copies, pickles, the meta device, sharding."""

import copy
import io
import pickle
import socket

import pytest
import tegula as tg

torch = pytest.importorskip("torch")
nn = tg.torch.nn
tnn = torch.nn

pytestmark = pytest.mark.isa_once

D, H, L = 16, 2, 5
IDS = torch.tensor([[1, 2, 3, 4, 0]])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Model(tnn.Module):
    """Every module of the package that has parameters, or positions."""

    def __init__(self, dropout=0.1):
        super().__init__()
        self.words = nn.TransformerEmbedding(10, D, 100, dropout)
        self.other = nn.EmbeddingLayer(10, D)
        self.places = nn.PositionalEncoding(D)
        self.encoder = nn.TransformerEncoderLayer(D, H, 32, dropout, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(D, H, 32, dropout, batch_first=True)
        self.attention = nn.MultiHeadAttention(D, H, num_kv_heads=1, window=3, dropout=dropout)

    def forward(self, ids):
        memory = self.encoder(self.places(self.words(ids)), is_causal=True)
        return self.attention(self.decoder(self.other(ids), memory))


def same(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(value, b[name]) for name, value in a.items())


def test_c26_no_positions_in_a_state_dict():
    keys = set(Model().state_dict())
    assert {key for key in keys if key.startswith(("words", "other", "places"))} == {
        "words.token_embedding.weight",
        "other.embedding.weight",
    }
    assert all(key.rpartition(".")[2].endswith(("weight", "bias")) for key in keys)
    assert len(keys) == len(list(Model().parameters()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(dtype):
    model = Model().eval()
    exact = model(IDS)
    moved = copy.deepcopy(model).to(dtype)
    out = moved(IDS)
    assert out.dtype == dtype and all(p.dtype == dtype for p in moved.parameters())
    torch.testing.assert_close(out.double(), exact.double(), rtol=0, atol=10 * torch.finfo(dtype).eps + 1e-5)
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in moved.parameters())
    half = copy.deepcopy(model).half()
    assert half.places(torch.zeros(1, 2, D).half()).dtype == torch.float16


def test_copies_and_pickles():
    model = Model().eval()
    expected = model(IDS)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
    for other in copies:
        assert torch.equal(other(IDS), expected)
        with torch.no_grad():
            other.attention.W_q.weight.zero_()
    assert torch.equal(model(IDS), expected)  # nothing is shared


def test_meta_device():
    with torch.device("meta"):
        model = Model().eval()
    assert all(p.device.type == "meta" for p in model.parameters())
    for training in (True, False):  # with dropout, and without
        assert model.train(training)(IDS.to("meta")).shape == (1, L, D)
    filled = Model().eval()
    empty = copy.deepcopy(model).to_empty(device="cpu")
    empty.load_state_dict(filled.state_dict())
    assert torch.equal(empty(IDS), filled(IDS))
    model.load_state_dict(filled.state_dict(), assign=True)
    assert all(isinstance(p, tnn.Parameter) and p.device.type == "cpu" for p in model.parameters())
    assert next(model.parameters()) is not next(filled.parameters())
    assert torch.equal(model.to("cpu")(IDS), filled(IDS))  # nothing was left behind
    empty = model.attention.to_empty(device="cpu")
    empty.reset_parameters()
    assert all(p.isfinite().all() for p in empty.parameters())
    made = nn.MultiHeadAttention(D, H, device="meta", dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in made.parameters()} == {("meta", torch.bfloat16)}


def test_assigned_checkpoints_of_the_tutorials():
    """Parts that had to be joined become parameters, too."""
    linears = {name: tnn.Linear(D, D) for name in ("W_q", "W_k", "W_v", "W_o")}
    state = {f"{name}.{key}": value for name, linear in linears.items() for key, value in linear.state_dict().items()}
    given = dict(state)
    with torch.device("meta"):
        layer = nn.MultiHeadAttention(D, H)
    layer.load_state_dict(state, assign=True)
    assert state.keys() == given.keys()
    assert isinstance(layer.in_proj_weight, tnn.Parameter) and layer.in_proj_weight.requires_grad
    loaded = nn.MultiHeadAttention(D, H)
    loaded.load_state_dict(state)
    same(layer.state_dict(), loaded.state_dict())


@pytest.mark.parametrize("sizes", [{}, {"kdim": 8}])
def test_transformer_layers_and_torchs_exchange_state_dicts(sizes):
    pairs = [(tnn.MultiheadAttention(D, H, **sizes), nn.MultiHeadAttention(D, H, **sizes))]
    for kind in ("TransformerEncoderLayer", "TransformerDecoderLayer"):
        pairs += [(getattr(tnn, kind)(D, H, 32, bias=b), getattr(nn, kind)(D, H, 32, bias=b)) for b in (True, False)]
    for theirs, ours in pairs:
        ours.load_state_dict(theirs.state_dict())
        same(ours.state_dict(), theirs.state_dict())
        fresh = copy.deepcopy(ours)
        for parameter in fresh.parameters():
            tnn.init.normal_(parameter)
        theirs.load_state_dict(fresh.state_dict())
        same(theirs.state_dict(), fresh.state_dict())


def test_wrong_keys_say_what_to_do():
    model = tnn.ModuleDict({"attention": nn.MultiHeadAttention(D, H)})
    state = model.state_dict()
    words = r"attention\.query\.weight \(the keys are in_proj_weight .* W_q, W_k, W_v and W_o"
    with pytest.raises(RuntimeError, match=words):
        model.load_state_dict(state | {"attention.query.weight": torch.zeros(1)})
    without = {key: value for key, value in state.items() if not key.endswith("in_proj_bias")}
    with pytest.raises(RuntimeError, match=r"Missing key.*in_proj_bias \(.*bias=False makes a module without"):
        model.load_state_dict(without)
    with pytest.raises(RuntimeError, match="size mismatch for attention.in_proj_weight"):
        model.load_state_dict(state | {"attention.in_proj_weight": torch.zeros(D, D)})
    found = model.load_state_dict(without | {"attention.more": torch.zeros(1)}, strict=False)
    assert found.missing_keys == ["attention.in_proj_bias"] and found.unexpected_keys == ["attention.more"]


def test_representations():
    text = repr(Model())
    assert "MultiHeadAttention(\n    16, 2, dropout=0.1, num_kv_heads=1, window=(2, 0)" in text
    assert "TokenEmbedding(10, 16, padding_idx=0)" in text and "SinusoidalPositions(16, max_len=100)" in text


# -- sharding ---------------------------------------------------------------------------------------


def sharded_step(rank, port, results):
    """One step of training under FSDP2, in one of two processes."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        torch.manual_seed(0)
        model = Model(dropout=0.0)
        for part in (model.encoder, model.decoder):
            fully_shard(part)
        fully_shard(model)
        out = model(IDS)
        out.square().sum().backward()
        gradients = {name: p.grad.full_tensor() for name, p in model.named_parameters() if p.grad is not None}
        if rank == 0:
            torch.save((out.detach(), gradients), results)
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_fsdp2(tmp_path, monkeypatch):
    pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(torch.distributed.fsdp, "fully_shard"):
        pytest.skip("torch without fully_shard")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = tmp_path / "results"
    torch.multiprocessing.spawn(sharded_step, (port, str(results)), nprocs=2)
    out, gradients = torch.load(results)
    torch.manual_seed(0)
    model = Model(dropout=0.0)
    expected = model(IDS)
    expected.square().sum().backward()
    torch.testing.assert_close(out, expected)
    wanted = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert gradients.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(gradients[name], value, rtol=1e-5, atol=1e-5)
