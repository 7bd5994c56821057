"""What right answers to the exercises of chapter 20 must satisfy."""
import math

import torch

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _encoding(position, d_model):
    """One encoding, from the formula; positions may be negative."""
    angle = position * 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    return torch.stack([angle.sin(), angle.cos()], dim=1).flatten()[:d_model]


def _table(length, d_model):
    return torch.stack([_encoding(p, d_model) for p in range(length)])


def _layout_case(says, table):
    columns = torch.arange(table.shape[1])
    order = torch.cat([columns[columns % 2 == 0], columns[columns % 2 == 1]])
    return Case(says, args=(table,), expected=table[:, order])


def _relative_case(says, p, q, d_model):
    return Case(says, args=(_encoding(p, d_model), _encoding(q, d_model)), expected=_encoding(q - p, d_model))


def _scores(matrix, i, j, d_model):
    """PE_i A PE_j, for an answer's matrix."""
    matrix = torch.as_tensor(matrix, dtype=torch.float64)
    assert matrix.shape == (d_model, d_model), f"its shape is {tuple(matrix.shape)}, not {(d_model, d_model)}"
    return (_encoding(i, d_model) @ matrix @ _encoding(j, d_model)).item()


def _look_case(says, weights, d_model):
    def right(matrix):
        return all(math.isclose(_scores(matrix, i, j, d_model),
                                sum(w * (_encoding(i + k, d_model) @ _encoding(j, d_model)).item() for k, w in weights.items()),
                                abs_tol=1e-6)
                   for i in (0, 3, 50) for j in (0, 4, 5, 49))
    return Case(says, args=(weights, d_model), expected=right)


EXERCISES = {
    "20.longest": [Case("the last of the 64 hands has i = 63, and a turn is 2 pi over its rate",
                        expected=2 * math.pi * 10000 ** (126 / 128))],
    "20.layout": [
        _layout_case("sines come first, each half in its old order", torch.arange(12.0).view(2, 6)),
        _layout_case("an odd width has one sine more", torch.arange(10.0).view(2, 5)),
        _layout_case("a single column stays as it is", torch.arange(3.0).view(3, 1)),
        _layout_case("it holds for a table of encodings", _table(7, 8)),
    ],
    "20.relative": [
        _relative_case("from position 2 to 5 it gives the encoding of 3", 2, 5, 8),
        _relative_case("from position 5 to 2 it gives that of -3, whose sines are negative", 5, 2, 8),
        _relative_case("from a position to itself it gives that of 0", 7, 7, 4),
        _relative_case("it needs no table, however far the positions", 90_000, 90_011, 6),
    ],
    "20.look": [
        _look_case("a single weight at offset 0 is the plain dot product", {0: 1.0}, 4),
        _look_case("offset 3 looks three positions ahead, not back", {3: 1.0}, 8),
        _look_case("a negative offset looks back", {-1: 1.0}, 8),
        _look_case("several offsets add up, each with its weight", {-1: 1.0, 2: 0.5}, 16),
    ],
}
