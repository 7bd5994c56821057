"""What right answers to the exercises of chapter 40 must satisfy."""
import torch
from torch.nn import functional as F

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _near(*wanted):
    """Numbers in order, to the third decimal."""
    return lambda answer: len(answer) == len(wanted) and all(abs(float(a) - b) < 2e-3 for a, b in zip(answer, wanted))


def _close(expected, tolerance=1e-9):
    """A tensor of the same shape and dtype."""
    return lambda y: (y.shape, y.dtype) == (expected.shape, expected.dtype) and torch.allclose(y.detach(), expected, atol=tolerance, rtol=tolerance)


def _weighted(says, hidden, mask):
    rows = []
    for tokens, real in zip(hidden, mask):
        n = int(real.sum())
        weights = torch.arange(1, n + 1, dtype=hidden.dtype)
        rows.append((tokens[real.bool()] * weights[:, None]).sum(0) / weights.sum())
    return Case(says, args=(hidden, mask), expected=_close(torch.stack(rows)))


def _contrastive(says, a, b, scale=20.0):
    a_unit, b_unit = a / a.norm(dim=1, keepdim=True), b / b.norm(dim=1, keepdim=True)
    loss = sum(-(scale * a_unit[i] @ b_unit.T).log_softmax(0)[i] for i in range(len(a))) / len(a)
    return Case(says, args=(a, b), kwargs={} if scale == 20.0 else {"scale": scale}, expected=_close(loss))


def _pulls_together(contrastive_loss):
    """One step downhill brings partners nearer, relative to strangers."""
    a, b = _draw(4, 6, seed=5).requires_grad_(), _draw(4, 6, seed=6)
    before = F.cosine_similarity(a, b).mean().item()
    gradient, = torch.autograd.grad(contrastive_loss(a, b), a)
    return F.cosine_similarity(a.detach() - 0.5 * gradient, b).mean().item() > before


def _twins(says, vectors, k):
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    pairs = sorted(((i, j) for j in range(len(vectors)) for i in range(j)), key=lambda p: -float(unit[p[0]] @ unit[p[1]]))[:k]
    return Case(says, args=(vectors, k), expected=lambda answer: [tuple(int(i) for i in pair) for pair in answer] == pairs)


def _bits(says, a, b):
    return Case(says, args=(a, b), expected=_close(torch.stack([((x > 0) == (b > 0)).double().mean(1) for x in a]).float(), 1e-6))


EXERCISES = {
    "40.by-hand": [Case("the mean of the three real tokens comes first, then their largest values", expected=_near(2, 1, 5, 4))],
    "40.weighted": [
        _weighted("the k-th of n tokens weighs k / (1 + ... + n)", _draw(2, 5, 3), torch.ones(2, 5, dtype=torch.long)),
        _weighted("padding counts neither in the sum nor in the weights", _draw(3, 6, 4, seed=1),
                  torch.tensor([[1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])),
        _weighted("a mask of booleans will do", _draw(2, 4, 3, seed=2), torch.tensor([[True, True, False, False], [True] * 4])),
    ],
    "40.contrastive": [
        _contrastive("each text must pick its partner among all", _draw(4, 6), _draw(4, 6, seed=1)),
        _contrastive("only directions count, not lengths", 7 * _draw(3, 5, seed=2), 0.1 * _draw(3, 5, seed=3)),
        _contrastive("the scale multiplies the cosines", _draw(3, 4, seed=4), _draw(3, 4, seed=5), scale=2.0),
        Case("a step downhill brings partners nearer", expected=_pulls_together),
    ],
    "40.twins": [
        _twins("the nearest pairs come first, each once, no text with itself", _draw(6, 4), 4),
        _twins("only the directions count", torch.tensor([[1.0, 0], [9.0, 1], [0, 1.0], [9.0, 9.0]], dtype=torch.float64), 2),
        _twins("the first of a pair has the smaller number", _draw(5, 3, seed=8), 10),
    ],
    "40.bits": [
        _bits("the share of equal signs, each of one with each of the other", _draw(3, 8), _draw(4, 8, seed=1)),
        _bits("zero counts as not positive", torch.tensor([[0.0, 1.0, -1.0, 2.0]]), torch.tensor([[-1.0, 1.0, 0.0, -2.0]])),
        _bits("lengths do not matter", 100 * _draw(2, 5, seed=2), 0.01 * _draw(2, 5, seed=3)),
    ],
}
