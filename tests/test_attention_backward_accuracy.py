"""How exact the gradients of long rows are: in float32 against torch's own, in 16 bits against one rounding."""

import functools

import numpy as np
import pytest
import tegula as tg
from support import backward, draw
from tolerances import epsilon

QUANTITIES = ("dq", "dk", "dv")


def dense_gradients(grad_out, q, k, v, *, causal):
    """The formulas of gradients.attention_backward over whole matrices, in float64, head by head."""
    grads = [np.empty(x.shape) for x in (q, k, v)]
    q_len, k_len, scale = q.shape[2], k.shape[2], q.shape[3] ** -0.5
    hidden = np.triu(np.ones((q_len, k_len), bool), k_len - q_len + 1) if causal else None
    for head in np.ndindex(q.shape[:2]):
        g, a, b, c = (x[head].astype(np.float64) for x in (grad_out, q, k, v))
        scores = a @ b.T * scale
        if causal:
            scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        dscores = weights * (g @ c.T - (g * (weights @ c)).sum(-1, keepdims=True)) * scale
        for grad, x in zip(grads, (dscores @ b, dscores.T @ a, weights.T @ g), strict=True):
            grad[head] = x
    return grads


def inputs(shape, dtype, seed=0):
    """grad_out, q, k, v of (B, H, L, D)."""
    rng = np.random.default_rng(seed)
    return [draw(rng, shape, dtype) for _ in range(4)]


def options(causal):
    return {"mask": tg.masks.causal()} if causal else {}


def errors(got, exact):
    """Root mean square and largest difference, each the mean over the heads."""
    away = (np.asarray(got, np.float64) - exact).reshape(-1, *exact.shape[-2:])
    return np.sqrt((away**2).mean((1, 2))).mean(), np.abs(away).max((1, 2)).mean()


def gradients_of_torch(arrays, causal):
    """What torch's tiled kernel for the CPU gives."""
    torch = pytest.importorskip("torch")
    grad_out, *leaves = (torch.from_numpy(x) for x in arrays)
    leaves = [x.requires_grad_() for x in leaves]
    with torch.enable_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
        return [x.numpy() for x in torch.autograd.grad(out, leaves, grad_out)]


@pytest.mark.parametrize(
    ("shape", "causal"),
    [((1, 2, 517, 64), True), ((1, 2, 517, 64), False), ((2, 4, 512, 64), False), ((1, 2, 300, 128), False)],
)
def test_float32_gradients_are_nearly_as_exact_as_those_of_torch(shape, causal):
    """On every instruction set at most 1.5 times as far from float64, on average and at worst.

    The worst of one head is luck, torch's as well as ours: it is the mean over some heads that counts.
    """
    check_against_torch(shape, causal, problems=4)


@pytest.mark.isa_once
@pytest.mark.parametrize("causal", [False, True])
def test_float32_gradients_of_2048_rows_are_nearly_as_exact_as_those_of_torch(causal):
    check_against_torch((1, 2, 2048, 64), causal, problems=2)


@functools.cache
def exact_and_torchs(shape, causal, seed):
    """The arrays, their exact gradients, and the errors of torch; the same for every instruction set."""
    arrays = inputs(shape, "float32", seed)
    exact = dense_gradients(*arrays, causal=causal)
    theirs = gradients_of_torch(arrays, causal)
    return arrays, exact, [errors(x, true) for x, true in zip(theirs, exact, strict=True)]


def check_against_torch(shape, causal, problems):
    ours, theirs = np.zeros((2, len(QUANTITIES), 2))
    for seed in range(problems):
        arrays, exact, errors_of_torch = exact_and_torchs(shape, causal, seed)
        got = backward(*arrays, **options(causal))
        ours += [errors(x, true) for x, true in zip(got, exact, strict=True)]
        theirs += errors_of_torch
    times = ours / theirs
    told = ", ".join(
        f"{name} {rms:.2f} (at worst {most:.2f})" for name, (rms, most) in zip(QUANTITIES, times, strict=True)
    )
    assert (times <= 1.5).all(), f"times torch's error: {told}"


def away(x, exact):
    """Relative L2 error."""
    return np.linalg.norm(np.asarray(x, np.float64) - exact) / np.linalg.norm(exact)


@pytest.mark.isa_once
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_c68_gradients_in_16_bits_are_rounded_once(dtype):
    """At most 1.1 times as far from float64 as its own rounding to the type is."""
    check_against_a_rounding((1, 2, 2048, 64), dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_c68_gradients_in_16_bits_are_rounded_once_on_every_instruction_set(dtype):
    check_against_a_rounding((1, 1, 1024, 64), dtype)


def check_against_a_rounding(shape, dtype):
    arrays = inputs(shape, dtype)
    exact = dense_gradients(*arrays, causal=False)
    for name, x, true in zip(QUANTITIES, backward(*arrays), exact, strict=True):
        ours, floor = away(x, true), away(true.astype(x.dtype), true)
        assert ours <= 1.1 * floor, f"{name}: {ours:.3g}, one rounding {floor:.3g}, {ours / floor:.3f} times"


def test_errors_do_not_grow_with_the_number_of_rows():
    """dk and dv of 64 keys, summed over 16 times as many rows: relative errors stay where they were."""
    found = []
    rng = np.random.default_rng(0)
    for length in (512, 8192):
        arrays = [draw(rng, (1, 1, n, 32)) for n in (length, length, 64, 64)]
        exact = dense_gradients(*arrays, causal=False)
        found.append([away(x, true) for x, true in zip(backward(*arrays), exact, strict=True)])
    for name, short, long in zip(QUANTITIES, *found, strict=True):
        assert long <= 2 * short + epsilon("float32") / 4, f"{name}: {short:.3g} and {long:.3g}"
