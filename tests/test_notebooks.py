"""Every chapter has the shape that CONTRIBUTING.md describes. Each check is a function that lists what is wrong."""
import ast
import copy
import json
import re
from collections import Counter
from dataclasses import dataclass

import nbformat
import pytest
from chapters import Chapter, chapters
from reading import (claims, code, contents, directives, facts, markdown, md, pages, picture, prose, ROOT, stream, tags,
                     text_output, toc_files, words, write_notebook)

INSTALL = f"""\
import importlib.util
import os

if importlib.util.find_spec("transformer_course") is None:  # Colab, Binder, an empty environment
    source = os.environ.get("TRANSFORMER_COURSE_SOURCE",
                            "git+{facts()["git_url"]}")
    %pip install -q "transformer_course[pretrained,scale,images] @ {{source}}\""""
TAGS = {"remove-cell", "hide-input", "hide-output", "hide-cell", "remove-input", "remove-output", "nbval-ignore-output"}
SECTIONS = {"a section on a known bug": r"spot the bug", "the exercises": r"^exercises$", "a summary": r"^summary$"}
OPENING = {
    "a question": r"\?",
    "what you will build": r"\bwhat you will (?:build|learn)\b",
    "what you need": r"\bwhat you need\b",
    "which lecture sections it follows": r"\bfollows\b",
    "how long it runs on two CPU cores": r"\bruns\b[^.]*\b\d+\s+(?:seconds?|minutes?)\b[^.]*\btwo (?:CPU )?cores\b",
}
PICTURES = {"image/png", "image/svg+xml", "image/jpeg"}
DEBRIS = re.compile(r"\d+%\||[█▏▎▍▌▋▊▉]|\bit/s\b|\r|\x1b\[|FutureWarning|UserWarning|object at 0x[0-9a-f]+")
RAW_HTML = re.compile(r"<(?:div|span|img|table|details|p|a|b|i|center|font)\b[^>]*>", re.IGNORECASE)
EMOJI = re.compile("[\U0001F000-\U0001FAFF\u2600-\u2604\u2614\u2615\u26A1\u2705\u274C\u2728\u2B50]")
CITE = re.compile(r"\{cite(?::\w+)?\}`([^`]+)`")
TERM = re.compile(r"\{term\}`([^`]+)`")


@dataclass(frozen=True)
class Known:
    """What a chapter may refer to."""
    keys: frozenset  # of the bibliography
    terms: frozenset  # of the glossary, in lower case


def headings(chapter):
    """(level, text) of every heading, in order."""
    text = re.sub(r"^(`{3,}|~{3,}).*?^\1\s*$", "", markdown(chapter), flags=re.MULTILINE | re.DOTALL)
    return [(len(marks), title.strip()) for marks, title in re.findall(r"^(#{1,6})\s+(.*)$", text, re.MULTILINE)]


# -- the checks: each takes a chapter and what it may refer to, and lists what is wrong

def opens_with_the_title(chapter, known):
    cell = chapter.cells()[0]
    if cell["cell_type"] != "markdown" or not re.match(r"# \S", cell["source"]):
        return ["the first cell is not Markdown that begins with `# Title`"]
    return [f"the title cell does not give {what}" for what, form in OPENING.items()
            if not re.search(form, words(cell["source"]), re.IGNORECASE)]


def installs_itself_where_absent(chapter, known):
    cell = chapter.cells()[1]
    bad = []
    if cell["source"].strip() != INSTALL:
        bad.append("the second cell is not the install cell, letter for letter")
    if tags(cell) != ["remove-cell"] or cell["metadata"].get("jupyter") != {"source_hidden": True}:
        bad.append("the install cell is not tagged remove-cell and folded (jupyter.source_hidden)")
    return bad


def exports_to_its_own_module(chapter, known):
    found = [c["source"].strip() for c in chapter.cells("code") if "default_exp" in c["source"]]
    wanted = f"#| default_exp {chapter.part}.{chapter.name}"
    return [] if found == [wanted] else [f"one cell should hold `{wanted}` alone, but there is {found}"]


def figures_are_described(chapter, known):
    bad, names = [], []
    for number, cell in enumerate(chapter.cells()):
        if cell["cell_type"] != "code":
            continue
        drawn = sum(bool(PICTURES & output.get("data", {}).keys()) for output in cell["outputs"])
        about = cell["metadata"].get("mystnb", {})
        figure, alt = about.get("figure", {}), about.get("image", {}).get("alt", "")
        if drawn == 0 and about:
            bad.append(f"cell {number} describes a figure but draws none")
        if drawn == 0:
            continue
        if drawn > 1:
            bad.append(f"cell {number} draws {drawn} figures: one a cell, so that each has its own words")
        if len(alt) < 20 or alt == figure.get("caption"):
            bad.append(f"cell {number}: a figure needs alt text that says what it shows")
        if len(figure.get("caption", "")) < 20:
            bad.append(f"cell {number}: a figure needs a caption that says what to see in it")
        if not re.fullmatch(rf"fig-{chapter.number}-[a-z0-9-]+", figure.get("name", "")):
            bad.append(f"cell {number}: the figure's name should be fig-{chapter.number}-…, not {figure.get('name')!r}")
        if cell["source"].rstrip().splitlines()[-1] != "plt.show()":
            bad.append(f"cell {number}: a figure's cell ends with plt.show()")
        names.append(figure.get("name"))
    bad += [f"two figures are named {name}" for name, n in Counter(names).items() if n > 1]
    text = markdown(chapter)
    bad += ["a picture in the text has no alt text" for alt in re.findall(r"!\[(.*?)\]\(", text) if not alt.strip()]
    bad += [f"{{{d.name}}} {d.argument} has no alt text" for d in directives(text)
            if d.name in ("figure", "image") and not d.options.get("alt")]
    return bad


def outputs_are_clean(chapter, known):
    bad = []
    for number, cell in enumerate(chapter.cells()):
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                bad.append(f"cell {number} ends in {output['ename']}")
            if output.get("name") == "stderr":
                bad.append(f"cell {number} writes to stderr")
        if cell["cell_type"] == "code" and (debris := DEBRIS.search(text_output(cell))):
            bad.append(f"cell {number} leaves {debris[0]!r} in its output")
    return bad


def outputs_are_compared(chapter, known):
    """Only known tags, no way round the comparison, and what is not compared is asserted in the next code cell."""
    bad, cells = [], chapter.cells("code")
    for number, cell in enumerate(cells):
        if unknown := set(tags(cell)) - TAGS:
            bad.append(f"code cell {number} has the tags {sorted(unknown)}")
        if "NBVAL" in cell["source"] or "#| eval" in cell["source"]:
            bad.append(f"code cell {number} escapes the test run")
        if "nbval-ignore-output" in tags(cell) and not ("assert" in cell["source"] or any(
                "assert" in later["source"] for later in cells[number + 1:number + 2])):
            bad.append(f"code cell {number} is not compared, and the next one asserts nothing")
    return bad


def without_docstrings(source):
    """The source without docstrings, which are as long as they need to be; as it is, where it is no plain Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a magic
        return source
    lines = source.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            for at in range(node.body[0].lineno - 1, node.body[0].end_lineno):
                lines[at] = None
    return "\n".join(line for line in lines if line is not None)


def is_one_class(source):
    try:
        return [type(node) for node in ast.parse(source).body] == [ast.ClassDef]
    except SyntaxError:
        return False


def code_fits(chapter, known):
    bad = []
    for number, cell in enumerate(chapter.cells()):
        if cell["cell_type"] != "code":
            continue
        lines = cell["source"].splitlines()
        bad += [f"cell {number} has a line of {len(line)} columns (100 at most)" for line in lines if len(line) > 100]
        short = len(without_docstrings(cell["source"]).splitlines())
        if short > (75 if is_one_class(cell["source"]) else 40):
            bad.append(f"cell {number} has {short} lines without docstrings (40 at most, or 75 where it is one class)")
        if not cell["source"].strip():
            bad.append(f"cell {number} is empty")
        if "from __future__ import annotations" in cell["source"]:
            bad.append(f"cell {number} turns the check of shapes off (from __future__ import annotations)")
    return bad


def headings_descend_by_one(chapter, known):
    levels, bad = headings(chapter), []
    if [title for level, title in levels if level == 1] != [title for _, title in levels[:1]]:
        bad.append("there should be one `# Title`, and it should be first")
    for (above, _), (below, title) in zip(levels, levels[1:]):
        if below > above + 1:
            bad.append(f"the heading {title!r} goes from level {above} to {below}")
    return bad


def sections_are_there(chapter, known):
    titles = [title.lower() for _, title in headings(chapter)]
    bad = [f"there is no heading for {what}" for what, form in SECTIONS.items()
           if not any(re.search(form, title) for title in titles)]
    end = re.split(r"^#+ Summary\s*$", markdown(chapter), flags=re.MULTILINE)[-1]
    if (lines := len(re.findall(r"^- ", end.split("\n#")[0], re.MULTILINE))) != 5:
        bad.append(f"the summary has {lines} lines, each a `- `, not 5")
    if not re.search(r"\bnext\b", end, re.IGNORECASE):
        bad.append("nothing after the summary says what comes next")
    if not re.search(r"\bfurther reading\b", end, re.IGNORECASE) or not CITE.search(end):
        bad.append("nothing after the summary gives further reading, with citations")
    return bad


def exercises_have_solutions(chapter, known):
    bad, listed = [], [d for d in directives(markdown(chapter)) if d.name == "exercise"]
    if not 3 <= len(listed) <= 6:
        bad.append(f"there are {len(listed)} exercises (3 to 6 wanted)")
    for exercise in listed:
        label = exercise.options.get("label", "")
        if not re.fullmatch(rf"ex-{chapter.number}-[a-z0-9-]+", label):
            bad.append(f"an exercise's label should be ex-{chapter.number}-…, not {label!r}")
        if exercise.argument or not exercise.body.startswith("**"):
            bad.append(f"exercise {label}: it should have no title, and its first words should be bold")
    labels = [exercise.options.get("label", "") for exercise in listed]
    solved, open_label = [], None
    for number, cell in enumerate(chapter.cells()):
        found = directives(cell["source"]) if cell["cell_type"] == "markdown" else []
        start = next((d for d in found if d.name == "solution-start"), None)
        if start:
            if open_label:
                bad.append(f"cell {number}: the solution of {open_label} is not ended")
            open_label = start.argument
            solved.append(start.argument)
            if start.options.get("class") != "dropdown":
                bad.append(f"cell {number}: the solution does not fold (`:class: dropdown`)")
        ends = any(d.name == "solution-end" for d in found)
        if open_label and not start and not ends and not cell["metadata"].get("jupyter", {}).get("source_hidden"):
            bad.append(f"cell {number}: a solution's cell is not folded in Jupyter (jupyter.source_hidden)")
        if open_label and cell["cell_type"] == "code" and "hide-cell" not in tags(cell):
            bad.append(f"cell {number}: a solution's code is not tagged hide-cell")
        if ends:
            if not open_label:
                bad.append(f"cell {number} ends a solution that did not start")
            open_label = None
        if any(d.name == "solution" for d in found):
            bad.append(f"cell {number}: write solution-start and solution-end, so that the solution runs")
    if open_label:
        bad.append(f"the solution of {open_label} is not ended")
    if sorted(labels) != sorted(solved):
        bad.append(f"exercises {sorted(labels)} but solutions of {sorted(solved)}")
    return bad


def references_exist(chapter, known):
    text = prose(markdown(chapter))
    bad = [f"{{cite}} of {key.strip()!r}, which is not in book/references.bib" for keys in CITE.findall(text)
           for key in keys.split(",") if key.strip() not in known.keys]
    for term in TERM.findall(text):
        target = re.sub(r"^.*<(.+)>$", r"\1", words(term)).lower()
        if target not in known.terms:
            bad.append(f"{{term}} {target!r} is not in the glossary")
    return bad


def is_plain_markdown(chapter, known):
    """What the translation needs: colon fences, no raw HTML; and no emoji."""
    text = markdown(chapter)
    bad = [f"write {{{name}}} as a colon fence" for name in re.findall(r"^`{3,}\{([\w:-]+)\}", text, re.MULTILINE)]
    bad += [f"raw HTML: {tag}" for tag in RAW_HTML.findall(prose(text))]
    everything = text + "".join(cell["source"] for cell in chapter.cells("code"))
    return bad + [f"an emoji: {sign}" for sign in EMOJI.findall(everything)]


def is_a_notebook(chapter, known):
    bad = []
    try:
        notebook = nbformat.read(chapter.path, as_version=nbformat.NO_CONVERT)
        nbformat.validate(notebook)
    except Exception as error:  # whatever nbformat says, in its first line
        return [f"not a valid notebook: {str(error).splitlines()[0]}"]
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        bad.append("the kernel should be python3")
    for number, cell in enumerate(chapter.cells("code")):
        lines = [re.sub(r"^(\s*)[%!].*", r"\1pass", line) for line in cell["source"].splitlines()]
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            bad.append(f"code cell {number} is not Python: {error.msg}")
    return bad


CHECKS = [is_a_notebook, opens_with_the_title, installs_itself_where_absent, exports_to_its_own_module,
          figures_are_described, outputs_are_clean, outputs_are_compared, code_fits, headings_descend_by_one,
          sections_are_there, exercises_have_solutions, references_exist, is_plain_markdown]


# -- what the whole course offers for reference

def bibliography_keys(text):
    """The keys of a BibTeX file, in order."""
    return re.findall(r"^@(?!comment|string|preamble)\w+\s*\{\s*([^\s,]+)\s*,", text, re.MULTILINE | re.IGNORECASE)


def glossary_terms(texts):
    """The terms that the pages' glossaries define, in lower case."""
    return {words(line).lower() for text in texts for d in directives(text) if d.name == "glossary"
            for line in d.body.splitlines() if line and not line[0].isspace() and not line.startswith(":")}


def cited(texts):
    """Every bibliography key that the texts cite."""
    return {key.strip() for text in texts for keys in CITE.findall(prose(text)) for key in keys.split(",")}


def bibliography_problems(bib, texts, named=()):
    """Keys given twice, entries that nothing cites, citations of nothing."""
    keys = bibliography_keys(bib)
    used = cited(texts) | set(named)
    return ([f"{key} is there twice" for key, n in Counter(keys).items() if n > 1]
            + [f"nothing cites {key}" for key in sorted(set(keys) - used)]
            + [f"{key} is cited but not there" for key in sorted(used - set(keys))])


def toc_problems(listed, stems):
    """Chapters that the table of contents leaves out, lists twice, or lists though they are not there."""
    listed = [name for name in listed if name.startswith("nbs/")]
    return ([f"{name} is not in _toc.yml" for name in sorted(set(stems) - set(listed))]
            + [f"{name} in _toc.yml is not there" for name in sorted(set(listed) - set(stems))]
            + [f"{name} is in _toc.yml twice" for name, n in Counter(listed).items() if n > 1]
            + ([] if listed == sorted(listed, key=lambda n: n.rsplit("/", 1)[1]) else ["the chapters in _toc.yml are out of order"]))


def stated_seconds(chapter):
    """How long the title cell says that the chapter runs, or None."""
    found = re.search(r"\bruns\b[^.]*?\b(\d+)\s+(second|minute)", words(chapter.cells()[0]["source"]), re.IGNORECASE)
    return found and int(found[1]) * (60 if found[2].lower() == "minute" else 1)


def runtime_problems(measured, stated):
    """`measured`: chapters of runtimes.json; `stated`: {stem: seconds}. Chapters not measured, too slow, too large, or that say otherwise."""
    bad = [f"{stem} is not measured: make run CHAPTER={stem[:2]}" for stem in sorted(stated.keys() - measured.keys())]
    bad += [f"{stem} is measured, but not there" for stem in sorted(measured.keys() - stated.keys())]
    for stem in sorted(measured.keys() & stated.keys()):
        seconds, megabytes = measured[stem]["seconds"], measured[stem]["megabytes"]
        if seconds > 90 or megabytes > 2048:
            bad.append(f"{stem} takes {seconds} s and {megabytes} MB (90 and 2048 at most)")
        if stated[stem] and not stated[stem] / 3 - 5 <= seconds <= 1.5 * stated[stem] + 2:
            bad.append(f"{stem} says that it runs {stated[stem]} s, and ran {seconds} s")
    return bad


def known_of_the_course():
    return Known(frozenset(bibliography_keys(contents(ROOT / "book/references.bib"))),
                 frozenset(glossary_terms(pages().values())))


def course_texts():
    return [*pages().values(), *map(markdown, chapters())]


# -- the tests

@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("chapter", chapters(), ids=lambda c: c.stem)
def test_chapter(chapter, check):
    assert check(chapter, known_of_the_course()) == []


def test_chapters_run_as_long_as_they_say():
    measured = json.loads(contents(ROOT / "book/_data/runtimes.json"))["chapters"]
    assert runtime_problems(measured, {chapter.stem: stated_seconds(chapter) for chapter in chapters()}) == []


def test_figures_have_different_names_everywhere():
    names = [cell["metadata"].get("mystnb", {}).get("figure", {}).get("name")
             for chapter in chapters() for cell in chapter.cells("code")]
    assert [name for name, n in Counter(filter(None, names)).items() if n > 1] == []


def test_cell_ids_differ():
    for chapter in chapters():
        ids = [cell.get("id") for cell in chapter.cells()]
        assert None not in ids and len(set(ids)) == len(ids), chapter.stem


def test_table_of_contents_lists_every_chapter_once():
    assert toc_problems(toc_files(), [chapter.docname for chapter in chapters()]) == []


def test_bibliography_is_what_the_course_cites():
    named = {key.strip() for claim in claims() if claim.get("cite") for key in claim["cite"].split(",")}
    texts = [*course_texts(), *(text for claim in claims() for text in (claim["claim"], claim.get("correction") or ""))]
    assert bibliography_problems(contents(ROOT / "book/references.bib"), texts, named) == []


def test_glossary_terms_are_used_with_their_own_spelling():
    known = known_of_the_course()
    bad = [term for text in pages().values() for term in TERM.findall(prose(text))
           if re.sub(r"^.*<(.+)>$", r"\1", words(term)).lower() not in known.terms]
    assert bad == []


# -- each check sees what it is for: a chapter with nothing wrong, broken in one place

KNOWN = Known(frozenset({"shannon1948mathematical"}), frozenset({"token", "confusion matrix"}))
FIGURE = {"image": {"alt": "Two bars, the left one twice as high."}, "figure": {"caption": "The left bar is the higher one.", "name": "fig-05-bars"}}
TITLE = """\
# A chapter

**How good is it?**

*What you will build*: a thing. *What you need*: no more.

*Follows*: lecture 1, §1. *Runs* in about 5 seconds on two CPU cores."""
SUMMARY = """\
## Summary

- One.
- Two.
- Three.
- Four.
- Five.

*Next*: more.

*Further reading*: {cite:t}`shannon1948mathematical`."""
FOLDED = {"source_hidden": True}


def sound_cells():
    cells = [md(TITLE), code(INSTALL, tags=["remove-cell"], jupyter=FOLDED), code("#| default_exp metrics.sample"),
             md("## Idea\n\nA {term}`confusion matrix` {cite}`shannon1948mathematical`, with `code` in it.\n\n### Detail\n\n```text\n# no heading\n```"),
             code("print(1)", [stream("1\n")]), code("plt.show()", [picture()], mystnb=FIGURE, tags=["hide-input"]),
             code("print(time)", [stream("0.3 s\n")], tags=["nbval-ignore-output"]), code("assert time < 1"),
             md("## Spot the bug\n\nThere."), md("## Exercises")]
    for name in "abc":
        cells += [md(f":::{{exercise}}\n:label: ex-05-{name}\n**Recall.** What?\n:::"),
                  md(f":::{{solution-start}} ex-05-{name}\n:class: dropdown\n:::"),
                  code("x = 1", tags=["hide-cell"], jupyter=FOLDED), md(":::{solution-end}\n:::")]
    cells += [md(SUMMARY)]
    return [cell | {"id": f"cell-{i}"} for i, cell in enumerate(cells)]


def sample(folder, edit=None):
    cells = copy.deepcopy(sound_cells())
    if edit:
        edit(cells)
    return Chapter(write_notebook(folder / "nbs/metrics/05_sample.ipynb", cells))


def text(at, old, new):
    """Replace text in one cell; the text must be there."""
    def edit(cells):
        assert old in cells[at]["source"]
        cells[at]["source"] = cells[at]["source"].replace(old, new)
    return edit


def meta(at, **metadata):
    return lambda cells: cells[at]["metadata"].update(metadata)


def output(at, *outputs):
    return lambda cells: cells[at].update(outputs=list(outputs))


def drop(at):
    return lambda cells: cells.pop(at)


def figure(**changes):
    def edit(cells):
        cells[5]["metadata"]["mystnb"]["figure"].update(changes)
    return edit


BROKEN = [
    (is_a_notebook, text(4, "print(1)", "print(1"), "not Python"),
    (is_a_notebook, output(4, {"output_type": "stream"}), "not a valid notebook"),
    (opens_with_the_title, text(0, "# A", "## A"), "first cell"),
    (opens_with_the_title, text(0, "?", "."), "question"),
    (opens_with_the_title, text(0, "What you will build", "It holds"), "what you will build"),
    (opens_with_the_title, text(0, "What you need", "It needs"), "what you need"),
    (opens_with_the_title, text(0, "Follows", "Source"), "lecture"),
    (opens_with_the_title, text(0, " on two CPU cores", ""), "how long"),
    (opens_with_the_title, text(0, "5 seconds", "a while"), "how long"),
    (installs_itself_where_absent, text(1, "-q", "-U"), "letter for letter"),
    (installs_itself_where_absent, meta(1, tags=[]), "tagged"),
    (installs_itself_where_absent, meta(1, jupyter={}), "folded"),
    (installs_itself_where_absent, drop(1), "second cell"),
    (exports_to_its_own_module, text(2, "metrics.sample", "metrics.other"), "alone"),
    (exports_to_its_own_module, text(2, "metrics.sample", "metrics.sample\nimport os"), "alone"),
    (exports_to_its_own_module, drop(2), "alone"),
    (figures_are_described, meta(5, mystnb={}), "alt text"),
    (figures_are_described, meta(5, mystnb={"figure": FIGURE["figure"]}), "alt text"),
    (figures_are_described, figure(caption=FIGURE["image"]["alt"]), "alt text"),
    (figures_are_described, figure(caption=""), "caption"),
    (figures_are_described, figure(name="fig-06-bars"), "name"),
    (figures_are_described, output(5, picture(), picture()), "draws 2"),
    (figures_are_described, output(5), "draws none"),
    (figures_are_described, text(5, "plt.show()", "plot()"), "ends with plt.show()"),
    (figures_are_described, lambda cells: cells.insert(6, dict(cells[5], id="twin")), "two figures"),
    (figures_are_described, text(3, "with `code`", "![](bars.png)"), "no alt text"),
    (figures_are_described, text(3, "### Detail", ":::{figure} bars.png\nWords\n:::\n\n### Detail"), "no alt text"),
    (outputs_are_clean, output(4, stream("warning", "stderr")), "stderr"),
    (outputs_are_clean, output(4, {"output_type": "error", "ename": "ValueError", "evalue": "", "traceback": []}), "ValueError"),
    (outputs_are_clean, output(4, stream(" 40%|####      | 4/10 [00:01, 3.1it/s]")), "40%|"),
    (outputs_are_clean, output(4, stream("<Thing object at 0x7f3a12>")), "object at"),
    (outputs_are_compared, meta(4, tags=["nbval-skip"]), "nbval-skip"),
    (outputs_are_compared, meta(4, tags=["raises-exception"]), "raises-exception"),
    (outputs_are_compared, text(4, "print(1)", "# NBVAL_IGNORE_OUTPUT\nprint(1)"), "escapes"),
    (outputs_are_compared, text(7, "assert time", "print(time)"), "asserts nothing"),
    (code_fits, text(4, "print(1)", "x = " + "1 + " * 30 + "1"), "columns"),
    (code_fits, text(4, "print(1)", "print(1)\n" * 41), "41 lines"),
    (code_fits, text(4, "print(1)", "class A:\n" + "    x = 1\n" * 75), "76 lines"),
    (code_fits, text(4, "print(1)", "\n"), "empty"),
    (code_fits, text(4, "print(1)", "from __future__ import annotations"), "shapes"),
    (headings_descend_by_one, text(3, "### Detail", "#### Detail"), "from level 2 to 4"),
    (headings_descend_by_one, text(3, "## Idea", "# Idea"), "one `# Title`"),
    (sections_are_there, text(8, "Spot the bug", "Bugs"), "bug"),
    (sections_are_there, text(9, "Exercises", "Tasks"), "exercises"),
    (sections_are_there, text(22, "Summary", "End"), "summary"),
    (sections_are_there, text(22, "- Five.\n", ""), "4 lines"),
    (sections_are_there, text(22, "Further reading", "Books"), "further reading"),
    (sections_are_there, text(22, "{cite:t}`shannon1948mathematical`", "books"), "further reading"),
    (sections_are_there, text(22, "*Next*", "*Then*"), "what comes next"),
    (exercises_have_solutions, lambda cells: cells.__delitem__(slice(10, 14)), "2 exercises"),
    (exercises_have_solutions, text(10, "ex-05-a", "ex-06-a"), "label should be"),
    (exercises_have_solutions, text(10, "{exercise}", "{exercise} Title"), "no title"),
    (exercises_have_solutions, text(10, "**Recall.**", "Recall."), "bold"),
    (exercises_have_solutions, text(11, "ex-05-a", "ex-05-z"), "but solutions of"),
    (exercises_have_solutions, text(11, ":class: dropdown\n", ""), "fold"),
    (exercises_have_solutions, meta(12, tags=[]), "hide-cell"),
    (exercises_have_solutions, meta(12, jupyter={}), "folded in Jupyter"),
    (exercises_have_solutions, lambda cells: cells.insert(12, md("Why.")), "folded in Jupyter"),
    (exercises_have_solutions, drop(13), "not ended"),
    (exercises_have_solutions, drop(21), "not ended"),
    (exercises_have_solutions, drop(11), "did not start"),
    (exercises_have_solutions, text(11, "solution-start", "solution"), "write solution-start"),
    (references_exist, text(3, "shannon1948mathematical", "shannon1948mathematical,nobody1900nothing"), "nobody1900nothing"),
    (references_exist, text(3, "{term}`confusion matrix`", "{term}`that <confusion table>`"), "confusion table"),
    (is_plain_markdown, text(3, "### Detail", "```{note}\nx\n```"), "colon fence"),
    (is_plain_markdown, text(3, "### Detail", "<div class='x'>"), "raw HTML"),
    (is_plain_markdown, text(8, "There.", "There \U0001F680"), "emoji"),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_a_sound_chapter_passes(tmp_path, check):
    assert check(sample(tmp_path), KNOWN) == []


@pytest.mark.parametrize("check, edit, says", BROKEN, ids=[f"{c.__name__}-{i}" for i, (c, _, _) in enumerate(BROKEN)])
def test_a_broken_chapter_fails(tmp_path, check, edit, says):
    assert any(says in problem for problem in check(sample(tmp_path, edit), KNOWN))


def test_every_check_is_shown_to_fail():
    assert {check for check, _, _ in BROKEN} == set(CHECKS)


@pytest.mark.parametrize("bib, texts, says", [
    ("@book{a1,\n}", ["no citation"], "nothing cites a1"),
    ("@book{a1,\n}\n@book{a1,\n}", ["{cite}`a1`"], "twice"),
    ("@book{a1,\n}", ["{cite:t}`a1, b2`"], "b2 is cited"),
])
def test_a_broken_bibliography_fails(bib, texts, says):
    assert bibliography_problems("@book{a1,\n}", ["{cite:p}`a1`"]) == []
    assert any(says in problem for problem in bibliography_problems(bib, texts))


@pytest.mark.parametrize("seconds, megabytes, says", [(95, 100, "at most"), (5, 3000, "at most"), (40, 100, "says that"), (None, None, "not measured")])
def test_a_chapter_that_takes_too_long_fails(tmp_path, seconds, megabytes, says):
    stated = {"05_sample": stated_seconds(sample(tmp_path))}
    assert stated == {"05_sample": 5}
    assert runtime_problems({"05_sample": {"seconds": 3.5, "megabytes": 117}}, stated) == []
    measured = {"05_sample": {"seconds": seconds, "megabytes": megabytes}} if seconds else {}
    assert any(says in problem for problem in runtime_problems(measured, stated))
    assert runtime_problems({"05_sample": {"seconds": 3, "megabytes": 9}, "06_gone": {}}, stated) == ["06_gone is measured, but not there"]


@pytest.mark.parametrize("listed", [["nbs/a/01_x"], ["nbs/a/01_x", "nbs/b/02_y", "nbs/c/03_z"],
                                    ["nbs/b/02_y", "nbs/a/01_x"], ["nbs/a/01_x", "nbs/a/01_x", "nbs/b/02_y"]])
def test_a_broken_table_of_contents_fails(listed):
    stems = ["nbs/a/01_x", "nbs/b/02_y"]
    assert toc_problems(["book/home", *stems], stems) == []
    assert toc_problems(listed, stems)


def test_the_glossary_is_read():
    assert glossary_terms([":::{glossary}\nBigram\nTwo-gram\n  Two words.\n\nToken\n  A piece.\n:::"]) == {"bigram", "two-gram", "token"}
