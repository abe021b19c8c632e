"""What every family's model offers, whatever is inside."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.passport import Passport


class Model(nn.Module):
    """image -> logits by `forward`, -> what the head reads by `features`, -> tokens by `encode`."""

    config: Any
    passport: Passport

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        raise NotImplementedError

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B ..."]:
        raise NotImplementedError

    def new_head(self) -> None:
        """A head that knows nothing yet, in the place of the one there is."""
        raise NotImplementedError
