"""timm's CoAtNets through our rows and back: the same numbers both ways, at any size."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.layers import resize_rel_pos_bias_table
from torch import nn

from tests.parity.compare import (
    assert_identical,
    assert_same,
    blank_timm,
    close,
    images,
    write_safetensors,
)
from tests.parity.lively import lively
from vitrail import UserError, load
from vitrail.core.passport import Preprocessing
from vitrail.models.catalogue import FAMILIES, build, find
from vitrail.models.coatnet import CoAtNetConfig
from vitrail.weights.checkpoint import read_config
from vitrail.weights.convert import convert
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects import recognise
from vitrail.weights.families.family import Request
from vitrail.weights.offsets import linear, resize_offsets
from vitrail.weights.resize_state import resize_state

SMALL: dict[str, Any] = {
    "stem_width": (8, 16), "embed_dim": (16, 32, 64, 96), "depths": (1, 2, 2, 1), "num_classes": 7,
}  # fmt: skip
PAPER = {**SMALL, "head_hidden_size": 96}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("coatnet_0_224", PAPER),
    "one channel": ("coatnet_0_224", {**PAPER, "in_chans": 1}),
    "wide stem, as coatnet_2": ("coatnet_2_224", {**PAPER, "stem_width": 16}),
    "other heads": ("coatnet_0_224", {**PAPER, "transformer_dim_head": 16}),
    "attention everywhere": ("coatnet_0_224", {
        **PAPER, "stem_width": (8, 32), "embed_dim": (32, 64, 64, 96), "block_type": "TTTT",
    }),
    "convolutions but for the last": ("coatnet_0_224", {**PAPER, "block_type": "CCCT"}),
    **{name: (f"coatnet_{name}_224", SMALL) for name in (
        "pico_rw", "nano_rw", "0_rw", "1_rw", "2_rw", "3_rw",
        "rmlp_nano_rw", "rmlp_0_rw", "rmlp_1_rw", "rmlp_1_rw2", "rmlp_2_rw", "rmlp_3_rw",
    )},
    "rw, no head": ("coatnet_0_rw_224", {**SMALL, "num_classes": 0}),
}  # fmt: skip
# In each of their parts as another kind: 3_rw but for its layer scale, pico_rw with rmlp_0_rw's
# bias, rmlp_0_rw, rmlp_2_rw.
ALIKE = ("2_rw", "rmlp_nano_rw", "rmlp_1_rw2", "rmlp_3_rw")
# kinds are compared at the oblong size; at the square one timm builds what we write, below
SIZES = [
    pytest.param(kind, size, marks=[pytest.mark.slow] if kind in ALIKE or size == (64, 64) else [])
    for size in ((64, 96), (64, 64))
    for kind in KINDS
]


def make_peer(kind: str, size: tuple[int, int]) -> nn.Module:
    entry, arguments = KINDS[kind]
    torch.manual_seed(2)
    return lively(timm.create_model(entry, img_size=size, **arguments))


def write_timm(peer: nn.Module, kind: str, size: tuple[int, int], directory: Path) -> Path:
    """A directory as timm's own push_to_hf_hub leaves it."""
    directory.mkdir()
    entry, arguments = KINDS[kind]
    config = {"architecture": entry, "model_args": {"img_size": size, **arguments}}
    (directory / "config.json").write_text(json.dumps(config))
    write_safetensors(peer, directory / "model.safetensors")
    return directory


def blocks_of(ours: nn.Module, peer: nn.Module) -> tuple[nn.ModuleList, nn.ModuleList]:
    theirs = [block for stage in peer.stages for block in stage.blocks]  # type: ignore[union-attr]
    return nn.ModuleList(ours.blocks_by_depth().values()), nn.ModuleList(theirs)  # type: ignore[operator]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "size"), SIZES)
def test_equals_timm_and_back(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    peer = make_peer(kind, size)
    source = write_timm(peer, kind, size, tmp_path / "peer")
    ours = load(source)
    assert ours.config.image_size == size
    picture = images(KINDS[kind][1].get("in_chans", 3), *size)
    assert_same(ours, peer, picture, blocks=blocks_of(ours, peer))
    close(ours.encode(picture), _encode(peer, picture))

    convert(source, tmp_path / "native", to="vitrail")
    done = convert(tmp_path / "native", tmp_path / "back", to="timm")
    assert done.to == "timm-coatnet"
    # one share cannot say what was cropped of both sides of an oblong picture
    assert not [caution for caution in done.cautions if "store preprocessing" not in caution]
    assert_identical(
        load_file(tmp_path / "back" / "model.safetensors"), load_file(source / "model.safetensors")
    )
    assert load(tmp_path / "back").config == ours.config


def _encode(peer: nn.Module, picture: torch.Tensor) -> torch.Tensor:
    return peer.forward_features(picture)  # type: ignore[operator]


# what our config.json has to say of each is another; timm's own names differ in nothing more
WRITTEN = ("paper", "one channel", "other heads", "attention everywhere", "0_rw", "rmlp_2_rw")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in WRITTEN else [pytest.mark.slow]) for kind in KINDS],
)
def test_timm_builds_what_we_write(kind: str, tmp_path: Path) -> None:
    """timm itself makes the same model from our directory, config.json and all."""
    peer = make_peer(kind, (64, 64))
    source = write_timm(peer, kind, (64, 64), tmp_path / "peer")
    convert(source, tmp_path / "timm", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True)
    picture = images(KINDS[kind][1].get("in_chans", 3), 64, 64).float()
    torch.testing.assert_close(theirs.eval()(picture), peer.float()(picture), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::UserWarning:timm.layers.interpolate")
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        pytest.param(kind, size, marks=[] if i == j else [pytest.mark.slow])
        for i, kind in enumerate(("paper", "0_rw", "rmlp_2_rw"))
        for j, size in enumerate(((96, 64), (32, 64), (96, 96)))
    ],
)
def test_another_image_size_is_timms(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    peer = make_peer(kind, (64, 64))
    source = write_timm(peer, kind, (64, 64), tmp_path / "peer")
    ours = load(source, image_size=size)
    changes = ours.passport.origin.changes
    resized = [f"relative bias of stage {i} resized from" in " ".join(changes) for i in (3, 4)]
    assert resized == [kind != "rmlp_2_rw"] * 2
    assert ours.passport.preprocessing.size == size

    convert(source, tmp_path / "resized", to="timm", changes={"image_size": size})
    entry, arguments = KINDS[kind]
    larger = timm.create_model(entry, img_size=size, **arguments).double().eval()
    larger.load_state_dict(load_file(tmp_path / "resized" / "model.safetensors"))
    assert_same(ours, larger, images(3, *size), blocks=blocks_of(ours, larger))
    if kind != "rmlp_2_rw":  # what timm does when it loads such a file, in its float32
        for name, table in peer.named_parameters():
            if name.endswith("relative_position_bias_table"):
                there = larger.get_parameter(name)
                window = larger.get_submodule(name.rpartition(".")[0]).window_size
                timms = resize_rel_pos_bias_table(table.detach(), window, there.shape)
                torch.testing.assert_close(there.float(), timms.float(), rtol=0, atol=1e-5)


def test_the_paper_resizes_linearly() -> None:
    table = torch.arange(9.0, dtype=torch.float64).view(9, 1)  # 2x2 cells
    same = resize_offsets(table, (2, 2), (2, 2), linear)
    close(same, table)
    wide = resize_offsets(table, (2, 2), (2, 5), linear).view(3, 9)
    close(wide[:, 4], table.view(3, 3)[:, 1])  # nothing is nearer than no offset at all
    assert (wide[0].diff() >= 0).all()
    config = replace(find("coatnet_0"), image_size=(64, 64))
    with pytest.raises(UserError, match="must be paper or timm"):
        resize_state(
            build(config).state_dict(), config, replace(config, image_size=(96, 96)), method="hf"
        )


@cache
def bare(name: str, **changes: Any) -> Foreign:
    """A file of timm with its tensors' names and shapes, and nothing beside it."""
    model = blank_timm(name, **changes)
    return Foreign(f"{name}.safetensors", model.state_dict())


def settled(foreign: Foreign, **said: Any) -> tuple[CoAtNetConfig, list[str]]:
    speaks = recognise(foreign)
    assert speaks.name == "timm-coatnet"
    request = Request(foreign.source, grid=said.pop("grid", None), overrides=said)
    _, config, notes = read_config(foreign, speaks, request)
    assert isinstance(config, CoAtNetConfig)
    return config, notes


@pytest.mark.sampled(2)
@pytest.mark.parametrize("alias", FAMILIES["coatnet"].aliases)
def test_a_published_file_is_known_by_its_shapes(alias: str) -> None:
    config, notes = settled(bare(alias, num_classes=1000))
    assert config == find(alias)
    told = [note for note in notes if "activations and down-sampling as in coatnet" in note]
    assert len(told) == ("rw" in alias)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("alias", FAMILIES["coatnet"].aliases)
def test_pictures_are_prepared_as_timm_does(alias: str) -> None:
    told = timm.get_pretrained_cfg(alias)
    foreign = bare(alias, num_classes=told.num_classes)
    config, _ = settled(foreign)
    assert config.num_classes == told.num_classes
    cover = int(224 / told.crop_pct)
    assert recognise(foreign).preprocessing(foreign, config) == Preprocessing(
        size=(224, 224),
        resize=(cover, cover),
        interpolation=told.interpolation,
        mean=told.mean,
        std=told.std,
    )


def test_pictures_of_384_pixels_are_squeezed() -> None:
    told = timm.get_pretrained_cfg("coatnet_rmlp_2_rw_384")
    assert told.crop_mode == "squash"
    foreign = bare("coatnet_rmlp_2_rw_384")
    before = recognise(foreign).preprocessing(foreign, find("coatnet_rmlp_2_rw_384"))
    assert before.resize is None
    assert before.size == (384, 384)


def test_which_way_an_oblong_picture_lies_is_asked() -> None:
    foreign = bare("coatnet_0_224", img_size=(224, 192))
    with pytest.raises(UserError, match="works on a grid of 12x14 or 14x12: give grid="):
        settled(foreign)
    with pytest.raises(UserError, match="12x14 or 14x12"):
        settled(foreign, image_size=256)
    assert settled(foreign, grid=(14, 12))[0].image_size == (224, 192)
    assert settled(foreign, image_size=(192, 224))[0].image_size == (192, 224)
    assert settled(foreign, grid=(14, 12), image_size=256)[0].image_size == (224, 192)


def test_what_neither_tensors_nor_sidecars_tell_is_asked() -> None:
    with pytest.raises(UserError, match=r"put the config.json of timm beside it"):
        settled(bare("coatnet_0_rw_224", depths=(1, 1, 1, 1)))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        # BatchNorm in its transformers
        ("coatnet_bn_0_rw_224", "are in none of the known dialects"),
        ("coatnet_nano_cc_224", "stage 3 has blocks of convolution and of attention"),
    ],
)
def test_other_relatives_are_refused(name: str, sentence: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    peer = timm.create_model(name, embed_dim=(16, 32, 64, 96), stem_width=(8, 16), img_size=32)
    if "bn" in name:
        source = tmp_path / "peer"
        source.mkdir()
        (source / "config.json").write_text(json.dumps({"architecture": "coatnet_0_rw_224"}))
        write_safetensors(peer, source / "model.safetensors")
    else:
        source = write_safetensors(peer, tmp_path / "peer.safetensors")
    with pytest.raises(UserError, match=sentence):
        load(source)


def test_what_timm_cannot_hold_is_told(tmp_path: Path) -> None:
    peer = make_peer("paper", (64, 64))
    source = write_timm(peer, "paper", (64, 64), tmp_path / "peer")
    with pytest.raises(UserError, match="if its head has a hidden layer, and before if not"):
        convert(source, tmp_path / "ten", to="timm", changes={"num_classes": 10})
    changes = {"num_classes": 10, "head": "pretrain"}
    done = convert(source, tmp_path / "kept", to="timm", changes=changes)
    assert "new head for 10 classes, its last layer zero" in done.changes
    assert load(tmp_path / "kept").config.num_classes == 10
