"""What a run hands on to its kernels, with no GPU at hand: the device, the comparison of outputs, the check of shapes."""
import os
import re
import shutil
import subprocess
import sys

import pytest
from reading import ROOT, code, stream, write_notebook


def run_notebooks(folder, notebooks, device=None):
    """Run pytest as the project does (its conftest.py) over {name: cells}; return {name: outcomes of the cells}."""
    shutil.copy(ROOT / "conftest.py", folder)
    for name, cells in notebooks.items():
        write_notebook(folder / f"nbs/{name}.ipynb", [cell | {"id": f"c{i}"} for i, cell in enumerate(cells)])
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSFORMER_COURSE", "PYTEST"))}
    if device:
        env["TRANSFORMER_COURSE_DEVICE"] = device
    plugins = ("xdist", "cacheprovider", "benchmark", "hypothesispytest")
    command = [sys.executable, "-m", "pytest", "nbs", "-v", "--nbval", "--nbval-current-env", *(f"-pno:{name}" for name in plugins)]
    report = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True).stdout
    found = re.findall(r"^nbs/(\w+)::.* (PASSED|FAILED|ERROR|SKIPPED)", report, re.MULTILINE)
    return {name: [outcome for n, outcome in found if n == name] for name in notebooks}


def test_on_the_cpu_outputs_are_compared(tmp_path):
    """Also those of cells without an execution count, which `nbdev_clean` leaves behind."""
    device = code("import os\nprint(os.environ['TRANSFORMER_COURSE_DEVICE'])", [stream("cpu\n")])
    assert run_notebooks(tmp_path, {
        "right": [device, code("print(2)", [stream("2\n")])],
        "other": [device, code("print(2)", [stream("3\n")])],
        "unstored": [device, code("print(2)")],
        "raising": [device, code("1 / 0")],
    }) == {"right": ["PASSED", "PASSED"], "other": ["PASSED", "FAILED"], "unstored": ["PASSED", "FAILED"], "raising": ["PASSED", "FAILED"]}


def test_another_device_reaches_the_kernel_and_relaxes_the_comparison(tmp_path):
    """`meta` has shapes and no numbers: it shows where the device goes, and a cell that reads a number fails there."""
    cells = ["from transformer_course.toolbox.runtime import default_device\nprint(default_device())\nassert default_device().type == 'meta'",
             "import torch\nx = torch.ones(2, device=default_device())\nprint(x.device)\nassert x.is_meta", "float(x.sum())"]
    found = run_notebooks(tmp_path, {"sample": [code(source, [stream("cpu\n")]) for source in cells]}, "meta")
    assert found == {"sample": ["PASSED", "PASSED", "FAILED"]}


def test_this_run_hands_on_its_settings():
    assert os.environ["TRANSFORMER_COURSE_DEVICE"]
    assert os.environ["TRANSFORMER_COURSE_CHECK_SHAPES"] == "1" and os.environ["TRANSFORMER_COURSE_PROGRESS"] == "0"


def test_signatures_are_checked_in_this_run():
    from transformer_course.toolbox.exercises import exercise_ids
    with pytest.raises(Exception, match="Type-check error"):
        exercise_ids(5)
