"""What right answers to the exercises of chapter 16 must satisfy."""
import math

import torch

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]

_ALL = torch.ones(3, dtype=torch.bool)
_KEYS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
_LOG = torch.tensor([[math.log(2), 0.0], [0.0, math.log(6)]])


def _rows(*rows):
    """An outcome that is a tensor or list of these rows, within rounding."""
    def is_so(outcome):
        wanted = torch.tensor(rows)
        found = torch.as_tensor(outcome, dtype=wanted.dtype)
        return found.shape == wanted.shape and torch.allclose(found, wanted, atol=1e-5)
    return is_so


def _links(*links):
    """An outcome that is a set of these pairs."""
    return lambda outcome: isinstance(outcome, (set, frozenset)) and outcome == set(links)


def _ids(*rows):
    def is_so(outcome):
        return isinstance(outcome, torch.Tensor) and outcome.tolist() == list(rows)
    return is_so


EXERCISES = {
    "16.context": [
        Case("the padding has no weight, and the other two share it as 1 to 3", expected=7),
    ],
    "16.general": [
        Case("the softmax runs over the keys: the weights of each query add up to 1",
             args=(torch.ones(2, 2), _KEYS, torch.zeros(2, 2), _ALL), expected=_rows([1 / 3] * 3, [1 / 3] * 3)),
        Case("the score is s M h", args=(torch.ones(1, 2), _KEYS, _LOG, _ALL), expected=_rows([1 / 9, 2 / 9, 6 / 9])),
        Case("the matrix stands between query and key, in this order",
             args=(torch.tensor([[1.0, 0.0]]), _KEYS, torch.tensor([[0.0, math.log(3)], [0.0, 0.0]]), _ALL),
             expected=_rows([0.2, 0.2, 0.6])),
        Case("queries and keys may differ in width",
             args=(torch.ones(1, 1), _KEYS, torch.tensor([[0.0, math.log(2)]]), _ALL), expected=_rows([0.25, 0.25, 0.5])),
        Case("what the mask hides gets exactly 0, and the rest still adds up to 1",
             args=(torch.ones(1, 2), _KEYS, _LOG, torch.tensor([True, True, False])), expected=_rows([1 / 3, 2 / 3, 0])),
        Case("a hidden key with an enormous score changes nothing",
             args=(torch.ones(1, 2), 200 * _KEYS, _LOG, torch.tensor([True, False, False])), expected=_rows([1.0, 0, 0])),
        Case("where nothing may be attended the weights are 0",
             args=(torch.ones(1, 2), _KEYS, _LOG, ~_ALL), expected=_rows([0.0, 0, 0])),
    ],
    "16.backwards": [
        Case("a row without padding is reversed", args=(torch.tensor([[1, 2, 3]]), torch.tensor([3])), expected=_ids([3, 2, 1])),
        Case("the padding stays at the end", args=(torch.tensor([[1, 2, 3, 0, 0]]), torch.tensor([3])),
             expected=_ids([3, 2, 1, 0, 0])),
        Case("each row has its own length", args=(torch.tensor([[1, 2, 3], [4, 5, 0], [6, 0, 0]]), torch.tensor([3, 2, 1])),
             expected=_ids([3, 2, 1], [5, 4, 0], [6, 0, 0])),
        Case("the lengths decide what is padding, not the ids", args=(torch.tensor([[0, 7, 8, 9]]), torch.tensor([2])),
             expected=_ids([7, 0, 8, 9])),
    ],
    "16.sharp-links": [
        Case("a pair is (source position, target position)", args=([[0.1, 0.9], [0.2, 0.8]], 0.5), expected=_links((1, 0), (1, 1))),
        Case("a row that is unsure gives no link", args=([[0.6, 0.4], [0.5, 0.5]], 0.6), expected=_links((0, 0))),
        Case("a largest weight equal to the threshold is enough", args=([[0.5, 0.25, 0.25]], 0.5), expected=_links((0, 0))),
        Case("only the largest weight of a row gives a link", args=([[0.3, 0.3, 0.4]], 0.2), expected=_links((2, 0))),
        Case("of equals the first is taken", args=([[0.4, 0.4, 0.2]], 0.3), expected=_links((0, 0))),
        Case("no rows, no links", args=([], 0.5), expected=_links()),
    ],
}
