"""What right answers to the exercises of chapter 23 must satisfy."""
import torch
from torch import nn

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


class _Layer(nn.Module):
    """A layer that tells where it was used: it multiplies by its factor, and adds 1 where the mask allows."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x, mask=None, bias=None, cache=None):
        return x * self.factor + (0 if mask is None else mask)


class _Stack(nn.Module):
    def __init__(self, factors, final_norm=None):
        super().__init__()
        self.layers, self.final_norm = nn.ModuleList(map(_Layer, factors)), final_norm

    def forward(self, x, mask=None, bias=None, cache=None):
        for layer in self.layers:
            x = layer(x, mask=mask)
        return x if self.final_norm is None else self.final_norm(x)


class _Halved(nn.Module):
    def forward(self, x):
        return x / 2


def _gives(factors, final_norm, x, mask, expected):
    """Whether the states are these numbers, for a token of one number."""
    def holds(states):
        stack, token = _Stack(factors, final_norm), torch.tensor([[[float(x)]]])
        found = list(states(stack, token) if mask is None else states(stack, token, torch.tensor([[[mask]]])))
        return [round(state.item(), 6) for state in found] == [float(value) for value in expected]
    return holds


def _last_is_the_output(states):
    stack, x = _Stack([2.0, 3.0], _Halved()), torch.ones(2, 3, 4)
    return torch.equal(list(states(stack, x))[-1], stack(x))


def _parallel(says, norm, seed, width=5):
    """A block with random linear maps in place of the sublayers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        attention, feed_forward = nn.Linear(width, width).double(), nn.Linear(width, width).double()
    x = torch.randn(2, 3, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        expected = x + attention(norm(x)) + feed_forward(norm(x))
    return Case(says, args=(x, attention, feed_forward, norm), expected=expected)


def _norms_once(parallel):
    """Whether the norm is called a single time."""
    calls = []

    def norm(x):
        calls.append(x)
        return x
    parallel(torch.ones(1, 2, 3), lambda x: x, lambda x: x, norm)
    return len(calls) == 1


EXERCISES = {
    "23.parameters": [Case("six times 1,050,624 in attention, 2,099,712 in the network and 2,048 in the norms", expected=18_914_304)],
    "23.states": [
        Case("two layers give three states, the input first", expected=_gives([2.0, 3.0], None, 1, None, [1, 2, 6])),
        Case("a final norm acts on the last state", expected=_gives([2.0, 3.0], _Halved(), 1, None, [1, 2, 3])),
        Case("and on no other", expected=_gives([5.0], _Halved(), 1, None, [1, 2.5])),
        Case("the mask reaches every layer", expected=_gives([2.0, 3.0], None, 1, True, [1, 3, 10])),
        Case("the last state is what the encoder returns", expected=_last_is_the_output),
    ],
    "23.parallel": [
        _parallel("it is the sum of the input and both sublayers", lambda x: x, 0),
        _parallel("both sublayers read the normed input", nn.LayerNorm(5).double(), 1),
        _parallel("the input itself is added as it is", lambda x: x / 3, 2),
        Case("the norm is computed once", expected=_norms_once),
    ],
}
