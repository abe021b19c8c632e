"""Every objective that learns without labels, by its name."""

from dataclasses import field, make_dataclass
from functools import cache
from inspect import signature
from typing import Any, get_type_hints

from vitrail.core.records import validate
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
    """The objective of that name around a model. What an option is called and which values it may
    have, the objective's keyword arguments say."""
    record = validate(options_of(name), options, where=f"goal.options of {name}")
    given = {option: getattr(record, option) for option in options}
    return OBJECTIVES[name](model, **given, **more)


@cache
def options_of(name: str) -> type[Any]:
    """The keyword arguments of an objective as a record, to be validated like one."""
    kind = OBJECTIVES[name]
    hints = get_type_hints(kind.__init__)
    named = (p for p in signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY)
    return make_dataclass(
        f"{kind.__name__}Options",
        [(p.name, hints[p.name], field(default=p.default)) for p in named],
        frozen=True,
    )
