"""Chapter 09 against Hugging Face tokenizers, against known faults, and given the wrong things."""
import copy
import json
import os
import pickle
import random
import statistics
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from hypothesis import given, settings, strategies as st
from speed import interleaved, seconds
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from transformer_course.text import bpe
from transformer_course.text._bpe_merging import _learn_merges, _merge
from transformer_course.text._bpe_words import _GPT2_PATTERN
from transformer_course.text.bpe import BPETokenizer, from_byte_symbols, pretokenize, to_byte_symbols
from transformer_course.toolbox.exercises import check
from transformer_course.toolbox.teddy_world import TeddyWorld

MODULE = "transformer_course.text.bpe"
ALL = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
SPECIAL = ("[UNK]", "<s>", "<s>x", "<|endoftext|>", "곰곰", " sp ", "a")


def python_source(size):
    text = ""
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        text += path.read_text(encoding="utf-8")
        if len(text) >= size:
            break
    return text[:size]


def korean():
    sentences = TeddyWorld(0).sentences(1500)
    return [s.korean_text for s in sentences] + [
        "가나다라 마바사아자차카타파하.\n값어치가 없다고? 닭과 앎, 뷁! ㅋㅋㅋ ㅠㅠ 3개월 만에 2,000원", "\u1112\u1161\u11ab"]


CORPORA = {"English": lambda: [topics[name] for name in sorted(topics)], "Korean": korean,
           "Python": lambda: [python_source(200_000)]}


def hugging_face(byte_level, unknown=None, special=(), **options):
    """Their pipeline for our options: a tokenizer without vocabulary, and its trainer."""
    theirs = Tokenizer(models.BPE(unk_token=unknown) if unknown else models.BPE())
    theirs.pre_tokenizer = (pre_tokenizers.ByteLevel(add_prefix_space=False) if byte_level
                            else pre_tokenizers.Split(Regex(_GPT2_PATTERN), "isolated"))
    theirs.decoder = decoders.ByteLevel() if byte_level else decoders.Fuse()
    return theirs, trainers.BpeTrainer(
        show_progress=False, special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if byte_level else [], **options)


def train_theirs(corpus, vocab_size, byte_level=True, special_tokens=(), min_frequency=0, unknown=None):
    theirs, trainer = hugging_face(byte_level, unknown, special_tokens, vocab_size=vocab_size, min_frequency=min_frequency)
    theirs.train_from_iterator(corpus, trainer)
    return theirs


def learned(tokenizer):
    """(merges, vocabulary) of either library's tokenizer."""
    if isinstance(tokenizer, BPETokenizer):
        return list(tokenizer.merges), tokenizer.vocab
    model = json.loads(tokenizer.to_str())["model"]
    return [tuple(pair) for pair in model["merges"]], model["vocab"]


def differences(mine, theirs):
    """How many merges and entries of the vocabulary two tokenizers do not share."""
    (merges, vocab), (their_merges, their_vocab) = learned(mine), learned(theirs)
    return (sum(a != b for a, b in zip(merges, their_merges)) + abs(len(merges) - len(their_merges))
            + len(vocab.items() ^ their_vocab.items()))


# The same merges ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("byte_level", [True, False], ids=["bytes", "characters"])
@pytest.mark.parametrize("name", CORPORA)
def test_training_is_hugging_faces(parity, name, byte_level):
    options = {"vocab_size": 2000, "byte_level": byte_level, "special_tokens": ["[UNK]", "<|endoftext|>"]}
    corpus = CORPORA[name]()
    difference = differences(BPETokenizer.train(corpus, **options), train_theirs(corpus, **options))
    level = "bytes" if byte_level else "characters"
    parity(f"{MODULE}.BPETokenizer.train", "tokenizers", difference, 0, f"{name}, {level}: merges and ids of 2,000 entries")


few_letters = st.lists(st.text("ab c'1.\n", max_size=14), min_size=1, max_size=8).filter(lambda c: any(c))


@given(few_letters, st.integers(0, 40), st.booleans(), st.integers(0, 3),
       st.lists(st.sampled_from(["ab", "a", "bab", "<s>", "aab", "Ġa"]), unique=True, max_size=3))
@settings(max_examples=200)
def test_training_on_ties_overlaps_and_taken_names_is_hugging_faces(parity, corpus, more, byte_level, least, special):
    start = len({*special, *(bpe._BYTE_OF if byte_level else set("".join(corpus)))})
    options = {"vocab_size": start + more, "byte_level": byte_level, "min_frequency": least, "special_tokens": special}
    theirs = train_theirs(corpus, **options)
    if byte_level and "Ġa" in special and "Ġa" in map("".join, learned(theirs)[0]):
        with pytest.raises(ValueError, match="also how bytes are written"):
            BPETokenizer.train(corpus, **options)
        return
    parity(f"{MODULE}.BPETokenizer.train", "tokenizers", differences(BPETokenizer.train(corpus, **options), theirs), 0,
           "texts of a few letters: ties, overlaps, special tokens that are also merges, early stops")


def test_training_stops_early_when_nothing_is_left():
    tokenizer = BPETokenizer.train(["ab ab"], vocab_size=1000)
    assert tokenizer.vocab_size == 256 + 2 and tokenizer.merges == (("a", "b"), ("Ġ", "ab"))
    assert learned(train_theirs(["ab ab"], 1000))[0] == list(tokenizer.merges)


def test_a_smaller_vocabulary_is_the_beginning_of_a_larger():
    small, large = (BPETokenizer.train(korean(), size) for size in (400, 700))
    assert large.merges[:144] == small.merges and list(large.vocab)[:400] == list(small.vocab)


def test_the_order_of_the_texts_does_not_matter():
    texts = korean()
    shuffled = random.Random(0).sample(texts, len(texts))
    assert BPETokenizer.train(texts, 600).merges == BPETokenizer.train(iter(shuffled), 600).merges


# The same ids ------------------------------------------------------------------------------------------------------

texts = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from([*SPECIAL, "<s", "x", "곰", "곰곰곰", "한글", "\u1112\u1161\u11ab", "ㅋㅋ", "é", "e\u0301", "\u200d", "\ufe0f",
                              "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f9f8", "\U0001f1f0\U0001f1f7", "\x00", "\x1c", "\x1f",
                              "\x85", "\xa0", "\u3000", "\u2028", "\ufeff", "'s", "'S", "'ll", "ⅷ", "½", "٣", "\u0378", "\U0001e4f0",
                              "\U00016d40", "\U000323af", " ", "  ", "\n", "\t", "\r\n", "def ", "self.", "the", " the", "1234",
                              "!?", "_", "tokenizer" * 30]), max_size=12).map("".join))


@pytest.fixture(scope="module")
def pairs():
    """[(ours, theirs)] on bytes and on characters, with special tokens."""
    corpus = [python_source(40_000), *korean(), "<s>x a <s> [UNK]"]
    return [(BPETokenizer.train(corpus, 1500, byte_level, SPECIAL, unknown=unknown),
             train_theirs(corpus, 1500, byte_level, SPECIAL, unknown=unknown))
            for byte_level, unknown in ((True, None), (False, "[UNK]"))]


@given(texts)
@settings(max_examples=300)
def test_ids_and_tokens_are_hugging_faces(parity, pairs, text):
    for ours, theirs in pairs:
        wanted = theirs.encode(text)
        parity(f"{MODULE}.BPETokenizer.encode", "tokenizers", int(ours.encode(text) != wanted.ids), 0,
               "any Unicode text, bytes and characters, special tokens inside words")
        parity(f"{MODULE}.BPETokenizer.tokenize", "tokenizers", int(ours.tokenize(text) != wanted.tokens), 0,
               "any Unicode text, bytes and characters, special tokens inside words")


@given(texts)
@settings(max_examples=300)
def test_bytes_come_back_always(pairs, text):
    ours = pairs[0][0]
    assert ours.decode(ours.encode(text)) == text
    assert "".join(pretokenize(text)) == text and from_byte_symbols(to_byte_symbols(text)).decode() == text


@given(st.lists(st.integers(0, 1499), max_size=30))
@settings(max_examples=200)
def test_any_ids_decode_as_hugging_faces(parity, pairs, ids):
    for ours, theirs in pairs:  # theirs takes the letters of a special token for signs of bytes, which matters for none of these
        parity(f"{MODULE}.BPETokenizer.decode", "tokenizers",
               int(ours.decode(ids) != theirs.decode(ids, skip_special_tokens=False)), 0, "any ids, parts of characters too")


@pytest.mark.parametrize("between", ["", "a", " ", "1", ".", "\n", "'"])
def test_every_code_point_is_cut_as_by_hugging_face(parity, between):
    text = between.join(ALL[:0x3000] + ALL[0x3000::31] if between else ALL)  # one of another class breaks a run of its class
    theirs = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    ours = map(to_byte_symbols, pretokenize(text))
    parity(f"{MODULE}.pretokenize", "tokenizers", sum(a != b for a, (b, _) in zip(ours, theirs, strict=True)), 0,
           "every code point; many also between letters, digits, spaces, punctuation")


@pytest.mark.parametrize("text", ["", " ", "\n\n", "a" * 5000, "ab" * 3000, " " * 3000, "곰" * 2000, "\U0001f9f8" * 1500, "ㅋ" * 999])
def test_long_and_empty_texts_are_encoded_alike(pairs, text):
    for ours, theirs in pairs:
        assert ours.encode(text) == theirs.encode(text).ids


def test_a_very_long_word_does_not_take_quadratic_time():
    tokenizer = BPETokenizer.train([python_source(100_000)], 1500)
    word = "".join(random.Random(0).choices("etaoinsrdl", k=200_000))
    start = time.process_time()
    ids = tokenizer.encode(word)
    assert time.process_time() - start < 5 and tokenizer.decode(ids) == word  # 0.2 s; quadratic: minutes


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), unique=True, max_size=6))
@settings(max_examples=200)
def test_merging_by_a_heap_is_merging_by_looking(ids, rules):
    ranks = {pair: (rank, 4 + rank % 4) for rank, pair in enumerate(rules)}
    wanted = list(ids)
    while places := [(ranks[pair][0], i) for i, pair in enumerate(pairwise(wanted)) if pair in ranks]:
        _, i = min(places)
        wanted[i:i + 2] = [ranks[tuple(wanted[i:i + 2])][1]]
    assert _merge(ids, ranks) == wanted


def test_a_place_whose_pair_has_changed_waits_for_its_new_rank():
    ranks = {(1, 2): (0, 4), (0, 1): (1, 5), (4, 3): (2, 6), (0, 4): (3, 7)}  # b c; a b; bc d; a bc
    assert _merge([0, 1, 2, 3], ranks) == [0, 6]  # not [7, 3]: the place of "a b" is "a bc" by now


# A space before the text, as Hugging Face's ByteLevel() puts it when nothing is said ---------------------------------------

@pytest.fixture(scope="module")
def prefixed():
    """(ours, theirs), both trained on texts that are given a space."""
    corpus, options = [python_source(20_000), "", *korean()[:300], " a"], {"vocab_size": 900, "special_tokens": list(SPECIAL)}
    theirs, trainer = hugging_face(True, special=SPECIAL, vocab_size=900)
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel()
    theirs.train_from_iterator(corpus, trainer)
    return BPETokenizer.train(corpus, add_prefix_space=True, **options), theirs


@given(texts)
@settings(max_examples=200)
def test_a_prefix_space_is_hugging_faces(parity, prefixed, text):
    ours, theirs = prefixed
    wanted = theirs.encode(text)
    assert learned(ours) == learned(theirs) and ours.tokenize(text) == wanted.tokens
    parity(f"{MODULE}.BPETokenizer.encode", "tokenizers", int(ours.encode(text) != wanted.ids), 0, "any Unicode text, add_prefix_space=True")
    assert ours.decode(ours.encode(text)) == theirs.decode(wanted.ids, skip_special_tokens=False)


def test_a_prefix_space_is_kept_in_the_file(prefixed, tmp_path):
    ours, theirs = prefixed
    path = tmp_path / "tokenizer.json"
    for text in ("", "a b", " a b", "\ta", "\n", "\u3000곰", "곰<s>b <s>x\n<s>"):
        ours.save(path)
        assert Tokenizer.from_file(str(path)).encode(text).ids == BPETokenizer.load(path).encode(text) == ours.encode(text)
        theirs.save(str(path))
        assert BPETokenizer.load(path).add_prefix_space and BPETokenizer.load(path).encode(text) == ours.encode(text)
    assert ours.decode(ours.encode("곰<s>b")) == " 곰<s> b"


@pytest.mark.parametrize("spell", [list, " ".join], ids=["pairs", "strings"])
@pytest.mark.parametrize("initial", [True, False], ids=["256 bytes", "only what was seen"])
@pytest.mark.parametrize("unknown", [None, "[UNK]"])
def test_files_of_other_trainings_load(tmp_path, spell, initial, unknown):
    theirs, trainer = hugging_face(True, unknown, ["<s>", "[UNK]"], vocab_size=330)
    trainer.initial_alphabet = pre_tokenizers.ByteLevel.alphabet() if initial else []
    theirs.pre_tokenizer, theirs.post_processor = pre_tokenizers.ByteLevel(), processors.ByteLevel(trim_offsets=initial)
    theirs.train_from_iterator(korean()[:50], trainer)
    data = json.loads(theirs.to_str())
    data["model"]["merges"] = [spell(pair) for pair in data["model"]["merges"]]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data))
    ours = BPETokenizer.load(path)
    for text in ("곰이 책을", "<s>곰[UNK]", "Zebra~\n\x00"):
        if not initial and unknown is None and text[0] == "Z":
            assert len(theirs.encode(text).tokens) < 9  # theirs drops what it does not know
            with pytest.raises(ValueError, match="the vocabulary has no token for 'Z'"):
                ours.encode(text)
        else:
            assert ours.encode(text) == theirs.encode(text).ids


# The cache ---------------------------------------------------------------------------------------------------------

def test_the_cache_is_bounded_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(bpe, "_CACHED_WORDS", 10)
    tokenizer = BPETokenizer.train(korean(), 500)
    fresh = BPETokenizer(tokenizer.vocab, tokenizer.merges)
    for text in korean()[:200]:
        assert tokenizer.encode(text) == tokenizer.encode(text) == fresh.encode(text)
        assert len(tokenizer._cache) <= 10
    tokenizer.encode("a" * 300)
    assert "a" * 300 not in tokenizer._cache
    ids = tokenizer.encode("곰")
    ids.append(-1)  # what was handed out is the caller's own
    assert tokenizer.encode("곰") == ids[:-1]


def test_threads_may_share_a_tokenizer(monkeypatch):
    monkeypatch.setattr(bpe, "_CACHED_WORDS", 20)
    tokenizer, wrong = BPETokenizer.train(korean(), 500), []
    wanted = {text: tokenizer.encode(text) for text in korean()[:150]}

    def work(seed):
        for text in random.Random(seed).choices(list(wanted), k=300):
            if tokenizer.encode(text) != wanted[text]:
                wrong.append(text)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


def test_a_tokenizer_can_be_copied_sent_and_not_be_changed_from_outside(pairs):
    for tokenizer, _ in pairs:
        for other in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
            assert other.encode("<s>x 곰") == tokenizer.encode("<s>x 곰")
        tokenizer.vocab.clear()
        assert tokenizer.vocab_size == 1500


# Files -------------------------------------------------------------------------------------------------------------

@given(texts)
@settings(max_examples=50)
def test_hugging_face_loads_what_we_save(pairs, tmp_path_factory, text):
    for ours, _ in pairs:
        path = tmp_path_factory.mktemp("saved") / "tokenizer.json"
        ours.save(path)
        theirs = Tokenizer.from_file(str(path))
        assert theirs.encode(text).ids == ours.encode(text)
        assert theirs.decode(theirs.encode(text).ids, skip_special_tokens=False) == ours.decode(ours.encode(text))
        again = BPETokenizer.load(path)
        assert (again.vocab, again.merges, again.special_tokens, again.unknown, again.byte_level) == (
            ours.vocab, ours.merges, tuple(sorted(SPECIAL, key=ours.vocab.get)), ours.unknown, ours.byte_level)


@given(texts)
@settings(max_examples=50)
def test_we_load_what_hugging_face_saves(pairs, tmp_path_factory, text):
    for _, theirs in pairs:
        path = tmp_path_factory.mktemp("saved") / "tokenizer.json"
        theirs.save(str(path))
        assert BPETokenizer.load(path).encode(text) == theirs.encode(text).ids


def test_gpt2s_own_form_of_the_file_is_loaded(pairs, tmp_path):
    ours, theirs = pairs[0]
    data = json.loads(theirs.to_str())
    del data["model"]["type"], data["model"]["ignore_merges"]
    data["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": "", "merges": [" ".join(m) for m in ours.merges]}
    data["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    data["added_tokens"].append({"id": 1500, "content": "<late>", "single_word": False, "lstrip": False, "rstrip": False,
                                 "normalized": False, "special": True})
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data))
    loaded = BPETokenizer.load(path)
    assert loaded.encode("<late> 곰<s>x") == Tokenizer.from_file(str(path)).encode("<late> 곰<s>x").ids
    assert loaded.decode([1500]) == "<late>"


@pytest.fixture
def gpt2_files(pairs, tmp_path):
    """(vocab.json, merges.txt, our tokenizer) of a small vocabulary with <|endoftext|> at its end."""
    small = BPETokenizer.train(korean(), 400)
    vocab = small.vocab | {"<|endoftext|>": 400}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    lines = ["#version: 0.2", *map(" ".join, small.merges)]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "vocab.json", tmp_path / "merges.txt", small


def test_gpt2s_two_files(parity, gpt2_files):
    vocab, merges, small = gpt2_files
    ours = BPETokenizer.from_gpt2(vocab, merges)
    theirs = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.add_special_tokens(["<|endoftext|>"])
    assert ours.special_tokens == ("<|endoftext|>",) and ours.merges == small.merges
    for text in [*korean()[:50], "a<|endoftext|>b", "# #\n", ""]:
        parity(f"{MODULE}.BPETokenizer.from_gpt2", "tokenizers", int(ours.encode(text) != theirs.encode(text).ids), 0,
               "vocab.json and merges.txt, Korean sentences")
    assert BPETokenizer.from_gpt2(vocab, merges, special_tokens=()).encode("<|endoftext|>")[0] != 400
    merges.write_bytes(merges.read_bytes().replace(b"\n", b"\r\n"))
    assert BPETokenizer.from_gpt2(vocab, merges).merges == small.merges


@pytest.mark.parametrize("line, text, says", [
    (3, "onlyone", r"line 3: 'onlyone' must be two tokens"),
    (4, "a b c", r"line 4: 'a b c' must be two tokens"),
    (5, "", r"line 5: '' must be two tokens"),
    (6, "a ", r"line 6: 'a ' must be two tokens"),
    (7, "Q Z", r"line 7: the merge \('Q Z'\) has a product, 'QZ', that is not in the vocabulary"),
    (8, "QQ Z", r"line 8: the merge \('QQ Z'\) has a first part, 'QQ', that is not in"),
    (9, None, r"line 9: the merge .* comes twice"),
    (10, b"\xff\xfe", r"line 10: not UTF-8"),
])
def test_corrupted_merges_are_named_by_their_line(gpt2_files, line, text, says):
    vocab, merges, _ = gpt2_files
    lines = merges.read_bytes().split(b"\n")
    lines[line - 1] = lines[1] if text is None else text if isinstance(text, bytes) else text.encode()
    merges.write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match=says) as error:
        BPETokenizer.from_gpt2(vocab, merges)
    assert "merges.txt" in str(error.value)


def set_to(*path, value):
    def change(data):
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value
    return change


@pytest.mark.parametrize("change, says", [
    (set_to("version", value="2.0"), "version is '2.0', but must be '1.0'"),
    (set_to("model", "type", value="WordPiece"), "model is of type WordPiece, but must be BPE"),
    (set_to("model", "type", value="Unigram"), "model is of type Unigram"),
    (set_to("model", value=None), "model is of type None"),
    (set_to("normalizer", value={"type": "NFC"}), "normalizer is .*NFC"),
    (set_to("truncation", value={"max_length": 5}), "truncation is"),
    (set_to("padding", value={"pad_id": 0}), "padding is"),
    (set_to("pre_tokenizer", value=None), "pre_tokenizer is of type None"),
    (set_to("pre_tokenizer", value="ByteLevel"), "pre_tokenizer must be an object"),
    (set_to("pre_tokenizer", "type", value="Whitespace"), "pre_tokenizer is of type Whitespace"),
    (set_to("pre_tokenizer", "add_prefix_space", value=None), "pre_tokenizer.add_prefix_space is None"),
    (set_to("pre_tokenizer", "use_regex", value=False), "pre_tokenizer.use_regex is False"),
    (set_to("decoder", value={"type": "Metaspace"}), "decoder is of type Metaspace"),
    (set_to("post_processor", value={"type": "TemplateProcessing"}), "post_processor is of type TemplateProcessing"),
    (set_to("model", "byte_fallback", value=True), "model.byte_fallback is True"),
    (set_to("model", "fuse_unk", value=True), "model.fuse_unk is True"),
    (set_to("model", "ignore_merges", value=True), "model.ignore_merges is True"),
    (set_to("model", "dropout", value=0.1), "model.dropout is 0.1"),
    (set_to("model", "end_of_word_suffix", value="</w>"), "model.end_of_word_suffix is '</w>'"),
    (set_to("model", "unk_token", value="[MISSING]"), r"special token '\[MISSING\]' is not in the vocabulary"),
    (set_to("model", "vocab", value=[]), "model must have a vocab"),
    (set_to("model", "vocab", value={}), r"merges\[0\] .* that is not in the vocabulary"),
    (set_to("model", "vocab", "b", value=5), "gives the id 5 to both"),
    (set_to("model", "vocab", "b", value=-1), r"vocab\['b'\] \(-1\) must be a whole number"),
    (set_to("model", "vocab", "b", value="7"), r"vocab\['b'\] \('7'\) must be a whole number"),
    (set_to("model", "vocab", "b", value=True), r"vocab\['b'\] \(True\) must be a whole number"),
    (set_to("model", "merges", 3, value=["Q", "Z"]), r"merges\[3\] \('Q Z'\) has a product, 'QZ'"),
    (set_to("model", "merges", 3, value="Q Z Z"), r"merges\[3\] must be a pair of strings"),
    (set_to("model", "merges", 3, value=7), r"merges\[3\] must be a pair of strings, not 7"),
    (set_to("model", "merges", 3, value=["a", 7]), r"merges\[3\] must be a pair of strings"),
    (set_to("added_tokens", 0, "lstrip", value=True), r"added token '\[UNK\]': lstrip is True"),
    (set_to("added_tokens", 0, "special", value=False), "special is False"),
    (set_to("added_tokens", 0, "id", value=77), "has the id 77 here"),
    (set_to("added_tokens", 0, "normalized", value=True), "differ in normalized"),
    (set_to("added_tokens", 0, value={}), "which has no content"),
    (set_to("added_tokens", value=5), "added_tokens must be a list, not 5"),
])
def test_files_that_are_not_ours_are_refused(pairs, tmp_path, change, says):
    path = tmp_path / "tokenizer.json"
    pairs[0][0].save(path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=says) as error:
        BPETokenizer.load(path)
    assert "tokenizer.json" in str(error.value)


@pytest.mark.parametrize("content, says", [
    (b"", "is not sound JSON"), (b"[1]", "must hold a JSON object, not list"), (b"{\"a\": 1, \"a\": 2}", "the key 'a' stands twice"),
    (b"\xff", "is not sound JSON"), (b"{" * 100_000, "is not sound JSON"), (b"{}", "version is None"),
])
def test_what_is_no_tokenizer_is_refused(tmp_path, content, says):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says):
        BPETokenizer.load(path)
    with pytest.raises(OSError):
        BPETokenizer.load(tmp_path / "absent.json")


# Known faults ------------------------------------------------------------------------------------------------------

def merges_agree(learn):
    """Whether `learn(words, num_merges)` finds Hugging Face's merges, on corpora of ties and overlaps."""
    rng = random.Random(0)
    for _ in range(60):
        words = ["".join(rng.choices("ab", k=rng.randint(1, 12))) for _ in range(rng.randint(1, 6))]
        size = len(set("".join(words)))
        if learn(list(words), 12) != learned(train_theirs(words, size + 12, byte_level=False))[0]:
            return False
    return True


def by_recounting(choose, replace):
    def learn(words, num_merges):
        tokens = sorted(set("".join(words)))
        words, merges = [[tokens.index(c) for c in word] for word in words], []
        limit = len(tokens) + num_merges
        while len(tokens) < limit and (counts := Counter(pair for word in words for pair in pairwise(word))):
            pair = choose(counts)
            merges.append((tokens[pair[0]], tokens[pair[1]]))
            tokens.append("".join(merges[-1]))
            words = [replace(word, pair, len(tokens) - 1) for word in words]
        return merges
    return learn


def smallest_ids(counts):
    return min(counts, key=lambda pair: (-counts[pair], pair))


def left_to_right(word, pair, new):
    result = []
    for symbol in word:
        result.append(symbol)
        if tuple(result[-2:]) == pair:
            result[-2:] = [new]
    return result


def first_met(counts):  # trap 59
    return max(counts, key=counts.get)


def largest_ids(counts):
    return max(counts, key=lambda pair: (counts[pair], pair))


def right_to_left(word, pair, new):  # trap 60
    return left_to_right(word[::-1], pair[::-1], new)[::-1]


def overlapping(word, pair, new):  # trap 60: every place of "aaa", the middle letter twice
    places = [i for i, found in enumerate(pairwise(word)) if found == pair]
    return [new if i in places else symbol for i, symbol in enumerate(word) if i in places or i - 1 not in places]


def ours_fast(words, num_merges):
    vocab = {c: i for i, c in enumerate(sorted(set("".join(words))))}
    pairs = _learn_merges(Counter(words), vocab, len(vocab) + num_merges)
    names = list(vocab)
    return [(names[a], names[b]) for a, b in pairs]


def test_our_merges_agree():
    assert merges_agree(ours_fast) and merges_agree(by_recounting(smallest_ids, left_to_right))


@pytest.mark.parametrize("fault", [by_recounting(first_met, left_to_right), by_recounting(largest_ids, left_to_right),
                                   by_recounting(smallest_ids, right_to_left), by_recounting(smallest_ids, overlapping)],
                         ids=["first met", "largest ids", "right to left", "overlapping"])
def test_faulty_training_is_caught(fault):
    assert not merges_agree(fault)


def finds_the_longest(encode_special):  # trap 61
    return encode_special("<s>x<s>") == ["<s>x", "<s>"]


def test_the_longest_special_token_is_found():
    def shortest_first(text):
        import re
        return [piece for piece in re.split("(<s>|<s>x)", text) if piece]
    ours = BPETokenizer.train(["x"], 300, special_tokens=["<s>", "<s>x"])
    assert finds_the_longest(ours.tokenize) and not finds_the_longest(shortest_first)


def keeps_newlines(train):  # trap 62
    return any("Ċ" in first + second for first, second in train("if x:\n    return\n" * 9).merges)


def test_texts_are_not_cut_into_lines():
    assert keeps_newlines(lambda text: BPETokenizer.train([text], 290))
    assert not keeps_newlines(lambda text: BPETokenizer.train(text.splitlines(), 290))


# The wrong things --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("corpus, options, error, says", [
    ([], {}, ValueError, "corpus is empty"),
    (["", ""], {}, ValueError, "corpus is empty"),
    ("one text", {}, TypeError, "corpus must be a list of texts, not str"),
    (None, {}, TypeError, "corpus must be a list of texts, not NoneType"),
    (["a", 7], {}, TypeError, r"corpus\[1\] must be a string, not int"),
    (["a", "b\ud800"], {}, ValueError, r"corpus\[1\] must be Unicode text, but character 1 is the lone surrogate '\\ud800'"),
    (["a"], {"vocab_size": 255}, ValueError, r"vocab_size \(255\) must be at least 256 to hold special tokens and alphabet"),
    (["a"], {"vocab_size": 256, "special_tokens": ["x|"]}, ValueError, r"vocab_size \(256\) must be at least 257"),
    (["abc"], {"vocab_size": 2, "byte_level": False}, ValueError, r"vocab_size \(2\) must be at least 3"),
    (["a"], {"vocab_size": 0}, ValueError, r"vocab_size \(0\) must be at least 1"),
    (["a"], {"vocab_size": 300.0}, TypeError, "vocab_size must be a whole number, not 300.0"),
    (["a"], {"vocab_size": True}, TypeError, "vocab_size must be a whole number"),
    (["a"], {"min_frequency": -1}, ValueError, r"min_frequency \(-1\) must be at least 0"),
    (["a"], {"byte_level": "yes"}, TypeError, "byte_level must be True or False"),
    (["a"], {"add_prefix_space": 1}, TypeError, "add_prefix_space must be True or False, not 1"),
    (["a"], {"add_prefix_space": True, "byte_level": False}, ValueError, r"add_prefix_space \(True\) needs byte_level=True"),
    (["a"], {"special_tokens": "<s>"}, TypeError, "special_tokens must be a list of strings"),
    (["a"], {"special_tokens": ["<s>", "<s>"]}, ValueError, "special_tokens must be different, but '<s>' comes twice"),
    (["a"], {"special_tokens": None}, TypeError, "special_tokens must be a list of strings, not NoneType"),
    (["a"], {"special_tokens": [""]}, ValueError, "must not hold the empty string"),
    (["a"], {"special_tokens": [7]}, TypeError, "each of special_tokens must be a string"),
    (["a"], {"special_tokens": ["\udfff"]}, ValueError, "lone surrogate"),
    (["a"], {"special_tokens": ["Ġ"]}, ValueError, "'Ġ' is also how bytes are written"),
    (["a"], {"unknown": "[UNK]"}, ValueError, r"unknown \('\[UNK\]'\) must be one of special_tokens"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_training_is_refused(corpus, options, error, says):
    with pytest.raises(error, match=says):
        BPETokenizer.train(corpus, **{"vocab_size": 300} | options)


@pytest.mark.parametrize("text, error, says", [
    ("ab\ud83d", ValueError, r"text must be Unicode text, but character 2 is the lone surrogate '\\ud83d'"),
    ("\udc00", ValueError, "character 0 is the lone surrogate"), (b"ab", TypeError, "text must be a string, not bytes"), (None, TypeError, "text must be a string"),
])
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_text_is_refused(pairs, text, error, says):
    for function in (pairs[0][0].encode, pairs[0][0].tokenize, pairs[1][0].encode, pretokenize, to_byte_symbols):
        with pytest.raises(error, match=says):
            function(text)


def test_unknown_characters_are_never_dropped():
    tokenizer = BPETokenizer.train(["ab"], 3, byte_level=False)
    with pytest.raises(ValueError, match="no token for '곰', which occurs in 'a곰b', and there is no unknown token"):
        tokenizer.encode("a곰b")
    assert tokenizer.encode("ab") == [2] and tokenizer.encode("") == []


@pytest.mark.parametrize("ids, error, says", [
    ([0, 1500], ValueError, r"ids\[1\] \(1500\) is not in the vocabulary, which ends at 1499"),
    ([-1], ValueError, r"ids\[0\] \(-1\)"), ([1, 1.0], TypeError, r"ids\[1\] \(1.0\) must be a whole number"),
    (["a"], TypeError, r"ids\[0\] \('a'\)"), ("a", TypeError, r"ids\[0\] \('a'\)"),
    (None, TypeError, "ids must be a list of whole numbers, not NoneType"), (3, TypeError, "ids must be a list of whole numbers, not int"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_ids_are_refused(pairs, ids, error, says):
    for tokenizer, _ in pairs:
        with pytest.raises(error, match=says):
            tokenizer.decode(ids)


@pytest.mark.usefixtures("unchecked")
def test_ids_of_arrays_and_tensors_decode():
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    tokenizer = BPETokenizer.train(["ab ab"], 258)
    for ids in (np.array([256, 257]), torch.tensor([256, 257])):
        assert tokenizer.decode(list(ids)) == tokenizer.decode(ids) == "ab ab"
    assert BPETokenizer.train(["ab ab"], np.int64(258)).merges == tokenizer.merges


@pytest.mark.usefixtures("unchecked")
def test_ids_of_numpy_in_a_vocabulary_become_pythons(tmp_path):
    np = pytest.importorskip("numpy")
    tokenizer = BPETokenizer({"a": np.int64(1), "b": np.uint8(0), "ab": 2}, [("a", "b")], byte_level=False)
    assert list(map(type, tokenizer.vocab.values())) == [int] * 3 and tokenizer.encode("abb") == [2, 0]
    tokenizer.save(tmp_path / "tokenizer.json")
    assert BPETokenizer.load(tmp_path / "tokenizer.json").vocab == {"b": 0, "a": 1, "ab": 2}
    with pytest.raises(ValueError, match=r"vocab\['a'\] \(np.float64\(1.0\)\) must be a whole number from 0 up"):
        BPETokenizer({"a": np.float64(1)}, [])


@pytest.mark.usefixtures("unchecked")
def test_merges_that_are_no_list_are_refused():
    with pytest.raises(TypeError, match="merges must be a list of pairs of tokens, not NoneType"):
        BPETokenizer({"a": 0}, None)


@pytest.mark.parametrize("arguments, says", [
    (({}, []), "vocab must be a dictionary from tokens to ids, and not empty"),
    (({"a": 0, "b": 0}, []), "gives the id 0 to both 'a' and 'b'"),
    (({"a": 0, "b": 1}, [("a", "b")]), r"merges\[0\] \('a b'\) has a product, 'ab', that is not in the vocabulary"),
    (({"a": 0, "b": 1, "ab": 2}, [("a", "b"), ("a", "b")]), r"merges\[1\] \('a b'\) comes twice"),
    (({"a": 0}, [], False, ["<s>"]), "the special token '<s>' is not in the vocabulary"),
    (({"a": 0}, [], False, [], "<unk>"), "the special token '<unk>' is not in the vocabulary"),
])
def test_tables_that_do_not_fit_are_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        BPETokenizer(*arguments)


def test_no_sign_of_a_byte_is_made_up():
    with pytest.raises(ValueError, match="'곰' stands for no byte"):
        from_byte_symbols("a곰")


# Exercises ---------------------------------------------------------------------------------------------------------

def each_alone(pieces):
    return [piece.decode("utf-8", "replace") for piece in pieces]


def errors_ignored(pieces):
    import codecs
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    return [decoder.decode(piece, i == len(pieces)) for i, piece in enumerate(pieces, 1)]


def never_flushed(pieces):
    import codecs
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [decoder.decode(piece) for piece in pieces]


def without_the_end(pieces):
    """Everything so far is decoded each time, and what cannot be read at the end is cut off."""
    result, done, data = [], "", b""
    for piece in pieces:
        data += piece
        text = data.decode("utf-8", "replace").rstrip("\ufffd")
        result.append(text[len(done):])
        done = text
    return result


def all_or_nothing(pieces):
    result, data = [], b""
    for piece in pieces:
        data += piece
        try:
            result.append(data.decode())
            data = b""
        except UnicodeDecodeError:
            result.append("")
    return result


def all_at_the_end(pieces):
    return ["" for _ in pieces[1:]] + [b"".join(pieces).decode("utf-8", "replace")]


def pieces_of(word, merges):
    tokens = list(word)
    for pair in merges:
        tokens = left_to_right_strings(tokens, pair)
    return tokens


def left_to_right_strings(word, pair):
    result = []
    for piece in word:
        if result and (result[-1], piece) == tuple(pair):
            result[-1] += piece
        else:
            result.append(piece)
    return result


def fewest(enough, off=0, last=None):
    def answer(words, merges, target):
        for n in range(len(merges) + 1):
            if enough(words, merges[:n], target):
                return n + off
        return last(merges) if last else None
    return answer


def over_all(words, merges, target):
    return sum(map(len, words)) >= target * sum(len(pieces_of(word, merges)) for word in words)


def strictly(words, merges, target):
    return sum(map(len, words)) > target * sum(len(pieces_of(word, merges)) for word in words)


def mean_of_words(words, merges, target):
    return sum(len(word) / len(pieces_of(word, merges)) for word in words) / len(words) >= target


def changed(words=lambda words: words, merges=lambda merges: merges):
    """The right answer to another question: other words, or merges in another order."""
    def answer(given, pairs, target):
        for n in range(len(pairs) + 1):
            if over_all(words(given), merges(pairs[:n]), target):
                return n
    return answer


def of_bytes(words, merges, target):
    return sum(len(word.encode()) for word in words) >= target * sum(len(pieces_of(word, merges)) for word in words)


def dropout(draw_once=False, inverted=False, whole=False):
    def answer(word, merges, p, rng):
        if whole and rng.random() < p:
            return list(word)
        if draw_once:
            merges = [pair for pair in merges if rng.random() >= p]
        ranks, pieces = {pair: i for i, pair in enumerate(merges)}, list(word)
        while True:
            places = [(ranks[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in ranks
                      and (draw_once or whole or (rng.random() < p if inverted else rng.random() >= p))]
            if not places:
                return pieces
            _, i = min(places)
            pieces[i:i + 2] = [pieces[i] + pieces[i + 1]]
    return answer


@pytest.mark.parametrize("exercise, wrong", [
    ("09.by-hand", [("c", "a"), ("a", "n"), ("a", "t"), ("ca", "n"), "cat", None]),
    ("09.stream", [each_alone, errors_ignored, never_flushed, all_at_the_end, without_the_end, all_or_nothing, "".join]),
    ("09.fewest-merges", [fewest(strictly), fewest(mean_of_words), fewest(over_all, off=1), fewest(over_all, last=len),
                            fewest(of_bytes), changed(words=set), changed(words=lambda w: ["".join(w)]), changed(merges=sorted)]),
    ("09.dropout", [dropout(draw_once=True), dropout(inverted=True), dropout(whole=True), lambda w, m, p, r: pieces_of(w, m),
                     lambda w, m, p, r: dropout()(w, m, p, random)]),
])
def test_wrong_answers_are_told_from_right_ones(exercise, wrong):
    for answer in wrong:
        result = check(exercise, answer)
        assert not result and "not yet" in repr(result), answer


def by_hand_decoded(pieces):
    result, data = [], b""
    for i, piece in enumerate(pieces, start=1):
        data, text = data + piece, ""
        while data:
            try:
                text, data = text + data.decode(), b""
            except UnicodeDecodeError as error:
                text += data[:error.start].decode()
                if error.reason == "unexpected end of data" and i < len(pieces):
                    data = data[error.start:]
                    break
                text, data = text + "\ufffd", data[error.end:]
        result.append(text)
    return result


def by_recursion(word, merges, p, rng):
    def go(pieces):
        places = [(merges.index(pair), i) for i, pair in enumerate(pairwise(pieces)) if pair in merges and not rng.random() < p]
        if not places:
            return pieces
        _, i = min(places)
        return go(pieces[:i] + [pieces[i] + pieces[i + 1]] + pieces[i + 2:])
    return go(list(word))


@pytest.mark.parametrize("exercise, right", [
    ("09.by-hand", ["ca", "t"]), ("09.stream", by_hand_decoded), ("09.fewest-merges", changed()), ("09.dropout", by_recursion),
])
def test_right_answers_of_another_kind_are_accepted(exercise, right):
    assert check(exercise, right)


# Speed, run by `make bench` ----------------------------------------------------------------------------------------

@pytest.mark.bench
@pytest.mark.usefixtures("unchecked")
def test_training_against_hugging_face(within):
    text = python_source(1_000_000)
    ours, theirs = interleaved(lambda: BPETokenizer.train([text], 4096), lambda: train_theirs([text], 4096))
    within("training, 1 MB to 4,096 entries / Hugging Face", ours / theirs, 2.0)


@pytest.mark.bench
@pytest.mark.usefixtures("unchecked")
def test_training_against_recounting_everything(within):
    text = python_source(1_000_000)
    recount = by_recounting(smallest_ids, left_to_right)
    few = seconds(lambda: recount(pretokenize(text), 4))  # each merge recounts all; the text shrinks at most to a third
    ours = statistics.median(seconds(lambda: BPETokenizer.train([text], 4096)) for _ in range(3))
    within("training, in % of recounting everything (a third of its first merges' time for each)", 100 * ours / (few / 4 / 3 * 3840), 1.0)


@pytest.mark.bench
@pytest.mark.usefixtures("unchecked")
def test_training_is_about_linear_in_the_text(within):
    text = python_source(1_600_000)
    small, large = interleaved(lambda: BPETokenizer.train([text[:400_000]], 2048), lambda: BPETokenizer.train([text], 2048))
    within("training on 4 times the text / on the text", large / small, 5.0)


@pytest.mark.bench
@pytest.mark.usefixtures("unchecked")
def test_encoding_a_megabyte(within):
    text = python_source(1_000_000)
    ours, theirs = BPETokenizer.train([text], 4096), train_theirs([text], 4096)
    fresh = BPETokenizer(ours.vocab, ours.merges)
    within("seconds to encode 1 MB, cache empty", seconds(lambda: fresh.encode(text)), 1.0)
    mine, other = interleaved(lambda: ours.encode(text), lambda: theirs.encode(text))
    within("encoding 1 MB / Hugging Face", mine / other, 1.0)
    within("seconds to encode 1 MB, cache warm", mine, 1.0)


@pytest.mark.bench
@pytest.mark.usefixtures("unchecked")
def test_long_words_take_linear_time_nearly(within):
    tokenizer = BPETokenizer.train([python_source(100_000)], 2000)
    letters = "".join(random.Random(0).choices("etaoinsr", k=200_000))
    small, large = interleaved(lambda: tokenizer.encode(letters[:50_000]), lambda: tokenizer.encode(letters))
    within("encoding a word 4 times as long / the word (quadratic: 16)", large / small, 8.0)
