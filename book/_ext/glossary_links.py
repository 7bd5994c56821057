"""Sphinx extension: in each chapter, the first mention of a glossary term links to its entry, where the author has not linked it already."""
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

# Words that also have an everyday meaning: they are linked only where the author says so, with {term}.
EVERYDAY = {"agreement", "attention", "baseline", "clipping", "device", "generation", "head", "hypothesis", "mask", "parameter", "particle",
            "precision", "recall", "reference", "reproducible", "schedule", "seed", "support", "token"}
PLAIN_IN = {"nbs/metrics/": {"hypothesis", "precision", "recall", "reference", "token"}}  # chapters in which some of them mean the term
# A term is not looked for in these.
OUTSIDE = (nodes.title, nodes.reference, nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw, nodes.caption, nodes.table,
           nodes.comment, addnodes.pending_xref)


def terms(srcdir):
    """The terms of book/glossary.md, as they are written there."""
    text = (Path(srcdir) / "book/glossary.md").read_text(encoding="utf-8")
    body = re.search(r"^```\{glossary\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
    return [line.strip() for line in body.splitlines() if line and not line[0].isspace()]


def pattern(names):
    """Matches any of the names as whole words, in any case where they are words, with a plural s."""
    listed = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"(?<![\w-])({listed})(e?s)?(?![\w-])", re.IGNORECASE)


class LinkTerms(SphinxTransform):
    default_priority = 600

    def apply(self, **kwargs):
        if not self.env.docname.startswith("nbs/"):
            return
        skip = EVERYDAY.difference(*(plain for start, plain in PLAIN_IN.items() if self.env.docname.startswith(start)))
        names = {name.lower(): name for name in terms(self.env.srcdir) if name.isascii() and name.lower() not in skip}
        seen = {xref["reftarget"].lower() for xref in self.document.findall(addnodes.pending_xref) if xref.get("reftype") == "term"}
        find = pattern(names)
        for text in list(self.document.findall(nodes.Text)):
            if not self._inside(text):
                parts = self._split(text.astext(), find, names, seen)
                if len(parts) > 1:
                    text.parent.replace(text, parts)

    @staticmethod
    def _inside(node):
        while node is not None:
            if isinstance(node, OUTSIDE) or "claim" in getattr(node, "attributes", {}).get("classes", []):
                return True
            node = node.parent
        return False

    def _split(self, text, find, names, seen):
        parts, end = [], 0
        for found in find.finditer(text):
            name = found[1].lower()
            if name in seen or name.upper() == names[name] and found[1] != names[name]:  # AER is a term, aer is not
                continue
            seen.add(name)
            link = addnodes.pending_xref("", nodes.inline("", found[0], classes=["xref", "std", "std-term"]), refdomain="std", reftype="term",
                                         reftarget=names[name], refexplicit=True, refdoc=self.env.docname, refwarn=True)
            parts += [nodes.Text(text[end:found.start()]), link]
            end = found.end()
        return parts + [nodes.Text(text[end:])]


def setup(app):
    app.add_transform(LinkTerms)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
