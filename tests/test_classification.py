"""Chapter 05 against scikit-learn, against known faults, and given the wrong things."""
import re
import warnings

import numpy as np
import pytest
import sklearn.metrics as reference
from hypothesis import given, strategies as st

from transformer_course.metrics import classification as ours
from transformer_course.toolbox.exercises import check

MODULE = "transformer_course.metrics.classification"
RANDOM = "random labels (numbers and strings), 1 to 5 classes, absent and listed labels, 0/0"

names = st.sampled_from(["bear", "rabbit", "accuracy", "macro avg", "곰", ""])


@st.composite
def labelled(draw):
    """(y_true, y_pred, labels or None): labels may leave out some that occur and list some that do not."""
    kind = draw(st.sampled_from([st.integers(-2, 2), names]))
    n = draw(st.integers(1, 12))
    y_true, y_pred = (draw(st.lists(kind, min_size=n, max_size=n)) for _ in range(2))
    labels = draw(st.one_of(st.none(), st.lists(kind, min_size=1, max_size=5, unique=True)))
    return y_true, y_pred, labels


def largest(a, b):
    """Largest absolute difference; NaN equals NaN."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    assert a.shape == b.shape and (np.isnan(a) == np.isnan(b)).all()
    return float(np.max(np.abs(np.nan_to_num(a) - np.nan_to_num(b)), initial=0))


@given(labelled())
def test_confusion_matrix_is_sklearns(parity, case):
    y_true, y_pred, labels = case
    if labels is not None and not set(labels) & set(y_true):
        with pytest.raises(ValueError):
            reference.confusion_matrix(y_true, y_pred, labels=labels)
        with pytest.raises(ValueError, match="occurs in y_true"):
            ours.confusion_matrix(y_true, y_pred, labels)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about single labels
        difference = largest(ours.confusion_matrix(y_true, y_pred, labels),
                             reference.confusion_matrix(y_true, y_pred, labels=labels))
    parity(f"{MODULE}.confusion_matrix", "scikit-learn", difference, 0, RANDOM)


@given(labelled(), st.sampled_from(["micro", "macro", "weighted", None]), st.sampled_from([0.0, 1.0, float("nan")]))
def test_scores_are_sklearns(parity, case, average, zero_division):
    y_true, y_pred, labels = case
    parity(f"{MODULE}.accuracy", "scikit-learn",
           largest(ours.accuracy(y_true, y_pred), reference.accuracy_score(y_true, y_pred)), 1e-12, RANDOM)
    for name, theirs in (("precision", "precision_score"), ("recall", "recall_score"), ("f1_score", "f1_score")):
        options = {"average": average, "labels": labels, "zero_division": zero_division}
        difference = largest(getattr(ours, name)(y_true, y_pred, **options),
                             getattr(reference, theirs)(y_true, y_pred, **options))
        parity(f"{MODULE}.{name}", "scikit-learn", difference, 1e-12, RANDOM)


@given(st.data(), st.sampled_from([(0, 1), ("ham", "spam"), (False, True)]), st.integers(1, 10))
def test_binary_scores_are_sklearns(parity, data, classes, n):
    y_true, y_pred = (data.draw(st.lists(st.sampled_from(classes), min_size=n, max_size=n)) for _ in range(2))
    for name, theirs in (("precision", "precision_score"), ("recall", "recall_score"), ("f1_score", "f1_score")):
        options = {"pos_label": classes[1], "zero_division": 0.0}
        difference = largest(getattr(ours, name)(y_true, y_pred, **options),
                             getattr(reference, theirs)(y_true, y_pred, **options))
        parity(f"{MODULE}.{name}", "scikit-learn", difference, 1e-12, RANDOM)


@given(labelled(), st.integers(0, 13), st.sampled_from([0.0, 1.0, float("nan")]))
def test_report_is_sklearns_to_the_letter(parity, case, digits, zero_division):
    y_true, y_pred, labels = case
    options = {"labels": labels, "digits": digits, "zero_division": zero_division}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = reference.classification_report(y_true, y_pred, **options)
        numbers = reference.classification_report(y_true, y_pred, output_dict=True, **options)
    theirs = re.sub(r"(\d+)\.0$", r"  \1", theirs, flags=re.MULTILINE)  # it prints some supports as 3.0
    assert ours.classification_report(y_true, y_pred, **options) == theirs
    if {"accuracy", "macro avg"} & set(map(str, [*y_true, *y_pred, *(labels or [])])):
        return  # in the dict an average hides a class of the same name, in both libraries
    mine = ours.classification_report(y_true, y_pred, output_dict=True, **options)
    assert mine.keys() == numbers.keys()
    flat = [(mine[k], numbers[k]) if k == "accuracy" else ([*mine[k].values()], [*numbers[k].values()]) for k in mine]
    parity(f"{MODULE}.classification_report", "scikit-learn", max(largest(a, b) for a, b in flat), 1e-12, RANDOM)


def test_macro_recall_is_the_balanced_accuracy():
    for y_true, y_pred in [([0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 2, 2]), ([0, 0, 1, 1], [0, 2, 1, 1])]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a class that is only predicted
            expected = reference.balanced_accuracy_score(y_true, y_pred)
        assert ours.recall(y_true, y_pred, "macro", zero_division=float("nan")) == pytest.approx(expected)


def test_few_labels_of_many_classes_need_little_memory():
    many = list(range(100_000))
    assert ours.confusion_matrix(many, many, labels=[7, 3]).tolist() == [[1, 0], [0, 1]]


def test_the_heat_map_shows_the_counts_and_the_names():
    ax = ours.plot_confusion_matrix(["a", "b", "b"], ["a", "b", "a"], normalize=True)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "b"] == [t.get_text() for t in ax.get_yticklabels()]
    assert sorted(t.get_text() for t in ax.texts) == ["0.00", "0.50", "0.50", "1.00"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("predicted", "actual")


# Known faults ------------------------------------------------------------------------------------------------------

def agrees_with_sklearn(function, theirs, cases, **options):
    """Whether `function` gives what scikit-learn's function gives on each case."""
    def same(case):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = theirs(*case, **options)
            return largest(function(*case, **options), expected) < 1e-12
        except (AssertionError, ValueError, ZeroDivisionError, KeyError):
            return False
    return all(same(case) for case in cases)


CASES = [([0, 0, 1], [0, 2, 1]), ([1, 1, 1, 0], [1, 0, 1, 1]), ([0, 1, 2, 2], [0, 1, 1, 2]), ([0], [0])]


def classes_of_the_truth_only(y_true, y_pred):
    return ours.confusion_matrix(y_true, y_pred, labels=sorted(set(y_true)))


def transposed(y_true, y_pred):
    return ours.confusion_matrix(y_true, y_pred).T


@pytest.mark.parametrize("fault", [classes_of_the_truth_only, transposed])
def test_faulty_matrices_are_caught(fault):
    assert agrees_with_sklearn(ours.confusion_matrix, reference.confusion_matrix, CASES)
    assert not agrees_with_sklearn(fault, reference.confusion_matrix, CASES)


def f1_of_the_means(y_true, y_pred, average, zero_division):
    p, r = (s(y_true, y_pred, average, zero_division=zero_division) for s in (ours.precision, ours.recall))
    return 2 * p * r / (p + r) if p + r else zero_division


def absent_class_is_perfect(y_true, y_pred, average, zero_division):
    return ours.f1_score(y_true, y_pred, average, zero_division=1.0)


def truthy_zero_division(y_true, y_pred, average, zero_division):
    return ours.f1_score(y_true, y_pred, average, zero_division=zero_division or 1.0)


@pytest.mark.parametrize("fault", [f1_of_the_means, absent_class_is_perfect, truthy_zero_division])
def test_faulty_macro_scores_are_caught(fault):
    cases, options = [*CASES, ([0, 0], [1, 1])], {"average": "macro", "zero_division": 0.0}
    with_listed = {**options, "labels": [0, 1, 2, 3]}
    assert agrees_with_sklearn(ours.f1_score, reference.f1_score, cases, **with_listed)
    assert not agrees_with_sklearn(lambda t, p, labels, **o: fault(t, p, **o), reference.f1_score, cases, **with_listed)


# The wrong things --------------------------------------------------------------------------------------------------

SCORES = [ours.confusion_matrix, ours.accuracy, ours.precision, ours.recall, ours.f1_score, ours.classification_report,
          ours.plot_confusion_matrix]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("y_true, y_pred, error, says", [
    ([], [], ValueError, "y_true is empty"),
    ([1], [], ValueError, "y_pred is empty"),
    ([1, 0], [1], ValueError, r"y_pred must be as long as y_true \(2\), not 1"),
    ([[1, 0]], [[1, 0]], ValueError, r"y_true must hold one label per example, but has shape \(1, 2\)"),
    ([0.2, 0.9], [0, 1], ValueError, "are they scores"),
    ([0, 1], [0.0, float("nan")], ValueError, "are they scores"),
    ([0, 1], [0.0, float("inf")], ValueError, "are they scores"),
    ([1, "1"], [1, 1], TypeError, "y_true must hold only strings or only whole numbers, but holds int, str"),
    ([1, None], [1, 1], TypeError, "y_true must hold only strings or only whole numbers, but holds NoneType, int"),
    ([1, 1], [b"1", 1], TypeError, "y_pred must hold only strings or only whole numbers"),
    ([1j, 1], [1, 1], TypeError, "y_true must hold only strings or only whole numbers"),
    (["1", "0"], [1, 0], TypeError, "y_true holds strings, y_pred holds numbers"),
    ([[1], [1, 2]], [1, 1], TypeError, "y_true cannot be read as labels"),
    ("spam", "spam", TypeError, "y_true must be a list or array of labels, not str"),
    ({1, 2}, [1, 2], TypeError, "y_true must be a list or array of labels, not set"),
    (np.ma.masked_array([1, 0], [True, False]), [1, 0], TypeError, "masked"),
    ([2**63 + 1, 0], np.array([1, -1]), ValueError, "cannot be told apart"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_labels_are_refused(score, y_true, y_pred, error, says):
    with pytest.raises(error, match=says):
        score(y_true, y_pred)


@pytest.mark.parametrize("options, error, says", [
    ({"average": "samples"}, ValueError, r"average \('samples'\) must be one of"),
    ({"average": "binary", "pos_label": 7}, ValueError, r"pos_label \(7\) must be one of the classes \[0, 1\]"),
    ({"average": "macro", "labels": [0, 0]}, ValueError, "labels must not repeat"),
    ({"average": "macro", "labels": []}, ValueError, "labels is empty"),
    ({"average": "macro", "labels": ["0"]}, TypeError, "labels holds strings"),
    ({"average": "macro", "zero_division": "warn"}, ValueError, r"zero_division \('warn'\) must be 0, 1 or NaN"),
    ({"average": "macro", "zero_division": 0.5}, ValueError, r"zero_division \(0.5\) must be 0, 1 or NaN"),
])
@pytest.mark.parametrize("score", [ours.precision, ours.recall, ours.f1_score])
@pytest.mark.usefixtures("unchecked")
def test_wrong_options_are_refused(score, options, error, says):
    with pytest.raises(error, match=says):
        score([0, 1, 1], [0, 1, 0], **options)


def test_three_classes_are_not_binary():
    with pytest.raises(ValueError, match="average='binary' needs two classes, but there are 3"):
        ours.f1_score([0, 1, 2], [0, 1, 1])


@pytest.mark.parametrize("digits", [-1, 2.0, None, True])
@pytest.mark.usefixtures("unchecked")
def test_wrong_digits_are_refused(digits):
    with pytest.raises(ValueError, match="digits .* must be a whole number"):
        ours.classification_report([0, 1], [0, 1], digits=digits)


@pytest.mark.usefixtures("unchecked")
def test_normalize_is_not_a_word():
    with pytest.raises(TypeError, match="normalize must be True or False, not 'pred'"):
        ours.plot_confusion_matrix([0, 1], [0, 1], normalize="pred")


def test_tensors_arrays_and_columns_of_text_are_labels_too():
    torch = pytest.importorskip("torch")
    assert ours.accuracy(torch.tensor([0, 1]), np.array([0, 1])) == 1.0
    assert ours.accuracy(np.array(["a", "b"], dtype=object), ["a", "b"]) == 1.0
    assert ours.f1_score(["ham"], ["ham"], pos_label="spam") == ours.f1_score(["ham"], ["ham"]) == 0.0
    assert [t.get_text() for t in ours.plot_confusion_matrix(torch.tensor([0, 1]), [0, 1]).get_xticklabels()] == ["0", "1"]


@pytest.mark.usefixtures("unchecked")
def test_tensors_that_numpy_lacks_are_refused_by_name():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="y_pred cannot be read as labels"):
        ours.accuracy([0, 1], torch.tensor([0, 1], dtype=torch.bfloat16))


# Exercises ---------------------------------------------------------------------------------------------------------

def mean_of_precisions(t, p):
    return float(np.mean(ours.precision(t, p, None)))


def counts_predicted_only_classes(t, p):
    return float(np.mean(ours.recall(t, p, None)))


def integer_matthews(t, p):
    (tn, fp), (fn, tp) = ours.confusion_matrix(t, p, labels=[0, 1]).astype(np.int32)
    return (tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))


def first_best(t, s):
    return max(((float(x), ours.f1_score(t, [int(y >= x) for y in s])) for x in sorted(set(s))), key=lambda c: c[1])


def kappa(t, p):
    return float(reference.cohen_kappa_score(t, p))


def informedness(t, p):
    return 2 * float(reference.balanced_accuracy_score(t, p)) - 1


def by_accuracy(t, s):
    calls = [(float(x), [int(y >= x) for y in s]) for x in sorted(set(s), reverse=True)]
    threshold, guess = max(calls, key=lambda c: ours.accuracy(t, c[1]))
    return threshold, ours.f1_score(t, guess)


def strict(t, s):
    scored = [(float(x), ours.f1_score(t, [int(y > x) for y in s])) for x in sorted(set(s), reverse=True)]
    return max(scored, key=lambda c: c[1])


def in_given_order(t, s):
    hits, called = np.cumsum(t), np.arange(1, len(t) + 1)
    f1 = 2 * hits / (called + sum(t))
    return float(s[int(f1.argmax())]), float(f1.max())


@pytest.mark.parametrize("exercise, wrong", [
    ("05.false-alarms", [1, 3, 4, "2", 2.5]),  # FN, TP and TN
    ("05.balanced-accuracy", [ours.accuracy, mean_of_precisions, counts_predicted_only_classes, 0.5,
                              lambda t, p: round(float(ours.recall(t, p, "macro", zero_division=float("nan"))), 2)]),
    ("05.matthews", [ours.f1_score, integer_matthews, lambda t, p: 2 * ours.accuracy(t, p) - 1, kappa, informedness,
                     lambda t, p: float(np.corrcoef(t, p)[0, 1])]),
    ("05.best-threshold", [first_best, strict, in_given_order, by_accuracy, lambda t, s: (0.5, 1.0)]),
    ("05.two-macro-f1", [([0, 1], [0, 1]), ([0, 1, 1], [0, 1, 0]), ([0], [1]), None]),
])
def test_wrong_answers_are_told_from_right_ones(exercise, wrong):
    for answer in wrong:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = check(exercise, answer)
        assert not result and "not yet" in repr(result), answer
