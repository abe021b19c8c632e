"""What a config accepts, its model computes: every pair of choices in every family."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import combinations, product
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch

from tests.models.test_half_precision import SMALL_TOKENIZER
from tests.parity.test_every_family import CONFIGS
from vitrail import UserError
from vitrail.models.catalogue import build, build_empty, change
from vitrail.models.config import Config
from vitrail.models.resnet import ResNetConfig

# choices that no type lists; the odd ones are sizes that patches and windows do not divide
OPEN: dict[str, dict[str, tuple[Any, ...]]] = {
    "vit": {
        "registers": (0, 2),
        "prefix_positions": (None, 0, 1, 2),
        "stem": (None, ResNetConfig(blocks=(1,), width=8, groups=4)),
        "dim_head": (None, 5),
        "layer_scale": (None, 0.1),
        "patch_dropout": (0.0, 0.5),
    },
    "beit": {"layer_scale": (None, 0.1)},
    "swin": {"window_size": (1, 3, 7), "image_size": ((4, 4), (20, 36), (36, 20))},
    "swinv2": {
        "window_size": (1, 3, 7),
        "image_size": ((4, 4), (20, 36)),
        "pretrained_windows": ((), (1, 5)),
    },
    "mobilevit": {"patch_size": (1, 2, 3), "image_size": ((1, 1), (33, 47)), "expand": (0.5, 2.0)},
    "mobilevitv2": {"patch_size": (1, 2, 3), "image_size": ((1, 1), (33, 47))},
    "coatnet": {
        "bias_hidden": (None, 4),
        "layer_scale": (None, 0.1),
        "strides": (None, (1, 2, 2, 1), (4, 1, 1, 2)),
        "kinds": ("CCTT", "TTTT", "CTCT"),
        "dim_head": (4, 8),
    },
    "resnet": {"image_size": ((1, 1), (33, 47)), "depths": ((1,), (2, 1), (1, 1, 1))},
    "bit": {"image_size": ((1, 1), (33, 47)), "depths": ((1,), (2, 1)), "groups": (4, 16)},
    "mobilenetv2": {"image_size": ((1, 1), (33, 47)), "expand": (0.5, 1.0, 6.0)},
    "tokenizer": {"stages": (1, 2)},
}
EVERYWHERE: dict[str, tuple[Any, ...]] = {
    "num_classes": (0, 5),
    "drop_path": (0.0, 0.5),
}
SMALLEST: dict[str, Config] = {
    **CONFIGS,
    "vit": change(CONFIGS["vit"], {"dim": 16, "depth": 1, "mlp_dim": 8, "heads": 2}),
    "beit": change(CONFIGS["beit"], {"dim": 16, "depth": 1, "mlp_dim": 8, "heads": 2}),
    "coatnet": change(
        CONFIGS["coatnet"],
        {
            "stem": (4, 8),
            "dims": (8, 8, 8, 16),
            "depths": (1, 1, 1, 1),
            "dim_head": 8,
            "image_size": (32, 64),
        },
    ),
    "mobilevit": change(CONFIGS["mobilevit"], {"depths": (1, 1, 1), "image_size": (32, 64)}),
    "tokenizer": SMALL_TOKENIZER,
}


def choices(family: str) -> dict[str, tuple[Any, ...]]:
    """The fields of a config with the values that they may have."""
    config = SMALLEST[family]
    found: dict[str, tuple[Any, ...]] = {}
    for name, hint in get_type_hints(type(config)).items():
        if get_origin(hint) is Literal:
            found[name] = get_args(hint)
        elif hint is bool:
            found[name] = (False, True)
    known = {field.name for field in fields(config)}
    return found | {n: v for n, v in EVERYWHERE.items() if n in known} | OPEN[family]


def changed(family: str, values: dict[str, Any]) -> Config | None:
    """The config with these values, or nothing if it refuses them."""
    try:
        return replace(SMALLEST[family], **values)
    except UserError:
        return None


def is_built(config: Config) -> bool:
    """Whether the model accepts what its config does."""
    try:
        build_empty(config)
    except UserError:
        return False
    return True


def pairs_of(values: dict[str, Any]) -> set[frozenset[tuple[str, Any]]]:
    return {frozenset(pair) for pair in combinations(values.items(), 2)}


def every_pair(family: str) -> Iterator[dict[str, Any]]:
    """Every two values of every two fields, the others as in the smallest model."""
    options = choices(family)
    for one, other in combinations(options, 2):
        for pair in product(options[one], options[other]):
            yield dict(zip((one, other), pair, strict=True))


def alone(family: str) -> Iterator[Config]:
    """A config for each pair that is not refused."""
    found = dict.fromkeys(changed(family, values) for values in every_pair(family))
    yield from (config for config in found if config is not None)


def together(family: str) -> Iterator[Config]:
    """Configs with as many pairs at once as are not refused, until each pair was in one."""
    options, done = choices(family), set[frozenset[tuple[str, Any]]]()
    for values in every_pair(family):
        config = changed(family, values)
        if config is None or pairs_of(values) <= done:
            continue
        for name in [name for name in options if name not in values]:
            news = {value: len(pairs_of(values | {name: value}) - done) for value in options[name]}
            for value in sorted(news, key=lambda value: -news[value]):
                if changed(family, values | {name: value}) is not None:
                    values[name] = value
                    break
        more = changed(family, values)
        if more is not None and is_built(more):
            done |= pairs_of(values)
            config = more
        yield config


@pytest.mark.sampled(2)
@pytest.mark.parametrize("accepted", [together, pytest.param(alone, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", SMALLEST)
def test_what_is_accepted_is_computed(
    family: str, accepted: Callable[[str], Iterator[Config]]
) -> None:
    torch.manual_seed(0)
    count = 0
    for config in accepted(family):
        count += 1
        try:
            model = build(config)
        except UserError:
            continue
        images = torch.randn(2, config.channels, *config.image_size)
        try:
            logits = model(images)
            with torch.no_grad():
                features = model.eval().features(images)
        except Exception as error:
            raise AssertionError(f"accepted, and then failed: {config}") from error
        assert features.shape == (2, config.features), config
        assert logits.shape == (2, config.num_classes or config.features), config
        assert logits.isfinite().all(), config
    assert count > 3
