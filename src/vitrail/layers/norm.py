"""Norms that look beyond one sample."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class BatchNorm(nn.BatchNorm2d):
    """torch's BatchNorm without its counter of batches: with a fixed momentum nobody reads it, and
    weights are numbers to compute with, all of them."""

    def __init__(self, channels: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(channels, eps=eps, momentum=momentum)
        self.register_buffer("num_batches_tracked", None)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *rest: Any
    ) -> None:
        # past torch's own, which would add the counter to a file that has none
        nn.Module._load_from_state_dict(self, state_dict, prefix, *rest)

    def reset_running_stats(self) -> None:
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
