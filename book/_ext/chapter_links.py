"""Sphinx extension: each exported name leads to the chapter that defines it, and back.

Under an exported cell stands a link to each name's entry in the API reference; under a name's docstring
in the reference stands a link to its cell. The reference itself is made by `{api-part} metrics`.
"""
import ast
import importlib
import sys
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from chapters import chapters  # noqa: E402
from nbdev_directives import _EXPORT, _split  # noqa: E402

PACKAGE = "transformer_course"
# Modules that are written by hand, with no chapter of their own.
BY_HAND = {"toolbox": ["exercises"]}


def defined_names(source):
    """Public classes, functions and constants defined at the top level of a cell, as (kind, name)."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a cell with a magic command exports nothing
        return []
    found = []
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.append(("class" if isinstance(node, ast.ClassDef) else "func", node.name))
    return [(kind, name) for kind, name in found if not name.startswith("_")]


def exported():
    """{'transformer_course.metrics.classification.accuracy': docname} for every exported definition."""
    found = {}
    for chapter in chapters():
        for cell in chapter.cells("code"):
            directives, body = _split(cell["source"])
            if _EXPORT & directives.keys():
                module = directives[next(iter(_EXPORT & directives.keys()))] or f"{chapter.part}.{chapter.name}"
                if "._" in module:  # private: not in the reference
                    continue
                for _, name in defined_names(body):
                    found[f"{PACKAGE}.{module}.{name}"] = chapter.docname
    return found


def full_name(exported_names, name):
    """The name with its module: 'transformer_course.metrics.accuracy' is also known without the module in between."""
    part, _, last = name.removeprefix(f"{PACKAGE}.").rpartition(".")
    matches = [full for full in exported_names if full == name or (
        full.endswith("." + last) and full.removeprefix(f"{PACKAGE}.").startswith(part.split(".")[0] + "."))]
    return name if name in matches else next(iter(matches), None)


def anchor(name):
    return "def-" + name.removeprefix(f"{PACKAGE}.").replace(".", "-").replace("_", "-").lower()


def _add_origin(app, what, name, obj, options, lines):
    if name in app.config._exported:
        lines += ["", f":ref:`Defined and explained in its chapter <{anchor(name)}>`", ""]


def _mark_cells(app, doctree):
    """Put ids on exported cells and, under each, links to the API reference."""
    docname = app.env.docname
    names = {full.rsplit(".", 1)[1]: full for full, where in app.config._exported.items() if where == docname}
    labels = app.env.get_domain("std")
    for cell in list(doctree.findall(nodes.container)):
        if "tag_exported" not in cell.get("classes", []):
            continue
        code = next(cell.findall(nodes.literal_block), None)
        defined = [(kind, name) for kind, name in defined_names(code.astext()) if name in names] if code else []
        links = nodes.paragraph("", "API: ", classes=["api-links"])
        for number, (kind, name) in enumerate(defined):
            full = names[name]
            if anchor(full) in labels.labels:  # a second definition, with @overload or a later patch
                continue
            cell["ids"].append(anchor(full))
            labels.note_hyperlink_target(anchor(full), docname, anchor(full), name)
            links += [nodes.Text(", " if number else ""),
                      addnodes.pending_xref("", nodes.literal("", name, classes=["xref"]), refdomain="py", reftype=kind,
                                            reftarget=full, refexplicit=True, refdoc=docname, refwarn=True)]
        if len(links) > 1:
            cell.parent.insert(cell.parent.index(cell) + 1, links)


class ApiPart(SphinxDirective):
    """The reference of one part: each of its modules under the title of the chapter that it comes from."""
    required_arguments = 1

    def run(self):
        part, lines = self.arguments[0], []
        public = set(exported().values())       # a chapter may export nothing that is for users
        modules = [(c.name, c.docname) for c in chapters() if c.part == part and c.docname in public]
        for name, docname in modules + [(name, None) for name in BY_HAND.get(part, [])]:
            full = f"{PACKAGE}.{part}.{name}"
            importlib.import_module(full)  # a clear traceback here, rather than a warning from autodoc
            lines += [f"## {part}.{name}", ""]
            if docname:
                lines += [f"From the chapter {{doc}}`/{docname}`.", ""]
            lines += ["```{eval-rst}", f".. automodule:: {full}", "   :members:",
                      "   :inherited-members: Module, Sequence, tuple, dict, ValueError, object", "```", ""]
        holder = nodes.section()
        self.state.nested_parse(StringList(lines, f"api/{part}"), self.content_offset, holder, match_titles=True)
        return holder.children


def _start(app, config):
    config._exported = exported()


def setup(app):
    app.add_directive("api-part", ApiPart)
    app.connect("config-inited", _start)
    app.connect("autodoc-process-docstring", _add_origin)
    app.connect("doctree-read", _mark_cells)
    return {"version": "2", "parallel_read_safe": False, "parallel_write_safe": False}
