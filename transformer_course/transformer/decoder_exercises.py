"""What right answers to the exercises of chapter 24 must satisfy."""
import torch

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _aligned_case(says, weights, source_mask, expected):
    return Case(says, args=(torch.tensor(weights), torch.tensor(source_mask)), expected=expected)


def _attention(seed=0):
    from transformer_course.attention.multi_head_attention import MultiHeadAttention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        attention = MultiHeadAttention(6, 3).double()
        torch.nn.init.normal_(attention.value.bias)
    return attention


def _draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _agrees(q_len, masked):
    """Whether the function gives what the attention gives, for q_len targets and a source of 4."""
    def holds(read_once):
        attention, context, x = _attention(), _draw(2, 4, 6), _draw(2, q_len, 6, seed=1)
        mask = torch.tensor([[True, True, False, False], [True, True, True, False]])[:, None, None] if masked else None
        look = read_once(attention, context)
        return torch.allclose(look(x, mask), attention(x, context=context, mask=mask), atol=1e-9)
    return holds


def _projects_once(read_once):
    """Whether keys and values are projected once, however often the function is called."""
    attention, counts = _attention(), {"key": 0, "value": 0, "query": 0}

    def count(name):
        def hook(*call):
            counts[name] += 1
        return hook
    for name in counts:
        getattr(attention, name).register_forward_hook(count(name))
    look = read_once(attention, _draw(2, 4, 6))
    for seed in range(3):
        look(_draw(2, 1, 6, seed=seed), None)
    return counts == {"key": 1, "value": 1, "query": 3}


EXERCISES = {
    "24.parameters": [Case("six times two attentions of 1,050,624, a network of 2,099,712 and three norms of 1,024", expected=25_224_192)],
    "24.aligned": [
        _aligned_case("the largest weight counts", [[[[0.1, 0.7, 0.2], [0.6, 0.3, 0.1]]]], [[True, True, True]], [[1, 0]]),
        _aligned_case("heads are averaged before the largest is taken", [[[[0.5, 0.4, 0.1]], [[0.1, 0.4, 0.5]]]], [[True, True, True]], [[1]]),
        _aligned_case("padding is never chosen", [[[[0.1, 0.2, 0.7]]]], [[True, True, False]], [[1]]),
        _aligned_case("each sentence has its own padding", [[[[0.2, 0.3, 0.5]]], [[[0.2, 0.3, 0.5]]]],
                      [[True, False, False], [True, True, True]], [[0], [2]]),
    ],
    "24.read-once": [
        Case("three target tokens at once", expected=_agrees(3, False)),
        Case("one at a time", expected=_agrees(1, False)),
        Case("the mask is used", expected=_agrees(2, True)),
        Case("keys and values are computed once, queries each time", expected=_projects_once),
    ],
}
