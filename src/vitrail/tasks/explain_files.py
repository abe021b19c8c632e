"""The files of explanations: their names, maps in one archive, images as JPEG."""

import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
from PIL import Image

from vitrail.tasks.explanation import Pixels

MAX_STEM = 60  # letters: of four bytes each, and with a method's name, still a file's name


def append_maps(
    file: Path, stem: str, maps: Mapping[str, np.ndarray[Any, Any]], *, first: bool
) -> None:
    """One more image in an .npz, which is a zip of arrays."""
    with ZipFile(file, "w" if first else "a", compression=ZIP_DEFLATED) as archive:
        for name, one in maps.items():
            with archive.open(f"{stem}/{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, one)


def encode_image(pixels: Pixels, quality: int = 92) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling=0)
    return file.getvalue()


def safe_stem(name: str) -> str:
    """The name of a file without its suffix, as any file system can hold it.

    >>> safe_stem("https://example.org/a%20cat.jpg?width=90")
    'a_20cat'
    """
    return re.sub(r"[^\w.-]", "_", Path(name).stem)[:MAX_STEM] or "image"


def free_name(stem: str, taken: Sequence[str]) -> str:
    """A name for files that no other image has.

    >>> free_name("cat", ["cat", "cat-2"])
    'cat-3'
    """
    number, name = 2, stem
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name
