"""A run stops when too many of its images cannot be used, instead of training on the rest."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from vitrail.data.images import BadImage, Unreadable
from vitrail.training.run_state import RunState


class OutageError(Exception):
    """Too many validation images cannot be used: the run is saved and stops, unless its `storage`
    answers again in time."""

    def __init__(self, why: str, *, storage: bool) -> None:
        super().__init__(why)
        self.storage = storage


LONGEST_PAUSE = 60.0  # seconds between two attempts to read
BRIEF = 0.5  # minutes to wait for a few images, without which a run could go on
FEW = 5  # images that no data set is stopped for


def lost_too_many(lost: int, images: int, share: float) -> bool:
    """Whether so many of the images of an epoch, or of validation, are more than a share allows.

    >>> lost_too_many(3, 50, 0.01), lost_too_many(20, 1000, 0.01)
    (False, True)
    """
    return lost > max(FEW, share * images)


def lost_in_step(lost: int, read: int, share: float) -> bool:
    """Whether one step alone tells: it has no image left, or more are lost than read."""
    return not read or lost > max(FEW, max(share, 0.5) * (lost + read))


@dataclass(frozen=True)
class Lost:
    """The images of a step that cannot be used, and why there are too many of them, if so. An image
    that is drawn several times (goal.balance, augmentation.repeats) counts once."""

    found: Sequence[BadImage]
    epoch: int
    in_epoch: Sequence[str]  # so far
    why_stop: str | None

    def remember(self, run_state: RunState) -> None:
        """Go on without them."""
        if self.found or run_state.lost_epoch != self.epoch:
            run_state.lost_images, run_state.lost_epoch = list(self.in_epoch), self.epoch
            run_state.broken |= {bad.path: bad.reason for bad in self.found}

    def may_return(self, known: Collection[str]) -> bool:
        """Whether storage did not answer that has answered before: an image that is `known` to be
        lost is not waited for again."""
        if self.why_stop is not None:
            return is_storage(self.found)
        return is_storage([bad for bad in self.found if bad.path not in known])

    def wait(self, waiting: "Waiting", known: Collection[str], step: int) -> bool:
        """Whether storage that does not answer was waited for, so that the step is to be read
        again. Too many images at the first step are a mistake rather than an outage."""
        if not self.may_return(known) or (self.why_stop is not None and not step):
            return False
        return waiting.wait(at_most=math.inf if self.why_stop is not None else BRIEF)


def count_lost(
    run_state: RunState,
    found: Sequence[BadImage],
    epoch: int,
    step: int,
    counts: tuple[int, int],
    share: float,
) -> Lost:
    """What images `found` broken in a step mean for it, and for its epoch so far. `counts` are
    images that the step could read, and all training images."""
    read, images = counts
    in_step = dict.fromkeys(bad.path for bad in found)
    before = dict.fromkeys(run_state.lost_images if run_state.lost_epoch == epoch else ())
    in_epoch, why = tuple(before | in_step), None
    if lost_in_step(len(in_step), read, share):
        why = sentence(f"images of step {step}", len(found), len(found) + read, share, found)
    elif lost_too_many(len(in_epoch), images, share):
        why = sentence("training images", len(in_epoch), images, share, found)
    return Lost(found, epoch, in_epoch, why)


@dataclass
class Waiting:
    """Storage that does not answer is waited for, longer each time, `minutes` in all."""

    minutes: float
    waited: float = 0.0
    pause: float = 1.0

    def wait(
        self, sleep: Callable[[float], None] = time.sleep, *, at_most: float = math.inf
    ) -> bool:
        """Whether there was time left to wait, `at_most` so many minutes; it has passed then.

        >>> waiting = Waiting(minutes=0.1)
        >>> [waiting.wait(lambda seconds: print(f"{seconds:g} s")) for _ in range(4)]
        1 s
        2 s
        3 s
        [True, True, True, False]
        """
        left = 60 * min(self.minutes, at_most) - self.waited
        pause = min(self.pause, left)
        if pause <= 0:
            return False
        sleep(pause)
        self.waited, self.pause = self.waited + pause, min(2 * self.pause, LONGEST_PAUSE)
        return True


def is_storage(found: Sequence[BadImage]) -> bool:
    """Whether images are lost because their storage does not answer; a damaged file stays so."""
    return any(isinstance(bad, Unreadable) for bad in found)


def sentence(what: str, lost: int, images: int, share: float, found: Sequence[BadImage]) -> str:
    """Why a run stops, with one of the images that it stops for."""
    unread = next((bad for bad in found if isinstance(bad, Unreadable)), None)
    example = unread or next(iter(found), None)
    such_as = "" if example is None else f" (such as {example})"
    cause = "the storage" if unread is not None else "the images"
    return (
        f"{lost:,} of {images:,} {what} cannot be used{such_as}, but max_broken is {share:g}: "
        f"check {cause}"
    )
