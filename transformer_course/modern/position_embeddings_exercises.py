"""What right answers to the exercises of chapter 29 must satisfy."""
import math

import torch

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _clipped(q_len, k_len, limit):
    """The rows, one pair of positions at a time."""
    return torch.tensor([[min(max(j - (k_len - q_len + i), -limit), limit) + limit for j in range(k_len)] for i in range(q_len)])


def _clip_case(says, q_len, k_len, limit):
    def right(rows):
        return isinstance(rows, torch.Tensor) and rows.dtype == torch.int64 and torch.equal(rows, _clipped(q_len, k_len, limit))
    return Case(says, args=(q_len, k_len, limit), expected=right)


def _turned(x, positions, base):
    """Neighbours as a pair, each by its own angle."""
    rows, d = x.tolist(), x.shape[1]
    out = []
    for row, p in zip(rows, positions.tolist()):
        for i in range(d // 2):
            angle = p * base ** (-2 * i / d)
            a, b = row[2 * i], row[2 * i + 1]
            out += [a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)]
    return torch.tensor(out, dtype=torch.float64).view(x.shape)


def _complex_case(says, x, positions, base=10000.0):
    x, positions = torch.tensor(x, dtype=torch.float64), torch.tensor(positions)

    def right(turned):
        wanted = _turned(x, positions, base)
        return (isinstance(turned, torch.Tensor) and not turned.is_complex() and turned.shape == x.shape
                and torch.allclose(turned.double(), wanted, atol=1e-9))
    return Case(says, args=(x, positions, base), expected=right)


_SOME = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)).tolist()

EXERCISES = {
    "29.reach": [Case("heads 8 to 11 of 12 have the 1st, 3rd, 5th and 7th slope of 16 heads, and 5 is the slope times the distance",
                      expected=5 * 2 ** 1.5)],
    "29.clip": [
        _clip_case("without clipping, a query's own position has row max_distance, the key before it one less", 3, 3, 5),
        _clip_case("what is farther than max_distance has the first or the last row", 6, 6, 2),
        _clip_case("with more keys than queries, the queries stand at the end", 2, 7, 3),
        _clip_case("max_distance 0 leaves one row", 3, 4, 0),
    ],
    "29.complex": [
        _complex_case("at position 0 nothing is turned", [[1.0, 2.0, 3.0, 4.0]], [0]),
        _complex_case("the first pair turns by one radian at position 1, from the first number towards the second", [[1.0, 0.0]], [1]),
        _complex_case("neighbours make a pair, and each pair has its own rate", [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]], [3, 3]),
        _complex_case("each row has its own position, in any order", _SOME, [7, 0, 100, 3, 3]),
        _complex_case("the base is used", _SOME, [1, 2, 3, 4, 5], 500.0),
    ],
    "29.base": [
        Case("factor 1 changes nothing", args=(10000.0, 1, 64), expected=10000.0),
        Case("with a head of 4 numbers the slowest rate is the root of 1 / base, so the base grows by the square of the factor",
             args=(100.0, 3, 4), expected=900.0),
        Case("the slowest of 32 pairs turns four times slower", args=(10000.0, 4, 64),
             expected=lambda base: math.isclose(base ** (-62 / 64) * 4, 10000.0 ** (-62 / 64), rel_tol=1e-9)),
        Case("and it does so for any base", args=(500000.0, 2.5, 128),
             expected=lambda base: math.isclose(base ** (-126 / 128) * 2.5, 500000.0 ** (-126 / 128), rel_tol=1e-9)),
    ],
}
