"""What right answers to the exercises of chapter 34 must satisfy."""
import torch

from transformer_course.modern.t5 import ByteTokenizer, T5Config, random_spans
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]

_ODD = {"d_model": 7, "num_heads": 3, "head_dim": 5, "d_ff": 11, "num_buckets": 6, "max_distance": 9}
_TEXT = ByteTokenizer().encode("a곰é🐻b")     # 1, 3, 2, 4 and 1 bytes


def _lengths(length, density, mean):
    """The lengths of input and target, counted on spans that were really drawn."""
    spans = random_spans(length, density, mean, torch.Generator().manual_seed(0))
    hidden = sum(end - start for start, end in spans)
    return length - hidden + len(spans), hidden + len(spans) + 1


def _mask(*rows):
    return torch.tensor([[bool(int(cell)) for cell in row] for row in rows])


def _equals(expected):
    return lambda mask: isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and torch.equal(mask, expected)


EXERCISES = {
    "34.parameters": [
        Case("T5-small has 60,506,624", args=(T5Config.small(),), expected=60506624),
        Case("T5-base has 222,903,552", args=(T5Config.base(),), expected=222903552),
        Case("a gated network has three matrices, and an output that is not tied a table of its own",
             args=(T5Config.small_v1_1(),), expected=76961152),
        Case("encoder and decoder can have different depths", args=(T5Config.byt5_small(),), expected=299637760),
        Case("heads times their width need not be d_model", args=(T5Config(13, num_layers=2, num_decoder_layers=1, **_ODD),),
             expected=2332),
    ],
    "34.lengths": [
        Case("100 tokens, 15 of them hidden in 5 spans", args=(100, 0.15, 3.0), expected=(90, 21)),
        Case("512 tokens, as in T5's pre-training", args=(512, 0.15, 3.0), expected=_lengths(512, 0.15, 3.0)),
        Case("numbers are rounded to the nearest whole one", args=(20, 0.11, 3.0), expected=(19, 4)),
        Case("spans of one token: as many sentinels as hidden tokens", args=(40, 0.5, 1.0), expected=_lengths(40, 0.5, 1.0)),
        Case("at least one token is hidden", args=(4, 0.1, 3.0), expected=(4, 3)),
        Case("never all of them, and at least one span", args=(3, 0.9, 5.0), expected=(2, 4)),
        Case("spans that do not touch need tokens between them", args=(10, 0.8, 1.0), expected=_lengths(10, 0.8, 1.0)),
    ],
    "34.prefix-mask": [
        Case("the prefix sees itself in both directions, the rest only what came before", args=(2, 4),
             expected=_equals(_mask("1100", "1100", "1110", "1111"))),
        Case("with a prefix of one token, the mask is causal", args=(1, 3), expected=_equals(_mask("100", "110", "111"))),
        Case("without a prefix, too", args=(0, 3), expected=_equals(_mask("100", "110", "111"))),
        Case("when all is prefix, every token sees every other", args=(3, 3), expected=_equals(_mask("111", "111", "111"))),
    ],
    "34.cut": [
        Case("a text that fits stays whole", args=(_TEXT, 11), expected=_TEXT),
        Case("no character is cut through", args=(_TEXT, 9), expected=_TEXT[:6]),
        Case("what ends with a character is kept to the end", args=(_TEXT, 10), expected=_TEXT[:10]),
        Case("a Hangul syllable has three bytes", args=(_TEXT, 3), expected=_TEXT[:1]),
        Case("the last byte of a character can be 0xBF", args=(ByteTokenizer().encode("a갿"), 3),
             expected=ByteTokenizer().encode("a")),
        Case("nothing is left where the first character does not fit", args=(_TEXT[1:], 2), expected=[]),
        Case("plain letters have one byte each", args=(ByteTokenizer().encode("teddy"), 3), expected=ByteTokenizer().encode("ted")),
    ],
}
