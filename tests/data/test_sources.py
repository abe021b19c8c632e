"""Every kind of data set opens to the same protocol, and what does not open says why."""

import gzip
import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]  # ships no types
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tests.golden import golden
from vitrail import UserError
from vitrail.data.images import BadImage, decode
from vitrail.data.source import Source, Splits
from vitrail.data.sources import idx, open_data
from vitrail.data.sources.files import Files
from vitrail.data.sources.packed import Packed
from vitrail.data.sources.validation import draw

Make = Callable[[Path], str]
Contents = dict[str, bytes | str]
Array = NDArray[Any]


def picture(colour: int, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 4), (colour, 0, 0)).save(file, kind)
    return file.getvalue()


def write(root: Path, files: Mapping[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def opened(spec: str | Path, **options: Any) -> Splits:
    return open_data(spec, val_share=0, **options)


def colour_of(source: Source, index: int) -> int:
    """The red of a picture, by which tests know which one it is."""
    raw = source.read(index)
    pixels = decode(raw, source.name(index)) if isinstance(raw, bytes) else raw
    return int(pixels.reshape(-1)[0])


def told(source: Source) -> list[tuple[int, str]]:
    """(red, label) of every image."""
    assert source.targets is not None
    return [(colour_of(source, i), source.labels[int(t)]) for i, t in enumerate(source.targets)]


# Class folders


def test_class_folders(tmp_path: Path) -> None:
    files: Contents = {
        "dog/b.png": picture(2),
        "cat/deep/er/a.PNG": picture(1),
        "dog/a.jpeg": picture(3, "JPEG"),
        "dog/notes.txt": "no image",
        ".git/objects/x.png": picture(9),
        "dog/.hidden.png": picture(9),
        "__MACOSX/dog/a.png": picture(9),
        "README.md": "about dogs",
    }
    source = opened(write(tmp_path, files))["train"]
    assert source.labels == ("cat", "dog")
    assert [source.name(i) for i in range(3)] == [
        f"{tmp_path}/{name}" for name in ("cat/deep/er/a.PNG", "dog/a.jpeg", "dog/b.png")
    ]
    assert source.targets is not None
    assert source.targets.tolist() == [0, 1, 1]
    assert source.read(2) == files["dog/b.png"]


def test_class_folders_with_splits_share_their_classes(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "Training/cat/1.png": picture(1),
            "Training/dog/2.png": picture(2),
            "valid/dog/3.png": picture(3),
            "test/emu/4.png": picture(4),
        },
    )
    data = opened(tmp_path)
    assert list(data.parts) == ["train", "val", "test"]
    assert {part.labels for part in data.parts.values()} == {("cat", "dog", "emu")}
    assert told(data["val"]) == [(3, "dog")]
    assert told(data["test"]) == [(4, "emu")]


def test_an_empty_class_keeps_its_number(tmp_path: Path) -> None:
    write(tmp_path, {"a/1.png": picture(1), "c/3.png": picture(3)})
    (tmp_path / "b").mkdir()
    source = opened(tmp_path)["train"]
    assert source.labels == ("a", "b", "c")
    assert told(source) == [(1, "a"), (3, "c")]


def test_images_without_classes_have_no_labels(tmp_path: Path) -> None:
    write(tmp_path, {"train/a/1.png": picture(1), "test/2.png": picture(2)})
    data = opened(tmp_path)
    assert data["train"].labels == ("a",)
    assert data["test"].labels == ()
    assert data["test"].targets is None


def test_links_are_followed_and_circles_are_not(tmp_path: Path) -> None:
    write(tmp_path / "store", {"1.png": picture(1)})
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat").symlink_to(tmp_path / "store", target_is_directory=True)
    (tmp_path / "store" / "up").symlink_to(tmp_path / "photos", target_is_directory=True)
    (tmp_path / "photos" / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    source = opened(tmp_path / "photos")["train"]
    assert {Path(source.name(i)).name for i in range(len(source))} == {"1.png", "gone.png"}
    with pytest.raises(BadImage, match=r"gone\.png: no such file"):
        source.read([source.name(i).endswith("gone.png") for i in range(2)].index(True))


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"cat/1.png": "x", "2.png": "x"}, "2.png lies beside the class folders"),
        ({"train/cat/1.png": "x", "dog/2.png": "x"}, "holds train beside dog"),
        ({"train/cat/1.png": "x", "2.png": "x"}, "holds 2.png beside train"),
        ({"val/cat/1.png": "x", "valid/cat/2.png": "x"}, "both mean the split val"),
        ({"cat/1.txt": "x"}, "no images found: it holds cat/1.txt"),
        ({}, "no images found; expected a folder for each class"),
        ({"a.csv": "path\n", "b.csv": "path\n"}, "a.csv and b.csv: give the one"),
    ],
)
def test_a_folder_that_could_mean_anything(
    tmp_path: Path, files: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        open_data(write(tmp_path, files))


def test_golden_folders() -> None:
    pets, flowers = open_data(golden("pets")), open_data(golden("flowers"))
    assert {name: len(part) for name, part in pets.parts.items()} == {
        "train": 37 * 11,
        "val": 37,
        "test": 37 * 4,
    }
    assert len(pets["test"].labels) == 37
    assert {name: len(part) for name, part in flowers.parts.items()} == {"train": 400, "val": 100}


# Manifests


@pytest.mark.parametrize("comma", [",", "\t", ";"])
def test_manifest(tmp_path: Path, comma: str) -> None:
    rows = ["path,label,split", "b/2.png,dog,train", "1.png,cat,validation"]
    name = "list.tsv" if comma == "\t" else "list.csv"
    write(
        tmp_path,
        {
            "b/2.png": picture(2),
            "1.png": picture(1),
            name: "\ufeff" + "\r\n".join(rows).replace(",", comma),
        },
    )
    data = opened(tmp_path / name)
    assert told(data["train"]) == [(2, "dog")]
    assert told(data["val"]) == [(1, "cat")]
    assert data["train"].name(0) == f"{tmp_path}/b/2.png"


def test_manifest_with_several_labels(tmp_path: Path) -> None:
    write(tmp_path, {"list.csv": "path,labels\n1.png,cat|dog\n2.png,\n3.png, dog ; emu\n"})
    source = opened(tmp_path / "list.csv")["train"]
    assert source.labels == ("cat", "dog", "emu")
    assert source.targets is not None
    assert source.targets.tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 1]]


def test_manifest_whose_labels_are_numbers(tmp_path: Path) -> None:
    write(tmp_path, {"list.csv": "path,label\n1.png,10\n2.png,02\n"})
    source = opened(tmp_path / "list.csv")["train"]
    assert source.labels == tuple(map(str, range(11)))
    assert source.targets is not None
    assert source.targets.tolist() == [10, 2]


def test_parquet_manifest(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet  # type: ignore[import-untyped]  # ships no types

    write(tmp_path, {"1.png": picture(1), "2.png": picture(2)})
    columns = {"path": ["1.png", "2.png"], "label": [3, 0], "junk": [b"x", b"y"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert told(opened(tmp_path / "a.parquet")["train"]) == [(1, "3"), (2, "0")]
    columns = {"file_name": ["1.png"], "labels": [["dog", "cat"]]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "b.parquet")
    multi_label = opened(tmp_path / "b.parquet")["train"].targets
    assert multi_label is not None
    assert multi_label.tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no columns, expected a column named path"),
        ("image,label\n1.png,cat\n", "holds image, label, expected a column named path"),
        ("path,label\n", "has no rows"),
        ("path,label\n1.png\n", "row 1 has 1 cells, but there are 2 columns"),
        ("path,label\n1.png,cat\n2.png,\n", "row 2 has no label"),
        ("path,class\n1.png,cat\n", "has a column named class: rename it to label"),
        ("path,label,labels\n1.png,a,b\n", "both label and labels"),
        ("path,label,split\n1.png,a,\n", "row 1 has no split"),
        ("path,label\n,cat\n", "row 1 has no path"),
    ],
)
def test_a_manifest_that_does_not_fit(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        open_data(write(tmp_path, {"list.csv": text}) / "list.csv")


def test_a_manifest_in_another_encoding(tmp_path: Path) -> None:
    write(tmp_path, {"list.csv": "path,label\n1.png,Kätzchen\n".encode("latin-1")})
    with pytest.raises(UserError, match="is not UTF-8"):
        open_data(tmp_path / "list.csv")


def test_a_missing_file_is_a_bad_image_not_the_end(tmp_path: Path) -> None:
    write(tmp_path, {"list.csv": "path,label\ngone.png,cat\n"})
    with pytest.raises(BadImage, match=r"gone\.png: no such file"):
        opened(tmp_path / "list.csv")["train"].read(0)


# Tars


def write_tar(path: Path, members: Mapping[str, bytes | str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            data = content if isinstance(content, bytes) else content.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_tars_are_read_in_any_order(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "train-000.tar",
        {"a/1.png": picture(1), "a/1.cls": "4", "b.png": picture(2), "b.json": '{"label": 0}'},
    )
    write_tar(
        tmp_path / "train-001.tar",
        {"c.mask.png": picture(9), "c.cls": "1\n", "c.png": picture(3), "c.json": "[1]"},
    )
    write_tar(tmp_path / "val-000.tar", {"d.JPG": picture(5, "JPEG"), "d.cls": "2"})
    data = opened(f"{tmp_path}/{{train-{{000..001}},val-000}}.tar")
    assert told(data["train"]) == [(1, "4"), (2, "0"), (3, "1")]
    assert data["train"].labels == ("0", "1", "2", "3", "4")
    assert data["train"].name(2) == f"{tmp_path}/train-001.tar/c.png"
    assert len(data["val"]) == 1
    for spec in (tmp_path, f"{tmp_path}/*.tar"):
        assert told(opened(spec)["train"]) == told(data["train"])


def test_tar_of_one_file_with_names_and_lists(tmp_path: Path) -> None:
    named = write_tar(tmp_path / "a.tar", {"1.png": picture(1), "1.cls": "cat"})
    assert told(opened(named)["train"]) == [(1, "cat")]
    lists: Contents = {"1.png": picture(1), "1.json": json.dumps({"labels": ["cat", "dog"]})}
    multi_label = opened(write_tar(tmp_path / "b.tar", lists))["train"]
    assert multi_label.labels == ("cat", "dog")
    bare = opened(write_tar(tmp_path / "c.tar", {"1.png": picture(1), "1.json": '{"w": 1}'}))
    assert bare["train"].targets is None


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"1.txt": "x"}, "holds no images"),
        ({"1.png": "x", "1.cls": "a", "2.png": "x"}, "2.png has no label, but others"),
        ({"1.png": "x", "1.json": "{"}, "1.json: cannot be read as a json file"),
        ({"1.png": "x", "1.cls": "a", "2.png": "x", "2.json": '["a"]'}, "others a list"),
    ],
)
def test_a_tar_that_does_not_fit(tmp_path: Path, members: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        open_data(write_tar(tmp_path / "a.tar", members))


def test_a_damaged_tar(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.png": picture(1) * 30, "1.cls": "a"})
    data = path.read_bytes()
    source = opened(path)["train"]
    path.write_bytes(data[:600])
    with pytest.raises(BadImage, match="has become shorter"):
        source.read(0)
    with pytest.raises(UserError, match="cannot be read as tar"):
        open_data(path)
    path.write_bytes(gzip.compress(data))
    with pytest.raises(UserError, match="cannot be read as tar"):
        open_data(path)
    with pytest.raises(UserError, match="matches no file"):
        open_data(f"{tmp_path}/b*.tar")


# Remote paths


@pytest.fixture
def memory() -> str:
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    return "memory://bucket"


def put(place: str, content: bytes | str) -> None:
    with fsspec.open(place, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def test_remote_folder_manifest_and_tars(memory: str, tmp_path: Path) -> None:
    for path, colour in {"train/cat/1.png": 1, "train/dog/x/2.png": 2, "val/dog/3.png": 3}.items():
        put(f"{memory}/photos/{path}", picture(colour))
    data = opened(f"{memory}/photos")
    assert told(data["train"]) == [(1, "cat"), (2, "dog")]
    assert data["val"].name(0) == f"{memory}/photos/val/dog/3.png"

    put(f"{memory}/photos/list.csv", "path,label\nval/dog/3.png,dog\n")
    assert told(opened(f"{memory}/photos/list.csv")["train"]) == [(3, "dog")]

    for number in range(2):
        members: Contents = {"1.png": picture(10 + number), "1.cls": str(number)}
        local = write_tar(tmp_path / "local.tar", members)
        put(f"{memory}/tars/train-{number}.tar", local.read_bytes())
    for spec in ("train-{0..1}.tar", "*.tar", ""):
        assert told(opened(f"{memory}/tars/{spec}")["train"]) == [(10, "0"), (11, "1")]


def test_a_remote_file_that_is_gone(memory: str) -> None:
    put(f"{memory}/list.csv", "path,label\n1.png,dog\n")
    source = opened(f"{memory}/list.csv")["train"]
    with pytest.raises(BadImage, match=r"bucket/1\.png: no such file"):
        source.read(0)
    with pytest.raises(UserError, match="no such file or folder"):
        open_data(f"{memory}/nowhere")
    with pytest.raises(UserError, match="cannot be reached: Protocol not known"):
        open_data("nonsense://bucket/photos")


# Hugging Face


def test_saved_directory(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {
        "image": [{"bytes": picture(c), "path": None} for c in range(6)],
        "label": [0, 1, 0, 1, 0, 1],
    }
    whole = datasets.Dataset.from_dict(rows, features=features)
    parts = {"train": whole.select(range(4)), "validation": whole.select([4, 5])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    data = open_data(tmp_path / "saved")
    assert told(data["train"]) == [(0, "cat"), (1, "dog"), (2, "cat"), (3, "dog")]
    assert told(data["val"]) == [(4, "cat"), (5, "dog")]
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda i: colour_of(data["train"], i % 4), range(200)))
    assert seen == [i % 4 for i in range(200)]
    again = pickle.loads(pickle.dumps(data["train"]))
    assert told(again) == told(data["train"])


def test_columns_that_must_be_named(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    kinds = {name: datasets.ClassLabel(names=["a", "b"]) for name in ("fine", "coarse")}
    features = datasets.Features({"img": datasets.Image(), **kinds})
    rows = {"img": [{"bytes": picture(7), "path": None}], "fine": [1], "coarse": [0]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    with pytest.raises(UserError, match="fine and coarse could each be the label: choose one"):
        open_data(tmp_path / "saved")
    assert told(opened(f"hf:{tmp_path}/saved?label=fine")["train"]) == [(7, "b")]
    with pytest.raises(UserError, match="has no column fin, did you mean fine"):
        open_data(f"hf:{tmp_path}/saved?label=fin")
    with pytest.raises(UserError, match="unknown option lable, did you mean label"):
        open_data(f"hf:{tmp_path}/saved?lable=fine")


def test_several_labels_secret_labels_and_files(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    write(tmp_path, {"1.png": picture(5)})
    multi_label = datasets.List(datasets.ClassLabel(names=["a", "b", "c"]))
    features = datasets.Features({"image": datasets.Image(), "labels": multi_label})
    rows = {"image": [{"bytes": None, "path": str(tmp_path / "1.png")}], "labels": [[0, 2]]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "multi_label")
    source = opened(tmp_path / "multi_label")["train"]
    assert colour_of(source, 0) == 5
    assert source.targets is not None
    assert source.targets.tolist() == [[1, 0, 1]]

    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a"])}
    )
    rows = {"image": [{"bytes": picture(1), "path": None}], "label": [-1]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "secret")
    assert opened(tmp_path / "secret")["train"].targets is None


# Arrays


def write_idx(path: Path, array: Array) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    data = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def ramp(count: int, *shape: int) -> Array:
    """Images whose every value is their number."""
    return np.broadcast_to(
        np.arange(count, dtype=np.uint8).reshape(-1, *[1] * len(shape)), (count, *shape)
    )


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_directory(tmp_path: Path, suffix: str) -> None:
    for stem, count in {"train": 5, "t10k": 3}.items():
        write_idx(tmp_path / f"{stem}-images-idx3-ubyte{suffix}", ramp(count, 7, 9))
        write_idx(tmp_path / f"{stem}-labels-idx1-ubyte{suffix}", np.arange(count) % 3)
    data = opened(tmp_path)
    assert told(data["train"]) == [(0, "0"), (1, "1"), (2, "2"), (3, "0"), (4, "1")]
    assert np.shape(data["test"].read(0)) == (7, 9)
    assert data["test"].name(2) == f"{tmp_path}/test[2]"


def test_idx_files_that_do_not_fit(tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte", ramp(5, 7, 9))
    with pytest.raises(UserError, match="has no labels for train: expected both"):
        open_data(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    write_idx(labels, np.zeros(4))
    with pytest.raises(UserError, match="5 images but 4 labels"):
        open_data(tmp_path)
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(UserError, match="holds 3 bytes, but its header asks for 4"):
        open_data(tmp_path)
    labels.write_bytes(b"\x89PNG")
    with pytest.raises(UserError, match="is not an IDX file: it begins with 89 50 4e 47"):
        open_data(tmp_path)


def test_golden_mnist() -> None:
    data = open_data(golden("mnist"))
    assert list(data.parts) == ["test"]
    assert len(data["test"]) == 10_000
    assert data["test"].targets is not None
    assert data["test"].targets[:5].tolist() == [7, 2, 1, 0, 4]


def test_fashion_mnist_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_DIRS", f"{tmp_path}/none:{tmp_path}/share")
    with pytest.raises(UserError, match="apt install dataset-fashion-mnist"):
        open_data("fashion-mnist")
    place = tmp_path / "share" / "datasets" / "fashion-mnist"
    write_idx(place / "train-images-idx3-ubyte.gz", ramp(2, 28, 28))
    write_idx(place / "train-labels-idx1-ubyte.gz", np.array([9, 0]))
    source = opened("fashion-mnist")["train"]
    assert told(source) == [(0, "Ankle boot"), (1, "T-shirt/top")]
    assert source.name(1) == "fashion-mnist/train[1]"


def test_debian_fashion_mnist() -> None:
    if not Path("/usr/share/datasets/fashion-mnist").is_dir():
        pytest.skip("no Fashion-MNIST here: apt install dataset-fashion-mnist")
    data = open_data("fashion-mnist")
    assert {name: len(part) for name, part in data.parts.items()} == {
        "train": 54_000,
        "val": 6_000,
        "test": 10_000,
    }
    assert data["train"].labels == idx.NAMED["fashion-mnist"]


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ],
)
def test_npz(tmp_path: Path, names: tuple[str, ...]) -> None:
    x, y = ramp(4, 5, 6, 3), np.array([[3], [1], [0], [1]])
    stored: dict[str, Any] = dict(zip(names, (x, y, x[2:], y[2:]), strict=True))
    np.savez(tmp_path / "a.npz", **stored)
    data = opened(tmp_path / "a.npz")
    assert told(data["train"]) == [(0, "3"), (1, "1"), (2, "0"), (3, "1")]
    assert told(data["test"]) == [(2, "0"), (3, "1")]
    assert data["train"].labels == data["test"].labels == ("0", "1", "2", "3")


def test_npz_of_one_part_channels_first_with_named_classes(tmp_path: Path) -> None:
    one_hot, names = np.eye(2)[[1, 0, 1]].astype(np.float32), np.array(["cat", "dog"])
    images = ramp(3, 3, 8, 9).astype(np.int64)
    np.savez(tmp_path / "a.npz", images=images, labels=one_hot, classes=names)
    source = opened(tmp_path / "a.npz")["train"]
    assert np.shape(source.read(1)) == (8, 9, 3)
    assert told(source) == [(0, "dog"), (1, "cat"), (2, "dog")]
    multi_label = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1]])
    np.savez(tmp_path / "b.npz", images=images, labels=multi_label)
    targets = opened(tmp_path / "b.npz")["train"].targets
    assert targets is not None
    assert targets.tolist() == multi_label.tolist()


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"a": np.zeros(3)}, "holds a, expected arrays x_train"),
        ({"x": np.zeros((3, 4, 4)), "y": np.zeros(3, int)}, "x is float64, expected whole"),
        ({"x": np.zeros((3, 16), int), "y": np.zeros(3, int)}, r"has shape \(3, 16\)"),
        ({"x": np.zeros((3, 20, 24, 17), int), "y": np.zeros(3, int)}, "1 to 16 channels"),
        ({"x": ramp(3, 4, 4), "y": np.zeros(4, int)}, "3 images but 4 labels"),
        ({"x": ramp(3, 4, 4), "y": np.array([0, -1, 0])}, "has the label -1"),
        ({"x": ramp(3, 4, 4), "y": np.array([0.5, 1, 0])}, "are float64, expected whole"),
        ({"x": np.array([None]), "y": np.zeros(1, int)}, "cannot be read: Object arrays"),
    ],
)
def test_an_npz_that_does_not_fit(
    tmp_path: Path,
    arrays: dict[str, Array],
    sentence: str,
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]  # or `allow_pickle`
    with pytest.raises(UserError, match=sentence):
        open_data(tmp_path / "a.npz")


def test_golden_cifar10() -> None:
    folder = golden("cifar10")
    data = open_data(folder)
    sizes = {name: len(part) for name, part in data.parts.items()}
    assert sizes["train"] + sizes["val"] == 5_000
    assert sizes["test"] == 2_000
    first = data["test"].read(0)
    assert not isinstance(first, bytes)
    assert first.shape == (32, 32, 3)
    assert first.dtype == np.uint8


def test_whoever_gets_an_array_may_write_to_it() -> None:
    source = open_data("digits")["train"]
    first = source.read(0)
    assert not isinstance(first, bytes)
    before = first.copy()
    first[:] = 99
    assert np.array_equal(source.read(0), before)


# torchvision


def test_torchvision_by_name(tmp_path: Path) -> None:
    for stem, count in {"train": 4, "t10k": 2}.items():
        write_idx(tmp_path / f"MNIST/raw/{stem}-images-idx3-ubyte", ramp(count, 28, 28))
        write_idx(tmp_path / f"MNIST/raw/{stem}-labels-idx1-ubyte", np.arange(count))
    data = opened(f"torchvision:MNIST:{tmp_path}")
    assert told(data["train"])[1] == (1, "1 - one")
    assert len(data["test"]) == 2
    assert len(data["test"].labels) == 10
    again = pickle.dumps(data["train"])
    assert len(again) < 1_000
    assert told(pickle.loads(again)) == told(data["train"])


def test_torchvision_hands_on_files_undecoded(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "eurosat/2750/Forest/1.png": picture(1),
            "eurosat/2750/River/2.png": b"broken",
        },
    )
    source = opened(f"torchvision:EuroSAT:{root}")["train"]
    assert source.labels == ("Forest", "River")
    assert source.read(0) == picture(1)
    assert source.read(1) == b"broken"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("torchvision:CIFAR1", "torchvision has no CIFAR1, did you mean CIFAR10"),
        ("torchvision:CIFAR10:nowhere", "not found in nowhere: give its folder as"),
        ("torchvision:SVHN:nowhere", r"torchvision\.datasets\.SVHN\('nowhere', download=True\)"),
        ("torchvision:FakeData", "is not read from a folder"),
        ("torchvision:CocoDetection", "cannot be opened by name"),
    ],
)
def test_torchvision_never_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence):
        open_data(spec)
    assert list(tmp_path.iterdir()) == []


# What is none of these


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("photo", "no such file, directory or data set. Did you mean photos"),
        ("digit", "Did you mean digits"),
        ("nowhere/photos", "no such file or directory, and no nowhere either"),
        ("xyzzy", "expected a folder of class folders"),
        ("photos.zip", "is a packed archive: unpack it"),
        ("photos/a.png", "is one image, expected a folder"),
        ("notes.doc", "is a .doc file, expected a folder"),
        ("one.npz", "cannot be read as NPZ"),
    ],
)
def test_what_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, sentence: str
) -> None:
    names = ("photos/a.png", "photos.zip", "notes.doc", "one.npz")
    monkeypatch.chdir(write(tmp_path, dict.fromkeys(names, "x")))
    with pytest.raises(UserError, match=sentence) as error:
        open_data(spec)
    assert "\n" not in str(error.value)


# Validation


def source_of(names: list[tuple[str, int]]) -> Files:
    classes = np.array([label for _, label in names], dtype=np.int64)
    return Files("root", [name for name, _ in names], tuple("abcde"), classes)


def set_aside(names: list[tuple[str, int]], seed: int = 0, share: float = 0.2) -> set[str]:
    chosen = draw(source_of(names), share, seed)
    return {name for (name, _), taken in zip(names, chosen, strict=True) if taken}


some_images = st.dictionaries(st.text(min_size=1), st.integers(0, 4), min_size=1).map(
    lambda images: list(images.items())
)


@given(some_images, st.integers(0, 9), st.floats(0.01, 0.9))
def test_validation_is_drawn_class_by_class(
    images: list[tuple[str, int]], seed: int, share: float
) -> None:
    aside = set_aside(images, seed, share)
    for label in range(5):
        members = [name for name, mine in images if mine == label]
        taken = len(aside & set(members))
        assert taken == (
            min(max(round(share * len(members)), 1), len(members) - 1) if members else 0
        )


@given(some_images, st.data())
def test_validation_does_not_depend_on_order(
    images: list[tuple[str, int]], data: st.DataObject
) -> None:
    assert set_aside(data.draw(st.permutations(images))) == set_aside(images)


@given(some_images, st.text(min_size=1), st.integers(0, 4))
@settings(max_examples=300)
def test_an_added_image_moves_at_most_one_other_of_its_class(
    images: list[tuple[str, int]], name: str, label: int
) -> None:
    if name in dict(images):
        return
    before, after = set_aside(images), set_aside([*images, (name, label)])
    moved = (before ^ after) - {name}
    assert len(moved) <= 1
    assert all(dict(images)[image] == label for image in moved)


def test_validation_is_the_same_wherever_the_data_lies(tmp_path: Path) -> None:
    files = {f"{label}/{i}.png": picture(i) for label in "ab" for i in range(20)}
    kept = []
    for root in (tmp_path / "one", tmp_path / "two" / "deep"):
        val = open_data(write(root, files))["val"]
        kept.append([str(Path(val.name(i)).relative_to(root)) for i in range(len(val))])
    assert kept[0] == kept[1]
    assert len(kept[0]) == 4
    other = open_data(tmp_path / "one", seed=1)["val"]
    assert [other.name(i) for i in range(4)] != [f"{tmp_path}/one/{name}" for name in kept[0]]


def test_the_share_for_validation(tmp_path: Path) -> None:
    write(tmp_path, {f"a/{i}.png": picture(i) for i in range(10)})
    assert {name: len(p) for name, p in open_data(tmp_path, val_share=0.3).parts.items()} == {
        "train": 7,
        "val": 3,
    }
    assert list(open_data(tmp_path, val_share=0).parts) == ["train"]
    with pytest.raises(UserError, match=r"val_share must be in \[0, 1\), got 1"):
        open_data(tmp_path, val_share=1)


# Workers


def folder(root: Path) -> str:
    return str(write(root, {f"{c}/{i}.png": picture(i) for c in "ab" for i in range(10)}))


def tars(root: Path) -> str:
    members = {
        f"{i}.{kind}": picture(i) if kind == "png" else str(i % 2)
        for i in range(20)
        for kind in ("png", "cls")
    }
    return str(write_tar(root / "a.tar", members))


def arrays(root: Path) -> str:
    np.savez(root / "a.npz", images=ramp(250, 64, 64, 3), labels=np.arange(250) % 5)
    return str(root / "a.npz")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [folder, tars, arrays, lambda _: "digits"])
def test_sources_are_cheap_to_pickle_and_safe_to_share(tmp_path: Path, make: Make) -> None:
    source = open_data(make(tmp_path))["train"]
    sent = pickle.dumps(source)
    assert len(sent) < 4_000 + 24 * 2 * len(source)
    again = pickle.loads(sent)
    assert told(again) == told(source)
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda i: colour_of(source, i % len(source)), range(300)))
    assert seen == [colour_of(again, i % len(again)) for i in range(300)]


@given(st.lists(st.text(st.characters(), max_size=8), max_size=20), st.data())
def test_packed_strings_are_the_strings(strings: list[str], data: st.DataObject) -> None:
    packed = Packed(strings)
    assert list(packed) == strings
    assert list(pickle.loads(pickle.dumps(packed))) == strings
    chosen = data.draw(st.slices(len(strings)))
    assert list(packed[chosen]) == strings[chosen]
    with pytest.raises(IndexError):
        packed[len(strings)]


def test_a_class_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """It could not be written beside the weights, hours later."""
    for label in (b"cat", b"c\xff"):
        folder = os.path.join(os.fsencode(tmp_path), label)
        os.mkdir(folder)
        Image.new("RGB", (8, 8)).save(os.fsdecode(os.path.join(folder, b"1.png")))
    with pytest.raises(UserError, match="class names must be UTF-8"):
        open_data(tmp_path)
