"""Every model by its name: listing, aliases of other libraries, and creation."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from numbers import Integral
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from vitrail.core.errors import UserError, nearest
from vitrail.core.passport import Passport, Preprocessing
from vitrail.core.plugins import load_plugins
from vitrail.core.records import validate
from vitrail.core.without_init import without_init
from vitrail.models import (
    beit,
    bit,
    coatnet,
    coatnet_rw,
    descendants,
    mobilenetv2,
    mobilevit,
    mobilevitv2,
    resnet_v15,
    swin,
    swinv2,
    tokenizer,
    vit,
)
from vitrail.models.beit import Beit, BeitConfig
from vitrail.models.bit import BiT, BiTConfig
from vitrail.models.coatnet import CoAtNet, CoAtNetConfig
from vitrail.models.config import Config, Purpose, fields_for, purposes
from vitrail.models.mobilenetv2 import MobileNetV2, MobileNetV2Config
from vitrail.models.mobilevit import MobileViT, MobileViTConfig
from vitrail.models.mobilevitv2 import MobileViTV2, MobileViTV2Config
from vitrail.models.model import Model
from vitrail.models.resnet_v15 import ResNetV15, ResNetV15Config
from vitrail.models.swin import Swin, SwinConfig
from vitrail.models.swinv2 import SwinV2, SwinV2Config
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.models.variant import Variant
from vitrail.models.vit import ViT, ViTConfig

AnyConfig = TypeVar("AnyConfig", bound=Config)


@dataclass(frozen=True)
class Family:
    """A model class, its config and its table; `aliases` are names that others have for rows of
    it."""

    config: type[Config]
    model: Callable[[Any], Model]
    variants: Mapping[str, Variant[Any]]
    aliases: Mapping[str, str] = field(default_factory=dict)


FAMILIES = {
    "vit": Family(ViTConfig, ViT, {**vit.VARIANTS, **descendants.VARIANTS}),
    "beit": Family(BeitConfig, Beit, beit.VARIANTS),
    "swin": Family(SwinConfig, Swin, swin.VARIANTS, swin.ALIASES),
    "swinv2": Family(SwinV2Config, SwinV2, swinv2.VARIANTS, swinv2.ALIASES),
    "mobilevit": Family(MobileViTConfig, MobileViT, mobilevit.VARIANTS),
    "mobilevitv2": Family(MobileViTV2Config, MobileViTV2, mobilevitv2.VARIANTS),
    "coatnet": Family(
        CoAtNetConfig,
        CoAtNet,
        {**coatnet.VARIANTS, **coatnet_rw.VARIANTS},
        {**coatnet.ALIASES, **coatnet_rw.ALIASES},
    ),
    "resnet": Family(ResNetV15Config, ResNetV15, resnet_v15.VARIANTS),
    "bit": Family(BiTConfig, BiT, bit.VARIANTS, bit.ALIASES),
    "mobilenetv2": Family(
        MobileNetV2Config, MobileNetV2, mobilenetv2.VARIANTS, mobilenetv2.ALIASES
    ),
    "tokenizer": Family(TokenizerConfig, Tokenizer, tokenizer.VARIANTS),
}
BUILT_IN = frozenset(FAMILIES)

PLUGINS = "vitrail.families"  # the entry-point group of families in other packages


def register_family(
    name: str,
    *,
    config: type[Config],
    model: Callable[[Any], Model],
    variants: Mapping[str, Variant[Any]],
    aliases: Mapping[str, str] | None = None,
) -> None:
    """Add a family of models: `create`, `list_models`, `capture`, `save` and `load` then know it.

    `config` is a frozen dataclass that extends `vitrail.models.config.Config`, every field with its
    purpose; `model` extends `vitrail.models.model.Model`; `variants` is the table of models by
    name; `aliases` are other names of theirs. An installed package does the same with an entry
    point in the group "vitrail.families" whose value is a `Family`. Registering a family again
    replaces it.

    >>> class MyConfig(ViTConfig): ...
    >>> row = Variant(MyConfig(dim=64, depth=2, heads=2, mlp_dim=128), params=0, macs=0)
    >>> register_family("mine", config=MyConfig, model=ViT, variants={"mine_64": row})
    >>> create("mine_64", num_classes=3).passport.family
    'mine'
    >>> _ = FAMILIES.pop("mine")
    """
    add_family(name, Family(config, model, variants, aliases or {}))


def add_family(name: str, family: Family) -> None:
    """Register a family, or raise `UserError` where it does not fit beside the others."""
    if not isinstance(family, Family):
        raise UserError(
            f"the family {name} must be a vitrail.models.catalogue.Family, got "
            f"{type(family).__name__}: build one from its config, model and variants"
        )
    if not issubclass(family.config, Config):
        raise UserError(
            f"config of the family {name} must extend vitrail.models.config.Config, got "
            f"{family.config!r}"
        )
    purposes(family.config)  # raises where a field has none
    for other, known in FAMILIES.items():
        if other == name:
            if name in BUILT_IN:
                raise UserError(f"{name} is a built-in family: choose another name")
            continue
        if known.config is family.config:
            raise UserError(
                f"config {family.config.__name__} must be the family's own, got that of {other}: "
                "define a subclass"
            )
        taken = {*known.variants, *known.aliases} & {*family.variants, *family.aliases}
        if taken:
            raise UserError(
                f"{min(taken)} is a model of the family {other}: the family {name} must use "
                f"another name"
            )
    FAMILIES[name] = family


def families() -> Mapping[str, Family]:
    """Every family, those of installed packages too."""
    load_plugins(PLUGINS, add_family)
    return FAMILIES


def find_family(name: str) -> Family:
    """The family of that name."""
    known = FAMILIES if name in FAMILIES else families()
    if name not in known:
        raise UserError(
            f"unknown family {name!r}, {nearest(name, known)}: is the package that defines it "
            "installed?"
        )
    return known[name]


_SIZES = {
    "tiny": "ti",
    "small": "s",
    "medium": "m",
    "base": "b",
    "large": "l",
    "huge": "h",
    "giant": "g",
    "gigantic": "G",
}
# timm's names; torchvision's (vit_b_16) are ours already
_ALIASES = (
    (
        r"(?P<family>vit|deit|deit3)_(?P<size>\w+?)_patch(?P<patch>\d+)_(?P<pixels>\d+)",
        "{family}_{size}_{patch}",
    ),
    (
        r"deit_(?P<size>\w+?)_distilled_patch(?P<patch>\d+)_(?P<pixels>\d+)",
        "deit_{size}_{patch}_distilled",
    ),
    (
        r"vit_(?P<size>\w+?)_(?P<stem>r\d*)_s(?P<patch>\d+)(_p8)?_(?P<pixels>\d+)",
        "vit_{stem}_{size}_{patch}",
    ),
    (r"vit_(?P<size>\w+?)_patch(?P<patch>\d+)_dinov2", "dinov2_{size}_{patch}"),
    (r"vit_(?P<size>\w+?)_patch(?P<patch>\d+)_reg4_dinov2", "dinov2_{size}_{patch}_reg"),
    (r"flexivit_(?P<size>\w+)", "flexivit_{size}_16"),
    (
        r"(?P<family>beit|beitv2)_(?P<size>\w+?)_patch(?P<patch>\d+)_(?P<pixels>\d+)",
        "{family}_{size}_{patch}",
    ),
)


def list_models(pattern: str = "*") -> list[str]:
    """The names of all variants that match a shell pattern, sorted.

    >>> list_models("vit_b_*")
    ['vit_b_14', 'vit_b_16', 'vit_b_32', 'vit_b_8']
    """
    names = [name for family in families().values() for name in family.variants]
    return sorted(name for name in names if fnmatchcase(name, pattern))


def create(name: str, **fields: Any) -> Model:
    """A model with fresh weights; any field of its config may be given another value.

    >>> create("vit_ti_16", num_classes=10, image_size=(224, 160)).config.grid
    (14, 10)
    """
    return build(change(find(name), fields))


def build(config: Config) -> Model:
    """The model that a config describes, with fresh weights and a passport that says so."""
    family = family_of(config)
    model = FAMILIES[family].model(config)
    model.passport = fresh_passport(config)
    return model


def build_empty(config: Config) -> Model:
    """The model with tables that are computed, but without memory for what a checkpoint brings."""
    with without_init():
        return FAMILIES[family_of(config)].model(config)


def build_meta(config: Config) -> Model:
    """The model without memory for its tensors, to count and to measure."""
    return build_empty(config).to("meta")


@lru_cache(maxsize=32)
def shapes_of(config: Config) -> Mapping[str, torch.Size]:
    """The name and shape of every tensor in the model's state. Kept for the last few configs:
    reading, checking and writing one checkpoint each need them."""
    state = build_meta(config).state_dict()
    return MappingProxyType({name: tensor.shape for name, tensor in state.items()})


def fresh_passport(config: Config) -> Passport:
    """What is true of a model nobody has trained: plain resizing, values in [-1, 1]."""
    half = (0.5,) * config.channels
    return Passport(
        family=family_of(config),
        config=asdict(config),
        preprocessing=Preprocessing(size=config.image_size, mean=half, std=half),
    )


def family_of(config: Config) -> str:
    return next(name for name, family in FAMILIES.items() if family.config is type(config))


def find(name: str) -> Config:
    """The config behind one of our names or a timm name, with or without timm's .tag."""
    bare = name.partition(".")[0]
    found = _config_named(bare)
    if found is None:
        families()
        found = _config_named(bare)
    if found is None:
        raise UserError(f"unknown model {name!r}, {suggest_model(name)}")
    return found


def suggest_model(name: str) -> str:
    """A hint for a name that is nearly right: sizes in words, or without a patch size.

    >>> suggest_model("vit_tiny"), suggest_model("ViT-L/16"), suggest_model("swin_base")
    ('did you mean vit_ti_16?', 'did you mean vit_l_16?', 'did you mean swin_b?')
    """
    known = list(_variants())
    for tiny in ("ti", "t"):  # Swin's smallest is t
        sizes = {**_SIZES, "tiny": tiny}
        words = [sizes.get(word, word) for word in re.split(r"[-_/]", name.lower())]
        start = "_".join(words)
        patches = (14, 16) if words[-1] in ("h", "g") else (16, 14, 32, 8)  # the papers' own first
        likely = [start, *(f"{start}_{patch}" for patch in patches)]
        if match := next((one for one in likely if one in known), None):
            return f"did you mean {match}?"
    return nearest(name, known)


def _config_named(name: str) -> Config | None:
    row = _variants().get(name)
    return _alias(name) if row is None else row.config


def change(config: AnyConfig, values: dict[str, Any]) -> AnyConfig:
    """The config with other values, each checked; an int for `image_size` means a square."""
    if not values:
        return config
    values = dict(values)
    known = [field.name for field in fields(config)]
    for name in values:
        if name not in known:
            hint = nearest(name, known)
            if name == "pretrained":
                hint = "trained weights come from vitrail.load"
            raise UserError(f"unknown field {name!r}, {hint}")
    if isinstance(values.get("image_size"), Integral):
        values["image_size"] = (values["image_size"],) * 2
    return validate(type(config), {**asdict(config), **values}, where="model")


def variant_of(config: Config) -> str | None:
    """The name of the published variant that a config is, whatever its head, its images, its
    regularisation, its window policy and how it standardises kernels."""
    kind = type(config)
    policies = {"window_policy", "standardize"}
    fixed = {*fields_for(kind, Purpose.SHAPE, Purpose.NUMERICS)} - policies
    for name, variant in FAMILIES[family_of(config)].variants.items():
        if all(getattr(variant.config, field) == getattr(config, field) for field in fixed):
            return name
    return None


def _variants() -> dict[str, Variant[Any]]:
    return {name: row for family in FAMILIES.values() for name, row in family.variants.items()}


def _alias(name: str) -> Config | None:
    for family in FAMILIES.values():
        if name in family.aliases:
            return family.variants[family.aliases[name]].config
    for pattern, template in _ALIASES:
        match = re.fullmatch(pattern, name)
        if match is None or match["size"] not in _SIZES:
            continue
        parts = match.groupdict()
        row = _variants().get(template.format(**parts | {"size": _SIZES[match["size"]]}))
        if row is not None:
            config, pixels = row.config, parts.get("pixels")
            if (
                isinstance(config, ViTConfig) and config.registers
            ):  # timm folds the class token's position into the token
                config = replace(config, prefix_positions=0)
            return replace(config, image_size=(int(pixels),) * 2) if pixels else config
    return None
