"""Greedy search, beam search and sampling: as exhaustive search, as transformers' generate; known faults; what they refuse."""
import dataclasses
import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from speed import ratio

from transformer_course.toolbox.exercises import check, exercise_ids
from transformer_course.transformer.decoding import (Hypothesis, beam_search, greedy_search, next_token_probabilities, parent_rows,
                                                     sample)

MODULE = "transformer_course.transformer.decoding"
BOS, EOS = 0, 1
PENALTIES = (-1.5, -0.3, 0.0, 0.6, 1.0, 2.0)


# -- plausible answers that are wrong, for each exercise that is checked

def _absolute(log_probs, min_p):
    return log_probs.masked_fill(log_probs < math.log(min_p), -math.inf).softmax(-1)


def _not_scaled(log_probs, min_p):
    probs = log_probs.exp()
    return probs.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), 0.0)


def _best_of_all_rows(log_probs, min_p):
    return log_probs.masked_fill(log_probs < log_probs.max() + math.log(min_p), -math.inf).softmax(-1)


def _filled_with_zero(log_probs, min_p):
    return log_probs.masked_fill(log_probs < log_probs.amax(-1, keepdim=True) + math.log(min_p), 0.0).softmax(-1)


def _repeats(n_off=0, in_place=False, newest_only=False, first_row=False, bos_free=False, twice=False):
    def no_repeat(step, n):
        n = n + n_off

        def wrapped(prefixes):
            log_probs = step(prefixes)
            log_probs = step(prefixes) if twice else log_probs
            log_probs = log_probs if in_place else log_probs.clone()
            for row, prefix in zip(log_probs, prefixes.tolist()):
                prefix = prefix[1:] if bos_free else prefix
                last = prefix[len(prefix) - n + 1:]
                starts = [s for s in range(len(prefix) - n + 1) if prefix[s:s + n - 1] == last]
                for start in starts[-1:] if newest_only else starts:
                    row[prefix[start + n - 1]] = -math.inf
                if first_row:
                    break
            return log_probs
        return wrapped
    return no_repeat


def _keys(noise):
    def draw(log_probs, k, generator):
        return (log_probs + noise(log_probs.shape, generator)).topk(k).indices.tolist()
    return draw


def _uniform(shape, generator):
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def _with_replacement(log_probs, k, generator):
    return torch.multinomial(log_probs.exp(), k, replacement=True, generator=generator).tolist()


def _global_generator(log_probs, k, generator):
    return (log_probs - torch.log(-torch.log(torch.rand(log_probs.shape, dtype=torch.float64)))).topk(k).indices.tolist()


WRONG = [
    ("27.break-even", [math.log(5 / 4) / math.log(5 / 8), math.log(8 / 5) / math.log(5 / 4), 4 / 5, math.log(5 / 4)]),
    ("27.min-p", [_absolute, _not_scaled, _best_of_all_rows, _filled_with_zero]),
    ("27.no-repeat", [_repeats(n_off=1), _repeats(in_place=True), _repeats(newest_only=True), _repeats(first_row=True),
                      _repeats(bos_free=True), _repeats(twice=True), lambda step, n: step]),
    ("27.gumbel", [_keys(lambda shape, g: torch.randn(shape, generator=g, dtype=torch.float64)), _keys(_uniform),
                   _keys(lambda shape, g: torch.log(-torch.log(_uniform(shape, g)))), _with_replacement, _global_generator]),
]


@pytest.mark.parametrize("exercise, answer", [(name, answer) for name, answers in WRONG for answer in answers])
def test_wrong_answers_are_told(exercise, answer):
    assert exercise in exercise_ids("27") and not check(exercise, answer)


# -- models that are tables, and slow references

class Table:
    """For every prefix a random distribution of its own; `calls` keeps what the step was asked."""

    def __init__(self, seed, vocab, max_len, spread=1.0, rarer=0.0, holes=0.0):
        generator = torch.Generator().manual_seed(seed)
        self.tables, self.calls = [], []
        for t in range(max_len):
            logits = spread * torch.randn((vocab,) * (t + 1), generator=generator, dtype=torch.float64)
            logits[..., EOS] -= rarer
            gone = torch.rand(logits.shape, generator=generator) < holes
            gone[..., -1] = False  # something is always possible
            self.tables.append(logits.masked_fill(gone, -math.inf).log_softmax(-1))

    def step(self, prefixes):
        self.calls.append(prefixes)
        table = self.tables[prefixes.shape[1] - 1]
        return table[tuple(prefixes[:, 1:].T)].expand(len(prefixes), -1)


def constant(*probs):
    return lambda prefixes: torch.tensor([probs], dtype=torch.float64).log().expand(len(prefixes), -1)


def every_sentence(step, eos, max_len, ids=()):
    """All sequences that end, with the logarithms of their steps."""
    for i, log_prob in enumerate(step(torch.tensor([[BOS, *ids]]))[0].tolist()):
        if i == eos or len(ids) + 1 == max_len:
            yield [*ids, i], [log_prob]
        elif log_prob > -math.inf:
            yield from (([*rest], [log_prob, *logs]) for rest, logs in every_sentence(step, eos, max_len, (*ids, i)))


def exhaustive(step, eos, max_len, penalty):
    """(ids, score) of every possible sequence, best first."""
    found = [(ids, math.fsum(logs) / len(ids) ** penalty) for ids, logs in every_sentence(step, eos, max_len)]
    return sorted((f for f in found if f[1] > -math.inf), key=lambda f: -f[1])


def slow_beam(step, bos, eos, size, max_len, penalty, *, stop=None, copies=False, width=None, unfinished=True, off=0,
              finish_at_any_rank=False, finished_runs_on=False):
    """Beam search with lists and no early stop; the keywords make the known faults. Gives (ids, score), best first."""
    running, finished = [([bos], 0.0)] * (size if copies else 1), []
    for length in range(1, max_len + 1):
        candidates = [([*ids, i], total + log_prob) for ids, total in running
                      for i, log_prob in enumerate(step(torch.tensor([ids]))[0].tolist()) if log_prob > -math.inf]
        candidates.sort(key=lambda c: -c[1])
        candidates = candidates[:width and width * size]
        top = candidates if finish_at_any_rank else candidates[:size]
        finished += [(ids[1:], total / (length + off) ** penalty) for ids, total in top
                     if ids[-1] == eos or (length == max_len and unfinished)]
        running = [c for c in candidates if c[0][-1] != eos or finished_runs_on][:size]
        if not running or stop and stop(candidates, finished, size, length, max_len, penalty):
            break
    return sorted(finished, key=lambda f: -f[1])[:size]


def same(found, expected):
    return ([h.ids for h in found] == [ids for ids, _ in expected]
            and all(math.isclose(h.score, score, abs_tol=1e-10) for h, (_, score) in zip(found, expected)))


# -- agreement with the slow references

@given(st.integers(0, 999), st.integers(2, 4), st.integers(1, 5), st.sampled_from(PENALTIES), st.sampled_from([0.0, 0.3]))
def test_a_wide_beam_is_exhaustive_search(seed, vocab, max_len, penalty, holes):
    table = Table(seed, vocab, max_len, holes=holes)
    best = exhaustive(table.step, EOS, max_len, penalty)
    found = beam_search(table.step, BOS, EOS, vocab ** max_len, max_len, penalty)
    assert same(found, best)
    assert same(beam_search(table.step, BOS, EOS, vocab ** (max_len - 1), max_len, penalty)[:1], best[:1])
    greedy = greedy_search(table.step, BOS, EOS, max_len)
    assert found[0].score >= greedy.score / len(greedy.ids) ** penalty - 1e-12


@given(st.integers(0, 999), st.integers(2, 5), st.integers(1, 5), st.integers(1, 5), st.sampled_from(PENALTIES),
       st.sampled_from([-2.0, 0.0, 2.0]), st.sampled_from([0.0, 0.4]))
def test_equals_the_loop_that_never_stops_early(seed, vocab, max_len, size, penalty, rarer, holes):
    table = Table(seed, vocab, max_len, rarer=rarer, holes=holes)
    assert same(beam_search(table.step, BOS, EOS, size, max_len, penalty), slow_beam(table.step, BOS, EOS, size, max_len, penalty))


@given(st.integers(0, 999), st.integers(2, 5), st.integers(1, 6))
def test_a_beam_of_one_is_greedy_search(seed, vocab, max_len):
    table = Table(seed, vocab, max_len)
    greedy, ids = greedy_search(table.step, BOS, EOS, max_len), []
    while len(ids) < max_len and ids[-1:] != [EOS]:
        ids.append(int(table.step(torch.tensor([[BOS, *ids]]))[0].argmax()))
    assert greedy.ids == ids and beam_search(table.step, BOS, EOS, 1, max_len) == [greedy]
    assert sample(table.step, BOS, EOS, max_len, temperature=0, top_k=3, top_p=0.5) == greedy


@given(st.integers(0, 999), st.integers(1, 5), st.sampled_from(PENALTIES))
def test_what_step_is_asked(seed, size, penalty):
    """One call a step, for at most `size` different prefixes, each one id longer than one of the call before."""
    table = Table(seed, 4, 5)
    beam_search(table.step, BOS, EOS, size, 5, penalty)
    calls = table.calls
    assert calls[0].tolist() == [[BOS]] and len(calls) <= 5
    for t, call in enumerate(calls):
        assert call.dtype == torch.int64 and call.device.type == "cpu" and call.shape[1] == t + 1 and 1 <= len(call) <= size
        assert len({tuple(p) for p in call.tolist()}) == len(call) and (call[:, 0] == BOS).all() and not (call[:, 1:] == EOS).any()
        if t:
            assert torch.equal(calls[t - 1][parent_rows(call, calls[t - 1])], call[:, :-1])


def test_it_stops_as_soon_as_nothing_can_change():
    calls = []

    def step(prefixes):
        calls.append(len(prefixes))
        return constant(0.05, 0.9, 0.05)(prefixes)

    for penalty, longest in ((0.0, 3), (-1.0, 2), (1.0, 50)):
        calls.clear()
        beam_search(step, BOS, EOS, 2, 50, penalty)
        assert len(calls) <= longest


# -- the known faults

def _top_ended(candidates, finished, size, length, max_len, penalty):
    return candidates[0][0][-1] == EOS


def _enough_finished(candidates, finished, size, length, max_len, penalty):
    return len(finished) >= size


def _as_if_it_ended_now(candidates, finished, size, length, max_len, penalty):
    """The default of transformers: a running hypothesis is taken to have its final length."""
    running = [total for ids, total in candidates if ids[-1] != EOS]
    kept = sorted((score for _, score in finished), reverse=True)[:size]
    return len(kept) == size and bool(running) and running[0] / length ** penalty <= kept[-1]


def _as_if_the_shortest(candidates, finished, size, length, max_len, penalty):
    """A bound that is right for positive penalties only."""
    running = [total for ids, total in candidates if ids[-1] != EOS]
    kept = sorted((score for _, score in finished), reverse=True)[:size]
    return len(kept) == size and bool(running) and running[0] / max_len ** penalty <= kept[-1]


def disagreements(search, penalties=PENALTIES):
    """On how many searches in random trees a beam search, given as (step, bos, eos, size, max_len, penalty), is not what it should be."""
    count = 0
    for seed, (size, penalty) in enumerate(itertools.product((1, 2, 3), penalties)):
        for again, (spread, rarer) in enumerate([(1.0, 0.0), (1.0, 1.0), (4.0, 0.0)]):
            step = Table(10 * seed + again, 4, 5, spread, rarer).step
            count += not agrees(search, step, size, 5, penalty)
    return count + sum(not agrees(search, late_end, 2, 30, penalty) for penalty in penalties)


def late_end(prefixes):
    """EOS is likely at once, hardly at the second step, and nearly sure at the third; far below the largest length."""
    rows = [[0.001, 0.5, 0.499], [0.0, 0.005, 0.995], [0.1, 0.8, 0.1]]
    return torch.tensor([rows[min(prefixes.shape[1], 3) - 1]] * len(prefixes), dtype=torch.float64).log()


def agrees(search, step, size, max_len, penalty):
    found = [Hypothesis(*found) for found in search(step, BOS, EOS, size, max_len, penalty)]
    return same(found, slow_beam(step, BOS, EOS, size, max_len, penalty))


FAULTS = {
    "stops when the top beam has ended": {"stop": _top_ended},
    "stops when as many have finished as wanted": {"stop": _enough_finished},
    "bounds by the length now": {"stop": _as_if_it_ended_now},
    "bounds by the longest, whatever the penalty": {"stop": _as_if_the_shortest},
    "starts with copies of one beam": {"copies": True},
    "takes only as many candidates as beams": {"width": 1},
    "drops what is unfinished at max_len": {"unfinished": False},
    "does not count EOS in the length": {"off": -0.999},
    "counts BOS in the length": {"off": 1},
    "lets finished ones run on": {"finished_runs_on": True},
    "lets candidates finish that are not among the best": {"finish_at_any_rank": True},
}


def test_this_chapters_search_has_no_fault():
    assert disagreements(lambda *a: [(h.ids, h.score) for h in beam_search(*a)]) == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen(fault):
    assert disagreements(lambda *a: slow_beam(*a, **FAULTS[fault])) > 0


# -- transformers

@pytest.fixture(scope="module")
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(2)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=7, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=BOS, eos_token_id=EOS,
                                       initializer_range=0.4)).eval()
    return model, lambda prefixes: model(prefixes).logits[:, -1].log_softmax(-1)


@pytest.fixture(scope="module")
def t5():
    from transformers import T5Config, T5ForConditionalGeneration
    torch.manual_seed(2)
    model = T5ForConditionalGeneration(T5Config(vocab_size=7, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, pad_token_id=BOS,
                                                eos_token_id=EOS, decoder_start_token_id=BOS, tie_word_embeddings=False)).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(std=0.35)
    source = torch.tensor([[5, 4, 2, 1]])
    return model, lambda prefixes: model(input_ids=source.expand(len(prefixes), -1), decoder_input_ids=prefixes).logits[:, -1].log_softmax(-1)


def generated(model, ids, max_len, **options):
    """What `generate` returns: [(ids, score)], cut after EOS; the score is None without beams."""
    options = {"eos_token_id": EOS, "pad_token_id": BOS, "max_new_tokens": max_len, "return_dict_in_generate": True,
               "output_scores": True, **options}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    start = 1 if model.config.is_encoder_decoder else ids.shape[1]
    rows = [row[start:].tolist() for row in out.sequences]
    rows = [row[:row.index(EOS) + 1] if EOS in row else row for row in rows]
    scores = out.sequences_scores.tolist() if getattr(out, "sequences_scores", None) is not None else [None] * len(rows)
    return [(row[:max_len], score) for row, score in zip(rows, scores)]


def gap(found, expected):
    """Largest difference of the scores, infinite where ids differ."""
    if [h.ids for h in found] != [ids for ids, _ in expected]:
        return math.inf
    return max(abs(h.score - score) for h, (_, score) in zip(found, expected))


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_beam_search_equals_generate(parity, request, kind):
    """The length counts what is generated, EOS included, for either kind of model."""
    model, step = request.getfixturevalue(kind)
    lengths = set()
    for size, penalty, max_len in [(3, 0.6, 1), *itertools.product((2, 5), (-1.0, 0.0, 2.0), (6,))]:
        ids = torch.tensor([[BOS]]) if kind == "gpt2" else torch.tensor([[5, 4, 2, 1]])
        expected = generated(model, ids, max_len, num_beams=size, num_return_sequences=size, length_penalty=penalty,
                             early_stopping="never", do_sample=False)
        found = beam_search(step, BOS, EOS, size, max_len, penalty)
        lengths |= {len(h.ids) for h in found if max_len > 1}
        parity(f"{MODULE}.beam_search", "transformers", gap(found, expected), 2e-5,
               "ids and scores of generate: GPT-2 and T5 with random weights, 2 to 5 beams, penalties from -1 to 2, float32")
    assert len(lengths) > 1  # not all alike


def test_greedy_search_equals_generate(parity, gpt2):
    model, step = gpt2
    different = 0
    for start in range(7):
        found = greedy_search(lambda prefixes: step(torch.cat([prefixes[:, :1] * 0 + start, prefixes[:, 1:]], 1)), BOS, EOS, 8)
        (expected, _), = generated(model, torch.tensor([[start]]), 8, do_sample=False)
        parity(f"{MODULE}.greedy_search", "transformers", float(sum(a != b for a, b in zip(found.ids, expected))
                                                                + abs(len(found.ids) - len(expected))), 0.0,
               "ids of generate: GPT-2 with random weights, from each first id")
        different += found.ids[-1] == EOS
    assert 0 < different


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"top_k": 4}, {"top_p": 0.8}, {"temperature": 1.5, "top_k": 6, "top_p": 0.6}])
def test_one_seed_draws_what_generate_draws(parity, gpt2, options):
    model, step = gpt2
    for seed in range(5):
        torch.manual_seed(seed)
        (expected, _), = generated(model, torch.tensor([[BOS]]), 8, do_sample=True, **{"top_k": 0, "top_p": 1.0, **options})
        found = sample(step, BOS, EOS, 8, generator=torch.Generator().manual_seed(seed), **options)
        parity(f"{MODULE}.sample", "transformers", float(found.ids != expected), 0.0,
               "ids of generate from the same seed: temperature, top-k, top-p, all three; GPT-2 with random weights")


@given(st.integers(0, 999), st.integers(1, 30), st.floats(0.05, 5), st.integers(1, 40), st.floats(1e-6, 1.0))
def test_distributions_equal_the_warpers(parity, seed, vocab, temperature, top_k, top_p):
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
    log_probs = torch.randn(3, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).log_softmax(-1)
    warpers = {"temperature": (temperature, TemperatureLogitsWarper), "top_k": (top_k, TopKLogitsWarper), "top_p": (top_p, TopPLogitsWarper)}
    for names in (["temperature"], ["top_k"], ["top_p"], ["temperature", "top_k", "top_p"]):
        scores = log_probs
        for name in names:
            scores = warpers[name][1](warpers[name][0])(None, scores)
        ours = next_token_probabilities(log_probs, **{name: warpers[name][0] for name in names})
        expected = scores.softmax(-1)
        assert torch.equal(ours == 0, expected == 0)
        parity(f"{MODULE}.next_token_probabilities", "transformers", (ours - expected).abs().max().item(), 1e-12,
               "TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper and their chain, float64")


# -- sampling

@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"temperature": 3.0}, {"top_k": 2}, {"top_p": 0.75},
                                     {"temperature": 2.0, "top_k": 4, "top_p": 0.9}])
def test_ids_come_as_often_as_they_should(options):
    step = constant(0.4, 0.1, 0.3, 0.15, 0.05)
    probs = next_token_probabilities(step(torch.tensor([[BOS]]))[0], **options).numpy()
    generator = torch.Generator().manual_seed(1)
    counts = Counter(sample(step, BOS, EOS, 1, generator=generator, **options).ids[0] for _ in range(600))
    seen = np.array([counts[i] for i in range(5)])
    assert (seen[probs == 0] == 0).all()
    assert chisquare(seen[probs > 0], 600 * probs[probs > 0]).pvalue > 0.001


def test_whole_sequences_come_as_often_as_they_should():
    table = Table(4, 3, 3)
    probs = {tuple(ids): math.exp(math.fsum(logs)) for ids, logs in every_sentence(table.step, EOS, 3)}
    generator = torch.Generator().manual_seed(0)
    drawn = [sample(table.step, BOS, EOS, 3, generator=generator) for _ in range(1000)]
    counts = Counter(tuple(h.ids) for h in drawn)
    assert set(counts) <= set(probs) and math.isclose(sum(probs.values()), 1.0)
    assert chisquare([counts[ids] for ids in probs], [1000 * p for p in probs.values()]).pvalue > 0.001
    assert all(math.isclose(h.score, math.log(probs[tuple(h.ids)]), abs_tol=1e-9) for h in drawn[:50])


def test_the_score_of_a_sample_is_the_models():
    """Before temperature and filters, so that it can be compared."""
    step = constant(0.25, 0.25, 0.5)
    assert math.isclose(sample(step, BOS, EOS, 2, top_k=1).score, 2 * math.log(0.5))
    assert math.isclose(sample(step, BOS, EOS, 2, temperature=0).score, 2 * math.log(0.5))


def test_random_numbers_come_from_the_generator():
    table, before = Table(0, 5, 5), torch.get_rng_state()
    drawn = [sample(table.step, BOS, EOS, 5, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1, 2, 3)]
    assert drawn[0] == drawn[1] and len({tuple(h.ids) for h in drawn}) > 2 and torch.equal(torch.get_rng_state(), before)
    sample(table.step, BOS, EOS, 5)
    assert not torch.equal(torch.get_rng_state(), before)
    torch.set_rng_state(before)


# -- filters, by hand and at their ends

@pytest.mark.parametrize("options, expected", [
    ({}, [0.5, 0.3, 0.2]), ({"top_k": 9}, [0.5, 0.3, 0.2]), ({"top_k": 1}, [1, 0, 0]), ({"top_p": 1.0}, [0.5, 0.3, 0.2]),
    ({"top_p": 1e-12}, [1, 0, 0]), ({"top_p": 0.5}, [1, 0, 0]), ({"top_p": 0.8}, [0.625, 0.375, 0]), ({"top_p": 0.81}, [0.5, 0.3, 0.2]),
    ({"temperature": 0}, [1, 0, 0]), ({"temperature": 0.0, "top_p": 0.9}, [1, 0, 0]), ({"temperature": 1e-30}, [1, 0, 0]),
    ({"temperature": 1e30}, [1 / 3] * 3), ({"top_k": 2, "top_p": 0.6}, [1, 0, 0]), ({"temperature": 1e30, "top_k": 2}, [0.5, 0.5, 0]),
    ({"temperature": 1e30, "top_p": 0.6}, [0.5, 0.5, 0]),
])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_filters_by_hand(options, expected, dtype, tolerance):
    if tolerance > 1e-3 and options.get("top_p") in (0.5, 0.8):  # what is rounded to 8 bits reaches 0.8 or does not
        options = options | {"top_p": options["top_p"] - 0.02}
    log_probs = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log().to(dtype)
    probs = next_token_probabilities(log_probs, **options)
    assert probs.dtype == (dtype if dtype == torch.float64 else torch.float32)
    assert torch.allclose(probs.double(), torch.tensor(expected, dtype=torch.float64), atol=tolerance)


def test_order_of_the_filters_and_ties():
    """Top-p counts what temperature and top-k have left; of equals the lower ids stay."""
    log_probs = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert (next_token_probabilities(log_probs, temperature=3.0, top_p=0.69) > 0).tolist() == [True, True, True, False]
    assert (next_token_probabilities(log_probs, top_p=0.69) > 0).tolist() == [True, True, False, False]
    assert (next_token_probabilities(log_probs, top_k=3, top_p=0.75) > 0).tolist() == [True, True, False, False]
    flat = torch.zeros(2, 6)
    for options in ({"top_k": 3}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.6}):
        assert (next_token_probabilities(flat, **options) > 0).tolist() == [[True] * 3 + [False] * 3] * 2
    assert next_token_probabilities(flat, temperature=0)[0].tolist() == [1, 0, 0, 0, 0, 0]


def test_logits_do_as_well_and_rows_are_independent():
    logits = 5 * torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    options = {"temperature": 0.8, "top_k": 5, "top_p": 0.7}
    whole = next_token_probabilities(logits, **options)
    assert torch.allclose(whole, next_token_probabilities(logits.log_softmax(-1), **options), atol=1e-12)
    assert all(torch.equal(whole[i, j], next_token_probabilities(logits[i, j], **options)) for i in range(2) for j in range(3))
    assert torch.allclose(whole.sum(-1), torch.ones(2, 3, dtype=torch.float64))


# -- ends of the range

def test_ties_go_to_the_better_beam_and_the_lower_id():
    flat = constant(*[1 / 8] * 8)
    assert greedy_search(flat, 7, 5, 3).ids == [0, 0, 0]
    assert [h.ids for h in beam_search(flat, 7, 5, 3, 2)] == [[0, 0], [0, 1], [0, 2]]
    assert [h.ids for h in beam_search(flat, 7, 0, 2, 3)] == [[0], [1, 0]]  # finished earlier, so better here
    thirds = constant(1 / 3, 1 / 3, 1 / 3)
    assert [h.ids for h in beam_search(thirds, 0, 2, 3, 2, 1.0)] == [[2], [0, 0], [0, 1]]  # one score: first what finished earlier


def levels(seed, vocab, holes):
    """A step with few different log-probabilities, all exact in binary: ties within a row, and of sums across the beams."""
    table = torch.randint(-3, 0, (5, vocab, vocab), generator=torch.Generator().manual_seed(seed)) / 4
    gone = torch.rand(table.shape, generator=torch.Generator().manual_seed(seed)) < holes
    gone[..., -1] = False
    table = table.masked_fill(gone, -math.inf)
    return lambda prefixes: table[prefixes.shape[1] - 1, prefixes[:, -1]]


def topk_that_prefers(order):
    """`topk` as PyTorch promises it, no more: of equals it takes, and lists first, what is earlier in `order`."""
    def topk(scores, k, dim=-1):
        assert dim in (-1, scores.dim() - 1)
        values, at = scores[..., order].sort(dim=-1, descending=True, stable=True)
        return values[..., :k], order[at[..., :k]]
    return topk


@pytest.mark.parametrize("vocab", [6, 13])
@pytest.mark.parametrize("order", ["PyTorch's", "lowest first", "highest first", "any"])
def test_ties_do_not_depend_on_what_topk_takes(monkeypatch, order, vocab):
    """Of equals at the edge of topk the lower ids stay, behind each beam, and what is impossible does not come."""
    orders = {"lowest first": torch.arange(vocab), "highest first": torch.arange(vocab).flip(0),
              "any": torch.randperm(vocab, generator=torch.Generator().manual_seed(0))}
    if order in orders:
        for owner in (torch, torch.Tensor):
            monkeypatch.setattr(owner, "topk", topk_that_prefers(orders[order]))
    for seed, size, holes in itertools.product(range(6), (1, 2, 3, 4), (0.0, 0.5, 0.9)):
        step = levels(seed, vocab, holes)
        assert same(beam_search(step, BOS, EOS, size, 5), slow_beam(step, BOS, EOS, size, 5, 0.0))


def test_ties_in_a_large_vocabulary():
    """PyTorch's own topk, which does not promise which of equals it takes."""
    flat = torch.full((1, 20_000), -1.0)
    flat[0, :3] = -2.0
    assert [h.ids for h in beam_search(lambda prefixes: flat.expand(len(prefixes), -1), 0, 1, 4, 2)] == [[3, i] for i in (3, 4, 5, 6)]


@pytest.mark.parametrize("search", [lambda *a: [greedy_search(*a)], lambda *a: beam_search(*a[:3], 3, a[3]),
                                    lambda *a: [sample(*a, generator=torch.Generator().manual_seed(0))]])
def test_what_is_impossible_is_not_chosen(search):
    def one_way(prefixes):  # 2, 3, EOS, and a dead end behind 4
        rows = {1: [0, 0, 1, 0, 0], 2: [0, 0, 0, 1, 0], 3: [0, 1, 0, 0, 0]}
        return torch.tensor([rows[prefixes.shape[1]]] * len(prefixes)).double().log()

    assert search(one_way, BOS, EOS, 9) == [Hypothesis([2, 3, EOS], 0.0)]
    nothing = lambda prefixes: torch.full((len(prefixes), 4), -math.inf)  # noqa: E731
    assert search(nothing, BOS, EOS, 2) == [Hypothesis([0, 0], -math.inf)]


def test_a_dead_end_is_left_for_what_is_possible():
    def step(prefixes):  # after 2, which is likelier, nothing is possible
        rows = {(): [0.0, 0.0, 0.9, 0.1], (2,): [0, 0, 0, 0], (3,): [0, 1, 0, 0]}
        return torch.tensor([rows[tuple(p[1:])] for p in prefixes.tolist()], dtype=torch.float64).log()

    (found,) = beam_search(step, BOS, EOS, 4, 5)
    assert found.ids == [3, EOS] and math.isclose(found.score, math.log(0.1))


def test_small_and_odd_cases():
    step = constant(0.2, 0.5, 0.3)
    assert [h.ids for h in beam_search(step, BOS, EOS, 2, 1)] == [[1], [2]] and greedy_search(step, BOS, EOS, 5).ids == [1]
    assert len(beam_search(step, BOS, EOS, 50, 2)) == 1 + 2 * 3                      # a beam wider than the vocabulary
    assert beam_search(constant(1.0), 0, 0, 4, 3) == [Hypothesis([0], 0.0)]          # a vocabulary of one, EOS is BOS
    assert greedy_search(constant(0.7, 0.3), 0, 0, 5).ids == [0]                     # BOS itself ends nothing
    assert greedy_search(constant(0.3, 0.7), 0, 0, 3).ids == [1, 1, 1]               # max_len is final
    assert greedy_search(step, 99, EOS, 3).ids == [1]                                # BOS need not be an id that step scores
    found = beam_search(step, BOS, EOS, 3, 3)
    assert isinstance(found, list) and all(type(i) is int for h in found for i in h.ids) and all(type(h.score) is float for h in found)


def test_whole_numbers_of_numpy_do(unchecked):
    zero, one, three = map(np.int64, (0, 1, 3))
    step = constant(0.2, 0.5, 0.3)
    assert greedy_search(step, zero, one, three).ids == [1]
    assert beam_search(step, zero, one, three, three) == beam_search(step, 0, 1, 3, 3)
    assert sample(step, zero, one, three, top_k=one).ids == [1]
    assert len(beam_search(constant(*[1 / 300] * 300), 0, 1, np.uint8(200), np.uint8(1))) == 200  # twice 200 is no uint8
    for half in (np.float32(0.5), np.float64(0.5)):
        found = beam_search(step, 0, 1, 2, 3, half)
        assert found == beam_search(step, 0, 1, 2, 3, 0.5) and all(type(h.score) is float for h in found)
        assert torch.equal(next_token_probabilities(torch.zeros(3), half, None, half), next_token_probabilities(torch.zeros(3), 0.5, None, 0.5))


def test_a_temperature_too_small_for_the_dtype_is_no_nan(unchecked):
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert next_token_probabilities(torch.tensor([0.0, 0.0, -1.0], dtype=dtype), 5e-324).tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("search", [greedy_search, lambda *a: beam_search(*a[:3], 3, a[3])])
def test_a_step_may_write_into_its_prefixes(search):
    table = Table(0, 4, 4)

    def scribbling(prefixes):
        said = table.step(prefixes.clone())
        prefixes.fill_(3)
        return said

    assert search(scribbling, BOS, EOS, 4) == search(table.step, BOS, EOS, 4)


def test_a_hypothesis_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Hypothesis([1], 0.0).score = 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_other_precisions(dtype):
    """Sums are in double precision, whatever a step is given in."""
    table = Table(3, 5, 6)
    found = beam_search(lambda prefixes: table.step(prefixes).to(dtype), BOS, EOS, 3, 6, 1.0)
    for h in found:
        logs = [table.step(torch.tensor([[BOS, *h.ids[:t]]]))[0, i].to(dtype).item() for t, i in enumerate(h.ids)]
        assert math.isclose(h.score, math.fsum(logs) / len(h.ids), abs_tol=1e-12)
    assert sample(lambda prefixes: table.step(prefixes).to(dtype), BOS, EOS, 6, top_p=0.9).ids


def test_log_probs_a_rounding_above_zero_pass():
    assert greedy_search(lambda prefixes: torch.tensor([[3e-7, -20.0]]), 0, 0, 3) == Hypothesis([0], 0.0)


def test_no_gradient_is_recorded_and_the_default_device_does_not_matter():
    weight = torch.zeros(3, requires_grad=True)

    def step(prefixes):
        assert not torch.is_grad_enabled() and prefixes.device.type == "cpu"
        return (weight.expand(len(prefixes), -1) * 1).log_softmax(-1)

    with torch.device("meta"):
        assert greedy_search(step, 0, 1, 2).ids == [0, 0]
        assert len(beam_search(step, 0, 1, 3, 2)) == 3
        assert len(sample(step, 0, 1, 2, top_k=2, top_p=0.9, generator=torch.Generator(device="cpu").manual_seed(0)).ids) > 0
    assert torch.is_grad_enabled()


# -- a memory that follows the beams

class Memory:
    """A step whose answer depends on a memory of what was read; `rows` says which old row each prefix continues."""

    def __init__(self, rows):
        self.rows, self.previous, self.state = rows, None, torch.zeros(1, 6, dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(6, 6, generator=generator, dtype=torch.float64)
        self.mix = torch.randn(6, 6, generator=generator, dtype=torch.float64)

    def __call__(self, prefixes):
        if self.previous is not None:
            self.state = self.state.index_select(0, self.rows(prefixes, self.previous))
        self.previous = prefixes
        self.state = torch.tanh(self.state @ self.mix + self.inputs[prefixes[:, -1]])
        return (2 * self.state).log_softmax(-1)

    def from_the_start(self, prefixes):
        state = torch.zeros(len(prefixes), 6, dtype=torch.float64)
        for column in prefixes.T:
            state = torch.tanh(state @ self.mix + self.inputs[column])
        return (2 * state).log_softmax(-1)


def follows(rows):
    memory = Memory(rows)
    return beam_search(memory, BOS, EOS, 4, 7, 1.0) == beam_search(memory.from_the_start, BOS, EOS, 4, 7, 1.0)


def test_a_memory_must_be_reordered():
    assert follows(parent_rows)
    assert not follows(lambda prefixes, previous: torch.arange(len(prefixes)) % len(previous))           # not at all
    assert not follows(lambda prefixes, previous: parent_rows(prefixes, previous).flip(0))               # the wrong way round
    assert not follows(lambda prefixes, previous: parent_rows(prefixes, previous).sort().values)         # without the order


@given(st.integers(0, 99), st.integers(1, 6), st.integers(1, 5))
def test_parent_rows(seed, rows, length):
    generator = torch.Generator().manual_seed(seed)
    previous = torch.unique(torch.randint(0, 4, (rows, length), generator=generator), dim=0)
    chosen = torch.randint(0, len(previous), (4,), generator=generator)
    prefixes = torch.cat([previous[chosen], torch.randint(0, 4, (4, 1), generator=generator)], 1)
    assert torch.equal(parent_rows(prefixes, previous), chosen)


# -- what they refuse

good = constant(0.2, 0.5, 0.3)
SEARCHES = [greedy_search, lambda step, bos, eos, max_len: beam_search(step, bos, eos, 2, max_len), sample]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("change, error, says", [
    ({"bos": -1}, ValueError, r"bos \(-1\)"), ({"eos": -1}, ValueError, r"eos \(-1\)"), ({"max_len": 0}, ValueError, r"max_len \(0\)"),
    ({"max_len": 2.5}, ValueError, "max_len"), ({"bos": None}, ValueError, "bos"), ({"eos": "1"}, ValueError, "eos"),
    ({"eos": True}, ValueError, "eos"), ({"eos": 3}, ValueError, r"eos \(3\) must be one of the 3 ids"),
    ({"step": torch.zeros(3)}, TypeError, "step"), ({"step": lambda p: [0.0]}, TypeError, "step must return a tensor"),
    ({"step": lambda p: p}, TypeError, "step must return a tensor"),
    ({"step": lambda p: torch.zeros(1, 3, device="meta")}, TypeError, "step must return .* not one on the meta device"),
    ({"step": lambda p: torch.zeros(3)}, ValueError, r"step returned shape \(3,\)"),
    ({"step": lambda p: good(p)[None]}, ValueError, "step returned shape"),
    ({"step": lambda p: good(p).repeat(2, 1)}, ValueError, r"must return \(1, vocab\)"),
    ({"step": lambda p: torch.zeros(len(p), 0)}, ValueError, "step returned shape"),
    ({"step": lambda p: torch.tensor([[-1.0, 2.0, -3.0]])}, ValueError, "step returned 2, which is no log-probability"),
    ({"step": lambda p: torch.tensor([[0.2, 0.5, 0.3]])}, ValueError, "log_softmax"),
    ({"step": lambda p: torch.tensor([[-1.0, math.nan, -3.0]])}, ValueError, "step returned nan"),
    ({"step": lambda p: torch.tensor([[-1.0, math.inf, -3.0]])}, ValueError, "step returned inf"),
])
def test_wrong_input(unchecked, search, change, error, says):
    arguments = {"step": good, "bos": 0, "eos": 1, "max_len": 3} | change
    with pytest.raises(error, match=says):
        search(**arguments)


@pytest.mark.parametrize("change, says", [
    ({"beam_size": 0}, r"beam_size \(0\)"), ({"beam_size": 2.0}, "beam_size"), ({"beam_size": True}, "beam_size"),
    ({"length_penalty": math.nan}, "length_penalty"), ({"length_penalty": math.inf}, "length_penalty"),
    ({"length_penalty": "1"}, "length_penalty"), ({"length_penalty": None}, "length_penalty"), ({"length_penalty": 1e6}, "length_penalty"),
    ({"length_penalty": -1e6}, "length_penalty"),
])
def test_wrong_input_to_beam_search(unchecked, change, says):
    with pytest.raises(ValueError, match=says):
        beam_search(**{"step": good, "bos": 0, "eos": 1, "beam_size": 2, "max_len": 3} | change)


@pytest.mark.parametrize("change, error, says", [
    ({"temperature": -0.1}, ValueError, r"temperature \(-0.1\)"), ({"temperature": math.nan}, ValueError, "temperature"),
    ({"temperature": math.inf}, ValueError, "temperature"), ({"temperature": None}, ValueError, "temperature"),
    ({"top_k": 0}, ValueError, r"top_k \(0\)"), ({"top_k": 1.5}, ValueError, "top_k"), ({"top_p": 0}, ValueError, r"top_p \(0\)"),
    ({"top_p": 1.1}, ValueError, "top_p"), ({"top_p": -0.5}, ValueError, "top_p"), ({"top_p": math.nan}, ValueError, "top_p"),
    ({"top_p": True}, ValueError, "top_p"), ({"generator": 3}, TypeError, "generator"),
])
def test_wrong_input_to_sample(unchecked, change, error, says):
    with pytest.raises(error, match=says):
        sample(good, 0, 1, 3, **change)


def test_wrong_input_to_the_helpers(unchecked):
    for wrong in (torch.tensor([math.nan, 0.0]), torch.tensor([math.inf, 0.0]), torch.tensor(1.0), torch.zeros(2, 0)):
        with pytest.raises(ValueError, match="log_probs"):
            next_token_probabilities(wrong)
    for wrong in (None, [0.5], np.zeros(3), torch.tensor([1, 2]), torch.tensor([True]), torch.zeros(3, device="meta")):
        with pytest.raises(TypeError, match="log_probs must be a tensor of floating-point numbers"):
            next_token_probabilities(wrong)
    assert next_token_probabilities(torch.tensor([-math.inf, -math.inf])).tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match="extends no row"):
        parent_rows(torch.tensor([[0, 2, 3]]), torch.tensor([[0, 3]]))
    with pytest.raises(ValueError, match="one id longer"):
        parent_rows(torch.tensor([[0, 2, 3]]), torch.tensor([[0, 2, 3]]))
    with pytest.raises(TypeError, match="previous must be a tensor, not NoneType"):
        parent_rows(torch.tensor([[0, 2]]), None)
    with pytest.raises(TypeError, match="prefixes must be a tensor, not ndarray"):
        parent_rows(np.zeros((1, 2)), torch.tensor([[0]]))


# -- speed

@pytest.mark.bench
def test_speed_against_generate(unchecked, within, gpt2):
    model, step = gpt2
    ids = torch.tensor([[BOS]])
    value = ratio(lambda: beam_search(step, BOS, EOS, 4, 12), lambda: generated(model, ids, 12, num_beams=4, use_cache=False, do_sample=False,
                                                                                 early_stopping="never", length_penalty=0.0), rounds=9)
    within("beam search, 4 beams / transformers without a cache", value, 1.0)


@pytest.mark.bench
def test_speed_of_the_candidates_of_a_large_vocabulary(unchecked, within):
    """What a search adds, against the log_softmax that every step needs anyway."""
    logits = torch.randn(8, 32_000)
    logits[:, EOS] = -20
    value = ratio(lambda: beam_search(lambda p: logits[:len(p)].log_softmax(-1), BOS, EOS, 8, 10),
                  lambda: [logits.log_softmax(-1) for _ in range(10)])
    within("beam search, 8 beams, 32,000 ids / log_softmax", value, 6.0)
