"""What right answers to the exercises of chapter 42 must satisfy."""
import math

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]

_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def _words(says, tokens, expected):
    return Case(says, args=(tokens, _SPECIAL), expected=expected)


def _near(value):
    return lambda answer: not math.isnan(answer) and abs(answer - value) < 1e-9


EXERCISES = {
    "42.longest": [
        Case("RoBERTa's 514 rows hold texts of 512 tokens", args=(514, 1), expected=512),
        Case("with 512 rows, the default of the library, two tokens fewer fit", args=(512, 1), expected=510),
        Case("a larger padding id costs more rows", args=(514, 3), expected=510),
        Case("padding with id 0 costs one row", args=(40, 0), expected=39),
    ],
    "42.masks-needed": [
        Case("one mask of 15 % asks for 15 %", args=(0.15, 0.15), expected=1),
        Case("two masks of a half ask for three quarters: the second hits half of what is left", args=(0.5, 0.75), expected=2),
        Case("99 % need 29 masks of 15 %, as 28 ask for 98.9 %", args=(0.15, 0.99), expected=29),
        Case("99 % need 10 masks of 40 %", args=(0.4, 0.99), expected=10),
    ],
    "42.whole-words": [
        _words("a token that begins with Ġ begins a word, others go on", ["A", "Ġte", "ddy", "Ġbear"], [0, 1, 1, 2]),
        _words("special tokens are in no word", ["<s>", "A", "Ġbear", "</s>"], [None, 0, 1, None]),
        _words("behind a special token a word begins, with Ġ or without", ["<s>", "It", "</s>", "</s>", "He", "y", "Ġyou", "</s>", "<pad>"],
               [None, 0, None, None, 1, 1, 2, None, None]),
        _words("numbers go up by one, also where a text begins with a space", ["ĠA", "Ġkit", "e"], [0, 1, 1]),
        _words("punctuation without Ġ belongs to the word before it", ["He", "Ġreads", ".", "ĠHe", "Ġsleeps", "."], [0, 1, 1, 2, 3, 3]),
    ],
    "42.full-sentences": [
        Case("sentences that fit stand in one block", args=([[[5, 6], [7]]], 4, 2), expected=[[5, 6, 7]]),
        Case("a sentence that does not fit begins the next block, uncut", args=([[[5, 6, 7], [8, 9]]], 4, 2), expected=[[5, 6, 7], [8, 9]]),
        Case("a block may be exactly full", args=([[[5, 6], [7, 8], [9]]], 4, 2), expected=[[5, 6, 7, 8], [9]]),
        Case("a separator stands between two documents in a block", args=([[[5]], [[6]]], 4, 2), expected=[[5, 2, 6]]),
        Case("the separator takes room too", args=([[[5, 6]], [[7, 8]]], 4, 2), expected=[[5, 6], [7, 8]]),
        Case("no block begins or ends with a separator", args=([[[5, 6, 7]], [[8, 9]], [[10]]], 4, 2), expected=[[5, 6, 7], [8, 9, 2, 10]]),
        Case("no documents make no blocks", args=([], 4, 2), expected=[]),
    ],
    "42.large-batch": [
        Case("parts with as many masked tokens count alike", args=([2.0, 4.0], [5, 5]), expected=_near(3.0)),
        Case("a part counts by its masked tokens", args=([2.0, 4.0], [1, 3]), expected=_near(3.5)),
        Case("more parts do not make the loss larger", args=([1.0, 1.0, 1.0], [2, 7, 1]), expected=_near(1.0)),
        Case("a part without masked tokens, whose loss is NaN, counts nothing", args=([2.0, math.nan, 4.0], [1, 0, 3]), expected=_near(3.5)),
        Case("without any masked token the loss is 0", args=([math.nan, 0.0], [0, 0]), expected=_near(0.0)),
    ],
}
