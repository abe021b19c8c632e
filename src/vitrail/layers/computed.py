"""Tensors that follow from the config: computed when a model is built, never stored with it."""

from collections.abc import Callable
from typing import Self

from torch import Tensor, nn


class Computed(nn.Module):
    """What `make` gives, on the model's device and in its precision.

    `make` computes on the CPU, even under torch.device("meta"), because no checkpoint brings the
    tensor back; moved, it is made anew, because `to_empty` would leave it without values.
    """

    value: Tensor

    def __init__(self, make: Callable[[], Tensor]) -> None:
        super().__init__()
        self.make = make
        self.register_buffer("value", make(), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.value = self.make().to(self.value)
        return self

    def forward(self) -> Tensor:
        return self.value
