"""The programs of four tutorials that build a Transformer by hand, with one import changed.

    python examples/seed_tutorials.py [--reference] [--pictures FOLDER]

The programs below take their layers from `tegula.torch.nn`, or with ``--reference`` from plain_layers.py, the same
layers on plain torch. Without it both run, from the same seeds, and every result is compared. Each result has the
number of its place in the four tutorials, T1 to T4:

    T1  token embedding, sinusoidal positions, their sum        T3  masks and attention at BERT's sizes
    T2  a ragged batch: padding, positions, valid pairs         T4  multi-head attention, trained end to end
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plain_layers
import torch
import torch.nn.functional as F
from tegula.torch import nn as tegula_layers
from torch import Tensor, nn

Results = dict[str, Tensor]

BF16 = 2e-2  # how far two ways to round to 8 bits may be apart, in units of the largest number
FLOAT32 = 1e-5


def tutorial_1(layers: Any) -> Results:
    """Embed one sentence: tokens, positions, and their sum."""
    ids = torch.tensor([[1, 25, 102, 0]])
    tokens = layers.TokenEmbedding(vocab_size=1000, d_model=64, pad_idx=0)
    rows = tokens(ids)
    rows.sum().backward()
    table = layers.PositionEmbedding(64, max_len=512)(torch.zeros(1, 512, dtype=torch.int64))
    embed = layers.TransformerEmbedding(1000, 64, max_len=512, dropout=0.1).eval()

    # Each pair of dimensions of PE[p + 5] is that of PE[p], turned by an angle that does not depend on p.
    pairs = torch.view_as_complex(table[0].double().unflatten(1, (32, 2)))
    turns = pairs[5:] / pairs[:-5]
    return {
        "T1.1 rows of ids 1, 25, 102 and the pad": rows.detach(),
        "T1.1 gradient of these rows": tokens.weight.grad[ids[0]],
        "T1.2 table of 512 positions": table[0],
        "T1.3 positions of a sentence of 4": layers.PositionEmbedding(64, max_len=512)(ids),
        "T1.4 tokens * sqrt(D) + positions": embed(ids).detach(),
        "T1.6 spread of the turn by 5 places": (turns - turns[0]).abs().max().float(),
    }


def tutorial_2(layers: Any) -> Results:
    """Pad two sentences of 2 and 4 words, embed them without a padding index, and find the valid pairs."""
    sentences = [[6, 4], [6, 4, 1, 7]]
    ids = nn.utils.rnn.pad_sequence([torch.tensor(words) for words in sentences], batch_first=True)
    lengths = torch.tensor([len(words) for words in sentences])
    embed = layers.TokenEmbedding(9, 6, pad_idx=None)
    position_ids = torch.arange(ids.shape[1]).expand_as(ids)
    table = layers.PositionEmbedding(6, max_len=4)(ids)[0]

    valid = layers.create_valid_mask(lengths)
    pairs = layers.create_pair_mask(valid)
    attention = layers.MultiHeadAttention(6, 2)
    attended = attention(*[embed(ids)] * 3, mask=pairs)
    return {
        "T2.1 ids, padded": ids,
        "T2.2 word embeddings": embed(ids).detach(),
        "T2.3 positions": table,
        "T2.4 positions, gathered": table[position_ids],
        "T2.5 valid positions": valid.int(),
        "T2.6 valid pairs of the first sentence": pairs[0].int(),
        # Behind the end of a sentence, a query has no key: tutorials differ from this package there.
        "T2.7 attention of the valid queries": attended[valid].detach(),
    }


def tutorial_3(layers: Any) -> Results:
    """Embed at BERT's sizes, and attend under masks: causal, padding, local; across, in chunks, in bfloat16."""
    bert = layers.TokenEmbedding(30522, 768)
    with torch.no_grad():
        embedded = bert(torch.randint(1, 30522, (32, 512))) + layers.PositionEmbedding(768, 512)(
            torch.ones(32, 512).long()
        )

    ids = torch.tensor([[5, 7, 2, 9, 1, 8, 4, 3], [5, 7, 2, 9, 1, 0, 0, 0]])
    length = ids.shape[1]
    sequence, padding = layers.create_seq_mask(length), layers.create_pad_mask(ids)
    both = layers.combine_masks(sequence, padding)  # floats to add, and True = may attend
    local = layers.create_local_mask(length, 4)

    attend = layers.MultiHeadAttention(64, 8)
    x, memory = torch.randn(2, length, 64), torch.randn(2, 5, 64)
    chunks = [attend(x[:, first : first + 3], x, x) for first in range(0, length, 3)]
    block = layers.TransformerEncoderLayer(64, 8, 4 * 64, dropout=0.0, norm_first=True, batch_first=True)
    return {
        "T3.1 32 sentences of 512 tokens at BERT's sizes": embedded,
        "T3.1 parameters of the table": torch.tensor(bert.weight.numel()),
        "T3.3 sequence mask": sequence,
        "T3.4 padding mask": padding.int(),
        "T3.5 both, second sentence": both[1].int(),
        "T3.5 attention under both": attend(x, x, x, mask=both).detach(),
        "T3.6 keys of each query in a window of 4": local.sum(1),
        "T3.7 integer mask, 0 hides": attend(x, x, x, mask=both.int()).detach(),
        "T3.9 attention": attend(x, x, x).detach(),
        "T3.10 attention across, with padding": attend(x, memory, memory, mask=padding[:, :, :5]).detach(),
        "T3.11 three queries at a time": torch.cat(chunks, 1).detach(),
        "T3.12 local attention": attend(x, x, x, mask=local).detach(),
        "T3.15 block": block(x).detach(),
        # The last one: it changes the weights of `attend`.
        "T3.14 attention in bfloat16": attend.bfloat16()(*[x.bfloat16()] * 3).detach(),
    }


def tutorial_4(layers: Any) -> Results:
    """Embed, attend, and train both with a linear map behind to tell which of two words comes first."""
    ids, first = torch.randint(2, 100, (16, 12)), torch.randint(2, (16,))
    ids[:, 3], ids[:, 8] = first, 1 - first
    embed, attend = layers.EmbeddingLayer(100, 64), layers.MultiHeadAttention(64, 8)
    x = embed(ids)
    results = {
        "T4.1 x + positions": layers.PositionalEncoding(64)(torch.ones(1, 10, 64)),
        "T4.2 embedding layer": x.detach(),
        "T4.3 multi-head attention": attend(x, x, x).detach(),
    }

    head = nn.Linear(64, 2)
    optimizer = torch.optim.AdamW([p for layer in (embed, attend, head) for p in layer.parameters()], lr=1e-3)
    losses = []
    for _ in range(20):
        x = embed(ids)
        loss = F.cross_entropy(head(attend(x, x, x).mean(1)), first)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return results | {"T4.4 loss of 20 steps": torch.stack(losses)}


PROGRAMS: tuple[Callable[[Any], Results], ...] = (tutorial_1, tutorial_2, tutorial_3, tutorial_4)


def run(layers: Any) -> Results:
    """Run all programs, each from its own seed."""
    results: Results = {}
    for seed, program in enumerate(PROGRAMS):
        torch.manual_seed(seed)
        results |= program(layers)
    return results


def difference(ours: Tensor, plain: Tensor) -> float:
    """The largest difference, in units of the largest number."""
    if ours.shape != plain.shape or ours.dtype != plain.dtype:
        return math.inf
    # Where both are -inf they agree.
    apart = torch.where(ours == plain, 0.0, (ours - plain).double().abs())
    scale = float(plain[plain.isfinite()].double().abs().amax()) or 1.0
    return float(apart.max()) / scale


def draw(table: Tensor, folder: Path) -> None:
    """T1.5: single dimensions over positions, and the whole table, if matplotlib is there."""
    try:
        import matplotlib
    except ImportError:
        print("\nT1.5 matplotlib is not installed: no pictures")
        return
    matplotlib.use("Agg")
    from tegula import plot

    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in (("curves", plot.position_curves), ("heatmap", plot.position_heatmap)):
        picture(table[:100]).figure.savefig(folder / f"positions_{name}.png")
    print(f"\nT1.5 pictures of the table are in {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Four tutorials on tegula's layers, compared with plain torch.")
    parser.add_argument("--reference", action="store_true", help="only on plain torch")
    parser.add_argument("--pictures", type=Path, default=Path("build/pictures"), metavar="FOLDER", help="where to draw")
    arguments = parser.parse_args()
    torch.set_printoptions(precision=4, sci_mode=False, linewidth=120)

    plain = run(plain_layers)
    results = plain if arguments.reference else run(tegula_layers)
    apart = {}
    for name, value in results.items():
        shape = f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
        if not arguments.reference:
            apart[name] = difference(value, plain[name]) / (BF16 if value.dtype is torch.bfloat16 else FLOAT32)
            shape += f", {difference(value, plain[name]):.0e} from plain torch"
        print(f"{name}: {shape}")
        if value.numel() <= 64:
            print("    " + str(value).replace("\n", "\n    "))
    draw(results["T1.2 table of 512 positions"], arguments.pictures)
    if not arguments.reference:
        far = [name for name, value in apart.items() if not value <= 1]
        print(
            f"\n{len(apart) - len(far)} of {len(apart)} results agree with plain torch"
            + "".join(f"\n  not {n}" for n in far)
        )
        if far:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
