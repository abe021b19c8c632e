"""The web target: a static folder with the graph, ONNX Runtime Web and the files of the page.

index.html  style.css  strings.json  app/…   the page, as it is in site/
model.onnx  model.json                       the graph, and what the page must know about it
sw.js                                        caches all of it, so that it works offline
manifest.webmanifest  icons/…                an app that can be installed
runtime/…                                    ONNX Runtime Web and its licence
export.json                                  the record of the comparison
"""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.core.errors import UserError
from vitrail.core.json_text import to_json
from vitrail.data.framing import normalise_pixels
from vitrail.exporters import onnx
from vitrail.exporters.target import Request, Runner, Target
from vitrail.exporters.web.icons import write_icons
from vitrail.exporters.web.runtime import FILES, check_runtime, copy_runtime
from vitrail.inference.onnx_file import OnnxFile
from vitrail.inference.quantisation import Quantisation

SITE = Path(__file__).with_name("site")
MODEL = "model.onnx"
# How far a device may be from what ONNX Runtime computes here, as a share of the largest value.
DEVICE_TOLERANCES = {"float32": 2e-3, "float16": 5e-2, "int8": 0.2}


def refuse(request: Request) -> None:
    """What a page cannot do."""
    if request.preprocessing:
        raise UserError("preprocessing must be off for the web: the page prepares images itself")
    how = request.model.passport.preprocessing
    if not how.is_photo:
        raise UserError(
            f"the model reads {len(how.mean)} channels of {how.bits} bits, a page reads photos "
            "of 1 or 3 channels and 8 bits: export it to onnx"
        )
    size = sum(tensor.nbytes for tensor in request.model.state_dict().values())
    if size > onnx.LARGEST:
        raise UserError(
            f"a model for a browser must have at most {onnx.LARGEST:,} bytes, got {size:,}"
        )
    check_runtime(request.runtime)


def convert(request: Request, metadata: Mapping[str, str], out: Path) -> Quantisation | None:
    """Every file of the folder but its record."""
    runtime = copy_runtime(request.runtime, out / "runtime")
    record = onnx.convert(request, metadata, out / MODEL)
    shutil.copytree(SITE, out, dirs_exist_ok=True)
    write_icons(out / "icons")
    facts = model_facts(request, out / MODEL) | {"runtime": runtime}
    (out / "model.json").write_text(to_json(facts, indent=1) + "\n", encoding="utf-8")
    write_worker(out)
    return record


def model_facts(request: Request, file: Path) -> dict[str, Any]:
    """What the page must know, as plain values."""
    passport, runner = request.model.passport, OnnxFile(file)
    how = passport.preprocessing
    images = normalise_pixels(device_pattern(how.size, len(how.mean)), how)
    found = runner.run(images[None])
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    covers = request.maps.covers if request.maps else {}
    return {
        "format": 1,
        "version": version("vitrail"),
        "title": type(request.model).__name__,
        "digest": digest,
        "bytes": file.stat().st_size,
        "precision": request.precision,
        "classes": request.model.config.num_classes,
        "labels": passport.labels,
        "multi_label": passport.multi_label,
        "features": int(found["pooled"].shape[1]),
        "preprocessing": asdict(how) | {"vertical_first": vertical_first()},
        "maps": [{"name": name, "covers": covered} for name, covered in covers.items()],
        "runtime_files": FILES,
        "test": {
            "output": request.output,
            "values": found[request.output][0].tolist(),
            "tolerance": DEVICE_TOLERANCES[request.precision],
        },
    }


def device_pattern(size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """The image by which a device tests itself (`testPattern` of preprocess.js): (C, H, W)."""
    c, y, x = np.ogrid[:channels, : size[0], : size[1]]
    return ((7 * x + 13 * y + 29 * c + ((x * y) >> 3)) & 255).astype(np.uint8)


def vertical_first() -> bool:
    """Whether this Pillow begins with the vertical pass where height loses more than twice as many
    pixels as width, as it does from version 13 on: bytes are rounded after each pass."""
    pixels = np.random.default_rng(0).integers(0, 2, (64, 16)).astype(np.uint8) * 255
    image, bicubic = Image.fromarray(pixels), Image.Resampling.BICUBIC
    steps = image.resize((16, 9), bicubic).resize((15, 9), bicubic)
    return image.resize((15, 9), bicubic).tobytes() == steps.tobytes()


def write_worker(out: Path) -> None:
    """The service worker begins with the files that it caches, and a name for their content."""
    digest = hashlib.sha256()
    every = (file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file())
    names = sorted(name for name in every if name != "sw.js")
    for name in (*names, "sw.js"):
        digest.update(name.encode() + b"\0" + hashlib.sha256((out / name).read_bytes()).digest())
    head = f'const BUILD = "{digest.hexdigest()[:16]}";\nconst FILES = {to_json(names)};\n'
    code = (SITE / "sw.js").read_text(encoding="utf-8")
    (out / "sw.js").write_text(head + code, encoding="utf-8")


def open_folder(path: Path) -> Runner:
    return OnnxFile(path / MODEL).run


TARGET = Target(
    name="web",
    title="Web",
    suffix="",
    packages=("onnx", "onnxscript", "onnxruntime"),
    extra="fast",
    convert=convert,
    open=open_folder,
    precisions=("float32", "float16", "int8"),
    folder=True,
    checksum="crc32",
    refuse=refuse,
)
