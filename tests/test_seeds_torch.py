"""What the founding tutorials build by hand, part by part, from torch. True = may attend."""

import math

import numpy as np
import pytest
import tegula as tg

torch = pytest.importorskip("torch")
nn = tg.torch.nn
tnn = torch.nn
F = torch.nn.functional

pytestmark = pytest.mark.isa_once

IDS = torch.tensor([[6, 4, 0, 0], [6, 4, 1, 7]])
PAPER_TABLE = [
    [0, 1, 0, 1, 0, 1],
    [0.8415, 0.5403, 0.0464, 0.9989, 0.0022, 1],
    [0.9093, -0.4161, 0.0927, 0.9957, 0.0043, 1],
    [0.1411, -0.9900, 0.1388, 0.9903, 0.0065, 1],
]


def table(length, d_model):
    """The position table as T1 writes it, in float64."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    divisor = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))
    rows = torch.zeros(length, d_model, dtype=torch.float64)
    rows[:, 0::2], rows[:, 1::2] = torch.sin(position * divisor), torch.cos(position * divisor)
    return rows


class TutorialAttention(tnn.Module):
    """T4.3, by hand."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q = tnn.Linear(d_model, d_model)
        self.W_k = tnn.Linear(d_model, d_model)
        self.W_v = tnn.Linear(d_model, d_model)
        self.W_o = tnn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask=None):
        split = lambda x: x.view(x.shape[0], -1, self.num_heads, self.d_k).transpose(1, 2)
        q, k, v = split(self.W_q(q)), split(self.W_k(k)), split(self.W_v(v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        out = (F.softmax(scores, -1) @ v).transpose(1, 2).reshape(q.shape[0], -1, self.num_heads * self.d_k)
        return self.W_o(out)


def pair(d_model=32, num_heads=4):
    """The tutorial's class and ours, built after the same seed."""
    torch.manual_seed(3)
    theirs = TutorialAttention(d_model, num_heads)
    torch.manual_seed(3)
    return theirs, nn.MultiHeadAttention(d_model, num_heads)


# -- embedding and positions ------------------------------------------------------------------------


def test_t1_01_token_embedding():
    torch.manual_seed(0)
    layer = nn.TokenEmbedding(1000, 16, pad_idx=0)
    torch.manual_seed(0)
    theirs = tnn.Embedding(1000, 16, padding_idx=0)
    assert torch.equal(layer.weight, theirs.weight)
    out = layer(torch.tensor([[1, 25, 102, 0]]))
    assert torch.equal(out[0], layer.weight[[1, 25, 102, 0]])
    assert (layer.weight[0] == 0).all() and (out[0, 3] == 0).all()
    out.sum().backward()
    assert layer.weight.grad.sum(-1).nonzero().flatten().tolist() == [1, 25, 102]


def test_t1_02_position_table():
    layer = nn.PositionEmbedding(64, max_len=100)
    assert list(layer.parameters()) == [] and layer.state_dict() == {}
    rows = layer(torch.zeros(1, 100, dtype=torch.int64))
    assert not rows.requires_grad
    torch.testing.assert_close(rows[0].double(), table(100, 64), rtol=0, atol=6e-8)


def test_t1_03_slice_by_length():
    layer = nn.PositionEmbedding(8, max_len=50)
    whole = layer(torch.zeros(2, 50, dtype=torch.int64))
    for x in (torch.zeros(2, 7, dtype=torch.int64), torch.zeros(2, 7, 8)):
        assert layer(x).shape == (1, 7, 8)
        assert torch.equal(layer(x), whole[:, :7])


def test_t1_04_full_embedding():
    """token * sqrt(D) + position, then dropout of one element in ten."""
    layer = nn.TransformerEmbedding(100, 64, max_len=512, dropout=0.1)
    ids = torch.randint(1, 100, (8, 50))
    exact = layer.token_embedding.weight[ids].double() * 8 + table(50, 64)
    torch.testing.assert_close(layer.eval()(ids).double(), exact, rtol=1e-6, atol=1e-6)

    torch.manual_seed(5)
    dropped = layer.train()(ids)
    torch.manual_seed(5)
    assert torch.equal(layer(ids), dropped)
    kept = dropped != 0
    assert 0.08 < 1 - kept.float().mean() < 0.12
    torch.testing.assert_close(dropped[kept].double(), exact[kept] / 0.9, rtol=1e-5, atol=1e-5)
    dropped.sum().backward()
    gradient = layer.token_embedding.weight.grad
    expected = torch.zeros(100, 64).index_add_(0, ids.flatten(), kept.float().flatten(0, 1) * 8 / 0.9)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)


def test_t1_06_relative_positions():
    """PE[p + k] is a rotation of each pair of PE[p], by an angle that depends on k only."""
    rows = tg.positional_encoding(torch.arange(200), 16, dtype=torch.float64)
    angle = 7 * torch.exp(torch.arange(0, 16, 2, dtype=torch.float64) * (-math.log(10000.0) / 16))
    sine, cosine = rows[:193, 0::2], rows[:193, 1::2]
    moved = torch.stack([sine * angle.cos() + cosine * angle.sin(), cosine * angle.cos() - sine * angle.sin()], -1)
    torch.testing.assert_close(moved.flatten(-2), rows[7:], rtol=0, atol=1e-13)


def test_t2_01_ragged_batch():
    sentences = [torch.tensor([6, 4]), torch.tensor([6, 4, 1, 7])]
    ids = tnn.utils.rnn.pad_sequence(sentences, batch_first=True)
    assert torch.equal(ids, IDS)
    assert torch.equal(nn.create_valid_mask([2, 4]), ids != 0)


def test_t2_02_word_embedding():
    """Without padding_idx id 0 is an ordinary row."""
    layer = nn.Embedding(9, 6)
    out = layer(IDS)
    assert out.shape == (2, 4, 6)
    assert torch.equal(out[0, 2], layer.weight[0]) and (out[0, 2] != 0).all()
    out.sum().backward()
    assert (layer.weight.grad[0] == 2).all()


def test_t2_03_position_table_in_power_form():
    rows = nn.SinusoidalPositions(6)(IDS)[0]
    assert rows.mul(1e4).round().div(1e4).tolist() == torch.tensor(PAPER_TABLE).tolist()
    divisors = [1 / np.arcsin(rows[1, i].item()) for i in (0, 2, 4)]
    np.testing.assert_allclose(divisors, [1, 21.5443, 464.1590], rtol=1e-5)


def test_t2_04_position_ids():
    places = torch.arange(4).expand(2, 4)
    rows = nn.SinusoidalPositions(6)(IDS, positions=places)
    assert rows.shape == (2, 4, 6)
    assert torch.equal(rows[0], rows[1]) and torch.equal(rows[0], nn.SinusoidalPositions(6)(IDS)[0])


def test_t3_01_bert_base_sizes():
    layer = nn.TransformerEmbedding(30522, 768, max_len=512)
    assert layer(torch.randint(0, 30522, (32, 512))).shape == (32, 512, 768)
    assert round(sum(p.numel() for p in layer.parameters()) / 1e6, 1) == 23.4


def test_t3_02_numpy_table():
    ours = tg.positional_encoding(torch.arange(50), 32, dtype=torch.float64).numpy()
    np.testing.assert_allclose(ours, table(50, 32).numpy(), rtol=0, atol=1e-13)


def test_t4_01_position_layer():
    layer, x = nn.PositionalEncoding(16), torch.randn(2, 9, 16)
    torch.testing.assert_close(layer(x), x + table(9, 16).float(), rtol=0, atol=2e-7)
    assert layer.max_len == 5000
    layer(torch.zeros(1, 5000, 16))
    with pytest.raises(ValueError, match="5001 positions are more than max_len=5000"):
        layer(torch.zeros(1, 5001, 16))


def test_t4_02_embedding_layer():
    layer = nn.EmbeddingLayer(1000, 512)
    ids = torch.randint(0, 1000, (2, 10))
    exact = layer.embedding.weight[ids].double() * math.sqrt(512) + table(10, 512)
    torch.testing.assert_close(layer(ids).double(), exact, rtol=1e-6, atol=2e-6)


# -- masks ------------------------------------------------------------------------------------------


def test_t2_05_valid_positions():
    assert nn.create_valid_mask([2, 4]).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert nn.create_valid_mask(torch.tensor([1]), max_len=3).int().tolist() == [[1, 0, 0]]


def test_t2_06_pair_mask():
    pairs = nn.create_pair_mask(nn.create_valid_mask([2, 4]))
    assert pairs[0].int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert pairs[1].all()
    structured = tg.masks.padding(torch.tensor([2, 4]), queries=torch.tensor([2, 4])).dense(4, 4)
    assert torch.equal(pairs, structured[:, 0])


def test_t2_07_masked_scores():
    """-1e10 before softmax is what a mask does, but for rows without keys: ours are 0, with gradient 0."""
    pairs = nn.create_pair_mask(nn.create_valid_mask([2, 4]))
    theirs, ours = pair()
    x = torch.randn(2, 4, 32, requires_grad=True)
    got = ours(x, x, x, mask=pairs)
    real = pairs.any(-1)
    torch.testing.assert_close(got[real], theirs(x, x, x, mask=pairs[:, None])[real], rtol=1e-5, atol=1e-5)
    assert (got[~real] == ours.W_o.bias).all()
    got.sum().backward()
    assert (x.grad[~real] == 0).all() and x.grad.isfinite().all()


def test_t3_03_sequence_mask():
    mask = nn.create_seq_mask(3)
    assert mask.tolist() == [[0, -math.inf, -math.inf], [0, 0, -math.inf], [0, 0, 0]]
    assert torch.equal(nn.create_seq_mask(IDS), nn.create_seq_mask(4))
    theirs, ours = pair()
    x = torch.randn(2, 5, 32)
    by_hand = theirs(x, x, x, torch.ones(5, 5).tril())
    for given in (nn.create_seq_mask(5), tg.masks.causal()):
        torch.testing.assert_close(ours(x, x, x, mask=given), by_hand, rtol=1e-5, atol=1e-5)


def test_t3_04_padding_mask():
    mask = nn.create_pad_mask(IDS, pad_idx=0)
    assert mask.shape == (2, 1, 4) and torch.equal(mask[:, 0], IDS != 0)
    theirs, ours = pair()
    x = torch.randn(2, 4, 32)
    by_hand = theirs(x, x, x, mask[:, None])
    for options in ({"mask": mask}, {"mask": mask[:, None]}, {"key_padding": IDS != 0}):
        torch.testing.assert_close(ours(x, x, x, **options), by_hand, rtol=1e-5, atol=1e-5)


def test_t3_05_both_combined():
    """float_mask | bool_mask is an error in torch; this is what is meant."""
    sequence, pad = nn.create_seq_mask(4), nn.create_pad_mask(IDS)
    with pytest.raises(RuntimeError):
        sequence | pad
    visible = torch.ones(4, 4, dtype=torch.bool).tril() & (IDS != 0)[:, None]
    assert torch.equal(nn.combine_masks(sequence, pad), visible)
    structured = nn.combine_masks(tg.masks.causal(), pad, None)
    assert torch.equal(structured.dense(4, 4)[:, 0], visible)
    theirs, ours = pair()
    x = torch.randn(2, 4, 32)
    by_hand = theirs(x, x, x, visible[:, None])
    for given in (visible, structured, nn.combine_masks(sequence, pad)):
        torch.testing.assert_close(ours(x, x, x, mask=given), by_hand, rtol=1e-5, atol=1e-5)


def test_t3_06_local_window():
    assert nn.create_local_mask(8, 4).sum(-1).tolist() == [2, 3, 4, 4, 4, 4, 4, 3]
    assert np.array_equal(nn.create_local_mask(8, 4).numpy(), tg.masks.window(2, 1).dense(8, 8))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_t3_07_zero_means_hide(dtype):
    mask = torch.tensor([[1, 0, 2], [1, 1, 0], [3, 1, 1]]).to(dtype)
    theirs, ours = pair()
    x = torch.randn(2, 3, 32)
    torch.testing.assert_close(ours(x, x, x, mask=mask), theirs(x, x, x, mask), rtol=1e-5, atol=1e-5)


# -- attention --------------------------------------------------------------------------------------


def test_t3_08_fused_projection():
    """One Linear(D, 3D), in the order q, k, v; heads are views, and so is what comes back."""
    layer, fused = nn.MultiHeadAttention(32, 4), tnn.Linear(32, 96)
    out_proj = tnn.Linear(32, 32)
    state = {f"qkv.{name}": value for name, value in fused.state_dict().items()}
    layer.load_state_dict(state | {f"W_o.{name}": value for name, value in out_proj.state_dict().items()})
    x = torch.randn(2, 5, 32)
    q, k, v = (t.view(2, 5, 4, 8).transpose(1, 2) for t in fused(x).chunk(3, -1))
    expected = out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
    torch.testing.assert_close(layer(x, x, x), expected, rtol=1e-5, atol=1e-5)

    parts = [layer._heads_first(part, 4) for part in layer.project(x, x, x)]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    assert all(part.shape == (2, 4, 5, 8) for part in parts)
    out = tg.attention(*parts)
    assert layer._rows(out).data_ptr() == out.data_ptr() and layer._rows(out).is_contiguous()


def test_t3_09_scaled_dot_product():
    q, k, v = torch.randn(3, 2, 4, 9, 8, dtype=torch.float64)
    mask = nn.create_seq_mask(9, dtype=torch.float64)
    by_hand = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(8) + mask, -1) @ v
    torch.testing.assert_close(tg.attention(q, k, v, bias=mask), by_hand)
    torch.testing.assert_close(tg.attention(q, k, v, mask=tg.masks.causal()), by_hand)


def test_t3_10_cross_attention():
    theirs, ours = pair()
    decoder, encoder = torch.randn(2, 3, 32), torch.randn(2, 4, 32)
    by_hand = theirs(decoder, encoder, encoder, (IDS != 0)[:, None, None])
    got = ours(decoder, encoder, encoder, mask=nn.create_pad_mask(IDS))
    assert got.shape == (2, 3, 32)
    torch.testing.assert_close(got, by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_t3_11_chunked_attention(chunk):
    """The kernel works in tiles of its own: queries taken some at a time give the bits of the whole."""
    q, k, v = torch.randn(3, 2, 4, 50, 8)
    parts = [tg.attention(part, k, v) for part in q.split(chunk, 2)]
    assert torch.equal(torch.cat(parts, 2), tg.attention(q, k, v))


def test_t3_12_local_attention():
    """Keys outside the window do not exist: not even their NaN is seen."""
    _, whole = pair()
    local = nn.MultiHeadAttention(32, 4, window=(2, 1))
    local.load_state_dict(whole.state_dict())
    x = torch.randn(2, 8, 32)
    expected = whole(x, x, x, mask=nn.create_local_mask(8, 4))
    torch.testing.assert_close(local(x, x, x), expected, rtol=1e-6, atol=1e-6)
    x[:, 7] = torch.nan
    assert torch.equal(local(x)[:, :6], local(x.nan_to_num(5))[:, :6])


def test_t3_13_checks():
    with pytest.raises(ValueError, match="d_model=30 is not divisible by num_heads=4"):
        nn.MultiHeadAttention(30, 4)
    layer, x = nn.MultiHeadAttention(32, 4), torch.randn(2, 5, 32)
    with pytest.raises(ValueError, match="k and v must have as many rows, got 5 and 4"):
        layer(x, x, x[:, :4])
    with pytest.raises(ValueError, match="missing batch axis"):
        layer(x, x[0], x[0])
    torch.testing.assert_close(layer(x[0]), layer(x)[0], rtol=1e-6, atol=1e-6)  # none anywhere is no difference

    report = nn.check_shapes(q=x, k=x, weights=torch.zeros(3, dtype=torch.float64), d_model=32, num_heads=4)
    assert report.splitlines() == [
        "q      : (2, 5, 32) float32 cpu",
        "k      : (2, 5, 32) float32 cpu",
        "weights: (3,) float64 cpu",
    ]
    for tensors, problem in (
        ({"k": x, "v": x[:, :4]}, "k has 5 rows, but v has 4"),
        ({"q": x, "k": x[0]}, "missing batch axis"),
        ({"q": x, "k": x[:1]}, r"k has leading axes \(1,\)"),
        ({"query": x, "key": x[..., :8]}, "rows of 32 numbers, but key of 8"),
        ({"q": x, "d_model": 16}, "d_model is 16"),
        ({"q": x, "num_heads": 5}, "not divisible by num_heads=5"),
        ({"q": x[0, 0]}, "needs the axes"),
    ):
        with pytest.raises(ValueError, match=problem):
            nn.check_shapes(**tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_t3_14_mixed_precision(dtype):
    """Under autocast, and in 16 bits throughout, as near to float32 as the inputs' rounding allows."""
    _, layer = pair()
    x = torch.randn(2, 50, 32)
    exact = layer(x)
    with torch.autocast("cpu", dtype=dtype):
        cast = layer(x)
    narrow = nn.MultiHeadAttention(32, 4, dtype=dtype)
    narrow.load_state_dict(layer.state_dict())
    for got in (cast, narrow(x.to(dtype))):
        assert got.dtype == dtype
        torch.testing.assert_close(got.float(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_t4_03_multi_head_attention():
    """Eight heads, the same first values after the same seed, and the same numbers and gradients."""
    theirs, ours = pair(512, 8)
    for name in ("W_q", "W_k", "W_v", "W_o"):
        assert torch.equal(getattr(ours, name).weight, getattr(theirs, name).weight)
        assert torch.equal(getattr(ours, name).bias, getattr(theirs, name).bias)
    x = torch.randn(2, 10, 512)
    mask = torch.ones(2, 1, 10, 10, dtype=torch.int64).tril()
    mask[0, :, :, 7:] = 0
    for given in (None, mask):
        out, expected = ours(x, x, x, given), theirs(x, x, x, given)
        assert out.shape == (2, 10, 512)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        ours.zero_grad()
        theirs.zero_grad()
        out.square().sum().backward()
        expected.square().sum().backward()
        parts = ours.in_proj_weight.grad.chunk(3)
        for name, got in zip(("W_q", "W_k", "W_v"), parts, strict=True):
            torch.testing.assert_close(got, getattr(theirs, name).weight.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_t3_15_block(causal):
    """x + attention(norm(x)), then x + ffn(norm(x)), FFN 4D with ReLU."""
    theirs, attention = pair(32, 4)
    block = nn.TransformerEncoderLayer(32, 4, 4 * 32, dropout=0.1, norm_first=True, batch_first=True).eval()
    block.self_attn.load_state_dict(attention.state_dict())
    x = torch.randn(2, 6, 32)
    mask = torch.ones(6, 6).tril() if causal else None
    y = x + theirs(*[block.norm1(x)] * 3, mask)
    y = y + block.linear2(F.relu(block.linear1(block.norm2(y))))
    torch.testing.assert_close(block(x, is_causal=causal), y, rtol=1e-5, atol=1e-5)
    block.train()
    torch.manual_seed(0)
    first = block(x, is_causal=causal)
    torch.manual_seed(0)
    assert torch.equal(block(x, is_causal=causal), first) and not torch.equal(first, y)


def test_t4_04_training():
    """Cross-entropy and AdamW train the whole thing: it learns to count in steps of one or two."""
    torch.manual_seed(0)
    model = tnn.ModuleDict(
        {
            "words": nn.TransformerEmbedding(12, 32, max_len=16, dropout=0.1),
            "block": nn.TransformerEncoderLayer(32, 4, 128, norm_first=True, batch_first=True),
            "head": tnn.Linear(32, 12),
        }
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(150):
        start, step = torch.randint(0, 11, (32, 1)), torch.randint(1, 3, (32, 1))
        ids = (start + step * torch.arange(12)) % 11 + 1
        logits = model["head"](model["block"](model["words"](ids[:, :-1]), is_causal=True))
        loss = F.cross_entropy(logits[:, 1:].flatten(0, 1), ids[:, 2:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2
    assert np.mean(losses[-10:]) < 0.4, losses[::10]  # a guess between the two steps is 0.69
