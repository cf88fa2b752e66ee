"""Masks with tensors: every kind lowers to what NumPy says, eagerly, compiled, exported, on fake tensors."""

import cases
import numpy as np
import pytest
from tegula import masks

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.isa_once

CPU = torch.device("cpu")
DIMS = [cases.Dims(2, 2, 35, 35), cases.Dims(4, 1, 12, 50), cases.Dims(1, 3, 50, 12), cases.Dims(3, 2, 1, 9)]


class OfTensors:
    """`tegula.masks` whose functions get tensors for arrays."""

    def __getattr__(self, name):
        make = getattr(masks, name)
        return lambda *args, **options: make(
            *map(as_tensor, args), **{key: as_tensor(value) for key, value in options.items()}
        )


def as_tensor(value):
    """An array as a tensor that shares no memory with it; anything else as it is."""
    return torch.tensor(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


def builds(name, of):
    """The mask of a kind, for given sizes; bool arrays as masks of them."""

    def build(dims):
        found = cases.MASKS[name].build(of, dims)
        return found if isinstance(found, masks.Mask) else of.dense(found)

    return build


def dims_of(name):
    return [d for d in DIMS if d.q_len == d.k_len or not cases.MASKS[name].self_attention]


def visible(lowered, dims):
    """(B, H, Lq, Lk) bools from (lo, hi, dense), with the operations that may be traced."""
    lo, hi, dense = lowered
    key = torch.arange(dims[3], device=lo.device)
    seen = (key >= lo[..., None]) & (key < hi[..., None])
    seen = seen.any(0) if lo.ndim == 4 else seen
    if dense is not None:
        seen = seen & dense
    return seen.expand(dims)


def expected(name, dims):
    return torch.tensor(np.broadcast_to(cases.MASKS[name].visible(dims), dims))


def well_formed(lowered, dims):
    lo, hi, dense = lowered
    for bound in (lo, hi):
        assert bound.dtype == torch.int32 and bound.ndim == lo.ndim and bound.shape[:-3] in ((), (2,))
        torch.broadcast_to(bound, (*bound.shape[:-3], *dims[:3]))
    assert dense is None or (dense.dtype == torch.bool and dense.ndim == 4)
    return True


KINDS = [(name, of) for name in cases.MASKS for of in ("arrays", "tensors")]
kinds = pytest.mark.parametrize(("name", "of"), KINDS, ids=["-".join(k) for k in KINDS])
SOURCES = {"arrays": masks, "tensors": OfTensors()}


@kinds
def test_lowers_to_what_numpy_says(name, of):
    for dims in dims_of(name):
        mask = builds(name, SOURCES[of])(dims)
        same_mask = builds(name, masks)(dims)
        lowered = mask._lower_torch(*dims, CPU)
        assert well_formed(lowered, dims)
        for got, want in zip(lowered, same_mask._lower(*dims), strict=True):
            assert (got is None) == (want is None)
            assert got is None or np.array_equal(got.numpy(), want)
        assert torch.equal(visible(lowered, dims), expected(name, dims))
        assert mask._lower_torch(*dims, CPU) is lowered


def arrays_in(name, dims):
    """The tensors that a kind of mask is made of, and a function that makes the mask of them."""
    found = []

    class Collect:
        def __getattr__(self, kind):
            def made(*args, **options):
                for value in (*args, *options.values()):
                    if isinstance(value, np.ndarray):
                        found.append(as_tensor(value))
                return masks.full()

            return made

    value = cases.MASKS[name].build(Collect(), dims)
    return found if isinstance(value, masks.Mask) else [as_tensor(value)]


class Given:
    """`tegula.masks` whose functions get, for each array of the case, the next of some tensors."""

    def __init__(self, tensors):
        self.tensors = list(tensors)

    def __getattr__(self, name):
        make = getattr(masks, name)

        def made(*args, **options):
            args = [self.tensors.pop(0) if isinstance(a, np.ndarray) else a for a in args]
            options = {k: self.tensors.pop(0) if isinstance(v, np.ndarray) else v for k, v in options.items()}
            return make(*args, **options)

        return made


def lowered_inside(kind, tensors, scores):
    """The bools of a mask that is made of tensors where it is used."""
    batch, heads, q_len, k_len = scores.shape
    mask = kind(tensors, q_len, k_len)
    return visible(mask._lower_torch(batch, heads, q_len, k_len, scores.device), scores.shape)


# What a model would write inside of what it compiles: kind, (tensors, q_len, k_len) -> mask.
WRITTEN = {
    "full": lambda t, q, k: masks.full(),
    "causal": lambda t, q, k: masks.causal(align="bottom_right"),
    "causal_top_left": lambda t, q, k: masks.causal(align="top_left"),
    "causal_offset": lambda t, q, k: masks.causal(offset=5),
    "causal_offsets": lambda t, q, k: masks.causal(offset=t[0]),
    "window": lambda t, q, k: masks.window(5, 2, align="bottom_right"),
    "window_left_unlimited": lambda t, q, k: masks.window(None, 3, align="top_left"),
    "window_right_unlimited": lambda t, q, k: masks.window(0, None, align="top_left"),
    "sliding": lambda t, q, k: masks.sliding(17, align="bottom_right"),
    "padding_lengths": lambda t, q, k: masks.padding(t[0]),
    "padding_left": lambda t, q, k: masks.padding(keep=t[0]),
    "padding_scattered": lambda t, q, k: masks.padding(keep=t[0]),
    "padding_both": lambda t, q, k: masks.padding(t[0], queries=t[1]),
    "documents": lambda t, q, k: masks.documents(t[0], t[1]),
    "documents_unsorted": lambda t, q, k: masks.documents(t[0], t[1]),
    "documents_packed": lambda t, q, k: masks.documents(cu_seqlens=t[0]),
    "documents_causal": lambda t, q, k: masks.documents(cu_seqlens=t[0], cu_seqlens_k=t[1], causal="bottom_right"),
    "documents_window": lambda t, q, k: masks.documents(cu_seqlens=t[0], window=(4, 1)),
    "chunked": lambda t, q, k: masks.chunked(20, align="bottom_right"),
    "prefix": lambda t, q, k: masks.prefix(t[0], align="bottom_right"),
    "sliding_sinks": lambda t, q, k: masks.sliding(17, align="bottom_right", sinks=4),
    "window_and_global": lambda t, q, k: (
        masks.window(5, 2, align="top_left") | masks.global_tokens(3, align="top_left")
    ),
    "two_runs": lambda t, q, k: masks.dense(t[0]),
    "block_sparse": lambda t, q, k: masks.block_sparse(t[0], 16),
    "dense": lambda t, q, k: masks.dense(t[0]),
    "dense_per_batch": lambda t, q, k: masks.dense(t[0]),
    "dense_per_head": lambda t, q, k: masks.dense(t[0]),
    "dense_whole": lambda t, q, k: masks.dense(t[0]),
    "bool_array": lambda t, q, k: masks.dense(t[0]),
    "causal_and_padding": lambda t, q, k: masks.causal(align="bottom_right") & masks.padding(t[0]),
    "sliding_and_documents": lambda t, q, k: masks.sliding(9, align="top_left") & masks.documents(t[0], t[1]),
    "window_and_dense": lambda t, q, k: masks.window(40, 40, align="top_left") & masks.dense(t[0]),
    "nothing": lambda t, q, k: masks.padding(t[0]),
}


def test_every_kind_is_written():
    assert set(WRITTEN) == set(cases.MASKS)


# One of each form: lengths, bools, ids, borders, whole arrays, several together.
FORMS = ("padding_lengths", "padding_scattered", "documents_unsorted", "documents_packed", "dense_per_batch",
         "causal_and_padding")  # fmt: skip


class Closure(torch.nn.Module):
    """A model that holds a mask."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, scores):
        return visible(self.mask._lower_torch(*scores.shape, scores.device), scores.shape)


class Inside(torch.nn.Module):
    """A model that makes a mask of its inputs."""

    def __init__(self, name):
        super().__init__()
        self.kind = WRITTEN[name]

    def forward(self, tensors, scores):
        return lowered_inside(self.kind, tensors, scores)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function):
    return torch.compile(function, fullgraph=True, dynamic=True, backend="eager")


@pytest.mark.parametrize("name", WRITTEN)
def test_compiled_where_the_mask_is_made(name):
    work = compiled(lambda tensors, scores: lowered_inside(WRITTEN[name], tensors, scores))
    for dims in dims_of(name)[:2]:
        assert torch.equal(work(arrays_in(name, dims), torch.empty(dims)), expected(name, dims))


@pytest.mark.parametrize(("name", "of"), [(n, "arrays") for n in cases.MASKS] + [(n, "tensors") for n in FORMS])
def test_compiled_with_a_mask_from_outside(name, of):
    """As an argument; one graph serves masks of other sizes and other numbers."""

    def use(mask, scores):
        return visible(mask._lower_torch(*scores.shape, scores.device), scores.shape)

    work = compiled(use)
    for dims in dims_of(name)[:2]:
        mask = builds(name, SOURCES[of])(dims)
        before = mask._last, mask._last_torch
        assert torch.equal(work(mask, torch.empty(dims)), expected(name, dims))
        assert (mask._last, mask._last_torch) == before
        # The same object serves eagerly afterwards.
        assert torch.equal(visible(mask._lower_torch(*dims, CPU), dims), expected(name, dims))
        assert torch.equal(work(mask, torch.empty(dims)), expected(name, dims))


@pytest.mark.parametrize("of", SOURCES)
@pytest.mark.parametrize("name", FORMS)
def test_compiled_with_a_mask_in_the_closure(name, of):
    dims = dims_of(name)[0]
    mask = builds(name, SOURCES[of])(dims)
    work = compiled(lambda scores: visible(mask._lower_torch(*scores.shape, scores.device), scores.shape))
    assert torch.equal(work(torch.empty(dims)), expected(name, dims))


def dynamic(tensor):
    """Every axis may have another size, except where it has size 1."""
    return {axis: torch.export.Dim.AUTO for axis, size in enumerate(tensor.shape) if size > 1}


@pytest.mark.parametrize(("name", "strict"), [(n, False) for n in WRITTEN] + [("causal_and_padding", True)])
def test_exported_where_the_mask_is_made(name, strict):
    first, second = (dims_of(name) * 2)[:2]
    tensors, scores = arrays_in(name, first), torch.empty(first)
    sizes = ([dynamic(t) for t in tensors], dynamic(scores))
    program = torch.export.export(Inside(name), (tensors, scores), dynamic_shapes=sizes, strict=strict).module()
    for dims in (first, second):
        assert torch.equal(program(arrays_in(name, dims), torch.empty(dims)), expected(name, dims))


@pytest.mark.parametrize("of", SOURCES)
@pytest.mark.parametrize("name", FORMS)
def test_exported_with_a_mask_from_outside(name, of):
    dims = dims_of(name)[0]
    mask = builds(name, SOURCES[of])(dims)
    program = torch.export.export(Closure(mask), (torch.empty(dims),), strict=False).module()
    assert torch.equal(program(torch.empty(dims)), expected(name, dims))


def test_a_strict_export_says_that_it_would_lose_numbers():
    with pytest.raises(Exception, match="strict=False"):
        torch.export.export(Closure(masks.padding([1, 2])), (torch.empty(2, 1, 3, 4),), strict=True)
    torch.export.export(Closure(masks.causal("top_left")), (torch.empty(2, 1, 3, 4),), strict=True)


@pytest.mark.parametrize("of", SOURCES)
@pytest.mark.parametrize("name", FORMS)
def test_masks_of_other_sizes_and_numbers_need_no_other_graph(name, of):
    """The first call is compiled for its sizes, the next two for any batch and any length."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    work = torch.compile(
        lambda mask, scores: visible(mask._lower_torch(*scores.shape, scores.device), scores.shape),
        fullgraph=True,
        backend=count,
    )
    for length in (20, 24, 31):
        for batch in (2, 3, 4):
            dims = cases.Dims(batch, 2, length, length)
            mask = builds(name, SOURCES[of])(dims)
            assert torch.equal(work(mask, torch.empty(dims)), expected(name, dims))
    assert len(graphs) <= 3


@pytest.mark.parametrize("of", SOURCES)
@pytest.mark.parametrize("name", FORMS)
def test_attention_compiled_with_a_mask(name, of):
    """The operator and its gradients under a mask object, against the same eagerly."""
    from tegula.torch import attention

    work = torch.compile(lambda mask, q, k, v: attention(q, k, v, mask=mask), fullgraph=True, backend="aot_eager")
    dims = dims_of(name)[0]
    mask = builds(name, SOURCES[of])(dims)
    leaves = [torch.randn(*dims[:2], n, 8, requires_grad=True) for n in (dims.q_len, dims.k_len, dims.k_len)]
    results = []
    for function in (work, lambda mask, q, k, v: attention(q, k, v, mask=mask)):
        out = function(mask, *leaves)
        results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_errors_show_their_words_while_compiling():
    work = compiled(lambda mask, scores: mask._lower_torch(*scores.shape, scores.device)[0])
    with pytest.raises(Exception, match="name the alignment"):
        work(masks.causal(), torch.empty(1, 1, 3, 4))
    with pytest.raises(Exception, match="one entry for each of 2 batch entries"):
        work(masks.padding([1, 2, 3]), torch.empty(2, 1, 3, 4))


@pytest.mark.parametrize("name", WRITTEN)
def test_fake_and_meta_tensors(name):
    """No numbers, but shapes; and nothing of it is remembered."""
    from torch._subclasses import FakeTensorMode

    dims = dims_of(name)[0]
    outside = builds(name, masks)(dims)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in arrays_in(name, dims)]
        for mask in (WRITTEN[name](fake, dims.q_len, dims.k_len), outside):
            lowered = mask._lower_torch(*dims, CPU)
            assert well_formed(lowered, dims)
            assert visible(lowered, dims).shape == dims
    assert torch.equal(visible(outside._lower_torch(*dims, CPU), dims), expected(name, dims))
    meta = torch.device("meta")
    on_meta = [t.to(meta) for t in arrays_in(name, dims)]
    for mask in (WRITTEN[name](on_meta, dims.q_len, dims.k_len), outside):
        lowered = mask._lower_torch(*dims, meta)
        assert well_formed(lowered, dims) and lowered[0].device == meta


@pytest.mark.parametrize("name", ["padding_lengths", "causal_offsets", "prefix", "documents_packed", "padding_both"])
def test_numbers_that_cannot_be_read_are_clamped(name):
    """Lengths beyond the axis and borders out of order: bounds stay inside all the same."""
    dims = dims_of(name)[0]
    work = compiled(lambda t, s: WRITTEN[name](t, *s.shape[2:])._lower_torch(*s.shape, s.device)[:2])
    for wrong in (lambda t: t * 1000, lambda t: -t - 5, lambda t: t.flip(0), lambda t: torch.full_like(t, 2**62)):
        for bound in work([wrong(t) for t in arrays_in(name, dims)], torch.empty(dims)):
            assert bound.min() >= 0 and bound.max() <= dims.k_len


def test_lists_inside_of_what_is_compiled():
    def work(scores):
        mask = masks.padding([3, 5]) & masks.causal(offset=2) & masks.prefix(1, "top_left")
        return visible(mask._lower_torch(*scores.shape, scores.device), scores.shape)

    scores = torch.empty(2, 1, 5, 7)
    assert torch.equal(compiled(work)(scores), work(scores))


@pytest.mark.parametrize("method", ["intervals", "dense", "additive", "area"])
def test_forms_inside_of_what_is_compiled(method):
    def work(lengths, keep, q_len):
        mask = masks.padding(lengths) & masks.padding(keep=keep) & masks.causal("top_left")
        return getattr(mask, method)(q_len, keep.shape[1])

    lengths, keep = torch.tensor([3, 5]), torch.tensor([[0, 1, 1, 1, 0], [0, 1, 1, 1, 1]]).bool()
    torch.testing.assert_close(compiled(work)(lengths, keep, 6), work(lengths, keep, 6))


@pytest.mark.parametrize("method", ["intervals", "runs", "dense", "additive", "area"])
def test_unions_inside_of_what_is_compiled(method):
    """Two single runs stay intervals without a number being read; what would need more is an array."""

    def work(lengths, count):
        mask = (masks.padding(lengths) | masks.window(1, 0)) & masks.causal()
        more = mask | masks.global_tokens(count, queries=False) if method in ("dense", "additive", "area") else mask
        return getattr(more, method)(6, 6)

    lengths, count = torch.tensor([3, 1]), torch.tensor([0, 1])
    torch.testing.assert_close(compiled(work)(lengths, count), work(lengths, count))


def test_positions_inside_of_what_is_compiled():
    keep = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]).bool()
    work = lambda keep: masks.positions(keep=keep)
    assert compiled(work)(keep).tolist() == work(keep).tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        borders = torch.tensor([0, 3, 3, 5])
        work = lambda borders: masks.positions(cu_seqlens=borders)
        assert compiled(work)(borders).tolist() == work(borders).tolist() == [0, 1, 2, 0, 1]


def test_mapped_over_lengths():
    """Under vmap each entry has a length of its own."""
    scores = torch.empty(1, 1, 3, 5)
    work = lambda n: visible(masks.padding(n)._lower_torch(*scores.shape, CPU), scores.shape)
    lengths = torch.tensor([0, 2, 5])
    assert torch.vmap(work)(lengths)[:, 0, 0, 0].sum(-1).tolist() == [0, 2, 5]


def test_made_under_inference_mode_and_saved_by_autograd_later():
    mask = masks.causal("top_left")
    with torch.inference_mode():
        lowered = mask._lower_torch(1, 1, 4, 4, CPU)
    assert not any(bound.is_inference() for bound in lowered[:2])
