"""Peers with batch norms, made so that every number in them matters and no signal dies away."""

import math

import torch
from torch import Tensor, nn

from tests.parity.compare import Peer


def lively(peer: Peer, seed: int = 0) -> Peer:
    """The peer in float64 and evaluation mode, with random weights that keep the size of what goes
    through, and statistics of norms as training leaves them."""
    generator = torch.Generator().manual_seed(seed)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64)

    peer = peer.double().eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            if parameter.ndim > 1:
                parameter.copy_(noise(parameter) * math.sqrt(2 / parameter[0].numel()))
            else:
                parameter.add_(0.2 * noise(parameter))
        for module in peer.modules():
            if isinstance(module, nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm):
                module.weight.copy_(1 + 0.2 * noise(module.weight))
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.copy_(0.3 * noise(module.running_mean))
                module.running_var.copy_(0.5 + noise(module.running_var).abs())
    return peer
