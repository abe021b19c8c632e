"""All of a run that changes with every step: weights, their mean, optimisers, the loss scale."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from vitrail.core.errors import UserError
from vitrail.objectives.objective import Objective
from vitrail.training.checkpoint import (
    Found,
    flatten_optimisers,
    like_optimiser,
    restore_optimisers,
)
from vitrail.training.ema import EMA
from vitrail.training.optimiser import make_optimisers
from vitrail.training.precision import make_scaler
from vitrail.training.recipe import Recipe
from vitrail.training.sharded import full_tensor, is_sharded, is_written_here, shard_like
from vitrail.training.shards import BEST
from vitrail.training.world import World


class TrainState:
    """What steps change. Where processes share a model, all must ask for tensors together."""

    def __init__(self, objective: Objective, recipe: Recipe, device: torch.device) -> None:
        self.objective = objective
        self.optimisers = make_optimisers(objective, recipe.optimiser)
        self.ema = None if recipe.ema_decay is None else EMA(objective, recipe.ema_decay)
        self.scaler = make_scaler(recipe.precision, device)

    def clip_gradients(self, clip: float | None) -> Tensor:
        """The norm that all gradients had before they were clipped."""
        for optimiser in self.optimisers:
            self.scaler.unscale_(optimiser)
        parameters = [p for p in self.objective.parameters() if p.grad is not None]
        return full_tensor(clip_grad_norm_(parameters, clip if clip is not None else math.inf))

    def update_weights(self, step: int) -> None:
        for optimiser in self.optimisers:
            self.scaler.step(optimiser)
        self.scaler.update()
        if self.ema is not None:
            self.ema.update(self.objective, step)

    def tensors(self) -> dict[str, Tensor]:
        """Everything to go on from, by name; of what is shared this process's share."""
        found = {f"now.{name}": tensor for name, tensor in self.objective.state_dict().items()}
        found |= flatten_optimisers(self.optimisers)
        if self.ema is not None:
            found |= {f"average.{name}": tensor for name, tensor in self.ema.state.items()}
        if self.scaler.is_enabled():
            scaler = self.scaler.state_dict()
            found["scaler.scale"] = torch.tensor(scaler["scale"])
            found["scaler.tracker"] = torch.tensor(scaler["_growth_tracker"])
        return {name: tensor.detach() for name, tensor in found.items()}

    def load(self, found: Found, world: World) -> None:
        """Take up a checkpoint, by however many processes it was written; where processes share the
        model each reads its share."""
        shards = found.shards
        sharded = any(is_sharded(tensor) for tensor in self.objective.state_dict().values())
        if shards is None or not sharded:
            self.restore(found.tensors())
            return
        from vitrail.training.sharded_files import load_sharded

        own = self.tensors()
        targets: dict[str, Tensor] = {}
        for name, entry in shards.entries.items():
            if name.startswith("optimiser."):
                targets[name] = like_optimiser(
                    self.optimisers, name, entry.shape, shards.dtype(name)
                )
            elif name in own:
                targets[name] = own[name]  # filled where it is
        assert world.saving is not None
        load_sharded(found.path, targets, world.saving)
        self.restore(targets)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `tensors` gave, by however many processes it was given; one tensor after
        another, each of which may be read when it is asked for."""
        if not any(name.startswith("now.") for name in tensors):
            raise UserError(
                "this run was saved by an incompatible version of Vitrail: resume it with that "
                "version, or start a new run from its last checkpoint"
            )
        fill(self.objective.state_dict(), tensors, "now.")
        if self.ema is not None:
            fill(self.ema.state, tensors, "average.")
        if "scaler.scale" in tensors:
            known = self.scaler.state_dict()
            known["scale"] = float(tensors["scaler.scale"])
            known["_growth_tracker"] = int(tensors["scaler.tracker"])
            self.scaler.load_state_dict(known)
        restore_optimisers(self.optimisers, tensors)

    def eval_tensors(self, world: World) -> dict[str, Tensor]:
        """The weights to keep for use, copied: the mean where there is one. Whole tensors leave the
        device, to the one process that will save them; shares stay on it."""
        state = self.objective.state_dict()
        found = state if self.ema is None else state | self.ema.state
        return {
            name: tensor.detach().clone() if is_sharded(tensor) else tensor.detach().cpu().clone()
            for name, tensor in found.items()
            if is_written_here(f"{BEST}{name}", tensor, world)
        }

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
def fill(state: dict[str, Tensor], values: Mapping[str, Tensor], prefix: str) -> None:
    saved = {name.removeprefix(prefix) for name in values if name.startswith(prefix)}
    assert state.keys() == saved, "a checkpoint of another run"
    for name, tensor in state.items():
        value = values[f"{prefix}{name}"]
        tensor.copy_(value if is_sharded(value) else shard_like(value, tensor))
