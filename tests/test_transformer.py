"""The Transformer: equal to torch.nn.Transformer in values and gradients; masks, cache, tying, checkpoints; what it refuses."""
import copy
import dataclasses
import json
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from speed import ratio
from stacks import KeyValues
from stacks import corresponding as in_stacks
from torch import nn
from torch.nn import functional as F

from transformer_course.attention.multi_head_attention import MultiHeadAttention, record_attention
from transformer_course.toolbox.checkpoints import CheckpointError, load_checkpoint, write_tensors
from transformer_course.toolbox.training_loop import adamw, fit
from transformer_course.transformer.feed_forward import SwiGLU
from transformer_course.transformer.transformer import TokenEmbedding, Transformer, TransformerConfig, shift_right

MODULE = "transformer_course.transformer.transformer"


# -- plausible answers that are wrong, for each exercise that is checked

def _count(cross=True, biases=True, last_norms=True, tables=None, norms=3):
    def parameters(c):
        d, extra = c.d_model, int(biases)
        attention, network, norm = 4 * (d * d + extra * d), 2 * d * c.d_ff + extra * (c.d_ff + d), 2 * d
        count = c.num_encoder_layers * (attention + network + 2 * norm) + c.num_decoder_layers * (
            (1 + cross) * attention + network + norms * norm) + 2 * norm * c.pre_norm * last_norms
        rows = c.source_vocab_size if c.tie_embeddings else c.source_vocab_size + 2 * c.target_vocab_size
        return count + (tables(c) if tables else rows) * d
    return parameters


def _batch(ask_pad=False, read_eos=False, mask_by_id=False, unshifted=False, mask_targets=False):
    def make_batch(sentences, bos, eos, pad):
        longest = max(map(len, sentences)) + 1 + read_eos

        def filled(rows, value):
            return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])
        read = filled([[bos, *s, *[eos] * read_eos] for s in sentences], pad)
        asked = filled([[bos, *s] if unshifted else [*s, eos] for s in sentences], pad if ask_pad else -100)
        mask = read != pad if mask_by_id else (asked != -100) & (asked != eos) if mask_targets else filled(
            [[1] * (len(s) + 1 + read_eos) for s in sentences], 0).bool()
        return read, asked, mask
    return make_batch


def _copy_values(model):
    model.output.weight.data.copy_(model.target_embedding.weight.data)


def _wrong_side(model):
    model.output.weight = model.source_embedding.weight


def _other_direction(model):
    model.target_embedding.weight = model.output.weight


def _new_parameter(model):
    model.output.weight = nn.Parameter(model.target_embedding.weight.detach().clone())


def _all_three(model):
    model.output.weight = model.source_embedding.weight = model.target_embedding.weight


WRONG = [
    ("25.parameters", [_count(cross=False), _count(biases=False), _count(last_norms=False), _count(norms=2),
                       _count(tables=lambda c: c.source_vocab_size + c.target_vocab_size),
                       _count(tables=lambda c: c.source_vocab_size + 2 * c.target_vocab_size)]),
    ("25.batch", [_batch(ask_pad=True), _batch(read_eos=True), _batch(mask_by_id=True), _batch(unshifted=True), _batch(mask_targets=True)]),
    ("25.crossing", [3072, 512, 2560, 4096, 1536]),
    ("25.tie", [_copy_values, _wrong_side, _other_direction, _new_parameter, _all_three]),
]


# -- the same as torch.nn.Transformer

def reference(c, **kwargs):
    """torch.nn.Transformer of the same sizes, dropout 0. Its stacks end in a norm of their own by default, post-norm or not; the
    paper's do not, so that post-norm stacks are built with norm=None. In pre-norm its default is kept."""
    settings = {"nhead": c.num_heads, "dim_feedforward": c.d_ff, "dropout": 0.0, "batch_first": True, "norm_first": c.pre_norm, **kwargs}
    if c.pre_norm:
        return nn.Transformer(c.d_model, num_encoder_layers=c.num_encoder_layers, num_decoder_layers=c.num_decoder_layers, **settings)
    stacks = {"custom_encoder": nn.TransformerEncoder(nn.TransformerEncoderLayer(c.d_model, **settings), c.num_encoder_layers,
                                                      norm=None, enable_nested_tensor=False),
              "custom_decoder": nn.TransformerDecoder(nn.TransformerDecoderLayer(c.d_model, **settings), c.num_decoder_layers, norm=None)}
    return nn.Transformer(c.d_model, **settings, **stacks)


def corresponding(ours, theirs):
    """(our parameters, theirs) that are the same. The embeddings and the output are ours alone."""
    return [*in_stacks(ours.encoder, theirs.encoder), *in_stacks(ours.decoder, theirs.decoder)]


def pair(config, dtype=torch.float64, seed=0):
    """Our model with all parameters drawn anew (norms and biases too, which start at 1 and 0), and torch's with copies of them."""
    torch.manual_seed(seed)
    ours, theirs = Transformer(config).to(dtype), reference(config).to(dtype)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, dtype=dtype) * 0.3)
        for mine, other in corresponding(ours, theirs):
            other.copy_(torch.cat(mine))
    return ours, theirs


def torch_logits(ours, theirs, source, target, source_mask, target_mask):
    """The reference: our tables and positions by their formulas, torch's stacks, the output as a matrix product."""
    def embed(weight, position, ids):
        return F.embedding(ids, weight) * math.sqrt(weight.shape[1]) + position(weight.new_zeros(1, ids.shape[1], weight.shape[1]))

    def hidden(mask):
        return None if mask is None else ~mask.bool()
    causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    state = theirs(embed(ours.source_embedding.weight, ours.source_position, source),
                   embed(ours.target_embedding.weight, ours.target_position, target), tgt_mask=causal,
                   src_key_padding_mask=hidden(source_mask), memory_key_padding_mask=hidden(source_mask),
                   tgt_key_padding_mask=hidden(target_mask))
    return state @ (ours.target_embedding.weight if ours.output is None else ours.output.weight).T


def inputs(c, batch, source_len, target_len, masked, seed=1):
    g = torch.Generator().manual_seed(seed)
    source = torch.randint(c.source_vocab_size, (batch, source_len), generator=g)
    target = torch.randint(c.target_vocab_size, (batch, target_len), generator=g)
    if not masked:
        return source, target, None, None
    source_mask = torch.rand(batch, source_len, generator=g) < 0.6     # anywhere: in front, in the middle
    source_mask[:, -1] = True
    lengths = torch.randint(1, target_len + 1, (batch, 1), generator=g)
    return source, target, source_mask, torch.arange(target_len) < lengths


def gap(ours, theirs, source, target, source_mask, target_mask):
    """The largest difference over logits of kept positions (at padding torch's fast path gives zeros) and all gradients."""
    kept = torch.ones_like(target, dtype=torch.bool) if target_mask is None else target_mask.bool()
    own = [ours.source_embedding.weight, *([] if ours.output is None else [ours.target_embedding.weight, ours.output.weight])]
    pairs = corresponding(ours, theirs)
    a = ours(source, target, source_mask, target_mask)[kept]
    b = torch_logits(ours, theirs, source, target, source_mask, target_mask)[kept]
    direction = torch.randn(a.shape, generator=torch.Generator().manual_seed(2)).to(a.dtype)
    mine = torch.autograd.grad((a * direction).sum(), [*own, *[p for group, _ in pairs for p in group]])
    other = torch.autograd.grad((b * direction).sum(), [*own, *[p for _, p in pairs]])
    differences, rest = [(a - b).abs().max()], list(mine[len(own):])
    differences += [(x - y).abs().max() for x, y in zip(mine, other[:len(own)])]
    for (group, _), theirs_too in zip(pairs, other[len(own):]):
        differences.append((torch.cat([rest.pop(0) for _ in group]) - theirs_too).abs().max())
    assert not rest and len(own) + sum(len(group) for group, _ in pairs) == len(list(ours.parameters()))
    return max(difference.item() for difference in differences)


@given(st.data())
def test_equals_torch(parity, data):
    heads = data.draw(st.sampled_from([1, 2, 3]))
    tied, vocab = data.draw(st.booleans()), data.draw(st.integers(3, 7))
    config = TransformerConfig(
        vocab, vocab if tied else data.draw(st.integers(2, 7)), d_model=heads * data.draw(st.sampled_from([3, 4, 5])), num_heads=heads,
        d_ff=data.draw(st.integers(1, 9)), num_encoder_layers=data.draw(st.integers(1, 2)), num_decoder_layers=data.draw(st.integers(1, 3)),
        dropout=0.0, max_len=9, pre_norm=data.draw(st.booleans()), tie_embeddings=tied)
    batch, source_len, target_len = (data.draw(st.integers(1, top)) for top in (3, 6, 5))
    tensors = inputs(config, batch, source_len, target_len, data.draw(st.booleans()), data.draw(st.integers(0, 99)))
    where = "pre-norm" if config.pre_norm else "post-norm"
    parity(f"{MODULE}.Transformer", "torch", gap(*pair(config, seed=data.draw(st.integers(0, 99))), *tensors), 1e-10,
           f"logits and gradients, {where}: 1 to 3 layers, tied and untied, padding on both sides, odd widths, float64")


def test_the_comparison_would_notice(unchecked):
    """Each faulty variant of the pair differs, or fails to be compared."""
    config = TransformerConfig(5, 6, 9, 3, 7, 2, 2, dropout=0.0)
    ours, theirs = pair(config)
    tensors = inputs(config, 3, 5, 4, True)
    assert gap(ours, theirs, *tensors) < 1e-11
    source, target, source_mask, target_mask = tensors
    kept = target_mask
    right = ours(*tensors)[kept]
    for wrong in ((source, target, None, target_mask), (source, target, ~source_mask, target_mask), (source.flip(1), target, source_mask, None)):
        assert (ours(*wrong)[kept] - right).abs().max() > 1e-3
    theirs.decoder.norm = nn.LayerNorm(9, dtype=torch.float64)     # PyTorch's own default
    assert (torch_logits(ours, theirs, *tensors)[kept] - right).abs().max() > 1e-3


@pytest.mark.parametrize("pre_norm", [False, True])
def test_base_size_in_single_precision(parity, pre_norm):
    config = dataclasses.replace(TransformerConfig.base(vocab_size=101), dropout=0.0, pre_norm=pre_norm, max_len=20)
    ours, theirs = (model.eval() for model in pair(config, torch.float32))
    tensors = inputs(config, 2, 9, 7, True)
    kept = tensors[3]
    with torch.no_grad():
        difference = (ours(*tensors) - torch_logits(ours, theirs, *tensors))[kept].abs().max().item()
    parity(f"{MODULE}.Transformer", "torch", difference, 2e-5, "logits at the size of the base model, padding on both sides, float32")


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.2), (torch.float16, 0.02)])
def test_half_precision(dtype, tolerance):
    config = TransformerConfig(11, 13, 24, 3, 32, 2, 2, dropout=0.0)
    torch.manual_seed(0)
    model = Transformer(config).eval()
    tensors = inputs(config, 3, 6, 5, True)
    with torch.no_grad():
        exact = model.double()(*tensors)
        half = model.to(dtype)(*tensors)
    assert half.dtype == dtype and (half - exact).abs().max() < tolerance


# -- embedding and shift

@given(st.integers(1, 7), st.integers(1, 9), st.integers(0, 99))
def test_embedding_equals_torch(parity, vocab, width, seed):
    torch.manual_seed(seed)
    ours = TokenEmbedding(vocab, width).double()
    ids, x = torch.randint(vocab, (2, 3)), torch.randn(2, 3, width, dtype=torch.float64)
    theirs = nn.Embedding(vocab, width, dtype=torch.float64)
    theirs.weight.data.copy_(ours.weight.data)
    direction = torch.randn(2, 3, width, dtype=torch.float64)
    differences = [(ours(ids) - theirs(ids) * math.sqrt(width)).abs().max(), (ours.logits(x) - x @ theirs.weight.T).abs().max()]
    grads = [torch.autograd.grad((out * direction).sum() + scores.square().sum(), table.weight)[0]
             for out, scores, table in ((ours(ids), ours.logits(x), ours), (theirs(ids) * math.sqrt(width), x @ theirs.weight.T, theirs))]
    differences.append((grads[0] - grads[1]).abs().max())
    parity(f"{MODULE}.TokenEmbedding", "torch", max(d.item() for d in differences), 1e-11,
           "lookup times the root of the width, and scores, with gradients, odd sizes, float64")


def test_table_is_drawn_with_the_inverse_root():
    torch.manual_seed(0)
    table = TokenEmbedding(2000, 64).weight
    assert abs(table.std().item() * 8 - 1) < 0.01 and abs(table.mean().item()) < 0.002


@given(st.integers(1, 3), st.integers(1, 6), st.integers(0, 9))
def test_shift_right(batch, length, bos):
    target = torch.randint(10, (batch, length), generator=torch.Generator().manual_seed(length))
    read = shift_right(target, bos)
    assert read.shape == target.shape and read.dtype == target.dtype and (read[:, 0] == bos).all()
    assert all(read[b, i] == target[b, i - 1] for b in range(batch) for i in range(1, length))


def test_shift_right_makes_a_new_tensor():
    target = torch.tensor([[4, 5]])
    shift_right(target, 1).zero_()
    assert target.tolist() == [[4, 5]]


def depends_on(make_input, length=5):
    """Row i, column j: does the prediction of target token i depend on target token j?"""
    torch.manual_seed(4)
    model = Transformer(TransformerConfig(13, 13, 32, 2, 64, 1, 1)).eval()
    source, target = torch.tensor([[3, 4, 5]]), torch.randint(3, 12, (1, length))
    moved = torch.zeros(length, length, dtype=torch.bool)
    with torch.no_grad():
        before = model(source, make_input(target))
        for j in range(length):
            changed = target.clone()
            changed[0, j] += 1
            moved[:, j] = ((model(source, make_input(changed)) - before).abs() > 1e-5).any(-1)[0]
    return moved


def test_a_prediction_depends_on_what_came_before_and_on_nothing_else():
    def right(make):
        return torch.equal(depends_on(make), torch.ones(5, 5, dtype=torch.bool).tril(-1))
    assert right(lambda t: shift_right(t, 1))
    for wrong in (lambda t: t, lambda t: shift_right(shift_right(t, 1), 1), lambda t: t.roll(1, 1), lambda t: t.roll(-1, 1)):
        assert not right(wrong)


# -- masks

CONFIG = TransformerConfig(11, 13, 15, 3, 8, 2, 2, dropout=0.0, max_len=12)


def made(config=CONFIG, seed=0, **parts):
    torch.manual_seed(seed)
    return Transformer(config, **parts).double().eval()


@pytest.mark.parametrize("pre_norm", [False, True])
def test_padding_has_no_influence(pre_norm):
    model = made(dataclasses.replace(CONFIG, pre_norm=pre_norm))
    source, target, _, _ = inputs(CONFIG, 3, 6, 5, False)
    source_lengths, target_lengths = [6, 2, 4], [1, 5, 3]
    masks = [torch.arange(top) < torch.tensor(lengths)[:, None] for top, lengths in ((6, source_lengths), (5, target_lengths))]
    logits = model(source, target, *masks)
    for row, (s, t) in enumerate(zip(source_lengths, target_lengths)):
        alone = model(source[row:row + 1, :s], target[row:row + 1, :t])
        assert (logits[row, :t] - alone[0]).abs().max() < 1e-12
    other = [torch.where(mask, ids, (ids + 1) % 11) for mask, ids in zip(masks, (source, target))]
    assert torch.equal(model(*other, *masks)[masks[1]], logits[masks[1]])     # whatever the padding holds
    integers = [mask.long() for mask in masks]
    assert torch.equal(model(source, target, *integers), logits)


def test_a_source_of_padding_alone_gives_finite_numbers():
    model = made()
    source, target, _, _ = inputs(CONFIG, 2, 4, 3, False)
    mask = torch.tensor([[True] * 4, [False] * 4])
    logits = model(source, target, mask)
    logits.sum().backward()
    assert logits.isfinite().all() and all(p.grad.isfinite().all() for p in model.parameters())
    assert (logits[:1] - model(source[:1], target[:1], mask[:1])).abs().max() < 1e-12


def test_no_leak_from_later_tokens():
    model, (source, target, _, _) = made(), inputs(CONFIG, 2, 4, 5, False)
    vectors = []
    hook = model.target_embedding.register_forward_hook(lambda part, args, output: vectors.append(output.retain_grad() or output))
    logits = model(source, target)
    hook.remove()
    for i in range(5):
        gradient, = torch.autograd.grad(logits[:, i].square().sum(), vectors[0], retain_graph=True)
        norms = gradient.norm(dim=(0, 2))
        assert (norms[i + 1:] == 0).all() and (norms[:i + 1] > 0).all()


# -- one token at a time

def stepwise(model, target, context, source_mask, target_mask, chunks):
    """Logits of a target read in chunks, with a cache for each layer."""
    caches, logits, start = [KeyValues() for _ in model.decoder.layers], [], 0
    for size in chunks:
        end = start + size
        logits.append(model.decode(target[:, start:end], context, source_mask, target_mask[:, :end], caches))
        start = end
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("chunks", [(1, 1, 1, 1, 1), (2, 3), (3, 1, 1), (5,)])
@pytest.mark.parametrize("pre_norm, tied", [(False, False), (True, True)])
def test_cached_equals_whole(chunks, pre_norm, tied):
    config = TransformerConfig(11, 11, 15, 3, 8, 2, 2, pre_norm=pre_norm, tie_embeddings=tied)
    model = made(config)
    source, target, source_mask, target_mask = inputs(config, 3, 4, 5, True)
    whole = model(source, target, source_mask, target_mask)
    context = model.encode(source, source_mask)
    difference = (stepwise(model, target, context, source_mask, target_mask, chunks) - whole)[target_mask].abs().max()
    assert difference < 1e-12


def test_greedy_with_a_cache_says_the_same():
    model = made(TransformerConfig(11, 11, 16, 2, 32, 2, 2))
    source = torch.randint(11, (4, 5), generator=torch.Generator().manual_seed(0))
    context = model.encode(source)
    said, caches = [torch.zeros(4, 1, dtype=torch.int64)], [KeyValues() for _ in range(2)]
    for _ in range(6):
        cached = model.decode(said[-1], context, cache=caches)[:, -1]
        whole = model(source, torch.cat(said, dim=1))[:, -1]
        assert (cached - whole).abs().max() < 1e-12
        said.append(cached.argmax(-1, keepdim=True))
    assert caches[0].length == 6 and len(set(torch.cat(said[1:], dim=1).flatten().tolist())) > 1


class Forgetful(KeyValues):
    """Says that it holds nothing: positions would start again at 0, and the mask would be too small."""
    length = 0


def test_a_cache_that_restarts_positions_would_be_noticed():
    model = made()
    source, target, _, _ = inputs(CONFIG, 2, 4, 3, False)
    whole, context = model(source, target), model.encode(source)
    caches, logits = [Forgetful() for _ in model.decoder.layers], []
    try:
        for i in range(3):
            logits.append(model.decode(target[:, i:i + 1], context, cache=caches))
    except (ValueError, RuntimeError):
        return
    assert (torch.cat(logits, dim=1) - whole).abs().max() > 1e-3


# -- sizes, tying, parts

def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("config, count", [(TransformerConfig.base(), 63_082_496), (TransformerConfig.big(), 214_245_376)])
def test_sizes_of_the_paper(config, count):
    with torch.device("meta"):
        model = Transformer(config)
    assert size(model) == count
    c, d = config, config.d_model
    attention, network, norm = 4 * (d * d + d), 2 * d * c.d_ff + c.d_ff + d, 2 * d
    assert count == 6 * (3 * attention + 2 * network + 5 * norm) + 37000 * d


def test_works_on_the_meta_device():
    model = made().to("meta")
    source, target = (torch.zeros(2, n, dtype=torch.int64, device="meta") for n in (4, 3))
    logits = model(source, target)
    assert logits.device.type == "meta" and logits.shape == (2, 3, 13)


def test_tied_is_one_table_and_learns_from_three_places():
    config = TransformerConfig(7, 7, 9, 3, 5, 1, 1, dropout=0.0, tie_embeddings=True)
    model = made(config)
    names = [name for name, _ in model.named_parameters() if "layers" not in name]
    assert names == ["source_embedding.weight"]
    table, source, target = model.source_embedding.weight, torch.tensor([[1, 2]]), torch.tensor([[3, 4]])
    model(source, target).square().sum().backward()
    rows = table.grad.norm(dim=1)
    assert (rows > 0).all()       # every row is scored at the output
    model.zero_grad()
    model.encode(source).square().sum().backward()
    assert (table.grad.norm(dim=1) > 0).tolist() == [False, True, True, False, False, False, False]


def test_an_odd_width_works():
    config = TransformerConfig(5, 6, d_model=21, num_heads=7, d_ff=3, num_encoder_layers=1, num_decoder_layers=1)
    assert made(config)(torch.tensor([[1, 2, 3]]), torch.tensor([[0, 5]])).shape == (1, 2, 6)


@pytest.mark.parametrize("part, factory, kind", [
    ("attention", lambda: MultiHeadAttention(15, 5, bias=False), MultiHeadAttention), ("feed_forward", lambda: SwiGLU(15, 7), SwiGLU),
    ("norm", lambda: nn.RMSNorm(15), nn.RMSNorm), ("position", nn.Identity, nn.Identity)])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_parts_are_replaced_everywhere(part, factory, kind, pre_norm):
    config = dataclasses.replace(CONFIG, pre_norm=pre_norm)
    model, places = made(config, **{part: factory}), {"attention": 6, "feed_forward": 4, "norm": 10 + 2 * pre_norm, "position": 2}
    found = [module for name, module in model.named_modules() if type(module) is kind and (kind is not nn.Identity or "position" in name)]
    assert len(found) == places[part] and len(set(map(id, found))) == places[part]
    source, target, source_mask, target_mask = inputs(config, 2, 4, 3, True)
    logits = model(source, target, source_mask, target_mask)
    assert logits.shape == (2, 3, 13) and (logits - made(config)(source, target, source_mask, target_mask)).abs().max() > 1e-3


def test_layers_do_not_share():
    model = made()
    owned = [id(p) for layer in [*model.encoder.layers, *model.decoder.layers] for p in layer.parameters()]
    assert len(owned) == len(set(owned))


def test_dropout_only_in_training():
    model = made(dataclasses.replace(CONFIG, dropout=0.5))
    source, target, _, _ = inputs(CONFIG, 2, 4, 3, False)
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    assert not torch.equal(model(source, target), model(source, target))


def test_dropout_is_everywhere_the_settings_say():
    """Embedded inputs, what each sublayer gives, attention weights, inside the feed-forward networks."""
    with torch.device("meta"):
        model = Transformer(TransformerConfig(11, 13, 15, 3, 8, 2, 2, dropout=0.25))
    shares = [part.p if isinstance(part, nn.Dropout) else part.dropout for part in model.modules()
              if isinstance(part, nn.Dropout) or isinstance(getattr(part, "dropout", None), float)]
    # 2 inputs; per encoder layer 2 sublayers, 1 attention, 1 network; per decoder layer 3 sublayers, 2 attentions, 1 network
    assert shares == [0.25] * (2 + 2 * 4 + 2 * 6)


def test_settings_of_the_paper():
    assert TransformerConfig.base() == TransformerConfig(37000, 37000, 512, 8, 2048, 6, 6, 0.1, 5000, False, True)
    assert TransformerConfig.big() == TransformerConfig(37000, 37000, 1024, 16, 4096, 6, 6, 0.3, 5000, False, True)
    assert TransformerConfig.base(9).target_vocab_size == TransformerConfig.big(9).source_vocab_size == 9


def test_linear_layers_are_drawn_by_xavier():
    model = Transformer(TransformerConfig(40, 50, 24, 3, 96, 1, 1))
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    assert len(layers) == 3 * 4 + 2 * 2 + 1
    for layer in layers:
        bound = math.sqrt(6 / sum(layer.weight.shape))
        assert 0.9 * bound < layer.weight.abs().max() <= bound and (layer.bias is None or (layer.bias == 0).all())


def test_attentions_have_names():
    model = made()
    source, target, _, _ = inputs(CONFIG, 2, 4, 3, False)
    with record_attention(model) as record:
        model(source, target)
    assert [name for name in record] == [*(f"encoder.layers.{i}.attention.sublayer" for i in range(2)), *(
        f"decoder.layers.{i}.{kind}_attention.sublayer" for i in range(2) for kind in ("self", "cross"))]
    assert [tuple(weights[0].shape) for weights in record.values()] == [(2, 3, 4, 4)] * 2 + [(2, 3, 3, 3), (2, 3, 3, 4)] * 2


# -- checkpoints

@pytest.mark.parametrize("tied", [False, True])
def test_saved_and_loaded(tmp_path, tied):
    config = TransformerConfig(11, 11, 15, 3, 8, 2, 1, max_len=12, pre_norm=True, tie_embeddings=tied)
    model = made(config).float()
    model.save_pretrained(tmp_path / "model")
    loaded = Transformer.from_pretrained(tmp_path / "model")
    assert loaded.config == config and not loaded.training and size(loaded) == size(model)
    assert (loaded.source_embedding is loaded.target_embedding) == tied
    source, target, source_mask, target_mask = inputs(config, 2, 4, 3, True)
    assert torch.equal(loaded(source, target, source_mask, target_mask), model(source, target, source_mask, target_mask))
    names = {name for name in load_checkpoint(tmp_path / "model")[1] if "layers" not in name and "norm" not in name}
    assert names == ({"source_embedding.weight"} if tied else {"source_embedding.weight", "target_embedding.weight", "output.weight"})


def test_state_dict_round_trip():
    model, fresh = made(), made(seed=1)
    fresh.load_state_dict(model.state_dict())
    source, target, _, _ = inputs(CONFIG, 2, 4, 3, False)
    assert torch.equal(fresh(source, target), model(source, target))
    assert not any("table" in name or "position" in name for name in model.state_dict())     # positions are computed, not stored


def test_a_model_with_other_parts_is_loaded_with_them(tmp_path):
    parts = {"feed_forward": lambda: SwiGLU(15, 7)}
    model = made(**parts)
    model.save_pretrained(tmp_path)
    loaded = Transformer.from_pretrained(tmp_path, **parts)
    assert all(torch.equal(a.float(), b) for a, b in zip(model.parameters(), loaded.parameters()))
    with pytest.raises(CheckpointError, match="feed_forward"):
        Transformer.from_pretrained(tmp_path)


def spoil_config(folder, **changes):
    settings = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))


@pytest.mark.parametrize("spoil, says", [
    (lambda f: spoil_config(f, num_heads=7), "config.json.*num_heads"),
    (lambda f: spoil_config(f, colour="blue"), "config.json.*colour"),
    (lambda f: spoil_config(f, source_vocab_size=None), "config.json.*source_vocab_size"),
    (lambda f: spoil_config(f, d_ff="8"), "config.json.*d_ff"),
    (lambda f: spoil_config(f, num_encoder_layers=3), "encoder.layers.2"),
    (lambda f: spoil_config(f, source_vocab_size=12), "source_embedding.weight"),
    (lambda f: write_tensors({"output.weight": torch.zeros(13, 15)}, f / "model.safetensors"), "source_embedding.weight"),
    (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
])
def test_what_does_not_fit_is_refused(tmp_path, unchecked, spoil, says):
    made().save_pretrained(tmp_path)
    spoil(tmp_path)
    with pytest.raises(CheckpointError, match=says):
        Transformer.from_pretrained(tmp_path)


# -- it learns

@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pre_norm, parts", [(False, {}), (True, {}), (False, {"feed_forward": lambda: SwiGLU(16, 21)})])
def test_learns_a_tiny_batch_by_heart(seed, pre_norm, parts):
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(9, 9, 16, 2, 32, 1, 1, dropout=0.0, pre_norm=pre_norm, tie_embeddings=True), **parts)
    source, target = torch.randint(9, (4, 5)), torch.randint(1, 9, (4, 6))

    def loss(model, batch):
        return F.cross_entropy(model(source, shift_right(target, 0)).flatten(0, 1), target.flatten())

    history = fit(model, [0] * 150, loss, adamw(model, 1e-2), steps=150)
    assert history.losses[0] > 1.5 and history.losses[-1] < 0.02     # 0.0015 to 0.0023 on five seeds; ln 9 = 2.2
    assert torch.equal(model(source, shift_right(target, 0)).argmax(-1), target)


# -- what it refuses

@pytest.mark.parametrize("arguments, error, says", [
    ({"source_vocab_size": 0}, ValueError, r"source_vocab_size \(0\)"), ({"target_vocab_size": 2.0}, ValueError, "target_vocab_size"),
    ({"d_model": -8}, ValueError, r"d_model \(-8\)"), ({"d_model": True}, ValueError, "d_model"), ({"d_ff": 0}, ValueError, "d_ff"),
    ({"num_heads": 7}, ValueError, r"num_heads \(7\) must divide d_model \(16\)"), ({"num_heads": 0}, ValueError, "num_heads"),
    ({"num_encoder_layers": 0}, ValueError, "num_encoder_layers"), ({"num_decoder_layers": "6"}, ValueError, "num_decoder_layers"),
    ({"max_len": 0}, ValueError, "max_len"), ({"dropout": 1.0}, ValueError, "dropout"), ({"dropout": -0.1}, ValueError, "dropout"),
    ({"dropout": math.nan}, ValueError, "dropout"), ({"dropout": "0.1"}, ValueError, "dropout"), ({"pre_norm": 1}, TypeError, "pre_norm"),
    ({"tie_embeddings": "yes"}, TypeError, "tie_embeddings"), ({"tie_embeddings": True}, ValueError, "11 .* 13"),
])
def test_wrong_settings(unchecked, arguments, error, says):
    with pytest.raises(error, match=says):
        TransformerConfig(**{"source_vocab_size": 11, "target_vocab_size": 13, "d_model": 16, "num_heads": 4, **arguments})


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TransformerConfig.base().d_model = 8


@pytest.mark.parametrize("call, error, says", [
    (lambda: Transformer({"d_model": 8}), TypeError, "config must be a TransformerConfig, not dict"),
    (lambda: Transformer(CONFIG, norm=nn.LayerNorm(15)), TypeError, "norm must be a function"),
    (lambda: Transformer(CONFIG, attention=3), TypeError, "attention must be a function"),
    (lambda: Transformer(CONFIG, position=lambda: None), TypeError, "position must make a module, not NoneType"),
    (lambda: Transformer(CONFIG, feed_forward=lambda: nn.Identity), TypeError, "feed_forward must make a module, not type"),
    (lambda: TokenEmbedding(0, 4), ValueError, "vocab_size"), (lambda: TokenEmbedding(4, 2.5), ValueError, "d_model"),
    (lambda: TokenEmbedding(4, 3)(torch.tensor([4])), ValueError, "ids must hold ids from 0 to 3, but holds 4"),
    (lambda: TokenEmbedding(4, 3)(torch.tensor([-1])), ValueError, "-1"),
    (lambda: TokenEmbedding(4, 3)(torch.tensor([1.0])), TypeError, "int64, not torch.float32"),
    (lambda: TokenEmbedding(4, 3)([1]), TypeError, "int64, not list"),
    (lambda: TokenEmbedding(4, 3)(torch.tensor([1], device="meta")), ValueError, "ids is on meta, but the weights are on cpu"),
    (lambda: TokenEmbedding(4, 3).logits(torch.zeros(2, 4)), ValueError, "width 3"),
    (lambda: TokenEmbedding(4, 3).logits(torch.tensor(1.0)), ValueError, "width 3"),
    (lambda: TokenEmbedding(4, 3).logits(None), TypeError, "x must be a tensor, not NoneType"),
    (lambda: TokenEmbedding(4, 3).logits(torch.zeros(2, 3).numpy()), TypeError, "x must be a tensor, not ndarray"),
    (lambda: TokenEmbedding(4, 3).logits(torch.ones(2, 3, dtype=torch.int64)), ValueError, "x has dtype torch.int64"),
    (lambda: shift_right(torch.tensor([1, 2]), 0), ValueError, "batch, length"),
    (lambda: shift_right(torch.zeros(2, 0, dtype=torch.int64), 0), ValueError, "at least one token"),
    (lambda: shift_right(torch.zeros(2, 2), 0), TypeError, "int64"), (lambda: shift_right([[1]], 0), TypeError, "not list"),
    (lambda: shift_right(torch.zeros(2, 2, dtype=torch.int64), -1), ValueError, "bos"),
    (lambda: shift_right(torch.zeros(2, 2, dtype=torch.int64), 1.0), TypeError, "bos"),
])
def test_wrong_arguments(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call()


S, T, ON = torch.ones(2, 4, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 4, dtype=torch.bool)


@pytest.mark.parametrize("arguments, error, says", [
    ((S + 10, T), ValueError, "source must hold ids from 0 to 10, but holds 11"), ((S, T - 2), ValueError, "target .* holds -1"),
    ((S, T + 12), ValueError, "target .* from 0 to 12"), ((S.float(), T), TypeError, "source must be a tensor of int64, not torch.float32"),
    ((S, T.int()), TypeError, "target must be a tensor of int64, not torch.int32"), ((S.tolist(), T), TypeError, "source .* not list"),
    ((S[0], T), ValueError, r"source must have shape \(batch, length\)"), ((S, T[:, :0]), ValueError, "target .* at least one"),
    ((S[:, :0], T), ValueError, "source .* at least one"), ((S[:0], T[:0]), ValueError, "source .* at least one"),
    ((S.repeat(1, 4), T), ValueError, "source reaches length 16, but max_len is 12"),
    ((S, T.repeat(1, 5)), ValueError, "target reaches length 15, but max_len is 12"),
    ((S, T[:1]), ValueError, "target has 1 sequences, but source has 2"),
    ((S.to("meta"), T), ValueError, "source is on meta, but the weights are on cpu"),
    ((S, T.to("meta")), ValueError, "target is on meta, but the weights are on cpu"),
    ((S, T, ON[:, :3]), ValueError, r"source_mask must have shape \(2, 4\).* not \(2, 3\)"),
    ((S, T, ON[:1]), ValueError, "source_mask must have shape"), ((S, T, ON[:, None, None]), ValueError, "source_mask must have shape"),
    ((S, T, None, ON), ValueError, r"target_mask must have shape \(2, 3\)"),
    ((S, T, ON.float()), TypeError, "source_mask must be a tensor of bool or of 0 and 1, not torch.float32"),
    ((S, T, None, [[True] * 3] * 2), TypeError, "target_mask .* not list"),
])
def test_wrong_input(unchecked, arguments, error, says):
    with pytest.raises(error, match=says):
        made()(*arguments)


def test_a_mask_of_other_numbers_is_refused(unchecked):
    with pytest.raises(ValueError, match="source_mask must hold only 0 and 1"):
        made()(S, T, S + 1)
    with pytest.raises(ValueError, match="target_mask must hold only 0 and 1"):
        made()(S, T, None, T - 2)


def context_of(shape):
    return torch.zeros(shape, dtype=torch.float64)


@pytest.mark.parametrize("context, cache, error, says", [
    (None, None, TypeError, "context must be a tensor .* not NoneType"), ([[0.0]], None, TypeError, "context must be a tensor .* not list"),
    (context_of((2, 15)), None, TypeError, r"context must be a tensor .* not \(2, 15\)"), (context_of((2, 4, 7)), None, ValueError, "context"),
    (context_of((1, 4, 15)), None, ValueError, "target has 2 sequences, but source has 1"),
    (context_of((2, 4, 15)), KeyValues(), TypeError, "cache must be a list .* not KeyValues"), (context_of((2, 4, 15)), 3, TypeError, "cache must be a list"),
    (context_of((2, 4, 15)), [], ValueError, "cache has 0 parts, but there are 2 layers"),
    (context_of((2, 4, 15)), [KeyValues()], ValueError, "cache has 1 parts, but there are 2 layers"),
    (context_of((2, 4, 15)), [None, None], TypeError, r"cache\[0\] must have a length"),
])
def test_wrong_input_to_decode(unchecked, context, cache, error, says):
    with pytest.raises(error, match=says):
        made().decode(T, context, cache=cache)


def test_caches_of_different_lengths_are_refused(unchecked):
    model, caches = made(), [KeyValues(), KeyValues()]
    caches[0].update(*context_of((2, 2, 3, 1, 5)))
    with pytest.raises(ValueError, match=r"cache .* lengths are \[1, 0\]"):
        model.decode(T, model.encode(S), cache=caches)


def test_numbers_of_numpy_become_plain_ones(unchecked, tmp_path):
    config = TransformerConfig(np.int64(5), np.int64(6), np.int64(6), np.int32(2), 3, 1, 1, dropout=np.float32(0.25))
    assert [type(value) for value in vars(config).values()] == [int] * 7 + [float, int, bool, bool] and config.dropout == 0.25
    Transformer(config).save_pretrained(tmp_path)
    assert Transformer.from_pretrained(tmp_path).config == config


def test_copies_and_autocast():
    config = TransformerConfig(11, 11, 15, 3, 8, 1, 1, dropout=0.0, tie_embeddings=True)
    model, (source, target, _, _) = made(config).float(), inputs(config, 2, 4, 3, False)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied.source_embedding is copied.target_embedding is not model.source_embedding and torch.equal(
            copied(source, target), model(source, target))
    with torch.autocast("cpu", torch.bfloat16):
        assert (model(source, target) - model.double()(source, target)).abs().max() < 0.2


def test_a_full_cache_is_refused(unchecked):
    model = made()
    caches, context = [KeyValues() for _ in model.decoder.layers], model.encode(S)
    model.decode(T.repeat(1, 4), context, cache=caches)
    with pytest.raises(ValueError, match="target reaches length 13, but max_len is 12"):
        model.decode(T[:, :1], context, cache=caches)
    with pytest.raises(ValueError, match=r"target_mask must have shape \(2, 3\)"):
        model.decode(T, context, None, ON)


# -- speed

@pytest.mark.bench
def test_speed_against_torch(unchecked, within):
    config = TransformerConfig(1000, 1000, 256, 4, 1024, 2, 2, dropout=0.0)
    ours, theirs = pair(config, torch.float32)
    source, target, source_mask, target_mask = inputs(config, 16, 40, 40, True)

    def train(forward):
        forward().square().mean().backward()

    value = ratio(lambda: train(lambda: ours(source, target, source_mask, target_mask)),
                  lambda: train(lambda: torch_logits(ours, theirs, source, target, source_mask, target_mask)))
    within("Transformer, forward and backward / torch", value, 1.25)
