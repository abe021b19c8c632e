"""`vitrail pretrain`: from a folder of images without labels to a model that knows images."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.display import show_run
from vitrail.cli.options import Out
from vitrail.cli.run_options import RECIPE, RunOptions


@dataclass(frozen=True)
class Pretrain(RunOptions):
    """What to learn from, by which objective, and where the result goes."""

    data: str
    """Images; labels are not read: any folder, a manifest, tars, arrays, IDX files, hf:owner/name,
    torchvision:NAME:ROOT, digits, planted or fashion-mnist."""
    _: KW_ONLY
    out: Out = None
    """Directory of the run. [default: runs/DATA-OBJECTIVE]"""
    objective: Annotated[
        Literal["masked-patch", "beit", "mae", "simmim", "tokenizer"] | None,
        Parameter(group=RECIPE),
    ] = None
    """What to predict of masked patches: mean colours (masked-patch), tokens of a tokenizer (beit),
    or pixels (mae, simmim); tokenizer trains a tokenizer. [default: mae]"""
    tokenizer: Annotated[str | None, Parameter(group=RECIPE)] = None
    """Checkpoint of the tokenizer for beit: ours, or DALL-E's encoder."""
    recipe: Annotated[str | None, Parameter(group=RECIPE)] = None
    """A recipe.yaml. [default: chosen for the data]"""


def pretrain(options: Pretrain) -> None:
    """Train a model on images without labels. Fine-tune it with vitrail train --from OUT/last.

    Examples:
      vitrail pretrain photos --objective mae
      vitrail pretrain photos --objective beit --tokenizer runs/photos-tokenizer/last
    """
    from vitrail.tasks.pretrain import pretrain as run

    own = {name: getattr(options, name) for name in ("objective", "tokenizer", "recipe")}
    show_run("pretrain", options, partial(run, options.data, **own, **options.arguments()))
