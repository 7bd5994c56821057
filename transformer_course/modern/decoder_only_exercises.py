"""What right answers to the exercises of chapter 33 must satisfy."""
import math

import torch

from transformer_course.modern.decoder_only import CausalLM, CausalLMConfig
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]

_SMALL = {"d_model": 12, "num_layers": 2, "num_heads": 6, "d_ff": 7, "max_len": 9}


def _size(config):
    """What building the model on the meta device counts."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in CausalLM(config).parameters())


def _counts(says, config):
    return Case(says, args=(config,), expected=_size(config))


def _logits(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _loss(logits, ids, mask=None):
    """The mean over every real token that a real token stands before."""
    total, count = 0.0, 0
    for row in range(len(ids)):
        for t in range(1, ids.shape[1]):
            if mask is None or mask[row, t] and mask[row, t - 1]:
                total -= logits[row, t - 1].log_softmax(-1)[ids[row, t]].item()
                count += 1
    return total / count


def _ids(*rows):
    return torch.tensor(rows)


def _close(wanted):
    return lambda got: math.isclose(float(got), wanted, rel_tol=1e-6)


def _has_gradient(next_token_loss):
    logits = _logits(1, 3, 5).requires_grad_()
    next_token_loss(logits, _ids([1, 2, 3])).backward()
    return bool(logits.grad[:, :-1].abs().sum() > 0) and not logits.grad[:, -1].any()


def _model():
    """A small model whose weights are larger than at the start, so that its answers differ."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CausalLM(CausalLMConfig(7, d_model=8, num_layers=2, num_heads=2, d_ff=9, max_len=8)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)
    return model.eval()


def _step_by_step(model, prompt, answer):
    total = 0.0
    with torch.no_grad():
        for t, token in enumerate(answer):
            total += model(torch.tensor([[*prompt, *answer[:t]]]))[0, -1].log_softmax(-1)[token].item()
    return total


def _scores(prompt, answer):
    def right(log_probability):
        model = _model()
        return math.isclose(float(log_probability(model, prompt, answer)), _step_by_step(model, prompt, answer), rel_tol=1e-6)
    return right


def _calls(log_probability):
    model, calls = _model(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    log_probability(model, [1, 2], [3, 4, 5])
    return len(calls) == 1


def _weights(*rows):
    """One head's weights from lists that are filled up with zeros."""
    length = len(rows)
    return torch.tensor([[*row, *[0.0] * (length - len(row))] for row in rows], dtype=torch.float64)[None]


_UNIFORM = torch.tril(torch.ones(5, 5, dtype=torch.float64)).div(torch.arange(1, 6, dtype=torch.float64)[:, None])[None]
_AFTER = _weights([1], [0.5, 0.5], [0, 1, 0], [0.1, 0.7, 0.1, 0.1], [0.2, 0.2, 0.3, 0.1, 0.2])


EXERCISES = {
    "33.parameters": [
        _counts("GPT-2 small has 124,439,808", CausalLMConfig.gpt2()),
        _counts("LLaMA 2 7B has 6,738,415,616", CausalLMConfig.llama()),
        _counts("Mistral 7B has 7,241,732,096, since its heads share keys and values", CausalLMConfig.mistral()),
        _counts("a head may be wider than d_model / num_heads", CausalLMConfig(11, **_SMALL, head_dim=5)),
        _counts("an untied output has weights of its own", CausalLMConfig(11, **_SMALL, tie_embeddings=False)),
        _counts("biases of attention and of the network are counted apart",
                CausalLMConfig(11, **_SMALL, num_kv_heads=2, attention_bias=False)),
        _counts("post-norm has no norm at the end", CausalLMConfig(11, **_SMALL, pre_norm=False)),
        _counts("only a learned table of positions has weights", CausalLMConfig(11, **_SMALL, position="alibi")),
    ],
    "33.loss": [
        Case("logits that are all equal cost ln V", args=(torch.zeros(2, 4, 5, dtype=torch.float64), _ids([1, 2, 3, 4], [0, 0, 1, 1])),
             expected=_close(math.log(5))),
        Case("place t predicts token t + 1", args=(_logits(2, 4, 5), _ids([1, 2, 3, 4], [0, 4, 1, 1])),
             expected=_close(_loss(_logits(2, 4, 5), _ids([1, 2, 3, 4], [0, 4, 1, 1])))),
        Case("the last place predicts nothing, and the others get gradients", expected=_has_gradient),
        Case("padding on the right is neither read nor predicted, and all tokens count alike",
             args=(_logits(2, 5, 6, seed=1), _ids([1, 2, 3, 4, 5], [1, 2, 0, 0, 0]), _ids([1, 1, 1, 1, 1], [1, 1, 0, 0, 0])),
             expected=_close(_loss(_logits(2, 5, 6, seed=1), _ids([1, 2, 3, 4, 5], [1, 2, 0, 0, 0]),
                                   _ids([1, 1, 1, 1, 1], [1, 1, 0, 0, 0])))),
        Case("no padding predicts the first real token",
             args=(_logits(2, 4, 6, seed=2), _ids([1, 2, 3, 4], [0, 0, 5, 3]), _ids([1, 1, 1, 1], [0, 0, 1, 1]).bool()),
             expected=_close(_loss(_logits(2, 4, 6, seed=2), _ids([1, 2, 3, 4], [0, 0, 5, 3]), _ids([1, 1, 1, 1], [0, 0, 1, 1])))),
    ],
    "33.log-probability": [
        Case("one token costs what the last place of the prompt says of it", expected=_scores([1, 2, 3], [4])),
        Case("of several tokens the logarithms are added, each given the ones before", expected=_scores([1, 2], [3, 4, 5])),
        Case("a prompt of one token will do", expected=_scores([6], [0, 0])),
        Case("the model is called once", expected=_calls),
    ],
    "33.order-free": [Case("the mean of log(12 - i) over the 11 places i = 1 to 11 at which the next id can be known",
                           expected=math.lgamma(12) / 11)],
    "33.induction-score": [
        Case("with ids 5 6 7 5 6, place 3 should look at place 1, and place 4 at place 2: 0.7 and 0.3",
             args=(_AFTER, [5, 6, 7, 5, 6]), expected=[0.5]),
        Case("an id that came twice has two places after it, whose weights are added",
             args=(_UNIFORM, [5, 6, 5, 7, 5]), expected=[(1 / 3 + 2 / 5) / 2]),
        Case("the place after the last occurrence can be the place itself", args=(_UNIFORM[:, :2, :2], [4, 4]), expected=[0.5]),
        Case("each head has a score", args=(torch.cat([_AFTER, _UNIFORM]), [5, 6, 7, 5, 6]), expected=[0.5, (1 / 4 + 1 / 5) / 2]),
        Case("where no id comes twice, the score is 0", args=(_AFTER, [1, 2, 3, 4, 5]), expected=[0.0]),
    ],
}
