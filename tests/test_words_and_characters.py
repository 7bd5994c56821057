"""Chapter 08 against Hugging Face tokenizers, against known faults, and given the wrong things."""
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter

import pytest
from hypothesis import assume, given, strategies as st

from transformer_course.text import words_and_characters as ours
from transformer_course.text.words_and_characters import CharacterTokenizer, oov_rate, Vocabulary, WordTokenizer
from transformer_course.toolbox.exercises import check

MODULE = "transformer_course.text.words_and_characters"
ANY = st.text(st.one_of(st.characters(exclude_categories=["Cs"]),
                        st.sampled_from("aAbB곰이ㄱ\u1100\u1169\u11b7é\u0301İßΣςहि् \t\n.,'_-1[]\u200d\ufe0f\N{TEDDY BEAR}")), max_size=30)
OPTIONS = st.fixed_dictionaries({"lowercase": st.booleans(), "normalization": st.sampled_from(["NFC", "NFD", None])})


def trained(kind, texts, **options):
    """A tokenizer of these texts, or no example where they hold nothing to count."""
    try:
        return kind.train(texts, **options)
    except ValueError as error:
        assume("some text" not in str(error) and "holds a token" not in str(error))
        raise


# Agreement with Hugging Face ----------------------------------------------------------------------------------------

def theirs(tokenizer, pre_tokenizer):
    """Hugging Face's tokenizer with the same vocabulary."""
    hf = pytest.importorskip("tokenizers")
    model = hf.Tokenizer(hf.models.WordLevel(tokenizer.vocab, unk_token="[UNK]"))
    model.add_special_tokens(list(tokenizer.vocabulary.special_tokens))
    model.normalizer, model.pre_tokenizer = hf.normalizers.NFC(), pre_tokenizer
    return model


def agree(parity, name, tokenizer, pre_tokenizer, text, inputs):
    encoding = theirs(tokenizer, pre_tokenizer).encode(text)
    different = sum(a != b for a, b in zip(tokenizer.encode(text), encoding.ids)) + abs(
        len(tokenizer.encode(text)) - len(encoding.ids))
    parity(f"{MODULE}.{name}", "tokenizers", different, 0, inputs)
    assert tokenizer.tokenize(text) == encoding.tokens


SPACED = st.lists(st.sampled_from(["a", "bear", ".", ",", "곰이", "\u1100\u1169\u11b7", "e\u0301", "é", "[UNK]", "[PAD]", "x",
                                   "don't", "(", "…", "[", "12", " ", "\n", "\t ", "\u00a0", "É"]), max_size=15).map("".join)
WRITTEN = ["a bear, a bear.", "곰이 don't é ( 12 …"]


@given(SPACED)
def test_words_are_hugging_faces(parity, text):
    hf = pytest.importorskip("tokenizers")
    for punctuation, pre_tokenizer in (("attach", hf.pre_tokenizers.WhitespaceSplit()),
                                       ("split", hf.pre_tokenizers.BertPreTokenizer())):
        tokenizer = WordTokenizer.train(WRITTEN, punctuation=punctuation)
        agree(parity, "WordTokenizer", tokenizer, pre_tokenizer, text,
              "WordLevel over NFC words: accents, Hangul in both forms, punctuation, special tokens, white space")


@given(ANY)
def test_characters_are_hugging_faces(parity, text):
    hf = pytest.importorskip("tokenizers")
    assume(all(unicodedata.category(c) != "Cn" for c in text))  # the two may know different versions of Unicode
    tokenizer = CharacterTokenizer.train(WRITTEN)
    agree(parity, "CharacterTokenizer", tokenizer, hf.pre_tokenizers.Split(hf.Regex(r"[\s\S]"), "isolated"), text,
          "WordLevel over single characters of any Unicode text, after NFC")


# What is guaranteed -------------------------------------------------------------------------------------------------

@given(st.lists(ANY, min_size=1, max_size=4), ANY, OPTIONS)
def test_known_characters_come_back(corpus, text, options):
    tokenizer = trained(CharacterTokenizer, [*corpus, text], **options)
    ids = tokenizer.encode(text)
    assert tokenizer.tokenize(text) == tokenizer.split(text) == tokenizer.vocabulary.decode(ids)
    expected = "".join(tokenizer.split(text))
    assert tokenizer.decode(ids) == expected
    if not options["lowercase"] and "[" not in text:
        assert expected == (unicodedata.normalize(options["normalization"], text) if options["normalization"] else text)
    assert oov_rate(tokenizer, [text]) == 0 if text else True


@given(st.lists(ANY, min_size=1, max_size=4), ANY, OPTIONS, st.sampled_from(["split", "drop", "attach"]))
def test_decoded_words_have_the_same_ids(corpus, text, options, punctuation):
    tokenizer = trained(WordTokenizer, corpus, punctuation=punctuation, **options)
    for ids in (tokenizer.encode(text), list(range(tokenizer.vocab_size))):
        assert tokenizer.encode(tokenizer.decode(ids)) == ids
    assert tokenizer.tokenize(text) == [t if t in tokenizer.vocabulary else "[UNK]" for t in tokenizer.split(text)]


@given(st.lists(ANY, min_size=1, max_size=4), OPTIONS, st.booleans())
def test_saved_and_loaded_is_the_same(tmp_path_factory, corpus, options, words):
    kind = WordTokenizer if words else CharacterTokenizer
    tokenizer, path = trained(kind, corpus, **options), tmp_path_factory.mktemp("saved") / "tokenizer.json"
    tokenizer.save(path)
    again = kind.load(path)
    assert repr(again) == repr(tokenizer) and again.vocabulary == tokenizer.vocabulary
    assert all(again.encode(text) == tokenizer.encode(text) for text in corpus)
    tokenizer.vocabulary.save(path)
    assert Vocabulary.load(path) == tokenizer.vocabulary


@given(st.lists(st.lists(st.sampled_from("abcdef곰"), max_size=8), min_size=1, max_size=5), st.integers(3, 8), st.integers(1, 3))
def test_the_most_frequent_get_in(token_lists, max_size, min_count):
    counts = Counter(token for tokens in token_lists for token in tokens)
    assume(any(n >= min_count for n in counts.values()))
    vocabulary = Vocabulary.build(token_lists, max_size, min_count)
    chosen = vocabulary.tokens[2:]
    assert vocabulary.tokens[:2] == ("[PAD]", "[UNK]") and len(vocabulary) <= max_size
    assert all(counts[t] >= min_count for t in chosen)
    assert list(chosen) == sorted(chosen, key=lambda t: (-counts[t], t))
    out = [t for t in counts if t not in chosen and counts[t] >= min_count]
    assert not out or (len(vocabulary) == max_size and max((counts[t], [-ord(t)]) for t in out) < (
        counts[chosen[-1]], [-ord(chosen[-1])]))
    assert vocabulary.decode(vocabulary.encode(chosen)) == list(chosen)


def test_a_vocabulary_is_a_fixed_collection():
    vocabulary = Vocabulary(["a", "b"], ["[UNK]"], "[UNK]")
    assert list(vocabulary) == ["[UNK]", "a", "b"] and len(vocabulary) == 3 and "a" in vocabulary and 1 not in vocabulary
    assert vocabulary == Vocabulary(("a", "b"), ("[UNK]",), "[UNK]") and hash(vocabulary) == hash(Vocabulary(["a", "b"], ["[UNK]"], "[UNK]"))
    assert vocabulary != Vocabulary(["[UNK]", "a", "b"], unknown="[UNK]") and vocabulary != 3
    for name in ("tokens", "special_tokens", "unknown"):
        with pytest.raises(AttributeError):
            setattr(vocabulary, name, ())
    np = pytest.importorskip("numpy")
    assert vocabulary.decode(np.array([2, 0])) == ["b", "[UNK]"]


def test_special_tokens_in_a_text_are_found_the_longest_first():
    tokenizer = WordTokenizer(Vocabulary(["x", "s"], ["<s>", "<s>x", "[UNK]"], "[UNK]"))
    assert tokenizer.tokenize("<s>x <s> x<s>s") == ["<s>x", "<s>", "x", "<s>", "s"]
    characters = CharacterTokenizer(Vocabulary(["a", "b"], ["[MASK]", "[UNK]"], "[UNK]"))
    assert characters.tokenize("a[MASK]b[") == ["a", "[MASK]", "b", "[UNK]"]


def test_lower_case_is_normalized_again():
    tokenizer = WordTokenizer.train(["J\u030c"], lowercase=True)  # only the small letter has a character of its own
    assert tokenizer.split("J\u030c") == ["\u01f0"] and oov_rate(tokenizer, ["\u01f0", "j\u030c"]) == 0


def test_measures_on_a_text_that_can_be_counted_by_hand():
    words, characters = WordTokenizer.train(["a cute bear ."]), CharacterTokenizer.train(["a cute bear ."])
    table = ours.compare_tokenizers({"words": words, "characters": characters}, ["a cute box .", "bear"])
    assert table["words"] == (6, 2.5, 16 / 5, 0.2, 0.5)
    assert table["characters"] == (2 + len(set("a cute bear .")), 8.0, 1.0, 2 / 16, 0.5)
    assert oov_rate(words.vocabulary, [["a", "fox"], ["bear", "[UNK]"]]) == 0.25
    assert repr(table).splitlines()[1].split() == ["words", "6", "2.5", "3.20", "20.0", "%", "50", "%"]


def test_tokenizers_without_an_unknown_token_know_everything():
    class Letters:
        vocab, vocab_size = {"a": 0, "<unk>": 1}, 2

        def encode(self, text):
            return [0 if c == "a" else 1 for c in text]

    assert oov_rate(Letters(), ["ab"]) == 0.5
    Letters.unknown = None
    assert oov_rate(Letters(), ["ab"]) == 0.0
    strict = WordTokenizer.train(["a bear"], special_tokens=(), unknown=None)
    with pytest.raises(ValueError, match=r"token \('fox'\) is not in this vocabulary"):
        strict.encode("a fox")


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_and_dictionaries_of_counts():
    np = pytest.importorskip("numpy")
    assert len(Vocabulary.build([["a", "b", "c"]], max_size=np.int64(4), min_count=np.int32(1))) == 4
    assert Vocabulary.build([{"a": 5}, ["b"], ["b"]]).tokens[2:] == ("b", "a")  # a dictionary is its keys, each once


@pytest.mark.usefixtures("unchecked")
def test_each_text_is_encoded_once_and_read_from_a_generator():
    class Counting(CharacterTokenizer):
        calls = 0

        def encode(self, text):
            type(self).calls += 1
            return super().encode(text)

    table = ours.compare_tokenizers({8: Counting.train(["ab"])}, (text for text in ("a", "abc")))
    assert Counting.calls == 2 and table[8] == (4, 2.0, 1.0, 0.25, 0.5)
    assert repr(table).splitlines()[1].startswith("8  ")


def test_a_very_long_word_stays_whole():
    word = "a" * 1_000_000 + "."
    assert WordTokenizer(Vocabulary(())).split(word) == [word[:-1], "."]


def test_long_chunks_are_not_kept():
    split = WordTokenizer(Vocabulary(())).split
    for length, kept in ((ours._CACHED_LENGTH, 1), (ours._CACHED_LENGTH + 1, 0), (100_000, 0)):
        ours._cut_before.cache_clear()
        assert split("a" * (length - 1) + ".") == ["a" * (length - 1), "."]
        assert ours._cut_before.cache_info().currsize == kept


@pytest.mark.parametrize("module, name", [("bpe", "BPETokenizer"), ("wordpiece", "WordPieceTokenizer"), ("unigram", "UnigramTokenizer")])
def test_the_later_tokenizers_can_be_compared(module, name):
    later = getattr(pytest.importorskip(f"transformer_course.text.{module}"), name)
    texts = ["a cute teddy bear is reading", "my teddy bear is cute", "a bear is reading a book"] * 4
    table = ours.compare_tokenizers({name: later.train(texts, 300 if name == "BPETokenizer" else 26)}, ["a cute bear", "\uacf0 a"])
    assert (table[name].oov_rate == 0) == (name == "BPETokenizer") and table[name].tokens_per_text > 2


# Known faults -------------------------------------------------------------------------------------------------------

def splits_only_between_words(cut):
    """Whether words with combining marks, of any script, stay whole, and signs come off."""
    return cut("हिन्दी, cafe\u0301!") == ["हिन्दी", ",", "cafe\u0301", "!"] and cut("곰이 잔다.") == ["곰이", "잔다", "."]


def test_combining_marks_stay_in_their_word():
    assert splits_only_between_words(WordTokenizer(Vocabulary(()), normalization=None).split)
    assert not splits_only_between_words(lambda text: re.findall(r"\w+|[^\w\s]", text))
    assert not splits_only_between_words(str.split)


def both_forms_are_known(make):
    """Whether a tokenizer trained on one normalization form knows the same text in the other (traps: Korean in NFD)."""
    text = "귀여운 곰이 café"
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
    return all(oov_rate(make([a]), [b]) == 0 for a in forms for b in forms)


def strips_accents(corpus):
    """NFD and marks dropped: right for é, and syllables become jamo; but it must be done to both sides."""
    known = CharacterTokenizer.train(corpus, normalization=None)
    known.split = lambda text: [c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn"]
    return known


@pytest.mark.parametrize("kind", [WordTokenizer, CharacterTokenizer])
def test_korean_is_known_in_both_normalization_forms(kind):
    assert both_forms_are_known(kind.train)
    assert both_forms_are_known(lambda corpus: kind.train(corpus, normalization="NFD"))
    assert not both_forms_are_known(lambda corpus: kind.train(corpus, normalization=None))
    assert not both_forms_are_known(strips_accents)


def looking_up_changes_nothing(make):
    """Whether a word is as unknown the second time, and the table as long."""
    table = make(["a", "bear"])
    before = len(table), "fox" in table
    look = table.id if hasattr(table, "id") else table.__getitem__
    return look("fox") == look("fox") and (len(table), "fox" in table) == before


def test_looking_up_an_unknown_word_does_not_add_it():
    from collections import defaultdict

    def default_dictionary(words):
        table = defaultdict(int)
        table.update({word: i for i, word in enumerate(["[UNK]", *words])})
        return table
    assert looking_up_changes_nothing(lambda words: Vocabulary(words, ["[UNK]"], "[UNK]"))
    assert not looking_up_changes_nothing(default_dictionary)


def same_in_every_process(definition):
    call = "\nprint(ids_of(['a cute teddy bear', 'the bear is reading a book']))"
    return len({subprocess.run([sys.executable, "-c", definition + call], env={**os.environ, "PYTHONHASHSEED": key},
                               capture_output=True, text=True, check=True).stdout for key in "123"}) == 1


def test_ids_do_not_depend_on_the_process():
    head = f"from {MODULE} import Vocabulary, WordTokenizer\n"
    assert same_in_every_process(head + "def ids_of(texts): return WordTokenizer.train(texts).vocab")
    assert not same_in_every_process(
        "def ids_of(texts): return {w: i for i, w in enumerate({w for t in texts for w in t.split()})}")
    assert not same_in_every_process(head + "def ids_of(texts): return Vocabulary({w for t in texts for w in t.split()}).tokens")


# The wrong things ---------------------------------------------------------------------------------------------------

@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("arguments, error, says", [
    ((["a", "a"],), ValueError, "tokens must be different, but 'a' comes twice"),
    ((["a", ""],), ValueError, "tokens must not hold the empty string"),
    ((["a", "\ud800"],), ValueError, r"each of tokens must be Unicode text, but character 0 is the lone surrogate '\\ud800'"),
    ((["a", 1],), TypeError, "each of tokens must be a string, not int"),
    (("abc",), TypeError, "tokens must be a list of strings, not str"),
    ((7,), TypeError, "tokens must be a list of strings, not int"),
    ((["a"], ["a"]), ValueError, "tokens must not repeat the special token 'a'"),
    ((["a"], "[UNK]"), TypeError, "special_tokens must be a list of strings, not str"),
    ((["a"], [], ["a"]), ValueError, r"unknown \(\['a'\]\) must be one of the tokens, or None"),
    ((["a"], [], "[UNK]"), ValueError, r"unknown \('\[UNK\]'\) must be one of the tokens, or None"),
])
def test_wrong_vocabularies_are_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        Vocabulary(*arguments)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("token_lists, options, error, says", [
    ([], {}, ValueError, "token_lists must hold a token that occurs 1 times or more"),
    ([[]], {}, ValueError, "token_lists must hold a token"),
    ([["[UNK]"]], {}, ValueError, "token_lists must hold a token"),
    ([["a"]], {"min_count": 2}, ValueError, "occurs 2 times or more"),
    ([["a"]], {"min_count": 0}, ValueError, r"min_count \(0\) must be at least 1"),
    ([["a"]], {"max_size": 2}, ValueError, r"max_size \(2\) must be at least 3"),
    ([["a"]], {"max_size": 3.0}, TypeError, "max_size must be a whole number, not 3.0"),
    ([["a"]], {"max_size": True}, TypeError, "max_size must be a whole number, not True"),
    ([["a"], None], {}, TypeError, "token_lists must hold lists of tokens, but 'NoneType' object is not iterable"),
    ([[["a"]]], {}, TypeError, "token_lists must hold lists of tokens, but unhashable type: 'list'"),
    (None, {}, TypeError, "token_lists must be a list of lists of tokens, not NoneType"),
    ([["a"]], {"max_size": "5"}, TypeError, "max_size must be a whole number, not '5'"),
    (["a bear"], {}, TypeError, "token_lists must hold lists of tokens, not strings; cut them"),
    ([[1]], {}, TypeError, "each of token_lists must be a string, not int"),
    ([["a"]], {"special_tokens": ()}, ValueError, "unknown"),
])
def test_vocabularies_of_nothing_are_refused(token_lists, options, error, says):
    with pytest.raises(error, match=says):
        Vocabulary.build(token_lists, **options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("call, error, says", [
    (lambda v: v.token(-1), ValueError, r"id \(-1\) must be at least 0 and less than 2"),
    (lambda v: v.decode([0, 2]), ValueError, r"id \(2\) must be"),
    (lambda v: v.token(True), ValueError, r"id \(True\)"),
    (lambda v: v.token(1.0), TypeError, "id must be a whole number, not float"),
    (lambda v: v.decode("01"), TypeError, "id must be a whole number, not str"),
    (lambda v: v.id("c"), ValueError, r"token \('c'\) is not in this vocabulary"),
    (lambda v: v.id(0), TypeError, "token must be a string, not int"),
    (lambda v: v.encode("ab"), TypeError, "tokens must be a list of tokens, not a string"),
    (lambda v: v.encode(None), TypeError, "tokens must be a list of tokens, not NoneType"),
    (lambda v: v.decode(0), TypeError, "ids must be a list of whole numbers, not int"),
])
def test_wrong_look_ups_are_refused(call, error, says):
    with pytest.raises(error, match=says):
        call(Vocabulary(["a", "b"]))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", [WordTokenizer, CharacterTokenizer])
@pytest.mark.parametrize("corpus, options, error, says", [
    ([], {}, ValueError, "corpus must hold some text to learn from"),
    (["", "[UNK]"], {}, ValueError, "corpus must hold some text to learn from"),
    ("a bear", {}, TypeError, "corpus must be a list of texts, not str"),
    (None, {}, TypeError, "corpus must be a list of texts, not NoneType"),
    ([b"a"], {}, TypeError, "text must be a string, not bytes"),
    (["a\udfff"], {}, ValueError, r"text must be Unicode text, but character 1 is the lone surrogate '\\udfff'"),
    (["a"], {"vocab_size": 2}, ValueError, r"vocab_size \(2\) must be at least 3, for 2 special tokens and one other"),
    (["a"], {"vocab_size": "3"}, TypeError, "vocab_size must be a whole number, not '3'"),
    (["a"], {"min_count": 2}, ValueError, "occurs 2 times or more"),
    (["a"], {"lowercase": 1}, ValueError, r"lowercase \(1\) must be one of False, True"),
    (["a"], {"normalization": "NFKC"}, ValueError, r"normalization \('NFKC'\) must be one of 'NFC', 'NFD', None"),
    (["a"], {"special_tokens": ["[A B]", "[UNK]"]}, ValueError, r"special token '\[A B\]' must hold no white space"),
    (["a"], {"special_tokens": []}, ValueError, r"unknown \('\[UNK\]'\) must be one of the tokens"),
    (["a"], {"stemming": True}, TypeError, "stemming"),
])
def test_wrong_training_is_refused(kind, corpus, options, error, says):
    with pytest.raises(error, match=says):
        kind.train(corpus, **options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind, tokens, options, error, says", [
    (WordTokenizer, ["teddy bear"], {}, ValueError, "vocabulary holds 'teddy bear', which WordTokenizer"),
    (WordTokenizer, ["bear."], {}, ValueError, "never cuts from a text"),
    (WordTokenizer, ["Bear"], {"lowercase": True}, ValueError, "never cuts from a text"),
    (WordTokenizer, ["e\u0301"], {}, ValueError, "never cuts from a text"),
    (WordTokenizer, ["."], {"punctuation": "drop"}, ValueError, "never cuts from a text"),
    (WordTokenizer, ["a"], {"punctuation": "keep"}, ValueError, r"punctuation \('keep'\) must be one of 'split', 'drop', 'attach'"),
    (CharacterTokenizer, ["ab"], {}, ValueError, "vocabulary holds 'ab', which CharacterTokenizer"),
    (CharacterTokenizer, ["곰"], {"normalization": "NFD"}, ValueError, "never cuts from a text"),
])
def test_tokens_that_cannot_occur_are_refused(kind, tokens, options, error, says):
    with pytest.raises(error, match=says):
        kind(Vocabulary(tokens), **options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", [WordTokenizer, CharacterTokenizer])
def test_wrong_texts_and_ids_are_refused(kind):
    tokenizer = kind.train(["a b"])
    for call, error, says in [
            (lambda: tokenizer.encode("\udc00"), ValueError, "lone surrogate"), (lambda: tokenizer.tokenize(None), TypeError, "text must be a string"),
            (lambda: tokenizer.decode(None), TypeError, "ids must be a list of whole numbers, not NoneType"),
            (lambda: tokenizer.decode([99]), ValueError, r"id \(99\)"), (lambda: tokenizer.decode([-1]), ValueError, r"id \(-1\)"),
            (lambda: kind(["a"]), TypeError, "vocabulary must be a Vocabulary, not list")]:
        with pytest.raises(error, match=says):
            call()
    assert tokenizer.encode("") == tokenizer.tokenize("") == [] and tokenizer.decode([]) == ""


def edited(**changes):
    def edit(content):
        return {key: value for key, value in (content | changes).items() if value != "absent"}
    return edit


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("edit, says", [
    (edited(format="transformer_course.character_tokenizer"), "must hold a transformer_course.word_tokenizer, not 'transformer_course.character_tokenizer'"),
    (edited(format="absent"), "must hold a transformer_course.word_tokenizer, not None"),
    (edited(version=2), "has version 2, but 1 is expected"),
    (edited(version=True), "has version True, but 1 is expected"),
    (edited(vocabulary="absent"), "must hold the lists tokens and special_tokens"),
    (edited(vocabulary={"tokens": "ab", "special_tokens": [], "unknown": None}), "must hold the lists"),
    (edited(vocabulary={"tokens": ["a", "a"], "special_tokens": [], "unknown": None}), "'a' comes twice"),
    (edited(vocabulary={"tokens": ["a", 3], "special_tokens": [], "unknown": None}), "must be a string, not int"),
    (edited(vocabulary={"tokens": ["a"], "special_tokens": [], "unknown": ["[UNK]"]}), "holds no vocabulary"),
    (edited(vocabulary={"tokens": ["a b"], "special_tokens": [], "unknown": None}), "holds no word_tokenizer: vocabulary holds 'a b'"),
    (edited(lowercase="absent"), "must say lowercase"),
    (edited(lowercase=0), r"lowercase \(0\) must be one of"),
    (edited(punctuation="keep"), r"punctuation \('keep'\)"),
    (lambda content: [content], "not 'list'"),
])
def test_files_that_hold_something_else_are_refused(tmp_path, edit, says):
    path = tmp_path / "words.json"
    WordTokenizer.train(["a bear"]).save(path)
    assert WordTokenizer.load(path).encode("bear") == [3]
    path.write_text(json.dumps(edit(json.loads(path.read_text("utf-8")))), "utf-8")
    with pytest.raises(ValueError, match=says) as error:
        WordTokenizer.load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1", b"no", b"[" * 100_000])
def test_files_that_are_no_json_are_refused(tmp_path, content):
    path = tmp_path / "words.json"
    path.write_bytes(content)
    for load in (Vocabulary.load, WordTokenizer.load):
        with pytest.raises(ValueError, match="is not a JSON file"):
            load(path)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("call, error, says", [
    (lambda t: oov_rate(t, []), ValueError, "texts must hold at least one token"),
    (lambda t: oov_rate(t, ["", " "]), ValueError, "texts must hold at least one token"),
    (lambda t: oov_rate(t.vocabulary, ["a bear"]), TypeError, "texts must hold lists of tokens for a Vocabulary, not strings"),
    (lambda t: ours.compare_tokenizers({"v": t.vocabulary}, ["a"]), TypeError, r"tokenizers\['v'\] must be a tokenizer, but has no vocab"),
    (lambda t: oov_rate(t.vocabulary, [t.encode("a bear")]), TypeError, "each token of texts must be a string, not 2"),
    (lambda t: oov_rate(t.vocabulary, [None]), TypeError, "each of texts must be a list of tokens, not NoneType"),
    (lambda t: oov_rate(t, None), TypeError, "texts must be a list of texts, not NoneType"),
    (lambda t: oov_rate(None, ["a"]), TypeError, "tokenizer must be a tokenizer, but has no encode"),
    (lambda t: ours.compare_tokenizers({"t": t}, 5), TypeError, "texts must be a list of texts, not int"),
    (lambda t: oov_rate(t, "a bear"), TypeError, "texts must be a list of texts, not one string"),
    (lambda t: ours.compare_tokenizers({}, ["a"]), ValueError, "tokenizers is empty"),
    (lambda t: ours.compare_tokenizers({"t": t}, []), ValueError, "texts is empty"),
    (lambda t: ours.compare_tokenizers({"t": t}, [" "]), ValueError, "texts must hold at least one token"),
    (lambda t: ours.compare_tokenizers([t], ["a"]), TypeError, "tokenizers must be a dictionary, not list"),
    (lambda t: ours.compare_tokenizers({"t": t}, "a"), TypeError, "texts must be a list of texts, not one string"),
])
def test_measures_of_nothing_are_refused(call, error, says):
    with pytest.raises(error, match=says):
        call(WordTokenizer.train(["a bear"]))


# Exercises ----------------------------------------------------------------------------------------------------------

def types_not_tokens(words, share):
    return round(share * len(set(words)))


def in_order_of_appearance(words, share):
    covered, seen = 0, 0
    for count in Counter(words).values():
        if covered >= share * len(words):
            break
        covered, seen = covered + count, seen + 1
    return seen


def more_than_the_share(words, share):
    covered, needed = 0, 0
    for _, count in Counter(words).most_common():
        if covered > share * len(words):
            break
        covered, needed = covered + count, needed + 1
    return needed


def jamo_with(vowels, finals, always):
    def jamo_of(syllable):
        rest, final = divmod(ord(syllable) - 0xAC00, finals)
        lead, vowel = divmod(rest, vowels)
        return chr(0x1100 + lead) + chr(0x1161 + vowel) + (chr(0x11A7 + final) if final or always else "")
    return jamo_of


def rebuilt(tokens, words):
    return sorted({*tokens, *words})


def appended_as_they_come(tokens, words):
    return [*tokens, *dict.fromkeys(word for word in words if word not in tokens)]


def with_repeats(tokens, words):
    return [*tokens, *(word for word, _ in Counter(words).most_common())]


@pytest.mark.parametrize("exercise, wrong", [
    ("08.lengths", [(5, 11, 13), (6, 10, 14), (6, 12, 12), (6, 12), None]),
    ("08.coverage", [lambda w, s: next(k for k in range(len(w) + 1) if sum(sorted(Counter(w).values())[:k]) >= s * len(w)),
                     lambda w, s: in_order_of_appearance(sorted(w, key=lambda t: -w.count(t)), int(s * len(w)) / len(w)),
                     lambda w, s: max(1, in_order_of_appearance(sorted(w, key=lambda t: -w.count(t)), s)), types_not_tokens, in_order_of_appearance, more_than_the_share, lambda w, s: len(set(w))]),
    ("08.jamo", [jamo_with(21, 28, always=True), jamo_with(21, 27, always=False), jamo_with(19, 28, always=False),
                 lambda s: unicodedata.normalize("NFKC", s), lambda s: unicodedata.normalize("NFD", s)[:2],
                 lambda s: "".join(chr(ord(c) + (i == 2)) for i, c in enumerate(unicodedata.normalize("NFD", s))), lambda s: list(unicodedata.normalize("NFD", s))]),
    ("08.grow", [rebuilt, appended_as_they_come, with_repeats, lambda t, w: [*t, *sorted(set(w) - set(t))],
                 lambda t, w: [*sorted(set(w) - set(t)), *t],
                 lambda t, w: [*t, *(x for x, _ in Counter(x for x in w if x not in t).most_common())],
                 lambda t, w: [*t, *sorted({x for x in w if x not in t}, key=lambda x: (w.count(x), x))],
                 lambda t, w: [*t, *sorted({x for x in w if x not in t}, key=lambda x: (-w.count(x), x.lower()))]]),
    ("08.unseen", [lambda w: len(set(w)) / len(w), lambda w: sum(n == 1 for n in Counter(w).values()) / len(set(w)),
                   lambda w: sum(n == 2 for n in Counter(w).values()) / len(w), lambda w: 1 / len(w),
                   lambda w: sum(n == 1 for n in Counter(w).values()), lambda w: 1 - len(set(w)) / len(w),
                   lambda w: sum(n <= 2 for n in Counter(w).values()) / len(w)]),
])
def test_wrong_answers_are_told_from_right_ones(exercise, wrong):
    for answer in wrong:
        result = check(exercise, answer)
        assert not result and "not yet" in repr(result), answer


def words_by_recursion(words, share, covered=0):
    if covered >= share:
        return 0
    most = Counter(words).most_common(1)[0][0]
    rest = [word for word in words if word != most]
    total = len(words) / (1 - covered)
    return 1 + (words_by_recursion(rest, share, 1 - len(rest) / total) if rest else 0)


def with_numpy(words, share):
    np = pytest.importorskip("numpy")
    counts = np.sort(np.unique(np.array(words), return_counts=True)[1])[::-1]
    return np.searchsorted(np.concatenate([[0], counts.cumsum()]), share * len(words))


@pytest.mark.parametrize("exercise, answer", [
    ("08.lengths", [6, 12, 14]),
    ("08.coverage", words_by_recursion),
    ("08.coverage", with_numpy),
    ("08.jamo", lambda s: unicodedata.normalize("NFKD", s)),
    ("08.grow", lambda t, w: t + sorted(sorted({x for x in w if x not in t}), key=w.count, reverse=True)),
    ("08.unseen", lambda w: len([x for x in w if w.count(x) == 1]) / len(w)),
])
def test_unusual_right_answers_are_accepted(exercise, answer):
    assert check(exercise, answer), check(exercise, answer)
