"""What each process of a group runs in which one makes a mistake, or all: its rank, or all, and
how."""

import os
import signal
import sys

from vitrail import UserError
from vitrail.training.launcher import exit_now, report_errors
from vitrail.training.world import process_group


def main() -> None:
    which, how = sys.argv[1:]
    with report_errors(), process_group() as world:
        world.wait()
        chosen = which in ("all", str(world.rank))
        if chosen and how == "mistake":
            raise UserError("lr must be above 0, got -1: raise it")
        if chosen:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(1000):
            world.sum(1.0)  # where the others are by then


if __name__ == "__main__":
    main()
    exit_now(0)
