"""Sphinx extension: the map of the parts, `{course-map}`, and the list of them, `{course-parts}`, both from book/parts.yml.

The map is an SVG that stands in the page itself, so that it takes the colours of the light and of the dark theme.
"""
import sys
from html import escape
from pathlib import Path

import yaml
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from chapters import chapters  # noqa: E402

BOX, GAP, WIDTH = 46, 22, 360


def load(srcdir):
    """The parts, each with the chapters that are written."""
    parts = yaml.safe_load((Path(srcdir) / "book/parts.yml").read_text(encoding="utf-8"))
    for part in parts:
        part["written"] = [c for c in chapters() if c.part == part["name"]]
    return parts


def rows(parts):
    """Parts that need the same ones stand side by side, as a row."""
    found = {}
    for part in parts:
        found.setdefault(tuple(part["needs"]), []).append(part)
    return list(found.values())


def place(parts):
    """{number: (x, y, width)} of each part's box."""
    boxes = {}
    for row_number, row in enumerate(rows(parts)):
        width = (WIDTH - 2 - (len(row) - 1) * 16) / len(row)
        for column, part in enumerate(row):
            boxes[part["number"]] = (1 + column * (width + 16), 1 + row_number * (BOX + GAP), width)
    return boxes


def describe(parts):
    """The map in words, for readers who cannot see it."""
    written = [str(p["number"]) for p in parts if p["written"]]
    uses = "; ".join(f"part {p['number']}, {p['title']}, builds on {' and '.join(map(str, p['needs']))}" for p in parts if p["needs"])
    others = "" if len(written) == len(parts) else f" Written: {', '.join(written)}; the others are in preparation."
    return f"Map of the parts.{others} From the top: part 0, {parts[0]['title']}; {uses}."


def draw(parts):
    """The map as SVG."""
    boxes = place(parts)
    height = max(y for _, y, _ in boxes.values()) + BOX + 1
    out = [f'<svg class="course-map" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(describe(parts))}" '
           'xmlns="http://www.w3.org/2000/svg">']
    for part in parts:
        x, y, width = boxes[part["number"]]
        for need in part["needs"]:
            nx, ny, nwidth = boxes[need]
            start, end = nx + nwidth / 2, x + width / 2
            if nwidth > width:  # straight down from a wide box
                start = end
            elif nwidth < width:
                end = start
            out.append(f'<path class="arrow" d="M{start:g} {ny + BOX:g}V{y - 6:g}m-4 -5l4 5l4 -5"/>')
    for part in parts:
        x, y, width = boxes[part["number"]]
        state = "written" if part["written"] else "planned"
        out.append(f'<g class="{state}"><rect x="{x:g}" y="{y:g}" width="{width:g}" height="{BOX}" rx="6"/>'
                   f'<text x="{x + width / 2:g}" y="{y + 20:g}">{part["number"]} · {escape(part["title"])}</text>'
                   f'<text class="detail" x="{x + width / 2:g}" y="{y + 36:g}">'
                   f'{part["chapters"]}{"" if part["written"] else " · in preparation"}</text></g>')
    return "".join(out) + "</svg>"


class CourseMap(SphinxDirective):
    has_content = True  # the caption

    def run(self):
        self.env.note_dependency("book/parts.yml")
        box = nodes.container("", nodes.raw("", draw(load(self.env.srcdir)), format="html"), classes=["course-map-box"])
        self.state.nested_parse(self.content, self.content_offset, box)
        return [box]


class CourseParts(SphinxDirective):
    """A list of all parts: links to the chapters that are written, and what is to come in the others."""
    def run(self):
        self.env.note_dependency("book/parts.yml")
        lines = []
        for part in load(self.env.srcdir):
            lines += [f"Part {part['number']}. {part['title']}", f": {part['tells']}" + ("" if part["written"] else " *In preparation.*"), ""]
            if part["written"]:
                lines += ["  " + " · ".join(f"{{doc}}`/{chapter.docname}`" for chapter in part["written"]), ""]
        holder = nodes.container()
        self.state.nested_parse(StringList(lines, "parts.yml"), 0, holder)
        return holder.children


def setup(app):
    app.add_directive("course-map", CourseMap)
    app.add_directive("course-parts", CourseParts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
