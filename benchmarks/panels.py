"""What every method shows of one photo, for a small model of each family: docs/explain.

Models are trained here from scratch, for a few minutes each, on the photos of pets and flowers of
the golden data. The photo that is explained comes with scikit-learn; no model has seen it.

    python -m benchmarks.panels GOLDEN --runs DIRECTORY [--only FAMILY] [--epochs N] [--threads N]
"""

import argparse
import json
from pathlib import Path
from typing import Any

from PIL import Image
from sklearn.datasets import load_sample_images

from vitrail.cli.app import main as vitrail

DOCS = Path(__file__).parents[1] / "docs" / "explain"
FINE, COARSE = {"image_size": (96, 96)}, {"image_size": (128, 128)}  # whose last stride is 32
SWIN = {
    **FINE,
    "dim": 32,
    "depths": (2, 2, 2),
    "heads": (2, 4, 8),
    "window_size": 6,
    "mlp_ratio": 2.0,
}
VIT = {**FINE, "patch_size": 8, "dim": 96, "depth": 4, "heads": 4, "mlp_dim": 192}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_ti_16", VIT),
    "hybrid": (
        "vit_ti_16",
        {**VIT, "patch_size": 2, "stem": {"blocks": ()}, "pool": "mean", "class_token": False},
    ),
    "beit": ("beit_b_16", VIT),
    "swin": ("swin_t", SWIN),
    "swinv2": ("swinv2_t", SWIN),
    "mobilevit": (
        "mobilevit_xxs",
        {
            **COARSE,
            "widths": (8, 16, 24, 32, 48),
            "dims": (32, 48, 64),
            "depths": (2, 2, 1),
            "last": 128,
        },
    ),
    "mobilevitv2": ("mobilevitv2_050", {**COARSE, "depths": (2, 2, 1)}),
    "coatnet": ("coatnet_0", {**COARSE, "stem": (16, 16), "dims": (24, 32, 64, 96)}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("golden", type=Path, help="the folder with pets and flowers")
    parser.add_argument("--runs", type=Path, required=True, help="where models are kept and found")
    parser.add_argument("--only", choices=list(FAMILIES))
    parser.add_argument("--epochs", type=float, default=25)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    data = things(arguments.golden, arguments.runs / "things")
    photo = flower(arguments.runs / "flower.png")
    for family in [arguments.only] if arguments.only else FAMILIES:
        train(family, data, arguments)
        draw(family, photo, arguments)


def things(golden: Path, folder: Path) -> Path:
    """Class folders of links."""
    for ours, pets, flowers in (("train", "train", "train"), ("val", "test", "val")):
        for photo in sorted((golden / "pets" / pets).glob("*/*")):
            link(photo, folder / ours / "pet")
        for photo in sorted((golden / "flowers" / flowers).glob("*/*")):
            link(photo, folder / ours / "flower")
    return folder


def link(photo: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = folder / f"{photo.parent.name}-{photo.name}"
    if not name.is_symlink():
        name.symlink_to(photo.resolve())


def flower(path: Path) -> Path:
    """The dahlia of scikit-learn (photo by dany13, CC BY 2.0)."""
    Image.fromarray(load_sample_images().images[1]).save(path)
    return path


def train(family: str, data: Path, arguments: argparse.Namespace) -> None:
    out = arguments.runs / family
    if (out / "best").is_dir():
        return
    model, fields = FAMILIES[family]
    changed = [f"fields.{name}={json.dumps(value)}" for name, value in fields.items()]
    words = [*("train", data, "--model", model, "--out", out)]
    words += ["--epochs", arguments.epochs, "--batch-size", 32, "--threads", arguments.threads]
    words += ["--lr", 3e-3, "--set", "optimiser.name=muon", "--workers", 0]
    words += [word for each in changed for word in ("--set", each)]
    assert vitrail([str(word) for word in words]) == 0, family


def draw(family: str, photo: Path, arguments: argparse.Namespace) -> None:
    """Every method side by side, as JPEG: a page of docs stays light."""
    out, model = arguments.runs / f"{family}-explained", arguments.runs / family / "best"
    words = ["explain", model, photo, "--method", "all", "--target", "flower", "--out", out]
    assert vitrail([str(word) for word in words]) == 0
    DOCS.mkdir(parents=True, exist_ok=True)
    with Image.open(out / "flower.methods.png") as panel:
        small = panel.convert("RGB").resize((panel.width // 2, panel.height // 2))
        small.save(DOCS / f"{family}.jpg", quality=88)


if __name__ == "__main__":
    main()
