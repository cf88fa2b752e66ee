"""The programs of the founding tutorials give what the tutorials show, on tegula and on plain torch."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import plain_layers  # noqa: E402
import seed_tutorials  # noqa: E402
from tegula.torch import nn as tegula_layers  # noqa: E402

pytestmark = pytest.mark.isa_once


@pytest.fixture(scope="module", params=[tegula_layers, plain_layers], ids=["tegula", "plain"])
def results(request):
    return seed_tutorials.run(request.param)


def rounded(x):
    return x.double().round(decimals=4).tolist()


def test_the_numbers_of_the_tutorials(results):
    assert results["T1.1 rows of ids 1, 25, 102 and the pad"].shape == (1, 4, 64)
    assert not results["T1.1 rows of ids 1, 25, 102 and the pad"][0, 3].any()
    assert results["T1.1 gradient of these rows"].sum(-1).tolist() == [64, 64, 64, 0]
    assert results["T1.3 positions of a sentence of 4"].shape == (1, 4, 64)
    assert results["T1.6 spread of the turn by 5 places"] < 1e-5
    assert results["T2.1 ids, padded"].tolist() == [[6, 4, 0, 0], [6, 4, 1, 7]]
    assert results["T2.2 word embeddings"].shape == (2, 4, 6)
    assert results["T2.2 word embeddings"][0, 2].any(), "without padding_idx, id 0 has an ordinary row"
    table = [
        [0, 1, 0, 1, 0, 1],
        [0.8415, 0.5403, 0.0464, 0.9989, 0.0022, 1],
        [0.9093, -0.4161, 0.0927, 0.9957, 0.0043, 1],
        [0.1411, -0.9900, 0.1388, 0.9903, 0.0065, 1],
    ]
    assert rounded(results["T2.3 positions"]) == table
    assert rounded(results["T2.4 positions, gathered"]) == [table, table]
    assert results["T2.5 valid positions"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    block = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert results["T2.6 valid pairs of the first sentence"].tolist() == block
    assert results["T3.1 32 sentences of 512 tokens at BERT's sizes"].shape == (32, 512, 768)
    assert results["T3.1 parameters of the table"] == 23_440_896
    assert torch.equal(results["T3.3 sequence mask"] == 0, torch.ones(8, 8).tril().bool())
    assert results["T3.5 both, second sentence"].sum(1).tolist() == [1, 2, 3, 4, 5, 5, 5, 5]
    assert results["T3.6 keys of each query in a window of 4"].tolist() == [2, 3, 4, 4, 4, 4, 4, 3]
    torch.testing.assert_close(results["T3.7 integer mask, 0 hides"], results["T3.5 attention under both"])
    torch.testing.assert_close(results["T3.11 three queries at a time"], results["T3.9 attention"])
    assert results["T3.14 attention in bfloat16"].dtype == torch.bfloat16
    assert results["T4.2 embedding layer"].shape == results["T4.3 multi-head attention"].shape == (16, 12, 64)
    losses = results["T4.4 loss of 20 steps"]
    assert losses[-1] < losses[0] / 10


def test_both_agree(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["seed_tutorials.py", "--pictures", str(tmp_path)])
    seed_tutorials.main()
    printed = capsys.readouterr().out
    assert "31 of 31 results agree with plain torch" in printed
    assert "T3.6 keys of each query in a window of 4" in printed and "[2, 3, 4, 4, 4, 4, 4, 3]" in printed
    pytest.importorskip("matplotlib")
    assert {path.name for path in tmp_path.iterdir()} == {"positions_curves.png", "positions_heatmap.png"}


def test_what_does_not_agree_is_named(monkeypatch, capsys, tmp_path):
    def off(layers):
        return {"T1.2 table of 512 positions": torch.zeros(4, 8) + (layers is tegula_layers)}

    monkeypatch.setattr(seed_tutorials, "PROGRAMS", (off,))
    monkeypatch.setattr(sys, "argv", ["seed_tutorials.py", "--pictures", str(tmp_path)])
    with pytest.raises(SystemExit):
        seed_tutorials.main()
    assert "not T1.2 table" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["seed_tutorials.py", "--reference", "--pictures", str(tmp_path)])
    seed_tutorials.main()


def test_differences():
    inf, nan = float("inf"), float("nan")
    assert seed_tutorials.difference(torch.tensor([2.0, -inf]), torch.tensor([1.0, -inf])) == 1
    assert seed_tutorials.difference(torch.ones(2), torch.ones(3)) == inf
    assert not seed_tutorials.difference(torch.tensor([nan]), torch.tensor([1.0])) <= 1
    assert not seed_tutorials.difference(torch.tensor([inf]), torch.tensor([1.0])) <= 1
