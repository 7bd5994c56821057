"""Our encoders and decoders beside PyTorch's, and a cache, as several test modules need them."""
import torch


def randomized(module, seed=0, std=0.4):
    """Weights without zeros and ones: a bias or gain that is left out would show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(std * torch.randn(parameter.shape, generator=generator))
    return module


def corresponding(ours, theirs):
    """(our parameters, theirs) that are the same in two encoders or two decoders: query, key and value are one matrix there."""
    def attention(a, b):
        for kind in ("weight", "bias"):
            yield [getattr(getattr(a, name), kind) for name in ("query", "key", "value")], getattr(b, f"in_proj_{kind}")
            yield [getattr(a.output, kind)], getattr(b.out_proj, kind)

    def plain(a, b):
        yield [a.weight], b.weight
        yield [a.bias], b.bias

    for layer, twin in zip(ours.layers, theirs.layers, strict=True):
        *attentions, network = blocks = list(layer.children())
        for block, name in zip(attentions, ("self_attn", "multihead_attn")):
            yield from attention(block.sublayer, getattr(twin, name))
        yield from plain(network.sublayer.up, twin.linear1)
        yield from plain(network.sublayer.down, twin.linear2)
        for i, block in enumerate(blocks, start=1):
            yield from plain(block.norm, getattr(twin, f"norm{i}"))
    assert (ours.final_norm is None) == (theirs.norm is None)
    if ours.final_norm is not None:
        yield from plain(ours.final_norm, theirs.norm)


def copy_weights(ours, theirs):
    """Give PyTorch's stack our weights."""
    with torch.no_grad():
        for mine, other in corresponding(ours, theirs):
            other.copy_(torch.cat(mine))
    return theirs


def largest_difference(ours, theirs, call_ours, call_theirs, inputs, kept):
    """Over the outputs at the kept positions, and a sum's gradients by all inputs and all parameters."""
    pairs, found = list(corresponding(ours, theirs)), []
    for call, groups in ((call_ours, [mine for mine, _ in pairs]), (call_theirs, [[other] for _, other in pairs])):
        given = [x.clone().requires_grad_() for x in inputs]
        output = call(*given)[kept]
        weight = torch.sin(torch.arange(output.numel(), dtype=output.dtype)).view_as(output)
        gradients = iter(torch.autograd.grad((output * weight).sum(), [*given, *(p for group in groups for p in group)]))
        found.append([output, *(next(gradients) for _ in given), *(torch.cat([next(gradients) for _ in group]) for group in groups)])
    assert sum(len(mine) for mine, _ in pairs) == len(list(ours.parameters()))
    return max((a - b).abs().max().item() for a, b in zip(*found, strict=True))


class KeyValues:
    """The smallest cache: what came so far, kept in a list."""

    def __init__(self):
        self.kept = []

    @property
    def length(self):
        return self.kept[0].shape[2] if self.kept else 0

    def update(self, key, value):
        self.kept = [torch.cat([old, new], dim=2) for old, new in zip(self.kept, (key, value))] or [key, value]
        return tuple(self.kept)
