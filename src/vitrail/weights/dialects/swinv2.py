"""Swin V2 in its authors' repository, in timm, torchvision and transformers.

No tensor depends on the size of windows. The authors' files and torchvision's tell it all the same,
by a buffer with the offsets between their cells; timm's and transformers' need their config.json.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport, Preprocessing
from vitrail.models.swinv2 import ALIASES, VARIANTS, SwinV2Config, log_offsets
from vitrail.weights.dialects import swin, timm, transformers_swin
from vitrail.weights.dialects import swin_names as names
from vitrail.weights.dialects import transformers_sidecars as files
from vitrail.weights.dialects.swin_names import Spelling
from vitrail.weights.dialects.timm_architectures import is_row_of
from vitrail.weights.old_dialect import ANY, AllowList, Dialect, Facts, Foreign
from vitrail.weights.old_rows import Op, Row, fuse, reshape, same, supply

SCALE = "{b}.attention.logit_scale"
# Queries and values have a bias, in two tensors of theirs and one of ours.
STACKED = Op(lambda bias: bias[None], lambda bias: bias[0])
# torchvision stores one for keys too, and does not use it.
WITH_KEYS = Op(
    lambda bias: bias.unflatten(0, (3, -1))[::2],
    lambda bias: torch.cat([bias[0], torch.zeros_like(bias[0]), bias[1]]),
)
COMMON = (
    same("{b}.norm1.{p}", "{b}.norm1.{p}"),
    same("{b}.attn.logit_scale", SCALE),
    same("{b}.attn.cpb_mlp.0.{p}", "{b}.attention.bias.fc1.{p}"),
    same("{b}.attn.cpb_mlp.2.weight", "{b}.attention.bias.fc2.weight"),
    same("{b}.attn.qkv.weight", "{b}.attention.qkv.weight"),
    same("{b}.attn.proj.{p}", "{b}.attention.out.{p}"),
    same("{b}.norm2.{p}", "{b}.norm2.{p}"),
)
BLOCK = (
    *COMMON,
    fuse(["{b}.attn.q_bias", "{b}.attn.v_bias"], "{b}.attention.qv_bias", STACKED),
    *swin.MLP,
)
AT = "{b}.attention.self"
HF_BLOCK = (
    *transformers_swin.NORMS,
    same(f"{AT}.logit_scale", SCALE),
    same(f"{AT}.continuous_position_bias_mlp.0.{{p}}", "{b}.attention.bias.fc1.{p}"),
    same(f"{AT}.continuous_position_bias_mlp.2.weight", "{b}.attention.bias.fc2.weight"),
    fuse([f"{AT}.{name}.weight" for name in ("query", "key", "value")], "{b}.attention.qkv.weight"),
    fuse([f"{AT}.query.bias", f"{AT}.value.bias"], "{b}.attention.qv_bias", STACKED),
    same("{b}.attention.output.dense.{p}", "{b}.attention.out.{p}"),
    *transformers_swin.OLD_MLP,
)
BUFFERS = names.drop_computed("relative_position_index", "relative_coords_table", "attn_mask")

TIMM_NAMES = replace(swin.TIMM_NAMES, within=BLOCK, telling=SCALE, unread=BUFFERS)
MICROSOFT_NAMES = replace(
    swin.MICROSOFT_NAMES, within=BLOCK, telling=SCALE, unread=BUFFERS + swin.SIMMIM
)
TORCHVISION_NAMES = replace(
    swin.TORCHVISION_NAMES,
    within=(
        *COMMON,
        reshape("{b}.attn.qkv.bias", "{b}.attention.qv_bias", WITH_KEYS),
        same("{b}.mlp.0.{p}", "{b}.mlp.fc1.{p}"),
        same("{b}.mlp.3.{p}", "{b}.mlp.fc2.{p}"),
    ),
    telling=SCALE,
)
HF_NAMES = transformers_swin.spell("swinv2.", HF_BLOCK, SCALE)

# How torchvision prepares what it publishes, at 256 pixels, by width and depth of the third stage.
COVERED = {(96, 6): 260, (96, 18): 260, (128, 18): 272}


def infer(spelling: Spelling, foreign: Foreign) -> Facts:
    facts = names.infer(spelling, foreign)
    facts["heads"] = tuple(scale[0] for scale in spelling.shapes(foreign, SCALE, 3))
    return facts


def timm_infer(foreign: Foreign) -> Facts:
    facts = infer(TIMM_NAMES, foreign) | {"window_policy": "timm"}
    told = names.told_by_timm(foreign, published)
    arguments = timm.as_dict(foreign.sidecars.get("config.json", {}).get("model_args"))
    if "pretrained_window_sizes" in arguments:
        told["pretrained_windows"] = trained(arguments["pretrained_window_sizes"])
    elif "window_size" in told:
        told.setdefault("pretrained_windows", ())
    return facts | told


def published(architecture: str) -> SwinV2Config | None:
    row = VARIANTS.get(ALIASES.get(architecture, ""))
    return row.config if row else None


def trained(windows: Any) -> Any:
    """Zeros are how others say that they were the same; a stranger's value is checked later."""
    zeros = isinstance(windows, list | tuple) and not any(windows)
    return () if zeros else windows


def offsets_of(spelling: Spelling, foreign: Foreign) -> list[Tensor]:
    """The buffer of each stage's first block that holds its offsets, where a file has them."""
    root, found = spelling.root(foreign), []
    for stage in range(len(spelling.depths(foreign))):
        name = f"{root}{spelling.block(stage, 0)}.attn.relative_coords_table"
        if name in foreign.tensors:
            foreign.shape(name, 4)
            found.append(foreign.tensors[name])
    return found


def microsoft_infer(foreign: Foreign) -> Facts:
    facts = infer(MICROSOFT_NAMES, foreign)
    offsets = offsets_of(MICROSOFT_NAMES, foreign)
    if len(offsets) != len(facts["depths"]):
        return facts
    windows = [(table.shape[1] + 1) // 2 for table in offsets]
    if max(windows) > windows[0] or any(table.shape[1] != table.shape[2] for table in offsets):
        raise UserError(
            f"{foreign.source}: its tables of offsets are {', '.join(map(str, windows))} cells "
            "high, and only square windows, of one size in all stages, are read"
        )
    reaches = [
        reference_window(window, table) for window, table in zip(windows, offsets, strict=True)
    ]
    facts["window_size"] = windows[0]
    facts["pretrained_windows"] = () if reaches == windows else tuple(reaches)
    for stage, window in enumerate(windows):
        if window < windows[0]:  # its whole grid is one
            facts["image_size"] = (window * 2**stage * facts["patch_size"],) * 2
            break
    return facts | swin.sides_of_masks(foreign, windows[0] * facts["patch_size"])


def reference_window(window: int, offsets: Tensor) -> int:
    """The window that offsets were measured against: the last is log2(1 + 8 (w-1)/(r-1)) / 3."""
    last = float(offsets[0, -1, -1, 0])
    if not 0 < last < 10:  # no window that anybody has is so much larger than another
        return window
    return round((window - 1) * 8 / (2 ** (3 * last) - 1)) + 1


def torchvision_infer(foreign: Foreign) -> Facts:
    facts = infer(TORCHVISION_NAMES, foreign) | {
        "window_policy": "torchvision",
        "pretrained_windows": (),
    }
    offsets = offsets_of(TORCHVISION_NAMES, foreign)
    return facts | ({"window_size": (offsets[0].shape[1] + 1) // 2} if offsets else {})


def torchvision_rows(config: SwinV2Config) -> list[Row]:
    """Its models hold the offsets and their index, and do not load a file without them."""
    window = config.window_size
    buffers = {
        "relative_coords_table": partial(table_of_offsets, window),
        "relative_position_index": partial(names.flat_index, window),
    }
    supplied = [
        supply(f"{TORCHVISION_NAMES.block(stage, block)}.attn.{name}", make, why=names.COMPUTED)
        for stage, depth in enumerate(config.depths)
        for block in range(depth)
        for name, make in buffers.items()
    ]
    return [*names.rows(TORCHVISION_NAMES, config), *supplied]


def table_of_offsets(window: int) -> Tensor:
    side = 2 * window - 1
    return log_offsets((window, window), (window, window)).view(1, side, side, 2)


def torchvision_preprocessing(foreign: Foreign, config: SwinV2Config) -> Preprocessing:
    """As published for weights of this shape, in proportion at another size."""
    cover = COVERED.get((config.dim, max(config.depths)), 260)
    height, width = config.image_size
    return names.covered(config, (round(height * cover / 256), round(width * cover / 256)))


def torchvision_clashes(config: SwinV2Config) -> str | None:
    own = [(config.window_size,) * 2] * len(config.depths)
    if [config.reference_window(stage) for stage in range(len(config.depths))] != own:
        return "measures offsets against its own windows, not against those of pre-training"
    return names.same_windows(config, "torchvision")


def square_reach(config: SwinV2Config) -> str | None:
    if any(not isinstance(window, int) for window in config.pretrained_windows):
        return f"has square windows of pre-training only, not {config.pretrained_windows}"
    return None


def timm_clashes(config: SwinV2Config) -> str | None:
    return square_reach(config) or names.same_windows(config, "timm")


def hf_infer(foreign: Foreign) -> Facts:
    facts = infer(HF_NAMES, foreign) | {"window_policy": "hf"} | transformers_swin.told_by(foreign)
    told = files.read_record(transformers_swin.Told, foreign, "config.json")
    if told.window_size is not None:
        windows = (told.pretrained_window_sizes or ())[: len(facts["depths"])]
        facts |= {"window_size": told.window_size, "pretrained_windows": trained(windows)}
    return facts


def hf_clashes(config: SwinV2Config) -> str | None:
    """Its code adds the mask of shifted windows twice, which changes nothing that a softmax of
    such logits shows."""
    if config.norm_eps != transformers_swin.EPS:
        return f"has eps {transformers_swin.EPS} in some norms, whatever those of the blocks have"
    return square_reach(config) or names.same_windows(config, "hf")


def written_windows(config: SwinV2Config) -> dict[str, Any]:
    windows = config.pretrained_windows or (0,) * len(config.depths)
    return {"pretrained_window_sizes": list(windows)}


def timm_sidecars(passport: Passport, config: SwinV2Config) -> dict[str, dict[str, Any]]:
    more = written_windows(config)
    return names.timm_sidecars(passport, config, "swinv2_tiny_window8_256", more)


HOLDS = names.HOLDS | {"pretrained_windows": ANY}
TIMM_SWINV2 = Dialect(
    name="timm-swinv2",
    about="pytorch-image-models: Swin V2",
    family="swinv2",
    claims=partial(swin.is_timm, TIMM_NAMES),
    infer=timm_infer,
    rows=partial(names.rows, TIMM_NAMES),
    preprocessing=names.timm_preprocessing,
    resize="timm",
    holds=HOLDS,
    clashes=timm_clashes,
    sidecars=timm_sidecars,
    labels=partial(timm.labels, head="head.fc"),
    licence=timm.licence,
    computes=AllowList("timm", is_row_of("swinv2")),
)
SWINV2 = Dialect(
    name="swinv2",
    about="microsoft/Swin-Transformer: Swin V2, and encoders of its SimMIM",
    family="swinv2",
    claims=lambda foreign: MICROSOFT_NAMES.root(foreign) is not None and swin.ends_stages(foreign),
    infer=microsoft_infer,
    rows=partial(names.rows, MICROSOFT_NAMES),
    preprocessing=names.authors_preprocessing,
    resize="paper",
    holds=HOLDS,
    clashes=lambda config: square_reach(config) or names.same_windows(config, "paper"),
    suffix=".pth",
    wrapped="model",
)
TORCHVISION_SWINV2 = Dialect(
    name="torchvision-swinv2",
    about="torchvision.models: swin_v2_t and its sisters",
    family="swinv2",
    claims=lambda foreign: TORCHVISION_NAMES.root(foreign) is not None,
    infer=torchvision_infer,
    rows=torchvision_rows,
    preprocessing=torchvision_preprocessing,
    resize="torchvision",
    holds=HOLDS,
    clashes=torchvision_clashes,
)
TRANSFORMERS_SWINV2 = Dialect(
    name="transformers-swinv2",
    about="Hugging Face transformers: Swin V2, in the names of versions 4 and 5",
    family="swinv2",
    claims=partial(transformers_swin.claims, HF_NAMES, "swinv2"),
    infer=hf_infer,
    rows=partial(transformers_swin.rows, HF_NAMES),
    preprocessing=lambda foreign, config: files.read_preprocessing(
        foreign, config, transformers_swin.USUAL
    ),
    resize="hf",
    holds=HOLDS,
    clashes=hf_clashes,
    sidecars=partial(transformers_swin.sidecars, "swinv2", "Swinv2", written_windows),
    labels=transformers_swin.labels,
    multi_label=files.read_multi_label,
    computes=AllowList("transformers", {"swinv2"}.__contains__, "Swinv2"),
)
