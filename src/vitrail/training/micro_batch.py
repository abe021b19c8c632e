"""Batches that do not fit into memory: computed in more parts, of the same images."""

import json
from pathlib import Path

from vitrail.core.errors import UserError
from vitrail.data.loader import Batch
from vitrail.training.world import World
from vitrail.weights.atomic import write_file
from vitrail.weights.files import read_json

FILE = "accumulate.json"  # how many parts a run was found to need, for when it is resumed


def read_accumulate(out: Path, accumulate: int, world: World) -> int:
    """In how many parts a step is computed: as the recipe has it, or as memory has shown since."""
    found = accumulate
    if world.is_main and (out / FILE).is_file():
        found = max(int(read_json(out / FILE)["accumulate"]), accumulate)
    return world.from_main(found)


def more_parts(accumulate: int, batch: Batch, out: Path, world: World) -> int:
    """Twice as many parts. Where there are other processes, which wait in the middle of the step,
    the run ends, and is started again with them."""
    parts = 2 * accumulate
    if parts * world.size > max(batch.planned, 1):
        raise UserError(
            "not even one image at a time fits into memory: use a smaller model or image_size, set "
            "checkpointing=true, or share the weights with parallel=fsdp"
        )

    def fill(path: Path) -> None:
        path.write_text(json.dumps({"accumulate": parts}) + "\n", encoding="utf-8")

    write_file(out / FILE, fill, overwrite=True)
    if world.size > 1:
        raise UserError(
            f"process {world.rank} ran out of memory: resume the run, which computes batches in "
            f'{parts} parts then (torchrun does so by itself, with restarts and resume="auto")'
        )
    return parts
