"""The walk: every number of every step is computed again by hand, for every kind of model."""

from functools import cache

import pytest
import torch
from tests.serving.small_models import ATTENTIVE, image_tensor, model_of
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail import capture
from vitrail.core.errors import UserError
from vitrail.explanation.attention_levels import count_heads
from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.hooks import forward_hooks, token_layouts
from vitrail.explanation.source_lines import PACKAGE
from vitrail.explanation.walk import STEP_IDS, Walk, walk
from vitrail.explanation.walk_record import Step
from vitrail.models.model import Model

# they differ from another one behind their last attention alone, or in names
AFTERWARDS = (
    "vit, class and mean", "vit, mean pooling", "vit, no head", "labels", "several labels",
    "headless swin",
)  # fmt: skip
every_model = pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[pytest.mark.slow] if k in AFTERWARDS else []) for k in ATTENTIVE],
)


@cache
def walks(model: Model) -> list[tuple[Walk, AttentionMap]]:
    """Through the first and the last attention, a patch and the first token, in two heads."""
    image = image_tensor(model)
    names = list(token_layouts(model))
    with capture(model) as maps, torch.no_grad():
        model(image)
    found = []
    for place in sorted({0, len(names) // 2, len(names) - 1}):
        layout, heads = token_layouts(model)[names[place]], count_heads(model, names[place])
        last = (layout.grid[0] - 1, layout.grid[1] - 1)
        for head, query in ((0, {"token": 0}), (heads - 1, {"patch": last})):
            steps = walk(model, image, attention=place, head=head, **query)
            found.append((steps, maps[names[place]]))
    return found


def value(step: Step, name: str) -> Tensor:
    return step.values[name].numbers.double()


def close(one: Tensor, other: Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=atol)


@pytest.mark.sampled(2)
@every_model
def test_the_softmax_of_the_scores_are_the_captured_weights(kind: str) -> None:
    for found, one in walks(model_of(kind)):
        query, weights = found.query, one.grouped()[0, found.query.group, found.query.head]
        row = weights[0 if one.layout.separable else query.place]
        close(value(found.step("scores"), "scores").softmax(dim=0), row)
        close(value(found.step("softmax"), "weights"), row)
        facts = found.step("softmax").facts
        assert facts["largest"] == pytest.approx(float(row.max()), rel=1e-4)
        assert facts["largest_token"] == int(query.keys[int(row.argmax())])
        # a row over keys, in the cells where the map has them
        grid = one.on_grid(query.token)[0, query.head].flatten()
        for token, weight in zip(query.keys.tolist(), row.tolist(), strict=True):
            if token >= one.layout.prefix:
                assert grid[token - one.layout.prefix].item() == pytest.approx(weight, rel=1e-4)


@pytest.mark.sampled(2)
@every_model
def test_the_weighted_sum_is_what_attention_gives(kind: str) -> None:
    for found, one in walks(model_of(kind)):
        step = found.step("sum")
        close(value(step, "sum"), value(step, "output"))
        if not one.layout.separable:
            inputs = value(found.step("out"), "heads").unflatten(0, (one.weights.shape[-3], -1))
            close(inputs[found.query.head], value(step, "output"))


@every_model
def test_queries_meet_keys_as_the_equation_has_it(kind: str) -> None:
    for found, one in walks(model_of(kind)):
        if one.layout.separable:
            continue
        qkv, scores = found.step("qkv"), found.step("scores")
        product = (value(qkv, "q") * value(qkv, "k")).sum() * scores.facts["scale"]
        assert float(value(scores, "products")[found.query.place]) == pytest.approx(
            float(product), rel=1e-4, abs=1e-5
        )
        bias = value(found.step("bias"), "bias") if scores.facts["has_bias"] else 0
        close(value(scores, "products") + bias, value(scores, "scores"))
        assert ("B" in scores.equation) == scores.facts["has_bias"]


@every_model
def test_projections_are_those_of_the_weights(kind: str) -> None:
    model = model_of(kind)
    for found, one in walks(model):
        attention = model.get_submodule(found.query.attention)
        out, step = attention.get_submodule("out"), found.step("out")
        weight, bias = (p.detach().flatten(1 if p.ndim > 1 else 0) for p in out.parameters())
        close(F.linear(value(step, "heads").float(), weight, bias), value(step, "projected"))
        if one.layout.separable or "input" not in found.step("qkv").values:
            continue
        inputs, qkv = value(found.step("qkv"), "input").float(), attention.get_submodule("qkv")
        whole = F.linear(inputs, qkv.get_parameter("weight"), getattr(qkv, "bias", None))
        keys = whole.chunk(3)[1].unflatten(0, (one.weights.shape[-3], -1))[found.query.head]
        if getattr(attention, "logit_scale", None) is None:
            close(keys, value(found.step("qkv"), "k"))
        else:
            close(F.normalize(keys, dim=0), value(found.step("qkv"), "k"))


@every_model
def test_both_halves_of_the_block_add_up(kind: str) -> None:
    model = model_of(kind)
    for found, _ in walks(model):
        name = found.query.attention.rpartition(".")[0]
        block = model.get_submodule(name)
        out, mlp = found.step("out"), found.step("mlp")
        branch = value(out, "projected")
        if out.facts["norm_after"]:
            branch = value(found.step("block.norm1"), "after")
        if out.facts["scaled"]:
            branch = branch * block.get_parameter("scale1.factor").double()
        if out.facts["has_shortcut"]:
            close(value(out, "residual") + branch, value(out, "result"))
        close(value(mlp, "residual"), value(out, "result"))
        branch = value(mlp, "output")
        if mlp.facts["norm_after"]:
            branch = value(found.step("block.norm2"), "after")
        if mlp.facts["scaled"]:
            branch = branch * block.get_parameter("scale2.factor").double()
        close(value(mlp, "residual") + branch, value(mlp, "result"))


@every_model
def test_norms_are_those_of_their_equation(kind: str) -> None:
    model = model_of(kind)
    for found, _ in walks(model):
        name = found.query.attention.rpartition(".")[0]
        for part in ("norm1", "norm2"):
            step = found.step(f"block.{part}")
            norm = model.get_submodule(f"{name}.{part}")
            mean, variance = value(step, "mean"), value(step, "variance")
            weight, bias = (p.detach().double() for p in norm.parameters())
            normed = (value(step, "before") - mean) / (variance + step.facts["eps"]).sqrt()
            close(normed * weight + bias, value(step, "after"))


@pytest.mark.sampled(2)
@every_model
def test_the_head_gives_the_logits_of_the_model(kind: str) -> None:
    model = model_of(kind)
    image = image_tensor(model)
    found = walk(model, image)
    with torch.no_grad():
        logits = model(image)
    assert torch.equal(found.logits, logits)
    if not model.config.num_classes:
        close(value(found.step("pool"), "features"), logits[0])
        assert found.steps[-1].id in ("pool", "norm")
        return
    step = found.steps[-1]
    assert step.id == "head"
    close(value(step, "logits"), logits[0])
    if not step.facts["distilled"]:
        with torch.no_grad():
            close(model.get_submodule("head")(value(step, "features").float()[None])[0], logits[0])
            close(value(step, "features"), model.features(image)[0])
    assert step.facts["best"] == int(logits.argmax())


@pytest.mark.sampled(2)
@every_model
def test_patches_are_projected_and_positions_added(kind: str) -> None:
    model = model_of(kind)
    ids = {one.id for one in walk(model, image_tensor(model)).steps}
    assert ("patches" in ids) == hasattr(model, "patches")
    for found, _ in walks(model) if "projection" in ids else []:
        step = found.step("projection")
        conv = model.get_submodule("patches.projection")
        assert isinstance(conv, nn.Conv2d)
        if not step.facts["normed"]:
            by_hand = F.linear(value(step, "patch").float(), conv.weight.flatten(1), conv.bias)
            close(by_hand, value(step, "embedding"))
        if "positions" in ids:
            added = found.step("positions")
            close(value(added, "embedding") + value(added, "position"), value(added, "sum"))
            with torch.no_grad():
                embedded = model.embed(image_tensor(model))[0]  # type: ignore[operator]
            close(value(added, "sum"), embedded[found.query.token])


@every_model
def test_every_step_has_an_equation_a_shape_and_a_line_of_this_package(kind: str) -> None:
    model = model_of(kind)
    for found, _ in walks(model):
        ids = [one.id for one in found.steps]
        assert len(ids) == len(set(ids))
        assert set(ids) <= set(STEP_IDS)
        for step in found.steps:
            assert step.equation
            assert step.shape
            assert step.code is not None, step.id
            lines = (PACKAGE / step.code.file).read_text(encoding="utf-8").splitlines()
            assert lines[step.code.line - 1].strip() == step.code.text
            for name, one in step.values.items():
                assert torch.isfinite(one.numbers.double()).all(), (step.id, name)
                if one.tokens is not None:
                    assert len(one.tokens) == one.numbers.numel()


FAMILY_STEPS = {
    "vit": {"patches", "projection", "class_token", "positions"},
    "vit, hybrid": {"image", "stem", "projection"},
    "vit, relative positions": {"bias"},
    "beit": {"class_token", "bias"},
    "swin": {"embed_norm", "window", "bias", "merge"},
    "swinv2": {"window", "bias", "merge"},
    "mobilevit": {"stem", "conv", "local", "unfold", "fold", "last"},
    "mobilevitv2": {"stem", "conv", "local", "unfold", "fold"},
    "coatnet": {"stem", "conv", "downsample", "bias"},
}


@pytest.mark.parametrize("kind", FAMILY_STEPS)
def test_families_have_their_own_steps(kind: str) -> None:
    model = model_of(kind)
    seen = {one.id for found, _ in walks(model) for one in found.steps}
    assert FAMILY_STEPS[kind] <= seen
    foreign = {"window", "merge", "unfold", "downsample", "class_token", "stem"}
    assert not (seen - FAMILY_STEPS[kind]) & (foreign - {"class_token"})


CNN_STEPS = {
    "resnet": ["image", "stem", "earlier", "residual", "later", "pool", "head"],
    "bit": ["image", "stem", "earlier", "residual", "later", "norm", "pool", "head"],
    "mobilenetv2": ["image", "stem", "earlier", "residual", "later", "last", "pool", "head"],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", CNN_STEPS)
def test_a_cell_of_a_convolutional_network_is_followed_through_a_block(kind: str) -> None:
    model = model_of(kind)
    image, blocks = image_tensor(model), model.blocks_by_depth()
    seen = dict(zip(blocks, model.intermediates(image), strict=True))
    found = walk(model, image, attention=1, patch=(1, 2))
    assert [step.id for step in found.steps] == CNN_STEPS[kind]
    assert all(step.code is not None for step in found.steps)
    name = list(blocks)[1]
    step = found.step("residual")
    assert step.facts["name"] == name
    close(value(step, "result"), seen[name][0, :, 1, 2])
    parts = [part for part in ("conv2", "filter") if part in step.values]
    assert len(parts) == 1
    close(found.logits, model(image))
    first, last = (walk(model, image, attention=place) for place in (0, len(blocks) - 1))
    assert "earlier" not in [step.id for step in first.steps]
    assert "later" not in [step.id for step in last.steps]
    with pytest.raises(UserError, match=f"block must be from 0 to {len(blocks) - 1}"):
        walk(model, image, attention=len(blocks))


STAGED = ("swin", "swinv2", "mobilevit", "mobilevitv2", "coatnet", "resnet", "bit", "mobilenetv2")


@pytest.mark.parametrize("kind", STAGED)
def test_the_blocks_after_have_the_shape_of_the_last_one(kind: str) -> None:
    model = model_of(kind)
    image, blocks = image_tensor(model), model.blocks_by_depth()
    names, seen = [name for name in blocks if name != "last"], dict[str, tuple[int, ...]]()
    with forward_hooks(model, block=lambda name, x: seen.update({name: tuple(x.shape[1:])})):
        model(image)
    assert walk(model, image).step("later").shape == seen[names[-1]] != seen[names[0]]


def test_the_equation_of_a_residual_block_gives_its_result() -> None:
    for kind, place in (("resnet", 2), ("bit", 2)):
        model = model_of(kind)
        found = walk(model, image_tensor(model), attention=place, patch=(1, 2))
        step, came = found.step("residual"), value(found.step("earlier"), "token")
        assert not step.facts["projected"]
        total = came + value(step, "conv3")
        inner = {
            "resnet": "y = ReLU(x + BN(conv₃(ReLU(BN(conv₂(ReLU(BN(conv₁(x)))))))))",
            "bit": "y = x + conv₃(ReLU(GN(conv₂(ReLU(GN(conv₁(ReLU(GN(x)))))))))",
        }
        assert step.equation == inner[kind]
        close(F.relu(total) if kind == "resnet" else total, value(step, "result"))


def test_merged_cells_are_the_four_of_the_finer_grid() -> None:
    model = model_of("swin")
    place = next(i for i, name in enumerate(token_layouts(model)) if name.startswith("stages.1"))
    found = walk(model, image_tensor(model), attention=place, patch=(1, 2))
    finer: list[Tensor] = []
    handle = model.get_submodule("stages.1.merge").register_forward_hook(
        lambda module, args, output: finer.append(args[0])
    )
    with torch.no_grad():
        model(image_tensor(model))
    handle.remove()
    cells = torch.cat([finer[0][0, 2 + r, 4 + c] for c in (0, 1) for r in (0, 1)])
    close(value(found.step("merge"), "cells"), cells)


def test_windows_hold_the_cells_that_they_say() -> None:
    model = model_of("swin")
    found = walk(model, image_tensor(model), attention=1, patch=(5, 3))
    facts = found.step("window").facts
    assert facts["window"] == [4, 4]
    assert facts["shift"] == [2, 2]
    # rolled by 2, the cell (5, 3) is at (3, 1): the first window
    assert (facts["row"], facts["column"]) == (0, 0)
    assert found.query.token in found.query.keys.tolist()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"attention": 9}, "block must be from 0 to 1, got 9"),
        ({"attention": -1}, "block must be from 0 to 1"),
        ({"head": 4}, "head of blocks.0.attention must be from 0 to 3"),
        ({"head": -1}, "head of blocks.0.attention must be from 0 to 3, got -1"),
        ({"patch": (4, 0)}, r"patch must be from \[0, 0\] to \[3, 5\]"),
        ({"token": 25}, "token must be from 0 to 24"),
    ],
)
def test_mistakes_are_one_sentence(options: dict[str, int], sentence: str) -> None:
    model = model_of("labels")
    with pytest.raises(UserError, match=sentence):
        walk(model, image_tensor(model), **options)  # type: ignore[arg-type]


def test_nothing_stays_hooked() -> None:
    model = model_of("swin")
    walk(model, image_tensor(model))
    assert not any(module._forward_hooks for module in model.modules())
