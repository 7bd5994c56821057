"""Chapter 00: seeds, devices and counts, known faults, and the wrong things."""
import math
import os
import random
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from transformer_course.toolbox import runtime as ours
from transformer_course.toolbox.exercises import check

MODULE = "transformer_course.toolbox.runtime"
SEEDS = st.integers(0, 2**32 - 1)


# seed_everything ---------------------------------------------------------------------------------------------------

def draws(generator):
    """A draw from each stream."""
    return [random.random(), float(np.random.rand()), torch.rand(5).tolist(), torch.rand(5, generator=generator).tolist()]


@given(SEEDS)
def test_every_stream_starts_again(seed):
    assert draws(ours.seed_everything(seed)) == draws(ours.seed_everything(seed))


@given(SEEDS)
def test_the_global_streams_are_those_of_the_seed_itself(seed):
    ours.seed_everything(seed)
    mine = draws(torch.Generator())[:3]
    random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
    assert mine == draws(torch.Generator())[:3] and torch.initial_seed() == seed


@given(SEEDS, SEEDS)
def test_another_seed_gives_other_streams(a, b):
    if a != b:
        assert all(x != y for x, y in zip(draws(ours.seed_everything(a)), draws(ours.seed_everything(b))))


def test_the_generator_is_on_the_cpu_and_stays_what_it_is():
    generator = ours.seed_everything(0)
    assert generator.device.type == "cpu"
    assert torch.randint(0, 1000, (4,), generator=generator).tolist() == [676, 938, 673, 657]


@pytest.mark.usefixtures("unchecked")
def test_numpy_integers_are_seeds():
    assert draws(ours.seed_everything(np.int64(3))) == draws(ours.seed_everything(3))


def repeats(seed_function):
    first, again, other = draws(seed_function(7)), draws(seed_function(7)), draws(seed_function(8))
    return first == again and all(a != b for a, b in zip(first, other))


def generator_differs(seed_function):
    """Whether the generator repeats neither this seed's global stream nor a neighbour's."""
    own = {seed: torch.rand(4, generator=seed_function(seed)).tolist() for seed in range(50)}
    return all(torch.rand(4, generator=torch.Generator().manual_seed(seed)).tolist() not in own.values() for seed in range(-1, 60))


def is_independent_of_the_global_state(seed_function):
    generator = seed_function(0)
    torch.rand(3)
    return torch.equal(torch.rand(3, generator=generator), torch.rand(3, generator=seed_function(0)))


PROPERTIES = [repeats, generator_differs, is_independent_of_the_global_state]


def twin_streams(seed):
    ours.seed_everything(seed)
    return torch.Generator().manual_seed(seed)


def neighbouring_stream(seed):
    ours.seed_everything(seed)
    return torch.Generator().manual_seed(seed + 1)


def the_global_generator(seed):
    ours.seed_everything(seed)
    return torch.default_generator


def forgets_numpy(seed):
    random.seed(seed), torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed * 7919 + 12345)


def forgets_the_generator(seed):
    ours.seed_everything(seed)
    return torch.Generator()


def a_new_seed_each_time(seed):
    generator = ours.seed_everything(seed)
    generator.seed()
    return generator


@pytest.mark.parametrize("prop", PROPERTIES, ids=lambda p: p.__name__)
def test_seed_everything_has_the_property(prop):
    assert prop(ours.seed_everything)


@pytest.mark.parametrize("fault", [twin_streams, neighbouring_stream, the_global_generator, forgets_numpy,
                                   forgets_the_generator, a_new_seed_each_time])
def test_faulty_seeding_is_caught(fault):
    assert not all(prop(fault) for prop in PROPERTIES)


@pytest.mark.parametrize("seed, error, says", [
    (-1, ValueError, r"seed \(-1\) must lie between 0 and 4294967295"),
    (2**32, ValueError, r"seed \(4294967296\) must lie"),
    (1.0, TypeError, r"seed \(1.0\) must be an integer"),
    ("1", TypeError, r"seed \('1'\) must be an integer"),
    (None, TypeError, r"seed \(None\) must be an integer"),
    (True, TypeError, r"seed \(True\) must be an integer"),
    (torch.tensor(0.5), TypeError, "integer"),
    (torch.tensor(True), TypeError, r"seed \(tensor\(True\)\) must be an integer"),
    (np.True_, TypeError, "must be an integer"),
    (np.array([3]), TypeError, r"seed \(array\(\[3\]\)\) must be an integer"),
    (torch.ones((), dtype=torch.int64, device="meta"), TypeError, r"seed \(tensor\(.*meta.*\) must be an integer"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_seeds_are_refused_before_anything_is_seeded(seed, error, says):
    before = torch.get_rng_state()
    with pytest.raises(error, match=says):
        ours.seed_everything(seed)
    assert torch.equal(torch.get_rng_state(), before)


# default_device ----------------------------------------------------------------------------------------------------

@pytest.fixture
def machine(monkeypatch):
    """Pretend to have other hardware: machine(cuda=2, mps=True, named="cuda:1")."""
    def pretend(cuda=0, mps=False, named=None):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.delenv("TRANSFORMER_COURSE_DEVICE", raising=False)
        if named is not None:
            monkeypatch.setenv("TRANSFORMER_COURSE_DEVICE", named)
    return pretend


@pytest.mark.parametrize("have, device", [
    ({}, "cpu"), ({"mps": True}, "mps"), ({"cuda": 1}, "cuda"), ({"cuda": 2, "mps": True}, "cuda"),
    ({"cuda": 2, "named": "cuda:1"}, "cuda:1"), ({"cuda": 1, "named": "cpu"}, "cpu"), ({"mps": True, "named": "cpu"}, "cpu"),
    ({"named": "meta"}, "meta"), ({"named": " CPU "}, "cpu"), ({"cuda": 1, "named": ""}, "cuda"),
])
def test_the_device_is_the_named_one_or_the_fastest(machine, have, device):
    machine(**have)
    assert ours.default_device() == torch.device(device)


@pytest.mark.parametrize("have, says", [
    ({"named": "gpu"}, r"TRANSFORMER_COURSE_DEVICE \('gpu'\) must be one of cpu, meta on this machine"),
    ({"named": "cuda"}, r"\('cuda'\) must be one of cpu, meta"),
    ({"named": "mps"}, r"\('mps'\) must be one of cpu, meta"),
    ({"cuda": 1, "named": "cuda:1"}, r"\('cuda:1'\) must be one of cuda, cuda:0, cpu, meta"),
    ({"named": "cpu,cuda"}, "must be one of"),
])
def test_a_device_that_is_not_there_is_refused(machine, have, says):
    machine(**have)
    with pytest.raises(ValueError, match=says):
        ours.default_device()


def test_the_variable_reaches_a_new_process():
    code = "from transformer_course.toolbox.runtime import default_device as d; import torch; print(torch.ones(2, device=d()).device)"
    run = subprocess.run([sys.executable, "-c", code], env=os.environ | {"TRANSFORMER_COURSE_DEVICE": "meta"},
                         capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "meta"


# Trap 79: a draw belongs on the CPU. On `meta` nothing can be read, so the generator tells whether it was used.

def same_on_every_device(draw):
    """Whether draw(shape, generator, device) uses the generator alike for all devices, and lands on the device."""
    after = []
    for device in ("cpu", "meta"):
        generator, before = torch.Generator().manual_seed(3), torch.get_rng_state()
        if draw((17,), generator, device).device.type != device or not torch.equal(torch.get_rng_state(), before):
            return False
        after.append(torch.rand(3, generator=generator).tolist())
    return after[0] == after[1] != torch.rand(3, generator=torch.Generator().manual_seed(3)).tolist()


def draw_then_move(shape, generator, device):
    return torch.randn(shape, generator=generator).to(device)


def draw_on_the_device(shape, generator, device):
    return torch.randn(shape, device=device)


def seed_the_device(shape, generator, device):
    torch.manual_seed(generator.initial_seed())
    return torch.randn(shape, device=device)


def never_moved(shape, generator, device):
    return torch.randn(shape, generator=generator)


def a_generator_of_the_device(shape, generator, device):
    there = torch.Generator(device if device != "meta" else "cpu").manual_seed(generator.initial_seed())
    return torch.randn(shape, generator=there).to(device)


@pytest.mark.parametrize("fault", [draw_on_the_device, seed_the_device, never_moved, a_generator_of_the_device])
def test_draws_that_depend_on_the_device_are_caught(fault):
    assert same_on_every_device(draw_then_move)
    assert not same_on_every_device(fault)


# count_parameters --------------------------------------------------------------------------------------------------

def tied(device="cpu"):
    module = nn.Sequential(nn.Embedding(7, 3, device=device), nn.Linear(3, 7, bias=False, device=device))
    module[1].weight = module[0].weight
    return module


def frozen():
    module = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
    module[0].weight.requires_grad_(False)
    return module


def shared_layer():
    layer = nn.Linear(4, 4)
    return nn.ModuleList([layer, nn.ReLU(), layer])


class Weight(nn.Module):
    """Two parameters that are views of one storage, as a flattened recurrent layer keeps them."""
    def __init__(self):
        super().__init__()
        memory = torch.zeros(10)
        self.a, self.b = nn.Parameter(memory[:4]), nn.Parameter(memory[4:])


COUNTS = [  # module, all, learned
    (lambda: nn.Linear(5, 3), 18, 18),
    (lambda: nn.Linear(5, 3, bias=False), 15, 15),
    (lambda: nn.Linear(5, 3, device="meta"), 18, 18),
    (tied, 21, 21),
    (lambda: tied("meta"), 21, 21),
    (lambda: nn.Sequential(nn.Linear(2, 3, device="meta"), nn.Linear(3, 2, device="meta")), 17, 17),
    (frozen, 18 + 8, 3 + 8),
    (shared_layer, 20, 20),
    (lambda: nn.BatchNorm1d(4), 8, 8),
    (Weight, 10, 10),
    (lambda: nn.Identity(), 0, 0),
    (lambda: nn.LSTM(5, 3), 4 * (5 * 3 + 3 * 3 + 3 + 3), 120),
]


def counts_right(count):
    return all((count(make()), count(make(), trainable_only=True)) == (everything, learned)
               for make, everything, learned in COUNTS)


def counts_ties_twice(module, trainable_only=False):
    return sum(p.numel() for _, p in module.named_parameters(remove_duplicate=False) if p.requires_grad or not trainable_only)


def counts_by_address(module, trainable_only=False):
    """On meta every address is 0, so that all parameters look like one."""
    kept = {p.data_ptr(): p.numel() for p in module.parameters() if p.requires_grad or not trainable_only}
    return sum(kept.values())


def counts_the_state_dict(module, trainable_only=False):
    return sum(t.numel() for t in module.state_dict().values())


def counts_only_learned(module, trainable_only=False):
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def counts_only_the_top(module, trainable_only=False):
    return sum(p.numel() for p in module.parameters(recurse=False))


@pytest.mark.parametrize("fault", [counts_ties_twice, counts_by_address, counts_the_state_dict, counts_only_learned,
                                   counts_only_the_top])
def test_faulty_counts_are_caught(fault):
    assert counts_right(ours.count_parameters)
    assert not counts_right(fault)


@given(st.integers(1, 3), st.sampled_from([(4, 1), (4, 2), (6, 3)]), st.integers(1, 9), st.integers(5, 30), st.booleans())
def test_counts_are_those_of_transformers(parity, layers, width_and_heads, d_ff, vocab, freeze):
    transformers = pytest.importorskip("transformers")
    width, heads = width_and_heads
    model = transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=vocab, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=d_ff,
        max_position_embeddings=6))
    if freeze:
        model.bert.embeddings.requires_grad_(False)
    for trainable_only in (False, True):
        difference = abs(ours.count_parameters(model, trainable_only) - model.num_parameters(only_trainable=trainable_only))
        parity(f"{MODULE}.count_parameters", "transformers", difference, 0, "BERT models of random sizes, tied and partly frozen")


def test_a_module_without_shapes_is_refused():
    with pytest.raises(ValueError, match="module has no shape for 1.weight yet: call it on an input first"):
        ours.count_parameters(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3)))


@pytest.mark.parametrize("wrong", [[nn.Linear(2, 2)], nn.Linear, torch.ones(3), None])
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_module_is_refused(wrong):
    with pytest.raises(TypeError, match="must be a torch.nn.Module"):
        ours.count_parameters(wrong)


# Exercises ---------------------------------------------------------------------------------------------------------

def states_not_numbers(seed, count):
    return [state for state in _park(seed, count)]


def _park(seed, count, modulus=2**31 - 1, factor=16807):
    for _ in range(count):
        seed = factor * seed % modulus
        yield seed


def seed_is_the_first(seed, count):
    return [seed / (2**31 - 1), *(s / (2**31 - 1) for s in _park(seed, count - 1))][:count]


def wrong_modulus(seed, count):
    return [s / 2**31 for s in _park(seed, count, 2**31)]


def in_32_bits(seed, count):
    numbers, state = [], np.int32(seed)
    with np.errstate(over="ignore"):
        for _ in range(count):
            state = np.int32(16807) * state % np.int32(2**31 - 1)
            numbers.append(float(state) / (2**31 - 1))
    return numbers


def global_draw(shape, seed, device):
    torch.manual_seed(seed)
    return torch.randn(shape, device=device)


def stays_on_the_cpu(shape, seed, device):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def uniform(shape, seed, device):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def ignores_the_seed(shape, seed, device):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)


def ignores_everything(shape, seed, device):
    return torch.randn(shape).to(device)


def forked_on_the_device(shape, seed, device):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.randn(shape, device=device)


def forked_in_place_on_the_device(shape, seed, device):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.empty(shape, device=device).normal_()


def another_generator_without_the_seed(shape, seed, device):
    return torch.from_numpy(np.random.default_rng(5).standard_normal(shape)).to(device)


def uniform_of_the_same_spread(shape, seed, device):
    return (uniform(shape, seed, "cpu") - 0.5).mul(12**0.5).to(device)


def divides_by_a_power(seed, count):
    return [s / 2**31 for s in _park(seed, count)]


def one_size_for_all(module):
    return next(module.parameters()).element_size() * sum(p.numel() * (4 if p.requires_grad else 1) for p in module.parameters())


def four_bytes_each(module):
    return 16 * sum(p.numel() for p in module.parameters())


def without_gradients(module):
    return sum(p.numel() * p.element_size() * (3 if p.requires_grad else 1) for p in module.parameters())


def learned_only(module):
    return sum(4 * p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)


def with_buffers(module):
    return sum(4 * t.numel() * t.element_size() for t in [*module.parameters(), *module.buffers()])


def tied_twice(module):
    return sum(p.numel() * p.element_size() * (4 if p.requires_grad else 1)
               for _, p in module.named_parameters(remove_duplicate=False))


def one_by_one(values):
    total = 0.0
    for value in values:
        total += value
    return total


def kahan(values):
    total = lost = 0.0
    for value in values:
        corrected = value - lost
        new = total + corrected
        lost = (new - total) - corrected
        total = new
    return total


def smallest_first(values):
    return one_by_one(sorted(values, key=abs))


def in_place(values):
    total = math.fsum(values)
    values.sort()
    return total


def forked(shape, seed, device):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.randn(shape).to(device)


@pytest.mark.parametrize("exercise, right", [
    ("00.float8", [16, 16.0, torch.tensor(16)]),
    ("00.park-miller", [lambda seed, count: np.array([s / (2**31 - 1) for s in _park(seed, count)])]),
    ("00.draw", [forked, lambda shape, seed, device: torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(device),
                 lambda shape, seed, device: torch.empty(shape).normal_(generator=torch.Generator().manual_seed(seed)).to(device)]),
    ("00.training-bytes", [lambda module: sum(p.nbytes + 3 * p.nbytes * p.requires_grad for p in module.parameters())]),
    ("00.careful-sum", [math.fsum, lambda values: float(sum(map(Fraction, values)))]),
])
def test_right_answers_may_be_written_otherwise(exercise, right):
    for answer in right:
        assert check(exercise, answer), check(exercise, answer)


def test_an_answer_that_spoils_its_list_spoils_no_later_check():
    assert not check("00.careful-sum", in_place)
    assert check("00.careful-sum", math.fsum)


@pytest.mark.parametrize("exercise, wrong", [
    ("00.float8", [8, 15, 17, 256, "16"]),
    ("00.park-miller", [states_not_numbers, seed_is_the_first, wrong_modulus, in_32_bits, divides_by_a_power, 16807]),
    ("00.draw", [global_draw, stays_on_the_cpu, uniform, ignores_the_seed, ignores_everything, forked_on_the_device,
                 forked_in_place_on_the_device, another_generator_without_the_seed, uniform_of_the_same_spread]),
    ("00.training-bytes", [four_bytes_each, without_gradients, learned_only, with_buffers, tied_twice,
                           one_size_for_all, ours.count_parameters]),
    ("00.careful-sum", [one_by_one, kahan, smallest_first, in_place, lambda values: float(np.sum(values))]),
])
def test_wrong_answers_are_told_from_right_ones(exercise, wrong):
    for answer in wrong:
        result = check(exercise, answer)
        assert not result and "not yet" in repr(result), answer
