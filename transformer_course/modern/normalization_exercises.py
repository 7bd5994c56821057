"""What right answers to the exercises of chapter 30 must satisfy."""
import torch
from torch import nn
from torch.nn import functional as F

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _draw(*shape, seed=0, size=1.0, dtype=torch.float64):
    return (size * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


def _near(*wanted):
    """Numbers in order, to the third decimal."""
    return lambda answer: len(answer) == len(wanted) and all(abs(float(a) - b) < 2e-3 for a, b in zip(answer, wanted))


def _close(expected, tolerance=1e-9):
    """A tensor of the same shape and dtype."""
    return lambda y: (y.shape, y.dtype) == (expected.shape, expected.dtype) and torch.allclose(y.detach(), expected, atol=tolerance, rtol=tolerance)


def _gemma_case(says, x, weight, eps=1e-6):
    exact = x.double()
    exact = (exact / (exact.square().mean(-1, keepdim=True) + eps).sqrt() * (1 + weight.double())).to(x.dtype)
    return Case(says, args=(x, weight, eps), expected=_close(exact, 1e-5 if x.dtype == torch.float32 else 1e-2))


def _rounds_once(gemma_norm):
    """Hardly any number is off by a whole step of bfloat16, as about one in four is when it is rounded twice."""
    x, weight = _draw(64, 128, seed=1, dtype=torch.bfloat16), _draw(128, seed=2, size=0.1, dtype=torch.bfloat16)
    exact = x.double()
    exact = exact / (exact.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + weight.double())
    return (gemma_norm(x, weight, 1e-6) != exact.to(torch.bfloat16)).float().mean().item() < 0.01


def _mirror_case(says, x, eps=1e-6):
    return Case(says, args=(x, eps), expected=_close(F.rms_norm(x, x.shape[-1:], eps=eps)))


def _centres(inputs, outputs, bias):
    def holds(centre):
        linear, x = nn.Linear(inputs, outputs, bias, dtype=torch.float64), _draw(4, inputs, seed=3)
        with torch.no_grad():
            for k, parameter in enumerate(linear.parameters()):
                parameter.copy_(_draw(*parameter.shape, seed=k))
            centred, y = centre(linear), linear(x)
            return (isinstance(centred, nn.Linear) and (centred.bias is None) == (linear.bias is None)
                    and torch.allclose(centred(x), y - y.mean(-1, keepdim=True), atol=1e-9))
    return holds


def _leaves_alone(centre):
    linear, x = nn.Linear(3, 4, dtype=torch.float64), _draw(2, 3)
    with torch.no_grad():
        before = linear(x)
        centred = centre(linear)
        return centred is not linear and torch.equal(linear(x), before)


def _third_case(says, seed, norm):
    x, matrix = _draw(3, 5, seed=seed), _draw(5, 5, seed=seed + 1)

    def sublayer(x):
        return torch.tanh(x @ matrix)
    return Case(says, args=(x, sublayer, norm), expected=_close((x + norm(sublayer(x))).detach()))


EXERCISES = {
    "30.by-hand": [Case("the four numbers are divided by the root of 25, then each is multiplied by its weight", expected=_near(1, 1.4, 2, -1))],
    "30.gemma": [
        _gemma_case("a weight of zeros leaves tokens of mean square 1", _draw(3, 8, dtype=torch.float32), torch.zeros(8)),
        _gemma_case("1 is added to each weight", _draw(3, 8, dtype=torch.float32), _draw(8, seed=1, dtype=torch.float32)),
        _gemma_case("eps stands inside the root", 1e-3 * _draw(3, 8, dtype=torch.float32), torch.zeros(8), eps=1e-5),
        _gemma_case("large numbers of float16 survive", 500 * _draw(2, 8, dtype=torch.float16), torch.zeros(8, dtype=torch.float16)),
        _gemma_case("half-precision tokens stay so beside float32 weights", _draw(2, 8, dtype=torch.bfloat16), torch.zeros(8)),
        Case("the result is rounded once, at the end", expected=_rounds_once),
    ],
    "30.mirror": [
        _mirror_case("tokens of five features come out as from F.rms_norm", _draw(3, 5)),
        _mirror_case("tokens whose mean is far from 0 do too", 3 + _draw(3, 4, seed=1)),
        _mirror_case("eps means the same as in F.rms_norm", 1e-3 * _draw(3, 4, seed=2), eps=1e-4),
        _mirror_case("there may be more dimensions in front", _draw(2, 3, 4, seed=3)),
    ],
    "30.centre": [
        Case("outputs are those of the given layer less their mean, 3 features to 5", expected=_centres(3, 5, True)),
        Case("so they are for 5 features to 5, where rows and columns are easily mixed up", expected=_centres(5, 5, True)),
        Case("a layer without bias gets none", expected=_centres(3, 4, False)),
        Case("the given layer stays as it was", expected=_leaves_alone),
    ],
    "30.third-place": [
        _third_case("the norm is taken of what the sublayer gives, before it is added", 0, nn.LayerNorm(5, dtype=torch.float64)),
        _third_case("the same holds with RMSNorm", 7, nn.RMSNorm(5, eps=1e-6, dtype=torch.float64)),
    ],
}
