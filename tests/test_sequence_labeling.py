"""Chapter 06 against seqeval, against known faults, and given the wrong things."""
import subprocess
import sys
import time
import warnings
from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st
from seqeval.metrics import accuracy_score, f1_score
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2, Tokens

from transformer_course.metrics import sequence_labeling as ours
from transformer_course.toolbox.exercises import check

MODULE = "transformer_course.metrics.sequence_labeling"
RANDOM = "random tags, most of them malformed: stray I, E and S, labels that change within a span, bare prefixes, hyphens in labels"
CORPUS = "random sentences of malformed tags, some of them empty or without a span"

LABELS = ["-PER", "-LOC", "-ORG-COMPANY", "-곰", "-_", "-", ""]  # "B-" and "B" both have the label "_"


def tag(prefixes):
    return st.one_of(st.just("O"), st.builds(str.__add__, st.sampled_from(prefixes), st.sampled_from(LABELS)))


def sentence(prefixes):
    return st.lists(tag(prefixes), max_size=9)


@st.composite
def corpora(draw, prefixes):
    """(true, pred): sentences of tags, in which many predictions are right."""
    true = draw(st.lists(sentence(prefixes), min_size=1, max_size=5))
    pred = [draw(st.one_of(st.just(tags), st.lists(tag(prefixes), min_size=len(tags), max_size=len(tags)))) for tags in true]
    return true, pred


def quietly(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def seqeval_lenient(tags):
    return [(label, start, last + 1) for label, start, last in get_entities(tags)]


def seqeval_strict(tags):
    return [(entity.tag, entity.start, entity.end) for entity in Tokens(tags, IOB2).entities]


@given(sentence("BIES"))
def test_lenient_spans_are_seqevals(parity, tags):
    parity(f"{MODULE}.bio_spans", "seqeval", int(ours.bio_spans(tags) != seqeval_lenient(tags)), 0, f"lenient: {RANDOM}")


@given(sentence("BI"))
def test_strict_spans_are_seqevals(parity, tags):
    parity(f"{MODULE}.bio_spans", "seqeval", int(ours.bio_spans(tags, strict=True) != seqeval_strict(tags)), 0,
           f"strict: {RANDOM.replace('stray I, E and S', 'stray I')}")


@pytest.mark.parametrize("strict, prefixes, theirs", [(False, "BIES", seqeval_lenient), (True, "BI", seqeval_strict)])
def test_all_short_sentences_are_read_as_seqeval_reads_them(strict, prefixes, theirs):
    choices = ["O", *(prefix + label for prefix in prefixes for label in ("-PER", "-LOC"))]
    for length in range(4):
        for tags in product(choices, repeat=length):
            assert ours.bio_spans(tags, strict) == theirs(list(tags)), tags


@given(corpora("BIES"), st.sampled_from([0, 1]))
def test_lenient_f1_is_seqevals(parity, case, zero_division):
    theirs = quietly(f1_score, *case, zero_division=zero_division)
    parity(f"{MODULE}.span_f1", "seqeval", abs(ours.span_f1(*case, zero_division=zero_division) - theirs), 1e-12, f"lenient: {CORPUS}")


@given(corpora("BI"), st.sampled_from([0, 1]))
def test_strict_f1_is_seqevals(parity, case, zero_division):
    theirs = quietly(f1_score, *case, mode="strict", scheme=IOB2, zero_division=zero_division)
    mine = ours.span_f1(*case, strict=True, zero_division=zero_division)
    parity(f"{MODULE}.span_f1", "seqeval", abs(mine - theirs), 1e-12, f"strict: {CORPUS}")


@given(corpora("BIES"))
def test_token_accuracy_is_seqevals(parity, case):
    if any(case[0]):
        parity(f"{MODULE}.token_accuracy", "seqeval", abs(ours.token_accuracy(*case) - accuracy_score(*case)), 1e-12, CORPUS)


def test_no_span_on_either_side_scores_what_one_says():
    nothing = [["O", "O"], []]
    assert ours.span_f1(nothing, nothing) == 0 and ours.span_f1(nothing, nothing, zero_division=1.0) == 1
    assert np.isnan(ours.span_f1(nothing, nothing, zero_division=float("nan")))
    assert ours.span_f1([["B-PER"]], [["O"]], zero_division=1.0) == 0


def test_both_modes_on_the_tags_that_made_them_necessary():
    true, pred = [["B-PER", "I-PER"]], [["I-PER", "I-PER"]]
    assert ours.span_f1(true, pred) == 1.0 and ours.span_f1(true, pred, strict=True) == 0.0


def test_e_then_b_begins_anew():
    """The original conlleval joins the two mentions into one."""
    assert ours.bio_spans(["B-M", "E-M", "B-M", "E-M"]) == [("M", 0, 2), ("M", 2, 4)]


def test_units_of_bilou_are_refused_where_seqeval_joins_them():
    assert quietly(seqeval_lenient, ["U-PER", "U-PER"]) == [("PER", 0, 2)]
    with pytest.raises(ValueError, match="'U-PER'"):
        ours.bio_spans(["U-PER", "U-PER"])


def test_arrays_and_tensors_are_sentences_too():
    torch = pytest.importorskip("torch")
    assert ours.bio_spans(np.array(["B-PER", "I-PER"])) == [("PER", 0, 2)]
    assert ours.token_accuracy(np.array([["A", "B"], ["A", "A"]]), [["A", "B"], ["A", "B"]]) == 0.75
    assert ours.token_accuracy(torch.tensor([1, 2]), [1, 3]) == 0.5
    assert ours.attachment_scores(torch.tensor([[2, 0]]), [["x", "y"]], np.array([[2, 0]]), [["x", "z"]]) == (1.0, 0.5)
    assert ours.is_tree(torch.tensor([2, 0])) and ours.is_tree(np.array([2, 0]))
    for numbers in (torch.tensor([0, 1, 1]), [*torch.tensor([0, 1, 1])], np.array([0, 1, 1])):
        assert ours.label_pieces(["O", "B-A"], numbers) == ["O", "B-A", -100]
        assert ours.token_accuracy(numbers, [0, 1, 0]) == 2 / 3


def test_an_iterator_of_relations_to_ignore_lasts_for_all_tokens():
    case = [[2, 0], [0]], [["punct", "root"], ["punct"]], [[2, 0], [0]], [["x", "root"], ["x"]]
    assert ours.attachment_scores(*case, ignore=iter(["punct"])) == ours.attachment_scores(*case, ignore=["punct"]) == (1, 1)


def test_nothing_heavy_is_loaded():
    script = (f"import sys, {MODULE} as m; m.span_f1([['B-A']], [['B-A']]); m.is_tree([0]); "
              "print(sorted({'torch', 'matplotlib', 'numpy'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True,
                          env={"TRANSFORMER_COURSE_CHECK_SHAPES": "0"}).stdout.strip() == "[]"


# Trees -------------------------------------------------------------------------------------------------------------

@given(st.integers(1, 7).flatmap(lambda n: st.lists(st.integers(0, n), min_size=n, max_size=n)))
def test_a_tree_has_one_root_to_which_all_climb(heads):
    def top(token):
        for _ in heads:
            token = heads[token - 1] if token else 0
        return token
    assert ours.is_tree(heads) == (heads.count(0) == 1 and not any(map(top, range(1, len(heads) + 1))))


def test_long_sentences_take_time_in_proportion():
    """Climbing from every token would take 20 000 ** 2 / 2 steps here, and Python has no such stack for a recursion."""
    n = 20_000
    start = time.perf_counter()
    assert ours.is_tree([*range(2, n + 1), 0]) and not ours.is_tree([*range(2, n), 0, n])
    assert ours.span_f1([["B-A"] * n], [["B-A"] * n]) == 1
    assert time.perf_counter() - start < 4  # about 0.2 s


def test_there_are_as_many_trees_as_cayley_says():
    for n in range(1, 6):
        assert sum(map(ours.is_tree, product(range(n + 1), repeat=n))) == n ** (n - 1)


def test_attachment_scores_count_tokens_not_sentences():
    gold, labels = [[0], [2, 0, 2, 3]], [["root"], ["det", "root", "obj", "punct"]]
    heads, guessed = [[0], [3, 0, 2, 2]], [["root"], ["det", "root", "obl", "punct"]]
    assert ours.attachment_scores(gold, labels, heads, guessed) == (3 / 5, 2 / 5)
    assert ours.attachment_scores(gold, labels, heads, guessed, ignore={"punct"}) == (3 / 4, 2 / 4)
    assert ours.attachment_scores(gold[1], labels[1], heads[1], guessed[1]) == (2 / 4, 1 / 4)


def test_a_right_relation_on_a_wrong_head_is_wrong():
    assert ours.attachment_scores([2, 0], ["det", "root"], [0, 0], ["det", "root"]) == (0.5, 0.5)


def test_predicted_heads_need_not_be_a_tree():
    assert ours.attachment_scores([2, 0], ["det", "root"], [2, 1], ["det", "root"]) == (0.5, 0.5)


def test_drawings_hold_what_they_are_given():
    ax = ours.plot_spans(["in", "New", "York"], ["O", "B-LOC", "I-LOC"])
    assert [text.get_text() for text in ax.texts] == ["in", "O", "New", "B-LOC", "York", "I-LOC", "LOC"]
    assert len(ax.patches) == 1 and len(ours.plot_spans("ab", ["I-A", "I-A"], strict=True).patches) == 0
    ax = ours.plot_dependencies(["a", "b", "c"], [2, 1, 0], ["x", "y", "root"], ["DET", "NOUN", "VERB"])
    assert {text.get_text() for text in ax.texts} == {"a", "b", "c", "x", "y", "root", "DET", "NOUN", "VERB"}
    lost = [patch for patch in ax.patches if patch.get_linestyle() == "--"]
    assert len(ax.patches) == 3 and len(lost) == 2  # a and b hang on each other
    assert ours.plot_dependencies(["a"], [0], ax=ax) is ax


# Known faults ------------------------------------------------------------------------------------------------------

def reads_as_seqeval(function, theirs=seqeval_lenient, prefixes="BIES"):
    """Whether `function` finds seqeval's spans in all sentences of up to three tags with two labels."""
    choices = ["O", *(prefix + label for prefix in prefixes for label in ("-PER", "-LOC"))]
    return all(function(list(tags)) == theirs(list(tags)) for n in range(4) for tags in product(choices, repeat=n))


def walk(tags, begins, closes):
    """Spans by a loop in which a fault can be set: what begins a span and what closes one, by (previous, tag, label)."""
    spans, start, label, previous = [], None, None, "O"
    for i, tag in enumerate([*tags, "O"]):
        if start is not None and closes(previous, tag, label):
            spans.append((label, start, i))
            start = None
        if start is None and begins(previous, tag):
            start, label = i, tag[2:]
        previous = tag
    return spans


def begins_rightly(previous, tag):
    return tag != "O"


def closes_rightly(previous, tag, label):
    return tag[0] in "BSO" or previous[0] in "ES" or tag[2:] != label


FAULTS = {
    "a stray I is swallowed": lambda tags: walk(tags, lambda p, t: t[0] in "BSE", closes_rightly),
    "an I after another label goes on": lambda tags: walk(tags, begins_rightly, lambda p, t, l: t[0] in "BSO" or p[0] in "ES"),
    "B after B goes on": lambda tags: walk(tags, begins_rightly,
                                           lambda p, t, l: t[0] in "SO" or p[0] in "ES" or t[2:] != l),
    "E ends nothing": lambda tags: walk(tags, begins_rightly, lambda p, t, l: t[0] in "BSO" or p[0] == "S" or t[2:] != l),
    "S ends nothing": lambda tags: walk(tags, begins_rightly, lambda p, t, l: t[0] in "BSO" or p[0] == "E" or t[2:] != l),
    "the last span is lost": lambda tags: [span for span in ours.bio_spans(tags) if span[2] < len(tags)],
    "the end is the last token": lambda tags: [(label, start, end - 1) for label, start, end in ours.bio_spans(tags)],
}


def test_faulty_lenient_readings_are_caught():
    assert reads_as_seqeval(ours.bio_spans)
    assert reads_as_seqeval(lambda tags: walk(tags, begins_rightly, closes_rightly))
    assert [name for name, fault in FAULTS.items() if reads_as_seqeval(fault)] == []


def dropped_if_anything_follows(tags):
    """A span that another label's I follows is taken for malformed and dropped whole."""
    return [span for span in ours.bio_spans(tags, True) if span[2] == len(tags) or tags[span[2]][0] != "I"]


def any_i_goes_on(tags):
    """Only prefixes are looked at: B-LOC I-PER is one LOC of two tokens."""
    prefixes = [tag if tag == "O" else tag[0] + "-X" for tag in tags]
    return [(tags[start][2:], start, end) for _, start, end in ours.bio_spans(prefixes, True)]


@pytest.mark.parametrize("fault", [ours.bio_spans, dropped_if_anything_follows, any_i_goes_on])
def test_faulty_strict_readings_are_caught(fault):
    assert reads_as_seqeval(lambda tags: ours.bio_spans(tags, True), seqeval_strict, "BI")
    assert not reads_as_seqeval(fault, seqeval_strict, "BI")


CASES = [([["O", "B-PER"], ["I-PER", "O"]], [["O", "B-PER"], ["O", "O"]]),
         ([["B-PER", "I-PER"], ["O"]], [["B-PER", "O"], ["B-PER"]]),
         ([["B-PER"], ["B-PER", "O", "B-LOC"]], [["B-PER"], ["O", "O", "B-PER"]]),
         ([["O", "O"]], [["B-PER", "O"]])]


def scores_as_seqeval(function):
    """Whether `function` gives seqeval's F1 on corpora that tell the known faults apart."""
    return all(abs(function(true, pred) - quietly(f1_score, true, pred)) < 1e-12 for true, pred in CASES)


def joined(true, pred):
    return ours.span_f1([sum(true, [])], [sum(pred, [])])


def mean_of_sentences(true, pred):
    return float(np.mean([ours.span_f1([t], [p]) for t, p in zip(true, pred)]))


def any_overlap(true, pred):
    pairs = [(ours.bio_spans(t), ours.bio_spans(p)) for t, p in zip(true, pred)]
    right = sum(any(a < d and c < b for _, c, d in guessed) for spans, guessed in pairs for _, a, b in spans)
    return 2 * right / sum(len(a) + len(b) for a, b in pairs)


def without_labels(true, pred):
    bare = [[[tag[0] if tag == "O" else tag[:2] + "X" for tag in tags] for tags in side] for side in (true, pred)]
    return ours.span_f1(*bare)


@pytest.mark.parametrize("fault", [joined, mean_of_sentences, any_overlap, without_labels, ours.token_accuracy])
def test_faulty_scores_are_caught(fault):
    assert scores_as_seqeval(ours.span_f1)
    assert not scores_as_seqeval(fault)


def blind_to_the_cut(to_tags):
    """Whether span F1 stays the same however the words are cut into pieces."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        true, pred = (rng.choice(["O", "B-LOC", "I-LOC"], 6).tolist() for _ in range(2))
        scores = {ours.span_f1([to_tags(true, ids)], [to_tags(pred, ids)])
                  for ids in ([*range(6)], [None, *np.repeat(range(6), rng.integers(1, 4, 6)).tolist(), None])}
        if len(scores) > 1:
            return False
    return True


def labelled(tags, word_ids):
    return [tag for tag in ours.label_pieces(tags, word_ids) if tag != -100]


def copied(tags, word_ids):
    return ["O" if word is None else tags[word] for word in word_ids]


def inside_after_first(tags, word_ids):
    """Later pieces are I, even of a word that is outside."""
    return ["O" if word is None else tags[word] if word != before else "I-LOC"
            for before, word in zip([None, *word_ids], word_ids)]


@pytest.mark.parametrize("fault", [copied, inside_after_first])
def test_faulty_labels_of_pieces_are_caught(fault):
    assert blind_to_the_cut(labelled)
    assert not blind_to_the_cut(fault)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_words_come_back_from_their_first_pieces(cuts):
    labels = [f"B-{i}" for i in range(len(cuts))]
    word_ids = [None, *np.repeat(range(len(cuts)), cuts).tolist(), None]
    pieces = ours.label_pieces(labels, word_ids)
    assert len(pieces) == len(word_ids) and [label for label in pieces if label != -100] == labels
    assert [pieces[word_ids.index(word)] for word in range(len(cuts))] == labels
    assert ours.label_pieces(labels, word_ids[:-2], None)[0] is None  # cut short: the labels that are left


# The wrong things --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("tags, strict, error, says", [
    ("BIO", False, TypeError, "tags must be a list of tags, not 'BIO'"),
    (None, False, TypeError, "tags must be a list of tags, not None"),
    (5, False, TypeError, "tags must be a list of tags, not 5"),
    ({"O"}, False, TypeError, "tags must be a list of tags, not {'O'}"),
    ({"O": 1}, False, TypeError, "tags must be a list of tags, not {'O': 1}"),
    (np.array("O"), False, TypeError, "tags must be a list of tags, not 'O'"),
    ([["O"], ["O"]], False, TypeError, r"tags\[0\] must be a tag of one sentence, a string, not \['O'\]"),
    (["O", None], False, TypeError, r"tags\[1\] must be a tag"),
    (["O", "X-PER"], False, ValueError, r"tags\[1\] is 'X-PER', but must be O, or B, I, E or S with a label: B-PER"),
    (["U-PER"], False, ValueError, "'U-PER'"),
    (["b-PER"], False, ValueError, "'b-PER'"),
    (["B_PER"], False, ValueError, "'B_PER'"),
    (["PER-B"], False, ValueError, "'PER-B'"),
    (["O-PER"], False, ValueError, "'O-PER'"),
    ([""], False, ValueError, r"tags\[0\] is ''"),
    (["B-PER", "E-PER"], True, ValueError, r"tags\[1\] is 'E-PER', but must be O, or B or I with a label"),
    (["S-PER"], True, ValueError, "'S-PER'"),
])
@pytest.mark.usefixtures("unchecked")
def test_other_tags_are_refused(tags, strict, error, says):
    with pytest.raises(error, match=says):
        ours.bio_spans(tags, strict)
    if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags):
        with pytest.raises(error, match=says.replace("tags", r"pred\[1\]")):
            ours.span_f1([[], ["O"] * len(tags)], [[], tags], strict)
        with pytest.raises(ValueError):
            ours.plot_spans(tags, tags, strict=strict)


@pytest.mark.parametrize("score", [ours.span_f1, ours.token_accuracy])
@pytest.mark.parametrize("true, pred, error, says", [
    ([], [], ValueError, "true is empty"),
    ([["O"]], [], ValueError, "pred is empty"),
    ([["O"], ["O"]], [["O"]], ValueError, r"pred must have as many sentences as true \(2\), not 1"),
    ([["O"], ["O", "O"]], [["O"], ["O"]], ValueError, r"pred\[1\] must be as long as true\[1\] \(2\), not 1"),
    ("O", "O", TypeError, "true must be a list of sentences"),
    ([["O"]], None, TypeError, "pred must be a list of sentences"),
    ({("O",)}, [["O"]], TypeError, "true must be a list of sentences, each a list, not {"),
    ([["O"]], [{"O"}], TypeError, r"pred\[0\] must be a list, not {'O'}"),
    ([["O"], "O"], [["O"], ["O"]], TypeError, r"true\[1\] is 'O': put a single sentence into a list"),
])
@pytest.mark.usefixtures("unchecked")
def test_other_shapes_are_refused(score, true, pred, error, says):
    with pytest.raises(error, match=says):
        score(true, pred)


@pytest.mark.usefixtures("unchecked")
def test_a_bare_sentence_is_refused_where_its_border_matters():
    with pytest.raises(TypeError, match=r"true\[0\] is 'O': put a single sentence into a list"):
        ours.span_f1(["O", "B-PER"], ["O", "B-PER"])
    assert ours.token_accuracy(["O", "B-PER"], ["O", "O"]) == 0.5
    with pytest.raises(ValueError, match="no token"):
        ours.token_accuracy([[]], [[]])
    for true, pred, held in (("1", 1, "int and str"), (1, 0.9, "float and int"), (None, None, "NoneType"), ([1], [1], "list")):
        with pytest.raises(TypeError, match=f"both hold strings or both hold whole numbers, not {held}"):
            ours.token_accuracy([[true]], [[pred]])
    for value in (0.5, "0", None, [0], np.array([0, 1])):
        with pytest.raises(ValueError, match=r"zero_division \(.*\) must be 0, 1 or NaN"):
            ours.span_f1([["O"]], [["O"]], zero_division=value)


@pytest.mark.parametrize("heads, error, says", [
    ([], ValueError, "heads is empty"),
    ([3, 0], ValueError, r"heads\[0\] is 3, but heads are positions from 1 to 2, or 0 for the root"),
    ([-1, 0], ValueError, r"heads\[0\] is -1"),
    ([1.0, 0], TypeError, r"heads\[0\] must be a whole number, not 1.0"),
    ([None, 0], TypeError, "whole number"),
    (None, TypeError, "heads must be a list of heads, not None"),
    ({2, 0}, TypeError, "heads must be a list of heads, not {0, 2}"),
    ([[2, 0]], TypeError, "whole number"),
])
@pytest.mark.usefixtures("unchecked")
def test_other_heads_are_refused(heads, error, says):
    with pytest.raises(error, match=says):
        ours.is_tree(heads)
    with pytest.raises((ValueError, TypeError)):
        ours.plot_dependencies(["a", "b"], heads)


@pytest.mark.parametrize("change, error, says", [
    ({"heads": [2]}, ValueError, r"heads\[0\] must be as long as gold_heads\[0\] \(2\), not 1"),
    ({"labels": ["det"]}, ValueError, r"labels\[0\] must be as long"),
    ({"heads": [2, 5]}, ValueError, r"heads\[0\]\[1\] is 5"),
    ({"gold_heads": [9, 0]}, ValueError, r"gold_heads\[0\]\[0\] is 9"),
    ({"heads": [[2, 0], [0]]}, ValueError, "as many sentences"),
    ({"heads": [2, [0]]}, TypeError, "each a list"),
    ({"labels": "de"}, TypeError, "labels must be a list"),
    ({"labels": None}, TypeError, "labels must be a list of sentences"),
    ({"labels": [1, 2]}, TypeError, "gold_labels and labels must both hold strings"),
    ({"heads": {2, 0}}, TypeError, "heads must be a list of sentences"),
    ({"ignore": "punct"}, TypeError, "ignore must be a list of relations, not 'punct'"),
    ({"ignore": None}, TypeError, "ignore must be a list of relations, not None"),
    ({"ignore": ["det", "root"]}, ValueError, "no token to score"),
])
@pytest.mark.usefixtures("unchecked")
def test_other_arcs_are_refused(change, error, says):
    right = {"gold_heads": [2, 0], "gold_labels": ["det", "root"], "heads": [2, 0], "labels": ["det", "root"]}
    assert ours.attachment_scores(**right) == (1, 1)
    with pytest.raises(error, match=says):
        ours.attachment_scores(**{**right, **change})


@pytest.mark.parametrize("labels, word_ids, says", [
    (None, [0], "labels must be a list of labels, not None"),
    ("OO", [0], "labels must be a list of labels, not 'OO'"),
    (["O"], None, "word_ids must be a list of numbers and None, not None"),
    (["O"], [0.0], r"word_ids\[0\] must be a whole number or None, not 0.0"),
    (["O"], ["0"], r"word_ids\[0\] must be a whole number or None, not '0'"),
])
@pytest.mark.usefixtures("unchecked")
def test_other_things_than_pieces_are_refused(labels, word_ids, says):
    with pytest.raises(TypeError, match=says):
        ours.label_pieces(labels, word_ids)


@pytest.mark.parametrize("word_ids, says", [
    ([0, 1, 2], r"word_ids\[2\] is 2, but there are 2 labels"),
    ([-1], r"word_ids\[0\] is -1"),
    ([0, 1, 0], r"word_ids\[2\] goes back to word 0"),
    ([0, None, 0], r"word_ids\[2\] goes back to word 0"),
])
def test_other_pieces_are_refused(word_ids, says):
    with pytest.raises(ValueError, match=says):
        ours.label_pieces(["O", "O"], word_ids)


@pytest.mark.usefixtures("unchecked")
def test_drawings_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match=r"tags must be one for each token \(2\), not 1"):
        ours.plot_spans(["a", "b"], ["O"])
    with pytest.raises(ValueError, match=r"must be equally long, not \(2, 2, 1, 2\)"):
        ours.plot_dependencies(["a", "b"], [2, 0], ["x"])
    for draw, args, says in ((ours.plot_spans, (None, ["O"]), "tokens must be a list of texts, not None"),
                             (ours.plot_spans, ("a", "O"), "tags must be a list of tags, not 'O'"),
                             (ours.plot_dependencies, (5, [0]), "tokens must be a list of texts, not 5"),
                             (ours.plot_dependencies, ("a", [0], {"x"}), "labels must be a list of texts, not {'x'}"),
                             (ours.plot_dependencies, ("a", [0], None, 5), "pos must be a list of texts, not 5")):
        with pytest.raises(TypeError, match=says):
            draw(*args)
    for draw in (ours.plot_spans, ours.plot_dependencies):
        with pytest.raises(ValueError):
            draw([], [])


# Exercises ---------------------------------------------------------------------------------------------------------

def begins_with_i(spans, length):
    tags = ["O"] * length
    for label, start, end in spans:
        if not 0 <= start < end <= length or any(tag != "O" for tag in tags[start:end]):
            raise ValueError
        tags[start:end] = [f"I-{label}"] * (end - start)
    return tags


def end_included(spans, length):
    return ours_way_back([(label, start, end + 1) for label, start, end in spans], length)


def overwrites(spans, length):
    tags = ["O"] * length
    for label, start, end in spans:
        tags[start:end] = [f"B-{label}"] + [f"I-{label}"] * (end - start - 1)
    return tags


def ours_way_back(spans, length):
    tags = overwrites(spans, length)
    if sum(end - start for _, start, end in spans) != sum(tag != "O" for tag in tags):
        raise ValueError
    return tags


def refuses_where(wrong):
    """The way back with a test of its own for spans that it refuses, given the tags so far, and start and end."""
    def spans_to_bio(spans, length):
        tags = ["O"] * length
        for label, start, end in spans:
            if wrong(tags, label, start, end):
                raise ValueError
            tags[start:end] = [f"B-{label}"] + [f"I-{label}"] * (end - start - 1)
        return tags[:length]
    return spans_to_bio


def leaves(tags, start, end):
    return not 0 <= start < end <= len(tags)


WAYS_BACK = [
    refuses_where(lambda tags, label, start, end: leaves(tags, start, end) or tags[start] != "O"),
    refuses_where(lambda tags, label, start, end: leaves(tags, start, end) or tags[start] != "O" or tags[end - 1] != "O"),
    refuses_where(lambda tags, label, start, end: leaves(tags, start, end) or any(t[2:] not in ("", label) for t in tags[start:end])),
    refuses_where(lambda tags, label, start, end: start < 0 or end > len(tags) or start == end or set(tags[start:end]) - {"O"}),
]


def replaces_every_b(tags, word_ids):
    return ["O" if w is None else tags[w].replace("B", "I") if w == b else tags[w] for b, w in zip([None, *word_ids], word_ids)]


def spreads_spans(tags, word_ids):
    """Reads the spans and writes them anew, so that a stray I becomes a B."""
    spread = ["O"] * len(word_ids)
    for label, start, end in ours.bio_spans(tags):
        pieces = [i for i, word in enumerate(word_ids) if word is not None and start <= word < end]
        for i in pieces:
            spread[i] = ("B-" if i == pieces[0] else "I-") + label
    return spread


def counts_words_itself(tags, word_ids):
    spread, before, word = [], None, -1
    for number in word_ids:
        word += number is not None and number != before
        spread.append("O" if number is None else "I" + tags[word][1:] if number == before and tags[word] != "O" else tags[word])
        before = number
    return spread


def cuts_the_label(tags, word_ids):
    return ["O" if w is None else f"I-{tags[w].split('-')[1]}" if w == b and tags[w] != "O" else tags[w]
            for b, w in zip([None, *word_ids], word_ids)]


def joins_words(tags, word_ids):
    spread, before = [], None
    for word in word_ids:
        tag = "O" if word is None else tags[word]
        spread.append("I" + tag[1:] if tag[0] == "B" and before == tag else tag)
        before = tag
    return spread


def without_markers(tags, word_ids):
    kept = [word for word in word_ids if word is not None]
    return [("I" + tags[w][1:] if w == b and tags[w] != "O" else tags[w]) for b, w in zip([None, *kept], kept)]


def best_with_root(choose):
    """The best of the trees whose root is the token that `choose(scores)` takes."""
    def best_tree(scores):
        root = choose(scores)
        return max((heads for heads in trees(len(scores)) if heads[root] == 0),
                   key=lambda heads: sum(row[head] for row, head in zip(scores, heads)))
    return best_tree


def the_readiest(scores):
    return int(np.argmax(scores[:, 0]))


def the_one_with_most_to_lose(scores):
    others = [max((row[j] for j in range(1, len(row)) if j != i + 1), default=0) for i, row in enumerate(scores)]
    return int(np.argmax(scores[:, 0] - others))


def a_small_price_for_roots(scores):
    priced = scores.copy()
    priced[:, 0] -= 10
    return any_number_of_roots(priced)


def each_its_best(scores):
    return [max((j for j in range(len(row)) if j != i + 1), key=lambda j: row[j]) for i, row in enumerate(scores)]


def trees(n):
    return [list(heads) for heads in product(range(n + 1), repeat=n) if ours.is_tree(heads)]


def worst_tree(scores):
    return min(trees(len(scores)), key=lambda heads: sum(row[head] for row, head in zip(scores, heads)))


def any_number_of_roots(scores):
    def reaches(heads, token):
        for _ in heads:
            token = heads[token - 1]
            if token == 0:
                return True
        return False
    n = len(scores)
    forests = [h for h in product(range(n + 1), repeat=n) if all(reaches(h, t) for t in range(1, n + 1))]
    return list(max(forests, key=lambda heads: sum(row[head] for row, head in zip(scores, heads))))


def greedy(scores):
    """The best arcs first, as long as no circle closes."""
    n, heads = len(scores), {}
    for _, i, j in sorted(((scores[i][j], i, j) for i in range(n) for j in range(n + 1) if j != i + 1), reverse=True):
        top = j
        while top in heads:
            top = heads[top]
        if i + 1 not in heads and top != i + 1 and not (j == 0 and 0 in heads.values()):
            heads[i + 1] = j
    return [heads[i] for i in range(1, n + 1)] if len(heads) == n else [0] * n


def no_crossing(scores):
    def crosses(heads):
        arcs = [sorted((t, h)) for t, h in enumerate(heads, 1) if h]
        return any(a < c < b < d for a, b in arcs for c, d in arcs)
    return max((h for h in trees(len(scores)) if not crosses(h)), key=lambda h: sum(row[head] for row, head in zip(scores, h)))


@pytest.mark.parametrize("exercise, wrong", [
    ("06.by-hand", [(2, 4), (4, 4), (3, 2), (5, 2), 4]),
    ("06.near-misses", [([["O"] * 20], [["O"] * 20]), ([["B-A"] + ["O"] * 19], [["O"] * 20]),
                        ([["B-A", "I-A"]], [["B-A", "O"]]), ([["B-A"] + ["O"] * 19], [["B-B"] + ["O"] * 19]),
                        ([["B-A"] + ["O"] * 19], [["B-A"] + ["O"] * 19]), None]),
    ("06.spans-to-bio", [begins_with_i, end_included, overwrites, ours_way_back, *WAYS_BACK, lambda spans, length: ["O"] * length]),
    ("06.spread-tags", [copied, cuts_the_label, joins_words, without_markers, replaces_every_b, spreads_spans, counts_words_itself,
                        labelled, ours.label_pieces]),
    ("06.best-tree", [each_its_best, worst_tree, any_number_of_roots, greedy, no_crossing, best_with_root(the_readiest),
                       best_with_root(the_one_with_most_to_lose), a_small_price_for_roots, [0]]),
])
def test_wrong_answers_are_told_from_right_ones(exercise, wrong):
    for answer in wrong:
        result = check(exercise, answer)
        assert not result and "not yet" in repr(result), answer


def test_trying_all_trees_is_an_answer():
    assert check("06.best-tree", lambda scores: max(
        trees(len(scores)), key=lambda heads: sum(row[head] for row, head in zip(scores, heads))))

    def by_arrays(scores):  # as the chapter searches
        rows = np.array(trees(len(scores)))
        return rows[scores[np.arange(len(scores)), rows].sum(axis=1).argmax()]
    assert check("06.best-tree", by_arrays)


def test_near_misses_are_told_apart():
    """What fails is named: the names that are not touched, the accuracy or the score."""
    said = [check("06.near-misses", answer).failures for answer in (
        ([["B-A"] + ["O"] * 19], [["O"] * 20]), ([["B-A", "I-A"]], [["B-A", "O"]]), ([["B-A"] + ["O"] * 19], [["B-A"] + ["O"] * 19]))]
    assert [len(failures) for failures in said] == [1, 1, 1]
    assert "touches each" in said[0][0] and "at least 0.9" in said[1][0] and "span F1 is 0" in said[2][0]
