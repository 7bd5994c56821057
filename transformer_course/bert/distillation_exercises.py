"""What right answers to the exercises of chapter 41 must satisfy."""
import math

import torch

from transformer_course.bert.distillation import DistilBert
from transformer_course.bert.model import Bert, BertConfig
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _close(expected):
    """A tensor of the same shape, or a number where that is one."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    return lambda y: torch.as_tensor(y).shape == expected.shape and torch.allclose(torch.as_tensor(y).double(), expected, atol=1e-6)


def _size_case(says, config, layers):
    with torch.device("meta"):
        model = DistilBert(BertConfig.distilbert(**{**config, "num_layers": layers}))
    expected = sum(parameter.numel() for parameter in model.parameters())
    return Case(says, args=(BertConfig(**config), layers), expected=expected)


def _half(p, m):
    return torch.where(p > 0, p * (p.clamp(min=1e-300) / m.clamp(min=1e-300)).log(), 0.0).sum(-1)


def _js_case(says, p, q):
    p, q = (torch.as_tensor(x, dtype=torch.float64) for x in (p, q))
    return Case(says, args=(p, q), expected=_close((_half(p, (p + q) / 2) + _half(q, (p + q) / 2)) / 2))


def _cosine_case(says, student, teacher, mask):
    far = 1 - (student * teacher).sum(-1) / (student.norm(dim=-1) * teacher.norm(dim=-1))
    return Case(says, args=(student, teacher, mask), expected=_close(far[mask.bool()].mean()))


def _teacher(seed=0):
    """A small BERT whose every number matters."""
    bert = Bert(BertConfig(11, d_model=6, num_layers=3, num_heads=2, d_ff=10, max_len=8, dropout=0.0, attention_dropout=0.0)).double().eval()
    with torch.no_grad():
        for k, parameter in enumerate(bert.parameters()):
            parameter.copy_(0.5 * _draw(*parameter.shape, seed=100 * seed + k))
    return bert


_IDS = torch.tensor([[2, 7, 4, 10, 3], [2, 9, 9, 3, 0]])
_MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])


def _folds(seed):
    def holds(fold_segment):
        bert = _teacher(seed)
        student = fold_segment(bert)
        with torch.no_grad():
            return isinstance(student, DistilBert) and torch.allclose(student.eval()(_IDS, _MASK), bert(_IDS, _MASK)[0], atol=1e-9)
    return holds


def _leaves_the_teacher(fold_segment):
    bert = _teacher(2)
    with torch.no_grad():
        before = bert(_IDS, _MASK)[0]
        fold_segment(bert)
        return torch.equal(bert(_IDS, _MASK)[0], before)


def _has_all_layers(fold_segment):
    student = fold_segment(_teacher(3))
    return len(student.encoder.layers) == 3 and student.embeddings.segment is None


def _no_gradient_at_padding(cosine_loss):
    student, mask = _draw(2, 3, 4).requires_grad_(), torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    gradient = torch.autograd.grad(cosine_loss(student, _draw(2, 3, 4, seed=1), mask), student)[0]
    return bool((gradient[~mask] == 0).all()) and bool((gradient[mask] != 0).any())


def _no_gradient_for_the_teacher(cosine_loss):
    student, teacher = _draw(1, 3, 4).requires_grad_(), _draw(1, 3, 4, seed=1).requires_grad_()
    cosine_loss(student, teacher, torch.ones(1, 3, dtype=torch.bool)).backward()
    return teacher.grad is None or not teacher.grad.any()


_SMALL = {"vocab_size": 50, "d_model": 6, "num_layers": 4, "num_heads": 2, "d_ff": 10, "max_len": 9}

EXERCISES = {
    "41.by-hand": [
        Case("the first is the divergence of Q from P, in nats", expected=lambda answer: abs(float(answer[0]) - math.log(2) / 2) < 2e-3),
        Case("the second asks what Q holds possible and P does not", expected=lambda answer: float(answer[1]) == math.inf),
        Case("there are two numbers", expected=lambda answer: len(answer) == 2),
    ],
    "41.size": [
        _size_case("the sizes of BERT-Base and 6 layers make DistilBERT, 66,362,880", {}, 6),
        _size_case("one layer of a small model", _SMALL, 1),
        _size_case("three layers of it", _SMALL, 3),
        _size_case("another inner width", {**_SMALL, "d_ff": 7}, 2),
        _size_case("longer texts", {**_SMALL, "max_len": 20}, 2),
        _size_case("the teacher's pooler and segments do not count", {**_SMALL, "num_segments": 5}, 2),
    ],
    "41.js": [
        _js_case("[0.5, 0.5] and [0.9, 0.1]", [0.5, 0.5], [0.9, 0.1]),
        _js_case("the other way round it is the same", [0.9, 0.1], [0.5, 0.5]),
        _js_case("distributions that have nothing in common are log 2 apart", [1.0, 0.0, 0.0], [0.0, 0.3, 0.7]),
        _js_case("equal ones 0", [0.2, 0.8], [0.2, 0.8]),
        _js_case("there may be more dimensions in front", _draw(2, 3, 5).softmax(-1), _draw(2, 3, 5, seed=1).softmax(-1)),
    ],
    "41.cosine": [
        _cosine_case("two texts without padding", _draw(2, 3, 5), _draw(2, 3, 5, seed=1), torch.ones(2, 3, dtype=torch.bool)),
        _cosine_case("padding does not count", _draw(2, 4, 5, seed=2), _draw(2, 4, 5, seed=3), torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]).bool()),
        _cosine_case("the length of a vector does not count", 7 * _draw(1, 2, 3, seed=4), _draw(1, 2, 3, seed=5), torch.ones(1, 2, dtype=torch.bool)),
        Case("equal vectors are 0 apart", args=(_draw(1, 2, 3), _draw(1, 2, 3), torch.ones(1, 2, dtype=torch.bool)), expected=_close(0.0)),
        Case("the gradient of the student at padding is 0", expected=_no_gradient_at_padding),
        Case("and the teacher gets none", expected=_no_gradient_for_the_teacher),
    ],
    "41.fold": [
        Case("the student has all of the teacher's layers and no segments", expected=_has_all_layers),
        Case("on single texts it gives what the teacher gives", expected=_folds(0)),
        Case("so it does with other weights", expected=_folds(1)),
        Case("the teacher stays as it was", expected=_leaves_the_teacher),
    ],
}
