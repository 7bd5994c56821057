"""Measure what chapter 41 reports: students of the TeddyWorld BERT, with and without their teacher.

    python tools/measure_distillation.py                  # about three minutes on one thread
    python tools/measure_distillation.py --only students  # one kind of run, again

Results go to transformer_course/bert/distillation_results.json, with every seed, versions and times.
"""
import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

import torch

from transformer_course.bert._distillation_runs import (
    STUDENTS, held_out, judge, majority, masked_data, new_student, teach)
from transformer_course.bert._teddy_bert import teddy_bert

STORE = Path(__file__).parents[1] / "transformer_course" / "bert" / "distillation_results.json"
SEEDS = 0, 1, 2
STEPS, EVERY, FEW = 200, 40, 40


def shares(scores):
    return {name: round(value, 4) for name, value in scores.items()}


def reference(teacher, steps):
    """The teacher, its student before any training, and the most frequent word."""
    test = held_out()
    yield {"kind": "teacher", **shares(judge(teacher, test)), "majority": round(majority(test), 4)}
    yield {"kind": "cut out", **shares(judge(new_student(teacher, True).eval(), test, teacher))}


def students(teacher, steps):
    """Two starts, several targets, at equal steps."""
    data, test, short = masked_data(), held_out(), held_out(5)
    for seed in SEEDS:
        for copied, targets in STUDENTS:
            student = new_student(teacher, copied, seed)
            history = teach(student, teacher, targets, data, seed, steps or STEPS, validate_every=EVERY,
                            validate=lambda model: judge(model, short)["accuracy"])
            yield {"kind": "student", "copied": copied, "targets": targets, "seed": seed, "steps": len(history.losses),
                   **shares(judge(student, test, teacher)), "losses": [round(x, 4) for x in history.losses[:20]],
                   "curve": [[step, round(value, 4)] for step, value in history.validation]}


def few(teacher, steps):
    """Copied students that see few stories, again and again."""
    data, test = masked_data(FEW), held_out()
    for seed in SEEDS:
        for targets in ("labels", "teacher"):
            student = new_student(teacher, True, seed)
            teach(student, teacher, targets, data, seed, steps or STEPS)
            yield {"kind": "few", "stories": FEW, "targets": targets, "seed": seed, **shares(judge(student, test, teacher))}


KINDS = {"reference": (reference, {"teacher", "cut out"}), "students": (students, {"student"}), "few": (few, {"few"})}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="kinds of run to make again")
    parser.add_argument("--steps", type=int, help="train for fewer steps: a first try")
    parser.add_argument("--store", type=Path, default=STORE, help="where to put the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    teacher = teddy_bert()
    results = json.loads(arguments.store.read_text("utf-8")) if arguments.store.exists() else {"runs": []}
    made_with = {"python": platform.python_version(), "torch": torch.__version__, "transformer_course": version("transformer_course")}
    for name in arguments.only:
        measure, kinds = KINDS[name]
        kept = [run for run in results["runs"] if run["kind"] not in kinds]
        started = time.process_time()
        for run in measure(teacher, arguments.steps):
            now = time.process_time()
            kept.append({**run, "seconds": round(now - started, 1)})
            started = now
            print({key: value for key, value in kept[-1].items() if key != "losses"}, flush=True)
            results = {"made_with": made_with, "seconds": round(sum(run["seconds"] for run in kept), 1), "runs": kept}
            arguments.store.write_text(json.dumps(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
