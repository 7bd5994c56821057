"""What right answers to the exercises of chapter 25 must satisfy."""
import torch

from transformer_course.toolbox.exercises import Case
from transformer_course.transformer.transformer import Transformer, TransformerConfig

__all__ = ["EXERCISES"]


def _count_case(says, *sizes, **flags):
    """A config, and what its model on the meta device counts."""
    config = TransformerConfig(*sizes, **flags)
    with torch.device("meta"):
        expected = sum(parameter.numel() for parameter in Transformer(config).parameters())
    return Case(says, args=(config,), expected=expected)


def _batch_case(says, sentences, read, asked, mask):
    def holds(outcome):
        expected = [torch.tensor(rows) for rows in (read, asked, mask)]
        tensors = [torch.as_tensor(part) for part in outcome]
        return len(tensors) == 3 and all(a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
                                         for a, b in zip([*tensors[:2], tensors[2].bool()], [*expected[:2], expected[2].bool()]))
    return Case(says, args=(sentences, 1, 2, 0), expected=holds)


def _untied(seed=0):
    """A small untied model and two batches of ids."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(TransformerConfig(6, 7, 9, 3, 5, 1, 1, dropout=0.0, max_len=8))
    return model, torch.tensor([[1, 4, 5]]), torch.tensor([[0, 3, 6, 2]])


def _scores_with_the_targets_table(tie):
    model, source, target = _untied()
    before, states = model.target_embedding.weight.detach().clone(), []
    tie(model)
    model.decoder.register_forward_hook(lambda part, inputs, output: states.append(output))
    logits = model(source, target)
    return torch.equal(model.target_embedding.weight, before) and torch.allclose(logits, states[0] @ before.T, atol=1e-5)


def _stays_tied_in_training(tie):
    model, source, target = _untied()
    tie(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(source, target).square().sum().backward()
    optimizer.step()
    states = []
    model.decoder.register_forward_hook(lambda part, inputs, output: states.append(output))
    logits = model(source, target)
    return torch.allclose(logits, states[0] @ model.target_embedding.weight.T, atol=1e-5)


def _one_matrix_fewer(tie):
    model, _, _ = _untied()
    before = sum(parameter.numel() for parameter in model.parameters())
    tie(model)
    return before - sum(parameter.numel() for parameter in model.parameters()) == 7 * 9


def _leaves_the_source_alone(tie):
    model, source, _ = _untied()
    with torch.no_grad():
        before = model.encode(source)
        tie(model)
        return torch.equal(model.encode(source), before) and model.source_embedding.weight.shape == (6, 9)


EXERCISES = {
    "25.parameters": [
        _count_case("a tied model with as many encoder as decoder layers is counted", 11, 11, 8, 2, 16, 2, 2, tie_embeddings=True),
        _count_case("encoder layers and decoder layers are counted apart", 11, 11, 8, 2, 16, 3, 1, tie_embeddings=True),
        _count_case("untied, there are two tables and an output", 11, 13, 9, 3, 16, 2, 2),
        _count_case("pre-norm adds a norm behind each stack", 11, 11, 8, 2, 16, 2, 2, pre_norm=True, tie_embeddings=True),
        _count_case("pre-norm and untied together", 5, 7, 9, 3, 5, 1, 3, pre_norm=True),
    ],
    "25.batch": [
        _batch_case("one sentence gets BOS in front where it is read, EOS behind where it is asked for", [[7, 8, 9]],
                    [[1, 7, 8, 9]], [[7, 8, 9, 2]], [[1, 1, 1, 1]]),
        _batch_case("a shorter sentence is padded behind, with -100 where nothing is asked", [[7, 8, 9], [5]],
                    [[1, 7, 8, 9], [1, 5, 0, 0]], [[7, 8, 9, 2], [5, 2, -100, -100]], [[1, 1, 1, 1], [1, 1, 0, 0]]),
        _batch_case("a token that has the id of the padding is still a token", [[0, 4], [3]],
                    [[1, 0, 4], [1, 3, 0]], [[0, 4, 2], [3, 2, -100]], [[1, 1, 1], [1, 1, 0]]),
        _batch_case("an empty sentence is BOS, and EOS is asked", [[], [6]],
                    [[1, 0], [1, 6]], [[2, -100], [6, 2]], [[1, 0], [1, 1]]),
    ],
    "25.crossing": [Case("two attentions and a feed-forward network: 8 n^2 d against 32 n d^2, at width 512", expected=2048)],
    "25.tie": [
        Case("the output's scores are dot products with the target's table, which stays as it was", expected=_scores_with_the_targets_table),
        Case("after a step of training they still are", expected=_stays_tied_in_training),
        Case("the model has one matrix fewer", expected=_one_matrix_fewer),
        Case("the source's side stays as it was", expected=_leaves_the_source_alone),
    ],
}
