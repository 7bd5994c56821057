"""Windows and grouped heads: equal to transformers' LLaMA and Mistral and to torch; known faults; what they cost; what they refuse."""
import copy
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from speed import interleaved, ratio
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache, LlamaConfig, MistralConfig
from transformers.masking_utils import (create_sliding_window_causal_mask, sliding_window_bidirectional_mask_function,
                                        sliding_window_causal_mask_function)
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.mistral.modeling_mistral import MistralAttention

from transformer_course.attention import MultiHeadAttention, record_attention, scaled_dot_product_attention
from transformer_course.attention.masks import causal_mask, combine_masks, padding_mask
from transformer_course.modern.attention_variants import (GroupedQueryAttention, pool_kv_heads, sliding_window_mask,
                                                          windowed_attention)
from transformer_course.toolbox.exercises import check, exercise_ids

MODULE = "transformer_course.modern.attention_variants"
F64 = torch.float64


# Plausible answers that are wrong, for each exercise that is checked.

def _many(repeat=lambda heads, times: heads.repeat_interleave(times, dim=0), rows=False, bias=True, settings=True, rotate=True,
          mode=True, alias=False, same=False):
    """An answer to 31.multi-head with something wrong."""
    def to_multi_head(attention):
        if same:
            return attention
        more = {"head_dim": attention.head_dim, "scale": attention.scale} if settings else {"head_dim": attention.head_dim}
        own = MultiHeadAttention(len(attention.output.weight), attention.num_heads, attention.dropout if settings else 0.0,
                                 attention.query.bias is not None, rotate=attention.rotate if rotate else None, **more)
        own = own.to(attention.output.weight)
        times, numbers = attention.num_heads // attention.num_kv_heads, dict(attention.state_dict())
        for name, number in numbers.items():
            if name.startswith(("key", "value")):
                numbers[name] = (number.repeat_interleave(times, dim=0) if rows else
                                 repeat(number.unflatten(0, (-1, attention.head_dim)), times).flatten(0, 1))
            if name.endswith("bias") and not bias:
                numbers[name] = torch.zeros_like(numbers[name])
        own.load_state_dict(numbers)
        if alias:
            own.query = attention.query
        return own.train(attention.training) if mode else own
    return to_multi_head


def _dilated(condition):
    def dilated_mask(length, window, dilation):
        at = torch.arange(length)
        return condition(at[:, None] - at, window, dilation)
    return dilated_mask


WRONG = [
    ("31.layers", [32, 31, 34, 131_072 / 4095, math.ceil(131_072 / 4096)]),
    ("31.field", [lambda windows, length: length if None in windows else min(length, sum(windows)),
                  lambda windows, length: length if None in windows else 1 + sum(w - 1 for w in windows),
                  lambda windows, length: length if None in windows else min(length, 1 + len(windows) * (max(windows, default=1) - 1)),
                  lambda windows, length: min(length, 1 + sum(w - 1 for w in windows if w)),
                  lambda windows, length: length if None in windows else min(length, math.prod(windows))]),
    ("31.dilated", [_dilated(lambda b, w, r: (b >= 0) & (b % r == 0) & (b < w)), _dilated(lambda b, w, r: (b >= 0) & (b < w * r)),
                    _dilated(lambda b, w, r: (b >= 0) & (b % r == 0) & (b <= w * r)),
                    _dilated(lambda b, w, r: (b % r == 0) & (b.abs() < w * r)),
                    _dilated(lambda b, w, r: ((b >= 0) & (b % r == 0) & (b < w * r)).long())]),
    ("31.multi-head", [_many(lambda heads, times: heads.repeat(times, 1, *[1] * (heads.dim() - 2))), _many(rows=True), _many(bias=False),
                       _many(settings=False), _many(rotate=False), _many(mode=False), _many(alias=True), _many(same=True)]),
]


@pytest.mark.parametrize("exercise, answer", [(name, answer) for name, answers in WRONG for answer in answers])
def test_wrong_answers_are_rejected(exercise, answer):
    assert exercise in exercise_ids("31") and not check(exercise, answer)


def randn(*shape, seed=0, dtype=F64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def gradients(output, leaves, seed=9):
    """An output and its gradients along a fixed direction."""
    return [output, *torch.autograd.grad((output * randn(*output.shape, seed=seed, dtype=output.dtype)).sum(), leaves)]


def gap(ours, theirs):
    assert len(ours) == len(theirs)
    return max([(a - b).abs().max().item() for a, b in zip(ours, theirs) if a.numel()], default=0.0)


# The mask ------------------------------------------------------------------------------------------------------------

def is_the_window(make):
    """Whether a mask is 0 <= q - k < window, or |q - k| < window, for text that is shorter, as long and longer than the window, and
    when only the last queries are asked for, down to one."""
    for k_len in (1, 3, 4, 5, 9):
        for length in {1, 2, k_len} - ({2} if k_len < 2 else set()):
            for window in (1, 2, 4, 20):
                for causal in (True, False):
                    wanted = [[(0 if causal else 1 - window) <= q - k < window for k in range(k_len)] for q in range(k_len - length, k_len)]
                    made = make(length, window, causal, k_len)
                    if made.dtype != torch.bool or made.tolist() != wanted:
                        return False
    return True


def mask_mutant(most=0, one_token=False, ends=False, zero=False):
    def make(length, window, causal=True, k_len=None):
        k_len = length if k_len is None else k_len
        if one_token and length == 1:
            return torch.ones(1, k_len, dtype=torch.bool)
        first = 0 if ends else k_len - length
        back = torch.arange(first, first + length)[:, None] - torch.arange(k_len)
        back = back if causal else back.abs()
        return (back >= (1 if zero else 0)) & (back < window + most)
    return make


MASK_FAULTS = {"one key too many (trap 29)": {"most": 1}, "one key too few": {"most": -1}, "the window is dropped for one token": {"one_token": True},
               "queries begin at position 0": {"ends": True}, "a query does not see itself": {"zero": True}}


def test_the_mask_is_the_window():
    assert is_the_window(sliding_window_mask) and is_the_window(mask_mutant())


@pytest.mark.parametrize("fault", MASK_FAULTS)
def test_a_faulty_mask_is_not(fault):
    assert not is_the_window(mask_mutant(**MASK_FAULTS[fault]))


@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 9))
def test_the_mask_equals_transformers(parity, length, window, held):
    theirs = sliding_window_causal_mask_function(window)
    wanted = torch.tensor([[bool(theirs(0, 0, torch.tensor(q), torch.tensor(k))) for k in range(held + length)]
                           for q in range(held, held + length)])
    ours = sliding_window_mask(length, window, k_len=held + length)
    parity(f"{MODULE}.sliding_window_mask", "transformers", (ours ^ wanted).sum().item(), 0, "Mistral's rule for pairs, with and without cached keys")


@given(st.integers(1, 12), st.integers(2, 15), st.integers(0, 9))
def test_both_ways_transformers_counts_one_less(length, window, held):
    theirs = sliding_window_bidirectional_mask_function(window - 1)
    wanted = torch.tensor([[bool(theirs(0, 0, torch.tensor(q), torch.tensor(k))) for k in range(held + length)]
                           for q in range(held, held + length)])
    assert torch.equal(sliding_window_mask(length, window, False, held + length), wanted)


@given(st.integers(1, 12), st.integers(0, 9))
def test_a_window_as_long_as_the_text_hides_nothing_more(length, held):
    for window in (length + held, length + held + 3):
        assert torch.equal(sliding_window_mask(length, window, k_len=length + held), causal_mask(length, length + held))
        assert sliding_window_mask(length, window, False, length + held).all()
    assert sliding_window_mask(0, 3, k_len=held).shape == (0, held)
    assert sliding_window_mask(2, 3, device="meta").device.type == "meta"


# Blocks --------------------------------------------------------------------------------------------------------------

@given(st.data())
def test_blocks_equal_torch_under_the_mask(parity, data):
    """Values and gradients; every kind of length and window, both directions, padding that may hide everything, scales."""
    batch, heads, length = (data.draw(st.integers(1, top)) for top in (3, 3, 14))
    window, causal, seed = data.draw(st.integers(1, 17)), data.draw(st.booleans()), data.draw(st.integers(0, 999))
    width, v_dim, scale = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)), data.draw(st.sampled_from([None, 0.3, 1.0]))
    leaves = [randn(batch, heads, length, d, seed=seed + i).requires_grad_() for i, d in enumerate((width, width, v_dim))]
    rows = data.draw(st.sampled_from([None, 1, batch]))
    mask = None if rows is None else torch.rand(rows, 1, 1, length, generator=torch.Generator().manual_seed(seed)) < 0.6
    near = combine_masks(sliding_window_mask(length, window, causal), mask)
    ours = gradients(windowed_attention(*leaves, window, causal, mask, scale), leaves)
    theirs = gradients(F.scaled_dot_product_attention(*leaves, attn_mask=near, scale=scale), leaves)
    parity(f"{MODULE}.windowed_attention", "torch", gap(ours, theirs), 1e-12,
           "under Mistral's mask: values and gradients, lengths that are no multiple of the window, windows from 1 to beyond the text, "
           "padding, both directions, float64")
    assert (ours[0].transpose(1, 2)[~near.any(-1).expand(batch, heads, length).transpose(1, 2)] == 0).all()


def test_blocks_at_base_size(parity):
    leaves = [randn(2, 8, 700, 64, seed=i, dtype=torch.float32).requires_grad_() for i in range(3)]
    mask = padding_mask([700, 430], 700)
    near = combine_masks(sliding_window_mask(700, 128), mask)
    parity(f"{MODULE}.windowed_attention", "torch",
           gap(gradients(windowed_attention(*leaves, 128, mask=mask), leaves), gradients(F.scaled_dot_product_attention(*leaves, attn_mask=near), leaves)),
           3e-5, "700 positions, window 128, 8 heads of 64, padding: values and gradients, float32")


def equals_full(attend):
    """Whether a windowed attention equals full attention under the mask, also at the edges of blocks; a crash is a no."""
    for length, window in ((1, 1), (5, 1), (8, 4), (9, 4), (7, 4), (11, 3), (4, 9), (6, 5), (6, 6), (6, 7)):
        for causal in (True, False):
            for hide in (False, True):
                q, k, v = (randn(2, 2, length, 3, seed=i) for i in range(3))
                mask = torch.arange(length) >= torch.tensor([0, min(length, window + 1)])[:, None]
                mask = mask[:, None, None] if hide else None
                near = combine_masks(sliding_window_mask(length, window, causal), mask)
                try:
                    made = attend(q, k, v, window, causal, mask)
                except (RuntimeError, IndexError):
                    return False
                wanted = scaled_dot_product_attention(q, k, v, near)
                if made.shape != wanted.shape or not torch.allclose(made, wanted, atol=1e-12):
                    return False
    return True


def blocks_mutant(previous=True, padded=True, first=True, inside=True, most=0):
    """Blocks with a loop, and with something wrong: no key of the block before, padding ignored, made-up keys before the text and behind
    it, no mask inside, off by one."""
    def attend(query, key, value, window, causal=True, mask=None):
        length, rows = query.shape[2], []
        for start in range(0, length, window):
            low = start - (window if previous else 0)
            high = start + window + (0 if causal else window)
            q = torch.arange(start, min(start + window, length))
            k = torch.arange(low, high)
            back = q[:, None] - k
            near = (back < window + most) & ((back >= 0) if causal else (back > -window - most))
            real = (k >= 0) & (k < length)
            near = near if inside else torch.ones_like(near)
            near = near & real if first else near
            at = k.clamp(0, length - 1)
            near = near[None, None] & (mask[..., at] if mask is not None and padded else True)
            zeros = torch.where(real[:, None], 1.0, 0.0).double()
            rows.append(scaled_dot_product_attention(query[:, :, q], key[:, :, at] * zeros, value[:, :, at] * zeros, near))
        return torch.cat(rows, dim=2)
    return attend


BLOCK_FAULTS = {"sees its own block alone": {"previous": False}, "padding is ignored": {"padded": False}, "keys before the text count": {"first": False},
                "no mask inside the blocks": {"inside": False}, "one key too many": {"most": 1}, "one key too few": {"most": -1}}


def test_blocks_equal_full_attention():
    assert equals_full(windowed_attention) and equals_full(blocks_mutant())


@pytest.mark.parametrize("fault", BLOCK_FAULTS)
def test_faulty_blocks_do_not(fault):
    assert not equals_full(blocks_mutant(**BLOCK_FAULTS[fault]))


class Largest(TorchDispatchMode):
    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        self.bytes = max([self.bytes, *(t.untyped_storage().nbytes() for t in tree_leaves(made) if isinstance(t, torch.Tensor))])
        return made


def cost(attend, length, window):
    q, k, v = (randn(1, 4, length, 16, seed=i, dtype=torch.float32) for i in range(3))
    with Largest() as seen:
        attend(q, k, v, window)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:      # where products are counted, whatever the kernel
        attend(*(t.to("meta") for t in (q, k, v)), window)
    return counter.get_total_flops(), seen.bytes


def grows_with_the_length(attend):
    """Whether twice the text costs at most little more than twice the operations and the largest tensor, and less than full attention."""
    small, large = cost(attend, 1024, 64), cost(attend, 2048, 64)
    full = cost(lambda q, k, v, w: scaled_dot_product_attention(q, k, v, sliding_window_mask(q.shape[2], w)), 2048, 64)
    return full[0] > 0 and all(b <= 2.1 * a and b < c / 4 for a, b, c in zip(small, large, full))


def test_blocks_cost_as_much_as_the_text_is_long_and_a_mask_does_not():
    assert grows_with_the_length(windowed_attention)
    assert not grows_with_the_length(lambda q, k, v, w: scaled_dot_product_attention(q, k, v, sliding_window_mask(q.shape[2], w)))
    assert not grows_with_the_length(lambda q, k, v, w: scaled_dot_product_attention(q, k, v, sliding_window_mask(q.shape[2], w), return_weights=True)[0])


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.03), (torch.float16, 0.004)])
def test_blocks_in_half_precision(dtype, tolerance):
    q, k, v = (randn(2, 2, 11, 8, seed=i, dtype=dtype) for i in range(3))
    mask = padding_mask([11, 0], 11)
    made = windowed_attention(q, k, v, 4, mask=mask)
    assert made.dtype == dtype and (made - windowed_attention(q.double(), k.double(), v.double(), 4, mask=mask)).abs().max() < tolerance
    assert (made[1] == 0).all() and windowed_attention(100 * q, 100 * k, v, 4).isfinite().all()


def test_blocks_of_nothing_and_on_meta():
    assert windowed_attention(*[torch.zeros(2, 3, 0, 4)] * 3, 2).shape == (2, 3, 0, 4)
    assert windowed_attention(*[torch.zeros(0, 3, 5, 4)] * 3, 2).shape == (0, 3, 5, 4)
    q, k, v = torch.empty(3, 2, 3, 7, 4, device="meta").unbind()
    assert windowed_attention(q, k, v, 3).shape == (2, 3, 7, 4)
    q, k, v = randn(3, 2, 4, 7, 3).transpose(2, 4).unbind()      # not contiguous
    assert torch.allclose(windowed_attention(q, k, v, 2), windowed_attention(*(t.contiguous() for t in (q, k, v)), 2))


@given(st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_a_stack_sees_as_far_as_the_formula_says(layers, window, causal):
    """By gradients: exactly zero outside, not zero inside."""
    torch.manual_seed(0)
    x = randn(1, 1, 40, 4).requires_grad_()
    y = x
    for i in range(layers):
        y = y + windowed_attention(y @ randn(4, 4, seed=i + 1) / 4, y, y @ randn(4, 4, seed=i + 20) / 4, window, causal)
    grad, = torch.autograd.grad(y[0, 0, 20].square().sum(), x)
    reach = layers * (window - 1)
    wanted = list(range(20 - reach, 20 + (0 if causal else reach) + 1))
    assert grad[0, 0].abs().amax(-1).nonzero().flatten().tolist() == wanted


# Grouped heads: agreement ----------------------------------------------------------------------------------------------

def theirs_and_ours(kind, config, seed=0, dtype=F64):
    """transformers' attention and ours with the same weights, and ours turning queries and keys as theirs does."""
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        theirs = kind(config, 0).to(F64)
    angles = LlamaRotaryEmbedding(config)

    def rotate(x, start):
        cos, sin = angles(x.double(), torch.arange(start, start + x.shape[2])[None])
        return apply_rotary_pos_emb(x, x, cos.to(x.dtype), sin.to(x.dtype))[0]
    ours = GroupedQueryAttention(config.hidden_size, config.num_attention_heads, config.num_key_value_heads,
                                 bias=theirs.q_proj.bias is not None, head_dim=theirs.head_dim, rotate=rotate).double()
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
    for name, number in theirs.named_parameters():
        with torch.no_grad():
            number.copy_(randn(*number.shape, seed=seed + len(name) + number.shape[0]) * 0.4)
    ours.load_state_dict({name.replace((key := name.split(".")[0]), names[key]): number for name, number in theirs.state_dict().items()})
    order = [dict(ours.named_parameters())[name.replace(name.split(".")[0], names[name.split(".")[0]])] for name, _ in theirs.named_parameters()]
    return theirs.to(dtype), ours.to(dtype), angles, order


SIZES = st.sampled_from([(12, 6, 2, 4), (15, 3, 1, 6), (12, 4, 4, 2), (6, 6, 3, 4), (8, 8, 2, 2)])   # d_model, heads, kv heads, head_dim


@given(SIZES, st.booleans(), st.integers(1, 3), st.integers(1, 7), st.booleans(), st.integers(0, 99))
def test_equals_llama(parity, sizes, bias, batch, length, hide, seed):
    d_model, heads, kv_heads, head_dim = sizes
    theirs, ours, angles, order = theirs_and_ours(LlamaAttention, LlamaConfig(
        hidden_size=d_model, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, attention_bias=bias), seed)
    x = randn(batch, length, d_model, seed=seed + 1).requires_grad_()
    mask = causal_mask(length)[None, None].expand(batch, 1, -1, -1)
    if hide:
        mask = mask & (torch.rand(batch, 1, length, length, generator=torch.Generator().manual_seed(seed)) < 0.6)
        mask = mask | torch.eye(length).bool()                    # theirs gives no zeros where nothing is seen
    hidden = torch.zeros(mask.shape, dtype=F64).masked_fill(~mask, -math.inf)
    expected, _ = theirs(x, position_embeddings=angles(x, torch.arange(length)[None]), attention_mask=hidden)
    parity(f"{MODULE}.GroupedQueryAttention", "transformers",
           gap(gradients(ours(x, mask=mask), [x, *order]), gradients(expected, [x, *theirs.parameters()])), 1e-11,
           "LLaMA's attention: values and gradients; rotary, masks, with and without biases, odd sizes, float64")
    theirs.config._attn_implementation = "eager"                  # which gives the weights, but computes their softmax in float32
    _, weights = theirs(x, position_embeddings=angles(x, torch.arange(length)[None]), attention_mask=hidden)
    with record_attention(ours) as seen:
        ours(x, mask=mask)
    parity(f"{MODULE}.GroupedQueryAttention", "transformers", gap(seen[""], [weights]), 1e-6, "LLaMA's attention: the weights of each head, float32 softmax")


@given(SIZES, st.integers(2, 6), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 99))   # with a window of 1 their cache forgets nothing
def test_equals_mistral_with_a_cache(parity, sizes, window, pieces, seed):
    """Text that comes in pieces of any size, shorter and longer than the window; their cache and their mask, our mask over all positions."""
    d_model, heads, kv_heads, head_dim = sizes
    config = MistralConfig(hidden_size=d_model, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
                           sliding_window=window, num_hidden_layers=1)
    theirs, ours, angles, _ = theirs_and_ours(MistralAttention, config, seed)
    their_cache, our_cache, short = DynamicCache(config=config), Kept(), Kept(window)
    x, start = randn(2, sum(pieces), d_model, seed=seed + 1), 0
    with torch.no_grad():
        for piece in pieces:
            new, positions = x[:, start:start + piece], torch.arange(start, start + piece)[None]
            hidden = create_sliding_window_causal_mask(config=config, inputs_embeds=new, attention_mask=None, cache=their_cache, position_ids=positions)
            expected, _ = theirs(new, angles(new, positions), hidden, cache=their_cache)
            start += piece
            mask = sliding_window_mask(piece, window, k_len=start)
            made = [ours(new, mask=mask, cache=cache) for cache in (our_cache, short)]
            parity(f"{MODULE}.GroupedQueryAttention", "transformers", gap(made, [expected] * 2), 1e-11,
                   "Mistral's attention with its cache and its sliding window: text in pieces of any size, rotary, odd sizes, float64")


def test_equals_llama_at_base_size(parity):
    theirs, ours, angles, _ = theirs_and_ours(LlamaAttention, LlamaConfig(
        hidden_size=512, num_attention_heads=8, num_key_value_heads=2, head_dim=64), dtype=torch.float32)
    with torch.no_grad():
        for module in (theirs, ours):
            for number in module.parameters():
                number.mul_(0.1)
        x, mask = randn(2, 40, 512, dtype=torch.float32), causal_mask(40)
        hidden = torch.zeros(1, 1, 40, 40).masked_fill(~mask, -math.inf)
        expected, _ = theirs(x, position_embeddings=angles(x, torch.arange(40)[None]), attention_mask=hidden)
        parity(f"{MODULE}.GroupedQueryAttention", "transformers", (ours(x, mask=mask) - expected).abs().max().item(), 2e-5,
               "LLaMA's attention, 512 wide, 8 heads in 2 groups, float32")


@given(st.data())
def test_groups_equal_torchs(parity, data):
    """torch's enable_gqa: values and gradients; masks and biases of every allowed shape, context, no biases."""
    heads, kv_heads = data.draw(st.sampled_from([(6, 3), (6, 2), (6, 1), (4, 2), (3, 3)]))
    batch, q_len, k_len, seed = (data.draw(st.integers(1, top)) for top in (3, 4, 5, 999))
    cross = data.draw(st.booleans())
    k_len = k_len if cross else q_len
    ours = grouped(heads, kv_heads, seed=seed, bias=data.draw(st.booleans()), scale=data.draw(st.sampled_from([None, 0.4])))
    x, context = randn(batch, q_len, 12, seed=seed).requires_grad_(), randn(batch, k_len, 12, seed=seed + 1).requires_grad_()
    source = context if cross else x
    leaves = [x, *([context] if cross else []), *ours.parameters()]
    mask = bias = None
    if shape := data.draw(st.sampled_from([None, (q_len, k_len), (1, k_len), (q_len, 1), (1, 1, q_len, k_len), (batch, 1, 1, k_len), (batch, 1, q_len, k_len),
                                           (1, heads, q_len, k_len), (batch, heads, 1, k_len), (batch, heads, q_len, k_len), (1, heads, 1, 1)])):
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    if shape := data.draw(st.sampled_from([None, (q_len, k_len), (heads, q_len, k_len), (heads, 1, k_len), (1, 1, k_len), (batch, heads, q_len, k_len),
                                           (batch, 1, q_len, 1), (1, heads, q_len, 1)])):
        bias = randn(*shape, seed=seed + 3).requires_grad_()
        leaves.append(bias)
    query, key, value = (layer(given).unflatten(-1, (n, -1)).transpose(1, 2) for layer, given, n in (
        (ours.query, x, heads), (ours.key, source, kv_heads), (ours.value, source, kv_heads)))
    numbers = torch.zeros(batch, heads, q_len, k_len, dtype=F64) if bias is None else bias.expand(batch, heads, q_len, k_len)
    numbers = numbers if mask is None else numbers.masked_fill(~mask, -math.inf)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=numbers, scale=ours.scale, enable_gqa=True)
    expected = gradients(ours.output(mixed.transpose(1, 2).flatten(2)), leaves)
    made = gradients(ours(x, context if cross else None, mask, bias), leaves)
    with record_attention(ours) as seen:
        again = gradients(ours(x, context if cross else None, mask, bias), leaves)
    assert seen[""][0].shape == (batch, heads, q_len, k_len)
    parity(f"{MODULE}.GroupedQueryAttention", "torch", max(gap(made, expected), gap(again, expected)), 1e-12,
           "scaled_dot_product_attention(enable_gqa=True): values and gradients, masks and biases of every shape, self and cross, float64")


# Grouped heads: faults ---------------------------------------------------------------------------------------------------

def grouped(heads, kv_heads, d_model=12, seed=0, dtype=F64, kind=GroupedQueryAttention, **more):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        attention = kind(d_model, heads, kv_heads, head_dim=4, **more).to(dtype)
        for name, number in attention.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(number)
    return attention


class Kept:
    """A cache that keeps everything, or, with a window, what the next queries may still see: it forgets after it has answered."""

    def __init__(self, window=None, early=0, truncate=False):
        self.window, self.early, self.truncate, self.length, self.kept = window, early, truncate, 0, None

    def update(self, key, value):
        if self.truncate and self.window:                        # a long prompt is cut before it was used
            whole = [torch.cat([old, new], dim=2)[:, :, -self.window:] for old, new in zip(self.kept or (key[:, :, :0], value[:, :, :0]), (key, value))]
        else:
            whole = [torch.cat([old, new], dim=2) for old, new in zip(self.kept, (key, value))] if self.kept else [key, value]
        self.length += key.shape[2]
        keep = whole[0].shape[2] if self.window is None else max(self.window - 1 - self.early, 0)
        self.kept = [part[:, :, part.shape[2] - min(keep, part.shape[2]):] for part in whole]
        return tuple(whole)


def decodes_as_at_once(make, cache, mask=sliding_window_mask):
    """Whether text in pieces, through a cache and a window, comes out as it does at once: texts of W - 1, W and W + 1 tokens and more,
    prompts that are longer than the window, one token at a time; a crash is a no."""
    attention, window = make(6, 2), 4
    for pieces in ([1] * 3, [1] * 4, [1] * 5, [1] * 9, [3, 1, 1, 1], [4, 1, 1], [5, 1, 1], [9, 1, 1], [9, 3, 1], [2, 6, 1]):
        x, cached, start, made = randn(2, sum(pieces), 12), cache(window), 0, []
        whole = attention(x, mask=sliding_window_mask(sum(pieces), window))
        for piece in pieces:
            start += piece
            try:
                made.append(attention(x[:, start - piece:start], mask=mask(piece, window, k_len=start), cache=cached))
            except (RuntimeError, ValueError):
                return False
        if not torch.allclose(torch.cat(made, dim=1), whole, atol=1e-12):
            return False
    return True


CACHE_FAULTS = {
    "forgets one step early (trap 30)": {"cache": lambda w: Kept(w, early=1)},
    "a long prompt is cut before it is used (trap 30)": {"cache": lambda w: Kept(w, truncate=True)},
    "the window is dropped for one token (trap 29)": {"mask": mask_mutant(one_token=True)},
    "the window is one too long (trap 29)": {"mask": mask_mutant(most=1)},
    "queries begin at position 0": {"mask": mask_mutant(ends=True)},
}


def test_decoding_through_a_window():
    for cache in (lambda w: Kept(), Kept):
        assert decodes_as_at_once(grouped, cache) and decodes_as_at_once(grouped, cache, mask_mutant())


@pytest.mark.parametrize("fault", CACHE_FAULTS)
def test_faulty_decoding_is_found(fault):
    settings = {"cache": lambda w: Kept(), **CACHE_FAULTS[fault]}
    assert not decodes_as_at_once(grouped, **settings)


class Repeats(GroupedQueryAttention):
    """Grouped attention that repeats keys, with something wrong."""
    order, fold = "interleave", True

    def _mix(self, query, key, value, mask, bias):
        times = self.num_heads // self.num_kv_heads
        if self.order == "interleave":
            key, value = (part.repeat_interleave(times, dim=1) for part in (key, value))
        elif self.order == "tile":
            key, value = (part.repeat(1, times, 1, 1) for part in (key, value))
        elif self.order == "values tiled":
            key, value = key.repeat_interleave(times, dim=1), value.repeat(1, times, 1, 1)
        elif self.order == "sequence":                            # repeats the wrong axis, and cuts heads anew
            key, value = (part.repeat_interleave(times, dim=2).reshape(len(part), self.num_heads, part.shape[2], -1) for part in (key, value))
        return MultiHeadAttention._mix(self, query, key, value, mask, bias)


class Folds(GroupedQueryAttention):
    """Grouped attention that folds masks and biases in the wrong order, or the queries."""
    what = "mask"

    def _mix(self, query, key, value, mask, bias):
        batch, heads, q_len, width = query.shape
        times = heads // self.num_kv_heads

        def fold(part, wrong):
            if part is None:
                return None
            part = part.expand(batch, heads, q_len, part.shape[-1]) if part.dim() == 4 else part.expand(batch, heads, *part.shape)
            part = part.unflatten(1, (self.num_kv_heads, times))
            return (part.transpose(2, 3) if wrong else part).reshape(batch, self.num_kv_heads, times * q_len, -1)
        mixed = MultiHeadAttention._mix(self, fold(query, self.what == "query"), key, value, fold(mask, self.what == "mask"),
                                        fold(bias, self.what == "bias"))
        return mixed.reshape(query.shape) if self.recorded is None else (mixed[0].reshape(query.shape), mixed[1].reshape(batch, heads, q_len, -1))


def shares_in_order(kind):
    """Whether query head h reads key head h // (heads / kv_heads) under causal masks and biases for each head: against a loop over heads."""
    for heads, kv_heads in ((6, 2), (6, 3), (4, 2), (6, 1), (3, 3)):
        attention, x = grouped(heads, kv_heads, kind=kind), randn(2, 5, 12)
        mask, bias = causal_mask(5), randn(heads, 5, 5)
        query, key, value = (layer(x).unflatten(-1, (n, 4)) for layer, n in (
            (attention.query, heads), (attention.key, kv_heads), (attention.value, kv_heads)))
        mixed = torch.stack([scaled_dot_product_attention(query[:, :, h], key[:, :, j], value[:, :, j], mask, bias[h])
                             for h in range(heads) for j in [h // (heads // kv_heads)]], dim=2)
        try:
            made = attention(x, mask=mask, bias=bias)
        except RuntimeError:
            return False
        if not torch.allclose(made, attention.output(mixed.flatten(2)), atol=1e-12):
            return False
    return True


def test_heads_share_in_order():
    assert shares_in_order(GroupedQueryAttention) and shares_in_order(Repeats) and shares_in_order(type("Sound", (Folds,), {"what": None}))


@pytest.mark.parametrize("kind", [*(type(name, (Repeats,), {"order": name}) for name in ("tile", "values tiled", "sequence")),
                                  *(type(name, (Folds,), {"what": name}) for name in ("mask", "bias", "query"))], ids=lambda kind: kind.__name__)
def test_heads_out_of_order_are_found(kind):
    assert not shares_in_order(kind)


# Grouped heads: the contract -----------------------------------------------------------------------------------------------

@given(st.integers(1, 4), st.booleans(), st.integers(0, 99))
def test_with_as_many_key_heads_it_is_multi_head(heads, bias, seed):
    torch.manual_seed(seed)
    own = MultiHeadAttention(5, heads, bias=bias, head_dim=3)
    torch.manual_seed(seed)
    same = GroupedQueryAttention(5, heads, heads, bias=bias, head_dim=3)
    x = randn(2, 4, 5, dtype=torch.float32)
    assert list(own.state_dict()) == list(same.state_dict()) and torch.equal(own(x), same(x))      # drawn alike
    other = GroupedQueryAttention(5, heads, heads, bias=bias, head_dim=3)
    other.load_state_dict(own.state_dict())
    own.load_state_dict(other.state_dict())
    assert torch.equal(own(x, mask=causal_mask(4)), other(x, mask=causal_mask(4)))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_every_layer_is_drawn_from_xaviers_distribution(kv_heads):
    attention = GroupedQueryAttention(128, 8, kv_heads)
    for layer in (attention.query, attention.key, attention.value, attention.output):
        bound = math.sqrt(6 / sum(layer.weight.shape))
        assert 0.98 * bound < layer.weight.abs().max() <= bound and (layer.bias == 0).all()
    assert attention.key.weight.shape == (16 * kv_heads, 128)


def test_dropout_falls_on_each_heads_own_weights():
    attention = grouped(6, 2, dropout=0.4)
    x = randn(3, 9, 12)
    torch.manual_seed(0)
    with record_attention(attention) as seen:
        attention(x)
    weights = seen[""][0]
    assert weights.shape == (3, 6, 9, 9) and abs((weights == 0).double().mean() - 0.4) < 0.05
    assert not torch.equal(weights[:, 0] == 0, weights[:, 1] == 0)
    assert not torch.allclose(attention(x), attention(x))
    assert torch.equal(attention.eval()(x), attention(x))


def test_what_a_cache_gets_is_not_repeated():
    attention, cache = grouped(6, 2), Kept()
    attention(randn(2, 5, 12), cache=cache)
    assert [part.shape for part in cache.kept] == [(2, 2, 5, 4)] * 2


def test_a_context_is_cached_once():
    attention, cache, context, x = grouped(6, 2), Kept(), randn(2, 7, 12, seed=1), randn(2, 3, 12)
    mask, bias = padding_mask([7, 4], 7), randn(6, 3, 7)
    wanted = attention(x, context, mask, bias)
    made = [attention(x[:, t:t + 1], context, mask, bias[:, t:t + 1], cache) for t in range(3)]
    assert cache.length == 7 and torch.allclose(torch.cat(made, dim=1), wanted, atol=1e-12)


def test_rotation_starts_where_the_cache_ends():
    starts = []

    def rotate(x, start):
        starts.append((x.shape[1], start))
        return x * torch.arange(start + 1, start + 1 + x.shape[2], dtype=x.dtype)[:, None].cos()
    attention, cache, x = grouped(6, 2, rotate=rotate), Kept(), randn(2, 5, 12)
    wanted = attention(x, mask=causal_mask(5))
    made = torch.cat([attention(x[:, :3], mask=causal_mask(3), cache=cache), attention(x[:, 3:], mask=causal_mask(2, 5), cache=cache)], dim=1)
    assert starts == [(6, 0), (2, 0)] * 2 + [(6, 3), (2, 3)] and torch.allclose(made, wanted, atol=1e-12)


@pytest.mark.parametrize("recording", [True, False])
def test_a_query_that_may_look_nowhere_gets_zeros(recording):
    attention, x = grouped(6, 2), randn(2, 4, 12).requires_grad_()
    mask = torch.ones(2, 6, 4, 4, dtype=torch.bool)
    mask[0, :, 1], mask[1, 3] = False, False
    if recording:
        with record_attention(attention) as seen:
            output = attention(x, mask=mask)
        assert (seen[""][0][0, :, 1] == 0).all() and (seen[""][0][1, 3] == 0).all() and (seen[""][0][1, 2].sum(-1) - 1).abs().max() < 1e-12
    else:
        output = attention(x, mask=mask)
    assert torch.allclose(output[0, 1], attention.output.bias)
    assert all(part.isfinite().all() for part in gradients(output, [x, *attention.parameters()]))


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.06), (torch.float16, 0.008)])
def test_half_precision(dtype, tolerance):
    exact = grouped(6, 2)
    ours, x = copy.deepcopy(exact).to(dtype), randn(2, 7, 12, dtype=dtype)
    output = ours(x, mask=causal_mask(7))
    assert output.dtype == dtype and (output - exact(x.double(), mask=causal_mask(7))).abs().max() < tolerance
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert exact.float()(x.float()).dtype == torch.bfloat16


def test_nothing_on_meta_and_copies():
    attention = grouped(6, 2)
    assert attention(randn(2, 0, 12)).shape == (2, 0, 12) and attention(randn(0, 3, 12), mask=causal_mask(3)).shape == (0, 3, 12)
    with torch.device("meta"):
        assert GroupedQueryAttention(12, 6, 2)(torch.empty(2, 3, 12), mask=causal_mask(3, device="meta")).shape == (2, 3, 12)
    x = randn(2, 3, 12)
    for twin in (copy.deepcopy(attention), pickle.loads(pickle.dumps(attention))):
        assert torch.equal(twin(x), attention(x))
    other = grouped(6, 2, seed=1)
    other.load_state_dict(attention.state_dict())
    assert torch.equal(other(x), attention(x))
    with pytest.raises(RuntimeError, match="size mismatch for key.weight"):
        grouped(6, 3).load_state_dict(attention.state_dict())


# Pooling -------------------------------------------------------------------------------------------------------------------

def pools_by_groups(pool):
    """Whether a conversion takes means over neighbouring heads, keeps the rest, and leaves what it was given alone."""
    turn = torch.nn.Identity()
    for heads, kv_heads, bias in ((6, 2, True), (6, 3, False), (4, 1, True), (4, 4, True)):
        attention = grouped(heads, heads, bias=bias, dropout=0.25, scale=0.3, rotate=lambda x, start: turn(x) * 0.5).eval()
        before = copy.deepcopy(attention.state_dict())
        made = pool(attention, kv_heads)
        for name, number in attention.state_dict().items():
            if not torch.equal(number, before[name]):
                return False
            if name.startswith(("key", "value")):
                number = torch.stack([number[4 * i:4 * i + 4] for i in range(heads)])
                size = heads // kv_heads
                number = torch.cat([number[size * j:size * (j + 1)].mean(dim=0) for j in range(kv_heads)])
            if not torch.allclose(made.state_dict()[name], number, atol=1e-12):
                return False
        if (made.dropout, made.scale, made.training, made.num_kv_heads) != (0.25, 0.3, False, kv_heads) or made.rotate is not attention.rotate:
            return False
        with torch.no_grad():
            for number in made.parameters():
                number.zero_()
        if not all(torch.equal(number, before[name]) for name, number in attention.state_dict().items()):
            return False
    return True


def pool_mutant(how=lambda heads, g: heads.unflatten(0, (g, -1)).mean(1), bias=True, alias=False, settings=True):
    def pool(attention, kv_heads):
        more = {"scale": attention.scale, "rotate": attention.rotate, "dropout": attention.dropout} if settings else {}
        made = GroupedQueryAttention(12, attention.num_heads, kv_heads, bias=attention.query.bias is not None, head_dim=4, **more).double()
        numbers = dict(attention.state_dict())
        for name in numbers:
            if name.startswith(("key", "value")):
                pooled = how(numbers[name].unflatten(0, (-1, 4)), kv_heads).flatten(0, 1)
                numbers[name] = pooled if bias or name.endswith("weight") else torch.zeros_like(pooled)
        made.load_state_dict(numbers)
        if alias:
            made.output = attention.output
        return made.train(attention.training)
    return pool


POOL_FAULTS = {"sums": {"how": lambda heads, g: heads.unflatten(0, (g, -1)).sum(1)}, "takes every g-th": {"how": lambda heads, g: heads.unflatten(0, (-1, g)).mean(0)},
               "takes the first": {"how": lambda heads, g: heads.unflatten(0, (g, -1))[:, 0]}, "forgets the biases": {"bias": False},
               "shares parameters": {"alias": True}, "forgets the settings": {"settings": False}}


def test_pooling_takes_means_of_groups():
    assert pools_by_groups(pool_kv_heads) and pools_by_groups(pool_mutant())


@pytest.mark.parametrize("fault", POOL_FAULTS)
def test_faulty_pooling_does_not(fault):
    assert not pools_by_groups(pool_mutant(**POOL_FAULTS[fault]))


@given(st.sampled_from([(6, 2), (6, 3), (6, 1), (4, 2)]), st.integers(0, 99))
def test_pooling_equal_heads_changes_nothing(sizes, seed):
    few = grouped(*sizes, seed=seed)
    many = grouped(sizes[0], sizes[0], seed=seed)
    with torch.no_grad():
        for name, number in few.named_parameters():
            number = number.unflatten(0, (-1, 4)).repeat_interleave(sizes[0] // sizes[1], dim=0).flatten(0, 1) if name.startswith(("key", "value")) else number
            many.get_parameter(name).copy_(number)
    x = randn(2, 4, 12)
    assert torch.allclose(pool_kv_heads(many, sizes[1])(x), many(x), atol=1e-12) and torch.allclose(few(x), many(x), atol=1e-12)
    assert torch.allclose(pool_kv_heads(pool_kv_heads(many, sizes[1]), 1).key.weight, pool_kv_heads(many, 1).key.weight, atol=1e-12)


def test_pooling_draws_nothing_and_keeps_dtype_and_gradients():
    attention = grouped(6, 6).half()
    torch.manual_seed(0)
    pooled = pool_kv_heads(attention, 2)
    first = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(first, torch.rand(1)) and type(pooled) is GroupedQueryAttention
    assert all(number.dtype == torch.float16 and number.requires_grad and number.is_leaf for number in pooled.parameters())


# What they refuse -----------------------------------------------------------------------------------------------------------

def wrong(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


FINE = [torch.zeros(2, 3, 5, 4)] * 3


@pytest.mark.parametrize("call, error, says", [
    (lambda: sliding_window_mask(3, 0), ValueError, r"window \(0\) must be a whole number, 1 or more"),
    (lambda: sliding_window_mask(3, -1), ValueError, "window"),
    (lambda: sliding_window_mask(3, 2.0), ValueError, "window"),
    (lambda: sliding_window_mask(3, True), ValueError, "window"),
    (lambda: sliding_window_mask(3, None), ValueError, "window"),
    (lambda: sliding_window_mask(-1, 2), ValueError, "length"),
    (lambda: sliding_window_mask(3, 2, k_len=2), ValueError, r"k_len \(2\) must not be less than length \(3\)"),
    (lambda: sliding_window_mask(3, 2, 4), TypeError, r"causal \(4\) must be True or False"),
    (lambda: windowed_attention(*FINE, 0), ValueError, r"window \(0\)"),
    (lambda: windowed_attention(*FINE, 2, causal=None), TypeError, "causal"),
    (lambda: windowed_attention(*FINE[:2], [[1]], 2), TypeError, "value must be a tensor, not list"),
    (lambda: windowed_attention(FINE[0][0], *FINE[1:], 2), ValueError, r"query must have shape .* not \(3, 5, 4\)"),
    (lambda: windowed_attention(FINE[0], wrong(2, 1, 5, 4), FINE[2], 2), ValueError, r"key must have shape .* not \(2, 1, 5, 4\)"),
    (lambda: windowed_attention(*FINE[:2], wrong(2, 3, 6, 4), 2), ValueError, "value must have shape"),
    (lambda: windowed_attention(FINE[0], wrong(2, 3, 5, 3), FINE[2], 2), ValueError, "key must be as wide as query"),
    (lambda: windowed_attention(FINE[0], FINE[1].double(), FINE[2], 2), TypeError, "key has dtype torch.float64"),
    (lambda: windowed_attention(*FINE, 2, scale=math.nan), ValueError, "scale"),
    (lambda: windowed_attention(*FINE, 2, mask=torch.ones(2, 1, 1, 5)), TypeError, "mask must hold booleans"),
    (lambda: windowed_attention(*FINE, 2, mask=[True]), TypeError, "not list"),
    (lambda: windowed_attention(*FINE, 2, mask=torch.ones(5, 5).bool()), ValueError, r"mask must be over the keys, .* \(2, 1, 1, 5\), not \(5, 5\)"),
    (lambda: windowed_attention(*FINE, 2, mask=torch.ones(3, 1, 1, 5).bool()), ValueError, "over the keys"),
    (lambda: windowed_attention(*FINE, 2, mask=torch.ones(2, 1, 1, 1).bool()), ValueError, "over the keys"),
    (lambda: windowed_attention(*FINE, 2, mask=torch.ones(2, 1, 1, 5, device="meta").bool()), ValueError, "mask is on meta, but query on cpu"),
    (lambda: GroupedQueryAttention(12, 6, 4), ValueError, r"num_kv_heads \(4\) must divide num_heads \(6\)"),
    (lambda: GroupedQueryAttention(12, 6, 12), ValueError, r"num_kv_heads \(12\) must divide"),
    (lambda: GroupedQueryAttention(12, 6, 0), ValueError, r"num_kv_heads \(0\)"),
    (lambda: GroupedQueryAttention(12, 6, None), ValueError, "num_kv_heads"),
    (lambda: GroupedQueryAttention(12, 0, 1), ValueError, r"num_heads \(0\)"),
    (lambda: GroupedQueryAttention(12, 5, 1), ValueError, r"num_heads \(5\) must divide d_model \(12\)"),
    (lambda: GroupedQueryAttention(12, 6, 2, 1.0), ValueError, "dropout"),
    (lambda: GroupedQueryAttention(12, 6, 2, bias=1), TypeError, "bias"),
    (lambda: GroupedQueryAttention(12, 6, 2, rotate=3), TypeError, "rotate"),
    (lambda: GroupedQueryAttention(12, 6, 2, scale=-1.0), ValueError, "scale"),
    (lambda: pool_kv_heads(nn.Linear(2, 2), 1), TypeError, "attention must be a MultiHeadAttention, not Linear"),
    (lambda: pool_kv_heads(MultiHeadAttention(12, 6), 4), ValueError, r"num_kv_heads \(4\) must divide .* \(6\)"),
    (lambda: pool_kv_heads(GroupedQueryAttention(12, 6, 2), 3), ValueError, r"must divide the number of key heads of attention \(2\)"),
    (lambda: pool_kv_heads(MultiHeadAttention(12, 6), 0), ValueError, "num_kv_heads"),
])
def test_wrong_arguments(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize("more, error, says", [
    ({"mask": torch.ones(6, 3, 3).bool()}, ValueError, "3 dimensions would be read as"),
    ({"mask": torch.ones(2, 2, 3, 3).bool()}, ValueError, r"broadcast to \(batch, heads, q_len, k_len\) = \(2, 6, 3, 3\)"),   # not one for each key head
    ({"mask": torch.ones(3, 3)}, TypeError, "mask must be a boolean tensor"),
    ({"bias": torch.zeros(2, 3, 3)}, ValueError, "bias must have"),
    ({"cache": object()}, TypeError, "cache"),
    ({"context": torch.zeros(2, 3, 5)}, ValueError, "context must have shape"),
])
def test_wrong_input(unchecked, more, error, says):
    with pytest.raises(error, match=says):
        GroupedQueryAttention(12, 6, 2)(torch.zeros(2, 3, 12), **more)


# Speed -------------------------------------------------------------------------------------------------------------------------

@pytest.mark.bench
def test_speed_of_a_step_of_decoding(unchecked, within):
    """32 heads of queries, 8 of keys and values, 2,048 positions: at most half of what it takes to repeat them first."""
    attention = GroupedQueryAttention(64, 32, 8, head_dim=64).eval()
    query, key, value = (randn(1, heads, length, 64, seed=heads, dtype=torch.float32) for heads, length in ((32, 1), (8, 2048), (8, 2048)))
    with torch.no_grad():
        within("grouped decoding / repeating heads", ratio(
            lambda: attention._mix(query, key, value, None, None),
            lambda: scaled_dot_product_attention(query, key.repeat_interleave(4, dim=1), value.repeat_interleave(4, dim=1))), 0.5)


@pytest.mark.bench
def test_speed_of_a_prompt_in_groups(unchecked, within):
    attention = GroupedQueryAttention(64, 32, 8, head_dim=64).eval()
    query, key, value, mask = *(randn(1, heads, 256, 64, seed=heads, dtype=torch.float32) for heads in (32, 8, 8)), causal_mask(256)
    with torch.no_grad():
        within("grouped prompt / repeating heads", ratio(
            lambda: attention._mix(query, key, value, mask, None),
            lambda: scaled_dot_product_attention(query, key.repeat_interleave(4, dim=1), value.repeat_interleave(4, dim=1), mask), rounds=5), 1.25)


@pytest.mark.bench
def test_speed_of_the_window(unchecked, within):
    """At 2,048 positions and a window of 64: against full attention under the mask, and against itself at half the length."""
    def at(length):
        q, k, v = (randn(1, 4, length, 32, seed=i, dtype=torch.float32) for i in range(3))
        mask = sliding_window_mask(length, 64)
        return lambda: windowed_attention(q, k, v, 64), lambda: scaled_dot_product_attention(q, k, v, mask)
    with torch.no_grad():
        (blocks, masked), (half, _) = at(2048), at(1024)
        mine, full, shorter = interleaved(blocks, masked, half, rounds=7)
    within("windowed_attention / full attention under the mask, 2,048", mine / full, 0.25)
    within("windowed_attention, 2,048 / 1,024", mine / shorter, 3.0)
