"""What explain says, against counting in the dense mask."""

import dataclasses

import numpy as np
import pytest
import tegula as tg
from tegula import masks

pytestmark = pytest.mark.isa_once

DOCUMENTS = np.cumsum([0, *[3] * 40, 150, *[1] * 7, 0, 60, 33])
T = int(DOCUMENTS[-1])

BLOCKS = np.kron(np.random.default_rng(1).random((6, 6)) < 0.3, np.ones((64, 64))) > 0

# Masks whose rows, block by block, see one run of keys.
RUNS = {
    "none": (None, 130, 130),
    "full": (masks.full(), 47, 300),
    "causal": (masks.causal(), 600, 600),
    "bottom right": (masks.causal(align="bottom_right"), 100, 700),
    "window": (masks.window(40, 40), 1100, 1100),
    "sliding": (masks.sliding(100), 2500, 2500),
    "padding": (masks.padding([130, 0, 77]), 130, 130),
    "prefix": (masks.prefix([50, 200]), 400, 400),
    "one query": (masks.padding([300, 2]), 1, 512),
}
OTHERS = {
    "documents": (masks.documents(cu_seqlens=DOCUMENTS), T, T),
    "causal documents": (masks.documents(cu_seqlens=DOCUMENTS, causal="bottom_right"), T, T),
    "chunked": (masks.chunked(37), 500, 500),
    "sinks and window": (masks.sliding(60) | masks.global_tokens(4) & masks.causal(), 900, 900),
    "scattered": (masks.padding(keep=np.arange(300)[None] % 7 > 2), 100, 300),
    "dense blocks": (
        masks.dense(BLOCKS),
        384,
        384,
    ),
    "dense": (masks.dense(np.random.default_rng(0).random((2, 3, 90, 310)) < 0.4), 90, 310),
}


def visible_of(mask, found_batch, heads, q_len, k_len):
    dense = np.ones((q_len, k_len), bool) if mask is None else mask.dense(q_len, k_len)
    dense = dense[None, None] if dense.ndim == 2 else dense
    return np.broadcast_to(dense, (max(found_batch, dense.shape[0]), max(heads, dense.shape[1]), q_len, k_len))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", RUNS)
def test_tiles_and_pairs_of_runs(name, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    mask, q_len, k_len = RUNS[name]
    heads = 2
    found = tg.explain(mask, q_len, k_len, heads=heads, dtype=dtype, threads=1)
    visible = visible_of(mask, 1, heads, q_len, k_len)
    assert found.pairs == visible.sum()
    assert found.share == pytest.approx(visible.mean())
    full = mixed = skipped = 0
    for head in visible.reshape(-1, q_len, k_len):
        for row in range(0, q_len, found.block_rows):
            for key in range(0, k_len, found.tile_keys):
                tile = head[row : row + found.block_rows, key : key + found.tile_keys]
                full += tile.all()
                skipped += not tile.any()
                mixed += tile.any() and not tile.all()
    assert (found.tiles_full, found.tiles_mixed, found.tiles_skipped) == (full, mixed, skipped)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_pairs_of_others(name, backward):
    mask, q_len, k_len = OTHERS[name]
    found = tg.explain(mask, q_len, k_len, heads=3, backward=backward, threads=4)
    visible = visible_of(mask, 1, 3, q_len, k_len)
    assert found.pairs == visible.sum()
    tiles = found.tiles_full + found.tiles_mixed + found.tiles_skipped
    assert tiles == found.blocks * -(-k_len // found.tile_keys)
    # All pairs lie in tiles that are computed, and all of a full tile's are pairs.
    tile = found.block_rows * found.tile_keys
    assert found.pairs <= (found.tiles_full + found.tiles_mixed) * tile
    assert found.flops == 2 * found.pairs * (5 * 64 if backward else 2 * 64)
    assert found.tasks.sum() == pytest.approx(1)


def test_blocks_follow_long_documents():
    cut = tg.explain(masks.documents(cu_seqlens=[0, 110, 220, 330]), threads=1)
    assert cut.blocks == 3 * -(-110 // cut.block_rows)
    joined = tg.explain(masks.documents(cu_seqlens=np.arange(0, 331, 3)), threads=1)
    assert joined.blocks <= 330 // joined.block_rows + 2


def test_bytes():
    found = tg.explain(None, 10, 20, batch=2, heads=6, key_heads=3, dim=16, value_dim=32, threads=1)
    q, out, keys = 2 * 6 * 10 * 16 * 4, 2 * 6 * 10 * 32 * 4, 2 * 3 * 20 * 48 * 4
    assert (found.bytes_read, found.bytes_written) == (q + keys, out)
    assert found.intensity == found.flops / (q + keys + out)
    back = tg.explain(None, 10, 20, batch=2, heads=6, key_heads=3, dim=16, value_dim=32, backward=True, threads=1)
    assert (back.bytes_read, back.bytes_written) == (q + keys + 2 * out + 2 * 6 * 10 * 4, q + keys)


def test_bytes_of_a_bool_array():
    array = np.tri(100, dtype=bool)
    once = tg.explain(masks.dense(array), threads=1)
    assert tg.explain(array, threads=1).bytes_read == once.bytes_read + array.nbytes


def test_sizes_of_the_mask():
    keep = np.ones((3, 40), bool)
    found = tg.explain(masks.padding(keep=keep), 40)
    assert found.pairs == 3 * 40 * 40
    assert tg.explain(np.ones((2, 4, 5, 6), bool)).pairs == 2 * 4 * 5 * 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mask": BLOCKS & (np.arange(384) % 3 > 0)}, "dense"),
        ({"q_len": 10, "dim": 100}, "head size 100"),
        ({"q_len": 10, "value_dim": 7}, "values 7"),
        ({"q_len": 10, "bias": "float64"}, "float64"),
        ({"q_len": 10, "softcap": True, "alibi": True}, "softcap and alibi"),
        ({"q_len": 1, "k_len": 5000}, "few queries"),
        ({"q_len": 48, "k_len": 60000, "heads": 3, "threads": 64}, "chunks"),
        ({"q_len": 4000, "heads": 3, "threads": 64, "backward": True}, "share"),
        ({"mask": masks.documents(cu_seqlens=np.arange(0, 3001, 3))}, "short documents"),
        ({"mask": np.tri(50, dtype=bool)}, "masks.dense(array), made once"),
        ({"mask": np.tri(50, k=-3, dtype=bool)}, "3 of 50 queries see no key"),
        ({"mask": masks.padding([5, 0, 0]), "q_len": 5, "k_len": 5, "heads": 2}, "20 of 30 queries see no key"),
        ({"mask": masks.padding([2]) & masks.sliding(2, sinks=0), "q_len": 5, "k_len": 5}, "2 of 5 queries see no key"),
    ],
)
def test_notes(options, words):
    assert any(words in note for note in tg.explain(**options).notes)


def test_no_notes():
    assert tg.explain(masks.causal(), 2048, heads=12, threads=2).notes == ()


def test_nothing_to_do():
    for sizes in ({"q_len": 0}, {"q_len": 5, "batch": 0}, {"q_len": 5, "heads": 0}, {"q_len": 5, "k_len": 0}):
        found = tg.explain(None, **sizes)
        assert (found.pairs, found.flops, found.share) == (0, 0.0, 0.0)
        assert found.balance == 1
        assert repr(found)


def test_table():
    found = tg.explain(masks.causal(), 500, heads=2, threads=1)
    assert repr(found) == str(found)
    assert f"{found.pairs:,} visible" in repr(found)
    assert tg.config()["isa"]["active"] in repr(found)
    assert found._repr_html_().startswith("<table><tr><th>pairs</th>")
    assert "&lt;" in dataclasses.replace(found, notes=("<b>",))._repr_html_()


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (ValueError, {}),
        (ValueError, {"q_len": -1}),
        (ValueError, {"q_len": 2**31}),
        (TypeError, {"q_len": 1.5}),
        (ValueError, {"q_len": 4, "heads": 3, "key_heads": 2}),
        (ValueError, {"q_len": 4, "heads": 3, "key_heads": 0}),
        (TypeError, {"q_len": 4, "dtype": "int32"}),
        (TypeError, {"q_len": 4, "backward": 1}),
        (ValueError, {"q_len": 4, "threads": 0}),
        (TypeError, {"mask": np.ones((4, 4), np.float32)}),
        (ValueError, {"mask": masks.padding([1, 2]), "q_len": 4, "batch": 3}),
        (ValueError, {"mask": masks.causal(), "q_len": 4, "k_len": 5}),
    ],
)
def test_errors(error, options):
    with pytest.raises(error):
        tg.explain(**options)


@pytest.mark.parametrize("dtype", ["bfloat16", "torch.bfloat16", np.float16, "float64"])
def test_dtypes_by_any_name(dtype):
    found = tg.explain(None, 10, dtype=dtype, threads=1)
    assert found.bytes_written == 10 * 64 * (8 if dtype == "float64" else 2)


def test_dtypes_that_are_none():
    with pytest.raises(TypeError, match="bias must be float64, float32, float16 or bfloat16, got int64"):
        tg.explain(None, 10, bias=np.zeros((10, 10), np.int64))
    assert tg.explain(None, 10, bias=np.zeros((10, 10)), threads=1).notes[-1].startswith("the bias is float64")


def test_notes_of_masks():
    """Small causal calls need no excuse; scattered pairs do."""
    for length in (8, 16, 64):
        assert tg.explain(masks.causal(), length, threads=1).notes == ()
    scattered = np.random.default_rng(0).random((512, 512)) < 0.05
    notes = " ".join(tg.explain(scattered, threads=1).notes)
    assert "none is skipped" in notes and "scattered pairs" in notes
