"""What right answers to the exercises of chapter 11 must satisfy."""
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]

_TOY = {"a": 0.2, "b": 0.2, "c": 0.2, "ab": 0.3, "bc": 0.1}

EXERCISES = {
    "11.how-many": [
        Case("each place is reached from the places where a piece that ends there starts", expected=5),
    ],
    "11.count-segmentations": [
        Case("letters alone can be joined in one way", args=("abc", ["a", "b", "c"]), expected=1),
        Case("every path of the lattice counts once", args=("abab", ["a", "b", "ab", "ba"]), expected=5),
        Case("pieces are not used up: one may occur again and again", args=("aaaa", ["a", "aa"]), expected=5),
        Case("the whole text may be one piece", args=("abc", ["ab", "c", "abc"]), expected=2),
        Case("a text that cannot be written has no segmentation", args=("abx", ["a", "b", "ab"]), expected=0),
        Case("a path that leads nowhere does not count", args=("abcd", ["ab", "abc", "cd"]), expected=1),
        Case("the empty text has one segmentation, the empty one", args=("", ["a"]), expected=1),
        Case("a piece that is listed twice is one piece", args=("ab", ["ab", "ab", "a", "b"]), expected=2),
        Case("long texts are counted without listing, and exactly", args=("a" * 150, ["a", "aa"]),
             expected=lambda ways: ways == 16130531424904581415797907386349),
    ],
    "11.cut-probability": [
        Case("the beginning is always a cut", args=("ab", _TOY, 0), expected=1.0),
        Case("the end is always a cut", args=("ab", _TOY, 2), expected=1.0),
        Case("ways are weighted by their probability", args=("ab", _TOY, 1), expected=0.04 / 0.34),
        Case("all ways through the cut count, not only the best",
             args=("abc", _TOY, 1), expected=(0.008 + 0.02) / (0.008 + 0.02 + 0.06)),
        Case("it is a share of the text's segmentations, not a probability of pieces",
             args=("abc", _TOY, 2), expected=(0.008 + 0.06) / (0.008 + 0.02 + 0.06)),
        Case("a cut inside the only segmentation's piece has probability 0", args=("xy", {"xy": 0.5}, 1), expected=0.0),
    ],
    "11.fewest-pieces": [
        Case("a single piece beats two", args=("ab", {"a": -1, "b": -1, "ab": -9}), expected=["ab"]),
        Case("the longest first piece need not be right",
             args=("abcde", {"ab": -9, "abc": -1, "cde": -9, "d": -1, "e": -1}), expected=["ab", "cde"]),
        Case("nor the longest last piece",
             args=("edcba", {"ba": -9, "cba": -1, "edc": -9, "d": -1, "e": -1}), expected=["edc", "ba"]),
        Case("among equally few the score decides",
             args=("abc", {"a": -1, "c": -3, "ab": -2, "bc": -5}), expected=["ab", "c"]),
        Case("whichever side it favours",
             args=("abc", {"a": -1, "c": -3, "ab": -5, "bc": -2}), expected=["a", "bc"]),
        Case("the number of pieces comes first, however low the score",
             args=("aaaa", {"a": -0.1, "aa": -50, "aaaa": -999}), expected=["aaaa"]),
        Case("the empty text has no pieces", args=("", {"a": -1}), expected=[]),
        Case("dead ends are no trouble", args=("abcd", {"ab": -1, "abc": -0.1, "cd": -1}), expected=["ab", "cd"]),
    ],
}
