"""What probes read of all images of a source, computed once and kept in a file.

Every image passes the model once. What is kept of it is what the head reads; where a sweep asks for
more, also what the last four blocks say, as DINOv2's linear evaluation reads it (arXiv:2304.07193):
the class token of each, under the model's last norm, and the mean of the patches of the very last.
A family without a class token has the mean of the patches of each instead.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError, writing
from vitrail.core.layout import TokenLayout
from vitrail.data.cache import fingerprint_of
from vitrail.data.loader import iterate_batches
from vitrail.data.source import Source
from vitrail.data.sources.origin import digest
from vitrail.models.model import Model
from vitrail.weights.atomic import write_file
from vitrail.weights.digest import digest_of
from vitrail.weights.files import read_tensors, write_tensors

FORMAT = b"vitrail features 3"
DEEPEST = 4  # blocks, counted from the last
INDICES, BROKEN, DIGEST = "indices", "broken", "digest"  # beside the pieces in a file

Watcher = Callable[[int, int], None]  # called with how many of how many images are done


@dataclass(frozen=True)
class Features:
    """Pieces of what a model says of each image that can be read, and the classes of these images.

    A piece is called `head` (what the head reads), `class.0` (the class token of the last block),
    `class.1` (of the one before), … or `mean.0`, … (of the patches). `readings` are pieces side by
    side, as probes read them. `kept` tells that no image was read, because a file had it all.
    """

    pieces: Mapping[str, Float[np.ndarray, "N _"]]
    targets: Int[np.ndarray, " N"]
    indices: Int[np.ndarray, " N"]
    broken: Mapping[str, str]
    kept: bool = False

    @property
    def head(self) -> Float[np.ndarray, "N D"]:
        return self.pieces["head"]

    @property
    def readings(self) -> dict[str, tuple[str, ...]]:
        """The pieces of each reading; none is there twice under two names."""
        found: dict[str, tuple[str, ...]] = {"head": ("head",)}
        for name, pieces in deep_readings(self.pieces).items():
            if len(pieces) > 1 or not alike(self.pieces[pieces[0]], self.head):
                found[name] = pieces
        return found


def deep_readings(pieces: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """DINOv2's: the last block and the last four, without and with the mean of the patches.

    >>> deep_readings({"head": 0, "mean.0": 0, "mean.1": 0})
    {'mean_1': ('mean.0',), 'mean_2': ('mean.1', 'mean.0')}
    """
    first = "class" if "class.0" in pieces else "mean"
    blocks = sum(name.startswith(f"{first}.") for name in pieces)
    found = dict[str, tuple[str, ...]]()
    for count in sorted({min(1, blocks), blocks} - {0}):
        found[f"{first}_{count}"] = tuple(f"{first}.{back}" for back in reversed(range(count)))
    if first == "class":
        found |= {name.replace("_", "_mean_"): (*p, "mean.0") for name, p in found.items()}
    return found


def alike(one: Float[np.ndarray, "N D"], other: Float[np.ndarray, "N E"]) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-3, atol=1e-5)


def features_of(
    model: Model,
    source: Source,
    *,
    name: str,
    deep: bool = False,
    cache: Path | None = None,
    batch_size: int = 64,
    workers: int = 0,
    on_progress: Watcher | None = None,
) -> Features:
    """Every image once, prepared as the model's passport says; `name` is for complaints.

    `deep` adds what the last blocks say. With `cache`, a directory, the images are not read again
    as long as they and the model are the same: the file is named after the fingerprint of the
    source and the values of the model.

    >>> from vitrail.data.sources.digits import open_digits
    >>> from vitrail.data.sources.origin import Subset
    >>> features_of(model, Subset(open_digits()["train"], np.arange(2)), name="digits").head.shape
    (2, 192)
    """
    targets = targets_of(source, name)
    model.eval()
    if cache is None:
        pieces, indices, broken = read_images(model, source, deep, batch_size, workers, on_progress)
        return finite(Features(pieces, targets[indices], indices, broken), name)
    key = digest(FORMAT, fingerprint_of(source).encode(), digest_of(model).encode())
    for file in [place(cache, key, deep=True)] + ([] if deep else [place(cache, key, deep=False)]):
        with suppress(OSError, ValueError, KeyError, UserError):  # none, or one that is damaged
            pieces, indices, broken = read_cache(file, len(source))
            return finite(Features(pieces, targets[indices], indices, broken, kept=True), name)
    with writing(cache):
        cache.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    pieces, indices, broken = read_images(model, source, deep, batch_size, workers, on_progress)
    found = finite(Features(pieces, targets[indices], indices, broken), name)
    write_cache(place(cache, key, deep=deep), found)
    if deep:  # all of the other is in it
        place(cache, key, deep=False).unlink(missing_ok=True)
    return found


def targets_of(source: Source, name: str) -> Int[np.ndarray, " N"]:
    if source.targets is None:
        raise UserError(f"{name}: its images have no labels, and a probe learns from labels")
    if source.targets.ndim == 2:
        raise UserError(
            f"{name}: its images have several labels each, and probes are for one label an image: "
            "vitrail evaluate judges a model of several"
        )
    return source.targets.astype(np.int64)


def finite(found: Features, name: str) -> Features:
    if not len(found.indices):
        raise UserError(f"{name}: none of its images can be read")
    for piece in found.pieces.values():
        if astray := int((~np.isfinite(piece).all(axis=1)).sum()):
            raise UserError(
                f"{name}: for {astray} of {len(piece)} images what the model says is not finite: "
                "its weights went astray in training"
            )
    return found


# The pass over the images


@torch.inference_mode()
def read_images(
    model: Model,
    source: Source,
    deep: bool,
    batch_size: int,
    workers: int,
    on_progress: Watcher | None,
) -> tuple[dict[str, Float[np.ndarray, "N _"]], Int[np.ndarray, " N"], dict[str, str]]:
    """Pieces, which images they are of, and why the others cannot be read."""
    first = next(model.parameters())
    pieces, broken = dict[str, Any](), dict[str, str]()
    indices, done = np.empty(len(source), dtype=np.int64), 0
    for batch in iterate_batches(source, model.passport.preprocessing, batch_size, workers=workers):
        broken |= {bad.path: bad.reason for bad in batch.broken}
        if count := len(batch.images):
            images = batch.images.to(device=first.device, dtype=first.dtype)
            for name, said in pieces_of(model, images, deep).items():
                if name not in pieces:  # room for all at once: nothing is held twice
                    pieces[name] = np.empty((len(source), said.shape[1]), dtype=np.float32)
                pieces[name][done : done + count] = said.float().cpu().numpy()
            indices[done : done + count] = batch.indices
            done += count
        if on_progress is not None:
            on_progress(done + len(broken), len(source))
    return {name: piece[:done] for name, piece in pieces.items()}, indices[:done], broken


def pieces_of(
    model: Model, images: Float[Tensor, "B C H W"], deep: bool
) -> dict[str, Float[Tensor, "B _"]]:
    if not deep:
        return {"head": model.features(images)}
    with last_blocks(model) as blocks:
        pieces = {"head": model.features(images)}
    for back, output in enumerate(reversed(blocks)):
        tokens, prefix = normed_tokens(model, output)
        has_class = prefix > 0 and getattr(model.config, "class_token", True)
        if has_class:
            pieces[f"class.{back}"] = tokens[:, 0]
        if back == 0 or not has_class:
            pieces[f"mean.{back}"] = tokens[:, prefix:].mean(dim=1)
    return pieces


@contextmanager
def last_blocks(model: Model) -> Iterator[deque[Tensor]]:
    """What the last few blocks gave, the very last at the end. A block is a step of the trunk that
    attends; a model in which none does has all its steps as blocks."""
    seen: deque[Tensor] = deque(maxlen=DEEPEST)
    steps = model.blocks_by_depth()
    blocks = [step for step in steps.values() if layouts_of(step)] or list(steps.values())

    def remember(_: nn.Module, __: Any, output: Tensor) -> None:
        seen.append(output)

    handles = [block.register_forward_hook(remember) for block in blocks]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def layouts_of(module: nn.Module) -> list[TokenLayout]:
    """Where the tokens of each attention inside lie."""
    found = (getattr(part, "layout", None) for part in module.modules())
    return [layout for layout in found if isinstance(layout, TokenLayout)]


def normed_tokens(model: Model, x: Tensor) -> tuple[Float[Tensor, "B N D"], int]:
    """The tokens of a block under the model's last norm, where it has one of their width, and how
    many come before the patches. A map of another shape has its channels first, unless its rows
    and columns are those of an attention and come first."""
    layouts = layouts_of(model)
    prefix = layouts[-1].prefix if layouts and x.ndim == 3 else 0
    if x.ndim == 4:
        channels_last = not any(tuple(x.shape[2:]) == one.grid for one in layouts) and any(
            tuple(x.shape[1:3]) == one.grid for one in layouts
        )
        x = x.flatten(1, 2) if channels_last else x.flatten(2).mT
    norm = getattr(model, "norm", None)
    fits = isinstance(norm, nn.LayerNorm) and norm.normalized_shape == (x.shape[2],)
    return (norm(x) if fits and norm is not None else x), prefix


# The file that keeps it


def place(cache: Path, key: str, *, deep: bool) -> Path:
    return cache / f"{key}-{'blocks' if deep else 'head'}.safetensors"


def write_cache(file: Path, found: Features) -> None:
    arrays = {
        **found.pieces,
        INDICES: found.indices,
        BROKEN: np.frombuffer(json.dumps(dict(found.broken)).encode(), dtype=np.uint8).copy(),
    }
    arrays[DIGEST] = np.frombuffer(digest_of_arrays(arrays).encode(), dtype=np.uint8).copy()
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    write_file(file, lambda draft: write_tensors(tensors, draft), overwrite=True)


def digest_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    pieces: list[bytes | memoryview] = []
    for name, array in sorted(arrays.items()):
        pieces += [name.encode(), np.ascontiguousarray(array).view(np.uint8).reshape(-1).data]
    return digest(*pieces)


def read_cache(
    file: Path, count: int
) -> tuple[dict[str, Float[np.ndarray, "N _"]], Int[np.ndarray, " N"], dict[str, str]]:
    """As `read_images`; raises where there is no such file, or one that cannot be it."""
    if not file.is_file():
        raise FileNotFoundError(file)
    arrays = {name: tensor.numpy() for name, tensor in read_tensors(file).items()}
    written = arrays.pop(DIGEST).tobytes().decode()
    if written != digest_of_arrays(arrays):
        raise ValueError(f"{file}: is damaged")
    indices, broken = arrays.pop(INDICES), json.loads(arrays.pop(BROKEN).tobytes())
    whole = len(indices) + len(broken) == count and "head" in arrays
    if not whole or any(len(piece) != len(indices) for piece in arrays.values()):
        raise ValueError(f"{file}: holds other images than its name says")
    return arrays, indices, broken
