"""What each process of a test with several runs: arguments are out, kind, last step, resume,
objective."""

import sys
from contextlib import suppress
from pathlib import Path

from tests.train.test_parallel import steady
from tests.train.world import trainer
from vitrail.train.loop import Progress
from vitrail.train.parallel import joined, leave


class Enough(Exception):  # noqa: N818
    pass


def main() -> None:
    out, kind, stop, resume, objective = sys.argv[1:]
    with joined() as world:
        changes = steady(objective, Path(out).with_name("words"))
        run = trainer(Path(out), world=world, parallel=kind, **changes)

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
