"""Records with a page: saved to a file, and shown in notebooks in place of the record."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitrail.core.errors import writing
from vitrail.core.json_text import to_json
from vitrail.pages.render import as_iframe
from vitrail.weights.atomic import write_file

PAGE = "report.html"


class HtmlRecord:
    """A record whose `html` is a page; one with megabytes of images gives it in pieces."""

    def html(self) -> str:
        return "".join(self.html_pieces())

    def html_pieces(self) -> Iterable[str]:
        return (self.html(),)

    def save_html(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the page; a file that exists is replaced only with `overwrite`."""

        def fill(draft: Path) -> None:
            with draft.open("w", encoding="utf-8") as file:
                file.writelines(self.html_pieces())

        return write_file(Path(path), fill, overwrite=overwrite)

    def facts(self) -> Any:
        """Plain values for JSON."""
        raise NotImplementedError

    def save_report(self, directory: Path, facts: str) -> None:
        """Write the page as report.html, and the facts to a JSON file."""
        with writing(directory):
            self.save_html(directory / PAGE)
            text = to_json(self.facts()) + "\n"
            (directory / facts).write_text(text, encoding="utf-8")

    def _repr_html_(self) -> str:
        return as_iframe(self.html())
