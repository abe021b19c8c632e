"""Swin V2: its sizes by our names, and what its offsets are measured against in other windows."""

from typing import Any

from vitrail.core.passport import ResizeMethod
from vitrail.models.catalogue import change
from vitrail.models.swinv2 import SwinV2Config
from vitrail.weights.families import swin
from vitrail.weights.families.family import (
    KERNEL,
    FamilyWeights,
    NamedTensors,
    Request,
    resize_kernels,
)
from vitrail.weights.rows import Facts, Tensors

# No tensor shows them: the bias is computed for windows of any size.
NOT_IN_TENSORS = (*swin.NOT_IN_TENSORS, *swin.WINDOWS)


def config_of(tensors: NamedTensors) -> Facts:
    """The fields that the tensors of a Swin V2 show."""
    facts = swin.stages_of(tensors)
    name = "stages.{}.blocks.0.attention.logit_scale"
    scales = (tensors.shape(name.format(i), 3) for i in range(len(facts["depths"])))
    return facts | {"heads": tuple(scale[0] for scale in scales)}


def resolve_config(facts: Facts, _: NamedTensors, request: Request) -> tuple[Any, list[str]]:
    """As a Swin's, but windows have to be given where no sidecar specifies them."""
    return swin.resolve_windows("swinv2", facts, request)


def resize_state(
    state: Tensors, old: SwinV2Config, new: SwinV2Config, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """Patch kernels; a bias that is computed needs nothing but to know what it was trained on."""
    state, done = resize_kernels(state, old, new, method)
    for stage, (before, after) in swin.changed_windows(old, new).items():
        sizes = "{}x{} to {}x{}".format(*before, *after)
        reference = "{}x{}".format(*new.reference_window(stage))
        done.append(
            f"windows of stage {stage + 1} changed from {sizes}, offsets measured against "
            f"{reference}"
        )
    return state, done


def keep_reference(config: SwinV2Config, changes: dict[str, Any]) -> dict[str, Any]:
    """Windows change, but what offsets are measured against stays as it was in training."""
    cutting = ("image_size", "patch_size", "window_size", "window_policy")
    new = change(config, {name: changes[name] for name in cutting if name in changes})
    if "pretrained_windows" in changes or not swin.changed_windows(config, new):
        return {}
    windows = [config.reference_window(stage) for stage in range(len(config.depths))]
    return {"pretrained_windows": tuple(w[0] if w[0] == w[1] else w for w in windows)}


FAMILY = FamilyWeights(
    config_of=config_of,
    resolve_config=resolve_config,
    resize_state=resize_state,
    kernel=lambda _: KERNEL,
    resized=frozenset({"patch_size", "window_size", "window_policy", "pretrained_windows"}),
    follow=keep_reference,
)
