"""The wheel and the source distribution hold the package and nothing else, and the package works where only the wheel is installed."""
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import bare_environment
import nbformat
import pytest
from nbclient import NotebookClient
from reading import PACKAGE, ROOT, facts, tracked

pytestmark = pytest.mark.slow
META = f"{facts()['lib_name']}-{facts()['version']}"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, source distribution), built from a copy of what git would commit."""
    return bare_environment.build(tmp_path_factory.mktemp("build"))


def package_files():
    return {f"{PACKAGE.name}/{path.relative_to(PACKAGE).as_posix()}" for path in tracked() if PACKAGE in path.parents}


def wheel_problems(names, expected, meta):
    """Files of the package that a wheel lacks, and files that do not belong in it."""
    names = set(names)
    needed = expected | {f"{meta}.dist-info/{name}" for name in ("METADATA", "licenses/LICENSE", f"licenses/{PACKAGE.name}/toolbox/fonts/OFL.txt")}
    return ([f"{name} is missing" for name in sorted(needed - names)]
            + [f"{name} does not belong there" for name in sorted(names - expected) if not name.startswith(f"{meta}.dist-info/")])


def sdist_problems(names, expected, meta):
    names = {name.removeprefix(f"{meta}/") for name in names}
    needed = expected | {"pyproject.toml", "README.md", "LICENSE"}
    return ([f"{name} is missing" for name in sorted(needed - names)]
            + [f"{name} does not belong there" for name in sorted(names) if name.split("/")[0] in ("tests", "nbs", "book", "tools")])


def test_wheel_holds_the_package_alone(built):
    with zipfile.ZipFile(built[0]) as archive:
        assert wheel_problems(archive.namelist(), package_files(), META) == []
        about = archive.read(f"{META}.dist-info/METADATA").decode()
    assert f"Version: {facts()['version']}\n" in about and "License-Expression: Apache-2.0\n" in about
    assert all(f"Requires-Dist: {name}\n" in about for name in facts()["requirements"].split())
    assert "Description-Content-Type: text/markdown\n" in about


def test_source_distribution_holds_the_package_alone(built):
    with tarfile.open(built[1]) as archive:
        assert sdist_problems((member.name for member in archive if member.isfile()), package_files(), META) == []


def test_packaging_problems_are_seen():
    files = {"transformer_course/py.typed", "transformer_course/metrics/__init__.pyi", "transformer_course/toolbox/fonts/CourseHangul.ttf"}
    about = {f"x-1.dist-info/{name}" for name in ("METADATA", "licenses/LICENSE", "licenses/transformer_course/toolbox/fonts/OFL.txt", "RECORD")}
    assert wheel_problems(files | about, files, "x-1") == []
    for name in (files | about) - {"x-1.dist-info/RECORD"}:
        assert wheel_problems((files | about) - {name}, files, "x-1") == [f"{name} is missing"]
    assert wheel_problems(files | about | {"tests/test_x.py"}, files, "x-1") == ["tests/test_x.py does not belong there"]
    source = {f"x-1/{name}" for name in files | {"pyproject.toml", "README.md", "LICENSE"}}
    assert sdist_problems(source, files, "x-1") == []
    assert sdist_problems(source | {"x-1/nbs/a.ipynb"}, files, "x-1") == ["nbs/a.ipynb does not belong there"]
    assert sdist_problems(source - {"x-1/LICENSE"}, files, "x-1") == ["LICENSE is missing"]


# -- a bare environment: Python, a kernel and the wheel. With `--bare` every notebook runs in it too

@pytest.fixture(scope="module")
def bare(tmp_path_factory, request, missing):
    """The folder of the bare environment: the one that the notebooks of this run are in, or one made here."""
    if at_hand := os.environ.get(bare_environment.VARIABLE):
        return Path(at_hand)
    folder = tmp_path_factory.mktemp("bare")
    try:
        bare_environment.create(folder, request.getfixturevalue("built")[0])
    except bare_environment.CannotInstall as error:
        missing(str(error))
    return folder


WHERE = r"""
import os, sys
import transformer_course
print(transformer_course.__file__, os.getcwd(), os.listdir(), "beartype" in sys.modules, sep="\n")
"""


def test_kernel_sees_nothing_of_the_repository(bare, monkeypatch):
    """As nbval starts it, in a folder of notebooks, with the repository on PYTHONPATH and shapes to be checked."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TRANSFORMER_COURSE_CHECK_SHAPES", "1")
    monkeypatch.setenv("JUPYTER_PATH", str(bare))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(WHERE)])
    NotebookClient(notebook, kernel_name=bare_environment.KERNEL, resources={"metadata": {"path": str(ROOT / "nbs/metrics")}}).execute()
    package, folder, files, checked = notebook.cells[0].outputs[0].text.splitlines()
    assert Path(package).is_relative_to(bare / "env") and Path(folder) == bare / "work" and (files, checked) == ("[]", "False")


def test_notebooks_run_in_the_bare_environment_when_asked(request):
    """What `make test` asks for is what nbval was given."""
    option = request.config.option
    asked = bool(os.environ.get(bare_environment.VARIABLE))
    assert (option.nbval_kernel_name == bare_environment.KERNEL and not option.nbval_current_env) == asked
    assert "--bare" in (ROOT / "Makefile").read_text()


SMOKE = """
import sys
import transformer_course
assert not {"torch", "numpy", "matplotlib"} & set(sys.modules)
from importlib.metadata import version
assert version("transformer_course") == transformer_course.__version__
from transformer_course.metrics import accuracy, confusion_matrix
assert accuracy([1, 0], [1, 1]) == 0.5 and confusion_matrix([1, 0], [1, 1]).tolist() == [[0, 1], [0, 1]]
assert "torch" not in sys.modules
from transformer_course.toolbox import check, count_parameters, seed_everything
import torch
seed_everything(0)
assert count_parameters(torch.nn.Linear(3, 2)) == 8 and check("05.false-alarms", 2)
print("works")
"""


def test_installed_package_works(bare):
    shown = subprocess.run([bare_environment.python(bare), "-c", SMOKE], cwd=bare / "work", env=bare_environment.clean(), capture_output=True, text=True)
    assert shown.stdout == "works\n", shown.stderr
