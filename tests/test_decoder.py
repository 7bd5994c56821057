"""The decoder: equal to torch.nn.TransformerDecoder in values and gradients; no leak; what it refuses."""
import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stacks import KeyValues, copy_weights, largest_difference, randomized
from torch import nn

from transformer_course.attention import MultiHeadAttention, causal_mask, combine_masks, padding_mask, record_attention
from transformer_course.transformer import Decoder, DecoderLayer, FeedForward, LayerNorm

MODULE = "transformer_course.transformer.decoder"


def _peeks_at_padding(weights, source_mask):
    return weights.mean(1).argmax(-1)


def _first_head(weights, source_mask):
    return weights[:, 0].masked_fill(~source_mask[:, None], -1).argmax(-1)


def _shared_padding(weights, source_mask):
    return weights.mean(1).masked_fill(~source_mask[:1, None], -1).argmax(-1)


def _sharpest_head(weights, source_mask):
    return weights.amax(1).masked_fill(~source_mask[:, None], -1).argmax(-1)


def _computes_again(attention, context):
    return lambda x, mask=None: attention(x, context=context, mask=mask)


def _forgets_the_mask(attention, context):
    return lambda x, mask=None: attention(x, context=context)


def _queries_once(attention, context):
    kept = {}
    return lambda x, mask=None: kept.setdefault(x.shape, attention(x, context=context, mask=mask))


# Plausible answers that are wrong, for each exercise that is checked.
WRONG = [
    ("24.parameters", [18_914_304, 6 * (2 * 1_050_624 + 2_099_712), 6 * (2 * 1_050_624 + 2_099_712 + 2_048), 6 * (3 * 1_050_624 + 3_072)]),
    ("24.aligned", [_peeks_at_padding, _first_head, _shared_padding, _sharpest_head]),
    ("24.read-once", [_computes_again, _forgets_the_mask, _queries_once]),
]


def ours(d_model, heads, d_ff, layers, pre_norm=False, dropout=0.0):
    """A decoder of the given size; pre-norm stacks get a final norm."""
    def layer():
        attentions = (MultiHeadAttention(d_model, heads, dropout) for _ in range(2))
        return DecoderLayer(*attentions, FeedForward(d_model, d_ff, dropout=dropout), lambda: LayerNorm(d_model), pre_norm, dropout)
    return Decoder([layer() for _ in range(layers)], LayerNorm(d_model) if pre_norm else None)


def theirs(d_model, heads, d_ff, layers, pre_norm=False):
    layer = nn.TransformerDecoderLayer(d_model, heads, d_ff, 0.0, batch_first=True, norm_first=pre_norm)
    return nn.TransformerDecoder(layer, layers, nn.LayerNorm(d_model) if pre_norm else None)


def _draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(st.data())
def test_equals_torch(parity, data):
    heads = data.draw(st.integers(1, 3))
    d_model, d_ff, layers = heads * data.draw(st.sampled_from([1, 3, 5])), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    batch, q_len, k_len = (data.draw(st.integers(1, 5)) for _ in range(3))
    size = d_model, heads, d_ff, layers, data.draw(st.booleans())
    mine = randomized(ours(*size).double(), data.draw(st.integers(0, 9)))
    other = copy_weights(mine, theirs(*size).double())
    x, context = _draw(batch, q_len, d_model, seed=data.draw(st.integers(0, 99))), _draw(batch, k_len, d_model, seed=1)
    lengths = [torch.tensor(data.draw(st.lists(st.integers(1, n), min_size=batch, max_size=batch))) for n in (q_len, k_len)]
    target, source = (torch.arange(n) < sizes[:, None] for n, sizes in zip((q_len, k_len), lengths))
    found = largest_difference(
        mine, other, lambda x, c: mine(x, c, mask=padding_mask(lengths[0], q_len), context_mask=padding_mask(lengths[1], k_len)),
        lambda x, c: other(x, c, tgt_mask=~causal_mask(q_len), tgt_key_padding_mask=~target, memory_key_padding_mask=~source),
        [x, context], target)
    parity(f"{MODULE}.Decoder", "torch", found, 1e-9,
           "TransformerDecoder: pre- and post-norm, 1 to 3 layers, odd widths, target and source of different lengths and padding, "
           "values and gradients, float64")


@pytest.mark.parametrize("pre_norm", [False, True])
def test_equals_torch_at_base_size(parity, pre_norm):
    torch.manual_seed(0)
    mine = ours(512, 8, 2048, 6, pre_norm).eval()
    other = copy_weights(mine, theirs(512, 8, 2048, 6, pre_norm)).eval()
    x, context = torch.randn(2, 17, 512), torch.randn(2, 23, 512)
    with torch.no_grad():
        difference = (mine(x, context) - other(x, context, tgt_mask=~causal_mask(17))).abs().max()
    parity(f"{MODULE}.Decoder", "torch", difference, 5e-5, "TransformerDecoder at base size (6 layers, width 512, 8 heads), float32")


def no_leak(call):
    """Whether outputs depend on no later target token and on no padding of either side. `call(x, context, target_mask, source_mask)`."""
    x, context = _draw(2, 5, 6), _draw(2, 5, 6, seed=1)
    masks = padding_mask([5, 3], 5), padding_mask([2, 5], 5)
    base = call(x, context, *masks)
    later, source, target = x.clone(), context.clone(), x.clone()
    later[0, 3:] = 9.0
    source[0, 2:] = 9.0
    target[1, 3:] = 9.0
    return (torch.equal(call(later, context, *masks)[0, :3], base[0, :3])
            and torch.equal(call(x, source, *masks)[0], base[0])
            and torch.equal(call(target, context, *masks)[1, :3], base[1, :3])
            and not torch.equal(call(x, context + 1, *masks)[0], base[0]))


def _small(seed=0):
    return randomized(ours(6, 3, 5, 2).double(), seed)


def test_nothing_leaks():
    decoder = _small()
    assert no_leak(lambda x, c, t, s: decoder(x, c, mask=t, context_mask=s))


def _layers(decoder, x, context, mask, context_mask):
    for layer in decoder.layers:
        x = layer(x, context, mask=mask, context_mask=context_mask)
    return x


@pytest.mark.parametrize("wrong", [
    lambda d: lambda x, c, t, s: _layers(d, x, c, t, s),  # no causal mask
    lambda d: lambda x, c, t, s: _layers(d, x, c, causal_mask(5), t),  # the target's mask in cross-attention
    lambda d: lambda x, c, t, s: _layers(d, x, c, combine_masks(causal_mask(5), t), None),  # the source's padding is seen
    lambda d: lambda x, c, t, s: _layers(d, x, c, combine_masks(causal_mask(5), t), s.mT),  # padding of queries hidden, not of keys
    lambda d: lambda x, c, t, s: _layers(d, x, c, causal_mask(5).T, s),  # the wrong triangle
    lambda d: lambda x, c, t, s: _layers(d, x, x, combine_masks(causal_mask(5), t), s),  # the target read as the source
])
def test_leaks_are_caught(wrong):
    assert not no_leak(wrong(_small()))


def is_the_layer(make):
    """Whether a layer from (self-attention, cross-attention, network, norms) computes three post-norm sublayers in order."""
    first, second = (randomized(MultiHeadAttention(6, 3).double(), seed) for seed in (1, 2))
    network, norms = randomized(FeedForward(6, 5).double(), 3), [randomized(LayerNorm(6).double(), seed) for seed in (4, 5, 6)]
    x, c = _draw(2, 3, 6), _draw(2, 4, 6, seed=1)
    a = norms[0](x + first(x))
    b = norms[1](a + second(a, context=c))
    return torch.allclose(make(first, second, network, norms)(x, c), norms[2](b + network(b)), atol=1e-10)


def test_three_sublayers():
    assert is_the_layer(lambda s, c, f, norms: DecoderLayer(s, c, f, iter(norms).__next__))


@pytest.mark.parametrize("wrong", [
    lambda s, c, f, n: DecoderLayer(c, s, f, iter(n).__next__),  # the attentions swapped
    lambda s, c, f, n: DecoderLayer(s, c, f, iter(n[::-1]).__next__),  # the norms swapped
    lambda s, c, f, n: DecoderLayer(s, c, f, iter(n).__next__, pre_norm=True),
    lambda s, c, f, n: lambda x, y: n[2](n[0](x + s(x)) + f(n[0](x + s(x)))),  # no cross-attention
    lambda s, c, f, n: lambda x, y: n[2](n[1](x + c(x, context=y)) + f(n[1](x + c(x, context=y)))),  # no self-attention
])
def test_wrong_layers_are_caught(wrong):
    assert not is_the_layer(wrong)


@pytest.mark.parametrize("pieces", [[1] * 6, [3, 1, 2], [6]])
@pytest.mark.parametrize("padded", [False, True])
def test_with_caches_token_by_token(pieces, padded):
    decoder, x, context = _small(), _draw(2, 6, 6), _draw(2, 4, 6, seed=1)
    left = torch.tensor([[False, False, True, True, True, True], [True] * 6])  # padding on the left, as for writing in batches
    caches, found, at = [KeyValues() for _ in range(2)], [], 0
    for n in pieces:
        mask = left[:, None, None, :at + n] if padded else None
        found.append(decoder(x[:, at:at + n], context, mask=mask, cache=caches))
        at += n
    whole = decoder(x, context, mask=left[:, None, None] if padded else None)
    assert torch.allclose(torch.cat(found, 1), whole, atol=1e-10) and whole.isfinite().all()
    with pytest.raises(ValueError, match="cache has 1 parts, but there are 2 layers"):
        decoder(x, context, cache=caches[:1])
    with pytest.raises(ValueError, match="cache has 0 parts, but there are 2 layers"):
        decoder(x, context, cache=[])
    with pytest.raises(ValueError, match=r"cache\[1\] serves an earlier layer already"):
        decoder(x, context, cache=[KeyValues()] * 2)
    with pytest.raises(ValueError, match=r"cache must hold caches of one length, but their lengths are \[6, 0\]"):
        decoder(x[:, :1], context, cache=[caches[0], KeyValues()])


def test_recorded_shapes():
    decoder = _small()
    with record_attention(decoder) as record:
        decoder(_draw(2, 3, 6), _draw(2, 4, 6))
    shapes = {name: tuple(calls[0].shape) for name, calls in record.items()}
    assert shapes == {f"layers.{i}.{kind}_attention.sublayer": (2, 3, 3, k_len) for i in range(2) for kind, k_len in (("self", 3), ("cross", 4))}


def test_no_source_and_no_target():
    decoder = _small()
    assert decoder(_draw(2, 0, 6), _draw(2, 4, 6)).shape == (2, 0, 6)
    hidden = torch.zeros(2, 1, 1, 4, dtype=torch.bool)
    out = decoder(_draw(2, 3, 6), _draw(2, 4, 6), context_mask=hidden)
    assert out.isfinite().all() and torch.equal(out, decoder(_draw(2, 3, 6), _draw(2, 4, 6, seed=5), context_mask=hidden))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    decoder = ours(16, 4, 32, 3, pre_norm=True).to(dtype)
    out = decoder(torch.randn(2, 5, 16).to(dtype), torch.randn(2, 4, 16).to(dtype), context_mask=padding_mask([4, 0], 4))
    assert out.dtype == dtype and out.isfinite().all()
    out.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in decoder.parameters())


@pytest.mark.parametrize("again", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_and_state_dicts(again):
    decoder, x, context = randomized(ours(6, 3, 5, 2, True).double()), _draw(2, 3, 6), _draw(2, 4, 6, seed=1)
    assert torch.equal(again(decoder)(x, context), decoder(x, context))
    fresh = ours(6, 3, 5, 2, True).double()
    fresh.load_state_dict(decoder.state_dict())
    assert torch.equal(fresh(x, context), decoder(x, context))


def test_bias_is_for_self_attention_in_every_layer():
    decoder, bias = _small(), torch.zeros(3, 1, 5, 5, dtype=torch.float64)[:1]
    bias[..., 1] = -1e9
    with record_attention(decoder) as record:
        decoder(_draw(2, 5, 6), _draw(2, 5, 6, seed=1), bias=bias)
    for name, calls in record.items():
        assert calls[0][..., 1:, 1].any() == ("cross" in name)


def test_dropout_is_on_every_sublayer_and_only_in_training():
    for loud in range(3):
        layer = DecoderLayer(*_parts(), nn.Identity, dropout=0.5)
        ends = layer.self_attention.sublayer.output, layer.cross_attention.sublayer.output, layer.feed_forward.sublayer.down
        for i, part in enumerate(ends):
            nn.init.constant_(part.weight, i == loud), nn.init.constant_(part.bias, i == loud)  # the other two give zeros only
        x, context = torch.randn(1, 50, 8), torch.randn(1, 4, 8)
        assert 0.2 < (layer(x, context) == x).float().mean() < 0.8
        layer.eval()
        assert torch.equal(layer(x, context), layer(x, context))


def test_on_meta():
    with torch.device("meta"):
        assert ours(8, 2, 16, 2)(torch.zeros(2, 3, 8), torch.zeros(2, 5, 8)).shape == (2, 3, 8)


def _parts():
    return MultiHeadAttention(8, 2), MultiHeadAttention(8, 2), FeedForward(8, 8)


@pytest.mark.parametrize("call, error, says", [
    (lambda: DecoderLayer(*_parts(), LayerNorm(8)), TypeError, "norm must be a function that makes a new module"),
    (lambda: DecoderLayer(None, *_parts()[1:], lambda: LayerNorm(8)), TypeError, "self_attention must be a module, not NoneType"),
    (lambda: DecoderLayer(_parts()[0], 3, _parts()[2], lambda: LayerNorm(8)), TypeError, "cross_attention must be a module, not int"),
    (lambda: DecoderLayer(*_parts(), lambda norm=LayerNorm(8): norm), ValueError, "norm must make a new module at each call"),
    (lambda: Decoder([]), ValueError, "layers is empty"),
    # without a context attention would look at the target, later words included
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), None), TypeError, "context must be a tensor, not NoneType"),
    (lambda: ours(8, 2, 8, 1).layers[0](torch.zeros(2, 3, 8), None), TypeError, "context must be a tensor, not NoneType"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), torch.zeros(3, 8)), ValueError, "context must have shape"),
    (lambda: ours(8, 2, 8, 1)(None, torch.zeros(2, 3, 8)), TypeError, "x must be a tensor, not NoneType"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(8), torch.zeros(2, 3, 8)), ValueError, "x must have shape"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), torch.zeros(2, 3, 8), cache=KeyValues()), TypeError, "cache must be a list"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), torch.zeros(2, 3, 8), cache=[3]), TypeError, r"cache\[0\] must have a length"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), torch.zeros(2, 3, 8), mask=[True]), TypeError, "mask must be a boolean tensor.* not list"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), torch.zeros(2, 3, 8), mask=torch.ones(3, dtype=torch.bool)), ValueError, "mask must have 2 or 4"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), torch.zeros(2, 3, 8), mask=torch.ones(2, 3, dtype=torch.bool)), ValueError, "mask must have 2 or 4"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 1, 8), torch.zeros(2, 3, 8), mask=causal_mask(4)), ValueError, "mask .*q_len 1 and k_len 1"),
    (lambda: Decoder(_parts(), final_norm=3), TypeError, "final_norm must be a module or None"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 7), torch.zeros(2, 3, 8)), ValueError, "x .*7"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), torch.zeros(2, 3, 7)), ValueError, "context .*7"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), torch.zeros(1, 3, 8)), ValueError, "context has a batch of 1, but x one of 2"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), torch.zeros(2, 3, 8), mask=torch.ones(3, 3)), TypeError, r"boolean"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), torch.zeros(2, 3, 8), context_mask=torch.ones(3, 3)), TypeError, "context_mask must be a boolean tensor"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), torch.zeros(2, 4, 8), context_mask=padding_mask([3, 3], 3)), ValueError,
     "context_mask .* q_len 3 and k_len 4"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), torch.zeros(2, 4, 8), context_mask=padding_mask([3, 3, 3], 4)), ValueError,
     r"context_mask .* batch 2.* not shape \(3, 1, 1, 4\)"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), torch.zeros(2, 4, 8), mask=padding_mask([3, 3, 3], 3)), ValueError,
     r"mask .* batch 2.* not shape \(3, 1, 1, 3\)"),
    (lambda: ours(8, 2, 8, 1).layers[0](None, torch.zeros(2, 4, 8)), TypeError, "x must be a tensor, not NoneType"),
])
def test_wrong_input(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_keys_of_the_context_are_made_once():
    decoder, x, context = randomized(ours(8, 2, 16, 2)).double().eval(), torch.randn(2, 4, 8).double(), torch.randn(2, 5, 8).double()
    made, cache, of_context = [], [KeyValues(), KeyValues()], [KeyValues(), KeyValues()]
    for layer in decoder.layers:
        layer.cross_attention.sublayer.key.register_forward_hook(lambda *call: made.append(1))
    pieces = [decoder(x[:, t:t + 1], context, cache=cache, context_cache=of_context) for t in range(4)]
    assert len(made) == 2 and [kept.length for kept in of_context] == [5, 5]
    assert (torch.cat(pieces, dim=1) - decoder(x, context)).abs().max() < 1e-12
    with pytest.raises(ValueError, match="context_cache has 1 parts"):
        decoder(x, context, context_cache=[KeyValues()])
