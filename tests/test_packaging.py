"""The wheel and the source distribution hold the package and nothing else, and every chapter runs where only the wheel is installed."""
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile

import nbformat
import pytest
from chapters import chapters
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from reading import PACKAGE, ROOT, facts, tracked

pytestmark = pytest.mark.slow
META = f"{facts()['lib_name']}-{facts()['version']}"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, source distribution), built from a copy of what git would commit."""
    folder = tmp_path_factory.mktemp("build")
    for path in tracked():
        if path.relative_to(ROOT).parts[0] not in ("nbs", ".github"):
            target = folder / "tree" / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "tree"],
                   check=True, capture_output=True)
    return next((folder / "dist").glob("*.whl")), next((folder / "dist").glob("*.tar.gz"))


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


# -- a bare environment: Python and a kernel, no package

@pytest.fixture(scope="module")
def bare(tmp_path_factory, built, missing):
    """A folder outside the repository with an empty environment in it; kernels started there install the built wheel."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env/bin/python"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "TRANSFORMER_COURSE", "PYTEST"))}
    env |= {"TRANSFORMER_COURSE_SOURCE": built[0].as_uri(),  # with the releases of the lock, lest a new one elsewhere break this test
            "PIP_CONSTRAINT": str(ROOT / "requirements.txt"), "PIP_COMPILE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore",
            "TRANSFORMER_COURSE_PROGRESS": "0", "TRANSFORMER_COURSE_DEVICE": "cpu", "PYTHONNOUSERSITE": "1"}
    installed = subprocess.run([python, "-m", "pip", "install", "-q", "ipykernel"], env=env, cwd=folder, capture_output=True, text=True)
    if installed.returncode:
        missing(f"pip installs nothing here: {installed.stderr.strip().splitlines()[-1:]}")
    spec = {"argv": [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "bare", "language": "python"}
    (folder / "kernels/bare").mkdir(parents=True)
    (folder / "kernels/bare/kernel.json").write_text(json.dumps(spec))
    (folder / "work").mkdir()
    return folder / "work", python, env, KernelSpecManager(kernel_dirs=[str(folder / "kernels")], ensure_native_kernel=False)


WHERE = nbformat.v4.new_code_cell("import transformer_course\nprint(transformer_course.__file__)")


@pytest.mark.parametrize("chapter", chapters(), ids=lambda c: c.stem)
def test_chapter_runs_in_a_bare_environment(bare, chapter):
    """As behind its Colab button: no step by hand, and nothing of the repository at hand. The first one installs the wheel."""
    folder, python, env, specs = bare
    notebook = nbformat.read(chapter.path, as_version=4)
    notebook.cells.append(WHERE)
    manager = AsyncKernelManager(kernel_name="bare", kernel_spec_manager=specs)
    client = NotebookClient(notebook, km=manager, timeout=600, resources={"metadata": {"path": str(folder)}})
    client.execute(env=env, cwd=str(folder), cleanup_kc=True)  # or every kernel would stay, with its memory, to the end of the run
    assert notebook.cells[-1].outputs[0].text.startswith(str(python.parent.parent))


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
    folder, python, env, _ = bare
    there = subprocess.run([python, "-c", "import transformer_course"], cwd=folder, env=env, capture_output=True).returncode == 0
    if not there:  # no chapter ran before
        subprocess.run([python, "-m", "pip", "install", "-q", env["TRANSFORMER_COURSE_SOURCE"]], cwd=folder, env=env, check=True)
    shown = subprocess.run([python, "-c", SMOKE], cwd=folder, env=env, capture_output=True, text=True)
    assert shown.stdout == "works\n", shown.stderr
