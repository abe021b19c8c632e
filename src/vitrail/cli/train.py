"""`vitrail train`: from a folder of images to a model."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.display import show_run
from vitrail.cli.run_options import RECIPE, RunOptions


@dataclass(frozen=True)
class Train(RunOptions):
    """What to train on, with what, and where the result goes."""

    data: str
    """Images with labels: class folders, a manifest, tars, arrays, IDX files, hf:owner/name,
    torchvision:NAME:ROOT, digits, planted or fashion-mnist."""
    _: KW_ONLY
    recipe: Annotated[str | None, Parameter(group=RECIPE)] = None
    """Recipe: small, tune, finetune, imagenet1k, imagenet21k, jft, deit, deit_distilled, swin,
    beit, mobilevit, or a recipe.yaml. [default: small, or tune with --from]"""
    folds: Annotated[int | None, Parameter(group=RECIPE)] = None
    """Cross-validation: a run for each of so many equal shares of the images, held out in turn."""
    native_resolution: Annotated[bool, Parameter(group=RECIPE)] = False
    """Keep the aspect ratio of images, and their size up to a number of patches; mixup and cutmix
    are off. For ViT, DeiT and DINOv2."""
    max_tokens: Annotated[int | None, Parameter(group=RECIPE)] = None
    """Patches that an image may have at native resolution. [default: those of the model's grid]"""


OWN = ("recipe", "folds", "native_resolution", "max_tokens")


def train(options: Train) -> None:
    """Train a model on labelled images. OUT gets the checkpoints best and last, and report.html.

    Examples:
      vitrail train photos --epochs 20
      vitrail train photos --from B_16.npz --lr find
    """
    from vitrail.tasks.train import train as run

    own = {name: getattr(options, name) for name in OWN}
    work = partial(run, options.data, **own, **options.arguments())
    show_run("train", options, work)
