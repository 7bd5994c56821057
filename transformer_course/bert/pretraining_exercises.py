"""What right answers to the exercises of chapter 38 must satisfy."""
import math

import torch
from torch.nn import functional as F

from transformer_course.bert.model import BertConfig
from transformer_course.bert.pretraining import BertForPreTraining
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]

_CONTINUES = torch.tensor([0, 0, 1, 1, 0, 1, 0, 0, 0, 1, 0], dtype=torch.bool)    # 7 words of 1 to 3 pieces
_SPECIAL = torch.tensor([1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1], dtype=torch.bool)      # the first, third-last and last word


def _near(*wanted):
    return lambda answer: len(answer) == len(wanted) and all(abs(float(a) - b) < 2e-4 for a, b in zip(answer, wanted))


# -- whole words

def _drawn(choose, rate, seeds=400, continues=_CONTINUES, special=_SPECIAL):
    return torch.stack([choose(continues.clone(), special.clone(), rate, torch.Generator().manual_seed(seed)) for seed in range(seeds)])


def _words(continues):
    return (~continues).long().cumsum(0) - 1


def _words_stay_whole(choose):
    drawn, words = _drawn(choose, 0.5, 60), _words(_CONTINUES)
    return drawn.dtype == torch.bool and drawn.shape == (60, 11) and all(
        len(set(row[words == word].tolist())) == 1 for row in drawn for word in range(int(words.max()) + 1))


def _rate_of_words(choose):
    """Each ordinary word, of one piece or of several, is chosen at the rate, within about four standard errors."""
    shares = _drawn(choose, 0.25).double().mean(dim=0)[~_SPECIAL]
    return ((shares - 0.25).abs() < 0.09).all().item()


def _independent(choose):
    """Two words are chosen together about as often as chance has it."""
    drawn = _drawn(choose, 0.5)
    both = (drawn[:, 1] & drawn[:, 4]).double().mean().item()
    return abs(both - 0.25) < 0.09


# -- the loss

def _loss_case(says, logits, labels, expected, tolerance=1e-6):
    def near(answer):
        return isinstance(answer, torch.Tensor) and answer.shape == () and abs(answer.item() - expected) < tolerance
    return Case(says, args=(logits, labels), expected=near)


def _draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


_LOGITS, _LABELS = _draw(2, 5, 7), torch.tensor([[-100, 3, -100, -100, 6], [0, -100, -100, -100, -100]])


def _nothing_asked(loss):
    logits = _draw(1, 3, 7).requires_grad_()
    value = loss(logits, torch.full((1, 3), -100))
    value.backward()
    return value.item() == 0 and logits.grad is not None and not logits.grad.any()


def _leaves_the_rest_alone(loss):
    logits = _LOGITS.clone().requires_grad_()
    loss(logits, _LABELS.clone()).backward()
    reached = logits.grad.abs().sum(dim=-1) > 0
    return torch.equal(reached, _LABELS != -100)


# -- order of sentences

_DOCUMENTS = [["a1", "a2", "a3"], ["b1", "b2"], ["c1"], ["d1", "d2", "d3", "d4"]]
_NEIGHBOURS = [("a1", "a2"), ("a2", "a3"), ("b1", "b2"), ("d1", "d2"), ("d2", "d3"), ("d3", "d4")]


def _ordered(pairs, seeds=200):
    return [pairs([list(document) for document in _DOCUMENTS], torch.Generator().manual_seed(seed)) for seed in range(seeds)]


def _neighbours_only(pairs):
    return all([tuple(sorted(pair[:2])) for pair in found] == _NEIGHBOURS for found in _ordered(pairs, 20))


def _labels_say_the_order(pairs):
    return all((first < second) == in_order for found in _ordered(pairs, 20) for first, second, in_order in found)


def _half_of_each(pairs):
    found = _ordered(pairs)
    return all(abs(sum(row[k][2] for row in found) / len(found) - 0.5) < 0.15 for k in range(len(_NEIGHBOURS)))


def _drawn_apart(pairs):
    """The order of one pair says nothing about that of the next."""
    found = _ordered(pairs)
    return abs(sum(row[0][2] == row[1][2] for row in found) / len(found) - 0.5) < 0.15


# -- pseudo-likelihood

def _model(pooler=True):
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig(13, d_model=12, num_layers=2, num_heads=3, d_ff=16, max_len=12, pooler=pooler)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


_MODEL = _model()


def _pseudo(ids, special=(0, 1, 2, 3, 4)):
    total = 0.0
    with torch.no_grad():
        for i, id in enumerate(ids):
            if id not in special:
                hidden = torch.tensor([[*ids[:i], 4, *ids[i + 1:]]])
                total += F.log_softmax(_MODEL(hidden)[0][0, i], -1)[id].item()
    return total


def _pseudo_case(says, ids):
    return Case(says, args=(_MODEL, ids, 4, (0, 1, 2, 3, 4)), expected=lambda answer: math.isclose(float(answer), _pseudo(ids), abs_tol=1e-6))


EXERCISES = {
    "38.doubt": [Case("of all ordinary tokens that are shown 0.015 / 0.88 are wrong, of those that are asked for a half", expected=_near(0.015 / 0.88, 0.5))],
    "38.whole-words": [
        Case("all pieces of a word are chosen, or none", expected=_words_stay_whole),
        Case("special tokens are never chosen", expected=lambda choose: not _drawn(choose, 0.9, 60)[:, _SPECIAL].any()),
        Case("each word is chosen at the rate, however many pieces it has", expected=_rate_of_words),
        Case("words are chosen independently", expected=_independent),
        Case("a rate of 1 chooses all that is not special", expected=lambda choose: torch.equal(_drawn(choose, 1.0, 1)[0], ~_SPECIAL)),
        Case("a rate of 0 chooses nothing", expected=lambda choose: not _drawn(choose, 0.0, 20).any()),
    ],
    "38.masked-loss": [
        _loss_case("it is the mean over the tokens that are asked for", _LOGITS, _LABELS,
                   F.cross_entropy(_LOGITS.flatten(0, 1), _LABELS.flatten()).item()),
        _loss_case("no opinion among 7 tokens costs ln 7", torch.zeros(1, 4, 7), torch.tensor([[2, -100, -100, 5]]), math.log(7)),
        _loss_case("token 0 can be asked for", _LOGITS[:1], torch.tensor([[0, -100, -100, 0, -100]]),
                   F.cross_entropy(_LOGITS[0, [0, 3]], torch.tensor([0, 0])).item()),
        Case("where nothing is asked it is 0, and so are its gradients", expected=_nothing_asked),
        Case("gradients reach the logits of tokens that are asked for, and no others", expected=_leaves_the_rest_alone),
        _loss_case("large logits do not overflow", 1000 * _LOGITS, _LABELS, F.cross_entropy(1000 * _LOGITS.flatten(0, 1), _LABELS.flatten()).item(), 1e-3),
    ],
    "38.order": [
        Case("each pair holds two neighbours of one document, and every two neighbours come once, in the order of the text", expected=_neighbours_only),
        Case("True says that the first one came first", expected=_labels_say_the_order),
        Case("each pair is turned around about half of the time", expected=_half_of_each),
        Case("pairs are turned around independently", expected=_drawn_apart),
    ],
    "38.pseudo": [
        _pseudo_case("a text with one ordinary token is worth the logarithm of its probability", [2, 9, 3]),
        _pseudo_case("longer texts are worth the sum over their tokens, each hidden alone", [2, 9, 7, 12, 5, 9, 3]),
        _pseudo_case("special tokens between sentences are not counted", [2, 9, 3, 7, 3]),
    ],
}
