"""ExecuTorch: a .pte file for phones, its layers computed by XNNPACK. Metadata are constant methods
of the program: `vitrail_passport`, `vitrail_graph` and `labels` return a text each."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.exporters.target import Request, Runner, Target
from vitrail.inference.graph import output_names

NAMES = "output_names"  # a constant method: their names, separated by commas


def convert(request: Request, metadata: Mapping[str, str], out: Path) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program = request.program(batch=1)
    texts = {key.replace(".", "_"): value for key, value in metadata.items()}
    texts[NAMES] = ",".join(output_names(program))
    lowered = to_edge_transform_and_lower(
        program, partitioner=[XnnpackPartitioner()], constant_methods=texts
    )
    with out.open("wb") as file:
        lowered.to_executorch().write_to_file(file)


def open_file(path: Path) -> Runner:
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(path)
    (text,) = program.load_method(NAMES).execute([])
    names, forward = str(text).split(","), program.load_method("forward")

    def run(images: NDArray[np.generic]) -> dict[str, NDArray[np.float32]]:
        found = forward.execute([torch.from_numpy(images)])
        # the runtime reuses its memory at the next call
        return {name: one.numpy().copy() for name, one in zip(names, found, strict=True)}

    return run


TARGET = Target(
    name="executorch",
    title="ExecuTorch",
    suffix=".pte",
    packages=("executorch",),
    extra="mobile",
    convert=convert,
    open=open_file,
    precisions=("float32",),
    batch=1,
)
