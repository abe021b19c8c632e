"""Fitting a trained model to another image size, number of channels or set of classes.

Each step is separate, named and reported; none of them happens because shapes merely differ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.models.catalogue import family_of
from vitrail.models.config import Config
from vitrail.weights.families import vit
from vitrail.weights.fit_beit import fine_tuned, fit_beit
from vitrail.weights.fit_coatnet import fit_coatnet
from vitrail.weights.fit_swin import fit_swin, fit_swinv2, keep_reach
from vitrail.weights.resize import resize_channels
from vitrail.weights.rows import Tensors

# Fields whose change leaves every tensor alone: those that regularise, and those that compute.
REGULARISE = {"dropout", "drop_path", "patch_dropout"}
COMPUTE = {"norm_eps", "activation", "pool"}
RESIZED = {"image_size", "channels", "num_classes", "head"}


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """How a family's tensors follow its config: `kernel` is the one that reads the image, `resized`
    are fields of its own that may change, and `shapes` does what they ask for. `fine_tuned` tells
    what else changes where a pre-trained model gets new classes, `follows` what changes with other
    fields."""

    kernel: Callable[[Any], str]
    resized: frozenset[str] = frozenset()
    shapes: Callable[[Tensors, Any, Any, ResizeMethod], tuple[Tensors, list[str]]]
    fine_tuned: Callable[[Any], dict[str, Any]] = lambda _: {}
    follows: Callable[[Any, dict[str, Any]], dict[str, Any]] = lambda *_: {}


FITTINGS: dict[str, Fitting] = {
    "vit": Fitting(
        kernel=vit.FAMILY.kernel, resized=vit.FAMILY.resized, shapes=vit.FAMILY.resize_state
    ),
    "beit": Fitting(
        kernel=lambda _: "patches.projection.weight",
        resized=frozenset({"patch_size", "relative_bias"}),
        shapes=fit_beit,
        fine_tuned=fine_tuned,
    ),
    "swin": Fitting(
        kernel=lambda _: "patches.projection.weight",
        resized=frozenset({"patch_size", "window_size", "window_policy"}),
        shapes=fit_swin,
    ),
    "swinv2": Fitting(
        kernel=lambda _: "patches.projection.weight",
        resized=frozenset({"patch_size", "window_size", "window_policy", "pretrained_windows"}),
        shapes=fit_swinv2,
        follows=keep_reach,
    ),
    "mobilevit": Fitting(
        kernel=lambda _: "stem.conv.weight",
        shapes=lambda state, *_: (state, []),  # it has no positions: images of any size fit
    ),
    "mobilevitv2": Fitting(
        kernel=lambda _: "stem.conv.weight", shapes=lambda state, *_: (state, [])
    ),
    "coatnet": Fitting(kernel=lambda _: "stem.conv1.weight", shapes=fit_coatnet),
    "tokenizer": Fitting(
        kernel=lambda _: "encoder.input.weight", shapes=lambda state, *_: (state, [])
    ),
}


def fit(
    state: Tensors, old: Config, new: Config, *, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """The tensors of a model with config `old` for one with config `new`, and what was done to
    them."""
    fitting = FITTINGS[family_of(old)]
    changed = {name for name in vars(old) if getattr(old, name) != getattr(new, name)}
    refuse_stuck(old, new, changed - REGULARISE - COMPUTE - RESIZED - fitting.resized)
    state = dict(state)
    done = [
        f"{name} changed from {getattr(old, name)!r} to {getattr(new, name)!r}"
        for name in sorted(changed & COMPUTE)
    ]
    if new.channels != old.channels:
        kernel = fitting.kernel(old)
        state[kernel] = resize_channels(state[kernel], new.channels)
        done.append(f"input kernels fitted from {old.channels} to {new.channels} channels")
    state, sentences = fitting.shapes(state, old, new, method)
    done += sentences
    if needs_new_head(old, new):
        state = {name: tensor for name, tensor in state.items() if not name.startswith("head")}
        done.append(f"new head for {new.num_classes} classes, its last layer zero")
    return state, [sentence for sentence in done if sentence]


def refuse_stuck(old: Config, new: Config, stuck: set[str]) -> None:
    """Say what trained weights cannot be changed to."""
    before, after = vars(old), vars(new)
    if "swiglu" in (before.get("activation"), after.get("activation")):  # a gate has weights
        stuck |= {"activation"} if before["activation"] != after["activation"] else set()
    if before.get("layer_scale") is not None and after.get("layer_scale") is not None:
        stuck = stuck - {"layer_scale"}  # where training began
    if stuck:
        name = min(stuck)
        raise UserError(
            f"{name} is {before[name]!r} in the trained weights and cannot become {after[name]!r}"
        )


def needs_new_head(old: Config, new: Config) -> bool:
    """Other classes, another kind of head, or other features for it to read."""
    kinds = (getattr(old, "head", None), getattr(new, "head", None))
    return (old.num_classes, old.features, kinds[0]) != (new.num_classes, new.features, kinds[1])
