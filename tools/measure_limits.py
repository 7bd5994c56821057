"""Measure what chapter 43 reports and has no time for: long documents, windows in MiniLM, words not seen, writing by masks.

    python tools/measure_limits.py                  # some three minutes on one thread
    python tools/measure_limits.py --only writing   # one kind of run, again

Results go to transformer_course/bert/limits_results.json, with every seed, versions and times.
"""
import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

import torch

from transformer_course.bert._limits_measures import (
    document_ranks, long_documents, next_word_losses, train_masker, windowed_vectors, write_by_masks)
from transformer_course.bert._sentence_measures import ranks
from transformer_course.bert.sentence_embeddings import SentenceEncoder
from transformer_course.modern._decoder_only_measures import StoryGrammar, judged, story_data, story_rows, story_words
from transformer_course.toolbox.teddy_world import TeddyWorld

STORE = Path(__file__).parents[1] / "transformer_course" / "bert" / "limits_results.json"
SEEDS = 0, 1, 2
DEPTHS = 0.0, 0.5, 1.0
WINDOWS = 8, 32, 128


def documents(steps):
    encoder = SentenceEncoder.from_pretrained()
    for depth in DEPTHS:
        found = document_ranks(encoder, depth)
        tokens = [len(encoder.tokenizer.encode(text)) for text in long_documents(depth)[0]]
        yield {"kind": "documents", "depth": depth, "tokens": [min(tokens), max(tokens)], "ranks": found}


def window(steps):
    """Texts of about 480 tokens, with the entry in the middle."""
    encoder = SentenceEncoder.from_pretrained()
    texts, questions = long_documents(0.5, sentences=40)
    asked, whole = encoder.encode(questions), windowed_vectors(encoder, texts)
    yield {"kind": "whole", "ranks": ranks(asked, whole, range(len(texts)))}
    for width in WINDOWS:
        for is_global in (False, True):
            vectors = windowed_vectors(encoder, texts, width, [0] if is_global else [])
            yield {"kind": "window", "window": width, "global": is_global, "ranks": ranks(asked, vectors, range(len(texts))),
                   "cosine": round((vectors * whole).sum(dim=1).mean().item(), 4)}


def next_words(steps):
    stories, held_out, vocabulary = story_data()
    rows, test = story_rows(vocabulary, stories), story_rows(vocabulary, held_out[:200])
    for causal in (True, False):
        for seed in SEEDS:
            whole, cut = next_word_losses(rows, test, len(vocabulary), causal, seed, steps or 200)
            yield {"kind": "next", "causal": causal, "seed": seed, "whole": round(whole, 4), "cut": round(cut, 4)}


def writing(steps):
    stories, held_out, vocabulary = story_data()
    rows = story_rows(vocabulary, stories)
    grammar, known = StoryGrammar(stories + TeddyWorld(seed=2).stories(4000)), {s.english for t in stories for s in t.sentences}
    lengths = [len(story_words(story)) for story in held_out[:50]]
    for seed in SEEDS:
        model = train_masker(rows, len(vocabulary), seed, steps or 300)
        found = []
        for order, sweeps in (("left", 0), ("random", 0), ("left", 1), ("left", 3)):
            texts, passes = write_by_masks(model, lengths, order, sweeps, seed)
            shares = judged([vocabulary.decode(text) for text in texts], grammar, known)
            found.append({"order": order, "sweeps": sweeps, "passes": passes, **{name: round(share, 4) for name, share in shares.items()}})
        yield {"kind": "writing", "seed": seed, "written": found, "example": " ".join(vocabulary.decode(texts[0]))}


KINDS = {"documents": documents, "window": window, "next": next_words, "writing": writing}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="kinds of run to make again")
    parser.add_argument("--steps", type=int, help="train for fewer steps: a first try")
    parser.add_argument("--store", type=Path, default=STORE, help="where to put the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(arguments.store.read_text("utf-8")) if arguments.store.exists() else {"runs": []}
    made_with = {"python": platform.python_version(), "torch": torch.__version__, "transformer_course": version("transformer_course")}
    for name in arguments.only:
        kept = [run for run in results["runs"] if run["kind"] != name and not (name == "window" and run["kind"] == "whole")]
        started = time.process_time()
        for run in KINDS[name](arguments.steps):
            now = time.process_time()
            kept.append({**run, "seconds": round(now - started, 1)})
            started = now
            print(kept[-1], flush=True)
        results = {"made_with": made_with, "seconds": round(sum(run["seconds"] for run in kept), 1), "runs": kept}
        arguments.store.write_text(json.dumps(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
