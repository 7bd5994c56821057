"""What right answers to the exercises of chapter 13 must satisfy."""
import math

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]

_UNIT, _ZERO = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]
_P = 1 / (1 + math.exp(-1))  # softmax of the scores 1 and 0

EXERCISES = {
    "13.pair-count": [
        Case("two words make two pairs, one in each direction", args=(2, 1), expected=2),
        Case("the lecture's six words with window 2 make 18 pairs: the ends have fewer", args=(6, 2), expected=18),
        Case("window 1 joins each word with the next, both ways", args=(10, 1), expected=18),
        Case("a window that is wider than the sentence reaches all other words, no more", args=(3, 10), expected=6),
        Case("a window that reaches exactly to the other end does too", args=(4, 3), expected=12),
        Case("one word makes no pair", args=(1, 2), expected=0),
        Case("no words make none", args=(0, 2), expected=0),
    ],
    "13.distance-weights": [
        Case("a window of 1 uses the next word always", args=(1,), expected=[1.0]),
        Case("with a window of 2, the nearer word is used always and the other half of the time", args=(2,),
             expected=[1.0, 0.5]),
        Case("weights fall in a straight line, not as one over the distance", args=(4,), expected=[1.0, 0.75, 0.5, 0.25]),
        Case("a word at the far end is used in one case of five", args=(5,), expected=[1.0, 0.8, 0.6, 0.4, 0.2]),
    ],
    "13.best-score": [
        Case("a pair as frequent as chance, against one negative, scores 0", args=(2, 100, 200, 10_000, 1), expected=0.0),
        Case("a pair ten times as frequent as chance scores log 10", args=(20, 100, 200, 10_000, 1),
             expected=math.log(10)),
        Case("each further negative lowers the score: by log k in all", args=(20, 100, 200, 10_000, 5),
             expected=math.log(2)),
        Case("the logarithm is the natural one", args=(8, 100, 100, 10_000, 1), expected=math.log(8)),
        Case("a pair never seen scores minus infinity, not an error", args=(0, 100, 200, 10_000, 5), expected=-math.inf),
        Case("a pair that is rarer than chance scores below 0: nothing is cut off", args=(1, 100, 200, 10_000, 5),
             expected=math.log(0.1)),
        Case("centre and context count alike", args=(6, 300, 50, 10_000, 2), expected=math.log(2)),
    ],
    "13.cbow-gradient": [
        Case("with one context word it is what was said minus what was true, times the output rows",
             args=([[1.0, 0.0]], _UNIT, 0), expected=[[_P - 1, 1 - _P]]),
        Case("each of two context words gets half of it", args=([[2.0, 0.0], [0.0, 0.0]], _UNIT, 0),
             expected=[[(_P - 1) / 2, (1 - _P) / 2]] * 2),
        Case("the target makes the difference", args=([[1.0, 0.0]], _UNIT, 1), expected=[[_P, -_P]]),
        Case("output rows that are zero give no gradient", args=([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], _ZERO, 1),
             expected=[[0.0, 0.0]] * 3),
        Case("a table of three words", args=([[1.0, -1.0], [1.0, 1.0]], [[0.0, 3.0], [0.0, -3.0], [0.0, 6.0]], 2),
             expected=[[0.0, -2.0]] * 2),
        Case("large scores do not overflow", args=([[1000.0, 0.0]], _UNIT, 1), expected=[[1.0, -1.0]]),
    ],
}
