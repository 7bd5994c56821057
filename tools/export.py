"""Write the package from the notebooks: nbdev's export, then each part's lazy `__init__`.

A part's `__init__.pyi` lists the public names of its modules; `__init__.py` reads that list at run time
(lazy-loader), so that importing a part loads nothing until a name is used.
"""
import ast
import os
import sys
from pathlib import Path

from nbdev.doclinks import nbdev_export

PARTS = {
    "toolbox": "What every chapter stands on: devices and seeds, figures, data, checkpoints, the training loop, exercises.",
    "metrics": "Language tasks and how to score them: classification, sequence labelling, generation.",
    "text": "From characters to vectors: tokenizers and word vectors.",
    "recurrent": "Sequences before Transformers: RNN, LSTM, sequence to sequence with attention.",
    "attention": "Scaled dot-product attention, masks, several heads.",
    "transformer": "The 2017 model, whole.",
    "modern": "What changed since 2017.",
    "bert": "BERT and its family.",
    "vision": "The Vision Transformer.",
}
INIT = '''"""{doc}"""
# Written by `make export`; do not edit.
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
'''


def public_names(module):
    """Names in the module's `__all__`, or none when it has no such list."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(getattr(t, "id", None) == "__all__" for t in node.targets):
            return [name for name in ast.literal_eval(node.value) if not name.startswith("_")]
    return []


def write(path, text):
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def write_inits(package):
    for folder in sorted(p for p in package.iterdir() if p.is_dir() and p.name in PARTS):
        lines = []
        for module in sorted(folder.glob("*.py")):
            if module.stem.startswith("_") or module.stem.endswith("_exercises"):
                continue
            names = public_names(module)
            if names:
                lines.append(f"from .{module.stem} import {', '.join(f'{n} as {n}' for n in sorted(names))}\n")
        write(folder / "__init__.py", INIT.format(doc=PARTS[folder.name]))
        write(folder / "__init__.pyi", "".join(lines))


def main(root="."):
    os.chdir(root)
    nbdev_export()
    write_inits(Path("transformer_course"))


if __name__ == "__main__":
    main(*sys.argv[1:])
