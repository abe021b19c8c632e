"""Where a model was loaded from, for as long as it computes what the file does."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from vitrail.core.passport import Preprocessing
from vitrail.models.model import Model


@dataclass(frozen=True)
class LoadedFrom:
    """The arguments of `load`, and what tells whether the model was changed since: torch counts the
    writes to each tensor."""

    source: str
    model: str | None
    dialect: str | None
    grid: tuple[int, int] | None
    changes: dict[str, Any]
    preprocessing: Preprocessing = field(repr=False)
    versions: tuple[tuple[int, int], ...] = field(repr=False)


def remember_source(
    model: Model,
    source: str,
    *,
    variant: str | None,
    dialect: str | None,
    grid: tuple[int, int] | None,
    changes: dict[str, Any],
) -> Model:
    """The same model, which from now on knows where its weights are from."""
    how = model.passport.preprocessing
    found = LoadedFrom(source, variant, dialect, grid, changes, how, tensor_versions(model))
    model.loaded_from = found
    return model


def unchanged_source(model: nn.Module) -> LoadedFrom | None:
    """Where a model was loaded from; None for one that was made, copied, trained or edited here."""
    found = getattr(model, "loaded_from", None)
    if not isinstance(found, LoadedFrom) or not isinstance(model, Model) or model.merged_tokens:
        return None
    same = found.preprocessing == model.passport.preprocessing
    return found if same and found.versions == tensor_versions(model) else None


def tensor_versions(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """Every tensor, and how often it was written to; inference tensors do not count."""
    tensors = (*model.parameters(), *model.buffers())
    return tuple((id(one), -1 if one.is_inference() else one._version) for one in tensors)
