"""Train the small T5 models that chapter 34 reports on, and store what they scored.

    python tools/measure_t5.py                        # everything, a few minutes on one thread
    python tools/measure_t5.py --only "three tasks"   # one kind again, the other is kept

"three tasks": one model learns translation, sentiment and the names in a sentence of TeddyWorld together. "few examples": with and
without pre-training on cut spans, a model learns two tasks from 100 sentences. Three seeds each; results go to
transformer_course/modern/t5_results.json, with versions and times. The test sentences are looked at once a run, at its end.
"""
import argparse
import importlib.metadata
import json
import platform
import time
from pathlib import Path

import torch

from transformer_course.modern._t5_tasks import (FEW, KINDS, STEPS, answers, few_batches, pretraining_batches, scores, small_model,
                                                 task_batches, teddy_tasks, train_on)

STORE = Path(__file__).parents[1] / "transformer_course" / "modern" / "t5_results.json"
SEEDS = 0, 1, 2


def means(history):
    return [round(sum(history.losses[i:i + 20]) / len(history.losses[i:i + 20]), 4) for i in range(0, len(history.losses), 20)]


def scored(model, data, tasks):
    """Scores of the test sentences by task, and the first three answers."""
    found, shown = {}, {}
    for task in tasks:
        pairs = data.test[task]
        said = answers(model, data.tokenizer, [source for source, _ in pairs])
        found[task], shown[task] = scores(said, pairs), said[:3]
    return {"scores": found, "answers": shown}


def three_tasks(data, seed):
    model = small_model(data.tokenizer, seed)
    history = train_on(model, task_batches(data, seed), STEPS["three tasks"])
    yield {"losses": means(history), **scored(model, data, data.test)}


def few_examples(data, seed):
    for pretrained in (True, False):
        model, losses = small_model(data.tokenizer, seed), []
        if pretrained:
            losses = means(train_on(model, pretraining_batches(data, seed), STEPS["pre-training"]))
        history = train_on(model, few_batches(data, seed), STEPS["few examples"], learning_rate=2e-3)
        yield {"pretrained": pretrained, "examples": FEW, "pretraining_losses": losses, "losses": means(history),
               **scored(model, data, ("sentiment", "names"))}


def store(runs):
    made_with = {"python": platform.python_version(), "torch": torch.__version__,
                 "transformer_course": importlib.metadata.version("transformer_course")}
    results = {"made_with": made_with, "seconds": round(sum(run["seconds"] for run in runs), 1), "runs": runs}
    STORE.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS, help="the kind to train again")
    parser.add_argument("--share", type=float, default=1.0, help="of the steps, for a quick try that stores nothing")
    arguments = parser.parse_args()
    kinds = [arguments.only] if arguments.only else list(KINDS)
    for name in STEPS:
        STEPS[name] = max(10, round(STEPS[name] * arguments.share))
    stored = json.loads(STORE.read_text("utf-8")) if STORE.exists() else {"runs": []}
    runs, data = [run for run in stored["runs"] if run["kind"] not in kinds], teddy_tasks()
    for kind in kinds:
        for seed in SEEDS:
            started = time.process_time()
            for row in {"three tasks": three_tasks, "few examples": few_examples}[kind](data, seed):
                seconds, started = round(time.process_time() - started, 1), time.process_time()
                runs.append({"kind": kind, "seed": seed, "seconds": seconds, **row})
                if arguments.share == 1:
                    store(runs)
                print(kind, seed, row.get("pretrained", ""), row["scores"], f"{seconds} s", flush=True)


if __name__ == "__main__":
    main()
