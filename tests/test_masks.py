"""Masks: the looks that they allow, what they let through in values and gradients, and what they refuse."""
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from transformer_course.attention import causal_mask, combine_masks, key_mask, padding_mask, scaled_dot_product_attention

HALVES = (torch.float32, torch.bfloat16, torch.float16)

# Plausible answers that are wrong, for each exercise that is checked.
WRONG = [
    ("18.pairs", [1_000_000, 499_500, 500_000, 1000 * 1001]),
    ("18.prefix", [
        lambda length, prefix: causal_mask(length) & (torch.arange(length) < prefix),
        lambda length, prefix: causal_mask(length) | (torch.arange(length) <= prefix),
        lambda length, prefix: causal_mask(length) | (torch.arange(length)[:, None] < prefix),
        lambda length, prefix: (causal_mask(length) | (torch.arange(length) < prefix)).float(),
    ]),
    ("18.packed", [
        lambda s: s[:, None, :, None] == s[:, None, None, :],
        lambda s: combine_masks(s[:, None, :, None] == s[:, None, None, :], causal_mask(s.shape[1])),
        lambda s: combine_masks(key_mask(s >= 0), causal_mask(s.shape[1])),
        lambda s: combine_masks((s[:, None, :, None] == s[:, None, None, :])[:1], key_mask(s >= 0), causal_mask(s.shape[1])),
        lambda s: combine_masks(s[:, :, None] == s[:, None, :], causal_mask(s.shape[1])),
    ]),
    ("18.window", [
        lambda length, window: causal_mask(length) & ~causal_mask(length).tril(-window - 1),
        lambda length, window: causal_mask(length).triu(-window),
        lambda length, window: torch.ones(length, length, dtype=torch.bool).triu(1 - window),
        lambda length, window: causal_mask(length) & ~causal_mask(length).tril(1 - window),
    ]),
]


def causal_looks(make):
    """Whether `make(length, k_len)` allows a query just the keys up to its own place among the last."""
    return all(make(n, m).tolist() == [[j <= m - n + i for j in range(m)] for i in range(n)]
               for n in range(5) for m in range(n, 8))


@pytest.mark.parametrize("make", [
    lambda n, m: torch.ones(n, m, dtype=torch.bool).tril(),  # aligned to the top left, as torch's is_causal
    lambda n, m: torch.ones(n, m, dtype=torch.bool).tril(m - n - 1),  # a token does not see itself
    lambda n, m: torch.ones(n, m, dtype=torch.bool).triu(m - n),  # the wrong triangle
    lambda n, m: ~torch.ones(n, m, dtype=torch.bool).tril(m - n),  # the opposite polarity
])
def test_wrong_causal_masks_are_caught(make):
    assert not causal_looks(make)


def test_causal_mask_allows_what_is_not_later():
    assert causal_looks(causal_mask)
    assert causal_mask(0).shape == (0, 0) and causal_mask(0, 3).shape == (0, 3)
    assert causal_mask(3, device="meta").device.type == "meta"


def test_cached_queries_have_the_last_rows():
    whole = causal_mask(7)
    assert all(torch.equal(causal_mask(n, 7), whole[7 - n:]) for n in range(1, 8))


def leaks(attend, length=6):
    """Pairs (output, later input) with a derivative that is not exactly zero."""
    x = torch.randn(1, length, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    jacobian = torch.autograd.functional.jacobian(attend, x)[0, :, :, 0].norm(dim=(1, 3))
    return int((jacobian.triu(1) != 0).sum())


def test_the_future_does_not_leak():
    mask = causal_mask(6)
    assert leaks(lambda x: scaled_dot_product_attention(x, x, x, mask)) == 0
    assert leaks(lambda x: scaled_dot_product_attention(x, x, x, mask, return_weights=True)[0]) == 0
    small = torch.zeros(6, 6).masked_fill(~mask, -1e4).double()
    tiny = torch.zeros(6, 6).masked_fill(~mask, -1e-12).double()  # a famous slip of the sign in the exponent
    assert leaks(lambda x: scaled_dot_product_attention(x, x, x, bias=tiny)) == 15
    assert leaks(lambda x: scaled_dot_product_attention(x, x, x, mask.T)) > 0
    assert leaks(lambda x: scaled_dot_product_attention(x, x, x)) == 15
    assert leaks(lambda x: scaled_dot_product_attention(x, x, x, bias=small)) == 0  # underflows here, but not for every score


def ignores_padding(mask_of):
    """Whether real tokens keep their outputs, and get no gradient from padding, when the mask is `mask_of(lengths, max_len)`."""
    lengths, max_len = torch.tensor([2, 5, 1]), 5
    real = torch.arange(max_len) < lengths[:, None]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 2, max_len, 4, dtype=torch.float64, generator=generator)
    noise = torch.where(real[:, None, :, None], x, 100 * torch.randn(x.shape, dtype=x.dtype, generator=generator))
    mask = mask_of(lengths, max_len)
    first, second = (scaled_dot_product_attention(y, y, y, mask) for y in (x, noise))
    keep = real[:, None, :, None].expand_as(x)
    x = x.requires_grad_()
    scaled_dot_product_attention(x, x, x, mask)[keep].sum().backward()
    return torch.equal(first[keep], second[keep]) and not x.grad[~keep].any()


def test_padding_does_not_leak():
    assert ignores_padding(padding_mask)
    assert ignores_padding(lambda lengths, n: key_mask((torch.arange(n) < lengths[:, None]).int()))


@pytest.mark.parametrize("wrong", [
    lambda lengths, n: padding_mask(lengths, n).mT,  # on the query axis
    lambda lengths, n: ~padding_mask(lengths, n),  # True = hide
    lambda lengths, n: padding_mask(lengths.clamp(max=n - 1) + 1, n),  # one too long
    lambda lengths, n: padding_mask(lengths, n).roll(1, 0),  # the lengths of another row
])
def test_wrong_padding_masks_are_caught(wrong):
    assert not ignores_padding(wrong)


@given(st.lists(st.integers(0, 9), min_size=0, max_size=5))
def test_padding_mask_by_loop(lengths):
    mask = padding_mask(torch.tensor(lengths, dtype=torch.long), 9)
    assert mask.tolist() == [[[[j < n for j in range(9)]]] for n in lengths]
    assert mask.shape == (len(lengths), 1, 1, 9) and mask.dtype == torch.bool


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_lengths_of_every_whole_type(dtype):
    assert padding_mask(torch.tensor([1, 2], dtype=dtype), 2)[:, 0, 0].tolist() == [[True, False], [True, True]]


def test_meta_device_needs_no_contents():
    assert padding_mask(torch.empty(2, dtype=torch.long, device="meta"), 3).shape == (2, 1, 1, 3)
    for dtype in (torch.bool, torch.int64):
        mask = key_mask(torch.empty(2, 3, dtype=dtype, device="meta"))
        assert mask.shape == (2, 1, 1, 3) and mask.device.type == "meta" and mask.dtype == torch.bool


def test_a_table_of_booleans_is_not_read(monkeypatch):
    """Every model calls `key_mask`, and to look into a tensor would stop a GPU."""
    monkeypatch.delattr(torch, "equal")
    assert key_mask(torch.ones(2, 3, dtype=torch.bool)).all()
    with pytest.raises(AttributeError):  # numbers have to be read
        key_mask(torch.ones(2, 3, dtype=torch.long))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_key_mask_takes_booleans_and_whole_numbers(dtype):
    table = torch.tensor([[1, 1, 0], [0, 1, 1]])
    assert torch.equal(key_mask(table.to(dtype)), table.bool()[:, None, None])
    assert key_mask(None) is None


@given(st.data())
def test_combined_is_and(data):
    batch, heads, q_len, k_len = (data.draw(st.integers(1, 3)) for _ in range(4))
    shapes = [(q_len, k_len), (batch, 1, 1, k_len), (1, heads, q_len, 1), (k_len,), ()]
    chosen = data.draw(st.lists(st.sampled_from(shapes), max_size=4))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    masks = [torch.rand(shape, generator=generator) < 0.5 for shape in chosen]
    combined = combine_masks(None, *masks, None)
    if not masks:
        assert combined is None
        return
    full = torch.broadcast_tensors(*masks, torch.ones(batch, heads, q_len, k_len, dtype=torch.bool))
    wanted = torch.stack(full).all(dim=0)
    assert torch.equal(combined.expand_as(wanted), wanted)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("weights", [False, True])
def test_an_empty_row_gives_zeros_and_finite_gradients(dtype, weights):
    mask = combine_masks(causal_mask(4), key_mask(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])))
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    output = scaled_dot_product_attention(x, x, x, mask, return_weights=weights)
    output = output[0] if weights else output
    output.float().square().sum().backward()
    assert not output[0, :, :2].any() and output[1].isfinite().all()
    assert x.grad.isfinite().all() and not x.grad[0, :, :2].any()


@pytest.mark.parametrize("length, k_len", [(5, 5), (1, 1), (3, 3)])
def test_causal_mask_agrees_with_torch(parity, length, k_len):
    q, k, v = torch.randn(3, 2, 3, length, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    ours = scaled_dot_product_attention(q, k, v, causal_mask(length, k_len))
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    parity("transformer_course.attention.masks.causal_mask", "torch", (ours - theirs).abs().max(), 1e-12,
           "attention with is_causal=True, as many queries as keys, float64")


@pytest.mark.parametrize("call, error, says", [
    (lambda: causal_mask(3, 2), ValueError, r"k_len \(2\) must not be less than length \(3\)"),
    (lambda: causal_mask(-1), ValueError, r"length \(-1\) must be a whole number, 0 or more"),
    (lambda: causal_mask(2.0), ValueError, r"length \(2.0\) must be"),
    (lambda: causal_mask(True), ValueError, r"length \(True\) must be"),
    (lambda: causal_mask(2, 3.5), ValueError, r"k_len \(3.5\) must be"),
    (lambda: padding_mask([1, 4], 3), ValueError, r"from 0 to max_len \(3\), but go from 1 to 4"),
    (lambda: padding_mask([-1], 3), ValueError, "but go from -1"),
    (lambda: padding_mask([[1]], 3), ValueError, r"shape \(batch,\), not \(1, 1\)"),
    (lambda: padding_mask([1.0], 3), TypeError, "whole numbers, not torch.float32"),
    (lambda: padding_mask([True], 3), TypeError, "whole numbers, not torch.bool"),
    (lambda: padding_mask("ab", 3), TypeError, "cannot be read as whole numbers"),
    (lambda: padding_mask([1], -1), ValueError, r"max_len \(-1\)"),
    (lambda: key_mask(torch.ones(2, 3)), TypeError, "attention_mask must hold booleans, or 0 and 1, .*float32.* bias"),
    (lambda: key_mask(torch.ones(2, 1, 3, dtype=torch.bool)), ValueError, r"shape \(batch, length\), not \(2, 1, 3\)"),
    (lambda: key_mask(torch.tensor([[0, 2]])), ValueError, "only 0 and 1"),
    (lambda: key_mask(torch.tensor([[0, -1]])), ValueError, "only 0 and 1"),
    (lambda: key_mask([[1, 0]]), TypeError, "must be a tensor, not list"),
    (lambda: combine_masks(torch.ones(2, 2)), TypeError, r"masks\[0\] must be a boolean tensor, not torch.float32"),
    (lambda: combine_masks(None, [True]), TypeError, r"masks\[1\] must be a boolean tensor, not list"),
    (lambda: combine_masks(causal_mask(2), None, causal_mask(2, device="meta")), ValueError, "on one device, but are on cpu, meta"),
    (lambda: combine_masks(causal_mask(3), causal_mask(2)), ValueError, r"shapes \(3, 3\), \(2, 2\)"),
])
def test_wrong_input(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_lowest_numbers_make_an_empty_row_uniform():
    """Why an empty row is defined, and not filled with the lowest number: the row would see everything."""
    mask, x = torch.zeros(1, 3, dtype=torch.bool), torch.eye(3)
    filled = torch.zeros(1, 3).masked_fill(~mask, torch.finfo(torch.float32).min).softmax(-1) @ x
    assert torch.allclose(filled, torch.full((1, 3), 1 / 3))
    assert torch.zeros(1, 3).masked_fill(~mask, -math.inf).softmax(-1).isnan().all()
    assert not scaled_dot_product_attention(x[:1], x, x, mask).any()
