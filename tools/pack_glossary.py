"""Write the book's glossary into the package, as plain text: `python tools/pack_glossary.py`.

Chapter 40 searches it, and so can whoever has the package and not the book. Run this when book/glossary.md has changed; a test says so.
"""
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, STORE = ROOT / "book" / "glossary.md", ROOT / "transformer_course" / "bert" / "glossary.json"
HANGUL = re.compile("[\uac00-\ud7a3]")


def plain(text):
    """A definition without the book's marks: links become words, a chapter its number."""
    text = re.sub(r"\{doc\}`[^`]*?/(\d\d)_[^`]*`", r"chapter \1", text)
    text = re.sub(r"\{\w+\}`([^`<]*?)\s*(?:<[^`]*>)?`", r"\1", text)
    text = re.sub(r"(?<!\*)\*([^*\s][^*]*)\*(?!\*)", r"\1", text)
    return " ".join(text.replace("`", "").replace("$", "").split())


def entries(source):
    """[names in English, names in Korean, definition] of each entry of the glossary."""
    for entry in re.split(r"\n\s*\n", source.split("```{glossary}")[1].split("```")[0].strip()):
        lines = entry.splitlines()
        names = [line.strip() for line in lines if not line.startswith(" ")]
        english = [name for name in names if not HANGUL.search(name)]
        definition = plain(" ".join(line for line in lines if line.startswith(" ")))
        yield [english, [name for name in names if HANGUL.search(name)], definition]


def main():
    packed = list(entries(SOURCE.read_text(encoding="utf-8")))
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in packed)
    STORE.write_text(f"[{lines}]\n", encoding="utf-8")
    print(f"{len(packed)} entries in {STORE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
