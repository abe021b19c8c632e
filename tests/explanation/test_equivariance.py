"""Equivariance: exact where a model is equivariant by construction, and nowhere else."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
import torch
from tests.models.kinds import KINDS, perturbed, random_images
from tests.parity.test_every_family import FAMILIES, SHALLOW, make, picture
from torch import Tensor, nn

import vitrail
from vitrail.explanation.equivariance import (
    Equivariance,
    Moved,
    map_distance,
    measure_equivariance,
    permute_tiles,
    receptive_fields,
)
from vitrail.explanation.equivariance_figure import equivariance_panel, line_style
from vitrail.models.config import Config, Shape
from vitrail.models.model import Model

EXACT = 1e-12


@dataclass(frozen=True, kw_only=True)
class CircularConfig(Config):
    depth: Shape[int] = 2


class CircularCNN(Model):
    """Convolutions of stride 1 whose padding goes round: exactly equivariant to every shift."""

    def __init__(self, depth: int = 2, padding: Literal["circular", "zeros"] = "circular") -> None:
        super().__init__()
        self.config = CircularConfig(image_size=(16, 16), num_classes=3, channels=3, depth=depth)
        channels = [3, *([4] * depth)]
        self.blocks = nn.ModuleList(
            nn.Conv2d(one, two, 3, padding=1, padding_mode=padding)
            for one, two in pairwise(channels)
        )
        self.head = nn.Linear(4, 3)

    def encode(self, image: Tensor) -> Tensor:
        for block in self.blocks:
            image = block(image).tanh()
        return image

    def features(self, image: Tensor) -> Tensor:
        return self.encode(image).mean(dim=(2, 3))

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.features(image))

    def blocks_by_depth(self) -> dict[str, nn.Module]:
        return {f"blocks.{place}": block for place, block in enumerate(self.blocks)}

    def map_shape(self, block: str) -> tuple[int, int]:
        return 4, 1


def wake(model: Model) -> Model:
    """Every number matters: heads and branches that start at zero are drawn."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.1 * noise.to(parameter))
    return model.double().eval()


def images(count: int = 3, side: int = 16, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, channels, side, side, generator=generator).double()


def small_vit(**fields: object) -> Model:
    known = {"image_size": 16, "patch_size": 4, "dim": 16, "depth": 2, "heads": 2, "mlp_dim": 32}
    plain = {"pool": "mean", "class_token": False, "num_classes": 3}
    return wake(vitrail.create("vit_ti_16", **{**known, **plain, **fields}))


def test_a_circular_cnn_is_equivariant_to_the_bit_and_not_to_permutations() -> None:
    found = measure_equivariance(wake(CircularCNN()), images())
    assert max(found.pixel.blocks) < EXACT
    assert found.pixel.logits is not None
    assert found.pixel.logits < EXACT
    assert found.pixel.same_label == 1
    assert found.permuted is not None
    assert found.permuted.logits is not None
    assert found.permuted.logits > 1e-3
    assert found.other is not None
    assert min(found.other.blocks) > 0.1
    assert max(value for value in found.relative("pixel") if value is not None) < EXACT
    assert found.attention == {}


def test_zeros_around_an_image_count_at_the_border_alone() -> None:
    """The receptive field of one 3x3 convolution ends before the cells that are compared; that of
    six does not."""
    shallow = measure_equivariance(wake(CircularCNN(1, "zeros")), images())
    assert max(shallow.pixel.blocks) < EXACT
    deep = measure_equivariance(wake(CircularCNN(6, "zeros")), images())
    assert deep.pixel.blocks[0] < EXACT < deep.pixel.blocks[-1]


def test_a_vit_without_positions_does_not_know_places() -> None:
    found = measure_equivariance(small_vit(positions="none"), images())
    for moved in (found.shifted, found.permuted):
        assert moved is not None
        assert max(moved.blocks, default=0.0) < EXACT
        assert moved.logits is not None
        assert moved.logits < EXACT
        assert moved.same_label == 1
    assert min(found.pixel.blocks) > 0.01, "a pixel is less than a patch"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("positions", ["learned", "sincos2d", "relative"])
def test_a_vit_with_positions_does(positions: str) -> None:
    found = measure_equivariance(small_vit(positions=positions), images())
    assert found.permuted is not None
    assert found.permuted.logits is not None
    assert found.permuted.logits > 1e-4
    assert found.shifted is not None
    assert min(found.shifted.blocks) > (-1 if positions == "relative" else 1e-4)


def test_an_object_that_moves_by_a_patch_takes_its_tokens_along() -> None:
    """On a plain background, away from the border, without positions."""
    model = small_vit(positions="none", image_size=24)
    scene = torch.zeros(1, 3, 24, 24).double()
    scene[:, :, 8:12, 8:12] = images(1, 4)
    moved = scene.roll((4, 4), dims=(2, 3))
    with torch.no_grad():
        before, after = (model.intermediates(one)[-1] for one in (scene, moved))
    torch.testing.assert_close(after[:, :, 3, 3], before[:, :, 2, 2], atol=EXACT, rtol=0)
    assert map_distance(before, after, (1, 1)) < EXACT
    assert map_distance(before, after, (0, 0)) > 0.01


def test_tiles_are_permuted_and_the_rest_stays() -> None:
    batch = images(2, 10)
    permuted = permute_tiles(batch, 4, seed=3)
    assert permuted is not None
    assert torch.equal(permuted[:, :, 8:], batch[:, :, 8:])
    assert torch.equal(permuted[:, :, :, 8:], batch[:, :, :, 8:])

    def tiles(one: Tensor) -> list[Tensor]:
        return [one[:, :, r : r + 4, c : c + 4] for r in (0, 4) for c in (0, 4)]

    before = tiles(batch)
    for tile in tiles(permuted):
        assert sum(torch.equal(tile, one) for one in before) == 1
    assert not torch.equal(permuted, batch)
    assert permute_tiles(batch, 8, seed=0) is None


def test_a_receptive_field_grows_with_every_convolution() -> None:
    fields = receptive_fields(wake(CircularCNN(4)), images(1))
    assert list(fields) == sorted(fields)
    # of one 3x3 convolution no pixel lies further than the corner of the kernel
    assert 0 < fields[0] <= 2**0.5 / (2 * 16**2) ** 0.5 * 1.01
    model = wake(CircularCNN(1))
    with torch.no_grad():
        model.blocks[0].weight[:] = 0  # type: ignore[index, union-attr]
        model.blocks[0].weight[:, :, 1, 1] = 1  # type: ignore[index, union-attr]
    assert receptive_fields(model, images(1)) == (0.0,)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_measured(family: str) -> None:
    found = measure_equivariance(make(family), picture(family, batch=2))
    assert len(found.blocks) == len(found.pixel.blocks) == len(found.receptive_field) > 0
    values = [*found.pixel.blocks, *found.receptive_field, *found.attention.values()]
    assert all(0 <= value < float("inf") for value in values)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["no head", "hybrid", "registers", "every token pooled"])
def test_every_kind_of_vit_is_measured(kind: str) -> None:
    found = measure_equivariance(perturbed(KINDS[kind]), random_images(KINDS[kind]))
    assert (found.pixel.logits is None) == (kind == "no head")
    assert min(found.pixel.blocks) > 0


def test_a_head_of_zeros_has_no_logits_to_move() -> None:
    model = vitrail.create("vit_ti_16", image_size=32, depth=1, num_classes=3)
    found = measure_equivariance(model, torch.randn(1, 3, 32, 32))
    assert found.pixel.logits is None
    assert found.pixel.pooled is not None
    assert found.other is None
    assert found.relative("pixel") == ()


def test_patches_that_are_no_squares_are_shifted_and_permuted_by_their_sides() -> None:
    found = measure_equivariance(small_vit(positions="none", patch_size=(8, 4)), images())
    assert (found.patch, found.reductions) == ((8, 4), ((8, 4), (8, 4)))
    for moved in (found.shifted, found.permuted):
        assert moved is not None
        assert max(moved.blocks, default=0.0) < EXACT
        assert moved.logits is not None
        assert moved.logits < EXACT


def test_a_map_of_one_cell_is_drawn_beside_others() -> None:
    """An image of one patch cannot be shifted by a patch: nothing to draw is no error."""
    small = make("mobilenetv2", configs=SHALLOW, image_size=(32, 32))
    images = random_images(small.config)
    found = {name: measure_equivariance(small, images) for name in ("one", "two")}
    assert found["one"].shifted is None
    panel = equivariance_panel(found)
    assert (
        "Missing from “shifted by one patch” and “patches permuted”: one, two, because an image of "
        "32 pixels has fewer than two patches of 32 a side."
    ) in panel.caption
    assert "one (1 x 1), two (1 x 1). Use larger images." in panel.caption


def measured(
    moved: float, other: float, cells: tuple[int | tuple[int, int], ...] = (14,)
) -> Equivariance:
    """One block that a shift moves by `moved` and another image by `other` of its norm."""
    shift = Moved((moved,), moved, moved, 1.0)
    return Equivariance(
        images=2, image_size=224, patch=16, blocks=("blocks.0",), reductions=(16,), cells=cells,
        pixel=shift, shifted=shift, permuted=shift, other=Moved((other,)), receptive_field=(0.1,),
    )  # fmt: skip


def test_the_caption_and_the_table_have_the_numbers_of_the_axis() -> None:
    """By its norm small moves most, by what another image does large."""
    panel = equivariance_panel({"small": measured(0.8, 1.6), "large": measured(0.3, 0.4)})
    words = "the last block moves least in small (0.5) and most in large (0.75)."
    assert panel.caption.count(words) == 2
    assert [row[2] for row in panel.table[1:]] == ["0.5", "0.75"]
    assert panel.figure is not None
    drawn = [np.asarray(line.get_ydata()).tolist() for line in panel.figure.axes[0].lines]
    assert drawn == [[0.5], [pytest.approx(0.75)]]
    assert "Warning" not in panel.caption
    assert "Missing" not in panel.caption


def test_models_whose_maps_are_nearly_all_border_are_named() -> None:
    models = {"fine": measured(1, 1), "few": measured(1, 1, cells=((28, 28), (6, 9)))}
    caption = equivariance_panel(models).caption
    assert "fewer than 7 cells a side" in caption
    assert "trusted: few (6 x 9). Use larger images." in caption


def test_every_model_has_a_colour_of_its_own_and_looks_of_its_own_in_grey() -> None:
    styles = [line_style(place) for place in range(20)]
    assert len({one["color"] for one in styles}) == 12
    assert len({(one["linestyle"], one["marker"]) for one in styles}) == 20
