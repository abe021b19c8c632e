"""All of a run that changes with every step: weights, their mean, optimisers, the loss scale."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.objectives.objective import Objective
from vitrail.training.checkpoint import flatten_optimisers, restore_optimisers
from vitrail.training.ema import EMA
from vitrail.training.lora import merged
from vitrail.training.optimiser import MODEL, make_optimisers
from vitrail.training.precision import make_scaler
from vitrail.training.recipe import Recipe
from vitrail.training.sharded import gather_full, shard_like


@dataclass(frozen=True)
class Weights:
    """Weights to use: the model's, and what its objective has beside it."""

    model: dict[str, Tensor]
    beside: dict[str, Tensor]

    def clone(self) -> "Weights":
        parts = (self.model, self.beside)
        return Weights(*({name: t.clone() for name, t in part.items()} for part in parts))


class TrainState:
    """What steps change. Where processes share a model, all must ask for tensors together."""

    def __init__(self, objective: Objective, recipe: Recipe, device: torch.device) -> None:
        self.objective, self.lora = objective, recipe.lora
        self.optimisers = make_optimisers(objective, recipe.optimiser)
        self.ema = None if recipe.ema_decay is None else EMA(objective, recipe.ema_decay)
        self.scaler = make_scaler(recipe.precision, device)

    def tensors(self) -> dict[str, Tensor]:
        """Everything to go on from, by name."""
        found = {f"now.{name}": tensor for name, tensor in self.objective.state_dict().items()}
        found |= flatten_optimisers(self.optimisers)
        if self.ema is not None:
            found |= {f"average.{name}": tensor for name, tensor in self.ema.state.items()}
        if self.scaler.is_enabled():
            scaler = self.scaler.state_dict()
            found["scaler.scale"] = torch.tensor(scaler["scale"])
            found["scaler.tracker"] = torch.tensor(scaler["_growth_tracker"])
        return gather_full(found)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take up what `tensors` gave, by however many processes it was given."""
        parts: dict[str, dict[str, Tensor]] = {"now": {}, "average": {}, "scaler": {}}
        for key, tensor in tensors.items():
            kind, _, name = key.partition(".")
            if kind in parts:
                parts[kind][name] = tensor
        if not parts["now"]:
            raise UserError(
                "this run was saved by an incompatible version of Vitrail: resume it with that "
                "version, or start a new run from its last checkpoint"
            )
        fill(self.objective.state_dict(), parts["now"])
        if self.ema is not None:
            fill(self.ema.state, parts["average"])
        if scaler := parts["scaler"]:
            known = self.scaler.state_dict()
            known |= {"scale": float(scaler["scale"]), "_growth_tracker": int(scaler["tracker"])}
            self.scaler.load_state_dict(known)
        restore_optimisers(self.optimisers, tensors)

    def eval_weights(self) -> Weights:
        """The weights to keep for use: the mean where there is one, adaptations merged."""
        state = self.objective.state_dict()
        found = gather_full(state if self.ema is None else state | self.ema.state)
        model = {
            name.removeprefix(MODEL): tensor
            for name, tensor in found.items()
            if name.startswith(MODEL)
        }
        beside = {name: tensor for name, tensor in found.items() if not name.startswith(MODEL)}
        return Weights(merged(model, self.lora), beside)

    @contextmanager
    def with_eval_weights(self) -> Iterator[nn.Module]:
        """The objective in evaluation mode with the weights to use."""
        self.objective.eval()
        if self.ema is not None:
            self.ema.swap(self.objective)
        try:
            yield self.objective
        finally:
            if self.ema is not None:
                self.ema.swap(self.objective)


@torch.no_grad()
def fill(state: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    assert state.keys() == values.keys(), "a checkpoint of another run"
    for name, tensor in state.items():
        tensor.copy_(shard_like(values[name], tensor))
