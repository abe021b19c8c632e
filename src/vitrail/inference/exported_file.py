"""Exported files as models: opened by their suffix, and predictions from them without torch."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.core.exported import SUFFIXES, Exported
from vitrail.core.passport import Passport
from vitrail.data.framing import frame_image, normalise_pixels
from vitrail.data.images import BadImage
from vitrail.data.pixels import Item, name_of, read_pixels
from vitrail.data.threads import batched
from vitrail.inference.onnx_file import OnnxFile
from vitrail.inference.openvino_file import OpenVinoFile
from vitrail.inference.prediction import Output, Prediction, check_finite, rank_classes

ExportedFile: TypeAlias = OnnxFile | OpenVinoFile

FILES: dict[str, type[OnnxFile] | type[OpenVinoFile]] = {".onnx": OnnxFile, ".xml": OpenVinoFile}


def open_exported(path: str | Path, *, threads: int | None = None) -> ExportedFile:
    """The file, ready to run."""
    suffix = Path(path).suffix.lower()
    if suffix not in FILES:
        raise UserError(
            f"{path}: {SUFFIXES[suffix]} files are for devices: give an .onnx or .xml file here"
        )
    return FILES[suffix](path, threads=threads)


def predict_exported(
    file: ExportedFile, items: Iterable[Item], *, top: int, batch_size: int
) -> Iterator[Prediction]:
    """The best labels of every image, in order; one that cannot be read has its problem."""
    known = file.metadata()
    if "logits" not in known.graph.outputs:
        raise UserError(f"{file.path}: this model has no head, so it gives no labels")
    labels = known.passport.labels or [f"class {n}" for n in range(known.num_classes)]
    for batch in batched(items, batch_size):
        for output in compute_scores(file, known, batch):
            yield rank_classes(output, labels, top)


def compute_scores(file: ExportedFile, known: Exported, items: Sequence[Item]) -> list[Output]:
    """Probabilities of the classes for each image of a batch."""
    opened = [read_framed(item, known.passport) for item in items]
    framed = [one for one in opened if not isinstance(one, BadImage)]
    scores = iter(())
    if framed:
        logits = file.run(to_input(np.stack(framed), known))["logits"]
        scores = iter(to_scores(logits, multi_label=known.passport.multi_label))
    return [
        Output(name_of(item), None, one.reason)
        if isinstance(one, BadImage)
        else check_finite(name_of(item), next(scores))
        for item, one in zip(items, opened, strict=True)
    ]


def read_framed(item: Item, passport: Passport) -> NDArray[np.uint8] | BadImage:
    """(C, H, W), or why it cannot be read."""
    how = passport.preprocessing
    try:
        pixels = read_pixels(item, channels=len(how.mean), bits=how.bits, padded=True)
        return frame_image(pixels, how)
    except BadImage as problem:  # without its frames, which keep the file's bytes alive
        return problem.with_traceback(None)


def to_input(pixels: NDArray[np.uint8], known: Exported) -> NDArray[np.generic]:
    """Framed pixels (B, C, H, W) as the graph reads them."""
    how = known.passport.preprocessing
    if known.graph.input == "float":
        return normalise_pixels(pixels, how)
    rgb = pixels[:, ::-1] if how.channel_order == "bgr" else pixels
    return np.ascontiguousarray(rgb.transpose(0, 2, 3, 1))


def to_scores(logits: NDArray[np.float32], *, multi_label: bool) -> NDArray[np.float32]:
    """Logits as probabilities: a sigmoid for each label, or a softmax over classes.

    >>> to_scores(np.zeros((1, 4), np.float32), multi_label=False)
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if multi_label:
            return np.reciprocal(1 + np.exp(-logits))
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
