"""transformers' preprocessor_config.json: what its processors do to images, read and written."""

import re
from dataclasses import dataclass, replace
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import (
    CLIP_MEAN,
    CLIP_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    INCEPTION,
    Preprocessing,
)
from vitrail.core.records import validate
from vitrail.models.config import Config
from vitrail.weights.dialect import Foreign, read_record

FILE = "preprocessor_config.json"
# Pillow's numbers for its filters.
RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}

# What a processor does by default, by the name of its class without the ending.
SQUEEZED = Preprocessing(size=(224, 224), interpolation="bilinear", mean=INCEPTION, std=INCEPTION)
CENTRED = Preprocessing(
    size=(224, 224),
    resize=(224, 224),
    crop="floored",
    interpolation="bicubic",
    mean=CLIP_MEAN,
    std=CLIP_STD,
)
PROCESSORS = {
    "ViT": SQUEEZED,
    "DeiT": replace(
        SQUEEZED, resize=(256, 256), squeeze=True, crop="floored", interpolation="bicubic"
    ),
    "Bit": CENTRED,
    "CLIP": CENTRED,
    "Beit": replace(SQUEEZED, interpolation="bicubic"),
    "ConvNext": replace(SQUEEZED, size=(384, 384), interpolation="bicubic"),
    "MobileViT": Preprocessing(
        size=(256, 256),
        resize=(224, 224),
        crop="floored",
        interpolation="bicubic",
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        channel_order="bgr",
    ),
}
ENDINGS = r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$"
# The processor that transformers takes where the file names none, by the model_type of config.json.
OF_MODEL = {
    "vit": "ViT", "vit_mae": "ViT", "swin": "ViT", "swinv2": "ViT", "beit": "Beit",
    "deit": "DeiT", "dinov2": "Bit", "dinov2_with_registers": "Bit", "mobilevit": "MobileViT",
    "mobilevitv2": "MobileViT", "clip": "CLIP", "clip_vision_model": "CLIP",
    "resnet": "ConvNext",
}  # fmt: skip
# Without any file: as the authors of DeiT, DINOv2 and MAE evaluate.
CROPPED = replace(
    PROCESSORS["DeiT"], squeeze=False, crop="rounded", mean=IMAGENET_MEAN, std=IMAGENET_STD
)

Size = int | dict[str, int | None]


@dataclass(frozen=True, kw_only=True)
class Processor:
    """The fields of preprocessor_config.json that decide what the model sees."""

    image_processor_type: str | None = None
    feature_extractor_type: str | None = None  # its former name
    do_resize: bool | None = None
    size: Size | None = None
    resample: int | None = None
    do_center_crop: bool | None = None
    crop_size: Size | None = None
    do_rescale: bool | None = None
    rescale_factor: float | None = None
    do_normalize: bool | None = None
    image_mean: float | tuple[float, ...] | None = None
    image_std: float | tuple[float, ...] | None = None
    do_flip_channel_order: bool | None = None
    crop_pct: float | None = None  # of ConvNext's
    do_pad: bool | None = None


def read_preprocessing(foreign: Foreign, config: Config, usual: Preprocessing) -> Preprocessing:
    """As preprocessor_config.json specifies, and `usual` without one, at the model's own size."""
    where = f"{foreign.source}: {FILE}"
    given = read_record(Processor, foreign.sidecars.get(FILE), where=where)
    if FILE in foreign.sidecars:
        kind = _kind(given, foreign, where)
        usual = PROCESSORS.get(kind, usual)
        _refuse_uncomputed(given, usual, where)
        if kind == "MobileViT":  # it never normalises, and no other flips
            given = replace(given, do_normalize=False, image_mean=None, image_std=None)
            if given.do_flip_channel_order is False:
                usual = replace(usual, channel_order="rgb")
        if kind == "ConvNext":
            given = _as_cropping(given, usual, where)
    if given.resample is not None and given.resample not in RESAMPLE:
        raise UserError(f"{where}: resample must be 0, 1, 2 or 3, got {given.resample}")
    resample = RESAMPLE[given.resample] if given.resample is not None else usual.interpolation
    mean, std = _normalisation(given, config.channels, usual, where)
    values: dict[str, Any] = {"interpolation": resample, "mean": mean, "std": std}
    values |= {"size": config.image_size, "resize": _resize(given, config, usual, where)}
    values["channel_order"] = usual.channel_order
    if values["resize"] is not None and FILE in foreign.sidecars:
        values |= {"squeeze": _squeezes(given, usual), "crop": "floored"}
    elif values["resize"] is not None:
        values |= {"squeeze": usual.squeeze, "crop": usual.crop}
    return validate(Preprocessing, values, where=where)


def _kind(given: Processor, foreign: Foreign, where: str) -> str:
    """The processor that a file is for, as a key of PROCESSORS; "" where nothing names it."""
    named = given.image_processor_type or given.feature_extractor_type
    if named is None or re.sub(ENDINGS, "", named) == "Auto":
        model_type = foreign.sidecars.get("config.json", {}).get("model_type")
        return OF_MODEL.get(model_type, "") if isinstance(model_type, str) else ""
    kind = re.sub(ENDINGS, "", named)
    if kind not in PROCESSORS:
        raise UserError(
            f"{where}: image processor must be one of {', '.join(PROCESSORS)}, got {named!r}: "
            "what it does to images is unknown; without this file the usual is assumed"
        )
    return kind


def _refuse_uncomputed(given: Processor, usual: Preprocessing, where: str) -> None:
    """Refuse what our preprocessing cannot express."""
    crops = usual.resize is not None if given.do_center_crop is None else given.do_center_crop
    if given.do_pad:
        raise UserError(f"{where}: do_pad must be false, got true: Vitrail pads no images")
    if crops and given.do_resize is False:
        raise UserError(
            f"{where}: do_resize must be true where do_center_crop is, got false: Vitrail does "
            "not crop images that are not resized"
        )
    if given.size is not None:
        _sides(given.size, where)


def _as_cropping(given: Processor, usual: Preprocessing, where: str) -> Processor:
    """What ConvNext's crop_pct means by the fields of the other processors: the centre of a larger
    image below 384 pixels, the whole image squeezed from there on."""
    share = 224 / 256 if given.crop_pct is None else given.crop_pct
    if not 0.01 <= share <= 1:
        raise UserError(f"{where}: crop_pct must be in [0.01, 1], got {share}")
    size: Size = {"shortest_edge": usual.size[0]} if given.size is None else given.size
    if isinstance(size, dict) and "shortest_edge" not in size:
        raise UserError(f"{where}: size must have shortest_edge for this processor, got {size}")
    side = _sides(size, where)[0]
    if side >= 384 or given.do_resize is False:
        return replace(given, size=side, do_center_crop=False)
    cover: Size = {"shortest_edge": int(side / share)}
    return replace(given, size=cover, crop_size=side, do_center_crop=True)


def _squeezes(given: Processor, usual: Preprocessing) -> bool:
    """Whether both sides are met; a single number means what it means to the kind."""
    if isinstance(given.size, dict):
        return "shortest_edge" not in given.size
    return usual.squeeze


def _resize(
    given: Processor, config: Config, usual: Preprocessing, where: str
) -> tuple[int, int] | None:
    """What an image is scaled to before its centre is cropped; None where nothing is."""
    if given.do_resize is False:
        return None
    crops = usual.resize is not None if given.do_center_crop is None else given.do_center_crop
    if not crops:
        shortest = isinstance(given.size, dict) and "shortest_edge" in given.size
        return config.image_size if shortest else None
    tall, broad = usual.resize or usual.size
    if given.size is not None:
        tall, broad = _sides(given.size, where)
    high, wide = usual.size if given.crop_size is None else _sides(given.crop_size, where)
    if tall < high or broad < wide:
        raise UserError(
            f"{where}: crop_size must fit into size, got {high}x{wide} and {tall}x{broad}"
        )
    # in proportion, because DINOv2 is fed smaller images than its positions are for
    height, width = config.image_size
    return round(height * tall / high), round(width * broad / wide)


def _sides(size: Size, where: str) -> tuple[int, int]:
    match size:
        case int(side) | {"shortest_edge": int(side)}:
            height = width = side
        case {"height": int(height), "width": int(width)}:
            pass
        case _:
            raise UserError(
                f"{where}: size must be a number, shortest_edge, or height and width, got {size}"
            )
    if height < 1 or width < 1:
        raise UserError(f"{where}: the sides of size must be at least 1, got {size}")
    return height, width


def _normalisation(
    given: Processor, channels: int, usual: Preprocessing, where: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of values in [0, 1], whatever range theirs are for."""
    factor = 1 / 255 if given.rescale_factor is None else given.rescale_factor
    if not factor > 0:
        raise UserError(f"{where}: rescale_factor must be above 0, got {factor}")
    top = 255.0 if given.do_rescale is False else 255 * factor
    mean = _per_channel(given.image_mean, usual.mean, channels, f"{where}: image_mean")
    std = _per_channel(given.image_std, usual.std, channels, f"{where}: image_std")
    if given.do_normalize is False:
        mean, std = (0.0,) * channels, (1.0,) * channels
    return tuple(value / top for value in mean), tuple(value / top for value in std)


def _per_channel(
    given: float | tuple[float, ...] | None, usual: tuple[float, ...], channels: int, what: str
) -> tuple[float, ...]:
    if given is None:
        # the usual ones are those of colours
        return usual if channels == len(usual) else (0.5,) * channels
    values = given if isinstance(given, tuple) else (given,) * channels
    if len(values) != channels:
        raise UserError(
            f"{what} must have one value for each of {channels} channels, got {len(values)}"
        )
    return values


def write_preprocessing(before: Preprocessing) -> dict[str, Any]:
    """A preprocessor_config.json for AutoImageProcessor."""
    if before.channel_order != "rgb":
        raise UserError(
            "transformers feeds this model RGB images, but these weights expect BGR: choose "
            "another dialect"
        )
    height, width = before.size
    written: dict[str, Any] = {
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": next(n for n, name in RESAMPLE.items() if name == before.interpolation),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(before.mean),
        "image_std": list(before.std),
        "do_convert_rgb": len(before.mean) == 3,
    }
    if before.resize is None:
        return {"image_processor_type": "ViTImageProcessor"} | written
    tall, broad = before.resize
    written |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    if tall == broad and not before.squeeze:
        written["size"] = {"shortest_edge": tall}
        return {"image_processor_type": "BitImageProcessor"} | written
    # it cannot cover a rectangle; squeezing into it is the same for images of that shape
    written["size"] = {"height": tall, "width": broad}
    return {"image_processor_type": "DeiTImageProcessor"} | written


def write_mobile_preprocessing(before: Preprocessing) -> dict[str, Any]:
    """The same for MobileViT's given, the one that flips channels and never normalises; where
    values have to be normalised it is another."""
    if set(before.mean) != {0.0} or set(before.std) != {1.0}:
        return write_preprocessing(before)
    written = write_preprocessing(replace(before, channel_order="rgb"))
    for name in ("do_normalize", "image_mean", "image_std"):
        del written[name]
    return written | {
        "image_processor_type": "MobileViTImageProcessor",
        "do_center_crop": before.resize is not None,
        "do_flip_channel_order": before.channel_order == "bgr",
    }
