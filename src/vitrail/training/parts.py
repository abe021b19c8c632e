"""The parts that a step is computed in, the same for all processes."""

from torch import nn

from vitrail.training.world import World


class Parts:
    """How many images of each part of a step this process has, and `all` together."""

    def __init__(self, mine: list[int], world: World, *, least: int = 1) -> None:
        whole = [int(size) for size in world.sums(mine)]
        self.mine, self.all = join_small(mine, whole, least)
        self.count = sum(self.all)
        self.last = max((number for number, size in enumerate(self.all) if size), default=-1)


def join_small(mine: list[int], whole: list[int], least: int) -> tuple[list[int], list[int]]:
    """Parts with fewer than `least` images, but some, are computed with the next part that has any,
    or with the one before; `mine` are of the `whole`, and both keep their order.

    >>> join_small([1, 0, 4, 1], [1, 0, 8, 1], 2)
    ([0, 0, 6, 0], [0, 0, 10, 0])
    """
    mine, whole = mine.copy(), whole.copy()
    for number in range(len(whole)):
        if not 0 < whole[number] < least:
            continue
        others = (*range(number + 1, len(whole)), *reversed(range(number)))
        other = next((other for other in others if whole[other]), None)
        if other is not None:
            for sizes in (mine, whole):
                sizes[other] += sizes[number]
                sizes[number] = 0
    return mine, whole


def fewest_images(module: nn.Module) -> int:
    """How many images a part must have for every layer to learn from it."""
    return 2 if any(isinstance(part, nn.BatchNorm2d) for part in module.modules()) else 1
