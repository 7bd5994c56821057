"""Train the translators that chapter 28 reports on, and store what they scored.

    make translators                                  # what is not stored yet; an hour on two cores
    python tools/train_translators.py --only "GELU"   # one kind, again
    python tools/train_translators.py --corpus pairs.tsv   # and a corpus of your own, on a held-out tenth

Results go to transformer_course/transformer/translation_results.json, run by run, with seeds, versions and times; the weights
of the first seed, in half precision, beside it. The test sentences are looked at once a run, at its end.
"""
import argparse
import hashlib
import json
import platform
import random
import time
from pathlib import Path

import sacrebleu
import torch

from transformer_course.toolbox.teddy_world import TeddyWorld, load_sentence_pairs
from transformer_course.transformer._translation_measures import alignment_errors, bleu_of, score_per_token
from transformer_course.transformer._translation_variants import VARIANTS
from transformer_course.transformer.translation import train_translator

HERE = Path(__file__).parents[1] / "transformer_course" / "transformer"
STORE, WEIGHTS = HERE / "translation_results.json", HERE / "teddy_translator"
SEEDS = (0, 1, 2)
FULL, SHORT = 1600, 500   # steps: the translators that the chapter shows, and those that it compares


def machine():
    return {"python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads(),
            "processor": platform.machine(), "sacrebleu_version": sacrebleu.__version__}


def store(results):
    STORE.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def measured(pairs, **settings):
    """Train; return the translator and what can be said about the training."""
    wall, cpu = time.perf_counter(), time.process_time()
    translator, history = train_translator(pairs, **settings)
    return translator, {
        "seconds": round(time.perf_counter() - wall, 1), "cpu_seconds": round(time.process_time() - cpu, 1),
        "parameters": sum(p.numel() for p in translator.model.parameters()), "steps": len(history.losses),
        "losses": [round(sum(history.losses[i:i + 20]) / 20, 4) for i in range(0, len(history.losses), 20)]}


def scored(translator, sentences, language):
    sources = [sentence.english_text for sentence in sentences]
    references = [getattr(sentence, f"{language}_text") for sentence in sentences]
    said = translator.translate(sources)
    return {"sacrebleu": round(sacrebleu.corpus_bleu(said, [references]).score, 2), "bleu": round(bleu_of(said, references), 2),
            "exact": round(sum(a == b for a, b in zip(said, references)) / len(said), 4),
            "loss": round(score_per_token(translator, list(zip(sources, references))), 4)}


def teddy(name, seed, split, language, steps):
    """One run on TeddyWorld."""
    pairs = [(sentence.english_text, getattr(sentence, f"{language}_text")) for sentence in split.train]
    translator, row = measured(pairs, seed=seed, steps=steps, **VARIANTS[name])
    row = {"name": name, "language": language, "seed": seed, **row, **scored(translator, split.test, language)}
    if name == "as in 2017" and language == "french" and steps == FULL:
        row["alignment_errors"] = alignment_errors(translator, split.test)
        if seed == 0:
            keep(translator)
    return row


def keep(translator):
    """The weights in half precision: 2 MB."""
    translator.model.half()
    translator.save_pretrained(WEIGHTS)
    translator.model.float()


def corpus(path, seed):
    """One run on a tab-separated corpus; a tenth of the different source sentences is held out."""
    pairs = load_sentence_pairs(path)
    sources = sorted({pair.source for pair in pairs})
    held = set(random.Random(0).sample(sources, len(sources) // 10))
    test = sorted(held)
    translator, row = measured([pair for pair in pairs if pair.source not in held], seed=seed, vocab_size=2000,
                               dropout=0.3, steps=2400, max_len=256)
    references = [[pair.target for pair in pairs if pair.source == source] for source in test]
    said, width = translator.translate(test), max(map(len, references))
    score = sacrebleu.corpus_bleu(said, [[r[k] if k < len(r) else None for r in references] for k in range(width)])
    ours = ["I am happy.", "Where are you?", "I don't know.", "Tom is reading."]
    return {"file": Path(path).name, "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest(), "seed": seed, "pairs": len(pairs),
            "held_out": len(test), **row, "sacrebleu": round(score.score, 2),
            "examples": list(zip(ours, translator.translate(ours)))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of variants to train again")
    parser.add_argument("--corpus", nargs="*", default=(), help="tab-separated corpora")
    arguments = parser.parse_args()
    results = json.loads(STORE.read_text("utf-8")) if STORE.exists() else {"runs": [], "corpora": []}
    wanted = [("as in 2017", "french", FULL), *((name, "french", SHORT) for name in VARIANTS), ("as in 2017", "korean", FULL)]
    split, again = TeddyWorld().split(train=40_000), set(arguments.only or ())
    for name, language, steps in wanted if not arguments.corpus or arguments.only else ():
        for seed in SEEDS:
            at = [i for i, row in enumerate(results["runs"]) if all(row[key] == value for key, value in
                  (("name", name), ("language", language), ("steps", steps), ("seed", seed)))]
            if name not in again if again else at:
                continue
            row = {**teddy(name, seed, split, language, steps), **machine()}
            results["runs"] = [r for i, r in enumerate(results["runs"]) if i not in at] + [row]
            store(results)
            print(name, language, steps, seed, row["sacrebleu"], row["exact"], row["seconds"], flush=True)
    for path in arguments.corpus:
        row = {**corpus(path, seed=0), **machine()}
        results["corpora"] = [r for r in results["corpora"] if r["file"] != row["file"]] + [row]
        store(results)
        print(row["file"], row["sacrebleu"], row["examples"], flush=True)


if __name__ == "__main__":
    main()
