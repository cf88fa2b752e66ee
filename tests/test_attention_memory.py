"""Memory grows with the length, never with its square, and offsets are 64 bits wide."""

import pytest
from support import DTYPES, run_python

MEGABYTE = 2**20

# Resident memory of this process and its peak, in bytes; the peak starts anew after `forget_peak()`.
MEASURE = """
    import numpy as np
    import tegula as tg

    def status(field):
        for line in open("/proc/self/status"):
            if line.startswith(field):
                return int(line.split()[1]) * 1024

    def forget_peak():
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")

    def extra_memory(call):
        call()  # the first call starts the threads and their scratch memory
        forget_peak()
        before = status("VmRSS")
        call()
        print(status("VmHWM") - before)
"""


def extra_memory(script):
    """Bytes that the second `call()` of the script needed at its peak."""
    return int(run_python(MEASURE + script))


@pytest.mark.isa_once
def test_attention_over_131072_keys_with_a_window_of_128_stays_small():
    """Beside inputs and output, under 64 MB on the very first call; and a few rows are the twin's."""
    used = run_python(
        MEASURE
        + """
    length, dim, left = 131072, 64, 128
    rng = np.random.default_rng(0)
    q, k, v, out = (np.zeros((1, 1, length, dim), np.float32) for _ in range(4))
    for x in (q, k, v, out):
        rng.standard_normal(out=x, dtype=np.float32)
    forget_peak()
    before = status("VmRSS")
    tg.attention(q, k, v, mask=tg.masks.window(left, 0), out=out)
    print(status("VmHWM") - before)

    from tolerances import assert_attention_close, attention_twins
    for row in (0, 1, 127, 128, 129, 65536, length - 1):
        at, keys = np.s_[:, :, row : row + 1], np.s_[:, :, max(0, row - left) : row + 1]
        assert_attention_close(out[at], None, None, attention_twins(q[at], k[keys], v[keys]))
    """
    )
    assert int(used) < 64 * MEGABYTE


@pytest.mark.isa_once
def test_c48_a_structured_mask_costs_memory_by_its_length():
    """Sixteen masks of 131072 x 131072 pairs, built and brought to their normal form."""
    used = extra_memory(
        """
    n = 131072
    m = tg.masks
    def call():
        cu = np.arange(0, n + 1, 1024)
        for mask in (
            m.causal(), m.sliding(128), m.window(128, 128), m.padding([n // 2]), m.prefix([99]),
            m.documents(cu_seqlens=cu), m.sliding(128) & m.documents(cu_seqlens=cu),
        ):
            mask.intervals(n, n)
            assert mask.area(n, n) > 0
    extra_memory(call)
    """
    )
    assert used < 32 * MEGABYTE


@pytest.mark.isa_once
@pytest.mark.parametrize(
    "options",
    [
        "{}",
        "{'dropout_p': 0.1, 'seed': 1}",
        "{'mask': tg.masks.causal(), 'return_lse': True}",
        "{'bias': np.zeros((1, 4096), np.float32), 'sinks': np.zeros(2, np.float32)}",
        "{'bias': np.broadcast_to(np.float32(0), (1, 2, 4096, 4096))}",
        "{'mask': np.broadcast_to(np.ones((1, 4096), bool), (4096, 4096))}",
    ],
    ids=["plain", "dropout", "causal", "bias", "bias-broadcast", "mask-broadcast"],
)
def test_c64_scores_are_never_stored(options):
    """2 heads of 4096 x 4096 float32 scores would be 128 MB; no option leaves the tiled path."""
    used = extra_memory(
        f"""
    q, k, v, out = (np.ones((1, 2, 4096, 16), np.float32) for _ in range(4))
    extra_memory(lambda: tg.attention(q, k, v, out=out, **{options}))
    """
    )
    assert used < 16 * MEGABYTE


@pytest.mark.isa_once
def test_grouped_heads_are_not_repeated_in_memory():
    used = extra_memory(
        """
    q = np.ones((1, 64, 1, 64), np.float32)
    k, v = (np.ones((1, 1, 16384, 64), np.float32) for _ in range(2))
    extra_memory(lambda: tg.attention(q, k, v))
    """
    )
    assert used < 16 * MEGABYTE  # one repetition of k and v alone: 512 MB


@pytest.mark.isa_once
def test_calls_do_not_leak():
    """A thousand calls, good and bad, leave memory where it was."""
    grown = run_python(
        MEASURE
        + """
    q, k, v = (np.ones((2, 2, 64, 16), np.float32) for _ in range(3))
    mask = tg.masks.causal() & tg.masks.padding([64, 3])
    def calls(n):
        for _ in range(n):
            tg.attention(q, k, v, mask=mask, return_lse=True, return_weights=True)
            try:
                tg.attention(q, k[:, :, 1:], v)
            except ValueError:
                pass
        return status("VmRSS")
    print(-calls(300) + calls(1000))
    """
    )
    assert int(grown) < 4 * MEGABYTE


@pytest.mark.isa_once
def test_c54_more_keys_than_32_bits_can_address():
    """2**25 + 1 keys of 64 numbers: 2**31 elements, all the same row. The result is that row.

    The values are powers of two, so that sums over equal weights are exact until the last division.
    """
    run_python(
        """
    import numpy as np
    import tegula as tg
    keys = 2**31 // 64 + 1
    q = np.random.default_rng(0).standard_normal((1, 1, 3, 64), dtype=np.float32)
    row = 2.0 ** np.random.default_rng(1).integers(-3, 4, 64).astype(np.float32)
    row[::3] *= -1
    k, v = (np.broadcast_to(row, (1, 1, keys, 64)) for _ in range(2))
    out, lse = tg.attention(q, k, v, return_lse=True)
    one_rounding = np.finfo(np.float32).eps
    np.testing.assert_allclose(out, np.broadcast_to(row, out.shape), rtol=one_rounding)
    one_key = tg.attention(q, k[:, :, :1], v[:, :, :1], return_lse=True)[1].astype(float)
    np.testing.assert_allclose(lse, one_key + np.log(keys), rtol=one_rounding)
    """,
        timeout=300,
    )


FAR_APART = """
    import numpy as np
    import tegula as tg
    from cases import AttentionCase
    from support import far_apart

    case = AttentionCase(5, 5, 5, heads=5, leading=(5,), dtype="{dtype}")
    packed = case.arrays()
    expect = tg.attention(*packed)
    for axis in range(4):
        far = [far_apart(x, axis) for x in packed]
        assert tg.attention(*far).tobytes() == expect.tobytes()
        out = far_apart(np.full_like(expect, np.nan), axis)
        tg.attention(*packed, out=out)
        assert np.ascontiguousarray(out).tobytes() == expect.tobytes()
"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_c54_strides_past_the_reach_of_32_bits(isa, dtype):
    """Every axis in turn spans 2**32 elements: address space is reserved, hardly any memory is used."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    run_python(FAR_APART.replace("{dtype}", dtype), TEGULA_ISA=isa)
