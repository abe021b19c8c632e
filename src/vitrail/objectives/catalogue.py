"""Every objective that learns without labels, by its name."""

from difflib import get_close_matches
from inspect import signature
from typing import Any

from vitrail.core.errors import UserError
from vitrail.models.model import Model
from vitrail.objectives.beit import BeitObjective
from vitrail.objectives.mae import MAE
from vitrail.objectives.masked_patch import MaskedPatch
from vitrail.objectives.objective import Objective
from vitrail.objectives.simmim import SimMIM
from vitrail.objectives.tokenizer import TokenizerObjective

OBJECTIVES: dict[str, type[Objective]] = {
    "masked-patch": MaskedPatch,
    "beit": BeitObjective,
    "mae": MAE,
    "simmim": SimMIM,
    "tokenizer": TokenizerObjective,
}


def make_unlabelled(name: str, model: Model, options: dict[str, Any], **more: Any) -> Objective:
    """The objective of that name around a model; an option that it does not have is refused."""
    kind = OBJECTIVES[name]
    known = [p.name for p in signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            close = get_close_matches(option, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known) or 'none'}"
            raise UserError(f"{name} has no option {option!r}: {hint}")
    try:
        return kind(model, **options, **more)
    except TypeError as error:
        raise UserError(f"{name}: an option has a value of another kind: {error}") from None
