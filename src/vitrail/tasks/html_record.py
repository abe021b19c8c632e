"""Records with a page: saved to a file, and shown in notebooks in place of the record."""

from collections.abc import Iterable
from pathlib import Path

from vitrail.pages.render import as_iframe
from vitrail.weights.atomic import write_file


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

    def _repr_html_(self) -> str:
        return as_iframe(self.html())
