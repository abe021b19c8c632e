"""What every family's model offers, whatever is inside."""

from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport
from vitrail.layers.norm import BatchNorm


class Model(nn.Module):
    """image -> logits by `forward`, -> what the head reads by `features`, -> tokens by `encode`.

    Its head is called `head`, or begins so. `no_decay` are shell patterns of parameters that
    belong to layers and yet do not decay: perceptrons that compute a bias of attention.
    """

    config: Any
    passport: Passport
    no_decay: ClassVar[tuple[str, ...]] = ()
    any_size = False  # whether images may have another size than the config's

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        raise NotImplementedError

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B ..."]:
        raise NotImplementedError

    def new_head(self) -> None:
        """A head that knows nothing yet, in the place of the one there is."""
        raise NotImplementedError

    def trunk(self) -> dict[str, nn.Module]:
        """The blocks from image to head by their names, each a step deeper than the one before."""
        raise NotImplementedError

    def check(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """The image, if it has the channels that this model was made for, and the size unless any
        will do."""
        channels, size = self.config.channels, self.config.image_size
        fits = image.ndim == 4 and image.shape[1] == channels and 0 not in image.shape[2:]
        if not fits or not (self.any_size or tuple(image.shape[2:]) == size):
            height, width = ("height", "width") if self.any_size else size
            raise UserError(
                f"images are {tuple(image.shape)}, this model reads (batch, {channels}, "
                f"{height}, {width}): "
                "resize them, or create or load it with another image_size or channels"
            )
        return image


def freeze_statistics(module: nn.Module) -> None:
    """Batch norms whose weights do not learn keep their statistics too."""
    for norm in module.modules():
        if isinstance(norm, BatchNorm) and not any(p.requires_grad for p in norm.parameters()):
            norm.frozen = True
            norm.eval()
