"""Sphinx extension: the claims of the lecture notes, each in a marked box, and the page that lists them all.

In a notebook:

    :::{claim} L1.1.1-07 wrong
    The statement, in our words (the same as in book/claims.yml).

    What is right, unless the claim holds.
    :::

The code cell that settles a claim says so in a comment, `# settles L1.1.1-07`, and the box links to it.
A claim about history that no cell can settle is settled by a citation, named in claims.yml as `cite`.
The box and the record must say the same: where they differ, the build warns, and so fails.
"""
import re
import sys
from collections import Counter
from pathlib import Path

import yaml
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from chapters import SETTLES  # noqa: E402

LOGGER = logging.getLogger(__name__)
VERDICTS = {"holds": "holds", "holds with a correction": "corrected", "wrong": "wrong", "not shown": "unshown"}
ID = re.compile(r"^(?:L1|L2|T|S)\.[\d.]+-\d\d$")
SOURCES = {"L1": "Lecture 1", "L2": "Lecture 2", "T": "Textbook summary", "S": "Lecture 20"}
BACK_MATTER = "book/sources"


def split_argument(argument):
    """'L1.1.1-07 wrong' -> ('L1.1.1-07', 'wrong'); raises ValueError for an unknown id form or verdict."""
    claim, _, verdict = argument.strip().partition(" ")
    if not ID.match(claim):
        raise ValueError(f"claim: {claim!r} is not the id of a claim")
    if verdict.strip() not in VERDICTS:
        raise ValueError(f"claim {claim}: verdict {verdict.strip()!r} is none of {', '.join(VERDICTS)}")
    return claim, verdict.strip()


def split_content(lines):
    """The statement (first paragraph) and the correction (the rest, or None), each with its white space made even."""
    statement, _, correction = "\n".join(lines).strip().partition("\n\n")
    return " ".join(statement.split()), " ".join(correction.split()) or None


def anchor(claim, kind="claim"):
    return f"{kind}-{claim.lower().replace('.', '-')}"


def load_claims(folder):
    return yaml.safe_load((Path(folder) / "book/claims.yml").read_text(encoding="utf-8"))


def differences(record, verdict, statement, correction):
    """In which fields a box differs from the record of claims.yml."""
    box = {"verdict": verdict, "claim": statement, "correction": correction}
    return [name for name, text in box.items() if " ".join((record.get(name) or "").split()) != (text or "")]


def escape(text):
    """Plain text that MyST leaves as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#$|~^])", r"\\\1", text)


def label(box, words):
    """Begin the first paragraphs of the box with these words."""
    for paragraph, text in zip((node for node in box if isinstance(node, nodes.paragraph)), words):
        paragraph.insert(0, nodes.inline("", text, classes=["claim-label"]))


class ClaimDirective(SphinxDirective):
    def parse(self, lines):
        """Children of the nodes that these lines of MyST make."""
        holder = nodes.container()
        self.state.nested_parse(StringList(lines, "claims.yml"), self.content_offset, holder)
        return holder.children

    def settled(self, record, text):
        """A paragraph that leads to what settles the claim: a citation or a cell."""
        if record.get("cite"):
            paragraph = self.parse([f"Settled by citation: {{cite}}`{record['cite']}`."])[0]
            paragraph["classes"].append("claim-link")
            return [paragraph]
        return [nodes.paragraph("", "", settled_by("", text, claim=record["id"], chapter=record["chapter"]), classes=["claim-link"])]


class Claim(ClaimDirective):
    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self):
        try:
            claim, verdict = split_argument(self.arguments[0])
        except ValueError as error:
            raise self.error(str(error))
        record = next((c for c in load_claims(self.env.srcdir) if c["id"] == claim), None)
        if record is None:
            raise self.error(f"claim {claim} is not in book/claims.yml")
        self.env.note_dependency(str(Path(self.env.srcdir) / "book/claims.yml"))
        differ = differences(record, verdict, *split_content(self.content))
        if differ:
            LOGGER.warning("claim %s: %s of this box and of book/claims.yml differ", claim, " and ".join(differ),
                           location=self.get_location())
        box = nodes.admonition(classes=["claim", f"claim-{VERDICTS[verdict]}"], ids=[anchor(claim)])
        box += nodes.title("", "", nodes.inline("", f"Claim {claim}", classes=["claim-id"]), nodes.Text(" "),
                           nodes.inline("", verdict, classes=["claim-verdict"]))
        self.state.nested_parse(self.content, self.content_offset, box)
        label(box, ["The notes say: ", "What is right: "])
        box += self.settled(record, "Settled by this cell")
        self.env.claim_boxes[claim] = self.env.docname
        return [box]


class settled_by(nodes.inline):
    """A link to the cell that settles a claim, filled in when all pages are read."""


class ClaimsTable(ClaimDirective):
    """Every claim of one source (`{claims-table} L1`) or the counts of all verdicts (`{claims-table} counts`)."""
    required_arguments = 1

    def run(self):
        self.env.note_dependency(str(Path(self.env.srcdir) / "book/claims.yml"))
        claims = load_claims(self.env.srcdir)
        if self.arguments[0] == "counts":
            return self.parse(self._counts(claims))
        mine = [c for c in claims if c["id"].split(".")[0] == self.arguments[0]]
        body = [node for claim in mine if claim["verdict"] for node in self._entry(claim)]
        waiting = [c for c in mine if not c["verdict"]]
        if waiting:
            lines = [f"::::{{dropdown}} Not yet examined: {len(waiting)} claims", ""]
            lines += [f"- **{c['id']}** {escape(c['claim'])} [chapter {c['chapter'][:2]}]{{.claim-chapter}}" for c in waiting]
            body += self.parse([*lines, "::::"])
        return body

    def _counts(self, claims):
        columns = [*VERDICTS, *([] if all(c["verdict"] for c in claims) else [None])]
        lines = ["| source | " + " | ".join(name or "not yet examined" for name in columns) + " | all |", "|---|" + "--:|" * (len(columns) + 1)]
        for source, name in [*SOURCES.items(), (None, "all")]:
            mine = [c["verdict"] for c in claims if source in (None, c["id"].split(".")[0])]
            seen = Counter(mine)
            numbers = [str(seen[v]) for v in columns] + [str(len(mine))]
            lines.append(f"| {name} | " + " | ".join(numbers) + " |")
        return lines

    def _entry(self, claim):
        verdict = claim["verdict"]
        box = nodes.container(classes=["claim-row", f"claim-{VERDICTS[verdict]}"], ids=[anchor(claim["id"], "record")])
        lines = [f"**{claim['id']}** [{verdict}]{{.claim-verdict}} {claim['claim']}"]
        if claim.get("correction"):
            lines += ["", claim["correction"]]
        box += self.parse(lines)
        label(box, ["", "What is right: "])
        box += self.settled(claim, "The cell that settles it")
        return [box]


def _mark_cells(app, doctree):
    """Give each code cell that settles a claim an id, and remember where it is."""
    for cell in doctree.findall(nodes.container):
        if "cell" not in cell.get("classes", []):
            continue
        for code in cell.findall(nodes.literal_block):
            for line in SETTLES.findall(code.astext()):
                for claim in re.split(r"[,\s]+", line.strip()):
                    if anchor(claim, "settles") not in cell["ids"]:
                        cell["ids"].append(anchor(claim, "settles"))
                    app.env.claim_cells[claim] = app.env.docname


def _link(app, doctree, docname):
    """Fill in the links to deciding cells."""
    for node in list(doctree.findall(settled_by)):
        where = app.env.claim_cells.get(node["claim"])
        if where is None:
            if any(d.endswith("/" + node["chapter"]) for d in app.env.found_docs):
                LOGGER.warning("claim %s: no cell says `# settles %s`", node["claim"], node["claim"], location=docname)
            node.replace_self(nodes.Text(f"Chapter {node['chapter'][:2]} is not in this build."))
            continue
        uri = "" if where == docname else app.builder.get_relative_uri(docname, where)
        link = nodes.reference("", node.astext(), internal=True, refuri=f"{uri}#{anchor(node['claim'], 'settles')}")
        parts = [link]
        if where != docname:
            parts += [nodes.Text(", in "), nodes.inline("", app.env.titles[where].astext())]
        node.replace_self(parts)


def _start(app):
    env = app.env
    env.claim_cells = getattr(env, "claim_cells", {})
    env.claim_boxes = getattr(env, "claim_boxes", {})


def _purge(app, env, docname):
    for record in (getattr(env, "claim_cells", {}), getattr(env, "claim_boxes", {})):
        for claim in [c for c, where in record.items() if where == docname]:
            del record[claim]


def _check_boxes(app, env):
    """Each claim with a verdict has a box in its chapter."""
    for claim in load_claims(app.srcdir):
        where = env.claim_boxes.get(claim["id"], "")
        home = BACK_MATTER if claim["chapter"] == "back_matter" else claim["chapter"]
        present = any(d == home or d.endswith("/" + home) for d in env.found_docs)
        if claim["verdict"] and present and not (where == home or where.endswith("/" + home)):
            LOGGER.warning("claim %s has a verdict in book/claims.yml, but no box in %s", claim["id"], home)
    return []


def setup(app):
    app.add_node(settled_by)
    app.add_directive("claim", Claim)
    app.add_directive("claims-table", ClaimsTable)
    app.connect("builder-inited", _start)
    app.connect("env-purge-doc", _purge)
    app.connect("doctree-read", _mark_cells)
    app.connect("env-updated", _check_boxes)
    app.connect("doctree-resolved", _link)
    return {"version": "2", "env_version": 2, "parallel_read_safe": False, "parallel_write_safe": False}
