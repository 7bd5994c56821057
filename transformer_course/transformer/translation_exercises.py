"""What right answers to the exercises of chapter 28 must satisfy."""
import math
from functools import cache

import torch

from transformer_course.text.bpe import BPETokenizer
from transformer_course.toolbox.exercises import Case, same
from transformer_course.transformer.decoding import beam_search
from transformer_course.transformer.residual_and_norm import LayerNorm
from transformer_course.transformer.transformer import Transformer, TransformerConfig
from transformer_course.transformer.translation import Translator

__all__ = ["EXERCISES"]

_TEXT = "a bear\n\n  \ntwo bears\n"


# -- line by line

def _shout(texts):
    return [text.upper() for text in texts]


def _gives(text, expected):
    return lambda translate_lines: translate_lines(text, _shout) == expected


def _asks(text, expected):
    """Whether all that is to be translated comes in one call, as a list, and nothing else does."""
    def holds(translate_lines):
        calls = []

        def translate(texts):
            calls.append(texts)
            return _shout(texts)

        translate_lines(text, translate)
        return calls == expected
    return holds


# -- the n best

@cache
def _translator():
    """A small translator, not trained, that would like to say PAD and BOS, and ends soon."""
    tokenizer = BPETokenizer.train(["a bear reads", "un ours lit"], vocab_size=262)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Transformer(TransformerConfig(265, 265, 64, 2, 8, 1, 1, dropout=0.0, max_len=40, tie_embeddings=True))
    translator = Translator(model.eval(), tokenizer)
    last = [part for part in model.decoder.layers[-1].modules() if isinstance(part, LayerNorm)][-1]
    with torch.no_grad():
        model.target_embedding.weight.mul_(2)
        wanted = model.target_embedding.weight[[translator.pad, translator.bos, translator.eos]]
        last.bias.copy_(6 * wanted.sum(dim=0) / wanted.norm(dim=1).square().mean())
    return translator


@cache
def _best(text, n, length_penalty):
    """(translation, score) of the n best, by the search of chapter 27."""
    translator = _translator()
    row = [*translator.tokenizer.encode(text), translator.eos]
    with torch.no_grad():
        context = translator.model.encode(torch.tensor([row], device="cpu"))

    def step(prefixes):
        logits = translator.model.decode(prefixes, context.expand(len(prefixes), -1, -1))[:, -1]
        logits[:, [translator.pad, translator.bos]] = -math.inf
        return logits.log_softmax(dim=-1)

    limit = min(2 * len(row) + 20, translator.model.config.max_len - 1)
    found = beam_search(step, translator.bos, translator.eos, n, limit, length_penalty)
    return [(translator.tokenizer.decode([i for i in best.ids if i < translator.pad]), best.score) for best in found]


def _n_best(text, n, length_penalty=0.0, part=None):
    """Whether translations (part 0), scores (part 1) or both are the search's."""
    def holds(n_best):
        found = [tuple(pair) for pair in n_best(_translator(), text, n, length_penalty)]
        expected = _best(text, n, length_penalty)
        if part is None:
            return same(found, expected, 1e-4)
        return same([pair[part] for pair in found], [pair[part] for pair in expected], 1e-4)
    return holds


EXERCISES = {
    "28.padding": [Case("the first share is that of the batches as they come, the second that of the sorted ones", expected=(15 / 54, 5 / 44))],
    "28.lines": [
        Case("each line is translated where it stands, and blank ones stay", expected=_gives(_TEXT, "A BEAR\n\n  \nTWO BEARS\n")),
        Case("translate is called once, with the list of lines that are not blank", expected=_asks(_TEXT, [["a bear", "two bears"]])),
        Case("a newline at the end is there afterwards only if it was before", expected=_gives("a bear\na cat", "A BEAR\nA CAT")),
        Case("blank lines at the beginning stay", expected=_gives("\n \na bear", "\n \nA BEAR")),
        Case("a line may hold other signs that break lines elsewhere, such as U+2028", expected=_asks("a\u2028b\x0cc\nd", [["a\u2028b\x0cc", "d"]])),
        Case("two equal lines are both translated", expected=_gives("a bear\na bear", "A BEAR\nA BEAR")),
        Case("where all lines are blank nothing is translated, and they stay", expected=_gives(" \n\n", " \n\n")),
    ],
    "28.n-best": [
        Case("the translations are those that beam_search finds with n beams, best first", expected=_n_best("a bear", 3, part=0)),
        Case("without a penalty the scores are sums of log-probabilities", expected=_n_best("a bear", 3, part=1)),
        Case("with a length penalty of 1 the scores are means, and the order follows", expected=_n_best("a bear", 4, 1.0)),
        Case("n = 1 gives a list of one", expected=_n_best("a", 1)),
        Case("the translation of a long text stays below max_len", expected=_n_best("reads a bear reads", 2, -0.5)),
    ],
}
