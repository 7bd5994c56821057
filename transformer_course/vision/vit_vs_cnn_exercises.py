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


def _moved_loop(images):
    moves = (0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)
    out = torch.full((5 * len(images), *images.shape[1:]), -1.0, dtype=images.dtype)
    height, width = images.shape[2:]
    for at, (down, right) in enumerate(moves):
        for i in range(height):
            for j in range(width):
                if 0 <= i - down < height and 0 <= j - right < width:
                    out[at * len(images):(at + 1) * len(images), :, i, j] = images[:, :, i - down, j - right]
    return out


def _moved_case(says, part, *shape):
    """The property of some of the five copies."""
    images = _draw(*shape)
    n, wanted = len(images), _moved_loop(images)

    def holds(moved):
        got = moved(images.clone())
        return got.shape == wanted.shape and torch.allclose(got[part * n:(part + 1) * n], wanted[part * n:(part + 1) * n], atol=1e-9)
    return Case(says, expected=holds)


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
    "45.moved": [
        _moved_case("five times as many images, and first those that were given", 0, 3, 1, 4, 4),
        _moved_case("then all of them moved up, with -1 in the row that is free", 1, 3, 1, 4, 4),
        _moved_case("then all of them moved down", 2, 2, 3, 4, 5),
        _moved_case("then to the left", 3, 2, 1, 3, 4),
        _moved_case("then to the right", 4, 2, 1, 3, 4),
    ],
    "45.dropped": [
        _clean_case("with nothing dropped, the identity is added and rows sum to 1", _draw(2, 4, 4).softmax(-1), 0.0),
        _clean_case("the lowest half of an image's weights goes, but for column 0", _draw(1, 4, 4, seed=1).softmax(-1), 0.5),
        _clean_case("each image of a batch loses its own lowest weights", _draw(3, 5, 5, seed=2).softmax(-1), 0.6),
        _clean_case("the number to drop is rounded down", _draw(2, 3, 3, seed=3).softmax(-1), 0.4),
    ],
}
