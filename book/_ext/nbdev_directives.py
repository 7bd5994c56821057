"""Sphinx extension: show notebooks as pages, not as source.

nbdev's `#|` lines become MyST-NB cell tags; hidden cells leave the page; the install cell too. A worked solution
between `solution-start` and `solution-end` is folded once, by that pair, although its cells are folded in Jupyter as well.
The notebook on disk stays as it is; only the text that MyST-NB reads is changed.
"""
import json
import re

_DIRECTIVE = re.compile(r"^\s*#\s*\|\s*(?P<name>[\w-]+)\s*:?\s*(?P<value>.*?)\s*$")
_REMOVE_CELL = {"default_exp", "hide", "exporti"}
_EXPORT = {"export", "exports"}


def _split(source):
    """Return the cell's directives and its source without their lines."""
    names, kept = {}, []
    for line in source.splitlines(keepends=True):
        found = _DIRECTIVE.match(line)
        if found:
            names[found["name"]] = found["value"].lower()
        else:
            kept.append(line)
    return names, "".join(kept).lstrip("\n")


def _tags(names, body):
    if _REMOVE_CELL & names.keys() or names.get("include") == "false" or not body.strip():
        return ["remove-cell"]
    tags = []
    if names.get("echo") == "false" or "hide_input" in names:
        tags.append("remove-input")
    if names.get("output") == "false" or "hide_output" in names:
        tags.append("remove-output")
    if names.get("code-fold") in ("true", "show"):
        tags.append("hide-input")
    if _EXPORT & names.keys():
        tags.append("exported")
    return tags


def clean_notebook(text):
    """Return the notebook `text` with directives turned into MyST-NB cell tags."""
    notebook = json.loads(text)
    in_solution = False
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            if "{solution-start}" in source:
                in_solution = True
            if "{solution-end}" in source:
                in_solution = False
            continue
        if cell["cell_type"] != "code":
            continue
        tags = cell["metadata"].setdefault("tags", [])
        if in_solution and "hide-cell" in tags:
            tags.remove("hide-cell")
        names, body = _split(source)
        if names:
            cell["source"] = body
            tags += [tag for tag in _tags(names, body) if tag not in tags]
    return json.dumps(notebook)


def _source_read(app, docname, source):
    if app.env.doc2path(docname).endswith(".ipynb"):
        source[0] = clean_notebook(source[0])


def setup(app):
    app.connect("source-read", _source_read)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
