"""Runs of cases in groups of processes. Arguments are a directory, then a number of processes and
what that group computes, in turn: "case:kind" is stopped in the middle and resumed; "case:kind:3"
goes on from where another group has left it, up to step 3. The name of something that happens to
two processes comes before all of these."""

import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest.mock import patch

from tests.training.cases import STOP, case_trainer
from tests.training.group import fork_group
from tests.training.together import HAPPENINGS
from tests.training.world import unlabelled
from vitrail.training.loop import Trainer
from vitrail.training.progress import Progress
from vitrail.training.world import World, process_group


class Enough(Exception):  # noqa: N818
    pass


def run_to(step: int, run: Trainer) -> None:
    """Go on from where a run stands, and stop after a step."""

    def show(now: Progress) -> None:
        if now.step == step:
            run.save()
            run.saver.wait()
            raise Enough

    run.on_step = show
    with suppress(Enough):
        run.run(resume=True)


def compute(folder: Path, combinations: list[str]) -> None:
    # half precision is refused on such CPUs for being slow, not for being wrong
    with patch("vitrail.training.loop.check_precision"), process_group() as world:
        for combination in combinations:
            compute_one(folder, combination, world)
            told = f"[{world.rank}] {combination}: {time.process_time():.1f} s of processor time"
            print(told, file=sys.stderr, flush=True)


def compute_one(folder: Path, combination: str, world: World) -> None:
    case, kind, *stop = combination.split(":")
    out = folder / ("handed" if stop else kind) / case
    run_to(int(stop[0]) if stop else STOP, case_trainer(case, out, world=world, parallel=kind))
    if not stop:
        again = case_trainer(case, out, world=world, parallel=kind)
        again.run(resume=True)
        scales = world.gather(again.state.scaler.get_scale())
        assert len(set(scales)) == 1, scales


def main() -> None:
    folder = Path(sys.argv[1])
    unlabelled("beit", folder / "words")  # a tokenizer for all
    groups: list[tuple[int, list[str]]] = []
    for argument in sys.argv[2:]:
        if argument in HAPPENINGS:
            fork_group(folder, 2, partial(HAPPENINGS[argument], folder))
        elif argument.isdigit():
            groups.append((int(argument), []))
        else:
            groups[-1][1].append(argument)
    for processes, combinations in groups:
        fork_group(folder, processes, partial(compute, folder, combinations))


if __name__ == "__main__":
    main()
