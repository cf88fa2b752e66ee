"""Backward reads arrays of any strides, order and origin, writes nothing but gradients, and these in full."""

import dataclasses
import itertools

import numpy as np
import pytest
import tegula as tg
from cases import AttentionCase
from support import DTYPES, all_same_bits, backward, draw, poisoned, run_python, same_bits
from test_attention_arrays import LAYOUTS, NOT_FOR_OUT

CASE = AttentionCase(21, 35, 16, value_dim=5, heads=4, kv_heads=2)
NAMES = ("grad_out", "q", "k", "v", "out", "lse")


def call_of(dtype="float32", case=CASE):
    """The six arrays of a call, by name."""
    case = dataclasses.replace(case, dtype=dtype)
    q, k, v = case.arrays()
    out, lse = tg.attention(q, k, v, return_lse=True)
    return dict(zip(NAMES, (case.grad_out(), q, k, v, out, lse), strict=True))


# ---------------------------------------------------------------------------------------------------
# Inputs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_c57_any_strides_give_the_bits_of_contiguous_arrays(layout, dtype):
    packed = call_of(dtype)
    change = LAYOUTS[layout]
    # lse has no head size; it takes one for the change of its layout.
    strided = {n: change(x) if n != "lse" else change(x[..., None])[..., 0] for n, x in packed.items()}
    assert all(np.array_equal(packed[n], strided[n]) for n in NAMES)
    expect = tg.attention_backward(**packed)
    # Each array alone, then all of them: they need not lie alike.
    for chosen in (*((name,) for name in NAMES), NAMES):
        got = tg.attention_backward(**(packed | {name: strided[name] for name in chosen}))
        assert all_same_bits(got, expect), chosen


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (3,), (0, 1), (0, 1, 2), (0, 1, 2, 3)])
def test_c57_stride_zero(axes, dtype):
    """One number for many along batch, heads, length or head size, in every array that allows it."""
    rng = np.random.default_rng(0)

    def repeated(shape):
        single = draw(rng, [1 if a in axes else n for a, n in enumerate(shape)], dtype)
        view = np.broadcast_to(single, shape)
        assert all(view.strides[a] == 0 for a in axes)
        return view

    grad_out, q, k, v, out = (repeated((2, 3, n, 8)) for n in (20, 20, 40, 40, 20))
    lse = np.broadcast_to(np.float64(4) if dtype == "float64" else np.float32(4), (2, 3, 20))
    arrays = dict(zip(NAMES, (grad_out, q, k, v, out, lse), strict=True))
    expect = tg.attention_backward(**{name: x.copy() for name, x in arrays.items()})
    assert all_same_bits(tg.attention_backward(**arrays), expect)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_of_a_sum_is_a_one_of_stride_zero(dtype):
    packed = call_of(dtype)
    ones = np.ones_like(packed["out"])
    single = np.broadcast_to(ones[:1, :1, :1, :1], ones.shape)
    assert single.strides == (0, 0, 0, 0)
    expect = tg.attention_backward(**packed | {"grad_out": ones})
    assert all_same_bits(tg.attention_backward(**packed | {"grad_out": single}), expect)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_c80_big_endian(dtype):
    packed, bias = call_of(dtype), draw(np.random.default_rng(0), (21, 35), dtype)

    def swapped(x):
        return x.astype(x.dtype.newbyteorder(">"))

    sinks = draw(np.random.default_rng(1), (4,), dtype)
    expect = tg.attention_backward(**packed, bias=bias, sinks=sinks)
    options = {"bias": swapped(bias), "sinks": swapped(sinks)}
    got = tg.attention_backward(**{name: swapped(x) for name, x in packed.items()}, **options)
    assert len(got) == 5 and all(x.dtype.isnative for x in got)
    assert all_same_bits(got, expect)


@pytest.mark.parametrize("dtype", DTYPES)
def test_c80_memmap(tmp_path, dtype):
    packed, mapped = call_of(dtype), {}
    for name, x in packed.items():
        (tmp_path / name).write_bytes(x.tobytes())
        mapped[name] = np.memmap(tmp_path / name, x.dtype, "r", shape=x.shape)
    got = tg.attention_backward(**mapped)
    assert all_same_bits(got, tg.attention_backward(**packed))
    assert all(type(x) is np.ndarray for x in got)


def test_t3_08_a_fused_projection_is_read_where_it_lies():
    """(B, L, 3 H D) -> q, k, v; and their gradients go back into one buffer of that shape."""
    batch, length, heads, dim = 2, 37, 3, 8
    rng = np.random.default_rng(0)
    fused, grad_fused = draw(rng, (batch, length, 3 * heads * dim)), poisoned((batch, length, 3 * heads * dim), "f4")
    grad_out = draw(rng, (batch, length, heads, dim))

    def parts(x):
        return [part.reshape(batch, length, heads, dim) for part in np.split(x, 3, axis=-1)]

    expect = backward(*(x.transpose(0, 2, 1, 3).copy() for x in (grad_out, *parts(fused))))
    out, lse = tg.attention(*parts(fused), layout="blhd", return_lse=True)
    grads = tuple(parts(grad_fused))
    assert all(np.shares_memory(x, grad_fused) for x in grads)
    tg.attention_backward(grad_out, *parts(fused), out, lse, layout="blhd", grads=grads)
    assert all_same_bits([x.transpose(0, 2, 1, 3).copy() for x in parts(grad_fused)], expect)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_never_written_to(dtype):
    case = AttentionCase(mask="dense_per_batch", bias="head_pair", alibi=True, sinks=True, dropout_p=0.2, dtype=dtype)
    options = case.options(tg.masks)
    q, k, v = case.arrays()
    out, lse = tg.attention(q, k, v, **options, return_lse=True)
    arrays = [case.grad_out(), q, k, v, out, lse]
    everything = arrays + [x for x in options.values() if isinstance(x, np.ndarray)]
    for x in everything:
        x.flags.writeable = False
    before = [x.tobytes() for x in everything]
    tg.attention_backward(*arrays, **options)
    assert [x.tobytes() for x in everything] == before


# ---------------------------------------------------------------------------------------------------
# Outputs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", list(itertools.product((1, 15, 49), (1, 7, 33), (1, 16, 19))))
def test_grads_are_written_in_full_and_nothing_around_them(sizes, dtype):
    q_len, k_len, dim = sizes
    packed = call_of(dtype, AttentionCase(q_len, k_len, dim))
    expect = tg.attention_backward(**packed)
    rooms = [poisoned(x.size + 200, x.dtype) for x in expect]
    grads = tuple(room[100:-100].reshape(x.shape) for room, x in zip(rooms, expect, strict=True))
    got = tg.attention_backward(**packed, grads=grads)
    assert all(x is y for x, y in zip(got, grads, strict=True))
    assert all_same_bits(grads, expect)
    for room in rooms:
        assert np.isnan(room[:100].astype(float)).all() and np.isnan(room[-100:].astype(float)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in NOT_FOR_OUT])
def test_grads_of_any_strides(layout, dtype):
    packed = call_of(dtype)
    expect = tg.attention_backward(**packed)
    grads = tuple(LAYOUTS[layout](np.full_like(x, np.nan)) for x in expect)
    around = [x.base if x.base is not None else x for x in grads]
    others = [np.isnan(room.astype(float)).sum() - x.size for room, x in zip(around, grads, strict=True)]
    tg.attention_backward(**packed, grads=grads)
    assert all_same_bits([x.copy() for x in grads], [x.copy() for x in expect])
    assert [np.isnan(room.astype(float)).sum() for room in around] == others


@pytest.mark.parametrize("sizes", [(35, 70), (70, 35), (1, 9000), (600, 300)])
def test_grads_of_a_masked_call_are_written_in_full(sizes):
    """Rows and keys without a partner, skipped tiles and split work leave no poison behind."""
    q_len, k_len = sizes
    case = AttentionCase(q_len, k_len, 16)
    for mask in (
        tg.masks.padding([0, 1]),
        tg.masks.padding(np.array([k_len, 1]), queries=[0, q_len // 2]),
        tg.masks.sliding(3, align="bottom_right"),
        tg.masks.causal(offset=-k_len),
    ):
        q, k, v = case.arrays()
        out, lse = tg.attention(q, k, v, mask=mask, return_lse=True)
        arrays, grads = (case.grad_out(), q, k, v, out, lse), tuple(np.full_like(x, np.nan) for x in (q, k, v))
        tg.attention_backward(*arrays, mask=mask, grads=grads)
        assert all_same_bits(grads, tg.attention_backward(*arrays, mask=mask))
        assert all(np.isfinite(x).all() for x in grads)


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
        options = {"mask": visible, "bias": q[0, :, :1, :1].repeat(k_len, -1), "sinks": np.zeros(2, np.float32)}
        out, lse = tg.attention(q, k, v, **options, return_lse=True)
        arrays = case.grad_out(), q, k, v, out, lse
        expect = tg.attention_backward(*arrays, **options)
        arrays = [between_guards(x, at_the_end) for x in arrays]
        options = {name: between_guards(x, at_the_end) for name, x in options.items()}
        grads = tuple(between_guards(np.full_like(x, np.nan), at_the_end) for x in (q, k, v))
        got = tg.attention_backward(*arrays, **options, grads=grads)
        assert [x.tobytes() for x in got] == [x.tobytes() for x in expect]
"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_read_or_written_out_of_bounds(isa, dtype):
    """Every array ends, or begins, where the process may not go."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    run_python(GUARDED.replace("{dtype}", dtype), TEGULA_ISA=isa)


FAR_APART = """
    import numpy as np
    import tegula as tg
    from cases import AttentionCase
    from support import far_apart

    case = AttentionCase(5, 5, 5, heads=5, leading=(5,), dtype="{dtype}")
    q, k, v = case.arrays()
    bias = q.copy()
    out, lse = tg.attention(q, k, v, bias=bias, return_lse=True)
    packed = case.grad_out(), q, k, v, out, lse
    expect = tg.attention_backward(*packed, bias=bias)
    for axis in range(4):
        far = [far_apart(x, min(axis, x.ndim - 1)) for x in packed]
        got = tg.attention_backward(*far, bias=far_apart(bias, axis))
        assert [x.tobytes() for x in got] == [x.tobytes() for x in expect]
        grads = tuple(far_apart(np.full_like(x, np.nan), axis) for x in expect[:3])
        tg.attention_backward(*packed, bias=bias, grads=grads)
        assert [np.ascontiguousarray(x).tobytes() for x in grads] == [x.tobytes() for x in expect[:3]]
"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_c54_strides_past_the_reach_of_32_bits(isa, dtype):
    """Every axis in turn spans 2**32 elements: address space is reserved, hardly any memory is used."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    run_python(FAR_APART.replace("{dtype}", dtype), TEGULA_ISA=isa)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest_call(dtype):
    """One query, one key, one number: the key has all the weight, and none to give."""
    one = np.ones((1, 1), draw(np.random.default_rng(0), (), dtype).dtype)
    dq, dk, dv = backward(one, one, one, one)
    assert same_bits(dv, one) and (dq == 0).all() and (dk == 0).all()
