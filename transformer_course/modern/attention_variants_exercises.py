"""What right answers to the exercises of chapter 31 must satisfy."""
import torch
from torch import nn

from transformer_course.attention.masks import causal_mask
from transformer_course.attention.multi_head_attention import MultiHeadAttention
from transformer_course.modern.attention_variants import GroupedQueryAttention
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _seen_from(query, *keys):
    """Whether a mask lets this query see these keys and no others."""
    return lambda mask: mask[query].nonzero().flatten().tolist() == list(keys)


def _is_boolean(length):
    return lambda mask: mask.dtype == torch.bool and mask.shape == (length, length)


def _grouped(num_heads, num_kv_heads, seed=0, dtype=torch.float64, training=True, **more):
    """A grouped attention whose biases, if it has some, are not 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        attention = GroupedQueryAttention(12, num_heads, num_kv_heads, **more).to(dtype)
        if attention.query.bias is not None:
            for layer in (attention.query, attention.key, attention.value, attention.output):
                nn.init.normal_(layer.bias)
    return attention.train(training)


def _turned(x, start):
    return x * torch.arange(start + 1, start + 1 + x.shape[2], dtype=x.dtype)[:, None].cos()


def _gives_the_same(*sizes, **more):
    def holds(to_multi_head):
        attention, x = _grouped(*sizes, **more), torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1)).double()
        own = to_multi_head(attention)
        mask = causal_mask(5)
        with torch.no_grad():
            return torch.allclose(own.double()(x, mask=mask), attention.double()(x, mask=mask), atol=1e-6)
    return holds


def _is_multi_head(to_multi_head):
    own = to_multi_head(_grouped(6, 2))
    return isinstance(own, MultiHeadAttention) and own.num_kv_heads == own.num_heads == 6 and own.key.weight.shape == (12, 12)


def _keeps_settings(to_multi_head):
    own = to_multi_head(_grouped(6, 2, dropout=0.3, training=False, dtype=torch.float32))
    return own.dropout == 0.3 and not own.training and own.key.weight.dtype == torch.float32


def _leaves_it_alone(to_multi_head):
    attention = _grouped(6, 2)
    before = {name: number.clone() for name, number in attention.state_dict().items()}
    own = to_multi_head(attention)
    with torch.no_grad():
        for number in own.parameters():
            number.zero_()
    after = attention.state_dict()
    return attention.num_kv_heads == 2 and before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


EXERCISES = {
    "31.layers": [Case("1 + L (w - 1) is at least 131,072 for the first time", expected=33)],
    "31.field": [
        Case("one layer with a window of 4 sees four positions", args=([4], 100), expected=4),
        Case("each layer adds its window less one", args=([4, 4, 4], 100), expected=10),
        Case("windows may differ", args=([3, 8], 100), expected=10),
        Case("a layer with a window of 1 adds nothing", args=([1, 1, 5], 100), expected=5),
        Case("no layer sees the token itself", args=([], 100), expected=1),
        Case("there is no more than the text", args=([60, 60], 100), expected=100),
        Case("one layer of full attention sees all", args=([4, None, 4], 100), expected=100),
    ],
    "31.dilated": [
        Case("the mask is boolean, (length, length)", args=(7, 3, 2), expected=_is_boolean(7)),
        Case("with window 3 and dilation 2, position 6 sees 2, 4 and 6", args=(9, 3, 2), expected=_seen_from(6, 2, 4, 6)),
        Case("position 3 sees only what is there", args=(9, 3, 2), expected=_seen_from(3, 1, 3)),
        Case("the last of 12 with window 4 and dilation 3 sees 2, 5, 8 and 11", args=(12, 4, 3), expected=_seen_from(11, 2, 5, 8, 11)),
        Case("dilation 1 is the plain window", args=(6, 3, 1), expected=_seen_from(4, 2, 3, 4)),
        Case("a window of 1 sees itself, whatever the dilation", args=(6, 1, 4), expected=_seen_from(5, 5)),
    ],
    "31.multi-head": [
        Case("it is a MultiHeadAttention with as many heads of keys as of queries", expected=_is_multi_head),
        Case("six heads in two groups give the same", expected=_gives_the_same(6, 2)),
        Case("six heads with one head of keys give the same", expected=_gives_the_same(6, 1)),
        Case("it works without biases", expected=_gives_the_same(6, 3, bias=False)),
        Case("head_dim and scale are kept", expected=_gives_the_same(4, 2, head_dim=5, scale=0.7)),
        Case("rotate is kept", expected=_gives_the_same(4, 2, rotate=_turned)),
        Case("dropout, dtype and mode are kept", expected=_keeps_settings),
        Case("the given attention does not change, not even when yours does", expected=_leaves_it_alone),
    ],
}
