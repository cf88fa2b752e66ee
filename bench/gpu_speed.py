"""Speed on a GPU, each call beside torch's kernels for it, in turns.

    python bench/gpu_speed.py [--save FILE.json] [--seconds 0.3]

Attention is compared with torch's flash, cuDNN and memory-efficient backends, memory-bound operations
with a copy of as many bytes. Times are those of CUDA events, best and median of rounds that take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import tegula as tg
import torch
from tegula import masks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

PEERS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
Call = Callable[[], Any]


def timed(calls: dict[str, Call], seconds: float) -> dict[str, tuple[float, float]]:
    """Best and median milliseconds of each call; a call that raises is left out."""
    usable: dict[str, Call] = {}
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        try:
            call()
            repeats[name] = max(1, round(5.0 / max(once(call, 3), 0.005)))  # 5 ms a round
            usable[name] = call
        except RuntimeError as error:
            print(f"   {name}: {str(error).splitlines()[0][:90]}")
    rounds = max(5, int(seconds / 0.005))
    times: dict[str, list[float]] = {name: [] for name in usable}
    for _ in range(rounds):
        for name, call in usable.items():
            times[name].append(once(call, repeats[name]))
    return {name: (min(found), statistics.median(found)) for name, found in times.items()}


def once(call: Call, repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def peer(backend: SDPBackend, q: Any, k: Any, v: Any, causal: bool) -> Any:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def attention_cases() -> dict[str, dict[str, Call]]:
    cases: dict[str, dict[str, Call]] = {}
    for dim in (64, 128):
        for length in (1024, 4096, 16384):
            batch, heads = max(1, 16384 // length), 2048 // dim
            q, k, v = torch.randn(3, batch, heads, length, dim, device="cuda", dtype=torch.bfloat16).unbind()
            for causal in (False, True):
                mask = masks.causal() if causal else None
                ours: dict[str, Call] = {"tegula": partial(tg.attention, q, k, v, mask=mask)}
                theirs = {name: partial(peer, kind, q, k, v, causal) for name, kind in PEERS.items()}
                kind = "causal" if causal else "full"
                cases[f"forward D {dim} L {length} {kind}"] = ours | theirs
                if length <= 4096:
                    cases[f"backward D {dim} L {length} {kind}"] = backward_calls(q, k, v, mask, causal)
    return cases


def backward_calls(q: Any, k: Any, v: Any, mask: Any, causal: bool) -> dict[str, Call]:
    def call(function: Callable[..., Any]) -> Call:
        arrays = [x.detach().requires_grad_() for x in (q, k, v)]
        out = function(*arrays)
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, arrays, grad, retain_graph=True)

    def backend(kind: SDPBackend) -> Callable[..., Any]:
        return lambda *arrays: peer(kind, *arrays, causal)

    calls = {"tegula": call(lambda *arrays: tg.attention(*arrays, mask=mask))}
    for name, kind in PEERS.items():
        try:
            calls[name] = call(backend(kind))
        except RuntimeError:
            continue
    return calls


def sparse_cases() -> dict[str, dict[str, Call]]:
    """Packed rows and windows, beside flash attention of as many tokens; one query on a long cache."""
    cases: dict[str, dict[str, Call]] = {}
    q, k, v = torch.randn(3, 1, 16, 16384, 128, device="cuda", dtype=torch.bfloat16).unbind()
    lengths = [512] * 32
    packed = masks.documents(cu_seqlens=[sum(lengths[:i]) for i in range(33)])
    apart = [x.unflatten(2, (32, 512)).transpose(1, 2)[0].contiguous() for x in (q, k, v)]
    cases["packed 32 x 512"] = {
        "tegula": partial(tg.attention, q, k, v, mask=packed),
        "flash": partial(peer, PEERS["flash"], *apart, False),
    }
    cases["window 512 of 16384"] = {
        "tegula": partial(tg.attention, q, k, v, mask=masks.sliding(512)),
        "flash": partial(peer, PEERS["flash"], q, k, v, True),
    }
    for batch, length in ((1, 32768), (32, 4096)):
        one = torch.randn(batch, 32, 1, 128, device="cuda", dtype=torch.bfloat16)
        cache = torch.randn(2, batch, 8, length, 128, device="cuda", dtype=torch.bfloat16).unbind()
        cases[f"decode B {batch} Lk {length}"] = {
            "tegula": partial(tg.attention, one, *cache),
            "copy": partial(torch.clone, torch.stack(cache)[0]),  # reads half of the bytes, writes as many
            "flash": partial(peer, PEERS["flash"], one, *cache, False),
        }
    return cases


def memory_cases() -> dict[str, dict[str, Call]]:
    cases: dict[str, dict[str, Call]] = {}
    weight = torch.randn(50304, 1024, device="cuda", dtype=torch.bfloat16)
    ids = torch.randint(0, 50304, (32, 2048), device="cuda")
    rows = torch.empty(32, 2048, 1024, device="cuda", dtype=torch.bfloat16)
    cases["embedding"] = {
        "tegula": partial(tg.embedding, ids, weight, scale=32.0, position_table="sinusoidal"),
        "torch": partial(torch.nn.functional.embedding, ids, weight),
        "copy": partial(torch.clone, rows),
    }
    mask = masks.padding(torch.full((16,), 3000, device="cuda"))
    filled = torch.empty(16, 1, 4096, 4096, device="cuda", dtype=torch.bool)
    cases["dense mask"] = {
        "tegula": partial(mask.dense, 4096, 4096),
        "fill": filled.zero_,
    }
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each call")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, tegula {tg.__version__}\n")
    print("| case | ms: best (median) | beside, as many times faster |\n|---|---|---|")
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for cases in (attention_cases, sparse_cases, memory_cases):
        for name, calls in cases().items():
            times = timed(calls, options.seconds)
            found[name] = times
            if "tegula" not in times:
                continue
            best, median = times["tegula"]
            ratios = ", ".join(f"{peer} {t[0] / best:.2f}x" for peer, t in times.items() if peer != "tegula")
            print(f"| {name} | {best:.3f} ({median:.3f}) | {ratios} |")
    if options.save:
        with open(options.save, "w", encoding="utf-8") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "ms": found}, file, indent=1)


if __name__ == "__main__":
    main()
