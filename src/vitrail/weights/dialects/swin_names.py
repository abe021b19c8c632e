"""What all dialects of Swin and Swin V2 share: the parts of the tree, and what shapes tell."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.layout import WindowPolicy
from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD, Passport, Preprocessing
from vitrail.models.config import Config
from vitrail.models.swin import SwinConfig
from vitrail.weights.dialects import timm
from vitrail.weights.dialects.timm_architectures import refuse_other_layers
from vitrail.weights.old_dialect import ANY, Facts, Foreign
from vitrail.weights.old_rows import Row, drop, expand, same

PARTS = ("weight", "bias")
COMPUTED = "follows from the size of window and image, and is computed"
MASKED = "stands for hidden patches in pre-training alone"
HOLDS = {"depths": ANY, "window_size": ANY, "mlp_ratio": ANY, "window_policy": ANY}


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """One code base's names. `within` are the rows of a block, {b}, and `telling` is a tensor of
    ours there that no other version has; `merge` gives the name of what begins a stage; one of
    `roots` stands before every name but the head's."""

    patches: str
    embed_norm: str
    block: Callable[[int, int], str]
    merge: Callable[[int], str]
    norm: str
    head: str
    within: tuple[Row, ...]
    telling: str
    roots: tuple[str, ...] = ("",)
    unread: tuple[Row, ...] = ()

    def root(self, foreign: Foreign) -> str | None:
        """What stands before the names in this file; None if they are not these."""
        needed = [f"{self.patches}.weight", f"{self.embed_norm}.weight", f"{self.norm}.weight"]
        needed += [self.name("{b}.norm1.{p}", 0, 0), self.name(self.telling, 0, 0)]
        for root in self.roots:
            if all(f"{root}{name}" in foreign.tensors for name in needed):
                return root
        return None

    def name(self, ours: str, stage: int, block: int) -> str:
        """Their name for a weight of ours in a block."""
        theirs = next(row.theirs[0] for row in self.within if row.ours == (ours,))
        return theirs.format(b=self.block(stage, block), p="weight")

    def depths(self, foreign: Foreign) -> tuple[int, ...]:
        """Blocks of each stage."""
        root, found = self.root(foreign), [0]
        while True:
            stage, block = len(found) - 1, found[-1]
            if f"{root}{self.name('{b}.norm1.{p}', stage, block)}" in foreign.tensors:
                found[-1] += 1
            elif block:
                found.append(0)
            else:
                return tuple(found[:-1])

    def shapes(self, foreign: Foreign, ours: str, axes: int) -> list[tuple[int, ...]]:
        """Of a weight in the first block of each stage."""
        root, stages = self.root(foreign), range(len(self.depths(foreign)))
        return [foreign.shape(f"{root}{self.name(ours, stage, 0)}", axes) for stage in stages]


def rows(spelling: Spelling, config: SwinConfig) -> list[Row]:
    around = [
        same("{r}" + spelling.patches + ".{p}", "patches.projection.{p}"),
        same("{r}" + spelling.embed_norm + ".{p}", "embed_norm.{p}"),
        same("{r}" + spelling.norm + ".{p}", "norm.{p}"),
        same("{m}.norm.{p}", "{m}.norm.{p}"),
        same("{m}.reduction.weight", "{m}.reduction.weight"),
    ]
    made = []
    for root in spelling.roots:
        blocks = [
            (root + spelling.block(i, j), f"stages.{i}.blocks.{j}")
            for i, depth in enumerate(config.depths)
            for j in range(depth)
        ]
        merges = [
            (root + spelling.merge(i), f"stages.{i}.merge") for i in range(1, len(config.depths))
        ]
        made += expand([*around, *spelling.within], r=[root], b=blocks, m=merges, p=PARTS)
    made += expand([same(spelling.head + ".{p}", "head.classes.{p}")], p=PARTS)
    return [*made, *spelling.unread]


def infer(spelling: Spelling, foreign: Foreign) -> Facts:
    """What the shapes tell of either version, but for heads and windows."""
    root = spelling.root(foreign)
    if root is None:
        raise UserError(
            f"{foreign.source}: tensor {spelling.roots[0]}{spelling.patches}.weight, or another "
            "that every such model has, is missing: is the file whole?"
        )
    dim, channels, patch_size, _ = foreign.shape(f"{root}{spelling.patches}.weight", 4)
    head = f"{spelling.head}.weight"
    return {
        "dim": dim,
        "depths": spelling.depths(foreign),
        "mlp_ratio": spelling.shapes(foreign, "{b}.mlp.fc1.{p}", 2)[0][0] / dim,
        "patch_size": patch_size,
        "channels": channels,
        "num_classes": foreign.shape(head, 2)[0] if head in foreign.tensors else 0,
        "norm_eps": 1e-5,
    }


def drop_computed(*patterns: str) -> tuple[Row, ...]:
    """Buffers that older versions keep in their files."""
    return tuple(drop(f"*.{pattern}", why=COMPUTED) for pattern in patterns)


def same_windows(config: SwinConfig, window_policy: WindowPolicy) -> str | None:
    """A `clashes`: weights mean the same to a code base if it cuts every grid as they were trained
    to see it."""
    for stage, depth in enumerate(config.depths):
        last = min(depth - 1, 1)  # the second block is the first that shifts
        ours = config.layout(stage, last)
        theirs = replace(config, window_policy=window_policy).layout(stage, last)
        order = ours.padded == ours.grid or not any(ours.shift)
        if (ours.window, ours.shift) != (theirs.window, theirs.shift) or not (
            order or ours.rolled_first == theirs.rolled_first
        ):
            rows, columns = ours.grid
            return (
                f"cuts the grid of stage {stage + 1}, {rows}x{columns}, into other windows than "
                f'these weights were trained with (window_policy="{config.window_policy}")'
            )
    return None


def told_by_timm(foreign: Foreign, published: Callable[[str], Config | None]) -> Facts:
    """What timm's config.json adds: its entry point, which is a published model, and the arguments
    it was made with; the config that comes of it checks their types."""
    refuse_other_layers(foreign)
    config = foreign.sidecars.get("config.json", {})
    arguments, pretrained = (
        timm.as_dict(config.get(key)) for key in ("model_args", "pretrained_cfg")
    )
    facts: Facts = {}
    known = published(str(config.get("architecture")))
    if known is not None:
        names = ("image_size", "window_size", "pretrained_windows")
        facts |= {name: getattr(known, name) for name in names if hasattr(known, name)}
    size, whole = arguments.get("img_size"), pretrained.get("input_size")
    if size is None and isinstance(whole, list) and len(whole) == 3:
        size = whole[1:]
    if size is not None:
        facts["image_size"] = [size, size] if isinstance(size, int) else size
    window = arguments.get("window_size")
    if window is not None:
        same_sides = isinstance(window, list) and len(window) == 2 and window[0] == window[1]
        facts["window_size"] = window[0] if same_sides else window
    return facts


def timm_sidecars(
    passport: Passport, config: SwinConfig, entry: str, more: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """A config.json with which `timm.create_model("local-dir:…", pretrained=True)` builds this
    very model."""
    arguments = {
        "img_size": list(config.image_size),
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.dim,
        "depths": list(config.depths),
        "num_heads": list(config.heads),
        "window_size": config.window_size,
        "mlp_ratio": config.mlp_ratio,
        "global_pool": "avg",
        **more,
    }
    return {"config.json": timm.config_json(passport, config, entry, arguments)}


def timm_preprocessing(foreign: Foreign, config: Config) -> Preprocessing:
    crop = 1.0 if max(config.image_size) >= 384 else 0.9
    return timm.evaluated(foreign, config, mean=IMAGENET_MEAN, std=IMAGENET_STD, crop=crop)


def covered(config: Config, cover: tuple[int, int] | None) -> Preprocessing:
    """Bicubic, until it covers so much, then the centre; without it squeezed."""
    grey = (0.5,) * config.channels
    return Preprocessing(
        size=config.image_size,
        resize=cover,
        interpolation="bicubic",
        mean=IMAGENET_MEAN if config.channels == 3 else grey,
        std=IMAGENET_STD if config.channels == 3 else grey,
    )


def authors_preprocessing(foreign: Foreign, config: Config) -> Preprocessing:
    """The centre of a larger picture; from 384 pixels on the whole picture, squeezed."""
    height, width = config.image_size
    if max(height, width) >= 384:
        return covered(config, None)
    return covered(config, (int(256 / 224 * height), int(256 / 224 * width)))


def flat_index(window: int) -> Int[Tensor, "nn"]:
    """For every pair of cells in a window, query by query, the row of a table of offsets."""
    row = torch.arange(window).repeat_interleave(window)
    column = torch.arange(window).repeat(window)
    down, across = (place[:, None] - place + window - 1 for place in (row, column))
    return (down * (2 * window - 1) + across).flatten()
