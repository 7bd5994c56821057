"""Train the small language models that chapter 29 compares, and store how well they read beyond the trained length.

    python tools/measure_position_embeddings.py               # everything: some minutes on one core
    python tools/measure_position_embeddings.py --only few    # one part again: long, few
    python tools/measure_position_embeddings.py --steps 30 --store try.json

`long`: each scheme and seed trained on pieces of 32 words, the loss at each of 128 positions of test pieces, and for RoPE the same
under each scaling. `few`: learned and sinusoidal positions trained on 200 pieces alone, the loss on these and on the test's.
Results go to transformer_course/modern/position_embeddings_results.json.
"""
import argparse
import importlib.metadata
import json
import platform
import time
from pathlib import Path

import torch

from transformer_course.modern._extrapolation import (SCHEMES, TRAINED, loss_by_position, story_words, stretched, trained_model)

STORE = Path(__file__).parents[1] / "transformer_course" / "modern" / "position_embeddings_results.json"
SEEDS = (0, 1, 2)
SCALINGS = {"linear": {"rope_type": "linear", "factor": 4.0}, "dynamic": {"rope_type": "dynamic", "factor": 4.0},
            "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}}
FEW = 200 * TRAINED   # words


def rounded(losses):
    return [round(loss, 4) for loss in losses.tolist()]


def bigrams(train, test, vocab_size):
    """The loss of the simplest model that reads one word: counts of pairs, each plus one tenth."""
    counts = torch.full((vocab_size, vocab_size), 0.1)
    counts.index_put_((train[:-1], train[1:]), torch.ones(len(train) - 1), accumulate=True)
    log_probs = (counts / counts.sum(dim=1, keepdim=True)).log()
    return round(-log_probs[test[:-1], test[1:]].mean().item(), 4)


def long_runs(train, test, vocab_size, steps):
    for scheme in SCHEMES:
        for seed in SEEDS:
            model, losses = trained_model(scheme, seed, train, vocab_size, steps)
            yield {"part": "long", "scheme": scheme, "seed": seed, "first": [round(loss, 5) for loss in losses[:10]],
                   "losses": rounded(loss_by_position(model, test)),
                   "stretched": {name: rounded(loss_by_position(stretched(model, scaling), test))
                                 for name, scaling in SCALINGS.items() if scheme == "RoPE"}}


def few_runs(train, test, vocab_size, steps):
    for scheme in ("learned", "sinusoidal"):
        for seed in SEEDS:
            words = train[seed * FEW:(seed + 1) * FEW]
            model, _ = trained_model(scheme, seed, words, vocab_size, steps)
            yield {"part": "few", "scheme": scheme, "seed": seed,
                   **{name: round(loss_by_position(model, part, TRAINED).mean().item(), 4)
                      for name, part in (("train", words), ("test", test))}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("long", "few"), help="one part again; the other is kept")
    parser.add_argument("--steps", type=int, default=300, help="of each training")
    parser.add_argument("--store", type=Path, default=STORE)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(arguments.store.read_text())["runs"] if arguments.only else []
    started, words = time.process_time(), story_words()
    runs = [run for run in kept if run["part"] != arguments.only]
    for part, measure in (("long", long_runs), ("few", few_runs)):
        for run in measure(*words, arguments.steps) if arguments.only in (None, part) else ():
            runs.append(run)
            ends = [run["train"], run["test"]] if part == "few" else [run["losses"][TRAINED - 1], run["losses"][-1]]
            print(part, run["scheme"], run["seed"], *ends, f"{time.process_time() - started:.0f} s", flush=True)
    arguments.store.write_text(json.dumps({
        "made_with": {"python": platform.python_version(), "torch": torch.__version__,
                      "transformer_course": importlib.metadata.version("transformer_course")},
        "seconds": round(time.process_time() - started), "steps": arguments.steps, "vocab_size": words[2],
        "bigrams": bigrams(*words), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
