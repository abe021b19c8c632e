"""MobileViT of timm, transformers and apple's cvnets through our rows and back."""

import copy
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from skimage import data as samples
from timm.models import mobilevit as timm_mobilevit
from timm.models.byobnet import ByobNet
from torch import Tensor, nn

from tests.parity.compare import assert_identical, assert_same, close, images, write_safetensors
from tests.parity.lively import lively
from vitrail import UserError, create, load, predict, save
from vitrail.data.preprocess import prepare
from vitrail.weights.convert import convert
from vitrail.weights.dialects import DIALECTS, choose
from vitrail.weights.files import read_foreign

hf: Any = transformers  # most of it has no types
pytestmark = pytest.mark.usefixtures("quiet_transformers")
byob: Any = timm_mobilevit

# square, not square, and sides that patches of two cells do not divide in any stage
SIZES = [(64, 64), (64, 96), (72, 40), (33, 47)]
FAMILIES = ("mobilevit", "mobilevitv2")
every_family = pytest.mark.parametrize("family", FAMILIES)


@cache  # copy what is changed
def timm_peer(family: str, **arguments: Any) -> Any:
    """A narrow one, in everything else as timm has them."""
    if family == "mobilevitv2":
        return lively(ByobNet(byob._mobilevitv2_cfg(0.25), **{"num_classes": 7, **arguments}))
    cfg = byob.ByoModelCfg(
        blocks=(
            byob._inverted_residual_block(d=1, c=16, s=1, br=2.0),
            byob._inverted_residual_block(d=3, c=24, s=2, br=2.0),
            byob._mobilevit_block(1, 24, 2, 16, 2, patch_size=2, br=2.0),
            byob._mobilevit_block(1, 32, 2, 24, 1, patch_size=2, br=2.0),
            byob._mobilevit_block(1, 40, 2, 32, 3, patch_size=2, br=2.0),
        ),
        stem_chs=16,
        stem_type="3x3",
        stem_pool="",
        downsample="",
        act_layer="silu",
        num_features=48,
    )
    return lively(ByobNet(cfg, **{"num_classes": 7, **arguments}))


SMALL: dict[str, dict[str, Any]] = {
    "mobilevit": {
        "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [16, 16, 24, 24, 32, 40, 48],
        "num_attention_heads": 4, "expand_ratio": 2.0,
    },
    "mobilevitv2": {"width_multiplier": 0.125, "n_attn_blocks": [2, 1, 3]},
}  # fmt: skip
CLASSES = {"mobilevit": "MobileViT", "mobilevitv2": "MobileViTV2"}


@cache  # copy what is changed
def hf_peer(family: str, kind: str = "ForImageClassification", **changes: Any) -> Any:
    arguments = {"num_labels": 7, "image_size": 64, **SMALL[family], **changes}
    peer = getattr(hf, CLASSES[family] + kind)
    return lively(peer(peer.config_class(**arguments)))


def logits(peer: Any, image: Tensor) -> Tensor:
    return peer(image).logits


def stages_of(ours: Any) -> nn.Sequential:
    return ours.stages


def blocks_of(model: Any) -> list[nn.Module]:
    return [block for stage in model.stages for block in stage]


def said(family: str) -> dict[str, Any]:
    """What no file of timm and cvnets tells, and no published model of this shape."""
    return {"heads": 4} if family == "mobilevit" else {}


@pytest.mark.slow
@every_family
def test_equals_timm_and_back(family: str, tmp_path: Path) -> None:
    peer = timm_peer(family)
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    for size in SIZES:
        ours = load(source, image_size=size, **said(family))
        assert ours.passport.origin.dialect == f"timm-{family}"
        blocks: Any = (blocks_of(ours), blocks_of(peer))
        assert_same(ours, peer, images(3, *size), blocks=blocks)

    convert(source, tmp_path / "native", to="vitrail", changes=said(family))
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="timm")
    assert_identical(load_file(tmp_path / "back.safetensors"), load_file(source))
    fresh = copy.deepcopy(peer)
    for parameter in fresh.parameters():
        nn.init.zeros_(parameter)
    fresh.load_state_dict(load_file(tmp_path / "back.safetensors"))
    for size in SIZES:
        close(fresh(images(3, *size)), ours(images(3, *size)))


@pytest.mark.sampled(2)
@every_family
@pytest.mark.parametrize("arguments", [{"in_chans": 1}, {"num_classes": 0}], ids=str)
def test_equals_timm_with_other_ends(family: str, arguments: Any, tmp_path: Path) -> None:
    peer = timm_peer(family, **arguments)
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    ours = load(source, **said(family))
    channels = arguments.get("in_chans", 3)
    assert (ours.config.channels, ours.config.num_classes) == (
        channels,
        arguments.get("num_classes", 7),
    )
    assert_same(ours, peer, images(channels, 64, 48))


@pytest.mark.slow
@every_family
def test_timm_builds_what_we_write(family: str, tmp_path: Path) -> None:
    """timm itself makes the same model from our directory, config.json and all."""
    name = {"mobilevit": "mobilevit_xxs", "mobilevitv2": "mobilevitv2_050"}[family]
    peer = lively(timm.create_model(name, num_classes=5))
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    labels = ("ant", "bee", "cat", "dog", "eel")
    ours = load(source, image_size=64)
    assert ours.passport.origin.changes[0].endswith(f"as {name} has")
    ours.passport = replace(ours.passport, labels=labels)
    save(ours, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "timm", to="timm")
    assert_identical(load_file(tmp_path / "timm" / "model.safetensors"), load_file(source))
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True)
    image = images(3, 64, 64)
    close(theirs.double().eval()(image).float(), peer.float().double()(image).float())
    again = load(tmp_path / "timm")
    assert (again.config, again.passport.labels) == (ours.config, labels)
    assert again.passport.preprocessing == ours.passport.preprocessing


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("ForImageClassification", {}),
    "one channel": ("ForImageClassification", {"num_channels": 1}),
    "large eps": ("ForImageClassification", {"layer_norm_eps": 0.1}),
    "larger patches": ("ForImageClassification", {"patch_size": 4, "image_size": 128}),
    "no labels": ("ForImageClassification", {"num_labels": 0}),
    "no head": ("Model", {}),
}


# test_transformers_fields.py has the logits of these quickly; no labels are the encoder itself
VARIED = ("one channel", "large eps", "no labels")


@pytest.mark.sampled(2)
@every_family
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] if kind in VARIED else []) for kind in KINDS],
)
def test_equals_transformers_and_back(family: str, kind: str, tmp_path: Path) -> None:
    peer = hf_peer(family, KINDS[kind][0], **KINDS[kind][1])
    peer.save_pretrained(tmp_path / "peer")
    ours = load(tmp_path / "peer")
    assert ours.passport.origin.dialect == f"transformers-{family}"
    assert ours.passport.origin.changes == ()  # config.json told everything
    classifies = kind != "no head"
    call = logits if classifies else lambda peer, image: peer(image).pooler_output
    image = images(ours.config.channels, *ours.config.image_size)
    blocks: Any = (stages_of(ours), peer.base_model.encoder.layer)
    assert_same(ours, peer, image, blocks=blocks, call=call)
    close(ours.encode(image), peer.base_model(image).last_hidden_state)

    convert(tmp_path / "peer", tmp_path / "back", to="transformers-v4")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("peer", "back"))
    prefix = f"{family}." if kind == "no labels" else ""  # without a head it is the encoder itself
    assert_identical(after, {name.removeprefix(prefix): t for name, t in before.items()})
    auto = hf.AutoModelForImageClassification if ours.config.num_classes else hf.AutoModel
    theirs, info = auto.from_pretrained(
        tmp_path / "back", dtype=torch.float64, output_loading_info=True
    )
    assert not any(info.values()), info
    seen = theirs.eval()(image)
    close(seen.logits if ours.config.num_classes else seen.pooler_output, call(peer, image))
    assert load(tmp_path / "back").config == ours.config


WHOLE = {
    "mobilevit": SIZES,
    "mobilevitv2": [(64, 64), (64, 128)],  # transformers cuts off what patches leave over
}


@pytest.mark.slow
@every_family
def test_equals_transformers_at_any_size(family: str, tmp_path: Path) -> None:
    peer = hf_peer(family)
    peer.save_pretrained(tmp_path)
    unresized = load(tmp_path)
    for size in WHOLE[family]:
        ours = load(tmp_path, image_size=size)
        blocks: Any = (stages_of(ours), peer.base_model.encoder.layer)
        assert_same(ours, peer, images(3, *size), blocks=blocks, call=logits)
        assert torch.equal(unresized(images(3, *size)), ours(images(3, *size)))


# How transformers names what apple's checkpoints call otherwise, in the order of its converters.
APPLE = {
    "mobilevit": (
        (r"^mobilevit\.", ""),
        (r"^classifier\.", "classifier.fc."),
        (r"^conv_stem\.", "conv_1.block."),
        (r"^conv_1x1_exp\.", "conv_1x1_exp.block."),
        (r"\.conv_kxk\.", ".local_rep.conv_3x3.block."),
        (r"(\.\d)\.conv_1x1\.", r"\1.local_rep.conv_1x1.block."),
        (r"\.conv_projection\.", ".conv_proj.block."),
        (r"\.fusion\.", ".fusion.block."),
        (r"\.layernorm\.", ".global_rep.DEPTH."),
        (r"\.transformer\.layer\.", ".global_rep."),
        (r"\.layernorm_before\.", ".pre_norm_mha.0."),
        (r"\.attention\.output\.dense\.", ".pre_norm_mha.1.out_proj."),
        (r"\.attention\.attention\.query\.", ".pre_norm_mha.1.qkv_proj."),
        (r"\.layernorm_after\.", ".pre_norm_ffn.0."),
        (r"\.intermediate\.dense\.", ".pre_norm_ffn.1."),
        (r"(global_rep\.\d)\.output\.dense\.", r"\1.pre_norm_ffn.4."),
    ),
    "mobilevitv2": (
        (r"^mobilevitv2\.", ""),
        (r"^classifier\.", "classifier.1."),
        (r"^conv_stem\.", "conv_1.block."),
        (r"\.conv_kxk\.", ".local_rep.0.block."),
        (r"(\.\d)\.conv_1x1\.", r"\1.local_rep.1.block."),
        (r"\.conv_projection\.", ".conv_proj.block."),
        (r"\.layernorm\.", ".global_rep.DEPTH."),
        (r"\.transformer\.layer\.", ".global_rep."),
        (r"\.layernorm_before\.", ".pre_norm_attn.0."),
        (r"\.attention\.(\w+)\.", r".pre_norm_attn.1.\1.block."),
        (r"\.layernorm_after\.", ".pre_norm_ffn.0."),
        (r"\.ffn\.conv1\.", ".pre_norm_ffn.1.block."),
        (r"\.ffn\.conv2\.", ".pre_norm_ffn.3.block."),
    ),
}
INVERTED = (
    (r"\.expand_1x1\.", ".block.exp_1x1.block."),
    (r"(layer\.\d|ing_layer)\.conv_3x3\.", r"\1.block.conv_3x3.block."),
    (r"\.reduce_1x1\.", ".block.red_1x1.block."),
    (r"\.convolution\.", ".conv."),
    (r"\.normalization\.", ".norm."),
    (r"^encoder\.layer\.(\d)\.layer\.", r"encoder.layer.\1."),
    (r"^encoder\.layer\.([234])\.downsampling_layer\.", r"encoder.layer.\1.0."),
    (r"^encoder\.layer\.([234])\.(?!0\.block)", r"encoder.layer.\1.1."),
    (r"^encoder\.layer\.0\.", "layer_1."),
    (r"^encoder\.layer\.1\.", "layer_2."),
    (r"^encoder\.layer\.2\.", "layer_3."),
    (r"^encoder\.layer\.3\.", "layer_4."),
    (r"^encoder\.layer\.4\.", "layer_5."),
)


def as_apple(peer: Any, family: str, depths: tuple[int, int, int]) -> dict[str, Tensor]:
    """The peer's tensors under the names that apple/ml-cvnets gives them."""
    state, renamed = dict(peer.state_dict()), {}
    for name in [name for name in state if ".attention.attention.query." in name]:
        parts = [state.pop(name.replace("query", part)) for part in ("query", "key", "value")]
        state[name] = torch.cat(parts)
    for name, tensor in state.items():
        for theirs, apple in (*APPLE[family], *INVERTED):
            name = re.sub(theirs, apple, name)
        stage = re.match(r"layer_(\d)", name)
        renamed[name.replace("DEPTH", str(depths[int(stage[1]) - 3]) if stage else "")] = tensor
    return renamed


@every_family
def test_equals_cvnets_and_back(family: str, tmp_path: Path) -> None:
    peer = hf_peer(family)
    tensors = as_apple(peer, family, {"mobilevit": (2, 4, 3), "mobilevitv2": (2, 1, 3)}[family])
    torch.save(tensors, tmp_path / "apple.pt")
    ours = load(tmp_path / "apple.pt", **said(family))
    assert ours.passport.origin.dialect == f"cvnets-{family}"
    close(ours(images(3, 64, 64)), logits(peer, images(3, 64, 64)))
    convert(tmp_path / "apple.pt", tmp_path / "back.pth", to="cvnets", changes=said(family))
    assert_identical(torch.load(tmp_path / "back.pth", weights_only=True), tensors)
    prepared = ours.passport.preprocessing
    assert (prepared.size, prepared.resize, set(prepared.mean), set(prepared.std)) == (
        (256, 256), (288, 288), {0.0}, {1.0},
    )  # fmt: skip
    assert (prepared.channel_order, prepared.interpolation) == {
        "mobilevit": ("bgr", "bilinear"),  # read by OpenCV
        "mobilevitv2": ("rgb", "bicubic"),  # read by Pillow
    }[family]


PHOTOS = {"wide": (slice(0, 297), slice(0, 449)), "tall": (slice(0, 300), slice(90, 301))}


@pytest.mark.sampled(2)
@every_family
@pytest.mark.parametrize(
    ("photo", "flips"),
    [
        ("wide", True),
        ("tall", False),
        pytest.param("wide", False, marks=pytest.mark.slow),
        pytest.param("tall", True, marks=pytest.mark.slow),
    ],
)
def test_a_photo_is_answered_as_transformers_does(
    family: str, photo: str, flips: bool, tmp_path: Path
) -> None:
    """From pixels to logits: its own processor and model against our passport and model."""
    pixels = samples.chelsea()[PHOTOS[photo]]
    peer = copy.deepcopy(hf_peer(family)).float()
    peer.save_pretrained(tmp_path)
    arguments = {
        "size": {"shortest_edge": 72}, "crop_size": 64, "resample": 2,
        "do_flip_channel_order": flips,
    }  # fmt: skip
    hf.MobileViTImageProcessor(**arguments).save_pretrained(tmp_path)
    ours = load(tmp_path)
    how = ours.passport.preprocessing
    assert (how.channel_order, how.resize) == ("bgr" if flips else "rgb", (72, 72))

    exact = hf.MobileViTImageProcessorPil(**arguments)
    fast = hf.AutoImageProcessor.from_pretrained(tmp_path, use_fast=True)
    for processor, quick in ((exact, False), (fast, True)):
        given = processor(Image.fromarray(pixels), return_tensors="pt")["pixel_values"].float()
        image = prepare(pixels, how, exact=not quick)
        torch.testing.assert_close(image, given[0], rtol=0, atol=1e-5)
        with torch.no_grad():
            theirs, mine = logits(peer, given), ours(image[None])
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
        assert theirs.std() > 0.1, "equal logits of nothing prove nothing"
        if not quick:
            assert predict(ours, [pixels])[0].score == pytest.approx(
                theirs.softmax(dim=1).max().item(), abs=1e-5
            )

    convert(tmp_path, tmp_path / "back", to="transformers")
    written = hf.AutoImageProcessor.from_pretrained(tmp_path / "back")
    seen = written(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(seen, given, rtol=0, atol=1e-6)
    assert load(tmp_path / "back").passport.preprocessing == how


@every_family
def test_apples_own_processor_file_is_understood(family: str, tmp_path: Path) -> None:
    hf_peer(family, image_size=256).save_pretrained(tmp_path)
    told = {
        "feature_extractor_type": "MobileViTFeatureExtractor", "crop_size": 256, "size": 288,
        "do_center_crop": True, "do_flip_channel_order": True, "do_resize": True, "resample": 2,
    }  # fmt: skip
    without = load(tmp_path).passport.preprocessing
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    assert load(tmp_path).passport.preprocessing == without
    assert (without.channel_order, without.resize) == ("bgr", (288, 288))
    assert (without.mean, without.std) == ((0.0,) * 3, (1.0,) * 3)


@every_family
def test_exactly_one_dialect_claims_a_file(family: str, tmp_path: Path) -> None:
    peer, depths = hf_peer(family), {"mobilevit": (2, 4, 3), "mobilevitv2": (2, 1, 3)}[family]
    peer.save_pretrained(tmp_path / "transformers")
    save_file(as_apple(peer, family, depths), tmp_path / "cvnets.safetensors")
    write_safetensors(timm_peer(family), tmp_path / "timm.safetensors")
    for name in ("transformers", "cvnets.safetensors", "timm.safetensors"):
        foreign = replace(read_foreign(tmp_path / name), sidecars={})
        expected = f"{name.partition('.')[0]}-{family}"
        assert [dialect.name for dialect in DIALECTS if dialect.claims(foreign)] == [expected]


@every_family
def test_libraries_mean_the_dialect_of_the_family(family: str) -> None:
    name = {"mobilevit": "mobilevit_xxs", "mobilevitv2": "mobilevitv2_050"}[family]
    config = create(name, num_classes=3).config
    for library in ("timm", "transformers", "cvnets"):
        assert choose(library, config).name == f"{library}-{family}"
    assert choose("transformers-v4", config).name == f"transformers-{family}"


STRANGE: list[tuple[str, dict[str, Any]]] = [
    ("config.json", {"hidden_act": "relu"}),
    ("config.json", {"output_stride": 16}),
    ("config.json", {"patch_size": "2"}),
    ("config.json", {"patch_size": 0}),
    ("config.json", {"expand_ratio": -1.0}),
    ("config.json", {"image_size": [32, 32, 32]}),
    ("config.json", {"layer_norm_eps": 0}),
    ("preprocessor_config.json", {"do_flip_channel_order": "yes"}),
]


@pytest.mark.sampled(2)
@every_family
@pytest.mark.parametrize(("file", "told"), STRANGE, ids=[str(told) for _, told in STRANGE])
def test_strange_sidecars_end_in_a_sentence(
    family: str, file: str, told: Any, tmp_path: Path
) -> None:
    hf_peer(family).save_pretrained(tmp_path)
    path = tmp_path / file
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | told))
    with pytest.raises(UserError):
        load(tmp_path)


@every_family
def test_segmenters_are_refused(family: str, tmp_path: Path) -> None:
    hf_peer(family, "ForSemanticSegmentation").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="only classifiers are read"):
        load(tmp_path)


def test_what_no_file_tells_is_asked_for(tmp_path: Path) -> None:
    write_safetensors(timm_peer("mobilevit"), tmp_path / "peer.safetensors")
    with pytest.raises(UserError, match="heads"):
        load(tmp_path / "peer.safetensors")
    with pytest.raises(UserError, match="its widths is"):
        load(tmp_path / "peer.safetensors", model="mobilevit_s")


def test_blue_first_is_not_lost_in_silence(tmp_path: Path) -> None:
    """timm knows red first alone, so whoever takes apple's weights there is told."""
    peer = hf_peer("mobilevit")
    torch.save(as_apple(peer, "mobilevit", (2, 4, 3)), tmp_path / "apple.pt")
    told = {to: convert(tmp_path / "apple.pt", tmp_path / to, to=to, changes={"heads": 4}).cautions
            for to in ("timm", "transformers")}  # fmt: skip
    assert any("store preprocessing" in caution for caution in told["timm"])
    assert not any("store preprocessing" in caution for caution in told["transformers"])
    assert load(tmp_path / "transformers").passport.preprocessing.channel_order == "bgr"


def test_depths_of_its_own_are_refused_by_transformers() -> None:
    config = replace(create("mobilevit_xxs").config, depths=(1, 1, 1))
    with pytest.raises(UserError, match="2, 4 and 3 blocks"):
        choose("transformers", config)


def test_normalised_pictures_get_another_processor(tmp_path: Path) -> None:
    """MobileViT's own never normalises."""
    ours = create("mobilevit_xxs", num_classes=3, image_size=64)
    save(ours, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", to="transformers")
    processor = hf.AutoImageProcessor.from_pretrained(tmp_path / "theirs")
    pixels = samples.chelsea()[:64, :64]
    seen = processor(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(
        seen, prepare(pixels, ours.passport.preprocessing).numpy(), atol=1e-5
    )


@pytest.mark.sampled(2)
@every_family
@pytest.mark.parametrize("told", [{"global_pool": "max"}, {"act_layer": "relu"}], ids=str)
def test_timms_other_layers_are_refused(family: str, told: dict[str, str], tmp_path: Path) -> None:
    """No tensor shows them."""
    write_safetensors(timm_peer(family), tmp_path / "model.safetensors")
    names = {"mobilevit": "mobilevit_xxs", "mobilevitv2": "mobilevitv2_050"}
    config = {"architecture": names[family], "model_args": told}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="which Vitrail does not compute"):
        load(tmp_path, **said(family))
