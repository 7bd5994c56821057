"""Chapter 07 against sacreBLEU, rouge-score, NLTK and PyTorch, against known faults, and given the wrong things."""
import math
import subprocess
import sys
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from nltk.translate.metrics import alignment_error_rate as nltk_aer
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from transformer_course.metrics import generation as ours
from transformer_course.metrics.generation_exercises import EXERCISES
from transformer_course.toolbox.exercises import check

MODULE = "transformer_course.metrics.generation"
CORPORA = "random corpora: 1 to 4 texts of 0 to 9 tokens, Hangul among them; 1 to 3 references each, some empty"
MODES = "every smoothing, with and without a value and effective order; orders 1 to 5"
TEXTS = "random texts of 0 to 9 tokens, Hangul among them; n from 1 to 4"
LOGITS = "random logits in float64, float32, bfloat16 and float16; 0 to 3 batch axes; ignored targets"

# BLEU ---------------------------------------------------------------------------------------------------------------

tokens = st.lists(st.sampled_from(["a", "b", "c", "곰", "."]), max_size=9)


@st.composite
def corpora(draw):
    """(hypotheses, references); the references of a text are often its hypothesis with some tokens changed."""
    hypotheses = draw(st.lists(tokens, min_size=1, max_size=4))
    references = []
    for hypothesis in hypotheses:
        near = st.just(hypothesis).map(lambda text: draw(st.permutations(text)) if draw(st.booleans()) else text[1:] + text[-1:])
        references.append(draw(st.lists(st.one_of(tokens, near), min_size=1, max_size=3)))
    return hypotheses, references


@st.composite
def options(draw):
    smoothing = draw(st.sampled_from([None, "none", "floor", "add-k", "exp"]))
    value = draw(st.sampled_from([None, 0.01, 0.5, 1, 2 if smoothing == "add-k" else 0.9])) if smoothing in ("floor", "add-k") else None
    return {"smoothing": smoothing, "smoothing_value": value, "effective_order": draw(st.booleans())}


def sacrebleus(hypotheses, references, max_order=4, smoothing=None, smoothing_value=None, effective_order=False):
    """sacreBLEU's score of token lists. It wants the k-th references of all texts together, None where there are fewer."""
    metric = BLEU(tokenize="none", smooth_method=smoothing or "none", smooth_value=smoothing_value,
                  max_ngram_order=max_order, effective_order=effective_order, force=True)
    most = max(map(len, references))
    transposed = [[" ".join(refs[k]) if k < len(refs) else None for refs in references] for k in range(most)]
    return metric.corpus_score([" ".join(h) for h in hypotheses], transposed).score


@given(corpora(), st.integers(1, 5), options())
def test_bleu_is_sacrebleus(parity, corpus, max_order, chosen):
    difference = abs(ours.bleu(*corpus, max_order, **chosen) - sacrebleus(*corpus, max_order, **chosen))
    parity(f"{MODULE}.bleu", "sacrebleu", difference, 1e-9, f"{CORPORA}; {MODES}")


@pytest.mark.parametrize("smoothing", [None, "none", "floor", "add-k", "exp"])
@pytest.mark.parametrize("effective_order", [False, True])
@pytest.mark.parametrize("hypotheses, references", [
    ([[]], [[["a"]]]),                                                     # empty output
    ([["a"]], [[[]]]),                                                     # empty reference
    ([[], ["a", "b"]], [[["a"]], [["a", "b"], ["b"]]]),
    ([["a", "b", "c"]], [[["a", "b", "c"]]]),                              # shorter than 4
    ([["a", "x", "b"]], [[["a", "b", "c", "d"]]]),
    ([["x", "y"]], [[["a", "b"]]]),                                        # nothing in common
    ([["a"] * 8], [[["a"] * 6, ["a"] * 10]]),                              # a tie of lengths
])
def test_bleu_is_sacrebleus_where_counts_are_zero(parity, hypotheses, references, smoothing, effective_order):
    chosen = {"smoothing": smoothing, "effective_order": effective_order}
    difference = abs(ours.bleu(hypotheses, references, **chosen) - sacrebleus(hypotheses, references, **chosen))
    parity(f"{MODULE}.bleu", "sacrebleu", difference, 1e-9, "empty outputs and references, texts shorter than 4, ties of lengths")


@given(corpora(), options())
def test_statistics_add_up_to_the_corpus(corpus, chosen):
    total = sum(ours.bleu_statistics(h, refs) for h, refs in zip(*corpus))
    metric = BLEU(tokenize="none")
    expected = np.sum([metric._compute_segment_statistics(" ".join(h), metric._extract_reference_info([" ".join(r) for r in refs]))
                       for h, refs in zip(*corpus)], axis=0)
    assert total.tolist() == expected.tolist()
    assert ours.bleu_from_statistics(total, **chosen) == ours.bleu(*corpus, **chosen)


@given(tokens, st.integers(1, 6))
def test_every_ngram_is_counted_once(text, n):
    counts = ours.ngram_counts(text, n)
    assert counts.total() == max(len(text) - n + 1, 0)
    assert all(counts[tuple(text[i:i + n])] == sum(text[j:j + n] == text[i:i + n] for j in range(len(text)))
               for i in range(len(text) - n + 1))


def test_ids_score_as_words_do():
    words = [["a", "b", "c", "a", "b"], ["c", "a"]], [[["a", "b", "c", "b"]], [["c", "a"], ["c"]]]
    to_ids = lambda text: [ord(token) for token in text]
    ids = [to_ids(h) for h in words[0]], [[to_ids(r) for r in refs] for refs in words[1]]
    as_arrays = [np.array(h) for h in ids[0]], [[torch.tensor(r) for r in refs] for refs in ids[1]]
    once = (iter(h) for h in ids[0]), ((r for r in refs) for refs in ids[1])
    score = ours.bleu(*words, smoothing="exp")
    assert score == ours.bleu(*ids, smoothing="exp") == ours.bleu(*as_arrays, smoothing="exp") == ours.bleu(*once, smoothing="exp")
    assert ours.rouge_l(torch.tensor([1, 2, 3]), np.array([1, 3])) == (2 / 3, 1.0, 0.8)


# ROUGE --------------------------------------------------------------------------------------------------------------

class Blanks:
    """rouge-score's own tokenizer drops all but a-z and 0-9."""
    def tokenize(self, text):
        return text.split()


def rouge_scores(kind, hypothesis, reference, tokenizer=Blanks()):
    scores = RougeScorer([kind], tokenizer=tokenizer).score(" ".join(reference), " ".join(hypothesis))[kind]
    return scores.precision, scores.recall, scores.fmeasure


@given(tokens, tokens, st.integers(1, 4))
def test_rouge_is_rouge_scores(parity, hypothesis, reference, n):
    for name, kind, found in (("rouge_n", f"rouge{n}", ours.rouge_n(hypothesis, reference, n)),
                              ("rouge_l", "rougeL", ours.rouge_l(hypothesis, reference))):
        difference = np.abs(np.subtract(found, rouge_scores(kind, hypothesis, reference))).max()
        parity(f"{MODULE}.{name}", "rouge-score", difference, 1e-12, TEXTS)


def test_rouge_is_rouge_scores_with_its_own_tokenizer(parity):
    hypothesis, reference = "the bear reads 12 books in the garden".split(), "in the garden the old bear reads 3 books".split()
    for kind, found in (("rouge2", ours.rouge_n(hypothesis, reference, 2)), ("rougeL", ours.rouge_l(hypothesis, reference))):
        difference = np.abs(np.subtract(found, rouge_scores(kind, hypothesis, reference, None))).max()
        parity(f"{MODULE}.rouge_{'n' if kind == 'rouge2' else 'l'}", "rouge-score", difference, 1e-12, "English, its own tokenizer")


def test_korean_is_not_dropped():
    text = "곰 인형이 책을 읽고 있다".split()
    assert rouge_scores("rouge1", text, text, None) == (0, 0, 0)
    assert ours.rouge_n(text, text, 1) == ours.rouge_l(text, text) == (1, 1, 1)


# Perplexity ---------------------------------------------------------------------------------------------------------

@given(st.sampled_from([(4,), (1,), (2, 3), (3, 1, 2), ()]), st.sampled_from(["float64", "float32", "bfloat16", "float16"]),
       st.integers(2, 9), st.integers(0, 99), st.sampled_from([-100, 0]))
def test_perplexity_from_logits_is_torchs(parity, shape, dtype, vocab, seed, ignore_index):
    generator = torch.Generator().manual_seed(seed)
    logits = (4 * torch.randn(*shape, vocab, generator=generator)).to(getattr(torch, dtype))
    targets = torch.randint(0, vocab, shape, generator=generator)
    targets = torch.where(torch.rand(shape, generator=generator) < 0.3, ignore_index, targets)
    if (targets == ignore_index).all():
        with pytest.raises(ValueError, match="no target counts"):
            ours.perplexity_from_logits(logits, targets, ignore_index)
        return
    wide = logits if dtype == "float64" else logits.float()
    expected = math.exp(F.cross_entropy(wide.reshape(-1, vocab), targets.reshape(-1), ignore_index=ignore_index).item())
    found = ours.perplexity_from_logits(logits, targets, ignore_index)
    parity(f"{MODULE}.perplexity_from_logits", "torch", abs(found / expected - 1), 1e-12 if dtype == "float64" else 2e-5, LOGITS)
    kept = targets != ignore_index
    chosen = wide.double().log_softmax(-1)[kept].gather(-1, targets[kept][:, None])[:, 0]
    assert found == pytest.approx(ours.perplexity(chosen), rel=2e-5)


def test_logits_may_need_gradients_and_hold_what_nothing_counts():
    logits = torch.zeros(2, 4, requires_grad=True)
    assert ours.perplexity_from_logits(logits, torch.tensor([0, 1])) == pytest.approx(4)
    with torch.no_grad():
        logits[1] = math.nan
    assert ours.perplexity_from_logits(logits, torch.tensor([0, -100])) == pytest.approx(4)


@pytest.mark.usefixtures("unchecked")
def test_targets_and_logits_of_every_layout():
    logits = np.random.default_rng(0).normal(size=(5, 4))
    ids = np.array([3, 0, 2, 1, 1])
    expected = math.exp(F.cross_entropy(torch.tensor(logits), torch.tensor(ids)).item())
    read_only = logits.copy()
    read_only.setflags(write=False)
    transposed = torch.tensor(logits.T.copy()).T
    assert not transposed.is_contiguous()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (read_only, logits[::-1].copy()[::-1], logits.astype(">f8"), logits.tolist(), transposed):
            assert ours.perplexity_from_logits(x, ids) == pytest.approx(expected, rel=1e-12)
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.uint16, torch.uint64):
        assert ours.perplexity_from_logits(logits, torch.tensor(ids).to(dtype)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("ignore_index", [None, "pad", 0.5, True])
@pytest.mark.usefixtures("unchecked")
def test_the_ignored_index_is_a_whole_number(ignore_index):
    with pytest.raises(TypeError, match="ignore_index must be a whole number"):
        ours.perplexity_from_logits(torch.zeros(2, 5), torch.tensor([0, 1]), ignore_index)


def test_log_probabilities_may_be_anything_that_holds_numbers():
    logs = [-0.5, -1.5]
    for given_ in (iter(logs), tuple(logs), np.float32(logs), torch.tensor(logs).bfloat16(), torch.tensor(logs, requires_grad=True),
                   [torch.tensor(x, requires_grad=True) for x in logs], [np.float64(x) for x in logs]):
        assert ours.perplexity(given_) == pytest.approx(math.e)


def test_impossible_and_very_unlikely_tokens():
    assert ours.perplexity([-1.0, -math.inf]) == ours.perplexity([-800.0, -800.0]) == math.inf
    assert ours.perplexity([0.0, 1e-9]) == 1.0
    assert ours.perplexity([-709.782]) == pytest.approx(math.exp(709.782)) and ours.perplexity([-1e308, -1e308]) == math.inf
    masked = torch.tensor([[0.0, -math.inf], [0.0, 0.0]])
    assert ours.perplexity_from_logits(masked, torch.tensor([0, 1])) == pytest.approx(math.sqrt(2))
    assert ours.perplexity_from_logits(masked, torch.tensor([1, 1])) == math.inf
    assert ours.perplexity_from_logits(torch.tensor([[0.0, 5000.0]]), torch.tensor([0])) == math.inf
    assert ours.perplexity_from_logits(torch.tensor([[0.0, 5000.0]]), torch.tensor([1])) == 1.0


# Alignment ----------------------------------------------------------------------------------------------------------

links = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8)


@given(links, links, st.one_of(st.none(), links))
def test_alignment_error_rate_is_nltks(parity, predicted, sure, possible):
    if not predicted and not sure:
        return
    expected = nltk_aer(sure, predicted, None if possible is None else sure | possible)
    difference = abs(ours.alignment_error_rate(predicted, sure, possible) - expected)
    parity(f"{MODULE}.alignment_error_rate", "nltk", difference, 1e-12, "random links in a 4 by 4 grid, with and without possible ones")


def test_links_may_be_lists_arrays_and_tensors():
    pairs = [[0, 0], [1, 2], [1, 2]]
    assert ours.alignment_error_rate(np.array(pairs), torch.tensor(pairs)) == ours.alignment_error_rate(pairs, pairs) == 0


# What loads ---------------------------------------------------------------------------------------------------------

def test_scores_of_text_load_no_torch():
    program = ("import sys; from transformer_course.metrics.generation import bleu, rouge_l, perplexity; "
               "bleu([['a']], [[['a']]]); rouge_l(['a'], ['a']); perplexity([-1.0]); assert 'torch' not in sys.modules")
    subprocess.run([sys.executable, "-c", program], check=True)


# Known faults -------------------------------------------------------------------------------------------------------

BLEU_CASES = [
    (["a b c d e f".split()], [["a b c d e f".split()]]),
    ([[]], [["a b".split()]]),                                             # no output
    (["a b c".split()], [["a b c".split()]]),                              # fewer than 4 tokens: 0
    (["a x b y".split()], [["a b c d".split()]]),                          # no 2-gram matches: 0
    (["a b c d a b c d".split()], [["a b c d x y z".split(), "w a b c d a b".split()]]),  # clipping: the larger count, not the sum
    (["a b c d e f g h".split()], [["a b c d e f".split(), "a b c d e f g h i j".split()]]),  # a tie of lengths
    (["a b c d e f g h".split()], [["a b c d e f g h i j".split(), "a b c d e f".split()]]),  # the same, the other way round
    (["a b c d e f g h".split()], [["a b c d e f g h i j k l".split(), "a b".split()]]),      # closest, not shortest
    (["a b c d e f g h".split(), "a b c d x".split()], [["a b c d e f g h".split()], ["a b c d e".split()]]),  # sums
    (["a b c d".split(), "w x y z".split()], [["a b c d e f".split()], ["w x".split()]]),     # lengths are summed too
]


def agrees_with_sacrebleu(function, cases=BLEU_CASES):
    """Whether `function(hypotheses, references)` gives sacreBLEU's score, without smoothing, on each case."""
    def same(case):
        try:
            return abs(function(*case) - sacrebleus(*case)) < 1e-9
        except (ZeroDivisionError, ValueError, OverflowError, IndexError):
            return False
    return all(same(case) for case in cases)


def mean_of_sentences(hypotheses, references):
    return float(np.mean([ours.bleu([h], [refs]) for h, refs in zip(hypotheses, references)]))


def mean_of_sentences_that_are_not_zero(hypotheses, references):
    scores = [s for h, refs in zip(hypotheses, references) if (s := ours.bleu([h], [refs]))]
    return float(np.mean(scores)) if scores else 0.0


def variant(count=lambda gram, counts, grams: min(counts[gram], max(g[gram] for g in grams)),
            length=lambda c, lengths: min(lengths, key=lambda r: (abs(r - c), r)),
            log=lambda x: math.log(x) if x else -math.inf,
            penalty=lambda c, r: 1.0 if c > r else math.exp(1 - r / c) if c else 0.0):
    """Corpus BLEU, with one of its parts replaced."""
    def score(hypotheses, references):
        c = sum(map(len, hypotheses))
        r = sum(length(len(h), [len(x) for x in refs]) for h, refs in zip(hypotheses, references))
        logs = []
        for n in range(1, 5):
            matches = total = 0
            for h, refs in zip(hypotheses, references):
                counts, grams = ours.ngram_counts(h, n), [ours.ngram_counts(x, n) for x in refs]
                matches += sum(count(gram, counts, grams) for gram in counts)
                total += counts.total()
            logs.append(log(matches / total if total else 0))
        return 100 * penalty(c, r) * math.exp(sum(logs) / 4)
    return score


BLEU_FAULTS = {
    "mean of sentences": mean_of_sentences,
    "mean of sentences, zeros dropped": mean_of_sentences_that_are_not_zero,
    "not clipped": variant(count=lambda gram, counts, grams: counts[gram] if any(gram in g for g in grams) else 0),
    "clipped by the sum over references": variant(count=lambda gram, counts, grams: min(counts[gram], sum(g[gram] for g in grams))),
    "clipped by each reference in turn": variant(count=lambda gram, counts, grams: sum(min(counts[gram], g[gram]) for g in grams)),
    "clipped by the first reference": variant(count=lambda gram, counts, grams: min(counts[gram], grams[0][gram])),
    "shortest reference": variant(length=lambda c, lengths: min(lengths)),
    "tie to the longer": variant(length=lambda c, lengths: min(lengths, key=lambda r: (abs(r - c), -r))),
    "tie to the first": variant(length=lambda c, lengths: min(lengths, key=lambda r: abs(r - c))),
    "log of zero": variant(log=math.log),
    "zeros left out": variant(log=lambda x: math.log(x) if x else 0.0),
    "an empty output divides by zero": variant(penalty=lambda c, r: math.exp(min(0, 1 - r / c))),
    "no penalty": variant(penalty=lambda c, r: 1.0),
    "penalised when too long": variant(penalty=lambda c, r: math.exp(1 - r / c) if c else 0.0),
}


def test_the_variants_start_from_a_sound_one():
    assert agrees_with_sacrebleu(variant()) and agrees_with_sacrebleu(ours.bleu)


@pytest.mark.parametrize("fault", BLEU_FAULTS)
def test_faulty_bleu_is_caught(fault):
    assert not agrees_with_sacrebleu(BLEU_FAULTS[fault])


ROUGE_CASES = [("c d a b".split(), "a b c d".split()), ("a x b c".split(), "a b y c".split()), ("a a a".split(), "a b".split()), ("a b".split(), "b a a c".split()),
               ("곰 이 자 다".split(), "곰 이 자 다".split()), ([], "a".split()), ("a".split(), [])]


def agrees_with_rouge_score(function, kind):
    def same(hypothesis, reference):
        try:
            return np.allclose(function(hypothesis, reference), rouge_scores(kind, hypothesis, reference), atol=1e-12)
        except ZeroDivisionError:
            return False
    return all(same(*case) for case in ROUGE_CASES)


def scores(hits, hypothesis, reference):
    return hits / max(len(hypothesis), 1), hits / max(len(reference), 1), 2 * hits / max(len(hypothesis) + len(reference), 1)


def english_only(function):
    keep = lambda text: [token for token in text if token.isascii()]
    return lambda hypothesis, reference: function(keep(hypothesis), keep(reference))


def longest_substring(h, r):
    runs = [n for n in range(len(h) + 1) for i in range(len(h) - n + 1) for j in range(len(r) - n + 1) if h[i:i + n] == r[j:j + n]]
    return scores(max(runs, default=0), h, r)


ROUGE_FAULTS = {
    "order ignored, as if each word were a sentence of ROUGE-Lsum": ("rougeL", lambda h, r: scores((Counter(h) & Counter(r)).total(), h, r)),
    "common substring, not subsequence": ("rougeL", longest_substring),
    "precision and recall swapped": ("rougeL", lambda h, r: ours.rouge_l(r, h)),
    "Korean dropped": ("rougeL", english_only(ours.rouge_l)),
    "0/0": ("rougeL", lambda h, r: (ours.rouge_l(h, r)[0], ours.rouge_l(h, r)[1] * len(r) / len(r), ours.rouge_l(h, r)[2])),
    "not clipped": ("rouge1", lambda h, r: scores(sum(token in r for token in h), h, r)),
    "sets": ("rouge1", lambda h, r: scores(len(set(h) & set(r)), set(h), set(r))),
    "Korean dropped from n-grams": ("rouge1", english_only(lambda h, r: ours.rouge_n(h, r, 1))),
}


@pytest.mark.parametrize("fault", ROUGE_FAULTS)
def test_faulty_rouge_is_caught(fault):
    assert agrees_with_rouge_score(ours.rouge_l, "rougeL")
    assert agrees_with_rouge_score(lambda h, r: ours.rouge_n(h, r, 1), "rouge1")
    kind, function = ROUGE_FAULTS[fault]
    assert not agrees_with_rouge_score(function, kind)


def is_perplexity(function):
    """Whether `function(log_probs)` is exp of the mean, never fails, and does not depend on how a text is cut into batches."""
    try:
        long = np.log([1 / 2] * 6 + [1 / 8] * 2)
        return (math.isclose(function([math.log(1 / 7)] * 3), 7) and math.isclose(function(long), 2 ** 1.5)
                and function([-800.0]) == math.inf and function([-math.inf, -1.0]) == math.inf)
    except (OverflowError, ValueError):
        return False


def double_counted(log_probs, window=4, stride=2):
    """Sliding windows; the tokens that two windows share count in both."""
    seen = np.concatenate([np.asarray(log_probs)[i:i + window] for i in range(0, len(log_probs), stride)])
    return ours.perplexity(seen)


@pytest.mark.parametrize("fault", [
    lambda x: math.exp(-np.mean(x)),                                     # stops at a large loss
    lambda x: ours.perplexity(np.mean(x, keepdims=True)) if len(x) < 4 else np.mean(np.exp(-np.asarray(x))),  # mean of exp
    lambda x: np.mean([ours.perplexity(x[:5]), ours.perplexity(x[5:] if len(x) > 5 else x)]),      # mean over batches
    double_counted,
    lambda x: 2 ** -np.mean(x) if np.mean(x) > -700 else math.inf,       # two bases
    lambda x: ours.perplexity(np.maximum(x, -700)),                      # impossible tokens made possible
])
def test_faulty_perplexity_is_caught(fault):
    assert is_perplexity(ours.perplexity)
    with np.errstate(all="ignore"):
        assert not is_perplexity(fault)


def is_perplexity_of_logits(function):
    """Whether padding does not count, batches of unequal length are not averaged, and half precision is widened."""
    logits = torch.linspace(-3, 3, 24).reshape(2, 3, 4).sin() * 4
    targets = torch.tensor([[0, 3, 1], [2, -100, -100]])
    expected = math.exp(F.cross_entropy(logits.reshape(-1, 4), targets.reshape(-1)).item())
    wide = torch.zeros(1, 3000)
    try:
        return (math.isclose(function(logits, targets), expected, rel_tol=1e-5)
                and math.isclose(function(wide.half(), torch.tensor([5])), 3000, rel_tol=1e-4)
                and math.isclose(function(wide.bfloat16(), torch.tensor([5])), 3000, rel_tol=1e-4))
    except (RuntimeError, IndexError):
        return False


def mean_over_rows(logits, targets):
    return float(np.mean([ours.perplexity_from_logits(x, t) for x, t in zip(logits.reshape(-1, *logits.shape[-2:]), targets.reshape(len(logits), -1))]
                         if logits.ndim == 3 else ours.perplexity_from_logits(logits, targets)))


def divided_by_all(logits, targets):
    losses = F.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), targets.reshape(-1), reduction="none")
    return math.exp(losses.mean())


def in_half_precision(logits, targets):
    losses = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
    return math.exp(losses)


@pytest.mark.parametrize("fault", [mean_over_rows, divided_by_all, in_half_precision,
                                   lambda x, t: ours.perplexity_from_logits(x, t.clamp(min=0))])
def test_faulty_perplexity_of_logits_is_caught(fault):
    assert is_perplexity_of_logits(ours.perplexity_from_logits)
    assert not is_perplexity_of_logits(fault)


# The wrong things ---------------------------------------------------------------------------------------------------

CAT = ["the", "cat"]


@pytest.mark.parametrize("hypotheses, references, error, says", [
    ("the cat", [[CAT]], TypeError, "hypotheses must be a list of token lists, one a text, not the string 'the cat'"),
    (["the cat"], [[CAT]], TypeError, "text 0: hypothesis must be a list of tokens, not the string 'the cat'"),
    ([CAT], [["the cat"]], TypeError, "text 0: references must be a list of token lists, not of tokens"),
    ([CAT], ["the cat"], TypeError, "text 0: references must be a list of token lists, not the string 'the cat'"),
    ([CAT], [CAT], TypeError, r"wrap a single reference in a list, \[\['the', 'cat'\]\]"),
    ([[1, 2]], [[1, 2]], TypeError, r"wrap a single reference in a list, \[\[1, 2\]\]"),
    ([CAT, CAT], [[CAT], [CAT, "the cat"]], TypeError, r"text 1: references\[1\] must be a list of tokens, not the string"),
    ([], [], ValueError, "hypotheses is empty"),
    ([CAT, CAT], [[CAT]], ValueError, "for each of the 2 hypotheses, not 1"),
    ([CAT], [[]], ValueError, "text 0: references is empty"),
    ([CAT], [[[1, 2]]], TypeError, r"hypothesis and references\[0\] must all hold strings or all hold ids, not both"),
    ([["a", None]], [[CAT]], TypeError, "hypothesis must hold strings or ids, but holds NoneType"),
    ([[1.5, 2.0]], [[[1, 2]]], TypeError, "hypothesis must hold strings or ids, but holds float"),
    ([[torch.tensor(1)]], [[[1]]], TypeError, "hypothesis must hold strings or ids, but holds Tensor"),
    ([3], [[CAT]], TypeError, "text 0: hypothesis must be a list of tokens, not 3"),
    (None, [[CAT]], TypeError, "hypotheses must be a list of token lists, one a text, not None"),
    ([CAT], None, TypeError, "references must be a list with the references of each text, not None"),
    ([CAT], [None], TypeError, "text 0: references must be a list of token lists, not None"),
    ([CAT], [torch.tensor([1, 2])], TypeError, r"wrap a single reference in a list, \[\[1, 2\]\]"),
    ([CAT], [[[CAT]]], TypeError, r"references\[0\] must hold strings or ids, but holds list"),
    ([{"the", "cat"}], [[CAT]], TypeError, "hypothesis must be a list of tokens, not a set, which has no order"),
    ([CAT], [{"the": 1}], TypeError, "references must be a list of token lists, not a dict, which has no order"),
    ([[True, False]], [[[1, 0]]], TypeError, "hypothesis must hold strings or ids, but holds bool"),
    ([torch.zeros(2, dtype=torch.long, device="meta")], [[[1]]], TypeError, "hypothesis must be .* not a tensor on the meta device"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_corpora_are_refused(hypotheses, references, error, says):
    with pytest.raises(error, match=says):
        ours.bleu(hypotheses, references)


@pytest.mark.parametrize("chosen, error, says", [
    ({"max_order": 0}, ValueError, r"max_order \(0\) must be at least 1"),
    ({"max_order": 2.5}, TypeError, "max_order must be a whole number, not 2.5"),
    ({"smoothing": "epsilon"}, ValueError, r"smoothing \('epsilon'\) must be one of None, 'none', 'floor', 'add-k', 'exp'"),
    ({"smoothing": "exp", "smoothing_value": 0.1}, ValueError, "smoothing_value is for 'floor' and 'add-k', not for 'exp'"),
    ({"smoothing_value": 0.1}, ValueError, "smoothing_value is for 'floor' and 'add-k', not for None"),
    ({"smoothing": "floor", "smoothing_value": 0}, ValueError, r"smoothing_value \(0\) must be a positive number"),
    ({"smoothing": "floor", "smoothing_value": 5}, ValueError, r"smoothing_value \(5\) must be a positive number, at most 1 for 'floor'"),
    ({"smoothing": "add-k", "smoothing_value": math.inf}, ValueError, r"smoothing_value \(inf\) must be a positive number"),
    ({"smoothing": "add-k", "smoothing_value": "1"}, TypeError, "smoothing_value must be a number, not '1'"),
    ({"smoothing": ["exp"]}, ValueError, r"smoothing \(\['exp'\]\) must be one of"),
    ({"smoothing": "add-k", "smoothing_value": math.nan}, ValueError, r"smoothing_value \(nan\) must be a positive number"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_options_are_refused(chosen, error, says):
    with pytest.raises(error, match=says):
        ours.bleu([CAT], [[CAT]], **chosen)


@pytest.mark.parametrize("statistics, error, says", [
    ([4, 8, 4], ValueError, r"a list of 2 \+ 2N counts, not 3"),
    ([1, 2], ValueError, r"a list of 2 \+ 2N counts, not 2"),
    (3, TypeError, r"a list of 2 \+ 2N counts, not 3"),
    ([[1, 2, 3, 4]], TypeError, r"a list of 2 \+ 2N counts, but holds list"),
    (list("4821"), TypeError, "but holds str"),
    ([4, 8, 5, 4], ValueError, r"matches <= n-grams <= output length, not \[4, 8, 5, 4\]"),
    ([0, 8, 4, 4], ValueError, "matches <= n-grams <= output length"),
    ([4, -8, 4, 4], ValueError, "must be whole numbers"),
    ([4, 8, 3.5, 4], ValueError, "must be whole numbers"),
    ([4, math.nan, 4, 4], ValueError, "must be whole numbers"),
    ([math.inf, 8, 4, 4], ValueError, "must be whole numbers"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_statistics_are_refused(statistics, error, says):
    with pytest.raises(error, match=says):
        ours.bleu_from_statistics(statistics)


def test_texts_much_shorter_than_the_ngrams_cost_nothing():
    assert not ours.ngram_counts(CAT, 10 ** 12)


@pytest.mark.parametrize("call, error, says", [
    (lambda: ours.ngram_counts("the cat", 2), TypeError, "tokens must be a list of tokens, not the string 'the cat'"),
    (lambda: ours.ngram_counts(torch.tensor(3), 2), TypeError, "tokens must be a list of tokens, not 3"),
    (lambda: ours.ngram_counts(CAT, 0), ValueError, r"n \(0\) must be at least 1"),
    (lambda: ours.ngram_counts(CAT, True), TypeError, "n must be a whole number, not True"),
    (lambda: ours.rouge_n(CAT, CAT, -1), ValueError, r"n \(-1\) must be at least 1"),
    (lambda: ours.rouge_n("the cat", CAT, 1), TypeError, "hypothesis must be a list of tokens, not the string"),
    (lambda: ours.rouge_l(CAT, b"the cat"), TypeError, "reference must be a list of tokens, not the string"),
    (lambda: ours.rouge_l([CAT], CAT), TypeError, "hypothesis must hold strings or ids, but holds list"),
    (lambda: ours.rouge_l([1, 2], CAT), TypeError, "hypothesis and reference must all hold strings or all hold ids"),
    (lambda: ours.perplexity([]), ValueError, "log_probs is empty"),
    (lambda: ours.perplexity(-1.0), TypeError, "log_probs must be a list with a number per token, not -1.0"),
    (lambda: ours.perplexity([[-1.0, -2.0]]), TypeError, "a number per token, but holds list"),
    (lambda: ours.perplexity([[-1.0], [-1.0, -2.0]]), TypeError, "a number per token, but holds list"),
    (lambda: ours.perplexity(["-1.0"]), TypeError, "a number per token, but holds str"),
    (lambda: ours.perplexity([None]), TypeError, "a number per token, but holds NoneType"),
    (lambda: ours.perplexity({-1.0, -2.0}), TypeError, "not a set, which has no order"),
    (lambda: ours.perplexity(torch.zeros(2, device="meta")), TypeError, "not a tensor on the meta device"),
    (lambda: ours.perplexity([math.inf]), ValueError, "log_probs holds inf"),
    (lambda: ours.perplexity([-1.0, math.nan]), ValueError, "log_probs holds NaN, 1 times"),
    (lambda: ours.perplexity([0.5, 0.25]), ValueError, "log_probs holds 0.5, .* are these probabilities, or losses"),
    (lambda: ours.alignment_error_rate([], []), ValueError, "predicted and sure are both empty"),
    (lambda: ours.alignment_error_rate("0-0 1-1", [(0, 0)]), TypeError, r"predicted must be pairs \(i, j\) of positions, not the string '0-0 1-1'"),
    (lambda: ours.alignment_error_rate(None, [(0, 0)]), TypeError, "predicted must be pairs .* not None"),
    (lambda: ours.alignment_error_rate(np.eye(2, dtype=bool), [(0, 0)]), ValueError, r"pairs .* but holds \[True, False\]"),
    (lambda: ours.alignment_error_rate([(-1, 0)], [(0, 0)]), ValueError, r"pairs .* but holds \(-1, 0\)"),
    (lambda: ours.alignment_error_rate([{0, 1}], [(0, 0)]), ValueError, r"pairs .* but holds \{0, 1\}"),
    (lambda: ours.alignment_error_rate([(0, 0)], ["0-0"]), ValueError, "sure must hold pairs .* but holds '0-0'"),
    (lambda: ours.alignment_error_rate([(0, 0)], [(0, 0)], [(0, 1, "P")]), ValueError, "possible must hold pairs"),
    (lambda: ours.alignment_error_rate([0, 1], [(0, 0)]), ValueError, "predicted must hold pairs .* but holds 0"),
])
@pytest.mark.usefixtures("unchecked")
def test_the_wrong_things_are_refused(call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize("logits, targets, error, says", [
    (torch.zeros(2, 5), torch.tensor([0, 5]), ValueError, "targets go from 0 to 5, but logits are for 0 to 4 and ignore_index is -100"),
    (torch.zeros(2, 5), torch.tensor([0, -1]), ValueError, "targets go from -1 to 0"),
    (torch.zeros(2, 5), torch.tensor([-100, -100]), ValueError, "no target counts: all of 2 are -100"),
    (torch.zeros(0, 5), torch.zeros(0, dtype=torch.long), ValueError, "no target counts: all of 0"),
    (torch.zeros(2, 3, 5), torch.zeros(3, 2, dtype=torch.long), ValueError, r"logits have \(2, 3, 5\) and targets \(3, 2\)"),
    (torch.zeros(2, 5, 3), torch.zeros(2, 3, dtype=torch.long), ValueError, r"logits have \(2, 5, 3\) and targets \(2, 3\)"),
    (torch.tensor(1.0), torch.tensor(0), ValueError, r"logits have \(\) and targets \(\)"),
    (torch.zeros(2, 5).long(), torch.tensor([0, 1]), TypeError, "logits must be floating-point numbers"),
    (torch.zeros(2, 5), torch.tensor([0.0, 1.0]), TypeError, "targets whole ones, not torch.float32 and torch.float32"),
    (torch.zeros(2, 5), torch.tensor([True, False]), TypeError, "targets whole ones, not torch.float32 and torch.bool"),
    (torch.zeros(2, 5), torch.tensor([1j, 0]), TypeError, "targets whole ones, not torch.float32 and torch.complex64"),
    (None, torch.tensor([0, 1]), TypeError, "logits must be a tensor or an array of numbers, not NoneType"),
    (torch.zeros(2, 5), "ab", TypeError, "targets must be a tensor or an array of numbers, not str 'ab'"),
    (torch.zeros(2, 5, device="meta"), torch.tensor([0, 1]), TypeError, "logits is on the meta device"),
    (torch.full((2, 5), math.nan), torch.tensor([0, 1]), ValueError, "logits give NaN"),
    (torch.full((2, 5), -math.inf), torch.tensor([0, 1]), ValueError, "logits give NaN"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_logits_are_refused(logits, targets, error, says):
    with pytest.raises(error, match=says):
        ours.perplexity_from_logits(logits, targets)


# Exercises ----------------------------------------------------------------------------------------------------------

def test_exercises_expect_what_the_libraries_give():
    for case in EXERCISES["07.chrf"]:
        assert CHRF().sentence_score(case.args[0], [case.args[1]]).score == pytest.approx(case.expected), case.says
    scorer = RougeScorer(["rougeLsum"], tokenizer=Blanks())
    for case in EXERCISES["07.rouge-lsum"]:
        hypothesis, reference = ("\n".join(" ".join(text) for text in texts) for texts in case.args)
        found = scorer.score(reference, hypothesis)["rougeLsum"]
        assert (found.precision, found.recall, found.fmeasure) == pytest.approx(case.expected), case.says
    for case in EXERCISES["07.closest-length"]:
        assert BLEU()._get_closest_ref_len(*case.args) == case.expected, case.says


def chrf(hypothesis, reference, beta=2, blanks=False, orders=6, sets=False, average_f=False, always_six=False):
    """The worked solution, with what can go wrong as options."""
    texts = [list(text if blanks else "".join(text.split())) for text in (hypothesis, reference)]
    scores = []
    for n in range(1, orders + 1):
        grams = [ours.ngram_counts(text, n) for text in texts]
        if sets:
            grams = [Counter(set(g)) for g in grams]
        if all(grams) or always_six:
            hits = (grams[0] & grams[1]).total()
            scores.append([hits / max(g.total(), 1) for g in grams])
    combine = lambda p, r: 100 * (1 + beta ** 2) * p * r / (beta ** 2 * p + r) if p + r else 0.0
    if average_f:
        return float(np.mean([combine(p, r) for p, r in scores])) if scores else 0.0
    return float(combine(*np.mean(scores, axis=0))) if scores else 0.0


def lsum(hypothesis, reference, union=True, clip=True):
    """ROUGE-Lsum by trying all subsequences, with what can go wrong as options."""
    from itertools import combinations
    left, hits = Counter(t for text in hypothesis for t in text), 0
    n, m = left.total(), sum(map(len, reference))
    for text in reference:
        found = []
        for output in hypothesis:
            for size in range(min(len(text), len(output)), -1, -1):
                fits = [c for c in combinations(range(len(text)), size) if (rest := iter(output)) and all(text[i] in rest for i in c)]
                if fits:
                    found.append(set(fits[0]))
                    break
        positions = set().union(*found) if union else max(found, key=len, default=set())
        for i in positions:
            if not clip or left[text[i]] > 0:
                left[text[i]] -= 1
                hits += 1
    return hits / n if n else 0.0, hits / m if m else 0.0, 2 * hits / (n + m) if hits else 0.0


def lsum_from_the_output(hypothesis, reference):
    """The union of positions in the output, clipped by the counts of the reference: the wrong way round."""
    p, r, f1 = lsum(reference, hypothesis)
    return r, p, f1


def lsum_of_words(hypothesis, reference):
    """The union of words, not of positions: a word that is there twice counts once."""
    first_of = lambda text: list(dict.fromkeys(text))
    p, r, f1 = lsum([first_of(text) for text in hypothesis], [first_of(text) for text in reference])
    hits = round(p * sum(len(first_of(text)) for text in hypothesis))
    return scores(hits, [t for text in hypothesis for t in text], [t for text in reference for t in text])


def lower(function):
    return lambda h, r: function(h.lower(), r.lower())


def flat(function):
    return lambda hypothesis, reference: function([t for s in hypothesis for t in s], [t for s in reference for t in s])


def test_the_variants_of_answers_start_from_sound_ones():
    assert check("07.chrf", chrf) and check("07.rouge-lsum", lsum)


A_TO_H = "a b c d e f g h".split()


@pytest.mark.parametrize("exercise, wrong", [
    ("07.clipped-counts", [7, 5, 3, 4.5, "4"]),
    ("07.closest-length", [lambda c, lengths: min(lengths), lambda c, lengths: min(lengths, key=lambda r: abs(r - c)),
                           lambda c, lengths: min(lengths, key=lambda r: (abs(r - c), -r)), lambda c, lengths: max(lengths),
                           lambda c, lengths: sum(lengths) / len(lengths), lambda c, lengths: c]),
    ("07.chrf", [lambda h, r: chrf(h, r, beta=1), lambda h, r: chrf(h, r, beta=0.5), lambda h, r: chrf(h, r, blanks=True),
                 lambda h, r: chrf(h, r, sets=True), lambda h, r: chrf(h, r, average_f=True), lambda h, r: chrf(h, r, always_six=True),
                 lambda h, r: chrf(h, r, orders=4), lambda h, r: chrf(h, r) / 100, lambda h, r: chrf(r, h),
                 lambda h, r: chrf(h, r, orders=5), lambda h, r: chrf(h, r, orders=7), lower(chrf), lambda h, r: chrf(h, r) or math.nan,
                 lambda h, r: ours.bleu([list(h)], [[list(r)]])]),
    ("07.rouge-lsum", [flat(ours.rouge_l), lambda h, r: lsum(h, r, union=False), lambda h, r: lsum(h, r, clip=False),
                       lambda h, r: ours.rouge_l(h[0], r[0]), flat(lambda h, r: ours.rouge_n(h, r, 1)), lambda h, r: lsum(r, h),
                       lsum_from_the_output, lsum_of_words]),
    ("07.bits-per-byte", [lambda x, text: -sum(x) / len(text.encode()), lambda x, text: -sum(x) / math.log(2) / len(text),
                          lambda x, text: -sum(x) / math.log(2) / len(x), lambda x, text: math.log2(ours.perplexity(x)),
                          lambda x, text: sum(x) / math.log(2) / len(text.encode()),
                          lambda x, text: -sum(x) / math.log(2) / len(text.encode("utf-16-le")),
                          lambda x, text: -sum(x) / math.log(2) / len(text) / (1 if text.isascii() else 3),
                          lambda x, text: -x[0] * len(x) / math.log(2) / len(text.encode())]),
    ("07.disagreement", [(A_TO_H, A_TO_H, A_TO_H), (A_TO_H, A_TO_H[4:] + A_TO_H[:4], A_TO_H), (A_TO_H, A_TO_H, A_TO_H[:6]), None,
                         (A_TO_H, A_TO_H[::-1], "a b x c d x e f".split()), ("a b c d", "a b c d", "a")]),
])
def test_wrong_answers_are_told_from_right_ones(exercise, wrong):
    assert len(wrong) >= 3
    for answer in wrong:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = check(exercise, answer)
        assert not result and "not yet" in repr(result), answer


@pytest.mark.parametrize("exercise, right", [
    ("07.clipped-counts", [4, 4.0, np.int64(4)]),
    ("07.closest-length", [lambda c, lengths: sorted(sorted(lengths), key=lambda r: abs(r - c))[0],
                           lambda c, lengths: np.sort(lengths)[np.abs(np.sort(lengths) - c).argmin()]]),
    ("07.chrf", [lambda h, r: chrf(h.replace(" ", ""), r.replace(" ", "")), lambda h, r: CHRF().sentence_score(h, [r]).score]),
    ("07.rouge-lsum", [lambda h, r: list(lsum(h, r)), lambda h, r: np.array(lsum(h, r))]),
    ("07.bits-per-byte", [lambda x, text: -np.mean(x) * len(x) / np.log(2) / len(text.encode()),
                          lambda x, text: np.log2(ours.perplexity(x)) * len(x) / len(bytes(text, "utf8")),
                          lambda x, text: -torch.tensor(x, dtype=torch.float64).sum() / math.log(2) / len(text.encode())]),
    ("07.disagreement", [(list(range(16)), [*range(8, 16), *range(8)], [99 if i % 4 == 3 else i for i in range(16)])]),
])
def test_right_answers_in_another_style_are_accepted(exercise, right):
    for answer in right:
        assert check(exercise, answer), check(exercise, answer)


def test_a_disagreement_says_which_half_is_missing():
    only_bleu = check("07.disagreement", (A_TO_H, A_TO_H, A_TO_H[:2]))
    assert len(only_bleu.failures) == 1 and "ROUGE-L puts the second" in only_bleu.failures[0]
