"""What every family's model offers, whatever is inside."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from threading import get_ident
from typing import Any, ClassVar, Self

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.late import call_late
from vitrail.core.layout import Sides, TokenLayout
from vitrail.core.passport import Passport
from vitrail.layers.attention import Attend, SeparableAttend
from vitrail.layers.norm import BatchNorm


@dataclass(frozen=True)
class FeatureInfo:
    """What a block returns as a map: its channels, and pixels of the image for one of its cells a
    side, or its height and width (timm calls it reduction). `module` is its name in
    `named_modules`."""

    module: str
    channels: int
    reduction: Sides


class Model(nn.Module):
    """image -> logits by `forward`, -> what the head reads by `features`, -> tokens by `encode`.

    Its head is called `head`, or begins so. `no_decay` are shell patterns of parameters that
    belong to layers and yet do not decay: perceptrons that compute a bias of attention.
    """

    config: Any
    _passport: Passport | None = None
    no_decay: ClassVar[tuple[str, ...]] = ()
    served_digest = ""  # of a model that a service computes: that of the model there
    loaded_from: Any = None  # set by `load`: weights/loaded_from.py
    any_size = False  # whether images may have another size than the config's
    merged_tokens: tuple[int, ...] = ()  # pairs of tokens that each block merges, where some does

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

    def preprocess(self, images: Any, *, exact: bool = True) -> Float[Tensor, "B C H W"]:
        """Images as this model reads them, on its device and in its precision: a path, an address,
        bytes, a PIL image or a uint8 array, or an iterable of these; prepared as the passport says.

        `exact=False` decodes large images smaller and resizes by torch: faster, a little different.
        `data` reads them (`core/late.py` says how a model gets there).

        >>> import numpy as np
        >>> model.preprocess([np.zeros((375, 500, 3), dtype=np.uint8)]).shape
        torch.Size([1, 3, 224, 224])
        """
        batch: Tensor = call_late("preprocess", images, self.passport.preprocessing, exact=exact)
        weights = next(self.parameters(), None)
        return batch if weights is None else batch.to(weights)

    def intermediates(
        self, images: Float[Tensor, "B C H W"], blocks: Sequence[int] | None = None
    ) -> list[Float[Tensor, "B D rows columns"]]:
        """What chosen blocks return (None: all), as maps and before any final norm; `feature_info`
        has the channels and the reduction of each. Negative numbers count from the last.

        >>> maps = create("vit_ti_16", depth=4).intermediates(torch.zeros(1, 3, 224, 224), [1, 3])
        >>> [tuple(one.shape) for one in maps]
        [(1, 192, 14, 14), (1, 192, 14, 14)]
        """
        info = self.feature_info
        places = range(len(info)) if blocks is None else blocks
        for place in places:
            if not -len(info) <= place < len(info):
                raise UserError(
                    f"blocks must be between {-len(info)} and {len(info) - 1}, got {place}: "
                    "model.feature_info lists them"
                )
        wanted = [info[place].module for place in places]
        found: dict[str, Tensor] = {}
        thread = get_ident()  # another thread may use the same model

        def keep(name: str) -> Any:
            def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
                if get_ident() == thread:
                    found[name] = output

            return hook

        steps = self.blocks_by_depth()
        handles = [steps[name].register_forward_hook(keep(name)) for name in set(wanted)]
        try:
            self.encode(images)
        finally:
            for handle in handles:
                handle.remove()
        return [self.to_map(found[name]) for name in wanted]

    @property
    def has_attention(self) -> bool:
        """Whether any of its layers attends; a convolutional network has none.

        >>> create("resnet18").has_attention
        False
        """
        return any(isinstance(part, Attend | SeparableAttend) for part in self.modules())

    @property
    def feature_info(self) -> tuple[FeatureInfo, ...]:
        """The maps that `intermediates` returns, from the first block to the last.

        >>> create("swin_t").feature_info[-1]
        FeatureInfo(module='stages.3.blocks.1', channels=768, reduction=32)
        """
        shapes = {name: self.map_shape(name) for name in self.blocks_by_depth()}
        return tuple(FeatureInfo(name, *shape) for name, shape in shapes.items() if shape)

    def map_shape(self, block: str) -> tuple[int, Sides] | None:
        """Channels and reduction of the map that a block returns; None where it returns none."""
        raise NotImplementedError

    def to_map(self, output: Float[Tensor, "B ..."]) -> Float[Tensor, "B D rows columns"]:
        """What a block returns as a map; a family whose blocks return tokens overrides it."""
        return output

    def reset_head(self, num_classes: int) -> Self:
        """Replace the head, in place, by one for `num_classes` classes with a zero last layer, or
        by none for 0. Labels and scores of the old one leave the passport. Returns the model.

        >>> create("vit_ti_16").reset_head(5)(torch.zeros(1, 3, 224, 224)).shape
        torch.Size([1, 5])
        """
        passport, config = self.passport, replace(self.config, num_classes=num_classes)
        self.config = config
        self.new_head()
        self.passport = replace(
            passport, config=asdict(config), labels=None, multi_label=False, scores={}
        )
        return self

    def new_head(self) -> None:
        """A head that knows nothing yet, in the place of the one there is, on its device, in its
        precision and in its mode."""
        like = next(iter(self.parameters()), None)
        self.attach_head()
        if like is not None and not like.is_meta:
            for name, module in self.named_children():
                if name.startswith("head"):
                    module.to(device=like.device, dtype=like.dtype).train(self.training)

    def attach_head(self) -> None:
        """Initialise every head of the model: attributes whose names begin with `head`."""
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


def tokens_to_map(
    tokens: Float[Tensor, "B N D"], layout: TokenLayout
) -> Float[Tensor, "B D rows columns"]:
    """The tokens of patches, without those before them, as a map."""
    patches = tokens[:, layout.prefix :]
    if patches.shape[1] != layout.grid[0] * layout.grid[1]:
        raise UserError(
            f"a map needs all {layout.grid[0] * layout.grid[1]} patches, got {patches.shape[1]}: "
            "patch_dropout leaves some out in training, call model.eval() first"
        )
    return patches.mT.unflatten(2, layout.grid)


def stage_of(block: str) -> int:
    """
    >>> stage_of("stages.2.blocks.0")
    2
    """
    return int(block.split(".")[1])


def freeze_statistics(module: nn.Module) -> None:
    """Batch norms whose weights do not learn keep their statistics too."""
    for norm in module.modules():
        if isinstance(norm, BatchNorm) and not any(p.requires_grad for p in norm.parameters()):
            norm.frozen = True
            norm.eval()
