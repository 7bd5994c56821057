"""What right answers to the exercises of chapter 18 must satisfy."""
import torch

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _rows(mask):
    """The mask as lists of 0 and 1; anything but booleans is no mask."""
    return mask.int().tolist() if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool else f"not boolean: {mask!r}"


def _is(rows):
    return lambda mask: _rows(mask) == rows


def _packed(segments):
    """The right mask for a batch of segment numbers, by loops."""
    return [[[[int(j <= i and row[i] == row[j] and row[j] >= 0) for j in range(len(row))] for i in range(len(row))]]
            for row in segments]


def _packed_case(says, segments):
    return Case(says, args=(torch.tensor(segments),), expected=_is(_packed(segments)))


EXERCISES = {
    "18.pairs": [Case("1 look in the first row, 1,000 in the last", expected=500_500)],
    "18.prefix": [
        Case("a prefix of 2 in a text of 4 sees itself both ways", args=(4, 2), expected=_is(
            [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])),
        Case("without a prefix the mask is causal", args=(3, 0), expected=_is([[1, 0, 0], [1, 1, 0], [1, 1, 1]])),
        Case("a prefix of one changes nothing", args=(2, 1), expected=_is([[1, 0], [1, 1]])),
        Case("a text that is all prefix sees everything", args=(3, 3), expected=_is([[1, 1, 1]] * 3)),
    ],
    "18.packed": [
        _packed_case("two texts of two tokens do not see each other", [[0, 0, 1, 1]]),
        _packed_case("one text alone is causal", [[5, 5, 5]]),
        _packed_case("nothing looks at padding, not even padding", [[0, 0, -1], [0, 1, 1]]),
        _packed_case("every row of a batch has its own texts", [[0, 0, 0, 1, 1], [0, 1, 1, 1, -1]]),
    ],
    "18.window": [
        Case("a window of 2 is the token and the one before", args=(4, 2), expected=_is(
            [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])),
        Case("a window of 1 is the token alone", args=(3, 1), expected=_is([[1, 0, 0], [0, 1, 0], [0, 0, 1]])),
        Case("a window longer than the text is causal", args=(3, 9), expected=_is([[1, 0, 0], [1, 1, 0], [1, 1, 1]])),
        Case("a window as long as the text is causal", args=(3, 3), expected=_is([[1, 0, 0], [1, 1, 0], [1, 1, 1]])),
    ],
}
