"""Which images are alike: ties by name, and a threshold that the data itself chooses."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import torch
from PIL import Image

import vitrail
from tests.golden import golden
from vitrail.core.json_text import utf8_name
from vitrail.inference.arrow import EmbeddingTable
from vitrail.inference.embed import embed_local
from vitrail.inference.engine import Job, Output
from vitrail.inference.nearest import find_duplicates, find_nearest
from vitrail.inference.parts import write_part


def write(folder: Path, vectors: np.ndarray, names: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    rows = [
        Output(name, vector.astype(np.float32)) for name, vector in zip(names, vectors, strict=True)
    ]
    write_part(folder, EmbeddingTable("float32")(rows))


def test_of_equals_the_first_by_name_comes_first(tmp_path: Path) -> None:
    """Wherever they lie, and where more are equal than are asked for."""
    draw = np.random.default_rng(0)
    same = draw.normal(size=193)
    others = draw.normal(size=(30, 193))
    names = [f"{number:02}" for number in draw.permutation(20)]
    for first in range(0, 20, 7):
        some = names[first : first + 7]
        block = np.concatenate([others[first : first + 10], np.tile(same, (len(some), 1))])
        write(tmp_path, block, [f"other {first} {n}" for n in range(len(block) - len(some))] + some)
    found = find_nearest(tmp_path, same, k=5)
    assert [match.id for match in found] == ["00", "01", "02", "03", "04"]


@pytest.mark.parametrize("narrow", [1.0, 0.02])
def test_the_threshold_follows_the_data(tmp_path: Path, narrow: float) -> None:
    """Also where all features lie in one direction, as those of many models do."""
    draw = np.random.default_rng(1)
    vectors = np.eye(1, 24)[0] + narrow * draw.normal(size=(120, 24))
    twins = vectors[:6] + narrow * 0.005 * draw.normal(size=(6, 24))
    names = [f"{number:03}" for number in range(126)]
    write(tmp_path, np.concatenate([vectors, twins]), names)
    found = {(pair.one, pair.other) for pair in find_duplicates(tmp_path).pairs}
    assert found == {(names[n], names[120 + n]) for n in range(6)}
    if narrow < 1:
        assert len(find_duplicates(tmp_path, threshold=0.98).pairs) > 1000


def test_the_most_alike_come_first_and_equals_by_name(tmp_path: Path) -> None:
    vectors = np.array([[1, 0.1], [1, 0], [1, 0.001], [0, 1], [0, 2]])
    write(tmp_path, vectors, ["a", "b", "c", "e", "d"])
    write(tmp_path, np.array([[0.0, 4]]), ["f"])
    found = find_duplicates(tmp_path, threshold=0.9)
    assert found.threshold_source == "given"
    order = [(pair.one, pair.other) for pair in found.pairs]
    assert order[:3] == [("d", "f"), ("e", "d"), ("e", "f")]
    assert order[3:] == [("b", "c"), ("a", "c"), ("a", "b")]
    assert find_duplicates(tmp_path).threshold_source == "equal to within rounding"


def test_nothing_is_a_duplicate_where_nothing_stands_out(tmp_path: Path) -> None:
    vectors = np.random.default_rng(2).normal(size=(200, 16))
    write(tmp_path, vectors, [str(number) for number in range(200)])
    found = find_duplicates(tmp_path)
    assert found.pairs == ()
    assert found.threshold_source == "chosen from the data"


def test_planted_duplicates_among_flowers(tmp_path: Path) -> None:
    """Re-encoded, resized and cropped by a few pixels; nothing else is named."""
    photos = sorted(golden("flowers").rglob("*.jpg"))[::10][:40]
    names = [str(path) for path in photos]
    for number, path in enumerate(photos[:3]):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        if number == 1:
            image = image.resize((image.width * 9 // 10, image.height * 9 // 10))
        if number == 2:
            image = image.crop((1, 1, image.width - 1, image.height - 1))
        image.save(tmp_path / f"{number}.jpg", quality=85)
        names.append(str(tmp_path / f"{number}.jpg"))
    torch.manual_seed(0)
    model = vitrail.create("vit_ti_16", depth=2, image_size=64).eval()
    (tmp_path / "out").mkdir()
    embed_local(model, names, tmp_path / "out", Job(output="pooled"), EmbeddingTable("float32"))
    found = {(pair.one, pair.other) for pair in find_duplicates(tmp_path / "out").pairs}
    planted = {(names[n], names[40 + n]) for n in range(3)}
    assert found <= planted
    assert len(found) >= 2


def test_features_that_float16_cannot_hold_are_a_reason(tmp_path: Path) -> None:
    table = EmbeddingTable("float16")([Output("a", np.array([1.0, 7e4], np.float32))])
    pq.write_table(table, tmp_path / "x.parquet")
    (row,) = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert row["embedding"] is None
    assert "float16 cannot hold: use vector_precision float32" in row["problem"]


def test_no_two_names_have_one_id() -> None:
    names = ["caf\udce9", "caf\\udce9", "caf\\\\udce9", "caf\\\udce9", "caf\udce8", "a\\b", "caf"]
    assert len({utf8_name(name) for name in names}) == len(names)
    assert utf8_name("a\\b") == "a\\b"
