"""Arrays of any strides, order, alignment and origin are read right and never written to."""

import itertools

import numpy as np
import pytest
import tegula as tg
from cases import AttentionCase
from support import DTYPES, draw, poisoned, run_python, same_bits

# Each makes an array of equal values whose memory lies differently.


def in_every_other(x, axis):
    """A strided slice of a larger array with poison in between."""
    wide = poisoned([2 * n if a == axis % x.ndim else n for a, n in enumerate(x.shape)], x.dtype)
    view = np.moveaxis(np.moveaxis(wide, axis, 0)[::2], 0, axis)
    view[...] = x
    return view


def reversed_along(x, axis):
    return np.flip(np.flip(x, axis).copy(), axis)


def inside_a_larger_one(x):
    """Poison stands on every side, and the first element is not where the allocation starts."""
    room = poisoned([n + 3 for n in x.shape], x.dtype)
    view = room[tuple(slice(1, n + 1) for n in x.shape)]
    view[...] = x
    return view


def in_order(x, *axes):
    """The axes lie in memory as `axes` says, outermost first."""
    return x.transpose(axes).copy().transpose(np.argsort(axes))


def at_odd_bytes(x):
    """Elements that do not lie at multiples of their size."""
    raw = np.empty(x.nbytes + 1, np.uint8)[1:]
    view = raw.view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def field_of_a_record(x):
    """Strides that are no multiples of the element size."""
    record = np.zeros(x.shape, [("before", np.uint8), ("number", x.dtype)])
    record["number"] = x
    return record["number"]


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "fortran": np.asfortranarray,
    "heads-inside": lambda x: in_order(x, 0, 2, 1, 3),
    "heads-innermost": lambda x: in_order(x, 0, 2, 3, 1),
    "batch-innermost": lambda x: in_order(x, 1, 2, 3, 0),
    **{f"every-other-{axis}": lambda x, axis=axis: in_every_other(x, axis) for axis in range(4)},
    **{f"reversed-{axis}": lambda x, axis=axis: reversed_along(x, axis) for axis in range(4)},
    "inside": inside_a_larger_one,
    "odd-bytes": at_odd_bytes,
    "record": field_of_a_record,
    "read-only": read_only,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_c57_any_strides_give_the_bits_of_contiguous_arrays(layout, dtype):
    case = AttentionCase(21, 35, 16, value_dim=5, heads=4, kv_heads=2, dtype=dtype)
    packed = case.arrays()
    strided = [LAYOUTS[layout](x) for x in packed]
    assert all(np.array_equal(x, y) for x, y in zip(packed, strided, strict=True))
    expect = tg.attention(*packed, return_lse=True)
    # Each array alone, then all three: they need not lie alike.
    for chosen in ((0,), (1,), (2,), (0, 1, 2)):
        mixed = [strided[i] if i in chosen else packed[i] for i in range(3)]
        got = tg.attention(*mixed, return_lse=True)
        assert all(same_bits(x, y) for x, y in zip(got, expect, strict=True)), chosen


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (3,), (0, 1), (0, 1, 2), (0, 1, 2, 3)])
def test_c57_stride_zero(axes, dtype):
    """Broadcast along batch, heads, length or head size: one number for many."""
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 3, 20, 8), "k": (2, 3, 40, 8), "v": (2, 3, 40, 8)}
    views = {}
    for name, shape in shapes.items():
        single = draw(rng, [1 if a in axes else n for a, n in enumerate(shape)], dtype)
        views[name] = np.broadcast_to(single, shape)
        assert all(views[name].strides[a] == 0 for a in axes)
    expect = tg.attention(*(x.copy() for x in views.values()))
    assert same_bits(tg.attention(**views), expect)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_c80_big_endian(dtype):
    packed = AttentionCase(dtype=dtype).arrays()
    swapped = [x.astype(x.dtype.newbyteorder(">")) for x in packed]
    bias = draw(np.random.default_rng(0), (35, 70), dtype)
    expect = tg.attention(*packed, bias=bias, return_lse=True)
    got = tg.attention(*swapped, bias=bias.astype(bias.dtype.newbyteorder(">")), return_lse=True)
    assert all(same_bits(x, y) for x, y in zip(got, expect, strict=True))
    assert got[0].dtype == np.dtype(dtype) and got[0].dtype.isnative


@pytest.mark.parametrize("dtype", DTYPES)
def test_c80_memmap(tmp_path, dtype):
    packed = AttentionCase(dtype=dtype).arrays()
    mapped = []
    for name, x in zip("qkv", packed, strict=True):
        (tmp_path / name).write_bytes(x.tobytes())
        mapped.append(np.memmap(tmp_path / name, x.dtype, "r", shape=x.shape))
    out = tg.attention(*mapped)
    assert same_bits(out, tg.attention(*packed))
    assert type(out) is np.ndarray


def test_c80_every_small_array_may_have_any_strides():
    """Masks, bias, slopes and sinks are read through their strides too."""
    q, k, v = AttentionCase(heads=4).arrays()
    rng = np.random.default_rng(0)
    visible = rng.random((35, 70)) < 0.7
    bias, slopes, sinks = draw(rng, (2, 4, 35, 70)), draw(rng, (4,)), draw(rng, (4,))
    names = ("mask", "bias", "alibi", "sinks")
    packed = dict(zip(names, (visible, bias, slopes, sinks), strict=True))
    expect = tg.attention(q, k, v, **packed)
    views = (
        lambda x: x.T.copy().T,
        lambda x: x[..., ::-1].copy()[..., ::-1],
        lambda x: x.repeat(3, axis=-1)[..., ::3],
        lambda x: np.lib.stride_tricks.as_strided(x, writeable=False),
    )
    for view in views:
        strided = {name: view(x) for name, x in packed.items()}
        assert same_bits(tg.attention(q, k, v, **strided), expect)
    row = draw(rng, (35, 1))
    whole = np.broadcast_to(row, (2, 4, 35, 70))
    assert same_bits(tg.attention(q, k, v, bias=whole), tg.attention(q, k, v, bias=whole.copy()))


def test_t3_08_a_fused_projection_is_read_where_it_lies():
    """(B, L, 3 H D) -> three views (B, H, L, D) and (B, L, H, D) without a copy."""
    batch, length, heads, dim = 2, 37, 3, 8
    fused = draw(np.random.default_rng(0), (batch, length, 3 * heads * dim))
    split = [part.reshape(batch, length, heads, dim) for part in np.split(fused, 3, axis=-1)]
    assert all(np.shares_memory(part, fused) for part in split)
    expect = tg.attention(*(x.transpose(0, 2, 1, 3).copy() for x in split))
    assert same_bits(tg.attention(*(x.transpose(0, 2, 1, 3) for x in split)), expect)
    in_place = tg.attention(*split, layout="blhd")
    assert same_bits(in_place.transpose(0, 2, 1, 3).copy(), expect)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_never_written_to(dtype):
    case = AttentionCase(mask="dense_per_batch", bias="head_pair", alibi=True, sinks=True, dropout_p=0.2, dtype=dtype)
    options = case.options(tg.masks)
    arrays = [*case.arrays(), *(x for x in options.values() if isinstance(x, np.ndarray))]
    for x in arrays:
        x.flags.writeable = False
    before = [x.tobytes() for x in arrays]
    tg.attention(*arrays[:3], **options)
    assert [x.tobytes() for x in arrays] == before


# ---------------------------------------------------------------------------------------------------
# Outputs

NOT_FOR_OUT = ("read-only", "record", "odd-bytes")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", list(itertools.product((1, 15, 49), (1, 7, 33))))
def test_out_is_written_in_full_and_nothing_around_it(sizes, dtype):
    q_len, value_dim = sizes
    q, k, v = AttentionCase(q_len, 35, 16, value_dim=value_dim, dtype=dtype).arrays()
    expect = tg.attention(q, k, v)
    room = poisoned(expect.size + 200, expect.dtype)
    out = room[100:-100].reshape(expect.shape)
    assert tg.attention(q, k, v, out=out) is out
    assert same_bits(out, expect)
    assert np.isnan(room[:100].astype(float)).all() and np.isnan(room[-100:].astype(float)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in NOT_FOR_OUT])
def test_out_of_any_strides(layout, dtype):
    q, k, v = AttentionCase(21, 35, 16, value_dim=5, dtype=dtype).arrays()
    expect = tg.attention(q, k, v)
    out = LAYOUTS[layout](np.full_like(expect, np.nan))
    around = out.base if out.base is not None else out
    others = np.isnan(around.astype(float)).sum() - out.size
    assert tg.attention(q, k, v, out=out) is out
    assert same_bits(out.copy(), expect)
    assert np.isnan(around.astype(float)).sum() == others


@pytest.mark.parametrize("sizes", [(35, 70), (70, 35), (1, 9000)])
def test_out_of_a_masked_call_is_written_in_full(sizes):
    """Rows without keys, skipped tiles and split keys leave no poison behind."""
    q_len, k_len = sizes
    q, k, v = AttentionCase(q_len, k_len, 16).arrays()
    for mask in (
        tg.masks.padding([0, 1]),
        tg.masks.sliding(3, align="bottom_right"),
        tg.masks.causal(offset=-k_len),
    ):
        out = np.full_like(q, np.nan)
        tg.attention(q, k, v, mask=mask, out=out)
        assert same_bits(out, tg.attention(q, k, v, mask=mask))
        assert np.isfinite(out).all()


GUARDED = """
    import itertools
    import numpy as np
    import tegula as tg
    from cases import AttentionCase
    from support import between_guards

    sizes = itertools.product((1, 17, 50), (1, 15, 70), (1, 3, 16, 33))
    for (q_len, k_len, dim), at_the_end in itertools.product(sizes, (False, True)):
        case = AttentionCase(q_len, k_len, dim, leading=(1,), dtype="{dtype}", mask="dense")
        q, k, v = case.arrays()
        visible = case.options(tg.masks)["mask"].dense(q_len, k_len)
        bias, sinks = q[0, :, :1, :1].repeat(k_len, -1), np.zeros(2, np.float32)
        expect = tg.attention(q, k, v, mask=visible, bias=bias, sinks=sinks)
        q, k, v, visible, bias, sinks, out = (
            between_guards(x, at_the_end) for x in (q, k, v, visible, bias, sinks, expect)
        )
        out[...] = np.nan
        tg.attention(q, k, v, mask=visible, bias=bias, sinks=sinks, out=out)
        assert out.tobytes() == expect.tobytes()
"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_read_or_written_out_of_bounds(isa, dtype):
    """Every array ends, or begins, where the process may not go."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    run_python(GUARDED.replace("{dtype}", dtype), TEGULA_ISA=isa)
