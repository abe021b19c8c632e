"""Swin V2 in its authors' repository, in timm and in torchvision.

No tensor depends on the size of windows. The authors' files and torchvision's contain it all the
same, in a buffer with the offsets between their cells; timm's need their config.json.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.models.swinv2 import SwinV2Config, log_offsets
from vitrail.weights.dialect import ANY, Dialect, Foreign
from vitrail.weights.dialects import swin, timm_config
from vitrail.weights.dialects.swin import OURS
from vitrail.weights.dialects.timm_architectures import is_row_of
from vitrail.weights.rows import FLAT_TABLE, Facts, fuse, plain_op, reshape, same, supply

# Queries and values have a bias, in two tensors of theirs and one of ours ...
QV_BIAS = fuse(["attn.q_bias", "attn.v_bias"], f"{OURS}attention.qv_bias", FLAT_TABLE)
# ... torchvision stores one for keys too, and does not use it.
WITH_KEYS = plain_op(
    lambda bias: bias.unflatten(0, (3, -1))[::2],
    lambda bias: torch.cat([bias[0], torch.zeros_like(bias[0]), bias[1]]),
)
ATTENTION = (
    same("attn.logit_scale", f"{OURS}attention.logit_scale"),
    same("attn.cpb_mlp.0.{p}", f"{OURS}attention.bias.fc1.{{p}}"),
    same("attn.cpb_mlp.2.weight", f"{OURS}attention.bias.fc2.weight"),
    same("attn.qkv.weight", f"{OURS}attention.qkv.weight"),
    same("attn.proj.{p}", f"{OURS}attention.out.{{p}}"),
)
OFFSETS = "features.{2*s+1}.{b}.attn.relative_coords_table"
TORCHVISION_ROWS = (
    *swin.torchvision_rows(
        (*ATTENTION, reshape("attn.qkv.bias", f"{OURS}attention.qv_bias", WITH_KEYS))
    ),
    supply(
        OFFSETS,
        lambda config: table_of_offsets(config.window_size),
        why=swin.COMPUTED,
        like=f"{OURS}norm1.weight",
    ),
)
SUPPORTS = swin.SUPPORTS | {"pretrained_windows": ANY}
is_swinv2 = swin.has(".attn.logit_scale")


def table_of_offsets(window: int) -> Tensor:
    side = 2 * window - 1
    return log_offsets((window, window), (window, window)).view(1, side, side, 2)


def timm_facts(foreign: Foreign, facts: Facts) -> Facts:
    found = swin.timm_facts("swinv2", foreign, facts)
    arguments = timm_config.section(foreign, "model_args")
    if "pretrained_window_sizes" in arguments:
        found["pretrained_windows"] = pretrained(arguments["pretrained_window_sizes"])
    elif "window_size" in found:
        found.setdefault("pretrained_windows", ())
    return found


def pretrained(windows: Any) -> Any:
    """Zeros mean that they were the same; a foreign value is checked later."""
    zeros = isinstance(windows, list | tuple) and not any(windows)
    return () if zeros else windows


def offsets_of(foreign: Foreign, names: tuple[str, ...]) -> list[Tensor]:
    """The buffer of each stage's first block that holds its offsets, where a file has them."""
    found = [foreign.tensors[name] for name in names if name in foreign.tensors]
    for name in names:
        if name in foreign.tensors:
            foreign.shape(name, 4)
    return found


def microsoft_facts(foreign: Foreign, facts: Facts) -> Facts:
    stages = range(len(facts["depths"]))
    root = "encoder." if "encoder.norm.weight" in foreign.tensors else ""
    name = root + "layers.{}.blocks.0.attn.relative_coords_table"
    offsets = offsets_of(foreign, tuple(name.format(stage) for stage in stages))
    if len(offsets) != len(stages):
        return {}
    windows = [(table.shape[1] + 1) // 2 for table in offsets]
    if max(windows) > windows[0] or any(table.shape[1] != table.shape[2] for table in offsets):
        raise UserError(
            f"{foreign.source}: its tables of offsets are {', '.join(map(str, windows))} cells "
            "high, and only square windows, of one size in all stages, are read"
        )
    references = [reference_of(w, table) for w, table in zip(windows, offsets, strict=True)]
    found: Facts = {
        "window_size": windows[0],
        "pretrained_windows": () if references == windows else tuple(references),
    }
    smaller = [(stage, window) for stage, window in enumerate(windows) if window < windows[0]]
    for stage, window in smaller[:1]:  # its whole grid is one
        found["image_size"] = (window * 2**stage * facts["patch_size"],) * 2
    return found | swin.mask_facts(foreign, facts | found)


def reference_of(window: int, offsets: Tensor) -> int:
    """The window that offsets were measured against: the last is log2(1 + 8 (w-1)/(r-1)) / 3."""
    last = float(offsets[0, -1, -1, 0])
    if not 0 < last < 10:  # no window that anybody has is so much larger than another
        return window
    return round((window - 1) * 8 / (2 ** (3 * last) - 1)) + 1


def torchvision_facts(foreign: Foreign, _: Facts) -> Facts:
    offsets = offsets_of(foreign, (OFFSETS.replace("{2*s+1}.{b}", "1.0"),))
    return {"window_size": (offsets[0].shape[1] + 1) // 2} if offsets else {}


def torchvision_windows(config: SwinV2Config) -> str | None:
    own = [(config.window_size,) * 2] * len(config.depths)
    if [config.reference_window(stage) for stage in range(len(config.depths))] != own:
        return "measures offsets against its own windows, not against those of pre-training"
    return swin.other_windows("torchvision", config)


def oblong_reference(config: SwinV2Config) -> str | None:
    if any(not isinstance(window, int) for window in config.pretrained_windows):
        return f"has square windows of pre-training only, not {config.pretrained_windows}"
    return None


def written_windows(config: SwinV2Config) -> dict[str, Any]:
    windows = config.pretrained_windows or (0,) * len(config.depths)
    return {"pretrained_window_sizes": list(windows)}


def timm_arguments(config: SwinV2Config) -> dict[str, Any]:
    return swin.timm_arguments(config) | written_windows(config)


TIMM_SWINV2 = Dialect(
    name="timm-swinv2",
    about="pytorch-image-models: Swin V2",
    family="swinv2",
    rows=swin.timm_rows((*ATTENTION, QV_BIAS)),
    accepts=lambda foreign: is_swinv2(foreign) and not swin.ends_stages(foreign),
    constants={"window_policy": "timm", "norm_eps": swin.EPS},
    sidecar_facts=timm_facts,
    preprocessing=swin.timm_preprocessing,
    supports=SUPPORTS,
    why_unsupported=lambda c: oblong_reference(c) or swin.other_windows("timm", c),
    **timm_config.in_common(
        lambda _: "swinv2_tiny_window8_256", timm_arguments, is_row_of("swinv2")
    ),
)
SWINV2 = Dialect(
    name="swinv2",
    about="microsoft/Swin-Transformer: Swin V2, and encoders of its SimMIM",
    family="swinv2",
    rows=swin.microsoft_rows((*ATTENTION, QV_BIAS)),
    values={"root": ("", "encoder.")},
    accepts=lambda foreign: is_swinv2(foreign) and swin.ends_stages(foreign),
    constants={"norm_eps": swin.EPS},
    sidecar_facts=microsoft_facts,
    preprocessing=swin.authors_preprocessing,
    resize="paper",
    supports=SUPPORTS,
    why_unsupported=lambda c: oblong_reference(c) or swin.other_windows("paper", c),
    suffix=".pth",
    wrapped="model",
)
TORCHVISION_SWINV2 = Dialect(
    name="torchvision-swinv2",
    about="torchvision.models: swin_v2_t and its variants",
    family="swinv2",
    rows=TORCHVISION_ROWS,
    accepts=is_swinv2,
    constants={"window_policy": "torchvision", "pretrained_windows": (), "norm_eps": swin.EPS},
    sidecar_facts=torchvision_facts,
    preprocessing=partial(
        swin.torchvision_preprocessing, 256, {(96, 6): 260, (96, 18): 260, (128, 18): 272}
    ),
    resize="torchvision",
    supports=SUPPORTS,
    why_unsupported=torchvision_windows,
)
