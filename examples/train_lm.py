"""Train a small language model on Python's own documentation, packed without padding.

    python examples/train_lm.py [--steps N] [--reference | --compare] ...

The text comes from ``pydoc_data.topics``, which every Python has; a byte-pair tokenizer is trained on it first. A step
takes a few documents, of which long ones give a random window of `--context` tokens. With ``--reference`` the same
model trains on plain torch with padding (see language_model.py): the same first weights, the same batches, the same
loss. With ``--compare`` both train, a step of one after a step of the other, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import numpy as np
import tegula as tg
import torch
from language_model import Document, LanguageModel, PaddedModel, Sizes
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from tqdm import tqdm

END = "<end>"
PROMPT = "The following"
WARM_UP = 20  # steps over which the learning rate rises
LAST = 20  # steps whose mean is the final loss


class Step(NamedTuple):
    """What one step of training gave."""

    loss: float
    tokens: int  # real ones, which have a target
    seconds: float


def main() -> None:
    arguments = parsed()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    config = tg.config()
    print(f"tegula {config['version']} on {config['isa']['active']}, torch {torch.__version__}, ", end="")
    print(f"{torch.get_num_threads()} threads")

    tokenizer = train_tokenizer(arguments.vocab)
    documents = read_documents(tokenizer)
    sizes = Sizes(
        tokenizer.get_vocab_size(),
        arguments.dim,
        arguments.heads,
        arguments.layers,
        arguments.context,
        arguments.dropout,
    )
    kinds = {"packed": LanguageModel, "padded": PaddedModel}
    if not arguments.compare:
        del kinds["packed" if arguments.reference else "padded"]
    trained = {name: build(kind, sizes, arguments.seed) for name, kind in kinds.items()}
    model = next(iter(trained.values()))
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(documents)} documents, {sum(map(len, documents))} tokens; {parameters} parameters\n")

    runs = {name: train(each, documents, arguments) for name, each in trained.items()}
    results = with_bar(runs, arguments.steps)
    print()
    for name, steps in results.items():
        print(f"{name}: {summary(steps)}")
    if arguments.compare:
        print(f"ratio: {speed(results['packed']) / speed(results['padded']):.2f}", end="")
        apart = max(abs(a.loss - b.loss) for a, b in zip(*results.values(), strict=True))
        print(f", losses at most {apart:.1e} apart" if not sizes.dropout else " (dropout differs, and so do losses)")
    print("\n" + sample(model, tokenizer, arguments.sample, arguments.seed))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small language model on Python's documentation.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--reference", action="store_true", help="the same model on plain torch, with padding")
    which.add_argument("--compare", action="store_true", help="both, step by step")
    numbers: dict[str, tuple[Callable[[str], Any], Any, str]] = {
        "steps": (int, 200, "optimizer steps"),
        "batch": (int, 8, "documents per step"),
        "context": (int, 1024, "tokens of the longest document"),
        "vocab": (int, 1024, "tokens of the tokenizer"),
        "dim": (int, 128, "numbers per token"),
        "heads": (int, 4, "attention heads"),
        "layers": (int, 4, "layers"),
        "dropout": (float, 0.1, "probability of dropout"),
        "rate": (float, 1e-3, "learning rate"),
        "seed": (int, 0, "of weights, batches and dropout"),
        "threads": (int, None, "threads of torch and tegula"),
        "sample": (int, 60, "tokens to write at the end"),
    }
    for name, (kind, default, text) in numbers.items():
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=f"{text} (default: {default})")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    return arguments


def train_tokenizer(vocab: int) -> Tokenizer:
    """Return a byte-pair tokenizer of Python's documentation."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(topics.values(), trainer)
    return tokenizer


def read_documents(tokenizer: Tokenizer) -> list[Document]:
    """Return the token ids of every topic, with an end token behind."""
    end = tokenizer.token_to_id(END)
    return [np.array([*encoding.ids, end]) for encoding in tokenizer.encode_batch(list(topics.values()))]


def batches(documents: list[Document], batch: int, context: int, seed: int) -> Iterator[list[Document]]:
    """Yield lists of documents without end: `batch` different ones, each `context` + 1 tokens of it at most."""
    random = np.random.default_rng(seed)
    while True:
        chosen = (documents[index] for index in random.choice(len(documents), batch, replace=False))
        starts = ((document, random.integers(max(len(document) - context, 1))) for document in chosen)
        yield [document[start : start + context + 1] for document, start in starts]


def build(kind: Callable[[Sizes], Any], sizes: Sizes, seed: int) -> Any:
    """Return a model with the weights that belong to the seed: those of `LanguageModel` for both kinds."""
    torch.manual_seed(seed)
    model = LanguageModel(sizes)
    if kind is not LanguageModel:
        weights = model.state_dict()
        model = kind(sizes)
        model.load_state_dict(weights)
    return model


def train(model: Any, documents: list[Document], arguments: argparse.Namespace) -> Iterator[Step]:
    """Train step by step, without end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
    model.train()
    torch.manual_seed(arguments.seed)  # dropout
    for batch in batches(documents, arguments.batch, arguments.context, arguments.seed):
        start = time.perf_counter()
        loss = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield Step(loss.item(), sum(len(d) - 1 for d in batch), time.perf_counter() - start)


def with_bar(runs: dict[str, Iterator[Step]], steps: int) -> dict[str, list[Step]]:
    """Take so many steps of each run, in turn, under a progress bar."""
    done: dict[str, list[Step]] = {name: [] for name in runs}
    with tqdm(total=steps, unit=" steps") as bar:
        for _ in range(steps):
            for name, run in runs.items():
                done[name].append(next(run))
            bar.set_postfix_str(", ".join(f"loss {s[-1].loss:.3f}, {speed(s):.0f} tokens/s" for s in done.values()))
            bar.update()
    return done


def speed(steps: list[Step]) -> float:
    """Real tokens per second."""
    return sum(s.tokens for s in steps) / sum(s.seconds for s in steps)


def summary(steps: list[Step]) -> str:
    """Return the line that a run ends with."""
    last = [s.loss for s in steps[-LAST:]]
    return (
        f"{len(steps)} steps, loss {steps[0].loss:.4f} -> {sum(last) / len(last):.4f} "
        f"(mean of the last {len(last)}), {speed(steps):.0f} tokens/s"
    )


def sample(model: Any, tokenizer: Tokenizer, count: int, seed: int) -> str:
    """Let the model go on with PROMPT, at temperature 0.7."""
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    ids = tokenizer.encode(PROMPT).ids
    step, following = model.decoder(), torch.tensor(ids)
    for _ in range(min(count, model.sizes.context - len(ids))):
        with torch.no_grad():
            chances = torch.softmax(step(following) / 0.7, -1)
        following = torch.multinomial(chances, 1, generator=generator)
        ids.append(int(following))
        if ids[-1] == tokenizer.token_to_id(END):
            break
    text: str = tokenizer.decode(ids)
    return text


if __name__ == "__main__":
    main()
