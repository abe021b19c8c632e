"""transformers' config.json and preprocessor_config.json: what they tell, and how we write them."""

import re
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from vitrail.core.errors import UserError, nearest
from vitrail.core.passport import (
    CLIP_MEAN,
    CLIP_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    INCEPTION,
    Passport,
    Preprocessing,
)
from vitrail.core.records import validate
from vitrail.models.config import Config
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import Foreign

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
SPELLED = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu"}
MULTI_LABEL = "multi_label_classification"  # of problem_type
# Pillow's numbers for its filters.
RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}

# What a processor does where its file is silent, by the name of its class without the ending.
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
}  # fmt: skip
# Without any file: as the authors of DeiT, DINOv2 and MAE evaluate.
CROPPED = replace(
    PROCESSORS["DeiT"], squeeze=False, crop="rounded", mean=IMAGENET_MEAN, std=IMAGENET_STD
)

Size = int | dict[str, int | None]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Told:
    """The fields of config.json that tensors cannot tell."""

    architectures: tuple[str, ...] | None = None
    num_attention_heads: int | None = None
    image_size: int | tuple[int, int] | None = None
    hidden_act: str | None = None
    layer_norm_eps: float | None = None
    layerscale_value: float | None = None
    id2label: dict[str, str | int] | None = None
    problem_type: str | None = None


@dataclass(frozen=True, kw_only=True)
class Processor:
    """The fields of preprocessor_config.json that decide what the model sees."""

    image_processor_type: str | None = None
    feature_extractor_type: str | None = None  # its name of old
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


def read_config(foreign: Foreign) -> Told:
    return read_record(Told, foreign, "config.json")


def read_record(kind: type[T], foreign: Foreign, name: str) -> T:
    """The fields of a sidecar that a record knows; what else it says is not for us."""
    said = foreign.sidecars.get(name, {})
    known = {field.name: said[field.name] for field in fields(kind) if field.name in said}  # type: ignore[arg-type]
    return validate(kind, known, where=f"{foreign.source}: {name}")


def read_activation(told: Told, where: str) -> str:
    act = told.hidden_act or "gelu"
    if act not in ACTIVATIONS:
        raise UserError(
            f"{where}: hidden_act {act!r} is not known here, {nearest(act, ACTIVATIONS)}"
        )
    return ACTIVATIONS[act]


def read_labels(told: Told, classes: int, where: str) -> tuple[str, ...] | None:
    """The names of the classes in order; LABEL_0, LABEL_1, … are transformers' word for none."""
    if not classes or not told.id2label:
        return None
    names = [told.id2label.get(str(index)) for index in range(classes)]
    if len(told.id2label) != classes or None in names:
        raise UserError(
            f"{where}: the head has {classes} classes, but id2label in config.json names "
            f"{len(told.id2label)}, expected one for each of 0 to {classes - 1}"
        )
    if names == [f"LABEL_{index}" for index in range(classes)]:
        return None
    return tuple(str(name) for name in names)


def read_multi_label(foreign: Foreign) -> bool:
    """Whether an image may have several labels; a model that was trained to give numbers, or one
    whose problem is unknown, is no classifier."""
    problem = read_config(foreign).problem_type
    if problem in (None, "single_label_classification"):
        return False
    if problem != MULTI_LABEL:
        raise UserError(
            f"{foreign.source}: problem_type in config.json must be single_label_classification "
            f"or {MULTI_LABEL}, got {problem!r}: Vitrail has classifiers only"
        )
    return True


def read_preprocessing(foreign: Foreign, config: Config, usual: Preprocessing) -> Preprocessing:
    """As preprocessor_config.json says, and `usual` without one, at the model's own size."""
    name = "preprocessor_config.json"
    where = f"{foreign.source}: {name}"
    said = read_record(Processor, foreign, name)
    if name in foreign.sidecars:
        kind = _kind(said, foreign, where)
        usual = PROCESSORS.get(kind, usual)
        _refuse_uncomputed(said, usual, where)
        if kind == "MobileViT":  # whatever it says, it does not normalise; no other flips
            said = replace(said, do_normalize=False, image_mean=None, image_std=None)
            if said.do_flip_channel_order is False:
                usual = replace(usual, channel_order="rgb")
        if kind == "ConvNext":
            said = _as_cropping(said, usual, where)
    if said.resample is not None and said.resample not in RESAMPLE:
        raise UserError(f"{where}: resample is {said.resample}, but must be 0, 1, 2 or 3")
    resample = RESAMPLE[said.resample] if said.resample is not None else usual.interpolation
    mean, std = _normalisation(said, config.channels, usual, where)
    values: dict[str, Any] = {"interpolation": resample, "mean": mean, "std": std}
    values |= {"size": config.image_size, "resize": _resize(said, config, usual, where)}
    values["channel_order"] = usual.channel_order
    if values["resize"] is not None and name in foreign.sidecars:
        values |= {"squeeze": _squeezes(said, usual), "crop": "floored"}
    elif values["resize"] is not None:
        values |= {"squeeze": usual.squeeze, "crop": usual.crop}
    return validate(Preprocessing, values, where=where)


def _kind(said: Processor, foreign: Foreign, where: str) -> str:
    """The processor that a file is for, as a key of PROCESSORS; "" where nothing tells."""
    named = said.image_processor_type or said.feature_extractor_type
    if named is None or re.sub(ENDINGS, "", named) == "Auto":
        model_type = foreign.sidecars.get("config.json", {}).get("model_type")
        return OF_MODEL.get(model_type, "") if isinstance(model_type, str) else ""
    kind = re.sub(ENDINGS, "", named)
    if kind not in PROCESSORS:
        raise UserError(
            f"{where}: image processor must be one of {', '.join(PROCESSORS)}, got {named!r}: "
            "what it does to images is not known here; without this file the usual is assumed"
        )
    return kind


def _refuse_uncomputed(said: Processor, usual: Preprocessing, where: str) -> None:
    """What our preprocessing has no word for."""
    crops = usual.resize is not None if said.do_center_crop is None else said.do_center_crop
    if said.do_pad:
        raise UserError(f"{where}: do_pad must be false, got true: Vitrail pads no images")
    if crops and said.do_resize is False:
        raise UserError(
            f"{where}: do_resize must be true where do_center_crop is, got false: Vitrail does "
            "not crop images that are not resized"
        )
    if said.size is not None:
        _sides(said.size, where)


def _as_cropping(said: Processor, usual: Preprocessing, where: str) -> Processor:
    """What ConvNext's crop_pct means in the words of the other processors: the centre of a larger
    image below 384 pixels, the whole image squeezed from there on."""
    share = 224 / 256 if said.crop_pct is None else said.crop_pct
    if not 0.01 <= share <= 1:
        raise UserError(f"{where}: crop_pct must be a share up to 1, got {share}")
    size: Size = {"shortest_edge": usual.size[0]} if said.size is None else said.size
    if isinstance(size, dict) and "shortest_edge" not in size:
        raise UserError(f"{where}: size is {size}, but this processor needs shortest_edge")
    side = _sides(size, where)[0]
    if side >= 384 or said.do_resize is False:
        return replace(said, size=side, do_center_crop=False)
    cover: Size = {"shortest_edge": int(side / share)}
    return replace(said, size=cover, crop_size=side, do_center_crop=True)


def _squeezes(said: Processor, usual: Preprocessing) -> bool:
    """Whether both sides are met; a single number means what it means to the kind."""
    if isinstance(said.size, dict):
        return "shortest_edge" not in said.size
    return usual.squeeze


def _resize(
    said: Processor, config: Config, usual: Preprocessing, where: str
) -> tuple[int, int] | None:
    """What a picture is scaled to before its centre is cropped; None where nothing is."""
    if said.do_resize is False:
        return None
    crops = usual.resize is not None if said.do_center_crop is None else said.do_center_crop
    if not crops:
        shortest = isinstance(said.size, dict) and "shortest_edge" in said.size
        return config.image_size if shortest else None
    tall, broad = usual.resize or usual.size
    if said.size is not None:
        tall, broad = _sides(said.size, where)
    high, wide = usual.size if said.crop_size is None else _sides(said.crop_size, where)
    if tall < high or broad < wide:
        raise UserError(f"{where}: a crop of {high}x{wide} does not fit into {tall}x{broad}")
    # in proportion, because DINOv2 is fed smaller pictures than its positions are for
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
                f"{where}: size is {size}, but must be a number, shortest_edge, or height and width"
            )
    if height < 1 or width < 1:
        raise UserError(f"{where}: size is {size}, but a side must be at least 1")
    return height, width


def _normalisation(
    said: Processor, channels: int, usual: Preprocessing, where: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of values in [0, 1], whatever range theirs are for."""
    factor = 1 / 255 if said.rescale_factor is None else said.rescale_factor
    if not factor > 0:
        raise UserError(f"{where}: rescale_factor is {factor}, but must be above 0")
    top = 255.0 if said.do_rescale is False else 255 * factor
    mean = _per_channel(said.image_mean, usual.mean, channels, f"{where}: image_mean")
    std = _per_channel(said.image_std, usual.std, channels, f"{where}: image_std")
    if said.do_normalize is False:
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
        raise UserError(f"{what} has {len(values)} values, but the model reads {channels} channels")
    return values


def write_config(
    passport: Passport,
    config: ViTConfig,
    *,
    model_type: str,
    architecture: str,
    extras: dict[str, Any],
) -> dict[str, Any]:
    """A config.json from which Auto classes build this very model; `extras` are its kind's own."""
    height, width = config.image_size
    written: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": config.dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": SPELLED.get(config.activation, "gelu"),  # a gated MLP does not ask
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.02,
        "layer_norm_eps": config.norm_eps,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias == "qkv",
        **write_labels(passport, config),
    }
    if config.dim_head is not None:
        written["head_dim"] = config.dim_head
    return written | extras


def write_labels(passport: Passport, config: Config) -> dict[str, Any]:
    """No labels at all is how a transformers model is told to give its features."""
    names = passport.labels or [f"LABEL_{index}" for index in range(config.num_classes)]
    return {
        **({"problem_type": MULTI_LABEL} if passport.multi_label else {}),
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def write_preprocessing(before: Preprocessing) -> dict[str, Any]:
    """A preprocessor_config.json for AutoImageProcessor."""
    if before.channel_order != "rgb":
        raise UserError("transformers feeds this model RGB only, and these weights expect BGR")
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
    # it cannot cover a rectangle; squeezing into it is the same for pictures of that shape
    written["size"] = {"height": tall, "width": broad}
    return {"image_processor_type": "DeiTImageProcessor"} | written


def write_mobile_preprocessing(before: Preprocessing) -> dict[str, Any]:
    """The same for MobileViT's processor, the one that flips channels and never normalises; where
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
