"""What right answers to the exercises of chapter 06 must satisfy."""
import numpy as np

from transformer_course.metrics.sequence_labeling import bio_spans, span_f1, token_accuracy
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _every_name_is_touched(answer):
    true, pred = answer
    pairs = [(bio_spans(tags), bio_spans(guesses)) for tags, guesses in zip(true, pred, strict=True)]
    touched = [any(label == other and start < stop and begin < end for other, begin, stop in guessed)
               for spans, guessed in pairs for label, start, end in spans]
    return bool(touched) and all(touched)


def _best(says, scores, expected):
    """A case of `best_tree`: the scores as an array, and the heads of the one best tree."""
    return Case(says, args=(np.array(scores, dtype=float),), expected=expected)


# The best heads form two circles and no root, and one tree is the best.
_CIRCLES = [[1, 0, 9, 2, 0, 3], [4, 8, 0, 5, 2, 0], [2, 1, 3, 0, 9, 0], [0, 2, 5, 8, 0, 6], [3, 0, 2, 0, 7, 0]]

EXERCISES = {
    "06.by-hand": [
        Case("both readings are counted, the lenient one first", expected=(4, 2)),
    ],
    "06.near-misses": [
        Case("there is a true name, and a predicted one of its label touches each", expected=_every_name_is_touched),
        Case("token accuracy is at least 0.9", expected=lambda answer: token_accuracy(*answer) >= 0.9),
        Case("span F1 is 0", expected=lambda answer: span_f1(*answer) == 0),
    ],
    "06.spans-to-bio": [
        Case("a span begins with B and goes on with I", args=([("PER", 1, 4)], 5), expected=["O", "B-PER", "I-PER", "I-PER", "O"]),
        Case("no span gives O throughout", args=([], 2), expected=["O", "O"]),
        Case("spans that touch stay apart", args=([("LOC", 0, 2), ("LOC", 2, 3)], 3), expected=["B-LOC", "I-LOC", "B-LOC"]),
        Case("spans come in any order", args=([("LOC", 3, 4), ("PER", 0, 1)], 4), expected=["B-PER", "O", "O", "B-LOC"]),
        Case("a span may reach to the end", args=([("ORG", 1, 3)], 3), expected=["O", "B-ORG", "I-ORG"]),
        Case("labels may hold hyphens", args=([("ORG-SCHOOL", 0, 2)], 2), expected=["B-ORG-SCHOOL", "I-ORG-SCHOOL"]),
        Case("spans that overlap are refused", args=([("LOC", 0, 2), ("PER", 1, 3)], 3), raises=ValueError),
        Case("spans that overlap are refused in any order", args=([("LOC", 1, 3), ("PER", 0, 2)], 3), raises=ValueError),
        Case("a span within another is refused", args=([("LOC", 1, 2), ("PER", 0, 3)], 3), raises=ValueError),
        Case("spans of the same label may not overlap either", args=([("LOC", 0, 2), ("LOC", 0, 2)], 3), raises=ValueError),
        Case("a span that leaves the sentence is refused", args=([("LOC", 1, 4)], 3), raises=ValueError),
        Case("a span that begins before the sentence is refused", args=([("LOC", -1, 1)], 3), raises=ValueError),
        Case("an empty span is refused", args=([("LOC", 1, 1)], 3), raises=ValueError),
        Case("a span that ends before it begins is refused", args=([("LOC", 2, 1)], 3), raises=ValueError),
    ],
    "06.spread-tags": [
        Case("words of one piece keep their tags", args=(["O", "B-LOC", "I-LOC"], [0, 1, 2]), expected=["O", "B-LOC", "I-LOC"]),
        Case("a word with B- goes on with I-", args=(["B-LOC"], [0, 0, 0]), expected=["B-LOC", "I-LOC", "I-LOC"]),
        Case("a word with I- stays I-", args=(["B-LOC", "I-LOC"], [0, 1, 1]), expected=["B-LOC", "I-LOC", "I-LOC"]),
        Case("an I- without a B- before it stays I-", args=(["O", "I-LOC"], [0, 1, 1]), expected=["O", "I-LOC", "I-LOC"]),
        Case("words that touch stay two spans", args=(["B-LOC", "B-LOC"], [0, 0, 1, 1]),
             expected=["B-LOC", "I-LOC", "B-LOC", "I-LOC"]),
        Case("a word outside stays O", args=(["O", "B-PER"], [0, 0, 1]), expected=["O", "O", "B-PER"]),
        Case("markers get O", args=(["B-PER"], [None, 0, 0, None, None]), expected=["O", "B-PER", "I-PER", "O", "O"]),
        Case("labels may hold hyphens and a B", args=(["B-ORG-BANK"], [0, 0]), expected=["B-ORG-BANK", "I-ORG-BANK"]),
        Case("the pieces may start at a later word", args=(["O", "B-LOC", "O"], [None, 1, 1, 2]), expected=["O", "B-LOC", "I-LOC", "O"]),
    ],
    "06.best-tree": [
        _best("a single token is the root", [[0.3, 0.0]], [0]),
        _best("best heads that form a tree are kept", [[1, 0, 5], [4, 2, 0]], [2, 0]),
        _best("of two roots the cheaper way to one is taken", [[9, 0, 4], [8, 6, 0]], [0, 1]),
        _best("a circle is broken where the whole tree loses least", [[5, 0, 10, 1], [1, 9, 0, 2], [0, 8, 9, 0]], [0, 1, 2]),
        _best("arcs may cross", [[0, 0, 0, 9, 0], [9, 0, 0, 0, 0], [0, 0, 9, 0, 0], [0, 0, 9, 0, 0]], [3, 0, 2, 2]),
        _best("scores may all be negative", [[-9, 0, -1, -5], [-2, -4, 0, -8], [-9, -1, -7, 0]], [2, 0, 1]),
        _best("what a token thinks of itself does not matter", [[1, 99, 5], [4, 2, 99]], [2, 0]),
        _best("the root is not always the token that suits it best", [[6, 0, 8, 5], [8, 7, 0, 8], [3, 1, 0, 0]], [2, 3, 0]),
        _best("the root is not always the token that loses most by any other head", [[5, 0, 3, 6], [4, 0, 0, 5], [2, 5, 9, 0]], [3, 0, 2]),
        _best("there is one root, even where two would have a much larger sum",
              [[279, 0, 182, 251], [215, 62, 0, 106], [292, 196, 104, 0]], [3, 3, 0]),
        _best("it is the best of all 625 trees of five tokens", _CIRCLES, [2, 0, 4, 2, 4]),
    ],
}
