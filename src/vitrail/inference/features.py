"""Features of every image of a source, as probes read them, computed once and cached in a file.

Every image passes the model once. What is kept of it is what the head reads; for linear probes also
the outputs of the last four blocks, as DINOv2's linear evaluation reads them (arXiv:2304.07193):
the class token of each, under the model's last norm, and the mean of the patches of the very last.
A family without a class token has the mean of the patches of each instead.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from vitrail.core.native_size import NativeSize
from vitrail.core.passport import Preprocessing
from vitrail.data.cache import fingerprint_of
from vitrail.data.loader import Batch, iterate_batches
from vitrail.data.source import Source
from vitrail.data.sources.origin import digest
from vitrail.inference.engine import Job, plan_of
from vitrail.inference.engines.auto import open_runner
from vitrail.inference.engines.catalogue import AUTO, EAGER, check_engine
from vitrail.inference.merging import Tokens, unmerge
from vitrail.inference.packing import PackedRunner
from vitrail.models.model import Model
from vitrail.weights.atomic import write_file
from vitrail.weights.digest import digest_of
from vitrail.weights.files import read_tensors, write_tensors

FORMAT = b"vitrail features 3"
MAX_BLOCKS = 4  # counted from the last
INDICES, BROKEN, DIGEST = "indices", "broken", "digest"  # beside the vectors in a file

OnProgress = Callable[[int, int], None]  # how many images are done, and of how many


@dataclass(frozen=True)
class Reading:
    """How images are read: so many at once, by so many processes (0: this one), and each at its
    native size if one is given."""

    batch_size: int = 64
    workers: int = 0
    native: NativeSize | None = None

    def batches(self, source: Source, how: Preprocessing) -> Iterator[Batch]:
        return iterate_batches(
            source, how, self.batch_size, workers=self.workers, native=self.native
        )


@dataclass(frozen=True)
class Features:
    """Feature vectors of each image that can be read, and the classes (N,) of these images.

    `vectors` are called `head` (what the head reads), `class.0` (the class token of the last
    block), `class.1` (of the one before), … or `mean.0`, … (of the patches). `combinations` are
    vectors side by side, as probes read them. `cached`: no image was read, because a file had all.
    """

    vectors: Mapping[str, Float[np.ndarray, "N _"]]
    targets: Int[np.ndarray, " N"]
    indices: Int[np.ndarray, " N"]
    broken: Mapping[str, str]
    cached: bool = False

    @property
    def head(self) -> Float[np.ndarray, "N D"]:
        return self.vectors["head"]

    @property
    def combinations(self) -> dict[str, tuple[str, ...]]:
        """The vectors of each combination; none is there twice under two names."""
        found: dict[str, tuple[str, ...]] = {"head": ("head",)}
        for name, vectors in block_combinations(self.vectors).items():
            if len(vectors) > 1 or not nearly_equal(self.vectors[vectors[0]], self.head):
                found[name] = vectors
        return found


def block_combinations(vectors: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """DINOv2's: the last block and the last four, without and with the mean of the patches.

    >>> block_combinations({"head": 0, "mean.0": 0, "mean.1": 0})
    {'mean_1': ('mean.0',), 'mean_2': ('mean.1', 'mean.0')}
    """
    first = "class" if "class.0" in vectors else "mean"
    blocks = sum(name.startswith(f"{first}.") for name in vectors)
    found = dict[str, tuple[str, ...]]()
    for count in sorted({min(1, blocks), blocks} - {0}):
        found[f"{first}_{count}"] = tuple(f"{first}.{back}" for back in reversed(range(count)))
    if first == "class":
        found |= {name.replace("_", "_mean_"): (*v, "mean.0") for name, v in found.items()}
    return found


def nearly_equal(one: Float[np.ndarray, "N D"], other: Float[np.ndarray, "N E"]) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-3, atol=1e-5)


def compute_features(
    model: Model,
    source: Source,
    *,
    name: str,
    with_blocks: bool = False,
    cache: Path | None = None,
    engine: str = EAGER,
    reading: Reading | None = None,
    on_progress: OnProgress | None = None,
) -> Features:
    """Read every image once, prepared as the model's passport says; `name` is that of the data in
    errors.

    `with_blocks` adds the outputs of the last blocks. With `cache`, a directory, the images are not
    read again as long as they and the model are the same: the file is named after the fingerprint
    of the source and the values of the model. Other engines than eager give what the head reads
    alone, not the outputs of blocks.

    >>> from vitrail.data.sources.digits import open_digits
    >>> from vitrail.data.sources.origin import Subset
    >>> few = Subset(open_digits()["train"], np.arange(2))
    >>> compute_features(model, few, name="digits").head.shape
    (2, 192)
    """
    targets = targets_of(source, name)
    check_engine(engine)
    reading = reading or Reading()
    if with_blocks and (engine not in (AUTO, EAGER) or reading.native is not None):
        raise UserError(f"the outputs of blocks need the engine eager and one size, got {engine}")
    model.eval()

    def compute() -> Features:
        vectors_of = open_vectors(model, with_blocks, reading, engine, len(source))
        batches = reading.batches(source, model.passport.preprocessing)
        vectors, indices, broken = run_model(vectors_of, batches, len(source), on_progress)
        return check_finite(Features(vectors, targets[indices], indices, broken), name)

    if cache is None:
        return compute()
    native = () if reading.native is None else (repr(reading.native),)
    texts = (fingerprint_of(source), digest_of(model), *native)
    key = digest(FORMAT, *(text.encode() for text in texts))
    all_files = {blocks: cache_file(cache, key, with_blocks=blocks) for blocks in (True, False)}
    for blocks in (True,) if with_blocks else (True, False):
        with suppress(OSError, ValueError, KeyError, UserError):  # none, or one that is damaged
            vectors, indices, broken = read_cache(all_files[blocks], len(source))
            found = Features(vectors, targets[indices], indices, broken, cached=True)
            return check_finite(found, name)
    with writing(cache):
        cache.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    found = compute()
    write_cache(all_files[with_blocks], found)
    if with_blocks:  # all of the other is in it
        all_files[False].unlink(missing_ok=True)
    return found


def targets_of(source: Source, name: str) -> Int[np.ndarray, " N"]:
    if source.targets is None:
        raise UserError(f"{name} has no labels: a probe learns from labelled images")
    if source.targets.ndim == 2:
        raise UserError(
            f"{name} must have one label an image for a probe, got several: vitrail evaluate "
            "measures multi-label models"
        )
    return source.targets.astype(np.int64)


def check_finite(found: Features, name: str) -> Features:
    if not len(found.indices):
        raise UserError(f"{name}: none of its images can be read")
    for vectors in found.vectors.values():
        if bad := int((~np.isfinite(vectors).all(axis=1)).sum()):
            raise UserError(
                f"{name}: features are NaN or infinite for {bad} of {len(vectors)} images: the "
                "model diverged in training"
            )
    return found


# The pass over the images


Vectors = dict[str, Float[np.ndarray, "B _"]]


def open_vectors(
    model: Model, with_blocks: bool, reading: Reading, engine: str, images: int
) -> Callable[[Any], Vectors]:
    """A function from a batch of images to their vectors, by name."""
    if reading.native is not None:
        packed = PackedRunner(model, "pooled", max_tokens=reading.native.max_tokens)
        return lambda images: {"head": packed(images)}
    if not with_blocks:
        plan = plan_of(
            model,
            Job(output="pooled", batch_size=reading.batch_size),
            threads=torch.get_num_threads(),
        )
        opened = open_runner(model, plan, engine, images=images)
        return lambda images: {"head": opened.compute(images)}

    @torch.inference_mode()
    def compute(images: Tensor) -> Vectors:
        vectors = compute_vectors(model, images.to(next(model.parameters())), with_blocks)
        return {name: values.float().cpu().numpy() for name, values in vectors.items()}

    return compute


def run_model(
    vectors_of: Callable[[Any], Vectors],
    batches: Iterable[Batch],
    images: int,
    on_progress: OnProgress | None,
) -> tuple[dict[str, Float[np.ndarray, "N _"]], Int[np.ndarray, " N"], dict[str, str]]:
    """Vectors of so many images, which images they are of, and why the others cannot be read."""
    vectors, broken = dict[str, Any](), dict[str, str]()
    indices, done = np.empty(images, dtype=np.int64), 0
    for batch in batches:
        broken |= {bad.path: bad.reason for bad in batch.broken}
        if count := len(batch.images):
            for name, values in vectors_of(batch.images).items():
                if name not in vectors:  # allocated once: nothing is held twice
                    vectors[name] = np.empty((images, values.shape[1]), dtype=np.float32)
                vectors[name][done : done + count] = values
            indices[done : done + count] = batch.indices
            done += count
        if on_progress is not None:
            on_progress(done + len(broken), images)
    return {name: values[:done] for name, values in vectors.items()}, indices[:done], broken


def compute_vectors(
    model: Model, images: Float[Tensor, "B C H W"], with_blocks: bool
) -> dict[str, Float[Tensor, "B _"]]:
    if not with_blocks:
        return {"head": model.features(images)}
    with last_blocks(model) as blocks:
        vectors = {"head": model.features(images)}
    for back, output in enumerate(reversed(blocks)):
        tokens, prefix = normed_tokens(model, output)
        has_class = prefix > 0 and getattr(model.config, "class_token", True)
        if has_class:
            vectors[f"class.{back}"] = tokens[:, 0]
        if back == 0 or not has_class:
            vectors[f"mean.{back}"] = tokens[:, prefix:].mean(dim=1)
    return vectors


@contextmanager
def last_blocks(model: Model) -> Iterator[deque[Tensor]]:
    """The outputs of the last few blocks, the very last at the end: of those that attend, or of all
    where none does. Merged tokens are given to all of their parts again."""
    seen: deque[Tensor] = deque(maxlen=MAX_BLOCKS)
    steps = model.blocks_by_depth()
    blocks = [step for step in steps.values() if layouts_of(step)] or list(steps.values())

    def store(_: nn.Module, __: Any, output: Tensor | Tokens) -> None:
        seen.append(unmerge(model, output) if isinstance(output, Tokens) else output)

    handles = [block.register_forward_hook(store) for block in blocks]
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


# The cache


def cache_file(cache: Path, key: str, *, with_blocks: bool) -> Path:
    return cache / f"{key}-{'blocks' if with_blocks else 'head'}.safetensors"


def write_cache(file: Path, found: Features) -> None:
    arrays = {
        **found.vectors,
        INDICES: found.indices,
        BROKEN: np.frombuffer(json.dumps(dict(found.broken)).encode(), dtype=np.uint8).copy(),
    }
    arrays[DIGEST] = np.frombuffer(digest_of_arrays(arrays).encode(), dtype=np.uint8).copy()
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    write_file(file, lambda draft: write_tensors(tensors, draft), overwrite=True)


def digest_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    parts: list[bytes | memoryview] = []
    for name, array in sorted(arrays.items()):
        parts += [name.encode(), np.ascontiguousarray(array).view(np.uint8).reshape(-1).data]
    return digest(*parts)


def read_cache(
    file: Path, count: int
) -> tuple[dict[str, Float[np.ndarray, "N _"]], Int[np.ndarray, " N"], dict[str, str]]:
    """As `run_model`; raises where there is no such file, or one that cannot be it."""
    if not file.is_file():
        raise FileNotFoundError(file)
    arrays = {name: tensor.numpy() for name, tensor in read_tensors(file).items()}
    written = arrays.pop(DIGEST).tobytes().decode()
    if written != digest_of_arrays(arrays):
        raise ValueError(f"{file}: is damaged")
    indices, broken = arrays.pop(INDICES), json.loads(arrays.pop(BROKEN).tobytes())
    complete = len(indices) + len(broken) == count and "head" in arrays
    if not complete or any(len(values) != len(indices) for values in arrays.values()):
        raise ValueError(f"{file}: holds other images than its name says")
    return arrays, indices, broken
