"""Chapter 04 against loops written by hand, stopped and resumed everywhere, and given the wrong things."""
import json
import math
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
from collections import namedtuple
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from transformer_course.toolbox import training_loop as ours
from transformer_course.toolbox.checkpoints import CheckpointError, read_state, write_state
from transformer_course.toolbox.exercises import check
from transformer_course.toolbox.training_loop import History, adamw, fit, progress, to_device

MODULE = "transformer_course.toolbox.training_loop"
INPUTS = torch.randn(23, 3, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randn(23, 1, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def own_random_numbers():
    """No test depends on the random numbers that another one drew."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def make_model(dropout=0.3):
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 1))


def copy_of(model):
    twin = make_model(model[2].p)
    twin.load_state_dict(model.state_dict())
    return twin


def loss_of(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def batches_of(size=5):
    return list(zip(INPUTS.split(size), TARGETS.split(size)))


class SetEpoch:
    """An order that depends on the epoch alone."""
    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(23, generator=torch.Generator().manual_seed(self.epoch))
        return iter([(INPUTS[rows], TARGETS[rows]) for rows in order.split(5)])


class Shuffling:
    """A new order for each epoch, drawn by `shuffle` from somebody's global random numbers."""
    def __init__(self, shuffle):
        self.shuffle = shuffle

    def __iter__(self):
        order = torch.tensor(self.shuffle(23))
        for rows in order.split(5):
            yield INPUTS[rows], TARGETS[rows]


class Drawing:
    """Every batch is drawn when it is asked for, between the steps."""
    def __iter__(self):
        for _ in range(5):
            rows = torch.randint(23, (5,))
            yield INPUTS[rows] + torch.randn(5, 3), TARGETS[rows]


def loader(**options):
    return DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=5, shuffle=True, **options)


DATA = {
    "list": batches_of,
    "set_epoch": SetEpoch,
    "DataLoader": loader,
    "DataLoader with a generator": lambda: loader(generator=torch.Generator().manual_seed(3)),
    "random": lambda: Shuffling(lambda n: random.sample(range(n), n)),
    "numpy": lambda: Shuffling(np.random.permutation),
    "drawn between steps": Drawing,
}
OPTIMIZERS = {
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=0.05, fused=True),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}
SCHEDULES = {
    "none": lambda o: None,
    "function": lambda o: lambda step: 1 / step,
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 15),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [4, 8, 14]),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=3), lr_scheduler.ExponentialLR(o, 0.8)], [3]),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40, cycle_momentum=False),
}


# Agreement with loops written by hand ------------------------------------------------------------------------------

def by_hand(model, batches, optimizer, schedule, max_grad_norm, epochs):
    """The loop as PyTorch's documentation writes it; returns losses, rates and norms."""
    records = []
    model.train()
    for epoch in range(epochs):
        if hasattr(batches, "set_epoch"):
            batches.set_epoch(epoch)
        for batch in batches:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            if schedule is not None and not isinstance(schedule, lr_scheduler.LRScheduler):
                for group in optimizer.param_groups:
                    group["lr"] = group.setdefault("initial_lr", group["lr"]) * schedule(len(records) + 1)
            records.append((loss.item(), optimizer.param_groups[0]["lr"], norm.item()))
            optimizer.step()
            if isinstance(schedule, lr_scheduler.LRScheduler):
                schedule.step()
    return records


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", ["AdamW, fused", "SGD, momentum"])
@pytest.mark.parametrize("data", ["DataLoader", "set_epoch", "drawn between steps"])
def test_fit_is_the_loop_by_hand(parity, data, optimizer, schedule):
    first, max_norm = make_model(), 1.5
    second = copy_of(first)
    results = []
    for model, run in ((first, by_hand), (second, None)):
        torch.manual_seed(1)
        steps = OPTIMIZERS[optimizer](model.parameters())
        rates = SCHEDULES[schedule](steps)
        if run:
            results.append(run(model, DATA[data](), steps, rates, max_norm, 3))
        else:
            history = fit(model, DATA[data](), loss_of, steps, rates, max_norm, epochs=3)
            results.append(list(zip(history.losses, history.learning_rates, history.grad_norms)))
    assert results[0] == results[1] and len(results[0]) == 15
    assert min(norm for _, _, norm in results[0]) < max_norm < max(norm for _, _, norm in results[0])  # both sides
    parity(f"{MODULE}.fit", "torch", (weights(first) - weights(second)).abs().max(), 0,
           "a loop by hand with clip_grad_norm_; two optimizers, six schedules, three kinds of data, dropout")


@given(st.floats(0.01, 10), st.floats(0.1, 100))
def test_clipping_is_pytorchs(parity, max_norm, scale):
    torch.manual_seed(0)
    model = make_model(0)
    twin = copy_of(model)
    for parameter in model.parameters():
        assert parameter.grad is None
    fit(model, batches_of(), lambda m, b: loss_of(m, b) * scale, torch.optim.SGD(model.parameters(), lr=0.1), None, max_norm, steps=1)
    (loss_of(twin, batches_of()[0]) * scale).backward()
    nn.utils.clip_grad_norm_(twin.parameters(), max_norm)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter -= 0.1 * parameter.grad
    parity(f"{MODULE}.fit", "torch", (weights(model) - weights(twin)).abs().max(), 1e-7,
           "one SGD step, clipped by clip_grad_norm_ at random lengths")


def test_without_a_bound_nothing_is_clipped():
    model, twin = make_model(0), None
    twin = copy_of(model)
    for m, bound in ((model, None), (twin, 1e9)):
        fit(m, batches_of(), lambda m, b: 1e3 * loss_of(m, b), torch.optim.SGD(m.parameters(), lr=1e-5), None, bound)
    assert torch.equal(weights(model), weights(twin))


def test_several_groups_of_parameters_keep_their_own_rates():
    model = make_model()
    optimizer = torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[3].parameters(), "lr": 0.01}])
    fit(model, batches_of(), loss_of, optimizer, lambda step: 1 / (1 + step))
    assert [group["lr"] for group in optimizer.param_groups] == [0.1 * (1 / 6), 0.01 * (1 / 6)]
    history = fit(model, batches_of(), loss_of, optimizer, lambda step: 1.0)  # from where they began, not from 1/6 of it
    assert set(history.learning_rates) == {0.1}


def test_the_default_optimizer_is_adamw():
    model = make_model()
    model[0].requires_grad_(False)
    optimizer = adamw(model, 0.1, 0.2)
    assert isinstance(optimizer, torch.optim.AdamW) and optimizer.defaults["fused"]
    assert (optimizer.defaults["lr"], optimizer.defaults["weight_decay"]) == (0.1, 0.2)
    assert len(optimizer.param_groups[0]["params"]) == 2
    twin = copy_of(model)
    twin[0].requires_grad_(False)
    for m, o in ((model, None), (twin, torch.optim.AdamW(twin.parameters(), lr=1e-3, fused=True))):
        torch.manual_seed(1)
        fit(m, batches_of(), loss_of, o)
    assert torch.equal(weights(model), weights(twin))


# Known faults of loops ---------------------------------------------------------------------------------------------

def trains_as_by_hand(loop):
    """Whether `loop(model, batches, optimizer, schedule, max_norm)` gives the weights of the loop by hand, in eval mode."""
    torch.manual_seed(0)
    model = make_model()
    twin = copy_of(model)
    for m, run in ((model, loop), (twin, lambda *a: by_hand(*a, epochs=2))):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(m.parameters(), lr=0.05)
        run(m, loader(), optimizer, lr_scheduler.ExponentialLR(optimizer, 0.5), 0.2)
    return torch.allclose(weights(model), weights(twin), rtol=0, atol=1e-7) and not model.training


def faulty(forget=True, schedule_first=False, clip="all", train=True, end=True, stale=False):
    def loop(model, batches, optimizer, schedule, max_norm):
        model.train(train)
        for _ in range(2):
            for batch in batches:
                if forget:
                    optimizer.zero_grad()
                loss_of(model, batch).backward()
                if clip == "all":
                    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                elif clip == "each":
                    for parameter in model.parameters():
                        nn.utils.clip_grad_norm_([parameter], max_norm)
                elif clip == "value":
                    nn.utils.clip_grad_value_(model.parameters(), max_norm)
                if schedule_first:
                    schedule.step()
                optimizer.step()
                if clip == "late":
                    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                if not schedule_first:
                    schedule.step()
        model.train(not end)
    return loop


def fits(model, batches, optimizer, schedule, max_norm):
    fit(model, batches, loss_of, optimizer, schedule, max_norm, epochs=2)


def test_right_loops_train_as_by_hand():
    assert trains_as_by_hand(faulty()) and trains_as_by_hand(fits)


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("fault", [{"forget": False}, {"schedule_first": True}, {"clip": "each"}, {"clip": "value"}, {"clip": "late"},
                                   {"clip": "never"}, {"train": False}, {"end": False}], ids=str)
def test_faulty_loops_are_caught(fault):
    assert not trains_as_by_hand(faulty(**fault))


# Several batches a step --------------------------------------------------------------------------------------------

def sum_and_count(model, batch):
    return F.mse_loss(model(batch[0]), batch[1], reduction="sum"), batch[1].numel()


def unequal():
    return list(zip(INPUTS.split([2, 13, 1, 7]), TARGETS.split([2, 13, 1, 7])))


def accumulates(step):
    """Whether a step over unequal batches is the step over all they hold."""
    torch.manual_seed(0)
    model = make_model(0)
    twin = copy_of(model)
    step(model, unequal())
    F.mse_loss(twin(INPUTS), TARGETS).backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    return torch.allclose(weights(model), weights(twin), rtol=0, atol=1e-6)


def fit_step(loss):
    def step(model, batches):
        fit(model, batches, loss, torch.optim.SGD(model.parameters(), lr=0.1), max_grad_norm=None, accumulate=len(batches))
    return step


@pytest.mark.parametrize("loss, right", [
    (sum_and_count, True),
    (lambda m, b: (sum_and_count(m, b)[0], torch.tensor(b[1].numel())), True),
    (loss_of, False),                                              # the mean of the means
    (lambda m, b: sum_and_count(m, b)[0], False),                  # never divided
    (lambda m, b: (loss_of(m, b), b[1].numel()), False),           # divided twice
])
def test_accumulation_is_one_large_batch(loss, right):
    assert accumulates(fit_step(loss)) is right


def test_the_mean_of_scalar_losses_is_followed():
    model = make_model(0)
    twin = copy_of(model)
    history = fit(model, batches_of(), loss_of, torch.optim.SGD(model.parameters(), lr=0.1), max_grad_norm=None, accumulate=2)
    losses = []
    for group in (batches_of()[:2], batches_of()[2:4], batches_of()[4:]):  # the last group of an epoch is smaller
        loss = sum(loss_of(twin, batch) for batch in group) / len(group)
        twin.zero_grad()
        loss.backward()
        torch.optim.SGD(twin.parameters(), lr=0.1).step()
        losses.append(loss.item())
    assert history.losses == pytest.approx(losses, rel=1e-6) and torch.allclose(weights(model), weights(twin), atol=1e-6)


def test_a_group_does_not_reach_into_the_next_epoch():
    assert len(fit(make_model(), batches_of(), loss_of, accumulate=4, epochs=3).losses) == 6
    assert len(fit(make_model(), batches_of(), loss_of, accumulate=99, epochs=3).losses) == 3
    assert len(fit(make_model(), batches_of(), loss_of, accumulate=4, steps=5).losses) == 5


# Epochs, steps, data -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options, steps", [({}, 5), ({"epochs": 2}, 10), ({"steps": 3}, 3), ({"steps": 5}, 5), ({"steps": 12}, 12)])
def test_epochs_and_steps(options, steps):
    history = fit(make_model(), batches_of(), loss_of, **options)
    assert [len(x) for x in (history.losses, history.learning_rates, history.grad_norms, history.seconds)] == [steps] * 4
    assert list(history.seconds) == sorted(history.seconds) and history.seconds[0] > 0
    assert not history.interrupted and history.resumed_at == 0


def test_an_iterator_serves_once():
    assert len(fit(make_model(), iter(batches_of()), loss_of).losses) == 5
    assert len(fit(make_model(), iter(batches_of()), loss_of, steps=4).losses) == 4
    assert len(fit(make_model(), (b for b in batches_of()), loss_of, steps=5).losses) == 5
    with pytest.raises(ValueError, match="ran out after 5 steps: an iterator can be gone through only once"):
        fit(make_model(), iter(batches_of()), loss_of, steps=6)
    with pytest.raises(ValueError, match="batches is an iterator, good for one epoch"):
        fit(make_model(), iter(batches_of()), loss_of, epochs=2)


def test_fit_asks_for_no_batch_too_many():
    asked = []
    fit(make_model(), (asked.append(1) or batch for batch in batches_of() * 9), loss_of, steps=7, accumulate=3)
    assert len(asked) == 21


Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Example:
    x: Any
    name: str
    made: int = field(init=False, default=1)


class HasTo:
    def to(self, device):
        return f"moved to {device}"


def test_batches_of_all_makes_move():
    x = torch.zeros(2)
    batch = {"a": x, "b": [x, (x, "text", 3, None)], "c": Pair(x, x), "d": Example(x, "e"), "e": HasTo(), "f": Example}
    moved = to_device(batch, "meta")
    places = [moved["a"], moved["b"][0], moved["b"][1][0], moved["c"].x, moved["c"].y, moved["d"].x]
    assert all(place.device.type == "meta" for place in places)
    assert moved["b"][1][1:] == ("text", 3, None) and moved["d"].name == "e" and moved["e"] == "moved to meta"
    assert moved["f"] is Example and type(moved["c"]) is Pair and batch["a"].device.type == "cpu"


def test_batches_move_to_the_model():
    seen = []

    def loss(model, batch):
        seen.append(batch["x"].device.type)
        raise RuntimeError("seen enough")
    with pytest.raises(RuntimeError, match="seen enough"):
        fit(nn.Linear(2, 1, device="meta"), [{"x": torch.zeros(1, 2)}], loss)
    assert seen == ["meta"]


def test_the_model_trains_in_training_mode_and_comes_back_in_eval_mode():
    model, modes = make_model(), []
    fit(model, batches_of(), lambda m, b: modes.append(m.training) or loss_of(m, b),
        validate=lambda m: modes.append((m.training, torch.is_grad_enabled())) or 0.0, validate_every=2)
    assert modes == [True, True, (False, False), True, True, (False, False), True, (False, False)]
    assert not model.training and all(parameter.grad is None for parameter in model.parameters())


def test_mixed_precision_lives_in_the_loss():
    def loss(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss_of(model, batch)
        kinds.append(model[0].weight.dtype)
        return value

    kinds, model = [], make_model(0)
    history = fit(model, batches_of(), loss, adamw(model, 0.05), epochs=20)
    assert set(kinds) == {torch.float32} and history.losses[-1] < history.losses[0]


# Validation --------------------------------------------------------------------------------------------------------

def test_validation_is_recorded_and_leaves_no_trace():
    def greedy_validation(model):  # draws from everywhere
        random.random(), np.random.rand(), torch.rand(3)
        return torch.tensor(float(len(scores)))

    scores = {}
    for validate in (None, greedy_validation):
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        model = make_model()
        history = fit(model, Drawing(), loss_of, steps=12, validate=validate, validate_every=5)
        scores[validate] = (weights(model), history)
    (first, _), (second, history) = scores.values()
    assert torch.equal(first, second) and history.validation == ((5, 1.0), (10, 1.0), (12, 1.0))
    history = fit(make_model(), batches_of(), loss_of, steps=10, validate=lambda m: 7, validate_every=5)
    assert history.validation == ((5, 7.0), (10, 7.0))  # at the end once, not twice


@pytest.mark.parametrize("score, says", [(None, "NoneType"), ("0.5", "str"), (torch.ones(2), "Tensor")])
def test_a_score_is_a_number(score, says):
    with pytest.raises(TypeError, match=f"validate must return a number, not {says}"):
        fit(make_model(), batches_of(), loss_of, validate=lambda model: score)


# Stop and go on ----------------------------------------------------------------------------------------------------

class Stop:
    """A loss, and batches, that stop the run in a given step in a given way."""
    def __init__(self, step, how, batches, accumulate=1):
        self.calls, self.at, self.how, self.batches = 0, (step - 1) * accumulate + 1, how, batches

    def loss(self, model, batch):
        self.calls += 1
        value = loss_of(model, batch)
        if self.calls == self.at and self.how == "raised in the loss":
            raise KeyboardInterrupt
        if self.calls == self.at and self.how == "Ctrl-C":
            os.kill(os.getpid(), signal.SIGINT)
        if self.calls == self.at and self.how == "crash":
            raise MemoryError("no more")
        return value

    def __getattr__(self, name):
        if name.startswith("__") or name == "batches":
            raise AttributeError(name)
        return getattr(self.batches, name)  # set_epoch, generator, of the batches themselves

    def __iter__(self):
        for batch in self.batches:
            if self.calls == self.at - 1 and self.how == "raised by the data":
                raise KeyboardInterrupt
            yield batch


def settings(data, optimizer, schedule, seed, dropout=0.3):
    """A process's worth of new things; on going on, all random numbers are others."""
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
    model = make_model(dropout)
    steps = OPTIMIZERS[optimizer](model.parameters())
    return model, DATA[data](), steps, SCHEDULES[schedule](steps)


@pytest.fixture
def python_handles_interrupts():
    """Test runners may ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # fit has put it back
    signal.signal(signal.SIGINT, before)


def everything(model, optimizer, schedule, history):
    """All that has to be the same."""
    state = schedule.state_dict() if isinstance(schedule, lr_scheduler.LRScheduler) else None
    return [weights(model).tolist(), str(optimizer.state_dict()), str(state).replace("Counter(", "(").replace("(", "").replace(")", ""),
            history.losses, history.learning_rates,
            history.grad_norms, history.validation, torch.get_rng_state().tolist(), random.getstate(),
            str(np.random.get_state())]


def stopped_and_resumed(folder, data="DataLoader", optimizer="AdamW, fused", schedule="cosine", stop=7, how="raised in the loss",
                        edit=None, **options):
    """(straight run, run that is stopped in step `stop` and goes on), everything of both, and the two parts' histories."""
    options = {"steps": 13, "validate": lambda m: weights(m).sum(), "validate_every": 4, **options}
    model, batches, steps, rates = settings(data, optimizer, schedule, seed=1)
    straight = everything(model, steps, rates, fit(model, batches, loss_of, steps, rates, **options))

    model, batches, steps, rates = settings(data, optimizer, schedule, seed=1)
    stopper = Stop(stop, how, batches, options.get("accumulate", 1))
    try:
        part = fit(model, stopper, stopper.loss, steps, rates, checkpoint=folder, **options)
    except MemoryError:
        part = None
    if edit:
        state = read_state(folder / "run.safetensors")
        edit(state)
        write_state(state, folder / "run.safetensors")

    model, batches, steps, rates = settings(data, optimizer, schedule, seed=2)
    rest = fit(model, batches, loss_of, steps, rates, checkpoint=folder, **options)
    return straight, everything(model, steps, rates, rest), part, rest


@pytest.mark.usefixtures("python_handles_interrupts")
@pytest.mark.parametrize("how, made", [("raised in the loss", -1), ("raised by the data", -1), ("Ctrl-C", 0)])
@pytest.mark.parametrize("stop", [1, 2, 5, 6, 11, 13])
def test_a_run_goes_on_bit_for_bit_wherever_it_was_stopped(tmp_path, stop, how, made):
    straight, resumed, part, rest = stopped_and_resumed(tmp_path, stop=stop, how=how)
    assert straight == resumed
    assert part.interrupted and len(part.losses) == stop + made == rest.resumed_at
    assert not rest.interrupted and len(rest.losses) == 13
    assert rest.seconds[:stop + made] == part.seconds and list(rest.seconds) == sorted(rest.seconds)  # time goes on, too


@pytest.mark.parametrize("stop", [4, 8])
@pytest.mark.parametrize("data", DATA)
def test_every_kind_of_data_goes_on(tmp_path, data, stop):
    straight, resumed, *_ = stopped_and_resumed(tmp_path, data=data, stop=stop)
    assert straight == resumed


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_goes_on(tmp_path, optimizer):
    straight, resumed, *_ = stopped_and_resumed(tmp_path, optimizer=optimizer)
    assert straight == resumed


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_goes_on(tmp_path, schedule):
    straight, resumed, *_ = stopped_and_resumed(tmp_path, schedule=schedule)
    assert straight == resumed


@pytest.mark.parametrize("stop", [2, 3, 4, 5])
def test_accumulation_goes_on(tmp_path, stop):
    straight, resumed, *_ = stopped_and_resumed(tmp_path, stop=stop, accumulate=2, steps=7)
    assert straight == resumed


@pytest.mark.parametrize("every, resumed_at", [(1, 6), (4, 4), (5, 5), (100, 0)])
def test_after_a_crash_the_run_goes_on_from_the_last_save(tmp_path, every, resumed_at):
    straight, resumed, part, rest = stopped_and_resumed(tmp_path, how="crash", checkpoint_every=every)
    assert straight[:7] == resumed[:7] if resumed_at else len(rest.losses) == 13  # nothing saved: it began anew, from another seed
    assert part is None and rest.resumed_at == resumed_at


def test_stopped_twice(tmp_path):
    for stop in (4, 9):
        model, batches, steps, rates = settings("DataLoader", "AdamW, fused", "cosine", seed=stop)
        stopper = Stop(stop - (5 if stop == 9 else 0), "raised in the loss", batches)
        history = fit(model, stopper, stopper.loss, steps, rates, steps=13, checkpoint=tmp_path)
    assert (len(history.losses), history.resumed_at) == (6, 3)
    model, batches, steps, rates = settings("DataLoader", "AdamW, fused", "cosine", seed=4)
    straight = everything(model, steps, rates, fit(model, batches, loss_of, steps, rates, steps=13))
    model, batches, steps, rates = settings("DataLoader", "AdamW, fused", "cosine", seed=5)
    assert straight == everything(model, steps, rates, fit(model, batches, loss_of, steps, rates, steps=13, checkpoint=tmp_path))


def forget(*path, value=None):
    """An edit of the saved state: set one entry, deep inside, to something else."""
    def edit(state):
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = value if value is not None else torch.zeros_like(state[path[-1]])
    return edit


def fresh(seed=9):
    return torch.Generator().manual_seed(seed).get_state()


@pytest.mark.parametrize("data, edit", [
    ("DataLoader", None),
    ("DataLoader", forget("parts", 0, "state", 0, "exp_avg")),
    ("DataLoader", forget("parts", 0, "state", 0, "step")),
    ("DataLoader", forget("parts", 1, "last_epoch", value=1)),
    ("DataLoader", forget("seen", value=0)),
    ("set_epoch", forget("epoch", value=0)),
    ("DataLoader", forget("random", "torch", value=fresh())),
    ("DataLoader", forget("epoch_random", "torch", value=fresh())),
    ("DataLoader with a generator", forget("random", "data", value=fresh())),
    ("DataLoader with a generator", forget("epoch_random", "data", value=fresh())),
    ("random", forget("epoch_random", "python", value=random.Random(9).getstate())),
    ("random", forget("random", "python", value=random.Random(9).getstate())),
    ("numpy", forget("random", "numpy", value=np.random.RandomState(9).get_state(legacy=False))),
    ("numpy", forget("epoch_random", "numpy", value=np.random.RandomState(9).get_state(legacy=False))),
    ("DataLoader", forget("model", "0.weight")),
    ("DataLoader", forget("rows")),
    ("DataLoader", forget("validation", value=[])),
])
def test_each_part_of_the_state_is_needed(tmp_path, data, edit):
    straight, resumed, *_ = stopped_and_resumed(tmp_path, data=data, stop=7, edit=edit)
    assert (straight == resumed) is (edit is None)


def test_a_finished_run_is_not_made_again_and_can_be_made_longer(tmp_path):
    model, batches, steps, rates = settings("DataLoader", "AdamW, fused", "function", seed=1)
    long = everything(model, steps, rates, fit(model, batches, loss_of, steps, rates, epochs=4))
    for epochs, resumed_at in ((2, 0), (2, 10), (4, 10), (3, 20)):
        model, batches, steps, rates = settings("DataLoader", "AdamW, fused", "function", seed=1)
        history = fit(model, batches, loss_of, steps, rates, epochs=epochs, checkpoint=tmp_path)
        assert history.resumed_at == resumed_at
        if epochs == 4:
            assert long == everything(model, steps, rates, history)
    assert len(history.losses) == 20 and not model.training


@pytest.mark.parametrize("first", [3, 5, 7])
def test_more_steps_go_on_where_fewer_ended(tmp_path, first):
    """In the middle of an epoch or at its end."""
    model, batches, steps, rates = settings("DataLoader", "AdamW, fused", "cosine", seed=1)
    straight = everything(model, steps, rates, fit(model, batches, loss_of, steps, rates, steps=13))
    for seed, count in ((1, first), (2, 13)):
        model, batches, steps, rates = settings("DataLoader", "AdamW, fused", "cosine", seed)
        history = fit(model, batches, loss_of, steps, rates, steps=count, checkpoint=tmp_path)
    assert history.resumed_at == first and straight == everything(model, steps, rates, history)


def test_interrupted_without_a_checkpoint(tmp_path):
    model = make_model(0)
    twin = copy_of(model)
    stopper = Stop(4, "raised in the loss", batches_of())
    history = fit(model, stopper, stopper.loss)
    fit(twin, batches_of(), loss_of, steps=3)
    assert history.interrupted and len(history.losses) == 3 and torch.equal(weights(model), weights(twin))
    assert not model.training and all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.usefixtures("python_handles_interrupts")
def test_the_first_interrupt_waits_for_the_step_and_the_second_does_not():
    def once(model, batch):
        os.kill(os.getpid(), signal.SIGINT)
        return loss_of(model, batch)

    def twice(model, batch):
        os.kill(os.getpid(), signal.SIGINT)
        return once(model, batch)

    assert len(fit(make_model(), batches_of(), once).losses) == 1
    model = make_model()
    before = weights(model)
    with pytest.raises(KeyboardInterrupt):
        fit(model, batches_of(), twice)
    assert torch.equal(weights(model), before) and not model.training


@pytest.mark.usefixtures("python_handles_interrupts")
@pytest.mark.parametrize("how", ["Ctrl-C", "raised"])
@pytest.mark.parametrize("every", [2, 100])
def test_an_interrupt_during_validation_loses_no_step(tmp_path, how, every):
    def validate(model):
        if how == "raised":
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGINT)
        return 1.0

    model = make_model()
    history = fit(model, batches_of(), loss_of, validate=validate, validate_every=every, checkpoint=tmp_path)
    made = min(every, 5)
    assert len(history.losses) == made == read_state(tmp_path / "run.safetensors")["rows"].shape[0] and not model.training
    assert history.interrupted is (every == 2 or how == "raised") and len(history.validation) == (how == "Ctrl-C")
    rest = fit(make_model(), batches_of(), loss_of, validate=lambda m: 2.0, validate_every=every, checkpoint=tmp_path)
    assert len(rest.losses) == 5 and rest.validation[-1][0] == 5


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


@pytest.mark.parametrize("value, error", [(math.nan, FloatingPointError), (None, TypeError)])
def test_a_step_that_fails_leaves_no_trace_in_the_buffers(value, error):
    model = Normed()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(error):
        fit(model, batches_of(), lambda m, b: value and loss_of(m, b) * value if m(b[0]) is not None else None)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_buffers_go_on_too(tmp_path):
    models = []
    for stop in (None, 3):
        torch.manual_seed(0)
        model, stopper = Normed(), Stop(stop or 99, "raised in the loss", batches_of())
        fit(model, stopper, stopper.loss, steps=7, checkpoint=tmp_path if stop else None)
        models.append(model)
    resumed = Normed()
    assert fit(resumed, batches_of(), loss_of, steps=7, checkpoint=tmp_path).resumed_at == 2
    assert all(torch.equal(a, b) for a, b in zip(models[0].state_dict().values(), resumed.state_dict().values()))


def test_in_another_thread_signals_are_left_alone():
    results = []
    thread = threading.Thread(target=lambda: results.append(fit(make_model(), batches_of(), loss_of)))
    thread.start()
    thread.join()
    assert len(results[0].losses) == 5


# What is refused ---------------------------------------------------------------------------------------------------

def unchanged(run, model, optimizer, error, says):
    """Run, expect the error, and see the weights and the optimizer's state as they were."""
    before, state = weights(model), str(optimizer.state_dict())
    with pytest.raises(error, match=says):
        run()
    assert torch.equal(weights(model), before) and str(optimizer.state_dict()) == state
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("value, says", [(math.nan, "the loss of step 4 is nan"), (math.inf, "the loss of step 4 is inf")])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_bad_loss_does_not_reach_the_weights(tmp_path, value, says, accumulate):
    model = make_model(0)
    optimizer = adamw(model)
    good, bad = batches_of()[0], (torch.ones(2, 3), torch.full((2, 1), value))
    fit(model, [good] * 3, loss_of, optimizer, checkpoint=tmp_path)
    data = [good] * 4 * accumulate
    data[-1] = bad  # of the step's batches the last
    unchanged(lambda: fit(model, data[-accumulate:], loss_of, optimizer, accumulate=accumulate), model, optimizer,
              FloatingPointError, says.replace("4", "1"))
    with pytest.raises(FloatingPointError, match=says):
        fit(model, data, loss_of, optimizer, accumulate=accumulate, epochs=2, checkpoint=tmp_path / "more", checkpoint_every=1)
    assert read_state(tmp_path / "more" / "run.safetensors")["rows"].shape[0] == 3  # the last good state is what is saved


def test_a_bad_gradient_does_not_reach_the_weights():
    model = make_model(0)
    optimizer = adamw(model)
    saturated = [(torch.tensor([[math.inf, 0.0, 0.0]]), torch.zeros(1, 1))]
    assert loss_of(model, saturated[0]).isfinite()
    unchanged(lambda: fit(model, saturated, loss_of, optimizer), model, optimizer, FloatingPointError,
              "the gradient of step 1 has norm nan, though the loss is .*; no weight was touched")
    for bound in (None, 1.0):
        unchanged(lambda: fit(model, saturated, loss_of, optimizer, max_grad_norm=bound), model, optimizer, FloatingPointError, "nan")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("loss, error, says", [
    (lambda m, b: m(b[0]), ValueError, r"loss must return a scalar, not a tensor of shape \(5, 1\)"),
    (lambda m, b: loss_of(m, b)[None], ValueError, r"not a tensor of shape \(1,\)"),
    (lambda m, b: loss_of(m, b).item(), TypeError, r"loss must return a tensor or a pair \(sum, count\), not float"),
    (lambda m, b: None, TypeError, "not NoneType"),
    (lambda m, b: (loss_of(m, b), 1, 2), TypeError, "not tuple"),
    (lambda m, b: loss_of(m, b).detach(), ValueError, "loss depends on no trainable parameter"),
    (lambda m, b: (loss_of(m, b), 0), ValueError, "loss counted 0.0 in step 1"),
    (lambda m, b: (loss_of(m, b), -1), ValueError, "loss counted -1.0 in step 1"),
    (lambda m, b: (loss_of(m, b), None), TypeError, "loss must return a number as count, not None"),
    (lambda m, b: (loss_of(m, b), loss_of(m, b)), TypeError, "loss must return a number as count, not tensor"),
    (lambda m, b: loss_of(m, b) * 1j, ValueError, "floating-point sum or mean, not torch.complex64"),
    (lambda m, b: loss_of(make_model(), b), ValueError, "loss depends on no parameter that the optimizer holds"),
    (lambda m, b: (loss_of(m, b), math.nan), ValueError, "loss counted nan in step 1"),
])
def test_wrong_losses_are_refused(loss, error, says):
    model = make_model()
    optimizer = adamw(model)
    unchanged(lambda: fit(model, batches_of(), loss, optimizer), model, optimizer, error, says)


def frozen():
    return make_model().requires_grad_(False)


def of_another(make):
    def options():
        return {"optimizer": adamw(make_model()), "schedule": None} if make is None else {
            "optimizer": None, "schedule": make(adamw(make_model()))}
    return options


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("options, error, says", [
    ({"batches": []}, ValueError, "batches is empty"),
    ({"batches": iter([])}, ValueError, "batches is empty"),
    ({"batches": 5}, TypeError, r"batches \(int\) must be a list or another iterable"),
    ({"batches": {"x": INPUTS}}, TypeError, r"batches \(dict\) must be"),
    ({"model": None}, TypeError, r"model \(NoneType\) must be a torch.nn.Module"),
    ({"loss": None}, TypeError, r"loss \(NoneType\) must be a function of model and batch"),
    ({"validate": 3}, TypeError, r"validate \(int\) must be a function of model"),
    ({"optimizer": torch.optim.AdamW}, TypeError, r"optimizer \(type\) must be a torch.optim.Optimizer"),
    ({"max_grad_norm": "1"}, TypeError, r"max_grad_norm \(str\) must be a number"),
    ({"checkpoint": __file__}, TypeError, r"checkpoint \(.*test_training_loop.py\) must be a folder, not a file"),
    ({"steps": True}, ValueError, r"steps \(True\) must be a positive whole number"),
    ({"schedule": lr_scheduler.StepLR}, ValueError, "schedule .* must be a scheduler or a function"),
    ({"schedule": lambda step: -1.0}, ValueError, r"schedule gave -1.0 for step 1, not a factor of 0 or more"),
    ({"schedule": lambda step: math.nan}, ValueError, "schedule gave nan for step 1"),
    ({"schedule": lambda step: None}, ValueError, "schedule gave None for step 1"),
    ({"model": frozen()}, ValueError, r"model \(Sequential\) has no trainable parameters"),
    ({"model": nn.Tanh()}, ValueError, r"model \(Tanh\) has no trainable parameters"),
    ({"epochs": 1, "steps": 1}, ValueError, "give epochs or steps, not both"),
    ({"epochs": 0}, ValueError, r"epochs \(0\) must be a positive whole number"),
    ({"steps": -1}, ValueError, r"steps \(-1\) must be"),
    ({"steps": 2.5}, ValueError, r"steps \(2.5\) must be"),
    ({"accumulate": 0}, ValueError, r"accumulate \(0\) must be"),
    ({"validate_every": 0}, ValueError, r"validate_every \(0\) must be"),
    ({"checkpoint_every": 0}, ValueError, r"checkpoint_every \(0\) must be"),
    ({"max_grad_norm": 0.0}, ValueError, r"max_grad_norm \(0.0\) must be positive, or None"),
    ({"max_grad_norm": math.nan}, ValueError, r"max_grad_norm \(nan\) must be positive"),
    ({"schedule": 0.1}, ValueError, r"schedule \(0.1\) must be a scheduler or a function"),
    ({"optimizer": adamw(make_model())}, ValueError, "optimizer holds none of the model's trainable parameters"),
    ({"schedule": lr_scheduler.ExponentialLR(adamw(make_model()), 0.9)}, ValueError, "schedule belongs to another optimizer"),
    ({"schedule": lr_scheduler.ReduceLROnPlateau(adamw(make_model()))}, ValueError, "schedule must not wait for a score"),
])
def test_wrong_arguments_are_refused(options, error, says):
    model = options.get("model", make_model()) or make_model()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(error, match=says):
        fit(**{"model": model if "model" not in options else options["model"], "batches": batches_of(), "loss": loss_of, **options})
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_adamw_without_parameters_is_refused():
    with pytest.raises(ValueError, match="no trainable parameters"):
        adamw(nn.Tanh())


@pytest.fixture
def saved(tmp_path):
    """The file of a run of five steps."""
    fit(make_model(), batches_of(), loss_of, checkpoint=tmp_path)
    return tmp_path / "run.safetensors"


def other_model():
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 1))


def two_groups(model):
    return torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[3].parameters()}])


@pytest.mark.parametrize("make, optimizer, schedule, says", [
    (other_model, adamw, lambda o: None, "shape: 0.weight is"),
    (lambda: make_model().append(nn.Linear(1, 1)), adamw, lambda o: None, "doesn't match the size"),
    (make_model, two_groups, lambda o: None, "different number of parameter groups"),
    (make_model, adamw, SCHEDULES["cosine"], "only one of the two runs has a schedule with a state"),
    (make_model, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), lambda o: None,
     r"saved with \['AdamW'\], this run has \['SGD'\]"),
])
def test_a_run_that_does_not_fit_is_refused_and_changes_nothing(saved, make, optimizer, schedule, says):
    model = make()
    steps = optimizer(model)
    rates = schedule(steps)
    unchanged(lambda: fit(model, batches_of(), loss_of, steps, rates, epochs=2, checkpoint=saved.parent), model, steps,
              CheckpointError, f"run.safetensors: this run cannot go on from it: [^$]*{says}")


def test_data_that_became_shorter_are_refused(tmp_path):
    fit(make_model(), batches_of(), loss_of, steps=4, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="the run has used 4 batches of its epoch, but there are 2"):
        fit(make_model(), batches_of()[:2], loss_of, steps=6, checkpoint=tmp_path)


class Trap:
    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_a_hostile_file_is_refused_and_not_executed(saved, tmp_path):
    good = saved.read_bytes()
    for content in (pickle.dumps(Trap(tmp_path / "sprung")), good[:-1], good[:40], b""):
        saved.write_bytes(content)
        with pytest.raises(CheckpointError, match="run.safetensors"):
            fit(make_model(), batches_of(), loss_of, checkpoint=tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("state", [{}, {"rows": 3}, [], 7, {"parts": []}])
def test_something_else_in_the_file_is_refused(saved, state):
    write_state(state, saved)
    with pytest.raises(CheckpointError, match="run.safetensors: this run cannot go on from it"):
        fit(make_model(), batches_of(), loss_of, checkpoint=saved.parent)


@pytest.mark.parametrize("key, value", [
    ("epoch", -1), ("epoch", "x"), ("seen", 2.5), ("seen", -3), ("epoch", 10**30), ("validation", 5), ("validation", [3]),
    ("random", 5), ("random", {"torch": torch.ones(3)}), ("random", {"numpy": {}}), ("random", {"python": [3, [1], None]}),
    ("epoch_random", 5), ("rows", torch.ones(3)), ("rows", torch.ones(3, 2)), ("model", []), ("parts", [5]), ("kinds", None)])
def test_a_state_that_makes_no_sense_changes_nothing(saved, key, value):
    write_state({**read_state(saved), key: value}, saved)
    model = make_model()
    drawn = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    optimizer = adamw(model)
    unchanged(lambda: fit(model, batches_of(), loss_of, optimizer, epochs=2, checkpoint=saved.parent), model, optimizer,
              CheckpointError, "run.safetensors: this run cannot go on from it")
    assert torch.equal(drawn[0], torch.get_rng_state()) and drawn[1:] == (random.getstate(), str(np.random.get_state()))


def test_what_cannot_be_saved_is_known_before_the_first_step(tmp_path):
    model, asked = make_model(), []
    optimizer = adamw(model)
    optimizer.param_groups[0]["hook"] = len
    with pytest.raises(TypeError, match="hook is a builtin"):
        fit(model, (asked.append(1) or batch for batch in batches_of()), loss_of, optimizer, checkpoint=tmp_path)
    assert not asked


def test_what_cannot_be_saved_is_named(tmp_path):
    model = make_model()
    optimizer = adamw(model)
    optimizer.param_groups[0]["hook"] = len
    with pytest.raises(TypeError, match=r"state.parts.0.param_groups.0.hook is a builtin_function_or_method"):
        fit(model, batches_of(), loss_of, optimizer, checkpoint=tmp_path)


# The bar and the history -------------------------------------------------------------------------------------------

def test_the_bar_is_silent_when_asked(monkeypatch, capsys):
    monkeypatch.setenv("TRANSFORMER_COURSE_PROGRESS", "0")
    assert list(progress(range(3), desc="words", disable=False)) == [0, 1, 2]
    fit(make_model(), batches_of(), loss_of)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("TRANSFORMER_COURSE_PROGRESS", "1")
    assert list(progress(range(3), desc="words")) == [0, 1, 2]
    assert "words: 100%" in capsys.readouterr().err
    fit(make_model(), batches_of(), loss_of, epochs=2)
    assert "training: 100%" in (bar := capsys.readouterr().err) and "10/10" in bar and "loss=" in bar
    fit(make_model(), (batch for batch in batches_of()), loss_of)  # of unknown length
    assert "5it" in capsys.readouterr().err
    assert list(progress([1], disable=True)) == [1] and capsys.readouterr().err == ""


def test_the_history_shows_itself():
    history = History((2.0, 1.0), (0.1, 0.1), (1.0, 1.0), (0.1, 0.2), ((2, 1.5),), interrupted=True)
    assert repr(history) == "History(2 steps, loss 2.0000 to 1.0000, interrupted)" and repr(History()) == "History(0 steps)"
    ax = history.plot()
    assert [list(line.get_xydata()[0]) for line in ax.lines] == [[1, 2], [2, 1.5]]
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"loss", "validation"}
    assert History((1.0,)).plot().get_legend() is None
    with pytest.raises(AttributeError):
        history.losses = ()


def test_the_module_draws_nothing_until_asked():
    code = "import transformer_course.toolbox.training_loop, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# Several processes -------------------------------------------------------------------------------------------------

TOGETHER = r"""
import json, os, signal, sys
from pathlib import Path
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformer_course.toolbox.training_loop import adamw, fit

folder, together = Path(sys.argv[1]), "WORLD_SIZE" in os.environ
accelerator = Accelerator(cpu=True)
rank, count = accelerator.process_index, accelerator.num_processes
generator = torch.Generator().manual_seed(0)
x, y = torch.randn(23, 3, generator=generator), torch.randn(23, 1, generator=generator)
SPLIT = [2, 5, 1, 7, 3, 2, 3]  # seven batches: the last step of an epoch has one batch for two processes
small = list(zip(x.split(SPLIT), y.split(SPLIT)))
double = list(zip(x.split([7, 8, 5, 3]), y.split([7, 8, 5, 3])))


class Net(nn.Module):
    def __init__(self, dropout=0.0, norm=False):
        super().__init__()
        self.a, self.b, self.rare = nn.Linear(3, 5), nn.Linear(5, 1), nn.Linear(5, 1)
        self.drop, self.norm = nn.Dropout(dropout), nn.BatchNorm1d(5) if norm else nn.Identity()

    def forward(self, x):
        h = self.drop(self.norm(self.a(x).tanh()))
        rows = x[:, :1] > 1.2  # few batches have such a row: the gradient of `rare` is often one process's alone, or nobody's
        return self.b(h) + (rows * self.rare(h) if rows.any() else 0)


def loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1], reduction="sum"), len(batch[0])


def train(name, batches, loss=loss, seed=1, dropout=0.0, norm=False, alone=False, **options):
    torch.manual_seed(seed)
    model = Net(dropout, norm)
    optimizer = adamw(model, 0.05, 0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    outcome = {}
    try:
        history = fit(model, batches, loss, optimizer, schedule, 1.0, accelerator=None if alone else accelerator, **options)
        outcome = {"losses": history.losses, "norms": history.grad_norms, "rates": history.learning_rates,
                   "validation": history.validation, "interrupted": history.interrupted, "resumed_at": history.resumed_at}
    except Exception as error:
        outcome["error"] = f"{type(error).__name__}: {error}"
    outcome["weights"] = [value.tolist() for value in model.state_dict().values()]
    outcome["clean"] = not model.training and all(p.grad is None for p in model.parameters()) and type(model) is Net
    results[name] = outcome
    return model


results = {"count": count}
if together:
    train("small", small, epochs=3, validate=lambda model: float(rank), validate_every=4)
    train("means", small, lambda m, b: F.mse_loss(m(b[0]), b[1]), epochs=2)
    train("accumulated", small, epochs=3, accumulate=2)
    train("other seeds", small, epochs=3, seed=1 + rank)
    torch.manual_seed(rank)
    train("shuffled", DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True), epochs=3, seed=1 + rank)

    drawn = []
    def noting(model, batch):
        drawn.append(F.dropout(torch.ones(20)).tolist())
        return loss(model, batch)
    data = DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True)
    train("dropout", data, noting, dropout=0.5, norm=True, epochs=2)
    results["drawn"] = drawn

    def stopping(how, at, who=1):
        calls = []
        def stops(model, batch):
            calls.append(1)
            if len(calls) == at and rank == who:
                if how == "Ctrl-C":
                    os.kill(os.getpid(), signal.SIGINT)
                elif how == "raised":
                    raise KeyboardInterrupt
                elif how == "nan":
                    return loss(model, batch)[0] * float("nan"), len(batch[0])
                else:
                    raise MemoryError("no more")
            return loss(model, batch)
        return stops
    signal.signal(signal.SIGINT, signal.default_int_handler)
    straight = dict(dropout=0.5, norm=True, epochs=2, validate=lambda m: 1.0, validate_every=2)
    for how in ("Ctrl-C", "raised"):
        data = DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True)
        train(f"{how}, stopped", data, stopping(how, 3), **straight, checkpoint=folder / how)
        accelerator.wait_for_everyone()
        results[f"{how}, saved"] = sorted(path.name for path in (folder / how).iterdir())
        data = DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True)
        train(f"{how}, resumed", data, **{**straight, "seed": 7 + rank}, checkpoint=folder / how)
    data = DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True)
    train("straight", data, **straight)
    for how, at in (("nan", 1), ("nan", 3), ("crash", 1)):
        train(f"{how} {at}", small, stopping(how, at, who=0 if how == "crash" else 1))

    class Broken(torch.autograd.Function):
        @staticmethod  # the loss is finite, its gradient is not
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient * float("nan")

    train("nan gradient", small, lambda m, b: (Broken.apply(loss(m, b)[0]) if rank else loss(m, b)[0], len(b[0])))
    train("unequal", small[:7 - 3 * rank], epochs=2)
    train("unequal, in all", small[:7 - rank], epochs=2)
    train("unequal steps", small, steps=4 - rank)
    train("unequal accumulate", small, accumulate=1 + rank)

    def torn(batches=small[:2]):
        yield from batches
        if rank == 1:
            raise OSError("a file is gone")
        yield from batches
    train("batches fail", torn(), steps=2)
    for who in range(2):
        def validate(model, who=who):
            if rank == who:
                raise LookupError("no score")
            return 1.0
        train(f"validation fails in {who}", small, validate=validate, validate_every=2)
        train(f"validation fails at the end in {who}", small, validate=validate)
    (folder / "file").write_text("no folder")
    train("cannot save", small, checkpoint=folder / "file" / "below")

    def removing(model):
        if rank == 0:
            for path in (folder / "late").iterdir():
                path.unlink()
            (folder / "late").rmdir()
            (folder / "late").write_text("no folder any more")
        return 0.0
    train("cannot save later", small, checkpoint=folder / "late", checkpoint_every=2, validate=removing, validate_every=2)
    odd = Net(norm=True)
    odd.a.weight.data = torch.full((3, 5), float(rank)).T
    odd.register_buffer("flags", torch.tensor([rank == 0]))
    fit(odd, small[3:5], loss, torch.optim.SGD(odd.parameters(), lr=1e-9), accelerator=accelerator)
    results["odd"] = [odd.a.weight.abs().max().item() < 1e-3, odd.flags.item(), odd.a.weight.is_contiguous()]
    train("begun", small, steps=5, checkpoint=folder / "begun")
    train("cannot load", small, steps=7, checkpoint=folder / ("begun" if rank == 0 else "elsewhere"))
else:
    train("small", double, epochs=3, alone=True)
    train("means", small, lambda m, b: F.mse_loss(m(b[0]), b[1]), epochs=2, accumulate=2)
    train("accumulated", small, epochs=3, accumulate=4)
    torch.manual_seed(0)
    train("shuffled", DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True), epochs=3, accumulate=2)
    train("plain", small, epochs=2, dropout=0.5, norm=True, alone=True)
    train("one process", small, epochs=2, dropout=0.5, norm=True)
    train("whole", small, steps=9, accumulate=2)
    train("begun", small, steps=9, accumulate=2, checkpoint=folder / "begun")
(folder / f"{count}-{rank}.json").write_text(json.dumps(results))
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What two processes and one made of the same tasks: [main, other], alone."""
    pytest.importorskip("accelerate", reason="the optional package accelerate is not installed")
    folder = tmp_path_factory.mktemp("together")
    (folder / "script.py").write_text(TOGETHER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
    own = {name: value for name, value in os.environ.items() if name not in world} | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def run(*environments):
        running = [subprocess.Popen([sys.executable, "script.py", str(folder)], cwd=folder, env=own | more,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for more in environments]
        try:
            said = [process.communicate(timeout=120)[0] for process in running]
        finally:
            for process in running:
                process.kill()
        assert all(process.returncode == 0 for process in running), "\n".join(said)

    run(*({"RANK": str(rank), "LOCAL_RANK": str(rank)} | world for rank in range(2)))
    run({})
    return [json.loads((folder / name).read_text()) for name in ("2-0.json", "2-1.json", "1-0.json")]


def flat(value):
    return [number for part in value for number in flat(part)] if isinstance(value, list) else [value]


def apart(first, second, key="weights"):
    return max(abs(a - b) for a, b in zip(flat(first[key]), flat(second[key]), strict=True))


# Sums of float32 numbers in another order differ in the last bits, and every step carries that on: 5e-7 was seen.
TOLERANCE = 1e-5


@pytest.mark.parametrize("task", ["small", "means", "accumulated", "shuffled"])
def test_two_processes_are_one_with_the_double_batch(processes, task):
    main, other, alone = (results[task] for results in processes)
    assert main["losses"] == other["losses"] and main["weights"] == other["weights"]  # to the last bit
    assert len(main["losses"]) == len(alone["losses"]) == {"means": 8, "accumulated": 6}.get(task, 12)
    assert max(apart(main, alone, key) for key in ("losses", "norms", "rates", "weights")) < TOLERANCE
    assert main["clean"] and other["clean"]
    if task in ("small", "shuffled"):
        assert min(main["norms"]) < 1 < max(main["norms"])  # clipped, and not clipped


def test_the_mean_of_the_means_is_something_else(processes):
    main = processes[0]
    assert apart({"weights": main["small"]["losses"][:4]}, {"weights": main["means"]["losses"][:4]}) > 1e-2


def test_validation_and_weights_are_the_main_ones(processes):
    main, other, _ = processes
    assert main["small"]["validation"] == other["small"]["validation"] == [[4, 0.0], [8, 0.0], [12, 0.0]]
    assert main["other seeds"]["weights"] == other["other seeds"]["weights"] == main["small"]["weights"]


def test_dropout_differs_between_processes_and_steps(processes):
    main, other, _ = processes
    drawn = [tuple(mask) for results in (main, other) for mask in results["drawn"]]
    assert len(drawn) == len(set(drawn)) == 16
    assert main["dropout"]["weights"] == other["dropout"]["weights"]  # running means of the batch norm among them


@pytest.mark.parametrize("how, made", [("Ctrl-C", 3), ("raised", 2)])
def test_one_is_interrupted_and_all_stop_and_go_on_bit_for_bit(processes, how, made):
    for results in processes[:2]:
        part, rest, straight = (results[name] for name in (f"{how}, stopped", f"{how}, resumed", "straight"))
        assert part["interrupted"] and len(part["losses"]) == made == rest["resumed_at"] and results[f"{how}, saved"] == ["run.safetensors"]
        assert all(rest[key] == straight[key] for key in ("losses", "norms", "rates", "validation", "weights"))


def test_what_one_cannot_do_none_does(processes):
    for results in processes[:2]:
        assert results["nan 1"]["error"] == "FloatingPointError: the loss of step 1 is nan; no weight was touched"
        assert results["nan 3"]["error"] == "FloatingPointError: the loss of step 3 is nan; no weight was touched"
        assert results["nan 1"]["weights"] == results["crash 1"]["weights"] != results["nan 3"]["weights"]
        assert results["nan 3"]["clean"] and results["crash 1"]["clean"]
    assert processes[0]["crash 1"]["error"] == "MemoryError: no more"
    assert processes[1]["crash 1"]["error"] == "RuntimeError: another process failed in this step"


def test_a_gradient_that_is_not_finite_in_one_process_is_refused_in_both(processes):
    for results in processes[:2]:
        assert "the gradient of step 1 has norm nan" in results["nan gradient"]["error"]
        assert results["nan gradient"]["weights"] == results["nan 1"]["weights"] and results["nan gradient"]["clean"]


@pytest.mark.parametrize("task", ["unequal", "unequal, in all", "unequal steps", "unequal accumulate"])
def test_unequal_work_is_refused_in_all_processes(processes, task):
    """Seven batches here and four there: in the third step one process is in its first epoch, the other in its second."""
    main, other = (results[task] for results in processes[:2])
    assert main["error"] == other["error"] and main["error"].startswith("ValueError: batches, epochs, steps and accumulate must be the same")
    assert main["weights"] == other["weights"] and main["clean"] and other["clean"]


@pytest.mark.parametrize("task, who, error", [
    ("batches fail", 1, "OSError: a file is gone"), ("validation fails in 0", 0, "LookupError: no score"),
    ("validation fails in 1", 1, "LookupError: no score"), ("validation fails at the end in 0", 0, "LookupError: no score"),
    ("validation fails at the end in 1", 1, "LookupError: no score"), ("cannot save", 0, "NotADirectoryError"),
    ("cannot save later", 0, "FileExistsError"), ("cannot load", 1, "")])
def test_nobody_waits_for_one_that_has_failed(processes, task, who, error):
    """The other process hears of it at once, and both go on to the next task: had one waited, they would have hung."""
    failed, heard = processes[who][task], processes[1 - who][task]
    assert error in failed["error"] and heard["error"] == "RuntimeError: another process failed in this step"
    assert failed["weights"] == heard["weights"] or task == "cannot load"


def test_weights_in_any_layout_and_flags_are_made_alike(processes):
    assert processes[0]["odd"] == processes[1]["odd"] == [True, True, False]


def test_one_process_goes_on_where_two_stopped(processes):
    main, _, alone = processes
    assert alone["begun"]["resumed_at"] == 5 and alone["begun"]["losses"][:5] == main["begun"]["losses"]
    assert max(apart(alone["begun"], alone["whole"], key) for key in ("losses", "weights")) < TOLERANCE


def test_an_accelerator_of_one_process_changes_nothing(processes):
    alone = processes[2]
    assert alone["count"] == 1 and alone["plain"] == alone["one process"]


class Stand:
    """What `fit` looks at in an accelerator."""
    num_processes, process_index, distributed_type, mixed_precision, gradient_accumulation_steps = 1, 0, "NO", "no", 1
    device, reduce, autocast = torch.device("cpu"), None, nullcontext

    def __init__(self, **changes):
        self.__dict__.update(changes)


class Half:
    """It has what is called, but says nothing of how it works."""
    num_processes, process_index, device, reduce, autocast = 1, 0, torch.device("cpu"), None, nullcontext


def with_a_share_of_its_own():
    data = TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
    return DataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=0))


class Prepared(list):
    """As Accelerate's loaders are told: by where they come from."""


Prepared.__module__ = "accelerate.data_loader"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("accelerator, options, error, says", [
    (3, {}, TypeError, r"accelerator \(int\) must be an accelerate.Accelerator\(\)"),
    (Stand, {}, TypeError, r"accelerator \(Stand\) must be"),
    (Stand(distributed_type="FSDP"), {}, ValueError, r"cuts the model up \(FSDP\)"),
    (Stand(mixed_precision="fp16"), {}, ValueError, "use bf16"),
    (Stand(gradient_accumulation_steps=2), {}, ValueError, "give accumulate to fit instead"),
    (Half(), {}, TypeError, r"accelerator \(Half\) must be"),
    (Stand(), {"batches": Prepared(batches_of())}, ValueError, "batches was prepared already"),
    (Stand(), {"batches": with_a_share_of_its_own()}, ValueError, "batches gives each process its own share already"),
])
def test_wrong_accelerators_are_refused(accelerator, options, error, says):
    model = make_model()
    before = weights(model)
    with pytest.raises(error, match=says):
        fit(model, **{"batches": batches_of(), "loss": loss_of, **options}, accelerator=accelerator)
    assert torch.equal(weights(model), before)


def test_the_model_moves_to_the_accelerators_device_and_its_autocast_is_used():
    entered = []

    @contextmanager
    def autocast():
        entered.append(1)
        yield

    def loss(model, batch):
        places.append((batch[0].device.type, model[0].weight.device.type))
        raise RuntimeError("seen enough")

    places = []
    with pytest.raises(RuntimeError, match="seen enough"):
        fit(make_model(), batches_of(), loss, accelerator=Stand(device=torch.device("meta"), autocast=autocast))
    assert places == [("meta", "meta")] and entered == [1]


def test_accelerate_is_not_imported_by_the_course():
    code = "import transformer_course.toolbox.training_loop, sys; sys.exit('accelerate' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# Exercises ---------------------------------------------------------------------------------------------------------

def clip_with(norm_of, factor_of):
    def clip(gradients, max_norm):
        norms = norm_of(gradients)
        return [[factor_of(norm, max_norm) * g for g in gradient] for gradient, norm in zip(gradients, norms)]
    return clip


def one_norm(gradients):
    return [math.sqrt(sum(g * g for gradient in gradients for g in gradient))] * len(gradients)


def own_norms(gradients):
    return [math.sqrt(sum(g * g for g in gradient)) for gradient in gradients]


def shorten(norm, max_norm):
    return min(1.0, max_norm / norm) if norm else 1.0


def schedule_with(rise=lambda s, w: s / w, fall=lambda d: (1 + math.cos(math.pi * d)) / 2, clamp=True):
    def schedule(step, warm, total):
        if step < warm:
            return rise(step, warm)
        done = (step - warm) / (total - warm)
        return fall(min(1.0, done) if clamp else done)
    return schedule


def patience_with(better=lambda loss, best: loss < best, reset=True, against_last=False, by_number=False):
    def best_step(validation, patience):
        best, best_loss, last, waited = None, math.inf, math.inf, 0
        for number, (step, loss) in enumerate(validation, 1):
            improved = better(loss, last if against_last else best_loss)
            if improved:
                best, best_loss = (number if by_number else step), loss
            waited = 0 if improved and reset else waited + (not improved)
            last = loss
            if waited == patience:
                break
        return best, (number if by_number else step)
    return best_step


def waits_for_steps(validation, patience):
    best, best_loss = 0, math.inf
    for step, loss in validation:
        if loss < best_loss:
            best, best_loss = step, loss
        elif step - best >= patience:
            break
    return best, step


@pytest.mark.parametrize("exercise, wrong", [
    ("04.steps", [7, 8, 33, 6, 12, "9"]),
    ("04.clip", [clip_with(own_norms, shorten), clip_with(one_norm, lambda n, m: m / n if n else 1.0),
                 clip_with(one_norm, lambda n, m: min(1.0, m / n)), lambda g, m: [[max(-m, min(m, x)) for x in row] for row in g],
                 clip_with(lambda g: [max(map(abs, sum(g, [])))] * len(g), shorten)]),
    ("04.schedule", [schedule_with(rise=lambda s, w: (s - 1) / w), schedule_with(fall=lambda d: 1 - d), schedule_with(clamp=False),
                     schedule_with(fall=lambda d: math.cos(math.pi * d / 2)), lambda s, w, t: s / w if s < w else 1.0,
                     lambda s, w, t: min(s / w, schedule_with()(s, w, t))]),
    ("04.patience", [patience_with(better=lambda loss, best: loss <= best), patience_with(better=lambda loss, best: not loss >= best),
                     patience_with(reset=False), patience_with(against_last=True), patience_with(by_number=True),
                     lambda v, p: (min(v, key=lambda pair: pair[1])[0], v[-1][0]), waits_for_steps]),
])
def test_wrong_answers_are_told_from_right_ones(exercise, wrong):
    for answer in wrong:
        result = check(exercise, answer)
        assert not result and "not yet" in repr(result), answer


def test_the_variants_are_right_where_nothing_is_changed():
    for exercise, answer in (("04.clip", clip_with(one_norm, shorten)), ("04.schedule", schedule_with()), ("04.patience", patience_with())):
        assert check(exercise, answer)


def test_known_names():
    assert {"fit", "History", "progress", "to_device", "adamw"} <= set(ours.__all__)
