"""Tokens find their place on the grid in every family, and like ones have like colours."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from tests.models.kinds import KINDS, SMALL
from tests.parity.test_every_family import FAMILIES, make, picture
from torch import Tensor

from vitrail import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.hooks import attention_blocks, forward_hooks, named_blocks, token_layouts
from vitrail.explanation.tokens import pca_colours, tokens_on_grid
from vitrail.models.vit import ViT

SIZE = (32, 48)
CHANNELS_LAST = ("swin", "swinv2")
CHANNELS_FIRST = ("mobilevit", "mobilevitv2", "coatnet", "resnet", "bit", "mobilenetv2")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_of_every_family_is_a_grid(family: str) -> None:
    model, image = make(family), picture(family)
    steps: dict[str, Tensor] = {}
    with torch.no_grad(), forward_hooks(model, block=steps.__setitem__):
        model(image)
    assert list(steps) == list(named_blocks(model))
    height, width = image.shape[2:]
    for name, output in steps.items():
        found = tokens_on_grid(output, token_layouts(model).values(), (height, width))
        rows, columns = found.grid.shape[1:3]
        # cells are about square, but for a map that was stretched to be folded
        assert abs(height / rows - width / columns) < 0.5 * width / columns, name
        assert found.grid.shape[0] == len(image)
        if family in CHANNELS_LAST:
            assert torch.equal(found.grid, output)
        elif family in CHANNELS_FIRST:
            assert torch.equal(found.grid, output.movedim(1, -1))
        else:
            assert torch.equal(found.prefix, output[:, :1])
            assert torch.equal(found.grid.flatten(1, 2), output[:, 1:])
    assert set(attention_blocks(model)) <= set(steps)


def test_registers_and_distillation_tokens_are_no_patches() -> None:
    for kind, prefix in {"registers": 3, "distilled": 2, "mean pooling": 0}.items():
        model = ViT(KINDS[kind]).eval()
        tokens = tokens_on_grid(
            model.encode(torch.randn(2, 3, *SIZE)), token_layouts(model).values(), SIZE
        )
        assert tokens.prefix.shape[1] == prefix
        assert tokens.grid.shape[1:3] == SMALL.grid


def test_what_fits_no_layout_is_told() -> None:
    with pytest.raises(UserError, match="tokens of no attention"):
        tokens_on_grid(torch.zeros(1, 7, 3), [TokenLayout(grid=(2, 2), stride=4)], (8, 8))


def test_watching_changes_nothing_and_leaves_nothing() -> None:
    model = make("swin")
    image = picture("swin")
    seen: list[str] = []

    def see(name: str, one: AttentionMap, bias: Tensor | None) -> None:
        assert bias is not None
        torch.testing.assert_close(one.weights.sum(-1), torch.ones_like(one.weights.sum(-1)))
        seen.append(name)

    with torch.no_grad():
        before = model(image)
        with forward_hooks(model, attention=see, block=lambda name, x: None):
            assert torch.equal(model(image), before)
    assert seen == list(token_layouts(model))
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.raises(UserError, match="nothing was seen"), forward_hooks(model, attention=see):
        pass
    with pytest.raises(UserError, match="compiled"), forward_hooks(torch.compile(model)):  # type: ignore[arg-type]
        pass


def test_colours_are_the_components_of_scikit_learn() -> None:
    grid = torch.randn(2, 5, 7, 9, generator=torch.Generator().manual_seed(0)).double()
    colours, shares = pca_colours(grid)
    assert colours.shape == (2, 5, 7, 3)
    for one, colour, share in zip(grid, colours, shares, strict=True):
        peer = PCA(n_components=3).fit(one.flatten(0, 1).numpy())
        scores = peer.transform(one.flatten(0, 1).numpy())
        np.testing.assert_allclose(share, peer.explained_variance_ratio_, rtol=1e-9)
        for channel in range(3):
            inside = (colour[..., channel] > 0) & (colour[..., channel] < 1)  # not cut off
            chosen = inside.flatten().numpy()
            same = np.corrcoef(scores[chosen, channel], colour[..., channel][inside].numpy())[0, 1]
            assert abs(abs(same) - 1) < 1e-9


def test_like_patches_have_like_colours() -> None:
    kinds = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    where = torch.tensor([[0, 0, 1], [2, 2, 1]])
    colours, _ = pca_colours(kinds[where][None])
    for kind in range(3):
        mine = colours[0][where == kind]
        torch.testing.assert_close(mine, mine[:1].expand_as(mine))
    assert (colours[0, 0, 0] - colours[0, 0, 2]).abs().max() > 0.5
    assert (colours[0, 0, 0] - colours[0, 1, 0]).abs().max() > 0.5


def test_patches_that_are_all_the_same_are_grey() -> None:
    colours, shares = pca_colours(torch.ones(1, 4, 4, 8))
    assert colours.eq(0.5).all()
    assert shares.eq(0).all()
    assert pca_colours(torch.randn(1, 1, 2, 8))[0].isfinite().all()
