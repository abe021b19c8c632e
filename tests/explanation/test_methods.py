"""Every method, for every family, by its definition."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from tests.models.kinds import KINDS, SMALL
from tests.parity.test_every_family import ATTENTIVE, CNNS, FAMILIES, make, picture
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail import UserError, capture
from vitrail.core.layout import TokenLayout
from vitrail.explanation.auto_method import choose_method
from vitrail.explanation.capture import WITHOUT_ATTENTION, find_attentions
from vitrail.explanation.integrated import (
    MAX_DELTA,
    MAX_STEPS,
    SMALL_DELTA,
    IncompleteWarning,
    integrated,
)
from vitrail.explanation.methods import METHODS, explain_tensor, select_methods
from vitrail.explanation.propagation import global_attention
from vitrail.explanation.readout import to_tokens
from vitrail.explanation.rollout import discard_lowest, rollout
from vitrail.layers.attention import Attend
from vitrail.layers.fold import unfold
from vitrail.models.catalogue import build
from vitrail.models.resnet import ResNetConfig
from vitrail.models.vit import ViT, ViTConfig

# three steps are too few, and quick
pytestmark = pytest.mark.filterwarnings("ignore::vitrail.explanation.integrated.IncompleteWarning")
with_attention = pytest.mark.parametrize("family", ATTENTIVE)
every_method = pytest.mark.parametrize("method", METHODS)


def by_method(*quick: str) -> pytest.MarkDecorator:
    """Every method; of those that share a path with one of the quick ones, in the slow part."""
    return pytest.mark.parametrize(
        "method",
        [each if each in quick else pytest.param(each, marks=pytest.mark.slow) for each in METHODS],
    )


# attribution captures, goes back and reads out; gradcam and saliency read a layer and the pixels
one_path_each = by_method("attribution", "gradcam")

CLASSLESS = ("attention", "rollout")
KIND = {name: kind for name, kind in KINDS.items() if kind.num_classes}
CLASSES = torch.tensor([1, 3])
QUICK: dict[str, dict[str, int]] = {"integrated": {"steps": 3}, "smoothgrad": {"samples": 2}}


def shaken(config: ViTConfig, dtype: torch.dtype = torch.float64) -> ViT:
    torch.manual_seed(0)
    model = build(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    assert isinstance(model, ViT)
    return model.to(dtype).eval()


def image(config: ViTConfig, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (2, config.channels, *config.image_size)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def assert_sane(model: nn.Module, x: Tensor, method: str) -> None:
    """A map of numbers for each picture by itself, which follows the class where it may."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = explain_tensor(model, x, method, target=CLASSES, **QUICK.get(method, {}))
    assert found.map.shape == (2, *found.layout.grid)
    assert found.map.dtype == x.dtype
    assert found.map.isfinite().all()
    assert not found.map.requires_grad
    assert found.method == method
    assert found.map.abs().max() > 0
    assert found.map.std() > 0
    other = explain_tensor(model, x, method, target=CLASSES.flip(0), **QUICK.get(method, {}))
    assert torch.equal(other.map, found.map) == (method in CLASSLESS)
    alone = explain_tensor(model, x[1:], method, target=CLASSES[1:], **QUICK.get(method, {}))
    torch.testing.assert_close(alone.map, found.map[1:], rtol=1e-6, atol=1e-9)
    if method in CLASSLESS:
        assert found.target is None
    else:
        assert found.target is not None
        assert torch.equal(found.target, CLASSES)
    # nothing is left behind
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


# occlusion is forward passes alone: one family with windows and one with folds have all its paths;
# integrated and smoothgrad are saliency, which every family has, on several images
DEAR = {
    "occlusion": ("swin", "mobilevitv2"),
    "integrated": ("vit", "mobilevitv2"),
    "smoothgrad": ("vit", "swinv2"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("family", "method"),
    [
        pytest.param(
            family,
            method,
            marks=() if family in DEAR.get(method, FAMILIES) else pytest.mark.slow,
        )
        for family in FAMILIES
        for method in (WITHOUT_ATTENTION if family in CNNS else METHODS)
    ],
)
def test_every_method_for_every_family(family: str, method: str) -> None:
    assert_sane(make(family, torch.float64), picture(family, torch.float64), method)


@pytest.mark.sampled(2)
@one_path_each
@pytest.mark.parametrize("kind", KIND)
def test_every_method_for_every_kind_of_vit(kind: str, method: str) -> None:
    config = KIND[kind]
    assert_sane(shaken(config), image(config), method)


@pytest.mark.sampled(2)
@one_path_each
@pytest.mark.parametrize("size", [(40, 72), (33, 79)])
@pytest.mark.parametrize("family", ["mobilevit", "mobilevitv2"])
def test_maps_that_were_stretched(family: str, size: tuple[int, int], method: str) -> None:
    model = make(family, torch.float64, image_size=size)
    assert_sane(model, torch.randn(2, 3, *size, dtype=torch.float64), method)


@pytest.mark.sampled(2)
@by_method("attribution")
@pytest.mark.parametrize("window_policy", ["paper", "timm", "torchvision", "hf"])
def test_windows_of_every_origin(window_policy: str, method: str) -> None:
    model = make("swin", torch.float64, window_policy=window_policy)
    assert_sane(model, picture("swin", torch.float64), method)


@by_method("attribution")
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_beit_with_either_pool(pool: str, method: str) -> None:
    model = make("beit", torch.float64, pool=pool)
    assert_sane(model, picture("beit", torch.float64), method)


@pytest.mark.sampled(2)
@one_path_each
@with_attention
def test_under_autocast_in_inference_mode_and_without_gradients(family: str, method: str) -> None:
    assert_same_in_every_mode(family, method)


@pytest.mark.sampled(2)
@every_method
def test_every_method_under_autocast_and_in_inference_mode(method: str) -> None:
    assert_same_in_every_mode("swin", method)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", CNNS)
def test_convolutional_networks_too(family: str) -> None:
    assert_same_in_every_mode(family, "gradcam")


def assert_same_in_every_mode(family: str, method: str) -> None:
    model, x = make(family), picture(family)
    plain = explain_tensor(model, x, method, target=CLASSES, **QUICK.get(method, {}))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with torch.inference_mode():
        again = explain_tensor(model, x, method, target=CLASSES, **QUICK.get(method, {}))
    torch.testing.assert_close(again.map, plain.map, rtol=1e-4, atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = explain_tensor(model, x, method, target=CLASSES, **QUICK.get(method, {}))
    assert half.map.isfinite().all()


@pytest.mark.sampled(2)
@every_method
def test_the_likeliest_class_where_none_is_named(method: str) -> None:
    model, x = shaken(SMALL), image(SMALL)
    likeliest = model(x).argmax(dim=1)
    quick = QUICK.get(method, {})
    found, named, every = (
        explain_tensor(model, x, method, target=target, **quick) for target in (None, likeliest, 2)
    )
    assert torch.equal(found.map, named.map)
    if method not in CLASSLESS:
        assert found.target is not None
        assert torch.equal(found.target, likeliest)
        assert every.target is not None
        assert every.target.tolist() == [2, 2]


# an own ViT, from the formulas alone, to hold the methods against


def by_hand(model: ViT, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the attention of every block, with gradients."""
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    config, maps = model.config, []
    heads, dim, eps = config.heads, config.dim, config.norm_eps

    def norm(y: Tensor, name: str) -> Tensor:
        return F.layer_norm(y, (dim,), state[f"{name}.weight"], state[f"{name}.bias"], eps)

    def linear(y: Tensor, name: str) -> Tensor:
        return y @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    kernel, bias = (state[f"patches.projection.{part}"] for part in ("weight", "bias"))
    patches = F.conv2d(x, kernel, bias, stride=config.patch_size).flatten(2).transpose(1, 2)
    y = torch.cat([state["cls"].expand(len(x), -1, -1), patches], 1) + state["positions.table"]
    for block in (f"blocks.{i}" for i in range(config.depth)):
        q, k, v = linear(norm(y, f"{block}.norm1"), f"{block}.attention.qkv").split(dim, dim=-1)
        q, k, v = (part.reshape(*part.shape[:2], heads, -1).transpose(1, 2) for part in (q, k, v))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / (dim // heads) ** 0.5
        maps.append((scores.exp() / scores.exp().sum(-1, keepdim=True)).requires_grad_())
        mixed = torch.einsum("bhij,bhjd->bihd", maps[-1], v).flatten(2)
        y = y + linear(mixed, f"{block}.attention.out")
        hidden = F.gelu(linear(norm(y, f"{block}.norm2"), f"{block}.mlp.fc1"))
        y = y + linear(hidden, f"{block}.mlp.fc2")
    return linear(norm(y, "norm")[:, 0], "head.classes"), maps


def rolled(matrices: list[Tensor]) -> Tensor:
    result = torch.eye(matrices[0].shape[-1], dtype=torch.float64)
    for matrix in matrices:
        result = matrix @ result
    return result


def patches_of(matrix: Tensor) -> Tensor:
    """The class token's row, without itself, on the grid."""
    return matrix[:, 0, 1:].reshape(-1, 4, 6)


def test_relevance_is_the_authors_formula() -> None:
    """arXiv:2103.15679, eq. 5 and 6: R starts as identity, and R = R + E_h[(∇A ⊙ A)⁺] R."""
    config = replace(SMALL, depth=3)
    model, x = shaken(config), image(config)
    logits, maps = by_hand(model, x)
    torch.testing.assert_close(logits, model(x), rtol=0, atol=1e-10)
    gradients = torch.autograd.grad(logits[[0, 1], CLASSES].sum(), maps)
    relevance = torch.eye(25, dtype=torch.float64).expand(2, -1, -1)
    for weights, gradient in zip(maps, gradients, strict=True):
        relevance = relevance + (gradient * weights).clamp(min=0).mean(dim=1) @ relevance
    found = explain_tensor(model, x, "relevance", target=CLASSES)
    torch.testing.assert_close(found.map, patches_of(relevance.detach()), rtol=0, atol=1e-12)
    assert found.map.max() > 1e-4


def test_attribution_is_the_same_rolled_out() -> None:
    config = replace(SMALL, depth=3)
    model, x = shaken(config), image(config)
    logits, maps = by_hand(model, x)
    gradients = torch.autograd.grad(logits[[0, 1], CLASSES].sum(), maps)
    layers = []
    for weights, gradient in zip(maps, gradients, strict=True):
        positive = (gradient * weights).clamp(min=0).mean(dim=1).detach()
        total = positive.sum(dim=-1, keepdim=True)
        rows = torch.where(total > 0, positive / total, 0)
        layer = rows + torch.eye(25)
        layers.append(layer / layer.sum(dim=-1, keepdim=True))
    found = explain_tensor(model, x, "attribution", target=CLASSES)
    torch.testing.assert_close(found.map, patches_of(rolled(layers)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("discard", [0.0, 0.5, 0.9])
def test_rollout_is_the_product_of_normalised_rows(fusion: str, discard: float) -> None:
    """arXiv:2005.00928, eq. 1, with discarding as a share of the whole map."""
    config = replace(SMALL, depth=3)
    model, x = shaken(config), image(config)
    layers = []
    for weights in by_hand(model, x)[1]:
        weights = weights.detach()
        one = {"mean": weights.mean(1), "max": weights.amax(1), "min": weights.amin(1)}[fusion]
        for sample in one:
            flat = sample.view(-1)
            flat[flat.argsort()[: int(len(flat) * discard)]] = 0
        layer = one + torch.eye(25)
        layers.append(layer / layer.sum(dim=-1, keepdim=True))
        torch.testing.assert_close(layers[-1].sum(-1), torch.ones(2, 25, dtype=torch.float64))
    found = explain_tensor(model, x, "rollout", fusion=fusion, discard=discard)
    torch.testing.assert_close(found.map, patches_of(rolled(layers)), rtol=0, atol=1e-12)


def test_discarding_keeps_what_is_highest() -> None:
    weights = torch.rand(2, 3, 4, 4)
    kept = discard_lowest(weights, 0.75)
    assert (kept > 0).flatten(1).sum(1).tolist() == [12, 12]
    assert torch.equal(kept.flatten(1).amax(1), weights.flatten(1).amax(1))
    assert discard_lowest(weights, 0.0) is weights


@pytest.mark.sampled(2)
@with_attention
def test_rollout_keeps_the_whole(family: str) -> None:
    """What is read out is a mixture of all tokens: with what is on prefix tokens it sums to one."""
    model, x = make(family, torch.float64), picture(family, torch.float64)
    total = rollout(model, x).map.sum(dim=(1, 2))
    if any(attend.layout.prefix for attend in find_attentions(model).values()):
        assert ((total > 0) & (total < 1)).all()
    else:
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ["swin", "swinv2", "coatnet", "mobilevit", "mobilevitv2"])
def test_rollout_is_a_product_of_global_matrices(family: str) -> None:
    """The same numbers from dense matrices, stage by stage, with every cell split among the finer
    ones by hand."""
    model, x = make(family, torch.float64), picture(family, torch.float64)
    with capture(model) as maps:
        model(x)
    layouts = [one.layout for one in maps.values()]
    rows, columns = layouts[-1].grid
    read = torch.full((2, 1, rows * columns), 1 / (rows * columns), dtype=torch.float64)
    grid = layouts[-1].grid
    for one in reversed(list(maps.values())):
        read = split(read, grid, one.layout)
        grid = one.layout.grid
        dense = global_attention(one).mean(dim=1)
        mixed = dense + torch.eye(dense.shape[-1])
        read = read @ (mixed / mixed.sum(dim=-1, keepdim=True))
    found = explain_tensor(model, x, "rollout").map
    torch.testing.assert_close(found.flatten(1), read[:, 0], rtol=0, atol=1e-12)


def split(read: Tensor, grid: tuple[int, int], layout: TokenLayout) -> Tensor:
    """Each cell's share to the two by two, or fewer, that it came from."""
    if grid == layout.grid:
        return read
    fine = torch.zeros(2, *layout.grid, dtype=torch.float64)
    coarse = read.view(2, *grid)
    for row in range(grid[0]):
        for column in range(grid[1]):
            down, across = (
                [
                    (i, overlap)
                    for i in range(layout.grid[side])
                    if (overlap := common(place, grid[side], i, layout.grid[side], layout)) > 0
                ]
                for side, place in ((0, row), (1, column))
            )
            whole = sum(a for _, a in down) * sum(b for _, b in across)
            for i, a in down:
                for j, b in across:
                    fine[:, i, j] += coarse[:, row, column] * a * b / whole
    return fine.view(2, 1, -1)


def common(place: int, count: int, other: int, others: int, layout: TokenLayout) -> float:
    """How much of one cell lies in the other: by halving, or evenly where a map was stretched."""
    if layout.fold:
        low, high = (
            max(place / count, other / others),
            min((place + 1) / count, (other + 1) / others),
        )
        return max(high - low, 0.0) if high - low > 1e-12 else 0.0
    return float(other // 2 == place)


# what the head reads, and where its channels are
READ = {
    "swin": ("norm", -1),
    "swinv2": ("norm", -1),
    "coatnet": ("stages.3.0", 1),
    "mobilevit": ("last", 1),
    "mobilevitv2": ("stages.4", 1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", READ)
def test_relevance_is_the_rule_on_global_matrices(family: str) -> None:
    """R = R + (∇A ⊙ A)⁺ R, densely, through padding, shifts, merging, folds and strides."""
    model, x = make(family, torch.float64), picture(family, torch.float64)
    name, channels = READ[family]
    seen: dict[str, Tensor] = {}
    hook = model.get_submodule(name).register_forward_hook(lambda m, a, out: seen.update(y=out))
    with capture(model, differentiable=True) as maps:
        logits = model(x)[[0, 1], CLASSES].sum()
    hook.remove()
    weights = [one.weights for one in maps.values()]
    *gradients, at_read = torch.autograd.grad(logits, [*weights, seen["y"]])
    evidence = (seen["y"] * at_read).sum(channels).clamp(min=0).detach()
    grid = (evidence.shape[1], evidence.shape[2])
    read = (evidence / evidence.sum(dim=(1, 2), keepdim=True)).flatten(1)[:, None]
    for one, gradient in reversed(list(zip(maps.values(), gradients, strict=True))):
        read, grid = split(read, grid, one.layout), one.layout.grid
        positive = (gradient * one.weights).clamp(min=0).detach()
        # a row that all share has the sum of their gradients
        sharing = positive.shape[-1] if positive.shape[-2] == 1 else 1
        read = read + read @ global_attention(replace(one, weights=positive / sharing)).mean(dim=1)
    found = explain_tensor(model, x, "relevance", target=CLASSES).map
    torch.testing.assert_close(found.flatten(1), read[:, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("last", [True, False])
def test_tokens_of_a_layer_come_in_reading_order(last: bool) -> None:
    """As tokens, as a grid or as places of a fold, with channels last or first."""
    size, layout = (48, 64), TokenLayout(grid=(6, 8), stride=8, fold=(2, 2))
    picture = torch.randn(2, 5, 6, 8)
    expected = picture.flatten(2).mT
    places = unfold(picture, 2)
    for x in (picture, places):
        tokens, found = to_tokens(x.movedim(1, -1) if last else x, [layout], size)
        assert torch.equal(tokens, expected)
        assert found == layout
    shifted = TokenLayout(grid=(6, 8), stride=8, window=(2, 2), shift=(1, 1))
    tokens, found = to_tokens(picture.movedim(1, -1) if last else picture, [shifted], size)
    assert torch.equal(tokens, expected)
    assert found == TokenLayout(grid=(6, 8), stride=8)
    prefixed = TokenLayout(grid=(6, 8), stride=8, prefix=2)
    sequence = torch.randn(2, 50, 5)
    assert to_tokens(sequence, [prefixed], size) == (sequence, prefixed)
    assert to_tokens(torch.zeros(2, 5, 2, 3), [prefixed], size)[1].grid == (2, 3)
    with pytest.raises(UserError, match="tokens of no attention"):
        to_tokens(torch.zeros(2, 49, 5), [prefixed], size)


@pytest.mark.parametrize("family", ["mobilevit", "mobilevitv2"])
def test_tokens_that_may_be_folded_or_not_are_not_guessed(family: str) -> None:
    """A grid of 4x6 has four places of six patches as well."""
    model, x = make(family), picture(family)
    assert explain_tensor(model, x, "gradcam", layer="stages.3.1").map.shape == (2, 4, 6)
    with pytest.raises(UserError, match=r"may be folded.*take stages\.3\.1"):
        explain_tensor(model, x, "gradcam", layer="stages.3.1.blocks.0")
    assert explain_tensor(model, x, "gradcam", layer="stages.2.1.blocks.0").map.shape == (2, 8, 12)


def test_raw_attention_is_one_row() -> None:
    model, x = shaken(SMALL), image(SMALL)
    maps = by_hand(model, x)[1]
    found = explain_tensor(model, x, "attention").map
    torch.testing.assert_close(found, patches_of(maps[1].mean(1)).detach(), rtol=0, atol=1e-12)
    found = explain_tensor(model, x, "attention", layer="blocks.0", head=3, query=(2, 5)).map
    row = maps[0][:, 3, 1 + 2 * 6 + 5, 1:].detach()
    torch.testing.assert_close(found.flatten(1), row, rtol=0, atol=1e-12)
    assert torch.equal(explain_tensor(model, x, "attention", layer=0, head=3, query=18).map, found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family in ("vit", "beit", "swin") else pytest.mark.slow)
        for family in FAMILIES
    ],
)
def test_integrated_gradients_are_complete_or_say_by_how_much_not(family: str) -> None:
    """Patches sum to the difference of the logits at both ends (arXiv:1703.01365, axiom 1)."""
    model, x = make(family, torch.float64), picture(family, torch.float64)
    with torch.no_grad():
        ends = model(x) - model(torch.full_like(x, 0.25))
    difference = ends[[0, 1], CLASSES]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", IncompleteWarning)
        found = explain_tensor(model, x, "integrated", target=CLASSES, baseline=0.25)
    allowed = (MAX_DELTA * difference.abs()).clamp(min=SMALL_DELTA)
    missing = found.map.sum(dim=(1, 2)) - difference
    assert bool((missing.abs() <= allowed).all()) is not bool(warned)
    assert (missing.abs() <= 2 * allowed).all()
    assert found.delta is not None
    torch.testing.assert_close(found.delta, missing)


class Steep(nn.Module):
    """All that it computes happens in a small part of the way, which few points miss."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = Attend(TokenLayout(grid=(1, 2), stride=4))
        self.register_buffer("steepness", torch.tensor(40.0))

    def forward(self, x: Tensor) -> Tensor:
        logit = (self.get_buffer("steepness") * (x.mean(dim=(1, 2, 3)) - 0.4)).tanh()
        return torch.stack([logit, -logit], dim=1)


def test_steps_are_added_until_integrated_gradients_are_complete() -> None:
    model, x = Steep().eval(), torch.ones(2, 1, 4, 8, dtype=torch.float64)
    x[1] = 0.3  # this one ends before it is steep
    target = torch.tensor([0, 1])
    with pytest.warns(
        IncompleteWarning, match=r"miss the difference of the logits by \d+% on 1 of 2"
    ):
        few = integrated(model, x, target, steps=4)
    assert few.delta is not None
    assert float(few.delta[0].abs()) > 0.1
    calls: list[int] = []
    handle = model.register_forward_hook(lambda m, args, out: calls.append(len(args[0])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        enough = integrated(model, x, target)
    handle.remove()
    assert enough.delta is not None
    assert float(enough.delta.abs().max()) < 0.1
    assert calls.count(1) > 0  # the image that was complete is not computed again
    assert sum(calls) <= 2 * (2 + 2 * MAX_STEPS)
    model.get_buffer("steepness").fill_(1e6)  # no number of points will do: bounded, and said
    with pytest.warns(IncompleteWarning, match="use more steps"):
        integrated(model, x, target)


@pytest.mark.parametrize("family", ["vit", "swin"])  # one of either choice
def test_auto_is_chosen_by_the_layout_and_says_what_it_is(family: str) -> None:
    model, x = make(family), picture(family)
    found = explain_tensor(model, x, target=CLASSES)
    assert found.method == choose_method(model).method
    expected = METHODS[found.method](model, x, CLASSES)
    torch.testing.assert_close(found.map, expected.map)


@pytest.mark.parametrize(
    ("fields", "method", "reason"),
    [
        ({}, "attribution", "the head reads the class token"),
        ({"registers": 2}, "attribution", "the head reads the class token"),
        ({"pool": "mean"}, "smoothgrad", "the head reads the patches"),
        ({"pool": "mean", "class_token": False, "registers": 2}, "smoothgrad", "reads the patches"),
        ({"pool": "cls+mean"}, "smoothgrad", "the head reads the patches"),
        (
            {"stem": ResNetConfig(blocks=(), width=8, groups=4), "patch_size": 2},
            "smoothgrad",
            "convolut",
        ),
    ],
)
def test_auto_asks_what_the_head_reads_and_how_patches_mix(
    fields: dict[str, Any], method: str, reason: str
) -> None:
    choice = choose_method(build(replace(SMALL, **fields)).eval())
    assert choice.method == method
    assert reason in choice.reason


def test_windows_folds_and_convolutions_are_reasons_too() -> None:
    choices = {family: choose_method(make(family)) for family in FAMILIES}
    assert {family for family, choice in choices.items() if choice.method == "attribution"} == {
        "vit"
    }
    for family, reason in {
        "swin": "windows", "swinv2": "windows", "mobilevit": "fold", "mobilevitv2": "fold",
        "coatnet": "convolutions", "beit": "reads the patches",
        "resnet": "convolutions", "bit": "convolutions", "mobilenetv2": "convolutions",
    }.items():  # fmt: skip
        assert reason in choices[family].reason


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", CNNS)
def test_a_convolutional_network_says_that_it_has_no_attention(family: str) -> None:
    model, x = make(family), picture(family)
    for method in set(METHODS) - set(WITHOUT_ATTENTION):
        with pytest.raises(UserError, match="a convolutional network has no attention"):
            explain_tensor(model, x, method)
        with pytest.raises(UserError, match=r"explain it by gradcam, hirescam, .* or occlusion"):
            select_methods(method, model, {}, "model")
    with pytest.raises(UserError, match="has no attention"), capture(model):
        model(x)
    assert tuple(select_methods("all", model, {}, "model")[0]) == WITHOUT_ATTENTION
    headless = make(family, num_classes=0)
    with pytest.raises(UserError, match="no head and no attention"):
        select_methods("auto", headless, {}, "model")
    with pytest.raises(UserError, match="no head and no attention"):
        select_methods("gradcam", headless, {}, "model")


def test_without_a_head_auto_explains_no_class() -> None:
    model = build(replace(SMALL, num_classes=0)).eval()
    assert explain_tensor(model, torch.randn(1, 3, 32, 48)).method == "rollout"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: explain_tensor(m.train(), x), "call model.eval"),
        (lambda m, x: explain_tensor(m, x, "gradcan"), "did you mean gradcam"),
        (lambda m, x: explain_tensor(m, x, "rollout", layer=3), "it has fusion, discard, residual"),
        (lambda m, x: explain_tensor(m, x, "relevance", layer=3), "it has none"),
        (lambda m, x: explain_tensor(m, x, target=5), "classes 0 to 4"),
        (lambda m, x: explain_tensor(m, x, target=-1), "classes 0 to 4"),
        (lambda m, x: explain_tensor(m, x, target=torch.zeros(3).long()), "for each of 2 images"),
        (
            lambda m, x: explain_tensor(m, x, "gradcam", layer="blocks.7"),
            "last ones are blocks.0, blocks.1",
        ),
        (lambda m, x: explain_tensor(m, x, "gradcam", layer="head"), "must return a map of tokens"),
        (lambda m, x: explain_tensor(m, x, "gradcam", layer="blocks"), "no tensor that depends"),
        (lambda m, x: explain_tensor(m, x, "attention", layer=2), "layer must be from 0 to 1"),
        (
            lambda m, x: explain_tensor(m, x, "attention", layer="blocks.2"),
            "no attention is called",
        ),
        (lambda m, x: explain_tensor(m, x, "attention", head=4), "must be from 0 to 3, got 4"),
        (lambda m, x: explain_tensor(m, x, "attention", query=(9, 9)), "query must be a patch"),
        (lambda m, x: explain_tensor(m, x, "rollout", discard=1.0), "discard is 1.0"),
        (
            lambda m, x: explain_tensor(m, x, "integrated", steps=0),
            "steps must be at least 1, got 0",
        ),
        (
            lambda m, x: explain_tensor(m, x, "smoothgrad", samples=0),
            "samples must be at least 1, got 0",
        ),
        (lambda m, x: explain_tensor(m, x, "smoothgrad", noise=-1.0), "noise must be from 0 to 1"),
        (
            lambda m, x: explain_tensor(m, x, "occlusion", window=0.0),
            "window must be a share.* got 0.0",
        ),
        (
            lambda m, x: explain_tensor(m, x, "occlusion", step=2.0),
            "step must be a share.* got 2.0",
        ),
        (lambda m, x: explain_tensor(m, x, "rollout", target="cat"), "this model has no labels"),
        (lambda m, x: explain_tensor(cast(nn.Module, torch.compile(m)), x), "before torch.compile"),
        (
            lambda m, x: explain_tensor(nn.Flatten().eval(), x, "rollout"),
            "none of the known dialects",
        ),
    ],
)
def test_mistakes_get_one_sentence(
    call: Callable[[nn.Module, Tensor], object], message: str
) -> None:
    model = ViT(SMALL).eval()
    with pytest.raises(UserError, match=message):
        call(model, torch.zeros(2, 3, 32, 48))


def test_a_layer_that_does_not_look_at_the_picture_is_refused() -> None:
    model = make("beit")
    for trains in (True, False):
        model.requires_grad_(trains)
        with pytest.raises(UserError, match="no tensor that depends on the image"):
            explain_tensor(model, picture("beit"), "gradcam", layer="blocks.0.relative")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["attention", "rollout", "relevance", "attribution"])
def test_attention_to_pictures_of_another_size_has_no_place(method: str) -> None:
    model = make("mobilevit")
    with pytest.raises(UserError, match="image_size"):
        explain_tensor(model, torch.zeros(1, 3, 64, 64), method)


def test_grad_cam_knows_pictures_of_any_size_that_a_model_reads() -> None:
    found = explain_tensor(make("mobilevit"), torch.randn(1, 3, 128, 160), "gradcam")
    assert found.layout == TokenLayout(grid=(4, 5), stride=32)
