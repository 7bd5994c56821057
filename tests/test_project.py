"""The project's facts agree wherever they stand, imports only point down and load nothing heavy, and no file names a private place."""
import ast
import configparser
import importlib
import re
import subprocess
import sys
import tomllib
from collections import Counter

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from chapters import chapters
from reading import PACKAGE, ROOT, contents, facts, tracked

LAYERS = {"toolbox": 0, "metrics": 1, "text": 1, "recurrent": 2, "attention": 3, "transformer": 4, "modern": 5, "bert": 6, "vision": 6}
HEAVY = {"torch", "numpy", "matplotlib", "jaxtyping", "safetensors", "tqdm", "beartype"}
LICENCES = {"apache2": "Apache-2.0"}
PARTS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
MODULES = sorted(f"transformer_course.{path.relative_to(PACKAGE).with_suffix('').as_posix().replace('/', '.')}"
                 for part in PARTS for path in (PACKAGE / part).glob("*.py") if path.stem != "__init__")
PUBLIC = [name for name in MODULES if not name.rsplit(".", 1)[1].startswith("_") and not name.endswith("_exercises")]


# -- the same facts everywhere

def as_requirements(lines):
    """{name: SpecifierSet} of requirement lines."""
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(r.name): r.specifier for r in found}


def requirement_lines(text):
    """The requirements of a requirements file, without comments."""
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("-")]


def metadata_problems(settings, project):
    """Where settings.ini (its DEFAULT section) and pyproject.toml (as a dict) differ."""
    table = project["project"]
    page = settings["doc_host"] + settings["doc_baseurl"]
    pairs = {
        "name": (settings["lib_name"], table["name"]), "repo": (settings["repo"], settings["lib_name"]),
        "lib_path": (settings["lib_path"], table["name"]),
        "description": (settings["description"], table["description"]),
        "licence": (LICENCES.get(settings["license"]), table.get("license")),
        "minimal Python": (f">={settings['min_python']}", table["requires-python"]),
        "author": ([settings["author"]], [author["name"] for author in table["authors"]]),
        "keywords": (settings["keywords"].split(), table["keywords"]),
        "repository": (settings["git_url"], table["urls"]["Repository"]),
        "documentation": (page, table["urls"]["Documentation"]),
        "address": (settings["git_url"], f"https://github.com/{settings['user']}/{settings['repo']}"),
        "dependencies": (as_requirements(settings["requirements"].split()), as_requirements(table["dependencies"])),
        "version": ("version" in table, False),
        "source of the version": (project["tool"]["setuptools"]["dynamic"]["version"], {"attr": f"{table['name']}.__version__"}),
    }
    return [f"{what}: {a} here, {b} there" for what, (a, b) in pairs.items() if a != b]


def lock_problems(lock, wanted):
    """Requirements (lines) that the lock (text) does not pin, or pins outside their range."""
    pins, bad = {}, []
    for line in requirement_lines(lock):
        requirement = Requirement(line)
        if not re.fullmatch(r"==[^*,]+", str(requirement.specifier)):
            bad.append(f"{line!r} is no pin")
        elif "+" in str(requirement.specifier):
            bad.append(f"{line!r} pins a local build")
        else:
            pins[canonicalize_name(requirement.name)] = str(requirement.specifier)[2:]
    for name, specifier in as_requirements(wanted).items():
        if name not in pins:
            bad.append(f"{name} is not pinned")
        elif not specifier.contains(pins[name], prereleases=True):
            bad.append(f"{name} {pins[name]} is outside {specifier}")
    return bad


def branches_in(workflow):
    """The branches that a workflow (a dict) is triggered by. YAML reads the key `on` as true."""
    triggers = workflow.get("on", workflow.get(True))
    return {branch for trigger in ("push", "pull_request") if isinstance(triggers, dict) and isinstance(triggers.get(trigger), dict)
            for branch in triggers[trigger].get("branches", [])}


def pyproject():
    return tomllib.loads(contents(ROOT / "pyproject.toml"))


def test_settings_and_pyproject_agree():
    assert metadata_problems(facts(), pyproject()) == []
    importlib.invalidate_caches()
    assert importlib.import_module("transformer_course").__version__ == facts()["version"]


def test_lock_satisfies_what_is_asked_for():
    lock, project = contents(ROOT / "requirements.txt"), pyproject()["project"]
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    wanted = requirement_lines(contents(ROOT / "requirements.in")) + pyproject()["build-system"]["requires"]
    assert lock_problems(lock, wanted) == [] and lock_problems(lock, project["dependencies"]) == []
    assert lock_problems(lock, extras) == []


def test_workflows_run_on_the_real_branch():
    found = {path.name: branches_in(yaml.safe_load(contents(path))) for path in (ROOT / ".github/workflows").glob("*.yml")}
    assert set().union(*found.values()) == {facts()["branch"]}
    assert all(found[name] == {facts()["branch"]} for name in ("test.yml", "book.yml"))


def test_tested_pythons_start_with_the_oldest_that_is_supported():
    workflow = yaml.safe_load(contents(ROOT / ".github/workflows/test.yml"))
    versions = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert versions == ["3.11", "3.12", "3.13"] and versions[0] == facts()["min_python"]
    assert SpecifierSet(pyproject()["project"]["requires-python"]).contains(versions[-1])


def test_binder_starts_with_a_supported_python_and_the_package():
    assert contents(ROOT / ".binder/runtime.txt").strip() == f"python-{facts()['min_python']}"
    lines = requirement_lines(contents(ROOT / ".binder/requirements.txt"))
    assert "." in lines or "./" in lines


def copy_of_settings(**changes):
    parser = configparser.ConfigParser()
    parser["DEFAULT"] = dict(facts()) | changes
    return parser["DEFAULT"]


@pytest.mark.parametrize("changes, says", [
    ({"lib_name": "transformers_course"}, "name"), ({"description": "Other"}, "description"), ({"license": "mit"}, "licence"),
    ({"min_python": "3.10"}, "minimal Python"), ({"author": "Nobody"}, "author"), ({"keywords": "attention"}, "keywords"),
    ({"git_url": "https://github.com/x/y"}, "repository"), ({"user": "somebody"}, "address"), ({"doc_baseurl": "/other"}, "documentation"),
    ({"requirements": "torch>=2.6"}, "dependencies"),
])
def test_different_facts_fail(changes, says):
    assert any(problem.startswith(says) for problem in metadata_problems(copy_of_settings(**changes), pyproject()))


@pytest.mark.parametrize("lock, says", [
    ("", "not pinned"), ("torch==2.5", "outside"), ("torch>=2.6", "no pin"), ("torch==2.*", "no pin"), ("torch==2.6+cpu", "local build"),
])
def test_a_broken_lock_fails(lock, says):
    assert lock_problems("# a comment\ntorch==2.6.1  # via x\n", ["torch>=2.6"]) == []
    assert any(says in problem for problem in lock_problems(lock, ["torch>=2.6"]))


def test_branches_are_read():
    assert branches_in({True: {"push": {"branches": ["master"]}, "pull_request": None}}) == {"master"}


# -- addresses and private places

def address_problems(texts, slug, allowed):
    """`texts`: {name: text}. Files that name the repository (slug: owner/name) though they should take it from settings.ini."""
    return [f"{name} names {slug}" for name, text in texts.items() if slug in text and name not in allowed]


def other_addresses(text, slug):
    """Addresses on GitHub, Colab or Binder of a repository of the same name with another owner."""
    found = re.findall(r"github(?:\.com|usercontent\.com|)/(?:gh/)?([\w.-]+/[\w.-]+)|/gh/([\w.-]+/[\w.-]+)", text)
    names = {a or b for a, b in found}
    return sorted(n for n in names if n.removesuffix(".git").endswith("/" + slug.split("/")[1]) and n.removesuffix(".git") != slug)


def private_places(text):
    """Mentions of folders of somebody's machine: nobody else can follow them."""
    return re.findall(r"(?<![\w.<])/(?:work|root|home|Users|mnt|opt)/[\w.-]+|(?<![\w.])/tmp/[\w.-]+|"
                      r"file:///\w[\w/.-]*", text)


def text_files():
    return {path.relative_to(ROOT).as_posix(): text for path in tracked() if (text := contents(path)) is not None}


def test_repository_address_stands_in_one_place():
    slug = f"{facts()['user']}/{facts()['repo']}"
    allowed = {"settings.ini", "pyproject.toml", "README.md", "transformer_course/_modidx.py"}
    texts = text_files()
    for chapter in chapters():  # the install cell may name it; tests/test_notebooks.py keeps that cell the same everywhere
        name = chapter.path.relative_to(ROOT).as_posix()
        texts[name] = "\n".join(cell["source"] for i, cell in enumerate(chapter.cells()) if i != 1)
    assert address_problems(texts, slug, allowed) == []
    assert {name: bad for name, text in texts.items() if (bad := other_addresses(text, slug))} == {}


def test_no_file_names_a_private_place():
    texts = {name: text for name, text in text_files().items() if name != "tests/test_project.py"}
    assert {name: bad for name, text in texts.items() if (bad := private_places(text))} == {}


@pytest.mark.parametrize("text", ["see /" + "home/me/notes", "in /" + "tmp/x.png", "cd /" + "root/x", "(/" + "root/x)",
                                  "file:///" + "srv/x"])
def test_private_places_are_seen(text):
    assert private_places(text)


@pytest.mark.parametrize("text", ["nbs/toolbox/work/x", "https://x.org/home/page", "../root/y", "/usr/bin/env", "a /work b", "</tmp>"])
def test_public_places_are_not_private(text):
    assert private_places(text) == []


def test_addresses_are_seen():
    assert address_problems({"a.md": "see me/it", "settings.ini": "me/it"}, "me/it", {"settings.ini"}) == ["a.md names me/it"]
    text = "https://github.com/other/it and https://mybinder.org/v2/gh/third/it/main, https://github.com/me/it, colab/github/fourth/it/blob"
    assert other_addresses(text, "me/it") == ["fourth/it", "other/it", "third/it"]


def test_top_level_is_what_a_newcomer_expects():
    expected = {".binder", ".ci", ".github", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "_toc.yml",
                "book", "conftest.py", "nbs", "pyproject.toml", "requirements.in", "requirements.txt", "settings.ini", "tests", "tools",
                "transformer_course"}
    optional = {"LICENSE-text", "LICENSE-TEXT", "MANIFEST.in", "CITATION.cff", ".gitattributes"}
    found = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert expected - found == set() and found - expected - optional == set()


# -- layers

def imported(source, module):
    """Dotted names of what a module's source imports from this package, anywhere in it."""
    package = module.rsplit(".", 1)[0].split(".")
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            stem = ".".join(base + ([node.module] if node.module else []))
            found |= {stem, *(f"{stem}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.startswith("transformer_course.")}


def layer_problems(source, module, places=LAYERS):
    """Imports of the module that do not point down: to a later part, or to the other part of its layer."""
    part = module.split(".")[1]
    targets = {name.split(".")[1] for name in imported(source, module)}
    unknown = {t for t in targets if t not in LAYERS and not t.startswith("_")}
    return [f"{module} imports {target}" for target in sorted(targets)
            if target in unknown or (target != part and places.get(target, -1) >= places[part])]


def order_problems(source, module, numbers):
    """Imports from a chapter that comes later in the book; `numbers`: {module: number of its chapter}."""
    mine = numbers.get(module)
    return [f"{module} imports {name}, which comes later" for name in sorted(imported(source, module))
            if mine and numbers.get(name, mine) > mine]


def source_of(module):
    return contents(PACKAGE.parent / (module.replace(".", "/") + ".py"))


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    assert layer_problems(source_of(module), module) == []


@pytest.mark.parametrize("chapter", chapters(), ids=lambda c: c.stem)
def test_chapters_use_only_what_came_before(chapter):
    """Cells may look at the other part of their layer where the book has it before them; modules may not."""
    places = {part: place for place, part in enumerate(LAYERS)}
    numbers = {c.module: c.number for c in chapters()}
    code = "\n".join(re.sub(r"^(\s*)[%!].*$", r"\1pass", cell["source"], flags=re.MULTILINE) for cell in chapter.cells("code"))
    assert layer_problems(code, chapter.module, places) == [] and order_problems(code, chapter.module, numbers) == []


@pytest.mark.parametrize("source, problems", [
    ("from transformer_course.toolbox.runtime import seed_everything", 0), ("import transformer_course.toolbox", 0),
    ("from . import generation", 0), ("from ..toolbox import runtime", 0), ("import torch", 0),
    ("from transformer_course.text.bpe import BPETokenizer", 1), ("from ..attention import masks", 1), ("from .. import bert", 1),
    ("def f():\n    import transformer_course.modern.t5", 1), ("from transformer_course import nowhere", 1),
])
def test_imports_that_point_up_are_seen(source, problems):
    assert len(layer_problems(source, "transformer_course.metrics.classification")) == problems


def test_cells_may_look_back_at_the_other_part_of_their_layer():
    source, places = "from ..bert import model", {part: place for place, part in enumerate(LAYERS)}
    assert layer_problems(source, "transformer_course.vision.vit") and not layer_problems(source, "transformer_course.vision.vit", places)
    assert layer_problems("from ..vision import vit", "transformer_course.bert.model", places)


def test_imports_of_later_chapters_are_seen():
    numbers = {"transformer_course.metrics.a": "05", "transformer_course.metrics.b": "06"}
    assert order_problems("from .b import x", "transformer_course.metrics.a", numbers)
    assert not order_problems("from .a import x", "transformer_course.metrics.b", numbers)


# -- what an import costs and loads

def run(script):
    """Run a script in a new interpreter without the check of shapes (which loads more), and return what it prints."""
    clean = {"PATH": "", "TRANSFORMER_COURSE_CHECK_SHAPES": "0"}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=clean, cwd=ROOT.parent).stdout.split()


def heavy_after(statement):
    """The heavy packages that a statement loads."""
    return set(run(f"import sys\n{statement}\nprint(*[m for m in {sorted(HEAVY)} if m in sys.modules])"))


def milliseconds(statement):
    """The shortest of five times that a statement takes in a new interpreter."""
    script = f"import time; start = time.perf_counter(); {statement}; print((time.perf_counter() - start) * 1000)"
    return min(float(run(script)[0]) for _ in range(5))


def test_import_is_quick_and_light():
    assert heavy_after("import transformer_course") == set()
    assert milliseconds("import transformer_course") < 50


@pytest.mark.parametrize("part", PARTS)
def test_parts_import_nothing_heavy(part):
    assert heavy_after(f"import transformer_course.{part}") == set()
    assert milliseconds(f"import transformer_course.{part}") < 50


@pytest.mark.parametrize("module", [
    "metrics.classification", "metrics.sequence_labeling", "text.words_and_characters", "text.bpe", "text.wordpiece", "text.unigram",
    "text.word_vectors", "toolbox.exercises", "toolbox.teddy_world"])
def test_modules_without_tensors_load_no_torch(module):
    if f"transformer_course.{module}" not in MODULES:
        pytest.skip("not written yet")
    names = importlib.import_module(f"transformer_course.{module}").__all__
    assert "torch" not in heavy_after(f"from transformer_course.{module} import {', '.join(names)}")
    assert "torch" not in heavy_after(f"from transformer_course.{module.split('.')[0]} import {', '.join(names)}")


def test_the_measures_see_a_heavy_import():
    assert "numpy" in heavy_after("import numpy")
    assert milliseconds("import time; time.sleep(0.06)") > 50


# -- public names

def defined(source):
    """Public names that a module's source defines at its top level."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {t.id for target in targets for t in ast.walk(target) if isinstance(t, ast.Name) and isinstance(t.ctx, ast.Store)}
    return {name for name in names if not name.startswith("_")}


def listed(source):
    """What the source's `__all__` lists, or None."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets):
            return ast.literal_eval(node.value)
    return None


def all_problems(source):
    """What `__all__` leaves out, lists twice, or lists though the module does not define it."""
    names = listed(source)
    if names is None:
        return ["there is no __all__"]
    return ([f"{n} is not listed" for n in sorted(defined(source) - set(names))]
            + [f"{n} is listed but not defined" for n in sorted(set(names) - defined(source))]
            + [f"{n} is listed twice" for n, count in Counter(names).items() if count > 1])


@pytest.mark.parametrize("module", MODULES)
def test_all_lists_every_public_name(module):
    assert all_problems(source_of(module)) == []
    loaded = importlib.import_module(module)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []


@pytest.mark.parametrize("source, says", [
    ("x = 1", "no __all__"), ("__all__ = ['f']\ndef f(): pass\ndef g(): pass", "g is not listed"),
    ("__all__ = ['f', 'h']\ndef f(): pass", "h is listed but"), ("__all__ = ['f', 'f']\ndef f(): pass", "twice"),
    ("__all__ = []\nLIMIT: int = 3", "LIMIT is not listed"), ("__all__ = ['A']\nA, B = 1, 2", "B is not listed"),
])
def test_a_broken_all_fails(source, says):
    assert all_problems("__all__ = ['f', 'X']\nX = 1\n_y = 2\nclass f: pass\nimport os") == []
    assert any(says in problem for problem in all_problems(source))


def stub_names(stub):
    """{public name: module} that a part's __init__.pyi gives."""
    return {alias.asname: node.module for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom) for alias in node.names}


@pytest.mark.parametrize("part", PARTS)
def test_part_gives_the_public_names_of_its_modules(part):
    package = importlib.import_module(f"transformer_course.{part}")
    stub = stub_names(contents(PACKAGE / part / "__init__.pyi"))
    there = {name: module for module in PUBLIC if module.split(".")[1] == part for name in listed(source_of(module))}
    assert stub == {name: module.rsplit(".", 1)[1] for name, module in there.items()}
    assert sorted(package.__all__) == sorted(stub) and set(stub) <= set(dir(package))
    for name, module in there.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError):
        package.no_such_name


def test_package_gives_its_parts():
    package = importlib.import_module("transformer_course")
    assert sorted(package.__all__) == PARTS == sorted(set(dir(package)) & set(LAYERS))
    assert set(PARTS) == {chapter.part for chapter in chapters()}
    for part in PARTS:
        assert getattr(package, part).__name__ == f"transformer_course.{part}"


def test_every_public_name_is_defined_once():
    """A name that two chapters defined would mean two things, or one thing twice."""
    owners = [(name, module) for module in PUBLIC for name in listed(source_of(module))]
    assert [name for name, count in Counter(name for name, _ in owners).items() if count > 1] == []


def test_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()


# -- size, as CONTRIBUTING.md says

def size_problems(source):
    """Modules and classes that are so long that they hide two ideas."""
    bad = [f"the module has {n} lines" for n in [len(source.splitlines())] if n > 300]
    return bad + [f"class {node.name} has {node.end_lineno - node.lineno + 1} lines" for node in ast.walk(ast.parse(source))
                  if isinstance(node, ast.ClassDef) and node.end_lineno - node.lineno + 1 > 75]


def code_only(source):
    """The source without docstrings, comments and blank lines, which are as long as they need to be."""
    return ast.unparse(_without_docstrings(ast.parse(source)))


def _without_docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


@pytest.mark.parametrize("module", PUBLIC)
def test_modules_are_short(module):
    assert size_problems(code_only(source_of(module))) == []


def test_long_modules_are_seen():
    long = "class A:\n" + "".join(f"    x{i} = {i}\n" for i in range(80))
    assert size_problems(code_only(long)) == ["class A has 81 lines"]
    assert size_problems(code_only("x = 1\n" * 400)) == ["the module has 400 lines"]
    assert size_problems(code_only('"""Words.\n' + "\n" * 500 + '"""\nx = 1')) == []
