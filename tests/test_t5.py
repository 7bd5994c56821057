"""T5: equal to transformers' in logits, gradients, files and greedy answers; caches; spans; bytes; known faults; what it refuses."""
import copy
import dataclasses
import json
import math
import pickle
from collections import Counter

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from speed import ratio
from torch import nn
from transformers.models.t5.modeling_t5 import T5LayerNorm

from transformer_course.attention.masks import causal_mask
from transformer_course.modern import _t5_tasks as tasks
from transformer_course.modern._t5_files import COPIES, UNUSED, names_in_files, settings_from_file
from transformer_course.modern.kv_cache import KVCache
from transformer_course.modern.t5 import T5, ByteTokenizer, T5Config, corrupt_spans, random_spans, restore_spans
from transformer_course.toolbox.checkpoints import CheckpointError
from transformer_course.toolbox.exercises import check, exercise_ids
from transformer_course.toolbox.teddy_world import TeddyWorld
from transformer_course.transformer.feed_forward import ACTIVATIONS
from transformer_course.transformer.transformer import shift_right

MODULE = "transformer_course.modern.t5"
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


# -- plausible answers that are wrong, for each exercise that is checked

def _count(cross=True, norms=3, last=2, tables=2, gate=True, square=False, deep=False):
    def parameters(c):
        d, inner = c.d_model, c.d_model if square else c.num_heads * (c.head_dim or c.d_model // c.num_heads)
        attention, network = 4 * d * inner, (2 + c.gated * gate) * d * c.d_ff
        layers = c.num_layers if deep else c.num_decoder_layers or c.num_layers
        return (c.num_layers * (attention + network + 2 * d) + layers * ((1 + cross) * attention + network + norms * d) + last * d
                + tables * c.num_buckets * c.num_heads + (1 if c.tie_embeddings else 2) * c.vocab_size * d)
    return parameters


def _lengths(end=1, least=1, room=True, both=0, rounded=round):
    def corrupted_lengths(length, density, mean):
        hidden = min(max(rounded(length * density), least), length - 1)
        spans = max(rounded(hidden / mean), least)
        spans = min(spans, hidden, length - hidden + 1) if room else spans
        return length - hidden + spans + both, hidden + spans + end
    return corrupted_lengths


def _cut_anywhere(ids, max_len):
    return ids[:max_len]


def _cut_bytes(ids, max_len):
    end = min(max_len, len(ids))
    while end < len(ids) and 0x80 <= ids[end] < 0xC0:       # forgets that ids are bytes plus 3
        end -= 1
    return ids[:end]


def _cut_before(ids, max_len):
    end = min(max_len, len(ids))
    while end > 0 and 0x80 <= ids[end - 1] - 3:             # drops a whole character, too
        end -= 1
    return ids[:end]


def _cut_to_ascii(ids, max_len):
    return [id for id in ids[:max_len] if id - 3 < 0x80]


WRONG = [
    ("34.parameters", [_count(cross=False), _count(norms=2), _count(last=0), _count(tables=1), _count(gate=False), _count(square=True),
                       _count(deep=True)]),
    ("34.lengths", [_lengths(end=0), _lengths(least=0), _lengths(room=False), _lengths(both=1), _lengths(rounded=math.ceil)]),
    ("34.prefix-mask", [lambda prefix, length: causal_mask(length), lambda prefix, length: torch.ones(length, length).bool(),
                        lambda prefix, length: causal_mask(length) | (torch.arange(length) <= prefix),
                        lambda prefix, length: causal_mask(length) | (torch.arange(length) < prefix)[:, None],
                        lambda prefix, length: (causal_mask(length) | (torch.arange(length) < prefix)).float()]),
    ("34.cut", [_cut_anywhere, _cut_bytes, _cut_before, _cut_to_ascii]),
]


@pytest.mark.parametrize("exercise, answer", [(name, answer) for name, answers in WRONG for answer in answers])
def test_wrong_answers_are_told(exercise, answer):
    assert exercise in exercise_ids("34") and not check(exercise, answer)


# -- the same as transformers' T5

PROJECTIONS = {"relu": ("relu", False), "gelu": ("gelu", False), "gelu_new": ("gelu_tanh", False), "silu": ("silu", False),
               "gated-gelu": ("gelu_tanh", True), "gated-relu": ("relu", True), "gated-silu": ("silu", True)}


def reference(tmp_path, seed=0, head=None, scale=None, **settings):
    """transformers' model and ours, read from what it saved. Norms are not all 1; with `head`, the output has its own table."""
    torch.manual_seed(seed)
    settings = {"vocab_size": 23, "d_model": 10, "d_kv": 3, "d_ff": 7, "num_layers": 2, "num_heads": 3, "decoder_start_token_id": 0,
                "relative_attention_num_buckets": 8, "relative_attention_max_distance": 9, **settings}
    if scale is not None:
        settings["tie_word_embeddings"] = scale         # since transformers 5, this says only whether outputs are scaled
    theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(**settings)).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "layer_norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
        if head:
            theirs.lm_head.weight = nn.Parameter(torch.randn_like(theirs.shared.weight) * 0.5)
    theirs.save_pretrained(tmp_path)
    if head:        # it ties once more when it is read, unless the file holds two tables that differ
        assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")
    return theirs, T5.from_pretrained(tmp_path)


def inputs(vocab, batch, length, target_len, masked, seed=0):
    g = torch.Generator().manual_seed(seed)
    source, target = (torch.randint(vocab, (batch, n), generator=g) for n in (length, target_len))
    if not masked:
        return source, target, None, None
    mask = torch.rand(batch, length, generator=g) < 0.7             # anywhere: left, right, between
    mask[torch.arange(batch), torch.randint(length, (batch,), generator=g)] = True
    return source, target, mask, torch.arange(target_len) < torch.randint(1, target_len + 1, (batch, 1), generator=g)


def logits_of(theirs, source, target, mask=None, target_mask=None):
    masks = {"attention_mask": mask, "decoder_attention_mask": target_mask}
    masks = {name: value.long() for name, value in masks.items() if value is not None}
    return theirs(input_ids=source, decoder_input_ids=target, **masks).logits


def difference(ours, theirs, tensors):
    kept = torch.ones_like(tensors[1]).bool() if tensors[3] is None else tensors[3]
    with torch.no_grad():
        return (ours(*tensors) - logits_of(theirs, *tensors))[kept].abs().max().item()


@given(st.data())
def test_logits_and_files_equal_transformers(parity, tmp_path_factory, data):
    """Their folder read by us, our folder read by them, float32, config by config."""
    heads, projection = data.draw(st.integers(1, 4)), data.draw(st.sampled_from(sorted(PROJECTIONS)))
    settings = {"vocab_size": data.draw(st.integers(3, 40)), "d_model": data.draw(st.integers(1, 17)), "num_heads": heads,
                "d_kv": data.draw(st.integers(1, 7)), "d_ff": data.draw(st.integers(1, 20)), "num_layers": data.draw(st.integers(1, 3)),
                "num_decoder_layers": data.draw(st.sampled_from([None, 1, 2, 3])), "feed_forward_proj": projection,
                "relative_attention_num_buckets": data.draw(st.sampled_from([4, 6, 8, 32])),
                "relative_attention_max_distance": data.draw(st.sampled_from([17, 20, 128])),
                "layer_norm_epsilon": data.draw(st.sampled_from([1e-6, 1e-3]))}
    head, scale, folder = data.draw(st.booleans()), data.draw(st.sampled_from([None, True, False])), tmp_path_factory.mktemp("t5")
    theirs, ours = reference(folder / "theirs", data.draw(st.integers(0, 99)), head, scale, **settings)
    c = ours.config
    assert (c.activation, c.gated) == PROJECTIONS[projection] and c.tie_embeddings == (not head) and c.scale_outputs == (scale is not False)
    tensors = inputs(settings["vocab_size"], *(data.draw(st.integers(1, top)) for top in (3, 25, 19)), data.draw(st.booleans()))
    where = "logits, float32: random sizes, versions 1.0 and 1.1, output tied or not, scaled or not, padding anywhere"
    parity(f"{MODULE}.T5", "transformers", difference(ours, theirs, tensors), 5e-5, where)
    ours.save_pretrained(folder / "ours")
    back = transformers.T5ForConditionalGeneration.from_pretrained(folder / "ours").eval()
    parity(f"{MODULE}.T5.save_pretrained", "transformers", difference(ours, back, tensors), 5e-5, f"loaded by transformers, {where}")
    again = T5.from_pretrained(folder / "ours")
    assert difference(again, back, tensors) < 5e-5 and not again.training
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), again.state_dict().values(), strict=True))


def _norm_in_float64(self, x):
    return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon))


@given(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 50))
def test_gradients_equal_transformers(parity, tmp_path_factory, gated, head, masked, seed):
    """In float64, in which transformers' norm would still take its statistics in float32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(T5LayerNorm, "forward", _norm_in_float64)
        theirs, ours = (model.double() for model in reference(
            tmp_path_factory.mktemp("t5"), seed, head, not head, num_decoder_layers=3, feed_forward_proj="gated-gelu" if gated else "relu"))
        tensors = inputs(23, 3, 13, 11, masked, seed)
        kept = torch.ones_like(tensors[1]).bool() if tensors[3] is None else tensors[3]
        a, b = ours(*tensors)[kept], logits_of(theirs, *tensors)[kept]
        direction = torch.randn(a.shape, generator=torch.Generator().manual_seed(seed)).double()
        (a * direction).sum().backward()
        (b * direction).sum().backward()
    names, found = names_in_files(gated), {}
    for name, parameter in theirs.named_parameters():
        if name not in COPIES:
            found[name] = parameter.grad
    mine = dict(ours.named_parameters())
    worst = (a - b).abs().max().item()
    for name, grad in found.items():
        wild = ".".join("{}" if part.isdigit() and i == 2 and "relative" not in name else part for i, part in enumerate(name.split(".")))
        place = names[wild].replace("{}", name.split(".")[2] if "{}" in wild else "")
        worst = max(worst, (mine.pop(place).grad - grad).abs().max().item())
    assert not mine
    parity(f"{MODULE}.T5", "transformers", worst, 1e-9, "logits and all gradients, float64, odd widths, padding on both sides")


def test_at_the_size_of_t5_small(parity, tmp_path):
    theirs, ours = reference(tmp_path, vocab_size=101, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8,
                             relative_attention_num_buckets=32, relative_attention_max_distance=128)
    parity(f"{MODULE}.T5", "transformers", difference(ours, theirs, inputs(101, 2, 150, 21, True)), 1e-4,
           "logits at the size of T5-small, 150 tokens, float32")


@pytest.mark.parametrize("config, settings, count", [
    (T5Config.small(), {}, 60_506_624),
    (T5Config.base(), {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}, 222_903_552),
    (T5Config.small_v1_1(), None, 76_961_152),
    (T5Config.byt5_small(), None, 299_637_760)])
def test_counts_of_parameters(config, settings, count):
    with torch.device("meta"):
        ours = T5(config)
        assert sum(p.numel() for p in ours.parameters()) == count
        if settings is not None:      # transformers 5 ties a model that was not read from a file
            theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(**settings))
            assert sum(p.numel() for p in theirs.parameters()) == count
        logits = ours(torch.zeros(2, 9, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64))
    assert logits.shape == (2, 4, config.vocab_size) and logits.is_meta


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.15), (torch.float16, 0.02)])
def test_half_precision(tmp_path, dtype, tolerance):
    theirs, ours = reference(tmp_path, d_model=32, d_kv=8, num_heads=4, d_ff=64)
    half, tensors = T5.from_pretrained(tmp_path, dtype=dtype), inputs(23, 2, 12, 9, True)
    said = half(*tensors)
    assert said.dtype == dtype and half.embedding.weight.dtype == dtype
    assert (said.float() - ours(*tensors))[tensors[3]].abs().max() < tolerance
    assert half.generate(tensors[0], 5, tensors[2]).dtype == torch.int64


# -- known faults, each of which the comparison catches

def _scores_divided(model):
    for part in model.modules():
        if hasattr(part, "num_kv_heads"):
            part.scale = None


def _sign_of_distance(model):
    for bias in (model.encoder_bias, model.decoder_bias):
        plain = bias.buckets
        bias.buckets = lambda distances, plain=plain: plain(-distances)


def _encoder_sign_only(model):
    plain = model.encoder_bias.buckets
    model.encoder_bias.buckets = lambda distances: plain(-distances)


def _halves_in_the_decoder(model):
    model.decoder_bias.bidirectional = True


def _one_sided_encoder(model):
    model.encoder_bias.bidirectional = False


def _bias_in_the_first_layer_only(model):
    for layer in (*model.encoder.layers[1:], *model.decoder.layers[1:]):
        attention = getattr(layer, "attention", None) or layer.self_attention
        plain = attention.forward
        attention.forward = lambda *args, plain=plain, **kwargs: plain(*args, **{**kwargs, "bias": None})


def _bias_in_cross_attention(model):
    for layer in model.decoder.layers:
        sublayer = layer.cross_attention.sublayer
        plain = sublayer.forward
        sublayer.forward = lambda x, context=None, plain=plain, **kwargs: plain(
            x, context=context, bias=model.encoder_bias(max(x.shape[1], context.shape[1]))[:, :x.shape[1], :context.shape[1]], **kwargs)


def _tied_but_not_scaled(model):
    model.config = dataclasses.replace(model.config, scale_outputs=False)


def _embeddings_scaled(model):
    model.embedding.scale = model.config.d_model ** 0.5


def _exact_gelu(model):
    for part in model.modules():
        if hasattr(part, "gate"):
            part.activation = ACTIVATIONS["gelu"]


def _gate_and_up_swapped(model):
    for part in model.modules():
        if hasattr(part, "gate"):
            part.gate, part.up = part.up, part.gate


def _larger_eps(model):
    for part in model.modules():
        if hasattr(part, "eps"):
            part.eps = 1e-3


def _no_final_norm(model):
    model.encoder.final_norm = None


MUTANTS = [_scores_divided, _sign_of_distance, _encoder_sign_only, _halves_in_the_decoder, _one_sided_encoder,
           _bias_in_the_first_layer_only, _bias_in_cross_attention, _tied_but_not_scaled, _embeddings_scaled, _exact_gelu,
           _gate_and_up_swapped, _larger_eps, _no_final_norm]


@pytest.mark.parametrize("mutant", [None, *MUTANTS], ids=lambda mutant: getattr(mutant, "__name__", "right"))
def test_known_faults_differ(tmp_path, mutant):
    theirs, ours = reference(tmp_path, feed_forward_proj="gated-gelu", d_model=12, d_ff=30)
    with torch.no_grad():
        for model in (theirs, ours):
            for name, parameter in model.named_parameters():
                if "relative" in name or "_bias." in name:
                    parameter.mul_(3)
    if mutant is not None:
        mutant(ours)
    found = difference(ours, theirs, inputs(23, 3, 14, 12, True))
    assert (found < 5e-5) if mutant is None else (found > 3e-4), found


def test_other_start_and_pad(tmp_path):
    """The start id need not be the pad id; both are read from the file."""
    theirs, ours = reference(tmp_path, pad_token_id=4, decoder_start_token_id=6, eos_token_id=2)
    assert (ours.config.pad_id, ours.config.start_id, ours.config.eos_id) == (4, 6, 2)
    source = torch.randint(7, 23, (2, 8), generator=torch.Generator().manual_seed(0))
    wanted = theirs.generate(input_ids=source, max_new_tokens=6, do_sample=False)[:, 1:]
    assert torch.equal(ours.generate(source, 6), wanted)
    settings = settings_from_file({"pad_token_id": 3}, "here")
    assert settings["start_id"] == 3 and settings_from_file({}, "here")["start_id"] == 0


# -- caches

def stepwise(model, context, target, sizes, mask=None, target_mask=None, rows=None):
    """Logits of a target that comes in pieces. `rows`: which rows of the bias a piece gets (a fault)."""
    caches = KVCache(len(model.decoder.layers), target.shape[1]), KVCache(len(model.decoder.layers), context.shape[1])
    plain, said, at = model.decoder_bias.forward, [], 0
    if rows is not None:
        model.decoder_bias.forward = lambda q_len, k_len: rows(plain, q_len, k_len)
    for size in sizes:
        kept = None if target_mask is None else target_mask[:, :at + size]
        said.append(model.decode(target[:, at:at + size], context, mask, kept, *caches))
        at += size
    return torch.cat(said, dim=1)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.booleans(), st.integers(0, 20))
def test_cached_logits_are_the_same(sizes, masked, seed):
    torch.manual_seed(seed)
    model = T5(T5Config(17, 10, 2, 3, num_heads=3, head_dim=4, d_ff=9, num_buckets=8, max_distance=9, dropout=0.0)).double().eval()
    source, target, mask, target_mask = inputs(17, 3, 9, sum(sizes), masked, seed)
    context = model.encode(source, mask)
    whole = model.decode(target, context, mask, target_mask)
    kept = torch.ones_like(target).bool() if target_mask is None else target_mask
    assert (stepwise(model, context, target, sizes, mask, target_mask) - whole)[kept].abs().max() < 1e-12


FAULTY_ROWS = {"first rows": lambda bias, q, k: bias(k, k)[:, :q], "dropped": lambda bias, q, k: bias(k, k)[:, :q] * 0,
               "as if nothing were held": lambda bias, q, k: torch.cat([bias(q, q)[:, :, :1].expand(-1, -1, k - q), bias(q, q)], -1)}


@pytest.mark.parametrize("fault", sorted(FAULTY_ROWS))
def test_wrong_rows_of_the_bias_are_caught(fault):
    torch.manual_seed(0)
    model = T5(T5Config(17, 12, 2, num_heads=3, d_ff=9, num_buckets=8, max_distance=9)).double().eval()
    source, target, *_ = inputs(17, 2, 9, 7, False)
    context = model.encode(source)
    whole = model.decode(target, context)
    said = stepwise(model, context, target, [1] * 7, rows=FAULTY_ROWS[fault])
    assert (said - whole).abs().max() > 1e-3


def test_the_context_is_used_once():
    """With a context cache, later steps take the context from it: its keys and values are made once."""
    model = T5(T5Config(17, 12, 2, num_heads=3, d_ff=9)).eval()
    source, target, *_ = inputs(17, 2, 9, 3, False)
    context, seen = model.encode(source), []
    for layer in model.decoder.layers:
        layer.cross_attention.sublayer.key.register_forward_hook(lambda *_: seen.append(1))
    stepwise(model, context, target, [1, 1, 1])
    assert len(seen) == 2
    caches = KVCache(2, 5), KVCache(2, 9)
    model.decode(target[:, :1], context, cache=caches[0], context_cache=caches[1])
    with pytest.raises(ValueError, match="each context needs a cache of its own"):
        model.decode(target[:, 1:2], context[:, :5], cache=caches[0], context_cache=caches[1])


# -- padding and gradients

def test_padding_is_never_seen_on_either_side():
    torch.manual_seed(0)
    model = T5(T5Config(17, 12, 2, num_heads=3, d_ff=9, num_buckets=8, max_distance=9)).double().eval()
    source, target, *_ = inputs(17, 2, 6, 5, False)
    alone = model(source, target)
    for left, right in ((3, 0), (0, 3), (2, 2)):
        filled = torch.cat([torch.full((2, left), 9), source, torch.full((2, right), 9)], dim=1)
        mask = torch.cat([torch.zeros(2, left), torch.ones(2, 6), torch.zeros(2, right)], dim=1).bool()
        assert (model(filled, target, mask) - alone).abs().max() < 1e-12
        assert (model(filled, target) - alone).abs().max() > 1e-3
        assert torch.equal(model.generate(filled, 8, mask), model.generate(source, 8))
        assert torch.equal(model(filled, target, mask.long()), model(filled, target, mask))


def test_no_answer_sees_what_comes_later():
    model = T5(T5Config(17, 12, 2, num_heads=3, d_ff=9)).double().eval()
    seen = []
    model.embedding.register_forward_hook(lambda module, args, x: seen.append(x) or x.retain_grad())
    source, target, *_ = inputs(17, 1, 6, 5, False)
    model(source, target)[0, 2].square().sum().backward()
    read = seen[1].grad[0].abs().sum(-1)
    assert (read[3:] == 0).all() and (read[:3] > 0).all() and (seen[0].grad[0].abs().sum(-1) > 0).all()


def test_dropout_acts_in_training_alone():
    torch.manual_seed(0)
    model = T5(T5Config(17, 12, 2, num_heads=3, d_ff=9, dropout=0.5))
    tensors = inputs(17, 2, 6, 5, False)
    assert not torch.equal(model(*tensors), model(*tensors))
    model.eval()
    assert torch.equal(model(*tensors), model(*tensors))
    parts = [p for p in model.modules() if isinstance(p, nn.Dropout)]
    assert {p.p for p in parts} == {0.5} and all(p.dropout == 0.5 for p in model.modules() if hasattr(p, "num_kv_heads"))


def test_the_start_is_of_the_right_size():
    """Scores are not divided, and still about 1 large at the start: so is what is said of each token."""
    torch.manual_seed(0)
    model = T5(T5Config(500, 256, 2, num_heads=4, head_dim=64, d_ff=512)).eval()
    x = torch.randn(1, 50, 256)
    attention = model.encoder.layers[0].attention.sublayer
    query, key = (layer(x).unflatten(-1, (4, 64)).transpose(1, 2) for layer in (attention.query, attention.key))
    assert 0.8 < (query @ key.mT).std() < 1.2
    source, target, *_ = inputs(500, 2, 20, 9, False)
    assert 0.7 < model(source, target).std() < 1.5


def test_copies_and_state():
    model = T5(T5Config(17, 12, 1, num_heads=3, d_ff=9)).eval()
    tensors = inputs(17, 2, 6, 5, False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(*tensors), model(*tensors))
    fresh = T5(model.config).eval()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(*tensors), model(*tensors))


# -- generate

@given(st.integers(0, 30), st.booleans())
def test_greedy_answers_equal_transformers(tmp_path_factory, seed, masked):
    theirs, ours = reference(tmp_path_factory.mktemp("t5"), seed, vocab_size=9, head=True)
    source, _, mask, _ = inputs(9, 4, 11, 1, masked, seed)
    masks = {} if mask is None else {"attention_mask": mask.long()}
    wanted = theirs.generate(input_ids=source, max_new_tokens=12, do_sample=False, **masks, **({} if masks else {
        "attention_mask": torch.ones_like(source)}))[:, 1:]
    for use_cache in (True, False):
        assert torch.equal(ours.generate(source, 12, mask, use_cache=use_cache), wanted)


class Scripted(T5):
    """A T5 whose logits are given: row i says script[i], one id after the other."""

    def __init__(self, script):
        super().__init__(T5Config(9, 8, 1, num_heads=2, d_ff=8, eos_id=1))
        self.script = script

    def decode(self, decoder_input_ids, context, attention_mask=None, decoder_attention_mask=None, cache=None, context_cache=None):
        at = getattr(self, "at", 0)
        self.at = at + 1
        row = torch.tensor([said[min(at, len(said) - 1)] for said in self.script])
        return nn.functional.one_hot(row, 9).float()[:, None] * 50


def test_finished_rows_are_filled_and_the_start_is_left_out():
    source = torch.tensor([[3, 4], [5, 6]])
    assert Scripted([[5, 1, 7, 7], [6, 6, 6, 1]]).generate(source, 9).tolist() == [[5, 1, 0, 0], [6, 6, 6, 1]]
    assert Scripted([[5, 1, 7, 7], [6, 6, 6, 1]]).generate(source, 3).tolist() == [[5, 1, 0], [6, 6, 6]]
    assert Scripted([[5, 1, 7], [6, 7, 7]]).generate(source, 9, eos=7).tolist() == [[5, 1, 7], [6, 7, 0]]
    assert Scripted([[1], [1]]).generate(source, 9).tolist() == [[1], [1]]
    endless = Scripted([[5, 1], [1, 5]])
    endless.config = dataclasses.replace(endless.config, eos_id=None)
    assert endless.generate(source, 3).tolist() == [[5, 1, 1], [1, 5, 5]]


def test_drawn_answers():
    torch.manual_seed(0)
    model = T5(T5Config(6, 8, 1, num_heads=2, d_ff=8, eos_id=None)).eval()
    source = torch.tensor([[3, 4, 5]]).expand(4000, 3)
    generator = torch.Generator().manual_seed(0)
    state = torch.random.get_rng_state()
    drawn = model.generate(source, 1, temperature=1.0, generator=generator)[:, 0]
    assert torch.equal(torch.random.get_rng_state(), state)
    probs = model(source[:1], torch.tensor([[0]]))[0, 0].softmax(-1)
    counts = torch.bincount(drawn, minlength=6) / 4000
    assert ((counts - probs).abs() < 4 * (probs * (1 - probs) / 4000).sqrt() + 1e-9).all()
    best = probs.argsort(descending=True)
    top = model.generate(source[:200], 1, temperature=1.0, top_k=2, generator=generator)
    assert set(top.flatten().tolist()) == set(best[:2].tolist())
    few = model.generate(source[:200], 1, temperature=1.0, top_p=probs.max().item() * 0.99, generator=generator)
    assert set(few.flatten().tolist()) == {best[0].item()}
    for use_cache in (True, False):
        a, b = (model.generate(source[:5], 9, temperature=0.8, use_cache=use_cache, generator=torch.Generator().manual_seed(3))
                for _ in range(2))
        assert torch.equal(a, b)
    assert torch.equal(model.generate(source[:3], 7, temperature=1.0, top_k=1), model.generate(source[:3], 7))


# -- files

def saved(tmp_path, **changes):
    """A folder as old versions wrote it, with its settings and tensors."""
    reference(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    for name in ("scale_decoder_outputs", "tie_word_embeddings", "dense_act_fn", "is_gated_act"):
        settings.pop(name, None)
    return settings | changes, load_file(tmp_path / "model.safetensors")


def put(folder, settings, tensors):
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def same_as_theirs(folder):
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    return difference(T5.from_pretrained(folder), theirs, inputs(23, 2, 8, 7, True)) < 5e-5


def test_old_files(tmp_path):
    settings, tensors = saved(tmp_path)
    shared, own = tensors["shared.weight"], torch.randn(23, 10)
    copies = {name: shared.clone() for name in COPIES} | {UNUSED: torch.randn(8, 3)}
    put(tmp_path, settings, tensors | copies | {"lm_head.weight": shared.clone()})
    assert same_as_theirs(tmp_path) and T5.from_pretrained(tmp_path).config.tie_embeddings
    del settings["relative_attention_max_distance"]                                     # files of 2020 do not say it
    put(tmp_path, settings, tensors)
    assert T5.from_pretrained(tmp_path).config.max_distance == 128 and same_as_theirs(tmp_path)
    put(tmp_path, settings, {name: t for name, t in tensors.items() if name != "shared.weight"} | {
        name: shared.clone() for name in COPIES})
    assert same_as_theirs(tmp_path)
    for tie, scaled in ((False, False), (True, True), (None, True)):                    # an output of its own
        put(tmp_path, settings | ({} if tie is None else {"tie_word_embeddings": tie}), tensors | {"lm_head.weight": own})
        model = T5.from_pretrained(tmp_path)
        assert same_as_theirs(tmp_path) and not model.config.tie_embeddings and model.config.scale_outputs == scaled


def test_mt5(tmp_path):
    settings, tensors = saved(tmp_path, model_type="mt5", feed_forward_proj="relu", tie_word_embeddings=False)
    put(tmp_path, settings, tensors | {"lm_head.weight": torch.randn(23, 10)})
    theirs = transformers.MT5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert difference(T5.from_pretrained(tmp_path), theirs, inputs(23, 2, 8, 7, True)) < 5e-5
    assert settings_from_file({"model_type": "mt5"}, "x")["gated"]


@pytest.mark.parametrize("setting, value", [
    ("feed_forward_proj", "gated-tanh"), ("feed_forward_proj", "swish-gated"), ("feed_forward_proj", "gated-gelu-x"),
    ("feed_forward_proj", 3), ("feed_forward_proj", "-relu"), ("model_type", "longt5"), ("model_type", "umt5"), ("is_encoder_decoder", False),
    ("is_decoder", True), ("quantization_config", {"bits": 8}), ("pruned_heads", {"0": [1]}), ("eos_token_id", [1, 2]),
    ("tie_word_embeddings", "yes"), ("scale_decoder_outputs", 1), ("dense_act_fn", "silu"), ("is_gated_act", True)])
def test_unsupported_settings_are_refused_by_name(tmp_path, setting, value):
    settings, tensors = saved(tmp_path, **{setting: value})
    put(tmp_path, settings, tensors)
    with pytest.raises(CheckpointError, match=f"config.json.*{setting}.*is not supported"):
        T5.from_pretrained(tmp_path)


def test_bad_files_are_told(tmp_path):
    settings, tensors = saved(tmp_path)
    put(tmp_path, settings | {"num_heads": 0}, tensors)
    with pytest.raises(CheckpointError, match="config.json.*num_heads"):
        T5.from_pretrained(tmp_path)
    put(tmp_path, settings, tensors | {COPIES[1]: torch.randn(23, 10)})
    with pytest.raises(CheckpointError, match="decoder.embed_tokens.weight differs from shared.weight"):
        T5.from_pretrained(tmp_path)
    gone = "encoder.block.1.layer.0.SelfAttention.k.weight"
    put(tmp_path, settings, {name: t for name, t in tensors.items() if name != gone} | {"surprise": torch.ones(1)})
    with pytest.raises(CheckpointError, match="encoder.layers.1.attention.sublayer.key.weight[\\s\\S]*surprise"):
        T5.from_pretrained(tmp_path)
    put(tmp_path, settings | {"tie_word_embeddings": False}, tensors)
    with pytest.raises(CheckpointError, match="output.weight"):
        T5.from_pretrained(tmp_path)
    put(tmp_path, settings | {"d_kv": 4}, tensors)
    with pytest.raises(CheckpointError, match="query.weight"):
        T5.from_pretrained(tmp_path)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_config_can_be_saved(tmp_path, activation, gated):
    config = T5Config(11, 6, 1, 2, num_heads=2, d_ff=5, activation=activation, gated=gated, tie_embeddings=False, dropout=0.25,
                      pad_id=3, start_id=4, eos_id=None, num_buckets=6, max_distance=7, norm_eps=1e-5)
    model = T5(config).eval()
    model.save_pretrained(tmp_path)
    back = T5.from_pretrained(tmp_path)
    assert back.config == dataclasses.replace(config, head_dim=3, scale_outputs=False)
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert difference(back, theirs, inputs(11, 2, 8, 7, True)) < 5e-5


# -- spans

SENTINELS = list(range(1000, 1300))


@given(st.lists(st.integers(0, 999), max_size=60), st.floats(0, 0.99), st.floats(1, 8), st.integers(0, 1000))
def test_spans_make_a_round_trip(ids, density, mean, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs_, targets = corrupt_spans(ids, SENTINELS, density, mean, generator=generator)
    assert restore_spans(inputs_, targets, SENTINELS) == ids
    count = sum(id >= 1000 for id in inputs_)
    assert inputs_.count(SENTINELS[count]) == 0 and targets[-1] == SENTINELS[count]
    assert [id for id in inputs_ if id >= 1000] == SENTINELS[:count] and len(targets) + len(inputs_) == len(ids) + 2 * count + 1


@given(st.text(max_size=60), st.integers(0, 1000))
def test_any_text_makes_a_round_trip_as_bytes(text, seed):
    tokenizer = ByteTokenizer(num_sentinels=125)
    both = corrupt_spans(tokenizer.encode(text), tokenizer.sentinel_ids, 0.3, 2.0, generator=torch.Generator().manual_seed(seed))
    assert tokenizer.decode(restore_spans(*both, tokenizer.sentinel_ids)) == text


@given(st.integers(0, 300), st.floats(0.01, 0.99), st.floats(1, 9), st.integers(0, 99))
def test_random_spans_are_as_many_and_as_long_as_said(length, density, mean, seed):
    spans = random_spans(length, density, mean, torch.Generator().manual_seed(seed))
    hidden = sum(end - start for start, end in spans)
    if length < 2:
        assert spans == []
        return
    assert hidden == min(max(round(length * density), 1), length - 1)
    assert len(spans) == min(max(round(hidden / mean), 1), hidden, length - hidden + 1)
    edges = [edge for span in spans for edge in span]
    assert all(a < b for a, b in zip(edges, edges[1:])) and 0 <= edges[0] and edges[-1] <= length      # sorted, apart, inside


def t5_spans(length, density, mean, generator):
    """As T5's own code draws: it begins with a clean segment, and ends with a hidden one."""
    hidden = min(max(round(length * density), 1), length - 1)
    count = max(round(hidden / mean), 1)

    def parts(total):
        cuts = (torch.randperm(total - 1, generator=generator)[:count - 1] + 1).sort().values.tolist()
        return [b - a for a, b in zip([0, *cuts], [*cuts, total])]
    spans, at = [], 0
    for gap, width in zip(parts(length - hidden), parts(hidden)):
        spans.append((at + gap, at + gap + width))
        at += gap + width
    return spans


def share_hidden(draw, length=30, times=1500):
    generator, counts = torch.Generator().manual_seed(0), torch.zeros(length)
    for _ in range(times):
        for start, end in draw(length, 0.3, 3.0, generator):
            counts[start:end] += 1
    return counts / times


def every_token_has_a_chance(draw):
    share = share_hidden(draw)
    return 0.08 < share.min() and share.max() < 0.45 and abs(share.mean() - 0.3) < 1e-6


def test_every_token_may_be_hidden():
    assert every_token_has_a_chance(random_spans)
    assert not every_token_has_a_chance(t5_spans) and share_hidden(t5_spans)[-1] == 1


def test_every_arrangement_is_equally_likely():
    """Five tokens, two hidden in two spans: six ways."""
    generator, counts = torch.Generator().manual_seed(0), Counter()
    for _ in range(3000):
        counts[tuple(random_spans(5, 0.4, 1.0, generator))] += 1
    assert len(counts) == 6 and all(abs(count - 500) < 4 * math.sqrt(3000 * 5 / 36) for count in counts.values())


NOTES = "My teddy bear is cute and reading".split()


def the_notes_example(corrupt):
    said = corrupt(NOTES, ["[X]", "[Y]", "[Z]"], [(3, 5)])
    return said == ("My teddy bear [X] and reading".split(), "[X] is cute [Y]".split())


def two_spans(corrupt):
    return corrupt([1, 2, 3, 4, 5, 6], [90, 80, 70], [(1, 2), (3, 5)]) == ([1, 90, 3, 80, 6], [90, 2, 80, 4, 5, 70])


def _faulty(reverse=False, no_end=False, same=False, keep=False, inclusive=False):
    def corrupt(ids, sentinels, spans):
        inputs_, targets, at = [], [], 0
        order = sentinels[:len(spans)][::-1] if reverse else [sentinels[0]] * len(spans) if same else sentinels
        for sentinel, (start, end) in zip(order, spans):
            end += inclusive
            inputs_ += [*ids[at:start], *([sentinel] * (end - start) if keep else [sentinel])]
            targets += [sentinel, *ids[start:end]]
            at = end
        return inputs_ + ids[at:], targets + ([] if no_end else [sentinels[len(spans)]])
    return corrupt


@pytest.mark.parametrize("fault", [{"reverse": True}, {"no_end": True}, {"same": True}, {"keep": True}, {"inclusive": True}], ids=str)
def test_faulty_corruptions_are_caught(fault):
    right = lambda ids, sentinels, spans: corrupt_spans(ids, sentinels, spans=spans)    # noqa: E731
    assert the_notes_example(right) and two_spans(right) and the_notes_example(_faulty()) and two_spans(_faulty())
    assert not (the_notes_example(_faulty(**fault)) and two_spans(_faulty(**fault)))


def test_spans_of_tensors_and_edges():
    ids = torch.tensor([5, 6, 7, 8])
    inputs_, targets = corrupt_spans(ids, torch.tensor([99, 98, 97]), spans=[(0, 1), (3, 4)])
    assert inputs_.tolist() == [99, 6, 7, 98] and targets.tolist() == [99, 5, 98, 8, 97]
    assert torch.equal(restore_spans(inputs_, targets, [99, 98, 97]), ids)
    assert corrupt_spans([], [99]) == ([], [99]) and restore_spans([], [99], [99]) == []
    assert corrupt_spans([4], [99]) == ([4], [99]) and corrupt_spans([4], [99, 98], spans=[(0, 1)]) == ([99], [99, 4, 98])
    assert corrupt_spans([4, 5, 6], [99, 98, 97], spans=[(1, 3), (0, 1)]) == ([99, 98], [99, 4, 98, 5, 6, 97])      # touching, unsorted
    assert corrupt_spans([4, 5], [99], noise_density=0) == ([4, 5], [99])
    assert restore_spans([4, 99], [99, 98], [99, 98]) == [4]                             # an answer may be empty
    state = torch.random.get_rng_state()
    a, b = (corrupt_spans(range(50), SENTINELS, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert a == b and torch.equal(torch.random.get_rng_state(), state)


# -- bytes

@given(st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"])))
def test_ids_equal_transformers(parity, text):
    theirs, ours = transformers.ByT5Tokenizer(), ByteTokenizer()
    ids = ours.encode(text)
    same = ids == theirs.encode(text, add_special_tokens=False) and ours.tokenize(text) == theirs.tokenize(text)
    parity(f"{MODULE}.ByteTokenizer", "transformers", float(not same), 0, "ids and tokens of any text")
    assert ours.decode(ids) == text and ours.decode(torch.tensor(ids, dtype=torch.int64)) == text


def test_bytes_of_hangul_emoji_and_special_ids(tmp_path):
    ours, theirs = ByteTokenizer(num_sentinels=125), transformers.ByT5Tokenizer()
    for text in ("귀여운 곰 인형이 책을 읽고 있다.", "🧸", "e\u0301é", "👩‍👩‍👧", "\x00\n\t", ""):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False) and ours.decode(ours.encode(text)) == text
    assert ours.vocab_size == len(theirs) == 384 and ours.sentinel_ids == theirs.convert_tokens_to_ids(
        [f"<extra_id_{i}>" for i in range(125)])
    assert (ours.pad, ours.eos, ours.unk) == (theirs.pad_token_id, theirs.eos_token_id, theirs.unk_token_id)
    ids = [0, 107, 198, 172, 1, 2, 259, 383]
    assert ours.decode(ids) == theirs.decode(ids) == "<pad>hé</s><unk><extra_id_0><extra_id_124>"
    assert ours.decode([198]) == "\ufffd" and ours.decode([107, 198]) == "h\ufffd"
    ours.save(tmp_path / "bytes.json")
    assert ByteTokenizer.load(tmp_path / "bytes.json").vocab_size == 384 and ByteTokenizer().sentinel_ids == []


# -- what the chapter trains

def test_tasks_are_texts_and_stored_results_are_whole():
    pairs = tasks.task_pairs(TeddyWorld().sentences(20))
    assert set(pairs) == set(tasks.TASKS) and all(isinstance(text, str) for rows in pairs.values() for pair in rows for text in pair)
    results = tasks.stored_results()
    assert {"python", "torch", "transformer_course"} <= set(results["made_with"]) and results["seconds"] > 0
    kinds = Counter(run["kind"] for run in results["runs"])
    assert kinds["three tasks"] == 3 and all(run["seed"] in (0, 1, 2) for run in results["runs"])


def test_span_batches():
    tokenizer = tasks.BPETokenizer.train(["a cute teddy bear is reading a book"], 300, special_tokens=tasks.SPECIAL)
    batch = next(iter(tasks.SpanBatches(["a cute teddy bear is reading"] * 3, tokenizer, 4, seed=0)))
    assert len(batch.source) == 4 and (batch.given[:, 0] == 0).all()
    row, wanted = batch.source[0], batch.wanted[0]
    ids = restore_spans(row[row > 1].tolist(), wanted[wanted > 1].tolist(), tasks.SENTINELS)
    assert tokenizer.decode(ids) == "a cute teddy bear is reading" and (shift_right(batch.given, 0)[:, 1:] == batch.given[:, :-1]).all()


# -- what is refused

def model():
    return T5(T5Config(11, 8, 1, num_heads=2, d_ff=8)).eval()


IDS, ANSWER = torch.tensor([[3, 4, 5]]), torch.tensor([[0, 6]])


@pytest.mark.parametrize("changes, says", [
    ({"vocab_size": 0}, "vocab_size"), ({"d_model": 3.5}, "d_model"), ({"num_layers": 0}, "num_layers"), ({"num_decoder_layers": 0}, "num_decoder"),
    ({"num_heads": 7}, r"num_heads \(7\) must divide d_model \(8\)"), ({"head_dim": -1}, "head_dim"), ({"dropout": 1}, "dropout"),
    ({"num_buckets": 3}, "num_buckets"), ({"num_buckets": 7}, "must be even"), ({"max_distance": 16}, r"max_distance \(16\)"), ({"norm_eps": -1}, "norm_eps"),
    ({"norm_eps": math.nan}, "norm_eps"), ({"activation": "tanh"}, "activation"), ({"activation": None}, "activation"),
    ({"pad_id": 11}, r"pad_id \(11\) must be less"), ({"start_id": -1}, "start_id"), ({"eos_id": 1.0}, "eos_id"), ({"pad_id": None}, "pad_id")])
def test_configs_that_are_refused(unchecked, changes, says):
    with pytest.raises(ValueError, match=says):
        T5Config(**{"vocab_size": 11, "d_model": 8, "num_heads": 2} | changes)


@pytest.mark.parametrize("name", ["gated", "tie_embeddings", "scale_outputs"])
def test_switches_that_are_refused(unchecked, name):
    with pytest.raises(TypeError, match=name):
        T5Config(11, 8, num_heads=2, **{name: 1})


def test_a_model_needs_a_config(unchecked):
    with pytest.raises(TypeError, match="T5Config"):
        T5({"vocab_size": 11})


@pytest.mark.parametrize("call, error, says", [
    (lambda m: m(IDS[:, :0], ANSWER), ValueError, "input_ids must have shape .* at least one sequence and one token"),
    (lambda m: m(IDS[0], ANSWER), ValueError, "input_ids must have shape"),
    (lambda m: m(IDS + 8, ANSWER), ValueError, "input_ids must hold ids from 0 to 10, but holds 13"),
    (lambda m: m(IDS - 4, ANSWER), ValueError, "input_ids must hold ids .* -1"),
    (lambda m: m(IDS.float(), ANSWER), TypeError, "input_ids must be a tensor of int64"),
    (lambda m: m([[3, 4]], ANSWER), TypeError, "input_ids"),
    (lambda m: m(IDS, ANSWER + 9), ValueError, "decoder_input_ids must hold ids"),
    (lambda m: m(IDS, ANSWER[:, :0]), ValueError, "decoder_input_ids"),
    (lambda m: m(IDS, ANSWER.repeat(2, 1)), ValueError, "decoder_input_ids has 2 rows, but the context has 1"),
    (lambda m: m(IDS, ANSWER, torch.ones(1, 2).bool()), ValueError, r"attention_mask must have shape \(1, 3\)"),
    (lambda m: m(IDS, ANSWER, torch.ones(1, 3)), TypeError, "attention_mask"),
    (lambda m: m(IDS, ANSWER, torch.tensor([[1, 2, 1]])), ValueError, "only 0 and 1"),
    (lambda m: m(IDS, ANSWER, None, torch.ones(1, 3).bool()), ValueError, r"decoder_attention_mask must have shape \(1, 2\)"),
    (lambda m: m.decode(ANSWER, torch.ones(1, 8)), TypeError, "context"),
    (lambda m: m.decode(ANSWER, torch.ones(1, 3, 8), cache=[1]), TypeError, "cache"),
    (lambda m: m.decode(ANSWER, torch.ones(1, 3, 8), cache=KVCache(2, 5)), ValueError, "2 parts, but there are 1 layers"),
    (lambda m: m.generate(IDS[:, :0], 3), ValueError, "input_ids"),
    (lambda m: m.generate(IDS, 0), ValueError, "max_new_tokens"),
    (lambda m: m.generate(IDS, 2.5), ValueError, "max_new_tokens"),
    (lambda m: m.generate(IDS, 3, temperature=-0.1), ValueError, "temperature"),
    (lambda m: m.generate(IDS, 3, temperature=math.nan), ValueError, "temperature"),
    (lambda m: m.generate(IDS, 3, top_k=0), ValueError, "top_k"),
    (lambda m: m.generate(IDS, 3, top_p=0.0), ValueError, "top_p"),
    (lambda m: m.generate(IDS, 3, top_p=1.5), ValueError, "top_p"),
    (lambda m: m.generate(IDS, 3, eos=11), ValueError, r"eos \(11\)"),
    (lambda m: m.generate(IDS, 3, torch.zeros(1, 3).bool()), ValueError, "attention_mask hides all of row 0"),
    (lambda m: m.generate(IDS, 3, torch.ones(3, 1).bool()), ValueError, "attention_mask must have shape"),
    (lambda m: m.generate(IDS, 3, use_cache=1), TypeError, "use_cache"),
    (lambda m: m.generate(IDS, 3, temperature=1.0, generator=5), TypeError, "generator")])
def test_calls_that_are_refused(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call(model())


TEXT = [1, 2, 3, 4, 5]


@pytest.mark.parametrize("call, error, says", [
    (lambda: corrupt_spans(TEXT, [9, 8], spans=[(1, 3), (2, 4)]), ValueError, r"span \(2, 4\) overlaps"),
    (lambda: corrupt_spans(TEXT, [9, 8], spans=[(4, 6)]), ValueError, r"span \(4, 6\) must hold a token or more of the 5"),
    (lambda: corrupt_spans(TEXT, [9, 8], spans=[(-1, 2)]), ValueError, r"span \(-1, 2\)"),
    (lambda: corrupt_spans(TEXT, [9, 8], spans=[(2, 2)]), ValueError, r"span \(2, 2\)"),
    (lambda: corrupt_spans(TEXT, [9, 8], spans=[(3, 2)]), ValueError, r"span \(3, 2\)"),
    (lambda: corrupt_spans(TEXT, [9, 8], spans=[3]), TypeError, "spans must be a list"),
    (lambda: corrupt_spans(TEXT, [9, 8], spans=[(0.5, 2)]), TypeError, "spans must be a list"),
    (lambda: corrupt_spans(TEXT, [9], spans=[(1, 2)]), ValueError, "sentinel_ids has 1 ids, but 2 are needed"),
    (lambda: corrupt_spans(TEXT, [9, 9], spans=[(1, 2)]), ValueError, "sentinel_ids must all be different"),
    (lambda: corrupt_spans(TEXT, [5, 9], spans=[(1, 2)]), ValueError, "ids must not hold a sentinel, but hold 5"),
    (lambda: corrupt_spans("text", [9, 8]), TypeError, "ids must be a list"),
    (lambda: corrupt_spans([1.5], [9, 8]), TypeError, "ids must hold ids"),
    (lambda: corrupt_spans([True], [9, 8]), TypeError, "ids must hold ids"),
    (lambda: corrupt_spans(torch.ones(2, 2).long(), [9, 8]), ValueError, "ids must be a tensor"),
    (lambda: corrupt_spans(TEXT, 7), TypeError, "sentinel_ids must be a list"),
    (lambda: corrupt_spans(TEXT, [9, 8], noise_density=1.0), ValueError, "noise_density"),
    (lambda: corrupt_spans(TEXT, [9, 8], noise_density=-0.1), ValueError, "noise_density"),
    (lambda: corrupt_spans(TEXT, [9, 8], mean_span_length=0.5), ValueError, "mean_span_length"),
    (lambda: corrupt_spans(TEXT, [9, 8], mean_span_length=math.nan), ValueError, "mean_span_length"),
    (lambda: random_spans(-1), ValueError, "length"),
    (lambda: restore_spans([1, 9], [8, 2], [9, 8]), ValueError, "targets must hold the sentinels"),
    (lambda: restore_spans([1, 9], [9, 2], [9, 8]), ValueError, "targets must hold the sentinels"),
    (lambda: restore_spans([1, 9], [9, 2, 8, 3], [9, 8]), ValueError, "end with the last"),
    (lambda: restore_spans([1, 9], [3, 9, 2, 8], [9, 8]), ValueError, "begin with the first"),
    (lambda: restore_spans([1, 9], [9, 2, 9, 8], [9, 8]), ValueError, "targets"),
    (lambda: restore_spans([1, 8], [9, 2, 8], [9, 8]), ValueError, "inputs must hold the first sentinels"),
    (lambda: restore_spans([9, 1, 9], [9, 2, 8], [9, 8]), ValueError, "inputs must hold the first sentinels"),
    (lambda: restore_spans([1, 9], [], [9, 8]), ValueError, "targets"),
    (lambda: restore_spans([1, 9], [9, 2], [9]), ValueError, "targets"),
    (lambda: ByteTokenizer(-1), ValueError, "num_sentinels"),
    (lambda: ByteTokenizer().encode(b"bytes"), TypeError, "text must be a string"),
    (lambda: ByteTokenizer().encode("\ud800"), ValueError, "surrogate"),
    (lambda: ByteTokenizer().decode([259]), ValueError, "id 259 is out of range: there are 259 ids"),
    (lambda: ByteTokenizer().decode([-1]), ValueError, "id -1"),
    (lambda: ByteTokenizer().decode([1.0]), TypeError, "ids must be whole numbers"),
    (lambda: ByteTokenizer().decode(7), TypeError, "ids must be a list")])
def test_spans_and_bytes_that_are_refused(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize("text", ["[]", '{"format": "transformer_course.byte_tokenizer", "version": 1}', "x",
                                  '{"format": "transformer_course.byte_tokenizer", "version": 1, "num_sentinels": -2}'])
def test_files_of_byte_tokenizers_that_are_refused(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ValueError, match="t.json|num_sentinels"):
        ByteTokenizer.load(tmp_path / "t.json")


# -- speed

@pytest.mark.bench
def test_generation_is_as_fast_as_transformers(within, unchecked, tmp_path):
    theirs, ours = reference(tmp_path, vocab_size=5000, d_model=256, d_kv=32, d_ff=512, num_layers=4, num_heads=8, eos_token_id=None,
                             relative_attention_num_buckets=32, relative_attention_max_distance=128)
    source = torch.randint(2, 5000, (4, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(source)
    within("generate, 32 ids, over transformers'", ratio(
        lambda: ours.generate(source, 32, mask),
        lambda: theirs.generate(input_ids=source, attention_mask=mask, max_new_tokens=32, min_new_tokens=32, do_sample=False), rounds=7), 1.15)


@pytest.mark.bench
def test_the_caches_pay(within, unchecked):
    torch.manual_seed(0)
    model = T5(T5Config(2000, 256, 4, num_heads=8, d_ff=1024, eos_id=None)).eval()
    source = torch.randint(2, 2000, (4, 200), generator=torch.Generator().manual_seed(0))
    within("64 ids with caches, over without", ratio(lambda: model.generate(source, 64), lambda: model.generate(source, 64, use_cache=False),
                                                     rounds=5), 0.7)
