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
    _passport: Passport | None = None
    no_decay: ClassVar[tuple[str, ...]] = ()
    any_size = False  # whether images may have another size than the config's

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        raise NotImplementedError

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B ..."]:
        raise NotImplementedError

    @property
    def passport(self) -> Passport:
        """What travels with the weights; of a model that was never given one, that nobody has
        trained it."""
        if self._passport is None:
            from vitrail.models.catalogue import fresh_passport  # the catalogue knows the families

            self._passport = fresh_passport(self.config)
        return self._passport

    @passport.setter
    def passport(self, passport: Passport) -> None:
        self._passport = passport

    def new_head(self) -> None:
        """A head that knows nothing yet, in the place of the one there is, on its device and in
        its precision."""
        like = next(iter(self.parameters()), None)
        self.attach_head()
        if like is not None and not like.is_meta:
            for name, module in self.named_children():
                if name.startswith("head"):
                    module.to(device=like.device, dtype=like.dtype)

    def attach_head(self) -> None:
        """Every head of the model anew: attributes whose names begin with `head`."""
        raise NotImplementedError

    def blocks_by_depth(self) -> dict[str, nn.Module]:
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
        if not image.is_floating_point():
            raise UserError(
                f"images must be preprocessed floats, got {image.dtype}: vitrail.predict prepares "
                "images itself"
            )
        return image


def freeze_statistics(module: nn.Module) -> None:
    """Batch norms whose weights do not learn keep their statistics too."""
    for norm in module.modules():
        if isinstance(norm, BatchNorm) and not any(p.requires_grad for p in norm.parameters()):
            norm.frozen = True
            norm.eval()
