"""The images that a service was given beside its model, and what the model says of them.

What was given is a run (its validation images), a directory that `vitrail embed` wrote, or any data
set that `vitrail train` reads. Nothing is computed before it is asked for, and no request computes
for longer than a few seconds: the next one goes on where it stopped. Images are addressed by their
number in the data alone.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.randomness import permutation
from vitrail.data.images import BadImage
from vitrail.data.preprocess import normalise
from vitrail.data.reader import Sample, read_image
from vitrail.data.source import Source
from vitrail.data.sources import open_data
from vitrail.data.sources.files import Files
from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.distance import mean_distance
from vitrail.explanation.hooks import forward_hooks, token_layouts
from vitrail.explanation.tokens import tokens_on_grid
from vitrail.inference.parts import MANIFEST, Manifest, normalise_rows, read_blocks, read_manifest
from vitrail.inference.predict import class_names
from vitrail.models.model import Model
from vitrail.tasks.seen_image import to_scores
from vitrail.training.prepare import validation_split
from vitrail.training.recipe_file import NAME as RECIPE
from vitrail.training.recipe_file import read_recipe
from vitrail.weights.digest import digest_of

Kind = Literal["run", "vectors", "images"]
Points = list[list[float]]  # two numbers for each image

MAX_IMAGES = 5000  # that are computed
MAX_PATCH_IMAGES = 400  # whose patches are computed: 196 of 384 numbers each are 60 megabytes
MAX_DISTANCE_IMAGES = 64
SECONDS = 8.0  # for one request
BATCH = 8


@dataclass
class DataContext:
    """`source` has the images and their labels. Of embedded images, `features` are there from the
    beginning; `by_patches` where these are means of patches, all that was embedded."""

    kind: Kind
    name: str
    source: Source
    model: Model
    by_patches: bool = False
    features: dict[int, Float[np.ndarray, " D"]] = field(default_factory=dict)
    scores: dict[int, Float[np.ndarray, " K"]] = field(default_factory=dict)
    patches: dict[int, Float[np.ndarray, "rows columns D"]] = field(default_factory=dict)
    distances: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    unreadable: set[int] = field(default_factory=set)
    umap: "tuple[tuple[int, ...], Future[Points]] | None" = None  # of which images, and its points

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def order(self) -> list[int]:
        """The images to compute, in an order that is the same every time and mixes classes, so that
        the first ones show all of them."""
        return permutation("data", len(self.source))[:MAX_IMAGES].tolist()

    def label(self, index: int) -> str | None:
        """The label of an image, or its labels; None where the data have none."""
        targets, labels = self.source.targets, self.source.labels
        if targets is None:
            return None
        if targets.ndim == 1:
            return labels[int(targets[index])]
        named = np.flatnonzero(targets[index] > 0.5).tolist()
        return ", ".join(labels[place] for place in named) or None

    def prediction(self, index: int) -> tuple[str | None, float | None]:
        """The predicted label and its score; of several labels all that are likelier than not."""
        scores = self.scores.get(index)
        if scores is None:
            return None, None
        names, best = class_names(self.model), int(scores.argmax())
        if not self.model.passport.multi_label:
            return names[best], float(scores[best])
        likely = np.flatnonzero(scores > 0.5).tolist()
        return ", ".join(names[place] for place in likely), float(scores[best])

    def is_mistake(self, index: int) -> bool:
        """Whether the prediction differs from the label; never where the model does not know it."""
        label, (predicted, _) = self.label(index), self.prediction(index)
        if label is None or predicted is None:
            return False
        if self.model.passport.multi_label:
            return set(label.split(", ")) != set(predicted.split(", "))
        return not self.is_foreign(index) and label != predicted

    def is_foreign(self, index: int) -> bool:
        """Whether the model predicts classes, but not the one of this image."""
        label, (predicted, _) = self.label(index), self.prediction(index)
        if label is None or predicted is None or self.model.passport.multi_label:
            return False
        return label not in self.known_labels

    @cached_property
    def known_labels(self) -> frozenset[str]:
        return frozenset(class_names(self.model))

    @torch.no_grad()
    def compute(self, seconds: float = SECONDS) -> None:
        """Features and scores of images that have none yet, for so long, at least of some."""
        if self.kind == "vectors":
            return
        wanted = [index for index in self.order if index not in self.features]
        for indices, images in self.batches(wanted, seconds):
            features, logits = features_and_logits(self.model, images)
            rows = normalise_rows(features.float().cpu().numpy())
            self.features.update(zip(indices, rows, strict=True))
            if self.model.config.num_classes:
                scores = to_scores(self.model, logits).float().cpu().numpy()
                self.scores.update(zip(indices, scores, strict=True))

    @torch.no_grad()
    def compute_patches(self, seconds: float = SECONDS) -> None:
        """The same for patches, of fewer images."""
        if self.by_patches:
            return
        wanted = [i for i in self.order[:MAX_PATCH_IMAGES] if i not in self.patches]
        for indices, images in self.batches(wanted, seconds):
            each = patch_vectors(self.model, self.model.encode(images))
            self.patches.update(zip(indices, each, strict=True))

    @torch.no_grad()
    def compute_distances(self, seconds: float = SECONDS) -> None:
        """How far each head of each attention looks, in pixels, in a few images."""
        wanted = [i for i in self.order[:MAX_DISTANCE_IMAGES] if i not in self.distances]
        for indices, images in self.batches(wanted, seconds):
            found: dict[str, Tensor] = {}

            def keep(name: str, one: AttentionMap, _: Tensor | None, to: Any = found) -> None:
                to[name] = mean_distance(one).float().cpu()

            with forward_hooks(self.model, attention=keep):
                self.model(images)
            for place, index in enumerate(indices):
                self.distances[index] = {name: each[place].tolist() for name, each in found.items()}

    @torch.no_grad()
    def vector_of(self, image: Float[Tensor, "1 C H W"]) -> Float[np.ndarray, " D"]:
        """The features of an image as those of the data are."""
        if self.by_patches:
            patches = patch_vectors(self.model, self.model.encode(image))
            return mean_of_patches(patches)[0]
        return normalise_rows(self.model.features(image).float().cpu().numpy())[0]

    def batches(
        self, wanted: Sequence[int], seconds: float
    ) -> Iterator[tuple[list[int], Float[Tensor, "B C H W"]]]:
        """Images as the model reads them, without those that cannot be read, until time is up."""
        how, until = self.model.passport.preprocessing, time.monotonic() + seconds
        like = next(self.model.parameters())
        wanted = [index for index in wanted if index not in self.unreadable]
        for start in range(0, len(wanted), BATCH):
            found: dict[int, Tensor] = {}
            for index in wanted[start : start + BATCH]:
                try:
                    found[index] = read_image(Sample(self.source, index), how)
                except (BadImage, OSError):
                    self.unreadable.add(index)
            if found:
                pixels = torch.stack(list(found.values()))
                yield list(found), normalise(pixels, how, reorder=False).to(like)
            if time.monotonic() > until:
                return


def features_and_logits(
    model: Model, images: Float[Tensor, "B C H W"]
) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B K"]]:
    """What `model.features` and `model` give, by one pass where one head reads the features."""
    if getattr(model.config, "distilled", False):
        return model.features(images), model(images)
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    handle = model.get_submodule("head").register_forward_pre_hook(keep)
    try:
        logits: Tensor = model(images)
    finally:
        handle.remove()
    return (seen[0] if seen else logits), logits


def patch_vectors(
    model: Model, encoded: Float[Tensor, "B ..."]
) -> Float[np.ndarray, "B rows columns D"]:
    """Features of patches on their grid, at length one."""
    layouts = list(token_layouts(model).values())
    size = model.config.image_size
    grid = tokens_on_grid(encoded, layouts, (size[0], size[1])).grid.float()
    unit = nn.functional.normalize(grid, dim=-1)
    found: Float[np.ndarray, "B rows columns D"] = unit.cpu().numpy().astype(np.float16)
    return found


def mean_of_patches(
    patches: Float[np.ndarray, "B rows columns D"],
) -> Float[np.ndarray, "B D"]:
    return normalise_rows(patches.astype(np.float32).mean(axis=(1, 2)))


def open_data_context(paths: str | Path | Sequence[str | Path], model: Model) -> DataContext | None:
    """The first of what was given that fits the model: embeddings of another model do not. None
    where nothing fits."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    digest = None
    for path in given:
        if (Path(path) / MANIFEST).is_file():
            manifest = read_manifest(Path(path))
            digest = digest or digest_of(model)
            if manifest.digest == digest:
                return open_vectors(Path(path), manifest, model)
        else:
            return open_images(path, model)
    return None


def open_vectors(folder: Path, manifest: Manifest, model: Model) -> DataContext:
    """A directory of embeddings: its images by the names that they were embedded under."""
    by_patches = manifest.output != "pooled"
    most = MAX_PATCH_IMAGES if by_patches else MAX_IMAGES
    names, rows = list[str](), list[Float[np.ndarray, " D"]]()
    for block in read_blocks(folder):
        names += block.ids[: most - len(names)]
        rows += list(block.vectors[: most - len(rows)])
        if len(names) == most:
            break
    if not names:
        raise UserError(f"{folder}: holds no embedded image")
    context = DataContext("vectors", folder.name, Files("", names), model, by_patches)
    for index, row in enumerate(rows):
        if by_patches:
            tokens = torch.from_numpy(row.reshape(1, *manifest.shape).copy())
            patches = patch_vectors(model, tokens)
            context.patches[index], row = patches[0], mean_of_patches(patches)[0]
        context.features[index] = row
    return context


def open_images(path: str | Path, model: Model) -> DataContext:
    """The validation images of a run, or of a data set those for testing or validation, or all."""
    folder = Path(path)
    if (folder / RECIPE).is_file():
        recipe = read_recipe(folder / RECIPE)
        splits = open_data(recipe.data, val_share=recipe.val_share)
        _, source = validation_split(splits, recipe.data)
        return DataContext("run", folder.name, source, model)
    parts = open_data(path, val_share=0).parts
    name = next((name for name in ("test", "val") if name in parts), next(iter(parts)))
    if not len(parts[name]):
        raise UserError(f"{path}: has no images")
    return DataContext("images", Path(path).name, parts[name], model)
