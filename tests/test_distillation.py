"""Distillation: the divergence and the loss against torch, DistilBERT against Hugging Face's, known faults, what is refused, the stored runs."""
import copy
import json
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from speed import ratio
from torch import nn
from torch.nn import functional as F

from transformer_course.bert import _distillation_runs as runs
from transformer_course.bert import _fine_tuning_tasks as fine
from transformer_course.bert._teddy_bert import teddy_bert
from transformer_course.bert.distillation import DistilBert, distillation_loss, kl_divergence
from transformer_course.bert.model import Bert, BertConfig
from transformer_course.toolbox.checkpoints import CheckpointError
from transformer_course.toolbox.exercises import check, exercise_ids

MODULE = "transformer_course.bert.distillation"
TOLERANCE = 1e-4


# -- plausible answers that are wrong, for each exercise that is checked

def _size(pooler=False, segments=False, norms=True, biases=True, positions=True, inner=None):
    def student_size(c, layers):
        d, f = c.d_model, inner or c.d_ff
        tables = (c.vocab_size + positions * c.max_len + segments * c.num_segments) * d + 2 * d * norms
        layer = 4 * d * d + 2 * d * f + biases * (5 * d + f) + 4 * d * norms
        return tables + layers * layer + pooler * (d * d + d)
    return student_size


def _kl(p, q):
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1)


def _cosine(mask=True, one=True, mean=True, detach=True, flat=False, plain=False):
    def cosine_loss(student, teacher, real):
        teacher = teacher.detach() if detach else teacher
        if flat:
            return (1 - F.cosine_similarity(student.flatten(1), teacher.flatten(1), dim=-1)).mean()
        near = (student * teacher).sum(-1) if plain else F.cosine_similarity(student, teacher, dim=-1)
        near = near[real.bool()] if mask else near
        far = 1 - near if one else near
        return far.mean() if mean else far.sum()
    return cosine_loss


def _masked_by_zeros(student, teacher, real):
    return ((1 - F.cosine_similarity(student, teacher.detach(), dim=-1)) * real).mean()


def _fold(row=0, times=1.0, layers=None, in_place=False, position=True):
    def fold_segment(bert):
        if in_place:
            with torch.no_grad():
                bert.embeddings.position.weight += bert.embeddings.segment.weight[0]
        student = DistilBert.from_teacher(bert, layers or range(len(bert.encoder.layers)))
        if not in_place:
            with torch.no_grad():
                table = student.embeddings.position if position else student.embeddings.norm
                (table.weight if position else table.bias).add_(times * bert.embeddings.segment.weight[row])
        return student
    return fold_segment


WRONG = [
    ("41.by-hand", [[0.3466, 0.3466], [0.5, math.inf], [math.inf, 0.3466], [0.3466], [0.3466, 0.0]]),
    ("41.size", [_size(pooler=True), _size(segments=True), _size(norms=False), _size(biases=False), _size(positions=False), _size(inner=3072)]),
    ("41.js", [lambda p, q: (_kl(p, q) + _kl(q, p)) / 2, lambda p, q: _kl(p, (p + q) / 2), lambda p, q: _kl(p, (p + q) / 2) + _kl(q, (p + q) / 2),
               lambda p, q: ((_kl(p, (p + q) / 2) + _kl(q, (p + q) / 2)) / 2 / math.log(2)),
               lambda p, q: ((_kl(p, (p + q) / 2) + _kl(q, (p + q) / 2)) / 2).mean(),
               lambda p, q: (_kl((p + q) / 2, p) + _kl((p + q) / 2, q)) / 2]),
    ("41.cosine", [_cosine(mask=False), _cosine(one=False), _cosine(mean=False), _cosine(detach=False), _cosine(flat=True), _cosine(plain=True),
                   _masked_by_zeros]),
    ("41.fold", [_fold(times=0.0), _fold(row=1), _fold(times=2.0), _fold(layers=(0, 2)), _fold(in_place=True), _fold(position=False)]),
]


@pytest.mark.parametrize("exercise, answer", [(name, answer) for name, answers in WRONG for answer in answers])
def test_wrong_answers_are_told(exercise, answer):
    assert exercise in exercise_ids("41") and not check(exercise, answer)


# -- the divergence

def draw(*shape, seed=0, dtype=torch.float64, size=2.0):
    return (size * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


def theirs(p, q):
    return F.kl_div(q.log(), p, reduction="none").sum(dim=-1)


@given(st.data())
def test_divergence_equals_torch(parity, data):
    classes, seed = data.draw(st.sampled_from([1, 2, 3, 5, 8])), data.draw(st.integers(0, 99))
    shape = [data.draw(st.integers(1, 4)) for _ in range(data.draw(st.integers(0, 3)))]
    size = data.draw(st.sampled_from([0.1, 1.0, 5.0]))
    p, q = (draw(*shape, classes, seed=seed + k, size=size).softmax(dim=-1).requires_grad_() for k in (0, 1000))
    weights = draw(*shape, seed=5)
    ours, wanted = ([y, *torch.autograd.grad((y * weights).sum(), (p, q))] for y in (kl_divergence(p, q), theirs(p, q)))
    assert ours[0].shape == tuple(shape)
    difference = max((a - b).abs().max().item() for a, b in zip(ours, wanted))
    parity(f"{MODULE}.kl_divergence", "torch", difference, 1e-9,
           "values and gradients: 1 to 8 classes, any number of dimensions, float64")


def test_divergence_in_single_and_half_precision(parity):
    p, q = (draw(8, 30522, seed=k, size=1.0, dtype=torch.float32).softmax(dim=-1) for k in (0, 1))
    difference = (kl_divergence(p, q) - theirs(p.double(), q.double())).abs().max().item()
    parity(f"{MODULE}.kl_divergence", "torch", difference, 1e-4, "30,522 classes, float32 against float64")
    for dtype in (torch.float16, torch.bfloat16):
        p, q = (draw(4, 50, seed=k, size=1.0).softmax(dim=-1).to(dtype) for k in (0, 1))
        found = kl_divergence(p, q)
        assert found.dtype == torch.float32
        assert torch.allclose(found, theirs(p.double(), q.double()).float(), atol=1e-5)


@given(st.integers(1, 9), st.integers(0, 9999), st.sampled_from([1e-6, 1e-3, 1.0, 8.0]), st.sampled_from([torch.float32, torch.float64]))
def test_divergence_is_never_below_zero_even_by_rounding(classes, seed, apart, dtype):
    z = draw(20, classes, seed=seed)
    p, q = z.softmax(-1).to(dtype), (z + apart * draw(20, classes, seed=seed + 1)).softmax(-1).to(dtype)
    assert (kl_divergence(p, q) >= 0).all() and (kl_divergence(p, p) == 0).all()


def test_zeros_add_nothing_or_everything():
    assert kl_divergence(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])) == math.inf
    p = torch.tensor([[0.0, 1.0], [0.0, 1.0]], requires_grad=True)
    q = torch.tensor([[0.5, 0.5], [0.0, 1.0]], requires_grad=True)
    found = kl_divergence(p, q)
    assert torch.allclose(found[0], torch.tensor(math.log(2))) and found[1] == 0
    gradients = torch.autograd.grad(found.sum(), (p, q))
    assert all(g.isfinite().all() for g in gradients) and gradients[1].tolist() == [[0, -2], [0, -1]]


def is_a_divergence(kl):
    """What every divergence of probabilities must satisfy; for right and wrong versions alike."""
    p, q = draw(20, 5, seed=1).softmax(-1), draw(20, 5, seed=2).softmax(-1)
    hand = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
    with_zero = torch.tensor([[0.0, 0.5, 0.5]]), torch.tensor([[0.2, 0.4, 0.4]])
    return (abs(kl(*hand).item() - 0.510826) < 1e-5 and abs(kl(*reversed(hand)).item() - 0.368064) < 1e-5 and bool((kl(p, q) > 0).all())
            and kl(p, q).shape == (20,) and abs(kl(*with_zero).item() - math.log(1.25)) < 1e-5 and bool((kl(p, p).abs() < 1e-9).all()))


@pytest.mark.parametrize("wrong", [
    lambda p, q: _kl(q, p), lambda p, q: (_kl(p, q) + _kl(q, p)) / 2, lambda p, q: _kl(p, q) / math.log(2), lambda p, q: -_kl(p, q),
    lambda p, q: (p * (p / q).log()).sum(-1), lambda p, q: F.kl_div(q.log(), p, reduction="none").mean(-1),
    lambda p, q: F.kl_div(q.log(), p, reduction="batchmean"), lambda p, q: F.kl_div(q, p, reduction="none").sum(-1),
    lambda p, q: -(p * q.log()).sum(-1)], ids=["turned", "both", "bits", "sign", "zeros", "mean", "batchmean", "no logarithm", "entropy"])
def test_wrong_divergences_are_caught(wrong):
    assert is_a_divergence(kl_divergence) and not is_a_divergence(wrong)


# -- the loss

def their_loss(student, teacher, labels, temperature, alpha):
    kept = labels != -100
    soft = F.kl_div((student[kept] / temperature).log_softmax(-1), (teacher[kept] / temperature).softmax(-1), reduction="batchmean")
    return alpha * F.cross_entropy(student[kept], labels[kept]) + (1 - alpha) * temperature ** 2 * soft


def case(shape, classes, seed=0, ignored=0.3, dtype=torch.float64):
    student, teacher = draw(*shape, classes, seed=seed, dtype=dtype), draw(*shape, classes, seed=seed + 1, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < ignored] = -100
    labels.view(-1)[0] = 0     # at least one counts
    return student.requires_grad_(), teacher, labels


@given(st.data())
def test_loss_equals_torch(parity, data):
    shape = [data.draw(st.integers(1, 4)) for _ in range(data.draw(st.integers(1, 3)))]
    student, teacher, labels = case(shape, data.draw(st.sampled_from([1, 2, 3, 5, 8])), data.draw(st.integers(0, 99)))
    temperature, alpha = data.draw(st.sampled_from([0.5, 1, 2.0, 10.0])), data.draw(st.sampled_from([0, 0.25, 0.5, 1]))
    ours, wanted = ([y, torch.autograd.grad(y, student)[0]] for y in (
        f(student, teacher, labels, temperature, alpha) for f in (distillation_loss, their_loss)))
    difference = max((a - b).abs().max().item() for a, b in zip(ours, wanted))
    parity(f"{MODULE}.distillation_loss", "torch", difference, 1e-9,
           "values and gradients: any leading shape, labels left out, T from 0.5 to 10, alpha from 0 to 1, float64")


def test_loss_in_single_and_half_precision(parity):
    student, teacher, labels = case((4, 8), 3052, dtype=torch.float32)
    wanted = their_loss(student.double(), teacher.double(), labels, 2.0, 0.5)
    difference = abs(distillation_loss(student, teacher, labels, 2.0, 0.5).item() - wanted.item())
    parity(f"{MODULE}.distillation_loss", "torch", difference, 1e-4, "3,052 classes, float32 against float64")
    for dtype in (torch.float16, torch.bfloat16):
        half = student.detach().to(dtype).requires_grad_()
        loss = distillation_loss(half, teacher.to(dtype), labels)
        assert loss.dtype == torch.float32
        assert abs(loss.item() - their_loss(half.double(), teacher.to(dtype).double(), labels, 2.0, 0.5).item()) < 1e-3
        assert torch.autograd.grad(loss, half)[0].isfinite().all()


def is_a_distillation_loss(loss):
    """The scale, the T², the padding, the gradients: for right and wrong versions alike."""
    for shape, temperature, alpha in (((3, 5), 1.0, 0.0), ((3, 5), 3.0, 0.0), ((7,), 2.0, 0.3), ((2, 3, 4), 2.0, 0.7), ((6,), 1.0, 1.0)):
        for ignored in (0.0, 0.4):
            student, teacher, labels = case(shape, 11, seed=3, ignored=ignored)
            teacher.requires_grad_()
            found, wanted = (f(student, teacher, labels, temperature, alpha) for f in (loss, their_loss))
            if found.shape != () or not torch.allclose(found, wanted, rtol=1e-6):
                return False
            student.grad = teacher.grad = None
            found.backward()
            if (teacher.grad is not None and teacher.grad.any()) or student.grad[labels == -100].any():
                return False
    return True


def mutant(reduction="batchmean", squared=True, masked=True, turned=False, detached=True, hard_hot=False, swapped=False, probabilities=True):
    def loss(student, teacher, labels, temperature, alpha):
        kept = labels != -100
        z_s, z_t = (student[kept], teacher[kept]) if masked else (student, teacher)
        z_t = z_t.detach() if detached else z_t
        z_s, z_t = (z_t, z_s) if turned else (z_s, z_t)
        p = (z_t / temperature).softmax(-1) if probabilities else (z_t / temperature).log_softmax(-1)
        soft = F.kl_div((z_s / temperature).log_softmax(-1), p, reduction=reduction) * (temperature ** 2 if squared else 1)
        hard = F.cross_entropy((student / temperature if hard_hot else student)[kept], labels[kept])
        alpha = 1 - alpha if swapped else alpha
        return alpha * hard + (1 - alpha) * soft
    return loss


def test_the_check_accepts_what_is_right():
    assert is_a_distillation_loss(distillation_loss) and is_a_distillation_loss(mutant())


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("changes", [
    {"reduction": "mean"}, {"reduction": "sum"}, {"masked": False}, {"squared": False}, {"turned": True}, {"detached": False},
    {"hard_hot": True}, {"swapped": True}, {"probabilities": False}], ids=str)
def test_known_faults_of_losses_are_caught(changes):
    assert not is_a_distillation_loss(mutant(**changes))


def test_batchmean_on_sequences_is_a_length_too_large_and_mean_a_vocabulary_too_small():
    student, teacher, labels = case((3, 5), 100, ignored=0.0)
    right = distillation_loss(student, teacher, labels, 2.0, 0.0)
    sequences = F.kl_div((student / 2).log_softmax(-1), (teacher / 2).softmax(-1), reduction="batchmean") * 4
    with pytest.warns(UserWarning, match="batchmean"):
        mean = F.kl_div((student / 2).log_softmax(-1), (teacher / 2).softmax(-1), reduction="mean") * 4
    assert math.isclose(sequences / right, 5, rel_tol=1e-9) and math.isclose(right / mean, 100, rel_tol=1e-9)


def test_where_no_example_counts_the_loss_is_zero_and_its_gradient_too():
    student, teacher, labels = case((2, 3), 4)
    loss = distillation_loss(student, teacher, torch.full_like(labels, -100))
    assert loss.item() == 0 and not torch.autograd.grad(loss, student)[0].any()


def test_what_is_left_out_may_be_anything():
    student, teacher, labels = case((2, 3), 4)
    labels[1, 2] = -100
    spoilt = [x.detach().clone() for x in (student, teacher)]
    for x in spoilt:
        x[1, 2] = math.nan
    assert torch.equal(distillation_loss(*spoilt, labels), distillation_loss(student, teacher, labels))


def test_a_teacher_may_exclude_classes():
    student, teacher, labels = case((3,), 4, ignored=0.0)
    teacher[:, 1] = -math.inf
    labels = torch.zeros_like(labels)
    loss = distillation_loss(student, teacher, labels)
    assert loss.isfinite() and torch.autograd.grad(loss, student)[0].isfinite().all()
    without = student[:, [0, 2, 3]].log_softmax(-1), teacher[:, [0, 2, 3]].log_softmax(-1)
    excluded = student.logsumexp(-1) - student[:, [0, 2, 3]].logsumexp(-1)     # what the student gives to the excluded one
    assert torch.allclose(distillation_loss(student, teacher, labels, 1.0, 0.0),
                          (F.kl_div(*without, reduction="batchmean", log_target=True) + excluded.mean()))


@given(st.integers(0, 9999), st.integers(2, 12))
def test_the_factor_keeps_the_gradient(seed, classes):
    student, teacher = draw(1, classes, seed=seed).requires_grad_(), draw(1, classes, seed=seed + 1)
    slopes = {t: torch.autograd.grad(distillation_loss(student, teacher, torch.tensor([0]), t, 0.0), student)[0] for t in (1e3, 1e4)}
    centred = (student - student.mean()) - (teacher - teacher.mean())
    assert torch.allclose(slopes[1e4], centred.detach() / classes, atol=1e-2 * centred.abs().max().item())
    assert torch.allclose(slopes[1e3], slopes[1e4], rtol=0.05, atol=1e-2)


GOOD = torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize("error, says, p, q", [
    (TypeError, "p must be a tensor", [0.5, 0.5], torch.tensor([0.5, 0.5])), (TypeError, "q must be.*int64", torch.tensor([1.0]), torch.tensor([1])),
    (ValueError, "p must have classes", torch.tensor(1.0), torch.tensor(1.0)), (ValueError, "p must have classes", torch.ones(2, 0), torch.ones(2, 0)),
    (ValueError, r"q must have the shape \(1, 2\) of p", torch.tensor([[0.5, 0.5]]), torch.tensor([0.5, 0.5])),
    (ValueError, "p must hold probabilities", torch.tensor([1.5, -0.5]), torch.tensor([0.5, 0.5])),
    (ValueError, "q must hold probabilities", torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.4])),
    (ValueError, "p must hold probabilities", torch.tensor([math.nan, 1.0]), torch.tensor([0.5, 0.5])),
    (ValueError, "q must hold probabilities", torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]).log())])
def test_divergence_refuses(unchecked, error, says, p, q):
    with pytest.raises(error, match=says):
        kl_divergence(p, q)


@pytest.mark.parametrize("error, says, given_", [
    (TypeError, "student_logits must be.*list", ([1.0], *GOOD[1:])), (TypeError, "teacher_logits must be.*int64", (GOOD[0], GOOD[0].long(), GOOD[2])),
    (ValueError, r"teacher_logits must have the shape \(2, 3\)", (GOOD[0], torch.zeros(1, 3), GOOD[2])),
    (ValueError, "teacher_logits must have the shape", (GOOD[0], torch.zeros(2, 4), GOOD[2])),
    (TypeError, "labels must be a tensor of whole numbers, not torch.float32", (*GOOD[:2], torch.zeros(2))),
    (TypeError, "labels must be.*bool", (*GOOD[:2], torch.zeros(2).bool())), (TypeError, "labels must be.*NoneType", (*GOOD[:2], None)),
    (ValueError, r"labels must have the shape \(2,\)", (*GOOD[:2], torch.zeros(2, 1).long())),
    (ValueError, "labels holds 3, which is no class", (*GOOD[:2], torch.tensor([0, 3]))),
    (ValueError, "labels holds -1, which is no class", (*GOOD[:2], torch.tensor([0, -1]))),
    (ValueError, "labels holds 156", (*GOOD[:2], torch.tensor([0, 156], dtype=torch.uint8))),
    (ValueError, r"temperature \(0\)", (*GOOD, 0)), (ValueError, r"temperature \(-1\.0\)", (*GOOD, -1.0)), (ValueError, "temperature", (*GOOD, math.inf)),
    (ValueError, "temperature", (*GOOD, math.nan)), (ValueError, "temperature", (*GOOD, True)), (ValueError, "temperature", (*GOOD, "2")),
    (ValueError, r"alpha \(1\.5\)", (*GOOD, 2.0, 1.5)), (ValueError, "alpha", (*GOOD, 2.0, -0.1)), (ValueError, "alpha", (*GOOD, 2.0, None)),
    (ValueError, "alpha", (*GOOD, 2.0, math.nan)), (TypeError, "meta device", tuple(x.to("meta") for x in GOOD))])
def test_loss_refuses(unchecked, error, says, given_):
    with pytest.raises(error, match=says):
        distillation_loss(*given_)


def test_small_integers_and_numpys_numbers_will_do():
    wanted = distillation_loss(*GOOD, 2.0, 0.5)
    assert torch.equal(distillation_loss(*GOOD[:2], GOOD[2].to(torch.int16), 2, np.float64(0.5)), wanted)


# -- DistilBERT: Hugging Face's, over its configurations

def hf(config, seed=0, kind="DistilBertModel"):
    """A model of transformers with weights that are large enough to matter, biases and norms included."""
    import transformers
    model = getattr(transformers, kind)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            around = 1.0 if "orm" in name and name.endswith("weight") else 0.0
            parameter.copy_(around + 0.25 * torch.randn(parameter.shape, generator=generator))
    return model


@st.composite
def configs(draw):
    from transformers import DistilBertConfig
    heads = draw(st.integers(1, 4))
    return DistilBertConfig(vocab_size=draw(st.integers(5, 40)), max_position_embeddings=draw(st.integers(9, 20)), n_layers=draw(st.integers(1, 3)),
                            n_heads=heads, dim=heads * draw(st.integers(1, 7)), hidden_dim=draw(st.integers(3, 17)),
                            dropout=draw(st.sampled_from([0.0, 0.1])), attention_dropout=draw(st.sampled_from([0.0, 0.2])),
                            activation=draw(st.sampled_from(["gelu", "relu", "gelu_new", "silu"])), pad_token_id=draw(st.integers(0, 3)))


def batch(vocab, lengths, seed=0):
    """Random ids, and a mask of so many real tokens in each row."""
    ids = torch.randint(vocab, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    return ids, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


@torch.no_grad()
def largest_difference(ours, wanted, vocab):
    largest = 0.0
    for lengths in ((9, 9), (9, 4, 1), (7,)):
        ids, mask = batch(vocab, lengths, len(lengths))
        theirs_ = wanted(ids, attention_mask=mask.long()).last_hidden_state
        found = ours(ids, None if mask.all() else mask)
        assert found.dtype == theirs_.dtype and found.shape == theirs_.shape
        largest = max(largest, (found - theirs_)[mask].abs().max().item())
    return largest


def test_as_hugging_face_from_its_files_and_back(parity, tmp_path):
    from transformers import AutoModel, DistilBertModel

    @given(configs())
    @settings(max_examples=25)
    def equal(config):
        wanted = hf(config)
        wanted.save_pretrained(tmp_path)
        ours = DistilBert.from_pretrained(tmp_path)
        assert not ours.training
        parity(f"{MODULE}.DistilBert.from_pretrained", "transformers", largest_difference(ours, wanted, config.vocab_size), TOLERANCE,
               "random configurations, whole and padded batches, float32 hidden states")
        ours.save_pretrained(tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "distilbert"
        back = AutoModel.from_pretrained(tmp_path).eval()
        assert type(back) is DistilBertModel
        parity(f"{MODULE}.DistilBert.save_pretrained", "transformers", largest_difference(ours, back, config.vocab_size), TOLERANCE,
               "what was written is loaded by transformers, float32 hidden states")
        again, ids = DistilBert.from_pretrained(tmp_path), batch(config.vocab_size, (5, 5))[0]
        assert again.config == ours.config and torch.equal(again(ids), ours(ids))
    equal()


def small_config(**changes):
    from transformers import DistilBertConfig
    return DistilBertConfig(**{"vocab_size": 17, "max_position_embeddings": 12, "n_layers": 2, "n_heads": 2, "dim": 8, "hidden_dim": 10} | changes)


@pytest.mark.parametrize("kind", ["DistilBertForMaskedLM", "DistilBertForSequenceClassification", "DistilBertForQuestionAnswering"])
def test_a_head_in_the_file_is_left_out(kind, tmp_path):
    wanted = hf(small_config(), kind=kind)
    wanted.save_pretrained(tmp_path)
    assert largest_difference(DistilBert.from_pretrained(tmp_path), wanted.distilbert, 17) < TOLERANCE


def test_a_gradient_is_hugging_faces_too(parity, tmp_path):
    wanted = hf(small_config(dropout=0.0, attention_dropout=0.0)).double()
    wanted.float().save_pretrained(tmp_path)
    ours, wanted = DistilBert.from_pretrained(tmp_path, torch.float64), wanted.double()
    ids, mask = batch(17, (9, 4))
    weights = draw(2, 9, 8) * mask[..., None]
    for hidden in (ours(ids, mask), wanted(ids, attention_mask=mask.long()).last_hidden_state):
        (hidden * weights).sum().backward()
    pairs = [(ours.embeddings.word.weight, wanted.embeddings.word_embeddings.weight),
             (ours.encoder.layers[0].attention.sublayer.query.weight, wanted.transformer.layer[0].attention.q_lin.weight),
             (ours.encoder.layers[1].feed_forward.norm.bias, wanted.transformer.layer[1].output_layer_norm.bias)]
    difference = max((a.grad - b.grad)[1:].abs().max().item() for a, b in pairs)     # row 0 of the words is padding there, and gets none
    parity(f"{MODULE}.DistilBert", "transformers", difference, 1e-8, "gradients of a padded batch, float64")


@pytest.mark.parametrize("family, settings_", [("BertModel", {}), ("RobertaModel", {})])
def test_another_architecture_is_refused_by_name(family, settings_, tmp_path):
    import transformers
    config = getattr(transformers, family.replace("Model", "Config"))(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                                                                      intermediate_size=9, max_position_embeddings=12)
    getattr(transformers, family)(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="model_type.*distilbert"):
        DistilBert.from_pretrained(tmp_path)


def test_a_norm_that_the_files_cannot_say_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="norm_eps"):
        DistilBert(tiny(norm_eps=1e-5)).save_pretrained(tmp_path)


# -- the student cut out of a teacher

def tiny(**changes):
    return BertConfig(**{"vocab_size": 17, "d_model": 8, "num_layers": 4, "num_heads": 2, "d_ff": 10, "max_len": 12, "dropout": 0.0,
                         "attention_dropout": 0.0} | changes)


def teacher_of(layers, seed=0, dtype=torch.float64):
    bert = Bert(tiny(num_layers=layers)).to(dtype).eval()
    with torch.no_grad():
        for k, parameter in enumerate(bert.parameters()):
            parameter.copy_(0.4 * draw(*parameter.shape, seed=1000 * seed + k, size=1.0))
    return bert


def is_cut_out(from_teacher):
    """The right layers, tables and nothing of segments; copies; for right and wrong versions alike."""
    for count, taken in ((12, (0, 2, 4, 7, 9, 11)), (4, (0, 2)), (5, (0, 2, 4)), (1, (0,)), (24, tuple(range(0, 24, 2)))):
        bert = teacher_of(count)
        student = from_teacher(bert)
        ids, mask = batch(17, (9, 4))
        with torch.no_grad():
            parts = bert.embeddings
            x = parts.norm(parts.word.weight[ids] + parts.position.weight[:9])
            for i in taken:
                x = bert.encoder.layers[i](x, mask=mask[:, None, None])
            before = student(ids, mask)
            if before.shape != x.shape or not torch.allclose(before[mask], x[mask], atol=1e-9):
                return False
            for parameter in bert.parameters():
                parameter.zero_()
            if not torch.equal(student(ids, mask), before) or not all(p.requires_grad for p in student.parameters()):
                return False
    return True


def cut(pick=None, share=False, segment=None):
    def from_teacher(bert):
        count = len(bert.encoder.layers)
        layers = pick(count) if pick else ((0, 2, 4, 7, 9, 11) if count == 12 else tuple(range(0, count, 2)))
        student = DistilBert.from_teacher(bert, layers)
        if share:
            student.encoder.layers = nn.ModuleList([bert.encoder.layers[i] for i in layers])
        if segment is not None:
            with torch.no_grad():
                student.embeddings.word.weight += bert.embeddings.segment.weight[segment]
        return student
    return from_teacher


def test_student_takes_its_layers_from_the_teacher():
    assert is_cut_out(DistilBert.from_teacher) and is_cut_out(cut())


@pytest.mark.parametrize("wrong", [
    cut(lambda n: range((n + 1) // 2)), cut(lambda n: range(1, n, 2) if n > 1 else (0,)), cut(lambda n: range(0, n, 2)), cut(range),
    cut(lambda n: tuple(range(0, n, 2))[::-1]), cut(share=True), cut(segment=0)],
    ids=["first half", "odd", "even of twelve", "all", "turned", "shared", "segment kept"])
def test_known_faults_of_students_are_caught(wrong):
    assert not is_cut_out(wrong)


def test_any_layers_in_any_order_with_the_teachers_dtype():
    bert = teacher_of(4, dtype=torch.bfloat16)
    student = DistilBert.from_teacher(bert, iter([3, np.int64(1), 1]))
    assert student.config == tiny(num_layers=3, num_segments=0, pooler=False) and student.training
    assert {parameter.dtype for parameter in student.parameters()} == {torch.bfloat16}
    ours, theirs_ = (layers[i].attention.sublayer.query.weight for layers, i in ((student.encoder.layers, 0), (bert.encoder.layers, 3)))
    assert torch.equal(ours, theirs_)
    with torch.no_grad():
        student.encoder.layers[1].attention.sublayer.query.weight.zero_()
    assert student.encoder.layers[2].attention.sublayer.query.weight.any()


@pytest.mark.parametrize("error, says, bert, layers", [
    (TypeError, "bert must be a Bert, not DistilBert", lambda: DistilBert(tiny()), None), (TypeError, "not BertConfig", tiny, None),
    (ValueError, "layers is empty", lambda: teacher_of(4), ()), (ValueError, "layers holds 4, but the teacher's are 0 to 3", lambda: teacher_of(4), (0, 4)),
    (ValueError, "layers holds -1", lambda: teacher_of(4), (-1,)), (ValueError, "layers holds True", lambda: teacher_of(4), (True,)),
    (ValueError, "layers holds 1.0", lambda: teacher_of(4), (1.0,)), (TypeError, "layers must be a list of numbers, not 3", lambda: teacher_of(4), 3),
    (TypeError, "layers must be a list of numbers, not '02'", lambda: teacher_of(4), "02")])
def test_from_teacher_refuses(unchecked, error, says, bert, layers):
    with pytest.raises(error, match=says):
        DistilBert.from_teacher(bert(), layers)


def test_what_the_model_refuses(unchecked):
    model = DistilBert(tiny())
    with pytest.raises(TypeError, match="config must be a BertConfig, not dict"):
        DistilBert({"vocab_size": 9})
    with pytest.raises(ValueError, match="length 13, but max_len is 12"):
        model(torch.zeros(1, 13).long())
    with pytest.raises(ValueError, match="ids from 0 to 16"):
        model(torch.tensor([[17]]))
    with pytest.raises(TypeError, match="int64"):
        model(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="attention_mask must have shape"):
        model(torch.zeros(1, 3).long(), torch.ones(1, 4).bool())
    with pytest.raises(TypeError, match="attention_mask"):
        model(torch.zeros(1, 3).long(), torch.ones(1, 3))


def test_padding_changes_nothing():
    model = DistilBert.from_teacher(teacher_of(4)).eval()
    ids, mask = batch(17, (5, 9))
    with torch.no_grad():
        alone = model(ids[:1, :5])
        assert torch.allclose(model(ids, mask)[0, :5], alone[0], atol=1e-9)
        ids[0, 5:] = 3
        assert torch.allclose(model(ids, mask)[0, :5], alone[0], atol=1e-9)


def test_a_config_of_bert_loses_what_a_distilbert_has_not():
    model = DistilBert(tiny())
    assert model.config.num_segments == 0 and not model.config.pooler and model.embeddings.segment is None
    assert not any("segment" in name or "pooler" in name for name in model.state_dict())


def test_counts_as_published():
    with torch.device("meta"):
        sizes = [sum(p.numel() for p in model.parameters()) for model in (DistilBert(BertConfig.distilbert()), Bert(BertConfig.base()))]
    assert sizes == [66_362_880, 109_482_240]


def test_state_dict_pickle_copy_and_meta():
    model = DistilBert.from_teacher(teacher_of(4)).eval()
    ids = batch(17, (9, 9))[0]
    wanted = model(ids)
    other = DistilBert(model.config).double().eval()
    other.load_state_dict(model.state_dict())
    for copied in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(ids), wanted)
    with torch.device("meta"):
        assert DistilBert(model.config)(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 5, 8)


# -- what is stored, and speed

def test_results_hold_every_seed_and_no_more():
    stored = runs.stored_results()
    for copied, targets in runs.STUDENTS:
        seeds = [run["seed"] for run in stored["runs"] if run["kind"] == "student" and (run["copied"], run["targets"]) == (copied, targets)]
        assert seeds == [0, 1, 2]
    assert {run["kind"] for run in stored["runs"]} == {"teacher", "cut out", "student", "few", "task"}
    for task in runs.TASKS:
        for start in ("taught", "cut out"):
            assert [run["seed"] for run in stored["runs"] if run["kind"] == "task" and (run["task"], run["start"]) == (task, start)] == [0, 1, 2]
    assert stored["seconds"] < 600 and {"python", "torch"} <= stored["made_with"].keys()


def test_a_student_of_teddy_world_starts_as_stored():
    teacher = teddy_bert()
    data = runs.masked_data()
    for copied, targets in ((True, "three terms"), (False, "both")):
        losses = runs.teach(runs.new_student(teacher, copied, 1), teacher, targets, data, 1, 5).losses
        stored = next(run for run in runs.stored_results()["runs"] if run["kind"] == "student"
                      and (run["copied"], run["targets"], run["seed"]) == (copied, targets, 1))
        assert np.allclose(losses, stored["losses"][:5], atol=0.05)


@pytest.mark.parametrize("task, shape", [("sentence", (3, 3)), ("pair", (3, 3)), ("token", (3, None, 7))])
def test_a_student_under_a_head_of_a_task(task, shape):
    """The head is new, the student stays as it was, and padding and segments are of no account."""
    student = runs.new_student(teacher_bert := teddy_bert(), True)
    before = copy.deepcopy(student.body.state_dict())
    rows = [fine.row_of(task, example) for example in fine.training_examples(task, 3, 0)]
    model, history = runs.fine_tune_student(student, task, rows, 0, stop=2)
    assert len(history.losses) == 2 and all(torch.equal(before[name], tensor) for name, tensor in student.body.state_dict().items())
    assert any(not torch.equal(before[name], tensor) for name, tensor in model.body.state_dict().items())
    inputs, _ = fine.batch_of(task, rows)
    scores = model(*inputs)
    assert tuple(scores.shape) == tuple(inputs.input_ids.shape[1] if size is None else size for size in shape)
    assert torch.equal(scores, model(*inputs[:2])) and teacher_bert.bert is not model.body
    one = inputs.attention_mask[:1].sum()
    alone = model(inputs.input_ids[:1, :one])
    assert torch.allclose(alone, scores[:1, :one] if task == "token" else scores[:1], atol=1e-5)


def test_students_are_fine_tuned_as_stored():
    student = runs.new_student(teddy_bert(), True, 1)
    rows = [fine.row_of("sentence", example) for example in fine.training_examples("sentence", 1000, 1)]
    losses = runs.fine_tune_student(student, "sentence", rows, 1, stop=5)[1].losses
    stored = next(run for run in runs.stored_results()["runs"] if run["kind"] == "task"
                  and (run["task"], run["start"], run["seed"]) == ("sentence", "cut out", 1))
    assert np.allclose(losses, stored["losses"][:5], atol=2e-3)


@pytest.mark.bench
def test_half_the_layers_take_about_half_the_time(within):
    bert = Bert(BertConfig.base()).eval()
    student = DistilBert.from_teacher(bert).eval()
    ids = torch.randint(30522, (1, 128), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        within("DistilBERT over BERT-Base, 1 x 128", ratio(lambda: student(ids), lambda: bert(ids)), 0.62)


@pytest.mark.bench
def test_forward_against_hugging_face(within):
    from transformers import DistilBertConfig, DistilBertModel
    wanted = DistilBertModel(DistilBertConfig(attn_implementation="sdpa")).eval()
    ours = DistilBert(BertConfig.distilbert()).eval()
    ids = torch.randint(30522, (8, 128), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        within("DistilBERT forward over Hugging Face's, 8 x 128", ratio(lambda: ours(ids), lambda: wanted(ids)), 1.0)
