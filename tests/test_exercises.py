"""Exercises that grade themselves: the machinery stands up to any answer, and every worked solution passes its own check."""
import ast
import copy
import math
import re
import subprocess
import sys
from types import MappingProxyType

import numpy as np
import pytest
from chapters import Chapter, chapters
from reading import PACKAGE, ROOT, code, directives, markdown, md, stream, text_output, write_notebook
from transformer_course.toolbox import exercises
from transformer_course.toolbox.exercises import Case, CheckResult, check, exercise_ids, same

CALL = re.compile(r"check\(\s*[\"']([^\"']+)[\"']")


# -- checks of chapters

def solution_cells(chapter):
    """{label of an exercise: its solution's code cells}."""
    found, label = {}, None
    for cell in chapter.cells():
        if cell["cell_type"] == "markdown":
            for directive in directives(cell["source"]):
                if directive.name == "solution-start":
                    label = directive.argument
                    found[label] = []
                elif directive.name == "solution-end":
                    label = None
        elif label:
            found[label].append(cell)
    return found


def checked(cell):
    """Ids that a code cell calls `check` with."""
    tree = ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", cell["source"], flags=re.MULTILINE))
    return {node.args[0].value for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check"
            and node.args and isinstance(node.args[0], ast.Constant)}


def exercise_problems(chapter, registered):
    """Exercises with a check that does not exist, checks without an exercise, solutions that are not right."""
    bad, mentioned = [], set()
    solutions = solution_cells(chapter)
    for exercise in (d for d in directives(markdown(chapter)) if d.name == "exercise"):
        label, ids = exercise.options.get("label", ""), set(CALL.findall(exercise.body))
        mentioned |= ids
        for name in sorted(ids):
            if label != "ex-" + name.replace(".", "-"):
                bad.append(f"exercise {label} is checked as {name!r}: the two names should match")
            if name not in registered:
                bad.append(f"there is no check {name!r}")
            cells = [cell for cell in solutions.get(label, []) if name in checked(cell)]
            if not cells:
                bad.append(f"the solution of {label} does not call check({name!r}, …)")
            elif not any(f"{name}: right," in text_output(cell) for cell in cells):
                bad.append(f"the stored solution of {label} is not right")
    return bad + [f"no exercise of the chapter uses the check {name!r}" for name in sorted(set(registered) - mentioned)]


def case_problems(registered, number):
    """What is wrong with the cases of a chapter, given as its EXERCISES."""
    bad = []
    for name, cases in registered.items():
        if not re.fullmatch(rf"{number}\.[a-z0-9]+(-[a-z0-9]+)*", name):
            bad.append(f"{name!r} is no id of an exercise of chapter {number}")
        if not cases:
            bad.append(f"{name} has no property")
        for case in cases:
            if not case.says or case.says[-1] in ".!?" or "\n" in case.says:
                bad.append(f"{name}: {case.says!r} should be a clause, without a full stop")
            if case.args is None and (case.kwargs or case.raises):
                bad.append(f"{name}: {case.says!r} is about a value, which is not called")
    return bad


def wrong_answers(source):
    """{exercise: how many wrong answers} in a test module: pairs ("05.id", [wrong, …]), or {"05.id": [wrong, …]}."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        pairs = zip(node.keys, node.values) if isinstance(node, ast.Dict) else [node.elts] if isinstance(node, (ast.Tuple, ast.List)) else []
        for pair in pairs:
            if len(pair) == 2 and isinstance(pair[0], ast.Constant) and isinstance(pair[1], (ast.List, ast.Tuple)):
                found[pair[0].value] = max(len(pair[1].elts), found.get(pair[0].value, 0))
    return found


def registered(chapter):
    return exercise_ids(chapter.number) if chapter.number in exercises._MODULES else []


@pytest.mark.parametrize("chapter", chapters(), ids=lambda c: c.stem)
def test_worked_solutions_pass_their_checks(chapter):
    assert exercise_problems(chapter, registered(chapter)) == []


@pytest.mark.parametrize("chapter", chapters(), ids=lambda c: c.stem)
def test_cases_read_well(chapter):
    if chapter.number in exercises._MODULES:
        assert case_problems(exercises._load(chapter.number), chapter.number) == []


@pytest.mark.parametrize("chapter", chapters(), ids=lambda c: c.stem)
def test_every_check_is_shown_three_wrong_answers(chapter):
    test = ROOT / f"tests/test_{chapter.name}.py"
    shown = wrong_answers(test.read_text(encoding="utf-8")) if test.exists() else {}
    assert {name: shown.get(name, 0) for name in registered(chapter) if shown.get(name, 0) < 3} == {}


def test_wrong_answers_are_counted():
    source = "x = [('05.a', [1, 2, 3]), ('05.b', [f, g])]\ny = {'05.c': [1, lambda: 2], 3: 4}"
    assert wrong_answers(source) == {"05.a": 3, "05.b": 2, "05.c": 2}


def test_every_module_of_exercises_is_registered():
    there = {f"{path.parent.name}.{path.stem}" for path in PACKAGE.rglob("*_exercises.py")}
    assert there == set(exercises._MODULES.values())
    for chapter in chapters():
        if chapter.number in exercises._MODULES:
            assert exercises._MODULES[chapter.number] == f"{chapter.part}.{chapter.name}_exercises"


EXERCISE = ":::{exercise}\n:label: ex-05-half\n**Half.** `check(\"05.half\", half)`\n:::"
START, END = ":::{solution-start} ex-05-half\n:class: dropdown\n:::", ":::{solution-end}\n:::"


@pytest.mark.parametrize("old, new, says", [
    ("05.half", "05.third", "should match"),
    ("05-half", "05-other", "should match"),
    ("05.half\", half)`", "05.half)`", "no exercise of the chapter uses"),
    ("check(\"05.half\", 0.5)", "print(0.5)", "does not call"),
    ("right, 1", "not yet", "is not right"),
])
def test_a_broken_exercise_fails(tmp_path, old, new, says):
    def chapter(folder, change=lambda text: text):
        cells = [md(EXERCISE), md(START), code("check(\"05.half\", 0.5)", [stream("05.half: right, 1 property holds.")]), md(END)]
        for cell in cells:
            cell["source"] = change(cell["source"])
            for output in cell.get("outputs", []):
                output["text"] = change(output["text"])
        return Chapter(write_notebook(folder / "nbs/metrics/05_sample.ipynb", cells))

    assert exercise_problems(chapter(tmp_path / "sound"), ["05.half"]) == []
    broken = chapter(tmp_path / "broken", lambda text: text.replace(old, new))
    assert any(says in problem for problem in exercise_problems(broken, ["05.half"]))


def test_an_unregistered_check_fails(tmp_path):
    cells = [md(EXERCISE), md(START), code("check('05.half', 0.5)", [stream("05.half: right, 1 property holds.")]), md(END)]
    chapter = Chapter(write_notebook(tmp_path / "nbs/metrics/05_sample.ipynb", cells))
    assert exercise_problems(chapter, []) == ["there is no check '05.half'"]


@pytest.mark.parametrize("name, cases", [
    ("06.half", [Case("it is one half", expected=0.5)]), ("05.Half", [Case("it is one half", expected=0.5)]),
    ("05.half", []), ("05.half", [Case("It is one half.", expected=0.5)]), ("05.half", [Case("", expected=0.5)]),
    ("05.half", [Case("it is one half", expected=0.5, raises=ValueError)]),
])
def test_broken_cases_fail(name, cases):
    assert case_problems({"05.half": [Case("it is one half", expected=0.5)]}, "05") == []
    assert case_problems({name: cases}, "05")


# -- the machinery

SORTED = MappingProxyType({"09.sort": [
    Case("numbers come out in order", ([3, 1, 2],), [1, 2, 3]),
    Case("nothing stays nothing", ([],), []),
    Case("the order can be turned round", ([1, 2],), [2, 1], {"reverse": True}),
    Case("a number is refused", (3,), raises=TypeError),
    Case("the outcome is a new list", ([1],), lambda out: isinstance(out, list)),
]})


@pytest.fixture
def sorting(monkeypatch):
    """An exercise, `09.sort`, whose cases are fresh for each test."""
    cases = {name: copy.deepcopy(c) for name, c in SORTED.items()}
    monkeypatch.setattr(exercises, "_load", lambda number: cases)
    return "09.sort"


def test_a_right_answer(sorting):
    result = check(sorting, sorted)
    assert result and repr(result) == "09.sort: right, 5 properties hold."
    assert isinstance(result, CheckResult) and result.failures == () and result.properties == 5


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


def mutating(values, reverse=False):
    values.sort(reverse=reverse)
    return values


def leaving(values, reverse=False):
    raise SystemExit


WRONG = {
    "returns its input": (lambda v, reverse=False: v, "numbers come out in order"),
    "takes no option": (lambda v: sorted(v), "the order can be turned round"),
    "raises": (lambda v, reverse=False: 1 / 0, "ZeroDivisionError"),
    "raises without words": (lambda v, reverse=False: [][0], "IndexError"),
    "takes no argument": (lambda: [], "TypeError"),
    "gives None": (lambda v, reverse=False: None, "gave None"),
    "gives NaN": (lambda v, reverse=False: [math.nan] * 3, "nan"),
    "gives a generator": (lambda v, reverse=False: (x for x in sorted(v, reverse=reverse)), "generator"),
    "gives text": (lambda v, reverse=False: str(sorted(v)), "'[1, 2, 3]'"),
    "gives a wrong array": (lambda v, reverse=False: np.zeros(7), "not [1, 2, 3]"),
    "gives a ragged list": (lambda v, reverse=False: [[1], [2, 3]], "not [1, 2, 3]"),
    "gives the unprintable": (lambda v, reverse=False: Unprintable(), "numbers come out in order"),
    "leaves the program": (leaving, "SystemExit"),
    "swallows bad input": (lambda v, reverse=False: sorted(v, reverse=reverse) if isinstance(v, list) else [], "should raise TypeError"),
    "is a number": (5, "a function is expected, not int"),
    "is nothing": (None, "a function is expected, not NoneType"),
    "is the unprintable": (Unprintable(), "a function is expected, not Unprintable"),
}


@pytest.mark.parametrize("answer, says", WRONG.values(), ids=WRONG)
def test_a_wrong_answer_is_told_what_fails(sorting, answer, says):
    result = check(sorting, answer)
    assert not result and says in repr(result) and repr(result).startswith("09.sort: not yet.\n")
    assert check(sorting, sorted), "a wrong answer spoils the check for the next one"


def test_an_answer_that_changes_its_argument_spoils_nothing(sorting):
    assert not check("09.sort", lambda v, reverse=False: v.append(9))
    for _ in range(2):
        result = check(sorting, mutating)
        assert [f for f in result.failures if "refused" not in f] == []  # a list's own sort gives the right lists
        assert "'int' object has no attribute 'sort'" in repr(result)
    assert check(sorting, sorted)


def test_an_answer_may_print(sorting, capsys):
    assert check(sorting, lambda v, reverse=False: print("here") or sorted(v, reverse=reverse))
    assert "here" in capsys.readouterr().out


def test_a_long_outcome_is_shortened(sorting):
    assert len(repr(check(sorting, lambda v, reverse=False: list(range(100_000))))) < 3000


def test_stopping_by_hand_stops(sorting):
    def stopped(values, reverse=False):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        check(sorting, stopped)


def test_a_value_is_judged_without_being_called():
    case = Case("it is one half", expected=0.5)
    assert case.problem(0.5) is None and case.problem(np.float32(0.5)) is None
    for wrong in (0.25, "0.5", None, len, Unprintable()):
        assert case.problem(wrong)


def test_an_unknown_exercise_is_an_error():
    with pytest.raises(ValueError, match=r"no exercise '05.nothing'.*05\.balanced-accuracy"):
        check("05.nothing", 1)
    for name in ("77.x", "", "x"):
        with pytest.raises(ValueError, match="no chapter"):
            check(name, 1)
    with pytest.raises(ValueError, match="no chapter '77'"):
        exercise_ids("77")


SAME = [
    (0.1 + 0.2, 0.3), (1, 1.0), (1.0, 1), (math.nan, math.nan), (math.inf, math.inf), (np.float64(0.5), 0.5),
    (np.int64(3), 3), (np.array([1, 2]), [1, 2]), ([1, 2], np.array([1.0, 2.0])), ((1, 2), [1, 2]), (np.array(2.0), 2),
    ({"a": [1.0]}, {"a": (1,)}), ("text", "text"), (np.str_("text"), "text"), (True, True), (np.True_, True), (None, None),
    ({1, 2}, {2, 1}), ([], []), ([[0.1 + 0.2, "a"]], [[0.3, "a"]]), (10**400, 10**400),
]
DIFFERENT = [
    (0.3001, 0.3), (1, 2), (math.nan, 1.0), (1.0, math.nan), (math.inf, -math.inf), (math.inf, 1e308), (True, 1), (1, True), (False, 0),
    ("1", 1), (1, "1"), ("ab", ["a", "b"]), ([1, 2], [1, 2, 3]), ([1, 2, 3], [1, 2]), ([2, 1], [1, 2]), ({"a": 1}, {"b": 1}), ({"a": 1}, [1]),
    (None, 0), (0, None), (None, []), ([], None), (np.zeros((2, 2)), [0, 0]), (iter([1]), [1]), ({1, 2}, [1, 2]), ({1}, {1, 2}),
]


@pytest.mark.parametrize("outcome, expected", SAME)
def test_same(outcome, expected):
    assert same(outcome, expected) is True


@pytest.mark.parametrize("outcome, expected", DIFFERENT)
def test_not_same(outcome, expected):
    assert same(outcome, expected) is False


def test_exercises_load_only_when_asked():
    script = ("import sys, transformer_course.toolbox.exercises as e; "
              "before = [m for m in sys.modules if m.endswith('_exercises')]; e.exercise_ids('05'); "
              "after = [m for m in sys.modules if m.endswith('_exercises')]; print(before, after)")
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[] ['transformer_course.metrics.classification_exercises']"
