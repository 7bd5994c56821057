"""LSTM: equal to torch.nn.LSTM in values and gradients; gates; what it refuses."""
import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from speed import ratio
from torch import nn

from transformer_course.recurrent import LSTM, RNN, LSTMCell
from transformer_course.recurrent._stack import layers_of, run_layers
from transformer_course.recurrent.lstm import _lstm_step
from transformer_course.toolbox.training_loop import adamw, fit

MODULE = "transformer_course.recurrent.lstm"

# Plausible answers that are wrong, for each exercise that is checked.
WRONG = [
    ("15.parameters", [4 * 256 * (100 + 256 + 1) + 4 * 256 * (512 + 1), 4 * 256 * (100 + 256 + 2) * 2, 3 * 256 * (100 + 256 + 2) + 3 * 256 * 514]),
    ("15.half-life", [lambda b: math.log(2) / (1 - 1 / (1 + math.exp(-b))), lambda b: 1 / (1 - 1 / (1 + math.exp(-b))),
                      lambda b: math.log(0.5) / math.log(1 / (1 + math.exp(b))), lambda b: -0.5 * math.log(1 / (1 + math.exp(-b)))]),
]


def _both_biases(lstm, bias):
    n = lstm.hidden_size
    with torch.no_grad():
        for name, parameter in lstm.named_parameters():
            if "bias" in name:
                parameter[n:2 * n] = bias


def _first_layer_only(lstm, bias):
    n = lstm.hidden_size
    with torch.no_grad():
        lstm.bias_ih_l0[n:2 * n] = bias
        lstm.bias_hh_l0[n:2 * n] = 0


def _wrong_block(lstm, bias):
    n = lstm.hidden_size
    with torch.no_grad():
        for layer in range(lstm.num_layers):
            getattr(lstm, f"bias_ih_l{layer}")[:n] = bias
            getattr(lstm, f"bias_hh_l{layer}")[:n] = 0


def _all_biases(lstm, bias):
    with torch.no_grad():
        for layer in range(lstm.num_layers):
            getattr(lstm, f"bias_ih_l{layer}").fill_(bias)
            getattr(lstm, f"bias_hh_l{layer}").zero_()


def _gru(swap=False, reset_first=False, order=(0, 1, 2)):
    def step(x, h, w_x, w_h, b_x, b_h):
        a, b = (x @ w_x.T + b_x).chunk(3, 1), (h @ w_h.T + b_h).chunk(3, 1)
        (r_x, z_x, n_x), (r_h, z_h, n_h) = ([part[i] for i in order] for part in (a, b))
        r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
        if reset_first:
            n_h = (r * h) @ w_h.chunk(3)[2].T + b_h.chunk(3)[2]
            n = torch.tanh(n_x + n_h)
        else:
            n = torch.tanh(n_x + r * n_h)
        return z * n + (1 - z) * h if swap else (1 - z) * n + z * h
    return step


WRONG += [
    ("15.forget-bias", [_both_biases, _first_layer_only, _wrong_block, _all_biases]),
    ("15.gru", [_gru(swap=True), _gru(reset_first=True), _gru(order=(1, 0, 2))]),
]


def pair(inputs, hidden, layers, dtype=torch.float64, seed=0):
    """torch.nn.LSTM and ours with the same weights."""
    torch.manual_seed(seed)
    theirs, ours = nn.LSTM(inputs, hidden, layers, batch_first=True, dtype=dtype), LSTM(inputs, hidden, layers).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def packed(theirs, x, state, lengths):
    """What torch.nn.LSTM gives for padded sequences of these lengths."""
    sequence = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    output, state = theirs(sequence, state)
    return nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])[0], state


def everything(network, call, x, state):
    """Outputs, states, and gradients with respect to input, initial state and weights."""
    output, (h, c) = call(x, state)
    generator = torch.Generator().manual_seed(5)
    loss = sum((part * torch.randn(part.shape, generator=generator, dtype=part.dtype)).sum() for part in (output, h, c))
    wanted = [x, *(state or ()), *network.parameters()]
    return [output, h, c, *torch.autograd.grad(loss, wanted)]


def difference(theirs, ours, x, state, lengths):
    a = everything(theirs, (lambda x, s: packed(theirs, x, s, lengths)) if lengths else theirs, x, state)
    b = everything(ours, lambda x, s: ours(x, s, lengths=lengths), x, state)
    assert [part.shape for part in a] == [part.shape for part in b]
    return max((p - q).abs().max().item() for p, q in zip(a, b))


@given(st.data())
def test_equals_torch(parity, data):
    inputs, hidden, layers = (data.draw(st.integers(1, top)) for top in (5, 7, 3))
    batch, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    lengths = data.draw(st.none() | st.lists(st.integers(1, steps), min_size=batch, max_size=batch))
    theirs, ours = pair(inputs, hidden, layers, seed=data.draw(st.integers(0, 99)))
    x = torch.randn(batch, steps, inputs, dtype=torch.float64, requires_grad=True)
    state = None
    if data.draw(st.booleans()):
        state = tuple(torch.randn(layers, batch, hidden, dtype=torch.float64, requires_grad=True) for _ in range(2))
    parity(f"{MODULE}.LSTM", "torch", difference(theirs, ours, x, state, lengths), 1e-12,
           "values and gradients: 1 to 3 layers, lengths, initial states, odd sizes, float64")


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.005)])
def test_other_precisions(dtype, tolerance):
    theirs, ours = pair(3, 5, 2, dtype)
    x = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    output, (h, c) = ours(x, lengths=[7, 2])
    assert output.dtype == h.dtype == c.dtype == dtype
    _, exact = pair(3, 5, 2, torch.float64)
    exact.load_state_dict(theirs.state_dict())
    assert (output - exact(x.double(), lengths=[7, 2])[0]).abs().max() < tolerance


def test_cell_equals_torch(parity):
    torch.manual_seed(0)
    theirs, ours = nn.LSTMCell(3, 5, dtype=torch.float64), LSTMCell(3, 5).double()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 3, dtype=torch.float64)
    state = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    for given_state in (None, state):
        gap = max((a - b).abs().max().item() for a, b in zip(theirs(x, given_state), ours(x, given_state)))
        parity(f"{MODULE}.LSTMCell", "torch", gap, 1e-12, "one step, with and without a state, float64")


def test_state_dict_fits_in_both_directions():
    theirs, ours = pair(3, 5, 2)
    fresh = LSTM(3, 5, 2).double()
    theirs.load_state_dict(fresh.state_dict())
    assert list(theirs.state_dict()) == list(ours.state_dict()) == list(fresh.state_dict())


def test_initial_weights_are_drawn_as_torch_draws_them():
    network = LSTM(7, 64, 2)
    drawn = torch.cat([p.detach().flatten() for p in network.parameters()])
    bound = 64 ** -0.5
    assert drawn.abs().max() <= bound and abs(drawn.std() - bound / 3 ** 0.5) < 0.002 and abs(drawn.mean()) < 0.002


def test_steps_by_hand_equal_the_whole():
    torch.manual_seed(0)
    network, cell = LSTM(3, 5), LSTMCell(3, 5)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in network.state_dict().items()})
    x, state = torch.randn(2, 6, 3), None
    for t in range(6):
        state = cell(x[:, t], state)
    assert torch.allclose(network(x)[0][:, -1], state[0], atol=1e-6)


def test_padding_has_no_influence():
    torch.manual_seed(0)
    network, lengths = LSTM(3, 5, 2), [4, 1, 3]
    x = torch.randn(3, 4, 3)
    spoiled = x.clone()
    for row, length in enumerate(lengths):
        spoiled[row, length:] = float("nan")
    spoiled.requires_grad_()
    output, (h, c) = network(spoiled, lengths=lengths)
    output.sum().backward()
    assert torch.isfinite(output).all() and torch.isfinite(h).all() and torch.isfinite(c).all()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters())
    assert all((spoiled.grad[row, length:] == 0).all() for row, length in enumerate(lengths))
    for row, length in enumerate(lengths):
        alone, (h_alone, c_alone) = network(x[row:row + 1, :length])
        assert torch.allclose(output[row, :length], alone[0], atol=1e-6) and (output[row, length:] == 0).all()
        assert torch.allclose(h[:, row], h_alone[:, 0], atol=1e-6) and torch.allclose(c[:, row], c_alone[:, 0], atol=1e-6)


def test_split_in_two_equals_whole():
    torch.manual_seed(0)
    network, x = LSTM(3, 5, 2).double(), torch.randn(2, 9, 3, dtype=torch.float64)
    whole, last = network(x)
    first, state = network(x[:, :4])
    second, state = network(x[:, 4:], state)
    assert torch.allclose(torch.cat([first, second], dim=1), whole, atol=1e-12)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(state, last))


# -- gates

def blocks(network, layer):
    _, _, bias_ih, bias_hh = layers_of(network)[layer]
    return (bias_ih + bias_hh).detach().view(4, -1)


@pytest.mark.parametrize("bias", [0, 1.0, 3, -2.5])
def test_forget_bias_opens_the_forget_gates_alone(bias):
    torch.manual_seed(0)
    plain = LSTM(3, 5, 2)
    torch.manual_seed(0)
    opened = LSTM(3, 5, 2, forget_bias=bias)
    for layer in range(2):
        assert torch.equal(blocks(opened, layer)[1], torch.full((5,), float(bias)))
        assert torch.equal(blocks(opened, layer)[[0, 2, 3]], blocks(plain, layer)[[0, 2, 3]])
    assert all(torch.equal(a, b) for (name, a), b in zip(plain.named_parameters(), opened.parameters()) if "weight" in name)
    cell = LSTMCell(3, 5, forget_bias=bias)
    assert torch.equal((cell.bias_ih + cell.bias_hh).detach()[5:10], torch.full((5,), float(bias)))


def agrees_with_torch(step):
    """Whether a step, run over time, gives what torch.nn.LSTM gives."""
    theirs, ours = pair(3, 5, 2)
    x, zeros = torch.randn(2, 4, 3, dtype=torch.float64), torch.zeros(2, 2, 5, dtype=torch.float64)
    return torch.allclose(run_layers(step, layers_of(ours), x, (zeros, zeros))[0], theirs(x)[0], atol=1e-10)


def mutant(order=(0, 1, 2, 3), show=torch.tanh, candidate=torch.tanh, couple=False, leak=False):
    """The step with something changed: the order of the blocks, a missing tanh, coupled gates, the wrong state shown."""
    def step(projected, state, weight_hh):
        h, c = state
        parts = torch.addmm(projected, h, weight_hh.T).chunk(4, dim=1)
        i, f, g, o = (parts[k] for k in order)
        new = f.sigmoid() * c + (1 - f.sigmoid() if couple else i.sigmoid()) * candidate(g)
        return o.sigmoid() * show(c if leak else new), new
    return step


def test_the_step_agrees_and_the_known_faults_do_not():
    assert agrees_with_torch(_lstm_step) and agrees_with_torch(mutant())
    for faulty in (mutant(order=(0, 2, 1, 3)), mutant(order=(0, 1, 3, 2)), mutant(order=(1, 0, 2, 3)), mutant(show=lambda c: c),
                   mutant(candidate=torch.sigmoid), mutant(couple=True), mutant(leak=True)):
        assert not agrees_with_torch(faulty)


# -- what it remembers, over three seeds

def recall(network, length, seed, steps=300):
    """Accuracy at naming the first of `length` tokens, after training on that length; chance is 1/8."""
    generator = torch.Generator().manual_seed(seed)

    def draw(n):
        tokens = torch.randint(8, 16, (n, length), generator=generator)
        tokens[:, 0] = torch.randint(8, (n,), generator=generator)
        return {"x": tokens, "y": tokens[:, 0].clone()}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.network, self.output = nn.Embedding(16, 16), network, nn.Linear(32, 8)

        def forward(self, x):
            return self.output(self.network(self.embedding(x))[0][:, -1])

    torch.manual_seed(seed)
    model = Model()
    fit(model, (draw(32) for _ in range(steps)), lambda m, b: nn.functional.cross_entropy(m(b["x"]), b["y"]), adamw(model, 3e-3),
        steps=steps)
    test = draw(500)
    with torch.no_grad():
        return (model(test["x"]).argmax(1) == test["y"]).float().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 6))
def test_an_lstm_with_open_gates_remembers_further_than_an_rnn(seed):
    """Other seeds than the chapter's."""
    def made(kind, bias=None):
        torch.manual_seed(seed)
        return RNN(16, 32) if kind == "rnn" else LSTM(16, 32, forget_bias=bias)

    assert recall(made("lstm", 3.0), 40, seed) > 0.95  # 1.000 on all three
    assert recall(made("rnn"), 20, seed) < 0.2 and recall(made("lstm"), 20, seed) < 0.2  # 0.11 to 0.15; chance is 0.125


# -- what it refuses

@pytest.mark.parametrize("arguments, says", [
    ((0, 5), "input_size"), ((3, 0), "hidden_size"), ((3, 5, 0), "num_layers"), ((3, 5, 1, math.nan), "forget_bias"),
    ((3, 5, 1, math.inf), "forget_bias"), ((3, 2.5), "hidden_size"), ((3, 5, 1, "1"), "forget_bias"), ((3, 5, 1, True), "forget_bias"),
])
def test_wrong_sizes(unchecked, arguments, says):
    with pytest.raises(ValueError, match=says):
        LSTM(*arguments)


x = torch.zeros(2, 4, 3)


@pytest.mark.parametrize("call, error, says", [
    (lambda n: n(torch.zeros(2, 4, 2)), ValueError, "input_size"),
    (lambda n: n(torch.zeros(2, 0, 3)), ValueError, "time step"),
    (lambda n: n(torch.zeros(4, 3)), ValueError, "batch, length"),
    (lambda n: n(x.double()), ValueError, "dtype"),
    (lambda n: n(x, torch.zeros(1, 2, 5)), TypeError, r"pair \(h, c\)"),
    (lambda n: n(x, (torch.zeros(1, 2, 5),)), TypeError, r"pair \(h, c\)"),
    (lambda n: n(x, (torch.zeros(1, 2, 5), torch.zeros(1, 3, 5))), ValueError, r"c must have shape \(1, 2, 5\)"),
    (lambda n: n(x, (torch.zeros(2, 2, 5), torch.zeros(1, 2, 5))), ValueError, r"h must have shape"),
    (lambda n: n(x, (None, [1])), TypeError, "c must be a tensor"),
    (lambda n: n(x, lengths=[4, 0]), ValueError, "lengths"),
    (lambda n: n(x, lengths=[4, 5]), ValueError, "lengths"),
    (lambda n: n(x, lengths=[4]), ValueError, "lengths"),
    (lambda n: n(x, lengths=[4.0, 1.0]), TypeError, "lengths"),
])
def test_wrong_input(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call(LSTM(3, 5))


def test_wrong_input_to_a_cell(unchecked):
    with pytest.raises(ValueError, match="input_size"):
        LSTMCell(3, 5)(torch.zeros(2, 2))
    with pytest.raises(TypeError, match="pair"):
        LSTMCell(3, 5)(torch.zeros(2, 3), torch.zeros(2, 5))
    with pytest.raises(ValueError, match="h must have shape"):
        LSTMCell(3, 5)(torch.zeros(2, 3), (torch.zeros(1, 5), torch.zeros(2, 5)))
    with pytest.raises(ValueError, match="forget_bias"):
        LSTMCell(3, 5, math.nan)


def test_copies_and_compiles_to_the_meta_device():
    network = copy.deepcopy(LSTM(3, 5, 2)).to("meta")
    output, (h, c) = network(torch.zeros(2, 4, 3, device="meta"))
    assert output.shape == (2, 4, 5) and h.shape == c.shape == (2, 2, 5) and output.device.type == "meta"


# -- speed

@pytest.mark.bench
def test_speed_against_torch(unchecked, within):
    theirs, ours = pair(64, 128, 1, torch.float32)
    x = torch.randn(32, 50, 64)

    def train(network):
        network(x)[0].sum().backward()

    value = ratio(lambda: train(ours), lambda: train(theirs))
    within("LSTM, forward and backward / torch", value, 3.0)
