"""What right answers to the exercises of chapter 32 must satisfy."""
import torch

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _mask(*rows):
    return torch.tensor(rows)


def _scores(*best, vocab=6):
    """Logits of rows whose largest are these ids."""
    return 5.0 * torch.nn.functional.one_hot(torch.tensor(best), vocab) - 2.0


def _whole_numbers(rows):
    """Outcomes that are int64 and equal to these."""
    return lambda outcome: (isinstance(outcome, torch.Tensor) and outcome.dtype == torch.int64 and outcome.tolist() == rows)


def _leaves_the_mask(new_positions):
    mask = _mask([0, 1, 1], [1, 1, 1])
    before = mask.clone()
    new_positions(mask, 2)
    return torch.equal(mask, before)


EXERCISES = {
    "32.fits": [Case("what the weights leave is divided by 2 * 32 layers * 8 heads * 128 * length * 2 bytes, once for each length, and "
                     "rounded down", expected=(66, 133))],
    "32.positions": [
        Case("without padding or cache the positions are 0, 1, 2", args=(_mask([1, 1, 1]), 3), expected=_whole_numbers([[0, 1, 2]])),
        Case("a new token stands behind all that are cached", args=(_mask([1, 1, 1, 1, 1]), 1), expected=_whole_numbers([[4]])),
        Case("the first real token of each row stands at 0", args=(_mask([1, 1, 1, 1], [0, 0, 1, 1]), 2),
             expected=_whole_numbers([[2, 3], [0, 1]])),
        Case("cached tokens count, and each row has its own padding", args=(_mask([0, 1, 1, 1, 1], [0, 0, 0, 1, 1]), 1),
             expected=_whole_numbers([[3], [1]])),
        Case("padding stands at 0, which is a valid position", args=(_mask([0, 0, 0, 1]), 4), expected=_whole_numbers([[0, 0, 0, 0]])),
        Case("a mask of booleans will do", args=(_mask([False, True, True]), 2), expected=_whole_numbers([[0, 1]])),
        Case("a mask of 32-bit numbers gives int64", args=(_mask([0, 1, 1]).int(), 2), expected=_whole_numbers([[0, 1]])),
        Case("the mask is not changed", expected=_leaves_the_mask),
    ],
    "32.ring": [
        Case("before anything came, all places are free", args=(0, 3), expected=[-1, -1, -1]),
        Case("the first positions go to the first places", args=(2, 3), expected=[0, 1, -1]),
        Case("with as many positions as places, each has its own", args=(3, 3), expected=[0, 1, 2]),
        Case("position 3 takes the place of position 0", args=(4, 3), expected=[3, 1, 2]),
        Case("after 8 positions a ring of 3 holds 5, 6 and 7, position p in place p mod 3", args=(8, 3), expected=[6, 7, 5]),
        Case("a ring of one place holds the last", args=(9, 1), expected=[8]),
        Case("it holds the last ones for other sizes too", args=(23, 5), expected=[20, 21, 22, 18, 19]),
    ],
    "32.accept": [
        Case("where all guesses are right, they and one more id are kept", args=([3, 1, 4], _scores(3, 1, 4, 2)), expected=[3, 1, 4, 2]),
        Case("at the first wrong guess the model's own id takes its place", args=([3, 1, 4], _scores(3, 5, 4, 2)), expected=[3, 5]),
        Case("a later guess that looks right rests on a wrong one, and does not count", args=([0, 1, 2], _scores(5, 1, 2, 3)),
             expected=[5]),
        Case("the last guess may be the wrong one", args=([3, 1], _scores(3, 2, 0)), expected=[3, 2]),
        Case("without guesses it is one step of greedy writing", args=([], _scores(4)), expected=[4]),
    ],
}
