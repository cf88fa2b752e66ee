"""How the tasks of a call divide among 8, 64 and 192 workers, by the costs that the plan gives them.

Nothing is timed: whoever is free takes the next task, and a task lasts as long as its visible pairs say.

    python bench/balance.py
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import tegula as tg
from tegula import masks

WORKERS = (8, 64, 192)


def cases() -> dict[str, dict[str, Any]]:
    """Arguments of `tegula.explain` by name."""
    rng = np.random.default_rng(7)
    ragged = np.cumsum([0, *rng.integers(1, 1024, 64)])
    huge = np.cumsum([0, *[3] * 2000, 4096, *[3] * 2000])
    lengths = rng.integers(1, 513, 32)
    return {
        "full (1,12,2048)": {"q_len": 2048, "heads": 12},
        "causal (1,12,2048)": {"mask": masks.causal(), "q_len": 2048, "heads": 12},
        "full (8,12,512)": {"q_len": 512, "batch": 8, "heads": 12},
        "causal (8,12,512)": {"mask": masks.causal(), "q_len": 512, "batch": 8, "heads": 12},
        "64 documents of 1..1023": {"mask": masks.documents(cu_seqlens=ragged), "heads": 12},
        "one of 4096 among 4000 of 3": {"mask": masks.documents(cu_seqlens=huge), "heads": 12},
        "10000 documents of 3": {"mask": masks.documents(cu_seqlens=np.arange(0, 30001, 3)), "heads": 12},
        "padded (32,12,512)": {"mask": masks.padding(lengths, queries=lengths), "q_len": 512, "heads": 12},
        "window 256 (1,8,8192)": {"mask": masks.sliding(256), "q_len": 8192, "heads": 8},
        "full (1,1,8192)": {"q_len": 8192},
        "causal (1,1,8192)": {"mask": masks.causal(), "q_len": 8192},
        "decode (8,32/8,1), 32768 keys": {
            "q_len": 1, "k_len": 32768, "batch": 8, "heads": 32, "key_heads": 8, "dim": 128,
        },
    }  # fmt: skip


def main() -> None:
    """Print the time of the last worker over the mean, and how many tasks there are."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    print(
        "time of the last worker over the mean of all (1.00: even), and the number of tasks; names: (batch, heads, L)"
    )
    print(f"{'':32s}{'':9s}" + "".join(f"{n:>8d} workers" for n in WORKERS))
    for name, options in cases().items():
        for backward in (False, True):
            line = f"{name:32s}{'backward' if backward else 'forward':9s}"
            for workers in WORKERS:
                found = tg.explain(**options, backward=backward, threads=workers)
                line += f"{1 / found.balance:8.2f} {len(found.tasks):7d}"
            print(line)


if __name__ == "__main__":
    main()
