"""Publish finished claims of `vitrail reproduce`: their pages, and the table of docs/reproduce.md.
Pages are drawn from the published numbers, so that all have the present style.

    python -m tools.claims DIRECTORY

DIRECTORY holds the `--out` of one or more claims, by their names. Claims that were published before
and are not in it stay as they are.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from vitrail.pages.reproduction import reproduction_page
from vitrail.tasks.claims.catalogue import CLAIMS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = DOCS / "reproduce"
HEADING = "| claim | what | verdict | findings | runs | steps | computing |\n" + "|---" * 7 + "|\n"
WHAT = {
    "data-scale": "ViT against a ResNet as data grows",
    "hybrid": "hybrid ahead of ViT at small compute",
    "positions": "none, 1-D, 2-D, relative; rows and columns",
    "attention-distance": "attention distance by depth",
    "resolution": "higher resolution at fine-tuning",
    "pooling": "class token against mean, and learning rates",
    "masked-patch": "masked patch pre-training",
    "few-shot": "few-shot ridge tracks fine-tuned accuracy",
    "cost": "cost by pixels, Swin and ViT",
    "mobile": "MobileViT against MobileNetV2",
    "masks": "blockwise against random masks of BEiT",
    "equivariance": "shifts of ViT, Swin, CoAtNet and a CNN",
}


def publish(results: Path) -> list[str]:
    """Copy the numbers of each finished claim; its own path does not matter there."""
    found = []
    for name in WHAT:
        if not (results / name / "result.json").is_file():
            continue
        facts = json.loads((results / name / "result.json").read_text(encoding="utf-8"))
        facts |= {"out": name, "report": f"{name}/report.html"}
        text = json.dumps(facts, ensure_ascii=False)
        (PAGES / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        found.append(name)
    return found


def draw_pages() -> None:
    for numbers in PAGES.glob("*.json"):
        page = reproduction_page(json.loads(numbers.read_text(encoding="utf-8")))
        numbers.with_suffix(".html").write_text(page, encoding="utf-8")


def row(name: str) -> str:
    """A line of the table."""
    place = PAGES / f"{name}.json"
    if not place.is_file():
        return f"| `{name}` | {WHAT[name]} | not run yet | | | | |"
    facts: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    shown = sum(one["verdict"] == "shown" for one in facts["findings"])
    cells = [
        f"[{name}]",
        WHAT[name],
        facts["verdict"],
        f"{shown} of {len(facts['findings'])} shown",
        str(len(facts["runs"])),
        str(facts["scale"]["steps"]) if facts["runs"] else "0",
        f"{sum(facts['seconds'].values()):,.0f} s",
    ]
    return f"| {' | '.join(cells)} |"


def write_table() -> None:
    page = DOCS / "reproduce.md"
    published = [name for name in WHAT if (PAGES / f"{name}.json").is_file()]
    links = "".join(f"[{name}]: reproduce/{name}.html\n" for name in published)
    table = f"{HEADING}{chr(10).join(map(row, WHAT))}\n<!-- end of results -->\n\n{links}"
    text = page.read_text(encoding="utf-8")
    pattern = r"(<!-- results -->\n).*?<!-- end of results -->\n\n(?:\[[\w-]+\]: \S+\n)*"
    text = re.sub(pattern, lambda match: match[1] + table, text, flags=re.DOTALL)
    page.write_text(text, encoding="utf-8")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    assert set(WHAT) <= set(CLAIMS)
    print("published:", ", ".join(publish(Path(sys.argv[1]))) or "no finished claim")
    draw_pages()
    write_table()


if __name__ == "__main__":
    main()
