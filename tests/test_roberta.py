"""RoBERTa: as Hugging Face's, from its files and back; positions, pairs, masks; known faults; what is refused; the stored trainings."""
import json
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from transformer_course.bert import _roberta_runs as small
from transformer_course.bert.inputs import pad_batch
from transformer_course.bert.model import Bert, BertConfig
from transformer_course.bert.pretraining import mask_tokens
from transformer_course.bert.roberta import Roberta, dynamic_mask, encode_roberta_pair, roberta_positions
from transformer_course.text.bpe import BPETokenizer
from transformer_course.toolbox.checkpoints import CheckpointError
from transformer_course.toolbox.exercises import check, exercise_ids

MODULE = "transformer_course.bert.roberta"
TOLERANCE = 1e-4
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


# -- plausible answers that are wrong, for each exercise that is checked

def _masks(enough):
    def masks_needed(rate, share):
        return enough(math.log1p(-share) / math.log1p(-rate), share / rate)
    return masks_needed


def _numbered(first_is_word=True, in_special=None, behind=True, start=-1):
    def word_numbers(tokens, special):
        numbers, number, inside = [], start, not first_is_word
        for token in tokens:
            if token in special:
                numbers.append(in_special)
                inside = inside and not behind
                continue
            number += token.startswith("Ġ") or not inside
            inside = True
            numbers.append(number)
        return numbers
    return word_numbers


def _twice(tokens, special):
    numbers, number = [], -1
    for i, token in enumerate(tokens):
        if token in special:
            numbers.append(None)
            continue
        number += token.startswith("Ġ")
        number += i == 0 or tokens[i - 1] in special
        numbers.append(number)
    return numbers


def _own_punctuation(tokens, special):
    numbers, number, inside = [], -1, False
    for token in tokens:
        if token in special:
            numbers.append(None)
            inside = False
            continue
        number += token.startswith("Ġ") or not inside or not token.strip("Ġ").isalnum()
        inside = True
        numbers.append(number)
    return numbers


def _packed(border=True, separated=True, counted=True, trailing=False, always=False, strict=False):
    def pack(documents, max_length, separator):
        blocks = []
        for document in documents:
            for i, sentence in enumerate(document):
                between = [separator] if separated and (i == 0 or always) and blocks else []
                size = len(blocks[-1]) + len(between) * counted + len(sentence) if blocks else 0
                if blocks and (border or i) and (size < max_length if strict else size <= max_length):
                    blocks[-1] += [*between, *sentence]
                else:
                    blocks.append(list(sentence))
            if trailing and blocks:
                blocks[-1].append(separator)
        return blocks
    return pack


WRONG = [
    ("42.longest", [lambda rows, pad_id: rows, lambda rows, pad_id: rows - 2, lambda rows, pad_id: rows - pad_id, lambda rows, pad_id: rows - pad_id - 2]),
    ("42.masks-needed", [_masks(lambda exact, plain: math.floor(exact)), _masks(lambda exact, plain: round(exact)),
                         _masks(lambda exact, plain: math.ceil(plain)), _masks(lambda exact, plain: exact)]),
    ("42.whole-words", [_numbered(first_is_word=False), _numbered(in_special=-1), _numbered(behind=False), _numbered(start=0), _twice, _own_punctuation]),
    ("42.full-sentences", [_packed(border=False), _packed(separated=False), _packed(counted=False), _packed(trailing=True), _packed(always=True),
                           _packed(strict=True)]),
    ("42.large-batch", [lambda losses, counts: sum(losses) / len(losses), lambda losses, counts: sum(losses),
                        lambda losses, counts: sum(loss * n for loss, n in zip(losses, counts)) / max(sum(counts), 1),
                        lambda losses, counts: sum(loss * n for loss, n in zip(losses, counts) if n) / len(losses),
                        lambda losses, counts: sum(loss * n for loss, n in zip(losses, counts) if n) / sum(counts) if sum(counts) else math.nan]),
]


@pytest.mark.parametrize("exercise, answer", [(name, answer) for name, answers in WRONG for answer in answers])
def test_wrong_answers_are_told(exercise, answer):
    assert exercise in exercise_ids("42") and not check(exercise, answer)


# -- Hugging Face's models, over their configurations

def lively(model, seed=0):
    """Weights that are large enough to matter, norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            around = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            parameter.copy_(around + 0.25 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


@st.composite
def configs(draw):
    from transformers import RobertaConfig
    heads, pad = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    return RobertaConfig(
        vocab_size=draw(st.integers(6, 40)), hidden_size=heads * draw(st.integers(1, 6)), num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=heads, intermediate_size=draw(st.integers(3, 19)), max_position_embeddings=12 + pad + 1 + draw(st.integers(0, 5)),
        type_vocab_size=draw(st.integers(1, 2)), layer_norm_eps=draw(st.sampled_from([1e-5, 1e-12, 1e-3])), pad_token_id=pad,
        hidden_act=draw(st.sampled_from(["gelu", "gelu_new", "relu", "silu"])), bos_token_id=0, eos_token_id=2,
        hidden_dropout_prob=draw(st.sampled_from([0.0, 0.1])), attention_probs_dropout_prob=draw(st.sampled_from([0.0, 0.2])))


def batch_of(lengths, side, vocab, pad, seed=0):
    """Ids whose padding, and nothing else, has the padding's id, and the mask."""
    ranks = torch.arange(max(lengths)).expand(len(lengths), -1)
    mask = ranks < torch.tensor(lengths)[:, None]
    mask = mask if side == "right" else mask.flip(1)
    ids = torch.randint(vocab - 1, mask.shape, generator=torch.Generator().manual_seed(seed))
    return (ids + (ids >= pad)).where(mask, pad), mask


BATCHES = (("right", (12, 12)), ("right", (12, 5, 1)), ("left", (3, 12, 1)))


@torch.no_grad()
def largest_difference(ours, theirs, vocab, pad):
    largest = 0.0
    for side, lengths in BATCHES:
        ids, mask = batch_of(lengths, side, vocab, pad, len(lengths))
        got, wanted = ours(ids, mask), theirs(ids, attention_mask=mask.long()).last_hidden_state
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        largest = max(largest, (got - wanted)[mask].abs().max().item())
    return largest


def test_as_hugging_face_from_its_files_and_back(parity, tmp_path):
    from transformers import RobertaForMaskedLM, RobertaModel

    @given(configs(), st.booleans(), st.booleans())
    @settings(max_examples=30)
    def equal(config, headed, pooled):
        torch.manual_seed(0)
        whole = lively(RobertaForMaskedLM(config) if headed else RobertaModel(config, add_pooling_layer=pooled))
        theirs = whole.roberta if headed else whole
        whole.save_pretrained(tmp_path)
        ours = Roberta.from_pretrained(tmp_path)
        assert not ours.training and ours.config.max_len == config.max_position_embeddings - config.pad_token_id - 1
        difference = largest_difference(ours, theirs, config.vocab_size, config.pad_token_id)
        parity(MODULE + ".Roberta.from_pretrained", "transformers", difference, TOLERANCE,
               "random configurations, with and without pooler or head, batches padded on either side, float32")
        ours.save_pretrained(tmp_path)
        back = RobertaModel.from_pretrained(tmp_path, add_pooling_layer=False).eval()
        difference = largest_difference(ours, back, config.vocab_size, config.pad_token_id)
        parity(MODULE + ".Roberta.save_pretrained", "transformers", difference, TOLERANCE,
               "what was written is loaded by transformers, float32")
        again = Roberta.from_pretrained(tmp_path)
        assert again.config == ours.config
        assert all(a.equal(b) for a, b in zip(again.state_dict().values(), ours.state_dict().values()))
    equal()


@given(configs(), st.integers(0, 99))
@settings(max_examples=10)
def test_forward_and_backward_in_double(parity, config, seed):
    """Vectors and the gradient of every parameter."""
    from transformers import RobertaModel
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    theirs = lively(RobertaModel(config, add_pooling_layer=False), seed).double()
    c = BertConfig.roberta(
        config.vocab_size, d_model=config.hidden_size, num_layers=config.num_hidden_layers, num_heads=config.num_attention_heads,
        d_ff=config.intermediate_size, max_len=config.max_position_embeddings - config.pad_token_id - 1, num_segments=config.type_vocab_size,
        activation={"gelu_new": "gelu_tanh"}.get(config.hidden_act, config.hidden_act), norm_eps=config.layer_norm_eps,
        pad_id=config.pad_token_id, dropout=0.0, attention_dropout=0.0)
    ours = Roberta(c).double()
    wanted = list(theirs.parameters())
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in wanted)
    from transformer_course.bert._bert_files import NAMES
    from transformer_course.toolbox.checkpoints import rename_keys
    named = dict(theirs.named_parameters())
    renamed = rename_keys(named, NAMES["roberta"])
    ours.load_state_dict({renamed[name]: tensor.detach() for name, tensor in named.items()})
    pairs = [(named[name], dict(ours.named_parameters())[renamed[name]]) for name in named]
    for side, lengths in BATCHES[1:]:
        ids, mask = batch_of(lengths, side, config.vocab_size, config.pad_token_id, seed)
        a, b = theirs(ids, attention_mask=mask.long()).last_hidden_state[mask], ours(ids, mask)[mask]
        weights = torch.randn(a.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        grads = [torch.autograd.grad((out * weights).sum(), parameters) for out, parameters in
                 ((a, [x for x, _ in pairs]), (b, [y for _, y in pairs]))]
        scale = max(g.abs().max().item() for g in grads[0]) + 1
        # Hugging Face's padding rows of both tables never get a gradient; ours get none here either, as nothing real reads them.
        difference = max((a - b).abs().max().item(), *((x - y).abs().max().item() / scale for x, y in zip(*grads)))
        parity(MODULE + ".Roberta", "transformers", difference, 1e-9, "random configurations, float64, forward and backward, padded batches")


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(0, 5))
def test_positions_are_hugging_faces(parity, rows, pad):
    from transformers.models.roberta.modeling_roberta import RobertaEmbeddings
    mask = torch.tensor(rows)
    ids = torch.full(mask.shape, pad + 1).where(mask, pad)
    wanted = RobertaEmbeddings.create_position_ids_from_input_ids(ids, pad)
    for given_mask in (mask, mask.long(), mask.int()):
        got = roberta_positions(given_mask, pad)
        assert got.dtype == torch.int64
        parity(MODULE + ".roberta_positions", "transformers", (got - wanted).abs().max().item(), 0, "random masks and padding ids")


def test_counts_and_settings_of_the_published_model():
    from transformers import RobertaConfig, RobertaModel
    with torch.device("meta"):
        ours = Roberta(BertConfig.roberta())
        theirs = RobertaModel(RobertaConfig(max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5))
    count = {name: sum(p.numel() for p in model.parameters()) for name, model in (("ours", ours), ("theirs", theirs))}
    pooler = sum(p.numel() for p in theirs.pooler.parameters())
    assert count == {"ours": 124_055_040, "theirs": 124_645_632} and count["theirs"] - count["ours"] == pooler
    assert ours.embeddings.position.weight.shape == (514, 768) and ours.config.norm_eps == 1e-5


def test_a_large_model_agrees_too(tmp_path, parity):
    """Base width, two layers, half precision as well."""
    from transformers import RobertaConfig, RobertaModel
    torch.manual_seed(0)
    theirs = RobertaModel(RobertaConfig(vocab_size=500, num_hidden_layers=2, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5),
                          add_pooling_layer=False).eval()
    theirs.save_pretrained(tmp_path)
    ours = Roberta.from_pretrained(tmp_path)
    ids, mask = batch_of((512, 100), "right", 500, 1)
    with torch.no_grad():
        difference = (ours(ids, mask) - theirs(ids, attention_mask=mask.long()).last_hidden_state)[mask].abs().max().item()
        parity(MODULE + ".Roberta.from_pretrained", "transformers", difference, TOLERANCE, "base width, 512 tokens, float32")
        half = Roberta.from_pretrained(tmp_path, dtype=torch.bfloat16)(ids[:, :60], mask[:, :60])
        assert half.dtype == torch.bfloat16
        assert (half.float() - ours(ids[:, :60], mask[:, :60])).abs().max() < 0.1


# -- files

def roberta_folder(folder, **changes):
    from transformers import RobertaConfig, RobertaModel
    config = RobertaConfig(**{"vocab_size": 20, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 9,
                              "max_position_embeddings": 18, "type_vocab_size": 1} | changes)
    model = lively(RobertaModel(config, add_pooling_layer=False))
    model.save_pretrained(folder)
    return model


def rewrite(folder, change=None, drop=()):
    path = folder / "config.json"
    kept = {key: value for key, value in json.loads(path.read_text()).items() if key not in drop}
    path.write_text(json.dumps(kept | (change or {})))


def test_what_a_file_leaves_out_is_the_librarys_default(tmp_path):
    """Not the published model's: eps 1e-12, 512 rows of positions, padding with id 1."""
    theirs = roberta_folder(tmp_path, max_position_embeddings=512)
    rewrite(tmp_path, drop=("layer_norm_eps", "max_position_embeddings", "pad_token_id"))
    ours = Roberta.from_pretrained(tmp_path)
    assert (ours.config.norm_eps, ours.config.max_len, ours.config.pad_id) == (1e-12, 510, 1)
    assert largest_difference(ours, theirs, 20, 1) < TOLERANCE


@pytest.mark.parametrize("change, says", [
    ({"model_type": "bert"}, "model_type"),
    ({"model_type": "xlm-roberta-xl"}, "model_type"),
    ({"hidden_act": "gelu_fast?"}, "gelu_fast"),
    ({"max_position_embeddings": 20}, "position"),
    ({"max_position_embeddings": 2}, "max_len|max_position"),
    ({"num_attention_heads": 5}, "num_heads|num_attention_heads"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ({"is_decoder": True}, "is_decoder"),
    ({"type_vocab_size": 0}, "segment|type_vocab"),
    ({"never_heard_of": 7}, "never_heard_of"),
])
def test_files_that_are_refused(tmp_path, change, says):
    roberta_folder(tmp_path)
    Roberta.from_pretrained(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises((CheckpointError, ValueError), match=says):
        Roberta.from_pretrained(tmp_path)


def test_a_bert_does_not_read_a_roberta(tmp_path):
    roberta_folder(tmp_path)
    with pytest.raises(CheckpointError, match="model_type"):
        Bert.from_pretrained(tmp_path)


# -- known faults: a batch against its texts, one by one

SMALL = {"d_model": 12, "num_layers": 2, "num_heads": 3, "d_ff": 9, "max_len": 12, "dropout": 0.0, "attention_dropout": 0.0}


def small_roberta(vocab=20, **changes):
    return lively(Roberta(BertConfig.roberta(vocab, **SMALL | changes)).double())


def positions_by_the_book(mask, pad):
    rows = []
    for row in mask.tolist():
        seen = 0
        rows.append([pad + (seen := seen + 1) if real else pad for real in row])
    return rows


MASKS = [torch.tensor(rows) for rows in ([[1, 1, 1, 1], [1, 1, 0, 0]], [[0, 0, 1, 1], [1, 1, 1, 1]], [[1, 0, 1, 1], [0, 0, 0, 0]])]


def right_positions(positions):
    return all(positions(mask, pad).tolist() == positions_by_the_book(mask, pad) for mask in MASKS for pad in (0, 1, 3))


POSITION_FAULTS = {
    "from 0": lambda mask, pad: torch.arange(mask.shape[1]).expand_as(mask),
    "restarting at 0": lambda mask, pad: (mask.cumsum(1) - 1).clamp(min=0),
    "one too early": lambda mask, pad: (mask.cumsum(1) - 1 + pad) * mask + pad * (1 - mask),
    "always from 2": lambda mask, pad: mask.cumsum(1) * mask + 1,
    "columns": lambda mask, pad: torch.arange(mask.shape[1]).expand_as(mask) + pad + 1,
    "columns, padding apart": lambda mask, pad: (torch.arange(mask.shape[1]) + 1) * mask + pad,
    "padding goes on": lambda mask, pad: mask.cumsum(1) + pad,
    "padding at 0": lambda mask, pad: (mask.cumsum(1) + pad) * mask,
}


@pytest.mark.parametrize("fault", POSITION_FAULTS)
def test_faulty_positions_are_caught(fault):
    assert right_positions(roberta_positions) and not right_positions(POSITION_FAULTS[fault])


def by_text(model, read, ids, mask):
    """Whether the vectors of a batch are those of its texts alone, at the positions that the formula gives."""
    with torch.no_grad():
        vectors = read(model, ids, mask)
        for row, keep, found in zip(ids, mask.bool(), vectors):
            text = row[keep][None]
            start = model.config.pad_id + 1
            embedded = model.embeddings(text, position_ids=torch.arange(start, start + text.shape[1])[None])
            if not torch.allclose(found[keep], model.encoder(embedded)[0], atol=1e-9):
                return False
    return True


def reader(positions=roberta_positions, keys=True, segment=True):
    def read(model, ids, mask):
        x = model.embeddings(ids, position_ids=positions(mask, model.config.pad_id))
        return model.encoder(x, mask=mask.bool()[:, None, None] if keys else None)
    return read


def test_faulty_models_are_caught():
    model = small_roberta()
    ids, mask = torch.tensor([[1, 1, 0, 9, 2], [0, 7, 8, 9, 2]]), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    assert by_text(model, lambda model, ids, mask: model(ids, mask), ids, mask) and by_text(model, reader(), ids, mask)
    for fault in ("from 0", "restarting at 0", "one too early", "columns"):
        assert not by_text(model, reader(POSITION_FAULTS[fault]), ids, mask), fault
    assert not by_text(model, reader(keys=False), ids, mask)
    # padding that goes on counting, or reads another row, changes no real token: nothing looks at it
    assert by_text(model, reader(POSITION_FAULTS["padding at 0"]), ids, mask)


def test_as_many_tokens_as_rows_are_refused_and_eps_matters(unchecked):
    model = small_roberta(max_len=9)
    assert len(model.embeddings.position.weight) == 11
    assert model(torch.full((1, 9), 7)).shape == (1, 9, 12)
    for length in (10, 11):
        with pytest.raises(ValueError, match=f"length {length}, but max_len is 9"):
            model(torch.full((1, length), 7))
    tiny = small_roberta()
    with torch.no_grad():   # vectors so short that eps decides
        for part in (tiny.embeddings.word, tiny.embeddings.position, tiny.embeddings.segment):
            part.weight.mul_(1e-3)
    other = small_roberta(norm_eps=1e-12)
    other.load_state_dict(tiny.state_dict())
    assert (tiny(torch.tensor([[5, 6, 7]])) - other(torch.tensor([[5, 6, 7]]))).abs().max() > 1e-2


@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 6))
def test_padding_on_either_side_changes_nothing(before, after, length):
    model = small_roberta()
    text = torch.randint(5, 20, (1, length), generator=torch.Generator().manual_seed(length))
    ids = nn.functional.pad(text, (before, after), value=9)   # padding may have any id: the mask says what it is
    mask = nn.functional.pad(torch.ones_like(text), (before, after))
    with torch.no_grad():
        assert torch.allclose(model(ids, mask)[:, before:before + length], model(text), atol=1e-12)
        ids[mask == 0] = 3
        assert torch.equal(model(ids, mask)[mask.bool()], model(ids, mask.bool())[mask.bool()])


def test_an_id_is_no_padding_unless_the_mask_says_so():
    """Without a mask a padding id is a token like others; Hugging Face would give it, and it alone, position pad_id."""
    model = small_roberta()
    ids = torch.tensor([[0, 7, 1, 8, 2]])
    assert torch.equal(model(ids), model(ids, torch.ones_like(ids)))
    assert not torch.allclose(model(ids), model(ids, ids != 1))


def test_a_row_without_any_text_is_finite():
    model = small_roberta()
    out = model(torch.tensor([[0, 7, 2], [1, 1, 1]]), torch.tensor([[1, 1, 1], [0, 0, 0]]))
    out.sum().backward()
    assert out.isfinite().all() and all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_moves_and_travels():
    model = small_roberta().float()
    ids = torch.tensor([[0, 7, 8, 2]])
    with torch.device("meta"):
        empty = Roberta(model.config)
    assert empty(ids.to("meta"), torch.ones(1, 4, dtype=torch.bool, device="meta")).shape == (1, 4, 12)
    copied = pickle.loads(pickle.dumps(model))
    assert torch.equal(copied(ids), model(ids))
    fresh = Roberta(model.config).eval()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(ids), model(ids))
    assert {name.split(".")[0] for name in model.state_dict()} == {"embeddings", "encoder"}
    assert model.half()(ids).dtype == torch.float16


# -- pairs

@pytest.fixture(scope="module")
def tokenizer():
    return BPETokenizer.train(["a bear reads. it is happy, the bear is lazy and reads a book"], 300, special_tokens=SPECIAL)


TEXTS = st.one_of(st.text(alphabet="a bers.곰é", max_size=15), st.sampled_from(["", "bear", " the bear", "a bear reads. it is happy"]))


@pytest.fixture(scope="module")
def reference(tokenizer):
    from transformers import RobertaTokenizer
    merges = [tuple(pair) for pair in tokenizer.merges]
    return RobertaTokenizer(vocab=dict(tokenizer.vocab), merges=merges)


@given(first=TEXTS, second=st.none() | TEXTS.filter(bool))   # transformers takes an empty second text for none
def test_pairs_are_hugging_faces(parity, tokenizer, reference, first, second):
    wanted = reference(first, second)["input_ids"] if second is not None else reference(first)["input_ids"]
    ids, segments = encode_roberta_pair(tokenizer, first, second)
    assert segments == [0] * len(ids)
    parity(MODULE + ".encode_roberta_pair", "transformers", float(ids != wanted), 0, "random texts and pairs, byte-level vocabulary of 300 entries")


@given(st.integers(0, 8), st.none() | st.integers(1, 8), st.integers(6, 12), st.sampled_from(["longest_first", "only_first", "only_second"]))
def test_pairs_are_cut_as_hugging_face_cuts_them(parity, tokenizer, reference, a, b, max_length, strategy):
    first, second = " bear" * a, None if b is None else " lazy" * b

    def ours():
        return encode_roberta_pair(tokenizer, first, second, max_length, strategy)[0]
    too_long = len(encode_roberta_pair(tokenizer, first, second)[0]) - max_length
    cut = {"only_first": a, "only_second": b or 0, "longest_first": a + (b or 0)}[strategy]
    if too_long > 0 and (cut * len(tokenizer.encode(" bear")) < too_long or cut == 0 or second is None and strategy == "only_second"):
        return   # the next test's business
    try:
        got = ours()
    except ValueError:
        assert too_long > 0
        return
    wanted = reference(first, second, truncation=strategy, max_length=max_length)["input_ids"] if second is not None else reference(
        first, truncation="only_first", max_length=max_length)["input_ids"]
    assert len(got) <= max_length
    parity(MODULE + ".encode_roberta_pair", "transformers", float(got != wanted), 0, "pairs that are too long, three ways of cutting")


def test_pairs_that_are_refused(unchecked, tokenizer):
    with pytest.raises(ValueError, match="max_length|truncation"):
        encode_roberta_pair(tokenizer, "a bear reads", "it is happy", max_length=6, truncation=None)
    with pytest.raises(ValueError, match="max_length"):
        encode_roberta_pair(tokenizer, "a bear", "reads", max_length=3)
    with pytest.raises(ValueError, match="truncation"):
        encode_roberta_pair(tokenizer, "a bear", "reads", max_length=6, truncation="sideways")
    with pytest.raises(ValueError, match="^first with 2 special tokens come to .* max_length"):
        encode_roberta_pair(tokenizer, "a bear reads, it is happy", max_length=4, truncation=None)
    with pytest.raises(ValueError, match="^first and second with 4 special tokens come to .* max_length"):
        encode_roberta_pair(tokenizer, "a bear reads", "it is happy", max_length=6, truncation=None)
    for wrong in (None, "roberta-base", {"<s>": 0}):
        with pytest.raises(TypeError, match="tokenizer must be a BPETokenizer"):
            encode_roberta_pair(wrong, "a bear")
    plain = BPETokenizer.train(["a bear"], 260)
    with pytest.raises(ValueError, match="tokenizer must have '<s>'"):
        encode_roberta_pair(plain, "a bear")


def test_pairs_go_into_a_batch(tokenizer):
    rows = [encode_roberta_pair(tokenizer, "a bear", "reads"), encode_roberta_pair(tokenizer, [7, 8], [9])]
    batch = pad_batch(rows, pad_id=1)
    assert batch.input_ids[1].tolist()[:7] == [0, 7, 8, 2, 2, 9, 2] and not batch.token_type_ids.any()
    assert (batch.input_ids[~batch.attention_mask] == 1).all()
    assert small_roberta(vocab=300)(*batch[:2]).isfinite().all()


# -- masks

IDS = torch.randint(5, 40, (6, 30), generator=torch.Generator().manual_seed(0))


def masked(copies, epochs=12, seed=0, ids=IDS, **how):
    return list(dynamic_mask(ids, 4, 40, range(5), epochs, copies=copies, generator=torch.Generator().manual_seed(seed), **how))


def epochs_by_the_book(copies, epochs, seed):
    generator, kept = torch.Generator().manual_seed(seed), []
    for epoch in range(epochs):
        if copies is None or epoch < copies:
            kept.append(mask_tokens(IDS, 4, 40, range(5), generator=generator))
        else:
            kept.append(kept[epoch - copies])
    return kept


def right_epochs(function):
    def equal(a, b):
        return len(a) == len(b) and all(x.equal(y) for first, second in zip(a, b) for x, y in zip(first, second))
    return all(equal(list(function(copies, epochs)), epochs_by_the_book(copies, epochs, 0)) for copies in (None, 1, 3, 20) for epochs in (1, 7))


def _other(turn):
    def epochs(copies, epochs):
        generator = torch.Generator().manual_seed(0)
        kept = [mask_tokens(IDS, 4, 40, range(5), generator=generator) for _ in range(copies or epochs)]
        return [kept[turn(epoch, len(kept), epochs)] for epoch in range(epochs)]
    return epochs


MASK_FAULTS = {
    "never new": _other(lambda epoch, kept, epochs: 0),
    "in blocks": _other(lambda epoch, kept, epochs: epoch * kept // epochs if kept < epochs else epoch),
    "stays with the last": _other(lambda epoch, kept, epochs: min(epoch, kept - 1)),
    "the same seed in each epoch": lambda copies, epochs: [mask_tokens(IDS, 4, 40, range(5), generator=torch.Generator().manual_seed(0))
                                                           for _ in range(epochs)],
    "copies ignored": lambda copies, epochs: epochs_by_the_book(None, epochs, 0),
    "masks on masks": lambda copies, epochs: _again(copies, epochs),
}


def _again(copies, epochs):
    generator, ids, kept = torch.Generator().manual_seed(0), IDS, []
    for epoch in range(epochs):
        if copies is None or epoch < copies:
            kept.append(mask_tokens(ids, 4, 40, range(5), generator=generator))
            ids = kept[-1][0]
        else:
            kept.append(kept[epoch - copies])
    return kept


@pytest.mark.parametrize("fault", MASK_FAULTS)
def test_faulty_masks_are_caught(fault):
    assert right_epochs(lambda copies, epochs: masked(copies, epochs)) and not right_epochs(MASK_FAULTS[fault])


def test_masks_come_again_or_do_not():
    ten, new = masked(4), masked(None)
    assert all(a[0].equal(b[0]) and a[1].equal(b[1]) for a, b in zip(ten[4:], ten))
    assert all(a[0].equal(b[0]) for a, b in zip(ten[:4], new))
    assert len({tuple(labels.flatten().tolist()) for _, labels in new}) == 12
    for inputs, labels in new:
        chosen = labels != -100
        assert labels[chosen].equal(IDS[chosen]) and inputs[~chosen].equal(IDS[~chosen])


def test_masks_share_and_special_ids():
    ids = torch.randint(0, 40, (50, 200), generator=torch.Generator().manual_seed(1))
    for rate in (0.15, 0.4):
        labels = torch.stack([labels for _, labels in masked(None, 10, ids=ids, rate=rate)])
        words = (ids >= 5).expand_as(labels)
        assert (labels[~words] == -100).all()
        assert abs((labels[words] != -100).float().mean() - rate) < 0.01


def test_epochs_without_end_and_generators():
    endless = dynamic_mask(IDS, 4, 40, [0, 1, 2, 3, 4], copies=2)
    seen = [next(endless)[1] for _ in range(9)]
    assert all(a.equal(b) for a, b in zip(seen[2:], seen))
    endless = dynamic_mask(IDS, 4, 40, range(5))
    assert len({tuple(next(endless)[1].flatten().tolist()) for _ in range(9)}) == 9
    assert all(a[0].equal(b[0]) for a, b in zip(masked(None, seed=3), masked(None, seed=3)))
    once = iter(range(5))   # special ids that can be read only once count in every epoch
    for special in (once, {0, 1, 2, 3, 4}, torch.arange(5)):
        again = list(dynamic_mask(IDS % 9, 4, 40, special, 6, generator=torch.Generator().manual_seed(0)))
        assert len(again) == 6 and all((labels[IDS % 9 < 5] == -100).all() and (labels != -100).any() for _, labels in again)


@pytest.mark.parametrize("how, says", [
    ({"epochs": 0}, "epochs"), ({"epochs": 2.5}, "epochs"), ({"copies": 0}, "copies"), ({"copies": True}, "copies"), ({"rate": 1.5}, "rate"),
])
def test_masks_that_are_refused(unchecked, how, says):
    with pytest.raises(ValueError, match=says):
        dynamic_mask(IDS, 4, 40, range(5), **{"epochs": 3} | how)


def test_masks_without_special_ids_are_refused(unchecked):
    for special in (None, 3, "0"):
        with pytest.raises(TypeError, match="special_ids"):
            dynamic_mask(IDS, 4, 40, special)


def test_models_and_positions_that_are_refused(unchecked):
    model = small_roberta()
    for config, error in ((None, TypeError), ({"vocab_size": 9}, TypeError), (BertConfig.roberta(9, num_segments=0), ValueError)):
        with pytest.raises(error, match="config|num_segments"):
            Roberta(config)
    for ids, mask, error, says in (
            ([[1, 2]], None, TypeError, "input_ids"), (torch.tensor([[1.0]]), None, TypeError, "input_ids"),
            (torch.tensor([1, 2]), None, ValueError, "input_ids"), (torch.tensor([[20]]), None, ValueError, "0 to 19"),
            (torch.tensor([[5, 6]]), torch.tensor([[1.0, 1.0]]), TypeError, "attention_mask"),
            (torch.tensor([[5, 6]]), torch.tensor([[1, 2]]), ValueError, "attention_mask"),
            (torch.tensor([[5, 6]]), torch.tensor([[1, 1, 1]]), ValueError, "attention_mask"),
            (torch.zeros(0, 3, dtype=torch.int64), None, ValueError, "input_ids")):
        with pytest.raises(error, match=says):
            model(ids, mask)
    for mask, pad, error, says in (
            ([[1]], 1, TypeError, "attention_mask"), (torch.tensor([[0.5]]), 1, TypeError, "attention_mask"),
            (torch.tensor([1, 1]), 1, ValueError, "attention_mask"), (torch.tensor([[1, 3]]), 1, ValueError, "attention_mask"),
            (torch.tensor([[1]]), -1, ValueError, "pad_id"), (torch.tensor([[1]]), 1.0, ValueError, "pad_id")):
        with pytest.raises(error, match=says):
            roberta_positions(mask, pad)


# -- the stored trainings

def test_stored_results_are_whole():
    results = small.stored_results()
    assert {"made_with", "seconds", "runs"} == results.keys() and results["made_with"].keys() == {"python", "torch", "transformer_course"}
    runs = results["runs"]
    settings_of = {"masking": ("stories", "epochs", "copies"), "formats": ("format",)}
    for kind, names in settings_of.items():
        seeds = {}
        for run in runs:
            if run["kind"] == kind:
                seeds.setdefault(tuple(run[name] for name in names), []).append(run["seed"])
        assert seeds and all(found == list(small.SEEDS) for found in seeds.values()), kind
    assert len({json.dumps(run, sort_keys=True) for run in runs}) == len(runs)


def test_held_out_stories_were_not_read():
    seen = {tuple(story) for story in small.story_texts(small.STORIES)}
    assert len(small.held_out_stories()) == 200 and not any(tuple(story) in seen for story in small.held_out_stories(400))


def test_the_same_words_are_masked_in_both_formats():
    (pairs, asked), (texts, labels) = small.same_words(False), small.same_words(True)
    assert len(asked) == 400 and asked[asked != -100].equal(labels[labels != -100]) and (pairs.input_ids == small.MASK_ID).sum() == (asked != -100).sum()
    assert pairs.token_type_ids.any() and not texts.token_type_ids.any()


def test_small_models_of_one_seed_are_alike_whatever_was_drawn_before():
    first = small.small_bert(3)
    state = torch.get_rng_state()
    second = small.small_bert(3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(a.equal(b) for a, b in zip(first.parameters(), second.parameters()))
    assert not first.bert.embeddings.word.weight.equal(small.small_bert(4).bert.embeddings.word.weight)


@pytest.mark.bench
def test_speed_against_hugging_face(unchecked, tmp_path, within):
    """Base width, two layers, half of the tokens padding."""
    from speed import ratio
    from transformers import RobertaConfig, RobertaModel
    torch.manual_seed(0)
    theirs = RobertaModel(RobertaConfig(num_hidden_layers=2, vocab_size=1000, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5),
                          add_pooling_layer=False).eval()
    theirs.save_pretrained(tmp_path)
    ours = Roberta.from_pretrained(tmp_path)
    ids, mask = batch_of((128,) * 8, "right", 1000, 1)
    with torch.inference_mode():
        within("RoBERTa, 8 x 128, against Hugging Face", ratio(lambda: ours(ids, mask), lambda: theirs(ids, attention_mask=mask.long())), 1.05)
