"""Sphinx extension: a chapter carries its notebook's number: its title (5. Scoring a classifier), figures, equations, exercises (Figure 5.2)."""
from docutils import nodes
from sphinx.transforms import SphinxTransform


def number(docname):
    """5 for 'nbs/metrics/05_classification', None for a page that is no chapter."""
    digits = docname.rsplit("/", 1)[-1].split("_")[0]
    return int(digits) if docname.startswith("nbs/") and digits.isdigit() else None


class NumberedTitle(SphinxTransform):
    default_priority = 300  # after translation

    def apply(self, **kwargs):
        chapter = number(self.env.docname)
        title = next(self.document.findall(nodes.title), None)
        if chapter is not None and title is not None:
            title.insert(0, nodes.Text(f"{chapter}. "))


def _number_figures(app, env):
    """Count figures, equations and exercises within each chapter; elsewhere they carry no chapter's number."""
    for docname, kinds in env.toc_fignumbers.items():
        chapter = number(docname)
        for found in kinds.values():
            for count, identifier in enumerate(sorted(found, key=found.get), start=1):
                found[identifier] = (count,) if chapter is None else (chapter, count)
    return []


def setup(app):
    app.add_transform(NumberedTitle)
    app.connect("env-get-updated", _number_figures, priority=900)  # after Sphinx has counted over all pages
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
