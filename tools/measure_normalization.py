"""Train the small language models that chapter 30 compares, and store their losses.

    python tools/measure_normalization.py                     # all of them: about six minutes on one thread
    python tools/measure_normalization.py --only "12 layers"  # those whose name holds this text, again

Two orders, with and without warm-up, at four depths and four rates; LayerNorm against RMSNorm; pre-norm without its final norm;
post-norm with weights drawn smaller. Three seeds each. They go to transformer_course/modern/normalization_results.json.
"""
import argparse
import json
import platform
import time
from pathlib import Path

import torch

from transformer_course.modern._normalization_runs import WARMUP, SmallLM, held_out_loss, story_words, stream, train
from transformer_course.modern.normalization import RMSNorm
from transformer_course.transformer.residual_and_norm import LayerNorm

STORE = Path(__file__).parents[1] / "transformer_course" / "modern" / "normalization_results.json"
SEEDS, DEPTHS, RATES, WINDOW = (0, 1, 2), (2, 4, 8, 12), (0.001, 0.003, 0.01, 0.03), 5


def named(pre_norm, depth, rate, warmup, **changes):
    """A run's name and settings."""
    parts = [f"{'pre' if pre_norm else 'post'}-norm", f"{depth} layers", f"rate {rate}", f"warm-up {warmup}"]
    parts += [f"{key} {value}" for key, value in changes.items()]
    return ", ".join(parts), {"pre_norm": pre_norm, "depth": depth, "rate": rate, "warmup": warmup, **changes}


def wanted():
    """Every run once, for each seed."""
    runs = [named(pre_norm, depth, rate, warmup) for depth in DEPTHS for rate in RATES
            for pre_norm in (False, True) for warmup in (0, WARMUP)]
    runs += [named(pre_norm, 4, 0.01, WARMUP, norm="rms") for pre_norm in (False, True)]
    runs += [named(True, 8, 0.01, warmup, final_norm=False) for warmup in (0, WARMUP)]
    return [*runs, named(False, 12, 0.003, 0, scale=0.25)]


def measured(settings, seed, train_ids, held_out, words):
    """Train one model; what came of it."""
    parts = {key: settings[key] for key in ("depth", "pre_norm", "final_norm", "scale") if key in settings}
    norm = RMSNorm if settings.get("norm") == "rms" else LayerNorm
    model = SmallLM(words, **parts, norm=norm, seed=seed)
    started = time.process_time()
    losses = train(model, train_ids, settings["rate"], settings["warmup"], seed=seed)
    with torch.no_grad():
        points = stream(model, held_out[None])
    return {"losses": [round(sum(losses[i:i + WINDOW]) / WINDOW, 4) for i in range(0, len(losses), WINDOW)],
            "held_out": round(held_out_loss(model, held_out), 4),
            "stream": [round(x.square().mean().sqrt().item(), 4) for x in points],
            "mean_share": round((along_ones(points[-1]) / points[-1].square().sum(-1)).mean().item(), 5),
            "seconds": round(time.process_time() - started, 2)}


def along_ones(x):
    """The squared length of the part of each token that re-centring takes away."""
    return x.shape[-1] * x.mean(-1).square()


def store(runs):
    made = {"python": platform.python_version(), "torch": torch.__version__, "processor": platform.machine(),
            "threads": torch.get_num_threads()}
    text = json.dumps({"made_with": made, "seconds": round(sum(run["seconds"] for run in runs), 1), "runs": runs})
    STORE.write_text(text.replace('{"name"', '\n{"name"') + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="train again only the runs whose name holds this text")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    runs = json.loads(STORE.read_text("utf-8"))["runs"] if only else []
    runs = [run for run in runs if only not in run["name"]]
    train_ids, held_out, names = story_words()
    for name, settings in wanted():
        if only and only not in name:
            continue
        for seed in SEEDS:
            row = measured(settings, seed, train_ids, held_out, len(names))
            runs.append({"name": name, "seed": seed, **settings, **row})
            print(name, seed, row["losses"][-1], row["held_out"], row["seconds"], flush=True)
        store(runs)


if __name__ == "__main__":
    main()
