"""Measure what chapter 33 reports: storytellers, and when copying emerges.

    python tools/measure_decoder_only.py                     # about six minutes on one thread
    python tools/measure_decoder_only.py --only storyteller  # one kind of run, again

Results go to transformer_course/modern/decoder_only_results.json, with every seed, versions and times.
"""
import argparse
import json
import math
import platform
import time
from importlib.metadata import version
from pathlib import Path

import torch

from transformer_course.modern._decoder_only_measures import (
    BOS, EOS, Ngrams, StoryGrammar, copying_heads, held_out_copies, judged, names_again, next_names, next_word_loss, pronouns_agree,
    second_half_loss, story_data, story_rows, story_words, train_copier, train_storyteller, written)
from transformer_course.toolbox.teddy_world import TeddyWorld

STORE = Path(__file__).parents[1] / "transformer_course" / "modern" / "decoder_only_results.json"
SEEDS = 0, 1, 2
CONTROLS = ([{"temperature": t} for t in (0.0, 0.5, 0.7, 1.0, 1.5, 2.0)]
            + [{"temperature": 1.0, "top_k": 5}, {"temperature": 1.0, "top_p": 0.9}, {"temperature": 1.5, "top_p": 0.9}])


def shares(stories, grammar, known):
    found = {**judged(stories, grammar, known), "pronouns": sum(map(pronouns_agree, stories)) / len(stories)}
    return {name: round(share, 4) for name, share in found.items()}


def name_losses(prob, stories, tags):
    """Mean -log P of nouns and names that were mentioned before, and of new ones; prob(words, place)."""
    losses = [[], []]
    for words in stories:
        for found, places in zip(losses, names_again(words, tags)):
            found += [-math.log(prob(words, i)) for i in places]
    return [round(sum(found) / len(found), 4) for found in losses]


def reference(steps):
    """Counting models, the world's own held-out stories, and how the grammar judges them."""
    stories, held_out, vocabulary = story_data()
    grammar, known = StoryGrammar(stories + TeddyWorld(seed=2).stories(4000)), {s.english for t in stories for s in t.sentences}
    ids, test = ([[BOS, *vocabulary.encode(story_words(s)), EOS] for s in part] for part in (stories, held_out))
    texts = [story_words(story) for story in held_out]
    yield {"kind": "held-out", **shares(texts, grammar, known), "stories": len(texts)}
    for order in (1, 2, 3, 5):
        model = Ngrams(ids, order, len(vocabulary))
        logs = [math.log(model.prob(row[i], row[:i])) for row in test for i in range(1, len(row))]
        again, new = name_losses(lambda words, i: model.prob(vocabulary.id(words[i]), [BOS, *vocabulary.encode(words[:i])]),
                                 texts, grammar.tags)
        row = {"kind": "counts", "order": order, "perplexity": round(math.exp(-sum(logs) / len(logs)), 4), "again": again, "new_names": new}
        if order in (3, 5):
            drawn = model.draw(100, torch.Generator().manual_seed(0))
            row |= shares([vocabulary.decode(story) for story in drawn], grammar, known)
        yield row


def storyteller(steps):
    stories, held_out, vocabulary = story_data()
    grammar, known = StoryGrammar(stories + TeddyWorld(seed=2).stories(4000)), {s.english for t in stories for s in t.sentences}
    rows, test = story_rows(vocabulary, stories), story_rows(vocabulary, held_out)
    for seed in SEEDS:
        model, history = train_storyteller(rows, len(vocabulary), seed, steps or 400)
        with torch.no_grad():
            loss, p = next_word_loss(model, test).item(), model(test[:, :-1]).softmax(dim=-1)
        texts = {tuple(story_words(story)): p[i] for i, story in enumerate(held_out)}
        names = next_names(model, vocabulary)
        again, new = name_losses(lambda words, i: texts[tuple(words)][i, vocabulary.id(words[i])].item(),
                                 map(list, texts), grammar.tags)
        yield {"kind": "storyteller", "seed": seed, "steps": len(history.losses), "perplexity": round(math.exp(loss), 4), "again": again,
               "new_names": new, "right": round((names.diag() / names.sum(dim=1)).mean().item(), 4),
               "losses": [round(sum(history.losses[i:i + 20]) / 20, 4) for i in range(0, len(history.losses), 20)],
               "written": [{**controls, **shares(written(model, vocabulary, seed=seed, **controls), grammar, known)} for controls in CONTROLS]}


def copier(steps):
    test = held_out_copies()
    for depth in (1, 2, 3, 4):
        for seed in SEEDS:
            model, history = train_copier(depth, seed, steps or 450)
            with torch.no_grad():
                loss = second_half_loss(model, test).item()
            yield {"kind": "copier", "layers": depth, "seed": seed, "steps": len(history.losses), "loss": round(loss, 4),
                   "curve": [[step, round(value, 4)] for step, value in history.validation],
                   "heads": [[[round(x, 4) for x in layer] for layer in kind.tolist()] for kind in copying_heads(model, test)]}


def patient(steps):
    """One layer, with three times the steps."""
    for seed in SEEDS:
        model, history = train_copier(1, seed, steps or 1350)
        yield {"kind": "patient copier", "layers": 1, "seed": seed, "steps": len(history.losses), "loss": round(history.validation[-1][1], 4)}


KINDS = {"reference": reference, "storyteller": storyteller, "copier": copier, "patient": patient}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="kinds of run to make again")
    parser.add_argument("--steps", type=int, help="train for fewer steps: a first try")
    parser.add_argument("--store", type=Path, default=STORE, help="where to put the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(arguments.store.read_text("utf-8")) if arguments.store.exists() else {"runs": []}
    kinds = {"reference": {"held-out", "counts"}, "patient": {"patient copier"}}
    made_with = {"python": platform.python_version(), "torch": torch.__version__, "transformer_course": version("transformer_course")}
    for name in arguments.only:
        kept = [run for run in results["runs"] if run["kind"] not in kinds.get(name, {name})]
        started = time.process_time()
        for run in KINDS[name](arguments.steps):
            now = time.process_time()
            kept.append({**run, "seconds": round(now - started, 1)})
            started = now
            print({key: value for key, value in kept[-1].items() if key not in ("losses", "curve", "heads", "written")}, flush=True)
            results = {"made_with": made_with, "seconds": round(sum(run["seconds"] for run in kept), 1), "runs": kept}
            arguments.store.write_text(json.dumps(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
