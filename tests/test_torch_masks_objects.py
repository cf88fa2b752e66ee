"""Masks made of tensors as objects: what they return, print, copy and refuse."""

import copy
import pickle

import numpy as np
import pytest
from support import run_python
from tegula import masks
from test_masks import same

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.isa_once

CPU = torch.device("cpu")
LENGTHS, KEEP = torch.tensor([2, 4]), torch.tensor([[False, True, True, True], [True, True, False, True]])
ARRAY = torch.tensor(np.random.default_rng(1).random((2, 3, 4, 4)) < 0.6)

# Of tensors, the same of arrays, and how it prints.
KINDS = {
    "offset": (lambda t: masks.causal(offset=t([0, 2])), "masks.causal(offset=[0, 2])"),
    "padding": (lambda t: masks.padding(t([2, 4]), queries=t([3, 4])), "masks.padding([2, 4], queries=[3, 4])"),
    "keep": (
        lambda t: masks.padding(keep=t(KEEP.numpy())),
        "masks.padding(keep=[[False, True, True, True], [True, True, False, True]])",
    ),
    "prefix": (lambda t: masks.prefix(t([2, 0])), "masks.prefix([2, 0])"),
    "documents": (
        lambda t: masks.documents(t([0, 1, 0, 1]), causal="top_left"),
        "masks.documents([0, 1, 0, 1], causal='top_left')",
    ),
    "packed": (lambda t: masks.documents(cu_seqlens=t([0, 1, 4])), "masks.documents(cu_seqlens=[0, 1, 4])"),
    "dense": (
        lambda t: masks.dense(t(ARRAY.numpy())),
        "masks.dense(<torch.bool tensor of shape (2, 3, 4, 4) on cpu>)",
    ),
    "and": (lambda t: masks.causal() & masks.padding(t([2, 4])), "masks.causal() & masks.padding([2, 4])"),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def test_forms_are_tensors(kind):
    make, _ = kind
    mask, twin = make(torch.tensor), make(np.array)
    for got, want in zip(mask.intervals(4, 4), twin.intervals(4, 4), strict=True):
        assert isinstance(got, torch.Tensor) and got.dtype == torch.int32
        assert np.array_equal(got.numpy(), want)
    assert same(mask.dense(4, 4).numpy(), twin.dense(4, 4))
    for dtype in ("float32", torch.float64, "bfloat16", torch.float16):
        additive = mask.additive(4, 4, dtype)
        assert additive.dtype == (getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        assert np.array_equal(additive.double().numpy(), twin.additive(4, 4, "float64"))
    area = mask.area(4, 4)
    assert isinstance(area, torch.Tensor) and area.dtype == torch.int64 and area.item() == twin.area(4, 4)


def test_forms_of_tensors_without_numbers(kind):
    mask, twin = kind[0](lambda v: torch.tensor(v).to("meta")), kind[0](np.array)
    assert mask.dense(4, 4).shape == twin.dense(4, 4).shape
    assert mask.additive(4, 4).device.type == "meta"
    assert "meta" in repr(mask) and mask._repr_svg_() is None


def test_additive_takes_float_types_only():
    with pytest.raises(TypeError, match=r"dtype must be.*int64"):
        masks.padding(LENGTHS).additive(4, 4, torch.int64)


def test_printed_and_drawn(kind):
    make, text = kind
    assert repr(make(torch.tensor)) == text
    assert make(torch.tensor)._repr_svg_().count("<rect") == make(np.array)._repr_svg_().count("<rect")


def test_pickled_and_copied(kind):
    mask = kind[0](torch.tensor)
    before = mask.dense(4, 4)
    for other in (pickle.loads(pickle.dumps(mask)), copy.copy(mask), copy.deepcopy(mask)):
        assert repr(other) == repr(mask)
        assert torch.equal(other.dense(4, 4), before)
    assert copy.deepcopy(mask) is mask


def test_tensors_of_the_caller_are_copied():
    made = {}
    for name, (make, _) in KINDS.items():
        held = []
        mask = make(lambda v, held=held: held.append(torch.tensor(v)) or held[-1])
        made[name] = mask, held, pickle.loads(pickle.dumps(mask)).dense(4, 4)
    for mask, held, before in made.values():
        for tensor in held:
            tensor.zero_()
        assert torch.equal(mask.dense(4, 4), before)


def test_results_belong_to_the_caller(kind):
    mask = kind[0](torch.tensor)
    before = mask.dense(4, 4).clone()
    for result in (*mask.intervals(4, 4), mask.dense(4, 4)):
        result.zero_()
    assert torch.equal(mask.dense(4, 4), before)


def test_kinds_do_not_mix_in_one_call():
    with pytest.raises(TypeError, match="tensors only"):
        masks.as_mask(masks.padding(LENGTHS))
    with pytest.raises(TypeError, match="tensors only"):
        masks.as_mask(masks.causal() & masks.padding(LENGTHS))


def test_intersections_of_arrays_and_tensors():
    mask = masks.padding([2, 4]) & masks.padding(keep=KEEP) & KEEP[:, None, None].expand(2, 1, 4, 4)
    want = (masks.padding([2, 4]) & masks.padding(keep=KEEP.numpy())).dense(4, 4)
    assert np.array_equal(mask.dense(4, 4).numpy(), want)
    array = KEEP[:1, None].expand(1, 1, 4, 4)
    assert torch.equal((array & masks.causal()).dense(4, 4), array[0, 0] & torch.ones(4, 4).tril().bool())


def test_a_mask_of_arrays_follows_the_tensors():
    lowered = masks.padding([2, 4])._lower_torch(2, 1, 4, 4, torch.device("meta"))
    assert all(bound.device.type == "meta" for bound in lowered[:2])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
                                   torch.uint32, torch.uint64])  # fmt: skip
def test_c14_every_integer_type(dtype):
    for make in (masks.padding, masks.prefix, lambda t: masks.causal(offset=t)):
        mask = make(torch.tensor([2, 4]).to(dtype))
        assert torch.equal(mask.dense(4, 4), make(torch.tensor([2, 4])).dense(4, 4))
    fake = torch.tensor([2, 4]).to(dtype).to("meta")
    assert masks.padding(fake).dense(4, 4).shape == (2, 1, 4, 4)


def test_positions():
    positions = masks.positions(cu_seqlens=torch.tensor([0, 3, 3, 5]))
    assert positions.tolist() == [0, 1, 2, 0, 1] and positions.dtype == torch.int64
    positions = masks.positions(keep=torch.tensor([[False, False, True, True]]))
    assert positions.tolist() == [[0, 0, 0, 1]] and positions.dtype == torch.int64
    with pytest.raises(ValueError, match="decreases"):
        masks.positions(cu_seqlens=torch.tensor([0, 3, 2]))


# The bad inputs of arrays that are numbers, as tensors: the same errors.
WRONG = {
    "negative": (lambda t: masks.padding(t([3, -3])), ValueError, r"lengths\[1\] is -3"),
    "queries": (lambda t: masks.padding(queries=t([-1])), ValueError, r"queries\[0\] is -1"),
    "prefix": (lambda t: masks.prefix(t([1, -1])), ValueError, r"lengths\[1\] is -1"),
    "offset": (lambda t: masks.causal(offset=t([0, 2**41])), ValueError, r"offset\[1\]"),
    "start": (lambda t: masks.documents(cu_seqlens=t([1, 4])), ValueError, r"cu_seqlens\[0\] is 1"),
    "falls": (lambda t: masks.documents(cu_seqlens=t([0, 4, 3, 9])), ValueError, r"cu_seqlens\[2\] is 3"),
    "count": (lambda t: masks.documents(cu_seqlens=t([0, 4]), cu_seqlens_k=t([0, 1, 4])), ValueError, r"\(3,\)"),
    "rank": (lambda t: masks.documents(cu_seqlens=t([[0, 4]])), ValueError, r"\(1, 2\)"),
    "batch": (lambda t: masks.padding(t([1, 2, 3]), queries=t([1, 2])), ValueError, "lengths has 3.*queries has 2"),
    "scalar": (lambda t: masks.documents(t(3)), ValueError, "single integer"),
    "dense": (lambda t: masks.dense(t([True])), ValueError, r"\(1,\)"),
    "float": (lambda t: masks.padding(t([1.0, 2.0])), TypeError, "lengths must be integers, got float"),
    "bool": (lambda t: masks.padding(t([True, False])), TypeError, "lengths must be integers, got bool"),
    "keep_int": (lambda t: masks.padding(keep=t([[0, 1]])), TypeError, "keep must be a bool .*int64"),
    "mask_float": (lambda t: masks.dense(t([[0.5]])), TypeError, "bias="),
    "mask_int": (lambda t: masks.dense(t([[1]])), TypeError, r"mask must be bool.*int64"),
}
# What shapes and types tell is refused without numbers too.
BY_SHAPE = {"count", "rank", "batch", "scalar", "dense", "float", "bool", "keep_int", "mask_float", "mask_int"}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input(case):
    make, error, said = WRONG[case]
    for of in (np.array, torch.tensor):
        with pytest.raises(error, match=said):
            make(of)
    if case in BY_SHAPE:
        with pytest.raises(error, match=said):
            make(lambda value: torch.tensor(value).to("meta"))


def test_lengths_beyond_the_axis():
    mask = masks.padding(torch.tensor([1, 9]))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"lengths\[1\] is 9, outside \[0, 7\]"):
            mask._lower_torch(2, 1, 7, 7, CPU)
    with pytest.raises(ValueError, match="3 batch entries"):
        mask._lower_torch(3, 1, 7, 7, CPU)
    with pytest.raises(ValueError, match="name the alignment"):
        masks.causal()._lower_torch(3, 1, 7, 9, CPU)


@pytest.mark.parametrize("layout", ["sparse", "nested"])
def test_tensors_that_are_not_plain(layout):
    value = torch.ones(2, 2, dtype=torch.bool).to_sparse() if layout == "sparse" else torch.nested.nested_tensor(
        [torch.ones(2, dtype=torch.int64), torch.ones(3, dtype=torch.int64)]
    )  # fmt: skip
    for make in (masks.dense, masks.padding, lambda t: masks.padding(keep=t), masks.documents):
        with pytest.raises(TypeError, match="strided"):
            make(value)


def test_c36_a_mask_is_bool_and_a_bias_is_not():
    from tegula.masks import _torch

    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        with pytest.raises(TypeError, match="bias="):
            _torch.as_mask(torch.ones(4, 4, dtype=dtype))
    for dtype in (torch.uint8, torch.int64):
        with pytest.raises(TypeError, match=r"\.bool\(\)"):
            _torch.as_mask(torch.ones(4, 4, dtype=dtype))
    for value in (np.ones((4, 4), bool), [[True]], None, "causal", 3):
        with pytest.raises(TypeError, match="mask must be"):
            _torch.as_mask(value)


def test_c37_shapes_that_could_mean_two_things():
    from tegula.masks import _torch

    with pytest.raises(ValueError, match=r"padding\(keep"):
        _torch.as_mask(torch.ones(3, 3, 4, dtype=torch.bool))


def test_torch_is_not_imported_for_arrays():
    run_python("""
        import sys
        import numpy as np
        from tegula import masks
        mask = masks.causal() & masks.padding([2, 4]) & masks.documents(cu_seqlens=[0, 1, 4])
        mask.dense(4, 4), mask.area(4, 4), mask.additive(4, 4), mask._repr_svg_(), masks.positions(keep=[[True]])
        assert "torch" not in sys.modules
    """)


def test_masks_made_before_torch_was_imported():
    run_python("""
        import numpy as np
        from tegula import masks
        mask = masks.causal() & masks.padding([2, 4])
        want = mask.dense(4, 4)
        import torch
        lo, hi, _ = mask._lower_torch(2, 1, 4, 4, torch.device("cpu"))
        key = torch.arange(4)
        assert np.array_equal(((key >= lo[..., None]) & (key < hi[..., None])).numpy(), want)
    """)
