"""`vitrail.search`: which embedded images are nearest to an image."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from vitrail.core.addresses import is_address
from vitrail.core.errors import UserError
from vitrail.core.eval_mode import eval_mode
from vitrail.core.ranges import check_count
from vitrail.core.records import validate
from vitrail.data.reader import ImageSource, Item, name_of
from vitrail.inference.client import Client
from vitrail.inference.embed import embed_one
from vitrail.inference.merging import merge_tokens
from vitrail.inference.nearest import Match, find_nearest
from vitrail.inference.parts import MANIFEST, Manifest, read_manifest
from vitrail.inference.predict import iter_images
from vitrail.models.model import Model
from vitrail.tasks.html_record import PAGE, HtmlRecord
from vitrail.tasks.image_pages import show_matches
from vitrail.tasks.models import AnyModel, Device, ModelSource, open_model
from vitrail.tasks.results import writing_results
from vitrail.tasks.threads import use_threads

FACTS = "search.json"


@dataclass(frozen=True)
class SearchResult(HtmlRecord):
    """The embedded images that are nearest to a query, the nearest first."""

    directory: str
    query: str
    matches: tuple[Match, ...]

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        matches = [{"id": one.id, "cosine": one.cosine} for one in self.matches]
        return {"directory": self.directory, "query": self.query, "matches": matches}

    def html(self) -> str:
        return show_matches(self.query, self.matches, self.directory)

    def __iter__(self) -> Iterator[Match]:
        return iter(self.matches)

    def __len__(self) -> int:
        return len(self.matches)

    def __getitem__(self, place: int) -> Match:
        return self.matches[place]

    def __repr__(self) -> str:
        shown = [f"{one.cosine:.4f}  {one.id}" for one in self.matches[:5]]
        return "\n".join([f"SearchResult({self.query} in {self.directory})", *shown])


def search(
    directory: str | Path,
    image: ImageSource,
    *,
    k: int = 10,
    checkpoint: AnyModel | None = None,
    device: Device = "auto",
    threads: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> SearchResult:
    """Find the `k` images of a directory that `embed` wrote that are nearest to `image`, by the
    cosine of their features. The image is embedded by the model that embedded the directory, which
    is loaded from where it was, or is `checkpoint`. The address of a service in place of the
    directory means the data of that service. `out` gets report.html and search.json.

    >>> from vitrail import embed
    >>> index = embed("pets-model", "photos/", out="vectors")
    >>> search("vectors", "photos/1.png", k=2).matches[0].id
    'photos/1.png'
    """
    check_count("k", k, at_least=1)
    if isinstance(directory, str) and is_address(directory):
        with writing_results(out, "search", (PAGE, FACTS), overwrite=overwrite) as draft:
            found = search_service(directory, image, k, checkpoint)
            if draft is not None:
                found.save_report(draft, FACTS)
        return found
    folder = Path(directory)
    if isinstance(image, str | Path) and is_index(image) and not is_index(folder):
        raise UserError(
            f"the directory of embeddings comes first, then the image, got {directory} first"
        )
    manifest = read_manifest(folder)
    if manifest.output != "pooled":
        raise UserError(f"{folder}: holds tokens, but search compares pooled features")
    with (
        use_threads(threads),
        writing_results(out, "search", (PAGE, FACTS), overwrite=overwrite) as draft,
    ):
        model = open_index_model(folder, manifest, checkpoint, device)
        with eval_mode(model):
            item = as_item(image)
            vector: NDArray[Any] = embed_one(model, item, manifest, where=str(folder))
        name = item if isinstance(item, str) else item.name
        found = SearchResult(str(directory), name, tuple(find_nearest(folder, vector, k=k)))
        if draft is not None:
            found.save_report(draft, FACTS)
    return found


def search_service(
    address: str, image: ImageSource, k: int, checkpoint: AnyModel | None
) -> SearchResult:
    """The nearest images of the data of a service, embedded by its own model."""
    if checkpoint is not None:
        raise UserError(f"{address}: a service embeds by its own model: leave checkpoint out")
    with Client(address) as client:
        [found] = client.search([image], k=k)
    name = name_of(image)
    if found.problem is not None:
        raise UserError(f"{name}: {found.problem}")
    matches = tuple(Match(one.score, one.name) for one in found.matches)
    return SearchResult(address, name, matches)


def is_index(path: str | Path) -> bool:
    return os.path.isfile(Path(path) / MANIFEST)


def as_item(image: ImageSource) -> Item:
    if isinstance(image, str | Path):
        return str(image)
    return next(iter_images([image]))


def open_index_model(
    folder: Path,
    manifest: Manifest,
    checkpoint: AnyModel | None,
    device: Device,
) -> Model:
    """The model that embedded a directory, in the precision that it had then, with as many tokens
    merged; for int8 it is the float model that was quantised."""
    model = load_index_model(folder, manifest, checkpoint, device)
    if manifest.merged_tokens and not model.merged_tokens:
        return merge_tokens(model.eval(), manifest.merged_tokens)
    return model


def load_index_model(
    folder: Path,
    manifest: Manifest,
    checkpoint: AnyModel | None,
    device: Device,
) -> Model:
    loading = dict(manifest.loading)
    precision = loading.pop("precision", None)
    if checkpoint is not None:
        return open_model(checkpoint, device=device, precision=precision)
    if not manifest.model:
        raise UserError(
            f"{folder}: was embedded by a model that exists in memory only: pass checkpoint=MODEL"
        )
    values = {**loading, "source": manifest.model}
    source = validate(ModelSource, values, where=str(folder / MANIFEST))
    return source.load(device=device, precision=precision)


def loading_facts(source: ModelSource, model: Model) -> dict[str, Any]:
    """What a manifest keeps, so that `open_index_model` finds the same model again."""
    precision = str(next(model.parameters()).dtype).removeprefix("torch.")
    facts = asdict(source)
    del facts["source"]
    return {**facts, "precision": precision}
