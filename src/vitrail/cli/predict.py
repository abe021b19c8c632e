"""`vitrail predict`: what a model says of pictures."""

from __future__ import annotations

import json as machine
import sys
from collections.abc import Iterator
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path

from vitrail.cli.asking import use_threads
from vitrail.core.errors import UserError

STDIN = "/dev/stdin"


@dataclass(frozen=True)
class Predict:
    """Which model to ask, about which pictures."""

    model: str
    """A Vitrail directory, a foreign checkpoint or hf-hub:owner/name."""
    paths: tuple[str, ...]
    """Files or directories; - reads names from standard input, one a line."""
    _: KW_ONLY
    top: int = 5
    """How many labels to show for each."""
    threads: int | None = None
    """Threads to compute with."""
    json: bool = False
    """Print a JSON object a line."""


def predict(asked: Predict) -> None:
    """Label pictures with a trained model; one that cannot be read is a line with its reason."""

    from vitrail.infer.predict import stream
    from vitrail.weights.load import load

    if not asked.paths:
        raise UserError("no pictures: give files, directories, or - for names on standard input")
    if asked.top < 1:
        raise UserError(f"--top is {asked.top}, but must be at least 1")
    use_threads(asked.threads)
    model = load(asked.model)
    for one in stream(model, pictures(asked.paths), top=asked.top):
        if asked.json:
            print(machine.dumps(asdict(one)))
        elif one.problem is not None:
            print(f"{one.name}  no label: {one.problem}")
        else:
            ranked = "  ".join(f"{label} {score:.1%}" for label, score in one.top)
            print(f"{one.name}  {ranked}")


def pictures(paths: tuple[str, ...]) -> Iterator[str]:
    """Every picture that is meant, in order; a directory means what is below it."""
    for path in paths:
        if path == STDIN:
            yield from (line.rstrip("\n") for line in sys.stdin if line.strip())
        elif Path(path).is_dir():
            below = sorted(Path(path).rglob("*"))
            yield from (str(p) for p in below if p.is_file() and not p.name.startswith("."))
        else:
            yield path
