"""What right answers to the exercises of chapter 07 must satisfy."""
import math

from transformer_course.metrics.generation import bleu, rouge_l
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _bleu_prefers_the_first(answer):
    reference, first, second = answer
    return bleu([first], [[reference]]) - bleu([second], [[reference]]) >= 30


def _rouge_l_prefers_the_second(answer):
    reference, first, second = answer
    return rouge_l(second, reference)[2] - rouge_l(first, reference)[2] >= 0.2


def _words(*texts):
    return [text.split() for text in texts]


EXERCISES = {
    "07.clipped-counts": [
        Case("each pair counts at most as often as the reference that has it most often contains it", expected=4),
    ],
    "07.closest-length": [
        Case("a single reference is the closest", args=(7, [9]), expected=9),
        Case("the closest length is taken, not the shortest", args=(8, [3, 7, 20]), expected=7),
        Case("longer references can be closer", args=(8, [3, 10]), expected=10),
        Case("of two that are equally close the shorter is taken", args=(8, [6, 10]), expected=6),
        Case("the order of the references does not matter", args=(8, [10, 6]), expected=6),
        Case("an output of no tokens is closest to the shortest", args=(0, [5, 4]), expected=4),
    ],
    "07.chrf": [
        Case("a text scores 100 against itself", args=("곰 인형이 책을 읽고 있다", "곰 인형이 책을 읽고 있다"), expected=100.0),
        Case("texts with no character in common score 0", args=("abc", "xyz"), expected=0.0),
        Case("blanks do not count", args=("teddy bear", "ted dybear"), expected=100.0),
        Case("lengths n that the texts are too short for are left out", args=("bear", "bear"), expected=100.0),
        Case("a length n is left out as soon as one of the two has no n-grams of it", args=("cat", "a cat naps"),
             expected=32.250580046403705),
        Case("counts are clipped", args=("aaaa", "ab"), expected=20.833333333333336),
        Case("recall weighs more than precision", args=("the bear", "the bear reads"), expected=51.132491751735685),
        Case("precisions and recalls are averaged first, then combined", args=("the red bear", "a bear reads"),
             expected=25.621693121693117),
        Case("capitals and small letters differ", args=("A bear", "a bear"), expected=54.333333333333336),
        Case("n goes up to 6 and no further", args=("a bear reads", "a bear naps"), expected=36.340721459255946),
        Case("an output of no characters scores 0", args=("", "bear"), expected=0.0),
        Case("a reference of no characters gives 0", args=("bear", ""), expected=0.0),
    ],
    "07.rouge-lsum": [
        Case("one sentence against one is ROUGE-L", args=(_words("the bear reads"), _words("the old bear sleeps")),
             expected=(2 / 3, 1 / 2, 4 / 7)),
        Case("the order of the sentences does not matter", args=(_words("c d e", "a b"), _words("a b", "c d e")),
             expected=(1.0, 1.0, 1.0)),
        Case("the order of the words within a sentence does", args=(_words("b a"), _words("a b")),
             expected=(0.5, 0.5, 0.5)),
        Case("a reference sentence is matched with all output sentences together",
             args=(_words("w1 w2 w6 w7 w8", "w1 w3 w8 w9 w5"), _words("w1 w2 w3 w4 w5")), expected=(0.4, 0.8, 8 / 15)),
        Case("a token of the output counts only once", args=(_words("a"), _words("a b", "a c")),
             expected=(1.0, 0.25, 0.4)),
        Case("a word that is matched in two places counts twice",
             args=(_words("the bear and the owl"), _words("the owl and the bear")), expected=(0.6, 0.6, 0.6)),
        Case("the positions in the reference are united, not those in the output",
             args=(_words("a b", "a c"), _words("a b c a")), expected=(0.75, 0.75, 0.75)),
        Case("an empty output scores 0", args=([], _words("a b")), expected=(0.0, 0.0, 0.0)),
        Case("an empty reference gives 0", args=(_words("a b"), []), expected=(0.0, 0.0, 0.0)),
    ],
    "07.bits-per-byte": [
        Case("a fair choice between two bytes is one bit", args=([math.log(1 / 2)] * 4, "bear"), expected=1.0),
        Case("the text's bytes count, not the tokens", args=([math.log(1 / 2)] * 4, "the bear"), expected=0.5),
        Case("a syllable of Hangul has three bytes", args=([math.log(1 / 8)] * 3, "곰돌이"), expected=1.0),
        Case("bytes are counted character by character, whatever the script", args=([math.log(1 / 4)] * 4, "teddy 곰"),
             expected=8 / 9),
        Case("tokens may differ in probability", args=([math.log(1 / 2), math.log(1 / 8)], "abcd"), expected=1.0),
        Case("the logarithms are natural, the result is in bits", args=([-1.0], "a"), expected=1 / math.log(2)),
    ],
    "07.disagreement": [
        Case("BLEU puts the first output at least 30 points above the second", expected=_bleu_prefers_the_first),
        Case("ROUGE-L puts the second output at least 0.2 above the first", expected=_rouge_l_prefers_the_second),
    ],
}
