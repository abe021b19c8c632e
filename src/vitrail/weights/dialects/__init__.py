"""Every dialect, most specific first: the first that claims a file reads it."""

from collections.abc import Iterable
from difflib import get_close_matches

from vitrail.core.errors import UserError
from vitrail.models.catalogue import family_of
from vitrail.models.config import Config
from vitrail.weights.dialect import Dialect, Foreign, architecture_of
from vitrail.weights.dialects import (
    beit,
    big_vision,
    bit,
    clip,
    coatnet,
    dalle,
    facebook,
    mobilenetv2,
    mobilevit,
    mobilevitv2,
    resnet,
    swin,
    swinv2,
    timm,
    torchvision,
    transformers,
    transformers_beit,
    transformers_clip,
    transformers_swin,
    vit_jax,
    vit_pytorch,
)
from vitrail.weights.registered import registered_dialects

DIALECTS: tuple[Dialect, ...] = (
    vit_jax.VIT_JAX,
    big_vision.BIG_VISION,
    beit.BEIT,
    beit.BEITV2,
    beit.TIMM_BEIT,
    mobilevit.CVNETS,
    mobilevitv2.CVNETS,
    mobilevit.TIMM,
    mobilevitv2.TIMM,
    coatnet.TIMM_COATNET,
    dalle.DALLE,
    resnet.TIMM,
    resnet.TORCHVISION,
    bit.BIT,
    bit.TIMM,
    mobilenetv2.TORCHVISION,
    mobilenetv2.TIMM,
    swin.SWIN,
    swin.TIMM_SWIN,
    swin.TORCHVISION_SWIN,
    swinv2.SWINV2,
    swinv2.TIMM_SWINV2,
    swinv2.TORCHVISION_SWINV2,
    facebook.MAE,
    timm.TIMM,
    facebook.DEIT,
    facebook.DINO,
    facebook.DINOV2,
    torchvision.TORCHVISION,
    vit_pytorch.VIT_PYTORCH,
    vit_pytorch.VIT_PYTORCH_OLD,
    clip.OPEN_CLIP,
    clip.OPENAI_CLIP,
    clip.OPEN_CLIP_TIMM,
    *transformers.TRANSFORMERS,
    *transformers_beit.TRANSFORMERS_BEIT,
    mobilevit.TRANSFORMERS,
    mobilevitv2.TRANSFORMERS,
    resnet.TRANSFORMERS,
    *transformers_swin.TRANSFORMERS_SWIN,
    transformers_swin.TRANSFORMERS_SWINV2,
    transformers_clip.TRANSFORMERS_CLIP,
)

CLASSIC = "-v4"  # how the names of dialects end that write the classic names of transformers


def of_library(library: str) -> tuple[Dialect, ...]:
    """The dialects of a library, the one that has its name first."""
    found = [d for d in DIALECTS if d.name == library or d.name.startswith(f"{library}-")]
    return tuple(sorted(found, key=lambda dialect: dialect.name != library))


def of_transformers(*, classic: bool) -> tuple[Dialect, ...]:
    """One for each kind of model; where version 5 has new names, in these or the classic ones."""
    found = of_library("transformers")
    old = {d.name for d in found if d.name.endswith(CLASSIC)}
    new = {name.removesuffix(CLASSIC) for name in old}
    return tuple(d for d in found if d.name not in (new if classic else old))


# Libraries with a dialect for each kind of model: their name alone means whichever fits.
LIBRARIES: dict[str, tuple[Dialect, ...]] = {
    **{library: of_library(library) for library in ("cvnets", "timm", "torchvision")},
    "transformers": of_transformers(classic=False),
    "transformers-v4": of_transformers(classic=True),
}


def all_dialects() -> tuple[Dialect, ...]:
    """Ours, then those of other packages."""
    return (*DIALECTS, *registered_dialects())


def recognise(foreign: Foreign, named: str | None = None, *, proven: bool = False) -> Dialect:
    """The dialect whose names these are, where no config.json beside them names an architecture
    that it does not compute. A dialect that the person named is trusted, and so are
    tensors whose model will be compared with ours afterwards (`proven`)."""
    choice = dialects_called(named) if named else all_dialects()
    if named:  # whatever else it might be
        claiming = [dialect for dialect in choice if dialect.claims(foreign)]
        claiming = claiming or [dialect for dialect in choice if dialect.covers(foreign) == 1]
        others = [] if claiming else [d for d in all_dialects() if d.claims(foreign)]
        if others:
            raise UserError(
                f"{foreign.source}: its tensors have the names of {others[0].name}, not of {named}"
            )
    else:
        claiming = [dialect for dialect in choice if dialect.claims(foreign)]
    # what is not whole is read by the nearest dialect, which reports what is wrong
    claiming = claiming or nearest_dialects(foreign, choice, named is not None)
    for dialect in claiming:
        if is_computed(foreign, dialect):
            if not named and not proven and (doubt := dialect.doubts(foreign)):
                raise UserError(f"{foreign.source}: {doubt}")
            return dialect
    if claiming:
        raise UserError(f"{foreign.source}: {not_computed(foreign, claiming[0])}")
    some = ", ".join(list(foreign.tensors)[:3]) or "no tensors at all"
    raise UserError(
        f"{foreign.source}: its tensors ({some}, …) are in none of the known dialects"
        f"{f' that {named!r} names' if named else ''}: Vitrail reads ViT, DeiT, BEiT, Swin, "
        "Swin V2, MobileViT, CoAtNet, ResNet, BiT and MobileNetV2 (docs/dialects.md)"
    )


def nearest_dialects(foreign: Foreign, choice: Iterable[Dialect], named: bool) -> list[Dialect]:
    """The dialect that knows why it does not read a file, or else has names for most tensors, if
    it has for half of them or was named."""
    refusing = [dialect for dialect in choice if dialect.refuses(foreign)]
    best = max(refusing or choice, key=lambda dialect: dialect.covers(foreign))
    return [best] if named or best.covers(foreign) >= 0.5 else []


def is_computed(foreign: Foreign, dialect: Dialect) -> bool:
    """Whether the config.json beside a file, if any, names an architecture that this dialect's
    family computes. Some libraries read each other's tensors: then the list of the library that
    wrote the config.json counts."""
    architecture = architecture_of(foreign)
    if architecture is None:
        return True
    library, name = architecture
    own = dialect.architectures
    if own is not None and own.library == library:
        classes = foreign.sidecars["config.json"].get("architectures")
        listed = [c for c in classes if isinstance(c, str)] if isinstance(classes, list) else []
        fits = any(one.startswith(own.classes) for one in listed) or not listed
        return own.allows(name) and fits
    known = [d for d in all_dialects() if d.family == dialect.family]
    lists = [d.architectures for d in known if d.architectures]
    return any(one.library == library and one.allows(name) for one in lists)


def not_computed(foreign: Foreign, dialect: Dialect) -> str:
    library, name = architecture_of(foreign) or ("", "")
    return (
        f"its tensors have the names of {dialect.name}, but config.json names {library}'s "
        f"architecture {name!r}, which Vitrail does not compute: use {library}, or if you are sure "
        "that it is a plain model, load the file of tensors without its config.json"
    )


def choose(named: str, config: Config) -> Dialect:
    """The dialect of that name, or of that library, which can hold such a model."""
    choice = dialects_called(named)
    refusals = [dialect.reason_unsupported(config) for dialect in choice]
    for dialect, refusal in zip(choice, refusals, strict=True):
        if refusal is None:
            return dialect
    # the reason of the library's dialect for this family is more to the point
    family = family_of(config)
    own = (why for d, why in zip(choice, refusals, strict=True) if d.family == family)
    raise UserError(f"{next(own, refusals[0])}: use another dialect, such as vitrail")


def dialects_called(name: str) -> tuple[Dialect, ...]:
    if name.endswith((".yaml", ".yml")):  # rows that `adopt` wrote
        from vitrail.weights.adopt.rows_file import read_rows

        return (read_rows(name).dialect(name),)
    by_name: dict[str, tuple[Dialect, ...]]
    by_name = {dialect.name: (dialect,) for dialect in registered_dialects()}
    by_name |= {dialect.name: (dialect,) for dialect in DIALECTS} | LIBRARIES
    if name not in by_name:
        close = get_close_matches(name, by_name, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(by_name))}"
        raise UserError(f"unknown dialect {name!r}, {hint}")
    return by_name[name]
