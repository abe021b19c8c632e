"""Masked autoencoders whole: ours, facebook's and transformers', there and back to the bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.compare import assert_identical, shaken
from torch import Tensor

from vitrail import UserError, load
from vitrail.core.passport import IMAGENET_MEAN
from vitrail.models.catalogue import build
from vitrail.models.vit import ViTConfig
from vitrail.objectives.mae import MAE
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects import recognise
from vitrail.weights.mae import AUTOENCODERS, decoder_of, read_mae, write_mae

hf: Any = transformers  # most of it has no types

CONFIG = ViTConfig(
    dim=48, depth=2, heads=4, mlp_dim=96, patch_size=8, image_size=(32, 32), num_classes=0
)
SIZES: dict[str, Any] = {"decoder_dim": 24, "decoder_depth": 3}
State = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    hf.logging.disable_progress_bar()


def make(config: ViTConfig = CONFIG) -> MAE:
    torch.manual_seed(0)
    objective = MAE(build(config), **SIZES)
    for parameter in objective.parameters():
        torch.nn.init.normal_(parameter)
    return objective


def shapes_of(objective: MAE) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in objective.state_dict().items()}


def facebook_file() -> State:
    """A training run's file laid out by hand: every name and shape as facebook's code has them."""
    generator = torch.Generator().manual_seed(1)
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, 48), "pos_embed": (1, 17, 48),
        "patch_embed.proj.weight": (48, 3, 8, 8), "patch_embed.proj.bias": (48,),
        "norm.weight": (48,), "norm.bias": (48,),
        "mask_token": (1, 1, 24), "decoder_pos_embed": (1, 17, 24),
        "decoder_embed.weight": (24, 48), "decoder_embed.bias": (24,),
        "decoder_norm.weight": (24,), "decoder_norm.bias": (24,),
        "decoder_pred.weight": (192, 24), "decoder_pred.bias": (192,),
    }  # fmt: skip
    for blocks, depth, dim, hidden in (("blocks", 2, 48, 96), ("decoder_blocks", 3, 24, 96)):
        for i in range(depth):
            at = f"{blocks}.{i}"
            for norm in ("norm1", "norm2"):
                shapes |= {f"{at}.{norm}.weight": (dim,), f"{at}.{norm}.bias": (dim,)}
            for layer, out, into in (
                ("attn.qkv", 3 * dim, dim),
                ("attn.proj", dim, dim),
                ("mlp.fc1", hidden, dim),
                ("mlp.fc2", dim, hidden),
            ):
                shapes |= {f"{at}.{layer}.weight": (out, into), f"{at}.{layer}.bias": (out,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_a_facebook_file_goes_through_ours_unchanged() -> None:
    theirs, objective = facebook_file(), make()
    state, coverage = read_mae(theirs, shapes_of(objective))
    objective.load_state_dict(state)
    assert len(coverage.used) == len(theirs)
    assert coverage.dropped == coverage.filled == []
    assert_identical(write_mae(objective.state_dict()), theirs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dialect", AUTOENCODERS)
def test_ours_goes_through_theirs_unchanged(dialect: str) -> None:
    objective = make()
    written = write_mae(objective.state_dict(), dialect)
    state, _ = read_mae(written, shapes_of(objective))
    assert_identical(state, dict(objective.state_dict()))


def test_the_encoder_is_read_the_same_way_by_load(tmp_path: Path) -> None:
    """What pre-training leaves behind is what `load` takes from such a file."""
    theirs, objective = facebook_file(), make()
    torch.save({"model": theirs, "epoch": 3}, tmp_path / "checkpoint-3.pth")
    loaded = load(tmp_path / "checkpoint-3.pth", heads=4)
    assert loaded.passport.origin.dialect == "mae"
    objective.load_state_dict(read_mae(theirs, shapes_of(objective))[0])
    assert_identical(dict(loaded.state_dict()), dict(objective.model.state_dict()))
    sizes: dict[str, Any] = decoder_of(theirs) or {}
    again = MAE(loaded, **sizes)
    assert shapes_of(again) == shapes_of(objective)


def published_encoder() -> State:
    """An encoder alone, its positions as pre-training leaves them: fixed."""
    theirs = facebook_file()
    encoder = {n: t for n, t in theirs.items() if "decoder" not in n and n != "mask_token"}
    down, across = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    waves = 10_000 ** -(torch.arange(12) / 12)
    y, x = down.reshape(-1, 1) * waves, across.reshape(-1, 1) * waves
    encoder["pos_embed"][0, 0] = 0
    encoder["pos_embed"][0, 1:] = torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)
    return encoder


def test_a_published_encoder_is_known_by_its_positions(tmp_path: Path) -> None:
    """Read as timm's, it would be shown pixels that were normalised otherwise."""
    encoder = published_encoder()
    torch.save({"model": encoder}, tmp_path / "mae_pretrain_vit_base.pth")
    loaded = load(tmp_path / "mae_pretrain_vit_base.pth", heads=4)
    assert loaded.passport.origin.dialect == "mae"
    assert loaded.passport.preprocessing.mean == IMAGENET_MEAN
    assert loaded.config.num_classes == 0
    assert torch.equal(loaded.state_dict()["positions.table"], encoder["pos_embed"])


def test_learned_positions_are_no_mark_of_mae() -> None:
    for place in (0, 1):
        encoder = published_encoder()
        encoder["pos_embed"][0, place, 5] += 1e-6
        assert recognise(Foreign("a file", encoder)).name == "timm"
    copy = Foreign(
        "a directory",
        published_encoder(),
        {"config.json": {"architecture": "vit_base_patch16_224"}},
    )
    assert recognise(copy).name == "timm"


@pytest.mark.parametrize("shape", [(48,), (1, 17, 46), (0, 17, 48), (1, 1, 48), (1, 0, 48)])
def test_a_broken_table_is_no_mark_of_mae(shape: tuple[int, ...]) -> None:
    broken = published_encoder() | {"pos_embed": torch.zeros(shape)}
    assert recognise(Foreign("a file", broken)).name == "timm"


def make_peer() -> Any:
    torch.manual_seed(0)
    arguments: dict[str, Any] = {
        "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 96, "image_size": 32, "patch_size": 8, "decoder_hidden_size": 24,
        "decoder_num_hidden_layers": 3, "decoder_num_attention_heads": 2,
        "decoder_intermediate_size": 96,
    }  # fmt: skip
    return shaken(hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**arguments)))


def test_transformers_names_in_memory() -> None:
    peer, objective = make_peer(), make().double()
    state, _ = read_mae(peer.state_dict(), shapes_of(objective))
    objective.load_state_dict(state)
    written = write_mae(objective.state_dict(), "transformers-vit_mae")
    assert_identical(written, dict(peer.state_dict()))


def test_transformers_names_on_disk(tmp_path: Path) -> None:
    """What version 5 saves is read, and what is written in classic names is read by version 5."""
    peer, objective = make_peer(), make().double()
    peer.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    state, _ = read_mae(saved, shapes_of(objective))
    assert_identical(state, read_mae(peer.state_dict(), shapes_of(objective))[0])

    written = write_mae(state, "transformers-vit_mae-v4")
    assert "decoder.decoder_layers.2.attention.attention.query.weight" in written
    assert "vit.encoder.layer.1.output.dense.bias" in written
    save_file(written, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = type(peer).from_pretrained(tmp_path, dtype=torch.float64)
    assert_identical(dict(again.state_dict()), dict(peer.state_dict()))


def test_sizes_of_a_decoder_are_told_by_its_tensors() -> None:
    encoder = published_encoder()
    assert decoder_of(facebook_file()) == SIZES
    assert decoder_of(make_peer().state_dict()) == SIZES
    assert decoder_of(encoder) is None
    with pytest.raises(UserError, match=r"a\.pth: it has no decoder: load the encoder"):
        read_mae(encoder, shapes_of(make()), where="a.pth")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: s.pop("decoder_norm.bias"), r"tensor decoder.norm.bias .* is missing"),
        (lambda s: s.update({"decoder_pred.scale": s["mask_token"]}), r"no row reads \(decoder_pr"),
        (lambda s: s.update({"mask_token": torch.ones(1, 1, 25)}), "expected .1, 1, 24"),
        (
            lambda s: s.pop("blocks.1.attn.qkv.weight"),
            r"tensor model.blocks.1.attention.qkv.weight .* is missing",
        ),
    ],
    ids=["lost", "unknown", "another width", "lost from the encoder"],
)
def test_reading_is_total(spoil: Any, message: str) -> None:
    theirs = facebook_file()
    spoil(theirs)
    with pytest.raises(UserError, match=message):
        read_mae(theirs, shapes_of(make()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "sincos2d"}, "has a table with a place for the class token"),
        ({"class_token": False, "pool": "mean"}, "has a table with a place for the class token"),
        ({"prefix_positions": 0}, "has a table with a place for the class token"),
        ({"registers": 2, "prefix_positions": 3}, "no place for model.registers"),
        ({"num_classes": 5}, "no place for model.head"),
        ({"layer_scale": 0.1}, r"no place for model.blocks.0.scale1"),
    ],
    ids=["sines", "no class token", "no slot", "registers", "a head", "LayerScale"],
)
def test_what_theirs_cannot_hold_is_not_written(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        write_mae(dict(make(replace(CONFIG, **changes)).state_dict()))


def test_a_dialect_that_nobody_speaks() -> None:
    with pytest.raises(UserError, match="written as 'timm': use mae, transformers-vit_mae"):
        write_mae(dict(make().state_dict()), "timm")
