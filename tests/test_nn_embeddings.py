"""Embeddings and positions as modules: against torch's, options, checkpoints of tables, bad input."""

import pytest
import tegula as tg

torch = pytest.importorskip("torch")
nn = tg.torch.nn
tnn = torch.nn

pytestmark = pytest.mark.isa_once

IDS = torch.tensor([[6, 4, 0, 0], [6, 4, 1, 7]])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding_idx": 0},
        {"padding_idx": -3},
        {"max_norm": 1.0},
        {"max_norm": 1.0, "norm_type": 1.0, "padding_idx": 0},
        {"scale_grad_by_freq": True},
        {"sparse": True, "padding_idx": 0},
        {"dtype": torch.float64},
        {"dtype": torch.bfloat16},
    ],
    ids=str,
)
@pytest.mark.parametrize("ids", [IDS, IDS.int(), IDS[0, 0], IDS[:0]])
def test_embedding_is_torchs(ids, options):
    torch.manual_seed(1)
    theirs = tnn.Embedding(9, 6, **options)
    torch.manual_seed(1)
    ours = nn.Embedding(9, 6, **options)
    assert isinstance(ours, tnn.Embedding) and repr(ours) == repr(theirs)
    assert torch.equal(ours.weight, theirs.weight)
    expected, got = theirs(ids), ours(ids)
    assert torch.equal(got, expected) and torch.equal(ours.weight, theirs.weight)
    if ids.dim() == 0 and options.get("sparse"):
        return  # torch's own gradient fails
    grad = torch.randn_like(expected)
    expected.backward(grad)
    got.backward(grad)
    assert ours.weight.grad.layout == theirs.weight.grad.layout
    torch.testing.assert_close(ours.weight.grad.to_dense(), theirs.weight.grad.to_dense())
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64])
@pytest.mark.parametrize("options", [{}, {"max_norm": 2.0}])
def test_c14_ids_of_every_integer_type(dtype, options):
    layer = nn.Embedding(9, 6, **options)
    assert torch.equal(layer(IDS.to(dtype)), layer(IDS))


def test_from_pretrained():
    table = torch.randn(9, 6)
    layer = nn.Embedding.from_pretrained(table, padding_idx=2)
    assert type(layer) is nn.Embedding and layer.padding_idx == 2 and not layer.weight.requires_grad
    assert torch.equal(layer(IDS), table[IDS])
    assert nn.Embedding.from_pretrained(table, freeze=False).weight.requires_grad


def test_c01_pads_are_zeros_whatever_the_table_holds():
    layer = nn.Embedding(9, 6, padding_idx=0, pad_output="zero")
    tnn.init.normal_(layer.weight)
    out = layer(IDS)
    assert (out[IDS == 0] == 0).all() and torch.equal(out[IDS != 0], layer.weight[IDS[IDS != 0]])
    out.sum().backward()
    assert (layer.weight.grad[0] == 0).all()


def test_c10_an_id_outside_the_table_is_named():
    for layer in (nn.Embedding(9, 6), nn.TokenEmbedding(9, 6), nn.TransformerEmbedding(9, 6, 10)):
        with pytest.raises(IndexError, match=r"id 9 at ids\[1, 2\] is outside \[0, 9\)"):
            layer(torch.tensor([[1, 2, 3], [1, 2, 9]]))


def test_bad_embeddings():
    with pytest.raises(ValueError, match="pad_output='zero' needs a padding_idx"):
        nn.Embedding(9, 6, pad_output="zero")
    with pytest.raises(ValueError, match="does not go with max_norm"):
        nn.Embedding(9, 6, padding_idx=0, max_norm=1.0, pad_output="zero")
    with pytest.raises(ValueError, match="pad_output must be 'row' or 'zero'"):
        nn.Embedding(9, 6, padding_idx=0, pad_output="none")
    with pytest.raises(ValueError, match=r"padding_idx must lie in \[-9, 9\), got 9"):
        nn.Embedding(9, 6, padding_idx=9)
    with pytest.raises(TypeError, match="vocab_size must be an integer"):
        nn.TokenEmbedding(9.0, 6)
    for ids in (IDS.float(), IDS.bool()):
        with pytest.raises(TypeError, match="dtype"):
            nn.Embedding(9, 6)(ids)
    with pytest.raises(ValueError, match=r"dropout must lie in \[0, 1\]"):
        nn.TransformerEmbedding(9, 6, 10, dropout=2)


# -- positions --------------------------------------------------------------------------------------


def test_positions_have_no_maximum_unless_asked():
    layer = nn.SinusoidalPositions(8)
    far = torch.tensor([10**6, 2**24])
    exact = tg.positional_encoding(far, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(IDS, far).double(), exact, rtol=0, atol=6e-8)
    fractions = torch.tensor([0.5, -3.25])
    assert torch.equal(layer(IDS, fractions), tg.positional_encoding(fractions, 8))


def test_layouts_and_spacings():
    for options in ({"layout": "split"}, {"spacing": "inclusive"}, {"base": 500.0}):
        rows = nn.SinusoidalPositions(8, **options)(IDS)
        assert torch.equal(rows[0], tg.positional_encoding(torch.arange(4), 8, **options))
    assert repr(nn.SinusoidalPositions(8, 20, layout="split")) == "SinusoidalPositions(8, max_len=20, layout='split')"


@pytest.mark.parametrize("odd", [1, 5, 7])
def test_c19_odd_sizes(odd):
    assert nn.PositionalEncoding(odd)(torch.zeros(1, 3, odd)).shape == (1, 3, odd)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_c20_rows_are_computed_in_float64_and_rounded_once(dtype):
    layer = nn.PositionEmbedding(64, 5000).to(dtype)
    rows = layer(torch.zeros(1, 5000, dtype=torch.int64))
    assert rows.dtype == dtype
    exact = tg.positional_encoding(torch.arange(5000), 64, dtype=torch.float64)
    torch.testing.assert_close(rows[0].double(), exact, rtol=torch.finfo(dtype).eps / 2 * 1.001, atol=3e-8)
    x = torch.zeros(1, 5000, 64, dtype=dtype)
    assert nn.PositionalEncoding(64)(x).dtype == dtype
    assert torch.equal(nn.PositionalEncoding(64)(x)[0], rows[0])


def test_c24_longer_than_the_table():
    ids = torch.zeros(1, 11, dtype=torch.int64)
    for layer in (nn.PositionEmbedding(8, 10), nn.TransformerEmbedding(9, 8, 10), nn.SinusoidalPositions(8, 10)):
        layer(ids[:, :10])
        with pytest.raises(ValueError, match="11 positions are more than max_len=10"):
            layer(ids)
        layer(ids, positions=ids + 9)
        for places in (ids + 10, ids - 1):
            with pytest.raises(ValueError, match=r"positions must lie in \[0, max_len\) = \[0, 10\), got (10|-1)"):
                layer(ids, positions=places)
    assert nn.TransformerEmbedding(9, 8, None)(ids).shape == (1, 11, 8)
    with pytest.raises(ValueError, match="5001 positions are more than max_len=5000"):
        nn.EmbeddingLayer(9, 8)(ids[:, :1].expand(1, 5001))


def test_c31_left_padding_and_packed_documents():
    layer = nn.TransformerEmbedding(9, 8, 100).eval()
    alone = layer(torch.tensor([[5, 7]]))
    ids = torch.tensor([[0, 0, 5, 7]])
    assert torch.equal(layer(ids, positions=tg.masks.positions(keep=ids != 0))[:, 2:], alone)
    packed = layer(torch.tensor([[3, 5, 7]]), positions=tg.masks.positions(cu_seqlens=torch.tensor([0, 1, 3])))
    assert torch.equal(packed[:, 1:], alone)


def test_bad_positions():
    with pytest.raises(TypeError, match="x must hold embeddings, floats"):
        nn.PositionalEncoding(8)(IDS)
    with pytest.raises(ValueError, match=r"\(..., L, 8\), got \(2, 4, 6\)"):
        nn.PositionalEncoding(8)(torch.zeros(2, 4, 6))
    with pytest.raises(TypeError, match="max_len must be an integer"):
        nn.PositionEmbedding(8, None)
    with pytest.raises(TypeError, match="positions must be a torch tensor"):
        nn.SinusoidalPositions(8)(IDS, [1, 2])
    with pytest.raises(ValueError, match="must have shape"):
        nn.SinusoidalPositions(8)(torch.zeros(3))
    for shape in ((3, 4), (1, 1, 4), (2, 3)):
        with pytest.raises(ValueError, match=r"which does not broadcast to \(..., L\) = \(1, 4\)"):
            nn.PositionalEncoding(8)(torch.zeros(1, 4, 8), torch.zeros(shape))


# -- tables in checkpoints --------------------------------------------------------------------------


def tables(d_model, length=50):
    """A position table as modules store it, in the shapes they give it."""
    rows = tg.positional_encoding(torch.arange(length), d_model)
    return rows, rows[None], rows[:, None], rows.half()


@pytest.mark.parametrize("key", ["pe", "encoding", "position_embedding.pe", "pos_encoding.pe", "position_ids"])
@pytest.mark.parametrize(
    ("layer", "table_key"),
    [
        (nn.TransformerEmbedding(9, 8, 50), "token_embedding.weight"),
        (nn.TransformerEmbedding(9, 8, 50), "token_embedding.embedding.weight"),
        (nn.EmbeddingLayer(9, 8), "embedding.weight"),
    ],
)
def test_c26_old_checkpoints_load(layer, table_key, key):
    weight = torch.randn(9, 8)
    for table in (torch.arange(50)[None],) if key == "position_ids" else tables(8):
        layer.load_state_dict({table_key: weight, key: table})
        assert torch.equal(next(layer.parameters()), weight)
    assert len(layer.state_dict()) == 1
    with pytest.raises(RuntimeError, match="Unexpected key.*strange"):
        layer.load_state_dict({table_key: weight, "strange": weight})


@pytest.mark.parametrize("kind", [nn.PositionEmbedding, nn.PositionalEncoding, nn.SinusoidalPositions])
def test_c26_old_checkpoints_of_positions_load(kind):
    layer = tnn.ModuleDict({"position": kind(8, 50)})
    assert layer.state_dict() == {}
    for table in tables(8):
        layer.load_state_dict({"position.pe": table})
    for table, words in (
        (torch.randn(50, 8), "position.pe .holds another table, but positions are sinusoidal here"),
        (tg.positional_encoding(torch.arange(50), 8, layout="split"), "holds another table"),
        (torch.zeros(50, 4), "has rows of 4 numbers where 8 are expected"),
    ):
        with pytest.raises(RuntimeError, match=words):
            layer.load_state_dict({"position.pe": table})
        assert layer.load_state_dict({"position.pe": table}, strict=False).unexpected_keys == ["position.pe"]
    with pytest.raises(RuntimeError, match="Unexpected key.*position.weight"):  # a learned table
        layer.load_state_dict({"position.weight": torch.randn(50, 8)})


def test_what_a_class_made_from_ours_stores_under_such_a_name_is_loaded():
    class Layer(nn.TransformerEmbedding):
        def __init__(self):
            super().__init__(9, 8, 50)
            self.positions = tnn.Parameter(torch.randn(50, 8))
            self.rotation = tnn.Module()
            self.rotation.register_buffer("inv_freq", torch.randn(4))

    layer, other = Layer(), Layer()
    stored = layer.state_dict()
    other.load_state_dict({**stored, "pe": tables(8)[0]})
    assert stored.keys() == other.state_dict().keys()
    assert all(torch.equal(x, other.state_dict()[name]) for name, x in stored.items())


# -- dropout ----------------------------------------------------------------------------------------


def test_dropout_module():
    layer, x = nn.Dropout(0.3), torch.randn(40, 50, requires_grad=True)
    torch.manual_seed(1)
    out = layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), out)
    kept = out != 0
    assert abs(kept.float().mean() - 0.7) < 0.03
    torch.testing.assert_close(out[kept], x[kept] / 0.7)
    out.sum().backward()
    torch.testing.assert_close(x.grad, kept / 0.7)
    assert layer.eval()(x) is x and nn.Dropout(0.0)(x) is x
    assert (nn.Dropout(1.0)(x) == 0).all()
    assert layer.train()(torch.randn(0, 3)).shape == (0, 3) and layer(torch.tensor(1.0)).shape == ()
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\]"):
        nn.Dropout(-0.1)
    with pytest.raises(ValueError, match="inplace must be False"):
        nn.Dropout(0.1, inplace=True)
