"""Masks of Hugging Face models: what `sdpa_mask` shows, as intervals; and the tensor that carries them."""

from __future__ import annotations

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
import tegula as tg
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tegula.integrations.transformers import MaskTensor, tegula_mask  # noqa: E402
from tegula.masks._rows import Intervals  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from transformers import masking_utils as hf  # noqa: E402

pytestmark = pytest.mark.isa_once

B, L = 3, 13
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, 5], [*range(7), 0, 1, 0, 1, 2, 3], [*range(13)]])
DOCUMENTS = torch.tensor([[0] * 4 + [1] * 3 + [2] * 6, [0] * 7 + [1] * 2 + [2] * 4, [0] * 13])
BLOCKS = torch.tensor([[-1, -1, 0, 0, 0, -1, -1, 1, 1, 1, 1, -1, -1]] * B)
RIGHT = torch.arange(L) < torch.tensor([[5], [13], [9]])
LEFT = RIGHT.flip(1)
PADDINGS = {"none": None, "right": RIGHT, "left": LEFT, "both": LEFT & RIGHT}


def packed(function):
    return hf.and_masks(
        hf.remap_positions_for_packed_sequence(function, POSITIONS), hf.packed_sequence_mask_function(DOCUMENTS)
    )


FUNCTIONS = {
    "causal": hf.causal_mask_function,
    "bidirectional": hf.bidirectional_mask_function,
    "sliding": hf.sliding_window_causal_mask_function(4),
    "bidirectional sliding": hf.sliding_window_bidirectional_mask_function(3),
    "chunked": hf.chunked_causal_mask_function(4, torch.tensor([0, 1, 3])),
    "packed": packed(hf.causal_mask_function),
    "packed sliding": packed(hf.sliding_window_causal_mask_function(3)),
    "sliding with sinks": hf.or_masks(
        hf.sliding_window_causal_mask_function(4), hf.and_masks(hf.causal_mask_function, lambda b, h, q, k: k < 2)
    ),
    "global tokens": hf.or_masks(
        hf.sliding_window_bidirectional_mask_function(2), lambda b, h, q, k: (k < 2) | (q < 2)
    ),
    "chunked with a prefix": hf.or_masks(
        hf.chunked_causal_mask_function(4, torch.tensor([0, 1, 3])), lambda b, h, q, k: k < 3
    ),
    "far only": hf.and_masks(hf.bidirectional_mask_function, lambda b, h, q, k: (q - k).abs() >= 3),
    "not the own key": hf.and_masks(hf.bidirectional_mask_function, lambda b, h, q, k: k != q),
    "blocks": hf.or_masks(hf.causal_mask_function, hf.blockwise_overlay(BLOCKS)),
}
# q_length, kv_length, q_offset, kv_offset: whole, one token, a chunk onto a cache, into an empty static
# cache, and into a cache that has dropped its first keys.
PLACES = [(L, L, 0, 0), (1, L, L - 1, 0), (4, L, L - 4, 0), (4, L, 3, 0), (5, 9, 8, 4)]


def both(function, padding, place, **options):
    """sdpa's mask, written out, and ours."""
    q_len, k_len, q_offset, kv_offset = place
    call = {
        "batch_size": B, "q_length": q_len, "kv_length": k_len, "q_offset": q_offset, "kv_offset": kv_offset,
        "mask_function": function, "attention_mask": padding, **options,
    }  # fmt: skip
    theirs = hf.sdpa_mask(**call, allow_is_causal_skip=False)
    return theirs.expand(B, 1, q_len, k_len), tegula_mask(**call, allow_is_causal_skip=False)


# transformers packs without a cache only.
CASES = [(name, place) for name in FUNCTIONS for place in PLACES if place[0] == L or not name.startswith("packed")]


@pytest.mark.parametrize("padding", PADDINGS.values(), ids=PADDINGS.keys())
@pytest.mark.parametrize(("name", "place"), CASES, ids=str)
def test_shows_what_sdpa_mask_shows_and_stays_structured(name, padding, place):
    theirs, ours = both(FUNCTIONS[name], padding, place)
    assert isinstance(ours.mask_object(), Intervals)
    assert torch.equal(ours.bools(), theirs)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if not n.startswith("packed")])
def test_padding_between_real_tokens_becomes_dense(name, place):
    holes = RIGHT.clone()
    holes[1, 4] = False
    theirs, ours = both(FUNCTIONS[name], holes, place)
    assert torch.equal(ours.bools(), theirs)


def test_offset_of_a_static_cache_is_a_tensor():
    theirs, ours = both(hf.causal_mask_function, None, (4, L, torch.tensor(3), 0))
    assert isinstance(ours.mask_object(), Intervals)
    assert torch.equal(ours.bools(), theirs)


USERS = {
    "prefix": lambda b, h, q, k: (k < 4) | (k <= q),
    "every other key": lambda b, h, q, k: (k - q) % 2 == 0,
    "own table": lambda b, h, q, k: DOCUMENTS[b, q] >= DOCUMENTS[b, k],
    "a table of pairs": lambda b, h, q, k: torch.ones(L, L, dtype=torch.bool).tril()[q, k],
    "where": lambda b, h, q, k: torch.where(q < 5, k < 5, k >= 5),
    "distance": lambda b, h, q, k: (q - k).abs() < 3,
    "backwards": lambda b, h, q, k: (q >= k) & (q - k < 3) & ~(k == 2),
    "twice the key": lambda b, h, q, k: 2 * k <= q + 3,
    "falling": lambda b, h, q, k: L - k > q,
}


@pytest.mark.parametrize("use_vmap", [False, True])
@pytest.mark.parametrize("name", USERS)
def test_functions_of_users(name, use_vmap):
    function = hf.and_masks(hf.bidirectional_mask_function, USERS[name])
    theirs, ours = both(function, None, (L, L, 0, 0), use_vmap=use_vmap)
    assert torch.equal(ours.bools(), theirs)


def test_error_of_a_users_function_is_not_swallowed():
    def wrong(b, h, q, k):
        raise RuntimeError("out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        both(wrong, None, (L, L, 0, 0))


# Any combination of rules that transformers or its users may write.
TABLES = st.lists(st.integers(0, 4), min_size=L, max_size=L).map(torch.tensor)


def leaf(kind, table, number):
    return {
        "causal": hf.causal_mask_function,
        "window": hf.sliding_window_overlay(number + 1),
        "around": hf.sliding_window_bidirectional_overlay(number),
        "chunk": hf.chunked_overlay(number + 1, torch.zeros(B, dtype=torch.int64)),
        "keys": lambda b, h, q, k: table[k] > 0,
        "queries": lambda b, h, q, k: table[q] > 0,
        "same": lambda b, h, q, k: table[q] == table[k],
        "at most": lambda b, h, q, k: table[k] <= table[q],
        "ordered": lambda b, h, q, k: table.sort().values[k] >= table[q],
    }[kind]


KINDS = ("causal", "window", "around", "chunk", "keys", "queries", "same", "at most", "ordered")
LEAVES = st.builds(leaf, st.sampled_from(KINDS), TABLES, st.integers(0, 6))
RULES = st.recursive(
    LEAVES,
    lambda rules: st.builds(
        lambda join, parts: join(*parts),
        st.sampled_from([hf.and_masks, hf.or_masks]),
        st.lists(rules, min_size=1, max_size=3),
    ),
    max_leaves=5,
)


@given(RULES, st.sampled_from(list(PADDINGS)), st.sampled_from(PLACES[:4]))
def test_any_combination(rule, padding, place):
    theirs, ours = both(rule, PADDINGS[padding], place)
    assert torch.equal(ours.bools(), theirs)


def test_none_stands_for_what_hides_nothing_and_never_for_causal():
    full = hf.bidirectional_mask_function
    real = torch.ones(2, 5, dtype=torch.bool)
    call = dict(batch_size=2, q_length=5, kv_length=5, attention_mask=real)
    assert tegula_mask(**call, mask_function=full, allow_is_bidirectional_skip=True) is None
    assert tegula_mask(**call, mask_function=full).mask_object().hides_nothing()
    assert not tegula_mask(**call).mask_object().hides_nothing()  # causal
    assert tegula_mask(2, 1, 5, q_offset=4).mask_object().hides_nothing()
    real[1, 3:] = False
    assert tegula_mask(**call, mask_function=full, allow_is_bidirectional_skip=True) is not None


class Largest(TorchDispatchMode):
    """The largest tensor with memory of its own that an operation makes."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if type(found) is torch.Tensor:
            self.count = max(self.count, found.numel())
        return found


def test_no_matrix_is_made():
    n = 2048
    call = dict(
        batch_size=2, q_length=n, kv_length=n, mask_function=hf.sliding_window_causal_mask_function(64),
        attention_mask=torch.arange(n) >= torch.tensor([[5], [0]]),
    )  # fmt: skip
    with Largest() as theirs:
        hf.sdpa_mask(**call)
    assert theirs.count >= n * n  # the measure sees a matrix
    tracemalloc.start()
    with Largest() as ours:
        mask = tegula_mask(**call)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert mask.shape == (2, 1, n, n)
    assert ours.count <= 2 * n
    assert peak < 200 * n * 8


# -- the tensor that carries a mask ------------------------------------------------------------------


def make(mask=None, batch=2, q_len=4, k_len=6):
    mask = tg.masks.sliding(3, align="bottom_right") if mask is None else mask
    return MaskTensor(mask, batch, q_len, k_len), torch.as_tensor(mask.dense(q_len, k_len)).expand(
        batch, 1, q_len, k_len
    )


OPERATIONS = {
    "whole": lambda x: x[:, :, :, :99],
    "keys": lambda x: x[:, :, :, 1:4],
    "queries": lambda x: x[:, :, -2:],
    "entries": lambda x: x[1:],
    "twice": lambda x: x[:, :, 1:, :5][..., 2:],
    "nothing": lambda x: x[:, :, 3:2],
    "heads": lambda x: x[:, 0:0],
    "steps": lambda x: x[..., ::2],
    "one query": lambda x: x[:, :, 2],
    "added axis": lambda x: x[:, None],
    "expand": lambda x: x.expand(-1, 5, -1, -1),
    "repeat": lambda x: x.repeat(1, 3, 1, 1),
    "cat": lambda x: torch.cat([x, ~x], -1),
    "pad": lambda x: torch.nn.functional.pad(x, (0, 2), value=True),
    "and": lambda x: x & (torch.arange(6) > 1),
    "rand": lambda x: (torch.arange(6) > 1) & x,
    "not": lambda x: ~x,
    "equal 0": lambda x: x == 0,
    "float": lambda x: x.to(torch.bfloat16),
    "minus": lambda x: (1.0 - x.float()) * -1e4,
    "where": lambda x: torch.where(x, 0.0, -torch.inf),
    "masked_fill": lambda x: torch.zeros(x.shape).masked_fill(~x, -1.0),
    "sum": lambda x: x.sum(-1),
    "any": lambda x: x.any(),
    "index": lambda x: x[torch.tensor([1, 0, 1])],
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "chunk": lambda x: x.chunk(2, dim=2)[1],
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    "mask",
    [None, tg.masks.padding([2, 5]), tg.masks.dense(np.arange(24).reshape(4, 6) % 5 != 0)],
    ids=["rows", "per entry", "dense"],
)
def test_operations_see_the_bools(name, mask):
    carried, plain = make(mask)
    found, expected = OPERATIONS[name](carried), OPERATIONS[name](plain)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert torch.equal(found.bools() if isinstance(found, MaskTensor) else found, expected)
    for copied in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert torch.equal(copied.bools() if isinstance(copied, MaskTensor) else copied, expected)
    assert torch.equal(carried.bools(), plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_added_to_scores_it_hides(dtype):
    carried, plain = make()
    scores = torch.randn(2, 3, 4, 6).to(dtype)
    expected = torch.where(plain, scores, torch.finfo(dtype).min)
    moved = carried.expand(2, 3, 4, 6).reshape(6, 4, 6)[torch.arange(6)].view(2, 3, 4, 6)
    for mask in (carried, carried[:, :, :, :], carried.clone(), carried[:, 0][:, None], moved):
        for total in (scores + mask, mask + scores, scores.clone().add_(mask)):
            assert torch.equal(torch.where(plain, total, torch.finfo(dtype).min), expected)
            assert (total[~plain.expand(2, 3, 4, 6)] < torch.finfo(dtype).min / 2).all()
    # Integers, as cumulative sums of a mask, are no scores.
    assert torch.equal(carried + torch.ones(4, 6, dtype=torch.int64), plain + torch.ones(4, 6, dtype=torch.int64))


@pytest.mark.parametrize("name", ["whole", "keys", "queries", "entries", "twice", "nothing"])
def test_slices_keep_the_structure(name):
    carried, plain = make()
    part = OPERATIONS[name](carried)
    shown = part.mask_object().dense(*part.shape[-2:])
    assert isinstance(part.mask_object(), Intervals)
    assert torch.equal(torch.as_tensor(shown).expand(part.shape), OPERATIONS[name](plain))


@pytest.mark.parametrize("inference", [False, True])
def test_what_is_written_into_it_counts(inference):
    with torch.inference_mode(inference):
        carried, plain = make()
        part = carried[..., 1:3]
        carried[0, 0, 1, 2] = False
        carried[:, :, 0] = True
        expected = plain.clone()
        expected[0, 0, 1, 2] = False
        expected[:, :, 0] = True
        assert torch.equal(torch.as_tensor(carried.mask_object().dense(4, 6)), expected)
        assert torch.equal(torch.as_tensor(part.mask_object().dense(4, 2)), expected[..., 1:3])


def test_travels():
    carried, plain = make()
    for copied in (copy.copy(carried), copy.deepcopy(carried), pickle.loads(pickle.dumps(carried)), carried.to("cpu")):
        assert isinstance(copied, MaskTensor)
        assert torch.equal(copied.bools(), plain)
        assert isinstance(copied.mask_object(), Intervals)
    assert "MaskTensor" in repr(carried)


def test_memory_it_has_not_is_never_handed_out():
    carried, plain = make()
    assert carried.share_memory_() is carried  # torch would read memory that is not there
    assert carried.tolist() == plain.tolist()
    shown = carried.numpy()
    assert np.array_equal(shown, plain.numpy()) and np.array_equal(np.asarray(carried), plain.numpy())
    shown[:] = False
    assert not carried.mask_object().dense(4, 6).any()


def test_wrong_arguments():
    with pytest.raises(TypeError, match=r"mask must be one of tegula\.masks, got Tensor"):
        MaskTensor(torch.ones(3, 3, dtype=torch.bool), 1, 3, 3)
    with pytest.raises(ValueError, match="expected one entry for each of 3 batch entries"):
        MaskTensor(tg.masks.padding([1, 2]), 3, 4, 4)
    with pytest.raises(ValueError, match="lengths differ"):
        MaskTensor(tg.masks.causal(), 1, 4, 5)


def test_the_mask_of_a_packed_row_is_made_once_for_all_layers():
    from tegula.integrations.transformers.attention_function import inside_documents

    borders = torch.tensor([0, 2, 5])
    options = {"cu_seq_lens_q": borders}
    first = inside_documents(None, options)
    assert inside_documents(None, options) is first
    borders[1] = 3
    changed = inside_documents(None, options)
    assert changed is not first
    assert changed.area(5, 5) == 13 == first.area(5, 5)
    assert changed.dense(5, 5)[2, 0] and not first.dense(5, 5)[2, 0]
    assert inside_documents(None, {"cu_seq_lens_q": borders.clone()}) is not changed
    with torch.inference_mode():
        borders = torch.tensor([0, 2, 5])
        assert inside_documents(None, {"cu_seq_lens_q": borders}).dense(5, 5)[2, 2]
        borders[1] = 3
        assert inside_documents(None, {"cu_seq_lens_q": borders}).dense(5, 5)[2, 0]
