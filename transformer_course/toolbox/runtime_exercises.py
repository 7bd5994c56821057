"""What right answers to the exercises of chapter 00 must satisfy."""
import math

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


class _WatchDraws(TorchDispatchMode):
    """Notes the device of every random number that PyTorch draws."""
    def __init__(self):
        super().__init__()
        self.devices = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        drawn = operation(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in operation.tags and isinstance(drawn, torch.Tensor):
            self.devices.add(drawn.device.type)
        return drawn


def _draws_on_the_cpu(draw):
    with _WatchDraws() as watch:
        draw((3,), 0, "meta")
    return watch.devices <= {"cpu"}


def _differs_by_seed(draw):
    return not torch.equal(draw((4,), 0, "cpu"), draw((4,), 1, "cpu"))


def _leaves_the_global_state(draw):
    before = torch.get_rng_state()
    draw((3,), 0, "cpu")
    return torch.equal(torch.get_rng_state(), before)


def _ignores_the_global_state(draw):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = draw((3,), 0, "cpu")
        torch.manual_seed(2)
        return torch.equal(first, draw((3,), 0, "cpu"))


def _looks_normal(numbers):
    return abs(numbers.mean()) < 0.15 and 0.9 < numbers.std() < 1.1 and numbers.abs().max() > 2.2


def _half_frozen():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False))
    module[0].requires_grad_(False)
    return module


def _two_dtypes():
    return nn.Sequential(nn.Linear(3, 2).half(), nn.Linear(2, 2, bias=False))


def _leaves_the_list(careful_sum):
    given = list(_ONE_MORE)
    careful_sum(given)
    return given == _ONE_MORE


def _tied():
    module = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    module[1].weight = module[0].weight
    return module


_ONE_MORE = [1.0, 1e100, 1.0, -1e100]

EXERCISES = {
    "00.float8": [
        Case("counting stops at the first number whose successor does not fit in 4 binary digits", expected=16),
    ],
    "00.park-miller": [
        Case("from 1 the first two states are 16,807 and 282,475,249", args=(1, 2),
             expected=[16807 / (2**31 - 1), 282475249 / (2**31 - 1)]),
        Case("the seed is a state: from 282,475,249 it goes on with 1,622,650,073", args=(282475249, 1),
             expected=[1622650073 / (2**31 - 1)]),
        Case("no numbers are made when none are asked for", args=(7, 0), expected=[]),
        Case("after 10,000 steps the remainder is exact, and divided by 2^31 - 1", args=(1, 10_000),
             expected=lambda numbers: len(numbers) == 10_000 and math.isclose(
                 numbers[-1], 1043618065 / (2**31 - 1), rel_tol=1e-12)),
    ],
    "00.draw": [
        Case("the shape is the one asked for", args=((2, 3), 0, "cpu"), expected=lambda out: out.shape == (2, 3)),
        Case("the result ends up on the device asked for", args=((2, 3), 0, "meta"),
             expected=lambda out: out.device.type == "meta" and out.shape == (2, 3)),
        Case("1,000 numbers have a mean near 0, a standard deviation near 1, and some lie beyond 2.2", args=((1000,), 0, "cpu"),
             expected=_looks_normal),
        Case("another seed gives other numbers", expected=_differs_by_seed),
        Case("the numbers are drawn on the CPU, wherever they end up", expected=_draws_on_the_cpu),
        Case("the same seed gives the same numbers, whatever PyTorch's global state", expected=_ignores_the_global_state),
        Case("PyTorch's global state is afterwards what it was before", expected=_leaves_the_global_state),
    ],
    "00.training-bytes": [
        Case("a linear layer from 3 to 2 has 8 parameters, 8 gradients and 16 averages of 4 bytes",
             args=(nn.Linear(3, 2),), expected=8 * 4 * 4),
        Case("in half precision each takes 2 bytes", args=(nn.Linear(3, 2).half(),), expected=8 * 4 * 2),
        Case("each parameter counts in its own dtype (8 take 2 bytes, 4 take 4)", args=(_two_dtypes(),),
             expected=8 * 2 * 4 + 4 * 4 * 4),
        Case("frozen parameters are kept, but have neither gradient nor averages (8 are frozen, 4 are not)",
             args=(_half_frozen(),), expected=8 * 4 + 4 * 4 * 4),
        Case("a tied table is there once", args=(_tied(),), expected=15 * 4 * 4),
        Case("a running mean is not learned", args=(nn.BatchNorm1d(4),), expected=8 * 4 * 4),
        Case("shapes are enough", args=(nn.Linear(3, 2, device="meta"),), expected=8 * 4 * 4),
    ],
    "00.careful-sum": [
        Case("ordinary numbers add up", args=([0.5, 0.25, -1.0],), expected=-0.25),
        Case("an empty list adds up to 0", args=([],), expected=0.0),
        Case("ten times 0.1 is exactly 1", args=([0.1] * 10,), expected=lambda total: total == 1.0),
        Case("small numbers are not lost beside a large one", args=([1e16, 1.0, 1.0, -1e16],), expected=2.0),
        Case("what is added before a large number survives it too", args=(_ONE_MORE,), expected=2.0),
        Case("the given list is left as it was", expected=_leaves_the_list),
    ],
}
