"""Search for images like one: in directories that `vitrail embed` wrote with the same model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vitrail.core.errors import UserError
from vitrail.data.reader import Named
from vitrail.inference.embed import embed_one
from vitrail.inference.nearest import Match, nearest_in
from vitrail.inference.parts import MANIFEST, Block, Manifest, read_blocks, read_manifest
from vitrail.models.model import Model

MAX_BYTES = 2**30  # of vectors that are kept in memory; of larger directories they are read again


@dataclass(frozen=True)
class Folder:
    """A directory of embeddings."""

    path: Path
    manifest: Manifest

    @cached_property
    def blocks(self) -> list[Block]:
        return list(read_blocks(self.path))

    def find(self, model: Model, image: bytes, k: int) -> list[Match]:
        """The nearest images of this directory."""
        vector = embed_one(model, Named("image", image), self.manifest, where=str(self.path))
        small = sum(part.stat().st_size for part in self.path.glob("*.parquet")) <= MAX_BYTES
        return nearest_in(self.blocks if small else read_blocks(self.path), vector, k=k)


class VectorSearch:
    """The directories of a service that were embedded by one model."""

    def __init__(self, paths: Sequence[str], model: Model, digest: str) -> None:
        self.model = model
        found = [Path(path) for path in paths if (Path(path) / MANIFEST).is_file()]
        every = [Folder(path, read_manifest(path)) for path in found]
        self.folders = [
            one
            for one in every
            if one.manifest.digest == digest and one.manifest.output == "pooled"
        ]

    def run(self, image: bytes, k: int) -> list[dict[str, object]]:
        """The nearest images by name, the nearest first."""
        if not self.folders:
            raise UserError(
                "search needs a directory that vitrail embed wrote with this model: start the "
                "service with data=DIR"
            )
        matches = [one for folder in self.folders for one in folder.find(self.model, image, k)]
        best = sorted(matches, key=lambda one: (-one.cosine, one.id))[:k]
        return [{"name": one.id, "score": one.cosine} for one in best]
