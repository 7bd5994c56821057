"""Sphinx extension: the page around the text. Links under a chapter's title run it elsewhere or download it; the markup is made accessible."""
import re
from html import escape

from chapter_numbers import number

TEXTS = {"Binder": "Open in Binder", "Colab": "Open in Colab", "download-source-button": "Download the notebook",
         "source-edit-button": "Suggest an edit"}
# Sphinx lists the arguments of a long signature in a <dl> that has no <dt>; Markdown has no empty corner for a table, only an empty heading.
SIGNATURE = re.compile(r"<dl>\s*((?:<dd>.*?</dd>\s*)+)</dl>", re.DOTALL)
CORNER = re.compile(r'<th class="head">(?:<p></p>)?</th>')


def links(buttons):
    """(text, address) of each link, from the buttons that the theme has made for the page's top bar."""
    found = {}
    for button in (button for group in buttons for button in group.get("buttons", [])):
        for key in (button.get("text"), button.get("label")):
            if key in TEXTS:
                found[key] = button["url"]
    return [(TEXTS[key], found[key]) for key in TEXTS if key in found]


def run_links(buttons):
    items = (f'<li><a href="{escape(url)}"{" download" if "Download" in text else ""}>{text}</a></li>' for text, url in links(buttons))
    return f'<ul class="chapter-run" aria-label="Run this chapter">{"".join(items)}</ul>'


def accessible(body):
    """Repair what screen readers stumble over."""
    body = SIGNATURE.sub(lambda dl: '<div class="sig-list">' + dl[1].replace("<dd>", '<div class="sig-item">').replace("</dd>", "</div>") + "</div>", body)
    return CORNER.sub("<td></td>", body).replace('role="doc-biblioentry"', 'role="listitem"')


def _change(app, pagename, templatename, context, doctree):
    if "body" not in context:
        return
    context["body"] = accessible(context["body"])
    if number(pagename) is not None:
        context["body"] = context["body"].replace("</h1>", "</h1>\n" + run_links(context.get("header_buttons", [])), 1)


def setup(app):
    app.connect("html-page-context", _change, priority=950)  # after the theme has made its buttons
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
