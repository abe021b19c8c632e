"""All of a run that changes with every step: weights, their mean, optimisers, the loss scale."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.objectives.objective import Objective
from vitrail.training.average import Average
from vitrail.training.checkpoint import flatten_optimisers, restore_optimisers
from vitrail.training.lora import merged
from vitrail.training.optimiser import MODEL, make_optimisers
from vitrail.training.parallel import shared_as, whole
from vitrail.training.precision import make_scaler
from vitrail.training.recipe import Recipe


@dataclass(frozen=True)
class Kept:
    """Weights to use: the model's, and what its objective has beside it."""

    model: dict[str, Tensor]
    beside: dict[str, Tensor]

    def clone(self) -> "Kept":
        parts = (self.model, self.beside)
        return Kept(*({name: t.clone() for name, t in part.items()} for part in parts))


class State:
    """What steps change. Where processes share a model, all must ask for tensors together."""

    def __init__(self, objective: Objective, recipe: Recipe, device: torch.device) -> None:
        self.objective, self.lora = objective, recipe.lora
        self.optimisers = make_optimisers(objective, recipe.optimiser)
        self.average = None if recipe.average is None else Average(objective, recipe.average)
        self.scaler = make_scaler(recipe.precision, device)

    def tensors(self) -> dict[str, Tensor]:
        """Everything to go on from, by name."""
        found = {f"now.{name}": tensor for name, tensor in self.objective.state_dict().items()}
        found |= flatten_optimisers(self.optimisers)
        if self.average is not None:
            found |= {f"average.{name}": tensor for name, tensor in self.average.state.items()}
        if self.scaler.is_enabled():
            said = self.scaler.state_dict()
            found["scaler.scale"] = torch.tensor(said["scale"])
            found["scaler.tracker"] = torch.tensor(said["_growth_tracker"])
        return whole(found)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take up what `tensors` gave, by however many processes it was given."""
        parts: dict[str, dict[str, Tensor]] = {"now": {}, "average": {}, "scaler": {}}
        for key, tensor in tensors.items():
            kind, _, name = key.partition(".")
            if kind in parts:
                parts[kind][name] = tensor
        if not parts["now"]:
            raise UserError(
                "this run was saved by a version of Vitrail that kept other tensors: resume it "
                "with that version, or begin another run with --from its last checkpoint"
            )
        fill(self.objective.state_dict(), parts["now"])
        if self.average is not None:
            fill(self.average.state, parts["average"])
        if said := parts["scaler"]:
            known = self.scaler.state_dict()
            known |= {"scale": float(said["scale"]), "_growth_tracker": int(said["tracker"])}
            self.scaler.load_state_dict(known)
        restore_optimisers(self.optimisers, tensors)

    def judged(self) -> Kept:
        """The weights to keep for use: the mean where there is one, adaptations merged."""
        state = self.objective.state_dict()
        found = whole(state if self.average is None else state | self.average.state)
        model = {
            name.removeprefix(MODEL): tensor
            for name, tensor in found.items()
            if name.startswith(MODEL)
        }
        beside = {name: tensor for name, tensor in found.items() if not name.startswith(MODEL)}
        return Kept(merged(model, self.lora), beside)

    @contextmanager
    def judging(self) -> Iterator[nn.Module]:
        """The objective with the weights to be judged inside, ready to answer."""
        self.objective.eval()
        if self.average is not None:
            self.average.swap(self.objective)
        try:
            yield self.objective
        finally:
            if self.average is not None:
                self.average.swap(self.objective)


@torch.no_grad()
def fill(state: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    assert state.keys() == values.keys(), "a checkpoint of another run"
    for name, tensor in state.items():
        tensor.copy_(shared_as(values[name], tensor))
