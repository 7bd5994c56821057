"""Train what chapter 31 compares: attention whose heads share queries, keys or values.

    python tools/measure_attention_variants.py                   # everything, about five minutes on one thread
    python tools/measure_attention_variants.py --only stories    # one task again: chest, stories, pooled

Every run is made three times, with the seeds 0, 1 and 2. Results go, with versions and times, to
transformer_course/modern/attention_variants_results.json.
"""
import argparse
import copy
import json
import platform
import time
from pathlib import Path

import torch

import transformer_course
from transformer_course.modern._shared_attention import SHARING, story_ids, story_loss, storyteller, train_chest, train_stories
from transformer_course.modern.attention_variants import GroupedQueryAttention, pool_kv_heads

STORE = Path(__file__).parents[1] / "transformer_course" / "modern" / "attention_variants_results.json"
SEEDS, STEPS, MORE = (0, 1, 2), 300, 60
STORIES = ("all have their own", "2 of keys and values", "1 of keys and values", "1 of queries", "1 of queries and keys")


def test_loss(model, rows):
    with torch.no_grad():
        return round(story_loss(model.eval(), rows).item(), 4)


def chest(seed):
    for sharing in SHARING:
        losses, right = train_chest(sharing, seed)
        yield {"sharing": sharing, "first_losses": [round(loss, 4) for loss in losses[:5]], "right": round(right, 4)}


def stories(seed):
    train, test, vocab_size = story_ids()
    for sharing in STORIES:
        model = storyteller(sharing, vocab_size, seed)
        losses = train_stories(model, train, seed, STEPS)
        yield {"sharing": sharing, "first_losses": [round(loss, 4) for loss in losses[:5]],
               "parameters": sum(p.numel() for p in model.parameters()), "loss": test_loss(model, test)}


def with_fewer_heads(model, convert):
    model = copy.deepcopy(model)
    for layer in model.stack.layers:
        layer.attention.sublayer = convert(layer.attention.sublayer)
    return model


def first_of_each(attention, heads=2):
    """The first key head of each group instead of the mean."""
    kept = pool_kv_heads(attention, heads)
    with torch.no_grad():
        for name in ("key", "value"):
            for kind in ("weight", "bias"):
                old = getattr(getattr(attention, name), kind).unflatten(0, (heads, -1, attention.head_dim))
                getattr(getattr(kept, name), kind).copy_(old[:, 0].flatten(0, 1))
    return kept


def drawn(attention, heads=2):
    """New key heads, drawn at random."""
    kept, new = pool_kv_heads(attention, heads), GroupedQueryAttention(len(attention.output.weight), attention.num_heads, heads)
    kept.key, kept.value = new.key, new.value
    return kept


def pooled(seed):
    """A model whose heads all have their own keys, made into one with two heads of keys and values, and trained a little more."""
    train, test, vocab_size = story_ids()
    model = storyteller("all have their own", vocab_size, seed)
    train_stories(model, train, seed, STEPS)
    ways = {"left as it is": lambda a: a, "mean": lambda a: pool_kv_heads(a, 2), "first": first_of_each, "drawn": drawn}
    for name, convert in ways.items():
        torch.manual_seed(seed)
        fewer = with_fewer_heads(model, convert)
        row = {"keys": name, "before": test_loss(fewer, test)}
        train_stories(fewer.train(), train, 100 + seed, MORE, of=MORE, rate=1e-3)
        yield {**row, "after": test_loss(fewer, test)}


TASKS = {"chest": chest, "stories": stories, "pooled": pooled}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TASKS, help="one task again")
    tasks = [arguments] if (arguments := parser.parse_args().only) else list(TASKS)
    torch.set_num_threads(1)
    old = json.loads(STORE.read_text()) if STORE.exists() else {"seconds": {}, "runs": []}
    kept = [run for run in old["runs"] if run["task"] not in tasks]
    seconds = {task: taken for task, taken in old["seconds"].items() if task not in tasks}
    for task in tasks:
        start = time.process_time()
        for seed in SEEDS:
            for row in TASKS[task](seed):
                kept.append({"task": task, "seed": seed, **row})
                print(kept[-1], flush=True)
        seconds[task] = round(time.process_time() - start, 1)
    made_with = {"python": platform.python_version(), "torch": torch.__version__, "transformer_course": transformer_course.__version__}
    kept.sort(key=lambda run: list(TASKS).index(run["task"]))
    STORE.write_text(json.dumps({"made_with": made_with, "seconds": seconds, "runs": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
