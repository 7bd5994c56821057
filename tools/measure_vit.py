"""Train the small ViTs that chapter 44 compares, and store what came of them.

    python tools/measure_vit.py                # all of them: about two and a half minutes on one thread
    python tools/measure_vit.py --only mean    # those whose name holds this text, again

Models that fill gaps in photographs, and readers of handwritten digits: whose head reads [CLS], or the mean of the patches, or
[CLS] without any positions. They go to transformer_course/vision/vit_results.json.
"""
import argparse
import json
import platform
import time
from pathlib import Path

import sklearn
import torch

from transformer_course.vision._vit_runs import (accuracy, crops, digit_reader, digits, fill_loss, gap_filler, likeness,
                                                 near_and_far, train_filler, train_reader)

STORE = Path(__file__).parents[1] / "transformer_course" / "vision" / "vit_results.json"
SEEDS = 0, 1, 2
READERS = {"cls": {}, "mean": {"pooling": "mean"}, "no positions": {"positions": False}}


def reader(settings, seed):
    """A reader of digits, trained: how many it reads, and what its positions look like."""
    images, labels, test_images, test_labels = digits()
    model = digit_reader(seed, **settings)
    losses = train_reader(model, images, labels, seed).losses
    return model, {"accuracy": round(accuracy(model, test_images, test_labels), 5), "loss": round(sum(losses[-20:]) / 20, 4)}


def filler(seed):
    """A filler of gaps, trained."""
    model = gap_filler(seed)
    train_filler(model, seed)
    return model.vit, {"error": round(fill_loss(model, *crops(256, 1000)), 5)}


def measured(make, *args):
    started = time.process_time()
    model, row = make(*args)
    near, far = near_and_far(likeness(model.position.weight))
    return {**row, "near": round(near, 4), "far": round(far, 4), "seconds": round(time.process_time() - started, 2)}


def store(runs):
    made = {"python": platform.python_version(), "torch": torch.__version__, "scikit-learn": sklearn.__version__,
            "processor": platform.machine(), "threads": torch.get_num_threads()}
    text = json.dumps({"made_with": made, "seconds": round(sum(run["seconds"] for run in runs), 1), "runs": runs})
    STORE.write_text(text.replace('{"name"', '\n{"name"') + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="train again only the runs whose name holds this text")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    runs = json.loads(STORE.read_text("utf-8"))["runs"] if only else []
    runs = [run for run in runs if only not in run["name"]]
    wanted = [("gaps", seed, filler, seed) for seed in SEEDS]
    wanted += [(name, seed, reader, settings, seed) for name, settings in READERS.items() for seed in SEEDS]
    for name, seed, make, *args in wanted:
        if only and only not in name:
            continue
        row = measured(make, *args)
        runs.append({"name": name, "seed": seed, **row})
        print(name, seed, row, flush=True)
        store(runs)


if __name__ == "__main__":
    main()
