"""preprocessor_config.json of transformers: every field varied, and what the model is fed compared
with the processor itself, on a photo. Equal, or refused in one sentence."""

from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from skimage import data as samples

from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data.preprocess import prepare
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects.transformers_processor import CROPPED, read_preprocessing

SIDE = 32
SQUARE = {"height": SIDE, "width": SIDE}
EDGE = {"size": {"shortest_edge": 40}, "crop_size": SQUARE}
# The fields that give a processor of each kind images of the model's size.
KINDS: dict[str, dict[str, Any]] = {
    "ViT": {"size": SQUARE},
    "DeiT": {"size": {"height": 37, "width": 37}, "crop_size": SQUARE},
    "Bit": EDGE,
    "CLIP": EDGE,
    "Beit": {"size": SQUARE},
    "MobileViT": EDGE,
    "ConvNext": {"size": {"shortest_edge": SIDE}},
}
FIELDS: list[dict[str, Any]] = [
    {},
    *({"resample": number} for number in (0, 1, 2, 3)),
    {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
    {"do_normalize": False},
    {"do_normalize": True},
    {"do_rescale": False},
    {"rescale_factor": 1 / 128},
    {"do_center_crop": False},
    {"do_center_crop": True, "size": {"height": 41, "width": 37}, "crop_size": SQUARE},
    {"do_center_crop": True, "do_resize": False, "crop_size": SQUARE},
    {"do_flip_channel_order": False},
    {"do_flip_channel_order": True},
    {"crop_pct": 0.7},
    {"do_pad": True, "pad_size": {"height": 64, "width": 64}},
]


def read(said: dict[str, Any], model_type: str = "vit", side: int = SIDE) -> Preprocessing:
    sidecars = {"config.json": {"model_type": model_type}, "preprocessor_config.json": said}
    config = ViTConfig(image_size=(side, side), patch_size=8, dim=8, depth=1, heads=1, mlp_dim=4)
    return read_preprocessing(Foreign("published", {}, sidecars), config, CROPPED)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_images_are_prepared_as_its_processor_does_or_refused(kind: str) -> None:
    photo = Image.fromarray(samples.chelsea())
    apart, equal = [], 0
    for fields in FIELDS:
        processor = getattr(transformers, f"{kind}ImageProcessorPil")(**KINDS[kind] | fields)
        try:
            ours = read(processor.to_dict() | fields)
        except UserError:
            continue
        try:
            theirs = processor(photo, return_tensors="pt")["pixel_values"][0].float()
        except (ValueError, AttributeError):  # it cannot do that either
            continue
        if theirs.shape[-2:] != (SIDE, SIDE):  # a model with positions cannot be fed that
            continue
        equal += 1
        if not torch.allclose(prepare(photo, ours), theirs, rtol=1e-5, atol=1e-5):
            apart.append(fields)
    assert not apart
    assert equal > 4


DEFAULTS = {
    "vit": "ViT", "deit": "DeiT", "dinov2": "Bit", "dinov2_with_registers": "Bit",
    "vit_mae": "ViT", "beit": "Beit", "swin": "ViT", "swinv2": "ViT", "clip": "CLIP",
    "clip_vision_model": "CLIP",
}  # fmt: skip


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_a_file_that_names_no_processor_means_that_of_its_model(model_type: str) -> None:
    kind = DEFAULTS[model_type]
    processor = getattr(transformers, f"{kind}ImageProcessorPil")()
    photo = Image.fromarray(samples.chelsea())
    theirs = processor(photo, return_tensors="pt")["pixel_values"][0].float()
    ours = read({"do_rescale": True}, model_type, theirs.shape[-1])
    torch.testing.assert_close(prepare(photo, ours), theirs, rtol=0, atol=1e-4)
    named = read({"image_processor_type": f"{kind}ImageProcessor"}, model_type, theirs.shape[-1])
    assert ours == named


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        # its own defaults pad a crop of 256 into an image of 224
        ({"image_processor_type": "MobileViTImageProcessor"}, "must fit into size"),
        ({"image_processor_type": "ViTHybridImageProcessor"}, "processor"),
        ({"image_processor_type": "LevitImageProcessor"}, "processor"),
        (
            {"image_processor_type": "ViTImageProcessor", "size": {"longest_edge": 32}},
            "size must be",
        ),
        ({"image_processor_type": "ViTImageProcessor", "do_pad": True}, "do_pad"),
        (
            {"image_processor_type": "ConvNextImageProcessor", "size": {"height": 8}},
            "size must be",
        ),
        ({"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0.0}, "crop_pct"),
    ],
)
def test_what_is_not_computed_is_refused(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read(said)
