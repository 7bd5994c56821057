"""What right answers to the exercises of chapter 45 must satisfy."""
import torch

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _draw(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _close(wanted):
    return lambda got: got.shape == wanted.shape and torch.allclose(got.double(), wanted.double(), atol=1e-9)


def _shift_case(says, down, right, height=4, width=5):
    images, moved = _draw(2, 3, height, width), torch.zeros(2, 3, height, width, dtype=torch.float64)
    for i in range(height):
        for j in range(width):
            if 0 <= i - down < height and 0 <= j - right < width:
                moved[:, :, i, j] = images[:, :, i - down, j - right]
    return Case(says, args=(images, down, right), expected=_close(moved))


def _leaves_alone(shift):
    images = _draw(1, 1, 3, 3)
    before = images.clone()
    shift(images, 1, 1)
    return torch.equal(images, before)


def _distance_case(says, weights, columns):
    heads, n, _ = weights.shape
    far = torch.tensor([[((i // columns - j // columns) ** 2 + (i % columns - j % columns) ** 2) ** 0.5 for j in range(n)] for i in range(n)],
                       dtype=weights.dtype)
    return Case(says, args=(weights, columns), expected=_close((weights * far).sum(-1).mean(-1)))


def _clean_loop(weights, share):
    out = []
    for matrix in weights:
        n = len(matrix)
        lowest = set(sorted(range(n * n), key=lambda at: matrix.flatten()[at].item())[:int(share * n * n)])
        rows = [[(0.0 if i * n + j in lowest and j else matrix[i, j].item()) + (i == j) for j in range(n)] for i in range(n)]
        out.append([[value / sum(row) for value in row] for row in rows])
    return torch.tensor(out, dtype=weights.dtype)


def _clean_case(says, weights, share):
    return Case(says, args=(weights, share), expected=_close(_clean_loop(weights, share)))


_EYE = torch.eye(6, dtype=torch.float64)[None]

EXERCISES = {
    "45.layers": [Case("each layer adds two pixels to the one that is there at first", expected=112)],
    "45.shift": [
        _shift_case("moved down and to the right, images leave zeros behind", 1, 2),
        _shift_case("negative numbers move up and to the left", -2, -1),
        _shift_case("the two directions are not mixed up", 2, 0),
        _shift_case("no move changes nothing", 0, 0),
        _shift_case("moved far enough, nothing is left", 4, 0),
        Case("the given images stay as they were", expected=_leaves_alone),
    ],
    "45.distance": [
        _distance_case("who looks at itself looks 0 far", _EYE, 3),
        _distance_case("who looks at the next in the row looks 1 far, but from the end of a row further", _EYE.roll(1, dims=2), 3),
        _distance_case("each head has its own mean", _draw(3, 6, 6).softmax(-1), 3),
        _distance_case("the number of columns matters", _draw(2, 6, 6, seed=1).softmax(-1), 2),
    ],
    "45.dropped": [
        _clean_case("with nothing dropped, the identity is added and rows sum to 1", _draw(2, 4, 4).softmax(-1), 0.0),
        _clean_case("the lowest half of an image's weights goes, but for column 0", _draw(1, 4, 4, seed=1).softmax(-1), 0.5),
        _clean_case("each image of a batch loses its own lowest weights", _draw(3, 5, 5, seed=2).softmax(-1), 0.6),
        _clean_case("the number to drop is rounded down", _draw(2, 3, 3, seed=3).softmax(-1), 0.4),
    ],
}
