"""The block with its parts named in a recipe: the same as the published models, with a cache too; what is stored; what is cited."""
import copy
import importlib.util
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from transformer_course.attention.multi_head_attention import MultiHeadAttention
from transformer_course.modern import _one_block as block
from transformer_course.modern.kv_cache import KVCache, kv_cache_bytes
from transformer_course.toolbox.exercises import check
from transformer_course.toolbox.runtime import count_parameters

ROOT = Path(__file__).parents[1]
RUNGS = block.rungs()


# -- plausible answers that are wrong, for each exercise that is checked

def _jumps(start, end):
    return [start, end]


def _backwards(start, end):
    path = [start]
    for name in reversed(vars(start)):
        if vars(start)[name] != vars(end)[name]:
            path.append(replace(path[-1], **{name: vars(end)[name]}))
    return path


def _always_from_start(start, end):
    return [start, *(replace(start, **{n: vars(end)[n]}) for n in vars(start) if vars(start)[n] != vars(end)[n])]


def _every_field(start, end):
    path = [start]
    for name in vars(start):
        path.append(replace(path[-1], **{name: vars(end)[name]}))
    return path


def _undivided(weight=True, bias=True, fresh=True, root=False, also_key=False, given=True):
    def undivided(attention):
        other = copy.deepcopy(attention) if fresh else attention
        scale = attention.head_dim ** -0.5 if attention.scale is None or not given else attention.scale
        scale = scale ** 0.5 if root else scale
        with torch.no_grad():
            for layer in (other.query, other.key)[:1 + also_key]:
                if weight:
                    layer.weight *= scale
                if bias and layer.bias is not None:
                    layer.bias *= scale
        other.scale = 1.0
        return other
    return undivided


WRONG = [
    ("35.by-hand", [[7_087_872, 7_077_888], [7_077_888, 7_079_424], [7_087_872, 9_438_720], [7_079_424, 7_087_872]]),
    ("35.one-at-a-time", [_jumps, _backwards, _always_from_start, _every_field, lambda a, b: [b]]),
    ("35.undivided", [_undivided(weight=False), _undivided(bias=False), _undivided(fresh=False), _undivided(root=True), _undivided(also_key=True), _undivided(given=False)]),
    ("35.parallel", [lambda x, norm, a, f: x + a(norm(x)) + f(norm(x)), lambda x, norm, a, f: norm(x) + a(norm(x)) + f(norm(x)),
                     lambda x, norm, a, f: (x + a(norm(x))) + f(norm(x + a(norm(x)))), lambda x, norm, a, f: (lambda n: n + a(n) + f(n))(norm(x)),
                     lambda x, norm, a, f: norm(x + a(x) + f(x))]),
]


def test_the_right_undivided_is_right():
    assert check("35.undivided", _undivided())


@pytest.mark.parametrize(("exercise", "answers"), WRONG)
def test_checkers_reject_plausible_wrong_answers(exercise, answers):
    for answer in answers:
        assert not check(exercise, answer), answer


# -- the assembly

@pytest.mark.parametrize("name", RUNGS)
def test_every_rung_sees_nothing_ahead_and_learns(name):
    model = block.new_model(30, RUNGS[name]).double()
    ids = torch.randint(30, (2, 12), generator=torch.Generator().manual_seed(0))
    other = ids.clone()
    other[:, -1] = (other[:, -1] + 1) % 30
    with torch.no_grad():
        a, b = model(ids), model(other)
    assert torch.equal(a[:, :-1], b[:, :-1]) and not torch.equal(a[:, -1], b[:, -1])
    block.word_losses(model, ids).mean().backward()
    unused = [key for key, parameter in model.named_parameters() if parameter.grad is None]
    assert not unused


@pytest.mark.parametrize("name", [name for name, recipe in RUNGS.items() if not recipe.encoder and recipe.position != "learned"
                                  and recipe.position != "sinusoidal"])
def test_a_cache_changes_nothing(name):
    model, ids = block.new_model(30, RUNGS[name]).double(), torch.randint(30, (2, 11), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(model(ids, KVCache(block.LAYERS, 11, RUNGS[name].window)), model(ids), atol=1e-12)


def test_cache_bytes_are_those_of_the_formula():
    for name, recipe in RUNGS.items():
        if recipe.encoder:
            layers, length = block.LAYERS // 2, block.TESTED // 2
            expected = sum(kv_cache_bytes(layers, heads, 16, length, dtype=torch.float32) for heads in (recipe.kv_heads, block.HEADS))
        else:       # with a window the cache reserves twice as much as it needs, and no more than the text
            length = block.TESTED if recipe.window is None else 2 * recipe.window
            expected = kv_cache_bytes(block.LAYERS, recipe.kv_heads, 16, length, dtype=torch.float32)
        assert block.cache_bytes(block.new_model(30, recipe)) == expected, name


def test_a_recipe_puts_in_what_it_says():
    kinds = {type(part).__name__ for part in block.Assembly(30, RUNGS["LLaMA"]).modules()}
    assert {"RMSNorm", "GatedFeedForward"} <= kinds and not {"LayerNorm", "FeedForward"} & kinds
    assert isinstance(block.Assembly(30, RUNGS["2017"]).decoder.layers[0].cross_attention.sublayer, MultiHeadAttention)
    assert not any(isinstance(part, nn.Linear) and part.bias is not None for part in block.Assembly(30, RUNGS["T5"]).modules())


def test_training_depends_on_the_seed_alone():
    words = torch.randint(30, (500,), generator=torch.Generator().manual_seed(0))
    runs = [block.train(RUNGS["Mistral"], seed, words, 30, steps=30, stop=3)[1] for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


# -- what is stored, and what is cited

def _script():
    spec = importlib.util.spec_from_file_location("measure_one_block", ROOT / "tools" / "measure_one_block.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_stored_runs_are_those_of_todays_recipes():
    stored = block.stored_results()["runs"]
    for kind, recipes in (("rungs", RUNGS), ("put back", block.put_back()), ("control", {"second halves only": RUNGS["GPT: encoder"]})):
        runs = [run for run in stored if run["kind"] == kind]
        assert sorted((run["name"], run["seed"]) for run in runs) == sorted((name, seed) for name in recipes for seed in (0, 1, 2))
        for run in runs:
            assert run["recipe"] == asdict(recipes[run["name"]])
    vocab_size = block.story_words()[2]
    for run in stored:
        if run["kind"] == "rungs":
            assert run["parameters"] == count_parameters(block.Assembly(vocab_size, RUNGS[run["name"]]))


def test_the_survey_says_what_the_library_says():
    stored = block.stored_results()
    if stored["made_with"]["transformers"] != transformers.__version__:
        pytest.skip(f"counted in transformers {stored['made_with']['transformers']}, not in {transformers.__version__}")
    rows = [{key: value for key, value in run.items() if key not in ("kind", "seconds")} for run in stored["runs"] if run["kind"] == "survey"]
    assert rows == list(_script().survey(None))


def test_the_papers_of_the_reading_list_are_in_the_bibliography():
    entries = re.split(r"\n(?=@)", (ROOT / "book" / "references.bib").read_text("utf-8"))
    wanted = {"1706.03762": ("vaswani", 2017), "1810.04805": ("devlin", 2019), "2104.09864": ("su", 2024), "1910.01108": ("sanh", 2019),
              "1907.11692": ("liu", 2019)}
    for arxiv, (author, year) in wanted.items():
        assert any(arxiv in entry and re.match(rf"@\w+\{{{author}{year}", entry) for entry in entries), arxiv
