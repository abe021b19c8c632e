"""Memory of one of four processes with FSDP2 and with DDP, and how long a save holds up training.

Memory: each process builds the model as a run does, takes two steps of AdamW, and says by how much
its resident memory has grown at its peak. FSDP2 builds without memory, shards, then fills.

Saving: one process saves the state of a model with AdamW and an average, and takes a step: training
waits in `save`, and in the step until the tensors are copied. The comparison is the same save when
nothing is done meanwhile, as a loop does that waits for the disk.

    python -m benchmarks.sharded [--model vit_l_16] [--ranks 4] [--saves 3] [--side 224]
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed.fsdp  # with what follows: modules are no memory that a strategy needs
import torch.distributed.tensor
from tests.training.group import fork_group

import vitrail
from vitrail.data.augment import Augmentation
from vitrail.data.loader import Batch
from vitrail.data.source import Splits
from vitrail.data.sources import open_data
from vitrail.models.catalogue import find
from vitrail.training.loop import Trainer
from vitrail.training.prepare import prepare_task
from vitrail.training.recipe import Recipe, Schedule
from vitrail.training.world import World, process_group

SIDE = 32  # pixels: weights are what differs, not activations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_l_16")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--ddp-ranks",
        type=int,
        help="fewer, where memory is short: ddp needs as much in each, however many there are",
    )
    parser.add_argument("--kinds", nargs="+", choices=("ddp", "fsdp"), default=("ddp", "fsdp"))
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--side", type=int, default=224, help="pixels, of steps beside a save")
    parser.add_argument("--only", choices=("memory", "saving"))
    arguments = parser.parse_args()
    params = vitrail.info(arguments.model).measured.params
    print(f"{arguments.model}: {params:,} parameters; load {os.getloadavg()[0]:.1f}")
    open_data("digits")  # what it imports is no memory of a strategy
    if arguments.only != "saving":
        ranks = {"ddp": arguments.ddp_ranks or arguments.ranks, "fsdp": arguments.ranks}
        ranks = {kind: ranks[kind] for kind in arguments.kinds}
        compare_memory(arguments.model, ranks, params)
    if arguments.only != "memory":
        compare_saving(arguments.model, arguments.saves, arguments.side)


def recipe_of(model: str, kind: str, side: int = SIDE) -> Recipe:
    side = side if side % find(model).stride == 0 else 28  # type: ignore[attr-defined]
    return Recipe(
        data="digits",
        model=model,
        fields={"image_size": (side, side)},
        augmentation=Augmentation(),
        schedule=Schedule(steps=100),
        batch_size=8,
        parallel=kind,  # type: ignore[arg-type]
    )


def make_trainer(recipe: Recipe, out: Path, world: World | None) -> Trainer:
    digits = open_data("digits")
    splits = Splits({name: digits[name] for name in ("train", "val")})
    deferred = recipe.parallel != "ddp" and world is not None
    task = prepare_task(recipe, splits, lambda *_: ("accuracy", {}), deferred=deferred)
    return Trainer(task, out, world=world)


def batch_of(run: Trainer) -> Batch:
    how = run.model.passport.preprocessing
    mine = 8 // run.world.size
    places = np.arange(mine) * run.world.size + run.world.rank
    images = torch.randn(mine, len(how.mean), *how.size)
    targets = torch.eye(10)[torch.arange(mine) % 10]
    return Batch(images, targets, places, places=places, planned=8)


def compare_memory(model: str, ranks: dict[str, int], params: int) -> None:
    need = 20 * params * ranks.get("ddp", 0)  # weights, gradients, two numbers of AdamW, a margin
    free = available()
    if need > 0.8 * free:
        sys.exit(
            f"ddp with {ranks['ddp']} processes needs {need / 1e9:.0f} GB, {free / 1e9:.0f} GB are "
            "free: choose a smaller --model or fewer --ddp-ranks"
        )
    peaks = {}
    for kind, count in ranks.items():
        with tempfile.TemporaryDirectory() as folder:
            fork_group(Path(folder), count, partial(measure_rank, Path(folder), model, kind))
            found = [int(file.read_text()) for file in Path(folder).glob("rank-*")]
        peaks[kind] = max(found)
        print(f"{kind}: {peaks[kind] / 1e9:.2f} GB a process at its peak, of {count}", flush=True)
    if len(peaks) == 2:
        print(f"fsdp : ddp {peaks['fsdp'] / peaks['ddp']:.2f}")


def measure_rank(folder: Path, model: str, kind: str) -> None:
    torch.set_num_threads(1)
    with process_group("cpu") as world:
        with growing() as peak:
            run = make_trainer(recipe_of(model, kind), folder / "run", world)
            batch = batch_of(run)
            for _ in range(2):
                run.train_step(batch)
                run.step += 1
        (folder / f"rank-{world.rank}").write_text(str(peak[0]))


@contextmanager
def growing() -> Iterator[list[int]]:
    """By how many bytes of its own the memory of this process has grown at most."""
    before, peak, ended = resident(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            peak[0] = max(peak[0], resident() - before)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield peak
    ended.set()
    thread.join()


def resident() -> int:
    """Memory that is not a file's, and that a fork has not left shared."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def available() -> int:
    """Memory that processes can have without others losing theirs."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def compare_saving(model: str, saves: int, side: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        recipe = replace(recipe_of(model, "ddp", side), ema_decay=0.999)
        run = make_trainer(recipe, Path(folder), None)
        run.train_step(batch_of(run))
        size = sum(t.numel() * t.element_size() for t in run.state.tensors().values())
        stalls, whole, waited = [], [], [0.0]
        wait_copied = run.saver.wait_copied

        def timed() -> None:
            began = time.perf_counter()
            wait_copied()
            waited[0] = time.perf_counter() - began

        run.saver.wait_copied = timed  # type: ignore[method-assign]
        for step in range(1, saves + 2):
            began = time.perf_counter()
            run.saver.save(step, run.state, run.run_state)
            run.saver.wait()
            whole.append(time.perf_counter() - began)
            began = time.perf_counter()
            run.saver.save(step, run.state, run.run_state)
            saved = time.perf_counter() - began
            run.train_step(batch_of(run))
            stalls.append(saved + waited[0])
            run.saver.wait()
            assert run.saver.problem is None, run.saver.problem
    stall, total = median(stalls[1:]), median(whole[1:])
    print(
        f"saving {size / 1e9:.2f} GB: training waits {stall:.3f} s; the whole save takes "
        f"{total:.2f} s: {100 * stall / total:.1f} %"
    )


if __name__ == "__main__":
    main()
