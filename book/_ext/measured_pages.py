"""Sphinx extension: what was measured, as tables and numbers: parity with reference libraries, run times, sizes.

    ```{parity-table}          book/_data/parity.json, written by `make parity`
    ```{runtime-table}         book/_data/runtimes.json, written by `make run`
    {measured}`chapters`       a number in a sentence: chapters, exercises, claims, examined, seconds, names
"""
import json
import sys
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from chapters import chapters  # noqa: E402
from claims import load_claims  # noqa: E402

LOGGER = logging.getLogger(__name__)


def load(srcdir, file):
    """The record in book/_data, or None when it is not there."""
    path = Path(srcdir) / "book/_data" / file
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


class MeasuredTable(SphinxDirective):
    file, target = "", ""

    def run(self):
        self.env.note_dependency(f"book/_data/{self.file}")
        record = load(self.env.srcdir, self.file)
        if record is None:
            self.warn(f"book/_data/{self.file} is missing: run `make {self.target}`")
            return []
        holder = nodes.container(classes=[self.name])
        self.state.nested_parse(StringList(self.lines(record), self.file), 0, holder)
        return [holder]

    def warn(self, message):
        LOGGER.warning(message, location=self.get_location())


class ParityTable(MeasuredTable):
    file, target = "parity.json", "parity"

    def lines(self, record):
        rows = ["| export | reference | inputs tried | largest difference |", "|---|---|---|--:|"]
        for row in sorted(record, key=lambda r: (r["export"], r["reference"], r["inputs"])):
            difference = "none" if row["difference"] == 0 else f"{row['difference']:.0e}"
            export, known = row["export"], self.config._exported
            owner = export if export in known else export.rpartition(".")[0]  # a method belongs to an exported class
            if owner not in known:
                self.warn(f"book/_data/{self.file} names {export}, which no chapter exports: run `make parity`")
                continue
            name = export.removeprefix(owner.rpartition(".")[0] + ".")
            rows.append(f"| {{py:obj}}`{name} <{export}>` | {row['reference']} {row['version']} | {row['inputs']} | {difference} |")
        return rows


class RuntimeTable(MeasuredTable):
    file, target = "runtimes.json", "run"

    def lines(self, record):
        times, found = record["chapters"], []
        for chapter in chapters():
            if chapter.stem in times:
                found.append(chapter)
            else:
                self.warn(f"book/_data/{self.file} has no chapter {chapter.stem}: run `make run CHAPTER={chapter.number}`")
        rows = [f"| {{doc}}`/{c.docname}` | {times[c.stem]['seconds']:.0f} s | {times[c.stem]['megabytes']} MB |" for c in found]
        total = sum(times[c.stem]["seconds"] for c in found)
        return [f"Measured on {record['machine']}.", "", "| chapter | time | peak memory |", "|---|--:|--:|", *rows,
                f"| all | {total:.0f} s | |"]


class Measured(SphinxRole):
    """A number that the build counts, so that no page has to state one that could go stale."""
    def run(self):
        found = chapters()
        claims = load_claims(self.env.srcdir)
        times = (load(self.env.srcdir, "runtimes.json") or {"chapters": {}})["chapters"]
        numbers = {
            "chapters": len(found),
            "exercises": sum(cell["source"].count("{exercise}") for c in found for cell in c.cells("markdown")),
            "claims": len(claims),
            "examined": sum(bool(c["verdict"]) for c in claims),
            "names": len(self.config._exported),
            "seconds": round(sum(times[c.stem]["seconds"] for c in found if c.stem in times)),
            "longest": round(max((times[c.stem]["seconds"] for c in found if c.stem in times), default=0)),
        }
        if self.text not in numbers:
            message = self.inliner.reporter.error(f"measured: {self.text!r} is none of {', '.join(numbers)}", line=self.lineno)
            return [], [message]
        return [nodes.Text(str(numbers[self.text]))], []


def setup(app):
    app.add_directive("parity-table", ParityTable)
    app.add_directive("runtime-table", RuntimeTable)
    app.add_role("measured", Measured())
    return {"version": "2", "parallel_read_safe": True, "parallel_write_safe": True}
