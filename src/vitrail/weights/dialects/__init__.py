"""Every dialect, most specific first: the first that claims a file reads it."""

from difflib import get_close_matches

from vitrail.core.errors import UserError
from vitrail.models.config import Config
from vitrail.weights.dialect import Dialect, Foreign
from vitrail.weights.dialects import (
    big_vision,
    clip,
    facebook,
    timm,
    torchvision,
    transformers,
    transformers_clip,
    vit_jax,
    vit_pytorch,
)

DIALECTS: tuple[Dialect, ...] = (
    vit_jax.VIT_JAX,
    big_vision.BIG_VISION,
    facebook.DEIT,
    facebook.DINO,
    facebook.DINOV2,
    facebook.MAE,
    timm.TIMM,
    torchvision.TORCHVISION,
    vit_pytorch.VIT_PYTORCH,
    vit_pytorch.VIT_PYTORCH_OLD,
    clip.OPEN_CLIP,
    clip.OPENAI_CLIP,
    clip.OPEN_CLIP_TIMM,
    *transformers.TRANSFORMERS,
    transformers_clip.TRANSFORMERS_CLIP,
)

# Libraries with a dialect for each kind of model: their name alone means whichever fits.
LIBRARIES = {
    "transformers": tuple(d for d in transformers.TRANSFORMERS if not d.name.endswith("-v4")),
    "transformers-v4": tuple(d for d in transformers.TRANSFORMERS if d.name.endswith("-v4")),
}


def recognise(foreign: Foreign, named: str | None = None) -> Dialect:
    """The dialect whose names these are; one that the person named is taken at their word."""
    choice = dialects_called(named) if named else DIALECTS
    if len(choice) == 1:
        return choice[0]
    for dialect in choice:
        if dialect.claims(foreign):
            return dialect
    known = ", ".join(dialect.name for dialect in choice)
    some = ", ".join(list(foreign.tensors)[:3]) or "no tensors at all"
    raise UserError(
        f"{foreign.source}: its tensors ({some}, …) are in none of the known dialects ({known})"
    )


def choose(named: str, config: Config) -> Dialect:
    """The dialect of that name, or of that library, which can hold such a model."""
    choice = dialects_called(named)
    refusals = [dialect.refuses(config) for dialect in choice]
    for dialect, refusal in zip(choice, refusals, strict=True):
        if refusal is None:
            return dialect
    raise UserError(f"{refusals[0]}: choose another dialect, or vitrail")


def dialects_called(name: str) -> tuple[Dialect, ...]:
    by_name = {dialect.name: (dialect,) for dialect in DIALECTS} | LIBRARIES
    if name not in by_name:
        close = get_close_matches(name, by_name, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(by_name))}"
        raise UserError(f"unknown dialect {name!r}, {hint}")
    return by_name[name]
