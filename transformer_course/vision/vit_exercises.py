"""What right answers to the exercises of chapter 44 must satisfy."""
import math
from dataclasses import replace

import torch
from torch import nn

from transformer_course.toolbox.exercises import Case
from transformer_course.vision.vit import ViT, ViTConfig, patchify

__all__ = ["EXERCISES"]

_SMALL = ViTConfig(image_size=12, patch_size=4, channels=2, num_labels=3, d_model=6, num_layers=2, num_heads=2, d_ff=5)


def _draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _close(expected, tolerance=1e-9):
    """Numbers of the same shape."""
    expected = torch.as_tensor(expected, dtype=torch.float64)

    def close(answer):
        answer = torch.as_tensor(answer, dtype=torch.float64).detach()
        return answer.shape == expected.shape and torch.allclose(answer, expected, atol=tolerance, rtol=tolerance)
    return close


def _back_case(says, *shape, patch, seed=0):
    images = _draw(*shape, seed=seed)
    return Case(says, args=(patchify(images, patch), patch, *shape[2:]), expected=_close(images))


def _size_case(says, **changes):
    config = replace(_SMALL, **changes)
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in ViT(config).parameters())
    return Case(says, args=(config,), expected=count)


def _model(dtype=torch.float64, seed=0, **changes):
    """A small model whose weights all matter."""
    generator = torch.Generator().manual_seed(seed)
    model = ViT(replace(_SMALL, **changes)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def _same_scores(image_size, changes=()):
    def holds(resized):
        model = _model(**dict(changes))
        larger, images = resized(model, image_size), _draw(2, 2, image_size, image_size)
        with torch.no_grad():
            return torch.allclose(larger(images), model(images), atol=1e-9)
    return holds


def _own_table(resized):
    model = _model()
    larger = resized(model, 20)
    return (isinstance(larger, ViT) and larger.config == replace(model.config, image_size=20)
            and isinstance(larger.position.weight, nn.Parameter) and larger.position.weight.shape == (26, 6)
            and larger.position.weight.requires_grad)


def _leaves_alone(resized):
    model = _model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    larger = resized(model, 20)
    with torch.no_grad():
        for parameter in larger.parameters():
            parameter.zero_()
    return model.config == _SMALL and all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def _class_row_kept(resized):
    model = _model()
    return torch.equal(resized(model, 20).position.weight[0], model.position.weight[0])


def _one_hot(targets, count):
    """Every token looks at one other."""
    return torch.eye(count, dtype=torch.float64)[torch.tensor(targets)][None]


def _distances(weights, grid):
    """By loops."""
    places = [(i, j) for i in range(grid[0]) for j in range(grid[1])]
    per_head = []
    for head in weights[:, 1:, 1:]:
        rows = [sum(w * math.dist(a, b) for w, b in zip(row.tolist(), places)) / sum(row.tolist()) for a, row in zip(places, head)]
        per_head.append(sum(rows) / len(rows))
    return per_head


def _distance_case(says, weights, grid):
    return Case(says, args=(weights, grid), expected=_close(_distances(weights, grid)))


def _with_class(rows):
    return torch.cat([_draw(1, rows.shape[-1], seed=9), rows.flatten(0, 1)])


_ROWS, _COLUMNS = _draw(4, 1, 6, seed=1), _draw(1, 4, 6, seed=2)
_CHECKERS = torch.tensor([[(-1.0) ** (i + j) for j in range(4)] for i in range(4)], dtype=torch.float64)[..., None] * _draw(6, seed=3)
_SUM = _ROWS - _ROWS.mean(0) + _COLUMNS - _COLUMNS.mean(1)
_SHARE = (_SUM.square().sum() / (_SUM + _CHECKERS).square().sum()).item()

EXERCISES = {
    "44.unpatchify": [
        _back_case("one grey image of four by four comes back from patches of two by two", 1, 1, 4, 4, patch=2),
        _back_case("colour images come back, all of the first channel's numbers standing first in a patch", 2, 3, 6, 6, patch=3),
        _back_case("height and width may differ", 2, 3, 4, 8, patch=2, seed=1),
        _back_case("and so they may the other way round, with two channels", 3, 2, 9, 3, patch=3, seed=2),
    ],
    "44.parameters": [
        _size_case("a small model with three classes"),
        _size_case("more layers", num_layers=5),
        _size_case("three channels and smaller patches", channels=3, patch_size=2),
        _size_case("queries, keys and values may have no biases; the output still has", qkv_bias=False),
        _size_case("without a head", num_labels=0),
        _size_case("another inner width", d_ff=17),
        Case("ViT-L/16 has 304,326,632", args=(ViTConfig.large(),), expected=304_326_632),
    ],
    "44.resized": [
        Case("the new model has a config and a table, to be trained, for 20 by 20 pixels", expected=_own_table),
        Case("on images of 20 by 20 pixels it gives the old model's scores", expected=_same_scores(20)),
        Case("so it does on smaller ones, of 8 by 8", expected=_same_scores(8)),
        Case("so it does where the head reads the mean of the patches", expected=_same_scores(20, (("pooling", "mean"),))),
        Case("the row of [CLS] stays as it was", expected=_class_row_kept),
        Case("the old model stays as it was, even if the new one is changed afterwards", expected=_leaves_alone),
    ],
    "44.distance": [
        _distance_case("patches that look at themselves look 0 far", torch.eye(7, dtype=torch.float64)[None], (2, 3)),
        _distance_case("two rows of three: each patch looks at the first", _one_hot([0, 1, 1, 1, 1, 1, 1], 7), (2, 3)),
        _distance_case("three rows of two are another picture", _one_hot([0, 1, 1, 1, 1, 1, 1], 7), (3, 2)),
        _distance_case("weight on [CLS] is left out, and the rest of a row counts as a whole", torch.tensor([[
            [1.0, 0, 0], [0.5, 0.25, 0.25], [0.2, 0.4, 0.4]]], dtype=torch.float64), (1, 2)),
        _distance_case("several heads are measured each by itself", _draw(3, 13, 13).softmax(-1), (3, 4)),
    ],
    "44.rows-and-columns": [
        Case("a sum of rows and columns is explained in full", args=(_with_class(_ROWS + _COLUMNS),), expected=_close(1.0)),
        Case("a chessboard is not explained at all", args=(_with_class(_CHECKERS + torch.zeros(4, 4, 6)),), expected=_close(0.0)),
        Case("what all patches have in common does not count", args=(_with_class(_SUM + _CHECKERS + 7.0),), expected=_close(_SHARE)),
        Case("rows alone are explained in full", args=(_with_class(_ROWS.expand(4, 4, 6)),), expected=_close(1.0)),
        Case("columns alone are too", args=(_with_class(_COLUMNS.expand(4, 4, 6)),), expected=_close(1.0)),
    ],
}
