"""Text that came from anywhere, as a page may hold it."""

from collections.abc import Iterable, Mapping
from html import escape

from vitrail.core.errors import printable


def escape_html(text: str) -> str:
    """Safe between tags and in attributes; controls, marks that turn the direction of writing and
    bytes that are no UTF-8 are written out.

    >>> escape_html("<b>\\x1b</b>")
    '&lt;b&gt;\\\\x1b&lt;/b&gt;'
    """
    return escape(printable(text))


def html_table(title: str, rows: Mapping[str, object] | Iterable[tuple[str, object]]) -> str:
    """A small record as a notebook shows it: a title, and a row for each value. Rows that may share
    a name are given as pairs.

    >>> html_table("Index", {"images": 3})
    '<table><caption>Index</caption><tr><th>images</th><td>3</td></tr></table>'
    """
    cells = "".join(
        f"<tr><th>{escape_html(name)}</th><td>{escape_html(_text(value))}</td></tr>"
        for name, value in (rows.items() if isinstance(rows, Mapping) else rows)
    )
    return f"<table><caption>{escape_html(title)}</caption>{cells}</table>"


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
