"""What a file is that is no ViT, as far as its tensors show it."""

from typing import NoReturn

from vitrail.core.errors import UserError
from vitrail.weights.adopt.roles import Roles
from vitrail.weights.adopt.words import words_of
from vitrail.weights.dialect import Foreign
from vitrail.weights.translate import some

READS = "Vitrail adopts plain ViTs"


class NotAViTError(UserError):
    """What was given is something else than a ViT."""


def refuse_other(foreign: Foreign, partial: Roles | None) -> NoReturn:
    """Say which family a file looks like, and what to do with it."""
    from vitrail.weights.dialects import all_dialects

    for dialect in all_dialects():
        if dialect.claims(foreign):
            raise NotAViTError(
                f"{foreign.source}: this is a {dialect.family} of the {dialect.name} dialect, no "
                "hand-written ViT: read it with vitrail load or convert, without adopting it"
            )
    kind = family_in_words(foreign)
    if kind is not None:
        raise NotAViTError(f"{foreign.source}: this looks like {kind}: {READS}")
    if partial is not None:
        used = [*partial.outside, *partial.block]
        left = [name for one in partial.left for name in one.weight]
        raise NotAViTError(
            f"{foreign.source}: its blocks are those of a transformer ({some(used, 8)}), but no "
            f"layer embeds patches of an image; left over are {some(left) or 'no tensors'}: {READS}"
        )
    names = some(list(foreign.tensors)) or "no tensors at all"
    raise NotAViTError(
        f"{foreign.source}: no repeated block with attention and an MLP was found in its tensors "
        f"({names}): {READS}; mend rows by hand and give them by rows=FILE if it is one"
    )


def family_in_words(foreign: Foreign) -> str | None:
    """The nearest family, with what to try."""
    tensors = foreign.tensors
    words = {word for name in tensors for word in words_of(name)}
    kernels = [tuple(t.shape) for t in tensors.values() if t.ndim == 4]
    wide = [shape for shape in kernels if max(shape[2:]) > 1]
    depthwise = [shape for shape in wide if shape[1] == 1]
    batch_norms = any(name.endswith("running_mean") for name in tensors)
    if any("relative_position_bias_table" in name for name in tensors):
        return "a Swin Transformer: try vitrail load"
    if any(name.endswith(("weight_ih_l0", "weight_hh_l0")) for name in tensors):
        return "a recurrent network"
    if len(depthwise) > 2 and batch_norms:
        return "a MobileNet or another network of depthwise convolutions: try vitrail load"
    if len(wide) > 3 and ("layer" in words or "downsample" in words or "shortcut" in words):
        return "a ResNet: try vitrail load"
    if len(wide) > 3:
        return "a convolutional network: try vitrail load"
    tables = [t for t in tensors.values() if t.ndim == 2 and t.shape[0] > 8 * t.shape[1]]
    if tables and words & {"wte", "embed", "embedding", "token", "vocab", "word"} and not kernels:
        return "a language model, with a table of words"
    return None
