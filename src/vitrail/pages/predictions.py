"""Pages of what a model finds in images: predictions, nearest images, groups of duplicates."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from vitrail.pages.render import Section, render, render_page
from vitrail.pages.translation import count, page_text

MAX_SHOWN, MAX_LABELS = 200, 3  # images in a page: thumbnails of more would make it slow
MAX_GROUPS, MAX_IN_A_GROUP = 100, 12


@dataclass(frozen=True)
class ImageCard:
    """An image by name, with its thumbnail (data URI) or None; `labels` with probabilities, the
    most probable first; `score` is a similarity from -1 to 1."""

    name: str
    uri: str | None = None
    labels: Sequence[tuple[str, float]] = field(default=())
    score: float | None = None


def predictions_page(
    predictions: Sequence[ImageCard],
    *,
    model: str,
    broken: Mapping[str, str] | None = None,
) -> str:
    """Images with their most probable labels, the least certain first, and how often each label
    was predicted."""
    counted = Counter(one.labels[0][0] for one in predictions if one.labels)
    places = {label: place for place, label in enumerate(sorted(counted))}
    doubtful = sorted(predictions, key=lambda one: one.labels[0][1] if one.labels else 0.0)
    shown = [replace(one, labels=one.labels[:MAX_LABELS]) for one in doubtful[:MAX_SHOWN]]
    sections = [
        Section(
            "labels",
            "Predicted labels",
            render(
                "predicted_labels.html",
                rows=[(label, places[label], number) for label, number in counted.most_common()],
                total=len(predictions),
            ),
        ),
        Section(
            "images",
            "Images",
            render("predicted.html", shown=shown, places=places, total=len(predictions)),
        ),
        _broken_section(broken or {}),
    ]
    text = page_text("{} with the most probable labels.", count(len(predictions), "image"))
    lead = render("sentence.html", text=text, code="")
    return render_page(model or page_text("Predictions"), sections, kind="predictions", lead=lead)


def search_page(query: ImageCard, hits: Sequence[ImageCard], *, index: str) -> str:
    """The images of an index that are most similar to one."""
    sections = [
        Section("query", "Query", render("image_card.html", images=[query])),
        Section("hits", "Most similar images", render("image_card.html", images=hits)),
    ]
    text = page_text(
        "{}, by the cosine similarity of their features, of", count(len(hits), "image")
    )
    lead = render("sentence.html", text=text, code=index)
    return render_page(PurePath(query.name).name, sections, kind="search", lead=lead)


def duplicates_page(
    groups: Sequence[Sequence[ImageCard]], *, index: str, threshold: float, source: str
) -> str:
    """Groups of images whose features are nearly the same; `source` is where the threshold comes
    from."""
    body = render(
        "duplicates.html", groups=groups[:MAX_GROUPS], total=len(groups), most=MAX_IN_A_GROUP
    )
    images = sum(len(group) for group in groups)
    text = page_text(
        "{} in {} with a cosine similarity of at least {} ({}).",
        count(images, "image"),
        count(len(groups), "group"),
        f"{threshold:.6g}",
        page_text(source),
    )
    lead = render("sentence.html", text=text, code="")
    section = Section("groups", "Groups", body)
    return render_page(
        page_text("Duplicates in {}", index), [section], kind="duplicates", lead=lead
    )


def _broken_section(broken: Mapping[str, str]) -> Section:
    body = render("skipped.html", broken=broken)
    return Section("skipped", "Skipped images", body if broken else type(body)())
