"""The doctor's findings as HTML: one file with its pictures inside, and nothing that must run."""

from collections.abc import Iterable, Mapping, Sequence

from vitrail.core.html_text import escape_html
from vitrail.data.findings import (
    Findings,
    Picture,
    Twins,
    colour_notes,
    count,
    leakage,
    numbers,
    some,
    told_sizes,
)

SHOWN_GROUPS, SHOWN_IN_A_GROUP, SHOWN_CLASSES, SHOWN_BLANK = 24, 6, 60, 12
SHOWN_IGNORED = 200
UNBALANCED = 10  # times larger than the smallest class: worth a word

STYLE = """
.doctor { --ink: #1d2730; --soft: #5d6b78; --line: #dfe5ea; --card: #fff; --bar: #7da7c9;
  --good: #2e7d4f; --bad: #b3402e; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); }
@media (prefers-color-scheme: dark) { .doctor { --ink: #e4e9ed; --soft: #9aa7b3; --line: #36424d;
  --card: #1c242b; --bar: #4d7da3; --good: #74c794; --bad: #ee8b7b; } }
.doctor h2 { font-size: 1.5em; margin: 0 0 .2em; }
.doctor h3 { font-size: 1.1em; margin: 2em 0 .5em; }
.doctor p { margin: .3em 0; }
.doctor small, .doctor .soft { color: var(--soft); font-size: .87em; }
.doctor code { font-size: .92em; overflow-wrap: anywhere; }
.doctor ul.verdicts { list-style: none; padding: 0; margin: 1em 0; display: grid; gap: .6em;
  grid-template-columns: repeat(auto-fill, minmax(15em, 1fr)); }
.doctor .verdicts li { background: var(--card); border: 1px solid var(--line); padding: .6em .8em;
  border-left: 4px solid var(--good); border-radius: 6px; }
.doctor .verdicts li.bad { border-left-color: var(--bad); }
.doctor .verdicts b { display: block; }
.doctor table { border-collapse: collapse; width: 100%; }
.doctor th, .doctor td { text-align: left; vertical-align: top; padding: .3em .8em .3em 0;
  border-bottom: 1px solid var(--line); }
.doctor th { color: var(--soft); font-weight: 500; font-size: .87em; }
.doctor td.number, .doctor th.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.doctor .bar { display: block; height: .6em; margin-top: .45em; background: var(--bar);
  border-radius: 2px; min-width: 1px; }
.doctor .strip { display: flex; flex-wrap: wrap; gap: 4px; }
.doctor .strip img { height: 44px; border-radius: 3px; }
.doctor .groups { display: flex; flex-wrap: wrap; gap: 10px; align-items: stretch; }
.doctor .group { padding: .6em; background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; }
.doctor .side { display: flex; flex-wrap: wrap; gap: 10px; }
.doctor figure { margin: 0; width: 132px; }
.doctor figure img { height: 96px; max-width: 100%; object-fit: contain; border-radius: 3px; }
.doctor img { outline: 1px solid var(--line); }
.doctor img.tiny { image-rendering: pixelated; }
.doctor figcaption { font-size: .78em; line-height: 1.35; overflow-wrap: anywhere; }
.doctor .swatch { display: inline-block; width: 1.1em; height: 1.1em; border-radius: 3px;
  vertical-align: -.2em; border: 1px solid var(--line); }
.doctor summary { cursor: pointer; }
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 2em auto; max-width: 62em; padding: 0 1.2em; background: #f6f8fa; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #12181d; }} }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def page(found: Findings) -> str:
    """A whole page."""
    return PAGE.format(title=escape_html(f"{found.source}: data doctor"), body=section(found))


def section(found: Findings) -> str:
    """The part of a page that tells the findings; another report may hold it."""
    told = {*found.leaks, *found.conflicts}
    exact, near = (
        [group for group in twins if group not in told] for twins in (found.exact, found.near)
    )
    parts = [
        heading(found),
        verdicts(found),
        broken(found),
        ignored(found),
        groups(found, "Leakage between splits", found.leaks, leakage(found)),
        groups(found, "Twins with different labels", found.conflicts, "at most one label is right"),
        groups(found, "Other exact duplicates", exact, "every pixel agrees once decoded"),
        groups(found, "Other look-alikes", near, not_compared(found)),
        classes(found),
        pictures(found),
        facts(found),
    ]
    return f'<section class="doctor">\n<style>{STYLE}</style>\n{"".join(parts)}</section>'


def heading(found: Findings) -> str:
    splits = ", ".join(f"{escape_html(part.name)} {part.images:,}" for part in found.parts)
    return (
        f"<h2>{escape_html(found.source)}</h2>\n"
        f'<p class="soft">{count(found.images, "image")}: {splits}</p>\n'
        f"{f'<p><b>{escape_html(found.sample)}</b></p>' if found.sample else ''}"
    )


def verdicts(found: Findings) -> str:
    """A card for each question, green or red."""
    empty = {name for part in found.parts for name in part.empty}
    uneven = max((part.imbalance or 1 for part in found.parts), default=1)
    blank = len(found.colour.blank) if found.colour else 0
    twins = sum(len(group.pictures) for group in found.exact)
    alike = sum(len(group.pictures) for group in found.near)
    cards = [
        ("Broken", len(found.broken), count(len(found.broken), "image")),
        ("Exact duplicates", twins, f"{count(twins, 'image')} in {len(found.exact):,} groups"),
        ("Look-alikes", alike, f"{count(alike, 'image')} in {len(found.near):,} groups"),
        ("Leakage", len(found.leaks), leakage(found)),
        ("Conflicting labels", len(found.conflicts), count(len(found.conflicts), "group")),
        ("Empty classes", len(empty), some(tuple(sorted(empty)))),
        ("Balance", uneven > UNBALANCED, f"largest class {uneven:.1f}x the smallest"),
        ("Blank", blank, f"{count(blank, 'image')} of one colour only"),
        ("Not images", len(found.ignored), f"{count(len(found.ignored), 'file')} ignored"),
    ]
    if not any(part.classes for part in found.parts):
        cards = [card for card in cards if card[0] not in ("Conflicting labels", "Balance")]
    if len(found.parts) < 2:
        cards = [card for card in cards if card[0] != "Leakage"]
    items = (
        f'<li class="{"bad" if bad else "good"}"><b>{title}</b>'
        f'<span class="soft">{shown(told) if bad or title == "Balance" else "none"}</span></li>'
        for title, bad, told in cards
    )
    return f'<ul class="verdicts">{"".join(items)}</ul>\n'


def broken(found: Findings) -> str:
    if not found.broken:
        return ""
    rows = (
        f"<tr><td><code>{shown(found.short(bad.picture.name))}</code></td><td>{escape_html(bad.picture.split)}</td>"
        f"<td>{escape_html(bad.picture.label)}</td><td>{shown(bad.reason)}</td></tr>"
        for bad in found.broken
    )
    opened = " open" if len(found.broken) <= 30 else ""
    return (
        f"<h3>Broken images</h3><details{opened}><summary>{count(len(found.broken), 'image')} "
        "cannot be decoded; training passes over them</summary><table><tr><th>image</th>"
        f"<th>split</th><th>label</th><th>reason</th></tr>{''.join(rows)}</table></details>\n"
    )


def groups(found: Findings, title: str, twins: Sequence[Twins], told: str) -> str:
    if not twins:
        return ""
    more = len(twins) - SHOWN_GROUPS
    rest = f'<p class="soft">and {count(more, "more group")}</p>' if more > 0 else ""
    shown_groups = "".join(group(found, each) for each in twins[:SHOWN_GROUPS])
    return (
        f'<h3>{title}</h3><p class="soft">{escape_html(told)}</p>'
        f'<div class="groups">{shown_groups}</div>{rest}\n'
    )


def group(found: Findings, twins: Twins) -> str:
    figures = "".join(figure(found, picture) for picture in twins.pictures[:SHOWN_IN_A_GROUP])
    more = len(twins.pictures) - SHOWN_IN_A_GROUP
    notes = [f"likeness {twins.likeness:.3f}"] if twins.likeness < 1 else []
    notes += [f"and {more:,} more"] if more > 0 else []
    told = f"<small>{', '.join(notes)}</small>"
    return f'<div class="group"><div class="side">{figures}</div>{told}</div>'


def figure(found: Findings, picture: Picture) -> str:
    label = f" · {escape_html(picture.label)}" if picture.label else ""
    return (
        f"<figure>{image(found, picture)}<figcaption><b>{escape_html(picture.split)}</b>{label}<br>"
        f"<code>{shown(found.short(picture.name))}</code></figcaption></figure>"
    )


def image(found: Findings, picture: Picture) -> str:
    uri = found.thumbnails.get(picture.name)
    if uri is None:
        return ""
    kind = ' class="tiny"' if uri.startswith("data:image/png") else ""
    name = shown(found.short(picture.name))
    return f'<img{kind} src="{uri}" alt="{name}" title="{name}" loading="lazy">'


def ignored(found: Findings) -> str:
    """Files that are no images, by name: one of them may be an image under a wrong name."""
    if not found.ignored:
        return ""
    names = "<br>".join(f"<code>{shown(name)}</code>" for name in found.ignored[:SHOWN_IGNORED])
    more = len(found.ignored) - SHOWN_IGNORED
    rest = f"<br>and {more:,} more" if more > 0 else ""
    return (
        f"<h3>Files that are not images</h3><details><summary>{count(len(found.ignored), 'file')} "
        f"ignored, by the ending of the name</summary><p>{names}{rest}</p></details>\n"
    )


def not_compared(found: Findings) -> str:
    told = "resized, compressed again, brightened or slightly cropped"
    if found.not_compared:
        told += f"; {count(found.not_compared, 'more pair')} not compared, too many"
    return told


def classes(found: Findings) -> str:
    """A row for each class: how many images in each split, and what they look like."""
    names = list(dict.fromkeys(name for part in found.parts for name in part.classes))
    if not names:
        return ""
    most = max(max(part.classes.values(), default=0) for part in found.parts) or 1
    heads = "".join(f'<th class="number">{escape_html(part.name)}</th>' for part in found.parts)
    rows = []
    for name in names[:SHOWN_CLASSES]:
        counts = [part.classes.get(name, 0) for part in found.parts]
        cells = "".join(f'<td class="number">{number:,}</td>' for number in counts)
        mine = (image(found, picture) for picture in found.samples if is_of(picture, name))
        rows.append(
            f"<tr><td>{shown(name)}</td>{cells}<td style='min-width:8em'>{bar(counts[0], most)}"
            f"</td><td><div class='strip'>{''.join(mine)}</div></td></tr>"
        )
    more = len(names) - SHOWN_CLASSES
    rest = f'<p class="soft">and {count(more, "more class")}</p>' if more > 0 else ""
    return (
        f"<h3>Classes</h3><table><tr><th>class</th>{heads}<th></th><th>some of them</th></tr>"
        f"{''.join(rows)}</table>{rest}\n"
    )


def is_of(picture: Picture, label: str) -> bool:
    return picture.label == label or label in picture.label.split("|")


def pictures(found: Findings) -> str:
    """Images without labels, and those that show nothing."""
    told = ""
    if not any(part.classes for part in found.parts):
        strip = "".join(image(found, picture) for picture in found.samples)
        told += f"<h3>Some of the images</h3><div class='strip'>{strip}</div>\n"
    if found.colour is not None and found.colour.blank:
        shown_blank = "".join(figure(found, each) for each in found.colour.blank[:SHOWN_BLANK])
        told += f"<h3>Images of one colour</h3><div class='side'>{shown_blank}</div>\n"
    return told


def facts(found: Findings) -> str:
    if found.sizes is None or found.colour is None:
        return ""
    mean, std = found.colour.mean, found.colour.std
    red, green, blue = (round(255 * value) for value in (mean * 3)[:3])
    notes = colour_notes(found.colour)
    return (
        f"<h3>Sizes</h3><p>{told_sizes(found.sizes)}, "
        f"{count(found.sizes.different, 'different size')}</p>{tallied(found.sizes.frequent)}"
        f"<h3>Formats and modes</h3>{tallied(found.modes)}"
        f"<h3>Colour</h3><p><span class='swatch' style='background:rgb({red},{green},{blue})'>"
        f"</span> mean <code>{numbers(mean)}</code>, standard deviation "
        f"<code>{numbers(std)}</code> on a scale from 0 to 1</p>"
        f"<p class='soft'>{escape_html(notes)}</p>\n"
    )


def tallied(values: Mapping[str, int]) -> str:
    most = max(values.values(), default=1)
    rows: Iterable[str] = (
        f'<tr><td>{shown(name)}</td><td class="number">{number:,}</td>'
        f"<td style='width:60%'>{bar(number, most)}</td></tr>"
        for name, number in values.items()
    )
    return f"<table>{''.join(rows)}</table>"


def bar(number: int, most: int) -> str:
    width = 100 * number / most
    return f'<span class="bar" style="width:{width:.1f}%"></span>' if number else ""


def shown(name: str) -> str:
    """A name from a file system, made safe for a page."""
    return escape_html(name)
