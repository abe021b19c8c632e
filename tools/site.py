"""The pages of the documentation site: docs/, the README as front page, generated references.

    python -m tools.site build/docs
    python -m tools.site --finish site

The first writes them to a directory, which `make site` turns into HTML (mkdocs.yml); the second
marks the Korean pages of the site as Korean. Generated are the command-line reference from the
parser, the Python reference from `vitrail.__all__`, and the table of models from the catalogue.
"""

import argparse
import re
import shutil
from pathlib import Path

import vitrail
from tools.published import PUBLISHED
from vitrail.cli.app import build_parser
from vitrail.models.catalogue import families

ROOT = Path(__file__).parents[1]
AT_ROOT = {
    "README.md": "index.md",
    "README.ko.md": "index.ko.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
}
ELSEWHERE = re.compile(r"\[([^\]]+)\]\((?:tests/[^)]+|CITATION\.cff|[\w/]+\.ipynb|\w+\.py)\)")
# The names of the front pages in a browser's tab: "… - Vitrail".
TITLES = {
    "index.md": "A vision transformer toolkit",
    "index.ko.md": "비전 트랜스포머 도구 모음",
}
KOREAN = ("index.ko/**/*.html", "ko/**/*.html")
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])|(?<=\]: )([^\s#:]+)(?=[#\s]|$)", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--finish", action="store_true", help="OUT is the site: complete it")
    options = parser.parse_args()
    (mark_korean if options.finish else write_pages)(options.out)


def write_pages(out: Path) -> None:
    """The sources of all pages, in an empty directory."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "docs", out)
    for page in out.rglob("*.md"):
        depth = len(page.relative_to(out).parts) - 1
        page.write_text(moved(page.read_text(encoding="utf-8"), depth), encoding="utf-8")
    for source, target in AT_ROOT.items():
        if (ROOT / source).exists():
            text = moved((ROOT / source).read_text(encoding="utf-8"))
            if target in TITLES:
                text = f"---\ntitle: {TITLES[target]}\n---\n\n{text}"
            (out / target).write_text(text, encoding="utf-8")
    reference = out / "reference"
    reference.mkdir()
    (reference / "cli.md").write_text(cli_page(), encoding="utf-8")
    (reference / "python.md").write_text(python_page(), encoding="utf-8")
    (reference / "models.md").write_text(models_page(), encoding="utf-8")


def mark_korean(site: Path) -> None:
    """Korean pages say so: for screen readers, browsers that translate, and line breaks."""
    pages = [page for pattern in KOREAN for page in site.glob(pattern)]
    assert pages, f"no Korean page in {site}"
    for page in pages:
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace('<html lang="en"', '<html lang="ko"', 1), encoding="utf-8")


def moved(text: str, depth: int = 0) -> str:
    """A page of the repository's root, or one that lies `depth` folders deep in docs/, with links
    as they are in the site. What the site does not have is named without a link.

    >>> moved("[a](docs/training.md), [b](CHANGELOG.md#new) and [c](LICENSE)")
    '[a](training.md), [b](changelog.md#new) and [c](https://www.apache.org/licenses/LICENSE-2.0)'
    >>> moved("[a](../../CONTRIBUTING.md), [b](../explain.md), [c](CITATION.cff)", depth=1)
    '[a](../contributing.md), [b](../explain.md), c'
    """

    def target(match: re.Match[str]) -> str:
        link: str = match[0]
        if link == "LICENSE":
            return "https://www.apache.org/licenses/LICENSE-2.0"
        ups = link.count("../")
        name = link[3 * ups :]
        if name in AT_ROOT and (ups == depth + 1 or ups == depth == 0):
            return "../" * depth + AT_ROOT[name]
        return link.removeprefix("docs/")

    return LINK.sub(target, ELSEWHERE.sub(r"\1", text))


def cli_page() -> str:
    text = build_parser().generate_docs(heading_level=1)
    text = re.sub(r"^(vitrail (\S+)) \2\b", r"\1", text, flags=re.MULTILINE)
    text = text.replace("# vitrail\n", "# Command line\n", 1)
    text = re.sub(r"## Table of Contents\n\n(- .*\n)+\n", "", text)  # the theme has one, too
    text = text.replace("[default: *]", r"[default: \*]").replace("'vit_b_*'", r"'vit_b_\*'")
    return re.sub(r"\n {8}(?=\S)", " ", text)  # help that was wrapped


def python_page() -> str:
    """Every public name with its signature and docstring."""
    names = [name for name in vitrail.__all__ if name != "__version__"]
    parts = [f"::: {place_of(name)}\n" for name in names]
    head = "# Python reference\n\nThe names of `import vitrail as vt`, in alphabetical order.\n"
    return "\n".join([head, *parts])


def place_of(name: str) -> str:
    """Where a public name is defined.

    >>> place_of("create")
    'vitrail.models.catalogue.create'
    """
    found = getattr(vitrail, name)
    return f"{found.__module__}.{found.__qualname__}"


def models_page() -> str:
    """Every variant with its numbers, which tests assert, and what others published of it."""
    lines = [
        "# Models",
        "",
        "Parameters and multiply-adds with the default head and image size (`vitrail models`);",
        "FLOPs are twice the multiply-adds. Below: [published accuracies](#published-accuracies).",
    ]
    for name, family in families().items():
        lines += [
            "",
            f"## {name}",
            "",
            "| model | image | parameters | multiply-adds | FLOPs |",
            "|---|---|---|---|---|",
        ]
        for variant, row in family.variants.items():
            size = "x".join(map(str, row.config.image_size))
            macs = f"{row.macs / 1e9:.2f} G | {2 * row.macs / 1e9:.2f} G"
            lines.append(f"| `{variant}` | {size} | {row.params:,} | {macs} |")
    return "\n".join([*lines, "", *published_lines()]) + "\n"


def published_lines() -> list[str]:
    """The table of published accuracies, with their source."""
    return [
        "## Published accuracies",
        "",
        "Top-1 on ImageNet-1k, in per cent, as their source has it. Nothing of this was measured",
        "here: neither ImageNet nor these weights were at hand.",
        "",
        "| model | image | top-1 | weights | source |",
        "|---|---|---|---|---|",
        *(
            f"| `{row.model}` | {row.image_size} | {row.top1:g} | {row.weights} | {row.source} |"
            for row in PUBLISHED
        ),
    ]


if __name__ == "__main__":
    main()
