"""What right answers to the exercises of chapter 27 must satisfy."""
import math
from collections import Counter

import torch

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _log(*probs):
    return torch.tensor(probs, dtype=torch.float64).log()


def _blocked(no_repeat, n, prefixes):
    """For each prefix the ids that the wrapped step makes impossible, or None where it changes another."""
    log_probs = _log(0.1, 0.1, 0.2, 0.2, 0.2, 0.2)
    wrapped = no_repeat(lambda asked: log_probs.repeat(len(asked), 1), n)(torch.tensor(prefixes))
    gone = wrapped == -math.inf
    kept = torch.where(gone, log_probs.expand_as(wrapped), wrapped)
    return [row.nonzero().flatten().tolist() for row in gone] if torch.equal(kept, log_probs.expand_as(wrapped)) else None


def _blocks(n, prefixes, expected):
    return lambda no_repeat: _blocked(no_repeat, n, prefixes) == expected


def _leaves_the_answer_alone(no_repeat):
    """Whether a step that returns the same tensor each time still does after it was wrapped and called."""
    said = _log(0.1, 0.2, 0.3, 0.4)[None]
    before = said.clone()
    no_repeat(lambda asked: said, 1)(torch.tensor([[0, 2]]))
    return torch.equal(said, before)


def _asks_once(no_repeat):
    calls = []

    def step(prefixes):
        calls.append(prefixes.tolist())
        return _log(0.25, 0.25, 0.25, 0.25).repeat(len(prefixes), 1)

    no_repeat(step, 2)(torch.tensor([[0, 2], [0, 3]]))
    return calls == [[[0, 2], [0, 3]]]


def _draws(gumbel_top_k, k, probs, seed, times=3000):
    generator = torch.Generator().manual_seed(seed)
    log_probs = _log(*probs)
    return Counter(tuple(gumbel_top_k(log_probs, k, generator)) for _ in range(times))


def _first_as_often(gumbel_top_k):
    """The first id comes with its probability, up to four standard errors."""
    counts, probs = _draws(gumbel_top_k, 1, (0.5, 0.3, 0.15, 0.05), 0), (0.5, 0.3, 0.15, 0.05)
    return all(abs(counts[i,] / 3000 - p) < 4 * math.sqrt(p * (1 - p) / 3000) for i, p in enumerate(probs))


def _pairs_as_often(gumbel_top_k):
    """Pairs come as when the second is drawn from what the first has left."""
    probs = (0.6, 0.3, 0.1)
    counts = _draws(gumbel_top_k, 2, probs, 1)
    pairs = {(i, j): p * q / (1 - p) for i, p in enumerate(probs) for j, q in enumerate(probs) if i != j}
    return set(counts) <= set(pairs) and all(
        abs(counts[pair] / 3000 - p) < 4 * math.sqrt(p * (1 - p) / 3000) for pair, p in pairs.items())


def _in_any_order(*expected):
    return lambda ids: isinstance(ids, list) and sorted(ids) == list(expected)


def _draws_from_the_generator(gumbel_top_k):
    log_probs = torch.zeros(50, dtype=torch.float64)
    generator = torch.Generator()
    a, b = (gumbel_top_k(log_probs, 9, generator.manual_seed(3)) for _ in range(2))
    return a == b != gumbel_top_k(log_probs, 9, generator.manual_seed(4))


EXERCISES = {
    "27.break-even": [Case("both have the same score there, log-probability over length to the power of it",
                           expected=math.log(5 / 4) / math.log(8 / 5))],
    "27.min-p": [
        Case("with min_p 0.25 and a best probability of 0.5, all from 0.125 up are kept, in proportion",
             args=(_log(0.5, 0.3, 0.15, 0.05), 0.25), expected=[0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0.0]),
        Case("the bound is relative: where all are equal, all are kept", args=(_log(*[0.1] * 10), 0.5), expected=[0.1] * 10),
        Case("min_p 1 keeps the best alone", args=(_log(0.2, 0.7, 0.1), 1.0), expected=[0.0, 1.0, 0.0]),
        Case("each row has a bound of its own", args=(torch.stack([_log(0.9, 0.05, 0.05), _log(0.4, 0.4, 0.2)]), 0.4),
             expected=[[1.0, 0.0, 0.0], [0.4, 0.4, 0.2]]),
        Case("what is impossible stays so", args=(_log(0.5, 0.5, 0.0), 0.1), expected=[0.5, 0.5, 0.0]),
    ],
    "27.no-repeat": [
        Case("after 0 2 3 2, with n = 2, the 3 is blocked and nothing else changes", expected=_blocks(2, [[0, 2, 3, 2]], [[3]])),
        Case("all that followed before is blocked, not only the last", expected=_blocks(2, [[0, 2, 3, 2, 4, 2]], [[3, 4]])),
        Case("with n = 3, two ids must match", expected=_blocks(3, [[0, 2, 3, 4, 5, 3, 2, 3]], [[4]])),
        Case("with n = 1, every id of the prefix is blocked, BOS too", expected=_blocks(1, [[0, 3, 2]], [[0, 2, 3]])),
        Case("an n-gram may overlap itself", expected=_blocks(2, [[0, 2, 2]], [[2]])),
        Case("a prefix shorter than n blocks nothing", expected=_blocks(4, [[0, 2]], [[]])),
        Case("each prefix blocks its own ids", expected=_blocks(2, [[0, 2, 3, 2], [0, 3, 4, 3], [0, 3, 4, 5]], [[3], [4], []])),
        Case("what step returned is not changed", expected=_leaves_the_answer_alone),
        Case("step is asked once, about the same prefixes", expected=_asks_once),
    ],
    "27.gumbel": [
        Case("k = 4 of 4 gives all ids, as a list", args=(_log(0.1, 0.2, 0.3, 0.4), 4, None), expected=_in_any_order(0, 1, 2, 3)),
        Case("the first id is a sample of the distribution", expected=_first_as_often),
        Case("the second is a sample of what is left", expected=_pairs_as_often),
        Case("what is impossible does not come", args=(_log(0.5, 0.0, 0.5), 2, None), expected=_in_any_order(0, 2)),
        Case("the random numbers come from the generator", expected=_draws_from_the_generator),
    ],
}
