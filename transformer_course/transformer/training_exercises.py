"""What right answers to the exercises of chapter 26 must satisfy."""
import math

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _gradient(logits, target, epsilon):
    """By differences of the loss itself, in steps of 1e-5 to both sides."""
    def loss(scores):
        top = max(scores)
        log_sum = top + math.log(sum(math.exp(z - top) for z in scores))
        q = [epsilon / len(scores) + (1 - epsilon if v == target else 0) for v in range(len(scores))]
        return sum(share * (log_sum - z) for share, z in zip(q, scores))

    def moved(place, step):
        return loss([z + step * (v == place) for v, z in enumerate(logits)])
    return [(moved(v, 1e-5) - moved(v, -1e-5)) / 2e-5 for v in range(len(logits))]


def _gradient_case(says, logits, target, epsilon):
    expected = _gradient(logits, target, epsilon)
    return Case(says, args=(logits, target, epsilon), expected=lambda outcome: len(outcome) == len(expected) and all(
        abs(float(a) - b) < 1e-6 for a, b in zip(outcome, expected)))


EXERCISES = {
    "26.peak": [
        Case("the base model's rate is highest in step 4,000", args=(512, 4000), expected=(4000, 1 / math.sqrt(512 * 4000))),
        Case("a narrow model with a short warm-up has a high peak", args=(32, 50), expected=(50, 0.025)),
        Case("width and warm-up count alike", args=(50, 32), expected=(32, 0.025)),
    ],
    "26.floor": [
        Case("half of the probability on each of two classes costs log 2", args=(2, 1.0), expected=math.log(2)),
        Case("without smoothing the loss can reach 0", args=(5, 0.0), expected=0.0),
        Case("it is the entropy of the smoothed target", args=(5, 0.1), expected=-0.92 * math.log(0.92) - 4 * 0.02 * math.log(0.02)),
        Case("it depends on the size of the vocabulary", args=(1000, 0.1),
             expected=-0.9001 * math.log(0.9001) - 999 * 1e-4 * math.log(1e-4)),
    ],
    "26.gradient": [
        _gradient_case("without smoothing it is the softmax minus the one-hot target", [0.5, -1.0, 2.0], 0, 0.0),
        _gradient_case("with smoothing it is the softmax minus the smoothed target", [0.5, -1.0, 2.0, 0.0], 2, 0.3),
        _gradient_case("two equal logits, the right one second", [1.0, 1.0], 1, 0.1),
        Case("large logits do no harm", args=([1000.0, 0.0], 0, 0.0), expected=[0.0, 0.0]),
    ],
    "26.combine": [
        Case("each token counts once", args=([1.0, 2.0], [1, 3]), expected=1.75),
        Case("a process without tokens changes nothing", args=([1.0, math.nan, 2.0], [1, 0, 1]), expected=1.5),
        Case("no tokens at all give 0", args=([math.nan, math.nan], [0, 0]), expected=0.0),
        Case("a NaN that comes from tokens is not hidden", args=([math.nan, 1.0], [2, 1]), expected=math.nan),
    ],
}
