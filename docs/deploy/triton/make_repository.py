"""A model repository for Triton or KServe from a file that `vitrail export` wrote.

vitrail export runs/pets/best --out pets.onnx --features
python docs/deploy/triton/make_repository.py pets.onnx models --name pets
docker run --rm -p 8000:8000 -v "$PWD/models:/models" nvcr.io/nvidia/tritonserver:25.02-py3 \\
    tritonserver --model-repository=/models
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from vitrail.core.errors import UserError
from vitrail.inference.onnx_file import OnnxFile

TYPES = {
    "tensor(float)": "TYPE_FP32",
    "tensor(float16)": "TYPE_FP16",
    "tensor(uint8)": "TYPE_UINT8",
}


def describe(node: Any) -> str:
    """One input or output; Triton adds the batch, which is the first axis, itself."""
    sides = ", ".join("-1" if isinstance(side, str) else str(side) for side in node.shape[1:])
    fields = f'name: "{node.name}"', f"data_type: {TYPES[node.type]}", f"dims: [ {sides} ]"
    return "\n".join(["  {", *(f"    {field}" for field in fields), "  }"])


def make_config(file: Path, *, name: str, batch_size: int) -> str:
    """config.pbtxt for an exported file: its inputs and outputs, and batches up to a size."""
    opened = OnnxFile(file)
    if opened.metadata().graph.batch is not None:
        raise UserError(f"{file}: must take batches of any size: export it without a fixed batch")
    session = opened.session
    inputs = ",\n".join(map(describe, session.get_inputs()))
    outputs = ",\n".join(map(describe, session.get_outputs()))
    return f"""name: "{name}"
backend: "onnxruntime"
max_batch_size: {batch_size}
input [
{inputs}
]
output [
{outputs}
]
dynamic_batching {{
  max_queue_delay_microseconds: 5000
  default_queue_policy {{
    max_queue_size: 256
  }}
}}
instance_group [
  {{
    count: 1
    kind: KIND_CPU
  }}
]
"""


def make_repository(file: Path, repository: Path, *, name: str, batch_size: int = 32) -> Path:
    """repository/name/config.pbtxt and repository/name/1/model.onnx"""
    config = make_config(file, name=name, batch_size=batch_size)
    folder = repository / name
    if folder.exists():
        raise UserError(f"{folder} is there already: remove it, or choose another name")
    (folder / "1").mkdir(parents=True)
    shutil.copyfile(file, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--name", default="vitrail")
    parser.add_argument("--batch-size", type=int, default=32)
    given = parser.parse_args()
    try:
        options = {"name": given.name, "batch_size": given.batch_size}
        print(make_repository(given.file, given.repository, **options))
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
