"""The fine-tuning example: the same losses on tegula as on torch's attention, and a model that learns."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tqdm")

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import finetune_encoder as example  # noqa: E402
import minilm  # noqa: E402

pytestmark = pytest.mark.isa_once


@pytest.fixture(scope="module")
def pairs():
    return example.read_pairs()


@pytest.fixture
def without_model(monkeypatch):
    def not_found():
        raise ModuleNotFoundError("no such package", name=minilm.MODEL_PACKAGE)

    monkeypatch.setattr(minilm, "model_folder", not_found)


def test_pairs_are_functions_and_what_they_do(pairs):
    assert len(pairs) > 1000
    assert len(set(dict(pairs))) == len(set(dict(pairs).values())) == len(pairs)
    found = {function.partition("(")[0]: description for description, function in pairs}
    assert found["shutil.copytree"].startswith("Recursively copy a directory tree")
    assert pairs == example.read_pairs()


def test_same_losses(without_model, pairs):
    losses = {}
    for name in ("sdpa", "tegula"):
        encoder = example.load_encoder(name, 0.0)
        assert encoder.model.config._attn_implementation == name
        losses[name] = example.train(encoder, pairs, steps=6, batch=8, rate=1e-3)
    np.testing.assert_allclose(losses["tegula"], losses["sdpa"], rtol=0, atol=2e-5)
    assert len(set(losses["sdpa"])) == 6


def test_it_learns(without_model, pairs):
    encoder = example.load_encoder("tegula", 0.1)
    few = pairs[:16]
    before = example.evaluate(encoder, few)
    losses = example.train(encoder, few, steps=40, batch=16, rate=2e-3)
    assert losses[-1] < 0.5 * losses[0]
    assert example.evaluate(encoder, few) > max(before, 0.7)


def test_padding_does_not_count(without_model, pairs):
    encoder = example.load_encoder("tegula", 0.0)
    texts = [function for _, function in pairs[:5]]
    with torch.no_grad():
        together, tokens = encoder.embed(texts)
        alone = [encoder.embed([text]) for text in texts]
    assert tokens == sum(number for _, number in alone)
    np.testing.assert_allclose(together, torch.cat([vectors for vectors, _ in alone]), rtol=0, atol=1e-5)


def test_program(without_model, pairs, monkeypatch, capsys):
    monkeypatch.setattr(example, "read_pairs", lambda: pairs[:80])
    monkeypatch.setattr(example, "EVALUATED", 40)
    monkeypatch.setattr(sys, "argv", ["finetune_encoder.py", "--steps", "2", "--batch", "8"])
    assert example.main() == 0
    printed, bar = capsys.readouterr()
    assert printed.count("RANDOM WEIGHTS") == 1
    assert "losses of 2 steps differ by" in printed
    assert "tokens/s" in bar

    monkeypatch.setattr(example, "TOLERANCE", -1.0)
    assert example.main() == 1
    assert "more than" in capsys.readouterr().err
