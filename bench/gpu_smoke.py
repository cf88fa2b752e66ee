"""One call of each operation on a GPU, forward and backward, against the processor's results.

    python bench/gpu_smoke.py [--small]

`--small` keeps shapes small enough for tools that slow kernels down by a thousand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import tegula as tg
import torch
from tegula import masks

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference, relative to that of what is expected."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))


def attention(dtype: torch.dtype, size: int, **options: object) -> list[float]:
    q, k, v = torch.randn(3, 2, 4, size, 64, dtype=torch.float64).unbind()
    k, v = k[:, :2], v[:, :2]
    results = []
    for device, kind in (("cuda", dtype), ("cpu", torch.float64)):
        arrays = [x.to(dtype).to(device, kind).requires_grad_() for x in (q, k, v)]
        out = tg.attention(*arrays, **options)
        out.backward(torch.ones_like(out))
        results.append([out, *(x.grad for x in arrays)])
    return [apart(a, b) for a, b in zip(*results, strict=True)]


def embedding(dtype: torch.dtype, size: int) -> list[float]:
    weight, ids = torch.randn(50, 96, dtype=dtype), torch.randint(0, 50, (2, size))
    results = []
    for device in ("cuda", "cpu"):
        table = weight.to(device).requires_grad_()
        options = {"scale": 2.0, "position_table": "sinusoidal", "dropout_p": 0.1, "seed": 3, "padding_idx": 0}
        out = tg.embedding(ids.to(device), table, **options)
        out.backward(torch.ones_like(out))
        results.append([out, table.grad])
    return [apart(a, b) for a, b in zip(*results, strict=True)]


def positions(dtype: torch.dtype, size: int) -> list[float]:
    where = torch.arange(size) * 1009
    return [apart(*(tg.positional_encoding(where.to(d), 64, dtype=dtype) for d in ("cuda", "cpu")))]


def mask(dtype: torch.dtype, size: int) -> list[float]:
    lengths = torch.tensor([size // 2, size])
    shown = [masks.padding(lengths.to(d)).dense(size, size) for d in ("cuda", "cpu")]
    return [apart(*(x.to(dtype) for x in shown))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    size = 70 if parser.parse_args().small else 1100
    torch.manual_seed(0)
    packed = masks.documents(cu_seqlens=[0, size // 3, size], causal="bottom_right")
    calls: dict[str, Callable[[torch.dtype], list[float]]] = {
        "attention": lambda t: attention(t, size),
        "attention causal": lambda t: attention(t, size, mask=masks.causal()),
        "attention packed": lambda t: attention(t, size, mask=packed),
        "attention window, dropout": lambda t: attention(t, size, mask=masks.sliding(40), dropout_p=0.2, seed=7),
        "attention softcap, alibi": lambda t: attention(t, size, softcap=5.0, alibi=[0.1, 0.2, 0.3, 0.4]),
        "embedding": lambda t: embedding(t, size),
        "positions": lambda t: positions(t, size),
        "mask": lambda t: mask(t, size),
    }
    wrong = 0
    for name, call in calls.items():
        for dtype in DTYPES:
            errors = call(dtype)
            good = max(errors) <= TOLERANCE[dtype]
            wrong += not good
            text = " ".join(f"{error:.1e}" for error in errors)
            print(f"{'ok   ' if good else 'WRONG'} {name:28s} {str(dtype).removeprefix('torch.'):9s} {text}")
    torch.cuda.synchronize()
    tg.cuda.check()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
