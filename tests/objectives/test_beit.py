"""BEiT's pre-training: transformers' logits, loss and gradients; whose words are guessed, and from
what; what becomes of the shared bias."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.models.kinds import SMALL as SMALL_VIT
from tests.models.test_tokenizer import make, picture
from tests.parity.compare import close, images, shaken
from torch import Tensor
from torch.nn import functional as F

from vitrail import UserError, load, save
from vitrail.models.beit import BeitConfig
from vitrail.models.catalogue import build
from vitrail.models.tokenizer import Tokenizer
from vitrail.objectives.beit import BeitObjective

hf: Any = transformers  # most of it has no types

OBLONG = BeitConfig(
    dim=32, depth=2, heads=4, mlp_dim=48, patch_size=8, image_size=(32, 48), num_classes=0,
    pool="cls", relative_bias="shared", layer_scale=0.1,
)  # fmt: skip
INDICES = np.array([4, 11])


def objective_of(config: BeitConfig = OBLONG, **options: Any) -> BeitObjective:
    torch.manual_seed(2)
    tokenizer = make("dvae", channels=config.channels)
    objective = BeitObjective(build(config).double(), tokenizer, **options)
    with torch.no_grad():
        for parameter in objective.double().parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return objective.eval()


@pytest.fixture
def peer() -> Any:
    hf.logging.disable_progress_bar()
    config = hf.BeitConfig(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80,
        image_size=48, patch_size=8, vocab_size=24, use_mask_token=True,
        use_relative_position_bias=False, use_shared_relative_position_bias=True,
    )  # fmt: skip
    return shaken(hf.BeitForMaskedImageModeling(config))


def test_logits_loss_and_gradients_are_transformers(peer: Any, tmp_path: Path) -> None:
    peer.save_pretrained(tmp_path)
    model: Any = load(tmp_path)
    assert model.config.relative_bias == "shared"
    objective = BeitObjective(model, make()).double()
    with torch.no_grad():
        objective.mask_token.copy_(peer.beit.embeddings.mask_token)
        objective.head.weight.copy_(peer.lm_head.weight)
        objective.head.bias.copy_(peer.lm_head.bias)
    image = picture(3, (48, 48), batch=2).requires_grad_()
    mask = objective.draw(0, 0, INDICES)
    codes = objective.codes(image)
    assert len(codes.unique()) > 3
    theirs = peer(image, bool_masked_pos=mask, labels=codes[mask])
    close(objective.guess(image, mask).flatten(0, 1), theirs.logits[mask])
    loss = objective(image, mask)["loss"]
    close(loss, theirs.loss)
    close(objective.outputs(image, mask)[:, 0].mean(), theirs.loss)

    table = next(p for n, p in peer.named_parameters() if n.endswith("position_bias_table"))
    embeddings = peer.beit.embeddings
    pairs = [
        (image, image),
        (objective.mask_token, embeddings.mask_token),
        (objective.head.weight, peer.lm_head.weight),
        (objective.head.bias, peer.lm_head.bias),
        (model.cls, embeddings.cls_token),
        (model.patches.projection.weight, embeddings.patch_embeddings.projection.weight),
        (model.relative.table, table),
        (model.norm.weight, peer.layernorm.weight),
    ]
    mine = torch.autograd.grad(loss, [ours for ours, _ in pairs])
    other = torch.autograd.grad(theirs.loss, [their for _, their in pairs])
    for gradient, expected in zip(mine, other, strict=True):
        assert expected.abs().max() > 1e-8
        close(gradient, expected)


def test_the_words_are_those_of_the_image_before_normalisation() -> None:
    """Scaled to the tokenizer's cells, in the tokenizer's own normalisation."""
    tokenizer, model = make("dvae"), build(OBLONG).double()
    change: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    passport = model.passport
    model.passport = replace(passport, preprocessing=replace(passport.preprocessing, **change))
    pixels = torch.rand(2, 3, 4, 6, generator=torch.Generator().manual_seed(0)).double()
    mean, std = (torch.tensor(value).double().view(3, 1, 1) for value in change.values())
    large = F.interpolate(pixels, scale_factor=8, mode="bilinear")  # patches of 8 pixels
    codes = BeitObjective(model, tokenizer).codes((large - mean) / std)
    small = F.interpolate(large, (16, 24), mode="bicubic", antialias=True)  # cells of 4
    assert torch.equal(codes, tokenizer.codes(small * 2 - 1).flatten(1))
    assert codes.shape == (2, 4 * 6)
    assert len(codes.unique()) > 3


def test_masks_are_blocks_of_an_exact_number() -> None:
    objective = objective_of(replace(OBLONG, image_size=(112, 112)))
    mask = objective.draw(0, 3, np.arange(20))
    assert mask.sum(dim=1).tolist() == [75] * 20
    assert torch.equal(objective.draw(0, 3, np.array([7])), mask[7:8])
    assert not torch.equal(objective.draw(0, 4, np.array([7])), mask[7:8])
    on_grid = mask.unflatten(1, (14, 14))
    beside = (on_grid[:, :, 1:] & on_grid[:, :, :-1]).double().sum() / on_grid[:, :, 1:].sum()
    assert beside > 0.7  # of cells anywhere it would be 0.38


@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_hidden_is_neither_seen_nor_left_unguessed(channels: int) -> None:
    objective = objective_of(replace(OBLONG, channels=channels), ratio=0.4, least=4)
    image, mask = images(channels, 32, 48), objective.draw(0, 0, INDICES)
    assert objective.count == 10
    pixels = mask.unflatten(1, (4, 6)).repeat_interleave(8, 1).repeat_interleave(8, 2)[:, None]
    guesses = objective.guess(image, mask)
    assert guesses.shape == (2, 10, 24)
    assert torch.equal(objective.guess(torch.where(pixels, 0.7, image), mask), guesses)
    assert not torch.equal(objective.guess(torch.where(pixels, image, 0.7), mask), guesses)


def test_the_answer_is_loss_and_share_of_words_guessed_for_each_image() -> None:
    objective = objective_of()
    image, mask = images(3, 32, 48), objective.draw(0, 0, INDICES)
    answer = objective.outputs(image, mask)
    assert answer.shape == (2, len(objective.metric_names))
    close(answer[:, 0].mean(), objective(image, mask)["loss"])
    alone = torch.cat([objective.outputs(image[i : i + 1], mask[i : i + 1]) for i in range(2)])
    close(answer, alone)
    guesses, codes = objective.guess(image, mask).argmax(-1), objective.codes(image)
    right = [(guesses[i] == codes[i][mask[i]]).double().mean().item() for i in range(2)]
    assert answer[:, 1].tolist() == right
    with torch.no_grad():  # a head that knows one word is right where that word is
        objective.head.weight.zero_()
        objective.head.bias.copy_(F.one_hot(codes[0][mask[0]][0], 24))
    assert objective.outputs(image, mask)[0, 1] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    ["eager", pytest.param("aot_eager_decomp_partition", marks=pytest.mark.slow)],
)
def test_every_parameter_learns_also_compiled(backend: str) -> None:
    objective = objective_of()
    image, mask = images(3, 32, 48), objective.draw(0, 0, INDICES)
    compiled: Any = torch.compile(objective, fullgraph=True, backend=backend)
    loss = compiled(image, mask)["loss"]
    close(loss, objective(image, mask)["loss"])
    loss.backward()
    torch._dynamo.reset()
    assert [name for name, p in objective.named_parameters() if p.grad is None] == []


def test_pictures_paint_seen_patches_by_true_words_and_hidden_ones_by_guessed() -> None:
    objective = objective_of()
    image, mask = images(3, 32, 48).clamp(-1, 1), objective.draw(0, 0, INDICES)
    shown = objective.illustrate(image, mask)
    assert list(shown) == ["original", "masked", "reconstructed"]
    assert shown["original"] is image
    assert all(picture.shape == image.shape for picture in shown.values())
    words = objective.codes(image)
    words[mask] = objective.guess(image, mask).argmax(-1).flatten()
    reconstructed = objective._tokenizer[0].decode(words.unflatten(1, (4, 6)))
    reconstructed = F.interpolate(reconstructed, (32, 48), mode="bicubic", antialias=True).clamp(
        0, 1
    )
    close(shown["reconstructed"], reconstructed * 2 - 1)
    lone = BeitObjective(objective.model, make(decoder=False))
    assert list(lone.illustrate(image, mask)) == ["original", "masked"]


def test_the_tokenizer_is_frozen_and_not_part_of_the_objective() -> None:
    torch.manual_seed(0)
    tokenizer: Tokenizer = make().train().requires_grad_(True)
    objective = BeitObjective(build(OBLONG).double(), tokenizer).double().train()
    assert not tokenizer.training
    assert not any(parameter.requires_grad for parameter in tokenizer.parameters())
    before = {name: tensor.clone() for name, tensor in tokenizer.state_dict().items()}
    names = {name for name, _ in objective.named_parameters() if not name.startswith("model.")}
    assert names == {"mask_token", "head.weight", "head.bias"}
    assert not any("tokenizer" in name for name in objective.state_dict())
    image = images(3, 32, 48)
    optimiser = torch.optim.SGD(objective.parameters(), lr=0.1)
    objective(image, objective.draw(0, 0, INDICES))["loss"].backward()
    optimiser.step()
    assert all(parameter.grad is None for parameter in tokenizer.parameters())
    assert all(torch.equal(before[name], t) for name, t in tokenizer.state_dict().items())
    objective.float()
    assert next(tokenizer.parameters()).dtype == torch.float32


def test_fine_tuning_copies_the_shared_bias_to_every_block(tmp_path: Path) -> None:
    objective = objective_of()
    table: Tensor = objective.model.get_parameter("relative.table")
    save(objective.model, tmp_path / "pre-trained")
    tuned: Any = load(tmp_path / "pre-trained", num_classes=3)
    assert (tuned.config.relative_bias, tuned.config.pool) == ("block", "mean")
    assert len(tuned.blocks) == 2
    for block in tuned.blocks:
        assert torch.equal(block.relative.table, table)
    first, second = (block.relative.table for block in tuned.blocks)
    assert first.data_ptr() != second.data_ptr()


def test_what_does_not_fit_is_refused() -> None:
    tokenizer = make()
    with pytest.raises(UserError, match="pre-trains a BEiT, not a ViT"):
        BeitObjective(build(SMALL_VIT), tokenizer)
    for fields in ({"pool": "mean"}, {"num_classes": 5}):
        with pytest.raises(UserError, match='use pool="cls", num_classes=0'):
            BeitObjective(build(replace(OBLONG, **fields)), tokenizer)
    with pytest.raises(UserError, match="BEiT needs a tokenizer, not a ViT"):
        BeitObjective(build(OBLONG), build(SMALL_VIT))
    with pytest.raises(UserError, match="the tokenizer reads 3 channels and the model 1"):
        BeitObjective(build(replace(OBLONG, channels=1)), tokenizer)
    with pytest.raises(UserError, match="ratio"):
        BeitObjective(build(OBLONG), tokenizer, ratio=1.0)
