"""The kernels that are shown are those that pixels meet, and their components are the PCA's."""

import pytest
import torch
from sklearn.decomposition import PCA
from tests.models.kinds import KINDS
from tests.parity.test_every_family import FAMILIES, make
from torch import nn
from torch.nn import functional as F

from vitrail import UserError
from vitrail.explanation.filters import (
    first_filters,
    kernels_to_rgb,
    largest_kernels,
    principal_components,
)
from vitrail.layers.conv import pad_same
from vitrail.models.vit import ViT


def kernels(count: int = 40, channels: int = 3, side: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, channels, side, side, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("count", [40, 20])  # more and fewer kernels than components
def test_components_are_those_of_scikit_learn(count: int) -> None:
    given = kernels(count)
    found, shares = principal_components(given)
    flat = found.flatten(1)
    assert len(found) == min(28, count - 1)
    torch.testing.assert_close(flat @ flat.mT, torch.eye(len(flat), dtype=flat.dtype))
    peer = PCA(n_components=len(found)).fit(given.flatten(1).numpy())
    same = (flat.numpy() * peer.components_).sum(axis=1)
    assert abs(abs(same) - 1).max() < 1e-9
    torch.testing.assert_close(shares, torch.from_numpy(peer.explained_variance_ratio_))
    again, _ = principal_components(-given)
    torch.testing.assert_close(found, again)  # the sign is the component's own


def test_patch_filters_are_told_from_the_kernels_of_a_stem() -> None:
    told = {name: first_filters(make(name)).patches for name in FAMILIES}
    assert told == {
        "vit": True,
        "beit": True,
        "swin": True,
        "swinv2": True,
        "mobilevit": False,
        "mobilevitv2": False,
        "coatnet": False,
        "resnet": False,
        "bit": False,
        "mobilenetv2": False,
    }


def test_a_hybrid_shows_the_root_of_its_stem_as_it_is_used() -> None:
    model = ViT(KINDS["hybrid"]).double()
    found = first_filters(model)
    assert (found.name, found.patches, found.stride) == ("stem.root.conv", False, 2)
    image = torch.randn(1, 3, 32, 48, dtype=torch.float64)
    met = F.conv2d(pad_same(image, 7, 2), found.kernels, stride=2)
    torch.testing.assert_close(met, model.get_submodule("stem.root.conv")(image))


def test_a_norm_of_the_pixels_belongs_to_the_filters() -> None:
    model = ViT(KINDS["normed patches"]).double()
    norm = model.get_submodule("patches.pixel_norm")
    nn.init.normal_(norm.get_parameter("weight"))
    found = first_filters(model)
    assert found.patches
    pixels = torch.randn(2, 3 * 8 * 8, dtype=torch.float64)
    raw = F.layer_norm(pixels, (192,), eps=KINDS["normed patches"].norm_eps)
    weight = model.get_parameter("patches.projection.weight").flatten(1)
    expected = (raw * norm.get_parameter("weight")) @ weight.mT
    torch.testing.assert_close(raw @ found.kernels.flatten(1).mT, expected)


def test_pictures_of_kernels_have_zero_in_the_middle() -> None:
    given = kernels(5)
    pictures, _ = kernels_to_rgb(given)
    assert pictures.shape == (5, 4, 4, 3)
    assert pictures.min() >= 0
    assert pictures.max() <= 1
    assert ((pictures > 0.5) == (given.movedim(1, -1) > 0)).all()
    assert torch.equal(kernels_to_rgb(given, flipped=True)[0], pictures.flip(-1))
    assert kernels_to_rgb(kernels(5, 1))[0].shape == (5, 4, 4, 3)
    many, told = kernels_to_rgb(kernels(5, 13))
    assert many.shape == (5, 4, 4, 3)
    assert "13 channels" in told
    assert kernels_to_rgb(torch.zeros(1, 3, 2, 2))[0].eq(0.5).all()


def test_the_strongest_come_first() -> None:
    given = kernels(9)
    lengths = largest_kernels(given, 4).flatten(1).norm(dim=1)
    assert torch.equal(lengths, given.flatten(1).norm(dim=1).sort(descending=True).values[:4])


def test_a_model_without_convolutions_is_told() -> None:
    with pytest.raises(UserError, match="no convolution"):
        first_filters(nn.Linear(2, 2))
