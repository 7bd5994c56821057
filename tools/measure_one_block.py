"""Train the models that chapter 35 makes of one block, and count what published models are made of.

    python tools/measure_one_block.py                     # about a quarter of an hour on one thread
    python tools/measure_one_block.py --only survey       # one part again; needs transformers

`rungs`: each step of the ways from 2017 to the later models. `put back`: the last of them with one old part. `control`: the first
step, trained on the second halves alone. `survey`: which parts the language models of the Transformers library have by default.
Results go to transformer_course/modern/one_block_results.json, with every seed, versions and times.
"""
import argparse
import json
import platform
import re
import sys
import time
import warnings
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch

from transformer_course.modern._one_block import TESTED, held_out_loss, put_back, rungs, story_words, train
from transformer_course.toolbox.runtime import count_parameters

STORE = Path(__file__).parents[1] / "transformer_course" / "modern" / "one_block_results.json"
SEEDS = 0, 1, 2


def trained(recipes, steps, **how):
    words, test, vocab_size = story_words()
    for name, recipe in recipes.items():
        for seed in SEEDS:
            model, losses = train(recipe, seed, words, vocab_size, steps, **how)
            yield {"name": name, "seed": seed, "recipe": asdict(recipe), "parameters": count_parameters(model),
                   "first": [round(loss, 5) for loss in losses[:8]], "loss": round(held_out_loss(model, test), 4),
                   "longer": round(held_out_loss(model, test, TESTED), 4)}


def bigrams(steps):
    """The loss of counted pairs of words, each plus one tenth, on the same words of the test."""
    words, test, vocab_size = story_words()
    counts = torch.full((vocab_size, vocab_size), 0.1)
    counts.index_put_((words[:-1], words[1:]), torch.ones(len(words) - 1), accumulate=True)
    log_probs = (counts / counts.sum(dim=1, keepdim=True)).log()
    yield {"name": "pairs of words", "loss": round(-log_probs[test[:-1], test[1:]].mean().item(), 4)}


def default_config(name):
    """The config of a model with all its defaults, of the part that reads text; None where it has none."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING
    try:
        return CONFIG_MAPPING[name]().get_text_config(decoder=True)
    except StrictDataclassError:        # one that cannot do without arguments
        return None


def setting(config, name):
    """A setting that is one for all layers, or None."""
    from transformers.integrations.heterogeneity.configuration_utils import AmbiguousGlobalPerLayerAttributeError
    try:
        return getattr(config, name, None)
    except AmbiguousGlobalPerLayerAttributeError:   # each layer has its own
        return None


def survey(steps):
    """Decoder-only models with attention that the Transformers library can build from defaults, and their parts."""
    from transformers.models.auto import modeling_auto as auto
    others = {*auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, *auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES}
    for name in sorted(set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - others):
        config = default_config(name)
        heads, held = (setting(config, key) for key in ("num_attention_heads", "num_key_value_heads"))
        again = name.endswith("_text") and name.removesuffix("_text") in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if config is None or again or not isinstance(heads, int) or setting(config, "is_encoder_decoder"):
            continue
        folder = Path(sys.modules[type(config).__module__].__file__).parent
        code = "".join(path.read_text("utf-8") for path in sorted(folder.glob("modeling_*.py")))
        if not code:                    # written with the classes of another model
            continue
        kinds = {kind for kind in setting(config, "layer_types") or ()}
        window = bool(setting(config, "sliding_window")) and setting(config, "use_sliding_window") is not False
        slides = "sliding_attention" in kinds if kinds else window
        yield {"name": name, "rms": "RMSNorm" in code, "rotary": bool(re.search("rotary", code, re.IGNORECASE)),
               "grouped": isinstance(held, int) and held < heads,
               "window": slides, "full": "full_attention" in kinds or not kinds and not slides}


KINDS = {"rungs": lambda steps: trained(rungs(), steps), "put back": lambda steps: trained(put_back(), steps), "pairs": bigrams,
         "control": lambda steps: trained({"second halves only": rungs()["GPT: encoder"]}, steps, half=True), "survey": survey}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="parts to make again")
    parser.add_argument("--steps", type=int, default=300, help="of each training")
    parser.add_argument("--store", type=Path, default=STORE, help="where to put the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")     # configs of other libraries warn about their own defaults
    results = json.loads(arguments.store.read_text("utf-8")) if arguments.store.exists() else {"runs": []}
    made_with = {"python": platform.python_version(), "torch": torch.__version__, "transformers": version("transformers"),
                 "transformer_course": version("transformer_course")}
    for kind in arguments.only:
        kept, started = [run for run in results["runs"] if run["kind"] != kind], time.process_time()
        for run in KINDS[kind](arguments.steps):
            now = time.process_time()
            kept.append({"kind": kind, **run, "seconds": round(now - started, 1)})
            started = now
            print({key: value for key, value in kept[-1].items() if key not in ("first", "recipe")}, flush=True)
            results = {"made_with": made_with, "seconds": round(sum(run["seconds"] for run in kept), 1), "steps": arguments.steps,
                       "runs": kept}
            arguments.store.write_text(json.dumps(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
