"""What right answers to the exercises of chapter 39 must satisfy."""
import torch

from transformer_course.bert.fine_tuning import BertForQuestionAnswering, BertForSequenceClassification, best_span
from transformer_course.bert.model import BertConfig
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _spans(*wanted):
    return lambda answer: [tuple(map(int, span)) for span in answer] == list(wanted)


def _span_case(says, starts, ends):
    """A case of `one_pass`: judged by comparing all pairs."""
    found = best_span(*(torch.tensor([scores], dtype=torch.float64) for scores in (starts, ends)))
    wanted = int(found[0]), int(found[1])
    return Case(says, args=(starts, ends), expected=lambda answer: tuple(map(int, answer)) == wanted)


class _Watched(list):
    """A list that counts how often a number is looked at; slices count for all that they hold."""

    def __init__(self, values, seen):
        super().__init__(values)
        self.seen = seen

    def __getitem__(self, at):
        self.seen.append(len(range(*at.indices(len(self)))) if isinstance(at, slice) else 1)
        return super().__getitem__(at)

    def __iter__(self):
        for value in super().__iter__():
            self.seen.append(1)
            yield value


def _looks_little(one_pass):
    """At most eight looks at each position of a text of 300 tokens, whatever the numbers are."""
    numbers = torch.Generator().manual_seed(0)
    starts, ends = torch.randn(2, 300, generator=numbers, dtype=torch.float64).tolist()
    seen = []
    one_pass(_Watched(starts, seen), _Watched(ends, seen))
    return sum(seen) <= 8 * 300


def _no_answer_case(says, starts, ends, allowed, threshold, wanted):
    def judged(answer):
        return answer is None if wanted is None else answer is not None and tuple(map(int, answer)) == wanted
    tensors = torch.tensor(starts), torch.tensor(ends), torch.tensor(allowed, dtype=torch.bool)
    return Case(says, args=(*tensors, threshold), expected=judged)


def _model(pooler=True, layers=3):
    config = BertConfig(7, d_model=4, num_layers=layers, num_heads=1, d_ff=5, max_len=6)
    return BertForSequenceClassification(config, 2) if pooler else BertForQuestionAnswering(config)


def _rates(parameter_groups, model, rate, decay):
    """{name: rate}, or None where a parameter is absent, or there twice."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [(names[id(p)], group["lr"]) for group in parameter_groups(model, rate, decay) for p in group["params"]]
    return dict(found) if sorted(name for name, _ in found) == sorted(names.values()) else None


def _rates_where(holds, **kind):
    def judged(parameter_groups):
        rates = _rates(parameter_groups, _model(**kind), 0.5, 0.1)
        return rates is not None and holds(rates)
    return judged


def _all_have(part, wanted):
    return lambda rates: all(abs(rate - wanted) < 1e-9 for name, rate in rates.items() if name.startswith(part))


def _trains(parameter_groups):
    torch.optim.AdamW(parameter_groups(_model(), 0.5, 0.1), lr=1.0)   # which takes no parameter twice
    return True


EXERCISES = {
    "39.by-hand": [Case("no end lies before its start, both are in the text, and the sum is the largest", expected=_spans((3, 4), (4, 4)))],
    "39.one-pass": [
        _span_case("the best start and the best end are taken where they fit", [1.0, 5.0, 0.0], [0.0, 1.0, 4.0]),
        _span_case("an end does not lie before its start", [0.0, 1.0, 6.0], [7.0, 2.0, 0.0]),
        _span_case("an answer may be one token", [0.0, 5.0, 1.0], [1.0, 5.0, 1.0]),
        _span_case("a start is forgotten when a better one comes, but not its answer", [4.0, 0.0, 5.0, 0.0], [0.0, 6.0, 0.0, 1.0]),
        _span_case("scores may all be negative", [-3.0, -1.0, -4.0], [-2.0, -6.0, -5.0]),
        _span_case("of equal spans the first one wins", [2.0, 0.0, 2.0, 2.0], [0.0, 3.0, 3.0, 3.0]),
        _span_case("one token is a text", [-1.0], [-2.0]),
        Case("each number is looked at a few times only", expected=_looks_little),
    ],
    "39.no-answer": [
        _no_answer_case("the best span in the text is the answer if [CLS] scores less", [0.0, 1.0, 3.0, 0.0], [0.0, 4.0, 2.0, 0.0],
                        [0, 1, 1, 0], 0.0, (1, 1)),
        _no_answer_case("there is none if [CLS] scores more", [4.0, 1.0, 3.0, 0.0], [4.0, 4.0, 2.0, 0.0], [0, 1, 1, 0], 0.0, None),
        _no_answer_case("both ends of [CLS] count", [4.0, 1.0, 3.0, 0.0], [0.0, 4.0, 2.0, 0.0], [0, 1, 1, 0], 0.0, (1, 1)),
        _no_answer_case("the answer must be better by more than the threshold", [1.0, 1.0, 3.0, 0.0], [1.0, 4.0, 2.0, 0.0],
                        [0, 1, 1, 0], 4.0, None),
        _no_answer_case("just the threshold is not enough", [1.0, 1.0, 3.0, 0.0], [1.0, 4.0, 2.0, 0.0], [0, 1, 1, 0], 3.0, None),
        _no_answer_case("a negative threshold favours answers", [4.0, 1.0, 3.0, 0.0], [4.0, 4.0, 2.0, 0.0], [0, 1, 1, 0], -5.0, (1, 1)),
        _no_answer_case("an answer outside the text is none", [0.0, 9.0, 1.0, 2.0], [0.0, 9.0, 1.0, 3.0], [0, 0, 1, 1], 0.0, (3, 3)),
    ],
    "39.layer-rates": [
        Case("each parameter is there once", expected=_rates_where(lambda rates: True)),
        Case("a model without a pooler works too", expected=_rates_where(lambda rates: True, pooler=False)),
        Case("the head has the whole rate", expected=_rates_where(_all_have("classifier", 0.5))),
        Case("the pooler has it too", expected=_rates_where(_all_have("bert.pooler", 0.5))),
        Case("the top layer has one factor", expected=_rates_where(_all_have("bert.encoder.layers.2", 0.05))),
        Case("the bottom layer has one for each layer", expected=_rates_where(_all_have("bert.encoder.layers.0", 0.0005))),
        Case("the embeddings have one more", expected=_rates_where(_all_have("bert.embeddings", 0.00005))),
        Case("with more layers there are more factors", expected=_rates_where(_all_have("bert.embeddings", 0.5e-6), layers=5)),
        Case("an optimizer takes the groups", expected=_trains),
    ],
}
