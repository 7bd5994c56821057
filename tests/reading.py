"""Read notebooks, pages and the facts of the project, as several test modules need them."""
import configparser
import fnmatch
import functools
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "transformer_course"

_OPEN = re.compile(r"^(?P<fence>:{3,}|`{3,})\{(?P<name>[\w:-]+)\}[ \t]*(?P<argument>.*)$")
_OPTION = re.compile(r"^:(?P<key>[\w-]+):[ \t]*(?P<value>.*)$")


@dataclass(frozen=True)
class Directive:
    """A MyST directive: `:::{name} argument`, its `:key: value` lines and its body."""
    name: str
    argument: str
    options: dict
    body: str
    fence: str


def directives(text):
    """The directives of a Markdown text in their order, nested ones after the one that holds them."""
    found, lines, at = [], text.splitlines(), 0
    while at < len(lines):
        opening = _OPEN.match(lines[at])
        if not opening:
            at += 1
            continue
        fence = opening["fence"]
        closing = re.compile(rf"^{fence[0]}{{{len(fence)},}}\s*$")
        end = next((i for i in range(at + 1, len(lines)) if closing.match(lines[i])), len(lines))
        body, options = lines[at + 1:end], {}
        while body and (option := _OPTION.match(body[0])):
            options[option["key"]] = option["value"].strip()
            body = body[1:]
        text = "\n".join(body).strip()
        found += [Directive(opening["name"], opening["argument"].strip(), options, text, fence), *directives(text)]
        at = end + 1
    return found


def prose(text):
    """A Markdown text without its fenced code and inline code (roles such as {term}`x` stay)."""
    text = re.sub(r"^(`{3,}|~{3,})(?!\{).*?^\1\s*$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(\{[\w:-]+\})?(`+)(?!`)(.+?)(?<!`)\2(?!`)", lambda found: found[0] if found[1] else "", text)


def words(text):
    """The text with every run of white space made one blank."""
    return " ".join(str(text).split())


def markdown(chapter):
    """All prose of a chapter."""
    return "\n\n".join(cell["source"] for cell in chapter.cells("markdown"))


def tags(cell):
    return cell["metadata"].get("tags", [])


def text_output(cell):
    """What a code cell printed and showed, as plain text."""
    parts = []
    for output in cell["outputs"]:
        parts += [output.get("text", ""), output.get("data", {}).get("text/plain", "")]
    return "".join("".join(part) for part in parts)


@functools.cache
def facts():
    """The facts in settings.ini."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    return parser["DEFAULT"]


@functools.cache
def tracked():
    """Paths of all files of the project: what git would commit or, without git (an unpacked archive), what is no build product."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        patterns = contents(ROOT / ".gitignore").split()
        names = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if ".git" not in path.parts and not any(
            fnmatch.fnmatch(part, pattern.rstrip("/")) for part in path.relative_to(ROOT).parts for pattern in patterns)]
    return sorted(ROOT / name for name in names if name and (ROOT / name).is_file())


def contents(path):
    """The text of a file, or None for pictures, fonts and the like."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


@functools.cache
def pages():
    """{path: text} of the book's own pages (the chapters are notebooks)."""
    return {path: contents(path) for path in tracked() if path.suffix == ".md" and "book" in path.relative_to(ROOT).parts}


@functools.cache
def claims():
    """The record of claims, book/claims.yml."""
    return yaml.safe_load((ROOT / "book/claims.yml").read_text(encoding="utf-8"))


@functools.cache
def toc_files():
    """Every document that _toc.yml lists, without its ending."""
    def walk(node):
        if isinstance(node, dict):
            for key, value in node.items():
                if key in ("root", "file"):
                    yield str(value).removesuffix(".ipynb").removesuffix(".md")
                else:
                    yield from walk(value)
        elif isinstance(node, list):
            for item in node:
                yield from walk(item)
    return list(walk(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))))


def write_notebook(path, cells):
    """Write cells, given as dicts with a source string, as a notebook; the checks of the checks use it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kernel = {"display_name": "python3", "language": "python", "name": "python3"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


def md(source, **metadata):
    return {"cell_type": "markdown", "metadata": metadata, "source": source}


def code(source, outputs=(), **metadata):
    return {"cell_type": "code", "execution_count": None, "metadata": metadata, "outputs": list(outputs), "source": source}


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def picture():
    return {"output_type": "display_data", "metadata": {}, "data": {"image/png": "", "text/plain": "<Figure>"}}
