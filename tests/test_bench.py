"""Speed, as ratios to the reference libraries: medians of interleaved runs in one process. Run by `make bench`, alone."""
import random
import time

import numpy as np
import pytest
import sacrebleu
import seqeval.metrics
import sklearn.metrics
from speed import ratio

from transformer_course.metrics.classification import classification_report
from transformer_course.metrics.generation import bleu
from transformer_course.metrics.sequence_labeling import span_f1
from transformer_course.toolbox.teddy_world import TeddyWorld

pytestmark = [pytest.mark.bench, pytest.mark.usefixtures("unchecked")]


def test_report_against_sklearn(within):
    rng = np.random.default_rng(0)
    truth, guess = rng.integers(0, 20, 200_000), rng.integers(0, 20, 200_000)
    value = ratio(lambda: classification_report(truth, guess),
                  lambda: sklearn.metrics.classification_report(truth, guess))
    within("classification_report / scikit-learn", value, 1.0)


def test_bleu_against_sacrebleu(within):
    rng = random.Random(0)
    texts = [[rng.choice("abcdefgh") for _ in range(20)] for _ in range(1000)]
    guesses = [[rng.choice("abcdefgh") for _ in range(20)] for _ in range(1000)]
    lines = [" ".join(text) for text in texts], [" ".join(text) for text in guesses]
    value = ratio(lambda: bleu(guesses, [[text] for text in texts]),
                  lambda: sacrebleu.corpus_bleu(lines[1], [lines[0]], tokenize="none", force=True))
    within("bleu / sacrebleu", value, 1.8)


def test_span_f1_against_seqeval(within):
    rng = random.Random(0)
    gold, found = ([[rng.choice(["O", "O", "B-PER", "I-PER", "B-LOC"]) for _ in range(15)] for _ in range(1000)]
                   for _ in range(2))
    value = ratio(lambda: span_f1(gold, found), lambda: seqeval.metrics.f1_score(gold, found))
    within("span_f1 / seqeval", value, 1.0)


def test_ten_thousand_sentences(within):
    start = time.process_time()
    TeddyWorld(0).sentences(10_000)
    within("seconds for 10,000 sentences", time.process_time() - start, 2.0)
