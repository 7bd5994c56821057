"""Scaled dot-product attention: two paths, one contract; equal to a slow loop and to PyTorch's; the famous faults; what it refuses."""
import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from speed import ratio
from torch.nn import functional as F

from transformer_course.attention import scaled_dot_product_attention

EXPORT = "transformer_course.attention.self_attention.scaled_dot_product_attention"
HALVES = [torch.bfloat16, torch.float16]
DTYPES = [torch.float64, torch.float32, *HALVES]

# -- plausible answers that are wrong, for each exercise that is checked


def _phi(x):
    return F.elu(x) + 1


def _in_blocks(rescale=True, scale=True, tail=True, subtract=True, whole=False, average=False):
    def attend(query, key, value, block):
        query = query / math.sqrt(query.shape[-1]) if scale else query
        if whole:  # right, but holds all pairs
            return (query @ key.mT).softmax(-1) @ value
        starts = range(0, key.shape[-2] if tail else key.shape[-2] // block * block, block)
        parts = [(query @ key[..., s:s + block, :].mT, value[..., s:s + block, :]) for s in starts]
        if average:
            return sum(scores.softmax(-1) @ v for scores, v in parts) / len(parts)
        highest, total, mixed = torch.full_like(query[..., :1], -math.inf), 0.0, 0.0
        for scores, v in parts:
            new = torch.maximum(highest, scores.amax(-1, keepdim=True)) if subtract else torch.zeros_like(highest)
            shrink = (highest - new).exp() if rescale and subtract else 1.0
            weights = (scores - new).exp()
            total, mixed, highest = total * shrink + weights.sum(-1, keepdim=True), mixed * shrink + weights @ v, new
        return mixed / total
    return attend


WRONG = [
    ("17.unit-scale", [lambda d, q, k: d ** -0.5, lambda d, q, k: 1 / (d * q * k), lambda d, q, k: (d * q * k) ** 0.5,
                       lambda d, q, k: d ** -0.5 / (q * k), lambda d, q, k: (d * q) ** -0.5]),
    ("17.temperature", [lambda s, t: (s * t).softmax(-1), lambda s, t: (s / t).softmax(-1), lambda s, t: s.softmax(-1) ** (1 / t),
                        lambda s, t: (s / max(t, 1e-9)).softmax(-1),
                        lambda s, t: F.one_hot(s.argmax(-1), s.shape[-1]).double() if t == 0 else (s / t).softmax(-1),
                        lambda s, t: (s / t).softmax(0) if t else (s == s.max()).double() / (s == s.max()).sum(),
                        lambda s, t: (s / t).exp() / (s / t).exp().sum(-1, keepdim=True)]),
    ("17.linear", [lambda q, k, v: q @ (k.mT @ v), lambda q, k, v: _phi(q) @ (_phi(k).mT @ v),
                   lambda q, k, v: (_phi(q) @ _phi(k).mT) @ v / (_phi(q) @ _phi(k).mT).sum(-1, keepdim=True),
                   lambda q, k, v: F.relu(q) @ (F.relu(k).mT @ v) / (F.relu(q) @ F.relu(k).sum(-2)[..., None]),
                   lambda q, k, v: _phi(q) @ (_phi(k).mT @ v) / _phi(k).sum(),
                   lambda q, k, v: _phi(q / q.shape[-1] ** 0.5) @ (_phi(k).mT @ v) / (_phi(q / q.shape[-1] ** 0.5) @ _phi(k).sum(-2)[..., None])]),
    ("17.blocks", [_in_blocks(rescale=False), _in_blocks(scale=False), _in_blocks(tail=False), _in_blocks(subtract=False),
                   _in_blocks(whole=True), _in_blocks(average=True)]),
]


# -- the definition, as loops

def loop(query, key, value, mask=None, bias=None, scale=None):
    """Outputs and weights from the formula, one number at a time; all leading dimensions one by one."""
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    (q_len, d_k), (k_len, d_v) = query.shape[-2:], value.shape[-2:]
    query, key, value = (part.expand(*leading, *part.shape[-2:]) for part in (query, key, value))
    mask, bias = (None if part is None else part.expand(*leading, q_len, k_len) for part in (mask, bias))
    scale = d_k ** -0.5 if scale is None else scale
    outputs, weights = [], []
    for at in product(*map(range, leading)):
        for i in range(q_len):
            exps = {j: torch.exp(scale * sum(query[(*at, i, c)] * key[(*at, j, c)] for c in range(d_k))
                                 + (0.0 if bias is None else bias[(*at, i, j)]))
                    for j in range(k_len) if mask is None or mask[(*at, i, j)]}
            total = sum(exps.values())
            alpha = [exps[j] / total if j in exps and total > 0 else torch.zeros((), dtype=query.dtype) for j in range(k_len)]
            weights.append(torch.stack(alpha) if alpha else query.new_zeros(0))
            outputs.append(torch.stack([sum((alpha[j] * value[(*at, j, c)] for j in range(k_len)), query.new_zeros(()))
                                        for c in range(d_v)]))
    empty = query.new_zeros(0)
    return (torch.stack(outputs) if outputs else empty).view(*leading, q_len, d_v), (
        torch.stack(weights) if weights else empty).view(*leading, q_len, k_len)


def readable(*args, **options):
    return scaled_dot_product_attention(*args, **options, return_weights=True)[0]


def fused(*args, **options):
    return scaled_dot_product_attention(*args, **options)


def torchs(query, key, value, mask=None, bias=None, scale=None):
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(~mask, -math.inf)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def chance(*shape, seed=0, p=0.6):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < p


def everything(attend, query, key, value, mask=None, bias=None, scale=None):
    """The output and the gradients of everything that has one."""
    leaves = [part for part in (query, key, value, bias) if part is not None and part.requires_grad]
    output = attend(query, key, value, mask=mask, bias=bias, scale=scale)
    wave = torch.sin(torch.arange(output.numel(), dtype=torch.float64)).view(output.shape).to(output.dtype)
    return [output, *torch.autograd.grad((output * wave).sum(), leaves, allow_unused=True, materialize_grads=True)]


def gap(attend, other, *inputs):
    """The largest difference in output and gradients."""
    ours, theirs = everything(attend, *inputs), everything(other, *inputs)
    assert [part.shape for part in ours] == [part.shape for part in theirs]
    return max([(a.double() - b.double()).abs().max().item() for a, b in zip(ours, theirs) if a.numel()], default=0.0)


LEADING = [((), ()), ((2,), (2,)), ((2, 3), (2, 3)), ((2, 1), (1, 3)), ((1, 3), (2, 1)), ((2, 2, 3), (2, 2, 1))]  # the last: grouped


@st.composite
def inputs(draw_from, most=5):
    """Query, key, value, mask, bias and scale of random shapes, the mask with rows that hide everything."""
    one, other = draw_from(st.sampled_from(LEADING))
    q_len, k_len, d_k, d_v = (draw_from(st.integers(1, most)) for _ in range(4))
    seed = draw_from(st.integers(0, 999))
    query, key, value = draw(*one, q_len, d_k, seed=seed), draw(*other, k_len, d_k, seed=seed + 1), draw(*other, k_len, d_v, seed=seed + 2)
    full = (*torch.broadcast_shapes(one, other), q_len, k_len)
    extras = []
    for kind in ("mask", "bias"):
        if not draw_from(st.booleans()):
            extras.append(None)
            continue
        shape = full[-2:] if draw_from(st.booleans()) else tuple(1 if draw_from(st.booleans()) else size for size in full)
        extras.append(chance(*shape, seed=seed + 3) if kind == "mask" else draw(*shape, seed=seed + 4).requires_grad_())
    if extras[0] is not None and extras[0].shape[-2] > 1:
        extras[0][..., 0, :] = False
    scale = draw_from(st.sampled_from([None, 1.0, 0.3]))
    return [*(part.requires_grad_() for part in (query, key, value)), *extras, scale]


@given(inputs())
def test_both_paths_equal_torch(parity, case):
    for attend in (readable, fused):
        parity(EXPORT, "torch", gap(attend, torchs, *case), 1e-12,
               "values and gradients: both paths, masks, biases, broadcasting, empty rows, float64")


@given(inputs(most=4))
def test_both_paths_equal_the_loop(case):
    for attend in (readable, fused):
        assert gap(attend, lambda *args, **options: loop(*args, **options)[0], *case) < 1e-12
    _, weights = scaled_dot_product_attention(*case[:3], mask=case[3], bias=case[4], scale=case[5], return_weights=True)
    assert torch.allclose(weights, loop(*case)[1], atol=1e-12)


@pytest.mark.parametrize("attend", [readable, fused])
def test_float32_at_base_size(parity, attend):
    query, key, value = (draw(2, 8, n, 64, seed=n, dtype=torch.float32).requires_grad_() for n in (48, 64, 64))
    value = draw(2, 8, 64, 64, seed=5, dtype=torch.float32).requires_grad_()
    mask, bias = chance(2, 1, 48, 64), draw(1, 8, 48, 64, seed=7, dtype=torch.float32).requires_grad_()
    for case in ((None, None), (mask, None), (None, bias), (mask, bias)):
        parity(EXPORT, "torch", gap(attend, torchs, query, key, value, *case), 2e-5,
               "values and gradients: 8 heads of width 64, masks and biases, float32")


@pytest.mark.parametrize("attend", [readable, fused])
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.04), (torch.float16, 0.005)])
def test_half_precision_is_near_the_exact_result(attend, dtype, tolerance):
    parts = [draw(2, 3, n, 16, seed=n).to(dtype) for n in (5, 7)]
    query, key, value, bias = parts[0], parts[1], draw(2, 3, 7, 4, seed=3).to(dtype), draw(1, 3, 5, 7, seed=4).to(dtype)
    mask = chance(5, 7)
    output = attend(query, key, value, mask=mask, bias=bias)
    exact = loop(*(part.double() for part in (query, key, value)), mask, bias.double())[0]
    assert output.dtype == dtype and (output - exact).abs().max() < tolerance


@pytest.mark.parametrize("attend", [readable, fused])
@pytest.mark.parametrize("shape", [(1, 1, 2, 64), (1, 1, 1, 2, 64)])
def test_scores_beyond_half_precision(attend, shape):
    """64 * 100 * 100 is more than float16 holds: scores and softmax are made in float32."""
    query = torch.full(shape, 100.0, dtype=torch.float16)
    key = query * torch.tensor([1.0, 0.99], dtype=torch.float16)[:, None]
    value = torch.tensor([1.0, 0.0], dtype=torch.float16).view(*(1,) * (len(shape) - 2), 2, 1)
    assert (attend(query, key, value, scale=1.0) == 1).all()


def test_half_precision_softmax_sums_in_float32():
    """4,096 equal weights of 1/4096; a sum of ones in bfloat16 would stop at 256."""
    _, weights = scaled_dot_product_attention(torch.zeros(1, 8).bfloat16(), torch.zeros(4096, 8).bfloat16(),
                                              torch.zeros(4096, 1).bfloat16(), return_weights=True)
    assert weights.dtype == torch.bfloat16 and (weights == 1 / 4096).all()


@pytest.mark.parametrize("attend", [readable, fused])
def test_gradients_are_the_derivatives(attend):
    query, key, value, bias = (draw(*shape, seed=sum(shape)).requires_grad_() for shape in ((2, 3, 4), (2, 5, 4), (2, 5, 3), (3, 5)))
    mask = chance(3, 5)
    mask[1] = False
    assert torch.autograd.gradcheck(lambda q, k, v, b: attend(q, k, v, mask=mask, bias=b), (query, key, value, bias))


# -- queries with nothing to attend to

def nothing(way, dtype):
    """Mask and bias that leave query 1 of 3 without a key."""
    mask, bias = torch.ones(3, 5, dtype=torch.bool), torch.zeros(3, 5, dtype=dtype)
    if way == "mask":
        mask[1] = False
        return mask, None
    if way == "bias":
        bias[1] = -math.inf
        return None, bias
    mask[1, :2] = False
    bias[1, 2:] = -math.inf
    return mask, bias


def empty_rows_are_zeros(attend, dtype, way, leading=(2,), key_leading=(2,)):
    """Zeros for the query with nothing, something for the others, finite gradients, and none for that query."""
    mask, bias = nothing(way, dtype)
    case = [draw(*shape, seed=i, dtype=dtype).requires_grad_()
            for i, shape in enumerate([(*leading, 3, 7), (*key_leading, 5, 7), (*key_leading, 5, 2)])]
    if bias is not None:
        bias.requires_grad_()
    output, *gradients = everything(attend, *case, mask, bias)
    return bool((output[..., 1, :] == 0).all() and (output[..., [0, 2], :] != 0).all() and (gradients[0][..., 1, :] == 0).all()
                and all(gradient.isfinite().all() for gradient in gradients))


@pytest.mark.parametrize("leading, key_leading", LEADING)
@pytest.mark.parametrize("way", ["mask", "bias", "both"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("attend", [readable, fused])
def test_nothing_to_attend_to_gives_zeros(attend, dtype, way, leading, key_leading):
    assert empty_rows_are_zeros(attend, dtype, way, leading, key_leading)


def careless(fill):
    def attend(query, key, value, mask=None, bias=None, scale=None):
        scores = query @ key.mT * query.shape[-1] ** -0.5
        scores = scores if bias is None else scores + bias
        return (scores if mask is None else scores.masked_fill(~mask, fill)).softmax(-1) @ value
    return attend


@pytest.mark.parametrize("way", ["mask", "bias", "both"])
@pytest.mark.parametrize("fill", [-math.inf, torch.finfo(torch.float32).min, -1e9])
def test_careless_fills_are_noticed(fill, way):
    assert not empty_rows_are_zeros(careless(fill), torch.float32, way)


@pytest.mark.parametrize("leading, key_leading", LEADING)
def test_no_queries(leading, key_leading):
    """PyTorch's kernel gives (2, 1, 0, v) for queries (2, 1, 0, d) and keys (1, 3, k, d)."""
    key, value = draw(*key_leading, 5, 4).requires_grad_(), draw(*key_leading, 5, 2).requires_grad_()
    for attend in (readable, fused):
        output = attend(draw(*leading, 0, 4), key, value, mask=torch.ones(1, 5, dtype=torch.bool), bias=torch.zeros(1, 1).double())
        assert output.shape == (*torch.broadcast_shapes(leading, key_leading), 0, 2)
        assert all((gradient == 0).all() for gradient in torch.autograd.grad(output.sum(), (key, value)))


def test_no_keys_and_empty_batches():
    for attend in (readable, fused):
        assert (attend(draw(2, 3, 4), draw(2, 0, 4), draw(2, 0, 5)) == torch.zeros(2, 3, 5)).all()
        assert (attend(draw(2, 1, 3, 4), draw(1, 3, 0, 4), draw(1, 3, 0, 5)) == torch.zeros(2, 3, 3, 5)).all()
        assert attend(draw(0, 3, 4), draw(0, 3, 4), draw(0, 3, 5), mask=chance(3, 3)).shape == (0, 3, 5)
    assert scaled_dot_product_attention(draw(2, 3, 4), draw(2, 0, 4), draw(2, 0, 5), return_weights=True)[1].shape == (2, 3, 0)


# -- the famous faults

def variant(fault=None):
    """Attention over (batch, heads, length, head_dim), with a fault as it was published."""
    def attend(query, key, value, mask=None, bias=None, scale=None):
        heads, k_len, d_k = key.shape[1:]
        key_t = key.reshape(len(key), heads, d_k, k_len) if fault == "view" else key.mT
        scale = d_k ** -0.5
        if fault in ("d_model", "none", "divided by d_k"):
            scale = {"d_model": (heads * d_k) ** -0.5, "none": 1.0, "divided by d_k": 1 / d_k}[fault]
        scores = query @ key_t * scale
        if bias is not None:
            scores = (query @ key_t + bias) * scale if fault == "bias before the scale" else scores + bias
        allowed = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand_as(scores)
        allowed = ~allowed if fault == "mask the wrong way round" else allowed
        if fault == "mask after the softmax":
            weights = scores.softmax(-1) * allowed
        else:
            scores = scores.masked_fill(~allowed, -1e-12 if fault == "fill with -1e-12" else -math.inf)
            weights = scores.softmax({"softmax over queries": -2, "softmax over heads": 1}.get(fault, -1)).nan_to_num()
        return weights @ value, weights
    return attend


FAULTS = ["d_model", "view", "fill with -1e-12", "softmax over queries", "softmax over heads", "none", "divided by d_k",
          "bias before the scale", "mask the wrong way round", "mask after the softmax"]


def small_case():
    """Small, odd, different sizes: 2 sentences, 3 heads, 4 queries, 5 keys, widths 7 and 2."""
    return (draw(2, 3, 4, 7, seed=1), draw(2, 3, 5, 7, seed=2), draw(2, 3, 5, 2, seed=3), torch.ones(4, 5, dtype=torch.bool).tril(1),
            draw(3, 4, 5, seed=4)[None])


def agrees_with_the_loop(attend):
    return torch.allclose(attend(*small_case())[0], loop(*small_case())[0], atol=1e-12)


def shapes_are_right(attend):
    output, weights = attend(*small_case())
    return output.shape == (2, 3, 4, 2) and weights.shape == (2, 3, 4, 5)


def rows_sum_to_one(attend):
    return torch.allclose(attend(*small_case())[1].sum(-1), torch.ones(2, 3, 4, dtype=torch.float64))


def ours(query, key, value, mask=None, bias=None, scale=None):
    return scaled_dot_product_attention(query, key, value, mask, bias, scale, return_weights=True)


def test_the_loop_tells_right_from_wrong():
    assert agrees_with_the_loop(ours) and agrees_with_the_loop(variant())
    for fault in FAULTS:
        assert not agrees_with_the_loop(variant(fault)), fault


def test_weaker_checks_do_not():
    """Shapes are right with every fault, and rows sum to one with most of them: neither is a test of attention."""
    assert all(shapes_are_right(variant(fault)) for fault in FAULTS)
    blind = [fault for fault in FAULTS if rows_sum_to_one(variant(fault))]
    assert {"d_model", "view", "fill with -1e-12"} <= set(blind) and len(blind) == 6


# -- properties

@given(inputs())
def test_weights_are_shares(case):
    query, key, value, mask, bias, scale = case
    output, weights = scaled_dot_product_attention(query, key, value, mask, bias, scale, return_weights=True)
    sums = weights.sum(-1)
    assert (weights >= 0).all() and torch.allclose(output, weights @ value)
    assert torch.allclose(sums, (sums > 0.5).double())  # 1, or 0 where nothing may be attended
    if mask is not None:
        assert (weights.masked_select(~mask.expand_as(weights)) == 0).all()
    assert (sums > 0.5).all() == (mask is None or bool(mask.expand_as(weights).any(-1).all()))


@pytest.mark.parametrize("attend", [readable, fused])
def test_what_is_hidden_has_no_influence(attend):
    query, key, value, mask = draw(2, 4, 3, seed=1), draw(2, 6, 3, seed=2), draw(2, 6, 5, seed=3), torch.ones(4, 6, dtype=torch.bool)
    mask[:, 4:] = False
    other_key, other_value = key.clone(), value.clone()
    other_key[:, 4:], other_value[:, 4:] = 1e6, -1e6
    assert torch.equal(attend(query, key, value, mask=mask), attend(query, other_key, other_value, mask=mask))
    assert torch.allclose(attend(query, key, value, mask=mask), attend(query, key[:, :4], value[:, :4]), atol=1e-12)


@pytest.mark.parametrize("attend", [readable, fused])
def test_order_of_keys_does_not_matter_and_that_of_queries_is_kept(attend):
    query, key, value = draw(4, 3, seed=1), draw(6, 3, seed=2), draw(6, 5, seed=3)
    keys, queries = torch.randperm(6, generator=torch.Generator().manual_seed(0)), torch.tensor([2, 0, 3, 1])
    assert torch.allclose(attend(query, key[keys], value[keys]), attend(query, key, value), atol=1e-12)
    assert torch.allclose(attend(query[queries], key, value), attend(query, key, value)[queries], atol=1e-12)


@pytest.mark.parametrize("attend", [readable, fused])
def test_a_bias_shared_by_a_row_changes_nothing(attend):
    query, key, value, bias = draw(4, 3, seed=1), draw(6, 3, seed=2), draw(6, 5, seed=3), draw(4, 6, seed=4)
    shifted = bias + 100 * draw(4, 1, seed=5)
    assert torch.allclose(attend(query, key, value, bias=shifted), attend(query, key, value, bias=bias), atol=1e-10)


@pytest.mark.parametrize("attend", [readable, fused])
def test_grouped_heads_equal_repeated_keys(attend):
    """(batch, groups, per_group, q, d) with keys (batch, groups, 1, k, d): query head h reads key head h // per_group."""
    query, key, value = draw(2, 2, 3, 4, 5, seed=1), draw(2, 2, 1, 6, 5, seed=2), draw(2, 2, 1, 6, 7, seed=3)
    mask = chance(2, 1, 1, 4, 6, seed=4)
    grouped = attend(query, key, value, mask=mask)
    repeated = [part[:, :, 0].repeat_interleave(3, dim=1) for part in (key, value)]
    assert torch.allclose(grouped.flatten(1, 2), attend(query.flatten(1, 2), *repeated, mask=mask[:, :, 0]), atol=1e-12)


# -- dropout

def test_dropout_acts_as_given():
    query, key, value = (part.expand(2000, *part.shape) for part in (draw(4, 3), draw(6, 3, seed=1), torch.eye(6).double()))
    plain = fused(query[0], key[0], value[0])
    torch.manual_seed(0)
    for attend in (readable, fused):
        kept = attend(query, key, value, dropout=0.25) / plain
        assert (kept.mean(0) - 1).abs().max() < 0.07  # the rest is scaled up: the mean stays, up to five standard errors
        assert torch.allclose(kept[kept > 0.01], torch.tensor(4 / 3).double()) and abs((kept < 0.01).double().mean() - 0.25) < 0.01


def test_dropout_is_in_the_weights_that_are_returned():
    torch.manual_seed(0)
    output, weights = scaled_dot_product_attention(draw(4, 3), draw(6, 3), draw(6, 2), dropout=0.5, return_weights=True)
    assert torch.equal(output, weights @ draw(6, 2)) and (weights == 0).any()


def test_no_dropout_draws_no_random_number():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for attend in (readable, fused):
        attend(draw(4, 3), draw(6, 3), draw(6, 2), mask=chance(4, 6))
    assert torch.equal(torch.get_rng_state(), before)


# -- devices, autocast

def test_meta_device_needs_no_contents():
    """Nothing looks at what the tensors hold: that would stop a GPU, and is impossible here."""
    query, key, value = (torch.empty(2, 3, n, 8, device="meta") for n in (4, 5, 5))
    mask, bias = torch.empty(4, 5, dtype=torch.bool, device="meta"), torch.empty(1, 3, 4, 5, device="meta")
    output, weights = scaled_dot_product_attention(query, key, value, mask, bias, return_weights=True)
    assert output.device.type == fused(query, key, value, mask=mask, bias=bias).device.type == "meta"
    assert output.shape == (2, 3, 4, 8) and weights.shape == (2, 3, 4, 5)


@pytest.mark.parametrize("attend", [readable, fused])
def test_autocast_may_mix_types(attend):
    query, key, value = draw(2, 3, 4, 8, dtype=torch.float32), draw(2, 3, 5, 8, dtype=torch.bfloat16), draw(2, 3, 5, 8, dtype=torch.float32)
    bias, mask = draw(1, 3, 4, 5, dtype=torch.float32), torch.ones(4, 5, dtype=torch.bool)
    mask[1] = False
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = attend(query, key, value, mask=mask, bias=bias)
    exact = loop(*(part.double() for part in (query, key, value)), mask, bias.double())[0]
    assert output.dtype == torch.bfloat16 and (output - exact).abs().max() < 0.06 and (output[:, :, 1] == 0).all()


@pytest.mark.parametrize("attend", [readable, fused])
@pytest.mark.parametrize("dtype", HALVES)
def test_autocast_leaves_the_scores_exact(attend, dtype):
    """Scores of 640,000 overflow float16, and bfloat16 has steps of 1 beyond 128: both paths count in float32."""
    query = torch.full((1, 1, 2, 64), 100.0)
    with torch.autocast("cpu", dtype=dtype):
        assert (attend(query, query * torch.tensor([1.0, 0.99])[:, None], torch.tensor([[[[1.0], [0.0]]]]), scale=1.0) == 1).all()
    query, key, value = (3 * draw(2, 3, n, 64, seed=n).to(dtype) for n in (5, 7, 7))
    with torch.autocast("cpu", dtype=dtype):
        gap = (attend(query, key, value) - attend(*(part.double() for part in (query, key, value)))).abs().max()
    assert gap < (0.05 if dtype == torch.bfloat16 else 0.01)


@pytest.mark.parametrize("attend", [readable, fused])
@pytest.mark.parametrize("kind", [Fraction, np.float32, np.float64])
def test_numbers_of_every_real_type(unchecked, attend, kind):
    query, key, value = draw(4, 3), draw(6, 3), draw(6, 2)
    assert torch.equal(attend(query, key, value, scale=kind(1) / 4, dropout=kind(0)), attend(query, key, value, scale=0.25))


# -- what it refuses

q, k, v = torch.zeros(2, 3, 4, 8), torch.zeros(2, 3, 5, 8), torch.zeros(2, 3, 5, 6)
allowed = torch.ones(4, 5, dtype=torch.bool)


@pytest.mark.parametrize("arguments, options, error, says", [
    (([[0.0]], k, v), {}, TypeError, "query must be a tensor, not list"),
    ((q, None, v), {}, TypeError, "key must be a tensor"),
    ((q.long(), k.long(), v.long()), {}, TypeError, "query must hold real numbers, not torch.int64"),
    ((q.cfloat(), k.cfloat(), v.cfloat()), {}, TypeError, "query must hold real numbers"),
    ((q, k.double(), v), {}, TypeError, r"key has dtype torch.float64, but query has torch.float32"),
    ((q, k, v.half()), {}, TypeError, "value has dtype"),
    ((q[0, 0, 0], k[0, 0, 0], v[0, 0, 0]), {}, ValueError, r"query must have shape .* not \(8,\)"),
    ((q, k[0], v), {}, ValueError, r"key must have shape .* dimensions as query, not \(3, 5, 8\)"),
    ((q, k, v[None]), {}, ValueError, "value must have shape"),
    ((q, k[..., :7], v), {}, ValueError, "key must be as wide as query.* width 7, query 8"),
    ((q[..., :0], k[..., :0], v), {}, ValueError, "not empty"),
    ((q, k, v[:, :, :4]), {}, ValueError, r"value must be as long as key \(5\), not 4"),
    ((q, k[:, :2], v[:, :2]), {}, ValueError, r"query, key and value must agree.*\(2, 3\), \(2, 2\), \(2, 2\)"),
    ((q, k, v[:, :2]), {}, ValueError, "must agree in all dimensions but the last two"),
    ((q, k, v), {"mask": allowed.float()}, TypeError, "mask must hold booleans .*True = may attend.* not torch.float32"),
    ((q, k, v), {"mask": allowed.long()}, TypeError, "mask must hold booleans"),
    ((q, k, v), {"mask": [[True]]}, TypeError, "mask must hold booleans .* not list"),
    ((q, k, v), {"mask": allowed[0]}, ValueError, "mask must have the shape of the scores"),
    ((q, k, v), {"mask": allowed[None]}, ValueError, "mask must have the shape"),  # is the first dimension the batch or the heads?
    ((q, k, v), {"mask": allowed[None, None, None]}, ValueError, "mask must have the shape"),
    ((q, k, v), {"mask": allowed.T}, ValueError, r"\(2, 3, 4, 5\).* not \(5, 4\)"),
    ((q, k, v), {"mask": allowed.expand(7, 1, 4, 5)}, ValueError, "mask must have the shape"),
    ((q[:1], k[:1], v[:1]), {"mask": allowed.expand(2, 1, 4, 5)}, ValueError, "mask must have the shape"),  # would enlarge the result
    ((q[:, :, :1], k, v), {"mask": allowed}, ValueError, "mask must have the shape"),  # likewise
    ((q, k, v), {"bias": allowed}, TypeError, "bias must hold real numbers, not torch.bool"),
    ((q, k, v), {"bias": 1.0}, TypeError, "bias must be a tensor"),
    ((q, k, v), {"bias": torch.zeros(4, 5).double()}, TypeError, "bias has dtype"),
    ((q, k, v), {"bias": torch.zeros(3, 4, 5)}, ValueError, "bias must have the shape"),
    ((q, k, v), {"bias": torch.zeros(4, 6)}, ValueError, "bias must have the shape"),
    ((q[:1], k[:1], v[:1]), {"bias": torch.zeros(2, 3, 4, 5)}, ValueError, "bias must have the shape"),
    ((q, k.to("meta"), v), {}, ValueError, "key is on meta, but query on cpu"),
    ((q, k, v.to("meta")), {}, ValueError, "value is on meta, but query on cpu"),
    ((q, k, v), {"mask": allowed.to("meta")}, ValueError, "mask is on meta, but query on cpu"),
    ((q, k, v), {"bias": torch.zeros(4, 5, device="meta")}, ValueError, "bias is on meta, but query on cpu"),
    ((q, k, v), {"scale": math.nan}, ValueError, r"scale \(nan\) must be a finite number"),
    ((q, k, v), {"scale": math.inf}, ValueError, "scale"),
    ((q, k, v), {"scale": "0.1"}, ValueError, "scale"),
    ((q, k, v), {"scale": True}, ValueError, "scale"),
    ((q, k, v), {"dropout": 1.0}, ValueError, r"dropout \(1.0\) must be at least 0 and less than 1"),
    ((q, k, v), {"dropout": -0.1}, ValueError, "dropout"),
    ((q, k, v), {"dropout": math.nan}, ValueError, "dropout"),
    ((q, k, v), {"dropout": None}, ValueError, "dropout"),
    ((q, k, v), {"dropout": True}, ValueError, "dropout"),
])
@pytest.mark.parametrize("path", [True, False])
def test_wrong_arguments(unchecked, arguments, options, error, says, path):
    with pytest.raises(error, match=says):
        scaled_dot_product_attention(*arguments, **options, return_weights=path)


@pytest.mark.parametrize("flag", [None, 1, "no"])
def test_a_flag_is_true_or_false(unchecked, flag):
    with pytest.raises(TypeError, match=f"return_weights .{flag!r}. must be True or False"):
        scaled_dot_product_attention(q, k, v, return_weights=flag)


@pytest.mark.parametrize("shape", [(4, 5), (1, 5), (4, 1), (1, 1), (2, 3, 4, 5), (2, 1, 1, 5), (1, 3, 4, 1), (1, 1, 1, 1)])
def test_masks_and_biases_of_every_fitting_shape(unchecked, shape):
    for attend in (readable, fused):
        assert attend(q, k, v, mask=torch.ones(shape, dtype=torch.bool)).shape == (2, 3, 4, 6)
        assert attend(q, k, v, bias=torch.zeros(shape)).shape == (2, 3, 4, 6)
        assert attend(q, k, v, mask=torch.ones(1, 5, dtype=torch.bool), bias=torch.zeros(shape)).shape == (2, 3, 4, 6)


# -- speed

def _trained(attend, query, key, value, mask):
    def step():
        attend(query, key, value, mask).sum().backward()
    return step


@pytest.mark.bench
def test_speed_against_torch(unchecked, within):
    query, key, value = (torch.randn(8, 8, 128, 64, requires_grad=True) for _ in range(3))
    mask = torch.ones(128, 128, dtype=torch.bool).tril()
    theirs = _trained(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), query, key, value, mask)
    within("attention, fused path, forward and backward / torch", ratio(_trained(scaled_dot_product_attention, query, key, value, mask), theirs), 1.15)

    def by_hand(q, k, v, m):
        return (q @ k.mT / 8).masked_fill(~m, -math.inf).softmax(-1) @ v
    mine = _trained(lambda q, k, v, m: scaled_dot_product_attention(q, k, v, m, return_weights=True)[0], query, key, value, mask)
    within("attention, readable path / the formula in four operations", ratio(mine, _trained(by_hand, query, key, value, mask)), 1.8)


@pytest.mark.bench
def test_checks_are_cheap(unchecked, within):
    """One new token against a cache: as small as calls get, so the checks weigh most."""
    query, key, value = torch.randn(1, 8, 1, 64), torch.randn(1, 8, 128, 64), torch.randn(1, 8, 128, 64)
    mask = torch.ones(1, 1, 1, 128, dtype=torch.bool)

    def repeat(attend):
        with torch.no_grad():
            for _ in range(200):
                attend()
    found = ratio(lambda: repeat(lambda: scaled_dot_product_attention(query, key, value, mask)),
                  lambda: repeat(lambda: F.scaled_dot_product_attention(query, key, value, attn_mask=mask)))
    within("attention, one token against 128 / torch", found, 2.0)
