"""What right answers to the exercises of chapter 35 must satisfy."""
import copy
from dataclasses import dataclass, replace

import torch

from transformer_course.attention.multi_head_attention import MultiHeadAttention
from transformer_course.modern._one_block import Recipe, differences, rungs
from transformer_course.modern.decoder_only import CausalLMConfig
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


@dataclass(frozen=True)
class _Pair:
    first: int = 1
    second: int = 2
    third: int = 3


def _steps(start, end, count):
    """Recipes from start to end, neighbours apart by one field, in the order of the fields."""
    def holds(one_at_a_time):
        path = list(one_at_a_time(start, end))
        if not path or path[0] != start or path[-1] != end or len(path) != count + 1:
            return False
        changed = [[name for name in vars(a) if vars(a)[name] != vars(b)[name]] for a, b in zip(path, path[1:])]
        order = list(vars(start))
        return all(len(names) == 1 for names in changed) and [n for names in changed for n in names] == sorted(
            (n for names in changed for n in names), key=order.index)
    return holds


def _attention(bias, head_dim=None, scale=None, seed=0):
    attention, generator = MultiHeadAttention(6, 3, bias=bias, head_dim=head_dim, scale=scale).double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return attention


def _same_undivided(bias, head_dim=None, scale=None):
    def holds(undivided):
        attention = _attention(bias, head_dim, scale)
        other, x = undivided(attention), torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        with torch.no_grad():
            return other.scale == 1 and torch.allclose(other(x), attention(x), atol=1e-12)
    return holds


def _left_alone(undivided):
    attention = _attention(True)
    before, scale = copy.deepcopy(attention.state_dict()), attention.scale
    other = undivided(attention)
    shared = {id(p) for p in other.parameters()} & {id(p) for p in attention.parameters()}
    return not shared and attention.scale == scale and all(torch.equal(before[name], value) for name, value in attention.state_dict().items())


def _norm(x):
    return x / x.square().mean(-1, keepdim=True).sqrt()


def _parallel(parallel_block):
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = x + _norm(x).cumsum(1) + torch.tanh(3 * _norm(x))
    return torch.allclose(parallel_block(x, _norm, lambda x: x.cumsum(1), lambda x: torch.tanh(3 * x)), wanted)


def _normalises_once(parallel_block):
    calls = []

    def norm(x):
        calls.append(1)
        return _norm(x)
    parallel_block(torch.randn(1, 2, 3, generator=torch.Generator().manual_seed(0)), norm, torch.sin, torch.cos)
    return len(calls) == 1


_GPT2, _LLAMA = (rungs()[name] for name in ("GPT-2", "LLaMA"))
_CONFIG = CausalLMConfig(11, d_model=8, num_layers=1, num_heads=2, d_ff=16)
EXERCISES = {
    "35.by-hand": [
        Case("2017's layer has 12 d^2 + 13 d numbers", expected=lambda answer: int(answer[0]) == 12 * 768 ** 2 + 13 * 768),
        Case("LLaMA's has 12 d^2 + 2 d", expected=lambda answer: int(answer[1]) == 12 * 768 ** 2 + 2 * 768)],
    "35.one-at-a-time": [
        Case("from 2017 to LLaMA each recipe differs from the one before in one field",
             expected=_steps(Recipe(), _LLAMA, len(differences(Recipe(), _LLAMA)))),
        Case("the way back has the same number of steps", expected=_steps(_LLAMA, Recipe(), len(differences(Recipe(), _LLAMA)))),
        Case("where nothing differs there is one recipe", expected=_steps(_GPT2, _GPT2, 0)),
        Case("any frozen dataclass will do", expected=_steps(_Pair(), _Pair(5, 2, 6), 2)),
        Case("a CausalLMConfig will do", expected=_steps(_CONFIG, replace(_CONFIG, norm="rms", d_ff=32), 2))],
    "35.undivided": [
        Case("the output is the same, and the scale is 1", expected=_same_undivided(True)),
        Case("the same holds without biases", expected=_same_undivided(False)),
        Case("the same holds where head_dim is not d_model / num_heads", expected=_same_undivided(True, 5)),
        Case("the same holds where another scale was given", expected=_same_undivided(True, None, 0.3)),
        Case("the given attention stays as it was and shares nothing with yours", expected=_left_alone)],
    "35.parallel": [
        Case("both branches read the normed input, and both are added to the input itself", expected=_parallel),
        Case("the norm is applied once", expected=_normalises_once)],
}
