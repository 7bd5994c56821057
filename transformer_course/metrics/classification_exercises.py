"""What right answers to the exercises of chapter 05 must satisfy."""
from transformer_course.metrics.classification import f1_score, precision, recall
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _macros_differ(answer):
    y_true, y_pred = answer
    p, r = precision(y_true, y_pred, "macro"), recall(y_true, y_pred, "macro")
    return abs(2 * p * r / (p + r) - f1_score(y_true, y_pred, "macro")) > 0.3


EXERCISES = {
    "05.false-alarms": [
        Case("the examples called 1 that are 0 are counted, once each", expected=2),
    ],
    "05.balanced-accuracy": [
        Case("a perfect prediction scores 1", args=([0, 1, 1], [0, 1, 1]), expected=1.0),
        Case("each class has the same say, however rare", args=([0, 1, 1, 1, 1], [1, 1, 1, 1, 1]), expected=0.5),
        Case("each class's share is of its actual examples, not of its predictions",
             args=([0, 0, 1, 1], [0, 1, 1, 1]), expected=0.75),
        Case("a class that is only ever predicted does not count", args=([0, 0, 1, 1], [0, 2, 1, 1]), expected=0.75),
        Case("it works for three classes with names", args=(["a", "a", "b", "c"], ["a", "b", "b", "a"]), expected=0.5),
        Case("nothing is rounded", args=([0, 0, 0, 1], [0, 1, 1, 1]), expected=2 / 3),
    ],
    "05.matthews": [
        Case("a perfect prediction scores 1", args=([0, 1, 1, 0], [0, 1, 1, 0]), expected=1.0),
        Case("a prediction that is always wrong scores -1", args=([0, 1, 1, 0], [1, 0, 0, 1]), expected=-1.0),
        Case("it is the correlation of the two vectors", args=([1, 1, 1, 0, 0, 1], [1, 1, 0, 0, 1, 1]), expected=0.25),
        Case("false positives and false negatives are kept apart", args=([1, 1, 1, 0, 0], [1, 0, 0, 0, 0]),
             expected=2 / 24 ** 0.5),
        Case("a constant prediction scores 0, not an error", args=([0, 1, 1], [1, 1, 1]), expected=0.0),
        Case("data of one class scores 0", args=([1, 1], [1, 0]), expected=0.0),
        Case("large counts do not overflow", args=([0, 1] * 60_000, [0, 1] * 60_000), expected=1.0),
    ],
    "05.best-threshold": [
        Case("a threshold that separates the classes is found, at the lowest positive",
             args=([1, 1, 0, 0], [0.9, 0.6, 0.4, 0.1]), expected=(0.6, 1.0)),
        Case("a score equal to the threshold is called positive", args=([1, 0], [0.5, 0.2]), expected=(0.5, 1.0)),
        Case("calling everything positive can be best", args=([0, 1, 1], [0.9, 0.5, 0.4]), expected=(0.4, 0.8)),
        Case("it is F1 that is maximised, not accuracy", args=([1, 0, 1], [0.9, 0.8, 0.7]), expected=(0.7, 0.8)),
        Case("equal scores are called the same", args=([1, 0, 1], [0.7, 0.7, 0.2]), expected=(0.2, 0.8)),
        Case("the order of the examples does not matter",
             args=([0, 1, 0, 1], [0.1, 0.9, 0.4, 0.6]), expected=(0.6, 1.0)),
        Case("among equals the highest threshold is taken",
             args=([1, 0, 0, 1], [0.9, 0.8, 0.7, 0.6]), expected=(0.9, 2 / 3)),
    ],
    "05.two-macro-f1": [
        Case("the mean of the F1 scores and the F1 of the means differ by more than 0.3", expected=_macros_differ),
    ],
}
