"""A run stops when too many of its images cannot be used, instead of training on the rest."""

from collections.abc import Sequence

from vitrail.data.images import BadImage, Unreadable

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


def sentence(what: str, lost: int, images: int, share: float, found: Sequence[BadImage]) -> str:
    """Why a run stops, with one of the images that it stops for."""
    unread = next((bad for bad in found if isinstance(bad, Unreadable)), None)
    example = unread or next(iter(found), None)
    told = "" if example is None else f" (such as {example})"
    cause = "the storage" if unread is not None else "the images"
    return (
        f"{lost:,} of {images:,} {what} cannot be used{told}, but max_broken is {share:g}: check "
        f"{cause}"
    )
