"""A running mean of the weights, which usually predicts better than the weights themselves."""

import torch
from torch import Tensor, nn


class EMA:
    """Exponential moving average. Early on the mean of few steps counts less history, as in Polyak
    averaging: the decay at step t is at most (1 + t) / (10 + t)."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.state = {name: t.detach().clone() for name, t in averaged_tensors(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        now = averaged_tensors(model)
        # where processes share the weights, those are another kind of tensor than statistics
        for kind in {type(tensor) for tensor in now.values()}:
            names = [name for name, tensor in now.items() if type(tensor) is kind]
            mine, theirs = ([group[name] for name in names] for group in (self.state, now))
            torch._foreach_lerp_(mine, theirs, 1 - decay)

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        """Exchange mean and weights; done twice, nothing has happened."""
        for name, tensor in averaged_tensors(model).items():
            mine = self.state[name]
            theirs = tensor.clone()
            tensor.copy_(mine)
            mine.copy_(theirs)


def averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All that a mean makes sense of: weights and running statistics, not counters."""
    return {name: t for name, t in model.state_dict().items() if t.is_floating_point()}
