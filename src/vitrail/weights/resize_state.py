"""Trained tensors for another image size, number of channels or set of classes.

Each step is separate, named and reported; none of them happens because shapes merely differ.
"""

from vitrail.core.errors import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.models.catalogue import family_of
from vitrail.models.config import Config, Purpose, fields_for
from vitrail.weights.families import family_weights
from vitrail.weights.resize import resize_channels
from vitrail.weights.rows import Tensors

# What may be computed otherwise with the same tensors.
COMPUTE = {"norm_eps", "activation", "pool"}


def resize_state(
    state: Tensors, old: Config, new: Config, *, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """The tensors of a model with config `old` for one with config `new`, and what was done to
    them."""
    family = family_weights(family_of(old))
    changed = {name for name in vars(old) if getattr(old, name) != getattr(new, name)}
    free = fields_for(type(old), Purpose.INPUT, Purpose.RUNTIME, Purpose.HEAD)
    stuck = changed.difference(free, COMPUTE, family.resized) | (changed & {"head_bias"})
    refuse_stuck(old, new, stuck)
    state = dict(state)
    done = [
        f"{name} changed from {getattr(old, name)!r} to {getattr(new, name)!r}"
        for name in sorted(changed & COMPUTE)
    ]
    if new.channels != old.channels:
        kernel = family.kernel(old)
        state[kernel] = resize_channels(state[kernel], new.channels)
        done.append(f"input kernels fitted from {old.channels} to {new.channels} channels")
    state, sentences = family.resize_state(state, old, new, method)
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
