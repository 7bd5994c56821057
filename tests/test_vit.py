"""ViT: as Hugging Face's, from its files and back, at other resolutions; known faults; what is refused; speed."""
import copy
import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from speed import ratio
from torch import nn
from torch.nn import functional as F

from transformer_course.attention.multi_head_attention import record_attention
from transformer_course.toolbox.checkpoints import CheckpointError, write_tensors
from transformer_course.toolbox.exercises import check, exercise_ids
from transformer_course.transformer.residual_and_norm import LayerNorm
from transformer_course.vision.vit import PatchEmbedding, ViT, ViTConfig, patchify, resize_positions

MODULE = "transformer_course.vision.vit"
TOLERANCE = 1e-4
SMALL = ViTConfig(image_size=12, patch_size=4, channels=3, num_labels=5, d_model=12, num_layers=3, num_heads=3, d_ff=20)


# -- plausible answers that are wrong, for each exercise that is checked

def _back(order=(0, 3, 1, 4, 2, 5), last_is_channel=False, swap=False):
    def unpatchify(patches, patch_size, height, width):
        rows, columns = height // patch_size, width // patch_size
        rows, columns = (columns, rows) if swap else (rows, columns)
        if last_is_channel:
            x = patches.reshape(len(patches), rows, columns, patch_size, patch_size, -1).permute(0, 5, 1, 3, 2, 4)
        else:
            x = patches.reshape(len(patches), rows, columns, -1, patch_size, patch_size).permute(*order)
        return x.reshape(len(patches), -1, height, width)
    return unpatchify


def _fold_without_reshape(patches, patch_size, height, width):
    return patches.reshape(len(patches), -1, height, width)


def _count(cls=True, table=1, qkv=True, last=True, head=True, norms=4, bias=True):
    def parameters(c):
        d = c.d_model
        positions = (table + (c.image_size // c.patch_size) ** 2) * d + cls * d
        attention = 4 * d * d + d + 3 * d * (c.qkv_bias if qkv else True)
        network = 2 * d * c.d_ff + c.d_ff + d
        return (c.channels * c.patch_size**2 * d + bias * d + positions + c.num_layers * (attention + network + norms * d)
                + last * 2 * d + ((d + 1) * c.num_labels if head else (d + 1) * 1000))
    return parameters


def _resized(config=True, share=False, interpolate_class=False, keep_first_rows=False):
    def resized(model, image_size):
        old = model.position.weight.detach()
        side = image_size // model.config.patch_size
        larger = copy.copy(model) if share else ViT(replace(model.config, image_size=image_size)).to(old.dtype)
        state = dict(model.state_dict())
        table = resize_positions(old, (side, side))
        if interpolate_class:
            table = F.interpolate(old.T[None], size=1 + side * side, mode="linear")[0].T
        if keep_first_rows:
            table = torch.cat([old, torch.zeros(1 + side * side, old.shape[1], dtype=old.dtype)])[:1 + side * side]
        if share:
            model.position.weight = nn.Parameter(table)
            model.config = replace(model.config, image_size=image_size)
            return model
        state["position.weight"] = table
        larger.load_state_dict(state, assign=not config)
        return larger.eval()
    return resized


def _distance(with_class=False, normalise=True, swap=False, squared=False, all_heads=False, city=False):
    def attention_distance(weights, grid):
        rows, columns = grid[::-1] if swap else grid
        i, j = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        places = torch.stack([i.flatten(), j.flatten()], 1).double()
        apart = torch.cdist(places, places, p=1.0 if city else 2.0)
        apart = apart**2 if squared else apart
        weights = weights[:, 1:, 1:]
        if with_class:
            return (weights * apart).sum(-1).sum(-1) / (1 + len(places))
        if normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        found = (weights * apart).sum(-1).mean(-1)
        return found.mean() if all_heads else found
    return attention_distance


def _share(centre=True, skip_class=True, rows=True, columns=True, one_minus=False):
    def separable_share(table):
        side = math.isqrt(len(table) - 1)
        picture = (table[1:] if skip_class else table[:-1]).reshape(side, side, -1)
        picture = picture - picture.mean(dim=(0, 1)) if centre else picture
        explained = torch.zeros_like(picture)
        explained = explained + rows * picture.mean(1, keepdim=True) + columns * picture.mean(0, keepdim=True)
        share = (explained.square().sum() / picture.square().sum()).item()
        return 1 - share if one_minus else share
    return separable_share


WRONG = [
    ("44.unpatchify", [_back((0, 3, 1, 2, 4, 5)), _back((0, 3, 2, 4, 1, 5)), _back((0, 3, 1, 5, 2, 4)), _back(last_is_channel=True), _back(swap=True),
                       _fold_without_reshape]),
    ("44.parameters", [_count(cls=False), _count(table=0), _count(qkv=False), _count(last=False), _count(head=False), _count(norms=2),
                       _count(bias=False)]),
    ("44.resized", [_resized(config=False), _resized(share=True), _resized(interpolate_class=True), _resized(keep_first_rows=True),
                    lambda model, image_size: model, lambda model, image_size: ViT(replace(model.config, image_size=image_size)).double()]),
    ("44.distance", [_distance(with_class=True), _distance(normalise=False), _distance(swap=True), _distance(squared=True),
                     _distance(all_heads=True), _distance(city=True)]),
    ("44.rows-and-columns", [_share(centre=False), _share(skip_class=False), _share(rows=False), _share(columns=False), _share(one_minus=True)]),
]


@pytest.mark.parametrize("exercise, answer", [(name, answer) for name, answers in WRONG for answer in answers])
def test_wrong_answers_are_told(exercise, answer):
    assert exercise in exercise_ids("44") and not check(exercise, answer)


# -- Hugging Face's models, over their configurations

def scatter(model, seed=0, size=0.25):
    """Weights that are large enough to matter, biases and norms included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            parameter.copy_(around + size * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def hf(config, head=True, seed=0, **kwargs):
    from transformers import ViTForImageClassification, ViTModel
    return scatter(ViTForImageClassification(config) if head else ViTModel(config, **kwargs), seed)


def hf_config(**changes):
    from transformers import ViTConfig as Theirs
    return Theirs(**{"image_size": 12, "patch_size": 4, "num_channels": 3, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
                     "intermediate_size": 20, "num_labels": 5} | changes)


@st.composite
def configs(draw):
    heads, patch, rate = draw(st.integers(1, 4)), draw(st.integers(1, 5)), st.sampled_from([0.0, 0.1])
    return hf_config(
        image_size=patch * draw(st.integers(1, 5)), patch_size=patch, num_channels=draw(st.integers(1, 4)), hidden_size=heads * draw(st.integers(1, 6)),
        num_attention_heads=heads, num_hidden_layers=draw(st.integers(1, 3)), intermediate_size=draw(st.integers(3, 20)),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-6, 1e-3])), hidden_act=draw(st.sampled_from(["gelu", "gelu_new", "relu", "silu"])),
        qkv_bias=draw(st.booleans()), num_labels=draw(st.integers(0, 5)), hidden_dropout_prob=draw(rate), attention_probs_dropout_prob=draw(rate))


def images_of(config, batch=2, size=None, seed=0):
    """Images for a config of theirs or ours, of its size or of (height, width)."""
    channels = getattr(config, "num_channels", None) or config.channels
    height, width = (config.image_size,) * 2 if size is None else size
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("head", [True, False], ids=["ViTForImageClassification", "ViTModel"])
def test_as_hugging_face_from_its_files_and_back(head, parity, tmp_path):
    kind = "ViTForImageClassification" if head else "ViTModel"

    @given(configs(), st.booleans(), st.integers(1, 6), st.integers(1, 6))
    @settings(max_examples=30)
    def equal(config, pooler, rows, columns):
        import transformers
        theirs = hf(config, head, **({} if head else {"add_pooling_layer": pooler}))
        theirs.save_pretrained(tmp_path)
        ours = ViT.from_pretrained(tmp_path)
        assert not ours.training and ours.config.num_labels == (config.num_labels if head else 0)

        def difference(other, size):
            images = images_of(config, size=size)
            with torch.no_grad():
                given_out = other(images, interpolate_pos_encoding=size is not None)
                wanted, got = (given_out.logits, ours(images)) if head else (given_out.last_hidden_state, ours.features(images))
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            return (got - wanted).abs().max().item()
        size = rows * config.patch_size, columns * config.patch_size
        parity(MODULE + ".ViT.from_pretrained", "transformers", difference(theirs, None), TOLERANCE, f"{kind}: random configurations, float32")
        parity(MODULE + ".ViT.forward", "transformers", difference(theirs, size), TOLERANCE,
               "images of another size, square or not, interpolate_pos_encoding=True, float32")
        ours.save_pretrained(tmp_path)
        more = {} if head else {"add_pooling_layer": False}
        back = getattr(transformers, kind).from_pretrained(tmp_path, **more).eval() if config.num_labels or not head else None
        if back is not None:
            parity(MODULE + ".ViT.save_pretrained", "transformers", difference(back, None), TOLERANCE,
                   f"{kind}: what was written is loaded by transformers, float32")
        again, images = ViT.from_pretrained(tmp_path), images_of(config)
        assert again.config == ours.config and torch.equal(again(images), ours(images))
    equal()


def test_what_is_written_needs_nothing_new_in_hugging_face(tmp_path):
    """Loading says which names were missing or of no use: none, but the pooler that a ViTModel may have."""
    from transformers import ViTForImageClassification, ViTModel
    ViT(SMALL).save_pretrained(tmp_path)
    _, says = ViTForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not says["missing_keys"] and not says["unexpected_keys"] and not says["mismatched_keys"]
    ViT(replace(SMALL, num_labels=0)).save_pretrained(tmp_path)
    _, says = ViTModel.from_pretrained(tmp_path, output_loading_info=True)
    assert set(says["missing_keys"]) == {"pooler.dense.weight", "pooler.dense.bias"} and not says["unexpected_keys"]


def test_at_base_width_and_in_half_precision(parity, tmp_path):
    theirs = scatter(hf(hf_config(image_size=224, patch_size=16, hidden_size=768, num_attention_heads=12, intermediate_size=3072,
                                  num_labels=1000)), size=0.02)
    theirs.save_pretrained(tmp_path)
    ours = ViT.from_pretrained(tmp_path)
    images = images_of(ours.config, batch=1)
    with torch.no_grad():
        exact = ours(images)
        parity(MODULE + ".ViT.from_pretrained", "transformers", (exact - theirs(images).logits).abs().max().item(), TOLERANCE,
               "two layers of ViT-B/16, float32")
        half = ViT.from_pretrained(tmp_path, dtype=torch.bfloat16)
        low = half(images.bfloat16())
        assert low.dtype == torch.bfloat16 and (low.float() - exact).norm() < 0.03 * exact.norm()
        with torch.autocast("cpu", torch.bfloat16):
            mixed = ours(images)
        assert (mixed.float() - exact).norm() < 0.03 * exact.norm()
    half.save_pretrained(tmp_path / "half")
    assert {tensor.dtype for tensor in load_file(tmp_path / "half/model.safetensors").values()} == {torch.bfloat16}


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 7))
def test_patch_embedding_as_hugging_face(size, channels, batch, rows, columns, width):
    from transformers.models.vit.modeling_vit import ViTPatchEmbeddings
    theirs = scatter(ViTPatchEmbeddings(hf_config(patch_size=size, image_size=size, num_channels=channels, hidden_size=width))).double()
    ours = PatchEmbedding(size, channels, width).double()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(batch, channels, rows * size, columns * size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = []
    for embed in (ours, theirs, lambda x: F.linear(patchify(x, size), ours.projection.weight.flatten(1), ours.projection.bias)):
        x = images.clone().requires_grad_()
        tokens = embed(x)
        tokens.backward(torch.linspace(-1, 1, tokens.numel(), dtype=torch.float64).reshape(tokens.shape))
        found.append((tokens, x.grad))
    for tokens, sent in found[1:]:
        assert torch.allclose(tokens, found[0][0], atol=1e-12) and torch.allclose(sent, found[0][1], atol=1e-12)


def test_patch_embedding_is_on_record(parity):
    from transformers.models.vit.modeling_vit import ViTPatchEmbeddings
    theirs = scatter(ViTPatchEmbeddings(hf_config()))
    ours = PatchEmbedding(4, 3, 12)
    ours.load_state_dict(theirs.state_dict())
    images = images_of(SMALL, size=(8, 20))
    parity(MODULE + ".PatchEmbedding", "transformers", (ours(images) - theirs(images)).abs().max().item(), 1e-5, "images that are not square, float32")


def test_gradients_are_those_of_hugging_face(parity, tmp_path):
    theirs = hf(hf_config()).double()
    theirs.save_pretrained(tmp_path)
    ours = ViT.from_pretrained(tmp_path, dtype=torch.float64)
    pairs = []
    for model in (ours, theirs):
        x = images_of(SMALL, size=(8, 16)).double().requires_grad_()
        out = model(x) if model is ours else model(x, interpolate_pos_encoding=True).logits
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape))
        pairs.append((x.grad, model.position.weight.grad if model is ours else model.vit.embeddings.position_embeddings.grad[0]))
    for mine, other in zip(*pairs):
        parity(MODULE + ".ViT.forward", "transformers", (mine - other).abs().max().item(), 1e-10,
               "gradients of an oblong image and of the table of positions, float64")


# -- positions at another resolution; the check is a function of what resizes

def hf_positions(table, grid, patch=2):
    """What Hugging Face makes of a table (1 + n * n, d)."""
    from transformers.models.vit.modeling_vit import ViTEmbeddings
    side = math.isqrt(len(table) - 1)
    embeddings = ViTEmbeddings(hf_config(image_size=side * patch, patch_size=patch, hidden_size=table.shape[1]))
    embeddings.position_embeddings = nn.Parameter(table[None])
    tokens = torch.zeros(1, 1 + grid[0] * grid[1], table.shape[1])
    with torch.no_grad():
        return embeddings.interpolate_pos_encoding(tokens, grid[0] * patch, grid[1] * patch)[0]


GRIDS = [(14, 14), (24, 24), (7, 7), (1, 1), (9, 20), (20, 9), (14, 15), (61, 61), (3, 40)]


def resizes_as_hugging_face(resize, side=14, grids=GRIDS):
    table = torch.randn(1 + side * side, 5, generator=torch.Generator().manual_seed(0))
    for grid in grids:
        wanted, got = hf_positions(table, grid), resize(table, grid)
        if got.shape != wanted.shape or not torch.allclose(got, wanted, atol=1e-5):
            return False
    return True


def test_positions_are_resized_as_hugging_face(parity):
    assert resizes_as_hugging_face(resize_positions) and resizes_as_hugging_face(resize_positions, 3) and resizes_as_hugging_face(resize_positions, 1)

    @given(st.integers(1, 9), st.integers(1, 30), st.integers(1, 30), st.integers(1, 6))
    def equal(side, rows, columns, width):
        table = torch.randn(1 + side * side, width, generator=torch.Generator().manual_seed(side))
        difference = (resize_positions(table, (rows, columns)) - hf_positions(table, (rows, columns))).abs().max().item()
        parity(MODULE + ".resize_positions", "transformers", difference, 1e-5, "interpolate_pos_encoding: larger, smaller and oblong grids, float32")
    equal()


def _by_scale(table, grid):
    """Trap 16: DINO's first version."""
    side = math.isqrt(len(table) - 1)
    picture = table[1:].T.reshape(1, -1, side, side)
    picture = F.interpolate(picture, scale_factor=(grid[0] / side, grid[1] / side), mode="bicubic")
    return torch.cat([table[:1], picture[0].flatten(1).T])


def _by_size(table, grid, prefix=1, **how):
    side = math.isqrt(len(table) - prefix)
    picture = table[prefix:].T.reshape(1, -1, side, side)
    return torch.cat([table[:prefix], F.interpolate(picture, size=grid, **{"mode": "bicubic"} | how)[0].flatten(1).T])


def _class_row_too(table, grid):
    return F.interpolate(table.T[None], size=1 + grid[0] * grid[1], mode="linear")[0].T


def _columns_first(table, grid):
    side = math.isqrt(len(table) - 1)
    turned = _by_size(torch.cat([table[:1], table[1:].reshape(side, side, -1).transpose(0, 1).flatten(0, 1)]), grid)
    return turned


FAULTS = {"scale_factor": _by_scale, "height and width swapped": lambda table, grid: _by_size(table, grid[::-1]), "the class row too": _class_row_too,
          "the grid transposed": _columns_first, "smoothed as in timm": lambda table, grid: resize_positions(table, grid, antialias=True),
          "bilinear": lambda table, grid: _by_size(table, grid, mode="bilinear"), "corners": lambda table, grid: _by_size(table, grid, align_corners=True),
          "cut off": lambda table, grid: F.pad(table, (0, 0, 0, 1 + grid[0] * grid[1]))[:1 + grid[0] * grid[1]]}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_resizing_are_caught(fault):
    """Traps 16 and 17."""
    assert not resizes_as_hugging_face(FAULTS[fault])


def test_each_fault_needs_its_own_grid():
    """Square grids do not show a swap, nor the table's own grid smoothing, nor most sizes a scale factor."""
    assert resizes_as_hugging_face(FAULTS["height and width swapped"], grids=[(24, 24), (7, 7)])
    assert resizes_as_hugging_face(FAULTS["smoothed as in timm"], grids=[(14, 14)])
    assert not resizes_as_hugging_face(FAULTS["smoothed as in timm"], grids=[(24, 24)])   # another cubic, also where nothing is smoothed
    assert resizes_as_hugging_face(FAULTS["scale_factor"], grids=[(28, 28), (7, 7), (14, 28)])


def half_positions_are_exact(resize):
    """Trap 16: in half precision the interpolation itself is in float32, and rounded once."""
    table = torch.randn(1 + 14 * 14, 64, generator=torch.Generator().manual_seed(0)).half()
    got = resize(table, (23, 9))
    return got.dtype == torch.float16 and torch.equal(got, resize(table.float(), (23, 9)).half())


def test_half_precision_is_interpolated_in_float32():
    assert half_positions_are_exact(resize_positions) and not half_positions_are_exact(_by_size)
    double = torch.randn(10, 4, dtype=torch.float64)
    assert resize_positions(double, (5, 2)).dtype == torch.float64


def test_rows_in_front_stay_and_the_same_grid_changes_nothing():
    table = torch.randn(3 + 16, 6)
    assert torch.equal(resize_positions(table, (4, 4), prefix=3), table)
    assert torch.equal(resize_positions(table, (7, 2), prefix=3)[:3], table[:3]) and resize_positions(table, (7, 2), prefix=3).shape == (17, 6)
    assert resize_positions(table[3:], (2, 2), prefix=0).shape == (4, 6)
    smooth = resize_positions(table, (2, 2), 3, antialias=True)[3:]
    picture = F.interpolate(table[3:].T.reshape(1, 6, 4, 4), size=(2, 2), mode="bicubic", antialias=True)
    assert torch.equal(smooth, picture[0].flatten(1).T)   # timm's resample_abs_pos_embed


# -- patches: the order of the numbers within a patch, and of the patches

def patches_as_a_convolution(cut):
    """Trap 18."""
    weight, images = torch.randn(7, 3, 2, 2, dtype=torch.float64), torch.randn(2, 3, 4, 6, dtype=torch.float64)
    wanted = F.conv2d(images, weight, stride=2).flatten(2).transpose(1, 2)
    return torch.allclose(F.linear(cut(images, 2), weight.flatten(1)), wanted, atol=1e-12)


def _cut(order):
    def cut(images, p):
        b, c, h, w = images.shape
        return images.reshape(b, c, h // p, p, w // p, p).permute(*order).reshape(b, h // p * (w // p), c * p * p)
    return cut


@pytest.mark.parametrize("order", [(0, 2, 4, 3, 5, 1), (0, 4, 2, 1, 3, 5), (0, 2, 4, 1, 5, 3), (0, 2, 3, 1, 4, 5)], ids=str)
def test_other_orders_are_caught(order):
    assert patches_as_a_convolution(patchify) and patches_as_a_convolution(_cut((0, 2, 4, 1, 3, 5)))
    assert not patches_as_a_convolution(_cut(order))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_every_pixel_is_in_one_patch(size, channels, rows, columns):
    images = torch.arange(float(channels * rows * columns * size * size)).reshape(1, channels, rows * size, columns * size)
    patches = patchify(images, size)
    assert patches.shape == (1, rows * columns, channels * size * size) and sorted(patches.flatten().tolist()) == images.flatten().tolist()
    for k, patch in enumerate(patches[0]):
        i, j = divmod(k, columns)
        assert torch.equal(patch.reshape(channels, size, size), images[0, :, i * size:(i + 1) * size, j * size:(j + 1) * size])


# -- the model: known faults, against Hugging Face's numbers

def logits_as_hugging_face(change, tmp_path, size=0.25):
    """Whether a model, changed after loading, gives Hugging Face's logits."""
    theirs = scatter(hf(hf_config()), size=size)
    theirs.save_pretrained(tmp_path)
    ours = ViT.from_pretrained(tmp_path)
    change(ours)
    images = images_of(SMALL)
    with torch.no_grad():
        wanted = theirs(images).logits
        return bool((ours(images) - wanted).abs().max() < TOLERANCE * max(1, wanted.abs().max().item()))


def _without_biases(model):
    for layer in model.encoder.layers:
        for part in (layer.attention.sublayer.query, layer.attention.sublayer.value):
            part.bias = None


def _norm_around_patches(model):
    model.patches.projection.register_forward_hook(lambda module, given, out: F.layer_norm(out.movedim(1, -1), (12,)).movedim(-1, 1))


def _other_eps(eps):
    def change(model):
        for part in model.modules():
            if isinstance(part, LayerNorm):
                part.eps = eps
    return change


def _no_last_norm(model):
    model.encoder.final_norm = None


def _post_norm(model):
    for layer in model.encoder.layers:
        layer.attention.pre_norm = layer.feed_forward.pre_norm = False


def _class_token_last(model):
    embed = model._embed
    model._embed = lambda images: embed(images).roll(-1, dims=1)


def _tanh_gelu(model):
    for layer in model.encoder.layers:
        layer.feed_forward.sublayer.activation = F.relu


def _mean(model):
    model.config = replace(model.config, pooling="mean")


CHANGES = {"queries and values without bias": _without_biases, "a norm around the patches": _norm_around_patches, "no last norm": _no_last_norm,
           "norms behind the sums": _post_norm, "[CLS] behind the patches": _class_token_last, "another activation": _tanh_gelu, "mean pooling": _mean}


@pytest.mark.parametrize("fault", CHANGES)
def test_faults_of_the_model_are_caught(fault, tmp_path):
    """Trap 18."""
    assert logits_as_hugging_face(lambda model: None, tmp_path) and not logits_as_hugging_face(CHANGES[fault], tmp_path)


@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_another_eps_is_caught_where_the_variance_is_small(eps, tmp_path):
    """Trap 19: with weights of this size the residual stream begins with a variance of a millionth or so."""
    assert logits_as_hugging_face(lambda model: None, tmp_path, 1e-3) and ViTConfig().norm_eps == 1e-12
    assert not logits_as_hugging_face(_other_eps(eps), tmp_path, 1e-3)


# -- forward computes of the last layer what it needs

def lively(**changes):
    return scatter(ViT(replace(SMALL, **changes)), size=0.4).double()


def test_one_row_of_the_last_layer_gives_the_same_numbers_and_gradients():
    for changes in ({}, {"num_layers": 1}, {"qkv_bias": False}, {"num_labels": 0}):
        model, images = lively(**changes), images_of(SMALL).double()
        whole = model.head(model.features(images)[:, 0])
        short = model(images)
        assert torch.allclose(short, whole, atol=1e-11)
        weighting = torch.linspace(-1, 1, whole.numel(), dtype=torch.float64).reshape(whole.shape)
        for a, b in zip(*(torch.autograd.grad((out * weighting).sum(), list(model.parameters()), materialize_grads=True)
                          for out in (short, whole))):
            assert torch.allclose(a, b, atol=1e-11)


def rows_of_the_last_layer(model, images):
    """How many rows its feed-forward network is given, told without a hook."""
    seen, network = [], model.encoder.layers[-1].feed_forward.sublayer
    plain = type(network).forward

    def spy(self, x):
        seen.append(x.shape[1])
        return plain(self, x)
    try:
        type(network).forward = spy
        model(images)
    finally:
        type(network).forward = plain
    return seen[-1]


def test_whoever_watches_sees_all_rows():
    model, images = lively(), images_of(SMALL).double()
    assert rows_of_the_last_layer(model, images) == 1
    with record_attention(model) as seen:
        watched = model(images)
    assert [weights.shape for calls in seen.values() for weights in calls] == [(2, 3, 10, 10)] * 3
    assert torch.allclose(watched, model(images), atol=1e-11)
    last = model.encoder.layers[-1]
    for part in (model.encoder, last, last.attention, last.attention.sublayer.query, last.feed_forward.sublayer.down):
        handle = part.register_forward_hook(lambda module, given, out: None)
        assert rows_of_the_last_layer(model, images) == 10
        handle.remove()
        assert rows_of_the_last_layer(model, images) == 1
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, out: None)
    assert rows_of_the_last_layer(model, images) == 10
    handle.remove()
    assert rows_of_the_last_layer(lively(pooling="mean"), images) == 10


def test_dropout_acts_in_training_only():
    model, images = lively(dropout=0.3, attention_dropout=0.3, num_layers=2), images_of(SMALL, 1).double()
    assert torch.equal(model(images), model(images))
    model.train()
    torch.manual_seed(0)
    many = images.expand(2000, -1, -1, -1)   # each image of a batch has drops of its own
    draws, whole = model(many), model.head(model.features(many)[:, 0])
    assert draws.std(dim=0).min() > 1e-3
    apart = (draws.mean(0) - whole.mean(0)).abs() / ((draws.var(0) + whole.var(0)) / 2000).sqrt()
    assert apart.max() < 4.5 and torch.allclose(draws.std(0), whole.std(0), rtol=0.15)   # the short cut drops as the whole does


# -- properties

@pytest.mark.parametrize("config, count", [(ViTConfig.base(), 86_567_656), (ViTConfig.large(), 304_326_632),
                                           (ViTConfig.base(patch_size=32), 88_224_232), (ViTConfig.base(num_labels=0), 85_798_656)], ids=str)
def test_sizes_on_the_meta_device_are_the_published_ones(config, count):
    with torch.device("meta"):
        model = ViT(config)
        assert sum(parameter.numel() for parameter in model.parameters()) == count
        assert all(parameter.is_meta for parameter in model.parameters())
        assert model(torch.zeros(2, 3, 224, 224)).shape == (2, config.num_labels or 768)
        assert model.features(torch.zeros(2, 3, 192, 256)).shape == (2, 1 + 192 * 256 // config.patch_size**2, config.d_model)


@pytest.mark.parametrize("config", [dict(hidden_size=12, num_attention_heads=3), dict(image_size=20, num_channels=1, qkv_bias=False)], ids=str)
def test_sizes_are_those_of_hugging_face(config):
    theirs = hf(hf_config(**config))
    names = {"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_channels": "channels"}
    ours = ViT(replace(SMALL, num_layers=2, **{names.get(key, key): value for key, value in config.items()}))
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_every_patch_looks_at_every_patch_from_the_first_layer_on():
    model, images = lively(num_layers=1), images_of(SMALL, 1).double().requires_grad_()
    model.features(images)[0, 5].sum().backward()
    assert (images.grad != 0).all()


def test_pooling_is_what_it_says():
    images = images_of(SMALL).double()
    mean = lively(pooling="mean")
    assert torch.allclose(mean(images), mean.head(mean.features(images)[:, 1:].mean(dim=1)), atol=1e-12)
    assert not torch.allclose(mean(images), mean.head(mean.features(images).mean(dim=1)), atol=1e-3)   # without [CLS]
    bare = lively(num_labels=0)
    assert torch.allclose(bare(images), bare.features(images)[:, 0], atol=1e-12) and isinstance(bare.head, nn.Identity)


def test_images_are_independent_and_need_not_be_contiguous():
    model, images = lively(), images_of(SMALL, 3).double()
    assert torch.allclose(model(images), torch.cat([model(image[None]) for image in images]), atol=1e-12)
    for other in (images.contiguous(memory_format=torch.channels_last), images.movedim(1, -1).contiguous().movedim(-1, 1)):
        assert torch.allclose(model(other), model(images), atol=1e-12)
    oblong = images_of(SMALL, 2, (8, 24)).double()
    assert model(oblong).shape == (2, 5) and model.features(oblong).shape == (2, 13, 12)


def test_state_dict_pickle_and_copies():
    model, images = lively(), images_of(SMALL).double()
    fresh = ViT(SMALL).double().eval()
    fresh.load_state_dict(model.state_dict())
    for other in (fresh, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(images), model(images))


def test_the_start_is_that_of_the_authors_code():
    torch.manual_seed(0)
    model = ViT(ViTConfig(image_size=64, patch_size=8, num_labels=100, d_model=128, num_layers=2, num_heads=4, d_ff=256))
    for name, parameter in model.named_parameters():
        if name in ("cls", "position.weight", "patches.projection.weight"):   # N(0, 0.02) cut off at two deviations
            assert parameter.abs().max() <= 0.04 + 1e-7 and abs(parameter.std().item() - 0.0176) < 0.002, name
        elif parameter.dim() == 2:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert 0.99 * bound < parameter.abs().max() <= bound and abs(parameter.std().item() / bound - 3**-0.5) < 0.02, name
        else:
            assert parameter.eq(1.0 if "norm.weight" in name else 0.0).all(), name
    torch.manual_seed(0)
    assert all(map(torch.equal, ViT(model.config).parameters(), model.parameters()))
    state = torch.get_rng_state()
    with torch.device("meta"):
        ViT(model.config)
    assert torch.equal(torch.get_rng_state(), state)


def test_gradients_reach_every_weight():
    for changes in ({}, {"pooling": "mean"}):
        model = ViT(replace(SMALL, **changes))
        model(images_of(SMALL)).square().sum().backward()
        idle = {name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.isfinite().all()}
        assert not idle
        if not changes:
            sent = model.position.weight.grad
            assert (sent.abs().sum(-1) > 0).all()


def test_configs_keep_plain_numbers_and_compare_by_value(unchecked):
    config = ViTConfig(np.int64(12), np.int32(4), channels=np.int64(3), num_labels=5, d_model=12, num_layers=3, num_heads=3, d_ff=20,
                       dropout=np.float32(0.5))
    assert type(config.image_size) is int and type(config.dropout) is float and config == replace(SMALL, dropout=0.5)
    assert len({config, replace(SMALL, dropout=0.5)}) == 1 and SMALL.num_patches == 9
    json.dumps(vars(config))


def test_mean_pooling_has_a_layout_of_its_own(tmp_path):
    for changes in ({"pooling": "mean"}, {"pooling": "mean", "num_labels": 0, "qkv_bias": False, "activation": "silu"}):
        model = scatter(ViT(replace(SMALL, **changes)))
        model.save_pretrained(tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "course_vit"
        back, images = ViT.from_pretrained(tmp_path), images_of(SMALL)
        assert back.config == model.config and torch.equal(back(images), model(images))


# -- files

def rewrite(folder, change=None, drop=(), rename=lambda name: name, add=None, take=()):
    path = folder / "config.json"
    path.write_text(json.dumps({key: value for key, value in (json.loads(path.read_text()) | (change or {})).items() if key not in drop}))
    tensors = load_file(folder / "model.safetensors")
    write_tensors({rename(name): tensor for name, tensor in tensors.items() if name not in take} | (add or {}), folder / "model.safetensors")


def test_old_files(tmp_path):
    """Published folders leave settings out, give sizes as pairs, and hold poolers and mask tokens."""
    theirs = hf(hf_config(image_size=224, patch_size=16, layer_norm_eps=1e-12))
    theirs.save_pretrained(tmp_path)
    mask = {"vit.embeddings.mask_token": torch.zeros(1, 1, 12), "vit.pooler.dense.weight": torch.zeros(12, 12), "vit.pooler.dense.bias": torch.zeros(12)}
    rewrite(tmp_path, {"image_size": [224, 224], "problem_type": None, "_name_or_path": "somewhere", "torch_dtype": "float32"},
            ("patch_size", "qkv_bias", "layer_norm_eps", "hidden_act", "num_channels", "pooler_act", "encoder_stride"), add=mask)
    ours = ViT.from_pretrained(tmp_path)
    images = images_of(ours.config, 1)
    with torch.no_grad():
        assert (ours(images) - theirs(images).logits).abs().max() < TOLERANCE


def test_two_labels_are_what_a_file_without_labels_has(tmp_path):
    theirs = hf(hf_config(num_labels=2))
    theirs.save_pretrained(tmp_path)
    rewrite(tmp_path, {}, ("id2label", "label2id", "num_labels"))
    assert ViT.from_pretrained(tmp_path).config.num_labels == 2


def test_shards(tmp_path):
    theirs = hf(hf_config())
    theirs.save_pretrained(tmp_path, max_shard_size="3KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    images = images_of(SMALL)
    with torch.no_grad():
        assert (ViT.from_pretrained(tmp_path)(images) - theirs(images).logits).abs().max() < TOLERANCE


REFUSALS = [({"model_type": "deit"}, "model_type"), ({"model_type": None}, "model_type"), ({"model_type": ["vit"]}, "model_type"), ({"image_size": [12, 16]}, "image_size"),
            ({"patch_size": [4, 2]}, "patch_size"), ({"patch_size": 5}, "patch_size"), ({"hidden_act": "quick_gelu"}, "hidden_act"),
            ({"hidden_act": None}, "hidden_act"), ({"num_attention_heads": 5}, "num_heads"), ({"hidden_size": 0}, "d_model"),
            ({"layer_norm_eps": -1.0}, "norm_eps"), ({"hidden_dropout_prob": 1.5}, "dropout"), ({"qkv_bias": "yes"}, "qkv_bias"),
            ({"quantization_config": {"bits": 8}}, "quantization_config"), ({"use_swiglu_ffn": True}, "use_swiglu_ffn"),
            ({"num_register_tokens": 4}, "num_register_tokens"), ({"pruned_heads": {"0": [1]}}, "pruned_heads"), ({"is_encoder_decoder": True}, "is_encoder_decoder"),
            ({"auto_map": {"AutoModel": "remote.Model"}}, "auto_map"), ({"num_channels": 1}, "projection"), ({"image_size": 16}, "position"),
            ({"num_hidden_layers": 3}, "layers.2"), ({"id2label": {"0": "a", "1": "b"}}, "head|classifier"), ({"intermediate_size": 21}, "up|intermediate")]


@pytest.mark.parametrize("change, says", REFUSALS, ids=str)
def test_what_a_file_asks_for_and_the_class_has_not_is_refused_by_name(change, says, tmp_path):
    ViT(replace(SMALL, num_layers=2)).save_pretrained(tmp_path)
    ViT.from_pretrained(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(CheckpointError, match=says):
        ViT.from_pretrained(tmp_path)


def test_tensors_that_do_not_fit_are_named(tmp_path):
    ViT(replace(SMALL, num_layers=1)).save_pretrained(tmp_path)
    good = dict(load_file(tmp_path / "model.safetensors"))
    for change, says in (({"vit.embeddings.position_embeddings": torch.zeros(2, 10, 12)}, "position"), ({"decoder.0.weight": torch.zeros(2, 12)}, "decoder.0.weight"),
                         ({"vit.embeddings.cls_token": torch.zeros(12)}, "cls"), ({"classifier.weight": torch.zeros(4, 12)}, "classifier|head"),
                         ({"vit.embeddings.distillation_token": torch.zeros(1, 1, 12)}, "distillation_token")):
        write_tensors(good | change, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=says):
            ViT.from_pretrained(tmp_path)
    write_tensors({name: tensor for name, tensor in good.items() if "query.bias" not in name}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="query.bias"):
        ViT.from_pretrained(tmp_path)
    with pytest.raises(CheckpointError):
        ViT.from_pretrained(tmp_path / "nothing")


def test_a_bert_is_no_vit(tmp_path):
    from transformers import BertConfig, BertModel
    BertModel(BertConfig(vocab_size=9, hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=9)).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="model_type.*'bert'"):
        ViT.from_pretrained(tmp_path)


# -- what is refused

@pytest.mark.parametrize("changes, error, says", [
    ({"image_size": 0}, ValueError, "image_size"), ({"image_size": (224, 224)}, ValueError, "image_size"), ({"patch_size": 5}, ValueError, "patch_size"),
    ({"patch_size": 24}, ValueError, "patch_size"), ({"channels": 0}, ValueError, "channels"), ({"num_labels": -1}, ValueError, "num_labels"),
    ({"num_labels": True}, ValueError, "num_labels"), ({"d_model": 12.0}, ValueError, "d_model"), ({"num_heads": 5}, ValueError, "num_heads"),
    ({"num_layers": 0}, ValueError, "num_layers"), ({"d_ff": 0}, ValueError, "d_ff"), ({"dropout": 1.0}, ValueError, "dropout"),
    ({"attention_dropout": -0.1}, ValueError, "attention_dropout"), ({"norm_eps": math.inf}, ValueError, "norm_eps"), ({"activation": "swish"}, ValueError, "activation"),
    ({"activation": ["gelu"]}, ValueError, "activation"), ({"pooling": "max"}, ValueError, "pooling"), ({"qkv_bias": 1}, TypeError, "qkv_bias")], ids=str)
def test_configs_that_make_no_model(changes, error, says, unchecked):
    with pytest.raises(error, match=says):
        ViTConfig(**vars(SMALL) | changes)


BAD_IMAGES = [(torch.zeros(2, 3, 12, 12, dtype=torch.uint8), TypeError, "uint8.*255"), (torch.zeros(2, 3, 12, 12, dtype=torch.int64), TypeError, "int64"),
              (np.zeros((2, 3, 12, 12), dtype="float32"), TypeError, "ndarray"), (torch.zeros(3, 12, 12), ValueError, "batch, channels, height, width"),
              (torch.zeros(2, 12, 12, 3), ValueError, "12 channels, not 3"), (torch.zeros(2, 1, 12, 12), ValueError, "1 channels, not 3"),
              (torch.zeros(2, 4, 12, 12), ValueError, "4 channels"), (torch.zeros(0, 3, 12, 12), ValueError, "one image"),
              (torch.zeros(2, 3, 14, 12), ValueError, r"patch_size \(4\) must divide the height of images \(14\)"),
              (torch.zeros(2, 3, 12, 15), ValueError, r"width of images \(15\)"), (torch.zeros(2, 3, 0, 12), ValueError, "height"),
              (torch.zeros(2, 3, 12, 12).double(), ValueError, "float64"), (torch.zeros(2, 3, 12, 12, device="meta"), ValueError, "meta")]


@pytest.mark.parametrize("images, error, says", BAD_IMAGES, ids=lambda value: str(getattr(value, "shape", value)))
def test_images_that_are_refused(images, error, says, unchecked):
    model = ViT(SMALL).eval()
    for call in (model, model.features, model.patches):
        with pytest.raises(error, match=says):
            call(images)


def test_other_wrong_arguments(tmp_path, unchecked):
    table = torch.zeros(10, 4)
    for call, error, says in (
            (lambda: ViT({"image_size": 12}), TypeError, "config"), (lambda: ViT.from_pretrained(tmp_path, dtype=torch.int64), TypeError, "dtype"),
            (lambda: PatchEmbedding(0, 3, 8), ValueError, "patch_size"), (lambda: PatchEmbedding(4, 3, 2.0), ValueError, "d_model"),
            (lambda: patchify(torch.zeros(1, 3, 8, 8), 0), ValueError, "patch_size"), (lambda: patchify(torch.zeros(1, 3, 8, 8), 3), ValueError, "patch_size"),
            (lambda: patchify(torch.zeros(8, 8), 2), ValueError, "images"), (lambda: resize_positions(table[:9], (2, 2)), ValueError, "square"),
            (lambda: resize_positions(table, 2), ValueError, "grid"), (lambda: resize_positions(table, (2, 2, 2)), ValueError, "grid"),
            (lambda: resize_positions(table, (0, 2)), ValueError, "grid"), (lambda: resize_positions(table, (2, 1.5)), ValueError, "grid"),
            (lambda: resize_positions(table, (2, 2), prefix=10), ValueError, "prefix"), (lambda: resize_positions(table, (2, 2), prefix=-6), ValueError, "prefix"),
            (lambda: resize_positions(table.long(), (2, 2)), TypeError, "table"), (lambda: resize_positions(table[None], (2, 2)), TypeError, "table"),
            (lambda: resize_positions(table, (2, 2), antialias=1), TypeError, "antialias")):
        with pytest.raises(error, match=says):
            call()


# -- speed

@pytest.mark.bench
def test_forward_is_faster_than_hugging_face(within, tmp_path, unchecked):
    """ViT-B/16, four images of 224 x 224, two threads, with Hugging Face's fastest attention."""
    from transformers import ViTConfig as Theirs, ViTForImageClassification
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        torch.manual_seed(0)
        theirs = ViTForImageClassification(Theirs(num_labels=1000, attn_implementation="sdpa")).eval()
        theirs.save_pretrained(tmp_path)
        ours = ViT.from_pretrained(tmp_path)
        images = images_of(ours.config, 4)
        with torch.inference_mode():
            assert (ours(images) - theirs(images).logits).abs().max() < TOLERANCE
            within("ViT-B/16 forward, of transformers' time", ratio(lambda: ours(images), lambda: theirs(images)), 0.95)
    finally:
        torch.set_num_threads(threads)
