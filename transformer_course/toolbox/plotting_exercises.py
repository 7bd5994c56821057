"""What right answers to the exercises of chapter 01 must satisfy."""
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_hex

from transformer_course.toolbox.exercises import Case
from transformer_course.toolbox.plotting import PALETTE, PAPER, _linear, contrast_ratio

__all__ = ["EXERCISES"]

# Light without M cones and without L cones, by another model than the chapter's: Machado et al. 2009, severity 1.
_EYES = {
    "all cones": np.eye(3),
    "no M cones": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                            [-0.011820, 0.042940, 0.968881]]),
    "no L cones": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
}
_TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                    [0.0193339, 0.1191920, 0.9503041]])


def _lab(color, eye):
    ratio = _TO_XYZ @ np.clip(eye @ _linear(color), 0, 1) / _TO_XYZ.sum(axis=1)
    root = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def _apart(eye):
    """Whether each new colour is at least 25 from the palette and the other new ones, for that eye."""
    def judge(answer):
        seen = [_lab(color, _EYES[eye]) for color in (*PALETTE, *answer)]
        return all(np.linalg.norm(seen[new] - seen[old]) >= 25 for new in range(len(PALETTE), len(seen)) for old in range(new))
    return judge


def _is_grey(color):
    return isinstance(color, str) and len(color) == 7 and color[0] == "#" and color[1:3] == color[3:5] == color[5:7]


def _one_lighter(color):
    level = int(color[1:3], 16) + 1
    return f"#{level:02x}{level:02x}{level:02x}"


_WEIGHTS = np.array([[[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]], [[0.25, 0.25, 0.5], [0.4, 0.4, 0.2]]])
_CALL = (_WEIGHTS, ["q0", "q1"], ["k0", "k1", "k2"])


class _Drawn(Case):
    """A property of axes. The figures that an answer leaves open are closed, the reader's own are not."""
    def problem(self, answer):
        before = set(plt.get_fignums())
        try:
            return super().problem(answer)
        finally:
            for number in set(plt.get_fignums()) - before:
                plt.close(number)


def _heads(holds):
    return lambda axes: bool(holds(list(axes)))


def _hex(colors):
    """Colours as Matplotlib writes them, whichever way they were given."""
    return {to_hex(color) for color in colors}


EXERCISES = {
    "01.text-colors": [
        Case("every colour of the list is one of PALETTE",
             expected=lambda answer: not isinstance(answer, str) and _hex(answer) <= set(PALETTE)),
        Case("every colour of the list has a contrast of at least 4.5 with PAPER",
             expected=lambda answer: all(contrast_ratio(color, PAPER) >= 4.5 for color in answer)),
        Case("no colour that will do is left out",
             expected=lambda answer: {c for c in PALETTE if contrast_ratio(c, PAPER) >= 4.5} <= _hex(answer)),
    ],
    "01.lightest-grey": [
        Case("it is written '#gggggg', the same two digits three times", expected=_is_grey),
        Case("its contrast with PAPER is at least 4.5", expected=lambda answer: contrast_ratio(answer, PAPER) >= 4.5),
        Case("the next lighter grey would be too light",
             expected=lambda answer: contrast_ratio(_one_lighter(answer), PAPER) < 4.5),
    ],
    "01.smooth": [
        Case("with weight 0 nothing changes", args=([3.0, 1.0, 2.0], 0.0), expected=[3.0, 1.0, 2.0]),
        Case("a constant stays what it is, from the first step", args=([5.0, 5.0, 5.0], 0.9), expected=[5.0, 5.0, 5.0]),
        Case("the second value is (w v1 + v2) / (w + 1)", args=([1.0, 0.0], 0.5), expected=[1.0, 1 / 3]),
        Case("a value does not depend on later ones", args=([1.0, 0.0, 9.0], 0.5), expected=lambda out:
             np.allclose(list(out)[:2], [1.0, 1 / 3]) and len(out) == 3),
        Case("the third value is (w^2 v1 + w v2 + v3) / (w^2 + w + 1)", args=([1.0, 0.0, 9.0], 0.5),
             expected=[1.0, 1 / 3, 9.25 / 1.75]),
        Case("no values give no values", args=([], 0.5), expected=[]),
    ],
    "01.plot-heads": [
        _Drawn("there are as many axes as heads", args=_CALL, expected=_heads(lambda axes: len(axes) == 2)),
        _Drawn("all axes are in one figure", args=_CALL, expected=_heads(lambda axes: len({ax.figure for ax in axes}) == 1
                                                                        and axes[0] is not axes[1])),
        _Drawn("each map shows its head's weights, a row per query", args=_CALL, expected=_heads(
            lambda axes: all(np.allclose(ax.images[0].get_array(), head) for ax, head in zip(axes, _WEIGHTS)))),
        _Drawn("all maps have the same scale", args=_CALL, expected=_heads(
            lambda axes: len({(ax.images[0].norm.vmin, ax.images[0].norm.vmax) for ax in axes}) == 1)),
        _Drawn("the titles are 'head 0' and 'head 1'", args=_CALL, expected=_heads(
            lambda axes: [ax.get_title() for ax in axes] == ["head 0", "head 1"])),
        _Drawn("every map names its queries and keys", args=_CALL, expected=_heads(lambda axes: all(
            ([t.get_text() for t in ax.get_yticklabels()], [t.get_text() for t in ax.get_xticklabels()])
            == (["q0", "q1"], ["k0", "k1", "k2"]) for ax in axes))),
    ],
    "01.ten-colors": [
        Case("there are three new colours", expected=lambda answer: not isinstance(answer, str) and len(answer) == 3),
        Case("each has a contrast of at least 3 with PAPER",
             expected=lambda answer: all(contrast_ratio(color, PAPER) >= 3 for color in answer)),
        *(Case(f"each is at least 25 from all other nine for an eye with {eye}", expected=_apart(eye)) for eye in _EYES),
    ],
}
