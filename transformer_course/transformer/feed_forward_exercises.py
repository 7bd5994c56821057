"""What right answers to the exercises of chapter 21 must satisfy."""
import torch
from torch.nn import functional as F

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _points(width, scale):
    return scale * torch.randn(50, width, generator=torch.Generator().manual_seed(width), dtype=torch.float64)


def _output(network, x):
    """What a copy of the network in float64 gives; the reader's own stays in its dtype."""
    weights = {name: weight.double() for name, weight in network.state_dict().items()}
    with torch.no_grad():
        return torch.func.functional_call(network, weights, (x,))


def _passes(width, scale):
    def holds(network):
        x = _points(width, scale)
        return torch.allclose(_output(network, x), x, rtol=1e-6, atol=1e-6 * scale)
    return holds


def _is_relu_network(network):
    """By name: the chapter's own class is not the package's."""
    return type(network).__name__ == "FeedForward" and network.activation is F.relu


def _multiplies(scale, at=0, offset=0.0):
    def holds(network):
        x = _points(2, scale) + offset
        wanted = torch.stack([x.prod(dim=1), torch.zeros(len(x), dtype=x.dtype)], dim=1)
        return torch.allclose(_output(network, x)[:, at], wanted[:, at], rtol=1e-6, atol=1e-6 * scale ** 2)
    return holds


EXERCISES = {
    "21.parameters": [Case("three matrices of 4096 by 11008 in each of 32 layers", expected=4_328_521_728)],
    "21.gated-width": [
        Case("LLaMA 7B has 11008", args=(4096, 256), expected=11008),
        Case("LLaMA 13B has 13824", args=(5120, 256), expected=13824),
        Case("LLaMA 65B has 22016", args=(8192, 256), expected=22016),
        Case("the fraction is dropped before rounding up", args=(512, 1), expected=1365),
        Case("what is a multiple already stays", args=(768, 256), expected=2048),
        Case("another multiple is used when given", args=(100, 7), expected=266),
    ],
    "21.pass-through": [
        Case("it is a FeedForward with ReLU", args=(3,), expected=_is_relu_network),
        Case("three features pass, whatever their sign", args=(3,), expected=_passes(3, 1.0)),
        Case("large ones pass too", args=(3,), expected=_passes(3, 1000.0)),
        Case("five features pass", args=(5,), expected=_passes(5, 1.0)),
        Case("its inner width is no more than it need be", args=(4,), expected=lambda network: network.up.out_features <= 8),
    ],
    "21.multiply": [
        Case("it is a SwiGLU of width 2 with 2 inner units", args=(),
             expected=lambda network: type(network).__name__ == "SwiGLU" and network.up.weight.shape == (2, 2)),
        Case("the first output is the product", args=(), expected=_multiplies(1.0)),
        Case("it is the product of large numbers too", args=(), expected=_multiplies(100.0)),
        Case("it is the product of small numbers too", args=(), expected=_multiplies(0.01)),
        Case("the second output is 0", args=(), expected=_multiplies(1.0, at=1)),
    ],
}
