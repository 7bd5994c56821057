"""Measure what chapter 40 reports and has no time or no data for: trained heads, and paraphrases from Tatoeba.

    python tools/measure_sentence_embeddings.py --tatoeba FOLDER   # some two minutes on one thread
    python tools/measure_sentence_embeddings.py --only heads       # one kind of run, again

FOLDER holds tatoeba-eng-fra.tsv and tatoeba-eng-kor.tsv. Results go to transformer_course/bert/sentence_embeddings_results.json,
with every seed, versions and times.
"""
import argparse
import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

import torch

from transformer_course.bert._sentence_measures import all_ways, bag_of_words, last_pool, nearest_is_right, paraphrase_task, train_head
from transformer_course.bert.sentence_embeddings import SentenceEncoder, cls_pool, max_pool, mean_pool

STORE = Path(__file__).parents[1] / "transformer_course" / "bert" / "sentence_embeddings_results.json"
SEEDS = 0, 1, 2
POOLS = {"mean": mean_pool, "[CLS]": cls_pool, "max": max_pool, "last": last_pool}
FILES = "tatoeba-eng-fra.tsv", "tatoeba-eng-kor.tsv"


def heads(arguments):
    for name, pool in POOLS.items():
        for seed in SEEDS:
            before, after = train_head(pool, seed, steps=arguments.steps or 60)
            yield {"kind": "heads", "pool": name, "seed": seed, "before": round(before, 4), "after": round(after, 4)}


def tatoeba(arguments):
    encoder = SentenceEncoder.from_pretrained()
    for name in FILES:
        path = arguments.tatoeba / name
        if not path.exists():
            raise SystemExit(f"{path} is not there: name the folder with --tatoeba")
        texts, queries, answers = paraphrase_task(path)
        ways = {**all_ways(encoder, texts), "bag": bag_of_words(texts, texts)}
        yield {"kind": "tatoeba", "file": name, "texts": len(texts), "queries": len(queries),
               "right": {way: round(nearest_is_right(vectors, queries, answers), 4) for way, vectors in ways.items()}}


KINDS = {"heads": heads, "tatoeba": tatoeba}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="kinds of run to make again")
    parser.add_argument("--steps", type=int, help="train for fewer steps: a first try")
    parser.add_argument("--tatoeba", type=Path, default=Path(os.environ.get("TRANSFORMER_COURSE_TATOEBA", "data")), help="folder of the files")
    parser.add_argument("--store", type=Path, default=STORE, help="where to put the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(arguments.store.read_text("utf-8")) if arguments.store.exists() else {"runs": []}
    made_with = {"python": platform.python_version(), "torch": torch.__version__, "transformer_course": version("transformer_course")}
    for name in arguments.only:
        kept = [run for run in results["runs"] if run["kind"] != name]
        started = time.process_time()
        for run in KINDS[name](arguments):
            now = time.process_time()
            kept.append({**run, "seconds": round(now - started, 1)})
            started = now
            print(kept[-1], flush=True)
        results = {"made_with": made_with, "seconds": round(sum(run["seconds"] for run in kept), 1), "runs": kept}
        arguments.store.write_text(json.dumps(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
