"""A short training run of an objective, for tests that its loss falls."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def losses_while_learning(objective: Any, images: Tensor, steps: int = 40) -> list[float]:
    """The loss of each step, always on these images, each epoch masked anew."""
    optimiser = torch.optim.AdamW(objective.parameters(), lr=3e-3)
    losses = []
    for epoch in range(steps):
        loss = objective(images, objective.draw(0, epoch, np.arange(len(images))))["loss"]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses
