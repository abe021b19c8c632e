"""What a config accepts, its model computes: every pair of choices in every family."""

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import combinations, product
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch

from tests.models.test_half_precision import SMALL_TOKENIZER
from tests.parity.test_every_family import CONFIGS
from vitrail import UserError
from vitrail.models.catalogue import build
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
    "tokenizer": {"stages": (1, 2)},
}
EVERYWHERE: dict[str, tuple[Any, ...]] = {
    "num_classes": (0, 5),
    "drop_path": (0.0, 0.5),
}
SMALLEST: dict[str, Config] = {
    **CONFIGS,
    "vit": replace(CONFIGS["vit"], dim=16, depth=1, mlp_dim=8, heads=2),
    "beit": replace(CONFIGS["beit"], dim=16, depth=1, mlp_dim=8, heads=2),
    "coatnet": replace(
        CONFIGS["coatnet"],
        stem=(4, 8),
        dims=(8, 8, 8, 16),
        depths=(1, 1, 1, 1),
        dim_head=8,
        image_size=(32, 64),
    ),
    "mobilevit": replace(CONFIGS["mobilevit"], depths=(1, 1, 1), image_size=(32, 64)),
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


def accepted(family: str) -> Iterator[Config]:
    """A config for every two values of every two fields that it does not refuse."""
    options, seen = choices(family), set()
    for one, other in combinations(options, 2):
        for pair in product(options[one], options[other]):
            try:
                config = replace(SMALLEST[family], **dict(zip((one, other), pair, strict=True)))  # type: ignore[arg-type]
            except UserError:
                continue
            if config not in seen:
                seen.add(config)
                yield config


@pytest.mark.parametrize("family", SMALLEST)
def test_what_is_accepted_is_computed(family: str) -> None:
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
    assert count > 5
