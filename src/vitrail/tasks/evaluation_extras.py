"""What `evaluate` computes beside one split: corrupted images, other image and patch sizes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.ranges import check_count, check_counts
from vitrail.evaluation.robustness import VARIANTS
from vitrail.models.model import Model
from vitrail.models.vit import ViTConfig
from vitrail.tasks.keywords import Size

CORRUPTED = "corrupted"

# The text of a size, and the fields of `load` that give it.
Sizes = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Extras:
    """Whether images are corrupted and how many of them (None: all), and at which other sizes of
    images and patches the model is evaluated."""

    corruptions: bool
    corrupted_images: int | None
    resolutions: list[Size]
    patch_sizes: Sequence[int]

    @classmethod
    def of(
        cls, corruptions: bool, corrupted_images: int | None, resolutions: Any, patch_sizes: Any
    ) -> "Extras":
        """From the arguments of `evaluate`, checked."""
        if corrupted_images is not None:
            check_count("corrupted_images", corrupted_images, at_least=1)
            if not corruptions:
                raise UserError("corrupted_images needs corruptions: pass corruptions=True")
        sides = check_sizes("resolutions", resolutions)
        patches = check_counts("patch_sizes", patch_sizes, at_least=1)
        return cls(corruptions, corrupted_images, sides, patches)

    @property
    def given(self) -> dict[str, bool]:
        """Which of them are wanted, by the names of the arguments."""
        names = ("corruptions", "resolutions", "patch_sizes")
        return {name: bool(getattr(self, name)) for name in names}

    @property
    def sizes(self) -> Sizes:
        return [(size_text(size), {"image_size": size}) for size in self.resolutions]

    def check_one_size(self, costs: dict[str, bool]) -> None:
        """Refuse what is measured for one image and patch size, such as speed_up."""
        for name, given in costs.items():
            if given and (self.resolutions or self.patch_sizes):
                raise UserError(
                    f"{name} is measured for one image and patch size: leave out resolutions and "
                    f"patch_sizes, or {name}"
                )

    def count_images(self, images: int, model: Model) -> dict[str, int]:
        """How many more images are computed for a split of so many, by what they are."""
        chosen = min(self.corrupted_images or images, images)
        patches = patch_fields(self.patch_sizes, model)
        return {
            **({CORRUPTED: len(VARIANTS) * chosen} if self.corruptions else {}),
            **{f"at {size}": images for size, _ in self.sizes},
            **{f"in patches of {size}": images for size, _ in patches},
        }


def check_sizes(name: str, sizes: Any) -> list[Size]:
    """Image sizes, each a side or (height, width); one side alone is a list of one.

    >>> check_sizes("resolutions", 224), check_sizes("resolutions", [160, (192, 672)])
    ([224], [160, (192, 672)])
    """
    if isinstance(sizes, str) or not isinstance(sizes, int | Iterable):
        raise UserError(f"{name} must be sides like [160, 224], got {sizes!r}")
    found = [sizes] if isinstance(sizes, int) else list(sizes)
    for size in found:
        sides = size if isinstance(size, list | tuple) and len(size) == 2 else (size,)
        for side in sides:
            check_count(name, side, at_least=1)
    return [tuple(size) if isinstance(size, list) else size for size in found]


def size_text(size: Size) -> str:
    """
    >>> size_text(224), size_text((192, 672)), size_text((224, 224))
    ('224', '192x672', '224')
    """
    height, width = (size, size) if isinstance(size, int) else size
    return str(height) if height == width else f"{height}x{width}"


def patch_fields(sizes: Sequence[int], model: Model) -> Sizes:
    """Patch sizes in pixels of the image as the field has them: a hybrid's patches are cut from the
    output of its stem, in which a pixel stands for `stride` of the image's."""
    config = model.config
    stride = config.stem_stride if isinstance(config, ViTConfig) else 1
    for size in sizes:
        if size % stride:
            raise UserError(
                f"patch_sizes must be multiples of {stride}, the stride of the model's stem, got "
                f"{size}"
            )
    return [(str(size), {"patch_size": size // stride}) for size in sizes]
