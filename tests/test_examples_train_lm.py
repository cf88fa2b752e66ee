"""Training packed rows on tegula is training padded batches on torch: the same losses, step by step."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("tqdm")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import language_model  # noqa: E402
import train_lm  # noqa: E402

pytestmark = pytest.mark.isa_once

SMALL = ["--batch", "4", "--context", "48", "--vocab", "300", "--dim", "32", "--heads", "4", "--layers", "2"]


def arguments(monkeypatch, *extra):
    monkeypatch.setattr(sys, "argv", ["train_lm.py", *SMALL, *map(str, extra)])
    return train_lm.parsed()


def documents(lengths=(60, 5, 33, 2, 48, 20)):
    rng = np.random.default_rng(0)
    return [rng.integers(300, size=n + 1) for n in lengths]


def trained(monkeypatch, kind, steps, **options):
    """Losses, and the model."""
    given = arguments(monkeypatch, *(word for name in options for word in (f"--{name}", options[name])))
    sizes = language_model.Sizes(300, given.dim, given.heads, given.layers, given.context, given.dropout)
    model = train_lm.build(kind, sizes, given.seed)
    run = train_lm.train(model, documents(), given)
    return [next(run).loss for _ in range(steps)], model


def test_without_dropout_the_losses_are_those_of_padded_batches(monkeypatch):
    packed, ours = trained(monkeypatch, train_lm.LanguageModel, 25, dropout=0)
    padded, plain = trained(monkeypatch, train_lm.PaddedModel, 25, dropout=0)
    np.testing.assert_allclose(packed, padded, rtol=0, atol=1e-3)
    assert packed[-1] < packed[0] - 0.5
    assert list(ours.state_dict()) == list(plain.state_dict())


def test_a_step_has_the_same_gradients(monkeypatch):
    sizes = language_model.Sizes(300, 32, 4, 2, 48, 0.0)
    ours, plain = (train_lm.build(kind, sizes, 3) for kind in (train_lm.LanguageModel, train_lm.PaddedModel))
    batch = next(train_lm.batches(documents(), 4, 48, 0))
    for model in (ours, plain):
        model.loss(batch).backward()
    for (name, one), other in zip(ours.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=2e-6, msg=name)


@pytest.mark.parametrize("dropout", [0, 0.3])
def test_training_repeats_bit_by_bit(monkeypatch, dropout):
    first, _ = trained(monkeypatch, train_lm.LanguageModel, 5, dropout=dropout)
    second, _ = trained(monkeypatch, train_lm.LanguageModel, 5, dropout=dropout)
    other, _ = trained(monkeypatch, train_lm.LanguageModel, 5, dropout=dropout, seed=1)
    assert first == second != other


def test_dropout_is_that_of_torch_on_average(monkeypatch):
    packed, _ = trained(monkeypatch, train_lm.LanguageModel, 25, dropout=0.2)
    padded, _ = trained(monkeypatch, train_lm.PaddedModel, 25, dropout=0.2)
    assert packed != padded
    assert np.mean(packed[-10:]) == pytest.approx(np.mean(padded[-10:]), rel=0.05)


def test_batches_are_windows_of_different_documents():
    given = documents()
    drawn = train_lm.batches(given, 4, 48, 0)
    for _ in range(20):
        batch = next(drawn)
        assert len(batch) == 4 and max(map(len, batch)) <= 49
        homes = [
            {n for n, d in enumerate(given) if part.tobytes() in d.tobytes() and len(part) == min(len(d), 49)}
            for part in batch
        ]
        assert all(homes) and len(set.union(*homes)) == 4
    one, other = (next(train_lm.batches(given, 4, 48, 7)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_decoding_with_a_cache_computes_what_the_whole_row_does(monkeypatch):
    _, ours = trained(monkeypatch, train_lm.LanguageModel, 3)
    plain = train_lm.PaddedModel(ours.sizes)
    plain.load_state_dict(ours.state_dict())
    steps = [model.eval().decoder() for model in (ours, plain)]
    ids = torch.from_numpy(documents()[2])
    with torch.no_grad():
        for part in (ids[:7], ids[7:8], ids[8:9], ids[9:20]):
            one, other = (step(part) for step in steps)
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("way", [[], ["--reference"], ["--compare"]])
def test_the_program(monkeypatch, capsys, way):
    monkeypatch.setattr(sys, "argv", ["train_lm.py", *SMALL, "--steps", "6", "--dropout", "0", "--sample", "5", *way])
    train_lm.main()
    printed = capsys.readouterr()
    lines = [line for line in printed.out.splitlines() if "6 steps, loss" in line]
    assert [line.partition(":")[0] for line in lines] == {"": ["packed"], "--reference": ["padded"]}.get(
        "".join(way), ["packed", "padded"]
    )
    assert all("tokens/s" in line for line in lines)
    assert train_lm.PROMPT in printed.out
    assert "6/6" in printed.err, "the progress bar"
    if way == ["--compare"]:
        assert float(printed.out.partition("losses at most ")[2].split()[0]) < 1e-3


def test_no_steps_is_an_error(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        arguments(monkeypatch, "--steps", 0)
    assert "--steps must be at least 1" in capsys.readouterr().err
