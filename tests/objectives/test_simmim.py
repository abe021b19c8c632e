"""SimMIM: losses and gradients of transformers' models, units hidden whole, and every family."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.models.kinds import KINDS, SMALL
from tests.models.test_swin import KINDS_SWIN
from tests.objectives.learning import losses_while_learning
from tests.parity.compare import close, images, shaken
from torch import Tensor

from vitrail import UserError, create, load
from vitrail.models.catalogue import build
from vitrail.models.config import Config
from vitrail.objectives.simmim import SimMIM

hf: Any = transformers  # most of it has no types

INDICES = np.arange(4)
VIT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 64, "patch_size": 16, "encoder_stride": 16,
}  # fmt: skip
SWIN: dict[str, Any] = {
    "image_size": 64, "embed_dim": 12, "depths": [2, 2, 2], "num_heads": [2, 4, 4],
    "window_size": 4, "encoder_stride": 16,
}  # fmt: skip
PEERS = {
    "vit": lambda: hf.ViTForMaskedImageModeling(hf.ViTConfig(**VIT)),
    "vit, one channel": lambda: hf.ViTForMaskedImageModeling(hf.ViTConfig(**VIT, num_channels=1)),
    "swin": lambda: hf.SwinForMaskedImageModeling(hf.SwinConfig(**SWIN)),
    "swinv2": lambda: hf.Swinv2ForMaskedImageModeling(hf.Swinv2Config(**SWIN)),
}
EVERY: dict[str, Config] = {
    **{
        f"vit: {name}": config
        for name, config in KINDS.items()
        if isinstance(config.patch_size, int)
    },
    **{f"swin: {name}": config for name, config in KINDS_SWIN.items()},
}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    hf.logging.disable_progress_bar()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", PEERS)
def test_loss_pixels_and_every_gradient_are_those_of_transformers(
    kind: str, tmp_path: Path
) -> None:
    peer: Any = shaken(PEERS[kind]())
    body: Any = getattr(peer, kind.partition(",")[0])
    peer.save_pretrained(tmp_path / "weights")
    objective: Any = SimMIM(load(tmp_path / "weights"), unit=16).double().eval()
    with torch.no_grad():
        objective.mask_token.copy_(body.embeddings.mask_token)
        objective.decoder.load_state_dict(peer.decoder[0].state_dict())
    image = images(objective.model.config.channels, 64, 64)
    mask = objective.draw(3, 0, np.arange(2))

    theirs = peer(image, bool_masked_pos=mask)
    ours = objective(image, mask)["loss"]
    close(ours, theirs.loss)
    close(objective.reconstruct(image, mask), theirs.reconstruction)
    close(objective.outputs(image, mask).mean(), theirs.loss.detach().clone())

    ours.backward()
    theirs.loss.backward()
    close(objective.mask_token.grad, body.embeddings.mask_token.grad)
    close(objective.decoder.weight.grad, peer.decoder[0].weight.grad)
    close(objective.decoder.bias.grad, peer.decoder[0].bias.grad)
    # gradients have the names and shapes of weights, and rows only move and join those
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.copy_(parameter.grad)
    peer.save_pretrained(tmp_path / "gradients")
    expected = dict(load(tmp_path / "gradients").named_parameters())
    found: dict[str, Any] = {n: p.grad for n, p in objective.model.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        close(gradient, expected[name].detach())
        assert gradient.abs().max() > 1e-9 or name.endswith("key.bias"), name


def made(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    objective = SimMIM(build(EVERY[kind]), **options)
    for parameter in objective.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return objective.eval()


def photos(objective: Any) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    config = objective.model.config
    return torch.randn(4, config.channels, *config.image_size, generator=generator)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", EVERY)
def test_every_kind_learns_by_it_and_only_what_is_hidden_counts(kind: str) -> None:
    objective = made(kind).train()
    photo, mask = photos(objective), objective.draw(0, 0, INDICES)
    assert objective.reconstruct(photo, mask).shape == photo.shape
    objective(photo, mask)["loss"].backward()
    unread = {name for name, p in objective.named_parameters() if p.grad is None}
    assert all(name.startswith("model.head") for name in unread), unread
    assert all(p.grad.isfinite().all() for p in objective.parameters() if p.grad is not None)
    assert objective.mask_token.grad.abs().max() > 0
    assert objective.model.patches.projection.weight.grad.abs().max() > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["vit: plain", "swin: plain", "swin: odd grids", "swin: second"])
def test_the_loss_is_that_of_a_plain_loop(kind: str) -> None:
    """And a hidden patch tells nothing of its pixels, which come back as the target alone."""
    objective = made(kind)
    photo, mask = photos(objective), objective.draw(0, 0, INDICES)
    config, side = objective.model.config, objective.patch
    with torch.no_grad():  # as pictures are made, or other kernels round otherwise
        reconstructed = objective.reconstruct(photo, mask)
    for sample in range(4):
        apart = []
        for place in mask[sample].nonzero()[:, 0].tolist():
            row, column = place // config.grid[1] * side, place % config.grid[1] * side
            window = (sample, slice(None), slice(row, row + side), slice(column, column + side))
            apart.append((photo[window] - reconstructed[window]).abs().mean())
        torch.testing.assert_close(
            objective.outputs(photo, mask)[sample, 0], torch.stack(apart).mean()
        )
    shown = objective.illustrate(photo, mask)
    assert list(shown) == ["original", "masked", "reconstructed"]
    torch.testing.assert_close(objective.reconstruct(shown["masked"], mask), reconstructed)
    hidden = shown["masked"] == 0
    assert torch.equal(shown["reconstructed"], torch.where(hidden, reconstructed, photo))
    assert torch.equal(shown["original"], photo)
    share = hidden[:, 0].double().mean(dim=(1, 2))
    assert (share >= objective.ratio).all()
    assert torch.equal(share, share[:1].expand(4)), "equally much of every image"


def test_what_a_swin_paints_beyond_the_image_is_below_and_to_the_right() -> None:
    """Grids of 9 x 13 are merged to 5 x 7, which are 40 x 56 pixels for an image of 36 x 52."""
    objective = made("swin: odd grids")
    torch.nn.init.zeros_(objective.decoder.weight)
    with torch.no_grad():
        objective.decoder.bias.copy_(torch.arange(3 * 64))
    photo = photos(objective)
    reconstructed = objective.reconstruct(photo, objective.draw(0, 0, INDICES))
    cell = torch.arange(3 * 64.0).view(3, 8, 8)
    assert torch.equal(reconstructed, cell.repeat(1, 5, 7)[:, :36, :52].expand(4, 3, 36, 52))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vit: plain", "swin: plain"])
def test_a_few_steps_teach_it_something(kind: str) -> None:
    torch.manual_seed(0)
    objective = SimMIM(build(replace(EVERY[kind], num_classes=0)))
    rows = torch.linspace(-1, 1, 32)[:, None].expand(8, 3, 32, objective.model.config.image_size[1])
    losses = losses_while_learning(objective, rows)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["vit: plain", pytest.param("swin: odd grids", marks=pytest.mark.slow)]
)
def test_it_is_one_graph(kind: str) -> None:
    objective = made(kind)
    photo, mask = photos(objective), objective.draw(0, 0, INDICES)
    compiled: Any = torch.compile(objective, backend="eager", fullgraph=True)
    assert torch.equal(compiled(photo, mask)["loss"], objective(photo, mask)["loss"])


def test_the_paper_hides_22_of_36_units() -> None:
    objective = SimMIM(create("swin_t", image_size=192, window_size=6, num_classes=0))
    assert (objective.unit, objective.stride) == (32, 32)
    mask = objective.draw(0, 0, INDICES)
    assert mask.shape == (4, 48 * 48)
    assert (mask.sum(dim=1) == 22 * 64).all()
    vit = SimMIM(create("vit_ti_16", num_classes=0))
    assert (vit.unit, vit.stride) == (32, 16)
    assert (vit.draw(0, 0, INDICES).sum(dim=1) == 30 * 4).all()


def test_what_does_not_fit_is_said_in_a_sentence() -> None:
    with pytest.raises(UserError, match="needs a ViT, Swin or Swin V2, not a MobileViT"):
        SimMIM(create("mobilevit_xxs", num_classes=0))
    with pytest.raises(UserError, match="SimMIM hides patches by itself: create the model with p"):
        SimMIM(build(replace(SMALL, patch_dropout=0.5)))
    with pytest.raises(UserError, match=r"units of 32 pixels do not divide .* use 8, 16"):
        SimMIM(build(SMALL), unit=32)
    with pytest.raises(UserError, match="nothing is left to see"):
        SimMIM(build(replace(SMALL, image_size=(32, 32))), unit=32)
    with pytest.raises(UserError, match=r"mask ratio must be between 0 and 1, got 1.5"):
        SimMIM(build(SMALL), ratio=1.5)
