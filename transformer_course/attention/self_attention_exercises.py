"""What right answers to the exercises of chapter 17 must satisfy."""
import math

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class _Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor holds that is made meanwhile."""
    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        outcome = function(*args, **(kwargs or {}))
        for tensor in outcome if isinstance(outcome, (tuple, list)) else [outcome]:
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.numel())
        return outcome


def _inputs(q_len, k_len, d_k, d_v, *leading, stretch=1.0, seed=0):
    return (stretch * _draw(*leading, q_len, d_k, seed=seed), stretch * _draw(*leading, k_len, d_k, seed=seed + 1),
            _draw(*leading, k_len, d_v, seed=seed + 2))


def _with_phi(query, key, value):
    """Linear attention by its definition, with the matrix of all pairs."""
    weights = (F.elu(query) + 1) @ (F.elu(key) + 1).transpose(-2, -1)
    return weights / weights.sum(dim=-1, keepdim=True) @ value


def _softmax_attention(query, key, value):
    return (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).softmax(dim=-1) @ value


def _linear_case(says, *sizes, **options):
    inputs = _inputs(*sizes, **options)
    return Case(says, args=inputs, expected=_with_phi(*inputs))


def _block_case(says, block, *sizes, **options):
    inputs = _inputs(*sizes, **options)
    return Case(says, args=(*inputs, block), expected=_softmax_attention(*inputs))


def _never_all_pairs(*more):
    def holds(answer):
        inputs = _inputs(60, 70, 3, 2)
        with _Largest() as seen:
            answer(*inputs, *more)
        return seen.size < 60 * 70
    return holds


def _climbing(block):
    """Scores that grow from block to block, so that what was summed up has to be rescaled every time."""
    query, key = torch.ones(1, 1, dtype=torch.float64), torch.arange(6, dtype=torch.float64)[:, None]
    value = _draw(6, 2)
    return Case(f"sums are rescaled when a block of {block} brings larger scores", args=(query, key, value, block),
                expected=_softmax_attention(query, key, value))


def _passes_gradients(answer):
    inputs = [part.requires_grad_() for part in _inputs(3, 5, 4, 2)]
    wave = torch.sin(torch.arange(6.0)).view(3, 2)
    ours, theirs = (torch.autograd.grad((attend * wave).sum(), inputs)
                    for attend in (answer(*inputs, 2), _softmax_attention(*inputs)))
    return all(torch.allclose(a, b, atol=1e-9) for a, b in zip(ours, theirs))


_THREE = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).log()

EXERCISES = {
    "17.unit-scale": [
        Case("with variances of 1 it is one over the root of d_k", args=(64, 1.0, 1.0), expected=1 / 8),
        Case("larger variances ask for a smaller scale", args=(4, 4.0, 9.0), expected=1 / 12),
        Case("small queries make up for the width", args=(64, 1 / 64, 1.0), expected=1.0),
        Case("query and key count alike", args=(16, 0.25, 1.0), expected=0.5),
    ],
    "17.temperature": [
        Case("at 1 it is the softmax", args=(_THREE, 1.0), expected=[1 / 8, 2 / 8, 5 / 8]),
        Case("at one half the exponentials are squared", args=(_THREE, 0.5), expected=[1 / 30, 4 / 30, 25 / 30]),
        Case("rows are weighed one by one, over the last axis", args=(torch.stack([_THREE, 0 * _THREE]), 1.0),
             expected=[[1 / 8, 2 / 8, 5 / 8], [1 / 3, 1 / 3, 1 / 3]]),
        Case("at 0 the largest score takes everything", args=(_THREE, 0.0), expected=[0, 0, 1]),
        Case("at 0 those that tie share", args=(torch.tensor([[1.0, 3.0, 3.0]]), 0.0), expected=[[0, 0.5, 0.5]]),
        Case("at infinity all get the same", args=(_THREE, math.inf), expected=[1 / 3] * 3),
        Case("large scores are no problem", args=(1000 + _THREE, 1.0), expected=[1 / 8, 2 / 8, 5 / 8]),
        Case("nor are small temperatures", args=(torch.tensor([5.0, 900.0, -900.0]), 1e-38), expected=[0, 1, 0]),
    ],
    "17.linear": [
        _linear_case("it agrees with the definition", 3, 5, 4, 2),
        _linear_case("there may be dimensions in front", 4, 4, 3, 3, 2, 3, seed=5),
        _linear_case("large inputs are no problem", 3, 5, 4, 2, stretch=30.0, seed=9),
        Case("a value that all share comes out as it is", args=(*_inputs(3, 5, 4, 2)[:2], torch.full((5, 1), 7.0).double()),
             expected=[[7.0]] * 3),
        Case("no tensor on the way holds a number for each pair", expected=_never_all_pairs()),
    ],
    "17.blocks": [
        _block_case("one block with everything is plain attention", 5, 3, 5, 4, 2),
        _block_case("blocks of one key will do", 1, 3, 5, 4, 2),
        _block_case("the last block may be shorter", 2, 3, 5, 4, 2),
        _block_case("a block may be longer than the sentence", 9, 3, 5, 4, 2),
        _block_case("there may be dimensions in front", 2, 4, 6, 3, 2, 2, 3, seed=4),
        _climbing(1), _climbing(4),
        _block_case("scores of a thousand do not overflow", 2, 3, 5, 4, 2, stretch=40.0, seed=7),
        Case("gradients pass", expected=_passes_gradients),
        Case("no tensor on the way holds a number for each pair", expected=_never_all_pairs(5)),
    ],
}
