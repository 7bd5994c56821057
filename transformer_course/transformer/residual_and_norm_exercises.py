"""What right answers to the exercises of chapter 22 must satisfy."""
import math

import torch
from torch import nn
from torch.nn import functional as F

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _near(*wanted):
    """Numbers in order, to the third decimal."""
    return lambda answer: len(answer) == len(wanted) and all(abs(float(a) - b) < 2e-3 for a, b in zip(answer, wanted))


class _Once:
    """An iterator that counts how far it was read, and cannot be read twice."""

    def __init__(self, numbers):
        self.numbers = list(numbers)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.numbers:
            raise StopIteration
        return self.numbers.pop(0)

    def __repr__(self):
        return f"an iterator over {self.numbers}"


def _statistics(says, numbers, tolerance=1e-9):
    mean = math.fsum(numbers) / len(numbers)
    variance = math.fsum((number - mean) ** 2 for number in numbers) / len(numbers)

    def holds(outcome):
        found_mean, found_variance = map(float, outcome)
        return (math.isclose(found_mean, mean, rel_tol=1e-12, abs_tol=1e-12)
                and math.isclose(found_variance, variance, rel_tol=tolerance, abs_tol=1e-12))
    return Case(says, args=(_Once(numbers),), expected=holds)


def _parts(inputs, outputs, norm_bias, linear_bias, seed=0):
    """A norm and a linear layer with random parameters, in float64."""
    from transformer_course.transformer.residual_and_norm import LayerNorm
    generator = torch.Generator().manual_seed(seed)
    norm, linear = LayerNorm(inputs, bias=norm_bias).double(), nn.Linear(inputs, outputs, bias=linear_bias).double()
    with torch.no_grad():
        for parameter in (*norm.parameters(), *linear.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return norm, linear, torch.randn(4, inputs, generator=generator, dtype=torch.float64)


def _folds(inputs, outputs, norm_bias, linear_bias):
    def holds(fold):
        norm, linear, x = _parts(inputs, outputs, norm_bias, linear_bias)
        with torch.no_grad():
            folded = fold(norm, linear)
            return isinstance(folded, nn.Linear) and torch.allclose(
                folded(F.layer_norm(x, (inputs,), eps=norm.eps)), linear(norm(x)), atol=1e-9)
    return holds


def _leaves_alone(fold):
    norm, linear, x = _parts(3, 3, True, True)
    with torch.no_grad():
        before = linear(norm(x)), norm(x)
        folded = fold(norm, linear)
        return folded is not linear and torch.equal(linear(norm(x)), before[0]) and torch.equal(norm(x), before[1])


def _deep_norm_case(says, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, matrix = torch.randn(3, 5, generator=generator), torch.randn(5, 5, generator=generator)
    total = (2 * n) ** 0.25 * x + x @ matrix
    expected = (total - total.mean(-1, keepdim=True)) / (total.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return Case(says, args=(x, lambda x: x @ matrix, nn.LayerNorm(5), n),
                expected=lambda y: y.shape == expected.shape and torch.allclose(y.detach(), expected, atol=1e-5))


EXERCISES = {
    "22.by-hand": [Case("the three numbers are normalised with variance 2, then scaled, then shifted",
                        expected=_near(-1 / 2 ** 0.5, 1 - 2 ** 0.5, 3 * 2 ** 0.5))],
    "22.one-pass": [
        _statistics("the mean and the variance of four numbers come out", [2.0, 4.0, 6.0, 8.0]),
        _statistics("a single number has variance 0", [7.0]),
        _statistics("two numbers have their variance divided by 2, not by 1", [1.0, 2.0]),
        _statistics("numbers near a billion keep their variance", [1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16]),
        _statistics("negative numbers count too", [-3.0, 5.0, -11.0]),
    ],
    "22.fold": [
        Case("the folded layer gives the same outputs, 3 features to 5", expected=_folds(3, 5, True, True)),
        Case("it does so for 5 features to 5, where rows and columns are easily mixed up", expected=_folds(5, 5, True, True)),
        Case("a linear layer without bias is folded too", expected=_folds(3, 4, True, False)),
        Case("a norm without bias is folded too", expected=_folds(3, 4, False, True)),
        Case("it works where neither has a bias", expected=_folds(3, 4, False, False)),
        Case("the norm and the linear layer stay as they were", expected=_leaves_alone),
    ],
    "22.paths": [
        Case("with a derivative of 1, three blocks share 1, 3, 3, 1 eighths", args=(3, 1.0), expected=[1 / 8, 3 / 8, 3 / 8, 1 / 8]),
        Case("one block has two paths, past it and through it", args=(1, 0.25), expected=[0.8, 0.2]),
        Case("the shares of 50 blocks add up to 1", args=(50, 0.1), expected=lambda s: len(s) == 51 and abs(sum(map(float, s)) - 1) < 1e-9),
        Case("the gradient of 50 blocks sees 50 * 0.1 / 1.1 sublayers on average", args=(50, 0.1),
             expected=lambda s: abs(sum(k * float(v) for k, v in enumerate(s)) - 5 / 1.1) < 1e-6),
    ],
    "22.deep-norm": [
        _deep_norm_case("a stack of 8 has the factor 2 on its highway", 8),
        _deep_norm_case("a stack of 100 has the fourth root of 200", 100, seed=1),
        _deep_norm_case("a single block has the fourth root of 2", 1, seed=2),
    ],
}
