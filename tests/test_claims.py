"""Every claim of the lecture notes that belongs to a chapter is stated there, judged once, and settled by a cell."""
import ast
import copy
import re
from collections import Counter, defaultdict

import pytest
from chapters import SETTLES, Chapter, chapters
from claims import ID, VERDICTS, split_argument
from reading import ROOT, claims, code, contents, directives, md, pages, words, write_notebook
from test_notebooks import bibliography_keys

BACK_MATTER = "back_matter"
FIELDS = {"id", "chapter", "section", "kind", "claim", "verdict", "correction", "cite"}
KINDS = {"definition", "formula", "derivation", "worked_example", "empirical", "figure", "history", "comparison"}
# How many claims each section of the notes makes; they are numbered from 01.
RECORD = {
    "L1.0": 1, "L1.1": 1, "L1.1.1": 7, "L1.1.2": 3, "L1.1.3": 6, "L1.2": 1, "L1.2.1": 1, "L1.2.2": 4, "L1.2.3": 2, "L1.2.4": 1,
    "L1.3.1": 2, "L1.3.2": 9, "L1.4.1": 4, "L1.4.2": 2, "L1.5": 2, "L1.6": 2, "L1.6.1": 1, "L1.6.2": 12, "L1.6.3": 3, "L1.7": 21,
    "L1.8.1": 2, "L1.8.2": 18, "L1.8.3": 11, "L1.8.4": 27, "L1.8.5": 36, "L1.8.6": 43, "L1.9": 4, "L1.10": 3, "L1.11": 3,
    "L2.0": 1, "L2.1": 2, "L2.2": 1, "L2.2.1": 2, "L2.2.2": 3, "L2.2.3": 1, "L2.2.4": 2, "L2.2.5": 5, "L2.3.1": 1, "L2.3.2": 1,
    "L2.3.3": 1, "L2.3.4": 1, "L2.4.1": 1, "L2.4.2": 2, "L2.4.3": 4, "L2.5.1": 3, "L2.5.2": 2, "L2.5.3": 3, "L2.6.1": 2, "L2.6.2": 3,
    "L2.6.3": 6, "L2.6.4": 4, "L2.6.5": 4, "L2.6.6": 1, "L2.7.1": 7, "L2.7.2": 4, "L2.8": 2, "L2.9": 2,
    "T.0": 1, "T.1": 1, "T.2": 2, "T.3": 2, "T.4": 1, "T.5": 1, "T.5.2": 2, "T.6": 2, "T.7": 1,
    "S.1.0": 6, "S.1.2": 4, "S.1.3": 5, "S.1.4": 1, "S.1.5": 2, "S.1.6": 1, "S.1.9": 3, "S.2": 4, "S.3": 4,
}
CALLS_THAT_COMPUTE_NOTHING = {"len", "min", "max", "sum", "sorted", "set", "list", "tuple", "dict", "all", "any", "round", "abs", "bool",
                              "int", "float", "str", "isinstance", "items", "keys", "values", "get", "index", "count", "zip", "enumerate",
                              "isclose", "allclose", "range", "print", "lower", "split", "strip", "format", "startswith"}


def boxes(text):
    """(id, verdict, statement, rest) of every claim box in a Markdown text; raises ValueError for a malformed one."""
    for box in directives(text):
        if box.name == "claim":
            statement, _, rest = box.body.partition("\n\n")
            yield *split_argument(box.argument), words(statement), words(rest)


def record_problems(record, keys, stems):
    """What is wrong with the record by itself: ids, fields, verdicts, chapters, citations."""
    bad = [f"{name} is there {n} times" for name, n in Counter(c.get("id") for c in record).items() if n > 1]
    wanted = {f"{section}-{number:02d}" for section, n in RECORD.items() for number in range(1, n + 1)}
    ids = {c.get("id") for c in record}
    bad += [f"{name} is missing" for name in sorted(wanted - ids)] + [f"{name} is no claim of the notes" for name in sorted(ids - wanted)]
    for claim in record:
        name, verdict = claim.get("id"), claim.get("verdict")
        if not FIELDS - {"cite"} <= claim.keys() <= FIELDS:
            bad.append(f"{name} has the fields {sorted(claim)}")
            continue
        if verdict is not None and verdict not in VERDICTS:
            bad.append(f"{name}: {verdict!r} is no verdict")
        if claim["kind"] not in KINDS:
            bad.append(f"{name}: {claim['kind']!r} is no kind")
        if not str(claim["claim"]).strip():
            bad.append(f"{name} states nothing")
        if bool(claim["correction"]) != (verdict not in (None, "holds")):
            bad.append(f"{name}: a correction is given where, and only where, the verdict is not `holds`")
        if claim["chapter"] != BACK_MATTER and not re.fullmatch(r"\d\d_[a-z0-9_]+", str(claim["chapter"])):
            bad.append(f"{name}: {claim['chapter']!r} is no chapter")
        if any(claim["chapter"][:3] == stem[:3] and claim["chapter"] != stem for stem in stems):
            bad.append(f"{name}: the chapter is not called {claim['chapter']}")
        written = claim["chapter"] in stems or claim["chapter"] == BACK_MATTER
        if written and verdict is None:
            bad.append(f"{name} is not examined, though {claim['chapter']} is written")
        if not written and verdict is not None:
            bad.append(f"{name} is judged, though {claim['chapter']} is not written")
        if claim["chapter"] == BACK_MATTER and not claim.get("cite"):
            bad.append(f"{name}: no cell settles a claim of the back matter, so that it needs a citation")
        bad += [f"{name} cites {key.strip()}, which is not in the bibliography"
                for key in (claim.get("cite") or "").split(",") if key.strip() and key.strip() not in keys]
    return bad


def agreement_problems(record, texts):
    """`texts`: {where: Markdown}. Boxes that differ from the record, or from each other."""
    bad, known, seen = [], {c["id"]: c for c in record}, defaultdict(set)
    for where, text in texts.items():
        try:
            found = list(boxes(text))
        except ValueError as error:
            bad.append(f"{where}: {error}")
            continue
        bad += [f"{where}: {name} has two boxes" for name, n in Counter(box[0] for box in found).items() if n > 1]
        for name, verdict, statement, rest in found:
            claim = known.get(name)
            if claim is None:
                bad.append(f"{where}: {name} is no claim of the record")
                continue
            seen[name] |= {verdict, claim["verdict"]}
            if statement != words(claim["claim"]):
                bad.append(f"{where}: the statement of {name} differs from the record's")
            if rest != words(claim["correction"] or ""):
                bad.append(f"{where}: the correction of {name} differs from the record's")
    return bad + [f"{name} has the verdicts {sorted(map(str, verdicts))}" for name, verdicts in seen.items() if len(verdicts) > 1]


def chapter_problems(record, chapter):
    """Claims of the chapter that it does not state or does not settle, and cells that settle what it does not state."""
    bad, cells = [], chapter.cells("code")
    try:
        stated = {box[0] for box in boxes("\n\n".join(cell["source"] for cell in chapter.cells("markdown")))}
    except ValueError as error:
        return [str(error)]
    settled = set(chapter.settled())
    for claim in record:
        name = claim["id"]
        if claim["chapter"] != chapter.stem:
            continue
        if name not in stated:
            bad.append(f"{name} is not stated")
        if name not in settled and not claim.get("cite"):
            bad.append(f"no cell settles {name}")
    bad += [f"{name!r} is settled but not stated" for name in sorted(settled - stated)]
    bad += [f"{name!r} is no id" for name in sorted(settled) if not ID.match(name)]
    for number, cell in enumerate(cells):
        for line in SETTLES.findall(cell["source"]):
            if not computes([c["source"] for c in cells[:number + 2]], number):
                bad.append(f"the cell that settles {line.strip()} asserts nothing that is computed")
    return bad


def _tree(source):
    return ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE))


def computes(sources, number):
    """Whether the cell, or else the one after it, has an assertion that could have come out otherwise.

    An assertion about literals, or about names that hold nothing but literals, decides nothing. A call of anything but
    the plainest built-ins, and arithmetic with a name in it, counts as computing.
    """
    bound = defaultdict(list)
    for node in (n for source in sources for n in ast.walk(_tree(source))):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.comprehension, ast.NamedExpr)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = getattr(node, "value", None) or getattr(node, "iter", None)
            for target in (n for t in targets for n in ast.walk(t)):
                if isinstance(target, ast.Name) and value is not None:
                    bound[target.id].append(value)

    def computed(node, seen=frozenset()):
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                name = getattr(part.func, "id", getattr(part.func, "attr", None))
                if name not in CALLS_THAT_COMPUTE_NOTHING:
                    return True
            if isinstance(part, ast.BinOp) and any(isinstance(n, ast.Name) for n in ast.walk(part)):
                return True
            if isinstance(part, ast.Name) and part.id not in seen and isinstance(part.ctx, ast.Load):
                if any(computed(value, seen | {part.id}) for value in bound.get(part.id, [])):
                    return True
        return False

    def asserts(source):
        return [node for node in ast.walk(_tree(source)) if isinstance(node, ast.Assert)]

    found = asserts(sources[number]) or [a for source in sources[number + 1:number + 2] for a in asserts(source)]
    return any(computed(node.test) for node in found)


# -- the tests

def test_record_is_whole():
    keys = set(bibliography_keys(contents(ROOT / "book/references.bib")))
    assert record_problems(claims(), keys, {chapter.stem for chapter in chapters()}) == []


def test_boxes_agree_with_the_record():
    texts = {c.stem: "\n\n".join(cell["source"] for cell in c.cells("markdown")) for c in chapters()}
    texts |= {path.name: text for path, text in pages().items()}
    assert agreement_problems(claims(), texts) == []


@pytest.mark.parametrize("chapter", chapters(), ids=lambda c: c.stem)
def test_chapter_settles_its_claims(chapter):
    assert chapter_problems(claims(), chapter) == []


# -- each check sees what it is for

def entry(name, chapter="05_sample", verdict="holds", correction=None, **more):
    return {"id": name, "chapter": chapter, "section": "Here", "kind": "formula", "claim": f"What {name} says,\nin words.",
            "verdict": verdict, "correction": correction, **more}


def record():
    whole = [entry(f"{section}-{n:02d}", "40_later", None) for section, count in RECORD.items() for n in range(1, count + 1)]
    mine = [entry("L1.1-01"), entry("L1.1.1-01", verdict="wrong", correction="It is\nnot so."),
            entry("L1.0-01", BACK_MATTER, cite="a1")]
    return mine + [claim for claim in whole if claim["id"] not in {c["id"] for c in mine}]


def changed(index, **changes):
    def change(claims):
        claims[index].update(changes)
    return change


@pytest.mark.parametrize("change, says", [
    (lambda r: r.pop(5), "is missing"),
    (lambda r: r.append(copy.deepcopy(r[0])), "2 times"),
    (changed(0, id="L1.1-09"), "no claim of the notes"),
    (changed(0, verdict="imprecise"), "no verdict"),
    (changed(0, kind="rumour"), "no kind"),
    (changed(0, claim=" "), "states nothing"),
    (changed(0, note="?"), "fields"),
    (changed(0, correction="It is so."), "only where"),
    (changed(1, correction=None), "only where"),
    (changed(0, verdict=None), "not examined"),
    (changed(5, verdict="holds"), "not written"),
    (changed(0, chapter="5"), "no chapter"),
    (changed(0, chapter="05_simple"), "not called"),
    (changed(2, cite=None), "needs a citation"),
    (changed(2, cite="b2"), "bibliography"),
])
def test_a_broken_record_fails(change, says):
    broken = record()
    assert record_problems(broken, {"a1"}, {"05_sample"}) == []
    change(broken)
    assert any(says in problem for problem in record_problems(broken, {"a1"}, {"05_sample"}))


BOX = ":::{claim} L1.1-01 holds\nWhat L1.1-01 says, in\nwords.\n:::"
WRONG_BOX = ":::{claim} L1.1.1-01 wrong\nWhat L1.1.1-01 says, in words.\n\nIt is not so.\n:::"


@pytest.mark.parametrize("text, says", [
    (BOX.replace("01 holds", "01 wrong"), "has the verdicts ['holds', 'wrong']"),
    (BOX.replace("01 holds", "01 not quite"), "is none of"),
    (BOX.replace("01 holds", "1 holds"), "not the id"),
    (BOX.replace("says", "said"), "statement of L1.1-01"),
    (BOX.replace("words.", "words.\n\nAnd more."), "correction of L1.1-01"),
    (WRONG_BOX.replace("not so", "so"), "correction of L1.1.1-01"),
    (WRONG_BOX.replace("\n\nIt is not so.", ""), "correction of L1.1.1-01"),
    (BOX.replace("{claim} L1.1-01", "{claim} L1.1-77"), "no claim of the record"),
    (BOX + "\n\n" + BOX, "two boxes"),
])
def test_a_broken_box_fails(text, says):
    assert agreement_problems(record(), {"here": BOX, "there": WRONG_BOX}) == []
    assert any(says in problem for problem in agreement_problems(record(), {"here": text, "there": BOX}))


SETTLING = ["# settles L1.1-01\nscore = precision(a, b)\nassert score == 1", "# settles L1.1.1-01\ntotal = f(2)",
            "assert total == 3"]


def settling(folder, texts=(BOX, WRONG_BOX), cells=SETTLING):
    cells = [*map(md, texts), *map(code, cells)]
    return Chapter(write_notebook(folder / "nbs/metrics/05_sample.ipynb", cells))


@pytest.mark.parametrize("texts, cells, says", [
    ((BOX,), SETTLING, "L1.1.1-01 is not stated"),
    ((BOX, WRONG_BOX), SETTLING[1:], "no cell settles L1.1-01"),
    ((BOX, WRONG_BOX), [*SETTLING, "# settles L1.1-03\nassert f(1)"], "settled but not stated"),
    ((BOX, WRONG_BOX), [*SETTLING, "# settles this\nassert f(1)"], "no id"),
    ((BOX, WRONG_BOX), [SETTLING[0].replace("assert score == 1", "print(score)"), *SETTLING[1:]], "L1.1-01 asserts nothing"),
    ((BOX, WRONG_BOX), SETTLING[:2], "L1.1.1-01 asserts nothing"),
])
def test_a_chapter_that_settles_nothing_fails(tmp_path, texts, cells, says):
    assert chapter_problems(record(), settling(tmp_path / "sound")) == []
    assert any(says in problem for problem in chapter_problems(record(), settling(tmp_path / "broken", texts, cells)))


@pytest.mark.parametrize("sources, decides", [
    (["assert 8 / (8 + 2) == 0.8"], False),
    (["assert 'spam' == 'spam'"], False),
    (["table = {'a': 1}\nassert table['a'] == 1"], False),
    (["table = {'a': [1, 2]}\nassert len(table['a']) == 2 and max(table['a']) == 2"], False),
    (["rows = [1, 2]\nfor row in rows:\n    assert row > 0"], False),
    (["x = 1", "y = x\nassert y == 1"], False),
    (["print(1)"], False),
    (["hits = 8\nmisses = 2\nassert hits / (hits + misses) == 0.8"], True),
    (["assert precision([1], [1]) == 1"], True),
    (["p = precision([1], [1])", "assert round(p, 2) == 1"], True),
    (["%matplotlib inline\ntable = {'a': score(1)}\nassert table['a'] == 1"], True),
    (["assert all(f(x) > 0 for x in range(3))"], True),
])
def test_what_counts_as_deciding(sources, decides):
    assert computes(sources, len(sources) - 1) is decides
