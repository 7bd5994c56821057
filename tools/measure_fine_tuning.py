"""Fine-tune the stored TeddyWorld BERT on four tasks, beside the same model from scratch, and store the scores for chapter 39.

    python tools/measure_fine_tuning.py                      # everything, about twenty minutes on one thread
    python tools/measure_fine_tuning.py --only "head only"   # one kind of run again, the others are kept

"sizes": the stored body fine-tuned, the same model from scratch, and two baselines, with 50, 200 and 1,000 training examples and three
seeds; a seed draws the examples, the new weights and the order. "head only": the stored body left as it is, under a head that is trained,
with 1,000 examples. The 300 test examples are those of the held-out combinations, the same for all seeds. Results go to transformer_course/bert/fine_tuning_results.json, with versions and times.
"""
import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

import torch

from transformer_course.bert._fine_tuning_tasks import (MAIN, RATE, STEPS, fine_tune, majority, predictions, row_of, scores, tested_examples,
                                                        training_examples, words_alone)
from transformer_course.bert._teddy_bert import teddy_bert

STORE = Path(__file__).parents[1] / "transformer_course" / "bert" / "fine_tuning_results.json"
SEEDS, SIZES = (0, 1, 2), (50, 200, 1000)


def rounded(found):
    return {name: round(value, 4) for name, value in found.items()}


def trained(task, examples, tested, body, seed, **options):
    """Scores on `tested` of a model trained on `examples`."""
    model, history = fine_tune(task, [row_of(task, e) for e in examples], body, seed, **options)
    guesses = predictions(task, model, [row_of(task, e) for e in tested])
    return {"scores": rounded(scores(task, tested, guesses)), "loss": round(sum(history.losses[-20:]) / 20, 4)}


def sizes(body, steps):
    for seed in SEEDS:
        for task in MAIN:
            tested = tested_examples(task)
            for size in SIZES:
                examples, about = training_examples(task, size, seed), {"task": task, "size": size, "seed": seed}
                yield {**about, "start": "fine-tuned", **trained(task, examples, tested, body, seed, steps=steps)}
                yield {**about, "start": "from scratch", **trained(task, examples, tested, None, seed, steps=steps)}
                for name, baseline in (("words alone", words_alone), ("majority", majority)):
                    yield {**about, "start": name, "scores": rounded(scores(task, tested, baseline(task, examples, tested)))}


def head_only(body, steps):
    for task in MAIN:
        tested = tested_examples(task)
        for seed in SEEDS:
            yield {"task": task, "size": 1000, "seed": seed, "start": "head only",
                   **trained(task, training_examples(task, 1000, seed), tested, body, seed, steps=steps, frozen=True)}


KINDS = {"sizes": sizes, "head only": head_only}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="kinds of run to make again")
    parser.add_argument("--steps", type=int, default=STEPS, help="train for fewer steps: a first try")
    parser.add_argument("--store", type=Path, default=STORE, help="where to put the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    body = teddy_bert().bert
    runs = json.loads(arguments.store.read_text("utf-8"))["runs"] if arguments.store.exists() else []
    made_with = {"python": platform.python_version(), "torch": torch.__version__, "transformer_course": version("transformer_course")}
    for kind in arguments.only:
        runs, started = [run for run in runs if run["kind"] != kind], time.process_time()
        for run in KINDS[kind](body, arguments.steps):
            now = time.process_time()
            runs.append({"kind": kind, **run, "seconds": round(now - started, 2)})
            started = now
            print(runs[-1], flush=True)
            seconds = round(sum(run["seconds"] for run in runs), 1)
            results = {"made_with": made_with, "rate": RATE, "steps": arguments.steps, "seconds": seconds, "runs": runs}
            arguments.store.write_text(json.dumps(results, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
