"""What each process of a test with several runs: arguments are out, kind, last step, resume,
objective."""

import sys
from contextlib import suppress
from pathlib import Path

from tests.train.test_parallel import STEADY
from tests.train.world import trainer
from vitrail.train.loop import Progress
from vitrail.train.parallel import joined, leave
from vitrail.train.recipe import Goal


class Enough(Exception):  # noqa: N818
    pass


def main() -> None:
    out, kind, stop, resume, objective = sys.argv[1:]
    with joined() as world:
        goal = Goal(objective=objective)  # type: ignore[arg-type]
        run = trainer(Path(out), world=world, parallel=kind, goal=goal, **STEADY)

        def show(now: Progress) -> None:
            if now.step == int(stop) < now.total:
                run.save()
                raise Enough

        run.show = show
        with suppress(Enough):
            run.run(resume=bool(int(resume)))


if __name__ == "__main__":
    main()
    leave(0)
