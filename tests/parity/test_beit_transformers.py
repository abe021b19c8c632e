"""transformers' BEiT through our rows and back: the same numbers, in old names and new."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.parity.compare import assert_identical, assert_same, close, images, shaken
from vitrail import UserError, load
from vitrail.data.preprocess import prepare
from vitrail.weights.convert import convert
from vitrail.weights.dialects import DIALECTS
from vitrail.weights.files import read_foreign
from vitrail.weights.load import open_checkpoint

hf: Any = transformers  # most of it has no types
pytestmark = pytest.mark.usefixtures("quiet_transformers")

SMALL: dict[str, Any] = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 80,
    "image_size": 32, "patch_size": 8, "num_labels": 7, "use_relative_position_bias": True,
}  # fmt: skip
SHARED = {"use_relative_position_bias": False, "use_shared_relative_position_bias": True}

# name of the peer's class, its arguments, what its encoder is told when it is made
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "classifier": ("BeitForImageClassification", {}),
    "shared": ("BeitForImageClassification", SHARED),
    "class token": ("BeitForImageClassification", {"use_mean_pooling": False}),
    "tanh": ("BeitForImageClassification", {"hidden_act": "gelu_new"}),
    "large eps": ("BeitForImageClassification", {"layer_norm_eps": 0.1}),
    "one channel": ("BeitForImageClassification", {"num_channels": 1}),
    "no layer scale": ("BeitForImageClassification", {"layer_scale_init_value": 0.0}),
    "encoder": ("BeitModel", {}),
    "encoder, class token": ("BeitModel", SHARED | {"use_mean_pooling": False}),
    "masked": ("BeitForMaskedImageModeling", SHARED | {"use_mask_token": True, "vocab_size": 9}),
}
VERSIONS = {"": "v5 names", "-v4": "classic names"}
both_versions = pytest.mark.parametrize("version", VERSIONS, ids=VERSIONS.values())


def make(kind: str, **more: Any) -> Any:
    name, arguments = KINDS[kind]
    return shaken(getattr(hf, name)(hf.BeitConfig(**SMALL | arguments | more)))


def write(peer: Any, directory: Path, version: str) -> Path:
    """As version 5 saves it, in the classic names, or by hand in those that it has in memory."""
    peer.save_pretrained(directory)
    if version == "":
        tensors = {name: tensor.contiguous() for name, tensor in peer.state_dict().items()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def blocks(peer: Any) -> nn.ModuleList:
    return peer.base_model.layers


def tokens(peer: Any, image: Tensor) -> Tensor:
    seen = peer.base_model(image).last_hidden_state
    return peer.layernorm(seen) if hasattr(peer, "lm_head") else seen


def answer(peer: Any, image: Tensor) -> Tensor:
    """Logits, or what would be classified where there is no head."""
    if hasattr(peer, "classifier"):
        return peer(image).logits
    pools = getattr(peer, "pooler", None) is not None
    return peer(image).pooler_output if pools else tokens(peer, image)[:, 0]


def picture(peer: Any) -> Tensor:
    size = peer.config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return images(peer.config.num_channels, height, width)


@pytest.mark.sampled(2)
@both_versions
@pytest.mark.parametrize("kind", KINDS)
def test_equals_transformers_and_back(kind: str, version: str, tmp_path: Path) -> None:
    peer = make(kind)
    source = write(peer, tmp_path / "peer", version)
    ours: Any = load(source)
    dialect = f"transformers-beit{version}"
    assert ours.passport.origin.dialect == dialect
    assert ours.passport.origin.changes == ()  # config.json told everything
    image = picture(peer)
    assert_same(ours, peer, image, blocks=(ours.blocks, blocks(peer)), call=answer)
    assert_same(ours, peer, image, call=tokens, mine=lambda m, x: m.encode(x))

    convert(source, tmp_path / "back", to=dialect)
    assert load(tmp_path / "back").config == ours.config
    dropped = {theirs for theirs, _ in open_checkpoint(source).coverage.dropped}
    before = load_file(source / "model.safetensors")
    before = {name: tensor for name, tensor in before.items() if name not in dropped}
    if not ours.config.num_classes:  # written as the encoder itself
        before = {name.removeprefix("beit."): tensor for name, tensor in before.items()}
    assert_identical(load_file(tmp_path / "back" / "model.safetensors"), before)


@pytest.mark.sampled(2)
@both_versions
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_builds_what_we_write(kind: str, version: str, tmp_path: Path) -> None:
    """Its Auto classes make the same model from our directory, and miss nothing."""
    peer = make(kind)
    source = write(peer, tmp_path / "peer", version)
    convert(source, tmp_path / "ours", to=f"transformers{version}")
    classifies = hasattr(peer, "classifier")
    auto: Any = hf.AutoModelForImageClassification if classifies else hf.AutoModel
    theirs, info = auto.from_pretrained(
        tmp_path / "ours", dtype=torch.float64, output_loading_info=True
    )
    assert not any(info.values()), info
    theirs = theirs.eval()
    close(answer(theirs, picture(peer)), answer(peer, picture(peer)))
    close(tokens(theirs, picture(peer)), tokens(peer, picture(peer)))


@both_versions
def test_an_encoder_without_a_pooler_gets_a_new_norm(version: str, tmp_path: Path) -> None:
    config = hf.BeitConfig(**SMALL)
    peer = shaken(hf.BeitModel(config, add_pooling_layer=False))
    ours: Any = load(write(peer, tmp_path, version))
    coverage = open_checkpoint(tmp_path).coverage
    assert [name for name, _ in coverage.filled] == ["norm.weight", "norm.bias"]
    assert_same(ours, peer, picture(peer), call=tokens, mine=lambda m, x: m.encode(x))
    mean = tokens(peer, picture(peer))[:, 1:].mean(dim=1)
    close(ours.features(picture(peer)), nn.functional.layer_norm(mean, (48,), eps=1e-12))


@both_versions
def test_masked_pre_training_is_left_for_a_reason(version: str, tmp_path: Path) -> None:
    opened = open_checkpoint(write(make("masked"), tmp_path, version))
    assert dict(opened.coverage.dropped).keys() == {
        "beit.embeddings.mask_token",
        "lm_head.weight",
        "lm_head.bias",
    }
    tuned = load(tmp_path, num_classes=3)
    assert (tuned.config.relative_bias, tuned.config.pool) == ("block", "mean")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["classifier", "shared", "class token"])
@pytest.mark.parametrize("size", [(16, 16), (48, 48), (24, 64)])
def test_resizing_equals_transformers(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    """It resizes the bias by itself, to whatever image it is given."""
    peer = make(kind)
    ours: Any = load(write(peer, tmp_path, ""), image_size=size)
    resized = f"relative bias resized from 4x4 to {size[0] // 8}x{size[1] // 8} (hf)"
    assert ours.passport.origin.changes == (resized,)
    image = images(3, *size)
    assert_same(ours, peer, image, blocks=(ours.blocks, blocks(peer)), call=answer)


@pytest.mark.sampled(2)
@both_versions
@pytest.mark.parametrize("size", [(32, 48), (48, 16)])
def test_a_grid_that_is_not_square_is_read_as_transformers_reads_it(
    size: tuple[int, int], version: str, tmp_path: Path
) -> None:
    """It takes rows for columns, and nobody else does: so it is not written."""
    peer = make("classifier", image_size=size)
    ours: Any = load(write(peer, tmp_path / "peer", version))
    assert "rows for columns" in ours.passport.origin.changes[0]
    assert_same(ours, peer, picture(peer), blocks=(ours.blocks, blocks(peer)), call=answer)
    with pytest.raises(UserError, match="confuses rows and columns"):
        convert(tmp_path / "peer", tmp_path / "back", to="transformers")


@pytest.mark.sampled(2)
@both_versions
@pytest.mark.parametrize("kind", KINDS)
def test_exactly_one_dialect_claims_a_file(kind: str, version: str, tmp_path: Path) -> None:
    """With config.json beside it, and by its names alone."""
    foreign = read_foreign(write(make(kind), tmp_path, version))
    told = f"transformers-beit{version}"
    assert [d.name for d in DIALECTS if d.claims(foreign)] == [told]
    assert [d.name for d in DIALECTS if d.claims(replace(foreign, sidecars={}))] == [told]


def test_old_files_hold_an_index_too(tmp_path: Path) -> None:
    source = write(make("classifier"), tmp_path, "-v4")
    tensors = load_file(source / "model.safetensors")
    at = "beit.encoder.layer.{}.attention.attention.relative_position_bias"
    tensors |= {
        f"{at.format(i)}.relative_position_index": torch.zeros(17, 17).long() for i in range(2)
    }
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    dropped = dict(open_checkpoint(source).coverage.dropped)
    assert set(dropped.values()) == {"follows from the grid, and is computed"}


def test_without_config_what_is_missing_is_noted(tmp_path: Path) -> None:
    peer = make("classifier")
    write(peer, tmp_path, "-v4")
    (tmp_path / "config.json").unlink()
    ours = load(tmp_path)
    assert ours.passport.origin.changes == (
        "LayerNorm eps 1e-12, the default of transformers",
        "4x4: assumed to be a square grid: the file has none",
    )
    close(ours(picture(peer)), answer(peer, picture(peer)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "said",
    [
        {},
        {"do_center_crop": True, "size": {"height": 40, "width": 40}, "crop_size": 32},
        {"resample": 2, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    ],
    ids=["as it comes", "cropped", "bilinear, ImageNet"],
)
def test_images_are_prepared_as_its_processor_does(said: dict[str, Any], tmp_path: Path) -> None:
    source = write(make("classifier"), tmp_path, "-v4")
    processor = hf.BeitImageProcessorPil(**{"size": {"height": 32, "width": 32}} | said)
    processor.save_pretrained(source)
    before = load(source).passport.preprocessing
    assert before.interpolation == ("bilinear" if "resample" in said else "bicubic")
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    theirs = processor(Image.fromarray(pixels), return_tensors="pt").pixel_values[0]
    ours = torch.as_tensor(prepare(Image.fromarray(pixels), before))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
