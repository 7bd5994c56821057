"""Exercises that grade themselves: `check("05.balanced-accuracy", my_function)` says what is wrong, on which small input.

An exercise's id starts with its chapter's number. The properties that an answer must have stand beside the chapter's
module, in `<module>_exercises.py`, and are imported only when an exercise of that chapter is checked.
"""
import copy
import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Case", "CheckResult", "check", "exercise_ids", "same"]

_MODULES = {
    "00": "toolbox.runtime_exercises",
    "01": "toolbox.plotting_exercises",
    "02": "toolbox.teddy_world_exercises",
    "03": "toolbox.checkpoints_exercises",
    "04": "toolbox.training_loop_exercises",
    "05": "metrics.classification_exercises",
    "06": "metrics.sequence_labeling_exercises",
    "07": "metrics.generation_exercises",
    "08": "text.words_and_characters_exercises",
    "09": "text.bpe_exercises",
    "10": "text.wordpiece_exercises",
    "11": "text.unigram_exercises",
    "12": "text.word_vectors_exercises",
    "13": "text.word2vec_exercises",
    "14": "recurrent.rnn_exercises",
    "15": "recurrent.lstm_exercises",
    "16": "recurrent.seq2seq_attention_exercises",
    "17": "attention.self_attention_exercises",
    "18": "attention.masks_exercises",
    "19": "attention.multi_head_attention_exercises",
    "20": "transformer.positional_encoding_exercises",
    "21": "transformer.feed_forward_exercises",
    "22": "transformer.residual_and_norm_exercises",
    "23": "transformer.encoder_exercises",
    "24": "transformer.decoder_exercises",
    "25": "transformer.transformer_exercises",
    "26": "transformer.training_exercises",
    "27": "transformer.decoding_exercises",
    "28": "transformer.translation_exercises",
    "29": "modern.position_embeddings_exercises",
    "30": "modern.normalization_exercises",
    "31": "modern.attention_variants_exercises",
    "32": "modern.kv_cache_exercises",
    "33": "modern.decoder_only_exercises",
    "34": "modern.t5_exercises",
    "35": "modern.one_block_six_models_exercises",
    "36": "bert.inputs_exercises",
    "37": "bert.model_exercises",
    "38": "bert.pretraining_exercises",
    "39": "bert.fine_tuning_exercises",
    "40": "bert.sentence_embeddings_exercises",
    "41": "bert.distillation_exercises",
    "42": "bert.roberta_exercises",
    "43": "bert.limits_exercises",
    "44": "vision.vit_exercises",
    "45": "vision.vit_vs_cnn_exercises",
}


@dataclass(frozen=True)
class Case:
    """One property of a right answer.

    Args:
        says: the property in words, as a clause: "a perfect prediction scores 1".
        args: positional arguments for the reader's function; None when the answer is a value, not a function.
        expected: what must come out, or a function of the outcome that says whether it will do.
        kwargs: keyword arguments for the reader's function.
        raises: the exception that must be raised instead of an outcome.

    Example:
        >>> Case("the square of 3 is 9", args=(3,), expected=9).problem(lambda x: 2 * x)
        'on (3) it gave 6, not 9'
    """
    says: str
    args: tuple | None = None
    expected: Any = None
    kwargs: dict = field(default_factory=dict)
    raises: type[Exception] | None = None

    def problem(self, answer: Any) -> str | None:
        """What is wrong with an answer.

        Args:
            answer: a function, or a value where the case has no arguments.

        Returns:
            A sentence without its full stop, or None when the property holds.
        """
        if self.args is None:
            return self._judge(answer, "your answer is")
        call = ", ".join([*map(_show, self.args), *(f"{k}={_show(v)}" for k, v in self.kwargs.items())])
        if not callable(answer):
            return f"a function is expected, not {type(answer).__name__}"
        try:
            args, kwargs = copy.deepcopy((self.args, self.kwargs))  # an answer may change what it is given
            outcome = answer(*args, **kwargs)
        except (Exception, SystemExit) as error:  # whatever the reader's code raises is reported, not passed on
            if self.raises and isinstance(error, self.raises):
                return None
            return f"on ({call}) it raised {type(error).__name__}: {error}"
        if self.raises:
            return f"on ({call}) it should raise {self.raises.__name__}, but gave {_show(outcome)}"
        return self._judge(outcome, f"on ({call}) it gave")

    def _judge(self, outcome, start):
        try:
            if callable(self.expected):
                return None if self.expected(outcome) else f"{start} {_show(outcome)}"
            return None if same(outcome, self.expected) else f"{start} {_show(outcome)}, not {_show(self.expected)}"
        except Exception as error:  # an outcome of an unexpected type can break any comparison
            return f"{start} {_show(outcome)}, which cannot be compared ({type(error).__name__}: {error})"


def _show(value, longest=300):
    """`repr`, shortened, of a value that may be anything."""
    try:
        text = repr(value)
    except Exception:  # even that can fail
        text = f"an object of type {type(value).__name__}"
    return text if len(text) <= longest else f"{text[:longest - 20]} ... {text[-15:]}"


@dataclass(frozen=True)
class CheckResult:
    """The outcome of `check`: true when every property holds; prints as a sentence.

    Args:
        exercise: the id of the exercise.
        failures: what failed, one sentence for each property that does not hold.
        properties: how many properties were tried.

    Example:
        >>> CheckResult("05.half", (), 2)
        05.half: right, 2 properties hold.
    """
    exercise: str
    failures: tuple[str, ...]
    properties: int

    def __bool__(self) -> bool:
        return not self.failures

    def __repr__(self) -> str:
        if not self.failures:
            noun = "property holds" if self.properties == 1 else "properties hold"
            return f"{self.exercise}: right, {self.properties} {noun}."
        return f"{self.exercise}: not yet.\n" + "\n".join(f"  {failure}" for failure in self.failures)


def same(outcome: Any, expected: Any, tolerance: float = 1e-6) -> bool:
    """Equality that forgives rounding: numbers within `tolerance`, sequences and dicts item by item, NaN equal to NaN.

    Args:
        outcome: what an answer gave; arrays and tensors are compared as the lists they hold.
        expected: what it should be.
        tolerance: the largest difference of two numbers, relative to the larger one or absolute.

    Returns:
        Whether they are the same. A truth value is never the same as a number, nor text as a list of letters.

    Example:
        >>> same([0.1 + 0.2, "a"], [0.3, "a"])
        True
    """
    if hasattr(outcome, "tolist"):  # arrays, tensors and their numbers
        outcome = outcome.tolist()
    if hasattr(expected, "tolist"):
        expected = expected.tolist()
    if isinstance(expected, bool) or isinstance(outcome, bool) or expected is None or isinstance(expected, str):
        return type(outcome) is type(expected) and outcome == expected
    if isinstance(expected, (int, float)):
        if not isinstance(outcome, (int, float)):
            return False
        return outcome == expected or math.isclose(outcome, expected, rel_tol=tolerance, abs_tol=tolerance) or (
            math.isnan(outcome) and math.isnan(expected))
    if isinstance(expected, dict):
        return isinstance(outcome, dict) and outcome.keys() == expected.keys() and all(
            same(outcome[key], expected[key], tolerance) for key in expected)
    if isinstance(expected, Sequence):
        return isinstance(outcome, Sequence) and not isinstance(outcome, str) and len(outcome) == len(expected) and all(
            same(a, b, tolerance) for a, b in zip(outcome, expected))
    return bool(outcome == expected)


def check(exercise: str, answer: Any) -> CheckResult:
    """Tell whether `answer` solves an exercise and, if not, which property fails on which small input.

    Args:
        exercise: its id, such as "05.balanced-accuracy"; each chapter's exercises name theirs.
        answer: your function, or your value where the exercise asks for one.

    Returns:
        A result that is true when all properties hold and prints what failed otherwise.

    Raises:
        ValueError: there is no such exercise.

    Example:
        >>> check("05.false-alarms", 2)
        05.false-alarms: right, 1 property holds.
    """
    cases = _cases(exercise)
    failures = [f"It should be that {case.says}: {problem}." for case in cases if (problem := case.problem(answer))]
    return CheckResult(exercise, tuple(failures), len(cases))


def exercise_ids(chapter: str | None = None) -> list[str]:
    """Ids of the exercises of one chapter, or of all chapters.

    Args:
        chapter: the chapter's number, such as "05"; None for all.

    Returns:
        The ids in the order of the chapters.

    Raises:
        ValueError: there is no such chapter.

    Example:
        >>> "05.balanced-accuracy" in exercise_ids("05")
        True
    """
    numbers = sorted(_MODULES) if chapter is None else [chapter]
    return [name for number in numbers for name in _load(number)]


def _load(number):
    if number not in _MODULES:
        raise ValueError(f"there is no chapter {number!r} with exercises: the chapters are {', '.join(sorted(_MODULES))}")
    return importlib.import_module(f"transformer_course.{_MODULES[number]}").EXERCISES


def _cases(exercise):
    exercises = _load(str(exercise).split(".")[0])
    if exercise not in exercises:
        raise ValueError(f"there is no exercise {exercise!r}: this chapter has {', '.join(exercises)}")
    return exercises[exercise]
