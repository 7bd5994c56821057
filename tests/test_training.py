"""The loss and the schedule of chapter 26: equal to PyTorch's and the paper's; known faults; what is refused; two processes."""
import json
import math
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from chapters import chapters
from hypothesis import given
from hypothesis import strategies as st
from speed import ratio
from torch import nn
from torch.nn import functional as F

from transformer_course.transformer.training import cross_entropy, noam_schedule, smooth_labels
from transformer_course.transformer.transformer import shift_right

MODULE = "transformer_course.transformer.training"


# -- wrong answers to the exercises

def _gradient(q=lambda n, t, e: [e / n + (1 - e) * (v == t) for v in range(n)], sign=1, stable=True):
    def answer(logits, target, epsilon):
        top = max(logits) if stable else 0.0
        powers = [math.exp(z - top) for z in logits]
        return [sign * (power / sum(powers) - share) for power, share in zip(powers, q(len(logits), target, epsilon))]
    return answer


def _entropy(shares):
    return -sum(q * math.log(q) for q in shares if q > 0)


WRONG = [
    ("26.peak", [lambda d, w: (w, d ** -0.5 * w ** -1.5), lambda d, w: (w, (d * w) ** 0.5), lambda d, w: (d, (d * w) ** -0.5),
                 lambda d, w: (4000, (d * 4000) ** -0.5), lambda d, w: (d * w) ** -0.5]),
    ("26.floor", [lambda n, e: 0.0, lambda n, e: _entropy([1 - e] + [e / (n - 1)] * (n - 1)), lambda n, e: _entropy([1 - e] + [e / n] * (n - 1)),
                  lambda n, e: -math.log(1 - e + e / n), lambda n, e: -(1 - e + e / n) * math.log(1 - e + e / n) - (n - 1) * e / n * math.log(e / n)]),
    ("26.gradient", [_gradient(sign=-1), _gradient(stable=False), _gradient(q=lambda n, t, e: [1.0 * (v == t) for v in range(n)]),
                     _gradient(q=lambda n, t, e: [(1 - e) if v == t else e / (n - 1) for v in range(n)]),
                     _gradient(q=lambda n, t, e: [(1 - e) if v == t else e / n for v in range(n)])]),
    ("26.combine", [lambda m, c: sum(m) / len(m), lambda m, c: sum(a * b for a, b in zip(m, c)) / max(sum(c), 1),
                    lambda m, c: sum(a * b for a, b in zip(m, c) if b) / sum(c),
                    lambda m, c: sum(a for a, b in zip(m, c) if b) / max(sum(b > 0 for b in c), 1),
                    lambda m, c: sum(a * b for a, b in zip(m, c) if a == a) / max(sum(c), 1)]),
]


def test_the_variants_of_the_gradient_are_right_where_nothing_is_changed():
    from transformer_course.toolbox.exercises import check
    assert check("26.gradient", _gradient())
    for exercise, answers in WRONG:
        for answer in answers:
            assert not check(exercise, answer), exercise


# -- agreement with PyTorch

def random_places(shape, vocab, seed, dtype=torch.float64, ignored=0.3):
    """Logits that require gradients, and targets of which some are ignored, but not all."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(*shape, vocab, generator=generator, dtype=torch.float64)
    targets = torch.randint(vocab, shape, generator=generator)
    leave = torch.rand(shape, generator=generator) < ignored
    leave.view(-1)[0] = False
    return logits.to(dtype).requires_grad_(), targets.masked_fill(leave, -100)


def differences(loss, logits, targets, epsilon, reference=None):
    """How far value and gradient are from PyTorch's."""
    exact = logits.detach().to(reference or logits.dtype).requires_grad_()
    theirs = F.cross_entropy(exact.flatten(0, -2), targets.flatten(), label_smoothing=epsilon)
    ours = loss(logits, targets, epsilon)
    (a,), (b,) = torch.autograd.grad(ours, logits), torch.autograd.grad(theirs, exact)
    return (ours - theirs).abs().item(), (a - b).abs().max().item()


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(2, 9), st.floats(0, 1), st.integers(0, 99))
def test_equals_torch(parity, shape, vocab, epsilon, seed):
    logits, targets = random_places(shape, vocab, seed)
    parity(f"{MODULE}.cross_entropy", "torch", max(differences(cross_entropy, logits, targets, epsilon)), 1e-12,
           "values and gradients: 1 to 3 leading dimensions, smoothing 0 to 1, ignored targets, float64")


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 1e-5), (torch.float16, 1e-5)])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_other_precisions(dtype, tolerance, epsilon):
    """Statistics in float32: a half's loss is as exact as that of its float32 copy."""
    logits, targets = random_places((4, 9), 1000, 0, dtype)
    value, gradient = differences(cross_entropy, logits, targets, epsilon, reference=torch.float32)
    assert cross_entropy(logits, targets, epsilon).dtype == torch.float32
    assert value < tolerance and gradient < (tolerance if dtype == torch.float32 else 1e-3)  # gradients are rounded to the half


def test_halves_are_summed_in_float32():
    """The mean of many losses; summed in bfloat16 it would be off by a percent."""
    logits, targets = random_places((5000,), 50, 0, torch.bfloat16, ignored=0.0)
    exact = F.cross_entropy(logits.double(), targets).item()
    assert abs(cross_entropy(logits, targets).item() - exact) < 1e-4 * exact
    assert abs(F.cross_entropy(logits, targets).item() - exact) > 1e-4 * exact


@given(st.integers(2, 12), st.floats(0, 1), st.booleans(), st.integers(0, 99))
def test_smooth_labels_are_distributions(parity, classes, epsilon, others_only, seed):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (3, 4), generator=generator)
    q = smooth_labels(targets, classes, epsilon, others_only)
    assert q.shape == (3, 4, classes) and torch.allclose(q.sum(-1), torch.ones(3, 4), atol=1e-6) and (q >= -1e-7).all()
    rest = epsilon / (classes - 1 if others_only else classes)
    others = q[F.one_hot(targets, classes) == 0]
    assert torch.allclose(others, torch.full_like(others, rest), atol=1e-7)
    if not others_only:
        logits = torch.randn(12, classes, generator=generator)
        gap = F.cross_entropy(logits, q.view(12, classes)) - F.cross_entropy(logits, targets.flatten(), label_smoothing=epsilon)
        parity(f"{MODULE}.smooth_labels", "torch", gap.abs().item(), 1e-5, "as soft targets, against label_smoothing, float32")


def test_smoothing_in_known_numbers():
    assert smooth_labels(torch.tensor(2), 5, 0.1).tolist() == pytest.approx([0.02, 0.02, 0.92, 0.02, 0.02])
    assert smooth_labels(torch.tensor(2), 5, 0.1, others_only=True).tolist() == pytest.approx([0.025, 0.025, 0.9, 0.025, 0.025])
    assert smooth_labels(torch.tensor([1]), 3, 0.0).tolist() == [[0, 1, 0]]


def test_the_smoothed_loss_is_two_terms_and_its_minimum_is_the_smoothed_target():
    logits, targets = random_places((20,), 7, 0)
    kept = targets != -100
    uniform = -logits.log_softmax(-1).mean(-1)[kept].mean()
    assert torch.isclose(cross_entropy(logits, targets, 0.2), 0.8 * cross_entropy(logits, targets) + 0.2 * uniform)
    best = smooth_labels(torch.tensor([3]), 7, 0.2).double().log().requires_grad_()
    loss = cross_entropy(best, torch.tensor([3]), 0.2)
    assert torch.autograd.grad(loss, best)[0].abs().max() < 1e-7
    assert torch.isclose(loss, -(best.exp() * best).sum(), atol=1e-7)


# -- known faults

def keeps_its_promises(loss):
    """What a smoothed loss over padded batches must do: the names of the properties that fail."""
    failed = []
    logits, targets = random_places((4, 5), 7, 0)
    rows, answers = logits.detach()[targets != -100], targets[targets != -100]
    exact = sum((smooth_labels(t, 7, 0.1).double() * -row.log_softmax(-1)).sum() for row, t in zip(rows, answers)) / len(answers)
    if not torch.isclose(loss(rows, answers, 0.1), exact, atol=1e-6):
        failed.append("denominator of the smoothing")
    if not torch.isclose(loss(rows, answers, 0.0), F.cross_entropy(rows, answers)):
        failed.append("without smoothing")
    spoiled = logits.detach().clone()
    spoiled[targets == -100] = 50 * torch.arange(7.0, dtype=torch.float64)
    spoiled.requires_grad_()
    value = loss(spoiled, targets, 0.1)
    if not torch.isclose(value, loss(rows, answers, 0.1)):
        failed.append("padding has influence")
    if torch.autograd.grad(value, spoiled)[0][targets == -100].abs().max() != 0:
        failed.append("padding is trained")
    nothing = loss(logits, torch.full((4, 5), -100), 0.1)
    if not (nothing == 0 and nothing.requires_grad):
        failed.append("nothing to count")
    return failed


def variant(share=lambda v: 1 / v, others=False, leak=False, divide="kept", guard=True):
    """The loss with something changed: how the rest is spread, what padding does, what is divided by."""
    def loss(logits, targets, epsilon):
        log_p, kept = logits.log_softmax(-1), targets != -100
        chosen = -log_p.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        total = -log_p.sum(-1) - (chosen if others else 0)
        uniform = total * share(logits.shape[-1])
        hard = (chosen * kept).sum()
        soft = (uniform if leak else uniform * kept).sum()
        count = {"kept": kept.sum(), "all": torch.tensor(kept.numel()), "rows": torch.tensor(len(kept))}[divide]
        return ((1 - epsilon) * hard + epsilon * soft) / (count.clamp(min=1) if guard else count)
    return loss


def test_the_loss_keeps_its_promises():
    assert keeps_its_promises(cross_entropy) == [] == keeps_its_promises(variant())


@pytest.mark.parametrize("loss, fails", [
    (variant(others=True, share=lambda v: 1 / (v - 1)), "denominator of the smoothing"),   # right, but another definition
    (variant(share=lambda v: 1 / (v - 1)), "denominator of the smoothing"),
    (variant(others=True, share=lambda v: 1 / (v - 2)), "denominator of the smoothing"),
    (variant(others=True), "denominator of the smoothing"),                                # the notes' vector: it sums to 1 - eps/V
    (variant(leak=True), "padding has influence"),
    (variant(leak=True), "padding is trained"),
    (variant(divide="all"), "padding has influence"),
    (variant(divide="rows"), "padding has influence"),
    (variant(guard=False), "nothing to count"),
    (lambda logits, targets, e: F.cross_entropy(logits.flatten(0, -2), targets.flatten(), label_smoothing=e), "nothing to count"),
    (lambda logits, targets, e: cross_entropy(logits, targets, 0.1), "without smoothing"),
    (lambda logits, targets, e: cross_entropy(logits, targets, e, ignore_index=-1) if (targets != -100).all() else
     cross_entropy(logits, targets.clamp(min=0), e), "padding has influence"),             # -1 for -100: padding is a token
])
def test_faulty_losses_are_caught(loss, fails):
    assert fails in keeps_its_promises(loss)


def test_broken_logits_of_ignored_places_do_not_reach_anything():
    logits = torch.tensor([[0.0, 1.0], [math.nan, math.inf]], requires_grad=True)
    loss = cross_entropy(logits, torch.tensor([1, -100]), 0.1)
    loss.backward()
    assert loss.isfinite() and logits.grad[0].isfinite().all() and (logits.grad[1] == 0).all()


def test_a_word_that_is_ruled_out_costs_nothing_until_it_is_smoothed():
    logits, targets = torch.tensor([[0.0, 0.0, -math.inf]]), torch.tensor([0])
    assert cross_entropy(logits, targets).item() == pytest.approx(math.log(2))
    assert cross_entropy(logits, targets, 0.1).item() == math.inf == F.cross_entropy(logits, targets, label_smoothing=0.1).item()


def test_another_index_can_be_ignored():
    logits, targets = random_places((6,), 5, 0, ignored=0.0)
    targets[2:4] = 0
    assert torch.isclose(cross_entropy(logits, targets, 0.1, ignore_index=0), F.cross_entropy(
        logits, targets, ignore_index=0, label_smoothing=0.1))
    assert cross_entropy(logits, targets.int(), 0.1) == cross_entropy(logits, targets, 0.1)
    assert cross_entropy(logits[0], targets[0]) == F.cross_entropy(logits[:1], targets[:1])  # one place, no leading dimension


def test_short_whole_numbers_and_numbers_of_other_kinds_do(unchecked):
    """In uint8 there are no 300 classes, and -100 is 156; a rate of numpy's half precision is coarse."""
    logits, targets = torch.randn(2, 300, generator=torch.Generator().manual_seed(0)), torch.tensor([200, 156])
    for dtype in (torch.uint8, torch.int16, torch.uint16):
        assert torch.isclose(cross_entropy(logits, targets.to(dtype)), F.cross_entropy(logits, targets))
        assert smooth_labels(targets.to(dtype), 300, 0.1).argmax(-1).tolist() == [200, 156]
    assert cross_entropy(logits, targets, Fraction(1, 10)) == cross_entropy(logits, targets, 0.1)
    assert torch.equal(smooth_labels(targets, 300, Fraction(1, 10)), smooth_labels(targets, 300, 0.1))
    assert noam_schedule(512, 4000, np.float16(1))(np.int64(3)) == noam_schedule(512)(3)


def one_shift(reads, labels):
    """Whether the decoder, at each kept place, reads the target before the one that it is to say."""
    target = torch.tensor([[5, 6, 7, 2, -100]])
    read, said = reads(target), labels(target)
    kept = said != -100
    history = [1, *target[0].tolist()]
    return all(read[0, place] == history[place] and said[0, place] == target[0, place] for place in range(5) if kept[0, place])


def test_the_shift_happens_once():
    def shift(target):
        return shift_right(target.clamp(min=0), 1)

    def same(target):
        return target

    assert one_shift(shift, same)
    assert not one_shift(same, same)                                                  # not at all: the model reads the answer
    assert not one_shift(shift, lambda t: F.pad(t[:, 1:], (0, 1), value=-100))        # twice: it learns the token after the next
    assert not one_shift(lambda t: shift(shift(t)), same)


# -- the schedule

@given(st.integers(1, 2048), st.integers(1, 10_000), st.floats(0, 10), st.integers(1, 200_000))
def test_the_schedule_is_the_papers(d_model, warmup, factor, step):
    expected = factor * d_model ** -0.5 * (step * warmup ** -1.5 if step < warmup else step ** -0.5)
    assert noam_schedule(d_model, warmup, factor)(step) == pytest.approx(expected, rel=1e-12)


def test_the_schedule_equals_transformers_inverse_square_root(parity):
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    for d_model, warmup in ((512, 4000), (37, 50)):
        theirs = transformers.get_inverse_sqrt_schedule(optimizer, warmup).lr_lambdas[0]  # 1 at its peak
        rate = noam_schedule(d_model, warmup)
        gap = max(abs(rate(step) / rate(warmup) - theirs(step)) for step in range(1, 3 * warmup))
        parity(f"{MODULE}.noam_schedule", "transformers", gap, 1e-12, "get_inverse_sqrt_schedule, up to the height of the peak")


@pytest.mark.parametrize("faulty", [
    lambda s: 512 ** -0.5 * min(s ** -0.5, s * 4000 ** -0.5), lambda s: 512 ** -0.5 * max(s ** -0.5, s * 4000 ** -1.5),
    lambda s: 512 ** 0.5 * min(s ** -0.5, s * 4000 ** -1.5), lambda s: 512 ** -0.5 * min((s + 1) ** -0.5, (s + 1) * 4000 ** -1.5),
    lambda s: 512 ** -0.5 * s ** -0.5])
def test_faulty_schedules_are_caught(faulty):
    def is_the_papers(rate):
        return all(math.isclose(rate(s), noam_schedule(512)(s), rel_tol=1e-9) for s in (1, 2, 3999, 4000, 4001, 100_000))
    assert not is_the_papers(faulty) and is_the_papers(lambda s: 512 ** -0.5 * min(s ** -0.5, s * 4000 ** -1.5))


def test_fit_follows_the_schedule():
    from transformer_course.toolbox.training_loop import fit
    model = nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    history = fit(model, [torch.ones(4, 2)], lambda m, x: cross_entropy(m(x), torch.zeros(4, dtype=torch.long)), optimizer,
                  noam_schedule(16, 3, 0.1), steps=7)
    assert history.learning_rates == tuple(noam_schedule(16, 3, 0.1)(step) for step in range(1, 8))


# -- the recipe in two processes, as the chapter prints it

def recipe():
    """The script of the chapter."""
    [chapter] = [c for c in chapters() if c.stem == "26_training"]
    cells = [cell["source"] for cell in chapter.cells("code") if cell["source"].startswith(("DATA_AND_LOSS = ", "SCRIPT = "))]
    space = {}
    for cell in cells:
        exec(cell.split("\nfolder = ")[0], space)
    return space["SCRIPT"]


def test_two_processes_train_as_one_with_the_double_batch(tmp_path):
    """The tolerance: sums over 16 and 32 rows are rounded differently, by 1e-7 of their size, and 30 steps carry that on: losses were 5e-7
    apart and weights 1.2e-7. Biases of keys have a gradient of 0 but for rounding, which Adam makes into steps: they are left out."""
    pytest.importorskip("accelerate", reason="the optional package accelerate is not installed")
    (tmp_path / "recipe.py").write_text(recipe())
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")} | {"OMP_NUM_THREADS": "1"}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    for start, size, name in ((launcher, "16", "two.json"), ([], "32", "one.json")):
        done = subprocess.run([sys.executable, *start, "recipe.py", size, name], cwd=tmp_path, env=own, capture_output=True, text=True,
                              timeout=240)
        assert done.returncode == 0, done.stderr
    two, one = (json.loads((tmp_path / name).read_text()) for name in ("two.json", "one.json"))
    assert len(two["losses"]) == len(one["losses"]) == 30
    assert max(abs(a - b) for a, b in zip(two["losses"], one["losses"])) < 1e-5
    pairs = [(torch.tensor(two["weights"][name]), torch.tensor(one["weights"][name])) for name in one["weights"] if "key.bias" not in name]
    assert len(pairs) > 30 and max((a - b).abs().max().item() for a, b in pairs) < 1e-5


# -- what is refused

ONES = torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.parametrize("call, error, says", [
    (lambda: cross_entropy(torch.zeros(2, 3, 5), torch.zeros(3, 2, dtype=torch.long)), ValueError, r"targets \(3, 2\) must have the shape"),
    (lambda: cross_entropy(torch.zeros(2, 5, 3), ONES), ValueError, r"of logits \(2, 5, 3\) without the last dimension"),  # torch's order
    (lambda: cross_entropy(torch.tensor(1.0), torch.tensor(0)), ValueError, "targets"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES + 5), ValueError, r"targets holds 5, which is no token: with 5 of them, .* 0 to 4"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES - 1), ValueError, "targets holds -1"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES - 100, ignore_index=-1), ValueError, "targets holds -100"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES.float()), TypeError, "targets must be whole numbers, not torch.float32"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES.bool()), TypeError, "targets must be whole numbers"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5, dtype=torch.long), ONES), TypeError, "logits must be floating-point"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES, 1.5), ValueError, r"label_smoothing \(1.5\) must be a number from 0 to 1"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES, -0.1), ValueError, "label_smoothing"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES, math.nan), ValueError, "label_smoothing"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES, True), ValueError, "label_smoothing"),
    (lambda: smooth_labels(ONES, 1, 0.1), ValueError, r"num_classes \(1\) must be a whole number, 2 or more"),
    (lambda: smooth_labels(ONES, 5.0, 0.1), ValueError, "num_classes"),
    (lambda: smooth_labels(ONES + 5, 5, 0.1), ValueError, "targets holds 5"),
    (lambda: smooth_labels(ONES - 100, 5, 0.1), ValueError, "targets holds -100"),
    (lambda: smooth_labels(ONES.float(), 5, 0.1), TypeError, "targets must be whole numbers"),
    (lambda: smooth_labels(ONES, 5, 1.1), ValueError, r"epsilon \(1.1\) must be a number from 0 to 1"),
    (lambda: smooth_labels(ONES, 5, "0.1"), ValueError, "epsilon"),
    (lambda: noam_schedule(0), ValueError, r"d_model \(0\) must be a whole number, 1 or more"),
    (lambda: noam_schedule(512.0), ValueError, "d_model"),
    (lambda: noam_schedule(512, 0), ValueError, "warmup_steps"),
    (lambda: noam_schedule(512, 4000, -1.0), ValueError, "factor"),
    (lambda: noam_schedule(512, 4000, math.inf), ValueError, "factor"),
    (lambda: noam_schedule(512)(0), ValueError, r"step \(0\) must be a whole number, 1 or more"),
    (lambda: noam_schedule(512)(1.5), ValueError, "step"),
    (lambda: noam_schedule(512)("1"), ValueError, "step"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES, ignore_index=None), ValueError, r"ignore_index \(None\) must be a whole number"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES, ignore_index=[1]), ValueError, "ignore_index"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES, ignore_index=True), ValueError, "ignore_index"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES, ignore_index=1.0), ValueError, "ignore_index"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), ONES.to("meta")), TypeError, "targets .* meta"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), (ONES + 156).to(torch.uint8)), ValueError, "targets holds 156"),
    (lambda: smooth_labels(ONES.to("meta"), 5, 0.1), TypeError, "targets .* meta"),
    (lambda: smooth_labels(ONES, 5, 0.1, others_only="no"), TypeError, r"others_only \('no'\) must be True or False"),
])
def test_wrong_arguments(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call()


# -- speed

@pytest.mark.bench
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_speed_against_torch(unchecked, within, epsilon):
    logits, targets = random_places((32, 32), 8000, 0, torch.float32, ignored=0.2)

    def train(loss):
        logits.grad = None
        loss().backward()

    value = ratio(lambda: train(lambda: cross_entropy(logits, targets, epsilon)),
                  lambda: train(lambda: F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=epsilon)))
    within(f"cross_entropy, smoothing {epsilon}, forward and backward / torch", value, 3.0)
