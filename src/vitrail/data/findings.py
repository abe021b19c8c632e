"""What the doctor found: a record that prints as text and as JSON."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from vitrail.core.json_text import plain_values

MOST_BROKEN, MOST_GROUPS = 50, 10  # lines in the printed text: JSON has all


@dataclass(frozen=True)
class ImageRef:
    """One image: its split, index and name, and its label: "" without labels, "cat|dog" for two."""

    split: str
    index: int
    name: str
    label: str = ""


@dataclass(frozen=True)
class Broken:
    """An image that cannot be decoded, and why."""

    image: ImageRef
    reason: str


@dataclass(frozen=True)
class DuplicateGroup:
    """Images that show the same: `likeness` is 1 where every pixel agrees, less where they only
    look alike."""

    images: tuple[ImageRef, ...]
    likeness: float = 1.0

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(image.split for image in self.images))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(image.label for image in self.images))


@dataclass(frozen=True)
class Part:
    """One split: its images, those that are broken, and how many of the others each class has."""

    name: str
    images: int
    broken: int
    classes: Mapping[str, int]

    @property
    def empty(self) -> tuple[str, ...]:
        """Classes without an image that can be used."""
        return tuple(name for name, count in self.classes.items() if not count)

    @property
    def imbalance(self) -> float | None:
        """How many times larger the largest class is than the smallest that is not empty."""
        counts = [count for count in self.classes.values() if count]
        return max(counts) / min(counts) if counts else None


@dataclass(frozen=True)
class Sizes:
    """Pixels: smallest, median and largest (height, width), each side for itself, and the most
    frequent sizes."""

    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]
    frequent: Mapping[str, int]
    different: int


@dataclass(frozen=True)
class Colour:
    """Mean and standard deviation of red, green and blue, from 0 to 1, each image counting the
    same; how many images are colour files without colour; and those that show nothing at all."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    grey: int
    blank: tuple[ImageRef, ...]


@dataclass(frozen=True)
class Findings:
    """Everything the doctor found in a data set."""

    source: str
    splits: tuple[Part, ...]
    broken: tuple[Broken, ...]
    exact: tuple[DuplicateGroup, ...]
    near: tuple[DuplicateGroup, ...]
    sizes: Sizes | None
    modes: Mapping[str, int]
    colour: Colour | None
    not_compared: int = 0
    """Pairs that might look alike but were too many to compare."""
    examined: int | None = None
    """Images that were decoded and compared, where that was a sample; None where it was all."""
    ignored: tuple[str, ...] = ()
    """Files between the images that are no images."""
    samples: tuple[ImageRef, ...] = ()
    """Some images of each class, to look at."""
    thumbnails: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Data URIs of the images that the page shows, by name."""

    @property
    def images(self) -> int:
        return sum(part.images for part in self.splits)

    @property
    def sample(self) -> str:
        """What a sample means for what was found; "" where every image was examined."""
        if self.examined is None:
            return ""
        return (
            f"a random sample of {self.examined:,} of {count(self.images, 'image')} was examined: "
            "broken images and duplicates outside of it are not in here"
        )

    @cached_property
    def leaks(self) -> tuple[DuplicateGroup, ...]:
        """Duplicates in different splits: a model is tested on what it was trained on."""
        return tuple(group for group in (*self.exact, *self.near) if len(group.splits) > 1)

    @cached_property
    def conflicts(self) -> tuple[DuplicateGroup, ...]:
        """Duplicates with different labels, of which at most one is right."""
        return tuple(group for group in (*self.exact, *self.near) if len(group.labels) > 1)

    @cached_property
    def leaked(self) -> dict[str, int]:
        """For every split but the first, how many images have a duplicate in an earlier one."""
        order = [part.name for part in self.splits]
        seen: dict[str, set[int]] = {name: set() for name in order[1:]}
        for group in self.leaks:
            first = min(order.index(split) for split in group.splits)
            for image in group.images:
                if order.index(image.split) > first:
                    seen[image.split].add(image.index)
        return {split: len(indices) for split, indices in seen.items()}

    def short(self, name: str) -> str:
        """A name as seen from the data set."""
        return name.removeprefix(f"{self.source.rstrip('/')}/")

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON: all but the images themselves."""
        facts = {**asdict(self), "images": self.images}
        del facts["thumbnails"], facts["samples"]
        for part, row in zip(self.splits, facts["splits"], strict=True):
            row |= {"empty": part.empty, "imbalance": part.imbalance}
        facts["leaked"] = self.leaked
        facts["leaks"] = [asdict(group) for group in self.leaks]
        facts["conflicts"] = [asdict(group) for group in self.conflicts]
        return plain_values(facts)

    def __repr__(self) -> str:
        images = f"{count(self.images, 'image')}, {len(self.broken):,} broken"
        return f"{type(self).__name__}({self.source}, {images})"

    def text(self) -> str:
        """What a person reads in a terminal; nothing in a file's name steers it."""
        lines = (line for lines in _paragraphs(self) for line in lines)
        return "\n".join(
            "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
            for line in lines
        )


def _paragraphs(found: Findings) -> Iterator[list[str]]:
    yield [f"{found.source}: {count(found.images, 'image')}"]
    if found.sample:
        yield [f"  {found.sample}"]
    for part in found.splits:
        yield [f"  {part.name:15}{_describe(part)}"]
    if found.ignored:
        yield [f"not images       {count(len(found.ignored), 'file')}: {some(found.ignored)}"]
    yield ["", f"broken           {count(len(found.broken), 'image') if found.broken else 'none'}"]
    lines = [f"  {found.short(bad.image.name)}: {bad.reason}" for bad in found.broken]
    yield _listed(lines, MOST_BROKEN)
    for title, groups in (("duplicates", found.exact), ("near-duplicates", found.near)):
        yield [f"{title:17}{_count_groups(groups)}"]
        yield _listed([f"  {_format_group(found, group)}" for group in groups], MOST_GROUPS)
    if found.not_compared:
        yield [f"                 {count(found.not_compared, 'more pair')} not compared: too many"]
    if len(found.splits) > 1:
        yield [f"leakage          {leakage(found)}"]
    yield [f"labels           {_count_conflicts(found)}"]
    if found.sizes is not None:
        yield [f"sizes            {format_sizes(found.sizes)}"]
    yield [f"modes            {', '.join(f'{mode} {n:,}' for mode, n in found.modes.items())}"]
    if found.colour is not None:
        yield [
            f"colour           mean {numbers(found.colour.mean)}, std {numbers(found.colour.std)}"
        ]
        yield [f"                 {notes}"] if (notes := colour_notes(found.colour)) else []


def _describe(part: Part) -> str:
    words = [f"{part.images:,}"]
    if part.classes:
        words.append(count(len(part.classes), "class"))
    if part.imbalance is not None:
        low = min(number for number in part.classes.values() if number)
        high = max(part.classes.values())
        range_text = f"{low:,} to {high:,} each, {part.imbalance:.1f}x"
        words.append(f"{low:,} each" if low == high else range_text)
    if part.empty:
        words.append(f"empty: {some(part.empty)}")
    return ", ".join(words)


def _listed(lines: list[str], most: int) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[:most], f"  and {len(lines) - most:,} more, in the report and the JSON"]


def _count_groups(groups: tuple[DuplicateGroup, ...]) -> str:
    if not groups:
        return "none"
    images = sum(len(group.images) for group in groups)
    return f"{count(images, 'image')} in {count(len(groups), 'group')}"


def _format_group(found: Findings, group: DuplicateGroup) -> str:
    """The names, with labels where they disagree and with splits where they are several."""
    named = []
    for image in group.images[:8]:
        facts = [image.split] if len(group.splits) > 1 else []
        facts += [image.label] if len(group.labels) > 1 else []
        name = found.short(image.name)
        named.append(f"{name} ({', '.join(facts)})" if facts else name)
    more = f" and {len(group.images) - 8:,} more" if len(group.images) > 8 else ""
    return (" = " if group.likeness == 1 else " ~ ").join(named) + more


def leakage(found: Findings) -> str:
    """One sentence on how many images of one split are known from another."""
    totals = {part.name: part.images for part in found.splits}
    named = [f"{n:,} of {totals[split]:,} in {split}" for split, n in found.leaked.items() if n]
    if not named:
        return "none: no image has a duplicate in another split"
    return f"with a duplicate in an earlier split: {', '.join(named)}"


def _count_conflicts(found: Findings) -> str:
    if not any(part.classes for part in found.splits):
        return "no class folders"
    if not found.conflicts:
        return "no duplicates with different labels"
    return f"{count(len(found.conflicts), 'group')} of duplicates with different labels"


def colour_notes(colour: Colour) -> str:
    words = []
    if colour.grey:
        words.append(f"{count(colour.grey, 'greyscale image')} stored as RGB")
    if colour.blank:
        words.append(f"{count(len(colour.blank), 'image')} of one colour only")
    return ", ".join(words)


def count(number: int, thing: str) -> str:
    """
    >>> count(1, "image"), count(2000, "class")
    ('1 image', '2,000 classes')
    """
    plural = f"{thing}es" if thing.endswith("s") else f"{thing}s"
    return f"{number:,} {thing if number == 1 else plural}"


def some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def format_sizes(sizes: Sizes) -> str:
    low, middle, high = (f"{h}x{w}" for h, w in (sizes.smallest, sizes.median, sizes.largest))
    return f"{low} to {high}, median {middle} (height x width)" if low != high else f"all {low}"


def numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def tally(values: Iterator[str]) -> dict[str, int]:
    """How often each value occurs, the most frequent first."""
    return dict(sorted(Counter(values).items(), key=lambda item: (-item[1], item[0])))
