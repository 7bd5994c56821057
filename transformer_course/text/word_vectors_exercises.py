"""What right answers to the exercises of chapter 12 must satisfy."""
import math

import numpy as np

from transformer_course.text.word_vectors import cosine_similarity
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]

_TABLE = [[2.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 2.0, 5.0], [1.0, 2.0, 2.0]]
_WORDS = ["king", "man", "woman", "queen", "chair"]
_MANY = [787 * i % 2003 for i in range(2003)]  # all different
_EQUAL = [7 * i % 5 for i in range(200)]  # forty of each


def _centred(table):
    return cosine_similarity(np.array(table) - np.mean(table, axis=0))


EXERCISES = {
    "12.same-direction": [
        Case("the vector has three numbers", expected=lambda v: len(v) == 3),
        Case("its cosine with (1, -2, 2) is 1", expected=lambda v: cosine_similarity(v, [1, -2, 2]) > 1 - 1e-9),
        Case("its length is 6", expected=lambda v: math.isclose(math.hypot(*v), 6)),
    ],
    "12.centred-cosines": [
        Case("two rows on either side of their mean are opposite", args=([[3.0, 1.0], [1.0, 3.0]],),
             expected=[[1.0, -1.0], [-1.0, 1.0]]),
        Case("every row is compared with every row, less the mean row", args=(_TABLE,), expected=_centred(_TABLE)),
        Case("adding the same vector to all rows changes nothing",
             args=([[x + y for x, y in zip(row, (7, -3, 2))] for row in _TABLE],), expected=_centred(_TABLE)),
        Case("a row that is the mean has cosine 0", args=([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]],),
             expected=[[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
    ],
    "12.top-k": [
        Case("the largest come first", args=([0.1, 0.9, 0.5, 0.7], 3), expected=[1, 3, 2]),
        Case("among equals the earlier comes first", args=([3, 1, 3, 2, 3], 2), expected=[0, 2]),
        Case("k may be all of them", args=([1, 2, 1], 3), expected=[1, 0, 2]),
        Case("negative scores are scores", args=([-2.0, -1.0, -3.0], 1), expected=[1]),
        Case("many equal scores keep their order", args=([1] * 40, 5), expected=[0, 1, 2, 3, 4]),
        Case("among many equals the earlier are taken, in order", args=(_EQUAL, 60),
             expected=sorted(range(200), key=lambda i: -_EQUAL[i])[:60]),
        Case("many are in order too", args=(_MANY, 400), expected=sorted(range(2003), key=_MANY.__getitem__)[:-401:-1]),
    ],
    "12.three-cos-mul": [
        Case(says, args=("king", "man", "woman", _WORDS, table), expected="queen") for says, table in [
            ("the three query words are not answers", [[3.0, 2.0], [-1.0, 0.0], [-1.0, 0.0], [-2.0, 3.0], [-4.0, -1.0]]),
            ("cosines are moved to 0 ... 1 before they are multiplied",
             [[4.0, 0.0], [0.0, -1.0], [-2.0, -2.0], [2.0, -2.0], [-3.0, 1.0]]),
            ("cosines below 0 count too", [[4.0, 2.0], [-4.0, 3.0], [2.0, 3.0], [4.0, -3.0], [0.0, 2.0]]),
            ("lengths do not matter", [[1.0, 4.0], [1.0, 1.0], [0.0, -4.0], [-3.0, 2.0], [1.0, 1.0]]),
            ("the product decides, not the cosine with the sum",
             [[0.0, 3.0], [3.0, -2.0], [1.0, -1.0], [-2.0, 0.0], [3.0, 4.0]]),
        ]
    ],
}
