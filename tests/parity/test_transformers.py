"""transformers' ViTs through our rows and back: the same numbers, in old names and new."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.parity.compare import (
    VERSIONS,
    assert_identical,
    assert_same,
    close,
    images,
    in_both_versions,
    shaken,
)
from vitrail import create, load, save
from vitrail.core.errors import UserError
from vitrail.core.passport import CLIP_MEAN, CLIP_STD
from vitrail.models.vit import VARIANTS
from vitrail.weights.convert import convert
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects import DIALECTS, dialects_called, is_computed
from vitrail.weights.files import read_foreign
from vitrail.weights.load import open_checkpoint

hf: Any = transformers  # most of it has no types
pytestmark = pytest.mark.usefixtures("quiet_transformers")

VIT: dict[str, Any] = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 80,
    "image_size": 32, "patch_size": 8, "num_labels": 7,
}  # fmt: skip
DINO: dict[str, Any] = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 2,
    "image_size": 28, "patch_size": 7, "num_labels": 5,
}  # fmt: skip
MAE = VIT | {
    "decoder_hidden_size": 16, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 24, "mask_ratio": 0.0,
}  # fmt: skip

# name of the peer's class, its arguments
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTForImageClassification", VIT),
    "vit, a rectangle": ("ViTForImageClassification", VIT | {"image_size": (32, 48)}),
    "vit, no qkv bias": ("ViTForImageClassification", VIT | {"qkv_bias": False}),
    "vit, tanh": ("ViTForImageClassification", VIT | {"hidden_act": "gelu_new"}),
    "vit, quick": ("ViTForImageClassification", VIT | {"hidden_act": "quick_gelu"}),
    "vit, large eps": ("ViTForImageClassification", VIT | {"layer_norm_eps": 0.1}),
    "vit, one channel": ("ViTForImageClassification", VIT | {"num_channels": 1}),
    "vit, no labels": ("ViTForImageClassification", VIT | {"num_labels": 0}),
    "vit, no head": ("ViTModel", VIT),
    "vit, masked": ("ViTForMaskedImageModeling", VIT | {"encoder_stride": 8}),
    "deit": ("DeiTForImageClassification", VIT),
    "deit, a rectangle": ("DeiTForImageClassification", VIT | {"image_size": (48, 32)}),
    "deit, two heads": ("DeiTForImageClassificationWithTeacher", VIT),
    "deit, no labels": ("DeiTForImageClassificationWithTeacher", VIT | {"num_labels": 0}),
    "deit, no head": ("DeiTModel", VIT | {"qkv_bias": False}),
    "dinov2": ("Dinov2ForImageClassification", DINO),
    "dinov2, gated": ("Dinov2ForImageClassification", DINO | {"use_swiglu_ffn": True}),
    "dinov2, no labels": ("Dinov2ForImageClassification", DINO | {"num_labels": 0}),
    "dinov2, no head": ("Dinov2Model", DINO | {"qkv_bias": False, "use_mask_token": False}),
    "registers": ("Dinov2WithRegistersForImageClassification", DINO),
    "registers, gated": (
        "Dinov2WithRegistersModel",
        DINO | {"use_swiglu_ffn": True, "num_register_tokens": 2},
    ),
    "mae": ("ViTMAEForPreTraining", MAE),
    "mae, encoder": ("ViTMAEModel", MAE | {"qkv_bias": False}),
}  # fmt: skip
CLASSIC = [
    "vit", "vit, no qkv bias", "deit", "deit, two heads", "deit, no head", "dinov2",
    "dinov2, gated", "registers", "registers, gated", "mae", "mae, encoder",
]  # fmt: skip
both_versions = pytest.mark.parametrize("version", VERSIONS, ids=VERSIONS.values())


def make(kind: str) -> Any:
    name, arguments = KINDS[kind]
    peer = getattr(hf, name)
    return shaken(peer(peer.config_class(**arguments)))


def write(peer: Any, directory: Path, version: str) -> Path:
    """As version 5 saves it, in the classic names, or by hand in those that it has in memory."""
    peer.save_pretrained(directory)
    if version == "":
        tensors = {name: tensor.contiguous() for name, tensor in peer.state_dict().items()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def encoder(peer: Any) -> Any:
    """transformers' model without its head."""
    return peer.base_model


def blocks(peer: Any) -> nn.ModuleList:
    inner = encoder(peer)
    return inner.layers if hasattr(inner, "layers") else inner.encoder.layer


def tokens(peer: Any, image: Tensor) -> Tensor:
    inner = encoder(peer)
    if inner.config.model_type != "vit_mae":
        return inner(image).last_hidden_state
    # nothing is masked, and the patches stay in order
    order = torch.arange(inner.embeddings.patch_embeddings.num_patches).expand(len(image), -1)
    return inner(image, noise=order).last_hidden_state


def encode(ours: Any, image: Tensor) -> Tensor:
    return ours.encode(image)


def answer(peer: Any, image: Tensor) -> Tensor:
    """Logits, or the class token where there is no head to give any."""
    return peer(image).logits if classifies(peer) else tokens(peer, image)[:, 0]


def classifies(peer: Any) -> bool:
    return "ForImageClassification" in type(peer).__name__


def picture(peer: Any) -> Tensor:
    size = peer.config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return images(peer.config.num_channels, height, width)


@pytest.mark.sampled(2)
@in_both_versions(KINDS, CLASSIC)
def test_equals_transformers_and_back(kind: str, version: str, tmp_path: Path) -> None:
    peer = make(kind)
    source = write(peer, tmp_path / "peer", version)
    ours: Any = load(source)
    dialect = f"transformers-{peer.config.model_type}{version}"
    assert ours.passport.origin.dialect == dialect
    assert ours.passport.origin.changes == ()  # config.json told everything

    image = picture(peer)
    assert_same(ours, peer, image, blocks=(ours.blocks, blocks(peer)), call=answer)
    assert_same(ours, peer, image, call=tokens, mine=encode)

    convert(source, tmp_path / "back", to=dialect)
    assert load(tmp_path / "back").config == ours.config
    dropped = {theirs for theirs, _ in open_checkpoint(source).coverage.dropped}
    before = load_file(source / "model.safetensors")
    after = load_file(tmp_path / "back" / "model.safetensors")
    before = {name: tensor for name, tensor in before.items() if name not in dropped}
    after = {name: tensor for name, tensor in after.items() if name not in dropped}
    if not ours.config.num_classes:  # written as the encoder itself
        before = {name.removeprefix(f"{peer.base_model_prefix}."): t for name, t in before.items()}
    assert_identical(after, before)
    check_built(peer, tmp_path / "back")


def check_built(peer: Any, written: Path) -> None:
    """Its Auto classes make the same model from our directory, and miss nothing."""
    auto: Any = hf.AutoModelForImageClassification if classifies(peer) else hf.AutoModel
    # the pooler of a model without head, which no classifier reads, is not ours to write
    pools = peer.config.model_type in ("vit", "deit") and not classifies(peer)
    options = {"add_pooling_layer": False} if pools else {}
    theirs, info = auto.from_pretrained(
        written, dtype=torch.float64, output_loading_info=True, **options
    )
    assert not any(info.values()), info
    assert type(theirs) is type(peer if classifies(peer) else encoder(peer))
    theirs.config.mask_ratio = 0.0  # of an autoencoder
    close(answer(theirs.eval(), picture(peer)), answer(peer, picture(peer)))
    close(tokens(theirs, picture(peer)), tokens(peer, picture(peer)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in CLASSIC else [pytest.mark.slow]) for kind in KINDS],
)
def test_the_two_spellings_tell_the_same(kind: str, tmp_path: Path) -> None:
    peer = make(kind)
    new = write(peer, tmp_path / "new", "")
    old = write(peer, tmp_path / "old", "-v4")
    names = set(load_file(old / "model.safetensors"))
    assert any(".0.attention.attention.query.weight" in name for name in names)
    model_type = peer.config.model_type
    convert(new, tmp_path / "new-to-old", to=f"transformers-{model_type}-v4")
    convert(old, tmp_path / "old-to-old", to=f"transformers-{model_type}-v4")
    convert(old, tmp_path / "old-to-new", to=f"transformers-{model_type}")
    convert(new, tmp_path / "new-to-new", to=f"transformers-{model_type}")
    for one, other in (("new-to-old", "old-to-old"), ("old-to-new", "new-to-new")):
        assert_identical(
            load_file(tmp_path / one / "model.safetensors"),
            load_file(tmp_path / other / "model.safetensors"),
        )


@in_both_versions(KINDS, CLASSIC)
def test_exactly_one_dialect_claims_a_file(kind: str, version: str, tmp_path: Path) -> None:
    """With config.json beside it, and by its names alone."""
    peer = make(kind)
    foreign = read_foreign(write(peer, tmp_path / "peer", version))
    told = f"transformers-{peer.config.model_type}{version}"
    # an encoder of an autoencoder is a ViT like any other
    bare = f"transformers-vit{version}" if kind == "mae, encoder" else told
    assert claiming(foreign) == [told]
    assert claiming(replace(foreign, sidecars={})) == [bare]


def claiming(foreign: Foreign) -> list[str]:
    """The dialects that would read a file."""
    return [d.name for d in DIALECTS if d.claims(foreign) and is_computed(foreign, d)]


@pytest.mark.sampled(2)
@both_versions
@pytest.mark.parametrize("name", ["BeitModel", "IJepaModel", "DINOv3ViTModel", "ViTMSNModel"])
def test_cousins_are_not_claimed(name: str, version: str, tmp_path: Path) -> None:
    """Models whose tensors have the same names, or nearly, and mean something else."""
    cousin = getattr(hf, name)
    foreign = read_foreign(write(cousin(cousin.config_class(**VIT)), tmp_path, version))
    assert not claiming(foreign)
    if name != "ViTMSNModel":  # nothing but config.json tells it from a ViT
        assert not claiming(replace(foreign, sidecars={}))


def test_without_config_what_is_missing_is_asked_for_or_noted(tmp_path: Path) -> None:
    peer = make("vit")
    write(peer, tmp_path, "-v4")
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match="heads"):
        load(tmp_path)
    ours = load(tmp_path, heads=4)
    assert "LayerNorm eps 1e-12" in ours.passport.origin.changes[0]
    close(ours(picture(peer)), answer(peer, picture(peer)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["vit", "deit", "deit, two heads"])
@pytest.mark.parametrize("side", [16, 40, 64])
def test_resizing_equals_transformers(kind: str, side: int, tmp_path: Path) -> None:
    peer = make(kind)
    ours = load(write(peer, tmp_path, ""), image_size=side)
    image = images(3, side, side)
    close(ours(image), peer(image, interpolate_pos_encoding=True).logits)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["dinov2", "registers"])
@pytest.mark.parametrize("size", [(14, 14), (42, 42), (35, 56)])
def test_resizing_equals_dinov2(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    """It resizes by itself and always in float32, so the weights are float32 on both sides."""
    peer = make(kind).float()
    ours = load(write(peer, tmp_path, ""), image_size=size).double()
    image = images(3, *size)
    close(ours(image), peer.double()(image).logits)


def test_head_width_of_its_own(tmp_path: Path) -> None:
    """Version 5 takes one from config.json; version 4 never knew."""
    config = hf.ViTConfig(**VIT, head_dim=20)
    peer: Any = shaken(hf.ViTForImageClassification(config))
    source = write(peer, tmp_path / "peer", "")
    ours = load(source)
    assert ours.config.dim_head == 20
    close(ours(picture(peer)), answer(peer, picture(peer)))
    convert(source, tmp_path / "ours", to="transformers-vit")
    theirs = hf.ViTForImageClassification.from_pretrained(tmp_path / "ours", dtype=torch.float64)
    close(answer(theirs.eval(), picture(peer)), answer(peer, picture(peer)))
    with pytest.raises(UserError, match="dim_head=20"):
        convert(source, tmp_path / "old", to="transformers-vit-v4")


def test_tokens_without_a_position_get_zero(tmp_path: Path) -> None:
    """A class token that has no slot in our table has one in theirs, and computes the same."""
    ours = create("vit_ti_16", depth=2, image_size=32, num_classes=3, prefix_positions=0)
    shaken(ours)
    save(ours, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", to="transformers-vit")
    theirs, info = hf.AutoModelForImageClassification.from_pretrained(
        tmp_path / "theirs", dtype=torch.float64, output_loading_info=True
    )
    assert not any(info.values()), info
    close(ours(images(3, 32, 32)), answer(theirs.eval(), images(3, 32, 32)))


TINY = replace(VARIANTS["vit_ti_16"].config, depth=1)
DINO_TINY = replace(TINY, layer_scale=1.0, pool="cls+mean")


@pytest.mark.parametrize(
    ("dialect", "config", "why"),
    [
        ("vit", replace(TINY, activation="swiglu"), "gated"),
        ("vit", replace(TINY, registers=1), "registers=1"),
        ("vit", replace(TINY, pool="mean"), "pool='mean'"),
        ("vit", replace(TINY, positions="sincos2d"), "positions='sincos2d'"),
        ("deit", TINY, "two tokens"),
        ("deit", replace(TINY, distilled=True, registers=1), "two tokens"),
        ("dinov2", replace(DINO_TINY, layer_scale=None), "LayerScale"),
        ("dinov2", replace(DINO_TINY, pool="cls"), "cls+mean"),
        ("dinov2", replace(DINO_TINY, mlp_dim=100), "whole ratio"),
        ("dinov2", replace(DINO_TINY, image_size=(224, 160)), "square"),
        ("dinov2_with_registers", DINO_TINY, "registers=0"),
        ("dinov2_with_registers", replace(DINO_TINY, registers=4, prefix_positions=5), "positions"),
        ("vit_mae", TINY, "head"),
    ],
)
def test_what_it_cannot_hold_is_refused(dialect: str, config: Any, why: str) -> None:
    for version in VERSIONS:
        sentence = dialects_called(f"transformers-{dialect}{version}")[0].reason_unsupported(config)
        assert sentence is not None
        assert why in sentence


def test_labels_travel(tmp_path: Path) -> None:
    peer = make("vit")
    names = ("cat", "dog", "eel", "fox", "gnu", "hen", "ibis")
    assert load(write(peer, tmp_path / "nameless", "")).passport.labels is None
    peer.config.id2label = dict(enumerate(names))
    peer.config.label2id = {name: index for index, name in enumerate(names)}
    source = write(peer, tmp_path / "named", "-v4")
    assert load(source).passport.labels == names
    convert(source, tmp_path / "ours", to="transformers-vit")
    config = hf.AutoConfig.from_pretrained(tmp_path / "ours")
    assert config.id2label == peer.config.id2label
    assert config.label2id == peer.config.label2id


PROCESSORS: dict[str, dict[str, Any]] = {
    "ViTImageProcessor": {"size": {"height": 32, "width": 32}},
    "DeiTImageProcessor": {
        "size": {"height": 36, "width": 36},
        "crop_size": {"height": 32, "width": 32},
        "image_mean": [0.1, 0.2, 0.3],
    },
    "BitImageProcessor": {"size": {"shortest_edge": 40}, "crop_size": 32, "resample": 2},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROCESSORS)
def test_preprocessing_travels(name: str, tmp_path: Path) -> None:
    source = write(make("vit"), tmp_path / "peer", "")
    theirs = getattr(hf, name)(**PROCESSORS[name])
    theirs.save_pretrained(source)
    convert(source, tmp_path / "ours", to="transformers-vit")
    before = load(source).passport.preprocessing
    assert load(tmp_path / "ours").passport.preprocessing == before

    written = hf.AutoImageProcessor.from_pretrained(tmp_path / "ours")
    assert (written.resample, written.rescale_factor) == (theirs.resample, theirs.rescale_factor)
    assert tuple(written.image_mean) == tuple(theirs.image_mean)
    assert tuple(written.image_std) == tuple(theirs.image_std)
    names = {2: "bilinear", 3: "bicubic"}
    assert before.interpolation == names[int(theirs.resample)]
    assert (before.mean, before.std) == (tuple(theirs.image_mean), tuple(theirs.image_std))
    if name == "ViTImageProcessor":
        assert (before.size, before.resize) == ((32, 32), None)
    else:
        cover = theirs.size.get("height") or theirs.size.get("shortest_edge")
        assert (before.size, before.resize) == ((32, 32), (cover, cover))

    side = (before.resize or before.size)[0]
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    edge = round((side - 32) / 2)
    cut = pixels[edge : edge + 32, edge : edge + 32] / 255
    expected = ((cut - before.mean) / before.std).transpose(2, 0, 1)
    for processor in (theirs, written):
        seen = processor(pixels, return_tensors="np", input_data_format="channels_last")
        np.testing.assert_allclose(seen["pixel_values"][0], expected, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("said", "mean", "std", "resize"),
    [
        ({}, (0.5,) * 3, (0.5,) * 3, None),
        ({"size": 32, "image_mean": 0.1, "image_std": 0.2}, (0.1,) * 3, (0.2,) * 3, None),
        ({"do_normalize": False}, (0.0,) * 3, (1.0,) * 3, None),
        (
            {"do_rescale": False, "image_mean": [51.0] * 3, "image_std": [102.0] * 3},
            (0.2,) * 3,
            (0.4,) * 3,
            None,
        ),
        # fed at half the size its positions are for
        ({"size": 18, "do_center_crop": True, "crop_size": 16}, (0.5,) * 3, (0.5,) * 3, (36, 36)),
        ({"size": {"shortest_edge": 32}}, (0.5,) * 3, (0.5,) * 3, (32, 32)),
        # files of old, which leave to the class what it does anyhow
        (
            {"feature_extractor_type": "ViTFeatureExtractor", "size": 32},
            (0.5,) * 3,
            (0.5,) * 3,
            None,
        ),
        (
            {"feature_extractor_type": "DeiTFeatureExtractor", "size": 256, "crop_size": 224},
            (0.5,) * 3,
            (0.5,) * 3,
            (37, 37),
        ),
        ({"image_processor_type": "BitImageProcessorFast"}, CLIP_MEAN, CLIP_STD, (32, 32)),
    ],
)
def test_preprocessing_in_other_words(
    said: dict[str, Any], mean: Any, std: Any, resize: Any, tmp_path: Path
) -> None:
    write(make("vit"), tmp_path, "")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    found = load(tmp_path).passport.preprocessing
    assert found.resize == resize
    np.testing.assert_allclose((found.mean, found.std), (mean, std))


def test_unusual_processors_are_written(tmp_path: Path) -> None:
    """DINOv2 and rectangles: no preprocessor_config.json tells anything."""
    source = write(make("dinov2"), tmp_path / "dinov2", "")
    found = load(source).passport.preprocessing
    assert (found.resize, found.interpolation, found.mean[0]) == ((32, 32), "bicubic", 0.485)
    convert(source, tmp_path / "ours", to="transformers-dinov2")
    written = hf.AutoImageProcessor.from_pretrained(tmp_path / "ours")
    assert (written.size["shortest_edge"], written.crop_size["width"]) == (32, 28)

    source = write(make("deit, a rectangle"), tmp_path / "deit", "")
    assert load(source).passport.preprocessing.resize == (55, 37)
    convert(source, tmp_path / "wide", to="transformers-deit")
    written = hf.AutoImageProcessor.from_pretrained(tmp_path / "wide")
    assert (written.size["height"], written.size["width"]) == (55, 37)
    assert load(tmp_path / "wide").passport.preprocessing.resize == (55, 37)


STRANGE: list[tuple[str, dict[str, Any]]] = [
    ("config.json", {"num_attention_heads": "4"}),
    ("config.json", {"num_attention_heads": [4]}),
    ("config.json", {"num_attention_heads": -4}),
    ("config.json", {"num_attention_heads": 5}),
    ("config.json", {"image_size": "32"}),
    ("config.json", {"image_size": {"height": 32}}),
    ("config.json", {"image_size": [32, 32, 32]}),
    ("config.json", {"image_size": -32}),
    ("config.json", {"image_size": 64}),
    ("config.json", {"hidden_act": 3}),
    ("config.json", {"hidden_act": "mish"}),
    ("config.json", {"layer_norm_eps": "tiny"}),
    ("config.json", {"layer_norm_eps": 0}),
    ("config.json", {"architectures": "ViTModel"}),
    ("config.json", {"id2label": ["cat"]}),
    ("config.json", {"id2label": {"0": "cat"}}),
    ("config.json", {"id2label": {str(i + 1): "cat" for i in range(7)}}),
    ("config.json", {"id2label": {"0": {"name": "cat"}}}),
    ("config.json", {"model_type": ["vit"], "image_size": []}),
    ("config.json", {"model_type": "gpt2"}),
    ("preprocessor_config.json", {"size": "32"}),
    ("preprocessor_config.json", {"size": [32, 32]}),
    ("preprocessor_config.json", {"size": {"depth": 32}, "do_center_crop": True}),
    ("preprocessor_config.json", {"size": 32, "crop_size": 0, "do_center_crop": True}),
    ("preprocessor_config.json", {"size": 32, "crop_size": 64, "do_center_crop": True}),
    ("preprocessor_config.json", {"size": {"height": None, "width": 3}, "do_center_crop": True}),
    ("preprocessor_config.json", {"image_processor_type": 3}),
    ("preprocessor_config.json", {"do_resize": "yes"}),
    ("preprocessor_config.json", {"resample": "bicubic"}),
    ("preprocessor_config.json", {"resample": 5}),
    ("preprocessor_config.json", {"image_mean": "0.5"}),
    ("preprocessor_config.json", {"image_mean": [0.5, "0.5", 0.5]}),
    ("preprocessor_config.json", {"image_mean": [0.5]}),
    ("preprocessor_config.json", {"image_std": 0}),
    ("preprocessor_config.json", {"rescale_factor": 0}),
    ("preprocessor_config.json", {"rescale_factor": True}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("file", "said"), STRANGE, ids=[str(said) for _, said in STRANGE])
def test_strange_sidecars_end_in_a_sentence(file: str, said: Any, tmp_path: Path) -> None:
    write(make("vit"), tmp_path, "-v4")
    path = tmp_path / file
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | said))
    with pytest.raises(UserError):
        load(tmp_path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["patch_embeddings.projection.weight", "position_embeddings"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 0, 0), (48, 3, 0, 0), (1, 1, 1, 1, 1)])
def test_strange_tensors_end_in_a_sentence(
    name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    write(make("vit"), tmp_path, "")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"vit.embeddings.{name}"] = torch.zeros(shape)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError):
        load(tmp_path)


def test_an_image_size_that_the_weights_contradict_is_named(tmp_path: Path) -> None:
    peer = make("vit")
    peer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["image_size"] = 64
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError) as error:
        load(tmp_path)
    table = peer.vit.embeddings.position_embeddings.shape[1]
    side = peer.config.image_size
    message = str(error.value)
    assert f"it holds {table} positions" in message
    assert "its config has image_size 64x64, which makes 64 in patches of 8" in message
    assert f"correct image_size in config.json to {side}, or give grid=" in message
