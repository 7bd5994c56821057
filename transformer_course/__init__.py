"""Transformers from the confusion matrix to BERT and ViT.

Nothing heavy is imported here: each part (`toolbox`, `metrics`, ...) and each of its names loads when first used.
With `TRANSFORMER_COURSE_CHECK_SHAPES=1` every annotated tensor shape is checked at run time.
"""
__version__ = "0.1.0"

import os

import lazy_loader

if os.environ.get("TRANSFORMER_COURSE_CHECK_SHAPES") == "1":
    from pathlib import Path

    from jaxtyping import install_import_hook
    # Private modules take no tensors, and some are called a million times: they are left out.
    install_import_hook([f"transformer_course.{path.parent.name}.{path.stem}"
                         for path in Path(__file__).parent.glob("*/*.py") if not path.stem.startswith("_")],
                        # As everywhere in Python's typing, an int will do where a float is asked for (PEP 484).
                        "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=[
    "attention", "bert", "metrics", "modern", "recurrent", "text", "toolbox", "transformer", "vision"])
