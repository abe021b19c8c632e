"""The data doctor: examines every image for what would harm training."""

import time
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.core.randomness import permutation
from vitrail.data.bands import BandFormat, array_format, decode_bands, format_of, viewable
from vitrail.data.findings import (
    Broken,
    Colour,
    DuplicateGroup,
    Findings,
    ImageRef,
    Part,
    Sizes,
    tally,
)
from vitrail.data.images import FORMATS, BadImage, decode
from vitrail.data.likeness import SIDE, TINY, Thumbs, look_alikes, thumbnail
from vitrail.data.source import Raw, Source, Splits
from vitrail.data.threads import each

# Of images with sides beyond twice this every second, third, … pixel is enough for the colours
# and the thumbnail; what is hashed is always all of them.
ENOUGH = 512
BLANK = 2.0  # an image whose values deviate less than this, of 255, shows nothing
GREYS = ("1", "L", "LA", "I;16", "I")
FREQUENT = 8  # sizes that are listed with their count
SHOWN_GROUPS, SHOWN_IN_A_GROUP = 24, 6
SHOWN_CLASSES, SHOWN_SAMPLES, SHOWN_BLANK = 60, 160, 12
THUMBNAIL = 112  # pixels of the longer side on the page

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class ImageStatistics:
    """What was found in an image; mean and mean square of each channel are of 255."""

    size: tuple[int, int]
    mode: str
    content: bytes
    mean: tuple[float, ...]
    square: tuple[float, ...]
    grey: bool


class Album:
    """All images of all splits under one number each."""

    def __init__(self, splits: Splits) -> None:
        self.parts = splits.parts
        self.names = list(splits.parts)
        self.ends = list(accumulate(len(part) for part in splits.parts.values()))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def find(self, number: int) -> tuple[str, Source, int]:
        place = bisect_right(self.ends, number)
        name = self.names[place]
        part = self.parts[name]
        return name, part, number - self.ends[place] + len(part)

    def image(self, number: int) -> ImageRef:
        name, part, index = self.find(number)
        return ImageRef(name, index, part.name(index), label_of(part, index))


def examine(
    splits: Splits,
    source: str,
    *,
    threads: int | None = None,
    on_progress: OnProgress | None = None,
    seconds: float | None = None,
) -> Findings:
    """Decode every image and compare all with each other; `on_progress` gets how many are done, and
    how many there are.

    With `seconds` half of them go into reading images and half into comparing them: where the data
    set is too large for that a random sample is examined, and the findings say so.

    >>> from vitrail.data.sources import open_data
    >>> found = examine(open_data("digits"), "digits")
    >>> found.images, len(found.broken), found.modes
    (1797, 0, {'array L': 1797})
    """
    album = Album(splits)
    half = None if seconds is None else seconds / 2
    measured, thumbs, broken = measure_all(album, threads, on_progress, half)
    seen = len(measured) + len(broken)
    exact, near, not_compared = find_duplicates(album, measured, thumbs, half)
    samples = choose_samples(album, measured)
    colour = colour_of(album, measured)
    shown = [
        *(image for groups in (exact, near) for image in first_images(groups)),
        *samples,
        *(colour.blank[:SHOWN_BLANK] if colour else ()),
    ]
    return Findings(
        source=source,
        splits=tuple(part_of(album, place, broken) for place in range(len(album.names))),
        broken=tuple(Broken(album.image(number), why) for number, why in broken.items()),
        exact=exact,
        near=near,
        sizes=sizes_of([seen.size for seen in measured.values()]),
        modes=tally(seen.mode for seen in measured.values()),
        colour=colour,
        not_compared=not_compared,
        examined=None if seen == len(album) else seen,
        ignored=splits.ignored,
        samples=samples,
        thumbnails=draw(splits, shown, threads),
    )


def measure_all(
    album: Album, threads: int | None, on_progress: OnProgress | None, seconds: float | None
) -> tuple[dict[int, ImageStatistics], dict[int, Thumbs], dict[int, str]]:
    """Statistics of each image, its thumbnails, and why some images cannot be read."""
    measured: dict[int, ImageStatistics] = {}
    thumbs: dict[int, Thumbs] = {}
    broken: dict[int, str] = {}
    count, end = len(album), None if seconds is None else time.monotonic() + seconds
    # where the time may run out any beginning of the order is a random sample
    order = range(count) if end is None else permutation("examine", count, 0, 0).tolist()

    def at(place: int) -> tuple[ImageStatistics, Thumbs] | BadImage:
        _, part, index = album.find(order[place])
        try:
            return measure_image(part, index)
        except BadImage as problem:
            return problem

    for place, seen in enumerate(each(at, count, threads=threads)):
        number = order[place]
        if isinstance(seen, BadImage):
            broken[number] = seen.reason
        else:
            measured[number], thumbs[number] = seen
        if on_progress is not None:
            on_progress(place + 1, count)
        if end is not None and time.monotonic() > end:
            break
    return (
        {number: measured[number] for number in sorted(measured)},
        thumbs,
        {number: broken[number] for number in sorted(broken)},
    )


def measure_image(source: Source, index: int) -> tuple[ImageStatistics, Thumbs]:
    raw, name = source.read(index), source.name(index)
    found = format_of(raw, name) if isinstance(raw, bytes) else array_format(raw, name)
    if found is not None and not found.is_photo:
        return measure_bands(raw, name, found)
    if isinstance(raw, bytes) and found is None:
        pixels = decode(raw, name)
        with Image.open(BytesIO(raw), formats=FORMATS) as opened:  # only its header
            kind, mode = opened.format or "", opened.mode
    else:
        pixels = viewable(raw, name)
        pixels = np.ascontiguousarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
        kind, mode = "array", Image.fromarray(pixels[:1, :1]).mode
    return measure_pixels(pixels, digest(pixels), kind, mode)


def measure_bands(raw: Raw, name: str, found: BandFormat) -> tuple[ImageStatistics, Thumbs]:
    """Of an image that is no photo what can be seen of it; all of its values are compared."""
    values = raw
    if isinstance(raw, bytes):
        values = decode_bands(raw, name, bands=found.bands, bits=found.bits)
    seen, mode = viewable(values, name), f"{found.bands}x{found.bits}-bit"
    pixels = np.ascontiguousarray(seen[..., 0] if seen.shape[2:] == (1,) else seen)
    return measure_pixels(pixels, digest(np.ascontiguousarray(values)), "bands", mode)


def measure_pixels(
    pixels: NDArray[np.uint8], content: bytes, kind: str, mode: str
) -> tuple[ImageStatistics, Thumbs]:
    height, width = pixels.shape[:2]
    step = max(min(height, width) // ENOUGH, 1)
    image = Image.fromarray(pixels[::step, ::step])
    bands = np.array(image.histogram(), dtype=np.float64).reshape(-1, 256)[:3]
    shares = bands / bands[0].sum()
    values = np.arange(256)
    seen = ImageStatistics(
        size=(height, width),
        mode=f"{kind} {mode}",
        content=content,
        mean=tuple((shares @ values).tolist()),
        square=tuple((shares @ values**2).tolist()),
        grey=mode not in GREYS and bool((bands == bands[0]).all()),
    )
    return seen, thumbnail(image)


def digest(pixels: NDArray[Any]) -> bytes:
    """Of the shape too: the same values in another arrangement are another image."""
    state = sha256(str(pixels.shape).encode())  # which processors do in hardware
    state.update(pixels.data.cast("B"))
    return state.digest()


def find_duplicates(
    album: Album,
    measured: Mapping[int, ImageStatistics],
    thumbs: Mapping[int, Thumbs],
    seconds: float | None,
) -> tuple[tuple[DuplicateGroup, ...], tuple[DuplicateGroup, ...], int]:
    """Groups of images that agree in every pixel, and groups that look alike."""
    same: dict[bytes, list[int]] = {}
    for number, seen in measured.items():
        same.setdefault(seen.content, []).append(number)
    groups = list(same.values())
    exact = tuple(group_of(album, group) for group in groups if len(group) > 1)

    first = np.array([thumbs[group[0]] for group in groups], dtype=np.uint8)
    smallest = np.array([min(measured[group[0]].size) for group in groups], dtype=np.int64)
    first = first.reshape(-1, SIDE, SIDE)
    pairs, scores, not_compared = look_alikes(first, smallest, seconds=seconds)
    near = []
    for members, likeness in components(pairs, scores, len(groups)):
        numbers = sorted(number for member in members for number in groups[member])
        near.append(group_of(album, numbers, likeness))
    near.sort(key=lambda group: -group.likeness)
    return exact, tuple(near), not_compared


def group_of(album: Album, numbers: Sequence[int], likeness: float = 1.0) -> DuplicateGroup:
    return DuplicateGroup(tuple(album.image(number) for number in numbers), likeness)


def components(
    pairs: NDArray[np.int64], scores: NDArray[np.float32], count: int
) -> list[tuple[list[int], float]]:
    """What hangs together by pairs, and how much its least alike pair is alike.

    >>> components(np.array([[0, 2], [2, 3]]), np.array([0.9, 0.95], dtype=np.float32), 5)
    [([0, 2, 3], 0.9)]
    """
    from scipy.sparse import coo_array  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    if not len(pairs):
        return []
    links = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, group = connected_components(links, directed=False)
    least = np.ones(count)
    np.minimum.at(least, group[pairs[:, 0]], scores)
    members: dict[int, list[int]] = {int(number): [] for number in group[pairs[:, 0]]}
    for member in np.unique(pairs):
        members[int(group[member])].append(int(member))
    # only what agrees in every pixel is 1
    return [(mine, min(round(float(least[g]), 3), 0.999)) for g, mine in members.items()]


def label_of(source: Source, index: int) -> str:
    if source.targets is None:
        return ""
    target = source.targets[index]
    if np.ndim(target):
        return "|".join(source.labels[place] for place in np.flatnonzero(target))
    return source.labels[int(target)]


def part_of(album: Album, place: int, broken: Mapping[int, str]) -> Part:
    name = album.names[place]
    part, end = album.parts[name], album.ends[place]
    start = end - len(part)
    good = np.ones(len(part), dtype=np.bool_)
    good[[number - start for number in broken if start <= number < end]] = False
    if part.targets is None:
        counts = np.empty(0, dtype=np.int64)
    elif part.targets.ndim == 2:
        counts = part.targets[good].astype(np.int64).sum(axis=0)
    else:
        counts = np.bincount(part.targets[good], minlength=len(part.labels))
    classes = dict(zip(part.labels, counts.tolist(), strict=True))
    return Part(name, len(part), int((~good).sum()), classes)


def sizes_of(sizes: Sequence[tuple[int, int]]) -> Sizes | None:
    if not sizes:
        return None
    sides = np.array(sizes)
    low, middle, high = (
        (int(side[0]), int(side[1]))
        for side in (sides.min(axis=0), np.median(sides, axis=0), sides.max(axis=0))
    )
    counts = tally(f"{height}x{width}" for height, width in sizes)
    frequent = dict(list(counts.items())[:FREQUENT])
    return Sizes(low, middle, high, frequent, different=len(counts))


def colour_of(album: Album, measured: Mapping[int, ImageStatistics]) -> Colour | None:
    """Of grey data sets one channel, of others three; nothing of bands, which are no colours."""
    if not measured or any(seen.mode.startswith("bands ") for seen in measured.values()):
        return None
    channels = 1 if all(seen.mode.split()[1] in GREYS for seen in measured.values()) else 3
    means, squares = (
        np.array([np.resize(values, channels) for values in column])
        for column in zip(*((seen.mean, seen.square) for seen in measured.values()), strict=True)
    )
    blank = np.flatnonzero((squares - means**2).max(axis=1) < BLANK**2)
    numbers = list(measured)
    mean = means.mean(axis=0)
    std = np.sqrt(np.maximum(squares.mean(axis=0) - mean**2, 0))
    return Colour(
        mean=tuple(np.round(mean / 255, 4).tolist()),
        std=tuple(np.round(std / 255, 4).tolist()),
        grey=sum(seen.grey for seen in measured.values()),
        blank=tuple(album.image(numbers[place]) for place in blank),
    )


def choose_samples(album: Album, measured: Mapping[int, ImageStatistics]) -> tuple[ImageRef, ...]:
    """Some images of each class of the first split, evenly from its beginning to its end."""
    if not album.names:
        return ()
    part = album.parts[album.names[0]]
    good = np.array([number for number in measured if number < len(part)], dtype=np.int64)
    if part.targets is None:
        groups = [good]
    else:
        rows = part.targets[good]
        groups = [
            good[rows[:, place] > 0] if rows.ndim == 2 else good[rows == place]
            for place in range(min(len(part.labels), SHOWN_CLASSES))
        ]
    each_class = min(max(SHOWN_SAMPLES // max(len(groups), 1), 2), 24 if len(groups) == 1 else 8)
    return tuple(
        album.image(int(group[place]))
        for group in groups
        for place in np.unique(np.linspace(0, len(group) - 1, each_class).astype(int))
        if len(group)
    )


def first_images(duplicates: Sequence[DuplicateGroup]) -> list[ImageRef]:
    """What the page shows of many groups: the first of each kind, and the first of each group."""
    kinds = (
        duplicates,
        [group for group in duplicates if len(group.splits) > 1],
        [group for group in duplicates if len(group.labels) > 1],
    )
    return [
        image
        for groups in kinds
        for group in groups[:SHOWN_GROUPS]
        for image in group.images[:SHOWN_IN_A_GROUP]
    ]


def draw(splits: Splits, images: Sequence[ImageRef], threads: int | None) -> dict[str, str]:
    """Data URIs of small images, by name."""
    wanted = list({image.name: image for image in images}.values())

    def data_uri(number: int) -> str:
        image = wanted[number]
        raw = splits[image.split].read(image.index)
        seen = viewable(raw, image.name, at_least=(THUMBNAIL, THUMBNAIL))
        small = Image.fromarray(seen[..., 0] if seen.shape[2:] == (1,) else seen)
        tiny = min(small.size) < TINY  # small enough to be shown as it is
        small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BICUBIC)
        kind, file = "png" if tiny else "jpeg", BytesIO()
        small.convert("L" if small.mode == "L" else "RGB").save(file, kind, quality=80)
        return f"data:image/{kind};base64,{b64encode(file.getvalue()).decode()}"

    uris = each(data_uri, len(wanted), threads=threads)
    return {image.name: uri for image, uri in zip(wanted, uris, strict=True)}
