"""Chapter 14 against PyTorch, against known faults, and given the wrong things."""
import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from speed import ratio
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from transformer_course.recurrent._stack import zero_past_the_end
from transformer_course.recurrent.rnn import RNN, RNNCell
from transformer_course.toolbox.exercises import check

MODULE = "transformer_course.recurrent.rnn"
RANDOM = "random sizes from 1 up, 1 to 3 layers, tanh and relu, initial states, lengths against packed sequences; values and gradients"
ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}


def theirs_run(rnn, x, state, lengths):
    """`torch.nn.RNN`, packed where there are lengths."""
    if lengths is None:
        return rnn(x, state)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    output, state = rnn(packed, state)
    return pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])[0], state


def with_gradients(run, weights, x, state):
    """Outputs, final states and the gradients of a random-looking function of them, by input and weight."""
    inputs = [part.clone().requires_grad_() for part in (x, *([] if state is None else [state]))]
    output, last = run(inputs[0], inputs[1] if len(inputs) > 1 else None)
    mix = [torch.linspace(-1, 1, part.numel(), dtype=part.dtype).cos().view(part.shape) for part in (output, last)]
    value = (output * mix[0]).sum() + (last * mix[1]).sum()
    return [output, last, *torch.autograd.grad(value, [*inputs, *weights])]


def largest(ours, theirs):
    assert [part.shape for part in ours] == [part.shape for part in theirs]
    assert [part.dtype for part in ours] == [part.dtype for part in theirs]
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs))


def pair(input_size, hidden_size, num_layers=1, activation="tanh", dtype=torch.float64):
    """Ours and PyTorch's with the same weights."""
    theirs = nn.RNN(input_size, hidden_size, num_layers, nonlinearity=activation, batch_first=True).to(dtype)
    ours = RNN(input_size, hidden_size, num_layers, ACTIVATIONS[activation]).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@given(st.data(), st.integers(1, 4), st.integers(1, 7), st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))
def test_rnn_is_pytorchs(parity, data, batch, length, input_size, hidden_size, num_layers):
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    torch.manual_seed(data.draw(st.integers(0, 999)))
    ours, theirs = pair(input_size, hidden_size, num_layers, data.draw(st.sampled_from(["tanh", "relu"])), dtype)
    x = torch.randn(batch, length, input_size, dtype=dtype)
    state = torch.randn(num_layers, batch, hidden_size, dtype=dtype) if data.draw(st.booleans()) else None
    lengths = data.draw(st.none() | st.lists(st.integers(1, length), min_size=batch, max_size=batch))
    mine = with_gradients(lambda x, h: ours(x, h, lengths), ours.parameters(), x, state)
    reference = with_gradients(lambda x, h: theirs_run(theirs, x, h, lengths), theirs.parameters(), x, state)
    scale = max(1.0, *(part.abs().max().item() for part in reference))
    parity(f"{MODULE}.RNN", "torch", largest(mine, reference) / scale, 1e-12 if dtype == torch.float64 else 2e-5, RANDOM)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.sampled_from(["tanh", "relu"]), st.booleans())
def test_cell_is_pytorchs(parity, batch, input_size, hidden_size, activation, given_state):
    torch.manual_seed(0)
    theirs = nn.RNNCell(input_size, hidden_size, nonlinearity=activation).double()
    ours = RNNCell(input_size, hidden_size, ACTIVATIONS[activation]).double()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(batch, input_size, dtype=torch.float64)
    state = torch.randn(batch, hidden_size, dtype=torch.float64) if given_state else None
    sides = [with_gradients(lambda x, h, cell=cell: (cell(x, h),) * 2, cell.parameters(), x, state) for cell in (ours, theirs)]
    parity(f"{MODULE}.RNNCell", "torch", largest(*sides), 1e-12,
           "random sizes from 1 up, tanh and relu, with and without a state; values and gradients")


@pytest.mark.parametrize("ours, theirs", [
    (RNN(3, 5, 2), nn.RNN(3, 5, 2, batch_first=True)), (RNNCell(3, 5), nn.RNNCell(3, 5))])
def test_state_dicts_fit_both_ways(ours, theirs):
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(4, 7, 3) if isinstance(ours, RNN) else torch.randn(4, 3)
    mine, reference = ours(x), theirs(x)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(mine, reference))


def test_the_same_seed_draws_the_same_weights():
    for ours, theirs in ((lambda: RNN(3, 5, 2), lambda: nn.RNN(3, 5, 2)), (lambda: RNNCell(3, 5), lambda: nn.RNNCell(3, 5))):
        torch.manual_seed(7)
        mine = ours().state_dict()
        torch.manual_seed(7)
        assert all(torch.equal(mine[name], weight) for name, weight in theirs().state_dict().items())


def test_a_cell_step_by_step_is_the_network():
    torch.manual_seed(0)
    rnn, cell = RNN(3, 5).double(), RNNCell(3, 5).double()
    cell.load_state_dict({name.removesuffix("_l0"): weight for name, weight in rnn.state_dict().items()})
    x, h = torch.randn(2, 6, 3, dtype=torch.float64), None
    for t in range(6):
        h = cell(x[:, t], h)
    assert torch.allclose(h, rnn(x)[1][0], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    torch.manual_seed(0)
    rnn, x = RNN(6, 8, 2), torch.randn(3, 9, 6)
    expected = rnn(x, lengths=[9, 4, 1])
    outcome = copy.deepcopy(rnn).to(dtype)(x.to(dtype), lengths=[9, 4, 1])
    assert all(part.dtype == dtype and (part.float() - wanted).abs().max() < 0.05 for part, wanted in zip(outcome, expected))
    outcome[0].sum().backward()


def test_autocast_takes_float32_and_its_own_dtype():
    rnn, x = RNN(6, 8), torch.randn(3, 9, 6)
    with torch.autocast("cpu", torch.bfloat16):
        output, state = rnn(x, torch.zeros(1, 3, 8), [9, 4, 1])
        half, _ = rnn(x.bfloat16(), torch.zeros(1, 3, 8, dtype=torch.bfloat16), [9, 4, 1])
        cell = RNNCell(6, 8)(x[:, 0].bfloat16())
    assert (output.float() - rnn(x, lengths=[9, 4, 1])[0]).abs().max() < 0.05 and state.shape == (1, 3, 8)
    assert (half - output).abs().max() < 0.05 and cell.dtype == torch.bfloat16
    assert RNNCell(6, 8).to("meta")(torch.zeros(3, 6, device="meta")).device.type == "meta"


def test_a_network_can_be_copied_pickled_and_called_with_other_weights():
    rnn, x = RNN(3, 5, 2), torch.randn(2, 4, 3)
    for other in (copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn))):
        assert torch.equal(other(x)[0], rnn(x)[0])
    weights = {name: torch.zeros_like(weight) for name, weight in rnn.named_parameters()}
    assert torch.func.functional_call(rnn, weights, (x,))[0].abs().max() == 0


def test_an_empty_batch_gives_an_empty_result():
    for lengths in (None, torch.zeros(0, dtype=torch.long), []):
        output, state = RNN(3, 5, 2)(torch.zeros(0, 4, 3), lengths=lengths)
        assert (output.shape, state.shape) == ((0, 4, 5), (2, 0, 5))


def test_what_stands_in_the_padding_has_no_influence():
    torch.manual_seed(0)
    rnn, x = RNN(3, 5, 2), torch.randn(3, 6, 3)
    results = []
    for filler in (0.0, float("nan"), float("inf"), 1e30):
        spoilt = x.clone()
        spoilt[0, 2:], spoilt[1, 5:] = filler, filler
        results.append(with_gradients(lambda x, h: rnn(x, h, [2, 5, 6]), rnn.parameters(), spoilt, None))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_the_inputs_of_all_steps_are_one_product():
    """Cost in graph nodes: one product for the inputs of all steps, one for each step's state."""
    rnn, seen, todo = RNN(3, 5), set(), []
    todo.append(rnn(torch.randn(2, 20, 3))[0].grad_fn)
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [parent for parent, _ in node.next_functions]
    names = [node.name() for node in seen]
    assert sum("mm" in name.lower() for name in names) == 21
    assert not any("Select" in name or "Slice" in name for name in names)  # whose gradients are as large as the input


# Known faults ------------------------------------------------------------------------------------------------------

def reads_each_row_alone(network):
    """Whether `network(rnn, x, lengths) -> final state of the top layer` gives each row what it gets alone."""
    torch.manual_seed(0)
    rnn, x, lengths = RNN(3, 5, 2).double(), torch.randn(4, 7, 3, dtype=torch.float64), torch.tensor([7, 1, 4, 6])
    together = network(rnn, x, lengths)
    alone = torch.cat([rnn(row[None, :n])[1][-1] for row, n in zip(x, lengths)])
    return together.shape == alone.shape and torch.allclose(together, alone, atol=1e-10)


@pytest.mark.parametrize("fault", [
    lambda rnn, x, lengths: rnn(x)[0][:, -1],
    lambda rnn, x, lengths: rnn(x)[1][-1],
    lambda rnn, x, lengths: rnn(x, lengths=lengths)[0][:, -1],
    lambda rnn, x, lengths: rnn(x, lengths=lengths)[1][0],
    lambda rnn, x, lengths: rnn(x)[0][torch.arange(4), (lengths - 2).clamp(min=0)],
    lambda rnn, x, lengths: rnn(x, lengths=lengths)[0].sum(1) / lengths[:, None],
])
def test_wrong_final_states_are_caught(fault):
    assert reads_each_row_alone(lambda rnn, x, lengths: rnn(x, lengths=lengths)[1][-1])
    assert not reads_each_row_alone(fault)


def gradients_survive_padding(network):
    """Whether `network(rnn, x, lengths)` keeps gradients finite where states would overflow in the padding."""
    rnn = RNN(2, 4, 2, torch.relu)
    with torch.no_grad():
        for weight in rnn.parameters():
            weight.fill_(3.0)
    output, state = network(rnn, torch.ones(2, 80, 2), [2, 3])
    (output.sum() + state.sum()).backward()
    return all(weight.grad.isfinite().all() for weight in rnn.parameters())


def runs_on(rnn, x, lengths):
    """All steps for all rows, and only afterwards the states and outputs that count."""
    lengths = torch.tensor(lengths)
    kept, rows = zero_past_the_end(rnn(x)[0], lengths), torch.arange(len(x))
    return kept, kept[rows, lengths - 1]


def test_states_that_overflow_in_the_padding_do_no_harm():
    assert gradients_survive_padding(lambda rnn, x, lengths: rnn(x, lengths=lengths))
    assert not gradients_survive_padding(runs_on)


def test_lengths_do_not_change_the_dtype():
    rnn, x = RNN(6, 8, 2), torch.randn(3, 9, 6)
    with torch.autocast("cpu", torch.bfloat16):
        kinds = [[part.dtype for part in rnn(x, lengths=lengths)] for lengths in (None, [9, 4, 1])]
    assert kinds[0] == kinds[1] == [torch.bfloat16] * 2


def test_networks_on_another_device_stay_there():
    output, state = RNN(6, 8, 2).to("meta")(torch.zeros(3, 9, 6, device="meta"), lengths=[9, 4, 1])
    assert output.device.type == state.device.type == "meta" and state.shape == (2, 3, 8)


# The wrong things --------------------------------------------------------------------------------------------------

X = torch.zeros(2, 4, 3)


@pytest.mark.parametrize("sizes, says", [
    ({"num_layers": 0}, r"num_layers \(0\) must be a whole number, 1 or more"),
    ({"num_layers": -1}, "num_layers"), ({"num_layers": True}, "num_layers"), ({"num_layers": 1.0}, "num_layers"),
    ({"input_size": 0}, r"input_size \(0\)"), ({"hidden_size": 0}, r"hidden_size \(0\)"), ({"hidden_size": "5"}, "hidden_size"),
    ({"input_size": True}, r"input_size \(True\)"), ({"hidden_size": True}, r"hidden_size \(True\)"),
    ({"input_size": None}, r"input_size \(None\)"), ({"hidden_size": 5.0}, r"hidden_size \(5.0\)"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_sizes_are_refused(sizes, says):
    with pytest.raises(ValueError, match=says):
        RNN(**{"input_size": 3, "hidden_size": 5, **sizes})
    if "num_layers" not in sizes:
        with pytest.raises(ValueError, match=says):
            RNNCell(**{"input_size": 3, "hidden_size": 5, **sizes})


@pytest.mark.usefixtures("unchecked")
def test_whole_numbers_of_numpy_and_of_any_width_will_do():
    rnn, x = RNN(np.int64(3), np.int64(5), np.int64(2)), torch.randn(2, 4, 3)
    expected = rnn(x, lengths=[4, 2])
    for lengths in (np.array([4, 2], np.uint64), torch.tensor([4, 2], dtype=torch.uint16), torch.tensor([4, 2], dtype=torch.int8)):
        assert all(torch.equal(a, b) for a, b in zip(rnn(x, lengths=lengths), expected))
    with pytest.raises(ValueError, match="lengths must be from 1 to 4"):
        rnn(x, lengths=np.array([4, 2**64 - 1], np.uint64))


@pytest.mark.usefixtures("unchecked")
def test_an_activation_must_be_a_function():
    for make in (RNN, RNNCell):
        with pytest.raises(TypeError, match=r"activation \('tanh'\) must be a function"):
            make(3, 5, activation="tanh")


@pytest.mark.parametrize("x, state, lengths, error, says", [
    (torch.zeros(2, 4, 2), None, None, ValueError, r"with input_size 3, not \(2, 4, 2\)"),
    (torch.zeros(4, 3), None, None, ValueError, r"x must have shape \(batch, length, input_size\)"),
    (torch.zeros(2, 0, 3), None, None, ValueError, "at least one time step"),
    (X.double(), None, None, ValueError, "x has dtype torch.float64, but the weights have torch.float32"),
    (X.long(), None, None, ValueError, "x has dtype torch.int64"),
    (X.tolist(), None, None, TypeError, "x must be a tensor, not list"),
    (None, None, None, TypeError, "x must be a tensor, not NoneType"),
    (X, torch.zeros(2, 5), None, ValueError, r"state must have shape \(2, 2, 5\), not \(2, 5\)"),
    (X, torch.zeros(1, 2, 5), None, ValueError, r"state must have shape \(2, 2, 5\)"),
    (X, torch.zeros(2, 1, 5), None, ValueError, r"state must have shape \(2, 2, 5\)"),
    (X, torch.zeros(2, 2, 5).double(), None, ValueError, "state has dtype torch.float64"),
    (X, (torch.zeros(2, 2, 5),) * 2, None, TypeError, "state must be a tensor, not tuple"),
    (X, None, [4, 0], ValueError, "lengths must be from 1 to 4, the number of time steps, but go from 0 to 4"),
    (X, None, [4, 5], ValueError, "lengths must be from 1 to 4"),
    (X, None, [-1, 2], ValueError, "lengths must be from 1 to 4"),
    (X, None, [4], ValueError, "one number for each of 2 sequences"),
    (X, None, torch.tensor(4), ValueError, "one number for each of 2 sequences"),
    (X, None, torch.tensor([[4], [4]]), ValueError, "one number for each of 2 sequences"),
    (X, None, [4.0, 2.0], TypeError, "lengths must hold whole numbers, not torch.float32"),
    (X, None, torch.tensor([True, True]), TypeError, "lengths must hold whole numbers, not torch.bool"),
    (X, None, torch.tensor([4, 2], dtype=torch.complex64), TypeError, "lengths must hold whole numbers, not torch.complex64"),
    (X, None, "42", TypeError, "lengths cannot be read as whole numbers"),
    (X, None, [None, 2], TypeError, "lengths cannot be read as whole numbers"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_refused(x, state, lengths, error, says):
    with pytest.raises(error, match=says):
        RNN(3, 5, 2)(x, state, lengths)


@pytest.mark.parametrize("x, state, error, says", [
    (torch.zeros(2, 4), None, ValueError, "with input_size 3"),
    (torch.zeros(3), None, ValueError, r"x must have shape \(batch, input_size\)"),
    (torch.zeros(2, 3), torch.zeros(1, 5), ValueError, r"state must have shape \(2, 5\)"),
    (torch.zeros(2, 3), torch.zeros(5), ValueError, r"state must have shape \(2, 5\)"),
    (torch.zeros(2, 3).half(), None, ValueError, "x has dtype torch.float16"),
    (np.zeros((2, 3), np.float32), None, TypeError, "x must be a tensor, not ndarray"),
    (torch.zeros(2, 3), [0.0] * 5, TypeError, "state must be a tensor, not list"),
])
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_of_a_cell_is_refused(x, state, error, says):
    with pytest.raises(error, match=says):
        RNNCell(3, 5)(x, state)


# Exercises ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("exercise, wrong", [
    ("14.parameters", [740, 1420, 1440, "1480", 14800]),
    ("14.backwards", [lambda rows, lengths: [row[::-1] for row in rows],
                      lambda rows, lengths: [[v for v in row if v][::-1] + [0] * row.count(0) for row in rows],
                      lambda rows, lengths: [row[:max(lengths)][::-1] + row[max(lengths):] for row in rows],
                      lambda rows, lengths: [row[:n][::-1] for row, n in zip(rows, lengths)],
                      lambda rows, lengths: rows]),
    ("14.combine", [lambda f, s: (f[0] * s[0], f[1] + s[1]), lambda f, s: (f[0] * s[0], f[0] * s[1] + f[1]),
                    lambda f, s: (f[0] + s[0], s[0] * f[1] + s[1]), lambda f, s: (s[0], s[0] * f[1] + s[1])]),
    ("14.hump", [[[0.5, 100], [0, 0.5]], [[3, 0], [0, 3]], [[0.5, 400], [0.5, 0.5]], [[0, 1e6], [0, 0]],
                 [[0.5, 4000], [0, 0.5]], [[0.5]], None]),
])
def test_wrong_answers_are_told_from_right_ones(exercise, wrong):
    for answer in wrong:
        result = check(exercise, answer)
        assert not result and "not yet" in repr(result), answer


# Speed -------------------------------------------------------------------------------------------------------------

@pytest.mark.bench
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("batch, length, size", [(1, 50, 32), (16, 50, 64), (32, 100, 256)])
@pytest.mark.parametrize("train", [False, True])
def test_time_against_pytorch(within, batch, length, size, train):
    ours, theirs = pair(size, size, dtype=torch.float32)
    x = torch.randn(batch, length, size)

    def run(rnn):
        with torch.set_grad_enabled(train):
            output = rnn(x)[0]
            if train:
                output.sum().backward()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, it is the waiting of threads for each other that is timed
    value = ratio(lambda: run(ours), lambda: run(theirs))
    torch.set_num_threads(threads)
    name = f"RNN / torch.nn.RNN, batch {batch}, length {length}, size {size}, {'training' if train else 'forward'}"
    within(name, value, 1.2 if train else 1.6)
