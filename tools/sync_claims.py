"""Write statement, verdict and correction of book/claims.yml into the notebooks' claim boxes: `python tools/sync_claims.py`.

A new box needs only its first and last line, `:::{claim} L1.1.1-07` and `:::`.
"""
import json
import re

import yaml

from chapters import ROOT, chapters

BOX = re.compile(r"^:::\{claim\} (?P<id>\S+).*?^:::$", re.MULTILINE | re.DOTALL)


def box(claim):
    """The box's text, as it stands in a notebook."""
    paragraphs = [claim["claim"], claim["correction"]] if claim["correction"] else [claim["claim"]]
    body = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return f":::{{claim}} {claim['id']} {claim['verdict']}\n{body}\n:::"


def sync(source, claims):
    """The Markdown `source` with each of its boxes rewritten."""
    return BOX.sub(lambda found: box(claims[found["id"]]), source)


def main():
    claims = {c["id"]: c for c in yaml.safe_load((ROOT / "book/claims.yml").read_text(encoding="utf-8")) if c["verdict"]}
    for chapter in chapters():
        notebook = json.loads(chapter.path.read_text(encoding="utf-8"))
        before = json.dumps(notebook)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = sync("".join(cell["source"]), claims).splitlines(keepends=True)
        if json.dumps(notebook) != before:
            chapter.path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"{chapter.path.relative_to(ROOT)}: boxes rewritten")


if __name__ == "__main__":
    main()
