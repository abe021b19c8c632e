"""Classification heads."""

from collections import OrderedDict

import torch
from torch import nn

from vitrail.layers.init import lecun_normal_, zero_
from vitrail.layers.linear import Linear


class Head(nn.Sequential):
    """One linear layer to fine-tune; with `hidden`, a tanh layer before it to pre-train; without
    classes, nothing. A new head says nothing: every class gets the same logit."""

    def __init__(self, dim: int, classes: int, *, hidden: int | None = None, bias: bool = True):
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if classes and hidden is not None:
            layers["hidden"] = Linear(dim, hidden)
            layers["tanh"] = nn.Tanh()
        if classes:
            layers["classes"] = Linear(hidden or dim, classes, bias=bias)
        super().__init__(layers)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        for name, layer in self.named_children():
            if isinstance(layer, nn.Linear):
                zero_(layer.bias)
                lecun_normal_(layer.weight) if name == "hidden" else zero_(layer.weight)
