"""`vitrail info`: what a model is made of."""

import json as machine
from dataclasses import KW_ONLY, asdict, dataclass


@dataclass(frozen=True)
class Info:
    """Which model to describe, and how."""

    model: str
    """The name of a model: vit_b_16."""
    _: KW_ONLY
    json: bool = False
    """Print a JSON object."""


def info(asked: Info) -> None:
    """Print a model's shape and its number of parameters."""
    import torch

    from vitrail.models.catalogue import create

    with torch.device("meta"):  # counting needs shapes, not weights
        model = create(asked.model)
    facts = {
        "model": asked.model,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **asdict(model.config),
    }
    if asked.json:
        print(machine.dumps(facts))
    else:
        print("\n".join(f"{name:14}{value}" for name, value in facts.items()))
