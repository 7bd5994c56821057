"""What right answers to the exercises of chapter 37 must satisfy."""
import torch

from transformer_course.bert.model import Bert, BertConfig
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]

_SMALL = {"d_model": 12, "num_layers": 3, "num_heads": 2, "d_ff": 7, "max_len": 9}


def _counts(says, config):
    """What building the model on the meta device counts."""
    with torch.device("meta"):
        expected = sum(parameter.numel() for parameter in Bert(config).parameters())
    return Case(says, args=(config,), expected=expected)


_BODY = ["embeddings.word_embeddings.weight", "encoder.layer.11.attention.self.query.bias", "pooler.dense.bias"]


def _prefixed(names):
    return [f"bert.{name}" for name in names]


def _mask(*rows):
    return torch.tensor(rows).bool()


def _attends(mask):
    """Whether attention on packed tokens under an answer's mask equals attention on the padded batch."""
    def right(packed):
        if packed.dtype != torch.bool or packed.shape != (mask.sum(),) * 2:
            return False
        x = torch.randn((*mask.shape, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        scores = (x @ x.transpose(1, 2)).masked_fill(~mask[:, None], -torch.inf)
        wanted = (scores.softmax(-1) @ x)[mask]
        tokens = x[mask]
        got = (tokens @ tokens.T).masked_fill(~packed, -torch.inf).softmax(-1) @ tokens
        return torch.allclose(got, wanted)
    return right


_MAPS = torch.tensor([[[1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.1, 0.3, 0.6]],
                      [[0.2, 0.8, 0.0], [0.0, 0.6, 0.4], [1.0, 0.0, 0.0]]], dtype=torch.float64)


EXERCISES = {
    "37.parameters": [
        _counts("BERT-Base has 109,482,240", BertConfig.base()),
        _counts("BERT-Large has 335,141,888", BertConfig.large()),
        _counts("without a pooler there are d * d + d fewer", BertConfig(11, **_SMALL, pooler=False)),
        _counts("DistilBERT has no table of segments", BertConfig.distilbert(11, **_SMALL)),
        _counts("each layer has weights of its own, and two norms", BertConfig(11, **_SMALL)),
    ],
    "37.names": [
        Case("a file of the body alone has today's names", args=(_BODY,), expected=dict(zip(_BODY, _BODY))),
        Case("a file with a head has a prefix, and the head is left out",
             args=([*_prefixed(_BODY), "cls.predictions.bias", "classifier.weight"],), expected=dict(zip(_prefixed(_BODY), _BODY))),
        Case("gamma and beta are the weight and the bias of a norm",
             args=(["bert.embeddings.LayerNorm.gamma", "bert.encoder.layer.0.output.LayerNorm.beta"],),
             expected={"bert.embeddings.LayerNorm.gamma": "embeddings.LayerNorm.weight",
                       "bert.encoder.layer.0.output.LayerNorm.beta": "encoder.layer.0.output.LayerNorm.bias"}),
        Case("position_ids are left out, with and without a prefix",
             args=(["embeddings.position_ids", "embeddings.LayerNorm.weight"],),
             expected={"embeddings.LayerNorm.weight": "embeddings.LayerNorm.weight"}),
        Case("the norm of a head is left out too",
             args=(["bert.pooler.dense.bias", "cls.predictions.transform.LayerNorm.gamma", "bert.embeddings.position_ids"],),
             expected={"bert.pooler.dense.bias": "pooler.dense.bias"}),
    ],
    "37.packed-mask": [
        Case("two texts of 3 and 1 tokens see themselves only", args=(_mask([1, 1, 1], [1, 0, 0]),),
             expected=_attends(_mask([1, 1, 1], [1, 0, 0]))),
        Case("padding may be on the left", args=(_mask([0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]),),
             expected=_attends(_mask([0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]))),
        Case("real tokens may stand anywhere, and a row may have none", args=(_mask([1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 1]),),
             expected=_attends(_mask([1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 1]))),
        Case("one text without padding may see all of itself", args=(_mask([1, 1]),), expected=lambda got: bool(got.all()) and got.shape == (2, 2)),
    ],
    "37.offset-heads": [
        Case("an offset of 0 is the diagonal, for each head", args=(_MAPS, 0), expected=[(1 + 0.25 + 0.6) / 3, (0.2 + 0.6 + 0.0) / 3]),
        Case("-1 is the previous token, which the first query has not", args=(_MAPS, -1), expected=[(0.5 + 0.3) / 2, 0.0]),
        Case("1 is the next token, which the last query has not", args=(_MAPS, 1), expected=[(0.0 + 0.25) / 2, (0.8 + 0.4) / 2]),
        Case("2 is the one after it", args=(_MAPS, 2), expected=[0.0, 0.0]),
    ],
}
