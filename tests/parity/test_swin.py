"""Swin in timm, torchvision, transformers and its authors' names, through our rows and back."""

import copy
import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file, save_file
from timm.models import SwinTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import swin_transformer as torchvision

from tests.parity.compare import (
    VERSIONS,
    assert_identical,
    assert_same,
    blank_timm,
    close,
    images,
    in_both_versions,
    shaken,
    write_blank,
    write_safetensors,
)
from vitrail import UserError, load
from vitrail.models.swin import VARIANTS, SwinConfig
from vitrail.weights.convert import convert
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects import DIALECTS, dialects_called
from vitrail.weights.dialects.swin import TORCHVISION_SWIN
from vitrail.weights.files import read_foreign
from vitrail.weights.load import open_checkpoint

hf: Any = transformers  # most of it has no types
pytestmark = pytest.mark.usefixtures("quiet_transformers")

SMALL: dict[str, Any] = {"embed_dim": 12, "depths": (2, 2, 2), "num_heads": (1, 2, 4)}


def sides(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def blocks_of(stages: Iterable[Any]) -> nn.ModuleList:
    """Every block of every stage, in order."""
    return nn.ModuleList([block for stage in stages for block in getattr(stage, "blocks", stage)])


def parts_of(stages: Iterable[Any]) -> list[nn.Module]:
    """Every stage, and every block of every stage."""
    return [*stages, *blocks_of(stages)]


@cache  # copy what is changed
def timm_peer(**arguments: Any) -> Any:
    return shaken(SwinTransformer(**SMALL | {"num_classes": 7} | arguments))


TIMM: dict[str, dict[str, Any]] = {
    "windows divide": {"img_size": 64, "window_size": 4},
    "wide": {"img_size": (32, 64), "window_size": 4},
    "tall": {"img_size": (64, 32), "window_size": 4},
    "padded": {"img_size": 80, "window_size": 3},
    "padded rectangle": {"img_size": (40, 96), "window_size": 4},
    "odd grids": {"img_size": 100, "window_size": 7},
    "windows shrink": {"img_size": (48, 48), "window_size": 5},
    "windows shrink to rectangles": {"img_size": (32, 96), "window_size": 5},
    "one window": {"img_size": 16, "window_size": 7},
    "no head": {"img_size": 32, "window_size": 4, "num_classes": 0},
    "one channel, narrow MLP": {
        "img_size": 32, "window_size": 4, "in_chans": 1, "mlp_ratio": 1.5, "patch_size": 2,
    },
}  # fmt: skip


# upright as "wide" is, and a rectangle as that is, padded as the square is
ALIKE = ("tall", "padded rectangle")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] if kind in ALIKE else []) for kind in TIMM],
)
def test_equals_timm_and_back(kind: str, tmp_path: Path) -> None:
    peer, arguments = timm_peer(**TIMM[kind]), TIMM[kind]
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    size = sides(arguments["img_size"])

    ours: Any = load(source, image_size=size)
    assert ours.passport.origin.dialect == "timm-swin"
    image = images(arguments.get("in_chans", 3), *size)
    assert_same(ours, peer, image, blocks=(parts_of(ours.stages), parts_of(peer.layers)))
    close(ours.encode(image), peer.forward_features(image))

    convert(source, tmp_path / "native", to="vitrail", grid=ours.config.grid)
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="timm")
    back = load_file(tmp_path / "back.safetensors")
    assert_identical(back, load_file(source))
    again = SwinTransformer(**SMALL | {"num_classes": 7} | arguments).double().eval()
    again.load_state_dict(back, strict=True)
    close(again(image), peer(image))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["windows divide", "padded", "odd grids", "windows shrink"])
def test_timm_builds_what_we_write(kind: str, tmp_path: Path) -> None:
    """timm itself makes the same model from our directory, config.json and all. (It does not load
    its own files where windows are no squares, or without a head.)"""
    peer, (height, width) = timm_peer(**TIMM[kind]), sides(TIMM[kind]["img_size"])
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    grid = (height // 4, width // 4)
    done = convert(source, tmp_path / "timm", to="timm", grid=grid)
    assert done.cautions == ()
    again: Any = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True)
    image = images(3, height, width)
    close(again.double().eval()(image), copy.deepcopy(peer).float().double()(image))
    assert load(tmp_path / "timm").config == load(source, grid=grid).config


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence", "ignore:torch.searchsorted")
@pytest.mark.parametrize(
    ("size", "window", "resized"),
    [
        ((96, 96), 4, 0),
        ((64, 128), 4, 0),
        ((72, 40), 4, 1),
        ((16, 16), 4, 2),
        ((96, 96), 6, 3),
        ((48, 96), 6, 3),
        ((24, 24), 3, 3),
    ],
)
def test_another_size_equals_timms(
    size: tuple[int, int], window: int, resized: int, tmp_path: Path
) -> None:
    peer = timm_peer(img_size=64, window_size=4)
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    ours = load(source, grid=(16, 16), image_size=size, window_size=window)
    told = [sentence for sentence in ours.passport.origin.changes if "resized from" in sentence]
    assert len(told) == resized
    peer = copy.deepcopy(peer)
    peer.set_input_size(size, window_size=(window, window))
    # timm resizes in float32, whatever the precision of the model is
    tolerance = 1e-6 if resized else 1e-9
    image = images(3, *size)
    torch.testing.assert_close(ours(image), peer(image), rtol=0, atol=tolerance)


def test_a_published_file_tells_everything_in_its_config(tmp_path: Path) -> None:
    """timm's hub has an architecture and a pretrained_cfg beside the tensors, and no arguments."""
    name = "swin_base_patch4_window12_384"
    peer = blank_timm(name, num_classes=3, depths=(1, 1, 1, 1))
    write_blank(peer, tmp_path / "model.safetensors")
    settings = '{"architecture": "%s", "pretrained_cfg": {"input_size": [3, 384, 384]}}'
    (tmp_path / "config.json").write_text(settings % name)
    opened = open_checkpoint(tmp_path)
    assert opened.config.image_size == (384, 384)
    assert opened.notes == ()


def torchvision_peer(window: int, **arguments: Any) -> Any:
    shape = SMALL | {"patch_size": [4, 4], "window_size": [window, window], "num_classes": 7}
    return torchvision.SwinTransformer(**shape | arguments)


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
    peer = shaken(torchvision_peer(window))
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    image = images(3, *size)
    ours: Any = load(source, image_size=size)
    assert ours.passport.origin.dialect == "torchvision-swin"
    stages = [peer.features[1], peer.features[3], peer.features[5]]
    assert_same(ours, peer, image, blocks=(parts_of(ours.stages), parts_of(stages)))

    convert(source, tmp_path / "native", to="vitrail", changes={"image_size": size})
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="torchvision")
    back = load_file(tmp_path / "back.safetensors")
    assert_identical(back, load_file(source))
    again = torchvision_peer(window).double().eval()
    again.load_state_dict(back, strict=True)
    close(again(image), peer(image))


@pytest.mark.parametrize("name", ["swin_t", "swin_s", "swin_b"])
def test_prepares_published_weights_as_torchvision_documents(name: str) -> None:
    weights = getattr(torchvision, f"{name[:-1].title()}{name[-1].upper()}_Weights").DEFAULT
    official = weights.transforms()
    ours = TORCHVISION_SWIN.preprocessing(Foreign("published", {}), VARIANTS[name].config)
    assert ours.size == (official.crop_size[0],) * 2
    assert ours.resize == (official.resize_size[0],) * 2
    assert ours.interpolation == official.interpolation.value
    assert (ours.mean, ours.std) == (tuple(official.mean), tuple(official.std))


def as_authors(peer: Any) -> dict[str, Tensor]:
    """timm's tensors under the authors' names, with the buffers that their files hold."""
    state: dict[str, Tensor] = {}
    for name, tensor in peer.state_dict().items():
        parts = name.replace("head.fc.", "head.").split(".")
        if parts[2:3] == ["downsample"]:
            parts[1] = str(int(parts[1]) - 1)
        state[".".join(parts)] = tensor
    for i, stage in enumerate(peer.layers):
        for j, block in enumerate(stage.blocks):
            at = f"layers.{i}.blocks.{j}"
            state[f"{at}.attn.relative_position_index"] = block.attn.relative_position_index
            if block.attn_mask is not None:
                state[f"{at}.attn_mask"] = block.attn_mask
    return state


AUTHORS: dict[str, dict[str, Any]] = {
    "square": {"img_size": 64, "window_size": 4},
    "larger": {"img_size": 96, "window_size": 6},
    "windows shrink": {"img_size": 48, "window_size": 6},
    "no head": {"img_size": 64, "window_size": 4, "num_classes": 0},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", AUTHORS)
def test_equals_its_authors_and_back(kind: str, tmp_path: Path) -> None:
    peer = timm_peer(**AUTHORS[kind])
    state, size = as_authors(peer), sides(AUTHORS[kind]["img_size"])
    torch.save({"model": state, "epoch": 299}, tmp_path / "peer.pth")
    ours: Any = load(tmp_path / "peer.pth")
    assert ours.passport.origin.dialect == "swin"
    assert ours.config.image_size == size  # the masks tell
    assert_same(ours, peer, images(3, *size), blocks=(ours.stages, peer.layers))

    convert(tmp_path / "peer.pth", tmp_path / "back.pth", to="swin")
    back = torch.load(tmp_path / "back.pth", weights_only=True)["model"]
    buffers = ("relative_position_index", "attn_mask")
    assert_identical(back, {n: t for n, t in state.items() if not n.endswith(buffers)})
    # what timm makes of the authors' own files
    again = SwinTransformer(**SMALL | {"num_classes": 7} | AUTHORS[kind]).double().eval()
    again.load_state_dict(timm.models.swin_transformer.checkpoint_filter_fn(back, again))
    close(again(images(3, *size)), peer(images(3, *size)))


def test_reads_the_encoder_of_simmim(tmp_path: Path) -> None:
    peer = timm_peer(img_size=64, window_size=4, num_classes=0)
    state = {f"encoder.{name}": tensor for name, tensor in as_authors(peer).items()}
    state["encoder.mask_token"] = torch.zeros(1, 1, 12)
    state["decoder.0.weight"] = torch.zeros(768, 48, 1, 1)
    state["decoder.0.bias"] = torch.zeros(768)
    torch.save({"model": state}, tmp_path / "peer.pth")
    opened = open_checkpoint(tmp_path / "peer.pth")
    assert opened.dialect == "swin"
    dropped = {name for name, _ in opened.coverage.dropped}
    assert {"encoder.mask_token", "decoder.0.weight", "decoder.0.bias"} <= dropped
    close(load(tmp_path / "peer.pth")(images(3, 64, 64)), peer(images(3, 64, 64)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("window", [3, 6, 7])
def test_tables_are_resized_as_the_authors_do(window: int, tmp_path: Path) -> None:
    peer = timm_peer(img_size=64, window_size=4)
    state = as_authors(peer)
    torch.save({"model": state}, tmp_path / "peer.pth")
    side = window * 16
    ours = load(tmp_path / "peer.pth", image_size=side, window_size=window).state_dict()
    for i, depth in enumerate(SMALL["depths"]):
        for j in range(depth):
            table = state[f"layers.{i}.blocks.{j}.attn.relative_position_bias_table"]
            grid = table.mT.reshape(1, -1, 7, 7)
            expected = F.interpolate(grid, size=(2 * window - 1,) * 2, mode="bicubic")
            close(ours[f"stages.{i}.blocks.{j}.attention.bias.table"], expected.flatten(2)[0].mT)


HF: dict[str, tuple[str, dict[str, Any]]] = {
    "square": ("SwinForImageClassification", {"image_size": 64}),
    "wide": ("SwinForImageClassification", {"image_size": (64, 128)}),
    "tall": ("SwinForImageClassification", {"image_size": (128, 64)}),
    "padded": ("SwinForImageClassification", {"image_size": (72, 104)}),
    "odd grids": ("SwinForImageClassification", {"image_size": (84, 100)}),
    "narrow MLP": ("SwinForImageClassification", {"image_size": 32, "mlp_ratio": 1.5}),
    "no head": ("SwinModel", {"image_size": 64}),
    "masked": ("SwinForMaskedImageModeling", {"image_size": 64, "encoder_stride": 16}),
}


def hf_peer(kind: str) -> Any:
    """A copy for everyone: images of another size change the windows of transformers' model."""
    return copy.deepcopy(_hf_peer(kind))


@cache
def _hf_peer(kind: str) -> Any:
    name, arguments = HF[kind]
    shape = SMALL | {"window_size": 4, "num_labels": 7} | arguments
    if kind == "narrow MLP":
        shape |= {"depths": (2, 2), "num_heads": (1, 2)}
    return shaken(getattr(hf, name)(hf.SwinConfig(**shape)))


def hf_write(peer: Any, directory: Path, version: str) -> Path:
    """As version 5 saves it, in the classic names, or by hand in those that it has in memory."""
    peer.save_pretrained(directory)
    if version == "":
        tensors = {name: tensor.contiguous() for name, tensor in peer.state_dict().items()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def hf_tokens(peer: Any, image: Tensor) -> Tensor:
    return peer.base_model(image).last_hidden_state


def answer(peer: Any, image: Tensor) -> Tensor:
    """Logits, or the mean of the tokens where there is no head to give any."""
    classifies = "ForImageClassification" in type(peer).__name__
    return peer(image).logits if classifies else hf_tokens(peer, image).mean(dim=1)


def seen(modules: Iterable[nn.Module], run: Callable[[], Any]) -> list[Tensor]:
    """What modules give, with rows and columns in one."""
    found: list[Tensor] = []

    def record(module: nn.Module, args: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        found.append(tensor.flatten(1, -2))

    handles = [module.register_forward_hook(record) for module in modules]
    run()
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.sampled(2)
@in_both_versions(HF, ["square", "no head", "masked"])
def test_equals_transformers_and_back(kind: str, version: str, tmp_path: Path) -> None:
    peer = hf_peer(kind)
    source = hf_write(peer, tmp_path / "peer", version)
    ours: Any = load(source)
    dialect = f"transformers-swin{version}"
    assert ours.passport.origin.dialect == dialect
    assert ours.passport.origin.changes == ()  # config.json told everything

    image = images(3, *sides(peer.config.image_size))
    assert_same(ours, peer, image, call=answer)
    close(ours.encode(image).flatten(1, 2), hf_tokens(peer, image))
    theirs = seen(blocks_of(peer.base_model.encoder.layers), lambda: hf_tokens(peer, image))
    for mine, other in zip(seen(blocks_of(ours.stages), lambda: ours(image)), theirs, strict=True):
        close(mine, other)

    convert(source, tmp_path / "back", to=dialect)
    assert load(tmp_path / "back").config == ours.config
    dropped = {name for name, _ in open_checkpoint(source).coverage.dropped}
    before = load_file(source / "model.safetensors")
    before = {name: tensor for name, tensor in before.items() if name not in dropped}
    if not ours.config.num_classes:  # written as the encoder itself
        before = {name.removeprefix("swin."): tensor for name, tensor in before.items()}
    assert_identical(load_file(tmp_path / "back" / "model.safetensors"), before)


@pytest.mark.sampled(2)
@in_both_versions(HF, ["square", "no head", "masked"])
def test_transformers_builds_what_we_write(kind: str, version: str, tmp_path: Path) -> None:
    peer = hf_peer(kind)
    source = hf_write(peer, tmp_path / "peer", version)
    done = convert(source, tmp_path / "ours", to=f"transformers-swin{version}")
    assert done.cautions == ()  # config.json and preprocessor_config.json tell everything
    classifies = "ForImageClassification" in type(peer).__name__
    auto: Any = hf.AutoModelForImageClassification if classifies else hf.AutoModel
    theirs, info = auto.from_pretrained(
        tmp_path / "ours", dtype=torch.float64, output_loading_info=True
    )
    assert not any(info.values()), info
    image = images(3, *sides(peer.config.image_size))
    close(answer(theirs.eval(), image), answer(peer, image))
    hf.AutoImageProcessor.from_pretrained(tmp_path / "ours")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [(96, 96), (64, 128), (72, 104)])
def test_another_image_size_equals_transformers(size: tuple[int, int], tmp_path: Path) -> None:
    peer = hf_peer("square")
    ours = load(hf_write(peer, tmp_path, ""), image_size=size)
    close(ours(images(3, *size)), answer(peer, images(3, *size)))


def test_reads_the_index_that_version_4_kept(tmp_path: Path) -> None:
    peer = hf_peer("square")
    hf_write(peer, tmp_path, "-v4")
    tensors = load_file(tmp_path / "model.safetensors")
    at = "swin.encoder.layers.0.blocks.0.attention.self.relative_position_index"
    save_file(
        tensors | {at: torch.zeros(16, 16, dtype=torch.int64)}, tmp_path / "model.safetensors"
    )
    close(load(tmp_path)(images(3, 64, 64)), answer(peer, images(3, 64, 64)))


def everyone(tmp_path: Path) -> dict[str, Path]:
    """One file of each dialect, with nothing beside it."""
    peer = timm_peer(img_size=64, window_size=4)
    torch.save(as_authors(peer), tmp_path / "swin.pth")
    vision = shaken(torchvision_peer(4))
    for version in VERSIONS:
        hf_write(hf_peer("square"), tmp_path / f"hf{version}", version)
    return {
        "swin": tmp_path / "swin.pth",
        "timm-swin": write_safetensors(peer, tmp_path / "timm.safetensors"),
        "torchvision-swin": write_safetensors(vision, tmp_path / "vision.safetensors"),
        "transformers-swin": tmp_path / "hf" / "model.safetensors",
        "transformers-swin-v4": tmp_path / "hf-v4" / "model.safetensors",
    }


def test_exactly_one_dialect_claims_a_file(tmp_path: Path) -> None:
    for name, path in everyone(tmp_path).items():
        foreign = read_foreign(path)
        assert [dialect.name for dialect in DIALECTS if dialect.claims(foreign)] == [name]


@pytest.mark.slow
def test_every_dialect_into_every_other_keeps_every_bit(tmp_path: Path) -> None:
    files = everyone(tmp_path)
    for name, path in files.items():
        whole = {"grid": (16, 16), "dialect": name}
        convert(path, tmp_path / f"{name}-1", to="vitrail", **whole)  # type: ignore[arg-type]
        for other in files:
            out = tmp_path / f"{name}-{other}.pth"
            convert(path, out, to=other, **whole)  # type: ignore[arg-type]
            convert(out, tmp_path / f"{name}-{other}", to="vitrail", grid=(16, 16))
            one, same = (
                load_file(tmp_path / at / "model.safetensors")
                for at in (f"{name}-1", f"{name}-{other}")
            )
            assert_identical(one, same)


@pytest.mark.parametrize("model", ["swin_t", "swin_tiny_patch4_window7_224"])
def test_a_bare_file_of_a_published_shape_is_looked_up(model: str, tmp_path: Path) -> None:
    peer = blank_timm("swin_tiny_patch4_window7_224", num_classes=2)
    source = write_blank(peer, tmp_path / "peer.safetensors")
    opened = open_checkpoint(source)
    assert opened.config.image_size == (224, 224)
    assert opened.notes == ("224x224 pixels, as swin_t has",)
    assert open_checkpoint(source, model=model).config == opened.config
    with pytest.raises(UserError, match="its dim is 96, the model you named has 128"):
        open_checkpoint(source, model="swin_b")
    with pytest.raises(UserError, match="the model you named is a "):
        open_checkpoint(source, model="vit_b_16")


def test_stages_with_windows_of_their_own_are_refused(tmp_path: Path) -> None:
    peer = SwinTransformer(**SMALL, img_size=112, window_size=(7, 14, 7), num_classes=2)
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    with pytest.raises(UserError, match="of one size in all stages"):
        load(source)


SQUARE = SwinConfig(dim=12, depths=(2, 2), heads=(1, 2), window_size=4, image_size=(32, 32))


@pytest.mark.parametrize(
    ("dialect", "changes", "why"),
    [
        ("timm-swin", {"image_size": (40, 40)}, "cuts the grid of stage 1, 10x10"),
        ("timm-swin", {"image_size": (32, 64)}, "cuts the grid of stage 2, 4x8"),
        ("torchvision-swin", {"image_size": (16, 16)}, "cuts the grid of stage 2, 2x2"),
        (
            "swin",
            {"image_size": (40, 40), "window_policy": "timm"},
            "cuts the grid of stage 1, 10x10",
        ),
        ("transformers-swin", {"norm_eps": 1e-6}, "eps"),
        ("transformers-swin", {"image_size": (16, 16)}, "smaller than a window"),
        ("timm", {"image_size": (40, 40)}, "cuts the grid"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(
    dialect: str, changes: dict[str, Any], why: str
) -> None:
    config = SwinConfig(**{**vars(SQUARE), **changes})
    sentences = [
        d.reason_unsupported(config) for d in dialects_called(dialect) if d.family == "swin"
    ]
    assert why in (sentences[0] or "")
    assert dialects_called(dialect)[-1].reason_unsupported(SQUARE) is None or dialect == "timm"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"hidden_act": "gelu_new"}, "exact GELU alone"),
        ({"layer_norm_eps": 1e-6}, "layer_norm_eps must be 1e-05, got 1e-06"),
        ({"image_size": "64"}, "image_size"),
        ({"image_size": 66}, "not a multiple of patch 4"),
        ({"id2label": {"0": "cat"}}, "7 classes"),
        ({"model_type": "donut-swin"}, "architecture .donut-swin., which Vitrail does not compute"),
    ],
)
def test_strange_sidecars_end_in_a_sentence(
    said: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    peer = hf_peer("square")
    hf_write(peer, tmp_path, "-v4")
    told = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(told | said))
    with pytest.raises(UserError, match=sentence):
        load(tmp_path)


@pytest.mark.parametrize("shape", [(), (3,), (0, 0), (49, 0), (48, 1), (36, 1)])
def test_strange_tables_end_in_a_sentence(shape: tuple[int, ...], tmp_path: Path) -> None:
    peer = timm_peer(img_size=64, window_size=4)
    tensors = {name: tensor.contiguous() for name, tensor in peer.state_dict().items()}
    tensors["layers.0.blocks.0.attn.relative_position_bias_table"] = torch.zeros(shape)
    save_file(tensors, tmp_path / "peer.safetensors")
    with pytest.raises(UserError):
        load(tmp_path / "peer.safetensors")


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "swin_large_patch4_window12_384"])
def test_timms_pretrained_cfg_travels(name: str, tmp_path: Path) -> None:
    """As timm evaluates, whether its config.json says so or not."""
    config = timm.get_pretrained_cfg(name)
    peer = blank_timm(name, num_classes=2, depths=(1, 1, 1, 1))
    source = write_blank(peer, tmp_path / "peer.safetensors")
    size = config.input_size[1:]
    ours = open_checkpoint(source, grid=(size[0] // 4,) * 2).passport.preprocessing
    assert (ours.mean, ours.std) == (config.mean, config.std)
    assert ours.interpolation == config.interpolation
    assert ours.resize == (int(size[0] / config.crop_pct),) * 2
