"""MAE against transformers' own, number for number, and what makes it quick: hidden patches never
reach the encoder."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.models.kinds import KINDS, SMALL
from tests.objectives.learning import losses_while_learning
from tests.parity.compare import close, shaken
from torch import Tensor

from vitrail import UserError, create
from vitrail.models.catalogue import build
from vitrail.models.vit import VARIANTS, ViTConfig
from vitrail.objectives.mae import MAE, decoder_config, make_positions
from vitrail.objectives.patches import cut
from vitrail.weights.mae import read_mae

hf: Any = transformers  # most of it has no types

PEER: dict[str, Any] = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80,
    "image_size": 32, "patch_size": 8, "decoder_hidden_size": 24, "decoder_num_hidden_layers": 2,
    "decoder_num_attention_heads": 2, "decoder_intermediate_size": 96, "layer_norm_eps": 1e-6,
}  # fmt: skip
OURS = ViTConfig(
    dim=48, depth=3, heads=4, mlp_dim=80, patch_size=8, image_size=(32, 32), num_classes=0
)
SIZES: dict[str, Any] = {"decoder_dim": 24, "decoder_depth": 2, "decoder_heads": 2}
TINY = replace(SMALL, num_classes=0)  # 4 x 6 patches
OPEN = [kind for kind in KINDS if "hybrid" not in kind and kind != "relative positions"]


def make_images(batch: int, config: ViTConfig, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (batch, config.channels, *config.image_size)
    return torch.randn(shape, generator=generator, dtype=dtype)


def make(config: ViTConfig = TINY, **said: Any) -> MAE:
    torch.manual_seed(0)
    return MAE(build(config), **said)


def copied(peer: Any, config: ViTConfig, image: Tensor, **said: Any) -> MAE:
    """Ours with the peer's weights; in the tables what the peer reads for such an image."""
    state = peer.state_dict()
    embeddings, decoder = peer.vit.embeddings, peer.decoder
    if image.shape[2] != image.shape[3]:
        patches = embeddings.patch_embeddings(image)
        state["vit.embeddings.position_embeddings"] = embeddings.interpolate_pos_encoding(
            torch.cat([patches[:, :1], patches], dim=1), *image.shape[2:]
        ).detach()
        every = torch.empty(1, 1 + patches.shape[1], decoder.mask_token.shape[2])
        state["decoder.decoder_pos_embed"] = decoder.interpolate_pos_encoding(every).detach()
    objective = MAE(build(config), **SIZES, **said).double()
    shapes = {name: tensor.shape for name, tensor in objective.state_dict().items()}
    objective.load_state_dict(read_mae(state, shapes)[0])
    return objective


def gradients_of(peer: Any, objective: MAE) -> dict[str, Tensor]:
    """The peer's gradients under our names: rows fuse them as they fuse weights. Where its table
    has another size, none is compared; that of the decoder has none."""
    theirs = {name: p.grad for name, p in peer.named_parameters() if p.grad is not None}
    theirs["decoder.decoder_pos_embed"] = torch.zeros_like(objective.decoder.positions)
    table = objective.state_dict()["model.positions.table"]
    theirs.setdefault("vit.embeddings.position_embeddings", torch.zeros_like(table))
    shapes = {name: tensor.shape for name, tensor in objective.state_dict().items()}
    return read_mae(theirs, shapes)[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("norm_pix", [True, False])
@pytest.mark.parametrize(
    ("changes", "ratio"),
    [({}, 0.75), ({"channels": 1}, 0.4), ({"image_size": (32, 64)}, 0.75)],
    ids=["square", "one channel", "a rectangle"],
)
def test_loss_and_gradients_are_transformers(
    changes: dict[str, Any], ratio: float, norm_pix: bool
) -> None:
    config = replace(OURS, **changes)
    oblong = config.image_size[0] != config.image_size[1]
    arguments = PEER | {"mask_ratio": ratio, "norm_pix_loss": norm_pix}
    arguments |= {"num_channels": config.channels}
    torch.manual_seed(0)
    peer: Any = shaken(hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**arguments)))
    peer.vit.embeddings.position_embeddings.requires_grad_(not oblong)
    image = make_images(3, config)
    noise = torch.rand(3, config.grid[0] * config.grid[1], dtype=torch.float64)
    theirs = peer(image, noise=noise, interpolate_pos_encoding=oblong)
    theirs.loss.backward()

    objective = copied(peer, config, image, ratio=ratio, norm_pix=norm_pix)
    order = noise.argsort(dim=1)
    loss = objective(image, order)["loss"]
    loss.backward()
    close(loss, theirs.loss)
    close(objective.outputs(image, order).mean(), theirs.loss)
    expected = gradients_of(peer, objective)
    names = {name for name, _ in objective.named_parameters()}
    assert expected.keys() == names | {"decoder.positions"}
    for name, parameter in objective.named_parameters():
        if oblong and name == "model.positions.table":
            continue
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 1e-6, name
        close(parameter.grad, expected[name])


def test_guesses_are_transformers() -> None:
    torch.manual_seed(0)
    peer = shaken(hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**PEER)))
    image, noise = make_images(2, OURS), torch.rand(2, 16)
    objective, order = copied(peer, OURS, image), noise.argsort(dim=1)
    said = peer(image, noise=noise).logits
    hidden = order[:, objective.visible :, None].expand(-1, -1, said.shape[2])
    close(objective.guess(image, order), said.gather(1, hidden))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", OPEN)
def test_hidden_patches_do_not_reach_the_encoder(kind: str) -> None:
    """Fewer tokens in every block, and pixels that are hidden change nothing but the target."""
    config = replace(KINDS[kind], num_classes=0)
    objective = make(config).double().eval()
    tokens: list[int] = []
    for block in objective.model.blocks:
        block.register_forward_pre_hook(lambda _, args: tokens.append(args[0].shape[1]))
    images = make_images(2, config)
    order = objective.draw(0, 0, np.arange(2))
    said = objective.guess(images, order)
    visible = config.grid[0] * config.grid[1] // 4
    assert tokens == [config.prefix + visible] * config.depth

    other = objective.paste(images, torch.full_like(said, 9.0), order)
    assert not torch.equal(other, images)
    close(objective.guess(other, order), said)
    seen = objective.paste(images, torch.full_like(said, 9.0), order.flip(1))
    assert (objective.guess(seen, order) - said).abs().max() > 1e-6


@pytest.mark.parametrize("kind", OPEN)
def test_every_parameter_learns(kind: str) -> None:
    config = replace(KINDS[kind], num_classes=0)
    objective = make(config)
    images = make_images(2, config, torch.float32)
    objective(images, objective.draw(0, 0, np.arange(2)))["loss"].backward()
    assert [name for name, p in objective.named_parameters() if p.grad is None] == []


def test_an_order_belongs_to_its_sample() -> None:
    objective = make()
    together = objective.draw(5, 2, np.array([3, 90_000, 7]))
    assert together.shape == (3, 24)
    assert together.sort(dim=1).values.tolist() == [list(range(24))] * 3
    for place, index in enumerate([3, 90_000, 7]):
        assert torch.equal(objective.draw(5, 2, np.array([index]))[0], together[place])
    assert len({tuple(row.tolist()) for row in together}) == 3
    for seed, epoch in ((6, 2), (5, 3)):
        assert not torch.equal(objective.draw(seed, epoch, np.array([3]))[0], together[0])


def test_every_patch_is_hidden_as_often() -> None:
    objective = make()
    order = objective.draw(0, 0, np.arange(4000))
    often = torch.bincount(order[:, objective.visible :].flatten(), minlength=24) / 4000
    assert (often - 0.75).abs().max() < 0.03  # four deviations


def test_the_loss_is_the_mean_of_the_samples() -> None:
    objective = make().eval()
    images = make_images(4, TINY, torch.float32)
    order = objective.draw(0, 0, np.arange(4))
    each = objective.outputs(images, order)
    assert each.shape == (4, len(objective.metric_names))
    torch.testing.assert_close(objective(images, order)["loss"], each.mean())
    for i in range(4):
        alone = objective.outputs(images[i : i + 1], order[i : i + 1])
        torch.testing.assert_close(alone, each[i : i + 1])


def test_norm_pix_forgets_brightness_and_contrast() -> None:
    """The target of a patch made brighter and flatter is the same."""
    objective = make().double().eval()
    images = make_images(2, TINY)
    order = objective.draw(0, 0, np.arange(2))
    hidden = objective.hidden_pixels(images, order)
    changed = objective.paste(images, 0.5 * hidden + 3.0, order)
    torch.testing.assert_close(
        objective.cost(changed, order), objective.cost(images, order), rtol=1e-4, atol=0
    )
    plain = make(norm_pix=False).double().eval()
    assert (plain.cost(changed, order) - plain.cost(images, order)).abs().min() > 1


def test_half_precision_keeps_the_target_exact() -> None:
    objective = make()
    images = 0.001 * make_images(2, TINY).bfloat16() + 1
    order = objective.draw(0, 0, np.arange(2))
    assert objective.hidden_pixels(images, order).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = objective(make_images(2, TINY, torch.float32), order)["loss"]
    assert loss.dtype is torch.float32
    assert loss.isfinite()


@pytest.mark.parametrize("norm_pix", [True, False])
def test_pictures(norm_pix: bool) -> None:
    config = replace(TINY, channels=1)
    objective = make(config, norm_pix=norm_pix).double()
    images = make_images(2, config)
    order = objective.draw(0, 0, np.arange(2))
    shown = objective.illustrate(images, order)
    assert shown.keys() == {"original", "masked", "reconstructed"}
    flat = [cut(picture, 8)[:, :, 0].flatten(2) for picture in shown.values()]
    original, masked, rebuilt = flat
    close(original, cut(images, 8)[:, :, 0].flatten(2))
    for sample in range(2):
        seen, hidden = order[sample, :6], order[sample, 6:]
        assert torch.equal(masked[sample, seen], original[sample, seen])
        assert torch.equal(rebuilt[sample, seen], original[sample, seen])
        assert not masked[sample, hidden].any()
        guess = objective.guess(images, order)[sample]
        if norm_pix:
            true = original[sample, hidden]
            guess = guess * (true.var(1, keepdim=True) + 1e-6).sqrt() + true.mean(1, keepdim=True)
        close(rebuilt[sample, hidden], guess.detach())


@pytest.mark.parametrize("grid", [(14, 14), (3, 5)])
def test_positions_are_the_published_ones(grid: tuple[int, int]) -> None:
    """Their formula written out, to the bit in float32; across comes first, then down."""
    dim = 512
    encoder = replace(VARIANTS["vit_b_16"].config, image_size=(16 * grid[0], 16 * grid[1]))
    omega = 1 / 10_000 ** (np.arange(dim // 4) / (dim / 4))
    down, across = np.mgrid[: grid[0], : grid[1]].reshape(2, -1, 1) * omega
    waves = [np.sin(across), np.cos(across), np.sin(down), np.cos(down)]
    table = make_positions(decoder_config(encoder, None, None, None))
    assert torch.equal(table[0, 1:], torch.from_numpy(np.concatenate(waves, 1)).float())
    assert not table[0, 0].any()


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("vit_h_14", (512, 8, 16)),
        ("vit_l_16", (512, 8, 16)),
        ("vit_b_16", (512, 8, 16)),
        ("vit_s_16", (256, 8, 8)),
        ("vit_ti_16", (128, 8, 4)),
    ],
)
def test_a_decoder_fits_its_encoder(model: str, sizes: tuple[int, int, int]) -> None:
    config = decoder_config(VARIANTS[model].config, None, None, None)
    assert (config.dim, config.depth, config.heads) == sizes
    assert config.mlp_dim == 4 * config.dim


def test_what_is_said_of_the_decoder_holds() -> None:
    objective = make(decoder_dim=40, decoder_depth=3, decoder_heads=5)
    assert len(objective.decoder.blocks) == 3
    assert objective.decoder.embed.weight.shape == (40, 32)
    assert objective.decoder.config.heads == 5
    assert make(decoder_dim=100).decoder.config.heads == 2  # 3 of 32 do not divide it
    assert make().decoder.config.dim == 32


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "beit": ("beit_b_16", {}, "a Beit does not support"),
    "relative": (KINDS["relative positions"], {}, "counts the tokens between two"),
    "hybrid": (KINDS["hybrid"], {}, "use a ViT without a stem"),
    "patch dropout": (
        replace(TINY, patch_dropout=0.5),
        {},
        "must be 0 for mae.*got 0.5",
    ),
    "one patch": (replace(TINY, image_size=(8, 8)), {}, "at least 2 patches, got 1"),
    "ratio": (TINY, {"ratio": 1.0}, "between 0 and 1"),
    "heads": (TINY, {"decoder_dim": 32, "decoder_heads": 5}, "32 does not split into 5"),
    "width": (TINY, {"decoder_dim": 30}, "multiple of 4"),
    "depth": (TINY, {"decoder_depth": 0}, "depth"),
    "one value": (replace(TINY, patch_size=1, channels=1), {}, "use norm_pix=False"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_cannot_do_is_said_in_a_sentence(case: str) -> None:
    what, said, why = REFUSED[case]
    small = {"image_size": 32, "dim": 32, "depth": 1, "heads": 2, "mlp_dim": 64}
    model = create(what, **small) if isinstance(what, str) else build(what)
    with pytest.raises(UserError, match=why):
        MAE(model, **said)


def test_it_learns() -> None:
    """Of a picture in one colour, hidden patches have the colour of those that are shown."""
    objective = make(norm_pix=False)
    plain = torch.linspace(-1, 1, 4).view(4, 1, 1, 1).expand(4, 3, 32, 48)
    losses = losses_while_learning(objective, plain)
    assert losses[-1] < 0.2 * losses[0]
