"""The KV cache: the same logits as without it, in pieces, padded, windowed, grouped; memory; beams; the known faults; what it refuses."""
import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from speed import interleaved, ratio
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, StaticCache

from transformer_course.attention.masks import causal_mask, padding_mask
from transformer_course.attention.multi_head_attention import Cache, MultiHeadAttention
from transformer_course.modern.attention_variants import GroupedQueryAttention
from transformer_course.modern.decoder_only import CausalLM, CausalLMConfig
from transformer_course.modern.kv_cache import KVCache, LayerCache, kv_cache_bytes
from transformer_course.toolbox.exercises import check, exercise_ids
from transformer_course.transformer.decoding import beam_search, parent_rows
from transformer_course.transformer.transformer import Transformer, TransformerConfig

MODULE = "transformer_course.modern.kv_cache"
F64 = torch.float64


# -- plausible answers that are wrong, for each exercise that is checked

def _ring_in_order(length, window):
    return [*range(max(0, length - window), length), *[-1] * (window - length)]


def _accepts(draft, logits, stop=True, own=True, shift=0):
    best, kept = logits.argmax(-1).tolist(), []
    for i, guess in enumerate(draft):
        if guess == best[max(i - shift, 0)]:
            kept.append(guess)
        elif stop:
            break
    return kept + ([best[len(kept)]] if own else [])


WRONG = [
    ("32.fits", [(66, 66), (133, 66), (80, 160), (16, 33), (532, 1064), (67, 134), (66.51, 133.02), 66]),
    ("32.positions", [
        lambda mask, new: torch.arange(mask.shape[1] - new, mask.shape[1]).expand(len(mask), -1),         # padding is forgotten
        lambda mask, new: (mask[:, -new:].long().cumsum(1) - 1).clamp(min=0),                             # begins at 0 in every call
        lambda mask, new: mask.long().cumsum(1)[:, -new:],                                                # begins at 1
        lambda mask, new: mask.long().cumsum(1)[:, -new:] - 1,                                            # -1 at padding
        lambda mask, new: (mask.long().cumsum(1) - 1).clamp(min=0)[:1, -new:].expand(len(mask), -1),      # the first row's for all
        lambda mask, new: (mask.cumsum(1) - 1).clamp(min=0)[:, -new:].to(mask.dtype),                     # of the mask's dtype
        lambda mask, new: (mask.long().sum(1, keepdim=True) - new + torch.arange(new)),                   # negative where padding is new
    ]),
    ("32.ring", [_ring_in_order, lambda length, window: [p if p < length else -1 for p in range(window)],
                 lambda length, window: [length - window + place for place in range(window)],
                 lambda length, window: [length - 1 - (length - 1 - place) % window for place in range(window)],
                 lambda length, window: [length - (length - place) % window if place < length else -1 for place in range(window)],
                 lambda length, window: [length - 1 - (length - 1 - place) % window if place <= length else -1 for place in range(window)]]),
    ("32.accept", [lambda draft, logits: _accepts(draft, logits, stop=False), lambda draft, logits: _accepts(draft, logits, own=False),
                   lambda draft, logits: _accepts(draft, logits, shift=1), lambda draft, logits: list(draft),
                   lambda draft, logits: logits.argmax(-1).tolist(), lambda draft, logits: _accepts(draft, logits)[:len(draft)]]),
]


@pytest.mark.parametrize("exercise, answer", [(name, answer) for name, answers in WRONG for answer in answers])
def test_wrong_answers_are_told(exercise, answer):
    assert exercise in exercise_ids("32") and not check(exercise, answer)


def test_every_checked_exercise_has_wrong_answers():
    assert [name for name, _ in WRONG] == exercise_ids("32") and all(len(wrong) >= 3 for _, wrong in WRONG)


# -- one layer, against everything kept in a list

def pairs(batch, heads, length, width=5, v_width=None, seed=0, dtype=F64):
    generator = torch.Generator().manual_seed(seed)
    key, value = (torch.randn(batch, heads, length, w, generator=generator, dtype=F64).to(dtype) for w in (width, v_width or width))
    return key, value


def kept_all(key, value, start, stop, window):
    """What the queries of positions start to stop - 1 may need."""
    first = 0 if window is None else max(0, start - window + 1)
    return key[:, :, first:stop], value[:, :, first:stop]


def gives_what_is_needed(make, pieces, window, requires_grad=False, seed=0):
    """Whether `make(max_len, window)` gives the new pairs and the last window - 1 before them, at every update."""
    total = sum(pieces)
    key, value = pairs(2, 3, total, v_width=4, seed=seed)
    key, value = key.requires_grad_(requires_grad), value.requires_grad_(requires_grad)
    cache, start = make(total, window), 0
    for n in pieces:
        given = cache.update(key[:, :, start:start + n], value[:, :, start:start + n])
        start += n
        right = kept_all(key, value, start - n, start, window)
        if cache.length != start or not all(map(torch.equal, given, right)):
            return False
    return True


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any), st.none() | st.integers(1, 12), st.booleans())
def test_each_update_gives_what_is_needed(pieces, window, requires_grad):
    assert gives_what_is_needed(LayerCache, pieces, window, requires_grad)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("ahead", range(0, 17))
def test_at_the_window(window, ahead):
    """One position at a time, behind a first piece of every length: one less than the window, the window, one more, beyond the memory."""
    assert gives_what_is_needed(LayerCache, [ahead] * (ahead > 0) + [1] * (2 * window + 3) + [ahead, 1], window)


class Rolling(LayerCache):
    """Windows as they have been got wrong: `short` keeps so many fewer; `cut` shows so much of a prompt; `early`: when full, one too few."""

    def __init__(self, max_len, window, short=0, cut=False, early=False):
        self.short, self.cut, self.early = short, cut, early
        super().__init__(max_len, window)

    def _needed(self):
        full = self.early and self._end == self.window
        return max(0, super()._needed() - (self.short if self.length >= self.window else 0) - full)

    def update(self, key, value):
        given = super().update(key, value)
        return tuple(part[:, :, -self.window:] for part in given) if self.cut else given


@pytest.mark.parametrize("fault", [{"short": 1}, {"short": -1}, {"cut": True}, {"early": True}], ids=str)
def test_windows_that_are_got_wrong_are_found_out(fault):
    schedules = [([1] * 12, 4), ([9, 1, 1, 1], 4), ([3, 1, 1, 1], 4), ([4, 1, 1], 4), ([5, 1, 1], 4)]

    def right(make):
        try:
            return all(gives_what_is_needed(make, pieces, window) for pieces, window in schedules)
        except RuntimeError:
            return False
    assert right(Rolling) and not right(lambda max_len, window: Rolling(max_len, window, **fault))


class ZeroBug(LayerCache):
    """With a window of 1 nothing is kept, and [-0:] is everything."""

    def _last(self, count):
        return tuple(part[:, :, :self._end][:, :, -count:] for part in (self.keys, self.values))


def test_minus_zero_is_found_out():
    assert gives_what_is_needed(LayerCache, [1, 1, 1], 1, True) and not gives_what_is_needed(ZeroBug, [1, 1, 1], 1, True)


def test_a_view_without_gradients_and_memory_that_stays_where_it_is():
    cache, (key, value) = LayerCache(9), pairs(2, 3, 9)
    first = cache.update(key[:, :, :4], value[:, :, :4])
    places = [part.data_ptr() for part in first]
    second = cache.update(key[:, :, 4:5], value[:, :, 4:5])
    assert [part.data_ptr() for part in second] == places == [cache.keys.data_ptr(), cache.values.data_ptr()]
    assert cache.nbytes == 2 * 2 * 3 * 9 * 5 * 8


def test_memory_of_a_window_never_grows():
    cache, (key, value) = LayerCache(1000, window=4), pairs(1, 2, 1)
    cache.update(key, value)
    place = cache.keys.data_ptr()
    for _ in range(400):
        keys, _ = cache.update(key, value)
    assert cache.keys.data_ptr() == place and cache.keys.shape[2] == 8 and cache.length == 401 and keys.shape[2] == 4
    assert LayerCache(5, window=4).update(key, value)[0].shape[2] == 1 and cache.nbytes == 2 * 2 * 8 * 5 * 8


def test_the_window_is_moved_seldom(monkeypatch):
    moves = []
    refill = LayerCache._refill
    monkeypatch.setattr(LayerCache, "_refill", lambda self, pair: (moves.append(pair[0].shape[2]), refill(self, pair)))
    cache, (key, value) = LayerCache(1000, window=10), pairs(1, 1, 1)
    for _ in range(1000):
        cache.update(key, value)
    assert set(moves) == {9} and len(moves) <= 1000 / 10


@pytest.mark.parametrize("window", [None, 3, 1])
def test_a_length_of_zero_gives_what_is_held_and_changes_nothing(window):
    cache, (key, value) = LayerCache(9, window), pairs(2, 3, 5)
    assert cache.update(key[:, :, :0], value[:, :, :0])[0].shape == (2, 3, 0, 5)
    cache.update(key, value)
    for _ in range(3):
        given = cache.update(key[:, :, :0], value[:, :, :0])
        start = 0 if window is None else 5 - window + 1
        assert torch.equal(given[0], key[:, :, start:]) and torch.equal(given[1], value[:, :, start:]) and cache.length == 5


def test_what_was_passed_in_is_copied():
    cache, (key, value) = LayerCache(9), pairs(1, 1, 2)
    given, before = cache.update(key, value), key.clone()
    key.zero_()
    assert torch.equal(given[0], before)


# -- gradients

def attended(query, key, value, past, cache):
    """Attention of two new positions behind four old ones, whose keys are constants."""
    if cache is None:
        key, value = (torch.cat([old.detach(), new], dim=2) for old, new in zip(past, (key, value)))
    else:
        cache.update(*past)
        key, value = cache.update(key, value)
    scores = query @ key.transpose(-1, -2)
    return scores.masked_fill(~causal_mask(2, 6), -math.inf).softmax(-1) @ value


@pytest.mark.parametrize("window", [None, 5, 6])
def test_gradients_flow_into_the_new_and_not_into_the_past(window):
    found = []
    for cache in (None, LayerCache(6, window)):
        past = [part.requires_grad_() for part in pairs(2, 3, 4, seed=1)]
        query, (key, value) = pairs(2, 3, 2, seed=2)[0].requires_grad_(), [part.requires_grad_() for part in pairs(2, 3, 2, seed=3)]
        output = attended(query, key, value, past, cache)
        gradients = torch.autograd.grad(output.square().sum(), (query, key, value, *past), allow_unused=True)
        assert gradients[3:] == (None, None)
        found.append([output, *gradients[:3]])
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(*found))


@pytest.mark.parametrize("window", [None, 3])
def test_training_through_several_updates_goes_backward_once(window):
    """What PyTorch remembered of an update is unchanged after later ones, and the memory is no part of a graph."""
    key, value = (part.requires_grad_() for part in pairs(1, 2, 9))
    cache, total = LayerCache(9, window), 0
    for t in range(9):
        keys, values = cache.update(key[:, :, t:t + 1], value[:, :, t:t + 1])
        total = total + (keys * values).square().sum()
        assert not cache.keys.requires_grad and not cache.values.requires_grad
    total.backward()
    assert key.grad.abs().min() > 0
    assert torch.allclose(key.grad, 2 * (key * value.square()).detach())   # once each: later on it is a constant


def test_a_query_alone_that_learns_is_told_of_the_overwritten_view():
    """Keys without a gradient are views: going backward through an old one fails aloud, not with wrong numbers."""
    cache, (key, value) = LayerCache(4), pairs(1, 1, 1)
    query = torch.ones(1, 1, 1, 5, dtype=F64, requires_grad=True)
    score = (query * cache.update(key, value)[0]).sum()
    cache.update(key, value)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        score.backward()


@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("then", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_in_any_mode(first, then):
    cache, (key, value) = LayerCache(5), pairs(1, 1, 5)
    with first():
        cache.update(key[:, :, :2] * 1, value[:, :, :2] * 1)
    with then():
        keys, values = cache.update(key[:, :, 2:] * 1, value[:, :, 2:] * 1)
        cache.reorder(torch.tensor([0, 0]))
    assert torch.equal(keys, key) and torch.equal(values, value) and torch.equal(cache.keys, key.repeat(2, 1, 1, 1))


# -- rows, copies, forgetting

@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.none() | st.integers(1, 6), st.integers(1, 9))
def test_reorder_keeps_rows_in_order(rows, window, length):
    cache, (key, value) = LayerCache(length + 3, window), pairs(3, 2, length + 3)
    cache.update(key[:, :, :length], value[:, :, :length])
    cache.reorder(torch.tensor(rows))
    key, value = key[rows], value[rows]
    for t in range(length, length + 3):
        given = cache.update(key[:, :, t:t + 1], value[:, :, t:t + 1])
        assert all(map(torch.equal, given, kept_all(key, value, t, t + 1, window)))
    assert cache.length == length + 3


def test_reorder_of_an_empty_cache_does_nothing():
    cache = KVCache(2, 4)
    cache.reorder(torch.tensor([0, 0, 5]))
    assert cache.length == 0 and cache.nbytes == 0
    cache[0].update(*pairs(2, 1, 1))
    assert cache[0].length == 1


def test_reset_forgets_and_takes_another_form():
    cache, (key, value) = KVCache(2, 6), pairs(2, 3, 4)
    for layer in cache:
        layer.update(key, value)
    memory = cache[0].keys
    cache.reset()
    assert cache.length == 0 and cache[0].update(key[:, :, :0], value[:, :, :0])[0].shape[2] == 0
    given = cache[0].update(key + 1, value)
    assert torch.equal(given[0], key + 1) and cache[0].keys is memory      # the same memory, used again
    cache.reset()
    other = pairs(5, 1, 2, dtype=torch.float32)
    assert all(map(torch.equal, cache[0].update(*other), other)) and cache[0].keys.dtype == torch.float32


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_copy_goes_its_own_way(copied, requires_grad):
    cache, (key, value) = KVCache(1, 9), [part.requires_grad_(requires_grad) for part in pairs(2, 3, 4)]
    cache[0].update(key, value)
    twin = copied(cache)
    twin[0].update(key * 2, value)
    assert cache.length == 4 and twin.length == 8
    assert torch.equal(cache[0].update(key, value)[0][:, :, 4:], key) and torch.equal(twin[0].update(key[:, :, :0], value[:, :, :0])[0][:, :, 4:], key * 2)


def test_a_sequence_of_caches():
    cache = KVCache(3, 8, window=2)
    assert len(cache) == 3 and len(list(cache)) == 3 and cache[-1] is list(cache)[2] and len(cache[:2]) == 2
    assert isinstance(cache[0], Cache) and cache[0] is not cache[1] and not any(layer.length for layer in cache)
    assert cache.nbytes == 0 and all(layer.window == 2 and layer.max_len == 8 for layer in cache)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
@pytest.mark.parametrize("layers, heads, width, length, batch", [(1, 1, 1, 1, 1), (3, 2, 5, 7, 4), (12, 12, 64, 100, 2)])
def test_bytes_equal_the_formula(dtype, layers, heads, width, length, batch):
    cache = KVCache(layers, length)
    for layer in cache:
        layer.update(*pairs(batch, heads, 1, width, dtype=dtype))
    stored = sum(part.untyped_storage().nbytes() for layer in cache for part in (layer.keys, layer.values))
    assert cache.nbytes == kv_cache_bytes(layers, heads, width, length, batch, dtype) == stored
    windowed = KVCache(layers, length, window=2)
    for layer in windowed:
        layer.update(*pairs(batch, heads, 1, width, dtype=dtype))
    assert windowed.nbytes == kv_cache_bytes(layers, heads, width, min(length, 4), batch, dtype)


def test_bytes_of_known_models(unchecked):
    gib = 2 ** 30
    assert kv_cache_bytes(32, 32, 128, 4096) == 2 * gib and kv_cache_bytes(80, 8, 128, 4096) == 1.25 * gib
    assert kv_cache_bytes(80, 64, 128, 4096) == 10 * gib and kv_cache_bytes(80, 1, 128, 4096) == 0.15625 * gib
    assert kv_cache_bytes(1, 1, 1, 0) == 0 and isinstance(kv_cache_bytes(np.int64(2), 1, 1, 1), int)


def test_on_the_meta_device():
    with torch.device("meta"):
        model = CausalLM(CausalLMConfig(50, d_model=12, num_layers=2, num_heads=3, num_kv_heads=1, d_ff=24, max_len=9, position="rotary"))
    cache, ids = KVCache(2, 9), torch.zeros(3, 4, dtype=torch.int64, device="meta")
    with torch.no_grad():
        model(ids, cache=cache)
        cache.reorder(torch.zeros(5, dtype=torch.int64, device="meta"))
        assert model(torch.zeros(5, 1, dtype=torch.int64, device="meta"), cache=cache).shape == (5, 1, 50)
    assert cache.nbytes == kv_cache_bytes(2, 1, 4, 9, 5, torch.float32) and cache[0].keys.device.type == "meta"


# -- whole models

def lively(module, seed=0):
    """Weights that let every part matter: gains near 1, biases that are not 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            drawn = torch.randn(weight.shape, generator=generator, dtype=F64)
            gain = weight.dim() == 1 and weight.mean() > 0.5
            weight.copy_(1 + 0.3 * drawn if gain else 1.5 * drawn / weight.shape[-1] ** 0.5)
    return module.requires_grad_(False)


def lm(seed=0, **changes):
    sizes = {"d_model": 24, "num_layers": 2, "num_heads": 4, "d_ff": 20, "max_len": 40, "tie_embeddings": False}
    return lively(CausalLM(CausalLMConfig(30, **(sizes | changes))).double().eval(), seed)


def ids_of(batch, length, vocab=30, seed=0):
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def left_padded(lengths, total):
    return torch.stack([torch.arange(total) >= total - n for n in lengths])


def in_pieces(model, ids, pieces, cache, mask=None):
    found, start = [], 0
    for n in pieces:
        seen = None if mask is None else mask[:, :start + n]
        found.append(model(ids[:, start:start + n], attention_mask=seen, cache=cache))
        start += n
    return torch.cat(found, dim=1)


MODELS = {
    "learned": {}, "sinusoidal": {"position": "sinusoidal"}, "rotary": {"position": "rotary"}, "alibi": {"position": "alibi"},
    "none": {"position": "none"}, "post-norm": {"pre_norm": False},
    "gated": {"norm": "rms", "gated": True, "activation": "silu", "position": "rotary", "attention_bias": False},
    "grouped": {"num_kv_heads": 2, "position": "rotary"}, "multi-query": {"num_kv_heads": 1}, "wide heads": {"head_dim": 10, "position": "rotary"},
    "window": {"window": 4, "position": "rotary"}, "window of 1": {"window": 1}, "grouped window": {"window": 5, "num_kv_heads": 2, "position": "alibi"},
}
PIECES = ([1] * 14, [5, 1, 6, 2], [9, 1, 1, 3], [3, 1, 1, 9])


def with_and_without(model, pieces, cache, mask=None):
    """The largest difference of logits, over real tokens."""
    ids = ids_of(3, sum(pieces))
    real = torch.ones_like(ids).bool() if mask is None else mask.bool()
    gap = in_pieces(model, ids, pieces, cache, mask) - model(ids, attention_mask=mask)
    return gap[real].abs().max().item()


@pytest.mark.parametrize("pieces", PIECES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_cached_logits_equal_uncached_ones(name, pieces):
    model = lm(**MODELS[name])
    for mask in (None, left_padded([14, 12, 5], 14), left_padded([14, 12, 5], 14).long()):
        assert with_and_without(model, pieces, KVCache(2, 14, model.config.window), mask) < 1e-11


def test_a_model_with_a_window_may_keep_more():
    """The mask of the model hides what the cache need not have kept."""
    for window in (None, 4, 5, 9):
        assert with_and_without(lm(window=4), [5, 1, 6, 2], KVCache(2, 14, window)) < 1e-11
    assert with_and_without(lm(window=4), [5, 1, 6, 2], [LayerCache(14, 3) for _ in range(2)]) > 1e-3


@pytest.mark.parametrize("model, window, sees", [(4, 3, "4"), (None, 9, "all")])
def test_a_cache_that_forgets_what_the_model_looks_at_is_refused(model, window, sees):
    with pytest.raises(ValueError, match=f"cache has the window {window}, but a query of this model sees {sees} positions"):
        lm(window=model)(ids_of(1, 5), cache=KVCache(2, 14, window))


def test_a_batch_equals_its_rows():
    model, ids, mask = lm(), ids_of(3, 14), left_padded([14, 12, 5], 14)
    together = in_pieces(model, ids, [6] + [1] * 8, KVCache(2, 14), mask)
    for row, n in enumerate((14, 12, 5)):
        alone = in_pieces(model, ids[row:row + 1, 14 - n:], [1] * n, KVCache(2, n))
        assert torch.allclose(together[row:row + 1, 14 - n:], alone, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-3), (torch.bfloat16, 0.5), (torch.float16, 0.1)])
def test_other_precisions(dtype, bound):
    model = lm(num_kv_heads=2, position="rotary").to(dtype)
    cache = KVCache(2, 14)
    assert with_and_without(model, [5, 1, 6, 2], cache) < bound and cache[0].keys.dtype == dtype


def greedy(model, ids, count, cache=None):
    """What the model finds best, with a push that differs from step to step, so that the text does not get stuck."""
    new = ids
    for t in range(count):
        logits = model(ids if cache is None else new, cache=cache)[:, -1:]
        new = (logits + 2 * torch.sin((t + 1) * torch.arange(30))).argmax(-1)
        ids = torch.cat([ids, new], dim=1)
    return ids


@pytest.mark.parametrize("name", MODELS)
def test_greedy_text_is_the_same(name):
    model = lm(**MODELS[name])
    plain, cached = greedy(model, ids_of(2, 3), 15), greedy(model, ids_of(2, 3), 15, KVCache(2, 17, model.config.window))
    assert torch.equal(plain, cached) and len(set(plain[:, 3:].flatten().tolist())) > 3


def test_training_with_a_cache():
    """The first piece alone gets all its gradients; of a second one, those that do not go through the past."""
    model, ids = lm().requires_grad_(), ids_of(2, 6)
    loss = F.cross_entropy(model(ids, cache=KVCache(2, 6)).flatten(0, 1), ids.flatten())
    cached = torch.autograd.grad(loss, model.parameters())
    plain = torch.autograd.grad(F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()), model.parameters())
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(cached, plain))
    cache = KVCache(2, 6)
    model(ids[:, :4], cache=cache)
    second = model(ids[:, 4:], cache=cache)
    assert torch.allclose(second, model(ids)[:, 4:], rtol=0, atol=1e-12)
    second.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


# -- known faults: which of the checks find them

def by_the_switch(model):
    """PyTorch's is_causal aligns the triangle to the top left."""
    for layer in model.decoder.layers:
        layer.attention.sublayer._mix = lambda query, key, value, mask, bias: F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return model


class Positions(nn.Module):
    def __init__(self, position, change):
        super().__init__()
        self.position, self.change = position, change

    def forward(self, x, start=0):
        return self.position(x, self.change(x, start))


def with_positions(change):
    model = lm()
    model.position = Positions(model.position, change)
    return model


class OffsetTwice(LayerCache):
    """The offset is moved on by the prompt's length once more than it should."""

    @property
    def length(self):
        return self._length + (self._first if self._length > self._first else 0)

    @length.setter
    def length(self, value):
        self._first = value if not getattr(self, "_length", 0) else self._first
        self._length = value


class Late(MultiHeadAttention):
    """The query is turned after the cache has moved on, so that it reads another offset than its key."""

    def forward(self, x, context=None, mask=None, bias=None, cache=None):
        query, key, value = self._heads(x, None, None)
        if cache is None:
            return self.output(self._mix(self.rotate(query, 0), self.rotate(key, 0), value, mask, bias).transpose(1, 2).flatten(2))
        key, value = cache.update(self.rotate(key, cache.length), value)
        return self.output(self._mix(self.rotate(query, cache.length), key, value, mask, bias).transpose(1, 2).flatten(2))


def late():
    model = lm(position="rotary")
    for layer in model.decoder.layers:
        new = Late(24, 4, rotate=model.rotary.rotate).double()
        new.load_state_dict(layer.attention.sublayer.state_dict())
        layer.attention.sublayer = new.eval()
    return model.requires_grad_(False)


def found_out(model, make=lambda: KVCache(2, 14)):
    """Which checks a model with a cache fails: token by token, in pieces, a padded row against the row alone."""
    mask, ids = left_padded([14, 12, 5], 14), ids_of(3, 14)
    padded = in_pieces(model, ids, [1] * 14, make(), mask)[2:, 9:]
    gaps = {"single": with_and_without(model, [1] * 14, make()), "pieces": with_and_without(model, [5, 1, 6, 2], make()),
            "padded": (padded - model(ids[2:, 9:])).abs().max().item()}
    return {name for name, gap in gaps.items() if not gap < 1e-9}


def layers_of(kind, *more):
    cache = KVCache(2, 14)
    cache.layers = [kind(14, *more) for _ in range(2)]
    return cache


@pytest.mark.parametrize("model, make, by", [
    (lambda: by_the_switch(lm()), None, {"single", "pieces", "padded"}),
    (lambda: with_positions(lambda x, start: 0), None, {"single", "pieces", "padded"}),
    (lambda: with_positions(lambda x, start: start if x.shape[1] > 1 and isinstance(start, int) else 0), None, {"single", "pieces", "padded"}),
    (lambda: with_positions(lambda x, start: start if isinstance(start, int) else start[:1]), None, {"padded"}),
    (lambda: with_positions(lambda x, start: start if isinstance(start, int) else (start - start[:, :1]).clamp(min=0)), None, {"padded"}),
    (late, None, {"single", "pieces", "padded"}),
    (lambda: lm(window=4), lambda: [LayerCache(14, 3) for _ in range(2)], {"single", "pieces", "padded"}),
    (lambda: lm(window=4), lambda: layers_of(Rolling, 4, 0, True), {"pieces"}),
], ids=["is_causal", "positions from 0", "position only if several", "one position for all rows", "rows restart", "offset read twice",
        "window one short", "prompt cut first"])
def test_known_faults_are_found_by_these_checks(model, make, by):
    assert found_out(model(), *([] if make is None else [make])) == by


def test_an_offset_moved_twice_is_found():
    model, ids = lm(position="rotary"), ids_of(1, 8)
    assert with_and_without(model, [3, 1, 1], layers_of(LayerCache)) < 1e-11
    cache = layers_of(OffsetTwice)
    try:
        gap = (in_pieces(model, ids, [3, 1, 1, 1], cache) - model(ids)[:, :6]).abs().max().item()
    except ValueError:   # its mask covers positions that do not exist
        gap = math.inf
    assert gap > 1e-6


def test_no_fault_is_found_where_there_is_none():
    assert found_out(lm()) == found_out(lm(position="rotary")) == found_out(lm(window=4), lambda: KVCache(2, 14, 4)) == set()


def test_in_a_bidirectional_encoder_keys_do_change():
    """Why there is no cache for it: what the layers hand on changes when a token is added."""
    model, ids = lm(), ids_of(1, 9)
    outputs = [model.decoder(model.position(model.embedding(ids[:, :n])), mask=mask)[:, :8]
               for n in (8, 9) for mask in (causal_mask(n), None)]
    assert torch.allclose(outputs[0], outputs[2], rtol=0, atol=1e-12) and (outputs[1] - outputs[3]).abs().max() > 0.01


# -- contexts

@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_context_is_made_into_keys_once(kv_heads):
    """With T5's settings (no scale, no biases) and grouped heads; a mask over the context covers all of it."""
    attention = lively(GroupedQueryAttention(24, 4, kv_heads, bias=False, scale=1.0).double().eval())
    generator = torch.Generator().manual_seed(0)
    x, context = (torch.randn(2, n, 24, generator=generator, dtype=F64) for n in (5, 7))
    mask, cache, made = padding_mask([7, 4], 7), LayerCache(7), []
    hook = attention.key.register_forward_hook(lambda *_: made.append(1))
    pieces = torch.cat([attention(x[:, t:t + 1], context, mask=mask, cache=cache) for t in range(5)], dim=1)
    hook.remove()
    assert len(made) == 1 and cache.length == 7
    assert torch.allclose(pieces, attention(x, context, mask=mask), rtol=0, atol=1e-12)
    cache.reorder(torch.tensor([1, 1]))
    again = attention(x[:, :1], context[[1, 1]], mask=mask[[1, 1]], cache=cache)
    assert torch.allclose(again, attention(x[:, :1], context[[1, 1]], mask=mask[[1, 1]]), rtol=0, atol=1e-12)


def translator(**changes):
    sizes = {"d_model": 24, "num_heads": 4, "d_ff": 20, "num_encoder_layers": 1, "num_decoder_layers": 2, "max_len": 30}
    return lively(Transformer(TransformerConfig(20, 20, **(sizes | changes))).double().eval())


@pytest.mark.parametrize("pieces", [[1] * 8, [3, 1, 4], [8]], ids=str)
@pytest.mark.parametrize("pre_norm", [False, True])
def test_the_transformer_of_2017(pieces, pre_norm):
    model, source, target = translator(pre_norm=pre_norm), ids_of(3, 6, 20), ids_of(3, 8, 20, seed=1)
    source_mask, context = torch.arange(6) < torch.tensor([[6], [4], [2]]), None
    context = model.encode(source, source_mask)
    whole = model.decode(target, context, source_mask)
    cache, seen, found, start = KVCache(2, 8), KVCache(2, 6), [], 0
    for n in pieces:
        found.append(model.decode(target[:, start:start + n], context, source_mask, cache=cache, context_cache=seen))
        start += n
    assert torch.allclose(torch.cat(found, dim=1), whole, rtol=0, atol=1e-11) and (cache.length, seen.length) == (8, 6)


def step_of(model, context, caches=None, rows_of=parent_rows):
    before = None

    def step(prefixes):
        nonlocal before
        if caches is None:
            return model.decode(prefixes, context.expand(len(prefixes), -1, -1))[:, -1].log_softmax(-1)
        if before is not None:
            for cache in caches:
                cache.reorder(rows_of(prefixes, before))
        before = prefixes
        logits = model.decode(prefixes[:, -1:], context.expand(len(prefixes), -1, -1), cache=caches[0], context_cache=caches[1])
        return logits[:, -1].log_softmax(-1)
    return step


@pytest.mark.parametrize("beams", [1, 2, 5])
def test_beam_search_with_a_cache(beams):
    model = translator()
    for seed in range(3):
        context = model.encode(ids_of(1, 6, 20, seed))
        plain, cached = (beam_search(step, 0, 1, beams, 14) for step in (
            step_of(model, context), step_of(model, context, (KVCache(2, 14), KVCache(2, 6)))))
        assert [h.ids for h in plain] == [h.ids for h in cached]
        assert np.allclose([h.score for h in plain], [h.score for h in cached], rtol=0, atol=1e-9)


@pytest.mark.parametrize("rows_of", [lambda prefixes, before: torch.arange(len(prefixes)).clamp(max=len(before) - 1),
                                     lambda prefixes, before: parent_rows(prefixes, before).flip(0),
                                     lambda prefixes, before: torch.zeros(len(prefixes), dtype=torch.int64)],
                         ids=["no reordering", "reversed", "the first for all"])
def test_beams_whose_cache_does_not_follow_go_astray(rows_of):
    model = translator()
    context = model.encode(ids_of(1, 6, 20))
    plain, cached = (beam_search(step, 0, 1, 4, 14) for step in (
        step_of(model, context), step_of(model, context, (KVCache(2, 14), KVCache(2, 6)), rows_of)))
    assert [h.ids for h in plain] != [h.ids for h in cached]


# -- transformers

def copied(ours, tensors):
    """Our model with these tensors: every name on both sides is used."""
    missing = dict(ours.named_parameters())
    with torch.no_grad():
        for name, tensor in tensors.items():
            missing.pop(name).copy_(tensor)
    assert not missing
    return ours.requires_grad_(False)


def llama_pair(kv_heads, window=None):
    """The same random model in transformers and here: LLaMA, or Mistral where there is a window."""
    sizes = {"vocab_size": 31, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": kv_heads, "max_position_embeddings": 64, "attn_implementation": "eager", "use_cache": True,
             "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "rms_norm_eps": 1e-5}
    if window is None:
        theirs = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        theirs = MistralForCausalLM(MistralConfig(**sizes, sliding_window=window, head_dim=6))
    theirs = lively(theirs.double().eval())
    state, tensors = theirs.state_dict(), {}
    tensors["embedding.weight"], tensors["decoder.final_norm.weight"] = state.pop("model.embed_tokens.weight"), state.pop("model.norm.weight")
    tensors["output.weight"] = state.pop("lm_head.weight")
    for n in range(2):
        a, b = f"model.layers.{n}.", f"decoder.layers.{n}."
        names = {"input_layernorm": "attention.norm", "post_attention_layernorm": "feed_forward.norm",
                 **{f"self_attn.{x}_proj": f"attention.sublayer.{y}" for x, y in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))},
                 **{f"mlp.{x}_proj": f"feed_forward.sublayer.{x}" for x in ("gate", "up", "down")}}
        for x, y in names.items():
            tensors[f"{b}{y}.weight"] = state.pop(f"{a}{x}.weight")
    assert not state
    ours = CausalLM(CausalLMConfig.llama(31, d_model=24, num_layers=2, num_heads=4, d_ff=20, num_kv_heads=kv_heads, window=window)).double().eval()
    return copied(ours, tensors), theirs


def gpt2_pair():
    theirs = lively(GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=24, n_layer=2, n_head=4, n_inner=20, n_positions=40,
                                               attn_implementation="eager", bos_token_id=None, eos_token_id=None)).double().eval())
    state, tensors = theirs.state_dict(), {}
    tensors["embedding.weight"], tensors["position.weight"] = state.pop("transformer.wte.weight"), state.pop("transformer.wpe.weight")
    assert torch.equal(state.pop("lm_head.weight"), tensors["embedding.weight"])
    for kind in ("weight", "bias"):
        tensors[f"decoder.final_norm.{kind}"] = state.pop(f"transformer.ln_f.{kind}")
        for n in range(2):
            a, b = f"transformer.h.{n}.", f"decoder.layers.{n}."
            for x, y in (("ln_1", "attention.norm"), ("ln_2", "feed_forward.norm")):
                tensors[f"{b}{y}.{kind}"] = state.pop(f"{a}{x}.{kind}")
            for x, y in (("attn.c_proj", "attention.sublayer.output"), ("mlp.c_fc", "feed_forward.sublayer.up"),
                         ("mlp.c_proj", "feed_forward.sublayer.down")):
                tensors[f"{b}{y}.{kind}"] = state.pop(f"{a}{x}.{kind}").t()     # stored [in, out]; a vector's t is itself
            for part, name in zip(state.pop(f"{a}attn.c_attn.{kind}").t().chunk(3), ("query", "key", "value")):
                tensors[f"{b}attention.sublayer.{name}.{kind}"] = part
    assert not state
    ours = CausalLM(CausalLMConfig.gpt2(31, d_model=24, num_layers=2, num_heads=4, d_ff=20, max_len=40)).double().eval()
    return copied(ours, tensors), theirs


def held(cache):
    """Keys and values of all layers of transformers' cache."""
    return [(layer.keys, layer.values) for layer in cache.layers]


def differences(ours, theirs, pieces, make, lengths=None):
    """Between logits, and between what the caches hold, after each piece."""
    total, start, worst = sum(pieces), 0, 0.0
    ids, mask = ids_of(3, total, 31), left_padded(lengths or [total] * 3, total)
    cache, other = KVCache(2, total), make(total)
    for n in pieces:
        seen, real = mask[:, :start + n], mask[:, start:start + n]
        positions = (seen.long().cumsum(1) - 1).clamp(min=0)[:, start:]
        mine = ours(ids[:, start:start + n], attention_mask=seen, cache=cache)
        their = theirs(ids[:, start:start + n], attention_mask=seen.long(), position_ids=positions if lengths else None,
                       cache=other).logits
        start += n
        worst = max(worst, (mine - their)[real].abs().max().item())
    return worst, cache, other


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.sampled_from([4, 2, 1]))
def test_equal_to_transformers_dynamic_cache(parity, pieces, kv_heads):
    """LLaMA with rotary positions: logits after each piece, and the keys and values that both hold."""
    gap, cache, other = differences(*llama_pair(kv_heads), pieces, lambda total: DynamicCache())
    for layer, (keys, values) in zip(cache, held(other), strict=True):
        mine = layer.update(*[torch.empty(3, kv_heads, 0, 6, dtype=F64)] * 2)
        gap = max(gap, *((a - b).abs().max().item() for a, b in zip(mine, (keys, values), strict=True)))
    parity(f"{MODULE}.KVCache", "transformers", gap, 2e-5,
           "LLaMA with DynamicCache, one to five pieces, MHA to MQA: logits of each piece, and the keys and values held, float64 "
           "(turned in float32)")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_gpt2_equal_to_transformers(parity, pieces):
    total = sum(pieces)
    for lengths in (None, [total, max(1, total - 2), 1]):
        gap, cache, other = differences(*gpt2_pair(), pieces, lambda total: DynamicCache(), lengths)
        parity(f"{MODULE}.KVCache", "transformers", gap, 1e-10,
               "GPT-2 with DynamicCache, one to five pieces, rows padded on the left or not: logits of each piece, float64")
    for layer, (keys, values) in zip(cache, held(other), strict=True):
        mine = layer.update(*[torch.empty(3, 4, 0, 6, dtype=F64)] * 2)
        assert mine[0].shape == keys.shape == values.shape


def test_equal_to_transformers_static_cache(parity):
    """The one that reserves its memory too."""
    ours, theirs = llama_pair(2)
    gap, cache, other = differences(ours, theirs, [5, 1, 1, 3], lambda total: StaticCache(config=theirs.config, max_cache_len=total))
    for layer, (keys, values) in zip(cache, held(other), strict=True):
        assert layer.keys.shape == keys.shape
        gap = max(gap, (layer.keys - keys).abs().max().item(), (layer.values - values).abs().max().item())
    parity(f"{MODULE}.LayerCache", "transformers", gap, 2e-5,
           "StaticCache of a LLaMA: logits, and the whole memory, float64 (turned in float32)")


@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(2, 6))
def test_windows_equal_to_transformers(parity, pieces, window):
    """Mistral's sliding window: logits of each piece where old entries are dropped."""
    ours, theirs = llama_pair(2, window)
    total, start, gap = sum(pieces), 0, 0.0
    ids, cache, other = ids_of(2, total, 31), KVCache(2, total, window), DynamicCache(config=theirs.config)
    for n in pieces:
        mine, their = ours(ids[:, start:start + n], cache=cache), theirs(ids[:, start:start + n], cache=other).logits
        gap, start = max(gap, (mine - their).abs().max().item()), start + n
    parity(f"{MODULE}.LayerCache", "transformers", gap, 2e-5,
           "a Mistral with its sliding cache, windows from 2 to 6, pieces from 1 to 7: logits, float64 (turned in float32)")


def test_greedy_text_of_generate(parity):
    for ours, theirs in (llama_pair(2), gpt2_pair()):
        prompt = ids_of(1, 5, 31)
        said = theirs.generate(prompt, max_new_tokens=20, do_sample=False, output_logits=True, return_dict_in_generate=True, pad_token_id=0)
        cache, new, text, gap = KVCache(2, 25), prompt, prompt, 0.0
        for logits in said.logits:
            mine = ours(new, cache=cache)[:, -1]
            gap, new = max(gap, (mine - logits).abs().max().item()), mine.argmax(-1, keepdim=True)
            text = torch.cat([text, new], dim=1)
        assert torch.equal(text, said.sequences)
        parity(f"{MODULE}.KVCache", "transformers", gap, 2e-5, "generate: the logits of 20 greedy steps of a GPT-2 and a LLaMA, and the same ids, float64")


# -- what is refused, and that nothing has changed then

def filled(window=None, max_len=6):
    cache = LayerCache(max_len, window)
    cache.update(*pairs(2, 3, 4))
    return cache


def state(cache):
    return cache.length, cache._end, cache.keys.clone(), cache.values.clone(), cache.keys.data_ptr()


def key(batch=2, heads=3, length=1, width=5, dtype=F64, device="cpu"):
    return torch.zeros(batch, heads, length, width, dtype=dtype, device=device)


REFUSED = [
    ((key(3), key(3)), ValueError, "key has batch size 3, but the cache holds batch size 2"),
    ((key(1), key(1)), ValueError, "key has batch size 1, but the cache holds batch size 2"),
    ((key(heads=1), key(heads=1)), ValueError, "key has number of heads 1, but the cache holds number of heads 3"),
    ((key(width=4), key()), ValueError, "key has width 4, but the cache holds width 5"),
    ((key(), key(width=1)), ValueError, "value has width 1, but the cache holds width 5"),
    ((key(dtype=torch.float32), key(dtype=torch.float32)), ValueError, "key has dtype torch.float32, but the cache holds dtype torch.float64"),
    ((key(), key(dtype=torch.float16)), ValueError, "value has dtype torch.float16"),
    ((key(device="meta"), key(device="meta")), ValueError, "key has device meta, but the cache holds device cpu"),
    ((key(length=3), key(length=3)), ValueError, "max_len is 6, but the cache would have to take 7 positions"),
    ((key(), key(length=2)), ValueError, r"value must agree with key in batch, heads and length, \(2, 3, 1\), not \(2, 3, 2\)"),
    ((key(), key(batch=1)), ValueError, "value must agree with key"),
    ((key()[0], key()[0]), ValueError, r"key must have shape \(batch, heads, length, head_dim\), not \(3, 1, 5\)"),
    ((key(), key()[0]), ValueError, "value must have shape"),
    ((key().long(), key()), TypeError, "key must be a tensor of floating-point numbers, not torch.int64"),
    ((key(), None), TypeError, "value must be a tensor of floating-point numbers, not NoneType"),
    (([1.0], key()), TypeError, "key must be a tensor of floating-point numbers, not list"),
]


@pytest.mark.parametrize("window", [None, 2, 4])
@pytest.mark.parametrize("given_, error, says", REFUSED, ids=[says for *_, says in REFUSED])
def test_wrong_updates_are_refused_and_change_nothing(unchecked, window, given_, error, says):
    cache = filled(window)
    before = state(cache)
    with pytest.raises(error, match=says):
        cache.update(*given_)
    for a, b in zip(before, state(cache)):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert torch.equal(cache.update(*pairs(2, 3, 1, seed=9))[0][:, :, -1:], pairs(2, 3, 1, seed=9)[0])


@pytest.mark.parametrize("rows, error, says", [
    (torch.tensor([0, 2]), ValueError, "rows must be from 0 to 1, the rows of the cache, but go from 0 to 2"), (torch.tensor([-1]), ValueError, "rows must be from 0"),
    (torch.tensor([[0]]), ValueError, r"rows must have shape \(n,\)"), (torch.tensor([], dtype=torch.int64), ValueError, "with n at least 1"),
    (torch.tensor([0.0]), TypeError, "rows must be a tensor of whole numbers, not torch.float32"), ([0], TypeError, "not list"),
    (torch.tensor([True, False]), TypeError, "not torch.bool"),
])
def test_wrong_rows_are_refused_and_change_nothing(unchecked, rows, error, says):
    cache = KVCache(2, 6)
    for layer in cache:
        layer.update(*pairs(2, 3, 4))
    before = [state(layer) for layer in cache]
    with pytest.raises(error, match=says):
        cache.reorder(rows)
    assert all(torch.equal(a[2], b[2]) and a[:2] == b[:2] for a, b in zip(before, map(state, cache)))


@pytest.mark.parametrize("call, error, says", [
    (lambda: LayerCache(0), ValueError, r"max_len \(0\) must be a whole number, 1 or more"), (lambda: LayerCache(2.5), ValueError, "max_len"),
    (lambda: LayerCache(4, 0), ValueError, r"window \(0\) must be a whole number"), (lambda: LayerCache(4, -3), ValueError, r"window \(-3\)"),
    (lambda: LayerCache(4, True), ValueError, r"window \(True\)"), (lambda: LayerCache(4, 1.0), ValueError, r"window \(1.0\)"),
    (lambda: KVCache(0, 4), ValueError, r"num_layers \(0\)"), (lambda: KVCache(2, 0), ValueError, r"max_len \(0\)"),
    (lambda: KVCache(2, 4, 0), ValueError, r"window \(0\)"), (lambda: KVCache(2, None), ValueError, r"max_len \(None\)"),
    (lambda: kv_cache_bytes(0, 1, 1, 1), ValueError, "num_layers"), (lambda: kv_cache_bytes(1, 0, 1, 1), ValueError, "num_kv_heads"),
    (lambda: kv_cache_bytes(1, 1, 0, 1), ValueError, "head_dim"), (lambda: kv_cache_bytes(1, 1, 1, -1), ValueError, "length"),
    (lambda: kv_cache_bytes(1, 1, 1, 1, 0), ValueError, "batch"), (lambda: kv_cache_bytes(1, 1, 1, 1, 1, "fp16"), TypeError, "dtype must be a torch.dtype, not str"),
])
def test_wrong_settings_are_refused(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_a_model_refuses_before_any_layer_has_changed(unchecked):
    model, cache, ids = lm(), KVCache(2, 6), ids_of(2, 6)
    model(ids[:, :4], cache=cache)
    for wrong, says in ((ids_of(3, 1), "key has batch size 3"), (ids_of(2, 3), "max_len is 6")):
        with pytest.raises(ValueError, match=says):
            model(wrong, cache=cache)
        assert [layer.length for layer in cache] == [4, 4]
    assert torch.allclose(model(ids[:, 4:], cache=cache), model(ids)[:, 4:], rtol=0, atol=1e-11)


# -- speed

@pytest.mark.bench
@pytest.mark.usefixtures("unchecked")
def test_faster_than_putting_tensors_together(within):
    """Twelve layers of GPT-2's size, one token behind 1,023 others: 24 tensors."""
    new = [torch.randn(1, 12, 1, 64) for _ in range(24)]
    old = [torch.randn(1, 12, 1023, 64) for _ in range(24)]
    cache = KVCache(12, 2048)

    @torch.no_grad()
    def ours():
        for _ in range(20):
            for n, layer in enumerate(cache):
                layer.update(new[2 * n], new[2 * n + 1])

    @torch.no_grad()
    def theirs():
        for _ in range(20):
            joined = [torch.cat(pair, dim=2) for pair in zip(old, new)]
        return joined

    for n, layer in enumerate(cache):
        layer.update(old[2 * n], old[2 * n + 1])
    within("LayerCache.update / torch.cat, 24 tensors of 1,024 positions", ratio(ours, theirs, rounds=25), 0.2)


@pytest.mark.bench
@pytest.mark.usefixtures("unchecked")
def test_an_update_does_not_depend_on_the_length(within):
    def update_at(length, window=None):
        cache = LayerCache(length + 2000, window)
        cache.update(*pairs(1, 12, length, 64, dtype=torch.float32))
        new = pairs(1, 12, 1, 64, dtype=torch.float32)
        return torch.no_grad()(lambda: [cache.update(*new) for _ in range(50)])
    short, long, windowed = interleaved(update_at(16), update_at(8192), update_at(8192, 128), rounds=25)
    within("an update behind 8,192 positions / behind 16", long / short, 1.5)
    within("an update with a window of 128 / without", windowed / short, 2.0)


@pytest.mark.bench
@pytest.mark.usefixtures("unchecked")
def test_time_per_token_is_flat_with_the_cache(within):
    model = CausalLM(CausalLMConfig(500, d_model=256, num_layers=4, num_heads=4, d_ff=1024, max_len=1100)).eval()
    ids, caches = ids_of(1, 1100, 500), {n: KVCache(4, 1100) for n in (64, 1024)}

    @torch.no_grad()
    def cached(n):
        return model(ids[:, :1], cache=caches[n])

    with torch.no_grad():
        for n, cache in caches.items():
            model(ids[:, :n], cache=cache)
        early, late_, without = interleaved(lambda: cached(64), lambda: cached(1024), lambda: model(ids[:, :1024]), rounds=9)
    within("a token at position 1,024 / at 64, with the cache", late_ / early, 2.0)
    within("a token at position 1,024, with the cache / without", late_ / without, 0.2)
