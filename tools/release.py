"""A release before it is published: the contents of wheel and sdist, and every verb run from them.

    python -m tools.release dist

installs the wheel with its core dependencies into a new virtual environment, pinned by
constraints.txt, and runs every verb there. A verb whose extra is missing must say so in one
sentence and exit with 2.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from vitrail.cli.app import VERBS

ROOT = Path(__file__).parents[1]
MAX_WHEEL = 3_000_000  # bytes
IN_WHEEL = (
    "vitrail/py.typed",
    "vitrail/pages/style.css",
    "vitrail/pages/window/index.html",
    "vitrail/exporters/web/site/index.html",
)
IN_SDIST = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "constraints.txt",
    "mkdocs.yml",
    "examples/fine_tune_a_folder.py",
    "docs/tour.md",
)

# Each line is a command in one directory; `!` marks one that needs an extra, which is not there,
# and `?` one that needs what such a command would have written.
SMOKE = """
models swin*
info vit_ti_16
demo --out demo --epochs 1
train digits --out run --epochs 1
evaluate run/best digits
report run
doctor digits
probe run/best digits --method knn
predict run/best digit.png
explain run/best digit.png --out why
figures run/best digits --out figures --max-images 16
convert run/best timm.safetensors --to timm
pretrain digits --objective mae --epochs 1 --out mae
bench run/best --engine eager --batch-size 1 --seconds 0.5
compare digits --models vit_ti_16 resnet18 --seeds 1 --steps 1 --out compared --dry-run
reproduce positions --data digits --out reproduced --dry-run
plan vit_b_16 --gpus 8
check my_model.py:ViT
adopt my.pth --code my_model.py:ViT --out mine
!embed run/best digit.png --out vectors
?search vectors digit.png
?duplicates vectors
!export run/best --out model.onnx
!serve run/best --port 0
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path)
    dist = parser.parse_args().dist
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    check_verbs()
    check_contents(wheel, sdist)
    with tempfile.TemporaryDirectory() as folder:
        smoke_test(wheel.resolve(), Path(folder))


def check_contents(wheel: Path, sdist: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in IN_WHEEL if name not in names]
    strangers = [name for name in names if not name.startswith("vitrail")]
    size = wheel.stat().st_size
    assert not missing, f"missing from the wheel: {missing}"
    assert not strangers, f"not ours in the wheel: {strangers}"
    assert size <= MAX_WHEEL, f"the wheel has {size:,} bytes, at most {MAX_WHEEL:,} are expected"
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in IN_SDIST if name not in inside]
    assert not missing, f"missing from the sdist: {missing}"
    print(f"{wheel.name}: {len(names)} files, {size:,} bytes; {sdist.name}: {len(inside)} files")


def prepare(place: Path, python: Path, environment: dict[str, str]) -> None:
    """An image, a model that somebody wrote, and its weights."""
    shutil.copy(ROOT / "tests" / "zoo" / "einops_blocks.py", place / "my_model.py")
    make = """
import numpy, torch
from PIL import Image
from sklearn.datasets import load_digits
from my_model import ViT
Image.fromarray((load_digits().images[0] * 15.9).astype(numpy.uint8)).save("digit.png")
torch.save(ViT().state_dict(), "my.pth")
"""
    subprocess.run([python, "-c", make], check=True, cwd=place, env=environment)


def check_verbs() -> None:
    """Every verb has a line in SMOKE."""
    tried = {line.lstrip("!?").split()[0] for line in SMOKE.strip().splitlines()}
    missing = {verb.__name__ for verb in VERBS.values()} - tried
    assert not missing, f"verbs that are not tried: {sorted(missing)}"


def smoke_test(wheel: Path, folder: Path) -> None:
    """Every verb, with nothing but the wheel and what it depends on."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    pins = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | pins
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", str(wheel)]
    subprocess.run(install, check=True, env=environment)
    place = folder / "place"
    place.mkdir()
    prepare(place, python, environment)
    failed = []
    for line in SMOKE.strip().splitlines():
        refused = line.startswith(("!", "?"))
        command = [str(python), "-m", "vitrail", *line.lstrip("!?").split()]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
        right = done.returncode == (2 if refused else 0) and "Traceback" not in done.stderr
        if line.startswith("!"):
            right = right and "which is not installed: pip install" in done.stderr
        print(f"{'ok' if right else 'FAILED'}  vitrail {line.lstrip('!?')}")
        if refused:
            print(f"      {done.stderr.strip().splitlines()[-1:]}")
        if not right:
            failed.append(line)
            print(json.dumps({"code": done.returncode, "stderr": done.stderr[-2000:]}, indent=2))
    if failed:
        sys.exit(f"{len(failed)} verbs failed")


if __name__ == "__main__":
    main()
