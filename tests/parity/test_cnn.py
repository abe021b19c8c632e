"""ResNet, BiT and MobileNetV2 of torchvision, timm, transformers and big_transfer through our rows
and back: the same numbers both ways, in training too."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file
from timm.models import resnet as timm_resnet
from timm.models import resnetv2 as timm_resnetv2
from torch import Tensor, nn
from torchvision.models import mobilenetv2 as tv_mobilenet
from torchvision.models import resnet as tv_resnet

from tests.parity.compare import (
    assert_identical,
    assert_same,
    blank_timm,
    close,
    images,
    write_safetensors,
)
from tests.parity.lively import lively
from vitrail import UserError, create, load, save
from vitrail.core.without_init import without_init
from vitrail.models.catalogue import FAMILIES, find, variant_of
from vitrail.models.model import Model
from vitrail.weights.checkpoint import Checkpoint, translate
from vitrail.weights.convert import convert
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects import recognise
from vitrail.weights.families import family_weights
from vitrail.weights.families.family import Request
from vitrail.weights.module_sidecars import sidecars_of

hf: Any = transformers
timm_v1: Any = timm_resnet
timm_v2: Any = timm_resnetv2
pytestmark = pytest.mark.usefixtures("quiet_transformers")

CNNS = ("resnet", "bit", "mobilenetv2")
# sides that 32 divides, and none that any stride divides
SIZES = [(64, 96), (33, 47)]
SHALLOW = (1, 2, 1, 1)


def stages(peer: Any) -> list[nn.Module]:
    return [peer.layer1, peer.layer2, peer.layer3, peer.layer4]


@dataclass(frozen=True)
class Case:
    """A peer, its blocks beside ours, and the dialect and library that its file is in."""

    make: Callable[[], nn.Module]
    blocks: Callable[[Any], list[nn.Module]]
    dialect: str
    to: str


def narrow_v2(**arguments: Any) -> nn.Module:
    return timm_v2.ResNetV2(
        layers=SHALLOW,
        channels=(128, 256, 512, 1024),
        stem_chs=32,
        stem_type="fixed",
        conv_layer=lambda *a, **k: timm_v2.StdConv2d(*a, **{"eps": 1e-8, **k}),
        **{"num_classes": 7, **arguments},
    )


def each_block(parts: list[Any]) -> list[nn.Module]:
    return [block for part in parts for block in part]


CASES = {
    "torchvision resnet basic": Case(
        lambda: tv_resnet.ResNet(tv_resnet.BasicBlock, list(SHALLOW), num_classes=7),
        lambda peer: each_block(stages(peer)),
        "torchvision-resnet",
        "torchvision",
    ),
    "torchvision resnet bottleneck": Case(
        lambda: tv_resnet.ResNet(tv_resnet.Bottleneck, list(SHALLOW), num_classes=7),
        lambda peer: each_block(stages(peer)),
        "torchvision-resnet",
        "torchvision",
    ),
    "timm resnet": Case(
        lambda: timm_v1.ResNet(timm_v1.Bottleneck, SHALLOW, num_classes=7),
        lambda peer: each_block(stages(peer)),
        "timm-resnet",
        "timm",
    ),
    "timm bit": Case(
        narrow_v2,
        lambda peer: each_block([stage.blocks for stage in peer.stages]),
        "timm-bit",
        "timm",
    ),
    "torchvision mobilenetv2": Case(
        lambda: tv_mobilenet.MobileNetV2(num_classes=7, width_mult=0.25),
        lambda peer: list(peer.features)[1:],
        "torchvision-mobilenetv2",
        "torchvision",
    ),
    "timm mobilenetv2": Case(
        lambda: timm.create_model("mobilenetv2_035", num_classes=7),
        lambda peer: [*each_block(list(peer.blocks)), peer.bn2],
        "timm-mobilenetv2",
        "timm",
    ),
}
every_case = pytest.mark.parametrize("name", CASES)
# what a file's names do not change, once for each family of ours
ONE_OF_EACH = ("torchvision resnet bottleneck", "timm bit", "torchvision mobilenetv2")
one_of_each = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ONE_OF_EACH else [pytest.mark.slow]) for n in CASES]
)


@cache  # copy what is changed
def peer_of(name: str) -> Any:
    return lively(CASES[name].make())


def written(name: str, folder: Path) -> Path:
    return write_safetensors(peer_of(name), folder / "peer.safetensors")


def loaded(name: str, folder: Path, **changes: Any) -> Model:
    """timm's ResNet has torchvision's names: a file alone does not tell it."""
    named = CASES[name].dialect if name == "timm resnet" else None
    return load(written(name, folder), dialect=named, **changes)


@pytest.mark.slow
@every_case
def test_equals_its_peer_and_back(name: str, tmp_path: Path) -> None:
    """Logits, every block and the gradient at the input."""
    case, peer = CASES[name], peer_of(name)
    ours = loaded(name, tmp_path)
    assert ours.passport.origin.dialect == case.dialect
    for size in SIZES:
        blocks: Any = (ours.blocks_by_depth().values(), case.blocks(peer))
        assert_same(ours, peer, images(3, *size), blocks=blocks)
    save(ours, tmp_path / "native")
    convert(tmp_path / "native", tmp_path / "back.safetensors", to=case.to)
    assert_identical(
        load_file(tmp_path / "back.safetensors"), load_file(tmp_path / "peer.safetensors")
    )
    again = load(tmp_path / "native")
    assert_identical(again.state_dict(), ours.state_dict())


@pytest.mark.slow
@one_of_each
def test_trains_as_its_peer_does(name: str, tmp_path: Path) -> None:
    """In training mode: logits, gradients of every weight, and the statistics of batch norms."""
    peer, ours = copy.deepcopy(peer_of(name)).train(), loaded(name, tmp_path).train()
    for part in [*peer.modules(), *ours.modules()]:
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    batch = images(3, 64, 64, batch=4)
    out, expected = ours(batch), peer(batch)
    close(out, expected)
    for logits in (out, expected):
        weight = torch.linspace(-1, 1, logits.numel(), dtype=torch.float64).view_as(logits)
        (logits * weight).mean().backward()
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    after = copy.deepcopy(ours)
    for parameter in after.parameters():
        parameter.data = gradients[names_of(after)[parameter]]  # type: ignore[assignment]
    save(after, tmp_path / "gradients")
    convert(tmp_path / "gradients", tmp_path / "gradients.safetensors", to=CASES[name].to)
    mine = load_file(tmp_path / "gradients.safetensors")
    theirs = {name: p.grad for name, p in peer.named_parameters()} | dict(peer.named_buffers())
    for key, tensor in theirs.items():
        if not key.endswith("num_batches_tracked"):
            assert tensor is not None
            close(mine[key], tensor)


def names_of(model: nn.Module) -> dict[nn.Parameter, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


@pytest.mark.sampled(2)
@one_of_each
def test_another_head_and_channels(name: str, tmp_path: Path) -> None:
    ours = loaded(name, tmp_path, num_classes=3, channels=1)
    assert ours(images(1, 64, 64)).shape == (2, 3)
    assert not ours.state_dict()["head.classes.weight"].any()


@pytest.mark.slow
def test_maps_of_every_block_are_timms_features(tmp_path: Path) -> None:
    peer = lively(timm.create_model("resnet18", features_only=True))
    whole = lively(timm.create_model("resnet18", num_classes=7))
    whole.load_state_dict(peer.state_dict(), strict=False)
    source = write_safetensors(whole, tmp_path / "peer.safetensors")
    ours = load(source)
    image = images(3, 64, 96)
    last = {"stages.0.1": 1, "stages.1.1": 2, "stages.2.1": 3, "stages.3.1": 4}
    names = [one.module for one in ours.feature_info]
    maps = dict(zip(names, ours.intermediates(image), strict=True))
    for name, level in last.items():
        close(maps[name], peer(image)[level])
    info = {one.module: (one.channels, one.reduction) for one in ours.feature_info}
    assert [info[name] for name in last] == [(64, 4), (128, 8), (256, 16), (512, 32)]


# Published sizes, and what timm builds from what we write


def opened(make: Callable[[], nn.Module], source: str = "peer.safetensors") -> Checkpoint:
    """A peer without memory, read as a file of its tensors would be."""
    with without_init():
        peer = make()
    foreign = Foreign(source, dict(peer.state_dict()), sidecars_of(peer))
    return translate(foreign, recognise(foreign), origin=source, overrides={})


@pytest.mark.slow
@pytest.mark.parametrize("family", CNNS)
def test_published_models_are_timms(family: str) -> None:
    """Every variant is recognised by its tensors, and has as many parameters."""
    aliases = {ours: theirs for theirs, ours in FAMILIES[family].aliases.items()}
    for name, variant in FAMILIES[family].variants.items():
        peer = blank_timm(aliases.get(name, name))
        checkpoint = opened(lambda peer=peer: peer)  # type: ignore[misc]
        assert variant_of(checkpoint.config) == name
        assert checkpoint.dialect == f"timm-{family}"
        assert sum(p.numel() for p in peer.parameters()) == variant.params


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2_035"])
def test_timm_builds_what_we_write(name: str, tmp_path: Path) -> None:
    peer = lively(timm.create_model(name, num_classes=3))
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    convert(source, tmp_path / "timm", to="timm", dialect="timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    image = images(3, 64, 64)
    torch.testing.assert_close(again(image.float()).double(), peer(image), rtol=1e-4, atol=1e-4)
    ours = load(tmp_path / "timm")
    assert ours.passport.origin.dialect.startswith("timm-")
    close(ours(image), peer(image))


def test_timm_builds_other_depths(tmp_path: Path) -> None:
    ours = create("resnet50", depths=SHALLOW, num_classes=3).double().eval()
    convert(save(ours, tmp_path / "native"), tmp_path / "timm", to="timm")
    peer = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).double().eval()
    close(peer(images(3, 64, 64)), ours(images(3, 64, 64)))


# BiT's own files, which timm reads too


def bit_file(peer: Any, path: Path) -> Path:
    """The peer's weights under the names of big_transfer, as its bit_pytorch/models.py has them."""
    tensors: dict[str, Tensor] = {}

    def put(name: str, weight: Tensor) -> None:
        tensors[f"resnet/{name}"] = weight.permute(2, 3, 1, 0) if weight.ndim == 4 else weight

    put("root_block/standardized_conv2d/kernel", peer.stem.conv.weight)
    for s, stage in enumerate(peer.stages, start=1):
        for u, unit in enumerate(stage.blocks, start=1):
            at = f"block{s}/unit{u:02d}/"
            for letter, number in zip("abc", "123", strict=True):
                norm = getattr(unit, f"norm{number}")
                conv = getattr(unit, f"conv{number}")
                put(f"{at}{letter}/group_norm/gamma", norm.weight)
                put(f"{at}{letter}/group_norm/beta", norm.bias)
                put(f"{at}{letter}/standardized_conv2d/kernel", conv.weight)
            if unit.downsample is not None:
                put(f"{at}a/proj/standardized_conv2d/kernel", unit.downsample.conv.weight)
    put("group_norm/gamma", peer.norm.weight)
    put("group_norm/beta", peer.norm.bias)
    put("head/conv2d/kernel", peer.head.fc.weight)
    put("head/conv2d/bias", peer.head.fc.bias)
    np.savez(path, **{name: t.detach().numpy() for name, t in tensors.items()})  # type: ignore[arg-type]
    return path


def test_equals_bit_and_back(tmp_path: Path) -> None:
    """big_transfer divides by sqrt(variance + 1e-10), which timm's layer can do too."""
    peer: Any = copy.deepcopy(peer_of("timm bit"))
    for part in peer.modules():
        if isinstance(part, timm_v2.StdConv2d):
            part.eps = 1e-10
    source = bit_file(peer, tmp_path / "BiT-M.npz")
    ours = load(source)
    assert ours.passport.origin.dialect == "bit"
    assert ours.passport.preprocessing.resize is None
    assert any("480" in note for note in ours.passport.origin.changes)
    for size in SIZES:
        assert_same(ours, peer, images(3, *size))
    convert(save(ours, tmp_path / "native"), tmp_path / "back.npz", to="bit")
    with np.load(source) as before, np.load(tmp_path / "back.npz") as after:
        assert sorted(before) == sorted(after)
        assert all(np.array_equal(before[name], after[name]) for name in before)
    kept = {name: tensor.clone() for name, tensor in peer.state_dict().items()}
    for parameter in peer.parameters():
        nn.init.zeros_(parameter)
    peer.load_pretrained(str(tmp_path / "back.npz"))  # timm's own reader of these files
    kept["stem.conv.weight"] = kept["stem.conv.weight"].float().double()  # which rounds the stem
    assert_identical(dict(peer.state_dict()), kept)


def test_bit_for_timm_tells_what_it_computes_otherwise(tmp_path: Path) -> None:
    source = bit_file(peer_of("timm bit"), tmp_path / "BiT-M.npz")
    done = convert(source, tmp_path / "timm.safetensors", to="timm")
    assert any("standardize is 'bit'" in sentence for sentence in done.cautions)


def test_a_named_bit_of_either_file(tmp_path: Path) -> None:
    source = written("timm bit", tmp_path)
    with pytest.raises(UserError, match="its depths is"):
        load(source, model="bit_r101x1")
    foreign = Foreign("x", {"stem.conv.weight": torch.zeros(64, 3, 7, 7)})
    facts = {"depths": (3, 4, 6, 3), "width": 64, "standardize": "timm", "norm_eps": 1e-5}
    request = Request("x", named=find("bit_r50x1"))
    config, _ = family_weights("bit").resolve_config(facts, foreign, request)
    assert config.standardize == "timm"


# transformers


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_equals_transformers_and_back(kind: str, tmp_path: Path) -> None:
    sizes = [16, 32, 64] if kind == "basic" else [64, 128, 256]
    config = hf.ResNetConfig(
        embedding_size=16, hidden_sizes=sizes, depths=[1, 2, 1], layer_type=kind, num_labels=7
    )
    peer = lively(hf.ResNetForImageClassification(config))
    peer.config.id2label = {i: f"kind {i}" for i in range(7)}
    peer.save_pretrained(tmp_path / "peer")
    ours = load(tmp_path / "peer", dtype="float64")
    assert ours.passport.origin.dialect == "transformers-resnet"
    assert ours.passport.labels == tuple(f"kind {i}" for i in range(7))
    assert_same(
        ours,
        peer,
        images(3, 64, 96),
        blocks=(
            ours.blocks_by_depth().values(),
            [layer for stage in peer.resnet.encoder.stages for layer in stage.layers],
        ),
        call=lambda model, x: model(x).logits,
    )
    convert(save(ours, tmp_path / "native"), tmp_path / "back", to="transformers")
    again = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "back").double()
    assert_identical(dict(again.state_dict()), dict(peer.state_dict()))
    assert again.config.id2label == peer.config.id2label
    close(again.eval()(images(3, 64, 96)).logits, ours(images(3, 64, 96)))


def test_transformers_without_a_head(tmp_path: Path) -> None:
    config = hf.ResNetConfig(embedding_size=16, hidden_sizes=[64], depths=[1])
    peer = lively(hf.ResNetModel(config))
    peer.save_pretrained(tmp_path / "peer")
    ours = load(tmp_path / "peer", dtype="float64")
    assert ours.config.num_classes == 0
    close(ours(images(3, 32, 32)), peer(images(3, 32, 32)).pooler_output.flatten(1))


def test_transformers_v1_is_refused(tmp_path: Path) -> None:
    config = hf.ResNetConfig(
        embedding_size=16, hidden_sizes=[64], depths=[1], downsample_in_bottleneck=True
    )
    hf.ResNetForImageClassification(config).save_pretrained(tmp_path / "peer")
    with pytest.raises(UserError, match="downsample_in_bottleneck must be false"):
        load(tmp_path / "peer")


# Modules in memory, and what is no such model


@pytest.mark.sampled(2)
@one_of_each
def test_reads_a_module(name: str) -> None:
    ours = load(copy.deepcopy(peer_of(name)))
    close(ours(images(3, 64, 64)), peer_of(name)(images(3, 64, 64)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (tv_resnet.wide_resnet50_2, "this is a wide ResNet, which Vitrail does not compute"),
        (tv_resnet.resnext50_32x4d, "this is a ResNeXt, which Vitrail does not compute"),
        (timm_v2.resnetv2_50, "it has batch norms, as timm's resnetv2_50 does"),
    ],
    ids=["wide", "grouped", "v2"],
)
def test_other_residual_networks_are_refused(make: Callable[[], nn.Module], reason: str) -> None:
    with without_init():
        foreign = Foreign("x", dict(make().state_dict()))
    with pytest.raises(UserError, match=reason):
        translate(foreign, recognise(foreign), origin="x", overrides={})


def test_an_architecture_with_the_same_tensors_is_refused(tmp_path: Path) -> None:
    """Blurred pooling has no weights: only the config.json tells it."""
    convert(save(create("resnet18", num_classes=2), tmp_path / "n"), tmp_path / "t", to="timm")
    config = tmp_path / "t" / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"resnet18"', '"resnetblur18"'))
    with pytest.raises(UserError, match="resnetblur18"):
        load(tmp_path / "t")
    config.write_text(text.replace('"in_chans": 3,', '"in_chans": 3, "aa_layer": "avg",'))
    with pytest.raises(UserError, match="aa_layer='avg'"):
        load(tmp_path / "t")


# Preparation of images


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("file", "make", "side"),
    [
        ("resnet50-0676ba61.safetensors", tv_resnet.resnet50, 256),
        ("resnet50-11ad3fa6.safetensors", tv_resnet.resnet50, 232),
        ("mobilenet_v2-7ebf99e0.safetensors", tv_mobilenet.mobilenet_v2, 232),
    ],
)
def test_prepares_as_torchvision(file: str, make: Callable[[], nn.Module], side: int) -> None:
    passport = opened(make, file).passport
    before = passport.preprocessing
    weights = {256: "IMAGENET1K_V1", 232: "IMAGENET1K_V2"}[side]
    published = (
        tv_resnet.ResNet50_Weights if make is tv_resnet.resnet50
        else tv_mobilenet.MobileNet_V2_Weights
    )  # fmt: skip
    theirs = published[weights].transforms()
    assert (before.resize, before.size) == ((side, side), (224, 224))
    assert list(before.resize or ())[:1] == theirs.resize_size
    assert (list(before.mean), list(before.std)) == (theirs.mean, theirs.std)
    assert before.interpolation == theirs.interpolation.value
    noted = any("IMAGENET1K_V2" in note for note in passport.origin.changes)
    assert noted == (side == 256)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", ["resnet18.a1_in1k", "mobilenetv2_100.ra_in1k", "resnetv2_50x1_bit.goog_in21k_ft_in1k"]
)
def test_prepares_as_timm(name: str) -> None:
    checkpoint = opened(lambda: timm.create_model(name))
    cfg, before = timm.get_pretrained_cfg(name).to_dict(), checkpoint.passport.preprocessing
    assert before.size == cfg["input_size"][1:]
    assert (before.mean, before.std) == (cfg["mean"], cfg["std"])
    assert before.interpolation == cfg["interpolation"]
    assert before.crop_share == pytest.approx(cfg["crop_pct"], abs=0.01)
