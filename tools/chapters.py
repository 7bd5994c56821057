"""Where each chapter lives: its notebook, module and tests.

    python tools/chapters.py            all notebooks, in reading order
    python tools/chapters.py 04         the notebook of chapter 04
    python tools/chapters.py --tests 04 what pytest should run for chapter 04
"""
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTLES = re.compile(r"^#\s*settles\s+(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Chapter:
    """A notebook `nbs/<part>/<number>_<name>.ipynb`."""
    path: Path

    @property
    def part(self): return self.path.parent.name

    @property
    def stem(self): return self.path.stem

    @property
    def number(self): return self.stem.split("_")[0]

    @property
    def name(self): return self.stem.split("_", 1)[1]

    @property
    def module(self): return f"transformer_course.{self.part}.{self.name}"

    @property
    def docname(self): return self.path.relative_to(ROOT).with_suffix("").as_posix()

    def cells(self, kind=None):
        """The notebook's cells, each with its source joined to one string."""
        cells = json.loads(self.path.read_text(encoding="utf-8"))["cells"]
        for cell in cells:
            cell["source"] = "".join(cell["source"])
        return [cell for cell in cells if kind in (None, cell["cell_type"])]

    def settled(self):
        """Ids of the claims that a code cell of this chapter says it settles."""
        return [claim for cell in self.cells("code") for line in SETTLES.findall(cell["source"])
                for claim in re.split(r"[,\s]+", line.strip())]


def chapters():
    """All chapters in reading order."""
    paths = (p for p in (ROOT / "nbs").rglob("*.ipynb") if not any(part.startswith(".") for part in p.parts))
    return [Chapter(path) for path in sorted(paths, key=lambda p: p.name)]


def main(arguments):
    tests = "--tests" in arguments
    numbers = [a for a in arguments if a != "--tests"]
    found = [c for c in chapters() if not numbers or c.number in numbers]
    missing = set(numbers) - {c.number for c in found}
    if missing:
        sys.exit(f"no such chapter: {', '.join(sorted(missing))} (there are {', '.join(c.number for c in chapters())})")
    for chapter in found:
        print(chapter.path.relative_to(ROOT))
        test = ROOT / "tests" / f"test_{chapter.name}.py"
        if tests and test.exists():
            print(test.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
