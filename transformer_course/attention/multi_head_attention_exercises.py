"""What right answers to the exercises of chapter 19 must satisfy."""
import torch
from torch import nn

from transformer_course.attention.multi_head_attention import MultiHeadAttention, record_attention, split_heads
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _filled(module):
    """A module in float64 with every parameter, biases too, drawn anew, the same each time."""
    module = module.double().eval()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(_randn(*parameter.shape, seed=seed) / 2)
    return module


def _is_ours(module):
    """Whether it is a module of the chapter's class, the reader's own copy of it included."""
    parts = (getattr(module, name, None) for name in ("query", "key", "value", "output"))
    return isinstance(module, nn.Module) and all(isinstance(part, nn.Linear) for part in parts) and hasattr(module, "recorded")


# -- 19.from-torch

def _moved(d_model, num_heads, bias):
    """A case: values on x and on a context of another length agree with the original's."""
    def holds(from_torch):
        theirs = _filled(nn.MultiheadAttention(d_model, num_heads, bias=bias, batch_first=True))
        ours = from_torch(theirs).eval()
        x, context = _randn(2, 4, d_model, seed=11), _randn(2, 6, d_model, seed=12)
        with torch.no_grad():
            return all(torch.allclose(ours(x, source), theirs(x, y, y, need_weights=False)[0], atol=1e-8)
                       for source, y in ((None, x), (context, context)))
    return holds


def _is_a_copy(from_torch):
    theirs = _filled(nn.MultiheadAttention(6, 2, batch_first=True))
    ours = from_torch(theirs)
    before = [parameter.detach().clone() for parameter in theirs.parameters()]
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(1.0)
    return _is_ours(ours) and all(map(torch.equal, before, theirs.parameters()))


def _keeps_dropout(from_torch):
    return from_torch(nn.MultiheadAttention(6, 2, dropout=0.25, batch_first=True)).dropout == 0.25


# -- 19.sum-of-heads

def _adds_up(attention, seed):
    """Whether the mixtures of the input, each times its matrix, add up to the output."""
    def holds(matrices):
        width = attention.output.weight.shape[0]
        if tuple(matrices.shape) != (attention.num_heads, width, width):
            return False
        x = _randn(2, 5, width, seed=seed)
        with torch.no_grad(), record_attention(attention) as seen:
            output = attention(x)
        weights, = seen[""]
        return torch.allclose(sum(weights[:, i] @ x @ matrix for i, matrix in enumerate(matrices.detach())), output, atol=1e-8)
    return holds


def _sum_case(says, seed, *sizes, **more):
    attention = _filled(MultiHeadAttention(*sizes, bias=False, **more))
    return Case(says, args=(attention,), expected=_adds_up(attention, seed))


# -- 19.remove-heads

def _silenced(attention, heads, x):
    """The output of an attention when some heads say nothing."""
    with torch.no_grad():
        kept = [torch.zeros_like(part) if head in heads else part for head, part in enumerate(_answers(attention, x))]
        return attention.output(torch.cat(kept, dim=-1))


def _answers(attention, x):
    """What each head hands to the output layer, (batch, length, head_dim) each."""
    with torch.no_grad(), record_attention(attention) as seen:
        attention(x)
    values = split_heads(attention.value(x), attention.num_heads)
    return (seen[""][0] @ values).unbind(dim=1)


def _removal(says, heads, num_heads, seed=3, **more):
    attention = _filled(MultiHeadAttention(12, num_heads, **more))
    x = _randn(2, 5, 12, seed=seed)
    wanted = _silenced(attention, heads, x)
    left = num_heads - len(heads)

    def holds(smaller):
        if not _is_ours(smaller) or smaller.num_heads != left:
            return False
        if smaller.query.weight.shape[0] * num_heads != attention.query.weight.shape[0] * left:
            return False
        with torch.no_grad():
            return torch.allclose(smaller.eval()(x), wanted, atol=1e-8)
    return Case(says, args=(attention, heads), expected=holds)


def _leaves_the_old_one(remove_heads):
    attention = _filled(MultiHeadAttention(12, 3))
    before = [parameter.detach().clone() for parameter in attention.parameters()]
    with torch.no_grad():
        for parameter in remove_heads(attention, [1]).parameters():
            parameter.add_(1.0)
    return attention.num_heads == 3 and all(map(torch.equal, before, attention.parameters()))


EXERCISES = {
    "19.parameters": [Case("four matrices between 1,024 and 128 times 128, or between 1,024 and 1,024", expected=[67_108_864, 4_194_304])],
    "19.from-torch": [
        Case("it gives what theirs gives, with three heads of width 5, for self- and cross-attention", expected=_moved(15, 3, True)),
        Case("it gives what theirs gives without biases", expected=_moved(6, 2, False)),
        Case("it is a copy, of the right class: changing it does not change the original", expected=_is_a_copy),
        Case("it keeps the share that is dropped", expected=_keeps_dropout),
    ],
    "19.sum-of-heads": [
        _sum_case("mixtures times matrices add up to the output, with three heads of width 5", 21, 15, 3),
        _sum_case("they do with heads that are wider than d_model / h", 22, 6, 2, head_dim=5),
        _sum_case("they do with a single head", 23, 4, 1),
    ],
    "19.remove-heads": [
        _removal("without head 1 of three it gives what it gave with head 1 silenced", [1], 3),
        _removal("two heads of four can go at once", [3, 0], 4),
        _removal("with no head removed it is the same attention", [], 3),
        _removal("it works without biases", [0], 3, bias=False),
        _removal("a scale and a width of its own are kept", [0, 2], 3, head_dim=5, scale=1.0),
        Case("the old attention stays as it was", expected=_leaves_the_old_one),
    ],
}
