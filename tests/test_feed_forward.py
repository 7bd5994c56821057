"""Feed-forward networks: equal to torch's and transformers' in values and gradients; position-wise; what they refuse."""
import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from speed import ratio
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.t5.configuration_t5 import T5Config
from transformers.models.t5.modeling_t5 import T5DenseActDense, T5DenseGatedActDense

from transformer_course.toolbox.exercises import check
from transformer_course.toolbox.training_loop import adamw, fit
from transformer_course.transformer import FeedForward, GatedFeedForward, SwiGLU
from transformer_course.transformer.feed_forward import ACTIVATIONS

MODULE = "transformer_course.transformer.feed_forward"
NAMES = ("relu", "gelu", "gelu_tanh", "silu")
MODULES = {"relu": nn.ReLU, "gelu": nn.GELU, "gelu_tanh": lambda: nn.GELU("tanh"), "silu": nn.SiLU}
HUGGING_FACE = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}
LLAMA = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
T5_GATED = {"gate": "wi_0", "up": "wi_1", "down": "wo"}
T5 = {"up": "wi", "down": "wo"}


# -- exercises: plausible answers that are wrong

def _network(cls, *arguments, bias=False, **weights):
    network = cls(*arguments, bias=bias)
    with torch.no_grad():
        for name, weight in weights.items():
            getattr(network, name).weight.copy_(torch.tensor(weight))
    return network


def _narrow(d):
    """Lets only the positive part pass."""
    eye = torch.eye(d).tolist()
    return _network(FeedForward, d, d, up=eye, down=eye)


def _absolute(d):
    eye = torch.eye(d)
    return _network(FeedForward, d, 2 * d, up=torch.cat([eye, -eye]).tolist(), down=torch.cat([eye, eye], dim=1).tolist())


def _shifted(d):
    """Lifted by a bias and lowered again: right as long as the input is above -10."""
    network = _network(FeedForward, d, d, bias=True, up=torch.eye(d).tolist(), down=torch.eye(d).tolist())
    with torch.no_grad():
        network.up.bias.fill_(10.0)
        network.down.bias.fill_(-10.0)
    return network


def _spacious(d):
    eye, none = torch.eye(d), torch.zeros(d, d)
    return _network(FeedForward, d, 3 * d, up=torch.cat([eye, -eye, eye]).tolist(),
                    down=torch.cat([eye, -eye, none], dim=1).tolist())


def _random(d):
    torch.manual_seed(0)
    return FeedForward(d, 2 * d)


def _smooth(d):
    """z = gelu(z) - gelu(-z) holds as well, but ReLU was asked for."""
    eye = torch.eye(d)
    network = FeedForward(d, 2 * d, "gelu", bias=False)
    network.load_state_dict({"up.weight": torch.cat([eye, -eye]), "down.weight": torch.cat([eye, -eye], dim=1)})
    return network


def _multiplier(gate=((1.0, 0), (-1, 0)), up=((0.0, 1), (0, 1)), down=((1.0, -1), (0, 0))):
    return lambda: _network(SwiGLU, 2, 2, gate=gate, up=up, down=down)


WRONG = [
    ("21.parameters", [32 * 2 * 4096 * 11008, 3 * 4096 * 11008, 32 * 3 * 4096 * 16384, 32 * (3 * 4096 * 11008 + 2 * 11008 + 4096)]),
    ("21.gated-width", [lambda d, m: 4 * d, lambda d, m: 8 * d // 3, lambda d, m: round(8 * d / 3 / m) * m,
                        lambda d, m: 8 * d // 3 // m * m, lambda d, m: (8 * d // 3 // m + 1) * m,
                        lambda d, m: -(-math.ceil(8 * d / 3) // m) * m]),
    ("21.pass-through", [_narrow, _absolute, _shifted, _spacious, _random, _smooth]),
    ("21.multiply", [_multiplier(down=((1.0, 1), (0, 0))), _multiplier(down=((1.0, 0), (0, 0))),
                     _multiplier(up=((0.0, 1), (0, -1))), _multiplier(down=((1.0, -1), (1, -1))), lambda: SwiGLU(2, 2),
                     _multiplier(gate=((1.0, 0), (1, 0)), up=((0.0, 1), (0, 0))), lambda: FeedForward(2, 2)]),
]


@pytest.mark.parametrize("name, answers", WRONG, ids=[name for name, _ in WRONG])
def test_wrong_answers_are_told_so(name, answers):
    assert [i for i, answer in enumerate(answers) if check(name, answer)] == []


# -- the same as other libraries

def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def randomized(network, seed=0, scale=1.0):
    """The network with weights and biases drawn anew, so that no bias is small by chance."""
    with torch.no_grad():
        for i, parameter in enumerate(network.parameters()):
            parameter.copy_(scale * randn(*parameter.shape, seed=100 * seed + i))
    return network


def copied(network, into, names):
    """`into` with the weights of our network, under its own names; all of them, and none else."""
    renamed = {f"{names[key.split('.')[0]]}.{key.split('.')[1]}": value for key, value in network.state_dict().items()}
    into = into.to(next(iter(renamed.values())).dtype)
    into.load_state_dict(renamed, strict=True)
    return into


def everything(network, x, names, wanted):
    """Output, and gradients with respect to input and weights, in the order of our names."""
    output = network(x)
    weights = [parameter for name in names for parameter in network.get_submodule(name).parameters()]
    return [output, *torch.autograd.grad(((output - wanted) ** 2).sum(), [x, *weights])]


def difference(ours, theirs, names, x):
    wanted = randn(*x.shape, seed=77, dtype=x.dtype)
    a, b = everything(ours, x, list(names), wanted), everything(theirs, x, list(names.values()), wanted)
    assert [part.shape for part in a] == [part.shape for part in b]
    return max((p - q).abs().max().item() / (1 + q.abs().max().item()) for p, q in zip(a, b))


@pytest.mark.parametrize("name", NAMES)
def test_activations_are_torchs_and_hugging_faces(parity, name):
    z = torch.linspace(-8, 8, 4001, dtype=torch.float64).requires_grad_()
    for theirs, distribution in ((MODULES[name](), "torch"), (ACT2FN[HUGGING_FACE[name]], "transformers")):
        gap = 0.0
        for y, wanted in ((ACTIVATIONS[name](z), theirs(z)),):
            slopes = [torch.autograd.grad(out.sum(), z)[0] for out in (y, wanted)]
            gap = max((y - wanted).abs().max().item(), (slopes[0] - slopes[1]).abs().max().item())
        parity(f"{MODULE}.FeedForward", distribution, gap, 1e-12, f"its {name} alone: values and derivatives from -8 to 8, float64")


SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=3)


@given(st.data())
def test_equals_torch(parity, data):
    d_model, d_ff, seed = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 9)), data.draw(st.integers(0, 99))
    name, bias = data.draw(st.sampled_from(NAMES)), data.draw(st.booleans())
    ours = randomized(FeedForward(d_model, d_ff, name, bias).double(), seed)
    theirs = nn.Sequential(nn.Linear(d_model, d_ff, bias), MODULES[name](), nn.Linear(d_ff, d_model, bias))
    names = {"up": "0", "down": "2"}
    x = randn(*data.draw(SHAPES), d_model, seed=seed).requires_grad_()
    parity(f"{MODULE}.FeedForward", "torch", difference(ours, copied(ours, theirs, names), names, x), 1e-12,
           "values and gradients: all activations, with and without biases, odd sizes, any leading axes, float64")


@given(st.data())
def test_equals_t5(parity, data):
    d_model, d_ff, seed = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 9)), data.draw(st.integers(0, 99))
    name, gated = data.draw(st.sampled_from(NAMES)), data.draw(st.booleans())
    config = T5Config(d_model=d_model, d_ff=d_ff, dropout_rate=0.0)
    config.dense_act_fn = HUGGING_FACE[name]
    x = randn(*data.draw(SHAPES), d_model, seed=seed).requires_grad_()
    if gated:
        ours, theirs, names = GatedFeedForward(d_model, d_ff, name), T5DenseGatedActDense(config), T5_GATED
    else:
        ours, theirs, names = FeedForward(d_model, d_ff, name, bias=False), T5DenseActDense(config), T5
    ours = randomized(ours.double(), seed)
    parity(f"{MODULE}.{type(ours).__name__}", "transformers", difference(ours, copied(ours, theirs, names), names, x), 1e-12,
           "values and gradients: T5's dense layers, all activations, odd sizes, float64")


@given(st.data())
def test_equals_llama(parity, data):
    d_model, d_ff, seed = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 9)), data.draw(st.integers(0, 99))
    bias = data.draw(st.booleans())
    config = LlamaConfig(hidden_size=d_model, intermediate_size=d_ff, mlp_bias=bias, head_dim=2,
                         num_attention_heads=1, num_key_value_heads=1)
    ours = randomized(SwiGLU(d_model, d_ff, bias).double(), seed)
    x = randn(*data.draw(SHAPES), d_model, seed=seed).requires_grad_()
    parity(f"{MODULE}.SwiGLU", "transformers", difference(ours, copied(ours, LlamaMLP(config), LLAMA), LLAMA, x), 1e-12,
           "values and gradients: LLaMA's network, with and without biases, odd sizes, float64")


def test_base_size_in_single_precision(parity):
    x = randn(2, 7, 512, dtype=torch.float32).requires_grad_()
    torch.manual_seed(0)
    names = {"up": "0", "down": "2"}
    ours, theirs = FeedForward(512, 2048), nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
    parity(f"{MODULE}.FeedForward", "torch", difference(ours, copied(ours, theirs, names), names, x), 1e-5,
           "values and gradients at base size, 512 and 2048, float32")
    gated = SwiGLU(512, 1365)
    config = LlamaConfig(hidden_size=512, intermediate_size=1365, num_attention_heads=8)
    parity(f"{MODULE}.SwiGLU", "transformers", difference(gated, copied(gated, LlamaMLP(config), LLAMA), LLAMA, x), 1e-5,
           "values and gradients at 512 and 1365, float32")


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.02), (torch.float16, 0.003)])  # 0.005 and 0.0006 seen
@pytest.mark.parametrize("make", [lambda: FeedForward(64, 256, "gelu"), lambda: SwiGLU(64, 170)])
def test_half_precision(make, dtype, tolerance):
    torch.manual_seed(0)
    network, x = make(), randn(3, 64, dtype=torch.float32)
    exact = copy.deepcopy(network).double()(x.double())
    output = network.to(dtype)(x.to(dtype))
    assert output.dtype == dtype and (output - exact).abs().max() < tolerance


def test_autocast():
    network, x = FeedForward(8, 16), randn(2, 8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert network(x).dtype == torch.bfloat16 and network(x.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert (network(x) - network.float()(x)).abs().max() < 0.05


@pytest.mark.parametrize("make", [lambda: FeedForward(3, 5), lambda: SwiGLU(3, 5)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_autocast_does_not_hide_what_it_cannot_convert(unchecked, make, dtype):
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match=f"x has dtype {dtype}"):
        make()(torch.ones(2, 3, dtype=dtype))


# -- known faults

def agrees_with_formula(forward, bend):
    """Whether a forward pass of a gated network gives bend(gate) * up, down, with these weights; in float64."""
    network, x = randomized(GatedFeedForward(3, 5).double()), randn(16, 3, seed=1)
    h = bend(x @ network.gate.weight.T) * (x @ network.up.weight.T)
    return torch.allclose(forward(network, x), h @ network.down.weight.T, atol=1e-9)


def through(bend, outer="gate", inner="up"):
    return lambda n, x: n.down(bend(getattr(n, outer)(x)) * getattr(n, inner)(x))


def quick_gelu(z):
    return z * torch.sigmoid(1.702 * z)


def test_the_gated_network_agrees_and_the_known_faults_do_not():
    def ours(name):
        def forward(network, x):
            gated = GatedFeedForward(3, 5, name).double()
            gated.load_state_dict(network.state_dict())
            return gated(x)
        return forward

    def gelu(z):
        return z * (1 + torch.erf(z / math.sqrt(2))) / 2

    assert agrees_with_formula(ours("silu"), lambda z: z / (1 + torch.exp(-z)))
    assert agrees_with_formula(ours("gelu"), gelu) and agrees_with_formula(through(F.gelu), gelu)
    for faulty in (ours("gelu_tanh"), through(quick_gelu), through(F.gelu, "up", "gate"), through(F.silu), through(torch.sigmoid),
                   lambda n, x: n.down(F.gelu(n.gate(x) * n.up(x))), lambda n, x: n.down(F.gelu(n.gate(x)) * F.gelu(n.up(x))),
                   lambda n, x: n.down(F.gelu(n.gate(x)) + n.up(x))):
        assert not agrees_with_formula(faulty, gelu)


@pytest.mark.parametrize("faulty, gap", [(ACTIVATIONS["gelu_tanh"], 4.7e-4), (quick_gelu, 2.0e-2), (F.silu, 0.2),
                                         (lambda z: z / 2 * (1 + torch.tanh(0.79788456 * (z + 0.044715 * z ** 2))), 5.9e-2)])
def test_what_passes_for_gelu(faulty, gap):
    """How far the usual substitutes are off: the first passes a comparison to three digits."""
    z = torch.linspace(-6, 6, 12001, dtype=torch.float64)
    found = (faulty(z) - ACTIVATIONS["gelu"](z)).abs().max().item()
    assert 0.9 * gap < found < 1.1 * gap


@pytest.mark.parametrize("name", NAMES)
def test_names_are_not_mixed_up(name):
    """Every other activation gives something else, by more than the comparisons above allow."""
    z = torch.linspace(-4, 4, 401, dtype=torch.float64)
    for other in set(NAMES) - {name}:
        assert (ACTIVATIONS[name](z) - ACTIVATIONS[other](z)).abs().max() > 1e-4
    assert tuple(ACTIVATIONS) == NAMES


# -- properties

MAKERS = [lambda: FeedForward(5, 7), lambda: FeedForward(5, 7, "gelu", bias=False), lambda: GatedFeedForward(5, 7, "gelu_tanh"),
          lambda: SwiGLU(5, 7, bias=True)]


@pytest.mark.parametrize("make", MAKERS)
def test_positions_do_not_meet(make):
    network, x = randomized(make().double()), randn(2, 6, 5)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(network(x[:, order]), network(x)[:, order], atol=1e-12)
    assert torch.allclose(network(x), torch.stack([network(x[:, t]) for t in range(6)], dim=1), atol=1e-12)
    block = torch.autograd.functional.jacobian(network, x[0])            # token, feature, token, feature
    off = ~torch.eye(6, dtype=bool)
    assert (block.permute(0, 2, 1, 3)[off] == 0).all() and (block[range(6), :, range(6)] != 0).any(dim=-1).all()
    spoiled = x.clone()
    spoiled[:, 3] = float("nan")                                         # padding may hold anything
    assert torch.equal(network(spoiled)[:, :3].isnan(), torch.zeros(2, 3, 5, dtype=bool))


@pytest.mark.parametrize("make", MAKERS)
def test_gradients_by_finite_differences(make):
    network, x = randomized(make().double(), seed=3), randn(2, 5, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(network, x) and torch.autograd.gradgradcheck(network, x)


@pytest.mark.parametrize("make", MAKERS)
def test_what_it_gets_and_what_lies_between_stay_as_they_are(make):
    """Nothing is overwritten: a hook reads the inner numbers before the activation, and the input is the caller's."""
    network, x, seen = randomized(make().double()), randn(3, 5), {}
    before = x.clone()
    network.up.register_forward_hook(lambda module, inputs, output: seen.update(up=output))
    with torch.no_grad():
        network(x)
    assert torch.equal(x, before) and torch.allclose(seen["up"], F.linear(x, network.up.weight, network.up.bias))
    assert (seen["up"] < 0).any()


def test_relu_without_biases_is_homogeneous_and_the_others_are_not():
    x = randn(9, 5)
    for name in NAMES:
        network = randomized(FeedForward(5, 7, name, bias=False).double())
        assert torch.allclose(network(3 * x), 3 * network(x), atol=1e-9) == (name == "relu")
        assert network(torch.zeros(1, 5).double()).abs().max() == 0


@pytest.mark.parametrize("name", NAMES)
def test_two_gated_units_multiply(name):
    """a(z) - a(-z) = z for all four, so that any of them multiplies; up to rounding."""
    network = GatedFeedForward(2, 2, name).double()
    network.load_state_dict({"gate.weight": torch.tensor([[1.0, 0], [-1, 0]]), "up.weight": torch.tensor([[0.0, 1], [0, 1]]),
                             "down.weight": torch.tensor([[1.0, -1], [0, 0]])})
    x = randn(50, 2, seed=5)
    assert torch.allclose(network(x)[:, 0], x.prod(dim=1), atol=1e-12)


def test_parameter_counts():
    def count(network):
        return sum(p.numel() for p in network.parameters())
    with torch.device("meta"):
        assert count(FeedForward(512, 2048)) == 2_099_712 and count(FeedForward(512, 2048, bias=False)) == 2_097_152
        assert count(SwiGLU(512, 1365)) == 3 * 512 * 1365 and count(GatedFeedForward(5, 7, bias=True)) == 3 * 35 + 2 * 7 + 5
    assert isinstance(SwiGLU(2, 3), GatedFeedForward) and SwiGLU(2, 3).activation is F.silu
    assert GatedFeedForward(2, 3).activation is F.silu and FeedForward(2, 3).activation is F.relu  # the defaults


@pytest.mark.parametrize("make", [lambda p: FeedForward(8, 4096, dropout=p), lambda p: SwiGLU(8, 4096, dropout=p)])
def test_dropout_is_on_the_inner_numbers_in_training_only(make):
    torch.manual_seed(0)
    network, dropped = make(0.25), []
    network.down.register_forward_hook(lambda module, inputs, output: dropped.append(inputs[0]))
    x = randn(4, 8, dtype=torch.float32)
    network(x)
    network.eval()
    network(x)
    training, evaluating = dropped
    gone = (training == 0) & (evaluating != 0)
    live = evaluating != 0
    assert abs(gone.sum() / live.sum() - 0.25) < 0.03                    # over more than 8,000 numbers: six standard errors
    assert torch.allclose(training[live & ~gone], evaluating[live & ~gone] / 0.75)
    assert torch.equal(network(x), network(x))


@pytest.mark.parametrize("make", MAKERS)
def test_state_dict_copies_and_the_meta_device(make, tmp_path):
    network, x = make(), randn(2, 5, dtype=torch.float32)
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    fresh = make()
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(fresh(x), network(x)) and torch.equal(copy.deepcopy(network)(x), network(x))
    assert {key.split(".")[0] for key in network.state_dict()} <= {"gate", "up", "down"}
    output = copy.deepcopy(network).to("meta")(torch.zeros(2, 3, 5, device="meta"))
    assert output.shape == (2, 3, 5) and output.device.type == "meta"
    assert network(torch.zeros(0, 5)).shape == (0, 5)


# -- training: other seeds than the chapter's

@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 6))
def test_a_gate_learns_a_product_and_relu_a_maximum(seed):
    """Over 16 seeds, at 400 steps: product 0.0007 to 0.0037 and 0.0089 to 0.0175; maximum 0.062 to 0.068 and 0.0034 to 0.0095."""
    grid = torch.cartesian_prod(*[torch.linspace(-1, 1, 41)] * 2)

    def error(make, target):
        torch.manual_seed(seed)
        model, generator = make(), torch.Generator().manual_seed(seed)
        fit(model, (2 * torch.rand(128, 2, generator=generator) - 1 for _ in range(400)),
            lambda m, x: (m(x)[:, 0] - target(x)).square().mean(), adamw(model, 3e-2, 0.0), lambda step: 1 - (step - 1) / 400, steps=400)
        with torch.no_grad():
            return (model(grid)[:, 0] - target(grid)).square().mean().sqrt().item()

    def relu():
        return FeedForward(2, 36)

    def gated():
        return SwiGLU(2, 22, bias=True)

    assert error(gated, lambda x: x.prod(dim=1)) < 0.006 < error(relu, lambda x: x.prod(dim=1))
    assert error(relu, lambda x: x.amax(dim=1)) < 0.02 < error(gated, lambda x: x.amax(dim=1))


# -- what they refuse

@pytest.mark.parametrize("make", [FeedForward, GatedFeedForward])
@pytest.mark.parametrize("arguments, error, says", [
    ({"d_model": 0}, ValueError, r"d_model \(0\)"), ({"d_ff": -1}, ValueError, r"d_ff \(-1\)"), ({"d_ff": 2.5}, ValueError, "d_ff"),
    ({"d_model": True}, ValueError, "d_model"), ({"activation": "tanh"}, ValueError, "activation .'tanh'.*relu, gelu, gelu_tanh, silu"),
    ({"activation": "ReLU"}, ValueError, "one of relu"), ({"activation": None}, ValueError, "activation"),
    ({"activation": ["relu"]}, ValueError, "activation"), ({"activation": F.relu}, ValueError, "activation"),
    ({"bias": None}, TypeError, "bias"), ({"bias": 1}, TypeError, "bias"), ({"dropout": 1.0}, ValueError, "dropout"),
    ({"dropout": -0.1}, ValueError, r"dropout \(-0.1\)"), ({"dropout": math.nan}, ValueError, "dropout"),
    ({"dropout": "0.1"}, ValueError, "dropout"), ({"dropout": True}, ValueError, "dropout"),
])
def test_wrong_arguments(unchecked, make, arguments, error, says):
    with pytest.raises(error, match=says):
        make(**{"d_model": 3, "d_ff": 5} | arguments)
    if "activation" not in arguments and make is GatedFeedForward:
        with pytest.raises(error, match=says):
            SwiGLU(**{"d_model": 3, "d_ff": 5} | arguments)


def test_whole_numbers_and_shares_of_other_kinds_are_taken(unchecked):
    network = FeedForward(np.int64(3), np.int64(5), dropout=np.float32(0.5))
    assert network(torch.zeros(2, 3)).shape == (2, 3) and network.dropout.p == 0.5


@pytest.mark.parametrize("make", [lambda: FeedForward(3, 5), lambda: SwiGLU(3, 5)])
@pytest.mark.parametrize("x, error, says", [
    (torch.zeros(2, 4), ValueError, r"x has shape \(2, 4\).*d_model \(3\)"), (torch.zeros(3, 2), ValueError, "last axis"),
    (torch.tensor(1.0), ValueError, "last axis"), (torch.zeros(2, 3).double(), ValueError, "dtype"),
    (torch.zeros(2, 3, dtype=torch.int64), ValueError, "dtype"), ([[0.0, 0.0, 0.0]], TypeError, "x must be a tensor, not list"),
    (None, TypeError, "NoneType"),
])
def test_wrong_input(unchecked, make, x, error, says):
    with pytest.raises(error, match=says):
        make()(x)


# -- speed

@pytest.mark.bench
def test_speed_against_transformers(unchecked, within):
    config = LlamaConfig(hidden_size=512, intermediate_size=1365, num_attention_heads=8)
    ours, x = SwiGLU(512, 1365), torch.randn(8, 64, 512)
    theirs = copied(ours, LlamaMLP(config), LLAMA)

    def train(network):
        network(x).sum().backward()

    within("SwiGLU, forward and backward / transformers", ratio(lambda: train(ours), lambda: train(theirs)), 1.15)


@pytest.mark.bench
def test_speed_against_torch(unchecked, within):
    ours, x = FeedForward(512, 2048, "gelu"), torch.randn(8, 64, 512)
    theirs = copied(ours, nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)), {"up": "0", "down": "2"})

    def train(network):
        network(x).sum().backward()

    within("FeedForward, forward and backward / torch", ratio(lambda: train(ours), lambda: train(theirs)), 1.15)


@pytest.mark.parametrize("up", [nn.Identity(), nn.Linear(5, 5), nn.Sequential(nn.Linear(5, 5))])
def test_in_place_only_on_numbers_of_its_own(up):
    """Without gradients ReLU overwrites what `up` gave, but never the caller's tensor: `up` may hand that through."""
    network, x = FeedForward(5, 5), torch.randn(3, 5)
    network.up, kept = up, x.clone()
    network.up.weight = getattr(network.up, "weight", nn.Parameter(torch.zeros(5, 5)))
    with torch.no_grad():
        quick = network(x)
    assert torch.equal(x, kept)
    assert torch.allclose(quick, network(x), atol=1e-6)  # with gradients nothing is overwritten
