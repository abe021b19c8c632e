"""What each process of a test with several runs: arguments are a directory and "case:kind" each.
All runs are computed by one group, because starting one takes longer than any of them."""

import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from tests.train.cases import STOP, case_trainer
from tests.train.world import unlabelled
from vitrail.train.loop import Progress, Trainer
from vitrail.train.parallel import joined, leave


class Enough(Exception):  # noqa: N818
    pass


def stop_at(step: int, run: Trainer) -> None:
    def show(now: Progress) -> None:
        if now.step == step:
            run.save()
            raise Enough

    run.show = show


def main() -> None:
    folder, *combinations = sys.argv[1:]
    with joined() as world:
        if world.chief:
            unlabelled("beit", Path(folder) / "words")  # a tokenizer for all
        world.wait()
        for combination in combinations:
            case, kind = combination.split(":")
            out = Path(folder) / kind / case
            first = case_trainer(case, out, world=world, parallel=kind)
            stop_at(STOP, first)
            with suppress(Enough):
                first.run()
            again = case_trainer(case, out, world=world, parallel=kind)
            again.run(resume=True)
            scales = world.gather(again.state.scaler.get_scale())
            assert len(set(scales)) == 1, scales
            print(f"[{world.rank}] {combination}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # half precision is refused on such CPUs for being slow, not for being wrong
    with patch("vitrail.train.loop.check_precision"):
        main()
    leave(0)
