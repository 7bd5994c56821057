"""Write small intersphinx inventories into book/inv, so that the book links to other projects without asking them.

Add a line when the build says that a reference to Python, numpy, torch or matplotlib was not found.
"""
import zlib
from pathlib import Path

OUT = Path(__file__).resolve().parent.parent / "book/inv"

BUILTINS = "int float bool str list dict tuple set frozenset bytes object type complex".split()
EXCEPTIONS = "Exception ValueError TypeError KeyError FileNotFoundError FileExistsError ImportError IndexError OSError RuntimeError KeyboardInterrupt ArithmeticError FloatingPointError".split()
ABCS = "Callable Iterable Iterator Sequence Mapping Hashable Generator Sized Collection".split()
NAMES = {
    "python": [
        *(f"{n} py:class 1 library/{'stdtypes' if n in ('str', 'list', 'dict', 'tuple', 'set', 'frozenset', 'bytes') else 'functions'}.html#$ -" for n in BUILTINS),
        *(f"{n} py:exception 1 library/exceptions.html#$ -" for n in EXCEPTIONS),
        *(f"collections.abc.{n} py:class 1 library/collections.abc.html#$ -" for n in ABCS),
        *(f"collections.{n} py:class 1 library/collections.html#$ -" for n in ("Counter", "OrderedDict", "defaultdict")),
        "typing.Any py:data 1 library/typing.html#$ -", "typing.Literal py:data 1 library/typing.html#$ -",
        "pathlib.Path py:class 1 library/pathlib.html#$ -", "os.PathLike py:class 1 library/os.html#$ -",
        "random.Random py:class 1 library/random.html#$ -", "fractions.Fraction py:class 1 library/fractions.html#$ -",
    ],
    "numpy": ["numpy.ndarray py:class 1 reference/generated/numpy.ndarray.html -",
              "numpy.typing.ArrayLike py:data 1 reference/typing.html#numpy.typing.ArrayLike -",
              "numpy.typing.NDArray py:data 1 reference/typing.html#numpy.typing.NDArray -",
              "array_like std:term -1 glossary.html#term-array_like -"],
    "torch": ["torch.Tensor py:class 1 tensors.html -", "torch.Generator py:class 1 generated/torch.Generator.html -",
              "torch.device py:class 1 tensor_attributes.html#torch.device -", "torch.dtype py:class 1 tensor_attributes.html#torch.dtype -",
              "torch.nn.Module py:class 1 generated/torch.nn.Module.html -", "torch.nn.modules.module.Module py:class 1 generated/torch.nn.Module.html -",
              "torch.nn.Parameter py:class 1 generated/torch.nn.parameter.Parameter.html -",
              "torch.optim.Optimizer py:class 1 optim.html#torch.optim.Optimizer -", "torch.optim.optimizer.Optimizer py:class 1 optim.html#torch.optim.Optimizer -",
              "torch.optim.lr_scheduler.LRScheduler py:class 1 optim.html -"],
    "matplotlib": ["matplotlib.axes.Axes py:class 1 api/_as_gen/matplotlib.axes.Axes.html -",
                   "matplotlib.axes._axes.Axes py:class 1 api/_as_gen/matplotlib.axes.Axes.html -",
                   "matplotlib.figure.Figure py:class 1 api/_as_gen/matplotlib.figure.Figure.html -"],
}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for project, lines in NAMES.items():
        head = (f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
                "# The remainder of this file is compressed using zlib.\n")
        (OUT / f"{project}.inv").write_bytes(head.encode() + zlib.compress("".join(line + "\n" for line in lines).encode(), 9))


if __name__ == "__main__":
    main()
