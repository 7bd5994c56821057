"""What right answers to the exercises of chapter 04 must satisfy."""
import math

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]

_NAN = math.nan

EXERCISES = {
    "04.steps": [
        Case("the last, smaller batch of an epoch counts, and so does the last, smaller group of batches", expected=9),
    ],
    "04.clip": [
        Case("a gradient that is too long comes out with the wanted norm", args=([[3.0, 4.0]], 1.0), expected=[[0.6, 0.8]]),
        Case("there is one norm for all gradients together", args=([[3.0], [4.0]], 1.0), expected=[[0.6], [0.8]]),
        Case("a gradient that is short enough stays as it is", args=([[0.3, 0.4]], 1.0), expected=[[0.3, 0.4]]),
        Case("the direction stays: signs and proportions", args=([[-6.0, 0.0], [8.0]], 5.0), expected=[[-3.0, 0.0], [4.0]]),
        Case("a gradient of zeros stays zero", args=([[0.0, 0.0]], 1.0), expected=[[0.0, 0.0]]),
    ],
    "04.schedule": [
        Case("the first step is not lost to a factor of 0", args=(1, 4, 12), expected=0.25),
        Case("it rises in equal parts", args=(3, 4, 12), expected=0.75),
        Case("it is 1 at the end of the warm-up", args=(4, 4, 12), expected=1.0),
        Case("halfway down the cosine it is one half", args=(8, 4, 12), expected=0.5),
        Case("the way down is a cosine, not a straight line", args=(6, 4, 12), expected=(1 + math.cos(math.pi / 4)) / 2),
        Case("it ends at 0", args=(12, 4, 12), expected=0.0),
        Case("it stays 0 after the end", args=(15, 4, 12), expected=0.0),
        Case("without warm-up it falls from the first step", args=(1, 0, 2), expected=0.5),
    ],
    "04.patience": [
        Case("training stops when it has waited long enough", args=([(1, 3.0), (2, 2.0), (3, 2.5), (4, 2.6), (5, 1.0)], 2),
             expected=(2, 4)),
        Case("an improvement ends the waiting", args=([(1, 3.0), (2, 3.1), (3, 2.0), (4, 2.1), (5, 1.0)], 2), expected=(5, 5)),
        Case("the wait is for the best so far, not for the last", args=([(1, 1.0), (2, 3.0), (3, 2.0), (4, 0.5)], 2),
             expected=(1, 3)),
        Case("steps are not numbers of validations", args=([(100, 3.0), (200, 2.0), (300, 2.5)], 1), expected=(200, 300)),
        Case("patience counts validations, not steps", args=([(100, 3.0), (200, 2.0), (300, 2.5), (400, 1.0)], 2), expected=(400, 400)),
        Case("an equal loss is no improvement", args=([(1, 2.0), (2, 2.0), (3, 1.0)], 1), expected=(1, 2)),
        Case("NaN is no improvement", args=([(1, 2.0), (2, _NAN), (3, _NAN), (4, 1.0)], 2), expected=(1, 3)),
        Case("NaN at the start is no best loss", args=([(1, _NAN), (2, 2.0), (3, 1.0)], 3), expected=(3, 3)),
    ],
}
