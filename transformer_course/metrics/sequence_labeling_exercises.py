"""What right answers to the exercises of chapter 06 must satisfy."""
from transformer_course.metrics.sequence_labeling import bio_spans, span_f1, token_accuracy
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _all_but_the_score(answer):
    true, pred = answer
    pairs = [(bio_spans(tags), bio_spans(guesses)) for tags, guesses in zip(true, pred)]
    touched = [any(label == other and start < stop and begin < end for other, begin, stop in guessed)
               for spans, guessed in pairs for label, start, end in spans]
    return bool(touched) and all(touched) and token_accuracy(true, pred) >= 0.9 and span_f1(true, pred) == 0


# Scores of five tokens for heads 0 to 5: the best heads form two circles and no root, and one tree is the best.
_CIRCLES = [[1, 0, 9, 2, 0, 3], [4, 8, 0, 5, 2, 0], [2, 1, 3, 0, 9, 0], [0, 2, 5, 8, 0, 6], [3, 0, 2, 0, 7, 0]]

EXERCISES = {
    "06.by-hand": [
        Case("both readings are counted, the lenient one first", expected=(4, 2)),
    ],
    "06.near-misses": [
        Case("every true span is touched by a predicted one of its label, token accuracy is at least 0.9 and span F1 is 0",
             expected=_all_but_the_score),
    ],
    "06.spans-to-bio": [
        Case("a span begins with B and goes on with I", args=([("PER", 1, 4)], 5), expected=["O", "B-PER", "I-PER", "I-PER", "O"]),
        Case("no span gives O throughout", args=([], 2), expected=["O", "O"]),
        Case("spans that touch stay apart", args=([("LOC", 0, 2), ("LOC", 2, 3)], 3), expected=["B-LOC", "I-LOC", "B-LOC"]),
        Case("spans come in any order", args=([("LOC", 3, 4), ("PER", 0, 1)], 4), expected=["B-PER", "O", "O", "B-LOC"]),
        Case("a span may reach to the end", args=([("ORG", 1, 3)], 3), expected=["O", "B-ORG", "I-ORG"]),
        Case("spans that overlap are refused", args=([("LOC", 0, 2), ("PER", 1, 3)], 3), raises=ValueError),
        Case("a span that leaves the sentence is refused", args=([("LOC", 1, 4)], 3), raises=ValueError),
        Case("a span that begins before the sentence is refused", args=([("LOC", -1, 1)], 3), raises=ValueError),
        Case("an empty span is refused", args=([("LOC", 1, 1)], 3), raises=ValueError),
    ],
    "06.spread-tags": [
        Case("words of one piece keep their tags", args=(["O", "B-LOC", "I-LOC"], [0, 1, 2]), expected=["O", "B-LOC", "I-LOC"]),
        Case("a word with B- goes on with I-", args=(["B-LOC"], [0, 0, 0]), expected=["B-LOC", "I-LOC", "I-LOC"]),
        Case("a word with I- stays I-", args=(["B-LOC", "I-LOC"], [0, 1, 1]), expected=["B-LOC", "I-LOC", "I-LOC"]),
        Case("words that touch stay two spans", args=(["B-LOC", "B-LOC"], [0, 0, 1, 1]),
             expected=["B-LOC", "I-LOC", "B-LOC", "I-LOC"]),
        Case("a word outside stays O", args=(["O", "B-PER"], [0, 0, 1]), expected=["O", "O", "B-PER"]),
        Case("markers get O", args=(["B-PER"], [None, 0, 0, None, None]), expected=["O", "B-PER", "I-PER", "O", "O"]),
        Case("labels may hold hyphens", args=(["B-ORG-SCHOOL"], [0, 0]), expected=["B-ORG-SCHOOL", "I-ORG-SCHOOL"]),
    ],
    "06.best-tree": [
        Case("a single token is the root", args=([[0.3, 0.0]],), expected=[0]),
        Case("best heads that form a tree are kept", args=([[1, 0, 5], [4, 2, 0]],), expected=[2, 0]),
        Case("of two roots the cheaper way to one is taken", args=([[9, 0, 4], [8, 6, 0]],), expected=[0, 1]),
        Case("a circle is broken where the whole tree loses least", args=([[5, 0, 10, 1], [1, 9, 0, 2], [0, 8, 9, 0]],),
             expected=[0, 1, 2]),
        Case("arcs may cross", args=([[0, 0, 0, 9, 0], [9, 0, 0, 0, 0], [0, 0, 9, 0, 0], [0, 0, 9, 0, 0]],), expected=[3, 0, 2, 2]),
        Case("scores may all be negative", args=([[-9, 0, -1, -5], [-2, -4, 0, -8], [-9, -1, -7, 0]],), expected=[2, 0, 1]),
        Case("what a token thinks of itself does not matter", args=([[1, 99, 5], [4, 2, 99]],), expected=[2, 0]),
        Case("it is the best of all 625 trees of five tokens", args=(_CIRCLES,), expected=[2, 0, 4, 2, 4]),
    ],
}
