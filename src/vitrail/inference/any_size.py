"""Models that read images of any size in one graph: positions are resized inside it.

Resizing a grid of positions is linear and works on each axis by itself, so it is a product with one
small matrix an axis. The matrices are computed from the size of the image by operators that every
format has, in the ways that checkpoints' own code resizes.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.inference.merging import recast
from vitrail.inference.rewrites.sharing import share_weights, with_children
from vitrail.layers.position import (
    LearnedPositions,
    LearnedPositions2d,
    SinCosPositions,
    SinCosPositions1d,
)
from vitrail.models import vit
from vitrail.models.beit import Beit
from vitrail.models.coatnet import CoAtNet
from vitrail.models.mobilevit import MobileViT
from vitrail.models.mobilevitv2 import MobileViTV2
from vitrail.models.model import Model
from vitrail.models.swin import Swin
from vitrail.models.swinv2 import SwinV2

LAST_STRIDE = 32  # of MobileViT's last maps, which are cut into patches
CUBIC, CUBIC_ANTIALIASED = -0.75, -0.5  # Keys' parameter in torch's two bicubic kernels
WHY_ONE_SIZE: dict[type[nn.Module], str] = {
    Beit: "its relative bias is a table for one grid of patches",
    Swin: "its windows and their masks are laid out for one grid",
    SwinV2: "its windows, their masks and their biases are laid out for one grid",
    CoAtNet: "the relative biases of its attention are tables for one grid",
}


class ResizedPositions(nn.Module):
    """Positions of the prefix tokens and of a grid of any size -> (1, N, D)."""

    prefix: Tensor
    grid: Tensor

    def __init__(
        self,
        positions: LearnedPositions,
        *,
        slots: int,
        grid: tuple[int, int],
        method: ResizeMethod,
    ) -> None:
        super().__init__()
        self.register_buffer("prefix", positions.table[:, :slots].detach())
        self.register_buffer("grid", positions.table[0, slots:].detach().unflatten(0, grid))
        self.method = method

    def forward(self, rows: int, columns: int) -> Float[Tensor, "1 N D"]:
        old = self.grid.shape[0], self.grid.shape[1]
        across = MATRICES[self.method](old[1], columns)
        down = MATRICES[self.method](old[0], rows)
        mixed = torch.einsum("rR,RCD->rCD", down, self.grid)
        mixed = torch.einsum("cC,rCD->rcD", across, mixed)
        return torch.cat([self.prefix, mixed.reshape(1, rows * columns, -1)], dim=1)


class ComputedPositions(nn.Module):
    """Sines and cosines for a grid of any size."""

    frequency: Tensor

    def __init__(self, positions: SinCosPositions, temperature: float = 10_000.0) -> None:
        super().__init__()
        count = positions.dim // 4
        power = torch.arange(count, dtype=torch.float64) / (count - 1)
        self.register_buffer("frequency", (temperature**-power).float())

    def forward(self, rows: int, columns: int) -> Float[Tensor, "1 N D"]:
        y = (torch.arange(rows).float()[:, None] * self.frequency)[:, None].expand(-1, columns, -1)
        x = (torch.arange(columns).float()[:, None] * self.frequency)[None].expand(rows, -1, -1)
        table = torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=-1)
        return table.reshape(1, rows * columns, -1)


class ComputedPositions1d(nn.Module):
    """Sines and cosines for a sequence of any length."""

    frequency: Tensor

    def __init__(self, slots: int, dim: int, temperature: float = 10_000.0) -> None:
        super().__init__()
        power = torch.arange(0, dim, 2, dtype=torch.float64) / dim
        self.slots = slots
        self.register_buffer("frequency", (temperature**-power).float())

    def forward(self, rows: int, columns: int) -> Float[Tensor, "1 N D"]:
        count = self.slots + rows * columns
        angle = torch.arange(count).float()[:, None] * self.frequency
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[None]


class ResizedPositions2d(nn.Module):
    """Positions of rows and columns for a grid of any size."""

    rows: Tensor
    columns: Tensor

    def __init__(self, positions: LearnedPositions2d, *, method: ResizeMethod) -> None:
        super().__init__()
        self.register_buffer("rows", positions.rows.detach())
        self.register_buffer("columns", positions.columns.detach())
        self.method = method

    def forward(self, rows: int, columns: int) -> Float[Tensor, "1 N D"]:
        down = MATRICES[self.method](self.rows.shape[0], rows) @ self.rows
        across = MATRICES[self.method](self.columns.shape[0], columns) @ self.columns
        table = torch.cat(
            [across[None].expand(rows, -1, -1), down[:, None].expand(-1, columns, -1)], dim=-1
        )
        return table.reshape(1, rows * columns, -1)


class AnySizeViT(vit.ViT):
    """A ViT whose positions follow the size of the image, a multiple of its patches."""

    any_size = True

    def embed(
        self,
        image: Float[Tensor, "B C H W"],
        corrupt: Callable[[Tensor], Tensor] | None = None,
    ) -> Float[Tensor, "B M D"]:
        down, across = self.config.strides
        rows, columns = image.shape[2] // down, image.shape[3] // across
        patches = self.patches(self.check(image))
        prefix = (self.cls, self.distillation, self.registers)
        tokens = [token.expand(patches.shape[0], -1, -1) for token in prefix if token is not None]
        x = torch.cat([*tokens, patches], dim=1)
        if self.positions is not None:
            x = x + self.place(self.positions(rows, columns))
        return x


class AnySizeMobileViT(MobileViT):
    """Its image sizes are written as multiples."""

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return super().encode(as_multiple(image, size_step(self)))


class AnySizeMobileViTV2(MobileViTV2):
    """Its image sizes are written as multiples."""

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return super().encode(as_multiple(image, size_step(self)))


def as_multiple(image: Float[Tensor, "B C H W"], step: int) -> Float[Tensor, "B C H W"]:
    """The image, whose sides are multiples of `step`, with sides that torch.export reads as
    step * (H // step). It then knows that half of a side is whole; otherwise every stride of two
    adds a rounding to the sizes after it, and V2 is not exported within ten minutes."""
    rows, columns = (side // step for side in image.shape[2:])
    return image[:, :, : rows * step, : columns * step]


def for_any_size(model: Model) -> Model:
    """The model for images of any size, over the same weights; refused where a family has parts
    that are made for one.

    >>> wide = for_any_size(create("vit_ti_16", depth=1, num_classes=3).eval())
    >>> wide(torch.zeros(1, 3, 160, 256)).shape
    torch.Size([1, 3])
    """
    if (reason := why_one_size(model)) is not None:
        raise UserError(
            f"dynamic_size must be off for this {type(model).__name__}, because {reason}: load the "
            "model with image_size=… and export it for each size"
        )
    if isinstance(model, MobileViT):
        return recast(share_weights(model), AnySizeMobileViT)
    if isinstance(model, MobileViTV2):
        return recast(share_weights(model), AnySizeMobileViTV2)
    if model.any_size:
        return model
    shared = share_weights(model)
    assert isinstance(shared, vit.ViT)
    resized: nn.Module | None = None
    if isinstance(shared.positions, LearnedPositions):
        config = shared.config
        resized = ResizedPositions(
            shared.positions, slots=config.slots, grid=config.grid, method=model.passport.resize
        )
    elif isinstance(shared.positions, LearnedPositions2d):
        resized = ResizedPositions2d(shared.positions, method=model.passport.resize)
    elif isinstance(shared.positions, SinCosPositions):
        resized = ComputedPositions(shared.positions)
    elif isinstance(shared.positions, SinCosPositions1d):
        resized = ComputedPositions1d(shared.config.slots, shared.config.dim)
    return recast(with_children(shared, {"positions": resized}), AnySizeViT)


def why_one_size(model: Model) -> str | None:
    """What of a model is made for one image size, if something is."""
    step, (height, width) = size_step(model), model.config.image_size
    if model.any_size:
        if not height % step and not width % step:
            return None
        fits = ", ".join(str(-(-side // step) * step) for side in (height, width))
        return f"its own {height}x{width} is no multiple of {step}, as image_size=({fits}) is"
    if model.merged_tokens:
        return "the number of tokens that it merges is chosen for one image size"
    if type(model) is not vit.ViT:
        return WHY_ONE_SIZE.get(type(model), "its layers are made for one image size")
    if model.config.stem is not None:
        return "the padding of its ResNet depends on the image size"
    if isinstance(model.config.patch_size, tuple):
        return "its patches are rectangles, and the sides of images would be multiples of two sizes"
    if model.config.positions == "relative":
        return 'its positions="relative" have a number for each distance in one sequence'
    if model.passport.resize == "dinov2":
        return "DINOv2 resizes positions by a factor with an offset, except at its own size"
    return None


def size_step(model: Model) -> int:
    """What the sides of images must be multiples of."""
    if isinstance(model.config, vit.ViTConfig):
        return math.lcm(*model.config.strides)
    return LAST_STRIDE * int(getattr(model.config, "patch_size", 1))


def coordinates(old: int, new: int) -> tuple[Float[Tensor, "new 1"], Float[Tensor, "1 old"], float]:
    """The number of each new cell and of each old one, and how many old ones a new one has."""
    cells = torch.arange(new).float()[:, None], torch.arange(old).float()[None]
    return *cells, old / new


def cubic(distance: Tensor, a: float) -> Tensor:
    """Keys' kernel: 1 at 0, 0 at 1 and 2 and beyond."""
    x = distance.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def linear_aligned(old: int, new: int) -> Float[Tensor, "new old"]:
    """Bilinear, corners aligned."""
    place, cells, _ = coordinates(old, new)
    source = place * aligned_scale(old, new)
    return (1 - (source - cells).abs()).clamp(min=0)


def cubic_aligned(old: int, new: int) -> Float[Tensor, "new old"]:
    place, cells, _ = coordinates(old, new)
    return cubic_taps(place * aligned_scale(old, new), cells)


def cubic_centred(old: int, new: int) -> Float[Tensor, "new old"]:
    place, cells, scale = coordinates(old, new)
    return cubic_taps((place + 0.5) * scale - 0.5, cells)


def cubic_antialiased(old: int, new: int) -> Float[Tensor, "new old"]:
    """Where the grid shrinks, the kernel is as many times as wide; weights sum to one."""
    place, cells, scale = coordinates(old, new)
    centre = (place + 0.5) * scale
    widen = torch.maximum(torch.ones_like(centre), torch.ones_like(centre) * scale)
    weights = cubic((cells + 0.5 - centre) / widen, CUBIC_ANTIALIASED)
    return weights / weights.sum(dim=1, keepdim=True)


def cubic_taps(source: Float[Tensor, "new 1"], cells: Float[Tensor, "1 old"]) -> Tensor:
    """Four cells around each source; those beyond the border are the border's."""
    first, last = source.floor(), cells.shape[1] - 1
    weights = torch.zeros_like(source - cells)
    for step in (-1, 0, 1, 2):
        tap = first + step
        chosen = (tap.clamp(0, last) == cells).float()
        weights = weights + cubic(source - tap, CUBIC) * chosen
    return weights


def aligned_scale(old: int, new: int) -> Tensor:
    """(old - 1) / (new - 1), and 0 for a single cell."""
    return (old - 1) / torch.clamp(torch.arange(new).sum() * 0 + new - 1, min=1).float()


MATRICES: dict[ResizeMethod, Callable[[int, int], Tensor]] = {
    "paper": linear_aligned,
    "timm": cubic_antialiased,
    "hf": cubic_centred,
    "torchvision": cubic_aligned,
    "dinov2_registers": cubic_antialiased,
}
