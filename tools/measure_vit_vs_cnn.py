"""Train ViTs and CNNs on few digits and many, and store how good they become: what chapter 45 reports.

    python tools/measure_vit_vs_cnn.py                 # all of them: about two minutes on one thread
    python tools/measure_vit_vs_cnn.py --only mixed    # one kind of run, again

"curve": on 50 to 1,200 images. "mixed": on 200 images whose pixels are in another order, the same for all. Three seeds of each,
which draw the images, the weights and the batches. They go to transformer_course/vision/vit_vs_cnn_results.json.
"""
import argparse
import json
import platform
import time
from pathlib import Path

import sklearn
import torch

from transformer_course.vision._vit_vs_cnn_runs import STEPS, train_reader_of

STORE = Path(__file__).parents[1] / "transformer_course" / "vision" / "vit_vs_cnn_results.json"
SEEDS = 0, 1, 2
KINDS = {"curve": [(model, count) for count in sorted(STEPS, reverse=True) for model in ("ViT", "CNN")],
         "mixed": [("CNN", 200), ("ViT", 200)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="kinds of run to make again")
    parser.add_argument("--store", type=Path, default=STORE, help="where to put the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    old = json.loads(arguments.store.read_text("utf-8"))["runs"] if arguments.store.exists() else []
    runs = [run for run in old if run["kind"] not in arguments.only]
    made_with = {"python": platform.python_version(), "torch": torch.__version__, "scikit-learn": sklearn.__version__}
    for kind in arguments.only:
        for model, count in KINDS[kind]:
            for seed in SEEDS:
                started = time.process_time()
                accuracy = train_reader_of(model, count, seed, mixed=kind == "mixed")[1]
                runs.append({"kind": kind, "model": model, "images": count, "seed": seed, "accuracy": round(accuracy, 4),
                             "seconds": round(time.process_time() - started, 1)})
                print(runs[-1], flush=True)
                results = {"made_with": made_with, "seconds": round(sum(run["seconds"] for run in runs), 1), "runs": runs}
                arguments.store.write_text(json.dumps(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
