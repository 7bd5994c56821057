"""Run notebooks from a clean kernel, store their outputs, and note how long each took and how much memory.

The measurements go to book/_data/runtimes.json, from which the page "How long it takes" is made.
"""
import json
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient

from chapters import ROOT, chapters

RUNTIMES = ROOT / "book/_data/runtimes.json"


class PeakMemory:
    """The largest resident memory of this process's children while the block runs, in bytes."""
    def __enter__(self):
        self.peak, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._stop.wait(0.1):
            total = 0
            for child in psutil.Process().children(recursive=True):
                try:
                    total += child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.peak = max(self.peak, total)

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def machine():
    """What ran the notebooks, in words."""
    memory = psutil.virtual_memory().total / 2**30
    return (f"{psutil.cpu_count()} cores of {platform.machine()}, {memory:.0f} GiB memory, "
            f"Python {platform.python_version()}, {platform.system()}")


def run(path):
    """Execute one notebook in place; return seconds and peak megabytes."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", coalesce_streams=True,
                            resources={"metadata": {"path": str(path.parent)}})
    start = time.perf_counter()
    with PeakMemory() as memory:
        client.execute()
    seconds = time.perf_counter() - start
    nbformat.write(notebook, path)
    return seconds, memory.peak / 2**20


def main(paths):
    os.environ |= {"TRANSFORMER_COURSE_PROGRESS": "0", "TRANSFORMER_COURSE_CHECK_SHAPES": "1"}
    record = json.loads(RUNTIMES.read_text()) if RUNTIMES.exists() else {"chapters": {}}
    for path in map(Path, paths):
        seconds, megabytes = run(path.resolve())
        print(f"{path}: {seconds:.1f} s, {megabytes:.0f} MB")
        subprocess.run([Path(sys.executable).with_name("nbdev_clean"), "--fname", str(path)], check=True, cwd=ROOT)
        record["machine"] = machine()
        record["chapters"][path.stem] = {"seconds": round(seconds, 1), "megabytes": round(megabytes)}
    present = {chapter.stem for chapter in chapters()}
    record["chapters"] = {k: v for k, v in sorted(record["chapters"].items()) if k in present}
    RUNTIMES.parent.mkdir(exist_ok=True)
    RUNTIMES.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
