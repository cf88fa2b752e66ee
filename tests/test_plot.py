"""T1.5: pictures of positions and masks show the numbers they are made of."""

import numpy as np
import pytest
import tegula as tg

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plot = pytest.importorskip("tegula.plot")

pytestmark = pytest.mark.isa_once


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


def test_mask_is_drawn_as_it_is():
    mask = tg.masks.sliding(3)
    np.testing.assert_array_equal(plot.mask(mask, 8, 8).images[0].get_array(), mask.dense(8, 8))


def test_drawing_goes_into_the_given_axes():
    import matplotlib.pyplot as plt

    ax = plt.figure().add_subplot()
    assert plot.position_heatmap(4, 4, ax=ax) is ax
