"""How code bases prepare images for their weights, at the model's own size and channels."""

from collections.abc import Callable
from typing import Any

from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD, INCEPTION, Preprocessing
from vitrail.models.config import Config
from vitrail.weights.dialect import Foreign

Values = tuple[float, ...]  # one for each channel


def prepared(
    config: Config, *, mean: Values = INCEPTION, std: Values = INCEPTION, **others: Any
) -> Preprocessing:
    """At the size of the model; where its channels are no colours, values are scaled to [-1, 1]."""
    if config.channels != len(mean):
        mean = std = (0.5,) * config.channels
    return Preprocessing(size=config.image_size, mean=mean, std=std, **others)


def bicubic(config: Config, scale: float | None) -> Preprocessing:
    """Bicubic, until it covers `scale` times the size, then the centre; squeezed without it."""
    height, width = config.image_size
    resize = None if scale is None else (round(height * scale), round(width * scale))
    return prepared(
        config, resize=resize, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD
    )


def cropped(
    share_of: Callable[[Any], float], mean: Values = IMAGENET_MEAN, std: Values = IMAGENET_STD
) -> Callable[[Foreign, Config], Preprocessing]:
    """Bicubic, then the centre, which is a share of the side."""

    def preprocessing(_: Foreign, config: Config) -> Preprocessing:
        (height, width), share = config.image_size, share_of(config)
        resize = (int(height / share), int(width / share))
        return prepared(config, resize=resize, interpolation="bicubic", mean=mean, std=std)

    return preprocessing


def below_384(share: float) -> Callable[[Config], float]:
    """A share of the side in smaller images; larger ones are used whole."""
    return lambda config: share if max(config.image_size) < 384 else 1.0
