"""The page "What it was checked against" shows what was compared with what the lock pins, and leaves out nothing."""
import importlib
import json
import math

import pytest
from packaging.utils import canonicalize_name
from chapters import chapters
from reading import ROOT, contents
from test_project import as_requirements, requirement_lines

PARITY = ROOT / "book/_data/parity.json"
FIELDS = {"export", "reference", "version", "inputs", "difference"}
# What the exports of each chapter are compared with.
MATCHES = {
    "metrics.classification": {"scikit-learn": ["confusion_matrix", "accuracy", "precision", "recall", "f1_score", "classification_report"]},
    "metrics.sequence_labeling": {"seqeval": ["bio_spans", "span_f1"]},
    "metrics.generation": {"sacrebleu": ["bleu"], "rouge-score": ["rouge_n", "rouge_l"], "torch": ["perplexity_from_logits"]},
    "text.bpe": {"tokenizers": [f"BPETokenizer.{name}" for name in ("train", "encode", "decode", "tokenize", "from_gpt2")]},
    "text.wordpiece": {"tokenizers": ["WordPieceTokenizer"], "transformers": ["WordPieceTokenizer"]},
    "text.unigram": {"sentencepiece": ["UnigramTokenizer.train", "UnigramTokenizer.tokenize"], "tokenizers": ["UnigramTokenizer.encode"]},
    "text.word_vectors": {"scikit-learn": ["cosine_similarity"]},
    "text.word2vec": {"torch": ["negative_sampling_loss"]},
    "recurrent.rnn": {"torch": ["RNN"]},
    "recurrent.lstm": {"torch": ["LSTM"]},
    "recurrent.seq2seq_attention": {"torch": ["DotProductAttention"]},
    "attention.self_attention": {"torch": ["scaled_dot_product_attention"]},
    "attention.masks": {"torch": ["causal_mask"]},
    "attention.multi_head_attention": {"torch": ["MultiHeadAttention", "xavier_init"]},
    "transformer.positional_encoding": {"transformers": ["sinusoidal_encoding", "SinusoidalPositionalEncoding"], "mpmath": ["sinusoidal_encoding"]},
    "transformer.feed_forward": {"torch": ["FeedForward"], "transformers": ["FeedForward", "GatedFeedForward", "SwiGLU"]},
    "transformer.residual_and_norm": {"torch": ["LayerNorm", "Residual"]},
    "transformer.encoder": {"torch": ["Encoder"]},
    "transformer.decoder": {"torch": ["Decoder"]},
    "transformer.transformer": {"torch": ["TokenEmbedding", "Transformer"]},
    "transformer.training": {"torch": ["smooth_labels", "cross_entropy"], "transformers": ["noam_schedule"]},
    "transformer.decoding": {"transformers": ["greedy_search", "beam_search", "sample", "next_token_probabilities"]},
    "modern.position_embeddings": {"torch": ["LearnedPositionalEmbedding"], "transformers": ["RelativePositionBias", "alibi_slopes", "alibi_bias", "RotaryEmbedding",
                                                                                            "apply_rotary_embedding", "rotary_frequencies"]},
    "modern.normalization": {"torch": ["RMSNorm"], "transformers": ["RMSNorm"]},
    "modern.attention_variants": {"transformers": ["sliding_window_mask", "GroupedQueryAttention"], "torch": ["windowed_attention", "GroupedQueryAttention"]},
    "modern.kv_cache": {"transformers": ["KVCache", "LayerCache"]},
    "modern.decoder_only": {"transformers": ["CausalLM.from_pretrained", "CausalLM.save_pretrained", "CausalLM.generate"]},
    "modern.t5": {"transformers": ["T5", "T5.save_pretrained", "ByteTokenizer"]},
    "bert.inputs": {"transformers": ["encode_pair", "pad_batch", "BertEmbeddings"], "tokenizers": ["encode_pair"]},
    "bert.model": {"transformers": ["Bert", "Bert.from_pretrained", "Bert.save_pretrained"]},
    "bert.pretraining": {"transformers": ["BertForPreTraining"]},
    "bert.fine_tuning": {"transformers": [*(f"BertFor{task}{what}" for task in ("SequenceClassification", "TokenClassification", "QuestionAnswering")
                                            for what in ("", ".from_pretrained", ".save_pretrained", ".loss")), "best_span", "encode_words"]},
    "bert.sentence_embeddings": {"sentence-transformers": ["mean_pool", "cls_pool", "max_pool", "SentenceEncoder"]},
    "bert.distillation": {"torch": ["kl_divergence", "distillation_loss"],
                          "transformers": ["DistilBert", "DistilBert.from_pretrained", "DistilBert.save_pretrained"]},
    "bert.roberta": {"transformers": ["Roberta", "Roberta.from_pretrained", "Roberta.save_pretrained", "roberta_positions", "encode_roberta_pair"]},
    "bert.limits": {"transformers": ["window_global_mask"]},
    "vision.vit": {"transformers": ["PatchEmbedding", "ViT.forward", "ViT.from_pretrained", "ViT.save_pretrained", "resize_positions"]},
}


def wanted():
    """(export, reference) pairs of the chapters that are written."""
    written = {chapter.module.removeprefix("transformer_course.") for chapter in chapters()}
    return {(f"transformer_course.{module}.{name}", reference) for module, by in MATCHES.items() if module in written
            for reference, names in by.items() for name in names}


def pins(lock):
    return {name: str(specifier)[2:] for name, specifier in as_requirements(requirement_lines(lock)).items()}


def record_problems(rows, versions, needed, exists):
    """`rows` of the record; `versions`: {distribution: pinned version}; `exists`: whether a dotted export is there."""
    bad, seen = [], set()
    for row in rows:
        name = f"{row.get('export')} against {row.get('reference')}"
        if row.keys() != FIELDS:
            bad.append(f"{name} has the fields {sorted(row)}")
            continue
        key = row["export"], row["reference"], row["inputs"]
        if key in seen:
            bad.append(f"{name} on {row['inputs']} is there twice")
        seen.add(key)
        if versions.get(canonicalize_name(row["reference"])) != row["version"].split("+")[0]:
            bad.append(f"{name}: version {row['version']} is not the pinned one")
        if not exists(row["export"]):
            bad.append(f"{name}: there is no such export")
        if not (isinstance(row["difference"], (int, float)) and 0 <= row["difference"] < math.inf):
            bad.append(f"{name}: a difference of {row['difference']!r}")
        elif row["difference"] > 1e-4:
            bad.append(f"{name}: {row['difference']} is no agreement")
        if len(row["inputs"]) < 10:
            bad.append(f"{name}: it does not say what was tried")
    pairs = {(export, reference) for export, reference, _ in seen}
    return bad + [f"{export} was not compared with {reference}" for export, reference in sorted(needed - pairs)]


def is_export(name):
    """Whether `transformer_course.part.module.name`, or a method of it, is public."""
    _, part, module, export, *method = [*name.split("."), "", "", ""][:max(4, name.count(".") + 1)]
    try:
        module = importlib.import_module(f"transformer_course.{part}.{module}")
    except ImportError:
        return False
    public = export in getattr(module, "__all__", ())
    return public and (not method or len(method) == 1 and not method[0].startswith("_") and hasattr(getattr(module, export), method[0]))


def test_record_is_whole_and_up_to_date():
    assert record_problems(json.loads(contents(PARITY)), pins(contents(ROOT / "requirements.txt")), wanted(), is_export) == []


def test_record_is_sorted():
    """So that a new comparison changes a few lines of the file."""
    rows = json.loads(contents(PARITY))
    assert rows == sorted(rows, key=lambda r: (r["export"], r["reference"], r["inputs"]))


@pytest.mark.parametrize("change, says", [
    ({"version": "1.0"}, "not the pinned one"), ({"reference": "other"}, "not the pinned one"), ({"export": "a.gone"}, "no such export"),
    ({"difference": float("nan")}, "a difference of nan"), ({"difference": -1.0}, "a difference of"), ({"difference": 0.1}, "no agreement"),
    ({"inputs": "some"}, "what was tried"), ({"note": ""}, "fields"), ({"reference": "scikit-learn-x"}, "was not compared"),
])
def test_a_broken_record_fails(change, says):
    row = {"export": "a.f", "reference": "scikit-learn", "version": "1.9.1", "inputs": "random labels", "difference": 0.0}

    def problems(*rows):
        return record_problems(rows, {"scikit-learn": "1.9.1"}, {("a.f", "scikit-learn")}, lambda name: name == "a.f")

    assert problems(row) == []
    assert any("twice" in problem for problem in problems(row, row))
    assert any(says in problem for problem in problems(row | change))


def test_exports_are_told_from_other_names():
    assert is_export("transformer_course.metrics.classification.accuracy")
    assert not is_export("transformer_course.metrics.classification._score") and not is_export("transformer_course.nothing.x")
    assert is_export("transformer_course.text.bpe.BPETokenizer.encode") and not is_export("transformer_course.text.bpe.BPETokenizer.nothing")
    assert not is_export("transformer_course.text.bpe.BPETokenizer.__init__") and not is_export("transformer_course.text.bpe.BPETokenizer.encode.x")
    assert not is_export("accuracy")
