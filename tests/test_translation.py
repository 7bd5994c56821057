"""Chapter 28: the translator agrees with the searches of chapter 27 and with sacrebleu; known faults; files; what is refused; the tool."""
import json
import math
import os
import random
import re
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
import torch
import train_translators as tool
from torch import nn
from torch.nn import functional as F

from transformer_course.text.bpe import BPETokenizer
from transformer_course.toolbox.checkpoints import CheckpointError, save_pretrained
from transformer_course.toolbox.teddy_world import TeddyWorld, load_sentence_pairs
from transformer_course.transformer import translation
from transformer_course.transformer._translation_data import SubwordBatches, padded, pair_rows
from transformer_course.transformer._translation_measures import (alignment_error, alignment_errors, bleu_of, pieces_of_words, runs_of,
                                                                  score_per_token, stored_results, word_spans, word_weights, words)
from transformer_course.transformer._translation_variants import (VARIANTS, ConcatenatedPositions, LearnedPositions, NoSkip, Nothing,
                                                                  without_skips)
from transformer_course.transformer.decoding import beam_search, greedy_search
from transformer_course.transformer.feed_forward import FeedForward, SwiGLU
from transformer_course.transformer.residual_and_norm import LayerNorm
from transformer_course.transformer.transformer import Transformer, TransformerConfig, shift_right
from transformer_course.transformer.translation import SMALL, CrossAttention, Translator, train_translator
from transformer_course.toolbox.exercises import check, exercise_ids
from transformer_course.transformer.translation_exercises import EXERCISES

ROOT = Path(__file__).resolve().parent.parent
TATOEBA = Path(os.environ.get("TRANSFORMER_COURSE_TATOEBA", ROOT.parent / "shared/data"))  # files from tatoeba.org, if there are any
TINY = {"vocab_size": 300, "d_model": 32, "num_heads": 2, "d_ff": 32, "num_encoder_layers": 1, "num_decoder_layers": 1, "max_len": 64}
ANIMALS = [("bear", "ours", "l'"), ("cat", "chat", "le "), ("fox", "renard", "le "), ("bee", "abeille", "l'")]
PAIRS = [pair for e, f, the in ANIMALS for pair in (
    (f"a {e} sleeps.", f"un {f} dort."), (f"the {e} reads a book.", f"{the}{f} lit un livre."),
    (f"the {e} sees the {e}'s friend.", f"{the}{f} voit l'ami de {the}{f}."))]
TEXTS = ["a", "a bear sleeps.", "the cat reads a book.", "[EOS]", "a [PAD] bear [BOS]", "곰이 책을 읽는다.", "a \U0001f43b sleeps.",
         "the bee sees the fox's friend. a cat", "the", "a bear sleeps."]


@pytest.fixture(scope="module")
def tiny():
    """A translator that has learned a little."""
    return train_translator(PAIRS, steps=120, warmup_steps=10, batch_size=6, **TINY)[0]


@pytest.fixture(scope="module")
def world():
    return TeddyWorld().split(train=60, validation=1, test=30)


def fresh(seed=0, vocab_size=270, **sizes):
    """A translator that was not trained."""
    tokenizer = BPETokenizer.train([text for pair in PAIRS for text in pair], vocab_size)
    size = tokenizer.vocab_size + 3
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        settings = {"d_model": 16, "num_heads": 2, "d_ff": 16, "num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.0,
                    "max_len": 40, "tie_embeddings": True} | sizes
        return Translator(Transformer(TransformerConfig(size, size, **settings)).eval(), tokenizer)


def insist(translator, *ids):
    """The same translator, which would like to say these ids above all."""
    last = [part for part in translator.model.decoder.layers[-1].modules() if isinstance(part, LayerNorm)][-1]
    with torch.no_grad():
        last.bias.copy_(20 * F.normalize(translator.model.target_embedding.weight[list(ids)], dim=1).sum(dim=0))
    return translator


def ids_of(translator, text):
    return [*translator.tokenizer.encode(text), translator.eos]


@torch.no_grad()
def by_chapter_27(translator, text, search=greedy_search, *options, masked=True, eos=True):
    """Ids that a search of chapter 27 finds: one text, no padding, the model asked from the start at each step."""
    row = ids_of(translator, text)
    context = translator.model.encode(torch.tensor([row if eos else row[:-1]]))

    def step(prefixes):
        logits = translator.model.decode(prefixes, context.expand(len(prefixes), -1, -1))[:, -1]
        if masked:
            logits[:, [translator.pad, translator.bos]] = -math.inf
        return logits.log_softmax(-1)

    limit = min(2 * len(row) + 20, translator.model.config.max_len - 1)
    found = search(step, translator.bos, translator.eos, *options[:1], limit, *options[1:])
    return (found[0] if isinstance(found, list) else found).ids


def text_of(translator, ids):
    return translator.tokenizer.decode([i for i in ids if i < translator.pad])


# -- the searches are chapter 27's

@pytest.fixture(scope="module")
def expected(tiny):
    """What greedy search of chapter 27 says."""
    return [text_of(tiny, by_chapter_27(tiny, text)) for text in TEXTS]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 256])
def test_greedy_is_greedy_search_whatever_the_batch(tiny, expected, batch_size):
    assert tiny.translate(TEXTS, batch_size=batch_size) == expected


def test_greedy_token_for_token(tiny):
    """Several lengths at once, and the same for a model that was not trained: its outputs run into their limits."""
    for translator in (tiny, fresh(0), fresh(1), fresh(2, num_encoder_layers=2, pre_norm=True, tie_embeddings=False)):
        with torch.no_grad():
            said = translation._greedy(translator, [ids_of(translator, text) for text in TEXTS])
        assert said == [by_chapter_27(translator, text) for text in TEXTS]
    assert len({len(ids) for ids in said}) > 2


@pytest.mark.parametrize("size, penalty", [(1, 1.0), (2, 0.0), (3, 1.0), (4, -0.5)])
def test_a_beam_is_beam_search(tiny, size, penalty):
    texts = TEXTS[:4] + TEXTS[5:7]
    assert tiny.translate(texts, beam_size=size, length_penalty=penalty) == [
        text_of(tiny, by_chapter_27(tiny, text, beam_search, size, penalty)) for text in texts]


def test_a_beam_on_a_step_made_by_hand(tiny, monkeypatch):
    """After BOS 5 is likelier than 6; but 5 goes on in many ways, 6 surely ends: greedy takes the one, a beam the other."""
    def hand(translator, given, context, mask):
        rows = torch.full((len(given), translator.eos + 1), -math.inf)
        for row, last in zip(rows, given[:, -1].tolist()):
            told = {translator.bos: {70: 0.6, 71: 0.4}, 70: {72: 0.5, 73: 0.5}, 71: {translator.eos: 1.0}}.get(last, {translator.eos: 1.0})
            for i, p in told.items():
                row[i] = math.log(p)
        return rows

    monkeypatch.setattr(translation, "_log_probs", hand)
    first, second = (tiny.tokenizer.decode(ids) for ids in ([70, 72], [71]))
    assert tiny.translate("a") == first and tiny.translate("a", beam_size=2) == second
    assert tiny.translate("a", beam_size=2, length_penalty=2.0) == first  # 3 ids at log 0.3 / 9 against 2 at log 0.4 / 4


def test_what_is_returned(tiny):
    assert isinstance(tiny.translate("a bear sleeps."), str)
    assert tiny.translate(["a bear sleeps."]) == [tiny.translate("a bear sleeps.")] == tiny.translate(iter(["a bear sleeps."]))
    assert tiny.translate([]) == []
    assert not tiny.model.training


def ends(translator, rows, greedy):
    """Numbers of ids that a search says, and whether any is PAD or BOS."""
    with torch.no_grad():
        said = greedy(translator, rows)
    return [len(ids) for ids in said], bool({translator.pad, translator.bos} & {i for ids in said for i in ids})


def test_pad_and_bos_are_never_said():
    translator = fresh()
    insist(translator, translator.pad, translator.bos)
    rows = [ids_of(translator, text) for text in TEXTS]
    assert not ends(translator, rows, translation._greedy)[1]
    assert not any({translator.pad, translator.bos} & set(translation._beam(translator, row, 2, 0.0)) for row in rows[:2])
    unmasked = [by_chapter_27(translator, text, masked=False) for text in TEXTS]
    assert ends(translator, rows, lambda *_: unmasked)[1]                                                 # the mutant is seen


def test_limits():
    """A translation that does not end is cut at 2 n + 20 ids, n with EOS, and at max_len - 1."""
    for max_len, expected in ((200, [2 * 2 + 20, 2 * 11 + 20]), (35, [24, 34])):
        translator = fresh(max_len=max_len)
        insist(translator, 70)
        rows = [[65] * 1 + [translator.eos], [65] * 10 + [translator.eos]]
        assert ends(translator, rows, translation._greedy)[0] == expected
        assert [len(translation._beam(translator, row, 2, 0.0)) for row in rows] == expected
    insist(translator, translator.eos)
    assert translator.translate(["a", "b c"]) == ["", ""]
    longest = "".join(chr(0x4e00 + i) for i in range(11)) + "a"  # 34 bytes and EOS
    assert isinstance(translator.translate(longest), str)
    with pytest.raises(ValueError, match=r"text\[1\] has 36 tokens, but the model's max_len is 35"):
        translator.translate(["a", longest + "a"])


def padding_matters(encode):
    """Whether what stands in the padding reaches the scores."""
    translator = fresh()
    rows = [ids_of(translator, text) for text in ("a", "a bear sleeps.")]
    with torch.no_grad():
        context, mask = encode(translator, rows)
        given = torch.full((2, 1), translator.bos)
        before = translation._log_probs(translator, given, context, mask)[0]
        alone = translation._log_probs(translator, given[:1], *encode(translator, rows[:1]))[0]
        context[0, 2:] = 9.0
        after = translation._log_probs(translator, given, context, mask)[0]
    kept = before > -math.inf
    return not (torch.equal(before, after) and torch.allclose(before[kept], alone[kept], atol=1e-5))


def test_padding_does_not_matter():
    def without_a_mask(translator, rows):
        context, mask = translation._encode(translator, rows)
        return context, torch.ones_like(mask)

    assert not padding_matters(translation._encode) and padding_matters(without_a_mask)


def sees_eos(encode):
    """Whether the encoder is shown, by `encode(translator, text)`, what it was trained on: the text's ids and EOS."""
    translator, seen = fresh(), []
    plain = translator.model.encode
    translator.model.encode = lambda source, mask=None: seen.append(source.tolist()) or plain(source, mask)
    encode(translator, "a bear")
    [(source, _)] = pair_rows([("a bear", "un")], translator.tokenizer, translator.eos, 40)
    return all(call == [source] for call in seen) and len(seen) > 0


def test_the_source_ends_with_eos_as_in_training():
    assert sees_eos(lambda translator, text: translator.translate(text))
    assert sees_eos(lambda translator, text: translator.translate(text, beam_size=2))
    assert sees_eos(lambda translator, text: translator.cross_attention(text, "un ours"))
    assert not sees_eos(lambda translator, text: by_chapter_27(translator, text, eos=False))
    assert pair_rows([("a", "bb")], fresh().tokenizer, 999, 9) == [([64, 999], [65, 65, 999])]


SPECIALS = ["[PAD]", "[BOS]", "[EOS]"]


def text_is_text(train):
    """Whether texts that read like special tokens are only letters, and come back as they were."""
    tokenizer = train([*SPECIALS, "a bear"])
    size = tokenizer.vocab_size
    special = {tokenizer.vocab[name] for name in SPECIALS if name in tokenizer.special_tokens}
    ids = [tokenizer.encode(text) for text in (*SPECIALS, "a [EOS] bear", "<pad>", "</s>")]
    return all(0 <= i < size and i not in special for row in ids for i in row) and all(len(row) > 1 for row in ids)


def test_no_text_holds_a_special_token(tiny):
    assert text_is_text(lambda texts: BPETokenizer.train(texts, 256))
    assert not text_is_text(lambda texts: BPETokenizer.train(texts, 259, special_tokens=SPECIALS))
    assert (tiny.pad, tiny.bos, tiny.eos) == tuple(tiny.tokenizer.vocab_size + i for i in range(3))
    assert tiny.tokenizer.special_tokens == () and tiny.model.config.source_vocab_size == tiny.tokenizer.vocab_size + 3


# -- batches

def batches_of(rows, size, seed=0, make=SubwordBatches):
    return make(rows, size, 901, 900, torch.Generator().manual_seed(seed))


def random_rows(n=257, seed=0):
    draw = random.Random(seed)
    return [([draw.randrange(800) for _ in range(draw.randint(1, 12))] + [902],
             [draw.randrange(800) for _ in range(draw.randint(1, 14))] + [902]) for _ in range(n)]


def batch_problems(make):
    """What is wrong with the tensors of the batches."""
    rows, wrong, seen = random_rows(), set(), []
    for batch in batches_of(rows, 10, make=make):
        for source, mask, given, wanted in zip(*batch):
            kept = wanted != -100
            target = wanted[kept].tolist()
            seen.append((source[mask].tolist(), target))
            if given[kept].tolist() != [901, *target[:-1]]:
                wrong.add("the target is not shifted")
            if not (source[~mask] == 900).all() or (source[mask] == 900).any() or mask.dtype != torch.bool:
                wrong.add("the source's mask")
            if target[-1:] != [902] or 900 in target:
                wrong.add("padding is counted")
            if source[mask].tolist()[-1:] != [902]:
                wrong.add("the source has no EOS")
    if sorted(seen) != sorted(rows):
        wrong.add("not each pair once")
    return wrong


class NotShifted(SubwordBatches):
    def batch(self, rows):
        batch = super().batch(rows)
        return batch._replace(given=batch.wanted.masked_fill(batch.wanted == -100, self.pad))


class ShiftedTwice(SubwordBatches):
    def batch(self, rows):
        batch = super().batch(rows)
        return batch._replace(given=shift_right(batch.given, self.bos))


class PaddingCounted(SubwordBatches):
    def batch(self, rows):
        batch = super().batch(rows)
        return batch._replace(wanted=batch.wanted.masked_fill(batch.wanted == -100, self.pad))


class NoMask(SubwordBatches):
    def batch(self, rows):
        batch = super().batch(rows)
        return batch._replace(source_mask=torch.ones_like(batch.source_mask))


class WithoutEOS(SubwordBatches):
    def batch(self, rows):
        return super().batch([(source[:-1] or [1], target) for source, target in rows])


class LastDropped(SubwordBatches):
    def __iter__(self):
        yield from list(super().__iter__())[:-1]


@pytest.mark.parametrize("make, wrong", [
    (SubwordBatches, None), (NotShifted, "the target is not shifted"), (ShiftedTwice, "the target is not shifted"),
    (PaddingCounted, "padding is counted"), (NoMask, "the source's mask"), (WithoutEOS, "the source has no EOS"),
    (LastDropped, "not each pair once")])
def test_what_a_batch_holds(make, wrong):
    problems = batch_problems(make)
    assert (wrong in problems) if wrong else not problems


class Sorted(SubwordBatches):
    """Short sentences first, in every epoch."""

    def __iter__(self):
        yield from sorted(super().__iter__(), key=lambda batch: batch.wanted.shape[1])


class OneOrder(SubwordBatches):
    def __iter__(self):
        self.generator.manual_seed(0)
        yield from super().__iter__()


def order_problems(make):
    """What is wrong with the order of the batches."""
    rows, wrong = random_rows(600), set()
    batches = batches_of(rows, 10, make=make)
    epochs = [[batch.wanted.shape[1] for batch in batches] for _ in range(3)]
    if any(abs(np.corrcoef(lengths, range(60))[0, 1]) > 0.4 for lengths in epochs):  # 3 standard errors of 60
        wrong.add("length tells the place")
    if len(set(map(tuple, epochs))) < 3:
        wrong.add("epochs are alike")
    return wrong


def test_the_order_of_batches():
    assert order_problems(SubwordBatches) == set()
    assert "length tells the place" in order_problems(Sorted) and "epochs are alike" in order_problems(OneOrder)
    one, same, other = ([b.source.tolist() for b in batches_of(random_rows(), 10, seed)] for seed in (0, 0, 1))
    assert one == same != other


def test_a_batch_has_sentences_of_about_one_length():
    rows = random_rows(600)
    waste = sum((b.wanted == -100).sum().item() for b in batches_of(rows, 10))
    plain = sum(10 * max(len(t) for _, t in rows[i:i + 10]) - sum(len(t) for _, t in rows[i:i + 10]) for i in range(0, 600, 10))
    assert waste < 0.1 * plain
    for n, size in ((1, 1), (1, 9), (7, 7), (8, 7), (1001, 5)):  # a pool holds 100 batches: 1001 makes a pool of one
        batches = batches_of(random_rows(n), size)
        assert sorted(len(b.source) for b in batches) == sorted([size] * (n // size) + [n % size] * (n % size > 0))
        assert len(batches) == math.ceil(n / size)


def test_padded():
    assert padded([[1], [2, 3]], 9).tolist() == [[1, 9], [2, 3]] and padded([[1]], 9).dtype == torch.int64


# -- the loss

def loss_problems(make):
    """What is wrong with a loss over padded batches, made with a smoothing, that gives (sum, count)."""
    wrong, translator = set(), fresh()
    rows = pair_rows(PAIRS[:5], translator.tokenizer, translator.eos, 40)
    batches = SubwordBatches(rows, 5, translator.bos, translator.pad, torch.Generator())
    batch = batches.batch(rows)
    for smoothing in (0.0, 0.1):
        total, count = make(smoothing)(translator.model, batch)
        parts = [make(smoothing)(translator.model, batches.batch([row])) for row in rows]
        exact = sum(F.cross_entropy(translator.model(*(torch.tensor([ids]) for ids in (source, [translator.bos, *target[:-1]])))[0],
                                    torch.tensor(target), reduction="sum", label_smoothing=smoothing) for source, target in rows)
        if not torch.isclose(total / count, exact / sum(len(target) for _, target in rows), rtol=1e-4):
            wrong.add("not the mean over real tokens")
        if not torch.isclose(total / count, sum(t for t, _ in parts) / sum(c for _, c in parts), rtol=1e-4):
            wrong.add("two parts are not the whole")
    return wrong


def _with_padding(smoothing):
    def loss(model, batch):
        wanted = batch.wanted.masked_fill(batch.wanted == -100, 0)
        total = F.cross_entropy(model(batch.source, batch.given, batch.source_mask).flatten(0, 1), wanted.flatten(), reduction="sum",
                                label_smoothing=smoothing)
        return total, wanted.numel()
    return loss


def _mean_of_means(smoothing):
    def loss(model, batch):
        total, count = translation._loss(smoothing)(model, batch)
        return total / count, 1
    return loss


def _without_the_source_mask(smoothing):
    return lambda model, batch: translation._loss(smoothing)(model, batch._replace(source_mask=torch.ones_like(batch.source_mask)))


def _copies(smoothing):
    return lambda model, batch: translation._loss(smoothing)(model, batch._replace(given=batch.wanted.clamp(min=0)))


@pytest.mark.parametrize("make, wrong", [
    (translation._loss, None), (_with_padding, "not the mean over real tokens"), (_mean_of_means, "two parts are not the whole"),
    (_without_the_source_mask, "not the mean over real tokens"), (_copies, "not the mean over real tokens")])
def test_the_loss(make, wrong):
    problems = loss_problems(make)
    assert (wrong in problems) if wrong else not problems


def test_the_schedule():
    """Up in a line, down in a line, and never 0 while there are steps to make."""
    factor = translation._schedule(1600, 100)
    assert [factor(s) for s in (1, 50, 100)] == pytest.approx([0.01, 0.5, 1.0]) and factor(1600) == pytest.approx(1 / 1501)
    assert max(map(factor, range(1, 1601))) == 1.0
    assert translation._schedule(4, 0)(1) == pytest.approx(4 / 5) and translation._schedule(1, 0)(1) == pytest.approx(0.5)
    _, history = train_translator(PAIRS, steps=5, warmup_steps=2, learning_rate=0.01, **TINY)
    assert history.learning_rates == pytest.approx([0.005, 0.01, 0.0075, 0.005, 0.0025])


def test_score_per_token():
    translator = fresh()
    pairs = PAIRS[:7]
    total = count = 0
    for source, target in pairs:
        ids = ids_of(translator, target)
        logits = translator.model(torch.tensor([ids_of(translator, source)]), torch.tensor([[translator.bos, *ids[:-1]]]))[0]
        total, count = total + F.cross_entropy(logits, torch.tensor(ids), reduction="sum").item(), count + len(ids)
    assert score_per_token(translator, pairs) == pytest.approx(total / count, rel=1e-5)


# -- training

def weights(translator):
    return list(translator.model.state_dict().values())


def same_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


def states():
    return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())


def test_the_same_seed_gives_the_same_translator_and_nothing_else_changes(unchecked):
    """(The run-time check of types draws random numbers of Python.)"""
    before, made = states(), []
    for seed, disturb in ((0, 1), (0, 2), (1, 1)):
        made.append(train_translator(PAIRS, steps=4, warmup_steps=1, seed=seed, dropout=0.1, **TINY))
        assert states() == before
        torch.manual_seed(disturb), random.seed(disturb), np.random.seed(disturb)
        before = states()
    assert same_weights(made[0][0], made[1][0]) and made[0][1].losses == made[1][1].losses
    assert not same_weights(made[0][0], made[2][0])
    assert not made[0][0].model.training and made[0][0].model.config.dropout == 0.1


def test_a_run_that_was_stopped_goes_on_to_the_bit(tmp_path):
    """Stopped in the middle of an epoch: 12 pairs make 4 batches, 6 steps of 11 were made."""
    settings = {"steps": 11, "warmup_steps": 3, "batch_size": 3, "dropout": 0.1, **TINY}
    whole, history = train_translator(PAIRS, **settings)
    part, first = train_translator(PAIRS, **settings, fit_options={"checkpoint": tmp_path, "steps": 6})
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again, resumed = train_translator(PAIRS, **settings, fit_options={"checkpoint": tmp_path})
    assert torch.equal(torch.get_rng_state(), before)
    assert len(first.losses) == 6 == resumed.resumed_at and resumed.losses == history.losses
    assert resumed.learning_rates == history.learning_rates
    assert same_weights(whole, again) and not same_weights(whole, part)


def test_options_reach_fit_and_sizes_the_config():
    seen = []
    translator, history = train_translator(
        [(s, t, "who wrote it") for s, t in PAIRS], steps=4, warmup_steps=0, pre_norm=True, tie_embeddings=False,
        fit_options={"validate": lambda model: seen.append(model.training) or 1.0, "validate_every": 2}, **TINY)
    assert seen == [False, False] and [at for at, _ in history.validation] == [2, 4]
    assert translator.model.config.pre_norm and translator.model.output is not None
    small, _ = train_translator(PAIRS, steps=1, warmup_steps=0, vocab_size=256)
    assert {name: getattr(small.model.config, name) for name in SMALL} == SMALL


def test_training_learns():
    """Twelve pairs by heart; and from a generator, which can be gone through only once."""
    translator, history = train_translator((pair for pair in PAIRS), steps=250, warmup_steps=20, batch_size=12, **TINY)
    assert translator.translate([source for source, _ in PAIRS]) == [target for _, target in PAIRS]
    assert history.losses[-1] < 0.25 * history.losses[0]


@pytest.mark.parametrize("name", ["tatoeba-eng-fra.tsv", "tatoeba-eng-kor.tsv"])
def test_real_sentences(name):
    path = TATOEBA / name
    if not path.exists():
        pytest.skip("no Tatoeba file at hand: set TRANSFORMER_COURSE_TATOEBA to the folder that holds it")
    pairs = load_sentence_pairs(path, limit=2000)
    sizes = TINY | {"vocab_size": 500, "max_len": 256}
    translator, history = train_translator(pairs, steps=200, warmup_steps=20, batch_size=16, **sizes)
    assert np.mean(history.losses[-20:]) < 0.85 * np.mean(history.losses[:10])
    assert all(isinstance(text, str) for text in translator.translate([pair.source for pair in pairs[:5]]))


# -- files

def test_a_translator_comes_back_as_it_was(tiny, tmp_path):
    tiny.save_pretrained(tmp_path / "new" / "folder")
    again = Translator.from_pretrained(tmp_path / "new" / "folder")
    assert same_weights(tiny, again) and again.model.config == tiny.model.config and not again.model.training
    assert again.translate(TEXTS) == tiny.translate(TEXTS)
    assert (again.pad, again.bos, again.eos) == (tiny.pad, tiny.bos, tiny.eos) and again.tokenizer.merges == tiny.tokenizer.merges
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_half_precision_files_are_read_as_float32(tmp_path):
    translator = fresh()
    exact = [w.clone() for w in weights(translator)]
    translator.model.half()
    translator.save_pretrained(str(tmp_path))
    again = Translator.from_pretrained(str(tmp_path))
    assert all(w.dtype == torch.float32 and w.device.type == "cpu" for w in weights(again))
    assert all(torch.equal(w, x.half().float()) for w, x in zip(weights(again), exact))
    assert isinstance(again.translate("a bear"), str)


def test_other_parts_are_passed_on(tmp_path):
    translator, _ = train_translator(PAIRS, steps=1, warmup_steps=0, **TINY, **VARIANTS["no norms"])
    translator.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="norm"):
        Translator.from_pretrained(tmp_path)
    assert same_weights(Translator.from_pretrained(tmp_path, norm=nn.Identity), translator)


@pytest.mark.parametrize("damage, says", [
    (lambda f: (f / "tokenizer.json").unlink(), "no translator"),
    (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer.json"),
    (lambda f: (f / "tokenizer.json").write_text("[]"), "tokenizer.json"),
    (lambda f: (f / "tokenizer.json").write_text('{"model": 3}'), "tokenizer.json"),
    (lambda f: (f / "tokenizer.json").write_bytes(b"\xff\xfe\x00"), "tokenizer.json"),
    (lambda f: BPETokenizer.train(["a"], 256).save(f / "tokenizer.json"), "PAD, BOS and EOS make three more"),
    (lambda f: (f / "config.json").unlink(), "config.json"),
    (lambda f: (f / "config.json").write_text('{"source_vocab_size": "many"}'), "config.json"),
    (lambda f: (f / "config.json").write_text("{}"), "config.json"),
    (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
    (lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:500]), "model.safetensors"),
    (lambda f: (f / "model.safetensors").write_bytes(b"no weights"), "model.safetensors"),
    (lambda f: save_pretrained(nn.Linear(3, 2), {"inputs": 3}, f), "config.json"),
    (lambda f: save_pretrained(fresh(d_model=8).model, fresh(d_model=8).model.config, f), None),
])
def test_damaged_and_foreign_folders_are_refused(tmp_path, damage, says):
    fresh().save_pretrained(tmp_path)
    damage(tmp_path)
    if says is None:  # another model of the same vocabulary fits the tokenizer
        assert Translator.from_pretrained(tmp_path).model.config.d_model == 8
    else:
        with pytest.raises(CheckpointError, match=re.escape(says)):
            Translator.from_pretrained(tmp_path)


def test_no_folder(tmp_path):
    with pytest.raises(CheckpointError):
        Translator.from_pretrained(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError):
        fresh().save_pretrained(tmp_path / "file")
    with pytest.raises(CheckpointError):
        Translator.from_pretrained(tmp_path / "file")


# -- where the decoder looked

def looks_right(cross_attention):
    """What is wrong with a function (translator, source, target) that gives a CrossAttention."""
    translator, wrong = fresh(num_decoder_layers=2), set()
    one, two = (cross_attention(translator, "the bear sleeps", target) for target in ("un ours dort", "un ours lit"))
    source, target = (["".join(tokens[:-1]) for tokens in (one.source, one.target)])
    if (source, target) != ("the bear sleeps", "un ours dort") or not one.source[-1] == one.target[-1] == "EOS":
        wrong.add("tokens")
    if one.weights.shape != (2, 2, len(one.target), len(one.source)):
        wrong.add("shape")
    if not torch.allclose(one.weights.sum(-1), torch.ones(one.weights.shape[:3]), atol=1e-5):
        wrong.add("rows do not add up to 1")
    differ = [a == b for a, b in zip(one.target, two.target)].index(False)
    rows = slice(0, differ + 1)  # the step that says the first other token has read the same ones
    if not torch.allclose(one.weights[:, :, rows], two.weights[:, :, rows], atol=1e-6):
        wrong.add("row i has read more than the tokens before i")
    if torch.allclose(one.weights[:, :, differ + 1], two.weights[:, :, differ + 1], atol=1e-6):
        wrong.add("row i has not read all tokens before i")
    return wrong


def test_cross_attention():
    def rolled(by):
        def look(translator, source, target):
            seen = translator.cross_attention(source, target)
            return seen._replace(weights=seen.weights.roll(by, dims=2))
        return look

    assert looks_right(Translator.cross_attention) == set()
    assert "row i has read more than the tokens before i" in looks_right(rolled(-1))
    assert "row i has not read all tokens before i" in looks_right(rolled(1))
    assert looks_right(lambda t, *texts: t.cross_attention(*texts)._replace(weights=t.cross_attention(*texts).weights.exp())) == {
        "rows do not add up to 1"}


def test_cross_attention_of_its_own_translation(tiny):
    own, told = tiny.cross_attention(PAIRS[0][0]), tiny.cross_attention(PAIRS[0][0], tiny.translate(PAIRS[0][0]))
    assert own.target == told.target and torch.equal(own.weights, told.weights) and own.weights.device.type == "cpu"
    assert not own.weights.requires_grad
    strange = tiny.cross_attention("곰 \U0001f43b", "[EOS]")
    assert strange.target[-1] == "EOS" and "".join(strange.target[:-1]) == "[EOS]" and strange.weights.isfinite().all()


# -- measures by hand

@pytest.mark.parametrize("tokens, text, spans", [
    (("can", "not"), "cannot", [(0, 3), (3, 6)]), (("l'", "ours"), "l'ours", [(0, 2), (2, 6)]),
    (("the", "bear", "'s", "book"), "the bear's book", [(0, 3), (4, 8), (8, 10), (11, 15)]),
    (("était", "là"), "était là", [(0, 6), (7, 10)]), (("a", "a", "a"), "a a a", [(0, 1), (2, 3), (4, 5)]),
    (("곰", "."), "곰.", [(0, 3), (3, 4)])])
def test_word_spans(tokens, text, spans):
    assert word_spans(tokens, text) == spans


@pytest.mark.parametrize("pieces, spans, rows", [
    ([b"can", b"not", b"EOS"], [(0, 3), (3, 6)], ["100", "010", "001"]),
    ([b"cannot", b"EOS"], [(0, 3), (3, 6)], ["10", "10", "01"]),                                # one piece of two words
    ([b"l", b"'ours", b"EOS"], [(0, 2), (2, 6)], ["110", "010", "001"]),                        # a piece of both
    ([b"the", b" be", b"ar", b"'s", b"EOS"], [(0, 3), (4, 8), (8, 10)], ["10000", "01100", "00010", "00001"]),
    ([b"a", b" ", b" b", b"EOS"], [(0, 1), (3, 4)], ["1000", "0010", "0001"]),                  # a blank is of no word
    ([b"\xc3", b"\xa9", b"EOS"], [(0, 2)], ["110", "001"]),                                     # halves of a letter
])
def test_pieces_of_words(pieces, spans, rows):
    assert pieces_of_words(pieces, spans).tolist() == [[float(c) for c in row] for row in rows]


def spoken(english, french, weights=None):
    """A sentence and a translator of bytes that looks where `weights` says."""
    sentence = SimpleNamespace(english=english, french=french, english_text=" ".join(english), french_text=" ".join(french))
    tokenizer = BPETokenizer.train(["x"], 256)
    names = [[*text, "EOS"] for text in (sentence.english_text, sentence.french_text)]
    seen = CrossAttention(*names, weights[None, None])
    return SimpleNamespace(cross_attention=lambda e, f: seen, tokenizer=tokenizer), sentence


def test_word_weights_by_hand():
    """ab c / d ef: bytes a, b, blank, c, EOS and d, blank, e, f, EOS."""
    rows = torch.tensor([[0.1, 0.2, 0.1, 0.5, 0.1], [0.0, 0.0, 0.0, 0.0, 1.0], [0.4, 0.4, 0.0, 0.1, 0.1], [0.2, 0.0, 0.2, 0.5, 0.1],
                         [0.0, 0.1, 0.0, 0.3, 0.6]])
    found = word_weights(*spoken(("ab", "c"), ("d", "ef"), rows))
    assert found.shape == (1, 1, 2, 2, 3)
    assert torch.allclose(found[0, 0, 0], torch.tensor([[0.3, 0.5, 0.1], [0.5, 0.3, 0.1]]))     # the steps that say the word
    assert torch.allclose(found[0, 0, 1], torch.tensor([[0.0, 0.0, 1.0], [0.15, 0.4, 0.35]]))   # the next ones: rows 1; 3 and 4


def test_word_weights_of_letters_that_are_cut_in_two():
    """Without merges é is two tokens, neither of them a character: words must be found by bytes."""
    sentence = SimpleNamespace(english=("a", "bear"), french=("été", "là", "!"), english_text="a bear", french_text="été là!")
    found = word_weights(fresh(vocab_size=256), sentence)
    assert found.shape == (1, 2, 2, 3, 3) and found.isfinite().all()
    french = [*"été là!".encode(), None]
    seen = fresh(vocab_size=256).cross_attention("a bear", "été là!").weights
    assert len(french) == seen.shape[2]
    assert torch.allclose(found[:, :, 0, 0, 0], seen[:, :, :5, 0].mean(2), atol=1e-6)
    assert torch.allclose(found[:, :, 0, 1, 0], seen[:, :, 6:9, 0].mean(2), atol=1e-6)


def test_word_weights_of_the_world(world):
    """What is not on words is on blanks, which are tokens of their own where little is merged."""
    translator = fresh(max_len=300)
    for sentence in world.test[:8]:
        found = word_weights(translator, sentence)
        assert found.shape == (1, 2, 2, len(sentence.french), len(sentence.english) + 1)
        assert (found >= 0).all() and (found.sum(-1) > 0.6).all() and (found.sum(-1) < 1.4).all()


def aligned(*pairs):
    return SimpleNamespace(french_alignment=pairs)


def test_alignment_error_by_hand():
    """English i, French j; the last column is EOS."""
    straight = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1]])
    assert alignment_error([straight], [aligned((0, 0), (1, 1))]) == 0
    assert alignment_error([straight], [aligned((1, 0), (0, 1))]) == 1
    assert alignment_error([straight], [aligned((0, 0), (0, 1))]) == pytest.approx(1 - 2 / 4)
    to_eos = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.1, 0.7]])                                   # one link found, of two
    assert alignment_error([to_eos], [aligned((0, 0), (1, 1))]) == pytest.approx(1 - 2 / 3)
    both = alignment_error([straight, to_eos], [aligned((0, 0), (1, 1)), aligned((0, 0), (1, 1))])
    assert both == pytest.approx(1 - 2 * 3 / 7)                                                 # counts, not a mean of rates
    crossed = torch.tensor([[0.1, 0.8, 0.1], [0.7, 0.2, 0.1], [0.6, 0.3, 0.1]])                 # three French words of two English
    assert alignment_error([crossed], [aligned((1, 0), (0, 1), (0, 2))]) == 0
    with pytest.raises(ValueError):
        alignment_error([straight], [])


def test_alignment_errors(world):
    translator = fresh(num_decoder_layers=2, max_len=300)
    rows = alignment_errors(translator, world.test[:4])
    assert [row[:3] for row in rows] == [[layer, head, step] for layer in (0, 1) for head in (None, 0, 1) for step in (0, 1)]
    every = [word_weights(translator, s)[1, 0, 1] for s in world.test[:4]]
    assert rows[9][:3] == [1, 0, 1] and rows[9][3] == round(alignment_error(every, world.test[:4]), 4)


def test_words():
    assert words("L'ours n'est-il pas là ?") == ["L", "'", "ours", "n", "'", "est", "-", "il", "pas", "là", "?"]


def test_bleu_is_sacrebleus(world):
    """Over the same words the two are equal; with sacrebleu's own words, which keep l'ours together, they are some points apart."""
    references = [s.french_text for s in world.train]
    draw = random.Random(0)
    said = [" ".join(word for word in text.split() if draw.random() < 0.9) for text in references]
    ours = bleu_of(said, references)
    joined = [[" ".join(words(text)) for text in texts] for texts in (said, references)]
    assert ours == pytest.approx(sacrebleu.corpus_bleu(joined[0], [joined[1]], tokenize="none", force=True).score, abs=1e-6)
    assert 20 < ours < 95 and abs(ours - sacrebleu.corpus_bleu(said, [references]).score) < 6
    assert bleu_of(references, references) == pytest.approx(100) and bleu_of(["a b c d e"], ["v w x y z"]) == 0


# -- the variants

@cache
def tiny_variant(name):
    settings = {"steps": 2, "warmup_steps": 1, "max_len": 64, "vocab_size": 262, "d_model": 32, "d_ff": 96, "batch_size": 4} | VARIANTS[name]
    return train_translator(PAIRS, **settings)


@pytest.mark.parametrize("name", VARIANTS)
def test_each_variant_trains_and_translates(name):
    translator, history = tiny_variant(name)
    assert len(history.losses) == 2 and all(map(math.isfinite, history.losses))
    assert translator.translate(["a", "the"]) == [translator.translate("a"), translator.translate("the")]
    seen = translator.cross_attention("a bear", "un ours")
    assert torch.allclose(seen.weights.sum(-1), torch.ones(seen.weights.shape[:-1]), atol=1e-5)
    if name != "as in 2017":
        plain = tiny_variant("as in 2017")[1]
        assert history.losses != plain.losses or history.learning_rates != plain.learning_rates


def built(name, **sizes):
    """The model of a variant in its full size, on a device without memory."""
    settings = SMALL | {key: value for key, value in VARIANTS[name].items() if key in SMALL or key == "pre_norm"} | sizes
    with torch.device("meta"):
        return VARIANTS[name].get("build", Transformer)(TransformerConfig(1541, 1541, **settings))


def count(name):
    return sum(p.numel() for p in built(name).parameters())


def kinds(name, *types):
    return sum(isinstance(part, types) for part in built(name).modules())


def test_the_variants_are_what_their_names_say():
    plain = count("as in 2017")
    assert kinds("as in 2017", LayerNorm, nn.LayerNorm) == 2 * 2 + 2 * 3
    assert kinds("no norms", LayerNorm, nn.LayerNorm) == 0 and count("no norms") == plain - 10 * 2 * 128
    assert kinds("pre-norm", LayerNorm) == 12 and built("pre-norm").config.pre_norm and not built("as in 2017").config.pre_norm
    assert kinds("no feed-forward network", FeedForward, SwiGLU) == 0 == kinds("attention doubled instead", FeedForward, SwiGLU)
    assert kinds("no feed-forward network", Nothing) == 4 and kinds("attention doubled instead", Nothing) == 8
    assert [kinds(name, FeedForward) for name in ("as in 2017", "GELU", "SwiGLU")] == [4, 4, 0] and kinds("SwiGLU", SwiGLU) == 4
    assert count("GELU") == plain and abs(count("SwiGLU") / plain - 1) < 0.01
    assert count("1 head") == count("8 heads") == count("no warm-up") == count("no label smoothing") == plain
    for times in (1, 2, 8):
        assert count(f"feed-forward {times} times as wide") == plain + 4 * (times - 4) * 128 * (2 * 128 + 1)
    assert count("learned positions") == plain + 2 * 128 * 128 and count("positions concatenated") == plain + 2 * (128 * 64 + 64)
    assert [built(name).config.num_heads for name in ("1 head", "8 heads")] == [1, 8]
    for n in (1, 4):
        config = built(f"{n} layer{'s' * (n > 1)} on each side").config
        assert (config.num_encoder_layers, config.num_decoder_layers) == (n, n)
    assert VARIANTS["no warm-up"] == {"warmup_steps": 0} and VARIANTS["no label smoothing"] == {"label_smoothing": 0.0}
    assert VARIANTS["as in 2017"] == {} and len(VARIANTS) == 19


def passes_straight_through(build):
    """Whether an encoder layer and a decoder layer still let the input through when their sublayers give a constant."""
    config = TransformerConfig(9, 9, 8, 2, 8, 1, 1, dropout=0.0, max_len=9)
    torch.manual_seed(0)
    model, through = build(config).eval(), []
    for layer, more in ((model.encoder.layers[0], ()), (model.decoder.layers[0], (torch.randn(1, 3, 8),))):
        with torch.no_grad():
            for part in layer.modules():
                if isinstance(part, nn.Linear):
                    part.weight.zero_()
        x = torch.randn(1, 3, 8, requires_grad=True)
        (layer(x, *more) * torch.randn(1, 3, 8)).sum().backward()
        through.append(x.grad.abs().max().item() > 1e-4)
    assert through[0] == through[1]
    return through[0]


def test_without_skips_there_are_none():
    assert passes_straight_through(Transformer) and not passes_straight_through(without_skips)
    x = torch.randn(2, 3, 8)
    assert torch.allclose(x + NoSkip(nn.Identity())(x), x) and torch.allclose(x + NoSkip(nn.Tanh())(x), x.tanh(), atol=1e-6)
    assert torch.equal(Nothing()(x), torch.zeros(2, 3, 8))
    assert kinds("no residual connections", NoSkip) == 2 * 2 + 2 * 3 and kinds("as in 2017", NoSkip) == 0


@pytest.mark.parametrize("make", [LearnedPositions, ConcatenatedPositions])
def test_other_positions_continue_behind_a_start(make):
    torch.manual_seed(0)
    position, x = make(8, 10), torch.randn(2, 6, 8)
    whole = position(x)
    assert whole.shape == x.shape and torch.allclose(whole[:, 4:], position(x[:, 4:], 4))
    same_token = position(x[:1, :1].expand(1, 6, 8))
    assert not torch.allclose(same_token[0, 0], same_token[0, 1])
    if make is ConcatenatedPositions:
        assert torch.equal(position(x)[:, :, 4:], position(-x)[:, :, 4:])                       # places do not depend on tokens
        assert torch.equal(same_token[:, 0, :4], same_token[:, 5, :4])                          # nor tokens on places


# -- the tool

@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The tool with tiny trainings; what it trained on, and where it stores."""
    seen = []

    def train(pairs, **settings):
        seen.append((list(pairs), settings))
        small = {"steps": 3, "warmup_steps": 1, "max_len": 300, **{k: v for k, v in TINY.items() if k != "max_len"}}
        return train_translator(pairs, **settings | small)

    monkeypatch.setattr(tool, "train_translator", train)
    monkeypatch.setattr(tool, "STORE", tmp_path / "results.json")
    monkeypatch.setattr(tool, "WEIGHTS", tmp_path / "weights")
    return seen


def leaks(pairs, held):
    """Held-out sources that were in training."""
    return {pair[0] for pair in pairs} & set(held)


def test_a_held_out_source_is_never_trained_on(quick, tmp_path, monkeypatch):
    """Forty sources, each with up to four translations."""
    rows = [(f"I see {i} bears.", f"Je vois {i} ours{'!' * k}.") for i in range(40) for k in range(1 + i % 4)]
    path = tmp_path / "corpus.tsv"
    path.write_text("".join(f"{s}\t{t}\tme\n" for s, t in rows), "utf-8")
    asked, plain = [], Translator.translate
    monkeypatch.setattr(Translator, "translate", lambda self, texts, **k: asked.append(texts) or plain(self, texts, **k))
    row = tool.corpus(path, 3)
    [(trained, settings)] = quick
    held = asked[0]
    assert len(held) == len(set(held)) == row["held_out"] == 4 and settings["seed"] == 3 == row["seed"]
    assert not leaks(trained, held) and {p[0] for p in trained} | set(held) == {s for s, _ in rows}
    assert len(trained) == sum(s not in held for s, _ in rows) and row["pairs"] == len(rows) == 100
    assert leaks(rows[:-5], held)                                                               # a split by rows would leak
    assert row["file"] == "corpus.tsv" and re.fullmatch("[0-9a-f]{64}", row["sha256"]) and 0 <= row["sacrebleu"] <= 100
    assert len(row["examples"]) == 4 and json.loads(json.dumps(row))["steps"] == 3


def test_a_run_of_the_tool(quick, world):
    split = SimpleNamespace(train=world.train, test=world.test[:5])
    row = tool.teddy("as in 2017", 0, split, "french", tool.FULL)
    assert {"sacrebleu", "bleu", "exact", "loss", "seconds", "parameters", "losses", "alignment_errors"} <= set(row)
    assert len(row["alignment_errors"]) == 1 * (2 + 1) * 2 and row["seed"] == 0 and row["language"] == "french"
    kept = Translator.from_pretrained(tool.WEIGHTS)
    assert kept.model.config.d_model == TINY["d_model"]
    other = tool.teddy("as in 2017", 1, split, "korean", tool.SHORT)
    assert "alignment_errors" not in other and quick[1][0] == [(s.english_text, s.korean_text) for s in split.train]
    assert quick[1][1]["steps"] == tool.SHORT and not leaks(quick[0][0], [s.english_text for s in split.test])


def test_scores_of_the_tool(world):
    said = {s.english_text: s.french_text for s in world.test}
    class Perfect:
        model, tokenizer, pad, bos, eos = (lambda t: (t.model, t.tokenizer, t.pad, t.bos, t.eos))(fresh(max_len=300))
        translate = staticmethod(lambda texts: [said[text] for text in texts])
    row = tool.scored(Perfect(), world.test, "french")
    assert row["sacrebleu"] == 100.0 == row["bleu"] and row["exact"] == 1.0 and row["loss"] > 0


def test_the_tool_goes_on_where_it_stopped(quick, monkeypatch):
    made = []

    def teddy(name, seed, split, language, steps):
        made.append((name, seed, language, steps))
        return {"name": name, "language": language, "seed": seed, "steps": steps, "sacrebleu": 0.0, "exact": 0.0, "seconds": 0.0}

    def main(*arguments):
        made.clear()
        monkeypatch.setattr(sys, "argv", ["train_translators.py", *arguments])
        tool.main()
        return list(made)

    monkeypatch.setattr(tool, "teddy", teddy)
    monkeypatch.setattr(tool, "TeddyWorld", lambda: SimpleNamespace(split=lambda **sizes: None))
    everything = main()
    assert len(everything) == len(set(everything)) == 3 * (2 + len(VARIANTS)) and main() == []
    assert not set(tool.machine()) & {"name", "language", "steps", "seed", "sacrebleu", "bleu", "exact", "loss", "seconds", "pairs"}
    assert {steps for name, _, _, steps in everything if name != "as in 2017"} == {tool.SHORT}
    assert main("--only", "GELU") == [("GELU", seed, "french", tool.SHORT) for seed in tool.SEEDS]
    stored = json.loads(tool.STORE.read_text("utf-8"))["runs"]
    assert len(stored) == len(everything) and all({"torch", "python", "threads"} <= set(row) and row["sacrebleu"] == 0.0 for row in stored)


# -- what the project brings along

@pytest.mark.parametrize("name", VARIANTS)
def test_stored_runs(name):
    """Three seeds of each kind, of the same code: as many parameters as the variant has now."""
    runs = runs_of(stored_results(), name)
    assert [run["seed"] for run in runs] == list(tool.SEEDS) and all(run["steps"] == tool.SHORT for run in runs)
    assert {run["parameters"] for run in runs} == {count(name)}
    assert all(0 <= run["sacrebleu"] <= 100 and 0 <= run["bleu"] <= 100 and 0 <= run["exact"] <= 1 and run["loss"] > 0 for run in runs)
    assert len(runs[0]["losses"]) == math.ceil(tool.SHORT / 20)


def test_the_translator_that_comes_along(world):
    ours = translation.teddy_translator()
    assert ours is translation.teddy_translator() and {w.dtype for w in weights(ours)} == {torch.float32}
    assert translation.translate("A cute teddy bear is reading.") == "Un mignon ours en peluche lit."
    sentences = world.test
    said = translation.translate([s.english_text for s in sentences])
    assert sum(a == s.french_text for a, s in zip(said, sentences)) >= 0.8 * len(sentences)
    assert translation.translate("The bear sleeps.", 3) == ours.translate("The bear sleeps.", beam_size=3)


# -- what is refused

def train(**change):
    return train_translator(**{"pairs": PAIRS[:2], "steps": 2, "warmup_steps": 1, **TINY} | change)


@pytest.mark.parametrize("change, error, says", [
    ({"pairs": []}, ValueError, "pairs is empty"), ({"pairs": None}, TypeError, "pairs must be pairs of texts, not NoneType"), ({"pairs": 3}, TypeError, "pairs must be pairs of texts, not int"),
    ({"build": None}, TypeError, "build must make a model"),
    ({"pairs": "ab"}, TypeError, r"pairs\[0\] must be \(source, target\), not 'a'"),
    ({"pairs": [("a", "b"), "cd"]}, TypeError, r"pairs\[1\]"), ({"pairs": [("a",)]}, TypeError, r"pairs\[0\]"),
    ({"pairs": [("a", 3)]}, TypeError, r"target of pairs\[0\] must be a text, not int"),
    ({"pairs": [("a", "b"), (None, "c")]}, TypeError, r"source of pairs\[1\] must be a text, not NoneType"),
    ({"pairs": [("a", "b"), (" \n", "c")]}, ValueError, r"source of pairs\[1\] is empty"),
    ({"pairs": [("a", "")]}, ValueError, r"target of pairs\[0\] is empty"),
    ({"pairs": [("a", "b"), ("a" * 70, "c")], "vocab_size": 256}, ValueError, r"pairs\[1\] has \d+ tokens on one side, but max_len is 64"),
    ({"pairs": [("a", "\ud800")]}, ValueError, "surrogate"),
    ({"vocab_size": 255}, ValueError, "vocab_size"), ({"vocab_size": 300.5}, TypeError, "vocab_size"),
    ({"vocab_size": None}, TypeError, "vocab_size"),
    ({"steps": 0}, ValueError, r"steps \(0\)"), ({"steps": 1.5}, ValueError, "steps"), ({"steps": None}, ValueError, "steps"),
    ({"batch_size": 0}, ValueError, r"batch_size \(0\)"), ({"batch_size": "2"}, ValueError, "batch_size"),
    ({"learning_rate": -1.0}, ValueError, "learning_rate"), ({"learning_rate": math.nan}, ValueError, "learning_rate"),
    ({"learning_rate": math.inf}, ValueError, "learning_rate"), ({"learning_rate": "1"}, ValueError, "learning_rate"),
    ({"warmup_steps": -1}, ValueError, "warmup_steps"), ({"warmup_steps": 0.5}, ValueError, "warmup_steps"),
    ({"warmup_steps": 2}, ValueError, r"warmup_steps \(2\) must be less than steps \(2\)"),
    ({"label_smoothing": 1.0}, ValueError, "label_smoothing"), ({"label_smoothing": -0.1}, ValueError, "label_smoothing"),
    ({"label_smoothing": math.nan}, ValueError, "label_smoothing"), ({"label_smoothing": True}, ValueError, "label_smoothing"),
    ({"d_model": 33}, ValueError, r"num_heads \(2\) must divide d_model \(33\)"), ({"max_len": 0}, ValueError, "max_len"),
    ({"dropout": 1.0}, ValueError, "dropout"), ({"pre_norm": 1}, TypeError, "pre_norm"), ({"depth": 3}, TypeError, "depth"),
    ({"build": lambda config: nn.Linear(2, 2)}, TypeError, "model must be a Transformer, not Linear"),
    ({"build": lambda config: Transformer(TransformerConfig(9, 9, 8, 2, 8, 1, 1))}, ValueError, r"vocabularies of \[9\] tokens"),
    ({"build": 3}, TypeError, "int"), ({"fit_options": 3}, TypeError, "int"), ({"fit_options": {"speed": 3}}, TypeError, "speed"),
    ({"fit_options": {"steps": 0}}, ValueError, "steps"), ({"fit_options": {"steps": 5}}, ValueError, "schedule gave|steps"),
    ({"seed": "one"}, ValueError, "seed"), ({"seed": None}, ValueError, "seed"), ({"seed": -1}, ValueError, "seed"),
])
def test_wrong_input_to_training(unchecked, change, error, says):
    before = states()
    with pytest.raises(error, match=says):
        train(**change)
    assert states() == before


@pytest.mark.parametrize("change, error, says", [
    ({"text": ""}, ValueError, "^text is empty"), ({"text": " \n"}, ValueError, "^text is empty"),
    ({"text": ["a", ""]}, ValueError, r"text\[1\] is empty"), ({"text": 3}, TypeError, "int"), ({"text": None}, TypeError, "NoneType"),
    ({"text": ["a", 3]}, TypeError, r"text\[1\] must be a text, not int"), ({"text": b"a"}, TypeError, r"text\[0\] must be a text"),
    ({"text": ["a", ["b"]]}, TypeError, r"text\[1\] must be a text, not list"), ({"text": "\ud800"}, ValueError, "surrogate"),
    ({"text": "a" * 65}, ValueError, r"text\[0\] has \d+ tokens, but the model's max_len is 64"),
    ({"beam_size": 0}, ValueError, r"beam_size \(0\)"), ({"beam_size": 1.5}, ValueError, "beam_size"), ({"beam_size": None}, ValueError, "beam_size"),
    ({"beam_size": True}, ValueError, "beam_size"), ({"batch_size": 0}, ValueError, r"batch_size \(0\)"), ({"batch_size": None}, ValueError, "batch_size"),
    ({"length_penalty": math.nan}, ValueError, "length_penalty"), ({"length_penalty": "1"}, ValueError, "length_penalty"),
    ({"beam_size": 2, "length_penalty": math.inf}, ValueError, "length_penalty"), ({"beam_size": 2, "length_penalty": None}, ValueError, "length_penalty"),
])
def test_wrong_input_to_translate(unchecked, tiny, change, error, says):
    with pytest.raises(error, match=says):
        tiny.translate(**{"text": "a bear"} | change)


@pytest.mark.parametrize("source, target, error, says", [
    ("", "un", ValueError, r"source is empty"), ("a", " ", ValueError, r"target is empty"), (3, "un", TypeError, r"source must be a text, not int"),
    (None, "un", TypeError, r"source"), ("a", 3, TypeError, r"target"), (["a"], "un", TypeError, r"source"),
    ("a" * 70, "un", ValueError, "max_len is 64"), ("a", "u" * 70, ValueError, "max_len is 64"), ("a", "\ud800", ValueError, "surrogate")])
def test_wrong_input_to_cross_attention(unchecked, tiny, source, target, error, says):
    with pytest.raises(error, match=says):
        tiny.cross_attention(source, target)


def test_wrong_input_to_the_translator(unchecked, tiny):
    with pytest.raises(TypeError, match="model must be a Transformer, not Linear"):
        Translator(nn.Linear(2, 2), tiny.tokenizer)
    with pytest.raises(TypeError, match="model must be a Transformer, not NoneType"):
        Translator(None, tiny.tokenizer)
    for wrong in (None, "x"):
        with pytest.raises(TypeError, match="tokenizer must have encode, decode and vocab_size"):
            Translator(tiny.model, wrong)
    for sizes in ((tiny.tokenizer.vocab_size,) * 2, (tiny.eos + 1, tiny.eos + 2), (tiny.eos + 2,) * 2):
        with pytest.raises(ValueError, match="PAD, BOS and EOS make three more"):
            Translator(Transformer(TransformerConfig(*sizes, 8, 2, 8, 1, 1)), tiny.tokenizer)
    for wrong in (None, 3):
        with pytest.raises((TypeError, CheckpointError)):
            Translator.from_pretrained(wrong)
    with pytest.raises((TypeError, AttributeError)):
        Translator(tiny.model, None)


# -- the exercises: plausible answers that are wrong

def right(exercise, answer):
    return all(case.problem(answer) is None for case in EXERCISES[exercise])


def _lines(split=lambda text: text.split("\n"), blank=lambda line: not line.strip(), keep="", join="\n".join, one_by_one=False):
    def translate_lines(text, translate):
        lines = split(text)
        wanted = [line for line in lines if not blank(line)]
        said = iter([translate([line])[0] for line in wanted] if one_by_one else translate(wanted) if wanted else [])
        return join([(line if keep is None else keep) if blank(line) else next(said) for line in lines])
    return translate_lines


def _by_a_table(text, translate):
    lines = list(dict.fromkeys(line for line in text.split("\n") if line.strip()))
    table = dict(zip(lines, translate(lines)))
    return "\n".join(table.pop(line, line) for line in text.split("\n"))


def _best_of(eos=True, masked=True, penalty=True, backwards=False, scores=True):
    def n_best(translator, text, n, length_penalty):
        row = translator.tokenizer.encode(text) + [translator.eos] * eos
        with torch.no_grad():
            context = translator.model.encode(torch.tensor([row]))

        def step(prefixes):
            logits = translator.model.decode(prefixes, context.expand(len(prefixes), -1, -1))[:, -1]
            if masked:
                logits[:, [translator.pad, translator.bos]] = -math.inf
            return logits.log_softmax(-1)

        longest = min(2 * len(row) + 20, translator.model.config.max_len - 1)
        found = beam_search(step, translator.bos, translator.eos, n, longest, length_penalty if penalty else 0.0)
        pairs = [(translator.tokenizer.decode([i for i in h.ids if i < translator.pad]), h.score * (1 if scores else len(h.ids) ** length_penalty))
                 for h in found]
        return pairs[::-1] if backwards else pairs
    return n_best


def test_right_answers_are_right():
    assert right("28.padding", (15 / 54, 5 / 44)) and right("28.lines", _lines(keep=None)) and right("28.n-best", _best_of())


WRONG = [
    ("28.padding", [(5 / 44, 15 / 54), (15 / 39, 5 / 39), (15 / 54, 15 / 54), 15 / 54, (39 / 54, 39 / 44)]),
    ("28.lines", [
        _lines(), _lines(keep=None, blank=lambda line: not line), _lines(keep=None, split=str.splitlines), _lines(keep=None, one_by_one=True),
        lambda text, translate: "\n".join(translate([line for line in text.split("\n") if line.strip()])), _by_a_table,
        lambda text, translate: "\n".join(translate(text.split("\n"))), _lines(keep=None, split=lambda text: text.strip().split("\n"))]),
    ("28.n-best", [
        _best_of(eos=False), _best_of(masked=False), _best_of(penalty=False), _best_of(backwards=True), _best_of(scores=False),
        lambda translator, text, n, p: [(translator.translate(text, beam_size=n, length_penalty=p), 0.0)] * n,
        lambda translator, text, n, p: _best_of()(translator, text, n, p)[:1]]),
]


@pytest.mark.parametrize("exercise, answer", [(name, answer) for name, answers in WRONG for answer in answers])
def test_wrong_answers_are_told(exercise, answer):
    assert exercise in exercise_ids("28") and not check(exercise, answer)
