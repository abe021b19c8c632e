"""What lies where in a tar, in a side-car file beside it: TAR.index.json.

    python -m vitrail.data.sources.tar_index shards/*.tar

A tar of remote storage without one is read once as a whole to be listed. A side-car holds the size
of its tar, and counts only where that still agrees.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from vitrail.core.errors import UserError
from vitrail.data.sources.places import file_size, is_remote, read_bytes, retried

SUFFIX = ".index.json"
FORMAT = 1


@dataclass(frozen=True)
class Sample:
    """Where an image lies in its tar, and what the files beside it say it shows."""

    member: str
    offset: int
    size: int
    label: str | tuple[str, ...] | None


def read_index(shard: str) -> list[Sample] | None:
    """The samples that a side-car lists; None where there is none for this very tar."""
    place = shard + SUFFIX
    try:
        found: Any = json.loads(retried(lambda: read_bytes(place)))
        if found["format"] != FORMAT or found["size"] != retried(lambda: file_size(shard)):
            return None
        return [
            Sample(str(member), int(offset), int(size), as_label(label))
            for member, offset, size, label in found["samples"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # there is none, or it is not ours: the tar itself knows


def as_label(label: Any) -> str | tuple[str, ...] | None:
    return tuple(map(str, label)) if isinstance(label, list) else label


def write_index(shard: str, samples: Sequence[Sample]) -> Path:
    """Write the side-car of a tar on this machine."""
    path = Path(shard + SUFFIX)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    facts = {
        "format": FORMAT,
        "size": file_size(shard),
        "samples": [astuple(sample) for sample in samples],
    }
    draft.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    os.replace(draft, path)
    return path


def main(shards: Sequence[str]) -> None:
    from vitrail.data.sources.tars import list_tar

    for shard in shards:
        if is_remote(shard):
            raise UserError(f"{shard}: index tars before they are uploaded, on this machine")
        print(f"{write_index(shard, list_tar(shard))}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as mistake:
        sys.exit(f"{mistake}")
