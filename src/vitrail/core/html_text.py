"""Text that came from anywhere, as a page may hold it."""

from html import escape

from vitrail.core.errors import printable


def escape_html(text: str) -> str:
    """Safe between tags and in attributes; controls, marks that turn the direction of writing and
    bytes that are no UTF-8 are written out.

    >>> escape_html("<b>\\x1b</b>")
    '&lt;b&gt;\\\\x1b&lt;/b&gt;'
    """
    return escape(printable(text))
