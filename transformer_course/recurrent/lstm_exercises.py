"""What right answers to the exercises of chapter 15 must satisfy."""
import math

import torch
from torch import nn

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _opened(open_gates, num_layers, bias):
    """An LSTM whose gates the answer opened, and a copy from before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        lstm, before = nn.LSTM(3, 4, num_layers), nn.LSTM(3, 4, num_layers)
    before.load_state_dict(lstm.state_dict())
    open_gates(lstm, bias)
    return lstm, before


def _blocks(lstm, layer):
    """The biases of one layer as the gates see them: i, f, g, o."""
    return (getattr(lstm, f"bias_ih_l{layer}") + getattr(lstm, f"bias_hh_l{layer}")).detach().view(4, -1)


def _forget_gates_stand(num_layers, bias):
    def holds(open_gates):
        lstm, _ = _opened(open_gates, num_layers, bias)
        return all(torch.allclose(_blocks(lstm, layer)[1], torch.full((4,), float(bias)), atol=1e-5)
                   for layer in range(num_layers))
    return holds


def _nothing_else_changes(open_gates):
    lstm, before = _opened(open_gates, 2, 1.0)
    weights = all(torch.equal(new, old) for (name, new), old in zip(lstm.named_parameters(), before.parameters())
                  if name.startswith("weight"))
    return weights and all(torch.allclose(_blocks(lstm, layer)[block], _blocks(before, layer)[block], atol=1e-6)
                           for layer in range(2) for block in (0, 2, 3))


def _still_trains(open_gates):
    lstm, _ = _opened(open_gates, 1, 1.0)
    return all(isinstance(p, nn.Parameter) and p.requires_grad and p.is_leaf for p in lstm.parameters()) and len(
        list(lstm.parameters())) == 4


def _gru_case(says, batch, inputs, hidden, seed, double=True):
    generator = torch.Generator().manual_seed(seed)
    cell = nn.GRUCell(inputs, hidden, dtype=torch.float64)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        x = torch.randn(batch, inputs, generator=generator, dtype=torch.float64)
        h = torch.randn(batch, hidden, generator=generator, dtype=torch.float64)
        expected = cell(x, h)
    weights = [p.detach() for p in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)]
    return Case(says, args=(x, h, *weights), expected=expected)


EXERCISES = {
    "15.parameters": [Case("four blocks of 256 rows read the input and the state, in each of two layers, with two biases", expected=892_928)],
    "15.half-life": [
        Case("a gate at one half loses half in one step", args=(0.0,), expected=1.0),
        Case("a bias of 3 keeps half for 14.3 steps", args=(3.0,), expected=math.log(0.5) / math.log(1 / (1 + math.exp(-3)))),
        Case("a gate that is nearly shut loses half in less than a step", args=(-2.0,),
             expected=math.log(0.5) / math.log(1 / (1 + math.exp(2)))),
        Case("a gate that is all but open is not mistaken for one that is open", args=(40.0,), expected=math.log(2) * math.exp(40)),
    ],
    "15.forget-bias": [
        Case("forget gates with no input and no state stand at sigmoid(1)", expected=_forget_gates_stand(1, 1.0)),
        Case("a bias other than 1 is reached too", expected=_forget_gates_stand(1, 3.0)),
        Case("every layer's gates are opened", expected=_forget_gates_stand(3, 1.0)),
        Case("weights, and the other gates' biases taken together, stay as they were", expected=_nothing_else_changes),
        Case("the parameters can still be trained", expected=_still_trains),
    ],
    "15.gru": [
        _gru_case("it agrees with torch.nn.GRUCell on 2 inputs of width 3", 2, 3, 4, 0),
        _gru_case("it agrees for a single cell", 1, 2, 1, 1),
        _gru_case("it agrees where input and state are equally wide", 3, 5, 5, 2),
    ],
}
