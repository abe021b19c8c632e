"""Where objectives reach into a model: between its embedding and its blocks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.kinds import KINDS
from tests.models.test_swin import KINDS_SWIN
from vitrail.core.layout import height_and_width
from vitrail.models.beit import BeitConfig
from vitrail.models.catalogue import build
from vitrail.models.config import Config

BEIT: dict[str, Any] = {
    "dim": 32, "depth": 2, "heads": 4, "mlp_dim": 64, "patch_size": 8, "image_size": (32, 48),
}  # fmt: skip
EVERY: dict[str, Config] = {
    **{f"vit: {name}": config for name, config in KINDS.items()},
    **{f"swin: {name}": config for name, config in KINDS_SWIN.items()},
    "beit": BeitConfig(**BEIT),
    "beit: as in pre-training": BeitConfig(**BEIT, relative_bias="shared", pool="cls"),
}
every_kind = pytest.mark.parametrize("kind", EVERY)


def made(kind: str) -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    model: Any = build(EVERY[kind]).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model, torch.randn(2, model.config.channels, *model.config.image_size)


@pytest.mark.sampled(2)
@every_kind
def test_a_corruption_that_does_nothing_changes_no_bit(kind: str) -> None:
    model, image = made(kind)
    seen: list[tuple[int, ...]] = []

    def corrupt(patches: Tensor) -> Tensor:
        seen.append(tuple(patches.shape))
        return patches

    tokens = model.forward_blocks(model.embed(image, corrupt))
    rows, columns = model.config.grid
    assert seen == [(2, rows * columns, model.config.dim)]
    assert torch.equal(tokens, model.encode(image))


@pytest.mark.sampled(2)
@every_kind
def test_a_corrupted_patch_keeps_its_place_and_loses_its_content(kind: str) -> None:
    model, image = made(kind)
    config, place = model.config, 5
    token, own = torch.randn(config.dim), torch.empty(0)

    def corrupt(patches: Tensor) -> Tensor:
        nonlocal own
        own = patches[:, place]
        hidden = torch.arange(patches.shape[1]) == place
        return torch.where(hidden[:, None], token, patches)

    plain, corrupted = (x.flatten(1, -2) for x in (model.embed(image), model.embed(image, corrupt)))
    at = plain.shape[1] - config.grid[0] * config.grid[1] + place
    assert (plain != corrupted).any(dim=2).nonzero()[:, 1].tolist() == [at, at]
    # the same position was added to both, and nothing else
    torch.testing.assert_close(corrupted[:, at] - plain[:, at], token - own)
    if getattr(config, "stem", None) is None:  # a stem sees beyond the borders of a patch
        height, width = height_and_width(config.patch_size)
        row, column = place // config.grid[1] * height, place % config.grid[1] * width
        image[:, :, row : row + height, column : column + width] = 7.0
        assert torch.equal(model.embed(image, corrupt).flatten(1, -2), corrupted)
        assert not torch.equal(model.embed(image).flatten(1, -2), plain)
