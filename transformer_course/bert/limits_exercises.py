"""What right answers to the exercises of chapter 43 must satisfy."""
import torch

from transformer_course.bert.limits import window_global_mask
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _draw(*shape, seed=0, low=-1.0, high=1.0):
    return low + (high - low) * torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _numbers(*wanted):
    return lambda answer: len(answer) == len(wanted) and all(abs(float(a) - b) < 1e-6 for a, b in zip(answer, wanted))


def _view(says, starts, size, place, expected):
    return Case(says, args=(starts, size, place), expected=lambda answer: answer is None if expected is None else (
        isinstance(answer, int) and not isinstance(answer, bool) and answer == expected))


def _layers(says, mask, expected):
    return Case(says, args=(mask,), expected=expected)


def _affine(says, x):
    def holds(answer):
        whole, step, zero = answer
        back = (whole.double() - zero) * step
        inside = whole.dtype == torch.uint8 and 0 <= zero <= 255 and float(zero) == int(zero)
        span = max(x.max().item(), 0.0) - min(x.min().item(), 0.0)
        return inside and float(step) <= span / 255 * 1.001 and (back - x).abs().max().item() <= 0.501 * float(step) + 1e-9 + (
            0.501 * float(step))  # the zero point is rounded too
    return Case(says, args=(x,), expected=holds)


def _zero_is_exact(quantize):
    x = torch.cat([torch.zeros(5, dtype=torch.float64), _draw(50, seed=4, low=-0.3, high=2.0)])
    whole, step, zero = quantize(x)
    return bool(((whole[:5].double() - zero) * step == 0).all())


EXERCISES = {
    "43.by-hand": [Case("first what token 5 sees, then token 1, then token 0", expected=_numbers(6, 4, 10))],
    "43.best-view": [
        _view("a token near the beginning of the second piece is better off in the first", [0, 4, 8], 8, 5, 0),
        _view("a token near the end of the first piece is better off in the second", [0, 4, 8], 8, 6, 1),
        _view("of equals the first is taken", [0, 3], 8, 5, 0),
        _view("the first token of all has nothing to its left anywhere", [0, 2], 8, 0, 0),
        _view("a piece that does not hold the place is no view of it", [0, 6], 4, 7, 1),
        _view("where no piece holds the place there is none", [0, 6], 4, 5, None),
    ],
    "43.layers": [
        _layers("a window of one neighbour on either side needs as many layers as there are steps", window_global_mask(9, 2), 8),
        _layers("two neighbours on either side halve that", window_global_mask(9, 4), 4),
        _layers("one global token makes two layers enough", window_global_mask(9, 2, [3]), 2),
        _layers("full attention needs one", torch.ones(5, 5, dtype=torch.bool), 1),
        _layers("what never meets gives None", torch.eye(3, dtype=torch.bool), None),
        _layers("rows look at columns, not the other way round", torch.ones(4, 4, dtype=torch.bool).tril(), None),
    ],
    "43.affine": [
        _affine("numbers from 0 to 6 use all 256 steps", _draw(200, low=0.0, high=6.0)),
        _affine("numbers of both signs do too", _draw(200, seed=1, low=-1.0, high=3.0)),
        _affine("so do negative ones, for 0 belongs to the range", _draw(200, seed=2, low=-5.0, high=-4.0)),
        Case("0 comes back as exactly 0", expected=_zero_is_exact),
    ],
}
