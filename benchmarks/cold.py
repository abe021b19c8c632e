"""From a cold start to the label of one photo: `vitrail predict model.onnx photo.jpg` beside
transformers' image classification pipeline, each in a new process.

Both have a ViT of the same size with random weights, on disk. The processes take turns; the first
round, which fills the disk cache and compiles Python modules, does not count.

    python -m benchmarks.cold [--model vit_s_16] [--rounds 7]

prints a Markdown table: the median wall time and processor time of a process.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from vitrail import create, export
from vitrail.core.torchvision import mend_torchvision
from vitrail.models.vit import ViTConfig

PIPELINE = """
import sys
from vitrail.core.torchvision import mend_torchvision
mend_torchvision()
from transformers import pipeline
print(pipeline("image-classification", model=sys.argv[1], device="cpu")(sys.argv[2])[0]["label"])
"""


@dataclass
class Times:
    """Seconds of each round: by the clock, and of the processor."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_s_16")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        photo = folder / "photo.jpg"
        Image.fromarray(load_sample_image("china.jpg")).save(photo)
        commands = {
            "vitrail predict model.onnx": [
                sys.executable, "-m", "vitrail", "predict",
                str(write_onnx(options.model, folder)), str(photo),
            ],
            "transformers pipeline": [
                sys.executable, "-c", PIPELINE, str(write_peer(options.model, folder)), str(photo),
            ],
        }  # fmt: skip
        times = {name: Times() for name in commands}
        for number in range(options.rounds + 1):
            for name, command in commands.items():
                wall, processor = run(command, folder / "bytecode")
                if number:
                    times[name].wall.append(wall)
                    times[name].processor.append(processor)
    print_table(times)


def write_onnx(name: str, folder: Path) -> Path:
    torch.manual_seed(0)
    model = create(name).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    export(model, folder / "model.onnx")
    return folder / "model.onnx"


def write_peer(name: str, folder: Path) -> Path:
    """The same sizes as a transformers model, with its image processor."""
    mend_torchvision()
    from transformers import ViTConfig as PeerConfig
    from transformers import ViTForImageClassification, ViTImageProcessor

    config = create(name).config
    assert isinstance(config, ViTConfig)
    sizes = PeerConfig(
        hidden_size=config.dim,
        num_hidden_layers=config.depth,
        num_attention_heads=config.heads,
        intermediate_size=config.mlp_dim,
        num_labels=config.num_classes,
    )
    ViTForImageClassification(sizes).save_pretrained(folder / "peer")
    ViTImageProcessor().save_pretrained(folder / "peer")
    return folder / "peer"


def run(command: list[str], bytecode: Path) -> tuple[float, float]:
    """Modules are compiled once, as they are for a user, whatever the environment says."""
    given = {"HF_HUB_OFFLINE": "1", "PYTHONPYCACHEPREFIX": str(bytecode)}
    given |= {"PYTHONDONTWRITEBYTECODE": ""}
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=os.environ | given)
    after = os.times()
    processor = sum(after[2:4]) - sum(before[2:4])  # of children: user and system
    return time.perf_counter() - start, processor


def print_table(times: dict[str, Times]) -> None:
    ours, peer = times.values()
    print("| | wall s | processor s |\n|---|---|---|")
    for name, taken in times.items():
        print(f"| {name} | {median(taken.wall):.2f} | {median(taken.processor):.2f} |")
    walls = median(ours.wall) / median(peer.wall)
    processors = median(ours.processor) / median(peer.processor)
    print(f"| ratio | {walls:.3f} | {processors:.3f} |")


if __name__ == "__main__":
    main()
