"""Train ViTs and CNNs on few digits and many, and store how good they become: what chapter 45 reports.

    python tools/measure_vit_vs_cnn.py                 # all of them: about eight minutes on one thread
    python tools/measure_vit_vs_cnn.py --only mixed    # one kind of run, again
    python tools/measure_vit_vs_cnn.py --missing       # what is not stored yet

"curve": on 50 to 1,200 images. "longer": on 200 with twice the steps. "mixed": on 200 whose pixels are in another order, the same for
all. "maps": what a ViT still reads when the patches are blanked that its attention ranks highest, or another map. "gaps": the same for
a ViT that fills gaps in photographs. Three seeds of each, which draw the images, the weights and the batches. They go to
transformer_course/vision/vit_vs_cnn_results.json.
"""
import argparse
import json
import platform
import time
from pathlib import Path

import sklearn
import torch

from transformer_course.vision._vit_runs import digits, gap_filler, train_filler
from transformer_course.vision._vit_vs_cnn_runs import STEPS, digit_maps, fill_without, gap_maps, one_gap, read_without, train_reader_of

STORE = Path(__file__).parents[1] / "transformer_course" / "vision" / "vit_vs_cnn_results.json"
SEEDS = 0, 1, 2
KINDS = {"curve": [(model, count) for count in sorted(STEPS, reverse=True) for model in ("ViT", "CNN")],
         "mixed": [("CNN", 200), ("ViT", 200)], "longer": [("ViT", 200), ("CNN", 200)], "maps": [("ViT", 1200)], "gaps": [("filler", 19200)]}
BLANKED = {"maps": 4, "gaps": 10}   # patches; a filler of gaps was trained with three in ten hidden


def measured(kind, model, count, seed):
    """What is stored of one run, but for its time."""
    if kind == "gaps":
        filler = gap_filler(seed)
        train_filler(filler, seed)
        pieces, gap = one_gap(512, 1000)
        maps = gap_maps(filler, pieces, gap, seed)
        return {"error": {name: round(fill_without(filler, pieces, gap, scores, BLANKED[kind]), 5) for name, scores in maps.items()}}
    trained, right = train_reader_of(model, count, seed, mixed=kind == "mixed", longer=2 if kind == "longer" else 1)
    if kind != "maps":
        return {"accuracy": round(right, 4)}
    *_, images, labels = digits()
    maps = digit_maps(trained, images, seed)
    return {"right": {name: round(read_without(trained, images, labels, scores, BLANKED[kind]), 4) for name, scores in maps.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="kinds of run to make again")
    parser.add_argument("--missing", action="store_true", help="make only runs that are not stored")
    parser.add_argument("--store", type=Path, default=STORE, help="where to put the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = json.loads(arguments.store.read_text("utf-8"))["runs"] if arguments.store.exists() else []
    if not arguments.missing:
        runs = [run for run in runs if run["kind"] not in arguments.only]
    there = [(run["kind"], run["model"], run["images"], run["seed"]) for run in runs]
    made_with = {"python": platform.python_version(), "torch": torch.__version__, "scikit-learn": sklearn.__version__}
    wanted = [(kind, model, count, seed) for kind in arguments.only for model, count in KINDS[kind] for seed in SEEDS]
    for kind, model, count, seed in wanted:
        if (kind, model, count, seed) in there:
            continue
        started = time.process_time()
        found = measured(kind, model, count, seed)
        runs.append({"kind": kind, "model": model, "images": count, "seed": seed, **found, "seconds": round(time.process_time() - started, 1)})
        print(runs[-1], flush=True)
        results = {"made_with": made_with, "seconds": round(sum(run["seconds"] for run in runs), 1), "runs": runs}
        arguments.store.write_text(json.dumps(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
