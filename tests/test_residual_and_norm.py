"""LayerNorm: equal to torch.nn.LayerNorm in values and gradients, in any precision; Residual: Add & Norm in both orders; what they refuse."""
import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from speed import ratio
from torch import nn
from torch.nn import functional as F

from transformer_course.transformer import LayerNorm, Residual

MODULE = "transformer_course.transformer.residual_and_norm"

# Plausible answers that are wrong, for each exercise that is checked.


def _two_pass(numbers):
    numbers = list(numbers)
    mean = sum(numbers) / len(numbers)
    return mean, sum((n - mean) ** 2 for n in numbers) / max(len(numbers) - 1, 1)


def _of_squares(numbers):
    count = total = squares = 0
    for number in numbers:
        count, total, squares = count + 1, total + number, squares + number ** 2
    return total / count, squares / count - (total / count) ** 2


def _reads_twice(numbers):
    mean = sum(numbers) / 4
    return mean, sum((n - mean) ** 2 for n in numbers) / 4


def _deviation(numbers):
    numbers = list(numbers)
    mean = sum(numbers) / len(numbers)
    return mean, math.sqrt(sum((n - mean) ** 2 for n in numbers) / len(numbers))


def _fold(rows=False, without_beta=False, without_bias=False, in_place=False, swap=False):
    def fold(norm, linear):
        weight = linear.weight * (norm.weight[: len(linear.weight), None] if rows else norm.weight)
        bias = torch.zeros(len(linear.weight), dtype=weight.dtype)
        if norm.bias is not None and not without_beta:
            bias = bias + (weight if swap else linear.weight) @ norm.bias
        if linear.bias is not None and not without_bias:
            bias = bias + linear.bias
        folded = linear if in_place else nn.Linear(*reversed(linear.weight.shape), dtype=weight.dtype)
        folded.weight.copy_(weight)
        if folded.bias is not None:
            folded.bias.copy_(bias)
        return folded
    return fold


WRONG = [
    ("22.by-hand", [[-1 / 3 ** 0.5, 1 - 2 / 3 ** 0.5, 6 / 3 ** 0.5], [-0.7071, -0.7071, 1.4142], [-0.7071, -1.4142, 4.2426],
                    [-0.5, 0.0, 3.0], [-0.7071, 0.5858, 4.2426]]),
    ("22.one-pass", [_two_pass, _of_squares, _reads_twice, _deviation]),
    ("22.fold", [_fold(rows=True), _fold(without_beta=True), _fold(without_bias=True), _fold(in_place=True), _fold(swap=True)]),
    ("22.paths", [lambda n, a: [a ** k / (1 + a) ** n for k in range(n + 1)], lambda n, a: [math.comb(n, k) * a ** k for k in range(n + 1)],
                  lambda n, a: [math.comb(n, k) / 2 ** n for k in range(n + 1)],
                  lambda n, a: [math.comb(n, k) * a ** k / (1 + a) ** n for k in range(n)]]),
    ("22.deep-norm", [lambda x, f, norm, n: norm(x + (2 * n) ** 0.25 * f(x)), lambda x, f, norm, n: norm((8 * n) ** -0.25 * x + f(x)),
                      lambda x, f, norm, n: (2 * n) ** 0.25 * x + f(norm(x)), lambda x, f, norm, n: norm((2 * n) ** 0.5 * x + f(x)),
                      lambda x, f, norm, n: norm(x + f(x))]),
]


# -- LayerNorm against torch.nn.LayerNorm

def pair(d, eps=1e-5, bias=True, dtype=torch.float64, seed=0):
    """torch.nn.LayerNorm and ours with the same random weights."""
    generator = torch.Generator().manual_seed(seed)
    theirs, ours = nn.LayerNorm(d, eps=eps, bias=bias, dtype=dtype), LayerNorm(d, eps, bias).to(dtype)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def tokens(*shape, dtype=torch.float64, seed=0, mean=0.0, std=1.0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (mean + std * x).to(dtype).requires_grad_()


def everything(norm, x):
    """Output, and gradients of x and of every parameter."""
    y = norm(x)
    gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(y.dtype)
    return [y, *torch.autograd.grad(y, [x, *norm.parameters()], gradient)]


def difference(theirs, ours, x):
    a, b = everything(theirs, x), everything(ours, x)
    assert [part.shape for part in a] == [part.shape for part in b]
    return max((p - q).abs().max().item() for p, q in zip(a, b))


@given(st.data())
def test_equals_torch(parity, data):
    d, seed = data.draw(st.sampled_from([1, 2, 3, 5, 8])), data.draw(st.integers(0, 99))
    shape = [data.draw(st.integers(1, 4)) for _ in range(data.draw(st.integers(0, 3)))]
    eps, bias = data.draw(st.sampled_from([1e-12, 1e-6, 1e-5, 1e-3])), data.draw(st.booleans())
    if d == 1:  # its variance is 0, and rounding divided by the root of eps is not rounding any more
        eps = max(eps, 1e-6)
    x = tokens(*shape, d, seed=seed, mean=data.draw(st.sampled_from([0.0, 3.0])), std=data.draw(st.sampled_from([0.1, 1.0, 30.0])))
    parity(f"{MODULE}.LayerNorm", "torch", difference(*pair(d, eps, bias, seed=seed), x), 1e-8,
           "values and gradients: widths 1, 2, 3, 5 and 8, any number of dimensions, eps from 1e-12 to 1e-3, with and without bias, float64")


def test_equals_torch_at_base_size():
    assert difference(*pair(512, dtype=torch.float32), tokens(4, 16, 512, dtype=torch.float32, mean=0.5, std=2.0)) < 2e-5


def test_state_dict_fits_in_both_directions():
    for bias in (True, False):
        theirs, ours = pair(5, bias=bias)
        fresh = LayerNorm(5, bias=bias).double()
        theirs.load_state_dict(fresh.state_dict())
        assert list(theirs.state_dict()) == list(ours.state_dict()) == ["weight", "bias"][:1 + bias]


def test_new_parameters_change_nothing():
    norm = LayerNorm(5)
    assert torch.equal(norm.weight, torch.ones(5)) and torch.equal(norm.bias, torch.zeros(5)) and norm.eps == 1e-5


# -- the known faults

def agrees_with_torch(norm):
    """Whether norm(x, weight, bias, eps) is layer normalisation, at small widths and near-constant tokens too."""
    for d in (2, 3, 5, 8):
        for std in (1.0, 1e-3):
            x, (weight, bias) = tokens(2, 3, d, std=std).detach(), tokens(2, d, seed=1).detach()
            expected = F.layer_norm(x, (d,), weight, bias, 1e-5)
            if not torch.allclose(norm(x, weight, bias, 1e-5), expected, atol=1e-10):
                return False
    return True


def mutant(unbiased=False, outside=False, over=-1, no_eps=False, swap=False, centre=True):
    def norm(x, weight, bias, eps):
        dims = over if isinstance(over, tuple) else (over,)
        mean, variance = x.mean(dims, keepdim=True), x.var(dims, unbiased=unbiased, keepdim=True)
        eps = 0.0 if no_eps else eps
        size = variance.sqrt() + eps if outside else (variance + eps).sqrt()
        weight, bias = (bias, weight) if swap else (weight, bias)
        return weight * (x - mean if centre else x) / size + bias
    return norm


def ours(x, weight, bias, eps):
    norm = LayerNorm(len(weight), eps).double()
    norm.load_state_dict({"weight": weight, "bias": bias})
    return norm(x)


def test_layer_norm_agrees_and_the_known_faults_do_not():
    assert agrees_with_torch(ours) and agrees_with_torch(mutant())
    for faulty in (mutant(unbiased=True), mutant(outside=True), mutant(unbiased=True, outside=True), mutant(over=(-2, -1)), mutant(over=0),
                   mutant(no_eps=True), mutant(swap=True), mutant(centre=False)):
        assert not agrees_with_torch(faulty)


def test_how_far_the_annotated_transformer_is_off():
    """0.1 to 0.2 at a width of 8, thousandths at 512: what a test at base size does not see."""
    off = {}
    for d in (8, 512):
        x = tokens(100, d).detach()
        off[d] = (mutant(unbiased=True, outside=True)(x, 1.0, 0.0, 1e-6) - LayerNorm(d).double()(x)).abs().max().item()
    assert off[8] > 0.1 and off[512] < 0.005
    one_hot = torch.eye(4).double()[:1]
    assert torch.allclose(LayerNorm(4, eps=0).double()(one_hot)[0, :2], torch.tensor([3 ** 0.5, -1 / 3 ** 0.5]).double())


# -- half precision

@pytest.mark.parametrize("weights", [None, torch.float32])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_half_precision_keeps_its_dtype_and_the_statistics_of_float32(dtype, tolerance, weights):
    for mean, std in ((0.0, 1.0), (1000.0, 5.0), (0.0, 2000.0)):  # squares of the last do not exist in float16
        x = tokens(8, 512, dtype=dtype, mean=mean, std=std).detach()
        assert x.isfinite().all()
        exact = F.layer_norm(x.double(), (512,))
        y = LayerNorm(512).to(weights or dtype)(x)
        assert y.dtype == dtype and (y.double() - exact).abs().max() < tolerance
    assert difference_of_gradients(dtype, weights or dtype) < 5 * tolerance


def difference_of_gradients(dtype, weights):
    x = tokens(8, 64, dtype=dtype, mean=100.0, std=5.0)
    found = everything(LayerNorm(64).to(weights), x)
    exact = everything(LayerNorm(64).double(), x.detach().double().requires_grad_())
    assert [part.dtype for part in found] == [dtype, dtype, weights, weights]
    return max(((a.double() - b).abs().max() / b.abs().max()).item() for a, b in zip(found, exact))


def test_under_autocast_it_stays_finite():
    norm = LayerNorm(8)
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(tokens(2, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16
        assert norm(tokens(2, 8, dtype=torch.float32)).isfinite().all()


# -- properties

@given(st.integers(2, 9), st.integers(0, 99), st.floats(0.5, 20), st.floats(-9, 9))
def test_shift_and_scale_do_not_matter_and_tokens_do_not_see_each_other(d, seed, scale, shift):
    norm, x = LayerNorm(d, eps=0).double(), tokens(2, 3, d, seed=seed).detach()
    y = norm(x)
    assert torch.allclose(norm(scale * x + shift), y, atol=1e-6)
    assert torch.allclose(y.norm(dim=-1), torch.full((2, 3), d ** 0.5).double()) and y.mean(-1).abs().max() < 1e-10
    order = torch.randperm(d, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(norm(x[..., order]), y[..., order])
    assert torch.allclose(norm(x[1, 2]), y[1, 2])


def test_constant_tokens_and_no_tokens():
    x = torch.full((2, 4), 3.0, requires_grad=True)
    y = LayerNorm(4)(x)
    y.sum().backward()
    assert (y == 0).all() and x.grad.isfinite().all()
    assert LayerNorm(4, eps=0)(x).isnan().all()
    assert LayerNorm(4)(torch.zeros(0, 4)).shape == (0, 4) and LayerNorm(1)(torch.ones(2, 1)).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("family, config, name, eps", [
    ("BERT", "BertConfig", "layer_norm_eps", 1e-12), ("T5", "T5Config", "layer_norm_epsilon", 1e-6),
    ("GPT-2", "GPT2Config", "layer_norm_epsilon", 1e-5),
])
def test_eps_of_the_families_that_the_chapter_names(family, config, name, eps):
    transformers = pytest.importorskip("transformers")
    assert getattr(getattr(transformers, config)(), name) == eps


# -- Residual

def halves(x):
    return x / 2


@pytest.mark.parametrize("pre_norm", [False, True])
def test_both_orders_as_written(pre_norm):
    generator = torch.Generator().manual_seed(0)
    norm, linear, x = LayerNorm(5).double(), nn.Linear(5, 5).double(), tokens(2, 3, 5)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(5, generator=generator))
    expected = x + linear(norm(x)) if pre_norm else norm(x + linear(x))
    block = Residual(linear, norm, pre_norm)
    assert torch.allclose(block(x), expected, atol=1e-12)
    wanted = [x, *block.parameters()]
    for a, b in zip(torch.autograd.grad(block(x).sin().sum(), wanted), torch.autograd.grad(expected.sin().sum(), wanted)):
        assert torch.allclose(a, b, atol=1e-12)


class Layer(nn.Module):
    """torch's encoder layer, whose parts are put into Residual."""

    def __init__(self, theirs, pre_norm):
        super().__init__()
        def attend(x):
            return theirs.self_attn(x, x, x, need_weights=False)[0]

        def feed(x):
            return theirs.linear2(F.relu(theirs.linear1(x)))
        norms = [LayerNorm(6).double(), LayerNorm(6).double()]
        for norm, other in zip(norms, (theirs.norm1, theirs.norm2)):
            norm.load_state_dict(other.state_dict())
        self.blocks = nn.Sequential(Residual(attend, norms[0], pre_norm), Residual(feed, norms[1], pre_norm)).double()

    def forward(self, x):
        return self.blocks(x)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_two_of_them_are_an_encoder_layer_of_torch(parity, pre_norm):
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(6, 2, 12, 0.0, batch_first=True, norm_first=pre_norm, dtype=torch.float64)
    with torch.no_grad():
        for norm in (theirs.norm1, theirs.norm2):
            norm.weight.normal_()
            norm.bias.normal_()
    x = tokens(2, 3, 6)
    a, b = theirs(x), Layer(theirs, pre_norm)(x)
    gradients = [torch.autograd.grad(y.sin().sum(), x)[0] for y in (a, b)]
    gap = max((a - b).abs().max().item(), (gradients[0] - gradients[1]).abs().max().item())
    parity(f"{MODULE}.Residual", "torch", gap, 1e-12, "torch.nn.TransformerEncoderLayer from two of them, pre- and post-norm, float64")


def agrees_on_the_order(block):
    """Whether block(sublayer, norm, x, pre_norm) is Add & Norm, for a norm and a sublayer that do not commute."""
    x, norm = tokens(2, 3, 5).detach(), LayerNorm(5).double()
    return all(torch.allclose(block(torch.sin, norm, x, pre), x + torch.sin(norm(x)) if pre else norm(x + torch.sin(x)), atol=1e-12)
               for pre in (False, True))


def test_the_order_agrees_and_the_known_faults_do_not():
    assert agrees_on_the_order(lambda f, norm, x, pre: Residual(f, norm, pre)(x))
    for faulty in (lambda f, norm, x, pre: Residual(f, norm, not pre)(x),             # the flag turned around
                   lambda f, norm, x, pre: norm(x) + f(norm(x)) if pre else norm(x + f(x)),  # the skip starts after the norm
                   lambda f, norm, x, pre: x + norm(f(x)) if pre else norm(x + f(x)),  # the norm after the sublayer
                   lambda f, norm, x, pre: x + f(norm(x)) if pre else norm(f(x)),     # no skip
                   lambda f, norm, x, pre: norm(x + f(norm(x))) if pre else norm(x + f(x))):  # normalised twice
        assert not agrees_on_the_order(faulty)


def test_further_arguments_reach_the_sublayer_and_only_it():
    seen = []

    def sublayer(x, *args, **kwargs):
        seen.append((args, kwargs))
        return x
    Residual(sublayer, nn.Identity())(torch.zeros(1, 2), 1, mask="m")
    Residual(sublayer, LayerNorm(2), pre_norm=True)(torch.zeros(1, 2), None, bias=0)
    assert seen == [((1,), {"mask": "m"}), ((None,), {"bias": 0})]


def test_dropout_meets_the_sublayer_alone():
    block, x = Residual(torch.ones_like, nn.Identity(), dropout=0.5), torch.full((100, 100), 3.0)
    torch.manual_seed(0)
    change = block(x) - x
    assert sorted(change.unique().tolist()) == [0.0, 2.0] and abs(change.mean() - 1) < 0.05  # x itself is never dropped
    assert (block.eval()(x) == 4).all()


def test_a_silent_sublayer_and_the_highway():
    x = tokens(3, 5)
    for block in (Residual(torch.zeros_like, nn.Identity()), Residual(torch.zeros_like, LayerNorm(5).double(), pre_norm=True)):
        y = nn.Sequential(*[block] * 20)(x)
        assert torch.equal(y, x) and torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.ones_like(x))
    post = Residual(torch.zeros_like, LayerNorm(5).double())
    assert torch.autograd.grad(post(x).sum(), x)[0].abs().max() < 1e-10  # the norm takes the mean out of the gradient


def test_parts_are_found_copied_and_moved():
    block = Residual(nn.Linear(4, 4), LayerNorm(4, eps=1e-6), pre_norm=True, dropout=0.1)
    assert sorted(block.state_dict()) == ["norm.bias", "norm.weight", "sublayer.bias", "sublayer.weight"]
    other = copy.deepcopy(block).to("meta")
    assert other(torch.zeros(2, 3, 4, device="meta")).device.type == "meta" and "pre_norm=True" in repr(block)
    fresh = Residual(nn.Linear(4, 4), LayerNorm(4), pre_norm=True)
    fresh.load_state_dict(block.state_dict())
    assert torch.equal(fresh.eval()(torch.ones(1, 4)), block.eval()(torch.ones(1, 4)))
    assert repr(block.norm) == "LayerNorm(4, eps=1e-06, bias=True)"
    assert torch.equal(pickle.loads(pickle.dumps(block)).eval()(torch.ones(1, 4)), block.eval()(torch.ones(1, 4)))


# -- what they refuse

@pytest.mark.parametrize("arguments, error, says", [
    ((0,), ValueError, "d_model"), ((2.0,), ValueError, "d_model"), ((True,), ValueError, "d_model"), ((4, -1e-5), ValueError, "eps"),
    ((4, math.inf), ValueError, "eps"), ((4, math.nan), ValueError, "eps"), ((4, "1e-5"), ValueError, "eps"), ((4, True), ValueError, "eps"),
    ((4, 1e-5, "no"), TypeError, "bias"), ((4, 1e-5, 0), TypeError, "bias"),
])
def test_wrong_settings(unchecked, arguments, error, says):
    with pytest.raises(error, match=says):
        LayerNorm(*arguments)


@pytest.mark.parametrize("x, error, says", [
    (torch.zeros(2, 3), ValueError, r"\(2, 3\).*d_model \(4\)"), (torch.zeros(()), ValueError, "d_model"),
    (torch.zeros(4, 1), ValueError, "d_model"), (torch.zeros(2, 4).double(), ValueError, "float64.*float32"),
    (torch.zeros(2, 4, dtype=torch.long), ValueError, "int64"), ([1.0, 2.0, 3.0, 4.0], TypeError, "tensor, not list"),
])
def test_wrong_tokens(unchecked, x, error, says):
    with pytest.raises(error, match=says):
        LayerNorm(4)(x)


def test_half_weights_do_not_take_float32_tokens(unchecked):
    with pytest.raises(ValueError, match="float32.*bfloat16"):
        LayerNorm(4).bfloat16()(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="float16.*bfloat16"):
        LayerNorm(4).bfloat16()(torch.zeros(2, 4).half())


@pytest.mark.parametrize("arguments, error, says", [
    ((3, LayerNorm(4)), TypeError, "sublayer.*int"), ((nn.Linear, LayerNorm(4)), TypeError, "sublayer.*the class Linear"),
    ((halves, LayerNorm), TypeError, "norm must be a module.*not LayerNorm"),
    ((halves, None), TypeError, "norm.*NoneType"), ((halves, halves), TypeError, "norm.*function"),
    ((halves, LayerNorm(4), 1), TypeError, "pre_norm"), ((halves, LayerNorm(4), "pre"), TypeError, "pre_norm"),
    ((halves, LayerNorm(4), False, 1.0), ValueError, "dropout"), ((halves, LayerNorm(4), False, -0.1), ValueError, "dropout"),
    ((halves, LayerNorm(4), False, None), ValueError, "dropout"), ((halves, LayerNorm(4), False, math.nan), ValueError, "dropout"),
])
def test_wrong_parts(unchecked, arguments, error, says):
    with pytest.raises(error, match=says):
        Residual(*arguments)


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("sublayer, error, says", [
    (lambda x: x[:, :1], ValueError, r"\(2, 1, 4\), but x has \(2, 3, 4\)"),     # would be spread over the sentence
    (lambda x: x[..., :1], ValueError, r"\(2, 3, 1\)"), (lambda x: x[0], ValueError, r"\(3, 4\)"),
    (lambda x: x[None], ValueError, r"\(1, 2, 3, 4\)"), (nn.Linear(4, 5), ValueError, r"\(2, 3, 5\)"),
    (lambda x: (x, None), TypeError, "tensor, not tuple"), (lambda x: None, TypeError, "tensor, not NoneType"),
    (lambda x: x.double(), ValueError, "sublayer gives torch.float64, but x is torch.float32"),
    (lambda x: x * 1j, ValueError, "sublayer gives torch.complex64"),
])
def test_a_sublayer_that_gives_something_else(unchecked, sublayer, error, says, pre_norm):
    with pytest.raises(error, match=says):
        Residual(sublayer, LayerNorm(4), pre_norm)(torch.zeros(2, 3, 4))


@pytest.mark.parametrize("x", [None, [1.0, 2.0], np.zeros((2, 4), np.float32)])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_what_is_no_tensor_is_named_before_the_sublayer_sees_it(unchecked, x, pre_norm):
    with pytest.raises(TypeError, match=f"x must be a tensor, not {type(x).__name__}"):
        Residual(halves, nn.Identity(), pre_norm)(x)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_a_narrower_change_and_autocast_are_let_through(unchecked, pre_norm):
    """A sublayer in half precision may be added to float32; under autocast PyTorch decides on the dtypes."""
    x = tokens(2, 4, dtype=torch.float32).detach()
    assert Residual(lambda x: x.bfloat16(), LayerNorm(4), pre_norm)(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert Residual(nn.Linear(4, 4), LayerNorm(4), pre_norm)(x).dtype == torch.float32
        assert Residual(lambda x: x.float(), LayerNorm(4), pre_norm)(x.bfloat16()).isfinite().all()


# -- speed

@pytest.mark.bench
def test_speed_against_torch(unchecked, within):
    theirs, ours = pair(512, dtype=torch.float32)
    x = tokens(8, 128, 512, dtype=torch.float32)

    def train(norm):
        norm(x).sum().backward()
    within("LayerNorm, forward and backward / torch", ratio(lambda: train(ours), lambda: train(theirs)), 1.3)


@pytest.mark.bench
def test_the_wrapper_costs_little(unchecked, within):
    linear, norm, x = nn.Linear(512, 512), nn.LayerNorm(512), tokens(8, 128, 512, dtype=torch.float32)
    block = Residual(linear, LayerNorm(512))
    within("Residual / the same written out", ratio(lambda: block(x), lambda: norm(x + linear(x))), 1.3)
