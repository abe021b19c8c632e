"""Small things under the names that the documentation uses: photos, checkpoints, runs, code."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vitrail
from tests.docs.blocks import ROOT
from vitrail.models.model import Model

LABELS = ("cat", "dog")
CODE = ROOT / "tests" / "zoo" / "einops_blocks.py"
SMALL = {"depth": 2, "dim": 48, "heads": 3, "mlp_dim": 96}


def photo(path: Path, seed: int, size: tuple[int, int] = (40, 32)) -> None:
    """A few soft spots of colour; bright on the left for even seeds, on the right for odd ones."""
    draw = np.random.default_rng(seed)
    coarse = draw.integers(0, 160, (4, 5, 3), dtype=np.uint8)
    coarse[:, slice(0, 2) if seed % 2 == 0 else slice(3, 5)] += 90
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, quality=95)


def photos(place: Path, count: int = 16) -> None:
    for number in range(count):
        photo(place / LABELS[number % 2] / f"{number // 2}.jpg", number)


def small_model(**changes: int) -> Model:
    """A ViT that tells photos apart: with fresh weights every output would be the same."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"image_size": 32, "patch_size": 8, "num_classes": 2} | SMALL | changes
    model = vitrail.create("vit_ti_16", **sizes).eval()
    torch.nn.init.normal_(model.get_parameter("head.classes.weight"))
    model.passport = replace(model.passport, labels=LABELS)
    return model


def trained_run(place: Path) -> None:
    """A run of two steps, of a plain ViT, which other libraries can read."""
    photos(place / "photos")
    vitrail.save(small_model(), place / "start")
    options: dict[str, Any] = {"monitor.examine_data": False}
    vitrail.train(place / "photos", start=place / "start", steps=2, out=place / "run", set=options)


def fashion_mnist(place: Path) -> None:
    """Sixty images of noise, where Debian's package has the real ones: pages need not skip."""
    draw = np.random.default_rng(0)
    for part in ("train", "t10k"):
        pixels = draw.integers(0, 256, (60, 28, 28), dtype=np.uint8)
        arrays = {"images-idx3": pixels, "labels-idx1": np.arange(60, dtype=np.uint8) % 10}
        for name, array in arrays.items():
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
            file = place / "datasets" / "fashion-mnist" / f"{part}-{name}-ubyte"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(header + array.tobytes())


def code(place: Path) -> None:
    """A ViT as a learner writes it, under the names of the pages."""
    place.write_text(CODE.read_text(encoding="utf-8") + "\n\nMyViT = ViT\n", encoding="utf-8")


def keys(place: Path) -> None:
    place.write_text("a-key-of-sixteen-letters admin\n", encoding="utf-8")


class Sandbox:
    """A directory in which a page's commands find what they name. Only what the page's text has is
    made, and what many pages share is copied from `shared`."""

    def __init__(self, place: Path, shared: Path, text: str) -> None:
        self.place, self.shared, self.text = place, shared, text
        self.model = small_model()

    def fill(self) -> None:
        makers: dict[str, Callable[[Path], None]] = {
            "photos": photos,
            "pets": photos,
            "few": photos,
            "flowers": photos,
            "album": photos,
            "cat.jpg": lambda path: photo(path, 0),
            "dog.jpg": lambda path: photo(path, 1),
            "photo.jpg": lambda path: photo(path, 2),
            "my_model.py": code,
            "my.py": code,
            "B_16.npz": lambda path: self.convert(path, "vit_jax"),
            "keys.txt": keys,
        }
        for name, make in makers.items():
            if name in self.text:
                make(self.place / name)
        runs = ("pets", "digits", "flowers", "photos", "vit", "resnet", "a", "b", "phone", "other")
        for name in runs:
            if f"runs/{name}" in self.text:
                shutil.copytree(self.shared / "run", self.place / "runs" / name)
        if "my.pth" in self.text:
            torch.save(user_module().state_dict(), self.place / "my.pth")
        if "vectors" in self.text and "vitrail embed" not in self.text:
            vitrail.embed(self.model, self.place / "photos", out=self.place / "vectors")

    def convert(self, path: Path, dialect: str) -> None:
        vitrail.save(self.model, self.place / ".model")
        vitrail.convert(self.place / ".model", path, to=dialect)
        shutil.rmtree(self.place / ".model")

    def names(self) -> dict[str, object]:
        """What Python blocks may use without having made it."""
        import timm

        image = None
        if (self.place / "cat.jpg").exists():
            with Image.open(self.place / "cat.jpg") as opened:
                image = opened.copy()
        return {
            "vitrail": vitrail,
            "vt": vitrail,
            "torch": torch,
            "model": self.model,
            "images": torch.rand(1, 3, 32, 32),
            "image": image,
            "pil_image": image,
            "array": np.zeros((32, 32, 3), np.uint8),
            "module": user_module() if "module" in self.text else None,
            "my_vit": user_module() if "my_vit" in self.text else None,
            "vit": self.model,
            "resnet": small_model(depth=1),
            "timm_model": timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=3).eval()
            if "timm_model" in self.text
            else None,
        }


def user_module() -> torch.nn.Module:
    """An object of the class that `code` writes."""
    from tests.zoo import einops_blocks

    made: Any = einops_blocks.ViT
    module: torch.nn.Module = made()
    return module.eval()
