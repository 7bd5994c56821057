"""Train the small BERT that chapters 38 to 43 read, and measure what chapter 38 reports.

    python tools/train_teddy_bert.py                           # about six minutes on one thread
    python tools/train_teddy_bert.py --only "left to right"    # one kind of run, again

The weights of seed 0 and its tokenizer go to transformer_course/bert/teddy_bert/, the results of all seeds, with versions and times,
to transformer_course/bert/pretraining_results.json.
"""
import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

import torch

HERE = Path(__file__).parents[1] / "transformer_course" / "bert"
STORE, WEIGHTS = HERE / "pretraining_results.json", HERE / "teddy_bert"
SEEDS = 0, 1, 2


def keep_tokenizer():
    """The tokenizer, which everything else reads."""
    from transformer_course.bert._teddy_bert import train_teddy_tokenizer
    WEIGHTS.mkdir(exist_ok=True)
    train_teddy_tokenizer().save(WEIGHTS / "tokenizer.json")


def means(losses, every=25):
    """The mean of each run of steps: a curve that fits into a file."""
    return [round(sum(losses[i:i + every]) / len(losses[i:i + every]), 4) for i in range(0, len(losses), every)]


def filled(guess, batch, places):
    """Shares of gaps that were filled rightly, in all and in each quarter of the texts."""
    right = guess == batch.input_ids.gather(1, places[:, None])[:, 0]
    return {"gaps": M.share(right), "by place": M.by_place(right, batch, places)}


def masked(name, steps, seed, **how):
    """One masked language model: its marks, its gaps, its frozen vectors, its curve."""
    model, history = T.pretrain(seed, steps or T.STEPS, **how)
    if name == "both sides" and seed == 0 and not steps:
        model.save_pretrained(WEIGHTS)
    batch, places = M.gaps()
    return {"kind": name, "seed": seed, "steps": len(history.losses), **M.marks(model), **filled(M.fill_both_sides(model, batch, places), batch, places),
            "probe": M.probe(model), "losses": means(history.losses)}


def both_sides(steps):
    for seed in SEEDS:
        yield masked("both sides", steps, seed)


def always_mask(steps):
    """Every selected token becomes [MASK]."""
    for seed in SEEDS:
        yield masked("always [MASK]", steps, seed, **M.HIDE)


def left_to_right(steps):
    batch, places = M.gaps()
    for seed in SEEDS:
        model, history = M.train_left_to_right(seed, steps or T.STEPS)
        tried = filled(M.fill_by_trying(model, batch, places), batch, places)
        yield {"kind": "left to right", "seed": seed, "steps": len(history.losses),
               **filled(M.fill_from_the_left(model, batch, places).argmax(dim=1), batch, places),
               "gaps by trying": tried["gaps"], "by place, by trying": tried["by place"], "losses": means(history.losses)}


def counting(steps):
    yield {"kind": "counting", **M.counting()}


KINDS = {"counting": counting, "both sides": both_sides, "always [MASK]": always_mask, "left to right": left_to_right}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="kinds of run to make again")
    parser.add_argument("--steps", type=int, help="train for fewer steps, a first try; weights are not stored then")
    parser.add_argument("--store", type=Path, default=STORE, help="where to put the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not (WEIGHTS / "tokenizer.json").exists():
        keep_tokenizer()
    results = json.loads(arguments.store.read_text("utf-8")) if arguments.store.exists() else {"runs": []}
    made_with = {"python": platform.python_version(), "torch": torch.__version__, "transformer_course": version("transformer_course")}
    for name in arguments.only:
        kept = [run for run in results["runs"] if run["kind"] != name]
        started = time.process_time()
        for run in KINDS[name](arguments.steps):
            now = time.process_time()
            kept.append({**run, "seconds": round(now - started, 1)})
            started = now
            print({key: value for key, value in kept[-1].items() if key != "losses"}, flush=True)
            results = {"made_with": made_with, "seconds": round(sum(run["seconds"] for run in kept), 1), "runs": kept}
            arguments.store.write_text(json.dumps(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    import transformer_course.bert._pretraining_measures as M
    import transformer_course.bert._teddy_bert as T
    main()
