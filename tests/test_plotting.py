"""Chapter 01: contrast, fonts, figures of every kind of input, known faults, and the wrong things."""
import subprocess
import sys
import unicodedata
import warnings
from itertools import combinations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given, strategies as st

from transformer_course.toolbox import plotting as ours
from transformer_course.toolbox import plotting_exercises
from transformer_course.toolbox.exercises import check

CHANNELS = st.tuples(*[st.floats(0, 1)] * 3)


@pytest.fixture(autouse=True)
def clean_figures():
    """Each test begins with Matplotlib's own settings, draws to memory, and leaves no figure open."""
    with mpl.rc_context():
        mpl.rcdefaults()
        plt.switch_backend("agg")
        yield
        plt.close("all")


def draw(ax):
    """Draw a figure as a page would; any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ax.figure.canvas.draw()
    return ax


def python(code):
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


# Contrast ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("a, b, ratio", [  # as the guidelines' own documents and checkers give them
    ("white", "black", 21), ("#777777", "white", 4.48), ("#767676", "white", 4.54), ("#ff0000", "#ffffff", 4.00),
    ("#0000ff", "white", 8.59), ("#ffff00", "white", 1.07), ("#949494", "white", 3.03), ("#123456", "#123456", 1),
])
def test_contrast_is_that_of_the_guidelines(a, b, ratio):
    assert ours.contrast_ratio(a, b) == pytest.approx(ratio, abs=0.005) == ours.contrast_ratio(b, a)


@given(CHANNELS, CHANNELS)
def test_contrast_is_symmetric_and_bounded(a, b):
    assert 1 <= ours.contrast_ratio(a, b) == ours.contrast_ratio(b, a) <= 21 + 1e-9
    assert max(ours.contrast_ratio(a, "black"), ours.contrast_ratio(a, "white")) >= 21**0.5 - 1e-9


def numbers_are_readable(choose_ink):
    """Whether the ink that is chosen for a cell has a contrast of 4.5 with every grey and every colour of the scales."""
    cells = [*np.repeat(np.linspace(0, 1, 256)[:, None], 3, axis=1), *ours.SEQUENTIAL(np.linspace(0, 1, 257))[:, :3],
             *ours.DIVERGING(np.linspace(0, 1, 257))[:, :3], *mpl.colormaps["viridis"](np.linspace(0, 1, 64))[:, :3]]
    return all(ours.contrast_ratio(choose_ink(cell), cell) >= 4.5 for cell in cells)


@pytest.mark.parametrize("fault", [
    lambda cell: ".15" if ours._luminance(cell) > 0.408 else "w",  # seaborn
    lambda cell: "black" if np.mean(cell) > 0.5 else "white",
    lambda cell: "black",
    lambda cell: max((ours.INK, "white"), key=lambda ink: ours.contrast_ratio(ink, cell)),  # not quite black
    lambda cell: min(("black", "white"), key=lambda ink: ours.contrast_ratio(ink, cell)),
])
def test_unreadable_numbers_are_caught(fault):
    assert numbers_are_readable(ours._readable_on)
    assert not numbers_are_readable(fault)


@pytest.mark.parametrize("first, second, says", [
    ("bluish", "white", r"first \('bluish'\) must be a colour"), ("white", None, r"second \(None\) must be a colour"),
    ("none", "white", r"first \('none'\) must be opaque"), ("white", (0, 0, 0, 0.1), "second .* must be opaque"),
])
def test_not_a_color(first, second, says):
    with pytest.raises(ValueError, match=says):
        ours.contrast_ratio(first, second)


# Colours -----------------------------------------------------------------------------------------------------------

def test_the_palette_stands_out_and_stays_apart_by_the_other_model_too():
    assert len(set(ours.PALETTE)) == len(ours.PALETTE) == len(ours._LINES) == len(ours._MARKERS)
    assert len(set(map(str, ours._LINES))) == len(set(ours._MARKERS)) == len(ours.PALETTE)
    assert ours.contrast_ratio(ours.INK, ours.PAPER) > 4.5
    assert all(ours.contrast_ratio(color, ours.PAPER) >= 3 for color in ours.PALETTE)
    for eye in plotting_exercises._EYES.values():
        looks = [plotting_exercises._lab(color, eye) for color in ours.PALETTE]
        assert min(np.linalg.norm(a - b) for a, b in combinations(looks, 2)) > 20


def test_more_is_always_darker():
    light = [ours._luminance(color[:3]) for color in ours.SEQUENTIAL(np.linspace(0, 1, 256))]
    assert (np.diff(light) < 0).all()
    both = [ours._luminance(color[:3]) for color in ours.DIVERGING(np.linspace(0, 1, 257))]
    assert (np.diff(both[:129]) > 0).all() and (np.diff(both[128:]) < 0).all()
    assert mpl.colors.same_color(ours.SEQUENTIAL(0.0), ours.PAPER) and mpl.colors.same_color(ours.DIVERGING(0.5), ours.PAPER)


# Imports, style and fonts ------------------------------------------------------------------------------------------

def test_importing_changes_no_setting_and_loads_no_torch():
    code = ("import sys, matplotlib as mpl; before = mpl.rcParams.copy(); import transformer_course.toolbox.plotting as p;"
            "print(mpl.rcParams == before, 'torch' in sys.modules); p.plot_attention([[1.0]], ['a'], ['b']); p.plot_curves({'a': [1]});"
            "print(mpl.rcParams == before, 'torch' in sys.modules)")
    assert python("import matplotlib; matplotlib.use('agg')\n" + code) == "True False\nTrue False"


def test_the_style_is_set_by_a_call_and_comes_off():
    before = mpl.rcParams.copy()
    with mpl.rc_context():
        ours.use_course_style()
        changed = {key for key in before if mpl.rcParams[key] != before[key]}
        assert {"figure.facecolor", "font.family", "axes.prop_cycle", "figure.dpi"} <= changed
        ours.use_course_style()  # twice is once
    assert mpl.rcParams == before


def warned(label, **style):
    """What Matplotlib warns of when it draws a label."""
    figure = plt.figure()
    figure.text(0.1, 0.5, label, **style)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.canvas.draw()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("label", ["귀여운 곰 인형이 책을 읽는다", "ㄱㄴㄷ ㅏㅑ", "Un mignon ours en peluche lit là-bas, à l'œil", "−1 × 2 ≤ 3 → …"])
def test_labels_find_their_glyphs_in_the_course_style(label):
    ours.use_course_style()
    assert warned(label) == []


def test_hangul_needs_the_font_and_a_rare_syllable_warns():
    assert any("missing from font" in message for message in warned("곰"))  # Matplotlib's own font has none
    ours.use_course_style()
    assert warned("곰") == []
    message, = warned("곰뷁")
    assert "HANGUL SYLLABLE" in message and "missing from font" in message


def test_the_hangul_font_holds_the_whole_standard():
    ours.use_course_style()
    from matplotlib import font_manager
    path = font_manager.findfont("Course Hangul", fallback_to_default=False)
    assert path.endswith("transformer_course/toolbox/fonts/CourseHangul.ttf")
    codes = font_manager.get_font(path).get_charmap()
    standard = {ord(bytes([high, low]).decode("euc-kr")) for high in range(0xB0, 0xC9) for low in range(0xA1, 0xFF)}
    assert len(standard) == 2350 and standard <= set(codes)


@pytest.mark.parametrize("plot", [
    lambda: ours.plot_attention(np.eye(2), ["곰", "책"], ["읽", "는"], title="주의"),
    lambda: ours.plot_heatmap(np.eye(2), ["곰", "책"], ["읽", "는"], title="행렬", xlabel="가", ylabel="나", fmt=".0f", colorbar=True),
    lambda: ours.plot_curves({"훈련": [1, 2], "검증": [2, 1]}, xlabel="걸음", ylabel="손실", title="곡선"),
    lambda: ours.draw_boxes({"글": (0, 0), "벡터": (3, 0)}, [("글", "벡터", "찾기")]),
])
@pytest.mark.parametrize("styled", [True, False])
def test_every_figure_speaks_korean_under_any_style(plot, styled):
    if styled:
        ours.use_course_style()
    draw(plot())


# Inputs ------------------------------------------------------------------------------------------------------------

def shown(ax):
    return ax.images[0].get_array().astype(float).filled(np.nan)


def same_numbers_as(matrix):
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(matrix)
    return [matrix, tuple(map(tuple, matrix)), np.array(matrix), np.array(matrix, np.float32), tensor, tensor.bfloat16(), tensor.half(),
            tensor.double(), tensor.clone().requires_grad_(), list(tensor), tensor.t().contiguous().t(), [list(row) for row in tensor]]


def test_all_kinds_of_numbers_give_the_same_picture():
    matrix = [[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]  # exact in every dtype
    for values in same_numbers_as(matrix):
        assert (shown(ours.plot_attention(values, "ab", "xyz")) == matrix).all()
        assert (shown(ours.plot_heatmap(values)) == matrix).all()
        ax = ours.plot_curves({"a": values})
        assert ax.lines[0].get_ydata().tolist() == np.mean(matrix, axis=0).tolist()
        plt.close("all")


def test_booleans_and_counts():
    torch = pytest.importorskip("torch")
    for mask in (torch.ones(2, 2, dtype=torch.bool).tril(), np.tri(2, dtype=bool), [[True, False], [True, True]]):
        ax = ours.plot_heatmap(mask, fmt="d")
        assert [t.get_text() for t in ax.texts] == ["1", "0", "1", "1"] and shown(ax).tolist() == [[1, 0], [1, 1]]


def test_labels_belong_to_their_rows_and_columns():
    ax = draw(ours.plot_attention([[0.1, 0.2, 0.7]], ["query token"], ["k0", "k1", "a long key token"]))
    assert [t.get_text() for t in ax.get_yticklabels()] == ["query token"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["k0", "k1", "a long key token"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # row 0 on top


def test_an_attention_map_has_a_fixed_scale():
    for weights in ([[0.1, 0.2]], [[0.5, 0.5]]):
        norm = ours.plot_attention(weights, "a", "xy").images[0].norm
        assert (norm.vmin, norm.vmax) == (0, 1)
    assert ours.plot_attention([[0.1, 0.2]], "a", "xy", vmax=0.2).images[0].norm.vmax == 0.2


def test_a_centre_is_uncoloured_and_both_arms_reach_equally_far():
    for matrix, ends in (([[-4, 0, 1]], (-4, 4)), ([[1, 2]], (-2, 2)), ([[-1, 0, 4]], (-4, 4))):
        image = ours.plot_heatmap(matrix, center=0).images[0]
        assert (image.norm.vmin, image.norm.vmax) == ends
    assert np.allclose(image.cmap(image.norm(0.0)), mpl.colors.to_rgba(ours.PAPER), atol=0.01)
    assert ours._luminance(image.cmap(image.norm(-1.0))[:3]) > ours._luminance(image.cmap(image.norm(4.0))[:3])


def test_cells_that_are_no_numbers_are_grey_and_say_so():
    ax = ours.plot_heatmap([[float("nan"), float("-inf"), 0.0, 1.0]], fmt=".0f")
    assert [t.get_text() for t in ax.texts] == ["nan", "-inf", "0", "1"]
    image = ax.images[0]
    *grey, opacity = image.cmap(np.ma.masked_all(1))[0]
    assert max(grey) - min(grey) < 0.05 and opacity == 1 and (image.norm.vmin, image.norm.vmax) == (0, 1)
    assert ours.contrast_ratio(grey, ours.PAPER) > 1.5
    for text in ax.texts[:2]:
        assert ours.contrast_ratio(text.get_color(), grey) > 4.5
    draw(ours.plot_heatmap([[float("nan")]], fmt=".1f"))


def test_zeros_are_uncoloured_when_zero_is_the_centre():
    image = ours.plot_heatmap([[0.0, 0.0]], center=0).images[0]
    assert np.allclose(image.to_rgba(image.get_array()), mpl.colors.to_rgba(ours.PAPER), atol=0.01)


@pytest.mark.parametrize("limits, ends", [
    ({}, (2, 3)), ({"vmin": 5}, (5, 6)), ({"vmax": -5}, (-6, -5)), ({"vmin": 2}, (2, 3)), ({"vmax": 2}, (1, 2)),
    ({"vmin": np.float32(0)}, (0, 2)),
])
@pytest.mark.usefixtures("unchecked")
def test_a_limit_that_is_given_is_kept(limits, ends):
    norm = ours.plot_heatmap([[2.0, 2.0]], **limits).images[0].norm
    assert (norm.vmin, norm.vmax) == ends


def test_what_is_masked_is_no_number():
    masked = np.ma.array([[1.0, 99.0], [3.0, 4.0]], mask=[[0, 1], [0, 0]])
    ax = ours.plot_heatmap(masked, fmt=".0f")
    assert [t.get_text() for t in ax.texts] == ["1", "nan", "3", "4"]
    assert (ax.images[0].norm.vmin, ax.images[0].norm.vmax) == (1, 4) and np.isnan(shown(ax)[0, 1])
    ax = ours.plot_heatmap(np.ma.array([[1, 2]]), fmt="d")  # nothing is masked, so whole numbers stay whole
    assert [t.get_text() for t in ax.texts] == ["1", "2"]
    assert np.isnan(ours.plot_curves({"a": np.ma.array([1.0, 99.0, 3.0], mask=[0, 1, 0])}).lines[0].get_ydata()[1])


def test_tokens_are_no_formulas():
    tokens = ["$", "$$", "$\\frac", "$x$"]
    ax = draw(ours.plot_attention(np.eye(4), tokens, tokens))
    labels = [*ax.get_xticklabels(), *ax.get_yticklabels()]
    assert [t.get_text() for t in labels] == 2 * tokens and not any(t.get_parse_math() for t in labels)
    assert draw(ours.plot_heatmap(np.eye(2), ["$d_k$", "b"])).get_yticklabels()[0].get_parse_math()


@pytest.mark.usefixtures("unchecked")
def test_ids_are_labels_too():
    torch = pytest.importorskip("torch")
    ax = ours.plot_attention(np.eye(2), torch.tensor([5, 6]), np.array([7, 8]))
    assert [t.get_text() for t in (*ax.get_yticklabels(), *ax.get_xticklabels())] == ["5", "6", "7", "8"]


def test_decomposed_hangul_takes_the_room_of_its_syllables():
    composed = "귀여운 곰"
    decomposed = unicodedata.normalize("NFD", composed)
    assert len(decomposed) > 2 * len(composed) and ours._inches([decomposed]) == ours._inches([composed])
    draw(ours.plot_attention([[1.0]], [decomposed], [decomposed]))


def test_a_constant_matrix_is_drawn():
    for matrix in ([[2.0, 2.0]], [[0, 0]]):
        draw(ours.plot_heatmap(matrix, fmt=".1f", colorbar=True))
    draw(ours.plot_heatmap([[0, 0]], center=0, fmt=".1f"))


def test_axes_that_are_given_are_used():
    _, axes = plt.subplots(1, 4)
    assert ours.plot_heatmap([[1]], ax=axes[0]) is axes[0]
    assert ours.plot_attention([[1]], "a", "b", axes[1]) is axes[1]
    assert ours.plot_curves({"a": [1, 2]}, ax=axes[2]) is axes[2]
    assert ours.draw_boxes({"a": (0, 0)}, ax=axes[3]) is axes[3]
    assert len(plt.get_fignums()) == 1
    assert ours.plot_heatmap([[1]]).figure is not axes[0].figure


@pytest.mark.parametrize("rows, columns", [(1, 1), (2, 2), (5, 7), (12, 12), (3, 30), (64, 64), (64, 512)])
@pytest.mark.parametrize("colorbar", [True, False])
def test_everything_lies_inside_the_figure_and_fits_a_page(rows, columns, colorbar):
    ours.use_course_style()
    matrix = np.random.default_rng(0).random((rows, columns))
    labels = [[f"token {i}" for i in range(n)] if n <= 12 else None for n in (rows, columns)]
    ax = draw(ours.plot_heatmap(matrix, *labels, title="Title", xlabel="x", ylabel="y", colorbar=colorbar))
    assert all(float(tick).is_integer() for axis in (ax.xaxis, ax.yaxis) for tick in axis.get_majorticklocs())
    inside, (width, height) = ax.figure.get_tightbbox(), ax.figure.get_size_inches()
    assert inside.x0 >= -0.02 and inside.y0 >= -0.02 and inside.x1 <= width + 0.02 and inside.y1 <= height + 0.02
    assert ax.figure.get_figwidth() <= 7.6


def test_long_labels_do_not_squeeze_the_cells():
    ours.use_course_style()
    ax = draw(ours.plot_attention(np.eye(6), ["unbelievable"] * 6, ["unbelievable"] * 6, title="Title"))
    size = ax.get_window_extent()
    assert min(size.width, size.height) / 6 / ax.figure.dpi >= 0.6
    assert {t.get_rotation() for t in ax.get_xticklabels()} == {45}
    assert {t.get_rotation() for t in ours.plot_attention(np.eye(2), "ab", "xy").get_xticklabels()} == {0}


# Curves ------------------------------------------------------------------------------------------------------------

def test_a_curve_with_runs_is_their_mean_and_the_band_between_the_extremes():
    ax = ours.plot_curves({"runs": [[1, 5], [2, 1], [6, 3]], "one": [0, 0]}, x=[10, 20])
    assert ax.lines[0].get_ydata().tolist() == [3, 3] and ax.lines[0].get_xdata().tolist() == [10, 20]
    band, = ax.collections
    corners = {tuple(map(float, corner)) for corner in band.get_paths()[0].vertices}
    assert corners == {(10, 1), (10, 6), (20, 1), (20, 5)}


def test_one_run_as_a_matrix_has_no_band():
    assert not ours.plot_curves({"a": [[1, 2, 3]]}).collections


def test_curves_differ_in_color_line_and_marker_whatever_the_style():
    few = ours.plot_curves({str(i): [i, i] for i in range(7)})
    looks = [(line.get_color(), line.get_linestyle(), line._unscaled_dash_pattern, line.get_marker()) for line in few.lines]
    assert [look[0] for look in looks] == list(ours.PALETTE)
    assert len({look[1:3] for look in looks}) == len({look[3] for look in looks}) == 7
    many = ours.plot_curves({"a": range(13)})
    assert many.lines[0].get_marker() == "None" and many.lines[0].get_xdata().tolist() == list(range(13))


def test_curves_of_unequal_length_share_no_x():
    ax = ours.plot_curves({"long": [1, 2, 3], "short": [1, 2]})
    assert [len(line.get_xdata()) for line in ax.lines] == [3, 2]


def test_a_nan_leaves_a_gap():
    ax = draw(ours.plot_curves({"a": [1, float("nan"), 3]}))
    assert np.isnan(ax.lines[0].get_ydata()[1])


def test_one_curve_needs_no_legend_and_scales_are_set():
    assert ours.plot_curves({"a": [1, 2]}).get_legend() is None
    ax = draw(ours.plot_curves({"a": [1, 2], "b": [1, 10]}, x=[1, 10], xscale="log", yscale="log"))
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["a", "b"]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


# Diagrams ----------------------------------------------------------------------------------------------------------

def test_boxes_are_where_they_should_be_and_arrows_stop_at_their_edges():
    ax = draw(ours.draw_boxes({"a": (0, 0), "b": (3, 1)}, [("a", "b", "label"), ("b", "a", "back", 0.3)], width=1, height=0.5))
    boxes = [p for p in ax.patches if isinstance(p, mpl.patches.FancyBboxPatch)]
    assert [(p.get_x(), p.get_y(), p.get_width(), p.get_height()) for p in boxes] == [(-0.5, -0.25, 1, 0.5), (2.5, 0.75, 1, 0.5)]
    arrow = next(p for p in ax.patches if isinstance(p, mpl.patches.FancyArrowPatch))
    path = ax.transData.inverted().transform(arrow.get_transform().transform_path(arrow.get_path()).vertices)
    assert not any(abs(x) < 0.45 and abs(y) < 0.2 for x, y in path) and not any(abs(x - 3) < 0.45 and abs(y - 1) < 0.2 for x, y in path)
    assert ax.figure.get_size_inches() == pytest.approx([4.2, 1.7])
    assert [t.get_text() for t in ax.texts] == ["a", "b", "label", "back"]


def test_a_dark_box_has_a_light_label():
    ax = ours.draw_boxes({"a": (0, 0), "b": (2, 0)}, colors={"a": "#182f49"})
    assert [t.get_color() for t in ax.texts] == ["white", "black"]


# The wrong things --------------------------------------------------------------------------------------------------

GOOD = [[0.5, 0.5], [1.0, 0.0]]


def three_dimensional():
    return pytest.importorskip("torch").ones(2, 3, 4)


def sparse():
    return pytest.importorskip("torch").eye(2).to_sparse()


def on_meta():
    return pytest.importorskip("torch").ones(2, 2, device="meta")


@pytest.mark.parametrize("weights, queries, keys, error, says", [
    ([[0.5, float("nan")], [1, 0]], "ab", "xy", ValueError, "weights must be finite: 1 of 4 are NaN or infinite"),
    ([[0.5, float("inf")], [1, 0]], "ab", "xy", ValueError, "weights must be finite: 1 of 4 are NaN or infinite"),
    ([[-1.0, 0.5], [1, 0]], "ab", "xy", ValueError, "weights must lie between 0 and 1, but run from -1 to 1: draw scores with plot_heatmap"),
    ([[3.0, 0.5], [1, 0]], "ab", "xy", ValueError, "weights must lie between 0 and 1, but run from 0 to 3"),
    ([0.5, 0.5], "a", "xy", ValueError, r"weights has shape \(2,\), but must have 2 dimensions"),
    (three_dimensional, "ab", "xyz", ValueError, r"weights has shape \(2, 3, 4\), but must have 2 dimensions"),
    (on_meta, "ab", "xy", ValueError, "weights cannot be drawn: a tensor on the meta device"),
    (sparse, "ab", "xy", TypeError, "weights cannot be drawn: .*[Ss]parse"),
    (np.ma.array(GOOD, mask=np.eye(2)), "ab", "xy", ValueError, "weights must be finite: 2 of 4"),
    (GOOD, None, "xy", TypeError, r"query_tokens \(None\) must be a sequence of 2 labels"),
    (GOOD, "ab", 2, TypeError, r"key_tokens \(2\) must be a sequence of 2 labels, for 2 keys"),
    ([], "", "", ValueError, r"weights has shape \(0,\)"),
    (np.ones((0, 3)), "", "abc", ValueError, r"weights has shape \(0, 3\), but must have 2 dimensions, none of them empty"),
    ([[1], [0.5, 0.5]], "ab", "xy", ValueError, "weights cannot be drawn: .*inhomogeneous"),
    ([["a", "b"]], "a", "xy", TypeError, "weights must hold real numbers, not <U1"),
    ([[None, 1]], "a", "xy", TypeError, "weights must hold real numbers, not object"),
    ([[1j, 1]], "a", "xy", TypeError, "weights must hold real numbers, not complex128"),
    (None, "a", "xy", TypeError, "weights must hold real numbers"),
    (GOOD, "abc", "xy", ValueError, "query_tokens has 3 labels for 2 queries"),
    (GOOD, "ab", "x", ValueError, "key_tokens has 1 labels for 2 keys"),
    (GOOD, "ab", "", ValueError, "key_tokens has 0 labels for 2 keys"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_weights_are_refused(weights, queries, keys, error, says):
    before = plt.get_fignums()
    with pytest.raises(error, match=says):
        ours.plot_attention(weights() if callable(weights) else weights, queries, keys)
    assert plt.get_fignums() == before  # no half-drawn figure is left


@pytest.mark.parametrize("options, says", [
    ({"row_labels": "a"}, "row_labels has 1 labels for 2 rows"),
    ({"column_labels": "abc"}, "column_labels has 3 labels for 2 columns"),
    ({"column_labels": []}, "column_labels has 0 labels for 2 columns"),
    ({"vmin": 1, "vmax": 1}, r"vmin \(1\) must be less than vmax \(1\)"),
    ({"vmin": 2, "vmax": 1}, r"vmin \(2\) must be less than vmax \(1\)"),
    ({"fmt": "d"}, r"fmt \('d'\) does not fit"),
    ({"fmt": 2}, r"fmt \(2\) does not fit"),
    ({"cmap": "blueish"}, r"cmap \('blueish'\) must be a colour map"),
    ({"cmap": 3}, r"cmap \(3\) must be a colour map"),
    ({"vmin": float("nan")}, r"vmin \(nan\) must be finite"),
    ({"center": float("inf")}, r"center \(inf\) must be finite"),
    ({"vmax": "1"}, "vmax must hold real numbers"),
    ({"row_labels": 2}, r"row_labels \(2\) must be a sequence of 2 labels, for 2 rows"),
    ({"ax": np.array([None, None])}, r"ax \(ndarray\) must be one axes"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_options_of_a_heat_map_are_refused(options, says):
    before = plt.get_fignums()
    with pytest.raises((TypeError, ValueError), match=says):
        ours.plot_heatmap(GOOD, **options)
    assert plt.get_fignums() == before


@pytest.mark.parametrize("curves, x, error, says", [
    ({}, None, ValueError, "curves has 0 entries, but 1 to 7 can be told apart"),
    ({str(i): [1] for i in range(8)}, None, ValueError, "curves has 8 entries"),
    ({"a": [1, 2, 3]}, [1, 2], ValueError, r"curves\['a'\] has 3 points, but x has 2"),
    ({"a": [[1, 2, 3]]}, [1, 2], ValueError, r"curves\['a'\] has 3 points, but x has 2"),
    ({"a": []}, None, ValueError, r"curves\['a'\] has shape \(0,\), but must have 1 or 2 dimensions"),
    ({"a": 3.0}, None, ValueError, r"curves\['a'\] has shape \(\)"),
    ({"a": [[[1]]]}, None, ValueError, r"curves\['a'\] has shape \(1, 1, 1\)"),
    ({"a": [1], "b": ["1"]}, None, TypeError, r"curves\['b'\] must hold real numbers"),
    ({"a": [1]}, [[1]], ValueError, r"x has shape \(1, 1\), but must have 1 dimension"),
    ([1, 2], None, TypeError, "curves must be a dictionary"),
    ({None: [1, 2]}, None, ValueError, "curves has the label None, which must be a string"),
    ({"_a": [1, 2], "b": [1, 2]}, None, ValueError, "curves has the label '_a', which must be a string that does not start with '_'"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_curves_are_refused(curves, x, error, says):
    with pytest.raises(error, match=says):
        ours.plot_curves(curves, x)


@pytest.mark.parametrize("options, says", [
    ({"xscale": "logarithmic"}, r"xscale \('logarithmic'\) must be one of .*log"),
    ({"yscale": None}, r"yscale \(None\) must be one of"),
    ({"ax": np.array([None])}, r"ax \(ndarray\) must be one axes"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_options_of_curves_are_refused(options, says):
    before = plt.get_fignums()
    with pytest.raises((TypeError, ValueError), match=says):
        ours.plot_curves({"a": [1, 2]}, **options)
    assert plt.get_fignums() == before


TWO = {"a": (0, 0), "b": (2, 0)}


@pytest.mark.parametrize("boxes, arrows, options, says", [
    ({}, [], {}, "boxes is empty"),
    ([("a", (0, 0))], [], {}, "boxes must be a dictionary"),
    ({"a": 1}, [], {}, r"boxes\['a'\] has shape \(\)"),
    ({"a": (0, 0, 0)}, [], {}, r"boxes\['a'\] \(\(0, 0, 0\)\) must be two numbers"),
    ({"a": (float("nan"), 0)}, [], {}, r"boxes\['a'\] .* must be two numbers"),
    ({"a": "xy"}, [], {}, r"boxes\['a'\] must hold real numbers"),
    (TWO, [("a", "c"), (1, "a")], {}, "arrows name boxes that are not there: 1, c"),
    (TWO, [(["a"], "b")], {}, "arrows name boxes that are not there"),
    (TWO, [("a",)], {}, r"arrows holds \('a',\), which must be \(from, to\)"),
    (TWO, [("a", "b", "label", 0.1, 1)], {}, "arrows holds .* which must be"),
    (TWO, ("a", "b"), {}, "arrows holds 'a', which must be"),
    (TWO, [("a", "a")], {}, r"arrows holds \('a', 'a'\), which must be .* between two boxes"),
    (TWO, [("a", "b", "label", "left")], {}, "the bend of arrow .* must hold real numbers"),
    (TWO, [], {"width": 0}, r"width \(0\) must be positive"),
    (TWO, [], {"height": None}, r"height \(None\) must be positive"),
    (TWO, [], {"colors": ["red"]}, "colors must be a dictionary"),
    (TWO, [], {"colors": {"c": "red"}}, "colors name boxes that are not there: c"),
    (TWO, [], {"colors": {"a": "bluish"}}, r"colors\['a'\] \('bluish'\) must be a colour"),
    (TWO, [], {"ax": plt}, r"ax \(module\) must be one axes"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_diagrams_are_refused(boxes, arrows, options, says):
    before = plt.get_fignums()
    with pytest.raises((TypeError, ValueError), match=says):
        ours.draw_boxes(boxes, arrows, **options)
    assert plt.get_fignums() == before


@pytest.mark.usefixtures("unchecked")
def test_arrows_may_come_from_a_generator():
    ax = ours.draw_boxes(TWO, (arrow for arrow in [("a", "b")]))
    assert sum(isinstance(patch, mpl.patches.FancyArrowPatch) for patch in ax.patches) == 1


# Exercises ---------------------------------------------------------------------------------------------------------

def from_zero(values, weight):
    average, result = 0.0, []
    for value in values:
        average = weight * average + (1 - weight) * value
        result.append(average)
    return result


def from_the_first(values, weight):
    result = list(values[:1])
    for value in values[1:]:
        result.append(weight * result[-1] + (1 - weight) * value)
    return result


def off_by_one(values, weight):
    return [average / (1 - weight ** (step + 2)) for step, average in enumerate(from_zero(values, weight))]


def swapped_weight(values, weight):
    return [a / (1 - (1 - weight) ** (t + 1)) if weight < 1 else a for t, a in enumerate(from_zero(values, 1 - weight))]


def looks_ahead(values, weight):
    return np.convolve(values, [weight / 2, 1 - weight, weight / 2], "same").tolist()


def heads(plot):
    def plot_heads(weights, query_tokens, key_tokens):
        _, axes = plt.subplots(1, len(weights), squeeze=False)
        for head, ax in enumerate(axes[0]):
            plot(weights[head], query_tokens, key_tokens, ax, f"head {head}")
        return list(axes[0])
    return plot_heads


own_scale = heads(lambda w, q, k, ax, title: ours.plot_heatmap(w, q, k, ax, title=title))
transposed = heads(lambda w, q, k, ax, title: ours.plot_attention(w.T, k, q, ax, title=title))
untitled = heads(lambda w, q, k, ax, title: ours.plot_attention(w, q, k, ax))
unlabelled = heads(lambda w, q, k, ax, title: ours.plot_heatmap(w, None, None, ax, title=title, vmin=0, vmax=1))


def a_figure_each(weights, query_tokens, key_tokens):
    return [ours.plot_attention(w, query_tokens, key_tokens, title=f"head {i}") for i, w in enumerate(weights)]


def first_head_only(weights, query_tokens, key_tokens):
    return [ours.plot_attention(weights[0], query_tokens, key_tokens, title="head 0")]


def one_over_the_other(weights, query_tokens, key_tokens):
    _, ax = plt.subplots()
    return [ours.plot_attention(w, query_tokens, key_tokens, ax, title=f"head {i}") for i, w in enumerate(weights)]


def test_a_check_closes_its_own_figures_and_not_the_reader_s():
    mine = plt.figure()
    for answer in (transposed, lambda *args: heads(ours.plot_heatmap)(*args)[7]):  # wrong, and raising after it has drawn
        assert not check("01.plot-heads", answer)
        assert plt.get_fignums() == [mine.number]


@pytest.mark.parametrize("exercise, right", [
    ("01.text-colors", [("#0072B2", "#96577E", "#1A1A1A", "#77390C"), {"#0072b2", "#96577e", ours.INK, "#77390c"}]),
    ("01.smooth", [lambda v, w: np.array([np.dot(w ** np.arange(t, -1, -1.0), v[:t + 1]) / sum(w ** i for i in range(t + 1))
                                          for t in range(len(v))])]),
    ("01.plot-heads", [heads(lambda w, q, k, ax, title: ours.plot_heatmap(w, q, k, ax, title=title, vmin=0, vmax=1, fmt=".1f"))]),
    ("01.ten-colors", [["blue", "#000080", (0, 0, 0.25)]]),
])
def test_right_answers_may_be_written_otherwise(exercise, right):
    for answer in right:
        assert check(exercise, answer), check(exercise, answer)


@pytest.mark.parametrize("exercise, wrong", [
    ("01.text-colors", [list(ours.PALETTE), [], ["#0072b2"], ["#000000"], "#0072b2"]),
    ("01.lightest-grey", ["#767676", "#777777", "#000000", "#737373", "#0072b2", "grey", 0.45]),
    ("01.smooth", [from_zero, from_the_first, off_by_one, swapped_weight, looks_ahead, lambda values, weight: values]),
    ("01.plot-heads", [own_scale, transposed, untitled, unlabelled, a_figure_each, first_head_only, one_over_the_other]),
    ("01.ten-colors", [["#0000ff"], ["#0000ff"] * 3, ["#009e73", "#0000ff", "#00004d"], ["#0000ff", "#f0e442", "#00004d"],
                       ["#0072b3", "#0000ff", "#00004d"], "#0000ff", None]),
])
def test_wrong_answers_are_told_from_right_ones(exercise, wrong):
    for answer in wrong:
        result = check(exercise, answer)
        assert not result and "not yet" in repr(result), answer
