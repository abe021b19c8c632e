"""Images packed into one sequence get what each gets alone from the model loaded at its size."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.models.kinds import KINDS, SMALL, perturbed
from tests.parity.test_every_family import CONFIGS
from vitrail import UserError, create, load
from vitrail.inference.merging import merge_tokens
from vitrail.models.catalogue import build
from vitrail.models.packing import (
    add_branch,
    check_packable,
    forward_block,
    packed_both_heads,
    packed_features,
    packed_logits,
    packed_tokens,
)

REFUSED = ("relative positions", "hybrid", "hybrid, larger patches")
RECORDS = {name: config for name, config in KINDS.items() if name not in REFUSED} | {
    "registers and distilled": replace(SMALL, registers=3, distilled=True),
    "mean before the norm": replace(SMALL, pool="mean", final_norm="pooled", registers=1),
    "registers with positions": replace(SMALL, registers=2, prefix_positions=3),
    "deit 3": replace(SMALL, prefix_positions=0, layer_scale=0.1),
}
CHECKED = ("plain", "mean pooling", "registers and distilled", "class and mean")
SIZES = [(32, 48), (24, 24), (8, 8), (16, 72), (24, 24)]


def pictures(config: Any, sizes: list[tuple[int, int]], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(config.channels, *size, generator=generator).to(dtype) for size in sizes]


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    return bool((ours - theirs).abs().max() <= tolerance * theirs.abs().max().clamp(min=1))


EQUAL = [
    *((record, torch.float64, 1e-10) for record in RECORDS),
    *((record, torch.float32, 1e-6) for record in CHECKED),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("record", "dtype", "tolerance"), EQUAL)
@torch.no_grad()
def test_equal_to_one_by_one(record: str, dtype: torch.dtype, tolerance: float) -> None:
    model = perturbed(RECORDS[record]).eval().to(dtype)
    images = pictures(model.config, SIZES, dtype)
    tokens = packed_tokens(model, images)
    features = packed_features(model, images)
    pruned = packed_features(model, images, prune=True)
    logits = packed_logits(model, images, prune=True) if model.config.num_classes else None
    for place, image in enumerate(images):
        alone: Any = load(model, image_size=tuple(image.shape[1:]))
        assert close(tokens[place], alone.encode(image[None])[0], tolerance)
        assert close(features[place], alone.features(image[None])[0], tolerance)
        assert close(pruned[place], alone.features(image[None])[0], tolerance)
        if logits is not None:
            assert close(logits[place], alone(image[None])[0], tolerance)
        if model.config.distilled:
            both = packed_both_heads(model, images)
            for ours, theirs in zip(both, alone.both_heads(image[None]), strict=True):
                assert close(ours[place], theirs[0], tolerance)


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=6),
    record=st.sampled_from(CHECKED),
)
@torch.no_grad()
def test_company_and_order_change_nothing(sizes: list[tuple[int, int]], record: str) -> None:
    model = perturbed(RECORDS[record]).eval().double()
    pixels = [(8 * rows, 8 * columns) for rows, columns in sizes]
    images = pictures(model.config, pixels, torch.float64)
    together = packed_logits(model, images)
    backwards = packed_logits(model, images[::-1]).flip(0)
    alone = torch.cat([packed_logits(model, [image]) for image in images])
    assert close(together, alone, 1e-10)
    assert close(backwards, alone, 1e-10)


@torch.no_grad()
def test_an_image_does_not_see_another() -> None:
    model = perturbed(SMALL).eval()
    first, second = pictures(SMALL, [(24, 24), (24, 24)], torch.float32)
    before = packed_logits(model, [first, second])
    after = packed_logits(model, [first, second * 3 + 1])
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["paper", "timm", "hf", "torchvision", "dinov2"])
@torch.no_grad()
def test_positions_are_resized_as_the_passport_says(method: Any) -> None:
    model = perturbed(SMALL).eval().double()
    model.passport = replace(model.passport, resize=method)
    [image] = pictures(SMALL, [(24, 40)], torch.float64)
    alone = load(model, image_size=(24, 40))
    assert method in alone.passport.origin.changes[0]
    assert close(packed_logits(model, [image]), alone(image[None]), 1e-10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("record", [*CHECKED, "2-D positions", "no key bias", "normed patches"])
def test_gradients_are_those_of_one_by_one(record: str) -> None:
    """In training mode, without chance: every weight gets the sum of what each image gives it; the
    position table through its resizing, too."""
    model = perturbed(RECORDS[record]).double().train()
    images = pictures(model.config, SIZES[:4], torch.float64)
    packed_logits(model, images).square().sum().backward()
    together = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    for image in images:
        packed_logits(model, [image]).square().sum().backward()
    for name, weight in model.named_parameters():
        assert close(together[name], weight.grad, 1e-10), name
    # at the model's own size positions are the table itself, so this is the model's own gradient
    own = pictures(model.config, [model.config.image_size] * 2, torch.float64)
    model.zero_grad()
    packed_logits(model, own).square().sum().backward()
    ours = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    model(torch.stack(own)).square().sum().backward()
    for name, weight in model.named_parameters():
        assert close(ours[name], weight.grad, 1e-10), name


def test_gradients_reach_every_position() -> None:
    model = perturbed(SMALL).double()
    packed_logits(model, pictures(SMALL, [(64, 80)], torch.float64)).sum().backward()
    assert model.positions.table.grad.abs().sum(dim=-1).gt(0).all()


def test_stochastic_depth_is_of_images_and_leaves_out_their_work() -> None:
    model = perturbed(replace(SMALL, drop_path=0.5)).double().train()
    block, lengths = model.blocks[1], [3, 3, 5]
    x = torch.randn(11, SMALL.dim, dtype=torch.float64)
    torch.manual_seed(1)
    kept = torch.rand(3) < 0.5
    assert 0 < kept.sum() < 3
    seen = list[int]()

    def branch(tokens: Tensor, lengths: Any) -> Tensor:
        seen.extend(lengths)
        return torch.ones_like(tokens)

    torch.manual_seed(1)
    change = add_branch(block.drop_path, x, lengths, branch) - x
    expected = torch.cat([torch.full((n,), 2.0 * k) for n, k in zip(lengths, kept, strict=True)])
    assert torch.allclose(change, expected[:, None].expand_as(x).double())
    assert seen == [n for n, k in zip(lengths, kept, strict=True) if k]


def test_no_image_may_keep_a_branch() -> None:
    """Every weight still has a gradient, zero, which several processes wait for."""
    model = perturbed(replace(SMALL, drop_path=0.999)).train()
    x = torch.randn(6, SMALL.dim, requires_grad=True)
    torch.manual_seed(0)
    out = forward_block(model.blocks[1], x, [2, 4])
    out.sum().backward()
    assert torch.equal(out, x)
    assert all(weight.grad is not None for weight in model.blocks[1].parameters())


def test_patch_dropout_leaves_out_patches_of_each_image() -> None:
    model = perturbed(replace(SMALL, patch_dropout=0.5)).train()
    tokens = packed_tokens(model, pictures(SMALL, [(32, 32), (16, 16), (64, 32)], torch.float32))
    assert [len(one) for one in tokens] == [1 + 8, 1 + 2, 1 + 16]


@pytest.mark.parametrize("family", [name for name in CONFIGS if name != "vit"])
def test_other_families_are_refused(family: str) -> None:
    with pytest.raises(UserError, match="need a ViT, DeiT or DINOv2 model, got"):
        check_packable(build(CONFIGS[family]))


@pytest.mark.parametrize("record", REFUSED)
def test_what_needs_one_grid_is_refused(record: str) -> None:
    with pytest.raises(UserError, match=r"hybrid, whose stem|relative positions, which"):
        check_packable(build(KINDS[record]))


def test_a_merged_model_is_refused() -> None:
    with pytest.raises(UserError, match="MergedViT"):
        check_packable(merge_tokens(build(SMALL).eval(), 2))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(3, 20, 24), (1, 24, 24), (3, 24), (3, 0, 24)])
def test_images_that_cannot_be_cut_are_refused(shape: tuple[int, ...]) -> None:
    model: Any = create("vit_ti_16", patch_size=8, depth=1)
    with pytest.raises(UserError, match=r"multiples of the patch|an image must be"):
        packed_tokens(model, [torch.zeros(shape)])
