"""Every public name is documented and its example runs; the README runs; every link between files leads somewhere."""
import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import matplotlib
import pytest
from chapters import chapters
from reading import PACKAGE, ROOT, contents, markdown, pages, prose
from test_project import PUBLIC, listed, source_of

matplotlib.use("agg")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SECTIONS = "Args|Returns|Yields|Raises|Example|Examples|Attributes|Note|Source|References"


# -- docstrings

def sections(docstring):
    """{heading: text} of a Google-style docstring; the text before the first heading is under ''."""
    parts = re.split(rf"^({SECTIONS}):[ \t]*$", inspect.cleandoc(docstring or ""), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2]))}


def described(text):
    """Names that a section `Args:` or `Raises:` describes."""
    block = textwrap.dedent(text.strip("\n"))
    return {name.strip().lstrip("*") for names in re.findall(r"^(\*{0,2}[A-Za-z][\w, *]*?)(?:\s*\([^)]*\))?:(?:\s|$)", block, re.MULTILINE)
            for name in names.split(",")}


def parameters(function):
    """Parameters that a reader passes: without self, cls and what begins with an underscore."""
    names = [a.arg for group in (function.args.posonlyargs, function.args.args, function.args.kwonlyargs) for a in group]
    names += [a.arg for a in (function.args.vararg, function.args.kwarg) if a]
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def own_nodes(function):
    """The nodes of a function's body, but not of functions and classes inside it."""
    stack = list(function.body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            stack += ast.iter_child_nodes(node)


def raises(function):
    """Whether the function's own body raises, and not only passes on or steers a generator."""
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in own_nodes(function))


def returns(function):
    """Whether a caller gets something: an annotation other than None, or a return of a value."""
    if function.returns is not None:
        return not (isinstance(function.returns, ast.Constant) and function.returns.value is None)
    return any(isinstance(node, ast.Return) and node.value is not None for node in own_nodes(function))


def function_problems(function, example=True):
    """What a function's docstring lacks; `function`: its syntax tree."""
    parts = sections(ast.get_docstring(function))
    summary = parts[""].strip().split("\n\n")[0]
    bad = [] if summary else ["no docstring"]
    if summary and not re.search(r"[.:?)`]$", summary):
        bad.append("the first line is no sentence")
    missing = [name for name in parameters(function) if name not in described(parts.get("Args", ""))]
    unknown = described(parts.get("Args", "")) - set(parameters(function))
    bad += [f"Args: does not describe {name}" for name in missing] + [f"Args: describes {name}, which is none" for name in sorted(unknown)]
    if returns(function) and not {"Returns", "Yields"} & parts.keys():
        bad.append("no Returns:")
    if raises(function) and "Raises" not in parts:
        bad.append("no Raises:")
    if example and ">>>" not in parts.get("Example", "") + parts.get("Examples", ""):
        bad.append("no Example:")
    return [f"{function.name}: {problem}" for problem in bad]


def class_problems(node):
    """What the docstrings of a class and its public methods lack. The class's own says how to make one."""
    methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
    made = methods.get("__init__")
    fields = [n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
              and not n.target.id.startswith("_") and "ClassVar" not in ast.unparse(n.annotation)]
    wanted = parameters(made) if made else fields
    parts = sections(ast.get_docstring(node))
    found = described(parts.get("Args", "")) | described(parts.get("Attributes", ""))
    bad = [] if parts[""].strip() else ["no docstring"]
    bad += [f"Args: does not describe {name}" for name in wanted if name not in found]
    is_error = any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
    if not is_error and ">>>" not in parts.get("Example", "") + parts.get("Examples", ""):
        bad.append("no Example:")
    bad = [f"{node.name}: {problem}" for problem in bad]
    for name, method in methods.items():
        if not name.startswith("_"):
            is_property = any("property" in ast.unparse(d) for d in method.decorator_list)
            problems = function_problems(method, example=False)
            bad += [f"{node.name}.{p}" for p in problems if not (is_property and "no Returns" in p)]
    return bad


def docstring_problems(source):
    """What the public names of a module, given as source, lack."""
    tree, public = ast.parse(source), set(listed(source) or [])
    bad = [] if ast.get_docstring(tree) or source.startswith("# AUTOGENERATED") or source.startswith('"""') else ["the module has no docstring"]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in public:
            bad += function_problems(node)
        elif isinstance(node, ast.ClassDef) and node.name in public:
            bad += class_problems(node)
    return bad


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_documented(module):
    assert docstring_problems(source_of(module)) == []


SOUND = '''"""A module."""
__all__ = ["half", "Box", "BadBox"]

def half(x: float, *, digits=None) -> float:
    """Half of `x`.

    Args:
        x: a number,
            of any size.
        digits (int): how many to keep.

    Returns:
        That half.

    Raises:
        ValueError: `x` is negative.

    Example:
        >>> half(3)
        1.5
    """
    if x < 0:
        raise ValueError("x")
    return x / 2

class Box:
    """A box.

    Args:
        width, height: its size.

    Example:
        >>> Box(1, 2).area()
        2
    """
    def __init__(self, width, height):
        self.width, self.height = width, height

    def area(self) -> float:
        """Its area.

        Returns:
            Width times height.
        """
        return self.width * self.height

    def close(self) -> None:
        """Close it."""

    @property
    def flat(self) -> bool:
        """Whether it is wider than high."""
        return self.width > self.height

class BadBox(ValueError):
    """No box."""
'''


@pytest.mark.parametrize("old, new, says", [
    ("    Example:\n        >>> half(3)\n        1.5\n", "", "half: no Example"),
    (">>> half(3)", "half(3)", "half: no Example"),
    ("        digits (int): how many to keep.\n", "", "half: Args: does not describe digits"),
    ("digits (int)", "digit (int)", "describes digit, which is none"),
    ("    Returns:\n        That half.\n", "", "half: no Returns"),
    ("    Raises:\n        ValueError: `x` is negative.\n", "", "half: no Raises"),
    ("Half of `x`.\n", "\n", "half: no docstring"),
    ("Half of `x`.\n", "Half of x\n", "no sentence"),
    ("        width, height: its size.\n", "        width: its size.\n", "Box: Args: does not describe height"),
    (">>> Box(1, 2).area()", "Box", "Box: no Example"),
    ('"""Close it."""', "pass", "Box.close: no docstring"),
    ("        Returns:\n            Width times height.\n", "", "Box.area: no Returns"),
    ('"""No box."""', "pass", "BadBox: no docstring"),
    ('"""A module."""', "", "module has no docstring"),
])
def test_a_missing_docstring_is_seen(old, new, says):
    assert docstring_problems(SOUND) == []
    assert old in SOUND
    assert any(says in problem for problem in docstring_problems(SOUND.replace(old, new, 1)))


# -- examples

def examples(module):
    """Doctests of a module, its public names and their methods. (doctest's own finder misses names that the check of shapes wraps.)"""
    parser, found = doctest.DocTestParser(), [(module.__name__, module)]
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        found.append((name, value))
        if inspect.isclass(value):
            found += [(f"{name}.{attribute}", member) for attribute, member in vars(value).items() if not attribute.startswith("__")]
    for name, value in found:
        text = getattr(value, "__doc__", None)
        if isinstance(text, str) and ">>>" in text and (inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value)
                                                         or isinstance(value, property)):
            yield parser.get_doctest(inspect.cleandoc(text), dict(vars(module)), name, module.__name__, 0)


def failing_examples(module):
    """(how many examples ran, reports of those that failed)."""
    runner, reports = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False), []
    for test in examples(module):
        runner.run(test, out=reports.append)
    return runner.summarize(verbose=False).attempted, reports


@pytest.mark.parametrize("module", PUBLIC)
def test_examples_run(module):
    import matplotlib.pyplot as plt
    ran, reports = failing_examples(importlib.import_module(module))
    plt.close("all")
    assert ran > 0 and reports == [], "\n".join(reports)


@pytest.mark.parametrize("text, ran, failed", [
    (">>> f(2)\n4", 1, 0), (">>> f(2)\n5", 1, 1), (">>> f(\n", 1, 1), (">>> 1 / 0", 1, 1), (">>> list(range(9))\n[0, ..., 8]", 1, 0),
])
def test_failing_examples_are_seen(text, ran, failed):
    def f(x):
        return 2 * x
    f.__doc__ = "Twice.\n\n" + text
    try:
        attempted, reports = failing_examples(SimpleNamespace(__name__="sample", __all__=["f"], f=f))
    except ValueError:  # doctest refuses some examples altogether
        attempted, reports = 1, ["refused"]
    assert (attempted, bool(reports)) == (ran, bool(failed))


# -- the README, and links

def python_blocks(text):
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def targets(makefile):
    """Names of a Makefile's targets."""
    return {name for names in re.findall(r"^([A-Za-z][\w -]*):(?!=)", makefile, re.MULTILINE) for name in names.split()}


def unknown_commands(text, makefile):
    """`make` commands in code of a text that the Makefile does not have."""
    code = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^```(?:\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    used = {name for part in code for name in re.findall(r"(?:^|&& |\$ )make ([a-z][\w-]*)", part, re.MULTILINE)}
    return sorted(used - targets(makefile))


def broken_links(text, folder):
    """Relative links and pictures of a Markdown text that lead to no file; `folder`: where the text lies."""
    links = re.findall(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)", prose(text)) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
    local = {re.sub(r"[#?].*", "", link) for link in links if not re.match(r"[a-z]+:|#|\{", link)}
    places = {link: ROOT / link[1:] if link.startswith("/") else folder / link for link in local if link}
    return sorted(link for link, place in places.items()
                  if not any(path.exists() for path in (place, place.with_suffix(".md"), place.with_suffix(".ipynb"))))


def broken_documents(text, docname, documents):
    """{doc} roles and documents of a page that are none of `documents` (names without ending, from the root)."""
    found = [re.sub(r"^.*<(.+)>$", r"\1", target) for target in re.findall(r"\{doc\}`([^`]+)`", prose(text))]
    folder = docname.rsplit("/", 1)[0] if "/" in docname else ""
    resolved = {target: target[1:] if target.startswith("/") else _join(folder, target) for target in found}
    return sorted(target for target, name in resolved.items() if name not in documents)


def _join(folder, target):
    parts = folder.split("/") if folder else []
    for part in target.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def texts():
    """{docname: (text, folder)} of all Markdown: pages at the root and in the book, and chapters."""
    found = {path.relative_to(ROOT).with_suffix("").as_posix(): (text, path.parent) for path, text in pages().items()}
    found |= {path.stem: (contents(path), ROOT) for path in ROOT.glob("*.md")}
    return found | {c.docname: (markdown(c), c.path.parent) for c in chapters()}


def test_readme_blocks_run(tmp_path):
    blocks = python_blocks(contents(ROOT / "README.md"))
    assert blocks
    for block in blocks:
        subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_commands_exist(name):
    assert unknown_commands(contents(ROOT / name), contents(ROOT / "Makefile")) == []


def test_readme_names_the_two_commands_and_shows_a_page_soon():
    text = contents(ROOT / "README.md")
    first_screen = "\n".join(text.splitlines()[:45])
    assert re.search(r"\bmake book\b", first_screen) and re.search(r"\bmake test\b", first_screen)
    assert re.search(r"!\[[^\]]{10,}\]\([^)]+\)|<img [^>]*alt=\"[^\"]{10,}\"", text), "one picture of a page, with alt text"


@pytest.mark.parametrize("docname", sorted(texts()))
def test_links_lead_somewhere(docname):
    text, folder = texts()[docname]
    assert broken_links(text, folder) == []
    assert broken_documents(text, docname, set(texts())) == []


def test_headings_of_pages_descend_by_one():
    for path, text in pages().items():
        text = re.sub(r"^:{3,}\{include\} (\S+)$|^`{3,}\{include\} (\S+)$",
                      lambda found: contents(path.parent / (found[1] or found[2])), text, flags=re.MULTILINE)
        plain = re.sub(r"^(`{3,}|~{3,}).*?^\1\s*$", "", text, flags=re.MULTILINE | re.DOTALL)
        levels = [len(marks) for marks in re.findall(r"^(#{1,6})\s", plain, re.MULTILINE)]
        assert levels[:1] == [1] and levels.count(1) == 1, path.name
        assert all(below <= above + 1 for above, below in zip(levels, levels[1:])), path.name


def test_pictures_of_pages_have_alt_text():
    for path, text in pages().items():
        assert "![](" not in text, path.name
        for fence in re.findall(r"^:{3,}\{(?:figure|image)\}.*?^:{3,}$|^`{3,}\{(?:figure|image)\}.*?^`{3,}$", text, re.MULTILINE | re.DOTALL):
            assert re.search(r"^:alt: \S", fence, re.MULTILINE), f"{path.name}: {fence.splitlines()[0]}"


def test_broken_documents_and_commands_are_seen(tmp_path):
    (tmp_path / "there.md").write_text("")
    assert broken_links("[a](there.md) [b](there.md#x) [c](gone.md) `[d](e.md)` [f](https://x.y/z) ![g](h.png)", tmp_path) == ["gone.md", "h.png"]
    documents = {"nbs/toolbox/00_runtime", "book/home"}
    text = "{doc}`/nbs/toolbox/00_runtime` {doc}`that <../toolbox/00_runtime>` {doc}`01_plotting` {doc}`/book/away`"
    assert broken_documents(text, "nbs/metrics/05_x", documents) == ["/book/away", "01_plotting"]
    assert unknown_commands("`make book`, make room\n```bash\nmake tset\n```", "book: x  ## y\nA := make nothing\n") == ["tset"]
    assert python_blocks("```python\n1\n```\n```bash\n2\n```") == ["1\n"]


def test_package_docstrings_say_what_each_part_holds():
    for part in sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py")):
        assert importlib.import_module(f"transformer_course.{part}").__doc__
