"""The parts that a step is computed in, the same for all processes."""

from vitrail.train.parallel import World


class Parts:
    """How many images of each part of a step this process has, and `all` together."""

    def __init__(self, mine: list[int], world: World) -> None:
        self.mine = mine
        self.all = world.sums(mine)
        self.count = sum(self.all)
        self.last = max((number for number, size in enumerate(self.all) if size), default=-1)
