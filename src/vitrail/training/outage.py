"""A run stops when too many of its images cannot be used, instead of training on the rest."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitrail.data.images import BadImage, Unreadable
from vitrail.training.run_state import RunState


class OutageError(Exception):
    """Too many images cannot be used: the run is saved and stops."""


LONGEST_PAUSE = 60.0  # seconds between two attempts to read
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


def why_stop(
    run_state: RunState,
    found: Sequence[BadImage],
    epoch: int,
    step: int,
    counts: tuple[int, int],
    share: float,
) -> str | None:
    """Why too many images were `found` broken in a step, or in its epoch so far; else they are
    remembered. `counts` are images that the step could read, and all training images. An image
    that is drawn several times (goal.balance, augmentation.repeats) counts once."""
    read, images = counts
    in_step = dict.fromkeys(bad.path for bad in found)
    if lost_in_step(len(in_step), read, share):
        return sentence(f"images of step {step}", len(found), len(found) + read, share, found)
    before = dict.fromkeys(run_state.lost_images if run_state.lost_epoch == epoch else ())
    in_epoch = before | in_step
    if lost_too_many(len(in_epoch), images, share):
        return sentence("training images", len(in_epoch), images, share, found)
    run_state.lost_images, run_state.lost_epoch = list(in_epoch), epoch
    run_state.broken |= {bad.path: bad.reason for bad in found}
    return None


@dataclass
class Waiting:
    """Storage that does not answer is waited for, longer each time, `minutes` in all."""

    minutes: float
    waited: float = 0.0
    pause: float = 1.0

    def wait(self, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Whether there was time left to wait; it has passed then.

        >>> waiting = Waiting(minutes=0.1)
        >>> [waiting.wait(lambda seconds: print(f"{seconds:g} s")) for _ in range(4)]
        1 s
        2 s
        3 s
        [True, True, True, False]
        """
        left = 60 * self.minutes - self.waited
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
