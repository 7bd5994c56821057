"""Measure what chapter 41 reports: students of the TeddyWorld BERT, with and without their teacher, and what they do on tasks.

    python tools/measure_distillation.py                  # about six minutes on one thread
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
    STUDENTS, TASKS, fine_tune_student, held_out, judge, majority, masked_data, new_student, task_score, teach)
from transformer_course.bert._fine_tuning_tasks import row_of, training_examples
from transformer_course.bert._teddy_bert import teddy_bert

STORE = Path(__file__).parents[1] / "transformer_course" / "bert" / "distillation_results.json"
SEEDS = 0, 1, 2
STEPS, EVERY, FEW, EXAMPLES = 200, 40, 40, 1000


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


def tasks(teacher, steps):
    """Students with and without their teacher's lessons, fine-tuned as chapter 39 fine-tunes the teacher, on as many examples."""
    data = masked_data()
    for seed in SEEDS:
        starts = {"cut out": new_student(teacher, True, seed), "taught": new_student(teacher, True, seed)}
        teach(starts["taught"], teacher, "both", data, seed, steps or STEPS)
        for task in TASKS:
            rows = [row_of(task, example) for example in training_examples(task, EXAMPLES, seed)]
            for start, student in starts.items():
                model, history = fine_tune_student(student, task, rows, seed, steps)
                yield {"kind": "task", "task": task, "start": start, "examples": EXAMPLES, "seed": seed, "score": round(task_score(model, task), 4),
                       "losses": [round(x, 4) for x in history.losses[:20]]}


KINDS = {"reference": (reference, {"teacher", "cut out"}), "students": (students, {"student"}), "few": (few, {"few"}), "tasks": (tasks, {"task"})}


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
