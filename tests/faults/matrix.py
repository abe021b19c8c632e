"""Runs that are saved by some processes and continued by others:

python -m tests.faults.matrix FOLDER save|load
"""

import shutil
import sys
from functools import partial
from pathlib import Path

from tests.faults.worker import make_trainer
from tests.training.group import fork_group
from tests.training.many import run_to
from vitrail.training.world import World, process_group

STEPS, STOP = 6, 3
SETTINGS = {1: ("ddp",), 2: ("ddp", "fsdp"), 4: ("ddp", "fsdp", "hsdp")}
NAMES = tuple(f"{ranks}-{kind}" for ranks, kinds in SETTINGS.items() for kind in kinds)


def save(folder: Path, ranks: int) -> None:
    with process_group("cpu") as world:
        for kind in SETTINGS[ranks]:
            out = folder / f"{ranks}-{kind}"
            run_to(STOP, make_trainer(out, STEPS, kind, world))


def load(folder: Path, ranks: int) -> None:
    with process_group("cpu") as world:
        for kind in SETTINGS[ranks]:
            for source in NAMES:
                load_one(folder, source, f"{ranks}-{kind}", kind, world)


def load_one(folder: Path, source: str, target: str, kind: str, world: World) -> None:
    out = folder / f"{source}-to-{target}"
    if world.is_main:
        shutil.copytree(folder / source, out)
    world.wait()
    make_trainer(out, STEPS, kind, world).run(resume=True)


def main() -> None:
    folder, phase = Path(sys.argv[1]), sys.argv[2]
    work = {"save": save, "load": load}[phase]
    for ranks in SETTINGS:
        fork_group(folder, ranks, partial(work, folder, ranks))


if __name__ == "__main__":
    main()
