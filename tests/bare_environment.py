"""An environment with Python, a Jupyter kernel and the built wheel in it, and nothing of this repository: what a learner has.

`make test` runs the notebooks there, so that they need no file and no package which a reader behind a Colab button would lack.
"""
import json
import os
import shutil
import subprocess
import sys
import venv

import nbformat
from chapters import chapters
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from reading import ROOT, tracked

KERNEL = "bare"
VARIABLE = "BARE_ENVIRONMENT"  # its folder, for the processes of one test run
# `-I`: neither PYTHONPATH nor the folder that the notebook is in; that one is left too, so that no file beside it is at hand.
LAUNCH = "import os, runpy, sys; os.chdir(sys.argv.pop(1)); runpy.run_module('ipykernel_launcher', run_name='__main__')"


class CannotInstall(RuntimeError):
    """pip installs nothing here: there is no network and no index at hand."""


def build(folder):
    """(wheel, source distribution) of the package, built in `folder` from a copy of what git would commit."""
    for path in tracked():
        if path.relative_to(ROOT).parts[0] not in ("nbs", ".github"):
            target = folder / "tree" / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "tree"], check=True, capture_output=True)
    return next((folder / "dist").glob("*.whl")), next((folder / "dist").glob("*.tar.gz"))


def python(folder):
    """The Python of the environment that `create` made in `folder`."""
    return folder / "env/bin/python"


def clean():
    """The variables of this process without those that would show in another environment that it was started from here."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "TRANSFORMER_COURSE", "PYTEST"))}


def create(folder, wheel):
    """Make the environment in `folder`; a chapter's own first cell installs the wheel in it.

    The kernel is called "bare"; Jupyter finds it where JUPYTER_PATH names `folder`. Raises CannotInstall where pip can install nothing.
    """
    venv.create(folder / "env", with_pip=True)
    (folder / "work").mkdir()
    (folder / "kernels" / KERNEL).mkdir(parents=True)
    spec = {"argv": [str(python(folder)), "-I", "-c", LAUNCH, str(folder / "work"), "-f", "{connection_file}"], "display_name": "bare",
            "language": "python", "env": {"TRANSFORMER_COURSE_CHECK_SHAPES": "0", "PYTHONNOUSERSITE": "1"}}
    (folder / "kernels" / KERNEL / "kernel.json").write_text(json.dumps(spec))

    env = clean() | {"TRANSFORMER_COURSE_SOURCE": wheel.as_uri(),  # with the releases of the lock, lest a new one elsewhere break the tests
                     "PIP_CONSTRAINT": str(ROOT / "requirements.txt"), "PIP_COMPILE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                     "PIP_ROOT_USER_ACTION": "ignore"}
    installed = subprocess.run([python(folder), "-m", "pip", "install", "-q", "ipykernel"], env=env, cwd=folder, capture_output=True, text=True)
    if installed.returncode:
        raise CannotInstall(f"pip installs nothing here: {installed.stderr.strip().splitlines()[-1:]}")
    notebook = nbformat.read(chapters()[0].path, as_version=4)
    notebook.cells = [next(cell for cell in notebook.cells if cell.cell_type == "code")]
    specs = KernelSpecManager(kernel_dirs=[str(folder / "kernels")], ensure_native_kernel=False)
    client = NotebookClient(notebook, km=AsyncKernelManager(kernel_name=KERNEL, kernel_spec_manager=specs), timeout=900)
    client.execute(env=env, cleanup_kc=True)
