"""Pages of predictions, search results and duplicates, with thumbnails of the images."""

from collections.abc import Iterable, Sequence

from vitrail.data.bands import viewable
from vitrail.data.images import BadImage
from vitrail.data.pixels import file_bytes
from vitrail.inference.nearest import Match, Pair
from vitrail.inference.predict import Prediction
from vitrail.pages.predictions import (
    MAX_GROUPS,
    MAX_IN_A_GROUP,
    MAX_SHOWN,
    ImageCard,
    duplicates_page,
    predictions_page,
    search_page,
)
from vitrail.pages.thumbnails import data_uri


def thumbnail(name: str) -> str | None:
    """A file or an address as a data URI; None where it cannot be read."""
    try:
        return data_uri(viewable(file_bytes(name), name))
    except BadImage:
        return None


def show_predictions(predictions: Sequence[Prediction], model: str) -> str:
    broken = {one.name: one.problem for one in predictions if one.problem is not None}
    read = [one for one in predictions if one.problem is None]
    doubtful = sorted(read, key=lambda one: one.top[0][1])[:MAX_SHOWN]  # those the page shows
    uris = {one.name: thumbnail(one.name) for one in doubtful}
    cards = [ImageCard(one.name, uris.get(one.name), one.top) for one in read]
    return predictions_page(cards, model=model, broken=broken)


def show_matches(query: str, matches: Iterable[Match], index: str) -> str:
    hits = [ImageCard(one.id, thumbnail(one.id), score=one.cosine) for one in matches]
    return search_page(ImageCard(query, thumbnail(query)), hits, index=index)


def show_duplicates(pairs: Sequence[Pair], index: str, threshold: float, source: str) -> str:
    nearest: dict[str, float] = {}
    for pair in pairs:
        for name in (pair.one, pair.other):
            nearest[name] = max(pair.cosine, nearest.get(name, -1.0))
    groups = [
        [
            ImageCard(
                name,
                thumbnail(name) if shown and place < MAX_IN_A_GROUP else None,
                score=nearest[name],
            )
            for place, name in enumerate(group)
        ]
        for number, group in enumerate(group_pairs(pairs))
        for shown in [number < MAX_GROUPS]
    ]
    return duplicates_page(groups, index=index, threshold=threshold, source=source)


def group_pairs(pairs: Iterable[Pair]) -> list[list[str]]:
    """Images that are linked by pairs, the largest group first.

    >>> group_pairs([Pair("a", "b", 1.0), Pair("c", "d", 1.0), Pair("b", "e", 1.0)])
    [['a', 'b', 'e'], ['c', 'd']]
    """
    group_of: dict[str, list[str]] = {}
    for pair in pairs:
        one = group_of.setdefault(pair.one, [pair.one])
        other = group_of.setdefault(pair.other, [pair.other])
        if one is not other:
            one.extend(other)
            group_of.update(dict.fromkeys(other, one))
    groups = {id(group): group for group in group_of.values()}
    return sorted(map(sorted, groups.values()), key=lambda group: (-len(group), group))
