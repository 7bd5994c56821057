"""Train what chapter 42 compares: static against dynamic masks, pairs with and without the question about next sentences against whole stories.

    python tools/measure_roberta.py                  # about two minutes on one thread
    python tools/measure_roberta.py --only masking   # one kind of run, again

Small BERTs on TeddyWorld's stories, three seeds each. They go to transformer_course/bert/roberta_results.json, with versions and times.
"""
import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

import torch

from transformer_course.bert._roberta_runs import (
    FORMATS, SEEDS, held_out_texts, masked_words, next_sentence_score, same_words, train_format, train_masking)

STORE = Path(__file__).parents[1] / "transformer_course" / "bert" / "roberta_results.json"
STORIES, EPOCHS, COPIES, STEPS = 96, 40, (1, 10, None), 300


def began(history):
    """The mean loss of the first steps, which a run of these few steps gives again."""
    return sum(history.losses[:20]) / len(history.losses[:20])


def masking(share):
    """The same few stories for 40 epochs, under one mask, ten, or always new ones."""
    for copies in COPIES:
        for seed in SEEDS:
            model, history = train_masking(copies, seed, STORIES, max(1, round(EPOCHS * share)))
            loss, right = masked_words(model, *held_out_texts())
            yield {"stories": STORIES, "copies": copies, "epochs": EPOCHS, "seed": seed, "loss": loss, "right": right,
                   "curve": [[step, round(value, 4)] for step, value in history.validation],
                   "read": [round(sum(history.losses[i:i + 20]) / 20, 4) for i in range(0, len(history.losses) - 19, 20)]}


def formats(share):
    """Pairs with the question whether they belong together, the same pairs without it, and whole stories."""
    for name in FORMATS:
        for seed in SEEDS:
            model, history, tokens = train_format(name, seed, round(STEPS * share))
            loss, right = masked_words(model, *same_words(name == "stories"))
            yield {"format": name, "seed": seed, "tokens": tokens, "began": began(history), "loss": loss, "right": right,
                   "next": next_sentence_score(model) if name == "pairs, asked" else None}


KINDS = {"masking": masking, "formats": formats}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="kinds of run to make again")
    parser.add_argument("--share", type=float, default=1.0, help="train for this share of the steps: a first try")
    parser.add_argument("--store", type=Path, default=STORE, help="where to put the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = json.loads(arguments.store.read_text("utf-8"))["runs"] if arguments.store.exists() else []
    made_with = {"python": platform.python_version(), "torch": torch.__version__, "transformer_course": version("transformer_course")}
    for kind in arguments.only:
        runs = [run for run in runs if run["kind"] != kind]
        started = time.process_time()
        for run in KINDS[kind](arguments.share):
            now = time.process_time()
            rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in run.items()}
            runs.append({"kind": kind, **rounded, "seconds": round(now - started, 1)})
            started = now
            print({key: value for key, value in runs[-1].items() if key not in ("curve", "read")}, flush=True)
        results = {"made_with": made_with, "seconds": round(sum(run["seconds"] for run in runs), 1), "runs": runs}
        arguments.store.write_text(json.dumps(results).replace('{"kind"', '\n{"kind"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
