"""Progressive resizing: a model that is trained on smaller images first, applied from outside.

A ViT has positions for one grid. Here they are resized to that of the images at hand, inside the
graph, so that the model's own table learns from every size; what is saved is the model of one size.
"""

from types import MethodType
from typing import Any

from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.models.model import Model
from vitrail.models.packing import position_table_for
from vitrail.models.vit import ViT
from vitrail.training.recipe import Recipe


def allow_sides(model: Model, recipe: Recipe) -> None:
    """Let the model read the sides of `augmentation.progressive` beside its own; one sentence where
    it cannot."""
    sides = recipe.augmentation.progressive
    if not sides:
        return
    own = model.config.image_size
    if sides[-1] >= max(own):
        raise UserError(
            f"augmentation.progressive must stay below the model's {own[0]}x{own[1]}, got "
            f"{sides[-1]}: the last epochs have that size by themselves"
        )
    if recipe.compile:
        raise UserError("compile must be off with augmentation.progressive: shapes change")
    if model.any_size:
        return
    if not isinstance(model, ViT) or model.config.positions == "relative":
        raise UserError(
            f"{model.passport.family} models read one image size: augmentation.progressive is for "
            "those whose positions can be resized, such as ViT and DeiT"
        )
    stride = model.config.stride
    if wrong := [side for side in sides if side % stride]:
        raise UserError(
            f"augmentation.progressive must be multiples of the patch size {stride}, got {wrong[0]}"
        )
    resize_positions_to_images(model)


def resize_positions_to_images(model: ViT) -> None:
    grid = model.config.grid

    def note_size(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal grid
        image = inputs[0]
        grid = image.shape[2] // model.config.stride, image.shape[3] // model.config.stride

    model.any_size = True
    model.stem.register_forward_pre_hook(note_size)  # of the image, stem or not
    if model.positions is None:
        return
    own = model.positions.forward

    def forward(self: nn.Module) -> Tensor:
        if grid == model.config.grid:
            return own()
        found = position_table_for(model, grid)
        assert found is not None, "there are positions"
        return found

    model.positions.forward = MethodType(forward, model.positions)  # type: ignore[method-assign]
