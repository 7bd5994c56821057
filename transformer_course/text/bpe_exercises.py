"""What right answers to the exercises of chapter 09 must satisfy."""
import random
from collections import Counter

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]

_LOW = [("l", "o"), ("lo", "w"), ("e", "r")]
_LOWER = ["low", "lower", "lowlow"]  # 14 characters; 14, 10, 6 and 5 tokens with 0, 1, 2, 3 merges


class _Random(random.Random):
    """A `random.Random` that prints the same every time, for the sentences of the check."""

    def __repr__(self):
        return "rng"


class _Dropped:
    """How often a random answer gives what, over 4,000 calls; it stands in for the answer itself."""

    def __init__(self, word, merges, p, shares):
        self.word, self.merges, self.p, self.shares = word, merges, p, shares

    def __call__(self, answer):
        rng = random.Random(0)
        seen = Counter("|".join(answer(self.word, list(self.merges), self.p, rng)) for _ in range(4000))
        return all(abs(seen[pieces] / 4000 - share) < 0.04 for pieces, share in self.shares.items())


class _Repeated:
    """Whether a random answer gives the same for generators that are in the same state."""

    def __call__(self, answer):
        once, again = ([list(answer("low" * 20, list(_LOW), 0.9, rng)) for _ in range(20)]
                       for rng in (random.Random(1), random.Random(1)))
        return once == again


EXERCISES = {
    "09.by-hand": [
        Case("the third merge joins the pair that is commonest after ca and can have been made", expected=("ca", "t")),
    ],
    "09.stream": [
        Case("whole characters appear at once", args=([b"a", b"bear"],), expected=["a", "bear"]),
        Case("a character waits for its last byte", args=([b"\xea", b"\xb3", b"\xb0"],), expected=["", "", "곰"]),
        Case("a piece may end one character and begin the next",
             args=([b"\xea\xb3", b"\xb0\xec", b"\x9d\xb4!"],), expected=["", "곰", "이!"]),
        Case("four bytes are waited for too", args=([b"\xf0\x9f", b"\xa7", b"\xb8"],), expected=["", "", "\U0001f9f8"]),
        Case("bytes that no character begins with are replaced at once", args=([b"a\xff", b"b"],), expected=["a\ufffd", "b"]),
        Case("what is incomplete at the end becomes one replacement character",
             args=([b"a", b"\xea\xb3"],), expected=["a", "\ufffd"]),
        Case("no pieces give no strings", args=([],), expected=[]),
    ],
    "09.fewest-merges": [
        Case("no merge is needed for one character a token", args=(_LOWER, _LOW, 1), expected=0),
        Case("a target that is met exactly is met", args=(_LOWER, _LOW, 1.4), expected=1),
        Case("the merges are taken in their order", args=(_LOWER, _LOW, 2), expected=2),
        Case("characters are divided by tokens, over all words together", args=(_LOWER, _LOW, 2.5), expected=3),
        Case("None is returned when all merges are not enough", args=(_LOWER, _LOW, 3), expected=None),
        Case("merges that these words do not use count as well",
             args=(["cab"], [("x", "y"), ("a", "b"), ("x", "z")], 1.5), expected=2),
        Case("characters are counted, not bytes", args=(["곰은"], [("곰", "은")], 1.5), expected=1),
        Case("a word that occurs more often counts more often",
             args=(["ab", "ab", "ab", "cd"], [("c", "d"), ("a", "b")], 1.3), expected=2),
        Case("merges stay inside a word", args=(["ab", "ab"], [("b", "a"), ("a", "b")], 2), expected=2),
        Case("the earlier merge is made before the later one",
             args=(["abc"], [("b", "c"), ("a", "b"), ("a", "bc")], 3), expected=3),
    ],
    "09.dropout": [
        Case("with p = 0 it is BPE", args=("lowlower", _LOW, 0.0, _Random(0)), expected=["low", "low", "er"]),
        Case("with p = 0 the merge that was learned first goes first",
             args=("abc", [("b", "c"), ("a", "b")], 0.0, _Random(0)), expected=["a", "bc"]),
        Case("with p = 1 nothing is merged", args=("low", _LOW, 1.0, _Random(0)), expected=["l", "o", "w"]),
        Case("a merge is left out with probability p, not made with it",
             expected=_Dropped("ab", [("a", "b")], 0.2, {"a|b": 0.2, "ab": 0.8})),
        Case("every place is left out by itself, and drawn again in the next step",
             expected=_Dropped("abab", [("a", "b")], 0.5, {"a|b|a|b": 0.25, "ab|ab": 0.375})),
        Case("a merge can follow only on those that were made",
             expected=_Dropped("abc", [("a", "b"), ("ab", "c")], 0.5, {"a|b|c": 0.5, "ab|c": 0.25, "abc": 0.25})),
        Case("chance comes from rng alone: the same state, the same pieces", expected=_Repeated()),
    ],
}
