"""What every test and every notebook runs under; nbval's strict comparison; the record of parity with other libraries."""
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

ROOT = Path(__file__).parent
PARITY = ROOT / "book/_data/parity.json"

# Set before any kernel or the package is started: kernels inherit them.
os.environ.setdefault("TRANSFORMER_COURSE_CHECK_SHAPES", "1")
os.environ.setdefault("TRANSFORMER_COURSE_PROGRESS", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if os.environ.get("PYTEST_XDIST_WORKER"):  # as many processes as cores: threads of theirs would only wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")
ON_CPU = os.environ.get("TRANSFORMER_COURSE_DEVICE", "cpu") == "cpu"
if ON_CPU:
    os.environ["TRANSFORMER_COURSE_DEVICE"] = "cpu"  # stored outputs are the CPU's, on every machine

hypothesis.settings.register_profile(  # the same examples every time, and a test does not fail for being slow
    "course", derandomize=True, deadline=None, max_examples=25, database=None)
hypothesis.settings.load_profile("course")


def pytest_configure(config):
    if not ON_CPU:  # on another device every cell runs and every assertion holds, but text may differ
        config.option.nbval, config.option.nbval_lax = False, True
    if config.option.bare:
        use_bare_environment(config)


def use_bare_environment(config):
    """Let nbval run the notebooks where only the wheel is installed. The first process makes that place, for its workers too."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]
    import bare_environment
    if not hasattr(config, "workerinput"):
        folder = Path(tempfile.mkdtemp(prefix="bare-"))
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        try:
            bare_environment.create(folder, bare_environment.build(folder)[0])
        except bare_environment.CannotInstall as error:
            config.issue_config_time_warning(pytest.PytestWarning(f"notebooks run in this environment, not in a bare one: {error}"), stacklevel=2)
            return
        os.environ |= {bare_environment.VARIABLE: str(folder), "JUPYTER_PATH": str(folder)}
    if bare_environment.VARIABLE in os.environ:
        config.option.nbval_current_env, config.option.nbval_kernel_name = False, bare_environment.KERNEL


def pytest_addoption(parser):
    parser.addoption("--bare", action="store_true", help="run the notebooks where only the built wheel is installed (takes two minutes to prepare)")
    parser.addoption("--record-parity", action="store_true", help="store what the comparisons saw in book/_data/parity.json")


def pytest_itemcollected(item):
    """`nbdev_clean` blanks execution counts, and nbval then takes cells for never run: it compares nothing."""
    cell = getattr(item, "cell", None)  # only nbval's items have one
    if cell is not None and cell.get("execution_count") is None:
        cell["execution_count"] = 0


def pytest_collection_modifyitems(config, items):
    """Speed bounds need the machine for themselves: they run only when asked for by `-m bench`."""
    if config.option.markexpr:
        return
    bench = [item for item in items if item.get_closest_marker("bench")]
    config.hook.pytest_deselected(items=bench)
    items[:] = [item for item in items if item not in bench]


class Parity:
    """Assert that an export agrees with a reference library, and keep the largest difference seen."""

    def __init__(self):
        self.seen = {}

    def __call__(self, export, distribution, difference, tolerance, inputs):
        """`export`: dotted name; `distribution`: the reference as pip names it; `inputs`: what was tried, in words."""
        assert difference <= tolerance, f"{export} differs from {distribution} by {difference} (at most {tolerance} wanted)"
        row = self.seen.setdefault((export, distribution, inputs), 0.0)
        self.seen[export, distribution, inputs] = max(row, float(difference))

    def rows(self):
        return [{"export": e, "reference": d, "version": importlib.metadata.version(d).split("+")[0], "inputs": i, "difference": x}
                for (e, d, i), x in sorted(self.seen.items())]


@pytest.fixture(scope="session")
def parity(request):
    record = Parity()
    yield record
    if request.config.option.record_parity:
        old = json.loads(PARITY.read_text()) if PARITY.exists() else []
        fresh = {(r["export"], r["reference"], r["inputs"]) for r in record.rows()}
        names = {(r["export"], r["reference"]) for r in record.rows()}
        kept = [r for r in old if (r["export"], r["reference"], r["inputs"]) not in fresh
                and (r["export"], r["reference"]) not in names]
        rows = sorted(kept + record.rows(), key=lambda r: (r["export"], r["reference"], r["inputs"]))
        PARITY.parent.mkdir(exist_ok=True)
        PARITY.write_text(json.dumps(rows, indent=1) + "\n")
        return
    stored = {(r["export"], r["reference"], r["inputs"]) for r in json.loads(PARITY.read_text())}
    missing = sorted(set(record.seen) - stored)
    assert not missing, f"not in {PARITY.name}, run `make parity`: {missing}"


@pytest.fixture
def unchecked():
    """Turn the run-time check of types and shapes off: for tests of wrong input, which it would refuse first."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
