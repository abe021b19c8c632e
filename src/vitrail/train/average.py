"""A running mean of the weights, which usually predicts better than the weights themselves."""

import torch
from torch import Tensor, nn


class Average:
    """Exponential moving average. Early on the mean of few steps counts less history, as in Polyak
    averaging: the decay at step t is at most (1 + t) / (10 + t)."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.state = {
            name: tensor.detach().clone()
            for name, tensor in model.state_dict().items()
            if tensor.is_floating_point()
        }

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        state = model.state_dict()
        mine: list[Tensor] = list(self.state.values())
        theirs = [state[name] for name in self.state]
        torch._foreach_lerp_(mine, theirs, 1 - decay)
