"""For the Python reference: examples in docstrings are shown as code (a Griffe extension)."""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"(?:^>>> .*(?:\n(?!\n).*)*(?:\n(?=\n>>> ))?)+", re.MULTILINE)


class DoctestBlocks(Extension):  # type: ignore[misc,unused-ignore]  # without Griffe
    """Puts a fence around each example."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)


def fence_examples(text: str) -> str:
    """
    >>> fence_examples("Adds.\\n\\n>>> 1 + 1\\n2\\n\\nMore.")
    'Adds.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n\\nMore.'
    """
    return EXAMPLE.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```", text)
