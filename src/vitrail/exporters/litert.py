"""LiteRT, formerly TensorFlow Lite: a .tflite file. Metadata are in the record beside it: the
converter has no place for them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.eval_mode import eval_mode
from vitrail.exporters.target import Request, Runner, Target
from vitrail.inference.graph import example_images


def convert(request: Request, metadata: Mapping[str, str], out: Path) -> None:
    import litert_torch
    import torch

    graph = request.graph()
    images = example_images(request.model, 1, from_pixels=request.preprocessing)
    with eval_mode(graph), torch.no_grad():
        content = litert_torch.convert(graph, (images,)).model_content()
    out.write_bytes(content)  # its own writer ends the process where the disk is full


def open_file(path: Path) -> Runner:
    from ai_edge_litert.interpreter import Interpreter

    signature: Any = Interpreter(model_path=str(path)).get_signature_runner()
    (given,) = signature.get_input_details()

    def run(images: NDArray[np.generic]) -> dict[str, NDArray[np.float32]]:
        found: dict[str, NDArray[np.float32]] = signature(**{given: images})
        return found

    return run


TARGET = Target(
    name="litert",
    title="LiteRT",
    suffix=".tflite",
    packages=("litert_torch", "ai_edge_litert"),
    extra="litert",
    convert=convert,
    open=open_file,
    precisions=("float32",),
    batch=1,
    embeds_metadata=False,
)
