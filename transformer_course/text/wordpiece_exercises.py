"""What right answers to the exercises of chapter 10 must satisfy."""
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]

_CAFE = "Le café  Élan!"
_PLACED = [("le", (0, 2)), ("cafe", (3, 7)), ("el", (9, 11)), ("##an", (11, 13)), ("!", (13, 14))]
_PIECES = {"un", "una", "able", "##able", "##ble", "##e", "bear", "##s"}

EXERCISES = {
    "10.lookups": [Case("from each start every end is tried once", expected=5050)],
    "10.words-of": [
        Case("pieces with ## join the word before them", args=(["[CLS]", "un", "##able", "bear"],), expected=[[0], [1, 2], [3]]),
        Case("a word may have many pieces", args=(["a", "##b", "##c", "##d"],), expected=[[0, 1, 2, 3]]),
        Case("a sequence may begin in the middle of a word", args=(["##ing", "##s", "bear"],), expected=[[0, 1], [2]]),
        Case("the sign ## alone continues nothing", args=(["a", "##", "b"],), expected=[[0], [1], [2]]),
        Case("unknown words are words", args=(["[UNK]", "[UNK]", "##s"],), expected=[[0], [1, 2]]),
        Case("no token makes no word", args=([],), expected=[]),
    ],
    "10.from-right": [
        Case("the longest ending comes first", args=("unable", _PIECES), expected=["un", "##able"]),
        Case("pieces come in the order of the word", args=("bears", _PIECES), expected=["bear", "##s"]),
        Case("a whole word that is a piece is one", args=("able", _PIECES), expected=["able"]),
        Case("a beginning needs a piece without ##", args=("ables", {"##able", "##s", "a"}), expected=None),
        Case("one miss is a whole miss", args=("xable", _PIECES), expected=None),
        Case("the longest ending is taken even where a shorter would have led on", args=("abc", {"a", "##b", "##c", "##bc", "##ab"}),
             expected=["a", "##bc"]),
        Case("and then there may be no way on", args=("xbc", {"##bc", "##c", "xb"}), expected=None),
    ],
    "10.answer": [
        Case("one token stands for its word as it was written", args=(_CAFE, _PLACED, 1, 1), expected="café"),
        Case("the last token belongs to the answer, with its accents", args=(_CAFE, _PLACED, 2, 3), expected="Élan"),
        Case("blanks between the tokens are those of the original", args=(_CAFE, _PLACED, 1, 2), expected="café  Él"),
        Case("the whole text can be the answer", args=(_CAFE, _PLACED, 0, 4), expected=_CAFE),
    ],
}
