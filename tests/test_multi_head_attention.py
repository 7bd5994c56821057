"""Multi-head attention: equal to torch's in values, weights and gradients; known faults; what later chapters plug in; what it refuses."""
import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from speed import interleaved
from torch import nn
from torch.nn import functional as F

from transformer_course.attention._projections import joined, project, put_together
from transformer_course.attention import MultiHeadAttention, merge_heads, record_attention, split_heads, xavier_init
from transformer_course.attention.multi_head_attention import Cache
from transformer_course.attention.masks import causal_mask
from transformer_course.toolbox.exercises import check
from transformer_course.toolbox.training_loop import adamw, fit

MODULE = "transformer_course.attention.multi_head_attention"


# Plausible answers that are wrong, for each exercise that is checked.

def _moved(order=(0, 1, 2), transpose=False, bias=True, output=True, shared=False, interleaved_rows=False, keep_dropout=True):
    """An answer to 19.from-torch with something wrong."""
    def from_torch(theirs):
        has_bias = theirs.in_proj_bias is not None
        ours = MultiHeadAttention(theirs.embed_dim, theirs.num_heads, theirs.dropout if keep_dropout else 0.0, has_bias)
        ours = ours.to(theirs.in_proj_weight)
        layers, weight = (ours.query, ours.key, ours.value), theirs.in_proj_weight
        parts = [weight[i::3] for i in range(3)] if interleaved_rows else weight.chunk(3)
        with torch.no_grad():
            for layer, part in zip(layers, (parts[i] for i in order)):
                layer.weight.copy_(part.T if transpose else part)
            if output:
                ours.output.weight.copy_(theirs.out_proj.weight)
            if has_bias and bias:
                for layer, part in zip(layers, (theirs.in_proj_bias.chunk(3)[i] for i in order)):
                    layer.bias.copy_(part)
                ours.output.bias.copy_(theirs.out_proj.bias)
        if shared:
            ours.output = theirs.out_proj
        return ours
    return from_torch


def _writes(rows=True, order="hkd,ehk->hde", flat=False):
    """An answer to 19.sum-of-heads with something wrong."""
    def what_heads_write(attention):
        h, width = attention.num_heads, attention.output.weight.shape[1]
        if flat:
            return (attention.value.weight.T @ attention.output.weight.T)[None].repeat(h, 1, 1) / h
        value = attention.value.weight
        read = value.unflatten(0, (h, -1)) if rows else value.unflatten(0, (-1, h)).transpose(0, 1)
        write = attention.output.weight.unflatten(1, (h, width // h))
        return torch.einsum(order, read, write)
    return what_heads_write


def _removed(columns=True, interleaved_rows=False, bias=True, settings=True, in_place=False, zero=False):
    """An answer to 19.remove-heads with something wrong."""
    def remove_heads(attention, heads):
        d_model, width = attention.output.weight.shape
        h, k = attention.num_heads, width // attention.num_heads
        kept = [i for i in range(h) if i not in heads]
        if zero:
            smaller = copy.deepcopy(attention)
            with torch.no_grad():
                for i in heads:
                    smaller.output.weight.view(d_model, h, k)[:, i] = 0
            return smaller
        rows = torch.tensor([j * h + i if interleaved_rows else i * k + j for i in kept for j in range(k)])
        more = {"head_dim": k, "scale": attention.scale} if settings else {"head_dim": k}
        has_bias = attention.query.bias is not None
        smaller = MultiHeadAttention(d_model, len(kept), bias=has_bias, **more).to(attention.output.weight)
        with torch.no_grad():
            for name in ("query", "key", "value"):
                new, old = getattr(smaller, name), getattr(attention, name)
                new.weight.copy_(old.weight[rows])
                if has_bias and bias:
                    new.bias.copy_(old.bias[rows])
            smaller.output.weight.copy_(attention.output.weight[:, rows if columns else torch.arange(len(rows))])
            if has_bias:
                smaller.output.bias.copy_(attention.output.bias)
        if in_place:
            attention.output.bias = smaller.output.bias
        return smaller
    return remove_heads


WRONG = [
    ("19.parameters", [(4_194_304, 4_194_304), (67_108_864, 67_108_864), (3 * 1024 * 16384 + 1024 * 1024, 4_194_304),
                       (67_108_864 + 3 * 16384 + 1024, 4_194_304 + 4096)]),
    ("19.from-torch", [_moved(order=(1, 0, 2)), _moved(transpose=True), _moved(bias=False), _moved(output=False), _moved(shared=True),
                       _moved(interleaved_rows=True), _moved(keep_dropout=False)]),
    ("19.sum-of-heads", [_writes(rows=False), _writes(order="hkd,ehk->hed"), _writes(flat=True)]),
    ("19.remove-heads", [_removed(columns=False), _removed(interleaved_rows=True), _removed(bias=False), _removed(settings=False),
                         _removed(zero=True), _removed(in_place=True), lambda attention, heads: attention]),
]


@pytest.mark.parametrize("exercise, answer", [(name, answer) for name, answers in WRONG for answer in answers])
def test_wrong_answers_are_rejected(exercise, answer):
    assert not check(exercise, answer)


# Agreement with torch ----------------------------------------------------------------------------------------------

def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def copy_to_ours(theirs, ours):
    layers = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        for layer, weight in zip(layers, theirs.in_proj_weight.chunk(3)):
            layer.weight.copy_(weight)
        ours.output.weight.copy_(theirs.out_proj.weight)
        if theirs.in_proj_bias is not None:
            for layer, bias in zip(layers, theirs.in_proj_bias.chunk(3)):
                layer.bias.copy_(bias)
            ours.output.bias.copy_(theirs.out_proj.bias)


def copy_to_torch(ours, theirs):
    layers = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([layer.weight for layer in layers]))
        theirs.out_proj.weight.copy_(ours.output.weight)
        if theirs.in_proj_bias is not None:
            theirs.in_proj_bias.copy_(torch.cat([layer.bias for layer in layers]))
            theirs.out_proj.bias.copy_(ours.output.bias)


def pair(d_model, num_heads, bias=True, dtype=torch.float64, seed=0, into_ours=True, **more):
    """torch's module and ours with the same weights, biases that are not 0, copied one way or the other."""
    theirs = nn.MultiheadAttention(d_model, num_heads, bias=bias, batch_first=True, dtype=torch.float64, **more)
    ours = MultiHeadAttention(d_model, num_heads, bias=bias, **more).double()
    with torch.no_grad():
        for i, parameter in enumerate((theirs if into_ours else ours).parameters()):
            parameter.copy_(randn(*parameter.shape, seed=100 * seed + i) * d_model ** -0.5)
    copy_to_ours(theirs, ours) if into_ours else copy_to_torch(ours, theirs)
    return theirs.to(dtype), ours.to(dtype)


def their_mask(mask, bias, batch, heads, q_len, k_len):
    """Our mask and bias as torch takes them: True hides, heads and batch in one axis, numbers and -inf where there is a bias."""
    shape = batch, heads, q_len, k_len
    if bias is not None:
        hidden = 0.0 if mask is None else torch.zeros(shape).double().masked_fill(~mask.expand(shape), -math.inf)
        return (bias.expand(shape) + hidden).reshape(batch * heads, q_len, k_len)
    return None if mask is None else ~mask.expand(shape).reshape(batch * heads, q_len, k_len)


def their_weights(theirs):
    return [p for p in (theirs.in_proj_weight, theirs.in_proj_bias, theirs.out_proj.weight, theirs.out_proj.bias) if p is not None]


def our_weights(ours, grads):
    """Our gradients in their packing."""
    at = {id(p): g for p, g in zip(ours.parameters(), grads)}
    layers, kinds = (ours.query, ours.key, ours.value), ["weight"] + ["bias"] * (ours.query.bias is not None)
    stacked = [torch.cat([at[id(getattr(layer, kind))] for layer in layers]) for kind in kinds]
    return [*stacked, *(at[id(getattr(ours.output, kind))] for kind in kinds)]


@given(st.data())
def test_equals_torch(parity, data):
    """Values, weights of each head, and all gradients; self- and cross-attention, masks of every shape, biases, no biases."""
    d_model, heads = data.draw(st.sampled_from([(15, 3), (15, 5), (7, 7), (5, 1), (6, 2)]))
    batch, q_len, k_len = (data.draw(st.integers(1, top)) for top in (3, 5, 6))
    has_bias, cross, seed = data.draw(st.booleans()), data.draw(st.booleans()), data.draw(st.integers(0, 999))
    theirs, ours = pair(d_model, heads, has_bias, seed=seed, into_ours=data.draw(st.booleans()))
    x = randn(batch, q_len, d_model, seed=seed + 1).requires_grad_()
    context = randn(batch, k_len, d_model, seed=seed + 2).requires_grad_() if cross else None
    source, leaves = (context, [x, context]) if cross else (x, [x])
    k_len = source.shape[1]
    mask = bias = None
    if shape := data.draw(st.sampled_from([None, (q_len, k_len), (1, 1, q_len, k_len), (batch, 1, 1, k_len), (batch, heads, q_len, k_len)])):
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
        mask[..., 0] = True   # torch gives NaN where a query may look nowhere
    if shape := data.draw(st.sampled_from([None, (q_len, k_len), (heads, q_len, k_len), (batch, heads, q_len, k_len)])):
        bias = randn(*shape, seed=seed + 3).requires_grad_()
        leaves = [*leaves, bias]
    with record_attention(ours) as seen:
        ours(x, context, mask, bias)
    output = ours(x, context, mask, bias)
    expected, weights = theirs(x, source, source, attn_mask=their_mask(mask, bias, batch, heads, q_len, k_len),
                               need_weights=True, average_attn_weights=False)
    along = randn(*output.shape, seed=seed + 4)
    grads = torch.autograd.grad((output * along).sum(), [*leaves, *ours.parameters()])
    wanted = torch.autograd.grad((expected * along).sum(), [*leaves, *their_weights(theirs)])
    grads = [*grads[:len(leaves)], *our_weights(ours, grads[len(leaves):])]
    assert len(grads) == len(wanted)
    pairs = [(output, expected), (seen[""][0], weights), *zip(grads, wanted)]
    parity(f"{MODULE}.MultiHeadAttention", "torch", max((a - b).abs().max().item() for a, b in pairs), 1e-12,
           "values, weights of each head, gradients: self and cross, masks, additive biases, with and without biases, odd sizes, float64")


@pytest.mark.parametrize("fast", [True, False])
def test_base_size_in_float32(parity, fast):
    """At 512/8 with padding, torch's fast path on and off."""
    theirs, ours = (module.eval() for module in pair(512, 8, dtype=torch.float32))
    x, lengths = randn(3, 20, 512, dtype=torch.float32), torch.tensor([20, 7, 1])
    real = torch.arange(20) < lengths[:, None]
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        with torch.no_grad():
            expected = theirs(x, x, x, key_padding_mask=~real, need_weights=False)[0]
            output = ours(x, mask=real[:, None, None])
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    parity(f"{MODULE}.MultiHeadAttention", "torch", (output - expected)[real].abs().max().item(), 2e-6,
           "512 wide, 8 heads, padding, float32")


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.03), (torch.float16, 0.004)])
def test_half_precision(dtype, tolerance):
    """Finite, near the exact values, zeros where nothing can be seen, for large inputs too, with and without the weights."""
    _, exact = pair(64, 4)
    ours, x = copy.deepcopy(exact).to(dtype), randn(2, 9, 64, dtype=dtype)
    mask = causal_mask(9)[None, None].repeat(2, 1, 1, 1)
    mask[1, 0, 4] = False
    for recording in (False, True):
        if recording:
            with record_attention(ours) as seen:
                output = ours(x, mask=mask)
            assert seen[""][0].dtype == dtype and (seen[""][0][1, :, 4] == 0).all()
        else:
            output = ours(x, mask=mask)
        assert output.dtype == dtype and (output - exact(x.double(), mask=mask)).abs().max() < tolerance
        assert torch.equal(output[1, 4], ours.output.bias)
    big = ours(100 * x, mask=mask)
    big.float().sum().backward()
    assert torch.isfinite(big).all() and all(torch.isfinite(p.grad).all() for p in ours.parameters())


def test_autocast():
    ours, x = MultiHeadAttention(12, 3), torch.randn(2, 5, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = ours(x, mask=causal_mask(5))
        assert ours(x.bfloat16()).dtype == output.dtype == torch.bfloat16
    assert (output - ours(x, mask=causal_mask(5))).abs().max() < 0.05


@given(st.integers(1, 3), st.integers(1, 4), st.booleans(), st.integers(0, 99))
def test_a_query_that_may_look_nowhere(batch, length, recording, seed):
    """Zeros before the output projection, finite gradients everywhere, none to what was hidden; with a bias as well."""
    _, ours = pair(15, 5, seed=seed)
    x = randn(batch, length, 15, seed=seed).requires_grad_()
    mask = torch.rand(batch, 1, length, length, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask[-1, 0, -1] = False
    for bias in (None, randn(5, length, length, seed=seed).requires_grad_()):
        if recording:
            with record_attention(ours) as seen:
                output = ours(x, mask=mask, bias=bias)
            assert (seen[""][0][-1, :, -1] == 0).all()
        else:
            output = ours(x, mask=mask, bias=bias)
        assert torch.allclose(output[-1, -1], ours.output.bias, atol=1e-14)
        for leaf in torch.autograd.grad(output.sum(), [x, *ours.parameters()]):
            assert torch.isfinite(leaf).all()


# Known faults --------------------------------------------------------------------------------------------------------

def attention_from_parts(split=split_heads, merge=merge_heads, scale=lambda d_model, head_dim: head_dim ** -0.5,
                         transpose=lambda k: k.transpose(-2, -1), hide=lambda s, m: s.masked_fill(~m, -math.inf), turn_mask=lambda m: m,
                         drop=lambda module: module.dropout if module.training else 0.0, axis=-1, project=lambda module: module.output):
    """Multi-head attention in which one part can be exchanged for a faulty one."""
    def run(module, x, context, mask):
        query, key, value = (split(layer(y), module.num_heads) for layer, y in (
            (module.query, x), (module.key, context), (module.value, context)))
        scores = query @ transpose(key) * scale(x.shape[-1], query.shape[-1])
        weights = F.dropout(hide(scores, turn_mask(mask)).softmax(axis).nan_to_num(), drop(module))
        return project(module)(merge(weights @ value))
    return run


def agrees_with_torch(run):
    """Whether self- and cross-attention of several heads, in eval mode, with padding, give what torch gives."""
    theirs, ours = (module.eval() for module in pair(6, 3, dropout=0.5))
    x = randn(2, 5, 6, seed=1)
    real = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    for context, mask in ((x, real[:, None, None]), (randn(2, 7, 6, seed=2), torch.ones(1, 1, 1, 7, dtype=torch.bool)),
                          (x, causal_mask(5)[None, None])):
        expected = theirs(x, context, context, attn_mask=their_mask(mask, None, 2, 3, 5, context.shape[1]), need_weights=False)[0]
        output = run(ours, x, context, mask)
        if output.shape != expected.shape or not torch.allclose(output, expected, atol=1e-10):
            return False
    return True


MUTANTS = {
    "split by view": dict(split=lambda x, h: x.reshape(len(x), h, x.shape[1], -1)),
    "merged by view": dict(merge=lambda x: x.reshape(len(x), x.shape[2], -1)),
    "split and merged by view": dict(split=lambda x, h: x.reshape(len(x), h, x.shape[1], -1), merge=lambda x: x.reshape(len(x), x.shape[2], -1)),
    "heads interleaved": dict(split=lambda x, h: x.unflatten(-1, (-1, h)).permute(0, 3, 1, 2)),
    "scaled by sqrt(d_model)": dict(scale=lambda d_model, head_dim: d_model ** -0.5),
    "not scaled": dict(scale=lambda d_model, head_dim: 1.0),
    "scaled by head_dim": dict(scale=lambda d_model, head_dim: 1 / head_dim),
    "keys transposed by view": dict(transpose=lambda k: k.reshape(*k.shape[:2], k.shape[3], k.shape[2])),
    "mask of -1e-12": dict(hide=lambda s, m: s.masked_fill(~m, -1e-12)),
    "mask of the smallest normal number": dict(hide=lambda s, m: s.masked_fill(~m, torch.finfo(s.dtype).tiny)),
    "mask upside down": dict(turn_mask=lambda m: ~m),
    "padding on the query axis": dict(turn_mask=lambda m: m.transpose(-2, -1) if m.shape[-2] == 1 and m.shape[0] > 1 else m),
    "dropout in eval": dict(drop=lambda module: module.dropout),
    "softmax over the queries": dict(axis=-2),
    "no output projection": dict(project=lambda module: nn.Identity()),
}


def test_the_module_agrees():
    assert agrees_with_torch(lambda module, x, context, mask: module(x, context, mask))
    assert agrees_with_torch(attention_from_parts())


@pytest.mark.parametrize("parts", MUTANTS.values(), ids=MUTANTS)
def test_faults_are_caught(parts):
    torch.manual_seed(0)
    assert not agrees_with_torch(attention_from_parts(**parts))


# Properties ----------------------------------------------------------------------------------------------------------

@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_split_and_merge_are_inverse(heads, length, head_dim, batch):
    x = randn(batch, length, heads * head_dim)
    parts = split_heads(x, heads)
    assert parts.shape == (batch, heads, length, head_dim) and torch.equal(merge_heads(parts), x)
    for head in range(heads):
        assert torch.equal(parts[:, head], x[..., head * head_dim:(head + 1) * head_dim])


def test_no_order_without_positions():
    _, ours = pair(15, 3)
    x, order = randn(2, 6, 15), torch.randperm(6, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(ours(x[:, order]), ours(x)[:, order], atol=1e-12)
    assert torch.allclose(ours(x, context=x[:, order]), ours(x), atol=1e-12)


def test_masked_tokens_have_no_influence():
    _, ours = pair(15, 3)
    x = randn(1, 5, 15).requires_grad_()
    for query in range(5):
        grad, = torch.autograd.grad(ours(x, mask=causal_mask(5))[0, query].sum(), x)
        assert (grad[0, query + 1:] == 0).all() and (grad[0, :query + 1].abs().amax(dim=-1) > 0).all()


def test_a_head_has_its_own_mask_and_bias():
    _, ours = pair(15, 3)
    x = randn(2, 4, 15)
    mask = torch.ones(1, 3, 4, 4, dtype=torch.bool)
    mask[0, 1] = torch.eye(4, dtype=torch.bool)
    with record_attention(ours) as seen:
        masked = ours(x, mask=mask)
        biased = ours(x, bias=torch.zeros(3, 4, 4).double().masked_fill(~mask[0], -1e4))
        ours(x)
    assert torch.allclose(masked, biased, atol=1e-10)
    hidden, _, free = seen[""]
    assert torch.equal(hidden[:, 1], torch.eye(4).double().expand(2, 4, 4)) and torch.allclose(hidden[:, [0, 2]], free[:, [0, 2]])


def test_context_of_itself_is_self_attention():
    _, ours = pair(6, 2)
    x = randn(2, 4, 6)
    assert torch.equal(ours(x, context=x), ours(x))


def test_dropout_falls_on_weights_and_only_in_training():
    torch.manual_seed(0)
    ours, x = MultiHeadAttention(12, 3, dropout=0.4), torch.randn(1, 30, 12)
    with record_attention(ours) as seen:
        ours(x)
        ours.eval()(x)
    trained, still = seen[""]
    kept = trained != 0
    assert 0.55 < kept.float().mean() < 0.65
    assert torch.allclose(trained[kept], still[kept] / 0.6, rtol=1e-4)
    assert torch.equal(ours(x), ours(x)) and not torch.equal(ours.train()(x), ours(x))


# What later chapters plug in -----------------------------------------------------------------------------------------

class ListCache:
    """The least that is a cache."""
    def __init__(self):
        self.keys, self.values, self.length = [], [], 0

    def update(self, key, value):
        self.keys.append(key)
        self.values.append(value)
        self.length += key.shape[2]
        return torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)


class WindowCache(ListCache):
    """Gives only the last few positions."""
    def update(self, key, value):
        return tuple(part[:, :, -3:] for part in super().update(key, value))


def rotate(x, start):
    """Turn pairs of features by the position: a stand-in for rotary embeddings."""
    angles = (start + torch.arange(x.shape[2], device=x.device, dtype=x.dtype))[:, None] / torch.tensor([1.0, 7.0, 50.0], dtype=x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], dim=-1)


SETTINGS = [{}, {"rotate": rotate}, {"scale": 1.0}, {"head_dim": 6, "rotate": rotate, "scale": 0.3}, {"bias": False}]


def cached_equals_full(ours, steps, bias=None):
    """Whether a text in pieces of these lengths, with a cache, comes out as the whole text under the causal mask."""
    total = sum(steps)
    x, cache, pieces, at = randn(2, total, 12, seed=5), ListCache(), [], 0
    for n in steps:
        part = None if bias is None else bias[:, at:at + n, :at + n]
        pieces.append(ours(x[:, at:at + n], mask=causal_mask(n, at + n), bias=part, cache=cache))
        at += n
    assert cache.length == total
    return torch.allclose(torch.cat(pieces, dim=1), ours(x, mask=causal_mask(total), bias=bias), atol=1e-12)


@pytest.mark.parametrize("more", SETTINGS)
@pytest.mark.parametrize("steps", [[1] * 6, [4, 1, 1], [2, 3], [6]])
def test_cached_equals_full(more, steps):
    torch.manual_seed(0)
    ours = MultiHeadAttention(12, 2, **more).double()
    assert cached_equals_full(ours, steps)
    assert cached_equals_full(ours, steps, bias=randn(2, sum(steps), sum(steps)))


@pytest.mark.parametrize("faulty", [lambda x, start: rotate(x, 0), lambda x, start: rotate(x, start + x.shape[2] % 2)])
def test_a_rotation_that_forgets_the_cached_positions_is_caught(faulty):
    torch.manual_seed(0)
    assert not cached_equals_full(MultiHeadAttention(12, 2, rotate=faulty).double(), [3, 1, 2])


def test_a_cache_may_give_fewer_keys():
    torch.manual_seed(0)
    ours, x, cache = MultiHeadAttention(12, 2).double(), randn(1, 6, 12), WindowCache()
    pieces = torch.cat([ours(x[:, t:t + 1], cache=cache) for t in range(6)], dim=1)
    near = causal_mask(6) & ~causal_mask(6).roll(3, dims=0).tril(-3)
    assert torch.allclose(pieces, ours(x, mask=near), atol=1e-12)


def test_of_masks_and_biases_the_last_columns_count_where_a_cache_gives_fewer_keys():
    torch.manual_seed(0)
    ours, x, cache = MultiHeadAttention(12, 2).double(), randn(1, 6, 12), WindowCache()
    hidden, bias = causal_mask(6) & (torch.arange(6) != 3), randn(2, 6, 6, seed=4)
    pieces = [ours(x[:, t:t + 1], mask=hidden[t:t + 1, :t + 1], bias=bias[:, t:t + 1, :t + 1], cache=cache) for t in range(6)]
    near = causal_mask(6) & ~causal_mask(6).roll(3, dims=0).tril(-3)
    assert torch.allclose(torch.cat(pieces, dim=1), ours(x, mask=near & hidden, bias=bias), atol=1e-12)


def test_keys_of_a_context_are_made_once():
    torch.manual_seed(0)
    ours, x, context, cache = MultiHeadAttention(12, 2).double(), randn(2, 4, 12), randn(2, 7, 12, seed=1), ListCache()
    made = []
    ours.key.register_forward_hook(lambda *call: made.append(1))
    mask = torch.ones(2, 1, 1, 7, dtype=torch.bool).index_fill(3, torch.tensor([5]), False)
    pieces = [ours(x[:, t:t + 1], context=context, mask=mask, cache=cache) for t in range(4)]
    assert len(made) == 1 and cache.length == 7
    assert torch.allclose(torch.cat(pieces, dim=1), ours(x, context=context, mask=mask), atol=1e-12)
    with pytest.raises(ValueError, match="cache holds the keys of 7 positions, but context has 6"):
        ours(x, context=context[:, :6], cache=cache)
    forgetful = WindowCache()
    with pytest.raises(ValueError, match="gives 3 of the 7 positions of context"):
        ours(x, context=context, cache=forgetful)


def test_rotation_depends_on_distance_and_stays_out_of_cross_attention():
    torch.manual_seed(0)
    calls = []

    def watched(x, start):
        calls.append((tuple(x.shape), start))
        return rotate(x, start + 5)

    plain = MultiHeadAttention(12, 2).double()
    moved, turned = copy.deepcopy(plain), copy.deepcopy(plain)
    moved.rotate, turned.rotate = watched, rotate
    x, context = randn(2, 4, 12), randn(2, 6, 12, seed=1)
    assert torch.allclose(moved(x), turned(x), atol=1e-12) and not torch.allclose(turned(x), plain(x))
    assert calls == [((2, 2, 4, 6), 0)] * 2
    assert torch.equal(turned(x, context=context), plain(x, context=context)) and len(calls) == 2


def test_scale_and_head_dim():
    torch.manual_seed(0)
    ours, x = MultiHeadAttention(5, 3, head_dim=4, scale=1.0).double(), randn(2, 4, 5)
    query, key, value = (split_heads(layer(x), 3) for layer in (ours.query, ours.key, ours.value))
    assert query.shape == (2, 3, 4, 4) and ours.output.weight.shape == (5, 12)
    by_hand = ours.output(merge_heads((query @ key.transpose(-2, -1)).softmax(-1) @ value))
    assert torch.allclose(ours(x), by_hand, atol=1e-12)
    ours.scale = None
    by_default = ours.output(merge_heads((query @ key.transpose(-2, -1) / 2).softmax(-1) @ value))
    assert torch.allclose(ours(x), by_default, atol=1e-12)


def test_a_cache_is_whatever_has_its_members():
    assert isinstance(ListCache(), Cache) and not isinstance([], Cache)


# Watching ------------------------------------------------------------------------------------------------------------

class Foreign(nn.Module):
    """Another kind of attention that takes part: it appends to `recorded` when that is a list."""
    def __init__(self):
        super().__init__()
        self.recorded = None

    def forward(self, x):
        if self.recorded is not None:
            self.recorded.append(torch.ones(1))
        return x


def test_recording_any_model():
    model = nn.ModuleDict({"a": nn.Sequential(MultiHeadAttention(6, 2), nn.ReLU(), Foreign()), "b": MultiHeadAttention(6, 3)}).double()
    x, context = randn(2, 4, 6), randn(2, 7, 6)
    plain = model["b"](model["a"](x), context)
    with record_attention(model) as seen:
        watched = model["b"](model["a"](x), context)
        model["b"](x)
    assert {name: [tuple(w.shape) for w in calls] for name, calls in seen.items()} == {
        "a.0": [(2, 2, 4, 4)], "a.2": [(1,)], "b": [(2, 3, 4, 7), (2, 3, 4, 4)]}
    assert torch.allclose(plain, watched, atol=1e-12)
    assert torch.allclose(seen["b"][0].sum(-1), torch.ones(2, 3, 4).double()) and not seen["b"][0].requires_grad
    model["b"](x)
    assert len(seen["b"]) == 2 and model["b"].recorded is None


def test_recording_costs_nothing_outside(monkeypatch):
    """The readable path, which writes the weights down, is taken only inside the block."""
    from transformer_course.attention import multi_head_attention as chapter
    asked, original = [], chapter.scaled_dot_product_attention
    monkeypatch.setattr(chapter, "scaled_dot_product_attention", lambda *args, return_weights=False: (
        asked.append(return_weights), original(*args, return_weights=return_weights))[1])
    ours, x = MultiHeadAttention(6, 2), torch.randn(1, 3, 6)
    ours(x)
    with record_attention(ours):
        ours(x)
    ours(x)
    assert asked == [False, True, False]


def test_recording_ends_with_an_exception():
    ours = MultiHeadAttention(6, 2)
    with pytest.raises(RuntimeError, match="stop"):
        with record_attention(ours) as seen:
            ours(torch.randn(1, 3, 6))
            raise RuntimeError("stop")
    assert ours.recorded is None and len(seen[""]) == 1


def test_recordings_nest():
    ours = MultiHeadAttention(6, 2)
    with record_attention(ours) as outer:
        ours(torch.randn(1, 3, 6))
        with record_attention(ours) as inner:
            ours(torch.randn(1, 4, 6))
        ours(torch.randn(1, 5, 6))
    assert [w.shape[-1] for w in inner[""]] == [4]
    assert [w.shape[-1] for w in outer[""]] == [3, 4, 5] and ours.recorded is None


def test_gradients_flow_while_watched():
    _, ours = pair(6, 2)
    x = randn(1, 3, 6)
    plain = torch.autograd.grad(ours(x).square().sum(), list(ours.parameters()))
    with record_attention(ours):
        watched = torch.autograd.grad(ours(x).square().sum(), list(ours.parameters()))
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(plain, watched))


# First values --------------------------------------------------------------------------------------------------------

@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_xavier_draws_as_torch(parity, n_in, n_out, seed):
    ours, theirs = nn.Linear(n_in, n_out), torch.empty(n_out, n_in)
    xavier_init(ours, torch.Generator().manual_seed(seed))
    nn.init.xavier_uniform_(theirs, generator=torch.Generator().manual_seed(seed))
    assert (ours.bias == 0).all()
    parity(f"{MODULE}.xavier_init", "torch", (ours.weight - theirs).abs().max().item(), 1e-6, "the same numbers from the same generator, float32")


def test_xavier_leaves_what_is_not_linear():
    model = nn.Sequential(nn.Embedding(5, 6), nn.LayerNorm(6), MultiHeadAttention(6, 2, bias=False), nn.Linear(6, 5).half())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert xavier_init(model, torch.Generator().manual_seed(3)) is model
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"2.query.weight", "2.key.weight", "2.value.weight", "2.output.weight", "3.weight", "3.bias"}
    assert model[3].weight.dtype == torch.float16


def test_a_new_module_is_drawn_by_xavier():
    ours = MultiHeadAttention(64, 4)
    assert all((layer.bias == 0).all() for layer in (ours.query, ours.key, ours.value, ours.output))
    bound = math.sqrt(6 / 128)
    assert all(0.98 * bound < layer.weight.abs().max() <= bound for layer in (ours.query, ours.key, ours.value, ours.output))


def test_meta_device():
    with torch.device("meta"):
        ours = MultiHeadAttention(12, 3)
        assert ours(torch.zeros(2, 5, 12), mask=causal_mask(5, device="meta")).shape == (2, 5, 12)
    assert all(p.is_meta for p in xavier_init(ours).parameters())


def test_state_dict_and_copies():
    _, ours = pair(15, 3)
    x, other = randn(2, 4, 15), MultiHeadAttention(15, 3).double()
    other.load_state_dict(ours.state_dict())
    assert list(ours.state_dict()) == [f"{layer}.{kind}" for layer in ("query", "key", "value", "output") for kind in ("weight", "bias")]
    for twin in (other, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(twin(x), ours(x))


# What it refuses -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("error, says, args, more", [
    (ValueError, r"num_heads \(7\) must divide d_model \(512\)", (512, 7), {}),
    (ValueError, "num_heads", (12, 0), {}), (ValueError, "num_heads", (12, 2.0), {}), (ValueError, "d_model", (0, 1), {}),
    (ValueError, "num_heads", (12, True), {}), (ValueError, "head_dim", (12, 3), {"head_dim": 0}), (ValueError, "dropout", (12, 3, 1.0), {}),
    (ValueError, "dropout", (12, 3, -0.1), {}), (ValueError, "dropout", (12, 3, None), {}), (ValueError, "dropout", (12, 3, math.nan), {}),
    (ValueError, "scale", (12, 3), {"scale": math.inf}), (ValueError, "scale", (12, 3), {"scale": math.nan}),
    (ValueError, "scale", (12, 3), {"scale": "1"}), (TypeError, "rotate", (12, 3), {"rotate": 1.0}),
    (TypeError, r"bias \(None\) must be True or False", (12, 3), {"bias": None}), (TypeError, "bias", (12, 3), {"bias": "no"}),
])
def test_wrong_settings(unchecked, error, says, args, more):
    with pytest.raises(error, match=says):
        MultiHeadAttention(*args, **more)


def test_head_dim_frees_num_heads():
    assert MultiHeadAttention(12, 7, head_dim=5)(torch.randn(1, 3, 12)).shape == (1, 3, 12)


X = torch.zeros(2, 4, 6)


@pytest.mark.parametrize("error, says, args", [
    (TypeError, "x must be a tensor", {"x": [[1.0]]}), (ValueError, r"x must have shape .* d_model 6", {"x": X[0]}),
    (ValueError, r"x must have shape .* d_model 6", {"x": torch.zeros(2, 4, 5)}), (ValueError, "x has dtype", {"x": X.double()}),
    (ValueError, "x has dtype", {"x": X.long()}), (TypeError, "context must be a tensor", {"context": 3}),
    (ValueError, "context must have shape", {"context": torch.zeros(2, 4, 7)}), (ValueError, "context has a batch of 3", {"context": torch.zeros(3, 4, 6)}),
    (ValueError, "context has dtype", {"context": X.double()}), (ValueError, "x is on meta, but the weights are on cpu", {"x": X.to("meta")}),
    (ValueError, "context is on meta, but the weights are on cpu", {"context": X.to("meta")}),
    (TypeError, "mask must be a boolean tensor, .*float32.* bias", {"mask": torch.ones(4, 4)}), (TypeError, "mask must be", {"mask": [[True]]}),
    (TypeError, "mask must be .*int64", {"mask": torch.ones(4, 4, dtype=torch.int64)}),
    (ValueError, r"3 dimensions would be read as \(heads, q_len, k_len\)", {"mask": torch.ones(2, 4, 4, dtype=torch.bool)}),
    (ValueError, "mask must have 2 or 4", {"mask": torch.ones(4, dtype=torch.bool)}),
    (ValueError, "mask must have .*broadcast", {"mask": torch.ones(4, 5, dtype=torch.bool)}),
    (ValueError, "mask must have .*broadcast", {"mask": torch.ones(2, 3, 4, 4, dtype=torch.bool)}),
    (ValueError, "mask must have .*broadcast", {"mask": torch.ones(3, 1, 1, 4, dtype=torch.bool)}),
    (ValueError, "mask must have .*broadcast", {"mask": torch.ones(4, 4, dtype=torch.bool), "context": torch.zeros(2, 5, 6)}),
    (ValueError, "mask must have 2 or 4", {"mask": torch.ones(1, 1, 1, 4, 4, dtype=torch.bool)}),
    (TypeError, "bias must be a tensor of floating-point", {"bias": torch.ones(4, 4, dtype=torch.bool)}), (TypeError, "bias must be", {"bias": 1.0}),
    (ValueError, "bias must have .*broadcast", {"bias": torch.zeros(5, 4)}), (ValueError, "bias must have .*broadcast", {"bias": torch.zeros(3, 4, 4)}),
    (TypeError, "cache must have a length", {"cache": []}), (ValueError, "mask must have .*broadcast", {"mask": torch.ones(4, 5, dtype=torch.bool), "cache": ListCache()}),
])
def test_wrong_calls(unchecked, error, says, args):
    with pytest.raises(error, match=says):
        MultiHeadAttention(6, 2)(**{"x": X, **args})


def test_a_wrong_mask_leaves_the_cache_alone(unchecked):
    cache = ListCache()
    for mask in (torch.ones(2, 4, 4, dtype=torch.bool), torch.ones(5, 4, dtype=torch.bool), torch.ones(4, 4)):
        with pytest.raises((ValueError, TypeError), match="mask"):
            MultiHeadAttention(6, 2)(X, mask=mask, cache=cache)
    assert cache.length == 0


@pytest.mark.parametrize("call, error, says", [
    (lambda: split_heads(torch.zeros(2, 3, 7), 2), ValueError, r"num_heads \(2\)"), (lambda: split_heads(torch.zeros(3, 6), 2), ValueError, "x must"),
    (lambda: split_heads(X, 0), ValueError, "num_heads"), (lambda: merge_heads(X), ValueError, "x must"),
    (lambda: split_heads(np.zeros((2, 3, 4)), 2), TypeError, "x must be a tensor, not ndarray"),
    (lambda: merge_heads(None), TypeError, "x must be a tensor, not NoneType"),
    (lambda: xavier_init(torch.zeros(3, 3)), TypeError, "module must"), (lambda: record_attention([]).__enter__(), TypeError, "model must"),
])
def test_wrong_arguments_of_the_functions(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call()


# What heads learn, on other seeds than the chapter's -----------------------------------------------------------------

class Lookups(nn.Module):
    """Names the previous token and the first of eight."""
    def __init__(self, num_heads):
        super().__init__()
        self.token, self.position = nn.Embedding(8, 32), nn.Embedding(8, 32)
        self.attention, self.readout = MultiHeadAttention(32, num_heads), nn.Linear(32, 16)

    def forward(self, tokens):
        return self.readout(self.attention(self.token(tokens) + self.position.weight)[:, 2:]).unflatten(-1, (2, 8))


@pytest.mark.slow
@pytest.mark.parametrize("num_heads, seed", [(1, 6), (1, 7), (4, 6), (4, 7)])
def test_four_heads_learn_what_one_does_not(num_heads, seed):
    torch.manual_seed(seed)
    model, draw = Lookups(num_heads), torch.Generator().manual_seed(seed)

    def wanted(tokens):
        return torch.stack([tokens[:, 1:-1], tokens[:, :1].expand(-1, 6)], dim=-1)

    batches = (torch.randint(8, (16, 8), generator=draw) for _ in range(250))
    fit(model, batches, lambda m, t: F.cross_entropy(m(t).flatten(0, 2), wanted(t).flatten()), adamw(model, 1e-2), steps=250)
    tokens = torch.randint(8, (500, 8), generator=draw)
    with torch.no_grad():
        hits = model(tokens).argmax(-1) == wanted(tokens)
    both = hits.all(-1).float().mean().item()
    assert both > 0.99 if num_heads == 4 else both < 0.98   # four heads 1.00 on 9 seeds; one head 0.12 to 0.92 on 11
    assert hits.float().mean((0, 1)).max() > 0.85


# Speed ---------------------------------------------------------------------------------------------------------------

def step_of(module, call):
    optimizer = torch.optim.AdamW(module.parameters())

    def step():
        optimizer.zero_grad()
        call().square().mean().backward()
        optimizer.step()
    return step


@pytest.mark.bench
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "training step"])
def test_as_fast_as_torch(within, training):
    """At width 512, batch 8, length 128, two threads, against the faster of torch's paths."""
    theirs, ours = (module.train(training) for module in pair(512, 8, dtype=torch.float32))
    x, threads, before = torch.randn(8, 128, 512), torch.get_num_threads(), torch.backends.mha.get_fastpath_enabled()

    def call_theirs(fast):
        def run():
            torch.backends.mha.set_fastpath_enabled(fast)
            return theirs(x, x, x, need_weights=False)[0]
        return run

    calls = [lambda: ours(x), call_theirs(True), call_theirs(False)]
    if training:
        calls = [step_of(module, call) for module, call in zip((ours, theirs, theirs), calls)]
    torch.set_num_threads(2)
    try:
        with torch.set_grad_enabled(training):
            mine, *others = interleaved(*calls, rounds=25)
    finally:
        torch.set_num_threads(threads)
        torch.backends.mha.set_fastpath_enabled(before)
    within(f"MultiHeadAttention / torch, {'training step' if training else 'eval'}", mine / min(others), 1.0)


@pytest.mark.bench
@pytest.mark.usefixtures("unchecked")
def test_cost_against_length(within):
    """Linear in the projections, quadratic in the scores: never steeper than the square."""
    ours, lengths = MultiHeadAttention(128, 4).eval(), [64, 128, 256, 512, 1024, 2048, 4096]
    inputs = [torch.randn(1, length, 128) for length in lengths]
    with torch.no_grad():
        times = interleaved(*[lambda x=x: ours(x) for x in inputs], rounds=7)
    print("milliseconds:", dict(zip(lengths, np.round(1000 * np.array(times), 2).tolist())))

    def exponent(part):
        return np.polyfit(np.log(lengths[part]), np.log(times[part]), 1)[0]

    within("exponent of time in length, 64 to 256", exponent(slice(0, 3)), 1.5)
    within("exponent of time in length, 1024 to 4096", exponent(slice(4, 7)), 2.3)


# -- one product for the three projections

def projects_like_three_layers(project):
    """Whether queries, keys and values, and all gradients, are those of the three layers, for few tokens and for many."""
    for bias, dtype, length in ((True, torch.float64, 2), (True, torch.float64, 9), (False, torch.float64, 9)):
        torch.manual_seed(0)
        layers = [nn.Linear(5, 6, bias=bias, dtype=dtype) for _ in range(3)]
        x = torch.randn(2, length, 5, dtype=dtype, requires_grad=True)
        target = torch.randn(3, 2, length, 6, dtype=dtype)
        wanted = [x, *(p for layer in layers for p in layer.parameters())]
        for source in (x, torch.randn(2, 4, 5, dtype=dtype)):
            ours, theirs = project(layers, x, source), (layers[0](x), layers[1](source), layers[2](source))
            if not all(a.shape == b.shape and torch.allclose(a, b, atol=1e-12) for a, b in zip(ours, theirs)):
                return False
            if source is x:
                grads = [torch.autograd.grad(sum((a * b).sum() for a, b in zip(parts, target)), wanted) for parts in (ours, theirs)]
                if not all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*grads)):
                    return False
    return True


def _stacked(order=(0, 1, 2), always=False, bias=True):
    def wrong(layers, x, source):
        if x is not source and not always:
            return project(layers, x, source)
        weight = torch.cat([layers[i].weight for i in order])
        biases = None if layers[0].bias is None or not bias else torch.cat([layer.bias for layer in layers])
        return nn.functional.linear(x, weight, biases).chunk(3, dim=-1)
    return wrong


def test_the_projections_together():
    assert projects_like_three_layers(project)


@pytest.mark.parametrize("wrong", [_stacked(order=(0, 2, 1)), _stacked(always=True), _stacked(bias=False)])
def test_wrong_projections_are_caught(wrong):
    assert not projects_like_three_layers(wrong)


def _three(bias=True, widths=(6, 4, 4), dtype=torch.float64):
    torch.manual_seed(0)
    return [nn.Linear(5, width, bias=bias, dtype=dtype) for width in widths]


def finds_what_was_moved(joined):
    """Whether the matrix is that of the layers exactly while their numbers lie together."""
    layers = _three()
    wanted = torch.cat([layer.weight.detach() for layer in layers])
    if joined(layers) is not None:
        return False
    put_together(layers)
    if not torch.equal(torch.cat([layer.weight.detach() for layer in layers]), wanted):
        return False
    with torch.no_grad():
        layers[1].weight *= 2        # numbers that change where they lie are still found
        wanted = torch.cat([layer.weight for layer in layers])
        moved = joined(layers)
        if moved is None or not torch.equal(moved, wanted) or joined(layers[::-1]) is not None or joined([layers[0]] * 3) is not None:
            return False
    layers[2].weight.data = layers[2].weight.data.clone()
    other = _three()
    put_together(other)
    return joined(layers) is None and joined([layers[0], layers[1], other[2]]) is None


def _any_strides(layers):
    first, rows = layers[0].weight, sum(len(layer.weight) for layer in layers)
    return first.as_strided((rows, 5), (1, rows)) if all(layer.weight.stride() == (1, rows) for layer in layers) else None


def _first_only(layers):
    first, rows = layers[0].weight, sum(len(layer.weight) for layer in layers)
    return first.as_strided((rows, 5), (1, rows)) if first.stride() == (1, rows) else None


def test_matrices_that_lie_together_are_found():
    assert finds_what_was_moved(joined)


@pytest.mark.parametrize("wrong", [_any_strides, _first_only, lambda layers: torch.cat([layer.weight for layer in layers]), lambda layers: None])
def test_matrices_that_do_not_are_told_apart(wrong):
    try:
        found = finds_what_was_moved(wrong)
    except RuntimeError as error:                # it reached beyond the memory
        assert "out of bounds" in str(error)
    else:
        assert not found


@pytest.mark.parametrize("bias", [True, False])
def test_one_product_where_the_matrices_lie_together(bias):
    layers, x = _three(bias), torch.randn(1, 1, 5, dtype=torch.float64)
    wanted = [layer(x).detach() for layer in layers]
    put_together(layers)
    with torch.no_grad():
        parts = project(layers, x, x)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(parts, wanted))
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    loss = sum(part.sum() for part in project(layers, x, x))         # with gradients the layers are called
    loss.backward()
    assert all(layer.weight.grad is not None for layer in layers)


class _Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


# What makes a layer more than its numbers: each has to be called, however many tokens there are.
WATCHED = {
    "forward": lambda layer, seen: layer.register_forward_hook(lambda *_: seen.append(1)),
    "before forward": lambda layer, seen: layer.register_forward_pre_hook(lambda *_: seen.append(1)),
    "backward": lambda layer, seen: layer.register_full_backward_hook(lambda *_: seen.append(1)),
    "before backward": lambda layer, seen: layer.register_full_backward_pre_hook(lambda *_: seen.append(1)),
    "all modules": lambda layer, seen: nn.modules.module.register_module_forward_hook(
        lambda module, given, gives: seen.append(1) if module is layer else None),
}


@pytest.mark.parametrize("watch", WATCHED.values(), ids=WATCHED)
@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("length", [2, 9])
def test_watched_layers_are_called(length, name, watch):
    attention, x, seen = MultiHeadAttention(6, 3), torch.randn(2, length, 6, requires_grad=True), []
    before = attention(x)
    handle = watch(getattr(attention, name), seen)
    try:
        after = attention(x)
        after.sum().backward()
    finally:
        handle.remove()
    assert seen == [1] and torch.allclose(after, before, atol=1e-6)


def _drop(name):
    def change(layers):
        layers[name].bias = None
    return change


def _patch(layers):
    original = layers[1].forward
    layers[1].forward = lambda x: 2 * original(x)


REPLACED = {
    "a subclass": lambda layers: layers.__setitem__(2, _Doubled(5, 6)), "a patched forward": _patch,
    "no bias in the first": _drop(0), "no bias in the last": _drop(2),
    "wider values": lambda layers: layers.__setitem__(2, nn.Linear(5, 12)),
}


@pytest.mark.parametrize("change", REPLACED.values(), ids=REPLACED)
@pytest.mark.parametrize("length", [2, 9])
def test_replaced_layers_are_called(length, change):
    torch.manual_seed(0)
    layers = [nn.Linear(5, 6) for _ in range(3)]
    change(layers)
    x = torch.randn(2, length, 5)
    for ours, layer in zip(project(layers, x, x), layers):
        assert torch.allclose(ours, layer(x), atol=1e-6)


def test_one_layer_of_another_precision_is_refused():
    layers, x = [nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(5, 6).half()], torch.randn(2, 9, 5)
    with pytest.raises(RuntimeError, match="dtype"):
        project(layers, x, x)


def test_together_for_many_tokens_only(monkeypatch):
    counts = []
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: counts.append(1) or nn.functional.linear(x, self.weight, self.bias))
    attention = MultiHeadAttention(6, 3)
    for length, calls in ((2, 4), (3, 1)):  # of 6 tokens on, only the output projection is a call of its own
        counts.clear()
        attention(torch.randn(2, length, 6))
        assert len(counts) == calls


@pytest.mark.bench
def test_together_is_no_slower(within):
    """Six attentions in a row at base size, as in an encoder: one at a time, caches hide what the copies cost."""
    layers, x = [[nn.Linear(512, 512) for _ in range(3)] for _ in range(6)], torch.randn(8, 128, 512)

    @torch.inference_mode()
    def run(way):
        for three in layers:
            way(three)
    together, apart = interleaved(lambda: run(lambda three: project(three, x, x)), lambda: run(lambda three: [layer(x) for layer in three]), rounds=25)
    within("three projections of width 512 in one product / one by one", together / apart, 1.15)
