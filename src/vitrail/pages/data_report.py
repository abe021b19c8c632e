"""What the data doctor found in a data set, as a page or as a part of another one."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from vitrail.pages.render import Section, render, render_page
from vitrail.pages.translation import count, page_text

MAX_GROUPS, MAX_IN_A_GROUP, MAX_BLANK, MAX_IGNORED = 24, 6, 12, 200
UNBALANCED = 10  # times larger than the smallest class: worth a word

Facts = Mapping[str, Any]


def data_page(facts: Facts, *, samples: Sequence[Facts], thumbnails: Mapping[str, str]) -> str:
    """`facts` is what doctor.json holds, `samples` are images to look at, `thumbnails` their data
    URIs by name."""
    lead, sections = _parts(facts, samples, thumbnails)
    return render_page(str(facts["source"]), sections, kind="data report", lead=lead)


def data_body(facts: Facts, *, samples: Sequence[Facts], thumbnails: Mapping[str, str]) -> Markup:
    """The same within the section of another page."""
    lead, sections = _parts(facts, samples, thumbnails)
    parts = [
        Markup("<h3>{}</h3>\n{}").format(page_text(section.title), section.body)
        for section in sections
        if section.body.strip()
    ]
    return lead + Markup("").join(parts)


def _parts(
    facts: Facts, samples: Sequence[Facts], thumbnails: Mapping[str, str]
) -> tuple[Markup, list[Section]]:
    other = _keys([*facts["leaks"], *facts["conflicts"]])

    def groups(twins: Sequence[Facts], note: str) -> Markup:
        if not twins:
            return Markup()
        values = {"groups": twins[:MAX_GROUPS], "more": len(twins) - MAX_GROUPS, "note": note}
        return render("duplicate_groups.html", **values, **shared, most=MAX_IN_A_GROUP)

    shared = {"root": f"{str(facts['source']).rstrip('/')}/", "thumbnails": thumbnails}
    exact, near = (
        [group for group in facts[kind] if not _keys([group]) & other] for kind in ("exact", "near")
    )
    alike = page_text("Resized, compressed again, brightened or slightly cropped")
    if facts["not_compared"]:
        pairs = count(facts["not_compared"], "more pair")
        alike += page_text("; {} not compared, too many", pairs)
    sections = [
        Section("broken", "Broken images", _broken(facts, shared)),
        Section("leakage", "Leakage between splits", groups(facts["leaks"], leakage(facts))),
        Section(
            "conflicts",
            "Duplicates with different labels",
            groups(facts["conflicts"], page_text("At most one label is right.")),
        ),
        Section(
            "exact",
            "Other exact duplicates",
            groups(exact, page_text("Every pixel agrees once decoded.")),
        ),
        Section("near", "Other near duplicates", groups(near, f"{alike}.")),
        Section("data-classes", "Classes of the data", _classes(facts, samples, shared)),
        Section("some", "Some of the images", _samples(facts, samples, shared)),
        Section("blank", "Images of one colour", _blank(facts, shared)),
        Section("ignored", "Files that are not images", _ignored(facts)),
        Section("pixels", "Sizes, formats and colour", _pixels(facts)),
    ]
    lead = render("data_lead.html", facts=facts, cards=_cards(facts), sample=sample_note(facts))
    return lead, sections


def sample_note(facts: Facts) -> str:
    """What a sample means for what was found; "" where every image was examined."""
    if facts["examined"] is None:
        return ""
    images = sum(part["images"] for part in facts["splits"])
    return page_text(
        "a random sample of {} of {} was examined: broken images and duplicates outside of it are "
        "not in here",
        f"{facts['examined']:,}",
        count(images, "image"),
    )


def leakage(facts: Facts) -> str:
    """One sentence on how many images of one split are known from another."""
    totals = {part["name"]: part["images"] for part in facts["splits"]}
    found = [
        page_text("{} of {} in {}", f"{n:,}", f"{totals[split]:,}", split)
        for split, n in facts["leaked"].items()
        if n
    ]
    if not found:
        return page_text("none: no image of one split has a duplicate in another")
    return page_text("with a duplicate in an earlier split: {}", ", ".join(found))


def _cards(facts: Facts) -> list[tuple[str, str, str]]:
    """Title, state ("bad", "note", or "" where all is well) and text of each check."""
    parts, colour = facts["splits"], facts["colour"]
    empty = sorted({name for part in parts for name in part["empty"]})
    uneven = max((part["imbalance"] or 1 for part in parts), default=1)
    blank = len(colour["blank"]) if colour else 0

    def twins(kind: str) -> str:
        images = sum(len(group["images"]) for group in facts[kind])
        return page_text("{} in {}", count(images, "image"), count(len(facts[kind]), "group"))

    cards = [
        ("Broken", len(facts["broken"]), count(len(facts["broken"]), "image")),
        ("Exact duplicates", len(facts["exact"]), twins("exact")),
        ("Near duplicates", len(facts["near"]), twins("near")),
        ("Leakage", len(facts["leaks"]), leakage(facts)),
        ("Conflicting labels", len(facts["conflicts"]), count(len(facts["conflicts"]), "group")),
        ("Empty classes", len(empty), some(empty)),
        (
            "Balance",
            uneven > UNBALANCED,
            page_text("largest class {}x the smallest", f"{uneven:.1f}"),
        ),
        ("Blank", blank, page_text("{} of one colour only", count(blank, "image"))),
        (
            "Not images",
            len(facts["ignored"]),
            page_text("{} ignored", count(len(facts["ignored"]), "file")),
        ),
    ]
    hidden = set() if any(part["classes"] for part in parts) else {"Conflicting labels", "Balance"}
    hidden |= {"Leakage"} if len(parts) < 2 else set()
    return [
        (
            page_text(title),
            _state(title) if found else "",
            text if found or title == "Balance" else page_text("none"),
        )
        for title, found, text in cards
        if title not in hidden
    ]


def _state(title: str) -> str:
    """Files that are not images do no harm."""
    return "note" if title == "Not images" else "bad"


def some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} {page_text('and {} more', len(names) - 5)}"


def _keys(groups: Sequence[Facts]) -> set[tuple[str, ...]]:
    return {tuple(image["name"] for image in group["images"]) for group in groups}


def _broken(facts: Facts, shared: Facts) -> Markup:
    return render("broken.html", broken=facts["broken"], **shared) if facts["broken"] else Markup()


def _classes(facts: Facts, samples: Sequence[Facts], shared: Facts) -> Markup:
    """A row for each class: how many images in each split, and what they look like."""
    parts = facts["splits"]
    names = list(dict.fromkeys(name for part in parts for name in part["classes"]))
    if not names:
        return Markup()
    mine: dict[str, list[Facts]] = {}
    for image in samples:
        for label in dict.fromkeys([image["label"], *image["label"].split("|")]):
            mine.setdefault(label, []).append(image)
    rows = [
        {
            "name": name,
            "counts": [part["classes"].get(name, 0) for part in parts],
            "images": mine.get(name, ()),
        }
        for name in names
    ]
    rows.sort(key=lambda row: row["counts"][0])
    most = max(max(part["classes"].values(), default=0) for part in parts) or 1
    return render("data_classes.html", rows=rows, parts=parts, most=most, **shared)


def _samples(facts: Facts, samples: Sequence[Facts], shared: Facts) -> Markup:
    """Where there are no classes to show them by."""
    if any(part["classes"] for part in facts["splits"]) or not samples:
        return Markup()
    return render("strip.html", images=samples, **shared)


def _blank(facts: Facts, shared: Facts) -> Markup:
    blank = facts["colour"]["blank"] if facts["colour"] else ()
    if not blank:
        return Markup()
    group = {"images": blank, "likeness": 1}
    return render(
        "duplicate_groups.html", groups=[group], more=0, note="", most=MAX_BLANK, **shared
    )


def _ignored(facts: Facts) -> Markup:
    """By name: one of them may be an image under a wrong name."""
    names = facts["ignored"]
    return render("ignored.html", names=names, most=MAX_IGNORED) if names else Markup()


def _pixels(facts: Facts) -> Markup:
    if facts["sizes"] is None or facts["colour"] is None:
        return Markup()
    mean = facts["colour"]["mean"]
    swatch = ",".join(str(round(255 * value)) for value in (list(mean) * 3)[:3])
    return render("pixels.html", facts=facts, swatch=swatch)
