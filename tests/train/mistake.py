"""What each process of a group runs in which one alone makes a mistake: its rank and how."""

import os
import signal
import sys

from vitrail import UserError
from vitrail.train.parallel import joined, leave, reported


def main() -> None:
    rank, how = int(sys.argv[1]), sys.argv[2]
    with reported(), joined() as world:
        world.wait()
        if world.rank == rank and how == "mistake":
            raise UserError("lr must be above 0, got -1: raise it")
        if world.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(1000):
            world.sum(1.0)  # where the others are by then


if __name__ == "__main__":
    main()
    leave(0)
