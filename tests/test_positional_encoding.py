"""Positional encoding: equal to other libraries' tables and to 30 digits; shifts; precision; known faults; what it refuses."""
import copy
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from speed import ratio
from torch import nn
from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from transformer_course.toolbox.exercises import exercise_ids
from transformer_course.transformer import SinusoidalPositionalEncoding, shift_matrix, sinusoidal_encoding

MODULE = "transformer_course.transformer.positional_encoding"
F64 = torch.float64
HALF = [torch.float16, torch.bfloat16]


# -- plausible answers that are wrong, for each exercise that is checked

def _relative(sine, cosine, join=lambda s, c: torch.stack([s, c], 1).flatten()):
    return lambda a, b: join(sine(a[0::2], a[1::2], b[0::2], b[1::2]), cosine(a[0::2], a[1::2], b[0::2], b[1::2]))


def _halves(table):
    n = table.shape[1] // 2
    return torch.cat([table[:, 0::2][:, :n], table[:, 1::2]], dim=1)


def _through_a_reshape(table):
    rows, columns = table.shape
    return table.reshape(rows, 2, columns // 2).transpose(1, 2).reshape(rows, columns)


WRONG = [
    ("20.longest", [2 * math.pi * 10000, 10000 ** (126 / 128), 2 * math.pi * 10000 ** (127 / 128), 2 * math.pi * 10000 ** (63 / 128),
                    math.pi * 10000 ** (126 / 128)]),
    ("20.layout", [lambda t: t, lambda t: torch.cat([t[:, 1::2], t[:, 0::2]], 1), _halves, _through_a_reshape,
                   lambda t: torch.cat([t[:, :t.shape[1] // 2], t[:, t.shape[1] // 2:]], 1)]),
    ("20.relative", [
        lambda a, b: b - a,
        _relative(lambda s, c, u, v: s * v - c * u, lambda s, c, u, v: c * v + s * u),               # p - q
        _relative(lambda s, c, u, v: u * c + v * s, lambda s, c, u, v: v * c - u * s),               # p + q
        _relative(lambda s, c, u, v: u * c - v * s, lambda s, c, u, v: v * c - u * s),               # the wrong cosine
        _relative(lambda s, c, u, v: u * c - v * s, lambda s, c, u, v: v * c + u * s, lambda s, c: torch.cat([s, c])),
    ]),
    ("20.look", [
        lambda weights, d: sum(w * shift_matrix(k, d) for k, w in weights.items()),                  # looks the other way
        lambda weights, d: shift_matrix(sum(weights), d).T,                                          # forgets the weights
        lambda weights, d: shift_matrix(sum(k * w for k, w in weights.items()), d).T,                # one turn by the mean
        lambda weights, d: sum(shift_matrix(k, d).T for k in weights) / len(weights),
        lambda weights, d: torch.eye(d, dtype=F64),
    ]),
]


def test_every_checked_exercise_has_wrong_answers():
    assert [name for name, _ in WRONG] == exercise_ids("20") and all(len(wrong) >= 3 for _, wrong in WRONG)


# -- the table

def distilbert(length, d_model):
    out = torch.empty(length, d_model)
    create_sinusoidal_embeddings(length, d_model, out)
    return out


def marian(length, d_model):
    """Marian's table, which is concatenated, in the order of the formula."""
    table = torch.empty(length, d_model)
    made = MarianSinusoidalPositionalEmbedding(length, d_model).create_weight()
    sines = (d_model + 1) // 2
    table[:, 0::2], table[:, 1::2] = made[:, :sines], made[:, sines:]
    return table


def exact(position, d_model):
    """One row with 30 digits."""
    with mpmath.workdps(30):
        angles = [position / mpmath.power(10000, mpmath.mpf(2 * (j // 2)) / d_model) for j in range(d_model)]
        return [(mpmath.cos if j % 2 else mpmath.sin)(angle) for j, angle in enumerate(angles)]


@given(st.integers(1, 40), st.integers(1, 17))
def test_the_table_equals_transformers(parity, length, d_model):
    ours = sinusoidal_encoding(length, d_model)
    for theirs in (distilbert(length, d_model), marian(length, d_model)):
        parity(f"{MODULE}.sinusoidal_encoding", "transformers", (ours - theirs).abs().max().item(), 1e-7,
               "DistilBERT's table, and Marian's with its columns reordered: even and odd widths, float32")


def test_the_table_equals_transformers_at_base_size(parity):
    parity(f"{MODULE}.sinusoidal_encoding", "transformers",
           (sinusoidal_encoding(512, 512) - distilbert(512, 512)).abs().max().item(), 1e-7, "DistilBERT's table, 512 x 512, float32")


@given(st.integers(0, 5000), st.integers(1, 33))
def test_the_table_is_right_to_twelve_digits(parity, position, d_model):
    row = sinusoidal_encoding(position + 1, d_model, F64)[position]
    gap = max(abs(float(mpmath.mpf(value) - right)) for value, right in zip(row.tolist(), exact(position, d_model)))
    parity(f"{MODULE}.sinusoidal_encoding", "mpmath", gap, 1e-12, "single rows up to position 5,000 against 30 digits, float64")


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_the_table_is_rounded_once(dtype):
    """Each entry is as near to the right number as its format allows."""
    table, right = sinusoidal_encoding(5000, 512, dtype), sinusoidal_encoding(5000, 512, F64)
    assert table.dtype == dtype and torch.equal(table, right.to(dtype))
    assert rounding_errors(table, right).max() <= 0.5001


def rounding_errors(table, right):
    """How far each entry is from the right one, in steps of its format."""
    step = torch.finfo(table.dtype).eps * 2.0 ** right.abs().clamp_min(torch.finfo(table.dtype).tiny).log2().floor()
    return (table.double() - right).abs() / step


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_a_table_that_is_made_in_its_own_precision_is_found_out(dtype):
    position = torch.arange(5000, dtype=F64).to(dtype)[:, None]
    angle = position * (10000.0 ** (-torch.arange(0, 512, 2, dtype=F64) / 512)).to(dtype)
    made = torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)
    assert rounding_errors(made, sinusoidal_encoding(5000, 512, F64)).max() > 100


def follows_the_formula(encoding):
    """Whether a table is the formula's, in even and odd widths, at small and large positions; a crash is a no."""
    for length, d_model in ((1, 1), (7, 5), (40, 8), (3001, 6)):
        try:
            table = encoding(length, d_model)
        except (RuntimeError, IndexError):
            return False
        if table.shape != (length, d_model):
            return False
        for p in {0, 1, length // 2, length - 1} & set(range(length)):
            if not np.allclose(table[p].double().numpy(), [float(x) for x in exact(p, d_model)], atol=1e-5, rtol=0):
                return False
    return True


def variant(sine_rate=lambda j, d: j / d, cosine_rate=None, first=0, base=10000.0, swap=False, concatenate=False, dtype=F64,
            trim=True):
    """The table as many write it, with something changed. `j` runs over 0, 2, 4, ..."""
    def make(length, d_model):
        position = torch.arange(first, first + length).to(dtype)[:, None]
        j = torch.arange(0, d_model, 2, dtype=F64)
        sines = (position * (base ** -sine_rate(j, d_model)).to(dtype)).sin()
        cosines = (position * (base ** -(cosine_rate or sine_rate)(j, d_model)).to(dtype)).cos()
        if trim:
            cosines = cosines[:, :d_model // 2]
        if swap:
            sines, cosines = cosines, sines
        if concatenate:
            return torch.cat([sines, cosines], dim=1)
        table = torch.zeros(length, d_model, dtype=dtype)
        table[:, 0::2], table[:, 1::2] = sines, cosines
        return table
    return make


TABLE_FAULTS = {
    "crashes at odd widths": variant(trim=False),
    "doubled exponent": variant(lambda j, d: 2 * j / d),
    "the cosine has its own exponent": variant(cosine_rate=lambda j, d: (j + 1) / d),
    "both": variant(lambda j, d: 2 * j / d, lambda j, d: 2 * (j + 1) / d),
    "concatenated": variant(concatenate=True),
    "rates up to 1/10000, as in tensor2tensor": variant(lambda j, d: j / max(d - 2, 1)),
    "positions from 1": variant(first=1),
    "another base": variant(base=1000.0),
    "halved exponent": variant(lambda j, d: j / 2 / d),
    "sine and cosine swapped": variant(swap=True),
    "made in bfloat16": variant(dtype=torch.bfloat16),
    "made in float16": variant(dtype=torch.float16),
}


def test_the_table_follows_the_formula():
    assert follows_the_formula(sinusoidal_encoding) and follows_the_formula(variant())


@pytest.mark.parametrize("fault", TABLE_FAULTS)
def test_a_faulty_table_does_not(fault):
    assert not follows_the_formula(TABLE_FAULTS[fault])


def test_a_shorter_table_is_the_beginning_of_a_longer_one():
    assert torch.equal(sinusoidal_encoding(9, 7), sinusoidal_encoding(30, 7)[:9])
    assert sinusoidal_encoding(0, 4).shape == (0, 4)


# -- the shift

def shifts(matrix_of):
    """Whether `matrix_of(k, d_model)` moves every encoding by k, and one by -k undoes it."""
    for k, d_model in ((1, 2), (3, 6), (17, 64), (-2, 8)):
        table, matrix = sinusoidal_encoding(300, d_model, F64), matrix_of(k, d_model)
        here, there = (table[:300 - k], table[k:]) if k > 0 else (table[-k:], table[:300 + k])
        if not torch.allclose(here @ matrix.T, there, atol=1e-10):
            return False
        if not torch.allclose(matrix @ matrix_of(-k, d_model), torch.eye(d_model, dtype=F64), atol=1e-12):
            return False
    return True


def concatenated_blocks(k, d_model):
    order = [*range(0, d_model, 2), *range(1, d_model, 2)]
    return shift_matrix(k, d_model)[order][:, order]


def test_the_shift_matrix_shifts_and_its_mutants_do_not():
    assert shifts(shift_matrix)
    for mutant in (lambda k, d: shift_matrix(k, d).T, lambda k, d: shift_matrix(k + 1, d), lambda k, d: torch.eye(d, dtype=F64),
                   lambda k, d: shift_matrix(k, d).abs(), lambda k, d: shift_matrix(abs(k), d), concatenated_blocks,
                   lambda k, d: shift_matrix(k, d, torch.bfloat16).double()):
        assert not shifts(mutant)


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 8))
def test_shifts_add_up(j, k, pairs):
    first, second = shift_matrix(j, 2 * pairs), shift_matrix(k, 2 * pairs)
    assert torch.allclose(first @ second, shift_matrix(j + k, 2 * pairs), atol=1e-12)
    assert torch.allclose(first.T, shift_matrix(-j, 2 * pairs), atol=1e-12)
    assert math.isclose(torch.linalg.det(first).item(), 1, abs_tol=1e-9)


@given(st.integers(1, 400), st.integers(0, 4000), st.integers(1, 12))
def test_the_shift_holds_at_every_start(k, start, pairs):
    table = sinusoidal_encoding(start + k + 1, 2 * pairs, F64)
    assert torch.allclose(shift_matrix(k, 2 * pairs) @ table[start], table[start + k], atol=1e-10)


def test_half_a_step_twice_is_a_step(unchecked):
    half = shift_matrix(0.5, 6)
    assert torch.equal(half, shift_matrix(Fraction(1, 2), 6)) and torch.equal(half, shift_matrix(np.float32(0.5), 6))
    assert torch.allclose(half @ half, shift_matrix(1, 6), atol=1e-12) and shift_matrix(2, 4, torch.float32).dtype == torch.float32


def test_products_of_a_width_depend_on_the_distance_alone():
    table = sinusoidal_encoding(200, 32, F64)
    products = table @ table.T
    assert torch.allclose(products[:150, :150], products[50:, 50:], atol=1e-10)


# -- the module

def equals_marian(length, start, d_model, seed):
    """Values and gradients of the module against tokens plus Marian's embedding, which also takes a first position."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, length, d_model, generator=generator).requires_grad_()
    direction = torch.randn(2, length, d_model, generator=generator)
    theirs = MarianSinusoidalPositionalEmbedding(60, d_model)
    sines = (d_model + 1) // 2
    order = [j // 2 if j % 2 == 0 else sines + j // 2 for j in range(d_model)]
    theirs.weight = nn.Parameter(theirs.create_weight()[:, order], requires_grad=False)
    outputs = x + theirs(x.shape[:2], start), SinusoidalPositionalEncoding(d_model, 60)(x, start=start)
    gradients = [torch.autograd.grad((output * direction).sum(), x)[0] for output in outputs]
    return max((a - b).abs().max().item() for a, b in (outputs, gradients))


@given(st.integers(1, 20), st.integers(0, 40), st.integers(1, 9), st.integers(0, 99))
def test_the_module_equals_marian(parity, length, start, d_model, seed):
    parity(f"{MODULE}.SinusoidalPositionalEncoding", "transformers", equals_marian(length, start, d_model, seed), 1e-6,
           "tokens plus Marian's embedding with reordered columns: values and gradients, first positions, odd widths, float32")


def keeps_the_contract(make):
    """Whether `make(d_model, max_len)` is a sound module: dtypes, devices, `start`, checkpoints, limits."""
    module, x = make(6, 5000), torch.zeros(1, 4, 6)
    right = sinusoidal_encoding(5000, 6, F64)

    def gives(module, dtype, start):
        output = module(x.to(dtype), start=start)
        return output.dtype == dtype and torch.equal(output[0], right[start:start + 4].to(dtype))

    def refuses(module):
        try:
            return module(x, start=4997) is None
        except ValueError:
            return True

    try:
        return (gives(module, torch.float32, 0) and gives(module, torch.float32, 4996) and refuses(module)
                and all(gives(make(6, 5000).to(dtype), dtype, start) for dtype in (*HALF, F64) for start in (0, 4990))
                and gives(make(6, 5000).half().double(), F64, 4990)
                and all(module(x.to(dtype), start=9).dtype == dtype for dtype in (*HALF, F64))
                and make(6, 5000).to("meta")(x.to("meta")).device.type == "meta"
                and gives(make(6, 5000).to("meta").to_empty(device="cpu"), torch.float32, 4990)
                and not module.state_dict() and not list(module.parameters())
                and gives(copy.deepcopy(module), torch.float32, 7) and module.eval()(x, start=3).equal(module.train()(x, start=3)))
    except (RuntimeError, IndexError, NotImplementedError):
        return False


class Mutant(nn.Module):
    """The module as it is often written, with switches for what goes wrong."""

    def __init__(self, d_model, max_len, buffer=True, persistent=False, parameter=False, start=True, cast=True, wrap=False,
                 remake=False, dropout=0.0):
        super().__init__()
        table = sinusoidal_encoding(max_len, d_model)
        if parameter:
            self.table = nn.Parameter(table)
        elif buffer:
            self.register_buffer("table", table, persistent=persistent)
        else:
            self.table = table
        self.use_start, self.cast, self.wrap, self.remake, self.dropout = start, cast, wrap, remake, nn.Dropout(dropout)

    def forward(self, x, start=0):
        positions = torch.arange(x.shape[1]) + (start if self.use_start else 0)
        if self.wrap:
            positions = positions % len(self.table)
        elif positions[-1] >= len(self.table):
            raise ValueError("too long")
        rows = self.table[positions.to(self.table.device)]
        return self.dropout(x + (rows.to(x.dtype) if self.cast else rows))

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        if self.remake:
            self.table = sinusoidal_encoding(*self.table.shape, dtype=self.table.dtype).to(self.table.device)
        return self


MODULE_FAULTS = {
    "a plain tensor, which does not move": {"buffer": False},
    "stored in checkpoints": {"persistent": True, "remake": True},
    "learned": {"parameter": True},
    "start ignored": {"start": False, "remake": True},
    "promotes half precision": {"cast": False, "remake": True},
    "wraps around at the end": {"wrap": True, "remake": True},
    "keeps the digits of half precision": {"remake": False},
    "drops out": {"dropout": 0.5, "remake": True},
}


def test_the_module_keeps_its_contract():
    assert keeps_the_contract(SinusoidalPositionalEncoding) and keeps_the_contract(lambda d, n: Mutant(d, n, remake=True))


@pytest.mark.parametrize("fault", MODULE_FAULTS)
def test_a_faulty_module_does_not(fault):
    assert not keeps_the_contract(lambda d, n: Mutant(d, n, **MODULE_FAULTS[fault]))


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_modules_hold_the_rounded_table(dtype):
    """At the far end, where a table made in this precision would be wrong everywhere."""
    module = SinusoidalPositionalEncoding(512).to(dtype)
    output = module(torch.zeros(1, 10, 512, dtype=dtype), start=4990)[0]
    right = sinusoidal_encoding(5000, 512, F64)[4990:]
    assert torch.equal(output, right.to(dtype)) and rounding_errors(output, right).max() <= 0.5001
    assert torch.equal(module.float().table, sinusoidal_encoding(5000, 512))


def test_one_token_at_a_time_equals_all_at_once():
    module, x = SinusoidalPositionalEncoding(7, 30), torch.randn(2, 9, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.cat([module(x[:, t:t + 1], start=t) for t in range(9)], dim=1), module(x))
    assert module(x[:, :0], start=30).shape == (2, 0, 7)


def test_dropout_works_in_training_alone():
    module, x = SinusoidalPositionalEncoding(64, 50, dropout=0.25), torch.full((4, 50, 64), 3.0)
    torch.manual_seed(0)
    dropped = module(x)
    assert abs((dropped == 0).float().mean() - 0.25) < 0.02
    kept = dropped != 0
    assert torch.allclose(dropped[kept] * 0.75, module.eval()(x)[kept], atol=1e-6) and (module(x) != 0).all()


def test_state_dicts_pass_between_lengths():
    short, long = SinusoidalPositionalEncoding(4, 10), SinusoidalPositionalEncoding(4, 20)
    long.load_state_dict(short.state_dict())
    assert len(long.table) == 20 and not list(long.parameters())


def test_it_is_made_on_the_default_device():
    with torch.device("meta"):
        module = SinusoidalPositionalEncoding(4, 10)
        assert sinusoidal_encoding(3, 4).device.type == shift_matrix(1, 4).device.type == "meta"
    assert module.table.device.type == "meta"
    assert torch.equal(module.to_empty(device="cpu").table, sinusoidal_encoding(10, 4))


def test_repr_tells_the_sizes():
    assert "max_len=10, d_model=4" in repr(SinusoidalPositionalEncoding(4, 10))


# -- what it refuses

@pytest.mark.parametrize("call, error, says", [
    (lambda: sinusoidal_encoding(-1, 4), ValueError, r"length \(-1\)"),
    (lambda: sinusoidal_encoding(3, 0), ValueError, r"d_model \(0\)"),
    (lambda: sinusoidal_encoding(3.0, 4), ValueError, r"length \(3.0\)"),
    (lambda: sinusoidal_encoding(3, True), ValueError, r"d_model \(True\)"),
    (lambda: sinusoidal_encoding(3, "4"), ValueError, r"d_model \('4'\)"),
    (lambda: sinusoidal_encoding(3, 4, torch.int64), TypeError, "dtype"),
    (lambda: sinusoidal_encoding(3, 4, "float32"), TypeError, "dtype"),
    (lambda: shift_matrix(1, 5), ValueError, r"d_model \(5\) must be even.*no cosine"),
    (lambda: shift_matrix(1, 0), ValueError, r"d_model \(0\)"),
    (lambda: shift_matrix(math.nan, 4), ValueError, "offset"),
    (lambda: shift_matrix(math.inf, 4), ValueError, "offset"),
    (lambda: shift_matrix("1", 4), ValueError, "offset"),
    (lambda: shift_matrix(True, 4), ValueError, r"offset \(True\)"),
    (lambda: shift_matrix(10 ** 400, 4), ValueError, "offset"),
    (lambda: shift_matrix(-2 ** 53, 4), ValueError, r"between -2\*\*53 and 2\*\*53"),
    (lambda: shift_matrix(1, 4, torch.int64), TypeError, "dtype"),
    (lambda: SinusoidalPositionalEncoding(0), ValueError, "d_model"),
    (lambda: SinusoidalPositionalEncoding(4, 0), ValueError, "max_len"),
    (lambda: SinusoidalPositionalEncoding(4, 2.5), ValueError, "max_len"),
    (lambda: SinusoidalPositionalEncoding(4, dropout=1.0), ValueError, "dropout"),
    (lambda: SinusoidalPositionalEncoding(4, dropout=-0.1), ValueError, "dropout"),
    (lambda: SinusoidalPositionalEncoding(4, dropout=math.nan), ValueError, "dropout"),
    (lambda: SinusoidalPositionalEncoding(4, dropout="0"), ValueError, "dropout"),
    (lambda: SinusoidalPositionalEncoding(4, dropout=False), ValueError, r"dropout \(False\)"),
])
def test_wrong_arguments(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize("call, error, says", [
    (lambda m: m(torch.zeros(2, 3, 5)), ValueError, r"x \(2, 3, 5\) must have shape \(batch, length, 4\)"),
    (lambda m: m(torch.zeros(3, 4)), ValueError, "batch, length"),
    (lambda m: m(torch.zeros(2, 3, 4, dtype=torch.int64)), TypeError, "token vectors, not ids"),
    (lambda m: m([[0.0] * 4]), TypeError, "list"),
    (lambda m: m(torch.zeros(2, 11, 4)), ValueError, r"needs 11 positions .* max_len \(10\)"),
    (lambda m: m(torch.zeros(2, 1, 4), start=10), ValueError, r"needs 11 positions"),
    (lambda m: m(torch.zeros(2, 1, 4), start=-1), ValueError, r"start \(-1\)"),
    (lambda m: m(torch.zeros(2, 1, 4), start=0.5), ValueError, "start"),
])
def test_wrong_input(unchecked, call, error, says):
    with pytest.raises(error, match=says):
        call(SinusoidalPositionalEncoding(4, 10))


# -- speed

@pytest.mark.bench
def test_speed_of_the_module(unchecked, within):
    module, x = SinusoidalPositionalEncoding(512).eval(), torch.randn(16, 256, 512)
    table = module.table[:256].clone()
    within("SinusoidalPositionalEncoding / adding a table", ratio(lambda: module(x), lambda: x + table), 1.5)


@pytest.mark.bench
def test_speed_of_the_table(unchecked, within):
    def in_float32():
        position = torch.arange(5000.0)[:, None]
        rate = torch.exp(torch.arange(0, 512, 2) * (-math.log(10000.0) / 512))
        table = torch.zeros(5000, 512)
        table[:, 0::2], table[:, 1::2] = torch.sin(position * rate), torch.cos(position * rate)
    within("sinusoidal_encoding in float64 / made in float32", ratio(lambda: sinusoidal_encoding(5000, 512), in_float32), 6.0)


def test_rows_that_begin_in_different_columns(unchecked):
    encoding, x = SinusoidalPositionalEncoding(6, max_len=9), torch.randn(2, 4, 6)
    positions = torch.tensor([[0, 0, 0, 1], [5, 6, 7, 8]])
    mixed = encoding(x, start=positions)
    assert torch.equal(mixed[1], encoding(x, start=5)[1]) and torch.equal(mixed[0, 2:], encoding(x[:, 2:])[0])
    assert torch.equal(encoding(x, start=positions[1:]), encoding(x, start=5))
    for wrong, error in ((positions + 1, "0 to 8, but holds 1 to 9"), (positions - 1, "holds -1 to 7"), (positions[:, :3], "shape of the tokens"),
                         (positions[0], "shape of the tokens"), (torch.cat([positions] * 2), "shape of the tokens")):
        with pytest.raises(ValueError, match=error):
            encoding(x, start=wrong)
    with pytest.raises(TypeError, match="start must hold positions in int64"):
        encoding(x, start=positions.float())
