"""The pages of the documentation site: docs/, the README as front page, generated references.

    python -m tools.site build/docs

writes them to a directory, which `make site` turns into HTML (mkdocs.yml). Generated are the
command-line reference from the parser, the Python reference from `vitrail.__all__`, and the table
of models from the catalogue.
"""

import argparse
import re
import shutil
from pathlib import Path

import vitrail
from vitrail.cli.app import build_parser
from vitrail.models.catalogue import families

ROOT = Path(__file__).parents[1]
AT_ROOT = {
    "README.md": "index.md",
    "README.ko.md": "index.ko.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])|(?<=\]: )([^\s#:]+)(?=[#\s]|$)", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    write_pages(parser.parse_args().out)


def write_pages(out: Path) -> None:
    """The sources of all pages, in an empty directory."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "docs", out)
    for page in out.glob("*.md"):
        page.write_text(moved(page.read_text(encoding="utf-8")), encoding="utf-8")
    for source, target in AT_ROOT.items():
        if (ROOT / source).exists():
            text = (ROOT / source).read_text(encoding="utf-8")
            (out / target).write_text(moved(text), encoding="utf-8")
    reference = out / "reference"
    reference.mkdir()
    (reference / "cli.md").write_text(cli_page(), encoding="utf-8")
    (reference / "python.md").write_text(python_page(), encoding="utf-8")
    (reference / "models.md").write_text(models_page(), encoding="utf-8")


def moved(text: str) -> str:
    """A page of the repository's root or of docs/ with links as they are in the site.

    >>> moved("[a](docs/training.md), [b](CHANGELOG.md#new) and [c](LICENSE)")
    '[a](training.md), [b](changelog.md#new) and [c](https://www.apache.org/licenses/LICENSE-2.0)'
    """

    def target(match: re.Match[str]) -> str:
        link: str = match[0]
        if link == "LICENSE":
            return "https://www.apache.org/licenses/LICENSE-2.0"
        return AT_ROOT.get(link.removeprefix("../"), link.removeprefix("docs/"))

    return LINK.sub(target, text)


def cli_page() -> str:
    text = build_parser().generate_docs(heading_level=1)
    text = re.sub(r"^(vitrail (\S+)) \2\b", r"\1", text, flags=re.MULTILINE)
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
    """Every variant with its numbers, which tests assert."""
    lines = [
        "# Models",
        "",
        "Parameters and multiply-adds with the default head and image size (`vitrail models`).",
    ]
    for name, family in families().items():
        lines += [
            "",
            f"## {name}",
            "",
            "| model | image | parameters | multiply-adds |",
            "|---|---|---|---|",
        ]
        for variant, row in family.variants.items():
            size = "x".join(map(str, row.config.image_size))
            lines.append(f"| `{variant}` | {size} | {row.params:,} | {row.macs / 1e9:.2f} G |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
