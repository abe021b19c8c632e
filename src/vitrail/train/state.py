"""All of a run that changes with every step: weights, their mean, optimisers, the loss scale."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.models.model import Model
from vitrail.train.average import Average
from vitrail.train.checkpoint import flatten_optimisers, restore_optimisers
from vitrail.train.lora import merged
from vitrail.train.optimiser import make_optimisers
from vitrail.train.parallel import shared_as, whole
from vitrail.train.precision import make_scaler
from vitrail.train.recipe import Recipe


class State:
    """What steps change. Where processes share a model, all must ask for tensors together."""

    def __init__(self, model: Model, recipe: Recipe, device: torch.device) -> None:
        self.model, self.lora = model, recipe.lora
        self.optimisers = make_optimisers(model, recipe.optimiser)
        self.average = None if recipe.average is None else Average(model, recipe.average)
        self.scaler = make_scaler(recipe.precision, device)

    def tensors(self) -> dict[str, Tensor]:
        """Everything to go on from, by name."""
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
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
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "average": {}, "scaler": {}}
        for key, tensor in tensors.items():
            kind, _, name = key.partition(".")
            if kind in parts:
                parts[kind][name] = tensor
        fill(self.model.state_dict(), parts["model"])
        if self.average is not None:
            fill(self.average.state, parts["average"])
        if said := parts["scaler"]:
            known = self.scaler.state_dict()
            known |= {"scale": float(said["scale"]), "_growth_tracker": int(said["tracker"])}
            self.scaler.load_state_dict(known)
        restore_optimisers(self.optimisers, tensors)

    def judged(self) -> dict[str, Tensor]:
        """The weights to keep for use: the mean where there is one, adaptations merged."""
        state = self.model.state_dict()
        return merged(
            whole(state if self.average is None else state | self.average.state), self.lora
        )

    @contextmanager
    def judging(self) -> Iterator[nn.Module]:
        """The model with the weights to be judged inside, ready to answer."""
        self.model.eval()
        if self.average is not None:
            self.average.swap(self.model)
        try:
            yield self.model
        finally:
            if self.average is not None:
                self.average.swap(self.model)


@torch.no_grad()
def fill(state: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    assert state.keys() == values.keys(), "a checkpoint of another run"
    for name, tensor in state.items():
        tensor.copy_(shared_as(values[name], tensor))
