"""The encoder: equal to torch.nn.TransformerEncoder in values and gradients; assembled from parts; what it refuses."""
import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from speed import interleaved
from stacks import KeyValues, copy_weights, largest_difference, randomized
from torch import nn

from transformer_course.attention import MultiHeadAttention, causal_mask, padding_mask, record_attention
from transformer_course.transformer import Encoder, EncoderLayer, FeedForward, LayerNorm, SwiGLU

MODULE = "transformer_course.transformer.encoder"

# Plausible answers that are wrong, for each exercise that is checked.
WRONG = [
    ("23.parameters", [6 * (1_050_624 + 2_099_712), 6 * (4 * 512**2 + 2 * 512 * 2048), 6 * (1_050_624 + 2_099_712 + 1_024)]),
    ("23.states", [
        lambda encoder, x, mask=None: _states(encoder, x, mask)[1:],
        lambda encoder, x, mask=None: _states(encoder, x, None),
        lambda encoder, x, mask=None: [*_states(encoder, x, mask), encoder(x, mask=mask)],
        lambda encoder, x, mask=None: _states(encoder, x, mask, norm_last=False),
        lambda encoder, x, mask=None: _states(encoder, x, mask, norm_all=True),
    ]),
    ("23.parallel", [
        lambda x, a, f, norm: x + a(norm(x)) + f(norm(x + a(norm(x)))),
        lambda x, a, f, norm: norm(x + a(x) + f(x)),
        lambda x, a, f, norm: norm(x) + a(norm(x)) + f(norm(x)),
        lambda x, a, f, norm: x + a(norm(x)) + f(norm(x)) + 0 * norm(x),
    ]),
]


def _states(encoder, x, mask, norm_last=True, norm_all=False):
    found = [x]
    for layer in encoder.layers:
        found.append(layer(found[-1], mask=mask))
    norm = encoder.final_norm or nn.Identity()
    return [norm(state) for state in found] if norm_all else [*found[:-1], norm(found[-1])] if norm_last else found


def ours(d_model, heads, d_ff, layers, pre_norm=False, final_norm=False, activation="relu", dropout=0.0):
    """An encoder of the given size."""
    def layer():
        attention = MultiHeadAttention(d_model, heads, dropout)
        return EncoderLayer(attention, FeedForward(d_model, d_ff, activation, dropout=dropout), lambda: LayerNorm(d_model), pre_norm, dropout)
    return Encoder([layer() for _ in range(layers)], LayerNorm(d_model) if final_norm else None)


def theirs(d_model, heads, d_ff, layers, pre_norm=False, final_norm=False, activation="relu", dropout=0.0):
    """PyTorch's encoder of the same size; it takes its last norm as an argument, and post-norm stacks should get None."""
    layer = nn.TransformerEncoderLayer(d_model, heads, d_ff, dropout, activation, batch_first=True, norm_first=pre_norm)
    return nn.TransformerEncoder(layer, layers, nn.LayerNorm(d_model) if final_norm else None, enable_nested_tensor=False)


@given(st.data())
def test_equals_torch(parity, data):
    heads = data.draw(st.integers(1, 3))
    d_model, d_ff, layers = heads * data.draw(st.sampled_from([1, 3, 5])), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    batch, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    pre_norm, activation = data.draw(st.booleans()), data.draw(st.sampled_from(["relu", "gelu"]))
    size = d_model, heads, d_ff, layers, pre_norm, pre_norm, activation
    mine = randomized(ours(*size).double(), data.draw(st.integers(0, 9)))
    other = copy_weights(mine, theirs(*size).double())
    x = torch.randn(batch, length, d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    lengths = torch.tensor(data.draw(st.lists(st.integers(1, length), min_size=batch, max_size=batch)))
    keep = torch.arange(length) < lengths[:, None]
    kind = data.draw(st.sampled_from(["all", "padding", "causal"]))
    mask = {"all": None, "padding": padding_mask(lengths, length), "causal": causal_mask(length)}[kind]
    hidden = {"all": {}, "padding": {"src_key_padding_mask": ~keep}, "causal": {"mask": ~causal_mask(length)}}[kind]
    keep = keep if kind == "padding" else torch.ones_like(keep)
    found = largest_difference(mine, other, lambda x: mine(x, mask=mask), lambda x: other(x, **hidden), [x], keep)
    parity(f"{MODULE}.Encoder", "torch", found, 1e-9,
           "TransformerEncoder: pre- and post-norm, ReLU and GELU, 1 to 3 layers, odd widths, padding and causal masks, values and gradients, float64")


@pytest.mark.parametrize("pre_norm", [False, True])
def test_equals_torch_at_base_size(parity, pre_norm):
    torch.manual_seed(0)
    size = 512, 8, 2048, 6, pre_norm, pre_norm
    mine = ours(*size).eval()
    other = copy_weights(mine, theirs(*size)).eval()
    x, lengths = torch.randn(2, 33, 512), torch.tensor([33, 20])
    keep = torch.arange(33) < lengths[:, None]
    with torch.no_grad():
        difference = (mine(x, padding_mask(lengths, 33)) - other(x, src_key_padding_mask=~keep))[keep].abs().max()
    parity(f"{MODULE}.Encoder", "torch", difference, 5e-5,
           "TransformerEncoder at base size (6 layers, width 512, 8 heads), padding, float32")


def is_post_norm(layer_of):
    """Whether a layer, made from (attention, network, norms), computes the paper's two lines."""
    attention, network = randomized(MultiHeadAttention(6, 3).double(), 1), randomized(FeedForward(6, 5).double(), 2)
    norms = [randomized(LayerNorm(6).double(), seed) for seed in (3, 4)]
    x = torch.randn(2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    y = norms[0](x + attention(x))
    wanted = norms[1](y + network(y))
    return torch.allclose(layer_of(attention, network, norms)(x), wanted, atol=1e-10)


def test_the_two_lines_of_the_paper():
    assert is_post_norm(lambda a, f, norms: EncoderLayer(a, f, iter(norms).__next__))


@pytest.mark.parametrize("wrong", [
    lambda a, f, n: lambda x: n[1](n[0](x + a(x)) + f(x)),  # the network reads the layer's input
    lambda a, f, n: lambda x: n[1](x + f(n[0](x + a(x)))),  # the second residual skips both
    lambda a, f, n: lambda x: x + a(n[0](x)) + f(n[1](x + a(n[0](x)))),  # pre-norm
    lambda a, f, n: lambda x: n[1](f(n[0](a(x)))),  # no residuals
    lambda a, f, n: lambda x: n[0](n[0](x + a(x)) + f(n[0](x + a(x)))),  # one norm for both
    lambda a, f, n: lambda x: n[1](n[0](x + f(x)) + a(n[0](x + f(x)))),  # the other order
])
def test_wrong_layers_are_caught(wrong):
    assert not is_post_norm(wrong)


def layers_are_their_own(encoder):
    """Whether no matrix occurs in two layers, as an object or as equal numbers."""
    rows = [[p for p in layer.parameters() if p.dim() > 1] for layer in encoder.layers]
    return not any(torch.equal(a, b) for same in zip(*rows) for i, a in enumerate(same) for b in same[:i])


def test_layers_share_nothing():
    assert layers_are_their_own(ours(8, 2, 16, 4))
    layer = ours(8, 2, 16, 1).layers[0]
    assert not layers_are_their_own(Encoder([layer] * 3))
    assert not layers_are_their_own(Encoder([copy.deepcopy(layer) for _ in range(3)]))
    assert sum(p.numel() for p in Encoder([layer] * 3).parameters()) == sum(p.numel() for p in layer.parameters())  # sharing is possible


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("pieces", [[1] * 6, [3, 1, 2], [6]])
def test_with_caches_token_by_token(pre_norm, pieces):
    encoder = randomized(ours(8, 2, 16, 3, pre_norm, pre_norm).double())
    x = torch.randn(2, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    caches, found, at = [KeyValues() for _ in range(3)], [], 0
    for n in pieces:
        found.append(encoder(x[:, at:at + n], mask=causal_mask(n, at + n), cache=caches))
        at += n
    assert torch.allclose(torch.cat(found, 1), encoder(x, mask=causal_mask(6)), atol=1e-10)
    with pytest.raises(ValueError, match=r"cache\[1\] serves an earlier layer already"):
        encoder(x, cache=[KeyValues()] * 3)
    with pytest.raises(ValueError, match="cache has 2 parts, but there are 3 layers"):
        encoder(x, cache=caches[:2])
    with pytest.raises(ValueError, match=r"cache must hold caches of one length, but their lengths are \[6, 6, 0\]"):
        encoder(x, cache=[*caches[:2], KeyValues()])


def test_bias_and_mask_reach_every_layer():
    encoder = randomized(ours(8, 2, 16, 3))
    x, bias = torch.randn(1, 4, 8), torch.zeros(1, 2, 4, 4)
    bias[..., 3] = -1e9
    mask = torch.tensor([True, True, True, False]).expand(4, 4)
    with record_attention(encoder) as record:
        encoder(x, mask=mask, bias=bias)
    assert len(record) == 3 and all(not weights[0][..., 3].any() for weights in record.values())
    assert torch.allclose(encoder(x, mask=mask)[:, :3], encoder(x, bias=bias)[:, :3], atol=1e-5)


def test_layers_run_in_the_order_given():
    first, second, x = ours(8, 2, 16, 1).layers[0], ours(8, 2, 16, 1).layers[0], torch.randn(1, 4, 8)
    assert torch.equal(Encoder([first, second], LayerNorm(8))(x), LayerNorm(8)(second(first(x))))


def test_norms_without_weights_may_be_one():
    one = nn.Identity()
    assert EncoderLayer(_attention(), FeedForward(8, 8), lambda: one)(torch.zeros(1, 2, 8)).shape == (1, 2, 8)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_and_state_dicts(again):
    encoder, x = randomized(ours(8, 2, 16, 2, True, True)), torch.randn(2, 5, 8)
    assert torch.equal(again(encoder)(x), encoder(x))
    fresh = ours(8, 2, 16, 2, True, True)
    fresh.load_state_dict(encoder.state_dict())
    assert torch.equal(fresh(x), encoder(x))
    assert {name.split(".")[0] for name in encoder.state_dict()} == {"layers", "final_norm"}


def test_dropout_is_on_both_sublayers():
    for attention, network in ((0.0, 1.0), (1.0, 0.0)):
        layer = EncoderLayer(_attention(), FeedForward(8, 8), nn.Identity, dropout=0.5)
        for part, weight in ((layer.attention.sublayer.output, attention), (layer.feed_forward.sublayer.down, network)):
            nn.init.constant_(part.weight, weight), nn.init.constant_(part.bias, weight)  # one of the two gives zeros only
        x = torch.randn(1, 50, 8)
        change = layer(x) - x
        assert 0.2 < (change == 0).float().mean() < 0.8


def test_dropout_only_in_training():
    encoder, x = ours(8, 2, 16, 2, dropout=0.5), torch.randn(1, 4, 8)
    assert not torch.equal(encoder(x), encoder(x))
    encoder.eval()
    assert torch.equal(encoder(x), encoder(x))


def test_other_parts():
    layer = EncoderLayer(MultiHeadAttention(9, 3, bias=False), SwiGLU(9, 7), lambda: nn.RMSNorm(9), pre_norm=True)
    assert layer(torch.randn(2, 5, 9)).shape == (2, 5, 9)
    assert ours(8, 2, 16, 2).to("meta")(torch.zeros(2, 5, 8, device="meta")).shape == (2, 5, 8)
    assert ours(8, 2, 16, 1)(torch.zeros(2, 0, 8)).shape == (2, 0, 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    encoder = ours(16, 4, 32, 3, pre_norm=True, final_norm=True).to(dtype)
    out = encoder(torch.randn(2, 5, 16).to(dtype), padding_mask([5, 0], 5))
    assert out.dtype == dtype and out.isfinite().all()
    out.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in encoder.parameters())


def _attention():
    return MultiHeadAttention(8, 2)


@pytest.mark.parametrize("call, error, says", [
    (lambda: EncoderLayer(_attention(), FeedForward(8, 8), LayerNorm(8)), TypeError, "norm must be a function that makes a new module"),
    (lambda: EncoderLayer(_attention(), FeedForward(8, 8), None), TypeError, "norm must be a function"),
    (lambda: EncoderLayer(_attention(), FeedForward(8, 8), lambda: 3), TypeError, "norm must be a module"),
    (lambda: EncoderLayer(_attention(), 8, lambda: LayerNorm(8)), TypeError, "feed_forward must be a module, not int"),
    (lambda: EncoderLayer(None, FeedForward(8, 8), lambda: LayerNorm(8)), TypeError, "attention must be a module, not NoneType"),
    (lambda: EncoderLayer(_attention(), FeedForward(8, 8), lambda: LayerNorm(8), dropout=1.5), ValueError, "dropout"),
    (lambda: EncoderLayer(_attention(), FeedForward(8, 8), lambda: LayerNorm(8), pre_norm=1), TypeError, "pre_norm"),
    (lambda: EncoderLayer(_attention(), FeedForward(8, 8), lambda norm=LayerNorm(8): norm), ValueError, "norm must make a new module at each call"),
    (lambda: Encoder([]), ValueError, "layers is empty"),
    (lambda: Encoder(None), TypeError, "layers must be a list of modules, not NoneType"),
    (lambda: Encoder(_attention()), TypeError, "layers must be a list of modules, not one MultiHeadAttention"),
    (lambda: Encoder([3]), TypeError, r"layers\[0\] must be a module, not int"),
    (lambda: Encoder([_attention()], final_norm=LayerNorm), TypeError, "final_norm must be a module or None"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 7)), ValueError, "x .*7"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), mask=torch.ones(3, 3)), TypeError, "mask"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), mask=torch.ones(2, 3, 3, dtype=torch.bool)), ValueError, "mask"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), mask=causal_mask(4)), ValueError, "mask"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), cache=KeyValues()), TypeError, "cache must be a list with one cache for each layer, not KeyValues"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), cache={"first": KeyValues()}), TypeError, "cache must be a list .* not dict"),
    (lambda: ours(8, 2, 8, 1)(torch.zeros(2, 3, 8), cache=[3]), TypeError, r"cache\[0\] must have a length and a method update"),
])
def test_wrong_input(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call()


def _training_step(model, x):
    model.zero_grad(set_to_none=True)
    model(x).square().mean().backward()


@pytest.mark.bench
def test_as_fast_as_torch(within):
    """Six layers at base size, batch 8, length 128, two threads: against the faster of PyTorch's two paths."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.manual_seed(0)
        mine = ours(512, 8, 2048, 6)
        other = copy_weights(mine, theirs(512, 8, 2048, 6))
        x = torch.randn(8, 128, 512)

        def run(model, fast):
            def go():
                torch.backends.mha.set_fastpath_enabled(fast)
                with torch.inference_mode():
                    model(x)
            return go
        mine.eval(), other.eval()
        us, on, off = interleaved(run(mine, True), run(other, True), run(other, False))
        within("encoder, eval", us / min(on, off), 1.15)
        mine.train(), other.train()
        us, them = interleaved(lambda: _training_step(mine, x), lambda: _training_step(other, x))
        within("encoder, training step", us / them, 1.15)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        torch.set_num_threads(before)
