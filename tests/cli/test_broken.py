"""A folder in which every tenth file is broken: training ends, and the report names just those."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.pages.html import check_page

from vitrail.cli.app import main


@pytest.mark.slow
def test_four_hundred_images_of_which_forty_are_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    broken = set()
    for number in range(400):
        label = ("bright", "dark")[number % 2]
        path = tmp_path / "photos" / label / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        level = 190 if label == "bright" else 60
        pixels = (level + draw.integers(-50, 50, (16, 16, 3))).astype(np.uint8)
        Image.fromarray(pixels).save(path)
        if number % 10 == 3:
            whole = path.read_bytes()
            damage = (whole[: len(whole) // 2], b"", b"no image", whole[:20])
            path.write_bytes(damage[number // 10 % 4])
            broken.add(str(path))
    assert len(broken) == 40
    asked = ["train", str(tmp_path / "photos"), "--epochs", "1", "--json", "--image-size", "16"]
    small = ("dim=16", "depth=1", "heads=2", "mlp_dim=32", "patch_size=8")
    asked += [word for field in small for word in ("--set", f"fields.{field}")]
    # ten times as many as a recipe accepts
    assert main([*asked, "--out", str(tmp_path / "stopped")]) == 2
    assert "max_broken" in capsys.readouterr().err
    out = tmp_path / "run"
    assert main([*asked, "--out", str(out), "--set", "max_broken=0.2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["image"] for one in told["broken"]} == broken
    assert told["score"] > 0.8
    page = check_page((out / "report.html").read_text(encoding="utf-8")).text
    section = page[page.index("could not be read and were skipped") :]
    section = section[: section.index("Classes of the data")]
    named = set(re.findall(r"(?:bright|dark)/\d{4}\.png", section))
    assert named == {f"{Path(name).parent.name}/{Path(name).name}" for name in broken}
