"""ViT against CNN: the convolution, the receptive field and roll-out against loops; known faults; what is refused; the stored runs."""
import copy
import itertools
import json
import pickle
from pathlib import Path

import measure_vit_vs_cnn as tool
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from transformer_course.attention.multi_head_attention import record_attention
from transformer_course.toolbox.exercises import check, exercise_ids
from transformer_course.vision import _vit_vs_cnn_runs as runs
from transformer_course.vision.vit import ViT, ViTConfig
from transformer_course.vision.vit_vs_cnn import SmallCNN, attention_rollout, receptive_field


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- plausible answers that are wrong, for each exercise that is checked

def _rolled(images, down, right):
    return images.roll((down, right), dims=(2, 3))


def _in_place(images, down, right):
    moved = images.roll((down, right), dims=(2, 3))
    moved[:, :, :max(down, 0)] = 0
    moved[:, :, :, :max(right, 0)] = 0
    return moved


def _swapped(images, down, right):
    return _in_place(images, right, down)


def _copies(paper=-1.0, order=((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)), by_image=False, roll=False):
    def moved(images):
        copies = []
        for down, right in order:
            copy = images.roll((down, right), dims=(2, 3))
            if not roll:
                if down:
                    copy[:, :, 0 if down == 1 else -1] = paper
                if right:
                    copy[:, :, :, 0 if right == 1 else -1] = paper
            copies.append(copy)
        return torch.stack(copies, dim=1).flatten(0, 1) if by_image else torch.cat(copies)
    return moved


def _cleaned(spare=True, keepdim=True, first_only=False, identity=True, whole=True):
    def cleaned(weights, share):
        flat = weights.clone().flatten(1)
        count = int(share * flat.shape[1]) if whole else round(share * flat.shape[1])
        lowest = flat.topk(count, dim=1, largest=False).indices
        if first_only:
            flat[0, lowest.flatten()] = 0
        else:
            flat = flat.scatter(1, lowest, 0.0)
        mean = flat.view_as(weights)
        if spare:
            mean[:, :, 0] = weights[:, :, 0]
        mean = mean + torch.eye(weights.shape[-1], dtype=weights.dtype) * identity
        return mean / mean.sum(dim=-1, keepdim=keepdim)
    return cleaned


WRONG = [
    ("45.layers", [111, 224, 111.5, 74, 8]),
    ("45.shift", [_rolled, _in_place, _swapped, lambda images, down, right: images]),
    ("45.moved", [_copies(paper=0.0), _copies(roll=True), _copies(by_image=True), _copies(order=((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))),
                  _copies(order=((-1, 0), (1, 0), (0, -1), (0, 1))), _copies(order=((0, 0), (0, -1), (0, 1), (-1, 0), (1, 0)))]),
    ("45.dropped", [_cleaned(spare=False), _cleaned(keepdim=False), _cleaned(first_only=True), _cleaned(identity=False), _cleaned(whole=False)]),
]


@pytest.mark.parametrize("exercise, answer", [(name, answer) for name, answers in WRONG for answer in answers])
def test_wrong_answers_are_told(exercise, answer):
    assert exercise in exercise_ids("45") and not check(exercise, answer)


def test_every_checked_exercise_has_wrong_answers():
    assert [name for name, _ in WRONG] == exercise_ids("45")
    assert check("45.dropped", _cleaned()) and check("45.moved", _copies())


# -- the CNN

def by_windows(model, images):
    """The scores, each convolution as a product of all windows with a matrix."""
    x = images
    for at, part in enumerate(model.convolutions):
        if at:
            x = x[:, :, :x.shape[2] // 2 * 2, :x.shape[3] // 2 * 2].unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).amax(dim=(3, 5))
        height, width = x.shape[2:]
        windows = F.unfold(x, 3, padding=1)
        x = (part.weight.flatten(1) @ windows + part.bias[:, None]).clamp(min=0).unflatten(2, (height, width))
    return x.mean(dim=(2, 3)) @ model.head.weight.T + model.head.bias


@given(st.integers(1, 3), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(4, 11), st.integers(4, 11), st.integers(0, 99))
def test_the_cnn_equals_products_of_windows(channels, widths, height, width, seed):
    """Values and gradients, odd sizes included."""
    torch.manual_seed(seed)
    model = SmallCNN(channels, 4, widths).double()
    images = drawn(2, channels, height, width, seed=seed).requires_grad_()
    outputs, sent = (model(images), by_windows(model, images)), drawn(2, 4, seed=seed + 1)
    assert torch.allclose(*outputs, atol=1e-10)
    ways = [torch.autograd.grad((out * sent).sum(), [images, *model.parameters()], retain_graph=True) for out in outputs]
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(*ways))


def test_a_module_like_any():
    model = SmallCNN()
    assert sum(p.numel() for p in model.parameters()) == 320 + 18_496 + 73_856 + 1_290
    other = pickle.loads(pickle.dumps(model))
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(other(images), model(images)) and torch.equal(copy.deepcopy(model)(images), model(images))
    assert model.features(images).shape == (3, 128, 2, 2) and model(torch.rand(2, 1, 13, 21)).shape == (2, 10)
    with torch.device("meta"):
        assert SmallCNN(3, 1000, (64, 64))(torch.zeros(1, 3, 224, 224)).shape == (1, 1000)
    assert model.to(torch.bfloat16)(images.bfloat16()).dtype == torch.bfloat16


# -- how far one place sees

@given(st.lists(st.sampled_from([(1, 1), (3, 1), (3, 2), (5, 1), (5, 2)]), max_size=3))
def test_the_receptive_field_is_what_gradients_reach(layers):
    torch.manual_seed(0)
    convolutions = nn.Sequential(*(nn.Conv2d(1, 1, window, stride, window // 2, dtype=torch.float64) for window, stride in layers))
    for part in convolutions:
        part.weight.data.abs_().add_(0.01)
    image = torch.zeros(1, 1, 81, 81, dtype=torch.float64, requires_grad=True)
    out = convolutions(image)
    gradient, = torch.autograd.grad(out[0, 0, out.shape[2] // 2, out.shape[3] // 2], image)
    assert (gradient[0, 0] > 0).any(dim=1).sum() == receptive_field(layers) == (gradient[0, 0] > 0).any(dim=0).sum()


def test_known_faults_of_the_formula_are_caught():
    def right(field):
        return field([(3, 1)] * 5) == 11 and field([(3, 2)] * 5) == 63 and field([]) == 1 and field([(3, 1), (2, 2), (3, 1)]) == 8

    def own_stride(layers):     # each layer's own stride counted at its own window
        field, step = 1, 1
        for window, stride in layers:
            step *= stride
            field += (window - 1) * step
        return field
    assert right(receptive_field) and not right(own_stride)
    assert not right(lambda layers: 1 + sum(window - 1 for window, _ in layers)) and not right(lambda layers: sum(window for window, _ in layers))


# -- roll-out

def by_paths(layers, image, token, source):
    """The sum over all paths; layers (batch, heads, tokens, tokens)."""
    total = 0.0
    for via in itertools.product(range(layers[0].shape[-1]), repeat=len(layers) - 1):
        path = [source, *via, token]       # from the input up
        product = 1.0
        for layer, below, above in zip(layers, path, path[1:]):
            product *= 0.5 * (below == above) + 0.5 * layer[image, :, above, below].mean().item()
        total += product
    return total


def of_paths(rollout):
    """Whether it is the sum over paths, for two images of three tokens and three different layers."""
    layers = [drawn(2, 2, 3, 3, seed=seed).mul(2).softmax(dim=-1) for seed in range(3)]
    got = rollout(layers)
    return got.shape == (2, 3, 3) and all(abs(got[b, i, j].item() - by_paths(layers, b, i, j)) < 1e-9
                                          for b in range(2) for i in range(3) for j in range(3))


def _product(layers, identity=True, reverse=False, heads="mean"):
    result = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype)
    for layer in layers:
        mean = layer.mean(1) if heads == "mean" else layer.amax(1)
        a = (mean + torch.eye(mean.shape[-1], dtype=mean.dtype)) / 2 if identity else mean
        result = result @ a if reverse else a @ result
    return result


def test_rollout_is_the_sum_over_paths_and_known_faults_are_caught():
    assert of_paths(attention_rollout) and of_paths(_product)
    assert not of_paths(lambda layers: _product(layers, identity=False))
    assert not of_paths(lambda layers: _product(layers, reverse=True))
    assert not of_paths(lambda layers: _product(layers, heads="max"))
    assert not of_paths(lambda layers: layers[-1].mean(1))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(0, 99))
def test_rows_of_rollout_sum_to_1(depth, heads, tokens, seed):
    layers = [drawn(2, heads, tokens, tokens, seed=seed + at).softmax(dim=-1) for at in range(depth)]
    kept = [layer.clone() for layer in layers]
    rolled = attention_rollout(layers)
    assert torch.allclose(rolled.sum(dim=-1), torch.ones(2, tokens, dtype=torch.float64)) and (rolled >= 0).all()
    assert all(map(torch.equal, layers, kept)) and torch.allclose(rolled[1:], attention_rollout([layer[1:] for layer in layers]))


def test_half_precision_and_the_meta_device():
    """Twelve layers in bfloat16 lose no more than the one rounding at the end."""
    layers = [drawn(1, 4, 20, 20, seed=seed).softmax(dim=-1).bfloat16() for seed in range(12)]
    rolled, exact = attention_rollout(layers), attention_rollout([layer.double() for layer in layers])
    assert rolled.dtype == torch.bfloat16 and torch.allclose(rolled.double(), exact, rtol=2**-8, atol=0)
    assert attention_rollout([layer.to("meta") for layer in layers]).shape == (1, 20, 20)
    assert attention_rollout([torch.zeros(0, 2, 3, 3)]).shape == (0, 3, 3)


def test_rollout_of_a_recorded_vit():
    model = ViT(ViTConfig(8, 4, channels=1, num_labels=3, d_model=12, num_layers=2, num_heads=3, d_ff=8)).eval()
    with torch.no_grad(), record_attention(model) as seen:
        model(torch.rand(2, 1, 8, 8))
    rolled = attention_rollout([calls[0] for calls in seen.values()])
    assert rolled.shape == (2, 5, 5) and torch.allclose(rolled.sum(-1), torch.ones(2, 5))


# -- what is refused

@pytest.mark.parametrize("images, error, says", [
    (torch.zeros(2, 3, 8, 8), ValueError, r"images have 3 channels, not 1.*\(2, 3, 8, 8\)"),
    (torch.zeros(8, 8), ValueError, "images must have shape"),
    (torch.zeros(0, 1, 8, 8), ValueError, "images must have shape"),
    (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), TypeError, "torch.uint8.*/ 255"),
    ([[0.0]], TypeError, r"images \(list\) must be a tensor"),
    (torch.zeros(2, 1, 0, 8), ValueError, "images must have shape"),
    (torch.zeros(2, 1, 3, 8), ValueError, "images are 3 x 8, but the pooling needs 4 x 4"),
    (torch.zeros(2, 1, 8, 8, device="meta"), ValueError, "images are on meta, but the weights on cpu"),
    (torch.zeros(2, 1, 8, 8, dtype=torch.float64), ValueError, "images has dtype torch.float64"),
])
def test_images_that_are_refused(unchecked, images, error, says):
    with pytest.raises(error, match=says):
        SmallCNN()(images)


@pytest.mark.parametrize("arguments, says", [({"channels": 0}, "channels"), ({"num_labels": 2.0}, "num_labels"), ({"widths": ()}, "widths"),
                                             ({"widths": 5}, "widths"), ({"widths": None}, "widths"), ({"widths": 8.0}, "widths"), ({"widths": "8"}, "widths"),
                                             ({"widths": (8, 0)}, r"widths\[1\]")])
def test_sizes_that_are_refused(unchecked, arguments, says):
    with pytest.raises(ValueError, match=says):
        SmallCNN(**arguments)


@pytest.mark.parametrize("layers, error, says", [([(3, 0)], ValueError, r"the stride of layers\[0\]"), ([(3, 1), (0, 1)], ValueError, r"the window of layers\[1\]"),
                                                 (None, TypeError, r"layers \(None\)"), (3, TypeError, r"layers \(3\)"),
                                                 ([3], TypeError, r"layers\[0\] \(3\)"), ([(3, 1, 1)], TypeError, r"layers\[0\]")])
def test_layers_that_are_refused(unchecked, layers, error, says):
    with pytest.raises(error, match=says):
        receptive_field(layers)


@pytest.mark.parametrize("weights, error, says", [
    ([], ValueError, "no layer"), ([torch.zeros(2, 3, 3)], ValueError, r"weights\[0\] has shape \(2, 3, 3\)"),
    ([torch.zeros(1, 1, 3, 4)], ValueError, r"weights\[0\]"), ([torch.zeros(1, 1, 3, 3), torch.zeros(1, 2, 3, 3)], ValueError, r"weights\[1\]"),
    ([torch.zeros(1, 1, 3, 3, dtype=torch.int64)], TypeError, r"weights\[0\]"), ([[0.5]], TypeError, r"weights\[0\]"), (None, TypeError, r"weights\[0\]"),
    (torch.zeros(1, 1, 3, 3), ValueError, r"weights\[0\] has shape \(1, 3, 3\)"),
    ([torch.full((1, 1, 3, 3), 1 / 3), torch.full((1, 1, 3, 3), 0.5)], ValueError, r"weights\[1\] must be from 0 up, with rows that sum to 1"),
    ([torch.eye(3)[None, None] - 0.1], ValueError, r"weights\[0\] must be from 0 up"), ([torch.full((1, 1, 3, 3), torch.nan)], ValueError, r"weights\[0\] must be")])
def test_weights_that_are_refused(unchecked, weights, error, says):
    with pytest.raises(error, match=says):
        attention_rollout(weights)


# -- the runs

def test_the_digits_of_a_seed():
    images, labels, test_images, test_labels = runs.some_digits(50, 3)
    again, mixed = runs.some_digits(50, 3), runs.some_digits(50, 3, mixed=True)
    assert images.shape == (50, 1, 8, 8) and test_images.shape == (597, 1, 8, 8) and torch.equal(images, again[0])
    assert not torch.equal(images, runs.some_digits(50, 4)[0])
    assert torch.equal(mixed[1], labels) and torch.equal(mixed[0].flatten(1).sort().values, images.flatten(1).sort().values)
    assert torch.allclose(torch.cdist(mixed[0].flatten(1), mixed[2].flatten(1)), torch.cdist(images.flatten(1), test_images.flatten(1)), atol=1e-4)
    everything = torch.cat([runs.some_digits(1200, 0)[0], test_images]).flatten(1)
    assert len(everything) == 1797 and len(test_labels) == 597


def test_both_kinds_of_model_get_the_same_steps(monkeypatch):
    asked = []
    monkeypatch.setattr(runs, "train_reader", lambda model, images, labels, seed, steps: asked.append((type(model).__name__, len(images), seed, steps)))
    for kind in ("ViT", "CNN"):
        for longer in (1, 2):
            runs.train_reader_of(kind, 50, 3, longer=longer)
    assert asked == [("ViT", 50, 3, 200), ("ViT", 50, 3, 400), ("SmallCNN", 50, 3, 200), ("SmallCNN", 50, 3, 400)]


def test_the_stored_runs_are_whole():
    stored = runs.stored_results()
    found = {(run["kind"], run["model"], run["images"], run["seed"]) for run in stored["runs"]}
    wanted = {(kind, model, count, seed) for kind, pairs in tool.KINDS.items() for model, count in pairs for seed in tool.SEEDS}
    assert found == wanted and len(stored["runs"]) == len(wanted) and stored["seconds"] < 600
    full = [run["accuracy"] for run in stored["runs"] if (run["kind"], run["model"], run["images"]) == ("curve", "ViT", 1200)]
    assert sum(full) / 3 >= 0.97


def test_the_tool_keeps_what_it_does_not_make_again(tmp_path, monkeypatch):
    store = tmp_path / "runs.json"
    old = [{"kind": kind, "model": "ViT", "images": 50, "seed": 0, "seconds": 1.0} for kind in ("curve", "mixed")]
    store.write_text(json.dumps({"runs": old}))
    asked = []
    monkeypatch.setattr(tool, "measured", lambda *run: asked.append(run) or {"accuracy": len(asked)})

    def made(*arguments):
        monkeypatch.setattr("sys.argv", ["measure", *arguments, "--store", str(store)])
        asked.clear()
        threads = torch.get_num_threads()
        tool.main()
        torch.set_num_threads(threads)
        return json.loads(Path(store).read_text())["runs"]
    again = made("--only", "mixed")
    assert again[0] == old[0] and len(again) == 7 and [run["accuracy"] for run in again[1:]] == [1, 2, 3, 4, 5, 6]
    assert {run[0] for run in asked} == {"mixed"}
    more = made("--only", "mixed", "curve", "--missing")
    assert more[:7] == again and len(more) == 6 + 3 * len(tool.KINDS["curve"]) and ("curve", "ViT", 50, 0) not in asked


def test_a_map_ranks_the_patches_that_matter():
    """Hiding what a ranking puts first is hiding these patches and no others."""
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.2], [4.0, 3.0, 2.0, -torch.inf]])
    assert runs.top(scores, 2).tolist() == [[False, True, True, False], [True, True, False, False]] and not runs.top(scores, 0).any()
    images, labels, test_images, test_labels = runs.digits()
    maps = runs.digit_maps(runs.digit_reader(0).eval(), test_images[:20], 0)
    assert {name: tuple(found.shape) for name, found in maps.items()} == dict.fromkeys(["roll-out", "last layer", "untrained", "ink", "chance"], (20, 16))
    assert torch.equal(maps["roll-out"], maps["untrained"])        # this one is not trained
    assert torch.allclose(maps["ink"].view(20, 4, 4), F.avg_pool2d(test_images[:20, 0], 2), atol=1e-6)


def test_maps_of_a_gap_are_rows_of_its_own():
    filler, (pieces, gap) = runs.gap_filler(0), runs.one_gap(6, 3)
    maps = runs.gap_maps(filler, pieces, gap, 0)
    at = torch.arange(6)
    assert all(scores.shape == (6, 36) and scores[at, gap].isinf().all() and scores.isinf().sum() == 6 for scores in maps.values())
    seen = runs.cover(pieces, F.one_hot(gap, 36).bool(), 4)
    with torch.no_grad(), record_attention(filler.vit) as weights:
        filler.vit(seen)
    first, second = (calls[0].mean(1) for calls in weights.values())
    by_hand = ((second + torch.eye(37)) @ (first + torch.eye(37)) / 4)[at, 1 + gap, 1:]
    assert torch.allclose(maps["roll-out"].where(maps["roll-out"].isfinite(), by_hand), by_hand, atol=1e-6)
    near = runs.top(maps["nearest"], 2)
    for k in range(6):
        assert all(abs(int(p) // 6 - int(gap[k]) // 6) + abs(int(p) % 6 - int(gap[k]) % 6) == 1 for p in near[k].nonzero())
    whole, less = (runs.fill_without(filler, pieces, gap, maps["nearest"], count) for count in (0, 5))
    with torch.no_grad():
        wanted = (filler(pieces, F.one_hot(gap, 36).bool()) - runs.patchify(pieces, 4)[at, gap]).square().mean().item()
    assert abs(whole - wanted) < 1e-6 and whole != less
