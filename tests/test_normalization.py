"""RMSNorm: equal to torch.nn.RMSNorm and to the norms of LLaMA and T5, in any precision; what it refuses; the stored trainings."""
import copy
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from speed import interleaved, ratio
from torch import nn
from torch.nn import functional as F

from transformer_course.modern import _normalization_runs as small
from transformer_course.modern.normalization import RMSNorm
from transformer_course.transformer.residual_and_norm import LayerNorm, Residual

MODULE = "transformer_course.modern.normalization"

# Plausible answers that are wrong, for each exercise that is checked.


def _gemma(plus=1.0, late=True, outside=False, exact=torch.float32, keep=True):
    def gemma_norm(x, weight, eps):
        y = x.to(exact) if exact else x
        size = y.square().mean(-1, keepdim=True)
        y = y / (size.sqrt() + eps if outside else (size + eps).sqrt())
        weight = plus + (weight.float() if late else weight)
        y = y * weight if late else y.to(x.dtype) * weight
        return y.to(x.dtype) if keep else y
    return gemma_norm


def _centre(dim=0, bias=True, in_place=False, both=False):
    def centre(linear):
        centred = linear if in_place else copy.deepcopy(linear)
        with torch.no_grad():
            centred.weight.copy_(linear.weight - linear.weight.mean(dim=dim, keepdim=True))
            if linear.bias is not None and bias:
                centred.bias.copy_(linear.bias - linear.bias.mean())
            if both and linear.bias is None:
                other = nn.Linear(linear.in_features, linear.out_features, dtype=linear.weight.dtype)
                other.weight.copy_(centred.weight)
                other.bias.zero_()
                return other
        return centred
    return centre


WRONG = [
    ("30.by-hand", [[0.2, 1.4, 1.0, 1.0], [-7.07, 1.18, 0.47, -0.24], [0.5, 0.7, 1.0, -0.5], [1, 1.4, 2, 1]]),
    ("30.gemma", [_gemma(plus=0.0), _gemma(late=False), _gemma(outside=True), _gemma(exact=None), _gemma(keep=False)]),
    ("30.mirror", [lambda x, eps: F.layer_norm(x, x.shape[-1:], eps=eps),
                   lambda x, eps: F.layer_norm(torch.cat([x, x], -1), (2 * x.shape[-1],), eps=eps)[..., :x.shape[-1]],
                   lambda x, eps: F.layer_norm(torch.cat([x, -x], -1), (2 * x.shape[-1],), eps=eps),
                   lambda x, eps: F.layer_norm(torch.cat([x, -x], -1), (2 * x.shape[-1],), eps=eps)[..., x.shape[-1]:],
                   lambda x, eps: F.layer_norm(torch.cat([x, -x], -1), (2 * x.shape[-1],))[..., :x.shape[-1]]]),
    ("30.centre", [_centre(dim=1), _centre(bias=False), _centre(in_place=True), _centre(both=True), copy.deepcopy]),
    ("30.third-place", [lambda x, f, norm: norm(x + f(x)), lambda x, f, norm: x + f(norm(x)), lambda x, f, norm: norm(x) + f(x),
                        lambda x, f, norm: norm(f(x)), lambda x, f, norm: x + norm(f(norm(x)))]),
]


# -- against torch.nn.RMSNorm, LlamaRMSNorm, T5LayerNorm

def tokens(*shape, dtype=torch.float64, seed=0, mean=0.0, std=1.0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (mean + std * x).to(dtype).requires_grad_()


def weighted(norm, seed=0):
    """The norm with random weights."""
    with torch.no_grad():
        norm.weight.copy_(torch.randn(len(norm.weight), generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    return norm


def ours(d, eps=1e-6, dtype=torch.float64, seed=0):
    return weighted(RMSNorm(d, eps).to(dtype), seed)


def torchs(d, eps=1e-6, dtype=torch.float64, seed=0):
    return weighted(nn.RMSNorm(d, eps=eps, dtype=dtype), seed)


def llamas(d, eps=1e-6, dtype=torch.float64, seed=0):
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    return weighted(modeling.LlamaRMSNorm(d, eps).to(dtype), seed)


def t5s(d, eps=1e-6, dtype=torch.float64, seed=0):
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    return weighted(modeling.T5LayerNorm(d, eps).to(dtype), seed)


def everything(norm, x):
    """Output, and gradients of x and of the weight."""
    y = norm(x)
    gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(y.dtype)
    return [y, *torch.autograd.grad(y, [x, norm.weight], gradient)]


def difference(theirs, mine, x):
    a, b = everything(theirs, x), everything(mine, x)
    assert [part.shape for part in a] == [part.shape for part in b]
    return max((p.double() - q.double()).abs().max().item() for p, q in zip(a, b))


@given(st.data())
def test_equals_torch(parity, data):
    d, seed = data.draw(st.sampled_from([1, 2, 3, 5, 8])), data.draw(st.integers(0, 99))
    shape = [data.draw(st.integers(1, 4)) for _ in range(data.draw(st.integers(0, 3)))]
    eps = data.draw(st.sampled_from([1e-12, 1e-6, 1e-5, 1e-3]))
    x = tokens(*shape, d, seed=seed, mean=data.draw(st.sampled_from([0.0, 3.0])), std=data.draw(st.sampled_from([0.1, 1.0, 30.0])))
    parity(f"{MODULE}.RMSNorm", "torch", difference(torchs(d, eps, seed=seed), ours(d, eps, seed=seed), x), 1e-8,
           "values and gradients: widths 1, 2, 3, 5 and 8, any number of dimensions, eps from 1e-12 to 1e-3, float64")


@given(st.sampled_from([1, 2, 3, 5, 8]), st.integers(0, 99), st.sampled_from([1e-6, 1e-5]))
def test_equals_llama_and_t5(parity, d, seed, eps):
    """Both take their statistics in float32, whatever they are given."""
    x = tokens(2, 3, d, seed=seed, dtype=torch.float32)
    gap = max(difference(theirs(d, eps, torch.float32, seed), ours(d, eps, torch.float32, seed), x) for theirs in (llamas, t5s))
    parity(f"{MODULE}.RMSNorm", "transformers", gap, 2e-4, "LlamaRMSNorm and T5LayerNorm, values and gradients, float32")


def test_equals_all_three_at_base_size():
    x = tokens(4, 16, 512, dtype=torch.float32, mean=0.5, std=2.0)
    for theirs in (torchs, llamas, t5s):
        assert difference(theirs(512, dtype=torch.float32), ours(512, dtype=torch.float32), x) < 1e-4


@given(st.sampled_from([3, 8, 64]), st.integers(0, 99), st.sampled_from([torch.float16, torch.bfloat16]))
def test_half_precision_is_llamas_bit_by_bit(parity, d, seed, dtype):
    x = tokens(2, 5, d, seed=seed, std=50.0, dtype=dtype).detach()
    for theirs in (llamas, t5s):
        assert torch.equal(ours(d, dtype=dtype, seed=seed)(x), theirs(d, dtype=dtype, seed=seed)(x))
    wide = ours(d, dtype=torch.float32, seed=seed)(x)
    assert torch.equal(wide, llamas(d, dtype=torch.float32, seed=seed)(x).to(dtype)) and wide.dtype == dtype


def test_state_dict_fits_in_both_directions():
    theirs, mine = torchs(5), RMSNorm(5).double()
    assert list(theirs.state_dict()) == list(mine.state_dict()) == ["weight"]
    mine.load_state_dict(theirs.state_dict())
    torchs(5, seed=1).load_state_dict(mine.state_dict())
    assert torch.equal(mine.weight, theirs.weight) and torch.equal(RMSNorm(5).weight, torch.ones(5)) and RMSNorm(5).eps == 1e-6


# -- the known faults

def agrees(norm):
    """Whether norm(x, weight, eps) is RMSNorm: small widths, tiny tokens, tokens far from 0, several dimensions."""
    for d in (2, 3, 5, 8):
        for mean, std in ((0.0, 1.0), (0.0, 1e-3), (2.0, 1.0)):
            x, weight = tokens(2, 3, d, mean=mean, std=std).detach(), tokens(d, seed=1).detach()
            if not torch.allclose(norm(x, weight, 1e-5), F.rms_norm(x, (d,), weight, 1e-5), atol=1e-10):
                return False
    return True


def mutant(outside=False, over=-1, centre=False, total=False, no_eps=False, plus=0.0, squared=False, unbiased=False):
    def norm(x, weight, eps):
        y = x - x.mean(-1, keepdim=True) if centre else x
        size = y.square().sum(over, keepdim=True) if total else y.square().mean(over, keepdim=True)
        size = size * x.shape[-1] / (x.shape[-1] - 1) if unbiased else size
        eps = 0.0 if no_eps else eps
        size = size + eps if squared else size.sqrt() + eps if outside else (size + eps).sqrt()
        return y / size * (plus + weight)
    return norm


def as_function(x, weight, eps):
    return torch.func.functional_call(RMSNorm(len(weight), eps), {"weight": weight}, (x,))


def test_rms_norm_agrees_and_the_known_faults_do_not():
    assert agrees(as_function) and agrees(mutant())
    for faulty in (mutant(outside=True), mutant(over=(-2, -1)), mutant(over=0), mutant(centre=True), mutant(total=True), mutant(no_eps=True),
                   mutant(plus=1.0), mutant(squared=True), mutant(unbiased=True)):
        assert not agrees(faulty)


def safe_in_half(norm):
    """Large numbers survive, tiny ones of bfloat16 too, and the dtype is that of x, for half and float32 weights."""
    for dtype, tolerance in ((torch.float16, 4e-3), (torch.bfloat16, 4e-2)):
        for weights in (dtype, torch.float32):
            for std in (1.0, 500.0):
                x = tokens(20, 64, dtype=dtype, std=std).detach()
                y = norm(x, torch.ones(64, dtype=weights), 1e-6)
                if y.dtype != dtype or (y.double() - F.rms_norm(x.double(), (64,), eps=1e-6)).abs().max() > tolerance:
                    return False
    return True


def half_mutant(upcast=True, down=True):
    def norm(x, weight, eps):
        exact = x.float() if upcast else x
        y = (exact * (exact.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype) * weight
        return y.to(x.dtype) if down else y
    return norm


def test_half_precision_is_safe_and_the_known_faults_are_not():
    assert safe_in_half(as_function) and safe_in_half(half_mutant())
    for faulty in (half_mutant(upcast=False), half_mutant(down=False), lambda x, w, eps: F.rms_norm(x.float(), (64,), w.float(), eps)):
        assert not safe_in_half(faulty)


@pytest.mark.parametrize("weights", [None, torch.float32])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 4e-3), (torch.bfloat16, 4e-2)])
def test_gradients_in_half_precision(dtype, tolerance, weights):
    x = tokens(8, 64, dtype=dtype, mean=100.0, std=5.0)
    found = everything(RMSNorm(64).to(weights or dtype), x)
    exact = everything(RMSNorm(64).double(), x.detach().double().requires_grad_())
    assert [part.dtype for part in found] == [dtype, dtype, weights or dtype]
    for a, b in zip(found, exact):
        # the gradient of a token is what is left of large numbers after its part along the token is taken away
        assert (a.double() - b).abs().max() < 5 * tolerance * max(b.abs().max(), 0.2)


def test_under_autocast_it_stays_finite():
    with torch.autocast("cpu", torch.bfloat16):
        assert RMSNorm(8)(tokens(2, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16
        assert RMSNorm(8)(tokens(2, 8, dtype=torch.float32)).isfinite().all()


@pytest.mark.parametrize("family, config, name, eps", [
    ("T5", "T5Config", "layer_norm_epsilon", 1e-6), ("LLaMA", "LlamaConfig", "rms_norm_eps", 1e-6),
    ("Mistral", "MistralConfig", "rms_norm_eps", 1e-6), ("Gemma", "GemmaConfig", "rms_norm_eps", 1e-6),
])
def test_eps_of_the_families_that_the_chapter_names(family, config, name, eps):
    transformers = pytest.importorskip("transformers")
    assert getattr(getattr(transformers, config)(), name) == eps


def test_where_the_families_of_the_chapter_have_their_norms():
    """In post-norm a layer's output is normalised, in pre-norm it is not; OLMo 2 normalises what its sublayers give."""
    transformers = pytest.importorskip("transformers")
    small_sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 20}
    x = 5 * torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(0))

    def size(y):
        return (y[0] if isinstance(y, tuple) else y).square().mean(-1).sqrt().mean().item()
    from transformers.models.bert.modeling_bert import BertLayer
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block
    bert = transformers.BertConfig(**small_sizes, attn_implementation="eager")
    gpt2 = transformers.GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=20, attn_implementation="eager")
    with torch.no_grad():
        assert abs(size(BertLayer(bert).eval()(x)) - 1) < 0.01 < 3 < size(GPT2Block(gpt2, layer_idx=0).eval()(x))
    for name, wanted in (("LlamaDecoderLayer", {"input_layernorm", "post_attention_layernorm"}),
                         ("Olmo2DecoderLayer", {"post_attention_layernorm", "post_feedforward_layernorm"}),
                         ("Gemma2DecoderLayer", {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                                 "post_feedforward_layernorm"})):
        family = name.removesuffix("DecoderLayer")
        modeling = pytest.importorskip(f"transformers.models.{family.lower()}.modeling_{family.lower()}")
        config = getattr(transformers, f"{family}Config")(**small_sizes, num_key_value_heads=2, head_dim=8)
        layer = getattr(modeling, name)(config, 0)
        assert {child for child, _ in layer.named_children() if "layernorm" in child} == wanted


# -- properties

@given(st.integers(2, 9), st.integers(0, 99), st.floats(0.5, 20))
def test_length_does_not_matter_and_tokens_do_not_see_each_other(d, seed, scale):
    norm, x = RMSNorm(d, eps=0).double(), tokens(2, 3, d, seed=seed, mean=1.0).detach()
    y = norm(x)
    assert torch.allclose(norm(scale * x), y, atol=1e-9) and torch.allclose(norm(-x), -y)
    assert torch.allclose(y.norm(dim=-1), torch.full((2, 3), d ** 0.5).double())
    order = torch.randperm(d, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(norm(x[..., order]), y[..., order]) and torch.allclose(norm(x[1, 2]), y[1, 2])
    centred = x - x.mean(-1, keepdim=True)
    assert torch.allclose(norm(centred), LayerNorm(d, eps=0).double()(x), atol=1e-7)


@given(st.integers(2, 9), st.integers(0, 99))
def test_the_gradient_is_orthogonal_to_the_token(d, seed):
    x = tokens(3, d, seed=seed)
    back = torch.autograd.grad(ours(d, eps=0, seed=seed)(x), x, tokens(3, d, seed=seed + 1).detach())[0]
    assert ((back * x).sum(-1).abs() < 1e-9 * (1 + back.norm(dim=-1) * x.norm(dim=-1))).all()


def test_zeros_and_no_tokens():
    x = torch.zeros(2, 4, requires_grad=True)
    y = RMSNorm(4)(x)
    y.sum().backward()
    assert (y == 0).all() and x.grad.isfinite().all() and RMSNorm(4, eps=0)(x).isnan().all()
    assert RMSNorm(4)(torch.zeros(0, 4)).shape == (0, 4) and RMSNorm(1)(torch.full((2, 1), -7.0)).allclose(-torch.ones(2, 1))


def test_it_is_copied_moved_and_shown():
    norm = ours(4, eps=1e-5)
    for other in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        assert torch.equal(other(torch.ones(1, 4).double()), norm(torch.ones(1, 4).double()))
    assert copy.deepcopy(norm).float().to("meta")(torch.zeros(2, 3, 4, device="meta")).shape == (2, 3, 4)
    assert repr(norm) == "RMSNorm(4, eps=1e-05)"
    block = Residual(nn.Linear(4, 4), RMSNorm(4), pre_norm=True)
    assert sorted(block.state_dict()) == ["norm.weight", "sublayer.bias", "sublayer.weight"]


# -- what it refuses

@pytest.mark.parametrize("arguments, says", [
    ((0,), "d_model"), ((2.0,), "d_model"), ((True,), "d_model"), (((4,),), "d_model"), ((4, -1e-6), "eps"), ((4, math.inf), "eps"),
    ((4, math.nan), "eps"), ((4, "1e-6"), "eps"), ((4, True), "eps"), ((4, None), "eps"),
])
def test_wrong_settings(unchecked, arguments, says):
    with pytest.raises(ValueError, match=says):
        RMSNorm(*arguments)


@pytest.mark.parametrize("x, error, says", [
    (torch.zeros(2, 3), ValueError, r"\(2, 3\).*d_model \(4\)"), (torch.zeros(()), ValueError, "d_model"),
    (torch.zeros(4, 1), ValueError, "d_model"), (torch.zeros(2, 4).double(), ValueError, "float64.*float32"),
    (torch.zeros(2, 4, dtype=torch.long), ValueError, "int64"), ([1.0, 2.0, 3.0, 4.0], TypeError, "tensor, not list"), (None, TypeError, "NoneType"),
])
def test_wrong_tokens(unchecked, x, error, says):
    with pytest.raises(error, match=says):
        RMSNorm(4)(x)


def test_half_weights_do_not_take_other_tokens(unchecked):
    with pytest.raises(ValueError, match="float32.*bfloat16"):
        RMSNorm(4).bfloat16()(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="float16.*bfloat16"):
        RMSNorm(4).bfloat16()(torch.zeros(2, 4).half())


# -- the trainings that are stored

def test_all_runs_are_stored_once_for_each_seed():
    import measure_normalization as script
    runs = small.stored_results()["runs"]
    assert [(run["name"], run["seed"]) for run in runs] == [(name, seed) for name, _ in script.wanted() for seed in script.SEEDS]
    assert all(len(run["losses"]) == small.STEPS // script.WINDOW and len(run["stream"]) == run["depth"] + 1 for run in runs)
    assert all(math.isfinite(value) for run in runs for value in (*run["losses"], run["held_out"], *run["stream"]))


def test_warm_up_rises_to_the_rate_and_stays():
    rates = []
    model = small.SmallLM(5, 1, True)
    step = torch.optim.AdamW.step

    class Watched(torch.optim.AdamW):
        def step(self):
            rates.append(self.param_groups[0]["lr"])
            return step(self)
    small.adamw, kept = (lambda model, rate, weight_decay: Watched(model.parameters(), rate, weight_decay=weight_decay)), small.adamw
    try:
        small.train(model, torch.arange(100) % 5, 0.01, warmup=4, steps=6)
    finally:
        small.adamw = kept
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


def test_the_small_model_does_not_look_ahead():
    model = small.SmallLM(7, 2, False)
    ids = torch.arange(14).view(2, 7) % 7
    changed = ids.clone()
    changed[:, 4] = 6 - changed[:, 4]
    assert torch.allclose(model(ids)[:, :4], model(changed)[:, :4], atol=1e-5) and not torch.allclose(model(ids)[:, 4:], model(changed)[:, 4:])


# -- speed

@pytest.mark.bench
def test_speed_against_torch_and_llama(unchecked, within):
    width = 512
    for dtype, bound in ((torch.float32, 1.2), (torch.bfloat16, 1.7)):   # in half precision torch rounds once, LLaMA and we twice
        x = tokens(8, 128, width, dtype=dtype)
        mine, theirs, llama = ours(width, dtype=dtype), torchs(width, dtype=dtype), llamas(width, dtype=dtype)

        def train(norm, x=x):
            norm(x).sum().backward()
        within(f"RMSNorm, {dtype}, forward and backward / torch", ratio(lambda: train(mine), lambda: train(theirs)), bound)
        within(f"RMSNorm, {dtype}, forward and backward / LlamaRMSNorm", ratio(lambda: train(mine), lambda: train(llama)), 1.2)


@pytest.mark.bench
def test_what_the_norm_costs_written_out(unchecked, within):
    """The chapter's ratio: the formula of RMSNorm takes less time than that of LayerNorm, both written out."""
    x = tokens(8, 128, 512, dtype=torch.float32).detach()

    def layer_norm():
        mean = x.mean(-1, keepdim=True)
        return (x - mean) / ((x - mean).square().mean(-1, keepdim=True) + 1e-6).sqrt()
    mine, other = interleaved(lambda: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(), layer_norm)
    within("RMSNorm / LayerNorm, both written out", mine / other, 1.0)
