"""Swin V2 in timm, torchvision, transformers and its authors' names, through our rows and back."""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file, save_file
from timm.models import SwinTransformerV2
from torch import Tensor
from torchvision.models import swin_transformer as torchvision

from tests.parity.compare import (
    assert_identical,
    assert_same,
    blank_timm,
    close,
    images,
    shaken,
    write_blank,
    write_safetensors,
)
from tests.parity.test_swin import (
    ALIKE,
    SMALL,
    answer,
    as_authors,
    blocks_of,
    hf_tokens,
    hf_write,
    parts_of,
    seen,
    sides,
)
from vitrail import UserError, load
from vitrail.models.swinv2 import VARIANTS, SwinV2Config
from vitrail.weights.convert import convert
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects import DIALECTS, dialects_called
from vitrail.weights.dialects.swinv2 import TORCHVISION_SWINV2
from vitrail.weights.files import read_foreign
from vitrail.weights.load import open_checkpoint

hf: Any = transformers  # most of it has no types
pytestmark = pytest.mark.usefixtures("quiet_transformers")


def make_timm(**arguments: Any) -> Any:
    return SwinTransformerV2(**SMALL | {"num_classes": 7} | arguments)


@cache  # copy what is changed
def timm_peer(**arguments: Any) -> Any:
    return shaken(make_timm(**arguments))


TIMM: dict[str, dict[str, Any]] = {
    "windows divide": {"img_size": 64, "window_size": 4},
    "wide": {"img_size": (32, 64), "window_size": 4},
    "tall": {"img_size": (64, 32), "window_size": 4},
    # made for one size, timm's masks know grids that windows divide alone
    "padded": {"img_size": 80, "window_size": 3, "strict_img_size": False},
    "padded rectangle": {"img_size": (40, 96), "window_size": 4, "strict_img_size": False},
    "windows shrink": {"img_size": (48, 48), "window_size": 6},
    "windows shrink to rectangles": {"img_size": (32, 128), "window_size": 8},
    "one window": {"img_size": 32, "window_size": 9},
    "grown": {"img_size": 64, "window_size": 4, "pretrained_window_sizes": (3, 3, 2)},
    "no head": {"img_size": 32, "window_size": 4, "num_classes": 0},
    "one channel, narrow MLP": {
        "img_size": 32, "window_size": 4, "in_chans": 1, "mlp_ratio": 1.5, "patch_size": 2,
    },
}  # fmt: skip


def windows_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """What nothing in a bare file tells."""
    grown = arguments.get("pretrained_window_sizes", ())
    return {"window_size": arguments["window_size"], "pretrained_windows": grown}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] if kind in ALIKE else []) for kind in TIMM],
)
def test_equals_timm_and_back(kind: str, tmp_path: Path) -> None:
    arguments = TIMM[kind]
    peer, size = timm_peer(**arguments), sides(arguments["img_size"])
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    said = windows_of(arguments)

    ours: Any = load(source, image_size=size, **said)
    assert ours.passport.origin.dialect == "timm-swinv2"
    assert ours.passport.origin.changes == ()
    image = images(arguments.get("in_chans", 3), *size)
    assert_same(ours, peer, image, blocks=(parts_of(ours.stages), parts_of(peer.layers)))
    close(ours.encode(image), peer.forward_features(image))

    grid = ours.config.grid
    convert(source, tmp_path / "native", to="vitrail", grid=grid, changes=said)
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="timm")
    back = load_file(tmp_path / "back.safetensors")
    assert_identical(back, load_file(source))
    again = make_timm(**arguments).double().eval()
    again.load_state_dict(back, strict=True)
    close(again(image), peer(image))

    if kind not in ("no head", "padded", "padded rectangle"):  # which timm does not load, or build
        done = convert(source, tmp_path / "timm", to="timm", grid=grid, changes=said)
        assert done.cautions == () or size[0] != size[1]
        again = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True)
        close(again.double().eval()(image), copy.deepcopy(peer).float().double()(image))
        assert load(tmp_path / "timm").config == ours.config


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("size", "window", "changed"),
    [((128, 128), 4, 0), ((64, 128), 4, 0), ((32, 32), 4, 1), ((96, 96), 6, 3), ((128, 64), 8, 3)],
)
def test_another_size_goes_on_from_the_windows_of_training(
    size: tuple[int, int], window: int, changed: int, tmp_path: Path
) -> None:
    peer = timm_peer(img_size=64, window_size=4)
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    convert(source, tmp_path / "native", to="vitrail", grid=(16, 16), changes={"window_size": 4})
    ours: Any = load(tmp_path / "native", image_size=size, window_size=window)
    told = [s for s in ours.passport.origin.changes if "offsets measured against 4x4" in s]
    assert len(told) == changed
    assert ours.config.pretrained_windows == ((4, 4, 4) if changed else ())
    larger = make_timm(
        img_size=size,
        window_size=window,
        pretrained_window_sizes=(4, 4, 4) if changed else (0,) * 3,
    )
    larger.double().eval().load_state_dict(peer.state_dict())
    assert_same(ours, larger, images(3, *size), blocks=(ours.stages, larger.layers))
    # and from there back to where it was
    again: Any = load(tmp_path / "native")
    close(again(images(3, 64, 64)), peer(images(3, 64, 64)))


def test_windows_that_grew_grow_further(tmp_path: Path) -> None:
    arguments = TIMM["grown"]
    peer = timm_peer(**arguments)
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    said = windows_of(arguments)
    convert(source, tmp_path / "native", to="vitrail", grid=(16, 16), changes=said)
    ours: Any = load(tmp_path / "native", image_size=96, window_size=6)
    assert ours.config.pretrained_windows == (3, 3, 2)
    larger = make_timm(**arguments | {"img_size": 96, "window_size": 6}).double().eval()
    larger.load_state_dict(peer.state_dict())
    close(ours(images(3, 96, 96)), larger(images(3, 96, 96)))


@pytest.mark.parametrize("name", ["swinv2_tiny_window16_256", "swinv2_base_window12to24_192to384"])
def test_a_published_file_tells_everything_in_its_config(name: str, tmp_path: Path) -> None:
    peer = blank_timm(name, num_classes=3, depths=(1, 1, 1, 1))
    write_blank(peer, tmp_path / "model.safetensors")
    side = timm.get_pretrained_cfg(name).input_size[1]
    told = {"architecture": name, "pretrained_cfg": {"input_size": [3, side, side]}}
    (tmp_path / "config.json").write_text(json.dumps(told))
    opened: Any = open_checkpoint(tmp_path)
    assert opened.config.image_size == (side, side)
    assert opened.config.window_size == (16 if side == 256 else 24)
    assert opened.config.pretrained_windows == (() if side == 256 else (12, 12, 12, 6))
    assert opened.notes == ()


def test_windows_that_nothing_tells_are_asked_for(tmp_path: Path) -> None:
    peer = blank_timm("swinv2_tiny_window8_256", num_classes=2)
    source = write_blank(peer, tmp_path / "peer.safetensors")
    with pytest.raises(UserError, match="swinv2_t, swinv2_t_w16 have its shape: give model="):
        load(source)
    assert open_checkpoint(source, model="swinv2_t_w16").config.window_size == 16  # type: ignore[attr-defined]
    opened: Any = open_checkpoint(source, overrides={"window_size": 8})
    assert opened.config.image_size == (256, 256)
    with pytest.raises(UserError, match="the model you named has 128"):
        open_checkpoint(source, model="swinv2_b")
    with pytest.raises(UserError, match="the model you named is a "):
        open_checkpoint(source, model="swin_t")
    source = write_safetensors(timm_peer(img_size=64, window_size=4), tmp_path / "s.safetensors")
    with pytest.raises(
        UserError, match="does not specify the size of its windows: give window_size"
    ):
        load(source)


def torchvision_peer(window: int) -> Any:
    return torchvision.SwinTransformer(
        **SMALL,
        patch_size=[4, 4],
        window_size=[window, window],
        num_classes=7,
        block=torchvision.SwinTransformerBlockV2,
        downsample_layer=torchvision.PatchMergingV2,
    )


def no_key_bias(peer: Any) -> Any:
    """torchvision stores a bias for keys that it does not use, and starts it at zero."""
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            if name.endswith("attn.qkv.bias"):
                parameter.view(3, -1)[1] = 0
    return peer


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("size", "window"),
    [
        ((64, 64), 4),
        ((32, 64), 4),
        ((72, 40), 4),
        ((100, 84), 7),
        ((16, 24), 7),
        pytest.param((64, 32), 4, marks=pytest.mark.slow),  # as (32, 64), upright
    ],
)
def test_equals_torchvision_and_back(size: tuple[int, int], window: int, tmp_path: Path) -> None:
    peer = no_key_bias(shaken(torchvision_peer(window)))
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    image = images(3, *size)
    ours: Any = load(source, image_size=size)
    assert ours.passport.origin.dialect == "torchvision-swinv2"
    stages = [peer.features[1], peer.features[3], peer.features[5]]
    assert_same(ours, peer, image, blocks=(parts_of(ours.stages), parts_of(stages)))

    convert(source, tmp_path / "native", to="vitrail", changes={"image_size": size})
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="torchvision")
    back = load_file(tmp_path / "back.safetensors")
    assert_identical(back, load_file(source))
    again = torchvision_peer(window).double().eval()
    again.load_state_dict(back, strict=True)
    close(again(image), peer(image))


def test_a_bias_of_keys_changes_nothing_in_torchvision(tmp_path: Path) -> None:
    peer = shaken(torchvision_peer(4))
    ours = load(write_safetensors(peer, tmp_path / "peer.safetensors"), image_size=64)
    close(ours(images(3, 64, 64)), peer(images(3, 64, 64)))


@pytest.mark.parametrize(
    ("name", "params"), [("t", 28_351_570), ("s", 49_737_442), ("b", 87_930_848)]
)
def test_published_by_torchvision(name: str, params: int) -> None:
    """Its models are larger by the bias of keys, and prepared as it documents."""
    weights = getattr(torchvision, f"Swin_V2_{name.upper()}_Weights").DEFAULT
    row = VARIANTS[f"swinv2_{name}"]
    keys = sum(row.config.width(stage) * depth for stage, depth in enumerate(row.config.depths))
    assert row.params + keys == weights.meta["num_params"] == params
    official = weights.transforms()
    ours = TORCHVISION_SWINV2.preprocessing(Foreign("published", {}), row.config)
    assert ours.size == (official.crop_size[0],) * 2
    assert ours.resize == (official.resize_size[0],) * 2
    assert ours.interpolation == official.interpolation.value


def authors_state(peer: Any) -> dict[str, Tensor]:
    state = as_authors(peer)
    for i, stage in enumerate(peer.layers):
        for j, block in enumerate(stage.blocks):
            name = f"layers.{i}.blocks.{j}.attn.relative_coords_table"
            state[name] = block.attn.relative_coords_table
    return state


AUTHORS: dict[str, dict[str, Any]] = {
    "square": {"img_size": 64, "window_size": 4},
    "larger": {"img_size": 96, "window_size": 6},
    "windows shrink": {"img_size": 48, "window_size": 6},
    "grown": {"img_size": 128, "window_size": 8, "pretrained_window_sizes": (4, 4, 4)},
    "grown and shrunk": {"img_size": 64, "window_size": 8, "pretrained_window_sizes": (6, 6, 3)},
    "no head": {"img_size": 64, "window_size": 4, "num_classes": 0},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", AUTHORS)
def test_equals_its_authors_and_back(kind: str, tmp_path: Path) -> None:
    arguments = AUTHORS[kind]
    peer, size = timm_peer(**arguments), sides(arguments["img_size"])
    state = authors_state(peer)
    torch.save({"model": state, "epoch": 299}, tmp_path / "peer.pth")
    ours: Any = load(tmp_path / "peer.pth")
    assert ours.passport.origin.dialect == "swinv2"
    assert ours.config.image_size == size
    assert ours.config.window_size == arguments["window_size"]
    assert ours.config.pretrained_windows == arguments.get("pretrained_window_sizes", ())
    assert_same(ours, peer, images(3, *size), blocks=(ours.stages, peer.layers))

    convert(tmp_path / "peer.pth", tmp_path / "back.pth", to="swinv2")
    back = torch.load(tmp_path / "back.pth", weights_only=True)["model"]
    buffers = ("relative_position_index", "relative_coords_table", "attn_mask")
    assert_identical(back, {n: t for n, t in state.items() if not n.endswith(buffers)})


HF: dict[str, tuple[str, dict[str, Any]]] = {
    "square": ("Swinv2ForImageClassification", {"image_size": 64}),
    "wide": ("Swinv2ForImageClassification", {"image_size": (32, 64)}),
    "tall": ("Swinv2ForImageClassification", {"image_size": (64, 32)}),
    "padded": ("Swinv2ForImageClassification", {"image_size": (72, 104)}),
    "odd grids": ("Swinv2ForImageClassification", {"image_size": (84, 100)}),
    "windows shrink": ("Swinv2ForImageClassification", {"image_size": 32, "window_size": 6}),
    "grown": (
        "Swinv2ForImageClassification",
        {"image_size": 64, "pretrained_window_sizes": (3, 3, 2)},
    ),
    "no head": ("Swinv2Model", {"image_size": 64}),
    "masked": ("Swinv2ForMaskedImageModeling", {"image_size": 64, "encoder_stride": 16}),
}


def hf_peer(kind: str) -> Any:
    """A copy for everyone: images of another size change the windows of transformers' model."""
    return copy.deepcopy(_hf_peer(kind))


@cache
def _hf_peer(kind: str) -> Any:
    name, arguments = HF[kind]
    shape = SMALL | {"window_size": 4, "num_labels": 7} | arguments
    return shaken(getattr(hf, name)(hf.Swinv2Config(**shape)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] if kind in ALIKE else []) for kind in HF],
)
def test_equals_transformers_and_back(kind: str, tmp_path: Path) -> None:
    peer = hf_peer(kind)
    source = hf_write(peer, tmp_path / "peer", "-v4")
    ours: Any = load(source)
    assert ours.passport.origin.dialect == "transformers-swinv2"
    assert ours.passport.origin.changes == ()  # config.json told everything
    image = images(3, *sides(peer.config.image_size))
    assert_same(ours, peer, image, call=answer)
    close(ours.encode(image).flatten(1, 2), hf_tokens(peer, image))
    theirs = seen(blocks_of(peer.base_model.encoder.layers), lambda: hf_tokens(peer, image))
    mine = seen(blocks_of(ours.stages), lambda: ours(image))
    for one, other in zip(mine, theirs, strict=True):
        close(one, other)

    done = convert(source, tmp_path / "back", to="transformers")
    assert done.to == "transformers-swinv2"
    assert done.cautions == ()
    assert load(tmp_path / "back").config == ours.config
    dropped = {name for name, _ in open_checkpoint(source).coverage.dropped}
    before = load_file(source / "model.safetensors")
    before = {name: tensor for name, tensor in before.items() if name not in dropped}
    if not ours.config.num_classes:  # written as the encoder itself
        before = {name.removeprefix("swinv2."): tensor for name, tensor in before.items()}
    assert_identical(load_file(tmp_path / "back" / "model.safetensors"), before)

    classifies = "ForImageClassification" in type(peer).__name__
    auto: Any = hf.AutoModelForImageClassification if classifies else hf.AutoModel
    again, info = auto.from_pretrained(
        tmp_path / "back", dtype=torch.float64, output_loading_info=True
    )
    assert not any(info.values()), info
    close(answer(again.eval(), image), answer(peer, image))


def everyone(tmp_path: Path) -> dict[str, Path]:
    """One file of each dialect, with nothing beside it."""
    peer = timm_peer(img_size=64, window_size=4)
    torch.save(authors_state(peer), tmp_path / "swinv2.pth")
    vision = no_key_bias(shaken(torchvision_peer(4)))
    hf_write(hf_peer("square"), tmp_path / "hf", "")
    return {
        "swinv2": tmp_path / "swinv2.pth",
        "timm-swinv2": write_safetensors(peer, tmp_path / "timm.safetensors"),
        "torchvision-swinv2": write_safetensors(vision, tmp_path / "vision.safetensors"),
        "transformers-swinv2": tmp_path / "hf" / "model.safetensors",
    }


def test_exactly_one_dialect_claims_a_file(tmp_path: Path) -> None:
    for name, path in everyone(tmp_path).items():
        foreign = read_foreign(path)
        assert [dialect.name for dialect in DIALECTS if dialect.claims(foreign)] == [name]


@pytest.mark.slow
def test_every_dialect_into_every_other_keeps_every_bit(tmp_path: Path) -> None:
    files = everyone(tmp_path)
    whole: dict[str, Any] = {"grid": (16, 16), "changes": {"window_size": 4}}
    for name, path in files.items():
        convert(path, tmp_path / f"{name}-1", to="vitrail", dialect=name, **whole)
        for other in files:
            out = tmp_path / f"{name}-{other}.pth"
            convert(path, out, to=other, dialect=name, **whole)
            convert(out, tmp_path / f"{name}-{other}", to="vitrail", **whole)
            one, same = (
                load_file(tmp_path / at / "model.safetensors")
                for at in (f"{name}-1", f"{name}-{other}")
            )
            assert_identical(one, same)


SQUARE = SwinV2Config(dim=12, depths=(2, 2), heads=(1, 2), window_size=4, image_size=(32, 32))


@pytest.mark.parametrize(
    ("dialect", "changes", "why"),
    [
        ("timm-swinv2", {"image_size": (40, 40)}, "cuts the grid of stage 1, 10x10"),
        ("torchvision-swinv2", {"pretrained_windows": (3, 3)}, "against its own windows"),
        ("torchvision-swinv2", {"image_size": (16, 16)}, "against its own windows"),
        (
            "swinv2",
            {"image_size": (64, 32), "window_policy": "hf"},
            "cuts the grid of stage 2, 8x4",
        ),
        ("transformers-swinv2", {"image_size": (64, 32)}, "cuts the grid of stage 2, 8x4"),
        ("transformers-swinv2", {"norm_eps": 1e-6}, "eps"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(
    dialect: str, changes: dict[str, Any], why: str
) -> None:
    (one,) = dialects_called(dialect)
    assert one.reason_unsupported(SQUARE) is None
    assert why in (one.reason_unsupported(SwinV2Config(**{**vars(SQUARE), **changes})) or "")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"window_size": "4"}, "window_size"),
        ({"window_size": 0}, "window_size must be at least 1, got 0"),
        ({"pretrained_window_sizes": [4, 4]}, "one for each of 3 stages"),
        ({"pretrained_window_sizes": [4, -4, 4]}, "1 to 1024 cells"),
        ({"pretrained_window_sizes": 4}, "pretrained_window_sizes"),
        ({"hidden_act": "silu"}, "hidden_act"),
    ],
)
def test_strange_sidecars_end_in_a_sentence(
    said: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    hf_write(hf_peer("square"), tmp_path, "")
    told = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(told | said))
    with pytest.raises(UserError, match=sentence):
        load(tmp_path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "arguments",
    [{"window_size": [4, 8]}, {"window_size": "4"}, {"pretrained_window_sizes": "abc"},
     {"img_size": "64"}, {"img_size": [64]}],
)  # fmt: skip
def test_strange_arguments_of_timm_end_in_a_sentence(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    write_safetensors(timm_peer(img_size=64, window_size=4), tmp_path / "model.safetensors")
    given = {"img_size": 64, "window_size": 4} | arguments
    told = {"architecture": "swinv2_tiny_window8_256", "model_args": given}
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(UserError):
        load(tmp_path)


# every value in a table of the right shape, and every wrong shape once
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("shape", "value"),
    [
        pytest.param(
            shape,
            value,
            marks=[] if shape == (1, 7, 7, 2) or value == 0.0 else [pytest.mark.slow],
        )
        for shape in ((), (3,), (0, 0, 0, 0), (1, 7, 7, 2), (1, 3, 3, 2), (1, 7, 9, 2))
        for value in (0.0, 1e30, float("nan"))
    ],
)
def test_strange_buffers_end_in_a_sentence_or_are_read(
    shape: tuple[int, ...], value: float, tmp_path: Path
) -> None:
    state = authors_state(timm_peer(img_size=64, window_size=4))
    state["layers.0.blocks.0.attn.relative_coords_table"] = torch.full(shape, value)
    save_file({n: t.contiguous() for n, t in state.items()}, tmp_path / "peer.safetensors")
    if shape == (1, 7, 7, 2):
        load(tmp_path / "peer.safetensors")
    else:
        with pytest.raises(UserError):
            load(tmp_path / "peer.safetensors")
