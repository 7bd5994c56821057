"""What right answers to the exercises of chapter 08 must satisfy."""
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]

EXERCISES = {
    "08.lengths": [
        Case("a syllable is one character in NFC, two or three in NFD, and three bytes; space and full stop are one of each",
             expected=(6, 12, 14)),
    ],
    "08.coverage": [
        Case("a word counts as often as it occurs", args=(["a", "a", "a", "b"], 0.75), expected=1),
        Case("the most frequent words are taken first", args=(["c", "a", "b", "b", "b", "b"], 0.6), expected=1),
        Case("nothing less than the share will do", args=(["a", "a", "b", "b", "c"], 0.81), expected=3),
        Case("exactly the share will do", args=(["a", "a", "b", "b"], 0.5), expected=1),
        Case("all words are needed for the whole", args=(["a", "b", "a", "c"], 1.0), expected=3),
        Case("nothing is needed for nothing", args=(["a", "b"], 0.0), expected=0),
    ],
    "08.jamo": [
        Case("the first syllable has the first consonant and the first vowel", args=("가",), expected="\u1100\u1161"),
        Case("a final consonant is the third jamo", args=("곰",), expected="\u1100\u1169\u11b7"),
        Case("without a final consonant there are two", args=("이",), expected="\u110b\u1175"),
        Case("the first final consonant is U+11A8", args=("각",), expected="\u1100\u1161\u11a8"),
        Case("the last syllable has the last of each", args=("힣",), expected="\u1112\u1175\u11c2"),
    ],
    "08.grow": [
        Case("old tokens keep their ids", args=(["[UNK]", "bear", "a"], ["fox"]), expected=["[UNK]", "bear", "a", "fox"]),
        Case("known words are not added again", args=(["b", "a"], ["a", "b", "c"]), expected=["b", "a", "c"]),
        Case("a new word is added once", args=(["a"], ["b", "b"]), expected=["a", "b"]),
        Case("the most frequent new words come first", args=(["a"], ["b", "c", "c"]), expected=["a", "c", "b"]),
        Case("ties are broken by code points, not by order of appearance", args=([], ["곰", "a", "B"]),
             expected=["B", "a", "곰"]),
        Case("nothing new changes nothing", args=(["b", "a"], ["a"]), expected=["b", "a"]),
    ],
    "08.unseen": [
        Case("words that occur once are counted", args=(["a", "b", "b", "c"],), expected=0.5),
        Case("words that occur twice are not", args=(["a", "a", "b", "b"],), expected=0.0),
        Case("the share is of all words read, not of the different ones", args=(["a", "a", "a", "b"],), expected=0.25),
        Case("after one word everything else is new", args=(["a"],), expected=1.0),
    ],
}
