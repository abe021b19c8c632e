"""Search for images like one: in directories that `vitrail embed` wrote with the same model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vitrail.core.errors import UserError
from vitrail.data.reader import Named
from vitrail.inference.embed import embed_one
from vitrail.inference.nearest import Match, nearest_in
from vitrail.inference.parts import (
    MANIFEST,
    Block,
    Manifest,
    columns_of,
    finished_parts,
    read_blocks,
    read_manifest,
)
from vitrail.models.model import Model
from vitrail.serving.paths import common_folder, public_name

MAX_BYTES = 2**30  # of vectors that are kept in memory; of larger directories they are read again
NO_FOLDER = (
    "search needs a directory that vitrail embed wrote with this model: start the service with "
    "data=DIR"
)


@dataclass(frozen=True)
class Folder:
    """A directory of embeddings."""

    path: Path
    manifest: Manifest

    @cached_property
    def blocks(self) -> list[Block]:
        return list(read_blocks(self.path))

    @cached_property
    def root(self) -> str:
        """The folder that the embedded images are in."""
        parts = finished_parts(self.path)
        return common_folder(
            name for part in parts for name in columns_of(part, "id")[0].to_pylist()
        )

    def find(self, model: Model, image: bytes, k: int) -> list[Match]:
        """The nearest images of this directory, by their names below their folder."""
        vector = embed_one(model, Named("image", image), self.manifest, where=self.path.name)
        small = sum(part.stat().st_size for part in self.path.glob("*.parquet")) <= MAX_BYTES
        found = nearest_in(self.blocks if small else read_blocks(self.path), vector, k=k)
        return [Match(one.cosine, public_name(one.id, self.root)) for one in found]


class VectorSearch:
    """The directories of a service that were embedded by one model."""

    def __init__(self, paths: Sequence[str], model: Model, digest: str) -> None:
        self.model = model
        found = [Path(path) for path in paths if (Path(path) / MANIFEST).is_file()]
        every = [Folder(path, read_manifest(path)) for path in found]
        self.problems = [why_not(one.path, one.manifest, digest) for one in every]
        fitting = zip(every, self.problems, strict=True)
        self.folders = [one for one, problem in fitting if problem is None]

    def run(self, image: bytes, k: int) -> list[dict[str, object]]:
        """The nearest images by name, the nearest first."""
        if not self.folders:
            raise UserError(next(filter(None, self.problems), NO_FOLDER))
        matches = [one for folder in self.folders for one in folder.find(self.model, image, k)]
        best = sorted(matches, key=lambda one: (-one.cosine, one.id))[:k]
        return [{"name": one.id, "score": one.cosine} for one in best]


def why_not(path: Path, manifest: Manifest, digest: str) -> str | None:
    """Why a directory cannot be searched in with the model of this digest."""
    if manifest.digest != digest:
        return other_model(path, manifest, digest)
    if manifest.output != "pooled":
        return f"{path.name} holds tokens, but search compares pooled features: embed without them"
    return None


def other_model(path: Path, manifest: Manifest, digest: str) -> str:
    """One sentence for embeddings of another model than that of this digest."""
    return (
        f"the embeddings in {path.name} are of another model (digest {manifest.digest[:12]}) than "
        f"this one ({digest[:12]}): embed the images again with this model, or serve the other one"
    )
