"""Position embeddings: equal to T5, BLOOM, LLaMA, GPT-J and GPT-2 of Transformers; known faults; what they refuse; the experiment."""
import copy
import io
import json
import math
import os
import pickle
import subprocess
import sys

import measure_position_embeddings as tool
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from speed import ratio
from torch import nn
from transformers import LlamaConfig, T5Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj_rotary
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rotary
from transformers.models.t5.modeling_t5 import T5Attention

from transformer_course.attention.masks import causal_mask
from transformer_course.attention.multi_head_attention import MultiHeadAttention
from transformer_course.attention.self_attention import scaled_dot_product_attention
from transformer_course.modern import _extrapolation as experiment
from transformer_course.modern.position_embeddings import (LearnedPositionalEmbedding, RelativePositionBias, RotaryEmbedding,
                                                           alibi_bias, alibi_slopes, apply_rotary_embedding, half_to_interleaved,
                                                           interleaved_to_half, rotary_frequencies)
from transformer_course.modern.position_embeddings_exercises import EXERCISES

MODULE = "transformer_course.modern.position_embeddings"
F64, HALF = torch.float64, [torch.float16, torch.bfloat16]


def drawn(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def largest(first, second):
    return (first - second).abs().max().item() if first.numel() else 0.0


class Kept:
    """A cache that keeps all, or the last `window`."""

    def __init__(self, window=None):
        self.pairs, self.length, self.window = [], 0, window

    def update(self, key, value):
        self.pairs = [torch.cat(part, dim=2) for part in zip(self.pairs, (key, value))] or [key, value]
        self.length += key.shape[2]
        if self.window is not None:
            self.pairs = [part[:, :, -(self.window - 1 + key.shape[2]):] for part in self.pairs]
        return tuple(self.pairs)


# -- plausible answers that are wrong, for each exercise that is checked

def _rows(i, j, q_len, k_len, shift=True):
    keys, queries = torch.arange(k_len), torch.arange(q_len) + (k_len - q_len if shift else 0)
    return i * keys + j * queries[:, None]


def _complex(pairs, angle_sign=1, exponent=1.0, use_base=True):
    def turn(x, positions, base):
        base = base if use_base else 10000.0
        rates = base ** (-exponent * torch.arange(0, x.shape[1], 2, dtype=x.dtype) / x.shape[1])
        angles = angle_sign * positions[:, None] * rates
        return pairs(x, torch.polar(torch.ones_like(angles), angles))
    return turn


def _neighbours(x, turn):
    return torch.view_as_real(torch.view_as_complex(x.unflatten(1, (-1, 2)).contiguous()) * turn).flatten(1)


def _halves(x, turn):
    half = x.shape[1] // 2
    out = torch.complex(x[:, :half].contiguous(), x[:, half:].contiguous()) * turn
    return torch.cat([out.real, out.imag], 1)


WRONG = {
    "29.reach": [5 / 2 ** (-8 * 10 / 12), 5 * 2 ** 10, 5 * 2 ** 9, 5 * 2 ** 0.5, 5 * 2 ** 2.5],
    "29.clip": [lambda q, k, m: _rows(1, -1, q, k),
                lambda q, k, m: _rows(1, -1, q, k).clamp(-m, m),
                lambda q, k, m: _rows(-1, 1, q, k).clamp(-m, m) + m,
                lambda q, k, m: _rows(1, -1, q, k, shift=False).clamp(-m, m) + m,
                lambda q, k, m: (_rows(1, -1, q, k).abs().clamp(max=m)),
                lambda q, k, m: (_rows(1, -1, q, k).clamp(-m, m) + m).float()],
    "29.complex": [_complex(_halves), _complex(_neighbours, angle_sign=-1), _complex(_neighbours, exponent=2.0),
                   _complex(_neighbours, use_base=False), lambda x, positions, base: x,
                   lambda x, positions, base: _complex(_neighbours)(x, torch.arange(len(x)), base)],
    "29.base": [lambda b, s, d: b * s, lambda b, s, d: b * s ** ((d - 2) / d), lambda b, s, d: b * s ** (d / 2),
                lambda b, s, d: b / s ** (d / (d - 2)), lambda b, s, d: b * s ** (d / (d - 2)) if d > 4 else b * s],
}


def passes(name, answer):
    return all(case.problem(answer) is None for case in EXERCISES[name])


def test_every_checked_exercise_refuses_wrong_answers():
    assert list(WRONG) == list(EXERCISES) and all(len(wrong) >= 3 for wrong in WRONG.values())
    for name, answers in WRONG.items():
        assert [passes(name, answer) for answer in answers] == [False] * len(answers), name
    assert passes("29.complex", _complex(_neighbours)) and passes("29.clip", lambda q, k, m: _rows(1, -1, q, k).clamp(-m, m) + m)
    assert passes("29.base", lambda b, s, d: b * s ** (d / (d - 2))) and passes("29.reach", 5 * 2 ** 1.5)


# -- learned positions

@given(st.integers(1, 9), st.integers(0, 5), st.integers(1, 7), st.integers(0, 99))
def test_learned_positions_equal_an_embedding(parity, length, start, d_model, seed):
    """Values and gradients against torch's Embedding of the positions, as GPT-2 and BERT have it."""
    ours, theirs = LearnedPositionalEmbedding(15, d_model).double(), nn.Embedding(15, d_model).double()
    theirs.load_state_dict(ours.state_dict())
    x, direction = drawn(2, length, d_model, seed=seed).requires_grad_(), drawn(2, length, d_model, seed=seed + 1)
    outputs = ours(x, start=start), x + theirs(torch.arange(start, start + length))
    gradients = [torch.autograd.grad((output * direction).sum(), (x, part.weight)) for output, part in zip(outputs, (ours, theirs))]
    gap = max(largest(a, b) for a, b in zip((outputs[0], *gradients[0]), (outputs[1], *gradients[1])))
    parity(f"{MODULE}.LearnedPositionalEmbedding", "torch", gap, 1e-12,
           "tokens plus torch.nn.Embedding of the positions: values and gradients, first positions, odd widths, float64")


def test_rows_that_training_does_not_reach_stay_as_they_are():
    position = LearnedPositionalEmbedding(9, 4)
    before = position.weight.detach().clone()
    optimizer = torch.optim.AdamW(position.parameters(), lr=0.1, weight_decay=0.0)
    for seed in range(3):
        optimizer.zero_grad()
        position(drawn(2, 6, 4, seed=seed, dtype=torch.float32)).square().sum().backward()
        optimizer.step()
    assert torch.equal(position.weight[6:], before[6:]) and (position.weight[:6] != before[:6]).all()


def test_a_learned_table_is_a_module_like_any():
    position, x = LearnedPositionalEmbedding(8, 4, dropout=0.5), torch.ones(2, 3, 4)
    assert list(position.state_dict()) == ["weight"] and 0.01 < LearnedPositionalEmbedding(500, 20).weight.std() < 0.03
    other = LearnedPositionalEmbedding(8, 4)
    other.load_state_dict(position.state_dict())
    assert torch.equal(other(x, start=2), x + position.weight[2:5]) and torch.equal(position.eval()(x), other(x))
    positions = torch.tensor([[0, 0, 1], [5, 6, 7]])
    assert torch.equal(other(x, start=positions), x + other.weight[positions])
    assert other.to("meta")(x.to("meta")).device.type == "meta" and "max_len=8, d_model=4" in repr(other)
    for dtype in HALF:
        assert LearnedPositionalEmbedding(8, 4).to(dtype)(x.to(dtype)).dtype == dtype


# -- T5's bias

def t5_attention(heads, buckets, distance, bidirectional):
    config = T5Config(d_model=4, d_kv=2, num_heads=heads, relative_attention_num_buckets=buckets,
                      relative_attention_max_distance=distance, is_decoder=not bidirectional)
    return T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()


BUCKETS = [(32, 128), (32, 20), (16, 64), (64, 1000), (8, 9), (4, 2), (128, 4096)]


def same_buckets(buckets, bidirectional, num_buckets=32, max_distance=128):
    """Whether `buckets(distances)` are the reference's for all distances up to 40,000."""
    distances = torch.arange(-40_000, 40_001)
    return torch.equal(buckets(distances), T5Attention._relative_position_bucket(distances, bidirectional, num_buckets, max_distance))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets_equal_the_reference_for_all_distances(bidirectional):
    for num_buckets, max_distance in BUCKETS:
        if max_distance > num_buckets // (4 if bidirectional else 2):
            assert same_buckets(RelativePositionBias(1, num_buckets, max_distance, bidirectional).buckets, bidirectional, num_buckets,
                                max_distance), (num_buckets, max_distance)


def bucket_variant(sign=1, both=True, clip=True, root=math.log, strict=False, exact_share=2):
    """The buckets of 32 and 128, with switches for what goes wrong."""
    def buckets(distances):
        count, found, distances = 32, 0, sign * distances
        if both:
            count, found = 16, (distances > 0).long() * 16
            distances = distances.abs()
        else:
            distances = (-distances).clamp(min=0)
        exact = count // exact_share
        far = exact + ((distances.float() / exact).log() / root(128 / exact) * (count - exact)).long()
        far = far.clamp(max=count - 1) if clip else far
        return found + torch.where(distances <= exact if strict else distances < exact, distances, far)
    return buckets


@pytest.mark.parametrize("fault", [{"sign": -1}, {"clip": False}, {"root": math.log2}, {"exact_share": 4},
                                   {"both": "the other"}])
def test_faulty_buckets_are_caught(fault):
    for both in (True, False):
        assert same_buckets(bucket_variant(both=both), both)
        changed = {**fault, "both": not both} if "both" in fault else {**fault, "both": both}
        assert not same_buckets(bucket_variant(**changed), both)


@given(st.integers(1, 12), st.integers(0, 20), st.integers(1, 5), st.booleans(), st.sampled_from(BUCKETS), st.integers(0, 99))
def test_t5_bias_equals_the_reference(parity, q_len, held, heads, bidirectional, sizes, seed):
    assume(sizes[1] > sizes[0] // (4 if bidirectional else 2))
    theirs = t5_attention(heads, *sizes, bidirectional)
    ours = RelativePositionBias(heads, *sizes, bidirectional).double()
    theirs.relative_attention_bias.load_state_dict(ours.state_dict())
    direction = drawn(heads, q_len, q_len + held, seed=seed)
    outputs = ours(q_len, q_len + held), theirs.compute_bias(q_len, q_len + held, past_seen_tokens=held)[0]
    weights = ours.weight, theirs.relative_attention_bias.weight
    gradients = [torch.autograd.grad((output * direction).sum(), weight)[0] for output, weight in zip(outputs, weights)]
    parity(f"{MODULE}.RelativePositionBias", "transformers", max(largest(*outputs), largest(*gradients)), 1e-12,
           "T5's compute_bias: values and gradients, both directions and decoder, with a cache, several bucket counts, float64")


def test_t5_bias_at_base_size(parity):
    theirs, ours = t5_attention(12, 32, 128, True).float(), RelativePositionBias(12)
    theirs.relative_attention_bias.load_state_dict(ours.state_dict())
    parity(f"{MODULE}.RelativePositionBias", "transformers", largest(ours(512), theirs.compute_bias(512, 512)[0]), 0.0,
           "T5's compute_bias: 12 heads, 512 x 512, float32")


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_bias_with_a_cache_is_the_last_rows(bidirectional):
    bias = RelativePositionBias(3, 8, 20, bidirectional)
    whole = bias(30)
    assert torch.equal(whole[:, :-1, :-1], whole[:, 1:, 1:])
    assert all(torch.equal(bias(q_len, 30), whole[:, 30 - q_len:]) for q_len in range(31))
    assert bias(0).shape == (3, 0, 0) and bias(0, 4).shape == (3, 0, 4)


def test_t5_bias_is_a_module_like_any():
    bias = RelativePositionBias(3, 8, 20)
    other = RelativePositionBias(3, 8, 20)
    other.load_state_dict(bias.state_dict())
    assert torch.equal(other(5), bias(5)) and list(bias.state_dict()) == ["weight"]
    assert RelativePositionBias(3).to("meta")(4).device.type == "meta"
    assert all(RelativePositionBias(3).to(dtype)(4).dtype == dtype for dtype in (*HALF, F64))


# -- ALiBi

def bloom_slopes(num_heads):
    """Slopes as BLOOM has them: the bias of the second key."""
    return build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), num_heads, torch.float32)[:, 0, 1]


def same_slopes(slopes):
    return all(torch.allclose(torch.as_tensor(slopes(n)), bloom_slopes(n), rtol=1e-5) for n in (1, 2, 3, 5, 6, 8, 12, 20, 25, 48, 64, 112))


@given(st.integers(1, 200))
def test_alibi_slopes_equal_bloom(parity, num_heads):
    parity(f"{MODULE}.alibi_slopes", "transformers", largest(alibi_slopes(num_heads) / bloom_slopes(num_heads), torch.ones(num_heads)),
           1e-5, "BLOOM's slopes, for 1 to 200 heads, relative difference, float32")


def mpt_slopes(n):
    power = 2 ** math.ceil(math.log2(n))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return slopes if power == n else (slopes[1::2] + slopes[::2])[:n]


SLOPE_FAULTS = {
    "the formula for any number": lambda n: [2 ** (-8 * (h + 1) / n) for h in range(n)],
    "from head 0": lambda n: [2 ** (-8 * h / n) for h in range(n)],
    "the doubled set from its start": lambda n: [2 ** (-8 * (h + 1) / (2 ** n.bit_length())) for h in range(n)],
    "the second of the doubled set": lambda n: alibi_slopes(2 ** (n.bit_length() - 1)).tolist() + [
        2 ** (-8 * (i + 2) / 2 ** n.bit_length()) for i in range(0, 2 * (n - 2 ** (n.bit_length() - 1)), 2)],
    "sorted": lambda n: sorted(alibi_slopes(n).tolist(), reverse=True),
    "the next higher power, cut": lambda n: alibi_slopes(2 ** math.ceil(math.log2(n))).tolist()[:n],
}


def test_alibi_slopes_and_their_faults():
    assert same_slopes(alibi_slopes) and all(not same_slopes(fault) for fault in SLOPE_FAULTS.values())
    assert all(torch.allclose(torch.tensor(mpt_slopes(n)), alibi_slopes(n)) for n in (4, 12, 24, 32))


def like_bloom(bias_of, heads, length, seed):
    """The largest difference of attention under `bias_of` and under BLOOM's bias, and of its gradients, with a causal mask."""
    inputs = [drawn(1, heads, length, 5, seed=seed + i).requires_grad_() for i in range(3)]
    direction = drawn(1, heads, length, 5, seed=seed + 3)
    theirs = build_alibi_tensor(torch.ones(1, length, dtype=torch.long), heads, F64).view(1, heads, 1, length)
    outputs = [scaled_dot_product_attention(*inputs, causal_mask(length), bias)
               for bias in (bias_of(heads, length).double()[None], theirs)]
    gradients = [torch.autograd.grad((output * direction).sum(), inputs) for output in outputs]
    return max(largest(a, b) for a, b in zip((outputs[0], *gradients[0]), (outputs[1], *gradients[1])))


@given(st.integers(1, 13), st.integers(1, 12), st.integers(0, 99))
def test_attention_with_alibi_equals_bloom(parity, heads, length, seed):
    parity(f"{MODULE}.alibi_bias", "transformers", like_bloom(alibi_bias, heads, length, seed), 1e-5,
           "attention under BLOOM's bias, which is by key alone, with a causal mask: values and gradients, any number of heads, float64")


def test_faulty_alibi_is_caught():
    faults = [lambda h, n: alibi_bias(h, n).abs(), lambda h, n: torch.zeros(h, n, n), lambda h, n: alibi_bias(h, n).flip(0),
              lambda h, n: alibi_bias(h, n)[:1].expand(h, n, n), lambda h, n: -alibi_slopes(h)[:, None, None] * torch.arange(n)]
    assert like_bloom(alibi_bias, 6, 9, 0) < 1e-5 and all(like_bloom(fault, 6, 9, 0) > 1e-3 for fault in faults)


def test_alibi_with_a_cache_is_the_last_rows():
    whole = alibi_bias(6, 20)
    assert all(torch.equal(alibi_bias(6, n, 20), whole[:, 20 - n:]) for n in range(21))
    assert (whole.diagonal(dim1=1, dim2=2) == 0).all() and torch.equal(whole, whole.transpose(1, 2)) and (whole <= 0).all()


def test_tables_are_made_where_they_are_asked_for():
    assert alibi_bias(4, 3, device="meta").device.type == alibi_slopes(4, device="meta").device.type == "meta"
    with torch.device("meta"):
        assert alibi_bias(4, 3).device.type == "meta" and alibi_bias(4, 3, device="cpu").device.type == "cpu"
        assert RotaryEmbedding(4)(torch.arange(3, device="cpu"))[0].device.type == "cpu"
        assert RotaryEmbedding(4).rotate(torch.zeros(1, 1, 3, 4, device="cpu")).device.type == "cpu"


# -- RoPE: turning

def llama_embedding(head_dim, base=10000.0, scaling=None, max_len=64):
    return LlamaRotaryEmbedding(LlamaConfig(
        hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim, max_position_embeddings=max_len,
        rope_parameters={"rope_type": "default", "rope_theta": base, **(scaling or {})}))


def like_llama(rotate, length=9, head_dim=6, seed=0, dtype=F64):
    """The largest difference of values and gradients between `rotate(x)` and LLaMA's code, with its tables in this dtype."""
    x, direction = drawn(2, 3, length, head_dim, seed=seed, dtype=dtype).requires_grad_(), drawn(2, 3, length, head_dim, seed=1, dtype=dtype)
    angles = torch.arange(length)[:, None].to(F64) * 10000.0 ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    cos, sin = (part.repeat(1, 2)[None].to(dtype) for part in (angles.cos(), angles.sin()))
    outputs = rotate(x), llama_rotary(x, x, cos, sin)[0]
    gradients = [torch.autograd.grad((output * direction).sum(), x)[0] for output in outputs]
    return max(largest(*outputs), largest(*gradients))


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 99))
def test_rotate_equals_llama(parity, length, pairs, seed):
    gap = like_llama(RotaryEmbedding(2 * pairs).rotate, length, 2 * pairs, seed)
    parity(f"{MODULE}.RotaryEmbedding", "transformers", gap, 1e-11, "LLaMA's rotate-half: values and gradients, any even width, float64")


@given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 99))
def test_the_interleaved_pairing_equals_gptj(parity, length, pairs, seed):
    x, direction = drawn(2, 3, length, 2 * pairs, seed=seed).requires_grad_(), drawn(2, 3, length, 2 * pairs, seed=seed + 1)
    sin, cos = create_sinusoidal_positions(length, 2 * pairs).double().chunk(2, dim=1)
    theirs = gptj_rotary(x.transpose(1, 2), sin[None], cos[None]).transpose(1, 2)
    ours = apply_rotary_embedding(x, cos.repeat(1, 2), sin.repeat(1, 2), interleaved=True)
    gradients = [torch.autograd.grad((output * direction).sum(), x)[0] for output in (ours, theirs)]
    parity(f"{MODULE}.apply_rotary_embedding", "transformers", max(largest(ours, theirs), largest(*gradients)), 1e-12,
           "GPT-J's interleaved turns: values and gradients, any even width, float64")
    module = RotaryEmbedding(2 * pairs, interleaved=True).rotate(x)
    assert torch.allclose(module, theirs, atol=1e-5)


@given(st.integers(0, 3000), st.integers(1, 32), st.sampled_from([10000.0, 500000.0, 500.0]))
def test_cosines_equal_llama(parity, start, pairs, base):
    positions = torch.arange(start, start + 5)[None]
    ours, theirs = RotaryEmbedding(2 * pairs, base)(positions), llama_embedding(2 * pairs, base)(torch.zeros(1), positions)
    parity(f"{MODULE}.RotaryEmbedding", "transformers", max(largest(a, b) for a, b in zip(ours, theirs)), 1e-6,
           "LLaMA's cosines and sines, positions up to 3,000, several bases, float32")


def turned_by_both(dtype):
    x = drawn(1, 8, 2048, 128, dtype=torch.float32).to(dtype)
    theirs, _ = llama_rotary(x, x, *llama_embedding(128)(x, torch.arange(2048)[None]))
    return largest(RotaryEmbedding(128).rotate(x).float(), theirs.float())


def test_rotate_equals_llama_at_base_size(parity):
    parity(f"{MODULE}.RotaryEmbedding", "transformers", turned_by_both(torch.float32), 1e-5, "LLaMA's rotate-half, heads of 128, 2,048 positions, float32")


@pytest.mark.parametrize("dtype, rounding", [(torch.float16, 4e-3), (torch.bfloat16, 4e-2)])
def test_rotate_equals_llama_up_to_one_rounding_in_half_precision(dtype, rounding):
    assert turned_by_both(dtype) <= rounding


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.integers(1, 16), st.booleans())
def test_the_score_depends_on_the_distance_alone_and_lengths_stay(m, n, shift, pairs, interleaved):
    rotary = RotaryEmbedding(2 * pairs, interleaved=interleaved)
    q, k = drawn(1, 4, 1, 2 * pairs), drawn(1, 4, 1, 2 * pairs, seed=1)
    scores = [(rotary.rotate(q, start=m + s) * rotary.rotate(k, start=n + s)).sum(-1) for s in (0, shift)]
    assert torch.allclose(*scores, atol=1e-10)
    assert torch.allclose(rotary.rotate(q, start=m).norm(dim=-1), q.norm(dim=-1), atol=1e-10)


def turning_variant(sign=1, pairing="half", exponent=1, layout="half", swap=False):
    """Rotate-half as it is often written, with switches for what goes wrong."""
    def rotate(x):
        d = x.shape[-1]
        angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * 10000.0 ** (-exponent * torch.arange(0, d, 2, dtype=x.dtype) / d)
        angles = torch.cat([angles, angles], -1) if layout == "half" else angles.repeat_interleave(2, -1)
        if pairing == "half":
            a, b = x.chunk(2, -1)
            turned = torch.cat([-b, a] if not swap else [b, -a], -1)
        else:
            turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return x * angles.cos() + sign * turned * angles.sin()
    return rotate


@pytest.mark.parametrize("fault", [{"sign": -1}, {"pairing": "interleaved", "layout": "interleaved"}, {"pairing": "interleaved"},
                                   {"layout": "interleaved"}, {"exponent": 2}, {"swap": True}])
def test_faulty_turns_are_caught(fault):
    assert like_llama(turning_variant()) < 1e-12 and like_llama(turning_variant(**fault)) > 1e-2


# -- RoPE: the module

def keeps_the_contract(make):
    """Whether `make(head_dim)` turns soundly: pieces, dtypes, casts, growth, training after inference, copies."""
    x = drawn(1, 2, 300, 8, dtype=torch.float32)
    angles = torch.arange(5000, dtype=F64)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2, dtype=F64) / 8)

    def right(x, start):
        cos, sin = (part[start:start + x.shape[2]].repeat(1, 2) for part in (angles.cos(), angles.sin()))
        return apply_rotary_embedding(x.double(), cos, sin)

    def gives(module, x, start, tolerance=2e-3):
        out = module.rotate(x, start)
        return out.dtype == x.dtype and largest(out.double(), right(x, start)) < tolerance

    module = make(8)
    try:
        pieces = all(gives(module, x[:, :, a:b], start) for a, b, start in
                     ((0, 9, 0), (9, 10, 9), (10, 11, 10), (0, 300, 0), (0, 1, 4000), (3, 4, 3), (0, 5, 4500)))
        cast = all(gives(make(8).to(dtype), x[:, :, :5].to(dtype), start, 0.05 if dtype == torch.bfloat16 else 0.01)
                   for dtype in HALF for start in (0, 2500))
        back = gives(make(8).half().float(), x[:, :, :5], 2500) and gives(module.double(), x[:, :, :5].double(), 2500, 1e-9)
        mixed = gives(module, x[:, :, :5].half(), 0, 0.01) and gives(module, x[:, :, :5].double(), 0, 1e-9)
        fresh = make(8)
        with torch.inference_mode():
            fresh.rotate(x)
        learning = x.clone().requires_grad_()
        fresh.rotate(learning).sum().backward()
        copied = gives(copy.deepcopy(module), x, 5) and gives(pickle.loads(pickle.dumps(module)), x, 5)
        moved = module.rotate(x.to("meta")).device.type == "meta" and gives(module, x, 0)
        return (pieces and cast and back and mixed and copied and moved and learning.grad is not None
                and not module.state_dict() and not list(module.parameters()))
    except (RuntimeError, ValueError, IndexError, KeyError):
        return False


class Mutant(nn.Module):
    """A rotary module as they are often written, with switches for what goes wrong."""

    def __init__(self, head_dim, by_length=False, from_zero=False, ends=False, buffer=False, persistent=False, promotes=False,
                 coarse=False, inference=False, frozen=False):
        super().__init__()
        self.head_dim, self.options, self.kept = head_dim, locals(), {}
        self.options = {k: v for k, v in self.options.items() if isinstance(v, bool)}
        if buffer or persistent:
            self.register_buffer("rates", self.made(torch.float32), persistent=persistent)

    def made(self, dtype):
        return 10000.0 ** (-torch.arange(0, self.head_dim, 2, dtype=dtype) / self.head_dim)

    def rows(self, start, end, dtype, device):
        made = torch.promote_types(dtype, torch.float32)
        if self.options["coarse"]:
            made = dtype
        rates = self.rates if "rates" in dict(self.named_buffers()) else self.made(made)
        angles = torch.arange(start, end, dtype=rates.dtype)[:, None] * rates
        return tuple(part.repeat(1, 2).to(device) for part in (angles.cos(), angles.sin()))

    def rotate(self, x, start=0):
        o, length = self.options, x.shape[2]
        first = 0 if o["from_zero"] else start
        if o["ends"] and first + length > 4096:
            raise IndexError
        key = (length if o["by_length"] else (first, length), x.dtype, x.device) if not o["frozen"] else 0
        if key not in self.kept or not (o["by_length"] or o["inference"] or o["frozen"]):
            if o["inference"]:
                self.kept[key] = self.rows(first, first + length, x.dtype, x.device)
            else:
                with torch.inference_mode(False):
                    self.kept[key] = self.rows(first, first + length, x.dtype, x.device)
        cos, sin = self.kept[key]
        if o["promotes"] or o["inference"]:
            a, b = x.chunk(2, -1)
            turned = x * cos + torch.cat([-b, a], -1) * sin
            return turned if o["promotes"] else turned.to(x.dtype)
        return apply_rotary_embedding(x, cos, sin)


MODULE_FAULTS = ["by_length", "from_zero", "ends", "buffer", "persistent", "promotes", "coarse", "inference", "frozen"]


def test_the_rotary_module_keeps_its_contract(unchecked):
    assert keeps_the_contract(RotaryEmbedding) and keeps_the_contract(Mutant)


@pytest.mark.parametrize("fault", MODULE_FAULTS)
def test_a_faulty_rotary_module_does_not(fault, unchecked):
    assert not keeps_the_contract(lambda d: Mutant(d, **{fault: True}))


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_tables_are_rounded_once(dtype):
    """Far out, where a table made in this precision would be wrong everywhere."""
    cos, sin = RotaryEmbedding(64)(torch.arange(60_000, 60_010), dtype=dtype)
    right_cos, right_sin = RotaryEmbedding(64)(torch.arange(60_000, 60_010), dtype=F64)
    bound = 0.01 + torch.finfo(dtype).eps
    assert cos.dtype == dtype and largest(cos.double(), right_cos) < bound and largest(sin.double(), right_sin) < bound


def test_the_table_grows_and_is_made_once(monkeypatch):
    rotary, made = RotaryEmbedding(8), []
    monkeypatch.setattr(rotary, "_angles", lambda p, *rest, old=rotary._angles: made.append(len(p)) or old(p, *rest))
    for t in range(600):
        rotary.rotate(torch.zeros(1, 1, 1, 8), start=t)
    assert len(made) <= 4 and made == sorted(made) and made[-1] >= 600
    rotary.rotate(torch.zeros(1, 1, 600, 8))
    assert len(made) <= 4


def test_it_can_be_compiled():
    """In a process of its own, as the run-time check of shapes cannot be traced."""
    program = """
import torch
from transformer_course.modern.position_embeddings import RotaryEmbedding
rotary, x = RotaryEmbedding(8), torch.ones(1, 2, 5, 8)
compiled = torch.compile(lambda x: rotary.rotate(x), backend="eager", fullgraph=True)
assert torch.allclose(compiled(x), RotaryEmbedding(8).rotate(x)) and torch.allclose(rotary.rotate(x), compiled(x))
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "TRANSFORMER_COURSE_CHECK_SHAPES": "0"})


def test_a_model_with_it_is_copied_and_saved():
    """The attention holds a bound method, which must follow the copy."""
    attention = MultiHeadAttention(8, 2, rotate=RotaryEmbedding(4).rotate).eval()
    x = drawn(1, 5, 8, dtype=torch.float32)
    saved = io.BytesIO()
    torch.save(attention, saved)
    saved.seek(0)
    for other in (copy.deepcopy(attention), torch.load(saved, weights_only=False)):
        assert torch.equal(other(x), attention(x)) and other.rotate.__self__ is not attention.rotate.__self__
    assert "head_dim=4" in repr(RotaryEmbedding(4))


def biases(scheme):
    """A function of (q_len, k_len) that gives an attention's bias, and what it turns by."""
    relative = RelativePositionBias(2, 8, 20, bidirectional=False).double()
    return {"T5": (lambda q, k: relative(q, k), None), "ALiBi": (lambda q, k: alibi_bias(2, q, k).double(), None),
            "RoPE": (lambda q, k: None, RotaryEmbedding(4).rotate),
            "RoPE, interleaved": (lambda q, k: None, RotaryEmbedding(4, interleaved=True).rotate)}[scheme]


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("scheme", ["T5", "ALiBi", "RoPE", "RoPE, interleaved"])
def test_one_token_at_a_time_equals_all_at_once(scheme, window):
    bias, rotate = biases(scheme)
    attention, x = MultiHeadAttention(8, 2, rotate=rotate).double().eval(), drawn(2, 11, 8)
    back = torch.arange(11)[:, None] - torch.arange(11)
    mask = (back >= 0) & (back < (window or 99))
    whole, cache, parts = attention(x, mask=mask, bias=bias(11, 11)), Kept(window), []
    for first, last in ((0, 5), (5, 6), (6, 7), (7, 10), (10, 11)):
        parts.append(attention(x[:, first:last], mask=mask[first:last, :last], bias=bias(last - first, last), cache=cache))
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-12)


def test_left_padding_does_not_matter_to_relative_positions():
    x = drawn(1, 6, 8)
    padded = torch.cat([torch.zeros(1, 3, 8).double(), x], dim=1)
    keys = (torch.arange(9) >= 3) & causal_mask(9)
    for scheme in ("T5", "ALiBi", "RoPE"):
        bias, rotate = biases(scheme)
        attention = MultiHeadAttention(8, 2, rotate=rotate).double().eval()
        assert torch.allclose(attention(padded, mask=keys, bias=bias(9, 9))[:, 3:], attention(x, mask=causal_mask(6), bias=bias(6, 6)),
                              atol=1e-12), scheme


# -- RoPE: the two pairings

def permuted_for_llama(weight, heads):
    """What convert_llama_weights_to_hf.py does to the rows of queries and keys."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def converts(to_half):
    """Whether reordered queries and keys give, in the rotate-half pairing, what the originals give interleaved; shared keys too."""
    for heads, kv_heads, head_dim in ((3, 3, 4), (4, 2, 6), (1, 1, 2)):
        x = drawn(2, 7, 5)
        q, k = drawn(heads * head_dim, 5, seed=1), drawn(kv_heads * head_dim, 5, seed=2)

        def scores(q, k, interleaved):
            rotary = RotaryEmbedding(head_dim, interleaved=interleaved)
            q, k = ((x @ w.T).unflatten(2, (-1, head_dim)).transpose(1, 2) for w in (q, k))
            return rotary.rotate(q) @ rotary.rotate(k).repeat_interleave(heads // kv_heads, 1).transpose(2, 3)
        try:
            if not torch.allclose(scores(q, k, True), scores(to_half(q, heads), to_half(k, kv_heads), False), atol=1e-10):
                return False
        except (RuntimeError, ValueError):
            return False
    return True


def test_the_conversion_and_its_mutants():
    assert converts(interleaved_to_half) and converts(permuted_for_llama)
    for mutant in (lambda w, h: w, half_to_interleaved, lambda w, h: torch.cat([w[0::2], w[1::2]]),
                   lambda w, h: interleaved_to_half(w.flip(0), h), lambda w, h: interleaved_to_half(w, 1)):
        assert not converts(mutant)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 4))
def test_the_conversion_is_the_published_one_and_has_an_inverse(heads, pairs, columns):
    weight = drawn(heads * 2 * pairs, columns)
    assert torch.equal(interleaved_to_half(weight, heads), permuted_for_llama(weight, heads) if columns else weight)
    assert torch.equal(half_to_interleaved(interleaved_to_half(weight, heads), heads), weight)
    bias = drawn(heads * 2 * pairs)
    assert torch.equal(interleaved_to_half(bias, heads), permuted_for_llama(bias[:, None], heads)[:, 0])


# -- RoPE: scalings

SCALED = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 50},
    {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 4096, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.707},
    {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 0.707},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.5},
    {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 64},
]


def reference(scaling, head_dim, base, length, max_len=64):
    module = llama_embedding(head_dim, base, scaling, max_len)
    if scaling["rope_type"] == "default":
        return module.inv_freq, 1.0
    return ROPE_INIT_FUNCTIONS[scaling["rope_type"]](module.config, seq_len=length)


def like_the_reference(frequencies, scaling, head_dim, base, length):
    """The largest relative difference of rates and factor."""
    (ours, factor), (theirs, other) = frequencies(head_dim, base, scaling, length), reference(scaling, head_dim, base, length)
    return max(largest(ours / theirs, torch.ones_like(theirs)), abs(factor - other))


def ours_for_64(head_dim, base, scaling, length):
    return rotary_frequencies(head_dim, base, scaling, length, max_len=64)


@given(st.sampled_from(SCALED), st.sampled_from([4, 6, 8, 64, 128]), st.sampled_from([10000.0, 500000.0, 1e6]),
       st.sampled_from([None, 1, 63, 64, 65, 300, 5000]))
def test_frequencies_equal_the_reference(parity, scaling, head_dim, base, length):
    parity(f"{MODULE}.rotary_frequencies", "transformers", like_the_reference(ours_for_64, scaling, head_dim, base, length), 2e-6,
           "ROPE_INIT_FUNCTIONS: default, linear, dynamic, llama3, yarn, relative difference, several widths, bases and lengths")


def tampered(kind, change):
    """Our rates with one scaling done otherwise."""
    def frequencies(head_dim, base, scaling, length):
        if scaling["rope_type"] != kind:
            return ours_for_64(head_dim, base, scaling, length)
        return change(head_dim, base, scaling, length)
    return frequencies


def _with(**changes):
    return lambda d, b, s, n: ours_for_64(d, b, {**s, **changes}, n)


FREQUENCY_FAULTS = {
    "linear, multiplied": ("linear", lambda d, b, s, n: (rotary_frequencies(d, b)[0] * s["factor"], 1.0)),
    "linear, ignored": ("linear", lambda d, b, s, n: rotary_frequencies(d, b)),
    "dynamic, below the trained length too": ("dynamic", lambda d, b, s, n: rotary_frequencies(
        d, b * max(s["factor"] * (n or 64) / 64 - s["factor"] + 1, 0.1) ** (d / (d - 2)))),
    "dynamic, by the factor alone": ("dynamic", lambda d, b, s, n: rotary_frequencies(d, b * s["factor"] ** (d / (d - 2)))),
    "dynamic, ignored": ("dynamic", lambda d, b, s, n: rotary_frequencies(d, b)),
    "llama3, another length": ("llama3", _with(original_max_position_embeddings=100)),
    "llama3, no ramp": ("llama3", _with(high_freq_factor=1.0001)),
    "llama3, as linear": ("llama3", lambda d, b, s, n: (rotary_frequencies(d, b)[0] / s["factor"], 1.0)),
    "yarn, no factor": ("yarn", lambda d, b, s, n: (ours_for_64(d, b, s, n)[0], 1.0)),
    "yarn, not cut to whole pairs": ("yarn", _with(truncate=False)),
    "yarn, other borders": ("yarn", _with(beta_fast=8)),
}


@pytest.mark.parametrize("fault", FREQUENCY_FAULTS)
def test_faulty_frequencies_are_caught(fault):
    def worst(frequencies):
        return max(like_the_reference(frequencies, scaling, 64, 10000.0, length) for scaling in SCALED for length in (None, 40, 300))
    assert worst(ours_for_64) < 2e-6 < 1e-3 < worst(tampered(*FREQUENCY_FAULTS[fault]))


@pytest.mark.parametrize("scaling", SCALED)
def test_the_module_under_a_scaling_equals_llama(parity, scaling):
    """A short text, a long one, one in between: the reference remembers, ours does not, and they agree from a fresh start."""
    for length in (10, 64, 65, 200):
        theirs = llama_embedding(8, 10000.0, scaling)(torch.zeros(1), torch.arange(length)[None])
        rotary = RotaryEmbedding(8, scaling=scaling, max_len=64)
        ours = rotary(torch.arange(length)[None])
        parity(f"{MODULE}.RotaryEmbedding", "transformers", max(largest(a, b) for a, b in zip(ours, theirs)), 5e-5,
               "LLaMA's cosines and sines under each scaling, texts of 10 to 200 tokens, trained for 64, float32")
        x = drawn(1, 2, length, 8, dtype=torch.float32)
        assert torch.allclose(rotary.rotate(x), llama_rotary(x, x, *theirs)[0], atol=1e-4)
        assert torch.allclose(rotary.rotate(x[:, :, -1:], start=length - 1), rotary.rotate(x)[:, :, -1:], atol=1e-6)


def test_dynamic_forgets_a_long_text():
    rotary, x = RotaryEmbedding(8, scaling={"type": "dynamic", "factor": 2.0}, max_len=64), drawn(1, 2, 300, 8, dtype=torch.float32)
    short = rotary.rotate(x[:, :, :60])
    long = rotary.rotate(x)
    assert torch.equal(rotary.rotate(x[:, :, :60]), short) and torch.equal(short, RotaryEmbedding(8).rotate(x[:, :, :60]))
    assert not torch.allclose(long[:, :, :60], short, atol=1e-2) and torch.equal(rotary.rotate(x), long)


def test_ways_to_say_the_same_scaling():
    new = rotary_frequencies(8, 5e5, {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5, "partial_rotary_factor": 1.0})
    old = rotary_frequencies(8, 5e5, {"type": "linear", "factor": 2.0})
    assert torch.equal(new[0], old[0]) and torch.equal(new[0], rotary_frequencies(8, scaling={
        "rope_type": "linear", "type": "linear", "factor": 2, "rope_theta": 5e5, "beta_fast": None})[0])
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert torch.equal(rotary_frequencies(8, scaling=yarn, max_len=16)[0],
                       rotary_frequencies(8, scaling={**yarn, "original_max_position_embeddings": 16}, max_len=99)[0])
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16}
    assert torch.equal(rotary_frequencies(8, scaling=dynamic, length=40)[0],
                       rotary_frequencies(8, scaling={"rope_type": "dynamic", "factor": 2.0}, length=40, max_len=16)[0])
    assert RotaryEmbedding(8, scaling=(given := {"rope_type": "linear", "factor": 2.0})).scaling == given
    assert rotary_frequencies(8, dtype=F64)[0].dtype == F64


# -- what they refuse

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize("call, error, says", [
    (lambda: LearnedPositionalEmbedding(0, 4), ValueError, r"max_len \(0\)"),
    (lambda: LearnedPositionalEmbedding(4, 2.5), ValueError, r"d_model \(2.5\)"),
    (lambda: LearnedPositionalEmbedding(4, 4, 1.0), ValueError, "dropout"),
    (lambda: RelativePositionBias(0), ValueError, "num_heads"),
    (lambda: RelativePositionBias(2, 3), ValueError, r"num_buckets \(3\) must be a whole number, 4 or more"),
    (lambda: RelativePositionBias(2, 33), ValueError, r"num_buckets \(33\) must be even"),
    (lambda: RelativePositionBias(2, 1, bidirectional=False), ValueError, "num_buckets"),
    (lambda: RelativePositionBias(2, 32, 8), ValueError, r"max_distance \(8\) must be more than 8"),
    (lambda: RelativePositionBias(2, 32, 16, False), ValueError, r"max_distance \(16\) must be more than 16"),
    (lambda: RelativePositionBias(2, bidirectional=1), TypeError, "bidirectional"),
    (lambda: RelativePositionBias(2)(3, 2), ValueError, r"k_len \(2\) must be at least q_len \(3\)"),
    (lambda: RelativePositionBias(2)(-1), ValueError, "q_len"),
    (lambda: RelativePositionBias(2)(2.0), ValueError, "q_len"),
    (lambda: RelativePositionBias(2).buckets(torch.zeros(2)), TypeError, "int64"),
    (lambda: RelativePositionBias(2).buckets([1, 2]), TypeError, "distances must be a tensor of int64, not list"),
    (lambda: alibi_slopes(0), ValueError, r"num_heads \(0\)"),
    (lambda: alibi_slopes(2.0), ValueError, r"num_heads \(2.0\)"),
    (lambda: alibi_slopes(True), ValueError, "num_heads"),
    (lambda: alibi_bias(2, 3, 2), ValueError, r"k_len \(2\) must be at least length \(3\)"),
    (lambda: alibi_bias(2, -1), ValueError, "length"),
    (lambda: RotaryEmbedding(7), ValueError, r"head_dim \(7\) must be even"),
    (lambda: RotaryEmbedding(0), ValueError, "head_dim"),
    (lambda: RotaryEmbedding(8, 1.0), ValueError, r"base \(1.0\) must be more than 1"),
    (lambda: RotaryEmbedding(8, math.inf), ValueError, "base"),
    (lambda: RotaryEmbedding(8, "10000"), ValueError, "base"),
    (lambda: RotaryEmbedding(8, interleaved="no"), TypeError, "interleaved"),
    (lambda: RotaryEmbedding(8, max_len=0), ValueError, "max_len"),
    (lambda: RotaryEmbedding(8, scaling="linear"), TypeError, "scaling must be a dictionary or None, not str"),
    (lambda: RotaryEmbedding(8, scaling={"rope_type": "longrope", "factor": 2.0}), ValueError, "'longrope', which must be one of default"),
    (lambda: RotaryEmbedding(8, scaling={"rope_type": "linear", "type": "yarn", "factor": 2.0}), ValueError, "'linear' and 'yarn'"),
    (lambda: RotaryEmbedding(8, scaling={"rope_type": ["linear"], "factor": 2.0}), ValueError, "rope_type"),
    (lambda: RotaryEmbedding(8, scaling={"rope_type": "linear"}), ValueError, "'linear' needs factor"),
    (lambda: RotaryEmbedding(8, scaling={"rope_type": "linear", "factor": None}), ValueError, "'linear' needs factor"),
    (lambda: RotaryEmbedding(8, scaling={"rope_type": "linear", "factor": 2.0, "alpha": 1}), ValueError, "no use for alpha"),
    (lambda: RotaryEmbedding(8, scaling={"rope_type": "linear", "factor": 2.0, "original_max_position_embeddings": 9}), ValueError,
     "no use for original_max_position_embeddings"),
    (lambda: RotaryEmbedding(8, scaling={"factor": 2.0}), ValueError, "'default' has no use for factor"),
    (lambda: RotaryEmbedding(8, scaling={"rope_type": "linear", "factor": 0.5}), ValueError, r"factor \(0.5\) must be 1 or more"),
    (lambda: RotaryEmbedding(8, scaling={"rope_type": "linear", "factor": "2"}), ValueError, "factor"),
    (lambda: RotaryEmbedding(8, scaling={"rope_type": "linear", "factor": math.nan}), ValueError, "factor"),
    (lambda: RotaryEmbedding(8, scaling={"rope_type": "dynamic", "factor": 2.0}), ValueError, "needs original_max_position_embeddings"),
    (lambda: RotaryEmbedding(2, scaling={"rope_type": "dynamic", "factor": 2.0}, max_len=9), ValueError, "head_dim of 4"),
    (lambda: RotaryEmbedding(8, scaling=LLAMA3 | {"high_freq_factor": 1.0}), ValueError, "high_freq_factor .* more than low_freq_factor"),
    (lambda: RotaryEmbedding(8, scaling=LLAMA3 | {"low_freq_factor": None}), ValueError, "needs low_freq_factor"),
    (lambda: RotaryEmbedding(8, scaling=LLAMA3 | {"original_max_position_embeddings": 6.5}), ValueError, "original_max_position_embeddings"),
    (lambda: RotaryEmbedding(8, scaling=YARN | {"original_max_position_embeddings": None}), ValueError, "original_max_position_embeddings"),
    (lambda: RotaryEmbedding(8, scaling=YARN | {"beta_fast": 1, "beta_slow": 2}), ValueError, "beta_fast .* more than beta_slow"),
    (lambda: RotaryEmbedding(8, scaling=YARN | {"beta_slow": 40}), ValueError, "beta_fast .* more than beta_slow"),
    (lambda: RotaryEmbedding(8, scaling=YARN | {"truncate": 1}), TypeError, "truncate"),
    (lambda: RotaryEmbedding(8, scaling=YARN | {"attention_factor": 0.0}), ValueError, "attention_factor"),
    (lambda: RotaryEmbedding(8, scaling=YARN | {"attention_factor": -1.0}), ValueError, "attention_factor"),
    (lambda: RotaryEmbedding(8, 500.0, scaling=YARN | {"rope_theta": 600.0}), ValueError, "rope_theta 600.0, but base is 500.0"),
    (lambda: RotaryEmbedding(8, scaling=YARN | {"partial_rotary_factor": 0.5}), ValueError, "partial_rotary_factor 0.5, which must be 1"),
    (lambda: rotary_frequencies(8, dtype=torch.float16), TypeError, "dtype"),
    (lambda: rotary_frequencies(8, length=0), ValueError, "length"),
    (lambda: RotaryEmbedding(8)(torch.zeros(3)), TypeError, "positions must be a tensor of whole numbers"),
    (lambda: RotaryEmbedding(8)(torch.tensor([True])), TypeError, "positions"),
    (lambda: RotaryEmbedding(8)([0, 1]), TypeError, "positions .* not list"),
    (lambda: RotaryEmbedding(8)(torch.arange(3), dtype=torch.int64), TypeError, "dtype"),
    (lambda: RotaryEmbedding(8).rotate(torch.zeros(2, 3, 4, 6)), ValueError, r"\(batch, heads, length, 8\), not \(2, 3, 4, 6\)"),
    (lambda: RotaryEmbedding(8).rotate(torch.zeros(3, 4, 8)), ValueError, "batch, heads, length"),
    (lambda: RotaryEmbedding(8).rotate(torch.zeros(1, 1, 2, 8).long()), TypeError, "floating-point"),
    (lambda: RotaryEmbedding(8).rotate(torch.zeros(1, 1, 2, 8), -1), ValueError, r"start \(-1\)"),
    (lambda: RotaryEmbedding(8).rotate(torch.zeros(1, 1, 2, 8), 0.5), ValueError, "start"),
    (lambda: apply_rotary_embedding(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3)), ValueError, "even head_dim"),
    (lambda: apply_rotary_embedding(torch.zeros(2, 4), torch.zeros(2, 2), torch.zeros(2, 2)), ValueError, "cos must have shape"),
    (lambda: apply_rotary_embedding(torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(3, 4)), ValueError, "sin must have shape"),
    (lambda: apply_rotary_embedding(torch.zeros(2, 4), torch.zeros(5, 2, 4), torch.zeros(5, 2, 4)), ValueError, "cos must have shape"),
    (lambda: apply_rotary_embedding(torch.zeros(2, 4).long(), torch.zeros(2, 4), torch.zeros(2, 4)), TypeError, "x must be"),
    (lambda: apply_rotary_embedding(torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(2, 4), interleaved=None), TypeError, "interleaved"),
    (lambda: interleaved_to_half(torch.zeros(6, 2), 2), ValueError, r"num_heads \(2\) times an even number of rows"),
    (lambda: interleaved_to_half(torch.zeros(0, 2), 2), ValueError, "rows"),
    (lambda: half_to_interleaved(torch.zeros(8, 2, 2), 2), ValueError, "rows"),
    (lambda: half_to_interleaved(torch.zeros(8), 0), ValueError, "num_heads"),
    (lambda: half_to_interleaved([1.0] * 8, 2), TypeError, "weight must be a tensor"),
])
def test_wrong_arguments(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize("call, error, says", [
    (lambda m: m(torch.zeros(2, 3, 5)), ValueError, r"x must have shape \(batch, length, 4\), not \(2, 3, 5\)"),
    (lambda m: m(torch.zeros(2, 3, 1)), ValueError, "x must have shape"),
    (lambda m: m(torch.zeros(3, 4)), ValueError, "batch, length"),
    (lambda m: m(torch.zeros(2, 3, 4, dtype=torch.int64)), TypeError, "token vectors, not ids"),
    (lambda m: m(torch.zeros(2, 3, 4).half()), ValueError, "float16"),
    (lambda m: m(torch.zeros(2, 3, 4, device="meta")), ValueError, "x is on meta"),
    (lambda m: m(torch.zeros(2, 11, 4)), ValueError, r"needs 11 positions .* max_len \(10\)"),
    (lambda m: m(torch.zeros(2, 1, 4), start=10), ValueError, "needs 11 positions"),
    (lambda m: m(torch.zeros(2, 1, 4), start=-1), ValueError, r"start \(-1\)"),
    (lambda m: m(torch.zeros(2, 1, 4), start=0.5), ValueError, "start"),
    (lambda m: m(torch.zeros(2, 1, 4), start=torch.zeros(2, 1)), TypeError, "int64"),
    (lambda m: m(torch.zeros(2, 1, 4), start=torch.tensor([[10], [0]])), ValueError, "0 to 9"),
])
def test_wrong_input_of_learned_positions(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call(LearnedPositionalEmbedding(10, 4))


# -- the experiment

@pytest.mark.parametrize("scheme", experiment.SCHEMES)
def test_the_models_of_the_experiment(scheme):
    """They see no later word, differ in nothing but the positions, and are told of positions if they should be."""
    model = experiment.new_model(20, scheme, torch.Generator().manual_seed(0)).eval()
    plain = experiment.new_model(20, "none", torch.Generator().manual_seed(0))
    own = {name: part for name, part in model.state_dict().items() if name in plain.state_dict()}
    assert all(torch.equal(own[name], part) for name, part in plain.state_dict().items())
    assert set(model.state_dict()) - set(own) == {"learned": {"position.weight"}, "T5 bias": {"relative.weight"}}.get(scheme, set())
    ids = torch.randint(20, (2, 128), generator=torch.Generator().manual_seed(1))
    changed = ids.clone()
    changed[:, 60:] = (changed[:, 60:] + 1) % 20
    assert torch.allclose(model(ids)[:, :60], model(changed)[:, :60], atol=1e-5)
    swapped = ids[:, [1, 0, *range(2, 128)]]
    with torch.no_grad():
        for part in (model.position, model.relative):
            for weight in part.parameters() if part is not None else ():
                weight *= 50   # a new table is too small to show
    alike = torch.allclose(model(ids)[:, 10], model(swapped)[:, 10], atol=1e-3)
    assert not alike or scheme == "none"
    assert experiment.loss_by_position(model, torch.randint(20, (300,)), 20).shape == (20,)


def test_a_stretched_model_has_the_same_weights():
    model = experiment.new_model(20, "RoPE", torch.Generator().manual_seed(0)).eval()
    ids = torch.randint(20, (1, 64), generator=torch.Generator().manual_seed(1))
    same = experiment.stretched(model, {"rope_type": "linear", "factor": 1.0})
    other = experiment.stretched(model, {"rope_type": "linear", "factor": 4.0})
    dynamic = experiment.stretched(model, {"rope_type": "dynamic", "factor": 4.0})
    assert torch.allclose(same(ids), model(ids), atol=1e-6) and not torch.allclose(other(ids), model(ids), atol=1e-3)
    assert torch.allclose(dynamic(ids[:, :32]), model(ids[:, :32]), atol=1e-6)
    assert not torch.allclose(dynamic(ids)[:, -1], model(ids)[:, -1], atol=1e-4)


def test_train_and_test_stories_are_different():
    train, test, size = experiment.story_words(30, 20)
    again = experiment.story_words(30, 20)
    assert torch.equal(train, again[0]) and size == again[2] == len(set(train.tolist()) | set(test.tolist()))
    longest = {tuple(train[i:i + 40].tolist()) for i in range(len(train) - 40)}
    assert not longest & {tuple(test[i:i + 40].tolist()) for i in range(len(test) - 40)}


def test_the_same_seed_trains_the_same_model_and_may_stop_early():
    words = torch.randint(9, (500,), generator=torch.Generator().manual_seed(0))
    (one, losses), (other, again) = (experiment.trained_model("RoPE", 3, words, 9, steps=4) for _ in range(2))
    assert losses == again and all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values()))
    _, early = experiment.trained_model("RoPE", 3, words, 9, steps=4, stop=2)
    _, another = experiment.trained_model("RoPE", 4, words, 9, steps=4, stop=2)
    assert early == losses[:2] != another


def test_the_tool_stores_every_run(monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "story_words", lambda: experiment.story_words(60, 30))
    monkeypatch.setattr(tool, "FEW", 200)
    monkeypatch.setattr(tool, "SCHEMES", ("ALiBi", "RoPE"))
    store = tmp_path / "results.json"
    monkeypatch.setattr(sys, "argv", ["tool", "--steps", "1", "--store", str(store)])
    threads = torch.get_num_threads()
    tool.main()
    first = json.loads(store.read_text())
    assert [(run["part"], run["scheme"], run["seed"]) for run in first["runs"]] == [
        (part, scheme, seed) for part, schemes in (("long", ("ALiBi", "RoPE")), ("few", ("learned", "sinusoidal")))
        for scheme in schemes for seed in (0, 1, 2)]
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--only", "few"])
    tool.main()
    torch.set_num_threads(threads)
    assert json.loads(store.read_text())["runs"] == first["runs"]


def test_bigrams_count_pairs():
    """Words that always alternate are known but for the tenths; words at random are not."""
    assert tool.bigrams(torch.tensor([0, 1] * 500), torch.tensor([0, 1] * 20), 2) < 0.001
    words = torch.randint(4, (4000,), generator=torch.Generator().manual_seed(0))
    assert abs(tool.bigrams(words, words.flip(0), 4) - math.log(4)) < 0.01


# -- speed

@pytest.mark.bench
def test_speed_of_rotate(unchecked, within):
    rotary, x = RotaryEmbedding(64), torch.randn(8, 12, 512, 64)
    cos, sin = rotary(torch.arange(512)[None])
    within("rotate / LLaMA's code for one of two", ratio(lambda: rotary.rotate(x), lambda: llama_rotary(x, x[:0], cos, sin)), 1.0)


@pytest.mark.bench
def test_speed_of_rotate_for_one_token(unchecked, within):
    rotary, x = RotaryEmbedding(64), torch.randn(1, 12, 1, 64)
    cos, sin = rotary(torch.tensor([[1000]]))
    rotary.rotate(x, 1000)

    def ours():
        for _ in range(200):
            rotary.rotate(x, 1000)

    def theirs():
        for _ in range(200):
            llama_rotary(x, x[:0], cos, sin)
    within("rotate of one token / LLaMA's code with cosines at hand", ratio(ours, theirs), 1.2)


@pytest.mark.bench
def test_speed_of_the_biases(unchecked, within):
    relative, theirs = RelativePositionBias(12), t5_attention(12, 32, 128, True).float()
    within("T5's bias / the reference", ratio(lambda: relative(512), lambda: theirs.compute_bias(512, 512)), 0.8)
    x = torch.randn(8, 12, 512, 64)
    within("ALiBi's bias / a product of scores", ratio(lambda: alibi_bias(12, 512), lambda: x @ x.transpose(2, 3)), 1.0)
