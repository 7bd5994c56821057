"""The limits of BERT: Longformer's pattern against Hugging Face's; int8 against exact arithmetic; what is refused; stored runs."""
import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from speed import ratio
from torch import nn
from torch.nn import functional as F

from transformer_course.attention.multi_head_attention import MultiHeadAttention
from transformer_course.bert import _limits_measures as measures
from transformer_course.bert._sentence_measures import QUESTIONS, wanted_entries
from transformer_course.bert.limits import Int8Linear, quantize_int8, quantize_rows, window_global_mask
from transformer_course.bert.model import Bert, BertConfig
from transformer_course.bert.sentence_embeddings import book_glossary
from transformer_course.toolbox.runtime import count_parameters
from transformer_course.transformer.feed_forward import FeedForward

MODULE = "transformer_course.bert.limits"

# Plausible answers that are wrong, for each exercise that is checked.


def _view(worth=min, end=1, beyond=0, of_equals=1, none=None):
    def best_view(starts, size, place):
        views = [(worth(place - start, start + size - end - place), -of_equals * piece, piece) for piece, start in enumerate(starts)
                 if start <= place < start + size + beyond]
        return max(views)[2] if views else none
    return best_view


def _layers(transpose=False, count=0, most=1000, self_too=False):
    def layers(mask):
        mask = mask.T if transpose else mask
        seen, n = (mask | torch.eye(len(mask), dtype=torch.bool)) if self_too else mask, 1
        step = seen.float()
        while not seen.all() and n < len(mask):
            seen, n = (seen.float() @ step) > 0, n + 1
        return n + count if seen.all() else (None if most == 1000 else most)
    return layers


def _affine(zero=True, levels=255, include=True, round_zero=True, symmetric=False):
    def quantize_affine(x):
        low, high = (min(x.min().item(), 0.0), max(x.max().item(), 0.0)) if include else (x.min().item(), x.max().item())
        if symmetric:
            high = max(high, -low)
            low = -high
        step = (high - low) / levels
        place = -low / step if zero else 0.0
        place = round(place) if round_zero else place
        return (x / step + place).round().clamp(0, 255).to(torch.uint8), step, place
    return quantize_affine


WRONG = [
    ("43.by-hand", [[5, 4, 10], [6, 5, 10], [10, 6, 10], [6, 4, 5]]),
    ("43.best-view", [_view(worth=max), _view(worth=lambda left, right: left), _view(worth=lambda left, right: right), _view(end=0),
                      _view(of_equals=-1), _view(none=0), _view(worth=lambda left, right: 0), _view(beyond=99)]),
    ("43.layers", [_layers(count=1), _layers(count=-1), _layers(most=-1), lambda mask: len(mask) - 1, lambda mask: int(mask.all()) or None]),
    ("43.affine", [_affine(zero=False), _affine(levels=127), _affine(include=False), _affine(round_zero=False), _affine(symmetric=True)]),
]


# -- Longformer's pattern

def longformers(length, window, places, seed=0, heads=2, width=8):
    """One attention of Hugging Face's Longformer, ours with its weights, and an input."""
    modeling = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    from transformers import LongformerConfig
    torch.manual_seed(seed)
    config = LongformerConfig(hidden_size=width, num_attention_heads=heads, attention_window=[window], attention_probs_dropout_prob=0.0,
                              num_hidden_layers=1)
    theirs = modeling.LongformerSelfAttention(config, 0).double().eval()
    mine = MultiHeadAttention(width, heads).double()
    with torch.no_grad():
        for name in ("query", "key", "value"):
            getattr(mine, name).load_state_dict(getattr(theirs, name).state_dict())
            getattr(theirs, f"{name}_global").load_state_dict(getattr(theirs, name).state_dict())   # theirs has a second set for global tokens
        mine.output.weight.copy_(torch.eye(width))
        mine.output.bias.zero_()
    x = torch.randn(2, length, width, dtype=torch.float64)
    short = -length % window                          # theirs wants whole windows: padding, hidden
    padded = F.pad(x, (0, 0, 0, short))
    attention = torch.zeros(2, length + short, dtype=torch.float64)
    attention[:, length:] = -10000
    attention[:, places] = 10000
    y = theirs(padded, attention_mask=attention, is_index_masked=attention < 0, is_index_global_attn=attention > 0,
               is_global_attn=bool(places))[0]
    return y[:, :length], mine, x


@given(st.data())
def test_the_pattern_is_longformers(parity, data):
    window = 2 * data.draw(st.integers(2, 5))      # theirs fails on windows of 2
    length = data.draw(st.integers(1, 24))
    places = sorted(data.draw(st.sets(st.integers(0, length - 1), max_size=3)))
    theirs, mine, x = longformers(length, window, places, data.draw(st.integers(0, 99)))
    y = mine(x, mask=window_global_mask(length, window, places))
    parity(f"{MODULE}.window_global_mask", "transformers", (y - theirs).abs().max().item(), 1e-6,
           "LongformerSelfAttention: windows of 4 to 10, 0 to 3 global tokens, 1 to 24 tokens; its softmax is float32")


def is_longformers(pattern):
    """Whether `pattern(length, window, places)` is the loop's: both directions, half of the window on either side, global rows and columns."""
    for length in (1, 2, 7, 12):
        for window in (1, 2, 3, 4, 6, 40):
            for places in ([], [0], [length - 1, 0], [length // 2]):
                expected = [[abs(i - j) <= window // 2 or i in places or j in places for j in range(length)] for i in range(length)]
                if pattern(length, window, places).tolist() != expected:
                    return False
    return True


def mutant(half=lambda w: w // 2, rows=True, columns=True, causal=False, strict=False, both=False):
    def pattern(length, window, places):
        at = torch.arange(length)
        gap = at[:, None] - at
        near = gap.abs() < half(window) if strict else gap.abs() <= half(window)
        near &= gap >= 0 if causal else True
        is_global = torch.isin(at, torch.tensor(places, dtype=torch.long))
        if both:
            return near | (is_global[:, None] & is_global)
        return near | (is_global[:, None] & rows) | (is_global & columns)
    return pattern


def test_the_pattern_and_its_known_faults():
    assert is_longformers(window_global_mask) and is_longformers(mutant())
    for faulty in (mutant(half=lambda w: w), mutant(half=lambda w: w - 1), mutant(half=lambda w: (w + 1) // 2 + 1), mutant(rows=False),
                   mutant(columns=False), mutant(causal=True), mutant(strict=True), mutant(both=True)):
        assert not is_longformers(faulty)


@given(st.integers(1, 30), st.integers(1, 12), st.data())
def test_properties_of_the_pattern(length, window, data):
    places = data.draw(st.lists(st.integers(0, length - 1), max_size=4))
    mask = window_global_mask(length, window, places)
    assert mask.dtype == torch.bool and torch.equal(mask, mask.T) and mask.diag().all() and mask[places].all()
    assert torch.equal(mask, window_global_mask(length, window, torch.tensor(places, dtype=torch.long)))
    assert (mask >= window_global_mask(length, window)).all()
    if window >= 2 * (length - 1):
        assert mask.all()


def test_the_pattern_on_another_device_and_empty():
    assert window_global_mask(4, 2, [1], device="meta").device.type == "meta"
    assert window_global_mask(0, 2).shape == (0, 0)


@pytest.mark.parametrize("arguments, error, says", [
    ((-1, 2), ValueError, "length"), ((4, 0), ValueError, "window"), ((4, 2.0), ValueError, "window"), ((4, True), ValueError, "window"),
    ((4, 2, [4]), ValueError, "from 0 to 3, but 4"), ((4, 2, [-1]), ValueError, "-1"), ((4, 2, [1.0]), TypeError, "1.0"),
    ((4, 2, [True]), TypeError, "True"), ((4, 2, 1), TypeError, "global_positions"), ((4, 2, "1"), TypeError, "global_positions"),
])
def test_patterns_that_there_are_not(unchecked, arguments, error, says):
    with pytest.raises(error, match=says):
        window_global_mask(*arguments)


# -- int8

def weights(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@given(st.integers(1, 7), st.integers(1, 9), st.integers(0, 99), st.sampled_from([1e-20, 1e-3, 1.0, 1e20]))
def test_rows_come_back_to_half_a_step(rows, columns, seed, size):
    weight = size * weights(rows, columns, seed=seed)
    whole, step = quantize_rows(weight)
    assert whole.dtype == torch.int8 and step.shape == (rows,) and (whole.int().abs().amax(dim=1) == 127).all()
    assert ((whole.float() * step[:, None] - weight).abs() <= 0.5001 * step[:, None]).all()


def rounds_to_half_a_step(quantize):
    """Rows of any size, a row of zeros, an outlier in one row that must not spoil the others, signs."""
    weight = torch.stack([weights(16), 100 * weights(16, seed=1), torch.zeros(16), 1e-3 * weights(16, seed=2), -weights(16).abs(), weights(16).abs()])
    whole, step = quantize(weight)
    back = whole.float() * (step[:, None] if step.dim() else step)
    fine = weight.abs().amax(dim=1, keepdim=True) / 127
    return bool(((back - weight).abs() <= 0.501 * fine).all()) and whole.dtype == torch.int8 and bool(back.isfinite().all())


def int8_mutant(dim=1, over=127.0, rounding=torch.round, one_sided=False, guard=True):
    def quantize(weight):
        largest = weight.amax(dim=dim) if one_sided else weight.abs().amax(dim=dim) if dim is not None else weight.abs().max()
        step = largest / over
        step = torch.where(step > 0, step, 1.0) if guard else step
        scaled = weight / (step[:, None] if dim == 1 else step)
        return rounding(scaled).to(torch.int8), step
    return quantize


def test_quantize_rows_and_its_known_faults():
    assert rounds_to_half_a_step(quantize_rows) and rounds_to_half_a_step(int8_mutant())
    for faulty in (int8_mutant(dim=None), int8_mutant(over=128.0), int8_mutant(over=255.0), int8_mutant(rounding=torch.trunc),
                   int8_mutant(rounding=torch.floor), int8_mutant(one_sided=True), int8_mutant(over=63.0)):
        assert not rounds_to_half_a_step(faulty)


@given(st.integers(1, 7), st.integers(1, 9), st.booleans(), st.integers(0, 99))
def test_the_linear_layer_is_that_of_its_rounded_weights(outputs, inputs, bias, seed):
    torch.manual_seed(seed)
    linear = nn.Linear(inputs, outputs, bias)
    layer, x = Int8Linear(linear), weights(2, 3, inputs, seed=seed)
    whole, step = quantize_rows(linear.weight)
    exact = x.double() @ (whole.double() * step.double()[:, None]).T + (linear.bias.double() if bias else 0)
    assert (layer(x) - exact).abs().max().item() < 1e-5
    assert layer(x[0, 0]).shape == (outputs,) and layer(x[:0]).shape == (0, 3, outputs)


def test_error_and_size_of_a_large_matrix():
    linear, x = nn.Linear(768, 3072), weights(8, 768)
    layer = Int8Linear(linear)
    assert (layer(x) - linear(x)).norm() / linear(x).norm() < 0.02
    assert layer.quantized.nbytes == linear.weight.nbytes / 4 and list(layer.parameters()) == []
    assert sorted(layer.state_dict()) == ["bias", "quantized", "scale"] and layer.weight.shape == (3072, 768)
    assert repr(layer) == "Int8Linear(in_features=768, out_features=3072, bias=True)"


def keeps_small_rows(make):
    """Rows so small that their step is no number of half precision come back as they were, to half a step, in either half precision."""
    for dtype, size in ((torch.float16, 2e-6), (torch.bfloat16, 2e-20)):
        linear = nn.Linear(32, 4, bias=False).to(dtype)
        with torch.no_grad():
            linear.weight.copy_(size * weights(4, 32))
        layer, exact = make(linear), linear.weight.double()
        step = exact.abs().amax(dim=1, keepdim=True) / 127
        if ((layer.weight.double() - exact).abs() > 0.51 * step).any() or not torch.isfinite(layer.weight).all():
            return False
    return True


def test_steps_of_half_precision():
    def in_half(linear):
        layer = Int8Linear(linear)
        layer.scale = layer.scale.to(linear.weight.dtype)
        return layer
    assert keeps_small_rows(Int8Linear) and not keeps_small_rows(in_half)


@pytest.mark.parametrize("weight_dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_it_computes_in_the_dtype_of_its_input(weight_dtype, dtype, bias):
    linear = nn.Linear(16, 8, bias).to(weight_dtype)
    y, exact = Int8Linear(linear)(weights(3, 16, dtype=dtype)), linear.double()(weights(3, 16, dtype=torch.float64))
    assert y.dtype == dtype and (y.double() - exact).norm() / exact.norm() < 0.03


def test_the_copy_is_in_the_mode_of_the_module():
    for module in (nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))):
        for mode in (True, False):
            assert {part.training for part in quantize_int8(module.train(mode)).modules()} == {mode}


def bert(seed=0, **sizes):
    torch.manual_seed(seed)
    model = Bert(BertConfig(**{"vocab_size": 50, "d_model": 24, "num_layers": 2, "num_heads": 4, "d_ff": 48, "max_len": 16, **sizes}))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_a_whole_bert(unchecked):
    model, ids = bert(), torch.arange(24).view(2, 12)
    mask = torch.arange(12) < torch.tensor([[12], [7]])
    before = copy.deepcopy(model.state_dict())
    small = quantize_int8(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())     # the given one stays
    linears = [name for name, part in model.named_modules() if type(part) is nn.Linear]
    assert [name for name, part in small.named_modules() if isinstance(part, Int8Linear)] == linears and len(linears) == 13
    for given_mask in (None, mask):
        (hidden, pooled), (exact, exact_pooled) = small(ids, given_mask), model(ids, given_mask)
        real = slice(None) if given_mask is None else given_mask
        assert F.cosine_similarity(hidden[real], exact[real], dim=-1).min() > 0.99 and F.cosine_similarity(pooled, exact_pooled).min() > 0.99
    other = quantize_int8(bert(seed=1))
    other.load_state_dict(small.state_dict())
    assert torch.equal(other(ids)[0], small(ids)[0]) and torch.equal(copy.deepcopy(small)(ids)[0], small(ids)[0])
    assert count_parameters(small) < count_parameters(model)


def test_other_modules():
    x = weights(2, 5, 12)
    for module in (nn.Linear(12, 7), FeedForward(12, 20), nn.Sequential(nn.Linear(12, 12), nn.GELU(), nn.Linear(12, 3)), MultiHeadAttention(12, 3)):
        small = quantize_int8(module)
        y, exact = small(x), module(x)
        assert (y - exact).norm() / exact.norm() < 0.05 and not y.requires_grad
        assert not any(type(part) is nn.Linear for part in small.modules())
    tied = nn.Sequential(layer := nn.Linear(4, 4), nn.ReLU(), layer)
    small = quantize_int8(tied)
    assert small[0] is small[2] and small[0] is not layer
    assert quantize_int8(nn.LayerNorm(3))(x[..., :3]).shape == (2, 5, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype):
    linear = nn.Linear(16, 8).to(dtype)
    y, exact = quantize_int8(linear)(weights(3, 16, dtype=dtype)), linear(weights(3, 16, dtype=dtype))
    assert y.dtype == dtype and (y - exact).float().norm() / exact.float().norm() < 0.03


def test_it_moves_and_runs_on_meta():
    small = quantize_int8(bert()).to("meta")
    assert small(torch.zeros(1, 4, dtype=torch.long, device="meta"))[0].shape == (1, 4, 24)


@pytest.mark.parametrize("call, error, says", [
    (lambda: quantize_int8(torch.zeros(2, 2)), TypeError, "module"), (lambda: Int8Linear(nn.LayerNorm(3)), TypeError, "linear"),
    (lambda: quantize_rows(torch.zeros(3)), ValueError, r"\(3,\)"), (lambda: quantize_rows(torch.zeros(3, 0)), ValueError, r"\(3, 0\)"), (lambda: quantize_rows(torch.zeros(2, 2).long()), TypeError, "int64"),
    (lambda: quantize_rows([[1.0]]), TypeError, "list"), (lambda: quantize_rows(torch.tensor([[math.nan]])), ValueError, "finite"),
    (lambda: quantize_int8(nn.Linear(3, 2))(torch.zeros(2, 4)), ValueError, r"\(2, 4\).*3"),
    (lambda: quantize_int8(nn.Linear(3, 2))(torch.zeros(2, 3).long()), TypeError, "int64"),
])
def test_what_it_refuses(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call()


# -- what is stored, and what it was measured with

def test_pieces_cover_the_text():
    for n in range(1, 30):
        for size, stride in ((5, 2), (5, 5), (7, 3)):
            pieces = measures.pieces_of(list(range(n)), size, stride)
            assert set().union(*pieces) == set(range(n)) and all(len(piece) == min(size, n) for piece in pieces)
            assert all(a[0] < b[0] for a, b in zip(pieces, pieces[1:]))


def test_a_long_document_holds_its_needle():
    entries = book_glossary()
    needles = [entries[place].split(": ", 1)[1] for place in wanted_entries(entries)[:3]]
    for depth, where in ((0.0, str.startswith), (0.5, str.count), (1.0, str.endswith)):
        texts, questions = measures.long_documents(depth, n=3, sentences=20)
        assert questions == list(QUESTIONS)[:3] and len({*texts}) == 3
        assert all(where(text, needle) for text, needle in zip(texts, needles))
    assert not texts[0].startswith(needles[0])


def test_masks_are_filled_and_nothing_else_is_touched():
    class Parrot(nn.Module):
        mask_id = 9

        def forward(self, ids):
            scores = torch.full((*ids.shape, 10), -50.0)
            scores[..., 5] = 50.0
            return scores
    rows, passes = measures.write_by_masks(Parrot(), [3, 1, 2], sweeps=1)
    assert rows == [[5, 5, 5], [5], [5, 5]] and passes == 6


def test_the_causal_word_model_does_not_look_ahead_and_the_other_does():
    ids = torch.arange(3, 13)[None]
    changed = ids.clone()
    changed[0, 6] = 3
    for causal in (True, False):
        torch.manual_seed(0)
        model = measures.WordEncoder(20, causal).eval()
        assert torch.allclose(model(ids)[:, :6], model(changed)[:, :6], atol=1e-5) == causal


def test_the_stored_runs_are_whole():
    import measure_limits as script
    runs = measures.stored_results()["runs"]
    assert [run["depth"] for run in runs if run["kind"] == "documents"] == list(script.DEPTHS)
    assert [(run["causal"], run["seed"]) for run in runs if run["kind"] == "next"] == [(c, s) for c in (True, False) for s in script.SEEDS]
    assert [run["seed"] for run in runs if run["kind"] == "writing"] == list(script.SEEDS)
    windows = [(run["window"], run["global"]) for run in runs if run["kind"] == "window"]
    assert windows == [(w, g) for w in script.WINDOWS for g in (False, True)]


# -- speed

@pytest.mark.bench
def test_speed_of_int8(unchecked, within):
    """What it costs where there are no instructions for int8; that it be faster is not asked."""
    model = bert(d_model=384, num_layers=6, num_heads=12, d_ff=1536, max_len=128)
    ids = torch.randint(50, (8, 128), generator=torch.Generator().manual_seed(0))
    small = quantize_int8(model)
    with torch.no_grad():
        within("int8 / float32, MiniLM's sizes, 8 texts of 128 tokens", ratio(lambda: small(ids), lambda: model(ids), 5), 1.5)


@pytest.mark.bench
def test_time_against_length(unchecked, within):
    model = bert(d_model=384, num_layers=6, num_heads=12, d_ff=1536, max_len=512)
    short, long = (torch.zeros(8 if n == 64 else 1, n, dtype=torch.long) for n in (64, 512))
    with torch.no_grad():
        within("512 tokens as one text / as eight texts", ratio(lambda: model(long), lambda: model(short), 5), 2.0)
