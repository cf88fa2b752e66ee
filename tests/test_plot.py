"""T1.5, T1.6: pictures of positions, masks and attention show the numbers they are made of."""

import base64
import io
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import tegula as tg

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plot = pytest.importorskip("tegula.plot")

pytestmark = [pytest.mark.isa_once, pytest.mark.filterwarnings("error")]

KINDS = {"skipped": 0, "mixed": 1, "full": 2}


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def test_t1_05_curves_of_single_dimensions():
    ax = plot.position_curves(50, 16, dims=(0, 1, 14))
    table = tg.positional_encoding(50, 16)
    assert [line.get_label() for line in ax.lines] == ["dimension 0", "dimension 1", "dimension 14"]
    for line, index in zip(ax.lines, (0, 1, 14), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), table[:, index])


def test_t1_05_low_dimensions_change_fast_and_high_ones_slowly():
    lines = plot.position_curves(200, 64).lines
    turns = [np.count_nonzero(np.diff(np.sign(line.get_ydata()))) for line in lines]
    assert turns == sorted(turns, reverse=True)
    assert turns[0] > 10 * max(turns[-1], 1)


def test_t1_05_heat_map_of_the_whole_table():
    ax = plot.position_heatmap(40, 24, layout="split")
    np.testing.assert_array_equal(ax.images[0].get_array(), tg.positional_encoding(40, 24, layout="split"))


def test_a_learned_table_is_drawn_as_it_is():
    table = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float16)
    ax = plot.position_heatmap(table)
    np.testing.assert_array_equal(ax.images[0].get_array(), table)
    assert ax.images[0].get_clim() == (-abs(table).max(), abs(table).max())
    (line,) = plot.position_curves(table, dims=[3]).lines
    np.testing.assert_array_equal(line.get_ydata(), table[:, 3])


# ---------------------------------------------------------------------------------------------------
# T1.6: similarity


def test_t1_06_similarity_depends_on_the_distance_alone():
    lines = plot.position_similarity(100, 64, at=(0, 40, 99), cosine=False).lines
    curves = [dict(zip(line.get_xdata().tolist(), line.get_ydata().tolist(), strict=True)) for line in lines]
    assert [(min(curve), max(curve)) for curve in curves] == [(0, 99), (-40, 59), (-99, 0)]
    frequencies = 10000.0 ** (-np.arange(0, 64, 2) / 64)
    for curve in curves:
        for distance, value in curve.items():
            assert value == pytest.approx(np.cos(distance * frequencies).sum(), abs=1e-4)


def test_t1_06_cosine_is_one_at_distance_0_and_falls():
    ax = plot.position_similarity(101, 128)
    (line,) = ax.lines
    curve = dict(zip(line.get_xdata().tolist(), line.get_ydata().tolist(), strict=True))
    assert curve[0] == pytest.approx(1)
    assert max(abs(value) for value in curve.values()) <= 1 + 1e-6
    assert curve[0] > curve[1] > curve[2] > curve[3]
    assert curve[1] == pytest.approx(curve[-1])
    assert ax.get_ylabel() == "cosine"


def test_a_row_of_zeros_is_like_nothing():
    table = np.eye(3, 2)
    (line,) = plot.position_similarity(table, at=[0]).lines
    np.testing.assert_array_equal(line.get_ydata(), [1, 0, 0])


# ---------------------------------------------------------------------------------------------------
# Masks


def test_mask_is_drawn_as_it_is():
    mask = tg.masks.sliding(3)
    np.testing.assert_array_equal(plot.mask(mask, 8, 8).images[0].get_array(), mask.dense(8, 8))


def test_one_batch_entry_and_head_of_a_mask():
    given = np.random.default_rng(0).random((2, 3, 4, 5)) < 0.5
    np.testing.assert_array_equal(plot.mask(given, 4, 5, batch=1, head=2).images[0].get_array(), given[1, 2])
    np.testing.assert_array_equal(plot.mask(given[:1], 4, 5, batch=7, head=1).images[0].get_array(), given[0, 1])
    for options in (dict(batch=2), dict(head=3), dict(batch=-1)):
        with pytest.raises(IndexError, match=next(iter(options))):
            plot.mask(given, 4, 5, **options)


TILED = {
    "causal": (tg.masks.causal("bottom_right"), 37, 50),
    "sliding": (tg.masks.sliding(9), 64, 64),
    "window": (tg.masks.window(3, 20), 40, 40),
    "packed": (tg.masks.documents(cu_seqlens=[0, 13, 13, 40, 61], causal="top_left"), 61, 61),
    "padding": (tg.masks.padding([30], queries=[17]), 40, 45),
    "left padding": (tg.masks.padding(keep=np.arange(48)[None] >= 19) & tg.masks.causal(), 48, 48),
    "prefix": (tg.masks.prefix(21), 50, 50),
    "nothing": (tg.masks.padding([0]), 20, 20),
    "everything": (tg.masks.full(), 20, 33),
}


@pytest.mark.parametrize("tile", [(8, 8), (5, 16), (64, 64), (1, 1)])
@pytest.mark.parametrize("name", TILED)
def test_tiles_are_what_their_pairs_say(name, tile):
    mask, q_len, k_len = TILED[name]
    ax = plot.mask_tiles(mask, q_len, k_len, tile=tile)
    visible = mask.dense(q_len, k_len).reshape(q_len, k_len)
    expected = [
        [
            KINDS["full" if part.all() else "mixed" if part.any() else "skipped"]
            for part in np.split(rows, range(tile[1], k_len, tile[1]), axis=1)
        ]
        for rows in np.split(visible, range(tile[0], q_len, tile[0]))
    ]
    np.testing.assert_array_equal(ax.images[0].get_array(), expected)
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert shown == [f"{kind}: {np.count_nonzero(np.equal(expected, value))} tiles" for kind, value in KINDS.items()]


def test_tiles_stand_where_their_queries_and_keys_are():
    mask = tg.masks.causal("bottom_right")
    ax = plot.mask_tiles(mask, 20, 30, tile=(8, 16))
    assert ax.images[0].get_extent() == [0, 32, 24, 0]
    assert ax.get_xlim() == (0, 30) and ax.get_ylim() == (20, 0)
    first, last = ax.lines
    lo, hi = (np.broadcast_to(bound.ravel(), 20) for bound in mask.intervals(20, 30))
    np.testing.assert_array_equal(first.get_xdata()[::2], lo)
    np.testing.assert_array_equal(last.get_xdata()[1::2], hi)
    np.testing.assert_array_equal(last.get_ydata(), np.arange(21).repeat(2)[1:-1])


def test_tiles_of_a_mask_with_gaps_are_mixed_or_skipped():
    given = np.ones((4, 8), bool)
    given[0, [1, 3]] = given[:, 6:] = False
    np.testing.assert_array_equal(plot.mask_tiles(given, 4, 8, tile=2).images[0].get_array(), [[1, 1, 1, 0]] * 2)


def test_tiles_of_a_mask_with_two_runs():
    mask = tg.masks.sliding(4, sinks=2)
    shown = plot.mask_tiles(mask, 16, 16, tile=2).images[0].get_array()
    np.testing.assert_array_equal(shown[4], [2, 0, 1, 2, 1, 0, 0, 0])
    np.testing.assert_array_equal(shown[7], [2, 0, 0, 0, 0, 1, 2, 1])


def test_tiles_of_one_batch_entry():
    mask = tg.masks.padding([8, 16])
    np.testing.assert_array_equal(plot.mask_tiles(mask, 8, 16, tile=8, batch=1).images[0].get_array(), [[2, 2]])
    np.testing.assert_array_equal(plot.mask_tiles(mask, 8, 16, tile=8).images[0].get_array(), [[2, 0]])


# ---------------------------------------------------------------------------------------------------
# Attention


def test_attention_weights_with_token_labels():
    q = np.random.default_rng(0).standard_normal((2, 3, 8), dtype=np.float32)
    _, weights = tg.attention(q, q, q, mask=tg.masks.causal(), return_weights=True)
    words = ["the", "cat", "sat"]
    ax = plot.attention_weights(weights, head=1, q_tokens=words, k_tokens=words[::-1])
    np.testing.assert_array_equal(ax.images[0].get_array(), weights[1])
    assert [label.get_text() for label in ax.get_yticklabels()] == words
    assert [label.get_text() for label in ax.get_xticklabels()] == words[::-1]
    assert ax.images[0].get_clim()[0] == 0
    np.testing.assert_array_equal(plot.attention_weights(weights).images[0].get_array(), weights.mean(0))
    np.testing.assert_array_equal(plot.attention_weights(weights[0]).images[0].get_array(), weights[0])


# ---------------------------------------------------------------------------------------------------
# All of them

DRAWN = {
    "position_curves": lambda **to: plot.position_curves(30, 8, **to),
    "position_heatmap": lambda **to: plot.position_heatmap(30, 8, **to),
    "position_similarity": lambda **to: plot.position_similarity(30, 8, **to),
    "mask": lambda **to: plot.mask(tg.masks.causal(), 6, 6, **to),
    "mask_tiles": lambda **to: plot.mask_tiles(tg.masks.causal(), 30, 30, tile=8, **to),
    "attention_weights": lambda **to: plot.attention_weights(np.eye(3), q_tokens="abc", **to),
}


@pytest.mark.parametrize("name", DRAWN)
def test_drawing_goes_into_the_given_axes_and_renders(name):
    import matplotlib.pyplot as plt

    ax = plt.figure().add_subplot()
    assert DRAWN[name](ax=ax) is ax
    file = io.BytesIO()
    ax.figure.savefig(file, format="png")
    assert np.ptp(plt.imread(io.BytesIO(file.getvalue()))[..., :3]) > 0
    assert DRAWN[name]() is not ax


def test_every_function_is_drawn_here():
    public = {name for name, value in vars(plot).items() if getattr(value, "__module__", "") == "tegula.plot"}
    assert {name for name in public if not name.startswith("_")} == set(DRAWN)


def test_tensors_are_drawn_as_arrays_are():
    torch = pytest.importorskip("torch")
    table = torch.randn(6, 4, requires_grad=True)
    for given in (table, table.bfloat16(), table.double()):
        shown = plot.position_heatmap(given).images[0].get_array()
        np.testing.assert_array_equal(shown, given.detach().double().numpy())
    weights = torch.softmax(table[None] @ table.T, -1)
    np.testing.assert_array_equal(plot.attention_weights(weights, head=0).images[0].get_array(), weights[0].detach())
    packed = [tg.masks.documents(cu_seqlens=make([0, 10, 30]), causal="top_left") for make in (np.array, torch.tensor)]
    for draw in (plot.mask, plot.mask_tiles):
        of_arrays, of_tensors = (draw(mask, 30, 30).images[0].get_array() for mask in packed)
        np.testing.assert_array_equal(of_arrays, of_tensors)
    np.testing.assert_array_equal(plot.mask(torch.eye(3).bool(), 3, 3).images[0].get_array(), np.eye(3))


BAD = {
    "no dim": (lambda: plot.position_curves(5), ValueError, "dim must be given"),
    "dim of a table": (lambda: plot.position_heatmap(np.eye(3), 3), ValueError, "dim goes with a number"),
    "options of a table": (lambda: plot.position_curves(np.eye(3), base=10.0), ValueError, "base goes with a number"),
    "rank of a table": (lambda: plot.position_similarity(np.ones(3)), ValueError, r"got \(3,\)"),
    "a far dimension": (lambda: plot.position_curves(5, 4, dims=[4]), IndexError, "dimension 4"),
    "a far position": (lambda: plot.position_similarity(5, 4, at=[5]), IndexError, "position 5"),
    "no rows": (lambda: plot.position_heatmap(0, 4), ValueError, "nothing to draw"),
    "no queries": (lambda: plot.mask(tg.masks.full(), 0, 3), ValueError, "nothing to draw"),
    "no keys": (lambda: plot.mask_tiles(tg.masks.full(), 3, 0), ValueError, "nothing to draw"),
    "an empty tile": (lambda: plot.mask_tiles(tg.masks.full(), 3, 3, tile=(1, 0)), ValueError, "tile"),
    "half a tile": (lambda: plot.mask_tiles(tg.masks.full(), 3, 3, tile=1.5), TypeError, "tile"),
    "another length": (lambda: plot.mask(np.eye(3, dtype=bool), 4, 3), ValueError, "q_len"),
    "a mask of floats": (lambda: plot.mask(np.eye(3), 3, 3), TypeError, "bool"),
    "a batch of weights": (lambda: plot.attention_weights(np.ones((1, 2, 3, 3))), ValueError, r"weights\[0\]"),
    "a far head": (lambda: plot.attention_weights(np.ones((2, 3, 3)), head=2), IndexError, "head 2"),
    "too few labels": (lambda: plot.attention_weights(np.eye(3), k_tokens=["a"]), ValueError, "k_tokens must have 3"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    import matplotlib.pyplot as plt

    draw, error, message = BAD[name]
    with pytest.raises(error, match=message):
        draw()
    assert not plt.get_fignums(), "an error leaves no figure behind"


# ---------------------------------------------------------------------------------------------------
# In a notebook


def pixels_of(svg):
    """The numbers, -1 .. 1, that the colours of a heat map stand for; NaN for grey."""
    from matplotlib.image import imread

    href = ElementTree.fromstring(svg).find("{http://www.w3.org/2000/svg}image").get("href")
    colours = imread(io.BytesIO(base64.b64decode(href.removeprefix("data:image/png;base64,"))))[..., :3] * 255
    fade = (247 - colours).clip(0) / (247 - np.array([33, 102, 172]))  # from nearly white to blue
    other = (247 - colours).clip(0) / (247 - np.array([178, 24, 43]))  # and to red
    grey = (colours == 128).all(-1)
    values = np.where(np.ptp(fade, axis=-1) <= np.ptp(other, axis=-1), fade.mean(-1), -other.mean(-1))
    return np.where(grey, np.nan, values)


def test_a_table_shows_itself_as_a_heat_map():
    from tegula import _heatmap

    table = tg.positional_encoding(40, 24)
    table[3, 5] = np.nan
    svg = _heatmap.svg(table, "a <table>", limit=1.0)
    np.testing.assert_allclose(pixels_of(svg), table, atol=0.02)
    assert "a <table>" in "".join(ElementTree.fromstring(svg).itertext())


def test_a_long_table_stays_small():
    from tegula import _heatmap

    svg = _heatmap.svg(np.random.default_rng(0).normal(size=(5000, 700)), "table")
    assert len(svg) < 100_000
    assert pixels_of(svg).shape == (256, 256)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (1, 1)])
def test_small_and_empty_tables_show_themselves(shape):
    from tegula import _heatmap

    ElementTree.fromstring(_heatmap.svg(np.zeros(shape), "table"))


def test_a_mask_shows_itself_as_html():
    mask = tg.masks.causal()
    assert mask._repr_html_() == mask._repr_svg_()
    assert re.match(r"<svg ", mask._repr_html_())


@pytest.mark.parametrize("max_len", [None, 40])
def test_a_module_of_positions_shows_its_table(max_len):
    pytest.importorskip("torch")
    from tegula.torch.nn import SinusoidalPositions

    layer = SinusoidalPositions(24, max_len, layout="split")
    svg = layer._repr_html_()
    np.testing.assert_allclose(pixels_of(svg), tg.positional_encoding(max_len or 128, 24, layout="split"), atol=0.02)
    assert repr(layer) in "".join(ElementTree.fromstring(svg).itertext())
