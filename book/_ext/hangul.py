"""Sphinx extension: Korean text is set in the course's own font, and marked as Korean for screen readers.

The font is the one that the figures use. It is packed at build time (about half the size), and a page that has no Hangul does not load it.
"""
import re
from pathlib import Path

from fontTools.ttLib import TTFont

FONT = "transformer_course/toolbox/fonts/CourseHangul.ttf"
HANGUL = "[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]+"
RUN = re.compile(f"{HANGUL}(?:[ ,.·]+{HANGUL})*")
# Tags, and elements whose text must stay as it is: code (the reader copies it), scripts, drawings, formulas.
SKIP = re.compile(r"(<(?:pre|script|style|svg|title)\b.*?</(?:pre|script|style|svg|title)>|<div class=\"math.*?</div>|<[^>]*>)", re.DOTALL)


def mark(html):
    """Put `<span lang="ko">` around runs of Hangul in the text of `html`."""
    parts = SKIP.split(html)
    return "".join(part if index % 2 else RUN.sub(lambda run: f'<span lang="ko">{run[0]}</span>', part)
                   for index, part in enumerate(parts))


def _mark_page(app, pagename, templatename, context, doctree):
    if "body" in context and app.config.language != "ko":
        context["body"] = mark(context["body"])


def _pack_font(app, error):
    if error or app.builder.format != "html":
        return
    font = TTFont(Path(app.srcdir) / FONT)
    font.flavor = "woff"
    target = Path(app.outdir) / "_static/fonts"
    target.mkdir(parents=True, exist_ok=True)
    font.save(target / "CourseHangul.woff")


def setup(app):
    app.connect("html-page-context", _mark_page)
    app.connect("build-finished", _pack_font)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
